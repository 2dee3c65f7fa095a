"""Add dated exchange rates, immutable like cards.

Why: a charge in another currency than its card's is converted by a rate that the entry names, or stays unpriced.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0004"
down_revision: str | None = "0003"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    op.create_table(
        "exchange_rates",
        sa.Column(
            "exchange_rate_id",
            sa.BigInteger(),
            sa.Identity(always=False),
            nullable=False,
            comment="Order of recording.",
        ),
        sa.Column(
            "content_hash",
            sa.UUID(as_uuid=False),
            nullable=False,
            comment="Over pair, rate, instant and what it replaces: rate sets name it in their selectors.",
        ),
        sa.Column("from_currency", sa.CHAR(length=3), nullable=False, comment="What is converted."),
        sa.Column("to_currency", sa.CHAR(length=3), nullable=False, comment="What it becomes."),
        sa.Column(
            "rate",
            sa.Numeric(),
            nullable=False,
            comment="What one unit of from_currency is in to_currency; never rounded.",
        ),
        sa.Column(
            "effective_at",
            postgresql.TIMESTAMP(timezone=True),
            nullable=False,
            comment="In force from here until the next rate of the pair.",
        ),
        sa.Column(
            "recorded_at",
            postgresql.TIMESTAMP(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="Known since.",
        ),
        sa.Column("source_address", sa.Text(), nullable=False, comment="Where the rate stands."),
        sa.Column("checked_on", sa.Date(), nullable=False, comment="When somebody last held it against its source."),
        sa.Column(
            "replaces",
            sa.UUID(as_uuid=False),
            nullable=True,
            comment="content_hash of the rate that this one restates: same pair, same instant.",
        ),
        sa.CheckConstraint("rate > 0", name=op.f("ck_exchange_rates_rate_is_positive")),
        sa.CheckConstraint("from_currency <> to_currency", name=op.f("ck_exchange_rates_currencies_differ")),
        sa.PrimaryKeyConstraint("exchange_rate_id", name=op.f("pk_exchange_rates")),
        sa.UniqueConstraint("content_hash", name=op.f("uq_exchange_rates_content_hash")),
        schema="ledger",
        comment="Immutable: a changed rate is a new row.",
    )


def downgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    op.drop_table("exchange_rates", schema="ledger")
