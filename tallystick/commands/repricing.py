"""Commands about corrected prices: what they change, posting the difference, and what was known before."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tallystick.commands.common import (
    ActorOption,
    CommandError,
    Format,
    FormatOption,
    ReasonOption,
    acting,
    instant,
    note,
    print_json,
    say,
    show,
    with_connection,
    with_connections,
)
from tallystick.commands.prices import prices

if TYPE_CHECKING:
    from ledger.database import Connection
    from ledger.repricing import Effect, Preview, Repriced, Scope

SinceOption = Annotated[
    str | None, typer.Option("--since", help="Usage from this day (UTC) or RFC 3339 time on; left out, all.")
]
UntilOption = Annotated[str | None, typer.Option("--until", help="Usage before this day or time.")]
TenantOption = Annotated[str | None, typer.Option("--tenant", help="Of this tenant only.")]
ModelOption = Annotated[str | None, typer.Option("--model", help="Of this model only: canonical or as reported.")]


def register(app: typer.Typer) -> None:
    """The commands of this file hang on the group `prices`."""


@prices.command("reprice")
def reprice(
    since: SinceOption = None,
    until: UntilOption = None,
    tenant: TenantOption = None,
    model: ModelOption = None,
    commit: Annotated[bool, typer.Option("--commit", help="Post it; without this it is only shown.")] = False,
    reason: ReasonOption = None,
    actor: ActorOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Show what was priced otherwise than by today's book, and post the difference with --commit --reason."""
    from ledger import repricing

    if commit and not reason:
        raise CommandError("--commit needs --reason: the entries carry it")
    scope = _scope(since, until, tenant, model)

    async def work(operator: Connection, writer: Connection) -> tuple[Preview, Repriced | None]:
        found = await repricing.preview(operator, scope)
        if not commit or not (found.requests or found.fees):
            return found, None
        assert reason is not None, "checked above"
        return found, await repricing.reprice(operator, writer, scope, actor=acting(actor), reason=reason)

    found, done = with_connections(work, "tallystick_operator", "tallystick_writer")
    if format is Format.json:
        print_json(
            {
                "looked_at": found.looked_at,
                "requests": found.requests,
                "entries": found.entries,
                "fees": found.fees,
                "unclear": found.unclear,
                "effects": [{**_plain(effect), "difference": effect.difference} for effect in found.effects],
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
            "before": lambda each: _digits(each.before),
            "after": lambda each: _digits(each.after),
            "difference": lambda each: _digits(each.difference),
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
    tenant: TenantOption = None,
    model: ModelOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Show what was owed as it was known at an instant: the entries recorded by then, whatever was corrected since."""
    from ledger import repricing

    scope = _scope(since, until, tenant, model)
    moment = instant(at, "UTC")
    found = with_connection(lambda connection: repricing.amounts_known_at(connection, moment, scope))
    columns: dict[str, Any] = {
        "tenant": lambda each: each.tenant_id,
        "month": lambda each: f"{each.month:%Y-%m}",
        "book": None,
        "currency": None,
        "amount": lambda each: _digits(each.amount),
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


def _plain(effect: Effect) -> dict[str, Any]:
    import dataclasses

    return dataclasses.asdict(effect)


def _digits(value: Decimal) -> str:
    from ledger.price_book import plain

    return plain(value)
