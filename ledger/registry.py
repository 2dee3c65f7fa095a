"""The register of parties: tenants, entities, sources, provider accounts and models, as commands change it.

Every change holds the calendar lock alone, raises the version of what it changed, and is written down as an act.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Final, Literal
from zoneinfo import available_timezones

import psycopg
from psycopg.rows import class_row

from ledger.books import load_books, load_name_rules, load_tenants
from ledger.database import Connection, change, record_act
from ledger.errors import ActRefused, AlreadyThere, Unknown
from ledger.model_names import NameRule, NameRules
from ledger.money import CURRENCIES
from ledger.parties import Tenant
from ledger.periods import (
    GRACE_DAYS,
    MONTHS_AHEAD,
    ensure_partitions,
    insert_periods,
    month_after,
    month_of,
    month_starts_at,
    months_needed,
    redraw_periods,
)
from ledger.times import from_micros, local_midnight
from ledger.zones import OFFSETS, difference

SOURCE_KINDS: Final = ("gateway", "node", "load", "commands")
_NAME_CHARACTERS_MAX: Final = 200


# --- What a name, a zone and a currency may be ------------------------------------------------------------------------


def check_name(what: str, name: str) -> str:
    """Return an identifier that people and logs can be shown, or refuse it."""
    if not name or len(name) > _NAME_CHARACTERS_MAX or not name.isprintable() or name != name.strip():
        raise ActRefused(
            f"{what} {name!r} must be 1 to {_NAME_CHARACTERS_MAX} printable characters without blanks around them"
        )
    return name


@lru_cache(maxsize=1)
def time_zones() -> frozenset[str]:
    """Return the names of the time zones."""
    # The machine's own zone is no name that another machine knows.
    return frozenset(available_timezones() - {"localtime", "Factory"})


async def check_time_zone(connection: Connection, zone: str) -> str:
    """Return a zone that Python and the database both know by this name and see alike, or refuse it."""
    if zone not in time_zones():
        close = get_close_matches(zone, sorted(time_zones()), n=1)
        raise ActRefused(f"time zone {zone!r} is unknown" + (f"; did you mean {close[0]}?" if close else ""))
    try:
        # The marts read local hours in the database: a name that it lacks would stop every tenant's rollup.
        async with connection.transaction():
            cursor = await connection.execute(OFFSETS.format(zone=zone))
            found = difference(zone, await cursor.fetchall())
    except psycopg.errors.InvalidParameterValue:
        raise ActRefused(f"time zone {zone!r} is unknown to the database") from None
    if found is not None:
        raise ActRefused(str(found))
    return zone


def check_currency(currency: str) -> str:
    """Return a currency code of ISO 4217, or refuse it."""
    if currency not in CURRENCIES:
        raise ActRefused(f"currency {currency!r} is no code of ISO 4217, such as USD")
    return currency


# --- Entities ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EntityRecord:
    """A legal entity that issues invoices."""

    entity_id: str
    name: str
    created_at: datetime


async def add_entity(connection: Connection, actor: str, entity_id: str, name: str) -> None:
    """Add a legal entity."""
    check_name("entity", entity_id)
    async with change(connection, "parties"):
        cursor = await connection.execute(
            "insert into ledger.entities (entity_id, name) values (%s, %s) on conflict do nothing", [entity_id, name]
        )
        if not cursor.rowcount:
            raise AlreadyThere("entity", entity_id)
        await record_act(connection, actor, "entities.add", {"entity_id": entity_id, "name": name})


async def rename_entity(
    connection: Connection, actor: str, entity_id: str, name: str, reason: str | None = None
) -> None:
    """Change the name that stands on the invoices that an entity issues from now on."""
    check_name("name", name)
    async with change(connection, "parties"):
        cursor = await connection.execute(
            "update ledger.entities set name = %s where entity_id = %s", [name, entity_id]
        )
        if not cursor.rowcount:
            raise Unknown("entity", entity_id)
        await record_act(connection, actor, "entities.rename", {"entity_id": entity_id, "name": name}, reason)


async def find_entity(connection: Connection, entity_id: str) -> EntityRecord:
    """Return an entity."""
    for found in await list_entities(connection):
        if found.entity_id == entity_id:
            return found
    raise Unknown("entity", entity_id)


async def list_entities(connection: Connection) -> list[EntityRecord]:
    """List entities by id."""
    async with connection.cursor(row_factory=class_row(EntityRecord)) as cursor:
        await cursor.execute("select entity_id, name, created_at from ledger.entities order by entity_id")
        return await cursor.fetchall()


# --- Tenants ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TenantRecord:
    """A tenant as of an instant."""

    tenant_id: str
    name: str | None
    status: str
    entity_id: str
    time_zone: str
    charge_currency: str
    starts_at: datetime
    ends_at: datetime | None
    merged_into: str | None
    merged_at: datetime | None
    unmerged_at: datetime | None


@dataclass(frozen=True, slots=True)
class TenantVersionRecord:
    """What holds for a tenant from `effective_at` until the next version."""

    effective_at: datetime
    name: str | None
    status: str
    entity_id: str
    time_zone: str
    charge_currency: str
    recorded_at: datetime


async def add_tenant(
    connection: Connection,
    actor: str,
    tenant_id: str,
    *,
    entity_id: str,
    time_zone: str,
    charge_currency: str,
    now: int,
    starts_at: int | None = None,
    name: str | None = None,
    months_ahead: int = MONTHS_AHEAD,
    grace_days: int = GRACE_DAYS,
) -> None:
    """Add a tenant with its periods, from the month of `starts_at` (default: now) on.

    Units: instants in UTC microseconds.
    """
    check_name("tenant", tenant_id)
    await _check_entity(connection, entity_id)
    await check_time_zone(connection, time_zone)
    check_currency(charge_currency)
    starts_at = now if starts_at is None else starts_at
    async with change(connection, "parties", "calendar"):
        cursor = await connection.execute(
            "insert into ledger.tenants (tenant_id, starts_at) values (%s, %s) on conflict do nothing",
            [tenant_id, from_micros(starts_at)],
        )
        if not cursor.rowcount:
            raise AlreadyThere("tenant", tenant_id)
        await connection.execute(
            "insert into ledger.tenant_versions (tenant_id, effective_at, entity_id, name, time_zone, charge_currency)"
            " values (%s, %s, %s, %s, %s, %s)",
            [tenant_id, from_micros(starts_at), entity_id, name, time_zone, charge_currency],
        )
        tenant = (await load_tenants(connection))[tenant_id]
        await insert_periods(connection, tenant, months_needed(tenant, now, months_ahead), grace_days)
        detail = {
            "tenant_id": tenant_id,
            "entity_id": entity_id,
            "time_zone": time_zone,
            "charge_currency": charge_currency,
            "starts_at": from_micros(starts_at).isoformat(),
        }
        await record_act(connection, actor, "tenants.add", detail)
    # A tenant that starts in a month still within its grace may need a partition that nobody needed before.
    await ensure_partitions(connection, now=now, months_ahead=months_ahead)


async def list_tenants(
    connection: Connection, *, now: int, after: str = "", limit: int | None = None
) -> list[TenantRecord]:
    """List tenants by id, each as of an instant; `after` and `limit` for a page of them."""
    return await _tenant_records(connection, now, None, after, limit)


async def find_tenant(connection: Connection, tenant_id: str, *, now: int) -> TenantRecord:
    """Return a tenant as of an instant."""
    found = await _tenant_records(connection, now, tenant_id)
    if not found:
        raise Unknown("tenant", tenant_id)
    return found[0]


async def _tenant_records(
    connection: Connection, now: int, tenant_id: str | None, after: str = "", limit: int | None = None
) -> list[TenantRecord]:
    async with connection.cursor(row_factory=class_row(TenantRecord)) as cursor:
        await cursor.execute(
            """
            select
                t.tenant_id, v.name, v.status, v.entity_id, v.time_zone, v.charge_currency,
                t.starts_at, t.ends_at, t.merged_into, t.merged_at, t.unmerged_at
            from ledger.tenants as t
            cross join lateral (
                select *
                from ledger.tenant_versions as v
                where v.tenant_id = t.tenant_id
                -- Before the first version, the first.
                order by v.effective_at <= %(now)s desc, abs(extract(epoch from v.effective_at - %(now)s))
                limit 1
            ) as v
            where (%(tenant_id)s::text is null or t.tenant_id = %(tenant_id)s) and t.tenant_id > %(after)s
            order by t.tenant_id
            limit %(limit)s
            """,
            {"now": from_micros(now), "tenant_id": tenant_id, "after": after, "limit": limit},
        )
        return await cursor.fetchall()


async def tenant_versions(connection: Connection, tenant_id: str) -> list[TenantVersionRecord]:
    """List a tenant's versions in order of time."""
    async with connection.cursor(row_factory=class_row(TenantVersionRecord)) as cursor:
        await cursor.execute(
            "select effective_at, name, status, entity_id, time_zone, charge_currency, recorded_at"
            " from ledger.tenant_versions where tenant_id = %s order by effective_at",
            [tenant_id],
        )
        return await cursor.fetchall()


async def change_tenant(
    connection: Connection,
    actor: str,
    tenant_id: str,
    month: date,
    *,
    entity_id: str | None = None,
    time_zone: str | None = None,
    charge_currency: str | None = None,
    name: str | None = None,
    reason: str | None = None,
) -> datetime:
    """Change a tenant from the start of a month on and return that instant; what is not given stays as it is.

    Raises ActRefused where usage of that month is in the ledger already, since its local days, prices and books were
    those of the old version, and where a later change is recorded, since changes are added in order of time.
    """
    if month != month_of(month):
        raise ActRefused(
            f"a tenant changes at the start of a month, and {month} is not the first day of one:"
            f" the next is {month_after(month_of(month))}"
        )
    given = {"entity_id": entity_id, "time_zone": time_zone, "charge_currency": charge_currency, "name": name}
    wanted = {column: value for column, value in given.items() if value is not None}
    if not wanted:
        raise ActRefused("nothing to change: name an entity, a zone, a currency or a name")
    if entity_id is not None:
        await _check_entity(connection, entity_id)
    if time_zone is not None:
        await check_time_zone(connection, time_zone)
    if charge_currency is not None:
        check_currency(charge_currency)
    async with change(connection, "parties", "calendar"):
        tenant = await _tenant(connection, tenant_id)
        at = month_starts_at(tenant, month)
        if at <= tenant.starts_at:
            raise ActRefused(f"tenant {tenant_id} starts in that month or later: {month} is too early")
        if tenant.versions[-1].effective_at >= at:
            latest = from_micros(tenant.versions[-1].effective_at)
            raise ActRefused(f"tenant {tenant_id} has a change recorded for {latest:%Y-%m-%d} already: add a later one")
        await _refuse_if_used(connection, tenant_id, at, month)
        await _refuse_if_closed(connection, tenant_id, month)
        await _add_version(connection, tenant_id, at, wanted)
        changed = await _tenant(connection, tenant_id)
        moved = await redraw_periods(connection, changed, month_of(month))
        detail = {"tenant_id": tenant_id, "month": month.isoformat(), **wanted, "moved": [m.isoformat() for m in moved]}
        await record_act(connection, actor, "tenants.change", detail, reason)
    return from_micros(at)


async def suspend_tenant(connection: Connection, actor: str, tenant_id: str, *, now: int, reason: str | None) -> None:
    """Suspend a tenant from now on: what it uses is still recorded, but nothing more is admitted."""
    await _change_status(connection, actor, tenant_id, "suspended", now, reason, allowed=("active",))


async def resume_tenant(connection: Connection, actor: str, tenant_id: str, *, now: int, reason: str | None) -> None:
    """End a tenant's suspension."""
    await _change_status(connection, actor, tenant_id, "active", now, reason, allowed=("suspended",))


async def leave_tenant(
    connection: Connection, actor: str, tenant_id: str, *, now: int, at: int | None = None, reason: str | None = None
) -> None:
    """Let a tenant leave at an instant (default: now); its periods go on, for usage that is reported late."""
    at = now if at is None else at
    await _change_status(connection, actor, tenant_id, "left", at, reason, allowed=("active", "suspended"))


async def _change_status(
    connection: Connection,
    actor: str,
    tenant_id: str,
    status: str,
    at: int,
    reason: str | None,
    allowed: Collection[str],
) -> None:
    async with change(connection, "parties"):
        tenant = await _tenant(connection, tenant_id)
        if at <= tenant.starts_at:
            raise ActRefused(f"tenant {tenant_id} starts at {from_micros(tenant.starts_at):%Y-%m-%d %H:%M:%S}Z only")
        current = tenant.at(at).status
        if current not in allowed:
            raise ActRefused(f"tenant {tenant_id} is {current}")
        await _add_version(connection, tenant_id, at, {"status": status})
        # Changes that are recorded for later were copied from the old status.
        await connection.execute(
            "update ledger.tenant_versions set status = %s where tenant_id = %s and effective_at > %s",
            [status, tenant_id, from_micros(at)],
        )
        if status == "left":
            await connection.execute(
                "update ledger.tenants set ends_at = %s where tenant_id = %s", [from_micros(at), tenant_id]
            )
        detail = {"tenant_id": tenant_id, "status": status, "at": from_micros(at).isoformat()}
        await record_act(connection, actor, "tenants.status", detail, reason)


async def merge_tenants(
    connection: Connection, actor: str, tenant_id: str, into: str, *, at: int, reason: str | None = None
) -> None:
    """Let usage that occurs from an instant on, and is sent as one tenant, belong to another; the past stays.

    Raises ActRefused where usage of that time is in the ledger already.
    """
    async with change(connection, "parties"):
        tenant, target = await _tenant(connection, tenant_id), await _tenant(connection, into)
        if tenant_id == into:
            raise ActRefused(f"tenant {tenant_id} cannot be merged into itself")
        if tenant.unmerged_at is not None:
            # A second merge would overwrite when the first one was, by which late usage of its time is still booked.
            raise ActRefused(f"tenant {tenant_id} was merged into {tenant.merged_into} before, and merges once")
        if tenant.merged_into is not None:
            raise ActRefused(f"tenant {tenant_id} is merged into {tenant.merged_into} already")
        if target.is_merged_at(at) or (target.merged_at is not None and target.merged_at > at):
            raise ActRefused(f"tenant {into} is itself merged into {target.merged_into}")
        await _refuse_if_used(connection, tenant_id, at)
        await connection.execute(
            "update ledger.tenants set merged_into = %s, merged_at = %s where tenant_id = %s",
            [into, from_micros(at), tenant_id],
        )
        detail = {"tenant_id": tenant_id, "into": into, "at": from_micros(at).isoformat()}
        await record_act(connection, actor, "tenants.merge", detail, reason)


async def unmerge_tenant(
    connection: Connection, actor: str, tenant_id: str, *, at: int, reason: str | None = None
) -> None:
    """End a merge at an instant: usage that occurs from then on, and is sent as the tenant, is its own again.

    What was booked under the merge stays. Raises ActRefused where usage of that time is in the ledger already.
    """
    async with change(connection, "parties"):
        tenants = await load_tenants(connection)
        tenant = await _tenant(connection, tenant_id)
        if tenant.merged_at is None or tenant.unmerged_at is not None:
            raise ActRefused(f"tenant {tenant_id} is merged into nobody")
        if at <= tenant.merged_at:
            raise ActRefused(
                f"tenant {tenant_id} is merged from {from_micros(tenant.merged_at):%Y-%m-%d %H:%M:%S}Z on only"
            )
        # Whom it was booked on: the tenant that it is merged into, or one that this one was merged into.
        payers: list[str] = []
        following = tenant.merged_into
        while following is not None and following not in payers:
            payers.append(following)
            following = tenants[following].merged_into
        cursor = await connection.execute(
            "select min(occurred_at) from ledger.entries"
            " where tenant_id = any(%s) and sent_tenant_id = %s and occurred_at >= %s",
            [payers, tenant_id, from_micros(at)],
        )
        row = await cursor.fetchone()
        if row and row[0] is not None:
            raise ActRefused(
                f"usage sent as {tenant_id} at {row[0]:%Y-%m-%d %H:%M:%S}Z is in the ledger already:"
                " what was booked under a merge is not touched by its end"
            )
        await connection.execute(
            "update ledger.tenants set unmerged_at = %s where tenant_id = %s", [from_micros(at), tenant_id]
        )
        detail = {"tenant_id": tenant_id, "from": tenant.merged_into, "at": from_micros(at).isoformat()}
        await record_act(connection, actor, "tenants.unmerge", detail, reason)


async def _tenant(connection: Connection, tenant_id: str) -> Tenant:
    tenant = (await load_tenants(connection)).get(tenant_id)
    if tenant is None:
        raise Unknown("tenant", tenant_id)
    return tenant


async def _add_version(connection: Connection, tenant_id: str, at: int, changed: Mapping[str, str]) -> None:
    """Add a version that differs from the one in force at that instant."""
    values: dict[str, Any] = {"entity_id": None, "name": None, "time_zone": None, "charge_currency": None}
    await connection.execute(
        """
        insert into ledger.tenant_versions
            (tenant_id, effective_at, entity_id, name, time_zone, charge_currency, status)
        select
            v.tenant_id, %(at)s,
            coalesce(%(entity_id)s, v.entity_id), coalesce(%(name)s, v.name), coalesce(%(time_zone)s, v.time_zone),
            coalesce(%(charge_currency)s, v.charge_currency), coalesce(%(status)s, v.status)
        from ledger.tenant_versions as v
        where v.tenant_id = %(tenant_id)s and v.effective_at <= %(at)s
        order by v.effective_at desc
        limit 1
        """,
        {**values, "status": None, **changed, "tenant_id": tenant_id, "at": from_micros(at)},
    )


async def _check_entity(connection: Connection, entity_id: str) -> None:
    cursor = await connection.execute("select from ledger.entities where entity_id = %s", [entity_id])
    if await cursor.fetchone() is None:
        raise Unknown("entity", entity_id)


async def _refuse_if_used(connection: Connection, tenant_id: str, at: int, month: date | None = None) -> None:
    """Refuse what would reach back over usage; where a month was asked for, say which is the first that is free."""
    cursor = await connection.execute(
        "select min(occurred_at), max(local_date) from ledger.entries where tenant_id = %s and occurred_at >= %s",
        [tenant_id, from_micros(at)],
    )
    row = await cursor.fetchone()
    if row and row[0] is not None:
        free = f"; the next month that it can change with is {month_after(month_of(row[1])):%Y-%m}" if month else ""
        raise ActRefused(
            f"usage of tenant {tenant_id} at {row[0]:%Y-%m-%d %H:%M:%S}Z is in the ledger already:"
            f" what was used before a change is not touched by it{free}"
        )


async def _refuse_if_closed(connection: Connection, tenant_id: str, month: date) -> None:
    cursor = await connection.execute(
        "select min(posting_period), max(posting_period) from ledger.periods"
        " where tenant_id = %s and posting_period >= %s and state = 'closed'",
        [tenant_id, month],
    )
    row = await cursor.fetchone()
    if row and row[0] is not None:
        raise ActRefused(
            f"period {row[0]:%Y-%m} of tenant {tenant_id} is closed;"
            f" the next month that it can change with is {month_after(row[1]):%Y-%m}"
        )


def start_of(day: date, zone: str) -> int:
    """Return the first instant of a local day, for those who give a date where an instant is asked for."""
    if zone not in time_zones():
        raise ActRefused(f"time zone {zone!r} is unknown")
    return local_midnight(zone, day)


# --- Sources ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SourceRecord:
    """A registered sender, with the tenants that it may speak for where it does not speak for all."""

    source: str
    kind: str
    rank: int
    speaks_for_all: bool
    tenant_ids: Sequence[str]
    created_at: datetime
    ended_at: datetime | None


async def add_source(
    connection: Connection,
    actor: str,
    source: str,
    *,
    kind: str,
    rank: int,
    speaks_for_all: bool = False,
    tenant_ids: Collection[str] = (),
) -> None:
    """Register a sender, the tenants that it may speak for, and its rank: between two reports the higher counts."""
    check_name("source", source)
    if kind not in SOURCE_KINDS:
        raise ActRefused(f"source kind {kind!r} is unknown; it is one of {', '.join(SOURCE_KINDS)}")
    if speaks_for_all == bool(tenant_ids):
        raise ActRefused("a source speaks for all tenants or for named ones: say which")
    async with change(connection, "parties"):
        tenants = await load_tenants(connection)
        for tenant_id in tenant_ids:
            if tenant_id not in tenants:
                raise Unknown("tenant", tenant_id)
        cursor = await connection.execute(
            "insert into ledger.sources (source, kind, rank, speaks_for_all) values (%s, %s, %s, %s)"
            " on conflict do nothing",
            [source, kind, rank, speaks_for_all],
        )
        if not cursor.rowcount:
            raise AlreadyThere("source", source)
        await connection.execute(
            "insert into ledger.source_tenants (source, tenant_id) select %s, unnest(%s::text[])",
            [source, sorted(set(tenant_ids))],
        )
        detail = {"source": source, "kind": kind, "rank": rank, "tenants": sorted(tenant_ids) or "all"}
        await record_act(connection, actor, "sources.add", detail)


async def allow_tenants(connection: Connection, actor: str, source: str, tenant_ids: Collection[str]) -> int:
    """Let a source speak for more tenants and return for how many it did not before."""
    async with change(connection, "parties"):
        cursor = await connection.execute(
            "select speaks_for_all from ledger.sources where source = %s and ended_at is null", [source]
        )
        row = await cursor.fetchone()
        if row is None:
            raise Unknown("source", source)
        if row[0]:
            raise ActRefused(f"source {source} speaks for all tenants already")
        tenants = await load_tenants(connection)
        for tenant_id in tenant_ids:
            if tenant_id not in tenants:
                raise Unknown("tenant", tenant_id)
        cursor = await connection.execute(
            "insert into ledger.source_tenants (source, tenant_id) select %s, unnest(%s::text[]) on conflict do nothing",
            [source, sorted(set(tenant_ids))],
        )
        await record_act(connection, actor, "sources.allow", {"source": source, "tenants": sorted(tenant_ids)})
        return cursor.rowcount


async def disallow_tenants(
    connection: Connection, actor: str, source: str, tenant_ids: Collection[str], reason: str | None = None
) -> int:
    """Take tenants from those that a source may speak for and return for how many it did; what it has said stays."""
    async with change(connection, "parties"):
        found = await find_source(connection, source)
        if found.speaks_for_all:
            raise ActRefused(f"source {source} speaks for all tenants: end it, and add one that speaks for some")
        if not set(found.tenant_ids) - set(tenant_ids):
            raise ActRefused(f"source {source} would speak for nobody: end it instead")
        cursor = await connection.execute(
            "delete from ledger.source_tenants where source = %s and tenant_id = any(%s)", [source, list(tenant_ids)]
        )
        detail = {"source": source, "tenants": sorted(tenant_ids)}
        await record_act(connection, actor, "sources.disallow", detail, reason)
        return cursor.rowcount


async def rank_source(connection: Connection, actor: str, source: str, rank: int, reason: str | None = None) -> int:
    """Change the rank of a source and return the old one.

    Each statement keeps the rank that its source had when it came: what is decided stays, whatever the new rank, and only
    what the source says from now on counts with it.
    """
    async with change(connection, "parties"):
        found = await find_source(connection, source)
        await connection.execute("update ledger.sources set rank = %s where source = %s", [rank, source])
        detail = {"source": source, "rank": rank, "rank_before": found.rank}
        await record_act(connection, actor, "sources.rank", detail, reason)
        return found.rank


async def resume_source(connection: Connection, actor: str, source: str, reason: str | None = None) -> None:
    """Let a source that has ended speak again; what it sent meanwhile is among the dead letters."""
    async with change(connection, "parties"):
        found = await find_source(connection, source)
        if found.ended_at is None:
            raise ActRefused(f"source {source} has not ended")
        await connection.execute("update ledger.sources set ended_at = null where source = %s", [source])
        await record_act(connection, actor, "sources.resume", {"source": source}, reason)


async def find_source(connection: Connection, source: str) -> SourceRecord:
    """Return a source, also one that has ended."""
    for found in await list_sources(connection, with_ended=True):
        if found.source == source:
            return found
    raise Unknown("source", source)


async def end_source(connection: Connection, actor: str, source: str, reason: str | None = None) -> None:
    """End a source: what it sends from now on is a dead letter."""
    async with change(connection, "parties"):
        cursor = await connection.execute(
            "update ledger.sources set ended_at = clock_timestamp() where source = %s and ended_at is null", [source]
        )
        if not cursor.rowcount:
            raise Unknown("source", source)
        await record_act(connection, actor, "sources.end", {"source": source}, reason)


async def list_sources(connection: Connection, *, with_ended: bool = False) -> list[SourceRecord]:
    """List sources by name."""
    async with connection.cursor(row_factory=class_row(SourceRecord)) as cursor:
        await cursor.execute(
            """
            select
                s.source, s.kind, s.rank, s.speaks_for_all,
                array(select t.tenant_id from ledger.source_tenants as t where t.source = s.source order by 1) as tenant_ids,
                s.created_at, s.ended_at
            from ledger.sources as s
            where s.ended_at is null or %s
            order by s.source
            """,
            [with_ended],
        )
        return await cursor.fetchall()


# --- Provider accounts and models -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AccountRecord:
    """An account that a provider bills; `tenant_id` is whose own it is, None: ours."""

    provider_account: str
    provider: str
    currency: str
    tenant_id: str | None
    created_at: datetime


async def add_provider_account(
    connection: Connection,
    actor: str,
    provider_account: str,
    provider: str,
    currency: str,
    tenant_id: str | None = None,
) -> None:
    """Add an account that a provider bills, to us or to the tenant whose own it is."""
    check_name("provider account", provider_account)
    check_name("provider", provider)
    check_currency(currency)
    async with change(connection, "parties"):
        if tenant_id is not None:
            await _tenant(connection, tenant_id)
        cursor = await connection.execute(
            "insert into ledger.provider_accounts (provider_account, provider, currency, tenant_id)"
            " values (%s, %s, %s, %s) on conflict do nothing",
            [provider_account, provider, currency, tenant_id],
        )
        if not cursor.rowcount:
            raise AlreadyThere("provider account", provider_account)
        detail = {
            "provider_account": provider_account,
            "provider": provider,
            "currency": currency,
            "tenant_id": tenant_id,
        }
        await record_act(connection, actor, "accounts.add", detail)


async def change_provider_account(
    connection: Connection,
    actor: str,
    provider_account: str,
    *,
    provider: str | None = None,
    currency: str | None = None,
    tenant_id: str | None = None,
    is_ours: bool = False,
    reason: str,
) -> None:
    """Put right what was said of an account: who bills it, in what, and whose own it is; what is not given stays.

    What is posted keeps its price; `prices reprice` shows and corrects what a wrong owner had made free, or charged.
    Raises ActRefused where nothing changes, or a tenant is named for an account that is ours.
    """
    if provider is not None:
        check_name("provider", provider)
    if currency is not None:
        check_currency(currency)
    if is_ours and tenant_id is not None:
        raise ActRefused("an account is ours or a tenant's: name one of them")
    async with change(connection, "parties"):
        found = await find_provider_account(connection, provider_account)
        if tenant_id is not None:
            await _tenant(connection, tenant_id)
        before = {"provider": found.provider, "currency": found.currency, "tenant_id": found.tenant_id}
        now_said = {
            "provider": provider or found.provider,
            "currency": currency or found.currency,
            "tenant_id": None if is_ours else tenant_id or found.tenant_id,
        }
        if now_said == before:
            raise ActRefused(f"nothing to change: provider account {provider_account} is that already")
        await connection.execute(
            "update ledger.provider_accounts set provider = %(provider)s, currency = %(currency)s,"
            " tenant_id = %(tenant_id)s where provider_account = %(provider_account)s",
            {**now_said, "provider_account": provider_account},
        )
        detail = {"provider_account": provider_account, **now_said, "before": before}
        await record_act(connection, actor, "accounts.change", detail, reason)


async def list_provider_accounts(connection: Connection) -> list[AccountRecord]:
    """List provider accounts by name."""
    async with connection.cursor(row_factory=class_row(AccountRecord)) as cursor:
        await cursor.execute(
            "select provider_account, provider, currency, tenant_id, created_at from ledger.provider_accounts"
            " order by provider_account"
        )
        return await cursor.fetchall()


async def find_provider_account(connection: Connection, provider_account: str) -> AccountRecord:
    """Return a provider account."""
    for found in await list_provider_accounts(connection):
        if found.provider_account == provider_account:
            return found
    raise Unknown("provider account", provider_account)


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """A model that we know, with its other exact names."""

    provider: str
    model: str
    input_tokens_max: int | None
    output_tokens_max: int | None
    aliases: Sequence[str]


Limit = Literal["input_tokens_max", "output_tokens_max"]


async def set_model(
    connection: Connection,
    actor: str,
    provider: str,
    model: str,
    *,
    input_tokens_max: int | None = None,
    output_tokens_max: int | None = None,
    aliases: Collection[str] = (),
    without: Collection[Limit] = (),
) -> None:
    """Add a model, or limits and exact aliases to one that is there; what is not given stays as it is.

    `without`: limits that it has no longer. Raises ActRefused where an alias is another model's name.
    """
    for what, name in (("provider", provider), ("model", model), *(("alias", alias) for alias in aliases)):
        check_name(what, name)
    for limit in (input_tokens_max, output_tokens_max):
        if limit is not None and limit <= 0:
            raise ActRefused(f"a limit of {limit} tokens would make every report of the model impossible")
    for name, limit in (("input_tokens_max", input_tokens_max), ("output_tokens_max", output_tokens_max)):
        if limit is not None and name in without:
            raise ActRefused(f"{name} is set and taken away at once")
    async with change(connection, "parties"):
        names = await _model_names(connection, provider)
        for name in (model, *aliases):
            if names.get(name, model) != model:
                raise ActRefused(f"{name!r} is a name of model {names[name]} of {provider} already")
        await connection.execute(
            "insert into ledger.models as m (provider, model, input_tokens_max, output_tokens_max)"
            " values (%s, %s, %s, %s) on conflict (provider, model) do update set"
            " input_tokens_max = case when not %s then coalesce(excluded.input_tokens_max, m.input_tokens_max) end,"
            " output_tokens_max = case when not %s then coalesce(excluded.output_tokens_max, m.output_tokens_max) end",
            [
                provider, model, input_tokens_max, output_tokens_max,
                "input_tokens_max" in without, "output_tokens_max" in without,
            ],
        )  # fmt: skip
        added = sorted(set(aliases) - names.keys() - {model})
        await connection.execute(
            "insert into ledger.model_aliases (provider, alias, model, source)"
            " select %s, unnest(%s::text[]), %s, 'commands'",
            [provider, added, model],
        )
        detail = {
            "provider": provider,
            "model": model,
            "input_tokens_max": input_tokens_max,
            "output_tokens_max": output_tokens_max,
            "aliases": added,
            **({"without": sorted(without)} if without else {}),
        }
        await record_act(connection, actor, "models.set", detail)


async def _model_names(connection: Connection, provider: str) -> dict[str, str]:
    cursor = await connection.execute(
        "select alias, model from ledger.model_aliases where provider = %(provider)s"
        " union all select model, model from ledger.models where provider = %(provider)s",
        {"provider": provider},
    )
    return dict(await cursor.fetchall())


async def drop_alias(connection: Connection, actor: str, provider: str, alias: str, reason: str | None = None) -> str:
    """Take an exact alias from a model and return whose it was: reports under it are unpriced from now on.

    What is in the ledger keeps its model and its price, which `prices reprice` would take back.
    """
    async with change(connection, "parties"):
        cursor = await connection.execute(
            "delete from ledger.model_aliases where provider = %s and alias = %s returning model", [provider, alias]
        )
        row = await cursor.fetchone()
        if row is None:
            raise Unknown(f"alias of {provider}", alias)
        detail = {"provider": provider, "model": row[0], "alias": alias}
        await record_act(connection, actor, "models.drop", detail, reason)
        return str(row[0])


async def find_model(connection: Connection, provider: str, model: str) -> ModelRecord:
    """Return a model, by its canonical id."""
    for found in await list_models(connection, provider):
        if found.model == model:
            return found
    raise Unknown(f"model of {provider}", model)


async def list_models(
    connection: Connection,
    provider: str | None = None,
    *,
    after: tuple[str, str] | None = None,
    limit: int | None = None,
) -> list[ModelRecord]:
    """List models by provider and id; `after` (a provider and an id) and `limit` for a page of them."""
    async with connection.cursor(row_factory=class_row(ModelRecord)) as cursor:
        await cursor.execute(
            """
            select
                m.provider, m.model, m.input_tokens_max, m.output_tokens_max,
                array(
                    select a.alias
                    from ledger.model_aliases as a
                    where a.provider = m.provider and a.model = m.model
                    order by 1
                ) as aliases
            from ledger.models as m
            where
                (%(provider)s::text is null or m.provider = %(provider)s)
                and (%(after_provider)s::text is null or (m.provider, m.model) > (%(after_provider)s, %(after_model)s))
            order by m.provider, m.model
            limit %(limit)s
            """,
            {
                "provider": provider,
                "after_provider": None if after is None else after[0],
                "after_model": None if after is None else after[1],
                "limit": limit,
            },
        )
        return await cursor.fetchall()


# --- Names of models --------------------------------------------------------------------------------------------------


async def set_name_rules(connection: Connection, actor: str, provider: str, rules: NameRules) -> None:
    """Set what may stand around a provider's names, in order of precedence; what was set before is gone."""
    check_name("provider", provider)
    for rule in rules:
        if rule.kind == "prefix":
            check_name("prefix", rule.text)
    if len(set(rules)) < len(rules):
        raise ActRefused("a rule stands twice: the later one would never be asked")
    async with change(connection, "parties"):
        await connection.execute("delete from ledger.model_name_rules where provider = %s", [provider])
        async with connection.cursor() as writer:
            await writer.executemany(
                "insert into ledger.model_name_rules (provider, place, kind, text) values (%s, %s, %s, %s)",
                [(provider, place, rule.kind, rule.text) for place, rule in enumerate(rules, 1)],
            )
        await record_act(
            connection, actor, "models.rules", {"provider": provider, "rules": [str(rule) for rule in rules]}
        )


@dataclass(frozen=True, slots=True)
class NameRuleRecord:
    """What may stand around a provider's names, with its precedence."""

    provider: str
    place: int
    rule: NameRule


async def list_name_rules(connection: Connection, provider: str | None = None) -> list[NameRuleRecord]:
    """List rules by provider, in order of precedence."""
    found = await load_name_rules(connection)
    return [
        NameRuleRecord(of, place, rule)
        for of, rules in found.items()
        if provider in (None, of)
        for place, rule in enumerate(rules, 1)
    ]


@dataclass(frozen=True, slots=True)
class UnknownName:
    """A name that usage came under and that is nobody's: its entries are unpriced."""

    provider: str
    name: str
    entry_count: int
    first_at: datetime
    last_at: datetime


async def unknown_names(connection: Connection) -> list[UnknownName]:
    """List the names in the ledger that are nobody's, those with most entries first.

    A name that has become known since is none of them, though its entries stay unpriced until they are repriced.
    """
    parties = (await load_books(connection)).parties
    async with connection.cursor(row_factory=class_row(UnknownName)) as cursor:
        await cursor.execute(
            """
            select
                provider,
                coalesce(reported_model, requested_model) as name,
                count(*) as entry_count,
                min(occurred_at) as first_at,
                max(occurred_at) as last_at
            from ledger.entries
            where
                model is null
                and kind = 'usage'
                and provider is not null
                and coalesce(reported_model, requested_model) is not null
            group by 1, 2
            order by 3 desc, 1, 2
            """
        )
        return [each for each in await cursor.fetchall() if parties.model(each.provider, each.name) is None]


async def accept_names(
    connection: Connection, actor: str, names: Mapping[tuple[str, str], str], source: str, reason: str | None = None
) -> int:
    """Make exact names that a person accepted aliases of models that are there; return how many were new.

    Shape: names map (provider, name) to the canonical id. Raises Unknown for a model that is not there, and ActRefused
    where a name is another model's.
    """
    async with change(connection, "parties"):
        added = 0
        for (provider, name), model in names.items():
            check_name("name", name)
            known = await _model_names(connection, provider)
            if known.get(model) != model:
                raise Unknown(f"model of {provider}", model)
            if known.get(name, model) != model:
                raise ActRefused(f"{name!r} is a name of model {known[name]} of {provider} already")
            cursor = await connection.execute(
                "insert into ledger.model_aliases (provider, alias, model, source) values (%s, %s, %s, %s)"
                " on conflict do nothing",
                [provider, name, model, source],
            )
            added += cursor.rowcount
        detail = {"source": source, "names": [[provider, name, model] for (provider, name), model in names.items()]}
        await record_act(connection, actor, "models.accept", detail, reason)
    return added
