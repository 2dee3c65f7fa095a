"""Periods: each tenant's months, half-open in the tenant's zone, made ahead of the time that they are needed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Final

from psycopg.rows import class_row

from ledger.books import load_tenants
from ledger.database import Connection, change, record_act
from ledger.errors import ActRefused, Unknown
from ledger.parties import Period, Tenant, local_date
from ledger.times import from_micros, local_midnight
from ledger.times import month_after as month_after
from ledger.times import month_of as month_of

GRACE_DAYS: Final = 3
MONTHS_AHEAD: Final = 3


def months_between(first: date, last: date) -> list[date]:
    """List the months from one to another, both included."""
    count = (last.year - first.year) * 12 + last.month - first.month
    return [month_after(first, number) for number in range(count + 1)]


def month_starts_at(tenant: Tenant, month: date) -> int:
    """Return the instant at which a month of a tenant begins: local midnight in the zone that was in force until then.

    A change of zone takes effect at that very instant, so the old zone still says when it is, and months stay without a
    gap or an overlap.
    """
    zone = tenant.versions[0].time_zone
    for version in tenant.versions[1:]:
        if version.effective_at >= local_midnight(zone, month):
            break
        zone = version.time_zone
    return local_midnight(zone, month)


def period_of(tenant: Tenant, month: date, grace_days: int = GRACE_DAYS) -> Period:
    """Return a month of a tenant; late usage enters until the local midnight `grace_days` days after its end."""
    after = month_after(month)
    ends_at = month_starts_at(tenant, after)
    zone = tenant.at(ends_at - 1).time_zone
    return Period(
        posting_period=month,
        starts_at=month_starts_at(tenant, month),
        ends_at=ends_at,
        grace_until=max(ends_at, local_midnight(zone, after + timedelta(days=grace_days))),
    )


def months_needed(tenant: Tenant, now: int, months_ahead: int = MONTHS_AHEAD) -> list[date]:
    """List the months from the tenant's first to `months_ahead` after the one in hand, also of a tenant that left."""
    first = month_of(local_date(tenant, tenant.starts_at))
    last = max(first, month_of(local_date(tenant, now)))
    return months_between(first, month_after(last, months_ahead))


async def ensure_periods(
    connection: Connection,
    *,
    now: int,
    months_ahead: int = MONTHS_AHEAD,
    grace_days: int = GRACE_DAYS,
    actor: str = "scheduler",
) -> int:
    """Make the periods that tenants lack and return how many; the calendar lock is taken only if there are any."""
    if not await _missing(connection, now, months_ahead):
        return 0
    async with change(connection, "calendar"):
        # Read again: whoever held the lock before us may have made them.
        missing = await _missing(connection, now, months_ahead)
        tenants = await load_tenants(connection)
        made = 0
        for tenant_id, months in missing.items():
            made += await insert_periods(connection, tenants[tenant_id], months, grace_days)
        await record_act(connection, actor, "periods.ahead", {"made": made, "months_ahead": months_ahead})
    return made


async def _missing(connection: Connection, now: int, months_ahead: int) -> Mapping[str, list[date]]:
    present: dict[str, set[date]] = {}
    async for tenant_id, months in await connection.execute(
        "select tenant_id, array_agg(posting_period) from ledger.periods group by tenant_id"
    ):
        present[tenant_id] = set(months)
    tenants = await load_tenants(connection)
    missing = {
        tenant_id: [
            month for month in months_needed(tenant, now, months_ahead) if month not in present.get(tenant_id, ())
        ]
        for tenant_id, tenant in tenants.items()
    }
    return {tenant_id: months for tenant_id, months in missing.items() if months}


async def insert_periods(
    connection: Connection, tenant: Tenant, months: Iterable[date], grace_days: int = GRACE_DAYS
) -> int:
    """Add periods of a tenant inside the caller's `change`, and return how many."""
    made = [period_of(tenant, month, grace_days) for month in months]
    await connection.execute(
        "insert into ledger.periods (tenant_id, posting_period, starts_at, ends_at, grace_until)"
        " select %s, * from unnest(%s::date[], %s::timestamptz[], %s::timestamptz[], %s::timestamptz[])",
        [
            tenant.tenant_id,
            [period.posting_period for period in made],
            [from_micros(period.starts_at) for period in made],
            [from_micros(period.ends_at) for period in made],
            [from_micros(period.grace_until) for period in made],
        ],
    )
    # A month that everybody else has closed takes rows again where this tenant may still have some.
    await connection.execute(
        "select ledger.open_partition(posting_period) from ledger.periods"
        " where tenant_id = %s and posting_period = any(%s) and grace_until > clock_timestamp()",
        [tenant.tenant_id, [period.posting_period for period in made]],
    )
    return len(made)


async def redraw_periods(connection: Connection, tenant: Tenant, first: date) -> Sequence[date]:
    """Move the boundaries of periods from a month on to where the tenant's versions now put them; return those that moved.

    Inside the caller's `change`, which has made sure that none of them is closed. The grace keeps its length, which a
    person may have given it.
    """
    cursor = await connection.execute(
        "select posting_period from ledger.periods where tenant_id = %s and posting_period >= %s order by posting_period",
        [tenant.tenant_id, first],
    )
    moved = []
    for (month,) in await cursor.fetchall():
        period = period_of(tenant, month)
        cursor = await connection.execute(
            "update ledger.periods set starts_at = %(starts_at)s, ends_at = %(ends_at)s,"
            " grace_until = %(ends_at)s + (grace_until - ends_at)"
            " where tenant_id = %(tenant_id)s and posting_period = %(month)s"
            " and (starts_at, ends_at) is distinct from (%(starts_at)s, %(ends_at)s)",
            {
                "tenant_id": tenant.tenant_id,
                "month": month,
                "starts_at": from_micros(period.starts_at),
                "ends_at": from_micros(period.ends_at),
            },
        )
        if cursor.rowcount:
            moved.append(month)
    return moved


@dataclass(frozen=True, slots=True)
class PeriodRecord:
    """A tenant's month."""

    tenant_id: str
    posting_period: date
    starts_at: datetime
    ends_at: datetime
    grace_until: datetime
    state: str
    close_number: int
    """How often it was closed."""
    closed_at: datetime | None
    is_sealed: bool
    """Closed, with a seal of that close."""


_RECORD: Final = """
select
    p.tenant_id, p.posting_period, p.starts_at, p.ends_at, p.grace_until, p.state, p.close_number, p.closed_at,
    p.state = 'closed' and exists (
        select
        from ledger.seals as s
        where s.tenant_id = p.tenant_id and s.posting_period = p.posting_period and s.close_number = p.close_number
    ) as is_sealed
from ledger.periods as p
where
    (%(tenant_id)s::text is null or p.tenant_id = %(tenant_id)s)
    and (%(month)s::date is null or p.posting_period = %(month)s)
order by p.tenant_id, p.posting_period
"""


async def find_period(connection: Connection, tenant_id: str, month: date) -> PeriodRecord:
    """Return a tenant's month."""
    found = await list_periods(connection, tenant_id=tenant_id, month=month)
    if not found:
        if tenant_id not in await load_tenants(connection):
            raise Unknown("tenant", tenant_id)
        raise ActRefused(f"tenant {tenant_id} has no period {month:%Y-%m}")
    return found[0]


async def list_periods(
    connection: Connection, *, tenant_id: str | None = None, month: date | None = None
) -> list[PeriodRecord]:
    """List periods by tenant and month."""
    async with connection.cursor(row_factory=class_row(PeriodRecord)) as cursor:
        await cursor.execute(_RECORD, {"tenant_id": tenant_id, "month": month})
        return await cursor.fetchall()


async def ensure_partitions(connection: Connection, *, now: int, months_ahead: int = MONTHS_AHEAD) -> int:
    """Make the partitions that entries can need, from the oldest month that still takes some; return how many."""
    at = from_micros(now)
    cursor = await connection.execute(
        "select min(posting_period) from ledger.periods where state = 'open' and grace_until > %s", [at]
    )
    row = await cursor.fetchone()
    this_month = month_of(at.date())
    first = min(row[0], this_month) if row and row[0] else this_month
    made = 0
    for month in months_between(first, month_after(this_month, months_ahead)):
        cursor = await connection.execute("select ledger.make_partitions(%s)", [month])
        row = await cursor.fetchone()
        made += row[0] if row else 0
    return made
