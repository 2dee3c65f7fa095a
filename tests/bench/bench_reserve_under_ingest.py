"""How long a caller waits for a reservation while the same tenant's usage is posted at half load, against without.

Four callers ask for one tenant, each as soon as it was answered; a worker posts batches of the tenant's events, a reservation
named on every one, and rests as long after each as it took. Replica and worker are processes of their own, as in production:
in one, the callers would wait for the other's Python and never for its locks. The messages are made beforehand, since they come
from a broker. Told is p99 of the waits, alone over beside: at least a third.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from statistics import median, quantiles

from ingest.intake import ease_collection
from quotas.asks import Ask
from tests.bench.bench_reserve import TENANT, replica
from tests.bench.harness import PAIRS, Comparison, size
from tests.bench.world import SHARED_BUFFERS, World, world

CALLERS = 4
BATCH = 500
BATCHES_PER_SECOND = 40
"""More than one writer can post at half load."""


async def run() -> list[Comparison]:
    ease_collection()
    seconds = size("SECONDS", 3)
    print(
        f"    {seconds} s a run, {CALLERS} callers, {BATCH} events a batch; shared_buffers {SHARED_BUFFERS}, fsync on",
        flush=True,
    )
    waits = Comparison("reserve under ingest, p99 (1/s of wait)", "p99", 1 / 3)
    posted: list[int] = []
    async with world(0) as made, replica(made) as reserving, worker(made) as posting:
        number = 0
        p99s: dict[bool, list[float]] = {False: [], True: []}

        async def measured(is_beside: bool) -> None:
            nonlocal number
            if is_beside:
                await posting.take([message(made) for _ in range(BATCHES_PER_SECOND * seconds)])
            ends = time.monotonic() + seconds
            found: list[float] = []
            if is_beside:
                posting.go(seconds)

            async def call() -> None:
                nonlocal number
                while time.monotonic() < ends:
                    number += 1
                    began = time.perf_counter()
                    (decision,) = await reserving.reserve([ask_of(number)])
                    found.append(time.perf_counter() - began)
                    assert decision.is_admitted

            await asyncio.gather(*(call() for _ in range(CALLERS)))
            if is_beside:
                posted.append(await posting.posted() * BATCH)
            p99s[is_beside].append(quantiles(found, n=100)[98])

        for pair in range(PAIRS + 1):
            for is_beside in (False, True) if pair % 2 else (True, False):
                await measured(is_beside)
        check(made, sum(posted), number)
    waits.baseline = [1 / seconds for seconds in p99s[False][1:]]
    waits.candidate = [1 / seconds for seconds in p99s[True][1:]]
    print(
        f"    p99 {median(p99s[False][1:]) * 1000:.1f} ms alone, {median(p99s[True][1:]) * 1000:.1f} ms beside"
        f" {median(posted[1:]) / seconds:,.0f} events/s",
        flush=True,
    )
    return [waits]


def check(made: World, events: int, asks: int) -> None:
    """Raise where entries are missing, or the budget's window says anything else than they and the holds do."""
    found = made.ledger.superuser.execute(
        "select (select count(*) from ledger.entries), (select count(*) from quotas.reservations),"
        " (select sum(charge_amount) from ledger.entries) = w.posted, (select sum(held) from quotas.holds) = w.held"
        " from quotas.windows as w where w.budget_id = %s",
        [f"month-{TENANT}"],
    ).fetchone()
    if found != (events, asks, True, True):
        raise AssertionError(f"posted {events} events and admitted {asks} asks, and found {found}")


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


def message(made: World) -> str:
    """Return a batch of the tenant's usage as a broker would hand it over."""
    events = [event for pack in made.packs(BATCH) for event in json.loads(pack)]
    for event in events:
        event["data"] |= {"tenant_id": TENANT, "reservation_id": event["data"]["request_id"]}
    return json.dumps(events)


class Worker:
    """A process that posts what it was given."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._in, self._out = process.stdin, process.stdout

    async def take(self, messages: list[str]) -> None:
        def send() -> None:
            for each in messages:
                self._in.write(each + "\n")
            self._in.write("\n")
            self._in.flush()
            assert self._out.readline() == "ready\n"

        await asyncio.to_thread(send)

    def go(self, seconds: int) -> None:
        self._in.write(f"{seconds}\n")
        self._in.flush()

    async def posted(self) -> int:
        """Return how many batches went in, once the time is over."""
        return int(await asyncio.to_thread(self._out.readline))


@asynccontextmanager
async def worker(made: World) -> AsyncIterator[Worker]:
    command = [sys.executable, "-m", "tests.bench.posting_worker", made.writer_url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Worker(process)
        finally:
            process.terminate()
            process.wait(20)
