"""A price is converted by a dated rate that is named, exactly, or not at all."""

from collections.abc import Callable
from decimal import Decimal

import psycopg
import pytest

from ledger.database import connect
from ledger.errors import ExchangeRateRefused
from ledger.exchange import ExchangeRate, ExchangeRates
from ledger.price_book import PriceBook, RateSet, Unpriced
from ledger.price_store import load_price_book, read_exchange_rates, save_exchange_rates
from ledger.times import parse_rfc3339
from tests.factories import make_event
from tests.ledger.prices import band, exchange, make_card, per_million, selectors
from tests.support.ledger import Ledger

COST = make_card(per_million(input="1.25", output="10"), bands=(band(">", 100, input="2.5", output="15"),))
MARKUP = make_card(None, book="charge", model=None, markup=Decimal("1.2"))
PLAN = make_card(per_million(input="3.01", output="12"), book="charge")


def charge(book: PriceBook, at: str = "2026-01-15", currency: str = "EUR", tokens: int = 0) -> RateSet | Unpriced:
    return book.rate_set(
        "charge", selectors(at=f"{at}T00:00:00Z", tenant_id="t", currency=currency, input_tokens=tokens)
    )


def price_of(found: RateSet | Unpriced) -> Decimal:
    assert isinstance(found, RateSet), found
    return found.rates["uncached_input_tokens"].price


def test_a_plan_in_another_currency_is_converted_exactly_and_names_the_rate() -> None:
    """3.01 x 0.9215 = 2.773715, every digit kept."""
    rate = exchange("0.9215")
    found = charge(PriceBook(1, [COST, PLAN], exchange_rates=[rate]))
    assert isinstance(found, RateSet)
    assert found.currency == "EUR"
    assert found.rates["uncached_input_tokens"].price == Decimal("2.773715")
    assert found.selectors == {"converted": "USD to EUR at 0.9215", "exchange_rate": rate.content_hash}
    assert found.card_hash == PLAN.content_hash


@pytest.mark.parametrize(("tokens", "price"), [(100, "1.38225"), (101, "2.7645")])
def test_a_markup_multiplies_the_cost_and_the_rate_in_every_band(tokens: int, price: str) -> None:
    """1.25 x 1.2 x 0.9215 = 1.38225; above the threshold 2.5 x 1.2 x 0.9215 = 2.7645."""
    found = charge(PriceBook(1, [COST, MARKUP], exchange_rates=[exchange("0.9215")]), tokens=tokens)
    assert price_of(found) == Decimal(price)


@pytest.mark.parametrize(
    ("at", "price"),
    [("2026-01-31", "2.709"), ("2026-02-01", "2.8595"), ("2026-02-02", "2.8595")],
)
def test_a_rate_counts_from_its_instant_until_the_next(at: str, price: str) -> None:
    rates = [exchange("0.90"), exchange("0.95", "2026-02-01")]
    assert price_of(charge(PriceBook(1, [COST, PLAN], exchange_rates=rates), at)) == Decimal(price)


@pytest.mark.parametrize(
    "rates",
    [
        [],
        [exchange("0.9", "2026-01-16")],  # later
        [exchange("1.1", pair="EUR USD")],  # the way back is not this way
        [exchange("0.8", pair="USD GBP"), exchange("1.2", pair="GBP EUR")],  # nor is a way over a third currency
    ],
)
def test_without_a_rate_for_the_pair_and_time_there_is_no_price(rates: list[ExchangeRate]) -> None:
    for cards in ([COST, PLAN], [COST, MARKUP]):
        found = charge(PriceBook(1, cards, exchange_rates=rates))
        assert isinstance(found, Unpriced)
        assert found.reason == "no_rate_in_currency"


def test_a_card_in_the_tenants_currency_comes_before_one_that_needs_converting() -> None:
    own = make_card(per_million(input="7"), book="charge", currency="EUR")
    book = PriceBook(1, [COST, PLAN, own], exchange_rates=[exchange("0.9"), exchange("0.8", pair="USD GBP")])
    assert price_of(charge(book)) == 7
    # Two prices to convert from, and nobody has said which.
    assert isinstance(charge(book, currency="GBP"), Unpriced)


def test_a_contract_in_another_currency_is_converted_and_hides_the_plan() -> None:
    contract = make_card(per_million(input="2"), book="charge", tenant_id="t")
    plan = make_card(per_million(input="7"), book="charge", currency="EUR")
    assert price_of(charge(PriceBook(1, [COST, plan, contract], exchange_rates=[exchange("0.9")]))) == Decimal("1.8")


def test_a_fee_is_multiplied_and_converted_like_a_price() -> None:
    cost = make_card(
        per_million(input="1"), billing_rules={"fee_per_operation": "0.01", "refusal_before_output": "free"}
    )
    found = charge(PriceBook(1, [cost, MARKUP], exchange_rates=[exchange("0.9")]))
    assert isinstance(found, RateSet)
    assert found.billing_rules == {"fee_per_operation": "0.0108", "refusal_before_output": "free"}


def test_a_restated_rate_counts_and_the_old_knowledge_can_be_asked_for() -> None:
    wrong = exchange("0.09")
    right = exchange("0.90", replaces=wrong.content_hash, recorded_at="2026-03-01")
    then = parse_rfc3339("2026-02-01T00:00:00Z")
    assert price_of(charge(PriceBook(1, [COST, PLAN], exchange_rates=[wrong, right]))) == Decimal("2.709")
    assert price_of(charge(PriceBook(1, [COST, PLAN], then, [wrong, right]))) == Decimal("0.2709")


ONE = exchange("0.9")
REFUSED: dict[str, tuple[Callable[[], list[ExchangeRate]], str, str]] = {
    "zero": (lambda: [exchange("0")], "rate", "takes a number"),
    "negative": (lambda: [exchange("-1")], "rate", "takes a number"),
    "not finite": (lambda: [exchange("NaN")], "rate", "takes a number"),
    "too many places": (lambda: [exchange("0.1234567890123")], "rate", "12 decimal places"),
    "the same currency": (lambda: [exchange("1", pair="EUR EUR")], "to", "converts from"),
    "no currency": (lambda: [exchange("1", pair="EUR XXX")], "to", "ISO 4217"),
    "one instant twice": (lambda: [ONE, exchange("0.8")], "effective_at", "names the rate that it replaces"),
    "replaces nothing": (lambda: [exchange("1", replaces=COST.content_hash)], "replaces", "is no rate"),
    "replaces another instant": (
        lambda: [ONE, exchange("1", "2026-02-01", replaces=ONE.content_hash)],
        "replaces",
        "another pair or instant",
    ),
    "replaced twice": (
        lambda: [ONE, *(exchange(rate, replaces=ONE.content_hash) for rate in ("0.7", "0.8"))],
        "replaces",
        "another replaces already",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_rate_that_could_convert_wrongly_is_refused_by_field_and_rule(what: str) -> None:
    rates, field, rule = REFUSED[what]
    with pytest.raises(ExchangeRateRefused, match=rule) as refused:
        ExchangeRates(rates())
    assert refused.value.field == field


async def test_rates_are_saved_once_and_never_change(ledger: Ledger) -> None:
    rate = exchange("0.921500000001")
    async with await connect(ledger.database.url_for("tallystick_operator")) as operator:
        before = (await load_price_book(operator)).version
        assert await save_exchange_rates(operator, [rate], "finance@example", "the bank's") == 1
        assert await save_exchange_rates(operator, [rate], "finance@example") == 0
        (loaded,) = await read_exchange_rates(operator)
        assert (loaded.content_hash, loaded.rate) == (rate.content_hash, rate.rate)
        assert (await load_price_book(operator)).version > before
        for statement in ("update ledger.exchange_rates set rate = 1", "delete from ledger.exchange_rates"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                await operator.execute(statement)
    with pytest.raises(psycopg.Error, match="append-only"):
        ledger.superuser.execute("update ledger.exchange_rates set rate = 1")


async def test_an_entry_names_the_rate_that_its_charge_was_converted_with(ledger: Ledger) -> None:
    """100 x 2.00 + 10 x 8.00 per million = 0.00028 USD; x 1.2 x 0.9215 = 0.000309624 EUR; its lines sum to it."""
    ledger.add_tenant("t-euro", currency="EUR")
    await ledger.add_price(input="2.00", output="8.00", markup="1.2")
    await ledger.post(make_event("early", tenant_id="t-euro"))
    async with await connect(ledger.database.url_for("tallystick_operator")) as operator:
        rate = exchange("0.9215", "2026-01-10")
        await save_exchange_rates(operator, [rate], "finance@example")
    await ledger.post(
        make_event("late", tenant_id="t-euro"), make_event("before", tenant_id="t-euro", time="2026-01-09T23:59:59Z")
    )
    assert ledger.rows(
        "select charge_currency, charge_amount, unpriced_meters from ledger.entries order by entry_id"
    ) == [
        ("EUR", None, ["charge:no_rate_in_currency"]),
        ("EUR", Decimal("0.000309624"), []),
        ("EUR", None, ["charge:no_rate_in_currency"]),
    ]
    assert ledger.rows("select distinct cost_currency, cost_amount from ledger.entries") == [
        ("USD", Decimal("0.00028"))
    ]
    assert ledger.rows(
        "select x.rate from ledger.entries as e"
        " join ledger.rate_sets as s on s.rate_set_id = e.charge_rate_set_id"
        " join ledger.exchange_rates as x on x.content_hash = (s.selectors ->> 'exchange_rate')::uuid"
    ) == [(Decimal("0.9215"),)]
    assert ledger.value("select sum(amount) from ledger.entry_lines where book = 'charge'") == Decimal("0.000309624")
