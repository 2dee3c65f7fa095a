"""`refold`: each additive mart folded again and compared bucket by bucket, against one plain `group by` of the same rows.

The baseline is the select that anybody would write for the mart, into nothing; the candidate is the whole proof of that mart: all
rows up to its watermark, every measure, held against what stands. Both run under the same settings of the planner (`SETTINGS` of
tallystick/refold.py). `ENTRIES=` is the size of the ledger; with `DATABASE=` it is one that `tallystick generate` filled.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg

from ingest.intake import ease_collection
from tallystick.refold import SETTINGS, refold
from tallystick.rollup import run_rollup
from tests.bench.bench_rollup import MARTS, SUMS, TEXTS
from tests.bench.filled import POSTED, copy_entries, post_entries
from tests.bench.harness import Comparison, compare, size
from tests.bench.world import SHARED_BUFFERS, given_database, world
from tests.support.databases import Database


async def run() -> list[Comparison]:
    entries = size("ENTRIES", 10_000_000)
    ease_collection()
    async with _database(entries) as database:
        with psycopg.connect(database.url, autocommit=True) as connection, TemporaryDirectory() as folder:
            home = Path(folder)
            run_rollup(database.url_for("tallystick_rollup"), home, select=tuple(MARTS))
            connection.execute("vacuum analyze")
            row = connection.execute("select sum(entry_count)::bigint from ledger.batches").fetchone()
            assert row is not None
            entries = row[0]
            print(f"    {entries:,} entries; shared_buffers {SHARED_BUFFERS}", flush=True)
            refold(database.url_for("tallystick_rollup"), home, marts=tuple(MARTS))

            async def grouped() -> float:
                return entries / await asyncio.to_thread(_grouped, database)

            async def folded() -> float:
                started = time.perf_counter()
                found = await asyncio.to_thread(refold, database.url_for("tallystick_rollup"), home, marts=tuple(MARTS))
                seconds = time.perf_counter() - started
                assert found.differences == []
                assert [mart.mart for mart in found.marts] == sorted(MARTS)
                return entries / seconds

            return [
                await compare(
                    "refold of the usage marts, against their plain group by",
                    "entries",
                    grouped,
                    folded,
                    target=1 / 1.5,
                )
            ]


@asynccontextmanager
async def _database(entries: int) -> AsyncIterator[Database]:
    """Give the database that was named, or one of so many entries."""
    if (given := await given_database()) is not None:
        yield given
        return
    async with world(0) as made:
        await post_entries(made, min(POSTED, entries))
        seconds = copy_entries(made.ledger, entries)
        print(f"    copied in {seconds:.0f} s", flush=True)
        yield made.ledger.database


def _grouped(database: Database) -> float:
    """Group all entries once for each mart, and count the groups so that no row has to travel."""
    with psycopg.connect(database.url_for("tallystick_rollup")) as connection:
        for setting in SETTINGS:
            connection.execute(setting.encode())
        started = time.perf_counter()
        for bucket, expression in MARTS.values():
            keys = ", ".join(
                [
                    "tenant_id",
                    f"{expression} as {bucket}",
                    "language",
                    *(f"coalesce({name}::text, '') as {name}" for name in TEXTS),
                ]
            )
            sums = ", ".join(f"{expression} as {name}" for name, expression in SUMS.items())
            groups = ", ".join(str(place + 1) for place in range(len(TEXTS) + 3))
            row = connection.execute(
                # The row as a whole, since sums that nobody asks for would not be made.
                f"select count(grouped), sum(request_count) from"
                f" (select {keys}, {sums} from ledger.entries group by {groups} offset 0) as grouped".encode()
            ).fetchone()
            assert row is not None
            assert row[0]
        return time.perf_counter() - started
