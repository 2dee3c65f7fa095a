"""What an hour of a node costs: dated, immutable, refused where it could misprice."""

from datetime import date
from decimal import Decimal
from typing import Any

import pytest

from ledger.database import connect
from ledger.errors import NodeRateRefused
from ledger.node_rates import NodeRate, check_node_rates, list_nodes, read_node_rates, save_node_rates
from ledger.times import from_micros, parse_rfc3339
from tests.factories import make_window
from tests.support.ledger import Ledger


def rate(price: str = "55.04", since: str = "2026-01-01T00:00:00Z", **overrides: Any) -> NodeRate:
    """AWS's p5.48xlarge in us-east-1, as SkyPilot's catalogue had it."""
    given = {
        "gpu_model": "H100", "gpu_count": 8, "hourly_price": Decimal(price), "currency": "USD",
        "effective_at": parse_rfc3339(since), "source_address": "https://aws.example/p5", "checked_on": date(2026, 11, 30),
    }  # fmt: skip
    return NodeRate(**{**given, **overrides})


@pytest.mark.parametrize(
    ("overrides", "rule"),
    [
        ({"gpu_model": ""}, "gpu_model is empty"),
        ({"gpu_model": "H100 "}, "gpu_model is empty or has blanks"),
        ({"gpu_count": 0}, "gpu_count is 0"),
        ({"region": ""}, "region is empty"),
        ({"node_id": ""}, "node_id is empty"),
        ({"region": "eu-1", "node_id": "gpu-7"}, "region stands beside a node"),
        ({"currency": "BTC"}, "currency is 'BTC'"),
        ({"hourly_price": Decimal(0)}, "hourly_price is 0; it takes a number above 0"),
        ({"hourly_price": Decimal("NaN")}, "hourly_price is NaN"),
        ({"hourly_price": Decimal("10000.01")}, "at most 10,000"),
        ({"hourly_price": Decimal("0.0000000000001")}, "more than 12 decimal places"),
        ({"source_address": ""}, "source is empty"),
    ],
)
def test_a_rate_that_could_misprice_is_refused_by_field_and_rule(overrides: dict[str, Any], rule: str) -> None:
    with pytest.raises(NodeRateRefused, match=rule):
        check_node_rates([rate(**overrides)])


def test_two_rates_of_one_instant_are_a_mistake_unless_one_restates_the_other() -> None:
    first = rate("55.04")
    with pytest.raises(NodeRateRefused, match="effective_at is that of another rate"):
        check_node_rates([first, rate("54.00")])
    better = rate("54.00", replaces=first.content_hash)
    assert check_node_rates([first, better]) == [better]
    with pytest.raises(NodeRateRefused, match="which another replaces already"):
        check_node_rates([first, better, rate("53.00", replaces=first.content_hash)])
    with pytest.raises(NodeRateRefused, match="other nodes or another instant"):
        check_node_rates([first, rate("54.00", gpu_count=4, replaces=first.content_hash)])
    with pytest.raises(NodeRateRefused, match="which is no rate"):
        check_node_rates([rate("54.00", replaces=first.content_hash)])


def test_rates_of_other_nodes_stand_beside_each_other() -> None:
    rates = [
        rate(), rate(gpu_count=4), rate(mig_profile="1g.10gb", gpu_count=1), rate(region="eu-1"), rate(node_id="gpu-7"),
    ]  # fmt: skip
    assert len(check_node_rates(rates)) == 5


async def test_rates_are_added_once_with_who_and_why(ledger: Ledger) -> None:
    async with await connect(ledger.database.url_for("tallystick_operator")) as connection:
        assert (
            await save_node_rates(connection, [rate(), rate("60", "2026-06-01T00:00:00Z")], "ada", "new contract") == 2
        )
        assert await save_node_rates(connection, [rate("55.0400")], "ada") == 0
        with pytest.raises(NodeRateRefused):
            await save_node_rates(connection, [rate(gpu_count=4), rate("1")], "ada")
        found = await read_node_rates(connection)
    assert [str(each) for each in found] == [
        "8 x H100 at 55.04 USD an hour", "8 x H100 at 60 USD an hour",
    ]  # fmt: skip
    assert ledger.rows("select actor, act, reason from ledger.acts where act like 'node%%'") == [
        ("ada", "node_rates.add", "new contract")
    ]


async def test_a_nodes_own_rate_counts_before_its_regions_and_that_before_any(ledger: Ledger) -> None:
    """And the rate in force when its newest window began, not a later or a restated one."""
    first = rate("55.04")
    wanted = [
        first, rate("54.00", replaces=first.content_hash), rate("70", "2026-01-15T09:59:00.000001Z"),
        rate("66", region="eu-1"), rate("33", node_id="gpu-3"), rate("5", gpu_count=1), rate("1", mig_profile="1g.10gb"),
    ]  # fmt: skip
    await ledger.post(
        make_window("a", node_id="gpu-1"),
        make_window("b", node_id="gpu-2", region="eu-1"),
        make_window("c", node_id="gpu-3", region="eu-1"),
        make_window("d", node_id="gpu-4", gpu_count=2),
        make_window("e", node_id="gpu-5", gpu_model=...),
        make_window("f", node_id="gpu-6", mig_profile="1g.10gb"),
    )
    async with await connect(ledger.database.url_for("tallystick_operator")) as connection:
        await save_node_rates(connection, wanted, "ada")
        nodes = await list_nodes(connection, since=from_micros(parse_rfc3339("2026-01-15T00:00:00Z")))
    assert [(node.node_id, node.hourly_price) for node in nodes] == [
        ("gpu-1", Decimal("54.00")), ("gpu-2", 66), ("gpu-3", 33), ("gpu-4", None), ("gpu-5", None), ("gpu-6", 1),
    ]  # fmt: skip
