"""Reads that come together share a statement, and none is forgotten."""

import asyncio
from collections.abc import Sequence

import pytest

from api.gather import Gather


async def test_what_is_asked_while_one_read_is_under_way_goes_with_the_next() -> None:
    calls: list[list[int]] = []

    async def read(keys: Sequence[int]) -> dict[int, int]:
        calls.append(list(keys))
        await asyncio.sleep(0.01)
        return {key: 10 * key for key in keys if key}

    gather = Gather(read, at_once_max=3)
    first = asyncio.create_task(gather.get(1))
    await asyncio.sleep(0.001)
    others = [asyncio.create_task(gather.get(key)) for key in (2, 3, 2, 0, 4)]
    assert [await task for task in (first, *others)] == [10, 20, 30, 20, None, 40]
    assert calls == [[1], [2, 3, 0], [4]]


async def test_whoever_asks_the_moment_a_read_ends_is_read_for() -> None:
    async def read(keys: Sequence[int]) -> dict[int, int]:
        return dict.fromkeys(keys, 1)

    gather = Gather(read)
    async with asyncio.timeout(5):
        for key in range(1_000):
            assert await gather.get(key) == 1


async def test_an_error_reaches_all_who_asked_and_the_next_read_is_tried() -> None:
    calls = 0

    async def read(keys: Sequence[int]) -> dict[int, int]:
        nonlocal calls
        calls += 1
        await asyncio.sleep(0)
        if calls == 1:
            raise OSError("away")
        return dict.fromkeys(keys, 1)

    gather = Gather(read)
    answers = await asyncio.gather(gather.get(1), gather.get(1), return_exceptions=True)
    assert [type(answer) for answer in answers] == [OSError, OSError]
    assert await gather.get(1) == 1


async def test_a_caller_who_leaves_takes_nobody_along() -> None:
    async def read(keys: Sequence[int]) -> dict[int, int]:
        await asyncio.sleep(0.01)
        return dict.fromkeys(keys, 1)

    gather = Gather(read)
    leaves, stays = asyncio.create_task(gather.get(1)), asyncio.create_task(gather.get(1))
    await asyncio.sleep(0.001)
    leaves.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaves
    assert await stays == 1
