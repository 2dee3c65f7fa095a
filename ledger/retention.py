"""Months that leave the ledger: written to Parquet, read back, taken out, and brought back for an investigation.

An export is a folder of parts and a manifest. A part holds whole batches, so that each batch's digest can be made from the
files alone; values stand exactly as Postgres prints them (amounts, JSON, arrays and ids as text; counts, days and instants as
such), so that reading back gives the very lines that the chain covers. A step that was interrupted is taken up by the next
run: parts that are whole are kept, and the month leaves in one transaction.
"""

import asyncio
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from ledger import chain, failpoints
from ledger.approvals import ACTS, Awaiting, second_person
from ledger.database import Connection, change, record_act
from ledger.entries import COLUMNS, NULL, escaped
from ledger.errors import ActRefused
from ledger.money import EXACT
from ledger.posting import ROWS_PER_BATCH
from ledger.times import postgres_text

if TYPE_CHECKING:
    import polars as pl

FORMAT: Final = 1
"""Of parts and manifest."""
ROWS_PER_PART: Final = 100_000
"""About, since a part holds whole batches: what an export holds in memory."""
ACT: Final = "retention.retire"
ACTS[ACT] = "take a closed month's rows out of the ledger"

_TRIES: Final = 30
_PAUSE_SECONDS: Final = 1

_COUNTS: Final = frozenset(
    {
        "entry_id", "batch_id", "entry_no", "corrects_entry_id", "attempt", "sequence", "revision", "request_count",
        "uncached_input_tokens", "cache_read_tokens", "cache_write_5m_tokens", "cache_write_1h_tokens",
        "cache_write_other_tokens", "visible_output_tokens", "reasoning_tokens", "input_tokens", "output_tokens",
        "avoided_tokens", "cost_rate_set_id", "charge_rate_set_id", "max_output_tokens", "delivered_output_tokens",
        "provider_calls", "latency_ms", "ttft_ms", "queue_ms", "prefill_ms", "decode_ms",
    }
)  # fmt: skip
_DAYS: Final = frozenset({"posting_period", "local_date"})
_INSTANTS: Final = frozenset({"occurred_at", "recorded_at"})
_FLAGS: Final = frozenset({"is_final", "reservation_open"})


class RetentionRefused(ActRefused):
    """A month cannot leave the ledger, or its files are not what was posted."""


# --- Which months -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Month:
    """What stands between a month and its leaving, and how far it has come."""

    posting_period: date
    row_count: int
    batch_count: int
    rows_are: str
    """attached, kept or dropped."""
    retired_at: datetime | None
    exported_at: datetime | None
    location: str | None
    open_tenants: Sequence[str]
    """Whose period of it is not closed and sealed."""


_MONTHS: Final = """
select
    d.posting_period,
    sum(d.row_count)::bigint as row_count,
    count(*)::bigint as batch_count,
    coalesce(r.rows_are, 'attached') as rows_are,
    r.retired_at,
    x.at as exported_at,
    x.location,
    array(
        select p.tenant_id
        from ledger.periods as p
        where
            p.posting_period = d.posting_period
            and (
                p.state <> 'closed'
                or not exists (
                    select
                    from ledger.seals as s
                    where
                        s.tenant_id = p.tenant_id
                        and s.posting_period = p.posting_period
                        and s.close_number = p.close_number
                )
            )
        order by p.tenant_id
    ) as open_tenants
from ledger.batch_digests as d
left join ledger.retired_months as r on r.posting_period = d.posting_period
left join lateral (
    select e.at, e.location
    from ledger.retirements as e
    where e.posting_period = d.posting_period and e.step = 'export'
    order by e.retirement_id desc
    limit 1
) as x on true
group by d.posting_period, r.rows_are, r.retired_at, x.at, x.location
order by d.posting_period
"""


async def list_months(connection: Connection) -> list[Month]:
    """List the months that ever had rows, the oldest first."""
    async with connection.cursor(row_factory=class_row(Month)) as cursor:
        await cursor.execute(_MONTHS)
        return await cursor.fetchall()


async def find_month(connection: Connection, month: date) -> Month:
    """Return a month that has, or had, rows."""
    for found in await list_months(connection):
        if found.posting_period == month:
            return found
    raise RetentionRefused(f"{month:%Y-%m} has no rows")


# --- Lines and frames -------------------------------------------------------------------------------------------------


_UNESCAPED: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


def _unescaped(text: str) -> str | None:
    if "\\" not in text:
        return text
    if text == NULL:
        return None
    parts = text.split("\\")
    found, place = [parts[0]], 1
    while place < len(parts):
        part = parts[place]
        if part:
            found.append(_UNESCAPED[part[0]] + part[1:])
            place += 1
        else:
            # Two in a row are one; what follows the second stands as it is.
            found.append("\\" + parts[place + 1])
            place += 2
    return "".join(found)


def schema() -> Mapping[str, Any]:
    """Return the columns of a part with their Polars types."""
    import polars as pl

    types: dict[str, Any] = {}
    for name in COLUMNS:
        if name in _COUNTS:
            types[name] = pl.Int64
        elif name in _DAYS:
            types[name] = pl.Date
        elif name in _INSTANTS:
            types[name] = pl.Datetime("us", "UTC")
        elif name in _FLAGS:
            types[name] = pl.Boolean
        else:
            types[name] = pl.String
    return types


def frame_of(lines: Sequence[bytes]) -> "pl.DataFrame":
    """Return COPY lines as a frame: one row a line, no value changed."""
    import polars as pl

    rows = [line.decode().removesuffix("\n").split("\t") for line in lines]
    columns: dict[str, Any] = {}
    for place, (name, kind) in enumerate(schema().items()):
        values = [_unescaped(row[place]) for row in rows]
        if name in _COUNTS:
            columns[name] = pl.Series(name, [None if v is None else int(v) for v in values], dtype=kind)
        elif name in _FLAGS:
            columns[name] = pl.Series(name, [None if v is None else v == "t" for v in values], dtype=kind)
        elif name in _DAYS:
            columns[name] = pl.Series(name, [None if v is None else date.fromisoformat(v) for v in values], dtype=kind)
        elif name in _INSTANTS:
            columns[name] = pl.Series(
                name, [None if v is None else datetime.fromisoformat(v) for v in values], dtype=kind
            )
        else:
            columns[name] = pl.Series(name, values, dtype=kind)
    return pl.DataFrame(columns)


def lines_of(frame: "pl.DataFrame") -> list[bytes]:
    """Return a frame's rows as COPY lines, as Postgres printed them."""
    columns = []
    for name in COLUMNS:
        series = frame[name]
        if name in _INSTANTS:
            columns.append([NULL if v is None else postgres_text(v) for v in series.to_physical().to_list()])
        elif name in _FLAGS:
            columns.append([NULL if v is None else "t" if v else "f" for v in series.to_list()])
        elif name in _COUNTS or name in _DAYS:
            columns.append([NULL if v is None else str(v) for v in series.to_list()])
        else:
            columns.append([escaped(v) for v in series.to_list()])
    return [("\t".join(values) + "\n").encode() for values in zip(*columns, strict=True)]


def _digests_of(lines: Sequence[bytes]) -> Iterator[tuple[int, int, bytes]]:
    """Yield (batch id, row count, digest) of lines in entry_id order."""
    batch_id, listed = -1, list[bytes]()
    for line in lines:
        of = int(line[: line.index(b"\t")]) // ROWS_PER_BATCH
        if of != batch_id:
            if listed:
                yield batch_id, len(listed), chain.digest(b"".join(listed))
            batch_id, listed = of, []
        listed.append(line)
    if listed:
        yield batch_id, len(listed), chain.digest(b"".join(listed))


# --- Export -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Export:
    """A month in files, read back and held against its digests."""

    posting_period: date
    folder: Path
    row_count: int
    batch_count: int
    part_count: int
    byte_count: int
    manifest_hash: str


_Stated = Sequence[tuple[int, int, bytes]]
"""(batch id, row count, digest) of each batch of a month, by batch id."""


async def _stated(connection: Connection, month: date) -> _Stated:
    cursor = await connection.execute(
        "select batch_id, row_count, digest from ledger.batch_digests where posting_period = %s order by batch_id",
        [month],
    )
    return [(batch_id, count, bytes(digest)) for batch_id, count, digest in await cursor.fetchall()]


async def export_month(
    connection: Connection,
    month: date,
    folder: Path,
    *,
    actor: str,
    on_rows: Callable[[int], None] = lambda _: None,
) -> Export:
    """Write a closed and sealed month to Parquet under `folder`, read every file back, and note the export.

    `on_rows` hears how many rows more are written and proved. A run that was interrupted is taken up: parts that are whole
    are read and kept. Errors: RetentionRefused where the month is not closed, or what is read is not what was posted.
    """
    found = await find_month(connection, month)
    if found.rows_are != "attached":
        raise RetentionRefused(f"the rows of {month:%Y-%m} are not in the ledger: they are {found.rows_are}")
    if found.open_tenants:
        raise RetentionRefused(f"{month:%Y-%m} is not closed and sealed for {', '.join(found.open_tenants)}")
    home = folder / f"entries-{month:%Y-%m}"
    home.mkdir(parents=True, exist_ok=True)
    stated = await _stated(connection, month)
    parts = _whole_parts(home, stated, on_rows)
    done = sum(part["batches"] for part in parts)
    while done < len(stated):
        taken, rows = done, 0
        while taken < len(stated) and (rows == 0 or rows + stated[taken][1] <= ROWS_PER_PART):
            rows += stated[taken][1]
            taken += 1
        lines = await _rows(connection, month, stated[done][0], stated[taken - 1][0])
        _check(month, stated[done:taken], lines)
        parts.append(_write_part(home, len(parts), lines, taken - done))
        on_rows(len(lines))
        done = taken
    failpoints.hit("retention.before_manifest")
    manifest = await _manifest(connection, month, parts, stated)
    manifest_bytes = manifest_text(manifest)
    _write(home / "manifest.json", manifest_bytes)
    failpoints.hit("retention.before_noted")
    export = Export(
        month,
        home,
        manifest["row_count"],
        manifest["batch_count"],
        len(parts),
        sum(part["bytes"] for part in parts),
        sha256(manifest_bytes).hexdigest(),
    )
    async with connection.transaction():
        await connection.execute(
            "insert into ledger.retirements"
            " (posting_period, step, rows_are, row_count, location, manifest, manifest_hash, actor)"
            " values (%s, 'export', 'attached', %s, %s, %s, %s, %s)",
            [month, export.row_count, str(home), Jsonb(manifest), bytes.fromhex(export.manifest_hash), actor],
        )
        detail = {
            "month": f"{month:%Y-%m}",
            "rows": export.row_count,
            "location": str(home),
            "manifest": export.manifest_hash,
        }
        await record_act(connection, actor, "retention.export", detail)
        failpoints.hit("retention.before_export_commit")
    return export


async def _rows(connection: Connection, month: date, first: int, last: int) -> list[bytes]:
    """Read the rows of batches as COPY prints them."""
    statement = (
        f"copy (select {', '.join(COLUMNS)} from ledger.entries where posting_period = '{month.isoformat()}'"
        f" and entry_id >= {first * ROWS_PER_BATCH} and entry_id < {(last + 1) * ROWS_PER_BATCH} order by entry_id) to stdout"
    )
    async with connection.cursor().copy(statement) as copy:
        # The protocol gives one message for each row.
        return [bytes(row) async for row in copy]


def _check(month: date, stated: _Stated, lines: Sequence[bytes]) -> None:
    """Raise RetentionRefused unless these lines are these batches, row for row."""
    if list(_digests_of(lines)) != list(stated):
        found = {batch_id: (count, digest) for batch_id, count, digest in _digests_of(lines)}
        for batch_id, count, digest in stated:
            if found.get(batch_id) != (count, digest):
                raise RetentionRefused(f"{month:%Y-%m}: the rows of batch id {batch_id} are not what was posted")
        raise RetentionRefused(f"{month:%Y-%m}: there are rows of batches that posted none in it")


def _write_part(home: Path, number: int, lines: Sequence[bytes], batches: int) -> dict[str, Any]:
    path = home / f"part-{number:05}.parquet"
    new = path.with_suffix(".new")
    frame_of(lines).write_parquet(new, compression="zstd", statistics=True)
    failpoints.hit("retention.part_written")
    described = _described(new, path.name, batches)
    if _lines_in(new) != list(lines):
        raise RetentionRefused(f"{path.name} reads back otherwise than it was written")
    _sync(new)
    new.rename(path)
    _sync(home)
    failpoints.hit("retention.part_named")
    return described


def _described(path: Path, name: str, batches: int) -> dict[str, Any]:
    import polars as pl

    ids = pl.read_parquet(path, columns=["entry_id"])["entry_id"]
    return {
        "file": name,
        "rows": len(ids),
        "batches": batches,
        "first_entry_id": ids[0],
        "last_entry_id": ids[-1],
        "bytes": path.stat().st_size,
        "sha256": _sha256_of(path),
    }


def _lines_in(path: Path) -> list[bytes]:
    import polars as pl

    return lines_of(pl.read_parquet(path))


def _whole_parts(home: Path, stated: _Stated, on_rows: Callable[[int], None]) -> list[dict[str, Any]]:
    """Return the parts that an earlier run finished, in order, as far as they are what was posted."""
    parts: list[dict[str, Any]] = []
    done = 0
    for number in range(len(stated)):
        path = home / f"part-{number:05}.parquet"
        if not path.exists():
            break
        lines = _lines_in(path)
        found = list(_digests_of(lines))
        if found != list(stated[done : done + len(found)]):
            # Of another database, or of the month before it was opened and closed again.
            break
        parts.append(_described(path, path.name, len(found)))
        done += len(found)
        on_rows(len(lines))
    for left in home.glob("part-*"):
        if left.name not in {part["file"] for part in parts}:
            left.unlink()
    return parts


async def _manifest(
    connection: Connection, month: date, parts: Sequence[Mapping[str, Any]], stated: _Stated
) -> dict[str, Any]:
    cursor = await connection.execute(
        "select version_num, (select jsonb_agg(jsonb_build_array(cost_sums, charge_sums))"
        " from ledger.batch_digests where posting_period = %s) from ledger.alembic_version",
        [month],
    )
    row = await cursor.fetchone()
    assert row is not None
    sums: list[dict[str, Decimal]] = [{}, {}]
    for pair in row[1] or ():
        for totals, stated_sums in zip(sums, pair, strict=True):
            for currency, amount in stated_sums.items():
                totals[currency] = EXACT.add(totals.get(currency, Decimal(0)), Decimal(amount))
    return {
        "format": FORMAT,
        "table": "ledger.entries",
        "posting_period": month.isoformat(),
        "schema_version": row[0],
        "hash_version": chain.HASH_VERSION,
        "columns": list(COLUMNS),
        "row_count": sum(count for _, count, _ in stated),
        "batch_count": len(stated),
        "cost_sums": {currency: f"{amount:f}" for currency, amount in sorted(sums[0].items())},
        "charge_sums": {currency: f"{amount:f}" for currency, amount in sorted(sums[1].items())},
        "digests_sha256": digests_hash(stated),
        "parts": list(parts),
    }


def manifest_text(manifest: Mapping[str, Any]) -> bytes:
    """Return a manifest as it stands in its file, which is what its hash covers."""
    return (json.dumps(manifest, indent=2, sort_keys=True) + "\n").encode()


def digests_hash(stated: Iterable[tuple[int, int, bytes]]) -> str:
    """Return the SHA-256 over (batch id, row count, digest) of a month's batches, by batch id."""
    lines = "".join(f"{batch_id} {count} {digest.hex()}\n" for batch_id, count, digest in stated)
    return sha256(lines.encode()).hexdigest()


def _sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        hashed = sha256()
        while block := file.read(1 << 20):
            hashed.update(block)
    return hashed.hexdigest()


def _write(path: Path, content: bytes) -> None:
    new = path.with_suffix(".new")
    new.write_bytes(content)
    _sync(new)
    new.rename(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_export(home: Path, manifest_hash: str | None = None) -> Mapping[str, Any]:
    """Return the manifest of an export whose files are all there and unchanged; `manifest_hash` is what was noted of it."""
    try:
        content = (home / "manifest.json").read_bytes()
    except OSError:
        raise RetentionRefused(f"{home} holds no export: it has no manifest.json") from None
    if manifest_hash is not None and sha256(content).hexdigest() != manifest_hash:
        raise RetentionRefused(f"{home / 'manifest.json'} is not the manifest that was noted")
    manifest: Mapping[str, Any] = json.loads(content)
    if manifest.get("format") != FORMAT or manifest.get("columns") != list(COLUMNS):
        raise RetentionRefused(f"{home} was written by another version: its format or columns are not ours")
    for part in manifest["parts"]:
        path = home / part["file"]
        if not path.is_file():
            raise RetentionRefused(f"{path} is missing")
        if _sha256_of(path) != part["sha256"]:
            raise RetentionRefused(f"{path} is not the file that was written")
    return manifest


# --- Retire and restore -----------------------------------------------------------------------------------------------


async def retire_month(
    connection: Connection,
    month: date,
    *,
    keep: bool,
    actor: str,
    reason: str,
    needed: Collection[str] = (),
    home: Path | None = None,
) -> Month | Awaiting:
    """Take a month's rows out of the ledger, in one transaction with the act; keys, requests, batches, digests and seals stay.

    `keep` leaves them in a table of the owner's; otherwise the export is all there is. `home` says where the export lies
    now, if it was moved. Errors: RetentionRefused where the export is missing or changed, a mart has not read the month, or
    the database refuses.
    """
    cursor = await connection.execute(
        "select location, encode(manifest_hash, 'hex') from ledger.retirements"
        " where posting_period = %s and step = 'export' order by retirement_id desc limit 1",
        [month],
    )
    noted = await cursor.fetchone()
    if noted is None:
        raise RetentionRefused(f"{month:%Y-%m} has not been exported: `tallystick retention export {month:%Y-%m}`")
    read_export(home or Path(noted[0]), noted[1])
    await _check_marts(connection, month)
    detail = {"month": f"{month:%Y-%m}", "keep": keep, "manifest": noted[1]}
    for tries in range(_TRIES):
        try:
            async with change(connection, "calendar"):
                verdict = await second_person(connection, needed, ACT, detail, actor=actor, reason=reason)
                if isinstance(verdict, Awaiting):
                    return verdict
                await connection.execute("select ledger.retire_partition(%s, %s, %s, %s)", [month, keep, actor, reason])
                failpoints.hit("retention.before_act")
                await record_act(connection, actor, ACT, detail, reason, verdict.second_person)
                failpoints.hit("retention.before_commit")
            failpoints.hit("retention.after_commit")
            return await find_month(connection, month)
        except psycopg.errors.LockNotAvailable:
            # Somebody reads the ledger; whoever comes behind us must not wait for them too.
            if tries == _TRIES - 1:
                raise RetentionRefused(
                    f"{month:%Y-%m} is being read all the time: nothing was changed, try again"
                ) from None
            await asyncio.sleep(_PAUSE_SECONDS)
        except psycopg.Error as error:
            raise _said(error) from None
    raise AssertionError("the last try returns or raises")


def _said(error: psycopg.Error) -> Exception:
    if error.sqlstate == "TS004":
        return RetentionRefused(str(error.diag.message_primary))
    return error


async def _check_marts(connection: Connection, month: date) -> None:
    """Raise RetentionRefused where a mart has not yet consumed a batch of the month: it could not do so any more."""
    cursor = await connection.execute("select to_regclass('marts.watermarks') is not null")
    if await cursor.fetchone() != (True,):
        return
    cursor = await connection.execute(
        """
        select w.model, f.name
        from marts.watermarks as w
        join ledger.feeds as f on f.feed_id = w.feed_id
        where exists (
            select
            from ledger.batch_digests as d
            join ledger.batches as b on b.batch_id = d.batch_id
            where d.posting_period = %s and b.feed_id = w.feed_id and b.number > w.low
        )
        union all
        select m.model, f.name
        from (select distinct model from marts.watermarks) as m
        cross join ledger.feeds as f
        where
            not exists (select from marts.watermarks as w where w.model = m.model and w.feed_id = f.feed_id)
            and exists (
                select
                from ledger.batch_digests as d
                join ledger.batches as b on b.batch_id = d.batch_id
                where d.posting_period = %s and b.feed_id = f.feed_id
            )
        limit 1
        """,
        [month, month],
    )
    behind = await cursor.fetchone()
    if behind is not None:
        raise RetentionRefused(
            f"the mart {behind[0]} has not read all batches of feed {behind[1]} in {month:%Y-%m}: run `tallystick rollup` first"
        )


async def restore_month(
    connection: Connection,
    month: date,
    home: Path | None = None,
    *,
    actor: str,
    reason: str,
    on_rows: Callable[[int], None] = lambda _: None,
) -> int:
    """Make a retired month readable again for an investigation, from its kept table or its files; return its rows.

    The database attaches them only if the digest of each batch is what was noted when it was posted. The month stays
    retired: nothing is posted, corrected or repriced in it. Errors: RetentionRefused.
    """
    try:
        cursor = await connection.execute("select ledger.begin_restore(%s)", [month])
        row = await cursor.fetchone()
        table = row[0] if row else None
        if table is not None:
            cursor = await connection.execute(
                "select location, encode(manifest_hash, 'hex') from ledger.retired_months where posting_period = %s",
                [month],
            )
            noted = await cursor.fetchone()
            assert noted is not None
            # Whatever folder is named: the digests decide whether its rows are the month's.
            found = home or Path(noted[0])
            manifest = read_export(found)
            for part in manifest["parts"]:
                lines = _lines_in(found / part["file"])
                async with connection.cursor().copy(f"copy {table} ({', '.join(COLUMNS)}) from stdin") as copy:
                    await copy.write(b"".join(lines))
                on_rows(len(lines))
                failpoints.hit("retention.part_restored")
        for tries in range(_TRIES):
            try:
                async with connection.transaction():
                    cursor = await connection.execute(
                        "select ledger.finish_restore(%s, %s, %s)", [month, actor, reason]
                    )
                    done = await cursor.fetchone()
                    await record_act(connection, actor, "retention.restore", {"month": f"{month:%Y-%m}"}, reason)
                    failpoints.hit("retention.before_restore_commit")
                assert done is not None
                return int(done[0])
            except psycopg.errors.LockNotAvailable:
                if tries == _TRIES - 1:
                    raise RetentionRefused(f"{month:%Y-%m} is being read all the time: try again") from None
                await asyncio.sleep(_PAUSE_SECONDS)
    except psycopg.Error as error:
        raise _said(error) from None
    raise AssertionError("the last try returns or raises")
