"""One row of a prepared statement, as texts: for the few statements that are run thousands of times a second.

The driver adapts each parameter, looks the statement up, and watches the socket anew for each step; that took this process as
long as all else about 32 asks. Here parameters are texts already, and the watch stays.
"""

import asyncio
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import count
from typing import Any, Final
from weakref import WeakKeyDictionary, finalize

import psycopg
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn, PGresult

from ledger.database import Connection


class _Line:
    """The server's answers on a connection, and the statements that it has prepared for us.

    Watched is a descriptor of our own: the driver watches the socket's, and takes that watch away each time.
    """

    def __init__(self, pgconn: PGconn) -> None:
        self.pgconn = pgconn
        self.names: dict[str, bytes] = {}
        self._loop = asyncio.get_running_loop()
        self._descriptor = os.dup(pgconn.socket)
        self._is_watched = False
        self._answered: asyncio.Future[PGresult] | None = None
        self._last: PGresult | None = None

    def close(self) -> None:
        with suppress(RuntimeError):
            self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)

    async def exchange(self, send: Callable[[], Any]) -> PGresult:
        """Send a request and return the last result that answers it."""
        self._answered, self._last = self._loop.create_future(), None
        if not self._is_watched:
            self._loop.add_reader(self._descriptor, self._read)
            self._is_watched = True
        try:
            send()
            while self.pgconn.flush() == 1 and not self._answered.done():
                await self._until_writable()
            return await self._answered
        finally:
            self._answered = None

    async def _until_writable(self) -> None:
        writable = asyncio.Event()
        self._loop.add_writer(self._descriptor, writable.set)
        try:
            await writable.wait()
        finally:
            self._loop.remove_writer(self._descriptor)

    def _read(self) -> None:
        answered = self._answered
        if answered is None or answered.done():
            # What the driver waits for, or the end of the session: not ours to read.
            self._loop.remove_reader(self._descriptor)
            self._is_watched = False
            return
        try:
            self.pgconn.consume_input()
            while not self.pgconn.is_busy():
                result = self.pgconn.get_result()
                if result is not None:
                    self._last = result
                    continue
                if self._last is None:
                    raise psycopg.OperationalError("the server answered nothing")
                answered.set_result(self._last)
                return
        except psycopg.Error as error:
            answered.set_exception(error)


_lines: "WeakKeyDictionary[Connection, _Line]" = WeakKeyDictionary()
_numbers: Final = count()


def _line_of(connection: Connection) -> _Line:
    line = _lines.get(connection)
    if line is None:
        line = _lines[connection] = _Line(connection.pgconn)
        finalize(connection, line.close)
    return line


async def row(connection: Connection, statement: str, parameters: Sequence[object]) -> list[str | None]:
    """Run a statement that answers one row, and return it as texts. Outside of a transaction it commits by itself.

    Parameters go as `str` has them: the statement says of which types they are.
    Errors: psycopg errors, as `execute` has them. One that is cancelled closes the connection, since its answer is still to come.
    """
    texts = [None if value is None else str(value).encode() for value in parameters]
    async with connection.lock:
        line = _line_of(connection)
        pgconn, names, exchange = line.pgconn, line.names, line.exchange
        try:
            if statement in names:
                try:
                    return _row_of(await exchange(lambda: pgconn.send_query_prepared(names[statement], texts)))
                except psycopg.errors.InvalidSqlStatementName:
                    # The driver forgets all statements of a session after some commands, ours too.
                    del names[statement]
            name = f"tallystick_{next(_numbers)}".encode()
            _checked(await exchange(lambda: pgconn.send_prepare(name, _numbered(statement))))
            names[statement] = name
            return _row_of(await exchange(lambda: pgconn.send_query_prepared(name, texts)))
        except asyncio.CancelledError:
            pgconn.finish()
            raise


@lru_cache
def _numbered(statement: str) -> bytes:
    numbers = count(1)
    return re.sub("%s", lambda _: f"${next(numbers)}", statement).encode()


def _checked(result: PGresult) -> PGresult:
    if result.status not in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
        raise psycopg.errors.error_from_result(result)
    return result


def _row_of(result: PGresult) -> list[str | None]:
    _checked(result)
    values = [result.get_value(0, column) for column in range(result.nfields)]
    return [None if value is None else value.decode() for value in values]
