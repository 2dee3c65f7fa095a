"""Add the beats of the canary: synthetic events over the real path, and how long each took.

Why: whether the path works is known when something arrives, and at night nothing may.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0020"
down_revision: str | None = "0019"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    op.create_table(
        "canary_beats",
        sa.Column("beat_id", sa.BigInteger(), sa.Identity(), nullable=False, comment="Order of beats."),
        sa.Column(
            "sent_at",
            postgresql.TIMESTAMP(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="When the event was made.",
        ),
        sa.Column("road", sa.Text(), nullable=False, comment="http or kafka: how it was sent."),
        sa.Column(
            "every_seconds",
            sa.Numeric(),
            nullable=False,
            comment="The pause between beats that was set: silence is longer.",
        ),
        sa.Column(
            "event_id", sa.Text(), nullable=False, comment="The id of the event, under the canary's tenant and source."
        ),
        sa.Column(
            "entry_seconds", sa.Numeric(), comment="From sending to the entry being visible; null where it never was."
        ),
        sa.Column(
            "budget_seconds", sa.Numeric(), comment="From sending to the budget having moved; null where it never did."
        ),
        sa.Column("failure", sa.Text(), comment="What went wrong, in one line; null where nothing did."),
        sa.CheckConstraint("road in ('http', 'kafka')", name=op.f("ck_canary_beats_road_is_known")),
        sa.PrimaryKeyConstraint("beat_id", name=op.f("pk_canary_beats")),
        schema="ledger",
        comment="One row per synthetic event that was sent over the real path, and how long it took; kept for 30 days.",
    )


def downgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    op.drop_table("canary_beats", schema="ledger")
