"""Spend by tag: parts that add up, and wholes that overlap and say so."""

from decimal import Decimal

from tests.dbt.conftest import Marts
from tests.dbt.test_rollup import FACTS, holds, set_up, usage
from tests.factories import make_event

MARTS = ("path:models/marts/tags", "fct_cost_daily", "dim_tenants")

TAGS = {"a": "", "b": "", "c": ""}


async def test_b111_a_request_with_several_tags_is_not_worth_several_requests(marts: Marts) -> None:
    """0.90 and 0.10 under a, b, c, and 1.00 under none: 0.30 each, 0.033333333334 or ...333 each, 1.00: 2.00 in all."""
    await set_up(marts)
    await marts.post(
        make_event("nine", tags=TAGS, usage=usage(900_000)),
        make_event("one", tags=TAGS, usage=usage(100_000)),
        make_event("none", usage=usage(1_000_000)),
    )
    marts.roll_up(*MARTS, tests=True)
    rows = marts.ledger.rows("select tag, charge_amount, request_count from marts.fct_tag_cost_daily order by tag")
    assert rows == [
        ("a", Decimal("0.333333333334"), Decimal("0.666666666668")),
        ("b", Decimal("0.333333333333"), Decimal("0.666666666666")),
        ("c", Decimal("0.333333333333"), Decimal("0.666666666666")),
        ("untagged", Decimal("1.00"), 1),
    ]
    assert sum(amount for _, amount, _ in rows) == Decimal("2.00")
    assert marts.ledger.rows(
        "select tag, charge_amount_overlapping, request_count_overlapping from marts.fct_tag_overlap_daily order by tag"
    ) == [
        ("a", Decimal("1.00"), 2),
        ("b", Decimal("1.00"), 2),
        ("c", Decimal("1.00"), 2),
        ("untagged", Decimal("1.00"), 1),
    ]


async def test_b111_the_view_that_overlaps_says_so_in_each_of_its_numbers(marts: Marts) -> None:
    await set_up(marts)
    marts.roll_up(*MARTS)
    described = marts.ledger.rows(
        "select a.attname, col_description(c.oid, a.attnum), obj_description(c.oid) from pg_class as c"
        " join pg_attribute as a on a.attrelid = c.oid and a.attnum > 0"
        " where c.oid = 'marts.fct_tag_overlap_daily'::regclass and a.atttypid in ('bigint'::regtype, 'numeric'::regtype)"
    )
    assert len(described) == 10
    for name, said, grain in described:
        assert name.endswith("_overlapping")
        assert "never add two tags" in said
        assert "NOT additive" in grain


async def test_what_a_better_report_takes_back_has_the_parts_of_what_it_takes_back(marts: Marts) -> None:
    """0.0000010 under three tags becomes 0.0000020: each part is that of the sum, and nothing of the first is left."""
    await set_up(marts)
    await marts.post(make_event("a", request_id="r", tags=TAGS, usage=usage(1), final=False))
    marts.roll_up(*MARTS)
    await marts.post(make_event("b", request_id="r", tags={"d": "x"}, usage=usage(2)))
    marts.roll_up(*MARTS, tests=True)
    assert marts.ledger.rows("select tag, charge_amount, request_count from marts.fct_tag_cost_daily order by tag") == [
        ("a", 0, 0),
        ("b", 0, 0),
        ("c", 0, 0),
        ("d=x", Decimal("0.000002"), 1),
    ]


async def test_a_tag_that_is_called_untagged_is_not_the_row_of_what_has_none(marts: Marts) -> None:
    await set_up(marts)
    await marts.post(make_event("a", tags={"untagged": ""}, usage=usage(1)), make_event("b", usage=usage(10)))
    marts.roll_up(*MARTS)
    assert marts.ledger.rows("select is_tagged, tag, input_tokens from marts.fct_tag_cost_daily order by 1") == [
        (False, "untagged", 10),
        (True, "untagged", 1),
    ]


async def test_parts_of_large_amounts_are_cut_at_twelve_places(marts: Marts) -> None:
    """1,000,000,000,001 tokens at 1 USD per million are 1,000,000.000001; a seventh is 142,857.142857285714."""
    await set_up(marts)
    seven = dict.fromkeys("abcdefg", "")
    await marts.post(make_event("a", tags=seven, usage=usage(1_000_000_000_001)))
    marts.roll_up(*FACTS, *MARTS)
    parts = [row[0] for row in marts.ledger.rows("select charge_amount from marts.fct_tag_cost_daily order by tag")]
    assert parts[1:] == [Decimal("142857.142857285714")] * 6
    assert sum(parts) == Decimal("1000000.000001")
    assert holds(marts)
