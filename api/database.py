"""The read side: a small pool as tallystick_api, which comes back by itself when the database does."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import psycopg
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from api.errors import DatabaseAway
from ledger.database import Connection

Found = TypeVar("Found")

_WAIT_SECONDS = 2.0
# The few statements here are prepared and short: planning one anew costs more than running it.
_OPTIONS = (
    "-c timezone=UTC -c datestyle=ISO -c default_transaction_read_only=on"
    " -c plan_cache_mode=force_generic_plan -c jit=off"
)


class Reader:
    """Runs reads on connections of the pool."""

    def __init__(self, url: str, connections: int) -> None:
        self._pool: AsyncConnectionPool[Connection] = AsyncConnectionPool(
            url,
            min_size=1,
            max_size=connections,
            open=False,
            timeout=_WAIT_SECONDS,
            kwargs={"autocommit": True, "options": _OPTIONS},
        )

    async def open(self) -> None:
        await self._pool.open(wait=False)

    async def close(self) -> None:
        await self._pool.close()

    async def run(self, read: Callable[[Connection], Awaitable[Found]]) -> Found:
        """Run a read; once more on a fresh connection where the pool's was broken.

        Errors: `DatabaseAway`.
        """
        for is_last in (False, True):
            try:
                async with self._pool.connection() as connection:
                    return await read(connection)
            except PoolTimeout:
                raise DatabaseAway("the database did not answer") from None
            except psycopg.OperationalError:
                if is_last:
                    raise DatabaseAway("the database did not answer") from None
                # A server that went away has broken all idle connections at once.
                await self._pool.check()
        raise AssertionError("unreachable: the last try returns or raises")
