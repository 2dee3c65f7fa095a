"""What is answered while the database cannot be asked: each hard budget says whether to refuse, or up to how much to admit.

Pure but for the reading of budgets: who asks keeps what was admitted where a restart does not lose it, and books it later.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, timedelta
from decimal import Decimal
from typing import Any, Final

import msgspec

from ledger.books import Books
from ledger.database import Connection
from ledger.times import local_date_at
from quotas.asks import Ask
from quotas.estimates import Estimate, estimate

Window = tuple[str, str, date]
"""(budget, group, first local day)."""


class AwayBudget(msgspec.Struct, frozen=True, gc=False):
    """A hard budget with a limit, as far as it matters while what has been spent of it is not known."""

    budget_id: str
    tenant_id: str | None
    scope: Mapping[str, str]
    """What usage must be, by column; without tenant and tags."""
    tags: Mapping[str, str]
    group_by: tuple[str, ...]
    unit: str
    currency: str | None
    window_kind: str
    window_days: int | None
    anchor: date | None
    interactive_reserve: Decimal
    amount: Decimal | None
    """Up to how much one replica admits in a window; None: it refuses."""


class Taking(msgspec.Struct, frozen=True, gc=False):
    """What an admitted call takes of a budget's allowance."""

    budget_id: str
    group_key: str
    window_start: date
    amount: Decimal

    @property
    def window(self) -> Window:
        return self.budget_id, self.group_key, self.window_start


class AwayBudgets:
    """The hard budgets as of one version, found by tenant."""

    def __init__(self, version: int, budgets: Iterable[AwayBudget]) -> None:
        self.version = version
        self._of: dict[str | None, list[AwayBudget]] = {}
        self.admits = False
        for budget in budgets:
            self._of.setdefault(budget.tenant_id, []).append(budget)
            self.admits = self.admits or budget.amount is not None

    def of(self, tenant_id: str) -> list[AwayBudget]:
        return [*self._of.get(tenant_id, ()), *self._of.get(None, ())]


_SCOPE: Final = ("provider_account", "feature", "model", "route", "lane", "api_key_id", "subject_id")


async def load_away(connection: Connection) -> AwayBudgets:
    """Read the hard budgets that limit somebody."""
    async with connection.transaction():
        await connection.execute("set transaction isolation level repeatable read, read only")
        version = await (await connection.execute("select budgets from ledger.versions")).fetchone()
        cursor = await connection.execute(
            "select b.budget_id, b.tenant_id, b.provider_account, b.feature, b.model, b.route, b.lane, b.api_key_id,"
            " b.subject_id::text, b.tags, b.group_by, b.unit, b.currency::text, b.window_kind, b.window_days, b.anchor,"
            " b.interactive_reserve, case when b.when_away = 'admit' then b.away_amount end"
            " from quotas.budgets as b"
            " where b.hardness = 'hard' and b.ended_at is null and (b.limit_amount is not null"
            " or exists (select from quotas.group_limits as g where g.budget_id = b.budget_id and g.limit_amount is not null))"
        )
        assert version is not None
        return AwayBudgets(version[0], [_from_row(row) for row in await cursor.fetchall()])


def _from_row(row: Sequence[Any]) -> AwayBudget:
    budget_id, tenant_id, *terms = row[:9]
    tags, group_by, *others = row[9:]
    scope = {name: value for name, value in zip(_SCOPE, terms, strict=True) if value is not None}
    return AwayBudget(budget_id, tenant_id, scope, tags or {}, tuple(group_by), *others)


def takings_of(
    budgets: AwayBudgets, taken: Mapping[Window, Decimal], ask: Ask, books: Books, now: int
) -> list[Taking] | None:
    """Return what an ask would take of the allowances, or None where it must be refused.

    It is refused where the tenant is not known or not active, where a hard budget in its scope refuses while away, or keeps a
    reserve from its lane, or cannot weigh it, or has no allowance left; and where no budget says that it may be admitted.
    Units: `now` in UTC microseconds.
    """
    payer = books.parties.tenant_at(ask.tenant_id, now)
    if payer is None or payer.at(now).status != "active":
        return None
    estimated = estimate(books, payer, ask, now, now + ask.ttl_seconds * 1_000_000)
    model = books.parties.model(ask.provider, ask.model)
    subject = None if ask.user_hash is None else books.subject_ids.get((payer.tenant_id, ask.user_hash))
    said: dict[str, str | None] = {
        "tenant_id": payer.tenant_id,
        "provider_account": ask.provider_account,
        "feature": ask.feature,
        "model": None if model is None else model.model,
        "route": ask.route,
        "lane": ask.lane,
        "api_key_id": ask.api_key_id,
        "subject_id": subject,
    }
    found: list[Taking] = []
    for budget in budgets.of(payer.tenant_id):
        currency = {"charge": estimated.charge_currency, "cost": estimated.cost_currency}.get(budget.unit)
        if not _is_in_scope(budget, said, ask.tags, currency, knows_user=subject is not None or ask.user_hash is None):
            continue
        amount = _amount(estimated, budget.unit)
        if budget.amount is None or amount is None or (ask.lane == "batch" and budget.interactive_reserve > 0):
            return None
        is_shared = budget.tenant_id is None and "tenant_id" not in budget.group_by
        zone = "UTC" if is_shared else payer.at(now).time_zone
        start = window_start(budget.window_kind, budget.window_days, budget.anchor, local_date_at(zone, now))
        group = ""
        if budget.group_by:
            group = msgspec.json.encode([{**said, "currency": currency}[name] for name in budget.group_by]).decode()
        taking = Taking(budget.budget_id, group, start, amount)
        if taken.get(taking.window, Decimal(0)) + amount > budget.amount:
            return None
        found.append(taking)
    return found or None


def _is_in_scope(
    budget: AwayBudget,
    said: Mapping[str, str | None],
    tags: Mapping[str, str],
    currency: str | None,
    *,
    knows_user: bool,
) -> bool:
    for name, value in budget.scope.items():
        # A user whose id is not known here may be the one that the budget is for.
        if said[name] != value and not (name == "subject_id" and not knows_user):
            return False
    if any(tags.get(name) != value for name, value in budget.tags.items()):
        return False
    return budget.currency is None or currency is None or budget.currency == currency


def _amount(estimated: Estimate, unit: str) -> Decimal | None:
    into, out, reads = estimated.input_tokens, estimated.output_tokens, estimated.cache_read_tokens
    counts = {
        "requests": 1,
        "input_tokens": into,
        "output_tokens": out,
        "total_tokens": None if into is None or out is None else into + out,
        "input_tokens_without_cache_reads": None if into is None or reads is None else into - reads,
    }
    if unit in counts:
        count = counts[unit]
        return None if count is None else Decimal(count)
    return estimated.charge if unit == "charge" else estimated.cost


def window_start(kind: str, days: int | None, anchor: date | None, day: date) -> date:
    """Return the first day of the window that holds a day, as `quotas.window_start` does, which a test compares."""
    if kind == "day":
        return day
    if kind == "days":
        assert anchor is not None
        assert days is not None
        return anchor + timedelta(days=(day - anchor).days // days * days)
    if kind == "week":
        return day - timedelta(days=day.weekday())
    if kind == "month":
        return day.replace(day=1)
    if kind == "lifetime":
        return date(1, 1, 1)
    assert kind == "anchored_month"
    assert anchor is not None
    start = _anchored(day.replace(day=1), anchor.day)
    return start if start <= day else _anchored((day.replace(day=1) - timedelta(days=1)).replace(day=1), anchor.day)


def _anchored(month: date, day: int) -> date:
    last = (month + timedelta(days=32)).replace(day=1) - timedelta(days=1)
    return month.replace(day=min(day, last.day))
