"""Backfills: files of usage staged as a load, previewed against the real ledger, committed, taken back.

Rows are read by the same reader as every event and posted by the same `Intake`, on a feed of the load's own whose positions
are the rows: a commit that was interrupted goes on where it was. A preview decides the same rows by the same code without
a lock, and asks the budgets' own SQL what they would do.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import msgspec
from psycopg.rows import class_row

from ingest.intake import Intake, Message, Reading, ease_collection, read
from ingest.load_files import FileMapping, FileRow, LoadFileRefused, kind_of, rows_of, sha256_and_size
from ingest.usage_events import Speaker, read_events
from ledger import feeds, loads, reverting
from ledger.approvals import Awaiting
from ledger.books import Books, ensure_ids, load_books
from ledger.database import Connection, connect
from ledger.errors import ActRefused
from ledger.loads import LoadRecord, RefusedRow, StagedRow
from ledger.parties import Parties
from ledger.posting import COPY_ENTRIES, Rehearsal, rehearse
from ledger.statements import DeadLetter, Refused, Statement
from ledger.times import micros
from quotas.effects import WindowEffect, effects

AT_ONCE: Final = 5000
"""Rows of one batch."""
_PACK: Final = 500
"""Rows that are read as one message: a pack is decoded in one pass."""

Progress = Callable[[int], None]


def _nothing(_: int) -> None:
    return None


# --- Loading ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a file of a load held."""

    load_id: str
    file: str
    sha256: str
    rows: int
    refused: dict[str, int]
    """Reason to count, over all files of the load."""
    first_refused: list[RefusedRow]


async def load_file(
    connection: Connection,
    actor: str,
    load_id: str,
    path: Path,
    mapping: FileMapping,
    *,
    on_rows: Progress = _nothing,
) -> Loaded:
    """Stage a file's rows, all or none: each is an event that could be posted, or a refused row with field and rule.

    Errors: `LoadFileRefused` for a file that cannot be a load's; `ActRefused` where the load takes no more rows, or has this
    very file already.
    """
    kind_of(path)
    sha256, size = sha256_and_size(path)
    books = await load_books(connection)
    async with loads.locked(connection, load_id, "created", "loaded") as load:
        if any(file["sha256"] == sha256 for file in load.files):
            raise ActRefused(f"load {load_id} has this file already: {path.name}, SHA-256 {sha256}")
        received_at = micros(datetime.now().astimezone())
        position = load.row_count
        staged = 0
        for rows in rows_of(path, mapping, load.source):
            for start in range(0, len(rows), AT_ONCE):
                some = _staged(rows[start : start + AT_ONCE], books.parties, received_at, load.source, path.name)
                count = await loads.stage(connection, load, position + staged, some)
                staged += count
                on_rows(count)
        if not staged:
            raise LoadFileRefused(path.name, "holds no rows")
        file = {
            "name": path.name,
            "sha256": sha256,
            "bytes": size,
            "rows": staged,
            "mapping": msgspec.to_builtins(mapping),
        }
        load = await loads.finish_file(connection, load, actor, file)
    return Loaded(
        load_id,
        path.name,
        sha256,
        staged,
        await loads.refused_by_reason(connection, load_id),
        await loads.refused_rows(connection, load, 10),
    )


def _staged(rows: Sequence[FileRow], parties: Parties, received_at: int, source: str, file: str) -> list[StagedRow]:
    """Read rows as events; a row becomes an event or is refused with file, row, field and rule."""
    speaker = Speaker(source=source)
    staged: list[StagedRow] = []
    for start in range(0, len(rows), _PACK):
        some = rows[start : start + _PACK]
        said = iter(read_events(_pack([row.body for row in some if row.reason is None]), parties, received_at, speaker))
        alone: list[StagedRow] = []
        for row in some:
            item = next(said, None) if row.reason is None else None
            if isinstance(item, DeadLetter) and item.body != row.body:
                break
            alone.append(_as_staged(row, item, file))
        if len(alone) < len(some) or next(said, None) is not None:
            # Some bytes are no JSON, so that the pack was cut otherwise: each row is read by itself.
            alone = [
                _as_staged(
                    row,
                    None if row.reason else _only(read_events(_pack([row.body]), parties, received_at, speaker), row),
                    file,
                )
                for row in some
            ]
        staged += alone
    return staged


def _only(items: Sequence[Any], row: FileRow) -> Any:
    """Return what a row says; a row that holds several values, or none, is refused whole."""
    if len(items) == 1:
        return items[0]
    return DeadLetter(row.body, Refused("trailing_bytes", "the row holds more, or less, than one event"))


def _pack(bodies: Sequence[bytes]) -> bytes:
    return b"[" + b",".join(bodies) + b"]"


def _as_staged(row: FileRow, item: Any, file: str) -> StagedRow:
    if isinstance(item, Statement):
        if item.refused_if_new is not None:
            item = DeadLetter(row.body, item.refused_if_new)
        else:
            return StagedRow(row.row_no, row.body, item.event_key, item.content_hash, item.request_key)
    if isinstance(item, DeadLetter):
        row = row._replace(reason=item.refused.reason, detail=item.refused.detail)
    return StagedRow(row.row_no, row.body, reason=row.reason, detail=f"{file} row {row.row_no}: {row.detail}")


# --- Reading staged rows ----------------------------------------------------------------------------------------------


async def _messages(connection: Connection, load: LoadRecord, position: int) -> tuple[list[Message], int]:
    """Return the rows from a position on as messages, and the position after them."""
    assert load.loaded_at is not None, "only a load with rows is posted"
    received_at = micros(load.loaded_at)
    speaker = Speaker(source=load.source)
    messages: list[Message] = []
    run: list[bytes] = []

    def close(end: int) -> None:
        if run:
            messages.append(Message(_pack(run), received_at, load.source, end - len(run), speaker))
            run.clear()

    rows = await loads.rows_from(connection, load.load_id, position, AT_ONCE)
    for at, (body, reason, detail) in enumerate(rows, position):
        if reason is not None:
            close(at)
            refused = Refused(reason, detail or reason)
            messages.append(Message(body, received_at, load.source, at, speaker, refused=refused))
        else:
            run.append(body)
            if len(run) == _PACK:
                close(at + 1)
    close(position + len(rows))
    return messages, position + len(rows)


# --- Preview ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Amounts:
    """What would be posted for a tenant, the month in which the usage occurred, the month it would be billed in, a model."""

    tenant_id: str
    month: date
    posting_period: date
    model: str | None
    requests: int
    cost_currency: str | None
    cost: Decimal
    charge_currency: str | None
    charge: Decimal
    cost_unpriced: int
    """Requests without a cost."""
    charge_unpriced: int


@dataclass(frozen=True, slots=True)
class PeriodEffect:
    """What would be posted in a month of a tenant. Whoever keeps invoices says here which of them is for it."""

    tenant_id: str
    posting_period: date
    state: str
    grace_until: datetime
    rows: int
    late_rows: int
    """Of usage of an earlier month, which is closed or past its grace."""
    charge_currency: str | None
    charge: Decimal


@dataclass(slots=True)
class Preview:
    """What a commit would do, if nothing else happened in between."""

    load_id: str
    rows: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    """Reason to count of rows that were refused when they were loaded."""
    outcomes: dict[str, int] = field(default_factory=dict)
    """created, duplicate, evidence, conflict, dead_letter."""
    reasons: dict[str, int] = field(default_factory=dict)
    """Why, of those that are not created: `dead_letter: no_open_period`, `evidence: proposed`, ..."""
    true_ups: int = 0
    """Rows that beat a report which stands: they post the difference."""
    amounts: list[Amounts] = field(default_factory=list)
    periods: list[PeriodEffect] = field(default_factory=list)
    budgets: list[WindowEffect] = field(default_factory=list)


_SCRATCH: Final = "pg_temp.previewed"


async def preview(connection: Connection, load_id: str, actor: str, *, on_rows: Progress = _nothing) -> Preview:
    """Say what a commit of a load would do, decided row by row against the ledger as it is, without a lock.

    Keeps what it found on the load and beside each row that would not be created. Rows that were refused at loading are
    counted and take no part.
    """
    load = await loads.read_load(connection, load_id)
    if load.state != "loaded":
        raise ActRefused(f"load {load_id} is {load.state}; a preview needs one that is loaded")
    found = Preview(load_id, load.row_count, await loads.refused_by_reason(connection, load_id))
    books = await load_books(connection)
    rehearsal = Rehearsal(await loads.repeated_keys(connection, load_id))
    await connection.execute("create temporary table previewed (like ledger.entries)")
    try:
        position = 0
        while position < load.row_count:
            messages, following = await _messages(connection, load, position)
            await _preview_some(connection, load, messages, books, rehearsal, found)
            on_rows(following - position)
            position = following
        await connection.execute("analyze pg_temp.previewed")
        found.amounts = await _amounts(connection)
        found.periods = await _periods(connection)
        found.budgets = await effects(connection, _SCRATCH)
        found.true_ups = await _true_ups(connection)
    finally:
        await connection.execute("drop table pg_temp.previewed")
    await loads.note_preview(connection, load, actor, _plain(found))
    return found


async def _preview_some(
    connection: Connection,
    load: LoadRecord,
    messages: Sequence[Message],
    books: Books,
    rehearsal: Rehearsal,
    found: Preview,
) -> None:
    start = messages[0].position or 0
    refused_at = {message.position for message in messages if message.refused is not None}
    reading = await read([message for message in messages if message.refused is None], books)
    while reading.missing:
        await ensure_ids(connection, books, reading.missing.rate_sets, reading.missing.subjects)
        reading = reading.with_ids()
    rehearsed = await rehearse(connection, reading.batch(), books, rehearsal)
    if rehearsed.lines:
        async with connection.cursor().copy(COPY_ENTRIES.replace("ledger.entries", _SCRATCH, 1)) as copy:
            await copy.write(rehearsed.lines)
    positions = _positions(reading)
    assert len(positions) == len(rehearsed.results), "a row is an event"
    others: list[tuple[int, str, str | None]] = []
    for position, result in zip(positions, rehearsed.results, strict=True):
        found.outcomes[result.outcome] = found.outcomes.get(result.outcome, 0) + 1
        if result.outcome != "created":
            why = result.outcome if result.reason is None else f"{result.outcome}: {result.reason}"
            found.reasons[why] = found.reasons.get(why, 0) + 1
            others.append((position, result.outcome, result.detail or result.reason))
    await loads.note_outcomes(connection, load.load_id, start, start + len(positions) + len(refused_at), others)


def _positions(reading: Reading) -> list[int]:
    """Return the row behind each item."""
    return [(reading.messages[number].position or 0) + place for number, place in reading.places]


async def _amounts(connection: Connection) -> list[Amounts]:
    async with connection.cursor(row_factory=class_row(Amounts)) as cursor:
        await cursor.execute(amounts_in(_SCRATCH))
        return await cursor.fetchall()


def amounts_in(rows: str, where: str = "true") -> str:
    """Return the statement that sums the rows of a relation with the columns of `ledger.entries`, as a preview shows them."""
    return f"""
        select
            tenant_id,
            date_trunc('month', local_date::timestamp)::date as month,
            posting_period,
            model,
            sum(request_count)::bigint as requests,
            cost_currency::text as cost_currency,
            coalesce(sum(cost_amount), 0) as cost,
            charge_currency::text as charge_currency,
            coalesce(sum(charge_amount), 0) as charge,
            coalesce(sum(request_count) filter (where cost_amount is null), 0)::bigint as cost_unpriced,
            coalesce(sum(request_count) filter (where charge_amount is null), 0)::bigint as charge_unpriced
        from {rows}
        where kind <> 'evidence' and {where}
        group by tenant_id, month, posting_period, model, cost_currency, charge_currency
        order by tenant_id, month, posting_period, model, cost_currency, charge_currency
    """


async def _periods(connection: Connection) -> list[PeriodEffect]:
    async with connection.cursor(row_factory=class_row(PeriodEffect)) as cursor:
        await cursor.execute(
            f"""
            select
                e.tenant_id,
                e.posting_period,
                p.state,
                p.grace_until,
                count(*) as rows,
                count(*) filter (where date_trunc('month', e.local_date::timestamp) < e.posting_period) as late_rows,
                e.charge_currency::text as charge_currency,
                coalesce(sum(e.charge_amount), 0) as charge
            from {_SCRATCH} as e
            join ledger.periods as p using (tenant_id, posting_period)
            group by e.tenant_id, e.posting_period, p.state, p.grace_until, e.charge_currency
            order by e.tenant_id, e.posting_period, e.charge_currency
            """
        )
        return await cursor.fetchall()


async def _true_ups(connection: Connection) -> int:
    cursor = await connection.execute(f"select count(distinct event_key) from {_SCRATCH} where kind = 'true_up'")
    row = await cursor.fetchone()
    assert row is not None
    return int(row[0])


def _plain(found: Preview) -> dict[str, Any]:
    """Return a preview as JSON takes it: amounts as decimal text."""
    plain: dict[str, Any] = msgspec.to_builtins(found, str_keys=True, enc_hook=str, builtin_types=(Decimal,))
    return _texts(plain)  # type: ignore[no-any-return]


def _texts(value: Any) -> Any:
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, dict):
        return {name: _texts(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_texts(inner) for inner in value]
    return value


# --- Commit -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Committed:
    """What a commit posted, in this run."""

    load_id: str
    first_position: int
    """Where this run began: rows before it had been posted."""
    rows: int = 0
    entries: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)


async def commit(
    operator: Connection,
    writer_url: str,
    actor: str,
    load_id: str,
    *,
    without_refused: bool = False,
    without_preview: bool = False,
    reason: str | None = None,
    needed: Collection[str] = (),
    on_start: Callable[[int, int], None] = lambda posted, rows: None,
    on_rows: Progress = _nothing,
) -> Committed | Awaiting:
    """Post a load's rows in batches, each with the position after its last row; go on where an earlier run was.

    `needed`: the acts that the settings ask a second person for; until one has agreed, nothing is posted.

    Errors: those of `Intake.post`; what was committed before stays, and another run goes on from there. `Fenced` when
    another commit, or a revert, of the same load has begun.
    """
    load = await loads.start_commit(
        operator,
        actor,
        load_id,
        without_refused=without_refused,
        without_preview=without_preview,
        reason=reason,
        needed=needed,
    )
    if isinstance(load, Awaiting):
        return load
    async with await connect(writer_url) as writer:
        held = await feeds.claim(writer, "load", load.source)
    done = Committed(load_id, held.next_position)
    on_start(held.next_position, load.row_count)
    ease_collection()
    intake = await Intake.open(writer_url, held, patience=60)
    posting: asyncio.Task[Any] | None = None
    try:
        position = held.next_position
        while position < load.row_count:
            messages, following = await _messages(operator, load, position)
            reading = await intake.read(messages, position, following)
            # One commit overlaps the reading of the next batch.
            if posting is not None:
                _count(done, await posting, on_rows)
            posting = asyncio.create_task(intake.post(reading))
            position = following
        if posting is not None:
            _count(done, await posting, on_rows)
            posting = None
    finally:
        if posting is not None:
            await asyncio.wait([posting])
        await intake.close()
    await loads.end_commit(operator, load, actor)
    return done


def _count(done: Committed, posted: Any, on_rows: Progress) -> None:
    done.rows += len(posted.results)
    done.entries += posted.entry_count
    for result in posted.results:
        done.outcomes[result.outcome] = done.outcomes.get(result.outcome, 0) + 1
    on_rows(len(posted.results))


# --- Revert -----------------------------------------------------------------------------------------------------------


async def revert(
    operator: Connection,
    writer: Connection,
    actor: str,
    load_id: str,
    reason: str,
    *,
    needed: Collection[str] = (),
    on_batch: Callable[[reverting.TakenBack], None] | None = None,
) -> reverting.TakenBack | Awaiting:
    """Take back all that a load moved; go on where an earlier run was. One that was never committed only ends."""
    if not reason.strip():
        raise ActRefused("a revert needs a reason: it stands on every entry")
    load = await loads.start_revert(operator, actor, load_id, reason, needed)
    if isinstance(load, Awaiting):
        return load
    if load.state == "reverted":
        return reverting.TakenBack()
    # Whoever still commits this load is fenced from here on, so that the list of its batches is whole.
    await feeds.claim(writer, "load", load.source)
    held = await feeds.claim(writer, "load", loads.revert_feed_of(load_id))
    act = reverting.TakingBack(
        source=load.source,
        unsaid=await loads.unsaid_sources(operator, load),
        ranks=await loads.ranks_of_sources(operator),
        actor=actor,
        reason=reason,
    )
    done = await reverting.take_back_feed(writer, load.source, held, act, on_batch=on_batch)
    await loads.end_revert(operator, load_id)
    return done


__all__ = [
    "Committed", "Loaded", "Preview", "amounts_in", "commit", "load_file", "preview", "revert",
]  # fmt: skip
