"""How long a caller waits for a reservation while the same tenant's usage is posted at half load, against without.

Four callers ask for one tenant, each as soon as it was answered; a writer posts batches of the tenant's events, a reservation
named on every one, and rests as long after each as it took. Told is p99 of the waits, alone over beside: at least a third.
"""

import asyncio
import json
import time
from statistics import median, quantiles

from ingest.intake import Intake, Message
from ledger import feeds
from ledger.database import connect
from quotas.reservations import Ask
from tests.bench.bench_reserve import TENANT, replica
from tests.bench.harness import PAIRS, Comparison, size
from tests.bench.world import SHARED_BUFFERS, World, world

CALLERS = 4
BATCH = 500


async def run() -> list[Comparison]:
    seconds = size("SECONDS", 3)
    print(
        f"    {seconds} s a run, {CALLERS} callers, {BATCH} events a batch; shared_buffers {SHARED_BUFFERS}, fsync on",
        flush=True,
    )
    waits = Comparison("reserve under ingest, p99 (1/s of wait)", "p99", 1 / 3)
    async with world(0) as made, replica(made) as reserving:
        connection = await connect(made.writer_url)
        async with connection:
            held = await feeds.claim(connection, "file", "file:bench")
        intake = await Intake.open(made.writer_url, held, patience=5)
        number = 0
        p99s: dict[bool, list[float]] = {False: [], True: []}

        async def measured(is_beside: bool) -> None:
            nonlocal number
            ends = time.monotonic() + seconds
            found: list[float] = []
            writing = asyncio.create_task(ingest(made, intake, ends)) if is_beside else None

            async def call() -> None:
                nonlocal number
                while time.monotonic() < ends:
                    number += 1
                    began = time.perf_counter()
                    (decision,) = await reserving.reserve([ask_of(number)])
                    found.append(time.perf_counter() - began)
                    assert decision.is_admitted

            await asyncio.gather(*(call() for _ in range(CALLERS)))
            if writing is not None:
                await writing
            p99s[is_beside].append(quantiles(found, n=100)[98])

        for pair in range(PAIRS + 1):
            for is_beside in (False, True) if pair % 2 else (True, False):
                await measured(is_beside)
        await intake.close()
    waits.baseline = [1 / seconds for seconds in p99s[False][1:]]
    waits.candidate = [1 / seconds for seconds in p99s[True][1:]]
    print(
        f"    p99 {median(p99s[False][1:]) * 1000:.1f} ms alone, {median(p99s[True][1:]) * 1000:.1f} ms beside",
        flush=True,
    )
    return [waits]


def ask_of(number: int) -> Ask:
    return Ask(
        tenant_id=TENANT,
        reservation_id=f"{number:08d}-beside",
        input_tokens=100,
        output_tokens=10,
        provider="openai",
        model="m-sub",
        feature="chat",
        lane="interactive",
    )


async def ingest(made: World, intake: Intake, ends: float) -> None:
    """Post batches of the tenant's usage, and rest as long as each took: half of what one writer can do."""
    while time.monotonic() < ends:
        events = [event for pack in made.packs(BATCH) for event in json.loads(pack)]
        for event in events:
            event["data"] |= {"tenant_id": TENANT, "reservation_id": event["data"]["request_id"]}
        began = time.monotonic()
        reading = await intake.read([Message(json.dumps(events).encode(), time.time_ns() // 1000, "bench")])
        await intake.post(reading)
        await asyncio.sleep(time.monotonic() - began)
