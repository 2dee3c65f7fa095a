"""Periods and posting: usage is billed in the month that it occurred in while that is open, and late in the next one."""

from datetime import date
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from ledger.entries import COLUMNS
from tests.factories import make_event
from tests.ledger.prices import make_card, per_million
from tests.support.ledger import Ledger

JANUARY, FEBRUARY, MARCH = date(2026, 1, 1), date(2026, 2, 1), date(2026, 3, 1)
LATER = "2026-03-15T00:00:00Z"


def dollars(event_id: str, amount: str, at: str, **overrides: Any) -> dict[str, Any]:
    """An event that comes to an amount: tokens of 1.00 a million."""
    tokens = int(Decimal(amount) * 1_000_000)
    return make_event(event_id, time=at, usage={"prompt_tokens": tokens, "completion_tokens": 0}, **overrides)


@pytest.fixture
async def priced(ledger: Ledger) -> Ledger:
    return await ledger.add_price(input="1.00", output="1.00")


def billed(ledger: Ledger) -> dict[date, Decimal]:
    return dict(ledger.rows("select posting_period, sum(charge_amount) from ledger.entries group by 1 order by 1"))


def occurred(ledger: Ledger) -> dict[date, Decimal]:
    month = "date_trunc('month', local_date::timestamp)::date"
    return dict(ledger.rows(f"select {month}, sum(charge_amount) from ledger.entries group by 1 order by 1"))


async def test_b061_an_event_on_the_boundary_is_in_exactly_one_period(priced: Ledger) -> None:
    """January 3; February 5 + 7 = 12; March 11; together 26. Nanoseconds are cut, not rounded into February."""
    await priced.post(
        dollars("b1", "3.00", "2026-01-31T23:59:59.999999999Z"),
        dollars("b2", "5.00", "2026-02-01T00:00:00Z"),
        dollars("b3", "7.00", "2026-02-28T23:59:59.5Z"),
        dollars("b4", "11.00", "2026-03-01T00:00:00Z"),
        received_at=LATER,
    )
    assert billed(priced) == {JANUARY: Decimal(3), FEBRUARY: Decimal(12), MARCH: Decimal(11)}
    assert priced.total() == Decimal(26)


@pytest.mark.parametrize(
    ("zone", "before", "at", "after"),
    [
        ("UTC", "2026-01-31T23:59:59.999999Z", "2026-02-01T00:00:00Z", "2026-02-01T00:00:00.000001Z"),
        ("Pacific/Auckland", "2026-01-31T10:59:59.999999Z", "2026-01-31T11:00:00Z", "2026-01-31T11:00:00.000001Z"),
        ("America/Los_Angeles", "2026-02-01T07:59:59.999999Z", "2026-02-01T08:00:00Z", "2026-02-01T08:00:00.000001Z"),
        ("Asia/Kathmandu", "2026-01-31T18:14:59.999999Z", "2026-01-31T18:15:00Z", "2026-01-31T18:15:00.000001Z"),
        ("Etc/GMT+12", "2026-02-01T11:59:59.999999Z", "2026-02-01T12:00:00Z", "2026-02-01T12:00:00.000001Z"),
    ],
)
async def test_b061_the_boundary_in_threes(ledger: Ledger, zone: str, before: str, at: str, after: str) -> None:
    """Just before is January, exactly at and just after are February; the partition's own check agrees."""
    await ledger.add_price(input="1.00", output="1.00")
    ledger.add_tenant("t-zone", zone=zone)
    for event_id, when in (("before", before), ("at", at), ("after", after)):
        await ledger.post(dollars(event_id, "1", when, tenant_id="t-zone"), received_at=LATER)
    assert ledger.rows("select request_id, posting_period, local_date from ledger.entries order by occurred_at") == [
        ("req-before", JANUARY, date(2026, 1, 31)),
        ("req-at", FEBRUARY, FEBRUARY),
        ("req-after", FEBRUARY, FEBRUARY),
    ]


async def test_b064_late_usage_is_billed_in_the_next_month_and_keeps_its_time(priced: Ledger) -> None:
    """February 40.00 + 0.75 = 40.75; by occurrence January 100.00 + 0.75 = 100.75; both ways 140.75."""
    await priced.post(dollars("jan", "100.00", "2026-01-10T00:00:00Z"), received_at="2026-01-10T00:00:01Z")
    priced.close_period("t-alpha", JANUARY)
    await priced.post(
        dollars("late", "0.75", "2026-01-31T23:50:00Z"),
        dollars("feb", "40.00", "2026-02-05T00:00:00Z"),
        received_at="2026-02-10T08:00:00Z",
    )
    assert billed(priced) == {JANUARY: Decimal("100.00"), FEBRUARY: Decimal("40.75")}
    assert occurred(priced) == {JANUARY: Decimal("100.75"), FEBRUARY: Decimal("40.00")}
    assert priced.value("select occurred_at::text from ledger.entries where request_id = 'req-late'") == (
        "2026-01-31 23:50:00+00"
    )
    # Its budget window is that of its own month.
    assert priced.rows(
        "select window_start, posted from quotas.windows where budget_id = 'totals-charge' order by 1"
    ) == [(JANUARY, Decimal("100.75")), (FEBRUARY, Decimal("40.00"))]


async def test_late_usage_of_a_period_in_grace_is_billed_in_it(priced: Ledger) -> None:
    """The period has ended and is not closed: it takes late usage until its grace has passed, by the database's clock."""
    set_grace = "update ledger.periods set grace_until = {} where posting_period = '2026-01-01'"
    priced.superuser.execute(set_grace.format("clock_timestamp() + interval '1 hour'"))
    priced.superuser.execute("update ledger.versions set calendar = calendar + 1")
    await priced.post(dollars("in-grace", "1", "2026-01-31T23:00:00Z"), received_at=LATER)
    priced.superuser.execute(set_grace.format("clock_timestamp()"))
    priced.superuser.execute("update ledger.versions set calendar = calendar + 1")
    await priced.post(dollars("too-late", "2", "2026-01-31T23:00:00Z"), received_at=LATER)
    assert billed(priced) == {JANUARY: Decimal(1), FEBRUARY: Decimal(2)}


async def test_b065_just_after_midnight_is_the_next_month_though_nothing_is_closed(priced: Ledger) -> None:
    """January 2.00, February 1.00."""
    await priced.post(
        dollars("m1", "2.00", "2026-01-31T23:58:00Z"),
        dollars("m2", "1.00", "2026-02-01T00:03:00Z"),
        received_at="2026-02-01T00:03:01Z",
    )
    assert billed(priced) == {JANUARY: Decimal("2.00"), FEBRUARY: Decimal("1.00")}


async def test_b066_an_old_event_keeps_its_time_and_the_price_of_then(ledger: Ledger) -> None:
    """1,000,000 x 2.00 / 1,000,000 = 2, in March since January and February are closed; 3 would be February's price."""
    await ledger.add_price("m-a", input="2.00")
    await ledger.add_card(make_card(per_million(input="3.00"), model="m-a", effective_at="2026-02-01T00:00:00Z"))
    ledger.close_period("t-alpha", JANUARY).close_period("t-alpha", FEBRUARY)
    usage = {"prompt_tokens": 1_000_000, "completion_tokens": 0}
    event = make_event("old", model="m-a", time="2026-01-20T00:00:00Z", usage=usage)
    await ledger.post(event, received_at="2026-03-15T00:00:00Z")
    assert ledger.rows("select posting_period, local_date, charge_amount from ledger.entries") == [
        (MARCH, date(2026, 1, 20), Decimal(2))
    ]


async def test_b067_the_last_usage_of_a_tenant_that_left_has_a_period(priced: Ledger) -> None:
    """9.00 in January's invoice, 1.25 in February's supplement: 10.25 in the ledger."""
    priced.add_tenant("t-bye")
    priced.superuser.execute("update ledger.tenants set ends_at = '2026-01-31T12:00:00Z' where tenant_id = 't-bye'")
    await priced.post(dollars("a", "9.00", "2026-01-20T00:00:00Z", tenant_id="t-bye"), received_at=LATER)
    priced.close_period("t-bye", JANUARY)
    late = dollars("late", "1.25", "2026-01-31T11:59:00Z", tenant_id="t-bye")
    assert priced.outcomes(await priced.post(late, received_at=LATER)) == ["created"]
    assert billed(priced) == {JANUARY: Decimal("9.00"), FEBRUARY: Decimal("1.25")}


async def test_a_true_up_of_a_closed_month_is_billed_in_the_next(priced: Ledger) -> None:
    """1 in January; the better statement adds 2 - 1 = 1 in February, with January's time and window."""
    first = dollars("a", "1", "2026-01-10T00:00:00Z", request_id="r", final=False)
    await priced.post(first, received_at=LATER)
    priced.close_period("t-alpha", JANUARY)
    await priced.post(dollars("b", "2", "2026-02-10T00:00:00Z", request_id="r"), received_at=LATER)
    assert billed(priced) == {JANUARY: Decimal(1), FEBRUARY: Decimal(1)}
    assert occurred(priced) == {JANUARY: Decimal(2)}
    # And once more: what stands is found in both months. 5 - 2 = 3.
    await priced.post(dollars("c", "5", "2026-02-11T00:00:00Z", request_id="r", revision=1), received_at=LATER)
    assert billed(priced) == {JANUARY: Decimal(1), FEBRUARY: Decimal(4)}
    assert priced.budgets_that_differ() == []


async def test_usage_beyond_the_last_period_is_set_aside(ledger: Ledger) -> None:
    for month in range(1, 13):
        ledger.close_period("t-alpha", date(2026, month, 1))
    ledger.superuser.execute("delete from ledger.periods where posting_period >= '2027-01-01'")
    posted = await ledger.post(make_event())
    assert [(r.outcome, r.reason) for r in posted.results] == [("dead_letter", "no_open_period")]
    assert ledger.value("select count(*) from ledger.event_keys") == 0


async def test_a_zone_that_changes_at_the_month_keeps_each_side_in_its_own_period(priced: Ledger) -> None:
    """From UTC to Los Angeles at the start of February: 23:59 and 00:01 UTC are both the 31st by their clocks."""
    priced.superuser.execute(
        "insert into ledger.tenant_versions (tenant_id, effective_at, entity_id, time_zone, charge_currency)"
        " values ('t-alpha', '2026-02-01', 'entity-1', 'America/Los_Angeles', 'USD')"
    )
    priced.add_tenant("t-other")
    await priced.post(
        dollars("last", "1", "2026-01-31T23:59:00Z"), dollars("first", "2", "2026-02-01T00:01:00Z"), received_at=LATER
    )
    assert billed(priced) == {JANUARY: Decimal(1), FEBRUARY: Decimal(2)}


# --- Closed is closed ---------------------------------------------------------------------------------------------------

COPIED = ", ".join("entry_id + 1" if name == "entry_id" else name for name in COLUMNS)


@pytest.mark.parametrize("role", ["postgres", "tallystick_writer"])
@pytest.mark.parametrize("kind", ["usage", "evidence"])
async def test_the_database_refuses_a_row_of_a_closed_period(priced: Ledger, role: str, kind: str) -> None:
    """Whoever inserts it, and even a row that moves nothing."""
    await priced.post(dollars("a", "1", "2026-01-10T00:00:00Z"), received_at=LATER)
    priced.close_period("t-alpha", JANUARY)
    changed = {"kind": f"'{kind}'", "request_count": "0", "charge_amount": "0", "cost_amount": "0"}
    listed = ", ".join(changed.get(name, "entry_id + 1" if name == "entry_id" else name) for name in COLUMNS)
    with priced.database.connect(role, autocommit=True) as connection, pytest.raises(psycopg.Error) as refused:
        connection.execute(f"insert into ledger.entries ({', '.join(COLUMNS)}) select {listed} from ledger.entries")
    assert refused.value.sqlstate == "TS001"
    assert "period 2026-01 of tenant t-alpha is closed" in str(refused.value)


async def test_the_database_refuses_a_row_of_a_period_that_nobody_has(priced: Ledger) -> None:
    await priced.post(dollars("a", "1", "2026-01-10T00:00:00Z"), received_at=LATER)
    priced.superuser.execute("delete from ledger.periods where posting_period = '2026-01-01'")
    with pytest.raises(psycopg.Error, match="is unknown"):
        priced.superuser.execute(
            f"insert into ledger.entries ({', '.join(COLUMNS)}) select {COPIED} from ledger.entries"
        )


@pytest.mark.parametrize(
    "statement",
    ["update ledger.entries set charge_amount = 0", "delete from ledger.entries", "truncate ledger.entries"],
)
async def test_no_row_is_changed_by_anybody(priced: Ledger, statement: str) -> None:
    """Not even by the superuser, short of taking the trigger away."""
    await priced.post(dollars("a", "1", "2026-01-10T00:00:00Z"), received_at=LATER)
    with pytest.raises(psycopg.Error) as refused:
        priced.superuser.execute(statement)
    assert refused.value.sqlstate == "TS002"
    with priced.database.connect("tallystick_writer", autocommit=True) as writer:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            writer.execute(statement)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            writer.execute(statement.replace("ledger.entries", "ledger.entries_2026_01"))


async def test_a_batch_read_before_the_close_is_posted_after_it(priced: Ledger) -> None:
    """The calendar's version says that the batch is stale; it is read again and goes to February."""
    async with priced.intake() as intake:
        reading = await intake.read([priced.message(dollars("a", "1", "2026-01-10T00:00:00Z"), received_at=LATER)])
        priced.close_period("t-alpha", JANUARY)
        await intake.post(reading)
    assert billed(priced) == {FEBRUARY: Decimal(1)}
