"""Add the approvals of a second person.

Why: a setting may ask two people for an act; who asked, who answered and whether it was done has to be kept.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0008"
down_revision: str | None = "0007"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_Instant = postgresql.TIMESTAMP(timezone=True)


def upgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    op.create_table(
        "approvals",
        sa.Column(
            "approval_id", sa.BigInteger(), sa.Identity(always=False), nullable=False, comment="What people name it by."
        ),
        sa.Column("act", sa.Text(), nullable=False, comment="What is to be done, as noun.verb."),
        sa.Column(
            "detail",
            postgresql.JSONB(),
            nullable=False,
            comment="With which values: what the second person agrees to.",
        ),
        sa.Column(
            "digest",
            sa.UUID(as_uuid=False),
            nullable=False,
            comment="Over act and detail: asking twice is one question.",
        ),
        sa.Column("reason", sa.Text(), nullable=False, comment="Why, in the words of whoever asks."),
        sa.Column("requested_by", sa.Text(), nullable=False, comment="Who asks, and will do it."),
        sa.Column(
            "requested_at",
            _Instant,
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="When it was asked.",
        ),
        sa.Column("expires_at", _Instant, nullable=False, comment="From here on a question, or a yes, counts no more."),
        sa.Column(
            "state",
            sa.Text(),
            server_default="requested",
            nullable=False,
            comment="requested; approved: may be done, once; refused; used: was done; expired: was neither in time.",
        ),
        sa.Column("decided_by", sa.Text(), nullable=True, comment="The second person; null until the answer."),
        sa.Column("decided_at", _Instant, nullable=True, comment="When the answer was given."),
        sa.Column("decision_reason", sa.Text(), nullable=True, comment="Why, in the words of the second person."),
        sa.Column("used_at", _Instant, nullable=True, comment="When the act was done; null until then."),
        sa.CheckConstraint(
            "state in ('requested', 'approved', 'refused', 'used', 'expired')",
            name=op.f("ck_approvals_state_is_known"),
        ),
        sa.CheckConstraint("decided_by <> requested_by", name=op.f("ck_approvals_is_by_two_people")),
        sa.CheckConstraint(
            "state not in ('approved', 'refused', 'used') or decided_by is not null",
            name=op.f("ck_approvals_answer_has_its_person"),
        ),
        sa.PrimaryKeyConstraint("approval_id", name=op.f("pk_approvals")),
        schema="ledger",
        comment="Acts that need a second person: who asked, who answered, and whether it was done.",
    )
    op.create_index(
        "uq_approvals_digest",
        "approvals",
        ["digest"],
        unique=True,
        schema="ledger",
        postgresql_where=sa.text("state in ('requested', 'approved')"),
    )


def downgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    op.drop_table("approvals", schema="ledger")
