"""Reservations: who may spend, what is held for them, and what gives it back."""

import re
from decimal import Decimal
from typing import Any

import pytest

from ledger import feeds, registry
from ledger.corrections import Difference, Request, Reverse, Wanted, correct
from ledger.database import connect
from ledger.errors import StaleBooks
from ledger.times import from_micros, parse_rfc3339
from quotas.asks import Settlement
from quotas.errors import AskRefused
from quotas.reservations import expire, extend, look_up, reserve, settle, void
from quotas.terms import Step
from tallystick.verify import verify
from tests.quotas.support import (
    RECEIVED,
    Desk,
    add_price,
    differences,
    end_budget,
    excesses,
    make_ask,
    set_budget,
    spend,
    spending,
)
from tests.support.ledger import Ledger
from tests.support.waiting import until

SECOND = 1_000_000
DAY = 86_400 * SECOND


async def used(ledger: Ledger, event_id: str, amount: str, reservation_id: str | None, **overrides: Any) -> None:
    await spend(ledger, event_id, amount, reservation_id=reservation_id, **overrides)


def state(ledger: Ledger, reservation_id: str) -> str:
    return str(ledger.value("select state from quotas.reservations where reservation_id = %s", reservation_id))


def unsound(ledger: Ledger) -> list[str]:
    """What the proof of budgets and excess finds wrong."""
    proof = verify(ledger.database.url)
    return [failure.text for failure in proof.failures if failure.part in ("budgets", "excess")]


# --- Deciding ---------------------------------------------------------------------------------------------------------


async def test_what_is_admitted_is_held(ledger: Ledger) -> None:
    """0.25 spent, 0.50 held, 0.25 left: 0.26 is too much, and 0.25 is not."""
    await add_price(ledger)
    await set_budget(ledger, limit="1.00")
    await spend(ledger, "e1", "0.25")
    async with Desk(ledger) as desk:
        (first,) = await desk.ask("r1", "0.50")
        assert (first.outcome, first.state) == ("admitted", "held")
        assert [(hold.budget_id, hold.held) for hold in first.holds] == [("b", "0.5")]
        assert first.tightest is not None
        assert (first.tightest.limit, Decimal(first.tightest.remaining)) == ("1", Decimal("0.25"))
        (second,) = await desk.ask("r2", "0.26")
        assert (second.outcome, second.reason, second.state) == ("refused", "limit", None)
        assert desk.window() == ("0.25", "0.5")
        (third,) = await desk.ask("r3", "0.25")
        assert third.outcome == "admitted"
        assert desk.window() == ("0.25", "0.75")
    assert unsound(ledger) == []


async def test_all_budgets_must_pass_and_the_tightest_is_named(ledger: Ledger) -> None:
    """Of 10 dollars and 5 requests, three calls of 3.00: the fourth finds 1.00 left, a third of a call; two requests are two."""
    await add_price(ledger)
    await set_budget(ledger, budget_id="money", limit="10")
    await set_budget(ledger, budget_id="calls", unit="requests", limit="5")
    async with Desk(ledger) as desk:
        decisions = await desk.reserve(*(make_ask(f"r{number}", "3.00") for number in range(4)))
        assert [d.outcome for d in decisions] == ["admitted"] * 3 + ["refused"]
        assert [d.tightest and d.tightest.budget_id for d in decisions] == ["money"] * 4
        assert [d.tightest and d.tightest.remaining for d in decisions][-1] == "1"
        assert (desk.window("money"), desk.window("calls")) == (("0", "9"), ("0", "3")), "all or none"
        (small,) = await desk.ask("r5", "0.01")
        assert small.tightest is not None
        assert (small.tightest.budget_id, small.tightest.remaining) == ("calls", "1")


async def test_asks_of_one_call_are_decided_in_their_order(ledger: Ledger) -> None:
    await add_price(ledger)
    await set_budget(ledger, limit="1.00")
    async with Desk(ledger) as desk:
        amounts = ["0.60", "0.50", "0.40", "0.01"]
        decisions = await desk.reserve(*(make_ask(f"r{n}", amount) for n, amount in enumerate(amounts)))
        assert [d.outcome for d in decisions] == ["admitted", "refused", "admitted", "refused"]
        assert desk.window() == ("0", "1")


@pytest.mark.parametrize(("amount", "outcome"), [("0.999999", "admitted"), ("1", "admitted"), ("1.000001", "refused")])
async def test_up_to_the_limit_is_admitted(ledger: Ledger, amount: str, outcome: str) -> None:
    await add_price(ledger)
    await set_budget(ledger, limit="1")
    async with Desk(ledger) as desk:
        (decision,) = await desk.ask("r1", amount)
    assert decision.outcome == outcome


async def test_zero_forbids_and_none_does_not_limit_b099(ledger: Ledger) -> None:
    """Under 0, 0.01 is refused and what is free is admitted; without a limit both are."""
    await add_price(ledger)
    await ledger.add_price("m-free", input="1.00", output="1.00")
    await set_budget(ledger, budget_id="b0", limit="0", feature="zero")
    await set_budget(ledger, budget_id="bn", limit=None, feature="none")
    async with Desk(ledger) as desk:
        found = {
            (feature, amount): (await desk.ask(f"{feature}-{amount}", amount, feature=feature))[0].outcome
            for feature in ("zero", "none")
            for amount in ("0.01", "0")
        }
    assert found == {
        ("zero", "0.01"): "refused", ("zero", "0"): "admitted", ("none", "0.01"): "admitted", ("none", "0"): "admitted",
    }  # fmt: skip


async def test_spend_under_one_scope_does_not_use_up_another_b098(ledger: Ledger) -> None:
    """2.00 under the team's key; the user's own key has 1.00 of its own, of which 0.10 is held: 1.00 - 0.10 = 0.90."""
    await add_price(ledger)
    for key in ("team", "personal"):
        ledger.superuser.execute(
            "insert into ledger.api_keys (key_id, secret_hash, source, scopes) values (%s, %s, 'gateway://eu-1', '{budgets:read}')",
            [f"tsk_{key}", key.encode()],
        )
    await set_budget(ledger, budget_id="team", api_key_id="tsk_team", limit="50.00")
    await set_budget(ledger, budget_id="user", api_key_id="tsk_personal", user_hash="u", limit="1.00")
    await spend(ledger, "c1", "2.00", api_key_id="tsk_team", user_hash="u")
    async with Desk(ledger) as desk:
        (decision,) = await desk.ask("c2", "0.10", api_key_id="tsk_personal", user_hash="u")
        assert decision.outcome == "admitted"
        assert decision.tightest is not None
        assert (decision.tightest.budget_id, decision.tightest.remaining) == ("user", "0.9")
        assert desk.window("team") == ("2", "0")


async def test_the_batch_lane_may_not_touch_the_interactive_reserve(ledger: Ledger) -> None:
    """Of 10.00, 4.00 are for people: batch gets 6.00."""
    await add_price(ledger)
    await set_budget(ledger, limit="10.00", interactive_reserve=Decimal("4.00"))
    async with Desk(ledger) as desk:
        asks = [
            make_ask("b1", "6.00", lane="batch"), make_ask("b2", "0.01", lane="batch"),
            make_ask("i1", "4.00", lane="interactive"), make_ask("i2", "0.01"),
        ]  # fmt: skip
        decisions = await desk.reserve(*asks)
    assert [d.outcome for d in decisions] == ["admitted", "refused", "admitted", "refused"]
    assert [d.tightest and d.tightest.limit for d in decisions] == ["6", "6", "10", "10"]


async def test_without_an_estimate_the_budgets_policy_decides_b094(ledger: Ledger) -> None:
    """1.00, of which 0.90 is spent: `refuse` admits none of 20, holding 0.05 each admits floor(0.10 / 0.05) = 2."""
    await add_price(ledger)
    await set_budget(ledger, budget_id="no", feature="no", limit="1.00")
    await set_budget(
        ledger, budget_id="some", feature="some", limit="1.00", missing_estimate="hold",
        missing_estimate_amount=Decimal("0.05"),
    )  # fmt: skip
    for feature in ("no", "some"):
        await spend(ledger, f"e-{feature}", "0.90", feature=feature)
    async with Desk(ledger) as desk:
        found = {}
        for feature in ("no", "some"):
            decisions = await desk.reserve(*(make_ask(f"{feature}{n}", feature=feature) for n in range(20)))
            found[feature] = [d.outcome for d in decisions].count("admitted")
            assert {d.reason for d in decisions} - {None} == {"missing_estimate" if feature == "no" else "limit"}
        assert found == {"no": 0, "some": 2}
        assert desk.window("some") == ("0.9", "0.1")


async def test_a_price_that_nobody_knows_is_refused_or_admitted_by_policy(ledger: Ledger) -> None:
    await set_budget(ledger, budget_id="no", feature="no", limit="1.00")
    await set_budget(ledger, budget_id="yes", feature="yes", limit="1.00", unknown_price="admit")
    await set_budget(ledger, budget_id="tokens", unit="total_tokens", limit="1000")
    async with Desk(ledger) as desk:
        asks = [
            make_ask(feature, feature=feature, model="m-new", input_tokens=500, output_tokens=100)
            for feature in ("no", "yes")
        ]
        refused, admitted = await desk.reserve(*asks)
        assert (refused.outcome, refused.reason) == ("refused", "unknown_price")
        assert admitted.outcome == "admitted"
        assert {hold.budget_id: hold.held for hold in admitted.holds} == {"yes": "0", "tokens": "600"}


async def test_soft_and_shadow_limits_refuse_nothing_and_are_noted(ledger: Ledger) -> None:
    await add_price(ledger)
    await set_budget(ledger, budget_id="soft", limit="1.00", hardness="soft")
    await set_budget(ledger, budget_id="shadow", limit="1.00", hardness="shadow", feature="chat")
    async with Desk(ledger) as desk:
        decisions = await desk.reserve(*(make_ask(f"r{n}", "0.60", feature="chat") for n in range(2)))
    assert [d.outcome for d in decisions] == ["admitted", "admitted"]
    assert ledger.rows(
        "select reservation_id, kind, budget_id, trim_scale(taken)::text from quotas.decisions order by kind"
    ) == [("r1", "shadow", "shadow", "0.6"), ("r1", "soft", "soft", "0.6")]


async def test_a_refusal_says_when_to_ask_again(ledger: Ledger) -> None:
    """At noon UTC: spent for the day, the day after; only held, in five seconds; more than the limit, never; lifetime, never."""
    await add_price(ledger)
    for feature, window in (("day", "day"), ("life", "lifetime")):
        await set_budget(
            ledger, budget_id=feature, feature=feature, limit="1.00", window=window, now="2026-03-10T00:00:00Z"
        )
    async with Desk(ledger) as desk:
        for feature in ("day", "life"):
            await desk.ask(f"held-{feature}", "0.80", feature=feature)
        (held,) = await desk.ask("r1", "0.30", feature="day")
        (never,) = await desk.ask("r2", "1.01", feature="day")
        await used(ledger, "e1", "0.75", None, feature="day")
        await used(ledger, "e2", "0.75", None, feature="life")
        (spent,) = await desk.ask("r3", "0.30", feature="day")
        (life,) = await desk.ask("r4", "0.30", feature="life")
    assert [decision.outcome for decision in (held, never, spent, life)] == ["refused"] * 4
    assert [decision.retry_at and decision.retry_at.isoformat() for decision in (held, never, spent, life)] == [
        "2026-03-10T12:00:05+00:00", None, "2026-03-11T00:00:00+00:00", None,
    ]  # fmt: skip


async def test_a_window_turns_at_the_tenants_midnight_b089(ledger: Ledger) -> None:
    """Brisbane's August ends at 14:00 UTC. 100.00 of 100.00 spent: refused before, admitted at it; then 100.00 - 0.40 = 99.60."""
    ledger.add_tenant("t-brisbane", zone="Australia/Brisbane")
    await add_price(ledger)
    await set_budget(ledger, tenant_id="t-brisbane", limit="100.00", now="2026-08-01T00:00:00Z")
    await spend(ledger, "e1", "100.00", "2026-08-20T00:00:00Z", tenant_id="t-brisbane")
    async with Desk(ledger, "2026-08-31T13:59:59Z") as desk:
        (q1,) = await desk.ask("q1", "0.50", tenant_id="t-brisbane")
        assert q1.outcome == "refused"
        desk.at = parse_rfc3339("2026-08-31T14:00:00Z")
        (q2,) = await desk.ask("q2", "0.50", tenant_id="t-brisbane")
        assert q2.outcome == "admitted"
        await used(ledger, "e2", "0.40", "q2", tenant_id="t-brisbane", time="2026-08-31T14:00:05Z")
        assert desk.window(window_start="2026-09-01") == ("0.4", "0")
        (q3,) = await desk.ask("q3", "99.61", tenant_id="t-brisbane")
        (q4,) = await desk.ask("q4", "99.60", tenant_id="t-brisbane")
        assert (q3.outcome, q4.outcome) == ("refused", "admitted")


async def test_no_job_resets_a_window_b090(ledger: Ledger) -> None:
    """30 days from 2026-01-10: 2.00 of 10.00 spent stays so; 8.00 is admitted and a cent more is not, until 2026-02-09."""
    await add_price(ledger)
    await set_budget(
        ledger,
        window="days",
        window_days=30,
        anchor=parse_date("2026-01-10"),
        limit="10.00",
        now="2026-01-10T10:00:00Z",
    )
    await spend(ledger, "e1", "2.00", "2026-01-10T10:03:00Z")
    async with Desk(ledger, "2026-01-10T10:30:00Z") as desk:
        for number, at in enumerate(("2026-01-10T10:10:00Z", "2026-01-10T10:20:00Z", "2026-02-08T23:59:59Z")):
            desk.at = parse_rfc3339(at)
            (decision,) = await desk.ask(f"q{number}", "8.01")
            assert decision.outcome == "refused"
            assert desk.window(window_start="2026-01-10") == ("2", "0")
        desk.at = parse_rfc3339("2026-02-09T00:00:00Z")
        (decision,) = await desk.ask("q9", "10.00")
        assert decision.outcome == "admitted"


def parse_date(text: str) -> Any:
    return from_micros(parse_rfc3339(f"{text}T00:00:00Z")).date()


async def test_thresholds_are_noted_when_holds_reach_them(ledger: Ledger) -> None:
    await add_price(ledger)
    await set_budget(ledger, limit="1.00", thresholds=["0.5", "0.8"])
    async with Desk(ledger) as desk:
        await desk.ask("r1", "0.50")
        await desk.ask("r2", "0.10")
    assert ledger.rows("select trim_scale(threshold)::text, batch_id from quotas.threshold_notes") == [("0.5", None)]


async def test_a_budget_over_tenants_is_held_against_by_all(ledger: Ledger) -> None:
    ledger.add_tenant("t-beta", zone="Asia/Tokyo")
    ledger.superuser.execute(
        "insert into ledger.provider_accounts (provider_account, provider, currency) values ('acc', 'openai', 'USD')"
    )
    await add_price(ledger)
    await set_budget(ledger, tenant_id=None, provider_account="acc", unit="total_tokens", limit="1000", window="day")
    async with Desk(ledger, "2026-03-15T23:00:00Z") as desk:
        decisions = await desk.reserve(
            *(
                make_ask(f"r-{tenant}", tenant_id=tenant, provider_account="acc", input_tokens=500, output_tokens=100)
                for tenant in ("t-alpha", "t-beta")
            )
        )
        assert [d.outcome for d in decisions] == ["admitted", "refused"]
        assert desk.window(window_start="2026-03-15") == ("0", "600")


async def test_a_group_has_its_own_window(ledger: Ledger) -> None:
    await add_price(ledger)
    await set_budget(ledger, group_by=("feature",), limit="1.00")
    async with Desk(ledger) as desk:
        decisions = await desk.reserve(
            *(make_ask(f"r{n}", "0.60", feature=feature) for n, feature in enumerate(("chat", "chat", "code")))
        )
    assert [d.outcome for d in decisions] == ["admitted", "refused", "admitted"]
    assert [hold.group_key for hold in decisions[2].holds] == ['["code"]']


# --- Steps on the way down --------------------------------------------------------------------------------------------

STEPS = [
    Step(at=Decimal("0.5"), action="degrade", route="small", output_tokens_max=100, hold=Decimal("0.10")),
    Step(at=Decimal("0.8"), action="refuse"),
]


async def test_a_call_is_degraded_on_the_way_down(ledger: Ledger) -> None:
    """Of 1.00: as asked up to 0.50, degraded with 0.10 held up to 0.80, then refused. 0.40 + 0.10 x 4 = 0.80."""
    await add_price(ledger)
    await set_budget(ledger, limit="1.00", steps=STEPS)
    await set_budget(ledger, budget_id="out", unit="output_tokens", limit="100000")
    await set_budget(ledger, budget_id="small", unit="requests", route="small", limit="3")
    async with Desk(ledger) as desk:
        asks = [make_ask(f"r{n}", "0.40", route="large", input_tokens=10, output_tokens=500) for n in range(6)]
        decisions = await desk.reserve(*asks)
        assert [d.outcome for d in decisions] == ["admitted"] + ["degraded"] * 3 + ["refused"] * 2
        assert [(d.route, d.output_tokens_max) for d in decisions[:2]] == [(None, None), ("small", 100)]
        assert {hold.budget_id: Decimal(hold.held) for hold in decisions[1].holds} == {
            "b": Decimal("0.10"), "out": 100, "small": 1,
        }, "the route's own budget counts"  # fmt: skip
        assert desk.window() == ("0", "0.7"), "the small route's three requests are used up before the share is"
        again = (await look_up(desk.connection, [("t-alpha", "r1")]))["t-alpha", "r1"]
        assert (again.route, again.step) == ("small", {"route": "small", "output_tokens_max": 100})
        (replayed,) = await desk.reserve(asks[1])
        assert (replayed.outcome, replayed.route, replayed.is_replay) == ("degraded", "small", True)
    assert [row[0] for row in ledger.rows("select kind from quotas.decisions order by decision_id")] == [
        "degraded", "degraded", "degraded", "refused", "refused",
    ]  # fmt: skip
    assert unsound(ledger) == []


# --- The id is the key ------------------------------------------------------------------------------------------------


async def test_an_admit_that_is_asked_again_is_answered_with_where_it_stands(ledger: Ledger) -> None:
    await add_price(ledger)
    await set_budget(ledger, limit="1.00")
    async with Desk(ledger) as desk:
        (first,) = await desk.ask("r1", "0.60")
        (again,) = await desk.ask("r1", "0.60")
        assert (again.outcome, again.state, again.is_replay) == ("admitted", "held", True)
        assert (again.expires_at, again.decided_at) == (first.expires_at, first.decided_at)
        assert desk.window() == ("0", "0.6")
        await used(ledger, "e1", "0.20", "r1")
        (again,) = await desk.ask("r1", "0.60")
        assert (again.state, [hold.held for hold in again.holds]) == ("settled", ["0"])


async def test_the_same_id_with_another_ask_is_a_conflict(ledger: Ledger) -> None:
    await add_price(ledger)
    await set_budget(ledger, limit="1.00")
    async with Desk(ledger) as desk:
        await desk.ask("r1", "0.60")
        (other,) = await desk.ask("r1", "0.61")
        assert (other.outcome, other.reason, other.is_admitted) == ("conflict", "conflict", False)
        ledger.add_tenant("t-beta")
        await desk.reload()
        (others,) = await desk.ask("r1", "0.61", tenant_id="t-beta")
        assert others.outcome == "admitted", "an id is the tenant's own"


async def test_a_refusal_is_decided_anew(ledger: Ledger) -> None:
    await add_price(ledger)
    await set_budget(ledger, limit="1.00")
    async with Desk(ledger) as desk:
        await desk.ask("r1", "0.60")
        (refused,) = await desk.ask("r2", "0.60")
        await void(desk.connection, [("t-alpha", "r1")], at=desk.at)
        (admitted,) = await desk.ask("r2", "0.60")
        assert (refused.outcome, admitted.outcome) == ("refused", "admitted")


async def test_the_same_id_twice_in_one_call_is_held_once(ledger: Ledger) -> None:
    await add_price(ledger)
    await set_budget(ledger, limit="1.00")
    async with Desk(ledger) as desk:
        decisions = await desk.reserve(make_ask("r1", "0.60"), make_ask("r1", "0.60"), make_ask("r1", "0.10"))
        assert [(d.outcome, d.is_replay) for d in decisions] == [
            ("admitted", False), ("admitted", True), ("conflict", False),
        ]  # fmt: skip
        assert desk.window() == ("0", "0.6")


async def test_a_tenant_that_nobody_knows_is_refused(ledger: Ledger) -> None:
    await add_price(ledger)
    async with Desk(ledger) as desk:
        unknown, known = await desk.reserve(make_ask("r1", "1", tenant_id="t-nobody"), make_ask("r1", "1"))
    assert (unknown.outcome, unknown.reason, known.outcome) == ("refused", "unknown_tenant", "admitted")


async def test_a_tenant_that_is_suspended_or_gone_is_admitted_nothing_more(ledger: Ledger) -> None:
    """What was admitted before stays and is answered again; and once the tenant is active, it may ask anew."""
    await add_price(ledger)
    await set_budget(ledger, limit="10.00")
    operator = await connect(ledger.database.url_for("tallystick_operator"))
    async with Desk(ledger) as desk, operator:
        (before,) = await desk.ask("r1", "0.60")
        await registry.suspend_tenant(operator, "test", "t-alpha", now=desk.at - SECOND, reason="unpaid")
        await desk.reload()
        again, refused = await desk.reserve(make_ask("r1", "0.60"), make_ask("r2", "0.10"))
        assert (before.outcome, again.outcome, again.is_replay) == ("admitted", "admitted", True)
        assert (refused.outcome, refused.reason) == ("refused", "inactive_tenant")
        assert desk.window() == ("0", "0.6")
        await registry.resume_tenant(operator, "test", "t-alpha", now=desk.at, reason="paid")
        # The books in hand still say that it is suspended: they are not believed.
        with pytest.raises(StaleBooks):
            await desk.reserve(make_ask("r2", "0.10"))
        await desk.reload()
        (admitted,) = await desk.ask("r2", "0.10")
        assert admitted.outcome == "admitted"
        await registry.leave_tenant(operator, "test", "t-alpha", now=desk.at + SECOND, reason="over")
        desk.at += SECOND
        await desk.reload()
        (gone,) = await desk.ask("r3", "0.10")
        assert (gone.outcome, gone.reason) == ("refused", "inactive_tenant")


REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"tenant_id": ""}, "tenant_id: is empty"),
    ({"reservation_id": ""}, "reservation_id: takes 1 to 255"),
    ({"reservation_id": "x" * 256}, "reservation_id: takes 1 to 255"),
    ({"input_tokens": -1}, "input_tokens: is -1"),
    ({"output_tokens": 2**53}, "output_tokens: is 9007199254740992"),
    ({"quantities": {}, "input_tokens": 1}, "quantities: stand beside"),
    ({"quantities": {"joules": 1}}, "quantities: name 'joules'"),
    ({"quantities": {"uncached_input_tokens": -1}}, "quantities.uncached_input_tokens: is -1"),
    ({"charge": Decimal("NaN")}, "charge: is NaN"),
    ({"charge": Decimal(-1)}, "charge: is -1"),
    ({"cost": Decimal(1)}, "cost_currency: goes with cost"),
    ({"ttl_seconds": 0}, "ttl_seconds: is 0"),
    ({"ttl_seconds": 86_401}, "ttl_seconds: is 86401"),
]


@pytest.mark.parametrize(("broken", "line"), REFUSALS)
def test_an_ask_that_breaks_a_rule_is_refused_in_one_line(broken: dict[str, Any], line: str) -> None:
    with pytest.raises(AskRefused) as refused:
        make_ask(**{"reservation_id": "r1", **broken})
    assert str(refused.value).startswith(line)


# --- What entries do to holds -----------------------------------------------------------------------------------------


async def test_a_final_entry_gives_the_rest_back(ledger: Ledger) -> None:
    await add_price(ledger)
    await set_budget(ledger, limit="1.00")
    async with Desk(ledger) as desk:
        await desk.ask("r1", "0.60")
        await used(ledger, "e1", "0.04", "r1")
        assert desk.window() == ("0.04", "0")
        assert state(ledger, "r1") == "settled"
    assert unsound(ledger) == []


async def test_interim_entries_draw_the_hold_and_the_final_one_closes_it(ledger: Ledger) -> None:
    """Reserved 0.60. Interim 0.20: held 0.40. Interim 0.50: 0.10. Final 0.30: nothing is held and 0.30 is posted."""
    await add_price(ledger)
    await set_budget(ledger, limit="1.00")
    async with Desk(ledger) as desk:
        await desk.ask("r1", "0.60")
        for revision, (amount, window) in enumerate(
            (("0.20", ("0.2", "0.4")), ("0.50", ("0.5", "0.1")), ("0.70", ("0.7", "0")), ("0.30", ("0.3", "0.3")))
        ):
            event = spending(
                f"e{revision}", amount, reservation_id="r1", request_id="q", final=False, revision=revision
            )
            await ledger.post(event, received_at=RECEIVED)
            assert desk.window() == window
        assert unsound(ledger) == []
        await used(ledger, "e9", "0.30", "r1", request_id="q")
        assert desk.window() == ("0.3", "0")
    assert unsound(ledger) == []


async def test_attempts_under_an_open_reservation_share_it(ledger: Ledger) -> None:
    """Reserved 0.60: a failed attempt took 0.25, its retry 0.20; 0.35 stays held until the last has come."""
    await add_price(ledger)
    await set_budget(ledger, limit="1.00")
    async with Desk(ledger) as desk:
        await desk.ask("r1", "0.60")
        await used(ledger, "e1", "0.25", "r1", reservation_open=True)
        assert desk.window() == ("0.25", "0.35")
        assert state(ledger, "r1") == "held"
        await used(ledger, "e2", "0.20", "r1")
        assert desk.window() == ("0.45", "0")


async def test_evidence_closes_and_a_duplicate_does_not(ledger: Ledger) -> None:
    """The node's report came first and stands; the gateway's, of a lower rank, is evidence and closes its reservation."""
    ledger.add_source("gateway://low", rank=5)
    await add_price(ledger)
    await set_budget(ledger, limit="2.00")
    async with Desk(ledger) as desk:
        await desk.ask("r1", "0.60")
        await used(ledger, "n1", "0.50", None, request_id="q")
        event = spending("g1", "0.49", request_id="q", source="gateway://low", reservation_id="r1")
        assert ledger.outcomes(await ledger.post(event, received_at=RECEIVED)) == ["evidence"]
        assert (desk.window(), state(ledger, "r1")) == (("0.5", "0"), "settled")
        await desk.ask("r2", "0.60")
        first = spending("g2", "0.10", reservation_id="r2", reservation_open=True)
        await ledger.post(first, received_at=RECEIVED)
        assert ledger.outcomes(await ledger.post(first, received_at=RECEIVED)) == ["duplicate"]
        assert (desk.window(), state(ledger, "r2")) == (("0.6", "0.5"), "held")
    assert unsound(ledger) == []


async def test_corrections_draw_what_is_open_and_close_nothing(ledger: Ledger) -> None:
    """Reserved 0.60, one attempt took 0.20: 0.40 held. Reversed: 0.60. The next is stated 0.05 too low: 0.20 + 0.05, 0.35 held.

    The last one ends it, and what is corrected afterwards holds nothing again.
    """
    await add_price(ledger)
    await set_budget(ledger, limit="1.00")
    async with Desk(ledger) as desk:

        async def change(wanted: Reverse | Difference) -> tuple[tuple[str, str], str]:
            await correct(desk.connection, Wanted(wanted, None), actor="ann", reason="because")
            return desk.window(), state(ledger, "r1")

        await desk.ask("r1", "0.60")
        await used(ledger, "e1", "0.20", "r1", request_id="q1", reservation_open=True)
        assert desk.window() == ("0.2", "0.4")
        assert await change(Reverse(Request("t-alpha", "q1"))) == (("0", "0.6"), "held")
        await used(ledger, "e2", "0.20", "r1", request_id="q2", reservation_open=True)
        assert await change(Difference(Request("t-alpha", "q2"), charge=Decimal("0.05"))) == (("0.25", "0.35"), "held")
        assert unsound(ledger) == []
        await used(ledger, "e3", "0.10", "r1", request_id="q3")
        assert (desk.window(), state(ledger, "r1")) == (("0.35", "0"), "settled")
        assert await change(Reverse(Request("t-alpha", "q3"))) == (("0.25", "0"), "settled")
        assert await change(Reverse(Request("t-alpha", "q2"))) == (("0", "0"), "settled")
    assert unsound(ledger) == []


@pytest.mark.parametrize("interim", [False, True])
async def test_a_void_by_event_closes_its_reservation(ledger: Ledger, interim: bool) -> None:
    """Alone it is a statement that no call was made; after an interim one it takes back the 0.20 that this had drawn."""
    await add_price(ledger)
    await set_budget(ledger, limit="1.00")
    async with Desk(ledger) as desk:
        await desk.ask("r1", "0.60")
        if interim:
            await used(ledger, "e1", "0.20", "r1", request_id="q", final=False)
        await used(ledger, "e2", "0", "r1", request_id="q", status="void")
        assert (desk.window(), state(ledger, "r1")) == (("0", "0"), "settled")
    assert unsound(ledger) == []


async def test_a_request_that_moves_to_another_reservation_closes_that_one(ledger: Ledger) -> None:
    """An interim report named r1 by mistake; the final one names r2, and what is taken back of r1 leaves it open."""
    await add_price(ledger)
    await set_budget(ledger, limit="2.00")
    async with Desk(ledger) as desk:
        await desk.ask("r1", "0.60")
        await desk.ask("r2", "0.50")
        await used(ledger, "e1", "0.20", "r1", request_id="q", final=False)
        assert desk.window() == ("0.2", "0.9")
        await used(ledger, "e2", "0.20", "r2", request_id="q")
        assert desk.window() == ("0.2", "0.6")
        assert (state(ledger, "r1"), state(ledger, "r2")) == ("held", "settled")
    assert unsound(ledger) == []


async def test_a_hold_lives_where_it_was_decided(ledger: Ledger) -> None:
    """Decided on the 10th at 23:59, used on the 11th: the 10th gives its hold back, the 11th gets the usage."""
    await add_price(ledger)
    await set_budget(ledger, limit="1.00", window="day", now="2026-03-10T00:00:00Z")
    async with Desk(ledger, "2026-03-10T23:59:00Z") as desk:
        await desk.ask("r1", "0.60")
        assert desk.window(window_start="2026-03-10") == ("0", "0.6")
        await used(ledger, "e1", "0.50", "r1", time="2026-03-11T00:01:00Z")
        assert desk.window(window_start="2026-03-10") == ("0", "0")
        assert desk.window(window_start="2026-03-11") == ("0.5", "0")


async def test_a_cancelled_call_gives_its_reservation_back_b101(ledger: Ledger) -> None:
    """600, of which 210 is spent; 6 x 60 held and given back; the seventh: 210 + 60 = 270."""
    await add_price(ledger)
    await set_budget(ledger, limit="600")
    await spend(ledger, "e0", "210")
    async with Desk(ledger) as desk:
        await desk.reserve(*(make_ask(f"r{n}", "60") for n in range(6)))
        assert desk.window() == ("210", "360")
        for number in range(3):
            await used(ledger, f"c{number}", "0", f"r{number}", status="cancelled")
        changes = await void(desk.connection, [("t-alpha", f"r{n}") for n in range(3, 6)], at=desk.at)
        assert [(change.state, change.is_changed) for change in changes] == [("voided", True)] * 3
        assert desk.window() == ("210", "0")
        (seventh,) = await desk.ask("r7", "60")
        assert (seventh.outcome, desk.window()) == ("admitted", ("210", "60"))


async def test_cleanup_does_not_undo_a_settlement_b103(ledger: Ledger) -> None:
    """s1 to s3 are refused by the provider; s4 ended, and its 0.30 comes after its session was cleaned up; s5: 0.30 + 0.50 = 0.80."""
    await add_price(ledger)
    await set_budget(ledger, limit="1.50")
    async with Desk(ledger) as desk:
        for session in ("s1", "s2", "s3"):
            await desk.ask(session, "0.50")
            await void(desk.connection, [("t-alpha", session)], at=desk.at)
            assert desk.window() == ("0", "0")
        await desk.ask("s4", "0.50")
        await settle(desk.connection, [Settlement(tenant_id="t-alpha", reservation_id="s4")], at=desk.at)
        (cleaned,) = await void(desk.connection, [("t-alpha", "s4")], at=desk.at)
        assert (cleaned.state, cleaned.is_changed) == ("awaiting_entry", False)
        assert desk.window() == ("0", "0.5")
        await used(ledger, "e4", "0.30", "s4")
        assert desk.window() == ("0.3", "0")
        (late,) = await void(desk.connection, [("t-alpha", "s4")], at=desk.at)
        assert (late.state, late.is_changed) == ("settled", False)
        (s5,) = await desk.ask("s5", "0.50")
        assert (s5.outcome, desk.window()) == ("admitted", ("0.3", "0.5"))
    assert unsound(ledger) == []


async def test_a_call_that_ended_waits_for_its_entry(ledger: Ledger) -> None:
    """At its end it states 0.20 of the 0.60: 0.20 stays, however long; more than was promised cannot be stated."""
    await add_price(ledger)
    await set_budget(ledger, limit="1.00")
    async with Desk(ledger) as desk:
        await desk.reserve(make_ask("r1", "0.60", ttl_seconds=60), make_ask("r2", "0.10", ttl_seconds=60))
        said = [
            Settlement(tenant_id="t-alpha", reservation_id="r1", charge=Decimal("0.20")),
            Settlement(tenant_id="t-alpha", reservation_id="r2", charge=Decimal("0.50")),
            Settlement(tenant_id="t-alpha", reservation_id="r3"),
        ]
        changes = await settle(desk.connection, said, at=desk.at)
        assert [(c.state, c.is_changed) for c in changes] == [("awaiting_entry", True)] * 2 + [(None, False)]
        assert desk.window() == ("0", "0.3")
        swept = await expire_as_operator(ledger, desk.at + 10 * DAY)
        assert swept.expired_count == 0
        assert ledger.value("select count(*) from quotas.awaiting_entries where waits_since > interval '1 day'") == 2
        assert unsound(ledger) == []
        await used(ledger, "e1", "0.25", "r1")
        assert desk.window() == ("0.25", "0.1")


async def expire_as_operator(ledger: Ledger, at: int) -> Any:
    from ledger.database import connect

    async with await connect(ledger.database.url_for("tallystick_operator")) as connection:
        return await expire(connection, at=at)


async def test_a_hold_expires_when_the_feeds_are_past_it(ledger: Ledger) -> None:
    """The worker is down from 12:10 on: what runs out at 12:20 stays until the feed is posted up to there."""
    await add_price(ledger)
    await set_budget(ledger, limit="1.00")
    async with ledger.intake("kafka:c:topic:0", kind="kafka"):
        pass
    async with Desk(ledger) as desk:
        await desk.reserve(make_ask("r1", "0.60", ttl_seconds=300), make_ask("r2", "0.10", ttl_seconds=1200))
        assert (await expire_as_operator(ledger, desk.at + DAY)).watermark is None, "claimed, and nothing posted yet"
        found = {}
        for posted_until in ("12:05:00", "12:05:01", "12:10:00", "12:20:00", "12:20:01"):
            ledger.superuser.execute("update ledger.feeds set posted_until = %s", [f"2026-03-10 {posted_until}Z"])
            found[posted_until] = (await expire_as_operator(ledger, desk.at + 3600 * SECOND)).expired_count
        assert found == {"12:05:00": 0, "12:05:01": 1, "12:10:00": 0, "12:20:00": 0, "12:20:01": 1}
        assert desk.window() == ("0", "0")
        await used(ledger, "e1", "0.20", "r1")
        assert state(ledger, "r1") == "expired", "and what comes late is posted all the same"
        assert desk.window() == ("0.2", "0")
    assert unsound(ledger) == []


async def test_a_topic_that_was_made_anew_does_not_hold_the_sweep_up_for_ever(ledger: Ledger) -> None:
    async with Desk(ledger) as desk:
        for name, until in (
            ("kafka:c:old:0", "2026-03-01"), ("kafka:c:new:0", "2026-03-10"), ("kafka:c:new:1", "2026-03-09"),
        ):  # fmt: skip
            await feeds.claim(desk.connection, "kafka", name)
            ledger.superuser.execute("update ledger.feeds set posted_until = %s where name = %s", [until, name])
    swept = await expire_as_operator(ledger, parse_rfc3339("2026-04-01T00:00:00Z"))
    assert swept.watermark.isoformat() == "2026-03-09T00:00:00+00:00"


async def test_a_call_that_goes_on_gets_more_time(ledger: Ledger) -> None:
    await add_price(ledger)
    await set_budget(ledger, limit="1.00")
    async with Desk(ledger) as desk:
        await desk.ask("r1", "0.60", ttl_seconds=300)
        keys = [("t-alpha", "r1"), ("t-alpha", "none")]
        extended, unknown = await extend(desk.connection, keys, [600, 600], at=desk.at)
        assert (extended.is_changed, extended.expires_at) == (True, from_micros(desk.at + 600 * SECOND))
        assert (unknown.state, unknown.is_changed) == (None, False)
        (less,) = await extend(desk.connection, keys[:1], [10], at=desk.at)
        assert (less.is_changed, less.expires_at) == (False, from_micros(desk.at + 600 * SECOND))
        assert (await expire_as_operator(ledger, desk.at + 600 * SECOND)).expired_count == 0
        assert (await expire_as_operator(ledger, desk.at + 601 * SECOND)).expired_count == 1
        (gone,) = await extend(desk.connection, keys[:1], [600], at=desk.at)
        assert (gone.state, gone.is_changed) == ("expired", False)


# --- Above the limit --------------------------------------------------------------------------------------------------


async def test_the_excess_says_why(ledger: Ledger) -> None:
    """1.00: 0.90 held and 1.10 used is an overrun of 0.10; then usage that never asked, late usage, and a void of the overrun."""
    await add_price(ledger)
    await set_budget(ledger, limit="1.00")
    async with Desk(ledger) as desk:
        await desk.reserve(make_ask("r1", "0.90", basis="expected"), make_ask("r2", "0.05"))
        await void(desk.connection, [("t-alpha", "r2")], at=desk.at)
        await used(ledger, "e1", "1.10", "r1")
        await used(ledger, "e2", "0.20", None)
        await used(ledger, "e3", "0.04", "r2")
        assert excesses(ledger) == [("overrun", "0.1"), ("unreserved", "0.2"), ("late_settle", "0.04")]
        await set_budget(ledger, limit="1.30")
        assert excesses(ledger)[-1] == ("limit", "-0.3")
    assert ledger.rows(
        "select reservation_id, trim_scale(reserved)::text, trim_scale(posted_under)::text from quotas.overshoots"
        " order by 1"
    ) == [("r1", "0.9", "1.1")]
    assert unsound(ledger) == []


async def test_what_is_given_back_lowers_the_excess(ledger: Ledger) -> None:
    """0.90 held, 0.30 comes unasked: 0.20 above. The call takes nothing: all of it is gone."""
    await add_price(ledger)
    await set_budget(ledger, limit="1.00")
    async with Desk(ledger) as desk:
        await desk.ask("r1", "0.90")
        await used(ledger, "e1", "0.30", None)
        await void(desk.connection, [("t-alpha", "r1")], at=desk.at)
    assert excesses(ledger) == [("unreserved", "0.2"), ("release", "-0.2")]
    assert unsound(ledger) == []


async def test_usage_under_a_budget_that_its_reservation_is_not_held_against_is_unreserved(ledger: Ledger) -> None:
    await add_price(ledger)
    await set_budget(ledger, budget_id="chat", feature="chat", limit="1.00")
    await set_budget(ledger, budget_id="code", feature="code", limit="0.10")
    async with Desk(ledger) as desk:
        await desk.ask("r1", "0.90", feature="chat")
        await used(ledger, "e1", "0.30", "r1", feature="code")
        assert desk.window("chat") == ("0", "0")
    assert excesses(ledger, "code") == [("unreserved", "0.2")]


async def test_a_budget_that_ended_still_gets_its_holds_back(ledger: Ledger) -> None:
    await add_price(ledger)
    await set_budget(ledger, limit="1.00")
    async with Desk(ledger) as desk:
        await desk.ask("r1", "0.90")
        await end_budget(ledger)
        (free,) = await desk.ask("r2", "5.00")
        assert (free.outcome, free.holds) == ("admitted", ())
        await used(ledger, "e1", "0.30", "r1")
        assert desk.window() == ("0", "0")
    assert unsound(ledger) == []


# --- What is in flight, and what is forgotten -------------------------------------------------------------------------


async def test_tokens_in_flight_are_those_of_calls_that_have_not_ended(ledger: Ledger) -> None:
    await add_price(ledger)
    async with Desk(ledger) as desk:
        await desk.reserve(
            make_ask("r1", input_tokens=100, output_tokens=50, route="a"),
            make_ask("r2", input_tokens=10, output_tokens=5, route="a"),
            make_ask("r3", input_tokens=1, route="b"),
        )
        await used(ledger, "e1", "0.01", "r2")
    assert ledger.rows("select * from quotas.tokens_in_flight order by route") == [
        ("t-alpha", "a", 1, 100, 50, 0), ("t-alpha", "b", 1, 1, 0, 1),
    ]  # fmt: skip


async def test_what_is_over_is_forgotten_in_time(ledger: Ledger) -> None:
    from ledger.database import connect
    from quotas.reservations import forget

    await add_price(ledger)
    await set_budget(ledger, limit="1.00")
    async with Desk(ledger) as desk:
        await desk.reserve(make_ask("r1", "0.60"), make_ask("r2", "0.10"), make_ask("r3", "0.50"))
        await void(desk.connection, [("t-alpha", "r1")], at=desk.at)
        async with await connect(ledger.database.url_for("tallystick_operator")) as connection:
            assert await forget(connection, before=desk.at) == 0
            assert await forget(connection, before=desk.at + SECOND) == 2, "the refusal, and r1; r2 is open"
        assert ledger.rows("select reservation_id from quotas.reservations") == [("r2",)]
        assert desk.window() == ("0", "0.1")
    assert unsound(ledger) == []
    assert differences(ledger) == []


async def test_what_was_admitted_while_nobody_could_ask_is_held_whatever_there_is(ledger: Ledger) -> None:
    """Limit 1.00, held 0.80; booked 0.50: 0.30 above the limit, by an outage. A void gives it back as a release."""
    await add_price(ledger)
    await set_budget(ledger, limit="1.00")
    async with Desk(ledger) as desk:
        await desk.ask("r1", "0.80")
        asks = [make_ask("r2", "0.50")]
        for is_replay in (False, True):
            (booked,) = await reserve(desk.connection, asks, desk.books, at=desk.at, is_booking=True)
            assert (booked.outcome, booked.state, booked.is_replay) == ("admitted", "held", is_replay)
        assert desk.window() == ("0", "1.3")
        assert ledger.rows("select change, cause from quotas.excess") == [(Decimal("0.30"), "away")]
        (refused,) = await desk.ask("r3", "0.01")
        assert refused.reason == "limit"
        await void(desk.connection, [("t-alpha", "r2")], at=desk.at)
        assert ledger.value("select sum(change) from quotas.excess") == 0


# --- Growing ----------------------------------------------------------------------------------------------------------


async def test_no_call_reads_all_reservations_however_young_its_plans(ledger: Ledger) -> None:
    """Plans are made while the tables are empty, and kept: with 3,000 reservations there each call still goes by key."""
    await add_price(ledger)
    await set_budget(ledger, limit="100")

    async def everything(desk: Desk, number: int) -> None:
        names = [f"{number}-{place}" for place in range(4)]
        await desk.reserve(*(make_ask(name, "0.01") for name in names))
        await extend(desk.connection, [("t-alpha", names[0])], [700], at=desk.at)
        await void(desk.connection, [("t-alpha", names[1])], at=desk.at)
        await settle(desk.connection, [Settlement(tenant_id="t-alpha", reservation_id=names[2])], at=desk.at)
        await used(ledger, f"e-{number}", "0.01", names[3])

    async with Desk(ledger) as desk:
        await desk.connection.execute("set plan_cache_mode = force_generic_plan")
        await everything(desk, 1)
        ledger.superuser.execute(
            "insert into quotas.reservations (tenant_id, reservation_id, content_hash, basis, state, budget_ids, group_keys,"
            " window_starts, reserved, posted_under, decided_at, expires_at)"
            " select 't-alpha', 'old-' || n, gen_random_uuid(), 'expected', 'voided', '{}', '{}', '{}', '{}', '{}', now(), now()"
            " from generate_series(1, 3000) as n"
        )
        await everything(desk, 2)
    # A session tells what it read when it ends at the latest.
    await until(lambda: ledger.value("select count(*) from pg_stat_activity where datname = current_database()") == 1)
    read = ledger.value("select seq_tup_read from pg_stat_user_tables where relid = 'quotas.reservations'::regclass")
    assert read < 1_000, f"{read} reservations were read one after the other"


async def test_ending_many_calls_handles_no_more_rows_for_each_than_ending_few(ledger: Ledger) -> None:
    """Rows that pass through the plan in which `end_reservations` finds what changes, for 40 calls and for 160."""
    await add_price(ledger)
    await set_budget(ledger, limit="100")
    await set_budget(ledger, budget_id="calls", unit="requests", limit="1000")
    body = ledger.value("select prosrc from pg_proc where proname = 'end_reservations'")
    statement = body[body.index("with said") : body.index("if moved.")].replace("into moved", "")
    kinds = {
        "act": "text", "ended": "text", "from_states": "text[]", "now_at": "timestamptz", "tenants": "text[]", "ids": "text[]",
        "charges": "numeric[]", "costs": "numeric[]", "inputs": "bigint[]", "outputs": "bigint[]",
    }  # fmt: skip
    statement = re.sub(rf"\b({'|'.join(kinds)})\b(?!')", lambda name: f"%({name[1]})s::{kinds[name[1]]}", statement)
    counts = []
    async with Desk(ledger) as desk, await connect(ledger.database.url) as superuser:
        for setting in ("seqscan", "hashjoin", "mergejoin"):
            await superuser.execute(f"set enable_{setting} = off")
        for count in (40, 160):
            names = [f"{count}-{number}" for number in range(count)]
            await desk.reserve(*(make_ask(name, "0.01", input_tokens=1) for name in names))
            values = {
                "act": "settle", "ended": "awaiting_entry", "from_states": ["held"], "now_at": from_micros(desk.at),
                "tenants": ["t-alpha"] * count, "ids": names, "charges": [Decimal("0.004")] * count,
                "costs": [None] * count, "inputs": [1] * count, "outputs": [None] * count,
            }  # fmt: skip
            cursor = await superuser.execute(f"explain (analyze, format json) {statement}", values)
            row = await cursor.fetchone()
            assert row is not None
            counts.append(passed(row[0][0]["Plan"]) / count)
            held = ledger.value("select count(*) from quotas.reservations where state = 'awaiting_entry'")
            assert held == sum((40, 160)[: len(counts)]), "the statement is the one that ends them"
    assert counts[1] < 1.2 * counts[0], counts


def passed(plan: dict[str, Any]) -> int:
    """Return how many rows a node gave and threw away over all its rounds, and those below it."""
    seen = sum(value for name, value in plan.items() if name == "Actual Rows" or name.startswith("Rows Removed"))
    return round(seen * plan["Actual Loops"]) + sum(passed(below) for below in plan.get("Plans", ()))
