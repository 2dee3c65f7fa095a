"""While Postgres is away: refused, or admitted up to what each budget allows this replica, and booked when it is back."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest

from quotas.away import window_start
from tests.api.support import Site, add_budget, bearer, make_key, problem, site
from tests.api.test_reservations import PRICE, Gateway, ask, held
from tests.factories import GATEWAY
from tests.support.ledger import Ledger
from tests.support.waiting import until


@contextmanager
def away(ledger: Ledger) -> Iterator[None]:
    """Let neither the writer nor the API in, nor stay."""
    roles = ["tallystick_writer", "tallystick_api"]
    for role in roles:
        ledger.superuser.execute(f"alter role {role} nologin".encode())
    ledger.superuser.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity where usename = any(%s) and datname = %s",
        [roles, ledger.database.name],
    )
    try:
        yield
    finally:
        for role in roles:
            ledger.superuser.execute(f"alter role {role} login".encode())


@asynccontextmanager
async def replica(world: Ledger, token: str, journal: Path, **overrides: Any) -> AsyncIterator[Gateway]:
    async with site(world, journal=str(journal), **overrides) as here:
        await here.app.state.services.reserving._away.refresh()
        yield Gateway(here, token)


async def back(here: Site) -> None:
    await until(lambda: not here.app.state.services.reserving.is_away)


@pytest.fixture
async def token(world: Ledger) -> str:
    add_budget(world, limit="1.00", when_away="admit", away_amount=3 * PRICE)
    add_budget(world, "b-2", tenant_id="t-beta", limit="1.00")
    return await make_key(world, source=GATEWAY)


async def test_an_allowance_admits_so_much_and_is_booked(world: Ledger, token: str, tmp_path: Path) -> None:
    async with replica(world, token, tmp_path / "j") as gateway:
        assert (await gateway.reserve("r-before")).status_code == 201
        with away(world):
            answers = await asyncio.gather(*(gateway.reserve(f"r-{n}") for n in range(10)))
            assert sorted(answer.status_code for answer in answers) == [201] * 3 + [503] * 7
            admitted = [answer for answer in answers if answer.status_code == 201]
            for answer in admitted:
                assert (answer.headers["tallystick-away"], answer.json()["is_away"]) == ("true", True)
            assert {problem(answer) for answer in answers if answer.status_code == 503} == {"database-away"}
            # The same ask again is the same admission, and takes nothing more.
            again = await gateway.reserve(admitted[0].json()["reservation_id"])
            assert (again.status_code, again.json()["is_away"]) == (201, True)
            assert (
                problem(await gateway.reserve(admitted[0].json()["reservation_id"], input_tokens=1)) == "database-away"
            )
        await back(gateway.here)
        assert held(world) == 4 * PRICE
        for answer in admitted:
            assert await gateway.state(answer.json()["reservation_id"]) == "held"
        ordinary = await gateway.reserve("r-after")
        assert (ordinary.status_code, "tallystick-away" in ordinary.headers) == (201, False)
        assert await gateway.here.metric("tallystick_away_booked_total") == 3


async def test_a_budget_that_refuses_while_away_refuses_for_all(world: Ledger, token: str, tmp_path: Path) -> None:
    """Every hard budget in scope must let the call go ahead; one that nobody limits says nothing."""
    add_budget(world, "b-chat", feature="chat", limit="1.00")
    add_budget(world, "b-soft", limit="0", hardness="soft")
    async with replica(world, token, tmp_path / "j") as gateway:
        assert (await gateway.reserve("r-0")).status_code == 201
        with away(world):
            assert problem(await gateway.reserve("r-1", tenant_id="t-beta")) == "database-away"
            assert problem(await gateway.reserve("r-2", feature="chat")) == "database-away"
            assert problem(await gateway.reserve("r-3", model="m-nobody-knows")) == "database-away"
            assert (await gateway.reserve("r-4", feature="search")).status_code == 201
            batch = await gateway.post("reservations:batch", {"reservations": [ask("r-5"), ask("r-6", feature="chat")]})
            assert problem(batch) == "database-away"
            # All of a batch or none: what was not answered took nothing.
            assert [(await gateway.reserve(f"r-{n}")).status_code for n in (7, 8, 9)] == [201, 201, 503]


async def test_without_a_journal_nothing_is_admitted(world: Ledger, token: str) -> None:
    async with site(world, reservation_deadline_seconds=0.3) as here:
        gateway = Gateway(here, token)
        assert (await gateway.reserve("r-0")).status_code == 201
        with away(world):
            assert problem(await gateway.reserve("r-1")) in ("database-away", "deadline-passed")


async def test_a_restart_loses_neither_what_was_admitted_nor_what_is_left(
    world: Ledger, token: str, tmp_path: Path
) -> None:
    journal = tmp_path / "j"
    async with replica(world, token, journal) as gateway:
        await gateway.reserve("r-0")
        with away(world):
            assert (await gateway.reserve("r-1")).status_code == 201
            # It dies while a line is being written.
            written = journal.read_bytes()
    assert [json.loads(line)["type"] for line in written.splitlines()] == ["admitted"]
    # What it booked on its way out is undone here: the journal is as a kill would have left it.
    world.superuser.execute("delete from quotas.reservations where reservation_id = 'r-1'")
    world.superuser.execute("update quotas.windows set held = %s where budget_id = 'b-1'", [PRICE])
    journal.write_bytes(written + b'{"type":"admitted","at":17')
    async with replica(world, token, journal) as gateway:
        await back(gateway.here)
        assert await gateway.state("r-1") == "held"
        assert held(world) == 2 * PRICE
        with away(world):
            # One of three was taken before the restart, in the same window.
            answers = [await gateway.reserve(f"r-{n}") for n in (2, 3, 4)]
            assert [answer.status_code for answer in answers] == [201, 201, 503]
        await back(gateway.here)
    assert held(world) == 4 * PRICE


async def test_what_is_booked_above_the_limit_is_told_by_its_cause(world: Ledger, tmp_path: Path) -> None:
    """Limit 0.0003: one call of 0.00028 is held, one more comes from the outage: 0.00026 above."""
    add_budget(world, limit="0.0003", when_away="admit", away_amount="1")
    token = await make_key(world, source=GATEWAY)
    async with replica(world, token, tmp_path / "j") as gateway:
        assert (await gateway.reserve("r-0")).status_code == 201
        assert (await gateway.reserve("r-1")).status_code == 429
        with away(world):
            assert (await gateway.reserve("r-1")).status_code == 201
        await back(gateway.here)
        assert problem(await gateway.reserve("r-2")) == "budget-exhausted"
    assert world.rows("select change, cause from quotas.excess") == [(Decimal("0.00026"), "away")]


async def test_two_processes_cannot_share_a_journal(world: Ledger, token: str, tmp_path: Path) -> None:
    async with replica(world, token, tmp_path / "j"):
        with pytest.raises(BlockingIOError):
            async with replica(world, token, tmp_path / "j", name="api-2"):
                raise AssertionError("it must not start")


async def test_a_key_that_was_good_lately_is_believed_while_nobody_can_be_asked(
    world: Ledger, token: str, tmp_path: Path
) -> None:
    async with replica(world, token, tmp_path / "j", key_seconds=0.1) as gateway:
        await gateway.reserve("r-0")
        with away(world):
            await asyncio.sleep(0.15)
            assert (await gateway.reserve("r-1")).status_code == 201
            # Only for this: a read needs the database anyway.
            read = await gateway.here.client.get("/v1/budgets", headers=bearer(token))
            assert problem(read) == "database-away"
        await back(gateway.here)


@pytest.mark.parametrize(
    ("kind", "days", "anchor"),
    [
        ("day", None, None),
        ("days", 10, date(2026, 1, 7)),
        ("week", None, None),
        ("month", None, None),
        ("anchored_month", None, date(2026, 1, 31)),
        ("lifetime", None, None),
    ],
)
def test_windows_are_those_of_the_database(world: Ledger, kind: str, days: int | None, anchor: date | None) -> None:
    asked = [date(2023, 12, 20) + timedelta(days=n) for n in range(500)]
    rows = world.rows(
        "select day::date, quotas.window_start(%s, %s, %s, day) from unnest(%s::date[]) as day",
        kind,
        days,
        anchor,
        asked,
    )
    assert [(day, window_start(kind, days, anchor, day)) for day, _ in rows] == rows


async def test_a_database_that_goes_in_the_middle_of_a_crowd_admits_no_more_than_the_allowance(
    world: Ledger, token: str, tmp_path: Path
) -> None:
    async with replica(world, token, tmp_path / "j") as gateway:
        await gateway.reserve("r-first")
        asking = [asyncio.create_task(gateway.reserve(f"r-{n}")) for n in range(60)]
        await asyncio.sleep(0.005)
        with away(world):
            answers = await asyncio.gather(*asking)
            with psycopg.connect(world.database.url) as looking:
                row = looking.execute("select count(*) from quotas.reservations").fetchone()
            assert row is not None
            known = row[0] - 1
            admitted = sum(answer.status_code in (200, 201) for answer in answers)
            assert admitted <= known + 3
        await back(gateway.here)
        assert held(world) == world.value("select count(*) from quotas.reservations") * PRICE
        for answer in answers:
            if answer.status_code in (200, 201):
                assert await gateway.state(answer.json()["reservation_id"]) == "held"
