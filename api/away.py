"""The one place that says what is answered while the database cannot be asked, and the journal of what was admitted then.

A line is on the disk before its call goes ahead. When the database is back, the lines are booked, in their order and with the time
at which they were decided, before anything else is decided here; then the journal keeps only what was taken of each window's
allowance, so that two outages in a window share one.
"""

import asyncio
import fcntl
import logging
import os
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from itertools import takewhile
from pathlib import Path
from typing import Final

import msgspec
import psycopg

from api.database import Reader
from api.errors import DatabaseAway, where
from api.metrics import Metrics
from ledger.books import Books
from ledger.database import Connection
from ledger.times import from_micros
from quotas import reservations
from quotas.asks import Ask, Decision, Key
from quotas.away import AwayBudgets, Taking, Window, load_away, takings_of

log = logging.getLogger("tallystick.api")

_REFRESH_SECONDS: Final = 5.0
_BOOKED_AT_ONCE: Final = 500
_MINUTE: Final = 60_000_000


class AwayDecision(Decision, frozen=True, gc=False):
    """An admission that the database does not know of yet."""


class Admitted(msgspec.Struct, frozen=True, tag="admitted"):
    """A line of the journal: a call that went ahead, and is not booked."""

    at: int
    ask: Ask
    takings: list[Taking]


class Taken(msgspec.Struct, frozen=True, tag="taken"):
    """A line of the journal: what was taken of a window's allowance by calls that are booked."""

    taking: Taking


_Line = Admitted | Taken
_decode: Final = msgspec.json.Decoder(_Line).decode
_encode: Final = msgspec.json.Encoder().encode


class Away:
    """Allowances of one replica, and its journal; without a journal nothing is ever admitted here."""

    def __init__(self, journal: Path | None, reader: Reader, metrics: Metrics) -> None:
        self._path = journal
        self._reader = reader
        self._metrics = metrics
        self._budgets = AwayBudgets(0, ())
        self._taken: dict[Window, Decimal] = {}
        self._unbooked: list[Admitted] = []
        self._admitted: dict[Key, tuple[str, AwayDecision]] = {}
        self._file: int | None = None
        self._writing = asyncio.Lock()
        self._pending: list[bytes] = []
        self._tickets = self._written = 0
        self._refreshing: asyncio.Task[None] | None = None

    # --- Life --------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Read the journal of an earlier run, and hold it alone.

        Errors: OSError where it cannot be opened, or another process holds it; ValueError where it is no journal.
        """
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        content = self._path.read_bytes()
        whole = content.rfind(b"\n") + 1
        # A line without an end was being written when the process died, and its call did not go ahead.
        os.ftruncate(self._file, whole)
        for line in content[:whole].splitlines():
            self._remember(_decode(line))
        if self._unbooked:
            log.warning("%d calls that were admitted during an outage are to be booked", len(self._unbooked))

    def _remember(self, line: _Line) -> None:
        for taking in line.takings if isinstance(line, Admitted) else (line.taking,):
            self._taken[taking.window] = self._taken.get(taking.window, Decimal(0)) + taking.amount
        if isinstance(line, Admitted):
            self._unbooked.append(line)
            key = (line.ask.tenant_id, line.ask.reservation_id)
            self._admitted[key] = line.ask.content_hash, _decision(line)
        self._metrics.away_unbooked.set(len(self._unbooked))

    def start(self) -> None:
        if self._path is not None:
            self._refreshing = asyncio.create_task(self._refresh())

    async def close(self) -> None:
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)
        if self._file is not None:
            os.close(self._file)
            self._file = None

    async def _refresh(self) -> None:
        """Keep the budgets at hand: what an outage finds is at most a few seconds old."""
        while True:
            try:
                await self.refresh()
            except (DatabaseAway, psycopg.Error) as error:
                log.info("the budgets were not read again: %s", where(error))
            await asyncio.sleep(_REFRESH_SECONDS)

    async def refresh(self) -> None:
        self._budgets = await self._reader.run(self._read)

    async def _read(self, connection: Connection) -> AwayBudgets:
        row = await (await connection.execute("select budgets from ledger.versions")).fetchone()
        return self._budgets if row is not None and row[0] == self._budgets.version else await load_away(connection)

    # --- While it is away --------------------------------------------------------------------------------------------

    @property
    def may_admit(self) -> bool:
        """Say whether any budget would let a call go ahead during an outage."""
        return self._file is not None and self._budgets.admits

    @property
    def has_unbooked(self) -> bool:
        return bool(self._unbooked)

    async def decide(self, asks: Sequence[Ask], books: Books | None) -> list[Decision]:
        """Admit asks, all of them or none, and return once that is on the disk.

        Errors: `DatabaseAway` where one of them may not be admitted.
        """
        if books is None or not self.may_admit:
            raise DatabaseAway("the database did not answer")
        now = time.time_ns() // 1000
        taken = dict(self._taken)
        lines: list[Admitted] = []
        for ask in asks:
            key = (ask.tenant_id, ask.reservation_id)
            earlier = self._admitted.get(key)
            if earlier is not None:
                if earlier[0] != ask.content_hash:
                    raise DatabaseAway("the database did not answer, and the id was used for another ask")
                continue
            takings = takings_of(self._budgets, taken, ask, books, now)
            if takings is None:
                raise DatabaseAway("the database did not answer, and no allowance lets the call go ahead without it")
            for taking in takings:
                taken[taking.window] = taken.get(taking.window, Decimal(0)) + taking.amount
            lines.append(Admitted(now, ask, takings))
        for line in lines:
            self._remember(line)
        if lines:
            await self._write([_encode(line) + b"\n" for line in lines])
            self._metrics.away_admitted.inc(len(lines))
        return [self._admitted[ask.tenant_id, ask.reservation_id][1] for ask in asks]

    async def _write(self, lines: list[bytes]) -> None:
        """Return once lines are on the disk; those that come meanwhile go with the next write."""
        self._pending += lines
        self._tickets = ticket = self._tickets + 1
        async with self._writing:
            if self._written >= ticket:
                return
            data, self._pending = b"".join(self._pending), []
            upto = self._tickets
            try:
                await asyncio.to_thread(_append, self._file, data)
            except OSError as error:
                # The allowance stays taken: what is not on the disk must not be given twice.
                log.error("the journal cannot be written: %s", where(error))
                raise DatabaseAway("the database did not answer, and the journal cannot be written") from None
            self._written = upto

    # --- When it is back ---------------------------------------------------------------------------------------------

    async def book(self, connection: Connection, books: Books) -> None:
        """Book what was admitted, in its order; what is booked once is found there when it is booked again.

        Errors: StaleBooks and `psycopg.Error`; the rest is then to be booked later.
        """
        while True:
            while self._unbooked:
                await self._book_some(connection, books)
            async with self._writing:
                if self._unbooked:
                    continue
                # As it is now: whoever is admitted meanwhile writes a line of his own once this is done.
                await asyncio.to_thread(self._compact, dict(self._taken))
                return

    async def _book_some(self, connection: Connection, books: Books) -> None:
        first = self._unbooked[0]
        # Windows turn at whole minutes in every zone: calls of one minute are in the same.
        group = list(
            takewhile(lambda line: line.at // _MINUTE == first.at // _MINUTE, self._unbooked[:_BOOKED_AT_ONCE])
        )
        asks = [line.ask for line in group]
        for decision in await reservations.reserve(connection, asks, books, at=first.at, is_booking=True):
            if not decision.is_admitted:
                # Another ask had the id, or the tenant is gone: it stands in the log and nowhere else.
                log.error("a call that was admitted during an outage could not be booked: %s", decision.reason)
                self._metrics.away_unbookable.inc()
        del self._unbooked[: len(group)]
        for ask in asks:
            self._admitted.pop((ask.tenant_id, ask.reservation_id), None)
        self._metrics.away_booked.inc(len(group))
        self._metrics.away_unbooked.set(len(self._unbooked))

    def _compact(self, taken: Mapping[Window, Decimal]) -> None:
        """Write the journal anew with what was taken of each window alone; the old one counts until the new one is whole."""
        if self._file is None or self._path is None:
            return
        fresh = self._path.with_suffix(".new")
        lines = [_encode(Taken(Taking(*window, amount))) + b"\n" for window, amount in taken.items()]
        file = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _append(file, b"".join(lines))
        fresh.replace(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        os.close(self._file)
        self._file = file


def _append(file: int | None, data: bytes) -> None:
    if file is None:
        raise OSError("the journal is closed")
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
    os.fsync(file)


def _decision(line: Admitted) -> AwayDecision:
    at = from_micros(line.at)
    return AwayDecision(
        line.ask.tenant_id,
        line.ask.reservation_id,
        "admitted",
        "held",
        expires_at=at + timedelta(seconds=line.ask.ttl_seconds),
        decided_at=at,
    )
