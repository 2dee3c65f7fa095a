"""Feeds: where batches come from, how far each has been posted, and who may write to it now."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from psycopg.rows import class_row

from ledger.database import Connection, record_act
from ledger.errors import ActRefused, Unknown

FeedKind = Literal["kafka", "api", "file", "load", "commands"]


@dataclass(slots=True)
class Claim:
    """The right to write to a feed until somebody else claims it, and what is read next."""

    feed_id: int
    name: str
    epoch: int
    next_position: int
    starts_here: int | None = None


async def claim(connection: Connection, kind: FeedKind, name: str) -> Claim:
    """Take a feed, making it on first sight; whoever held it is fenced from this moment on.

    A holder in mid transaction has the row locked, so the claim waits and then reads the position it committed.
    """
    cursor = await connection.execute(
        "insert into ledger.feeds as f (kind, name, epoch) values (%s, %s, 1)"
        " on conflict (name) do update set epoch = f.epoch + 1"
        " returning feed_id, name, epoch, next_position, starts_here",
        [kind, name],
    )
    row = await cursor.fetchone()
    assert row is not None
    return Claim(*row)


async def count_start(connection: Connection, held: Claim) -> tuple[int, bool]:
    """Count a worker's start at the feed's position.

    Return how many starts have seen this position, and whether the message there was in hand when a worker died.
    """
    cursor = await connection.execute(
        "update ledger.feeds set start_position = next_position,"
        " start_count = case when start_position = next_position then start_count + 1 else 1 end"
        " where feed_id = %s returning start_count, suspect_position is not distinct from next_position",
        [held.feed_id],
    )
    row = await cursor.fetchone()
    assert row is not None
    return int(row[0]), bool(row[1])


async def note_caught_up(connection: Connection, held: Claim) -> None:
    """Record that a feed is posted up to now, since its log holds nothing more; unless it was claimed or has moved on.

    An idle feed would look ever further behind otherwise, and holds of reservations could not expire.
    """
    await connection.execute(
        "update ledger.feeds set posted_until = greatest(posted_until, clock_timestamp())"
        " where feed_id = %s and epoch = %s and next_position = %s",
        [held.feed_id, held.epoch, held.next_position],
    )


async def suspect(connection: Connection, held: Claim, position: int) -> int:
    """Note, before it is touched, that a message is in hand; return how often it has been."""
    cursor = await connection.execute(
        "update ledger.feeds set suspect_position = %s,"
        " suspect_count = case when suspect_position = %s then suspect_count + 1 else 1 end"
        " where feed_id = %s returning suspect_count",
        [position, position, held.feed_id],
    )
    row = await cursor.fetchone()
    assert row is not None
    return int(row[0])


async def start_here(connection: Connection, name: str, position: int, *, actor: str, reason: str) -> None:
    """Record a person's word that nothing of a feed before a position is wanted; whoever writes to it is fenced."""
    async with connection.transaction():
        cursor = await connection.execute("select next_position from ledger.feeds where name = %s for update", [name])
        row = await cursor.fetchone()
        if row is None:
            raise Unknown("feed", name)
        if position <= row[0]:
            raise ActRefused(
                f"feed {name} is at position {row[0]} already: {position} would lose nothing, and move it back"
            )
        await connection.execute(
            "update ledger.feeds set starts_here = %(position)s, next_position = %(position)s, epoch = epoch + 1"
            " where name = %(name)s",
            {"position": position, "name": name},
        )
        detail = {"feed": name, "from": row[0], "to": position}
        await record_act(connection, actor, "feeds.start_here", detail, reason)


@dataclass(frozen=True, slots=True)
class FeedRecord:
    """A feed and how far it has come."""

    name: str
    kind: str
    next_position: int
    last_number: int
    posted_until: datetime | None
    starts_here: int | None
    epoch: int


async def list_feeds(connection: Connection) -> list[FeedRecord]:
    """List feeds by name."""
    async with connection.cursor(row_factory=class_row(FeedRecord)) as cursor:
        await cursor.execute(
            "select name, kind, next_position, last_number, posted_until, starts_here, epoch from ledger.feeds order by name"
        )
        return await cursor.fetchall()
