"""The scheduler: one at a time, no job stops another, and it ends when it is told to."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from ledger.database import connect
from ledger.registry import add_entity, add_tenant
from tallystick import scheduler
from tallystick.addresses import configured
from tallystick.scheduler import Job, jobs, schedule
from tallystick.settings import Settings
from tests.support.databases import Database
from tests.support.waiting import until

CHECKOUT = Path(__file__).parent.parent.parent


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "_WATCH_SECONDS", 0.05)
    monkeypatch.setattr(scheduler, "_RETRY_SECONDS", (0.02,))


def counting(name: str, done: list[str], fails: bool = False) -> Job:
    async def do() -> str | None:
        done.append(name)
        if fails:
            raise ValueError("out of\norder")
        return "done"

    return Job(name, 0.05, do)


async def stopped(*tasks: "asyncio.Task[None]") -> None:
    for task in tasks:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_a_job_that_fails_is_tried_again_and_stops_no_other(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    done: list[str] = []
    url = database.url_for("tallystick_operator")
    task = asyncio.create_task(schedule(url, [counting("bad", done, fails=True), counting("good", done)]))
    await until(lambda: done.count("bad") >= 3 and done.count("good") >= 3)
    await stopped(task)
    assert "bad failed, again in 0.02 s: out of order" in caplog.messages


async def test_of_several_one_works_and_the_next_takes_its_place(database: Database) -> None:
    first, second = [], []  # type: list[str], list[str]
    url = database.url_for("tallystick_operator")
    one = asyncio.create_task(schedule(url, [counting("job", first)]))
    await until(lambda: len(first) >= 1)
    two = asyncio.create_task(schedule(url, [counting("job", second)]))
    await asyncio.sleep(0.3)
    assert second == []
    await stopped(one)
    await until(lambda: len(second) >= 2)
    await stopped(two)


async def test_a_scheduler_that_loses_its_lock_stops_its_jobs(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    done: list[str] = []
    task = asyncio.create_task(schedule(database.url_for("tallystick_operator"), [counting("job", done)]))
    await until(lambda: len(done) >= 1)
    with database.connect(autocommit=True) as connection:
        connection.execute(
            "select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory' and objid = %s",
            [scheduler._LOCK],
        )
    await until(lambda: any("the lock is lost" in message for message in caplog.messages))
    seen = len(done)
    await until(lambda: len(done) > seen + 1)
    await stopped(task)


async def test_it_waits_for_a_database_that_is_away(caplog: pytest.LogCaptureFixture) -> None:
    task = asyncio.create_task(schedule("postgresql://x@127.0.0.1:1/x", []))
    await until(lambda: sum("the database is away" in message for message in caplog.messages) >= 2)
    await stopped(task)


async def test_the_jobs_do_what_they_say(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TALLYSTICK_DATABASE_URL", database.url)
    settings = Settings(home=tmp_path, months_ahead=6)
    found = configured(settings)
    assert found is not None
    listed = {job.name: job for job in jobs(settings, found)}
    assert set(listed) == {
        "months ahead",
        "seals",
        "grants",
        "outbox",
        "rollup",
        "heads",
        "counters",
        "standing proof",
        "verify",
        "age limits",
        "checks",
        "holds",
        "decisions",
    }
    async with await connect(database.url_for("tallystick_operator")) as connection:
        await add_entity(connection, "test", "e", "E")
        await add_tenant(
            connection, "test", "acme", entity_id="e", time_zone="UTC", charge_currency="USD", now=time.time_ns() // 1000
        )  # fmt: skip
    assert await listed["months ahead"].do() == "6 partitions and 3 periods made"
    assert await listed["months ahead"].do() is None
    # A close was interrupted between its flip and its seal.
    with database.connect() as superuser:
        superuser.execute("update ledger.periods set state = 'closed'")
    assert await listed["seals"].do() == "7 seals made, 7 partitions closed"
    assert await listed["seals"].do() is None
    assert await listed["heads"].do() is None
    assert await listed["standing proof"].do() is None
    assert (await listed["verify"].do() or "").startswith("everything holds: 0 entries in ")
    # Once a day: the next look finds that it was.
    assert await listed["verify"].do() is None
    with database.connect() as superuser:
        found = superuser.execute(
            "select kind, difference_count, every_seconds from ledger.proofs order by 1"
        ).fetchall()
    assert found == [("standing", 0, 60), ("whole", 0, 86_400)]
    assert await listed["age limits"].do() is None
    # Nobody spoke of either: one ran out a minute ago, the other is long over, as is a refusal.
    with database.connect() as superuser:
        superuser.execute(
            "insert into quotas.reservations (tenant_id, reservation_id, content_hash, basis, state, budget_ids, group_keys,"
            " window_starts, reserved, posted_under, decided_at, expires_at, ended_at)"
            " select 'acme', state, gen_random_uuid(), 'worst_case', state, '{}', '{}', '{}', '{}', '{}', at, at, at"
            " from (values ('held', now() - interval '1 minute'), ('voided', now() - interval '36 days')) as v (state, at)"
        )
    assert await listed["holds"].do() == "1 expired"
    assert await listed["holds"].do() is None
    assert await listed["decisions"].do() == "1 decisions and closed reservations forgotten"
    assert await listed["decisions"].do() is None


async def test_work_in_a_thread_gives_back_its_result_or_its_error() -> None:
    def fail() -> None:
        raise ValueError("no")

    do: Callable[[], Awaitable[int]] = lambda: scheduler._in_thread(lambda: 7, "seven")  # noqa: E731
    assert await do() == 7
    with pytest.raises(ValueError, match="no"):
        await scheduler._in_thread(fail, "fail")
    assert scheduler._at_work == []


def test_it_ends_when_it_is_told_to(database: Database, tmp_path: Path) -> None:
    told = {**os.environ, "TALLYSTICK_HOME": str(tmp_path), "TALLYSTICK_DATABASE_URL": database.url}
    command = [sys.executable, "-m", "tallystick", "scheduler"]
    with subprocess.Popen(command, cwd=CHECKOUT, env=told, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        first = process.stderr.readline()
        assert "this is the scheduler now" in first, first
        process.send_signal(signal.SIGTERM)
        rest = process.stderr.read()
        assert process.wait(20) == 0
    assert "Traceback" not in rest
    assert "stopped" in rest
