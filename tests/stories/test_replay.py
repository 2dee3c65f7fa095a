"""The main job on the real traces: sent twice, with altered copies and broken events among them, the charge does not move."""

import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from ingest.replay import events_of, load_plan, packs, send
from tallystick.demo import DATA, TRACES, set_up
from tallystick.embedded import EmbeddedBroker
from tests.stories.test_worker import seen, wait_for
from tests.support.databases import Database
from tests.support.ledger import Ledger
from tests.support.worker import WorkerProcess

# Token sums of the two traces: see data/azure-llm-2023/README.md.
REQUESTS, TOKENS_IN, TOKENS_OUT = 28_185, 40_421_844, 4_334_561


@pytest.fixture(scope="module")
def traces() -> list[bytes]:
    plan = load_plan(DATA / "demo" / "plan.json")
    return [event for path in TRACES for event in events_of(path, plan)]


@pytest.fixture
def worker(database: Database, embedded_broker: EmbeddedBroker, tmp_path: Path) -> Iterator[WorkerProcess]:
    embedded_broker.create_topic("replay", 2)
    running = WorkerProcess(
        tmp_path / "worker",
        writer_url=database.url_for("tallystick_writer"),
        bootstrap=embedded_broker.bootstrap,
        topic="replay",
        group="replay",
        session_seconds=3.0,
    )
    yield running
    running.kill()


def test_a_replay_sends_the_same_bytes(traces: list[bytes]) -> None:
    plan = load_plan(DATA / "demo" / "plan.json")
    assert [event for path in TRACES for event in events_of(path, plan)] == traces
    assert len(traces) == REQUESTS


async def test_a_replay_altered_copies_and_broken_events_leave_the_charge_alone(
    database: Database, embedded_broker: EmbeddedBroker, worker: WorkerProcess, traces: list[bytes]
) -> None:
    await set_up(database.url_for("tallystick_operator"))
    ledger = Ledger(database)
    counts = "select count(*), sum(input_tokens), sum(output_tokens), sum(charge_amount) from ledger.entries"

    def deliver(messages: list[tuple[bytes, int]], until: int) -> None:
        send(embedded_broker.bootstrap, "replay", messages)
        wait_for(lambda: seen(ledger) >= until, 120, worker)

    try:
        deliver(list(packs(traces, 100)), REQUESTS)
        first = ledger.rows(counts)[0]
        assert first[:3] == (REQUESTS, TOKENS_IN, TOKENS_OUT)

        deliver(list(packs(traces, 100)), 2 * REQUESTS)
        assert ledger.rows(counts)[0] == first
        assert ledger.value("select sum(duplicate_count) from ledger.batches") == REQUESTS

        altered = []
        for event in traces[:100]:
            changed = json.loads(event)
            changed["data"]["usage"] = {name: count + 1 for name, count in changed["data"]["usage"].items()}
            if "total_tokens" in changed["data"]["usage"]:
                changed["data"]["usage"]["total_tokens"] += 1
            if "totalTokenCount" in changed["data"]["usage"]:
                changed["data"]["usage"]["totalTokenCount"] += 1
            altered.append(json.dumps(changed).encode())
        deliver(list(packs(altered, 10)), 2 * REQUESTS + 100)
        assert ledger.value("select sum(conflict_count) from ledger.batches") == 100
        assert ledger.rows(
            "select count(*), count(distinct first_hash), count(distinct second_hash) from ledger.dead_letters"
            " where reason = 'conflict'"
        ) == [(100, 100, 100)]

        broken = [event.replace(b'"tenant_id":"', b'"tenant_id":"nobody-') for event in traces[100:110]]
        deliver(list(packs(broken, 5)), 2 * REQUESTS + 110)
        assert ledger.value("select count(*) from ledger.dead_letters where reason = 'unknown_tenant'") == 10

        assert ledger.rows(counts)[0] == first
        assert (
            Decimal(ledger.value("select sum(posted) from quotas.windows where budget_id = 'totals-charge'"))
            == first[3]
        )
    finally:
        ledger.close()
