"""Add corrections by people, and what reports of one request say differently.

Why: who corrected what, why and with what effect is written with the entries of the correction; reports of two sources
that differ are noted when they meet, since finding them later would mean holding every pair against each other. The
fingerprint on a request tells a report that says the same without reading what stands; null makes it be read.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0018"
down_revision: str | None = "0017"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    op.create_table(
        "corrections",
        sa.Column(
            "correction_no",
            sa.BigInteger(),
            sa.Identity(always=False),
            nullable=False,
            comment="What people name it by.",
        ),
        sa.Column(
            "correction_id", sa.Text(), nullable=False, comment="The caller's own, or made of what was asked for."
        ),
        sa.Column(
            "event_key",
            sa.UUID(as_uuid=False),
            nullable=False,
            comment="Over sent_tenant_id and correction_id; its rows hold it.",
        ),
        sa.Column(
            "kind",
            sa.Text(),
            nullable=False,
            comment="reverse: negates all that stood; adjust: other counts, or a difference in money; accept: a report that was kept, or the second content of a conflict, counts; refuse: a proposal does not.",
        ),
        sa.Column("tenant_id", sa.Text(), nullable=False, comment="Who pays."),
        sa.Column("sent_tenant_id", sa.Text(), nullable=False, comment="The tenant as sent."),
        sa.Column("request_id", sa.Text(), nullable=True, comment="The request; null for a fee."),
        sa.Column(
            "request_key",
            sa.UUID(as_uuid=False),
            nullable=True,
            comment="Of the request or fee; null where a report claims none.",
        ),
        sa.Column("detail", postgresql.JSONB(), nullable=False, comment="What was asked for, with its values."),
        sa.Column(
            "effects",
            postgresql.JSONB(),
            nullable=False,
            comment="What it moved: [{what, currency, before, after}], decimal text.",
        ),
        sa.Column("entry_count", sa.Integer(), nullable=False, comment="Rows that it wrote to ledger.entries."),
        sa.Column(
            "batch_id",
            sa.BigInteger(),
            nullable=True,
            comment="The batch that posted it; null for a refusal, which posts nothing.",
        ),
        sa.Column(
            "evidence_entry_id",
            sa.BigInteger(),
            nullable=True,
            comment="The first row of the report that was decided on.",
        ),
        sa.Column("dead_letter_id", sa.BigInteger(), nullable=True, comment="The conflict that was decided on."),
        sa.Column(
            "at",
            postgresql.TIMESTAMP(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="When, by the database's clock.",
        ),
        sa.Column("actor", sa.Text(), nullable=False, comment="Who."),
        sa.Column("reason", sa.Text(), nullable=False, comment="Why, in the actor's words."),
        sa.Column("second_person", sa.Text(), nullable=True, comment="Who agreed, where two are needed."),
        sa.CheckConstraint(
            "kind in ('reverse', 'adjust', 'accept', 'refuse')", name=op.f("ck_corrections_kind_is_known")
        ),
        sa.PrimaryKeyConstraint("correction_no", name=op.f("pk_corrections")),
        sa.UniqueConstraint("event_key", name=op.f("uq_corrections_event_key")),
        schema="ledger",
        comment="One row per correction by a person, written in the transaction that posts its entries.",
    )
    op.create_index(
        "ix_corrections_tenant_id_correction_no",
        "corrections",
        ["tenant_id", "correction_no"],
        unique=False,
        schema="ledger",
    )
    op.create_index(
        "uq_corrections_dead_letter_id",
        "corrections",
        ["dead_letter_id"],
        unique=True,
        schema="ledger",
        postgresql_where=sa.text("dead_letter_id is not null"),
    )
    op.create_index(
        "uq_corrections_evidence_entry_id",
        "corrections",
        ["evidence_entry_id"],
        unique=True,
        schema="ledger",
        postgresql_where=sa.text("evidence_entry_id is not null"),
    )
    op.create_table(
        "differences",
        sa.Column(
            "difference_no", sa.BigInteger(), sa.Identity(always=False), nullable=False, comment="Order of noting."
        ),
        sa.Column("tenant_id", sa.Text(), nullable=False, comment="Who pays."),
        sa.Column("request_id", sa.Text(), nullable=True, comment="The request that both speak of."),
        sa.Column("request_key", sa.UUID(as_uuid=False), nullable=False, comment="Its key."),
        sa.Column(
            "occurred_at",
            postgresql.TIMESTAMP(timezone=True),
            nullable=False,
            comment="When the call ended, by the first report.",
        ),
        sa.Column(
            "recorded_at",
            postgresql.TIMESTAMP(timezone=True),
            nullable=False,
            comment="When the later report was written.",
        ),
        sa.Column("batch_id", sa.BigInteger(), nullable=False, comment="The batch of the later report."),
        sa.Column("entry_id", sa.BigInteger(), nullable=False, comment="First row of the later report."),
        sa.Column("is_counted", sa.Boolean(), nullable=False, comment="Whether the later report counts from then on."),
        sa.Column("stood_source", sa.Text(), nullable=False, comment="Who said what stood before."),
        sa.Column("said_source", sa.Text(), nullable=False, comment="Who said otherwise."),
        sa.Column("stood_quantities", postgresql.JSONB(), nullable=False, comment="What stood: {meter: count}."),
        sa.Column(
            "said_quantities", postgresql.JSONB(), nullable=False, comment="What the later report said: {meter: count}."
        ),
        sa.Column("stood_charge", sa.Numeric(), nullable=True, comment="Charge that stood; null while unpriced."),
        sa.Column(
            "said_charge", sa.Numeric(), nullable=True, comment="Charge by the later report; null while unpriced."
        ),
        sa.Column("charge_currency", sa.CHAR(length=3), nullable=True, comment="The tenant's, ISO 4217."),
        sa.Column("stood_cost", sa.Numeric(), nullable=True, comment="Cost that stood; null while unpriced."),
        sa.Column("said_cost", sa.Numeric(), nullable=True, comment="Cost by the later report; null while unpriced."),
        sa.Column("cost_currency", sa.CHAR(length=3), nullable=True, comment="ISO 4217; null while nobody knows it."),
        sa.PrimaryKeyConstraint("difference_no", name=op.f("pk_differences")),
        schema="ledger",
        comment="One row per final report of another source that said other counts or amounts of a request than what stood.",
    )
    op.create_index("ix_differences_recorded_at", "differences", ["recorded_at"], unique=False, schema="ledger")
    op.create_index(
        "ix_differences_tenant_id_recorded_at",
        "differences",
        ["tenant_id", "recorded_at"],
        unique=False,
        schema="ledger",
    )
    op.create_index(
        "ix_entries_proposed",
        "entries",
        ["recorded_at"],
        unique=False,
        schema="ledger",
        postgresql_where=sa.text("kind = 'evidence' and usage_flags @> '{proposed}'"),
    )
    op.add_column(
        "requests",
        sa.Column(
            "counted",
            sa.BigInteger(),
            nullable=True,
            comment="Fingerprint of the counts and prices of the statement that counts: a report with the same says the same.",
        ),
        schema="ledger",
    )


def downgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    # Routines made them, and make them again.
    op.execute("drop view if exists ledger.statements_that_differ, ledger.responses_under_several_requests")
    op.drop_column("requests", "counted", schema="ledger")
    op.drop_index(
        "ix_entries_proposed",
        table_name="entries",
        schema="ledger",
        postgresql_where=sa.text("kind = 'evidence' and usage_flags @> '{proposed}'"),
    )
    op.drop_index("ix_differences_tenant_id_recorded_at", table_name="differences", schema="ledger")
    op.drop_index("ix_differences_recorded_at", table_name="differences", schema="ledger")
    op.drop_table("differences", schema="ledger")
    op.drop_index(
        "uq_corrections_evidence_entry_id",
        table_name="corrections",
        schema="ledger",
        postgresql_where=sa.text("evidence_entry_id is not null"),
    )
    op.drop_index(
        "uq_corrections_dead_letter_id",
        table_name="corrections",
        schema="ledger",
        postgresql_where=sa.text("dead_letter_id is not null"),
    )
    op.drop_index("ix_corrections_tenant_id_correction_no", table_name="corrections", schema="ledger")
    op.drop_table("corrections", schema="ledger")
