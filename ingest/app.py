"""The Faust app: reads the usage topic with positions from Postgres, and ends on what it cannot handle."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import faust
from faust.transport.drivers import aiokafka as driver
from faust.types import TP
from mode.supervisors import CrashingSupervisor

from ingest.intake import ease_collection
from ingest.lanes import Lanes, Record, wait_for_topic
from ledger import failpoints
from ledger.database import described
from ledger.errors import LedgerError

log = logging.getLogger("tallystick.worker")

_WATCH_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """What a worker needs to know; made by the command line from the settings."""

    writer_url: str
    bootstrap: str
    topic: str
    group: str
    folder: Path
    session_seconds: float = 10.0
    batch_wait_seconds: float = 0.1
    batch_messages_max: int = 5000
    batch_bytes_max: int = 2 * 1024 * 1024
    message_bytes_max: int = 4 * 1024 * 1024
    failpoints: str = ""
    """For crash tests only: see ledger.failpoints."""


class _Thread(driver.AIOKafkaConsumerThread):
    def _create_worker_consumer(self, transport: Any) -> Any:
        consumer = super()._create_worker_consumer(transport)
        # Faust asks for 1500 ms, and the embedded broker answers a long poll only after a share of that.
        consumer._fetch_max_wait_ms = 50
        return consumer


class _Consumer(driver.Consumer):
    app: "UsageApp"

    def _new_consumer_thread(self) -> driver.AIOKafkaConsumerThread:
        return _Thread(self, loop=self.loop, beacon=self.beacon)

    def _to_message(self, tp: TP, record: Any) -> Any:
        message = super()._to_message(tp, record)
        # Not generation_id: Faust's streams drop a message whose generation differs, and this must be ours to decide.
        message.session = self.app.lanes.session
        return message

    async def seek_to_committed(self) -> Mapping[TP, int]:
        """Claim the feeds of the partitions in hand and seek to where each stands in Postgres.

        Faust calls this after each assignment, from two places at once on a rebalance; the lock lets them follow each other.
        """
        async with self.app.seeking:
            mine = {tp.partition: tp for tp in self.assignment() if tp.topic == self.app.config.topic}
            first = await self.earliest_offsets(*mine.values()) if mine else {}
            wanted = await self.app.lanes.claim(mine, {tp.partition: first[tp] for tp in mine.values()})
            seeking = {mine[partition]: offset for partition, offset in wanted.items()}
            await self.seek_wait(seeking)
            return seeking


class _Transport(driver.Transport):
    Consumer = _Consumer


class UsageApp(faust.App):
    """One agent over one topic. Offsets of the Kafka group mean nothing: positions stand in Postgres."""

    config: WorkerConfig
    lanes: Lanes
    seeking: asyncio.Lock
    failure: BaseException | None = None

    def _new_transport(self) -> Any:
        return _Transport(self.conf.broker_consumer, self)

    def fail(self, error: BaseException) -> None:
        """End the worker because of an error that must not be passed over."""
        if self.failure is None:
            self.failure = error
            log.error("%s", described(error))
            self._failing = asyncio.ensure_future(self.crash(error))


def make_app(config: WorkerConfig) -> UsageApp:
    """Return the app of one worker process; nothing connects before it starts."""
    session = config.session_seconds
    app = UsageApp(
        config.group,
        broker=[f"kafka://{address}" for address in config.bootstrap.split(",")],
        datadir=str(config.folder / "faust"),
        store="memory://",
        topic_allow_declare=False,
        topic_disable_leader=True,
        web_enabled=False,
        stream_wait_empty=False,
        stream_buffer_maxsize=256,
        broker_max_poll_records=500,
        consumer_max_fetch_size=4 * 1024 * 1024,
        # "none" would look right, but a fetch in flight during a rebalance then ends the worker; the seek rules anyway.
        consumer_auto_offset_reset="earliest",
        broker_session_timeout=session,
        broker_heartbeat_interval=session / 6,
        broker_rebalance_timeout=session,
        autodiscover=False,
    )
    app.config = config
    app.seeking = asyncio.Lock()
    app.lanes = Lanes(config.writer_url, config.bootstrap, config.topic, config.message_bytes_max, app.fail)
    topic = app.topic(config.topic, value_type=bytes, value_serializer="raw", key_serializer="raw", acks=False)

    @app.agent(topic, supervisor_strategy=CrashingSupervisor, name="post_usage_events")
    async def post_usage_events(stream: Any) -> None:
        # `take` would acknowledge even when the body raises.
        async for events in stream.noack_take(config.batch_messages_max, within=config.batch_wait_seconds):
            await app.lanes.take([_record(event.message) for event in events], config.batch_bytes_max)

    @app.timer(interval=_WATCH_SECONDS)
    async def watch_the_log() -> None:
        consumer = app.consumer
        held = app.lanes.positions()
        ends = {
            p: consumer.highwater(TP(config.topic, p)) for p in held if TP(config.topic, p) in consumer.assignment()
        }
        try:
            app.lanes.check_ends(ends)
        except LedgerError as error:
            app.fail(error)
        else:
            await app.lanes.note_caught_up(ends)
            # A member that was taken for dead has heard of it by then; whoever still has the partition claims it again.
            if app.lanes.are_left_behind(2 * config.session_seconds):
                await consumer.perform_seek()

    @app.on_before_shutdown.connect
    async def let_go(*_: Any, **__: Any) -> None:
        await app.lanes.release()

    return app


def _record(message: Any) -> Record:
    return Record(
        partition=message.tp.partition,
        offset=message.offset,
        timestamp_ms=round(message.timestamp * 1000),
        value=message.value or b"",
        session=message.session,
    )


class _Sparingly(logging.Filter):
    """Lets a message of one form through once in ten seconds: a broker that is away makes sixty lines a second."""

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        key = (record.name, str(record.msg))
        if record.created - self._said.get(key, 0.0) < 10.0:
            return False
        self._said[key] = record.created
        return True


def run(config: WorkerConfig) -> int:
    """Run a worker until it is told to stop; return its exit code: 0, or 1 after an error that it could not handle."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # The services of Faust log under the module of their class, so under ours as well.
    for name in ("aiokafka", "faust", "mode", "ingest.app"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for handler in logging.getLogger().handlers:
        handler.addFilter(_Sparingly())
    failpoints.configure(config.failpoints)
    ease_collection()
    # Faust would end at once without a broker, and its question would make up a topic that is not there.
    wait_for_topic(config.bootstrap, config.topic)
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    app = make_app(config)
    worker = cast(
        Any, app.Worker(loglevel="info", quiet=True, redirect_stdouts=False, override_logging=False, loop=loop)
    )
    try:
        worker.execute_from_commandline()
    except SystemExit as ended:
        return 1 if app.failure is not None else int(ended.code or 0)
    return 1 if app.failure is not None else 0
