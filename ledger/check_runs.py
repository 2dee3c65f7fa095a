"""What was checked of what arrived, when, and what came of it: numbers alone. The checks themselves are made by rooms above."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Final, Literal

from psycopg.rows import class_row

from ledger.database import Connection

Outcome = Literal["passed", "failed", "unknown", "broken"]
"""unknown: too little arrived, or too little is known of before, to say; broken: the check itself could not run."""
Kind = Literal["schedule", "command"]

_RUNS_DAYS: Final = 35


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What came of one expectation, for all that arrived or for one sender, reason or dimension."""

    expectation: str
    kind: str
    """all, source, reason or dimension."""
    subject: str
    """Which one; empty for all."""
    outcome: Outcome
    severity: Literal["warn", "fail"] | None
    """Of what failed."""
    unit: str
    observed: Decimal | None
    sample_count: int | None
    sample_min: int | None
    least: Decimal | None
    most: Decimal | None
    meaning: str
    why: str
    act: str
    fault: str | None
    """Why the check could not run; null where it did."""


@dataclass(frozen=True, slots=True)
class CheckRun:
    """One run of all checks."""

    run_id: int
    kind: Kind
    started_at: datetime
    ended_at: datetime
    every_seconds: Decimal | None
    window_starts_at: datetime
    window_ends_at: datetime
    request_count: int
    passed_count: int
    warned_count: int
    failed_count: int
    unknown_count: int
    broken_count: int


async def note_run(
    connection: Connection,
    kind: Kind,
    *,
    started_at: datetime,
    window: tuple[datetime, datetime],
    request_count: int,
    results: Sequence[CheckResult],
    every_seconds: float | None,
) -> int:
    """Write down a run with its results, in one transaction; runs older than five weeks go. Returns its id."""

    def counted(outcome: Outcome, severity: str | None = None) -> int:
        return sum(1 for each in results if each.outcome == outcome and severity in (None, each.severity))

    async with connection.transaction():
        cursor = await connection.execute(
            "insert into ledger.check_runs (kind, started_at, every_seconds, window_starts_at, window_ends_at, request_count,"
            " passed_count, warned_count, failed_count, unknown_count, broken_count)"
            " values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s) returning run_id",
            [
                kind,
                started_at,
                every_seconds,
                *window,
                request_count,
                counted("passed"),
                counted("failed", "warn"),
                counted("failed", "fail"),
                counted("unknown"),
                counted("broken"),
            ],
        )
        row = await cursor.fetchone()
        assert row is not None
        run_id: int = row[0]
        async with connection.cursor() as writing:
            await writing.executemany(
                "insert into ledger.check_results (run_id, expectation, kind, subject, outcome, severity, unit, observed,"
                " sample_count, sample_min, least, most, meaning, why, act, fault)"
                " values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
                [
                    [
                        run_id,
                        each.expectation,
                        each.kind,
                        each.subject,
                        each.outcome,
                        each.severity,
                        each.unit,
                        each.observed,
                        each.sample_count,
                        each.sample_min,
                        each.least,
                        each.most,
                        each.meaning,
                        each.why,
                        each.act,
                        each.fault,
                    ]
                    for each in results
                ],
            )
        await connection.execute(
            "delete from ledger.check_runs where ended_at < clock_timestamp() - make_interval(days => %s)", [_RUNS_DAYS]
        )
    return run_id


async def list_runs(connection: Connection, *, limit: int = 20) -> list[CheckRun]:
    """List runs with what came of them, the newest first."""
    async with connection.cursor(row_factory=class_row(CheckRun)) as cursor:
        await cursor.execute(
            "select run_id, kind, started_at, ended_at, every_seconds, window_starts_at, window_ends_at, request_count,"
            " passed_count, warned_count, failed_count, unknown_count, broken_count"
            " from ledger.check_runs order by run_id desc limit %s",
            [limit],
        )
        return await cursor.fetchall()


async def results_of(connection: Connection, run_id: int) -> list[CheckResult]:
    """Return the results of a run: what is broken or fails first."""
    async with connection.cursor(row_factory=class_row(CheckResult)) as cursor:
        await cursor.execute(
            "select expectation, kind, subject, outcome, severity, unit, observed, sample_count, sample_min, least, most,"
            " meaning, why, act, fault from ledger.check_results where run_id = %s"
            " order by array_position(array['broken', 'failed', 'unknown', 'passed'], outcome), severity, expectation, kind,"
            " subject",
            [run_id],
        )
        return await cursor.fetchall()
