"""What does not hold, in words for a person at the terminal: the number, its bound, and the names that explain it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import psycopg

from ledger.check_runs import CheckResult
from tallystick.expectations import Expectations, Severity

if TYPE_CHECKING:
    Connection = psycopg.Connection[dict[str, Any]]

NAMES_SAID_MAX: Final = 5
"""Models, reasons or senders that a finding names one by one."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing about what arrived that somebody should know."""

    check: str
    """Name of the expectation; where it could not be tried, `broken`."""
    severity: Severity
    text: str
    act: str


# Names that explain a number, each with how often it is there. Words of the catalogue and of the code, and senders: nothing that a
# tenant chose, such as a feature or a tag.
_EXPLAINED: Final = {
    "unpriced": """
        select
            coalesce(model, 'no stated model') || ' of ' || coalesce(provider, 'no stated provider')
            || coalesce(' (' || nullif(reasons, '') || ')', '') as said,
            count(*) as count
        from (
            select
                max(provider) as provider,
                max(coalesce(model, reported_model, requested_model)) as model,
                (
                    select string_agg(distinct regexp_replace(u.reason, '^.*:', ''), ', ')
                    from unnest(max(unpriced_meters)) as u (reason)
                ) as reasons,
                coalesce(sum(request_count) filter (where {unpriced}), 0) > 0
                or coalesce(sum(coalesce(input_tokens, 0) + coalesce(output_tokens, 0)) filter (where {unpriced}), 0) > 0
                    as is_unpriced
            from {entries} as e
            where kind <> 'evidence'
            group by coalesce(request_key, event_key)
        ) as r
        where is_unpriced
        group by 1
    """,
    "dead_letters": """
        select
            d.reason as said,
            count(*) as count
        from ledger.dead_letters as d
        join {batches} as b on b.batch_id = d.batch_id
        where d.reason <> 'conflict'
        group by 1
    """,
    "gaps": """
        select
            {name_of_source} as said,
            sum(number_count)::bigint as count
        from ledger.missing_sequences
        where not is_set_aside and accepted_at is null and noted_at < {ends_at} - interval '{gap_minutes} minutes'
        group by 1
    """,
    "new_models": """
        select
            model as said,
            sum(request_count)::bigint as count
        from {entries} as e
        where model is not null and not exists (select from {entries_week} as w where w.model = e.model)
        group by 1
    """,
    "canary": """
        select
            'over ' || road || coalesce(', ' || failure, ', ' || budget_seconds || ' s') as said,
            1 as count
        from ledger.canary_beats
        order by beat_id desc
        limit 1
    """,
}

_MOVED: Final = """
    with arrived as (
        select coalesce({dimension}, '') as value, sum(request_count) as requests
        from {entries} as e
        where kind not in ('evidence', 'reversal')
        group by 1
    ),

    before as (
        select {dimension} as value, sum(request_count) as requests
        from {usage_week} as m
        group by 1
    )

    select
        coalesce(nullif(value, ''), '(none)') as value,
        coalesce(a.requests / nullif(sum(a.requests) over (), 0), 0) as share,
        coalesce(b.requests / nullif(sum(b.requests) over (), 0), 0) as share_before
    from arrived as a
    full join before as b using (value)
"""


def in_words(
    connection: "Connection", results: Sequence[CheckResult], expected: Expectations, filled: Callable[[str], str]
) -> list[Finding]:
    """Say each expectation that does not hold or could not be tried, in the order in which they are listed."""
    findings = []
    for each in expected.listed:
        about = [result for result in results if result.expectation == each.name]
        for result in about:
            if result.outcome == "broken":
                text = f"the check {each.name} itself could not run, so nothing is known about it: {result.fault}"
                findings.append(Finding("broken", "fail", text, "mend the check; the data may be in order"))
        failed = [result for result in about if result.outcome == "failed"]
        if not failed:
            continue
        severity: Severity = "fail" if any(result.severity == "fail" for result in failed) else "warn"
        findings.append(Finding(each.name, severity, _said(connection, failed, each.name, filled), each.act))
    return findings


def _said(connection: "Connection", failed: Sequence[CheckResult], name: str, filled: Callable[[str], str]) -> str:
    whole = next((result for result in failed if result.kind == "all"), None)
    parts = [result for result in failed if result.kind != "all"]
    parts.sort(key=lambda result: (result.severity != "fail", -(result.observed or 0), result.subject))
    if len(parts) == 1 and whole is not None and parts[0].observed == whole.observed:
        # One sender sends everything: it is said already.
        parts = []
    text = (
        f"{number_of(whole)}{_sampled(whole)}" if whole is not None else f"{failed[0].meaning} ({bound_of(failed[0])})"
    )
    if parts:
        said = [
            f"{shown(result.observed, result.unit)}{_of(result)} at {result.subject}"
            for result in parts[:NAMES_SAID_MAX]
        ]
        if len(parts) > NAMES_SAID_MAX:
            said.append(f"{len(parts) - NAMES_SAID_MAX} more")
        text = f"{text}; {', '.join(said)}"
    explained = _moves(connection, parts, filled) if name == "model_mix" else _explained(connection, name, filled)
    return f"{text}; {explained}" if explained else text


def _explained(connection: "Connection", name: str, filled: Callable[[str], str]) -> str:
    statement = _EXPLAINED.get(name)
    if statement is None:
        return ""
    try:
        rows = connection.execute(
            f"select * from ({filled(statement)}) as said order by count desc, said".encode()
        ).fetchall()
    except psycopg.Error as error:
        return f"which ones cannot be read: {error.sqlstate}"
    said = [f"{row['said']} ({row['count']:,})" for row in rows[:NAMES_SAID_MAX]]
    if len(rows) > NAMES_SAID_MAX:
        said.append(f"{len(rows) - NAMES_SAID_MAX} more")
    return ", ".join(said)


def _moves(connection: "Connection", parts: Sequence[CheckResult], filled: Callable[[str], str]) -> str:
    """Name what moved most in the dimensions whose values are the catalogue's."""
    said = []
    for result in parts:
        # Features are the tenants' own words.
        if result.subject not in ("language", "lane", "model"):
            continue
        statement = filled(_MOVED).replace("{dimension}", result.subject)
        rows = connection.execute(
            f"select * from ({statement}) as m order by abs(share - share_before) desc, value limit 2".encode()
        ).fetchall()
        said += [
            f"{result.subject} {row['value']}: {percent(row['share_before'])} before, {percent(row['share'])} now"
            for row in rows
        ]
    return ", ".join(said)


# --- Numbers ----------------------------------------------------------------------------------------------------------


def percent(share: Decimal | float) -> str:
    """Return a share with two digits that count, such as 0.04 %."""
    value = Decimal(share) * 100
    places = 0 if value >= 10 else 1 if value >= 1 else 2
    if 0 < value < Decimal("0.01"):
        return "under 0.01 %"
    return f"{value:.{places}f} %"


def shown(number: Decimal | None, unit: str) -> str:
    """Return a number in its unit, short; a dash where there is none."""
    if number is None:
        return "—"
    match unit:
        case "share":
            return percent(number)
        case "ratio":
            return f"{number:,.2f} times"
        case "seconds":
            return f"{number:,.0f} s" if number >= 10 else f"{number:,.1f} s"
        case "hours":
            return f"{number:,.1f} h"
        case _:
            return f"{number:,.0f}"


def number_of(result: CheckResult) -> str:
    """Return what was observed, with what it says."""
    number = shown(result.observed, result.unit)
    return f"{number} {result.meaning}" if result.unit in ("share", "seconds") else f"{number}: {result.meaning}"


def _of(result: CheckResult) -> str:
    return f" of {result.sample_count:,}" if result.sample_count else ""


def _sampled(result: CheckResult) -> str:
    return f" ({result.sample_count:,} in all; {bound_of(result)})" if result.sample_count else f" ({bound_of(result)})"


def bound_of(result: CheckResult) -> str:
    """Return what it is held against."""
    least = f"at least {shown(result.least, result.unit)}" if result.least is not None else ""
    most = f"at most {shown(result.most, result.unit)}" if result.most is not None else ""
    if result.most == 0:
        most = "none is expected"
    return " and ".join(filter(None, (least, most)))
