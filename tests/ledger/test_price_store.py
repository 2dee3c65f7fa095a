"""Cards and rate sets come back from Postgres as they went in, once each."""

import asyncio
from datetime import date
from decimal import Decimal

import msgspec
import psycopg
import pytest

from ledger.database import Connection, connect
from ledger.errors import CardRefused
from ledger.price_book import Price, RateSet
from ledger.price_store import (
    ensure_rate_sets,
    load_price_book,
    load_rate_sets,
    read_cards,
    save_cards,
    withdrawal_of,
)
from ledger.pricing import amount_of
from ledger.times import parse_rfc3339
from tests.ledger.prices import band, make_card, per_million, quantities, rate_set, selectors, variant
from tests.support.databases import Database

FULL = make_card(
    per_million(input="2.50", output="10"),
    provider_account="acct-1",
    deployment="d-1",
    effective_at="2026-01-01T00:00:00.000001Z",
    bands=(band(">=", 200_000, input="5", output="20"),),
    variants=(variant("batch", regions=("eu",), hours=("16:30", "00:30"), input="1.25"),),
    missing_component="use_input_rate",
    billing_rules={"own_key": "free"},
)


async def version(connection: Connection) -> int:
    return (await load_price_book(connection)).version


async def test_a_card_comes_back_as_it_was_saved(operator: Connection) -> None:
    before = await version(operator)
    assert await save_cards(operator, [FULL], "finance@example", "first load") == 1
    (loaded,) = await read_cards(operator)
    assert loaded.recorded_at > 0
    assert loaded == msgspec.structs.replace(FULL, recorded_at=loaded.recorded_at)
    assert await version(operator) == before + 1
    cursor = await operator.execute("select actor, act, reason from ledger.acts")
    assert await cursor.fetchall() == [("finance@example", "prices.save_cards", "first load")]


async def test_saving_again_adds_nothing_and_leaves_the_version(operator: Connection) -> None:
    await save_cards(operator, [FULL], "a")
    before = await version(operator)
    assert await save_cards(operator, [FULL, FULL], "a") == 0
    assert await version(operator) == before


async def test_a_load_with_one_bad_card_keeps_none(operator: Connection) -> None:
    good, bad = make_card(per_million(input="1")), make_card({"tokens": Price(Decimal(1), 1000)}, model="m-bad")
    with pytest.raises(CardRefused, match=r"rates\.tokens is not a meter"):
        await save_cards(operator, [good, bad], "a")
    assert await read_cards(operator) == []


async def test_a_card_that_overlaps_the_book_is_refused(operator: Connection) -> None:
    await save_cards(operator, [make_card(per_million(input="1"))], "a")
    with pytest.raises(CardRefused, match="names the card that it replaces"):
        await save_cards(operator, [make_card(per_million(input="2"))], "a")


async def test_a_contract_with_nobody_is_refused(operator: Connection) -> None:
    card = make_card(per_million(input="1"), book="charge", tenant_id="t-nobody")
    with pytest.raises(CardRefused, match="'t-nobody', which is no tenant"):
        await save_cards(operator, [card], "a")


async def test_cards_are_listed_by_what_is_asked(operator: Connection) -> None:
    cards = [
        make_card(per_million(input="1"), model=model, provider=provider)
        for model, provider in [("a", "x"), ("b", "x"), ("a", "y")]
    ]
    await save_cards(operator, cards, "a")
    assert {(card.provider, card.model) for card in await read_cards(operator, provider="x")} == {
        ("x", "a"),
        ("x", "b"),
    }
    assert len(await read_cards(operator, provider="x", model="a")) == 1
    assert await read_cards(operator, book="charge") == []


async def test_b053_the_book_as_it_was_known_then(operator: Connection) -> None:
    first = make_card(per_million(input="0.40"))
    await save_cards(operator, [first], "a")
    known_at = (await read_cards(operator))[0].recorded_at
    await save_cards(operator, [make_card(per_million(input="1.00"), replaces=first.content_hash)], "a", "mistyped")
    prices = []
    for book in (await load_price_book(operator, known_at), await load_price_book(operator)):
        found = book.rate_set("cost", selectors())
        assert isinstance(found, RateSet)
        prices.append(found.rates["uncached_input_tokens"].price)
    assert prices == [Decimal("0.40"), Decimal("1.00")]


async def test_a_withdrawal_ends_a_card(operator: Connection) -> None:
    card = make_card(per_million(input="1"))
    end = withdrawal_of(card, parse_rfc3339("2026-03-01T00:00:00Z"), "https://prices.example/", date(2026, 3, 1))
    await save_cards(operator, [card, end], "a")
    book = await load_price_book(operator)
    assert isinstance(book.rate_set("cost", selectors(at="2026-02-28T23:59:59Z")), RateSet)
    assert not isinstance(book.rate_set("cost", selectors(at="2026-03-01T00:00:00Z")), RateSet)


async def test_rate_sets_keep_their_ids(writer: Connection) -> None:
    one = rate_set([make_card(per_million(input="1"))])
    two = rate_set([make_card(per_million(input="2", output="3"))])
    first = await ensure_rate_sets(writer, [one, one])
    both = await ensure_rate_sets(writer, [two, one])
    assert both[one.content_hash] == first[one.content_hash]
    assert len(set(both.values())) == 2
    assert await ensure_rate_sets(writer, []) == {}


async def test_a_rate_set_comes_back_and_prices_the_same(writer: Connection) -> None:
    made = rate_set(
        [FULL], provider_account="acct-1", deployment="d-1", input_tokens=300_000, service_tier="batch", region="eu"
    )
    ids = await ensure_rate_sets(writer, [made])
    loaded = (await load_rate_sets(writer, ids.values()))[ids[made.content_hash]]
    assert loaded.content_hash == made.content_hash
    assert loaded.rates == made.rates
    counts = quantities(input=7, cached=5, output=3)
    assert amount_of(counts, loaded) == amount_of(counts, made)


async def test_writers_that_add_the_same_sets_at_once_get_the_same_ids(database: Database) -> None:
    sets = [rate_set([make_card(per_million(input=str(price)))]) for price in range(1, 21)]

    async def ensure(these: list[RateSet]) -> dict[str, int]:
        async with await connect(database.url_for("tallystick_writer")) as connection:
            return await ensure_rate_sets(connection, these)

    found = await asyncio.gather(*(ensure(sets if n % 2 else sets[::-1]) for n in range(8)))
    assert all(ids == found[0] for ids in found)
    assert len(set(found[0].values())) == 20


async def test_no_role_of_the_system_changes_a_price(writer: Connection, operator: Connection) -> None:
    await save_cards(operator, [FULL], "a")
    await ensure_rate_sets(writer, [rate_set([make_card(per_million(input="1"))])])
    for connection in (writer, operator):
        for statement in (
            "update ledger.cards set currency = 'EUR'",
            "delete from ledger.cards",
            "update ledger.rates set price = 0",
            "delete from ledger.rates",
            "update ledger.rate_sets set is_free = true",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                await connection.execute(statement)


async def test_a_rate_set_whose_rates_were_changed_is_noticed(database: Database, writer: Connection) -> None:
    made = rate_set([make_card(per_million(input="1"))])
    (rate_set_id,) = (await ensure_rate_sets(writer, [made])).values()
    with database.connect(autocommit=True) as superuser:
        superuser.execute("set session_replication_role = replica")
        superuser.execute("update ledger.rates set price = 2")
    with pytest.raises(ValueError, match="its rates give"):
        await load_rate_sets(writer, [rate_set_id])


async def test_a_rate_of_zero_may_be_stored_for_free_cards(writer: Connection) -> None:
    free = rate_set([make_card(None, is_free=True)])
    (rate_set_id,) = (await ensure_rate_sets(writer, [free])).values()
    assert (await load_rate_sets(writer, [rate_set_id]))[rate_set_id].is_free
