"""Name the first batch with an entry under a reservation, in place of the newest.

Why: what was posted under a reservation is proved against the entries that name it from that batch on; usage that was posted
under its name before it was made is none of its own.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0017"
down_revision: str | None = "0016"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    # No routine wrote the column before this revision.
    op.alter_column(
        "reservations",
        "last_batch_id",
        new_column_name="first_batch_id",
        existing_type=sa.BigInteger(),
        comment="The first batch with an entry that names it.",
        schema="quotas",
    )


def downgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    op.alter_column(
        "reservations",
        "first_batch_id",
        new_column_name="last_batch_id",
        existing_type=sa.BigInteger(),
        comment="The newest batch with an entry that names it.",
        schema="quotas",
    )
