"""Prices from bytes to ledger: names, histories, currencies, rules and corrections, each by the case that it comes from."""

from decimal import Decimal
from itertools import permutations
from typing import Any

import pytest

from ledger.database import connect
from ledger.model_names import NameRule
from ledger.price_book import Price
from ledger.price_store import save_exchange_rates
from ledger.registry import set_name_rules
from tallystick.verify import verify
from tests.factories import NODE, make_event
from tests.ledger.prices import exchange, make_card, per_million
from tests.support.ledger import Ledger


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
