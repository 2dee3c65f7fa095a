"""Add the instants at which the limit of a prepaid tenant turns.

Why: what is left of a grant is gone at its end, by the database's clock, and not when somebody next looks. A reservation in between
was admitted against money that had expired.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0024"
down_revision: str | None = "0023"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    op.create_table(
        "turns",
        sa.Column("budget_id", sa.Text(), nullable=False, comment="A prepaid budget."),
        sa.Column(
            "at",
            postgresql.TIMESTAMP(timezone=True),
            nullable=False,
            comment="When a grant begins or ends: from then on the limit must be set anew.",
        ),
        sa.Column(
            "lapses",
            sa.Numeric(),
            nullable=False,
            comment="What grants that end then had left when the limit was set: taken off the limit from that instant on.",
        ),
        sa.CheckConstraint("lapses >= 0", name=op.f("ck_turns_lapses_is_not_negative")),
        sa.ForeignKeyConstraint(["budget_id"], ["quotas.budgets.budget_id"], name=op.f("fk_turns_budget_id")),
        sa.PrimaryKeyConstraint("budget_id", "at", name=op.f("pk_turns")),
        schema="quotas",
        comment="One row per prepaid budget and instant to come at which what is left of its grants changes by itself.",
    )
    # The scheduler looks at each of these shortly before it comes, and then says what lapses.
    op.execute(
        """
        insert into quotas.turns (budget_id, at, lapses)
        select distinct b.budget_id, t.at, 0
        from quotas.budgets as b
        join quotas.grants as g on g.tenant_id = b.tenant_id and g.currency = b.currency
        cross join lateral (values (g.effective_at), (g.expires_at)) as t (at)
        where
            starts_with(b.budget_id, 'prepaid-')
            and b.ended_at is null
            and t.at > (select max(v.at) from quotas.budget_versions as v where v.budget_id = b.budget_id)
        """
    )


def downgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    op.drop_table("turns", schema="quotas")
