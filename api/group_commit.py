"""Group commit: what concurrent requests bring is posted as one batch after the other, and answered after its commit.

There is no timer: whoever is queued when a commit ends goes with the next one, so that a lone request waits for nobody
and a crowd shares the cost.
"""

import asyncio
import contextlib
import logging
import time
from collections import deque
from dataclasses import dataclass
from typing import Final

import psycopg

from api.config import Config
from api.errors import (
    Closing,
    DatabaseAway,
    DeadlinePassed,
    EmptyBody,
    QueueFull,
    ReplicaFenced,
    TooManyEvents,
    where,
)
from api.metrics import Metrics
from ingest.intake import Intake, Message, Reading
from ledger import feeds
from ledger.database import connect
from ledger.errors import Fenced
from ledger.posting import Missing, Result

log = logging.getLogger("tallystick.api")

_LONGEST_PAUSE_SECONDS: Final = 2.0
_FENCED: Final = "another process runs under this replica's name"
_FAILED: Final = "commits have ended after a fault; only a restart begins them again"


@dataclass(slots=True)
class Waiting:
    """A request in the queue or in a commit."""

    reading: Reading
    size: int
    answer: "asyncio.Future[Answer]"
    is_given_up: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of the events of one request: all went with one batch."""

    feed: str
    number: int
    batch_id: int
    results: list[Result]


class GroupCommit:
    """The queue of one replica in front of its feed. Nothing is dropped: what does not fit is refused at once."""

    def __init__(self, config: Config, metrics: Metrics) -> None:
        self._config = config
        self._metrics = metrics
        self._intake: Intake | None = None
        self._queue: deque[Waiting] = deque()
        self._events = 0
        self._bytes = 0
        self._has_work = asyncio.Event()
        self._opened = asyncio.Event()
        self._is_closing = False
        self._is_fenced = False
        self._is_failed = False
        self._commit_began: float | None = None
        self._task: asyncio.Task[None] | None = None

    # --- From the routes ---------------------------------------------------------------------------------------------

    async def submit(self, message: Message) -> Answer:
        """Queue a request and return what became of its events, after their commit.

        Errors: an `Unavailable` when nothing was kept or acknowledged; `EmptyBody` and `TooManyEvents` before anything is.
        """
        config = self._config
        size = len(message.body)
        intake = self._ready_intake()
        if self._bytes and self._bytes + size > config.queue_bytes_max:
            raise QueueFull(f"{self._bytes} bytes are waiting")
        # Read before it is queued: the queue is bounded by events, and reading goes on while a commit waits for the disk.
        reading = await intake.read([message])
        self._ready_intake()
        count = len(reading.items)
        if not count:
            raise EmptyBody("the array is empty")
        if count > config.body_events_max:
            raise TooManyEvents(f"{count} events; at most {config.body_events_max} go in one request")
        if self._events + count > config.queue_events_max:
            raise QueueFull(f"{self._events} events are waiting")
        waiting = Waiting(reading, size, asyncio.get_running_loop().create_future())
        self._queue.append(waiting)
        self._count(count, size)
        self._has_work.set()
        try:
            async with asyncio.timeout(config.deadline_seconds):
                return await waiting.answer
        except TimeoutError:
            raise DeadlinePassed(f"no commit within {config.deadline_seconds:g} s") from None
        finally:
            waiting.is_given_up = True

    def _ready_intake(self) -> Intake:
        if self._is_fenced:
            raise ReplicaFenced(_FENCED)
        if self._is_closing:
            raise Closing("this replica is closing")
        if self._is_failed:
            raise Closing(_FAILED)
        if self._intake is None:
            raise DatabaseAway("the ledger has not been reached yet")
        return self._intake

    @property
    def feed(self) -> feeds.Claim | None:
        """The feed, once it is claimed."""
        return None if self._intake is None else self._intake.held

    def complaint(self) -> str | None:
        """Return why no events are taken now, or None."""
        if self._is_fenced:
            return _FENCED
        if self._is_closing:
            return "closing"
        if self._is_failed:
            return _FAILED
        if self._intake is None:
            return "the feed is not claimed yet"
        if self._events >= self._config.queue_events_max or self._bytes >= self._config.queue_bytes_max:
            return "the queue is full"
        if self._commit_began is not None and time.monotonic() - self._commit_began > self._config.stuck_seconds:
            return f"a commit has taken more than {self._config.stuck_seconds:g} s"
        return None

    def fence(self) -> None:
        """Take no more events: another process has this replica's name. Only a restart ends this."""
        if not self._is_fenced:
            log.error("feed api:%s was claimed by another process; this one takes no more events", self._config.name)
        self._is_fenced = True
        self._metrics.is_fenced.set(1)
        self._fail_all(ReplicaFenced(_FENCED))

    # --- Life --------------------------------------------------------------------------------------------------------

    async def start(self, wait_seconds: float) -> None:
        """Begin, and wait a moment for the feed; if the database is away, go on trying behind the answers."""
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(self._ended)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_seconds):
                await self._opened.wait()

    async def close(self) -> None:
        """Take nothing more, finish what is queued, and let go of the database."""
        self._is_closing = True
        self._has_work.set()
        if self._task is not None:
            if self._intake is None:
                self._task.cancel()
            # What else it may have ended with has been logged.
            await asyncio.wait([self._task])
        if self._intake is not None:
            await self._intake.close()

    def _ended(self, task: "asyncio.Task[None]") -> None:
        # A fault of ours outside a commit: without this everybody would wait for their deadline, and nobody would know.
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("commits have ended: %s", where(error))
            self._is_failed = True
            self._fail_all(Closing(_FAILED))

    async def _run(self) -> None:
        intake = await self._open()
        while True:
            await self._has_work.wait()
            self._has_work.clear()
            while batch := await self._take(intake):
                await self._commit(intake, batch)
            if self._is_closing:
                return

    async def _open(self) -> Intake:
        """Claim the feed and read the books, again and again until the database lets us."""
        pause = 0.05
        while True:
            try:
                connection = await connect(self._config.writer_url)
                try:
                    held = await feeds.claim(connection, "api", f"api:{self._config.name}")
                finally:
                    await connection.close()
                self._intake = await Intake.open(self._config.writer_url, held, patience=self._config.patience_seconds)
                self._opened.set()
                return self._intake
            except (psycopg.Error, LookupError) as error:
                log.warning("the ledger cannot be opened (%s); again", where(error))
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    # --- Batches -----------------------------------------------------------------------------------------------------

    async def _take(self, intake: Intake) -> list[Waiting]:
        """Take what is queued, up to the size of a batch, and at least one; who has given up is left out."""
        taken: list[Waiting] = []
        events = 0
        while self._queue:
            count = len(self._queue[0].reading.items)
            if taken and events + count > self._config.batch_events_max:
                break
            waiting = self._queue.popleft()
            if waiting.is_given_up:
                self._count(-count, -waiting.size)
                continue
            if waiting.reading.books is not intake.books:
                # Parties or prices have changed since it was read.
                waiting.reading = await intake.read(waiting.reading.messages)
            taken.append(waiting)
            events += count
        return taken

    async def _commit(self, intake: Intake, batch: list[Waiting]) -> None:
        count = sum(len(waiting.reading.items) for waiting in batch)
        self._commit_began = began = time.monotonic()
        try:
            posted = await intake.post(_joined([waiting.reading for waiting in batch]))
        except Fenced:
            _fail(batch, ReplicaFenced(_FENCED))
            self.fence()
        except Exception as error:
            log.error("a batch of %d events was not posted: %s", count, where(error))
            _fail(batch, error)
        else:
            at = 0
            for waiting in batch:
                end = at + len(waiting.reading.items)
                if not waiting.answer.done():
                    answer = Answer(intake.held.name, posted.number, posted.batch_id, posted.results[at:end])
                    waiting.answer.set_result(answer)
                at = end
            for result in posted.results:
                self._metrics.events.labels(result.outcome).inc()
            self._metrics.commit_seconds.observe(time.monotonic() - began)
            self._metrics.batch_events.observe(count)
            self._metrics.batch_requests.observe(len(batch))
        finally:
            self._commit_began = None
            self._count(-count, -sum(waiting.size for waiting in batch))

    def _fail_all(self, error: Exception) -> None:
        while self._queue:
            waiting = self._queue.popleft()
            self._count(-len(waiting.reading.items), -waiting.size)
            _fail([waiting], error)

    def _count(self, events: int, size: int) -> None:
        self._events += events
        self._bytes += size
        self._metrics.queue_events.set(self._events)
        self._metrics.queue_bytes.set(self._bytes)


def _fail(batch: list[Waiting], error: Exception) -> None:
    for waiting in batch:
        if not waiting.answer.done():
            waiting.answer.set_exception(error)


def _joined(readings: list[Reading]) -> Reading:
    """Return readings that were made with the same books as one, in their order."""
    first, *others = readings
    if not others:
        return first
    messages = list(first.messages)
    items, places, prepared = list(first.items), list(first.places), list(first.prepared)
    missing = Missing(dict(first.missing.rate_sets), dict(first.missing.subjects), list(first.missing.places))
    for reading in others:
        assert reading.books is first.books, "each was read with other books"
        places += [(len(messages) + number, place) for number, place in reading.places]
        messages += reading.messages
        missing.places += [len(items) + place for place in reading.missing.places]
        items += reading.items
        prepared += reading.prepared
        missing.rate_sets.update(reading.missing.rate_sets)
        missing.subjects.update(reading.missing.subjects)
    return Reading(messages, items, places, prepared, missing, first.books, None, None)
