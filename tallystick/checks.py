"""`tallystick check`: a Great Expectations checkpoint on what arrived, told in words.

Constraints guard a row, dbt's tests guard the marts; this guards what neither sees: that something arrived at all, how late,
in what mix, and how much of it has no price, no usage, or no entry.

ChecksError
├── ChecksMissing           the extra `warehouse` is not installed
└── NothingToCheck          the ledger cannot be read
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final, Literal

import psycopg
from psycopg.rows import dict_row

from tallystick.addresses import libpq_url
from tallystick.canary import TENANT as CANARY

Severity = Literal["fail", "warn"]
Row = dict[str, Any]

VALUES_NAMED_MAX: Final = 5
"""Models, languages or reasons that a check names one by one."""


class ChecksError(Exception):
    """The checks cannot be made."""


class ChecksMissing(ChecksError):
    """Great Expectations is not installed."""

    def __init__(self) -> None:
        super().__init__("great-expectations is not installed: pip install 'tallystick[warehouse]' -c constraints.txt")


class NothingToCheck(ChecksError):
    """The ledger cannot be read."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Above which a check warns, and above which it fails. Shares are of the requests, or of the events, in scope.

    Whatever an invoice would refuse to pass over warns from the first request; it fails where so much of it arrives that
    somebody must act before the month ends. What can be quite in order (a replay, a backfill, a quiet night) only warns.
    """

    unpriced_share: Decimal = Decimal("0.01")
    """Fail. Any unpriced request warns."""
    usage_missing_share: Decimal = Decimal("0.01")
    """Fail. Any request without usage warns."""
    dead_letter_share: Decimal = Decimal("0.01")
    """Fail. Any dead letter warns."""
    conflict_share: Decimal = Decimal("0.01")
    """Fail. Any conflict warns."""
    estimated_share: Decimal = Decimal("0.10")
    """Warn: requests whose best report is an estimate."""
    flagged_share: Decimal = Decimal("0.01")
    """Warn: requests whose counts do not add up."""
    duplicate_share: Decimal = Decimal("0.50")
    """Warn: of events; a replay sends everything twice."""
    late_seconds: int = 3600
    late_share: Decimal = Decimal("0.05")
    """Warn: requests recorded more than late_seconds after they ended."""
    future_seconds: int = 60
    """Warn: any request that ended so long after it was recorded; some clock is wrong. Above 300 it is a dead letter."""
    unknown_share: Decimal = Decimal("0.10")
    """Warn: requests without a feature, or without a known language."""
    requests_min: int = 1
    """Warn: fewer requests than this in scope."""
    volume_ratio_min: Decimal = Decimal("0.2")
    volume_ratio_max: Decimal = Decimal("5")
    """Warn: requests in scope against the seven days before, for the same length of time."""
    letter_unowned_hours: int = 1
    """Warn: an open dead letter that nobody looks after, for longer."""
    letter_open_hours: int = 24
    letter_open_hours_max: int = 168
    """Warn, fail: the oldest open dead letter is older."""
    gap_minutes: int = 15
    """Warn: a number of a sender's counter that has been missing for longer, and of which no dead letter tells."""
    canary_seconds: int = 10
    """Warn: the canary's last event took longer. It fails where the last two failed, or none was sent for three pauses."""
    mix_change: Decimal = Decimal("0.25")
    """Warn: a feature, language, lane or model whose share of the requests moved by more, against the four weeks before."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing about what arrived that somebody should know."""

    check: str
    """Stable name: volume, delay, future, feature, language, lane, mix, unpriced, usage_missing, flagged, estimated,
    dead_letters, conflicts, letters_waiting, gaps, canary, duplicates, proofs; or `broken`, where a check itself cannot run."""
    severity: Severity
    text: str


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What was found in the batches of the scope."""

    findings: list[Finding]
    requests: int
    """New requests in scope."""
    until: Mapping[int, int] = field(default_factory=dict)
    """Feed id to the last batch that was looked at: give it as `since` next time, and nothing is looked at twice."""

    @property
    def failed(self) -> bool:
        return any(finding.severity == "fail" for finding in self.findings)


def run_checks(
    url: str,
    *,
    since: Mapping[int, int] | None = None,
    hours: float = 24.0,
    now: datetime | None = None,
    thresholds: Thresholds | None = None,
) -> CheckReport:
    """Check what arrived after the batches `since` (feed id to number), or else in the last `hours`.

    `url` logs in as tallystick_analyst or tallystick_rollup. No table is made, no value of a row leaves the database
    except the models, features, languages and reasons that a finding names.
    """
    library = _library()
    limits = thresholds or Thresholds()
    address = libpq_url(url)
    try:
        connection = psycopg.connect(address, autocommit=True, connect_timeout=10, row_factory=dict_row)
    except psycopg.OperationalError as error:
        raise NothingToCheck(" ".join(str(error).split())) from None
    with connection:
        try:
            scope = _scope(connection, since, hours, now)
            facts = _one(connection, f"select * from ({_summary(scope, limits)}) as summary")
            results = _run(library, address, scope, facts, limits)
        except psycopg.errors.UndefinedTable:
            raise NothingToCheck("the ledger's tables are not there: run `tallystick migrate`") from None
        findings = [
            finding
            for name, severity in results
            for finding in _in_words(connection, name, severity, scope, facts, limits)
        ]
        findings += _months_ahead(connection)
        findings += _proofs(connection, scope)
    return CheckReport(findings, facts["requests"], scope.until)


# --- What is looked at ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Scope:
    """Batches with numbers in (since, until] of each feed: fixed at the start, so that all checks see the same rows."""

    since: Mapping[int, int]
    until: Mapping[int, int]
    starts_at: datetime
    ends_at: datetime
    has_marts: bool

    @property
    def batches(self) -> str:
        """A query of the batches."""
        spans = ", ".join(f"({feed}, {self.since.get(feed, 0)}, {number})" for feed, number in self.until.items())
        return (
            "select b.* from ledger.batches as b"
            f" join (values {spans or '(0, 0, 0)'}) as s (feed_id, low, high)"
            " on b.feed_id = s.feed_id and b.number > s.low and b.number <= s.high"
        )

    @property
    def entries(self) -> str:
        """A query of the batches' entries, which are ranges of the primary key; `offset 0` keeps the loops nested."""
        return (
            f"select e.* from ({self.batches}) as b cross join lateral (select p.* from ledger.batch_digests as p"
            " where p.batch_id = b.batch_id offset 0) as d"
            " cross join lateral (select r.* from ledger.entries as r where r.posting_period = d.posting_period"
            " and r.entry_id >= d.batch_id * 65536 and r.entry_id < (d.batch_id + 1) * 65536"
            # Where nothing but the canary arrives, nothing arrived.
            f" and r.tenant_id <> '{CANARY}' offset 0) as e"
        )


def _one(connection: psycopg.Connection[Row], statement: str, parameters: Sequence[Any] | None = None) -> Row:
    row = connection.execute(statement.encode(), parameters).fetchone()
    assert row is not None
    return row


def _scope(
    connection: psycopg.Connection[Row], since: Mapping[int, int] | None, hours: float, now: datetime | None
) -> _Scope:
    ends_at: datetime = now or _one(connection, "select clock_timestamp() as at")["at"]
    begin = ends_at - timedelta(hours=hours)
    until = {
        row["feed_id"]: row["last_number"]
        for row in connection.execute("select feed_id, last_number from ledger.feeds where last_number > 0")
    }
    if since is None:
        older = connection.execute(
            "select feed_id, max(number) as number from ledger.batches where recorded_at < %s group by feed_id", [begin]
        )
        since = {row["feed_id"]: row["number"] for row in older}
    else:
        numbers = [(feed, number) for feed, number in since.items() if feed in until]
        first = _one(
            connection,
            "select min(b.recorded_at) as at from ledger.batches as b left join unnest(%s::int[], %s::bigint[])"
            " as s (feed_id, number) on s.feed_id = b.feed_id where b.number > coalesce(s.number, 0)",
            [[feed for feed, _ in numbers], [number for _, number in numbers]],
        )
        begin = first["at"] or ends_at
    marts = _one(
        connection,
        "select to_regclass('marts.fct_cost_daily') is not null and to_regclass('marts.fct_usage_hourly') is not null"
        " as are_there",
    )
    return _Scope(dict(since), until, begin, ends_at, marts["are_there"])


# What a request amounts to after all that the batches say of it: a node's report without a price that the gateway's report
# replaced is not unpriced. Later parts of a request count as 0 requests, so their tokens speak for them.
_REQUESTS: Final = """
select
    coalesce(request_key, event_key) as request,
    max(provider) as provider,
    max(coalesce(model, reported_model, requested_model)) as model,
    max(array_to_string(unpriced_meters, ',')) as reasons,
    max(status) as status,
    max(source) as source,
    sum(request_count) as requests,
    coalesce(sum(request_count) filter (where {unpriced}), 0) > 0
        or coalesce(sum(coalesce(input_tokens, 0) + coalesce(output_tokens, 0)) filter (where {unpriced}), 0) > 0
    as is_unpriced,
    coalesce(sum(request_count) filter (where usage_flags @> '{{usage_missing}}'), 0) > 0 as is_missing,
    coalesce(sum(request_count) filter (where {flagged}), 0) > 0 as is_flagged,
    coalesce(sum(request_count) filter (where basis = 'estimated'), 0) > 0 as is_estimated
from ({entries}) as e
where kind <> 'evidence'
group by 1
"""
_UNPRICED: Final = "charge_amount is null or cost_amount is null"
# Flags that say that a count is doubtful; others, such as not_charged or tier_assumed, say what was decided.
_DOUBTFUL: Final = "usage_flags && '{usage_incomplete,total_above_parts,total_differs,total_missing,lifetime_unknown}'"


def _requests(scope: _Scope) -> str:
    return _REQUESTS.format(unpriced=_UNPRICED, flagged=_DOUBTFUL, entries=scope.entries)


def _summary(scope: _Scope, limits: Thresholds) -> str:
    """A query of one row: how much of everything there is in scope. Shares are compared with thresholds, and are no money."""
    baseline = "null::numeric"
    if scope.has_marts:
        starts_at = f"timestamptz '{scope.starts_at.isoformat()}'"
        baseline = (
            f"(select case when min(h.starts_at) < {starts_at} - interval '7 days' then"
            f" sum(h.request_count) filter (where h.starts_at >= {starts_at} - interval '7 days' and h.starts_at < {starts_at}) / 168"
            f" end from marts.fct_usage_hourly as h where h.starts_at >= {starts_at} - interval '8 days')"
        )
    hours = max((scope.ends_at - scope.starts_at).total_seconds() / 3600, 1e-9)
    return f"""
        select
            r.*,
            b.*,
            r.requests / nullif({baseline} * {hours:.9f}, 0)::double precision as volume_ratio,
            r.unpriced::double precision / greatest(r.requests, 1) as unpriced_share,
            r.missing::double precision / greatest(r.requests, 1) as missing_share,
            r.flagged::double precision / greatest(r.requests, 1) as flagged_share,
            r.estimated::double precision / greatest(r.requests, 1) as estimated_share,
            b.dead_letters::double precision / greatest(b.events, 1) as dead_letter_share,
            b.conflicts::double precision / greatest(b.events, 1) as conflict_share,
            b.duplicates::double precision / greatest(b.events, 1) as duplicate_share
        from (
            select
                coalesce(sum(requests), 0)::bigint as requests,
                count(*) filter (where is_unpriced) as unpriced,
                count(*) filter (where is_missing) as missing,
                count(*) filter (where is_flagged) as flagged,
                count(*) filter (where is_estimated) as estimated
            from ({_requests(scope)}) as q
        ) as r
        cross join (
            select
                coalesce(sum(created_count + duplicate_count + evidence_count + conflict_count + dead_letter_count), 0)
                ::bigint as events,
                coalesce(sum(duplicate_count), 0)::bigint as duplicates,
                coalesce(sum(conflict_count), 0)::bigint as conflicts,
                coalesce(sum(dead_letter_count), 0)::bigint as dead_letters
            from ({scope.batches}) as q
        ) as b
    """


def _arrivals(scope: _Scope) -> str:
    """A query of the first report of each request in scope."""
    return (
        "select feature, language, lane, extract(epoch from recorded_at - occurred_at)::double precision as delay_seconds"
        f" from ({scope.entries}) as e where kind = 'usage' and entry_no = 0"
    )


def _mix(scope: _Scope) -> str:
    """A query of one row for each dimension and value: its share of the requests in scope, and in the four weeks before."""
    day = scope.starts_at.date().isoformat()

    def listed(alias: str) -> str:
        return ", ".join(f"('{name}', {alias}.{name})" for name in ("feature", "language", "lane", "model"))

    return f"""
        with before as (
            select v.dimension, v.value, sum(m.request_count) as requests
            from marts.fct_cost_daily as m
            cross join lateral (values {listed("m")}) as v (dimension, value)
            where m.local_date >= date '{day}' - 28 and m.local_date < date '{day}'
            group by 1, 2
        ),
        arrived as (
            select v.dimension, coalesce(v.value, '') as value, sum(e.request_count) as requests
            from ({scope.entries}) as e
            cross join lateral (values {listed("e")}) as v (dimension, value)
            where e.kind <> 'evidence'
            group by 1, 2
        )
        select
            dimension,
            value,
            coalesce(a.requests, 0) as requests,
            coalesce(a.requests, 0) / nullif(sum(a.requests) over (partition by dimension), 0) as share,
            coalesce(b.requests, 0) / nullif(sum(b.requests) over (partition by dimension), 0) as share_before,
            coalesce(
                abs(
                    coalesce(a.requests, 0) / nullif(sum(a.requests) over (partition by dimension), 0)
                    - coalesce(b.requests, 0) / nullif(sum(b.requests) over (partition by dimension), 0)
                ),
                0
            )::double precision as change
        from arrived as a
        full join before as b using (dimension, value)
    """


def _waiting(scope: _Scope, limits: Thresholds) -> str:
    """A query of one row: what waits for a person now, whenever it arrived."""
    now = f"timestamptz '{scope.ends_at.isoformat()}'"
    return f"""
        select
            count(*) as open_letters,
            count(*) filter (
                where owner is null and first_at < {now} - interval '{limits.letter_unowned_hours} hours'
            ) as unowned_letters,
            coalesce(extract(epoch from {now} - min(first_at)) / 3600, 0)::double precision as oldest_letter_hours,
            (
                select coalesce(sum(number_count), 0)::bigint
                from ledger.missing_sequences
                where not is_set_aside and accepted_at is null
                    and noted_at < {now} - interval '{limits.gap_minutes} minutes'
            ) as lost_numbers,
            (
                select case
                    when count(*) = 0 then 0
                    when count(*) filter (where failure is not null) = 2 then 2
                    when {now} > max(sent_at) + make_interval(secs => 3 * max(every_seconds)::double precision + 60)
                        and max(every_seconds) > 0 then 2
                    when count(*) filter (where age = 1 and (failure is not null or budget_seconds > {limits.canary_seconds}))
                        > 0 then 1
                    else 0
                end
                from (
                    select c.*, row_number() over (order by c.beat_id desc) as age
                    from ledger.canary_beats as c
                    order by c.beat_id desc
                    limit 2
                ) as c
            ) as canary_trouble
        from ledger.dead_letters
        where resolved_at is null
    """


# --- The checkpoint ---------------------------------------------------------------------------------------------------


@contextmanager
def _without_known_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        # The library imports modules that Python 3.11 deprecates, and recommends a data source that cannot take a socket.
        warnings.filterwarnings("ignore", message="module 'sre_", category=DeprecationWarning)
        warnings.filterwarnings("ignore", message="You are using a generic SQLDatasource")
        yield


def _library() -> Any:
    """Import Great Expectations, which takes three seconds and 235 MB, so that only a check pays for it."""
    with _without_known_warnings():
        try:
            import great_expectations
            import great_expectations.expectations
        except ModuleNotFoundError:
            raise ChecksMissing from None
    return great_expectations


def _run(library: Any, address: str, scope: _Scope, facts: Row, limits: Thresholds) -> list[tuple[str, Severity]]:
    """Run the checkpoint and return the checks that did not hold, each with its worst severity, in the order of the suites."""
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
            "ledger", connection_string=address.replace("postgresql://", "postgresql+psycopg://", 1)
        )
    try:
        suites = _expectations(library.expectations, scope, facts, limits)
        definitions = []
        for name, (query, expectations) in suites.items():
            batch = source.add_query_asset(
                name, query=f"select * from ({query}) as {name}"
            ).add_batch_definition_whole_table("all")
            suite = context.suites.add(library.ExpectationSuite(name=name, expectations=expectations))
            definitions.append(
                context.validation_definitions.add(library.ValidationDefinition(name=name, data=batch, suite=suite))
            )
        # Results hold no values of rows.
        checkpoint = library.Checkpoint(
            name="arrived", validation_definitions=definitions, result_format={"result_format": "BOOLEAN_ONLY"}
        )
        outcome = context.checkpoints.add(checkpoint).run()
    finally:
        # Two engines keep a session each: one that tried the address, and one that ran the queries.
        source.get_execution_engine().close()
        source.get_engine().dispose()
    return _worst(outcome)


def _worst(outcome: Any) -> list[tuple[str, Severity]]:
    order = [each.name for each in _CHECKS]
    found: dict[str, Severity] = {}
    for run in outcome.run_results.values():
        for result in run.results:
            if result.success:
                continue
            name = result.expectation_config.meta["check"]
            if result.exception_info and result.exception_info.get("raised_exception") is not False:
                found[f"broken:{name}"] = "fail"
                continue
            fails = str(result.expectation_config.severity).lower().endswith("critical")
            if fails or name not in found:
                found[name] = "fail" if fails else "warn"
    return sorted(found.items(), key=lambda item: order.index(item[0].removeprefix("broken:")))


def _expectations(of: Any, scope: _Scope, facts: Row, limits: Thresholds) -> dict[str, tuple[str, list[Any]]]:
    """Return, by asset, its query and what is expected of it."""

    def warn(name: str) -> dict[str, Any]:
        return {"severity": "warning", "meta": {"check": name}}

    def fail(name: str) -> dict[str, Any]:
        return {"severity": "critical", "meta": {"check": name}}

    def at_most(column: str, most: Decimal | int, options: dict[str, Any]) -> Any:
        return of.ExpectColumnMaxToBeBetween(column=column, max_value=float(most), **options)

    summary = [
        of.ExpectColumnMinToBeBetween(column="requests", min_value=limits.requests_min, **warn("volume")),
        at_most("unpriced", 0, warn("unpriced")),
        at_most("unpriced_share", limits.unpriced_share, fail("unpriced")),
        at_most("missing", 0, warn("usage_missing")),
        at_most("missing_share", limits.usage_missing_share, fail("usage_missing")),
        at_most("flagged_share", limits.flagged_share, warn("flagged")),
        at_most("estimated_share", limits.estimated_share, warn("estimated")),
        at_most("dead_letters", 0, warn("dead_letters")),
        at_most("dead_letter_share", limits.dead_letter_share, fail("dead_letters")),
        at_most("conflicts", 0, warn("conflicts")),
        at_most("conflict_share", limits.conflict_share, fail("conflicts")),
        at_most("duplicate_share", limits.duplicate_share, warn("duplicates")),
    ]
    if facts["volume_ratio"] is not None:
        summary.append(
            of.ExpectColumnMaxToBeBetween(
                column="volume_ratio",
                min_value=float(limits.volume_ratio_min),
                max_value=float(limits.volume_ratio_max),
                **warn("volume"),
            )
        )
    waiting = [
        at_most("unowned_letters", 0, warn("letters_waiting")),
        at_most("oldest_letter_hours", limits.letter_open_hours, warn("letters_waiting")),
        at_most("oldest_letter_hours", limits.letter_open_hours_max, fail("letters_waiting")),
        at_most("lost_numbers", 0, warn("gaps")),
        at_most("canary_trouble", 0, warn("canary")),
        at_most("canary_trouble", 1, fail("canary")),
    ]
    suites: dict[str, tuple[str, list[Any]]] = {
        "summary": (_summary(scope, limits), summary),
        "waiting": (_waiting(scope, limits), waiting),
    }
    if facts["requests"] > 0:
        known = float(1 - limits.unknown_share)
        suites["arrivals"] = (
            _arrivals(scope),
            [
                of.ExpectColumnValuesToBeBetween(
                    column="delay_seconds",
                    max_value=limits.late_seconds,
                    mostly=float(1 - limits.late_share),
                    **warn("delay"),
                ),
                of.ExpectColumnValuesToBeBetween(
                    column="delay_seconds", min_value=-limits.future_seconds, **warn("future")
                ),
                of.ExpectColumnValuesToNotBeNull(column="feature", mostly=known, **warn("feature")),
                of.ExpectColumnValuesToNotBeInSet(
                    column="language", value_set=["und"], mostly=known, **warn("language")
                ),
                of.ExpectColumnValuesToBeInSet(column="lane", value_set=["interactive", "batch"], **warn("lane")),
            ],
        )
        if scope.has_marts:
            suites["mix"] = (
                _mix(scope),
                [of.ExpectColumnValuesToBeBetween(column="change", max_value=float(limits.mix_change), **warn("mix"))],
            )
    return suites


# --- In words ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Context:
    connection: psycopg.Connection[Row]
    scope: _Scope
    facts: Row
    limits: Thresholds

    def rows(self, statement: str) -> list[Row]:
        return self.connection.execute(statement.encode()).fetchall()


@dataclass(frozen=True, slots=True)
class _Check:
    """A check, and what it says when it does not hold."""

    name: str
    say: Callable[[_Context], list[str]]


def _in_words(
    connection: psycopg.Connection[Row], name: str, severity: Severity, scope: _Scope, facts: Row, limits: Thresholds
) -> list[Finding]:
    if name.startswith("broken:"):
        check = name.removeprefix("broken:")
        return [Finding("broken", "fail", f"the check {check} itself could not run, so nothing is known about it")]
    say = next(each.say for each in _CHECKS if each.name == name)
    return [Finding(name, severity, text) for text in say(_Context(connection, scope, facts, limits))]


def percent(share: Decimal | float) -> str:
    """Return a share with two digits that count, such as 0.04 %."""
    value = Decimal(share) * 100
    places = 0 if value >= 10 else 1 if value >= 1 else 2
    if 0 < value < Decimal("0.01"):
        return "under 0.01 %"
    return f"{value:.{places}f} %"


def _counted(count: int, one: str) -> str:
    return f"{count:,} {one}" if count == 1 else f"{count:,} {one}s"


def _listed(rows: list[Row], name: str) -> str:
    said = ", ".join(f"{row[name]} ({row['count']:,})" for row in rows[:VALUES_NAMED_MAX])
    more = len(rows) - VALUES_NAMED_MAX
    return f"{said} and {more} more" if more > 0 else said


def _say_volume(c: _Context) -> list[str]:
    if c.facts["requests"] < c.limits.requests_min:
        return [f"only {_counted(c.facts['requests'], 'request')} arrived since {c.scope.starts_at:%Y-%m-%d %H:%M %Z}"]
    times = Decimal(c.facts["volume_ratio"])
    return [
        f"{_counted(c.facts['requests'], 'request')} arrived since {c.scope.starts_at:%Y-%m-%d %H:%M %Z},"
        f" {times:.2f} times what is usual for that long"
    ]


def _say_unpriced(c: _Context) -> list[str]:
    rows = c.rows(
        "select provider, model, reasons, count(*) as count from"
        f" ({_requests(c.scope)}) as q where is_unpriced group by 1, 2, 3 order by 4 desc, 1, 2"
    )
    said = []
    for row in rows[:VALUES_NAMED_MAX]:
        have = "has" if row["count"] == 1 else "have"
        share = percent(Decimal(row["count"]) / max(c.facts["requests"], 1))
        of = f"model {row['model']}" if row["model"] else "no stated model"
        reasons = sorted({reason.rpartition(":")[2] for reason in filter(None, (row["reasons"] or "").split(","))})
        why = f" ({', '.join(reasons)})" if reasons else ""
        said.append(
            f"{_counted(row['count'], 'request')} of {of} (provider {row['provider'] or 'not stated'}) {have} no price:"
            f" {share} of requests{why}"
        )
    if len(rows) > VALUES_NAMED_MAX:
        left = sum(row["count"] for row in rows[VALUES_NAMED_MAX:])
        said.append(f"{_counted(left, 'request')} of {len(rows) - VALUES_NAMED_MAX} more models have no price")
    return said


def _say_by_source(flag: str, what: str) -> Callable[[_Context], list[str]]:
    def say(c: _Context) -> list[str]:
        rows = c.rows(
            f"select source, count(*) as count from ({_requests(c.scope)}) as q where {flag} group by 1 order by 2 desc, 1"
        )
        total = sum(row["count"] for row in rows)
        share = percent(Decimal(total) / max(c.facts["requests"], 1))
        return [f"{_counted(total, 'request')} {what}: {share} of requests, from {_listed(rows, 'source')}"]

    return say


def _say_letters(c: _Context) -> list[str]:
    rows = c.rows(
        f"select d.reason, count(*) as count from ledger.dead_letters as d join ({c.scope.batches}) as b"
        " on b.batch_id = d.batch_id where d.reason <> 'conflict' group by 1 order by 2 desc, 1"
    )
    count = int(c.facts["dead_letters"])
    # The same bytes sent again are a repeat of a letter that may be older than the scope.
    new = f": {_listed(rows, 'reason')}" if rows else ", all of them known bytes sent again"
    return [f"{_counted(count, 'dead letter')}, {percent(c.facts['dead_letter_share'])} of events{new}"]


def _say_conflicts(c: _Context) -> list[str]:
    count = int(c.facts["conflicts"])
    return [
        f"{_counted(count, 'event')} of a known identity with other content, {percent(c.facts['conflict_share'])} of events:"
        " kept aside and not charged"
    ]


def _say_waiting(c: _Context) -> list[str]:
    row = c.rows(_waiting(c.scope, c.limits))[0]
    oldest = timedelta(hours=int(row["oldest_letter_hours"]))
    return [
        f"{_counted(row['open_letters'], 'dead letter')} not dealt with: the oldest for {oldest},"
        f" {row['unowned_letters']:,} that nobody looks after (`tallystick dead-letters list`)"
    ]


def _say_gaps(c: _Context) -> list[str]:
    rows = c.rows(
        "select source, sum(number_count)::bigint as count from ledger.missing_sequences"
        " where not is_set_aside and accepted_at is null"
        f" and noted_at < timestamptz '{c.scope.ends_at.isoformat()}' - interval '{c.limits.gap_minutes} minutes'"
        " group by 1 order by 2 desc, 1"
    )
    total = sum(row["count"] for row in rows)
    return [
        f"{_counted(total, 'event')} counted by a sender never came: {_listed(rows, 'source')} (`tallystick gaps list`)"
    ]


def _say_canary(c: _Context) -> list[str]:
    row = c.rows("select * from ledger.canary_beats order by beat_id desc limit 1")[0]
    sent = f"the canary of {row['sent_at']:%Y-%m-%d %H:%M:%S %Z} over {row['road']}"
    if row["failure"] is not None:
        return [f"{sent} failed: {row['failure']}"]
    return [f"{sent} took {row['budget_seconds']} s to move its budget, and none was sent since"]


def _say_duplicates(c: _Context) -> list[str]:
    return [
        f"{percent(c.facts['duplicate_share'])} of events had been recorded before: is somebody sending again and again?"
    ]


def _say_delay(c: _Context) -> list[str]:
    row = c.rows(
        f"select count(*) filter (where delay_seconds > {c.limits.late_seconds}) as count, count(*) as requests,"
        f" max(delay_seconds) as longest from ({_arrivals(c.scope)}) as q"
    )[0]
    share = percent(Decimal(row["count"]) / max(row["requests"], 1))
    return [
        f"{share} of requests were recorded more than {c.limits.late_seconds // 60} minutes after they ended, the latest after"
        f" {timedelta(seconds=int(row['longest']))}"
    ]


def _say_future(c: _Context) -> list[str]:
    row = c.rows(
        f"select count(*) as count, max(-delay_seconds) as most from ({_arrivals(c.scope)}) as q"
        f" where delay_seconds < -{c.limits.future_seconds}"
    )[0]
    return [
        f"{_counted(row['count'], 'request')} ended up to {int(row['most'])} s after being recorded: some clock is wrong"
    ]


def _say_unknown(column: str, condition: str, what: str) -> Callable[[_Context], list[str]]:
    def say(c: _Context) -> list[str]:
        row = c.rows(
            f"select count(*) filter (where {condition}) as count, count(*) as requests from ({_arrivals(c.scope)}) as q"
        )[0]
        return [f"{percent(Decimal(row['count']) / max(row['requests'], 1))} of requests have {what}"]

    return say


def _say_lane(c: _Context) -> list[str]:
    rows = c.rows(
        f"select lane, count(*) as count from ({_arrivals(c.scope)}) as q"
        " where lane not in ('interactive', 'batch') group by 1 order by 2 desc, 1"
    )
    return [f"unknown lanes: {_listed(rows, 'lane')}"]


def _say_mix(c: _Context) -> list[str]:
    rows = c.rows(
        f"select * from ({_mix(c.scope)}) as q where change > {c.limits.mix_change} order by change desc, dimension, value"
    )
    return [
        f"{row['dimension']} {row['value'] or '(none)'}: {percent(row['share'])} of requests, {percent(row['share_before'])} in"
        " the four weeks before"
        for row in rows[:VALUES_NAMED_MAX]
    ]


def _months_ahead(connection: psycopg.Connection[Row]) -> list[Finding]:
    """Say whose next month is missing while this one still goes on: usage of a month without a period or a partition stops.

    It is no question of what arrived, and asks nobody's data, so it is no expectation of the checkpoint.
    """
    missing = connection.execute(
        """
        with months as (
            -- The month in hand and the next one of each tenant, by its own clock.
            select
                t.tenant_id,
                (date_trunc('month', clock_timestamp() at time zone v.time_zone) + make_interval(months => n))::date as month,
                date_trunc('month', t.starts_at at time zone v.time_zone)::date as first_month
            from ledger.tenants as t
            cross join lateral (
                select time_zone
                from ledger.tenant_versions as v
                where v.tenant_id = t.tenant_id
                order by v.effective_at <= clock_timestamp() desc, abs(extract(epoch from v.effective_at - clock_timestamp()))
                limit 1
            ) as v
            cross join generate_series(0, 1) as n
        )

        select
            m.month,
            to_regclass('ledger.entries_' || to_char(m.month, 'YYYY_MM')) is null as has_no_partition,
            count(*) filter (where p.tenant_id is null) as count,
            min(m.tenant_id) filter (where p.tenant_id is null) as first
        from months as m
        left join ledger.periods as p on p.tenant_id = m.tenant_id and p.posting_period = m.month
        where m.month >= m.first_month
        group by 1, 2
        order by 1
        """
    ).fetchall()
    advice = "`tallystick period ahead` makes it; is the scheduler running?"
    findings = []
    for row in missing:
        if row["has_no_partition"]:
            findings.append(Finding("months_ahead", "fail", f"{row['month']:%Y-%m} has no partition: {advice}"))
        if row["count"]:
            whose = (
                f"{_counted(row['count'], 'tenant')}, {row['first']} among them," if row["count"] > 1 else row["first"]
            )
            has = "have" if row["count"] > 1 else "has"
            findings.append(Finding("months_ahead", "fail", f"{whose} {has} no period {row['month']:%Y-%m}: {advice}"))
    return findings


def _proofs(connection: psycopg.Connection[Row], scope: _Scope) -> list[Finding]:
    """Say what the last proofs found, and that one is missed: silence proves nothing."""
    findings: list[Finding] = []
    for kind, named in (("standing", "the standing proof"), ("whole", "the proof of everything")):
        row = connection.execute(
            "select difference_count, ended_at, differences,"
            " ended_at < %(now)s - make_interval(secs => 3 * coalesce(every_seconds, 86400)::double precision + 60) as is_old"
            " from ledger.proofs where kind = %(kind)s order by proof_id desc limit 1",
            {"kind": kind, "now": scope.ends_at},
        ).fetchone()
        if row is None:
            continue
        if row["difference_count"]:
            first = f": {row['differences'][0]['text']}" if row["differences"] else ""
            differing = _counted(row["difference_count"], "difference")
            text = f"{named} found {differing}{first} (`tallystick proofs show`)"
            findings.append(Finding("proofs", "fail", text))
        if row["is_old"]:
            text = f"{named} was last made at {row['ended_at']:%Y-%m-%d %H:%M} UTC: is the scheduler at work?"
            findings.append(Finding("proofs", "warn", text))
    return findings


_CHECKS: Final = (
    _Check("volume", _say_volume),
    _Check("unpriced", _say_unpriced),
    _Check("usage_missing", _say_by_source("is_missing", "without usage")),
    _Check("flagged", _say_by_source("is_flagged", "with counts that do not add up")),
    _Check("estimated", _say_by_source("is_estimated", "known by an estimate only")),
    _Check("dead_letters", _say_letters),
    _Check("conflicts", _say_conflicts),
    _Check("letters_waiting", _say_waiting),
    _Check("gaps", _say_gaps),
    _Check("canary", _say_canary),
    _Check("duplicates", _say_duplicates),
    _Check("delay", _say_delay),
    _Check("future", _say_future),
    _Check("feature", _say_unknown("feature", "feature is null", "no feature")),
    _Check("language", _say_unknown("language", "language = 'und'", "no known language")),
    _Check("lane", _say_lane),
    _Check("mix", _say_mix),
)
