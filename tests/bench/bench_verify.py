"""`verify`: rows a second, against a plain select of the same columns on the same server.

The baseline reads every column of every entry once, as COPY prints them, and does nothing with them. The candidates make the
chain again from those rows, and run the whole proof: chain, batches, keys, requests, budgets, lines. Marts are not there.
"""

import asyncio
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from ingest.intake import Intake, ease_collection
from ledger import feeds
from ledger.database import connect
from ledger.entries import COLUMNS
from tallystick import verify as proofs
from tests.bench.bench_post import post_all
from tests.bench.harness import Comparison, compare, size
from tests.bench.world import SHARED_BUFFERS, World, world

_AT_ONCE = 50_000


async def run() -> list[Comparison]:
    entries = size("ENTRIES", 200_000)
    ease_collection()
    async with world(0) as made:
        await _fill(made, entries)
        print(
            f"    {entries:,} entries, half of their requests reported twice; shared_buffers {SHARED_BUFFERS}",
            flush=True,
        )
        url = made.ledger.database.url_for("tallystick_operator")
        with TemporaryDirectory() as folder:
            heads = Path(folder) / "heads"
            proofs.publish_heads(url, heads)

            async def select() -> float:
                return await asyncio.to_thread(_select, url, entries)

            async def chain() -> float:
                return await asyncio.to_thread(_chain, url, entries)

            async def whole() -> float:
                started = time.perf_counter()
                proof = await asyncio.to_thread(proofs.verify, url, heads=heads)
                seconds = time.perf_counter() - started
                assert proof.ok, proof.failures
                assert proof.checked["entries"] == entries
                return entries / seconds

            return [
                await compare("verify, the chain alone", "rows", select, chain),
                await compare("verify, everything", "rows", select, whole),
            ]


async def _fill(made: World, entries: int) -> None:
    connection = await connect(made.writer_url)
    held = await feeds.claim(connection, "file", "file:bench")
    await connection.close()
    intake = await Intake.open(made.writer_url, held, patience=10)
    try:
        for at in range(0, entries, _AT_ONCE):
            await post_all(intake, made.packs(min(_AT_ONCE, entries - at), second_percent=50))
    finally:
        await intake.close()
    made.ledger.superuser.execute("vacuum analyze")


def _select(url: str, entries: int) -> float:
    started = time.perf_counter()
    with proofs._snapshot(url) as connection:
        statement = f"copy (select {', '.join(COLUMNS)} from ledger.entries) to stdout"
        with connection.cursor() as cursor, cursor.copy(statement) as rows:
            count = sum(1 for _ in rows)
    seconds = time.perf_counter() - started
    assert count == entries
    return entries / seconds


def _chain(url: str, entries: int) -> float:
    started = time.perf_counter()
    with proofs._snapshot(url) as connection:
        failures = [
            *proofs._broken_chain(connection, proofs._Scope()),
            *proofs._broken_digests(connection, proofs._Scope()),
        ]
    seconds = time.perf_counter() - started
    assert not failures, failures
    return entries / seconds
