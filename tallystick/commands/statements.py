"""Commands about reports that disagree."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from tallystick.commands.common import (
    ROWS_MAX,
    Format,
    FormatOption,
    OfTenantOption,
    group,
    instant,
    note,
    now,
    show,
    with_connection,
)

statements = group("Statements: reports of one request that disagree, and one answer under several requests.")

_DAYS = 30
SinceOption = Annotated[
    str | None, typer.Option("--since", help=f"From this day (UTC) or RFC 3339 time on; left out, {_DAYS} days back.")
]
LimitOption = Annotated[int, typer.Option("--limit", min=1, max=ROWS_MAX, help="How many, the newest first.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.add_typer(statements, name="statements")


def _since(text: str | None) -> int:
    return now() - _DAYS * 86_400 * 1_000_000 if text is None else instant(text, "UTC")


@statements.command("differ")
def differ(
    since: SinceOption = None,
    tenant: OfTenantOption = None,
    limit: LimitOption = 100,
    format: FormatOption = Format.table,
) -> None:
    """List requests of which two sources reported other counts or amounts, such as gateway and node."""
    from ledger import pairs

    moment = _since(since)
    found = with_connection(
        lambda connection: pairs.differing_pairs(connection, since=moment, tenant_id=tenant, limit=limit),
        of_tenant=tenant,
    )
    columns: dict[str, Any] = {
        "recorded at": None,
        "tenant": lambda each: each.tenant_id,
        "request": lambda each: each.request_id,
        "stood": lambda each: each.stood_source,
        "said": lambda each: each.said_source,
        "counts": lambda each: each.said_source if each.is_counted else each.stood_source,
        "differs in": lambda each: _differing(each.stood_quantities, each.said_quantities),
        "charge difference": None,
        "currency": lambda each: each.charge_currency,
    }
    show(found, format, columns, empty="no reports differ")
    _more(found, limit, format)


def _differing(stood: dict[str, int], said: dict[str, int]) -> str:
    """Return the counts that differ, as was > is said."""
    meters = [meter for meter in sorted({*stood, *said}) if stood.get(meter, 0) != said.get(meter, 0)]
    return ", ".join(f"{meter} {stood.get(meter, 0)} > {said.get(meter, 0)}" for meter in meters) or "amounts"


@statements.command("shared-responses")
def shared_responses(
    since: SinceOption = None,
    tenant: OfTenantOption = None,
    limit: LimitOption = 100,
    format: FormatOption = Format.table,
) -> None:
    """List answers of providers that stand under several requests of one month: billed twice, or ids used twice."""
    from ledger import pairs

    day = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=_since(since))).date()
    found = with_connection(
        lambda connection: pairs.shared_responses(connection, since=day, tenant_id=tenant, limit=limit),
        of_tenant=tenant,
    )
    columns: dict[str, Any] = {
        "month": lambda each: f"{each.posting_period:%Y-%m}",
        "provider": None,
        "account": lambda each: each.provider_account,
        "response": lambda each: each.response_id,
        "requests": lambda each: each.request_ids,
        "tenants": lambda each: each.tenant_ids,
        "last occurred at": None,
    }
    show(found, format, columns, empty="no answer stands under several requests")
    _more(found, limit, format)


def _more(found: Any, limit: int, format: Format) -> None:
    if format is Format.table and len(found) == limit:
        note(f"the newest {limit:,}; --limit shows more")
