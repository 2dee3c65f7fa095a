"""Usage lines: what a tenant used of each meter and owes for it, from its entries as one price each folds them. Pure.

A sum of quantities under one price is priced as its parts are, so the lines are exact; they are held against what the same
entries were charged.
"""

from collections.abc import Iterable, Mapping
from datetime import date
from decimal import Decimal, localcontext
from typing import Final

import msgspec

from billing.errors import FoldDiffers
from ledger.meters import COLUMN_METERS
from ledger.money import EXACT

AMOUNT_STATED: Final = "amount_stated"
"""The meter of a difference in money that a person stated, as in ledger.entry_lines."""


class Group(msgspec.Struct, frozen=True, gc=False):
    """Entries of a tenant that one rate set prices: their counts and what they were charged."""

    tenant_id: str
    currency: str
    service_month: date
    """In the tenant's zone, its first day."""
    feature: str | None
    provider: str | None
    model: str | None
    rate_set_id: int | None
    is_stated: bool
    charge: Decimal
    quantities: Mapping[str, Decimal]


class Rate(msgspec.Struct, frozen=True, gc=False):
    """What a meter costs in a rate set: `price` for `per` units."""

    price: Decimal
    per: int


class UsageLine(msgspec.Struct, frozen=True, gc=False):
    """What a tenant used of a meter, in one service month and currency; the amount is exact."""

    currency: str
    service_month: date
    feature: str | None
    provider: str | None
    model: str | None
    meter: str
    quantity: Decimal | None
    """None where a person stated an amount."""
    unit_price: Decimal | None
    """None where its entries have several."""
    per: int | None
    amount: Decimal


class _Sum(msgspec.Struct, gc=False):
    quantity: Decimal
    amount: Decimal
    rate: Rate | None
    """None where there are several."""


_Service = tuple[str, date, str | None, str | None, str | None]
"""Currency, service month, feature, provider, model."""


def lines_of(groups: Iterable[Group], rates: Mapping[int, Mapping[str, Rate]]) -> list[UsageLine]:
    """Return the lines of one tenant's groups: one for each service month, feature, provider, model, meter and currency.

    Shape: the newest service month first, then by name. Lines of neither quantity nor amount are left out.
    Errors: FoldDiffers where quantities times rates are not what the entries were charged.
    """
    sums: dict[_Service, dict[str, _Sum]] = {}
    with localcontext(EXACT):
        for group in groups:
            own = sums.setdefault((group.currency, group.service_month, group.feature, group.provider, group.model), {})
            known = {} if group.rate_set_id is None else rates.get(group.rate_set_id, {})
            rest = group.charge
            for meter, quantity in group.quantities.items():
                rate = known.get(meter)
                if rate is None or not quantity:
                    continue
                amount = quantity * rate.price * _STEPS[rate.per]
                rest -= amount
                _add(own, meter, quantity, amount, rate)
            if rest and group.is_stated:
                _add(own, AMOUNT_STATED, Decimal(0), rest, None)
            elif rest:
                raise FoldDiffers(group.tenant_id, group.currency, group.model, rest)
    return [
        UsageLine(
            *service,
            meter,
            None if meter == AMOUNT_STATED else found.quantity,
            None if found.rate is None else found.rate.price,
            None if found.rate is None else found.rate.per,
            found.amount,
        )
        for service, meters in sorted(sums.items(), key=_service_place)
        for meter, found in sorted(meters.items(), key=_meter_place)
        if found.amount or found.quantity
    ]


# `per` is a power of ten, so that each step is exact.
_STEPS: Final = {10**power: Decimal(1).scaleb(-power) for power in range(10)}
_METER_PLACE: Final = {meter: place for place, meter in enumerate(COLUMN_METERS)}


def _add(sums: dict[str, _Sum], meter: str, quantity: Decimal, amount: Decimal, rate: Rate | None) -> None:
    """Add to the sum of a meter, in the exact context."""
    found = sums.get(meter)
    if found is None:
        sums[meter] = _Sum(quantity, amount, rate)
    else:
        found.quantity += quantity
        found.amount += amount
        if found.rate != rate:
            found.rate = None


def _service_place(item: tuple[_Service, object]) -> tuple[str, int, str, str, str]:
    currency, month, feature, provider, model = item[0]
    return currency, -month.toordinal(), feature or "", provider or "", model or ""


def _meter_place(item: tuple[str, object]) -> tuple[int, str]:
    return _METER_PLACE.get(item[0], len(_METER_PLACE)), item[0]
