"""`rollup`: 10,000 new rows beside many entries, against beside few; and against an upsert that somebody wrote by hand.

Before each timed run the same number of new events is posted; the run is `run_rollup` of a process that stays, from its first
question to the last commit. The hand-written upsert does what the usage marts do, one statement and one watermark each, in one
connection and without dbt; it is timed against a run of those marts alone. `ENTRIES=` is the size of the large ledger; with
`DATABASE=` it is one that `tallystick generate` filled.
"""

import asyncio
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg

from ingest.intake import ease_collection
from tallystick.rollup import run_rollup
from tests.bench.filled import POSTED, copy_entries, post_entries, post_events
from tests.bench.harness import Comparison, compare, size
from tests.bench.world import SHARED_BUFFERS, World, given_database, world
from tests.support.databases import Database
from tests.support.ledger import Ledger

NEW = 10_000
MARTS = {
    "fct_usage_15min": (
        "starts_at",
        "date_bin('15 minutes', occurred_at, timestamptz '2020-01-01 00:00:00+00')",
    ),
    "fct_usage_hourly": ("starts_at", "date_trunc('hour', occurred_at, 'UTC')"),
    "fct_cost_daily": ("local_date", "local_date"),
}


async def run() -> list[Comparison]:
    entries = size("ENTRIES", 10_000_000)
    ease_collection()
    async with world(0) as made:
        await post_entries(made)
        many = await given_database()
        if many is None:
            few = _copy_of(made, "few")
            seconds = copy_entries(made.ledger, entries)
            print(f"    {POSTED:,} entries posted, {entries - POSTED:,} copied in {seconds:.0f} s", flush=True)
            many = made.ledger.database
        else:
            few = made.ledger.database
            entries = _entries(many)
        print(f"    {entries:,} entries beside {POSTED:,}; shared_buffers {SHARED_BUFFERS}", flush=True)
        with TemporaryDirectory() as folder:
            home = Path(folder)
            for database, name in ((few, "few"), (many, "many")):
                report = run_rollup(database.url_for("tallystick_rollup"), home)
                print(
                    f"    {name}: from nothing {report.seconds:.1f} s after {report.start_seconds:.1f} s for dbt to start; "
                    + ", ".join(f"{each.name} {each.seconds:.1f}" for each in report.models),
                    flush=True,
                )
                # The first run after a mart was made is dbt's, and what others repeat.
                for select in ((), tuple(MARTS)):
                    run_rollup(database.url_for("tallystick_rollup"), home, select=select)
                _make_by_hand(database)

            async def rolled_up(database: Database, *select: str) -> float:
                # What the other side's events left to do is not of this run.
                await asyncio.to_thread(run_rollup, database.url_for("tallystick_rollup"), home, select=select)
                await post_events(made, database, made.packs(NEW, second_percent=50))
                report = await asyncio.to_thread(run_rollup, database.url_for("tallystick_rollup"), home, select=select)
                assert report.start_seconds == 0
                _check(database, select or tuple(MARTS))
                return NEW / report.seconds

            async def beside_few() -> float:
                return await rolled_up(few)

            async def beside_many() -> float:
                return await rolled_up(many)

            async def three() -> float:
                return await rolled_up(many, *MARTS)

            async def by_hand() -> float:
                await asyncio.to_thread(_by_hand, many)
                await post_events(made, many, made.packs(NEW, second_percent=50))
                seconds = await asyncio.to_thread(_by_hand, many)
                return NEW / seconds

            # A large ledger may cost 1.2 times as much time, a statement of one's own saves a third at most.
            return [
                await compare(
                    f"rollup beside {entries:,} entries, against {POSTED:,}",
                    "new rows",
                    beside_few,
                    beside_many,
                    target=1 / 1.2,
                ),
                await compare(
                    "rollup of the usage marts, against an upsert by hand", "new rows", by_hand, three, target=1 / 1.5
                ),
            ]


def _entries(database: Database) -> int:
    with psycopg.connect(database.url) as connection:
        row = connection.execute("select sum(entry_count)::bigint from ledger.batches").fetchone()
        assert row is not None
        return int(row[0])


def _copy_of(made: World, name: str) -> Database:
    made.ledger.close()
    with psycopg.connect(Database(made.server.address, "postgres").url, autocommit=True) as connection:
        connection.execute(f"create database {name} template tallystick".encode())
    made.ledger = Ledger(made.ledger.database)
    return Database(made.server.address, name)


def _check(database: Database, marts: tuple[str, ...]) -> None:
    """Whatever was posted is in each mart, to the last digit."""
    with psycopg.connect(database.url) as connection:
        expected = connection.execute("select sum(charge_amount), sum(request_count) from ledger.entries").fetchone()
        for mart in marts:
            found = connection.execute(
                f"select sum(charge_amount), sum(request_count) from marts.{mart}".encode()
            ).fetchone()
            assert found == expected, f"{mart}: {found} is not {expected}"


# --- By hand ----------------------------------------------------------------------------------------------------------

TEXTS = ("feature", "provider", "model", "route", "lane", "cost_currency", "charge_currency")
SUMS = {
    "entry_count": "count(*) filter (where kind <> 'evidence')",
    "evidence_count": "count(*) filter (where kind = 'evidence')",
    "request_count": "sum(request_count)",
    "estimated_count": "coalesce(sum(request_count) filter (where basis = 'estimated'), 0)",
    "usage_missing_count": "coalesce(sum(request_count) filter (where usage_flags @> '{usage_missing}'), 0)",
    **{
        name: f"coalesce(sum({name}), 0)"
        for name in (
            "uncached_input_tokens", "cache_read_tokens", "cache_write_5m_tokens", "cache_write_1h_tokens",
            "cache_write_other_tokens", "visible_output_tokens", "reasoning_tokens", "input_tokens", "output_tokens",
            "avoided_tokens", "cost_amount", "charge_amount",
        )
    },
    **{
        f"{book}_unpriced_{what}": f"coalesce(sum({value}) filter (where {book}_amount is null and kind <> 'evidence'), 0)"
        for book in ("cost", "charge")
        for what, value in (("count", "request_count"), ("tokens", "input_tokens + output_tokens"))
    },
}  # fmt: skip


def _make_by_hand(database: Database) -> None:
    with psycopg.connect(database.url) as connection:
        connection.execute("drop table if exists hand_marks")
        for mart in MARTS:
            connection.execute(f"drop table if exists hand_{mart}".encode())
            connection.execute(f"create table hand_{mart} (like marts.{mart} including indexes)".encode())
            connection.execute(f"insert into hand_{mart} select * from marts.{mart}".encode())
        connection.execute("create table hand_marks as select model, feed_id, low from marts.watermarks")
    with psycopg.connect(database.url, autocommit=True) as connection:
        connection.execute("vacuum analyze")


def _by_hand(database: Database) -> float:
    """Add what is new to the tables made by hand; the range of batches is put into the statement as a list."""
    with psycopg.connect(database.url) as connection:
        started = time.perf_counter()
        for mart, (bucket, expression) in MARTS.items():
            batches = connection.execute(
                "select d.posting_period, array_agg(b.batch_id) from ledger.batches as b"
                " join ledger.feeds as f on f.feed_id = b.feed_id"
                " left join hand_marks as m on m.feed_id = b.feed_id and m.model = %s"
                " join ledger.batch_digests as d on d.batch_id = b.batch_id"
                " where b.number > coalesce(m.low, 0) group by 1",
                [mart],
            ).fetchall()
            keys = ["tenant_id", bucket, "feature", "language", *TEXTS[1:]]
            values = [
                "tenant_id",
                expression,
                *(name if name == "language" else f"coalesce({name}::text, '')" for name in keys[2:]),
            ]
            for month, ids in batches:
                ranges = " or ".join(
                    f"entry_id >= {batch_id * 65536} and entry_id < {(batch_id + 1) * 65536}" for batch_id in ids
                )
                connection.execute(
                    f"insert into hand_{mart} as t ({', '.join([*keys, *SUMS])})"
                    f" select {', '.join([*values, *SUMS.values()])} from ledger.entries"
                    f" where posting_period = '{month}' and ({ranges})"
                    f" group by {', '.join(str(place + 1) for place in range(len(keys)))}"
                    f" on conflict ({', '.join(keys)}) do update set "
                    + ", ".join(f"{name} = t.{name} + excluded.{name}" for name in SUMS).replace("%", "%%")
                )  # fmt: skip
            connection.execute("delete from hand_marks where model = %s", [mart])
            connection.execute(
                "insert into hand_marks select %s, feed_id, last_number from ledger.feeds where last_number > 0", [mart]
            )
            connection.commit()
        seconds = time.perf_counter() - started
        expected = connection.execute("select sum(charge_amount), sum(request_count) from ledger.entries").fetchone()
        for mart in MARTS:
            found = connection.execute(
                f"select sum(charge_amount), sum(request_count) from hand_{mart}".encode()
            ).fetchone()
            assert found == expected, f"hand_{mart}: {found} is not {expected}"
    return seconds
