"""The same reports over Kafka, HTTP and files, mixed, repeated and in any order: one request is charged once, at its best.

Two workers and two API processes post beside each other, on the same requests. What they make is compared with a model that
knows no ledger: of the reports of a request, the one with the largest rank counts.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest

from ingest.replay import packs, send
from tallystick.embedded import EmbeddedBroker
from tallystick.verify import verify
from tests.api.support import bearer, make_key
from tests.api.test_server import served
from tests.factories import GATEWAY, NODE, event_bytes, make_event
from tests.stories.test_worker import seen, wait_for
from tests.support.ledger import Ledger
from tests.support.soak import seeds
from tests.support.worker import WorkerProcess

REQUESTS = 300
TENANTS = ("t-alpha", "t-beta")
IN, OUT = Decimal("0.000002"), Decimal("0.000008")
"""2.00 and 8.00 for a million."""


class Report:
    """One report of a request: its event, and what the model has to know of it."""

    def __init__(self, rank: tuple[int, ...], counts: tuple[int, int] | None, event: dict[str, Any]) -> None:
        self.rank, self.counts, self.event = rank, counts, event

    @property
    def charge(self) -> Decimal:
        return Decimal(0) if self.counts is None else self.counts[0] * IN + self.counts[1] * OUT


def reports(number: int, chance: random.Random) -> list[Report]:
    """Return one to seven reports of a request: interim, missing, estimated, final, revised; of its gateway and its node.

    All are of one instant. Among final reports with counts a later revision never says less, since less is for a person.
    """
    tenant_id = TENANTS[number % len(TENANTS)]
    into, out = chance.randint(1, 5000), chance.randint(1, 900)

    def report(
        what: str,
        source: str,
        counts: tuple[int, int] | None,
        *,
        final: bool = True,
        basis: str = "reported",
        revision: int = 0,
    ) -> Report:
        said = (
            {}
            if counts is None
            else {"quantities": {"uncached_input_tokens": counts[0], "visible_output_tokens": counts[1]}}
        )
        event = make_event(
            f"{what}-{number}", source=source, tenant_id=tenant_id, request_id=f"req-{number}", usage=...,
            flavour=..., final=final, basis=basis, revision=revision, **said,
        )  # fmt: skip
        source_rank = 20 if source == GATEWAY else 10
        rank = (int(counts is not None), int(final), int(basis == "reported"), source_rank, revision)
        return Report(rank, counts, event)

    possible = [
        report("interim", GATEWAY, (into, out // 2), final=False),
        report("interim-2", GATEWAY, (into, out), final=False, revision=1),
        report("missing", GATEWAY, None),
        report("estimate", GATEWAY, (into + 7, out + 100), basis="estimated"),
        report("node", NODE, (into + 3, out)),
        report("final", GATEWAY, (into, out)),
        report("revised", GATEWAY, (into, out + 50), revision=1),
    ]
    return chance.sample(possible, chance.randint(1, len(possible)))


@asynccontextmanager
async def two_of_each(
    ledger: Ledger, broker: EmbeddedBroker, topic: str, folder: Path
) -> AsyncIterator[tuple[list[str], list[WorkerProcess]]]:
    """Two API processes, by their addresses, and two workers on two partitions."""
    broker.create_topic(topic, 2)
    workers = []
    async with AsyncExitStack() as stack:
        addresses = [stack.enter_context(served(ledger, name=f"api-{number}"))[1] for number in (1, 2)]
        for number in (1, 2):
            worker = WorkerProcess(
                folder / f"worker-{number}",
                writer_url=ledger.database.url_for("tallystick_writer"),
                bootstrap=broker.bootstrap,
                topic=topic,
                group=topic,
                session_seconds=3.0,
            )
            stack.callback(worker.kill)
            workers.append(worker)
        yield addresses, workers


async def send_all(
    ledger: Ledger,
    sent: list[dict[str, Any]],
    chance: random.Random,
    addresses: list[str],
    kafka: Callable[[list[bytes]], None],
) -> None:
    """Send events by four roads at once, in packs of chance sizes: the broker, both replicas, and a file's feed."""
    token = await make_key(ledger, "events:write", source=GATEWAY)
    node_token = await make_key(ledger, "events:write", source=NODE)
    roads: dict[int, list[dict[str, Any]]] = {0: [], 1: [], 2: [], 3: []}
    for event in sent:
        roads[chance.randrange(4)].append(event)

    async def over_http(client: httpx.AsyncClient, address: str, events: list[dict[str, Any]]) -> None:
        for source, key in ((GATEWAY, token), (NODE, node_token)):
            mine = [event for event in events if event["source"] == source]
            while mine:
                pack, mine = mine[: (size := chance.randint(1, 40))], mine[size:]
                answer = await client.post(f"{address}/v1/events", json=pack, headers=bearer(key), timeout=60)
                assert answer.status_code == 200, answer.text
                found = {result["outcome"] for result in answer.json()["results"]}
                assert found <= {"created", "duplicate", "evidence"}

    async def from_file(events: list[dict[str, Any]]) -> None:
        async with ledger.intake("file:roads") as intake:
            while events:
                pack, events = events[: (size := chance.randint(1, 200))], events[size:]
                await intake.post(await intake.read([ledger.message(*pack)]))

    kafka([event_bytes(event) for event in roads[0]])
    async with httpx.AsyncClient() as client:
        await asyncio.gather(
            over_http(client, addresses[0], roads[1]), over_http(client, addresses[1], roads[2]), from_file(roads[3])
        )


@pytest.mark.soak
@pytest.mark.parametrize("seed", seeds(20261130))
async def test_any_road_order_and_repetition_charges_each_request_once_at_its_best(
    ledger: Ledger, embedded_broker: EmbeddedBroker, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    ledger.add_tenant("t-beta")
    await ledger.add_price(input="2.00", output="8.00")
    told = {number: reports(number, chance) for number in range(REQUESTS)}
    # Each report is sent one to three times, by whatever road.
    sent = [each.event for one in told.values() for each in one for _ in range(chance.randint(1, 3))]
    chance.shuffle(sent)
    topic = f"roads-{seed}"

    async with two_of_each(ledger, embedded_broker, topic, tmp_path) as (addresses, workers):
        await send_all(
            ledger,
            sent,
            chance,
            addresses,
            lambda bodies: send(embedded_broker.bootstrap, topic, packs(bodies, 20)) and None,
        )
        await asyncio.to_thread(wait_for, lambda: seen(ledger) == len(sent), 120, workers[0])

    best = {number: max(one, key=lambda each: each.rank) for number, one in told.items()}
    events = sum(len(one) for one in told.values())
    assert ledger.requests("request_id") == {
        f"req-{number}": (1, None if each.counts is None else each.charge) for number, each in best.items()
    }
    assert ledger.requests("tenant_id") == {
        tenant_id: (
            REQUESTS // len(TENANTS),
            None
            if any(each.counts is None for number, each in best.items() if TENANTS[number % 2] == tenant_id)
            else sum((each.charge for number, each in best.items() if TENANTS[number % 2] == tenant_id), Decimal(0)),
        )
        for tenant_id in TENANTS
    }
    assert ledger.value("select sum(posted) from quotas.windows where budget_id = 'totals-charge'") == sum(
        each.charge for each in best.values()
    )
    assert ledger.rows("select sum(created_count + evidence_count), sum(duplicate_count) from ledger.batches") == [
        (events, len(sent) - events)
    ]
    assert ledger.value("select count(*) from ledger.dead_letters") == 0
    # All that is derived, made again from the entries, is what stands: requests, windows, keys, batches, chain.
    proved = verify(ledger.database.url_for("tallystick_operator"))
    assert proved.ok, proved.failures
