"""Windows made anew from ledger and reservations, where somebody's hand or a lost page has left them with other numbers."""

from dataclasses import asdict, dataclass
from datetime import date
from decimal import Decimal

import psycopg
from psycopg.rows import class_row

from ledger.database import Connection, change, record_act
from ledger.errors import Unknown
from quotas.budgets import find_budget, note_thresholds, plain_value


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A window that was wrong, or reservations in it: what it said, and what it says now."""

    budget_id: str
    group_key: str
    window_start: date
    tenant_id: str | None
    posted_before: Decimal
    posted: Decimal
    held_before: Decimal
    held: Decimal
    unpriced_count_before: int
    unpriced_count: int
    unpriced_tokens_before: int
    unpriced_tokens: int
    reservation_count: int
    """Reservations held in it whose amount posted under them was not that of their entries."""


async def rebuild_windows(
    connection: Connection, actor: str, budget_id: str | None, *, reason: str | None, dry_run: bool = False
) -> list[Rebuilt]:
    """Make the windows of a budget, or of all in force, what their fold says; no batch is posted meanwhile.

    What a hard window is above its limit afterwards is noted as a correction, and so are thresholds that it reaches; those
    that were noted stay, since somebody was told. Nothing is written where nothing differs, and in a dry run.
    """
    async with change(connection, "budgets"):
        if budget_id is not None:
            found = await find_budget(connection, budget_id)
            if found is None or found.ended_at is not None:
                raise Unknown("budget in force", budget_id)
        async with connection.cursor(row_factory=class_row(Rebuilt)) as cursor:
            await cursor.execute("select * from quotas.rebuild_windows(%s)", [budget_id])
            rebuilt = await cursor.fetchall()
        if dry_run or not rebuilt:
            raise psycopg.Rollback
        await _note_excess(connection, rebuilt)
        for each in sorted({window.budget_id for window in rebuilt}):
            await note_thresholds(connection, each)
        detail = {"budget_id": budget_id, "windows": [plain_value(asdict(window)) for window in rebuilt]}
        await record_act(connection, actor, "budgets.rebuild", detail, reason)
    return rebuilt


async def _note_excess(connection: Connection, rebuilt: list[Rebuilt]) -> None:
    """Note what is lacking for the changes of each window to sum to its excess."""
    await connection.execute(
        """
        insert into quotas.excess (budget_id, group_key, window_start, change, cause)
        select w.budget_id, w.group_key, w.window_start, e.amount - n.amount, 'correction'
        from unnest(%s::text[], %s::text[], %s::date[]) as r (budget_id, group_key, window_start)
        join quotas.windows as w using (budget_id, group_key, window_start)
        join quotas.budgets as b using (budget_id)
        left join quotas.group_limits as g using (budget_id, group_key)
        cross join lateral (select quotas.limit_of(b.limit_amount, g.budget_id, g.limit_amount) as amount) as l
        cross join lateral (
            select
                case when b.hardness = 'hard' and l.amount is not null
                    then greatest(w.posted + w.held - l.amount, 0) else 0
                end as amount
        ) as e
        cross join lateral (
            select coalesce(sum(x.change), 0) as amount
            from quotas.excess as x
            where x.budget_id = w.budget_id and x.group_key = w.group_key and x.window_start = w.window_start
        ) as n
        where e.amount <> n.amount
        order by 1, 2, 3
        """,
        [
            [each.budget_id for each in rebuilt],
            [each.group_key for each in rebuilt],
            [each.window_start for each in rebuilt],
        ],
    )
