"""Documents as FOCUS 1.2: a row for each meter, day and price, and one for whatever else makes the bill what it is.

Source: FinOps Open Cost and Usage Specification, version 1.2 (github.com/FinOps-Open-Cost-and-Usage-Spec/FOCUS_Spec, tag v1.2).
"""

import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final, Literal

import polars as pl

from billing.documents import Document, Line
from billing.errors import ExportRefused
from billing.exports.csv_text import safe_text
from ledger.meters import METERS, OPERATIONS
from ledger.money import EXACT, amount_text
from ledger.times import from_micros, local_midnight

# A decimal of Polars, Parquet and most readers ends at 38 digits. A cost is a price times a quantity, so its places are those of
# both; and whoever multiplies the two in a database needs no more than 38 for the result either.
COST: Final = pl.Decimal(38, 24)
"""Costs: 14 digits before the point, 24 after it."""
PRICE: Final = pl.Decimal(38, 18)
QUANTITY: Final = pl.Decimal(38, 9)
"""9 places, as the largest `per` is a thousand million."""
_INSTANT: Final = pl.Datetime("us", "UTC")

_COLUMNS: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "BilledCost": COST,
    "BillingAccountId": pl.String,
    "BillingAccountName": pl.String,
    "BillingCurrency": pl.String,
    "BillingPeriodEnd": _INSTANT,
    "BillingPeriodStart": _INSTANT,
    "ChargeCategory": pl.String,
    "ChargeClass": pl.String,
    "ChargeDescription": pl.String,
    "ChargeFrequency": pl.String,
    "ChargePeriodEnd": _INSTANT,
    "ChargePeriodStart": _INSTANT,
    "ConsumedQuantity": QUANTITY,
    "ConsumedUnit": pl.String,
    "ContractedCost": COST,
    "ContractedUnitPrice": PRICE,
    "EffectiveCost": COST,
    "InvoiceId": pl.String,
    "InvoiceIssuerName": pl.String,
    "ListCost": COST,
    "ListUnitPrice": PRICE,
    "PricingCategory": pl.String,
    "PricingCurrency": pl.String,
    "PricingCurrencyContractedUnitPrice": PRICE,
    "PricingCurrencyEffectiveCost": COST,
    "PricingCurrencyListUnitPrice": PRICE,
    "PricingQuantity": QUANTITY,
    "PricingUnit": pl.String,
    "ProviderName": pl.String,
    "PublisherName": pl.String,
    "RegionId": pl.String,
    "RegionName": pl.String,
    "ServiceCategory": pl.String,
    "ServiceName": pl.String,
    "ServiceSubcategory": pl.String,
    "SkuId": pl.String,
    "SkuMeter": pl.String,
    "SkuPriceDetails": pl.String,
    "SkuPriceId": pl.String,
    "x_Feature": pl.String,
    "x_Lane": pl.String,
    "x_Language": pl.String,
    "x_LineKind": pl.String,
    "x_Model": pl.String,
    "x_Route": pl.String,
    "x_ServiceTier": pl.String,
}
SCHEMA: Final = pl.Schema(_COLUMNS)
"""FOCUS's columns in the order of the alphabet, then ours. Money and quantities are decimals."""

_UNITS: Final = {
    "token": "Tokens",
    "call": "Calls",
    "unit": "Units",
    "second": "Seconds",
    "image": "Images",
    "character": "Characters",
    "page": "Pages",
}
_SERVICE: Final = {
    "ServiceCategory": "AI and Machine Learning",
    "ServiceName": "Model Inference",
    "ServiceSubcategory": "Generative AI",
}
# What chose a price and may be shown: never the cost behind a markup.
_SHOWN_SELECTORS: Final = ("service_tier", "region", "hours", "band")


@dataclass(frozen=True, slots=True)
class UsageCharge:
    """One row of fct_focus_charges with its prices: what a meter came to on a day. Empty texts are what nobody said."""

    local_date: date
    charge_class: Literal["", "Correction"]
    feature: str
    language: str
    provider: str
    model: str
    route: str
    lane: str
    region: str
    service_tier: str
    meter: str
    rate_set_id: int
    quantity: Decimal
    cost: Decimal
    """quantity x unit_price / per, unrounded; negative where a correction takes back."""
    unit_price: Decimal | None
    """For `per` units; None where the amount was stated by a person."""
    per: int | None
    list_unit_price: Decimal | None = None
    """What the plan asks for `per` units; None where it has no price for it."""
    currency: str | None = None
    """Of cost and prices; None: the document's."""
    selectors: Mapping[str, str] | None = None
    """What chose the price inside its card."""


def focus_rows(document: Document, charges: Sequence[UsageCharge]) -> list[dict[str, Any]]:
    """Return the rows of a document, which add up to what is due: of a credit note, negative.

    Shape: usage as given; a Purchase for each fee, a Credit for each discount and grant, an Adjustment for what a minimum adds and
    for the rounding of the subtotal, a Tax for each rate.
    Errors: ExportRefused where the charges are not what the document's usage lines come to, or it was voided.
    """
    named = f"{document.kind.replace('_', ' ')} {document.number or 'draft'} of {document.tenant_id}"
    if document.state == "voided":
        raise ExportRefused(f"{named} was voided: it is no charge")
    sign = 1 if document.kind == "invoice" else -1
    rates = _exchange_rates(document)
    charges = _with_rate(document, charges, rates)
    _check_usage(named, document, charges, rates, sign)
    rows = [_usage_row(document, charge, rates) for charge in charges if charge.cost or charge.quantity]
    rows += [_item_row(document, line, sign) for line in document.lines if line.kind != "usage"]
    signed = Decimal(sign)
    rounding = EXACT.subtract(document.subtotal, document.exact_subtotal)
    if rounding:
        rows.append(
            _plain_row(document, "Adjustment", "Rounding of the subtotal", EXACT.multiply(rounding, signed), "rounding")
        )
    for tax in document.taxes:
        if tax.amount:
            rows.append(_plain_row(document, "Tax", tax.label, EXACT.multiply(tax.amount, signed), "tax"))
    for credit in document.credits:
        taken = EXACT.multiply(credit.amount, Decimal(-sign))
        rows.append(_plain_row(document, "Credit", credit.description, taken, "grant"))
    total = _sum(row["BilledCost"] for row in rows)
    due = EXACT.multiply(document.amount_due, signed)
    if total != due:
        raise ExportRefused(f"{named}: its rows come to {total:f} and not to {due:f}")
    return rows


def focus_frame(rows: Iterable[Mapping[str, Any]]) -> pl.DataFrame:
    """Return rows as a frame with the columns and types of SCHEMA.

    Errors: ExportRefused naming the column and the value that does not fit its decimal: nothing is rounded.
    """
    listed = list(rows)
    for row in listed:
        for name, kind in SCHEMA.items():
            if isinstance(kind, pl.Decimal) and row[name] is not None:
                _check_fits(name, row[name], kind)
    return pl.DataFrame(listed, schema=SCHEMA, orient="row")


def to_parquet(frame: pl.DataFrame) -> bytes:
    """Return a frame as Parquet, typed: what a program should read."""
    out = io.BytesIO()
    frame.write_parquet(out, compression="zstd", statistics=False)
    return out.getvalue()


def to_focus_csv(frame: pl.DataFrame) -> str:
    """Return a frame as CSV: instants in UTC with a Z, decimals with a point and no zeros behind, nothing where there is null.

    A text that a spreadsheet would run has an apostrophe before it, as in the CSV of documents.
    """
    out = io.StringIO()
    texts = [
        pl.col(name).dt.strftime("%Y-%m-%dT%H:%M:%SZ")
        if isinstance(kind, pl.Datetime)
        else pl.col(name).map_elements(decimal_text, return_dtype=pl.String)
        if isinstance(kind, pl.Decimal)
        else pl.col(name).map_elements(safe_text, return_dtype=pl.String)
        for name, kind in SCHEMA.items()
    ]
    frame.select(texts).write_csv(out, quote_style="necessary")
    return out.getvalue()


def decimal_text(value: Decimal) -> str:
    """Return a decimal in the fewest digits that still have a point, so that no reader takes the column for whole numbers."""
    text = amount_text(value)
    whole, _, fraction = text.partition(".")
    return f"{whole}.{fraction.rstrip('0') or '0'}"


# --- Rows -------------------------------------------------------------------------------------------------------------


def _head(document: Document, start: date, end: date) -> dict[str, Any]:
    """Return what every row of a document has, empty in the rest."""
    zone = document.time_zone
    return {
        **dict.fromkeys(SCHEMA),
        "BillingAccountId": document.tenant_id,
        "BillingAccountName": document.customer.name,
        "BillingCurrency": document.currency,
        "BillingPeriodStart": _midnight(zone, document.period_start),
        "BillingPeriodEnd": _midnight(zone, document.period_end),
        "ChargePeriodStart": _midnight(zone, start),
        "ChargePeriodEnd": _midnight(zone, end),
        "InvoiceId": document.number,
        "InvoiceIssuerName": document.issuer.name,
        "ProviderName": document.issuer.name,
        "PublisherName": document.issuer.name,
        "ChargeClass": "Correction" if document.kind == "credit_note" else None,
        **_SERVICE,
    }


def _usage_row(document: Document, charge: UsageCharge, rates: "_Rates") -> dict[str, Any]:
    following = date.fromordinal(charge.local_date.toordinal() + 1)
    rate = _rate_of(document, charge, rates)
    cost = EXACT.multiply(charge.cost, rate)
    row = {
        **_head(document, charge.local_date, following),
        "BilledCost": cost,
        "ContractedCost": cost,
        "EffectiveCost": cost,
        "ListCost": cost,
        "PricingCurrency": charge.currency or document.currency,
        "PricingCurrencyEffectiveCost": charge.cost,
        "ChargeDescription": _described(charge),
        "PublisherName": charge.provider or document.issuer.name,
        "RegionId": charge.region or None,
        "RegionName": charge.region or None,
        "x_Feature": charge.feature or None,
        "x_Lane": charge.lane or None,
        "x_Language": charge.language or None,
        "x_LineKind": "usage",
        "x_Model": charge.model or None,
        "x_Route": charge.route or None,
        "x_ServiceTier": charge.service_tier or None,
    }
    if charge.charge_class:
        row["ChargeClass"] = charge.charge_class
    if charge.unit_price is None or charge.per is None:
        # An amount that a person stated is no quantity at a price.
        return {**row, "ChargeCategory": "Adjustment", "ChargeFrequency": "One-Time"}
    listed = charge.unit_price if charge.list_unit_price is None else charge.list_unit_price
    counted = EXACT.multiply(charge.quantity, _share(charge.per))
    unit = "Operations" if charge.meter == OPERATIONS else _UNITS[METERS[charge.meter].unit]
    sku = "/".join((charge.provider, charge.model, charge.meter))
    return {
        **row,
        "ChargeCategory": "Usage",
        "ChargeFrequency": "Usage-Based",
        "ConsumedQuantity": charge.quantity,
        "ConsumedUnit": unit,
        "ContractedUnitPrice": EXACT.multiply(charge.unit_price, rate),
        "ListCost": EXACT.multiply(counted, EXACT.multiply(listed, rate)),
        "ListUnitPrice": EXACT.multiply(listed, rate),
        "PricingCategory": "Standard",
        "PricingCurrencyContractedUnitPrice": charge.unit_price,
        "PricingCurrencyListUnitPrice": listed,
        "PricingQuantity": counted,
        "PricingUnit": unit if charge.per == 1 else f"{charge.per} {unit}",
        "SkuId": sku,
        "SkuMeter": charge.meter,
        "SkuPriceDetails": _price_details(charge),
        "SkuPriceId": f"{sku}@{charge.rate_set_id}",
    }


def _item_row(document: Document, line: Line, sign: int) -> dict[str, Any]:
    """Return the row of what is agreed, or given back, besides usage."""
    amount = EXACT.multiply(line.exact_amount, Decimal(sign))
    if line.kind != "fee":
        category = "Credit" if line.kind == "discount" or sign < 0 else "Adjustment"
        row = _plain_row(document, category, line.description, amount, line.kind)
        return {**row, "x_Feature": line.feature, "x_Model": line.model}
    row = _plain_row(document, "Purchase", line.description, amount, line.kind, line.service_start, line.service_end)
    sku = f"fee/{line.description}"
    return {
        **row,
        "ChargeFrequency": "Recurring",
        "ContractedUnitPrice": line.exact_amount.copy_abs(),
        "ListUnitPrice": line.exact_amount.copy_abs(),
        "PricingCurrencyContractedUnitPrice": line.exact_amount.copy_abs(),
        "PricingCurrencyListUnitPrice": line.exact_amount.copy_abs(),
        "PricingCategory": "Standard",
        "PricingQuantity": Decimal(sign),
        "PricingUnit": "Fees",
        "SkuId": sku,
        "SkuMeter": "fee",
        "SkuPriceId": sku,
        "x_Feature": line.feature,
    }


def _plain_row(
    document: Document,
    category: str,
    description: str,
    amount: Decimal,
    kind: str,
    start: date | None = None,
    end: date | None = None,
) -> dict[str, Any]:
    """Return a row that is an amount: all four costs are the same, and nothing is counted."""
    return {
        **_head(document, start or document.period_start, end or document.period_end),
        "ChargeCategory": category,
        "ChargeDescription": description,
        "ChargeFrequency": "One-Time",
        "BilledCost": amount,
        "ContractedCost": amount,
        "EffectiveCost": amount,
        "ListCost": amount,
        "PricingCurrency": document.currency,
        "PricingCurrencyEffectiveCost": amount,
        "x_LineKind": kind,
    }


def _described(charge: UsageCharge) -> str:
    words = charge.meter.replace("_", " ")
    return f"{charge.model}: {words}" if charge.model else words


def _price_details(charge: UsageCharge) -> str:
    """Return what makes a price this one, as JSON; none of FOCUS's own keys is about tokens, so all are ours."""
    chosen = charge.selectors or {}
    details = {"x_Meter": charge.meter, "x_Model": charge.model, "x_Provider": charge.provider}
    for name in _SHOWN_SELECTORS:
        if name in chosen:
            details[f"x_{''.join(part.title() for part in name.split('_'))}"] = chosen[name]
    return json.dumps(details, ensure_ascii=False, sort_keys=True)


def _share(per: int) -> Decimal:
    """Return 1 / per exactly: it is a power of ten."""
    return Decimal(1).scaleb(-(len(str(per)) - 1))


def _midnight(zone: str, day: date) -> datetime:
    return from_micros(local_midnight(zone, day)).astimezone(UTC)


# --- Currencies -------------------------------------------------------------------------------------------------------

_Rates = Mapping[tuple[str, date], Decimal]


def _exchange_rates(document: Document) -> _Rates:
    """Return what one of each charged currency is in the document's, by month of service: as its usage lines say."""
    return {
        (line.charged_currency, line.service_start): line.exchange_rate
        for line in document.lines
        if line.charged_currency is not None and line.exchange_rate is not None
    }


def _with_rate(document: Document, charges: Sequence[UsageCharge], rates: _Rates) -> list[UsageCharge]:
    """Return charges without those of a currency and month that come to nothing: the document has no line, and no rate, for them."""
    without: dict[tuple[str, date], list[UsageCharge]] = {}
    for charge in charges:
        place = _place(document, charge)
        if place is not None and place not in rates:
            without.setdefault(place, []).append(charge)
    for (currency, month), listed in without.items():
        if _sum(charge.cost for charge in listed) or _sum(charge.quantity for charge in listed):
            raise ExportRefused(
                f"{document.kind} {document.number or 'draft'} of {document.tenant_id} has no line of {currency} in {month:%Y-%m}: "
                f"run `tallystick rollup`, then again"
            )
    return [charge for charge in charges if _place(document, charge) not in without]


def _place(document: Document, charge: UsageCharge) -> tuple[str, date] | None:
    """Return the currency and month whose rate converts a charge; None where it is in the document's currency."""
    if charge.currency is None or charge.currency == document.currency:
        return None
    return charge.currency, min(charge.local_date.replace(day=1), document.posting_period)


def _rate_of(document: Document, charge: UsageCharge, rates: _Rates) -> Decimal:
    place = _place(document, charge)
    return Decimal(1) if place is None else rates[place]


# --- Checks -----------------------------------------------------------------------------------------------------------


def _check_usage(named: str, document: Document, charges: Iterable[UsageCharge], rates: "_Rates", sign: int) -> None:
    """Refuse charges that are not, digit for digit, what the usage lines come to."""
    charged = _sum(EXACT.multiply(charge.cost, _rate_of(document, charge, rates)) for charge in charges)
    lines = EXACT.multiply(_sum(line.exact_amount for line in document.lines if line.kind == "usage"), Decimal(sign))
    if charged != lines:
        raise ExportRefused(
            f"{named}: fct_focus_charges comes to {charged:f} {document.currency} and its usage lines to {lines:f}: "
            f"run `tallystick rollup`, then again"
        )


def _check_fits(name: str, value: Decimal, kind: pl.Decimal) -> None:
    assert isinstance(kind.scale, int)
    places = -int(value.normalize(EXACT).as_tuple().exponent)
    whole = max(value.adjusted() + 1, 0) if value else 0
    if places > kind.scale or whole > 38 - kind.scale:
        raise ExportRefused(
            f"{name}: {value:f} does not fit {38 - kind.scale} digits before and {kind.scale} after the point, "
            f"and is not rounded; the CSV and JSON of the document have every digit"
        )


def _sum(amounts: Iterator[Decimal] | Iterable[Decimal]) -> Decimal:
    total = Decimal(0)
    for amount in amounts:
        total = EXACT.add(total, amount)
    return total
