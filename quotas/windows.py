"""The SQL that moves budget windows: one text of movements, used by the trigger and by the fold."""

from pathlib import Path
from typing import Final

_FOLDER: Final = Path(__file__).parent / "sql"

# Late usage of a window's first days lies at most a day from it in UTC; two are safe.
_LEDGER: Final = """(
            select r.*
            from ledger.entries as r
            cross join (select b.first_window, b.tenant_id from quotas.budgets as b where b.budget_id = wanted) as f
            where
                (f.tenant_id is null or r.tenant_id = f.tenant_id)
                and (f.first_window < date '2000-01-01' or r.occurred_at >= f.first_window - interval '2 days')
        )"""


def routines() -> str:
    """Return the functions and the trigger of the schema, complete."""
    movements = (_FOLDER / "movements.sql").read_text()
    of_new_rows = movements.replace("{source_rows}", "new_rows").replace("{which_budgets}", "true")
    of_ledger = movements.replace("{source_rows}", _LEDGER).replace("{which_budgets}", "b.budget_id = wanted")
    return (
        (_FOLDER / "60_windows.sql")
        .read_text()
        .replace("{movements of new rows}", of_new_rows)
        .replace("{movements of the ledger}", of_ledger)
    )
