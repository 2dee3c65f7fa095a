"""What a tenant used and owes, summed from its entries: small and exact, for the tenant itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Final

from ledger.database import Connection

_STATEMENT: Final = (Path(__file__).parent / "sql" / "usage.sql").read_text()


@dataclass(frozen=True, slots=True)
class UsageRow:
    """The fold of a tenant's entries of one local day, model, feature and charge currency."""

    day: date
    model: str
    """Empty where no entry named one; likewise the feature, and the currency where nobody knows it."""
    feature: str
    currency: str
    request_count: int
    charge_amount: str
    """Decimal text, of what is priced."""
    unpriced_count: int
    """Requests whose charge is not known, and so not in the amount."""
    missing_count: int
    """Requests whose counts never came, and so not in the quantities."""
    quantities: str | None
    """JSON object, meter to count; None where nothing was counted."""

    @property
    def place(self) -> "Place":
        return self.day, self.model, self.feature, self.currency


Place = tuple[date, str, str, str]
"""Where a row stands in the order."""
BEFORE_ALL: Final[Place] = (date(1, 1, 1), "", "", "")


@dataclass(frozen=True, slots=True)
class Usage:
    """Rows of a tenant as one statement saw them, and the database's time."""

    at: datetime
    rows: Sequence[UsageRow]


async def usage_of(
    connection: Connection, tenant_id: str, first: date, end: date, *, limit: int, after: Place = BEFORE_ALL
) -> Usage:
    """Fold a tenant's entries of some of its local days, `end` not included: at most so many rows, those after a place.

    Corrections stand on the day of what they correct. Entries of a tenant that was merged are the other's from then on.
    """
    # Read before the rows: every commit that was answered until then is in them.
    clock = await (await connection.execute("select clock_timestamp()")).fetchone()
    assert clock is not None
    cursor = await connection.execute(
        _STATEMENT,
        {
            "tenant": tenant_id,
            "first": first,
            "end": end,
            "limit": limit,
            "after_date": after[0],
            "after_model": after[1],
            "after_feature": after[2],
            "after_currency": after[3],
        },
    )
    return Usage(clock[0], [UsageRow(*row) for row in await cursor.fetchall()])
