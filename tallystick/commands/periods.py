"""Commands about months: list and show them, close, seal and open them again, make them ahead."""

from collections.abc import Mapping, Sequence
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tallystick.commands.common import (
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
    cell,
    counted,
    group,
    month,
    need_tenant,
    note,
    now,
    plain,
    print_json,
    print_lines,
    print_table,
    say,
    second_person_acts,
    settings,
    show,
    wait_for_second_person,
    whose_month,
    with_connection,
)

if TYPE_CHECKING:
    from ledger.closing import Closed, ClosingPeriod
    from ledger.database import Connection
    from ledger.periods import PeriodRecord
    from ledger.seals import SealRecord

period = group("Periods: the months of each tenant, closed by a person, sealed, and opened again as a recorded act.")


def register(app: typer.Typer) -> None:
    """Add the commands of this file, under both numbers of the noun."""
    app.add_typer(period, name="period")
    app.add_typer(period, name="periods", hidden=True)


@period.command("list")
def list_periods(
    tenant: OfTenantOption = None,
    of_month: OfMonthOption = None,
    format: FormatOption = Format.table,
) -> None:
    """List the months of tenants, when each begins and ends, and until when late usage enters it."""
    from ledger import periods as calendar

    first = None if of_month is None else month(of_month)

    async def read(connection: "Connection") -> "list[PeriodRecord]":
        await need_tenant(connection, tenant)
        return await calendar.list_periods(connection, tenant_id=tenant, month=first)

    columns = {
        "tenant": lambda each: each.tenant_id,
        "period": lambda each: f"{each.posting_period:%Y-%m}",
        "state": _state,
        "starts at": None,
        "ends at": None,
        "grace until": None,
    }
    show(with_connection(read), format, columns, empty="no periods")


def _state(found: "PeriodRecord") -> str:
    if found.state == "closed":
        return "sealed" if found.is_sealed else "closed"
    return "open again" if found.close_number else found.state


@period.command("show")
def show_period(tenant: TenantArgument, of_month: MonthArgument, format: FormatOption = Format.table) -> None:
    """Show a tenant's month: what is in it, what waits for a person, its seals, and what keeps it closed."""
    from ledger import closing, seals
    from ledger import periods as calendar

    first = month(of_month)

    async def read(
        connection: "Connection",
    ) -> "tuple[PeriodRecord, ClosingPeriod, list[SealRecord], list[str]]":
        found = await calendar.find_period(connection, tenant, first)
        (inside,) = await closing.preview_close(connection, first, tenant_id=tenant)
        made = await seals.list_seals(connection, tenant_id=tenant, month=first)
        return found, inside, made, await closing.what_depends_on(connection, tenant, first)

    found, inside, made, kept = with_connection(read)
    if format is Format.json:
        print_json({**plain(found), "contains": plain(inside), "seals": plain(made), "kept_closed_by": kept})
        return
    print_lines(
        [
            ("tenant", cell(found.tenant_id)),
            ("period", f"{first:%Y-%m}"),
            ("state", _state(found)),
            ("starts at", cell(found.starts_at)),
            ("ends at", cell(found.ends_at)),
            ("grace until", cell(found.grace_until)),
            ("closed at", cell(found.closed_at)),
            ("kept closed by", cell(kept)),
            *_contents(inside),
        ]
    )
    if made:
        say("")
        print_table(
            ["close", "seal", "sealed at", "rows", "requests", "cost", "charge", "digest"],
            [
                [
                    str(each.close_number),
                    "superseded" if each.is_superseded else "counts",
                    cell(each.sealed_at),
                    f"{each.row_count:,}",
                    f"{each.request_count:,}",
                    _amounts(each.cost_sums),
                    _amounts(each.charge_sums),
                    each.digest[:16],
                ]
                for each in made
            ],
            {0, 3, 4},
        )


def _amounts(sums: Mapping[str, Decimal | str]) -> str:
    return ", ".join(f"{cell(amount)} {currency}" for currency, amount in sums.items())


def _contents(found: "ClosingPeriod") -> list[tuple[str, str]]:
    return [
        ("entries", f"{found.entry_count:,} and {counted(found.evidence_count, 'row')} of evidence"),
        ("requests", f"{found.request_count:,}, {found.estimated_count:,} of them estimated"),
        ("cost", _amounts(found.cost_sums)),
        ("charge", _amounts(found.charge_sums)),
        ("without a cost", f"{found.cost_unpriced_count:,}"),
        ("without a charge", f"{found.charge_unpriced_count:,}"),
        ("without usage", f"{found.usage_missing_count:,}"),
        ("open conflicts", f"{found.conflict_count:,}"),
        ("open dead letters", f"{found.dead_letter_count:,}"),
    ]


# --- Close, seal, open again ------------------------------------------------------------------------------------------


@period.command("close")
def close_period(
    words: TenantMonthArgument = None,
    tenant: HiddenTenantOption = None,
    of_month: HiddenMonthOption = None,
    entity: Annotated[str | None, typer.Option("--entity", help="Of all tenants that this entity invoices.")] = None,
    everybody: Annotated[bool, typer.Option("--all", help="Of all tenants.")] = False,
    early: Annotated[bool, typer.Option("--early", help="Although it has not ended; takes a reason.")] = False,
    accept_unknown: Annotated[
        bool,
        typer.Option(
            "--accept-unknown",
            help="Although it holds requests without a charge or usage, or open conflicts; takes a reason.",
        ),
    ] = False,
    commit: Annotated[bool, typer.Option("--commit", help="Close it; without this, only show what would be.")] = False,
    reason: ReasonOption = None,
    format: FormatOption = Format.table,
    actor: ActorOption = None,
) -> None:
    """Say what a month holds and, with --commit, close and seal it: no row enters it any more.

    A month with usage that nobody can bill yet stays open, and the others are closed; the code is then 1.
    """
    from ledger import closing

    tenant, of_month = whose_month(words, tenant, of_month, entity=entity, everybody=everybody)
    if early and not (reason or "").strip():
        raise CommandError("an early close needs a --reason")
    if accept_unknown and not (reason or "").strip():
        raise CommandError("closing over what is unknown needs a --reason")
    first = month(of_month)
    who = acting(actor)
    preview = with_connection(
        lambda connection: closing.preview_close(connection, first, tenant_id=tenant, entity_id=entity)
    )
    unknown = {each.tenant_id: each.unknown for each in preview if each.unknown}
    waiting = {} if accept_unknown else unknown
    if format is Format.table:
        _show_preview(preview)
    if not commit:
        if format is Format.json:
            print_json({"preview": plain(preview), "closed": [], "left_open": waiting, "seals": []})
            return
        for each, why in waiting.items():
            note(f"{each} would stay open: {', '.join(why)}")
        say("nothing is closed yet: --commit closes")
        return
    if tenant in waiting:
        raise CommandError(
            f"period {of_month} of tenant {tenant} stays open: {', '.join(waiting[tenant])};"
            " mend them, or --accept-unknown with a reason"
        )

    async def close(connection: "Connection") -> "tuple[closing.Closed, list[SealRecord], list[date], list[date]]":
        done = await closing.close_periods(
            connection,
            who,
            first,
            tenant_id=tenant,
            entity_id=entity,
            is_early=early,
            reason=reason,
            leave_open=waiting,
            accepted=unknown,
        )
        # What an interrupted run left of this month is sealed too.
        made = await closing.seal_pending(connection, month=first)
        return done, made, *await closing.close_partitions(connection)

    done, made, partitions, busy = with_connection(close)
    if format is Format.json:
        print_json({"preview": plain(preview), "closed": list(done.closed), "left_open": waiting, "seals": plain(made)})
    else:
        _say_closed(first, done, waiting, made, partitions, busy)
    if waiting:
        raise typer.Exit(1)


def _say_closed(
    first: date,
    done: "Closed",
    waiting: Mapping[str, Sequence[str]],
    made: "Sequence[SealRecord]",
    partitions: Sequence[date],
    busy: Sequence[date],
) -> None:
    for each, why in waiting.items():
        note(f"{each} stays open: {', '.join(why)}")
    if waiting:
        note("mend them and close again, or --accept-unknown with a reason")
    if done.closed_before:
        note(f"closed before: {', '.join(done.closed_before)}")
    say(f"closed {first:%Y-%m} of {counted(len(done.closed), 'tenant')}, made {counted(len(made), 'seal')}")
    _say_partitions(partitions, busy)


def _show_preview(found: "Sequence[ClosingPeriod]") -> None:
    if len(found) == 1:
        (one,) = found
        print_lines(
            [
                ("tenant", cell(one.tenant_id)),
                ("period", f"{one.posting_period:%Y-%m}"),
                ("state", one.state),
                ("ends at", cell(one.ends_at)),
                ("grace until", cell(one.grace_until)),
                *_contents(one),
            ]
        )
        return
    print_table(
        ["tenant", "state", "entries", "requests", "cost", "charge", "unpriced", "no usage", "conflicts", "letters"],
        [
            [
                cell(each.tenant_id),
                each.state,
                f"{each.entry_count:,}",
                f"{each.request_count:,}",
                _amounts(each.cost_sums),
                _amounts(each.charge_sums),
                f"{max(each.cost_unpriced_count, each.charge_unpriced_count):,}",
                f"{each.usage_missing_count:,}",
                f"{each.conflict_count:,}",
                f"{each.dead_letter_count:,}",
            ]
            for each in found
        ],
        {2, 3, 6, 7, 8, 9},
    )


def _say_partitions(closed: Sequence[date], busy: Sequence[date]) -> None:
    for each in closed:
        say(f"every tenant has closed {each:%Y-%m}: its partition takes no row any more")
    for each in busy:
        note(f"the partition of {each:%Y-%m} is being read; `tallystick period seal` closes it later")


@period.command("seal")
def seal_periods(
    of_month: OfMonthOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Make the seals that closed months lack, after a close that was interrupted; the scheduler does so by itself."""
    from ledger import closing

    first = None if of_month is None else month(of_month)

    async def seal(connection: "Connection") -> "tuple[list[SealRecord], list[date], list[date]]":
        made = await closing.seal_pending(connection, month=first)
        return made, *await closing.close_partitions(connection)

    made, partitions, busy = with_connection(seal)
    columns: dict[str, Any] = {
        "tenant": lambda each: each.tenant_id,
        "period": lambda each: f"{each.posting_period:%Y-%m}",
        "rows": lambda each: each.row_count,
        "requests": lambda each: each.request_count,
        "charge": lambda each: _amounts(each.charge_sums),
        "digest": lambda each: each.digest[:16],
    }
    show(made, format, columns, empty="every closed month is sealed")
    if format is Format.table:
        _say_partitions(partitions, busy)


@period.command("reopen")
def reopen_period(
    tenant: TenantArgument, of_month: MonthArgument, reason: NeededReason, actor: ActorOption = None
) -> None:
    """Open a closed month again; its seal stays and no longer counts, and the act is recorded."""
    from ledger import closing
    from ledger.approvals import Awaiting

    first = month(of_month)
    options = settings()
    needed = second_person_acts()
    found = with_connection(
        lambda connection: closing.reopen_period(
            connection, acting(actor), tenant, first, reason=reason, needed=needed, grace_days=options.grace_days
        )
    )
    if isinstance(found, Awaiting):
        wait_for_second_person(found)
    say(f"period {first:%Y-%m} of tenant {tenant} is open again and takes usage until {cell(found.grace_until)}")


@period.command("ahead")
def make_ahead(
    months: Annotated[int | None, typer.Option("--months", min=1, max=24, help="How many; left out, as set.")] = None,
    actor: ActorOption = None,
) -> None:
    """Make the partitions and periods of the next months, which the scheduler does by itself."""
    from ledger import periods as calendar

    options = settings()
    ahead = options.months_ahead if months is None else months

    async def make(connection: "Connection") -> tuple[int, int]:
        partitions = await calendar.ensure_partitions(connection, now=now(), months_ahead=ahead)
        made = await calendar.ensure_periods(
            connection, now=now(), months_ahead=ahead, grace_days=options.grace_days, actor=acting(actor)
        )
        return partitions, made

    partitions, made = with_connection(make)
    say(f"{made} periods and {partitions} partitions made")
