"""What is agreed besides usage: fees, minimums, discounts, as lines of a month; and who issues and pays as of a day. Pure.

Discounts and minimums go by the service month of the usage, so late usage meets the terms of its own month, and what is owed
over all invoices does not hang on which of them bills it. Minimums are held against usage after discounts.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from decimal import Decimal
from typing import Final, Literal, TypeVar

from billing.documents import LineKind, Party
from billing.rounding import part_of, total
from billing.usage_lines import UsageLine
from ledger.money import EXACT
from ledger.times import month_after, month_of

_ZERO: Final = Decimal(0)
_HUNDREDTH: Final = Decimal("0.01")

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

    def takes(self, feature: str | None, model: str | None) -> bool:
        return self.feature in (None, feature) and self.model in (None, model)


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


@dataclass(frozen=True, slots=True)
class Billed:
    """What the other documents that count bill of a tenant in one currency, exact, less what notes for usage gave back."""

    usage: Mapping[date, Mapping[tuple[str | None, str | None], Decimal]] = field(default_factory=dict)
    """By service month, then by feature and model."""
    items: Mapping[tuple[str, date], Decimal] = field(default_factory=dict)
    """What items in an amount came to: by id and service month; below zero for a discount."""
    months: frozenset[date] = frozenset()
    """Of which there is an invoice."""


NOTHING_BILLED: Final = Billed()


def item_lines(
    items: Sequence[Item],
    usage: Sequence[tuple[UsageLine, Decimal]],
    month: date,
    currency: str,
    billed: Billed = NOTHING_BILLED,
    months: Collection[date] | None = None,
) -> list[ItemLine]:
    """Return the agreed lines of a month's invoice in one currency: discounts, then minimums, then fees.

    `usage` holds its usage lines with their exact amounts in that currency. A discount takes its share of what those before
    it left, in the order of their ids. Discounts and minimums in an amount are of all usage of a service month, wherever it is
    billed: a line is what they come to less what other documents have of them, for the service months `months`, or else for all
    that are known up to this one. A minimum waits for its month's own invoice.
    """
    left = [amount for _, amount in usage]
    ordered = sorted(items, key=lambda item: item.item_id)
    found: list[ItemLine] = []
    for item in ordered:
        if item.kind == "discount" and item.percent is not None:
            found += _percent(item, usage, left)
    in_amounts = [
        item for item in ordered if item.kind != "fee" and item.amount is not None and item.currency == currency
    ]
    if in_amounts:
        if months is None:
            months = {month, *billed.usage, *(line.service_month for line, _ in usage)}
        found += _in_amounts(in_amounts, _pots(ordered, usage, left, billed), month, billed, months)
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


def _percent(item: Item, usage: Sequence[tuple[UsageLine, Decimal]], left: list[Decimal]) -> list[ItemLine]:
    assert item.percent is not None
    share = EXACT.multiply(item.percent, _HUNDREDTH)
    by_month: dict[date, Decimal] = {}
    for place, (line, _) in enumerate(usage):
        if item.counts_in(line.service_month) and item.takes(line.feature, line.model):
            taken = EXACT.multiply(left[place], share)
            left[place] = EXACT.subtract(left[place], taken)
            by_month[line.service_month] = EXACT.subtract(by_month.get(line.service_month, _ZERO), taken)
    return [
        ItemLine("discount", item.item_id, item.description, month, month_after(month), None, None, by_month[month],
                 item.feature, item.model)
        for month in sorted(by_month, reverse=True)
        if by_month[month]
    ]  # fmt: skip


_Pots = dict[date, dict[tuple[str | None, str | None], Decimal]]
"""What is left of usage after discounts in percent: by service month, then by feature and model."""


def _pots(
    ordered: Sequence[Item], usage: Sequence[tuple[UsageLine, Decimal]], left: Sequence[Decimal], billed: Billed
) -> _Pots:
    found: _Pots = {}
    for month, amounts in billed.usage.items():
        percents = [item for item in ordered if item.percent is not None and item.counts_in(month)]
        for (feature, model), amount in amounts.items():
            for item in percents:
                if item.takes(feature, model):
                    assert item.percent is not None
                    amount = EXACT.multiply(
                        amount, EXACT.subtract(Decimal(1), EXACT.multiply(item.percent, _HUNDREDTH))
                    )
            found.setdefault(month, {})[feature, model] = amount
    for (line, _), rest in zip(usage, left, strict=True):
        pots = found.setdefault(line.service_month, {})
        what = (line.feature, line.model)
        pots[what] = EXACT.add(pots.get(what, _ZERO), rest)
    return found


def _in_amounts(
    ordered: Sequence[Item], pots: _Pots, month: date, billed: Billed, months: Collection[date]
) -> Iterator[ItemLine]:
    for kind in ("discount", "minimum"):
        for item in ordered:
            if item.kind != kind:
                continue
            for at in sorted(months, reverse=True):
                is_billed = kind == "discount" or at == month or at in billed.months
                if at > month or not is_billed or not item.counts_in(at):
                    continue
                whole = _amount_off(item, pots.get(at, {})) if kind == "discount" else _up_to(item, pots.get(at, {}))
                amount = EXACT.subtract(whole, billed.items.get((item.item_id, at), _ZERO))
                if amount:
                    yield ItemLine(
                        item.kind, item.item_id, item.description, at, month_after(at), None, None, amount, item.feature,
                        item.model,
                    )  # fmt: skip


def _amount_off(item: Item, pots: dict[tuple[str | None, str | None], Decimal]) -> Decimal:
    """Take an amount off what is left of a service month, and never more than there is."""
    assert item.amount is not None
    # In one order, whatever documents they come from: what the next item finds hangs on it.
    matched = sorted(
        (what for what in pots if item.takes(*what)), key=lambda what: [(name is not None, name) for name in what]
    )
    # What was given back in the month is no room for a discount.
    rest = taken = max(min(item.amount, total(pots[what] for what in matched)), _ZERO)
    for what in matched:
        part = min(rest, max(pots[what], _ZERO))
        pots[what] = EXACT.subtract(pots[what], part)
        rest = EXACT.subtract(rest, part)
    return EXACT.minus(taken)


def _up_to(item: Item, pots: Mapping[tuple[str | None, str | None], Decimal]) -> Decimal:
    assert item.amount is not None
    return max(EXACT.subtract(item.amount, total(rest for what, rest in pots.items() if item.takes(*what))), _ZERO)
