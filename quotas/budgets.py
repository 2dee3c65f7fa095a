"""Budgets: set, changed in their limit, ended, listed. What they are made of never changes; that is a new budget."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final, Literal

from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from ledger.books import load_tenants
from ledger.database import Connection, change, record_act
from ledger.errors import AlreadyThere, Unknown
from ledger.money import CURRENCIES, amount_text
from ledger.parties import Tenant, local_date
from ledger.times import from_micros
from quotas.errors import BudgetRefused
from quotas.tables import GROUPS, UNITS, WINDOWS

MONEY_UNITS: Final = ("charge", "cost")
HARDNESS: Final = ("hard", "soft", "shadow")
POLICIES: Final = ("refuse", "admit")
TOTALS: Final = "totals-"
"""Names the templates that the first revision makes: totals per tenant and book, which the standing proof reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a person asks of a budget. Scope, unit and window make it; the rest can be changed while it lasts."""

    # Scope: what usage must be to count. None is any.
    tenant_id: str | None = None
    provider_account: str | None = None
    feature: str | None = None
    model: str | None = None
    route: str | None = None
    lane: str | None = None
    api_key_id: str | None = None
    user_hash: str | None = None
    """The sender's hash of its user; the budget holds the id that stands for it in the ledger."""
    tags: Mapping[str, str] = field(default_factory=dict)
    group_by: Sequence[str] = ()

    unit: str
    currency: str | None = None
    window: str = "month"
    window_days: int | None = None
    anchor: date | None = None

    limit: Decimal | None = None
    """Zero forbids everything; None does not limit."""
    # None: as it was, and on a new budget the default of _DEFAULTS.
    hardness: str | None = None
    interactive_reserve: Decimal | None = None
    thresholds: Sequence[Decimal] | None = None
    unknown_price: str | None = None
    missing_estimate: str | None = None


_DEFAULTS: Final[Mapping[str, Any]] = {
    "hardness": "hard",
    "interactive_reserve": Decimal(0),
    "thresholds": [],
    "unknown_price": "refuse",
    "missing_estimate": "refuse",
}


@dataclass(frozen=True, slots=True)
class BudgetRecord:
    """A budget as it stands."""

    budget_id: str
    tenant_id: str | None
    provider_account: str | None
    feature: str | None
    model: str | None
    route: str | None
    lane: str | None
    api_key_id: str | None
    subject_id: str | None
    tags: Mapping[str, str] | None
    group_by: Sequence[str]
    unit: str
    currency: str | None
    window_kind: str
    window_days: int | None
    anchor: date | None
    first_window: date
    limit_amount: Decimal | None
    hardness: str
    interactive_reserve: Decimal
    thresholds: Sequence[Decimal]
    unknown_price: str
    missing_estimate: str
    created_at: datetime
    ended_at: datetime | None


_COLUMNS: Final = ", ".join(
    f"{each.name}::text" if each.name == "subject_id" else each.name for each in fields(BudgetRecord)
)
_SCOPE: Final = (
    "tenant_id", "provider_account", "feature", "model", "route", "lane", "api_key_id", "subject_id", "tags", "group_by",
    "unit", "currency", "window_kind", "window_days", "anchor",
)  # fmt: skip
"""What makes a budget: two that agree in all of this are one."""
_CHANGEABLE: Final = (
    "limit_amount", "hardness", "interactive_reserve", "thresholds", "unknown_price", "missing_estimate",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class BudgetSet:
    """What became of a wish for a budget."""

    budget_id: str
    outcome: Literal["created", "changed", "unchanged"]
    before: BudgetRecord | None = None


async def set_budget(
    connection: Connection,
    actor: str,
    terms: Terms,
    *,
    now: int,
    since: date | None = None,
    budget_id: str | None = None,
    reason: str | None = None,
) -> BudgetSet:
    """Make a budget, or change the terms of the one that has this scope, unit and window.

    A new one follows usage from the window of `since` on (default: the window in force), and starts with what the ledger
    already holds of it. `budget_id` names a new one; left out, it gets a name of its own.

    Units: `now` in UTC microseconds.
    Raises BudgetRefused or Unknown for the first rule that is broken, in the order of `_check`.
    """
    await _check(connection, terms, now, since, budget_id)
    async with change(connection, "budgets"):
        row = await _row_of(connection, terms)
        current = await _same(connection, row)
        if current is not None:
            return await _change(connection, actor, current, row, since, budget_id, reason)
        row = {**row, **{column: row[column] if row[column] is not None else _DEFAULTS[column] for column in _DEFAULTS}}
        _check_amounts(row)
        row["first_window"] = await _first_window(connection, terms, now, since)
        row["budget_id"] = budget_id or f"bud_{secrets.token_hex(6)}"
        await _create(connection, row)
        await record_act(connection, actor, "budgets.set", _plain(row), reason)
    return BudgetSet(row["budget_id"], "created")


async def end_budget(connection: Connection, actor: str, budget_id: str, *, reason: str | None = None) -> None:
    """End a budget: from now on it neither limits nor follows; its windows stay to be read."""
    if budget_id.startswith(TOTALS):
        raise BudgetRefused(f"budget {budget_id} gives the totals that the ledger is proved against; it cannot end")
    async with change(connection, "budgets"):
        cursor = await connection.execute(
            "update quotas.budgets set ended_at = clock_timestamp() where budget_id = %s and ended_at is null",
            [budget_id],
        )
        if not cursor.rowcount:
            raise Unknown("budget in force", budget_id)
        await record_act(connection, actor, "budgets.end", {"budget_id": budget_id}, reason)


async def list_budgets(
    connection: Connection, *, tenant_id: str | None = None, with_ended: bool = False
) -> list[BudgetRecord]:
    """List budgets by tenant and id; those of one tenant include the templates that cover every tenant."""
    async with connection.cursor(row_factory=class_row(BudgetRecord)) as cursor:
        await cursor.execute(
            f"select {_COLUMNS} from quotas.budgets"
            " where (ended_at is null or %(with_ended)s)"
            " and (%(tenant_id)s::text is null or tenant_id is null or tenant_id = %(tenant_id)s)"
            " order by tenant_id nulls first, budget_id",
            {"tenant_id": tenant_id, "with_ended": with_ended},
        )
        return await cursor.fetchall()


@dataclass(frozen=True, slots=True)
class Usage:
    """What is used of a budget in the window that is in force."""

    window_start: date
    posted: Decimal
    held: Decimal
    unpriced_count: int


async def used_now(connection: Connection, *, now: int) -> dict[str, Usage]:
    """Return what is used of each budget that has one window at a time, in the window in force; zeros before the first.

    Budgets by groups have a window for each group: they are left out.
    """
    cursor = await connection.execute(
        """
        with current as (
            select
                b.budget_id,
                quotas.window_start(
                    b.window_kind, b.window_days, b.anchor, (%(now)s at time zone coalesce(v.time_zone, 'UTC'))::date
                ) as window_start
            from quotas.budgets as b
            left join lateral (
                select v.time_zone
                from ledger.tenant_versions as v
                where v.tenant_id = b.tenant_id
                order by v.effective_at <= %(now)s desc, abs(extract(epoch from v.effective_at - %(now)s))
                limit 1
            ) as v on true
            where b.ended_at is null and b.group_by = '{}'
        )

        select c.budget_id, c.window_start, coalesce(w.posted, 0), coalesce(w.held, 0), coalesce(w.unpriced_count, 0)
        from current as c
        left join quotas.windows as w
            on w.budget_id = c.budget_id and w.group_key = '' and w.window_start = c.window_start
        """,
        {"now": from_micros(now)},
    )
    return {row[0]: Usage(*row[1:]) for row in await cursor.fetchall()}


def scope_text(record: BudgetRecord) -> str:
    """Return what usage must be to count, in words."""
    names = ("tenant_id", "provider_account", "feature", "model", "route", "lane", "api_key_id", "subject_id")
    parts = [
        f"{name.removesuffix('_id')}={getattr(record, name)}" for name in names if getattr(record, name) is not None
    ]
    parts += [f"tag {name}={value}" for name, value in (record.tags or {}).items()]
    if record.group_by:
        parts.append("for each " + ", ".join(name.removesuffix("_id") for name in record.group_by))
    return " ".join(parts) or "everything"


def window_text(record: BudgetRecord) -> str:
    """Return a budget's window in words."""
    if record.window_kind == "days":
        return f"{record.window_days} days from {record.anchor}"
    if record.window_kind == "anchored_month" and record.anchor is not None:
        return f"month from day {record.anchor.day}"
    return record.window_kind


# --- Rules, in the order in which they are checked ---------------------------------------------------------------------


async def _check(connection: Connection, terms: Terms, now: int, since: date | None, budget_id: str | None) -> None:
    tenant = await _check_scope(connection, terms)
    _check_unit(terms, tenant)
    _check_limit(terms)
    _check_window(terms)
    _check_policies(terms)
    if since is not None:
        if terms.window == "lifetime":
            raise BudgetRefused("a lifetime window has no beginning: leave the date out")
        if since > _local_day(tenant, terms, now):
            raise BudgetRefused(f"{since} is yet to come; a budget counts from the window in force or an earlier one")
    if budget_id is not None and (
        not budget_id.isprintable() or not budget_id.strip() or len(budget_id) > 100 or budget_id.startswith(TOTALS)
    ):
        raise BudgetRefused(f"{budget_id!r} cannot name a budget")


async def _check_scope(connection: Connection, terms: Terms) -> Tenant | None:
    tenant = None
    if terms.tenant_id is not None:
        tenant = (await load_tenants(connection)).get(terms.tenant_id)
        if tenant is None:
            raise Unknown("tenant", terms.tenant_id)
    known = (
        ("provider account", "ledger.provider_accounts", "provider_account", terms.provider_account),
        ("model", "ledger.models", "model", terms.model),
        ("API key", "ledger.api_keys", "key_id", terms.api_key_id),
    )
    for what, table, column, name in known:
        if name is None:
            continue
        # Table and column are from the list above, never a person's text.
        cursor = await connection.execute(f"select from {table} where {column} = %s limit 1".encode(), [name])
        # A budget on a misspelt name would never limit anything, in silence.
        if await cursor.fetchone() is None:
            raise Unknown(what, name)
    if terms.user_hash is not None and tenant is None:
        raise BudgetRefused("a user belongs to a tenant: name the tenant too")
    unknown = [name for name in terms.group_by if name not in GROUPS]
    if unknown:
        raise BudgetRefused(f"cannot group by {unknown[0]!r}; it is one of {', '.join(GROUPS)}")
    if len(set(terms.group_by)) < len(terms.group_by):
        raise BudgetRefused("a name in the grouping is there twice")
    return tenant


def _check_unit(terms: Terms, tenant: Tenant | None) -> None:
    if terms.unit not in UNITS:
        raise BudgetRefused(f"unit {terms.unit!r} is unknown; it is one of {', '.join(UNITS)}")
    by_currency = "currency" in terms.group_by
    if terms.unit not in MONEY_UNITS:
        if terms.currency is not None or by_currency:
            raise BudgetRefused(f"{terms.unit} have no currency")
        return
    if terms.currency is None and not by_currency:
        raise BudgetRefused(f"a budget in {terms.unit} needs a currency")
    if terms.currency is not None:
        if by_currency:
            raise BudgetRefused("a budget has one currency or is grouped by currency, not both")
        if terms.currency not in CURRENCIES:
            raise BudgetRefused(f"currency {terms.currency!r} is no code of ISO 4217, such as USD")
        charged_in = [version.charge_currency for version in tenant.versions] if tenant else []
        if terms.unit == "charge" and charged_in and terms.currency not in charged_in:
            raise BudgetRefused(
                f"tenant {terms.tenant_id} is charged in {charged_in[-1]}: a budget in {terms.currency} would never move"
            )


def _check_limit(terms: Terms) -> None:
    if terms.limit is not None:
        _check_amount("limit", terms.unit, terms.limit)
        if terms.unit in MONEY_UNITS and terms.currency is None:
            raise BudgetRefused("a limit in money needs a currency, not a grouping by currency")
    if terms.interactive_reserve is not None:
        _check_amount("interactive reserve", terms.unit, terms.interactive_reserve)
    for threshold in terms.thresholds or ():
        if not threshold.is_finite() or threshold <= 0:
            raise BudgetRefused(f"a threshold is a share of the limit above zero, such as 0.8; {threshold} is not")


def _check_amount(what: str, unit: str, amount: Decimal) -> None:
    if not amount.is_finite():
        raise BudgetRefused(f"the {what} must be a finite number")
    if amount < 0:
        raise BudgetRefused(f"the {what} must not be negative, and {amount_text(amount)} is")
    if unit not in MONEY_UNITS and amount != amount.to_integral_value():
        raise BudgetRefused(f"the {what} of {unit} must be a whole number, and {amount_text(amount)} is none")


def _check_amounts(row: Mapping[str, Any]) -> None:
    """Hold the terms that go together against each other: some may be those that the budget had."""
    limit, reserve = row["limit_amount"], row["interactive_reserve"]
    if reserve and (limit is None or reserve > limit):
        raise BudgetRefused(f"the interactive reserve of {amount_text(reserve)} must lie within the limit")
    if row["thresholds"] and limit is None:
        raise BudgetRefused("thresholds are shares of a limit, and there is no limit")


def _check_window(terms: Terms) -> None:
    if terms.window not in WINDOWS:
        raise BudgetRefused(f"window {terms.window!r} is unknown; it is one of {', '.join(WINDOWS)}")
    if terms.window == "days" and terms.window_days is None:
        raise BudgetRefused("a window of days needs a length")
    if terms.window != "days" and terms.window_days is not None:
        raise BudgetRefused("only a window of days has a length")
    # Ten years: far beyond any use, and far from where dates end.
    if terms.window_days is not None and not 1 <= terms.window_days <= 3660:
        raise BudgetRefused(f"a window is 1 to 3660 days long, not {terms.window_days}")
    if terms.window in ("days", "anchored_month") and terms.anchor is None:
        raise BudgetRefused(f"a window of kind {terms.window} needs an anchor: the date that one of them begins on")
    if terms.window not in ("days", "anchored_month") and terms.anchor is not None:
        raise BudgetRefused(f"a window of kind {terms.window} has no anchor")


def _check_policies(terms: Terms) -> None:
    choices = (
        ("hardness", terms.hardness, HARDNESS),
        ("policy for an unknown price", terms.unknown_price, POLICIES),
        ("policy for a missing estimate", terms.missing_estimate, POLICIES),
    )
    for what, value, allowed in choices:
        if value is not None and value not in allowed:
            raise BudgetRefused(f"{what} {value!r} is unknown; it is one of {', '.join(allowed)}")


# --- Inside the change -------------------------------------------------------------------------------------------------


async def _row_of(connection: Connection, terms: Terms) -> dict[str, Any]:
    subject_id = None
    if terms.user_hash is not None:
        subject_id = await _subject(connection, terms.tenant_id or "", terms.user_hash)
    return {
        "tenant_id": terms.tenant_id,
        "provider_account": terms.provider_account,
        "feature": terms.feature,
        "model": terms.model,
        "route": terms.route,
        "lane": terms.lane,
        "api_key_id": terms.api_key_id,
        "subject_id": subject_id,
        "tags": dict(terms.tags) or None,
        "group_by": list(terms.group_by),
        "unit": terms.unit,
        "currency": terms.currency,
        "window_kind": terms.window,
        "window_days": terms.window_days,
        "anchor": terms.anchor,
        "limit_amount": terms.limit,
        "hardness": terms.hardness,
        "interactive_reserve": terms.interactive_reserve,
        "thresholds": None if terms.thresholds is None else sorted(set(terms.thresholds)),
        "unknown_price": terms.unknown_price,
        "missing_estimate": terms.missing_estimate,
    }


async def _subject(connection: Connection, tenant_id: str, user_hash: str) -> str:
    """Return the id that stands for a user, giving it one before its first usage if need be."""
    cursor = await connection.execute(
        "with made as (insert into ledger.subjects (tenant_id, user_hash) values (%(tenant)s, %(hash)s)"
        " on conflict (tenant_id, user_hash) do nothing returning subject_id::text)"
        " select subject_id from made union all"
        " select subject_id::text from ledger.subjects where tenant_id = %(tenant)s and user_hash = %(hash)s",
        {"tenant": tenant_id, "hash": user_hash},
    )
    row = await cursor.fetchone()
    assert row is not None
    return str(row[0])


async def _same(connection: Connection, row: Mapping[str, Any]) -> BudgetRecord | None:
    """Find the budget in force that is made of the same scope, unit and window."""
    equal = " and ".join(f"{column} is not distinct from %({column})s::{_type(column)}" for column in _SCOPE)
    async with connection.cursor(row_factory=class_row(BudgetRecord)) as cursor:
        await cursor.execute(
            f"select {_COLUMNS} from quotas.budgets where ended_at is null and {equal}",
            {**row, "tags": None if row["tags"] is None else Jsonb(row["tags"])},
        )
        return await cursor.fetchone()


def _type(column: str) -> str:
    types = {
        "subject_id": "uuid",
        "tags": "jsonb",
        "group_by": "text[]",
        "window_days": "integer",
        "anchor": "date",
    }
    return types.get(column, "text")


async def _change(
    connection: Connection,
    actor: str,
    current: BudgetRecord,
    row: dict[str, Any],
    since: date | None,
    budget_id: str | None,
    reason: str | None,
) -> BudgetSet:
    if budget_id is not None and budget_id != current.budget_id:
        raise BudgetRefused(f"budget {current.budget_id} has this scope, unit and window already")
    if current.budget_id.startswith(TOTALS):
        raise BudgetRefused(f"budget {current.budget_id} gives totals and has no limit; name a tenant to limit it")
    if since is not None and since < current.first_window:
        raise BudgetRefused(
            f"budget {current.budget_id} counts from {current.first_window}; to count from earlier, end it and set it anew"
        )
    row = {**row, **{name: row[name] if row[name] is not None else getattr(current, name) for name in _DEFAULTS}}
    _check_amounts(row)
    changed = {column: row[column] for column in _CHANGEABLE if row[column] != getattr(current, column)}
    if not changed:
        return BudgetSet(current.budget_id, "unchanged", current)
    assignments = ", ".join(f"{column} = %({column})s" for column in _CHANGEABLE)
    await connection.execute(
        f"update quotas.budgets set {assignments} where budget_id = %(budget_id)s",
        {**row, "budget_id": current.budget_id},
    )
    await _note_excess(connection, current.budget_id, _Limits(current.hardness, current.limit_amount))
    await _note_thresholds(connection, current.budget_id)
    before = {column: getattr(current, column) for column in changed}
    detail = {"budget_id": current.budget_id, "before": _plain(before), "after": _plain(changed)}
    await record_act(connection, actor, "budgets.change", detail, reason)
    return BudgetSet(current.budget_id, "changed", current)


async def _first_window(connection: Connection, terms: Terms, now: int, since: date | None) -> date:
    tenant = None
    if terms.tenant_id is not None:
        tenant = (await load_tenants(connection))[terms.tenant_id]
    cursor = await connection.execute(
        "select quotas.window_start(%s, %s, %s, %s)",
        [terms.window, terms.window_days, terms.anchor, since or _local_day(tenant, terms, now)],
    )
    row = await cursor.fetchone()
    assert row is not None
    first: date = row[0]
    return first


def _local_day(tenant: Tenant | None, terms: Terms, now: int) -> date:
    """Return today as the budget's windows count it."""
    if tenant is not None:
        return local_date(tenant, now)
    at = from_micros(now)
    if "tenant_id" in terms.group_by:
        # Each tenant has its own zone: start with the window that is in force where the day begins last.
        return (at - timedelta(hours=12)).date()
    return at.date()


async def _create(connection: Connection, row: Mapping[str, Any]) -> None:
    """Add a budget and fold its windows from the ledger; no batch can come in between, as the caller holds the calendar."""
    columns = list(row)
    values = {**row, "tags": None if row["tags"] is None else Jsonb(row["tags"])}
    cursor = await connection.execute(
        f"insert into quotas.budgets ({', '.join(columns)}) values ({', '.join(f'%({name})s' for name in columns)})"
        " on conflict (budget_id) do nothing",
        values,
    )
    if not cursor.rowcount:
        raise AlreadyThere("budget", row["budget_id"])
    await connection.execute(
        "insert into quotas.windows"
        " (budget_id, group_key, window_start, tenant_id, currency, posted, unpriced_count, unpriced_tokens, last_batch_id)"
        " select budget_id, group_key, window_start, tenant_id, currency, posted, unpriced_count, unpriced_tokens, batch_id"
        " from quotas.fold_windows(%s)",
        [row["budget_id"]],
    )
    await _note_excess(connection, row["budget_id"], _Limits(row["hardness"], None))
    await _note_thresholds(connection, row["budget_id"])


async def _note_excess(connection: Connection, budget_id: str, before: "_Limits") -> None:
    """Write down by how much each window's excess changes with the budget's new terms.

    Over all windows, past ones too: usage that comes late is held against the same limit there, and the changes of a
    window must sum to its excess.
    """
    await connection.execute(
        """
        insert into quotas.excess (budget_id, group_key, window_start, change, cause)
        select w.budget_id, w.group_key, w.window_start, e.after - e.before, 'limit'
        from quotas.windows as w
        join quotas.budgets as b using (budget_id)
        left join quotas.group_limits as g using (budget_id, group_key)
        cross join lateral (
            select
                quotas.limit_of(b.limit_amount, g.budget_id, g.limit_amount) as limit_after,
                case
                    when %(own)s::jsonb ? w.group_key then (%(own)s::jsonb ->> w.group_key)::numeric
                    else %(limit)s::numeric
                end as limit_before
        ) as l
        cross join lateral (
            select
                case when %(hardness)s = 'hard' and l.limit_before is not null
                    then greatest(w.posted + w.held - l.limit_before, 0) else 0
                end as before,
                case when b.hardness = 'hard' and l.limit_after is not null
                    then greatest(w.posted + w.held - l.limit_after, 0) else 0
                end as after
        ) as e
        where w.budget_id = %(budget_id)s and e.after <> e.before
        order by w.group_key, w.window_start
        """,
        {
            "budget_id": budget_id,
            "hardness": before.hardness,
            "limit": before.limit,
            "own": Jsonb({key: None if limit is None else amount_text(limit) for key, limit in before.own.items()}),
        },
    )


@dataclass(frozen=True, slots=True)
class _Limits:
    """What limited a budget's windows before a change."""

    hardness: str
    limit: Decimal | None
    own: Mapping[str, Decimal | None] = field(default_factory=dict)


async def _note_thresholds(connection: Connection, budget_id: str) -> None:
    """Note the thresholds that windows have reached under the budget's terms; what is noted already stays."""
    await connection.execute(
        """
        insert into quotas.threshold_notes (budget_id, group_key, window_start, threshold)
        select w.budget_id, w.group_key, w.window_start, t.threshold
        from quotas.windows as w
        join quotas.budgets as b using (budget_id)
        left join quotas.group_limits as g using (budget_id, group_key)
        cross join lateral (select quotas.limit_of(b.limit_amount, g.budget_id, g.limit_amount) as limit_amount) as l
        cross join unnest(b.thresholds || 1::numeric) as t (threshold)
        where
            w.budget_id = %s
            and w.posted + w.held >= t.threshold * l.limit_amount
            and (l.limit_amount > 0 or w.posted + w.held > 0 or w.unpriced_count > 0)
        on conflict do nothing
        """,
        [budget_id],
    )


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as JSON takes them, decimals as text."""

    def plain(value: Any) -> Any:
        if isinstance(value, Decimal):
            return amount_text(value)
        if isinstance(value, date):
            return value.isoformat()
        if isinstance(value, list | tuple):
            return [plain(item) for item in value]
        return value

    return {name: plain(value) for name, value in values.items()}
