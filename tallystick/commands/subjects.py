"""Commands about tenants' users: what the ledger holds about one, and the link to them cut."""

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from tallystick.commands.common import (
    ActorOption,
    Format,
    FormatOption,
    NeededReason,
    acting,
    cell,
    group,
    plain,
    print_json,
    print_lines,
    say,
    with_connection,
)

if TYPE_CHECKING:
    from ledger.database import Connection
    from ledger.subjects import Subject

subjects = group("Subjects: a tenant's users, of whom entries hold a random id.")

TenantOption = Annotated[str, typer.Option("--tenant", help="Whose user it is.")]
HashOption = Annotated[str, typer.Option("--user-hash", help="The sender's hash of its user, as sent.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.add_typer(subjects, name="subjects")


@subjects.command("show")
def show_subject(
    tenant: TenantOption,
    user_hash: HashOption,
    entries: Annotated[
        bool,
        typer.Option("--entries", help="Write its entries instead, one JSON object a line: for an access request."),
    ] = False,
    format: FormatOption = Format.table,
) -> None:
    """Show what the ledger holds about a tenant's user."""
    from ledger import subjects as held

    async def read(connection: "Connection") -> "Subject":
        found = await held.find_subject(connection, tenant, user_hash)
        if entries:
            async for entry in held.entries_of(connection, found):
                sys.stdout.write(json.dumps(plain(entry), ensure_ascii=False) + "\n")
        return found

    found = with_connection(read)
    if entries:
        return
    if format is Format.json:
        print_json(found)
        return
    print_lines(
        [
            ("tenant", cell(found.tenant_id)),
            ("subject", found.subject_id),
            ("first seen", cell(found.created_at)),
            ("entries", f"{found.entry_count:,}"),
            ("requests", f"{found.request_count:,}"),
            ("from", cell(found.first_at)),
            ("to", cell(found.last_at)),
            ("conversations", f"{found.conversation_count:,}"),
            ("charge", ", ".join(f"{amount:f} {currency}" for currency, amount in found.charge_sums.items())),
        ]
    )


@subjects.command("erase")
def erase_subject(
    tenant: TenantOption,
    user_hash: HashOption,
    reason: NeededReason,
    actor: ActorOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Cut the link between a tenant's user and its entries, and say what remains; a later event makes a new subject."""
    from ledger import subjects as held

    done = with_connection(
        lambda connection: held.erase_subject(connection, tenant, user_hash, actor=acting(actor), reason=reason)
    )
    if format is Format.json:
        print_json(done)
        return
    if done.subject_id is None:
        say("nothing links to this hash: it was erased before, or never seen")
    else:
        keep = "1 entry keeps" if done.entry_count == 1 else f"{done.entry_count:,} entries keep"
        say(f"the link is cut: {keep} the bare id {done.subject_id}")
    for count, text in (
        (done.conversation_count, "conversation ids stand on them, as sent"),
        (done.tagged_count, "of them have tags of the sender's own"),
        (done.dead_letter_count, "dead letters of the tenant still have their bytes"),
        (done.retired_months, "months have left the ledger, and their exports hold bare ids"),
    ):
        if count:
            say(f"remains: {count:,} {text}")
