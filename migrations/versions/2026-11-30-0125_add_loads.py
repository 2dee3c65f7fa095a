"""Add loads and their staged rows.

Why: usage that comes late as files is staged whole, shown, and then posted or taken back as one.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0022"
down_revision: str | None = "0021"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_INSTANT = postgresql.TIMESTAMP(timezone=True)
_ID = postgresql.UUID(as_uuid=False)


def upgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    op.create_table(
        "loads",
        sa.Column("load_id", sa.Text(), nullable=False, comment="Chosen by whoever makes it."),
        sa.Column(
            "source",
            sa.Text(),
            nullable=False,
            comment="load:<id>, the source of all its events: who it speaks for and its rank stand there.",
        ),
        sa.Column(
            "state",
            sa.Text(),
            server_default="created",
            nullable=False,
            comment="created; loaded: rows are staged; committing, reverting: begun, and to be gone on with; committed; reverted.",
        ),
        sa.Column(
            "actor", sa.Text(), nullable=False, comment="Who made it; ledger.acts has who loaded, committed, reverted."
        ),
        sa.Column("reason", sa.Text(), nullable=False, comment="Why, in the actor's words."),
        sa.Column(
            "files",
            postgresql.JSONB(),
            server_default=sa.text("'[]'::jsonb"),
            nullable=False,
            comment="In the order in which they were loaded: name, sha256, bytes, rows, refused, mapping.",
        ),
        sa.Column(
            "row_count", sa.BigInteger(), server_default="0", nullable=False, comment="Staged rows, refused ones too."
        ),
        sa.Column(
            "refused_count",
            sa.BigInteger(),
            server_default="0",
            nullable=False,
            comment="Staged rows in state refused.",
        ),
        sa.Column(
            "without_refused",
            sa.Boolean(),
            server_default=sa.false(),
            nullable=False,
            comment="It was committed although rows were refused; they are dead letters.",
        ),
        sa.Column(
            "preview",
            postgresql.JSONB(),
            nullable=True,
            comment="What the newest preview said; null while none has been made of these rows.",
        ),
        sa.Column(
            "created_at",
            _INSTANT,
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="When it was made.",
        ),
        sa.Column(
            "loaded_at", _INSTANT, nullable=True, comment="When its newest file was staged: the receipt of its events."
        ),
        sa.Column("previewed_at", _INSTANT, nullable=True, comment="When the newest preview was made."),
        sa.Column("commit_started_at", _INSTANT, nullable=True, comment="When its first batch was to be posted."),
        sa.Column("committed_at", _INSTANT, nullable=True, comment="When its last batch was posted."),
        sa.Column("revert_started_at", _INSTANT, nullable=True, comment="When taking it back began."),
        sa.Column("reverted_at", _INSTANT, nullable=True, comment="When all of it was taken back."),
        sa.CheckConstraint("source = 'load:' || load_id", name=op.f("ck_loads_source_names_the_load")),
        sa.CheckConstraint(
            "state in ('created', 'loaded', 'committing', 'committed', 'reverting', 'reverted')",
            name=op.f("ck_loads_state_is_known"),
        ),
        sa.ForeignKeyConstraint(["source"], ["ledger.sources.source"], name=op.f("fk_loads_source")),
        sa.PrimaryKeyConstraint("load_id", name=op.f("pk_loads")),
        schema="ledger",
        comment="One row per backfill: files of usage that are staged, previewed, committed and, if need be, reverted as one.",
    )
    op.create_table(
        "load_rows",
        sa.Column("load_id", sa.Text(), nullable=False, comment="Whose row it is."),
        sa.Column("position", sa.BigInteger(), nullable=False, comment="From 0, in the order of files and rows."),
        sa.Column("file_no", sa.Integer(), nullable=False, comment="Place of its file in loads.files, from 0."),
        sa.Column("row_no", sa.BigInteger(), nullable=False, comment="From 1, the header of a table not counted."),
        sa.Column(
            "body",
            postgresql.BYTEA(),
            nullable=False,
            comment="The event as it is posted; of a refused row, the row as it was read.",
        ),
        sa.Column(
            "reason",
            sa.Text(),
            nullable=True,
            comment="Why the row is refused, a stable code; null where it is an event.",
        ),
        sa.Column("detail", sa.Text(), nullable=True, comment="File, row, field and rule of a refusal, for a person."),
        sa.Column(
            "event_key",
            _ID,
            nullable=True,
            comment="Identity of the event; null where the row is refused.",
        ),
        sa.Column(
            "content_hash",
            _ID,
            nullable=True,
            comment="Tells a copy inside the load from another row under the same id.",
        ),
        sa.Column("request_key", _ID, nullable=True, comment="Identity of the request that it is about."),
        sa.Column(
            "outcome",
            sa.Text(),
            nullable=True,
            comment="Where the newest preview says other than created: duplicate, evidence, conflict or dead_letter.",
        ),
        sa.Column("outcome_reason", sa.Text(), nullable=True, comment="Why, as the preview gave it."),
        sa.CheckConstraint(
            "(reason is null) = (event_key is not null)", name=op.f("ck_load_rows_is_an_event_or_refused")
        ),
        sa.ForeignKeyConstraint(["load_id"], ["ledger.loads.load_id"], name=op.f("fk_load_rows_load_id")),
        sa.PrimaryKeyConstraint("load_id", "position", name=op.f("pk_load_rows")),
        schema="ledger",
        comment="One row per row of a load's files.",
    )


def downgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    op.drop_table("load_rows", schema="ledger")
    op.drop_table("loads", schema="ledger")
