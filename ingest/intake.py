"""From messages to a committed batch: read, prepare, post; again when the books changed, row by row when one is bad."""

import asyncio
import gc
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import psycopg

from ingest.usage_events import Speaker, event_bodies, read_events, read_ndjson
from ledger import failpoints
from ledger.books import Books, ensure_ids, load_books
from ledger.database import Connection, connect, remedy_for
from ledger.errors import StaleBooks
from ledger.feeds import Claim
from ledger.posting import Batch, CommitUnknown, Missing, Posted, Priced, post, prepare
from ledger.statements import DeadLetter, Item, Refused, Window

log = logging.getLogger("tallystick.ingest")

_TRIES: Final = 8
_EVENTS_AT_ONCE: Final = 100
_LONGEST_PAUSE_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class Message:
    """Bytes as they came: a Kafka message, or the body of an HTTP request."""

    body: bytes
    received_at: int
    """UTC microseconds: the broker's append time, or the arrival over HTTP."""
    origin: str
    """The topic or the credential that brought it; names its dead letters."""
    position: int | None = None
    speaker: Speaker | None = None
    refused: Refused | None = None
    """Set where the message must not be read at all: it is one dead letter."""
    is_lines: bool = False
    """Newline-delimited JSON."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a run of messages says, priced with one version of the books; ready to post."""

    messages: Sequence[Message]
    items: list[Item]
    places: list[tuple[int, int]]
    """For each item, the message it came from and its place in it."""
    prepared: list[Priced | Window | DeadLetter]
    missing: Missing
    books: Books
    expected_position: int | None
    next_position: int | None
    _bodies: dict[int, list[bytes]] = field(default_factory=dict, compare=False, repr=False)
    """Messages cut into events, once for all their conflicts."""

    def body_of(self, index: int) -> bytes:
        item = self.items[index]
        if isinstance(item, DeadLetter):
            return item.body
        number, place = self.places[index]
        bodies = self._bodies.get(number)
        if bodies is None:
            message = self.messages[number]
            bodies = self._bodies[number] = event_bodies(message.body, is_lines=message.is_lines)
        return bodies[place]

    def origin_of(self, index: int) -> str:
        return self.messages[self.places[index][0]].origin

    def with_items(self, items: list[Item], places: list[tuple[int, int]]) -> "Reading":
        """Return a reading of the same messages that says something else."""
        missing = Missing()
        prepared = prepare(self.books, items, missing)
        return replace(self, items=items, places=places, prepared=prepared, missing=missing)

    def batch(self) -> Batch:
        return Batch(
            items=self.prepared,
            body_of=self.body_of,
            origin_of=self.origin_of,
            versions=self.books.versions,
            first_position=self.messages[0].position if self.messages else None,
            next_position=self.next_position,
            expected_position=self.expected_position,
            posted_until=max((message.received_at for message in self.messages), default=None),
        )


async def read(
    messages: Sequence[Message], books: Books, expected_position: int | None = None, next_position: int | None = None
) -> Reading:
    """Read and price messages with the books in hand; never raises for what is in them.

    Lets others run after each hundred events or so: the commit of the batch before takes its many small steps meanwhile.
    """
    items: list[Item] = []
    places: list[tuple[int, int]] = []
    prepared: list[Priced | Window | DeadLetter] = []
    missing = Missing()
    pause_at = _EVENTS_AT_ONCE
    for number, message in enumerate(messages):
        if message.refused is not None:
            found: list[Item] = [DeadLetter(message.body, message.refused)]
        else:
            failpoints.hit("read.message", message.body)
            read_body = read_ndjson if message.is_lines else read_events
            found = read_body(message.body, books.parties, message.received_at, message.speaker)
        items += found
        places += [(number, place) for place in range(len(found))]
        prepared += prepare(books, found, missing)
        if len(items) >= pause_at:
            pause_at = len(items) + _EVENTS_AT_ONCE
            await asyncio.sleep(0)
    return Reading(messages, items, places, prepared, missing, books, expected_position, next_position)


def ease_collection() -> None:
    """Let Python look for garbage in cycles seldom: a batch makes many small objects, and hardly any of them in a cycle."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)


class Intake:
    """Posts readings to one feed over one connection, and comes back after whatever may pass by itself."""

    def __init__(self, url: str, held: Claim, books: Books, connection: Connection, patience: float | None) -> None:
        self._url = url
        self.held = held
        self.books = books
        self._connection = connection
        self._patience = patience

    @classmethod
    async def open(cls, url: str, held: Claim, *, patience: float | None) -> "Intake":
        """Connect and read the books. `patience`: for how many seconds a database may be away; None waits for ever."""
        connection = await connect(url)
        return cls(url, held, await load_books(connection), connection, patience)

    async def close(self) -> None:
        await self._connection.close()

    async def read(
        self, messages: Sequence[Message], expected_position: int | None = None, next_position: int | None = None
    ) -> Reading:
        """Read messages with the books in hand; touches no connection, so that it may overlap a `post`."""
        return await read(messages, self.books, expected_position, next_position)

    async def post(self, reading: Reading) -> Posted:
        """Post a reading; return what became of each item.

        Errors: `Fenced` when the feed was claimed by somebody else, `psycopg.Error` when the database stays away or
        refuses what no single row explains. Either way nothing of the reading is posted.
        """
        started = time.monotonic()
        attempt = 0
        while True:
            attempt += 1
            try:
                return await self._post_once(reading)
            except StaleBooks:
                self.books = await load_books(self._connection)
                reading = await self._again(reading)
            except CommitUnknown as unknown:
                await self._reconnect(started)
                if await self._was_committed(unknown):
                    return unknown.posted
            except psycopg.Error as error:
                remedy = remedy_for(error)
                if remedy == "stop":
                    raise
                if remedy == "bisect":
                    reading = await self._without_the_bad_row(reading, error)
                elif self._connection.closed:
                    log.warning("the database is away (%s); waiting for it", _first_line(error))
                    await self._reconnect(started)
                elif attempt >= _TRIES:
                    raise
                else:
                    log.info("the database did not take a batch (%s); again", error.sqlstate)
                    await asyncio.sleep(min(0.02 * 2**attempt, _LONGEST_PAUSE_SECONDS))

    async def _again(self, reading: Reading) -> Reading:
        return await read(reading.messages, self.books, reading.expected_position, reading.next_position)

    async def _post_once(self, reading: Reading, *, keep: bool = True) -> Posted:
        if reading.missing:
            await ensure_ids(self._connection, reading.books, reading.missing.rate_sets, reading.missing.subjects)
            reading = reading.with_items(reading.items, reading.places)
        return await post(self._connection, self.held, reading.batch(), reading.books, keep=keep)

    async def _reconnect(self, started: float) -> None:
        """Open a new connection, again and again while there is patience."""
        await self._connection.close()
        pause = 0.05
        while True:
            try:
                self._connection = await connect(self._url)
                return
            except psycopg.OperationalError as error:
                if self._patience is not None and time.monotonic() - started > self._patience:
                    raise
                log.warning("the database is away (%s); waiting for it", _first_line(error))
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    async def _was_committed(self, unknown: CommitUnknown) -> bool:
        """Ask by (feed, number, hash) whether a batch whose commit was not answered is there."""
        async with self._connection.transaction():
            # The old session may still be committing. It holds the feed's row until it has: without this lock the answer
            # could be a no that turns into a yes, and what we have posted would come back to its sender as duplicates.
            await self._connection.execute(
                "select 1 from ledger.feeds where feed_id = %s for update", [unknown.feed_id]
            )
            cursor = await self._connection.execute(
                "select hash from ledger.batches where feed_id = %s and number = %s", [unknown.feed_id, unknown.number]
            )
            row = await cursor.fetchone()
        is_there = row is not None and bytes(row[0]) == unknown.hash
        if is_there and unknown.posted.next_position is not None:
            self.held.next_position = unknown.posted.next_position
        return is_there

    async def _without_the_bad_row(self, reading: Reading, error: psycopg.Error) -> Reading:
        """Find the item that the database refuses, by halves in transactions that are rolled back, and set it aside."""
        low, high = 0, len(reading.items)
        while high - low > 1:
            middle = (low + high) // 2
            if await self._is_refused(reading, low, middle):
                high = middle
            else:
                low = middle
        message = (error.diag.message_primary or str(error)).replace("\n", " ")
        refused = Refused("database_refused", f"{error.sqlstate}: {message}")
        log.warning("one event was set aside as a dead letter: %s", refused.detail)
        items = list(reading.items)
        items[low] = DeadLetter(reading.body_of(low), refused)
        return reading.with_items(items, reading.places)

    async def _is_refused(self, reading: Reading, low: int, high: int) -> bool:
        part = reading.with_items(reading.items[low:high], reading.places[low:high])
        try:
            await self._post_once(part, keep=False)
        except psycopg.Error as error:
            if remedy_for(error) != "bisect":
                raise
            return True
        return False


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
