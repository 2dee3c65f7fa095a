"""Parties over time: merges, leaving, suspension and ranks move the future, and never what is in the ledger."""

from datetime import date
from decimal import Decimal
from typing import Any

import pytest

from ingest.usage_events import Speaker
from ledger import registry
from ledger.acts import acts_about
from ledger.api_keys import create_key, revoke_key
from ledger.database import Connection
from ledger.errors import ActRefused, AlreadyThere, Unknown
from ledger.parties import Calendar, Parties, Period, Tenant, TenantVersion
from ledger.times import parse_rfc3339
from tests.factories import GATEWAY, NODE, make_event
from tests.support.ledger import Ledger

FEBRUARY, MARCH = date(2026, 2, 1), date(2026, 3, 1)
LATER = "2026-05-01T00:00:00Z"


def at(text: str) -> int:
    return parse_rfc3339(text)


def dollars(event_id: str, amount: str, when: str, **overrides: Any) -> dict[str, Any]:
    """An event that comes to an amount: tokens of 1.00 a million."""
    tokens = int(Decimal(amount) * 1_000_000)
    return make_event(event_id, time=when, usage={"prompt_tokens": tokens, "completion_tokens": 0}, **overrides)


@pytest.fixture
async def priced(ledger: Ledger) -> Ledger:
    return await ledger.add_price(input="1.00", output="1.00")


def billed(ledger: Ledger) -> dict[tuple[str, date], Decimal]:
    """What each tenant is billed for each month."""
    rows = ledger.rows(
        "select tenant_id, posting_period, sum(charge_amount) from ledger.entries group by 1, 2 order by 1, 2"
    )
    return {(tenant_id, period): amount for tenant_id, period, amount in rows}


# --- The posting period, at its edges -----------------------------------------------------------------------------------


def period(month: int, *, grace_days: int = 3, is_closed: bool = False) -> Period:
    """A month of 2026 in UTC."""
    following = at(f"2026-{month + 1:02}-01T00:00:00Z")
    grace = following + grace_days * 86_400_000_000
    return Period(date(2026, month, 1), at(f"2026-{month:02}-01T00:00:00Z"), following, grace, is_closed)


def test_the_posting_period_in_threes() -> None:
    """The first, not before that of occurred_at, that is open and whose grace ends after recorded_at."""
    calendar = Calendar(1, {"a": (period(1), period(2, is_closed=True), period(3), period(4))})
    grace = at("2026-02-04T00:00:00Z")
    end = at("2026-02-01T00:00:00Z")
    january, march, april = date(2026, 1, 1), date(2026, 3, 1), date(2026, 4, 1)
    expected = {
        # By the time of recording: before, at and after the end of the grace.
        (end - 1, grace - 1): january,
        (end - 1, grace): march,
        (end - 1, grace + 1): march,
        # By the time of usage: before, at and after the end of the month; February is closed.
        (end - 1, end): january,
        (end, end): march,
        (end + 1, end): march,
        # Usage of before the first period is billed in the first that takes it.
        (at("2025-06-01T00:00:00Z"), end): january,
        # Usage of the future is billed in its own month, also before that begins.
        (at("2026-04-30T23:59:59.999999Z"), end): april,
        (at("2026-05-01T00:00:00Z"), end): None,
    }
    assert {given: calendar.posting_period("a", *given) for given in expected} == expected
    assert calendar.posting_period("nobody", end, end) is None


# --- Merges -------------------------------------------------------------------------------------------------------------


async def test_b108_deleting_a_key_does_not_take_the_name_off_its_history(priced: Ledger, operator: Connection) -> None:
    """10 x 0.10 = 1.00 before and after, and no row without a tenant."""
    key = await create_key(operator, actor="test", tenant_id="t-alpha")
    events = [
        dollars(f"e{n}", "0.10", "2026-01-15T10:00:00Z", api_key_id=key.key_id, feature="chat") for n in range(10)
    ]
    await priced.post(*events, received_at=LATER, speaker=Speaker(tenant_id="t-alpha"))
    report = "select tenant_id, api_key_id, feature, sum(charge_amount) from ledger.entries group by 1, 2, 3"
    before = priced.rows(report)
    assert before == [("t-alpha", key.key_id, "chat", Decimal("1.00"))]
    await revoke_key(operator, key.key_id, actor="test")
    assert priced.rows(report) == before
    assert priced.value("select count(*) from ledger.entries where tenant_id is null") == 0


async def test_b109_merging_tenants_moves_the_future_not_the_past(priced: Ledger, operator: Connection) -> None:
    """February t-b 20; March t-b 5 before the merge; March t-a 10 + 7 = 17; the group in March 17 + 5 = 22."""
    priced.add_tenant("t-a").add_tenant("t-b")
    await priced.post(
        dollars("feb-b", "20.00", "2026-02-10T00:00:00Z", tenant_id="t-b"),
        dollars("mar-a", "10.00", "2026-03-10T00:00:00Z", tenant_id="t-a"),
        dollars("mar-b", "5.00", "2026-03-14T23:59:59.999999Z", tenant_id="t-b"),
        received_at=LATER,
    )
    priced.close_period("t-b", FEBRUARY)
    await registry.merge_tenants(operator, "jane", "t-b", "t-a", at=at("2026-03-15T00:00:00Z"), reason="bought")
    await priced.post(dollars("mar-b-after", "7.00", "2026-03-15T00:00:00Z", tenant_id="t-b"), received_at=LATER)
    assert billed(priced) == {
        ("t-a", MARCH): Decimal("17.00"),
        ("t-b", FEBRUARY): Decimal("20.00"),
        ("t-b", MARCH): Decimal("5.00"),
    }
    # The group view follows the merge; the lines before it still carry t-b, and the later ones say how they were sent.
    group = priced.value(
        "select sum(e.charge_amount) from ledger.entries as e join ledger.tenants as t using (tenant_id)"
        " where coalesce(t.merged_into, t.tenant_id) = 't-a' and e.posting_period = %s",
        MARCH,
    )
    assert group == Decimal("22.00")
    assert priced.rows("select tenant_id, sent_tenant_id from ledger.entries where request_id = 'req-mar-b-after'") == [
        ("t-a", "t-b")
    ]
    # Late usage of before the merge is still t-b's.
    await priced.post(dollars("late", "1.00", "2026-03-01T00:00:00Z", tenant_id="t-b"), received_at=LATER)
    assert billed(priced)["t-b", MARCH] == Decimal("6.00")


async def test_a_merge_that_ends_moves_the_future_again(priced: Ledger, operator: Connection) -> None:
    """In threes around both instants: merged on the 15th, its own again from the 20th."""
    priced.add_tenant("t-b")
    merged, unmerged = "2026-03-15T00:00:00Z", "2026-03-20T00:00:00Z"
    await registry.merge_tenants(operator, "jane", "t-b", "t-alpha", at=at(merged), reason="bought")
    for refused, rule in ((at(merged), "is merged from 2026-03-15 00:00:00Z on only"), (at(merged) - 1, "on only")):
        with pytest.raises(ActRefused, match=rule):
            await registry.unmerge_tenant(operator, "jane", "t-b", at=refused)
    await registry.unmerge_tenant(operator, "jane", "t-b", at=at(unmerged), reason="not bought")
    for number, (when, payer) in enumerate(
        (
            ("2026-03-14T23:59:59.999999Z", "t-b"),
            (merged, "t-alpha"),
            ("2026-03-15T00:00:00.000001Z", "t-alpha"),
            ("2026-03-19T23:59:59.999999Z", "t-alpha"),
            (unmerged, "t-b"),
            ("2026-03-20T00:00:00.000001Z", "t-b"),
        )
    ):
        await priced.post(dollars(f"e{number}", "1", when, tenant_id="t-b"), received_at=LATER)
        assert priced.value("select tenant_id from ledger.entries where request_id = %s", f"req-e{number}") == payer
    with pytest.raises(ActRefused, match="tenant t-b is merged into nobody"):
        await registry.unmerge_tenant(operator, "jane", "t-b", at=at(LATER))
    # A second merge would forget when the first one was, by which late usage of its time is booked.
    with pytest.raises(ActRefused, match="tenant t-b was merged into t-alpha before, and merges once"):
        await registry.merge_tenants(operator, "jane", "t-b", "t-alpha", at=at(LATER))


async def test_the_end_of_a_merge_does_not_touch_what_was_booked_under_it(priced: Ledger, operator: Connection) -> None:
    """Also where the payer was itself merged on: t-c's usage went to t-b, and from there to t-alpha."""
    priced.add_tenant("t-b").add_tenant("t-c")
    await registry.merge_tenants(operator, "jane", "t-c", "t-b", at=at("2026-03-01T00:00:00Z"))
    await registry.merge_tenants(operator, "jane", "t-b", "t-alpha", at=at("2026-03-10T00:00:00Z"))
    await priced.post(dollars("a", "1", "2026-03-15T00:00:00Z", tenant_id="t-c"), received_at=LATER)
    assert billed(priced) == {("t-alpha", MARCH): Decimal(1)}
    with pytest.raises(ActRefused, match="usage sent as t-c at 2026-03-15 00:00:00Z is in the ledger already"):
        await registry.unmerge_tenant(operator, "jane", "t-c", at=at("2026-03-12T00:00:00Z"))
    await registry.unmerge_tenant(operator, "jane", "t-c", at=at("2026-03-15T00:00:00.000001Z"))


async def test_refusals_of_merges_in_their_order(ledger: Ledger, operator: Connection) -> None:
    ledger.add_tenant("t-b").add_tenant("t-c")
    when = at("2026-03-15T00:00:00Z")
    await registry.merge_tenants(operator, "jane", "t-b", "t-c", at=when)
    for tenant_id, into, rule in (
        ("nobody", "t-b", "there is no tenant 'nobody'"),
        ("t-alpha", "nobody", "there is no tenant 'nobody'"),
        ("t-alpha", "t-alpha", "cannot be merged into itself"),
        ("t-b", "t-alpha", "tenant t-b is merged into t-c already"),
        # Circles cannot be made: whoever is merged takes nobody in.
        ("t-c", "t-b", "tenant t-b is itself merged into t-c"),
        ("t-alpha", "t-b", "tenant t-b is itself merged into t-c"),
    ):
        with pytest.raises(ActRefused, match=rule):
            await registry.merge_tenants(operator, "jane", tenant_id, into, at=when)


def test_a_circle_of_merges_has_nobody_who_pays() -> None:
    """No command makes one; whoever writes one into the table gets dead letters, and no endless loop."""
    version = (TenantVersion(0, "e", "UTC", "USD"),)
    tenants = {
        "a": Tenant("a", 0, version, merged_into="b", merged_at=5),
        "b": Tenant("b", 0, version, merged_into="a", merged_at=5),
    }
    parties = Parties(1, tenants, {})
    assert parties.tenant_at("a", 4) is tenants["a"]
    assert parties.tenant_at("a", 5) is None


# --- Leaving, and being suspended ---------------------------------------------------------------------------------------


async def test_a_tenant_that_left_is_billed_for_what_comes_late(priced: Ledger, operator: Connection) -> None:
    """B067's neighbour: before, at and after its end, all is recorded; what came after the end says so by its time."""
    left = "2026-03-15T12:00:00Z"
    await registry.leave_tenant(operator, "jane", "t-alpha", now=at(left), reason="over")
    for number, when in enumerate(("2026-03-15T11:59:59.999999Z", left, "2026-03-15T12:00:00.000001Z")):
        posted = await priced.post(dollars(f"e{number}", "1", when), received_at=LATER)
        assert priced.outcomes(posted) == ["created"]
    assert billed(priced) == {("t-alpha", MARCH): Decimal(3)}
    after = priced.value(
        "select count(*) from ledger.entries as e join ledger.tenants as t using (tenant_id) where e.occurred_at >= t.ends_at"
    )
    assert after == 2
    with pytest.raises(ActRefused, match="tenant t-alpha is left"):
        await registry.leave_tenant(operator, "jane", "t-alpha", now=at(LATER))


async def test_what_a_suspended_tenant_uses_is_recorded(priced: Ledger, operator: Connection) -> None:
    await registry.suspend_tenant(operator, "jane", "t-alpha", now=at("2026-03-10T00:00:00Z"), reason="unpaid")
    posted = await priced.post(dollars("a", "1", "2026-03-15T00:00:00Z"), received_at=LATER)
    assert priced.outcomes(posted) == ["created"]
    assert billed(priced) == {("t-alpha", MARCH): Decimal(1)}


# --- Trust of sources ---------------------------------------------------------------------------------------------------


async def report(ledger: Ledger, event_id: str, amount: str, source: str, revision: int = 0) -> str:
    event = dollars(event_id, amount, "2026-03-15T00:00:00Z", source=source, request_id="r", revision=revision)
    (outcome,) = ledger.outcomes(await ledger.post(event, received_at=LATER))
    return outcome


async def test_a_changed_rank_counts_for_what_is_said_from_then_on(priced: Ledger, operator: Connection) -> None:
    """The gateway (20) says 2, and the node (10) says 3, which is evidence. The node's rank becomes 30: nothing moves, also
    not when its old report is sent again. What it says next counts. Lowered to 5, it keeps what it has decided."""
    assert await report(priced, "g", "2", GATEWAY) == "created"
    assert await report(priced, "n", "3", NODE) == "evidence"
    before = priced.rows("select * from ledger.entries order by entry_id")
    assert await registry.rank_source(operator, "jane", NODE, 30, reason="its counters are exact") == 10
    assert priced.rows("select * from ledger.entries order by entry_id") == before
    assert await report(priced, "n", "3", NODE) == "duplicate"
    assert priced.total() == Decimal(2)
    assert await report(priced, "n2", "4", NODE, revision=1) == "created"
    assert priced.total() == Decimal(4)
    await registry.rank_source(operator, "jane", NODE, 5, reason="they were not")
    assert priced.total() == Decimal(4)
    assert await report(priced, "g2", "7", GATEWAY, revision=9) == "evidence", "a statement of rank 30 stands"
    assert await report(priced, "n3", "8", NODE, revision=2) == "evidence"
    assert priced.value("select rank[5] from ledger.requests") == 30


async def test_a_source_speaks_for_whom_it_may_and_what_it_has_said_stays(priced: Ledger, operator: Connection) -> None:
    priced.add_tenant("t-b").add_source("gateway://b", tenants=["t-alpha", "t-b"])

    async def say(event_id: str, tenant_id: str) -> tuple[str, str | None]:
        event = dollars(event_id, "1", "2026-03-15T00:00:00Z", tenant_id=tenant_id, source="gateway://b")
        (result,) = (await priced.post(event, received_at=LATER)).results
        return result.outcome, result.reason

    assert (await say("a", "t-alpha"), await say("b", "t-b")) == (("created", None), ("created", None))
    assert await registry.disallow_tenants(operator, "jane", "gateway://b", ["t-b"], reason="moved") == 1
    assert await say("c", "t-b") == ("dead_letter", "source_may_not_speak")
    assert await say("d", "t-alpha") == ("created", None)
    with pytest.raises(ActRefused, match="would speak for nobody: end it instead"):
        await registry.disallow_tenants(operator, "jane", "gateway://b", ["t-alpha"])
    with pytest.raises(ActRefused, match="speaks for all tenants"):
        await registry.disallow_tenants(operator, "jane", GATEWAY, ["t-alpha"])
    await registry.end_source(operator, "jane", "gateway://b", "gone")
    outcome, reason = await say("e", "t-alpha")
    assert (outcome, reason) == ("dead_letter", "unknown_source")
    await registry.resume_source(operator, "jane", "gateway://b", "back")
    assert await say("f", "t-alpha") == ("created", None)
    with pytest.raises(ActRefused, match="has not ended"):
        await registry.resume_source(operator, "jane", "gateway://b")
    assert priced.value("select sum(charge_amount) from ledger.entries") == Decimal(4)
    history = await acts_about(operator, "sources", "gateway://b")
    assert [each.act for each in history] == ["sources.disallow", "sources.end", "sources.resume"]


# --- Names --------------------------------------------------------------------------------------------------------------


async def test_an_alias_that_is_dropped_prices_nothing_any_more(priced: Ledger, operator: Connection) -> None:
    await registry.set_model(operator, "jane", "openai", "m-sub", aliases=["m-other"])
    await priced.post(dollars("a", "1", "2026-03-15T00:00:00Z", model="m-other"), received_at=LATER)
    assert await registry.drop_alias(operator, "jane", "openai", "m-other", "another model") == "m-sub"
    await priced.post(dollars("b", "1", "2026-03-15T00:00:00Z", model="m-other"), received_at=LATER)
    assert priced.rows("select model, charge_amount from ledger.entries order by entry_id") == [
        ("m-sub", Decimal(1)),
        (None, None),
    ]
    with pytest.raises(Unknown, match="there is no alias of openai 'm-other'"):
        await registry.drop_alias(operator, "jane", "openai", "m-other")
    history = await acts_about(operator, "models", "m-sub", {"provider": "openai"})
    assert [each.act for each in history] == ["models.set", "models.drop"]


async def test_parties_are_found_by_name_or_not_there(ledger: Ledger, operator: Connection) -> None:
    await registry.add_provider_account(operator, "jane", "acc-1", "openai", "USD", "t-alpha")
    await registry.set_model(operator, "jane", "openai", "m-1")
    await registry.rename_entity(operator, "jane", "entity-1", "Entity One Ltd")
    assert (await registry.find_entity(operator, "entity-1")).name == "Entity One Ltd"
    assert (await registry.find_source(operator, GATEWAY)).speaks_for_all
    assert (await registry.find_provider_account(operator, "acc-1")).tenant_id == "t-alpha"
    assert (await registry.find_model(operator, "openai", "m-1")).model == "m-1"
    for missing in (
        registry.find_entity(operator, "x"),
        registry.find_source(operator, "x"),
        registry.find_provider_account(operator, "x"),
        registry.find_model(operator, "openai", "x"),
        registry.rename_entity(operator, "jane", "x", "X"),
        registry.rank_source(operator, "jane", "x", 1),
        registry.unmerge_tenant(operator, "jane", "x", at=1),
    ):
        with pytest.raises(Unknown, match="there is no "):
            await missing
    with pytest.raises(AlreadyThere):
        await registry.add_entity(operator, "jane", "entity-1", "Again")
