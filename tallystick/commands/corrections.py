"""Commands that correct a request: shown first, posted with --commit and a reason."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tallystick.commands.common import (
    BIGINT_MAX,
    ROWS_MAX,
    ActorOption,
    CommandError,
    CommitOption,
    Format,
    FormatOption,
    NeededReason,
    OfTenantOption,
    ReasonOption,
    acting,
    amount,
    digits,
    group,
    instant,
    need_reason,
    plain,
    print_json,
    print_table,
    say,
    second_person_acts,
    show,
    wait_for_second_person,
    with_connection,
    with_connections,
)
from tallystick.roles import OPERATOR, WRITER

if TYPE_CHECKING:
    from ledger.approvals import Awaiting
    from ledger.corrections import Corrected, Difference, Effect, Plan, Wanted
    from ledger.database import Connection

corrections = group("Corrections: what a person changes about a request, as new entries with a reason.")

SentTenantArgument = Annotated[str, typer.Argument(metavar="TENANT", help="The tenant, as sent.")]
RequestArgument = Annotated[str, typer.Argument(metavar="REQUEST", help="The request id, as its reports name it.")]
IdOption = Annotated[
    str | None,
    typer.Option("--id", help="An id of yours, so that a repeat does nothing; left out, it is made of what is asked."),
]


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.add_typer(corrections, name="corrections")


@corrections.command("reverse")
def reverse(
    tenant: SentTenantArgument,
    request: RequestArgument,
    fee: Annotated[
        bool, typer.Option("--fee", help="REQUEST names an operation: reverse its fee, and no call.")
    ] = False,
    book: Annotated[str, typer.Option("--book", help="Of a fee: charge or cost.")] = "charge",
    commit: CommitOption = False,
    reason: ReasonOption = None,
    id: IdOption = None,
    actor: ActorOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Negate everything that stands of a request, or of a fee; no later report brings it back."""
    from ledger.corrections import Fee, Request, Reverse, Wanted

    if book not in ("charge", "cost"):
        raise CommandError("--book is charge or cost")
    of = Fee(tenant, request, "charge" if book == "charge" else "cost") if fee else Request(tenant, request)
    _run(Wanted(Reverse(of), id), commit, reason, actor, format)


@corrections.command("adjust")
def adjust(
    tenant: SentTenantArgument,
    request: RequestArgument,
    count: Annotated[
        list[str] | None,
        typer.Option("--count", metavar="METER=N", help="What was used, for each meter; the others become zero."),
    ] = None,
    charge: Annotated[
        str | None, typer.Option("--charge", help="Difference in what the tenant owes, in its currency.")
    ] = None,
    cost: Annotated[str | None, typer.Option("--cost", help="Difference in what we owe the provider.")] = None,
    commit: CommitOption = False,
    reason: ReasonOption = None,
    id: IdOption = None,
    actor: ActorOption = None,
    format: FormatOption = Format.table,
) -> None:
    """State the counts of a request, or a difference in money that stands beside what is reported."""
    from ledger.corrections import Counts, Difference, Request, Wanted

    of = Request(tenant, request)
    if bool(count) == bool(charge is not None or cost is not None):
        raise CommandError("state either counts (--count) or a difference in money (--charge, --cost)")
    if count:
        _run(Wanted(Counts(of, _quantities(count)), id), commit, reason, actor, format)
        return
    change: Difference = Difference(of, _difference("--charge", charge), _difference("--cost", cost))
    _run(Wanted(change, id), commit, reason, actor, format)


@corrections.command("accept")
def accept(
    entry: Annotated[
        int | None,
        typer.Option("--entry", max=BIGINT_MAX, help="A report that was kept: a proposal, or any evidence row."),
    ] = None,
    letter: Annotated[
        int | None,
        typer.Option("--letter", max=BIGINT_MAX, help="A dead letter of a conflict, whose content is to count."),
    ] = None,
    commit: CommitOption = False,
    reason: ReasonOption = None,
    actor: ActorOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Let a report that was kept, or the second content of a conflict, be what counts of its request."""
    from ledger.corrections import Content, Report, Wanted

    if (entry is None) == (letter is None):
        raise CommandError("name either a report (--entry) or a dead letter (--letter)")
    if entry is not None:
        _run(Wanted(Report(entry)), commit, reason, actor, format)
        return
    assert letter is not None, "checked above"
    from ingest.letters import content_of

    said = with_connection(lambda connection: content_of(connection, letter))
    _run(Wanted(Content(letter, said)), commit, reason, actor, format)


@corrections.command("refuse")
def refuse(
    entry: Annotated[
        int, typer.Argument(metavar="ENTRY", max=BIGINT_MAX, help="The proposal, as `corrections proposals` lists it.")
    ],
    reason: NeededReason,
    actor: ActorOption = None,
) -> None:
    """Say for good that a proposal does not count; a conflict is refused by `dead-letters resolve`."""
    from ledger import corrections as ledger_corrections
    from ledger.approvals import Awaiting

    needed = second_person_acts()
    found = with_connection(
        lambda connection: ledger_corrections.refuse(
            connection, entry, actor=acting(actor), reason=reason, needed=needed
        )
    )
    if isinstance(found, Awaiting):
        wait_for_second_person(found)
    _told(found)


@corrections.command("list")
def list_corrections(
    tenant: OfTenantOption = None,
    request: Annotated[str | None, typer.Option("--request", help="Of this request only.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=ROWS_MAX, help="How many, the newest first.")] = 50,
    format: FormatOption = Format.table,
) -> None:
    """List corrections that were made, the newest first."""
    from ledger import corrections as ledger_corrections

    found = with_connection(
        lambda connection: ledger_corrections.list_corrections(
            connection, tenant_id=tenant, request_id=request, limit=limit
        ),
        of_tenant=tenant,
    )
    columns = {
        "no": lambda each: each.correction_no,
        "at": None,
        "kind": None,
        "tenant": lambda each: each.tenant_id,
        "request": lambda each: each.request_id,
        "moves": lambda each: _moves(each.effects),
        "actor": None,
        "reason": None,
        "second person": None,
    }
    show(found, format, columns, empty="no corrections")


@corrections.command("proposals")
def list_proposals(
    tenant: OfTenantOption = None,
    since: Annotated[
        str | None, typer.Option("--since", help="Recorded from this day (UTC) or RFC 3339 time on; left out, all.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=ROWS_MAX, help="How many, the newest first.")] = 50,
    format: FormatOption = Format.table,
) -> None:
    """List voids and lower counts of final reports that wait for a person."""
    from ledger import corrections as ledger_corrections

    moment = None if since is None else instant(since, "UTC")
    found = with_connection(
        lambda connection: ledger_corrections.list_proposals(connection, tenant_id=tenant, since=moment, limit=limit),
        of_tenant=tenant,
    )
    columns = {
        "entry": lambda each: each.entry_id,
        "tenant": lambda each: each.tenant_id,
        "request": lambda each: each.request_id,
        "source": None,
        "status": None,
        "occurred at": None,
        "quantities": None,
        "charge": lambda each: None if each.charge_amount is None else f"{each.charge_amount:f} {each.charge_currency}",
    }
    show(found, format, columns, empty="no proposals wait")


# --- Shown, then posted -----------------------------------------------------------------------------------------------


def _run(wanted: Wanted, commit: bool, reason: str | None, actor: str | None, format: Format) -> None:
    """Show what a correction does, and post it if told to."""
    from ledger import corrections as ledger_corrections
    from ledger.approvals import Awaiting
    from ledger.books import load_books

    why = need_reason(reason) if commit else ""
    needed = second_person_acts()

    async def work(operator: Connection, writer: Connection) -> Plan | Corrected | Awaiting:
        if not commit:
            return await ledger_corrections.plan(operator, await load_books(operator), wanted)
        return await ledger_corrections.correct(writer, wanted, actor=acting(actor), reason=why, needed=needed)

    found = with_connections(work, OPERATOR, WRITER)
    if isinstance(found, ledger_corrections.Plan):
        _show_plan(found, found.act in needed, format)
    elif isinstance(found, Awaiting):
        wait_for_second_person(found, format)
    elif format is Format.json:
        print_json(plain(found))
    else:
        _told(found)


def _show_plan(found: Plan, needs_two: bool, format: Format) -> None:
    if format is Format.json:
        print_json(
            {
                "act": found.act,
                "of": found.name,
                "detail": found.detail,
                "entries": len(found.rows),
                "effects": [{**plain(each), "difference": each.difference} for each in found.effects],
                "needs_second_person": needs_two,
            }
        )
        return
    say(f"{found.kind} {found.name}")
    _show_effects(found.effects)
    second = " and a second person" if needs_two else ""
    say(f"nothing is posted yet: --commit --reason{second} posts {_entries(len(found.rows))}")


def _show_effects(effects: list[Effect]) -> None:
    rows = [
        [
            each.what.replace("_", " "),
            each.currency or "",
            digits(each.before),
            digits(each.after),
            digits(each.difference),
        ]
        for each in effects
    ]
    print_table(["what", "currency", "before", "after", "difference"], rows, (2, 3, 4))


def _entries(count: int) -> str:
    return f"{count:,} {'entry' if count == 1 else 'entries'}"


def _told(found: Corrected) -> None:
    made = found.record
    if found.is_repeat:
        say(f"correction {made.correction_no} had been made by {made.actor} before; nothing was done now")
    elif made.batch_id is None:
        say(f"correction {made.correction_no}: entry {made.evidence_entry_id} does not count")
    else:
        say(f"correction {made.correction_no}: posted {_entries(made.entry_count)}; {_moves(made.effects)}")


def _moves(effects: Any) -> str:
    moves = []
    for each in effects:
        difference = Decimal(each["after"]) - Decimal(each["before"])
        if difference:
            unit = f" {each['currency']}" if each["currency"] else ""
            moves.append(f"{each['what'].replace('_', ' ')} {digits(difference)}{unit}")
    return ", ".join(moves) or "nothing moves"


def _quantities(texts: list[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for text in texts:
        meter, separator, number = text.partition("=")
        if not separator or not (number.isascii() and number.isdecimal() and len(number) < 20):
            raise CommandError(f"--count {text!r} is not METER=N with a whole number")
        if meter in found:
            raise CommandError(f"--count names {meter} twice")
        found[meter] = int(number)
    return found


def _difference(option: str, text: str | None) -> Decimal | None:
    return None if text is None else amount(text, option)
