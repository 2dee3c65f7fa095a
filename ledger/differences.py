"""Reports of one request by two sources that say otherwise: noted when they meet, since later every pair would have to be read.

Nearly all pairs say the same. So each request keeps a fingerprint of what counts, and only a report with another one is held
against what stands.
"""

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from hashlib import sha256
from typing import Any, Final

import msgspec

from ledger.entries import Entry, Standing, standing
from ledger.meters import METERS, OPERATIONS
from ledger.money import EXACT
from ledger.statements import DIMENSIONS, Rank
from ledger.true_ups import is_stated

_SOURCE: Final = DIMENSIONS.index("source")
_MASK: Final = (1 << 63) - 1


def _weight(name: str) -> int:
    return int.from_bytes(sha256(name.encode()).digest()[:7], "big") | 1


_WEIGHTS: Final = {name: _weight(name) for name in (*METERS, OPERATIONS)}
_COST: Final = _weight("cost rate set")
_CHARGE: Final = _weight("charge rate set")


def fingerprint(entries: Sequence[Entry]) -> int:
    """Return a number that is the same where counts and prices are, however many rows they stand in; 63 bits.

    Two reports that differ have the same one once in some 2 to the 50th: good enough to choose what is looked at, and for
    nothing else.
    """
    total = 0
    for entry in entries:
        if entry.quantities:
            count = 0
            for meter, number in entry.quantities.items():
                count += _WEIGHTS[meter] * number
            # With its prices as a factor, rows of one price sum to what one row would give.
            total += count * (1 + _COST * (entry.cost.rate_set_id or 0) + _CHARGE * (entry.charge.rate_set_id or 0))
    return total & _MASK


def is_settled(rank: Rank) -> bool:
    """Say whether a statement is final, reported, and says what was used: an estimate, or a part, is expected to differ."""
    return bool(rank[1] and rank[2] and rank[3])


class Said(msgspec.Struct, frozen=True):
    """What one side says of a request."""

    source: str
    quantities: Mapping[str, int]
    charge: Decimal | None
    """None where any part of it has no price."""
    charge_currency: str | None
    cost: Decimal | None
    cost_currency: str | None

    @property
    def numbers(self) -> tuple[Any, ...]:
        """What is held against the other side."""
        return self.quantities, self.charge, self.charge_currency, self.cost, self.cost_currency


def sides(stands: Iterable[Standing], entries: Sequence[Entry]) -> tuple[Said, Said] | None:
    """Return what stands and what a report says, where they are of two sources and differ in counts or amounts; else None.

    What a person stated in money is no side's word.
    """
    stood = [group for group in stands if not is_stated(group)]
    if not stood or not entries:
        return None
    before, after = _said(stood), _said([standing(entry) for entry in entries])
    return None if before.source == after.source or before.numbers == after.numbers else (before, after)


def _said(groups: Sequence[Standing]) -> Said:
    first = max(groups, key=lambda group: group.request_count)
    quantities: dict[str, int] = {}
    for group in groups:
        for meter, count in (group.quantities or {}).items():
            quantities[meter] = quantities.get(meter, 0) + count
    return Said(
        source=first.grain[0][_SOURCE] or "",
        quantities={meter: quantities[meter] for meter in sorted(quantities) if quantities[meter]},
        charge=_sum(group.charge_amount for group in groups),
        charge_currency=first.grain[7],
        cost=_sum(group.cost_amount for group in groups),
        cost_currency=first.grain[5],
    )


def _sum(amounts: Iterable[Decimal | None]) -> Decimal | None:
    total = Decimal(0)
    for amount in amounts:
        if amount is None:
            return None
        total = EXACT.add(total, amount)
    return total
