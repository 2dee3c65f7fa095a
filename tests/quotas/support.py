"""Short calls for the tests of this folder: a budget, spending that costs what it says, and what windows hold."""

from datetime import date
from decimal import Decimal
from typing import Any

from ledger.books import load_books
from ledger.database import connect
from ledger.times import parse_rfc3339
from quotas import budgets
from quotas.asks import Ask, Decision
from quotas.budgets import BudgetSet, Terms
from quotas.known import Known
from quotas.reservations import reserve
from tests.factories import make_event
from tests.support.ledger import Ledger

NOW = "2026-03-15T12:00:00Z"
RECEIVED = "2027-01-01T00:00:00Z"


async def set_budget(
    ledger: Ledger, *, now: str = NOW, since: date | None = None, budget_id: str | None = "b", **terms: Any
) -> BudgetSet:
    """Set a budget of t-alpha in dollars charged a month, unless the terms say otherwise."""
    if terms.setdefault("unit", "charge") in budgets.MONEY_UNITS and "currency" not in terms.get("group_by", ()):
        terms.setdefault("currency", "USD")
    if terms.get("limit") is not None:
        terms["limit"] = Decimal(terms["limit"])
    if "thresholds" in terms:
        terms["thresholds"] = [Decimal(each) for each in terms["thresholds"]]
    wanted = Terms(**{"tenant_id": "t-alpha", **terms})
    async with await connect(ledger.database.url_for("tallystick_operator")) as connection:
        return await budgets.set_budget(
            connection, "test", wanted, now=parse_rfc3339(now), since=since, budget_id=budget_id
        )


async def end_budget(ledger: Ledger, budget_id: str = "b") -> None:
    async with await connect(ledger.database.url_for("tallystick_operator")) as connection:
        await budgets.end_budget(connection, "test", budget_id)


async def add_price(ledger: Ledger, model: str = "m-sub") -> None:
    """A dollar for a million input tokens, so that `spending` says dollars."""
    await ledger.add_price(model, input="1.00", output="1.00")


def spending(event_id: str, amount: str, at: str = "2026-03-10T12:00:00Z", **overrides: Any) -> dict[str, Any]:
    """An event that is charged an amount in dollars, which is a token for each millionth."""
    tokens = int(Decimal(amount) * 1_000_000)
    usage = {"prompt_tokens": tokens, "completion_tokens": 0, "total_tokens": tokens}
    return make_event(event_id, **{"time": at, "usage": usage, **overrides})


async def spend(ledger: Ledger, event_id: str, amount: str, at: str = "2026-03-10T12:00:00Z", **overrides: Any) -> None:
    posted = await ledger.post(spending(event_id, amount, at, **overrides), received_at=RECEIVED)
    assert ledger.outcomes(posted) == ["created"], posted.results


def windows(ledger: Ledger, budget_id: str = "b") -> dict[str, str]:
    """What is posted in each window of a budget without groups, in the shortest digits."""
    rows = ledger.rows(
        "select window_start::text, trim_scale(posted)::text from quotas.windows where budget_id = %s order by 1",
        budget_id,
    )
    return dict(rows)


def grouped(ledger: Ledger, budget_id: str = "b") -> dict[tuple[str, str], str]:
    """What is posted in each group and window of a budget."""
    rows = ledger.rows(
        "select group_key, window_start::text, trim_scale(posted)::text from quotas.windows where budget_id = %s"
        " order by 1, 2",
        budget_id,
    )
    return {(key, start): posted for key, start, posted in rows}


def excesses(ledger: Ledger, budget_id: str = "b") -> list[tuple[str, str]]:
    """The changes of a budget's excess with their causes, in order."""
    return ledger.rows(
        "select cause, trim_scale(change)::text from quotas.excess where budget_id = %s order by excess_id", budget_id
    )


def differences(ledger: Ledger) -> list[tuple[Any, ...]]:
    """Windows that do not hold what the fold of the ledger says, or where folding all budgets at once says otherwise."""
    columns = (
        "budget_id, group_key, window_start, tenant_id, currency, posted, unpriced_count, unpriced_tokens, batch_id"
    )
    alone = (
        f"select f.* from quotas.budgets as b cross join lateral (select {columns} from quotas.fold_windows(b.budget_id)) as f"
        " where b.ended_at is null"
    )
    together = f"select {columns} from quotas.fold_windows(null)"
    return ledger.rows(f"({alone} except {together}) union all ({together} except {alone})") + ledger.rows(
        """
        with folded as (
            select f.*
            from quotas.budgets as b
            cross join lateral quotas.fold_windows(b.budget_id) as f
            where b.ended_at is null
        )

        select budget_id, group_key, window_start, w.posted, f.posted, w.unpriced_count, f.unpriced_count, w.unpriced_tokens, f.unpriced_tokens
        from folded as f
        full join (
            select w.* from quotas.windows as w join quotas.budgets as b using (budget_id) where b.ended_at is null
        ) as w using (budget_id, group_key, window_start)
        where
            coalesce(w.posted, 0) <> coalesce(f.posted, 0)
            or coalesce(w.unpriced_count, 0) <> coalesce(f.unpriced_count, 0)
            or coalesce(w.unpriced_tokens, 0) <> coalesce(f.unpriced_tokens, 0)
        """
    )


class Desk:
    """A connection of the writer with books, to ask, settle, void and sweep at an instant of the test's own."""

    def __init__(self, ledger: Ledger, at: str = "2026-03-10T12:00:00Z") -> None:
        self.ledger = ledger
        self.at = parse_rfc3339(at)
        self.known = Known()

    async def __aenter__(self) -> "Desk":
        self.connection = await connect(self.ledger.database.url_for("tallystick_writer"))
        await self.reload()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.connection.close()

    async def reload(self) -> None:
        self.books = await load_books(self.connection)

    async def ask(self, reservation_id: str, charge: str | None = None, **overrides: Any) -> list[Decision]:
        """Ask for one call that costs an amount in dollars charged."""
        return await self.reserve(make_ask(reservation_id, charge, **overrides))

    async def reserve(self, *asks: Ask) -> list[Decision]:
        return await reserve(self.connection, asks, self.books, at=self.at, known=self.known)

    def window(self, budget_id: str = "b", window_start: str = "2026-03-01") -> tuple[str, str]:
        """What is (posted, held) in a window of a budget without groups."""
        row = self.ledger.rows(
            "select trim_scale(posted)::text, trim_scale(held)::text from quotas.windows"
            " where budget_id = %s and window_start = %s",
            budget_id,
            window_start,
        )
        return row[0] if row else ("0", "0")


def make_ask(reservation_id: str, charge: str | None = None, **overrides: Any) -> Ask:
    amount = None if charge is None else Decimal(charge)
    known = {"tenant_id": "t-alpha", "provider": "openai", "model": "m-sub", "charge": amount, "lane": "interactive"}
    return Ask(**{"reservation_id": reservation_id, **known, **overrides})
