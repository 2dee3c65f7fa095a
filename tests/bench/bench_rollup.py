"""`rollup`: 10,000 new rows beside many entries, against beside few; and against an upsert that somebody wrote by hand.

All marts are made beforehand, once: in a database that is given those that are there stay. Before each timed run the same number
of new events is posted, of the hour that runs, in which nothing else of the ledger lies (of a database that is given, what it has):
what a node's hour costs hangs on all requests of that hour. The run is `run_rollup` of a process that stays, from its first question to the last commit. The
hand-written upsert does what the usage marts do, one statement and one watermark each, in one connection and without dbt; it is
timed against a run of those marts alone. `ENTRIES=` is the size of the large ledger; with `DATABASE=` it is one that `tallystick
generate` filled. `SELECT=` names marts as dbt does, such as `path:models/marts/billing`, where it should not be all.
"""

import asyncio
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from statistics import median
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
SELECTED = tuple(os.environ.get("SELECT", "").split())
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
            totals = {}
            for database, name in ((few, "few"), (many, "many")):
                report = run_rollup(database.url_for("tallystick_rollup"), home, select=SELECTED)
                print(
                    f"    {name}: made or brought up to date in {report.seconds:.1f} s after {report.start_seconds:.1f} s for dbt"
                    f" to start; {_slowest({run.name: [run.seconds] for run in report.models})}",
                    flush=True,
                )
                _settle(database)
                # The first run after a mart was made is dbt's, and what others repeat.
                for select in (SELECTED, tuple(MARTS)):
                    run_rollup(database.url_for("tallystick_rollup"), home, select=select)
                totals[name] = Totals(database)
            _make_by_hand(many)
            seconds_of: dict[str, dict[str, list[float]]] = {"few": defaultdict(list), "many": defaultdict(list)}

            async def rolled_up(name: str, *select: str) -> float:
                expected = totals[name]
                url = expected.database.url_for("tallystick_rollup")
                # What the other side's events left to do is not of this run.
                await asyncio.to_thread(run_rollup, url, home, select=select)
                await post_events(made, expected.database, made.packs(NEW, second_percent=50))
                report = await asyncio.to_thread(run_rollup, url, home, select=select)
                assert report.start_seconds == 0
                expected.check(f"marts.{mart}" for mart in MARTS)
                if select == SELECTED:
                    for run in report.models:
                        seconds_of[name][run.name].append(run.seconds)
                return NEW / report.seconds

            async def beside_few() -> float:
                return await rolled_up("few", *SELECTED)

            async def beside_many() -> float:
                return await rolled_up("many", *SELECTED)

            async def three() -> float:
                return await rolled_up("many", *MARTS)

            async def by_hand() -> float:
                await asyncio.to_thread(_by_hand, many)
                await post_events(made, many, made.packs(NEW, second_percent=50))
                seconds = await asyncio.to_thread(_by_hand, many)
                totals["many"].check(f"hand_{mart}" for mart in MARTS)
                return NEW / seconds

            # A large ledger may cost 1.2 times as much time, a statement of one's own saves a third at most.
            beside = await compare(
                f"rollup beside {entries:,} entries, against {POSTED:,}",
                "new rows",
                beside_few,
                beside_many,
                target=1 / 1.2,
            )
            for name, of_marts in seconds_of.items():
                print(f"    seconds beside {name}, by mart: {_slowest(of_marts)}", flush=True)
            hand = await compare(
                "rollup of the usage marts, against an upsert by hand", "new rows", by_hand, three, target=1 / 1.5
            )
            return [beside, hand]


def _slowest(seconds: Mapping[str, Sequence[float]]) -> str:
    """Say the median of each mart's seconds, slowest first, without those that take next to none."""
    medians = sorted(((median(each), name) for name, each in seconds.items()), reverse=True)
    return ", ".join(f"{name} {each:.2f}" for each, name in medians if each >= 0.01)


def _settle(database: Database) -> None:
    """Give the planner what autovacuum would have told it of marts that were just made."""
    with psycopg.connect(database.url, autocommit=True) as connection:
        marts = connection.execute(
            "select format('%I.%I', schemaname, relname) from pg_stat_user_tables"
            " where schemaname = 'marts' and last_analyze is null and last_autoanalyze is null"
        ).fetchall()
        for (mart,) in marts:
            connection.execute(f"vacuum analyze {mart}".encode())
        # What making them left to write is not of the runs.
        connection.execute("checkpoint")


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


class Totals:
    """What a ledger comes to, kept by reading each new batch once: reading all of it after each run would be most of the time."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._last = 0
        self._charge, self._requests = Decimal(0), 0
        self._read(
            "select sum(charge_amount), sum(request_count), (select max(batch_id) from ledger.batches) from ledger.entries"
        )

    def check(self, tables: Iterable[str]) -> None:
        """Whatever was posted is in each of these, to the last digit."""
        self._read(
            "select sum(e.charge_amount), sum(e.request_count), max(b.batch_id) from ledger.batches as b"
            " join ledger.batch_digests as d on d.batch_id = b.batch_id cross join lateral (select r.* from ledger.entries as r"
            " where r.posting_period = d.posting_period and r.entry_id >= b.batch_id * 65536"
            f" and r.entry_id < (b.batch_id + 1) * 65536 offset 0) as e where b.batch_id > {self._last}"
        )
        with psycopg.connect(self.database.url) as connection:
            for table in tables:
                found = connection.execute(
                    f"select sum(charge_amount), sum(request_count) from {table}".encode()
                ).fetchone()
                assert found == (self._charge, self._requests), f"{table}: {found}, not {self._charge, self._requests}"

    def _read(self, question: str) -> None:
        with psycopg.connect(self.database.url) as connection:
            row = connection.execute(question.encode()).fetchone()
        assert row is not None
        charge, requests, last = row
        if last is not None:
            self._charge, self._requests, self._last = self._charge + charge, self._requests + int(requests), last


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
        for mart in MARTS:
            connection.execute(f"vacuum analyze hand_{mart}".encode())


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
        return time.perf_counter() - started
