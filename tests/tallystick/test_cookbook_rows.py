"""Questions of the cookbook about months, budgets, prices, people and nodes: each with what was posted and its rows in sight.

A million input or output tokens are a dollar, so `spending("a", "0.30")` is 300,000 tokens in and 0.30 USD.
"""

import asyncio
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from ledger.corrections import Request, Reverse, Wanted, correct
from ledger.database import connect
from ledger.node_rates import NodeRate, save_node_rates
from ledger.price_book import Price
from ledger.times import parse_rfc3339
from quotas.terms import GroupLimit
from tallystick.rollup import run_rollup
from tests.factories import NODE, make_event, make_window
from tests.ledger.prices import make_card, per_million
from tests.quotas.support import RECEIVED, add_price, set_budget, spending
from tests.support.ledger import Ledger
from tests.tallystick.commands import Commands
from tests.tallystick.test_cookbook import ask

# The events are of fixed days, whatever the clock says.
EVER = "ago=100 years"


@pytest.fixture
def ledger(commands: Commands) -> Iterator[Ledger]:
    made = Ledger(commands.database)
    made.add_tenant().add_source().add_node()
    yield made
    made.close()


async def post(ledger: Ledger, *events: dict[str, Any]) -> None:
    posted = await ledger.post(*events, received_at=RECEIVED)
    assert {result.outcome for result in posted.results} == {"created"}, posted.results


def rolled_up(ledger: Ledger, home: Path, *select: str) -> None:
    run_rollup(ledger.database.url_for("tallystick_rollup"), home, select=select)


def only(rows: list[dict[str, Any]], *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row[column] for column in columns) for row in rows]


@pytest.mark.marts
async def test_growth_is_told_by_week_and_a_higher_month_by_tokens_and_price(
    ledger: Ledger, commands: Commands, dbt_home: Path
) -> None:
    """Weeks to 20 January: chat 0.10, then 0.30; search 0.05, then nothing. February's price is twice January's.

    Chat: 400,000 tokens for 0.40 in January, 500,000 for 1.00 in February. The 100,000 more at the old price are 0.10; the
    new price on all of them is 1.00 - 500,000 x 0.40 / 400,000 = 0.50. Search ended: all of it is volume.
    """
    await add_price(ledger)
    twice = per_million(input="2.00", output="2.00")
    await ledger.add_card(make_card(twice, model="m-sub", provider="openai", effective_at="2026-02-01T00:00:00Z"))
    await post(
        ledger,
        spending("a", "0.10", "2026-01-10T12:00:00Z"),
        spending("b", "0.30", "2026-01-15T12:00:00Z"),
        spending("c", "0.05", "2026-01-10T12:00:00Z", feature="search"),
        spending("d", "0.50", "2026-02-05T12:00:00Z"),
    )
    await asyncio.to_thread(rolled_up, ledger, dbt_home, "fct_cost_daily")

    grew = await ask(commands, "which-feature-grew", "day=2026-01-20")
    assert only(grew, "feature", "this_week", "week_before", "growth", "requests", "requests_before") == [
        ("chat", Decimal("0.3"), Decimal("0.1"), Decimal("0.2"), 1, 1),
        ("search", None, Decimal("0.05"), Decimal("-0.05"), None, 1),
    ]
    higher = await ask(commands, "why-is-it-higher", "month=2026-02-10")
    assert only(higher, "feature", "month_before", "this_month", "difference", "by_volume", "by_price") == [
        ("chat", Decimal("0.4"), 1, Decimal("0.6"), Decimal("0.1"), Decimal("0.5")),
        ("search", Decimal("0.05"), 0, Decimal("-0.05"), Decimal("-0.05"), 0),
    ]


async def test_a_changed_price_is_told_with_the_card_that_it_follows(ledger: Ledger, commands: Commands) -> None:
    await add_price(ledger)
    twice = per_million(input="2.00", output="2.00")
    await ledger.add_card(make_card(twice, model="m-sub", provider="openai", effective_at="2026-02-01T00:00:00Z"))
    newest, *older = await ask(commands, "which-price-changed", EVER)
    assert only([newest], "book", "model", "is_changed") == [("cost", "m-sub", True)]
    assert newest["effective_at"].startswith("2026-02-01")
    assert newest["follows_card_id"] in {row["card_id"] for row in older if row["book"] == "cost"}
    assert {(row["book"], row["model"], row["is_changed"]) for row in older} == {
        ("cost", "m-sub", False), ("charge", None, False),
    }  # fmt: skip


async def test_usage_after_its_month_had_closed_lands_in_the_next(ledger: Ledger, commands: Commands) -> None:
    await add_price(ledger)
    await post(ledger, spending("in time", "0.10", "2026-01-10T12:00:00Z"))
    ledger.close_period("t-alpha", date(2026, 1, 1))
    await post(ledger, spending("late", "0.30", "2026-01-15T12:00:00Z"))
    # A model that nobody knows, until the better report says which it was; and one that stays unknown.
    for number, model, is_final in ((1, "m-x", False), (2, "m-sub", True), (3, "m-x", True)):
        late_too = spending(f"late-{number}", "0.20", "2026-01-15T12:00:00Z", model=model, requested_model=model)
        late_too["data"] |= {"request_id": f"r-{number // 3}", "final": is_final}
        await ledger.post(late_too, received_at=RECEIVED)
    late = await ask(commands, "late-usage-posted", EVER)
    assert only(late, "tenant_id", "month_of_usage", "posting_period", "charge_currency", "charge_amount", "requests", "unpriced") == [
        ("t-alpha", "2026-01-01", "2026-02-01", "USD", Decimal("0.5"), 3, 1)
    ]  # fmt: skip


async def test_a_budget_at_85_percent_is_nearly_exhausted_and_one_at_8_is_not(
    ledger: Ledger, commands: Commands
) -> None:
    """0.85 of 1.00, for ever; of 10.00 by model; of the 0.90 that search has for itself of a budget by features; and on an old day, whose window
    is in force no more."""
    await add_price(ledger)
    own = [GroupLimit(group={"feature": "search"}, limit=Decimal("0.90"))]
    await set_budget(ledger, budget_id="small", window="lifetime", feature="chat", limit="1.00")
    await set_budget(ledger, budget_id="large", window="lifetime", model="m-sub", limit="10.00")
    await set_budget(
        ledger, budget_id="by feature", window="lifetime", group_by=("feature",), limit="10.00", group_limits=own
    )
    await set_budget(ledger, budget_id="by day", window="day", limit="1.00", since=date(2026, 3, 1))
    await post(ledger, spending("a", "0.85"), spending("b", "0.85", feature="search"))
    full = await ask(commands, "budgets-nearly-exhausted")
    listed = (
        "tenant_id",
        "budget_id",
        "group_key",
        "window_start",
        "limit_amount",
        "posted",
        "remaining",
        "share_used",
    )
    assert only(full, *listed) == [
        (
            "t-alpha", "by feature", '["search"]', "0001-01-01", Decimal("0.9"), Decimal("0.85"), Decimal("0.05"),
            Decimal("0.9444"),
        ),
        ("t-alpha", "small", "", "0001-01-01", 1, Decimal("0.85"), Decimal("0.15"), Decimal("0.85")),
    ]  # fmt: skip


async def test_the_window_in_force_is_that_of_the_tenants_day(ledger: Ledger, commands: Commands) -> None:
    """0.85 of a day's 1.00, now: in Kathmandu and in Apia it is another day for much of each day."""
    await add_price(ledger)
    for tenant_id, zone in (
        ("t-early", "Pacific/Apia"),
        ("t-nepal", "Asia/Kathmandu"),
        ("t-late", "Pacific/Pago_Pago"),
    ):
        first = datetime.now(UTC).date().replace(day=1) - timedelta(days=31)
        ledger.add_tenant(tenant_id, zone=zone, first_period=first.replace(day=1), months=4)
        await set_budget(
            ledger, budget_id=tenant_id, window="day", tenant_id=tenant_id, limit="1.00",
            now=datetime.now(UTC).isoformat(),
        )  # fmt: skip
    now = datetime.now(UTC).isoformat()
    events = [spending(each, "0.85", now, tenant_id=each) for each in ("t-early", "t-late", "t-nepal")]
    await ledger.post(*events, received_at=now)
    full = await ask(commands, "budgets-nearly-exhausted")
    assert only(full, "tenant_id", "remaining") == [
        (each, Decimal("0.15")) for each in ("t-early", "t-late", "t-nepal")
    ]


async def test_causes_come_to_what_a_budget_is_above_its_limit(ledger: Ledger, commands: Commands) -> None:
    """1.25 spent in March without a reservation, of 1.00; then 0.20 above by a lower limit of 0.80."""
    await add_price(ledger)
    await set_budget(ledger, limit="1.00")
    await post(ledger, spending("a", "1.25"))
    await set_budget(ledger, limit="0.80")
    over = await ask(commands, "overruns-by-cause", EVER)
    assert only(over, "budget_id", "window_start", "cause", "excess", "movements") == [
        ("b", "2026-03-01", "unreserved", Decimal("0.25"), 1),
        ("b", "2026-03-01", "limit", Decimal("0.2"), 1),
    ]


@pytest.mark.marts
async def test_what_is_paid_without_tokens_is_neither_volume_nor_price_and_what_has_no_price_is_counted(
    ledger: Ledger, commands: Commands, dbt_home: Path
) -> None:
    """Ten images in January at 0.04, ten in February at 0.08: 0.40 more, of which tokens say nothing. A continuation reads 100,000
    again, which is 0.10; the 10,000 that it writes are new. 60 cached tokens have a price and 40 of m-x have none."""
    await ledger.add_price(input="1.00", output="1.00", cached="0.50")
    ledger.add_model("m-image").add_model("m-x")
    for price, since in (("0.04", "2020-01-01T00:00:00Z"), ("0.08", "2026-02-01T00:00:00Z")):
        await ledger.add_card(make_card({"images": Price(Decimal(price), 1)}, model="m-image", effective_at=since))
    image = {"model": "m-image", "requested_model": "m-image", "quantities": {"images": 10}}
    await post(
        ledger,
        make_event("i-1", time="2026-01-10T12:00:00Z", **image),
        make_event("i-2", time="2026-02-10T12:00:00Z", **image),
        make_event(
            "c", attempt_kind="continuation",
            quantities={"uncached_input_tokens": 100_000, "visible_output_tokens": 7_000, "reasoning_tokens": 3_000},
        ),
        make_event("k", quantities={"cache_read_tokens": 60}),
        make_event("x", model="m-x", requested_model="m-x", quantities={"cache_read_tokens": 40}),
    )  # fmt: skip
    await asyncio.to_thread(rolled_up, ledger, dbt_home, "fct_cost_daily", "fct_meters_daily")
    higher = await ask(commands, "why-is-it-higher", "month=2026-02-10")
    assert only(higher, "model", "difference", "by_volume", "by_price", "unpriced") == [
        ("m-image", Decimal("0.4"), None, None, 0),
        ("m-sub", Decimal("-0.11003"), Decimal("-0.11003"), 0, 0),
        ("m-x", 0, 0, 0, 1),
    ]
    [again] = await ask(commands, "retries-paid", EVER)
    assert only([again], "attempt_kind", "requests", "charge_amount", "input_tokens_again") == [
        ("continuation", 1, Decimal("0.1"), 100_000)
    ]
    saved = await ask(commands, "what-caching-saved", EVER)
    assert only(saved, "model", "cached_tokens", "saved", "unpriced_tokens") == [
        ("m-sub", 60, Decimal("0.00003"), 0),
        ("m-x", 40, None, 40),
    ]


@pytest.mark.marts
async def test_idle_time_of_a_node_and_what_an_api_had_cost_are_told_in_money(
    ledger: Ledger, commands: Commands, dbt_home: Path
) -> None:
    """36 USD an hour, a cent a second: an hour with a call of 10 s leaves 3,590 s and 35.90 idle. gpu-8 has no rate.

    The API lists 10.00 and 20.00 a million: 0.01 + 0.002 for the call's 1,100 tokens, so 3,000 times as many break even.
    """
    await ledger.add_price("llama-3.3-70b", provider="vllm", input="1.00", output="2.00")
    await ledger.add_price("llama-3.3-70b-versatile", provider="groq", input="10.00", output="20.00")
    rate = NodeRate(
        gpu_model="H100", gpu_count=8, hourly_price=Decimal(36), currency="USD",
        effective_at=parse_rfc3339("2026-01-01T00:00:00Z"), source_address="https://cloud.example/h100",
        checked_on=date(2026, 11, 30),
    )  # fmt: skip
    async with await connect(ledger.database.url_for("tallystick_operator")) as operator:
        await save_node_rates(operator, [rate], "ada")
    hour = {"starts_at": "2026-01-15T09:00:00Z", "ends_at": "2026-01-15T10:00:00Z"}
    call = make_event(
        "e", source=NODE, provider="vllm", model="llama-3.3-70b", requested_model=..., flavour="vllm.chat",
        node_id="gpu-7",
        usage={"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}, time="2026-01-15T09:30:10Z",
        prefill_ms=1_000, decode_ms=9_000,
    )  # fmt: skip
    await post(
        ledger,
        make_window("w-7", **hour),
        make_window("w-8", node_id="gpu-8", gpu_model="L4", gpu_count=1, **hour),
        call,
    )
    await asyncio.to_thread(rolled_up, ledger, dbt_home, "fct_gpu_allocation_hourly")
    idle = await ask(commands, "nodes-without-work", EVER)
    assert only(idle, "node_id", "currency", "windows", "covered_hours", "bill_amount", "idle_amount") == [
        ("gpu-7", "USD", 1, 1, 36, Decimal("35.9")),
        ("gpu-8", "", 1, 1, None, None),
    ]
    assert only(idle, "idle_hours", "hours_without_rate") == [(Decimal("1.00"), 0), (1, 1)]

    held = await ask(commands, "own-nodes-or-the-api", EVER, "model=llama-3.3-70b")
    assert only(
        held, "offer_provider", "node_amount", "list_amount", "break_even_ratio", "tokens", "break_even_tokens"
    ) == [("groq", 36, Decimal("0.012"), 3000, 1100, 3_300_000)]


async def test_a_correction_names_who_made_it_and_why(ledger: Ledger, commands: Commands) -> None:
    await add_price(ledger)
    await post(ledger, spending("a", "0.30"), spending("b", "0.10"))
    async with await connect(ledger.database.url_for("tallystick_writer")) as writer:
        for request_id, reason in (("req-a", "sent by mistake"), ("req-b", "a test")):
            await correct(writer, Wanted(Reverse(Request("t-alpha", request_id))), actor="ada", reason=reason)
    made = await ask(commands, "who-approved")
    assert only(made, "request_id", "kind", "actor", "second_person", "reason", "entry_count") == [
        ("req-b", "reverse", "ada", None, "a test", 1),
        ("req-a", "reverse", "ada", None, "sent by mistake", 1),
    ]
    assert only(await ask(commands, "who-approved", "request=req-a"), "reason") == [("sent by mistake",)]


async def test_gateway_and_node_that_differ_are_counted_by_pair(ledger: Ledger, commands: Commands) -> None:
    """The node says 90 tokens of r-1 where the gateway said 100; both say the same of r-2."""
    await add_price(ledger)
    usage = {"prompt_tokens": 90, "completion_tokens": 10, "total_tokens": 100}
    await post(
        ledger,
        make_event("g-1", request_id="r-1"),
        make_event("g-2", request_id="r-2"),
    )
    await ledger.post(
        make_event("n-1", source=NODE, request_id="r-1", usage=usage),
        make_event("n-2", source=NODE, request_id="r-2"),
        received_at=RECEIVED,
    )
    pairs = await ask(commands, "gateway-against-node", EVER)
    assert only(pairs, "tenant_id", "stood_source", "said_source", "pairs", "charge_apart", "charge_currency") == [
        ("t-alpha", "gateway://eu-1", "node://gpu-7", 1, Decimal("-0.00001"), "USD")
    ]
