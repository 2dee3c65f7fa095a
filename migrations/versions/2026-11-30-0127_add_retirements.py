"""Add what became of months whose rows leave the ledger.

Why: keys, requests, batches and digests outlive the rows of a retired month; the database has to know that it is retired, what
its export holds, and where it went.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0023"
down_revision: str | None = "0022"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    op.create_table(
        "retirements",
        sa.Column(
            "retirement_id", sa.BigInteger(), sa.Identity(always=False), nullable=False, comment="Order of steps."
        ),
        sa.Column("posting_period", sa.Date(), nullable=False, comment="The first day of the month."),
        sa.Column(
            "step",
            sa.Text(),
            nullable=False,
            comment="export: written to files and read back; retire: its rows left the ledger; restore: they are readable again.",
        ),
        sa.Column(
            "rows_are",
            sa.Text(),
            nullable=False,
            comment="attached, kept (a table of its own beside the ledger) or dropped, after the step.",
        ),
        sa.Column("row_count", sa.BigInteger(), nullable=False, comment="Rows of the month, evidence included."),
        sa.Column(
            "location", sa.Text(), nullable=True, comment="Of an export: the folder, as named by whoever exported."
        ),
        sa.Column(
            "manifest", postgresql.JSONB(), nullable=True, comment="Of an export: files, counts, sums and hashes."
        ),
        sa.Column("manifest_hash", postgresql.BYTEA(), nullable=True, comment="Of an export: SHA-256 of its manifest."),
        sa.Column("actor", sa.Text(), nullable=False, comment="Who."),
        sa.Column("reason", sa.Text(), nullable=True, comment="Why, in the actor's words."),
        sa.Column(
            "at",
            postgresql.TIMESTAMP(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="When, by the database's clock.",
        ),
        sa.CheckConstraint("step in ('export', 'retire', 'restore')", name=op.f("ck_retirements_step_is_known")),
        sa.CheckConstraint(
            "rows_are in ('attached', 'kept', 'dropped')", name=op.f("ck_retirements_rows_are_is_known")
        ),
        sa.CheckConstraint("extract(day from posting_period) = 1", name=op.f("ck_retirements_is_a_month")),
        sa.CheckConstraint(
            "(step = 'export') = (manifest_hash is not null)", name=op.f("ck_retirements_export_has_a_manifest")
        ),
        sa.PrimaryKeyConstraint("retirement_id", name=op.f("pk_retirements")),
        schema="ledger",
        comment="One row per step that took a month's rows out of the ledger or brought them back. Rows are added, never changed.",
    )


def downgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    op.execute("drop view if exists ledger.retired_months")
    op.drop_table("retirements", schema="ledger")
