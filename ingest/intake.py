"""From messages to a committed batch: read, prepare, post; again when the books changed, row by row when one is bad."""

import asyncio
import gc
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec
import psycopg

from ingest.usage_events import Speaker, event_bodies, read_events, read_ndjson
from ledger import failpoints
from ledger.books import Books, ensure_ids, load_books
from ledger.database import Connection, connect, described, remedy_for
from ledger.dead_letters import Release
from ledger.errors import StaleBooks
from ledger.feeds import Claim
from ledger.posting import Batch, CommitUnknown, Missing, Posted, Priced, post, prepare, prepare_again
from ledger.statements import DeadLetter, Item, Refused, Window

log = logging.getLogger("tallystick.ingest")

_TRIES: Final = 8
_SHORTEST_PAUSE_SECONDS: Final = 0.05
_EVENTS_AT_ONCE: Final = 25
_TURNS: Final = 3
_LONGEST_PAUSE_SECONDS: Final = 2.0
_ITEMS_PER_BATCH: Final = 16_384
"""A batch numbers 65,536 rows, and an item becomes two in nearly all cases: one that goes, one that comes."""
_SET_ASIDE_MAX: Final = 64
"""More items than this are not at fault one by one: something else is wrong, and a person must look."""


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
    release: Release | None = None
    """Set where a person releases it from a dead letter: its time is not held against the window."""


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
    span: tuple[int, int] | None = None
    """Set where this is a part of what the messages say: from which item of all, and up to which."""
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

    def position_of(self, index: int) -> int | None:
        return self.messages[self.places[index][0]].position

    def release_of(self, index: int) -> Release | None:
        number, place = self.places[index]
        release = self.messages[number].release
        return None if release is None else release.at(place)

    def with_items(self, items: list[Item], places: list[tuple[int, int]]) -> "Reading":
        """Return a reading of the same messages that says something else."""
        missing = Missing()
        prepared = prepare(self.books, items, missing)
        return replace(self, items=items, places=places, prepared=prepared, missing=missing)

    def with_ids(self) -> "Reading":
        """Return a reading whose prices name the ids that were missing."""
        prepared, missing = prepare_again(self.books, self.items, self.prepared, self.missing)
        return replace(self, prepared=prepared, missing=missing)

    def part(self, low: int, high: int) -> "Reading":
        """Return the reading of some of its items; only the part with the last item moves the position."""
        start = self.span[0] if self.span else 0
        missing = self.missing
        within = Missing(
            missing.rate_sets, missing.subjects, [place - low for place in missing.places if low <= place < high]
        )
        return replace(
            self,
            items=self.items[low:high],
            places=self.places[low:high],
            prepared=self.prepared[low:high],
            missing=within,
            next_position=self.next_position if high == len(self.items) else self.expected_position,
            span=(start + low, start + high),
        )

    def parts(self) -> "list[Reading]":
        """Return it in pieces that one batch can hold."""
        if len(self.items) <= _ITEMS_PER_BATCH:
            return [self]
        return [
            self.part(low, min(low + _ITEMS_PER_BATCH, len(self.items)))
            for low in range(0, len(self.items), _ITEMS_PER_BATCH)
        ]

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
            position_of=self.position_of,
            release_of=self.release_of if any(message.release for message in self.messages) else None,
        )


async def read(
    messages: Sequence[Message], books: Books, expected_position: int | None = None, next_position: int | None = None
) -> Reading:
    """Read and price messages with the books in hand; never raises for what is in them.

    Lets others run after each few events: the commit of the batch before takes its many small steps meanwhile.
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
            if message.release is not None:
                found = [in_time(item) for item in found]
        items += found
        places += [(number, place) for place in range(len(found))]
        for start in range(0, len(found), _EVENTS_AT_ONCE):
            prepared += prepare(books, found[start : start + _EVENTS_AT_ONCE], missing, len(prepared))
            if len(prepared) >= pause_at:
                pause_at = len(prepared) + _EVENTS_AT_ONCE
                await _let_others_run()
    return Reading(messages, items, places, prepared, missing, books, expected_position, next_position)


def in_time(item: Item) -> Item:
    """Return an item as if its time lay inside the window: a person has looked at it."""
    if isinstance(item, DeadLetter) or item.refused_if_new is None:
        return item
    return msgspec.structs.replace(item, refused_if_new=None)


async def _let_others_run() -> None:
    """Give a commit that is under way some turns of the loop: one exchange with the server takes it several."""
    for _ in range(_TURNS):
        await asyncio.sleep(0)


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

        A reading that is too large for one batch goes as several; its position moves with the last of them.
        Errors: `Fenced` when the feed was claimed by somebody else, `psycopg.Error` when the database stays away or
        refuses what no single item explains. Either way nothing of the batch at fault is posted.
        """
        posted = [await self._post_patiently(part) for part in reading.parts()]
        if len(posted) == 1:
            return posted[0]
        return replace(
            posted[-1],
            results=[result for part in posted for result in part.results],
            entry_count=sum(part.entry_count for part in posted),
        )

    async def _post_patiently(self, reading: Reading) -> Posted:
        started = time.monotonic()
        tries = collisions = set_aside = 0
        pause = _SHORTEST_PAUSE_SECONDS
        is_stale = False
        unknown: CommitUnknown | None = None
        refusal: psycopg.Error | None = None
        while True:
            # Whatever a failure calls for is done inside the `try`, since it may fail in turn.
            try:
                if self._connection.closed:
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
                    self._connection = await connect(self._url)
                if unknown is not None:
                    if await self._was_committed(unknown):
                        return unknown.posted
                    unknown = None
                if is_stale:
                    failpoints.hit("post.stale")
                    self.books, is_stale = await load_books(self._connection), False
                if reading.books is not self.books:
                    reading = await self._again(reading)
                if refusal is not None:
                    reading = await self._without_the_bad_item(reading, refusal)
                    refusal, tries = None, 0
                return await self._post_once(reading)
            except StaleBooks:
                refusal, is_stale = None, True
            except CommitUnknown as error:
                unknown = error
                await self._connection.close()
            except psycopg.Error as error:
                refusal = None
                remedy = remedy_for(error)
                if remedy == "stop":
                    raise
                if remedy == "bisect":
                    set_aside += 1
                    if set_aside > _SET_ASIDE_MAX:
                        raise
                    refusal = error
                elif self._is_away(error):
                    if self._patience is not None and time.monotonic() - started > self._patience:
                        raise
                    log.warning("the database is away (%s); waiting for it", _first_line(error))
                    await self._connection.close()
                elif isinstance(error, psycopg.errors.UniqueViolation):
                    # Another feed was first with one of our keys and has committed: each time there are fewer to lose.
                    collisions += 1
                    if collisions > len(reading.items) + _TRIES:
                        raise
                elif tries < _TRIES:
                    tries += 1
                    log.info("the database did not take a batch (%s); again", error.sqlstate)
                    await asyncio.sleep(min(_SHORTEST_PAUSE_SECONDS * 2**tries, _LONGEST_PAUSE_SECONDS))
                else:
                    raise

    def _is_away(self, error: psycopg.Error) -> bool:
        state = error.sqlstate
        if state is None:
            return self._connection.closed or isinstance(error, psycopg.OperationalError)
        return self._connection.closed or state.startswith(("08", "57P"))

    async def _again(self, reading: Reading) -> Reading:
        again = await read(reading.messages, self.books, reading.expected_position, reading.next_position)
        return again.part(*reading.span) if reading.span else again

    async def _post_once(self, reading: Reading, *, keep: bool = True) -> Posted:
        while reading.missing:
            missing = reading.missing
            await ensure_ids(self._connection, reading.books, missing.rate_sets, missing.subjects)
            reading = reading.with_ids()
        return await post(self._connection, self.held, reading.batch(), reading.books, keep=keep)

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

    async def _without_the_bad_item(self, reading: Reading, refusal: psycopg.Error) -> Reading:
        """Find the first item with which the database refuses the batch, and set it aside.

        By halves, in transactions that are rolled back. Each try begins with the first item: what comes before decides
        what an item does, and a sum that becomes too large does so at one item.
        """
        taken, refused_at = 0, len(reading.items)
        if await self._refusal_of(reading.part(0, 0)) is not None:
            # Refused even while empty: no item is at fault.
            raise refusal
        while refused_at - taken > 1:
            middle = (taken + refused_at) // 2
            why = await self._refusal_of(reading.part(0, middle))
            if why is None:
                taken = middle
            else:
                refused_at, refusal = middle, why
        message = (refusal.diag.message_primary or str(refusal)).replace("\n", " ")
        why_not = Refused("database_refused", f"{refusal.sqlstate}: {message}")
        # The letter says the rest: a text of Postgres may quote the value that it refuses.
        log.warning("one event was set aside as a dead letter: %s", described(refusal))
        items = list(reading.items)
        items[taken] = DeadLetter(reading.body_of(taken), why_not)
        return reading.with_items(items, reading.places)

    async def _refusal_of(self, reading: Reading) -> psycopg.Error | None:
        try:
            await self._post_once(reading, keep=False)
        except psycopg.Error as error:
            if remedy_for(error) != "bisect":
                raise
            return error
        return None


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
