"""A builder of documents: amounts add up by themselves, and each call says only what its test is about."""

from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final, cast

from msgspec import structs

from billing.documents import CreditApplied, Document, Line, Party, Tax
from ledger.money import currency_exponent

ISSUER: Final = Party(
    "entity-1", "Northwind Inference GmbH", ("Hafenstraße 12", "20457 Hamburg"), "DE", "DE123456789",
    "billing@northwind.example",
)  # fmt: skip
CUSTOMER: Final = Party("t-alpha", "Globex Corporation", ("1 Main Street", "Springfield"), "US")
PERIOD: Final = (date(2026, 1, 1), date(2026, 2, 1))


def make_line(amount: str = "10.00", **overrides: Any) -> Line:
    """Return a line of a million input tokens at the amount, printed as it is exactly."""
    values: dict[str, Any] = {
        "line_no": 1,
        "kind": "usage",
        "description": "gpt-5-mini: uncached input tokens",
        "service_start": PERIOD[0],
        "service_end": PERIOD[1],
        "feature": "chat",
        "provider": "openai",
        "model": "gpt-5-mini",
        "meter": "uncached_input_tokens",
        "quantity": Decimal(1_000_000),
        "unit_price": Decimal(amount),
        "per": 1_000_000,
        "exact_amount": Decimal(amount),
        "amount": Decimal(amount),
        "tax_category": "standard",
    }
    return Line(**{**values, **overrides})


def make_document(
    lines: Iterable[Line] = (), *, rate: str | None = "0.19", credits: Sequence[CreditApplied] = (), **overrides: Any
) -> Document:
    """Return an issued invoice in EUR over lines, numbered anew, all taxed at one rate."""
    numbered = [structs.replace(line, line_no=number) for number, line in enumerate(lines or [make_line()], 1)]
    currency = overrides.get("currency", "EUR")
    subtotal = sum((line.amount for line in numbered), Decimal(0))
    cent = Decimal(1).scaleb(-currency_exponent(currency))
    taxes = [] if rate is None else [
        Tax("standard", f"VAT {Decimal(rate) * 100:.0f} %", Decimal(rate), subtotal, (subtotal * Decimal(rate)).quantize(cent, "ROUND_HALF_UP"))
    ]  # fmt: skip
    if rate is None:
        taxes = [Tax("none", "Not taxed", Decimal(0), subtotal, Decimal(0))]
    tax_total = sum((tax.amount for tax in taxes), Decimal(0))
    credit_total = sum((credit.amount for credit in credits), Decimal(0))
    values: dict[str, Any] = {
        "kind": "invoice",
        "document_id": "inv-1",
        "number": "NW-2026-0001",
        "issued_at": datetime(2026, 2, 4, 9, 30, tzinfo=UTC),
        "state": "issued",
        "issuer": ISSUER,
        "customer": CUSTOMER,
        "tenant_id": "t-alpha",
        "posting_period": PERIOD[0],
        "period_start": PERIOD[0],
        "period_end": PERIOD[1],
        "time_zone": "Europe/Berlin",
        "currency": currency,
        "language": "en",
        "lines": numbered,
        "taxes": taxes,
        "credits": list(credits),
        "exact_subtotal": sum((line.exact_amount for line in numbered), Decimal(0)),
        "subtotal": subtotal,
        "tax_total": tax_total,
        "total": subtotal + tax_total,
        "credit_total": credit_total,
        "amount_due": subtotal + tax_total - credit_total,
        "due_date": date(2026, 3, 6),
        "digest": "5f" * 32,
    }
    return cast("Document", Document(**{**values, **overrides}))
