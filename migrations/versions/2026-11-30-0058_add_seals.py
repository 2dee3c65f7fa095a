"""Add seals of closed periods, count closes, and let a merge of tenants end.

Why: what a closed month came to is kept by tenant and the dimensions of the marts, so that it can be proved, and read after
its rows are gone. A period that is opened again is sealed anew when it is closed again, and the old seal stays: the number
of the close names the one that counts. A merge that was a mistake ends at an instant; what was booked under it stays.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0011"
down_revision: str | None = "0010"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_INSTANT = postgresql.TIMESTAMP(timezone=True)


def upgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    op.add_column(
        "periods",
        sa.Column(
            "close_number",
            sa.Integer(),
            server_default="0",
            nullable=False,
            comment="How often it was closed; of its seals the one of this number counts.",
        ),
        schema="ledger",
    )
    op.add_column(
        "periods",
        sa.Column("closed_at", _INSTANT, nullable=True, comment="When it was last closed; null while it is open."),
        schema="ledger",
    )
    op.add_column(
        "tenants",
        sa.Column(
            "unmerged_at",
            _INSTANT,
            nullable=True,
            comment="Usage that occurred from here on is its own again; null: never.",
        ),
        schema="ledger",
    )
    op.create_check_constraint(
        op.f("ck_tenants_merge_ends_after_it_begins"),
        "tenants",
        "unmerged_at is null or unmerged_at > merged_at",
        schema="ledger",
    )
    op.create_table(
        "seals",
        sa.Column("tenant_id", sa.Text(), nullable=False, comment="Whose month it is."),
        sa.Column("posting_period", sa.Date(), nullable=False, comment="The first day of the month."),
        sa.Column(
            "close_number",
            sa.Integer(),
            nullable=False,
            comment="Of the close that it seals; a lower one than the period's is superseded.",
        ),
        sa.Column(
            "sealed_at",
            _INSTANT,
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="When it was made.",
        ),
        sa.Column("line_count", sa.BigInteger(), nullable=False, comment="Rows of seal_lines that it covers."),
        sa.Column(
            "row_count", sa.BigInteger(), nullable=False, comment="Rows of the ledger in the month, evidence included."
        ),
        sa.Column("request_count", sa.BigInteger(), nullable=False, comment="Requests, each once."),
        sa.Column(
            "cost_sums",
            postgresql.JSONB(),
            nullable=False,
            comment="What we owe providers: {currency: decimal string}, unrounded.",
        ),
        sa.Column(
            "charge_sums",
            postgresql.JSONB(),
            nullable=False,
            comment="What the tenant owes: {currency: decimal string}, unrounded.",
        ),
        sa.Column(
            "cost_unpriced_count",
            sa.BigInteger(),
            nullable=False,
            comment="Requests, of request_count, without a cost.",
        ),
        sa.Column(
            "charge_unpriced_count",
            sa.BigInteger(),
            nullable=False,
            comment="Requests, of request_count, without a charge.",
        ),
        sa.Column(
            "usage_missing_count", sa.BigInteger(), nullable=False, comment="Requests, of request_count, without usage."
        ),
        sa.Column(
            "digest", postgresql.BYTEA(), nullable=False, comment="SHA-256 over the canonical text of its lines."
        ),
        sa.Column(
            "digest_version", sa.SmallInteger(), nullable=False, comment="Of the canonical text: ledger/seals.py."
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id", "posting_period"],
            ["ledger.periods.tenant_id", "ledger.periods.posting_period"],
            name=op.f("fk_seals_tenant_id_posting_period"),
        ),
        sa.PrimaryKeyConstraint("tenant_id", "posting_period", "close_number", name=op.f("pk_seals")),
        schema="ledger",
        comment="One row per close of a tenant's month: what it came to. Immutable; survives the month's rows.",
    )
    op.create_table(
        "seal_lines",
        sa.Column("tenant_id", sa.Text(), nullable=False, comment="Whose month it is."),
        sa.Column("posting_period", sa.Date(), nullable=False, comment="The first day of the month."),
        sa.Column("close_number", sa.Integer(), nullable=False, comment="Of the seal that it belongs to."),
        sa.Column("line_number", sa.Integer(), nullable=False, comment="Its place in the canonical text, from 1."),
        sa.Column("local_date", sa.Date(), nullable=False, comment="Day of the usage in the tenant's zone."),
        *(sa.Column(name, sa.Text(), nullable=name != "language", comment=comment) for name, comment in _DIMENSIONS),
        *(
            sa.Column(
                name, sa.Numeric() if name.endswith("_amount") else sa.BigInteger(), nullable=False, comment=comment
            )
            for name, comment in _MEASURES
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id", "posting_period", "close_number"],
            ["ledger.seals.tenant_id", "ledger.seals.posting_period", "ledger.seals.close_number"],
            name=op.f("fk_seal_lines_tenant_id_posting_period_close_number"),
        ),
        sa.PrimaryKeyConstraint(
            "tenant_id", "posting_period", "close_number", "line_number", name=op.f("pk_seal_lines")
        ),
        schema="ledger",
        comment="One row per seal, local day and the dimensions of the marts: what rollups of a retired month are folded from.",
    )


_DIMENSIONS = (
    ("feature", "What it was for."),
    ("language", "Primary subtag plus script of the text; und where unknown."),
    ("provider", "Who served the calls."),
    ("model", "The canonical id; null where the name is nobody's."),
    ("route", "The route in the gateway."),
    ("lane", "interactive or batch."),
    ("cost_currency", "Of cost_amount, ISO 4217; null while unpriced."),
    ("charge_currency", "Of charge_amount, ISO 4217."),
)
_MEASURES = (
    ("entry_count", "Ledger rows folded into it, evidence not."),
    ("evidence_count", "Rows of reports that were not the best of their request."),
    ("request_count", "Requests, each once."),
    ("estimated_count", "Requests, of request_count, known by an estimate only."),
    ("usage_missing_count", "Requests, of request_count, without usage."),
    ("uncached_input_tokens", "Text input that came from no cache and went into none."),
    ("cache_read_tokens", "Text input read from the provider's cache."),
    ("cache_write_5m_tokens", "Input written to a cache for five minutes."),
    ("cache_write_1h_tokens", "Input written to a cache for an hour."),
    ("cache_write_other_tokens", "Input written to a cache for a time that nobody stated."),
    ("visible_output_tokens", "Text output that the caller sees."),
    ("reasoning_tokens", "Output that the caller does not see."),
    ("input_tokens", "All input token meters."),
    ("output_tokens", "All output token meters."),
    ("avoided_tokens", "Counts of a gateway's own cache hits: not used, not billed."),
    ("cost_amount", "What we owe the provider, unrounded; what is unpriced adds nothing."),
    ("cost_unpriced_count", "Requests, of request_count, without a cost."),
    ("cost_unpriced_tokens", "Tokens whose cost is unknown."),
    ("charge_amount", "What the tenant owes, unrounded; what is unpriced adds nothing."),
    ("charge_unpriced_count", "Requests, of request_count, without a charge."),
    ("charge_unpriced_tokens", "Tokens whose charge is unknown."),
)


def downgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    op.drop_table("seal_lines", schema="ledger")
    op.drop_table("seals", schema="ledger")
    op.drop_constraint(op.f("ck_tenants_merge_ends_after_it_begins"), "tenants", schema="ledger")
    op.drop_column("tenants", "unmerged_at", schema="ledger")
    op.execute("drop trigger if exists keep_closed_period on ledger.periods")
    op.drop_column("periods", "closed_at", schema="ledger")
    op.drop_column("periods", "close_number", schema="ledger")
