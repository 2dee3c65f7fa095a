"""Waiting for what another task, process or the database brings about."""

import asyncio
from collections.abc import Callable


async def until(holds: Callable[[], object], seconds: float = 20) -> None:
    """Wait until a condition holds; TimeoutError where it does not in time."""
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110  what is waited for happens where no event of ours can be set
            await asyncio.sleep(0.01)
