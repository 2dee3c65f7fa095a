"""FOCUS 1.2: the rows of a document add up to what is due, and keep every rule of the specification that can be executed."""

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import polars as pl
import pytest

from billing.documents import CreditApplied, Document
from billing.errors import ExportRefused
from billing.exports.focus import SCHEMA, UsageCharge, decimal_text, focus_frame, focus_rows, to_focus_csv, to_parquet
from tests.billing import focus_rules
from tests.billing.documents import make_document, make_line


def make_charge(quantity: int = 1_000_000, price: str = "10.00", **overrides: Any) -> UsageCharge:
    """Return a day of input tokens at a price per million."""
    values: dict[str, Any] = {
        "local_date": date(2026, 1, 15),
        "charge_class": "",
        "feature": "chat",
        "language": "en",
        "provider": "openai",
        "model": "gpt-5-mini",
        "route": "",
        "lane": "interactive",
        "region": "eu-central-1",
        "service_tier": "",
        "meter": "uncached_input_tokens",
        "rate_set_id": 7,
        "quantity": Decimal(quantity),
        "cost": quantity * Decimal(price) / 1_000_000,
        "unit_price": Decimal(price),
        "per": 1_000_000,
    }
    return UsageCharge(**{**values, **overrides})


def everything() -> tuple[Document, list[UsageCharge]]:
    """An invoice of all that there is: usage of two meters and days, late usage, a correction, an amount stated, a fee, a discount, a
    minimum, rounding, tax, and a grant.

    10.004 + 5 - 0.3 + 1.5 + 99 - 2 + 3 = 116.204, rounded 116.20; 19 % is 22.078, 22.08; less 50.
    """
    charges = [
        make_charge(1_000_400),
        make_charge(250_000, "20.00", meter="visible_output_tokens", local_date=date(2026, 1, 31)),
        make_charge(-30_000, charge_class="Correction", local_date=date(2025, 12, 30)),
        make_charge(1, meter="amount_stated", cost=Decimal("1.5"), unit_price=None, per=None, rate_set_id=0),
    ]
    agreed: dict[str, Any] = {
        "feature": None,
        "provider": None,
        "model": None,
        "meter": None,
        "quantity": None,
        "unit_price": None,
        "per": None,
    }
    lines = [
        make_line("10.00", exact_amount=Decimal("10.004")),
        make_line("5.00", meter="visible_output_tokens"),
        make_line("-0.30", service_start=date(2025, 12, 1), service_end=date(2026, 1, 1)),
        make_line("1.50", meter="amount_stated"),
        make_line("99.00", kind="fee", description="Platform fee", **agreed),
        make_line("-2.00", kind="discount", description="Agreed discount", **agreed),
        make_line("3.00", kind="minimum", description="Minimum of the month", **agreed),
    ]
    return make_document(lines, credits=[CreditApplied("grant-1", "Prepaid", Decimal("50.00"))]), charges


def frame_of(document: Document, charges: list[UsageCharge]) -> pl.DataFrame:
    return focus_frame(focus_rows(document, charges))


def by_kind(frame: pl.DataFrame) -> dict[str, Decimal]:
    return dict(frame.group_by("x_LineKind").agg(pl.col("BilledCost").sum()).rows())


def test_the_rows_of_an_invoice_add_up_to_what_is_due_and_the_rounding_is_a_row() -> None:
    document, charges = everything()
    frame = frame_of(document, charges)
    assert by_kind(frame) == {
        "usage": Decimal("16.204"),
        "fee": Decimal(99),
        "discount": Decimal(-2),
        "minimum": Decimal(3),
        "rounding": Decimal("-0.004"),
        "tax": Decimal("22.08"),
        "grant": Decimal(-50),
    }
    # 116.20 + 22.08 - 50.00
    assert frame["BilledCost"].sum() == document.amount_due == Decimal("88.28")
    assert set(frame["InvoiceId"]) == {"NW-2026-0001"}


def test_every_executable_rule_of_the_specification_holds() -> None:
    outcome = focus_rules.check(frame_of(*everything()))
    assert outcome.failed.keys() == focus_rules.EXCEPTIONS.keys(), outcome.failed
    assert len(outcome.passed) > 200
    # Each rule that was not executed says why.
    assert len(outcome.passed) + len(outcome.failed) + len(outcome.skipped) == 621
    reasons = {reason.split(":")[0] for reason in outcome.skipped.values()}
    assert reasons == {
        "about conduct over time or outside the file",
        "allows something and asks for nothing",
        "not ours",
        "of a column that is not in the file",
    }


@pytest.mark.parametrize(
    ("column", "value", "rule_id"),
    [
        ("BilledCost", None, "BilledCost-C-003-M"),
        ("ChargeCategory", "Refund", "ChargeCategory-C-003-M"),
        ("ListCost", Decimal(1), "ListCost-C-009-C"),
        ("ContractedUnitPrice", Decimal(-1), "ContractedUnitPrice-C-009-C"),
        ("ConsumedUnit", None, "ConsumedUnit-C-006-C"),
        ("SkuPriceId", None, "SkuPriceId-C-005-C"),
        ("PricingUnit", None, "PricingUnit-C-006-C"),
        ("BillingCurrency", "ZZZ", "BillingCurrency-C-006-M"),
        ("SkuPriceDetails", '{"x_Model": {}}', "SkuPriceDetails-C-001-M"),
        ("ServiceCategory", "Compute", "ServiceSubcategory-C-004-M"),
        ("RegionName", None, "RegionName-C-005-C"),
    ],
)
def test_the_rules_see_what_is_wrong(column: str, value: Any, rule_id: str) -> None:
    """Else they would hold for anything."""
    frame = frame_of(*everything())
    broken = frame.with_columns(pl.lit(value, dtype=SCHEMA[column]).alias(column))
    assert rule_id in focus_rules.check(broken).failed


def test_a_missing_column_is_seen() -> None:
    assert "CostAndUsage-D-025-M" in focus_rules.check(frame_of(*everything()).drop("ChargeDescription")).failed


def test_usage_is_tokens_at_a_price_per_million() -> None:
    """1,000,400 tokens at 10.00 per million are 10.004; by the plan, at 12.00, they would be 12.0048."""
    document, charges = everything()
    charge = make_charge(
        1_000_400, list_unit_price=Decimal("12.00"), selectors={"band": ">200000", "markup": "1.3", "cost": "ab"}
    )
    row = frame_of(document, [charge, *charges[1:]]).row(0, named=True)
    assert row["ConsumedQuantity"] == 1_000_400
    assert row["ConsumedUnit"] == "Tokens"
    assert (row["PricingQuantity"], row["PricingUnit"]) == (Decimal("1.0004"), "1000000 Tokens")
    assert (row["ContractedUnitPrice"], row["ContractedCost"]) == (Decimal(10), Decimal("10.004"))
    assert (row["ListUnitPrice"], row["ListCost"]) == (Decimal(12), Decimal("12.0048"))
    assert row["BilledCost"] == row["EffectiveCost"] == Decimal("10.004")
    assert row["SkuId"] == "openai/gpt-5-mini/uncached_input_tokens"
    assert row["SkuPriceId"] == "openai/gpt-5-mini/uncached_input_tokens@7"
    # What a price was chosen by, and nothing of the cost behind a markup.
    assert json.loads(row["SkuPriceDetails"]) == {
        "x_Band": ">200000", "x_Meter": "uncached_input_tokens", "x_Model": "gpt-5-mini", "x_Provider": "openai",
    }  # fmt: skip
    assert (row["x_Feature"], row["x_Language"], row["x_Route"], row["x_Lane"]) == ("chat", "en", None, "interactive")


def test_days_and_months_begin_at_the_tenants_midnight() -> None:
    """Berlin in January is an hour ahead of UTC."""
    row = frame_of(*everything()).row(0, named=True)
    assert row["ChargePeriodStart"] == datetime(2026, 1, 14, 23, tzinfo=UTC)
    assert row["ChargePeriodEnd"] == datetime(2026, 1, 15, 23, tzinfo=UTC)
    assert row["BillingPeriodStart"] == datetime(2025, 12, 31, 23, tzinfo=UTC)
    assert row["BillingPeriodEnd"] == datetime(2026, 1, 31, 23, tzinfo=UTC)


def test_a_correction_of_a_billed_month_is_classed_and_an_amount_stated_is_an_adjustment() -> None:
    frame = frame_of(*everything())
    assert frame.filter(pl.col("ChargeClass") == "Correction")["BilledCost"].to_list() == [Decimal("-0.3")]
    stated = frame.filter((pl.col("ChargeCategory") == "Adjustment") & (pl.col("x_LineKind") == "usage")).row(
        0, named=True
    )
    assert stated["BilledCost"] == Decimal("1.5")
    assert stated["ConsumedQuantity"] is None
    assert stated["ListUnitPrice"] is None


def test_fees_are_purchases_discounts_and_grants_are_credits() -> None:
    frame = frame_of(*everything())
    kinds = dict(frame.select("x_LineKind", "ChargeCategory").unique().filter(pl.col("x_LineKind") != "usage").rows())
    assert kinds == {
        "fee": "Purchase", "discount": "Credit", "minimum": "Adjustment", "rounding": "Adjustment", "tax": "Tax", "grant": "Credit",
    }  # fmt: skip


def test_a_credit_note_is_negative_and_corrects() -> None:
    """Usage of 10.00 taken back, with 1.90 of tax."""
    note = make_document(
        kind="credit_note", number="NW-C-2026-0001", corrects_number="NW-2026-0001", reason="Wrong price"
    )
    frame = frame_of(note, [make_charge(-1_000_000)])
    assert frame["BilledCost"].sum() == Decimal("-11.90")
    assert set(frame["ChargeClass"]) == {"Correction"}
    assert set(frame["InvoiceId"]) == {"NW-C-2026-0001"}
    outcome = focus_rules.check(frame)
    assert set(outcome.failed) <= focus_rules.EXCEPTIONS.keys(), outcome.failed


def test_charges_that_are_not_the_invoices_usage_are_refused() -> None:
    """A mart that is behind would make a file that looks whole."""
    document, charges = everything()
    with pytest.raises(
        ExportRefused, match=r"comes to 6\.20 EUR and its usage lines to 16\.204: run `tallystick rollup`"
    ):
        focus_rows(document, charges[1:])


def test_usage_of_another_currency_that_came_to_nothing_has_no_rate_and_no_rows() -> None:
    """A request of December's dollars reversed and sent again for another day: the invoice has no line for it, and so no rate."""
    document, charges = everything()
    taken = make_charge(-7_000_000, currency="USD", charge_class="Correction", local_date=date(2025, 12, 10))
    again = make_charge(7_000_000, currency="USD", local_date=date(2025, 12, 20))
    assert focus_rows(document, [*charges, taken, again]) == focus_rows(document, charges)
    with pytest.raises(ExportRefused, match="has no line of USD in 2025-12: run `tallystick rollup`"):
        focus_rows(document, [*charges, taken])


def test_a_voided_invoice_is_no_charge() -> None:
    document = make_document(state="voided")
    with pytest.raises(ExportRefused, match="was voided: it is no charge"):
        focus_rows(document, [make_charge()])


@pytest.mark.parametrize(
    ("column", "value", "fits"),
    [
        ("BilledCost", Decimal("0." + "0" * 23 + "1"), True),
        ("BilledCost", Decimal("0." + "0" * 24 + "1"), False),
        ("BilledCost", Decimal("9" * 14), True),
        ("BilledCost", Decimal("1" + "0" * 14), False),
        ("ListUnitPrice", Decimal("0." + "0" * 17 + "1"), True),
        ("ListUnitPrice", Decimal("0." + "0" * 18 + "1"), False),
        ("ConsumedQuantity", Decimal(10**28), True),
        ("ConsumedQuantity", Decimal(10**29), False),
    ],
)
def test_what_does_not_fit_a_decimal_is_refused_and_not_rounded(column: str, value: Decimal, fits: bool) -> None:
    row = {**focus_rows(*everything())[0], column: value}
    if fits:
        assert focus_frame([row])[column].to_list() == [value]
    else:
        with pytest.raises(ExportRefused, match=f"{column}: .* does not fit"):
            focus_frame([row])


def test_parquet_and_csv_have_the_same_rows() -> None:
    frame = frame_of(*everything())
    assert pl.read_parquet(io.BytesIO(to_parquet(frame))).equals(frame)
    read = pl.read_csv(io.StringIO(to_focus_csv(frame)), infer_schema=False)
    assert read.columns == frame.columns
    assert [Decimal(text) for text in read["BilledCost"]] == frame["BilledCost"].to_list()
    assert read["ChargePeriodStart"][0] == "2026-01-14T23:00:00Z"
    assert read["ConsumedQuantity"][0] == "1000400.0"
    assert read["ChargeClass"][0] is None


def test_the_same_document_makes_the_same_bytes() -> None:
    assert to_parquet(frame_of(*everything())) == to_parquet(frame_of(*everything()))
    assert to_focus_csv(frame_of(*everything())) == to_focus_csv(frame_of(*everything()))


@pytest.mark.parametrize(
    ("value", "text"), [("1E+3", "1000.0"), ("0.250", "0.25"), ("-0.004", "-0.004"), ("0", "0.0"), ("7.00", "7.0")]
)
def test_a_decimal_of_a_csv_has_a_point_and_no_exponent(value: str, text: str) -> None:
    assert decimal_text(Decimal(value)) == text
