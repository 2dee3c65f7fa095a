"""Add terms of budgets: steps, what is held without an estimate, what holds while we are away, limits of groups, versions.

Why: a budget of a group may need another limit than its template, an operator must be able to say what the terms were at
any instant, and what has no price must show in a window even where only a later part of a request has none.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0007"
down_revision: str | None = "0006"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    # It returns one more column from now on; the routines make it again.
    op.execute("drop function if exists quotas.fold_windows(text)")
    for column in (
        sa.Column(
            "missing_estimate_amount",
            sa.Numeric(),
            nullable=True,
            comment="What is held for a call without an estimate; for hold only.",
        ),
        sa.Column(
            "steps",
            postgresql.JSONB(),
            nullable=False,
            server_default="[]",
            comment="What is done before the limit is reached, by share of it, ascending: [{at, action: degrade or refuse, route, output_tokens_max, hold}].",
        ),
        sa.Column(
            "when_away",
            sa.Text(),
            nullable=False,
            server_default="refuse",
            comment="What a gateway does while this database cannot be asked: refuse or admit.",
        ),
        sa.Column(
            "away_amount",
            sa.Numeric(),
            nullable=True,
            comment="Up to how much a gateway admits by itself then; for admit only.",
        ),
        sa.Column("description", sa.Text(), nullable=True, comment="For people, in their words."),
    ):
        op.add_column("budgets", column, schema="quotas")
    op.alter_column(
        "budgets",
        "missing_estimate",
        comment="What to do with a call without an estimate: refuse it, admit it, or hold missing_estimate_amount for it.",
        schema="quotas",
    )
    op.drop_constraint(op.f("ck_budgets_missing_estimate_is_known"), "budgets", schema="quotas")
    for name, rule in (
        ("missing_estimate_is_known", "missing_estimate in ('refuse', 'admit', 'hold')"),
        ("hold_has_its_amount", "(missing_estimate = 'hold') = (missing_estimate_amount is not null)"),
        ("missing_estimate_amount_is_not_negative", "missing_estimate_amount >= 0"),
        ("when_away_is_known", "when_away in ('refuse', 'admit')"),
        ("away_has_its_amount", "(when_away = 'admit') = (away_amount is not null)"),
        ("away_amount_is_not_negative", "away_amount >= 0"),
        ("steps_are_a_list", "jsonb_typeof(steps) = 'array'"),
    ):
        op.create_check_constraint(op.f(f"ck_budgets_{name}"), "budgets", rule, schema="quotas")
    op.add_column(
        "windows",
        sa.Column(
            "unpriced_tokens",
            sa.BigInteger(),
            nullable=False,
            server_default="0",
            comment="Tokens in scope without an amount, later parts of a request included: what is posted is too low while above zero.",
        ),
        schema="quotas",
    )
    op.create_table(
        "group_limits",
        sa.Column("budget_id", sa.Text(), nullable=False, comment="A budget by groups."),
        sa.Column("group_key", sa.Text(), nullable=False, comment="Which group: a JSON array as in quotas.windows."),
        sa.Column(
            "limit_amount",
            sa.Numeric(),
            nullable=True,
            comment="Instead of the budget's; null: this group is not limited.",
        ),
        sa.CheckConstraint("limit_amount >= 0", name=op.f("ck_group_limits_limit_is_not_negative")),
        sa.ForeignKeyConstraint(["budget_id"], ["quotas.budgets.budget_id"], name=op.f("fk_group_limits_budget_id")),
        sa.PrimaryKeyConstraint("budget_id", "group_key", name=op.f("pk_group_limits")),
        schema="quotas",
        comment="One row per group of a budget whose limit is its own; all others have the budget's.",
    )
    op.create_table(
        "budget_versions",
        sa.Column("budget_id", sa.Text(), nullable=False, comment="Whose terms."),
        sa.Column("version", sa.Integer(), nullable=False, comment="From 1, without a gap."),
        sa.Column(
            "at",
            postgresql.TIMESTAMP(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="From when these are the terms.",
        ),
        sa.Column("actor", sa.Text(), nullable=False, comment="Who set them."),
        sa.Column("reason", sa.Text(), nullable=True, comment="Why, in the actor's words."),
        sa.Column(
            "terms",
            postgresql.JSONB(),
            nullable=False,
            comment="All of them, and the limits of groups: amounts as text, ended_at once over.",
        ),
        sa.ForeignKeyConstraint(["budget_id"], ["quotas.budgets.budget_id"], name=op.f("fk_budget_versions_budget_id")),
        sa.PrimaryKeyConstraint("budget_id", "version", name=op.f("pk_budget_versions")),
        schema="quotas",
        comment="What the terms of a budget were at any instant: one row for each change, never changed itself.",
    )
    # What stands already is the first version that anybody can name; what it was before stands in ledger.acts.
    op.execute(
        """
        insert into quotas.budget_versions (budget_id, version, at, actor, reason, terms)
        select
            b.budget_id,
            1,
            coalesce(b.ended_at, b.created_at),
            'migration',
            'The terms in force when versions began.',
            jsonb_build_object(
                'limit_amount', b.limit_amount::text, 'hardness', b.hardness,
                'interactive_reserve', b.interactive_reserve::text, 'thresholds', to_jsonb(b.thresholds::text[]),
                'unknown_price', b.unknown_price, 'missing_estimate', b.missing_estimate,
                'missing_estimate_amount', null, 'steps', b.steps, 'when_away', b.when_away, 'away_amount', null,
                'description', null, 'group_limits', '{}'::jsonb, 'ended_at', b.ended_at
            )
        from quotas.budgets as b
        """
    )


def downgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    op.execute("drop function if exists quotas.fold_windows(text)")
    op.drop_table("budget_versions", schema="quotas")
    op.drop_table("group_limits", schema="quotas")
    op.drop_column("windows", "unpriced_tokens", schema="quotas")
    op.execute(
        "update quotas.budgets set missing_estimate = 'admit', missing_estimate_amount = null where missing_estimate = 'hold'"
    )
    op.drop_constraint(op.f("ck_budgets_missing_estimate_is_known"), "budgets", schema="quotas")
    for name in ("description", "away_amount", "when_away", "steps", "missing_estimate_amount"):
        op.drop_column("budgets", name, schema="quotas")
    op.create_check_constraint(
        op.f("ck_budgets_missing_estimate_is_known"),
        "budgets",
        "missing_estimate in ('refuse', 'admit')",
        schema="quotas",
    )
    op.alter_column(
        "budgets",
        "missing_estimate",
        comment="What to do with a call without an estimate: refuse or admit.",
        schema="quotas",
    )
