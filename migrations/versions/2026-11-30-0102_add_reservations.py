"""Add reservations and decisions; say why a window is above its limit in words of reservations.

Why: what is promised must be held until its usage is in the ledger, and whoever looks at an excess wants to know whether
a call took more than it held, came late, or never asked; the kind of the entry does not tell.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0012"
down_revision: str | None = "0011"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    op.create_table(
        "decisions",
        sa.Column(
            "decision_id", sa.BigInteger(), sa.Identity(always=False), nullable=False, comment="Order of recording."
        ),
        sa.Column(
            "at",
            postgresql.TIMESTAMP(timezone=True),
            nullable=False,
            comment="When it was decided, by the database's clock.",
        ),
        sa.Column("tenant_id", sa.Text(), nullable=False, comment="As the ask names it."),
        sa.Column(
            "reservation_id", sa.Text(), nullable=False, comment="As the ask names it; a refusal keeps no reservation."
        ),
        sa.Column("operation_id", sa.Text(), nullable=True, comment="The logical request."),
        sa.Column(
            "kind",
            sa.Text(),
            nullable=False,
            comment="refused; degraded; soft: admitted above a soft limit; shadow: what a shadow limit would have refused.",
        ),
        sa.Column("reason", sa.Text(), nullable=False, comment="limit, unknown_price or missing_estimate."),
        sa.Column("budget_id", sa.Text(), nullable=False, comment="The tightest budget that said so."),
        sa.Column("group_key", sa.Text(), nullable=False, comment="Which group of it."),
        sa.Column("window_start", sa.Date(), nullable=False, comment="Its window."),
        sa.Column(
            "asked", sa.Numeric(), nullable=True, comment="What the call would have taken of it; null where unknown."
        ),
        sa.Column("taken", sa.Numeric(), nullable=False, comment="Posted and held of it before the call."),
        sa.Column("limit_amount", sa.Numeric(), nullable=True, comment="What held for the call's lane."),
        sa.Column(
            "feature", sa.Text(), nullable=True, comment="As asked. Likewise for the columns down to api_key_id."
        ),
        sa.Column("model", sa.Text(), nullable=True, comment="Canonical id."),
        sa.Column("route", sa.Text(), nullable=True, comment="Before any step."),
        sa.Column("lane", sa.Text(), nullable=True, comment="interactive or batch."),
        sa.Column("api_key_id", sa.Text(), nullable=True, comment="The sender's key."),
        sa.CheckConstraint(
            "kind in ('refused', 'degraded', 'soft', 'shadow')", name=op.f("ck_decisions_kind_is_known")
        ),
        sa.PrimaryKeyConstraint("decision_id", name=op.f("pk_decisions")),
        schema="quotas",
        comment="One row per ask that was refused, degraded, or passed a soft or shadow limit; kept for a limited time.",
    )
    op.create_index("ix_decisions_at", "decisions", ["at"], unique=False, schema="quotas", postgresql_using="brin")
    op.create_index("ix_decisions_tenant_id_at", "decisions", ["tenant_id", "at"], unique=False, schema="quotas")
    op.create_table(
        "reservations",
        sa.Column("tenant_id", sa.Text(), nullable=False, comment="As the ask and the usage event name it."),
        sa.Column("reservation_id", sa.Text(), nullable=False, comment="The caller's idempotency key."),
        sa.Column(
            "content_hash",
            sa.UUID(as_uuid=False),
            nullable=False,
            comment="Of the ask: the same id with another one is a conflict.",
        ),
        sa.Column("operation_id", sa.Text(), nullable=True, comment="The logical request that it belongs to."),
        sa.Column("basis", sa.Text(), nullable=False, comment="worst_case or expected."),
        sa.Column("state", sa.Text(), nullable=False, comment="held, awaiting_entry, settled, voided or expired."),
        sa.Column(
            "provider_account",
            sa.Text(),
            nullable=True,
            comment="As asked. Likewise for the columns down to output_tokens.",
        ),
        sa.Column("feature", sa.Text(), nullable=True, comment="What the call is for."),
        sa.Column("model", sa.Text(), nullable=True, comment="Canonical id; null where nobody knows the name."),
        sa.Column(
            "route", sa.Text(), nullable=True, comment="Where the call goes: the degrade step's route where it has one."
        ),
        sa.Column("lane", sa.Text(), nullable=True, comment="interactive or batch."),
        sa.Column("api_key_id", sa.Text(), nullable=True, comment="The sender's key."),
        sa.Column("input_tokens", sa.BigInteger(), nullable=True, comment="Estimated; null where unknown."),
        sa.Column(
            "output_tokens", sa.BigInteger(), nullable=True, comment="Estimated, or the cap; null where unknown."
        ),
        sa.Column(
            "step",
            postgresql.JSONB(),
            nullable=True,
            comment="The degrade step that it was admitted by: route, output_tokens_max.",
        ),
        sa.Column(
            "budget_ids",
            postgresql.ARRAY(sa.Text()),
            nullable=False,
            comment="What it is held against; quotas.holds has them as rows.",
        ),
        sa.Column("group_keys", postgresql.ARRAY(sa.Text()), nullable=False, comment="By budget: which group of it."),
        sa.Column(
            "window_starts",
            postgresql.ARRAY(sa.Date()),
            nullable=False,
            comment="By budget: the window in force at the decision.",
        ),
        sa.Column(
            "reserved", postgresql.ARRAY(sa.Numeric()), nullable=False, comment="By budget: the amount promised."
        ),
        sa.Column(
            "stated",
            postgresql.ARRAY(sa.Numeric()),
            nullable=True,
            comment="By budget: what stays held after the call, where its end stated less.",
        ),
        sa.Column(
            "posted_under",
            postgresql.ARRAY(sa.Numeric()),
            nullable=False,
            comment="By budget: what its entries have posted there.",
        ),
        sa.Column(
            "decided_at", postgresql.TIMESTAMP(timezone=True), nullable=False, comment="By the database's clock."
        ),
        sa.Column(
            "expires_at",
            postgresql.TIMESTAMP(timezone=True),
            nullable=False,
            comment="Held longer than this without a word, it may expire.",
        ),
        sa.Column(
            "ended_at",
            postgresql.TIMESTAMP(timezone=True),
            nullable=True,
            comment="When the call was said to have ended, or the hold went.",
        ),
        sa.Column(
            "last_batch_id", sa.BigInteger(), nullable=True, comment="The newest batch with an entry that names it."
        ),
        sa.CheckConstraint("basis in ('worst_case', 'expected')", name=op.f("ck_reservations_basis_is_known")),
        sa.CheckConstraint(
            "state in ('held', 'awaiting_entry', 'settled', 'voided', 'expired')",
            name=op.f("ck_reservations_state_is_known"),
        ),
        sa.CheckConstraint(
            "cardinality(budget_ids) = cardinality(group_keys) and cardinality(budget_ids) = cardinality(window_starts) and cardinality(budget_ids) = cardinality(reserved) and cardinality(budget_ids) = cardinality(posted_under)",
            name=op.f("ck_reservations_lists_go_together"),
        ),
        sa.PrimaryKeyConstraint("tenant_id", "reservation_id", name=op.f("pk_reservations")),
        schema="quotas",
        comment="One row per admitted ask: what is held until its usage is in the ledger.",
        postgresql_with={"fillfactor": "80"},
    )
    op.create_index(
        "ix_reservations_decided_at",
        "reservations",
        ["decided_at"],
        unique=False,
        schema="quotas",
        postgresql_using="brin",
    )
    op.create_index(
        "ix_reservations_open",
        "reservations",
        ["expires_at"],
        unique=False,
        schema="quotas",
        postgresql_where=sa.text("state in ('held', 'awaiting_entry')"),
    )
    op.alter_column(
        "excess",
        "batch_id",
        existing_type=sa.BIGINT(),
        comment="Null where no batch did it: the limit was moved, or a hold let go.",
        existing_comment="Null where the limit was moved.",
        existing_nullable=True,
        schema="quotas",
    )
    op.alter_column(
        "excess",
        "cause",
        existing_type=sa.TEXT(),
        comment="Of the largest movement; EXCESS_CAUSES says what each means.",
        existing_comment="Kind of the largest movement: usage, true_up, adjustment, reversal, fee, limit.",
        existing_nullable=False,
        schema="quotas",
    )
    op.alter_column(
        "windows",
        "last_batch_id",
        existing_type=sa.BIGINT(),
        nullable=True,
        comment="The newest batch that moved it; null before the first.",
        existing_comment="The newest batch that moved it.",
        schema="quotas",
    )
    op.execute(
        "update quotas.excess set cause = case when cause in ('adjustment', 'reversal') then 'correction'"
        " when cause = 'limit' then 'limit' else 'unreserved' end"
    )
    op.create_check_constraint(
        op.f("ck_excess_cause_is_known"),
        "excess",
        "cause in ('overrun', 'late_settle', 'unreserved', 'correction', 'limit', 'release')",
        schema="quotas",
    )


def downgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    # The routines of this version name the tables; those of the one before are applied after it.
    op.execute("drop view if exists quotas.holds, quotas.tokens_in_flight, quotas.awaiting_entries, quotas.overshoots")
    op.drop_constraint(op.f("ck_excess_cause_is_known"), "excess", schema="quotas")
    op.alter_column(
        "excess",
        "cause",
        comment="Kind of the largest movement: usage, true_up, adjustment, reversal, fee, limit.",
        schema="quotas",
    )
    op.alter_column("excess", "batch_id", comment="Null where the limit was moved.", schema="quotas")
    op.execute("update quotas.windows set last_batch_id = 0 where last_batch_id is null")
    op.alter_column(
        "windows", "last_batch_id", nullable=False, comment="The newest batch that moved it.", schema="quotas"
    )
    op.drop_table("decisions", schema="quotas")
    op.drop_table("reservations", schema="quotas")
