"""`tallystick margin`: charge against cost by month, naming whose cost it is."""

import asyncio
from decimal import Decimal
from typing import Any

import pytest

from ledger.database import connect
from tests.billing.support import agree
from tests.factories import NODE, make_event, make_window
from tests.support.ledger import Ledger
from tests.tallystick.commands import Commands

PLATFORM = "t-platform"
NAMES = ("tenant_id", "feature", "model", "cost_basis", "charge_amount", "cost_amount", "margin_amount")


def tokens(into: int, out: int = 0) -> dict[str, int]:
    return {"prompt_tokens": into, "completion_tokens": out, "total_tokens": into + out}


def own(event_id: str, end: str, tenant: str, into: int, out: int, model: str = "m-own") -> dict[str, Any]:
    """A report of gpu-7: a second of prefill, nine of decoding."""
    return make_event(
        event_id, source=NODE, tenant_id=tenant, provider="vllm", model=model, requested_model=..., flavour="vllm.chat",
        usage=tokens(into, out), time=f"2026-01-15T{end}Z", node_id="gpu-7", prefill_ms=1_000, decode_ms=9_000,
    )  # fmt: skip


async def _post(commands: Commands, *events: dict[str, Any]) -> None:
    ledger = Ledger(commands.database)
    try:
        ledger.add_tenant(PLATFORM).add_tenant("t-alpha").add_tenant("t-beta").add_source().add_node()
        await ledger.add_price("m-own", provider="vllm", input="1.00", output="2.00", markup="2")
        await ledger.add_price("m-sub", input="1.00", output="1.00", markup="1.25")
        await ledger.post(*events, received_at="2026-02-01T00:00:00Z")
    finally:
        ledger.close()


def cents(commands: Commands, currency: str = "USD") -> None:
    """A node of eight H100 for 36 an hour: a cent a second."""
    commands.ok(
        "nodes", "rates", "add", "H100", "8", "36", currency, "--from", "2026-01-01",
        "--source", "https://cloud.example/h100", "--checked-on", "2026-11-30",
    )  # fmt: skip


def rows(ran: Any) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in NAMES) for row in ran]


@pytest.mark.marts
def test_charge_stands_against_standard_or_actual_cost_and_idle_nodes_are_rows(commands: Commands) -> None:
    """Alpha bought 1,000,000 tokens at 1 USD and was charged 1.25. On the node two calls shared 10 s, ten cents: 9,950 and 29,850
    token-seconds, 0.025 and 0.075; they are charged twice their standard cost, 0.0024 and 0.0072. 35.90 of the hour was idle."""
    asyncio.run(
        _post(
            commands,
            make_event("a", usage=tokens(1_000_000)),
            make_event("unpriced", model="m-nobody-knows", usage=tokens(70), feature="mail"),
            make_window(
                "w-1", tenant_id=PLATFORM, provider="vllm", model="m-own",
                starts_at="2026-01-15T09:00:00Z", ends_at="2026-01-15T10:00:00Z",
            ),
            own("e-1", "09:30:10", "t-alpha", 1_000, 100),
            own("e-2", "09:30:10", "t-beta", 3_000, 300),
        )
    )  # fmt: skip
    commands.ok("rollup")
    without_rates = commands.json("margin", "2026-01", "--tenant", "t-beta")
    assert rows(without_rates) == [("t-beta", "chat", "m-own", "standard", "0.0072", "0.0036", "0.0036")]

    cents(commands)
    commands.ok("rollup")
    found = commands.json("margin", "2026-01")
    assert rows(found) == [
        ("t-alpha", "chat", "m-own", "actual", "0.0024", "0.025", "-0.0226"),
        ("t-alpha", "chat", "m-sub", "standard", "1.25", "1", "0.25"),
        ("t-alpha", "mail", "", "standard", "0", "0", None),
        ("t-beta", "chat", "m-own", "actual", "0.0072", "0.075", "-0.0678"),
        (PLATFORM, "", "m-own", "idle", "0", "35.9", "-35.9"),
    ]
    counts = ("cost_unpriced_count", "charge_unpriced_count", "usage_missing_count", "unrated_hour_count")
    assert [tuple(row[name] for name in counts) for row in found] == [
        (0, 0, 0, 0), (0, 0, 0, 0), (1, 1, 0, 0), (0, 0, 0, 0), (0, 0, 0, 0),
    ]  # fmt: skip
    # 1.25 + 0.0024 + 0.0072 charged; 1 at standard, 0.1 of the node, 35.9 idle: the node's bill is whole in it.
    whole = commands.json("margin", "2026-01", "--by", "")
    assert [(row["cost_basis"], row["charge_amount"], row["cost_amount"]) for row in whole] == [
        # What nobody could price has no cost currency.
        ("standard", "0", "0"),
        ("part actual", "1.2596", "1.1"),
        ("idle", "0", "35.9"),
    ]
    table = commands.ok("margin", "2026-01", "--by", "tenant,model").out
    assert "0.25 USD (20.0%)" in table
    assert commands.ok("margin", "2026-02").out == "nothing was used in 2026-02\n"


@pytest.mark.marts
def test_the_bills_of_nodes_are_whole_though_nothing_else_is_known(commands: Commands) -> None:
    """A model without a price held the node for 10 s, ten cents; 35.90 was idle: 36 in all. Of the hour after, no rate is known."""
    asyncio.run(
        _post(
            commands,
            make_window("w-1", tenant_id=PLATFORM, starts_at="2026-01-15T09:00:00Z", ends_at="2026-01-15T10:00:00Z"),
            make_window(
                "w-2", tenant_id=PLATFORM, gpu_count=4, starts_at="2026-01-15T10:00:00Z", ends_at="2026-01-15T11:00:00Z"
            ),
            own("e-1", "09:30:10", "t-alpha", 1_000, 100, model="m-nobody-knows"),
        )
    )
    cents(commands)
    commands.ok("rollup")
    found = commands.json("margin", "2026-01")
    assert sum(Decimal(row["cost_amount"]) for row in found) == 36
    assert sum(row["unrated_hour_count"] for row in found) == 1


@pytest.mark.marts
def test_a_node_that_is_paid_in_another_currency_leaves_no_margin_and_no_cost_of_zero(commands: Commands) -> None:
    """Charged 0.0024 USD; the node's ten cents are EUR, and nothing of the cost is in USD any more. What is billed has its standard cost."""
    asyncio.run(
        _post(
            commands,
            make_window(
                "w-1", tenant_id=PLATFORM, starts_at="2026-01-15T09:00:00Z", ends_at="2026-01-15T10:00:00Z"
            ),
            own("e-1", "09:30:10", "t-alpha", 1_000, 100),
        )
    )  # fmt: skip
    cents(commands, "EUR")
    commands.ok("rollup")
    found = commands.json("margin", "2026-01", "--tenant", "t-alpha")
    assert [(*rows([row])[0][3:], row["cost_currency"]) for row in found] == [
        ("actual", "0", "0.1", None, "EUR"),
        ("actual", "0.0024", "0", None, "USD"),
    ]
    assert commands("margin", "2026-01", "--tenant", "t-alhpa").line == "there is no tenant 't-alhpa'"
    assert rows(commands.json("margin", "2026-01", "--billed")) == [
        ("t-alpha", "chat", "m-own", "standard", "0.0024", "0.0012", "0.0012")
    ]
    assert commands.ok("margin", "2026-02", "--billed").out == "nothing was billed in 2026-02\n"


@pytest.mark.marts
def test_what_a_credit_note_took_is_of_the_month_that_it_corrects(commands: Commands) -> None:
    """January: two requests of a million tokens at 1.25 each. One is reversed and given back: January's margin has one, February's none."""
    asyncio.run(_post(commands, *(make_event(name, usage=tokens(1_000_000)) for name in ("a", "b"))))
    asyncio.run(_agreed(commands))
    commands.ok("period", "close", "t-alpha", "2026-01", "--commit")
    commands.ok("invoice", "issue", "t-alpha", "2026-01")
    commands.ok("corrections", "reverse", "t-alpha", "req-a", "--commit", "--reason", "a mistake")
    posted = commands.json("corrections", "list")
    after = commands.ok("sql", "select max(posting_period) from ledger.entries", "--format", "csv").out.split()[-1][:7]
    before = [("t-alpha", "chat", "m-sub", "standard", "2.5", "2", "0.5")]
    assert (len(posted), rows(commands.json("margin", "2026-01", "--billed"))) == (1, before)
    assert [row[4] for row in rows(commands.json("margin", after, "--billed"))] == ["-1.25"]
    commands.ok("credit-note", "usage", "NW-000001", "--reason", "a mistake")
    less = [("t-alpha", "chat", "m-sub", "standard", "1.25", "1", "0.25")]
    assert rows(commands.json("margin", "2026-01", "--billed")) == less
    assert commands.json("margin", after, "--billed") == []


async def _agreed(commands: Commands) -> None:
    async with await connect(commands.database.url_for("tallystick_operator")) as operator:
        await agree(operator)


@pytest.mark.parametrize(("given", "says"), [("colour", "--by: 'colour' is none of"), ("tenant,", None), ("", None)])
def test_what_rows_are_cut_by_is_checked(commands: Commands, given: str, says: str | None) -> None:
    ran = commands("margin", "2026-01", "--by", given)
    assert ran.line.startswith(says) if says else ran.line == "the marts are not there yet: run `tallystick rollup`"
