"""The canary goes the way of every event, costs nobody anything, and says when the way is blocked."""

import json
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

import pytest

from ledger.api_keys import create_key
from ledger.database import Connection, connect
from tallystick import canary
from tallystick.addresses import configured
from tallystick.canary import BUDGET, SOURCE, TENANT, Beat, Http, Kafka, beat, list_beats, set_up
from tallystick.checks import run_checks
from tallystick.embedded import EmbeddedBroker
from tallystick.scheduler import jobs
from tallystick.settings import Settings
from tests.api.test_server import served
from tests.support.databases import Database
from tests.support.ledger import Ledger
from tests.support.worker import WorkerProcess
from tests.tallystick.commands import Commands


@pytest.fixture
async def operator(database: Database) -> AsyncIterator[Connection]:
    async with await connect(database.url_for("tallystick_operator")) as connection:
        made = await set_up(connection, "test", now=time.time_ns() // 1000, months_ahead=3, grace_days=3)
        assert made
        with database.connect() as superuser:
            superuser.execute("select ledger.make_partitions(date_trunc('month', now())::date)")
        yield connection


async def key_of(operator: Connection) -> str:
    made = await create_key(operator, actor="test", source=SOURCE, scopes=["events:write"])
    return made.token


def found(ledger: Database, **options: object) -> dict[str, tuple[str, str]]:
    report = run_checks(ledger.url_for("tallystick_analyst"), **options)  # type: ignore[arg-type]
    return {finding.check: (finding.severity, finding.text) for finding in report.findings}


async def test_a_beat_over_http_is_an_entry_and_moves_its_budget_and_no_money(
    operator: Connection, database: Database
) -> None:
    ledger = Ledger(database)
    try:
        road = None
        with served(ledger) as (_, address):
            road = Http(address, await key_of(operator))
            done = await beat(operator, road, every_seconds=60)
    finally:
        ledger.close()
    assert (done.road, done.failure) == ("http", None)
    assert done.entry_seconds is not None
    assert done.budget_seconds is not None
    with database.connect() as superuser:
        assert superuser.execute(
            "select tenant_id, cost_amount, charge_amount, unpriced_meters, request_count from ledger.entries"
        ).fetchall() == [(TENANT, Decimal(0), Decimal(0), [], 1)]
        assert superuser.execute("select posted from quotas.windows where budget_id = %s", [BUDGET]).fetchall() == [
            (1,)
        ]
    assert [each.event_id for each in await list_beats(operator)] == [done.event_id]
    assert "silence" in found(database), "nothing but the canary arrived: nothing arrived"
    assert "canary" not in found(database)


async def test_a_beat_over_kafka_waits_for_the_worker(
    operator: Connection, database: Database, embedded_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    embedded_broker.create_topic("canary", 1)
    road = Kafka(embedded_broker.bootstrap, "canary")
    blocked = await beat(operator, road, every_seconds=60, wait=0.5)
    assert blocked.failure == "its entry is not visible after 0.5 seconds"
    worker = WorkerProcess(
        tmp_path / "worker", writer_url=database.url_for("tallystick_writer"), bootstrap=embedded_broker.bootstrap,
        topic="canary", group="canary", session_seconds=3.0,
    )  # fmt: skip
    try:
        done = await beat(operator, road, every_seconds=60)
    finally:
        worker.kill()
    assert (done.road, done.failure) == ("kafka", None)


@pytest.mark.parametrize(
    ("road", "failure"),
    [
        (Http("http://127.0.0.1:1", "tsk_x"), "the API does not answer: URLError"),
        (Kafka("127.0.0.1:1", "canary"), "the broker at 127.0.0.1:1 does not answer"),
    ],
)
async def test_a_road_that_is_blocked_is_the_beats_failure(
    operator: Connection, road: Http | Kafka, failure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = await beat(operator, road, every_seconds=60)
    assert (done.failure or "").startswith(failure)
    assert (await list_beats(operator))[0].failure == done.failure


async def test_a_wrong_key_is_the_beats_failure_and_stands_nowhere(operator: Connection, database: Database) -> None:
    ledger = Ledger(database)
    try:
        with served(ledger) as (_, address):
            done = await beat(operator, Http(address, "tsk_000000000000_" + "0" * 64), every_seconds=60)
    finally:
        ledger.close()
    assert done.failure == "the API answers 401"


async def test_setting_up_again_changes_nothing(operator: Connection, database: Database) -> None:
    with database.connect() as superuser:
        before = superuser.execute("select count(*) from ledger.acts").fetchone()
    assert not await set_up(operator, "test", now=time.time_ns() // 1000, months_ahead=3, grace_days=3)
    with database.connect() as superuser:
        assert superuser.execute("select count(*) from ledger.acts").fetchone() == before
        assert superuser.execute("select tenant_id from ledger.source_tenants").fetchall() == [(TENANT,)]


OK = "0.1"


@pytest.mark.parametrize(
    ("beats", "severity"),
    [
        # (minutes ago, seconds until the budget moved, failure), every minute, the newest last
        ([(2, OK, None), (1, OK, None)], None),
        ([(2, OK, None), (1, "10", None)], None),
        ([(2, OK, None), (1, "10.1", None)], "warn"),
        ([(2, None, "away"), (1, OK, None)], None),
        ([(2, OK, None), (1, None, "away")], "warn"),
        ([(2, None, "away"), (1, None, "away")], "fail"),
        ([(4, OK, None), (3.9, OK, None)], None),
        ([(5, OK, None), (4.1, OK, None)], "fail"),
    ],
)
async def test_the_checks_say_when_the_canary_is_in_trouble(
    operator: Connection, database: Database, beats: list[tuple[float, str | None, str | None]], severity: str | None
) -> None:
    """Every minute: silence is more than three minutes and one."""
    now = datetime.now(UTC)
    for number, (minutes, seconds, failure) in enumerate(beats):
        at = Decimal(seconds) if seconds else None
        await canary._keep(
            operator, Beat(now - timedelta(minutes=minutes), "http", Decimal(60), f"beat-{number}", at, at, failure)
        )
    said = found(database, now=now).get("canary")
    assert (said[0] if said else None) == severity
    if said is not None:
        assert said[1].startswith("2: trouble with the canary" if severity == "fail" else "1: trouble with the canary")
        assert "over http" in said[1]


async def test_the_scheduler_sends_it_where_it_is_set(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It makes the canary's parties by itself; a month without a partition is the first thing that it finds."""
    monkeypatch.setenv("TALLYSTICK_DATABASE_URL", database.url)
    settings = Settings(home=tmp_path, canary_seconds=60, kafka="127.0.0.1:1")
    addresses = configured(settings)
    assert addresses is not None
    listed = {job.name: job for job in jobs(settings, addresses)}
    assert listed["canary"].every_seconds == 60
    assert await listed["canary"].do() is None
    with database.connect() as superuser:
        assert superuser.execute(
            "select every_seconds, failure like 'the broker%' from ledger.canary_beats"
        ).fetchall() == [(Decimal(60), True)]


def test_the_canary_takes_the_broker_of_a_running_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `replay` does: whoever started `tallystick up` need not look its port up."""
    from tallystick.commands.canary import road_of

    there = SimpleNamespace(kafka="127.0.0.1:21000", topic="llm-usage")
    monkeypatch.setattr("tallystick.stack.running", lambda home: there if home == tmp_path else None)
    assert road_of(Settings(home=tmp_path)) == Kafka("127.0.0.1:21000", "llm-usage")
    assert road_of(Settings(home=tmp_path, kafka="other:9092", usage_topic="t")) == Kafka("other:9092", "t")


def test_the_canary_by_command(commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TALLYSTICK_HOME", str(tmp_path))
    assert commands("canary", "beat").line.startswith("the canary needs a road: TALLYSTICK_CANARY_API")
    monkeypatch.setenv("TALLYSTICK_CANARY_API", "http://127.0.0.1:1")
    assert "needs TALLYSTICK_CANARY_KEY" in commands("canary", "beat").line
    monkeypatch.setenv("TALLYSTICK_CANARY_KEY", "tsk_x")
    assert commands.ok("canary", "list").out == "the canary has not been sent\n"
    assert commands.ok("canary", "setup").out.endswith(" made\n")
    assert commands.ok("canary", "setup").out.endswith(" are there\n")
    ran = commands("canary", "beat", "--format", "json")
    assert ran.code == 1
    assert json.loads(ran.out)["failure"] == "the API does not answer: URLError"
    assert "tsk_x" not in ran.out + ran.err
    assert len(commands.json("canary", "list")) == 1
