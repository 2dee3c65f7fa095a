"""Let what is above a limit be the work of an outage.

Why: a budget may let a replica admit calls while the database cannot be asked; they are booked when it returns, and what they
take above the limit is a cause of its own.
"""

from collections.abc import Sequence

from alembic import op

revision: str = "0019"
down_revision: str | None = "0018"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_BEFORE = "'overrun', 'late_settle', 'unreserved', 'correction', 'limit', 'release'"


def upgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    op.drop_constraint(op.f("ck_excess_cause_is_known"), "excess", schema="quotas")
    op.create_check_constraint(
        op.f("ck_excess_cause_is_known"), "excess", f"cause in ({_BEFORE}, 'away')", schema="quotas"
    )


def downgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    # The sums stay; which of them an outage made is told no more.
    op.execute("update quotas.excess set cause = 'limit' where cause = 'away'")
    op.drop_constraint(op.f("ck_excess_cause_is_known"), "excess", schema="quotas")
    op.create_check_constraint(op.f("ck_excess_cause_is_known"), "excess", f"cause in ({_BEFORE})", schema="quotas")
