"""What the group commit does when the database, another replica or the queue is in the way."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from api.group_commit import GroupCommit
from ingest.intake import Intake
from ledger import failpoints
from ledger.database import CALENDAR_LOCK
from tests.api.support import make_key, outcomes, problem, site
from tests.factories import GATEWAY, make_event
from tests.support.ledger import Ledger, writer_away
from tests.support.waiting import until

PRICE = Decimal("0.00028")


@contextmanager
def calendar_held(ledger: Ledger) -> Iterator[None]:
    """Hold the calendar lock, so that a post waits in the middle of its transaction."""
    with psycopg.connect(ledger.database.url) as holder:
        holder.execute("select pg_advisory_xact_lock(%s)", [CALENDAR_LOCK])
        yield


def is_waiting(ledger: Ledger) -> bool:
    return bool(
        ledger.value(
            "select exists (select from pg_stat_activity where datname = %s and usename = 'tallystick_writer'"
            " and wait_event = 'advisory')",
            ledger.database.name,
        )
    )


async def test_a_full_queue_pushes_back_and_drops_nothing(world: Ledger) -> None:
    """B117 with a queue of 40 and 48 events, the ledger being out of reach until the sender has been refused."""
    token = await make_key(world, source=GATEWAY)
    refused = 0

    async def send_until_taken(here: Any, number: int) -> None:
        nonlocal refused
        while True:
            answer = await here.send(make_event(f"ev-{number}"), token=token)
            if answer.status_code == 200:
                assert outcomes(answer) in (["created"], ["duplicate"])
                return
            assert problem(answer) == "queue-full"
            assert int(answer.headers["retry-after"]) >= 1
            refused += 1
            await asyncio.sleep(0.02)

    async with site(world, queue_events_max=40, body_events_max=10, deadline_seconds=60) as here:
        with calendar_held(world):
            tasks = [asyncio.create_task(send_until_taken(here, number)) for number in range(48)]
            await until(lambda: refused >= 8)
            assert "queue is full" in (await here.client.get("/readyz")).json()["checks"]["events"]
        await asyncio.gather(*tasks)
        assert await here.metric('tallystick_requests_pushed_back_total{problem="queue-full"}') == refused >= 8
    assert world.total() == 48 * PRICE


async def test_a_fault_outside_a_commit_is_told_at_once_and_makes_the_replica_unready(
    world: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise KeyError("a fault of ours")

    token = await make_key(world, source=GATEWAY)
    monkeypatch.setattr(GroupCommit, "_take", fail)
    async with site(world, deadline_seconds=60) as here:
        for _ in range(2):
            assert problem(await here.send(make_event(), token=token)) == "closing"
        assert "restart" in (await here.client.get("/readyz")).json()["checks"]["events"]


async def test_a_database_that_comes_back_in_time_is_waited_for(world: Ledger) -> None:
    token = await make_key(world, source=GATEWAY)
    async with site(world, patience_seconds=10) as here:
        with writer_away(world):
            sent = asyncio.create_task(here.send(make_event(), token=token))
            await asyncio.sleep(0.2)
            assert not sent.done()
        assert outcomes(await sent) == ["created"]
    assert world.total() == PRICE


async def test_a_database_that_stays_away_is_a_503_and_nothing_is_acknowledged(world: Ledger) -> None:
    token = await make_key(world, source=GATEWAY)
    async with site(world, patience_seconds=0.2) as here:
        assert outcomes(await here.send(make_event("ev-0"), token=token)) == ["created"]
        with writer_away(world):
            answer = await here.send(make_event("ev-1"), token=token)
            assert (answer.status_code, problem(answer)) == (503, "database-away")
            assert "retry-after" in answer.headers
        assert outcomes(await here.send(make_event("ev-1"), token=token)) == ["created"]
    assert world.total() == 2 * PRICE


async def test_an_app_that_starts_without_its_database_takes_events_once_it_is_there(world: Ledger) -> None:
    token = await make_key(world, source=GATEWAY)
    with writer_away(world):
        context = site(world)
        entering = asyncio.create_task(context.__aenter__())
        await asyncio.sleep(0.3)
    here = await entering
    try:
        assert outcomes(await here.send(make_event(), token=token)) == ["created"]
        assert (await here.client.get("/readyz")).json() == {"status": "ready"}
    finally:
        await context.__aexit__(None, None, None)


async def test_a_deadline_says_that_the_outcome_is_open_and_the_retry_counts_once(world: Ledger) -> None:
    token = await make_key(world, source=GATEWAY)
    async with site(world, deadline_seconds=0.3) as here:
        with calendar_held(world):
            answer = await here.send(make_event("ev-1"), token=token)
            queued = await here.send(make_event("ev-2"), token=token)
        assert problem(answer) == problem(queued) == "deadline-passed"
        # The first was in the transaction already, the second had not left the queue and was taken out of it.
        assert outcomes(await here.send(make_event("ev-1"), token=token)) == ["duplicate"]
        assert outcomes(await here.send(make_event("ev-2"), token=token)) == ["created"]
    assert world.total() == 2 * PRICE


@pytest.mark.parametrize("times", [1, 2])
async def test_a_flush_that_fails_is_done_again_with_all_of_it(world: Ledger, times: int) -> None:
    """B116: the connection dies before the commit, and once more; three events, each once."""
    token = await make_key(world, source=GATEWAY)
    left = times

    def cut(*_: Any) -> None:
        nonlocal left
        if left:
            left -= 1
            world.superuser.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where usename = 'tallystick_writer' and state ~ '^idle in transaction' and datname = %s",
                [world.database.name],
            )

    async with site(world) as here:
        failpoints.set_failpoint("post.before_entries", cut)
        try:
            answer = await here.send(*[make_event(f"ev-{n}") for n in range(3)], token=token)
        finally:
            failpoints.set_failpoint("post.before_entries", None)
    assert outcomes(answer) == ["created"] * 3
    assert left == 0
    assert world.total() == 3 * PRICE


class CutAtCommit:
    """A connection whose commit is not answered: the server is told, and then cut off, or cut off before it is told."""

    def __init__(self, connection: Any, ledger: Ledger, is_told: bool) -> None:
        self._connection, self._ledger, self._is_told = connection, ledger, is_told

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    async def execute(self, statement: Any, *values: Any) -> Any:
        if statement != "commit":
            return await self._connection.execute(statement, *values)
        if self._is_told:
            await self._connection.execute("commit")
        await self._connection.close()
        raise psycopg.OperationalError("the connection was lost")


@pytest.mark.parametrize("is_told", [True, False])
async def test_a_commit_that_is_not_answered_is_looked_up_and_not_doubled(
    world: Ledger, monkeypatch: pytest.MonkeyPatch, is_told: bool
) -> None:
    """The sender is told created either way, and the feed has one batch."""
    token = await make_key(world, source=GATEWAY)
    async with site(world) as here:
        intake = here.commits._intake
        assert isinstance(intake, Intake)
        # Rate sets get their ids before, so that the next commit is the batch's own.
        assert outcomes(await here.send(make_event("ev-0"), token=token)) == ["created"]
        monkeypatch.setattr(intake, "_connection", CutAtCommit(intake._connection, world, is_told))
        answer = await here.send(make_event("ev-1"), make_event("ev-2"), token=token)
        assert outcomes(answer) == ["created", "created"]
        assert answer.json()["batch_number"] == 2
        assert outcomes(await here.send(make_event("ev-1"), token=token)) == ["duplicate"]
    assert world.total() == 3 * PRICE
    assert world.rows("select number, created_count from ledger.batches order by number") == [(1, 1), (2, 2), (3, 0)]


async def test_a_second_process_with_the_name_fences_the_first(world: Ledger) -> None:
    token = await make_key(world, source=GATEWAY)
    async with site(world, name="twin") as first:
        assert outcomes(await first.send(make_event("ev-1"), token=token)) == ["created"]
        async with site(world, name="twin") as second:
            answer = await first.send(make_event("ev-2"), token=token)
            assert (answer.status_code, problem(answer)) == (503, "replica-fenced")
            assert problem(await first.client.get("/readyz")) == "not-ready"
            assert await first.metric("tallystick_feed_fenced") == 1
            assert (await first.client.get("/healthz")).status_code == 200
            assert (await first.budgets("t-alpha", token)).status_code == 200
            assert outcomes(await second.send(make_event("ev-2"), token=token)) == ["created"]
            assert (await second.client.get("/readyz")).status_code == 200
        assert problem(await first.send(make_event("ev-3"), token=token)) == "replica-fenced"
    assert world.total() == 2 * PRICE


async def test_a_fenced_replica_is_unready_before_it_is_asked_for_anything(world: Ledger) -> None:
    async with site(world, name="twin") as first, site(world, name="twin"):
        answer = await first.client.get("/readyz")
        assert (answer.status_code, problem(answer)) == (503, "not-ready")
        assert "another process" in answer.json()["checks"]["events"]


async def test_two_replicas_with_the_same_event_create_it_once(world: Ledger) -> None:
    token = await make_key(world, source=GATEWAY)
    async with site(world, name="one") as one, site(world, name="two") as two:
        sent = [here.send(make_event(f"ev-{n % 10}"), token=token) for n in range(40) for here in (one, two)]
        answers = await asyncio.gather(*sent)
    told = [outcome for answer in answers for outcome in outcomes(answer)]
    assert (told.count("created"), told.count("duplicate")) == (10, 70)
    assert world.total() == 10 * PRICE


async def test_what_is_queued_is_finished_when_the_app_ends(world: Ledger) -> None:
    token = await make_key(world, source=GATEWAY)
    async with site(world) as here:
        with calendar_held(world):
            sent = [asyncio.create_task(here.send(make_event(f"ev-{n}"), token=token)) for n in range(5)]
            await until(lambda: is_waiting(world))
            closing = asyncio.create_task(here.commits.close())
            await asyncio.sleep(0.05)
            assert problem(await here.send(make_event("late"), token=token)) == "closing"
        await closing
        assert [outcomes(await answer) for answer in sent] == [["created"]] * 5
    assert world.total() == 5 * PRICE


async def test_a_fault_of_ours_is_logged_by_place_and_never_by_content(
    world: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    token = await make_key(world, source=GATEWAY)

    def fail(*_: Any) -> None:
        raise ValueError("t-beta spent 5 USD")

    async with site(world) as here:
        failpoints.set_failpoint("post.before_entries", fail)
        try:
            answer = await here.send(make_event(), token=token)
        finally:
            failpoints.set_failpoint("post.before_entries", None)
    assert answer.json()["reference"] in caplog.text
    assert "ValueError" in caplog.text
    for told in (answer.text, caplog.text):
        assert "t-beta" not in told
        assert "Traceback" not in told
