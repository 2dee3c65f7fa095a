"""What was proved, when and how far: one row for each proof. The proofs themselves are made by rooms above."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from ledger.database import Connection

Kind = Literal["standing", "whole"]
"""standing: totals of budgets, ledger and marts against each other, every minute; whole: everything made again."""

DIFFERENCES_KEPT_MAX: Final = 100
"""In words, of a proof; all are counted."""
_CLEAN_DAYS: Final = 2


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that does not hold."""

    part: str
    text: str


@dataclass(frozen=True, slots=True)
class ProofRecord:
    """The result of a proof."""

    kind: Kind
    started_at: datetime
    ended_at: datetime
    up_to: Mapping[str, int]
    """The last batch of each feed that it saw."""
    difference_count: int
    differences: Sequence[Difference]
    notes: Sequence[str]


async def note_proof(
    connection: Connection,
    kind: Kind,
    *,
    started_at: datetime,
    up_to: Mapping[str, int],
    difference_count: int,
    differences: Sequence[Difference],
    notes: Sequence[str],
    every_seconds: float | None,
) -> None:
    """Write down what a proof found; standing ones that found nothing go after two days, all others stay."""
    await connection.execute(
        "insert into ledger.proofs (kind, started_at, every_seconds, up_to, difference_count, differences, notes)"
        " values (%s, %s, %s, %s, %s, %s, %s)",
        [
            kind,
            started_at,
            every_seconds,
            Jsonb(dict(up_to)),
            difference_count,
            Jsonb([{"part": each.part, "text": each.text} for each in differences[:DIFFERENCES_KEPT_MAX]]),
            Jsonb(list(notes)),
        ],
    )
    await connection.execute(
        "delete from ledger.proofs where kind = 'standing' and difference_count = 0"
        " and ended_at < clock_timestamp() - make_interval(days => %s)",
        [_CLEAN_DAYS],
    )


async def list_proofs(connection: Connection, *, kind: Kind | None = None, limit: int = 20) -> list[ProofRecord]:
    """List the results of proofs, the newest first."""
    cursor = await connection.execute(
        "select kind, started_at, ended_at, up_to, difference_count, differences, notes from ledger.proofs"
        " where %(kind)s::text is null or kind = %(kind)s order by proof_id desc limit %(limit)s",
        {"kind": kind, "limit": limit},
    )
    return [
        ProofRecord(kept, started_at, ended_at, up_to, count, [Difference(**each) for each in differences], notes)
        for kept, started_at, ended_at, up_to, count, differences, notes in await cursor.fetchall()
    ]


@dataclass(frozen=True, slots=True)
class LastProof:
    """The last proof of a kind, without a word about any tenant."""

    kind: Kind
    started_at: datetime
    ended_at: datetime
    difference_count: int


async def last_proofs(connection: Connection) -> list[LastProof]:
    """Return the last proof of each kind that there is."""
    async with connection.cursor(row_factory=class_row(LastProof)) as cursor:
        await cursor.execute(
            "select p.* from unnest(array['standing', 'whole']) as k (kind)"
            " cross join lateral (select q.kind, q.started_at, q.ended_at, q.difference_count from ledger.proofs as q"
            " where q.kind = k.kind order by q.proof_id desc limit 1) as p"
        )
        return await cursor.fetchall()
