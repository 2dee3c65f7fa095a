"""Reads that come together go as one statement: what is asked while one is under way goes with the next."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeVar

Key = TypeVar("Key")
Found = TypeVar("Found")


class Gather(Generic[Key, Found]):
    """One reader for many callers. Each gets what was read after it asked, never anything older."""

    def __init__(
        self,
        read: Callable[[Sequence[Key]], Awaitable[dict[Key, Found]]],
        at_once_max: int = 256,
        flights_max: int = 1,
    ) -> None:
        self._read = read
        self._at_once_max = at_once_max
        self._flights_max = flights_max
        self._waiting: dict[Key, list[asyncio.Future[Found | None]]] = {}
        self._flying = 0
        self._flights: set[asyncio.Task[None]] = set()

    async def get(self, key: Key) -> Found | None:
        """Return what there is under a key, or None."""
        answer: asyncio.Future[Found | None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, []).append(answer)
        if self._flying < self._flights_max:
            self._flying += 1
            flight = asyncio.create_task(self._fly())
            self._flights.add(flight)
            flight.add_done_callback(self._flights.discard)
        return await answer

    async def _fly(self) -> None:
        try:
            await self._read_all()
        finally:
            # Counted here and not when the task is seen to be done: whoever asks in between would wait for ever.
            self._flying -= 1

    async def _read_all(self) -> None:
        while self._waiting:
            keys = list(self._waiting)[: self._at_once_max]
            asked = {key: self._waiting.pop(key) for key in keys}
            try:
                found = await self._read(keys)
            except Exception as error:
                for answers in asked.values():
                    for answer in answers:
                        if not answer.done():
                            answer.set_exception(error)
                continue
            for key, answers in asked.items():
                value = found.get(key)
                for answer in answers:
                    if not answer.done():
                        answer.set_result(value)


class Kept(Gather[Key, Found]):
    """The same of what never changes: each is read once."""

    _KEPT_MAX: Final = 10_000

    def __init__(self, read: Callable[[Sequence[Key]], Awaitable[dict[Key, Found]]]) -> None:
        super().__init__(read)
        self._kept: dict[Key, Found] = {}

    async def get(self, key: Key) -> Found | None:
        """Return what there is under a key, or None."""
        found = self._kept.get(key)
        if found is None:
            found = await super().get(key)
            if found is not None:
                if len(self._kept) >= self._KEPT_MAX:
                    self._kept.clear()
                self._kept[key] = found
        return found
