"""The SQL of the room, put together: one text of movements for trigger and fold, one of what is in scope for all."""

from collections.abc import Mapping
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


# An array is looked up by index, whatever joins the planner may use: of all budgets only those of the batch's tenants are read.
_THEIR_BUDGETS: Final = (
    "(b.tenant_id = any (array(select distinct t.tenant_id from new_rows as t)) or b.tenant_id is null)"
)

# Usage that was posted under a reservation's name before it was made is none of its own.
_LEDGER_BY_RESERVATION: Final = """(
            select e.*
            from ledger.entries as e
            join quotas.reservations as r on r.tenant_id = e.sent_tenant_id and r.reservation_id = e.reservation_id
            where e.batch_id >= r.first_batch_id
        )"""

# What budgets look at, in the columns of the text of movements.
_SCOPE: Final = (
    "tenant_id", "local_date", "utc_date", "cost_currency", "charge_currency", "provider_account", "feature", "model", "route",
    "lane", "api_key_id", "subject_id", "tags",
)  # fmt: skip


def effects_of(rows: str) -> str:
    """Return the statement that says what the rows of a relation would do to windows, were they inserted."""
    text = (_FOLDER / "effects.sql").read_text()
    return text.replace("{movements of these rows}", _movements(rows, "true"))


def routines() -> dict[str, str]:
    """Return the repeatable texts of the schema by name, complete, in the order in which they are applied."""
    in_scope = (_FOLDER / "in_scope.sql").read_text().strip()
    texts = {
        "{in scope}": in_scope,
        "{gathered from caused}": (_FOLDER / "gathered.sql").read_text().strip(),
        "{written from caused}": (_FOLDER / "written.sql").read_text().strip(),
        "{movements of new rows}": _movements("new_rows", _THEIR_BUDGETS),
        "{movements of new rows by reservation}": _movements("new_rows", _THEIR_BUDGETS, by_reservation=True),
        "{movements of the ledger}": _movements(_LEDGER, "(wanted is null or b.budget_id = wanted)"),
        "{movements of the ledger by reservation}": _movements(_LEDGER_BY_RESERVATION, "true", by_reservation=True),
    }
    return {path.name: _filled(path.read_text(), texts) for path in sorted(_FOLDER.glob("[0-9]*.sql"))}


def _movements(rows: str, budgets: str, *, by_reservation: bool = False) -> str:
    """Return the text of movements over some rows and budgets, by reservation or over all of them."""
    return _filled(
        (_FOLDER / "movements.sql").read_text(),
        {
            "{in scope}": (_FOLDER / "in_scope.sql").read_text().strip(),
            "{source_rows}": rows,
            "{which_budgets}": budgets,
            "{reservation tenant}": _of_reservation("sent_tenant_id", by_reservation),
            "{reservation id}": _of_reservation("reservation_id", by_reservation),
            "{scope text of c}": _scope_text("c"),
            "{scope text of s}": _scope_text("s"),
        },
    )


def _of_reservation(column: str, by_reservation: bool) -> str:
    return f"case when e.reservation_id is not null then e.{column} end" if by_reservation else "null::text"


def _scope_text(alias: str) -> str:
    return f"row({', '.join(f'{alias}.{column}' for column in _SCOPE)})::text"


def _filled(text: str, texts: Mapping[str, str]) -> str:
    for name, filling in texts.items():
        text = text.replace(name, filling)
    return text
