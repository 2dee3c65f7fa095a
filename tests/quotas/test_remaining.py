"""What remains: which budget is the tightest, which thresholds are reached, limits of groups, what has no price."""

from decimal import Decimal
from typing import Any

from ledger.database import connect
from ledger.times import parse_rfc3339
from quotas.remaining import Remaining, remaining
from quotas.terms import GroupLimit
from tests.quotas.support import NOW, add_price, set_budget, spend
from tests.support.ledger import Ledger


async def shown(ledger: Ledger, tenant_id: str = "t-alpha") -> dict[str, Remaining]:
    """By name, and by the first value of the group where there is one."""
    async with await connect(ledger.database.url_for("tallystick_api")) as connection:
        found = await remaining(connection, [(tenant_id, parse_rfc3339(NOW))])
    budgets = found.tenants[tenant_id, parse_rfc3339(NOW)].budgets
    return {" ".join([each.budget_id, *(str(value) for value in each.group.values())]): each for each in budgets}


def tightest(found: dict[str, Remaining]) -> list[str]:
    return [name for name, each in found.items() if each.is_tightest]


async def test_the_hard_budget_with_the_smallest_share_left_is_the_tightest(ledger: Ledger) -> None:
    """2.00 spent: of 10.00 are 0.8 left, of 100 requests 0.99, of a soft 2.50 0.2; then a day of 3.00 has 0.33 left."""
    await add_price(ledger)
    await set_budget(ledger, budget_id="month", limit="10")
    await set_budget(ledger, budget_id="requests", unit="requests", limit="100")
    await set_budget(ledger, budget_id="soft", window="week", limit="2.50", hardness="soft")
    await spend(ledger, "e1", "2.00", NOW)
    assert tightest(await shown(ledger)) == ["month"]
    await set_budget(ledger, budget_id="day", window="day", limit="3")
    assert tightest(await shown(ledger)) == ["day"]
    await set_budget(ledger, budget_id="zero", feature="mail", limit="0")
    assert tightest(await shown(ledger)) == ["zero"], "a limit of zero leaves nothing"


async def test_without_a_hard_limit_none_is_the_tightest(ledger: Ledger) -> None:
    await set_budget(ledger, limit="10", hardness="shadow")
    await set_budget(ledger, budget_id="none", limit=None, window="day")
    assert tightest(await shown(ledger)) == []


async def test_thresholds_are_shown_while_they_are_reached(ledger: Ledger) -> None:
    await add_price(ledger)
    await set_budget(ledger, limit="10", thresholds=["0.5", "0.80", "1"])
    reached: list[list[str]] = []
    for number, amount in enumerate(("4.99", "0.01", "3.00", "3.00")):
        await spend(ledger, f"e{number}", amount)
        reached.append((await shown(ledger))["b"].thresholds_reached)
    assert reached == [[], ["0.5"], ["0.5", "0.8"], ["0.5", "0.8", "1"]]
    await set_budget(ledger, limit="100")
    assert (await shown(ledger))["b"].thresholds_reached == []


async def test_each_group_shows_its_own_limit(ledger: Ledger) -> None:
    await add_price(ledger)
    own: list[Any] = [
        GroupLimit(group={"feature": "search"}, limit=Decimal(5)), GroupLimit(group={"feature": "mail"}, limit=None),
    ]  # fmt: skip
    await set_budget(ledger, limit="1", group_by=("feature",), group_limits=own)
    for feature in ("chat", "search", "mail"):
        await spend(ledger, f"e-{feature}", "2", feature=feature)
    found = await shown(ledger)
    assert {name: (each.limit, each.remaining) for name, each in found.items() if name.startswith("b ")} == {
        "b chat": ("1", "-1"), "b search": ("5", "3"), "b mail": (None, None),
    }  # fmt: skip


async def test_a_template_shows_a_tenants_own_limit_before_it_moved(ledger: Ledger) -> None:
    ledger.add_tenant("t-beta")
    own = [GroupLimit(group={"tenant_id": "t-beta"}, limit=Decimal(5))]
    await set_budget(ledger, tenant_id=None, limit="1", group_by=("tenant_id",), group_limits=own)
    assert (await shown(ledger))["b t-alpha"].limit == "1"
    assert (await shown(ledger, "t-beta"))["b t-beta"].limit == "5"


async def test_what_has_no_price_is_shown_by_requests_and_tokens(ledger: Ledger) -> None:
    await add_price(ledger)
    await set_budget(ledger, limit="1")
    await spend(ledger, "e1", "0.000030", model="m-nobody-knows", requested_model="m-nobody-knows")
    one = (await shown(ledger))["b"]
    assert (one.posted, one.unpriced_count, one.unpriced_tokens) == ("0", 1, 30)
