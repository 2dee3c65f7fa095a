"""Follow the counters of senders: which numbers came, and which are missing between them.

Why: what never arrived leaves no other trace. The numbers are folded from new batches into ranges, so that `post` pays for no
index on them and a question costs the number of gaps and not of entries.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0014"
down_revision: str | None = "0013"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_INSTANT = postgresql.TIMESTAMP(timezone=True)


def upgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    op.create_table(
        "sequence_marks",
        sa.Column("feed_id", sa.Integer(), nullable=False, comment="Which feed."),
        sa.Column(
            "number", sa.BigInteger(), nullable=False, comment="The last of its batches whose sequences were taken."
        ),
        sa.ForeignKeyConstraint(["feed_id"], ["ledger.feeds.feed_id"], name=op.f("fk_sequence_marks_feed_id")),
        sa.PrimaryKeyConstraint("feed_id", name=op.f("pk_sequence_marks")),
        schema="ledger",
        comment="How far the sequences of entries have been taken into ledger.sequence_runs, by feed.",
    )
    op.create_table(
        "sequence_runs",
        sa.Column("source", sa.Text(), nullable=False, comment="Whose counter it is."),
        sa.Column(
            "run",
            sa.Integer(),
            nullable=False,
            comment="Counts its restarts: a counter that begins anew is another run.",
        ),
        sa.Column("seen", postgresql.INT8MULTIRANGE(), nullable=False, comment="The numbers that came."),
        sa.Column(
            "repeats",
            sa.BigInteger(),
            server_default="0",
            nullable=False,
            comment="Other events that came under a number of it.",
        ),
        sa.Column(
            "is_sparse",
            sa.Boolean(),
            server_default=sa.false(),
            nullable=False,
            comment="So full of holes that it is no counter: nothing more is looked for.",
        ),
        sa.Column("first_at", _INSTANT, nullable=False, comment="When its first number was recorded."),
        sa.Column("last_at", _INSTANT, nullable=False, comment="When its newest number was recorded."),
        sa.PrimaryKeyConstraint("source", "run", name=op.f("pk_sequence_runs")),
        schema="ledger",
        comment="One row per sender and run of its counter: a projection of entries, taken from new batches.",
    )
    op.create_table(
        "sequence_gaps",
        sa.Column("source", sa.Text(), nullable=False, comment="Whose counter it is."),
        sa.Column("run", sa.Integer(), nullable=False, comment="Which run of it."),
        sa.Column("low", sa.BigInteger(), nullable=False, comment="The first number that is missing."),
        sa.Column("high", sa.BigInteger(), nullable=False, comment="The last number that is missing."),
        sa.Column(
            "noted_at",
            _INSTANT,
            nullable=False,
            comment="When a number behind it was recorded: its age counts from here.",
        ),
        sa.Column("accepted_at", _INSTANT, comment="When a person said that it is known to be lost; null: nobody has."),
        sa.CheckConstraint("low <= high", name=op.f("ck_sequence_gaps_holds_a_number")),
        sa.ForeignKeyConstraint(
            ["source", "run"],
            ["ledger.sequence_runs.source", "ledger.sequence_runs.run"],
            name=op.f("fk_sequence_gaps_source_run"),
        ),
        sa.PrimaryKeyConstraint("source", "run", "low", name=op.f("pk_sequence_gaps")),
        schema="ledger",
        comment="One row per stretch of numbers that is missing between those that came; late arrivals take it away.",
    )


def downgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    op.execute("drop view if exists ledger.missing_sequences")
    op.drop_table("sequence_gaps", schema="ledger")
    op.drop_table("sequence_runs", schema="ledger")
    op.drop_table("sequence_marks", schema="ledger")
