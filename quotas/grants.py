"""Grants: what a tenant has paid or been given in advance, and which of it its usage burns. Pure: no table is read here.

The stated order in which usage burns grants that are in force and fit: the lower priority first, of those the one that
expires soonest (one without an end last), of those the oldest, then by id.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from ledger.money import EXACT

_ZERO: Final = Decimal(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What may be burnt, by what, and when. Instants are UTC microseconds; the end is exclusive."""

    grant_id: str
    amount: Decimal
    """What of it may be burnt at all: granted and adjusted, without what was revoked or has expired."""
    effective_at: int
    expires_at: int | None = None
    priority: int = 100
    feature: str | None = None
    """Only usage of this feature burns it; None: any."""
    model: str | None = None
    """Only usage of this model burns it; None: any."""

    @property
    def has_conditions(self) -> bool:
        return self.feature is not None or self.model is not None

    def in_force(self, at: int) -> bool:
        return self.effective_at <= at and (self.expires_at is None or at < self.expires_at)

    def takes(self, use: "Use") -> bool:
        """Say whether a use may burn it."""
        return (
            self.in_force(use.at)
            and (self.feature is None or self.feature == use.feature)
            and (self.model is None or self.model == use.model)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """What was charged at an instant; a negative amount gives back, as a correction does."""

    at: int
    amount: Decimal
    feature: str | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Burn:
    """How usage burns grants. What each burnt and the overflow sum to the usage, digit for digit."""

    burnt: Mapping[str, Decimal]
    """By grant; never below zero, and never above what it has."""
    overflow: Decimal
    """What no grant pays; below zero where more was given back than was ever used."""


def burn(grants: Iterable[Grant], uses: Iterable[Use]) -> Burn:
    """Burn grants with usage in the stated order, whatever the order in which either is given.

    Uses go by instant, then feature, then model; those of one instant, feature and model are one. What is given back frees
    what was used last: the overflow first, then grants, the one that burnt last first.
    """
    ordered = sorted(grants, key=_order)
    left = {grant.grant_id: grant.amount for grant in ordered}
    taken: list[tuple[str, Decimal]] = []
    overflow = _ZERO
    for use in _merged(uses):
        amount = use.amount
        if amount < 0:
            freed = min(EXACT.minus(amount), max(overflow, _ZERO))
            overflow, amount = EXACT.subtract(overflow, freed), EXACT.add(amount, freed)
            while amount < 0 and taken:
                grant_id, part = taken.pop()
                freed = min(part, EXACT.minus(amount))
                left[grant_id], amount = EXACT.add(left[grant_id], freed), EXACT.add(amount, freed)
                if freed < part:
                    taken.append((grant_id, EXACT.subtract(part, freed)))
            overflow = EXACT.add(overflow, amount)
            continue
        for grant in ordered:
            if not amount:
                break
            part = min(amount, left[grant.grant_id]) if grant.takes(use) else _ZERO
            if part > 0:
                left[grant.grant_id] = EXACT.subtract(left[grant.grant_id], part)
                taken.append((grant.grant_id, part))
                amount = EXACT.subtract(amount, part)
        overflow = EXACT.add(overflow, amount)
    burnt = {grant.grant_id: EXACT.subtract(grant.amount, left[grant.grant_id]) for grant in ordered}
    return Burn(burnt, overflow)


def _order(grant: Grant) -> tuple[int, bool, int, int, str]:
    return (
        grant.priority,
        grant.expires_at is None,
        grant.expires_at or 0,
        grant.effective_at,
        grant.grant_id,
    )


def _merged(uses: Iterable[Use]) -> list[Use]:
    sums: dict[tuple[int, str, str], Decimal] = {}
    names: dict[tuple[int, str, str], Use] = {}
    for use in uses:
        # None sorts before every name, and is none of them.
        key = (use.at, "" if use.feature is None else f"={use.feature}", "" if use.model is None else f"={use.model}")
        sums[key] = EXACT.add(sums.get(key, _ZERO), use.amount)
        names[key] = use
    return [
        Use(at=names[key].at, amount=sums[key], feature=names[key].feature, model=names[key].model)
        for key in sorted(sums)
    ]


@dataclass(frozen=True, slots=True)
class Balance:
    """What is left of a grant at an instant."""

    grant: Grant
    burnt: Decimal
    left: Decimal
    """What could still be burnt at that instant: zero before it takes effect and once it has expired."""
    lapsed: Decimal
    """What was not burnt when it expired."""


@dataclass(frozen=True, slots=True)
class Projection:
    """The live balances of a tenant's grants: its usage so far held against them in the stated order."""

    balances: Sequence[Balance]
    """In the order in which they burn."""
    overflow: Decimal

    @property
    def left(self) -> Decimal:
        """What any usage may still burn: without what is left for some features or models alone."""
        return _sum(balance.left for balance in self.balances if not balance.grant.has_conditions)


def project(grants: Iterable[Grant], uses: Iterable[Use], at: int) -> Projection:
    """Return what is left of each grant at an instant, after usage in the stated order."""
    listed = sorted(grants, key=_order)
    done = burn(listed, uses)
    balances = []
    for grant in listed:
        spent = done.burnt[grant.grant_id]
        rest = EXACT.subtract(grant.amount, spent)
        has_expired = grant.expires_at is not None and grant.expires_at <= at
        balances.append(
            Balance(
                grant,
                spent,
                left=rest if grant.in_force(at) else _ZERO,
                lapsed=rest if has_expired else _ZERO,
            )
        )
    return Projection(balances, done.overflow)


def _sum(amounts: Iterable[Decimal]) -> Decimal:
    total = _ZERO
    for amount in amounts:
        total = EXACT.add(total, amount)
    return total
