"""Connections, the calendar lock, and what a SQLSTATE means for a batch."""

import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Literal

import psycopg
from psycopg import waiting
from psycopg.abc import PQGen
from psycopg.copy import AsyncLibpqWriter
from psycopg.generators import fetch_many
from psycopg.pq import ExecStatus
from psycopg.rows import TupleRow
from psycopg.types.json import Jsonb

from ledger.errors import LedgerError

Connection = psycopg.AsyncConnection[TupleRow]

CALENDAR_LOCK: Final = 7_411_001
"""One advisory lock: `post` holds it shared; whoever changes periods, parties, prices or budgets holds it alone."""

Versioned = Literal["calendar", "parties", "prices", "budgets"]


async def connect(url: str, **options: Any) -> Connection:
    """Open a connection in autocommit mode whose session speaks UTC, so that times read back as they were written."""
    # Our statements are short, and some look dear to a planner without statistics: compiling them would take longer.
    return await psycopg.AsyncConnection.connect(
        url, autocommit=True, options="-c timezone=UTC -c datestyle=ISO -c intervalstyle=iso_8601 -c jit=off", **options
    )


@asynccontextmanager
async def change(connection: Connection, *what: Versioned) -> AsyncIterator[None]:
    """Run a transaction that no `post` overlaps, and raise the versions so that batches made before are made again."""
    async with connection.transaction():
        await connection.execute("select pg_advisory_xact_lock(%s)", [CALENDAR_LOCK])
        for name in what:
            # The name is one of four literals, never a person's text.
            await connection.execute(f"update ledger.versions set {name} = {name} + 1")
        yield


class _Committing(AsyncLibpqWriter):
    """Ends a COPY whose message says commit after it, and reads what both come to."""

    async def finish(self, exc: BaseException | None = None) -> None:
        if exc is not None:
            await super().finish(exc)
        else:
            await self.connection.wait(self._ended())

    def _ended(self) -> PQGen[None]:
        pgconn = self.connection.pgconn
        while pgconn.put_copy_end() == 0:
            yield waiting.Wait.W
        while pgconn.flush() == 1:
            yield waiting.Wait.W
        for result in (yield from fetch_many(pgconn)):
            if result.status == ExecStatus.FATAL_ERROR:
                raise psycopg.errors.error_from_result(result)


@asynccontextmanager
async def copy_and_commit(connection: Connection, statement: str) -> AsyncIterator[psycopg.AsyncCopy]:
    """Copy rows, and commit the transaction with the end of them: the server waits for no word of ours in between.

    What triggers lock is so held for no longer than they and the commit take, however busy this process is.
    Errors: psycopg errors, where the connection is still open with nothing committed; where it broke nobody knows.
    """
    cursor = connection.cursor()
    async with cursor.copy(f"{statement}; commit", writer=_Committing(cursor)) as copy:
        yield copy


async def record_act(
    connection: Connection,
    actor: str,
    act: str,
    detail: dict[str, Any],
    reason: str | None = None,
    second_person: str | None = None,
) -> None:
    """Write down who changed what by command, in the transaction that changes it, and who agreed where two are needed."""
    await connection.execute(
        "insert into ledger.acts (actor, act, detail, reason, second_person) values (%s, %s, %s, %s, %s)",
        [actor, act, Jsonb(detail), reason, second_person],
    )


Remedy = Literal["retry", "bisect", "stop"]

# Classes of SQLSTATE. Source: PostgreSQL 18 manual, appendix A.
_RETRY: Final = ("08", "40", "53", "57P", "57014", "55P03", "25P03", "23505", "58")
_BISECT: Final = ("22", "23", "54")


def remedy_for(error: psycopg.Error) -> Remedy:
    """Return what to do with a batch that the database refused.

    retry: the state outside is at fault (connection, deadlock, resources, a limit of time, a key that another writer took first).
    bisect: one row is at fault (a value, a constraint, a text too long for an index); it is found and set aside.
    stop: anything else; a person must look, and nothing is skipped.
    """
    state = error.sqlstate
    if state is None:
        return "retry" if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) else "stop"
    if state.startswith(_RETRY):
        return "retry"
    if state == "23514" and error.diag.constraint_name is None:
        # No check of ours: the month has no partition yet, which is no row's fault.
        return "stop"
    return "bisect" if state.startswith(_BISECT) else "stop"


def described(error: BaseException) -> str:
    """Return what a log may say of an error: its kind, code and constraint, never a value.

    The texts of Postgres quote rows, and those of Python what could not be read: anybody's data.
    """
    if isinstance(error, LedgerError):
        return str(error)
    if isinstance(error, psycopg.Error):
        if error.sqlstate is None:
            # The connection's own: no statement was answered, so nothing is quoted.
            return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        named = [error.diag.schema_name, error.diag.table_name, error.diag.constraint_name]
        about = ".".join(name for name in named if name)
        return f"{type(error).__name__} {error.sqlstate}" + (f" ({about})" if about else "")
    if isinstance(error, OSError):
        return f"{type(error).__name__}: {error.strerror or error}"
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno} in {frames[-1].name}" if frames else ""
    return f"{type(error).__name__}{place}"
