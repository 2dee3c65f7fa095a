"""Failures: whatever dies, at whatever moment, everything is there once afterwards; what is refused costs no neighbour."""

import asyncio
import random
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psycopg
import pytest

from ingest.intake import Intake
from ledger import feeds
from ledger.database import connect, remedy_for
from ledger.errors import Fenced, MonthMissing
from tests.factories import event_bytes, make_event
from tests.support.ledger import Failpoint, Ledger
from tests.support.poster import post_in_a_process
from tests.support.wire import Cut, Wire

PRICE = Decimal("0.00028")
"""100 x 2.00 / 1,000,000 + 10 x 8.00 / 1,000,000."""


@pytest.fixture
async def priced(ledger: Ledger) -> Ledger:
    return await ledger.add_price(input="2.00", output="8.00")


def exactly_once(ledger: Ledger, count: int) -> None:
    """Every event is one entry and one key, the charge and the budgets are those of `count`, the batches have no gap."""
    assert ledger.rows("select count(*), count(distinct event_key) from ledger.entries") == [(count, count)]
    assert ledger.value("select count(*) from ledger.event_keys") == count
    assert ledger.total() == count * PRICE
    assert ledger.budgets_that_differ() == []
    numbers = [number for (number,) in ledger.rows("select number from ledger.batches order by number")]
    assert numbers == list(range(1, len(numbers) + 1))


# --- The process dies ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failpoint", "batches"),
    [("post.before_entries=die@2", 1), ("post.before_commit=die@2", 1), ("post.after_commit=die@2", 2)],
)
def test_a_process_that_dies_in_mid_batch_is_followed_by_one_that_posts_the_rest_once(
    ledger: Ledger, failpoint: str, batches: int
) -> None:
    """12 events in batches of 4, dead at the second: 12 x 0.00028 = 0.00336 after the next start."""
    asyncio.run(add_price(ledger))
    bodies = [event_bytes(make_event(f"ev-{number}")) for number in range(12)]
    url = ledger.database.url_for("tallystick_writer")
    assert post_in_a_process(url, bodies, size=4, failpoints=failpoint) == -9
    assert ledger.value("select next_position from ledger.feeds") == 4 * batches
    assert ledger.total() == 4 * batches * PRICE
    assert post_in_a_process(url, bodies, size=4) == 0
    exactly_once(ledger, 12)
    assert ledger.rows("select sum(duplicate_count), max(next_position) from ledger.batches") == [(0, 12)]


async def add_price(ledger: Ledger) -> None:
    await ledger.add_price(input="2.00", output="8.00")


# --- The connection dies ------------------------------------------------------------------------------------------------


async def post_at(ledger: Ledger, intake: Intake, first: int, count: int) -> list[str]:
    messages = [ledger.message(make_event(f"ev-{n}"), position=n) for n in range(first, first + count)]
    return ledger.outcomes(
        await intake.post(await intake.read(messages, expected_position=first, next_position=first + count))
    )


@pytest.mark.parametrize("place", ["post.before_keys", "post.before_entries", "post.before_commit"])
async def test_a_session_that_is_ended_in_mid_batch_is_followed_by_another(
    priced: Ledger, failpoint: Failpoint, place: str
) -> None:
    ended = []

    def end_sessions(_: bytes) -> None:
        if not ended:
            ended.append(place)
            priced.superuser.execute(
                "select pg_terminate_backend(pid, 2000) from pg_stat_activity"
                " where usename = 'tallystick_writer' and datname = current_database()"
            )

    failpoint(place, end_sessions)
    async with priced.intake("kafka:c:t:0", kind="kafka") as intake:
        assert await post_at(priced, intake, 0, 5) == ["created"] * 5
        assert await post_at(priced, intake, 5, 5) == ["created"] * 5
    assert ended == [place]
    exactly_once(priced, 10)


async def test_a_session_that_is_ended_while_the_books_are_read_again_is_followed_by_another(
    priced: Ledger, failpoint: Failpoint
) -> None:
    """The way back from one failure may fail as well: it is not the end of the worker."""
    async with priced.intake("kafka:c:t:0", kind="kafka") as intake:
        await post_at(priced, intake, 0, 5)
        messages = [priced.message(make_event(f"ev-{n}"), position=n) for n in range(5, 10)]
        reading = await intake.read(messages, expected_position=5, next_position=10)
        priced.add_tenant("t-new")
        ended = []

        def end_sessions(_: bytes) -> None:
            if not ended:
                ended.append(1)
                priced.superuser.execute(
                    "select pg_terminate_backend(pid, 2000) from pg_stat_activity"
                    " where usename = 'tallystick_writer' and datname = current_database()"
                )

        failpoint("post.stale", end_sessions)
        await intake.post(reading)
    assert ended
    exactly_once(priced, 10)


@pytest.fixture
def wire(priced: Ledger) -> Iterator[Wire]:
    # A socket's path must be short, which pytest's own folders are not.
    with TemporaryDirectory(prefix="wire-") as folder:
        yield Wire(priced.database.server, Path(folder))


@pytest.mark.parametrize(("cut", "seconds"), [("before", 0.0), ("after", 0.0), ("delayed", 0.5)])
async def test_a_commit_that_was_not_answered_is_looked_up(
    priced: Ledger, wire: Wire, cut: Cut, seconds: float
) -> None:
    """Never heard, heard, or heard later than we asked: in each case the five are created once, and the next five too."""
    async with wire.open():
        url = wire.url_for("tallystick_writer", priced.database.name)
        async with priced.intake("kafka:c:t:0", kind="kafka", url=url) as intake:
            wire.arm(cut, seconds)
            assert await post_at(priced, intake, 0, 5) == ["created"] * 5
            assert await post_at(priced, intake, 5, 5) == ["created"] * 5
    assert wire.cuts == 1
    exactly_once(priced, 10)


async def test_a_feed_without_positions_has_its_commit_looked_up_as_well(priced: Ledger, wire: Wire) -> None:
    """Over HTTP the sender is told what its event became the first time: created, not a copy of itself."""
    async with wire.open():
        url = wire.url_for("tallystick_writer", priced.database.name)
        async with priced.intake("api:one", kind="api", url=url) as intake:
            wire.arm("delayed", 0.4)
            posted = await intake.post(await intake.read([priced.message(make_event("ev-1"))]))
            assert priced.outcomes(posted) == ["created"]
    exactly_once(priced, 1)


async def test_a_database_that_stays_away_is_given_up_after_the_patience(priced: Ledger) -> None:
    async with priced.intake() as intake:
        intake._patience = 0.3
        priced.superuser.execute("alter role tallystick_writer nologin")
        try:
            priced.superuser.execute(
                "select pg_terminate_backend(pid, 2000) from pg_stat_activity where usename = 'tallystick_writer'"
            )
            with pytest.raises(psycopg.OperationalError):
                await intake.post(await intake.read([priced.message(make_event("ev-1"))]))
        finally:
            priced.superuser.execute("alter role tallystick_writer login")
        posted = await intake.post(await intake.read([priced.message(make_event("ev-1"))]))
        assert priced.outcomes(posted) == ["created"]


async def test_a_claim_waits_for_the_batch_that_is_under_way(priced: Ledger, failpoint: Failpoint) -> None:
    """The heir reads the position that the dying one committed; nothing in between is posted twice or skipped."""
    loop = asyncio.get_running_loop()
    claimed: list[asyncio.Task[feeds.Claim]] = []

    async def claim() -> feeds.Claim:
        async with await connect(priced.database.url_for("tallystick_writer")) as connection:
            return await feeds.claim(connection, "kafka", "kafka:c:t:0")

    failpoint("post.before_entries", lambda _: claimed.append(loop.create_task(claim())))
    async with priced.intake("kafka:c:t:0", kind="kafka") as intake:
        await post_at(priced, intake, 0, 5)
        assert (await claimed[0]).next_position == 5
        with pytest.raises(Fenced):
            await post_at(priced, intake, 5, 5)
    exactly_once(priced, 5)


# --- The database refuses a row -----------------------------------------------------------------------------------------


def forbid(ledger: Ledger, condition: str) -> None:
    """Make the database refuse rows for a reason that the readers do not know."""
    ledger.superuser.execute(f"alter table ledger.entries add constraint is_allowed check (not ({condition}))")


async def test_a_row_that_the_database_refuses_is_set_aside_and_its_neighbours_are_posted(priced: Ledger) -> None:
    """Three of fifty: 47 x 0.00028 = 0.01316, three letters with their bytes and what the database said."""
    forbid(priced, "feature = 'bad'")
    events = [make_event(f"ev-{n}", feature="bad" if n in (0, 17, 49) else "chat") for n in range(50)]
    async with priced.intake("kafka:c:t:0", kind="kafka") as intake:
        messages = [priced.message(*events, position=0)]
        posted = await intake.post(await intake.read(messages, expected_position=0, next_position=1))
    outcomes = priced.outcomes(posted)
    assert [n for n, outcome in enumerate(outcomes) if outcome == "dead_letter"] == [0, 17, 49]
    assert outcomes.count("created") == 47
    exactly_once(priced, 47)
    letters = priced.rows("select bytes, reason, detail from ledger.dead_letters order by dead_letter_id")
    assert sorted(body for body, _, _ in letters) == sorted(event_bytes(events[n]) for n in (0, 17, 49))
    assert {reason for _, reason, _ in letters} == {"database_refused"}
    assert all(detail.startswith("23514: ") and "is_allowed" in detail for _, _, detail in letters)


async def test_only_the_item_that_is_too_much_is_set_aside(priced: Ledger) -> None:
    """The second report of a request is refused for what it takes away from the first, which alone is fine."""
    forbid(priced, "kind = 'true_up' and charge_amount < 0")
    first = make_event("a", request_id="r", feature="one", final=False)
    second = make_event("b", request_id="r", feature="two")
    posted = await priced.post(make_event("x"), first, second, make_event("y"))
    assert priced.outcomes(posted) == ["created", "created", "dead_letter", "created"]
    assert priced.requests("feature") == {"chat": (2, 2 * PRICE), "one": (1, PRICE)}


async def test_a_text_too_long_for_an_index_costs_one_event(priced: Ledger) -> None:
    """A budget by feature, route and key makes a window for each: 768 letters of four bytes are too long for its key."""
    priced.superuser.execute(
        "insert into quotas.budgets (budget_id, group_by, unit, window_kind, first_window)"
        " values ('by-much', '{feature,route,api_key_id}', 'requests', 'lifetime', '0001-01-01')"
    )
    chance = random.Random(7)
    long = {
        name: "".join(chr(chance.randrange(0x20000, 0x2A000)) for _ in range(256))
        for name in ("feature", "route", "api_key_id")
    }
    posted = await priced.post(make_event("a"), make_event("b", **long), make_event("c"))
    assert [(r.outcome, r.reason) for r in posted.results] == [
        ("created", None),
        ("dead_letter", "database_refused"),
        ("created", None),
    ]
    assert priced.budgets_that_differ() == []


async def test_a_month_without_partition_stops_the_writer_and_costs_no_event(priced: Ledger) -> None:
    """Nothing is wrong with the events: none becomes a dead letter, and all go in once the partition is there."""
    priced.superuser.execute("drop table ledger.entries_2026_01")
    async with priced.intake() as intake:
        reading = await intake.read([priced.message(make_event("a"), make_event("b"))])
        with pytest.raises(MonthMissing, match="2026-01 has no partition to put its entries in"):
            await intake.post(reading)
        assert priced.value("select count(*) from ledger.dead_letters") == 0
        priced.superuser.execute("select ledger.make_partitions('2026-01-01')")
        assert priced.outcomes(await intake.post(reading)) == ["created", "created"]


async def test_a_batch_that_is_refused_even_while_empty_is_no_items_fault(priced: Ledger) -> None:
    priced.superuser.execute("alter table ledger.batches add constraint no_more check (number < 1)")
    with pytest.raises(psycopg.errors.CheckViolation, match="no_more"):
        await priced.post(make_event("a"), make_event("b"))
    assert priced.value("select count(*) from ledger.dead_letters") == 0


async def test_a_reading_of_nothing_but_refused_rows_stops_the_writer(
    priced: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something is wrong with us and not with many senders: nothing is set aside. Nine are too many here, 65 in service."""
    monkeypatch.setattr("ingest.intake._SET_ASIDE_MAX", 8)
    forbid(priced, "kind = 'usage'")
    with pytest.raises(psycopg.errors.CheckViolation):
        await priced.post(*(make_event(f"ev-{n}") for n in range(20)))
    assert priced.value("select count(*) from ledger.dead_letters") == 0


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (psycopg.errors.DeadlockDetected, "retry"),
        (psycopg.errors.UniqueViolation, "retry"),
        (psycopg.errors.AdminShutdown, "retry"),
        (psycopg.errors.DiskFull, "retry"),
        (psycopg.errors.ConnectionFailure, "retry"),
        (psycopg.OperationalError, "retry"),
        (psycopg.errors.NumericValueOutOfRange, "bisect"),
        (psycopg.errors.UntranslatableCharacter, "bisect"),
        (psycopg.errors.NotNullViolation, "bisect"),
        (psycopg.errors.ProgramLimitExceeded, "bisect"),
        (psycopg.errors.InsufficientPrivilege, "stop"),
        (psycopg.errors.UndefinedColumn, "stop"),
        (psycopg.errors.DataCorrupted, "stop"),
        (psycopg.ProgrammingError, "stop"),
    ],
)
def test_what_to_do_about_an_error(error: Any, remedy: str) -> None:
    assert remedy_for(error("said")) == remedy
