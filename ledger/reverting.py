"""Taking back what a source said: its statements are reversed, and the best of what others said stands again.

For each request for which a statement of the source stands, the true-up rule writes the difference to what stands without
it, as entries of kind `reversal` in the earliest open period. What stands without it is the highest in rank of two: what stood
before it, and what came later and was kept as evidence. Where nobody else spoke, nothing stands: the request counts zero,
and the next report of it, whoever sends it, begins it anew with a date and prices of its own.

Where something better than the source's word stands already, nothing moves. Decided with the request's row locked.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, Final

import msgspec
import psycopg

from ledger.books import Books, load_books
from ledger.database import Connection, remedy_for
from ledger.entries import Entry, Money, Standing, tail
from ledger.errors import ActRefused, StaleBooks
from ledger.feeds import Claim
from ledger.keys import digest_uuid, key
from ledger.meters import Quantities
from ledger.posting import (
    ROWS_OF_REQUESTS,
    ROWS_PER_BATCH,
    Batch,
    Correction,
    Known,
    Missing,
    Priced,
    Rows,
    amounts_of,
    asked,
    first_month,
    no_message,
    post,
    standing_rows,
)
from ledger.statements import DIMENSIONS, TAKEN_BACK, Kind, Part, Rank, Statement
from ledger.times import from_micros, micros
from ledger.true_ups import fold, reported, true_up

TAKING_BACK: Final = b"taking back"
"""Kind of the keys under which a source's statements are taken back."""
_AT_ONCE: Final = 1000
_TRIES: Final = 8

_SENT_TENANT: Final = DIMENSIONS.index("sent_tenant_id")
_SOURCE: Final = DIMENSIONS.index("source")
_MODEL: Final = DIMENSIONS.index("model")
_REPORTED_MODEL: Final = DIMENSIONS.index("reported_model")
_STATUS: Final = DIMENSIONS.index("status")
_BASIS: Final = DIMENSIONS.index("basis")


class Row(msgspec.Struct, frozen=True):
    """One entry of a request, as far as it says what stands and who said so."""

    entry_id: int
    kind: str
    event_key: str
    is_final: bool
    revision: int
    reported: Mapping[str, Any] | None
    group: Standing

    @property
    def source(self) -> str:
        return self.group.grain[0][_SOURCE] or ""


class Target(msgspec.Struct, frozen=True):
    """What stands for a request without a source's word, and how it ranks."""

    rank: Rank
    entries: Sequence[Entry]
    """Empty where nothing stands."""
    event_key: str | None = None
    """Of the statement that stands again."""


class Told(msgspec.Struct, frozen=True):
    """All that the ledger holds of a request since it was begun."""

    best_event_key: str
    rows: list[Row]


@dataclass(frozen=True, slots=True)
class TakingBack:
    """An act that takes back all that a source said."""

    source: str
    unsaid: frozenset[str]
    """This source, and those whose words were taken back before: none of theirs stands again."""
    ranks: Mapping[str, int]
    """By source, those that have ended too."""
    actor: str
    reason: str


# --- What stands without it -------------------------------------------------------------------------------------------


def rows_for(books: Books, known: Known, missing: Missing, *, rows: Mapping[str, Told], act: TakingBack) -> list[Entry]:
    """Return the rows that take a request to what stands without a source's word; none where its word does not stand."""
    told = rows[known.request_key]
    if not stands_by(told, act.source):
        return []
    target = target_of(books, known, told, act, missing)
    stands = reported(known.stands)
    # A void stands without a group; its row, the newest of the source, still says whose it is.
    first = (
        stands[0]
        if stands
        else max(
            (row for row in told.rows if row.source == act.source and row.kind != "evidence"),
            key=lambda row: row.entry_id,
        ).group
    )
    sent_tenant_id = first.grain[0][_SENT_TENANT] or ""
    event_key = key(TAKING_BACK, sent_tenant_id, act.source, f"{known.request_key} {known.last_entry_id}")
    statement = Statement(
        event_key=event_key,
        content_hash=digest_uuid(f"taking back {act.source} {event_key}".encode()),
        request_key=known.request_key,
        rank=target.rank,
        occurred_at=known.occurred_at,
        dimensions=first.grain[0],
        parts=(),
        status=first.grain[0][_STATUS] or "",
        revision=target.rank[5],
        is_final=bool(target.rank[2]),
    )
    nothing = Standing(first.grain, 0, None, None, None, None)
    said = list(target.entries) or [entry_of(statement, nothing)]
    better = [msgspec.structs.replace(each, statement=statement, actor=act.actor, reason=act.reason) for each in said]
    notes = {"taken_back": act.source} | ({"stands_again": target.event_key} if target.event_key else {})
    # A reversal says that the request counts nothing; what stands again counts it.
    kind: Kind = "true_up" if target.entries else "reversal"
    return [msgspec.structs.replace(row, reported=notes) for row in true_up(stands, better, known.entry_id, kind)]


def stands_by(told: Told, source: str) -> bool:
    """Say whether it is a source's word that stands for a request."""
    stands = reported(fold(row.group for row in told.rows if row.kind != "evidence"))
    if stands:
        return any(group.grain[0][_SOURCE] == source for group in stands)
    # Nothing stands after a void, nor once all was taken back.
    return any(
        row.source == source and row.event_key == told.best_event_key and row.kind != "reversal" for row in told.rows
    )


def target_of(books: Books, known: Known, told: Told, act: TakingBack, missing: Missing) -> Target:
    """Return the best of what others said of a request: what stood before the source spoke, or what was kept as evidence."""
    before = _before(known, told.rows, act)
    evidence = _best_evidence(told.rows, act)
    if evidence and evidence[0].reported is not None:
        rank: Rank = tuple(evidence[0].reported["rank"])
        if before is None or rank > before.rank:
            return Target(rank, _restated(books, known, evidence, missing), evidence[0].event_key)
    return before or Target(TAKEN_BACK, [])


def _before(known: Known, rows: Sequence[Row], act: TakingBack) -> Target | None:
    """Return what stood last by the word of somebody whose word counts; None where nothing did."""
    found: Target | None = None
    seen: list[Standing] = []
    chain = sorted((row for row in rows if row.kind != "evidence"), key=lambda row: row.entry_id)
    speaker: Row | None = None
    for event_key, group in groupby(chain, key=lambda row: row.event_key):
        listed = list(group)
        seen += [row.group for row in listed]
        stands = reported(fold(seen))
        if listed[0].kind not in ("adjustment", "repricing"):
            speaker = listed[-1]
        assert speaker is not None, "the first row of a request is no adjustment"
        if not stands:
            void = next(
                (row for row in listed if row.kind != "reversal" and row.group.grain[0][_STATUS] == "void"), None
            )
            if void is None:
                found = None
            elif void.source not in act.unsaid:
                found = Target(_rank_of([void.group], void, act.ranks), [], event_key)
            continue
        sources = {each.grain[0][_SOURCE] for each in stands}
        if sources & act.unsaid:
            continue
        if len(sources) != 1 or sum(each.request_count for each in stands) not in (0, 1):
            # The rows of two feeds may be numbered in another order than the one in which they beat each other.
            raise ActRefused(f"request {known.request_key}: nobody can tell what stood before {act.source}")
        rank = _rank_of(stands, speaker, act.ranks)
        found = Target(rank, [entry_of(_bare(known), each) for each in stands], event_key)
    return found


def _rank_of(stands: Sequence[Standing], speaker: Row, ranks: Mapping[str, int]) -> Rank:
    """Return the rank of a statement as its rows tell it: entries do not hold it."""
    dimensions = stands[0].grain[0]
    has_usage = any(each.quantities is not None for each in stands) and all(
        "not_charged" not in each.grain[9] for each in stands
    )
    return (
        0,
        int(has_usage or dimensions[_STATUS] == "void"),
        int(speaker.is_final),
        int(dimensions[_BASIS] == "reported"),
        ranks.get(dimensions[_SOURCE] or "", 0),
        speaker.revision,
    )


def _best_evidence(rows: Sequence[Row], act: TakingBack) -> list[Row]:
    """Return the rows of the report that ranks highest among those that beat nothing and wait for nobody's decision."""
    reports: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row.entry_id):
        if row.kind != "evidence" or row.source in act.unsaid or row.reported is None:
            continue
        is_proposal = "proposed" in row.group.grain[9]
        claims_nothing = row.group.grain[0][_STATUS] == "in_progress" and not row.reported["rank"][1]
        if not (is_proposal or claims_nothing):
            reports.setdefault(row.event_key, []).append(row)
    best: list[Row] = []
    for report in reports.values():
        # The first of equals: a later one would not have beaten it.
        if not best or tuple((report[0].reported or {})["rank"]) > tuple((best[0].reported or {})["rank"]):
            best = report
    return best


def _restated(books: Books, known: Known, evidence: Sequence[Row], missing: Missing) -> list[Entry]:
    """Return the rows that a report would have made at the request's instant, had it beaten what stood."""
    parts = tuple(_part(row) for row in evidence)
    entries = []
    for number, (row, part) in enumerate(zip(evidence, parts, strict=True)):
        bare = entry_of(_bare(known), row.group)
        tenant_id = bare.dimensions[0] or ""
        currency = books.parties.tenants[tenant_id].at(known.occurred_at).charge_currency
        cost, charge, unpriced = amounts_of(
            books, tenant_id, currency, bare.dimensions, part, parts, known.occurred_at, missing
        )
        entries.append(
            msgspec.structs.replace(
                bare,
                request_count=0 if number or bare.dimensions[_STATUS] == "void" else 1,
                quantities=part.quantities,
                cost=cost,
                charge=charge,
                unpriced=unpriced,
                flags=part.flags,
            )
        )
    return entries


def _part(row: Row) -> Part:
    """Return a row of evidence as the part of a call that it was."""
    said = row.reported or {}
    dimensions, flags = row.group.grain[0], row.group.grain[9]
    counts: Quantities | None = said.get("quantities")
    return Part(
        model=dimensions[_MODEL],
        reported_model=dimensions[_REPORTED_MODEL],
        quantities=counts,
        flags=flags,
        is_chargeable=dimensions[_STATUS] != "void" and "not_charged" not in flags,
        is_priceable=not any(why.endswith(":usage") for why in said.get("unpriced", ())),
    )


def _bare(known: Known) -> Statement:
    """Return a header that says no more than when; whoever writes the rows gives them another."""
    return Statement("", "", known.request_key, known.rank, known.occurred_at, (), (), "")


def entry_of(statement: Statement, group: Standing) -> Entry:
    """Return a group of what stands as a row."""
    (
        dimensions, day, subject_id, tags, attempt, cost_currency, cost_set, charge_currency, charge_set, flags, unpriced,
    ) = group.grain  # fmt: skip
    return Entry(
        statement=statement,
        kind="reversal",
        entry_no=0,
        occurred_at=statement.occurred_at,
        local_date=day,
        dimensions=dimensions,
        subject_id=subject_id,
        request_count=group.request_count,
        quantities=group.quantities,
        cost=Money(group.cost_amount, cost_currency, cost_set),
        charge=Money(group.charge_amount, charge_currency, charge_set),
        flags=flags,
        unpriced=unpriced,
        avoided_tokens=group.avoided_tokens,
        tags=tags,
        attempt=attempt,
    )


# --- Doing it ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class TakenBack:
    """What a run did, and how far it is."""

    batches: int = 0
    """Batches of the source's feed that were gone through."""
    batches_total: int = 0
    requests: int = 0
    """Requests for which another word stands now, or none."""
    entries: int = 0


async def take_back_feed(
    writer: Connection,
    feed: str,
    held: Claim,
    act: TakingBack,
    *,
    on_batch: Callable[[TakenBack], None] | None = None,
) -> TakenBack:
    """Take back all that stands of what a source said through a feed of its own, batch by batch.

    `held` is another feed, whose positions are the places of those batches in order: a run that was interrupted goes on
    where it was, and nothing is taken back twice. Whoever writes to `feed` must have been fenced before.
    """
    cursor = await writer.execute(
        "select b.batch_id from ledger.batches as b join ledger.feeds as f using (feed_id) where f.name = %s"
        " order by b.number",
        [feed],
    )
    batch_ids = [row[0] async for row in cursor]
    done = TakenBack(batches=held.next_position, batches_total=len(batch_ids))
    books = await load_books(writer)
    for place in range(held.next_position, len(batch_ids)):
        for items, is_last in _in_parts(await _items_of(writer, batch_ids[place])):
            books = await _take_back(writer, held, act, books, items, place + is_last, done)
        done.batches = place + 1
        if on_batch is not None:
            on_batch(done)
    return done


Item = str | Rows
"""The key of a request; or an entry that belongs to none."""


def _in_parts(items: Sequence[Item]) -> Iterator[tuple[Sequence[Item], bool]]:
    """Yield items in parts, at least one, and whether a part is the last."""
    for start in range(0, max(len(items), 1), _AT_ONCE):
        yield items[start : start + _AT_ONCE], start + _AT_ONCE >= len(items)


async def _take_back(
    writer: Connection,
    held: Claim,
    act: TakingBack,
    books: Books,
    items: Sequence[Item],
    next_position: int,
    done: TakenBack,
) -> Books:
    """Take back some of what a batch moved, in one transaction; return the books that it was done with."""
    keys = [item for item in items if isinstance(item, str)]
    alone = [item for item in items if not isinstance(item, str)]
    rows: dict[str, Told] = {}

    async def look(connection: Connection) -> None:
        rows.update(await read_rows(connection, keys))

    tries = 0
    while True:
        tries += 1
        try:
            batch = Batch(
                items=[
                    *(
                        Correction(each, partial(rows_for, rows=rows, act=act), _no_fees, is_statement=True)
                        for each in keys
                    ),
                    *await _hits_of(writer, alone, act),
                ],
                body_of=no_message,
                origin_of=no_message,
                versions=books.versions,
                first_position=held.next_position,
                next_position=next_position,
                expected_position=held.next_position,
                once_locked=look,
            )
            posted = await post(writer, held, batch, books)
        except StaleBooks:
            books = await load_books(writer)
        except psycopg.Error as error:
            if writer.closed or remedy_for(error) != "retry" or tries >= _TRIES:
                raise
            await asyncio.sleep(2**tries / 50)
        else:
            done.requests += sum(result.outcome == "created" for result in posted.results)
            done.entries += posted.entry_count
            return books


async def _hits_of(connection: Connection, entries: Sequence[Rows], act: TakingBack) -> list[Priced]:
    """Return what takes back entries that belong to no request: a gateway's own cache hits."""
    groups: dict[int, list[Standing]] = {}
    async for first_id, _, _, group in standing_rows(connection, entries):
        groups.setdefault(first_id, []).append(group)
    headers = {header.entry_id: header for header in await _headers(connection, entries)}
    found = []
    for first_id, listed in groups.items():
        stands = fold(listed)
        if not stands:
            continue
        header = headers[first_id]
        dimensions = stands[0].grain[0]
        event_key = key(TAKING_BACK, dimensions[_SENT_TENANT] or "", act.source, header.event_key)
        statement = Statement(
            event_key=event_key,
            content_hash=digest_uuid(f"taking back {act.source} {event_key}".encode()),
            request_key=None,
            rank=TAKEN_BACK,
            occurred_at=header.occurred_at,
            dimensions=dimensions,
            parts=(),
            status=dimensions[_STATUS] or "",
        )
        nothing = entry_of(statement, Standing(stands[0].grain, 0, None, None, None, None))
        nothing = msgspec.structs.replace(nothing, actor=act.actor, reason=act.reason)
        entries_of = [
            msgspec.structs.replace(row, reported={"taken_back": act.source})
            for row in true_up(stands, [nothing], first_id, "reversal")
        ]
        found.append(Priced(statement, entries_of, [tail(row) for row in entries_of]))
    return found


def _no_fees(books: Books, known: Known, missing: Missing) -> Sequence[Priced]:
    """A fee is a request of its own, and is taken back like any other."""
    return ()


async def _items_of(connection: Connection, batch_id: int) -> list[Item]:
    """Return what a batch moved: requests and fees by key, and entries that belong to none."""
    cursor = await connection.execute(
        """
        select
            e.request_key::text,
            case when e.request_key is null then e.posting_period end as posting_period,
            case when e.request_key is null then e.entry_id end as entry_id,
            case when e.request_key is null then e.occurred_at end as occurred_at
        from ledger.batch_digests as d
        join ledger.entries as e on
            e.posting_period = d.posting_period
            and e.entry_id >= d.batch_id * %(rows)s
            and e.entry_id < (d.batch_id + 1) * %(rows)s
        where d.batch_id = %(batch_id)s and e.kind <> 'evidence'
        group by 1, 2, 3, 4
        order by 1, 3
        """,
        {"batch_id": batch_id, "rows": ROWS_PER_BATCH},
    )
    return [
        Rows(period, entry_id, 1, micros(at)) if request_key is None else request_key
        async for request_key, period, entry_id, at in cursor
    ]


class _Header(msgspec.Struct, frozen=True):
    """What the fold leaves out of a row."""

    first_id: int
    entry_id: int
    event_key: str
    is_final: bool
    revision: int
    reported: Mapping[str, Any] | None
    occurred_at: int
    tenant_id: str


_HEADERS: Final = f"""
{ROWS_OF_REQUESTS}
select first_id, entry_id, event_key::text, is_final, revision, reported, occurred_at, tenant_id
from rows
"""


async def _headers(connection: Connection, wanted: Sequence[Rows]) -> list[_Header]:
    cursor = await connection.execute(_HEADERS, asked(wanted))
    return [
        _Header(first, entry, event_key, is_final, revision, notes, micros(at), tenant)
        async for first, entry, event_key, is_final, revision, notes, at, tenant in cursor
    ]


# Evidence names no entry. It stands under the date of the request's first report, where the index by tenant and time
# finds it. Each instant is looked at once, however many requests share it.
_EVIDENCE: Final = """
select e.request_key::text, e.posting_period, e.entry_id
from unnest(%(tenants)s::text[], %(instants)s::timestamptz[], %(months)s::date[]) as w (tenant_id, occurred_at, first_month)
cross join lateral (
    select request_key, posting_period, entry_id
    from ledger.entries
    where
        tenant_id = w.tenant_id
        and occurred_at = w.occurred_at
        and posting_period >= w.first_month
        and kind = 'evidence'
        and request_key = any(%(keys)s::uuid[])
    offset 0
) as e
"""


async def read_rows(connection: Connection, request_keys: Sequence[str]) -> dict[str, Told]:
    """Read all entries of requests since they were begun, evidence among them."""
    cursor = await connection.execute(
        "select key::text, best_event_key::text, posting_period, entry_id, entry_count, occurred_at from ledger.requests"
        " where key = any(%s::uuid[])",
        [list(request_keys)],
    )
    keys: dict[int, str] = {}
    wanted: dict[int, Rows] = {}
    found: dict[str, Told] = {}
    for request_key, best, period, entry_id, entry_count, at in await cursor.fetchall():
        keys[entry_id], wanted[entry_id] = request_key, Rows(period, entry_id, entry_count, micros(at))
        found[request_key] = Told(best, [])
    headers = {header.entry_id: header for header in await _headers(connection, list(wanted.values()))}
    payers = sorted({(header.tenant_id, wanted[header.first_id].occurred_at) for header in headers.values()})
    cursor = await connection.execute(
        _EVIDENCE,
        {
            "tenants": [tenant_id for tenant_id, _ in payers],
            "instants": [from_micros(at) for _, at in payers],
            "months": [first_month(at) for _, at in payers],
            "keys": list(found),
        },
    )
    firsts = {request_key: first_id for first_id, request_key in keys.items()}
    evidence: dict[int, tuple[int, Rows]] = {}
    for request_key, period, entry_id in await cursor.fetchall():
        first_id = firsts[request_key]
        evidence[entry_id] = (first_id, Rows(period, entry_id, 1, wanted[first_id].occurred_at))
    alone = [rows for _, rows in evidence.values()]
    headers |= {header.entry_id: header for header in await _headers(connection, alone)}
    async for first_id, entry_id, kind, group in standing_rows(connection, [*wanted.values(), *alone]):
        header = headers[entry_id]
        of = evidence[first_id][0] if first_id in evidence else first_id
        found[keys[of]].rows.append(
            Row(entry_id, kind, header.event_key, header.is_final, header.revision, header.reported, group)
        )
    return found


__all__ = ["TakenBack", "TakingBack", "take_back_feed"]
