"""What remains: which budget is the tightest, which thresholds are reached, limits of groups, what has no price."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from ledger import registry
from ledger.database import connect
from ledger.times import from_micros, micros, parse_rfc3339
from quotas import granting
from quotas.granting import NewGrant
from quotas.remaining import InForce, Remaining, in_force, remaining
from quotas.terms import GroupLimit
from tests.quotas.support import NOW, add_price, end_budget, set_budget, spend
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


# --- What is remembered -----------------------------------------------------------------------------------------------


async def test_a_read_shows_every_change_at_once_whatever_was_remembered(ledger: Ledger) -> None:
    await add_price(ledger)
    known = InForce()
    async with await connect(ledger.database.url_for("tallystick_api")) as connection:

        async def now(tenant_id: str = "t-alpha") -> dict[str, tuple[str | None, str, str | None]] | None:
            found = (await remaining(connection, [(tenant_id, None)], known)).tenants.get((tenant_id, None))
            if found is None:
                return None
            named = {" ".join([each.budget_id, *map(str, each.group.values())]): each for each in found.budgets}
            return {
                name: (each.limit, each.posted, each.remaining)
                for name, each in named.items()
                if not name.startswith("totals")
            }

        assert await now() == {}
        await set_budget(ledger, window="lifetime", limit="10")
        assert await now() == {"b": ("10", "0", "10")}
        await spend(ledger, "e1", "2.00")
        assert await now() == {"b": ("10", "2", "8")}
        await set_budget(ledger, window="lifetime", limit="5")
        assert await now() == {"b": ("5", "2", "3")}
        own = [GroupLimit(group={"feature": "chat"}, limit=Decimal(7))]
        await set_budget(ledger, budget_id="g", window="lifetime", limit="1", group_by=("feature",))
        assert await now() == {"b": ("5", "2", "3"), "g chat": ("1", "2", "-1")}
        await set_budget(ledger, budget_id="g", window="lifetime", limit="1", group_by=("feature",), group_limits=own)
        assert await now() == {"b": ("5", "2", "3"), "g chat": ("7", "2", "5")}
        await end_budget(ledger)
        await end_budget(ledger, "g")
        assert await now() == {}

        assert await now("t-new") is None, "there is no such tenant"
        ledger.add_tenant("t-new")
        assert await now("t-new") == {}
        await set_budget(ledger, budget_id="n", tenant_id="t-new", window="month", limit="1")
        assert await now("t-new") == {"n": ("1", "0", "1")}

        async with await connect(ledger.database.url_for("tallystick_operator")) as operator:
            instant = micros(datetime.now(UTC))
            prepaid = (await granting.prepay(operator, "test", "t-new", now=instant)).budget_id
            assert await now("t-new") == {"n": ("1", "0", "1"), prepaid: ("0", "0", "0")}
            grant = NewGrant(tenant_id="t-new", amount=Decimal(4), currency="USD")
            await granting.create_grant(operator, "test", grant, key="k-1", now=instant)
        assert await now("t-new") == {"n": ("1", "0", "1"), prepaid: ("4", "0", "4")}


async def test_what_a_grant_had_left_goes_at_its_end_by_the_clock_alone(ledger: Ledger) -> None:
    """It ended an hour ago, and nobody has set the limit since; what was remembered is of before."""
    now = micros(datetime.now(UTC))
    ended, before = now - 3_600_000_000, now - 2 * 3_600_000_000
    async with await connect(ledger.database.url_for("tallystick_operator")) as operator:
        await granting.prepay(operator, "test", "t-alpha", now=before)
        grant = NewGrant(tenant_id="t-alpha", amount=Decimal(4), currency="USD", effective_at=before, expires_at=ended)
        await granting.create_grant(operator, "test", grant, key="k-1", now=before)
        known = InForce()
        old = (await in_force(operator, [("t-alpha", ended - 1)]))["t-alpha", ended - 1]
        known.learn(("t-alpha", None), old)
        found = [await remaining(operator, [("t-alpha", at)], known) for at in (ended - 1, ended, None)]
    assert old.until == from_micros(ended)
    limits = [
        each.limit
        for snapshot in found
        for tenant in snapshot.tenants.values()
        for each in tenant.budgets
        if each.budget_id.startswith("prepaid-")
    ]
    assert limits == ["4", "0", "0"]


async def test_windows_of_yesterday_are_not_those_of_today(ledger: Ledger) -> None:
    """What was true of yesterday is remembered; the statement that reads what moves has today's clock."""
    await set_budget(ledger, window="day", limit="10")
    yesterday = micros(datetime.now(UTC) - timedelta(days=1))
    known = InForce()
    async with await connect(ledger.database.url_for("tallystick_api")) as connection:
        old = (await in_force(connection, [("t-alpha", yesterday)]))["t-alpha", yesterday]
        known.learn(("t-alpha", None), old)
        assert old.until is not None
        assert old.until <= datetime.now(UTC)
        found = await remaining(connection, [("t-alpha", None)], known)
    shown = {each.budget_id: each for each in found.tenants["t-alpha", None].budgets}
    start = shown["b"].window.first_date
    assert start == found.database_time.date()
    assert start == old.until.date(), "the day that begins where yesterday ends"


@pytest.mark.parametrize(
    ("zone", "at", "until"),
    [
        ("UTC", "2026-03-15T23:59:59.999999Z", "2026-03-16T00:00:00Z"),
        ("Europe/Berlin", "2026-03-29T12:00:00Z", "2026-03-29T22:00:00Z"),
        ("Asia/Kathmandu", "2026-03-15T18:14:59Z", "2026-03-15T18:15:00Z"),
        # Cairo has no midnight on 2026-04-24, and Havana two on 2026-11-01: the day begins with the first.
        ("Africa/Cairo", "2026-04-23T12:00:00Z", "2026-04-23T22:00:00Z"),
        ("America/Havana", "2026-11-01T03:59:59.999999Z", "2026-11-01T04:00:00Z"),
        ("America/Havana", "2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z"),
        ("America/Havana", "2026-11-01T05:30:00Z", "2026-11-02T05:00:00Z"),
    ],
)
async def test_what_is_remembered_lasts_until_the_day_turns(ledger: Ledger, zone: str, at: str, until: str) -> None:
    ledger.add_tenant("t-zone", zone=zone)
    asked = ("t-zone", parse_rfc3339(at))
    async with await connect(ledger.database.url_for("tallystick_api")) as connection:
        assert (await in_force(connection, [asked]))[asked].until == from_micros(parse_rfc3339(until))


async def test_what_is_remembered_lasts_until_a_budget_ends_or_the_tenant_changes(ledger: Ledger) -> None:
    ledger.add_tenant("t-zone", zone="Europe/Berlin")
    await set_budget(ledger, tenant_id="t-zone")
    asked = ("t-zone", parse_rfc3339("2026-04-30T21:00:00Z"))
    async with await connect(ledger.database.url_for("tallystick_operator")) as operator:
        # In Dublin the month begins an hour later, and before that it is still April there.
        changed_at = await registry.change_tenant(
            operator, "test", "t-zone", date(2026, 5, 1), time_zone="Europe/Dublin"
        )
        before = (await in_force(operator, [asked]))[asked]
        assert before.until == min(changed_at, from_micros(parse_rfc3339("2026-04-30T22:00:00Z")))
        ends_at = from_micros(parse_rfc3339("2026-04-30T21:30:00Z"))
        ledger.superuser.execute("update quotas.budgets set ended_at = %s where budget_id = 'b'", [ends_at])
        after = (await in_force(operator, [asked]))[asked]
    assert (after.until, [each.budget_id for each in after.budgets]) == (ends_at, ["b", "totals-charge", "totals-cost"])


class Restless:
    """A connection beside which somebody changes budgets before each statement."""

    def __init__(self, connection: Any, ledger: Ledger) -> None:
        self._connection = connection
        self._ledger = ledger

    async def execute(self, *arguments: Any, **options: Any) -> Any:
        self._ledger.superuser.execute("update ledger.versions set budgets = budgets + 1")
        return await self._connection.execute(*arguments, **options)

    def transaction(self) -> Any:
        return self._connection.transaction()


async def test_a_read_ends_however_often_budgets_change(ledger: Ledger) -> None:
    await set_budget(ledger, window="lifetime", limit="10")
    async with await connect(ledger.database.url_for("tallystick_api")) as connection:
        restless: Any = Restless(connection, ledger)
        found = await remaining(restless, [("t-alpha", None), ("t-nobody", None)], InForce())
    assert [each.limit for each in found.tenants["t-alpha", None].budgets if each.budget_id == "b"] == ["10"]
    assert list(found.tenants) == [("t-alpha", None)]


async def test_the_same_list_is_given_while_nothing_moves(ledger: Ledger) -> None:
    """It is what answers are written out by, so it must not stay when anything has."""
    await add_price(ledger)
    await set_budget(ledger, window="lifetime", limit="10")
    known, asked = InForce(), ("t-alpha", None)
    async with await connect(ledger.database.url_for("tallystick_api")) as connection:
        first, second = [(await remaining(connection, [asked], known)).tenants[asked].budgets for _ in range(2)]
        await spend(ledger, "e1", "2.00")
        third = (await remaining(connection, [asked], known)).tenants[asked].budgets
    assert first is second
    assert [each.posted for each in second if each.budget_id == "b"] == ["0"]
    assert [each.posted for each in third if each.budget_id == "b"] == ["2"]


async def test_names_that_arrays_would_mistake_are_read_as_they_are(ledger: Ledger) -> None:
    await add_price(ledger)
    names = ['a"b', "a,b", "a\\b", "{a}", "null", " a "]
    for number, name in enumerate(names):
        await set_budget(ledger, budget_id=name, window="lifetime", limit=str(number + 1), feature=f"f-{number}")
        await spend(ledger, f"e-{number}", "2.00", feature=f"f-{number}")
    found = await shown(ledger)
    assert {name: (found[name].limit, found[name].posted) for name in names} == {
        name: (str(number + 1), "2") for number, name in enumerate(names)
    }
