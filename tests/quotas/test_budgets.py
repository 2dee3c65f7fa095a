"""Budgets: what may be asked for, what a second wish for the same one changes, and what never does."""

from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from ledger.database import connect
from ledger.errors import ActRefused
from ledger.times import parse_rfc3339
from quotas.budgets import list_budgets, scope_text, used_now, window_text
from tests.ledger.test_retention import DECEMBER, close, export, restore, retire
from tests.quotas.support import NOW, add_price, end_budget, excesses, set_budget, spend, windows
from tests.support.ledger import Ledger

# Each row breaks one rule and everything that is checked after it is in order, from the first rule to the last.
REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"tenant_id": "t-nobody"}, "there is no tenant 't-nobody'"),
    ({"provider_account": "acc"}, "there is no provider account 'acc'"),
    ({"model": "m-nobody-knows"}, "there is no model 'm-nobody-knows'"),
    ({"api_key_id": "tsk_0"}, "there is no API key 'tsk_0'"),
    ({"user_hash": "u", "tenant_id": None}, "a user belongs to a tenant: name the tenant too"),
    ({"group_by": ("colour",)}, "cannot group by 'colour'"),
    ({"group_by": ("model", "model")}, "a name in the grouping is there twice"),
    ({"unit": "joules"}, "unit 'joules' is unknown"),
    ({"unit": "requests", "currency": "USD"}, "requests have no currency"),
    ({"currency": None}, "a budget in charge needs a currency"),
    ({"currency": "USD", "group_by": ("currency",)}, "one currency or is grouped by currency, not both"),
    ({"currency": "DOLLAR"}, "currency 'DOLLAR' is no code of ISO 4217"),
    ({"currency": "EUR"}, "tenant t-alpha is charged in USD: a budget in EUR would never move"),
    ({"limit": "NaN"}, "the limit must be a finite number"),
    ({"limit": "-0.01"}, "the limit must not be negative, and -0.01 is"),
    ({"unit": "requests", "currency": None, "limit": "1.5"}, "must be a whole number, and 1.5 is none"),
    ({"group_by": ("currency",), "limit": "1"}, "a limit in money needs a currency"),
    ({"interactive_reserve": Decimal(-1)}, "the interactive reserve must not be negative"),
    ({"thresholds": ["0"]}, "a threshold is a share of the limit above zero"),
    ({"window": "hour"}, "window 'hour' is unknown"),
    ({"window": "days"}, "a window of days needs a length"),
    ({"window": "week", "window_days": 3}, "only a window of days has a length"),
    ({"window": "days", "window_days": 0}, "a window is 1 to 3660 days long, not 0"),
    ({"window": "days", "window_days": 3}, "a window of kind days needs an anchor"),
    ({"window": "anchored_month"}, "a window of kind anchored_month needs an anchor"),
    ({"window": "month", "anchor": date(2026, 1, 1)}, "a window of kind month has no anchor"),
    ({"hardness": "firm"}, "hardness 'firm' is unknown"),
    ({"unknown_price": "guess"}, "policy for an unknown price 'guess' is unknown"),
    ({"missing_estimate": "guess"}, "policy for a missing estimate 'guess' is unknown"),
    ({"window": "lifetime", "since": date(2026, 1, 1)}, "a lifetime window has no beginning"),
    ({"since": date(2026, 3, 16)}, "2026-03-16 is yet to come"),
    ({"budget_id": "totals-mine"}, "'totals-mine' cannot name a budget"),
    ({"limit": "5", "interactive_reserve": Decimal(6)}, "the interactive reserve of 6 must lie within the limit"),
    ({"interactive_reserve": Decimal(6)}, "the interactive reserve of 6 must lie within the limit"),
    ({"thresholds": ["0.8"]}, "thresholds are shares of a limit, and there is no limit"),
]


async def test_a_budget_that_breaks_a_rule_is_refused_in_one_line(ledger: Ledger) -> None:
    for terms, line in REFUSALS:
        with pytest.raises(ActRefused) as refused:
            await set_budget(ledger, **terms)
        assert line in str(refused.value)
        assert "\n" not in str(refused.value)
    assert ledger.value("select count(*) from quotas.budgets where budget_id !~ '^totals-'") == 0
    assert ledger.value("select count(*) from ledger.acts") == 0


async def test_the_first_rule_that_is_broken_is_named(ledger: Ledger) -> None:
    broken = {"tenant_id": "t-nobody", "unit": "joules", "currency": "DOLLAR", "limit": "-1", "window": "days"}
    for name, mended, line in (
        ("tenant_id", "t-alpha", "tenant"),
        ("unit", "charge", "unit"),
        ("currency", "USD", "currency"),
        ("limit", "1", "negative"),
        ("window", "month", "length"),
    ):
        with pytest.raises(ActRefused, match=line):
            await set_budget(ledger, **broken)
        broken[name] = mended
    assert (await set_budget(ledger, **broken)).outcome == "created"


async def test_the_same_scope_unit_and_window_is_the_same_budget(ledger: Ledger) -> None:
    made = await set_budget(ledger, limit="10.00", thresholds=["0.8"], tags={"a": "b"}, user_hash="u-1", budget_id=None)
    assert made.outcome == "created"
    assert made.budget_id.startswith("bud_")
    again = await set_budget(ledger, limit="10", tags={"a": "b"}, user_hash="u-1", budget_id=None)
    assert (again.budget_id, again.outcome) == (made.budget_id, "unchanged")
    changed = await set_budget(ledger, limit="12.00", tags={"a": "b"}, user_hash="u-1", budget_id=None)
    assert (changed.budget_id, changed.outcome) == (made.budget_id, "changed")
    assert ledger.rows("select limit_amount, thresholds from quotas.budgets where budget_id = %s", made.budget_id) == [
        (Decimal("12.00"), [Decimal("0.8")])
    ], "what a change does not name stays"


@pytest.mark.parametrize(
    "other",
    [
        {"feature": "chat"}, {"unit": "cost"}, {"window": "week"}, {"tags": {"a": "b"}}, {"group_by": ("model",)},
        {"window": "days", "window_days": 7, "anchor": date(2026, 1, 1)}, {"tenant_id": None},
    ],
)  # fmt: skip
async def test_another_scope_unit_or_window_is_another_budget(ledger: Ledger, other: dict[str, Any]) -> None:
    await set_budget(ledger, limit="10.00")
    made = await set_budget(ledger, **{"limit": "10.00", "budget_id": None, **other})
    assert made.outcome == "created"


async def test_a_name_is_given_once(ledger: Ledger) -> None:
    await set_budget(ledger, limit="10.00")
    with pytest.raises(ActRefused, match="there is a budget 'b' already"):
        await set_budget(ledger, limit="10.00", feature="chat")
    with pytest.raises(ActRefused, match="budget b has this scope, unit and window already"):
        await set_budget(ledger, limit="11.00", budget_id="c")


async def test_a_budget_starts_with_the_window_in_force(ledger: Ledger) -> None:
    """At 2026-03-15T12:00Z it is the 16th in Kiritimati already."""
    ledger.add_tenant("t-line", zone="Pacific/Kiritimati")
    await add_price(ledger)
    await spend(ledger, "e1", "1", "2026-03-15T09:59:59Z", tenant_id="t-line")
    await spend(ledger, "e2", "2", "2026-03-15T10:00:00Z", tenant_id="t-line")
    await set_budget(ledger, window="day", tenant_id="t-line")
    assert windows(ledger) == {"2026-03-16": "2"}


async def test_since_reaches_back_to_the_window_of_that_day(ledger: Ledger) -> None:
    await add_price(ledger)
    await spend(ledger, "e1", "1", "2026-01-31T23:59:59Z")
    await spend(ledger, "e2", "2", "2026-02-01T00:00:00Z")
    await spend(ledger, "e3", "4", "2026-03-01T00:00:00Z")
    await set_budget(ledger, since=date(2026, 2, 20))
    assert windows(ledger) == {"2026-02-01": "2", "2026-03-01": "4"}
    with pytest.raises(ActRefused, match="budget b counts from 2026-02-01"):
        await set_budget(ledger, since=date(2026, 1, 1))


async def test_a_budget_that_is_overrun_when_set_says_so(ledger: Ledger) -> None:
    """3.00 spent, limit 1.00: 2.00 above by the limit. Soft, it counts no excess; hard again, it does."""
    await add_price(ledger)
    await spend(ledger, "e1", "3.00")
    await set_budget(ledger, limit="1.00", thresholds=["0.5", "4"])
    assert excesses(ledger) == [("limit", "2")]
    assert ledger.rows("select threshold from quotas.threshold_notes order by 1") == [(Decimal("0.5"),), (Decimal(1),)]
    await set_budget(ledger, limit="1.00", hardness="soft")
    await set_budget(ledger, limit="2.50", hardness="hard")
    await set_budget(ledger, limit=None, thresholds=[])
    assert excesses(ledger)[1:] == [("limit", "-2"), ("limit", "0.5"), ("limit", "-0.5")]


async def test_a_reserve_must_fit_into_the_lowered_limit(ledger: Ledger) -> None:
    await set_budget(ledger, limit="10", interactive_reserve=Decimal(4))
    with pytest.raises(ActRefused, match="the interactive reserve of 4 must lie within the limit"):
        await set_budget(ledger, limit="3")
    assert (await set_budget(ledger, limit="4")).outcome == "changed"


async def test_a_window_that_has_lost_its_rows_is_refused(ledger: Ledger, tmp_path: Path) -> None:
    """5.00 in December, which has left the ledger: a budget from January on, or of a tenant that used nothing then, is whole."""
    ledger.add_tenant("t-beta")
    await add_price(ledger)
    await spend(ledger, "e1", "5.00", "2025-12-10T12:00:00Z")
    await spend(ledger, "e2", "1.00", "2026-01-10T12:00:00Z")
    await close(ledger, DECEMBER)
    made = await export(ledger, tmp_path)
    await retire(ledger)
    lost = (
        "usage of 2025-12 has left the ledger, so a window from {} on would lack it: begin later, or restore the month"
    )
    with pytest.raises(ActRefused, match=lost.format("0001-01-01")):
        await set_budget(ledger, window="lifetime", limit="10")
    with pytest.raises(ActRefused, match=lost.format("2025-12-01")):
        await set_budget(ledger, since=date(2025, 12, 31), limit="10")
    with pytest.raises(ActRefused, match=lost.format("2025-12-29")):
        await set_budget(
            ledger, window="week", tenant_id=None, group_by=("tenant_id",), since=date(2026, 1, 2), limit="10"
        )
    await set_budget(ledger, since=date(2026, 1, 1), limit="10")
    await set_budget(ledger, budget_id="other", tenant_id="t-beta", window="lifetime", limit="10")
    assert windows(ledger) == {"2026-01-01": "1"}
    await restore(ledger, made.folder)
    await set_budget(ledger, budget_id="life", window="lifetime", limit="10")
    assert windows(ledger, "life") == {"0001-01-01": "6"}


async def test_an_ended_budget_can_be_set_anew(ledger: Ledger) -> None:
    await set_budget(ledger, limit="1.00")
    await end_budget(ledger)
    with pytest.raises(ActRefused, match="there is no budget in force 'b'"):
        await end_budget(ledger)
    assert (await set_budget(ledger, limit="1.00", budget_id="c")).outcome == "created"


async def test_the_totals_cannot_be_limited_or_ended(ledger: Ledger) -> None:
    with pytest.raises(ActRefused, match="gives the totals"):
        await end_budget(ledger, "totals-charge")
    with pytest.raises(ActRefused, match="budget totals-cost gives totals and has no limit"):
        await set_budget(ledger, tenant_id=None, unit="cost", group_by=("tenant_id", "currency"), budget_id=None)


async def test_what_is_set_raises_the_version_and_is_written_down(ledger: Ledger) -> None:
    before = ledger.value("select budgets from ledger.versions")
    await set_budget(ledger, limit="1.00")
    await set_budget(ledger, limit="2.50")
    assert ledger.value("select budgets from ledger.versions") == before + 2
    acts = ledger.rows("select actor, act, detail from ledger.acts order by act_id")
    assert [(actor, act) for actor, act, _ in acts] == [("test", "budgets.set"), ("test", "budgets.change")]
    assert acts[1][2] == {"budget_id": "b", "before": {"limit_amount": "1.00"}, "after": {"limit_amount": "2.50"}}


async def test_a_list_says_what_is_used_of_the_window_in_force(ledger: Ledger) -> None:
    await add_price(ledger)
    await set_budget(ledger, limit="10.00", feature="chat", tags={"a": "b"})
    await set_budget(ledger, budget_id="days", window="days", window_days=7, anchor=date(2026, 3, 12), unit="requests")
    await spend(ledger, "e1", "1.25", tags={"a": "b"})
    async with await connect(ledger.database.url_for("tallystick_operator")) as connection:
        listed = {each.budget_id: each for each in await list_budgets(connection, tenant_id="t-alpha")}
        used = await used_now(connection, now=parse_rfc3339(NOW))
    assert set(listed) == {"b", "days", "totals-charge", "totals-cost"}
    assert scope_text(listed["b"]) == "tenant=t-alpha feature=chat tag a=b"
    assert window_text(listed["days"]) == "7 days from 2026-03-12"
    assert scope_text(listed["totals-cost"]) == "for each tenant, currency"
    assert (used["b"].posted, used["b"].window_start) == (Decimal("1.25"), date(2026, 3, 1))
    assert (used["days"].posted, used["days"].window_start) == (Decimal(0), date(2026, 3, 12))
