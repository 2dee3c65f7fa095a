"""Lanes: one per partition in hand. A lane claims the partition's feed, reads its messages in order, and posts them."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import psycopg
from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from ingest.intake import Intake, Message
from ledger import feeds
from ledger.database import connect, described
from ledger.errors import Fenced, LedgerError, PositionLost
from ledger.posting import Posted
from ledger.statements import Refused

log = logging.getLogger("tallystick.worker")

Answer = TypeVar("Answer")

_STARTS_WITHOUT_PROGRESS: Final = 2
"""After so many starts at one position, a worker goes one message at a time and notes each before it touches it."""
_KILLS: Final = 3
"""A message that was in hand at so many deaths is a dead letter."""
_PAUSE_SECONDS: Final = 1.0
_CAREFUL_MESSAGES: Final = 200
"""How far a careful worker goes before it trusts the log again: more than one read can have in hand."""

_KILLER: Final = Refused(
    "kills_process", f"the worker died {_KILLS} times with this message in hand; it was not read again"
)


class LogChanged(LedgerError):
    """A partition ends before the position that was posted: it is another log under the same name."""

    def __init__(self, feed: str, expected: int, end: int) -> None:
        self.feed, self.expected, self.end = feed, expected, end
        super().__init__(f"feed {feed} is posted up to {expected}, but the log now ends at {end}: it is another log")


class BatchRefused(LedgerError):
    """The database refuses a batch, and no single event explains it: a person must look."""

    def __init__(self, feed: str, error: psycopg.Error) -> None:
        self.feed, self.sqlstate = feed, error.sqlstate
        # Whatever Postgres says of it may quote a row, which no log may hold.
        super().__init__(f"feed {feed}: the database refuses a batch: {described(error)}")


@dataclass(frozen=True, slots=True)
class Record:
    """A Kafka message, with the seek under which it was read."""

    partition: int
    offset: int
    timestamp_ms: int
    value: bytes
    session: int


@dataclass(slots=True)
class Lane:
    """The right to one partition, and the commit that is under way."""

    intake: Intake
    careful_until: int
    expected: int
    """What is read next; ahead of the feed's position by the batch that is being committed."""
    posting: "asyncio.Task[Posted | None] | None" = None
    fenced_at: float | None = None
    """By the monotonic clock, when another writer's claim was met; nothing more is posted through this lane."""

    @property
    def is_fenced(self) -> bool:
        return self.fenced_at is not None


@dataclass(slots=True)
class Progress:
    """What this process has posted, for its log."""

    events: int = 0
    batches: int = 0
    said_at: float = field(default_factory=time.monotonic)


class Lanes:
    """The partitions in hand, by number; their positions stand in Postgres and move with what they post."""

    def __init__(
        self,
        writer_url: str,
        bootstrap: str,
        topic: str,
        message_bytes_max: int,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._url = writer_url
        self._bootstrap = bootstrap
        self._topic = topic
        self._message_bytes_max = message_bytes_max
        self._on_failure = on_failure
        self._lanes: dict[int, Lane] = {}
        self._seen: set[str] = set()
        self.session = 0
        """Counts seeks: what was read before the last one is dropped."""
        self.progress = Progress()

    def positions(self) -> Mapping[int, int]:
        """What is read next, by partition."""
        return {partition: lane.expected for partition, lane in self._lanes.items()}

    async def claim(self, partitions: Iterable[int], first_offsets: Mapping[int, int]) -> Mapping[int, int]:
        """Take the feeds of partitions; return the position from which each is read.

        Errors: `PositionLost` when a log starts beyond the position that its feed expects.
        """
        await self.release()
        log_name = await self._log_name()
        for partition in sorted(partitions):
            name, first = f"kafka:{log_name}:{partition}", first_offsets[partition]
            self._lanes[partition] = await _patiently(lambda name=name, first=first: self._claim(name, first))  # type: ignore[misc]
        self.session += 1
        return self.positions()

    async def _log_name(self) -> str:
        while True:
            try:
                return await asyncio.to_thread(name_of_log, self._bootstrap, self._topic)
            except KafkaException as error:
                log.warning("the broker does not name its log (%s); waiting for it", error.args[0].str())
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _claim(self, name: str, first_offset: int) -> Lane:
        connection = await connect(self._url)
        try:
            held = await feeds.claim(connection, "kafka", name)
            if first_offset > held.next_position:
                raise PositionLost(name, held.next_position, first_offset)
            careful_until = held.next_position
            if name not in self._seen:
                self._seen.add(name)
                starts, is_suspect = await feeds.count_start(connection, held)
                # Where the message at the position is suspected already, nothing has to be found out again.
                if starts > _STARTS_WITHOUT_PROGRESS or is_suspect:
                    careful_until += _CAREFUL_MESSAGES
                    log.warning(
                        "feed %s: start %d at position %d: going one message at a time",
                        name,
                        starts,
                        held.next_position,
                    )
        finally:
            await connection.close()
        return Lane(await Intake.open(self._url, held, patience=None), careful_until, held.next_position)

    async def take(self, records: Sequence[Record], batch_bytes_max: int) -> None:
        """Read records in order and start posting them; one commit of each lane overlaps the reading of the next batch."""
        for partition, run in _by_partition(records, self.session).items():
            lane = self._lanes.get(partition)
            if lane is not None and not lane.is_fenced:
                await self._take(lane, run, batch_bytes_max)
        self._say()

    async def _take(self, lane: Lane, run: Sequence[Record], batch_bytes_max: int) -> None:
        at = 0
        while at < len(run) and not lane.is_fenced:
            if run[at].offset < lane.expected:
                # Read again after a seek, or by a consumer that went back: posted already.
                at += 1
                continue
            end = at + 1
            if run[at].offset >= lane.careful_until:
                end = _end_of_batch(run, at, batch_bytes_max)
            await self._post(lane, run[at:end], is_careful=run[at].offset < lane.careful_until)
            at = end

    async def _post(self, lane: Lane, run: Sequence[Record], *, is_careful: bool) -> None:
        messages = [self._message(record) for record in run]
        if is_careful:
            # Alone in hand: whatever kills the process now is not another partition's.
            for each in [*self._lanes.values()]:
                await self._settled(each)
            messages = [await self._noted(lane, messages[0])]
        next_position = run[-1].offset + 1
        reading = await lane.intake.read(messages, lane.expected, next_position)
        await self._settled(lane)
        if lane.is_fenced:
            return
        lane.expected = next_position
        lane.posting = asyncio.create_task(self._posted(lane, lane.intake.post(reading)))
        lane.posting.add_done_callback(self._check)
        if is_careful:
            await self._settled(lane)

    def _message(self, record: Record) -> Message:
        refused = None
        if len(record.value) > self._message_bytes_max:
            refused = Refused("message_too_large", f"the message is larger than {self._message_bytes_max} bytes")
        return Message(record.value, record.timestamp_ms * 1000, self._topic, record.offset, refused=refused)

    async def _noted(self, lane: Lane, message: Message) -> Message:
        """Note a message before it is touched; one that was in hand too often is not read again."""
        assert message.position is not None
        times = await _patiently(lambda: self._suspect(lane, message.position or 0))
        if times <= _KILLS:
            return message
        log.error("feed %s: message %d is set aside: %s", lane.intake.held.name, message.position, _KILLER.detail)
        return Message(message.body, message.received_at, message.origin, message.position, refused=_KILLER)

    async def _suspect(self, lane: Lane, position: int) -> int:
        connection = await connect(self._url)
        try:
            return await feeds.suspect(connection, lane.intake.held, position)
        finally:
            await connection.close()

    async def _posted(self, lane: Lane, posting: Any) -> Posted | None:
        try:
            posted: Posted = await posting
        except Fenced as fenced:
            # Another worker has the partition; what was read is dropped, and the next rebalance seeks again.
            log.warning("%s", fenced)
            lane.fenced_at = time.monotonic()
            return None
        except psycopg.Error as error:
            raise BatchRefused(lane.intake.held.name, error) from None
        self.progress.events += len(posted.results)
        self.progress.batches += 1
        return posted

    def _check(self, task: "asyncio.Task[Posted | None]") -> None:
        # A commit that failed while nobody waited must end the worker now, not at the next message.
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_failure(error)

    @staticmethod
    async def _settled(lane: Lane) -> None:
        if lane.posting is not None:
            await lane.posting
            lane.posting = None

    async def release(self) -> None:
        """Let go of all lanes, after the commits that are under way."""
        lanes, self._lanes = self._lanes, {}
        for lane in lanes.values():
            if lane.posting is not None:
                await asyncio.wait([lane.posting])
            await lane.intake.close()

    def check_ends(self, ends: Mapping[int, int | None]) -> None:
        """Compare with the logs' ends, as the fetches report them.

        Errors: `LogChanged` when a log ends before what was posted: reading on would skip its first events.
        """
        for partition, end in ends.items():
            lane = self._lanes.get(partition)
            if lane is not None and end is not None and 0 <= end < lane.intake.held.next_position:
                raise LogChanged(lane.intake.held.name, lane.intake.held.next_position, end)

    def are_left_behind(self, seconds: float) -> bool:
        """Say whether a lane has been fenced for so long that no rebalance will take its partition from us.

        A person's `feeds start-here` fences too, and nobody else reads the partition then.
        """
        now = time.monotonic()
        return any(lane.fenced_at is not None and now - lane.fenced_at > seconds for lane in self._lanes.values())

    async def note_caught_up(self, ends: Mapping[int, int | None]) -> None:
        """Record for each log that holds nothing more that it is posted up to now."""
        done = [
            lane
            for partition, lane in self._lanes.items()
            if not lane.is_fenced
            and ends.get(partition) == lane.expected == lane.intake.held.next_position
            and (lane.posting is None or lane.posting.done())
        ]
        if not done:
            return
        try:
            connection = await connect(self._url)
            try:
                for lane in done:
                    await feeds.note_caught_up(connection, lane.intake.held)
            finally:
                await connection.close()
        except psycopg.OperationalError as error:
            # Nothing is lost: the feeds look a little further behind until the next time.
            log.warning("the database is away (%s)", str(error).partition("\n")[0])

    def _say(self) -> None:
        now = time.monotonic()
        if now - self.progress.said_at >= 10:
            self.progress.said_at = now
            log.info("posted %d events in %d batches", self.progress.events, self.progress.batches)


async def _patiently(work: Callable[[], Awaitable[Answer]]) -> Answer:
    """Do something with the database, again and again while it is away."""
    while True:
        try:
            return await work()
        except psycopg.OperationalError as error:
            log.warning("the database is away (%s); waiting for it", str(error).partition("\n")[0])
        await asyncio.sleep(_PAUSE_SECONDS)


def _by_partition(records: Sequence[Record], session: int) -> dict[int, list[Record]]:
    """Group records by partition, in order, without those read before the last seek."""
    runs: dict[int, list[Record]] = {}
    for record in records:
        if record.session == session:
            runs.setdefault(record.partition, []).append(record)
    return runs


def _end_of_batch(run: Sequence[Record], start: int, bytes_max: int) -> int:
    size, end = len(run[start].value), start + 1
    while end < len(run) and size + len(run[end].value) <= bytes_max:
        size += len(run[end].value)
        end += 1
    return end


def wait_for_topic(bootstrap: str, topic: str) -> None:
    """Wait until the broker answers and has the topic, and say so meanwhile. Blocking."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    while True:
        try:
            # All of them: asked for one that is not there, a broker may make it up.
            found = admin.list_topics(timeout=5).topics.get(topic)
            if found is not None and found.error is None and found.partitions:
                return
            log.warning("the broker at %s has no topic %s; waiting for it", bootstrap, topic)
        except KafkaException as error:
            log.warning("the broker at %s is away (%s); waiting for it", bootstrap, error.args[0].str())
        time.sleep(_PAUSE_SECONDS)


def name_of_log(bootstrap: str, topic: str) -> str:
    """Return cluster and topic id: a topic that was made anew is another log, whatever its name. Blocking."""
    # The client must keep its name until the results are there, else it ends first.
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
    cluster = admin.list_topics(timeout=10).cluster_id
    topic_id = admin.describe_topics(TopicCollection([topic]), request_timeout=10)[topic].result(10).topic_id
    return f"{cluster}:{topic_id}"
