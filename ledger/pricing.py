"""Pricing: quantities times rates, exact and unrounded."""

from dataclasses import dataclass
from decimal import Decimal

from ledger.meters import METERS, Quantities
from ledger.money import EXACT
from ledger.price_book import RateSet, Unpriced

_multiply = EXACT.multiply


@dataclass(frozen=True, slots=True)
class Line:
    """What one meter came to; `priced_as` is the meter whose rate was taken for it, where it had none of its own."""

    meter: str
    quantity: int
    price: Decimal
    per: int
    amount: Decimal
    priced_as: str | None = None


@dataclass(frozen=True, slots=True)
class Priced:
    """The lines of a request and their sum; no amount stands where a meter has no rate."""

    currency: str | None
    lines: tuple[Line, ...]
    amount: Decimal | None
    unpriced: tuple[str, ...] = ()


def price(quantities: Quantities, rate_set: RateSet | Unpriced) -> Priced:
    """Price each meter that was used.

    Shape: one Line per meter with a quantity other than zero (a true-up's may be negative), in meter order;
    `Priced.unpriced` names the meters without a rate, and then no amount stands.
    Units: quantities in the meter's unit, prices for `per` of them, amounts in the set's currency, unrounded.
    Source: FOCUS 1.2, PricingQuantity and ListCost.
    """
    missing = unpriced_meters(quantities, rate_set)
    if isinstance(rate_set, Unpriced):
        return Priced(None, (), None, missing)
    lines = tuple(
        Line(
            meter=name,
            quantity=quantities[name],
            price=rate.price,
            per=rate.per,
            amount=_multiply(Decimal(quantities[name] * rate_set.scaled_prices[name]), rate_set.unit),
            priced_as=rate.priced_as,
        )
        for name, rate in rate_set.rates.items()
        if quantities.get(name)
    )
    return Priced(rate_set.currency, lines, None if missing else amount_of(quantities, rate_set), missing)


def amount_of(quantities: Quantities, rate_set: RateSet) -> Decimal | None:
    """Return the exact amount of a request, or None where a meter that was used has no rate.

    The sum is one of integers, scaled once: equal to the sum of the lines digit for digit, at a fraction of their time.
    """
    scaled = rate_set.scaled_prices
    total = 0
    try:
        for meter, quantity in quantities.items():
            if quantity:
                total += quantity * scaled[meter]
    except KeyError:
        return None
    return _multiply(Decimal(total), rate_set.unit)


def unpriced_meters(quantities: Quantities, rate_set: RateSet | Unpriced) -> tuple[str, ...]:
    """Return the meters that were used and have no rate, in meter order; those that we do not know come last."""
    rates = {} if isinstance(rate_set, Unpriced) else rate_set.rates
    missing = {name for name, quantity in quantities.items() if quantity and name not in rates}
    return (*(name for name in METERS if name in missing), *sorted(missing - METERS.keys()))
