"""Pricing is exact, unrounded, and never takes unknown for zero."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.meters import METERS
from ledger.price_book import Price, RateSet, Unpriced
from ledger.pricing import amount_of, price, unpriced_meters
from tests.ledger.prices import amounts, band, make_card, per_million, priced, quantities, rate_set, variant


def test_b001_cached_tokens_are_priced_once_at_the_cached_rate() -> None:
    card = make_card(per_million(input="2.00", cached="0.50", output="8.00"))
    result = priced([card], quantities(input=500, cached=17500, output=400))
    assert amounts(result) == {
        "uncached_input_tokens": Decimal("0.001"),
        "cache_read_tokens": Decimal("0.00875"),
        "visible_output_tokens": Decimal("0.0032"),
    }
    assert result.amount == Decimal("0.01295")


def test_b002_cache_reads_and_writes_stand_beside_the_input() -> None:
    card = make_card(per_million(input="3.00", write_5m="3.75", cached="0.30", output="15.00"))
    result = priced([card], quantities(input=7, write_5m=300, cached=96000, output=120))
    assert amounts(result) == {
        "uncached_input_tokens": Decimal("0.000021"),
        "cache_read_tokens": Decimal("0.0288"),
        "cache_write_5m_tokens": Decimal("0.001125"),
        "visible_output_tokens": Decimal("0.0018"),
    }
    assert result.amount == Decimal("0.031746")


def test_b003_written_tokens_are_one_line_at_the_write_rate() -> None:
    card = make_card(per_million(input="3.00", write_5m="3.75", cached="0.30", output="15.00"))
    result = priced([card], quantities(input=4, write_5m=21000, cached=0, output=640))
    assert [line.amount for line in result.lines if line.quantity == 21000] == [Decimal("0.07875")]
    assert result.amount == Decimal("0.088362")


def test_b006_one_hour_writes_have_their_own_rate() -> None:
    card = make_card(per_million(input="3.00", write_5m="3.75", write_1h="6.00", cached="0.30", output="15.00"))
    result = priced([card], quantities(input=10, write_5m=50000, write_1h=150000, output=1000))
    assert amounts(result)["cache_write_5m_tokens"] == Decimal("0.1875")
    assert amounts(result)["cache_write_1h_tokens"] == Decimal("0.9")
    assert result.amount == Decimal("1.10253")


def test_b009_reasoning_is_billed_as_output_and_only_once() -> None:
    card = make_card(per_million(input="1.25", output="10.00"))
    result = priced([card], quantities(input=200, output=500, reasoning=1500))
    assert amounts(result)["visible_output_tokens"] + amounts(result)["reasoning_tokens"] == Decimal("0.02")
    assert result.amount == Decimal("0.02025")
    assert [line.priced_as for line in result.lines if line.meter == "reasoning_tokens"] == ["visible_output_tokens"]


def test_b036_audio_output_has_its_own_rate() -> None:
    card = make_card(per_million(input="2.50", output="10.00", output_audio="80.00"))
    result = priced([card], quantities(input=20, output=100, output_audio=500))
    assert amounts(result) == {
        "uncached_input_tokens": Decimal("0.00005"),
        "visible_output_tokens": Decimal("0.001"),
        "visible_output_audio_tokens": Decimal("0.04"),
    }
    assert result.amount == Decimal("0.04105")


def test_b037_text_of_an_image_model_is_priced_as_text() -> None:
    card = make_card(per_million(input="5.00", input_image="8.00", output="10.00", output_image="32.00"))
    result = priced([card], quantities(input=40, input_image=300, output=300, output_image=6000))
    assert result.amount == Decimal("0.1976")


def test_b039_a_price_per_query_does_not_look_at_tokens() -> None:
    card = make_card({"search_units": Price(Decimal("0.0015"), 1)}, provider="vllm")
    assert priced([card], {"search_units": 1}, provider="vllm").amount == Decimal("0.0015")


@pytest.mark.parametrize(("calls", "amount"), [(0, "0.00036"), (2, "0.02036")])
def test_b040_a_tool_is_charged_per_use(calls: int, amount: str) -> None:
    rates = per_million(input="2.00", output="8.00") | {"web_search_calls": Price(Decimal("0.01"), 1)}
    counts = quantities(input=100, output=20, web_search_calls=calls)
    assert priced([make_card(rates)], counts).amount == Decimal(amount)


def test_b041_embeddings_need_no_output_rate() -> None:
    card = make_card(per_million(input="0.02"))
    assert priced([card], {"embedding_input_tokens": 5000}).amount == Decimal("0.0001")


def test_b044_a_missing_component_is_unpriced_or_takes_the_input_rate_and_says_so() -> None:
    rates = per_million(input="3.00", output="15.00")
    counts = quantities(input=100, cached=50000, output=10)
    refused = priced([make_card(rates)], counts)
    assert refused.amount is None
    assert refused.unpriced == ("cache_read_tokens",)
    fallback = priced([make_card(rates, missing_component="use_input_rate")], counts)
    assert fallback.amount == Decimal("0.15045")
    assert [line.priced_as for line in fallback.lines if line.meter == "cache_read_tokens"] == ["uncached_input_tokens"]


def test_b055_ten_lines_of_a_tenth_are_one() -> None:
    tenth = rate_set([make_card({"search_units": Price(Decimal("0.1"), 1)})])
    amount = amount_of({"search_units": 1}, tenth)
    assert amount is not None
    assert sum([amount] * 10, Decimal(0)) == Decimal(1)


def test_b056_small_amounts_are_not_rounded() -> None:
    amount = priced([make_card(per_million(input="0.02"))], {"embedding_input_tokens": 12}).amount
    assert amount == Decimal("0.00000024")
    assert amount * 1_000_000 == Decimal("0.24")


def test_usage_without_any_card_has_every_meter_unpriced() -> None:
    result = price(quantities(output=1, input=2, cached=0), Unpriced("no_card", "none"))
    assert result.amount is None
    assert result.lines == ()
    assert result.unpriced == ("uncached_input_tokens", "visible_output_tokens")


def test_a_meter_that_was_not_used_needs_no_rate() -> None:
    result = priced([make_card(per_million(input="1"))], quantities(input=1, output=0))
    assert result.amount == Decimal("0.000001")
    assert result.unpriced == ()


def test_a_meter_that_we_do_not_know_is_unpriced() -> None:
    one = rate_set([make_card(per_million(input="1"))])
    assert amount_of({"dreams": 1, "uncached_input_tokens": 1}, one) is None
    assert unpriced_meters({"dreams": 1, "uncached_input_tokens": 1}, one) == ("dreams",)


def test_lines_stand_in_meter_order() -> None:
    result = priced(
        [make_card(per_million(input="1", cached="1", output="1"))], quantities(output=1, cached=1, input=1)
    )
    assert [line.meter for line in result.lines] == [
        "uncached_input_tokens",
        "cache_read_tokens",
        "visible_output_tokens",
    ]


def test_a_true_up_may_take_back() -> None:
    rates = rate_set([make_card(per_million(input="3", output="15"))])
    assert amount_of(quantities(input=-1000, output=10), rates) == Decimal("-0.00285")


# --- Properties ------------------------------------------------------------------------------------------------------

prices = st.decimals(min_value=0, max_value=1000, places=9, allow_nan=False).filter(bool)
per = st.sampled_from([1_000_000, 10_000_000, 1_000_000_000])
token_meters = st.sampled_from([meter.name for meter in METERS.values() if meter.unit == "token"])
rates_of_cards = st.dictionaries(token_meters, st.builds(Price, prices, per), min_size=1, max_size=6)
counts = st.integers(min_value=0, max_value=10**12)


@given(rates=rates_of_cards, data=st.data())
def test_lines_sum_to_the_amount_digit_for_digit(rates: dict[str, Price], data: st.DataObject) -> None:
    resolved = rate_set([make_card(rates, missing_component="use_side_rate")])
    used = data.draw(st.dictionaries(st.sampled_from(sorted(resolved.rates)), counts))
    result = price(used, resolved)
    by_hand = [line.quantity * line.price / line.per for line in result.lines]
    assert [line.amount for line in result.lines] == by_hand
    assert result.amount == sum((line.amount for line in result.lines), Decimal(0))


@given(one=counts, other=counts, output=counts, threshold=st.integers(min_value=1, max_value=10**9))
def test_pricing_is_linear_within_a_band_and_jumps_only_at_cliffs(
    one: int, other: int, output: int, threshold: int
) -> None:
    low, high = per_million(input="3", output="15"), band(">", threshold, input="6", output="22.5")
    cards = [make_card(low, bands=(high,))]

    def amount(count: int) -> Decimal:
        total = priced(cards, quantities(input=count, output=output)).amount
        assert total is not None
        return total

    unit = Decimal(3 if one <= threshold else 6).scaleb(-6)
    if (one <= threshold) == (other <= threshold):
        assert amount(other) - amount(one) == (other - one) * unit
    jump = amount(threshold + 1) - amount(threshold)
    assert jump == Decimal(6).scaleb(-6) + threshold * Decimal(3).scaleb(-6) + output * Decimal("7.5").scaleb(-6)


@given(first=st.dictionaries(token_meters, counts), second=st.dictionaries(token_meters, counts))
def test_amounts_add_up_over_requests(first: dict[str, int], second: dict[str, int]) -> None:
    resolved = rate_set([make_card(per_million(input="1.23456789", output="7.1"), missing_component="use_side_rate")])
    both = {name: first.get(name, 0) + second.get(name, 0) for name in first | second}
    parts = [amount_of(part, resolved) for part in (first, second, both)]
    assert parts[0] is not None
    assert parts[1] is not None
    assert parts[0] + parts[1] == parts[2]


def test_rate_sets_hold_no_float() -> None:
    resolved = rate_set([make_card(per_million(input="0.1", output="0.2"), variants=(variant("batch", input="0.05"),))])
    assert isinstance(resolved, RateSet)
    assert all(type(rate.price) is Decimal and type(rate.per) is int for rate in resolved.rates.values())
    assert all(type(scaled) is int for scaled in resolved.scaled_prices.values())
