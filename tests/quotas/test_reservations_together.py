"""Many connections at once on one budget: nobody is admitted on money that another has, and nobody waits in a ring for good."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal

import pytest

from ingest.intake import Intake
from ledger import feeds
from ledger.database import connect
from ledger.times import parse_rfc3339
from quotas import reservations
from quotas.asks import Ask, Settlement
from tallystick.verify import verify
from tests.quotas.support import RECEIVED, Desk, add_price, make_ask, set_budget, spend, spending
from tests.support.ledger import Failpoint, Ledger

pytestmark = pytest.mark.soak

AT = "2026-03-10T12:00:00Z"


@asynccontextmanager
async def desks(ledger: Ledger, count: int) -> AsyncIterator[list[Desk]]:
    made = [await Desk(ledger, AT).__aenter__() for _ in range(count)]
    try:
        yield made
    finally:
        for desk in made:
            await desk.connection.close()


def unsound(ledger: Ledger) -> list[str]:
    proof = verify(ledger.database.url)
    return [failure.text for failure in proof.failures if failure.part in ("budgets", "excess")]


async def test_parallel_asks_cannot_take_the_same_money_b093(ledger: Ledger) -> None:
    """3.00, of which 2.70 is spent; ten ask for 0.13 at once: floor(0.30 / 0.13) = 2, and 2.70 + 0.26 = 2.96."""
    await add_price(ledger)
    await set_budget(ledger, limit="3.00")
    await spend(ledger, "e1", "2.70")
    async with desks(ledger, 10) as made:
        answers = await asyncio.gather(*(desk.ask(f"r{n}", "0.13") for n, desk in enumerate(made)))
        assert sorted(answer[0].outcome for answer in answers) == ["admitted"] * 2 + ["refused"] * 8
        assert made[0].window() == ("2.7", "0.26")


async def test_a_window_is_seeded_once_b095(ledger: Ledger) -> None:
    """6.00 is in the ledger when the budget is made; four ask at once where no window is, one posts 0.50: 6.50, then 7.50."""
    await add_price(ledger)
    await spend(ledger, "e1", "6.00")
    await set_budget(ledger, limit="10.00")
    await set_budget(ledger, budget_id="cold", window="day", limit="10.00", now="2026-03-01T00:00:00Z")
    ledger.superuser.execute("delete from quotas.threshold_notes")
    async with desks(ledger, 4) as made:
        answers = await asyncio.gather(
            *(desk.ask(f"r{n}", "0") for n, desk in enumerate(made)), spend(ledger, "e2", "0.50")
        )
        assert [answer[0].outcome for answer in answers[:4] if answer] == ["admitted"] * 4
        assert made[0].window() == ("6.5", "0")
        (decision,) = await made[0].ask("last", "1.00")
        assert decision.outcome == "admitted"
        assert made[0].window() == ("6.5", "1")
        assert made[0].window("cold", "2026-03-10") == ("6.5", "1")
    assert unsound(ledger) == []


async def test_two_that_make_one_reservation_at_once_make_it_once(ledger: Ledger) -> None:
    await add_price(ledger)
    await set_budget(ledger, limit="10.00")
    async with desks(ledger, 6) as made:
        answers = await asyncio.gather(*(desk.ask("same", "1.00") for desk in made))
        assert [answer[0].outcome for answer in answers] == ["admitted"] * 6
        assert sorted(answer[0].is_replay for answer in answers) == [False] + [True] * 5
        assert made[0].window() == ("0", "1")
        await set_budget(ledger, budget_id="none", feature="none", limit=None)
        ledger.superuser.execute("update quotas.budgets set ended_at = now() where budget_id !~ '^totals-'")
        answers = await asyncio.gather(*(desk.ask("unlimited", "1.00") for desk in made))
        assert sorted(answer[0].is_replay for answer in answers) == [False] + [True] * 5, "no window orders these"


async def test_money_for_so_many_admits_so_many(ledger: Ledger) -> None:
    """Money for 37 calls, 200 asked for in arrays over eight connections: 37 are admitted, on every side of the id order."""
    await add_price(ledger)
    await set_budget(ledger, limit="3.70")
    await set_budget(ledger, budget_id="calls", unit="requests", limit="100")
    async with desks(ledger, 8) as made:
        answers = await asyncio.gather(
            *(desk.reserve(*(make_ask(f"r{n}-{m}", "0.10") for m in range(25))) for n, desk in enumerate(made))
        )
        outcomes = [decision.outcome for answer in answers for decision in answer]
        assert (outcomes.count("admitted"), outcomes.count("refused")) == (37, 163)
        assert made[0].window() == ("0", "3.7")
        assert made[0].window("calls") == ("0", "37")
    assert ledger.value("select count(*) from quotas.excess") == 0


@pytest.mark.parametrize(
    ("unit", "limit"), [("cost", "3.75"), ("requests", "37"), ("total_tokens", "3750"), ("output_tokens", "1850")]
)
async def test_tenants_that_share_a_provider_account_share_its_limit(ledger: Ledger, unit: str, limit: str) -> None:
    """Each call is 0.10, one request, and 50 tokens in and 50 out; of 160 that four tenants ask for at once, 37 fit.

    By day, week and month: the account's day is the tightest, and is that of UTC for Tokyo too. What half of them use is posted while
    the others are still held, by which nothing more fits.
    """
    await add_price(ledger)
    tenants = ["t-alpha", "t-beta", "t-gamma", "t-tokyo"]
    for tenant_id in tenants[1:]:
        ledger.add_tenant(tenant_id, zone="Asia/Tokyo" if tenant_id == "t-tokyo" else "UTC")
    ledger.superuser.execute(
        "insert into ledger.provider_accounts (provider_account, provider, currency) values ('acc-1', 'openai', 'USD')"
    )
    ledger._raised("parties")
    account = {"tenant_id": None, "provider_account": "acc-1", "unit": unit, "now": AT}
    await set_budget(ledger, limit=limit, window="day", **account)
    await set_budget(ledger, budget_id="week", limit=str(2 * Decimal(limit)), window="week", **account)
    await set_budget(ledger, budget_id="month", limit=str(3 * Decimal(limit)), **account)

    def call(reservation_id: str, tenant_id: str) -> Ask:
        return make_ask(
            reservation_id,
            tenant_id=tenant_id,
            provider_account="acc-1",
            cost=Decimal("0.10"),
            cost_currency="USD",
            input_tokens=50,
            output_tokens=50,
        )

    async with desks(ledger, 8) as made:
        answers = await asyncio.gather(
            *(
                desk.reserve(*(call(f"r{n}-{m}", tenants[(n + m) % 4]) for m in range(20)))
                for n, desk in enumerate(made)
            )
        )
        decisions = [decision for answer in answers for decision in answer]
        admitted = [decision for decision in decisions if decision.outcome == "admitted"]
        assert (len(decisions), len(admitted)) == (160, 37)
        refused = next(decision for decision in decisions if decision.outcome == "refused")
        assert refused.tightest is not None
        assert refused.tightest.budget_id == "b"
        one = Decimal(made[0].window("b", "2026-03-10")[1]) / 37
        for window in (("b", "2026-03-10"), ("week", "2026-03-09"), ("month", "2026-03-01")):
            assert made[0].window(*window) == ("0", f"{(37 * one).normalize():f}")
        for decision in admitted[:18]:
            usage = {"prompt_tokens": 50_000, "completion_tokens": 50_000, "total_tokens": 100_000}
            if unit in ("total_tokens", "output_tokens"):
                usage = {"prompt_tokens": 50, "completion_tokens": 50, "total_tokens": 100}
            event = spending(
                f"e-{decision.reservation_id}", "0", AT, usage=usage, tenant_id=decision.tenant_id,
                provider_account="acc-1", reservation_id=decision.reservation_id,
            )  # fmt: skip
            assert ledger.outcomes(await ledger.post(event, received_at=RECEIVED)) == ["created"]
        assert made[0].window("b", "2026-03-10") == (f"{(18 * one).normalize():f}", f"{(19 * one).normalize():f}")
        more = await asyncio.gather(*(desk.reserve(call(f"more-{n}", tenants[n % 4])) for n, desk in enumerate(made)))
        assert {answer[0].outcome for answer in more} == {"refused"}
    assert ledger.value("select count(*) from quotas.excess") == 0
    assert unsound(ledger) == []


# --- Settling is one step ---------------------------------------------------------------------------------------------


class Broken(Exception):
    """The process dies here."""


POINTS = ["post.before_keys", "post.before_entries", "post.before_commit", "post.after_commit"]


@pytest.mark.parametrize("point", POINTS)
async def test_spend_and_release_are_one_step_b102(ledger: Ledger, failpoint: Failpoint, point: str) -> None:
    """1.00, 0.10 held, 0.04 used; broken at each point and sent again: (0, 0.10) or (0.04, 0), and in the end (0.04, 0)."""

    def die(_: str) -> None:
        raise Broken

    await add_price(ledger)
    await set_budget(ledger, limit="1.00")
    event = spending("e1", "0.04", reservation_id="r1")
    async with Desk(ledger, AT) as desk:
        await desk.ask("r1", "0.10")
        failpoint(point, die)
        with pytest.raises(Broken):
            await ledger.post(event, received_at=RECEIVED)
        failpoint(point, lambda _: None)
        seen = desk.window()
        assert seen == (("0.04", "0") if point == "post.after_commit" else ("0", "0.1"))
        outcomes = ledger.outcomes(await ledger.post(event, received_at=RECEIVED))
        assert outcomes == ["duplicate" if point == "post.after_commit" else "created"]
        assert desk.window() == ("0.04", "0")
    assert unsound(ledger) == []


async def test_a_connection_that_is_cut_while_settling_leaves_one_of_two_states_b102(ledger: Ledger) -> None:
    await add_price(ledger)
    await set_budget(ledger, limit="1.00")
    async with Desk(ledger, AT) as desk:
        await desk.ask("r1", "0.10")
        ledger.superuser.execute("select pg_terminate_backend(%s)", [desk.connection.info.backend_pid])
        with pytest.raises(Exception, match="terminat"):
            await reservations.settle(
                desk.connection, [Settlement(tenant_id="t-alpha", reservation_id="r1")], at=desk.at
            )
    async with Desk(ledger, AT) as desk:
        (change,) = await reservations.settle(
            desk.connection, [Settlement(tenant_id="t-alpha", reservation_id="r1")], at=desk.at
        )
        assert change.state == "awaiting_entry"
        assert desk.window() == ("0", "0.1")


# --- Everything at once -----------------------------------------------------------------------------------------------


async def test_a_storm_deadlocks_nobody_for_good_and_admits_nothing_above_the_limit(ledger: Ledger) -> None:
    """Asks, endings, sweeps, posts of every kind and changed limits, over two tenants that share a budget, all at once."""
    ledger.add_tenant("t-beta")
    await add_price(ledger)
    await set_budget(
        ledger, budget_id="shared", tenant_id=None, unit="requests", limit="60", now="2026-03-01T00:00:00Z"
    )
    for tenant in ("t-alpha", "t-beta"):
        await set_budget(ledger, budget_id=f"m-{tenant}", tenant_id=tenant, limit="2.00", now="2026-03-01T00:00:00Z")
        await set_budget(
            ledger, budget_id=f"d-{tenant}", tenant_id=tenant, window="day", limit="2.00", now="2026-03-01T00:00:00Z"
        )
    tenants = ("t-alpha", "t-beta")
    rounds = 12

    async def asking(number: int) -> None:
        async with Desk(ledger, AT) as desk:
            for turn in range(rounds):
                asks = [
                    make_ask(f"r{number}-{turn}-{n}", "0.05", tenant_id=tenants[(n + number) % 2], ttl_seconds=60)
                    for n in range(4)
                ]
                decisions = await desk.reserve(*(asks if number % 2 else reversed(asks)))
                held = [(d.tenant_id, d.reservation_id) for d in decisions if d.is_admitted]
                if turn % 3 == 0:
                    await reservations.void(desk.connection, held[:1], at=desk.at)
                if turn % 3 == 1:
                    await reservations.settle(
                        desk.connection,
                        [
                            Settlement(tenant_id=key[0], reservation_id=key[1], charge=Decimal("0.01"))
                            for key in held[:2]
                        ],
                        at=desk.at,
                    )

    async def posting(number: int) -> None:
        url = ledger.database.url_for("tallystick_writer")
        async with await connect(url) as connection:
            held = await feeds.claim(connection, "file", f"file:storm-{number}")
        intake = await Intake.open(url, held, patience=20)
        try:
            for turn in range(rounds):
                events = [
                    spending(
                        f"e{number}-{turn}-{n}", "0.03", AT, tenant_id=tenants[n % 2],
                        reservation_id=f"r{n % 3}-{turn}-{n}", reservation_open=n == 3, request_id=f"q{turn}-{n}",
                        final=number == 1, source="gateway://eu-1" if n % 2 else "node://gpu-7",
                        **({} if n % 2 else {"node_id": "gpu-7"}),
                    )
                    for n in range(4)
                ]  # fmt: skip
                await intake.post(await intake.read([ledger.message(*events, received_at=RECEIVED)]))
        finally:
            await intake.close()

    async def sweeping() -> None:
        async with await connect(ledger.database.url_for("tallystick_operator")) as connection:
            for _ in range(rounds):
                await reservations.expire(connection, at=parse_rfc3339(AT) + 120_000_000, rows_max=5)
                await asyncio.sleep(0.02)

    async def limiting() -> None:
        for turn in range(rounds // 2):
            await set_budget(ledger, budget_id="m-t-alpha", limit=("1.00", "2.00", "0.50")[turn % 3])
            await asyncio.sleep(0.02)

    await asyncio.wait_for(
        asyncio.gather(*(asking(n) for n in range(3)), *(posting(n) for n in range(2)), sweeping(), limiting()), 120
    )
    assert unsound(ledger) == []
    held = ledger.rows("select budget_id from quotas.windows where held < 0")
    assert held == []
