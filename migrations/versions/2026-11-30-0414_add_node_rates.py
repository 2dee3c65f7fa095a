"""Add dated rates of GPU nodes, immutable like cards.

Why: what an hour of a node costs changes with contracts and clouds, and an hour is priced as of then.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0028"
down_revision: str | None = "0027"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_INSTANT = postgresql.TIMESTAMP(timezone=True)


def upgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    op.create_table(
        "node_rates",
        sa.Column("node_rate_id", sa.BigInteger(), sa.Identity(), nullable=False, comment="Order of recording."),
        sa.Column(
            "content_hash",
            sa.UUID(as_uuid=False),
            nullable=False,
            comment="Over what the rate is for, its price, its instant and what it replaces.",
        ),
        sa.Column("gpu_model", sa.Text(), nullable=False, comment="As the windows of its nodes say it, exactly."),
        sa.Column("gpu_count", sa.Integer(), nullable=False, comment="GPUs, or slices, of one node."),
        sa.Column(
            "mig_profile", sa.Text(), nullable=True, comment="Of nodes that are slices of a GPU; null for whole ones."
        ),
        sa.Column("region", sa.Text(), nullable=True, comment="Of nodes of this region only; null for any."),
        sa.Column("node_id", sa.Text(), nullable=True, comment="Of this node only; null for any."),
        sa.Column(
            "hourly_price",
            sa.Numeric(),
            nullable=False,
            comment="What the whole node costs for an hour, its power in it.",
        ),
        sa.Column("currency", sa.CHAR(length=3), nullable=False, comment="ISO 4217 code."),
        sa.Column("effective_at", _INSTANT, nullable=False, comment="In force from here until the next of its kind."),
        sa.Column(
            "recorded_at",
            _INSTANT,
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="Known since.",
        ),
        sa.Column("source_address", sa.Text(), nullable=False, comment="Where the price stands."),
        sa.Column("checked_on", sa.Date(), nullable=False, comment="When somebody last held it against its source."),
        sa.Column(
            "replaces",
            sa.UUID(as_uuid=False),
            nullable=True,
            comment="content_hash of the rate that this one restates: same nodes, same instant.",
        ),
        sa.CheckConstraint("hourly_price > 0", name=op.f("ck_node_rates_hourly_price_is_positive")),
        sa.CheckConstraint("gpu_count > 0", name=op.f("ck_node_rates_gpu_count_is_positive")),
        sa.PrimaryKeyConstraint("node_rate_id", name=op.f("pk_node_rates")),
        sa.UniqueConstraint("content_hash", name=op.f("uq_node_rates_content_hash")),
        schema="ledger",
        comment="What an hour of a GPU node costs. Immutable: a changed price is a new row.",
    )


def downgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    op.drop_table("node_rates", schema="ledger")
