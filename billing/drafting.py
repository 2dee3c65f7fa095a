"""A month to the documents that would be issued for it: computed from what is known, never stored. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final, NamedTuple

from billing.agreements import (
    NOTHING_BILLED,
    Billed,
    Bound,
    Customer,
    Issuer,
    Item,
    TaxRate,
    currencies_of,
    in_force,
    item_lines,
    items_beside,
)
from billing.crediting import Creditable, OwedBack, owed_back_notes
from billing.digests import digest_of
from billing.documents import CreditApplied, Document, Line, Party, Tax
from billing.rounding import cut_money, plain, round_money, spread, total
from billing.usage_lines import AMOUNT_STATED, UsageLine
from ledger.exchange import ExchangeRate, ExchangeRates
from ledger.money import EXACT, amount_text
from ledger.times import from_micros, local_midnight, month_after
from quotas.grants import Grant, Use, burn

UNKNOWN_TAX: Final = "unknown"
"""The category of a tenant whose customer data nobody has given; nothing is issued under it."""
_ZERO: Final = Decimal(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Month:
    """All that is known about a tenant's month when its documents are drafted."""

    tenant_id: str
    month: date
    time_zone: str
    entity_id: str
    entity_name: str
    today: date
    """In the tenant's zone: as of which addresses are printed, and from which days until payment count."""
    issuers: Sequence[Issuer] = ()
    customers: Sequence[Customer] = ()
    tax_rates: Sequence[TaxRate] = ()
    items: Sequence[Item] = ()
    lines: Sequence[UsageLine] = ()
    """In the currencies that were charged."""
    charges: Mapping[str, Decimal] = field(default_factory=dict)
    """What the entries of those lines were charged, by currency, summed past the lines."""
    exchange_rates: ExchangeRates = field(default_factory=ExchangeRates)
    billed_rates: Mapping[tuple[str, date], ExchangeRate] = field(default_factory=dict)
    """What earlier invoices converted by, by charged currency and month of service: what corrects them goes by the same."""
    billed: Mapping[str, Billed] = field(default_factory=dict)
    """By currency: what the documents of other months bill, where an item in an amount is held against it."""
    bounds: Mapping[str, Bound] = field(default_factory=dict)
    totals_before: Mapping[str, Decimal] = field(default_factory=dict)
    """Of the live invoices of the month before, by currency."""
    refusals: Sequence[str] = ()
    """What keeps the whole month from being issued."""
    grants: Mapping[str, Sequence[Grant]] = field(default_factory=dict)
    """By currency; amounts are what is left on the books."""
    uses: Mapping[str, Sequence[Use]] = field(default_factory=dict)
    grant_names: Mapping[str, str] = field(default_factory=dict)
    creditable: Mapping[str, Sequence[Creditable]] = field(default_factory=dict)
    """By currency: invoices that what a month owes back may correct, in the order in which it does."""

    @property
    def issuer(self) -> Issuer | None:
        return in_force(self.issuers, self.today)

    @property
    def customer(self) -> Customer | None:
        return in_force(self.customers, self.today)

    @property
    def terms(self) -> Customer | None:
        """The customer as it stood at the end of the month, which picks tax and currency."""
        return in_force(self.customers, self.last_day) or self.customer

    @property
    def last_day(self) -> date:
        return month_after(self.month) - timedelta(days=1)

    def tax_category(self, month: date) -> str:
        """Return the category of what was used in a month: that of its own terms, under which it was, or would have been, billed."""
        terms = in_force(self.customers, month_after(month) - timedelta(days=1)) or self.terms
        return UNKNOWN_TAX if terms is None else terms.tax_category


@dataclass(frozen=True, slots=True)
class Draft:
    """What would be issued of a tenant's month in one currency, and what keeps it from that."""

    document: Document
    notes: Sequence[Document] = ()
    """Credit notes that are issued with it: what the month owes back."""
    refusals: Sequence[str] = ()
    """What has to be mended first."""
    bounds: Sequence[str] = ()
    """What is larger than is issued unseen; a person may accept it."""
    owes_back: Mapping[str, Decimal] = field(default_factory=dict)
    """By tax category, exact: what is below zero before it is placed on credit notes."""


def draft_month(known: Month) -> list[Draft]:
    """Return the drafts of a month, one for each currency in which it has lines; none where there is nothing to bill."""
    if not known.customers and not known.items and not any(line.amount for line in known.lines):
        # All that was used was free, and nobody agreed to an invoice: such as our own canary.
        return []
    terms = known.terms
    fixed = None if terms is None else terms.invoice_currency
    charged = sorted({line.currency for line in known.lines})
    if fixed is None:
        wanted = sorted({*charged, *currencies_of(known.items, known.month)})
        return [_draft(known, currency, [(line, None) for line in known.lines if line.currency == currency])
                for currency in wanted]  # fmt: skip
    # Currencies are never added: what is agreed in another one is mended by a person.
    missing = [
        f"item {item.item_id} is in {item.currency}, and invoices of {known.tenant_id} are in {fixed}"
        for item in items_beside(known.items, known.month, fixed)
    ]
    missing += _grants_beside(known, fixed)
    if not charged and not missing and fixed not in currencies_of(known.items, known.month):
        return []
    taken: list[tuple[UsageLine, ExchangeRate | None]] = []
    for line in known.lines:
        rate = None
        if line.currency != fixed:
            # A rate belongs to the period of the usage: what it was billed by, or else the one in force when that month ended.
            instant = local_midnight(known.time_zone, month_after(line.service_month)) - 1
            rate = known.billed_rates.get((line.currency, line.service_month)) or known.exchange_rates.in_force(
                line.currency, fixed, instant
            )
            if rate is None:
                reason = (
                    f"no rate from {line.currency} to {fixed} was in force at the end of {line.service_month:%Y-%m}"
                )
                if reason not in missing:
                    missing.append(reason)
                continue
        taken.append((line, rate))
    return [_draft(known, fixed, taken, missing)]


def _draft(
    known: Month,
    currency: str,
    usage: Sequence[tuple[UsageLine, ExchangeRate | None]],
    problems: Iterable[str] = (),
) -> Draft:
    refusals = [*known.refusals, *problems]
    issuer, customer = known.issuer, known.customer
    if issuer is None:
        refusals.append(f"entity {known.entity_id} has no issuer data on {known.today}")
    if customer is None:
        refusals.append(f"tenant {known.tenant_id} has no customer data on {known.today}")
    lines = _lines(known, currency, usage)
    rates = _tax_rates(known, lines, refusals)
    owed: dict[str, Decimal] = {}
    placed = OwedBack()
    for name in rates:
        exact = total(line.exact_amount for line in lines if line.tax_category == name)
        if round_money(exact, currency) < 0:
            owed[name] = EXACT.minus(exact)
    if owed:
        placed = owed_back_notes(owed, known.creditable.get(currency, ()), known.month, currency)
        for name, rest in placed.unplaced.items():
            refusals.append(
                f"{plain(rest):f} {currency} ({name}) is owed back beyond what live invoices billed:"
                " issue the earlier months first, or give it back with `credit-note usage`"
            )
        lines += [
            _agreed_line(
                "owed_back", f"Given back by credit note for {month:%Y-%m}", month, month_after(month), exact, name
            )
            for name, month, exact in placed.lines
        ]
    printed, taxes, exact_subtotal = _add_up(lines, rates, currency)
    subtotal = total(tax.base for tax in taxes)
    tax_total = total(tax.amount for tax in taxes)
    whole = EXACT.add(subtotal, tax_total)
    credits = _burnt(known, currency, lines, whole)
    credit_total = total(each.amount for each in credits)
    due = EXACT.subtract(whole, credit_total)
    if due < 0:
        # What cannot be placed is refused above; the draft shows it all the same, as nothing to pay.
        lines += [
            _agreed_line(
                "owed_back", "Owed back, and not placed yet", known.month, month_after(known.month), rest, name
            )
            for name, rest in placed.unplaced.items()
        ]
        printed, taxes, exact_subtotal = _add_up(lines, rates, currency)
        subtotal, tax_total = total(tax.base for tax in taxes), total(tax.amount for tax in taxes)
        whole = due = EXACT.add(subtotal, tax_total)
    document = Document(
        kind="invoice",
        document_id=None,
        number=None,
        issued_at=None,
        state="draft",
        issuer=Party(known.entity_id, known.entity_name) if issuer is None else issuer.party,
        customer=Party(known.tenant_id, known.tenant_id) if customer is None else customer.party,
        tenant_id=known.tenant_id,
        posting_period=known.month,
        period_start=known.month,
        period_end=month_after(known.month),
        time_zone=known.time_zone,
        currency=currency,
        language="en" if customer is None else customer.language,
        lines=printed,
        taxes=taxes,
        credits=credits,
        exact_subtotal=exact_subtotal,
        subtotal=subtotal,
        tax_total=tax_total,
        total=whole,
        credit_total=credit_total,
        amount_due=due,
        due_date=None if issuer is None else known.today + timedelta(days=issuer.payment_days),
        digest="",
        notes=_exchange_notes(usage, currency),
    )
    return Draft(
        document.marked(digest=digest_of(document)),
        placed.notes,
        tuple(refusals),
        tuple(_beyond(known.bounds.get(currency), document, known.totals_before.get(currency))),
        owed,
    )


# --- Lines ------------------------------------------------------------------------------------------------------------


class _Unprinted(NamedTuple):
    """A line whose place and printed amount nobody knows yet: its other fields, before and after the amount."""

    exact_amount: Decimal
    tax_category: str
    before: tuple[Any, ...]
    after: tuple[Any, ...] = ()

    def printed(self, line_no: int, amount: Decimal) -> Line:
        values = (line_no, *self.before, self.exact_amount, amount, self.tax_category, *self.after)
        return Line(*values)


def _lines(known: Month, currency: str, usage: Sequence[tuple[UsageLine, ExchangeRate | None]]) -> list[_Unprinted]:
    own = known.tax_category(known.month)
    categories = {month: known.tax_category(month) for month in {line.service_month for line, _ in usage}}
    converted = [
        (line, line.amount if rate is None else EXACT.multiply(line.amount, rate.rate)) for line, rate in usage
    ]
    lines = []
    for (line, amount), (_, rate) in zip(converted, usage, strict=True):
        month, price = line.service_month, line.unit_price
        exchange: tuple[Any, ...] = ()
        if rate is not None:
            exchange = (rate.rate, from_micros(rate.effective_at))
            price = None if price is None else EXACT.multiply(price, rate.rate)
        before = (
            "usage", describe(line), month, month_after(month), line.feature, line.provider, line.model, line.meter,
            line.quantity, price, line.per,
        )  # fmt: skip
        lines.append(_Unprinted(amount, categories[month], before, (None, line.amount, line.currency, *exchange)))
    lines += [
        _agreed_line(
            item.kind, item.description, item.start, item.end, item.amount,
            item.tax_category or (own if item.kind == "fee" else known.tax_category(item.start)), item.item_id, item.feature,
            item.model,
        )
        for item in item_lines(known.items, converted, known.month, currency, known.billed.get(currency, NOTHING_BILLED))
    ]  # fmt: skip
    return lines


def describe(line: UsageLine) -> str:
    """Return what stands on a usage line: the model, and what of it was counted."""
    return _described(line.model, line.meter)


@lru_cache(maxsize=4096)
def _described(model: str | None, meter: str) -> str:
    what = "difference stated" if meter == AMOUNT_STATED else meter.replace("_", " ")
    return f"{model or 'no model'}: {what}"


def _agreed_line(
    kind: Any,
    description: str,
    start: date,
    end: date,
    amount: Decimal,
    category: str,
    item_id: str | None = None,
    feature: str | None = None,
    model: str | None = None,
) -> _Unprinted:
    before = (kind, description, start, end, feature, None, model, None, None, None, None)
    return _Unprinted(amount, category, before, (item_id,))


def _tax_rates(known: Month, lines: Sequence[_Unprinted], refusals: list[str]) -> dict[str, TaxRate]:
    """Return the rate of each category of the lines, as of the month's last day, in the order in which they stand."""
    found: dict[str, TaxRate] = {}
    for line in lines:
        name = line.tax_category
        if name in found:
            continue
        rate = in_force([each for each in known.tax_rates if each.category == name], known.last_day)
        if rate is None:
            if name != UNKNOWN_TAX:
                refusals.append(f"entity {known.entity_id} has no tax rate {name!r} on {known.last_day}")
            rate = TaxRate(
                entity_id=known.entity_id, category=name, effective_from=known.month, rate=_ZERO, label="tax unknown"
            )
        found[name] = rate
    return dict(sorted(found.items()))


def _add_up(
    lines: Sequence[_Unprinted], rates: Mapping[str, TaxRate], currency: str
) -> tuple[tuple[Line, ...], tuple[Tax, ...], Decimal]:
    """Round the sum of each tax category once and spread it over its lines; tax is on the rounded sum."""
    amounts: dict[int, Decimal] = {}
    taxes = []
    for name, rate in rates.items():
        places = [place for place, line in enumerate(lines) if line.tax_category == name]
        exact = [lines[place].exact_amount for place in places]
        base = round_money(total(exact), currency)
        amounts.update(zip(places, spread(base, exact, currency), strict=True))
        taxes.append(Tax(name, rate.label, rate.rate, base, round_money(EXACT.multiply(base, rate.rate), currency)))
    printed = tuple(line.printed(place + 1, amounts[place]) for place, line in enumerate(lines))
    return printed, tuple(taxes), total(line.exact_amount for line in lines)


def _exchange_notes(usage: Iterable[tuple[UsageLine, ExchangeRate | None]], currency: str) -> tuple[str, ...]:
    rates = {(rate.from_currency, rate.effective_at, rate.rate): rate for _, rate in usage if rate is not None}
    return tuple(
        f"Amounts in {rate.from_currency} at {plain(rate.rate):f} {currency} for 1 {rate.from_currency},"
        f" in force since {from_micros(rate.effective_at):%Y-%m-%d}."
        for rate in sorted(rates.values(), key=lambda rate: (rate.from_currency, rate.effective_at))
    )


# --- Grants -----------------------------------------------------------------------------------------------------------


def _grants_beside(known: Month, currency: str) -> list[str]:
    """Say which grants usage burns in another currency than that of the invoice, which has no line for them."""
    return [
        f"grant {name} pays {plain(amount):f} {other} of the usage, and invoices of {known.tenant_id} are in {currency}:"
        f" let that of {known.month:%Y-%m} be in {other}"
        for other, grants in sorted(known.grants.items())
        if other != currency
        for name, amount in burn(grants, known.uses.get(other, ())).burnt.items()
        if amount > 0
    ]


def _burnt(known: Month, currency: str, lines: Sequence[_Unprinted], whole: Decimal) -> tuple[CreditApplied, ...]:
    """Return what grants pay of a total: what the month's usage burns of them, rounded once, never more than usage comes to."""
    grants = known.grants.get(currency, ())
    if not grants or whole <= 0:
        return ()
    left = {grant.grant_id: grant.amount for grant in grants}
    burnt = {name: amount for name, amount in burn(grants, known.uses.get(currency, ())).burnt.items() if amount > 0}
    exact = list(burnt.values())
    rest = min(whole, round_money(_after_discounts(lines), currency))
    found = []
    for name, amount in zip(burnt, spread(round_money(total(exact), currency), exact, currency), strict=True):
        # Rounding takes no grant below what it has.
        paid = min(amount, cut_money(left[name], currency), rest)
        if paid > 0:
            found.append(CreditApplied(name, known.grant_names.get(name, name), paid))
            rest = EXACT.subtract(rest, paid)
    return tuple(found)


def _after_discounts(lines: Iterable[_Unprinted]) -> Decimal:
    """Return what usage comes to after discounts; a month of which more is given back than is billed takes nothing off the others."""
    by_month: dict[date, Decimal] = {}
    for line in lines:
        kind, _, start, *_ = line.before
        if kind in ("usage", "discount"):
            by_month[start] = EXACT.add(by_month.get(start, _ZERO), line.exact_amount)
    return total(max(amount, _ZERO) for amount in by_month.values())


# --- Bounds -----------------------------------------------------------------------------------------------------------


def _beyond(bound: Bound | None, document: Document, before: Decimal | None) -> Iterable[str]:
    """Say what of a document is larger than is issued unseen."""
    if bound is None:
        return
    whole, currency = document.total, document.currency
    if bound.total_max is not None and whole > bound.total_max:
        yield f"total {amount_text(whole)} is above {amount_text(bound.total_max)} {currency}, the most that is issued unseen"
    if bound.change_max is not None and before is not None and max(whole, before) >= bound.change_from:
        low, high = sorted((whole, before))
        if high > EXACT.multiply(low, bound.change_max):
            yield (
                f"total {amount_text(whole)} after {amount_text(before)} {currency} changes more than"
                f" {amount_text(bound.change_max)} times"
            )
    if bound.lines_max is not None and len(document.lines) > bound.lines_max:
        yield f"{len(document.lines)} lines are more than {bound.lines_max}, the most that are issued unseen"
