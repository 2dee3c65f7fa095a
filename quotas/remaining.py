"""What remains of the budgets of a tenant: read from the windows that the ledger's own commits move, never from a mart."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from itertools import count
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from ledger.database import Connection
from ledger.money import EXACT
from ledger.times import from_micros, local_midnight
from quotas.known import shortest

_SQL: Final = Path(__file__).parent / "sql"
_IN_FORCE: Final = (_SQL / "in_force.sql").read_text()
_MOVED: Final = (_SQL / "moved.sql").read_text()
_TENANTS_MAX: Final = 10_000
_TRIES_APART: Final = 3
_ZERO: Final = Decimal(0)
_NONE_REACHED: Final[list[str]] = []

Asked = tuple[str, int | None]
"""(tenant, instant in UTC microseconds); without an instant, the database's now."""

Versions = tuple[int, int, int]
"""(parties, calendar, budgets): what budgets, their terms and the days of tenants depend on."""

_Window = tuple[str, str | None, str, str, int, int, int | None, bool, Decimal | None]
"""Group, currency, posted, held, unpriced requests and tokens, last batch; whether the group has a limit of its own, and which."""

Windows = dict[int, list[_Window]]
"""By the place of the budget among all that were asked for, from 1."""


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
    tenants: dict[Asked, TenantBudgets]
    """By tenant and instant as asked, without the tenants that are not there."""


class BudgetInForce(msgspec.Struct, frozen=True):
    """A budget in its window in force, for one tenant: all of the answer but what moves."""

    budget_id: str
    scope: msgspec.Raw
    group_by: tuple[str, ...]
    unit: str
    currency: str | None
    window: Span
    limit: Decimal | None
    lapsed: Decimal
    hardness: str
    thresholds: tuple[Decimal, ...]
    known_group: str | None
    """The group that is shown before anything moved; None where none is known beforehand."""
    known_limit: Decimal | None
    """Of that group."""


class TenantInForce(msgspec.Struct, frozen=True):
    """The budgets of a tenant at an instant; those that were asked for at now stay, but for versions, until the clock says otherwise."""

    time_zone: str | None
    """None: there is no such tenant."""
    at: datetime
    since: datetime
    until: datetime | None
    versions: Versions
    budgets: tuple[BudgetInForce, ...]
    columns: tuple[str, str, str, str]
    """By budget, as in an array's text: tenant, budget, the window's first day, whether groups have limits of their own."""


class InForce:
    """What is known of tenants that were asked for at now, all of it under the same versions; and what was last shown of them."""

    def __init__(self) -> None:
        self._versions: Versions = (0, 0, 0)
        self._tenants: dict[str, TenantInForce] = {}
        self._shown: dict[str, tuple[TenantInForce, list[Any], list[Remaining]]] = {}

    def find(self, asked: Asked) -> TenantInForce | None:
        return self._tenants.get(asked[0]) if asked[1] is None else None

    def learn(self, asked: Asked, tenant: TenantInForce) -> None:
        if asked[1] is not None:
            return
        if tenant.versions != self._versions or len(self._tenants) >= _TENANTS_MAX:
            self._versions = tenant.versions
            self._tenants.clear()
            self._shown.clear()
        self._tenants[asked[0]] = tenant

    def shown(self, asked: Asked, tenant: TenantInForce, windows: list[list[_Window] | None]) -> list[Remaining]:
        """Return what remains: the same list as before where nothing has moved since."""
        before = self._shown.get(asked[0]) if asked[1] is None else None
        if before is not None and before[0] is tenant and before[1] == windows:
            return before[2]
        shown = _shown(tenant.budgets, windows)
        if asked[1] is None:
            self._shown[asked[0]] = tenant, windows, shown
        return shown


class _Moved(NamedTuple):
    """What one statement saw of windows, and of what tells whether they were the right ones."""

    versions: Versions
    read_at: datetime
    lag: Lag
    windows: Windows

    def confirms(self, asked: Asked, tenant: TenantInForce) -> bool:
        """Say whether a tenant's budgets were in force, in these windows, when this was read."""
        if tenant.versions != self.versions:
            return False
        return asked[1] is not None or (
            tenant.since <= self.read_at and (tenant.until is None or self.read_at < tenant.until)
        )


async def remaining(connection: Connection, asked: Sequence[Asked], known: InForce | None = None) -> Snapshot:
    """Read what remains for each (tenant, instant), all of it as one statement saw it.

    Which budgets are in force in which windows is remembered in `known`. The statement that reads what moves reads versions and
    clock as well: what these do not confirm is read anew, and then again what moves.

    Shape: a budget shows its window in force at the instant, with zeros before the first movement. A template or a budget
    by groups shows the groups that moved and, where it groups by nothing but tenant and the tenant's own currency, that
    group too. Budgets over several tenants are not shown, and neither is a window from before a budget's first, which
    nothing has followed.
    """
    remembered = known if known is not None else InForce()
    there = {key: tenant for key in asked if (tenant := remembered.find(key)) is not None}
    unsure = [key for key in asked if key not in there]
    for tries in count(1):
        async with _one_snapshot(connection) if tries > _TRIES_APART else nullcontext():
            for key, tenant in (await in_force(connection, unsure) if unsure else {}).items():
                remembered.learn(key, tenant)
                there[key] = tenant
            moved = await _moved(connection, list(there.values()))
        unsure = [key for key, tenant in there.items() if not moved.confirms(key, tenant)]
        if not unsure:
            break
        if tries >= _TRIES_APART:
            # Somebody changes something all the time: all of it is read in one snapshot, where nothing has changed in between.
            unsure = list(there)
    found: dict[Asked, TenantBudgets] = {}
    place = 1
    for key, tenant in there.items():
        if tenant.time_zone is not None:
            at = moved.read_at if key[1] is None else tenant.at
            windows = [moved.windows.get(number) for number in range(place, place + len(tenant.budgets))]
            shown = remembered.shown(key, tenant, windows)
            last = max([each.last_batch_id for each in shown if each.last_batch_id is not None], default=None)
            found[key] = TenantBudgets(key[0], tenant.time_zone, at, moved.read_at, last, moved.lag, shown)
        place += len(tenant.budgets)
    return Snapshot(moved.read_at, moved.lag, found)


@asynccontextmanager
async def _one_snapshot(connection: Connection) -> AsyncIterator[None]:
    async with connection.transaction():
        await connection.execute("set transaction isolation level repeatable read")
        yield


async def in_force(connection: Connection, asked: Sequence[Asked]) -> dict[Asked, TenantInForce]:
    """Read which budgets tenants have, in which windows."""
    cursor = await connection.execute(
        _IN_FORCE,
        {
            "tenants": [tenant_id for tenant_id, _ in asked],
            "instants": [None if at is None else from_micros(at) for _, at in asked],
        },
        prepare=True,
    )
    rows = await cursor.fetchall()
    versions, read_at = rows[0][:3], rows[0][3]
    rows_of: dict[int, list[Any]] = {}
    for row in rows:
        rows_of.setdefault(row[4], []).append(row[6:])
    found: dict[Asked, TenantInForce] = {}
    for number, key in enumerate(asked, 1):
        zone, at, until = rows_of[number][0][:3] if number in rows_of else (None, read_at, None)
        values = [row[3:] for row in rows_of.get(number, ()) if row[3] is not None]
        columns = (
            ",".join([_quoted(key[0])] * len(values)),
            ",".join([_quoted(row[0]) for row in values]),
            ",".join([str(row[15]) for row in values]),
            ",".join([str(row[21]) for row in values]),
        )
        budgets = tuple([_budget(key[0], str(zone), row) for row in values])
        found[key] = TenantInForce(zone, at, read_at, until, versions, budgets, columns)
    return found


def _budget(tenant_id: str, zone: str, row: Sequence[Any]) -> BudgetInForce:
    budget_id, *scope = row[:9]
    (
        group_by, unit, currency, kind, days, anchor, start, limit, lapsed, hardness, thresholds, known_group, _,
        has_own_limit, own_limit,
    ) = row[9:]  # fmt: skip
    return BudgetInForce(
        budget_id=budget_id,
        scope=_scope(tenant_id, *scope),
        group_by=tuple(group_by),
        unit=unit,
        currency=currency,
        window=span(kind, days, anchor, start, zone),
        limit=limit,
        lapsed=lapsed,
        hardness=hardness,
        thresholds=tuple(thresholds),
        known_group=known_group,
        known_limit=own_limit if has_own_limit else limit,
    )


async def _moved(connection: Connection, tenants: Sequence[TenantInForce]) -> _Moved:
    """Read what windows hold; a budget without a row has not moved."""
    # Arrays as text, which costs a tenth of what the driver takes to write them.
    columns = [",".join(filter(None, column)) for column in zip(*[one.columns for one in tenants], strict=True)]
    names = ("tenants", "budgets", "starts", "own_limits")
    parameters = {name: f"{{{column}}}" for name, column in zip(names, columns or [""] * len(names), strict=True)}
    cursor = await connection.execute(_MOVED, parameters, prepare=True)
    row = await cursor.fetchone()
    if row is None:
        raise LookupError("ledger.versions is empty: run `tallystick migrate`")
    windows: Windows = {}
    if row[7] is not None:
        for number, *values in zip(*row[7:], strict=True):
            windows.setdefault(number, []).append(tuple(values))
    return _Moved(row[:3], row[3], Lag(*row[4:7]), windows)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _shown(budgets: Sequence[BudgetInForce], windows: Sequence[list[_Window] | None]) -> list[Remaining]:
    """Put together what stands and what moves, in the order of budgets and groups."""
    shown: list[Remaining] = []
    tightest, least_left, of_limit = -1, _ZERO, _ZERO
    for budget, rows in zip(budgets, windows, strict=True):
        if rows is None:
            if budget.known_group is None:
                continue
            rows = [(budget.known_group, None, "0", "0", 0, 0, None, True, budget.known_limit)]
        elif len(rows) > 1:
            rows.sort(key=itemgetter(0))
        for group_key, currency, posted, held, unpriced_count, unpriced_tokens, last_batch_id, has_own, own in rows:
            limit, left, reached = own if has_own else budget.limit, None, _NONE_REACHED
            if limit is not None:
                limit = EXACT.subtract(limit, budget.lapsed)
                taken = EXACT.add(Decimal(posted), Decimal(held))
                left = EXACT.subtract(limit, taken)
                if budget.thresholds:
                    reached = [shortest(each) for each in budget.thresholds if taken >= EXACT.multiply(each, limit)]
                # The smallest share left, without dividing; a limit of zero leaves nothing to share.
                if budget.hardness == "hard" and (
                    tightest < 0
                    or (limit <= 0 < of_limit)
                    or (of_limit > 0 and EXACT.multiply(left, of_limit) < EXACT.multiply(least_left, limit))
                ):
                    tightest, least_left, of_limit = len(shown), left, limit
            shown.append(
                Remaining(
                    budget_id=budget.budget_id,
                    scope=budget.scope,
                    group=_group(budget.group_by, group_key) if budget.group_by else {},
                    unit=budget.unit,
                    currency=currency or budget.currency,
                    window=budget.window,
                    limit=None if limit is None else shortest(limit),
                    posted=posted,
                    held=held,
                    remaining=None if left is None else shortest(left),
                    hardness=budget.hardness,
                    is_tightest=False,
                    thresholds_reached=reached,
                    unpriced_count=unpriced_count,
                    unpriced_tokens=unpriced_tokens,
                    last_batch_id=last_batch_id,
                )
            )
    if tightest >= 0:
        shown[tightest] = msgspec.structs.replace(shown[tightest], is_tightest=True)
    return shown


async def tenant_ids_after(connection: Connection, after: str, limit: int) -> list[str]:
    """Return the tenants that follow one, in the order of their ids."""
    cursor = await connection.execute(
        "select tenant_id from ledger.tenants where tenant_id > %s order by tenant_id limit %s", [after, limit]
    )
    return [row[0] async for row in cursor]


_SCOPE: Final = ("tenant_id", "provider_account", "feature", "model", "route", "lane", "api_key_id", "subject_id")


@lru_cache(maxsize=16_384)
def _scope(*values: str | None) -> msgspec.Raw:
    *terms, tags = values
    scope: dict[str, Any] = {name: value for name, value in zip(_SCOPE, terms, strict=True) if value is not None}
    if tags is not None:
        scope["tags"] = msgspec.Raw(tags.encode())
    return msgspec.Raw(msgspec.json.encode(scope))


@lru_cache(maxsize=16_384)
def _group(group_by: tuple[str, ...], group_key: str) -> dict[str, str | None]:
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
