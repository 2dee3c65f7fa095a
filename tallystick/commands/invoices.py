"""Commands about invoices and credit notes: what is agreed, drafts, issue, void, what waits, what is given back."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tallystick.commands.bars import bar
from tallystick.commands.common import (
    ROWS_MAX,
    WAITS,
    ActorOption,
    CommandError,
    Format,
    FormatOption,
    HiddenMonthOption,
    HiddenTenantOption,
    MonthArgument,
    NeededReason,
    OfMonthOption,
    OfTenantOption,
    ReasonOption,
    TenantArgument,
    TenantMonthArgument,
    acting,
    amount,
    cell,
    counted,
    digits,
    group,
    month,
    need_tenant,
    note,
    plain,
    print_json,
    print_lines,
    print_table,
    say,
    second_person_acts,
    show,
    wait_for_second_person,
    whose_month,
    with_connection,
    with_connections,
)
from tallystick.roles import OPERATOR

if TYPE_CHECKING:
    from billing.agreement_files import Change
    from billing.credit_notes import Credited
    from billing.documents import Document
    from billing.issuing import Outcome, Waiting
    from billing.store import DocumentRecord
    from ledger.approvals import Awaiting
    from ledger.database import Connection

agreed = group("Billing: who issues, who pays, and what is agreed besides usage.")
invoice = group("Invoices: drafted for any month, issued from closed ones, voided by a row of their own.")
credit_note = group("Credit notes: what of an invoice is given back.")

DocumentArgument = Annotated[str, typer.Argument(metavar="DOCUMENT", help="Its number or id.")]
InvoiceArgument = Annotated[str, typer.Argument(metavar="INVOICE", help="Its number or id.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Say what would be, and do nothing.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this file, under both numbers of the noun."""
    app.add_typer(agreed, name="billing")
    app.add_typer(invoice, name="invoice")
    app.add_typer(invoice, name="invoices", hidden=True)
    app.add_typer(credit_note, name="credit-note")
    app.add_typer(credit_note, name="credit-notes", hidden=True)


# --- What is agreed ---------------------------------------------------------------------------------------------------


@agreed.command("apply")
def apply_file(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="YAML; billing/agreements.md says how it looks.")],
    dry_run: DryRunOption = False,
    reason: ReasonOption = None,
    actor: ActorOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Bring issuers, taxes, customers, items and bounds to what a file says, all or none; what it leaves out stays."""
    from billing.agreement_files import apply_agreements, load_agreements

    wanted = load_agreements(file)
    done = with_connection(
        lambda connection: apply_agreements(connection, acting(actor), wanted, reason=reason, dry_run=dry_run)
    )
    if format is Format.json:
        print_json({"dry_run": dry_run, "changes": plain(done)})
        return
    signs = {"added": "+", "changed": "~", "unchanged": "="}
    for each in done:
        say(f"{signs[each.outcome]} {each.name}{_difference(each)}")
    moved = sum(each.outcome != "unchanged" for each in done)
    say(f"{'would change' if dry_run else 'changed'} {moved} of {counted(len(done), 'agreement')}")


def _difference(change: Change) -> str:
    if change.outcome == "unchanged":
        return ""
    before = change.before or {}
    parts = [
        f"{name} {cell(before[name]) or 'none'} -> {cell(value) or 'none'}" if before else f"{name} {cell(value)}"
        for name, value in change.now.items()
        if (value is not None and (not before or before[name] != value)) or (before and value is None and before[name])
    ]
    return ": " + ", ".join(parts)


@agreed.command("show")
def show_agreed(tenant: TenantArgument, format: FormatOption = Format.table) -> None:
    """Show how a tenant stands on documents, and the items that it agreed to."""
    from billing.months import read_customers, read_items

    async def read(connection: Connection) -> tuple[Sequence[Any], Sequence[Any]]:
        await need_tenant(connection, tenant)
        return await read_customers(connection, [tenant]), await read_items(connection, [tenant])

    customers, items = with_connection(read)
    if format is Format.json:
        print_json({"customers": plain(customers), "items": plain(items)})
        return
    for each in customers:
        print_lines([(f.name.replace("_", " "), cell(getattr(each, f.name))) for f in dataclasses.fields(each)])
        say("")
    columns = {
        "id": lambda item: item.item_id,
        "kind": None,
        "description": None,
        "currency": None,
        "amount": None,
        "percent": None,
        "period": None,
        "timing": None,
        "from": lambda item: item.starts_on,
        "until": lambda item: item.ends_on,
    }
    show(items, format, columns, empty="no items")


# --- Drafts and invoices ----------------------------------------------------------------------------------------------


@invoice.command("draft")
def draft_invoice(tenant: TenantArgument, of_month: MonthArgument, format: FormatOption = Format.table) -> None:
    """Show what would be issued of a tenant's month, and what keeps it from that; nothing is stored."""
    from billing.issuing import preview

    first = month(of_month)
    found = with_connection(lambda connection: preview(connection, tenant, first, now=datetime.now(UTC)))
    if format is Format.json:
        print_json(
            {
                "tenant_id": tenant,
                "month": of_month,
                "drafts": [
                    {
                        "document": plain(each.document),
                        "credit_notes": plain(each.notes),
                        "refusals": list(each.refusals),
                        "bounds": list(each.bounds),
                        "live_invoice": plain(found.live.get(each.document.currency)),
                    }
                    for each in found.drafts
                ],
                "refusals": list(found.known.refusals),
            }
        )
        return
    for each in found.drafts:
        _show_document(each.document)
        for given_back in each.notes:
            say(f"gives back {_money(given_back.total, given_back.currency)} of invoice {given_back.corrects_number}")
        live = found.live.get(each.document.currency)
        if live is not None:
            say(f"issued as {live.number}, which counts: {_money(live.total, live.currency)}")
        for reason in each.refusals:
            say(f"cannot be issued: {reason}")
        for reason in each.bounds:
            say(f"waits for a person: {reason}")
        say("")
    if not found.drafts:
        say(f"{tenant} has nothing to bill in {of_month}")
        for reason in found.known.refusals:
            say(f"cannot be issued: {reason}")


@invoice.command("issue")
def issue_invoice(
    words: TenantMonthArgument = None,
    tenant: HiddenTenantOption = None,
    of_month: HiddenMonthOption = None,
    everybody: Annotated[bool, typer.Option("--all", help="Of all tenants.")] = False,
    entity: Annotated[str | None, typer.Option("--entity", help="Of all tenants that this entity invoices.")] = None,
    digest: Annotated[
        str | None, typer.Option("--digest", help="Of the draft that you looked at; anything else is refused.")
    ] = None,
    accept_bounds: Annotated[
        bool, typer.Option("--accept-bounds", help="Although it is larger than is issued unseen; takes a reason.")
    ] = False,
    reason: ReasonOption = None,
    actor: ActorOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Issue a closed month of one tenant or of many; whom something keeps back is parked, and the others go on.

    The code is 0 where all is issued, 1 where somebody is parked, 3 where nobody is and a second person has to agree first.
    """
    from billing.issuing import Terms, issue_all, issue_month

    tenant, of_month = whose_month(words, tenant, of_month, entity=entity, everybody=everybody)
    first = month(of_month)
    terms = Terms(acting(actor), reason, second_person_acts(), accept_bounds)

    async def one(connection: Connection) -> list[Outcome]:
        assert tenant is not None
        given = terms
        if digest is not None:
            given = dataclasses.replace(terms, digests=await _digests(connection, tenant, first, digest))
        return await issue_month(connection, tenant, first, given)

    done = of_all = 0

    async def many(connection: Connection, second: Connection) -> list[Outcome]:
        nonlocal done, of_all
        found: list[Outcome] = []
        # What is loaded stays: to look through all of it for garbage takes as long as to issue a hundred tenants.
        gc.freeze()
        with bar(f"invoices {of_month}", "tenants") as move:
            async for outcomes, tenants, of_all in issue_all(connection, first, terms, entity_id=entity, second=second):
                found += outcomes
                move(tenants - done, of_all)
                done = tenants
        return found

    if digest is not None and tenant is None:
        raise CommandError("a digest is of one tenant's draft")
    try:
        outcomes = with_connection(one) if tenant is not None else with_connections(many, OPERATOR, OPERATOR)
    except KeyboardInterrupt:
        if of_all:
            note(f"{done:,} of {of_all:,} tenants are done, and stay so; the same command again does the others")
        raise
    if format is Format.json:
        print_json(outcomes)
    else:
        _tell(outcomes, is_one=tenant is not None)
    results = {each.result for each in outcomes}
    if "parked" in results:
        raise typer.Exit(1)
    if "awaiting" in results:
        raise typer.Exit(WAITS)


async def _digests(connection: Connection, tenant: str, first: Any, digest: str) -> dict[str, str]:
    """Return the digest by the currency of the draft, or of the live invoice, that it is of; of a month with one alone."""
    from billing.issuing import preview

    found = await preview(connection, tenant, first, now=datetime.now(UTC))
    currencies = sorted({each.document.currency for each in found.drafts} | set(found.live))
    known = {each.document.currency: each.document.digest for each in found.drafts}
    named = [currency for currency in currencies if known.get(currency) == digest]
    return {(named or currencies or ["USD"])[0]: digest}


def _tell(outcomes: Sequence[Outcome], *, is_one: bool) -> None:
    for each in outcomes:
        if each.result == "issued":
            back = f", gives back by {', '.join(each.credit_notes)}" if each.credit_notes else ""
            if is_one:
                say(
                    f"issued {each.number}: {_money(each.total, each.currency)}, due {_money(each.amount_due, each.currency)}{back}"
                )
        elif each.result == "issued_before" and is_one:
            say(
                f"issued before: {each.number}, {_money(each.total, each.currency)}, due {_money(each.amount_due, each.currency)}"
            )
        elif each.result in {"parked", "awaiting"}:
            what = f"{each.tenant_id}{f' {each.currency}' if each.currency else ''}"
            for reason in each.reasons:
                note(f"{each.result} {what}: {reason}")
        elif each.result == "nothing" and is_one:
            say(f"{each.tenant_id} has nothing to bill in {each.month:%Y-%m}")
    if is_one:
        return
    said = []
    for result, words in _RESULTS.items():
        found = [each for each in outcomes if each.result == result]
        sums: dict[str, Decimal] = {}
        for each in found:
            if each.currency is not None and each.total is not None:
                sums[each.currency] = sums.get(each.currency, Decimal(0)) + each.total
        money = ", ".join(_money(total, currency) for currency, total in sorted(sums.items()))
        if found or result == "issued":
            said.append(f"{len(found):,} {words}" + (f" ({money})" if money else ""))
    say("; ".join(said))
    if any(each.result == "parked" for each in outcomes):
        say("`tallystick invoice parked` lists what waits")
    if any(each.result == "awaiting" for each in outcomes):
        say("`tallystick approvals list` lists what a second person is asked for")


_RESULTS = {
    "issued": "issued",
    "issued_before": "issued before",
    "awaiting": "waiting for a second person",
    "parked": "parked",
    "nothing": "with nothing to bill",
}


@invoice.command("show")
def show_invoice(document: DocumentArgument, format: FormatOption = Format.table) -> None:
    """Show an invoice or a credit note as it was issued, with its lines."""
    from billing.store import find_document

    found = with_connection(lambda connection: find_document(connection, document))
    if format is Format.json:
        print_json(found)
        return
    _show_document(found)


@invoice.command("list")
def list_invoices(
    tenant: OfTenantOption = None,
    of_month: OfMonthOption = None,
    kind: Annotated[str | None, typer.Option("--kind", help="invoice or credit_note; left out, both.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, max=ROWS_MAX, help="How many; left out, all.")] = None,
    format: FormatOption = Format.table,
) -> None:
    """List issued invoices and credit notes; voided ones are in it and say so."""
    from billing.store import list_documents

    if kind not in (None, "invoice", "credit_note"):
        raise CommandError(f"--kind is invoice or credit_note, not {kind!r}")
    first = None if of_month is None else month(of_month)

    async def read(connection: Connection) -> list[DocumentRecord]:
        await need_tenant(connection, tenant)
        ids = None if tenant is None else [tenant]
        return await list_documents(connection, tenant_ids=ids, month=first, kind=kind, limit=limit)

    found = with_connection(read)
    columns = {
        "number": None,
        "kind": None,
        "state": None,
        "tenant": lambda each: each.tenant_id,
        "month": lambda each: f"{each.posting_period:%Y-%m}",
        "currency": None,
        "total": None,
        "due": lambda each: each.amount_due,
        "due on": lambda each: each.due_date,
        "corrects": lambda each: each.corrects_number,
        "issued at": None,
    }
    show(found, format, columns, empty="no documents")


@invoice.command("parked")
def list_parked(
    of_month: OfMonthOption = None, tenant: OfTenantOption = None, format: FormatOption = Format.table
) -> None:
    """List months that something keeps from being invoiced, with the newest reasons."""
    from billing.issuing import list_waiting

    first = None if of_month is None else month(of_month)

    async def read(connection: Connection) -> list[Waiting]:
        await need_tenant(connection, tenant)
        return await list_waiting(connection, month=first, tenant_id=tenant)

    found = with_connection(read)
    columns = {
        "tenant": lambda each: each.tenant_id,
        "month": lambda each: f"{each.posting_period:%Y-%m}",
        "currency": None,
        "reasons": lambda each: "; ".join(each.reasons),
        "parked at": None,
    }
    show(found, format, columns, empty="nothing waits")


@invoice.command("void")
def void_invoice(
    document: InvoiceArgument, reason: NeededReason, actor: ActorOption = None, format: FormatOption = Format.table
) -> None:
    """Void an invoice, with what its month gave back: it stays as it was, counts no longer, and may be issued again."""
    from billing import voiding
    from ledger.approvals import Awaiting

    needed = second_person_acts()
    done = with_connection(
        lambda connection: voiding.void_invoice(connection, acting(actor), document, reason=reason, needed=needed)
    )
    if isinstance(done, Awaiting):
        wait_for_second_person(done, format)
    if format is Format.json:
        print_json(done)
    else:
        with_it = f" and {', '.join(done.credit_notes)}" if done.credit_notes else ""
        say(f"{'was voided before' if done.was_void else 'voided'}: {done.number}{with_it}")


# --- Credit notes -----------------------------------------------------------------------------------------------------


@credit_note.command("usage")
def credit_usage(
    document: InvoiceArgument,
    reason: NeededReason,
    request: Annotated[
        list[str] | None, typer.Option("--request", help="Only what corrects this request; may be given again.")
    ] = None,
    dry_run: DryRunOption = False,
    actor: ActorOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Give back what was corrected since of an invoice's usage; the rows that correct it then stand on no invoice."""
    from billing import credit_notes

    needed = second_person_acts()
    done = with_connection(
        lambda connection: credit_notes.credit_usage(
            connection, acting(actor), document, reason=reason, request_ids=request, needed=needed, dry_run=dry_run
        )
    )
    _tell_credit(done, dry_run, format)


@credit_note.command("commercial")
def credit_commercially(
    document: InvoiceArgument,
    reason: NeededReason,
    line: Annotated[
        list[str] | None,
        typer.Option("--line", help="A line of it, whole (3) or in part (3=1.50); may be given again."),
    ] = None,
    of_all: Annotated[str | None, typer.Option("--amount", help="Before tax, of the whole invoice.")] = None,
    dry_run: DryRunOption = False,
    actor: ActorOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Give back lines of an invoice or an amount of it, whatever was used; no entry moves."""
    from billing import credit_notes

    lines = _lines(line) if line else None
    given = None if of_all is None else amount(of_all, "--amount")
    needed = second_person_acts()
    done = with_connection(
        lambda connection: credit_notes.credit_commercially(
            connection,
            acting(actor),
            document,
            reason=reason,
            lines=lines,
            amount=given,
            needed=needed,
            dry_run=dry_run,
        )
    )
    _tell_credit(done, dry_run, format)


def _lines(given: Sequence[str]) -> dict[int, Decimal | None]:
    found: dict[int, Decimal | None] = {}
    for text in given:
        number, has_part, part = text.partition("=")
        if not (number.isascii() and number.isdecimal() and len(number) < 10):
            raise CommandError(f"--line: {text!r} is not a line such as 3 or 3=1.50")
        if int(number) in found:
            raise CommandError(f"--line: line {number} is given twice")
        found[int(number)] = amount(part, "--line") if has_part else None
    return found


def _tell_credit(done: Credited | Awaiting, dry_run: bool, format: Format) -> None:
    from ledger.approvals import Awaiting

    if isinstance(done, Awaiting):
        wait_for_second_person(done, format)
    if format is Format.json:
        print_json({"dry_run": dry_run, **plain(done)})
        return
    given = done.document
    what = f"{_money(given.total, given.currency)} of {given.corrects_number}"
    entries = f", made of {counted(done.entry_count, 'row')}" if done.entry_count else ""
    if dry_run:
        say(f"would give back {what}{entries}")
    else:
        say(f"issued {given.number}: gives back {what}{entries}")


# --- Showing ----------------------------------------------------------------------------------------------------------


def _money(value: Decimal | None, currency: str | None) -> str:
    return "" if value is None else f"{value:,f} {currency}"


def _show_document(found: Document) -> None:
    what = "invoice" if found.kind == "invoice" else "credit note"
    print_lines(
        [
            (what, cell(found.number) or "draft"),
            ("state", found.state),
            ("tenant", cell(found.tenant_id)),
            ("month", f"{found.posting_period:%Y-%m}"),
            ("issuer", cell(found.issuer.name)),
            ("customer", cell(found.customer.name)),
            ("issued at", cell(found.issued_at)),
            ("due on", cell(found.due_date)),
            *(
                (("corrects", cell(found.corrects_number)), ("reason", cell(found.reason)))
                if found.corrects_number
                else ()
            ),
            ("digest", found.digest),
        ]
    )
    say("")
    print_table(
        ["line", "kind", "what", "feature", "month", "quantity", "price", "exact", f"amount {found.currency}"],
        [
            [
                str(line.line_no),
                line.kind,
                cell(line.description),
                cell(line.feature),
                f"{line.service_start:%Y-%m}" + (" (late)" if line.is_late(found.posting_period) else ""),
                "" if line.quantity is None else f"{line.quantity:,f}",
                "" if line.unit_price is None else f"{digits(line.unit_price)} per {line.per:,}",
                digits(line.exact_amount),
                f"{line.amount:,f}",
            ]
            for line in found.lines
        ],
        {0, 5, 7, 8},
    )
    say("")
    print_lines(
        [
            ("subtotal", _money(found.subtotal, found.currency)),
            *((f"{cell(tax.label)} on {tax.base:,f}", _money(tax.amount, found.currency)) for tax in found.taxes),
            ("total", _money(found.total, found.currency)),
            *((f"grant {cell(each.description)}", _money(each.amount, found.currency)) for each in found.credits),
            ("due", _money(found.amount_due, found.currency)),
        ]
    )
    for text in found.notes:
        say(text)
