"""`tallystick spikes`: what is unusual now, since when, and the query that shows it."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tallystick.commands.common import (
    WAITS,
    CommandError,
    Format,
    FormatOption,
    moment,
    need_tenant,
    note,
    say,
    show,
    with_connection,
)
from tallystick.roles import ANALYST

if TYPE_CHECKING:
    from ledger.database import Connection

_DAY: Final = 86_400_000_000
_BUCKET: Final = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Finding:
    """A run of signals of one kind about one thing."""

    tenant_id: str
    kind: str
    feature: str
    api_key_id: str
    value: str
    severity: str
    score: Decimal
    """The highest of the run."""
    since_at: datetime
    last_at: datetime
    """Start of the last five minutes that showed it."""
    observed: Decimal
    usual: Decimal
    currency: str | None
    """Of what was observed and is usual: amounts an hour, or shares where null; of a new key, how many of its minimums."""
    explain_sql: str
    """Shows the five minutes of the highest score."""
    incident: int = 0
    """Signals that belong together have the same number, from 1 on in the order of urgency."""


_FINDINGS: Final = """
select distinct on (tenant_id, kind, feature, api_key_id, value, currency, since_at)
    tenant_id,
    kind,
    feature,
    api_key_id,
    value,
    severity,
    max(score) over run as score,
    since_at,
    max(starts_at) over run as last_at,
    observed,
    usual,
    currency,
    explain_sql
from (
    select
        tenant_id, 'spend' as kind, feature, api_key_id, '' as value, severity, score, since_at, starts_at,
        hour_amount as observed, usual_hour_amount as usual, charge_currency as currency, explain_sql
    from marts.fct_spend_spikes
    union all
    select
        tenant_id, kind, feature, api_key_id, value, severity, score, since_at, starts_at, observed, usual, null, explain_sql
    from marts.fct_abuse_signals
) as s
where starts_at >= %(since)s and (%(tenant)s::text is null or tenant_id = %(tenant)s)
window run as (partition by tenant_id, kind, feature, api_key_id, value, currency, since_at)
order by
    tenant_id, kind, feature, api_key_id, value, currency, since_at,
    array_position(array['critical', 'warning', 'notice'], severity), s.score desc, starts_at
"""
_LATE: Final = timedelta(minutes=5)
_WAITING: Final = """
select min(b.recorded_at)
from ledger.feeds as f
cross join (values ('fct_spend_spikes'), ('fct_abuse_signals')) as m (model)
left join marts.watermarks as w on w.model = m.model and w.feed_id = f.feed_id
join ledger.batches as b on b.feed_id = f.feed_id and b.number > coalesce(w.low, 0)
where b.entry_count > 0
having min(b.recorded_at) < clock_timestamp() - %s::interval
"""
_ORDER: Final = {"critical": 0, "warning": 1, "notice": 2}


def register(app: typer.Typer) -> None:
    """Add the command of this file."""
    app.command("spikes")(spikes)


def spikes(
    tenant: Annotated[str | None, typer.Option("--tenant", help="Of this tenant only.")] = None,
    since: Annotated[
        str | None, typer.Option("--since", help="Seen since: a date in UTC, or an RFC 3339 time; default: a day ago.")
    ] = None,
    format: FormatOption = Format.table,
) -> None:
    """Show sudden spending and abuse, each with score, since when, and the query that explains it.

    Read from the marts, which the scheduler brings up to date every minute. The code is 0 where there is nothing, 3 where
    there is something, 1 where the marts are late and nobody can say; docs/spikes.md says what to do about it.
    """
    from ledger.times import from_micros

    start = moment(since) or from_micros(time.time_ns() // 1000 - _DAY)

    async def read(connection: "Connection") -> tuple[list[Finding], datetime | None]:
        cursor = await connection.execute("select to_regclass('marts.fct_abuse_signals') is not null")
        row = await cursor.fetchone()
        if row is None or not row[0]:
            raise CommandError("the marts hold no signals yet: run `tallystick rollup`")
        await need_tenant(connection, tenant)
        cursor = await connection.execute(_FINDINGS, {"since": start, "tenant": tenant})
        found = [Finding(*found) for found in await cursor.fetchall()]
        cursor = await connection.execute(_WAITING, [_LATE])
        late = await cursor.fetchone()
        return found, late[0] if late is not None else None

    found, unseen = with_connection(read, role=ANALYST)
    found = list(by_incident(found))
    if unseen is not None:
        line = f"what was recorded since {unseen:%Y-%m-%d %H:%M} UTC is not in the marts, and not looked at: `tallystick rollup`"
        if not found:
            raise CommandError(line)
        note(line)
    show(
        found,
        format,
        {
            "incident": None, "severity": None, "kind": None, "tenant": lambda each: each.tenant_id, "feature": None,
            "key": lambda each: each.api_key_id, "value": None, "score": None, "since": lambda each: each.since_at,
            "last": lambda each: each.last_at, "observed": lambda each: _shown(each.observed, each),
            "usual": lambda each: _shown(each.usual, each),
        },
        empty="nothing unusual",
    )  # fmt: skip
    if found and format is Format.table:
        say("")
        for each in found:
            say(f"{each.incident} {each.kind} of {each.tenant_id}: {each.explain_sql}")
    if found:
        raise typer.Exit(WAITS)


def by_incident(found: Iterable[Finding]) -> Iterable[Finding]:
    """Number findings that belong together: of one tenant at one time, and of one key where neither goes over all of them."""
    incidents: list[list[Finding]] = []
    for each in sorted(found, key=lambda finding: (_ORDER[finding.severity], -finding.score, finding.tenant_id)):
        for number, others in enumerate(incidents, start=1):
            if any(_belong_together(each, other) for other in others):
                others.append(replace(each, incident=number))
                break
        else:
            incidents.append([replace(each, incident=len(incidents) + 1)])
    return (each for incident in incidents for each in incident)


def _belong_together(one: Finding, other: Finding) -> bool:
    return (
        one.tenant_id == other.tenant_id
        and one.since_at <= other.last_at + _BUCKET
        and other.since_at <= one.last_at + _BUCKET
        and ("one_user" in (one.kind, other.kind) or (one.feature, one.api_key_id) == (other.feature, other.api_key_id))
    )


def _shown(value: Decimal, finding: Finding) -> str:
    if finding.kind == "new_key":
        return f"{value:.1f} minimums"
    return f"{value:.1%}" if finding.currency is None else f"{value:,.2f} {finding.currency}"
