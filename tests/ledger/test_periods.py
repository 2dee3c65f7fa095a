"""Periods are months of the tenant's zone, half-open, without gap or overlap, and made ahead of time."""

from datetime import UTC, date, datetime, timedelta
from itertools import pairwise

import psycopg
import pytest

from ledger.database import connect
from ledger.parties import Calendar, Tenant, TenantVersion
from ledger.periods import (
    ensure_partitions,
    ensure_periods,
    month_after,
    month_of,
    months_between,
    months_needed,
    period_of,
)
from ledger.registry import add_entity, add_tenant, change_tenant, leave_tenant
from ledger.times import from_micros, micros, parse_rfc3339
from tests.support.databases import Database

NOW = parse_rfc3339("2026-11-20T12:00:00Z")


def make_tenant(zone: str, starts_at: str = "2026-01-10T12:00:00Z", *later: TenantVersion) -> Tenant:
    start = parse_rfc3339(starts_at)
    return Tenant("acme", start, (TenantVersion(start, "entity", zone, "EUR"), *later))


def span(tenant: Tenant, month: date) -> tuple[str, str]:
    period = period_of(tenant, month)
    return tuple(f"{from_micros(at):%Y-%m-%dT%H:%M:%SZ}" for at in (period.starts_at, period.ends_at))  # type: ignore[return-value]


def test_months_count_over_the_turn_of_a_year() -> None:
    assert month_after(date(2026, 11, 1), 3) == date(2027, 2, 1)
    assert month_after(date(2026, 1, 1), -1) == date(2025, 12, 1)
    assert months_between(date(2026, 12, 1), date(2027, 1, 1)) == [date(2026, 12, 1), date(2027, 1, 1)]


def test_a_month_with_a_clock_change_ends_at_the_local_midnight() -> None:
    """B059: March 2026 in Berlin has 743 hours, whenever the tenant was made."""
    for starts_at in ("2026-01-10T12:00:00Z", "2026-04-10T12:00:00Z"):
        tenant = make_tenant("Europe/Berlin", starts_at)
        assert span(tenant, date(2026, 3, 1)) == ("2026-02-28T23:00:00Z", "2026-03-31T22:00:00Z")
        march = period_of(tenant, date(2026, 3, 1))
        assert from_micros(march.ends_at) - from_micros(march.starts_at) == timedelta(hours=743)


def test_an_instant_on_the_boundary_is_in_exactly_one_month() -> None:
    """B061: below, at and above the end of January and of February."""
    tenant = make_tenant("UTC")
    calendar = Calendar(1, {"acme": tuple(period_of(tenant, date(2026, month, 1)) for month in (1, 2, 3))})
    recorded = parse_rfc3339("2026-01-31T00:00:00Z")
    expected = {
        "2026-01-31T23:59:59.999999999Z": 1,
        "2026-02-01T00:00:00Z": 2,
        "2026-02-01T00:00:00.000001Z": 2,
        "2026-02-28T23:59:59.5Z": 2,
        "2026-03-01T00:00:00Z": 3,
    }
    for occurred_at, month in expected.items():
        assert calendar.posting_period("acme", parse_rfc3339(occurred_at), recorded) == date(2026, month, 1)


def test_late_usage_enters_its_month_until_the_grace_is_over() -> None:
    tenant = make_tenant("America/Denver")
    period = period_of(tenant, date(2026, 10, 1), grace_days=3)
    assert f"{from_micros(period.grace_until):%Y-%m-%dT%H:%MZ}" == "2026-11-04T07:00Z"  # after the clocks went back
    calendar = Calendar(1, {"acme": (period, period_of(tenant, date(2026, 11, 1)))})
    occurred = period.ends_at - 1
    assert calendar.posting_period("acme", occurred, period.grace_until - 1) == date(2026, 10, 1)
    assert calendar.posting_period("acme", occurred, period.grace_until) == date(2026, 11, 1)
    assert calendar.posting_period("acme", occurred, period.grace_until + 1) == date(2026, 11, 1)


@pytest.mark.parametrize("zone", ["Africa/Cairo", "Asia/Beirut", "America/Asuncion", "Pacific/Apia", "Asia/Kathmandu"])
def test_months_follow_each_other_without_gap_or_overlap(zone: str) -> None:
    """Also where the clocks change at midnight (B062's neighbours): the first instant of the local day counts."""
    tenant = make_tenant(zone)
    months = [period_of(tenant, month) for month in months_between(date(2020, 1, 1), date(2035, 12, 1))]
    assert all(before.ends_at == after.starts_at for before, after in pairwise(months))
    assert all(before.starts_at < before.ends_at <= before.grace_until for before in months)


@pytest.mark.parametrize(("old", "new"), [("Europe/Berlin", "America/New_York"), ("America/New_York", "Europe/Berlin")])
def test_a_change_of_zone_leaves_no_gap(old: str, new: str) -> None:
    """The month begins by the old zone, since that is when the change takes effect, and ends by the new one."""
    boundary = period_of(make_tenant(old), date(2026, 6, 1)).starts_at
    tenant = make_tenant(old, "2026-01-10T12:00:00Z", TenantVersion(boundary, "entity", new, "EUR"))
    may, june, july = (period_of(tenant, date(2026, month, 1)) for month in (5, 6, 7))
    assert may.ends_at == june.starts_at == boundary
    assert june.ends_at == july.starts_at == period_of(make_tenant(new), date(2026, 7, 1)).starts_at


def test_a_month_ahead_is_the_tenants_month() -> None:
    """At 2026-11-30T12:00Z it is December already in Kiritimati."""
    now = parse_rfc3339("2026-11-30T12:00:00Z")
    ahead = months_needed(make_tenant("Pacific/Kiritimati"), now, 1)
    assert ahead[0] == date(2026, 1, 1)
    assert ahead[-1] == date(2027, 1, 1)
    assert months_needed(make_tenant("UTC"), now, 1)[-1] == date(2026, 12, 1)


async def prepared(database: Database) -> psycopg.AsyncConnection:
    connection = await connect(database.url_for("tallystick_operator"))
    await add_entity(connection, "test", "entity", "Entity")
    await add_tenant(
        connection, "test", "acme", entity_id="entity", time_zone="Europe/Berlin", charge_currency="EUR", now=NOW,
        starts_at=parse_rfc3339("2026-09-15T00:00:00Z"), months_ahead=1,
    )  # fmt: skip
    return connection


async def periods(connection: psycopg.AsyncConnection) -> list[date]:
    cursor = await connection.execute(
        "select posting_period from ledger.periods where tenant_id = 'acme' order by posting_period"
    )
    return [row[0] for row in await cursor.fetchall()]


async def calendar_version(connection: psycopg.AsyncConnection) -> int:
    cursor = await connection.execute("select calendar from ledger.versions")
    row = await cursor.fetchone()
    assert row is not None
    return row[0]


async def test_periods_are_made_ahead_once(database: Database) -> None:
    async with await prepared(database) as connection:
        assert await periods(connection) == [date(2026, month, 1) for month in (9, 10, 11, 12)]
        version = await calendar_version(connection)
        assert await ensure_periods(connection, now=NOW, months_ahead=1) == 0
        assert await calendar_version(connection) == version, "nothing missing, nothing locked, nothing made again"
        assert await ensure_periods(connection, now=NOW, months_ahead=3) == 2
        assert await calendar_version(connection) == version + 1
        assert (await periods(connection))[-1] == date(2027, 2, 1)


async def test_a_tenant_that_left_keeps_getting_periods(database: Database) -> None:
    async with await prepared(database) as connection:
        await leave_tenant(connection, "test", "acme", now=NOW)
        assert await ensure_periods(connection, now=NOW, months_ahead=2) == 1


async def test_a_change_of_zone_moves_the_months_that_follow(database: Database) -> None:
    async with await prepared(database) as connection:
        at = await change_tenant(connection, "test", "acme", date(2026, 12, 1), time_zone="America/New_York")
        assert at == datetime(2026, 11, 30, 23, tzinfo=UTC)
        cursor = await connection.execute(
            "select starts_at, ends_at from ledger.periods where tenant_id = 'acme' order by posting_period desc limit 2"
        )
        december, november = await cursor.fetchall()
        assert november[1] == december[0] == at
        assert december[1] == datetime(2027, 1, 1, 5, tzinfo=UTC)
        assert await ensure_periods(connection, now=NOW, months_ahead=2) == 1
        cursor = await connection.execute("select max(starts_at) from ledger.periods")
        assert await cursor.fetchone() == (datetime(2027, 1, 1, 5, tzinfo=UTC),)


async def test_partitions_reach_back_to_the_oldest_month_in_its_grace(database: Database) -> None:
    """On the second of a month, usage of the month before still needs a place."""
    today = datetime.now(UTC)
    month = month_of(today.date())
    second = datetime(month.year, month.month, 2, tzinfo=UTC)
    async with await connect(database.url_for("tallystick_operator")) as connection:
        await add_entity(connection, "test", "entity", "Entity")
        before = month_after(month, -1)
        await add_tenant(
            connection, "test", "acme", entity_id="entity", time_zone="UTC", charge_currency="EUR", now=micros(second),
            starts_at=micros(second - timedelta(days=20)),
        )  # fmt: skip
        cursor = await connection.execute("select to_regclass(%s)", [f"ledger.entries_{before:%Y_%m}"])
        assert await cursor.fetchone() != (None,)
        assert await ensure_partitions(connection, now=micros(second)) == 0, "made once"
