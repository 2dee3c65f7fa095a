"""Credit notes: for usage from the rows that correct it, which then stand on no invoice; commercial ones without rows."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from hashlib import sha256
from typing import Any, Final

from msgspec import structs

from billing.agreements import NOTHING_BILLED, ItemLine, in_force, item_lines
from billing.crediting import Creditable, credit_note
from billing.documents import Document, Line
from billing.drafting import describe
from billing.errors import CreditRefused
from billing.folding import fold, read_rates
from billing.issuing import Terms, burn_credits, numbered, record_documents, take_numbers
from billing.months import (
    left_of,
    lock_periods,
    lock_tenants,
    read_billed,
    read_customers,
    read_issuers,
    read_items,
)
from billing.rounding import cut_money
from billing.store import Issued, find_document, insert_documents
from billing.usage_lines import UsageLine, lines_of
from ledger import failpoints
from ledger.approvals import Awaiting, second_person
from ledger.database import Connection
from ledger.money import EXACT, amount_text
from ledger.times import month_after

_ZERO: Final = Decimal(0)


@dataclass(frozen=True, slots=True)
class Credited:
    """A credit note, made or as it would be."""

    document: Document
    entry_count: int
    """Rows of the ledger that it is made of."""


async def credit_usage(
    connection: Connection,
    actor: str,
    invoice: str,
    *,
    reason: str,
    request_ids: Collection[str] | None = None,
    needed: Collection[str] = (),
    dry_run: bool = False,
) -> Credited | Awaiting:
    """Give back what was corrected since of an invoice's usage, by its id or number: all of it, or of some requests.

    It is made of the rows that correct entries of the invoice's month, were posted in later months and stand on no document
    yet; from then on they stand on no invoice. Raises CreditRefused where they give nothing back, or more than is left.
    """
    _check_reason(reason)
    async with connection.transaction(force_rollback=dry_run):
        of = await _locked(connection, invoice)
        month = of.invoice.posting_period
        if any(line.exchange_rate is not None for line in of.invoice.lines):
            raise CreditRefused(
                f"invoice {of.invoice.number} has converted amounts: what corrects them stands on the next invoice, converted too"
            )
        cursor = await connection.execute(
            "select posting_period from ledger.periods where tenant_id = %s and posting_period > %s order by 1",
            [of.invoice.tenant_id, month],
        )
        later = [row[0] for row in await cursor.fetchall()]
        await lock_periods(connection, of.invoice.tenant_id, later)
        found = await _correcting(connection, of.invoice, request_ids)
        if not found:
            raise CreditRefused(
                f"nothing corrects the usage of invoice {of.invoice.number} that stands on no document yet"
            )
        usage: list[UsageLine] = []
        for posting_period, its_rows in found.items():
            groups = (await fold(connection, posting_period, [of.invoice.tenant_id], its_rows)).get(
                of.invoice.tenant_id, []
            )
            usage += lines_of(groups, await read_rates(connection, groups))
        lines = await _usage_lines(connection, of, usage)
        named = ",".join(f"{period}:{entry_id}" for period, ids in found.items() for entry_id in ids)
        detail = {"entries": sha256(named.encode()).hexdigest()}
        note = credit_note(of, lines, "usage", reason)
        return await _issue(connection, actor, of, note, found, needed, reason, detail, dry_run=dry_run)


async def credit_commercially(
    connection: Connection,
    actor: str,
    invoice: str,
    *,
    reason: str,
    lines: Mapping[int, Decimal | None] | None = None,
    amount: Decimal | None = None,
    needed: Collection[str] = (),
    dry_run: bool = False,
) -> Credited | Awaiting:
    """Give back lines of an invoice, each whole (None) or in part, or an amount before tax of all of it; without entries.

    Raises CreditRefused where that is more than is left.
    """
    _check_reason(reason)
    if (lines is None) == (amount is None):
        raise CreditRefused("say either which lines are given back or which amount")
    async with connection.transaction(force_rollback=dry_run):
        of = await _locked(connection, invoice)
        if lines is not None:
            chosen = [line_back(of, number, part) for number, part in sorted(lines.items())]
        else:
            assert amount is not None
            chosen = [amount_back(of, amount)]
        note = credit_note(of, chosen, "commercial", reason)
        detail = {"lines": {str(number): part for number, part in _texts(lines)}} if lines else {}
        return await _issue(connection, actor, of, note, {}, needed, reason, detail, dry_run=dry_run)


def _texts(lines: Mapping[int, Decimal | None]) -> list[tuple[int, str]]:
    return [(number, "all" if part is None else amount_text(part)) for number, part in sorted(lines.items())]


def _check_reason(reason: str) -> None:
    if not reason.strip():
        raise CreditRefused("a credit note needs a reason: it is printed on it")


async def _locked(connection: Connection, name: str) -> Creditable:
    """Return an invoice with what is left of it; nobody else issues, voids or credits for its tenant meanwhile."""
    found = await find_document(connection, name)
    if found.kind != "invoice":
        raise CreditRefused(f"{found.number} is a credit note: only invoices are credited")
    await lock_tenants(connection, [found.tenant_id])
    await lock_periods(connection, found.tenant_id, [found.posting_period])
    (of,) = await left_of(connection, [found.document_id or ""])
    if of.invoice.state == "voided":
        raise CreditRefused(f"invoice {found.number} is voided: nothing of it is owed")
    return of


# --- For usage --------------------------------------------------------------------------------------------------------


async def _correcting(
    connection: Connection, invoice: Document, request_ids: Collection[str] | None
) -> dict[date, list[int]]:
    """Return the rows that correct entries of an invoice's month and stand on no document, by the month they are posted in."""
    cursor = await connection.execute(
        """
        select e.posting_period, e.entry_id
        from ledger.entries as e
        join ledger.entries as o on o.posting_period = %(month)s and o.entry_id = e.corrects_entry_id
        where
            e.posting_period > %(month)s
            and e.tenant_id = %(tenant_id)s
            and e.kind in ('reversal', 'adjustment', 'true_up')
            and e.charge_currency = %(currency)s
            and e.charge_amount is not null
            and (%(request_ids)s::text[] is null or e.request_id = any(%(request_ids)s))
            and not exists (
                select
                from billing.credited_entries as c
                where c.posting_period = e.posting_period and c.entry_id = e.entry_id
            )
            -- On an invoice that counts, it has been given back already.
            and e.posting_period <> all(%(taken)s::date[])
        order by 1, 2
        """,
        {
            "month": invoice.posting_period,
            "tenant_id": invoice.tenant_id,
            "currency": invoice.currency,
            "request_ids": None if request_ids is None else sorted(request_ids),
            "taken": await _taken_by_invoices(connection, invoice),
        },
    )
    found: dict[date, list[int]] = {}
    for posting_period, entry_id in await cursor.fetchall():
        found.setdefault(posting_period, []).append(entry_id)
    return found


async def _taken_by_invoices(connection: Connection, invoice: Document) -> list[date]:
    """Return the months whose rows in the invoice's currency stand on an invoice that counts.

    That is the one in this currency, or in the one that the customer has chosen. Its lines do not tell: rows that come to
    nothing together have none.
    """
    customers = await read_customers(connection, [invoice.tenant_id])
    cursor = await connection.execute(
        "select d.posting_period, d.currency::text, (d.issued_at at time zone d.time_zone)::date from billing.documents as d"
        " where d.tenant_id = %s and d.kind = 'invoice'"
        " and not exists (select from billing.voids as v where v.document_id = d.document_id)",
        [invoice.tenant_id],
    )
    found = []
    for month, currency, issued_on in await cursor.fetchall():
        terms = in_force(customers, month_after(month) - timedelta(days=1)) or in_force(customers, issued_on)
        if currency == invoice.currency or (terms is not None and terms.invoice_currency == currency):
            found.append(month)
    return found


async def _usage_lines(connection: Connection, of: Creditable, usage: Sequence[UsageLine]) -> list[Line]:
    """Return the lines of what is given back, less the discounts that were given on it and what a minimum asks for instead."""
    tenant_id = of.invoice.tenant_id
    categories = _categories(of, {line.service_month for line in usage})
    back = [
        structs.replace(
            line,
            amount=EXACT.minus(line.amount),
            quantity=None if line.quantity is None else EXACT.minus(line.quantity),
        )
        for line in usage
    ]
    lines = [
        Line(
            0, "usage", describe(line), line.service_month, month_after(line.service_month), line.feature, line.provider,
            line.model, line.meter, line.quantity, line.unit_price, line.per, line.amount, _ZERO,
            categories[line.service_month], charged_amount=line.amount, charged_currency=line.currency,
        )
        for line in back
    ]  # fmt: skip
    items = [item for item in await read_items(connection, [tenant_id]) if item.kind != "fee"]
    billed = (await read_billed(connection, tenant_id)).get(of.invoice.currency, NOTHING_BILLED)
    agreed = item_lines(
        items,
        [(line, line.amount) for line in usage],
        of.invoice.posting_period,
        of.invoice.currency,
        billed,
        categories,
    )
    return [*lines, *(_item_back(line, categories[line.start]) for line in agreed)]


def _item_back(line: ItemLine, category: str) -> Line:
    return Line(
        0, line.kind, line.description, line.start, line.end, line.feature, None, line.model, None,
        None, None, None, EXACT.minus(line.amount), _ZERO, category, line.item_id,
    )  # fmt: skip


def _categories(of: Creditable, months: Collection[date]) -> dict[date, str]:
    """Return the tax category that the invoice's usage of each month of service stands under."""
    billed = {line.service_start: line.tax_category for line in of.invoice.lines if line.kind == "usage"}
    found = {}
    for month in months:
        # What came to nothing has no line.
        if month not in billed and len(set(billed.values())) != 1:
            raise CreditRefused(f"invoice {of.invoice.number} bills no usage of {month:%Y-%m}")
        found[month] = billed.get(month, next(iter(billed.values())))
    return found


# --- Commercial -------------------------------------------------------------------------------------------------------


def line_back(of: Creditable, number: int, part: Decimal | None) -> Line:
    """Return the line that gives back a line of an invoice: what is left of it (None), or a part as printed. Errors: CreditRefused."""
    line = next((each for each in of.invoice.lines if each.line_no == number), None)
    if line is None:
        raise CreditRefused(f"invoice {of.invoice.number} has no line {number}")
    exact, printed = of.lines[number]
    if part is None and not exact:
        raise CreditRefused(f"line {number} of invoice {of.invoice.number} was given back before")
    if part is not None:
        _check_amount(part, printed, f"line {number} of invoice {of.invoice.number}", of.invoice.currency)
    return Line(
        0, "credit", line.description, line.service_start, line.service_end, line.feature, line.provider, line.model,
        line.meter, None, None, None, exact if part is None or part == printed else part, _ZERO, line.tax_category,
        corrects_line_no=number,
    )  # fmt: skip


def amount_back(of: Creditable, amount: Decimal) -> Line:
    """Return the line that gives back an amount, as printed and before tax, of a whole invoice. Errors: CreditRefused."""
    categories = [name for name, left in of.left.items() if left.base]
    if not categories:
        raise CreditRefused(f"nothing is left of invoice {of.invoice.number}: all of it was given back")
    if len(categories) != 1:
        raise CreditRefused(
            f"invoice {of.invoice.number} has {len(categories)} tax categories with something left: say which lines"
        )
    left = of.left[categories[0]]
    _check_amount(amount, left.base, f"invoice {of.invoice.number} before tax", of.invoice.currency)
    return Line(
        0, "credit", f"Credit on invoice {of.invoice.number}", of.invoice.period_start, of.invoice.period_end, None, None,
        None, None, None, None, None, left.exact if amount == left.base else amount, _ZERO, categories[0],
    )  # fmt: skip


def _check_amount(amount: Decimal, left: Decimal, of: str, currency: str) -> None:
    """Hold an amount against what is left in print: all of it, which may be rounded up, is what was billed."""
    if not amount.is_finite() or amount <= 0 or amount != cut_money(amount, currency):
        raise CreditRefused(f"{amount} is no amount above zero that {currency} can print")
    if amount > left:
        raise CreditRefused(f"{amount_text(amount)} is more than the {left:f} {currency} that is left of {of}")


# --- Writing ----------------------------------------------------------------------------------------------------------


async def _issue(
    connection: Connection,
    actor: str,
    of: Creditable,
    note: Document,
    entry_ids: Mapping[date, Sequence[int]],
    needed: Collection[str],
    reason: str,
    detail: Mapping[str, Any],
    *,
    dry_run: bool,
) -> Credited | Awaiting:
    """Number and write a credit note; in a dry run, which is taken back, nobody is asked and the draft is what was made."""
    count = sum(len(ids) for ids in entry_ids.values())
    what = {
        "invoice": of.invoice.number,
        "tenant_id": note.tenant_id,
        "basis": note.basis,
        "total": amount_text(note.total),
        **detail,
    }
    agreed = await second_person(
        connection, () if dry_run else needed, "credit-notes.issue", what, actor=actor, reason=reason
    )
    if isinstance(agreed, Awaiting):
        return agreed
    cursor = await connection.execute(
        "select clock_timestamp(), d.entity_id from billing.documents as d where d.document_id = %s",
        [of.invoice.document_id],
    )
    row = await cursor.fetchone()
    assert row is not None
    now: datetime = row[0]
    entity_id: str = row[1]
    issuer = in_force(
        [each for each in await read_issuers(connection) if each.entity_id == entity_id], now.astimezone(UTC).date()
    )
    if issuer is None:
        raise CreditRefused(f"entity {entity_id} has no issuer data")
    value = await take_numbers(connection, entity_id, "credit_note", 1)
    issued = Issued(
        document=numbered(note, issuer, value, now),
        entity_id=entity_id,
        number_value=value,
        revision=None,
        close_number=None,
        issued_with_document_id=None,
        actor=actor,
        second_person=agreed.second_person,
    )
    await insert_documents(connection, [issued])
    if count:
        await connection.execute(
            "insert into billing.credited_entries (posting_period, entry_id, tenant_id, document_id)"
            " select n.posting_period, n.entry_id, %s, %s from unnest(%s::date[], %s::bigint[]) as n (posting_period, entry_id)",
            [
                note.tenant_id,
                issued.document.document_id,
                [period for period, ids in entry_ids.items() for _ in ids],
                [each for ids in entry_ids.values() for each in ids],
            ],
        )
    await burn_credits(connection, actor, [issued.document])
    terms = Terms(actor, reason)
    await record_documents(connection, terms, [issued], {"invoice": of.invoice.number, "basis": note.basis})
    failpoints.hit("credit.before_commit")
    return Credited(note if dry_run else issued.document, count)
