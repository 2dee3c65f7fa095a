"""`post`, from bytes to commit with every invariant kept, against COPY of the same rows into the same tables.

The baseline writes the rows that `post` would: event keys, requests, raw usage and entries, one transaction for each batch,
into the same tables with the same indexes (migrations/versions/), with triggers off and everything else that `post` does
left out: no decoding, no pricing, no look-ups, no budgets, no chain.
"""

import asyncio
import time
from collections import Counter
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from ingest.intake import Intake, Message, Reading, ease_collection
from ledger import feeds, posting
from ledger.books import ensure_ids
from ledger.database import Connection, connect
from ledger.posting import Posted
from quotas.asks import Ask
from quotas.reservations import reserve
from tests.bench.harness import Comparison, compare, size
from tests.bench.world import PACK, SHARED_BUFFERS, TENANTS, World, world

BATCH = 5000


@dataclass
class Rows:
    """The COPY lines of one batch."""

    keys: bytes
    requests: bytes
    raw: bytes
    entries: bytes


async def post_all(intake: Intake, bodies: list[bytes], batch: int = BATCH) -> list[Posted]:
    """Post messages as the worker does: the next batch is read while one commits."""
    received = time.time_ns() // 1000
    step = max(1, batch // PACK)
    under_way: asyncio.Task[Posted] | None = None
    done = []
    for at in range(0, len(bodies), step):
        reading = await intake.read([Message(body, received, "bench") for body in bodies[at : at + step]])
        if under_way is not None:
            done.append(await under_way)
        under_way = asyncio.create_task(intake.post(reading))
        await asyncio.sleep(0)
    assert under_way is not None
    done.append(await under_way)
    return done


async def rows_of(intake: Intake, bodies: list[bytes]) -> list[Rows]:
    """Return what `post` would write for messages, under batch ids of their own."""
    connection = await connect(intake._url)
    found = []
    try:
        for at in range(0, len(bodies), BATCH // PACK):
            received = time.time_ns() // 1000
            reading: Reading = await intake.read(
                [Message(body, received, "bench") for body in bodies[at : at + BATCH // PACK]]
            )
            if reading.missing:
                await ensure_ids(connection, intake.books, reading.missing.rate_sets, reading.missing.subjects)
                reading = reading.with_items(reading.items, reading.places)
            cursor = await connection.execute("select nextval(pg_get_serial_sequence('ledger.batches', 'batch_id'))")
            batch_id = (await cursor.fetchone() or [0])[0]
            batch = reading.batch()
            writing = posting._Writing(intake.books, batch, batch_id, received, {}, {})
            writing.take_all()
            month = posting.from_micros(received).date().replace(day=1)
            found.append(
                Rows(
                    "".join(f"{k}\t{writing.keys[k]}\t1\t{batch_id}\n" for k in sorted(writing.new_keys)).encode(),
                    "".join(posting._request_line(k, r) for k, r in sorted(writing.requests.items())).encode(),
                    "".join(f"{month}\t{row}" for row in writing.raw).encode(),
                    "".join("".join(lines) for lines in writing.lines.values()).encode(),
                )
            )
    finally:
        await connection.close()
    return found


async def copy_all(connection: Connection, rows: list[Rows]) -> None:
    async def copy(table: str, columns: str, lines: bytes) -> None:
        if lines:
            async with connection.cursor().copy(f"copy ledger.{table} ({columns}) from stdin") as out:
                await out.write(lines)

    for batch in rows:
        async with connection.transaction():
            await copy("event_keys", "key, content_hash, hash_version, batch_id", batch.keys)
            await copy(
                "requests",
                "key, rank, posting_period, entry_id, entry_count, occurred_at, best_event_key, counted",
                batch.requests,
            )
            await copy("raw_usage", "received_month, entry_id, flavour, parser_version, usage", batch.raw)
            await copy("entries", ", ".join(posting.COLUMNS), batch.entries)


@dataclass(frozen=True)
class Load:
    """What the events of a run are like."""

    name: str
    target: float
    second_percent: int = 0
    """Of a hundred requests, how many the node reports as well."""
    is_reserved: bool = False

    def packs(self, made: World, events: int) -> list[bytes]:
        return made.packs(events, second_percent=self.second_percent, is_reserved=self.is_reserved)


LOADS = (
    Load("post, each request reported once", 0.5),
    Load("post, 1 % reported twice", 0.5, second_percent=1),
    Load("post, 50 % reported twice", 0.3, second_percent=50),
    Load("post, all reported twice", 0.3, second_percent=100),
    Load("post, a reservation on every event", 0.3, is_reserved=True),
)


async def run() -> list[Comparison]:
    keys, events = size("KEYS", 2_000_000), size("EVENTS", 20_000)
    print(
        f"    {events:,} events a run, {BATCH:,} a batch, packs of {PACK}, {TENANTS} tenants with a budget each;"
        f" shared_buffers {SHARED_BUFFERS}, fsync on",
        flush=True,
    )
    ease_collection()
    async with world(keys) as made:
        return [await _measured(made, events, load) for load in LOADS]


async def _measured(made: World, events: int, load: Load) -> Comparison:
    connection = await connect(made.writer_url)
    held = await feeds.claim(connection, "file", f"file:bench {load.name}")
    await connection.close()
    intake = await Intake.open(made.writer_url, held, patience=10)
    asking = await connect(made.writer_url)
    plain = await connect(made.ledger.database.url)
    await plain.execute("set session_replication_role = replica")
    # Rate sets and subjects get their ids before anything is timed.
    await post_all(intake, load.packs(made, 2000))

    async def candidate() -> float:
        bodies = load.packs(made, events)
        await _reserve(asking, intake, made)
        before = _state(made)
        started = time.perf_counter()
        posted = await post_all(intake, bodies)
        seconds = time.perf_counter() - started
        outcomes = Counter(result.outcome for batch in posted for result in batch.results)
        assert outcomes["created"] + outcomes["evidence"] == events, outcomes
        after = _state(made)
        assert after["entries"] - before["entries"] == events
        assert (
            after["charge"] - before["charge"]
            == after["budget"] - before["budget"]
            == after["totals"] - before["totals"]
        )
        # What was reserved is given back by the entries that name it.
        assert after["held"] == 0
        assert before["held"] > 0 or not load.is_reserved
        return events / seconds

    async def baseline() -> float:
        rows = await rows_of(intake, load.packs(made, events))
        before = made.ledger.value("select count(*) from ledger.entries")
        started = time.perf_counter()
        await copy_all(plain, rows)
        seconds = time.perf_counter() - started
        assert made.ledger.value("select count(*) from ledger.entries") - before == events
        return events / seconds

    try:
        return await compare(load.name, "events", baseline, candidate, target=load.target)
    finally:
        await plain.close()
        await asking.close()
        await intake.close()


async def _reserve(connection: Connection, intake: Intake, made: World) -> None:
    """Hold what the calls of these messages may take, as a gateway does before each."""
    for at in range(0, len(made.reserved), 1000):
        asks = [
            Ask(
                tenant_id=tenant_id,
                reservation_id=reservation_id,
                provider="openai",
                model="m-sub",
                input_tokens=1300,
                output_tokens=400,
            )
            for tenant_id, reservation_id in made.reserved[at : at + 1000]
        ]
        decisions = await reserve(connection, asks, intake.books)
        assert all(decision.is_admitted for decision in decisions)


def _state(made: World) -> dict[str, Any]:
    one = made.ledger.value
    return {
        "entries": one("select count(*) from ledger.entries"),
        "charge": one("select coalesce(sum(charge_amount), 0) from ledger.entries") or Decimal(0),
        "budget": one("select coalesce(sum(posted), 0) from quotas.windows where budget_id like 'month-%%'"),
        "held": one("select coalesce(sum(held), 0) from quotas.windows"),
        "totals": one("select coalesce(sum(posted), 0) from quotas.windows where budget_id = 'totals-charge'"),
    }
