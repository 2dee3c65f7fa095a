"""Short calls for tests of invoices: who issues and pays, usage that comes to an amount, a month closed and issued."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final

from billing.agreement_files import Agreements, apply_agreements
from billing.agreements import Customer, Issuer, Item, TaxRate
from billing.documents import Document
from billing.issuing import Outcome, Terms, issue_month, preview
from billing.months import Drafted
from billing.store import read_documents
from ledger import closing
from ledger.corrections import Request, Reverse, Wanted, correct
from ledger.database import Connection
from tests.factories import make_event
from tests.support.ledger import Ledger

JANUARY, FEBRUARY, MARCH, APRIL = (date(2026, month, 1) for month in (1, 2, 3, 4))
LATER: Final = "2026-06-15T00:00:00Z"
TODAY: Final = datetime.now(UTC).date()
JANE: Final = Terms("jane")

ISSUER: Final = Issuer(
    entity_id="entity-1", effective_from=date(2020, 1, 1), name="Northwind Inference GmbH",
    address=("Hafenstraße 12", "20457 Hamburg"), country="DE", tax_id="DE123456789", invoice_prefix="NW-",
    credit_note_prefix="NW-C-", payment_days=14,
)  # fmt: skip
CUSTOMER: Final = Customer(
    tenant_id="t-alpha", effective_from=date(2020, 1, 1), name="Alpha Ltd", address=("1 High Street", "London"),
    country="GB", tax_category="none", language="en",
)  # fmt: skip


def dollars(event_id: str, amount: str, at: str = "2026-01-10T00:00:00Z", **overrides: Any) -> dict[str, Any]:
    """An event that comes to an amount: tokens of 1.00 a million."""
    tokens = int(Decimal(amount) * 1_000_000)
    return make_event(event_id, time=at, usage={"prompt_tokens": tokens, "completion_tokens": 0}, **overrides)


def tax(rate: str, category: str = "none") -> TaxRate:
    return TaxRate(
        entity_id="entity-1",
        category=category,
        effective_from=date(2020, 1, 1),
        rate=Decimal(rate),
        label=f"tax {rate}",
    )


def fee(item_id: str = "fee-1", amount: str = "10.00", **more: Any) -> Item:
    given: dict[str, Any] = {
        "tenant_id": "t-alpha", "period": "month", "timing": "arrears", "starts_on": JANUARY, "currency": "USD",
    }  # fmt: skip
    return Item(item_id=item_id, kind="fee", description="Platform fee", amount=Decimal(amount), **{**given, **more})


def discount(item_id: str = "less-1", **more: Any) -> Item:
    return Item(**{"item_id": item_id, "tenant_id": "t-alpha", "kind": "discount", "description": "Less", "starts_on": JANUARY,
                   **more})  # fmt: skip


async def agree(
    operator: Connection,
    *tenants: str,
    tax_rate: str = "0",
    items: Sequence[Item] = (),
    bounds: Sequence[Any] = (),
    **customer: Any,
) -> None:
    """Let entity-1 issue to tenants, t-alpha unless others are named."""
    customers = [replace(CUSTOMER, tenant_id=each, **customer) for each in tenants or ("t-alpha",)]
    await apply_agreements(operator, "jane", Agreements([ISSUER], [tax(tax_rate)], customers, items, bounds))


async def close(operator: Connection, *months: date, tenant_id: str | None = "t-alpha") -> None:
    for month in months:
        await closing.close_periods(operator, "jane", month, tenant_id=tenant_id)
    await closing.seal_pending(operator)


async def issue(
    operator: Connection, month: date = JANUARY, tenant_id: str = "t-alpha", terms: Terms = JANE
) -> Outcome:
    """Issue a tenant's month that has one currency."""
    (outcome,) = await issue_month(operator, tenant_id, month, terms)
    return outcome


async def issued(
    operator: Connection, month: date = JANUARY, tenant_id: str = "t-alpha", terms: Terms = JANE
) -> Document:
    """Close a tenant's month, issue it, and return the invoice as it stands."""
    await close(operator, month, tenant_id=tenant_id)
    outcome = await issue(operator, month, tenant_id, terms)
    assert outcome.result == "issued", outcome
    (document,) = await read_documents(operator, [outcome.document_id or ""])
    return document


async def draft(operator: Connection, month: date = JANUARY, tenant_id: str = "t-alpha") -> Drafted:
    return await preview(operator, tenant_id, month, now=datetime.now(UTC))


async def reverse(writer: Connection, event_id: str, tenant_id: str = "t-alpha") -> None:
    """Negate all that stands of an event's request."""
    await correct(writer, Wanted(Reverse(Request(tenant_id, f"req-{event_id}"))), actor="jane", reason="a mistake")


def amounts(document: Document) -> dict[tuple[str, str], Decimal]:
    """Exact amounts of a document by kind and service month."""
    found: dict[tuple[str, str], Decimal] = {}
    for line in document.lines:
        key = (line.kind, f"{line.service_start:%Y-%m}")
        found[key] = found.get(key, Decimal(0)) + line.exact_amount
    return found


def owed(ledger: Ledger, tenant_id: str = "t-alpha") -> Mapping[str, Decimal]:
    """What a tenant owes over all documents that count, by currency."""
    return dict(
        ledger.rows(
            "select currency::text, sum(owed) from billing.live_documents where tenant_id = %s group by 1", tenant_id
        )
    )


def exactly_owed(ledger: Ledger, tenant_id: str = "t-alpha") -> Decimal:
    """The exact subtotals of all documents that count, before rounding."""
    return Decimal(
        ledger.value(
            "select coalesce(sum(case kind when 'invoice' then exact_subtotal else -exact_subtotal end), 0)"
            " from billing.live_documents where tenant_id = %s",
            tenant_id,
        )
    )
