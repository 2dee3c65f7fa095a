"""What is agreed besides usage: fees, minimums, discounts, as lines of a month; and who issues and pays as of a day. Pure.

Discounts go by the service month of the usage that they take from, so late usage meets the terms of its own month. Minimums
are held against the usage of the invoice's own month, after discounts.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from typing import Final, Literal, TypeVar

from billing.documents import LineKind, Party
from billing.rounding import part_of, total
from billing.usage_lines import UsageLine
from ledger.money import EXACT
from ledger.times import month_after, month_of

ItemKind = Literal["fee", "minimum", "discount"]
FeePeriod = Literal["month", "quarter", "year"]
Timing = Literal["advance", "arrears"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Issuer:
    """How an entity stands on documents from a day on."""

    entity_id: str
    effective_from: date
    name: str
    address: tuple[str, ...]
    country: str
    tax_id: str | None = None
    email: str | None = None
    invoice_prefix: str
    credit_note_prefix: str
    payment_days: int

    @property
    def party(self) -> Party:
        return Party(self.entity_id, self.name, self.address, self.country, self.tax_id, self.email)


@dataclass(frozen=True, slots=True, kw_only=True)
class Customer:
    """How a tenant stands on documents from a day on."""

    tenant_id: str
    effective_from: date
    name: str
    address: tuple[str, ...]
    country: str
    tax_id: str | None = None
    email: str | None = None
    tax_category: str
    language: str
    invoice_currency: str | None = None

    @property
    def party(self) -> Party:
        return Party(self.tenant_id, self.name, self.address, self.country, self.tax_id, self.email)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaxRate:
    """What an entity takes under a category from a day on."""

    entity_id: str
    category: str
    effective_from: date
    rate: Decimal
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """What a tenant agreed to besides usage. Days are of the tenant's calendar; the end is exclusive."""

    item_id: str
    tenant_id: str
    kind: ItemKind
    description: str
    currency: str | None = None
    amount: Decimal | None = None
    percent: Decimal | None = None
    period: FeePeriod | None = None
    timing: Timing | None = None
    feature: str | None = None
    model: str | None = None
    tax_category: str | None = None
    starts_on: date
    ends_on: date | None = None

    def counts_in(self, month: date) -> bool:
        """Say whether it counts for a month, of which it takes the whole."""
        return self.starts_on <= month and (self.ends_on is None or month < self.ends_on)

    def takes(self, line: UsageLine) -> bool:
        return (self.feature is None or self.feature == line.feature) and (
            self.model is None or self.model == line.model
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """What of an invoice is issued unseen."""

    currency: str
    total_max: Decimal | None = None
    change_max: Decimal | None = None
    change_from: Decimal = Decimal(0)
    lines_max: int | None = None


Dated = TypeVar("Dated", Issuer, Customer, TaxRate)


def in_force(versions: Iterable[Dated], day: date) -> Dated | None:
    """Return the version of a day: the latest that has begun, of several of one day the one recorded last."""
    found: Dated | None = None
    for version in versions:
        if version.effective_from <= day and (found is None or version.effective_from >= found.effective_from):
            found = version
    return found


# --- Fees -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FeePart:
    """The days of a fee's period that are billed together."""

    start: date
    end: date
    """Exclusive."""
    days: int
    whole: int
    """Days of the whole period: the denominator, however few of them are billed."""

    @property
    def is_whole(self) -> bool:
        return self.days == self.whole


_MONTHS: Final = {"month": 1, "quarter": 3, "year": 12}


def fee_part(item: Item, month: date) -> FeePart | None:
    """Return the part of a fee that the invoice of a month bills; None where it bills none.

    In advance a part is billed with the month that it begins in, in arrears with the month that it ends in; so each part is
    billed once, whatever month the fee began or ended in.
    """
    assert item.period is not None
    length = _MONTHS[item.period]
    start = month.replace(month=(month.month - 1) // length * length + 1)
    end = month_after(start, length)
    first = max(start, item.starts_on)
    last = end if item.ends_on is None else min(end, item.ends_on)
    if first >= last:
        return None
    billed_in = month_of(first if item.timing == "advance" else last - timedelta(days=1))
    return FeePart(first, last, (last - first).days, (end - start).days) if billed_in == month else None


# --- Lines ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ItemLine:
    """A line that is agreed and not used; the amount is below zero for a discount."""

    kind: LineKind
    item_id: str
    description: str
    start: date
    end: date
    quantity: Decimal | None
    tax_category: str | None
    """None: the customer's."""
    amount: Decimal
    feature: str | None = None
    model: str | None = None


def item_lines(
    items: Sequence[Item], usage: Sequence[tuple[UsageLine, Decimal]], month: date, currency: str
) -> list[ItemLine]:
    """Return the agreed lines of a month's invoice in one currency: discounts, then minimums, then fees.

    `usage` holds its usage lines with their exact amounts in that currency. A discount takes its share of what those before
    it left, in the order of their ids; one that is an amount takes no more than there is, of the invoice's own month.
    """
    left = [amount for _, amount in usage]
    ordered = sorted(items, key=lambda item: item.item_id)
    found: list[ItemLine] = []
    for item in ordered:
        if item.kind == "discount" and item.percent is not None:
            found += _percent(item, usage, left)
    for item in ordered:
        if item.kind == "discount" and item.amount is not None and item.currency == currency and item.counts_in(month):
            found += _amount_off(item, usage, left, month)
    for item in ordered:
        if item.kind == "minimum" and item.currency == currency and item.counts_in(month):
            assert item.amount is not None
            matched = _matched(item, usage, lambda at: at == month)
            rest = EXACT.subtract(item.amount, total(left[place] for place in matched))
            if rest > 0:
                found.append(
                    ItemLine("minimum", item.item_id, item.description, month, month_after(month), None, None, rest,
                             item.feature, item.model)
                )  # fmt: skip
    for item in ordered:
        if item.kind == "fee" and item.currency == currency:
            part = fee_part(item, month)
            if part is not None:
                assert item.amount is not None
                words = item.description if part.is_whole else f"{item.description} ({part.days} of {part.whole} days)"
                amount = item.amount if part.is_whole else part_of(item.amount, part.days, part.whole)
                found.append(
                    ItemLine("fee", item.item_id, words, part.start, part.end, None, item.tax_category, amount)
                )
    return found


def currencies_of(items: Iterable[Item], month: date) -> set[str]:
    """Return the currencies in which a month has an agreed line whatever was used."""
    return {
        item.currency
        for item in items
        if item.currency is not None
        and (
            (item.kind == "fee" and fee_part(item, month) is not None)
            or (item.kind == "minimum" and item.counts_in(month))
        )
    }


def items_beside(items: Iterable[Item], month: date, currency: str) -> list[Item]:
    """Return the items that count for a month in an amount of another currency: an invoice in this one has no line for them."""
    return [
        item
        for item in items
        if item.currency not in (None, currency)
        and (fee_part(item, month) is not None if item.kind == "fee" else item.counts_in(month))
    ]


def _matched(item: Item, usage: Sequence[tuple[UsageLine, Decimal]], counts: Callable[[date], bool]) -> list[int]:
    return [place for place, (line, _) in enumerate(usage) if counts(line.service_month) and item.takes(line)]


def _percent(item: Item, usage: Sequence[tuple[UsageLine, Decimal]], left: list[Decimal]) -> list[ItemLine]:
    assert item.percent is not None
    share = EXACT.multiply(item.percent, Decimal("0.01"))
    by_month: dict[date, Decimal] = {}
    for place in _matched(item, usage, item.counts_in):
        taken = EXACT.multiply(left[place], share)
        left[place] = EXACT.subtract(left[place], taken)
        month = usage[place][0].service_month
        by_month[month] = EXACT.subtract(by_month.get(month, Decimal(0)), taken)
    return [
        ItemLine("discount", item.item_id, item.description, month, month_after(month), None, None, by_month[month],
                 item.feature, item.model)
        for month in sorted(by_month, reverse=True)
        if by_month[month]
    ]  # fmt: skip


def _amount_off(
    item: Item, usage: Sequence[tuple[UsageLine, Decimal]], left: list[Decimal], month: date
) -> list[ItemLine]:
    assert item.amount is not None
    matched = _matched(item, usage, lambda at: at == month)
    # What was given back in the month is no room for a discount.
    rest = taken = max(min(item.amount, total(left[place] for place in matched)), Decimal(0))
    for place in matched:
        part = min(rest, max(left[place], Decimal(0)))
        left[place] = EXACT.subtract(left[place], part)
        rest = EXACT.subtract(rest, part)
    if not taken:
        return []
    return [
        ItemLine("discount", item.item_id, item.description, month, month_after(month), None, None, EXACT.minus(taken),
                 item.feature, item.model)
    ]  # fmt: skip
