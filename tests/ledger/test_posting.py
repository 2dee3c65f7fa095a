"""`post`: recorded once, charged once, nothing lost, nothing half done."""

import asyncio
import json
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from ledger.database import CALENDAR_LOCK
from ledger.errors import BatchTooLarge, Fenced
from ledger.posting import Posted
from ledger.statements import Statement
from tests.factories import GATEWAY, NODE, event_bytes, make_event
from tests.support.ledger import Failpoint, Ledger

PRICE = Decimal("0.00028")
"""100 x 2.00 / 1,000,000 + 10 x 8.00 / 1,000,000."""


@pytest.fixture
async def priced(ledger: Ledger) -> Ledger:
    return await ledger.add_price(input="2.00", output="8.00")


def cents(event_id: str, amount: str, **overrides: Any) -> dict[str, Any]:
    """An event that comes to an amount: tokens of 2.00 a million."""
    tokens = int(Decimal(amount) / 2 * 1_000_000)
    return make_event(event_id, usage={"prompt_tokens": tokens, "completion_tokens": 0}, **overrides)


def spent(ledger: Ledger) -> Decimal:
    """What the budgets hold as posted, over all windows of the template of totals."""
    return Decimal(
        ledger.value("select coalesce(sum(posted), 0) from quotas.windows where budget_id = 'totals-charge'")
    )


async def test_an_event_becomes_one_priced_entry(priced: Ledger) -> None:
    """100 x 2.00 / 1,000,000 + 10 x 8.00 / 1,000,000 = 0.00028."""
    posted = await priced.post(make_event())
    assert priced.outcomes(posted) == ["created"]
    assert priced.rows("select kind, request_count, cost_amount, charge_amount, input_tokens from ledger.entries") == [
        ("usage", 1, PRICE, PRICE, 100)
    ]


# --- Once ---------------------------------------------------------------------------------------------------------------


async def test_b069_a_retry_after_a_failed_write_counts_once(priced: Ledger) -> None:
    """3,000 x 2.00 / 1,000,000 = 0.006: refused by the database at the last moment, then created, then a duplicate."""
    event = cents("ev-77", "0.006", request_id="req-1")
    priced.superuser.execute("alter table quotas.windows rename to windows_away")
    with pytest.raises(psycopg.errors.UndefinedTable):
        await priced.post(event)
    priced.superuser.execute("alter table quotas.windows_away rename to windows")
    assert priced.rows("select count(*) from ledger.event_keys") == [(0,)]
    assert priced.outcomes(await priced.post(event)) == ["created"]
    assert priced.outcomes(await priced.post(event)) == ["duplicate"]
    assert priced.total() == Decimal("0.006")


async def test_b070_a_duplicate_is_recognised_however_late(priced: Ledger) -> None:
    """2,500,000 x 2.00 / 1,000,000 = 5.00, and once more 40 days later."""
    event = cents("ev-5", "5.00", time="2026-01-02T00:00:00Z")
    await priced.post(event, received_at="2026-01-02T00:00:01Z")
    assert priced.outcomes(await priced.post(event, received_at="2026-02-11T00:00:00Z")) == ["duplicate"]
    assert priced.total() == spent(priced) == Decimal("5.00")


async def test_a_duplicate_is_recognised_before_its_time_is_tested(priced: Ledger) -> None:
    """A copy that a broken clock stamps as received too early is still a copy; a new event with that stamp is refused."""
    await priced.post(make_event("ev-1"))
    posted = await priced.post(make_event("ev-1"), make_event("ev-2"), received_at="2026-01-15T09:00:00Z")
    assert [(r.outcome, r.reason) for r in posted.results] == [("duplicate", None), ("dead_letter", "time_in_future")]


async def test_b071_the_same_id_with_other_content_is_a_conflict(priced: Ledger) -> None:
    """0.00028 stays: replaced it would be 0.0074, added 0.00768. The same in other words is a duplicate."""
    first = make_event("ev-9", request_id="req-1")
    other = make_event("ev-9", request_id="req-1", usage={"prompt_tokens": 100, "completion_tokens": 900})
    again = {**first, "time": "2026-01-15T11:00:00+01:00", "data": dict(reversed(first["data"].items()))}
    await priced.post(first)
    assert priced.outcomes(await priced.post(other)) == ["conflict"]
    assert priced.outcomes(await priced.post_bytes(json.dumps(again, indent=3).encode())) == ["duplicate"]
    assert priced.total() == PRICE
    ((letter, first_hash, second_hash, body),) = priced.rows(
        "select reason, first_hash, second_hash, bytes from ledger.dead_letters"
    )
    assert letter == "conflict"
    assert first_hash == priced.value("select content_hash from ledger.event_keys")
    assert first_hash != second_hash
    assert body == event_bytes(other)


async def test_a_conflict_and_a_duplicate_inside_one_batch(priced: Ledger) -> None:
    other = make_event("ev-1", usage={"prompt_tokens": 7, "completion_tokens": 7})
    posted = await priced.post(make_event("ev-1"), other, make_event("ev-1"), other)
    assert priced.outcomes(posted) == ["created", "conflict", "duplicate", "conflict"]
    assert priced.total() == PRICE
    assert priced.rows("select reason, repeats from ledger.dead_letters") == [("conflict", 1)]


async def test_b072_a_batch_with_one_duplicate_is_neither_half_stored_nor_unprocessed(priced: Ledger) -> None:
    """4 x 0.01 = 0.04 in the ledger and in the budget together, and 0 the second time."""
    await priced.post(cents("ev-3", "0.01"))
    batch = [cents(f"ev-{number}", "0.01") for number in range(1, 6)]
    first = await priced.post(*batch)
    assert priced.outcomes(first) == ["created", "created", "duplicate", "created", "created"]
    assert priced.total() == spent(priced) == Decimal("0.05")
    assert set(priced.outcomes(await priced.post(*batch))) == {"duplicate"}
    assert priced.total() == spent(priced) == Decimal("0.05")


async def test_b076_a_replay_changes_nothing(priced: Ledger) -> None:
    """234 x 0.02 + 766 x 0.01 = 12.34: once, again whole, and again backwards in pieces of seven."""
    events = [cents(f"ev-{number}", "0.02" if number < 234 else "0.01") for number in range(1000)]
    await priced.post(*events)
    for again in [[events], [events[::-1][at : at + 7] for at in range(0, 1000, 7)]]:
        async with priced.intake() as intake:
            for piece in again:
                posted = await intake.post(await intake.read([priced.message(*piece)]))
                assert set(priced.outcomes(posted)) == {"duplicate"}
        assert priced.requests("tenant_id") == {"t-alpha": (1000, Decimal("12.34"))}
        assert spent(priced) == Decimal("12.34")


async def test_the_same_event_from_another_source_or_tenant_is_another_event(priced: Ledger) -> None:
    """3 x 0.00028 = 0.00084."""
    priced.add_tenant("t-beta").add_source("gateway://us-1")
    posted = await priced.post(
        make_event(request_id="a"),
        make_event(source="gateway://us-1", request_id="b"),
        make_event(tenant_id="t-beta", request_id="a"),
    )
    assert priced.outcomes(posted) == ["created"] * 3
    assert priced.total() == 3 * PRICE


async def test_an_event_without_request_id_is_a_request_of_its_own(priced: Ledger) -> None:
    """2 x 0.00028 = 0.00056."""
    await priced.post(make_event("ev-1", request_id=...), make_event("ev-2", request_id=""))
    assert priced.total() == 2 * PRICE


# --- Dead letters -------------------------------------------------------------------------------------------------------


async def test_dead_letters_keep_their_bytes_and_count_their_repeats(priced: Ledger) -> None:
    broken = make_event("ev-1", tenant_id="t-nobody")
    await priced.post(broken, make_event("ev-2"), broken)
    await priced.post(broken)
    assert priced.rows("select origin, reason, repeats, bytes from ledger.dead_letters") == [
        ("test", "unknown_tenant", 2, event_bytes(broken))
    ]
    assert priced.rows("select dead_letter_count from ledger.batches order by number") == [(2,), (1,)]


async def test_a_letter_says_what_stands_in_the_way_now(priced: Ledger) -> None:
    """First nobody knew the tenant; when it comes again the id has been taken: a conflict with both hashes."""
    early = make_event("ev-1", tenant_id="t-late")
    await priced.post(early)
    priced.superuser.execute("update ledger.dead_letters set bytes = null")
    priced.add_tenant("t-late")
    await priced.post(make_event("ev-1", tenant_id="t-late", usage={"prompt_tokens": 1, "completion_tokens": 1}))
    assert priced.outcomes(await priced.post(early)) == ["conflict"]
    assert priced.rows(
        "select reason, repeats, bytes, num_nonnulls(event_key, first_hash, second_hash) from ledger.dead_letters"
    ) == [("conflict", 1, event_bytes(early), 3)]


async def test_a_dead_letter_claims_no_key(priced: Ledger) -> None:
    event = make_event("ev-1", tenant_id="t-late")
    assert priced.outcomes(await priced.post(event)) == ["dead_letter"]
    priced.add_tenant("t-late")
    assert priced.outcomes(await priced.post(event)) == ["created"]


async def test_a_pack_full_of_conflicts_is_as_quick_as_any(priced: Ledger) -> None:
    """Their bytes are cut out of the pack once, not once for each."""
    filler = {"tags": {f"k{n}": "x" * 200 for n in range(4)}}
    await priced.post(*(make_event(f"ev-{number}", **filler) for number in range(1500)))
    started = asyncio.get_running_loop().time()
    posted = await priced.post(*(make_event(f"ev-{number}", model="m-other", **filler) for number in range(1500)))
    assert set(priced.outcomes(posted)) == {"conflict"}
    assert priced.value("select count(*) from ledger.dead_letters") == 1500
    assert asyncio.get_running_loop().time() - started < 5


# --- Positions and fencing ----------------------------------------------------------------------------------------------


async def post_at(ledger: Ledger, intake: Any, first: int, last: int) -> Posted:
    """Post messages of one event each, as a worker reads them: positions first to last."""
    messages = [ledger.message(cents(f"ev-{n}", "0.01"), position=n) for n in range(first, last + 1)]
    return await intake.post(await intake.read(messages, expected_position=first, next_position=last + 1))


async def test_b077_a_rebalance_creates_no_second_charge(priced: Ledger) -> None:
    """7 x 0.01 = 0.07. The second worker is told where the feed stands; had it begun at 5, all three would be copies."""
    async with priced.intake("kafka:c:t:0", kind="kafka") as first:
        first.held.next_position = 1
        priced.superuser.execute("update ledger.feeds set next_position = 1")
        await post_at(priced, first, 1, 7)
        async with priced.intake("kafka:c:t:0", kind="kafka") as second:
            assert second.held.next_position == 8
            messages = [priced.message(cents(f"ev-{n}", "0.01"), position=n) for n in (5, 6, 7)]
            posted = await second.post(await second.read(messages))
            assert set(priced.outcomes(posted)) == {"duplicate"}
    assert priced.requests("tenant_id") == {"t-alpha": (7, Decimal("0.07"))}


async def test_the_position_moves_with_what_is_posted(priced: Ledger) -> None:
    async with priced.intake("kafka:c:t:0", kind="kafka") as intake:
        await post_at(priced, intake, 0, 4)
        assert intake.held.next_position == 5
        assert priced.rows("select next_position, last_number from ledger.feeds") == [(5, 1)]
        assert priced.rows("select first_position, next_position from ledger.batches") == [(0, 5)]


async def test_a_batch_from_another_position_is_refused(priced: Ledger) -> None:
    async with priced.intake("kafka:c:t:0", kind="kafka") as intake:
        await post_at(priced, intake, 0, 4)
        for first in (4, 6):
            with pytest.raises(Fenced):
                await post_at(priced, intake, first, first)
    assert priced.total() == Decimal("0.05")


async def test_a_writer_is_fenced_by_the_next_claim(priced: Ledger) -> None:
    async with priced.intake("kafka:c:t:0", kind="kafka") as zombie, priced.intake("kafka:c:t:0", kind="kafka") as heir:
        with pytest.raises(Fenced):
            await post_at(priced, zombie, 0, 0)
        await post_at(priced, heir, 0, 0)
    assert priced.total() == Decimal("0.01")


async def test_batches_of_a_feed_are_numbered_without_gaps(priced: Ledger) -> None:
    for event_id in ("ev-1", "ev-1", "ev-2"):
        await priced.post(make_event(event_id))
    await priced.post(make_event("ev-3"), feed="file:other")
    assert priced.rows(
        "select f.name, array_agg(b.number order by b.batch_id) from ledger.batches as b join ledger.feeds as f"
        " using (feed_id) group by 1 order by 1"
    ) == [("file:other", [1]), ("file:test", [1, 2, 3])]


async def test_a_reading_too_large_for_one_batch_goes_as_several(
    priced: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five messages in batches of two: all are there once, and the position moved with the last."""
    monkeypatch.setattr("ingest.intake._ITEMS_PER_BATCH", 2)
    async with priced.intake("kafka:c:t:0", kind="kafka") as intake:
        posted = await post_at(priced, intake, 0, 4)
        assert priced.outcomes(posted) == ["created"] * 5
        assert posted.entry_count == 5
        assert intake.held.next_position == 5
    assert priced.rows("select next_position, entry_count from ledger.batches order by number") == [
        (0, 2),
        (0, 2),
        (5, 1),
    ]
    assert priced.total() == Decimal("0.05")


async def test_a_batch_never_takes_the_row_ids_of_the_next(priced: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ledger.posting.ROWS_PER_BATCH", 3)
    with pytest.raises(BatchTooLarge):
        await priced.post(*(make_event(f"ev-{number}") for number in range(4)))
    assert priced.total() == 0


# --- Books that changed -------------------------------------------------------------------------------------------------


async def test_a_batch_made_with_older_books_is_made_again(priced: Ledger) -> None:
    """Read while the tenant was unknown and the price was 2.00 / 8.00; posted when it is known: 0.00028."""
    async with priced.intake() as intake:
        reading = await intake.read([priced.message(make_event("ev-1", tenant_id="t-late"))])
        assert reading.missing or reading.items
        priced.add_tenant("t-late")
        posted = await intake.post(reading)
        assert priced.outcomes(posted) == ["created"]
        # The next one was read with the older books as well: it is read again without loading them again.
        books = intake.books
        assert priced.outcomes(await intake.post(reading)) == ["duplicate"]
        assert intake.books is books
    assert priced.total() == PRICE


async def test_a_row_is_stamped_after_its_writer_holds_the_calendar_lock(priced: Ledger) -> None:
    """Whoever changes periods holds the lock alone: a row that waited for it is recorded after, and not when it came."""
    await priced.post(make_event("before"))
    with priced.database.connect() as holder:
        holder.autocommit = False
        holder.execute("select pg_advisory_xact_lock(%s)", [CALENDAR_LOCK])
        waiting = asyncio.create_task(priced.post(make_event("waited")))
        async with asyncio.timeout(30):
            while not priced.value(  # noqa: ASYNC110 -- only the database knows who waits for a lock
                "select count(*) from pg_locks join pg_database as d on d.oid = database"
                " where d.datname = current_database() and locktype = 'advisory' and not granted"
            ):
                await asyncio.sleep(0.02)
        let_go = holder.execute("select clock_timestamp()").fetchone()
        holder.commit()
    assert priced.outcomes(await waiting) == ["created"]
    assert let_go is not None
    assert priced.value("select recorded_at from ledger.entries where request_id = 'req-waited'") > let_go[0]


async def test_subjects_are_the_same_for_all_writers_and_may_be_forgotten(
    priced: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more than two users are remembered; a batch of five names each, known before or not, and none is lost."""
    monkeypatch.setattr("ledger.books.SUBJECTS_KEPT_MAX", 2)
    async with priced.intake() as one, priced.intake("file:other") as two:
        for intake, first in ((one, 0), (two, 2), (one, 4)):
            events = [make_event(f"ev-{n}", user_hash=f"u{n % 6}") for n in range(first, first + 5)]
            await intake.post(await intake.read([priced.message(*events)]))
    assert priced.value("select count(*) from ledger.entries where subject_id is null") == 0
    assert priced.value("select count(distinct subject_id) from ledger.entries") == 6
    assert priced.value("select count(*) from ledger.subjects") == 6


# --- Two writers at once ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mirrored", [False, True])
async def test_two_writers_of_the_same_requests_double_nothing(priced: Ledger, mirrored: bool) -> None:
    """Gateway and node report 600 requests at once on two feeds, in pieces, the node backwards: 600 x 0.00028 = 0.168.

    Mirrored, both feeds bring the same events; and both bring the same broken ones, in opposite order.
    """
    count = 600
    broken = [make_event(f"bad-{number}", tenant_id="t-nobody") for number in range(40)]
    gateway = [make_event(f"g-{n}", request_id=f"r-{n}") for n in range(count)]
    node = [make_event(f"n-{n}", request_id=f"r-{n}", source=NODE) for n in range(count)]
    plans = {
        "file:one": (gateway, broken, 50),
        "file:two": ((gateway if mirrored else node)[::-1], broken[::-1], 170),
    }

    async def write(feed: str) -> list[str]:
        events, letters, size = plans[feed]
        outcomes = []
        async with priced.intake(feed) as intake:
            for at in range(0, count, size):
                posted = await intake.post(await intake.read([priced.message(*letters, *events[at : at + size])]))
                outcomes += priced.outcomes(posted)[len(letters) :]
        return outcomes

    one, two = await asyncio.gather(write("file:one"), write("file:two"))
    outcomes = {*one, *two}
    assert outcomes <= ({"created", "duplicate"} if mirrored else {"created", "evidence"})
    assert priced.requests("source") == {GATEWAY: (count, count * PRICE)}
    assert priced.budgets_that_differ() == []
    assert priced.value("select count(*) from ledger.requests") == count
    assert priced.value("select sum(repeats + 1) from ledger.dead_letters") == 40 * (12 + 4)
    assert priced.value("select deadlocks from pg_stat_database where datname = current_database()") == 0


async def test_a_large_batch_is_not_starved_by_small_ones(priced: Ledger, failpoint: Failpoint) -> None:
    """Twelve times another feed takes one more key of the batch, after it was looked up: 28 x 0.00028 = 0.00784 go in."""
    events = [make_event(f"ev-{number}") for number in range(40)]
    async with priced.intake() as intake:
        reading = await intake.read([priced.message(*events)])
        taken = iter([item for item in reading.items if isinstance(item, Statement)][:12])

        def take_one(_: bytes) -> None:
            if (statement := next(taken, None)) is not None:
                priced.superuser.execute(
                    "insert into ledger.event_keys values (%s, %s, 1, 0)", [statement.event_key, statement.content_hash]
                )

        failpoint("post.before_keys", take_one)
        posted = await intake.post(reading)
    assert priced.outcomes(posted) == ["duplicate"] * 12 + ["created"] * 28
    assert priced.total() == 28 * PRICE
