"""What has an age limit: raw usage objects, by month of receipt, and the bytes of dead letters. Each pass is an act."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Final

from ledger.database import Connection, record_act
from ledger.periods import month_after, month_of
from ledger.times import from_micros

LETTERS_AT_ONCE: Final = 1_000


@dataclass(frozen=True, slots=True)
class Expired:
    """What was let go."""

    raw_usage_months: Sequence[date]
    """Months of receipt whose raw usage objects are gone."""
    letters: int
    """Dead letters without their bytes; hash and reason stay."""

    @property
    def line(self) -> str | None:
        """One line for a person; None where there was nothing."""
        said = []
        if self.raw_usage_months:
            said.append("raw usage of " + ", ".join(f"{each:%Y-%m}" for each in self.raw_usage_months) + " dropped")
        if self.letters:
            said.append(f"bytes of {self.letters:,} dead letter{'' if self.letters == 1 else 's'} expired")
        return ", ".join(said) or None


async def expire(
    connection: Connection,
    *,
    now: int,
    raw_usage_months: int,
    dead_letter_days: int,
    open_dead_letter_days: int,
    actor: str,
) -> Expired:
    """Drop raw usage that was received more than so many whole months ago, and bytes of letters so many days old.

    A resolved letter counts from its resolution, an open one from when it last came. Units: `now` in UTC microseconds. The
    digest of a raw object stays on its entry, hash and reason of a letter in its row.
    """
    at = from_micros(now)
    first_kept = month_after(month_of(at.date()), -raw_usage_months)
    async with connection.transaction():
        cursor = await connection.execute("select month from ledger.drop_raw_usage(%s) as d (month)", [first_kept])
        months = [row[0] for row in await cursor.fetchall()]
        if months:
            detail = {"months": [f"{each:%Y-%m}" for each in months], "kept_from": f"{first_kept:%Y-%m}"}
            await record_act(connection, actor, "retention.drop_raw_usage", detail)
    letters = 0
    resolved_before, came_before = at - timedelta(days=dead_letter_days), at - timedelta(days=open_dead_letter_days)
    while True:
        async with connection.transaction():
            cursor = await connection.execute(
                "select ledger.expire_dead_letters(%s, %s, %s)", [resolved_before, came_before, LETTERS_AT_ONCE]
            )
            row = await cursor.fetchone()
            count = row[0] if row else 0
            if count:
                instants = {
                    "resolved_before": resolved_before.isoformat(),
                    "open_and_came_before": came_before.isoformat(),
                }
                await record_act(connection, actor, "retention.expire_dead_letters", {"letters": count, **instants})
        letters += count
        if count < LETTERS_AT_ONCE:
            return Expired(months, letters)
