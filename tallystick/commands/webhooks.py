"""Commands about webhooks: receivers, their secrets, and what became of messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tallystick.commands.common import (
    ActorOption,
    CommandError,
    Format,
    FormatOption,
    NeededReason,
    OfTenantOption,
    ReasonOption,
    acting,
    counted,
    group,
    print_json,
    say,
    settings,
    show,
    with_connection,
)

if TYPE_CHECKING:
    from quotas.webhooks import Rules

webhooks = group("Webhooks: who is told when a budget is reached, exhausted or overrun.")

EndpointArgument = Annotated[str, typer.Argument(metavar="ENDPOINT", help="The endpoint's id.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.add_typer(webhooks, name="webhooks")


def _rules() -> Rules:
    from quotas.webhooks import Rules

    found = settings()
    return Rules(age_hours=found.webhook_age_hours, allow_private=found.webhooks_allow_private)


@webhooks.command("add")
def add_endpoint(
    url: Annotated[str, typer.Argument(metavar="URL", help="https://...")],
    tenant: Annotated[
        str | None, typer.Option("--tenant", help="Hears of this tenant only; left out, of everybody.")
    ] = None,
    kind: Annotated[
        list[str] | None, typer.Option("--kind", help="Only this kind; may be repeated; left out, all.")
    ] = None,
    reason: ReasonOption = None,
    actor: ActorOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Add a receiver and print the secret that it checks signatures with: shown once."""
    from quotas import webhooks as rules

    added = with_connection(
        lambda connection: rules.add_endpoint(
            connection, acting(actor), url, _rules(), tenant_id=tenant, kinds=kind or (), reason=reason
        )
    )
    if format is Format.json:
        print_json(added)
        return
    say(f"added {added.endpoint_id}; its secret, shown once:")
    say(added.secret)


@webhooks.command("list")
def list_endpoints(
    tenant: OfTenantOption = None,
    format: FormatOption = Format.table,
) -> None:
    """List receivers, and those that fail or are disabled."""
    from quotas import webhooks as rules

    found = with_connection(lambda connection: rules.list_endpoints(connection, tenant_id=tenant), of_tenant=tenant)
    columns = {
        "endpoint": lambda each: each.endpoint_id,
        "tenant": lambda each: each.tenant_id,
        "url": None,
        "kinds": lambda each: list(each.kinds),
        "failing since": None,
        "disabled at": None,
        "disabled reason": None,
    }
    show(found, format, columns, empty="no endpoints")


@webhooks.command("test")
def try_endpoint(endpoint: EndpointArgument, actor: ActorOption = None, format: FormatOption = Format.table) -> None:
    """Send a message to a receiver now, and say what it answered."""
    import asyncio

    from quotas import webhooks as rules
    from tallystick.addresses import addresses
    from tallystick.roles import OPERATOR

    async def work(url: str) -> rules.Delivery:
        from ledger.database import connect

        async with await connect(url, connect_timeout=10) as connection:
            message_id = await rules.send_test(connection, acting(actor), endpoint)
            await rules.deliver_due(url, _rules(), only=message_id)
            listed = await rules.list_deliveries(connection, endpoint_id=endpoint, limit=20)
            return next(each for each in listed if each.message_id == message_id)

    with addresses(settings()) as found:
        sent = asyncio.run(work(found.url_for(OPERATOR)))
    if format is Format.json:
        print_json(sent)
    if sent.state != "delivered":
        raise CommandError(f"endpoint {endpoint} did not take it: {sent.last_error or 'it is disabled'}")
    if format is Format.table:
        say(f"delivered msg_{sent.message_id}: answered {sent.last_status}")


@webhooks.command("rotate")
def rotate_secret(
    endpoint: EndpointArgument,
    overlap_hours: Annotated[
        int, typer.Option("--overlap-hours", help="How long messages are signed with the old secret too.")
    ] = 24,
    reason: ReasonOption = None,
    actor: ActorOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Give a receiver a new secret and print it: shown once."""
    from quotas import webhooks as rules

    secret = with_connection(
        lambda connection: rules.rotate_secret(
            connection, acting(actor), endpoint, overlap_hours=overlap_hours, reason=reason
        )
    )
    if format is Format.json:
        print_json({"endpoint_id": endpoint, "secret": secret, "overlap_hours": overlap_hours})
        return
    say(f"the new secret of {endpoint}, shown once; the old one signs too for {counted(overlap_hours, 'hour')}:")
    say(secret)


@webhooks.command("enable")
def enable_endpoint(endpoint: EndpointArgument, reason: ReasonOption = None, actor: ActorOption = None) -> None:
    """Send to a disabled receiver again, beginning with what waits for it."""
    from quotas import webhooks as rules

    with_connection(lambda connection: rules.enable_endpoint(connection, acting(actor), endpoint, reason=reason))
    say(f"endpoint {endpoint} is enabled")


@webhooks.command("remove")
def remove_endpoint(endpoint: EndpointArgument, reason: NeededReason, actor: ActorOption = None) -> None:
    """Remove a receiver; what waits for it is given up."""
    from quotas import webhooks as rules

    with_connection(lambda connection: rules.remove_endpoint(connection, acting(actor), endpoint, reason=reason))
    say(f"endpoint {endpoint} is removed")


@webhooks.command("deliveries")
def list_deliveries(
    endpoint: Annotated[str | None, typer.Option("--endpoint", help="Those to this endpoint only.")] = None,
    state: Annotated[str | None, typer.Option("--state", help="pending, delivered or failed.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="At most so many, the newest first.")] = 50,
    format: FormatOption = Format.table,
) -> None:
    """List messages and what became of them, the newest first."""
    from quotas import webhooks as rules

    if state not in (None, "pending", "delivered", "failed"):
        raise CommandError(f"state {state!r} is unknown; it is one of pending, delivered, failed")
    found = with_connection(
        lambda connection: rules.list_deliveries(connection, endpoint_id=endpoint, state=state, limit=limit)
    )
    columns = {
        "message": lambda each: f"msg_{each.message_id}",
        "kind": None,
        "endpoint": lambda each: each.endpoint_id,
        "state": None,
        "attempts": None,
        "created at": None,
        "next at": None,
        "answer": lambda each: each.last_status,
        "error": lambda each: each.last_error,
    }
    show(found, format, columns, empty="no messages")


@webhooks.command("resend")
def resend(
    message: Annotated[str, typer.Argument(metavar="MESSAGE", help="The message's id.")],
    endpoint: Annotated[
        str | None, typer.Option("--endpoint", help="Only to this one; left out, to all it was for.")
    ] = None,
    reason: ReasonOption = None,
    actor: ActorOption = None,
) -> None:
    """Send a message again under the id that it had; the scheduler does so within seconds."""
    from quotas import webhooks as rules

    count = with_connection(
        lambda connection: rules.resend(connection, acting(actor), message, endpoint_id=endpoint, reason=reason)
    )
    say(f"to be sent to {counted(count, 'endpoint')} again")
