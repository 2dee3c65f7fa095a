"""What remains of the budgets of a tenant: read from the windows that the ledger's own commits move, never from a mart."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec

from ledger.database import Connection
from ledger.times import from_micros, local_midnight

_STATEMENT: Final = (Path(__file__).parent / "sql" / "remaining.sql").read_text()


class Span(msgspec.Struct, frozen=True):
    """A window: local days of the budget's zone, and the instants at which they begin. Ends are exclusive.

    A lifetime has neither start nor end.
    """

    kind: str
    time_zone: str
    first_date: date | None
    end_date: date | None
    starts_at: datetime | None
    ends_at: datetime | None


class Remaining(msgspec.Struct, frozen=True):
    """One budget, or one group of a template, in one window. Amounts are decimal text, exact, in unit and currency."""

    budget_id: str
    scope: msgspec.Raw
    """JSON object: what usage must be to count here, `tenant_id` included."""
    group: dict[str, str | None]
    """For a budget with a window per group: which one this is."""
    unit: str
    currency: str | None
    window: Span
    limit: str | None
    """None where nothing limits."""
    posted: str
    held: str
    remaining: str | None
    """limit - posted - held; below zero when overrun, and None without limit."""
    hardness: str
    is_tightest: bool
    """Of all that are shown, the hard one with the smallest share of its limit left: it is likely to refuse first."""
    thresholds_reached: list[str]
    """Those of its thresholds, shares of the limit, that posted + held reach now."""
    unpriced_count: int
    """Requests in scope whose amount or count is not known: what is posted is then too low."""
    unpriced_tokens: int
    """Tokens in scope whose amount is not known, those of a later part of a request too."""
    last_batch_id: int | None
    """The batch that moved it last; None before the first."""


@dataclass(frozen=True, slots=True)
class Lag:
    """How far the Kafka feeds in use are behind: those that have posted within a day.

    A feed counts from the append time of what it posted last, or from when its worker last found nothing more in the log; a
    batch over HTTP is in the ledger when it is answered, so those feeds have no lag.
    """

    lag_ms: int | None
    """The largest; None without a feed in use."""
    in_use_count: int
    silent_count: int
    """Feeds that have posted, but not within a day: an old incarnation of a topic, or a worker that is down."""


@dataclass(frozen=True, slots=True)
class TenantBudgets:
    """The budgets of one tenant at one instant, as one statement saw them."""

    tenant_id: str
    time_zone: str
    at: datetime
    database_time: datetime
    last_batch_id: int | None
    lag: Lag
    budgets: list[Remaining]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one statement saw."""

    database_time: datetime
    lag: Lag
    tenants: dict[tuple[str, int | None], TenantBudgets]
    """By tenant and instant as asked, without the tenants that are not there."""


async def remaining(connection: Connection, asked: Sequence[tuple[str, int | None]]) -> Snapshot:
    """Read what remains for each (tenant, instant), in one statement; without an instant, at the database's now.

    Shape: a budget shows its window in force at the instant, with zeros before the first movement. A template or a budget
    by groups shows the groups that moved and, where it groups by nothing but tenant and the tenant's own currency, that
    group too. Budgets over several tenants are not shown, and neither is a window from before a budget's first, which
    nothing has followed.
    Units: instants in UTC microseconds.
    """
    cursor = await connection.execute(
        _STATEMENT,
        {
            "tenants": [tenant_id for tenant_id, _ in asked],
            "instants": [None if at is None else from_micros(at) for _, at in asked],
        },
        prepare=True,
    )
    rows = await cursor.fetchall()
    now, lag = rows[0][4], Lag(*rows[0][5:8])
    found: dict[tuple[str, int | None], TenantBudgets] = {}
    for number, tenant_id, zone, at, _, _, _, _, last_batch_id, *budget in rows:
        if number is None:
            continue
        key = asked[number - 1]
        tenant = found.get(key)
        if tenant is None:
            tenant = found[key] = TenantBudgets(tenant_id, zone, at, now, last_batch_id, lag, [])
        if budget[0] is not None:
            tenant.budgets.append(_from_row(tenant_id, zone, budget))
    return Snapshot(now, lag, found)


async def tenant_ids_after(connection: Connection, after: str, limit: int) -> list[str]:
    """Return the tenants that follow one, in the order of their ids."""
    cursor = await connection.execute(
        "select tenant_id from ledger.tenants where tenant_id > %s order by tenant_id limit %s", [after, limit]
    )
    return [row[0] async for row in cursor]


def _from_row(tenant_id: str, zone: str, row: Sequence[Any]) -> Remaining:
    budget_id, *scope = row[:9]
    (
        group_by, group_key, unit, currency, kind, days, anchor, start,
        limit, posted, held, left, hardness, is_tightest, reached, unpriced_count, unpriced_tokens, last_batch_id,
    ) = row[9:]  # fmt: skip
    return Remaining(
        budget_id=budget_id,
        scope=_scope(tenant_id, *scope),
        group=_group(tuple(group_by), group_key, tenant_id, currency) if group_by else {},
        unit=unit,
        currency=currency,
        window=span(kind, days, anchor, start, zone),
        limit=limit,
        posted=posted,
        held=held,
        remaining=left,
        hardness=hardness,
        is_tightest=is_tightest,
        thresholds_reached=reached,
        unpriced_count=unpriced_count,
        unpriced_tokens=unpriced_tokens,
        last_batch_id=last_batch_id,
    )


_SCOPE: Final = ("tenant_id", "provider_account", "feature", "model", "route", "lane", "api_key_id", "subject_id")


@lru_cache(maxsize=16_384)
def _scope(*values: str | None) -> msgspec.Raw:
    *terms, tags = values
    scope: dict[str, Any] = {name: value for name, value in zip(_SCOPE, terms, strict=True) if value is not None}
    if tags is not None:
        scope["tags"] = msgspec.Raw(tags.encode())
    return msgspec.Raw(msgspec.json.encode(scope))


@lru_cache(maxsize=16_384)
def _group(
    group_by: tuple[str, ...], group_key: str | None, tenant_id: str, currency: str | None
) -> dict[str, str | None]:
    """Return which group a window is for; before the first movement the key is not written down yet."""
    if group_key is None:
        known = {"tenant_id": tenant_id, "currency": currency}
        return {name: known[name] for name in group_by}
    return dict(zip(group_by, msgspec.json.decode(group_key, type=list[str | None]), strict=True))


# The same few windows are asked for again and again; a zone's midnight is the dear part.
@lru_cache(maxsize=16_384)
def span(kind: str, days: int | None, anchor: date | None, start: date, zone: str) -> Span:
    """Return the window that begins on a local day; `quotas.window_start` says which day that is."""
    if kind == "lifetime":
        return Span(kind, zone, None, None, None, None)
    end = window_end(kind, days, anchor, start)
    return Span(
        kind, zone, start, end, from_micros(local_midnight(zone, start)), from_micros(local_midnight(zone, end))
    )


def window_end(kind: str, days: int | None, anchor: date | None, start: date) -> date:
    """Return the first day after a window: the start of the next one."""
    if kind == "day":
        return start + timedelta(days=1)
    if kind == "days":
        assert days is not None
        return start + timedelta(days=days)
    if kind == "week":
        return start + timedelta(days=7)
    following = (start.replace(day=1) + timedelta(days=32)).replace(day=1)
    if kind == "month":
        return following
    assert kind == "anchored_month"
    assert anchor is not None
    # The anchor's day of the next month, cut to its length.
    last = (following + timedelta(days=32)).replace(day=1) - timedelta(days=1)
    return last.replace(day=min(anchor.day, last.day))
