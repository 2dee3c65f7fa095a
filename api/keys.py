"""Who is asking: the key behind an Authorization header, remembered for a few seconds."""

import time
from collections.abc import Awaitable, Callable
from typing import Final

from api.errors import Unauthenticated
from ledger.api_keys import ApiKey, is_secret_of, split_token

_REMEMBERED_MAX: Final = 10_000


class KeyRing:
    """Keys that were looked up lately; a revoked one is gone once its few seconds are over."""

    def __init__(self, find: Callable[[str], Awaitable[ApiKey | None]], seconds: float) -> None:
        self._find = find
        self._seconds = seconds
        self._known: dict[str, tuple[float, ApiKey | None]] = {}

    async def identify(self, authorization: str | None) -> ApiKey:
        """Return the key in force that the header presents.

        Errors: `Unauthenticated`, with the same words whatever is wrong with the key.
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
        if known is None or known[0] <= now:
            key = await self._find(key_id)
            if len(self._known) >= _REMEMBERED_MAX:
                self._forget(now)
            # Counted from before the look-up, so that a revocation is never noticed later than promised.
            self._known[key_id] = (now + self._seconds, key)
        else:
            key = known[1]
        if key is None or not is_secret_of(secret, key):
            raise Unauthenticated("the key is not in force")
        return key

    def _forget(self, now: float) -> None:
        self._known = {key_id: known for key_id, known in self._known.items() if known[0] > now}
        if len(self._known) >= _REMEMBERED_MAX:
            self._known.clear()
