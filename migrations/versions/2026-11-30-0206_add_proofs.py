"""Add what was proved, when, and how far: the standing proof's totals and marks, and the result of each proof.

Why: whether budgets, ledger and marts agree has to be known every minute, and nobody can read the whole ledger so often.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0025"
down_revision: str | None = "0024"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_INSTANT = postgresql.TIMESTAMP(timezone=True)


def upgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    op.create_table(
        "proof_marks",
        sa.Column("feed_id", sa.Integer(), nullable=False, comment="Which feed."),
        sa.Column("number", sa.BigInteger(), nullable=False, comment="The last of its batches that was added."),
        sa.ForeignKeyConstraint(["feed_id"], ["ledger.feeds.feed_id"], name=op.f("fk_proof_marks_feed_id_feeds")),
        sa.PrimaryKeyConstraint("feed_id", name=op.f("pk_proof_marks")),
        schema="ledger",
        comment="How far the entries have been added to ledger.proof_totals, by feed.",
    )
    op.create_table(
        "proof_totals",
        sa.Column("tenant_id", sa.Text(), nullable=False, comment="Who pays."),
        sa.Column(
            "month", sa.Date(), nullable=False, comment="Month of the usage in the tenant's zone, its first day."
        ),
        sa.Column("cost_currency", sa.Text(), nullable=False, comment="Empty where there is no cost."),
        sa.Column("charge_currency", sa.Text(), nullable=False, comment="Empty where there is no charge."),
        sa.Column("cost_amount", sa.Numeric(), nullable=False, comment="What we owe providers, unrounded."),
        sa.Column("charge_amount", sa.Numeric(), nullable=False, comment="What the tenant owes, unrounded."),
        sa.Column("request_count", sa.BigInteger(), nullable=False, comment="Requests, each once."),
        sa.Column("input_tokens", sa.BigInteger(), nullable=False, comment="Tokens in."),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False, comment="Tokens out."),
        sa.Column(
            "moved_at", _INSTANT, nullable=False, comment="When entries were last added, by the database's clock."
        ),
        sa.PrimaryKeyConstraint("tenant_id", "month", "cost_currency", "charge_currency", name=op.f("pk_proof_totals")),
        schema="ledger",
        comment="One row per tenant, local month and currencies: the sums of all entries up to the marks, whose rows may be gone.",
    )
    op.create_table(
        "proofs",
        sa.Column("proof_id", sa.BigInteger(), sa.Identity(), nullable=False, comment="Order of proofs."),
        sa.Column(
            "kind",
            sa.Text(),
            nullable=False,
            comment="standing: totals of budgets, ledger and marts against each other; whole: everything made again.",
        ),
        sa.Column("started_at", _INSTANT, nullable=False, comment="From when on it looked."),
        sa.Column(
            "ended_at",
            _INSTANT,
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="When it was done, by the database's clock.",
        ),
        sa.Column(
            "every_seconds",
            sa.Numeric(),
            nullable=True,
            comment="The pause that was set: silence is longer. Null by hand.",
        ),
        sa.Column("up_to", postgresql.JSONB(), nullable=False, comment="{feed: number of the last batch that it saw}."),
        sa.Column(
            "difference_count", sa.Integer(), nullable=False, comment="What does not hold; zero is the only good one."
        ),
        sa.Column(
            "differences",
            postgresql.JSONB(),
            nullable=False,
            comment="[{part, text}], the first of each part, in words.",
        ),
        sa.Column("notes", postgresql.JSONB(), nullable=False, comment="[text]: what could not be compared."),
        sa.CheckConstraint("kind in ('standing', 'whole')", name=op.f("ck_proofs_kind_is_known")),
        sa.PrimaryKeyConstraint("proof_id", name=op.f("pk_proofs")),
        schema="ledger",
        comment="One row per proof and its result. Standing ones without a difference are kept for two days, all others for good.",
    )
    # Serves the last proof of a kind: checks, metrics, and whether the nightly one is due.
    op.create_index("ix_proofs_kind_proof_id", "proofs", ["kind", "proof_id"], schema="ledger")


def downgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    for table in ("proofs", "proof_totals", "proof_marks"):
        op.drop_table(table, schema="ledger")
