"""Budgets: set, changed in their limit, ended, listed. What they are made of never changes; that is a new budget."""

import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields, replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final, Literal

import psycopg
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from ledger.books import load_tenants
from ledger.database import Connection, change, record_act
from ledger.errors import AlreadyThere, Unknown
from ledger.money import amount_text
from ledger.parties import Tenant, local_date
from ledger.times import from_micros
from quotas.errors import BudgetRefused
from quotas.terms import (
    DEFAULTS,
    GRANTED,
    MONEY_UNITS,
    TOTALS,
    GroupLimit,
    Step,
    Terms,
    check_name,
    check_terms,
    check_together,
    completed,
)

__all__ = [
    "MONEY_UNITS", "BudgetRecord", "BudgetSet", "Changes", "GroupLimit", "Step", "Terms", "Usage", "Version", "Wish",
    "apply_budgets", "change_budget", "end_budget", "find_budget", "history", "list_budgets", "note_thresholds", "plain_value",
    "replace_budget", "scope_text", "set_budget", "terms_at", "used_now", "window_text",
]  # fmt: skip


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
    missing_estimate_amount: Decimal | None
    steps: Sequence[Mapping[str, Any]]
    when_away: str
    away_amount: Decimal | None
    description: str | None
    created_at: datetime
    ended_at: datetime | None
    group_limits: Mapping[str, str | None]
    """By group key: the limits of groups that have one of their own, as text; None does not limit."""


_OWN_LIMITS: Final = (
    "coalesce((select jsonb_object_agg(g.group_key, g.limit_amount::text order by g.group_key)"
    " from quotas.group_limits as g where g.budget_id = b.budget_id), '{}')"
)
_READ: Final = {"subject_id": "b.subject_id::text as subject_id", "group_limits": f"{_OWN_LIMITS} as group_limits"}
_COLUMNS: Final = ", ".join(_READ.get(each.name, f"b.{each.name}") for each in fields(BudgetRecord))
_SCOPE: Final = (
    "tenant_id", "provider_account", "feature", "model", "route", "lane", "api_key_id", "subject_id", "tags", "group_by",
    "unit", "currency", "window_kind", "window_days", "anchor",
)  # fmt: skip
"""What makes a budget: two that agree in all of this are one."""
_CHANGEABLE: Final = (
    "limit_amount", "hardness", "interactive_reserve", "thresholds", "unknown_price", "missing_estimate",
    "missing_estimate_amount", "steps", "when_away", "away_amount", "description",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class BudgetSet:
    """What became of a wish for a budget."""

    budget_id: str
    outcome: Literal["created", "changed", "unchanged", "ended", "replaced"]
    changed: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    """What changed, from what to what, as JSON takes it."""
    windows_above: int = 0
    """Windows that are above the limit as it is then, past ones included."""
    before: BudgetRecord | None = None


@asynccontextmanager
async def _changing(connection: Connection, dry_run: bool) -> AsyncIterator[None]:
    """Change budgets in one transaction that no `post` overlaps; a dry run does all of it and keeps nothing."""
    async with change(connection, "budgets"):
        yield
        if dry_run:
            raise psycopg.Rollback


async def set_budget(
    connection: Connection,
    actor: str,
    terms: Terms,
    *,
    now: int,
    since: date | None = None,
    budget_id: str | None = None,
    reason: str | None = None,
    dry_run: bool = False,
) -> BudgetSet:
    """Make a budget, or change the terms of the one that has this scope, unit and window.

    A new one follows usage from the window of `since` on (default: the window in force), and starts with what the ledger
    already holds of it. `budget_id` names a new one; left out, it gets a name of its own.

    Units: `now` in UTC microseconds.
    Raises BudgetRefused or Unknown for the first rule that is broken, in the order of terms.py.
    """
    await _check(connection, terms, now, since, budget_id)
    async with _changing(connection, dry_run):
        done = await _set(connection, actor, terms, now, since, budget_id, reason)
    return done


async def replace_budget(
    connection: Connection,
    actor: str,
    replaced_id: str,
    terms: Terms,
    *,
    now: int,
    since: date | None = None,
    budget_id: str | None = None,
    reason: str | None = None,
    dry_run: bool = False,
) -> BudgetSet:
    """End a budget and make another in one commit: how scope, unit and window change.

    Raises as `set_budget` does; what is replaced must be in force.
    """
    await _check(connection, terms, now, since, budget_id)
    async with _changing(connection, dry_run):
        await _end(connection, actor, replaced_id, reason)
        done = await _set(connection, actor, terms, now, since, budget_id, reason)
        if done.outcome != "created":
            raise BudgetRefused(f"budget {done.budget_id} has this scope, unit and window already")
        detail = {"budget_id": done.budget_id, "replaces": replaced_id}
        await record_act(connection, actor, "budgets.replace", detail, reason)
    return replace(done, outcome="replaced")


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Terms to change of a budget, by the names of `Terms`: what is not in the map stays."""

    terms: Mapping[str, Any]


async def change_budget(
    connection: Connection,
    actor: str,
    budget_id: str,
    changes: Changes,
    *,
    reason: str | None = None,
    dry_run: bool = False,
) -> BudgetSet:
    """Change terms of a budget in force by its name; its scope, unit and window stay.

    Raises BudgetRefused or Unknown for the first rule that is broken, in the order of terms.py.
    """
    async with _changing(connection, dry_run):
        current = await find_budget(connection, budget_id)
        if current is None or current.ended_at is not None:
            raise Unknown("budget in force", budget_id)
        terms = replace(_made_of(current), **changes.terms)
        await check_terms(connection, terms)
        row = {**{name: getattr(current, name) for name in _SCOPE}, **await _terms_of(connection, terms)}
        if "limit" not in changes.terms:
            row["limit_amount"] = current.limit_amount
        done = await _change(connection, actor, current, row, None, None, reason)
    return done


def _made_of(current: BudgetRecord) -> Terms:
    """Return what makes a budget, without its terms; a user is left out, whose hash nobody keeps here."""
    return Terms(
        tenant_id=current.tenant_id,
        provider_account=current.provider_account,
        feature=current.feature,
        model=current.model,
        route=current.route,
        lane=current.lane,
        api_key_id=current.api_key_id,
        tags=current.tags or {},
        group_by=tuple(current.group_by),
        unit=current.unit,
        currency=current.currency,
        window=current.window_kind,
        window_days=current.window_days,
        anchor=current.anchor,
    )


async def end_budget(connection: Connection, actor: str, budget_id: str, *, reason: str | None = None) -> None:
    """End a budget: from now on it neither limits nor follows; its windows stay to be read."""
    async with change(connection, "budgets"):
        await _end(connection, actor, budget_id, reason)


async def _end(connection: Connection, actor: str, budget_id: str, reason: str | None) -> None:
    if budget_id.startswith(TOTALS):
        raise BudgetRefused(f"budget {budget_id} gives the totals that the ledger is proved against; it cannot end")
    if budget_id.startswith(GRANTED):
        raise BudgetRefused(f"budget {budget_id} holds a tenant to its grants; `tallystick grants postpay` ends it")
    await end_in_force(connection, actor, budget_id, reason)


async def end_in_force(connection: Connection, actor: str, budget_id: str, reason: str | None) -> None:
    """End a budget, whoever looks after it; the caller holds the calendar."""
    cursor = await connection.execute(
        "update quotas.budgets set ended_at = clock_timestamp() where budget_id = %s and ended_at is null", [budget_id]
    )
    if not cursor.rowcount:
        raise Unknown("budget in force", budget_id)
    await _write_version(connection, budget_id, actor, reason)
    await record_act(connection, actor, "budgets.end", {"budget_id": budget_id}, reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A budget as a file wants it: all its terms, those that the file leaves out at their defaults."""

    budget_id: str
    terms: Terms
    since: date | None = None
    replaces: str | None = None
    """A budget that this one takes the place of, where it is still in force."""


async def apply_budgets(
    connection: Connection,
    actor: str,
    wishes: Sequence[Wish],
    ended: Sequence[str] = (),
    *,
    now: int,
    reason: str | None = None,
    dry_run: bool = False,
) -> list[BudgetSet]:
    """Bring budgets to what is wished, all or none, in one commit; applying the same again changes nothing.

    Shape: one result for each budget that is over with, then one for each wish, in their order.
    Raises BudgetRefused or Unknown, naming the budget of the file, for the first rule that is broken.
    """
    done: list[BudgetSet] = []
    async with _changing(connection, dry_run):
        for budget_id in ended:
            current = await find_budget(connection, budget_id)
            if current is None:
                raise Unknown("budget", budget_id)
            if current.ended_at is None:
                await _end(connection, actor, budget_id, reason)
            done.append(BudgetSet(budget_id, "ended" if current.ended_at is None else "unchanged"))
        for wish in wishes:
            try:
                done.append(await _apply(connection, actor, wish, now, reason))
            except (BudgetRefused, Unknown, AlreadyThere) as error:
                raise BudgetRefused(f"budget {wish.budget_id}: {error}") from None
    return done


async def _apply(connection: Connection, actor: str, wish: Wish, now: int, reason: str | None) -> BudgetSet:
    terms = completed(wish.terms)
    current = await find_budget(connection, wish.budget_id)
    if current is not None and current.ended_at is not None:
        raise BudgetRefused("has ended, and a name is given once: take another")
    # The window that it once started with: an applied file says the same for years.
    since = wish.since if current is None else None
    await _check(connection, terms, now, since, wish.budget_id)
    if current is not None:
        row = await row_of(connection, terms)
        differs = next((name for name in _SCOPE if row[name] != getattr(current, name)), None)
        if differs is not None:
            raise BudgetRefused(
                f"its {differs} is {plain_value(getattr(current, differs))!r} and never changes: give the other one a name"
                f" and `replaces: {wish.budget_id}`"
            )
        return await _change(connection, actor, current, row, None, None, reason)
    if wish.replaces is not None:
        replaced = await find_budget(connection, wish.replaces)
        if replaced is None:
            raise Unknown("budget", wish.replaces)
        if replaced.ended_at is None:
            await _end(connection, actor, wish.replaces, reason)
    return await _set(connection, actor, terms, now, since, wish.budget_id, reason)


async def find_budget(connection: Connection, budget_id: str) -> BudgetRecord | None:
    """Return a budget by its name, ended ones too."""
    async with connection.cursor(row_factory=class_row(BudgetRecord)) as cursor:
        await cursor.execute(f"select {_COLUMNS} from quotas.budgets as b where b.budget_id = %s", [budget_id])
        return await cursor.fetchone()


async def list_budgets(
    connection: Connection, *, tenant_id: str | None = None, with_ended: bool = False
) -> list[BudgetRecord]:
    """List budgets by tenant and id; those of one tenant include the templates that cover every tenant."""
    async with connection.cursor(row_factory=class_row(BudgetRecord)) as cursor:
        await cursor.execute(
            f"select {_COLUMNS} from quotas.budgets as b"
            " where (b.ended_at is null or %(with_ended)s)"
            " and (%(tenant_id)s::text is null or b.tenant_id is null or b.tenant_id = %(tenant_id)s)"
            " order by b.tenant_id nulls first, b.budget_id",
            {"tenant_id": tenant_id, "with_ended": with_ended},
        )
        return await cursor.fetchall()


@dataclass(frozen=True, slots=True)
class Version:
    """The terms of a budget from one instant on, until the next version."""

    version: int
    at: datetime
    actor: str
    reason: str | None
    terms: Mapping[str, Any]


async def history(connection: Connection, budget_id: str) -> list[Version]:
    """Return all versions of a budget's terms, the first one first; raise Unknown where there is no such budget."""
    async with connection.cursor(row_factory=class_row(Version)) as cursor:
        await cursor.execute(
            "select version, at, actor, reason, terms from quotas.budget_versions where budget_id = %s order by version",
            [budget_id],
        )
        found = await cursor.fetchall()
    if not found:
        raise Unknown("budget", budget_id)
    return found


async def terms_at(connection: Connection, budget_id: str, at: int) -> Version | None:
    """Return the terms that a budget had at an instant; None before its first."""
    known = [version for version in await history(connection, budget_id) if version.at <= from_micros(at)]
    return known[-1] if known else None


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
                    b.window_kind, b.window_days, b.anchor,
                    greatest((%(now)s at time zone coalesce(v.time_zone, 'UTC'))::date, v.first_day)
                ) as window_start
            from quotas.budgets as b
            left join lateral (
                select v.time_zone, v.first_day
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


# --- Before the change -------------------------------------------------------------------------------------------------


async def _check(connection: Connection, terms: Terms, now: int, since: date | None, budget_id: str | None) -> None:
    tenant = await check_terms(connection, terms)
    if since is not None:
        if terms.window == "lifetime":
            raise BudgetRefused("a lifetime window has no beginning: leave the date out")
        if since > _local_day(tenant, terms, now):
            raise BudgetRefused(f"{since} is yet to come; a budget counts from the window in force or an earlier one")
    if budget_id is not None:
        check_name(budget_id)


# --- Inside the change -------------------------------------------------------------------------------------------------


async def _set(
    connection: Connection,
    actor: str,
    terms: Terms,
    now: int,
    since: date | None,
    budget_id: str | None,
    reason: str | None,
) -> BudgetSet:
    row = await row_of(connection, terms)
    current = await _same(connection, row)
    if current is not None:
        return await _change(connection, actor, current, row, since, budget_id, reason)
    row = {**row, **{column: row[column] if row[column] is not None else DEFAULTS[column] for column in DEFAULTS}}
    row["group_limits"] = row["group_limits"] or {}
    check_together(row)
    row["first_window"] = await _first_window(connection, terms, now, since)
    await _check_retired(connection, terms.tenant_id, row["first_window"])
    row["budget_id"] = budget_id or f"bud_{secrets.token_hex(6)}"
    await create_budget(connection, actor, row, reason)
    above = await _windows_above(connection, row["budget_id"])
    return BudgetSet(row["budget_id"], "created", windows_above=above)


async def create_budget(connection: Connection, actor: str, row: Mapping[str, Any], reason: str | None) -> None:
    """Add a budget by its columns, with the first version of its terms; the caller holds the calendar."""
    await _create(connection, row)
    await _write_version(connection, row["budget_id"], actor, reason)
    await record_act(connection, actor, "budgets.set", _plain(row), reason)


async def row_of(connection: Connection, terms: Terms) -> dict[str, Any]:
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
        **await _terms_of(connection, terms),
    }


async def _terms_of(connection: Connection, terms: Terms) -> dict[str, Any]:
    """Return the columns of what can change; None is as it was."""
    return {
        "limit_amount": terms.limit,
        "hardness": terms.hardness,
        "interactive_reserve": terms.interactive_reserve,
        "thresholds": None if terms.thresholds is None else sorted(set(terms.thresholds)),
        "unknown_price": terms.unknown_price,
        "missing_estimate": terms.missing_estimate,
        "missing_estimate_amount": terms.missing_estimate_amount,
        "steps": None if terms.steps is None else [step.plain() for step in terms.steps],
        "when_away": terms.when_away,
        "away_amount": terms.away_amount,
        "description": terms.description,
        "group_limits": None
        if terms.group_limits is None
        else {await _group_key(connection, terms, own): own.limit for own in terms.group_limits},
    }


async def _group_key(connection: Connection, terms: Terms, own: GroupLimit) -> str:
    """Return the key of a group as the trigger writes it."""
    group = dict(own.group)
    if "user_hash" in group:
        tenant_id = terms.tenant_id or group.get("tenant_id")
        user_hash = group.pop("user_hash")
        if tenant_id is None:
            raise BudgetRefused("a user belongs to a tenant: name the tenant too")
        group["subject_id"] = None if user_hash is None else await _subject(connection, tenant_id, user_hash)
    names = (
        "tenant_id",
        "provider_account",
        "feature",
        "model",
        "route",
        "lane",
        "api_key_id",
        "subject_id",
        "currency",
    )
    try:
        async with connection.transaction():
            cursor = await connection.execute(
                "select quotas.group_key(%s, %s, %s, %s, %s, %s, %s, %s, %s::uuid, %s)",
                [list(terms.group_by), *(group.get(name) for name in names)],
            )
    except psycopg.errors.InvalidTextRepresentation:
        raise BudgetRefused(
            f"subject_id {group['subject_id']!r} is no id of a user; `user_hash` takes the sender's hash"
        ) from None
    row = await cursor.fetchone()
    assert row is not None
    return str(row[0])


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
    equal = " and ".join(f"b.{column} is not distinct from %({column})s::{_type(column)}" for column in _SCOPE)
    async with connection.cursor(row_factory=class_row(BudgetRecord)) as cursor:
        await cursor.execute(
            f"select {_COLUMNS} from quotas.budgets as b where b.ended_at is null and {equal}",
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
    if current.budget_id.startswith(GRANTED):
        raise BudgetRefused(f"budget {current.budget_id} holds a tenant to its grants, which alone move its limit")
    return await change_terms(connection, actor, current, row, reason)


async def change_terms(
    connection: Connection, actor: str, current: BudgetRecord, row: Mapping[str, Any], reason: str | None
) -> BudgetSet:
    """Change a budget's terms to those of a row, in which None is as it was; the caller holds the calendar."""
    merged = {**row, **{name: row[name] if row[name] is not None else getattr(current, name) for name in DEFAULTS}}
    own_before = {key: None if text is None else Decimal(text) for key, text in current.group_limits.items()}
    merged["group_limits"] = own_before if row["group_limits"] is None else row["group_limits"]
    merged["description"] = current.description if row["description"] is None else row["description"] or None
    for policy, needs, amount in (
        ("missing_estimate", "hold", "missing_estimate_amount"),
        ("when_away", "admit", "away_amount"),
    ):
        # An amount stays with its policy and goes with it.
        if row[amount] is None and merged[policy] == needs:
            merged[amount] = getattr(current, amount)
    check_together(merged)
    changed = {
        column: (getattr(current, column), merged[column])
        for column in _CHANGEABLE
        if merged[column] != getattr(current, column)
    }
    if merged["group_limits"] != own_before:
        changed["group_limits"] = (own_before, merged["group_limits"])
    if not changed:
        return BudgetSet(current.budget_id, "unchanged", before=current)
    assignments = ", ".join(f"{column} = %({column})s" for column in _CHANGEABLE)
    await connection.execute(
        f"update quotas.budgets set {assignments} where budget_id = %(budget_id)s",
        {**merged, "steps": Jsonb(merged["steps"]), "budget_id": current.budget_id},
    )
    if "group_limits" in changed:
        await _write_group_limits(connection, current.budget_id, merged["group_limits"])
    await _write_version(connection, current.budget_id, actor, reason)
    await _note_excess(connection, current.budget_id, _Limits(current.hardness, current.limit_amount, own_before))
    await note_thresholds(connection, current.budget_id)
    said = {column: (plain_value(before), plain_value(after)) for column, (before, after) in changed.items()}
    detail = {
        "budget_id": current.budget_id,
        "before": {column: before for column, (before, _) in said.items()},
        "after": {column: after for column, (_, after) in said.items()},
    }
    await record_act(connection, actor, "budgets.change", detail, reason)
    above = await _windows_above(connection, current.budget_id)
    return BudgetSet(current.budget_id, "changed", said, above, current)


async def _write_group_limits(connection: Connection, budget_id: str, limits: Mapping[str, Decimal | None]) -> None:
    """Make the limits of groups these and no others."""
    await connection.execute("delete from quotas.group_limits where budget_id = %s", [budget_id])
    await connection.execute(
        "insert into quotas.group_limits (budget_id, group_key, limit_amount)"
        " select %s, * from unnest(%s::text[], %s::numeric[])",
        [budget_id, list(limits), list(limits.values())],
    )


async def _write_version(connection: Connection, budget_id: str, actor: str, reason: str | None) -> None:
    """Write down the terms as they are now, as the next version."""
    await connection.execute(
        f"""
        insert into quotas.budget_versions (budget_id, version, actor, reason, terms)
        select
            b.budget_id,
            coalesce((select max(v.version) from quotas.budget_versions as v where v.budget_id = b.budget_id), 0) + 1,
            %(actor)s,
            %(reason)s,
            jsonb_build_object(
                'limit_amount', b.limit_amount::text, 'hardness', b.hardness,
                'interactive_reserve', b.interactive_reserve::text, 'thresholds', to_jsonb(b.thresholds::text[]),
                'unknown_price', b.unknown_price, 'missing_estimate', b.missing_estimate,
                'missing_estimate_amount', b.missing_estimate_amount::text, 'steps', b.steps, 'when_away', b.when_away,
                'away_amount', b.away_amount::text, 'description', b.description, 'group_limits', {_OWN_LIMITS},
                'ended_at', b.ended_at
            )
        from quotas.budgets as b
        where b.budget_id = %(budget_id)s
        """,
        {"budget_id": budget_id, "actor": actor, "reason": reason},
    )


async def _windows_above(connection: Connection, budget_id: str) -> int:
    """Count the windows that are above their limit."""
    cursor = await connection.execute(
        "select count(*) from quotas.windows as w join quotas.budgets as b using (budget_id)"
        " left join quotas.group_limits as g using (budget_id, group_key)"
        " where w.budget_id = %s and w.posted + w.held > quotas.limit_of(b.limit_amount, g.budget_id, g.limit_amount)",
        [budget_id],
    )
    row = await cursor.fetchone()
    assert row is not None
    return int(row[0])


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


async def _check_retired(connection: Connection, tenant_id: str | None, first: date) -> None:
    """Refuse a window that reaches into months whose rows have left the ledger: it would begin with less than was used."""
    cursor = await connection.execute(
        """
        select max(m.posting_period)
        from ledger.retired_months as m
        where
            not m.is_readable
            and m.posting_period + interval '1 month' > %(first)s
            and exists (
                select
                from ledger.seals as s
                where
                    s.posting_period = m.posting_period
                    and s.row_count > 0
                    and (%(tenant)s::text is null or s.tenant_id = %(tenant)s)
            )
        """,
        {"first": first, "tenant": tenant_id},
    )
    row = await cursor.fetchone()
    if row is not None and row[0] is not None:
        raise BudgetRefused(
            f"usage of {row[0]:%Y-%m} has left the ledger, so a window from {first} on would lack it:"
            " begin later, or restore the month first"
        )


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
    columns = [name for name in row if name != "group_limits"]
    values = {
        **row,
        "tags": None if row["tags"] is None else Jsonb(row["tags"]),
        "steps": Jsonb(row["steps"]),
        "description": row["description"] or None,
    }
    cursor = await connection.execute(
        f"insert into quotas.budgets ({', '.join(columns)}) values ({', '.join(f'%({name})s' for name in columns)})"
        " on conflict (budget_id) do nothing",
        values,
    )
    if not cursor.rowcount:
        raise AlreadyThere("budget", row["budget_id"])
    await _write_group_limits(connection, row["budget_id"], row["group_limits"])
    await connection.execute(
        "insert into quotas.windows"
        " (budget_id, group_key, window_start, tenant_id, currency, posted, unpriced_count, unpriced_tokens, last_batch_id)"
        " select budget_id, group_key, window_start, tenant_id, currency, posted, unpriced_count, unpriced_tokens, batch_id"
        " from quotas.fold_windows(%s)",
        [row["budget_id"]],
    )
    await _note_excess(connection, row["budget_id"], _Limits(row["hardness"], None))
    await note_thresholds(connection, row["budget_id"])


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


async def note_thresholds(connection: Connection, budget_id: str) -> None:
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
    """Return values as JSON takes them, decimals as text; terms that were never used are left out."""
    return {name: plain_value(value) for name, value in values.items() if name not in _RARE or value}


_RARE: Final = ("group_limits", "steps", "missing_estimate_amount", "away_amount", "description")


def plain_value(value: Any) -> Any:
    """Return a value as JSON takes it: decimals and dates as text."""
    if isinstance(value, Decimal):
        return amount_text(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, list | tuple):
        return [plain_value(item) for item in value]
    if isinstance(value, Mapping):
        return {name: plain_value(item) for name, item in value.items()}
    return value


async def over_several_tenants(connection: Connection, budget_ids: Sequence[str]) -> dict[str, bool]:
    """Say of budgets whether one window counts what several tenants use, which no change of theirs makes otherwise."""
    cursor = await connection.execute(
        "select budget_id, tenant_id is null and 'tenant_id' <> all (group_by) from quotas.budgets where budget_id = any(%s)",
        [list(budget_ids)],
    )
    return dict(await cursor.fetchall())
