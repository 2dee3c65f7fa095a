"""Pools of connections, which come back by themselves when the database does: to read, and to administer."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import psycopg
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from api.errors import DatabaseAway, NoAdministration, TooMuchToRead
from ledger.database import Connection

Found = TypeVar("Found")

_WAIT_SECONDS = 2.0
# The few statements here are prepared and short: planning one anew costs more than running it.
_OPTIONS = (
    "-c timezone=UTC -c datestyle=ISO -c default_transaction_read_only=on"
    " -c plan_cache_mode=force_generic_plan -c jit=off"
)

# The same session as `ledger.database.connect` makes; an act that waits longer for a lock is refused rather than queueing
# everybody behind it.
_ACT_OPTIONS = (
    "-c timezone=UTC -c datestyle=ISO -c intervalstyle=iso_8601 -c jit=off -c lock_timeout=10s"
    " -c idle_in_transaction_session_timeout=60s"
)


class Reader:
    """Runs reads on connections of the pool; with a limit in seconds, the server ends one that takes longer."""

    def __init__(self, url: str, connections: int, seconds: float | None = None) -> None:
        limit = "" if seconds is None else f" -c statement_timeout={round(seconds * 1000)}"
        self._pool: AsyncConnectionPool[Connection] = AsyncConnectionPool(
            url,
            min_size=1,
            max_size=connections,
            open=False,
            timeout=_WAIT_SECONDS,
            kwargs={"autocommit": True, "options": _OPTIONS + limit},
        )

    async def open(self) -> None:
        await self._pool.open(wait=False)

    async def close(self) -> None:
        await self._pool.close()

    async def run(self, read: Callable[[Connection], Awaitable[Found]]) -> Found:
        """Run a read; once more on a fresh connection where the pool's was broken.

        Errors: `DatabaseAway`, `TooMuchToRead`.
        """
        for is_last in (False, True):
            try:
                async with self._pool.connection() as connection:
                    return await read(connection)
            except PoolTimeout:
                raise DatabaseAway("the database did not answer") from None
            except psycopg.errors.QueryCanceled:
                raise TooMuchToRead("the database was stopped after its seconds; ask for less") from None
            except psycopg.OperationalError:
                if is_last:
                    raise DatabaseAway("the database did not answer") from None
                # A server that went away has broken all idle connections at once.
                await self._pool.check()
        raise AssertionError("unreachable: the last try returns or raises")


class Operator:
    """Runs what operators do, each act in a transaction of its own."""

    def __init__(self, url: str | None, connections: int) -> None:
        self._pool: AsyncConnectionPool[Connection] | None = None
        if url is not None:
            self._pool = AsyncConnectionPool(
                url,
                min_size=0,
                max_size=connections,
                open=False,
                timeout=_WAIT_SECONDS,
                check=AsyncConnectionPool.check_connection,
                kwargs={"autocommit": True, "options": _ACT_OPTIONS},
            )

    async def open(self) -> None:
        if self._pool is not None:
            await self._pool.open(wait=False)

    async def close(self) -> None:
        if self._pool is not None:
            await self._pool.close()

    async def run(self, act: Callable[[Connection], Awaitable[Found]]) -> Found:
        """Run an act in a transaction and return what it returns, after the commit. It is never run twice.

        Errors: `NoAdministration`, `DatabaseAway`, and whatever the act raises; then nothing was changed, but for a commit
        whose answer was lost: an act that may be sent again takes a key of its own.
        """
        if self._pool is None:
            raise NoAdministration("this replica was started without TALLYSTICK_OPERATOR_URL")
        try:
            async with self._pool.connection() as connection, connection.transaction():
                return await act(connection)
        except PoolTimeout:
            raise DatabaseAway("the database did not answer") from None
