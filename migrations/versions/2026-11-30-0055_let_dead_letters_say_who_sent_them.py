"""Let dead letters say who sent them, where they lay in the log, and how they ended.

Why: a person searches them by tenant and source, a gap in a sender's counter is looked for among them, and a replay notes
what it made of each in the transaction that posts. Letters from before keep nulls: their bytes are read when they are shown.
"""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op

revision: str = "0010"
down_revision: str | None = "0009"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def _columns() -> tuple[sa.Column[Any], ...]:
    return (
        sa.Column(
            "position",
            sa.BigInteger(),
            comment="Offset in the log of the message that brought it first; the batch's feed names the partition. Null over HTTP.",
        ),
        sa.Column("sent_tenant_id", sa.Text(), comment="The tenant that the bytes name, where they can be read."),
        sa.Column("source", sa.Text(), comment="The sender that the bytes name, where they can be read."),
        sa.Column("event_id", sa.Text(), comment="The id that the bytes name, where they can be read."),
        sa.Column(
            "sequence", sa.BigInteger(), comment="The sender's own counter, where it can be read: set aside, not lost."
        ),
        sa.Column(
            "resolution",
            sa.Text(),
            comment="created, duplicate, evidence: what a replay made of it; split: its events were posted or set aside one by"
            " one; accepted: a conflict that a correction took over; dismissed: nothing was to be done.",
        ),
        sa.Column(
            "resolved_batch_id", sa.BigInteger(), comment="The batch that posted it; null where it was dismissed."
        ),
        sa.Column("resolved_by", sa.Text(), comment="Who."),
    )


def upgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    for column in _columns():
        op.add_column("dead_letters", column, schema="ledger")
    op.execute("update ledger.dead_letters set resolution = 'dismissed' where resolved_at is not null")
    op.create_check_constraint(
        op.f("ck_dead_letters_resolution_is_known"),
        "dead_letters",
        "resolution in ('created', 'duplicate', 'evidence', 'split', 'accepted', 'dismissed')",
        schema="ledger",
    )
    op.create_check_constraint(
        op.f("ck_dead_letters_resolution_has_its_time"),
        "dead_letters",
        "resolution is null or resolved_at is not null",
        schema="ledger",
    )
    op.create_index(
        "ix_dead_letters_open",
        "dead_letters",
        ["dead_letter_id"],
        schema="ledger",
        postgresql_where=sa.text("resolved_at is null"),
    )
    op.create_index(
        "ix_dead_letters_source_sequence",
        "dead_letters",
        ["source", "sequence"],
        schema="ledger",
        postgresql_where=sa.text("sequence is not null"),
    )


def downgrade() -> None:
    op.execute("set local lock_timeout = '10s'")
    op.drop_index("ix_dead_letters_source_sequence", table_name="dead_letters", schema="ledger")
    op.drop_index("ix_dead_letters_open", table_name="dead_letters", schema="ledger")
    op.drop_constraint("ck_dead_letters_resolution_has_its_time", "dead_letters", schema="ledger")
    op.drop_constraint("ck_dead_letters_resolution_is_known", "dead_letters", schema="ledger")
    for column in reversed(_columns()):
        op.drop_column("dead_letters", column.name, schema="ledger")
