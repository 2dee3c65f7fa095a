"""Keep the windows of nodes apart and under a digest: two look-ups by index, and a column on batches.

Why: a node's hour is paid for once, so no two of its windows may overlap, and what nodes say must be as tamper-evident as
entries are.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0027"
down_revision: str | None = "0026"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    op.add_column(
        "batches",
        sa.Column(
            "windows_digest",
            postgresql.BYTEA(),
            nullable=True,
            comment="SHA-256 over the rows of ledger.node_windows that it brought; null where it brought none.",
        ),
        schema="ledger",
    )
    op.create_check_constraint(
        op.f("ck_node_windows_is_at_most_a_day"),
        "node_windows",
        "ends_at > starts_at and ends_at <= starts_at + interval '24 hours'",
        schema="ledger",
    )
    # Serves `post`, which looks for windows that a new one would overlap, and the allocation of a node's hour.
    op.create_index("ix_node_windows_node_id_starts_at", "node_windows", ["node_id", "starts_at"], schema="ledger")
    # Serves the rollup, which reads the windows of new batches, and the proof of their digests.
    op.create_index("ix_node_windows_batch_id", "node_windows", ["batch_id"], schema="ledger")
    op.create_table_comment(
        "node_windows",
        "One row per report of a GPU node about itself over a span of time; those of one node never overlap.",
        existing_comment="One row per report of a GPU node about itself over a span of time.",
        schema="ledger",
    )


def downgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    op.create_table_comment(
        "node_windows", "One row per report of a GPU node about itself over a span of time.", schema="ledger"
    )
    op.drop_index("ix_node_windows_batch_id", "node_windows", schema="ledger")
    op.drop_index("ix_node_windows_node_id_starts_at", "node_windows", schema="ledger")
    op.drop_constraint(op.f("ck_node_windows_is_at_most_a_day"), "node_windows", schema="ledger")
    op.drop_column("batches", "windows_digest", schema="ledger")
