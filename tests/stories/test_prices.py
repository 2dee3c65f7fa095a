"""Prices from bytes to ledger: names, histories, currencies, rules and corrections, each by the case that it comes from."""

from decimal import Decimal
from itertools import permutations
from typing import Any

from ledger.database import connect
from ledger.model_names import NameRule
from ledger.price_book import Price
from ledger.registry import set_name_rules
from tests.factories import make_event
from tests.ledger.prices import make_card, per_million
from tests.support.ledger import Ledger


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
