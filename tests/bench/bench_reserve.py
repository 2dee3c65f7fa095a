"""`reserve` on one hot tenant, through the group commit of one replica, against one transaction for each request.

The baseline is the conditional update that house-style.md shows, at its best: one prepared statement that raises `held` of
one window where there is room and writes the reservation's row, a transaction each, from a pool of 8 connections, its amount
priced beforehand. The candidate prices, decides over every budget of the tenant, and answers whole decisions.

Both run out of money: the limit admits nine of ten, and after each run what was admitted and what is held are counted.
Callers ask one after the other, each as soon as it was answered. Each run begins with some that do not count: the tables were just
emptied, so that every session plans its statements anew, as it never does while a replica runs.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from decimal import Decimal
from itertools import islice
from statistics import median, quantiles
from typing import Final

from api.away import Away
from api.config import Config
from api.database import Reader
from api.metrics import Metrics
from api.reserving import Reserving
from ingest.intake import ease_collection
from ledger.database import Connection, connect
from quotas.asks import Ask
from tests.bench.harness import PAIRS, Comparison, Timed, size
from tests.bench.world import SHARED_BUFFERS, World, world

TENANT: Final = "t-0000"
POOL: Final = 8
WARM: Final = 256
"""Asks before those that count: some for each connection."""
AMOUNT: Final = Decimal("0.25")

_BASELINE: Final = """
with taken as (
    update bench.windows
    set held = held + %(amount)s
    where budget_id = 'month-t-0000' and posted + held + %(amount)s <= limit_amount
    returning limit_amount - posted - held as remaining
),

kept as (
    insert into bench.reservations (
        tenant_id, reservation_id, content_hash, basis, state, model, lane, input_tokens, output_tokens, budget_ids, group_keys,
        window_starts, reserved, posted_under, decided_at, expires_at
    )
    select
        't-0000', %(id)s, %(hash)s, 'worst_case', 'held', 'm-sub', 'interactive', 1000, 100, '{month-t-0000}', '{""}',
        '{2026-01-01}', array[%(amount)s], '{0}', now(), now() + interval '10 minutes'
    from taken
)

select remaining from taken
"""


class Latencies:
    """What callers waited, by side, over all runs that count."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.p99s: list[float] = []

    def end_run(self) -> None:
        self.p99s.append(quantiles(self.seconds, n=100)[98] * 1000)
        self.seconds.clear()


async def crowd(
    callers: int, numbers: Iterator[int], ask: Callable[[int], Awaitable[bool]], latencies: Latencies
) -> int:
    """Let callers ask in turn; return how many were admitted."""
    admitted = 0

    async def call() -> None:
        nonlocal admitted
        for number in numbers:
            began = time.perf_counter()
            is_admitted = await ask(number)
            admitted += is_admitted
            latencies.seconds.append(time.perf_counter() - began)

    await asyncio.gather(*(call() for _ in range(callers)))
    return admitted


async def warmed(
    callers: int, asks: int, ask: Callable[[int], Awaitable[bool]], latencies: Latencies
) -> tuple[float, int]:
    """Let a warm crowd ask; return its asks a second, and how many were admitted before and in it."""
    numbers = iter(range(WARM + asks))
    admitted = await crowd(callers, islice(numbers, WARM), ask, Latencies())
    began = time.perf_counter()
    admitted += await crowd(callers, numbers, ask, latencies)
    return asks / (time.perf_counter() - began), admitted


@asynccontextmanager
async def pool(made: World) -> AsyncIterator["asyncio.Queue[Connection]"]:
    connections: asyncio.Queue[Connection] = asyncio.Queue()
    for _ in range(POOL):
        connections.put_nowait(await connect(made.ledger.database.url))
    try:
        yield connections
    finally:
        while not connections.empty():
            await connections.get_nowait().close()


def prepare(made: World) -> None:
    """Make the baseline's tables, of the same columns and indexes."""
    made.ledger.superuser.execute("create schema bench")
    made.ledger.superuser.execute("create table bench.reservations (like quotas.reservations including all)")
    made.ledger.superuser.execute(
        "create table bench.windows (budget_id text primary key, posted numeric not null, held numeric not null,"
        " limit_amount numeric) with (fillfactor = 50)"
    )
    made.ledger.superuser.execute("insert into bench.windows values ('month-t-0000', 0, 0, 0)")


def limit_both(made: World, admits: int) -> None:
    """Leave money for so many calls, on both sides, and nothing held."""
    limit = AMOUNT * admits
    run = made.ledger.superuser.execute
    run("truncate quotas.reservations, quotas.decisions, bench.reservations")
    run("update quotas.windows set held = 0")
    run("update quotas.budgets set limit_amount = %s where budget_id = 'month-t-0000'", [limit])
    # As whoever changes a budget does.
    run("update ledger.versions set budgets = budgets + 1")
    run("update bench.windows set held = 0, limit_amount = %s", [limit])
    run("checkpoint")


def check(made: World, schema: str, admitted: int, admits: int) -> None:
    """Raise where one was admitted too many or too few, or where what is held is not what was admitted."""
    held = made.ledger.value(f"select sum(held) from {schema}.windows where budget_id = 'month-t-0000'")
    rows = made.ledger.value(f"select count(*) from {schema}.reservations")
    if (admitted, held, rows) != (admits, AMOUNT * admits, admits):
        raise AssertionError(
            f"{schema}: {admitted} admitted, {held} held, {rows} kept, and there was money for {admits}"
        )


def ask_of(number: int) -> Ask:
    # Counted tokens, priced for each ask: 0.25 at 2.00 a million in and 8.00 out.
    return Ask(
        tenant_id=TENANT,
        reservation_id=f"{number:08d}-bench",
        input_tokens=25_000,
        output_tokens=25_000,
        provider="openai",
        model="m-sub",
        feature="chat",
        route="default",
        lane="interactive",
    )


def sides(
    made: World, reserving: Reserving, connections: "asyncio.Queue[Connection]", callers: int, asks: int
) -> tuple[Timed, Timed, Latencies, Latencies]:
    admits = WARM + asks * 9 // 10
    waited_alone, waited_together = Latencies(), Latencies()

    async def alone() -> float:
        limit_both(made, admits)

        async def ask(number: int) -> bool:
            connection = await connections.get()
            try:
                parameters = {"amount": AMOUNT, "id": f"{number:08d}-bench", "hash": f"{number:032x}"}
                cursor = await connection.execute(_BASELINE, parameters, prepare=True)
                return await cursor.fetchone() is not None
            finally:
                connections.put_nowait(connection)

        speed, admitted = await warmed(callers, asks, ask, waited_alone)
        check(made, "bench", admitted, admits)
        waited_alone.end_run()
        return speed

    async def together() -> float:
        limit_both(made, admits)

        async def ask(number: int) -> bool:
            (decision,) = await reserving.reserve([ask_of(number)])
            return decision.is_admitted

        speed, admitted = await warmed(callers, asks, ask, waited_together)
        check(made, "quotas", admitted, admits)
        waited_together.end_run()
        return speed

    return alone, together, waited_alone, waited_together


async def measured(
    made: World, reserving: Reserving, connections: "asyncio.Queue[Connection]", callers: int, asks: int, target: float
) -> list[Comparison]:
    alone, together, waited_alone, waited_together = sides(made, reserving, connections, callers, asks)
    speed = Comparison(f"reserve, {callers} callers", "asks", target)
    for number in range(PAIRS + 1):
        for is_candidate in (False, True) if number % 2 else (True, False):
            found = await (together if is_candidate else alone)()
            if number:
                (speed.candidate if is_candidate else speed.baseline).append(found)
    waits = Comparison(f"reserve, {callers} callers, p99 (baseline over candidate; in 1/s of wait)", "p99", 5)
    waits.candidate = [1000 / ms for ms in waited_together.p99s[1:]]
    waits.baseline = [1000 / ms for ms in waited_alone.p99s[1:]]
    print(
        f"    {callers} callers: p99 {median(waited_together.p99s[1:]):.1f} ms against"
        f" {median(waited_alone.p99s[1:]):.1f} ms; nobody admitted beyond the limit",
        flush=True,
    )
    return [speed, waits]


@asynccontextmanager
async def replica(made: World) -> AsyncIterator[Reserving]:
    """The group commit of one replica, without HTTP before it."""
    config = Config(writer_url=made.writer_url, api_url=made.writer_url, name="bench")
    metrics = Metrics()
    reserving = Reserving(
        config, metrics, Away(None, Reader(made.ledger.database.url_for("tallystick_api"), 1), metrics)
    )
    reserving.start()
    try:
        yield reserving
    finally:
        await reserving.close()


async def run() -> list[Comparison]:
    # As a server does once it has started.
    ease_collection()
    asks = size("ASKS", 20_000)
    print(f"    {asks:,} asks a run of one tenant; shared_buffers {SHARED_BUFFERS}, fsync on", flush=True)
    async with world(0) as made, replica(made) as reserving, pool(made) as connections:
        prepare(made)
        return [
            *await measured(made, reserving, connections, 32, asks, 8),
            *await measured(made, reserving, connections, 256, asks, 15),
        ]
