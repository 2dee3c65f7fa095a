"""Commands about tenants' readers: logins of the database that see their own tenants' rows and nothing else."""

import secrets
from typing import Annotated

import typer

from tallystick.commands.common import (
    ActorOption,
    CommandError,
    Format,
    FormatOption,
    NeededReason,
    acting,
    group,
    note,
    print_json,
    say,
    settings,
    show,
    with_connection,
)

readers = group("Readers: logins of the database that see the rows of their own tenants.")


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.add_typer(readers, name="readers")


def _owner() -> str:
    from tallystick.addresses import configured

    # Roles are made by whoever may; the operator may not.
    found = configured(settings())
    if found is not None:
        if found.owner is None:
            raise CommandError("readers are roles: TALLYSTICK_DATABASE_URL must be an address that may make roles")
        return found.owner
    raise CommandError("readers log in over the network: set TALLYSTICK_DATABASE_URL, the embedded database has none")


@readers.command("add")
def add_reader(
    login: Annotated[str, typer.Argument(metavar="LOGIN", help="Its name: every login sees it, so no tenant's.")],
    tenants: Annotated[list[str], typer.Option("--tenant", help="A tenant that it may see; repeat for more.")],
    actor: ActorOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Make a login that sees these tenants, and show its password once; of one that is there, add the tenants."""
    from migrations.run import add_reader as add

    password = secrets.token_urlsafe(24)
    is_new = add(_owner(), login, password, tenants, actor=acting(actor))
    if format is Format.json:
        print_json({"login": login, "tenants": tenants, "password": password if is_new else None})
        return
    if not is_new:
        say(f"{login} sees {', '.join(tenants)} too")
        return
    say(password)
    note(f"This is the only time that the password of {login} is shown.")


@readers.command("list")
def list_readers(format: FormatOption = Format.table) -> None:
    """List logins with the tenants that they see."""
    from ledger import readers as registered

    found = with_connection(registered.list_readers)
    show(found, format, {"login": None, "tenants": None}, empty="no readers")


@readers.command("remove")
def remove_reader(
    login: Annotated[str, typer.Argument(metavar="LOGIN", help="As listed.")],
    reason: NeededReason,
    actor: ActorOption = None,
) -> None:
    """Drop a reader's login."""
    from migrations.run import remove_reader as remove

    remove(_owner(), login, actor=acting(actor), reason=reason)
    say(f"{login} is gone")
