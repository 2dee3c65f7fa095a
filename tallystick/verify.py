"""`tallystick verify`: recomputes chain, keys, requests, budgets, lines and marts from the ledger, and says what differs.

Everything is read in one snapshot, so that it runs beside a working worker. The proofs that are SQL stand in proofs/: each
file selects what is broken, in words, and no row means that it holds.
"""

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from hashlib import sha256
from itertools import groupby, islice
from pathlib import Path
from typing import Any, Final

import psycopg

from ledger import chain, proofs, seals
from ledger.database import Connection as AsyncConnection
from ledger.entries import COLUMNS
from ledger.node_windows import COLUMNS as WINDOW_COLUMNS
from ledger.posting import ROWS_PER_BATCH
from ledger.retention import digests_hash, manifest_text
from ledger.zones import OFFSETS, difference
from tallystick.addresses import libpq_url
from tallystick.issued import broken_digests, broken_documents

Connection = psycopg.Connection[tuple[Any, ...]]

PROOFS: Final = Path(__file__).parent / "proofs"
PARTS: Final = ("batches", "keys", "requests", "budgets", "excess", "totals", "lines", "acts")
FAILURES_NAMED_MAX: Final = 20
"""Of each part; one change of a row breaks several proofs, and a lost partition all of them."""
DIGESTS_AT_ONCE: Final = 2_000
"""Digests held in memory while their rows stream by; with 5,000 rows a batch, 10 million rows."""

# A mart: what its buckets are called, and how the ledger and the mart say them.
_MARTS: Final[Mapping[str, Mapping[str, str]]] = {
    "fct_usage_15min": {
        "what": "quarter hour",
        "ledger_time": "date_bin('15 minutes', occurred_at, timestamptz '2020-01-01 00:00:00+00')",
        "mart_time": "starts_at",
        "bucket_text": "to_char(bucket at time zone 'UTC', 'YYYY-MM-DD HH24:MI') || ' UTC'",
    },
    "fct_usage_hourly": {
        "what": "hour",
        "ledger_time": "date_trunc('hour', occurred_at, 'UTC')",
        "mart_time": "starts_at",
        "bucket_text": "to_char(bucket at time zone 'UTC', 'YYYY-MM-DD HH24:MI') || ' UTC'",
    },
    "fct_cost_daily": {
        "what": "local day",
        "ledger_time": "local_date",
        "mart_time": "local_date",
        "bucket_text": "bucket",
    },
}


@dataclass(frozen=True, slots=True)
class Failure:
    """One thing that does not hold."""

    part: str
    """chain, batches, keys, requests, budgets, excess, totals, lines, acts, zones, seals, documents, marts or heads."""
    text: str


@dataclass(frozen=True, slots=True)
class Proof:
    """What was recomputed, and what differs."""

    failures: list[Failure]
    """At most FAILURES_NAMED_MAX of each part; the last one then says how many more there are."""
    checked: Mapping[str, int]
    """How many batches, entries, keys, requests, windows and documents were held against each other."""
    notes: list[str]
    """What could not be compared yet, such as marts that no run has made."""
    started_at: datetime
    up_to: Mapping[str, int]
    """The last batch of each feed that was there."""
    seconds: float

    @property
    def ok(self) -> bool:
        return not self.failures


@dataclass(frozen=True, slots=True)
class _Scope:
    """What is looked at: every batch from one on."""

    first_batch: int = 0
    gone: Sequence[date] = ()
    """Months whose rows have left the ledger: their digests, keys and seals stand for them."""

    @property
    def entries(self) -> str:
        """The rows of those batches, as SQL; by the months that they wrote to, so that no other is read."""
        if not self.first_batch:
            return "ledger.entries"
        return (
            "(select e.* from (select distinct posting_period from ledger.batch_digests"
            f" where batch_id >= {self.first_batch}) as p join ledger.entries as e"
            f" on e.posting_period = p.posting_period and e.entry_id >= {self.first_batch * ROWS_PER_BATCH})"
        )

    @property
    def foldable_from(self) -> date:
        """The first day of which all rows are here: late usage is posted in its own month or a later one, never an earlier."""
        if not self.gone:
            return date(1, 1, 1)
        last = max(self.gone)
        return date(last.year + last.month // 12, last.month % 12 + 1, 1)

    def filled(self, statement: str) -> str:
        months = ", ".join(f"date '{month.isoformat()}'" for month in self.gone)
        texts = {
            "entries": self.entries,
            "first_batch": str(self.first_batch),
            "gone": f"array[{months}]::date[]",
            "foldable_from": f"date '{self.foldable_from.isoformat()}'",
        }
        for name, text in texts.items():
            statement = statement.replace(f"{{{name}}}", text)
        return statement


def verify(
    url: str,
    *,
    heads: Path | None = None,
    since: datetime | None = None,
    on_part: Callable[[str], None] | None = None,
) -> Proof:
    """Recompute everything that can be recomputed; `heads` is a file of published chain heads to hold the chain against.

    With `since`, only what was recorded from then on is held against itself: chain, batches, keys and lines. Requests, budgets,
    seals, documents and marts are about the whole ledger. `url` logs in as tallystick_operator, or as somebody who may read as much. Memory
    stays bounded whatever the ledger's size; time is linear, since every row is read several times.
    """
    started, started_at = time.monotonic(), datetime.now(UTC)
    told = on_part or (lambda part: None)
    failures: list[Failure] = []
    notes: list[str] = []
    with _snapshot(url) as connection, ThreadPoolExecutor(max_workers=1) as beside:
        told("chain")
        # The rows are hashed beside the statements, by a connection that sees the very same.
        row = connection.execute("select pg_export_snapshot()").fetchone()
        assert row is not None
        scope = _scope(connection, since)
        hashed = beside.submit(_hashed, url, row[0], scope)
        for part in ("batches", "keys", "lines") if scope.first_batch else PARTS:
            told(part)
            failures += _broken(connection, part, scope.filled((PROOFS / f"{part}.sql").read_text()))
        if scope.first_batch:
            notes.append(
                "requests, budgets, acts, zones, seals, documents and marts are about the whole ledger, and were not looked at"
            )
        else:
            told("zones")
            failures += _named("zones", _zones_that_differ(connection))
            told("seals")
            failures += _named("seals", _broken_seals(connection, scope))
            notes += _unsealed(connection)
            notes += _retired(scope)
            told("documents")
            digests = beside.submit(broken_digests, url, row[0])
            documents = list(broken_documents(connection, list(scope.gone)))
            told("marts")
            mart_failures, mart_notes = _broken_marts(connection, scope)
            failures += mart_failures
            notes += mart_notes
            failures += _named("documents", [*documents, *digests.result()])
        if heads is not None:
            told("heads")
            failures += _named("heads", _broken_heads(connection, heads))
        failures = [*hashed.result(), *failures]
        checked = _sizes(connection, scope)
        up_to: dict[str, int] = dict(
            connection.execute("select name, last_number from ledger.feeds where last_number > 0 order by 1").fetchall()
        )
    return Proof(failures, checked, notes, started_at, up_to, time.monotonic() - started)


async def note(connection: AsyncConnection, proof: Proof, *, every_seconds: float | None = None) -> None:
    """Write down the result of a proof of everything, for checks and metrics; `connection` is the operator's."""
    async with connection.transaction():
        await proofs.note_proof(
            connection,
            "whole",
            started_at=proof.started_at,
            up_to=proof.up_to,
            difference_count=len(proof.failures),
            differences=[proofs.Difference(failure.part, failure.text) for failure in proof.failures],
            notes=proof.notes,
            every_seconds=every_seconds,
        )


def _scope(connection: Connection, since: datetime | None) -> _Scope:
    gone = [
        month
        for (month,) in connection.execute(
            "select posting_period from ledger.retired_months where not is_readable order by 1"
        )
    ]
    if since is None:
        return _Scope(gone=gone)
    row = connection.execute(
        "select coalesce(min(batch_id) filter (where recorded_at >= %s), max(batch_id) + 1, 0) from ledger.batches",
        [since],
    ).fetchone()
    assert row is not None
    return _Scope(row[0], gone)


def _connect(url: str) -> Connection:
    # The settings that decide how Postgres prints a row, which is what the digests cover.
    return psycopg.connect(
        libpq_url(url),
        autocommit=True,
        client_encoding="UTF8",
        options="-c timezone=UTC -c datestyle=ISO -c intervalstyle=iso_8601",
    )


@contextmanager
def _snapshot(url: str) -> Iterator[Connection]:
    """Give a connection that sees the database as it is now for the length of the block."""
    with _connect(url) as connection:
        connection.execute("begin isolation level repeatable read read only")
        # Compiling pays off for none of the statements: they are few, and most of their time is in reading.
        connection.execute("set local jit = off")
        # Of each sort and hash, and of each worker that takes part in one; what is larger goes to disk.
        connection.execute("set local work_mem = '64MB'")
        yield connection


def _hashed(url: str, snapshot: str, scope: _Scope) -> list[Failure]:
    """Prove the chain, in a snapshot that another connection holds."""
    with _snapshot(url) as connection:
        connection.execute(f"set transaction snapshot '{snapshot}'".encode())
        return [
            *_named("chain", _broken_chain(connection, scope)),
            *_named("chain", _broken_digests(connection, scope)),
            *_named("chain", _broken_windows(connection, scope)),
        ]


def _named(part: str, texts: Iterable[str]) -> list[Failure]:
    found = iter(texts)
    named = [Failure(part, text) for text in islice(found, FAILURES_NAMED_MAX)]
    more = sum(1 for _ in found)
    return [*named, Failure(part, f"and {more} more")] if more else named


def _broken(connection: Connection, part: str, statement: str) -> list[Failure]:
    counted = f"select failure, count(*) over () from ({statement}) as broken limit {FAILURES_NAMED_MAX}"
    # The statements are files of ours; a percent sign in them is a format of Postgres, not one of psycopg's placeholders.
    rows = connection.execute(counted.encode()).fetchall()
    named = [Failure(part, text) for text, _ in rows]
    more = rows[0][1] - len(rows) if rows else 0
    return [*named, Failure(part, f"and {more} more")] if more else named


def _zones_that_differ(connection: Connection) -> Iterator[str]:
    zones = connection.execute("select time_zone from ledger.tenant_versions group by 1 order by 1").fetchall()
    for (zone,) in zones:
        found = difference(zone, connection.execute(OFFSETS.format(zone=zone)))
        if found is not None:
            yield str(found)


# --- The chain --------------------------------------------------------------------------------------------------------


_BATCHES: Final = """
select
    f.feed_id, f.name, f.last_number, f.last_hash, b.number, b.first_position, b.next_position, b.created_count,
    b.duplicate_count, b.evidence_count, b.conflict_count, b.dead_letter_count, b.entry_count, b.previous_hash, b.hash,
    b.hash_version,
    array(select d.posting_period from ledger.batch_digests as d where d.batch_id = b.batch_id order by d.posting_period),
    array(select d.digest from ledger.batch_digests as d where d.batch_id = b.batch_id order by d.posting_period),
    coalesce(p.number, 0), coalesce(p.hash, ''), b.windows_digest
from ledger.feeds as f
left join ledger.batches as b on b.feed_id = f.feed_id and b.batch_id >= %(first_batch)s
left join lateral (
    select p.number, p.hash
    from ledger.batches as p
    where p.feed_id = f.feed_id and p.batch_id < %(first_batch)s
    order by p.number desc
    limit 1
) as p on true
order by f.feed_id, b.number
"""


def _broken_chain(connection: Connection, scope: _Scope) -> Iterator[str]:
    """Walk each feed from its first batch: numbers without a gap, each hash over the one before, the last in the feed's row.

    Names the first broken batch of a feed; what comes after hangs on it. A walk that begins later takes the batch before
    its first one as it stands.
    """
    feed_id, number, previous, is_broken = None, 0, b"", False
    last: tuple[str, int, bytes] | None = None
    with connection.cursor(name="batches") as cursor:
        cursor.itersize = 5_000
        for row in cursor.execute(_BATCHES, {"first_batch": scope.first_batch}):
            if row[0] != feed_id:
                if last is not None and not is_broken:
                    yield from _broken_end(*last, number, previous)
                feed_id, number, previous, is_broken = row[0], row[18], row[19], False
                last = row[1], row[2], row[3]
            if row[4] is None or is_broken:
                continue
            fault = _fault(row, number, previous)
            if fault is not None:
                is_broken = True
                yield f"feed {row[1]}: {fault}"
            number, previous = row[4], row[14]
    if last is not None and not is_broken:
        yield from _broken_end(*last, number, previous)


def _fault(row: tuple[Any, ...], number: int, previous: bytes) -> str | None:
    if row[4] != number + 1:
        return f"batch {number + 1} is missing; after {number} comes {row[4]}"
    if row[15] != chain.hash_version(row[20]):
        return f"batch {row[4]} has hash version {row[15]}, which nobody wrote"
    if row[13] != previous:
        return f"batch {row[4]} does not name the hash of batch {number}"
    expected = chain.batch_hash(
        feed=row[1],
        number=row[4],
        previous_hash=row[13],
        first_position=row[5],
        next_position=row[6],
        counts={
            "created": row[7],
            "duplicate": row[8],
            "evidence": row[9],
            "conflict": row[10],
            "dead_letter": row[11],
            "entry": row[12],
        },
        digests=dict(zip(row[16], row[17], strict=True)),
        windows=row[20],
    )
    return None if row[14] == expected else f"batch {row[4]} is not what its hash covers"


def _broken_end(name: str, last_number: int, last_hash: bytes, number: int, reached: bytes) -> Iterator[str]:
    if (last_number, last_hash) != (number, reached):
        yield f"feed {name}: its row says batch {last_number} is the last, the chain ends with {number} or another hash"


def _broken_digests(connection: Connection, scope: _Scope) -> Iterator[str]:
    """Stream the rows as COPY prints them and hold their digests against what was written down when they were posted."""
    periods = connection.execute(
        "select posting_period from ledger.batch_digests where batch_id >= %s"
        " union select posting_period from ledger.entries where %s = 0 order by 1",
        [scope.first_batch, scope.first_batch],
    ).fetchall()
    for (period,) in periods:
        if period in scope.gone:
            # The batch's hash covers the digest, which was held against the rows before they left.
            continue
        after = scope.first_batch - 1
        while True:
            listed = connection.execute(
                "select d.batch_id, d.digest, f.name, b.number from ledger.batch_digests as d"
                " join ledger.batches as b on b.batch_id = d.batch_id join ledger.feeds as f on f.feed_id = b.feed_id"
                " where d.posting_period = %s and d.batch_id > %s order by d.batch_id limit %s",
                [period, after, DIGESTS_AT_ONCE],
            ).fetchall()
            is_last = len(listed) < DIGESTS_AT_ONCE
            until = None if is_last else listed[-1][0]
            found = dict(_digests(connection, period, after, until))
            for batch_id, digest, feed, number in listed:
                if found.pop(batch_id, None) != digest:
                    first = _first_difference(connection, period, batch_id)
                    yield f"feed {feed}: the rows of batch {number} in {period:%Y-%m} differ from what was posted{first}"
            for batch_id in found:
                yield f"rows of {period:%Y-%m} claim batch id {batch_id}, which posted none there"
            if is_last:
                break
            after = listed[-1][0]


def _lines(connection: Connection, period: date, first_batch: int, until: int | None) -> Iterator[bytes]:
    """Yield rows as COPY prints them, by entry id, from one batch up to and with another."""
    statement = (
        f"copy (select {', '.join(COLUMNS)} from ledger.entries where posting_period = '{period.isoformat()}'"
        f" and entry_id >= {first_batch * ROWS_PER_BATCH}"
        + (f" and entry_id < {(until + 1) * ROWS_PER_BATCH}" if until is not None else "")
        + " order by entry_id) to stdout"
    )
    with connection.cursor() as cursor, cursor.copy(statement) as rows:
        # The protocol gives one message for each row.
        for row in rows:
            yield bytes(row)


def _digests(connection: Connection, period: date, after: int, until: int | None) -> Iterator[tuple[int, bytes]]:
    """Yield (batch id, digest of its rows) for the batches after one and up to another."""
    batch_id, hashed = -1, sha256()
    for line in _lines(connection, period, after + 1, until):
        of = int(line[: line.index(b"\t")]) // ROWS_PER_BATCH
        if of != batch_id:
            if batch_id >= 0:
                yield batch_id, hashed.digest()
            batch_id, hashed = of, sha256()
        hashed.update(line)
    if batch_id >= 0:
        yield batch_id, hashed.digest()


def _broken_windows(connection: Connection, scope: _Scope) -> Iterator[str]:
    """Stream the windows of nodes as COPY prints them, and hold them against the digests of the batches that brought them."""
    stated: dict[int, tuple[bytes, str, int]] = {
        batch_id: (digest, feed, number)
        for batch_id, digest, feed, number in connection.execute(
            "select b.batch_id, b.windows_digest, f.name, b.number from ledger.batches as b"
            " join ledger.feeds as f on f.feed_id = b.feed_id"
            " where b.batch_id >= %s and b.windows_digest is not null",
            [scope.first_batch],
        )
    }
    for batch_id, digest in _window_digests(connection, scope):
        expected, feed, number = stated.pop(batch_id, (b"", "", 0))
        if not feed:
            yield f"node windows claim batch id {batch_id}, which brought none"
        elif expected != digest:
            yield f"feed {feed}: the node windows of batch {number} differ from what was posted"
    for _, feed, number in stated.values():
        yield f"feed {feed}: the node windows of batch {number} are missing"


def _window_digests(connection: Connection, scope: _Scope) -> Iterator[tuple[int, bytes]]:
    """Yield (batch id, digest of its windows), by batch."""
    statement = (
        f"copy (select {', '.join(WINDOW_COLUMNS)} from ledger.node_windows where batch_id >= {scope.first_batch}"
        " order by batch_id, event_key) to stdout"
    )
    with connection.cursor() as cursor, cursor.copy(statement.encode()) as rows:
        for batch_id, lines in groupby(map(bytes, rows), key=lambda line: int(line.rpartition(b"\t")[2])):
            yield batch_id, chain.digest(b"".join(lines))


_TENANT: Final = COLUMNS.index("tenant_id")


def _first_difference(connection: Connection, period: date, batch_id: int) -> str:
    """Say which row of a batch is the first that is not what was posted, where its marks tell."""
    row = connection.execute(
        "select row_marks from ledger.batch_digests where posting_period = %s and batch_id = %s", [period, batch_id]
    ).fetchone()
    if row is None or row[0] is None:
        return ""
    lines = list(_lines(connection, period, batch_id, batch_id))
    found = chain.first_difference(lines, bytes(row[0]))
    if found is None:
        return ""
    what, index = found
    if index == len(lines):
        return f": the last of its {len(row[0]) // 4} rows is missing"
    columns = lines[index].decode().split("\t")
    named = f"entry {columns[0]} of tenant {columns[_TENANT]}"
    return f": a row is missing before {named}" if what == "missing" else f": {named} was {what}"


# --- Marts ------------------------------------------------------------------------------------------------------------


def _broken_seals(connection: Connection, scope: _Scope) -> Iterator[str]:
    """Hold each seal against its own lines; the one that counts also against the rows of its month, or, where they have left,
    against the digests and sums of the batches that wrote them.
    """
    listed = connection.execute(
        "select s.tenant_id, s.posting_period, s.close_number, s.digest, s.line_count, s.row_count, s.request_count,"
        " s.cost_sums, s.charge_sums, p.state = 'closed' and p.close_number = s.close_number"
        " from ledger.seals as s join ledger.periods as p using (tenant_id, posting_period) order by 1, 2, 3"
    ).fetchall()
    columns = ", ".join(seals.COLUMNS)
    for tenant_id, month, number, digest, line_count, row_count, request_count, cost, charge, counts in listed:
        name = f"seal {number} of tenant {tenant_id} for {month:%Y-%m}"
        lines: list[seals.Line] = list(
            connection.execute(
                f"select {columns} from ledger.seal_lines where tenant_id = %s and posting_period = %s and close_number = %s"
                " order by line_number".encode(),
                [tenant_id, month, number],
            )
        )
        if seals.seal_digest(tenant_id, month, lines) != digest:
            yield f"{name}: its lines do not have its digest"
        head = (line_count, row_count, request_count, cost, charge)
        if seals.head_of(lines) != head:
            yield f"{name}: its lines do not add up to it"
        if counts and month not in scope.gone:
            folded = connection.execute(
                f"select {columns} from ledger.period_totals(%s, %s)".encode(), [tenant_id, month]
            ).fetchall()
            texts = [[seals.canonical_line(line) for line in seals.in_order(each)] for each in (folded, lines)]
            if texts[0] != texts[1]:
                yield f"{name}: the rows of the month no longer come to it"
    for month in scope.gone:
        yield from _broken_manifest(connection, month)
    yield from _texts(connection, scope, "seals")


def _broken_manifest(connection: Connection, month: date) -> Iterator[str]:
    """Hold the manifest of a month that left against its hash, and against the digests of its batches."""
    manifest, manifest_hash = connection.execute(
        "select r.manifest, r.manifest_hash from ledger.retirements as r join ledger.retired_months as m"
        " on m.posting_period = r.posting_period and m.manifest_hash = r.manifest_hash"
        " where r.posting_period = %s and r.step = 'export' order by r.retirement_id desc limit 1",
        [month],
    ).fetchone() or (None, None)
    if manifest is None or sha256(manifest_text(manifest)).digest() != manifest_hash:
        yield f"{month:%Y-%m}, whose rows have left: the manifest of its export does not have its hash"
        return
    stated = connection.execute(
        "select batch_id, row_count, digest from ledger.batch_digests where posting_period = %s order by batch_id",
        [month],
    )
    if manifest["digests_sha256"] != digests_hash(stated):
        yield f"{month:%Y-%m}, whose rows have left: its digests are not those of its export"


def _unsealed(connection: Connection) -> list[str]:
    rows = connection.execute(
        "select p.tenant_id, p.posting_period, count(*) over () from ledger.periods as p"
        " where p.state = 'closed' and not exists (select from ledger.seals as s"
        " where s.tenant_id = p.tenant_id and s.posting_period = p.posting_period and s.close_number = p.close_number)"
        " order by 2, 1 limit 5"
    ).fetchall()
    if not rows:
        return []
    count = rows[0][2]
    named = ", ".join(f"{month:%Y-%m} of {tenant_id}" for tenant_id, month, _ in rows)
    more = f" and {count - len(rows):,} more" if count > len(rows) else ""
    said = "1 closed month has" if count == 1 else f"{count:,} closed months have"
    return [f"{said} no seal yet, run `tallystick period seal`: {named}{more}"]


def _retired(scope: _Scope) -> list[str]:
    if not scope.gone:
        return []
    months = ", ".join(f"{month:%Y-%m}" for month in scope.gone)
    return [
        f"the rows of {months} have left the ledger: digests, keys and seals were proved in their place, and the totals of"
        f" budgets; other windows and marts were compared from {scope.foldable_from} on"
    ]


def _texts(connection: Connection, scope: _Scope, part: str) -> Iterator[str]:
    for (text,) in connection.execute(scope.filled((PROOFS / f"{part}.sql").read_text()).encode()):
        yield text


def mart_statement(mart: str, *, ledger_scope: str = "true", mart_scope: str = "true") -> str:
    """Return the statement that selects where a mart differs; the scopes are conditions on `ledger.entries as e`, and on the mart."""
    texts = {"mart": mart, **_MARTS[mart], "ledger_scope": ledger_scope, "mart_scope": mart_scope}
    statement = (PROOFS / "marts.sql").read_text()
    for name, text in texts.items():
        statement = statement.replace(f"{{{name}}}", text)
    return statement


def _without_gone(mart: str, scope: _Scope) -> dict[str, str]:
    """Return the conditions that leave out what happened before all rows are here."""
    if not scope.gone:
        return {}
    day = scope.foldable_from.isoformat()
    if _MARTS[mart]["mart_time"] == "local_date":
        return {"ledger_scope": f"e.local_date >= date '{day}'", "mart_scope": f"local_date >= date '{day}'"}
    # A local day begins within a day of the same day in UTC.
    at = f"timestamptz '{day} 00:00+00' + interval '1 day'"
    return {"ledger_scope": f"e.occurred_at >= {at}", "mart_scope": f"starts_at >= {at}"}


def _broken_marts(connection: Connection, scope: _Scope) -> tuple[list[Failure], list[str]]:
    present = {
        name
        for (name,) in connection.execute(
            "select relname from pg_class where relnamespace = to_regnamespace('marts') and relkind = 'r'"
        )
    }
    failures: list[Failure] = []
    notes: list[str] = []
    for mart in _MARTS:
        if not {mart, "watermarks"} <= present:
            notes.append(f"{mart} is not there yet: run `tallystick rollup`")
            continue
        failures += _broken(connection, "marts", mart_statement(mart, **_without_gone(mart, scope)))
        behind = connection.execute(
            "select coalesce(sum(f.last_number - coalesce(w.low, 0)), 0) from ledger.feeds as f"
            " left join marts.watermarks as w on w.feed_id = f.feed_id and w.model = %s",
            [mart],
        ).fetchone()
        if behind and behind[0]:
            batches = "1 batch" if behind[0] == 1 else f"{behind[0]:,} batches"
            notes.append(f"{mart} is {batches} behind and was compared up to its watermark")
    return failures, notes


def _sizes(connection: Connection, scope: _Scope) -> dict[str, int]:
    counted = {
        "batches": "select count(*) from ledger.batches where batch_id >= {first_batch}",
        "entries": "select count(*) from {entries} as e",
        "keys": "select count(*) from ledger.event_keys where batch_id >= {first_batch}",
    }
    if not scope.first_batch:
        counted["requests"] = "select count(*) from ledger.requests"
        counted["windows"] = "select count(*) from quotas.windows"
        counted["documents"] = "select count(*) from billing.documents"
    row = connection.execute(
        scope.filled(f"select {', '.join(f'({statement})' for statement in counted.values())}").encode()
    ).fetchone()
    assert row is not None
    return dict(zip(counted, row, strict=True))


# --- Heads ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Head:
    """The end of a feed's chain as it was published."""

    feed: str
    number: int
    hash: str


def publish_heads(url: str, path: Path, *, now: datetime | None = None) -> list[Head]:
    """Append the chain heads that moved since they were last published, one JSON object a line; return them.

    The file belongs where the database's administrator cannot write: a chain that was made anew from its first batch is
    sound in itself, and only a head that was published before shows it.
    """
    published = {head.feed: head.number for head in _published(path)}
    with _connect(url) as connection:
        rows = connection.execute(
            "select name, last_number, encode(last_hash, 'hex') from ledger.feeds where last_number > 0 order by feed_id"
        ).fetchall()
    moved = [Head(*row) for row in rows if row[1] > published.get(row[0], 0)]
    if moved:
        at = (now or datetime.now(UTC)).isoformat()
        text = "".join(
            json.dumps({"feed": head.feed, "number": head.number, "hash": head.hash, "at": at}) + "\n" for head in moved
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            # A line that a crash cut short must not swallow the first of ours.
            if file.tell() and not _ends_with_newline(path):
                text = "\n" + text
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
    return moved


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _published(path: Path) -> Iterator[Head]:
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                said = json.loads(line)
                yield Head(str(said["feed"]), int(said["number"]), str(said["hash"]))
            except (ValueError, KeyError, TypeError):
                # Cut short by a crash while it was being written; whatever it said was published again after it.
                continue


def _broken_heads(connection: Connection, path: Path) -> Iterator[str]:
    if not path.exists():
        yield f"no heads have been published to {path.name}"
        return
    heads = _published(path)
    is_empty = True
    while listed := list(islice(heads, 1_000)):
        is_empty = False
        rows = connection.execute(
            "select h.feed, h.number, h.hash, encode(b.hash, 'hex')"
            " from unnest(%s::text[], %s::bigint[], %s::text[]) as h (feed, number, hash)"
            " left join ledger.feeds as f on f.name = h.feed"
            " left join ledger.batches as b on b.feed_id = f.feed_id and b.number = h.number"
            " where b.hash is null or encode(b.hash, 'hex') <> h.hash",
            [[head.feed for head in listed], [head.number for head in listed], [head.hash for head in listed]],
        ).fetchall()
        for feed, number, published, found in rows:
            if found is None:
                yield f"feed {feed}: batch {number} was published as {published[:16]}... and is gone"
            else:
                yield f"feed {feed}: batch {number} was published as {published[:16]}... and is now {found[:16]}..."
    if is_empty:
        yield f"no line of {path.name} is a published head"
