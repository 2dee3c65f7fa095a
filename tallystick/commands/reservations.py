"""Commands about reservations: found by tenant, state and age, shown, and released by a person."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from tallystick.commands.common import (
    MINUTES_MAX,
    ROWS_MAX,
    ActorOption,
    Format,
    FormatOption,
    NeededReason,
    OfTenantOption,
    acting,
    cell,
    counted,
    group,
    print_json,
    print_lines,
    say,
    second_person_acts,
    show,
    wait_for_second_person,
    with_connection,
)

if TYPE_CHECKING:
    from quotas.releasing import Listed

reservations = group("Reservations: what is held for calls until their usage comes.")

TenantArgument = Annotated[str, typer.Argument(metavar="TENANT", help="The tenant, as the ask named it.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.add_typer(reservations, name="reservations")


@reservations.command("list")
def list_reservations(
    tenant: OfTenantOption = None,
    state: Annotated[
        list[str] | None,
        typer.Option("--state", help="held, awaiting_entry, settled, voided or expired; left out, the first two."),
    ] = None,
    minutes: Annotated[
        float,
        typer.Option(
            "--older-than", min=0, max=MINUTES_MAX, help="Minutes since the call ended, or else since it was admitted."
        ),
    ] = 0.0,
    limit: Annotated[int, typer.Option("--limit", min=1, max=ROWS_MAX, help="How many, the oldest first.")] = 50,
    format: FormatOption = Format.table,
) -> None:
    """List what is held, the oldest first: what awaits its usage for more than a day is lost, or was reported elsewhere."""
    from quotas import releasing

    before = datetime.now(UTC) - timedelta(minutes=minutes) if minutes else None
    found = with_connection(
        lambda connection: releasing.list_reservations(
            connection, tenant_id=tenant, states=state or releasing.OPEN, before=before, limit=limit
        ),
        of_tenant=tenant,
    )
    columns = {
        "tenant": lambda each: each.tenant_id,
        "reservation": lambda each: each.reservation_id,
        "state": None,
        "age": _age,
        "holds": lambda each: list(each.held),
        "operation": lambda each: each.operation_id,
        "route": None,
        "expires at": None,
    }
    show(found, format, columns, empty="no reservations")


def _age(listed: Listed) -> str:
    return str(timedelta(seconds=listed.age_seconds))


@reservations.command("show")
def show_reservation(
    tenant: TenantArgument,
    reservation: Annotated[str, typer.Argument(metavar="RESERVATION", help="The caller's id.")],
    format: FormatOption = Format.table,
) -> None:
    """Show a reservation as it stands, with what it holds of each budget."""
    import msgspec

    from quotas import releasing

    found = with_connection(lambda connection: releasing.find_reservation(connection, tenant, reservation))
    if format is Format.json:
        print_json(msgspec.to_builtins(found))
        return
    values = msgspec.structs.asdict(found)
    holds = values.pop("holds")
    print_lines([(name.replace("_", " "), cell(value)) for name, value in values.items()])
    columns = {
        "budget": lambda each: each.budget_id,
        "group": lambda each: each.group_key,
        "window": lambda each: each.window_start,
        "unit": lambda each: each.currency or each.unit,
        "reserved": None,
        "held": None,
    }
    show(holds, format, columns, empty="held against no budget")


@reservations.command("release")
def release(
    tenant: TenantArgument,
    reservation: Annotated[list[str], typer.Argument(metavar="RESERVATION...", help="The callers' ids: all or none.")],
    reason: NeededReason,
    actor: ActorOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Give back what is held, or awaits usage that will not come, for good; usage that comes all the same is booked in full."""
    from ledger.approvals import Awaiting
    from quotas import releasing

    needed = second_person_acts()
    done = with_connection(
        lambda connection: releasing.release_reservations(
            connection, [(tenant, each) for each in reservation], actor=acting(actor), reason=reason, needed=needed
        )
    )
    if isinstance(done, Awaiting):
        wait_for_second_person(done, format)
    if format is Format.json:
        print_json({"outcome": "released", "reservations": reservation})
        return
    say(f"released {counted(len(done), 'reservation')} of {tenant}")
