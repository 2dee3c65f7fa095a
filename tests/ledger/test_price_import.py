"""An import says what it would change, adds what is accepted, and adds nothing the second time."""

import gzip
import json
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from ledger.database import connect
from ledger.price_book import PriceBook, RateSet
from ledger.price_import import (
    Imported,
    PriceDiff,
    accept_import,
    diff_import,
    diff_prices,
    propose_aliases,
    read_genai_prices,
)
from ledger.price_store import load_price_book, read_cards, read_model_names
from ledger.times import parse_rfc3339
from tests.ledger.prices import make_card, per_million, selectors
from tests.support.databases import Database

PRICES = Path(__file__).parents[2] / "data" / "prices" / "genai_prices_0.2.3.json.gz"
NOW = parse_rfc3339("2026-11-29T00:00:00Z")
CHECKED = date(2026, 11, 29)


def source(tmp_path: Path, *models: dict[str, Any], version: str = "0.2.3", **provider: Any) -> Imported:
    """Read a source of one provider `acme` with the given models."""
    path = tmp_path / "prices.json.gz"
    listed = [{"id": "acme", "api_pattern": "https://api.acme.example", "models": list(models), **provider}]
    path.write_bytes(gzip.compress(json.dumps(listed).encode()))
    return read_genai_prices(path, version, CHECKED)


def model(prices: Any, name: str = "scribe", match: Any = None, **others: Any) -> dict[str, Any]:
    return {"id": name, "match": match or {"equals": name}, "prices": prices, **others}


def found(imported: Imported, name: str = "scribe", at: str = "2026-11-29T12:00:00Z", **asked: Any) -> RateSet:
    rate_set = PriceBook(1, imported.cards).rate_set("cost", selectors(name, at, "acme", **asked))
    assert isinstance(rate_set, RateSet), rate_set
    return rate_set


def price_of(imported: Imported, meter: str, **asked: Any) -> Decimal:
    each = found(imported, **asked).rates[meter]
    return each.price / each.per * 1_000_000


def left(imported: Imported) -> set[tuple[str, str]]:
    return {(each.reason, each.what) for each in imported.unresolved}


# --- Reading ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def everything() -> Imported:
    return read_genai_prices(PRICES, "0.2.3", CHECKED)


def test_the_whole_source_is_read_and_what_is_left_is_listed(everything: Imported) -> None:
    # 2,330 of the source, and those that azure and google host at their makers' prices.
    assert len(everything.models) == 2511
    counts: dict[str, int] = {}
    for each in everything.unresolved:
        counts[each.reason] = counts.get(each.reason, 0) + 1
    # 179 models have empty prices in the source; seven bill a fee per request or message that no count of ours shows.
    assert counts == {
        "no_prices": 179,
        "loose_rule": 536,
        "key_without_meter": 17,
        "fee_without_meter": 7,
        "condition_unknown": 3,
    }
    PriceBook(1, everything.cards)


def test_a_real_model_has_its_list_price(everything: Imported) -> None:
    book = PriceBook(1, everything.cards)
    found = book.rate_set("cost", selectors("gpt-4.1", "2026-11-29T12:00:00Z", "openai", service_tier="batch"))
    assert isinstance(found, RateSet)
    assert found.currency == "USD"
    rates = {name: (str(each.price), each.priced_as) for name, each in found.rates.items()}
    assert rates["uncached_input_tokens"] == ("1", None)
    assert rates["cache_read_tokens"] == ("0.5", None)
    assert rates["visible_output_tokens"] == ("4", None)
    assert rates["reasoning_tokens"] == ("4", "visible_output_tokens")
    assert rates["cache_write_5m_tokens"] == ("1", "uncached_input_tokens")


def test_a_host_of_others_models_has_their_prices(everything: Imported) -> None:
    book = PriceBook(1, everything.cards)
    sets = [
        book.rate_set("cost", selectors("gpt-4.1", "2026-11-29T12:00:00Z", provider))
        for provider in ("openai", "azure")
    ]
    prices = [each.rates["visible_output_tokens"].price for each in sets if isinstance(each, RateSet)]
    assert prices == [Decimal(8), Decimal(8)]


def test_a_price_without_date_counts_from_the_earliest_time(tmp_path: Path) -> None:
    imported = source(tmp_path, model({"input_mtok": "2", "output_mtok": "8"}))
    assert [card.effective_at for card in imported.cards] == [parse_rfc3339("2020-01-01T00:00:00Z")]
    assert imported.cards[0].source_address == "genai-prices 0.2.3: https://api.acme.example"


@pytest.mark.parametrize(
    ("at", "price"),
    [("2026-03-12T23:59:59.999999Z", 5), ("2026-03-13T00:00:00Z", 6), ("2026-03-13T00:00:00.000001Z", 6)],
)
def test_a_dated_price_counts_from_that_day_in_utc(tmp_path: Path, at: str, price: int) -> None:
    dated = [
        {"prices": {"input_mtok": "5"}},
        {"constraint": {"start_date": "2026-03-13"}, "prices": {"input_mtok": "6"}},
    ]
    assert price_of(source(tmp_path, model(dated)), "uncached_input_tokens", at=at) == price


@pytest.mark.parametrize(("tokens", "price"), [(199_999, "3"), (200_000, "3"), (200_001, "6")])
def test_a_tier_of_the_source_is_a_cliff_above_its_start(tmp_path: Path, tokens: int, price: str) -> None:
    prices = {
        "input_mtok": {"base": "3", "tiers": [{"start": 200_000, "price": "6"}]},
        "output_mtok": "15",
        "web_searches_kcount": "10",
    }
    imported = source(tmp_path, model(prices))
    assert price_of(imported, "uncached_input_tokens", input_tokens=tokens) == Decimal(price)
    assert price_of(imported, "visible_output_tokens", input_tokens=tokens) == 15
    assert found(imported, input_tokens=tokens).rates["web_search_calls"].per == 1000


def test_tiers_with_different_starts_each_have_their_own_band(tmp_path: Path) -> None:
    prices = {
        "input_mtok": {"base": "1", "tiers": [{"start": 200, "price": "3"}, {"start": 100, "price": "2"}]},
        "output_mtok": {"base": "10", "tiers": [{"start": 150, "price": "20"}]},
    }
    imported = source(tmp_path, model(prices))
    seen = [
        tuple(
            int(price_of(imported, meter, input_tokens=tokens))
            for meter in ("uncached_input_tokens", "visible_output_tokens")
        )
        for tokens in (100, 101, 151, 201)
    ]
    assert seen == [(1, 10), (2, 10), (2, 20), (3, 20)]


def test_variants_become_service_tiers_and_start_on_their_day(tmp_path: Path) -> None:
    variants = [
        {"when": {"processing": "batch"}, "prices": {"input_mtok": "1"}, "constraint": {"start_date": "2026-10-14"}},
        {"when": {"service_tier": "flex"}, "prices": {"input_mtok": "1.5"}},
        {"when": {"speed": "fast"}, "prices": {"input_mtok": "4"}},
        {"when": {"service_tier": "default"}, "prices": {}},
        {"when": {"weather": "fair"}, "prices": {"input_mtok": "0.1"}},
    ]
    imported = source(tmp_path, model({"input_mtok": "2", "output_mtok": "8"}, price_variants=variants))
    tiers = {
        tier: price_of(imported, "uncached_input_tokens", service_tier=tier)
        for tier in (None, "batch", "flex", "fast", "default")
    }
    assert tiers == {None: 2, "batch": 1, "flex": Decimal("1.5"), "fast": 4, "default": 2}
    assert price_of(imported, "visible_output_tokens", service_tier="batch") == 8
    early = PriceBook(1, imported.cards).rate_set(
        "cost", selectors("scribe", "2026-10-13T23:59:59Z", "acme", service_tier="batch")
    )
    assert not isinstance(early, RateSet)
    assert left(imported) == {("condition_unknown", 'prices when {"weather": "fair"}')}


def test_of_two_dated_variants_the_first_that_counts_names_the_price(tmp_path: Path) -> None:
    variants = [
        {"when": {"processing": "batch"}, "prices": {"input_mtok": "1"}, "constraint": {"start_date": "2026-12-01"}},
        {"when": {"processing": "batch"}, "prices": {"input_mtok": "2"}, "constraint": {"start_date": "2026-10-14"}},
    ]
    imported = source(tmp_path, model({"input_mtok": "4"}, price_variants=variants))
    for at, price in (("2026-11-30T23:59:59Z", 2), ("2026-12-01T00:00:00Z", 1)):
        assert price_of(imported, "uncached_input_tokens", at=at, service_tier="batch") == price


def test_off_peak_hours_become_hours(tmp_path: Path) -> None:
    prices = [
        {"prices": {"input_mtok": "1"}},
        {"constraint": {"start_time": "00:30:00+00:00", "end_time": "16:30:00+00:00"}, "prices": {"input_mtok": "2"}},
    ]
    imported = source(tmp_path, model(prices))
    clocks = {
        clock: price_of(imported, "uncached_input_tokens", at=f"2026-11-29T{clock}Z")
        for clock in ("00:29:59", "00:30:00", "16:29:59", "16:30:00")
    }
    assert clocks == {"00:29:59": 1, "00:30:00": 2, "16:29:59": 2, "16:30:00": 1}


def test_what_no_meter_expresses_is_listed_and_never_guessed(tmp_path: Path) -> None:
    imported = source(
        tmp_path,
        model({"input_mtok": "1", "audio_hours": "3"}, "voice"),
        model({"input_mtok": "1", "requests_kcount": "12"}, "per-request"),
        model({"audio_hours": "0.111", "input_audio_hours": "0.111"}, "third"),
        model({"audio_hours": "0.36", "input_audio_hours": "0.36"}, "exact"),
        model({}, "empty"),
    )  # fmt: skip
    assert {card.model for card in imported.cards} == {"voice", "exact"}
    assert {each.model for each in imported.models} == {"voice", "per-request", "third", "exact", "empty"}
    assert left(imported) == {
        ("key_without_meter", "audio_hours"),
        ("fee_without_meter", "requests_kcount"),
        ("key_without_meter", "input_audio_hours per 3,600 is no exact price of one"),
        ("no_prices", "prices"),
    }
    assert found(imported, "exact").rates["audio_input_seconds"].price == Decimal("0.0001")


def test_a_price_of_absurd_size_is_listed_and_left(tmp_path: Path) -> None:
    imported = source(tmp_path, model({"input_mtok": "2500"}))
    assert imported.cards == ()
    assert {each.reason for each in imported.unresolved} == {"refused"}


def test_a_zero_of_the_source_is_free_and_says_so(tmp_path: Path) -> None:
    assert found(source(tmp_path, model({"input_mtok": "0"}))).is_free


# --- Names -----------------------------------------------------------------------------------------------------------


def test_b046_only_exact_names_of_the_source_become_aliases(tmp_path: Path) -> None:
    match = {
        "or": [{"equals": "scribe"}, {"equals": "scribe-2025-03"}, {"starts_with": "scribe-"}, {"regex": "^scribe$"}]
    }
    imported = source(tmp_path, model({"input_mtok": "3"}, match=match))
    assert imported.aliases == {("acme", "scribe-2025-03"): "scribe"}
    assert left(imported) == {("loose_rule", '{"starts_with": "scribe-"}'), ("loose_rule", '{"regex": "^scribe$"}')}


def test_a_name_is_not_an_alias_where_it_is_another_models_id(tmp_path: Path) -> None:
    both = {"or": [{"equals": "one"}, {"equals": "two"}]}
    imported = source(tmp_path, model({"input_mtok": "1"}, "one", both), model({"input_mtok": "2"}, "two"))
    assert imported.aliases == {}
    assert ("alias_taken", "name 'two' is a model's id") in left(imported)


def test_loose_rules_only_propose(tmp_path: Path) -> None:
    imported = source(
        tmp_path,
        model({"input_mtok": "1"}, "one", {"and": [{"starts_with": "One-"}, {"contains": "mini"}]}),
        model({"input_mtok": "2"}, "two", {"or": [{"ends_with": "-two"}, {"regex": r"^two-\d{4}$"}]}),
    )
    names = [("acme", name) for name in ("one-mini", "one-maxi", "x-Two", "two-2026", "two-26", "two")]
    assert propose_aliases(imported, [*names, ("other", "one-mini")]) == {
        ("acme", "one-mini"): "one",
        ("acme", "x-Two"): "two",
        ("acme", "two-2026"): "two",
    }


# --- The diff --------------------------------------------------------------------------------------------------------


def diff(imported: Imported, book: PriceBook, now: int = NOW) -> PriceDiff:
    names = {(each.provider, each.model): each.model for each in imported.models} | dict(imported.aliases)
    return diff_prices(imported, book, names, now)


def test_a_second_import_finds_nothing_whenever_it_runs(everything: Imported) -> None:
    book = PriceBook(1, everything.cards)
    for now in ("2019-01-01T00:00:00Z", "2026-11-29T00:00:00Z", "2027-06-01T00:00:00Z"):
        assert diff(everything, book, parse_rfc3339(now)).is_empty


def test_a_newer_version_with_the_same_prices_adds_nothing(tmp_path: Path) -> None:
    old = source(tmp_path, model({"input_mtok": "1.0"}))
    new = source(tmp_path, model({"input_mtok": "1.00"}), version="0.2.4")
    assert diff(new, PriceBook(1, old.cards)).is_empty


def test_a_price_that_changed_without_a_date_counts_from_now(tmp_path: Path) -> None:
    old = source(tmp_path, model({"input_mtok": "1"}))
    new = source(tmp_path, model({"input_mtok": "2"}), version="0.2.4")
    made = diff(new, PriceBook(1, old.cards))
    assert [(each.old.content_hash, each.new.effective_at) for each in made.changed] == [
        (old.cards[0].content_hash, NOW)
    ]
    book = PriceBook(1, [*old.cards, *made.cards])
    assert diff(new, book, NOW + 1).is_empty
    assert diff(new, book).is_empty


def test_a_future_price_that_changed_is_restated_and_one_that_was_dropped_goes_back(tmp_path: Path) -> None:
    def dated(*prices: tuple[str, str]) -> list[dict[str, Any]]:
        return [
            {"prices": {"input_mtok": "1"}},
            *({"constraint": {"start_date": day}, "prices": {"input_mtok": price}} for day, price in prices),
        ]

    old = source(tmp_path, model(dated(("2027-01-01", "2"), ("2027-03-01", "3"))))
    new = source(tmp_path, model(dated(("2027-02-01", "4"), ("2027-03-01", "5"))), version="0.2.4")
    made = diff(new, PriceBook(1, old.cards))
    book = PriceBook(1, [*old.cards, *made.cards])
    seen = []
    for at in ("2026-12-31", "2027-01-15", "2027-02-15", "2027-03-15"):
        rate_set = book.rate_set("cost", selectors("scribe", f"{at}T00:00:00Z", "acme"))
        assert isinstance(rate_set, RateSet)
        seen.append(int(rate_set.rates["uncached_input_tokens"].price))
    assert seen == [1, 1, 4, 5]
    assert diff(new, book).is_empty


def test_a_model_that_is_no_longer_listed_is_withdrawn_once(tmp_path: Path) -> None:
    old = source(tmp_path, model({"input_mtok": "1"}), model({"input_mtok": "2"}, "gone"))
    new = source(tmp_path, model({"input_mtok": "1"}), version="0.2.4")
    made = diff(new, PriceBook(1, old.cards))
    assert [(each.old.model, each.new.is_withdrawal, each.new.effective_at) for each in made.withdrawn] == [
        ("gone", True, NOW)
    ]
    assert diff(new, PriceBook(1, [*old.cards, *made.cards]), NOW + 10).is_empty


def test_a_list_price_does_not_overrule_a_card_of_another_origin(tmp_path: Path) -> None:
    ours = make_card(per_million(input="0.5"), provider="acme", model="scribe")
    made = diff(source(tmp_path, model({"input_mtok": "1"})), PriceBook(1, [ours]))
    assert made.kept == (ours,)
    assert made.cards == ()


# --- Accepting -------------------------------------------------------------------------------------------------------


async def test_accepting_twice_adds_once(database: Database, everything: Imported) -> None:
    async with await connect(database.url_for("tallystick_operator")) as connection:
        first = await diff_import(connection, everything, NOW)
        assert await accept_import(connection, first, "finance@example", "list prices") == len(everything.cards)
        assert len(await read_cards(connection)) == len(everything.cards)
        assert (await read_model_names(connection))["openai", "gpt-4.1"] == "gpt-4.1"
        assert (await diff_import(connection, everything, NOW)).is_empty
        version = (await load_price_book(connection)).version
        # A diff that somebody else accepted first adds nothing, and only says so.
        assert await accept_import(connection, first, "b") == 0
        assert await accept_import(connection, await diff_import(connection, everything, NOW), "c") == 0
        book = await load_price_book(connection)
        assert book.version == version + 1
        rate_set = book.rate_set("cost", selectors("gpt-4.1", "2026-11-29T12:00:00Z", "openai"))
        assert isinstance(rate_set, RateSet)
