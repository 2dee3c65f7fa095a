"""Rounding: one rule, at the currency's places, and what is rounded is spread so that it adds up."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.rounding import minor_units, part_of, round_money, spread, total
from ledger.money import EXACT


@pytest.mark.parametrize(
    ("currency", "exact", "rounded", "minor"),
    [
        ("JPY", "4321.48", "4321", 4321),
        ("USD", "43.214", "43.21", 4321),
        ("BHD", "1.2346", "1.235", 1235),
        ("RWF", "51000.4", "51000", 51000),
    ],
)
def test_b123_minor_units_depend_on_the_currency(currency: str, exact: str, rounded: str, minor: int) -> None:
    """WRONG (JPY): 4321.48 x 100 = 432148."""
    found = round_money(Decimal(exact), currency)
    assert str(found) == rounded
    assert minor_units(found, currency) == minor


@pytest.mark.parametrize(
    ("exact", "rounded"),
    [
        ("0.005", "0.01"),
        ("-0.005", "-0.01"),
        ("0.0049999", "0.00"),
        ("2.675", "2.68"),
        ("-2.674999999999999999", "-2.67"),
    ],
)
def test_a_half_goes_away_from_zero(exact: str, rounded: str) -> None:
    assert round_money(Decimal(exact), "USD") == Decimal(rounded)


def test_what_rounds_to_nothing_has_no_sign() -> None:
    assert str(round_money(Decimal("-0.004"), "USD")) == "0.00"


def test_b057_printed_lines_add_up() -> None:
    """3 x 0.3349 = 1.0047, printed 1.00 = 0.34 + 0.33 + 0.33. WRONG (lines rounded): 3 x 0.33 = 0.99."""
    exact = [Decimal("0.3349")] * 3
    assert spread(Decimal("1.00"), exact, "USD") == [Decimal("0.34"), Decimal("0.33"), Decimal("0.33")]


_AMOUNTS = st.decimals(min_value=-1000, max_value=1000, allow_nan=False, places=7)


@given(st.lists(_AMOUNTS, min_size=1, max_size=12), st.sampled_from(["USD", "JPY", "BHD"]))
def test_spread_parts_add_up_and_stay_within_a_minor_unit(exact: list[Decimal], currency: str) -> None:
    rounded = round_money(total(exact), currency)
    parts = spread(rounded, exact, currency)
    assert total(parts) == rounded
    unit = round_money(Decimal(1), currency).scaleb(round_money(Decimal(1), currency).as_tuple().exponent)  # type: ignore[arg-type]
    assert all(abs(EXACT.subtract(part, each)) < unit for part, each in zip(parts, exact, strict=True))


def test_a_sum_that_is_not_that_of_the_parts_is_not_spread() -> None:
    with pytest.raises(ValueError, match="not the rounded sum"):
        spread(Decimal("2.00"), [Decimal("0.10")], "USD")


def test_b126_a_part_is_of_the_whole_period() -> None:
    """920.00 x 50 / 92 = 500. WRONG: 920.00 x 50 / 50 = 920."""
    assert part_of(Decimal("920.00"), 50, 92) == Decimal(500)
    assert str(part_of(Decimal("100.00"), 10, 31)) == "32.258064516129"
