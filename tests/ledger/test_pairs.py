"""Pairs that a person should see: reports of one request that differ, and one answer under several requests.

100 tokens in at 2.00 and 10 out at 8.00 a million = 0.0002 + 0.00008 = 0.00028.
"""

from collections.abc import AsyncIterator
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.database import Connection, connect
from ledger.differences import fingerprint
from ledger.entries import Entry, Money
from ledger.meters import METERS
from ledger.pairs import differing_pairs, shared_responses
from ledger.statements import DIMENSIONS, Statement
from ledger.times import parse_rfc3339
from tests.factories import GATEWAY, NODE
from tests.ledger.prices import make_card, per_million
from tests.ledger.test_statements import openai
from tests.support.ledger import Ledger


@pytest.fixture
async def analyst(ledger: Ledger) -> AsyncIterator[Connection]:
    await ledger.add_price(input="2.00", cached="0.20", output="8.00")
    async with await connect(ledger.database.url_for("tallystick_analyst")) as connection:
        yield connection


def gateway(input_tokens: int = 100, output_tokens: int = 10, **other: Any) -> dict[str, Any]:
    return openai("g", input_tokens, output_tokens, **{"request_id": "r", **other})


def node(input_tokens: int = 100, output_tokens: int = 10, **other: Any) -> dict[str, Any]:
    return openai("n", input_tokens, output_tokens, **{"request_id": "r", "source": NODE, "feature": ..., **other})


async def told(ledger: Ledger, *events: dict[str, Any], in_one_batch: bool = False) -> None:
    if in_one_batch:
        await ledger.post(*events)
    else:
        for event in events:
            await ledger.post(event)


@pytest.mark.parametrize("in_one_batch", [False, True])
@pytest.mark.parametrize("node_first", [False, True])
async def test_gateway_and_node_that_differ_are_listed_with_both_sides(
    ledger: Ledger, analyst: Connection, node_first: bool, in_one_batch: bool
) -> None:
    """The node counts 12 out: 100 x 2 + 12 x 8 = 296 millionths, 16 more; the gateway counts, whoever came first."""
    events = [node(output_tokens=12), gateway()] if node_first else [gateway(), node(output_tokens=12)]
    await told(ledger, *events, in_one_batch=in_one_batch)
    (found,) = await differing_pairs(analyst)
    sides = {
        found.stood_source: (found.stood_quantities, found.stood_charge, found.stood_cost),
        found.said_source: (found.said_quantities, found.said_charge, found.said_cost),
    }
    charges = Decimal("0.00028"), Decimal("0.000296")
    assert sides == {
        GATEWAY: ({"uncached_input_tokens": 100, "visible_output_tokens": 10}, charges[0], charges[0]),
        NODE: ({"uncached_input_tokens": 100, "visible_output_tokens": 12}, charges[1], charges[1]),
    }
    assert (found.request_id, found.tenant_id, found.charge_currency) == ("r", "t-alpha", "USD")
    assert found.is_counted is node_first
    assert found.charge_difference == (Decimal("-0.000016") if node_first else Decimal("0.000016"))
    if not node_first:
        assert ledger.value("select source from ledger.entries where entry_id = %s", found.entry_id) == NODE


@pytest.mark.parametrize("in_one_batch", [False, True])
@pytest.mark.parametrize("node_first", [False, True])
async def test_pairs_that_agree_are_not_listed(
    ledger: Ledger, analyst: Connection, node_first: bool, in_one_batch: bool
) -> None:
    """The usual load: other clocks, other attributes, the same counts. What stands is not even read for the node's."""
    later = "2026-01-15T10:00:00.25Z"
    events = [node(time=later), gateway()] if node_first else [gateway(), node(time=later)]
    await told(ledger, *events, in_one_batch=in_one_batch)
    assert await differing_pairs(analyst) == []


async def test_the_same_tokens_at_another_price_differ_in_amounts(ledger: Ledger, analyst: Connection) -> None:
    """The node names another model: 100 x 3 + 10 x 8 = 380 millionths."""
    await ledger.add_price("m-big", input="3.00", output="8.00")
    await told(ledger, gateway(), node(model="m-big"))
    (found,) = await differing_pairs(analyst)
    assert found.stood_quantities == found.said_quantities
    assert found.charge_difference == Decimal("0.0001")


async def test_cached_and_uncached_differ_though_the_totals_agree(ledger: Ledger, analyst: Connection) -> None:
    cached = {"prompt_tokens": 100, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 60}}
    await told(ledger, gateway(), node(usage=cached))
    (found,) = await differing_pairs(analyst)
    assert found.said_quantities == {
        "cache_read_tokens": 60,
        "uncached_input_tokens": 40,
        "visible_output_tokens": 10,
    }


@pytest.mark.parametrize(
    "other",
    [
        {"final": False},
        {"basis": "estimated"},
        {"usage": None},
        {"status": "in_progress"},
        {"source": GATEWAY, "revision": 1},
        {"source": GATEWAY, "revision": 0},
    ],
    ids=[
        "interim",
        "estimated",
        "missing",
        "in progress",
        "revised by the same source",
        "an equal rank of the same source",
    ],
)
async def test_what_is_expected_to_differ_is_not_listed(
    ledger: Ledger, analyst: Connection, other: dict[str, Any]
) -> None:
    for first_is_other in (True, False):
        request_id = f"r-{first_is_other}"
        odd = openai(f"odd-{request_id}", 90, 9, **{"source": NODE, "request_id": request_id, **other})
        plain = openai(f"g-{request_id}", 100, 10, request_id=request_id)
        await told(ledger, *([odd, plain] if first_is_other else [plain, odd]))
    assert await differing_pairs(analyst) == []


async def test_a_third_report_is_held_against_what_counts(ledger: Ledger, analyst: Connection) -> None:
    """100 from the node, 120 from one gateway, 120 from another: the first two differ, the last agrees."""
    ledger.add_source("gateway://us-1")
    await told(ledger, node(), gateway(120), openai("u", 120, 10, request_id="r", source="gateway://us-1"))
    assert [(each.stood_source, each.said_source) for each in await differing_pairs(analyst)] == [(NODE, GATEWAY)]


async def test_a_price_that_was_corrected_makes_no_difference(ledger: Ledger, analyst: Connection) -> None:
    """The node's report comes after a repricing, and is priced as what stands then is."""
    from ledger.repricing import Scope, reprice

    await told(ledger, gateway())
    first = make_card(per_million(input="2.00", cached="0.20", output="8.00"), effective_at="2020-01-01T00:00:00Z")
    await ledger.add_card(
        make_card(
            per_million(input="3.00", cached="0.20", output="8.00"),
            effective_at="2020-01-01T00:00:00Z",
            replaces=first.content_hash,
        )
    )
    operator = await connect(ledger.database.url_for("tallystick_operator"))
    writer = await connect(ledger.database.url_for("tallystick_writer"))
    async with operator, writer:
        assert (await reprice(operator, writer, Scope(), actor="ann", reason="misread")).requests == 1
    await told(ledger, node())
    assert await differing_pairs(analyst) == []


async def test_a_request_without_a_fingerprint_is_read(ledger: Ledger, analyst: Connection) -> None:
    """Requests of before there were any: the pair that agrees is not listed, the one that differs is."""
    for request_id in ("same", "other"):
        await ledger.post(openai(f"g-{request_id}", 100, 10, request_id=request_id))
    ledger.superuser.execute("update ledger.requests set counted = null")
    await ledger.post(openai("n-same", 100, 10, request_id="same", source=NODE))
    await ledger.post(openai("n-other", 101, 10, request_id="other", source=NODE))
    assert [each.request_id for each in await differing_pairs(analyst)] == ["other"]


async def test_pairs_are_asked_for_by_time_and_tenant_and_found_by_index(ledger: Ledger, analyst: Connection) -> None:
    ledger.add_tenant("t-beta")
    for number, tenant_id in enumerate(["t-alpha", "t-beta", "t-alpha"]):
        request = {"request_id": f"r{number}", "tenant_id": tenant_id}
        await told(ledger, openai(f"g{number}", 100, 10, **request), openai(f"n{number}", 1, 1, source=NODE, **request))
    listed = await differing_pairs(analyst)
    assert [each.request_id for each in listed] == ["r2", "r1", "r0"]
    assert [each.request_id for each in await differing_pairs(analyst, tenant_id="t-beta")] == ["r1"]
    assert [each.request_id for each in await differing_pairs(analyst, before=listed[0].difference_no, limit=1)] == [
        "r1"
    ]
    assert await differing_pairs(analyst, since=parse_rfc3339("2100-01-01T00:00:00Z")) == []
    ledger.superuser.execute(
        "insert into ledger.differences select n, d.tenant_id, d.request_id, d.request_key, d.occurred_at,"
        " d.recorded_at - n * interval '1 minute', d.batch_id, d.entry_id, d.is_counted, d.stood_source, d.said_source,"
        " d.stood_quantities, d.said_quantities, d.stood_charge, d.said_charge, d.charge_currency, d.stood_cost, d.said_cost,"
        " d.cost_currency from ledger.differences as d, generate_series(100, 20000) as n where d.request_id = 'r0'"
    )
    ledger.superuser.execute("analyze ledger.differences")
    for condition, index in (
        ("recorded_at >= now() - interval '1 hour'", "ix_differences_recorded_at"),
        ("tenant_id = 't-beta' and recorded_at >= now() - interval '30 days'", "ix_differences_tenant_id_recorded_at"),
    ):
        plan = ledger.rows(
            f"explain select * from ledger.statements_that_differ where {condition} order by recorded_at desc limit 100"
        )
        assert any(index in line for (line,) in plan), plan


async def test_one_answer_under_two_requests_is_listed(ledger: Ledger, analyst: Connection) -> None:
    """The same answer logged under two request ids is two charges; one under one request, however often, is none."""
    await ledger.post(
        openai("a", 100, 10, request_id="r1", response_id="resp-1", provider_account="acct"),
        openai("b", 100, 10, request_id="r2", response_id="resp-1", provider_account="acct"),
        openai("c", 100, 10, request_id="r3", response_id="resp-1", provider_account="other"),
        openai("d", 100, 10, request_id="r4", response_id="resp-4"),
        openai("e", 100, 10, request_id="r4", response_id="resp-4", revision=1, feature="search"),
        openai("f", 100, 10, request_id="r5"),
        openai("g", 100, 10, request_id="r6"),
    )
    (found,) = await shared_responses(analyst, since=date(2026, 1, 20))
    assert (found.provider_account, found.response_id, found.request_count) == ("acct", "resp-1", 2)
    assert sorted(found.request_ids) == ["r1", "r2"]
    assert await shared_responses(analyst, since=date(2026, 2, 1)) == []
    assert await shared_responses(analyst, since=date(2026, 1, 1), tenant_id="t-beta") == []
    plan = ledger.rows(
        "explain select * from ledger.responses_under_several_requests where posting_period = '2026-01-01'"
    )
    scans = [line for (line,) in plan if "Scan" in line and "entries_" in line]
    assert scans
    assert all("entries_2026_01" in line for line in scans)


quantities = st.dictionaries(st.sampled_from(sorted(METERS)), st.integers(0, 10**12), max_size=4)


def row(counts: dict[str, int], rate_set: int | None) -> Entry:
    statement = Statement("k", "h", "r", (0, 1, 1, 1, 0, 0), 0, (None,) * len(DIMENSIONS), (), "ok")
    money = Money(Decimal(0), "USD", rate_set)
    return Entry(statement, "usage", 0, 0, date(2026, 1, 1), statement.dimensions, None, 1, counts, money, money)


@given(first=quantities, second=quantities, rate_set=st.none() | st.integers(1, 10**9))
def test_a_fingerprint_does_not_see_rows_only_sums(
    first: dict[str, int], second: dict[str, int], rate_set: int | None
) -> None:
    """Two rows of one price have that of their sum; zeros and order do not count; another count does."""
    together = {meter: first.get(meter, 0) + second.get(meter, 0) for meter in sorted({*first, *second, "images"})}
    whole = fingerprint([row(together, rate_set)])
    assert fingerprint([row(first, rate_set), row(second, rate_set)]) == whole
    assert 0 <= whole < 2**63
    assert fingerprint([row({**together, "images": together["images"] + 1}, rate_set)]) != whole
