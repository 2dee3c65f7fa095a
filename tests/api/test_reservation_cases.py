"""Open cases of budgets and reservations through the API, by id: what a gateway is answered, and what is booked."""

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from threading import Event, Thread
from typing import Any

import psycopg
import pytest

from ledger import failpoints
from tallystick.addresses import Addresses
from tallystick.scheduler import jobs
from tallystick.settings import Settings
from tests.api.support import Site, add_budget, bearer, make_key, problem, site
from tests.api.test_reservations import Gateway, gateway
from tests.factories import make_event
from tests.ledger.prices import make_card
from tests.support.ledger import Ledger

__all__ = ["gateway"]

CENT = 5_000
"""Input tokens of m-sub that cost a cent, at 2 USD a million."""


def spent(world: Ledger, budget_id: str = "b-1") -> tuple[Decimal, Decimal]:
    """What is (posted, held) of a budget."""
    rows = world.rows("select posted, held from quotas.windows where budget_id = %s", budget_id)
    return rows[0] if rows else (Decimal(0), Decimal(0))


def used(event_id: str, cents: int, **data: Any) -> dict[str, Any]:
    """The usage event of a call that cost so many cents and has just ended."""
    usage = {"prompt_tokens": cents * CENT, "completion_tokens": 0, "total_tokens": cents * CENT}
    return make_event(event_id, time=datetime.now(UTC).isoformat(), usage=usage, **data)


async def reserve(gateway: Gateway, name: str, cents: int, **fields: Any) -> int:
    """Ask for a call that may cost so many cents; return the status."""
    return (await gateway.reserve(name, input_tokens=cents * CENT, output_tokens=0, **fields)).status_code


async def one_budget(here: Site, token: str, budget_id: str = "b-1") -> dict[str, Any]:
    listed = (await here.budgets("t-alpha", token)).json()["budgets"]
    return next(each for each in listed if each["budget_id"] == budget_id)


async def test_three_dimes_fill_a_budget_of_thirty_cents_b055(world: Ledger, gateway: Gateway) -> None:
    """Three calls of 0.10, asked and settled one after the other, are admitted, and a fourth is not. WRONG (binary): 0.1 x 3 is above 0.3."""
    add_budget(world, limit="0.30")
    for number in (1, 2, 3):
        assert await reserve(gateway, f"r{number}", 10) == 201
        await gateway.here.send(used(f"ev-{number}", 10, reservation_id=f"r{number}"), token=gateway.token)
        assert spent(world) == (Decimal("0.10") * number, 0)
    assert await reserve(gateway, "r4", 10) == 429


async def test_no_job_resets_a_new_budget_b090(world: Ledger, gateway: Gateway) -> None:
    """10.00 for 30 days, 2.00 are spent: whatever the scheduler does, three times over, 8.00 remain until the 30 days are over."""
    today = datetime.now(UTC).date()
    token = await make_key(world, "budgets:write", "budgets:read")
    made = await gateway.here.client.post(
        "/v1/budgets",
        json={
            "budget_id": "b-1", "tenant_id": "t-alpha", "unit": "charge", "currency": "USD", "limit": "10.00",
            "window": "days", "window_days": 30, "anchor": today.isoformat(),
        },
        headers=bearer(token),
    )  # fmt: skip
    assert made.status_code == 201, made.text
    await gateway.here.send(used("ev-1", 200), token=gateway.token)
    found = Addresses(None, world.database.url_for)
    for _ in range(3):
        for job in jobs(Settings(), found):
            if job.name in ("grants", "holds", "decisions", "months ahead"):
                await job.do()
    shown = await one_budget(gateway.here, token)
    assert (Decimal(shown["posted"]), Decimal(shown["remaining"])) == (2, 8)
    turns = datetime.fromisoformat(shown["window"]["ends_at"])
    assert turns == datetime.combine(today + timedelta(days=30), datetime.min.time(), UTC)


async def test_a_route_without_an_estimate_passes_no_reservation_by_b094(world: Ledger, gateway: Gateway) -> None:
    """0.10 are left of each of two budgets. Of 20 at once none is admitted under `refuse`, and two that hold 0.05 each."""
    add_budget(world, "no", feature="no", limit="1.00")
    add_budget(world, "some", feature="some", limit="1.00", missing_estimate="hold", missing_estimate_amount="0.05")
    for feature in ("no", "some"):
        await gateway.here.send(used(f"ev-{feature}", 90, feature=feature), token=gateway.token)
    asked = {"tenant_id": "t-alpha", "provider": "openai", "model": "m-sub"}
    for feature, refusal, admitted in (("no", "estimate-missing", 0), ("some", "budget-exhausted", 2)):
        answers = await asyncio.gather(
            *(
                gateway.post("reservations", {**asked, "feature": feature, "reservation_id": f"{feature}-{n}"})
                for n in range(20)
            )
        )
        refused = [problem(answer) for answer in answers if answer.status_code != 201]
        assert refused == [refusal] * (20 - admitted)
        assert spent(world, feature) == (Decimal("0.90"), Decimal("0.05") * admitted)


async def test_the_teams_key_does_not_use_up_its_owners_personal_budget_b098(world: Ledger, gateway: Gateway) -> None:
    """2.00 with the team's key of a user: the team has spent 2.00 and the user nothing, for a replica that starts afterwards too."""
    token = await make_key(world, "budgets:write")
    for budget_id, limit, scope in (
        ("team", "50.00", {"tags": {"team": "T"}}),
        ("personal", "1.00", {"user_hash": "u-1", "tags": {"key": "personal"}}),
    ):
        body = {
            "budget_id": budget_id,
            "tenant_id": "t-alpha",
            "unit": "charge",
            "currency": "USD",
            "limit": limit,
            **scope,
        }
        made = await gateway.here.client.post("/v1/budgets", json=body, headers=bearer(token))
        assert made.status_code == 201, made.text
    team = {"user_hash": "u-1", "tags": {"team": "T"}}
    assert await reserve(gateway, "c1", 200, **team) == 201
    event = used("ev-1", 200, reservation_id="c1", **team)
    await gateway.post("reservations/c1:settle", {"tenant_id": "t-alpha", "event": event})
    async with site(world, name="api-2") as other:
        fresh = Gateway(other, gateway.token)
        assert await reserve(fresh, "c2", 10, user_hash="u-1", tags={"key": "personal"}) == 201
        assert await reserve(fresh, "c3", 91, user_hash="u-1", tags={"key": "personal"}) == 429
    assert (spent(world, "team"), spent(world, "personal")) == ((2, 0), (0, Decimal("0.10")))


async def test_zero_forbids_all_but_what_is_free_and_none_forbids_nothing_b099(world: Ledger, gateway: Gateway) -> None:
    """Under a limit of zero a cent is refused and a call of a free model is not; without a limit both go ahead."""
    add_budget(world, "b0", limit="0")
    add_budget(world, "bn", tenant_id="t-beta", limit=None)
    world.add_model("m-free")
    for book in ("cost", "charge"):
        await world.add_card(make_card(model="m-free", book=book, is_free=True))
    found = {
        (tenant_id, model): await reserve(gateway, f"{tenant_id}-{model}", 1, tenant_id=tenant_id, model=model)
        for tenant_id in ("t-alpha", "t-beta")
        for model in ("m-sub", "m-free")
    }
    assert found == {
        ("t-alpha", "m-sub"): 429, ("t-alpha", "m-free"): 201, ("t-beta", "m-sub"): 201, ("t-beta", "m-free"): 201,
    }  # fmt: skip
    assert spent(world, "b0") == (0, 0)


@pytest.fixture
def watched(world: Ledger) -> Any:
    """Look at b-1 as fast as one can, from beside; gives all that was seen."""
    seen: set[tuple[Decimal, Decimal]] = set()
    over = Event()

    def look() -> None:
        with psycopg.connect(world.database.url, autocommit=True) as connection:
            while not over.is_set():
                row = connection.execute("select posted, held from quotas.windows where budget_id = 'b-1'").fetchone()
                if row is not None:
                    seen.add((row[0], row[1]))
                time.sleep(0.001)

    thread = Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def cut(world: Ledger) -> Callable[[bytes], None]:
    """Cut the writer's connection, once, when it is reached."""
    left = [1]

    def action(_: bytes) -> None:
        if left[0]:
            left[0] = 0
            world.superuser.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where usename = 'tallystick_writer' and state ~ '^idle in transaction' and datname = %s",
                [world.database.name],
            )

    return action


async def test_a_settle_that_is_cut_off_anywhere_is_whole_or_not_at_all_b102(
    world: Ledger, gateway: Gateway, watched: set[tuple[Decimal, Decimal]]
) -> None:
    """0.10 reserved, 0.04 used, the connection gone before keys, entries and commit: always 0.04 spent and nothing held.

    Whoever looks meanwhile sees spent and held of the calls before, and of this one (0, 0.10) or (0.04, 0).
    """
    add_budget(world, limit="1.00")
    points = ("post.before_keys", "post.before_entries", "post.before_commit")
    allowed = {(Decimal(0), Decimal(0))}
    for number, point in enumerate(points):
        before = number * Decimal("0.04")
        assert await reserve(gateway, f"r-{number}", 10) == 201
        failpoints.set_failpoint(point, cut(world))
        try:
            event = used(f"ev-{number}", 4, reservation_id=f"r-{number}")
            answer = await gateway.post(f"reservations/r-{number}:settle", {"tenant_id": "t-alpha", "event": event})
        finally:
            failpoints.set_failpoint(point, None)
        assert (answer.status_code, answer.json()["state"]) == (200, "settled"), answer.text
        assert spent(world) == (before + Decimal("0.04"), 0)
        allowed |= {(before, Decimal("0.10")), (before + Decimal("0.04"), Decimal(0)), (before, Decimal(0))}
    assert watched <= allowed
    remaining = await one_budget(gateway.here, await make_key(world, "budgets:read"))
    assert Decimal(remaining["remaining"]) == Decimal("0.88")


async def test_the_clean_up_of_a_session_undoes_no_settlement_b103(world: Ledger, gateway: Gateway) -> None:
    """Three sessions of 0.50 that the provider refused leave nothing; the fourth's 0.30 come after its clean-up; the fifth is admitted."""
    add_budget(world, limit="1.50")
    for name in ("s1", "s2", "s3"):
        assert await reserve(gateway, name, 50) == 201
        await gateway.post(f"reservations/{name}:void", {"tenant_id": "t-alpha"})
        assert spent(world) == (0, 0)
    assert await reserve(gateway, "s4", 50) == 201
    await gateway.post("reservations/s4:settle", {"tenant_id": "t-alpha"})
    cleaned = (await gateway.post("reservations/s4:void", {"tenant_id": "t-alpha"})).json()
    assert (cleaned["state"], cleaned["is_changed"]) == ("awaiting_entry", False)
    assert spent(world) == (0, Decimal("0.50"))
    await gateway.here.send(used("ev-4", 30, reservation_id="s4"), token=gateway.token)
    assert spent(world) == (Decimal("0.30"), 0)
    assert await reserve(gateway, "s5", 50) == 201
    assert spent(world) == (Decimal("0.30"), Decimal("0.50"))
