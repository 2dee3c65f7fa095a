"""Dead letters: what was acknowledged and could not be posted, searched, looked after, and released by a person.

The bytes are never changed. A release goes through the reader and `post` like any message; what came of it is noted on the
letter in the transaction that posts it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, Literal, NamedTuple

import msgspec
from psycopg.rows import class_row

from ledger.database import Connection, record_act
from ledger.errors import ActRefused, Unknown

State = Literal["open", "resolved", "all"]

ACCEPTED: Final = frozenset({"created", "duplicate", "evidence"})
"""Outcomes after which a letter is done with."""
_TEXT_MAX: Final = 256
_SEQUENCE_MAX: Final = 2**63 - 1


# --- Who sent it ------------------------------------------------------------------------------------------------------


class Readable(NamedTuple):
    """Whose bytes these are, as far as they say so."""

    tenant_id: str | None = None
    source: str | None = None
    event_id: str | None = None
    sequence: int | None = None


_DECODE: Final = msgspec.json.Decoder().decode


def readable(body: bytes) -> Readable:
    """Return who the bytes of one event say that they are from; None for what cannot be read, or not be stored."""
    try:
        value = _DECODE(body)
    except (ValueError, ArithmeticError, RecursionError):
        return Readable()
    if type(value) is not dict:
        return Readable()
    data = value.get("data")
    if type(data) is not dict:
        data = {}
    sequence = data.get("sequence")
    is_counter = type(sequence) is int and 0 <= sequence <= _SEQUENCE_MAX
    return Readable(
        _storable(data.get("tenant_id")),
        _storable(value.get("source")),
        _storable(value.get("id")),
        sequence if is_counter else None,
    )


def _storable(value: Any) -> str | None:
    return value if type(value) is str and 0 < len(value) <= _TEXT_MAX and "\0" not in value else None


# --- Searching --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeadLetterRecord:
    """A dead letter without its bytes."""

    dead_letter_id: int
    reason: str
    detail: str
    origin: str
    feed: str
    """What brought it first: for Kafka with topic id and partition."""
    position: int | None
    sent_tenant_id: str | None
    """As the bytes say, or else as the credential that brought them does."""
    source: str | None
    event_id: str | None
    sequence: int | None
    byte_count: int | None
    """None once the bytes have expired."""
    first_at: datetime
    last_at: datetime
    repeats: int
    event_key: str | None
    first_hash: str | None
    second_hash: str | None
    batch_id: int
    owner: str | None
    note: str | None
    resolved_at: datetime | None
    resolution: str | None
    resolved_batch_id: int | None
    resolved_by: str | None


@dataclass(frozen=True, slots=True)
class Search:
    """Which dead letters are meant; what is left out does not matter."""

    state: State = "open"
    reason: str | None = None
    origin: str | None = None
    tenant_id: str | None = None
    source: str | None = None
    owner: str | None = None
    """The empty text: those that nobody looks after."""
    since: datetime | None = None
    """Came last at this instant or later."""
    until: datetime | None = None
    """Came first before this instant."""
    text: str | None = None
    """Stands in the detail, capitals or not."""

    def is_everything(self) -> bool:
        """Say whether it leaves no letter out but by its state."""
        return replace(self, state="open") == Search()


_SELECT: Final = """
select
    d.dead_letter_id, d.reason, d.detail, d.origin, f.name as feed, d.position,
    coalesce(d.sent_tenant_id, k.tenant_id) as sent_tenant_id, coalesce(d.source, k.source) as source, d.event_id, d.sequence,
    ledger.dead_letter_size(d.dead_letter_id) as byte_count, d.first_at, d.last_at, d.repeats, d.event_key::text, d.first_hash::text,
    d.second_hash::text, d.batch_id, d.owner, d.note, d.resolved_at, d.resolution, d.resolved_batch_id, d.resolved_by
from ledger.dead_letters as d
join ledger.batches as b on b.batch_id = d.batch_id
join ledger.feeds as f on f.feed_id = b.feed_id
left join ledger.api_keys as k on k.key_id = d.origin
"""

_WHERE: Final = """
where (%(state)s = 'all' or (d.resolved_at is null) = (%(state)s = 'open'))
    and (%(reason)s::text is null or d.reason = %(reason)s)
    and (%(origin)s::text is null or d.origin = %(origin)s)
    and (%(tenant_id)s::text is null or coalesce(d.sent_tenant_id, k.tenant_id) = %(tenant_id)s)
    and (%(source)s::text is null or coalesce(d.source, k.source) = %(source)s)
    and (%(owner)s::text is null or coalesce(d.owner, '') = %(owner)s)
    and (%(since)s::timestamptz is null or d.last_at >= %(since)s)
    and (%(until)s::timestamptz is null or d.first_at < %(until)s)
    and (%(text)s::text is null or strpos(lower(d.detail), lower(%(text)s)) > 0)
"""


def _parameters(search: Search) -> dict[str, Any]:
    return {name: getattr(search, name) for name in search.__dataclass_fields__}


async def list_dead_letters(
    connection: Connection, search: Search | None = None, *, before: int | None = None, limit: int = 50
) -> Sequence[DeadLetterRecord]:
    """List dead letters, the newest first; `before` is the id with which the page before ended."""
    async with connection.cursor(row_factory=class_row(DeadLetterRecord)) as cursor:
        # The open ones have an index of their own, which a plan for any state could not use.
        await cursor.execute(
            f"{_SELECT} {_where(search or Search())}"
            " and (%(before)s::bigint is null or d.dead_letter_id < %(before)s)"
            " order by d.dead_letter_id desc limit %(limit)s",
            {**_parameters(search or Search()), "before": before, "limit": limit},
        )
        return await cursor.fetchall()


def _where(search: Search) -> str:
    return f"{_WHERE} and d.resolved_at is null" if search.state == "open" else _WHERE


async def search_ids(connection: Connection, search: Search) -> list[int]:
    """Return the ids of all dead letters that are meant, the oldest first: in this order they are released."""
    cursor = await connection.execute(
        "select d.dead_letter_id from ledger.dead_letters as d left join ledger.api_keys as k on k.key_id = d.origin"
        f" {_where(search)} order by d.dead_letter_id",
        _parameters(search),
    )
    return [row[0] for row in await cursor.fetchall()]


async def count_by_reason(connection: Connection) -> dict[str, int]:
    """Return how many dead letters wait for a person, by reason, the most frequent first."""
    cursor = await connection.execute(
        "select reason, count(*) from ledger.dead_letters where resolved_at is null group by reason order by 2 desc, 1"
    )
    return dict(await cursor.fetchall())


async def find_dead_letter(connection: Connection, dead_letter_id: int) -> tuple[DeadLetterRecord, bytes | None]:
    """Return a dead letter and its bytes as they were received; None once they have expired."""
    found = await find_dead_letters(connection, [dead_letter_id])
    if dead_letter_id not in found:
        raise Unknown("dead letter", str(dead_letter_id))
    return found[dead_letter_id]


async def find_dead_letters(
    connection: Connection, dead_letter_ids: Sequence[int]
) -> dict[int, tuple[DeadLetterRecord, bytes | None]]:
    """Return by id the dead letters that there are, with their bytes."""
    records = await read_dead_letters(connection, dead_letter_ids)
    read = await connection.execute(
        "select w.id, ledger.dead_letter_bytes(w.id) from unnest(%s::bigint[]) as w (id)", [list(dead_letter_ids)]
    )
    bodies = {row[0]: None if row[1] is None else bytes(row[1]) for row in await read.fetchall()}
    return {letter_id: (record, bodies[letter_id]) for letter_id, record in records.items()}


async def read_dead_letters(connection: Connection, dead_letter_ids: Sequence[int]) -> dict[int, DeadLetterRecord]:
    """Return by id the dead letters that there are."""
    async with connection.cursor(row_factory=class_row(DeadLetterRecord)) as cursor:
        await cursor.execute(f"{_SELECT} where d.dead_letter_id = any(%s)", [list(dead_letter_ids)])
        return {record.dead_letter_id: record for record in await cursor.fetchall()}


@dataclass(frozen=True, slots=True)
class LetterAct:
    """What a person did with a dead letter."""

    at: datetime
    actor: str
    act: str
    detail: Mapping[str, Any]
    reason: str | None


async def acts_on(connection: Connection, dead_letter_id: int) -> Sequence[LetterAct]:
    """List what was done with a dead letter, the oldest first."""
    async with connection.cursor(row_factory=class_row(LetterAct)) as cursor:
        await cursor.execute(
            "select at, actor, act, detail - 'letters' || jsonb_build_object('letter', detail -> 'letters' -> %(id)s) as detail,"
            " reason from ledger.acts"
            " where starts_with(act, 'dead_letters.') and jsonb_exists(detail -> 'letters', %(id)s) order by act_id",
            {"id": str(dead_letter_id)},
        )
        return await cursor.fetchall()


@dataclass(frozen=True, slots=True)
class Accepted:
    """A row of what was accepted under an identity before its conflict came."""

    entry_id: int
    kind: str
    recorded_at: datetime
    values: Mapping[str, Any]
    """Columns of the entry by name, without those that are null."""


async def accepted_under(connection: Connection, event_key: str) -> Sequence[Accepted]:
    """Return the rows that the event with a key was posted as; none for a node's report about itself."""
    cursor = await connection.execute(
        "select e.entry_id, e.kind, e.recorded_at, jsonb_strip_nulls(to_jsonb(e))::text as values"
        " from ledger.event_keys as k"
        " join ledger.batch_digests as d on d.batch_id = k.batch_id"
        " join ledger.entries as e on e.posting_period = d.posting_period"
        " and e.entry_id >= k.batch_id * 65536 and e.entry_id < (k.batch_id + 1) * 65536 and e.event_key = k.key"
        " where k.key = %s order by e.entry_id",
        [event_key],
    )
    # As text, since the driver would make floats of amounts.
    return [
        Accepted(entry_id, kind, recorded_at, json.loads(values, parse_float=Decimal))
        for entry_id, kind, recorded_at, values in await cursor.fetchall()
    ]


# --- Looking after ----------------------------------------------------------------------------------------------------


async def assign(connection: Connection, dead_letter_ids: Sequence[int], owner: str | None, *, actor: str) -> None:
    """Say who looks after dead letters; None: nobody does. Errors: `Unknown`."""
    async with connection.transaction():
        await _existing(connection, dead_letter_ids)
        await connection.execute(
            "update ledger.dead_letters set owner = %s where dead_letter_id = any(%s)", [owner, list(dead_letter_ids)]
        )
        await record_act(
            connection, actor, "dead_letters.assign", {"letters": _each(dead_letter_ids, "assigned"), "owner": owner}
        )


async def note(connection: Connection, dead_letter_id: int, text: str, *, actor: str) -> None:
    """Write down what was found out about a dead letter, in place of what stood there; acts keep the older. Errors: `Unknown`."""
    async with connection.transaction():
        await _existing(connection, [dead_letter_id])
        await connection.execute(
            "update ledger.dead_letters set note = %s where dead_letter_id = %s", [text, dead_letter_id]
        )
        await record_act(
            connection, actor, "dead_letters.note", {"letters": _each([dead_letter_id], "noted"), "note": text}
        )


async def dismiss(connection: Connection, dead_letter_ids: Sequence[int], *, actor: str, reason: str) -> None:
    """Resolve dead letters of which nothing is to be posted. Errors: `Unknown`, `ActRefused` where one is resolved."""
    async with connection.transaction():
        for dead_letter_id, resolution in (await _existing(connection, dead_letter_ids)).items():
            if resolution is not None:
                raise ActRefused(f"dead letter {dead_letter_id} is resolved already: {resolution}")
        await connection.execute(
            "update ledger.dead_letters set resolved_at = clock_timestamp(), resolution = 'dismissed', resolved_by = %s"
            " where dead_letter_id = any(%s)",
            [actor, list(dead_letter_ids)],
        )
        await record_act(
            connection, actor, "dead_letters.dismiss", {"letters": _each(dead_letter_ids, "dismissed")}, reason
        )


def _each(dead_letter_ids: Sequence[int], what: str) -> dict[str, str]:
    return {str(dead_letter_id): what for dead_letter_id in dead_letter_ids}


async def _existing(connection: Connection, dead_letter_ids: Sequence[int]) -> dict[int, str | None]:
    """Lock dead letters, in order; return their resolutions. Errors: `Unknown`."""
    cursor = await connection.execute(
        "select dead_letter_id, case when resolved_at is not null then coalesce(resolution, 'resolved') end"
        " from ledger.dead_letters where dead_letter_id = any(%s) order by dead_letter_id for update",
        [list(dead_letter_ids)],
    )
    found: dict[int, str | None] = dict(await cursor.fetchall())
    for dead_letter_id in dead_letter_ids:
        if dead_letter_id not in found:
            raise Unknown("dead letter", str(dead_letter_id))
    return found


# --- Releasing, inside the transaction that posts ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Release:
    """A person's word that the bytes of a dead letter, as they are or mended, go to `post`."""

    dead_letter_id: int
    actor: str
    reason: str | None
    changed: tuple[str, ...] = ()
    """The fields that were mended; none where it goes as it is."""
    event_count: int = 1
    """How many events the bytes hold: a message that was set aside unread may hold many."""
    place: int = 0
    """Which of them this is."""

    @property
    def is_split(self) -> bool:
        return self.event_count > 1

    def at(self, place: int) -> "Release":
        """Return the release of one of its events."""
        return self if place == self.place else replace(self, place=place)


@dataclass(frozen=True, slots=True)
class Released:
    """What has become of an event that was released."""

    release: Release
    outcome: str
    reason: str | None
    detail: str | None
    event_key: str | None
    """This and the hashes: of a conflict."""
    first_hash: str | None
    second_hash: str | None


async def note_released(connection: Connection, released: Sequence[Released], *, batch_id: int, at: datetime) -> None:
    """Note on dead letters what came of their release, and write down the act: part of the transaction that posts.

    One that was accepted is resolved. One that is refused again stays open and says what stands in the way now, unless its
    bytes were mended: then it still says what is wrong with its own. One of many events is resolved with the last of them,
    since what is refused of it has become letters of its own.
    """
    for each in sorted(released, key=lambda one: one.release.dead_letter_id):
        release = each.release
        if release.is_split and release.place < release.event_count - 1:
            continue
        resolution = "split" if release.is_split else each.outcome if each.outcome in ACCEPTED else None
        if resolution is not None:
            await connection.execute(
                "update ledger.dead_letters set resolved_at = %s, resolution = %s, resolved_batch_id = %s, resolved_by = %s"
                " where dead_letter_id = %s and resolved_at is null",
                [at, resolution, batch_id, release.actor, release.dead_letter_id],
            )
        elif not release.changed:
            await connection.execute(
                "update ledger.dead_letters set reason = %s, detail = %s, event_key = %s, first_hash = %s, second_hash = %s"
                " where dead_letter_id = %s",
                [each.reason, each.detail, each.event_key, each.first_hash, each.second_hash, release.dead_letter_id],
            )
    # One act for each person's word, with what came of each letter.
    acts: dict[tuple[str, str | None, tuple[str, ...]], dict[str, str]] = {}
    for each in released:
        release = each.release
        letters = acts.setdefault((release.actor, release.reason, release.changed), {})
        said = "split" if release.is_split else each.outcome
        letters[str(release.dead_letter_id)] = f"{said}: {each.reason}" if each.reason and said != "split" else said
    for (actor, reason, changed), letters in acts.items():
        detail: dict[str, Any] = {"letters": letters, "batch_id": batch_id}
        if changed:
            detail["changed"] = list(changed)
        await record_act(connection, actor, "dead_letters.replay", detail, reason)
