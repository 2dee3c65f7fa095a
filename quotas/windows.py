"""The SQL of the room, put together: one text of movements for trigger and fold, one of what is in scope for all."""

from pathlib import Path
from typing import Final

_FOLDER: Final = Path(__file__).parent / "sql"

# Late usage of a window's first days lies at most a day from it in UTC; two are safe.
_LEDGER: Final = """(
            select r.*
            from ledger.entries as r
            cross join (
                select
                    min(b.first_window) as first_window,
                    case when count(distinct coalesce(b.tenant_id, '')) = 1 then max(b.tenant_id) end as tenant_id
                from quotas.budgets as b
                where b.ended_at is null and (wanted is null or b.budget_id = wanted)
            ) as f
            where
                (f.tenant_id is null or r.tenant_id = f.tenant_id)
                and (f.first_window < date '2000-01-01' or r.occurred_at >= f.first_window - interval '2 days')
        )"""


def routines() -> dict[str, str]:
    """Return the repeatable texts of the schema by name, complete, in the order in which they are applied."""
    in_scope = (_FOLDER / "in_scope.sql").read_text().strip()
    movements = (_FOLDER / "movements.sql").read_text().replace("{in scope}", in_scope)
    of_new_rows = movements.replace("{source_rows}", "new_rows").replace("{which_budgets}", "true")
    of_ledger = movements.replace("{source_rows}", _LEDGER).replace(
        "{which_budgets}", "(wanted is null or b.budget_id = wanted)"
    )
    return {
        path.name: path.read_text()
        .replace("{in scope}", in_scope)
        .replace("{movements of new rows}", of_new_rows)
        .replace("{movements of the ledger}", of_ledger)
        for path in sorted(_FOLDER.glob("[0-9]*.sql"))
    }
