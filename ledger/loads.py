"""Loads: files of usage that are staged whole, shown, posted and, if need be, taken back as one.

A load is a registered source of kind `load` with a rank and tenants of its own, and a feed of its own. Its id is part of both
names and of every event's identity, so that a corrected file is a new load and its events are new events.
"""

import re
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

import msgspec
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from ledger import registry
from ledger.approvals import Awaiting, second_person
from ledger.database import Connection, record_act
from ledger.errors import ActRefused, AlreadyThere, Unknown

State = Literal["created", "loaded", "committing", "committed", "reverting", "reverted"]

_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}").fullmatch
KIND: Final = "load"


def source_of(load_id: str) -> str:
    """Return the source of a load's events, which is also the name of its feed."""
    return f"load:{load_id}"


def revert_feed_of(load_id: str) -> str:
    """Return the name of the feed on which a load is taken back."""
    return f"load:{load_id}:revert"


@dataclass(frozen=True, slots=True)
class LoadRecord:
    """A load and how far it has come."""

    load_id: str
    source: str
    state: State
    actor: str
    reason: str
    rank: int
    tenants: Sequence[str]
    """Empty: all of them."""
    files: Sequence[Mapping[str, Any]]
    row_count: int
    refused_count: int
    without_refused: bool
    posted_count: int
    """Rows that its feed has posted."""
    created_at: datetime
    loaded_at: datetime | None
    previewed_at: datetime | None
    commit_started_at: datetime | None
    committed_at: datetime | None
    revert_started_at: datetime | None
    reverted_at: datetime | None
    preview: Mapping[str, Any] | None


_SELECT: Final = """
select
    l.load_id, l.source, l.state, l.actor, l.reason, s.rank,
    array(select t.tenant_id from ledger.source_tenants as t where t.source = l.source order by 1) as tenants,
    l.files, l.row_count, l.refused_count, l.without_refused, coalesce(f.next_position, 0) as posted_count,
    l.created_at, l.loaded_at, l.previewed_at, l.commit_started_at, l.committed_at, l.revert_started_at, l.reverted_at,
    l.preview
from ledger.loads as l
join ledger.sources as s using (source)
left join ledger.feeds as f on f.name = l.source
"""


async def read_load(connection: Connection, load_id: str) -> LoadRecord:
    """Return a load; raise Unknown where there is none of that id."""
    async with connection.cursor(row_factory=class_row(LoadRecord)) as cursor:
        await cursor.execute(f"{_SELECT} where l.load_id = %s", [load_id])
        found = await cursor.fetchone()
    if found is None:
        raise Unknown("load", load_id)
    return found


async def list_loads(connection: Connection) -> list[LoadRecord]:
    """List loads, the newest first."""
    async with connection.cursor(row_factory=class_row(LoadRecord)) as cursor:
        await cursor.execute(f"{_SELECT} order by l.created_at desc, l.load_id")
        return await cursor.fetchall()


async def create_load(
    connection: Connection,
    actor: str,
    load_id: str,
    *,
    rank: int,
    reason: str,
    speaks_for_all: bool = False,
    tenant_ids: Sequence[str] = (),
) -> None:
    """Make a load: its source is registered with the rank and the tenants that are stated here, and never again."""
    if _ID(load_id) is None:
        raise ActRefused(f"load {load_id!r}: an id is letters, digits, dots, dashes and underscores, 64 at most")
    if not reason.strip():
        raise ActRefused("a load needs a reason: it stands beside what it posts")
    async with connection.transaction():
        cursor = await connection.execute("select from ledger.loads where load_id = %s", [load_id])
        if await cursor.fetchone() is not None:
            raise AlreadyThere("load", load_id)
        await registry.add_source(
            connection,
            actor,
            source_of(load_id),
            kind=KIND,
            rank=rank,
            speaks_for_all=speaks_for_all,
            tenant_ids=tenant_ids,
        )
        await connection.execute(
            "insert into ledger.loads (load_id, source, actor, reason) values (%s, %s, %s, %s)",
            [load_id, source_of(load_id), actor, reason],
        )
        await record_act(connection, actor, "backfill.create", {"load": load_id, "rank": rank}, reason)


# --- Staging ----------------------------------------------------------------------------------------------------------


class StagedRow(msgspec.Struct, frozen=True, gc=False):
    """One row of a file: an event, or the row as it was read and why it is none."""

    row_no: int
    body: bytes
    event_key: str | None = None
    content_hash: str | None = None
    request_key: str | None = None
    reason: str | None = None
    detail: str | None = None


@asynccontextmanager
async def locked(connection: Connection, load_id: str, *states: State) -> AsyncIterator[LoadRecord]:
    """Run a transaction in which nobody else moves the load; raise ActRefused where it is in none of these states."""
    async with connection.transaction():
        await connection.execute("select from ledger.loads where load_id = %s for update", [load_id])
        load = await read_load(connection, load_id)
        if load.state not in states:
            raise ActRefused(f"load {load_id} is {load.state}; this needs one that is {' or '.join(states)}")
        yield load


_COPY_ROWS: Final = (
    "copy ledger.load_rows (load_id, position, file_no, row_no, body, reason, detail, event_key, content_hash, request_key)"
    " from stdin"
)


async def stage(connection: Connection, load: LoadRecord, position: int, rows: Iterable[StagedRow]) -> int:
    """Write rows of the load's next file from a position on, inside the caller's transaction; return how many."""
    file_no = len(load.files)
    lines = [
        f"{load.load_id}\t{at}\t{file_no}\t{row.row_no}\t\\\\x{row.body.hex()}\t{_text(row.reason)}\t{_text(row.detail)}\t"
        f"{row.event_key or _NULL}\t{row.content_hash or _NULL}\t{row.request_key or _NULL}\n"
        for at, row in enumerate(rows, position)
    ]
    async with connection.cursor().copy(_COPY_ROWS) as copy:
        await copy.write("".join(lines).encode())
    return len(lines)


_NULL: Final = "\\N"
_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\0": "\ufffd"})


def _text(text: str | None) -> str:
    return _NULL if text is None else text.translate(_ESCAPES)


# Nobody knows which of two rows under one id is meant, so both are refused.
_REFUSE_TWICE: Final = """
with twice as (
    select event_key
    from ledger.load_rows
    where load_id = %(load_id)s and event_key is not null
    group by event_key
    having min(content_hash::text) <> max(content_hash::text)
)

update ledger.load_rows as r
set
    reason = 'duplicate_id',
    detail = format('%%s row %%s: id: stands on another row of this load with other content', f.names ->> r.file_no, r.row_no),
    event_key = null,
    content_hash = null,
    request_key = null
from twice as t
cross join (select %(names)s::jsonb as names) as f
where r.load_id = %(load_id)s and r.event_key = t.event_key
"""


async def finish_file(connection: Connection, load: LoadRecord, actor: str, file: Mapping[str, Any]) -> LoadRecord:
    """Record a file whose rows are staged, refuse rows that share an id and differ, and forget what a preview said."""
    files = [*load.files, dict(file)]
    await connection.execute(_REFUSE_TWICE, {"load_id": load.load_id, "names": Jsonb([each["name"] for each in files])})
    await connection.execute(
        """
        update ledger.loads as l
        set
            state = 'loaded',
            files = %(files)s,
            row_count = c.rows,
            refused_count = c.refused,
            loaded_at = clock_timestamp(),
            preview = null,
            previewed_at = null
        from (
            select count(*) as rows, count(*) filter (where event_key is null) as refused
            from ledger.load_rows
            where load_id = %(load_id)s
        ) as c
        where l.load_id = %(load_id)s
        """,
        {"load_id": load.load_id, "files": Jsonb(files)},
    )
    await record_act(connection, actor, "backfill.load", {"load": load.load_id, **file})
    return await read_load(connection, load.load_id)


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """A row that is no event, and why; or what a preview says of one that will not be created."""

    file: str
    row_no: int
    reason: str
    detail: str | None


async def refused_rows(connection: Connection, load: LoadRecord, limit: int) -> list[RefusedRow]:
    """List the first refused rows of a load."""
    cursor = await connection.execute(
        "select file_no, row_no, reason, detail from ledger.load_rows where load_id = %s and reason is not null"
        " order by position limit %s",
        [load.load_id, limit],
    )
    return [RefusedRow(load.files[row[0]]["name"], row[1], row[2], row[3]) async for row in cursor]


async def refused_by_reason(connection: Connection, load_id: str) -> dict[str, int]:
    """Count the refused rows of a load by reason."""
    cursor = await connection.execute(
        "select reason, count(*) from ledger.load_rows where load_id = %s and reason is not null group by 1 order by 1",
        [load_id],
    )
    return dict(await cursor.fetchall())


async def repeated_keys(connection: Connection, load_id: str) -> frozenset[str]:
    """Return the keys of events and requests that several rows of a load speak of."""
    cursor = await connection.execute(
        """
        select event_key::text from ledger.load_rows where load_id = %(load_id)s and event_key is not null
        group by 1 having count(*) > 1
        union
        select request_key::text from ledger.load_rows where load_id = %(load_id)s and request_key is not null
        group by 1 having count(*) > 1
        """,
        {"load_id": load_id},
    )
    return frozenset([row[0] async for row in cursor])


async def rows_from(
    connection: Connection, load_id: str, position: int, count: int
) -> list[tuple[bytes, str | None, str | None]]:
    """Return rows from a position on, in order, as (body, reason, detail)."""
    cursor = await connection.execute(
        "select body, reason, detail from ledger.load_rows where load_id = %s and position >= %s and position < %s"
        " order by position",
        [load_id, position, position + count],
        binary=True,
    )
    return [(bytes(body), reason, detail) for body, reason, detail in await cursor.fetchall()]


async def note_outcomes(
    connection: Connection, load_id: str, start: int, end: int, others: Sequence[tuple[int, str, str | None]]
) -> None:
    """Write beside rows what a preview says of them; those of the span that are not named would be created."""
    async with connection.transaction():
        await connection.execute(
            "update ledger.load_rows set outcome = null, outcome_reason = null"
            " where load_id = %s and position >= %s and position < %s and outcome is not null",
            [load_id, start, end],
        )
        if others:
            await connection.execute(
                "update ledger.load_rows as r set outcome = o.outcome, outcome_reason = o.reason"
                " from unnest(%s::bigint[], %s::text[], %s::text[]) as o (position, outcome, reason)"
                " where r.load_id = %s and r.position = o.position",
                [
                    [position for position, _, _ in others],
                    [outcome for _, outcome, _ in others],
                    [reason for _, _, reason in others],
                    load_id,
                ],
            )


# --- From state to state ----------------------------------------------------------------------------------------------


async def note_preview(connection: Connection, load: LoadRecord, actor: str, preview: Mapping[str, Any]) -> None:
    """Keep what a preview said, unless rows were loaded meanwhile."""
    async with locked(connection, load.load_id, "loaded") as now:
        if now.loaded_at != load.loaded_at:
            raise ActRefused(f"load {load.load_id}: rows were loaded while it was previewed; preview it again")
        await connection.execute(
            "update ledger.loads set preview = %s, previewed_at = clock_timestamp() where load_id = %s",
            [Jsonb(preview), load.load_id],
        )
        await record_act(connection, actor, "backfill.preview", {"load": load.load_id})


async def start_commit(
    connection: Connection,
    actor: str,
    load_id: str,
    *,
    without_refused: bool = False,
    without_preview: bool = False,
    reason: str | None = None,
    needed: Collection[str] = (),
) -> LoadRecord | Awaiting:
    """Say that a load is to be posted; of one whose commit was interrupted, that it goes on.

    `needed`: the acts that the settings ask a second person for, who agrees to these very files.
    """
    async with locked(connection, load_id, "loaded", "committing") as load:
        if load.state == "committing":
            await record_act(connection, actor, "backfill.go_on", {"load": load_id}, reason)
            return load
        if load.refused_count and not without_refused:
            raise ActRefused(
                f"load {load_id} has {load.refused_count:,} refused rows: `backfill show` names them;"
                f" --without-refused commits the others and keeps these as dead letters"
            )
        if load.previewed_at is None and not without_preview:
            raise ActRefused(
                f"load {load_id} was not previewed since rows were loaded: `backfill preview` shows what it would do"
            )
        detail = {
            "load": load_id,
            "rows": load.row_count,
            "refused": load.refused_count,
            "files": [file["sha256"] for file in load.files],
        }
        verdict = await second_person(connection, needed, "backfill.commit", detail, actor=actor, reason=reason)
        if isinstance(verdict, Awaiting):
            return verdict
        await connection.execute(
            "update ledger.loads set state = 'committing', without_refused = %s, commit_started_at = clock_timestamp()"
            " where load_id = %s",
            [without_refused and load.refused_count > 0, load_id],
        )
        await record_act(connection, actor, "backfill.commit", detail, reason, verdict.second_person)
        return await read_load(connection, load_id)


async def end_commit(connection: Connection, load: LoadRecord, actor: str) -> None:
    """Say that all rows of a load are posted; from here on its source says nothing more."""
    async with connection.transaction():
        await registry.end_source(connection, actor, load.source, f"load {load.load_id} is committed")
        await connection.execute(
            "update ledger.loads set state = 'committed', committed_at = clock_timestamp() where load_id = %s",
            [load.load_id],
        )


async def start_revert(
    connection: Connection, actor: str, load_id: str, reason: str, needed: Collection[str] = ()
) -> LoadRecord | Awaiting:
    """Say that a load is taken back; one that was never committed ends at once, and its rows go.

    `needed` as in `start_commit`; nobody is asked where nothing was posted.
    """
    async with locked(connection, load_id, "created", "loaded", "committing", "committed", "reverting") as load:
        if load.state == "reverting":
            await record_act(connection, actor, "backfill.go_on", {"load": load_id}, reason)
            return load
        detail = {"load": load_id, "was": load.state}
        asked = needed if load.state in ("committing", "committed") else ()
        verdict = await second_person(connection, asked, "backfill.revert", detail, actor=actor, reason=reason)
        if isinstance(verdict, Awaiting):
            return verdict
        await record_act(connection, actor, "backfill.revert", detail, reason, verdict.second_person)
        if load.state in ("created", "loaded"):
            await connection.execute("delete from ledger.load_rows where load_id = %s", [load_id])
            await registry.end_source(connection, actor, load.source, f"load {load_id} is reverted")
            await connection.execute(
                "update ledger.loads set state = 'reverted', revert_started_at = clock_timestamp(),"
                " reverted_at = clock_timestamp() where load_id = %s",
                [load_id],
            )
        else:
            if load.state == "committing":
                await registry.end_source(connection, actor, load.source, f"load {load_id} is reverted")
            await connection.execute(
                "update ledger.loads set state = 'reverting', revert_started_at = clock_timestamp() where load_id = %s",
                [load_id],
            )
        return await read_load(connection, load_id)


async def end_revert(connection: Connection, load_id: str) -> None:
    """Say that all that a load moved is taken back."""
    await connection.execute(
        "update ledger.loads set state = 'reverted', reverted_at = clock_timestamp() where load_id = %s", [load_id]
    )


async def unsaid_sources(connection: Connection, load: LoadRecord) -> frozenset[str]:
    """Return the sources of loads that are taken back or being so, this one among them."""
    cursor = await connection.execute("select source from ledger.loads where state in ('reverting', 'reverted')")
    return frozenset({row[0] async for row in cursor} | {load.source})


async def ranks_of_sources(connection: Connection) -> dict[str, int]:
    """Return the rank of each source, those that have ended too."""
    cursor = await connection.execute("select source, rank from ledger.sources")
    return dict(await cursor.fetchall())
