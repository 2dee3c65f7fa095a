"""The marts are folds of the ledger: every mart bucket equals what the ledger holds up to the mart's watermark."""

from decimal import Decimal
from tests.dbt.conftest import Marts
from tests.factories import make_event

FACTS = ("fct_usage_15min", "fct_usage_hourly", "fct_cost_daily")


def usage(input_tokens: int, output_tokens: int = 0) -> dict[str, int]:
    return {
        "prompt_tokens": input_tokens,
        "completion_tokens": output_tokens,
        "total_tokens": input_tokens + output_tokens,
    }


async def test_counts_tokens_and_amounts_are_summed_by_quarter_hour_hour_and_day(marts: Marts) -> None:
    marts.ledger.add_tenant().add_source()
    await marts.ledger.add_price(input="2.00", output="8.00")
    await marts.post(
        make_event("a", time="2026-01-15T10:14:59.999999Z", usage=usage(100, 10)),
        make_event("b", time="2026-01-15T10:15:00Z", usage=usage(200, 20)),
    )
    report = marts.roll_up(tests=True)
    assert report.tests_passed > 30
    assert report.rows["fct_usage_15min"] == 2
    # 100 * 2 / 10^6 + 10 * 8 / 10^6 = 0.00028, and twice that.
    assert marts.ledger.rows(
        "select starts_at::text, request_count, input_tokens, output_tokens, charge_amount"
        " from marts.fct_usage_15min order by starts_at"
    ) == [
        ("2026-01-15 10:00:00+00", 1, 100, 10, Decimal("0.00028")),
        ("2026-01-15 10:15:00+00", 1, 200, 20, Decimal("0.00056")),
    ]
    assert marts.ledger.rows(
        "select starts_at::text, request_count, input_tokens, charge_amount, charge_currency from marts.fct_usage_hourly"
    ) == [("2026-01-15 10:00:00+00", 2, 300, Decimal("0.00084"), "USD")]
    assert marts.ledger.rows(
        "select local_date::text, feature, language, provider, model, route, lane, request_count, charge_amount"
        " from marts.fct_cost_daily"
    ) == [("2026-01-15", "chat", "en", "openai", "m-sub", "", "", 2, Decimal("0.00084"))]
