"""Statements: however many reports speak of a request, in whatever order, it is charged as its best one says."""

from collections.abc import Iterable
from datetime import date
from decimal import Decimal
from itertools import pairwise, permutations
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ingest.usage_events import Speaker
from ledger.posting import STANDING, Rows, first_month
from ledger.times import micros
from tallystick.verify import verify
from tests.factories import GATEWAY, NODE, make_event
from tests.ledger.prices import make_card, per_million
from tests.support.ledger import Ledger
from tests.support.soak import examples


def anthropic(event_id: str, input_tokens: int, output_tokens: int, **overrides: Any) -> dict[str, Any]:
    return make_event(
        event_id,
        **{
            "provider": "anthropic",
            "model": "m-add",
            "requested_model": "m-add",
            "flavour": "anthropic.messages",
            "usage": {"input_tokens": input_tokens, "output_tokens": output_tokens},
            **overrides,
        },
    )


def vllm(event_id: str, input_tokens: int, output_tokens: int, cached: int | None = None, **overrides: Any) -> Any:
    usage: dict[str, Any] = {"prompt_tokens": input_tokens, "completion_tokens": output_tokens}
    usage["total_tokens"] = input_tokens + output_tokens
    if cached is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
    return make_event(
        event_id,
        **{
            "provider": "vllm",
            "model": "m-vllm",
            "requested_model": "m-vllm",
            "flavour": "vllm.chat",
            "usage": usage,
            **overrides,
        },
    )


def openai(event_id: str, input_tokens: int, output_tokens: int, **overrides: Any) -> dict[str, Any]:
    usage = {"prompt_tokens": input_tokens, "completion_tokens": output_tokens}
    return make_event(event_id, **{"usage": {**usage, "total_tokens": input_tokens + output_tokens}, **overrides})


async def post_each(ledger: Ledger, events: Iterable[dict[str, Any]]) -> list[str]:
    """Post each event as a batch of its own."""
    return [outcome for event in events for outcome in ledger.outcomes(await ledger.post(event))]


def amounts(ledger: Ledger) -> list[Decimal | None]:
    """What each row of the ledger moved, evidence left out."""
    rows = ledger.rows("select charge_amount from ledger.entries where kind <> 'evidence' order by entry_id")
    return [amount for (amount,) in rows]


def holds(ledger: Ledger, request_id: str, amount: str | None, requests: int = 1) -> None:
    """The request folds to an amount and a count, and the budgets hold what the ledger folds to."""
    assert ledger.requests("request_id") == {request_id: (requests, None if amount is None else Decimal(amount))}
    assert ledger.budgets_that_differ() == []


# --- Snapshots and recoveries -------------------------------------------------------------------------------------------


async def test_b014_a_stream_without_usage_is_missing_and_not_zero(ledger: Ledger) -> None:
    """(500 + 120) x 0.20 / 1,000,000 = 0.000124."""
    await ledger.add_price("m-vllm", provider="vllm", input="0.20", output="0.20")
    await ledger.post(vllm("ev-1", 0, 0, usage=None, request_id="req-9"))
    assert ledger.rows("select usage_flags, charge_amount, input_tokens from ledger.entries") == [
        (["usage_missing"], None, None)
    ]
    assert ledger.value("select unpriced_count from quotas.windows where budget_id = 'totals-charge'") == 1
    await ledger.post(vllm("ev-2", 500, 120, request_id="req-9"))
    holds(ledger, "req-9", "0.000124")
    missing = "select coalesce(sum(request_count), 0) from ledger.entries where 'usage_missing' = any (usage_flags)"
    assert ledger.value(missing) == 0
    assert ledger.value("select unpriced_count from quotas.windows where budget_id = 'totals-charge'") == 0


async def test_b014_usage_that_came_first_is_not_undone_by_a_report_without(ledger: Ledger) -> None:
    """(500 + 120) x 0.20 / 1,000,000 = 0.000124."""
    await ledger.add_price("m-vllm", provider="vllm", input="0.20", output="0.20")
    outcomes = await post_each(
        ledger, [vllm("ev-2", 500, 120, request_id="req-9"), vllm("ev-1", 0, 0, usage=None, request_id="req-9")]
    )
    assert outcomes == ["created", "evidence"]
    holds(ledger, "req-9", "0.000124")


def snapshots(request_id: str) -> list[dict[str, Any]]:
    return [
        anthropic(f"{request_id}#1", 900, 1, request_id=request_id, sequence=1, final=False),
        anthropic(f"{request_id}#2", 900, 35, request_id=request_id, sequence=2, revision=1, final=False),
        anthropic(f"{request_id}#3", 900, 412, request_id=request_id, sequence=3, revision=2, final=True),
    ]


@pytest.mark.parametrize("in_one_batch", [True, False])
async def test_b015_of_several_snapshots_the_final_one_counts(ledger: Ledger, in_one_batch: bool) -> None:
    """900 x 3.00 / 1,000,000 + 412 x 15.00 / 1,000,000 = 0.00888, in each order, with the middle one sent twice."""
    await ledger.add_price("m-add", provider="anthropic", input="3.00", output="15.00")
    expected = {}
    for order in permutations(range(3)):
        request_id = f"msg-{order}"
        stated = snapshots(request_id)
        events = [stated[number] for number in (*order, 1)]
        if in_one_batch:
            outcomes = ledger.outcomes(await ledger.post(*events))
        else:
            outcomes = await post_each(ledger, events)
        assert outcomes[3] == "duplicate"
        expected[request_id] = (1, Decimal("0.00888"))
    assert ledger.requests("request_id") == expected
    assert ledger.budgets_that_differ() == []


async def test_b018_the_correcting_amount_is_the_difference(ledger: Ledger) -> None:
    """640 x 2 + 95 x 8 = 2,040 and 640 x 2 + 410 x 8 = 4,560 millionths; 0.00456 - 0.00204 = 0.00252."""
    await ledger.add_price(input="2.00", output="8.00")
    await ledger.post(openai("ev-1", 640, 95, request_id="req-5", status="cancelled", basis="estimated"))
    assert ledger.requests("basis") == {"estimated": (1, Decimal("0.00204"))}
    await ledger.post(openai("ev-2", 640, 410, request_id="req-5", status="cancelled"))
    holds(ledger, "req-5", "0.00456")
    assert ledger.requests("basis") == {"reported": (1, Decimal("0.00456"))}
    # The basis is a column of text, so that what was estimated goes and what is reported comes: 0.00456 - 0.00204.
    assert amounts(ledger) == [Decimal("0.00204"), Decimal("0.00456"), Decimal("-0.00204")]
    assert ledger.value("select sum(charge_amount) from ledger.entries where kind = 'true_up'") == Decimal("0.00252")


async def test_b019_interim_usage_is_provisional_and_a_true_up_may_lower_it(ledger: Ledger) -> None:
    """8000 x 0.50 + 40 x 1.50 = 4,060; 320 x 0.50 + 7680 x 0.05 + 40 x 1.50 = 604; 604 - 4,060 = -3,456 millionths."""
    await ledger.add_price("m-vllm", provider="vllm", input="0.50", cached="0.05", output="1.50")
    await ledger.post(vllm("ev-1", 8000, 40, request_id="req-6", status="cancelled", final=False))
    assert ledger.rows("select is_final, charge_amount from ledger.entries") == [(False, Decimal("0.00406"))]
    await ledger.post(vllm("ev-2", 8000, 40, 7680, request_id="req-6", status="cancelled"))
    holds(ledger, "req-6", "0.000604")
    assert ledger.value("select sum(charge_amount) from ledger.entries where kind = 'true_up'") == Decimal("-0.003456")


# --- Several layers -----------------------------------------------------------------------------------------------------


async def test_b021_one_call_logged_by_two_layers_is_one_charge(ledger: Ledger) -> None:
    """1000 x 3.00 / 1,000,000 + 200 x 15.00 / 1,000,000 = 0.006; two of them would be 0.012."""
    await ledger.add_price("m-add", provider="anthropic", input="3.00", output="15.00")
    outer = anthropic("log-outer", 1000, 200, request_id="up-81", response_id="resp-81")
    inner = anthropic("log-inner", 1000, 200, request_id="up-81", response_id="resp-81")
    assert await post_each(ledger, [outer, inner]) == ["created", "evidence"]
    holds(ledger, "up-81", "0.006")
    (reported,) = ledger.rows("select reported from ledger.entries where kind = 'evidence'")
    assert reported[0]["quantities"] == {"uncached_input_tokens": 1000, "visible_output_tokens": 200}
    assert reported[0]["charge_amount"] == "0.006000"


@pytest.mark.parametrize("in_one_batch", [False, True])
async def test_b023_reading_a_stored_response_again_costs_nothing(ledger: Ledger, in_one_batch: bool) -> None:
    """140 x 1.25 / 1,000,000 + 360 x 10.00 / 1,000,000 = 0.003775; each read charged would be 0.011325."""
    await ledger.add_price(input="1.25", output="10.00")
    created, read, again = (openai(f"ev-{number}", 140, 360, request_id="resp-7") for number in (1, 2, 3))
    if in_one_batch:
        outcomes = ledger.outcomes(await ledger.post(created, read, again))
    else:
        outcomes = await post_each(ledger, [created, read, again])
    assert outcomes == ["created", "evidence", "evidence"]
    assert ledger.value("select count(*) from ledger.entries") == 3, "each read is kept"
    holds(ledger, "resp-7", "0.003775")


@pytest.mark.parametrize("in_one_batch", [False, True])
async def test_b024_gateway_and_node_are_one_charge_in_either_order(ledger: Ledger, in_one_batch: bool) -> None:
    """2000 x 0.50 / 1,000,000 + 500 x 1.50 / 1,000,000 = 0.00175: the gateway ranks above the node, right or wrong."""
    await ledger.add_price("m-vllm", provider="vllm", input="0.50", output="1.50")
    expected = {}
    for node_first in (True, False):
        for node_output in (500, 510):
            request_id = f"req-77-{node_first}-{node_output}"
            gateway = vllm(f"gw-{request_id}", 2000, 500, request_id=request_id)
            node = vllm(f"no-{request_id}", 2000, node_output, request_id=request_id, source=NODE, feature=...)
            events = [node, gateway] if node_first else [gateway, node]
            if in_one_batch:
                await ledger.post(*events)
            else:
                await post_each(ledger, events)
            expected[request_id, GATEWAY, "chat"] = (1, Decimal("0.00175"))
    assert ledger.requests("request_id", "source", "feature") == expected
    assert ledger.budgets_that_differ() == []
    # Pairs that differ are reported, with 510 - 500 = 10 output tokens between their sides; pairs that agree are not.
    assert ledger.rows(
        "select request_id, abs((said_quantities ->> 'visible_output_tokens')::bigint"
        " - (stood_quantities ->> 'visible_output_tokens')::bigint) from ledger.statements_that_differ order by 1"
    ) == [("req-77-False-510", 10), ("req-77-True-510", 10)]


async def test_attributes_that_only_the_gateway_knows_move_with_the_money(ledger: Ledger) -> None:
    """100 x 2.00 / 1,000,000 + 10 x 8.00 / 1,000,000 = 0.00028 leaves no feature and comes to chat; nothing else moves."""
    await ledger.add_price(input="2.00", output="8.00")
    node = openai(
        "n", 100, 10, request_id="r", source=NODE, node_id="gpu-7", feature=..., language=..., tags={"a": "b"}
    )
    await post_each(ledger, [node, openai("g", 100, 10, request_id="r", tags={"team": "x"}, user_hash="u1")])
    assert ledger.requests("feature", "language", "node_id", "tags::text") == {
        ("chat", "en", None, '{"team": "x"}'): (1, Decimal("0.00028"))
    }
    assert ledger.value("select sum(input_tokens) from ledger.entries where subject_id is null") == 0
    assert ledger.rows(
        "select entry_no, request_count, corrects_entry_id is null from ledger.entries order by 3, 1"
    ) == [
        (0, 1, False),
        (1, -1, False),
        (0, 1, True),
    ]


async def test_a_better_statement_that_says_the_same_writes_one_row_without_effect(ledger: Ledger) -> None:
    """100 x 2.00 / 1,000,000 + 10 x 8.00 / 1,000,000 = 0.00028, and then 0."""
    await ledger.add_price(input="2.00", output="8.00")
    await post_each(ledger, [openai("a", 100, 10, request_id="r"), openai("b", 100, 10, request_id="r", revision=1)])
    assert amounts(ledger) == [Decimal("0.00028"), Decimal(0)]
    assert ledger.rows("select rank from ledger.requests") == [([0, 1, 1, 1, 20, 1],)]
    holds(ledger, "r", "0.00028")


async def test_a_model_that_was_corrected_takes_the_other_price(ledger: Ledger) -> None:
    """m-sub: 100 x 2 + 10 x 8 = 280; m-big: 100 x 10 + 10 x 50 = 1,500 millionths."""
    await ledger.add_price(input="2.00", output="8.00")
    await ledger.add_price("m-big", input="10.00", output="50.00")
    await post_each(
        ledger,
        [openai("a", 100, 10, request_id="r"), openai("b", 100, 10, request_id="r", revision=1, model="m-big")],
    )
    assert ledger.requests("model") == {"m-big": (1, Decimal("0.0015"))}
    holds(ledger, "r", "0.0015")


async def test_the_first_entry_dates_the_price(ledger: Ledger) -> None:
    """The node's clock says January, the gateway's February: 100 x 2.00 / 1,000,000 = 0.0002 at January's price."""
    await ledger.add_price(input="2.00", output="8.00")
    await ledger.add_card(make_card(per_million(input="3.00", output="8.00"), effective_at="2026-02-01T00:00:00Z"))
    node = openai("n", 50, 0, request_id="r", source=NODE, time="2026-01-31T23:59:59.9Z")
    await ledger.post(node, received_at="2026-02-01T00:01:00Z")
    await ledger.post(
        openai("g", 100, 0, request_id="r", time="2026-02-01T00:00:00.1Z"), received_at="2026-02-01T00:01:00Z"
    )
    holds(ledger, "r", "0.0002")
    assert ledger.rows(
        "select distinct to_char(occurred_at, 'MM-DD'), local_date, posting_period from ledger.entries"
    ) == [("01-31", date(2026, 1, 31), date(2026, 1, 1))]


async def test_a_merge_that_was_recorded_late_moves_the_request_and_not_its_days(ledger: Ledger) -> None:
    """Alpha in UTC pays first; then it turns out to be beta's, whose day in Auckland is the next: each day folds to its own.

    100 x 2.00 / 1,000,000 + 10 x 8.00 / 1,000,000 = 0.00028.
    """
    await ledger.add_price(input="2.00", output="8.00")
    ledger.add_tenant("t-beta", zone="Pacific/Auckland")
    at = "2026-01-31T11:30:00Z"
    await ledger.post(openai("n", 100, 10, request_id="r", source=NODE, time=at), received_at="2026-02-01T00:00:00Z")
    ledger.superuser.execute(
        "update ledger.tenants set merged_into = 't-beta', merged_at = '2026-01-01' where tenant_id = 't-alpha'"
    )
    ledger.close_period("t-beta", date(2026, 1, 1)).close_period("t-beta", date(2026, 2, 1)).add_tenant("t-other")
    await ledger.post(openai("g", 100, 10, request_id="r", time=at), received_at="2026-02-01T00:00:00Z")
    assert ledger.requests("tenant_id", "local_date") == {("t-beta", date(2026, 2, 1)): (1, Decimal("0.00028"))}
    assert ledger.rows("select tenant_id, posting_period, charge_amount from ledger.entries order by entry_id") == [
        ("t-alpha", date(2026, 1, 1), Decimal("0.00028")),
        ("t-beta", date(2026, 3, 1), Decimal("0.00028")),
        ("t-alpha", date(2026, 1, 1), Decimal("-0.00028")),
    ]
    holds(ledger, "r", "0.00028")


async def test_what_stands_is_found_by_index_before_there_are_statistics(ledger: Ledger) -> None:
    """In a month that nobody has analysed yet, each row of it would be held against each request: seconds for a batch."""
    await ledger.add_price(input="2.00", output="8.00")
    ledger.superuser.execute("alter table ledger.entries_2026_01 set (autovacuum_enabled = false)")
    await ledger.post(*(openai(f"n{n}", 100, 10, request_id=f"r{n}", source=NODE) for n in range(3000)))
    firsts = [entry_id for (entry_id,) in ledger.rows("select entry_id from ledger.entries")]
    months = [date(2026, 1, 1)] * 3000
    asked = {"periods": months, "firsts": firsts, "counts": [1] * 3000, "months": months}
    plan = [line for (line,) in ledger.superuser.execute(f"explain {STANDING}", asked)]
    assert not [line for line in plan if "Hash" in line or "Seq Scan on entries_2026_01" in line]
    assert [line for line in plan if "entries_2026_01_pkey" in line]


async def test_what_stands_is_not_looked_for_before_its_month(ledger: Ledger) -> None:
    """A ledger of 19 months: of a request of May 2027 only that month, the last, is read; of one of April two are."""
    read = {}
    for number, at in enumerate(("2027-05-15T10:00:00Z", "2027-05-01T00:00:00Z", "2025-12-01T12:00:00Z")):
        await ledger.post(openai(f"n{number}", 100, 10, request_id=at, time=at), received_at=at)
        (row,) = ledger.rows(
            "select posting_period, entry_id, entry_count, occurred_at from ledger.requests order by entry_id desc limit 1"
        )
        rows = Rows(row[0], row[1], row[2], micros(row[3]))
        asked = {
            "periods": [rows.posting_period],
            "firsts": [rows.entry_id],
            "counts": [rows.entry_count],
            "months": [first_month(rows.occurred_at)],
        }
        plan = [line for (line,) in ledger.superuser.execute(f"explain (analyze, costs off) {STANDING}", asked)]
        looked = [line for line in plan if "corrects_entry_id" in line and "Index Scan" in line]
        read[at] = len([line for line in looked if "never executed" not in line])
    months_there = ledger.value("select count(*) from pg_inherits where inhparent = 'ledger.entries'::regclass")
    after_may = ledger.value(
        "select count(*) from pg_inherits as i join pg_class as c on c.oid = i.inhrelid"
        " where i.inhparent = 'ledger.entries'::regclass and c.relname > 'entries_2027_05'"
    )
    assert read == {
        "2027-05-15T10:00:00Z": 1 + after_may,
        # At midnight in UTC it is April in the zones behind it.
        "2027-05-01T00:00:00Z": 2 + after_may,
        "2025-12-01T12:00:00Z": months_there,
    }


# --- Voids and lower counts ---------------------------------------------------------------------------------------------


async def test_a_void_of_a_final_report_is_proposed_and_moves_nothing(ledger: Ledger) -> None:
    """100 x 2.00 / 1,000,000 + 10 x 8.00 / 1,000,000 = 0.00028 stands until a person accepts."""
    await ledger.add_price(input="2.00", output="8.00")
    await ledger.post(openai("a", 100, 10, request_id="r"))
    posted = await ledger.post(openai("b", 0, 0, request_id="r", status="void", revision=1, usage=...))
    assert [(result.outcome, result.reason) for result in posted.results] == [("evidence", "proposed")]
    assert ledger.rows("select usage_flags from ledger.entries where kind = 'evidence'") == [(["proposed"],)]
    holds(ledger, "r", "0.00028")


async def test_a_void_from_a_source_that_ranks_above_counts(ledger: Ledger) -> None:
    await ledger.add_price(input="2.00", output="8.00")
    await ledger.post(openai("a", 100, 10, request_id="r", source=NODE))
    assert await post_each(ledger, [openai("b", 0, 0, request_id="r", status="void", usage=...)]) == ["created"]
    assert ledger.requests("request_id") == {}, "a request that was never made does not count"
    assert ledger.rows(
        "select status, request_count, charge_amount from ledger.entries where kind = 'true_up' order by 1"
    ) == [("ok", -1, Decimal("-0.00028")), ("void", 0, Decimal(0))]
    assert ledger.budgets_that_differ() == []


async def test_a_void_of_an_estimate_counts(ledger: Ledger) -> None:
    await ledger.add_price(input="2.00", output="8.00")
    await ledger.post(openai("a", 100, 10, request_id="r", basis="estimated"))
    assert await post_each(ledger, [openai("b", 0, 0, request_id="r", status="void", usage=...)]) == ["created"]
    assert ledger.requests("request_id") == {}
    assert ledger.budgets_that_differ() == []


@pytest.mark.parametrize("unit", ["requests", "total_tokens", "charge"])
async def test_a_void_gives_back_what_a_budget_counted(ledger: Ledger, unit: str) -> None:
    """One request of 110 tokens and 0.00028, then none; a better report counts it again."""
    await ledger.add_price(input="2.00", output="8.00")
    ledger.superuser.execute(
        "insert into quotas.budgets (budget_id, tenant_id, unit, currency, window_kind, first_window, hardness)"
        " values ('b', 't-alpha', %s, %s, 'month', '2026-01-01', 'soft')",
        [unit, "USD" if unit == "charge" else None],
    )
    posted = "select posted from quotas.windows where budget_id = 'b'"
    await ledger.post(openai("a", 100, 10, request_id="r", source=NODE, final=False))
    counted = {"requests": Decimal(1), "total_tokens": Decimal(110), "charge": Decimal("0.00028")}[unit]
    assert ledger.value(posted) == counted
    await ledger.post(openai("b", 0, 0, request_id="r", status="void", usage=..., final=False))
    assert ledger.value(posted) == 0
    await ledger.post(openai("c", 100, 10, request_id="r"))
    assert ledger.value(posted) == counted
    assert ledger.budgets_that_differ() == []
    assert verify(ledger.database.url_for("tallystick_operator")).failures == []


async def test_a_void_that_comes_first_counts_nothing_until_a_better_report(ledger: Ledger) -> None:
    """100 x 2.00 / 1,000,000 + 10 x 8.00 / 1,000,000 = 0.00028; the void from the node ranks below the gateway."""
    await ledger.add_price(input="2.00", output="8.00")
    await ledger.post(openai("v", 0, 0, request_id="r", source=NODE, status="void", usage=...))
    assert ledger.rows("select kind, status, request_count, charge_amount from ledger.entries") == [
        ("usage", "void", 0, Decimal(0))
    ]
    assert verify(ledger.database.url_for("tallystick_operator")).failures == []
    assert await post_each(ledger, [openai("a", 100, 10, request_id="r")]) == ["created"]
    holds(ledger, "r", "0.00028")
    assert verify(ledger.database.url_for("tallystick_operator")).failures == []


@pytest.mark.parametrize(("input_tokens", "output_tokens"), [(99, 10), (100, 9), (500, 9)])
async def test_a_lower_count_of_a_final_report_is_proposed(
    ledger: Ledger, input_tokens: int, output_tokens: int
) -> None:
    """Lower on one side is lower; 100 x 2.00 / 1,000,000 + 10 x 8.00 / 1,000,000 = 0.00028 stands."""
    await ledger.add_price(input="2.00", output="8.00")
    await ledger.post(openai("a", 100, 10, request_id="r"))
    posted = await ledger.post(openai("b", input_tokens, output_tokens, request_id="r", revision=1))
    assert posted.results[0].reason == "proposed"
    holds(ledger, "r", "0.00028")


async def test_fewer_calls_of_a_tool_are_a_lower_count(ledger: Ledger) -> None:
    """Three searches at 10,000.00 / 1,000,000 = 0.03 stand against one, whatever the tokens say."""
    await ledger.add_price(input="2.00", output="8.00", web_search_calls="10000")
    await ledger.post(make_event("a", request_id="r", flavour=..., quantities={"web_search_calls": 3}))
    fewer = {"web_search_calls": 1, "uncached_input_tokens": 5}
    posted = await ledger.post(make_event("b", request_id="r", revision=1, flavour=..., quantities=fewer))
    assert posted.results[0].reason == "proposed"
    holds(ledger, "r", "0.03")


async def test_a_part_that_moves_from_full_to_cached_is_no_lower_count(ledger: Ledger) -> None:
    """100 x 2.00 = 200, then 40 x 2.00 + 60 x 0.20 = 92 millionths: as much was used."""
    await ledger.add_price(input="2.00", cached="0.20", output="8.00")
    cached = {"prompt_tokens": 100, "completion_tokens": 0, "prompt_tokens_details": {"cached_tokens": 60}}
    assert await post_each(
        ledger, [openai("a", 100, 0, request_id="r"), make_event("b", request_id="r", revision=1, usage=cached)]
    ) == ["created", "created"]
    holds(ledger, "r", "0.000092")


# --- What is counted and not charged ------------------------------------------------------------------------------------


@pytest.mark.parametrize("hit", ["exact_hit", "semantic_hit"])
async def test_a_hit_in_the_gateways_own_cache_is_counted_and_free(ledger: Ledger, hit: str) -> None:
    """It claims no request: 100 + 10 tokens are avoided, and the request of the same id is charged 0.00028 beside it."""
    await ledger.add_price(input="2.00", output="8.00")
    outcomes = await post_each(
        ledger, [openai("hit", 100, 10, request_id="r", cache_result=hit), openai("ev", 100, 10, request_id="r")]
    )
    assert outcomes == ["created", "created"]
    assert ledger.requests("cache_result") == {hit: (1, Decimal(0)), None: (1, Decimal("0.00028"))}
    assert ledger.rows("select sum(avoided_tokens), sum(input_tokens), count(request_key) from ledger.entries") == [
        (110, 100, 1)
    ]


async def test_a_hit_in_the_providers_cache_is_billed(ledger: Ledger) -> None:
    """100 x 2.00 / 1,000,000 + 10 x 8.00 / 1,000,000 = 0.00028."""
    await ledger.add_price(input="2.00", output="8.00")
    await ledger.post(openai("a", 100, 10, request_id="r", cache_result="prefix_hit"))
    holds(ledger, "r", "0.00028")


async def test_b106_a_request_that_the_provider_rejected_is_counted_and_not_charged(ledger: Ledger) -> None:
    """12000 x 3.00 / 1,000,000 + 100 x 15.00 / 1,000,000 = 0.0375; the estimates priced too would be 0.1095."""
    await ledger.add_price("m-add", provider="anthropic", input="3.00", output="15.00")
    estimate = {"uncached_input_tokens": 12000}
    await ledger.post(
        anthropic("r1", 0, 0, usage=None, status="error", stop_reason="429", local_estimate=estimate),
        anthropic("r2", 0, 0, usage=None, status="error", stop_reason="400", local_estimate=estimate),
        anthropic("r3", 12000, 100),
    )
    assert ledger.requests("status") == {"error": (2, Decimal(0)), "ok": (1, Decimal("0.0375"))}
    assert ledger.rows("select distinct reported from ledger.entries where status = 'error'") == [
        ({"local_estimate": estimate},)
    ]
    assert ledger.total() == Decimal("0.0375")


async def test_an_error_that_had_usage_after_all_is_charged(ledger: Ledger) -> None:
    """Nothing, then 100 x 2.00 / 1,000,000 + 10 x 8.00 / 1,000,000 = 0.00028."""
    await ledger.add_price(input="2.00", output="8.00")
    await post_each(
        ledger,
        [
            openai("a", 0, 0, request_id="r", usage=None, status="error"),
            openai("b", 100, 10, request_id="r", source=NODE, status="error"),
        ],
    )
    holds(ledger, "r", "0.00028")


async def test_a_call_in_progress_claims_nothing(ledger: Ledger) -> None:
    await ledger.add_price(input="2.00", output="8.00")
    running = openai("a", 0, 0, request_id="r", status="in_progress", usage=...)
    assert await post_each(ledger, [running]) == ["evidence"]
    assert ledger.rows("select count(*) from ledger.requests") == [(0,)]
    assert ledger.requests("request_id") == {}
    assert await post_each(ledger, [openai("b", 100, 10, request_id="r")]) == ["created"]
    assert ledger.requests("status") == {"ok": (1, Decimal("0.00028"))}


async def test_a_call_in_progress_that_has_counts_is_a_snapshot(ledger: Ledger) -> None:
    """100 x 2.00 / 1,000,000 = 0.0002, then 100 x 2.00 / 1,000,000 + 10 x 8.00 / 1,000,000 = 0.00028."""
    await ledger.add_price(input="2.00", output="8.00")
    await ledger.post(openai("a", 100, 0, request_id="r", status="in_progress"))
    assert ledger.requests("request_id") == {"r": (1, Decimal("0.0002"))}
    await ledger.post(openai("b", 100, 10, request_id="r"))
    holds(ledger, "r", "0.00028")


async def test_an_unknown_model_is_unpriced_until_a_report_names_a_known_one(ledger: Ledger) -> None:
    """Null, and then 100 x 2.00 / 1,000,000 + 10 x 8.00 / 1,000,000 = 0.00028."""
    await ledger.add_price(input="2.00", output="8.00")
    await ledger.post(openai("a", 100, 10, request_id="r", source=NODE, model="m-what"))
    assert ledger.requests("request_id") == {"r": (1, None)}
    assert ledger.rows("select unpriced_meters from ledger.entries") == [
        (["charge:unknown_model", "cost:unknown_model"],)
    ]
    await ledger.post(openai("b", 100, 10, request_id="r"))
    holds(ledger, "r", "0.00028")


async def test_b073_two_runs_of_one_message_are_two_requests(ledger: Ledger) -> None:
    """15,000 x 2.00 / 1,000,000 = 0.03 and 25,000 x 2.00 / 1,000,000 = 0.05; 0.03 + 0.05 = 0.08."""
    await ledger.add_price(input="2.00", output="8.00")
    await ledger.post(
        openai("m1/r1", 15_000, 0, request_id="up-1"),
        openai("m1/r2", 25_000, 0, request_id="up-2"),
        openai("m1/r2", 25_000, 0, request_id="up-2"),
    )
    assert ledger.total() == Decimal("0.08")


# --- Every kind, in every order -----------------------------------------------------------------------------------------

ABOVE = "gateway://operator"
"""Ranks above the gateway, and may say less."""

KINDS: dict[str, dict[str, Any]] = {
    "interim": {"final": False, "counts": (80, 4)},
    "estimated": {"basis": "estimated", "counts": (120, 30)},
    "missing": {"counts": None},
    "worse source": {"source": NODE, "counts": (110, 12)},
    "reported and final": {"counts": (100, 10)},
    "same source revised": {"revision": 1, "counts": (100, 15)},
    "better source": {"source": ABOVE, "counts": (90, 9)},
}
"""From the worst to the best, but `missing`, which any other beats. A revision says more: less would be for a person."""


async def test_every_order_of_all_kinds_of_statements_gives_what_the_best_one_says(ledger: Ledger) -> None:
    """Seven kinds, 7! = 5,040 orders, a request each; after every report each request holds the best that it has heard.

    2.00 and 8.00 per million: at the end 90 x 2.00 + 9 x 8.00 = 0.000252 for each.
    """
    ledger.add_source(ABOVE, rank=30)
    await ledger.add_price(input="2.00", output="8.00")
    orders = list(permutations(KINDS))
    ranked = list(KINDS)
    amounts = {
        kind: None if said["counts"] is None else (said["counts"][0] * 2 + said["counts"][1] * 8) * Decimal("0.000001")
        for kind, said in KINDS.items()
    }
    worth = {kind: -1 if kind == "missing" else ranked.index(kind) for kind in ranked}

    def event(order_no: int, kind: str) -> dict[str, Any]:
        said = dict(KINDS[kind])
        counts = said.pop("counts")
        usage = None if counts is None else {"prompt_tokens": counts[0], "completion_tokens": counts[1]}
        return make_event(f"{kind}-{order_no}", request_id=f"r-{order_no}", usage=usage, **said)

    async with ledger.intake() as intake:
        for step in range(len(KINDS)):
            heard = [event(number, order[step]) for number, order in enumerate(orders)]
            await intake.post(await intake.read([ledger.message(*heard)]))
            best = [max(order[: step + 1], key=worth.__getitem__) for order in orders]
            assert ledger.requests("request_id") == {
                f"r-{number}": (1, amounts[kind]) for number, kind in enumerate(best)
            }
    assert ledger.total() == len(orders) * Decimal("0.000252")
    assert ledger.budgets_that_differ() == []


# --- Whatever comes, in whatever order ----------------------------------------------------------------------------------

OTHER_GATEWAY = "gateway://us-1"
RANKS = {GATEWAY: 20, OTHER_GATEWAY: 20, NODE: 10}
PRICES = {"m-sub": (2, 8), "m-big": (10, 50)}
"""Millionths for a token of input and of output."""
CHEAP_UNTIL = "2026-01-15T09:00:00Z"
"""Before it, m-sub costs half."""


@st.composite
def reports(draw: st.DrawFn) -> dict[str, Any]:
    """A report of one of two requests; usage may be missing or not final, and the clocks disagree."""
    status = draw(st.sampled_from(["ok", "ok", "ok", "error", "void", "in_progress"]))
    usage = draw(st.none() | st.tuples(st.integers(0, 3), st.integers(0, 3)))
    event: dict[str, Any] = {
        "request_id": draw(st.sampled_from(["a", "b"])),
        "source": draw(st.sampled_from(sorted(RANKS))),
        "status": status,
        "final": draw(st.sampled_from([True, True, False])),
        "basis": draw(st.sampled_from(["reported", "reported", "estimated"])),
        "revision": draw(st.integers(0, 2)),
        "model": draw(st.sampled_from(["m-sub", "m-big", "m-unknown"])),
        "feature": draw(st.sampled_from(["chat", "search"])),
        "route": draw(st.sampled_from([None, "eu"])),
        "time": draw(st.sampled_from(["2026-01-15T08:59:59.999999Z", "2026-01-15T09:00:00Z", "2026-01-15T10:00:00Z"])),
        "usage": None if usage is None else {"prompt_tokens": usage[0], "completion_tokens": usage[1]},
    }
    return event


class Told:
    """What the rules of design section 4 make of the reports of one request, told in the plainest way."""

    def __init__(self) -> None:
        self.best: dict[str, Any] | None = None
        self.at = ""

    def hear(self, event: dict[str, Any]) -> None:
        if event["status"] == "in_progress" and event["usage"] is None:
            return
        if self.best is None:
            self.best, self.at = event, event["time"]
        elif self.rank(event) > self.rank(self.best) and not self.is_proposal(event):
            self.best = event

    @staticmethod
    def rank(event: dict[str, Any]) -> tuple[bool, bool, bool, int, int]:
        return (
            event["usage"] is not None or event["status"] == "void",
            event["final"] and event["status"] != "in_progress",
            event["basis"] == "reported",
            RANKS[event["source"]],
            event["revision"],
        )

    def is_proposal(self, event: dict[str, Any]) -> bool:
        assert self.best is not None
        has_usage, final, reported, source_rank, _ = self.rank(self.best)
        if not (has_usage and final and reported) or RANKS[event["source"]] > source_rank:
            return False
        (said_in, said_out), (stood_in, stood_out) = self.counts(event), self.counts(self.best)
        return event["status"] == "void" or said_in < stood_in or said_out < stood_out

    @staticmethod
    def counts(event: dict[str, Any]) -> tuple[int, int]:
        usage = event["usage"]
        if usage is None or event["status"] == "void":
            return 0, 0
        return usage["prompt_tokens"], usage["completion_tokens"]

    def amount(self) -> Decimal | None:
        assert self.best is not None
        if self.best["status"] == "void" or (self.best["status"] == "error" and self.best["usage"] is None):
            return Decimal(0)
        if self.best["usage"] is None or self.best["model"] == "m-unknown":
            return None
        rates = PRICES[self.best["model"]]
        millionths = sum(count * rate for count, rate in zip(self.counts(self.best), rates, strict=True))
        halved = self.best["model"] == "m-sub" and self.at < CHEAP_UNTIL
        return Decimal(millionths) / 1_000_000 / (2 if halved else 1)


DEALS = st.tuples(st.lists(reports(), min_size=1, max_size=7), st.data())


@pytest.fixture
async def priced(ledger: Ledger) -> Ledger:
    ledger.add_source(OTHER_GATEWAY)
    await ledger.add_price("m-big", input="10", output="50")
    await ledger.add_price(input="1", output="4")
    await ledger.add_card(make_card(per_million(input="2", output="8"), effective_at=CHEAP_UNTIL))
    return ledger


_examples = iter(range(1_000_000))


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(deal=DEALS)
async def test_any_order_repetition_and_batching_gives_what_the_best_statement_says(
    priced: Ledger, deal: tuple[list[dict[str, Any]], st.DataObject]
) -> None:
    """For each request: the amount, the count and every attribute of its best statement; and the budgets follow."""
    stated, data = deal
    example = next(_examples)
    events = [
        make_event(
            f"{example}-{number}",
            **{**event, "request_id": f"{example}-{event['request_id']}", "requested_model": event["model"]},
        )
        for number, event in enumerate(stated)
    ]
    order = data.draw(st.permutations([*range(len(events)), *data.draw(st.lists(st.integers(0, len(events) - 1)))]))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(order)), max_size=4)) | {0, len(order)})
    async with priced.intake() as intake:
        for low, high in pairwise(cuts):
            await intake.post(await intake.read([priced.message(*(events[number] for number in order[low:high]))]))
    told: dict[str, Told] = {}
    for number in dict.fromkeys(order):
        told.setdefault(stated[number]["request_id"], Told()).hear(stated[number])
    expected: dict[Any, tuple[int, Decimal | None]] = {}
    for request_id, one in told.items():
        if one.best is not None and one.best["status"] != "void":
            best = one.best
            key = (
                f"{example}-{request_id}", best["source"], best["model"], best["feature"], best["route"], best["status"],
                best["basis"],
            )  # fmt: skip
            expected[key] = (1, one.amount())
    found = {
        key: value
        for key, value in priced.requests(
            "request_id", "source", "reported_model", "feature", "route", "status", "basis"
        ).items()
        if str(key[0]).startswith(f"{example}-")
    }
    assert found == expected
    assert priced.budgets_that_differ() == []
    for folded in ("input_tokens", "output_tokens"):
        place = ("input_tokens", "output_tokens").index(folded)
        tokens = priced.value(
            f"select coalesce(sum({folded}), 0) from ledger.entries where request_id like %s", f"{example}-%"
        )
        assert tokens == sum(Told.counts(one.best)[place] for one in told.values() if one.best is not None)


async def test_a_tenants_own_word_counts_only_until_its_gateway_speaks(ledger: Ledger) -> None:
    """The tenant says 1 token, first and as the gateway; the gateway's report of 100 and 10 counts: 0.00028."""
    await ledger.add_price(input="2.00", output="8.00")
    small = {"prompt_tokens": 1, "completion_tokens": 0, "total_tokens": 1}
    own = make_event("ev-own", request_id="req-1", usage=small)
    await ledger.post(own, speaker=Speaker(tenant_id="t-alpha"))
    assert ledger.total() == Decimal("0.000002")
    await ledger.post(make_event("ev-gateway", request_id="req-1"))
    assert ledger.total() == Decimal("0.00028")
    late = make_event("ev-late", request_id="req-1", usage=small, revision=99)
    assert ledger.outcomes(await ledger.post(late, speaker=Speaker(tenant_id="t-alpha"))) == ["evidence"]
    assert ledger.total() == Decimal("0.00028")
