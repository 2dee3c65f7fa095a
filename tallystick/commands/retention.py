"""Commands about what leaves: months of entries, and what has an age limit."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from tallystick.commands.bars import bar
from tallystick.commands.common import (
    ActorOption,
    Format,
    FormatOption,
    MonthArgument,
    NeededReason,
    acting,
    counted,
    group,
    month,
    note,
    now,
    print_json,
    say,
    second_person_acts,
    settings,
    show,
    wait_for_second_person,
    with_connection,
)

if TYPE_CHECKING:
    from ledger.database import Connection
    from ledger.retention import Month

Result = TypeVar("Result")

retention = group("Retention: months that leave the ledger and come back to be read, and what has an age limit.")


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.add_typer(retention, name="retention")


@retention.command("show")
def show_months(format: FormatOption = Format.table) -> None:
    """List months with their rows, what keeps each in the ledger, and where those that left are."""
    from ledger import retention as leaving

    columns: dict[str, Any] = {
        "month": lambda each: f"{each.posting_period:%Y-%m}",
        "rows": lambda each: each.row_count,
        "batches": lambda each: each.batch_count,
        "are": lambda each: each.rows_are,
        "open for": lambda each: each.open_tenants,
        "exported at": None,
        "retired at": None,
        "location": None,
    }
    show(with_connection(leaving.list_months), format, columns, empty="no months")


@retention.command("export")
def export_month(
    of_month: MonthArgument,
    to: Annotated[Path | None, typer.Option("--to", help="The folder; left out, as set.")] = None,
    actor: ActorOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Write a closed and sealed month to Parquet, read it back, and hold it against its digests; it stays in the ledger."""
    from ledger import retention as leaving

    first = month(of_month)
    folder = to or settings().exports
    who = acting(actor)

    def work(on_rows: Callable[[int], None]) -> "Callable[[Connection], Awaitable[leaving.Export]]":
        return lambda connection: leaving.export_month(connection, first, folder, actor=who, on_rows=on_rows)

    made = _with_bar(f"exporting {of_month}", _rows_of(of_month), work)
    if format is Format.json:
        print_json(
            {
                "month": of_month,
                "folder": str(made.folder),
                "rows": made.row_count,
                "batches": made.batch_count,
                "parts": made.part_count,
                "bytes": made.byte_count,
                "manifest": made.manifest_hash,
            }
        )
        return
    say(
        f"{of_month}: {counted(made.row_count, 'row')} of {made.batch_count:,} batches in {counted(made.part_count, 'file')}"
        f" read back as posted; manifest {made.manifest_hash[:16]}... in {made.folder}"
    )


@retention.command("retire")
def retire_month(
    of_month: MonthArgument,
    reason: NeededReason,
    keep: Annotated[bool, typer.Option("--keep/--drop", help="Keep the rows beside the ledger, or drop them.")] = True,
    export: Annotated[Path | None, typer.Option("--export", help="Where its export lies now, if it was moved.")] = None,
    actor: ActorOption = None,
) -> None:
    """Take a month's rows out of the ledger: keys, requests, batches, digests and seals stay, and a resend is a duplicate."""
    from ledger import retention as leaving
    from ledger.approvals import Awaiting

    first = month(of_month)
    needed = second_person_acts()
    done = with_connection(
        lambda connection: leaving.retire_month(
            connection, first, keep=keep, actor=acting(actor), reason=reason, needed=needed, home=export
        )
    )
    if isinstance(done, Awaiting):
        wait_for_second_person(done)
    where = "kept beside it" if keep else f"in {done.location} alone"
    say(f"{counted(done.row_count, 'row')} of {of_month} left the ledger and are {where}")


@retention.command("restore")
def restore_month(
    of_month: MonthArgument,
    reason: NeededReason,
    export: Annotated[
        Path | None, typer.Argument(metavar="[FOLDER]", help="Its export; left out, where it was written to.")
    ] = None,
    actor: ActorOption = None,
) -> None:
    """Make a retired month readable again for an investigation; its digests must be those of what was posted."""
    from ledger import retention as leaving

    first = month(of_month)
    who = acting(actor)

    def work(on_rows: Callable[[int], None]) -> "Callable[[Connection], Awaitable[int]]":
        return lambda connection: leaving.restore_month(
            connection, first, export, actor=who, reason=reason, on_rows=on_rows
        )

    rows = _with_bar(f"restoring {of_month}", _rows_of(of_month), work)
    say(f"{counted(rows, 'row')} of {of_month} can be read again; the month stays retired")
    note(f"`tallystick retention retire {of_month} --reason ...` takes them out again")


@retention.command("expire")
def expire(actor: ActorOption = None) -> None:
    """Drop raw usage, bytes of dead letters and staged rows of loads that are older than the settings say, as the scheduler does."""
    from ledger import expiry

    options = settings()
    done = with_connection(
        lambda connection: expiry.expire(
            connection,
            now=now(),
            raw_usage_months=options.raw_usage_months,
            dead_letter_days=options.dead_letter_days,
            open_dead_letter_days=options.open_dead_letter_days,
            load_days=options.load_days,
            actor=acting(actor),
        )
    )
    say(done.line or "nothing is that old")


def _rows_of(of_month: str) -> int:
    from ledger import retention as leaving

    async def read(connection: "Connection") -> "Month":
        return await leaving.find_month(connection, month(of_month))

    return with_connection(read).row_count


def _with_bar(
    what: str, total: int, work: "Callable[[Callable[[int], None]], Callable[[Connection], Awaitable[Result]]]"
) -> Result:
    with bar(what, "rows", total) as move:
        return with_connection(work(move))
