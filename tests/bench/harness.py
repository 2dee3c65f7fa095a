"""Runs baseline and candidate in turn, in one process and on one server, and compares medians.

These machines are noisy: a figure alone says little, a ratio of neighbours in time says more. Each run's result is checked
after its clock has stopped; a wrong result has no speed.
"""

import os
import platform
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Final

Timed = Callable[[], Awaitable[float]]
"""Does the work once and returns how many units a second it did; raises where the result is wrong."""

PAIRS: Final = int(os.environ.get("PAIRS", "7"))


def size(name: str, default: int) -> int:
    """Return a size that the caller may set in the environment, as `make bench NAME=post KEYS=50000000` does."""
    return int(os.environ.get(name, str(default)))


@dataclass(slots=True)
class Comparison:
    """What a candidate does against a baseline of the same run."""

    name: str
    unit: str
    target: float | None
    baseline: list[float] = field(default_factory=list)
    candidate: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """The median of the ratios of neighbours: what slowed one pair down slowed both of its halves."""
        return median(ours / theirs for ours, theirs in zip(self.candidate, self.baseline, strict=True))

    def line(self) -> str:
        verdict = ""
        if self.target is not None:
            verdict = f", wanted {self.target:g}: {'reached' if self.ratio >= self.target else 'short'}"
        low, high = min(self.candidate), max(self.candidate)
        return (
            f"{self.name}: ratio {self.ratio:.2f}{verdict}\n"
            f"    candidate {median(self.candidate):>10,.0f} {self.unit}/s (from {low:,.0f} to {high:,.0f})\n"
            f"    baseline  {median(self.baseline):>10,.0f} {self.unit}/s"
        )


async def compare(
    name: str, unit: str, baseline: Timed, candidate: Timed, *, target: float | None = None, pairs: int = PAIRS
) -> Comparison:
    """Run pairs in turn, the order within a pair changing, after one pair that is not counted."""
    comparison = Comparison(name, unit, target)
    for number in range(pairs + 1):
        for is_candidate in (False, True) if number % 2 else (True, False):
            speed = await (candidate if is_candidate else baseline)()
            if number:
                (comparison.candidate if is_candidate else comparison.baseline).append(speed)
    return comparison


def machine() -> str:
    """Return what was measured on, in a line."""
    cores = os.cpu_count()
    return (
        f"{platform.machine()}, {cores} cores, Python {platform.python_version()}, {PAIRS} interleaved pairs, medians"
    )
