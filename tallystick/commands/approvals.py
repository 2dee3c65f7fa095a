"""Commands about acts that need a second person: what waits, and the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tallystick.commands.common import (
    ROWS_MAX,
    ActorOption,
    Format,
    FormatOption,
    NeededReason,
    ReasonOption,
    acting,
    group,
    print_json,
    print_table,
    say,
    second_person_acts,
    show,
    with_connection,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ledger.approvals import Approval
    from ledger.database import Connection

approvals = group("Approvals: acts that need a second person.")


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.add_typer(approvals, name="approvals")


@approvals.command("list")
def list_approvals(
    all: Annotated[bool, typer.Option("--all", help="Also those that were refused, used or have expired.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, max=ROWS_MAX, help="How many, the newest first.")] = 50,
    format: FormatOption = Format.table,
) -> None:
    """List what waits for a second person, or has a yes and was not done yet; the newest first."""
    from ledger import approvals as ledger_approvals

    found: Sequence[Approval] = with_connection(
        lambda connection: ledger_approvals.list_approvals(connection, with_done=all, limit=limit)
    )
    columns = {
        "id": lambda each: each.approval_id,
        "state": None,
        "act": None,
        "detail": None,
        "reason": None,
        "requested by": None,
        "expires at": None,
        "decided by": None,
    }
    show(found, format, columns, empty="nothing waits for a second person")


@approvals.command("approve")
def approve(
    approvals: Annotated[list[int], typer.Argument(metavar="ID...", help="As listed; all of them or none.")],
    reason: ReasonOption = None,
    actor: ActorOption = None,
) -> None:
    """Say yes to acts that somebody else has asked for; they then run their command again."""
    from ledger import approvals as ledger_approvals

    async def answer(connection: Connection) -> list[Approval]:
        async with connection.transaction():
            return [
                await ledger_approvals.decide(connection, each, approve=True, actor=acting(actor), reason=reason)
                for each in dict.fromkeys(approvals)
            ]

    for found in with_connection(answer):
        say(f"{found.act} may be done by {found.requested_by} until {found.expires_at:%Y-%m-%d %H:%M} UTC, once")


@approvals.command("refuse")
def refuse(
    approval: Annotated[int, typer.Argument(metavar="ID", help="As listed.")],
    reason: NeededReason,
    actor: ActorOption = None,
) -> None:
    """Say no to an act that somebody else has asked for."""
    from ledger import approvals as ledger_approvals

    found = with_connection(
        lambda connection: ledger_approvals.decide(
            connection, approval, approve=False, actor=acting(actor), reason=reason
        )
    )
    say(f"{found.act} is refused")


@approvals.command("acts")
def list_acts(format: FormatOption = Format.table) -> None:
    """List the acts that can need a second person, and which do by TALLYSTICK_SECOND_PERSON."""
    from ledger.approvals import ACTS

    needed = second_person_acts()
    if format is Format.json:
        print_json([{"act": act, "does": does, "needs_two": act in needed} for act, does in sorted(ACTS.items())])
        return
    rows = [[act, "yes" if act in needed else "no", does] for act, does in sorted(ACTS.items())]
    print_table(["act", "needs two", "does"], rows)
