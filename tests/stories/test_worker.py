"""The worker between broker and ledger: killed, fenced, starved and fed with poison, it loses nothing and doubles nothing."""

import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from ingest.replay import packs, send
from ledger import feeds
from ledger.database import connect
from tallystick.embedded import EmbeddedBroker, free_port
from tests.conftest import CHECKOUT
from tests.factories import event_bytes, make_event
from tests.support.ledger import Ledger
from tests.support.soak import seeds
from tests.support.worker import WorkerProcess

PRICE = Decimal("0.00028")
"""100 x 2.00 / 1,000,000 + 10 x 8.00 / 1,000,000."""
_topics = iter(range(1000))


def wait_for(what: Callable[[], bool], seconds: float, worker: WorkerProcess | None = None) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {seconds} seconds\n{worker.said[-3000:] if worker else ''}")
        time.sleep(0.05)


@pytest.fixture(params=["embedded_broker", "kafka4"])
def broker(request: pytest.FixtureRequest) -> Any:
    """The embedded broker, and the real Apache Kafka."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def topic(broker: Any) -> str:
    name = f"usage-{next(_topics)}"
    broker.create_topic(name, 2)
    return name


@pytest.fixture
def start(broker: Any, topic: str, ledger: Ledger, tmp_path: Path) -> Iterator[Callable[..., WorkerProcess]]:
    """Starts workers on the topic; none outlives the test."""
    started: list[WorkerProcess] = []

    def one(**overrides: Any) -> WorkerProcess:
        config = {
            "writer_url": ledger.database.url_for("tallystick_writer"),
            "bootstrap": broker.bootstrap,
            "topic": topic,
            # The group holds no offsets; a fresh one spares the wait for a killed member's session.
            "group": f"{topic}-{len(started)}",
            "session_seconds": 6.0 if "kafka" in type(broker).__name__.lower() else 3.0,
            **overrides,
        }
        started.append(WorkerProcess(tmp_path / f"worker-{len(started)}", **config))
        return started[-1]

    yield one
    for worker in started:
        worker.kill()


STARTS_A_WORKER_AND_DIES = """
import os, pathlib, signal, sys
from tests.support.worker import WorkerProcess
nowhere = {"writer_url": "postgresql:///nowhere", "bootstrap": "127.0.0.1:9", "topic": "none", "group": "none"}
print(WorkerProcess(pathlib.Path(sys.argv[1]), **nowhere).process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_worker_of_the_tests_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    """Its broker and its database are not there, and it would wait for them."""
    script = [sys.executable, "-c", STARTS_A_WORKER_AND_DIES, str(tmp_path)]
    told = subprocess.run(script, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True, check=False)
    worker = int(told.stdout)

    def has_ended() -> bool:
        try:
            return Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except (FileNotFoundError, ProcessLookupError):
            return True

    wait_for(has_ended, 10)


def events(count: int, first: int = 0) -> list[bytes]:
    return [event_bytes(make_event(f"ev-{number}")) for number in range(first, first + count)]


def seen(ledger: Ledger) -> int:
    return int(
        ledger.value(
            "select coalesce(sum(created_count + duplicate_count + evidence_count + conflict_count + dead_letter_count), 0)"
            " from ledger.batches"
        )
    )


@pytest.mark.soak
@pytest.mark.parametrize("seed", seeds(20261129))
async def test_a_worker_killed_in_mid_batch_loses_nothing_and_doubles_nothing(
    broker: Any, topic: str, ledger: Ledger, start: Callable[..., WorkerProcess], seed: int
) -> None:
    """6,000 events; the worker dies by kill -9 before a COPY, before a commit, after a commit, and at moments of chance."""
    await ledger.add_price(input="2.00", output="8.00")
    count = 6000
    send(broker.bootstrap, topic, packs(events(count), 20))
    for failpoint in ("post.before_entries=die@3", "post.before_commit=die@4", "post.after_commit=die@2"):
        worker = start(failpoints=failpoint, batch_bytes_max=100_000)
        assert worker.process.wait(60) == -9, worker.said[-3000:]
    chance = random.Random(seed)
    for _ in range(3):
        worker = start(batch_bytes_max=20_000)
        before = seen(ledger)
        wait_for(lambda before=before: seen(ledger) > before or seen(ledger) == count, 120, worker)  # type: ignore[misc]
        time.sleep(chance.uniform(0, 0.15))
        worker.kill()
    last = start()
    wait_for(lambda: seen(ledger) == count, 60, last)
    assert last.stop() == 0
    assert ledger.rows("select count(*), count(distinct event_key), sum(request_count) from ledger.entries") == [
        (count, count, count)
    ]
    assert ledger.total("charge") == count * PRICE
    assert ledger.value("select sum(posted) from quotas.windows where budget_id = 'totals-charge'") == count * PRICE
    assert ledger.value("select sum(next_position) from ledger.feeds") == count // 20


async def test_an_idle_feed_is_posted_up_to_now(
    broker: Any, topic: str, ledger: Ledger, start: Callable[..., WorkerProcess]
) -> None:
    """Both partitions are caught up, so both say so, again and again, though nothing arrives."""
    await ledger.add_price(input="2.00", output="8.00")
    worker = start()
    send(broker.bootstrap, topic, packs(events(20), 5))
    wait_for(lambda: seen(ledger) == 20, 60, worker)
    posted_until = "select min(posted_until) from ledger.feeds where kind = 'kafka'"
    wait_for(lambda: ledger.value(posted_until) is not None, 30, worker)
    before = ledger.value(posted_until)
    wait_for(lambda: ledger.value(posted_until) > before, 30, worker)
    assert ledger.value("select sum(next_position) from ledger.feeds") == 4


async def test_the_same_events_sent_twice_are_duplicates(
    broker: Any, topic: str, ledger: Ledger, start: Callable[..., WorkerProcess]
) -> None:
    await ledger.add_price(input="2.00", output="8.00")
    worker = start()
    for round_number in (1, 2):
        send(broker.bootstrap, topic, packs(events(500), 50))
        wait_for(lambda rounds=round_number: seen(ledger) == rounds * 500, 60, worker)  # type: ignore[misc]
    assert ledger.rows("select sum(created_count), sum(duplicate_count) from ledger.batches") == [(500, 500)]
    assert ledger.total() == 500 * PRICE


async def test_broken_events_are_kept_and_cost_their_neighbours_nothing(
    broker: Any, topic: str, ledger: Ledger, start: Callable[..., WorkerProcess]
) -> None:
    """A pack of five with two broken ones, a message that is no JSON, one that is cut short."""
    await ledger.add_price(input="2.00", output="8.00")
    good = events(3)
    odd = [
        event_bytes(make_event("odd-1", tenant_id="t-nobody")),
        event_bytes(make_event("odd-2", feature="chat\0bot")),
    ]
    worker = start()
    pack = b"[" + b",".join([good[0], odd[0], good[1], odd[1], good[2]]) + b"]"
    send(broker.bootstrap, topic, [(pack, 5), (b"garbage", 1), (event_bytes(make_event("cut"))[:-20], 1)])
    wait_for(lambda: seen(ledger) == 7, 60, worker)
    assert ledger.total() == 3 * PRICE
    assert sorted(row[0] for row in ledger.rows("select reason from ledger.dead_letters")) == [
        "invalid_json",
        "nul_in_text",
        "truncated",
        "unknown_tenant",
    ]
    assert {
        bytes(row[0]) for row in ledger.rows("select bytes from ledger.dead_letters where reason <> 'truncated'")
    } == {
        b"garbage",
        *odd,
    }


async def test_a_worker_waits_for_a_database_that_is_away(
    broker: Any, topic: str, ledger: Ledger, start: Callable[..., WorkerProcess]
) -> None:
    """All its sessions end, and it may not log in for two seconds; then it goes on by itself, and has said so."""
    await ledger.add_price(input="2.00", output="8.00")
    worker = start()
    send(broker.bootstrap, topic, packs(events(100), 10))
    wait_for(lambda: seen(ledger) == 100, 60, worker)
    with psycopg.connect(ledger.database.url, autocommit=True) as other:
        other.execute("alter role tallystick_writer nologin")
        try:
            other.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where usename = 'tallystick_writer' and datname = current_database()"
            )
            send(broker.bootstrap, topic, packs(events(100, first=100), 10))
            time.sleep(2)
        finally:
            other.execute("alter role tallystick_writer login")
    wait_for(lambda: seen(ledger) == 200, 30, worker)
    assert worker.process.poll() is None
    assert "the database is away" in worker.said
    assert ledger.total() == 200 * PRICE


# Kafka waits for members that were killed before it gives their partitions to the next, a minute and more where the machine is busy.
@pytest.mark.timeout(600)
async def test_a_message_that_kills_three_times_is_set_aside_unread(
    broker: Any, topic: str, ledger: Ledger, start: Callable[..., WorkerProcess]
) -> None:
    """Each start dies with the message in hand; after two starts without progress it is noted first, and in the end passed."""
    await ledger.add_price(input="2.00", output="8.00")
    poison = event_bytes(make_event("poison", feature="deadly"))
    send(broker.bootstrap, topic, [(poison, 1), (b"[]", 0), *packs(events(10, first=1), 5)])
    deaths = 0
    for _ in range(8):
        worker = start(failpoints="read.message=die~deadly")
        wait_for(lambda w=worker: w.process.poll() is not None or seen(ledger) >= 11, 240, worker)  # type: ignore[misc]
        if worker.process.poll() is None:
            break
        deaths += 1
    assert deaths == 5, "two starts unnoted, three with the message in hand"
    assert ledger.rows("select reason, bytes from ledger.dead_letters where reason = 'kills_process'") == [
        ("kills_process", poison)
    ]
    assert ledger.total() == 10 * PRICE


async def test_two_workers_share_the_partitions_and_double_nothing(
    broker: Any, topic: str, ledger: Ledger, start: Callable[..., WorkerProcess]
) -> None:
    await ledger.add_price(input="2.00", output="8.00")
    first = start(group=f"{topic}-shared", batch_bytes_max=20_000)
    send(broker.bootstrap, topic, packs(events(1000), 10))
    wait_for(lambda: seen(ledger) > 0, 60, first)
    second = start(group=f"{topic}-shared", batch_bytes_max=20_000)
    send(broker.bootstrap, topic, packs(events(2000, first=1000), 10))
    wait_for(lambda: seen(ledger) >= 3000, 90, second)
    first.kill()
    send(broker.bootstrap, topic, packs(events(500, first=3000), 10))
    wait_for(lambda: ledger.value("select count(*) from ledger.entries") == 3500, 90, second)
    assert ledger.total() == 3500 * PRICE


async def test_a_broker_that_forgot_everything_is_another_log(ledger: Ledger, tmp_path: Path) -> None:
    """The embedded broker restarts with an empty log of the same name: its first events are read, none is skipped."""
    await ledger.add_price(input="2.00", output="8.00")
    with EmbeddedBroker(tmp_path) as own:
        own.create_topic("usage", 2)
        worker = WorkerProcess(
            tmp_path / "worker",
            writer_url=ledger.database.url_for("tallystick_writer"),
            bootstrap=own.bootstrap,
            topic="usage",
            group="restarted",
            session_seconds=3.0,
        )
        try:
            send(own.bootstrap, "usage", packs(events(100), 5))
            wait_for(lambda: seen(ledger) == 100, 60, worker)
            own.kill()
            own.start()
            own.create_topic("usage", 2)
            send(own.bootstrap, "usage", packs(events(50, first=75), 5))
            wait_for(lambda: seen(ledger) == 150, 60, worker)
            assert worker.process.poll() is None
        finally:
            worker.kill()
    assert ledger.total() == 125 * PRICE
    assert ledger.rows("select sum(duplicate_count) from ledger.batches") == [(25,)]
    assert ledger.value("select count(*) from ledger.feeds where kind = 'kafka'") == 4, "two partitions, twice"


@pytest.mark.parametrize("broker", ["kafka4"], indirect=True)
async def test_a_worker_stops_and_names_what_the_log_has_lost(
    broker: Any, topic: str, ledger: Ledger, start: Callable[..., WorkerProcess]
) -> None:
    """A feed that expects position 0 of a log that now starts at 10 is not read on behind the gap.

    The embedded broker cannot delete records, so this is a story of Apache Kafka alone.
    """
    await ledger.add_price(input="2.00", output="8.00")
    send(broker.bootstrap, topic, packs(events(40), 1))
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for trimmed in admin.delete_records([TopicPartition(topic, 0, 10)]).values():
        trimmed.result(10)
    worker = start()
    assert worker.process.wait(60) == 1, worker.said[-3000:]
    assert "positions 0 to 9 are lost" in worker.said
    name = ledger.value("select name from ledger.feeds where name like '%%:0'")
    connection = await connect(ledger.database.url_for("tallystick_operator"))
    try:
        await feeds.start_here(connection, name, 10, actor="test", reason="the first ten were read elsewhere")
    finally:
        await connection.close()
    again = start()
    wait_for(lambda: seen(ledger) == 30, 60, again)
    assert ledger.total() == 30 * PRICE


async def test_a_worker_that_starts_before_everything_else_waits_and_says_for_what(
    ledger: Ledger, tmp_path: Path
) -> None:
    """No broker, then no topic, then no database: each is waited for, and named."""
    await ledger.add_price(input="2.00", output="8.00")
    own = EmbeddedBroker(tmp_path, port=free_port())
    worker = WorkerProcess(
        tmp_path / "worker",
        writer_url=ledger.database.url_for("tallystick_writer"),
        bootstrap=f"127.0.0.1:{own.port}",
        topic="usage",
        group="early",
        session_seconds=3.0,
    )
    try:
        wait_for(lambda: "is away" in worker.said, 30, worker)
        ledger.superuser.execute("alter role tallystick_writer nologin")
        with own:
            own.create_topic("usage", 1)
            wait_for(lambda: "the database is away" in worker.said, 30, worker)
            ledger.superuser.execute("alter role tallystick_writer login")
            send(own.bootstrap, "usage", packs(events(10), 5))
            wait_for(lambda: seen(ledger) == 10, 60, worker)
            assert worker.process.poll() is None
    finally:
        worker.kill()
        ledger.superuser.execute("alter role tallystick_writer login")
    assert ledger.total() == 10 * PRICE


async def test_a_worker_goes_on_from_where_a_person_says_without_a_restart(
    embedded_broker: EmbeddedBroker, ledger: Ledger, tmp_path: Path
) -> None:
    """`feeds start-here` fences the worker that runs; it claims the feed again and reads on from there."""
    await ledger.add_price(input="2.00", output="8.00")
    embedded_broker.create_topic("moved", 1)
    worker = WorkerProcess(
        tmp_path / "worker",
        writer_url=ledger.database.url_for("tallystick_writer"),
        bootstrap=embedded_broker.bootstrap,
        topic="moved",
        group="moved",
        session_seconds=3.0,
    )
    try:
        send(embedded_broker.bootstrap, "moved", packs(events(10), 1))
        wait_for(lambda: seen(ledger) == 10, 60, worker)
        connection = await connect(ledger.database.url_for("tallystick_operator"))
        try:
            name = ledger.value("select name from ledger.feeds where kind = 'kafka'")
            await feeds.start_here(connection, name, 12, actor="test", reason="two events are not wanted")
        finally:
            await connection.close()
        send(embedded_broker.bootstrap, "moved", packs(events(10, first=10), 1))
        wait_for(lambda: seen(ledger) == 18, 60, worker)
        assert worker.process.poll() is None
    finally:
        worker.kill()
    assert ledger.total() == 18 * PRICE
