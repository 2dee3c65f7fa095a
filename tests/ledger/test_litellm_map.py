"""LiteLLM's map is read exactly or not at all, and says where it and our book differ, and since when."""

import json
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from ledger.litellm_map import Field, Map, Report, compare, dated_cards, read_field, read_map
from ledger.price_book import PriceBook, RateSet
from ledger.price_import import read_genai_prices
from ledger.times import parse_rfc3339
from tests.ledger.prices import NOON, band, make_card, per_million, selectors, variant

PRICES = Path(__file__).parent.parent.parent / "data" / "prices"
VERSIONS = ("1.55.12", "1.67.6", "1.77.7", "1.90.7", "1.110.2")


def real(version: str) -> Map:
    return read_map(PRICES / "litellm" / f"litellm_{version}_model_prices_and_context_window.json.gz", version)


def made(tmp_path: Path, version: str = "1", **models: dict[str, Any] | str) -> Map:
    """A version of the map; a text stands in for the JSON of a model, so that digits stay as they are."""
    path = tmp_path / f"{version}.json"
    texts = [
        f"{json.dumps(key)}: {said if isinstance(said, str) else json.dumps(said)}" for key, said in models.items()
    ]
    path.write_text("{" + ", ".join(texts) + "}")
    return read_map(path, version)


def openai(**prices: Any) -> dict[str, Any]:
    return {"litellm_provider": "openai", "mode": "chat", **prices}


@pytest.mark.parametrize(
    ("name", "meter", "tier", "above"),
    [
        ("input_cost_per_token", "uncached_input_tokens", None, None),
        ("output_cost_per_token_batches", "visible_output_tokens", "batch", None),
        ("input_cost_per_token_above_272k_tokens_priority", "uncached_input_tokens", "priority", 272_000),
        ("cache_creation_input_token_cost", "cache_write_5m_tokens", None, None),
        ("cache_creation_input_token_cost_above_1hr", "cache_write_1h_tokens", None, None),
        ("cache_creation_input_token_cost_above_1hr_above_200k_tokens", "cache_write_1h_tokens", None, 200_000),
        ("cache_read_input_audio_token_cost_flex", "cache_read_audio_tokens", "flex", None),
        ("ocr_cost_per_page", "pages", None, None),
    ],
)
def test_a_field_says_meter_tier_and_threshold(name: str, meter: str, tier: str | None, above: int | None) -> None:
    assert read_field(name) == Field(name, meter, tier, above)


@pytest.mark.parametrize(
    "name",
    [
        "cache_creation_input_token_cost_above_12hr",
        "input_cost_per_token_balanced",
        "output_cost_per_image",
        "input_cost_per_request",
        "search_context_cost_per_query",
        "tiered_pricing",
        "max_tokens",
    ],
)
def test_a_field_that_is_not_sure_is_not_read(name: str) -> None:
    assert read_field(name) is None


def test_amounts_are_the_digits_of_the_file_for_a_million(tmp_path: Path) -> None:
    text = '{"litellm_provider": "openai", "input_cost_per_token": 1.1e-07, "output_cost_per_token": 0.000004400000000000001}'
    model = made(tmp_path, m=text).models["m"]
    assert {field.name: price for field, price in model.prices.items()} == {
        "input_cost_per_token": Decimal("0.11"),
        "output_cost_per_token": Decimal("4.400000000000001"),
    }


def report(maps: list[Map], *cards: Any) -> Report:
    known = {(card.provider, card.model): card.model for card in cards}
    return compare(maps, PriceBook(1, cards), lambda provider, name: known.get((provider, name)), parse_rfc3339(NOON))


def test_rows_say_who_says_what_and_since_when(tmp_path: Path) -> None:
    card = make_card(
        per_million(input="2", cached="0.5", output="8"),
        model="m",
        bands=(band(">", 200_000, input="4", cached="1", output="12"),),
        variants=(variant("batch", input="1", output="4"),),
    )
    versions = [
        made(tmp_path, "1", m=openai(input_cost_per_token=3e-06), old=openai(input_cost_per_token=1e-06)),
        made(tmp_path, "2", m=openai(input_cost_per_token=2e-06, output_cost_per_token=9e-06)),
        made(
            tmp_path,
            "3",
            m=openai(
                input_cost_per_token=2e-06,
                output_cost_per_token=9e-06,
                input_cost_per_token_batches=1e-06,
                input_cost_per_token_above_200k_tokens=5e-06,
                output_cost_per_token_flex=5e-06,
                output_cost_per_image=0.1,
                tiered_pricing=[],
            ),
            other=openai(input_cost_per_token=1e-06),
            foreign={"litellm_provider": "nobody", "input_cost_per_token": 1},
        ),
    ]
    found = report(
        versions, card, make_card(per_million(input="1"), model="old"), make_card(per_million(input="1"), model="ours")
    )
    rows = {row.field or row.meter: (row.ours, row.theirs, row.verdict, row.since, row.before) for row in found.rows}
    assert rows == {
        "input_cost_per_token": (Decimal(2), Decimal(2), "agrees", "2", Decimal(3)),
        "output_cost_per_token": (Decimal(8), Decimal(9), "differs", "2", None),
        "input_cost_per_token_batches": (Decimal(1), Decimal(1), "agrees", "3", None),
        "input_cost_per_token_above_200k_tokens": (Decimal(4), Decimal(5), "differs", "3", None),
        "output_cost_per_token_flex": (None, Decimal(5), "only_theirs", "3", None),
        "cache_read_tokens": (Decimal("0.5"), None, "only_ours", None, None),
    }
    assert found.unknown == ("other",)
    assert found.missing == (("openai", "old"), ("openai", "ours"))
    assert found.gone == (("old", "1"),)
    assert found.unread == {"output_cost_per_image": 1, "tiered_pricing": 1}
    assert found.foreign == 1
    assert found.counts == {"agrees": 2, "differs": 2, "only_theirs": 1, "only_ours": 1}


def test_two_independent_sources_agree_on_most_prices_of_the_models_that_both_know() -> None:
    """genai-prices 0.2.3 as our book against the newest map: 3,658 of 4,038 prices that both state are the same digits."""
    imported = read_genai_prices(PRICES / "genai_prices_0.2.3.json.gz", "0.2.3", date(2026, 11, 1))
    names = {**imported.aliases, **{(model.provider, model.model): model.model for model in imported.models}}
    found = compare(
        [real(version) for version in VERSIONS],
        PriceBook(1, imported.cards),
        lambda provider, name: names.get((provider, name)),
        parse_rfc3339("2026-11-01T00:00:00Z"),
    )
    assert found.counts == {"agrees": 3658, "differs": 380, "only_theirs": 767, "only_ours": 43}
    assert (len(found.unknown), len(found.gone), found.foreign) == (1498, 253, 2523)
    turbo = next(row for row in found.rows if row.key == "azure/gpt-4-turbo" and row.field == "input_cost_per_token")
    assert (turbo.ours, turbo.theirs, turbo.since, turbo.before) == (Decimal(10), Decimal(11), "1.110.2", Decimal(10))


def test_versions_become_dated_cards_and_a_dropped_model_is_withdrawn(tmp_path: Path) -> None:
    versions = [
        made(tmp_path, "1", m=openai(input_cost_per_token=3e-06, output_cost_per_token=6e-06)),
        made(tmp_path, "2", m=openai(input_cost_per_token=3e-06, output_cost_per_token=6e-06)),
        made(
            tmp_path,
            "3",
            m=openai(
                input_cost_per_token=2e-06,
                output_cost_per_token=6e-06,
                input_cost_per_token_above_200k_tokens=4e-06,
                input_cost_per_token_batches=1e-06,
                cache_read_input_token_cost=0.0,
            ),
        ),
        made(tmp_path, "4"),
    ]
    dates = [f"2026-0{month}-01T00:00:00Z" for month in (1, 2, 3, 4)]
    maps = list(zip(versions, map(parse_rfc3339, dates), strict=True))
    cards, refused = dated_cards(maps, ["m"])
    assert refused == []
    assert [(card.effective_at, card.is_withdrawal) for card in cards] == [
        (parse_rfc3339(dates[0]), False),
        (parse_rfc3339(dates[2]), False),
        (parse_rfc3339(dates[3]), True),
    ]
    book = PriceBook(1, cards)

    def price(at: str, **asked: Any) -> Decimal | None:
        found = book.rate_set("cost", selectors("m", at, **asked))
        return found.rates["uncached_input_tokens"].price if isinstance(found, RateSet) else None

    assert [price(at) for at in dates] == [3, 3, 2, None]
    assert price(dates[2], input_tokens=200_001) == 4
    assert price(dates[2], service_tier="batch") == 1
    third = book.rate_set("cost", selectors("m", dates[2]))
    assert isinstance(third, RateSet)
    assert third.rates["cache_read_tokens"].priced_as == "uncached_input_tokens", "a zero there is no statement"


def test_the_history_of_every_key_of_our_providers_is_a_book_without_contradiction() -> None:
    """The dates are assumed: the map has none."""
    dates = [
        parse_rfc3339(f"{day}T00:00:00Z")
        for day in ("2024-12-01", "2025-05-01", "2025-10-01", "2026-04-01", "2026-10-01")
    ]
    maps = list(zip(map(real, VERSIONS), dates, strict=True))
    keys = {key: (model.provider, model.name) for version, _ in maps for key, model in version.models.items()}
    # Two keys may name one model; the first of them counts here, since a book takes one price at a time.
    chosen = {model: key for key, model in reversed(keys.items())}
    cards, refused = dated_cards(maps, chosen.values())
    PriceBook(1, cards)
    assert refused == []
    assert (len(chosen), len(cards), sum(card.is_withdrawal for card in cards)) == (2756, 3445, 405)
