"""What stands on an invoice and on a credit note: frozen values that add up, or cannot be built. Pure."""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal, localcontext
from typing import Literal

import msgspec

from ledger.money import EXACT, currency_exponent

LineKind = Literal["usage", "fee", "minimum", "discount", "owed_back", "credit"]
"""usage: the fold of entries. fee, minimum, discount: agreed, outside the usage proof. owed_back: what of a month that owes
back stands on a credit note instead. credit: a line of a credit note."""
Basis = Literal["period", "usage", "commercial", "owed_back"]
"""period: an invoice. Of a credit note: usage, made of reversals; commercial, without entries; owed_back, the rest of a month."""


@dataclass(frozen=True, slots=True)
class Party:
    """Who issues or pays, as printed: copied at issue, so that a later change of address moves no document."""

    party_id: str
    name: str
    address: tuple[str, ...] = ()
    country: str | None = None
    tax_id: str | None = None
    email: str | None = None


# A run makes hundreds of thousands of them: structs take a sixth of the time.
class Line(msgspec.Struct, frozen=True, gc=False):
    """One line of a document. `exact_amount` is unrounded; `amount` is what is printed, at the currency's exponent."""

    line_no: int
    kind: LineKind
    description: str
    service_start: date
    service_end: date
    """Exclusive."""
    feature: str | None
    provider: str | None
    model: str | None
    meter: str | None
    quantity: Decimal | None
    """In the meter's unit; None where the line is an amount."""
    unit_price: Decimal | None
    """For `per` units, unrounded; None where entries of the line have several."""
    per: int | None
    exact_amount: Decimal
    amount: Decimal
    tax_category: str
    item_id: str | None = None
    """The agreed item that it comes from."""
    charged_amount: Decimal | None = None
    """Of usage: as posted in the ledger, in `charged_currency`."""
    charged_currency: str | None = None
    exchange_rate: Decimal | None = None
    """What one of `charged_currency` is in the document's; None where the two are one."""
    exchange_rate_at: datetime | None = None
    """Since when that rate is in force."""
    corrects_line_no: int | None = None
    """Of a credit note: the line of the invoice that it gives back."""

    def is_late(self, period_start: date) -> bool:
        """Say whether the line's service period lies before the month that it is billed in."""
        return self.service_start < period_start


@dataclass(frozen=True, slots=True)
class Tax:
    """Tax of one category on a document: on the rounded subtotal of its lines."""

    category: str
    label: str
    rate: Decimal
    base: Decimal
    amount: Decimal


@dataclass(frozen=True, slots=True)
class CreditApplied:
    """What a grant, paid in advance, takes off the total; on a credit note, what goes back into it and not out in money."""

    grant_id: str
    description: str
    amount: Decimal


class Document(msgspec.Struct, frozen=True):
    """What invoices and credit notes have in common; of a draft, `number` and `issued_at` are None.

    Amounts are positive on both kinds: a credit note's are what is given back.
    """

    kind: Literal["invoice", "credit_note"]
    document_id: str | None
    number: str | None
    issued_at: datetime | None
    state: Literal["draft", "issued", "voided"]
    issuer: Party
    customer: Party
    tenant_id: str
    posting_period: date
    period_start: date
    period_end: date
    """Exclusive."""
    time_zone: str
    currency: str
    language: str
    """BCP 47 tag of the printed words."""
    lines: Sequence[Line]
    taxes: Sequence[Tax]
    credits: Sequence[CreditApplied]
    exact_subtotal: Decimal
    subtotal: Decimal
    tax_total: Decimal
    total: Decimal
    """subtotal + tax_total."""
    credit_total: Decimal
    amount_due: Decimal
    """total - credit_total; never below zero."""
    due_date: date | None
    digest: str
    """SHA-256, hex, over everything that is printed but number, time of issue and the due date that follows from it."""
    corrects_number: str | None = None
    """Of a credit note: the invoice that it corrects."""
    corrects_document_id: str | None = None
    basis: Basis = "period"
    reason: str | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Errors: ValueError naming the sum that does not hold."""
        unit = Decimal(1).scaleb(-currency_exponent(self.currency))
        with localcontext(EXACT):
            sums = {
                "lines do not add up to the subtotal": (sum([line.amount for line in self.lines]), self.subtotal),
                "exact lines do not add up": (sum([line.exact_amount for line in self.lines]), self.exact_subtotal),
                "bases of tax do not add up to the subtotal": (sum([tax.base for tax in self.taxes]), self.subtotal),
                "taxes do not add up": (sum([tax.amount for tax in self.taxes]), self.tax_total),
                "subtotal and tax are not the total": (self.subtotal + self.tax_total, self.total),
                "credits do not add up": (sum([credit.amount for credit in self.credits]), self.credit_total),
                "total less credit is not what is due": (self.total - self.credit_total, self.amount_due),
            }
            for rule, (found, stated) in sums.items():
                if found != stated:
                    raise ValueError(f"{self.kind} of {self.tenant_id}: {rule}: {found} is not {stated}")
            if self.amount_due < 0:
                raise ValueError(f"{self.kind} of {self.tenant_id}: {self.amount_due} is below zero")
            for amount in (self.subtotal, self.tax_total, self.total, self.credit_total, self.amount_due):
                if amount % unit:
                    raise ValueError(f"{self.kind} of {self.tenant_id}: {amount} has more places than {self.currency}")

    def marked(self, **marks: str | date | None) -> "Document":
        """Return the document with its digest, or as issued: with marks that none of its sums hangs on."""
        # Not by `replace`, which would add up again what already did.
        found = copy(self)
        for name, value in marks.items():
            msgspec.structs.force_setattr(found, name, value)
        return found
