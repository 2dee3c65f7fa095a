"""Grants in the database: acts done once, live balances from the ledger, tenants that are held to what is left."""

import asyncio
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest

from ledger.corrections import Request, Reverse, Wanted, correct
from ledger.database import Connection, connect
from ledger.errors import ActRefused, StaleBooks
from ledger.times import parse_rfc3339
from quotas import granting
from quotas.burning import book_burn, read_books
from quotas.granting import Balances, Done, NewGrant
from quotas.remaining import remaining
from quotas.reservations import reserve, void
from tests.ledger.test_retention import DECEMBER, close, export, retire
from tests.quotas.support import NOW, Desk, add_price, differences, end_budget, make_ask, set_budget, spend
from tests.support.ledger import Ledger
from tests.support.waiting import until


def operator(ledger: Ledger) -> Any:
    return connect(ledger.database.url_for("tallystick_operator"))


def new(amount: str = "10", effective_at: str | None = "2026-03-01T00:00:00Z", **values: Any) -> NewGrant:
    instants = {"effective_at": effective_at, "expires_at": values.pop("expires_at", None)}
    return NewGrant(
        tenant_id="t-alpha",
        currency="USD",
        amount=Decimal(amount),
        **{name: None if at is None else parse_rfc3339(at) for name, at in instants.items()},
        **values,
    )


async def create(ledger: Ledger, amount: str = "10", *, key: str = "k-1", now: str = NOW, **values: Any) -> Done:
    async with await operator(ledger) as connection:
        return await granting.create_grant(
            connection, "test", new(amount, **values), key=key, now=parse_rfc3339(now), reason="bought"
        )


async def balances(ledger: Ledger, now: str = NOW) -> Balances:
    async with await operator(ledger) as connection:
        (found,) = await granting.tenant_grants(connection, "t-alpha", now=parse_rfc3339(now))
        return found


async def left(ledger: Ledger, now: str = NOW) -> str:
    return f"{(await balances(ledger, now)).left.normalize():f}"


REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"tenant_id": "t-nobody"}, "there is no tenant 't-nobody'"),
    ({"amount": Decimal(0)}, "the amount of a grant must be a finite number above zero"),
    ({"amount": Decimal("NaN")}, "the amount of a grant must be a finite number above zero"),
    ({"currency": "DOLLAR"}, "currency 'DOLLAR' is no code of ISO 4217"),
    ({"currency": "EUR"}, "tenant t-alpha is charged in USD: a grant in EUR would never burn"),
    ({"feature": ""}, "feature '' is no printable text"),
    ({"model": "m-nobody-knows"}, "there is no model 'm-nobody-knows'"),
    ({"priority": 0}, "a priority is 1 to 1000, not 0"),
    ({"effective_at": parse_rfc3339("2020-01-01T00:00:00Z")}, "tenant t-alpha begins at 2025-12-01"),
    ({"expires_at": parse_rfc3339(NOW), "effective_at": parse_rfc3339(NOW)}, "a grant expires after it takes effect"),
    ({"expires_at": parse_rfc3339(NOW), "effective_at": parse_rfc3339(NOW) - 1}, "a grant that has expired already"),
]


async def test_a_grant_that_breaks_a_rule_is_refused_in_one_line(ledger: Ledger) -> None:
    async with await operator(ledger) as connection:
        for values, line in REFUSALS:
            wanted = NewGrant(**{"tenant_id": "t-alpha", "amount": Decimal(1), "currency": "USD", **values})
            with pytest.raises(ActRefused) as refused:
                await granting.create_grant(connection, "test", wanted, key="k", now=parse_rfc3339(NOW))
            assert line in str(refused.value)
        with pytest.raises(ActRefused, match="an idempotency key is"):
            await granting.create_grant(connection, "test", new(), key="", now=parse_rfc3339(NOW))
    assert ledger.value("select count(*) from quotas.grants") == 0


async def test_the_same_grant_under_the_same_key_is_made_once(ledger: Ledger) -> None:
    made = await create(ledger)
    again = await create(ledger, now="2026-03-20T00:00:00Z")
    assert (again.grant_id, again.was_done, made.was_done) == (made.grant_id, True, False)
    with pytest.raises(ActRefused, match="key 'k-1' was used for another act"):
        await create(ledger, "11")
    assert ledger.rows("select kind, amount, key, actor, reason from quotas.grant_movements") == [
        ("granted", Decimal(10), "k-1", "test", "bought")
    ]
    assert ledger.value("select act from ledger.acts") == "grants.granted"


async def test_grants_and_movements_cannot_be_changed(ledger: Ledger) -> None:
    await create(ledger)
    for table in ("grants", "grant_movements"):
        with pytest.raises(psycopg.Error, match=f"quotas.{table} is append-only"):
            ledger.superuser.execute(f"delete from quotas.{table}")
        with (
            ledger.database.connect("tallystick_operator", autocommit=True) as connection,
            pytest.raises(psycopg.errors.InsufficientPrivilege),
        ):
            connection.execute(f"update quotas.{table} set grant_id = 'x'")


async def test_the_live_balance_follows_the_usage(ledger: Ledger) -> None:
    """10.00 from March on: 1.00 of February does not burn it, 4.00 and a better statement of 0.50 more do."""
    await add_price(ledger)
    await create(ledger)
    await spend(ledger, "e1", "1.00", "2026-02-28T23:59:59.999999Z")
    await spend(ledger, "e2", "4.00", "2026-03-01T00:00:00Z", is_final=...)
    assert await left(ledger) == "6"
    await spend(ledger, "e3", "7.50")
    found = await balances(ledger)
    assert (found.left, found.overflow, found.grants[0].burnt) == (0, Decimal("1.5"), Decimal(10))


async def test_the_end_of_a_grant_is_an_instant_within_an_hour(ledger: Ledger) -> None:
    """It ends at 14:30 in the zone of the tenant's choice: usage of that hour burns it before, and the next one after."""
    await add_price(ledger)
    await create(ledger, expires_at="2026-03-20T14:30:00Z")
    await create(ledger, key="k-2")
    await spend(ledger, "e1", "1.00", "2026-03-20T14:29:59.999999Z")
    await spend(ledger, "e2", "2.00", "2026-03-20T14:30:00Z")
    found = await balances(ledger, "2026-03-20T14:31:00Z")
    assert [(each.burnt, each.left) for each in found.grants] == [(Decimal(1), 0), (Decimal(2), Decimal(8))]


async def test_conditions_are_asked_of_the_usage(ledger: Ledger) -> None:
    await add_price(ledger)
    await create(ledger, "3", feature="chat", priority=1)
    await create(ledger, "10", key="k-2")
    await spend(ledger, "e1", "4.00", feature="chat")
    await spend(ledger, "e2", "2.00", feature="search")
    assert [each.burnt for each in (await balances(ledger)).grants] == [Decimal(3), Decimal(3)]


async def test_usage_of_a_month_that_has_left_the_ledger_has_burnt_what_it_burnt(
    ledger: Ledger, tmp_path: Path
) -> None:
    """4.00 in December and 1.00 in January against 10.00: 5.00 are left, also once December is gone, by day and feature."""
    await add_price(ledger)
    await create(ledger, effective_at="2025-12-01T00:00:00Z", expires_at="2026-12-01T00:00:00Z")
    await create(ledger, "3", key="k-2", effective_at="2025-12-05T00:00:00Z", feature="chat", priority=1)
    await spend(ledger, "e1", "4.00", "2025-12-10T12:00:00Z", feature="search")
    await spend(ledger, "e2", "2.00", "2025-12-11T12:00:00Z", feature="chat")
    await spend(ledger, "e3", "1.00", "2026-01-10T12:00:00Z", feature="search")
    before = await balances(ledger)
    assert (str(before.left.normalize()), [f"{each.left.normalize():f}" for each in before.grants]) == ("5", ["1", "5"])
    await close(ledger, DECEMBER)
    assert ledger.rows(SEALED) == [(DECEMBER,)]
    assert await balances(ledger) == before
    await export(ledger, tmp_path)
    await retire(ledger)
    assert ledger.value("select count(*) from ledger.entries") == 1
    assert await balances(ledger) == before


SEALED = (
    "select m from quotas.sealed_months('t-alpha', (select array_agg(t.at) from quotas.grants as g"
    " cross join lateral (values (g.effective_at), (g.expires_at)) as t (at) where t.at is not null)) as m order by 1"
)


@pytest.mark.parametrize(
    ("ends", "sealed"),
    [
        ("2025-12-10T15:00:00Z", True),  # midnight in Tokyo, after the usage of the 10th there
        ("2025-12-10T14:59:59Z", False),  # within the day, and then the rows say which usage was before
        ("2025-12-10T13:30:00Z", False),
        ("2025-12-09T15:00:00Z", True),
    ],
)
async def test_a_sealed_month_is_read_by_its_days_only_where_no_grant_turns_within_one(
    ledger: Ledger, ends: str, sealed: bool
) -> None:
    """1.00 at 22:00 and 2.00 at 23:00 on the 10th in Tokyo; the balances are those that the rows gave before the close."""
    ledger.superuser.execute("update ledger.tenant_versions set time_zone = 'Asia/Tokyo' where tenant_id = 't-alpha'")
    ledger._raised("parties")
    await add_price(ledger)
    await create(ledger, effective_at="2025-12-01T15:00:00Z", expires_at=ends, now="2025-12-05T00:00:00Z")
    await create(ledger, "20", key="k-2", effective_at="2025-12-02T15:00:00Z")
    await spend(ledger, "e1", "1.00", "2025-12-10T13:00:00Z")
    await spend(ledger, "e2", "2.00", "2025-12-10T14:00:00Z")
    before = await balances(ledger)
    await close(ledger, DECEMBER)
    assert (ledger.rows(SEALED) == [(DECEMBER,)]) == sealed
    assert await balances(ledger) == before


async def test_what_has_no_price_is_told_beside_the_balance(ledger: Ledger) -> None:
    await add_price(ledger)
    await create(ledger)
    await spend(ledger, "e1", "1", model="m-nobody-knows", requested_model="m-nobody-knows")
    found = await balances(ledger)
    assert (found.left, found.unpriced_count) == (Decimal(10), 1)


async def test_what_is_left_can_be_revoked_once(ledger: Ledger) -> None:
    """10.00, of which 4.00 are burnt: 7.00 is too much, 2.00 goes, then the rest of 4.00; then there is nothing."""
    await add_price(ledger)
    made = await create(ledger)
    await spend(ledger, "e1", "4.00")

    async def revoke(connection: Connection, key: str, amount: str | None) -> Done:
        return await granting.revoke_grant(
            connection, "test", made.grant_id, key=key, now=parse_rfc3339(NOW),
            amount=None if amount is None else Decimal(amount), reason="asked for",
        )  # fmt: skip

    async with await operator(ledger) as connection:
        with pytest.raises(ActRefused, match=r"has 6\.\d* left, which is less than 7"):
            await revoke(connection, "r-0", "7")
        assert (await revoke(connection, "r-1", "2")).amount == -2
        assert (await revoke(connection, "r-1", "2")).was_done
        with pytest.raises(ActRefused, match="key 'r-1' was used for another act"):
            await revoke(connection, "r-1", "1")
        assert (await revoke(connection, "r-2", None)).amount == -4
        with pytest.raises(ActRefused, match="has nothing left to revoke"):
            await revoke(connection, "r-3", None)
        with pytest.raises(ActRefused, match="there is no grant 'gr_0'"):
            await granting.revoke_grant(connection, "test", "gr_0", key="r-4", now=parse_rfc3339(NOW))
    assert await left(ledger) == "0"
    await spend(ledger, "e2", "1.00", "2026-03-02T00:00:00Z")
    found = await balances(ledger)
    assert (found.grants[0].burnt, found.overflow) == (Decimal(4), Decimal(1)), "what comes late finds it gone"


async def test_an_adjustment_adds_and_takes_but_never_overdraws(ledger: Ledger) -> None:
    await add_price(ledger)
    made = await create(ledger)
    await spend(ledger, "e1", "4.00")
    async with await operator(ledger) as connection:
        now = parse_rfc3339(NOW)
        await granting.adjust_grant(
            connection, "test", made.grant_id, Decimal(5), key="a-1", now=now, reason="typed wrong"
        )
        again = await granting.adjust_grant(
            connection, "test", made.grant_id, Decimal(5), key="a-1", now=now, reason="typed wrong"
        )
        assert again.was_done
        with pytest.raises(ActRefused, match="-12 would overdraw"):
            await granting.adjust_grant(connection, "test", made.grant_id, Decimal(-12), key="a-2", now=now, reason="r")
        await granting.adjust_grant(connection, "test", made.grant_id, Decimal(-11), key="a-3", now=now, reason="r")
    assert await left(ledger) == "0"


async def test_what_expired_is_booked_once_when_its_month_takes_nothing_more(ledger: Ledger) -> None:
    """4.00 of 10.00 burnt by the end of March; while March still takes usage nothing is booked, then 6.00 are."""
    await add_price(ledger)
    made = await create(ledger, expires_at="2026-04-01T00:00:00Z")
    await spend(ledger, "e1", "4.00")
    after = parse_rfc3339("2026-04-02T00:00:00Z")
    async with await operator(ledger) as connection:
        assert await granting.expire_due(connection, "test", now=after) == (0, 0)
        for month in (date(2025, 12, 1), date(2026, 1, 1), date(2026, 2, 1), date(2026, 3, 1)):
            ledger.close_period("t-alpha", month)
        assert await granting.expire_due(connection, "test", now=after) == (1, 0)
        assert await granting.expire_due(connection, "test", now=after) == (0, 0)
        listed = await granting.movements(connection, made.grant_id)
    assert [(each.kind, each.amount, each.key) for each in listed] == [
        ("granted", Decimal(10), "k-1"), ("expired", Decimal(-6), f"expired:{made.grant_id}"),
    ]  # fmt: skip


# --- Tenants that are held to their grants -----------------------------------------------------------------------------


async def prepaid(ledger: Ledger, now: str = NOW) -> str:
    async with await operator(ledger) as connection:
        done = await granting.prepay(connection, "test", "t-alpha", now=parse_rfc3339(now), reason="prepaid contract")
        return done.budget_id


async def shown(ledger: Ledger, at: str = NOW) -> tuple[str | None, str | None]:
    """(limit, remaining) of the prepaid budget, as the API tells it."""
    asked = ("t-alpha", parse_rfc3339(at))
    async with await connect(ledger.database.url_for("tallystick_api")) as connection:
        found = await remaining(connection, [asked])
    (one,) = [each for each in found.tenants[asked].budgets if each.budget_id.startswith("prepaid-")]
    return one.limit, one.remaining


async def test_a_prepaid_tenant_is_held_to_what_is_left(ledger: Ledger) -> None:
    """3.00 spent before, granted 10.00: 10.00 remain. 4.00 used: 6.00. Topped up by 5.00: 11.00. Revoked: 6.00 again."""
    await add_price(ledger)
    await spend(ledger, "e1", "3.00", "2026-02-10T00:00:00Z")
    await create(ledger)
    budget_id = await prepaid(ledger)
    assert await shown(ledger) == ("13", "10")
    await spend(ledger, "e2", "4.00")
    assert await shown(ledger) == ("13", "6")
    more = await create(ledger, "5", key="k-2", now="2026-03-15T12:00:01Z")
    assert await shown(ledger) == ("18", "11")
    async with await operator(ledger) as connection:
        await granting.revoke_grant(connection, "test", more.grant_id, key="r-1", now=parse_rfc3339(NOW))
    assert await shown(ledger) == ("13", "6")
    assert (await balances(ledger)).is_prepaid
    assert ledger.rows("select cause from quotas.excess where budget_id = %s", budget_id) == []
    assert differences(ledger) == []


async def test_an_overrun_is_not_paid_by_the_next_grant(ledger: Ledger) -> None:
    """12.00 against 10.00: 2.00 above, to be billed. A grant of 5.00 from now on leaves 5.00, not 3.00."""
    await add_price(ledger)
    await create(ledger)
    await prepaid(ledger)
    await spend(ledger, "e1", "12.00")
    assert await shown(ledger) == ("10", "-2")
    await create(ledger, "5", key="k-2", effective_at=NOW)
    assert await shown(ledger) == ("17", "5")


async def test_a_top_up_lets_a_prepaid_budget_say_again_that_it_is_exhausted(ledger: Ledger) -> None:
    await add_price(ledger)
    await create(ledger)
    budget_id = await prepaid(ledger)
    notes = f"select count(*) from quotas.threshold_notes where budget_id = '{budget_id}'"
    await spend(ledger, "e1", "10.00")
    assert ledger.value(notes) == 1
    await create(ledger, "5", key="k-2", effective_at=NOW)
    assert ledger.value(notes) == 0
    await spend(ledger, "e2", "5.00", "2026-03-15T13:00:00Z")
    assert ledger.value(notes) == 1


async def test_an_expiry_lowers_the_limit_by_what_was_not_burnt(ledger: Ledger) -> None:
    """10.00 until the 20th and 5.00 without an end; 4.00 burnt: 11.00 remain, and 5.00 once the first is over."""
    await add_price(ledger)
    await create(ledger, expires_at="2026-03-20T00:00:00Z")
    await create(ledger, "5", key="k-2")
    await spend(ledger, "e1", "4.00")
    await prepaid(ledger)
    assert await shown(ledger) == ("15", "11")
    async with await operator(ledger) as connection:
        assert await granting.expire_due(connection, "test", now=parse_rfc3339("2026-03-19T23:57:59Z")) == (0, 0)
        assert await granting.expire_due(connection, "test", now=parse_rfc3339("2026-03-20T00:00:00Z")) == (0, 1)
        assert await granting.expire_due(connection, "test", now=parse_rfc3339("2026-03-20T00:00:00Z")) == (0, 0)
    assert await shown(ledger) == ("9", "5")


async def test_what_has_expired_is_admitted_by_nobody_from_that_instant_on(ledger: Ledger) -> None:
    """10.00 until the 20th and 5.00 without an end, 4.00 burnt: 11.00 may be held to the last microsecond, then 5.00.

    Nobody has looked in between. Had 3.00 more been burnt since the limit was set, 2.00 would be admitted until somebody does,
    and 5.00 afterwards: less for a while, never more.
    """
    await add_price(ledger)
    await create(ledger, expires_at="2026-03-20T00:00:00Z")
    await create(ledger, "5", key="k-2")
    await spend(ledger, "e1", "4.00")
    budget_id = await prepaid(ledger)
    for at, amount, outcome in (
        ("2026-03-19T23:59:59.999999Z", "11.01", "refused"),
        ("2026-03-19T23:59:59.999999Z", "11.00", "admitted"),
        ("2026-03-20T00:00:00Z", "5.01", "refused"),
        ("2026-03-20T00:00:00Z", "5.00", "admitted"),
    ):
        async with Desk(ledger, at) as desk:
            (decision,) = await desk.ask(f"r {at} {amount}", amount)
            assert decision.outcome == outcome, (at, amount)
            limit, remains = ("15", "11") if at < "2026-03-20" else ("9", "5")
            assert await shown(ledger, at) == (limit, remains if outcome == "refused" else "0")
            if outcome == "admitted":
                await void(desk.connection, [("t-alpha", f"r {at} {amount}")], at=desk.at)
    await spend(ledger, "e2", "3.00", "2026-03-19T12:00:00Z")
    assert await shown(ledger, "2026-03-20T00:00:00Z") == ("9", "2")
    async with await operator(ledger) as connection:
        assert await granting.expire_due(connection, "test", now=parse_rfc3339("2026-03-20T00:00:00Z")) == (0, 1)
        assert await granting.expire_due(connection, "test", now=parse_rfc3339("2026-03-20T00:00:01Z")) == (0, 0)
    assert await shown(ledger, "2026-03-20T00:00:00Z") == ("12", "5")
    assert ledger.rows("select trim_scale(change)::text from quotas.excess where budget_id = %s", budget_id) == []


async def test_shortly_before_a_grant_ends_it_is_known_again_what_lapses(ledger: Ledger) -> None:
    """10.00 until the 20th, wholly burnt by the time that somebody last looks: nothing lapses, and nothing is due any more."""
    await add_price(ledger)
    await create(ledger, expires_at="2026-03-20T00:00:00Z")
    await create(ledger, "5", key="k-2")
    await prepaid(ledger)
    await spend(ledger, "e1", "10.00", "2026-03-16T00:00:00Z")
    lapses = "select trim_scale(lapses)::text from quotas.turns"
    async with await operator(ledger) as connection:
        for now, known in (("2026-03-19T23:57:59Z", "10"), ("2026-03-19T23:58:00Z", "0")):
            assert await granting.expire_due(connection, "test", now=parse_rfc3339(now)) == (0, 0)
            assert ledger.rows(lapses) == [(known,)]
        assert await shown(ledger, "2026-03-20T00:00:00Z") == ("15", "5")
        assert await granting.expire_due(connection, "test", now=parse_rfc3339("2026-03-20T00:00:00Z")) == (0, 0)
    assert ledger.rows(lapses) == []


async def reverse(ledger: Ledger, event: str) -> None:
    """Take back what was charged for the request of an event."""
    async with await connect(ledger.database.url_for("tallystick_writer")) as connection:
        wanted = Wanted(Reverse(Request("t-alpha", f"req-{event}")), None)
        await correct(connection, wanted, actor="ann", reason="sent by mistake")


async def test_what_is_given_back_of_a_grant_that_is_gone_is_admitted_by_nobody(ledger: Ledger) -> None:
    """10.00 until the 20th, of which 4.00 are burnt, and 5.00 without an end. The 4.00 are taken back on the 21st: 5.00 remain.

    They free a grant that has expired. Not before somebody looks either, for whoever waits for the window meanwhile too.
    """
    await add_price(ledger)
    await create(ledger, expires_at="2026-03-20T00:00:00Z")
    await create(ledger, "5", key="k-2", effective_at="2026-03-20T00:00:00Z")
    await spend(ledger, "e1", "4.00")
    budget_id = await prepaid(ledger, "2026-03-21T00:00:00Z")
    assert await shown(ledger, "2026-03-21T00:00:00Z") == ("9", "5")
    async with Desk(ledger, "2026-03-21T00:00:00Z") as desk:
        await desk.ask("r0", "0.01")
        await void(desk.connection, [("t-alpha", "r0")], at=desk.at)
        await reverse(ledger, "e1")
        assert await shown(ledger, "2026-03-21T00:00:00Z") == ("5", "5")
        for name, amount, outcome in (("r1", "5.01", "refused"), ("r2", "5.00", "admitted")):
            (decision,) = await desk.ask(name, amount)
            assert decision.outcome == outcome
        async with await operator(ledger) as connection:
            assert await granting.expire_due(connection, "test", now=desk.at) == (0, 1)
            assert await granting.expire_due(connection, "test", now=desk.at) == (0, 0)
    assert await shown(ledger, "2026-03-21T00:00:00Z") == ("5", "0")
    assert ledger.rows("select change from quotas.excess where budget_id = %s", budget_id) == []
    assert differences(ledger) == []


async def test_who_waits_while_something_is_given_back_decides_by_what_is_left_then(ledger: Ledger) -> None:
    """As above; the correction holds the window while 6.00 are asked for, on both ways of deciding: neither is admitted.

    Where budgets are known it is refused by what was left before, which takes no lock; else it waits.
    """
    await add_price(ledger)
    await create(ledger, expires_at="2026-03-20T00:00:00Z")
    await create(ledger, "5", key="k-2", effective_at="2026-03-20T00:00:00Z")
    await spend(ledger, "e1", "4.00")
    budget_id = await prepaid(ledger, "2026-03-21T00:00:00Z")
    async with Desk(ledger, "2026-03-21T00:00:00Z") as desk:
        await desk.ask("r0", "0.01")
        await void(desk.connection, [("t-alpha", "r0")], at=desk.at)
        for known in (desk.known, None):
            with ledger.database.connect() as holder:
                # What a correction does, in its order: the window, then what lapses and the version.
                holder.execute("update quotas.windows set posted = posted - 4 where budget_id = %s", [budget_id])
                asking = asyncio.create_task(
                    reserve(
                        desk.connection, [make_ask(f"r-{known is None}", "6.00")], desk.books, at=desk.at, known=known
                    )
                )
                if known is None:
                    await until(lambda: ledger.value("select count(*) from pg_locks where not granted") > 0)
                else:
                    await asyncio.wait_for(asyncio.shield(asking), 20)
                holder.execute("select quotas.withhold(array[%s], array[4::numeric])", [budget_id])
                holder.commit()
            try:
                (decision,) = await asking
            except StaleBooks:
                (decision,) = await desk.ask(f"r-{known is None}", "6.00")
            assert decision.outcome == "refused"
            ledger.superuser.execute("update quotas.windows set posted = posted + 4 where budget_id = %s", [budget_id])
            ledger.superuser.execute("delete from quotas.turns")
            ledger._raised("budgets")
            await desk.ask(f"again-{known is None}", "0")


async def test_what_is_given_back_of_a_grant_in_force_may_be_spent_once_somebody_has_looked(ledger: Ledger) -> None:
    await add_price(ledger)
    await create(ledger)
    await prepaid(ledger)
    await spend(ledger, "e1", "4.00")
    await reverse(ledger, "e1")
    assert await shown(ledger) == ("6", "6")
    async with await operator(ledger) as connection:
        assert await granting.expire_due(connection, "test", now=parse_rfc3339(NOW)) == (0, 0), (
            "the limit is what it was"
        )
    assert await shown(ledger) == ("10", "10")


async def test_no_more_is_taken_of_a_grant_than_invoices_have_left(ledger: Ledger) -> None:
    """10.00, of which an invoice burnt 4.01, a cent more than the usage of 4.005; then its usage is reversed. 5.99 may be revoked."""
    await add_price(ledger)
    made = await create(ledger)
    await spend(ledger, "e1", "4.005")
    now = parse_rfc3339(NOW)
    async with await operator(ledger) as connection:
        await book_burn(
            connection, "test", made.grant_id, Decimal("-4.01"), month=date(2026, 3, 1), key="i-1", reason="invoice"
        )
        await reverse(ledger, "e1")
        with pytest.raises(ActRefused, match=r"has 5\.99 left, which is less than 6"):
            await granting.revoke_grant(connection, "test", made.grant_id, key="r", now=now, amount=Decimal(6))
        with pytest.raises(ActRefused, match=r"has 5\.99 left, which -6 would overdraw"):
            await granting.adjust_grant(connection, "test", made.grant_id, Decimal(-6), key="a", now=now, reason="r")
        assert (await granting.revoke_grant(connection, "test", made.grant_id, key="r-2", now=now)).amount == Decimal(
            "-5.99"
        )


async def test_books_below_zero_are_told_and_not_taken_for_zero(ledger: Ledger) -> None:
    made = await create(ledger)
    async with await operator(ledger) as connection:
        assert (await read_books(connection, ["t-alpha"]))["t-alpha"].refusals == ()
        await book_burn(
            connection, "test", made.grant_id, Decimal("-10.01"), month=date(2026, 3, 1), key="i-1", reason="invoice"
        )
        books = (await read_books(connection, ["t-alpha"]))["t-alpha"]
    assert books.grants["USD"][0].amount == Decimal("-0.01")
    assert books.refusals == [
        f"grant {made.grant_id} stands at -0.01 USD on the books: more was revoked, expired or burnt than there was; adjust it"
    ]


async def test_only_grants_move_the_limit_of_a_prepaid_tenant(ledger: Ledger) -> None:
    await create(ledger)
    budget_id = await prepaid(ledger)
    with pytest.raises(
        ActRefused, match=f"budget {budget_id} holds a tenant to its grants, which alone move its limit"
    ):
        await set_budget(ledger, window="lifetime", limit="1000", budget_id=None)
    with pytest.raises(ActRefused, match="grants postpay` ends it"):
        await end_budget(ledger, budget_id)
    with pytest.raises(ActRefused, match="tenant t-alpha is prepaid already"):
        await prepaid(ledger)
    async with await operator(ledger) as connection:
        assert await granting.postpay(connection, "test", "t-alpha", reason="invoiced from now on") == budget_id
        with pytest.raises(ActRefused, match="tenant t-alpha is not prepaid"):
            await granting.postpay(connection, "test", "t-alpha")
    await prepaid(ledger)


async def test_a_limit_for_life_is_ended_before_a_tenant_prepays(ledger: Ledger) -> None:
    await set_budget(ledger, window="lifetime", limit="100")
    with pytest.raises(ActRefused, match="budget b limits all that tenant t-alpha may ever spend: end it first"):
        await prepaid(ledger)
