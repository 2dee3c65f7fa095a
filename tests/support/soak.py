"""How often what is tried at random is tried: a little in a run of the tests, SOAK times as often under `make soak`."""

import os
from typing import Final

SOAK: Final = int(os.environ.get("SOAK", "1"))
ROUNDS: Final = max(1, SOAK // 10)
"""Of a test that takes seconds: for each ten times as many examples of the others, one."""


def examples(count: int) -> int:
    """Return how many examples a property tries; `count` in a run of the tests."""
    return count * SOAK


def seeds(first: int) -> list[int]:
    """Return what `SEEDS=1,2,3` names, to find a fault again; else `first`, and under `make soak` those after it."""
    named = os.environ.get("SEEDS")
    return [int(seed) for seed in named.split(",")] if named else list(range(first, first + ROUNDS))
