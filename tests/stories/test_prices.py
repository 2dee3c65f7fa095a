"""Prices from bytes to ledger: names, histories, currencies, rules and corrections, each by the case that it comes from."""

from datetime import date
from decimal import Decimal
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from ledger.contracts import load_contracts
from ledger.database import connect
from ledger.errors import CardRefused
from ledger.litellm_map import dated_cards, read_map
from ledger.model_names import NameRule
from ledger.price_book import Card, Price
from ledger.price_store import save_exchange_rates
from ledger.registry import change_provider_account, set_name_rules
from ledger.repricing import Repriced, Scope, reprice
from ledger.times import parse_rfc3339
from tallystick.verify import verify
from tests.factories import NODE, make_event
from tests.ledger.prices import band, exchange, make_card, per_million, variant
from tests.support.ledger import Ledger

MAPS = Path(__file__).parent.parent.parent / "data" / "prices" / "litellm"


def proof(ledger: Ledger) -> list[str]:
    """What `verify` finds wrong: chain, keys, requests, budgets, lines."""
    return [failure.text for failure in verify(ledger.database.url_for("tallystick_operator")).failures]


def usage(event_id: str, prompt: int, completion: int, **others: Any) -> dict[str, Any]:
    """An OpenAI call with these counts."""
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return make_event(event_id, usage=counts, **others)


def named(event_id: str, model: str, prompt: int, completion: int, **others: Any) -> dict[str, Any]:
    return usage(event_id, prompt, completion, model=model, requested_model=model, **others)


def amounts(ledger: Ledger, column: str, book: str = "cost") -> dict[Any, Decimal | None]:
    """Amount of each entry by a column."""
    return dict(ledger.rows(f"select {column}, {book}_amount from ledger.entries order by entry_id"))


# --- Names ------------------------------------------------------------------------------------------------------------


async def test_b046_a_prefix_of_a_name_is_not_the_name(ledger: Ledger) -> None:
    ledger.add_model("acme-scribe", aliases=["acme-scribe-2025-03"])
    await ledger.add_price("acme-scribe", input="3.00", output="9.00")
    names = {
        "n1": "acme-scribe-2025-03",
        "n2": "acme-scribe-pro-2026-05",
        "n3": "acme-scribe-image-2025-07",
    }
    await ledger.post(*(named(number, name, 1_000_000, 1_000_000) for number, name in names.items()))
    assert amounts(ledger, "reported_model") == {
        "acme-scribe-2025-03": Decimal(12),
        "acme-scribe-pro-2026-05": None,
        "acme-scribe-image-2025-07": None,
    }
    assert ledger.rows("select distinct unpriced_meters from ledger.entries where cost_amount is null") == [
        (["charge:unknown_model", "cost:unknown_model"],)
    ]


async def test_b047_hosting_prefixes_and_version_suffixes_of_a_known_model_resolve(ledger: Ledger) -> None:
    await ledger.add_price("claude-x-4-6", provider="bedrock", input="5.00", output="25.00")
    await ledger.add_price("eu.anthropic.claude-x-4-6", provider="bedrock", input="5.50", output="27.50")
    hosts = (
        *(f"{region}.anthropic." for region in ("us", "eu", "apac", "au", "jp", "global")),
        "anthropic.",
        "anthropic/",
    )
    rules = (NameRule("version_suffix"), *(NameRule("prefix", host) for host in hosts))
    async with await connect(ledger.database.url_for("tallystick_operator")) as operator:
        await set_name_rules(operator, "someone", "bedrock", rules)
    names = [
        "claude-x-4-6",
        "anthropic/claude-x-4-6",
        "us.anthropic.claude-x-4-6",
        "jp.anthropic.claude-x-4-6-v1",
        "eu.anthropic.claude-x-4-6-v1:0",
        "zz.anthropic.claude-x-4-6",
        "claude-x-4-60",
    ]
    await ledger.post(*(named(name, name, 1000, 100, provider="bedrock") for name in names))
    assert amounts(ledger, "reported_model") == {
        "claude-x-4-6": Decimal("0.0075"),
        "anthropic/claude-x-4-6": Decimal("0.0075"),
        "us.anthropic.claude-x-4-6": Decimal("0.0075"),
        "jp.anthropic.claude-x-4-6-v1": Decimal("0.0075"),
        "eu.anthropic.claude-x-4-6-v1:0": Decimal("0.00825"),
        "zz.anthropic.claude-x-4-6": None,
        "claude-x-4-60": None,
    }
    assert ledger.total("cost") == Decimal("0.03825")


async def test_b048_component_names_are_matched_whole_in_every_order(ledger: Ledger) -> None:
    components = per_million(input="4.40", cached="0.44", output="22.00")
    for number, order in enumerate(permutations(components)):
        rates: dict[str, Price] = {name: components[name] for name in order}
        ledger.add_model(f"m-hosted-{number}", provider="bedrock")
        await ledger.add_card(make_card(rates, model=f"m-hosted-{number}", provider="bedrock"))
        counts = {"uncached_input_tokens": 0, "cache_read_tokens": 100_000, "visible_output_tokens": 0}
        model = f"m-hosted-{number}"
        await ledger.post(
            make_event(model, provider="bedrock", model=model, requested_model=model, quantities=counts, flavour=...)
        )
    assert ledger.rows("select distinct cost_amount, count(*) from ledger.entries group by 1") == [
        (Decimal("0.044"), 6)
    ]


# --- Billing rules ----------------------------------------------------------------------------------------------------


def claude(event_id: str, prompt: int, completion: int, **others: Any) -> dict[str, Any]:
    """An Anthropic call with these counts."""
    counts = {"input_tokens": prompt, "output_tokens": completion}
    call = {"provider": "anthropic", "flavour": "anthropic.messages", "model": "m-add", "requested_model": "m-add"}
    return make_event(event_id, **{"usage": counts, **call, **others})


async def rule_book(
    ledger: Ledger, *, provider: str = "anthropic", markup: str = "1", charge: Any = None, **rules: str
) -> None:
    """Give a provider's m-add a cost with billing rules, and a charge of cost with a markup and rules of its own."""
    ledger.add_model("m-add", provider=provider)
    rates = per_million(input="3.00", output="15.00")
    await ledger.add_card(make_card(rates, model="m-add", provider=provider, billing_rules=rules))
    card = make_card(book="charge", model=None, provider=provider, markup=Decimal(markup), billing_rules=charge or {})
    await ledger.add_card(card)


async def test_b105_a_refusal_before_any_output_is_free_where_the_provider_says_so(ledger: Ledger) -> None:
    await rule_book(ledger, refusal_before_output="free")
    await rule_book(ledger, provider="acme")
    await ledger.post(
        claude("f1", 5000, 0, stop_reason="refusal"),
        claude("f2", 5000, 40, stop_reason="refusal"),
        claude("f3", 5000, 0, stop_reason="refusal", provider="acme"),
        claude("f4", 5000, 0, status="refused"),
    )
    asked = "select request_id, cost_amount, charge_amount, input_tokens, request_count from ledger.entries order by 1"
    assert ledger.rows(asked) == [
        ("req-f1", Decimal(0), Decimal(0), 5000, 1),
        ("req-f2", Decimal("0.0156"), Decimal("0.0156"), 5000, 1),
        ("req-f3", Decimal("0.015"), Decimal("0.015"), 5000, 1),
        ("req-f4", Decimal(0), Decimal(0), 5000, 1),
    ]
    named = "select s.selectors ->> 'billing_rule' from ledger.entries as e join ledger.rate_sets as s on s.rate_set_id = {}"
    assert ledger.rows(named.format("e.cost_rate_set_id") + " where e.request_id = 'req-f1'") == [
        ("refusal_before_output",)
    ]
    assert proof(ledger) == []


async def test_b106_a_request_rejected_by_the_provider_is_counted_and_not_charged(ledger: Ledger) -> None:
    await rule_book(ledger)
    estimate = {"uncached_input_tokens": 12000}
    rejected = {"usage": ..., "status": "error", "local_estimate": estimate}
    await ledger.post(
        claude("r1", 0, 0, stop_reason="429", **rejected),
        claude("r2", 0, 0, stop_reason="400", **rejected),
        claude("r3", 12000, 100),
    )
    asked = "select request_id, charge_amount, status = 'error', reported from ledger.entries order by 1"
    assert ledger.rows(asked) == [
        ("req-r1", Decimal(0), True, {"local_estimate": estimate}),
        ("req-r2", Decimal(0), True, {"local_estimate": estimate}),
        ("req-r3", Decimal("0.0375"), False, None),
    ]
    assert ledger.total() == Decimal("0.0375")
    assert ledger.value("select sum(request_count) from ledger.entries where status = 'error'") == 2


async def test_a_disconnect_is_free_where_the_card_says_so_and_even_its_counts_may_be_missing(ledger: Ledger) -> None:
    await rule_book(ledger, disconnect="free")
    await rule_book(ledger, provider="acme", disconnect="billed")
    gone = {"status": "cancelled"}
    await ledger.post(
        claude("a", 100, 10, **gone),
        claude("b", 0, 0, **gone, usage=...),
        claude("c", 100, 10, **gone, provider="acme"),
        claude("d", 0, 0, **gone, usage=..., provider="acme"),
        claude("e", 100, 10),
    )
    asked = "select request_id, charge_amount, usage_flags from ledger.entries order by 1"
    assert ledger.rows(asked) == [
        ("req-a", Decimal(0), []),
        ("req-b", Decimal(0), ["usage_missing"]),
        ("req-c", Decimal("0.00045"), []),
        ("req-d", None, ["usage_missing"]),
        ("req-e", Decimal("0.00045"), []),
    ]
    assert proof(ledger) == []


async def test_a_call_with_the_tenants_own_key_costs_what_each_book_says(ledger: Ledger) -> None:
    """We owe the provider nothing for it, and the tenant owes us the fee alone; the same call with our key is billed."""
    await rule_book(ledger, own_key="free", charge={"fee_per_operation": "0.001"})
    ledger.superuser.execute(
        "insert into ledger.provider_accounts values ('acct-theirs', 'anthropic', 'USD', now(), 't-alpha')"
    )
    ledger.superuser.execute("insert into ledger.provider_accounts values ('acct-ours', 'anthropic', 'USD')")
    await ledger.post(
        claude("a", 100, 10, provider_account="acct-theirs"), claude("b", 100, 10, provider_account="acct-ours")
    )
    asked = "select request_id, kind, cost_amount, charge_amount, input_tokens from ledger.entries order by entry_id"
    assert ledger.rows(asked) == [
        ("req-a", "usage", Decimal(0), Decimal(0), 100),
        ("req-a", "fee", Decimal(0), Decimal("0.001"), 0),
        ("req-b", "usage", Decimal("0.00045"), Decimal("0.00045"), 100),
        ("req-b", "fee", Decimal(0), Decimal("0.001"), 0),
    ]
    assert proof(ledger) == []


async def test_an_account_that_was_taken_for_the_tenants_own_is_put_right_and_its_calls_are_charged(
    ledger: Ledger,
) -> None:
    """100 x 3.00 + 10 x 15.00 per million = 0.00045, which a wrong owner had made free; a second run adds nothing."""
    await rule_book(ledger, own_key="free")
    ledger.superuser.execute(
        "insert into ledger.provider_accounts values ('acct-1', 'anthropic', 'USD', now(), 't-alpha')"
    )
    await ledger.post(claude("a", 100, 10, provider_account="acct-1"))
    assert ledger.total() == 0
    async with await connect(ledger.database.url_for("tallystick_operator")) as operator:
        await change_provider_account(operator, "jane", "acct-1", is_ours=True, reason="it is ours")
    await ledger.post(claude("b", 100, 10, provider_account="acct-1"))
    assert ledger.total() == Decimal("0.00045")
    assert (await reprice_all(ledger)).requests == 1
    assert ledger.total() == ledger.total("cost") == Decimal("0.0009")
    assert (await reprice_all(ledger)).entries == 0
    assert proof(ledger) == []


def attempts() -> list[dict[str, Any]]:
    """An operation of three attempts, the first of which fails; a second operation; a request that names none."""
    return [
        claude("a1", 0, 0, operation_id="op-1", attempt=1, status="error", usage=...),
        claude("a2", 100, 10, operation_id="op-1", attempt=2),
        claude("a3", 100, 10, operation_id="op-1", attempt=3),
        claude("b1", 100, 10, operation_id="op-2"),
        claude("c1", 100, 10),
        # The node's report of a3 and c1: it knows the request and nothing of operations.
        *(
            claude(f"n{number}", 100, 10, source=NODE, id=f"n-{number}", request_id=f"req-{number}")
            for number in ("a3", "c1")
        ),
    ]


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("together", [True, False])
async def test_a_fee_is_booked_once_for_each_operation_whatever_the_order_and_repetition(
    ledger: Ledger, order: int, together: bool
) -> None:
    """Three operations at a fee of 0.01; four requests at 100 x 3 + 10 x 15 per million = 0.00045 each."""
    await rule_book(ledger, charge={"fee_per_operation": "0.01"})
    events = attempts()[::order]
    for _ in range(2):
        if together:
            await ledger.post(*events)
        else:
            for event in events:
                await ledger.post(event)
    assert ledger.value("select sum(charge_amount) from ledger.entries where kind = 'fee'") == Decimal("0.03")
    assert ledger.value("select count(*) from ledger.entries where kind = 'fee'") == 3
    assert ledger.rows("select distinct other_quantities, request_count from ledger.entries where kind = 'fee'") == [
        ({"operations": 1}, 0)
    ]
    assert ledger.total() == Decimal("0.0318")
    assert ledger.total("cost") == Decimal("0.0018")
    assert ledger.value("select sum(amount) from ledger.entry_lines where book = 'charge'") == Decimal("0.0318")
    assert ledger.value("select sum(request_count) from ledger.entries") == 5
    assert proof(ledger) == []


async def test_a_fee_of_the_cost_is_marked_up_and_converted_like_a_price(ledger: Ledger) -> None:
    """0.01 USD to the provider; x 1.2 x 0.9 = 0.0108 EUR to the tenant: one row for each book."""
    ledger.add_tenant("t-euro", currency="EUR")
    await rule_book(ledger, markup="1.2", fee_per_operation="0.01")
    async with await connect(ledger.database.url_for("tallystick_operator")) as operator:
        await save_exchange_rates(operator, [exchange("0.9")], "someone")
    await ledger.post(claude("a", 100, 10, tenant_id="t-euro"))
    asked = (
        "select kind, cost_amount, cost_currency, charge_amount, charge_currency from ledger.entries order by entry_id"
    )
    assert ledger.rows(asked) == [
        ("usage", Decimal("0.00045"), "USD", Decimal("0.000486"), "EUR"),
        ("fee", Decimal("0.01"), "USD", Decimal(0), "EUR"),
        ("fee", Decimal(0), "EUR", Decimal("0.0108"), "EUR"),
    ]
    assert proof(ledger) == []


async def test_what_owes_no_fee_books_none(ledger: Ledger) -> None:
    await rule_book(ledger, refusal_before_output="free", charge={"fee_per_operation": "0.01"})
    await ledger.post(
        claude("failed", 0, 0, status="error", usage=...),
        claude("refused", 100, 0, stop_reason="refusal"),
        claude("begun", 100, 1, status="in_progress"),
        claude("cached", 100, 10, cache_result="exact_hit"),
        claude("void", 0, 0, status="void", usage=...),
    )
    assert ledger.value("select count(*) from ledger.entries where kind = 'fee'") == 0
    await ledger.post(claude("ended", 100, 10, request_id="req-begun"))
    assert ledger.value("select count(*) from ledger.entries where kind = 'fee'") == 1
    assert proof(ledger) == []


# --- History and corrections ------------------------------------------------------------------------------------------


async def reprice_all(ledger: Ledger) -> Repriced:
    async with (
        await connect(ledger.database.url_for("tallystick_operator")) as operator,
        await connect(ledger.database.url_for("tallystick_writer")) as writer,
    ):
        return await reprice(operator, writer, Scope(), actor="finance@example", reason="restated")


async def test_b043_an_unknown_model_is_unpriced_until_exactly_its_name_has_a_price(ledger: Ledger) -> None:
    """Shown by every count of unpriced requests, in no sum; the price that is added later is posted by a repricing."""
    await ledger.add_price("acme-opus-4-1", provider="acme", input="15.00", output="75.00")
    await ledger.post(named("e", "acme-opus-4.1", 10_000, 1_000, provider="acme"))
    shown = "select sum(unpriced_count), sum(posted) from quotas.windows where budget_id = 'totals-charge'"
    assert ledger.rows("select charge_amount, unpriced_meters from ledger.entries") == [
        (None, ["charge:unknown_model", "cost:unknown_model"])
    ]
    assert ledger.rows(shown) == [(1, Decimal(0))]
    await ledger.add_price("acme-opus-4.1", provider="acme", input="15.00", output="75.00")
    assert (await reprice_all(ledger)).requests == 1
    assert ledger.requests("model") == {"acme-opus-4.1": (1, Decimal("0.225"))}
    assert ledger.rows(shown) == [(0, Decimal("0.225"))]
    assert proof(ledger) == []


async def test_b044_a_missing_component_price_is_not_a_zero_price(ledger: Ledger) -> None:
    rates = per_million(input="3.00", output="15.00")
    for model, policy in (("m-refuse", "refuse"), ("m-input", "use_input_rate")):
        ledger.add_model(model)
        await ledger.add_card(make_card(rates, model=model, missing_component=policy))
        counts = {
            "prompt_tokens": 50_100,
            "completion_tokens": 10,
            "total_tokens": 50_110,
            "prompt_tokens_details": {"cached_tokens": 50_000},
        }
        await ledger.post(make_event(model, model=model, requested_model=model, usage=counts))
    assert amounts(ledger, "model") == {"m-refuse": None, "m-input": Decimal("0.15045")}
    assert ledger.value("select unpriced_meters from ledger.entries where model = 'm-refuse'") == [
        "charge:no_card",
        "cost:cache_read_tokens",
    ]
    fallback = "select priced_as from ledger.entry_lines where meter = 'cache_read_tokens' and book = 'cost'"
    assert ledger.rows(fallback) == [("uncached_input_tokens",)]


async def test_b050_a_new_price_does_not_change_closed_days(ledger: Ledger) -> None:
    ledger.add_model("m-sol")
    old = make_card(per_million(input="6.00", output="24.00"), model="m-sol", effective_at="2026-01-01T00:00:00Z")
    new = make_card(per_million(input="4.50", output="18.00"), model="m-sol", effective_at="2026-05-14T00:00:00Z")
    await ledger.add_card(old)
    await ledger.add_card(make_card(book="charge", model=None, markup=Decimal(1)))
    await ledger.post(
        named("h1", "m-sol", 200_000, 10_000, time="2026-05-11T09:00:00Z"), received_at="2026-05-11T09:00:01Z"
    )
    await ledger.add_card(new)
    await ledger.post(
        named("h2", "m-sol", 200_000, 10_000, time="2026-05-15T09:00:00Z"), received_at="2026-05-15T09:00:01Z"
    )
    report = (
        "select e.request_id, e.charge_amount, s.card_hash::text from ledger.entries as e"
        " join ledger.rate_sets as s on s.rate_set_id = e.cost_rate_set_id where posting_period = '2026-05-01' order by 1"
    )
    expected = [
        ("req-h1", Decimal("1.44"), old.content_hash),
        ("req-h2", Decimal("1.08"), new.content_hash),
    ]
    assert ledger.rows(report) == expected
    # The book is read anew, and everything held against it: nothing of the past is priced otherwise.
    assert (await reprice_all(ledger)).entries == 0
    assert ledger.rows(report) == expected
    assert ledger.total() == Decimal("2.52")


async def test_b051_the_price_is_chosen_by_when_the_usage_happened_to_the_instant(ledger: Ledger) -> None:
    ledger.add_model("m-deep")
    for at, rates in (("2026-01-01", ("0.40", "0.80")), ("2026-04-09T16:30", ("1.00", "2.00"))):
        effective_at = f"{at}:00Z" if "T" in at else f"{at}T00:00:00Z"
        await ledger.add_card(
            make_card(per_million(input=rates[0], output=rates[1]), model="m-deep", effective_at=effective_at)
        )
    await ledger.post(
        named("p1", "m-deep", 10_000, 5_000, time="2026-04-09T16:29:59.999Z"), received_at="2026-04-09T16:35:00Z"
    )
    await ledger.post(
        named("p2", "m-deep", 10_000, 5_000, time="2026-04-09T16:30:00.000Z"), received_at="2026-04-09T16:30:01Z"
    )
    assert amounts(ledger, "request_id") == {"req-p1": Decimal("0.008"), "req-p2": Decimal("0.02")}


async def test_b053_restating_a_price_is_a_visible_correction_and_not_an_edit(ledger: Ledger) -> None:
    ledger.add_model("m-deep")
    first = make_card(per_million(input="0.40", output="0.80"), model="m-deep", effective_at="2026-08-01T00:00:00Z")
    second = make_card(
        per_million(input="1.00", output="2.00"),
        model="m-deep",
        effective_at="2026-08-01T00:00:00Z",
        replaces=first.content_hash,
    )
    await ledger.add_card(first)
    await ledger.post(
        named("e", "m-deep", 10_000, 5_000, time="2026-08-05T00:00:00Z"), received_at="2026-08-05T00:00:01Z"
    )
    original = ledger.rows("select * from ledger.entries")
    await ledger.add_card(second)
    assert (await reprice_all(ledger)).entries == 2
    assert ledger.rows("select * from ledger.entries where kind = 'usage'") == original
    corrected = (
        "select sum(cost_amount), count(distinct corrects_entry_id), bool_or(s.card_hash = %s::uuid) from ledger.entries as e"
        " join ledger.rate_sets as s on s.rate_set_id = e.cost_rate_set_id where kind = 'adjustment'"
    )
    assert ledger.rows(corrected, second.content_hash) == [(Decimal("0.012"), 1, True)]
    assert ledger.total("cost") == Decimal("0.02")
    assert (await reprice_all(ledger)).entries == 0
    assert ledger.total("cost") == Decimal("0.02")


# --- Bands, tiers, units and small amounts ----------------------------------------------------------------------------


def tiered(model: str, operator: Any, low: dict[str, str], high: dict[str, str], provider: str = "openai") -> Card:
    """A card with one cliff at 200,000 tokens of input."""
    bands = (band(operator, 200_000, **high),)
    return make_card(per_million(**low), model=model, provider=provider, bands=bands)


async def add(ledger: Ledger, *cards: Card) -> None:
    """Add cards with the models that they price."""
    for card in cards:
        ledger.add_model(card.model or "", provider=card.provider)
        await ledger.add_card(card)


async def test_b027_above_the_threshold_the_whole_request_moves_and_at_it_it_does_not(ledger: Ledger) -> None:
    await add(ledger, tiered("m-tier", ">", {"input": "1.25", "output": "10.00"}, {"input": "2.50", "output": "15.00"}))
    await ledger.post(*(named(f"r{prompt}", "m-tier", prompt, 1000) for prompt in (260_000, 200_000, 200_001)))
    assert amounts(ledger, "request_id") == {
        "req-r260000": Decimal("0.665"),
        "req-r200000": Decimal("0.26"),
        "req-r200001": Decimal("0.5150025"),
    }


async def test_b028_context_tiers_are_neither_marginal_nor_per_session(ledger: Ledger) -> None:
    await add(ledger, tiered("m-tier", ">", {"input": "3.00", "output": "15.00"}, {"input": "6.00", "output": "22.50"}))
    session = [named(f"s{number}", "m-tier", 90_000, 0, conversation_id="s1") for number in range(10)]
    await ledger.post(named("r1", "m-tier", 320_000, 2000), *session)
    assert amounts(ledger, "request_id")["req-r1"] == Decimal("1.965")
    assert ledger.value("select sum(cost_amount) from ledger.entries where conversation_id = 's1'") == Decimal("2.7")


async def test_b029_whether_the_threshold_itself_is_above_is_data_of_the_price(ledger: Ledger) -> None:
    low, high = (
        {"input": "1.25", "cached": "0.20", "output": "2.50"},
        {"input": "2.50", "cached": "0.40", "output": "5.00"},
    )
    await add(ledger, tiered("m-incl", ">=", low, high), tiered("m-excl", ">", low, high))
    counts = {
        "prompt_tokens": 200_000,
        "completion_tokens": 800,
        "total_tokens": 200_800,
        "prompt_tokens_details": {"cached_tokens": 120_000},
    }
    await ledger.post(*(make_event(m, model=m, requested_model=m, usage=counts) for m in ("m-incl", "m-excl")))
    assert amounts(ledger, "model") == {"m-incl": Decimal("0.252"), "m-excl": Decimal("0.126")}


async def test_b030_all_components_of_a_request_are_in_the_same_tier(ledger: Ledger) -> None:
    low = {"input": "3.00", "write_5m": "3.75", "cached": "0.30", "output": "15.00"}
    high = {"input": "6.00", "write_5m": "7.50", "cached": "0.60", "output": "22.50"}
    await add(ledger, tiered("m-add", ">", low, high, "anthropic"))
    counts = {
        "input_tokens": 205_000,
        "cache_creation_input_tokens": 7_000,
        "cache_read_input_tokens": 0,
        "output_tokens": 100,
    }
    await ledger.post(claude("e", 0, 0, usage=counts))
    assert amounts(ledger, "request_id") == {"req-e": Decimal("1.28475")}


async def test_b032_batch_usage_has_the_batch_rates(ledger: Ledger) -> None:
    """The tier that was served decides; the lane of the gateway selects no price."""
    card = make_card(
        per_million(input="2.50", output="10.00"), variants=(variant("batch", input="1.25", output="5.00"),)
    )
    await add(ledger, card)
    await ledger.post(usage("batch", 80_000, 20_000, service_tier="batch"), usage("lane", 80_000, 20_000, lane="batch"))
    assert amounts(ledger, "request_id") == {"req-batch": Decimal("0.2"), "req-lane": Decimal("0.4")}


async def test_b033_the_served_tier_sets_the_price_and_not_the_requested_one(ledger: Ledger) -> None:
    card = make_card(
        per_million(input="1.25", output="10.00"), variants=(variant("priority", input="2.50", output="20.00"),)
    )
    await add(ledger, card)
    asked = {"requested_service_tier": "priority"}
    await ledger.post(
        usage("known", 1000, 500, **asked, service_tier="default"),
        usage("missing", 1000, 500, **asked),
        usage("unheard", 1000, 500, service_tier="turbo"),
    )
    rows = "select request_id, cost_amount, requested_service_tier, service_tier, usage_flags from ledger.entries order by entry_id"
    assert ledger.rows(rows) == [
        ("req-known", Decimal("0.00625"), "priority", "default", []),
        ("req-missing", Decimal("0.0125"), "priority", "priority", ["tier_assumed"]),
        ("req-unheard", None, None, "turbo", []),
    ]


async def test_b034_batch_and_cached_rates_combine(ledger: Ledger) -> None:
    batch = variant("batch", input="1.00", cached="0.25", output="4.00")
    await add(ledger, make_card(per_million(input="2.00", cached="0.50", output="8.00"), variants=(batch,)))
    counts = {
        "prompt_tokens": 10_000,
        "completion_tokens": 1_000,
        "total_tokens": 11_000,
        "prompt_tokens_details": {"cached_tokens": 8_000},
    }
    await ledger.post(make_event("e", usage=counts, service_tier="batch"))
    assert amounts(ledger, "request_id") == {"req-e": Decimal("0.008")}


def counted(event_id: str, model: str, **quantities: int) -> dict[str, Any]:
    """A call whose counts are stated by meter."""
    return make_event(event_id, model=model, requested_model=model, quantities=quantities, flavour=...)


async def test_b040_a_tool_is_charged_per_use_and_not_per_declaration(ledger: Ledger) -> None:
    calls = {"web_search_calls": Price(Decimal("0.01"), 1)}
    await add(ledger, make_card(per_million(input="2.00", output="8.00") | calls))
    tokens = {"uncached_input_tokens": 100, "visible_output_tokens": 20}
    await ledger.post(
        counted("e1", "m-sub", **tokens, web_search_calls=0), counted("e2", "m-sub", **tokens, web_search_calls=2)
    )
    assert amounts(ledger, "request_id") == {"req-e1": Decimal("0.00036"), "req-e2": Decimal("0.02036")}


async def test_b052_a_price_without_a_unit_or_of_absurd_size_is_refused_at_load(ledger: Ledger, tmp_path: Path) -> None:
    """Row A has no unit, row B would be 2,500 USD a million; rows C and D are the same price."""

    def load(rate: str, model: str) -> list[Card]:
        path = tmp_path / "prices.yaml"
        path.write_text(
            "source: test\nchecked_on: 2026-01-01\ncards:\n"
            f"  - {{book: cost, provider: openai, model: {model}, currency: USD, effective_at: 2026-01-01T00:00:00Z,"
            f" rates: {{uncached_input_tokens: {rate}}}}}\n"
        )
        return load_contracts(path)

    with pytest.raises(CardRefused, match="takes a price and its unit"):
        load("2.50", "m-a")
    with pytest.raises(
        CardRefused, match=r"is 2\.5 USD per 1,000; above 1 USD the card must say is_high_price_confirmed"
    ):
        load("2.50 per 1000", "m-b")
    await add(ledger, *load("2.50 per 1000000", "m-c"), *load("0.0000025 per 1", "m-d"))
    await ledger.post(*(counted(model, model, uncached_input_tokens=1000) for model in ("m-b", "m-c", "m-d")))
    assert amounts(ledger, "reported_model") == {"m-b": None, "m-c": Decimal("0.0025"), "m-d": Decimal("0.0025")}


async def test_b055_sums_are_exact_decimals(ledger: Ledger) -> None:
    await add(ledger, make_card({"search_units": Price(Decimal("0.1"), 1)}, model="m-tenth"))
    await ledger.post(*(counted(f"e{number}", "m-tenth", search_units=1) for number in range(10)))
    assert ledger.total("cost") == Decimal(1)


async def test_b056_small_amounts_are_not_rounded_before_they_are_summed(ledger: Ledger) -> None:
    """A thousand of the case's million: 1,000 x 0.00000024 = 0.00024."""
    await add(ledger, make_card(per_million(input="0.02"), model="m-embed"))
    await ledger.post(*(counted(f"e{number}", "m-embed", embedding_input_tokens=12) for number in range(1000)))
    assert ledger.rows("select distinct cost_amount from ledger.entries") == [(Decimal("0.00000024"),)]
    assert ledger.rows("select local_date, sum(cost_amount) from ledger.entries group by 1") == [
        (date(2026, 1, 15), Decimal("0.00024"))
    ]


# --- A real history ---------------------------------------------------------------------------------------------------

# The versions of the map are ordered and have no dates: these are assumed.
ASSUMED = {
    "1.55.12": "2025-12-01",
    "1.67.6": "2026-01-01",
    "1.77.7": "2026-02-01",
    "1.90.7": "2026-03-01",
    "1.110.2": "2026-04-01",
}
HAIKU, FLASH = "claude-3-5-haiku-20241022", "deepseek/deepseek-v4-flash"


async def test_a_real_price_history_prices_usage_as_of_then(ledger: Ledger) -> None:
    """Five versions of a public price map as dated cards; each call is priced by the version of its day.

    Haiku: 1.00 and 5.00 per million, then 0.80 and 4.00, then dropped. Flash: 0.14 and 0.28 from the fourth version on,
    0.30 and 1.20 from the fifth.
    """
    maps = [
        (
            read_map(MAPS / f"litellm_{version}_model_prices_and_context_window.json.gz", version),
            parse_rfc3339(f"{day}T00:00:00Z"),
        )
        for version, day in ASSUMED.items()
    ]
    cards, refused = dated_cards(maps, [HAIKU, FLASH])
    assert refused == []
    ledger.add_model(HAIKU, provider="anthropic").add_model("deepseek-v4-flash", provider="deepseek")
    for card in cards:
        await ledger.add_card(card)
    days = ("2025-12-01", "2025-12-31", "2026-01-01", "2026-02-28", "2026-03-01", "2026-03-31", "2026-04-01")
    for day in days:
        time = {"time": f"{day}T12:00:00Z"}
        await ledger.post(
            claude(f"h {day}", 1000, 100, model=HAIKU, requested_model=HAIKU, **time),
            named(f"f {day}", "deepseek-v4-flash", 1000, 100, provider="deepseek", **time),
            received_at=f"{day}T12:00:01Z",
        )
    found = amounts(ledger, "request_id")
    assert [found[f"req-h {day}"] for day in days] == [
        Decimal("0.0015"),
        Decimal("0.0015"),
        Decimal("0.0012"),
        Decimal("0.0012"),
        None,
        None,
        None,
    ]
    assert [found[f"req-f {day}"] for day in days] == [
        None,
        None,
        None,
        None,
        Decimal("0.000168"),
        Decimal("0.000168"),
        Decimal("0.00042"),
    ]
    # Usage that arrives late is priced by its own day.
    late = {"time": "2025-12-31T23:59:59.999999Z", "model": HAIKU, "requested_model": HAIKU}
    await ledger.post(claude("late", 1000, 100, **late), received_at="2026-04-02T00:00:00Z")
    assert amounts(ledger, "request_id")["req-late"] == Decimal("0.0015")
    assert proof(ledger) == []
