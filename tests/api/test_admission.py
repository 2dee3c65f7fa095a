"""Admission over real servers: never more than there is, and nobody is told yes without a row, whatever dies."""

import asyncio
import os
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from tests.api.support import add_budget, bearer, make_key, site
from tests.api.test_reservations import PRICE, Gateway, ask, held
from tests.api.test_server import served
from tests.factories import GATEWAY
from tests.support.ledger import Ledger
from tests.support.wire import Cut, Wire

pytestmark = pytest.mark.soak


async def crowd(addresses: Sequence[str], token: str, ids: Sequence[str]) -> dict[str, int]:
    """Ask for all ids at once, shared out among servers; return the status of each, 0 where the server hung up."""
    limits = httpx.Limits(max_connections=len(ids), max_keepalive_connections=len(ids))
    async with httpx.AsyncClient(limits=limits, timeout=60) as client:

        async def one(number: int, reservation_id: str) -> tuple[str, int]:
            try:
                answer = await client.post(
                    f"{addresses[number % len(addresses)]}/v1/reservations",
                    json=ask(reservation_id),
                    headers=bearer(token),
                )
            except httpx.TransportError:
                return reservation_id, 0
            return reservation_id, answer.status_code

        return dict(await asyncio.gather(*(one(number, reservation_id) for number, reservation_id in enumerate(ids))))


async def test_of_500_callers_at_two_replicas_exactly_those_are_admitted_that_there_is_money_for(world: Ledger) -> None:
    """Money for 123 calls and a fraction of one more; two budgets of which the other would let all pass."""
    add_budget(world, limit=str(123 * PRICE + PRICE / 2))
    add_budget(world, "b-wide", limit="1000", window_kind="day")
    token = await make_key(world, source=GATEWAY)
    wide = {"reservation_deadline_seconds": 30, "reservation_lock_seconds": 20}
    with served(world, name="api-1", **wide) as (_, first), served(world, name="api-2", **wide) as (_, second):
        statuses = await crowd([first, second], token, [f"r-{n}" for n in range(500)])
    assert Counter(statuses.values()) == {201: 123, 429: 377}
    assert held(world) == 123 * PRICE
    rows = {row[0] for row in world.rows("select reservation_id from quotas.reservations")}
    assert rows == {reservation_id for reservation_id, status in statuses.items() if status == 201}


async def test_two_replicas_that_meet_at_a_window_that_is_not_there_yet_make_it_once(world: Ledger) -> None:
    add_budget(world, limit=str(PRICE))
    token = await make_key(world, source=GATEWAY)
    with served(world, name="api-1") as (_, first), served(world, name="api-2") as (_, second):
        for address in (first, second):
            httpx.get(f"{address}/readyz")
        statuses = await crowd([first, second], token, ["r-1", "r-2"])
    assert sorted(statuses.values()) == [201, 429]
    assert world.rows("select held from quotas.windows where budget_id = 'b-1'") == [(PRICE,)]


async def test_a_killed_server_has_told_nobody_yes_without_a_row(world: Ledger) -> None:
    """B118 for reservations: killed with -9 while its queue is full, and again while it answers."""
    add_budget(world, limit="1000")
    token = await make_key(world, source=GATEWAY)
    wide = {"reservation_deadline_seconds": 30, "reservation_lock_seconds": 20, "reservation_batch_max": 20}
    with served(world, **wide) as (process, address):
        assert (await crowd([address], token, ["r-first"]))["r-first"] == 201
        with psycopg.connect(world.database.url) as holder:
            holder.execute("select from quotas.windows where budget_id = 'b-1' for update")
            asking = asyncio.create_task(crowd([address], token, [f"r-{n}" for n in range(200)]))
            await asyncio.sleep(1.0)
            os.kill(process.pid, signal.SIGKILL)
            statuses = await asking
        assert set(statuses.values()) == {0}
    with served(world, **wide) as (process, address):
        asking = asyncio.create_task(crowd([address], token, [f"s-{n}" for n in range(300)]))
        while world.value("select count(*) from quotas.reservations where reservation_id like 's-%%'") < 20:  # noqa: ASYNC110  the database
            await asyncio.sleep(0)
        os.kill(process.pid, signal.SIGKILL)
        statuses = await asking
    told = {reservation_id for reservation_id, status in statuses.items() if status == 201}
    rows = {row[0] for row in world.rows("select reservation_id from quotas.reservations")}
    assert told <= rows
    # What a dead server's session was still deciding may have been committed: it is found under its id, and held.
    assert held(world) == len(rows) * PRICE


async def test_a_stopped_server_answers_what_it_has_taken(world: Ledger) -> None:
    add_budget(world, limit="1000")
    token = await make_key(world, source=GATEWAY)
    with served(world, reservation_deadline_seconds=30, reservation_lock_seconds=20) as (process, address):
        await crowd([address], token, ["r-first"])
        with psycopg.connect(world.database.url) as holder:
            holder.execute("select from quotas.windows where budget_id = 'b-1' for update")
            asking = asyncio.create_task(crowd([address], token, [f"r-{n}" for n in range(30)]))
            await asyncio.sleep(1.0)
            process.terminate()
            await asyncio.sleep(0.3)
        assert set((await asking).values()) == {201}
        assert await asyncio.to_thread(process.wait, 20) == 0
    assert held(world) == 31 * PRICE


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: a socket's address has about a hundred bytes."""
    with tempfile.TemporaryDirectory(prefix="wire-") as made:
        yield Path(made)


@pytest.mark.parametrize("cut", ["before", "after", "delayed"])
async def test_a_commit_whose_answer_is_lost_on_the_wire_is_found_again(world: Ledger, folder: Path, cut: Cut) -> None:
    """Cut before the server hears of the ask, after it has committed, and before it commits behind our back."""
    add_budget(world, limit=str(2 * PRICE))
    token = await make_key(world, source=GATEWAY)
    wire = Wire(world.database.server, folder)
    writer_url = wire.url_for("tallystick_writer", world.database.name)
    async with wire.open(), site(world, writer_url=writer_url) as here:
        gateway = Gateway(here, token)
        assert (await gateway.reserve("r-first")).status_code == 201
        wire.arm(cut, seconds=0.2, word=b"r-lost")
        answer = await gateway.reserve("r-lost")
        assert (answer.status_code, answer.json()["state"]) in [(200, "held"), (201, "held")]
        assert wire.cuts == 1
        await asyncio.sleep(0.5)
        assert (await gateway.reserve("r-more")).status_code == 429
    assert held(world) == 2 * PRICE
    assert world.value("select count(*) from quotas.reservations") == 2


@pytest.mark.parametrize("act", ["void", "settle"])
async def test_an_end_whose_answer_is_lost_on_the_wire_has_happened_once(world: Ledger, folder: Path, act: str) -> None:
    add_budget(world, limit="1.00")
    token = await make_key(world, source=GATEWAY)
    wire = Wire(world.database.server, folder)
    writer_url = wire.url_for("tallystick_writer", world.database.name)
    async with wire.open(), site(world, writer_url=writer_url) as here:
        gateway = Gateway(here, token)
        for reservation_id in ("r-first", "r-lost"):
            assert (await gateway.reserve(reservation_id)).status_code == 201
        await gateway.post(f"reservations/r-first:{act}", {"tenant_id": "t-alpha"})
        wire.arm("after", word=b"r-lost")
        told: dict[str, Any] = (await gateway.post(f"reservations/r-lost:{act}", {"tenant_id": "t-alpha"})).json()
        assert wire.cuts == 1
    assert told["state"] == {"void": "voided", "settle": "awaiting_entry"}[act]
    assert held(world) == (Decimal(0) if act == "void" else 2 * PRICE)


async def test_postgres_away_and_back_costs_answers_and_nothing_else(world: Ledger) -> None:
    """Without an allowance: refused while it is away, decided when it is back, by the same process."""
    add_budget(world, limit="1.00")
    token = await make_key(world, source=GATEWAY)
    async with site(world, reservation_deadline_seconds=0.5) as here:
        gateway = Gateway(here, token)
        assert (await gateway.reserve("r-0")).status_code == 201
        world.superuser.execute("alter role tallystick_writer nologin")
        world.superuser.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where usename = 'tallystick_writer' and datname = %s",
            [world.database.name],
        )
        try:
            away = await asyncio.gather(*(gateway.reserve(f"r-{n}") for n in range(1, 11)))
        finally:
            world.superuser.execute("alter role tallystick_writer login")
        assert {answer.status_code for answer in away} == {503}
        assert {answer.headers["retry-after"] for answer in away} <= {"1", "2"}
        for n in range(1, 11):
            assert (await gateway.reserve(f"r-{n}")).status_code in (200, 201)
    assert held(world) == 11 * PRICE
