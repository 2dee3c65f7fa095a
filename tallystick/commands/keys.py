"""Commands about API keys."""

from typing import Annotated

import typer

from tallystick.commands.common import (
    ActorOption,
    Format,
    FormatOption,
    NeededReason,
    OfTenantOption,
    acting,
    group,
    moment,
    note,
    print_json,
    say,
    show,
    show_one,
    with_connection,
)

keys = group("API keys: a credential belongs to one tenant, to one source, or to an operator.")


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.add_typer(keys, name="keys")


@keys.command("create")
def create_key(
    tenant: Annotated[str | None, typer.Option("--tenant", help="The tenant that it speaks and reads for.")] = None,
    source: Annotated[str | None, typer.Option("--source", help="The source that it speaks for.")] = None,
    operator: Annotated[
        bool, typer.Option("--operator", help="An operator's: for every tenant, with the scopes that are named.")
    ] = False,
    scope: Annotated[
        list[str] | None,
        typer.Option(
            "--scope",
            help=(
                "What it may do, such as events:write; again for more. Left out, a tenant's or a source's may write"
                " events and reservations, and read budgets, usage and invoices."
            ),
        ),
    ] = None,
    expires: Annotated[
        str | None, typer.Option("--expires", help="A date (its midnight in UTC) or a time; left out, it does not.")
    ] = None,
    remark: Annotated[str | None, typer.Option("--note", help="What it is for.")] = None,
    actor: ActorOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Make a key and show it once; only its hash is kept."""
    from ledger import api_keys

    ends = moment(expires)
    made = with_connection(
        lambda connection: api_keys.create_key(
            connection,
            actor=acting(actor),
            tenant_id=tenant,
            source=source,
            is_operators=operator,
            scopes=scope or (),
            expires_at=ends,
            note=remark,
        )
    )
    if format is Format.json:
        print_json(made)
        return
    say(made.token)
    note(f"This is the only time that key {made.key_id} is shown. It may: {', '.join(made.scopes)}.")


@keys.command("list")
def list_keys(
    tenant: OfTenantOption = None,
    source: Annotated[str | None, typer.Option("--source", help="Of this source only.")] = None,
    format: FormatOption = Format.table,
) -> None:
    """List keys, never their secrets."""
    from ledger import api_keys

    found = with_connection(
        lambda connection: api_keys.list_keys(connection, tenant_id=tenant, source=source), of_tenant=tenant
    )
    columns = {
        "key": lambda each: each.key_id,
        "belongs to": lambda each: each.tenant_id or each.source or "operator",
        "scopes": None,
        "note": None,
        "in force": lambda each: each.is_in_force,
        "expires at": None,
        "revoked at": None,
        "last used at": None,
    }
    show(found, format, columns, empty="no keys")


@keys.command("show")
def show_key(
    key: Annotated[str, typer.Argument(metavar="KEY", help="The key's id, which is the part before its secret.")],
    format: FormatOption = Format.table,
) -> None:
    """Show what is known of a key; never its secret."""
    from ledger import api_keys

    show_one(with_connection(lambda connection: api_keys.show_key(connection, key)), format)


@keys.command("revoke")
def revoke_key(
    key: Annotated[str, typer.Argument(metavar="KEY", help="The key's id.")],
    reason: NeededReason,
    actor: ActorOption = None,
) -> None:
    """Revoke a key: requests that carry it are refused from now on, by a replica that is cut off within seconds."""
    from ledger import api_keys

    with_connection(lambda connection: api_keys.revoke_key(connection, key, actor=acting(actor), reason=reason))
    say(f"key {key} is revoked")
