"""What levers save: quantities times the difference of two rates, exactly, and counted where one of them is missing."""

import csv
import gzip
from decimal import Decimal
from itertools import product
from typing import Any

from ledger.meters import METERS
from ledger.price_book import Price, PriceBook
from ledger.pricing import price
from tests.conftest import CHECKOUT
from tests.dbt.conftest import Marts
from tests.dbt.test_rollup import usage
from tests.factories import make_event
from tests.ledger.prices import START, band, make_card, per_million, selectors, variant

MARTS = ("path:models/marts/levers", "fct_cost_daily", "dim_tenants")


def counts(**tokens: int) -> dict[str, int]:
    return {f"{name}_tokens": count for name, count in tokens.items()}


def levers(marts: Marts, book: str = "cost") -> dict[str, tuple[Any, ...]]:
    """By lever: requests, tokens, without, paid, saved, tokens that could not be compared."""
    return {
        row[0]: row[1:]
        for row in marts.ledger.rows(
            f"select lever, request_count, token_count, {book}_without_amount, {book}_paid_amount, {book}_saved_amount,"
            f" {book}_uncompared_tokens from marts.fct_lever_savings_daily"
        )
    }


async def set_up(marts: Marts, markup: str = "2", **card: Any) -> None:
    """Input 2.00, cached 0.20, written to a cache 2.50, output 8.00 a million; the charge is twice the cost."""
    marts.ledger.add_tenant().add_source().add_model("m-big").add_model("m-sub").add_model("m-other")
    for model, factor in (("m-sub", 1), ("m-big", 5)):
        rates = {"input": "2.00", "cached": "0.20", "write_5m": "2.50", "output": "8.00"}
        priced = {name: str(Decimal(price) * factor) for name, price in rates.items()}
        made = {} if model == "m-big" else card
        await marts.ledger.add_card(
            make_card(per_million(**priced), model=model, effective_at="2020-01-01T00:00:00Z", **made)
        )
    await marts.ledger.add_card(
        make_card(book="charge", model=None, effective_at="2020-01-01T00:00:00Z", markup=Decimal(markup))
    )


async def test_cached_input_saves_what_input_costs_more_and_writing_it_costs_the_premium(marts: Marts) -> None:
    """A million read: 2.00 - 0.20 saved. A million written: 2.50 paid where 2.00 would do. Charged twice that."""
    await set_up(marts)
    read = counts(uncached_input=10, cache_read=1_000_000)
    written = counts(uncached_input=10, cache_write_5m=600_000, cache_write_other=400_000)
    await marts.post(make_event("r", quantities=read), make_event("w", quantities=written))
    marts.roll_up(*MARTS, tests=True)
    assert levers(marts) == {
        "prefix_cache_read": (0, 1_000_000, Decimal("2.00"), Decimal("0.20"), Decimal("1.80"), 0),
        "prefix_cache_write": (0, 1_000_000, Decimal("2.00"), Decimal("2.50"), Decimal("-0.50"), 0),
    }
    assert levers(marts, "charge")["prefix_cache_read"][2:] == (Decimal("4.00"), Decimal("0.40"), Decimal("3.60"), 0)


async def test_a_corrected_report_corrects_what_was_saved(marts: Marts) -> None:
    """A million read from the cache turns out to be a quarter of it: 0.45 is left of 1.80."""
    await set_up(marts)
    await marts.post(make_event("a", request_id="r", quantities=counts(cache_read=1_000_000), final=False))
    marts.roll_up(*MARTS)
    await marts.post(make_event("b", request_id="r", quantities=counts(cache_read=250_000, uncached_input=750_000)))
    marts.roll_up(*MARTS, tests=True)
    assert levers(marts)["prefix_cache_read"] == (0, 250_000, Decimal("0.5"), Decimal("0.05"), Decimal("0.45"), 0)


async def test_a_hit_in_the_gateways_cache_saves_what_the_call_would_have_cost(marts: Marts) -> None:
    """100,000 in at 2.00 and 10,000 out at 8.00: 0.28, where one price for both would say 0.22."""
    await set_up(marts)
    await marts.post(make_event("hit", cache_result="exact_hit", usage=usage(100_000, 10_000)))
    marts.roll_up(*MARTS, tests=True)
    assert levers(marts) == {"response_cache": (1, 110_000, Decimal("0.28"), 0, Decimal("0.28"), 0)}
    assert levers(marts, "charge")["response_cache"][2:5] == (Decimal("0.56"), 0, Decimal("0.56"))


async def test_a_hit_without_a_price_is_counted_and_not_worth_zero(marts: Marts) -> None:
    await set_up(marts)
    await marts.post(
        make_event("hit", cache_result="exact_hit", model="m-other", requested_model="m-other", usage=usage(100, 10))
    )
    marts.roll_up(*MARTS, tests=True)
    assert levers(marts) == {"response_cache": (1, 110, 0, 0, 0, 110)}


async def test_the_batch_tier_saves_the_difference_to_the_same_cards_standard_rates(marts: Marts) -> None:
    """Half of 2.00 and 8.00: a million in and 100,000 out are 1.40 instead of 2.80; charged 2.80 instead of 5.60."""
    half = variant("batch", input="1.00", output="4.00")
    await set_up(marts, variants=(half,))
    await marts.post(make_event("b", service_tier="batch", usage=usage(1_000_000, 100_000)), make_event("s"))
    marts.roll_up(*MARTS, tests=True)
    assert levers(marts) == {"batch_tier": (1, 1_100_000, Decimal("2.80"), Decimal("1.40"), Decimal("1.40"), 0)}
    assert levers(marts, "charge") == {
        "batch_tier": (1, 1_100_000, Decimal("5.60"), Decimal("2.80"), Decimal("2.80"), 0)
    }


async def test_a_tier_is_compared_within_the_same_band(marts: Marts) -> None:
    """Above 200,000 tokens the card asks 4.00 and the tier 2.00: 300,000 tokens save 0.60; 100,000 save 0.10."""
    half = variant("batch", input="1.00", output="4.00")
    half = type(half)(
        half.service_tiers, half.regions, half.hours, half.rates, (band(">", 200_000, input="2.00", output="6.00"),)
    )
    bands = (band(">", 200_000, input="4.00", cached="0.40", write_5m="5.00", output="12.00"),)
    await set_up(marts, variants=(half,), bands=bands)
    await marts.post(
        make_event("long", service_tier="batch", usage=usage(300_000)),
        make_event("short", service_tier="batch", usage=usage(100_000)),
    )
    marts.roll_up(*MARTS)
    assert levers(marts)["batch_tier"] == (2, 400_000, Decimal("1.40"), Decimal("0.70"), Decimal("0.70"), 0)


async def test_a_tier_whose_card_depends_on_the_region_is_not_compared(marts: Marts) -> None:
    half = variant("batch", input="1.00", output="4.00")
    far = variant(regions=("far",), input="9.00")
    await set_up(marts, variants=(half, far))
    await marts.post(make_event("b", service_tier="batch", usage=usage(1_000)))
    marts.roll_up(*MARTS)
    assert levers(marts) == {"batch_tier": (1, 1_000, 0, 0, 0, 1_000)}


async def test_another_model_than_the_one_asked_for_is_held_against_its_price(marts: Marts) -> None:
    """Asked for m-big at five times the price: a million in would have been 10.00 and was 2.00; charged 20.00 and 4.00."""
    await set_up(marts)
    await marts.post(
        make_event("d", requested_model="m-big", usage=usage(1_000_000)),
        # Nobody knows a price of these: one is no model, one has no card.
        make_event("x", requested_model="m-nobody-knows", usage=usage(7)),
        make_event("y", requested_model="m-other", usage=usage(8)),
        make_event("same", requested_model="m-sub", usage=usage(9)),
    )
    marts.roll_up(*MARTS, tests=True)
    rows = marts.ledger.rows(
        "select asked_model, request_count, cost_saved_amount, charge_saved_amount, cost_uncompared_tokens,"
        " charge_uncompared_tokens from marts.fct_lever_savings_daily where lever = 'other_model' order by 1"
    )
    assert rows == [
        ("m-big", 1, Decimal("8.00"), Decimal("16.00"), 0, 0),
        ("m-nobody-knows", 1, 0, 0, 7, 7),
        ("m-other", 1, 0, 0, 8, 8),
    ]


async def test_another_name_of_the_model_that_answered_is_no_other_model(marts: Marts) -> None:
    """A gateway asks for proxy/m-sub; from when on somebody says that it is m-sub, no answer of m-sub came from another model."""
    await set_up(marts)
    await marts.post(make_event("a", requested_model="proxy/m-sub"))
    marts.roll_up(*MARTS)
    assert levers(marts) == {"other_model": (1, 110, 0, 0, 0, 110)}
    marts.ledger.superuser.execute("insert into ledger.model_aliases values ('openai', 'proxy/m-sub', 'm-sub', 'test')")
    assert levers(marts) == {}


async def test_what_is_priced_as_something_else_is_so_for_the_model_that_was_asked_for(marts: Marts) -> None:
    """One of each meter that takes another one's rate: m-big's card names none of them, as m-sub's."""
    await set_up(marts)
    borrowed = [meter.name for meter in METERS.values() if meter.priced_as is not None]
    await marts.post(make_event("a", requested_model="m-big", quantities=dict.fromkeys(borrowed, 1)))
    marts.roll_up(*MARTS)
    requests, tokens, without, paid, saved, uncompared = levers(marts)["other_model"]
    assert (requests, tokens, uncompared) == (1, len(borrowed), 0)
    assert (without, saved) == (5 * paid, 4 * paid)


async def test_a_meter_takes_the_rate_of_the_model_asked_for_that_the_ledger_would_have_taken(marts: Marts) -> None:
    """So many of each meter, at cards of each policy that name few: their amounts, and which tokens nobody can price."""
    marts.ledger.add_tenant().add_source().add_model("m-sub")
    answers = make_card(
        {name: Price(Decimal(1), 1) for name in METERS}, effective_at=START, is_high_price_confirmed=True
    )
    await marts.ledger.add_card(answers)
    few: list[dict[str, str]] = [
        {"input": "3", "output": "1000"},
        {"input": "3", "output": "1000", "write_5m": "7", "cached": "11", "reasoning": "900"},
        {"input": "3", "output": "1000", "cache_write_other_tokens": "5", "cached": "11", "input_image": "13"},
        {"cached": "11", "write_1h": "17", "output_image": "800"},
    ]
    quantities = {name: place for place, name in enumerate(METERS, start=1)}
    expected = {}
    for place, (policy, rates) in enumerate(product(("refuse", "use_input_rate", "use_side_rate"), few)):
        name = f"m-{place}"
        card = make_card(per_million(**rates), model=name, effective_at=START, missing_component=policy)
        marts.ledger.add_model(name)
        await marts.ledger.add_card(card)
        rate_set = PriceBook(1, [card]).rate_set("cost", selectors(model=name))
        priced = price(quantities, rate_set)
        amount = sum((line.amount for line in priced.lines), Decimal(0))
        expected[name] = (amount, sum(quantities[meter] for meter in priced.unpriced if METERS[meter].unit == "token"))
        await marts.post(make_event(name, requested_model=name, quantities=quantities))
    marts.roll_up(*MARTS)
    found = marts.ledger.rows(
        "select asked_model, cost_without_amount, cost_uncompared_tokens from marts.fct_lever_savings_daily where lever = 'other_model'"
    )
    assert {name: (amount, tokens) for name, amount, tokens in found} == expected


async def test_a_route_to_another_provider_is_held_against_the_only_one_that_has_the_model(marts: Marts) -> None:
    """m-big at openai would have been 10.00, and 2.00 were paid elsewhere; whose m-two it was nobody says. What openai would have
    been charged at is not known."""
    await set_up(marts)
    for provider in ("azure", "vllm"):
        marts.ledger.add_model("m-own", provider=provider)
        rates = per_million(input="2.00", cached="0.20", write_5m="2.50", output="8.00")
        await marts.ledger.add_card(
            make_card(rates, provider=provider, model="m-own", effective_at="2020-01-01T00:00:00Z")
        )
    for provider in ("azure", "openai"):
        marts.ledger.add_model("m-two", provider=provider)
        await marts.ledger.add_card(
            make_card(per_million(input="7.00"), provider=provider, model="m-two", effective_at="2020-01-01T00:00:00Z")
        )
    own = {"provider": "vllm", "model": "m-own", "usage": usage(1_000_000)}
    await marts.post(
        make_event("d", requested_model="m-big", **own),
        make_event("t", requested_model="m-two", **own),
        make_event("a", requested_model="m-two", **{**own, "provider": "azure"}),
    )
    marts.roll_up(*MARTS, tests=True)
    assert marts.ledger.rows(
        "select provider, asked_model, cost_saved_amount, cost_uncompared_tokens, charge_uncompared_tokens"
        " from marts.fct_lever_savings_daily where lever = 'other_model' order by 1, 2"
    ) == [
        ("azure", "m-two", Decimal("5.00"), 0, 1_000_000),
        ("vllm", "m-big", Decimal("8.00"), 0, 1_000_000),
        ("vllm", "m-two", 0, 1_000_000, 1_000_000),
    ]


async def test_a_day_on_which_the_asked_models_price_changed_is_not_compared(marts: Marts) -> None:
    """From 10:00 on the 15th m-big costs 3.00: that day and its neighbours have two prices, the 18th has one."""
    await set_up(marts)
    dear = make_card(
        per_million(input="3.00", cached="1.00", write_5m="3.00", output="9.00"), model="m-big",
        effective_at="2026-01-15T10:00:00Z",
    )  # fmt: skip
    await marts.ledger.add_card(dear)
    await marts.post(
        *(
            make_event(f"d-{day}", time=f"2026-01-{day}T12:00:00Z", requested_model="m-big", usage=usage(1_000_000))
            for day in (12, 15, 18)
        )
    )
    marts.roll_up(*MARTS)
    assert marts.ledger.rows(
        "select extract(day from local_date)::int, cost_saved_amount, cost_uncompared_tokens"
        " from marts.fct_lever_savings_daily order by 1"
    ) == [(12, Decimal("8.00"), 0), (15, 0, 1_000_000), (18, Decimal("1.00"), 0)]


async def test_attempts_that_came_after_another_are_paid_again(marts: Marts) -> None:
    """A retry of 100,000 in and 10,000 out is 0.28 again; of a continuation what it reads, 0.20; a second try without a kind
    is one too."""
    await set_up(marts)
    await marts.post(
        make_event("f", attempt_kind="first", attempt=1, usage=usage(100_000, 10_000)),
        make_event("r", attempt_kind="retry", attempt=2, usage=usage(100_000, 10_000)),
        make_event("h", attempt_kind="hedge", usage=usage(50_000)),
        make_event("c", attempt_kind="continuation", usage=usage(100_000, 10_000)),
        make_event("l", attempt=3, usage=usage(1_000)),
    )
    marts.roll_up(*MARTS, tests=True)
    assert levers(marts) == {
        "retry": (1, 110_000, 0, Decimal("0.28"), Decimal("-0.28"), 0),
        "hedge": (1, 50_000, 0, Decimal("0.10"), Decimal("-0.10"), 0),
        "continuation": (1, 100_000, 0, Decimal("0.20"), Decimal("-0.20"), 0),
        "later": (1, 1_000, 0, Decimal("0.002"), Decimal("-0.002"), 0),
    }


async def test_a_continuation_pays_again_for_every_meter_that_it_reads_and_for_none_that_it_writes(
    marts: Marts,
) -> None:
    """One of each meter at a dollar: what it thinks, calls or draws is new."""
    rates = {name: Price(Decimal(1), 1) for name in METERS}
    marts.ledger.add_tenant().add_source().add_model("m-sub")
    await marts.ledger.add_card(make_card(rates, effective_at="2020-01-01T00:00:00Z", is_high_price_confirmed=True))
    await marts.post(make_event("c", attempt_kind="continuation", quantities=dict.fromkeys(METERS, 1)))
    marts.roll_up(*MARTS)
    assert levers(marts)["continuation"][3] == sum(meter.side == "input" for meter in METERS.values())


async def test_what_has_no_price_is_counted_beside_the_amounts(marts: Marts) -> None:
    await set_up(marts)
    await marts.post(
        make_event(
            "a", model="m-other", requested_model="m-other", quantities=counts(cache_read=500), attempt_kind="retry"
        )
    )
    marts.roll_up(*MARTS)
    assert levers(marts) == {"prefix_cache_read": (0, 500, 0, 0, 0, 500), "retry": (1, 500, 0, 0, 0, 500)}


async def test_prefix_hits_of_a_real_trace_are_a_third_of_its_input(marts: Marts) -> None:
    """Mooncake: 54,098,411 of 144,793,823 input tokens were there before (37.4 %): at 1.80 a million less, 97.3771398."""
    await set_up(marts)
    with gzip.open(CHECKOUT / "data" / "mooncake" / "conversation_prefix_hits.csv.gz", "rt", newline="") as file:
        rows = list(csv.DictReader(file))
    events = [
        make_event(
            f"ev-{place}", time=f"2026-01-15T{10 + int(row['timestamp_ms']) // 3_600_000}:00:00Z",
            quantities={
                "uncached_input_tokens": int(row["input_tokens"]) - int(row["cached_tokens"]),
                "cache_read_tokens": int(row["cached_tokens"]),
                "visible_output_tokens": int(row["output_tokens"]),
            },
        )
        for place, row in enumerate(rows)
    ]  # fmt: skip
    for start in range(0, len(events), 2000):
        await marts.post(*events[start : start + 2000])
    marts.roll_up(*MARTS, tests=True)
    assert levers(marts) == {
        "prefix_cache_read": (
            0, 54_098_411, Decimal("108.196822"), Decimal("10.8196822"), Decimal("97.3771398"), 0,
        )
    }  # fmt: skip
    assert marts.ledger.rows("select input_tokens, cache_read_tokens, output_tokens from marts.fct_cost_daily") == [
        (144_793_823, 54_098_411, 4_122_048)
    ]
