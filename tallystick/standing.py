"""The standing proof: budgets, ledger and marts agree, per tenant and month, said every minute and not every night.

It keeps sums of all entries by tenant, local month and currencies (`ledger.proof_totals`), adds what was posted since, and in
the same snapshot holds them against what budgets carry and what the usage marts say: the daily one for all tenants, those by hour
and quarter hour, which have many more rows, for some of the tenants each time. So it costs as much as there is new, and stays true
once the rows of a month have left. What it cannot see, because it never reads a row twice, is for `verify`.
"""

from collections.abc import Mapping, Sequence
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
TURNS: Final = 15
"""In how many turns all tenants are held against the marts by hour and quarter hour."""
_DAILY: Final = "fct_cost_daily"
_IN_PERIOD: Final = "d.starts_at >= m.starts_at and d.starts_at < m.ends_at"
# By mart: which tenants and months can be compared, and which of the mart's rows are of a tenant's month.
_MARTS: Final[Mapping[str, tuple[str, str]]] = {
    _DAILY: ("true", "d.local_date >= m.month and d.local_date < (m.month + interval '1 month')::date"),
    # Every zone's offset is a multiple of a quarter hour, and of some zones of no hour.
    "fct_usage_hourly": (
        "date_trunc('hour', p.starts_at, 'UTC') = p.starts_at and date_trunc('hour', p.ends_at, 'UTC') = p.ends_at",
        _IN_PERIOD,
    ),
    "fct_usage_15min": ("p.starts_at is not null", _IN_PERIOD),
}

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
    " left join marts.watermarks as w on w.feed_id = b.feed_id and w.model = '{mart}'"
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


async def prove(
    connection: Connection, *, every_seconds: float | None = None, anew: bool = False, turn: int | None = None
) -> Standing:
    """Add what was posted since the last time, compare, and write down the result, in one snapshot.

    `turn`, a number that is one higher each time, picks the tenants whose hours and quarter hours are compared; without it, all. `anew` forgets the sums and makes them from all entries, and from the seals of months whose rows have left; the first run
    does so too. `connection` is the operator's, in autocommit mode.
    """
    started_at = datetime.now(UTC)
    await connection.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
    try:
        async with connection.transaction():
            # The statements read ranges of a key, and look dear to a planner without statistics.
            await connection.execute("set local jit = off")
            added = await _add(connection, anew)
            differences, notes, count = await _compared(connection, turn)
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


async def _compared(connection: Connection, turn: int | None) -> tuple[list[Difference], list[str], int]:
    """Return differences in words, what could not be compared, and how many months of tenants differ."""
    cursor = await connection.execute((PROOFS / "standing_budgets.sql").read_bytes())
    budgets = [text for (text,) in await cursor.fetchall()]
    differences = [Difference("budgets", text) for text in budgets[: proofs.DIFFERENCES_KEPT_MAX // 2]]
    cursor = await connection.execute(
        "select count(*) from unnest(%s::text[]) as t (name) where to_regclass('marts.' || t.name) is null",
        [["watermarks", *_MARTS]],
    )
    if await cursor.fetchone() != (0,):
        return differences, ["the marts are not there yet: run `tallystick rollup`"], len(budgets)
    found = [(mart, *row) for mart in _MARTS for row in await _differing(connection, mart, turn)]
    drilled: list[str] = []
    for mart, tenant_id, month, text in found[:DRILLED_MAX]:
        differences.append(Difference("marts", text))
        # A day is named by its hours, as far as they differ too.
        by = ("fct_usage_hourly", mart) if mart == _DAILY else (mart,)
        hours = await _buckets(connection, by, tenant_id, month)
        differences += [Difference("marts", hour) for hour in hours if hour not in drilled]
        drilled += hours
    kept = found[DRILLED_MAX : proofs.DIFFERENCES_KEPT_MAX // 2]
    differences += [Difference("marts", text) for _, _, _, text in kept]
    return differences, [], len(budgets) + len(found)


async def _differing(connection: Connection, mart: str, turn: int | None) -> list[tuple[str, date, str]]:
    """Return the tenants and months that differ in a mart, with both sides in words."""
    compared, of_month = _MARTS[mart]
    if mart != _DAILY and turn is not None:
        compared += f" and abs(hashtext(t.tenant_id)::bigint) % {TURNS} = {turn % TURNS}"
    statement = (PROOFS / "standing_marts.sql").read_text()
    for name, text in {
        "rows": _ENTRIES_OF.replace("{batches}", _UNCONSUMED),
        "compared": compared,
        "of_month": of_month,
        "mart": mart,
    }.items():
        statement = statement.replace(f"{{{name}}}", text)
    cursor = await connection.execute(statement.encode())
    return await cursor.fetchall()


async def _buckets(connection: Connection, marts: Sequence[str], tenant_id: str, month: date) -> list[str]:
    """Say which buckets of a tenant's month are not what the ledger says, in the first of these marts that has some."""
    tenant = sql.quote(tenant_id)
    day = f"local_date >= date '{month}' and local_date < (date '{month}' + interval '1 month')::date"
    # A local month lies within a day of the same month in UTC.
    hours = (
        f"starts_at >= timestamptz '{month} 00:00+00' - interval '1 day'"
        f" and starts_at < timestamptz '{month} 00:00+00' + interval '1 month 1 day'"
    )
    for mart in marts:
        scope = day if mart == _DAILY else hours
        statement = mart_statement(
            mart,
            ledger_scope=f"e.tenant_id = {tenant} and {scope}".replace("starts_at", "e.occurred_at"),
            mart_scope=f"tenant_id = {tenant} and {scope}",
        )
        cursor = await connection.execute(
            f"select failure from ({statement}) as broken where starts_with(failure, '{mart}: tenant ') order by 1 limit 5".encode()
        )
        if found := [text for (text,) in await cursor.fetchall()]:
            return found
    return []
