"""Reviewed prices are read digit for digit, and what is wrong is named by file, card and field."""

from decimal import Decimal
from pathlib import Path

import pytest

from ledger.contracts import load_contracts
from ledger.errors import CardRefused
from ledger.price_book import Card, Price, PriceBook, RateSet
from ledger.times import parse_rfc3339
from tests.ledger.prices import priced as price_of
from tests.ledger.prices import quantities, rate_set

EXAMPLE = Path(__file__).parents[2] / "data" / "prices" / "example-contracts.yaml"

HEAD = "source: Annex B\nchecked_on: 2026-11-20\ncards:\n"
CARD = "  - {book: cost, provider: acme, model: m, currency: USD, effective_at: 2026-01-01T00:00:00Z, "


def load(tmp_path: Path, text: str) -> list[Card]:
    path = tmp_path / "prices.yaml"
    path.write_text(text, encoding="utf-8")
    return load_contracts(path)


def test_the_example_is_read_and_prices() -> None:
    cards = load_contracts(EXAMPLE)
    PriceBook(1, cards)
    asked = {"book": "charge", "model": "gpt-4.1", "tenant_id": "t-example", "currency": "USD"}
    counts = quantities(input=1000, output=100, web_search_calls=2, web_fetch_calls=3)
    # 1000 x 2.10 / 1e6 + 100 x 8.40 / 1e6 + 2 x 10 / 1000
    assert price_of(cards, counts, **asked).amount == Decimal("0.02294")
    batch = price_of(cards, quantities(input=300_000, output=100), service_tier="batch", **asked)
    assert batch.amount == Decimal("0.31542")
    node = rate_set(cards, provider="vllm", model="llama-3.3-70b")
    assert node.rates["cache_write_other_tokens"].priced_as == "uncached_input_tokens"


def test_prices_are_the_digits_of_the_file(tmp_path: Path) -> None:
    (card,) = load(tmp_path, HEAD + CARD + "rates: {uncached_input_tokens: 0.1000000000000000001 per 1_000_000}}\n")
    assert card.body.rates == {"uncached_input_tokens": Price(Decimal("0.1000000000000000001"), 1_000_000)}
    assert card.effective_at == parse_rfc3339("2026-01-01T00:00:00Z")
    assert (card.source_address, card.checked_on.isoformat()) == ("Annex B", "2026-11-20")


def test_hours_regions_and_both_operators_are_read(tmp_path: Path) -> None:
    cards = load(
        tmp_path,
        HEAD + CARD + "rates: {uncached_input_tokens: 4 per 1000000},"
        " bands: [{from: 100, rates: {uncached_input_tokens: 5 per 1000000}},"
        " {above: 200, rates: {uncached_input_tokens: 6 per 1000000}}],"
        " variants: [{hours: 16:30-00:30, regions: [eu], bands: [], rates: {uncached_input_tokens: 1 per 1000000}}]}\n",
    )
    book = PriceBook(1, cards)
    assert [band.starts_at for band in cards[0].body.bands] == [100, 201]
    assert book.version == 1
    night = rate_set(cards, provider="acme", model="m", region="eu", at="2026-02-01T17:00:00Z")
    assert isinstance(night, RateSet)
    assert night.rates["uncached_input_tokens"].price == 1


REFUSED = [
    ("a: [", "file", "is not YAML"),
    ("[" * 5000, "file", "is not YAML that can be read: it is nested too deeply"),
    ("- a", "file", "is not a mapping"),
    ("source: a\nsource: b\n", "file", "'source' stands twice in the mapping at line 1"),
    ("source: a\nchecked_on: 2026-11-20\n", "cards", "is missing"),
    ("source: a\nchecked_on: soon\n" + HEAD[-7:] + CARD + "is_free: true}", "checked_on", "takes a day such as"),
    (HEAD + "  - {book: cost, provider: acme}", "currency", "is missing"),
    (HEAD + CARD + "colour: red}", "card.colour", "unknown field"),
    (HEAD + CARD.replace("cost", "costs") + "is_free: true}", "book", "takes cost or charge"),
    (HEAD + CARD.replace("2026-01-01T00:00:00Z", "2026-01-01") + "is_free: true}", "effective_at", "RFC 3339"),
    # B052, row A: a price without its unit.
    (HEAD + CARD + "rates: {uncached_input_tokens: 2.50}}", "rates.uncached_input_tokens", "takes a price and its unit"),
    (HEAD + CARD + "rates: {uncached_input_tokens: 2.50 per token}}", "rates.uncached_input_tokens", "its unit"),
    (HEAD + CARD + "rates: {uncached_input_tokens: '2,50 per 1000'}}", "rates.uncached_input_tokens", "not a decimal"),
    (HEAD + CARD + "rates: {uncached_input_tokens: nan per 1000}}", "rates.uncached_input_tokens", "not a finite"),
    (HEAD + CARD + "rates: {uncached_input_tokens: 1 per 3600}}", "rates.uncached_input_tokens", "power of ten"),
    (HEAD + CARD + "rates: {uncached_input_tokens: 0 per 1000}}", "rates.uncached_input_tokens", "says so"),
    # B052, row B: 2.50 per thousand.
    (HEAD + CARD + "rates: {uncached_input_tokens: 2.50 per 1000}}", "rates.uncached_input_tokens", "above 1 USD"),
    (HEAD + CARD + "rates: {input: 1 per 1000000}}", "rates.input", "is not a meter"),
    (HEAD + CARD + "rates: [1]}", "rates", "is not a mapping"),
    (HEAD + CARD + "is_free: maybe}", "is_free", "takes true or false"),
    (HEAD + CARD + "markup: 1.2}", "markup", "is set on a cost card"),
    (HEAD + CARD + "missing_component: guess, is_free: true}", "missing_component", "takes refuse or"),
    (HEAD + CARD + "rates: {pages: 1 per 1000}, bands: [{rates: {}}]}", "bands[1]", "one of `above` and `from`"),
    (HEAD + CARD + "rates: {pages: 1 per 1000}, variants: [{hours: night}]}", "variants[1].hours", "a span in UTC"),
    (HEAD + CARD + "rates: {pages: 1 per 1000}, variants: [{service_tiers: batch}]}", "variants[1].service_tiers", "list"),
    (
        HEAD + CARD + "rates: {uncached_input_tokens: 1 per 1000000},"
        " bands: [{above: 9, rates: {uncached_input_tokens: 2 per 1000000}}],"
        " variants: [{service_tiers: [batch], rates: {uncached_input_tokens: 1 per 1000000}}]}",
        "variants[1].bands",
        "are missing",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "field", "rule"), REFUSED)
def test_what_is_wrong_is_named_by_file_card_and_field(tmp_path: Path, text: str, field: str, rule: str) -> None:
    with pytest.raises(CardRefused) as refused:
        load(tmp_path, text)
    assert refused.value.card.startswith("prices.yaml")
    assert refused.value.field == field
    assert rule in str(refused.value)
    assert "\n" not in str(refused.value)
