"""Corrections: what a person changes is a difference with a name, a reason and an id, made once and never undone by a machine.

The request of most tests: 100 tokens in at 2.00 and 10 out at 8.00 a million = 0.0002 + 0.00008 = 0.00028.
"""

import asyncio
from collections.abc import AsyncIterator
from datetime import date
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ingest.letters import content_of
from ledger.approvals import Awaiting, decide
from ledger.books import load_books
from ledger.corrections import (
    BOOKS,
    Content,
    Corrected,
    Counts,
    Difference,
    Effect,
    Fee,
    Report,
    Request,
    Reverse,
    Wanted,
    correct,
    list_corrections,
    list_proposals,
    plan,
    refuse,
)
from ledger.database import Connection, connect
from ledger.errors import ActRefused, Unknown
from ledger.repricing import Scope, reprice
from tallystick.verify import verify
from tests.factories import GATEWAY, NODE, make_event
from tests.ledger.prices import make_card, per_million
from tests.ledger.test_statements import openai
from tests.support.ledger import Failpoint, Ledger
from tests.support.soak import examples

R = Request("t-alpha", "r")
HALF = {"uncached_input_tokens": 50, "visible_output_tokens": 5}
"""50 x 2 + 5 x 8 = 140 millionths."""


@pytest.fixture
async def writer(ledger: Ledger) -> AsyncIterator[Connection]:
    await ledger.add_price(input="2.00", output="8.00")
    async with await connect(ledger.database.url_for("tallystick_writer")) as connection:
        yield connection


async def done(writer: Connection, change: Any, **other: Any) -> Corrected:
    found = await correct(
        writer, Wanted(change, other.pop("correction_id", None)), **{"actor": "ann", "reason": "because", **other}
    )
    assert isinstance(found, Corrected)
    return found


def proof(ledger: Ledger) -> list[str]:
    assert ledger.budgets_that_differ() == []
    return [failure.text for failure in verify(ledger.database.url_for("tallystick_operator")).failures]


def total(ledger: Ledger, request_id: str = "r") -> tuple[int, Decimal, int, int]:
    """Requests, charge and tokens that a request folds to."""
    (row,) = ledger.rows(
        "select sum(request_count)::integer, trim_scale(sum(charge_amount)), sum(input_tokens)::integer,"
        " sum(output_tokens)::integer from ledger.entries where request_id = %s",
        request_id,
    )
    return row  # type: ignore[return-value]


# --- Reversing ----------------------------------------------------------------------------------------------------------


async def test_a_reversal_negates_all_that_stands(ledger: Ledger, writer: Connection) -> None:
    """0.00028 - 0.00028 = 0, and one request less."""
    await ledger.post(openai("a", 100, 10, request_id="r", tags={"team": "x"}, user_hash="u"))
    made = await done(writer, Reverse(R))
    asked = (
        "select kind, request_count, input_tokens, output_tokens, charge_amount, corrects_entry_id is not null, reason,"
        " actor, occurred_at = '2026-01-15 10:00:00+00', tags::text from ledger.entries order by entry_id"
    )
    assert ledger.rows(asked) == [
        ("usage", 1, 100, 10, Decimal("0.00028"), False, None, None, True, '{"team": "x"}'),
        ("reversal", -1, -100, -10, Decimal("-0.00028"), True, "because", "ann", True, '{"team": "x"}'),
    ]
    assert (made.record.kind, made.record.entry_count, made.is_repeat) == ("reverse", 1, False)
    assert ledger.rows("select actor, act, reason, second_person from ledger.acts") == [
        ("ann", "corrections.reverse", "because", None)
    ]
    assert ledger.requests("request_id") == {}
    assert proof(ledger) == []


async def test_what_was_bettered_and_repriced_is_reversed_as_it_stands(
    ledger: Ledger, writer: Connection, operator: Connection
) -> None:
    await ledger.post(openai("n", 50, 5, request_id="r", source=NODE, feature=...))
    await ledger.post(openai("a", 100, 10, request_id="r"))
    first = make_card(per_million(input="2.00", output="8.00"), effective_at="2020-01-01T00:00:00Z")
    await ledger.add_card(
        make_card(
            per_million(input="3.00", output="9.00"), effective_at="2020-01-01T00:00:00Z", replaces=first.content_hash
        )
    )
    await reprice(operator, writer, Scope(), actor="ann", reason="misread")
    assert total(ledger) == (1, Decimal("0.00039"), 100, 10), "100 x 3 + 10 x 9 = 390 millionths"
    await done(writer, Reverse(R))
    assert total(ledger) == (0, Decimal(0), 0, 0)
    assert (await reprice(operator, writer, Scope(), actor="ann", reason="again")).entries == 0
    assert proof(ledger) == []


async def test_no_report_brings_back_what_a_person_reversed(ledger: Ledger, writer: Connection) -> None:
    """However well it ranks: it is kept as evidence, and a person may accept it."""
    await ledger.post(openai("n", 50, 5, request_id="r", source=NODE, final=False))
    await done(writer, Reverse(R))
    posted = await ledger.post(openai("a", 100, 10, request_id="r", revision=9))
    assert ledger.outcomes(posted) == ["evidence"]
    assert total(ledger) == (0, Decimal(0), 0, 0)
    entry_id = ledger.value("select entry_id from ledger.entries where kind = 'evidence'")
    await done(writer, Report(entry_id))
    assert total(ledger) == (1, Decimal("0.00028"), 100, 10)
    assert proof(ledger) == []


async def test_what_is_reversed_cannot_be_reversed_again(ledger: Ledger, writer: Connection) -> None:
    await ledger.post(openai("a", 100, 10, request_id="r"))
    await done(writer, Reverse(R))
    with pytest.raises(ActRefused, match="nothing stands"):
        await done(writer, Reverse(R))
    await done(writer, Counts(R, HALF))
    await done(writer, Reverse(R))
    assert total(ledger) == (0, Decimal(0), 0, 0)
    assert proof(ledger) == []


async def test_a_fee_is_reversed_by_itself(ledger: Ledger, writer: Connection) -> None:
    """A call of 0.00028 with a fee of 0.01: the void of the call leaves the fee, a person's reversal takes it."""
    first = make_card(per_million(input="2.00", output="8.00"), effective_at="2020-01-01T00:00:00Z")
    await ledger.add_card(
        make_card(
            per_million(input="2.00", output="8.00"),
            effective_at="2020-01-01T00:00:00Z",
            replaces=first.content_hash,
            billing_rules={"fee_per_operation": "0.01"},
        )
    )
    await ledger.post(openai("a", 100, 10, request_id="r", basis="reported", source=NODE, operation_id="op"))
    await ledger.post(openai("v", 0, 0, request_id="r", status="void", usage=..., operation_id="op"))
    fees = "select sum(cost_amount), sum(charge_amount) from ledger.entries where kind = 'fee'"
    assert ledger.rows(fees) == [(Decimal("0.01"), Decimal("0.01"))]
    for book in BOOKS:
        await done(writer, Reverse(Fee("t-alpha", "op", book)))
    assert ledger.total("cost") == 0
    assert ledger.total() == 0
    assert ledger.value("select sum((other_quantities ->> 'operations')::int) from ledger.entries") == 0
    await ledger.post(openai("again", 100, 10, request_id="r2", operation_id="op"))
    assert ledger.total() == Decimal("0.00028"), "the fee of an operation is booked once for ever"
    assert proof(ledger) == []


# --- Stating other counts -----------------------------------------------------------------------------------------------


async def test_stated_counts_take_the_place_of_what_was_reported(ledger: Ledger, writer: Connection) -> None:
    """50 x 2 + 5 x 8 = 140 millionths; 0.00014 - 0.00028 = -0.00014."""
    await ledger.post(openai("a", 100, 10, request_id="r"))
    made = await done(writer, Counts(R, HALF))
    assert total(ledger) == (1, Decimal("0.00014"), 50, 5)
    assert ledger.rows(
        "select kind, request_count, input_tokens, charge_amount from ledger.entries where kind <> 'usage'"
    ) == [("adjustment", 0, -50, Decimal("-0.00014"))]
    assert {(each["what"], each["before"], each["after"]) for each in made.record.effects} >= {
        ("input_tokens", "100", "50"),
        ("requests", "1", "1"),
    }
    for late in (openai("late", 100, 10, request_id="r", revision=5), openai("n", 9, 9, request_id="r", source=NODE)):
        assert ledger.outcomes(await ledger.post(late)) == ["evidence"]
    assert total(ledger) == (1, Decimal("0.00014"), 50, 5)
    assert proof(ledger) == []


async def test_the_last_persons_word_counts(ledger: Ledger, writer: Connection) -> None:
    await ledger.post(openai("a", 100, 10, request_id="r"))
    for count in (7, 3, 5):
        await done(writer, Counts(R, {"uncached_input_tokens": count}))
    assert total(ledger) == (1, Decimal("0.00001"), 5, 0)
    assert proof(ledger) == []


async def test_counts_are_priced_as_of_the_call(ledger: Ledger, writer: Connection) -> None:
    """The price of February does not reach a call of January: 50 x 2 + 5 x 8 = 140 millionths."""
    await ledger.post(openai("a", 100, 10, request_id="r"))
    await ledger.add_card(make_card(per_million(input="9", output="9"), effective_at="2026-02-01T00:00:00Z"))
    await done(writer, Counts(R, HALF))
    assert total(ledger)[1] == Decimal("0.00014")


async def test_missing_usage_is_stated_by_a_person(ledger: Ledger, writer: Connection) -> None:
    await ledger.post(openai("a", 0, 0, request_id="r", usage=None))
    assert ledger.requests("request_id") == {"r": (1, None)}
    await done(writer, Counts(R, HALF))
    assert ledger.requests("request_id") == {"r": (1, Decimal("0.00014"))}
    assert proof(ledger) == []


@pytest.mark.parametrize(
    ("quantities", "rule"),
    [
        ({"tokens": 1}, "'tokens' is no meter"),
        ({"operations": 1}, "'operations' is no meter"),
        ({"uncached_input_tokens": -1}, "must be between 0 and"),
        ({"uncached_input_tokens": 10**15 + 1}, "must be between 0 and"),
    ],
)
async def test_counts_that_are_refused(
    ledger: Ledger, writer: Connection, quantities: dict[str, int], rule: str
) -> None:
    await ledger.post(openai("a", 100, 10, request_id="r"))
    with pytest.raises(ActRefused, match=rule):
        await done(writer, Counts(R, quantities))
    assert ledger.value("select count(*) from ledger.corrections") == 0


async def test_counts_that_are_confirmed_are_a_persons_from_then_on(ledger: Ledger, writer: Connection) -> None:
    """One row that moves nothing; the gateway's better report of 200 is evidence. Confirmed twice says nothing new."""
    await ledger.post(openai("n", 100, 10, request_id="r", source=NODE))
    same = Counts(R, {"uncached_input_tokens": 100, "visible_output_tokens": 10})
    made = await done(writer, same)
    assert made.record.entry_count == 1
    with pytest.raises(ActRefused, match="says the same already, by a person's decision"):
        await done(writer, same)
    assert ledger.outcomes(await ledger.post(openai("a", 200, 10, request_id="r"))) == ["evidence"]
    assert total(ledger) == (1, Decimal("0.00028"), 100, 10)
    assert proof(ledger) == []


async def test_counts_of_an_answer_of_several_models_are_refused(ledger: Ledger, writer: Connection) -> None:
    """They would not say whose they are; a difference in money can be stated, and all of it reversed."""
    await ledger.add_price("m-big", provider="anthropic", input="10", output="50")
    await ledger.add_price("m-mid", provider="anthropic", input="5", output="25")
    parts = [
        {"type": "message", "model": "m-big", "input_tokens": 10, "output_tokens": 1},
        {"type": "message", "model": "m-mid", "input_tokens": 20, "output_tokens": 2},
    ]
    usage = {"input_tokens": 30, "output_tokens": 3, "iterations": parts}
    await ledger.post(
        make_event("a", request_id="r", provider="anthropic", model="m-mid", flavour="anthropic.messages", usage=usage)
    )
    assert ledger.value("select count(distinct model) from ledger.entries") == 2
    with pytest.raises(ActRefused, match="parts of several models"):
        await done(writer, Counts(R, HALF))
    await done(writer, Difference(R, charge=Decimal("-0.0001")))
    await done(writer, Reverse(R))
    assert ledger.total() == 0
    assert proof(ledger) == []


# --- Stating a difference in money --------------------------------------------------------------------------------------


async def test_a_difference_stands_beside_the_reports(ledger: Ledger, writer: Connection, operator: Connection) -> None:
    """0.00028 - 0.0001 = 0.00018; a better report of 200 and 10 = 480 millionths makes 0.00038; a repricing leaves it."""
    await ledger.post(openai("a", 100, 10, request_id="r"))
    await done(writer, Difference(R, charge=Decimal("-0.0001")))
    assert total(ledger) == (1, Decimal("0.00018"), 100, 10)
    assert ledger.rows(
        "select kind, usage_flags, request_count, input_tokens, cost_amount, charge_amount, charge_rate_set_id"
        " from ledger.entries where kind <> 'usage'"
    ) == [("adjustment", ["amount_stated"], 0, 0, Decimal(0), Decimal("-0.0001"), None)]
    assert ledger.outcomes(await ledger.post(openai("b", 200, 10, request_id="r", revision=1))) == ["created"]
    assert total(ledger) == (1, Decimal("0.00038"), 200, 10)
    first = make_card(per_million(input="2.00", output="8.00"), effective_at="2020-01-01T00:00:00Z")
    await ledger.add_card(
        make_card(
            per_million(input="3.00", output="8.00"), effective_at="2020-01-01T00:00:00Z", replaces=first.content_hash
        )
    )
    await reprice(operator, writer, Scope(), actor="ann", reason="misread")
    assert total(ledger) == (1, Decimal("0.00058"), 200, 10), "200 x 3 + 10 x 8 - 100 = 580 millionths"
    await done(writer, Counts(R, HALF))
    assert total(ledger) == (1, Decimal("0.00009"), 50, 5), "50 x 3 + 5 x 8 - 100 = 90 millionths"
    lines = "select sum(amount) from ledger.entry_lines where book = 'charge'"
    assert ledger.value(lines) == Decimal("0.00009"), "lines sum to what is charged"
    assert proof(ledger) == []
    await done(writer, Reverse(R))
    assert total(ledger) == (0, Decimal(0), 0, 0)
    assert proof(ledger) == []


async def test_differences_add_up_in_any_order(ledger: Ledger, writer: Connection) -> None:
    """0.00028 + 0.5 - 0.2 = 0.30028, and the cost by itself 0.00028 + 1 = 1.00028."""
    await ledger.post(openai("a", 100, 10, request_id="r"))
    await done(writer, Difference(R, charge=Decimal("0.5")))
    await done(writer, Difference(R, charge=Decimal("-0.2"), cost=Decimal(1)))
    assert total(ledger)[1] == Decimal("0.30028")
    assert ledger.total("cost") == Decimal("1.00028")
    assert proof(ledger) == []


async def test_the_same_difference_counts_once_unless_it_has_another_id(ledger: Ledger, writer: Connection) -> None:
    """0.00028 + 0.5 = 0.50028; a retry adds nothing, another id says that it is meant."""
    await ledger.post(openai("a", 100, 10, request_id="r"))
    first = await done(writer, Difference(R, charge=Decimal("0.5")))
    again = await done(writer, Difference(R, charge=Decimal("0.50")), actor="ben", reason="the same, I think")
    assert again.is_repeat
    assert again.record == first.record
    assert total(ledger)[1] == Decimal("0.50028")
    await done(writer, Difference(R, charge=Decimal("0.5")), correction_id="second")
    assert total(ledger)[1] == Decimal("1.00028")


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (Difference(R), "other than zero"),
        (Difference(R, charge=Decimal(0)), "other than zero"),
        (Difference(R, charge=Decimal("NaN")), "must be a number"),
        (Difference(R, charge=Decimal("Infinity")), "must be a number"),
        (Difference(R, cost=Decimal("1e13")), "must be a number of at most"),
        (Difference(R, charge=Decimal("1e-21")), "decimal places"),
    ],
)
async def test_differences_that_are_refused(ledger: Ledger, writer: Connection, change: Difference, rule: str) -> None:
    await ledger.post(openai("a", 100, 10, request_id="r"))
    with pytest.raises(ActRefused, match=rule):
        await done(writer, change)


async def test_a_cost_that_has_no_price_yet_has_no_currency_for_a_difference(
    ledger: Ledger, writer: Connection
) -> None:
    await ledger.post(openai("a", 100, 10, request_id="r", model="m-nobodys"))
    with pytest.raises(ActRefused, match="cost: nobody knows its currency"):
        await done(writer, Difference(R, cost=Decimal(1)))
    await done(writer, Difference(R, charge=Decimal(1)))
    assert ledger.requests("request_id") == {"r": (1, None)}
    assert proof(ledger) == []


# --- Once, by whom, and where -------------------------------------------------------------------------------------------


async def test_a_repeated_id_does_nothing_and_another_correction_under_it_is_refused(
    ledger: Ledger, writer: Connection
) -> None:
    await ledger.post(openai("a", 100, 10, request_id="r"))
    first = await done(writer, Reverse(R), correction_id="ticket-1")
    again = await done(writer, Reverse(R), correction_id="ticket-1")
    assert (again.is_repeat, again.record) == (True, first.record)
    with pytest.raises(ActRefused, match="correction 1 has it, and says otherwise"):
        await done(writer, Counts(R, HALF), correction_id="ticket-1")
    assert ledger.value("select count(*) from ledger.corrections") == 1


@pytest.mark.parametrize("correction_id", ["", " ", "a\nb", "x" * 201, "by-content:1"])
async def test_an_id_is_a_printable_text(ledger: Ledger, writer: Connection, correction_id: str) -> None:
    await ledger.post(openai("a", 100, 10, request_id="r"))
    with pytest.raises(ActRefused, match=r"^id: must"):
        await done(writer, Reverse(R), correction_id=correction_id)


@pytest.mark.parametrize("same_id", [True, False])
async def test_two_people_at_once_make_one_reversal(ledger: Ledger, writer: Connection, same_id: bool) -> None:
    """Whoever comes second finds it made, or that nothing stands."""
    await ledger.post(openai("a", 100, 10, request_id="r"))
    async with await connect(ledger.database.url_for("tallystick_writer")) as other:
        ids = ("t", "t") if same_id else ("t-1", "t-2")
        outcomes = await asyncio.gather(
            done(writer, Reverse(R), correction_id=ids[0], feed="commands:a"),
            done(other, Reverse(R), correction_id=ids[1], actor="ben", feed="commands:b"),
            return_exceptions=True,
        )
    made = [each for each in outcomes if isinstance(each, Corrected)]
    refused = [each for each in outcomes if not isinstance(each, Corrected)]
    assert total(ledger) == (0, Decimal(0), 0, 0)
    assert ledger.value("select count(*) from ledger.entries where kind = 'reversal'") == 1
    assert ledger.value("select count(*) from ledger.corrections") == 1
    assert ledger.value("select count(*) from ledger.acts") == 1
    if same_id:
        assert sorted(each.is_repeat for each in made) == [False, True]
    else:
        assert [type(each) for each in refused] == [ActRefused]
    assert proof(ledger) == []


async def test_a_crash_before_the_commit_leaves_nothing_and_a_retry_makes_it_once(
    ledger: Ledger, writer: Connection, failpoint: Failpoint
) -> None:
    class Crash(Exception):
        pass

    def crash(*_: Any) -> None:
        raise Crash

    await ledger.post(openai("a", 100, 10, request_id="r"))
    failpoint("post.before_commit", crash)
    with pytest.raises(Crash):
        await done(writer, Reverse(R), correction_id="t")
    failpoint("post.before_commit", lambda *_: None)
    for table in ("corrections", "acts"):
        assert ledger.value(f"select count(*) from ledger.{table}") == 0
    assert not (await done(writer, Reverse(R), correction_id="t")).is_repeat
    failpoint("post.after_commit", crash)
    assert (await done(writer, Reverse(R), correction_id="t")).is_repeat
    assert total(ledger) == (0, Decimal(0), 0, 0)


async def test_a_closed_month_is_corrected_in_the_earliest_open_one(ledger: Ledger, writer: Connection) -> None:
    await ledger.post(openai("a", 100, 10, request_id="r"))
    ledger.close_period("t-alpha", date(2026, 1, 1)).close_period("t-alpha", date(2026, 2, 1))
    await done(writer, Reverse(R))
    assert ledger.rows("select kind, posting_period, local_date, charge_amount from ledger.entries order by 1") == [
        ("reversal", date(2026, 3, 1), date(2026, 1, 15), Decimal("-0.00028")),
        ("usage", date(2026, 1, 1), date(2026, 1, 15), Decimal("0.00028")),
    ]
    assert proof(ledger) == []


async def test_without_an_open_month_nothing_is_corrected(ledger: Ledger, writer: Connection) -> None:
    await ledger.post(openai("a", 100, 10, request_id="r"))
    ledger.superuser.execute("update ledger.periods set state = 'closed'")
    ledger.superuser.execute("update ledger.versions set calendar = calendar + 1")
    with pytest.raises(ActRefused, match="no open period"):
        await done(writer, Reverse(R))
    assert ledger.value("select count(*) from ledger.corrections") == 0


async def test_what_is_not_there_cannot_be_corrected(ledger: Ledger, writer: Connection) -> None:
    await ledger.post(openai("a", 100, 10, request_id="r"))
    for change in (
        Reverse(Request("t-alpha", "other")),
        Reverse(Request("t-beta", "r")),
        Reverse(Fee("t-alpha", "r")),
        Counts(Request("t-alpha", "R"), HALF),
        Report(12345),
    ):
        with pytest.raises(Unknown):
            await done(writer, change)
    with pytest.raises(ActRefused, match="needs a reason"):
        await done(writer, Reverse(R), reason=" ")
    usage = ledger.value("select entry_id from ledger.entries")
    with pytest.raises(ActRefused, match="is no report that was kept"):
        await done(writer, Report(usage))


async def test_a_preview_says_what_would_move_and_writes_nothing(ledger: Ledger, writer: Connection) -> None:
    await ledger.post(openai("a", 100, 10, request_id="r"))
    before = ledger.value("select count(*) from ledger.batches")
    made = await plan(writer, await load_books(writer), Wanted(Counts(R, HALF)))
    assert made.effects == [
        Effect("charge", "USD", Decimal("0.00028"), Decimal("0.00014")),
        Effect("cost", "USD", Decimal("0.00028"), Decimal("0.00014")),
        Effect("requests", None, Decimal(1), Decimal(1)),
        Effect("input_tokens", None, Decimal(100), Decimal(50)),
        Effect("output_tokens", None, Decimal(10), Decimal(5)),
    ]
    assert made.effects[0].difference == Decimal("-0.00014")
    assert ledger.value("select count(*) from ledger.batches") == before
    assert ledger.value("select count(*) from ledger.approvals") == 0


async def test_a_correction_that_needs_two_people_waits_for_the_second(
    ledger: Ledger, writer: Connection, operator: Connection
) -> None:
    await ledger.post(openai("a", 100, 10, request_id="r"))
    needed = {"corrections.reverse"}
    asked = await correct(writer, Wanted(Reverse(R)), actor="ann", reason="twice", needed=needed)
    assert isinstance(asked, Awaiting)
    assert total(ledger) == (1, Decimal("0.00028"), 100, 10)
    assert not (await done(writer, Difference(R, charge=Decimal(1)), needed=needed)).is_repeat, "needs nobody"
    again = await correct(writer, Wanted(Reverse(R)), actor="ann", reason="twice", needed=needed)
    assert isinstance(again, Awaiting)
    assert again.approval_id != asked.approval_id, "what stands is not what it was when it was asked for"
    await decide(operator, again.approval_id, approve=True, actor="ben", reason=None)
    made = await done(writer, Reverse(R), needed=needed, reason="twice")
    assert made.record.second_person == "ben"
    assert ledger.rows("select second_person from ledger.acts where act = 'corrections.reverse'") == [("ben",)]
    assert ledger.rows("select state, used_at is not null from ledger.approvals order by 1") == [
        ("requested", False),
        ("used", True),
    ]
    assert total(ledger) == (0, Decimal(0), 0, 0)


async def test_corrections_are_listed_and_nobody_changes_them(ledger: Ledger, writer: Connection) -> None:
    await ledger.post(openai("a", 100, 10, request_id="r"), openai("b", 1, 1, request_id="r2"))
    await done(writer, Reverse(R))
    await done(writer, Difference(Request("t-alpha", "r2"), charge=Decimal(1)))
    listed = await list_corrections(writer)
    assert [(each.correction_no, each.kind, each.request_id) for each in listed] == [
        (2, "adjust", "r2"),
        (1, "reverse", "r"),
    ]
    assert [each.request_id for each in await list_corrections(writer, request_id="r")] == ["r"]
    assert await list_corrections(writer, tenant_id="t-beta") == []
    assert [each.correction_no for each in await list_corrections(writer, before=2)] == [1]
    for statement in ("update ledger.corrections set reason = ''", "delete from ledger.corrections"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            await writer.execute(statement)
        with pytest.raises(psycopg.errors.DatabaseError, match="append-only"):
            ledger.superuser.execute(statement)


# --- Proposals ----------------------------------------------------------------------------------------------------------


async def proposed(ledger: Ledger, event: dict[str, Any]) -> int:
    await ledger.post(openai("a", 100, 10, request_id="r"))
    posted = await ledger.post(event)
    assert posted.results[0].reason == "proposed"
    return int(ledger.value("select max(entry_id) from ledger.entries where kind = 'evidence'"))


async def test_a_lower_count_that_is_accepted_counts(ledger: Ledger, writer: Connection) -> None:
    """50 x 2 + 5 x 8 = 140 millionths, with what only that report knew."""
    entry_id = await proposed(ledger, openai("b", 50, 5, request_id="r", revision=1, feature="search", tags={"t": "x"}))
    (waiting,) = await list_proposals(writer)
    assert (waiting.entry_id, waiting.request_id, waiting.charge_amount) == (entry_id, "r", Decimal("0.00014"))
    made = await done(writer, Report(entry_id))
    assert total(ledger) == (1, Decimal("0.00014"), 50, 5)
    assert ledger.requests("feature", "tags::text") == {("search", '{"t": "x"}'): (1, Decimal("0.00014"))}
    assert await list_proposals(writer) == []
    assert (await done(writer, Report(entry_id))).record == made.record, "a retry finds it made"
    with pytest.raises(ActRefused, match="was decided on by correction 1"):
        await refuse(writer, entry_id, actor="ben", reason="no")
    assert ledger.outcomes(await ledger.post(openai("c", 100, 10, request_id="r", revision=7))) == ["evidence"]
    assert proof(ledger) == []


async def test_a_void_that_is_accepted_withdraws_the_request(ledger: Ledger, writer: Connection) -> None:
    entry_id = await proposed(ledger, openai("b", 0, 0, request_id="r", status="void", usage=..., revision=1))
    await done(writer, Report(entry_id))
    assert ledger.requests("request_id") == {}
    assert ledger.rows(
        "select kind, status, request_count from ledger.entries where reason is not null order by 2"
    ) == [
        ("true_up", "ok", -1),
        ("true_up", "void", 0),
    ]
    assert proof(ledger) == []


async def test_a_proposal_that_is_refused_stays_refused(ledger: Ledger, writer: Connection) -> None:
    entry_id = await proposed(ledger, openai("b", 50, 5, request_id="r", revision=1))
    made = await refuse(writer, entry_id, actor="ann", reason="the provider bills 100")
    assert isinstance(made, Corrected)
    assert (made.record.kind, made.record.batch_id, made.record.entry_count) == ("refuse", None, 0)
    again = await refuse(writer, entry_id, actor="ben", reason="again")
    assert isinstance(again, Corrected)
    assert again.is_repeat
    with pytest.raises(ActRefused, match="was decided on"):
        await done(writer, Report(entry_id))
    assert await list_proposals(writer) == []
    assert total(ledger) == (1, Decimal("0.00028"), 100, 10)
    assert proof(ledger) == []


async def test_any_report_that_was_kept_may_be_accepted(ledger: Ledger, writer: Connection) -> None:
    """The node counted 120 tokens: 120 x 2 + 10 x 8 = 320 millionths."""
    await ledger.post(openai("a", 100, 10, request_id="r"))
    await ledger.post(openai("n", 120, 10, request_id="r", source=NODE))
    entry_id = ledger.value("select entry_id from ledger.entries where kind = 'evidence'")
    await done(writer, Report(entry_id))
    assert ledger.requests("source") == {NODE: (1, Decimal("0.00032"))}
    assert proof(ledger) == []


async def test_a_report_without_counts_cannot_be_accepted(ledger: Ledger, writer: Connection) -> None:
    await ledger.post(openai("a", 100, 10, request_id="r"))
    await ledger.post(openai("b", 0, 0, request_id="r", usage=None, source=NODE))
    entry_id = ledger.value("select entry_id from ledger.entries where kind = 'evidence'")
    with pytest.raises(ActRefused, match="has no counts"):
        await done(writer, Report(entry_id))


async def test_open_proposals_are_found_by_their_own_index(ledger: Ledger, writer: Connection) -> None:
    await proposed(ledger, openai("b", 50, 5, request_id="r", revision=1))
    ledger.superuser.execute("set enable_seqscan = off")
    plan_lines = ledger.rows(
        "explain select entry_id from ledger.entries where kind = 'evidence' and usage_flags @> '{proposed}'"
    )
    assert any("recorded_at_idx" in line or "proposed" in line for (line,) in plan_lines)


# --- Conflicts ----------------------------------------------------------------------------------------------------------


async def conflicting(ledger: Ledger, first: dict[str, Any], second: dict[str, Any]) -> int:
    await ledger.post(first)
    assert ledger.outcomes(await ledger.post(second)) == ["conflict"]
    return int(ledger.value("select max(dead_letter_id) from ledger.dead_letters"))


async def test_the_second_content_of_a_conflict_counts_once_a_person_says_so(
    ledger: Ledger, writer: Connection, operator: Connection
) -> None:
    """50 x 2 + 5 x 8 = 140 millionths in the place of 280."""
    letter = await conflicting(ledger, openai("a", 100, 10, request_id="r"), openai("a", 50, 5, request_id="r"))
    made = await done(writer, Content(letter, await content_of(operator, letter)))
    assert total(ledger) == (1, Decimal("0.00014"), 50, 5)
    assert made.record.dead_letter_id == letter
    assert ledger.rows("select resolution, resolved_by, resolved_at is not null from ledger.dead_letters") == [
        ("accepted", "ann", True)
    ]
    assert (await done(writer, Content(letter, await content_of(operator, letter)))).is_repeat
    assert ledger.outcomes(await ledger.post(openai("a", 50, 5, request_id="r"))) == ["conflict"]
    assert ledger.outcomes(await ledger.post(openai("a", 100, 10, request_id="r"))) == ["duplicate"]
    assert proof(ledger) == []


async def test_the_second_content_may_speak_of_another_request(
    ledger: Ledger, writer: Connection, operator: Connection
) -> None:
    """The sender took one id for two calls: 280 and 140 millionths; both count."""
    letter = await conflicting(ledger, openai("a", 100, 10, request_id="r"), openai("a", 50, 5, request_id="r2"))
    await done(writer, Content(letter, await content_of(operator, letter)))
    assert ledger.requests("request_id") == {"r": (1, Decimal("0.00028")), "r2": (1, Decimal("0.00014"))}
    assert ledger.rows("select kind, actor from ledger.entries order by entry_id") == [
        ("usage", None),
        ("usage", "ann"),
    ]
    assert proof(ledger) == []


async def test_a_conflict_that_is_dismissed_cannot_be_accepted(
    ledger: Ledger, writer: Connection, operator: Connection
) -> None:
    from ledger.dead_letters import dismiss

    letter = await conflicting(ledger, openai("a", 100, 10, request_id="r"), openai("a", 50, 5, request_id="r"))
    said = await content_of(operator, letter)
    await dismiss(operator, [letter], actor="ann", reason="a bug of the sender")
    with pytest.raises(ActRefused, match="is resolved already: dismissed"):
        await content_of(operator, letter)
    with pytest.raises(ActRefused, match="is resolved already"):
        await done(writer, Content(letter, said))
    assert total(ledger) == (1, Decimal("0.00028"), 100, 10)


async def test_what_is_no_conflict_is_not_accepted(ledger: Ledger, operator: Connection) -> None:
    await ledger.post(openai("a", 100, 10, tenant_id="t-nobody"))
    letter = ledger.value("select dead_letter_id from ledger.dead_letters")
    with pytest.raises(ActRefused, match="is no conflict but unknown_tenant"):
        await content_of(operator, letter)
    with pytest.raises(Unknown):
        await content_of(operator, letter + 1)


# --- Whatever comes, in whatever order ----------------------------------------------------------------------------------

LAYERS = {
    "node interim": (NODE, False),
    "node": (NODE, True),
    "gateway interim": (GATEWAY, False),
    "gateway": (GATEWAY, True),
}
"""From the one that counts least to the one that counts most."""
tokens = st.tuples(st.integers(0, 4), st.integers(0, 4))
_examples = iter(range(1_000_000))


@st.composite
def stories(draw: st.DrawFn) -> tuple[dict[str, tuple[int, int]], list[int], tuple[int, int] | None, list[list[Any]]]:
    """Reports by layer, differences in millionths, counts that a person may state, and two ways to tell all of it."""
    said = draw(st.dictionaries(st.sampled_from(sorted(LAYERS)), tokens))
    differences = draw(st.lists(st.integers(-9, 9).filter(bool), max_size=3))
    stated = draw(st.none() | tokens)
    told: list[Any] = [*said, *range(len(differences)), *([] if stated is None else ["stated"])]
    ways = []
    for _ in range(2):
        repeats = draw(st.lists(st.sampled_from(told), max_size=3)) if told else []
        ways.append(draw(st.permutations([*told, *repeats])))
    return said, differences, stated, ways


@settings(max_examples=examples(15), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(story=stories(), data=st.data())
async def test_reports_and_corrections_that_commute_give_the_same_totals_in_any_order(
    ledger: Ledger, writer: Connection, story: Any, data: st.DataObject
) -> None:
    """By request, tenant and month: the best report, or the counts that a person stated, and all differences once.

    Everything is told of two requests, each in an order, with repeats and in batches of its own; both begin with an
    estimate, which dates them.
    """
    said, differences, stated, ways = story
    best = next((said[layer] for layer in reversed(LAYERS) if layer in said), (1, 1))
    counted = stated if stated is not None else best
    millionths = counted[0] * 2 + counted[1] * 8 + sum(differences)
    expected = {}
    async with ledger.intake() as intake:
        for way in ways:
            request_id = f"any-{next(_examples)}"
            begun = openai(
                f"{request_id}-begun", 1, 1, request_id=request_id, source=NODE, basis="estimated", final=False
            )
            await intake.post(await intake.read([ledger.message(begun)]))
            waiting: list[dict[str, Any]] = []

            async def post_all(waiting: list[dict[str, Any]] = waiting) -> None:
                if waiting:
                    await intake.post(await intake.read([ledger.message(*waiting)]))
                    waiting.clear()

            for what in way:
                of = Request("t-alpha", request_id)
                if what in LAYERS:
                    source, final = LAYERS[what]
                    waiting.append(
                        openai(f"{request_id}-{what}", *said[what], request_id=request_id, source=source, final=final)
                    )
                    if data.draw(st.booleans()):
                        await post_all()
                    continue
                await post_all()
                if what == "stated":
                    assert stated is not None
                    change: Any = Counts(of, {"uncached_input_tokens": stated[0], "visible_output_tokens": stated[1]})
                else:
                    change = Difference(of, charge=Decimal(differences[what]) / 1_000_000)
                await done(writer, change, correction_id=f"{request_id}-{what}")
            await post_all()
            if way:
                expected[request_id] = (1, Decimal(millionths) / 1_000_000, *counted)
    for request_id, totals in expected.items():
        assert total(ledger, request_id) == totals
        months = "select count(distinct (tenant_id, posting_period)) from ledger.entries where request_id = %s"
        assert ledger.value(months, request_id) == 1
    assert proof(ledger) == []
