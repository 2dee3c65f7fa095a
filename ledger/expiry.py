"""What has an age limit: raw usage objects, by month of receipt, bytes of dead letters, staged rows of loads. Each pass is an act."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Final, get_args

from ledger import loads
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
    load_rows: int = 0
    """Staged rows of loads; their entries, files' hashes and counts stay."""

    @property
    def line(self) -> str | None:
        """One line for a person; None where there was nothing."""
        said = []
        if self.raw_usage_months:
            said.append("raw usage of " + ", ".join(f"{each:%Y-%m}" for each in self.raw_usage_months) + " dropped")
        if self.letters:
            said.append(f"bytes of {self.letters:,} dead letter{'' if self.letters == 1 else 's'} expired")
        if self.load_rows:
            said.append(f"{self.load_rows:,} staged row{'' if self.load_rows == 1 else 's'} of loads gone")
        return ", ".join(said) or None


async def expire(
    connection: Connection,
    *,
    now: int,
    raw_usage_months: int,
    dead_letter_days: int,
    open_dead_letter_days: int,
    load_days: int,
    actor: str,
) -> Expired:
    """Drop raw usage that was received more than so many whole months ago, and bytes of letters and loads so many days old.

    A resolved letter counts from its resolution, an open one from when it last came; a load from its commit or revert, and one
    that nobody commits ends like an open letter. Units: `now` in UTC microseconds. The digest of a raw object stays on its
    entry, hash and reason of a letter in its row, files and counts of a load in its own.
    """
    at = from_micros(now)
    load_rows = await _expire_loads(
        connection, at - timedelta(days=load_days), at - timedelta(days=open_dead_letter_days), actor
    )
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
            return Expired(months, letters, load_rows)


async def _expire_loads(connection: Connection, ended_before: datetime, loaded_before: datetime, actor: str) -> int:
    """Delete the staged rows of loads that ended before an instant, and end those left uncommitted since another."""
    cursor = await connection.execute(
        """
        select l.load_id, l.state
        from ledger.loads as l
        where
            exists (select from ledger.load_rows as r where r.load_id = l.load_id)
            and (
                (l.state = 'committed' and l.committed_at < %(ended_before)s)
                or (l.state = 'reverted' and l.reverted_at < %(ended_before)s)
                or (l.state = 'loaded' and l.loaded_at < %(loaded_before)s)
            )
        order by l.load_id
        """,
        {"ended_before": ended_before, "loaded_before": loaded_before},
    )
    count = 0
    for load_id, state in await cursor.fetchall():
        async with connection.transaction():
            # Whoever loads or commits it meanwhile waits here, or was before us and moved it on.
            async with loads.locked(connection, load_id, *get_args(loads.State)) as load:
                if load.state != state or (load.loaded_at and state == "loaded" and load.loaded_at >= loaded_before):
                    continue
                gone = await connection.execute("delete from ledger.load_rows where load_id = %s", [load_id])
                detail = {"load": load_id, "rows": gone.rowcount, "was": state}
                await record_act(connection, actor, "retention.expire_load_rows", detail)
            if state == "loaded":
                await loads.start_revert(connection, actor, load_id, "nobody has committed it")
        count += gone.rowcount
    return count
