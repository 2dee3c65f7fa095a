"""Add what was checked of what arrived, and what came of it; and the batches of an hour without reading all of them.

Why: checks run by schedule, and their results must be there when somebody looks, with the number, the bound and what to do.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0030"
down_revision: str | None = "0029"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_INSTANT = postgresql.TIMESTAMP(timezone=True)


def upgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    # A summary of each stretch of blocks: one quick reading of a narrow table.
    op.create_index("ix_batches_recorded_at", "batches", ["recorded_at"], schema="ledger", postgresql_using="brin")
    op.create_table(
        "check_runs",
        sa.Column("run_id", sa.BigInteger(), sa.Identity(), nullable=False, comment="Order of runs."),
        sa.Column("kind", sa.Text(), nullable=False, comment="schedule: it came round; command: somebody asked."),
        sa.Column("started_at", _INSTANT, nullable=False, comment="When it began."),
        sa.Column(
            "ended_at",
            _INSTANT,
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="When it was done, by the database's clock.",
        ),
        sa.Column(
            "every_seconds",
            sa.Numeric(),
            nullable=True,
            comment="The pause that was set: silence is longer. Null by hand.",
        ),
        sa.Column("window_starts_at", _INSTANT, nullable=False, comment="What arrived from here on was looked at."),
        sa.Column("window_ends_at", _INSTANT, nullable=False, comment="Exclusive end of it."),
        sa.Column("request_count", sa.BigInteger(), nullable=False, comment="New requests in it."),
        sa.Column("passed_count", sa.Integer(), nullable=False, comment="Results that hold."),
        sa.Column(
            "warned_count", sa.Integer(), nullable=False, comment="Results that do not hold and may be in order."
        ),
        sa.Column("failed_count", sa.Integer(), nullable=False, comment="Results for which somebody must act."),
        sa.Column(
            "unknown_count", sa.Integer(), nullable=False, comment="Results of too little, or of too little before."
        ),
        sa.Column("broken_count", sa.Integer(), nullable=False, comment="Checks that could not run themselves."),
        sa.CheckConstraint("kind in ('schedule', 'command')", name=op.f("ck_check_runs_kind_is_known")),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_check_runs")),
        schema="ledger",
        comment="One row per run of the checks on what arrived; kept for five weeks.",
    )
    op.create_table(
        "check_results",
        sa.Column("run_id", sa.BigInteger(), nullable=False, comment="Of which run."),
        sa.Column(
            "expectation", sa.Text(), nullable=False, comment="Its name in tallystick/arrivals/expectations.yml."
        ),
        sa.Column("kind", sa.Text(), nullable=False, comment="all, source, reason or dimension: what it is about."),
        sa.Column(
            "subject",
            sa.Text(),
            nullable=False,
            comment="The registered sender (a digest where its name holds a tenant's id), reason or dimension; empty for all.",
        ),
        sa.Column(
            "outcome",
            sa.Text(),
            nullable=False,
            comment="passed, failed, unknown (too little to say) or broken (the check itself could not run).",
        ),
        sa.Column(
            "severity", sa.Text(), nullable=True, comment="Of what failed: warn, or fail where somebody must act."
        ),
        sa.Column("unit", sa.Text(), nullable=False, comment="share, ratio, count, seconds or hours."),
        sa.Column("observed", sa.Numeric(), nullable=True, comment="The number; null where there is none."),
        sa.Column(
            "sample_count",
            sa.BigInteger(),
            nullable=True,
            comment="How much it was read from; null where that does not matter.",
        ),
        sa.Column("sample_min", sa.BigInteger(), nullable=True, comment="Below it nothing is said."),
        sa.Column(
            "least",
            sa.Numeric(),
            nullable=True,
            comment="Below it the expectation does not hold; null without such a bound.",
        ),
        sa.Column(
            "most",
            sa.Numeric(),
            nullable=True,
            comment="Above it the expectation does not hold; null without such a bound.",
        ),
        sa.Column("meaning", sa.Text(), nullable=False, comment="What the number says."),
        sa.Column("why", sa.Text(), nullable=False, comment="Why it is looked at."),
        sa.Column("act", sa.Text(), nullable=False, comment="What to do where it does not hold."),
        sa.Column("fault", sa.Text(), nullable=True, comment="Why the check could not run; null where it did."),
        sa.CheckConstraint(
            "kind in ('all', 'source', 'reason', 'dimension')", name=op.f("ck_check_results_kind_is_known")
        ),
        sa.CheckConstraint(
            "outcome in ('passed', 'failed', 'unknown', 'broken')", name=op.f("ck_check_results_outcome_is_known")
        ),
        sa.CheckConstraint("severity in ('warn', 'fail')", name=op.f("ck_check_results_severity_is_known")),
        sa.CheckConstraint(
            "(outcome = 'failed') = (severity is not null)", name=op.f("ck_check_results_severity_of_what_failed")
        ),
        sa.CheckConstraint(
            "(outcome = 'broken') = (fault is not null)", name=op.f("ck_check_results_fault_of_what_is_broken")
        ),
        sa.ForeignKeyConstraint(
            ["run_id"],
            ["ledger.check_runs.run_id"],
            name=op.f("fk_check_results_run_id_check_runs"),
            ondelete="cascade",
        ),
        sa.PrimaryKeyConstraint("run_id", "expectation", "kind", "subject", name=op.f("pk_check_results")),
        schema="ledger",
        comment="One row per expectation and what it is about, of a run: numbers alone, and no value of any tenant.",
    )


def downgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    op.drop_table("check_results", schema="ledger")
    op.drop_table("check_runs", schema="ledger")
    op.drop_index("ix_batches_recorded_at", "batches", schema="ledger")
