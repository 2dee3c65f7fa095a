"""What the budgets in scope of an ask are, remembered from the last time that all of them were matched.

Matching is most of what a decision costs, and says the same again until a version changes or a window turns. While it does,
asks that all fit are decided by `quotas.reserve_known`, which looks at their windows alone.
"""

from collections.abc import Iterable, Sequence
from datetime import date, datetime
from decimal import Decimal, localcontext
from operator import add, sub
from types import NoneType
from typing import Any, Final

import msgspec

from ledger.money import EXACT

Scope = tuple[str | None, ...]
"""What chooses budgets: the payer, what asks say of their calls, and their currencies."""

Versions = tuple[int, int, int, int]
"""(parties, prices, calendar, budgets)."""

WindowKey = tuple[str, str, date]

_SCOPES_MAX: Final = 20_000
_LONG_MAX: Final = 64

UNITS: Final = (
    "charge",
    "cost",
    "total_tokens",
    "input_tokens",
    "output_tokens",
    "input_tokens_without_cache_reads",
    "requests",
)
"""In the order that `column_of` takes."""


class Match(msgspec.Struct, frozen=True, gc=False):
    """A budget that a scope falls under, in its window."""

    budget_id: str
    group_key: str
    window_start: date
    unit: str
    currency: str | None
    hardness: str
    limit: str | None
    kind: str
    days: int | None
    anchor: date | None
    zone: str
    room: Decimal | None
    """Up to where a call is admitted as it was asked; None where nothing limits it."""
    marks: str
    """Where something is noted: an array as text."""

    @property
    def key(self) -> WindowKey:
        return self.budget_id, self.group_key, self.window_start


class Fit(msgspec.Struct, frozen=True):
    """All budgets that a scope falls under, and from when until when that is so."""

    matches: tuple[Match, ...]
    since: datetime
    until: datetime

    @property
    def units(self) -> tuple[int, ...]:
        return tuple(UNITS.index(match.unit) for match in self.matches)


class Known:
    """What is known of scopes, all of it under the same versions."""

    def __init__(self) -> None:
        self.versions: Versions = (0, 0, 0, 0)
        self._fits: dict[Scope, Fit] = {}
        self._full: dict[WindowKey, list[int]] = {}

    def learn(self, versions: Versions, fits: dict[Scope, Fit]) -> None:
        """Take in what a full decision found out."""
        if versions != self.versions or len(self._fits) > _SCOPES_MAX:
            self.versions = versions
            self._fits.clear()
            self._full.clear()
        self._fits.update(fits)

    def find(self, scopes: Sequence[Scope], parties: int, prices: int, now: datetime) -> list[Fit] | None:
        """Return what is known of scopes, or None where anything is not."""
        if self.versions[:2] != (parties, prices):
            return None
        found: list[Fit] = []
        for scope in scopes:
            fit = self._fits.get(scope)
            if fit is None or not fit.since <= now < fit.until:
                return None
            found.append(fit)
        return found

    def is_full(self, key: WindowKey) -> bool:
        """Say whether asks that touch a window shall go the long way, since the last ones did not fit.

        A window at its limit would cost each of them both ways.
        """
        left = self._full.get(key)
        if left is None or left[0] == 0:
            return False
        left[0] -= 1
        return True

    def note_full(self, key: WindowKey) -> None:
        """Take note that asks did not fit into a window: look again after so many, twice as many each time."""
        again = min(2 * self._full.get(key, [0, 1])[1], _LONG_MAX)
        self._full[key] = [again, again]

    def note_room(self, key: WindowKey) -> None:
        self._full.pop(key, None)


Amount = int | Decimal


def column_of(unit: int, columns: Sequence[Sequence[Any]]) -> Sequence[Amount] | None:
    """Return what calls would take of a unit, by its place in `UNITS`, or None where one of them is unknown.

    Shape: columns hold charge, cost, input, output and cache reads from their eighth on, a place for each call.
    """
    match unit:
        case 0:
            taken = [columns[7]]
        case 1:
            taken = [columns[8]]
        case 2:
            taken = [columns[9], columns[10]]
        case 3:
            taken = [columns[9]]
        case 4:
            taken = [columns[10]]
        case 5:
            taken = [columns[9], columns[11]]
        case _:
            return [1] * len(columns[0])
    # By type: to compare a decimal with None takes longer than all the rest.
    if any(NoneType in map(type, column) for column in taken):
        return None
    if len(taken) == 1:
        return taken[0]
    return list(map(sub if unit == 5 else add, *taken))


def total(amounts: Iterable[Amount]) -> Amount:
    """Return an exact sum."""
    with localcontext(EXACT):
        return sum(amounts)


def added(left: Amount, right: Amount) -> Amount:
    """Return an exact sum."""
    if type(left) is int and type(right) is int:
        return left + right
    return EXACT.add(Decimal(left), Decimal(right))


def shortest(amount: Amount) -> str:
    """Return an amount in the shortest digits that say it exactly, as `trim_scale` has it."""
    text = str(amount)
    if type(amount) is int:
        return text
    if "E" in text:
        text = f"{amount:f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text
