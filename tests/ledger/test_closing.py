"""Closing a month: what it holds is said, no row enters it any more, and a seal says what it came to for ever."""

import asyncio
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from ledger import closing, registry, seals
from ledger.database import Connection, connect
from ledger.entries import COLUMNS
from ledger.errors import ActRefused
from ledger.periods import find_period, month_after
from ledger.registry import add_tenant
from ledger.times import micros
from tests.factories import make_event
from tests.support.ledger import Ledger, this_month
from tests.support.processes import CHECKOUT

JANUARY, FEBRUARY = date(2026, 1, 1), date(2026, 2, 1)
LATER = "2026-03-15T00:00:00Z"


def dollars(event_id: str, amount: str, at: str = "2026-01-10T00:00:00Z", **overrides: Any) -> dict[str, Any]:
    """An event that comes to an amount: tokens of 1.00 a million."""
    tokens = int(Decimal(amount) * 1_000_000)
    return make_event(event_id, time=at, usage={"prompt_tokens": tokens, "completion_tokens": 0}, **overrides)


@pytest.fixture
async def priced(ledger: Ledger) -> Ledger:
    return await ledger.add_price(input="1.00", output="1.00")


async def close(operator: Connection, month: date = JANUARY, tenant_id: str | None = "t-alpha", **more: Any) -> None:
    await closing.close_periods(operator, "jane", month, tenant_id=tenant_id, **more)
    await closing.seal_pending(operator)


def billed(ledger: Ledger) -> dict[date, Decimal]:
    return dict(ledger.rows("select posting_period, sum(charge_amount) from ledger.entries group by 1 order by 1"))


# --- What a close says, and what it refuses -----------------------------------------------------------------------------


async def test_a_preview_says_what_a_close_would_freeze(priced: Ledger, operator: Connection) -> None:
    """Two requests of 1 and 2; one without a price, one without usage; a conflict; a letter of a tenant's own."""
    await priced.post(
        dollars("a", "1"), dollars("b", "2"), make_event("c", model="m-unknown"), make_event("d", usage=...),
        dollars("late", "9", "2026-02-01T00:00:00Z"), received_at=LATER,
    )  # fmt: skip
    await priced.post(dollars("a", "5", request_id="req-a"), received_at=LATER)
    await priced.post(make_event("e", usage={"prompt_tokens": -1, "completion_tokens": 0}), received_at=LATER)
    priced.add_tenant("t-beta")
    (found,) = await closing.preview_close(operator, JANUARY, tenant_id="t-alpha")
    assert (found.entry_count, found.request_count, found.state) == (4, 4, "open")
    assert found.charge_sums == {"USD": Decimal(3)}
    assert found.cost_sums == {"USD": Decimal(3)}
    assert (found.charge_unpriced_count, found.usage_missing_count) == (2, 1)
    assert (found.conflict_count, found.dead_letter_count) == (1, 1)
    both = await closing.preview_close(operator, JANUARY)
    assert [(each.tenant_id, each.entry_count, each.conflict_count, each.dead_letter_count) for each in both] == [
        ("t-alpha", 4, 1, 1),
        ("t-beta", 0, 0, 0),
    ]
    assert priced.value("select count(*) from ledger.periods where state = 'closed'") == 0


async def test_refusals_of_a_close_in_their_order(priced: Ledger, operator: Connection) -> None:
    first, nobody = this_month(), date(2031, 1, 1)
    ends = f"{month_after(first):%Y-%m-%d} 00:00:00Z"
    for given, rule in (
        ({"month": first, "is_early": True, "reason": " "}, "an early close needs a reason"),
        ({"month": first.replace(day=2)}, "is not the first day of a month"),
        ({"month": first, "tenant_id": "t-alpha", "entity_id": "entity-1"}, "name a tenant or an entity, not both"),
        ({"month": first, "tenant_id": "nobody"}, "there is no tenant 'nobody'"),
        ({"month": first, "entity_id": "nobody"}, "there is no entity 'nobody'"),
        ({"month": nobody, "tenant_id": "t-alpha"}, "tenant t-alpha has no period 2031-01"),
        ({"month": nobody}, "nobody has a period 2031-01"),
        ({"month": first}, f"of tenant t-alpha ends at {ends}: close it then, or early with a reason"),
    ):
        with pytest.raises(ActRefused, match=rule):
            await closing.close_periods(operator, "jane", **given)  # type: ignore[arg-type]
    assert priced.value("select count(*) from ledger.periods where state = 'closed'") == 0
    assert priced.rows("select act from ledger.acts") == []


async def test_a_period_is_closed_from_its_end_on_and_not_an_instant_before(
    priced: Ledger, operator: Connection
) -> None:
    """Below, at and above the end, by the database's clock: it ends in a moment, and is closed when that has passed."""
    await operator.execute(
        "update ledger.periods set ends_at = clock_timestamp() + interval '400 ms' where posting_period = %s", [JANUARY]
    )
    with pytest.raises(ActRefused, match="close it then"):
        await close(operator)
    await asyncio.sleep(0.5)
    await close(operator)
    assert (await find_period(operator, "t-alpha", JANUARY)).state == "closed"


async def test_an_early_close_ends_the_grace_now_and_is_an_act_with_a_reason(
    priced: Ledger, operator: Connection
) -> None:
    month = this_month()
    await close(operator, month, is_early=True, reason="the tenant is sold")
    found = await find_period(operator, "t-alpha", month)
    assert (found.state, found.close_number, found.is_sealed) == ("closed", 1, True)
    assert abs((found.grace_until - datetime.now(UTC)).total_seconds()) < 60
    assert found.grace_until < found.ends_at
    assert priced.rows("select actor, act, detail, reason from ledger.acts") == [
        (
            "jane",
            "periods.close",
            {"month": f"{month:%Y-%m}", "tenants": ["t-alpha"], "early": ["t-alpha"]},
            "the tenant is sold",
        )
    ]
    # What it uses until the month's end goes to the next one.
    now = datetime.now(UTC).isoformat()
    await priced.post(dollars("a", "1", now), received_at=now)
    assert billed(priced) == {month_after(month): Decimal(1)}


async def test_a_close_takes_one_tenant_an_entitys_tenants_or_all(priced: Ledger, operator: Connection) -> None:
    """t-moved was the other entity's until the end of January: who invoices a month is who did at its last instant."""
    await registry.add_entity(operator, "test", "entity-2", "Entity Two")
    for tenant_id in ("t-beta", "t-gamma", "t-moved"):
        priced.add_tenant(tenant_id)
    await registry.change_tenant(operator, "test", "t-gamma", date(2026, 1, 1), entity_id="entity-2")
    await registry.change_tenant(operator, "test", "t-moved", date(2026, 2, 1), entity_id="entity-2")

    async def closed(**whose: Any) -> list[str]:
        return list((await closing.close_periods(operator, "jane", JANUARY, **whose)).closed)

    assert await closed(tenant_id="t-beta") == ["t-beta"]
    assert await closed(entity_id="entity-2") == ["t-gamma"]
    assert await closed() == ["t-alpha", "t-moved"]
    assert await closed() == [], "what is closed stays closed, and a second close does nothing"
    assert priced.rows("select detail ->> 'tenants' from ledger.acts where act = 'periods.close'") == [
        ('["t-beta"]',), ('["t-gamma"]',), ('["t-alpha", "t-moved"]',),
    ]  # fmt: skip


async def test_the_grace_is_told_and_ends_with_the_close(priced: Ledger, operator: Connection) -> None:
    """January has ended and its grace runs until 2100: a close needs nothing more, and late usage goes to February."""
    await priced.post(dollars("a", "1"), received_at=LATER)
    await close(operator)
    await priced.post(dollars("late", "2"), received_at=LATER)
    assert billed(priced) == {JANUARY: Decimal(1), FEBRUARY: Decimal(2)}
    assert priced.rows("select occurred_at::text from ledger.entries where request_id = 'req-late'") == [
        ("2026-01-10 00:00:00+00",)
    ]


# --- Seals --------------------------------------------------------------------------------------------------------------


async def test_a_seal_holds_what_the_month_came_to(priced: Ledger, operator: Connection) -> None:
    """chat 1 + 2 = 3 in two requests on the tenth, search 4 on the eleventh; evidence is a row and moves nothing."""
    await priced.post(
        dollars("a", "1"), dollars("b", "2"), dollars("c", "4", "2026-01-11T00:00:00Z", feature="search"),
        dollars("d", "4", "2026-01-11T00:00:00Z", feature="search", request_id="req-c", final=False), received_at=LATER,
    )  # fmt: skip
    await close(operator)
    (sealed,) = await seals.list_seals(operator, tenant_id="t-alpha")
    assert (sealed.close_number, sealed.is_superseded, sealed.line_count) == (1, False, 2)
    assert (sealed.row_count, sealed.request_count) == (4, 3)
    assert (sealed.cost_sums, sealed.charge_sums) == ({"USD": "7"}, {"USD": "7"})
    lines = priced.rows(
        "select line_number, local_date, feature, entry_count, evidence_count, request_count, input_tokens, charge_amount"
        " from ledger.seal_lines order by line_number"
    )
    assert lines == [
        (1, date(2026, 1, 10), "chat", 2, 0, 2, 3_000_000, Decimal(3)),
        (2, date(2026, 1, 11), "search", 1, 1, 1, 4_000_000, Decimal(4)),
    ]
    kept = priced.rows(f"select {', '.join(seals.COLUMNS)} from ledger.seal_lines order by line_number")
    assert seals.seal_digest("t-alpha", JANUARY, kept).hex() == sealed.digest


async def test_a_month_without_usage_is_sealed_as_empty(priced: Ledger, operator: Connection) -> None:
    await close(operator)
    (sealed,) = await seals.list_seals(operator)
    assert (sealed.line_count, sealed.row_count, sealed.charge_sums) == (0, 0, {})
    assert sealed.digest == seals.seal_digest("t-alpha", JANUARY, []).hex()


@pytest.mark.parametrize("table", ["seals", "seal_lines"])
@pytest.mark.parametrize(
    "act", ["update ledger.{} set tenant_id = 'x'", "delete from ledger.{}", "truncate ledger.{} cascade"]
)
async def test_nobody_changes_a_seal(priced: Ledger, operator: Connection, table: str, act: str) -> None:
    await priced.post(dollars("a", "1"), received_at=LATER)
    await close(operator)
    with pytest.raises(psycopg.Error) as refused:
        priced.superuser.execute(act.format(table).encode())
    assert refused.value.sqlstate == "TS002"
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        await operator.execute(act.format(table))


async def test_a_seal_outlives_the_rows_and_keeps_the_month_closed(priced: Ledger, operator: Connection) -> None:
    await priced.post(dollars("a", "1"), received_at=LATER)
    await close(operator)
    await closing.close_partitions(operator)
    before = await seals.list_seals(operator)
    priced.superuser.execute("alter table ledger.entries detach partition ledger.entries_2026_01")
    assert await seals.list_seals(operator) == before
    with pytest.raises(ActRefused, match="stays closed: the rows of 2026-01 are no longer in the ledger"):
        await closing.reopen_period(operator, "jane", "t-alpha", JANUARY, reason="a mistake")
    # Whoever asks the database itself is refused as well.
    with pytest.raises(psycopg.Error, match="the rows of 2026-01 are no longer in the ledger") as refused:
        priced.superuser.execute("update ledger.periods set state = 'open' where posting_period = '2026-01-01'")
    assert refused.value.sqlstate == "TS003"
    # And nothing is sealed from rows that are not there.
    priced.add_tenant("t-beta").close_period("t-beta", JANUARY)
    assert await closing.seal_pending(operator) == []


# --- Open again ---------------------------------------------------------------------------------------------------------


async def test_opening_again_is_an_act_and_its_seal_stays(priced: Ledger, operator: Connection) -> None:
    """1 sealed; open again takes 2 more; sealed anew with 3. What went to February meanwhile stays there."""
    await priced.post(dollars("a", "1"), received_at=LATER)
    await close(operator)
    await priced.post(dollars("meanwhile", "5"), received_at=LATER)
    with pytest.raises(ActRefused, match="needs a reason"):
        await closing.reopen_period(operator, "jane", "t-alpha", JANUARY, reason=" ")
    opened = await closing.reopen_period(operator, "jane", "t-alpha", JANUARY, reason="a node was late")
    assert (opened.state, opened.close_number, opened.is_sealed, opened.closed_at) == ("open", 1, False, None)
    assert 2.9 < (opened.grace_until - datetime.now(UTC)).total_seconds() / 86_400 <= 3
    with pytest.raises(ActRefused, match="period 2026-01 of tenant t-alpha is open"):
        await closing.reopen_period(operator, "jane", "t-alpha", JANUARY, reason="again")
    await priced.post(dollars("b", "2"), received_at=LATER)
    assert billed(priced) == {JANUARY: Decimal(3), FEBRUARY: Decimal(5)}
    await close(operator)
    first, second = await seals.list_seals(operator)
    assert [(each.close_number, each.is_superseded, each.charge_sums) for each in (first, second)] == [
        (1, True, {"USD": "1"}),
        (2, False, {"USD": "3"}),
    ]
    (act,) = priced.rows("select actor, detail, reason from ledger.acts where act = 'periods.reopen'")
    assert act == (
        "jane",
        {"tenant_id": "t-alpha", "month": "2026-01", "close_number": 1, "seal": first.digest},
        "a node was late",
    )


async def test_what_a_room_above_made_of_a_month_keeps_it_closed(priced: Ledger, operator: Connection) -> None:
    """A room says so in a function of its own schema, which nobody has to register."""
    await close(operator)
    priced.superuser.execute("create schema above authorization tallystick_owner")
    priced.superuser.execute(
        "set role tallystick_owner; create function above.what_depends_on(t text, m date) returns setof text language sql"
        " as $$ select 'invoice 7 is issued' where t = 't-alpha' and m = '2026-01-01' $$; reset role"
    )
    assert await closing.what_depends_on(operator, "t-alpha", JANUARY) == ["invoice 7 is issued"]
    assert await closing.what_depends_on(operator, "t-alpha", FEBRUARY) == []
    with pytest.raises(ActRefused, match="period 2026-01 of tenant t-alpha stays closed: invoice 7 is issued"):
        await closing.reopen_period(operator, "jane", "t-alpha", JANUARY, reason="a mistake")
    assert (await find_period(operator, "t-alpha", JANUARY)).state == "closed"


@pytest.mark.parametrize(
    ("statement", "rule"),
    [
        ("delete from ledger.periods where posting_period = '2026-01-01'", "was closed: it cannot be deleted"),
        (
            "update ledger.periods set grace_until = '2100-01-01' where posting_period = '2026-01-01'",
            "cannot be changed",
        ),
        ("update ledger.periods set ends_at = '2026-02-02' where posting_period = '2026-01-01'", "cannot be changed"),
        (
            "update ledger.periods set close_number = 9 where posting_period = '2026-02-01'",
            "only a close counts as one",
        ),
    ],
)
async def test_the_database_keeps_a_closed_period_as_it_was(
    priced: Ledger, operator: Connection, statement: str, rule: str
) -> None:
    await close(operator)
    with pytest.raises(psycopg.Error, match=rule) as refused:
        priced.superuser.execute(statement.encode())
    assert refused.value.sqlstate == "TS003"


# --- Partitions ---------------------------------------------------------------------------------------------------------


async def test_the_last_close_of_a_month_closes_its_partition(priced: Ledger, operator: Connection) -> None:
    priced.add_tenant("t-beta")
    await priced.post(dollars("a", "1"), received_at=LATER)
    await close(operator)
    assert await closing.close_partitions(operator) == ([], []), "t-beta may still have some"
    await close(operator, tenant_id="t-beta")
    assert await closing.close_partitions(operator) == ([JANUARY], [])
    assert await closing.close_partitions(operator) == ([], []), "once"
    # The guard is taken away, as somebody in a hurry would: the partition itself refuses still.
    priced.superuser.execute("alter table ledger.entries disable trigger a_guard")
    listed = ", ".join("entry_id + 1" if name == "entry_id" else name for name in COLUMNS)
    with pytest.raises(psycopg.errors.CheckViolation, match="month_is_closed"):
        priced.superuser.execute(
            f"insert into ledger.entries ({', '.join(COLUMNS)}) select {listed} from ledger.entries"
        )
    priced.superuser.execute("alter table ledger.entries enable trigger a_guard")
    await closing.reopen_period(operator, "jane", "t-alpha", JANUARY, reason="a node was late")
    await priced.post(dollars("b", "2"), received_at=LATER)
    assert billed(priced) == {JANUARY: Decimal(3)}


async def test_a_partition_that_is_being_read_is_closed_later(priced: Ledger, operator: Connection) -> None:
    await close(operator)
    with priced.database.connect() as reader:
        reader.execute("select count(*) from ledger.entries where posting_period = '2026-01-01'")
        assert await closing.close_partitions(operator) == ([], [JANUARY])
    assert await closing.close_partitions(operator) == ([JANUARY], [])


async def test_a_tenant_that_comes_later_opens_the_partition_that_it_needs(
    priced: Ledger, operator: Connection
) -> None:
    """Everybody has closed this month early; a new tenant's usage of it is in its grace."""
    month = this_month()
    await close(operator, month, is_early=True, reason="test")
    assert (await closing.close_partitions(operator))[0] == [month]
    now = datetime.now(UTC)
    await add_tenant(
        operator, "test", "t-new", entity_id="entity-1", time_zone="UTC", charge_currency="USD", now=micros(now),
        starts_at=micros(now) - 1,
    )  # fmt: skip
    await priced.post(dollars("a", "1", now.isoformat(), tenant_id="t-new"), received_at=now.isoformat())
    assert billed(priced) == {month: Decimal(1)}


@pytest.mark.parametrize("role", ["postgres", "tallystick_owner"])
async def test_no_row_goes_into_a_partition_by_its_name(priced: Ledger, role: str) -> None:
    """It would pass the guard of closed periods and the budgets."""
    await priced.post(dollars("a", "1"), received_at=LATER)
    listed = ", ".join("entry_id + 1" if name == "entry_id" else name for name in COLUMNS)
    priced.superuser.execute(f"set role {role}")
    with pytest.raises(psycopg.Error, match="takes rows through ledger") as refused:
        priced.superuser.execute(
            f"insert into ledger.entries_2026_01 ({', '.join(COLUMNS)}) select {listed} from ledger.entries"
        )
    assert refused.value.sqlstate == "TS002"


async def test_a_row_by_hand_does_not_pass_while_a_close_commits(priced: Ledger, operator: Connection) -> None:
    """The insert began before the close; the close waits for it, and finds it."""
    await priced.post(dollars("a", "1"), received_at=LATER)
    listed = ", ".join("entry_id + 1" if name == "entry_id" else name for name in COLUMNS)
    with priced.database.connect() as hand:
        hand.execute(f"insert into ledger.entries ({', '.join(COLUMNS)}) select {listed} from ledger.entries".encode())
        closes = asyncio.create_task(close(operator))
        await asyncio.sleep(0.3)
        assert not closes.done()
        hand.commit()
    await asyncio.wait_for(closes, 10)
    (sealed,) = await seals.list_seals(operator)
    assert (sealed.row_count, sealed.charge_sums) == (2, {"USD": "2"})


# --- Interrupted, at once, under load -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "closed", "sealed"),
    [("close.before_commit", 0, 0), ("close.before_seals", 2, 0), ("close.between_seals", 2, 1)],
)
async def test_a_close_that_is_killed_is_finished_by_the_next(
    priced: Ledger, operator: Connection, place: str, closed: int, sealed: int
) -> None:
    """Killed before the flip commits: nothing happened. After it: closed, and the seals follow."""
    priced.add_tenant("t-beta")
    await priced.post(dollars("a", "1"), dollars("b", "2", tenant_id="t-beta"), received_at=LATER)
    code = (
        "import asyncio, sys; from datetime import date; from ledger import closing, failpoints; from ledger.database import connect\n"
        "async def main(url, spec):\n"
        "    failpoints.configure(spec)\n"
        "    async with await connect(url) as connection:\n"
        "        await closing.close_periods(connection, 'jane', date(2026, 1, 1))\n"
        "        await closing.seal_pending(connection)\n"
        "asyncio.run(main(*sys.argv[1:]))\n"
    )
    url = priced.database.url_for("tallystick_operator")
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, url, f"{place}=die@1", cwd=CHECKOUT)
    assert await process.wait() == -9
    assert priced.value("select count(*) from ledger.periods where state = 'closed'") == closed
    assert priced.value("select count(*) from ledger.seals") == sealed
    done = await closing.close_periods(operator, "jane", JANUARY)
    assert (len(done.closed), len(done.closed_before)) == (2 - closed, closed)
    assert len(await closing.seal_pending(operator)) == 2 - sealed
    assert [each.charge_sums for each in await seals.list_seals(operator)] == [{"USD": "1"}, {"USD": "2"}]
    assert priced.value("select count(*) from ledger.acts where act = 'periods.close'") == 1


async def test_two_closes_at_once_are_one(priced: Ledger) -> None:
    """One act, one close, one seal; the other finds it done."""
    await priced.post(dollars("a", "1"), received_at=LATER)

    async def one() -> tuple[int, int]:
        async with await connect(priced.database.url_for("tallystick_operator")) as connection:
            done = await closing.close_periods(connection, "jane", JANUARY)
            return len(done.closed), len(await closing.seal_pending(connection))

    results = await asyncio.gather(*(one() for _ in range(4)))
    assert sorted(closed for closed, _ in results) == [0, 0, 0, 1]
    assert sum(made for _, made in results) == 1
    assert priced.value("select count(*) from ledger.acts") == 1
    assert priced.value("select close_number from ledger.periods where posting_period = '2026-01-01'") == 1


async def test_a_month_is_not_opened_while_it_is_sealed(priced: Ledger, operator: Connection) -> None:
    await priced.post(dollars("a", "1"), received_at=LATER)
    await closing.close_periods(operator, "jane", JANUARY)
    async with await connect(priced.database.url_for("tallystick_operator")) as sealer, sealer.transaction():
        await sealer.execute("select from ledger.periods where posting_period = %s for no key update", [JANUARY])
        with pytest.raises(ActRefused, match="is being sealed or its rows are being read: try again in a moment"):
            await closing.reopen_period(operator, "jane", "t-alpha", JANUARY, reason="a mistake")
    await closing.reopen_period(operator, "jane", "t-alpha", JANUARY, reason="a mistake")
    # A seal of a close that is over is not made any more.
    assert await closing.seal_pending(operator) == []


async def test_closes_and_reopens_under_load_lose_nothing_and_put_nothing_on_the_wrong_side(priced: Ledger) -> None:
    """Four writers post January's usage while it is closed, sealed and opened again, over and over.

    Each event is recorded once. A row stands in January if it was recorded while January was open, else in February; so
    each seal holds exactly the rows that January had when its close committed.
    """
    batches, size, writers = 25, 8, 4
    spans: list[tuple[datetime, datetime]] = []
    posting = asyncio.Event()

    async def write(number: int) -> None:
        async with priced.intake(f"file:{number}") as intake:
            for batch in range(batches):
                events = [dollars(f"w{number}-{batch}-{place}", "0.000001") for place in range(size)]
                posted = await intake.post(await intake.read([priced.message(*events, received_at=LATER)]))
                assert [result.outcome for result in posted.results] == ["created"] * size
                posting.set()

    async def turn() -> None:
        async with await connect(priced.database.url_for("tallystick_operator")) as connection:
            await posting.wait()
            while len(spans) < 200:
                await closing.close_periods(connection, "jane", JANUARY)
                closed = await find_period(connection, "t-alpha", JANUARY)
                assert closed.closed_at is not None
                await closing.seal_pending(connection)
                await asyncio.sleep(0.02)
                opened = await closing.reopen_period(connection, "jane", "t-alpha", JANUARY, reason="under load")
                cursor = await connection.execute("select max(at) from ledger.acts where act = 'periods.reopen'")
                row = await cursor.fetchone()
                assert row is not None
                assert opened.state == "open"
                spans.append((closed.closed_at, row[0]))
                await asyncio.sleep(0.03)

    turning = asyncio.create_task(turn())
    await asyncio.wait_for(asyncio.gather(*(write(number) for number in range(writers))), 60)
    turning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turning
    assert len(spans) >= 3, "otherwise nothing was closed under load"
    assert priced.value("select count(*) from ledger.entries") == batches * size * writers
    assert priced.value("select count(distinct request_id) from ledger.entries") == batches * size * writers
    assert len(billed(priced)) == 2, "both sides were written to"
    # `post` stamps its rows after it has the lock, and the flip its own time under it: the sides are told apart exactly.
    last_closed = spans[-1][1]
    for month, recorded_at in priced.rows("select posting_period, recorded_at from ledger.entries"):
        if recorded_at > last_closed:
            continue
        in_a_closed_span = any(closed_at < recorded_at < opened_at for closed_at, opened_at in spans)
        assert (month == FEBRUARY) == in_a_closed_span, (month, recorded_at)
    for number, row_count, sealed_at in priced.rows(
        "select s.close_number, s.row_count, a.at from ledger.seals as s join lateral (select at from ledger.acts"
        " where act = 'periods.close' order by act_id offset s.close_number - 1 limit 1) as a on true"
    ):
        before = priced.value(
            "select count(*) from ledger.entries where posting_period = %s and recorded_at < %s", JANUARY, sealed_at
        )
        assert row_count == before, number
    assert priced.budgets_that_differ() == []
