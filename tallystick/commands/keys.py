"""Commands about API keys."""

from typing import Annotated

import typer

from tallystick.commands.common import (
    ActorOption,
    Format,
    FormatOption,
    NeededReason,
    acting,
    group,
    note,
    print_json,
    say,
    show,
    with_connection,
)

keys = group("API keys: a credential belongs to one tenant, or to one source.")


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.add_typer(keys, name="keys")


@keys.command("create")
def create_key(
    tenant: Annotated[str | None, typer.Option("--tenant", help="The tenant that it speaks and reads for.")] = None,
    source: Annotated[str | None, typer.Option("--source", help="The source that it speaks for.")] = None,
    remark: Annotated[str | None, typer.Option("--note", help="What it is for.")] = None,
    actor: ActorOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Make a key and show it once; only its hash is kept."""
    from ledger import api_keys

    made = with_connection(
        lambda connection: api_keys.create_key(
            connection, actor=acting(actor), tenant_id=tenant, source=source, note=remark
        )
    )
    if format is Format.json:
        print_json({"key_id": made.key_id, "token": made.token})
        return
    say(made.token)
    note(f"This is the only time that key {made.key_id} is shown.")


@keys.command("list")
def list_keys(
    tenant: Annotated[str | None, typer.Option("--tenant", help="Of this tenant only.")] = None,
    source: Annotated[str | None, typer.Option("--source", help="Of this source only.")] = None,
    format: FormatOption = Format.table,
) -> None:
    """List keys, never their secrets."""
    from ledger import api_keys

    found = with_connection(lambda connection: api_keys.list_keys(connection, tenant_id=tenant, source=source))
    columns = {
        "key": lambda each: each.key_id,
        "tenant": lambda each: each.tenant_id,
        "source": None,
        "note": None,
        "created at": None,
        "revoked at": None,
    }
    show(found, format, columns, empty="no keys")


@keys.command("revoke")
def revoke_key(
    key: Annotated[str, typer.Argument(metavar="KEY", help="The key's id.")],
    reason: NeededReason,
    actor: ActorOption = None,
) -> None:
    """Revoke a key: requests that carry it are refused within seconds."""
    from ledger import api_keys

    with_connection(lambda connection: api_keys.revoke_key(connection, key, actor=acting(actor), reason=reason))
    say(f"key {key} is revoked")
