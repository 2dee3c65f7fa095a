"""Zones: any instant belongs to one local day, one month and one window, whatever the clocks of a tenant do."""

import zoneinfo
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger import registry
from ledger.database import connect
from ledger.errors import ActRefused
from ledger.parties import Calendar, Tenant, TenantVersion, local_date
from ledger.periods import month_after, month_of, month_starts_at, months_between, period_of
from ledger.registry import time_zones
from ledger.times import from_micros, local_date_at, local_midnight, micros, parse_rfc3339
from quotas.remaining import remaining
from tests.factories import make_event
from tests.quotas.support import set_budget, windows
from tests.support.databases import Database
from tests.support.ledger import Ledger

HOUR = 3_600_000_000
LATER = "2027-01-01T00:00:00Z"
YEARS = (date(2020, 1, 1), date(2035, 12, 1))


def dollars(event_id: str, amount: str, at: str, **overrides: Any) -> dict[str, Any]:
    """An event that comes to an amount: tokens of 1.00 a million."""
    tokens = int(Decimal(amount) * 1_000_000)
    return make_event(event_id, time=at, usage={"prompt_tokens": tokens, "completion_tokens": 0}, **overrides)


def sums(ledger: Ledger, column: str, tenant_id: str = "t-zone") -> dict[str, str]:
    """Charges by a column of the entries, in the shortest digits."""
    rows = ledger.rows(
        f"select {column}::text, trim_scale(sum(charge_amount))::text from ledger.entries where tenant_id = %s"
        " group by 1 order by 1",
        tenant_id,
    )
    return dict(rows)


def make_tenant(zone: str, *later: tuple[date, str]) -> Tenant:
    """A tenant since 2020 whose zone changes with months, as the register makes it."""
    start = local_midnight(zone, YEARS[0])
    versions = [TenantVersion(start, "entity", zone, "EUR")]
    for month, following in later:
        before = Tenant("acme", start, tuple(versions))
        at = month_starts_at(before, month)
        first_day = local_date(before, at)
        versions.append(TenantVersion(at, "entity", following, "EUR", first_day=first_day))
    return Tenant("acme", start, tuple(versions))


# --- Cases --------------------------------------------------------------------------------------------------------------


async def test_b059_a_month_with_a_clock_change_ends_at_the_local_midnight(ledger: Ledger) -> None:
    """March is [02-28T23:00Z, 03-31T22:00Z), 31 * 24 - 1 = 743 hours, for tenants of January and of April alike."""
    await ledger.add_price(input="1.00", output="1.00")
    ledger.add_tenant("t-january", zone="Europe/Berlin", first_period=date(2026, 1, 1))
    # Made in April, it begins with March, when it had its first usage.
    ledger.add_tenant("t-april", zone="Europe/Berlin", first_period=date(2026, 3, 1))
    for tenant_id in ("t-january", "t-april"):
        await ledger.post(
            dollars("u1", "0.20", "2026-03-31T21:59:59.999999Z", tenant_id=tenant_id),
            dollars("u2", "0.10", "2026-03-31T22:00:00Z", tenant_id=tenant_id),
            received_at=LATER,
        )
        assert sums(ledger, "posting_period", tenant_id) == {"2026-03-01": "0.2", "2026-04-01": "0.1"}
        starts_at, ends_at = ledger.rows(
            "select starts_at, ends_at from ledger.periods where tenant_id = %s and posting_period = '2026-03-01'",
            tenant_id,
        )[0]
        assert (starts_at, ends_at) == (datetime(2026, 2, 28, 23, tzinfo=UTC), datetime(2026, 3, 31, 22, tzinfo=UTC))
        assert ends_at - starts_at == timedelta(hours=743)


async def test_b060_local_days_are_a_partition(ledger: Ledger) -> None:
    """Kathmandu is 5:45 ahead: the days are 1, 2 + 4 = 6 and 8; together 15, as the whole range."""
    await ledger.add_price(input="1.00", output="1.00")
    ledger.add_tenant("t-zone", zone="Asia/Kathmandu")
    times = ("2026-07-10T18:14:59Z", "2026-07-10T18:15:00Z", "2026-07-11T18:14:59Z", "2026-07-11T18:15:00Z")
    for at, amount in zip(times, ("1.00", "2.00", "4.00", "8.00"), strict=True):
        await ledger.post(dollars(f"e-{amount}", amount, at, tenant_id="t-zone"), received_at=LATER)
    assert sums(ledger, "local_date") == {"2026-07-10": "1", "2026-07-11": "6", "2026-07-12": "8"}
    assert ledger.value(
        "select sum(charge_amount) from ledger.entries where local_date between '2026-07-10' and '2026-07-12'"
    ) == Decimal(15)


async def test_b062_days_that_are_added_keep_the_local_date(ledger: Ledger) -> None:
    """30 days from 2026-02-20 in Denver end on 2026-03-22, 30 * 24 - 1 = 719 hours later; 720 would end them an hour late.

    2026-03-22T06:00:00Z is midnight there by summer time, and 07:00:00Z would be by winter time.
    """
    zone = "America/Denver"
    start, end = local_midnight(zone, date(2026, 2, 20)), local_midnight(zone, date(2026, 3, 22))
    assert end - start == 719 * HOUR
    # The same for a grace: 21 days after the end of February.
    period = period_of(make_tenant(zone), date(2026, 2, 1), grace_days=21)
    assert from_micros(period.grace_until) == datetime(2026, 3, 22, 6, tzinfo=UTC)
    # And on the real road: windows of 30 days from the 20th on.
    await ledger.add_price(input="1.00", output="1.00")
    ledger.add_tenant("t-zone", zone=zone)
    await set_budget(
        ledger, tenant_id="t-zone", window="days", window_days=30, anchor=date(2026, 2, 20), limit="100",
        now="2026-02-21T12:00:00Z",
    )  # fmt: skip
    for event_id, amount, at in (
        ("last", "1", "2026-03-22T05:59:59.999999Z"),
        ("first", "2", "2026-03-22T06:00:00Z"),
        ("by-winter-time-still-the-old", "4", "2026-03-22T06:59:59Z"),
        ("its-evening", "8", "2026-03-23T05:30:00Z"),
    ):
        await ledger.post(dollars(event_id, amount, at, tenant_id="t-zone"), received_at=LATER)
    assert windows(ledger) == {"2026-02-20": "1", "2026-03-22": "14"}


# --- Months and days that are not 24 hours ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("zone", "month", "hours"),
    [
        ("Europe/Berlin", date(2026, 3, 1), "743"),
        ("Europe/Berlin", date(2026, 10, 1), "745"),
        # Half an hour of summer time, which ends in April and begins in October.
        ("Australia/Lord_Howe", date(2026, 4, 1), "720.5"),
        ("Australia/Lord_Howe", date(2026, 10, 1), "743.5"),
        ("Asia/Kathmandu", date(2026, 4, 1), "720"),
        # Summer time until 2019, and none since.
        ("America/Sao_Paulo", date(2018, 11, 1), "719"),
        ("America/Sao_Paulo", date(2019, 2, 1), "673"),
        ("America/Sao_Paulo", date(2026, 11, 1), "720"),
        # From one side of the date line to the other: 2011-12-30 was no day there.
        ("Pacific/Apia", date(2011, 12, 1), "720"),
    ],
)
def test_how_long_a_month_is(zone: str, month: date, hours: str) -> None:
    length = local_midnight(zone, month_after(month)) - local_midnight(zone, month)
    assert Decimal(length) / HOUR == Decimal(hours)


def test_a_day_that_the_calendar_skipped_has_no_instant() -> None:
    """Apia went from 2011-12-29 to 2011-12-31: the day between begins and ends at once, and nothing falls on it."""
    before, skipped, after = (local_midnight("Pacific/Apia", date(2011, 12, day)) for day in (29, 30, 31))
    assert skipped == after == before + 24 * HOUR
    assert [local_date_at("Pacific/Apia", at) for at in (after - 1, after, after + 1)] == [
        date(2011, 12, 29), date(2011, 12, 31), date(2011, 12, 31),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("zone", "day", "first"),
    [
        # Clocks went from 24:00 to 01:00: the day begins at one.
        ("America/Sao_Paulo", date(2018, 11, 4), "2018-11-04T03:00:00Z"),
        ("America/Asuncion", date(2023, 10, 1), "2023-10-01T04:00:00Z"),
        ("Africa/Cairo", date(2026, 4, 24), "2026-04-23T22:00:00Z"),
        # Clocks went from 01:00 to 00:00: midnight came twice, and the day begins at the first.
        ("Atlantic/Azores", date(2026, 10, 25), "2026-10-25T00:00:00Z"),
        ("America/Havana", date(2026, 11, 1), "2026-11-01T04:00:00Z"),
    ],
)
def test_a_day_begins_at_its_first_instant(zone: str, day: date, first: str) -> None:
    at = local_midnight(zone, day)
    assert at == parse_rfc3339(first)
    assert [local_date_at(zone, each) for each in (at - 1, at, at + 1)] == [day - timedelta(days=1), day, day]


# --- Properties ---------------------------------------------------------------------------------------------------------

zones = st.sampled_from(sorted(time_zones()))
months = st.integers(0, 191).map(lambda number: month_after(YEARS[0], number))


def test_every_months_boundary_is_where_the_local_date_changes_in_every_zone() -> None:
    """All zones of tzdata, all months of 2020 to 2035: the instant before is in the old month, the instant itself in the new."""
    wrong = [
        (zone, month)
        for zone in sorted(time_zones())
        for month in months_between(*YEARS)
        for at in [local_midnight(zone, month)]
        if not (month_of(local_date_at(zone, at - 1)) < month == local_date_at(zone, at))
    ]
    assert wrong == []


@given(zone=zones, month=months, share=st.integers(0, 10**12))
def test_an_instant_is_in_one_period_and_that_is_its_local_months(zone: str, month: date, share: int) -> None:
    tenant = make_tenant(zone)
    listed = [period_of(tenant, each) for each in months_between(month_after(month, -1), month_after(month))]
    this = listed[1]
    instant = this.starts_at + (this.ends_at - this.starts_at) * share // (10**12 + 1)
    inside = [period.posting_period for period in listed if period.starts_at <= instant < period.ends_at]
    assert inside == [month] == [month_of(local_date(tenant, instant))]
    assert Calendar(1, {"acme": tuple(listed)}).posting_period("acme", instant, instant) == month


@given(old=zones, new=zones, month=months, minutes=st.integers(-4_500, 4_500))
def test_days_and_months_stay_a_partition_where_a_zone_changes(old: str, new: str, month: date, minutes: int) -> None:
    """To the west and to the east, around the change: one period, days that never go back, and a month that is its days."""
    month = max(month, date(2020, 3, 1))
    tenant = make_tenant(old, (month, new))
    listed = [period_of(tenant, each) for each in months_between(month_after(month, -2), month_after(month))]
    assert all(before.ends_at == after.starts_at for before, after in pairwise(listed))
    boundary = listed[2].starts_at
    instant = boundary + minutes * 60_000_000
    (inside,) = [period.posting_period for period in listed if period.starts_at <= instant < period.ends_at]
    assert month_of(local_date(tenant, instant)) == inside
    assert local_date(tenant, instant - 1) <= local_date(tenant, instant) <= local_date(tenant, instant + 1)


def test_every_day_is_in_one_window(database: Database) -> None:
    """All days of 2020 to 2035 and all windows: a window begins at or before its day, and is that of its first day."""
    with database.connect() as connection:
        wrong = connection.execute(
            """
            select k.kind, k.length, k.anchor, d.day, w.start
            from (
                values
                    ('day', null::integer, null::date), ('week', null, null), ('month', null, null), ('lifetime', null, null),
                    ('days', 1, '2026-02-20'), ('days', 30, '2026-02-20'), ('days', 7, '2019-12-31'),
                    ('anchored_month', null, '2026-01-31'), ('anchored_month', null, '2026-02-28'),
                    ('anchored_month', null, '2026-02-01')
            ) as k (kind, length, anchor)
            cross join (select generate_series(date '2020-01-01', '2035-12-31', '1 day')::date) as d (day)
            cross join lateral (
                select
                    quotas.window_start(k.kind, k.length, k.anchor, d.day) as start,
                    quotas.window_start(k.kind, k.length, k.anchor, d.day + 1) as following
            ) as w
            where
                not (
                    w.start <= d.day
                    and quotas.window_start(k.kind, k.length, k.anchor, w.start) = w.start
                    -- The next day is in the same window, or begins one of its own.
                    and w.following in (w.start, d.day + 1)
                )
                and k.kind <> 'lifetime'
            """
        ).fetchall()
    assert wrong == []


# --- A zone that moves --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "days"),
    [
        # The month begins at 2026-04-30T22:00Z, 18:00 on the 30th in New York: those six hours belong to the first of May.
        ("Europe/Berlin", "America/New_York", {"2026-04-30": "1", "2026-05-01": "14", "2026-05-02": "16"}),
        # The month begins at 2026-05-01T04:00Z, which is 06:00 on the first in Berlin: that day has 18 hours.
        ("America/New_York", "Europe/Berlin", {"2026-04-30": "7", "2026-05-01": "8", "2026-05-02": "16"}),
    ],
)
async def test_a_month_is_its_days_also_where_the_zone_moves(
    ledger: Ledger, old: str, new: str, days: dict[str, str]
) -> None:
    """By local day, by billed month and by budget: three partitions of the same hours, with equal sums.

    1 and 2 lie two hours around Berlin's midnight, 4 before New York's, 8 on the first at noon, 16 on the second.
    """
    await ledger.add_price(input="1.00", output="1.00")
    ledger.add_tenant("t-zone", zone=old)
    await set_budget(ledger, tenant_id="t-zone", window="month", limit="100", now="2026-04-10T12:00:00Z")
    async with await connect(ledger.database.url_for("tallystick_operator")) as operator:
        await registry.change_tenant(operator, "test", "t-zone", date(2026, 5, 1), time_zone=new)
        # A change of the status that follows keeps the bound.
        at = parse_rfc3339("2026-05-01T03:00:00Z")
        if old == "Europe/Berlin":
            await registry.suspend_tenant(operator, "test", "t-zone", now=at, reason="test")
    for event_id, amount, when in (
        ("a", "1", "2026-04-30T21:00:00Z"),
        ("b", "2", "2026-04-30T23:00:00Z"),
        ("c", "4", "2026-05-01T03:30:00Z"),
        ("d", "8", "2026-05-01T16:00:00Z"),
        ("e", "16", "2026-05-02T16:00:00Z"),
    ):
        await ledger.post(dollars(event_id, amount, when, tenant_id="t-zone"), received_at=LATER)
    assert sums(ledger, "local_date") == days
    by_month: dict[str, int] = {}
    for day, amount in days.items():
        by_month[f"{day[:8]}01"] = by_month.get(f"{day[:8]}01", 0) + int(amount)
    assert sums(ledger, "posting_period") == {month: str(amount) for month, amount in by_month.items()}
    assert windows(ledger) == sums(ledger, "posting_period")
    assert ledger.budgets_that_differ() == []


async def test_the_window_in_force_is_that_of_the_entries_while_clocks_repeat_hours(ledger: Ledger) -> None:
    """At 2026-05-01T01:00Z it is the 30th in New York, and already May for a tenant that came from Berlin."""
    ledger.add_tenant("t-zone", zone="Europe/Berlin")
    await set_budget(ledger, tenant_id="t-zone", window="month", limit="100", now="2026-04-10T12:00:00Z")
    async with await connect(ledger.database.url_for("tallystick_operator")) as operator:
        await registry.change_tenant(operator, "test", "t-zone", date(2026, 5, 1), time_zone="America/New_York")
        found = await remaining(operator, [("t-zone", parse_rfc3339("2026-05-01T01:00:00Z"))])
        starts = {
            budget.window.first_date
            for each in found.tenants.values()
            for budget in each.budgets
            if budget.budget_id == "b"
        }
    assert starts == {date(2026, 5, 1)}


@pytest.mark.parametrize("back", [False, True])
async def test_a_zone_that_moves_twice_leaves_no_gap(ledger: Ledger, back: bool) -> None:
    """There in May and back, or on, in June: periods follow each other to the microsecond, and each keeps its grace."""
    ledger.add_tenant("t-zone", zone="Asia/Tokyo")
    async with await connect(ledger.database.url_for("tallystick_operator")) as operator:
        await registry.change_tenant(operator, "test", "t-zone", date(2026, 5, 1), time_zone="Pacific/Honolulu")
        following = "Asia/Tokyo" if back else "Pacific/Kiritimati"
        await registry.change_tenant(operator, "test", "t-zone", date(2026, 6, 1), time_zone=following)
    rows = ledger.rows(
        "select starts_at, ends_at from ledger.periods where tenant_id = 't-zone' order by posting_period"
    )
    assert all(before[1] == after[0] for before, after in pairwise(rows))
    assert all(starts_at < ends_at for starts_at, ends_at in rows)
    assert micros(rows[7][0]) == local_midnight(following, date(2026, 7, 1))


# --- What is refused ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("zone", "rule"),
    [
        ("Europe/Berln", "'Europe/Berln' is unknown; did you mean Europe/Berlin?"),
        ("europe/berlin", "is unknown"),
        ("Mars/Phobos", "is unknown"),
        # Postgres would take these, each with an offset that nobody expects.
        ("+02:00", "is unknown"),
        ("EST5EDT4", "is unknown"),
        ("localtime", "is unknown"),
        ("", "is unknown"),
        ("../etc/passwd", "is unknown"),
    ],
)
async def test_a_zone_that_tzdata_does_not_know_is_refused(ledger: Ledger, zone: str, rule: str) -> None:
    async with await connect(ledger.database.url_for("tallystick_operator")) as operator:
        with pytest.raises(ActRefused, match=rule):
            await registry.change_tenant(operator, "test", "t-alpha", date(2026, 5, 1), time_zone=zone)
    assert ledger.value("select count(*) from ledger.tenant_versions where tenant_id = 't-alpha'") == 1


async def test_a_zone_or_an_entity_changes_at_a_months_start_only_and_the_next_one_is_named(ledger: Ledger) -> None:
    """In threes: the day before, the first, the day after. And after usage or a close, the first month that is free."""
    await ledger.add_price(input="1.00", output="1.00")
    async with await connect(ledger.database.url_for("tallystick_operator")) as operator:
        await registry.add_entity(operator, "test", "entity-2", "Two")
        for change in ({"time_zone": "Asia/Tokyo"}, {"entity_id": "entity-2"}):
            for day, following in ((date(2026, 4, 30), "2026-05-01"), (date(2026, 5, 2), "2026-06-01")):
                with pytest.raises(ActRefused, match=f"is not the first day of one: the next is {following}"):
                    await registry.change_tenant(operator, "test", "t-alpha", day, **change)  # type: ignore[arg-type]
        await ledger.post(dollars("a", "1", "2026-05-20T00:00:00Z"), received_at=LATER)
        with pytest.raises(ActRefused, match="the next month that it can change with is 2026-06"):
            await registry.change_tenant(operator, "test", "t-alpha", date(2026, 5, 1), time_zone="Asia/Tokyo")
        ledger.close_period("t-alpha", date(2026, 6, 1)).close_period("t-alpha", date(2026, 7, 1))
        with pytest.raises(
            ActRefused, match="2026-06 of tenant t-alpha is closed; the next month that it can change with is 2026-08"
        ):
            await registry.change_tenant(operator, "test", "t-alpha", date(2026, 6, 1), time_zone="Asia/Tokyo")
        await registry.change_tenant(
            operator, "test", "t-alpha", date(2026, 8, 1), time_zone="Asia/Tokyo", entity_id="entity-2"
        )


# --- Two copies of the time zone database -------------------------------------------------------------------------------


def clocks(monkeypatch: pytest.MonkeyPatch, **instead: str) -> None:
    """Python takes some zones for others, as a copy does that missed what a government decided."""
    names = {name.replace("_", "/"): other for name, other in instead.items()}
    monkeypatch.setattr("ledger.zones.ZoneInfo", lambda name: ZoneInfo(names.get(name, name)))


async def test_a_zone_that_python_and_the_database_see_otherwise_is_refused(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else entries and asks of one instant would be of two days. Lagos has the winter time of Berlin all year."""
    clocks(monkeypatch, Europe_Berlin="Africa/Lagos")
    async with await connect(ledger.database.url_for("tallystick_operator")) as connection:
        assert await registry.check_time_zone(connection, "Europe/Paris") == "Europe/Paris"
        with pytest.raises(
            ActRefused, match=r"time zone Europe/Berlin at 2\d{3}-\d\d-\d\d \d\d:00 UTC is UTC\+01:00 for Python"
        ):
            await registry.check_time_zone(connection, "Europe/Berlin")


def test_python_reads_the_pinned_copy_on_every_machine() -> None:
    assert zoneinfo.TZPATH == ()
