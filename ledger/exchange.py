"""Exchange rates: dated, immutable, and named by whatever was converted with them. Pure.

A rate counts from `effective_at` until the next one of the same pair and direction. Nothing is derived: not the way back,
whose digits never end, and not a way over a third currency. A converted price is the decimal product of price and rate,
with as many places as both have together; nothing is rounded.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from datetime import date
from decimal import Decimal
from itertools import pairwise
from typing import Final

import msgspec

from ledger.errors import ExchangeRateRefused
from ledger.keys import digest_uuid
from ledger.money import CURRENCIES, EXACT

PLACES_MAX: Final = 12
"""More decimal places than this is no rate that anybody quotes."""
RATE_MAX: Final = Decimal(10_000_000)
RATE_MIN: Final = Decimal("0.0000001")


class ExchangeRate(msgspec.Struct, frozen=True, kw_only=True):
    """What one unit of a currency is worth in another, from an instant on. Instants are UTC microseconds.

    `content_hash` covers what the rate says and not where it was read, so that adding it can be repeated.
    """

    from_currency: str
    to_currency: str
    rate: Decimal
    effective_at: int
    source_address: str
    checked_on: date
    replaces: str | None = None
    """Content hash of the rate that this one restates: same pair, same instant, known better later."""
    recorded_at: int = 0
    content_hash: str = ""

    def __post_init__(self) -> None:
        content = {
            "from": self.from_currency,
            "to": self.to_currency,
            "rate": f"{self.rate.normalize(EXACT):f}" if self.rate.is_finite() else str(self.rate),
            "effective_at": self.effective_at,
            "replaces": self.replaces,
        }
        msgspec.structs.force_setattr(self, "content_hash", digest_uuid(msgspec.json.encode(content, order="sorted")))

    def __str__(self) -> str:
        return f"{self.from_currency} to {self.to_currency} at {self.rate:f}"


def check_exchange_rate(rate: ExchangeRate) -> None:
    """Raise ExchangeRateRefused, naming field and rule, for a rate that could convert wrongly."""

    def refuse(field: str, rule: str) -> None:
        raise ExchangeRateRefused(str(rate), field, rule)

    for field, currency in (("from", rate.from_currency), ("to", rate.to_currency)):
        if currency not in CURRENCIES:
            refuse(field, f"is {currency!r}, which is no code of ISO 4217")
    if rate.from_currency == rate.to_currency:
        refuse("to", "is the currency that it converts from")
    if not rate.rate.is_finite() or not RATE_MIN <= rate.rate <= RATE_MAX:
        refuse("rate", f"is {rate.rate}; it takes a number from {RATE_MIN:f} to {RATE_MAX:,}")
    exponent = rate.rate.as_tuple().exponent
    if isinstance(exponent, int) and -exponent > PLACES_MAX:
        refuse("rate", f"has more than {PLACES_MAX} decimal places")
    if not rate.source_address:
        refuse("source", "is empty; a rate says where it stands")


class ExchangeRates:
    """All rates, by pair and in order of time; raises ExchangeRateRefused where two claim the same pair and instant."""

    def __init__(self, rates: Iterable[ExchangeRate] = (), known_at: int | None = None) -> None:
        known = {r.content_hash: r for r in rates if known_at is None or r.recorded_at <= known_at}
        self._chains: dict[tuple[str, str], list[ExchangeRate]] = {}
        for rate in _standing(known):
            self._chains.setdefault((rate.from_currency, rate.to_currency), []).append(rate)
        for chain in self._chains.values():
            chain.sort(key=_effective_at)
            for before, after in pairwise(chain):
                if before.effective_at == after.effective_at:
                    rule = "is that of another rate; a correction names the rate that it replaces"
                    raise ExchangeRateRefused(str(after), "effective_at", rule)

    def in_force(self, from_currency: str, to_currency: str, instant: int) -> ExchangeRate | None:
        """Return the rate that counts at an instant; the exact instant of a change belongs to the new one."""
        chain = self._chains.get((from_currency, to_currency), [])
        place = bisect_right(chain, instant, key=_effective_at)
        return chain[place - 1] if place else None

    def changes(self, from_currency: str, to_currency: str) -> list[int]:
        """Return the instants at which a rate of a pair starts to count."""
        return [rate.effective_at for rate in self._chains.get((from_currency, to_currency), [])]


def _effective_at(rate: ExchangeRate) -> int:
    return rate.effective_at


def _standing(known: Mapping[str, ExchangeRate]) -> list[ExchangeRate]:
    """Return the rates that no other one replaces."""
    replaced: set[str] = set()
    for rate in known.values():
        check_exchange_rate(rate)
        if rate.replaces is None:
            continue
        old = known.get(rate.replaces)
        if old is None:
            raise ExchangeRateRefused(str(rate), "replaces", f"names {rate.replaces}, which is no rate")
        pair = (old.from_currency, old.to_currency, old.effective_at)
        if pair != (rate.from_currency, rate.to_currency, rate.effective_at):
            raise ExchangeRateRefused(str(rate), "replaces", "names a rate of another pair or instant")
        if rate.replaces in replaced:
            raise ExchangeRateRefused(str(rate), "replaces", f"names {rate.replaces}, which another replaces already")
        replaced.add(rate.replaces)
    return [rate for content_hash, rate in known.items() if content_hash not in replaced]
