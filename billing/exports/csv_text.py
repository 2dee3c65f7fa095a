"""A document as CSV: a row for each line, tax and grant, whose amounts add up to what is due."""

import csv
import io
from collections.abc import Iterable, Iterator
from datetime import UTC
from decimal import Decimal
from typing import Final

from billing.documents import Document
from billing.exports.json_text import minor_units, printed_amount
from ledger.money import amount_text, currency_exponent

COLUMNS: Final = (
    "document_kind", "basis", "document_id", "number", "state", "issued_at", "due_date", "tenant_id", "customer_name",
    "posting_period", "period_start", "period_end", "currency", "corrects_document_id", "corrects_number", "row_kind", "line_no", "description", "service_start",
    "service_end", "feature", "provider", "model", "meter", "quantity", "unit_price", "per", "tax_category", "tax_rate",
    "exact_amount", "amount", "minor_units",
)  # fmt: skip
"""row_kind is the kind of a line (usage, fee, minimum, discount, owed_back, credit), tax, or grant: what prepaid credit pays."""

# What a spreadsheet takes for a formula, or for the mark that we put before one.
_FORMULA_STARTS: Final = frozenset("=+-@\t\r\n'|%")


def to_csv(documents: Iterable[Document]) -> str:
    """Return documents as CSV: a head, then a row for each line, tax and grant (negative).

    Shape: RFC 4180, UTF-8, decimal points, empty for nothing, dates ISO 8601, ends exclusive. Per document the column
    `amount` sums to what is due. A text that a spreadsheet would run as a formula has an apostrophe before it, and so
    has one that begins with an apostrophe: whoever reads takes one off.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(COLUMNS)
    for document in documents:
        writer.writerows(_rows(document))
    return out.getvalue()


def safe_text(text: str) -> str:
    """Return a text that no spreadsheet runs."""
    return f"'{text}" if text and text[0] in _FORMULA_STARTS else text


def _rows(document: Document) -> Iterator[list[str]]:
    exponent = currency_exponent(document.currency)
    issued_at = document.issued_at
    head = [
        document.kind,
        document.basis,
        document.document_id or "",
        safe_text(document.number or ""),
        document.state,
        issued_at.astimezone(UTC).isoformat().replace("+00:00", "Z") if issued_at else "",
        document.due_date.isoformat() if document.due_date else "",
        safe_text(document.tenant_id),
        safe_text(document.customer.name),
        f"{document.posting_period:%Y-%m}",
        document.period_start.isoformat(),
        document.period_end.isoformat(),
        document.currency,
        document.corrects_document_id or "",
        safe_text(document.corrects_number or ""),
    ]

    def money(amount: Decimal) -> list[str]:
        return [printed_amount(amount, exponent), str(minor_units(amount, exponent))]

    for line in document.lines:
        yield [
            *head,
            line.kind,
            str(line.line_no),
            safe_text(line.description),
            line.service_start.isoformat(),
            line.service_end.isoformat(),
            *(safe_text(each or "") for each in (line.feature, line.provider, line.model, line.meter)),
            *("" if each is None else amount_text(each) for each in (line.quantity, line.unit_price)),
            "" if line.per is None else str(line.per),
            safe_text(line.tax_category),
            "",
            amount_text(line.exact_amount),
            *money(line.amount),
        ]
    period = [document.period_start.isoformat(), document.period_end.isoformat()]
    nothing = [""] * 7
    for tax in document.taxes:
        words = ["tax", "", safe_text(tax.label), *period, *nothing]
        yield [
            *head,
            *words,
            safe_text(tax.category),
            amount_text(tax.rate),
            amount_text(tax.amount),
            *money(tax.amount),
        ]
    for credit in document.credits:
        taken = credit.amount.copy_negate()
        words = ["grant", "", safe_text(credit.description), *period, *nothing]
        yield [*head, *words, "", "", amount_text(taken), *money(taken)]
