"""Gauges of the whole database: what waits for a person, what is missing, how the canary fares."""

import asyncio
import time
from typing import Final

import psycopg

from api.database import Reader
from api.errors import DatabaseAway, TooMuchToRead
from api.metrics import Found, Metrics
from ledger.database import Connection

_SECONDS: Final = 5.0
"""So long an answer is good: however many ask, the database is asked no oftener."""
_WAIT_SECONDS: Final = 2.0


class Watch:
    """Reads the gauges when somebody asks for metrics; while the database does not answer there are none, not old ones."""

    def __init__(self, reader: Reader, metrics: Metrics) -> None:
        self._reader, self._metrics = reader, metrics
        self._looked_at = float("-inf")
        self._one = asyncio.Lock()

    async def look(self) -> None:
        """Bring the gauges up to date, unless they are."""
        async with self._one:
            if time.monotonic() - self._looked_at < _SECONDS:
                return
            found: list[Found] = []
            try:
                async with asyncio.timeout(_WAIT_SECONDS):
                    found = await self._reader.run(_watched)
            except (DatabaseAway, TooMuchToRead, TimeoutError, psycopg.Error):
                # Whoever scrapes sees that they are absent, and `readyz` says why.
                pass
            self._metrics.watch(found)
            self._looked_at = time.monotonic()


async def _watched(connection: Connection) -> list[Found]:
    cursor = await connection.execute("select * from ledger.watched() union all select * from quotas.watched()")
    return [(row[0], row[1], row[2]) for row in await cursor.fetchall()]
