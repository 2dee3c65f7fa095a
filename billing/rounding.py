"""Rounding: once per document and tax category, by one rule; what is rounded is spread so that it adds up. Pure.

Source: ISO 4217 minor units, `ledger.money.currency_exponent`.
"""

from collections.abc import Iterable, Sequence
from decimal import ROUND_DOWN, ROUND_FLOOR, ROUND_HALF_UP, Context, Decimal, InvalidOperation, localcontext
from functools import cache
from typing import Final

from ledger.money import EXACT, currency_exponent

PLACES: Final = 12
"""Of an agreed amount that a part of a period makes endless, such as a third: beyond what any invoice prints."""

_ZERO: Final = Decimal(0)
# Not the exact context: rounding is meant to lose digits, here and nowhere else.
_ROUNDING: Final = Context(prec=EXACT.prec, traps=[InvalidOperation])


def round_money(amount: Decimal, currency: str) -> Decimal:
    """Round half away from zero to the places that an invoice in the currency has."""
    # What Python calls half up is half away from zero: of the digits, whatever their sign.
    # And nothing has no sign: what is added to it loses a minus.
    return _ROUNDING.plus(amount.quantize(minor_unit(currency), ROUND_HALF_UP, _ROUNDING))


@cache
def minor_unit(currency: str) -> Decimal:
    """Return the smallest amount of a currency: 0.01 of most."""
    return Decimal(1).scaleb(-currency_exponent(currency))


def minor_units(amount: Decimal, currency: str) -> int:
    """Return a printed amount as a count of minor units. Errors: ValueError where it has more places than the currency."""
    if amount != cut_money(amount, currency):
        raise ValueError(f"{amount} has more places than {currency}")
    return int(amount.scaleb(currency_exponent(currency), _ROUNDING))


def cut_money(amount: Decimal, currency: str) -> Decimal:
    """Cut towards zero at the places of the currency: what of a balance can be paid out of it."""
    return amount.quantize(minor_unit(currency), ROUND_DOWN, _ROUNDING)


def part_of(amount: Decimal, days: int, whole: int) -> Decimal:
    """Return the share of an agreed amount for some days of a period: exact, or to 12 places, half away from zero."""
    product = EXACT.multiply(amount, Decimal(days))
    return plain(
        _ROUNDING.divide(product, Decimal(whole)).quantize(Decimal(1).scaleb(-PLACES), ROUND_HALF_UP, _ROUNDING)
    )


def plain(amount: Decimal) -> Decimal:
    """Return an amount without trailing zeros or an exponent."""
    shortest = amount.normalize(_ROUNDING)
    exponent = shortest.as_tuple().exponent
    return shortest.quantize(Decimal(1), context=_ROUNDING) if isinstance(exponent, int) and exponent > 0 else shortest


def total(amounts: Iterable[Decimal]) -> Decimal:
    """Return an exact sum."""
    with localcontext(EXACT):
        return sum(amounts, _ZERO)


def spread(amount: Decimal, exact: Sequence[Decimal], currency: str) -> list[Decimal]:
    """Spread a rounded sum over its exact parts by largest remainder, so that the printed parts add up to it.

    `amount` is the rounded sum of `exact`. Each part is cut down to a minor unit; those that lost most get one back, of
    equal ones the first.
    """
    unit = minor_unit(currency)
    floors = [part.quantize(unit, ROUND_FLOOR, _ROUNDING) for part in exact]
    with localcontext(EXACT):
        missing = minor_units(amount - sum(floors, _ZERO), currency)
        if not 0 <= missing <= len(exact):
            raise ValueError(f"{amount} is not the rounded sum of its {len(exact)} parts")
        kept = [floor - part for part, floor in zip(exact, floors, strict=True)]
        # Sorting is stable: of equal ones the first.
        for place in sorted(range(len(exact)), key=kept.__getitem__)[:missing]:
            floors[place] += unit
    return floors
