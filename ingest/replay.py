"""Replays traces and event files through Kafka: the same file gives the same bytes, so a second replay is duplicates.

A trace row holds a time and two token counts. Everything else is assigned from a plan, by a hash of the plan's seed, the
trace's name and the row's number: nothing depends on a random generator's version or on the order of reading.
"""

import csv
import gzip
import io
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import msgspec
from confluent_kafka import KafkaException, Producer

from ledger.times import from_micros, parse_rfc3339

_DAY: Final = 86_400_000_000
_MICROSECOND_TIME: Final = re.compile(r"(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d)\.(\d{6})\d?")
_HEADER: Final = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]
# A broker takes messages of one megabyte unless somebody told it otherwise.
_PACK_BYTES_MAX: Final = 900_000


class ReplayError(Exception):
    """A file cannot be replayed; the message names the file, the line and the rule."""


class TracePlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What rows of one trace may become, each name with its weight."""

    features: Mapping[str, int]
    languages: Mapping[str, int]
    models: Mapping[str, int]


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a trace does not say: see data/demo/plan.json."""

    note: str
    seed: str
    shift_days: int
    source: str
    tenants: Mapping[str, int]
    traces: Mapping[str, TracePlan]
    flavours: Mapping[str, str]


def load_plan(path: Path) -> Plan:
    """Read a plan; raise ReplayError for a file that is none, or that leaves something open."""
    try:
        plan = msgspec.json.decode(path.read_bytes(), type=Plan)
    except OSError as error:
        raise ReplayError(f"{path}: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise ReplayError(f"{path}: {error}") from None
    for part, weights in _weights_of(plan):
        if not weights or min(weights.values()) < 0 or not any(weights.values()):
            raise ReplayError(f"{path}: {part} needs weights, none below zero and not all zero")
    for model in {model for trace in plan.traces.values() for model in trace.models}:
        provider = model.partition("/")[0]
        if plan.flavours.get(provider) not in _USAGE:
            raise ReplayError(f"{path}: flavours must name one of {', '.join(_USAGE)} for {provider}")
    return plan


def _weights_of(plan: Plan) -> Iterator[tuple[str, Mapping[str, int]]]:
    yield "tenants", plan.tenants
    for name, trace in plan.traces.items():
        yield f"features of {name}", trace.features
        yield f"languages of {name}", trace.languages
        yield f"models of {name}", trace.models


@dataclass(frozen=True, slots=True)
class _Shares:
    """Names by weight: a number below the sum of the weights chooses one."""

    names: Sequence[str]
    bounds: Sequence[int]

    @classmethod
    def of(cls, weights: Mapping[str, int]) -> "_Shares":
        return cls(list(weights), list(accumulate(weights.values())))

    def choose(self, drawn: int) -> str:
        at = drawn % self.bounds[-1]
        return next(name for name, bound in zip(self.names, self.bounds, strict=True) if at < bound)


_USAGE: Final[Mapping[str, Callable[[int, int], dict[str, Any]]]] = {
    "openai.chat": lambda i, o: {"prompt_tokens": i, "completion_tokens": o, "total_tokens": i + o},
    "vllm.chat": lambda i, o: {"prompt_tokens": i, "completion_tokens": o, "total_tokens": i + o},
    "anthropic.messages": lambda i, o: {"input_tokens": i, "output_tokens": o},
    "gemini.generate_content": lambda i, o: {
        "promptTokenCount": i, "candidatesTokenCount": o, "totalTokenCount": i + o,
    },
}  # fmt: skip


def trace_events(path: Path, plan: Plan) -> Iterator[bytes]:
    """Yield the rows of an Azure LLM trace as usage events, in order; JSON bytes, one event each."""
    name = next((name for name in plan.traces if name in path.name), None)
    if name is None:
        raise ReplayError(f"{path.name}: the plan names no trace like it; it knows {', '.join(plan.traces)}")
    shares = plan.traces[name]
    tenants, features = _Shares.of(plan.tenants), _Shares.of(shares.features)
    languages, models = _Shares.of(shares.languages), _Shares.of(shares.models)
    encode = msgspec.json.Encoder().encode
    for number, (at, tokens_in, tokens_out) in enumerate(_trace_rows(path)):
        occurred_at = at + plan.shift_days * _DAY
        digest = sha256(f"{plan.seed}/{name}/{number}".encode()).digest()
        drawn = [int.from_bytes(digest[start : start + 4], "big") for start in (0, 4, 8, 12)]
        provider, _, model = models.choose(drawn[3]).partition("/")
        flavour = plan.flavours[provider]
        yield encode(
            {
                "specversion": "1.0",
                "type": "llm.usage.v1",
                "source": plan.source,
                "id": _uuid7(occurred_at, digest[16:26]),
                "time": from_micros(occurred_at).isoformat().replace("+00:00", "Z"),
                "data": {
                    "tenant_id": tenants.choose(drawn[0]),
                    "feature": features.choose(drawn[1]),
                    "language": languages.choose(drawn[2]),
                    "route": "chat" if name == "conv" else "code",
                    "lane": "interactive",
                    "request_id": _uuid7(occurred_at, digest[6:16]),
                    "provider": provider,
                    "requested_model": model,
                    "model": model,
                    "status": "ok",
                    "flavour": flavour,
                    "usage": _USAGE[flavour](tokens_in, tokens_out),
                },
            }
        )


def _trace_rows(path: Path) -> Iterator[tuple[int, int, int]]:
    """Yield (UTC microseconds, input tokens, output tokens); the seventh digit of a time is cut."""
    with _opened(path) as lines:
        rows = csv.reader(lines)
        if next(rows, None) != _HEADER:
            raise ReplayError(f"{path.name}: the first line must be {','.join(_HEADER)}")
        for number, row in enumerate(rows, start=2):
            try:
                yield _trace_row(*row)
            except (TypeError, ValueError):
                raise ReplayError(
                    f"{path.name}: line {number}: a time and two counts are wanted, got {','.join(row)!r:.80}"
                ) from None


def _trace_row(time: str, tokens_in: str, tokens_out: str) -> tuple[int, int, int]:
    match = _MICROSECOND_TIME.fullmatch(time)
    if match is None or not (tokens_in.isdecimal() and tokens_out.isdecimal()):
        raise ValueError
    day, clock, fraction = match.groups()
    return parse_rfc3339(f"{day}T{clock}.{fraction}Z"), int(tokens_in), int(tokens_out)


def file_events(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file of events as they are; whether they are events is the worker's to say."""
    with _opened(path) as lines:
        for line in lines:
            if line.strip():
                yield line.strip().encode(errors="surrogateescape")


def events_of(path: Path, plan: Plan) -> Iterator[bytes]:
    """Yield the events of a trace (`.csv`, `.csv.gz`) or of a file with one event a line (any other name)."""
    if not path.is_file():
        raise ReplayError(f"{path}: no such file")
    try:
        yield from trace_events(path, plan) if ".csv" in path.suffixes else file_events(path)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ReplayError(f"{path.name}: cannot be unpacked: {error}") from None
    except csv.Error as error:
        raise ReplayError(f"{path.name}: {error}") from None


def _opened(path: Path) -> io.TextIOBase:
    if path.suffix == ".gz":
        return io.TextIOWrapper(gzip.open(path, "rb"), encoding="utf-8", errors="surrogateescape", newline="")
    return path.open(encoding="utf-8", errors="surrogateescape", newline="")


def _uuid7(instant: int, tail: bytes) -> str:
    """Return a UUIDv7 of an instant whose other bits come from a hash, so that it is the same each time."""
    milliseconds = (instant // 1000).to_bytes(6, "big")
    head, rest = int.from_bytes(tail[:2], "big") & 0x0FFF | 0x7000, bytearray(tail[2:10])
    rest[0] = rest[0] & 0x3F | 0x80
    text = (milliseconds + head.to_bytes(2, "big") + bytes(rest)).hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def packs(events: Iterable[bytes], size: int) -> Iterator[tuple[bytes, int]]:
    """Yield messages of up to `size` events as JSON arrays, with how many each holds; a size of 1 sends bare events.

    What is no JSON goes alone: inside an array nobody could tell where it ends, and its neighbours would be lost with it.
    """
    pack: list[bytes] = []
    held_bytes = 0
    for event in events:
        is_alone = size == 1 or not _is_json(event)
        if pack and (is_alone or len(pack) == size or held_bytes + len(event) > _PACK_BYTES_MAX):
            yield b"[" + b",".join(pack) + b"]", len(pack)
            pack, held_bytes = [], 0
        if is_alone:
            yield event, 1
        else:
            pack.append(event)
            held_bytes += len(event) + 1
    if pack:
        yield b"[" + b",".join(pack) + b"]", len(pack)


def _is_json(event: bytes) -> bool:
    try:
        msgspec.json.decode(event, type=msgspec.Raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return True


def send(
    bootstrap: str, topic: str, messages: Iterable[tuple[bytes, int]], on_sent: Callable[[int], None] = lambda _: None
) -> int:
    """Send messages and wait until the broker has acknowledged all; return how many events they held.

    Messages go to the partitions in turn. Errors: ReplayError with the broker's first complaint.
    """
    refusals: list[str] = []
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 5,
            "message.max.bytes": 8_000_000,
            "message.timeout.ms": 30_000,
            "queue.buffering.max.kbytes": 65_536,
        },
        logger=_SILENT,
    )
    try:
        # Asking for all of them: a topic that is asked for by name is made by some brokers, and then nobody reads it.
        topics = producer.list_topics(timeout=10).topics
    except KafkaException as error:
        raise ReplayError(f"the broker at {bootstrap} does not answer: {error.args[0].str()}") from None
    if topic not in topics:
        raise ReplayError(f"the broker at {bootstrap} has no topic {topic}")
    count = len(topics[topic].partitions)

    def delivered(error: Any, _message: Any) -> None:
        if error is not None:
            refusals.append(str(error))

    sent = 0
    for number, (message, events) in enumerate(messages):
        while True:
            try:
                producer.produce(topic, message, partition=number % count, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.05)
            except KafkaException as error:
                raise ReplayError(
                    f"a message of {len(message):,} bytes cannot be sent: {error.args[0].str()}; {sent:,} events before it were"
                ) from None
        producer.poll(0)
        sent += events
        on_sent(events)
        if refusals:
            break
    if producer.flush(60) or refusals:
        raise ReplayError(f"the broker at {bootstrap} did not take the events: {(refusals or ['no answer'])[0]}")
    return sent


class _Silent:
    """librdkafka's own lines would run through the progress bar; what matters arrives as a delivery report."""

    def log(self, *_: Any, **__: Any) -> None:
        return None


_SILENT: Final = _Silent()
__all__ = [
    "Plan",
    "ReplayError",
    "events_of",
    "file_events",
    "load_plan",
    "packs",
    "send",
    "trace_events",
]
