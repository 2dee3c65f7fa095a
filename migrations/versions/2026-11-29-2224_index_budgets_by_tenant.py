"""Index budgets by tenant: what remains for one tenant is asked before each call, and must not read everybody's budgets."""

from collections.abc import Sequence

from alembic import op

revision: str = "0002"
down_revision: str | None = "0001"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    op.create_index("ix_budgets_tenant_id", "budgets", ["tenant_id"], unique=False, schema="quotas")


def downgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    op.drop_index("ix_budgets_tenant_id", table_name="budgets", schema="quotas")
