"""fct_focus_charges: a row per meter and day, which sums to what the ledger charges and tells corrections of billed months."""

from datetime import date
from decimal import Decimal

from tests.dbt.conftest import Marts
from tests.factories import make_event
from tests.ledger.prices import make_card, per_million


def usage(input_tokens: int, output_tokens: int = 0) -> dict[str, int]:
    return {
        "prompt_tokens": input_tokens,
        "completion_tokens": output_tokens,
        "total_tokens": input_tokens + output_tokens,
    }


MARTS = ("fct_focus_charges", "dim_tenants")
COLUMNS = "local_date::text, charge_class, sku_meter, consumed_quantity, billed_cost"


async def test_each_meter_and_local_day_is_a_row_with_its_exact_charge(marts: Marts) -> None:
    """23:30 UTC is the next day in Kathmandu: 1,000 x 2 / 10^6 and 10 x 8 / 10^6 on the 15th, 500 x 2 / 10^6 on the 16th."""
    marts.ledger.add_tenant(zone="Asia/Kathmandu").add_source()
    await marts.ledger.add_price(input="2.00", output="8.00")
    await marts.post(
        make_event("a", time="2026-01-15T10:00:00Z", usage=usage(1000, 10)),
        make_event("b", time="2026-01-15T23:30:00Z", usage=usage(500)),
    )
    marts.roll_up(*MARTS, tests=True)
    assert marts.ledger.rows(f"select {COLUMNS} from marts.fct_focus_charges order by 1, 3") == [
        ("2026-01-15", "", "uncached_input_tokens", 1000, Decimal("0.002")),
        ("2026-01-15", "", "visible_output_tokens", 10, Decimal("0.00008")),
        ("2026-01-16", "", "uncached_input_tokens", 500, Decimal("0.001")),
    ]
    assert marts.ledger.rows("select distinct billing_currency, rate_set_id > 0 from marts.fct_focus_charges") == [
        ("USD", True)
    ]


async def test_what_corrects_a_billed_month_is_a_correction_and_what_came_late_is_not(marts: Marts) -> None:
    """January is closed with 100 tokens. Then the first request turns out to be 70, and 5 tokens of January come late."""
    marts.ledger.add_tenant().add_source().add_node()
    await marts.ledger.add_price(input="1.00", output="1.00")
    await marts.post(
        make_event("a", request_id="r-1", basis="estimated", usage=usage(100), time="2026-01-15T10:00:00Z")
    )
    marts.ledger.close_period("t-alpha", date(2026, 1, 1))
    await marts.post(
        make_event("b", request_id="r-1", usage=usage(70), time="2026-01-15T10:00:00Z"),
        make_event("late", request_id="r-2", usage=usage(5), time="2026-01-15T11:00:00Z"),
    )
    # Reported twice inside February: the better report corrects nothing that was invoiced.
    await marts.post(make_event("c", request_id="r-3", basis="estimated", usage=usage(10), time="2026-02-15T10:00:00Z"))
    await marts.post(make_event("d", request_id="r-3", usage=usage(12), time="2026-02-15T10:00:00Z"))
    marts.roll_up(*MARTS, tests=True)
    rows = marts.ledger.rows(
        f"select posting_period::text, {COLUMNS} from marts.fct_focus_charges where sku_meter <> '' order by 1, 2, 3"
    )
    assert rows == [
        ("2026-01-01", "2026-01-15", "", "uncached_input_tokens", 100, Decimal("0.0001")),
        ("2026-02-01", "2026-01-15", "", "uncached_input_tokens", 5, Decimal("0.000005")),
        ("2026-02-01", "2026-01-15", "Correction", "uncached_input_tokens", -30, Decimal("-0.00003")),
        ("2026-02-01", "2026-02-15", "", "uncached_input_tokens", 12, Decimal("0.000012")),
    ]


async def test_what_has_no_price_is_counted_under_no_meter(marts: Marts) -> None:
    marts.ledger.add_tenant().add_source()
    await marts.ledger.add_price(input="1.00", output="1.00")
    await marts.post(make_event("a", usage=usage(100)), make_event("b", model="m-nobody-knows", usage=usage(40, 2)))
    marts.roll_up(*MARTS, tests=True)
    assert marts.ledger.rows(
        "select sku_meter, billed_cost, charge_unpriced_count, charge_unpriced_tokens"
        " from marts.fct_focus_charges order by 1"
    ) == [("", 0, 1, 42), ("uncached_input_tokens", Decimal("0.0001"), 0, 0)]


async def test_a_new_price_during_a_day_is_a_row_of_its_own(marts: Marts) -> None:
    """100 tokens at 1 and 100 at 3 per million: two rows, since a row has one unit price."""
    marts.ledger.add_tenant().add_source()
    await marts.ledger.add_price(input="1.00", output="1.00")
    await marts.ledger.add_card(
        make_card(per_million(input="3.00", output="1.00"), effective_at="2026-01-15T12:00:00Z")
    )
    await marts.post(
        make_event("a", time="2026-01-15T11:59:59Z", usage=usage(100)),
        make_event("b", time="2026-01-15T12:00:00Z", usage=usage(100)),
    )
    marts.roll_up(*MARTS, tests=True)
    assert marts.ledger.rows("select billed_cost from marts.fct_focus_charges order by 1") == [
        (Decimal("0.0001"),),
        (Decimal("0.0003"),),
    ]
