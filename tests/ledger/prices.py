"""Builders of cards and selectors for the tests of this folder."""

from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from typing import Any

from ledger.exchange import ExchangeRate
from ledger.meters import input_tokens
from ledger.price_book import Band, Body, Card, Price, PriceBook, RateSet, Selectors, Unpriced, Variant
from ledger.pricing import Priced, price
from ledger.times import parse_rfc3339

SHORT = {
    "input": "uncached_input_tokens",
    "cached": "cache_read_tokens",
    "write_5m": "cache_write_5m_tokens",
    "write_1h": "cache_write_1h_tokens",
    "output": "visible_output_tokens",
    "reasoning": "reasoning_tokens",
    "output_audio": "visible_output_audio_tokens",
    "input_image": "uncached_input_image_tokens",
    "output_image": "visible_output_image_tokens",
}

START = "2026-01-01T00:00:00Z"
NOON = "2026-01-15T10:00:00Z"


def per_million(**prices: str) -> dict[str, Price]:
    """Rates by the short names of the cases, per million tokens."""
    return {SHORT.get(name, name): Price(Decimal(amount), 1_000_000) for name, amount in prices.items()}


def band(operator: Any, input_tokens: int, **prices: str) -> Band:
    return Band(operator, input_tokens, per_million(**prices))


def variant(*service_tiers: str, regions: tuple[str, ...] = (), hours: Any = None, **prices: str) -> Variant:
    return Variant(service_tiers, regions, hours, per_million(**prices))


def make_card(
    rates: Mapping[str, Price] | None = None,
    *,
    model: str | None = "m-sub",
    effective_at: str = START,
    recorded_at: str = START,
    book: Any = "cost",
    provider: str = "openai",
    currency: str = "USD",
    tenant_id: str | None = None,
    provider_account: str | None = None,
    deployment: str | None = None,
    is_withdrawal: bool = False,
    **body: Any,
) -> Card:
    return Card(
        book=book,
        provider=provider,
        provider_account=provider_account,
        deployment=deployment,
        model=model,
        tenant_id=tenant_id,
        currency=currency,
        effective_at=parse_rfc3339(effective_at),
        recorded_at=parse_rfc3339(recorded_at),
        is_withdrawal=is_withdrawal,
        source_address="https://prices.example/",
        checked_on=date(2026, 1, 1),
        body=Body(rates=dict(rates or {}), **body),
    )


def exchange(
    rate: str,
    at: str = "2026-01-01",
    *,
    pair: str = "USD EUR",
    replaces: str | None = None,
    recorded_at: str = "2026-01-01",
) -> ExchangeRate:
    from_currency, to_currency = pair.split()
    return ExchangeRate(
        from_currency=from_currency,
        to_currency=to_currency,
        rate=Decimal(rate),
        effective_at=parse_rfc3339(f"{at}T00:00:00Z"),
        recorded_at=parse_rfc3339(f"{recorded_at}T00:00:00Z"),
        source_address="https://rates.example/",
        checked_on=date(2026, 1, 1),
        replaces=replaces,
    )


def selectors(model: str | None = "m-sub", at: str = NOON, provider: str = "openai", **others: Any) -> Selectors:
    return Selectors(provider, model, parse_rfc3339(at), **others)


def rate_set(cards: list[Card], book: Any = "cost", **asked: Any) -> RateSet:
    """Resolve selectors that have a price."""
    found = PriceBook(1, cards).rate_set(book, selectors(**asked))
    assert isinstance(found, RateSet), found
    return found


def why_unpriced(cards: list[Card], book: Any = "cost", **asked: Any) -> str:
    """Return the reason why selectors have no price."""
    found = PriceBook(1, cards).rate_set(book, selectors(**asked))
    assert isinstance(found, Unpriced), found
    return found.reason


def quantities(**counts: int) -> dict[str, int]:
    return {SHORT.get(name, name): count for name, count in counts.items()}


def priced(cards: list[Card], counts: dict[str, int], **asked: Any) -> Priced:
    """Price counts as the whole path does: the length of the input picks the band."""
    return price(counts, rate_set(cards, **{"input_tokens": input_tokens(counts), **asked}))


def amounts(result: Priced) -> dict[str, Decimal]:
    return {line.meter: line.amount for line in result.lines}
