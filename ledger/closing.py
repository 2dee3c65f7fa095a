"""Closing months, and opening them again as a recorded act.

A close takes the calendar lock only to flip states and commits. Seals follow, each in a transaction of its own, and last
the month's partition: whatever an interrupted run left is done by the next one, or by the scheduler.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final

import psycopg
from psycopg.rows import class_row

from ledger import failpoints
from ledger.approvals import Awaiting, second_person
from ledger.books import load_tenants
from ledger.database import Connection, change, record_act
from ledger.errors import ActRefused, Unknown
from ledger.periods import GRACE_DAYS, PeriodRecord, find_period
from ledger.seals import COLUMNS, Line, SealRecord, list_seals, seal_period, sums_by_currency, total
from ledger.times import micros

_LOCK_TIMEOUT: Final = "2s"
"""How long the change of a partition waits for its readers, behind whom everybody else would queue."""


@dataclass(frozen=True, slots=True)
class ClosingPeriod:
    """What a close of a tenant's month would freeze."""

    tenant_id: str
    posting_period: date
    state: str
    ends_at: datetime
    grace_until: datetime
    entry_count: int
    evidence_count: int
    request_count: int
    cost_sums: dict[str, Decimal]
    """By currency, unrounded."""
    charge_sums: dict[str, Decimal]
    cost_unpriced_count: int
    charge_unpriced_count: int
    usage_missing_count: int
    estimated_count: int
    conflict_count: int
    """Open conflicts with an event whose rows are in the month."""
    dead_letter_count: int
    """Other open dead letters that name the tenant and were set aside since the month began: they may be usage of it."""

    @property
    def unknown(self) -> Sequence[str]:
        """What is in the month and keeps its invoice back; later it can be corrected in later months alone."""
        if self.state != "open":
            return ()
        counts = (
            (self.charge_unpriced_count, "request", "without a charge"),
            (self.usage_missing_count, "request", "without usage"),
            (self.conflict_count, "conflict", "open"),
        )
        return [f"{count:,} {what}{'' if count == 1 else 's'} {how}" for count, what, how in counts if count]


@dataclass(frozen=True, slots=True)
class _Chosen:
    """A tenant's month that somebody wants closed."""

    tenant_id: str
    state: str
    starts_at: datetime
    ends_at: datetime
    grace_until: datetime


async def _chosen(
    connection: Connection, month: date, tenant_id: str | None, entity_id: str | None
) -> Sequence[_Chosen]:
    """Return the months that are meant: one tenant's, those of an entity's tenants, or everybody's."""
    if month.day != 1:
        raise ActRefused(f"{month} is not the first day of a month")
    if tenant_id is not None and entity_id is not None:
        raise ActRefused("name a tenant or an entity, not both")
    async with connection.cursor(row_factory=class_row(_Chosen)) as cursor:
        await cursor.execute(
            "select tenant_id, state, starts_at, ends_at, grace_until from ledger.periods"
            " where posting_period = %(month)s and (%(tenant_id)s::text is null or tenant_id = %(tenant_id)s)"
            " order by tenant_id",
            {"month": month, "tenant_id": tenant_id},
        )
        found: Sequence[_Chosen] = await cursor.fetchall()
    tenants = await load_tenants(connection)
    if tenant_id is not None and tenant_id not in tenants:
        raise Unknown("tenant", tenant_id)
    if entity_id is not None:
        known = await connection.execute("select from ledger.entities where entity_id = %s", [entity_id])
        if await known.fetchone() is None:
            raise Unknown("entity", entity_id)
        # Who invoices a month is who did at its last instant: an entity changes only where a month begins.
        found = [each for each in found if tenants[each.tenant_id].at(micros(each.ends_at) - 1).entity_id == entity_id]
    if not found:
        whose = f"tenant {tenant_id} has" if tenant_id else f"entity {entity_id} has" if entity_id else "nobody has"
        raise ActRefused(f"{whose} {'a' if whose.startswith('nobody') else 'no'} period {month:%Y-%m}")
    return found


async def preview_close(
    connection: Connection, month: date, *, tenant_id: str | None = None, entity_id: str | None = None
) -> list[ClosingPeriod]:
    """Say what a close would freeze, by tenant; nothing is changed or locked."""
    chosen = await _chosen(connection, month, tenant_id, entity_id)
    ids = [each.tenant_id for each in chosen]
    lines: dict[str, list[Line]] = {each: [] for each in ids}
    cursor = await connection.execute(
        f"select w.tenant_id, {', '.join(f't.{name}' for name in COLUMNS)} from unnest(%s::text[]) as w (tenant_id)"
        " cross join lateral ledger.period_totals(w.tenant_id, %s) as t",
        [ids, month],
    )
    async for of, *line in cursor:
        lines[of].append(line)
    conflicts = await open_conflicts(connection, month)
    letters = await _open_letters(connection, min(each.starts_at for each in chosen))
    return [
        ClosingPeriod(
            tenant_id=each.tenant_id,
            posting_period=month,
            state=each.state,
            ends_at=each.ends_at,
            grace_until=each.grace_until,
            cost_sums=sums_by_currency(lines[each.tenant_id], "cost"),
            charge_sums=sums_by_currency(lines[each.tenant_id], "charge"),
            conflict_count=conflicts.get(each.tenant_id, 0),
            dead_letter_count=letters.get(each.tenant_id, 0),
            **{name: total(lines[each.tenant_id], name) for name in _COUNTS},
        )
        for each in chosen
    ]


_COUNTS: Final = (
    "entry_count", "evidence_count", "request_count", "cost_unpriced_count", "charge_unpriced_count",
    "usage_missing_count", "estimated_count",
)  # fmt: skip


async def open_conflicts(connection: Connection, month: date) -> dict[str, int]:
    """Count open conflicts by the tenant whose accepted event they contradict, where its rows are in a month."""
    cursor = await connection.execute(
        """
        select e.tenant_id, count(*)
        from ledger.dead_letters as d
        join ledger.event_keys as k on k.key = d.event_key
        cross join lateral (
            select r.tenant_id
            from ledger.entries as r
            where
                r.posting_period = %s
                and r.entry_id >= k.batch_id * 65536
                and r.entry_id < (k.batch_id + 1) * 65536
                and r.event_key = k.key
            limit 1
        ) as e
        where d.reason = 'conflict' and d.resolved_at is null
        group by 1
        """,
        [month],
    )
    return dict(await cursor.fetchall())


async def _open_letters(connection: Connection, since: datetime) -> dict[str, int]:
    """Count other open dead letters by the tenant that they name."""
    cursor = await connection.execute(
        "select sent_tenant_id, count(*) from ledger.dead_letters"
        " where resolved_at is null and reason <> 'conflict' and last_at >= %s and sent_tenant_id is not null group by 1",
        [since],
    )
    return dict(await cursor.fetchall())


@dataclass(frozen=True, slots=True)
class Closed:
    """What a close did."""

    posting_period: date
    closed: Sequence[str]
    """Tenants whose month was open and is closed now."""
    closed_before: Sequence[str]


async def close_periods(
    connection: Connection,
    actor: str,
    month: date,
    *,
    tenant_id: str | None = None,
    entity_id: str | None = None,
    is_early: bool = False,
    reason: str | None = None,
    leave_open: Collection[str] = (),
    accepted: Mapping[str, Sequence[str]] | None = None,
) -> Closed:
    """Close a month of a tenant, of all tenants of an entity, or of all but `leave_open`; `seal_pending` is to follow.

    Late usage goes to the next month from the commit on, also where the grace has not passed; what was recorded before is
    in. `accepted` says for the record, by tenant, what nobody knows of months that are closed all the same. Raises ActRefused
    where a month has not ended, unless the close is early, which takes a reason.
    """
    if is_early and not (reason or "").strip():
        raise ActRefused("an early close needs a reason")
    async with change(connection, "calendar"):
        chosen = [
            each for each in await _chosen(connection, month, tenant_id, entity_id) if each.tenant_id not in leave_open
        ]
        cursor = await connection.execute("select clock_timestamp()")
        row = await cursor.fetchone()
        assert row is not None
        now: datetime = row[0]
        going_on = [each for each in chosen if each.state == "open" and each.ends_at > now]
        if going_on and not is_early:
            last = max(going_on, key=lambda each: each.ends_at)
            raise ActRefused(
                f"period {month:%Y-%m} of tenant {last.tenant_id} ends at {last.ends_at:%Y-%m-%d %H:%M:%S}Z:"
                " close it then, or early with a reason"
            )
        open_before = [each.tenant_id for each in chosen if each.state == "open"]
        if open_before:
            await connection.execute(
                "update ledger.periods set state = 'closed', grace_until = least(grace_until, %s)"
                " where posting_period = %s and tenant_id = any(%s) and state = 'open'",
                [now, month, open_before],
            )
            detail: dict[str, Any] = {"month": f"{month:%Y-%m}", "tenants": open_before}
            if entity_id is not None:
                detail["entity_id"] = entity_id
            known_not = {name: list(what) for name, what in (accepted or {}).items() if name in open_before}
            if known_not:
                detail["unknown"] = known_not
            if going_on:
                detail["early"] = [each.tenant_id for each in going_on]
            await record_act(connection, actor, "periods.close", detail, reason)
        failpoints.hit("close.before_commit")
    failpoints.hit("close.before_seals")
    return Closed(month, open_before, [each.tenant_id for each in chosen if each.state != "open"])


async def seal_pending(
    connection: Connection, *, month: date | None = None, tenant_ids: Collection[str] | None = None
) -> list[SealRecord]:
    """Seal every closed month that has no seal yet; return the seals that were made."""
    cursor = await connection.execute(
        """
        select p.tenant_id, p.posting_period
        from ledger.periods as p
        where
            p.state = 'closed'
            -- Rows that are gone fold to nothing, which would be a false seal.
            and not ledger.is_retired(p.posting_period)
            and (%(month)s::date is null or p.posting_period = %(month)s)
            and (%(tenant_ids)s::text[] is null or p.tenant_id = any(%(tenant_ids)s))
            and not exists (
                select
                from ledger.seals as s
                where
                    s.tenant_id = p.tenant_id
                    and s.posting_period = p.posting_period
                    and s.close_number = p.close_number
            )
        order by p.posting_period, p.tenant_id
        """,
        {"month": month, "tenant_ids": None if tenant_ids is None else list(tenant_ids)},
    )
    made = []
    for tenant_id, pending in await cursor.fetchall():
        sealed = await seal_period(connection, tenant_id, pending)
        if sealed is not None:
            made.append(sealed)
        failpoints.hit("close.between_seals")
    return made


async def close_partitions(connection: Connection) -> tuple[list[date], list[date]]:
    """Close the partitions of months that every tenant has closed: (those closed now, those that were busy).

    A busy one is read by somebody just now; the next run closes it.
    """
    cursor = await connection.execute(
        """
        select p.posting_period
        from ledger.periods as p
        -- A month in which nobody used anything may have no partition.
        where to_regclass('ledger.entries_' || to_char(p.posting_period, 'YYYY_MM')) is not null
        group by p.posting_period
        having bool_and(p.state = 'closed') and not ledger.is_partition_closed(p.posting_period)
        order by 1
        """
    )
    closed, busy = [], []
    for (month,) in await cursor.fetchall():
        try:
            async with connection.transaction():
                await connection.execute(f"set local lock_timeout = '{_LOCK_TIMEOUT}'")
                done = await connection.execute("select ledger.close_partition(%s)", [month])
                if await done.fetchone() == (True,):
                    closed.append(month)
        except psycopg.errors.LockNotAvailable:
            busy.append(month)
    return closed, busy


async def what_depends_on(connection: Connection, tenant_id: str, month: date) -> list[str]:
    """Say what was made of a closed month and keeps it closed; the database asks the same when somebody opens it."""
    cursor = await connection.execute("select ledger.what_depends_on(%s, %s)", [tenant_id, month])
    return [row[0] for row in await cursor.fetchall()]


async def reopen_period(
    connection: Connection,
    actor: str,
    tenant_id: str,
    month: date,
    *,
    reason: str,
    needed: Collection[str] = (),
    grace_days: int = GRACE_DAYS,
) -> PeriodRecord | Awaiting:
    """Let a closed month take usage again, for `grace_days` from now; its seal stays and is superseded.

    What went to later months meanwhile stays there. `needed` holds the acts that the settings ask a second person for;
    where this is one and nobody has agreed yet, nothing is opened and the question stands. Raises ActRefused where something was made of the month that it would
    no longer agree with.
    """
    if not reason.strip():
        raise ActRefused("opening a closed period needs a reason")
    try:
        async with change(connection, "calendar"):
            await connection.execute(f"set local lock_timeout = '{_LOCK_TIMEOUT}'")
            found = await find_period(connection, tenant_id, month)
            if found.state != "closed":
                raise ActRefused(f"period {month:%Y-%m} of tenant {tenant_id} is open")
            kept = await what_depends_on(connection, tenant_id, month)
            if kept:
                raise ActRefused(f"period {month:%Y-%m} of tenant {tenant_id} stays closed: {'; '.join(kept)}")
            detail: dict[str, Any] = {
                "tenant_id": tenant_id,
                "month": f"{month:%Y-%m}",
                "close_number": found.close_number,
            }
            verdict = await second_person(connection, needed, "periods.reopen", detail, actor=actor, reason=reason)
            if isinstance(verdict, Awaiting):
                return verdict
            await connection.execute(
                "select from ledger.periods where tenant_id = %s and posting_period = %s for update nowait",
                [tenant_id, month],
            )
            await connection.execute("select ledger.make_partitions(%(m)s), ledger.open_partition(%(m)s)", {"m": month})
            await connection.execute(
                "update ledger.periods set state = 'open', grace_until = greatest(ends_at, clock_timestamp() + %s)"
                " where tenant_id = %s and posting_period = %s",
                [f"{grace_days} days", tenant_id, month],
            )
            seals = await list_seals(connection, tenant_id=tenant_id, month=month, close_number=found.close_number)
            detail["seal"] = seals[0].digest if seals else None
            await record_act(connection, actor, "periods.reopen", detail, reason, verdict.second_person)
            reopened = await find_period(connection, tenant_id, month)
    except psycopg.errors.LockNotAvailable:
        raise ActRefused(
            f"period {month:%Y-%m} of tenant {tenant_id} is being sealed or its rows are being read: try again in a moment"
        ) from None
    return reopened
