"""What usage would do to budgets, were it posted now: for previews. Nothing is written."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal

from psycopg.rows import class_row

from ledger.database import Connection
from quotas.windows import effects_of


@dataclass(frozen=True, slots=True)
class WindowEffect:
    """What rows would do to one window of a budget."""

    budget_id: str
    group_key: str
    window_start: date
    tenant_id: str | None
    unit: str
    currency: str | None
    hardness: str
    limit_amount: Decimal | None
    held: Decimal
    posted_before: Decimal
    posted_after: Decimal
    unpriced_before: int
    unpriced_after: int
    excess_change: Decimal
    """How much further above a hard limit the window would be; negative where it comes down."""
    thresholds: Sequence[Decimal]
    """Shares of the limit that would be reached and have not been noted."""


async def effects(connection: Connection, rows: str) -> list[WindowEffect]:
    """Return what the rows of a relation with the columns of `ledger.entries` would do to the windows of budgets.

    `rows` is the name of a relation of the caller's, never a person's text. Posted amounts are those after the commit, digit
    for digit, if nothing else is posted in between; holds are as they are.
    """
    async with connection.cursor(row_factory=class_row(WindowEffect)) as cursor:
        await cursor.execute(effects_of(rows))
        return await cursor.fetchall()
