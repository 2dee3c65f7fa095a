"""What GPU nodes say of themselves: kept once, never over each other, under a digest of its own in the chain."""

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from ledger.database import Connection
from ledger.entries import escaped, jsonb_text
from ledger.statements import Refused, Window
from ledger.times import from_micros, micros, postgres_text

COLUMNS: Final = ("event_key", "tenant_id", "source", "node_id", "starts_at", "ends_at", "body", "batch_id")
COPY_WINDOWS: Final = f"copy ledger.node_windows ({', '.join(COLUMNS)}) from stdin"


def window_lines(windows: Sequence[Window], batch_id: int) -> str:
    """Return the COPY lines of a batch's windows by event key, exactly as Postgres prints them back: the digest covers them."""
    return "".join([_line(window, batch_id) for window in sorted(windows, key=lambda window: window.event_key)])


def _line(window: Window, batch_id: int) -> str:
    names = "\t".join([escaped(name) for name in (window.tenant_id, window.source, window.node_id)])
    body = escaped(jsonb_text(msgspec.json.decode(window.body)))
    return (
        f"{window.event_key}\t{names}\t{postgres_text(window.starts_at)}\t{postgres_text(window.ends_at)}\t{body}\t"
        f"{batch_id}\n"
    )


@dataclass(slots=True)
class Spans:
    """What is taken of the time of nodes, as (start, end) in UTC microseconds, ascending; none overlap."""

    taken: dict[str, list[tuple[int, int]]] = field(default_factory=dict)

    def overlap(self, window: Window) -> Refused | None:
        """Say that a window lies over another one of its node, or None."""
        spans = self.taken.get(window.node_id, [])
        # The last span that starts before the window ends is the only one that may reach into it.
        place = bisect_left(spans, (window.ends_at, 0)) - 1
        if place < 0 or spans[place][1] <= window.starts_at:
            return None
        start, end = (from_micros(instant).isoformat() for instant in spans[place])
        return Refused("window_overlaps", f"data: node {window.node_id:.80} has reported {start} to {end} already")

    def take(self, window: Window) -> None:
        """Note that a window is the one that counts."""
        insort(self.taken.setdefault(window.node_id, []), (window.starts_at, window.ends_at))


async def lock_nodes(connection: Connection, windows: Iterable[Window]) -> None:
    """Let one transaction at a time add windows of a node; in the order of their ids, so that nobody waits in a ring."""
    await connection.execute(
        "select pg_advisory_xact_lock(hashtextextended('node ' || node_id, 0)) from unnest(%s::text[]) as n (node_id)",
        [sorted({window.node_id for window in windows})],
    )


async def read_spans(connection: Connection, windows: Sequence[Window]) -> Spans:
    """Read the spans that windows would overlap."""
    cursor = await connection.execute(
        _OVERLAPPED,
        {
            "nodes": [window.node_id for window in windows],
            "starts": [from_micros(window.starts_at) for window in windows],
            "ends": [from_micros(window.ends_at) for window in windows],
        },
    )
    spans = Spans()
    for node_id, starts_at, ends_at in await cursor.fetchall():
        spans.taken.setdefault(node_id, []).append((micros(starts_at), micros(ends_at)))
    return spans


# No window is longer than a day, so what overlaps one began at most a day before it. `offset 0` keeps each look-up one by index.
_OVERLAPPED: Final = """
select distinct w.node_id, w.starts_at, w.ends_at
from unnest(%(nodes)s::text[], %(starts)s::timestamptz[], %(ends)s::timestamptz[]) as n (node_id, starts_at, ends_at)
cross join lateral (
    select node_id, starts_at, ends_at
    from ledger.node_windows
    where
        node_id = n.node_id
        and starts_at > n.starts_at - interval '24 hours'
        and starts_at < n.ends_at
        and ends_at > n.starts_at
    offset 0
) as w
order by w.node_id, w.starts_at
"""
