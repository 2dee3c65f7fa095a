"""From posted usage to a FOCUS file: the mart's rows, with prices, are an invoice's usage to the last digit."""

from collections.abc import AsyncIterator
from datetime import date
from decimal import Decimal

import pytest

from billing.credit_notes import Credited, credit_usage
from billing.errors import ExportRefused
from billing.exports.focus import focus_frame, focus_rows, to_focus_csv, to_parquet
from billing.exports.focus_source import read_charges
from billing.store import find_document
from ledger.database import Connection, connect
from ledger.exchange import ExchangeRate
from ledger.price_store import save_exchange_rates
from tests.api.support import bearer, make_key, site
from tests.billing import focus_rules
from tests.billing.support import FEBRUARY, agree, close, draft, issued, reverse
from tests.dbt.conftest import Marts
from tests.dbt.test_focus_charges import usage
from tests.factories import make_event
from tests.ledger.prices import band, make_card, per_million, variant


@pytest.fixture
async def operator(marts: Marts) -> AsyncIterator[Connection]:
    async with await connect(marts.ledger.database.url_for("tallystick_operator")) as connection:
        yield connection


async def test_the_file_of_real_usage_adds_up_and_keeps_the_rules(marts: Marts, operator: Connection) -> None:
    marts.ledger.add_tenant().add_source()
    await marts.ledger.add_price("m-sub", input="1.25", output="10.00", cached="0.125")
    await marts.ledger.add_price("m-other", input="0.15", output="0.60")
    await marts.post(
        *(
            make_event(
                f"ev-{number}", time=f"2026-01-{1 + number % 28:02d}T{number % 24:02d}:30:00Z",
                model=("m-sub", "m-other")[number % 2], feature=("chat", "search", ...)[number % 3],
                language=("en", "hi")[number % 2], route=("eu", ...)[number % 2], usage=usage(1000 + number, 37 * number),
            )
            for number in range(120)
        )
    )  # fmt: skip
    marts.roll_up("fct_focus_charges")
    await agree(operator, tax_rate="0.19")
    document = await issued(operator)
    rows = focus_rows(document, await read_charges(operator, document))
    frame = focus_frame(rows)
    assert frame["BilledCost"].sum() == document.amount_due
    charged = marts.ledger.value("select sum(charge_amount) from ledger.entries where posting_period = '2026-01-01'")
    assert sum(row["BilledCost"] for row in rows if row["x_LineKind"] == "usage") == charged
    # As many tokens as were used: 120 x 1,000 + 0 + ... + 119, and 37 times that sum.
    assert frame["ConsumedQuantity"].sum() == 120_000 + 7_140 + 37 * 7_140
    outcome = focus_rules.check(frame)
    assert outcome.failed.keys() <= focus_rules.EXCEPTIONS.keys(), outcome.failed
    assert await read_charges(operator, document) == await read_charges(operator, document)
    token = await make_key(marts.ledger, tenant_id="t-alpha")
    async with site(marts.ledger) as here:
        file = f"/v1/documents/{document.document_id}/file"
        over_http = [
            await here.client.get(file, params={"format": name}, headers=bearer(token))
            for name in ("focus", "focus-csv")
        ]
    assert over_http[0].content == to_parquet(frame)
    assert over_http[1].text == to_focus_csv(frame)


async def test_the_list_price_of_a_tenant_with_a_contract_is_the_plans(marts: Marts, operator: Connection) -> None:
    """The plan asks 2.00 per million, and 4.00 above 200,000 tokens and 1.00 for batch; the contract 1.50, 3.00 and 0.75 per thousand million."""
    marts.ledger.add_tenant().add_source()
    await marts.ledger.add_price("m-sub", input="1.00", output="1.00", markup=None)
    plan = make_card(
        per_million(input="2.00", output="2.00"), book="charge", effective_at="2020-01-01T00:00:00Z",
        bands=(band(">", 200_000, input="4.00", output="4.00"),), variants=(variant("batch", input="1.00", output="1.00"),),
    )  # fmt: skip
    contract = make_card(
        per_million(input="1.50", output="1.50"), book="charge", effective_at="2020-01-01T00:00:00Z", tenant_id="t-alpha",
        bands=(band(">", 200_000, input="3.00", output="3.00"),), variants=(variant("batch", input="0.75", output="0.75"),),
    )  # fmt: skip
    await marts.ledger.add_card(plan)
    await marts.ledger.add_card(contract)
    await marts.post(
        make_event("short", usage=usage(100_000)),
        make_event("long", usage=usage(300_000)),
        make_event("batch", usage=usage(100_000), service_tier="batch"),
    )
    marts.roll_up("fct_focus_charges")
    await agree(operator, tax_rate="0.19")
    document = await issued(operator)
    rows = focus_rows(document, await read_charges(operator, document))
    found = sorted(
        (row["ContractedUnitPrice"], row["ContractedCost"], row["ListUnitPrice"], row["ListCost"])
        for row in rows
        if row["x_LineKind"] == "usage"
    )
    assert found == [
        (Decimal("0.75"), Decimal("0.075"), Decimal(1), Decimal("0.1")),
        (Decimal("1.5"), Decimal("0.15"), Decimal(2), Decimal("0.2")),
        (Decimal(3), Decimal("0.9"), Decimal(4), Decimal("1.2")),
    ]


async def test_a_mart_that_lacks_usage_makes_no_file(marts: Marts, operator: Connection) -> None:
    marts.ledger.add_tenant().add_source()
    await marts.ledger.add_price(input="1.00", output="1.00")
    await agree(operator)
    await marts.post(make_event("a", usage=usage(1_000_000)))
    drafted = (await draft(operator)).drafts[0].document
    marts.ledger.superuser.execute("drop table marts.fct_focus_charges cascade")
    with pytest.raises(ExportRefused, match="not there yet: run `tallystick rollup`"):
        await read_charges(operator, drafted)
    marts.roll_up("fct_focus_charges")
    await marts.post(make_event("b", usage=usage(2_000_000), time="2026-01-16T10:00:00Z"))
    document = await issued(operator)
    with pytest.raises(
        ExportRefused, match=r"comes to 1\.\d* USD and its usage lines to 3\.\d*: run `tallystick rollup`"
    ):
        focus_rows(document, await read_charges(operator, document))
    marts.roll_up("fct_focus_charges")
    assert focus_rows(document, await read_charges(operator, document))


async def test_what_corrects_december_is_a_correction_on_januarys_invoice(marts: Marts, operator: Connection) -> None:
    marts.ledger.add_tenant().add_source().add_node()
    await marts.ledger.add_price(input="1.00", output="1.00")
    old = {"request_id": "r-1", "time": "2025-12-15T10:00:00Z"}
    await marts.post(make_event("a", basis="estimated", usage=usage(1_000_000), **old))
    await close(operator, date(2025, 12, 1))
    await marts.post(make_event("b", usage=usage(400_000), **old), make_event("c", usage=usage(5_000_000)))
    marts.roll_up("fct_focus_charges")
    await agree(operator, tax_rate="0.19")
    document = await issued(operator)
    frame = focus_frame(focus_rows(document, await read_charges(operator, document)))
    # 400,000 - 1,000,000 tokens taken back, 5,000,000 used, and 19 % of 4.40.
    assert frame.select("ChargeClass", "ChargeCategory", "BilledCost").sort("BilledCost").rows() == [
        ("Correction", "Usage", Decimal("-0.6")),
        (None, "Tax", Decimal("0.84")),
        (None, "Usage", Decimal(5)),
    ]


async def test_what_a_credit_note_took_is_on_its_file_and_no_longer_on_the_invoices(
    marts: Marts, operator: Connection
) -> None:
    """January bills 3.00; the request of 1.00 is reversed in February and given back: 1.19 with tax."""
    marts.ledger.add_tenant().add_source()
    await marts.ledger.add_price(input="1.00", output="1.00")
    await agree(operator, tax_rate="0.19")
    await marts.post(make_event("a", usage=usage(1_000_000)), make_event("b", usage=usage(2_000_000)))
    invoice = await issued(operator)
    async with await connect(marts.ledger.database.url_for("tallystick_writer")) as writer:
        await reverse(writer, "a")
    credited = await credit_usage(operator, "jane", invoice.number or "", reason="a mistake")
    assert isinstance(credited, Credited)
    await marts.post(make_event("c", usage=usage(5_000_000), time="2026-02-10T10:00:00Z"))
    marts.roll_up("fct_focus_charges")
    note = await find_document(operator, credited.document.number or "")
    frame = focus_frame(focus_rows(note, await read_charges(operator, note)))
    assert frame.select("ChargeClass", "ChargeCategory", "BilledCost").sort("BilledCost").rows() == [
        ("Correction", "Usage", Decimal(-1)),
        ("Correction", "Tax", Decimal("-0.19")),
    ]
    february = await issued(operator, FEBRUARY)
    frame = focus_frame(focus_rows(february, await read_charges(operator, february)))
    assert sorted(frame["BilledCost"]) == [Decimal("0.95"), Decimal(5)]


async def test_an_invoice_in_another_currency_has_its_prices_converted_by_the_rate_of_its_lines(
    marts: Marts, operator: Connection
) -> None:
    """2,000,000 tokens at 1.25 USD per million, and 0.9 EUR for a dollar: 2.25 EUR at 1.125 per million."""
    marts.ledger.add_tenant().add_source()
    await marts.ledger.add_price(input="1.25", output="1.00")
    rate = ExchangeRate(
        from_currency="USD", to_currency="EUR", rate=Decimal("0.9"), effective_at=0, source_address="test",
        checked_on=date(2026, 1, 1),
    )  # fmt: skip
    await save_exchange_rates(operator, [rate], "jane")
    await agree(operator, invoice_currency="EUR")
    await marts.post(make_event("a", usage=usage(2_000_000)))
    marts.roll_up("fct_focus_charges")
    document = await issued(operator)
    assert document.currency == "EUR"
    (row,) = focus_rows(document, await read_charges(operator, document))
    assert (row["BillingCurrency"], row["BilledCost"], row["ContractedUnitPrice"]) == (
        "EUR",
        Decimal("2.25"),
        Decimal("1.125"),
    )
    assert (row["PricingCurrency"], row["PricingCurrencyEffectiveCost"], row["PricingCurrencyContractedUnitPrice"]) == (
        "USD", Decimal("2.5"), Decimal("1.25"),
    )  # fmt: skip
    outcome = focus_rules.check(focus_frame([row]))
    assert outcome.failed.keys() <= focus_rules.EXCEPTIONS.keys(), outcome.failed
