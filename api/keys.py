"""Who is asking, and for what: the key behind an Authorization header, remembered for a few seconds."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

import psycopg

from api.database import Reader
from api.errors import DatabaseAway, ScopeMissing, Unauthenticated, where
from ledger.api_keys import ApiKey, Scope, is_secret_of, note_use, split_token
from ledger.database import connect

log = logging.getLogger("tallystick.api")

_REMEMBERED_MAX: Final = 10_000
_LONGEST_PAUSE_SECONDS: Final = 5.0
_USES_SECONDS: Final = 60.0
_KEEPALIVE: Final = {"keepalives_idle": 15, "keepalives_interval": 5, "keepalives_count": 3}


class KeyRing:
    """Keys that were looked up lately; all are forgotten when one is revoked, and each after its few seconds."""

    def __init__(
        self, find: Callable[[str], Awaitable[ApiKey | None]], seconds: float, away_seconds: float = 0.0
    ) -> None:
        self._find = find
        self._seconds = seconds
        self._away_seconds = away_seconds
        # Until when it is believed, until when it is while nobody can be asked, and the key.
        self._known: dict[str, tuple[float, float, ApiKey | None]] = {}
        self._changes = 0
        self._used: set[str] = set()

    async def identify(self, authorization: str | None, scope: Scope, *, is_away: bool | None = None) -> ApiKey:
        """Return the key in force that the header presents, if it has the scope.

        `is_away` stands where a key that was good lately will do while the database cannot be asked: True if it is known that
        it cannot, False to find out.
        Errors: `Unauthenticated`, with the same words whatever is wrong with the key, and `ScopeMissing`.
        """
        if authorization is None:
            raise Unauthenticated("send Authorization: Bearer and the key")
        scheme, _, token = authorization.partition(" ")
        parts = split_token(token.strip()) if scheme.lower() == "bearer" else None
        if parts is None:
            raise Unauthenticated("the Authorization header holds no key")
        key_id, secret = parts
        now = time.monotonic()
        known = self._known.get(key_id)
        if known is not None and (known[1] if is_away else known[0]) > now:
            key = known[2]
        else:
            try:
                key = await self._look_up(key_id, now)
            except DatabaseAway:
                if is_away is None or known is None or known[1] <= now:
                    raise
                key = known[2]
        if key is None or not is_secret_of(secret, key):
            raise Unauthenticated("the key is not in force")
        self._used.add(key_id)
        if scope not in key.scopes:
            raise ScopeMissing(f"this needs a key with the scope {scope}", scope=scope)
        return key

    async def _look_up(self, key_id: str, now: float) -> ApiKey | None:
        changes = self._changes
        key = await self._find(key_id)
        if changes != self._changes:
            # Something was revoked meanwhile, and nobody knows whether this was read before or after.
            return key
        if len(self._known) >= _REMEMBERED_MAX:
            self._drop_old(now)
        # Counted from before the look-up, so that a revocation is never noticed later than promised.
        seconds, away_seconds = self._seconds, self._away_seconds if key is not None else 0.0
        if key is not None and key.seconds_left is not None:
            left = float(key.seconds_left)
            seconds, away_seconds = min(seconds, left), min(away_seconds, left)
        self._known[key_id] = (now + seconds, now + max(seconds, away_seconds), key)
        return key

    def forget(self) -> None:
        """Look every key up again."""
        self._changes += 1
        self._known.clear()

    def take_used(self) -> list[str]:
        """Return the ids of the keys that were used since the last call."""
        used, self._used = self._used, set()
        return sorted(used)

    def give_back(self, used: list[str]) -> None:
        """Take back ids that could not be written down."""
        self._used.update(used)

    def _drop_old(self, now: float) -> None:
        self._known = {key_id: known for key_id, known in self._known.items() if known[1] > now}
        if len(self._known) >= _REMEMBERED_MAX:
            self._known.clear()


class KeyWatch:
    """Keeps a ring true: hears of revocations as they are committed, and writes down now and then which keys were used.

    Where the word does not come through (a pooler between us, a dead line), the ring's own seconds are the bound.
    """

    def __init__(self, ring: KeyRing, reader: Reader, url: str) -> None:
        self._ring = ring
        self._reader = reader
        self._url = url
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._note_now_and_then())]

    async def close(self) -> None:
        """Stop, and write down what was used last."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.note()

    async def _listen(self) -> None:
        pause = 0.1
        while True:
            try:
                async with await connect(self._url, **_KEEPALIVE) as connection:
                    await connection.execute("listen tallystick_keys")
                    # Whatever was told before this, nobody heard.
                    self._ring.forget()
                    pause = 0.1
                    async for _ in connection.notifies():
                        self._ring.forget()
            except (psycopg.Error, OSError) as error:
                log.warning("revocations of keys are not heard at once (%s); trying again", where(error))
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    async def _note_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(_USES_SECONDS)
            await self.note()

    async def note(self) -> None:
        """Write down which keys were used; what cannot be written now is kept for the next time."""
        used = self._ring.take_used()
        if not used:
            return
        try:
            await self._reader.run(lambda connection: note_use(connection, used))
        except (DatabaseAway, psycopg.Error) as error:
            log.warning("which keys were used is not written down yet: %s", where(error))
            self._ring.give_back(used)
