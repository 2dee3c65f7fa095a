"""The fold of a month's entries in Postgres, by service period, feature, provider, model and what prices them: one pass."""

from collections.abc import Iterable, Sequence
from datetime import date
from decimal import Decimal
from operator import itemgetter
from pathlib import Path
from typing import Final

from billing.usage_lines import Group, Rate
from ledger.database import Connection
from ledger.meters import COLUMN_METERS

_FOLDER: Final = Path(__file__).parent / "sql"


async def fold(
    connection: Connection, month: date, tenant_ids: Sequence[str] | None, entry_ids: Sequence[int] | None = None
) -> dict[str, list[Group]]:
    """Fold a month's entries of some tenants or of all, without those of credit notes; or, where they are named, these alone.

    One pass over the rows, and another where some of them have rare meters.
    """
    conditions = [] if tenant_ids is None else ["and e.tenant_id = any(%(tenant_ids)s)"]
    if entry_ids is not None:
        conditions.append("and e.entry_id = any(%(entry_ids)s)")
    # Nearly never are there any: the pass is spared the look-up for each row.
    elif await _has_credited(connection, month):
        conditions.append(_WITHOUT_CREDITED)
    values = {
        "month": month,
        "tenant_ids": None if tenant_ids is None else list(tenant_ids),
        "entry_ids": None if entry_ids is None else list(entry_ids),
    }
    # Rolled back, and with it the settings: nothing is written here.
    async with connection.transaction(force_rollback=True):
        # By hashes, and summed up by each worker: the planner takes the groups for a tenth of the rows, and would sort them
        # by seven columns, or carry every row from the workers to one that sums.
        await connection.execute(
            "select set_config('enable_sort', 'off', true), set_config('enable_incremental_sort', 'off', true),"
            " set_config('work_mem', '64MB', true), set_config('parallel_setup_cost', '0', true),"
            " set_config('parallel_tuple_cost', '0.02', true)"
        )
        cursor = await connection.execute(_text("fold.sql", conditions), values)
        rows = await cursor.fetchall()
        rare: dict[tuple[object, ...], dict[str, Decimal]] = {}
        if any(row[9] for row in rows):
            cursor = await connection.execute(_text("fold_rare.sql", conditions), values)
            for *key, meter, quantity in await cursor.fetchall():
                rare.setdefault(tuple(key), {})[meter] = quantity
    # Most meters are in none of a month's rows.
    used = [(meter, place) for place, meter in enumerate(COLUMN_METERS, 10) if any(map(itemgetter(place), rows))]
    found: dict[str, list[Group]] = {}
    for row in rows:
        quantities = {meter: Decimal(row[place]) for meter, place in used if row[place]}
        if row[9]:
            quantities.update(rare.get(row[:8], {}))
        fields = (*row[:9], quantities)
        found.setdefault(row[0], []).append(Group(*fields))
    return found


async def _has_credited(connection: Connection, month: date) -> bool:
    cursor = await connection.execute(
        "select exists (select from billing.credited_entries where posting_period = %s)", [month]
    )
    return await cursor.fetchone() == (True,)


async def read_rates(connection: Connection, groups: Iterable[Group]) -> dict[int, dict[str, Rate]]:
    """Return the rates of the sets that groups name, by set and meter."""
    wanted = sorted({group.rate_set_id for group in groups if group.rate_set_id is not None})
    cursor = await connection.execute(
        "select rate_set_id, meter, price, per from ledger.rates where rate_set_id = any(%s)", [wanted]
    )
    found: dict[int, dict[str, Rate]] = {}
    for rate_set_id, meter, price, per in await cursor.fetchall():
        found.setdefault(rate_set_id, {})[meter] = Rate(price, per)
    return found


_WITHOUT_CREDITED: Final = (
    "and not exists (select from billing.credited_entries as c"
    " where c.posting_period = e.posting_period and c.entry_id = e.entry_id)"
)
# Late usage, and differences that a person stated, are rare: one number tells them apart, null for all other rows, which then
# cost neither a date's arithmetic nor a look into their flags; no report states an amount. Twice the days since 2000, and one
# where the amount is stated.
_ASIDE: Final = """case
            when e.local_date >= %(month)s::date and e.kind = 'usage' then null
            else nullif(
                (least(date_trunc('month', e.local_date::timestamp)::date, %(month)s::date) - date '2000-01-01') * 2
                + (e.usage_flags @> '{amount_stated}')::int,
                (%(month)s::date - date '2000-01-01') * 2
            )
        end"""
_SERVICE_MONTH: Final = "coalesce(date '2000-01-01' + (aside >> 1), %(month)s::date)"
_IS_STATED: Final = "coalesce(aside & 1, 0) = 1"


def _text(name: str, conditions: Sequence[str]) -> bytes:
    text = (_FOLDER / name).read_text()
    for word, value in {
        "aside": _ASIDE,
        "service_month": _SERVICE_MONTH,
        "is_stated": _IS_STATED,
        "meters": ",\n        ".join(f"billing.count_sum(e.{meter}) as {meter}" for meter in COLUMN_METERS),
        "meter_names": ",\n    ".join(COLUMN_METERS),
        "conditions": "\n        ".join(conditions),
    }.items():
        text = text.replace(f"{{{word}}}", value)
    return text.encode()
