"""Mark each row of a digest, so that a proof names the row that was changed and not only its batch.

Why: a batch holds thousands of rows, and whoever has to find out what was tampered with should not have to guess. Batches
of before have none; their digests say as much as they always did.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0013"
down_revision: str | None = "0012"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    op.add_column(
        "batch_digests",
        sa.Column(
            "row_marks",
            postgresql.BYTEA(),
            nullable=True,
            comment="CRC-32 of each line, four bytes each: says which row differs where the digest says that one does. Null before there were any.",
        ),
        schema="ledger",
    )


def downgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    op.drop_column("batch_digests", "row_marks", schema="ledger")
