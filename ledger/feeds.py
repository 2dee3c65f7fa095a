"""Feeds: where batches come from, how far each has been posted, and who may write to it now."""

from dataclasses import dataclass
from typing import Literal

from ledger.database import Connection
from ledger.errors import Unknown

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


async def count_start(connection: Connection, held: Claim) -> int:
    """Count a worker's start at the feed's position; return how many starts have seen this position."""
    cursor = await connection.execute(
        "update ledger.feeds set start_position = next_position,"
        " start_count = case when start_position = next_position then start_count + 1 else 1 end"
        " where feed_id = %s returning start_count",
        [held.feed_id],
    )
    row = await cursor.fetchone()
    assert row is not None
    return int(row[0])


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


async def start_here(connection: Connection, name: str, position: int) -> None:
    """Record a person's word that nothing of a feed before a position is wanted."""
    cursor = await connection.execute(
        "update ledger.feeds set starts_here = %s, next_position = %s, epoch = epoch + 1"
        " where name = %s and next_position <= %s returning feed_id",
        [position, position, name, position],
    )
    if await cursor.fetchone() is None:
        raise Unknown("feed that is short of this position", name)
