"""A document as JSON: every amount as decimal digits and in minor units (`document.schema.json` says it field by field)."""

import json
from dataclasses import fields
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from pathlib import Path
from typing import Any, Final

from billing.documents import Document, Line, Party
from ledger.money import EXACT, amount_text, currency_exponent

SCHEMA: Final = Path(__file__).with_name("document.schema.json")
_WIDE: Final = Context(prec=EXACT.prec)
FORMAT: Final = "tallystick.document.v1"


def to_json(document: Document) -> str:
    """Return a document as one JSON object, ending with a line end.

    Units: `amount` is decimal digits at the currency's ISO 4217 exponent, `minor_units` the same as a whole number,
    `exact_amount` unrounded. Numbers that are money are texts, so that no reader makes a float of them.
    """
    return json.dumps(to_object(document), ensure_ascii=False, indent=2) + "\n"


def to_object(document: Document) -> dict[str, Any]:
    """Return the object that `to_json` writes."""
    exponent = currency_exponent(document.currency)

    def money(amount: Decimal) -> dict[str, Any]:
        return {"amount": printed_amount(amount, exponent), "minor_units": minor_units(amount, exponent)}

    return {
        "format": FORMAT,
        "kind": document.kind,
        "basis": document.basis,
        "document_id": document.document_id,
        "number": document.number,
        "state": document.state,
        "issued_at": document.issued_at and _instant(document.issued_at),
        "due_date": document.due_date and document.due_date.isoformat(),
        "issuer": _party(document.issuer),
        "customer": _party(document.customer),
        "tenant_id": document.tenant_id,
        "posting_period": _month(document.posting_period),
        "period_start": document.period_start.isoformat(),
        "period_end": document.period_end.isoformat(),
        "time_zone": document.time_zone,
        "currency": document.currency,
        "currency_exponent": exponent,
        "language": document.language,
        "corrects_document_id": document.corrects_document_id,
        "corrects_number": document.corrects_number,
        "reason": document.reason,
        "notes": list(document.notes),
        "lines": [{**_line(line, document), **money(line.amount)} for line in document.lines],
        "taxes": [
            {
                "category": tax.category,
                "label": tax.label,
                "rate": amount_text(tax.rate),
                "base": money(tax.base),
                **money(tax.amount),
            }
            for tax in document.taxes
        ],
        "credits": [
            {"grant_id": credit.grant_id, "description": credit.description, **money(credit.amount)}
            for credit in document.credits
        ],
        "exact_subtotal": amount_text(document.exact_subtotal),
        "subtotal": money(document.subtotal),
        "tax_total": money(document.tax_total),
        "total": money(document.total),
        "credit_total": money(document.credit_total),
        "amount_due": money(document.amount_due),
        "digest": document.digest,
    }


def printed_amount(amount: Decimal, exponent: int) -> str:
    """Return an amount with exactly the places of its currency; one that has more is an error of whoever built it."""
    fixed = amount.quantize(Decimal(1).scaleb(-exponent), context=_WIDE)
    if fixed != amount:
        raise ValueError(f"{amount} has more places than {exponent}")
    return amount_text(fixed)


def minor_units(amount: Decimal, exponent: int) -> int:
    """Return an amount in the currency's smallest unit: cents, yen, fils."""
    scaled = EXACT.scaleb(amount, exponent)
    if scaled != int(scaled):
        raise ValueError(f"{amount} has more places than {exponent}")
    return int(scaled)


def _line(line: Line, document: Document) -> dict[str, Any]:
    return {
        "line_no": line.line_no,
        "kind": line.kind,
        "description": line.description,
        "service_start": line.service_start.isoformat(),
        "service_end": line.service_end.isoformat(),
        "is_late": line.is_late(document.period_start),
        "feature": line.feature,
        "provider": line.provider,
        "model": line.model,
        "meter": line.meter,
        "quantity": None if line.quantity is None else amount_text(line.quantity),
        "unit_price": None if line.unit_price is None else amount_text(line.unit_price),
        "per": line.per,
        "tax_category": line.tax_category,
        "exact_amount": amount_text(line.exact_amount),
        "charged_amount": None if line.charged_amount is None else amount_text(line.charged_amount),
        "charged_currency": line.charged_currency,
        "exchange_rate": None if line.exchange_rate is None else amount_text(line.exchange_rate),
        "exchange_rate_at": line.exchange_rate_at and _instant(line.exchange_rate_at),
        "corrects_line_no": line.corrects_line_no,
    }


def _party(party: Party) -> dict[str, Any]:
    return {
        field.name: list(value) if isinstance(value := getattr(party, field.name), tuple) else value
        for field in fields(party)
    }


def _instant(at: datetime) -> str:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _month(day: date) -> str:
    return f"{day:%Y-%m}"
