"""The standing proof: budgets, ledger and marts agree, per tenant and month, said every minute and not every night.

It keeps sums of all entries by tenant, local month and currencies (`ledger.proof_totals`), adds what was posted since, and in
the same snapshot holds them against what budgets carry and what the daily mart says. So it costs as much as there is new, and
stays true once the rows of a month have left. What it cannot see, because it never reads a row twice, is for `verify`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Final

import psycopg
from psycopg import sql

from ledger import proofs
from ledger.database import Connection
from ledger.proofs import Difference
from tallystick.verify import PROOFS, mart_statement

DRILLED_MAX: Final = 3
"""Months of tenants that differ and of which the hours are looked for: each is read from the ledger."""
_MART: Final = "fct_cost_daily"

# The entries of some batches: by month and range of the primary key, so that nothing else is read.
_ENTRIES_OF: Final = """(
    select e.*
    from ({batches}) as b
    cross join lateral (
        select p.posting_period from ledger.batch_digests as p where p.batch_id = b.batch_id offset 0
    ) as d
    cross join lateral (
        select r.*
        from ledger.entries as r
        where
            r.posting_period = d.posting_period
            and r.entry_id >= b.batch_id * 65536
            and r.entry_id < (b.batch_id + 1) * 65536
        offset 0
    ) as e
)"""
_NEW: Final = (
    "select b.batch_id from ledger.batches as b left join ledger.proof_marks as m on m.feed_id = b.feed_id"
    " where b.number > coalesce(m.number, 0)"
)
_UNCONSUMED: Final = (
    "select b.batch_id from ledger.batches as b"
    f" left join marts.watermarks as w on w.feed_id = b.feed_id and w.model = '{_MART}'"
    " where b.number > coalesce(w.low, 0)"
)


@dataclass(frozen=True, slots=True)
class Standing:
    """What the standing proof found."""

    difference_count: int
    differences: Sequence[Difference]
    """In words; the first of each part."""
    notes: Sequence[str]
    batch_count: int
    """How many batches were added."""


async def prove(connection: Connection, *, every_seconds: float | None = None, anew: bool = False) -> Standing:
    """Add what was posted since the last time, compare, and write down the result, in one snapshot.

    `anew` forgets the sums and makes them from all entries, and from the seals of months whose rows have left; the first run
    does so too. `connection` is the operator's, in autocommit mode.
    """
    started_at = datetime.now(UTC)
    await connection.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
    try:
        async with connection.transaction():
            # The statements read ranges of a key, and look dear to a planner without statistics.
            await connection.execute("set local jit = off")
            added = await _add(connection, anew)
            differences, notes, count = await _compared(connection)
            cursor = await connection.execute("select name, last_number from ledger.feeds where last_number > 0")
            up_to: dict[str, int] = dict(await cursor.fetchall())
            await proofs.note_proof(
                connection,
                "standing",
                started_at=started_at,
                up_to=up_to,
                difference_count=count,
                differences=differences,
                notes=notes,
                every_seconds=every_seconds,
            )
    finally:
        await connection.set_isolation_level(None)
    return Standing(count, differences, notes, added)


# --- The sums ---------------------------------------------------------------------------------------------------------


async def _add(connection: Connection, anew: bool) -> int:
    """Add the entries of new batches to the sums, and move the marks; return how many batches there were."""
    gone = await _months_gone(connection)
    if not anew:
        cursor = await connection.execute(
            "select not exists (select from ledger.proof_marks) or exists ("
            f"select from ({_NEW}) as b join ledger.batch_digests as d on d.batch_id = b.batch_id"
            " where d.posting_period = any(%s))".encode(),
            [gone],
        )
        row = await cursor.fetchone()
        assert row is not None
        # Rows that left before they were added are known by their month's seal alone, which does not say by which batch.
        anew = row[0]
    if anew:
        await connection.execute("delete from ledger.proof_totals")
        await connection.execute("delete from ledger.proof_marks")
        seals = (PROOFS / "standing_seals.sql").read_text().replace("{months}", _dates(gone))
        await connection.execute(_adding(f"(\n{seals})"))
    cursor = await connection.execute(f"select count(*) from ({_NEW}) as b".encode())
    row = await cursor.fetchone()
    assert row is not None
    if row[0]:
        # All of them are read in one go, not month by month and batch by batch.
        rows = f"(select * from ledger.entries as r where r.posting_period <> all({_dates(gone)}))"
        await connection.execute(_adding(rows if anew else _ENTRIES_OF.replace("{batches}", _NEW)))
        await connection.execute(
            "insert into ledger.proof_marks (feed_id, number)"
            " select feed_id, last_number from ledger.feeds where last_number > 0 order by feed_id"
            " on conflict (feed_id) do update set number = excluded.number where ledger.proof_marks.number <> excluded.number"
        )
    return int(row[0])


def _adding(rows: str) -> bytes:
    return (PROOFS / "standing_add.sql").read_text().replace("{rows}", rows).encode()


async def _months_gone(connection: Connection) -> list[date]:
    cursor = await connection.execute(
        "select posting_period from ledger.retired_months where not is_readable order by 1"
    )
    return [month for (month,) in await cursor.fetchall()]


def _dates(months: Sequence[date]) -> str:
    listed = ", ".join([f"date '{month.isoformat()}'" for month in months])
    return f"array[{listed}]::date[]"


# --- The comparison ---------------------------------------------------------------------------------------------------


async def _compared(connection: Connection) -> tuple[list[Difference], list[str], int]:
    """Return differences in words, what could not be compared, and how many months of tenants differ."""
    cursor = await connection.execute((PROOFS / "standing_budgets.sql").read_bytes())
    budgets = [text for (text,) in await cursor.fetchall()]
    differences = [Difference("budgets", text) for text in budgets[: proofs.DIFFERENCES_KEPT_MAX // 2]]
    cursor = await connection.execute(
        "select to_regclass('marts.watermarks') is not null"
        " and to_regclass('marts.fct_cost_daily') is not null and to_regclass('marts.fct_usage_hourly') is not null"
    )
    row = await cursor.fetchone()
    if row is None or not row[0]:
        return differences, ["the marts are not there yet: run `tallystick rollup`"], len(budgets)
    unconsumed = _ENTRIES_OF.replace("{batches}", _UNCONSUMED)
    statement = (PROOFS / "standing_marts.sql").read_text().replace("{rows}", unconsumed)
    cursor = await connection.execute(statement.encode())
    marts = await cursor.fetchall()
    for tenant_id, month, text in marts[:DRILLED_MAX]:
        differences.append(Difference("marts", text))
        differences += [Difference("marts", hour) for hour in await _hours(connection, tenant_id, month)]
    differences += [Difference("marts", text) for _, _, text in marts[DRILLED_MAX : proofs.DIFFERENCES_KEPT_MAX // 2]]
    return differences, [], len(budgets) + len(marts)


async def _hours(connection: Connection, tenant_id: str, month: date) -> list[str]:
    """Say which hours of a tenant's month are not what the ledger says, and which days where every hour agrees."""
    tenant = sql.quote(tenant_id)
    of_month = "{0} >= date '{1}' and {0} < (date '{1}' + interval '1 month')::date"
    for mart in ("fct_usage_hourly", _MART):
        day = of_month.format("local_date", month.isoformat())
        # A local month lies within a day of the same month in UTC.
        hours = (
            f"starts_at >= timestamptz '{month.isoformat()} 00:00+00' - interval '1 day'"
            f" and starts_at < timestamptz '{month.isoformat()} 00:00+00' + interval '1 month 1 day'"
        )
        statement = mart_statement(
            mart,
            ledger_scope=f"e.tenant_id = {tenant} and "
            + (day if mart == _MART else hours).replace("starts_at", "e.occurred_at"),
            mart_scope=f"tenant_id = {tenant} and {day if mart == _MART else hours}",
        )
        cursor = await connection.execute(
            f"select failure from ({statement}) as broken where starts_with(failure, '{mart}: tenant ') order by 1 limit 5".encode()
        )
        if found := [text for (text,) in await cursor.fetchall()]:
            return found
    return []
