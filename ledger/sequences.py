"""Senders' counters: which numbers came, and which are missing between them.

Numbers are taken from new batches into ranges by source, so `post` pays for nothing and a question costs the number of gaps.
A number is the source's own, whoever the tenant is. What came late fills its gap; what came again under the same event is
no second entry; what lies in a dead letter is set aside and not lost (view `missing_sequences`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final, Literal

from psycopg.rows import class_row

from ledger.database import Connection, record_act
from ledger.errors import ActRefused

Ranges = list[tuple[int, int]]
"""Stretches of numbers, both ends inclusive, in order, with a hole between any two."""

GRACE: Final = timedelta(minutes=15)
"""A younger gap is open: what is missing may be late."""
JUMP: Final = 1000
"""How far the numbers of one sender come out of order."""
RANGES_MAX: Final = 100_000
"""A run with more holes than this is no counter."""
_LOCK: Final = 7_411_005
_BATCHES_AT_ONCE: Final = 200


# --- Pure: ranges, and to which run a number belongs ------------------------------------------------------------------


def holds(ranges: Ranges, number: int) -> bool:
    """Say whether a number lies in ranges."""
    low, high = 0, len(ranges)
    while low < high:
        middle = (low + high) // 2
        if ranges[middle][1] < number:
            low = middle + 1
        else:
            high = middle
    return low < len(ranges) and ranges[low][0] <= number


def joined(*many: Iterable[tuple[int, int]]) -> Ranges:
    """Return all numbers of ranges as ranges."""
    result: Ranges = []
    for low, high in sorted(each for ranges in many for each in ranges):
        if result and low <= result[-1][1] + 1:
            if high > result[-1][1]:
                result[-1] = (result[-1][0], high)
        else:
            result.append((low, high))
    return result


def holes(ranges: Ranges) -> Ranges:
    """Return what is missing between ranges."""
    return [(before[1] + 1, after[0] - 1) for before, after in pairwise(ranges)]


def overlap(one: Ranges, other: Ranges) -> bool:
    """Say whether two have a number in common."""
    at = 0
    for low, high in one:
        while at < len(other) and other[at][1] < low:
            at += 1
        if at < len(other) and other[at][0] <= high:
            return True
    return False


@dataclass(slots=True)
class Run:
    """A stretch of a counter's life, from one restart to the next."""

    run: int
    seen: Ranges
    first_at: datetime
    last_at: datetime
    repeats: int = 0
    is_sparse: bool = False
    is_changed: bool = False

    @property
    def low(self) -> int:
        return self.seen[0][0]

    @property
    def high(self) -> int:
        return self.seen[-1][1]

    def add(self, ranges: Iterable[tuple[int, int]], at: datetime) -> None:
        self.is_changed = True
        self.last_at = max(self.last_at, at)
        if self.is_sparse:
            return
        self.seen = joined(self.seen, ranges)
        if len(self.seen) > RANGES_MAX:
            self.is_sparse, self.seen = True, [(self.low, self.high)]


@dataclass(slots=True)
class Counter:
    """The counter of one source: its newest run, and the one before."""

    runs: list[Run] = field(default_factory=list)

    def take_all(self, ranges: Ranges, at: datetime) -> bool:
        """Take numbers that came in one batch, each under one event; say no where they need to be looked at one by one."""
        if not self.runs:
            self.runs.append(Run(1, list(ranges), at, at, is_changed=True))
            return True
        current = self.runs[-1]
        if current.is_sparse:
            current.add((), at)
            return True
        is_ordinary = (
            ranges[0][0] > 1
            and (ranges[-1][1] <= current.high + JUMP or len(self.runs) == 1)
            and not overlap(ranges, current.seen)
        )
        if is_ordinary:
            current.add(ranges, at)
        return is_ordinary

    def take(self, number: int, at: datetime) -> None:
        """Take one number: into the newest run, into the one before where it comes late, or as the first of another."""
        if not self.runs:
            self.runs.append(Run(1, [(number, number)], at, at, is_changed=True))
            return
        current = self.runs[-1]
        if current.is_sparse:
            current.add((), at)
            return
        before = self.runs[-2] if len(self.runs) > 1 and not self.runs[-2].is_sparse else None
        is_known = holds(current.seen, number)
        if before is not None and (is_known or number > current.high + JUMP):
            # What the newest run has too is late only where the older one has a hole for it.
            behind = before.high if is_known else before.high + JUMP
            if before.low < number <= behind and not holds(before.seen, number):
                before.add([(number, number)], at)
                return
        if number <= 1 and (is_known or current.low > number + JUMP):
            self.runs.append(Run(current.run + 1, [(number, number)], at, at, is_changed=True))
        elif is_known:
            # Not a restart, which begins at 0 or 1: several processes count under one name.
            current.repeats += 1
            current.add((), at)
        else:
            current.add([(number, number)], at)


# --- Taking new batches -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Taken:
    """What a run of `take_sequences` did."""

    batch_count: int
    number_count: int


async def take_sequences(connection: Connection) -> Taken:
    """Take the sequences of all batches that were not yet taken, some hundred batches in a transaction. As the operator."""
    batches = numbers = 0
    while True:
        async with connection.transaction():
            await connection.execute("select pg_advisory_xact_lock(%s)", [_LOCK])
            taken, found = await _take_some(connection)
        if not taken:
            return Taken(batches, numbers)
        batches, numbers = batches + taken, numbers + found


# Ranges of the primary key, one for each batch and month; `offset 0` keeps the loops nested.
_ROWS: Final = """
from unnest(%(batch_ids)s::bigint[]) as b (batch_id)
cross join lateral (
    select p.posting_period from ledger.batch_digests as p where p.batch_id = b.batch_id offset 0
) as d
cross join lateral (
    select r.source, r.sequence, r.event_key, r.entry_id, r.recorded_at
    from ledger.entries as r
    where r.posting_period = d.posting_period
        and r.entry_id >= b.batch_id * 65536 and r.entry_id < (b.batch_id + 1) * 65536
        and r.sequence is not null and r.actor is null and r.kind in ('usage', 'true_up', 'evidence')
    offset 0
) as e
"""

_NUMBERS: Final = f"""
select
    source,
    max(recorded_at),
    count(*) = count(distinct sequence) as is_plain,
    array_agg(sequence order by entry_id) as numbers
from (
    select b.batch_id, e.source, e.sequence, e.event_key, min(e.entry_id) as entry_id, max(e.recorded_at) as recorded_at
    {_ROWS}
    group by 1, 2, 3, 4
) as events
group by batch_id, source
order by batch_id, source
"""


async def _take_some(connection: Connection) -> tuple[int, int]:
    cursor = await connection.execute(
        "select b.batch_id, b.feed_id, b.number from ledger.batches as b"
        " left join ledger.sequence_marks as m on m.feed_id = b.feed_id"
        " where b.number > coalesce(m.number, 0) order by b.batch_id limit %s",
        [_BATCHES_AT_ONCE],
    )
    batches = await cursor.fetchall()
    if not batches:
        return 0, 0
    cursor = await connection.execute(_NUMBERS, {"batch_ids": [batch_id for batch_id, _, _ in batches]})
    groups = await cursor.fetchall()
    counters = await _counters(connection, sorted({group[0] for group in groups}))
    for source, at, is_plain, numbers in groups:
        counter = counters[source]
        if not is_plain or not counter.take_all(joined((number, number) for number in numbers), at):
            for number in numbers:
                counter.take(number, at)
    for source, counter in counters.items():
        for run in counter.runs:
            if run.is_changed:
                await _keep(connection, source, run)
    marks: dict[int, int] = {}
    for _, feed_id, number in batches:
        marks[feed_id] = max(number, marks.get(feed_id, 0))
    await connection.execute(
        "insert into ledger.sequence_marks (feed_id, number) select * from unnest(%s::int[], %s::bigint[])"
        " on conflict (feed_id) do update set number = excluded.number",
        [list(marks), list(marks.values())],
    )
    return len(batches), sum(len(numbers) for *_, numbers in groups)


async def _counters(connection: Connection, sources: Sequence[str]) -> dict[str, Counter]:
    """Read the newest two runs of each source."""
    cursor = await connection.execute(
        "select source, run, seen, first_at, last_at, repeats, is_sparse from ("
        "select r.*, row_number() over (partition by source order by run desc) as age"
        " from ledger.sequence_runs as r where source = any(%s)) as r where age <= 2 order by source, run",
        [list(sources)],
    )
    counters = {source: Counter() for source in sources}
    for source, run, seen, first_at, last_at, repeats, is_sparse in await cursor.fetchall():
        ranges = [(each.lower, each.upper - 1) for each in seen]
        counters[source].runs.append(Run(run, ranges, first_at, last_at, repeats, is_sparse))
    return counters


async def _keep(connection: Connection, source: str, run: Run) -> None:
    """Write a run, and its gaps: one that was there keeps the time at which it was noted, however much of it is left."""
    literal = "{" + ",".join(f"[{low},{high}]" for low, high in run.seen) + "}"
    await connection.execute(
        "insert into ledger.sequence_runs (source, run, seen, repeats, is_sparse, first_at, last_at)"
        " values (%s, %s, %s::int8multirange, %s, %s, %s, %s)"
        " on conflict (source, run) do update set seen = excluded.seen, repeats = excluded.repeats,"
        " is_sparse = excluded.is_sparse, last_at = excluded.last_at",
        [source, run.run, literal, run.repeats, run.is_sparse, run.first_at, run.last_at],
    )
    found = [] if run.is_sparse else holes(run.seen)
    cursor = await connection.execute(
        "select low, high, noted_at, accepted_at from ledger.sequence_gaps where source = %s and run = %s order by low",
        [source, run.run],
    )
    known = await cursor.fetchall()
    gaps: list[tuple[int, int, datetime, datetime | None]] = []
    at = 0
    for low, high in found:
        while at < len(known) and known[at][1] < low:
            at += 1
        is_known = at < len(known) and known[at][0] <= high
        gaps.append((low, high, *(known[at][2:] if is_known else (run.last_at, None))))
    kept = set(known) & set(gaps)
    await connection.execute(
        "delete from ledger.sequence_gaps where source = %s and run = %s and low = any(%s)",
        [source, run.run, [gap[0] for gap in known if gap not in kept]],
    )
    new = [gap for gap in gaps if gap not in kept]
    await connection.execute(
        "insert into ledger.sequence_gaps (source, run, low, high, noted_at, accepted_at)"
        " select %s, %s, * from unnest(%s::bigint[], %s::bigint[], %s::timestamptz[], %s::timestamptz[])",
        [source, run.run, *([gap[place] for gap in new] for place in range(4))],
    )


# --- What is missing --------------------------------------------------------------------------------------------------

GapState = Literal["open", "lost", "set_aside", "accepted"]


@dataclass(frozen=True, slots=True)
class Gap:
    """A stretch of a sender's counter that did not come as an entry."""

    source: str
    run: int
    low: int
    high: int
    number_count: int
    noted_at: datetime
    state: GapState
    """open: younger than the grace, may be late; lost: older, nothing of it came; set_aside: dead letters hold it;
    accepted: a person said that it is known to be lost."""


async def list_gaps(
    connection: Connection,
    *,
    source: str | None = None,
    since: datetime | None = None,
    grace: timedelta = GRACE,
    limit: int = 1000,
) -> Sequence[Gap]:
    """List what is missing, by source and number; of gaps that were noted at `since` or later."""
    async with connection.cursor(row_factory=class_row(Gap)) as cursor:
        await cursor.execute(
            "select source, run, low, high, number_count, noted_at, case"
            " when is_set_aside then 'set_aside' when accepted_at is not null then 'accepted'"
            " when noted_at > clock_timestamp() - %(grace)s then 'open' else 'lost' end as state"
            " from ledger.missing_sequences"
            " where (%(source)s::text is null or source = %(source)s)"
            " and (%(since)s::timestamptz is null or noted_at >= %(since)s)"
            " order by source, run, low limit %(limit)s",
            {"source": source, "since": since, "grace": grace, "limit": limit},
        )
        return await cursor.fetchall()


@dataclass(frozen=True, slots=True)
class CounterRecord:
    """The newest run of a sender's counter."""

    source: str
    run: int
    low: int
    high: int
    repeats: int
    is_sparse: bool
    last_at: datetime


async def list_counters(connection: Connection, *, source: str | None = None) -> Sequence[CounterRecord]:
    """List the newest run of each sender that counts."""
    async with connection.cursor(row_factory=class_row(CounterRecord)) as cursor:
        await cursor.execute(
            "select distinct on (source) source, run, lower(seen) as low, upper(seen) - 1 as high, repeats, is_sparse, last_at"
            " from ledger.sequence_runs where (%(source)s::text is null or source = %(source)s) order by source, run desc",
            {"source": source},
        )
        return await cursor.fetchall()


async def accept_gaps(
    connection: Connection, source: str, *, low: int | None, high: int | None, actor: str, reason: str
) -> int:
    """Say of gaps of a source that they are known to be lost; of those that lie between two numbers, where they are given.

    Errors: `ActRefused` where none does.
    """
    async with connection.transaction():
        await connection.execute("select pg_advisory_xact_lock(%s)", [_LOCK])
        cursor = await connection.execute(
            "update ledger.sequence_gaps set accepted_at = clock_timestamp()"
            " where source = %(source)s and accepted_at is null and (%(low)s::bigint is null or low >= %(low)s)"
            " and (%(high)s::bigint is null or high <= %(high)s) returning run, low, high",
            {"source": source, "low": low, "high": high},
        )
        found = sorted(await cursor.fetchall())
        if not found:
            raise ActRefused(f"source {source!r:.80} has no gap there that waits for a person")
        detail = {"source": source, "gaps": [list(each) for each in found]}
        await record_act(connection, actor, "gaps.accept", detail, reason)
    return len(found)
