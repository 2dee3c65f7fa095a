"""Documents as files by command: the same bytes each time, FOCUS files that add up, refusals in one line."""

import csv
import io
import json
import re
from decimal import Decimal
from pathlib import Path

import polars as pl
import pytest

from tallystick.rollup import run_rollup
from tests.support.databases import Database
from tests.tallystick.commands import Commands
from tests.tallystick.test_cli_invoices import FILE, billed

__all__ = ["billed"]

PAGE = Path(__file__).parent.parent.parent / "docs" / "invoices.md"


@pytest.fixture
def invoiced(billed: Commands, tmp_path: Path) -> Commands:
    """NW-000001: 7.00 of usage and 20 % tax."""
    billed.ok("billing", "apply", str(tmp_path / "billing.yaml"))
    billed.ok("period", "close", "2026-01", "--tenant", "t-alpha", "--commit")
    billed.ok("invoice", "issue", "t-alpha", "--month", "2026-01")
    assert "VAT 20 %" in FILE
    return billed


def test_an_invoice_is_written_as_pdf_csv_and_json(invoiced: Commands, tmp_path: Path) -> None:
    first, second = tmp_path / "first.pdf", tmp_path / "second.pdf"
    invoiced.ok("invoice", "export", "NW-000001", "--output", str(first))
    invoiced.ok("invoice", "export", "NW-000001", "--format", "pdf", "--output", str(second))
    assert first.read_bytes() == second.read_bytes()
    assert first.read_bytes().startswith(b"%PDF-")
    document = json.loads(invoiced.ok("invoice", "export", "NW-000001", "--format", "json").out)
    assert document["amount_due"] == {"amount": "8.40", "minor_units": 840}
    text = invoiced.ok("invoice", "export", "NW-000001", "--format", "csv").out
    assert invoiced.ok("invoice", "export", "NW-000001", "--format", "csv", "--output", "-").out == text
    assert not Path("-").exists()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert sum(Decimal(row["amount"]) for row in rows) == Decimal("8.40")


def test_a_month_is_written_as_a_file_for_each_document_that_counts(invoiced: Commands, tmp_path: Path) -> None:
    """NW-000001 is voided and not written; its successor is, and so is the credit note."""
    invoiced.ok("invoice", "void", "NW-000001", "--reason", "a mistake")
    invoiced.ok("invoice", "issue", "t-alpha", "2026-01")
    invoiced.ok("credit-note", "commercial", "NW-000002", "--line", "1=1.00", "--reason", "sorry")
    folder = tmp_path / "2026" / "january"
    said = invoiced.ok("invoice", "export", "--month", "2026-01", "--format", "json", "--output", str(folder)).err
    assert said == f"2 documents of 2026-01 in {folder}\n"
    found = {path.name: json.loads(path.read_text()) for path in folder.iterdir()}
    assert {name: document["total"]["amount"] for name, document in found.items()} == {
        "NW-000002.json": "8.40", "NW-C-000001.json": "1.20",
    }  # fmt: skip
    assert found["NW-C-000001.json"]["corrects_document_id"] == found["NW-000002.json"]["document_id"]
    for words, line in (
        ((), "say which: a DOCUMENT, or --month 2026-11"),
        (("NW-000002", "--month", "2026-01"), "say which: a DOCUMENT, or --month 2026-11"),
        (("--month", "2026-01"), "--month writes a file for each document: name a folder with --output"),
        (("NW-000002", "--tenant", "t-alpha"), "--tenant is for --month: a document is of one tenant anyway"),
    ):
        assert invoiced("invoice", "export", *words).line == line


def test_the_query_of_the_page_says_what_is_behind_a_line(invoiced: Commands) -> None:
    """Line 1 is the 3.00 of chat: request req-a, 3,000,000 tokens at 1.00 a million."""
    block = re.search(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert block is not None
    (row,) = invoiced.ok("sql", block[1], "--format", "json").json
    assert (row["request_id"], row["quantity"], Decimal(row["amount"])) == ("req-a", 3_000_000, Decimal(3))
    lines = invoiced.json("invoice", "show", "NW-000001")["lines"]
    for line in lines:
        asked = block[1].replace("l.line_no = 1", f"l.line_no = {line['line_no']}")
        rows = invoiced.ok("sql", asked, "--format", "json").json
        assert sum(Decimal(each["amount"]) for each in rows) == Decimal(line["exact_amount"])


@pytest.mark.marts
def test_a_focus_file_adds_up_once_the_marts_hold_the_usage(
    invoiced: Commands, database: Database, tmp_path: Path, dbt_home: Path
) -> None:
    with database.connect() as connection:
        connection.execute("drop table marts.fct_focus_charges cascade")
    file = tmp_path / "january.parquet"
    early = invoiced("focus", "export", "--month", "2026-01", "--output", str(file))
    assert early.line == "marts.fct_focus_charges is not there yet: run `tallystick rollup`"
    assert not file.exists()
    run_rollup(database.url_for("tallystick_rollup"), dbt_home, select=("fct_focus_charges",))
    assert invoiced.ok("focus", "export", "--month", "2026-01", "--output", str(file)).err == "1 document of 2026-01\n"
    assert pl.read_parquet(file)["BilledCost"].sum() == Decimal("8.40")
    of_one = invoiced.ok("invoice", "export", "NW-000001", "--format", "focus-csv").out
    assert of_one == invoiced.ok("focus", "export", "--month", "2026-01", "--format", "csv").out
    assert sum(Decimal(row["BilledCost"]) for row in csv.DictReader(io.StringIO(of_one))) == Decimal("8.40")
    # A voided invoice is no charge.
    invoiced.ok("invoice", "void", "NW-000001", "--reason", "a mistake")
    assert "was voided: it is no charge" in invoiced("invoice", "export", "NW-000001", "--format", "focus-csv").line
    assert invoiced.ok("focus", "export", "--month", "2026-01", "--format", "csv").err == "0 documents of 2026-01\n"


def test_what_cannot_be_written_is_said_in_a_line(invoiced: Commands, tmp_path: Path) -> None:
    assert "NW-9" in invoiced("invoice", "export", "NW-9", "--format", "csv").line
    assert invoiced("invoice", "export", "NW-000001", "--format", "csv", "--exact").line.startswith("--exact is for")
    nowhere = str(tmp_path / "nowhere" / "a.pdf")
    assert (
        invoiced("invoice", "export", "NW-000001", "--output", nowhere).line == f"{nowhere}: No such file or directory"
    )
