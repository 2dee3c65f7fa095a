"""Group commit of reservations: what concurrent requests ask goes to the database as one array, walked in order.

There is no timer: whoever waits when a statement ends goes with the next one. Several flushers share out the tenants, so that
asks of one tenant meet in one statement and not in a queue for its windows' locks.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal
from zlib import crc32

import psycopg

from api.away import Away
from api.config import Config
from api.errors import BudgetBusy, Closing, DatabaseAway, DeadlinePassed, InvalidRequest, QueueFull, where
from api.metrics import Metrics
from ledger.books import Books, load_books
from ledger.database import Connection, connect
from ledger.errors import StaleBooks
from quotas import reservations
from quotas.asks import Ask, Change, Decided, Key, Settlement
from quotas.known import Known

log = logging.getLogger("tallystick.api")

Kind = Literal["settle", "void", "extend", "reserve"]
# What gives room back goes first.
_ORDER: Final[tuple[Kind, ...]] = ("settle", "void", "extend", "reserve")

_SHORTEST_PAUSE_SECONDS: Final = 0.02
_LONGEST_PAUSE_SECONDS: Final = 1.0
_SWEEP_SECONDS: Final = 0.05
_LINES: Final = 2
_CROWD: Final = 64
"""Asks that go in one statement whatever waits: below so many a commit of its own costs more than it saves."""
_FAILED: Final = "decisions have ended after a fault; only a restart begins them again"


@dataclass(frozen=True, slots=True)
class Extension:
    """A call that goes on."""

    tenant_id: str
    reservation_id: str
    ttl_seconds: int


Item = Ask | Settlement | Extension | Key


@dataclass(slots=True)
class _Waiting:
    """Part of a request, of the tenants of one flusher."""

    kind: Kind
    items: Sequence[Any]
    answer: "asyncio.Future[list[Any]]"
    until: float
    is_given_up: bool = False


class Shelf:
    """The books that asks are priced with: one reading for all flushers, made anew when the database says that it is old."""

    def __init__(self) -> None:
        self.books: Books | None = None
        self.known = Known()
        self._renewing = asyncio.Lock()

    async def get(self, connection: Connection) -> Books:
        return self.books or await self.renew(connection, None)

    async def renew(self, connection: Connection, old: Books | None) -> Books:
        """Read the books unless somebody has since `old`."""
        async with self._renewing:
            if self.books is None or self.books is old:
                self.books = await load_books(connection)
            return self.books


class Line:
    """A connection that is opened when it is needed, and anew when it broke."""

    def __init__(self) -> None:
        self.connection: Connection | None = None

    async def close(self) -> None:
        if self.connection is not None:
            await self.connection.close()
            self.connection = None


class Flusher:
    """The requests of some tenants, and two connections that decide them in turn.

    What one statement answers is told, and what is asked next is priced, while the other one is under way: with one alone either
    this process or the database would always wait for the other.
    """

    def __init__(self, config: Config, metrics: Metrics, shelf: Shelf, away: Away, lost: Callable[[], bool]) -> None:
        self._config = config
        self._metrics = metrics
        self._shelf = shelf
        self._away = away
        self._lost = lost
        self._queue: deque[_Waiting] = deque()
        self._has_work = asyncio.Event()
        self._lines = [Line() for _ in range(_LINES)]
        self._under_way = 0
        self._is_closing = False

    def put(self, waiting: _Waiting) -> None:
        self._queue.append(waiting)
        self._has_work.set()

    async def run(self) -> None:
        """Decide what is queued until told to end, and what is queued then."""
        async with asyncio.TaskGroup() as group:
            for line in self._lines:
                group.create_task(self._run(line))

    async def _run(self, line: Line) -> None:
        await self._open_early(line)
        while True:
            await self._has_work.wait()
            while batch := self._take():
                count = sum(len(waiting.items) for waiting in batch)
                self._under_way += count
                try:
                    for kind in _ORDER:
                        group = [waiting for waiting in batch if waiting.kind == kind]
                        if group:
                            await self._flush(line, kind, group)
                finally:
                    self._under_way -= count
            if self._is_closing:
                return
            self._has_work.clear()

    async def _open_early(self, line: Line) -> None:
        """Connect and read the books before the first ask; where that fails, the first ask tries again."""
        try:
            await self._shelf.get(await self._connected(line))
        except (psycopg.Error, OSError, LookupError) as error:
            log.warning("the database of decisions cannot be opened yet: %s", where(error))

    def end(self) -> None:
        self._is_closing = True
        self._has_work.set()

    async def close(self) -> None:
        for line in self._lines:
            await line.close()

    def fail_all(self, error: Exception) -> None:
        while self._queue:
            _fail([self._queue.popleft()], error)

    def _take(self) -> list[_Waiting]:
        """Take what is queued, up to a statement's size, and at least one; who has given up is left out.

        Of a crowd no more than its half, so that the other line has the other half.
        """
        taken: list[_Waiting] = []
        count = 0
        waiting_now = sum(len(waiting.items) for waiting in self._queue)
        most = min(self._config.reservation_batch_max, max(_CROWD, (waiting_now + self._under_way + 1) // _LINES))
        while self._queue:
            waiting = self._queue[0]
            if not waiting.is_given_up:
                if taken and count + len(waiting.items) > most:
                    break
                taken.append(waiting)
                count += len(waiting.items)
            self._queue.popleft()
        return taken

    async def _flush(self, line: Line, kind: Kind, group: list[_Waiting]) -> None:
        items = [item for waiting in group for item in waiting.items]
        began = time.monotonic()
        try:
            answers = await self._until_known(line, kind, items, group)
        except psycopg.errors.LockNotAvailable:
            await self._flush_by_tenant(line, kind, group)
            return
        except DatabaseAway as error:
            if kind == "reserve":
                await self._decide_away(group)
            else:
                _fail(group, error)
            return
        except Exception as error:
            if len(group) > 1:
                # What one of them says is at fault, and no other may pay for it.
                for waiting in group:
                    await self._flush(line, kind, [waiting])
                return
            log.error("%d asks were not decided: %s", len(items), where(error))
            _fail(group, InvalidRequest("body", "holds a value that cannot be stored") if _is_value(error) else error)
            return
        self._metrics.decision_seconds.observe(time.monotonic() - began)
        self._metrics.decision_asks.observe(len(items))
        at = 0
        for waiting in group:
            end = at + len(waiting.items)
            if not waiting.answer.done():
                waiting.answer.set_result(answers[at:end])
            at = end

    async def _decide_away(self, group: list[_Waiting]) -> None:
        for waiting in group:
            try:
                answers = await self._away.decide(waiting.items, self._shelf.books)
            except DatabaseAway as refusal:
                _fail([waiting], refusal)
            else:
                if not waiting.answer.done():
                    waiting.answer.set_result(list(answers))

    async def _flush_by_tenant(self, line: Line, kind: Kind, group: list[_Waiting]) -> None:
        """Somebody holds a window for too long: find out whose, and let the other tenants pass."""
        tenants = {_tenant_of(item) for waiting in group for item in waiting.items}
        busy = BudgetBusy(f"its windows were held for more than {self._config.reservation_lock_seconds:g} s")
        if len(tenants) == 1:
            _fail(group, busy)
            return
        found: dict[int, Any] = {}
        for tenant_id in sorted(tenants):
            places = [
                (waiting, place)
                for waiting in group
                if not waiting.answer.done()
                for place, item in enumerate(waiting.items)
                if _tenant_of(item) == tenant_id
            ]
            try:
                answers = await self._until_known(
                    line, kind, [waiting.items[place] for waiting, place in places], group
                )
            except psycopg.errors.LockNotAvailable:
                # A request over several tenants is answered whole: what the others were admitted is found under its id.
                _fail([waiting for waiting, _ in places], busy)
            except Exception as error:
                log.error("asks of a tenant were not decided: %s", where(error))
                _fail([waiting for waiting, _ in places], error)
            else:
                for (waiting, place), answer in zip(places, answers, strict=True):
                    found[id(waiting), place] = answer  # type: ignore[index]
        for waiting in group:
            if not waiting.answer.done():
                waiting.answer.set_result([found[id(waiting), place] for place in range(len(waiting.items))])  # type: ignore[index]

    async def _until_known(self, line: Line, kind: Kind, items: Sequence[Any], group: list[_Waiting]) -> list[Any]:
        """Run a statement until its outcome is known, or nobody waits for it any more.

        A connection that broke while committing leaves the outcome open. The same statement is its own look-up: an id that
        was admitted is answered with where it stands, one that the old session is still writing is waited for at its key, and
        one that was not is decided now. Likewise what has ended has ended.
        """
        pause = _SHORTEST_PAUSE_SECONDS
        books: Books | None = None
        failures = 0
        while True:
            try:
                connection = await self._connected(line)
                if books is None:
                    books = await self._shelf.get(connection)
                return await _ACTS[kind](connection, items, books, self._shelf.known)
            except StaleBooks:
                books = await self._shelf.renew(await self._connected(line), books)
            except psycopg.errors.LockNotAvailable:
                raise
            except (psycopg.OperationalError, psycopg.InterfaceError, OSError) as error:
                await line.close()
                failures += 1
                # One failure is a connection that broke; two in a row are a database that is away.
                if kind == "reserve" and failures > 1 and self._lost():
                    raise DatabaseAway("the database did not answer") from error
                if time.monotonic() + pause > max(waiting.until for waiting in group):
                    raise DatabaseAway("the database did not answer") from error
                log.warning("the database of decisions is away (%s); again", where(error))
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    async def _connected(self, line: Line) -> Connection:
        if line.connection is None or line.connection.closed:
            # A server that is there and does not answer must not keep anybody beyond the deadline.
            seconds = max(2, round(self._config.reservation_deadline_seconds))
            connection = await connect(self._config.writer_url, connect_timeout=seconds)
            await connection.execute(
                "select set_config('lock_timeout', %s, false), set_config('plan_cache_mode', 'force_generic_plan', false)",
                [f"{round(self._config.reservation_lock_seconds * 1000)}ms"],
            )
            line.connection = connection
        return line.connection


async def _reserve(connection: Connection, items: Sequence[Any], books: Books, known: Known) -> list[Any]:
    return list(await reservations.decide(connection, items, books, known=known))


async def _settle(connection: Connection, items: Sequence[Any], _: Books, __: Known) -> list[Any]:
    return list(await reservations.settle(connection, items))


async def _void(connection: Connection, items: Sequence[Any], _: Books, __: Known) -> list[Any]:
    return list(await reservations.void(connection, items))


async def _extend(connection: Connection, items: Sequence[Any], _: Books, __: Known) -> list[Any]:
    keys = [(item.tenant_id, item.reservation_id) for item in items]
    return list(await reservations.extend(connection, keys, [item.ttl_seconds for item in items]))


_ACTS: Final[dict[Kind, Callable[[Connection, Sequence[Any], Books, Known], Awaitable[list[Any]]]]] = {
    "settle": _settle,
    "void": _void,
    "extend": _extend,
    "reserve": _reserve,
}


def _is_value(error: Exception) -> bool:
    return isinstance(error, psycopg.DataError)


def _tenant_of(item: Any) -> str:
    return str(item[0] if isinstance(item, tuple) else item.tenant_id)


def _fail(group: Sequence[_Waiting], error: Exception) -> None:
    for waiting in group:
        if not waiting.answer.done():
            waiting.answer.set_exception(error)


class Reserving:
    """All flushers of a replica, and the bound of what may wait for them."""

    def __init__(self, config: Config, metrics: Metrics, away: Away) -> None:
        self._config = config
        self._metrics = metrics
        self._away = away
        self._shelf = Shelf()
        self._flushers = [
            Flusher(config, metrics, self._shelf, away, self._lose) for _ in range(config.reservation_flushers)
        ]
        self.is_away = False
        """Whether calls are decided without the database, until it is back and knows of them."""
        self._returning: asyncio.Task[None] | None = None
        self._watched: deque[_Waiting] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._waiting = 0
        self._is_closing = False
        self._is_failed = False

    def start(self) -> None:
        """Begin. Errors: OSError where the journal cannot be opened or is another process's."""
        self._away.open()
        self._away.start()
        if self._away.has_unbooked:
            self._leave()
        for flusher in self._flushers:
            task = asyncio.create_task(flusher.run())
            task.add_done_callback(self._ended)
            self._tasks.append(task)

    async def close(self) -> None:
        """Take nothing more, and decide what is queued."""
        self._is_closing = True
        for flusher in self._flushers:
            flusher.end()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for flusher in self._flushers:
            await flusher.close()
        if self._returning is not None:
            self._returning.cancel()
            await asyncio.gather(self._returning, return_exceptions=True)
        await self._away.close()

    def _lose(self) -> bool:
        """Take note that the database is away; say whether anything can be decided without it."""
        if not self._away.may_admit:
            return False
        self._leave()
        return True

    def _leave(self) -> None:
        if not self.is_away:
            log.error("the database is away: calls are decided without it, where their budgets allow that")
            self.is_away = True
            self._metrics.is_away.set(1)
            self._returning = asyncio.create_task(self._return())
            self._returning.add_done_callback(self._ended)

    async def _return(self) -> None:
        """Wait for the database, book what was admitted without it, and only then ask it again."""
        pause = _SHORTEST_PAUSE_SECONDS
        while self.is_away:
            try:
                async with await connect(self._config.writer_url, connect_timeout=2) as connection:
                    books = await self._shelf.get(connection)
                    while True:
                        try:
                            await self._away.book(connection, books)
                        except StaleBooks:
                            books = await self._shelf.renew(connection, books)
                            continue
                        # Between this look and the end nobody else runs.
                        if not self._away.has_unbooked:
                            self.is_away = False
                            break
            except (psycopg.Error, OSError, LookupError) as error:
                log.warning("the database is still away (%s)", where(error))
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        self._metrics.is_away.set(0)
        log.warning("the database is back, and knows what was admitted without it")

    def _ended(self, task: "asyncio.Task[None]") -> None:
        # A fault of ours outside a statement: without this everybody would wait for their deadline, and nobody would know.
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("decisions have ended: %s", where(error))
            self._is_failed = True
            for flusher in self._flushers:
                flusher.fail_all(Closing(_FAILED))

    def complaint(self) -> str | None:
        """Return why nothing is decided now, or None."""
        if self._is_closing:
            return "closing"
        if self._is_failed:
            return _FAILED
        if self._waiting >= self._config.reservation_queue_max:
            return "the queue is full"
        return None

    async def reserve(self, asks: Sequence[Ask]) -> list[Decided]:
        """Decide asks, those of one tenant in their order, and answer after the commit."""
        return await self._submit("reserve", asks)

    async def settle(self, settlements: Sequence[Settlement]) -> list[Change]:
        return await self._submit("settle", settlements)

    async def void(self, keys: Sequence[Key]) -> list[Change]:
        return await self._submit("void", keys)

    async def extend(self, extensions: Sequence[Extension]) -> list[Change]:
        return await self._submit("extend", extensions)

    async def _submit(self, kind: Kind, items: Sequence[Any]) -> list[Any]:
        if self._is_closing:
            raise Closing("this replica is closing")
        if self._is_failed:
            raise Closing(_FAILED)
        if self.is_away and kind == "reserve":
            return list(await self._away.decide(items, self._shelf.books))
        count = len(items)
        if self._waiting + count > self._config.reservation_queue_max:
            raise QueueFull(f"{self._waiting} asks are waiting")
        seconds = self._config.reservation_deadline_seconds
        until = time.monotonic() + seconds
        parts = self._parts(kind, items, until)
        self._waiting += count
        self._watch(parts)
        try:
            if len(parts) == 1:
                return await parts[0][0].answer
            answers = await asyncio.gather(*(waiting.answer for waiting, _ in parts), return_exceptions=True)
        finally:
            for waiting, _ in parts:
                waiting.is_given_up = True
            self._waiting -= count
        found: list[Any] = [None] * count
        for (_, places), answer in zip(parts, answers, strict=True):
            if isinstance(answer, BaseException):
                raise answer
            for place, one in zip(places, answer, strict=True):
                found[place] = one
        return found

    def _watch(self, parts: Sequence[tuple[_Waiting, Sequence[int]]]) -> None:
        """See to it that nobody waits beyond the deadline: by one timer for all, since all have the same."""
        self._watched.extend(waiting for waiting, _ in parts)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_SWEEP_SECONDS, self._sweep)

    def _sweep(self) -> None:
        now = time.monotonic()
        watched = self._watched
        while watched and (watched[0].answer.done() or watched[0].until <= now):
            waiting = watched.popleft()
            if not waiting.answer.done():
                seconds = self._config.reservation_deadline_seconds
                waiting.answer.set_exception(DeadlinePassed(f"not decided within {seconds:g} s"))
        self._metrics.queue_asks.set(self._waiting)
        self._timer = asyncio.get_running_loop().call_later(_SWEEP_SECONDS, self._sweep) if watched else None

    def _parts(self, kind: Kind, items: Sequence[Any], until: float) -> list[tuple[_Waiting, Sequence[int]]]:
        """Queue items with the flushers of their tenants."""
        loop = asyncio.get_running_loop()
        tenants = [_tenant_of(item) for item in items]
        of = {tenant_id: crc32(tenant_id.encode()) % len(self._flushers) for tenant_id in set(tenants)}
        if len(set(of.values())) == 1:
            waiting = _Waiting(kind, items, loop.create_future(), until)
            self._flushers[of[tenants[0]]].put(waiting)
            return [(waiting, range(len(items)))]
        places: dict[int, list[int]] = {}
        for place, tenant_id in enumerate(tenants):
            places.setdefault(of[tenant_id], []).append(place)
        parts: list[tuple[_Waiting, Sequence[int]]] = []
        for number, at in places.items():
            waiting = _Waiting(kind, [items[place] for place in at], loop.create_future(), until)
            self._flushers[number].put(waiting)
            parts.append((waiting, at))
        return parts
