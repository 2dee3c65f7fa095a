"""`tallystick demo --month-end`: the demo's month from open to files, by the functions that the commands call."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Final

from billing.agreement_files import apply_agreements, load_agreements
from billing.documents import Document
from billing.exports.focus import focus_frame, focus_rows, to_focus_csv, to_parquet
from billing.exports.focus_source import read_charges
from billing.exports.names import file_names
from billing.exports.pdf import to_pdf
from billing.issuing import Terms, issue_all
from billing.store import read_documents
from ledger.closing import close_partitions, close_periods, seal_pending
from ledger.database import Connection, connect
from ledger.money import EXACT

_REASON: Final = "the demo's month is closed at once, to show a month end"


@dataclass(frozen=True, slots=True)
class MonthEnd:
    """What a month end made, and the sums that must agree."""

    month: date
    invoices: Sequence[Document]
    parked: Sequence[str]
    """Tenant and reason."""
    ledger_charge: Decimal
    invoiced_usage: Decimal
    """Usage lines, exactly."""
    amount_due: Decimal
    focus_billed: Decimal
    """What the column BilledCost of the FOCUS file adds up to."""
    folder: Path


async def month_end(url: str, agreements: Path, folder: Path, actor: str) -> MonthEnd:
    """Apply agreements, close and seal the newest month of entries, issue it, and write PDFs and one FOCUS file anew.

    Shape: in `folder` a PDF for each invoice, named by its number, and `focus.parquet` with `focus.csv`.
    Errors: LedgerError's and billing's own, as of the commands; the marts must be up to date.
    """
    connection = await connect(url)
    try:
        await apply_agreements(connection, actor, load_agreements(agreements), reason=None, dry_run=False)
        month, charge = await _newest_month(connection)
        await close_periods(connection, actor, month, is_early=True, reason=_REASON)
        await seal_pending(connection, month=month)
        await close_partitions(connection)
        outcomes = [each async for group, _, _ in issue_all(connection, month, Terms(actor, _REASON)) for each in group]
        issued = [each.document_id for each in outcomes if each.document_id is not None]
        invoices = await read_documents(connection, issued)
        rows = [row for each in invoices for row in focus_rows(each, await read_charges(connection, each))]
    finally:
        await connection.close()
    _write(folder, invoices, rows)
    return MonthEnd(
        month=month,
        invoices=invoices,
        parked=[f"{each.tenant_id}: {'; '.join(each.reasons)}" for each in outcomes if each.result == "parked"],
        ledger_charge=charge,
        invoiced_usage=_sum([line.exact_amount for each in invoices for line in each.lines if line.kind == "usage"]),
        amount_due=_sum([each.amount_due for each in invoices]),
        focus_billed=_sum([row["BilledCost"] for row in rows]),
        folder=folder,
    )


async def _newest_month(connection: Connection) -> tuple[date, Decimal]:
    """Return the newest month that entries are billed in, and what was charged in it."""
    cursor = await connection.execute(
        "select posting_period, sum(charge_amount) from ledger.entries group by 1 order by 1 desc limit 1"
    )
    row = await cursor.fetchone()
    assert row is not None
    return row[0], row[1]


def _write(folder: Path, invoices: Sequence[Document], rows: Sequence[dict[str, object]]) -> None:
    """Write the files of this month end; those of the last one are of a database that is gone."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, each in zip(file_names(invoices), invoices, strict=True):
        (folder / f"{name}.pdf").write_bytes(to_pdf(each))
    frame = focus_frame(rows)
    (folder / "focus.parquet").write_bytes(to_parquet(frame))
    (folder / "focus.csv").write_text(to_focus_csv(frame), encoding="utf-8")


def _sum(amounts: Sequence[Decimal]) -> Decimal:
    total = Decimal(0)
    for amount in amounts:
        total = EXACT.add(total, amount)
    return total
