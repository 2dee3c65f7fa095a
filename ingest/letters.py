"""Releases dead letters: as they are, once the cause is gone, or mended, under the identity that their sender gave them."""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from ingest.intake import Intake, Message, Reading
from ingest.usage_events import AHEAD_MAX, Speaker, event_bodies, read_events
from ingest.wire import UNDECODABLE, decode_any
from ledger import feeds
from ledger.books import load_books
from ledger.database import Connection, connect
from ledger.dead_letters import DeadLetterRecord, Readable, Release, find_dead_letters, readable
from ledger.errors import ActRefused, Fenced, Unknown
from ledger.statements import DIMENSIONS, DeadLetter, Statement
from ledger.times import from_micros, micros

FEED: Final = "commands:dead-letters"
_LOCK: Final = 7_411_004
"""Held while letters are released: two people who release the same ones follow each other."""
_LETTERS_AT_ONCE: Final = 500
_BYTES_AT_ONCE: Final = 8 * 1024 * 1024
_WAIT_SECONDS: Final = 60.0
_PATIENCE_SECONDS: Final = 30.0
_TRIES: Final = 5


class FixRefused(ActRefused):
    """A dead letter cannot be mended like this."""


@dataclass(frozen=True, slots=True)
class Fix:
    """How one dead letter is mended: some fields, or all of its bytes."""

    sets: Sequence[tuple[str, Any]] = ()
    """(path such as `data.model`, value) in order; a value of UNSET takes the field away."""
    body: bytes | None = None
    """The whole event instead."""
    allows_other_identity: bool = False
    """Whether tenant as sent, source or id may become others: a person says so, with a reason."""


@dataclass(frozen=True, slots=True)
class Mended:
    """The bytes of a dead letter after its fix, and the fields that changed."""

    body: bytes
    changed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Replayed:
    """What has become of one dead letter."""

    dead_letter_id: int
    outcome: str
    """created, duplicate, evidence; conflict or dead_letter: it stays one; split: see `results`; resolved: it was before;
    kept: it was not posted, for the reason."""
    reason: str | None = None
    detail: str | None = None
    batch_id: int | None = None
    results: Mapping[str, int] | None = None
    """Of bytes that hold many events: how many of each outcome."""
    is_in_future: bool = False
    """Its call ends after now by its sender's clock, which only a person's release passes over."""

    @property
    def is_done(self) -> bool:
        return self.outcome in ("created", "duplicate", "evidence", "split")


# --- Mending ----------------------------------------------------------------------------------------------------------

_ENCODE: Final = msgspec.json.Encoder(decimal_format="number").encode


def mended(dead_letter_id: int, body: bytes, fix: Fix, speaker: Speaker | None) -> Mended:
    """Return the bytes of a dead letter as a fix makes them.

    Errors: `FixRefused` where the bytes are no event whose fields can be set, where nothing changes, or where the identity
    would change without leave. A part of the identity that the sender left out may be filled in; one that it stated stays.
    """
    before = _decoded(body)
    if fix.body is not None:
        after = _decoded(fix.body)
        if after is None:
            raise FixRefused(f"dead letter {dead_letter_id}: the new bytes are no JSON object")
        made = fix.body
    else:
        if before is None:
            raise FixRefused(
                f"dead letter {dead_letter_id}: its bytes are no JSON object, so no field can be set: give the whole event"
            )
        after = _decoded(body)
        assert after is not None
        for path, value in fix.sets:
            _set(dead_letter_id, after, path, value)
        made = _ENCODE(after)
    changed = tuple(_differing(before, after)) if before is not None else ("(all)",)
    if not changed:
        raise FixRefused(f"dead letter {dead_letter_id}: nothing changes")
    if not fix.allows_other_identity:
        _hold_identity(dead_letter_id, _stated(body, speaker), _stated(made, speaker), is_readable=before is not None)
    return Mended(made, changed)


def _decoded(body: bytes) -> dict[str, Any] | None:
    try:
        value = decode_any(body)
    except UNDECODABLE:
        return None
    return value if type(value) is dict else None


def _stated(body: bytes, speaker: Speaker | None) -> Readable:
    """Return who the bytes and their credential say that they are from."""
    said = readable(body)
    if speaker is not None and speaker.tenant_id is not None:
        return said._replace(tenant_id=said.tenant_id or speaker.tenant_id)
    return said


_PARTS: Final = (("data.tenant_id", "tenant_id"), ("source", "source"), ("id", "event_id"))


def _hold_identity(dead_letter_id: int, before: Readable, after: Readable, *, is_readable: bool) -> None:
    if not is_readable:
        raise FixRefused(
            f"dead letter {dead_letter_id}: its own identity cannot be read, so nothing shows that the new bytes keep it:"
            " allow another identity (--other-identity, other_identity over HTTP), with a reason"
        )
    for path, name in _PARTS:
        stated, given = getattr(before, name), getattr(after, name)
        if stated is not None and given != stated:
            raise FixRefused(
                f"dead letter {dead_letter_id}: {path} would change from {stated!r:.80} to {given!r:.80}:"
                " that is another event; allow another identity (--other-identity, other_identity over HTTP), with a reason"
            )


def _set(dead_letter_id: int, event: dict[str, Any], path: str, value: Any) -> None:
    *above, last = path.split(".")
    holder: Any = event
    for name in above:
        if name not in holder:
            holder[name] = {}
        holder = holder[name]
        if type(holder) is not dict:
            raise FixRefused(f"dead letter {dead_letter_id}: {path}: {name} is no object")
    if value is not msgspec.UNSET:
        holder[last] = value
    elif holder.pop(last, msgspec.UNSET) is msgspec.UNSET:
        raise FixRefused(f"dead letter {dead_letter_id}: {path}: is not there")


def _differing(before: Any, after: Any, path: str = "") -> list[str]:
    """List the paths at which two values differ."""
    if type(before) is dict and type(after) is dict:
        return [
            found
            for name in sorted({*before, *after})
            for found in _differing(
                before.get(name, msgspec.UNSET), after.get(name, msgspec.UNSET), f"{path}.{name}" if path else name
            )
        ]
    return [] if before == after and type(before) is type(after) else [path]


def pretty(body: bytes) -> str | None:
    """Return an event as JSON with a field on each line, every number digit for digit; None where it is no JSON."""
    try:
        value = decode_any(body)
    except UNDECODABLE:
        return None
    return msgspec.json.format(_ENCODE(value), indent=2).decode()


def value_at(body: bytes, path: str) -> Any:
    """Return what stands at a path such as `data.usage.prompt_tokens`; UNSET where nothing does."""
    value: Any = _decoded(body)
    for name in path.split("."):
        if type(value) is not dict or name not in value:
            return msgspec.UNSET
        value = value[name]
    return value


def field_of(detail: str) -> str | None:
    """Return the field that a refusal names, such as `data.model`; None where it names none."""
    field, separator, _ = detail.partition(": ")
    names = field.split(".")
    return field if separator and all(name.isidentifier() for name in names) else None


# --- What is said, beside what was accepted ---------------------------------------------------------------------------


async def said_by(connection: Connection, record: DeadLetterRecord, body: bytes) -> dict[str, Any] | None:
    """Return what a dead letter would be posted as by today's parties, by an entry's column; None where it is refused."""
    books = await load_books(connection)
    speaker = (await _speakers(connection, [record.origin])).get(record.origin)
    items = read_events(body, books.parties, time.time_ns() // 1000, speaker)
    if len(items) != 1 or not isinstance(items[0], Statement):
        return None
    statement = items[0]
    said: dict[str, Any] = dict(zip(DIMENSIONS, statement.dimensions, strict=True))
    said["occurred_at"] = from_micros(statement.occurred_at).isoformat()
    said["is_final"], said["revision"] = statement.is_final, statement.revision
    for part in statement.parts:
        for meter, count in (part.quantities or {}).items():
            said[meter] = said.get(meter, 0) + count
    return {name: value for name, value in said.items() if value is not None}


async def content_of(connection: Connection, dead_letter_id: int) -> Statement:
    """Return what the bytes of a conflict say, for a person who lets them count.

    Errors: `Unknown`; `ActRefused` where the letter is no conflict, is resolved, or has lost its bytes, and where its bytes,
    read by today's records and parties, say something else than what came into conflict.
    """
    found = await find_dead_letters(connection, [dead_letter_id])
    if dead_letter_id not in found:
        raise Unknown("dead letter", str(dead_letter_id))
    record, body = found[dead_letter_id]
    if record.reason != "conflict":
        raise ActRefused(
            f"dead letter {dead_letter_id} is no conflict but {record.reason}: release it with dead-letters replay"
        )
    if record.resolved_at is not None and record.resolution != "accepted":
        raise ActRefused(f"dead letter {dead_letter_id} is resolved already: {record.resolution or 'resolved'}")
    if body is None:
        raise ActRefused(f"the bytes of dead letter {dead_letter_id} have expired")
    books = await load_books(connection)
    speaker = (await _speakers(connection, [record.origin])).get(record.origin)
    items = read_events(body, books.parties, micros(record.first_at), speaker)
    said = items[0] if len(items) == 1 else None
    if not isinstance(said, Statement):
        why = said.refused.detail if isinstance(said, DeadLetter) else "it is no report of a request"
        raise ActRefused(f"dead letter {dead_letter_id}: {why}")
    if (said.event_key, said.content_hash) != (record.event_key, record.second_hash):
        raise ActRefused(f"dead letter {dead_letter_id}: read today, its bytes say something else than when they came")
    return said


# --- Releasing --------------------------------------------------------------------------------------------------------


async def replay(
    connection: Connection,
    writer_url: str,
    dead_letter_ids: Sequence[int],
    *,
    actor: str,
    reason: str | None = None,
    fix: Fix | None = None,
    on_done: Callable[[Replayed], None] = lambda _: None,
) -> list[Replayed]:
    """Release dead letters through the reader and `post`, in the order given; return what became of each.

    Each batch notes what came of its letters in its own transaction, so a release that is broken off goes on where it was.
    A letter that cannot be released is `kept`, and says why. `connection` reads letters as the operator. Errors: `FixRefused`
    where a fix has no reason; `ActRefused` where others are at it for a minute; what `Intake.post` raises.
    """
    if fix is not None and not (reason or "").strip():
        raise FixRefused("a dead letter that is mended needs a reason")
    done: list[Replayed] = []

    def note(replayed: Replayed) -> None:
        done.append(replayed)
        on_done(replayed)

    async with _alone(connection):
        at = 0
        while at < len(dead_letter_ids):
            wanted = list(dict.fromkeys(dead_letter_ids[at : at + _LETTERS_AT_ONCE]))
            at += _LETTERS_AT_ONCE
            async for replayed in _replay_some(connection, writer_url, wanted, actor, reason, fix):
                note(replayed)
    return done


@asynccontextmanager
async def _alone(connection: Connection) -> AsyncIterator[None]:
    """Hold the lock of releases; ask for it again and again, since a wait inside the database would hold a snapshot."""
    deadline = time.monotonic() + _WAIT_SECONDS
    while True:
        cursor = await connection.execute("select pg_try_advisory_lock(%s)", [_LOCK])
        row = await cursor.fetchone()
        if row is not None and row[0]:
            break
        if time.monotonic() > deadline:
            raise ActRefused("somebody else is releasing dead letters: try again once that is done")
        await asyncio.sleep(0.1)
    try:
        yield
    finally:
        if not connection.closed:
            await connection.execute("select pg_advisory_unlock(%s)", [_LOCK])


async def _replay_some(
    connection: Connection,
    writer_url: str,
    dead_letter_ids: Sequence[int],
    actor: str,
    reason: str | None,
    fix: Fix | None,
) -> AsyncIterator[Replayed]:
    found = await find_dead_letters(connection, dead_letter_ids)
    speakers = await _speakers(connection, sorted({record.origin for record, _ in found.values()}))
    messages: list[Message] = []
    size = 0
    for dead_letter_id in dead_letter_ids:
        if dead_letter_id not in found:
            yield Replayed(dead_letter_id, "kept", "unknown", f"there is no dead letter {dead_letter_id}")
            continue
        record, body = found[dead_letter_id]
        message = _message(record, body, actor, reason, fix, speakers.get(record.origin))
        if isinstance(message, Replayed):
            yield message
            continue
        messages.append(message)
        size += len(message.body)
        if size > _BYTES_AT_ONCE:
            for replayed in await _post(writer_url, messages):
                yield replayed
            messages, size = [], 0
    if messages:
        for replayed in await _post(writer_url, messages):
            yield replayed


def _message(
    record: DeadLetterRecord,
    body: bytes | None,
    actor: str,
    reason: str | None,
    fix: Fix | None,
    speaker: Speaker | None,
) -> Message | Replayed:
    """Return what is sent to `post`, or why nothing is."""
    letter = record.dead_letter_id
    if record.resolved_at is not None:
        return Replayed(
            letter, "resolved", record.resolution, f"by {record.resolved_by or 'somebody'} at {record.resolved_at}"
        )
    if record.reason == "conflict" and fix is None:
        return Replayed(
            letter,
            "conflict",
            "conflict",
            f"what was accepted under its identity stands: `tallystick corrections accept --letter {letter}` takes the other content"
            " over; else resolve it",
        )
    changed: tuple[str, ...] = ()
    if fix is not None:
        try:
            made = mended(letter, body or b"", fix, speaker)
        except FixRefused as refusal:
            return Replayed(letter, "kept", "fix_refused", str(refusal))
        body, changed = made.body, made.changed
        if fix.body is not None:
            changed = (*changed, f"sha256:{hashlib.sha256(body).hexdigest()}")
    if body is None:
        return Replayed(letter, "kept", "bytes_expired", "its bytes have expired: only the whole event can be given")
    events = len(event_bodies(body))
    if events == 0:
        return Replayed(letter, "kept", "no_event", "its bytes hold no event: resolve it")
    release = Release(letter, actor, reason, changed, events)
    return Message(body, time.time_ns() // 1000, record.origin, speaker=speaker, release=release)


async def _speakers(connection: Connection, origins: Sequence[str]) -> dict[str, Speaker]:
    """Return by origin whose credential it was, whether or not it is still in force: what it brought stays its word."""
    cursor = await connection.execute(
        "select key_id, tenant_id, source from ledger.api_keys"
        " where key_id = any(%s) and num_nonnulls(tenant_id, source) = 1",
        [list(origins)],
    )
    return {key_id: Speaker(tenant_id, source) for key_id, tenant_id, source in await cursor.fetchall()}


async def _post(writer_url: str, messages: Sequence[Message]) -> list[Replayed]:
    """Post releases as one reading; once more where another process claimed the feed in between."""
    tries = 0
    while True:
        connection = await connect(writer_url)
        try:
            held = await feeds.claim(connection, "commands", FEED)
        finally:
            await connection.close()
        intake = await Intake.open(writer_url, held, patience=_PATIENCE_SECONDS)
        try:
            reading = await intake.read(messages)
            posted = await intake.post(reading)
            return _told(reading, posted.results, posted.batch_id)
        except Fenced:
            tries += 1
            if tries == _TRIES:
                raise
        finally:
            await intake.close()


def _told(reading: Reading, results: Sequence[Any], batch_id: int) -> list[Replayed]:
    by_message: dict[int, list[int]] = {}
    for index, (number, _) in enumerate(reading.places):
        by_message.setdefault(number, []).append(index)
    latest = time.time_ns() // 1000 + AHEAD_MAX
    told = []
    for number, indexes in by_message.items():
        release = reading.messages[number].release
        assert release is not None
        in_future = any(
            isinstance(item, Statement) and item.occurred_at > latest for item in (reading.items[n] for n in indexes)
        )
        if release.is_split:
            counts: dict[str, int] = {}
            for index in indexes:
                counts[results[index].outcome] = counts.get(results[index].outcome, 0) + 1
            told.append(
                Replayed(release.dead_letter_id, "split", batch_id=batch_id, results=counts, is_in_future=in_future)
            )
            continue
        result = results[indexes[0]]
        told.append(
            Replayed(
                release.dead_letter_id, result.outcome, result.reason, result.detail, batch_id, is_in_future=in_future
            )
        )
    return told


def parse_set(text: str) -> tuple[str, Any]:
    """Read `path=text` or, for anything else than a text, `path:=json`.

    Errors: `FixRefused`.
    """
    path, separator, value = text.partition("=")
    if not separator or not path.rstrip(":"):
        raise FixRefused(f"{text!r} is neither path=text nor path:=json")
    if not path.endswith(":"):
        return path, value
    try:
        return path[:-1], decode_any(value.encode())
    except UNDECODABLE as error:
        raise FixRefused(f"{path[:-1]}: {value!r} is no JSON: {error}") from None
