"""Gaps: a number that a sender counted and that never came is named; late, repeated, set aside and restarted ones are not."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.database import connect
from ledger.errors import ActRefused
from ledger.sequences import (
    JUMP,
    RANGES_MAX,
    Counter,
    accept_gaps,
    holds,
    holes,
    joined,
    list_counters,
    list_gaps,
    overlap,
    take_sequences,
)
from tests.factories import GATEWAY, make_event
from tests.support.ledger import Ledger

AT = datetime(2026, 1, 15, tzinfo=UTC)
NONE = timedelta(0)


def runs_of(*numbers: int) -> list[list[tuple[int, int]]]:
    """Take numbers one by one; return the ranges of each run."""
    counter = Counter()
    for number in numbers:
        counter.take(number, AT)
    return [run.seen for run in counter.runs]


# --- Ranges -------------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 60)), st.lists(st.integers(0, 60)))
def test_ranges_say_what_sets_say(some: list[int], others: list[int]) -> None:
    one, other = joined((n, n) for n in some), joined((n, n) for n in others)
    assert [n for low, high in one for n in range(low, high + 1)] == sorted(set(some))
    assert overlap(one, other) == bool(set(some) & set(others))
    assert {n for n in range(61) if holds(one, n)} == set(some)
    missing = set(range(min(some), max(some) + 1)) - set(some) if some else set()
    assert {n for low, high in holes(one) for n in range(low, high + 1)} == missing


# --- To which run a number belongs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("numbers", "runs"),
    [
        ((0, 1, 2), [[(0, 2)]]),
        ((1, 2, 3), [[(1, 3)]]),
        ((2, 0, 1), [[(0, 2)]]),
        ((5, 6, 9), [[(5, 6), (9, 9)]]),
        # Late: it fills its gap.
        ((5, 6, 9, 8, 7), [[(5, 9)]]),
        # A restart at 0, and one at 1, as soon as the number is there for the second time.
        ((0, 1, 2, 0, 1), [[(0, 2)], [(0, 1)]]),
        ((1, 2, 3, 1, 2), [[(1, 3)], [(1, 2)]]),
        # One that was watched from the middle restarts where nothing so low can be late.
        ((5000, 5001, 0, 1), [[(5000, 5001)], [(0, 1)]]),
        # 1 comes before 0: one restart, not two.
        ((0, 1, 2, 1, 0), [[(0, 2)], [(0, 1)]]),
        # What comes late of the run before the restart goes there: into its gap, or behind its end.
        ((*range(3000), 3001, 0, 1, 3000), [[(0, 3001)], [(0, 1)]]),
        ((*range(3000), 0, 1, 3000), [[(0, 3000)], [(0, 1)]]),
    ],
)
def test_a_number_goes_where_it_belongs(numbers: tuple[int, ...], runs: list[Any]) -> None:
    assert runs_of(*numbers) == runs


def test_processes_that_count_under_one_name_are_repeats_and_no_restarts() -> None:
    """Two processes count from 0 to 9 in turn: of 20 events few make a run, and most of the second ones are repeats."""
    counter = Counter()
    for number in range(10):
        counter.take(number, AT)
        counter.take(number, AT)
    assert len(counter.runs) == 3
    assert counter.runs[-1].repeats == 8


def test_a_number_that_is_no_counter_is_given_up() -> None:
    counter = Counter()
    assert counter.take_all([(n * 2, n * 2) for n in range(RANGES_MAX)], AT)
    counter.take(2 * RANGES_MAX, AT)
    assert counter.runs[-1].is_sparse
    assert len(counter.runs[-1].seen) == 1


@given(st.permutations(list(range(2, 40))), st.integers(1, 10))
def test_batches_say_what_single_numbers_say(numbers: Sequence[int], size: int) -> None:
    """In any order and any cut, as long as nothing restarts."""
    whole = Counter()
    for start in range(0, len(numbers), size):
        assert whole.take_all(joined((n, n) for n in numbers[start : start + size]), AT)
    assert [run.seen for run in whole.runs] == runs_of(*numbers) == [[(2, 39)]]


def test_a_jump_behind_a_restart_is_looked_at_one_by_one() -> None:
    counter = Counter()
    for number in (*range(3000), 0):
        counter.take(number, AT)
    assert not counter.take_all([(JUMP + 1, JUMP + 1)], AT)
    assert counter.take_all([(JUMP, JUMP)], AT)


# --- From entries ---------------------------------------------------------------------------------------------------------


async def gaps(ledger: Ledger, grace: timedelta = NONE) -> list[tuple[str, int, int, str]]:
    """Take what is new, as the scheduler does, and list what is missing."""
    connection = await connect(ledger.database.url_for("tallystick_operator"))
    try:
        await take_sequences(connection)
        return [(gap.source, gap.low, gap.high, gap.state) for gap in await list_gaps(connection, grace=grace)]
    finally:
        await connection.close()


def counted(first: int, last: int, **overrides: Any) -> list[dict[str, Any]]:
    name = overrides.pop("name", "e")
    return [make_event(f"{name}-{n}", sequence=n, **overrides) for n in range(first, last + 1)]


@pytest.fixture
async def priced(ledger: Ledger) -> Ledger:
    return await ledger.add_price(input="2.00", output="8.00")


async def test_what_never_came_is_named_once_it_is_old_enough(priced: Ledger) -> None:
    """1 to 10 without 4 and 7 to 8: three numbers in two gaps, open in their first minutes."""
    await priced.post(*(event for event in counted(1, 10) if event["data"]["sequence"] not in (4, 7, 8)))
    assert await gaps(priced, timedelta(minutes=15)) == [(GATEWAY, 4, 4, "open"), (GATEWAY, 7, 8, "open")]
    assert await gaps(priced) == [(GATEWAY, 4, 4, "lost"), (GATEWAY, 7, 8, "lost")]
    await priced.post(*counted(7, 7))
    assert await gaps(priced) == [(GATEWAY, 4, 4, "lost"), (GATEWAY, 8, 8, "lost")]


async def test_a_gap_keeps_its_age_when_part_of_it_is_filled(priced: Ledger) -> None:
    await priced.post(*counted(1, 2), *counted(10, 10))
    await gaps(priced)
    priced.superuser.execute("update ledger.sequence_gaps set noted_at = '2026-01-01'")
    await priced.post(*counted(5, 5))
    await gaps(priced)
    assert priced.rows("select low, high, noted_at < '2026-01-02' from ledger.sequence_gaps order by 1") == [
        (3, 4, True),
        (6, 9, True),
    ]


async def test_what_is_set_aside_is_not_lost(priced: Ledger) -> None:
    """3 is a dead letter, 4 a conflict, 5 nowhere."""
    await priced.post(*counted(1, 2), *counted(6, 6), make_event("same", sequence=2, request_id="r"))
    await priced.post(*counted(3, 3, feature=7), make_event("e-1", sequence=4, model="m-other"))
    assert await gaps(priced) == [(GATEWAY, 3, 4, "set_aside"), (GATEWAY, 5, 5, "lost")]


async def test_duplicates_true_ups_and_evidence_are_no_repeats(priced: Ledger) -> None:
    """A call in three reports, each an event with a number of its own; the last is sent twice."""
    reports = [
        make_event("a", sequence=1, request_id="r", status="in_progress", usage=...),
        make_event("b", sequence=2, request_id="r", final=False),
        make_event("c", sequence=3, request_id="r", usage={"prompt_tokens": 200, "completion_tokens": 10}),
        make_event("d", sequence=4, request_id="r", final=False),
    ]
    await priced.post(*reports, reports[-1])
    await priced.post(*reports)
    assert await gaps(priced) == []
    assert priced.rows("select run, seen::text, repeats from ledger.sequence_runs") == [(1, "{[1,5)}", 0)]


async def test_a_sender_counts_for_all_its_tenants_and_each_sender_for_itself(priced: Ledger) -> None:
    priced.add_tenant("t-beta").add_source("gateway://us-1")
    await priced.post(*counted(1, 2), *counted(3, 3, tenant_id="t-beta"), *counted(5, 6, source="gateway://us-1"))
    assert await gaps(priced) == []


async def test_a_restart_hides_nothing_and_makes_nothing_up(priced: Ledger) -> None:
    """1 to 5 without 3, then from 1 anew to 4 without 2; each run has its own gap."""
    await priced.post(*(e for e in counted(1, 5) if e["id"] != "e-3"))
    await priced.post(*(e for e in counted(1, 4, name="again") if e["id"] != "again-2"))
    assert await gaps(priced) == [(GATEWAY, 3, 3, "lost"), (GATEWAY, 2, 2, "lost")]
    assert priced.rows("select run, seen::text from ledger.sequence_runs order by run") == [
        (1, "{[1,3),[4,6)}"),
        (2, "{[1,2),[3,5)}"),
    ]


async def test_batches_are_taken_once_whatever_their_feed(priced: Ledger) -> None:
    """Partitions interleave: even numbers by one feed, odd ones by another, asked in between."""
    await priced.post(*(e for e in counted(1, 20) if e["data"]["sequence"] % 2), feed="file:odd")
    assert len(await gaps(priced)) == 9
    await priced.post(*(e for e in counted(1, 20) if not e["data"]["sequence"] % 2), feed="file:even")
    assert await gaps(priced) == []
    connection = await connect(priced.database.url_for("tallystick_operator"))
    try:
        assert (await take_sequences(connection)).batch_count == 0
        (counter,) = await list_counters(connection)
        assert (counter.low, counter.high, counter.run) == (1, 20, 1)
    finally:
        await connection.close()


async def test_a_person_may_say_that_a_gap_is_known(priced: Ledger) -> None:
    await priced.post(*counted(1, 1), *counted(3, 3), *counted(5, 5))
    await gaps(priced)
    connection = await connect(priced.database.url_for("tallystick_operator"))
    try:
        said = {"actor": "ann", "reason": "the node's disk died"}
        assert await accept_gaps(connection, GATEWAY, low=2, high=2, **said) == 1
        with pytest.raises(ActRefused, match="has no gap there"):
            await accept_gaps(connection, GATEWAY, low=2, high=2, **said)
    finally:
        await connection.close()
    assert await gaps(priced) == [(GATEWAY, 2, 2, "accepted"), (GATEWAY, 4, 4, "lost")]
    assert priced.rows("select actor, reason from ledger.acts where act = 'gaps.accept'") == [
        ("ann", "the node's disk died")
    ]
