"""Money is decimal from text to table: made from text, multiplied exactly, and rounded by nothing here."""

from collections.abc import Mapping
from decimal import Context, Decimal, DecimalException, Inexact, InvalidOperation
from typing import Final

EXACT: Final = Context(prec=100, traps=[Inexact, InvalidOperation])
"""Arithmetic that would lose a digit raises instead."""
# Before the point, and behind it: sums and products of what somebody names stay within the exact context.
_DIGITS_MAX: Final = 30

# Source: ISO 4217 list one without funds and metals, checked 2026-11-29.
_CURRENCY_CODES: Final = (
    "AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BHD BIF BMD BND BOB BRL BSD BTN BWP BYN BZD CAD "
    "CDF CHF CLP CNY COP CRC CUP CVE CZK DJF DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD "
    "GNF GTQ GYD HKD HNL HTG HUF IDR ILS INR IQD IRR ISK JMD JOD JPY KES KGS KHR KMF KPW KRW KWD KYD "
    "KZT LAK LBP LKR LRD LSL LYD MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MYR MZN NAD NGN NIO "
    "NOK NPR NZD OMR PAB PEN PGK PHP PKR PLN PYG QAR RON RSD RUB RWF SAR SBD SCR SDG SEK SGD SHP SLE "
    "SOS SRD SSP STN SVC SYP SZL THB TJS TMT TND TOP TRY TTD TWD TZS UAH UGX USD UYU UZS VED VES VND "
    "VUV WST XAF XCD XCG XOF XPF YER ZAR ZMW ZWG "
)
CURRENCIES: Final = frozenset(_CURRENCY_CODES.split())
"""What something can be charged in."""

# ISO 4217 minor units where they are not 2. Source: ISO 4217 list one, checked 2026-11-29.
_EXPONENTS: Final[Mapping[str, int]] = {
    **dict.fromkeys(
        (
            "BIF",
            "CLP",
            "DJF",
            "GNF",
            "ISK",
            "JPY",
            "KMF",
            "KRW",
            "PYG",
            "RWF",
            "UGX",
            "UYI",
            "VND",
            "VUV",
            "XAF",
            "XOF",
            "XPF",
        ),
        0,
    ),
    **dict.fromkeys(("BHD", "IQD", "JOD", "KWD", "LYD", "OMR", "TND"), 3),
    **dict.fromkeys(("CLF", "UYW"), 4),
}


def currency_exponent(currency: str) -> int:
    """Return how many decimal places an invoice in a currency has."""
    return _EXPONENTS.get(currency, 2)


def parse_amount(text: str) -> Decimal:
    """Return a decimal from its text; raise ValueError for what is no finite number of at most 30 digits before and after its point."""
    try:
        amount = Decimal(text)
    except DecimalException:
        raise ValueError(f"{text!r} is not a decimal number") from None
    if not amount.is_finite():
        raise ValueError(f"{text!r} is not a finite number")
    if amount.adjusted() >= _DIGITS_MAX or amount.as_tuple().exponent < -_DIGITS_MAX:  # type: ignore[operator]
        raise ValueError(f"{text!r} has more than {_DIGITS_MAX} digits before or after the point")
    return amount


def amount_text(amount: Decimal) -> str:
    """Return a decimal as Postgres prints a numeric: plain digits, its own scale, no exponent, no minus zero."""
    if not amount:
        amount = abs(amount)
    return f"{amount:f}"
