"""The refold: every bucket of every mart that is a fold, folded again from the whole ledger and held against what stands.

What a run adds or makes anew is never read again by a run; this reads it all, each night. The text that is run is the model's own, with all
rows up to the mart's watermark in place of those that a run would add (`refolded_from` in dbt/macros/watermarks.sql), so a new
mart is held to it without a line of its own. That the models themselves mean the right thing is for `verify` and dbt's tests,
which say it a second time.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg import sql

from ledger.tables import SEAL_DIMENSIONS, SEAL_MEASURES
from tallystick.addresses import libpq_url
from tallystick.rollup import FoldText, compiled_for_refold
from tallystick.verify import Failure, Proof

NAMED_MAX: Final = 20
"""Buckets of each mart that are named; all are counted."""
SETTINGS: Final = (
    # As for `verify`: compiling never pays off, and what is sorted or hashed should mostly stay in memory.
    "set local jit = off",
    "set local work_mem = '64MB'",
    # The planner takes the groups for many and wide, and would sort all rows on disk; groups that pass the memory go to disk by
    # parts, and rows never do.
    "set local enable_sort = off",
)
_SEAL_KEY: Final = {"tenant_id", "local_date", *(name for name, _ in SEAL_DIMENSIONS)}
_SEAL_MEASURES: Final = {name for name, _ in SEAL_MEASURES}
_BUCKETS: Final = ("starts_at", "local_date")


@dataclass(frozen=True, slots=True)
class Refolded:
    """One mart that was held against its fold."""

    mart: str
    row_count: int
    """Buckets of the mart and of its fold, each once."""
    difference_count: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Refold:
    """What was folded again, and what differs."""

    marts: Sequence[Refolded]
    differences: Sequence[str]
    """In words; at most NAMED_MAX of each mart."""
    notes: Sequence[str]
    """What could not be compared."""
    start_seconds: float
    """Importing dbt and reading the project."""
    seconds: float

    @property
    def difference_count(self) -> int:
        return sum(mart.difference_count for mart in self.marts)


def refold(url: str, home: Path, *, marts: Sequence[str] = (), on_mart: Callable[[str], None] | None = None) -> Refold:
    """Fold each mart again, up to its watermark, and compare every bucket, in one snapshot.

    `url` logs in as tallystick_rollup; `marts` names some of them, else it is all. Time is that of one grouping of the whole ledger for each mart. Days of months whose rows
    have left are held against their seals where a mart has the dimensions of seals, and are left out and noted elsewhere.
    """
    started = time.monotonic()
    texts = compiled_for_refold(url, home)
    start_seconds = time.monotonic() - started
    found: list[Refolded] = []
    differences: list[str] = []
    notes: list[str] = []
    started = time.monotonic()
    with psycopg.connect(libpq_url(url), autocommit=True, options="-c timezone=UTC") as connection:
        connection.execute("begin isolation level repeatable read read only")
        for setting in SETTINGS:
            connection.execute(setting.encode())
        gone = [
            month
            for (month,) in connection.execute(
                "select posting_period from ledger.retired_months where not is_readable order by 1"
            )
        ]
        for mart, text in texts.items():
            if marts and mart not in marts:
                continue
            if on_mart is not None:
                on_mart(mart)
            if connection.execute("select to_regclass('marts.' || %s)", [mart]).fetchone() == (None,):
                notes.append(f"{mart} is not there yet: run `tallystick rollup`")
                continue
            one = time.monotonic()
            measures = [name for name in _measures(connection, mart, text.keys) if name not in text.uncompared]
            compared, note = _comparison(mart, text, measures, gone)
            if note is not None:
                notes.append(note)
            rows = connection.execute(compared).fetchall()
            row_count, count = rows[0][:2]
            broken = [row[2:] for row in rows if row[2] is not None]
            differences += [_in_words(mart, text.keys, *row) for row in broken]
            found.append(Refolded(mart, row_count, count, time.monotonic() - one))
    return Refold(found, differences, notes, start_seconds, time.monotonic() - started)


def added(proof: Proof, found: Refold) -> Proof:
    """Return the proof of everything with the refold in it, as the nightly one is written down."""
    failures = [*proof.failures, *(Failure("marts", text) for text in found.differences)]
    more = found.difference_count - len(found.differences)
    if more:
        failures.append(Failure("marts", f"and {more:,} more buckets that are not their fold"))
    return replace(
        proof,
        failures=failures,
        checked={**proof.checked, "mart buckets": sum(mart.row_count for mart in found.marts)},
        notes=[*proof.notes, *found.notes],
        seconds=proof.seconds + found.start_seconds + found.seconds,
    )


def _measures(connection: psycopg.Connection, mart: str, keys: Sequence[str]) -> list[str]:
    rows = connection.execute(
        "select attname::text from pg_attribute where attrelid = to_regclass('marts.' || %s)"
        " and attnum > 0 and not attisdropped order by attnum",
        [mart],
    )
    return [name for (name,) in rows if name not in keys]


def _comparison(
    mart: str, text: FoldText, measures: Sequence[str], gone: Sequence[date]
) -> tuple[sql.Composed, str | None]:
    """Return the statement that compares, and what it leaves out.

    Shape: at most NAMED_MAX rows of (buckets, differing buckets, key, what the mart says, what the ledger says), the last three as
    objects; one row with nulls where nothing differs.
    """
    keys, fold = text.keys, text.sql
    has_seals = set(keys) == _SEAL_KEY and set(measures) <= _SEAL_MEASURES
    bucket = next((name for name in _BUCKETS if name in keys), None)
    texts: dict[str, sql.Composable] = {"fold": sql.SQL(fold), "scope": sql.SQL("true")}  # type: ignore[arg-type]
    note = None
    if gone and has_seals:
        texts["fold"] = _with_seals(fold, keys, measures, gone)
    elif gone and bucket is not None:
        from_day = _foldable_from(gone)
        # A local day begins within a day of the same day in UTC.
        edge = "date {}" if bucket == "local_date" else "(timestamptz {} + interval '1 day')"
        edge_text = sql.SQL(edge).format(sql.Literal(from_day.isoformat()))  # type: ignore[arg-type]
        texts["scope"] = sql.SQL("{} >= {}").format(sql.Identifier(bucket), edge_text)
        note = f"{mart} was compared from {from_day} on: the rows of before have left the ledger"
    elif gone:
        note = f"{mart} was not compared: it knows no time, and rows of {gone[0]:%Y-%m} have left the ledger"
        texts["scope"] = sql.SQL("false")
    comma = sql.SQL(", ")
    # Of a row that is there and says null, and of one that is not.
    marks = keys[:1] if text.is_recomputed else []

    def each(names: Sequence[str], of: str) -> sql.Composed:
        return comma.join(sql.Identifier(of, name) for name in names)

    def values(of: str) -> sql.Composed:
        # A bucket that was emptied, and none, say the same of a mart that adds.
        value = "{}" if text.is_recomputed else "coalesce({}, 0)"
        return comma.join(sql.SQL(value).format(sql.Identifier(of, name)) for name in [*measures, *marks])

    def as_object(names: Sequence[str], of: str) -> sql.Composed:
        return sql.SQL("jsonb_build_object({})").format(
            comma.join(
                part
                for name in names
                for part in (sql.Literal(name), sql.SQL("{}::text").format(sql.Identifier(of, name)))
            )
        )

    compared = sql.SQL(
        """
        with refolded as (
            select * from ({fold}) as folded where {scope}
        ),
        standing as (
            select * from {mart} where {scope}
        ),
        compared as (
            -- Said in words only where they differ: as text, the rows of a mart are many times what they are.
            select
                held.is_broken,
                case when held.is_broken then {key} end as key,
                case when held.is_broken then {said} end as said,
                case when held.is_broken then {meant} end as meant
            from standing as s
            full join refolded as r on ({our_key}) = ({their_key})
            cross join lateral (select ({ours}) is distinct from ({theirs}) as is_broken offset 0) as held
        ),
        counted as (
            select count(*) as bucket_count, count(*) filter (where is_broken) as broken_count from compared
        )
        select c.bucket_count, c.broken_count, b.key, b.said, b.meant
        from counted as c
        left join (
            select key, said, meant from compared where is_broken order by key limit {named_max}
        ) as b on true
        """
    ).format(
        fold=texts["fold"],
        scope=texts["scope"],
        mart=sql.Identifier("marts", mart),
        key=sql.SQL("jsonb_build_object({})").format(
            comma.join(
                part
                for name in keys
                for part in (
                    sql.Literal(name),
                    sql.SQL("coalesce(s.{0}, r.{0})::text").format(sql.Identifier(name)),
                )
            )
        ),
        said=as_object(measures, "s"),
        meant=as_object(measures, "r"),
        ours=values("s"),
        theirs=values("r"),
        our_key=each(keys, "s"),
        their_key=each(keys, "r"),
        named_max=sql.Literal(NAMED_MAX),
    )
    return compared, note


def _with_seals(fold: str, keys: Sequence[str], measures: Sequence[str], gone: Sequence[date]) -> sql.Composed:
    """Add to a fold what the seals say of months whose rows have left; late usage of their days may stand in later ones."""
    comma = sql.SQL(", ")
    dimensions = {name for name, _ in SEAL_DIMENSIONS}
    return sql.SQL(
        "select {keys}, {sums} from ("
        "select {keys}, {measures} from ({fold}) as rows_here union all"
        " select {sealed}, {measures} from ledger.seal_lines as l join ledger.periods as p"
        " on p.tenant_id = l.tenant_id and p.posting_period = l.posting_period and p.close_number = l.close_number"
        " where l.posting_period = any({gone})"
        ") as both_parts group by {keys}"
    ).format(
        keys=comma.join(map(sql.Identifier, keys)),
        sums=comma.join(
            # A sum of bigint is numeric, which equals the mart's number all the same.
            sql.SQL("sum({0}) as {0}").format(sql.Identifier(name))
            for name in measures
        ),
        measures=comma.join(map(sql.Identifier, measures)),
        fold=sql.SQL(fold),  # type: ignore[arg-type]
        sealed=comma.join(
            sql.SQL("coalesce(l.{0}::text, '') as {0}" if name in dimensions else "l.{0}").format(sql.Identifier(name))
            for name in keys
        ),
        gone=sql.Literal(list(gone)),
    )


def _foldable_from(gone: Sequence[date]) -> date:
    """The first day of which all rows are here: late usage is posted in its own month or a later one, never an earlier."""
    last = max(gone)
    return date(last.year + last.month // 12, last.month % 12 + 1, 1)


def _in_words(
    mart: str,
    keys: Sequence[str],
    key: Mapping[str, str],
    said: Mapping[str, str | None],
    meant: Mapping[str, str | None],
) -> str:
    """Name the bucket by tenant and time first, then by whatever else is not empty, and each number that differs."""
    first = [name for name in ("tenant_id", *_BUCKETS) if name in keys]
    named = [f"{_WORDS.get(name, name)} {_time(name, key[name])}" for name in first if key[name]]
    named += [f"{name} {key[name]}" for name in keys if name not in first and key[name]]
    if all(value is None for value in meant.values()):
        what = "the ledger has no such row"
    elif all(value is None for value in said.values()):
        what = "the mart lacks the row"
    else:
        what = "; ".join(
            f"the mart says {name} {said[name]}, the ledger {meant[name]}" for name in said if said[name] != meant[name]
        )
    return f"{mart}: {', '.join(named)}: {what}"


_WORDS: Final[Mapping[str, Any]] = {"tenant_id": "tenant", "starts_at": "from", "local_date": "local day"}


def _time(name: str, text: str) -> str:
    if name != "starts_at":
        return text
    return f"{datetime.fromisoformat(text.replace('+00', '+00:00')).astimezone(UTC):%Y-%m-%d %H:%M} UTC"
