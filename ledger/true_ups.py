"""The difference that a better statement makes: what it says, minus what stands, for each combination of non-numbers.

So every row stays quantities times one rate set per book, attributes move with the money, and a fold by any column, over
any prefix of the ledger, equals the best statements known at that point, and the differences in money that people stated.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from ledger.entries import Entry, Money, Standing, grain, standing
from ledger.money import EXACT
from ledger.statements import AMOUNT_STATED, Kind


@dataclass(slots=True)
class _Sum:
    """A group of the fold in the making."""

    request_count: int
    quantities: dict[str, int] | None
    avoided_tokens: int | None
    cost: Decimal | None
    charge: Decimal | None

    @property
    def is_zero(self) -> bool:
        return not (
            self.request_count
            or (self.quantities and any(self.quantities.values()))
            or self.avoided_tokens
            or self.cost
            or self.charge
        )


def _plus(left: int | None, right: int | None, sign: int) -> int | None:
    return left if right is None else (left or 0) + sign * right


def _plus_amount(left: Decimal | None, right: Decimal | None, sign: int) -> Decimal | None:
    if right is None:
        return left
    return EXACT.add(left or Decimal(0), right if sign > 0 else EXACT.minus(right))


def _add(sums: dict[tuple[Any, ...], _Sum], group: Standing, sign: int) -> None:
    total = sums.setdefault(group.grain, _Sum(0, None, None, None, None))
    total.request_count += sign * group.request_count
    if group.quantities is not None:
        total.quantities = total.quantities if total.quantities is not None else {}
        for meter, count in group.quantities.items():
            total.quantities[meter] = total.quantities.get(meter, 0) + sign * count
    total.avoided_tokens = _plus(total.avoided_tokens, group.avoided_tokens, sign)
    total.cost = _plus_amount(total.cost, group.cost_amount, sign)
    total.charge = _plus_amount(total.charge, group.charge_amount, sign)


def fold(groups: Iterable[Standing]) -> list[Standing]:
    """Return what stands: one group per combination of non-numbers, those without any effect left out."""
    sums: dict[tuple[Any, ...], _Sum] = {}
    for group in groups:
        _add(sums, group, +1)
    return [_standing(key, total) for key, total in sums.items() if not total.is_zero]


def _standing(key: tuple[Any, ...], total: _Sum) -> Standing:
    return Standing(
        grain=key,
        request_count=total.request_count,
        quantities=total.quantities,
        avoided_tokens=total.avoided_tokens,
        cost_amount=total.cost,
        charge_amount=total.charge,
    )


def true_up(
    stands: Iterable[Standing], better: list[Entry], first_entry_id: int, kind: Kind = "true_up"
) -> list[Entry]:
    """Return the rows that take a request from what stands to what a better statement, or a correction, says.

    Shape: one row per combination of non-numbers that moves, numbered from 0; at least one row, even when nothing moves.
    A void has its own row always: it moves nothing, and without it no row would say that the request was withdrawn.
    What people stated in money is no report's to take back: it is left out of `stands` by `reported`.
    """
    sums: dict[tuple[Any, ...], _Sum] = {}
    notes: dict[tuple[Any, ...], Entry] = {}
    for entry in better:
        key = grain(entry)
        notes.setdefault(key, entry)
        _add(sums, standing(entry), +1)
    for group in stands:
        _add(sums, group, -1)
    moving = {key: total for key, total in sums.items() if not total.is_zero}
    if not moving or better[0].statement.status == "void":
        own = grain(better[0])
        moving = {own: sums[own], **moving}
    return [
        _entry(better[0], key, total, number, first_entry_id, notes.get(key), kind)
        for number, (key, total) in enumerate(moving.items())
    ]


def is_stated(group: Standing) -> bool:
    """Say whether a group is a difference in money that people stated."""
    return AMOUNT_STATED in group.grain[_FLAGS]


def reported(stands: Iterable[Standing]) -> list[Standing]:
    """Return what stands without the differences that people stated: what a better statement takes the place of."""
    return [group for group in stands if not is_stated(group)]


def reversal(stands: Iterable[Standing], header: Entry, first_entry_id: int) -> list[Entry]:
    """Return the rows that negate all that stands of a request; `header` gives statement, time, reason and actor.

    Shape: one row per combination of non-numbers that stands, numbered from 0; none where nothing stands.
    """
    sums: dict[tuple[Any, ...], _Sum] = {}
    for group in stands:
        _add(sums, group, -1)
    moving = [(key, total) for key, total in sums.items() if not total.is_zero]
    return [
        _entry(header, key, total, number, first_entry_id, None, "reversal")
        for number, (key, total) in enumerate(moving)
    ]


_FLAGS: Final = -2
"""Where the flags stand in a grain."""


def _entry(
    header: Entry,
    key: tuple[Any, ...],
    total: _Sum,
    number: int,
    first_entry_id: int,
    said: Entry | None,
    kind: Kind,
) -> Entry:
    (
        dimensions, local_date, subject_id, tags, attempt, cost_currency, cost_set, charge_currency, charge_set, flags,
        unpriced,
    ) = key  # fmt: skip
    return Entry(
        statement=header.statement,
        kind=kind,
        entry_no=number,
        occurred_at=header.occurred_at,
        local_date=local_date,
        dimensions=dimensions,
        subject_id=subject_id,
        request_count=total.request_count,
        quantities=_counts(total.quantities),
        avoided_tokens=total.avoided_tokens,
        cost=Money(total.cost, cost_currency, cost_set),
        charge=Money(total.charge, charge_currency, charge_set),
        flags=flags,
        unpriced=unpriced,
        reported=said.reported if said else None,
        corrects_entry_id=first_entry_id,
        tags=tags,
        attempt=attempt,
        raw_digest=said.raw_digest if said else None,
        reason=header.reason,
        actor=header.actor,
    )


def _counts(quantities: Mapping[str, int] | None) -> Mapping[str, int] | None:
    return None if quantities is None else {meter: count for meter, count in quantities.items() if count}
