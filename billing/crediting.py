"""What is given back of an invoice, never more than was billed; of the last part exactly what is left. Pure.

A credit note gives back first what was paid in money, then, the last one first, what grants paid: as usage burns them, so it
frees them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from decimal import Decimal
from typing import Final

from msgspec import structs

from billing.digests import digest_of
from billing.documents import Basis, CreditApplied, Document, Line, Tax
from billing.errors import CreditRefused
from billing.rounding import plain, round_money, spread, total
from ledger.money import EXACT, amount_text
from ledger.times import month_after

_ZERO: Final = Decimal(0)


@dataclass(frozen=True, slots=True)
class Left:
    """What of a tax category of an invoice no credit note has given back."""

    exact: Decimal
    base: Decimal
    tax: Decimal


@dataclass(frozen=True, slots=True)
class Creditable:
    """A live invoice and what of it can still be given back."""

    invoice: Document
    left: Mapping[str, Left]
    """By tax category."""
    lines: Mapping[int, tuple[Decimal, Decimal]]
    """By line: exact and printed."""
    due: Decimal
    """Paid, or to be paid, in money."""
    credits: Sequence[CreditApplied]
    """Paid by grants, in the order in which they burnt."""


def creditable(invoice: Document, notes: Sequence[Document]) -> Creditable:
    """Return what is left of an invoice after the credit notes that correct it."""
    left = {}
    for tax in invoice.taxes:
        given = [each for note in notes for each in note.taxes if each.category == tax.category]
        left[tax.category] = Left(
            _less(_exact(invoice, tax.category), [_exact(note, tax.category) for note in notes]),
            _less(tax.base, [each.base for each in given]),
            _less(tax.amount, [each.amount for each in given]),
        )
    lines = {}
    for line in invoice.lines:
        back = [each for note in notes for each in note.lines if each.corrects_line_no == line.line_no]
        lines[line.line_no] = (
            _less(line.exact_amount, [each.exact_amount for each in back]),
            _less(line.amount, [each.amount for each in back]),
        )
    due = _less(invoice.amount_due, [note.amount_due for note in notes])
    credits = []
    for paid in invoice.credits:
        returned = [each.amount for note in notes for each in note.credits if each.grant_id == paid.grant_id]
        rest = _less(paid.amount, returned)
        if rest > 0:
            credits.append(replace(paid, amount=rest))
    return Creditable(invoice, left, lines, due, credits)


def _less(amount: Decimal, taken: Iterable[Decimal]) -> Decimal:
    return EXACT.subtract(amount, total(taken))


def _exact(document: Document, category: str) -> Decimal:
    return total(line.exact_amount for line in document.lines if line.tax_category == category)


def credit_note(of: Creditable, lines: Sequence[Line], basis: Basis, reason: str) -> Document:
    """Return a credit note over an invoice: lines with exact amounts above zero in sum, printed here.

    A line that names one of the invoice gives back that line: all of it as it was printed. Others are rounded once for each
    tax category. Errors: CreditRefused where more would be given back than is left, or nothing that can be printed.
    """
    invoice, currency = of.invoice, of.invoice.currency
    rates = {tax.category: tax for tax in invoice.taxes}
    printed: dict[int, Decimal] = {}
    taxes: list[Tax] = []
    for category in sorted({line.tax_category for line in lines}):
        places = [place for place, line in enumerate(lines) if line.tax_category == category]
        left = of.left.get(category)
        if left is None:
            raise CreditRefused(f"invoice {invoice.number} has nothing under tax category {category!r}")
        exact = total(lines[place].exact_amount for place in places)
        if exact <= 0:
            raise CreditRefused(f"{amount_text(exact)} {currency} ({category}) gives nothing back")
        if exact > left.exact:
            raise CreditRefused(
                f"{amount_text(exact)} {currency} ({category}) is more than the {plain(left.exact):f} that is left of"
                f" invoice {invoice.number}"
            )
        named = [_whole_line(of, lines[place]) for place in places]
        if all(amount is not None for amount in named):
            amounts = [amount for amount in named if amount is not None]
            base = total(amounts)
            if base > left.base:
                raise CreditRefused(
                    f"{amount_text(base)} {currency} ({category}) is more than the {plain(left.base):f} that is left of"
                    f" invoice {invoice.number}"
                )
        else:
            exacts = [lines[place].exact_amount for place in places]
            rounded = round_money(exact, currency)
            amounts = spread(rounded, exacts, currency)
            # The last part is what is left, so that all parts together are what was printed.
            base = left.base if exact == left.exact else min(rounded, left.base)
            largest = max(range(len(amounts)), key=lambda place: amounts[place])
            amounts[largest] = EXACT.add(amounts[largest], EXACT.subtract(base, rounded))
        printed.update(zip(places, amounts, strict=True))
        tax = min(round_money(EXACT.multiply(base, rates[category].rate), currency), left.tax)
        taxes.append(replace(rates[category], base=base, amount=left.tax if base == left.base else tax))
    subtotal, tax_total = total(tax.base for tax in taxes), total(tax.amount for tax in taxes)
    whole = EXACT.add(subtotal, tax_total)
    if not whole:
        raise CreditRefused(
            f"it prints as {whole:f} {currency}: nothing of invoice {invoice.number} would be given back"
        )
    credits = _into_grants(of, whole)
    credit_total = total(each.amount for each in credits)
    document = Document(
        kind="credit_note",
        document_id=None,
        number=None,
        issued_at=None,
        state="draft",
        issuer=invoice.issuer,
        customer=invoice.customer,
        tenant_id=invoice.tenant_id,
        posting_period=invoice.posting_period,
        period_start=invoice.period_start,
        period_end=invoice.period_end,
        time_zone=invoice.time_zone,
        currency=currency,
        language=invoice.language,
        lines=tuple(
            structs.replace(line, line_no=place + 1, amount=printed[place]) for place, line in enumerate(lines)
        ),
        taxes=tuple(taxes),
        credits=credits,
        exact_subtotal=total(line.exact_amount for line in lines),
        subtotal=subtotal,
        tax_total=tax_total,
        total=whole,
        credit_total=credit_total,
        amount_due=EXACT.subtract(whole, credit_total),
        due_date=None,
        digest="",
        corrects_number=invoice.number,
        corrects_document_id=invoice.document_id,
        basis=basis,
        reason=reason,
    )
    return document.marked(digest=digest_of(document))


def _whole_line(of: Creditable, line: Line) -> Decimal | None:
    """Return what a line that names one of the invoice gives back in print; None where it names none."""
    if line.corrects_line_no is None:
        return None
    exact, printed = of.lines.get(line.corrects_line_no, (_ZERO, _ZERO))
    if line.exact_amount > exact:
        raise CreditRefused(
            f"{amount_text(line.exact_amount)} is more than the {plain(exact):f} that is left of line"
            f" {line.corrects_line_no} of invoice {of.invoice.number}"
        )
    if line.exact_amount == exact:
        return printed
    return min(round_money(line.exact_amount, of.invoice.currency), printed)


def _into_grants(of: Creditable, whole: Decimal) -> tuple[CreditApplied, ...]:
    """Return what of a total goes back into grants: what money did not pay, the grant that burnt last first."""
    rest = EXACT.subtract(whole, min(whole, max(of.due, _ZERO)))
    found = []
    for each in reversed(of.credits):
        amount = min(rest, each.amount)
        if amount > 0:
            found.append(replace(each, amount=amount))
            rest = EXACT.subtract(rest, amount)
    return tuple(found)


# --- What a month owes back -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OwedBack:
    """What a month owes back, placed on the invoices that it corrects."""

    notes: Sequence[Document] = ()
    lines: Sequence[tuple[str, date, Decimal]] = ()
    """What of it stands on credit notes: tax category, month of the invoice, exact."""
    unplaced: Mapping[str, Decimal] = field(default_factory=dict)
    """What no live invoice billed, exact, where it comes to a minor unit at least."""


def owed_back_notes(
    owed: Mapping[str, Decimal], invoices: Sequence[Creditable], month: date, currency: str
) -> OwedBack:
    """Place what a month owes back, by tax category, on invoices in their order, of each as much as is left."""
    rest = dict(owed)
    notes, placed = [], []
    for each in invoices:
        lines = []
        for category, amount in rest.items():
            left = each.left.get(category)
            take = min(amount, left.exact if left is not None else _ZERO)
            # What prints as nothing stays where it is: it is less than anybody can pay back.
            if left is None or not left.base or round_money(take, currency) <= 0:
                continue
            start = each.invoice.posting_period
            lines.append(
                Line(
                    0, "credit", f"Usage of {start:%Y-%m} given back", start, month_after(start), None, None, None, None,
                    None, None, None, take, _ZERO, category,
                )
            )  # fmt: skip
            rest[category] = EXACT.subtract(amount, take)
            placed.append((category, start, take))
        if lines:
            notes.append(credit_note(each, lines, "owed_back", f"What {month:%Y-%m} owes back beyond its own usage"))
    unplaced = {category: amount for category, amount in rest.items() if round_money(amount, currency) > 0}
    return OwedBack(tuple(notes), tuple(placed), unplaced)
