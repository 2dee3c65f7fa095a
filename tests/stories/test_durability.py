"""What was acknowledged is stored, what cannot be stored is not acknowledged, and what cannot be read stops nobody."""

import asyncio
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from ingest.replay import send
from tallystick.embedded import EmbeddedBroker
from tests.api.support import make_key, problem, site
from tests.factories import GATEWAY, event_bytes, make_event
from tests.stories.test_worker import seen, wait_for
from tests.support.ledger import Failpoint, Ledger, writer_away
from tests.support.worker import WorkerProcess


def used(event_id: str, tokens: int, **overrides: Any) -> dict[str, Any]:
    return make_event(
        event_id, usage={"prompt_tokens": tokens, "completion_tokens": 0, "total_tokens": tokens}, **overrides
    )


async def test_b116_what_waits_is_forgotten_only_once_it_is_stored(ledger: Ledger, failpoint: Failpoint) -> None:
    """Three requests wait together; their commit fails twice, each time with the session, and then works.

    100 USD a million: 100, 200, 300 tokens are 0.01 + 0.02 + 0.03 = 0.06, three events, each once.
    """
    await ledger.add_price(input="100.00", output="100.00")
    token = await make_key(ledger, source=GATEWAY)
    failures = []

    def fail(_: bytes) -> None:
        if len(failures) < 2:
            failures.append(1)
            ledger.superuser.execute(
                "select pg_terminate_backend(pid, 2000) from pg_stat_activity"
                " where usename = 'tallystick_writer' and datname = current_database()"
            )

    failpoint("post.before_commit", fail)
    async with site(ledger, patience_seconds=20) as here:
        answers = await asyncio.gather(
            *(here.send(used(f"ev-{number}", 100 * number), token=token) for number in (1, 2, 3))
        )
    assert len(failures) == 2
    assert [answer.json()["results"][0]["outcome"] for answer in answers] == ["created"] * 3
    assert ledger.total() == Decimal("0.06")
    assert ledger.rows("select count(*), count(distinct event_key) from ledger.entries") == [(3, 3)]


async def test_b117_a_full_buffer_pushes_back_and_drops_nothing(ledger: Ledger) -> None:
    """4,800 events in requests of 100 while the database is away, for a queue of 4,000: what is above it is refused with 503
    and a time to wait, and sent again. 4,800 x 0.0025 = 12 (25 tokens at 100 USD a million).
    """
    await ledger.add_price(input="100.00", output="100.00")
    token = await make_key(ledger, source=GATEWAY)
    refused = 0

    async def send_until_taken(here: Any, number: int) -> None:
        nonlocal refused
        events = [used(f"ev-{number}-{place}", 25) for place in range(100)]
        while True:
            answer: httpx.Response = await here.send(*events, token=token)
            if answer.status_code == 200:
                return
            assert (answer.status_code, problem(answer)) == (503, "queue-full")
            assert int(answer.headers["retry-after"]) >= 1
            refused += 1
            await asyncio.sleep(0.05)

    async with site(
        ledger, queue_events_max=4000, body_events_max=100, deadline_seconds=60, patience_seconds=60
    ) as here:
        with writer_away(ledger):
            tasks = [asyncio.create_task(send_until_taken(here, number)) for number in range(48)]
            async with asyncio.timeout(20):
                while refused < 8:  # noqa: ASYNC110  it is others that are waited for
                    await asyncio.sleep(0.01)
            assert not any(task.done() for task in tasks), "nothing is acknowledged while nothing is stored"
        await asyncio.gather(*tasks)
    assert ledger.total() == Decimal(12)
    assert ledger.value("select count(*) from ledger.entries") == 4800


async def test_b120_two_writers_in_opposite_order_lose_nothing(ledger: Ledger) -> None:
    """W1 posts 1,000 batches of A 1 then B 2 tokens, W2 at the same time 1,000 of B 4 then A 8, each a transaction over the
    same two windows: A = 1000 x 1 + 1000 x 8 = 9000, B = 1000 x 2 + 1000 x 4 = 6000, and none is given up.
    """
    await ledger.add_price(input="2.00", output="8.00")
    ledger.add_tenant("t-b")
    ledger.superuser.execute(
        "insert into quotas.budgets (budget_id, group_by, unit, window_kind, first_window)"
        " values ('by-tenant', '{tenant_id}', 'total_tokens', 'month', '2025-01-01')"
    )

    async def write(name: str, *order: tuple[str, int]) -> int:
        async with ledger.intake(f"file:{name}") as intake:
            for number in range(1000):
                events = [used(f"{name}-{number}-{tenant}", count, tenant_id=tenant) for tenant, count in order]
                posted = await intake.post(await intake.read([ledger.message(*events)]))
                assert ledger.outcomes(posted) == ["created", "created"]
        return number + 1

    done = await asyncio.gather(write("w1", ("t-alpha", 1), ("t-b", 2)), write("w2", ("t-b", 4), ("t-alpha", 8)))
    assert done == [1000, 1000]
    windows = ledger.rows(
        "select group_key, posted from quotas.windows where budget_id = 'by-tenant' order by group_key"
    )
    assert [posted for _, posted in windows] == [Decimal(9000), Decimal(6000)]
    assert ledger.budgets_that_differ() == []


@pytest.fixture
def worker(
    embedded_broker: EmbeddedBroker, ledger: Ledger, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Any]:
    """Starts workers on a topic of one partition; none outlives the test."""
    topic = f"poison-{len(request.node.name)}"
    embedded_broker.create_topic(topic, 1)
    started: list[WorkerProcess] = []

    def start(**overrides: Any) -> WorkerProcess:
        started.append(
            WorkerProcess(
                tmp_path / f"worker-{len(started)}",
                **{
                    "writer_url": ledger.database.url_for("tallystick_writer"),
                    "bootstrap": embedded_broker.bootstrap,
                    "topic": topic,
                    "group": f"{topic}-{len(started)}",
                    "session_seconds": 3.0,
                    **overrides,
                },
            )
        )
        return started[-1]

    start.topic = topic  # type: ignore[attr-defined]
    yield start
    for each in started:
        each.kill()


async def test_b137_a_message_that_can_never_be_processed_does_not_stop_its_partition(
    embedded_broker: EmbeddedBroker, ledger: Ledger, worker: Any
) -> None:
    """Ten messages of 0.01 USD, the fourth is no JSON; the database goes away before the eighth and comes back.

    9 x 0.01 = 0.09: the eighth is tried again and not set aside. The fourth lies with topic, partition, offset and bytes, and
    the partition has no lag. Away for three seconds instead of thirty: the worker waits without a limit.
    """
    await ledger.add_price(input="100.00", output="100.00")
    bodies = [b"not json" if number == 4 else event_bytes(used(f"ev-{number}", 100)) for number in range(1, 11)]
    running = worker()
    send(embedded_broker.bootstrap, worker.topic, [(body, 1) for body in bodies[:7]])
    wait_for(lambda: seen(ledger) == 7, 60, running)
    with writer_away(ledger):
        send(embedded_broker.bootstrap, worker.topic, [(body, 1) for body in bodies[7:]])
        time.sleep(3)
    wait_for(lambda: seen(ledger) == 10, 60, running)
    assert running.process.poll() is None
    assert ledger.total() == Decimal("0.09")
    letters = ledger.rows(
        "select d.reason, d.origin, d.position, d.bytes, f.name like 'kafka:%%:0'"
        " from ledger.dead_letters as d join ledger.batches as b using (batch_id) join ledger.feeds as f using (feed_id)"
    )
    assert [(reason, origin, at, bytes(body), is_first) for reason, origin, at, body, is_first in letters] == [
        ("invalid_json", worker.topic, 3, b"not json", True)
    ]
    assert ledger.value("select next_position from ledger.feeds") == 10


async def test_b137_a_message_that_kills_its_process_costs_its_partition_five_starts(
    embedded_broker: EmbeddedBroker, ledger: Ledger, worker: Any
) -> None:
    """The third of six messages kills whoever reads it, with -9: two starts without progress, three with it in hand, then it
    is set aside unread with its offset, and the other five are booked. 5 x 0.01 = 0.05
    """
    await ledger.add_price(input="100.00", output="100.00")
    bodies = [
        event_bytes(used(f"ev-{number}", 100, feature="deadly" if number == 2 else "chat")) for number in range(6)
    ]
    send(embedded_broker.bootstrap, worker.topic, [(body, 1) for body in bodies])
    deaths = []
    for _ in range(8):
        running = worker(failpoints="read.message=die~deadly", batch_bytes_max=1)
        wait_for(lambda r=running: r.process.poll() is not None or seen(ledger) == 6, 60, running)  # type: ignore[misc]
        if running.process.poll() is None:
            break
        deaths.append(running.process.poll())
    # A start may book what lies before it, and then is none without progress.
    assert len(deaths) in (5, 6)
    assert set(deaths) == {-9}
    assert ledger.total() == Decimal("0.05")
    assert ledger.rows("select reason, position, bytes from ledger.dead_letters") == [("kills_process", 2, bodies[2])]
    assert ledger.value("select next_position from ledger.feeds") == 6


def test_a_writer_that_was_let_in_again_is_let_in(ledger: Ledger) -> None:
    """The role is one for all databases of the server: whoever takes its login away must give it back."""
    with writer_away(ledger), pytest.raises(psycopg.OperationalError):
        ledger.database.connect("tallystick_writer")
    ledger.database.connect("tallystick_writer").close()
