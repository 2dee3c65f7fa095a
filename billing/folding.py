"""The fold of a month's entries in Postgres, by service period, feature, provider, model and what prices them: one pass."""

from collections.abc import Iterable, Sequence
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Final

from billing.usage_lines import Group, Rate
from ledger.database import Connection
from ledger.meters import COLUMN_METERS

_FOLDER: Final = Path(__file__).parent / "sql"


async def fold(
    connection: Connection, month: date, tenant_ids: Sequence[str], entry_ids: Sequence[int] | None = None
) -> dict[str, list[Group]]:
    """Fold a month's entries of some tenants, without those of credit notes; or, where they are named, these entries alone.

    One pass over the rows, and another where some of them have rare meters.
    """
    cursor = await connection.execute(
        "select exists (select from billing.credited_entries where posting_period = %s and tenant_id = any(%s))",
        [month, list(tenant_ids)],
    )
    row = await cursor.fetchone()
    assert row is not None
    is_credited = row[0]
    # Nearly never are there any: the pass is spared the look-up for each row.
    without = _WITHOUT_CREDITED if is_credited and entry_ids is None else ""
    chosen = "" if entry_ids is None else "and e.entry_id = any(%(entry_ids)s)"
    values = {
        "month": month,
        "tenant_ids": list(tenant_ids),
        "entry_ids": None if entry_ids is None else list(entry_ids),
    }
    # Rolled back, and with it the settings: nothing is written here.
    async with connection.transaction(force_rollback=True):
        # By hashes, in one process: the planner takes the groups for nearly as many as the rows, and would sort them by seven
        # columns and carry them all from workers, which takes twice to four times as long.
        await connection.execute(
            "select set_config('enable_sort', 'off', true), set_config('work_mem', '64MB', true),"
            " set_config('max_parallel_workers_per_gather', '0', true)"
        )
        cursor = await connection.execute(_text("fold.sql", without + chosen), values)
        rows = await cursor.fetchall()
    rare: dict[tuple[object, ...], dict[str, Decimal]] = {}
    if any(row[9] for row in rows):
        cursor = await connection.execute(_text("fold_rare.sql", without + chosen), values)
        for *key, meter, quantity in await cursor.fetchall():
            rare.setdefault(tuple(key), {})[meter] = quantity
    found: dict[str, list[Group]] = {}
    for row in rows:
        quantities = {meter: quantity for meter, quantity in zip(COLUMN_METERS, row[10:], strict=True) if quantity}
        quantities.update(rare.get(tuple(row[:8]), {}))
        tenant_id, currency, month_of_service, feature, provider, model, rate_set_id, is_stated, charge = row[:9]
        found.setdefault(tenant_id, []).append(
            Group(
                tenant_id,
                currency,
                month_of_service,
                feature,
                provider,
                model,
                rate_set_id,
                is_stated,
                charge,
                quantities,
            )
        )
    return found


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
    " and not exists (select from billing.credited_entries as c"
    " where c.posting_period = e.posting_period and c.entry_id = e.entry_id) "
)


def _text(name: str, conditions: str) -> bytes:
    meters = ",\n    ".join(f"coalesce(sum(e.{meter}), 0)" for meter in COLUMN_METERS)
    text = (_FOLDER / name).read_text()
    return text.replace("{meters}", meters).replace("{conditions}", conditions).encode()
