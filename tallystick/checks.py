"""`tallystick check`: Great Expectations on what arrived, each result with its number, its bound, and what to do.

Constraints guard a row, dbt's tests guard the marts; this guards what neither sees: that something arrived at all, how late,
in what mix, and how much of it has no price, no usage, or no entry.

ChecksError
├── ChecksMissing           the extra `warehouse` is not installed
└── NothingToCheck          the ledger cannot be read
"""

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import psycopg
from psycopg.rows import dict_row

from ledger.check_runs import CheckResult, CheckRun, Kind, list_runs, note_run
from ledger.database import connect
from tallystick.addresses import libpq_url
from tallystick.canary import TENANT as CANARY
from tallystick.check_words import Finding, in_words
from tallystick.expectations import FOLDER, Expectation, Expectations, Severity, read_expectations

Row = dict[str, Any]

_WORST_FIRST: Final[tuple[Severity, ...]] = ("fail", "warn")


class ChecksError(Exception):
    """The checks cannot be made."""


class ChecksMissing(ChecksError):
    """Great Expectations is not installed."""

    def __init__(self) -> None:
        super().__init__("great-expectations is not installed: pip install 'tallystick[warehouse]' -c constraints.txt")


class NothingToCheck(ChecksError):
    """The ledger cannot be read."""


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What was looked at and what was found."""

    starts_at: datetime
    ends_at: datetime
    requests: int
    """New requests in the window."""
    results: Sequence[CheckResult]
    """Numbers alone: a row for each expectation and what it is about."""
    findings: Sequence[Finding]
    """What does not hold, in words for a person at the terminal; never written down."""

    @property
    def failed(self) -> bool:
        return any(finding.severity == "fail" for finding in self.findings)


def run_checks(
    url: str, *, hours: float = 24.0, now: datetime | None = None, expectations: Expectations | None = None
) -> CheckReport:
    """Check what arrived in the last `hours`.

    `url` logs in as tallystick_analyst or tallystick_rollup. No table is made. Results hold no value of a row: numbers, names of
    registered senders (a digest where one holds a tenant's id), reasons and names of columns.
    """
    library = _library()
    expected = expectations or read_expectations()
    address = libpq_url(url)
    try:
        connection = psycopg.connect(address, autocommit=True, connect_timeout=10, row_factory=dict_row)
    except psycopg.OperationalError as error:
        raise NothingToCheck(" ".join(str(error).split())) from None
    with connection:
        try:
            scope = _scope(connection, hours, now, expected.limits)
        except psycopg.errors.UndefinedTable:
            raise NothingToCheck("the ledger's tables are not there: run `tallystick migrate`") from None
        # Statements look dear to a planner that knows nothing of the batches, and run for milliseconds.
        connection.execute("set jit = off")
        measured = {suite: _measured(connection, scope, suite) for suite in dict.fromkeys(_suites(expected))}
        judged = _judged(library, address, scope, expected, measured)
        results = [result for each in expected.listed for result in _results(each, measured[each.suite], judged)]
        requests = _requests_of(measured["requests"])
        findings = in_words(connection, results, expected, scope.filled)
    return CheckReport(scope.starts_at, scope.ends_at, requests, results, findings)


async def note(
    url: str, kind: Kind, report: CheckReport, *, started_at: datetime, every_seconds: float | None
) -> CheckRun:
    """Write a report down as tallystick_operator, and return the run as it stands."""
    async with await connect(url, connect_timeout=10) as connection:
        await note_run(
            connection,
            kind,
            started_at=started_at,
            window=(report.starts_at, report.ends_at),
            request_count=report.requests,
            results=report.results,
            every_seconds=every_seconds,
        )
        return (await list_runs(connection, limit=1))[0]


def _suites(expected: Expectations) -> Iterator[str]:
    yield "requests"
    for each in expected.listed:
        yield each.suite


# --- What is looked at ------------------------------------------------------------------------------------------------

_ENTRIES: Final = """(
    select e.*
    from {batches} as b
    cross join lateral (
        select p.*
        from ledger.batch_digests as p
        where p.batch_id = b.batch_id
        offset 0
    ) as d
    cross join lateral (
        select r.*
        from ledger.entries as r
        where
            r.posting_period = d.posting_period
            and r.entry_id >= d.batch_id * 65536
            and r.entry_id < (d.batch_id + 1) * 65536
            and r.tenant_id <> '{canary}'
        offset 0
    ) as e
)"""
"""The entries of some batches, which are ranges of the primary key; `offset 0` keeps the loops nested. Where nothing but the canary
arrives, nothing arrived."""

_UNPRICED: Final = "(charge_amount is null or cost_amount is null)"
_DOUBTFUL: Final = "usage_flags && '{usage_incomplete,total_above_parts,total_differs,total_missing,lifetime_unknown}'"
"""Flags that say that a count is doubtful; others, such as not_charged or tier_assumed, say what was decided."""

_NAME_OF_SOURCE: Final = """case
        when exists (select from ledger.tenants as t where strpos(lower(source), lower(t.tenant_id)) > 0)
            then 'sender ' || left(md5(source), 8)
        else source
    end"""
"""A sender may be called after its tenant."""

_NO_MARTS: Final = (
    "(select '' as feature, '' as language, '' as lane, '' as model, 0::bigint as request_count where false)"
)


@dataclass(frozen=True, slots=True)
class Scope:
    """The batches that arrived in a window, up to a number of each feed: fixed at the start, so that all see the same rows."""

    starts_at: datetime
    ends_at: datetime
    until: Mapping[int, int]
    has_marts: bool
    limits: Mapping[str, int]

    def batches(self, starts_at: datetime, ends_at: datetime) -> str:
        """Return a query of the batches that arrived in a time."""
        numbers = ", ".join(f"({feed}, {number})" for feed, number in self.until.items()) or "(0, 0)"
        return (
            "(select b.* from ledger.batches as b"
            f" join (values {numbers}) as u (feed_id, number) on u.feed_id = b.feed_id and b.number <= u.number"
            f" where b.recorded_at >= {_instant(starts_at)} and b.recorded_at < {_instant(ends_at)})"
        )

    def filled(self, statement: str) -> str:
        """Return a statement with what it reads in its places."""
        week = timedelta(days=7)
        here = self.batches(self.starts_at, self.ends_at)
        same_hours = self.batches(self.starts_at - week, self.ends_at - week)
        before = self.batches(self.starts_at - week, self.starts_at)
        usage = (
            "(select * from marts.fct_usage_hourly"
            f" where starts_at >= {_instant(self.starts_at - week)} and starts_at < {_instant(self.starts_at)})"
        )
        places = {
            "batches": here,
            "batches_week": before,
            "entries": _entries(here),
            "entries_same_hours": _entries(same_hours),
            "entries_week": _entries(before),
            "usage_week": usage if self.has_marts else _NO_MARTS,
            "starts_at": _instant(self.starts_at),
            "ends_at": _instant(self.ends_at),
            "unpriced": _UNPRICED,
            "doubtful": _DOUBTFUL,
            "name_of_source": _NAME_OF_SOURCE,
            **{name: str(value) for name, value in self.limits.items()},
        }
        for name, text in places.items():
            statement = statement.replace("{" + name + "}", text)
        return statement


def _instant(at: datetime) -> str:
    return f"timestamptz '{at.isoformat()}'"


def _entries(batches: str) -> str:
    return _ENTRIES.replace("{batches}", batches).replace("{canary}", CANARY)


def _scope(connection: psycopg.Connection[Row], hours: float, now: datetime | None, limits: Mapping[str, int]) -> Scope:
    found = connection.execute(
        "select clock_timestamp() as at, to_regclass('marts.fct_usage_hourly') is not null as has_marts"
    ).fetchone()
    assert found is not None
    until = {
        row["feed_id"]: row["last_number"]
        for row in connection.execute("select feed_id, last_number from ledger.feeds where last_number > 0")
    }
    ends_at = now or found["at"]
    return Scope(ends_at - timedelta(hours=hours), ends_at, until, found["has_marts"], limits)


# --- What is measured -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Measured:
    """The numbers of a file, or why there are none."""

    rows: Sequence[Row]
    fault: str | None


def statement_of(suite: str) -> str:
    """Return the text of a file of measures."""
    return (FOLDER / f"{suite}.sql").read_text()


def _measured(connection: psycopg.Connection[Row], scope: Scope, suite: str) -> Measured:
    try:
        return Measured(connection.execute(scope.filled(statement_of(suite)).encode()).fetchall(), None)
    except psycopg.Error as error:
        # What the database says about a row may quote it; its code does not.
        return Measured([], f"Postgres says {error.sqlstate or 'nothing'} ({type(error).__name__})")


def _requests_of(measured: Measured) -> int:
    return next((row["requests"] for row in measured.rows if row["kind"] == "all"), 0)


# --- What Great Expectations says of it -------------------------------------------------------------------------------


@contextmanager
def _without_known_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        # The library imports modules that Python 3.11 deprecates, and recommends a data source that cannot take a socket.
        warnings.filterwarnings("ignore", message="module 'sre_", category=DeprecationWarning)
        warnings.filterwarnings("ignore", message="You are using a generic SQLDatasource")
        yield


def _library() -> Any:
    """Import Great Expectations, which takes three seconds and 235 MB, so that only a check pays for it."""
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
    with _without_known_warnings():
        try:
            import great_expectations
            import great_expectations.expectations
        except ModuleNotFoundError:
            raise ChecksMissing from None
    return great_expectations


@dataclass(frozen=True, slots=True)
class Judged:
    """What was said of one level of an expectation: the rows that are out of bounds, or that it could not be tried."""

    outside: frozenset[tuple[str, str]]
    is_broken: bool


def _judged(
    library: Any, address: str, scope: Scope, expected: Expectations, measured: Mapping[str, Measured]
) -> dict[tuple[str, Severity], Judged]:
    """Run one checkpoint over all files that could be read; return what it says by expectation and level."""
    # Ephemeral and without a docs site: nothing is written, so no address with its password ends in a file.
    types = library.data_context.types.base
    configuration = types.DataContextConfig(
        store_backend_defaults=types.InMemoryStoreBackendDefaults(),
        analytics_enabled=False,
        progress_bars=types.ProgressBarsConfig(globally=False),
    )
    context = library.get_context(mode="ephemeral", project_config=configuration)
    with _without_known_warnings():
        source = context.data_sources.add_sql(
            "ledger",
            connection_string=address.replace("postgresql://", "postgresql+psycopg://", 1),
            kwargs={"connect_args": {"options": "-c jit=off"}},
        )
    try:
        definitions = []
        for suite in dict.fromkeys(each.suite for each in expected.listed):
            if measured[suite].fault is not None:
                continue
            listed = [each for each in expected.listed if each.suite == suite]
            batch = source.add_query_asset(suite, query=_asset(scope, suite, listed)).add_batch_definition_whole_table(
                "all"
            )
            tried = [
                library.expectations.ExpectColumnValuesToBeBetween(
                    column=f"{each.name}_{severity}",
                    min_value=level.least,
                    max_value=level.most,
                    severity="critical" if severity == "fail" else "warning",
                    meta={"expectation": each.name, "level": severity, "why": each.why, "act": each.act},
                )
                for each in listed
                for severity, level in each.levels.items()
            ]
            known = context.suites.add(library.ExpectationSuite(name=suite, expectations=tried))
            definitions.append(
                context.validation_definitions.add(library.ValidationDefinition(name=suite, data=batch, suite=known))
            )
        # Whole results, since the rows hold no more than numbers and what they are about.
        checkpoint = library.Checkpoint(
            name="arrived",
            validation_definitions=definitions,
            result_format={"result_format": "COMPLETE", "unexpected_index_column_names": ["kind", "subject"]},
        )
        outcome = context.checkpoints.add(checkpoint).run() if definitions else None
    finally:
        # Two engines keep a session each: one that tried the address, and one that ran the queries.
        source.get_execution_engine().close()
        source.get_engine().dispose()
    return {} if outcome is None else dict(_read_outcome(outcome))


def _asset(scope: Scope, suite: str, listed: Sequence[Expectation]) -> str:
    """Return the file's query with a column for each level, null where there is too little to judge by."""
    columns = []
    for each in listed:
        for severity, level in each.levels.items():
            conditions = [f"{each.sample} >= {level.sample_min}"] if each.sample else []
            conditions += [f"kind = '{each.only}'"] if each.only else []
            when = " and ".join(conditions) or "true"
            columns.append(f"case when {when} then {each.column}::double precision end as {each.name}_{severity}")
    listing = ",\n    ".join(["kind", "subject", *columns])
    return f"select\n    {listing}\nfrom (\n{scope.filled(statement_of(suite))}\n) as measured"


def _read_outcome(outcome: Any) -> Iterator[tuple[tuple[str, Severity], Judged]]:
    for run in outcome.run_results.values():
        for result in run.results:
            meta = result.expectation_config.meta
            key = (meta["expectation"], meta["level"])
            # A column that is not there is a result with exceptions in it, and none that is raised.
            if result.exception_info and result.exception_info.get("raised_exception") is not False:
                yield key, Judged(frozenset(), True)
                continue
            outside = {(row["kind"], row["subject"]) for row in result.result.get("unexpected_index_list") or ()}
            yield key, Judged(frozenset(outside), bool(not result.success and not outside))


# --- What comes of both -----------------------------------------------------------------------------------------------


def _results(
    each: Expectation, measured: Measured, judged: Mapping[tuple[str, Severity], Judged]
) -> Iterator[CheckResult]:
    """Yield a result for each row that an expectation is about."""
    if not each.levels:
        return
    said = {severity: judged.get((each.name, severity)) for severity in each.levels}
    fault = measured.fault
    if fault is None and any(one is None or one.is_broken for one in said.values()):
        fault = "Great Expectations could not try it; perhaps the file has no such column"
    if fault is None and measured.rows and each.sample and each.sample not in measured.rows[0]:
        fault = f"the file has no column {each.sample}"
    if fault is not None:
        yield _result(each, "all", "", "broken", fault=fault)
        return
    rows = [row for row in measured.rows if each.only in (None, row["kind"]) and _is_about(each, row)]
    for row in sorted(rows, key=lambda row: (row["kind"] != "all", row["kind"], row["subject"])):
        yield _of_row(each, row, {severity: one for severity, one in said.items() if one is not None})
    if not rows:
        # Nothing that it could be about, such as no dead letter: that is no silence of the check.
        yield _result(each, "all", "", "passed" if each.suite == "letters" else "unknown")


def _is_about(each: Expectation, row: Row) -> bool:
    """Tell rows of another kind apart: those of one file may have numbers that others have not."""
    return row[each.column] is not None or each.suite != "letters"


def _of_row(each: Expectation, row: Row, said: Mapping[Severity, Judged]) -> CheckResult:
    key = (row["kind"], row["subject"])
    sample = row[each.sample] if each.sample else None
    severity = next((level for level in _WORST_FIRST if level in said and key in said[level].outside), None)
    enough = min(level.sample_min for level in each.levels.values())
    if severity is not None:
        outcome = "failed"
    elif row[each.column] is None or (sample is not None and sample < enough):
        outcome = "unknown"
    else:
        outcome = "passed"
    return _result(each, *key, outcome, severity=severity, observed=row[each.column], sample=sample)


def _result(
    each: Expectation,
    kind: str,
    subject: str,
    outcome: Any,
    *,
    severity: Severity | None = None,
    observed: float | None = None,
    sample: int | None = None,
    fault: str | None = None,
) -> CheckResult:
    # The bound that was broken, or else the first that would be.
    level = each.levels[next(iter(each.levels)) if severity is None else severity]
    return CheckResult(
        expectation=each.name,
        kind=kind,
        subject=subject,
        outcome=outcome,
        severity=severity,
        unit=each.unit,
        observed=_decimal(observed),
        sample_count=sample,
        sample_min=level.sample_min if each.sample else None,
        least=_decimal(level.least),
        most=_decimal(level.most),
        meaning=each.what,
        why=each.why,
        act=each.act,
        fault=fault,
    )


def _decimal(number: float | None) -> Decimal | None:
    """Return a measured number with nine places, which is more than a share or a time can tell."""
    return None if number is None else Decimal(f"{number:.9f}").normalize()
