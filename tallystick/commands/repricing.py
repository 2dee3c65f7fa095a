"""Commands about corrected prices: what they change, posting the difference, and what was known before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tallystick.commands.common import (
    ActorOption,
    CommitOption,
    Format,
    FormatOption,
    OfTenantOption,
    ReasonOption,
    acting,
    digits,
    instant,
    need_reason,
    need_tenant,
    note,
    plain,
    print_json,
    say,
    show,
    with_connection,
    with_connections,
)
from tallystick.commands.prices import prices
from tallystick.roles import OPERATOR, WRITER

if TYPE_CHECKING:
    from ledger.database import Connection
    from ledger.repricing import Preview, Repriced, Scope

SinceOption = Annotated[
    str | None, typer.Option("--since", help="Usage from this day (UTC) or RFC 3339 time on; left out, all.")
]
UntilOption = Annotated[str | None, typer.Option("--until", help="Usage before this day or time.")]
ModelOption = Annotated[str | None, typer.Option("--model", help="Of this model only: canonical or as reported.")]


def register(app: typer.Typer) -> None:
    """The commands of this file hang on the group `prices`."""


@prices.command("reprice")
def reprice(
    since: SinceOption = None,
    until: UntilOption = None,
    tenant: OfTenantOption = None,
    model: ModelOption = None,
    commit: CommitOption = False,
    reason: ReasonOption = None,
    actor: ActorOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Show what was priced otherwise than by today's book, and post the difference with --commit --reason."""
    from ledger import repricing

    why = need_reason(reason) if commit else ""
    scope = _scope(since, until, tenant, model)

    async def work(operator: Connection, writer: Connection) -> tuple[Preview, Repriced | None]:
        await need_tenant(operator, tenant)
        found = await repricing.preview(operator, scope)
        if not commit or not (found.requests or found.fees):
            return found, None
        return found, await repricing.reprice(operator, writer, scope, actor=acting(actor), reason=why)

    found, done = with_connections(work, OPERATOR, WRITER)
    if format is Format.json:
        print_json(
            {
                "looked_at": found.looked_at,
                "requests": found.requests,
                "entries": found.entries,
                "fees": found.fees,
                "unclear": found.unclear,
                "effects": [{**plain(effect), "difference": effect.difference} for effect in found.effects],
                "posted": done,
            }
        )
        return
    if found.effects:
        columns: dict[str, Any] = {
            "tenant": lambda each: each.tenant_id,
            "month": lambda each: f"{each.month:%Y-%m}",
            "book": None,
            "currency": None,
            "requests": None,
            "before": lambda each: digits(each.before),
            "after": lambda each: digits(each.after),
            "difference": lambda each: digits(each.difference),
            "now priced": lambda each: each.priced,
            "now unpriced": lambda each: each.unpriced,
        }
        show(found.effects, Format.table, columns)
    if found.unclear:
        note(f"{len(found.unclear)} requests are left: their parts cannot be told apart; --format json names them")
    if done is not None:
        say(f"posted {done.entries:,} entries for {done.requests:,} requests, run {done.run!r}")
    elif found.requests or found.fees:
        owed = f", {found.fees:,} operations owe a fee" if found.fees else ""
        say(
            f"{found.requests:,} of {found.looked_at:,} requests were priced otherwise{owed};"
            f" nothing is posted yet: --commit --reason posts {found.entries + found.fees:,} entries"
        )
    else:
        say(f"{found.looked_at:,} requests are priced as today's book says")


@prices.command("known-at")
def known_at(
    at: Annotated[str, typer.Argument(metavar="INSTANT", help="A day (UTC) or RFC 3339 time.")],
    since: SinceOption = None,
    until: UntilOption = None,
    tenant: OfTenantOption = None,
    model: ModelOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Show what was owed as it was known at an instant: the entries recorded by then, whatever was corrected since."""
    from ledger import repricing

    scope = _scope(since, until, tenant, model)
    moment = instant(at, "UTC")
    found = with_connection(lambda connection: repricing.amounts_known_at(connection, moment, scope), of_tenant=tenant)
    columns: dict[str, Any] = {
        "tenant": lambda each: each.tenant_id,
        "month": lambda each: f"{each.month:%Y-%m}",
        "book": None,
        "currency": None,
        "amount": lambda each: digits(each.amount),
        "requests": None,
        "unpriced": None,
    }
    show(found, format, columns, empty="nothing was known then")


def _scope(since: str | None, until: str | None, tenant: str | None, model: str | None) -> Scope:
    from ledger.repricing import Scope

    return Scope(
        since=None if since is None else instant(since, "UTC"),
        until=None if until is None else instant(until, "UTC"),
        tenant_id=tenant,
        model=model,
    )
