"""Bound the local days of a version of a tenant.

Why: a tenant whose clocks go back when its zone changes would live the last hours of the old month's last day again, inside
the new month: a monthly budget, a mart and an invoice would then disagree about them. They belong to the first day.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0016"
down_revision: str | None = "0015"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    op.add_column(
        "tenant_versions",
        sa.Column(
            "first_day",
            sa.Date(),
            nullable=True,
            comment="No local day of it is before this one: that of effective_at by the clocks until then; null for the first.",
        ),
        schema="ledger",
    )
    op.execute(
        """
        update ledger.tenant_versions as v
        set first_day = b.first_day
        from (
            select
                tenant_id,
                effective_at,
                (effective_at at time zone lag(time_zone) over (partition by tenant_id order by effective_at))::date as first_day
            from ledger.tenant_versions
        ) as b
        where b.tenant_id = v.tenant_id and b.effective_at = v.effective_at
        """
    )


def downgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    op.execute("drop trigger if exists bound_days on ledger.tenant_versions")
    op.drop_column("tenant_versions", "first_day", schema="ledger")
