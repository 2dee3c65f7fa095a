"""The whole road through Kafka, against its own parts.

Packs: events that a worker posts from a topic, against `post` alone on the same messages in memory.
Singles: one event a message, against a Faust worker with the same settings that only counts.

Messages wait in the topic before the worker starts, and its speed is read from its own commits: from the first batch's to
the last one's. So neither the start of a process nor the sender's share of the processor is in the figure.
"""

import asyncio
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psycopg

from ingest.app import WorkerConfig
from ingest.intake import Intake, ease_collection
from ingest.replay import send
from ledger import feeds
from ledger.database import connect
from tallystick.embedded import EmbeddedBroker
from tests.bench.bench_post import BATCH, post_all
from tests.bench.harness import Comparison, compare, size
from tests.bench.world import PACK, SHARED_BUFFERS, World, world
from tests.support.worker import WorkerProcess

_COUNTER = Path(__file__).with_name("counting_worker.py")
_PATIENCE_SECONDS = 120.0


async def run() -> list[Comparison]:
    keys, events, singles = size("KEYS", 200_000), size("EVENTS", 60_000), size("SINGLES", 15_000)
    print(
        f"    {events:,} events a run in packs of {PACK}, {singles:,} one a message, about {BATCH:,} events a batch,"
        f" one partition, embedded broker; shared_buffers {SHARED_BUFFERS}, fsync on",
        flush=True,
    )
    ease_collection()
    with tempfile.TemporaryDirectory(prefix="tallystick-bench-") as folder, EmbeddedBroker(Path(folder)) as broker:
        async with world(keys) as made:
            road = Road(made, broker, Path(folder))
            await road.warm()
            packs = await compare(
                "ingest, packs of 100, against post alone",
                "events",
                lambda: road.post_alone(events),
                lambda: road.through_kafka(events, PACK),
                target=0.6,
            )
            one = await compare(
                "ingest, one event a message, against a loop that counts",
                "events",
                lambda: road.counted(singles),
                lambda: road.through_kafka(singles, 1),
                target=0.8,
            )
            await road.close()
            return [packs, one]


class Road:
    """A broker and a ledger, and workers between them that live for one run each."""

    def __init__(self, made: World, broker: EmbeddedBroker, folder: Path) -> None:
        self.made = made
        self.broker = broker
        self.folder = folder
        self._topics = 0
        self._intake: Intake | None = None

    async def warm(self) -> None:
        """Make ids for rate sets and subjects, so that no run has to."""
        connection = await connect(self.made.writer_url)
        held = await feeds.claim(connection, "file", "file:bench")
        await connection.close()
        self._intake = await Intake.open(self.made.writer_url, held, patience=10)
        for _ in range(3):
            await post_all(self._intake, self.made.packs(10_000))

    async def close(self) -> None:
        assert self._intake is not None
        await self._intake.close()

    async def post_alone(self, events: int) -> float:
        assert self._intake is not None
        bodies = self.made.packs(events)
        started = time.perf_counter()
        posted = await post_all(self._intake, bodies)
        seconds = time.perf_counter() - started
        assert Counter(r.outcome for batch in posted for r in batch.results) == {"created": events}
        return events / seconds

    def _filled_topic(self, events: int, pack: int) -> str:
        self._topics += 1
        topic = f"bench-{self._topics}"
        self.broker.create_topic(topic, 1)
        bodies = self.made.packs(events, pack=pack)
        send(self.broker.bootstrap, topic, [(body, pack) for body in bodies])
        return topic

    def _config(self, topic: str) -> WorkerConfig:
        return WorkerConfig(
            writer_url=self.made.writer_url,
            bootstrap=self.broker.bootstrap,
            topic=topic,
            group=topic,
            folder=self.folder / topic,
            session_seconds=3,
        )

    async def through_kafka(self, events: int, pack: int) -> float:
        topic = self._filled_topic(events, pack)
        config = self._config(topic)
        before = self.made.ledger.value("select coalesce(max(batch_id), 0) from ledger.batches")
        worker = WorkerProcess(
            **{
                name: getattr(config, name)
                for name in ("folder", "writer_url", "bootstrap", "topic", "group", "session_seconds")
            }
        )
        try:
            deadline = time.monotonic() + _PATIENCE_SECONDS
            with psycopg.connect(self.made.ledger.database.url, autocommit=True) as connection:
                while True:
                    row = connection.execute(
                        "select count(*), coalesce(sum(created_count), 0), extract(epoch from max(recorded_at) - min(recorded_at)),"
                        " (array_agg(created_count order by batch_id))[1] from ledger.batches where batch_id > %s",
                        [before],
                    ).fetchone()
                    assert row is not None
                    if row[1] >= events:
                        break
                    if worker.process.poll() is not None or time.monotonic() > deadline:
                        raise AssertionError(f"{row[1]} of {events} posted\n{worker.said[-2000:]}")
                    await asyncio.sleep(0.2)
        finally:
            worker.stop()
        assert row[1] == events, "each event once"
        assert row[0] > 2, "too few batches to measure between"
        # recorded_at is read when a batch begins: from the first one's to the last one's, all but the last were posted.
        last = self.made.ledger.value(
            "select created_count from ledger.batches where batch_id > %s order by batch_id desc limit 1", before
        )
        return float(events - last) / float(row[2])

    async def counted(self, events: int) -> float:
        topic = self._filled_topic(events, 1)
        config = self._config(topic)
        done = await asyncio.to_thread(
            subprocess.run,
            [
                sys.executable,
                "-m",
                "tests.bench.counting_worker",
                config.bootstrap,
                topic,
                str(events),
                str(config.folder),
            ],
            capture_output=True,
            text=True,
            timeout=_PATIENCE_SECONDS,
            check=False,
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith("counted ")]
        assert lines, done.stderr[-2000:]
        _, count, seconds = lines[-1].split()
        assert int(count) == events
        return events / float(seconds)
