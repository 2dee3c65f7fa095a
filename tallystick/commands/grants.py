"""Commands about grants: create, list, show, revoke, adjust, expire; and tenants that are held to them."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Annotated

import typer

from tallystick.commands.common import (
    ActorOption,
    Format,
    FormatOption,
    NeededReason,
    ReasonOption,
    acting,
    amount,
    cell,
    counted,
    group,
    instant,
    now,
    plain,
    print_json,
    say,
    show,
    show_one,
    with_connection,
)

if TYPE_CHECKING:
    from quotas.granting import Done

grants = group("Grants: what a tenant has paid or been given in advance.")

KeyOption = Annotated[
    str | None,
    typer.Option("--key", help="The same act under the same key is done once; left out, it gets a key of its own."),
]


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.add_typer(grants, name="grants")


def _key(given: str | None) -> str:
    return secrets.token_hex(16) if given is None else given


def _tell(done: Done, verb: str, format: Format) -> None:
    if format is Format.json:
        print_json(done)
        return
    say(f"{'was already ' if done.was_done else ''}{verb} {done.grant_id}: {cell(done.amount)}")


@grants.command("create")
def create_grant(
    tenant: Annotated[str, typer.Option("--tenant", help="Whose usage burns it.")],
    amount_text: Annotated[str, typer.Option("--amount", help="Above zero.")],
    currency: Annotated[str, typer.Option("--currency", help="The tenant's.")],
    effective: Annotated[
        str | None,
        typer.Option("--from", help="RFC 3339, or a date in the tenant's zone; left out, now."),
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option("--until", help="Exclusive end: RFC 3339, or a date in the tenant's zone; left out, none."),
    ] = None,
    priority: Annotated[int, typer.Option("--priority", help="The lower one burns first.")] = 100,
    feature: Annotated[str | None, typer.Option("--feature", help="Only this feature burns it.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Only this model burns it, by canonical id.")] = None,
    description: Annotated[str | None, typer.Option("--description", help="A line for people.")] = None,
    key: KeyOption = None,
    reason: ReasonOption = None,
    actor: ActorOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Make a grant."""
    from ledger import registry
    from ledger.database import Connection
    from quotas.granting import NewGrant
    from quotas.granting import create_grant as create

    async def work(connection: Connection) -> Done:
        zone = (await registry.find_tenant(connection, tenant, now=now())).time_zone
        wanted = NewGrant(
            tenant_id=tenant,
            amount=amount(amount_text),
            currency=currency,
            effective_at=None if effective is None else instant(effective, zone),
            expires_at=None if expires is None else instant(expires, zone),
            priority=priority,
            feature=feature,
            model=model,
            description=description,
        )
        return await create(connection, acting(actor), wanted, key=_key(key), now=now(), reason=reason)

    _tell(with_connection(work), "created", format)


@grants.command("list")
def list_grants(
    tenant: Annotated[str, typer.Option("--tenant", help="Whose grants.")],
    format: FormatOption = Format.table,
) -> None:
    """List the grants of a tenant in the order in which they burn, with what is left, live."""
    from quotas import granting

    found = with_connection(lambda connection: granting.tenant_grants(connection, tenant, now=now()))
    if format is Format.json:
        print_json(found)
        return
    columns = {
        "grant": lambda each: each.grant_id,
        "for": lambda each: " ".join(
            f"{name}={value}" for name, value in (("feature", each.feature), ("model", each.model)) if value is not None
        ),
        "priority": None,
        "from": lambda each: each.effective_at,
        "until": lambda each: each.expires_at,
        "granted": None,
        "revoked": None,
        "burnt": None,
        "left": None,
    }
    if not found:
        say("no grants")
    for each in found:
        show(each.grants, format, columns)
        held = ", which reservations are held to" if each.is_prepaid else ""
        say(
            f"left {cell(each.left)} {each.currency}{held}; charged beyond grants {cell(each.overflow)} {each.currency}"
        )
        if each.unpriced_count:
            say(f"{counted(each.unpriced_count, 'request')} without a price: what is left is too high")


@grants.command("show")
def show_grant(
    grant: Annotated[str, typer.Argument(metavar="GRANT", help="The grant's id.")],
    format: FormatOption = Format.table,
) -> None:
    """Show a grant, what is left of it, and what has happened to it."""
    from ledger.database import Connection
    from quotas import granting

    async def read(connection: Connection) -> tuple[granting.GrantRecord, list[granting.Movement]]:
        return (
            await granting.find_grant(connection, grant, now=now()),
            await granting.movements(connection, grant),
        )

    found, moved = with_connection(read)
    if format is Format.json:
        print_json({**plain(found), "movements": plain(moved)})
        return
    show_one(found, format)
    say("")
    show(moved, format, {"at": None, "kind": None, "amount": None, "actor": None, "reason": None, "key": None})


@grants.command("revoke")
def revoke_grant(
    grant: Annotated[str, typer.Argument(metavar="GRANT", help="The grant's id.")],
    reason: NeededReason,
    amount_text: Annotated[
        str | None, typer.Option("--amount", help="How much of what is left; left out, all of it.")
    ] = None,
    key: KeyOption = None,
    actor: ActorOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Take back what is left of a grant; what was burnt stays burnt."""
    from quotas import granting

    part = None if amount_text is None else amount(amount_text)
    done = with_connection(
        lambda connection: granting.revoke_grant(
            connection, acting(actor), grant, key=_key(key), now=now(), amount=part, reason=reason
        )
    )
    _tell(done, "revoked", format)


@grants.command("adjust")
def adjust_grant(
    grant: Annotated[str, typer.Argument(metavar="GRANT", help="The grant's id.")],
    amount_text: Annotated[str, typer.Option("--amount", help="Above zero adds, below zero takes from what is left.")],
    reason: NeededReason,
    key: KeyOption = None,
    actor: ActorOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Add to a grant or take from it, where it was made in error."""
    from quotas import granting

    difference = amount(amount_text)
    done = with_connection(
        lambda connection: granting.adjust_grant(
            connection, acting(actor), grant, difference, key=_key(key), now=now(), reason=reason
        )
    )
    _tell(done, "adjusted", format)


@grants.command("expire")
def expire_grants(actor: ActorOption = None, format: FormatOption = Format.table) -> None:
    """Book what expired grants had left, and move prepaid limits; the scheduler does so every minute."""
    from quotas import granting

    booked, moved = with_connection(lambda connection: granting.expire_due(connection, acting(actor), now=now()))
    if format is Format.json:
        print_json({"booked": booked, "limits_moved": moved})
        return
    say(f"{counted(booked, 'expired grant')} booked, {counted(moved, 'prepaid limit')} moved")


@grants.command("prepay")
def prepay(
    tenant: Annotated[str, typer.Argument(metavar="TENANT", help="Who pays in advance from now on.")],
    reason: NeededReason,
    actor: ActorOption = None,
) -> None:
    """Hold a tenant to its grants: reservations beyond what is left are refused."""
    from quotas import granting

    done = with_connection(
        lambda connection: granting.prepay(connection, acting(actor), tenant, now=now(), reason=reason)
    )
    say(f"tenant {tenant} is prepaid: budget {done.budget_id}")


@grants.command("postpay")
def postpay(
    tenant: Annotated[str, typer.Argument(metavar="TENANT", help="Who is invoiced from now on.")],
    reason: NeededReason,
    actor: ActorOption = None,
) -> None:
    """Hold a tenant to its grants no longer; they go on to be burnt."""
    from quotas import granting

    ended = with_connection(lambda connection: granting.postpay(connection, acting(actor), tenant, reason=reason))
    say(f"tenant {tenant} is no longer prepaid: budget {ended} has ended")
