"""Commands about backfills: files of usage loaded, previewed, committed and reverted as one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tallystick.commands.bars import bar
from tallystick.commands.common import (
    INTEGER_MAX,
    ROWS_MAX,
    ActorOption,
    Format,
    FormatOption,
    NeededReason,
    ReasonOption,
    acting,
    cell,
    counted,
    digits,
    group,
    note,
    plain,
    print_json,
    print_lines,
    say,
    second_person_acts,
    settings,
    show,
    wait_for_second_person,
    with_connection,
    with_connections,
)
from tallystick.roles import OPERATOR, WRITER

if TYPE_CHECKING:
    from ingest.backfill import Committed, Loaded, Preview
    from ledger.approvals import Awaiting
    from ledger.database import Connection
    from ledger.loads import LoadRecord, RefusedRow
    from ledger.reverting import TakenBack

backfill = group("Backfills: files of usage that are loaded, previewed, committed and reverted as one.")

LoadArgument = Annotated[str, typer.Argument(metavar="LOAD", help="The load's id.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.add_typer(backfill, name="backfill")


@backfill.command("create")
def create(
    load: LoadArgument,
    rank: Annotated[
        int,
        typer.Option(
            "--rank",
            min=-INTEGER_MAX,
            max=INTEGER_MAX,
            help="Between two reports of a request the higher rank counts: `sources list` has the others'.",
        ),
    ],
    reason: NeededReason,
    tenant: Annotated[list[str] | None, typer.Option("--tenant", help="A tenant that the load may speak for.")] = None,
    all_tenants: Annotated[bool, typer.Option("--all-tenants", help="The load may speak for every tenant.")] = False,
    actor: ActorOption = None,
) -> None:
    """Make a load: who it may speak for, and how its reports rank beside those of gateways and nodes."""
    from ledger import loads

    with_connection(
        lambda connection: loads.create_load(
            connection,
            acting(actor),
            load,
            rank=rank,
            reason=reason,
            speaks_for_all=all_tenants,
            tenant_ids=tenant or [],
        )
    )
    say(f"load {load} is made: `tallystick backfill load {load} FILE` stages its rows")


@backfill.command("load")
def load_files(
    load: LoadArgument,
    files: Annotated[
        list[Path], typer.Argument(help=".csv, .parquet, or events: .ndjson, .jsonl, .json; each also .gz.")
    ],
    mapping: Annotated[Path | None, typer.Option("--mapping", help="YAML: what columns of a table mean.")] = None,
    ignore: Annotated[list[str] | None, typer.Option("--ignore", help="A column to leave out.")] = None,
    time_zone: Annotated[str | None, typer.Option("--time-zone", help="Of times without an offset.")] = None,
    actor: ActorOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Stage the rows of files: nothing is posted. Each file is staged whole or not at all."""
    import msgspec

    from ingest.backfill import load_file
    from ingest.load_files import FileMapping, check_zone, read_mapping

    said = FileMapping() if mapping is None else read_mapping(mapping)
    if time_zone is not None:
        check_zone(time_zone)
        said = msgspec.structs.replace(said, time_zone=time_zone)
    if ignore:
        said = msgspec.structs.replace(said, ignore=[*said.ignore, *ignore])
    loaded: list[Loaded] = []
    for file in files:
        with bar(file.name, "rows") as move:

            async def work(
                connection: Connection, file: Path = file, move: Callable[[int, int | None], None] = move
            ) -> Loaded:
                return await load_file(
                    connection, acting(actor), load, file, said, on_rows=lambda count: move(count, None)
                )

            loaded.append(with_connection(work))
    if format is Format.json:
        print_json(loaded)
        return
    for each in loaded:
        say(f"{each.file}: {counted(each.rows, 'row')} staged, SHA-256 {each.sha256}")
    _say_refused(loaded[-1].refused, loaded[-1].first_refused)


def _say_refused(refused: dict[str, int], first: list[RefusedRow]) -> None:
    if not refused:
        return
    note(
        f"{counted(sum(refused.values()), 'row')} of the load refused: "
        + ", ".join(f"{n:,} {r}" for r, n in refused.items())
    )
    for row in first:
        note(f"  {row.detail}")


@backfill.command("preview")
def preview(load: LoadArgument, actor: ActorOption = None, format: FormatOption = Format.table) -> None:
    """Show what a commit would do to amounts, months and budgets; nothing is posted."""
    from ingest import backfill as work
    from ledger.loads import read_load

    with bar(load, "rows") as move:

        async def run(connection: Connection) -> Preview:
            move(0, (await read_load(connection, load)).row_count)
            return await work.preview(connection, load, acting(actor), on_rows=lambda count: move(count, None))

        found = with_connection(run)
    if format is Format.json:
        print_json(found)
        return
    say(
        f"{counted(found.rows, 'row')}: " + (", ".join(f"{n:,} {name}" for name, n in found.outcomes.items()) or "none")
    )
    for why, count in sorted(found.reasons.items()):
        if ": " in why:
            say(f"  {count:,} {why}")
    if found.true_ups:
        say(f"  {found.true_ups:,} beat a report that stands, and post the difference")
    if found.refused:
        note("refused at loading: " + ", ".join(f"{n:,} {r}" for r, n in found.refused.items()))
    months = {"month": lambda each: f"{each.month:%Y-%m}", "billed in": lambda each: f"{each.posting_period:%Y-%m}"}
    say("")
    say("amounts")
    show(
        found.amounts,
        Format.table,
        {
            "tenant": lambda each: each.tenant_id, **months, "model": None, "requests": None,
            "cost": lambda each: digits(each.cost), "of": lambda each: each.cost_currency,
            "charge": lambda each: digits(each.charge), "in": lambda each: each.charge_currency,
            "without charge": lambda each: each.charge_unpriced,
        },
        empty="nothing would be posted",
    )  # fmt: skip
    say("")
    say("months")
    show(
        found.periods,
        Format.table,
        {
            "tenant": lambda each: each.tenant_id, "billed in": lambda each: f"{each.posting_period:%Y-%m}", "state": None,
            "rows": None, "of earlier months": lambda each: each.late_rows,
            "charge": lambda each: digits(each.charge), "in": lambda each: each.charge_currency,
        },
    )  # fmt: skip
    say("")
    say("budgets")
    show(
        found.budgets,
        Format.table,
        {
            "budget": lambda each: each.budget_id, "group": lambda each: each.group_key,
            "window": lambda each: each.window_start,
            "posted": lambda each: digits(each.posted_before), "then": lambda each: digits(each.posted_after),
            "limit": lambda each: None if each.limit_amount is None else digits(each.limit_amount),
            "excess": lambda each: digits(each.excess_change),
            "reaches": lambda each: [digits(share) for share in each.thresholds],
        },
        empty="no budget is touched",
    )  # fmt: skip


@backfill.command("commit")
def commit(
    load: LoadArgument,
    reason: ReasonOption = None,
    without_refused: Annotated[
        bool, typer.Option("--without-refused", help="Commit the good rows; refused ones become dead letters.")
    ] = False,
    without_preview: Annotated[
        bool, typer.Option("--without-preview", help="Nobody looked, and that is meant.")
    ] = False,
    actor: ActorOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Post a load's rows. One that was interrupted goes on where it was; nothing is posted twice."""
    import asyncio

    from ingest import backfill as work
    from ledger.approvals import Awaiting
    from ledger.database import connect
    from ledger.failpoints import configure
    from tallystick.addresses import addresses

    options = settings()
    configure(options.failpoints)
    who, needed = acting(actor), second_person_acts()
    with addresses(options) as found, bar(load, "rows") as move:

        async def run() -> Committed | Awaiting:
            async with await connect(found.url_for(OPERATOR), connect_timeout=10) as operator:
                return await work.commit(
                    operator,
                    found.url_for(WRITER),
                    who,
                    load,
                    without_refused=without_refused,
                    without_preview=without_preview,
                    reason=reason,
                    needed=needed,
                    on_start=lambda posted, rows: move(posted, rows),
                    on_rows=lambda count: move(count, None),
                )

        done = asyncio.run(run())
    if isinstance(done, Awaiting):
        wait_for_second_person(done, format)
    if format is Format.json:
        print_json(done)
        return
    began = f" from row {done.first_position:,} on" if done.first_position else ""
    said = ", ".join(f"{count:,} {name}" for name, count in done.outcomes.items()) or "no rows were left"
    say(f"load {load} is committed{began}: {said}; {counted(done.entries, 'row')} written")


@backfill.command("revert")
def revert(
    load: LoadArgument, reason: NeededReason, actor: ActorOption = None, format: FormatOption = Format.table
) -> None:
    """Take back all that a load moved, in the earliest open months; what it had beaten stands again."""
    from ingest import backfill as work
    from ledger.approvals import Awaiting
    from ledger.failpoints import configure

    configure(settings().failpoints)
    needed = second_person_acts()
    with bar(load, "batches") as move:

        async def run(operator: Connection, writer: Connection) -> TakenBack | Awaiting:
            last = 0

            def on_batch(done: TakenBack) -> None:
                nonlocal last
                move(done.batches - last, done.batches_total)
                last = done.batches

            return await work.revert(operator, writer, acting(actor), load, reason, needed=needed, on_batch=on_batch)

        done = with_connections(run, OPERATOR, WRITER)
    if isinstance(done, Awaiting):
        wait_for_second_person(done, format)
    if format is Format.json:
        print_json(done)
        return
    say(
        f"load {load} is reverted: {counted(done.requests, 'request')} taken back, {counted(done.entries, 'row')} written"
    )


@backfill.command("list")
def list_loads(format: FormatOption = Format.table) -> None:
    """List loads, the newest first."""
    from ledger import loads

    columns = {
        "load": lambda each: each.load_id, "state": None, "rank": None,
        "tenants": lambda each: each.tenants or "all", "files": lambda each: len(each.files),
        "rows": lambda each: each.row_count, "refused": lambda each: each.refused_count,
        "posted": lambda each: each.posted_count, "created at": None, "by": lambda each: each.actor,
    }  # fmt: skip
    show(with_connection(loads.list_loads), format, columns, empty="no loads")


@backfill.command("show")
def show_load(
    load: LoadArgument,
    rows: Annotated[int, typer.Option("--rows", min=0, max=ROWS_MAX, help="How many refused rows to name.")] = 20,
    format: FormatOption = Format.table,
) -> None:
    """Show a load: its files, how far it is, what its preview said, and which rows are refused."""
    from ledger import loads

    async def work(connection: Connection) -> tuple[LoadRecord, list[RefusedRow]]:
        found = await loads.read_load(connection, load)
        return found, await loads.refused_rows(connection, found, rows)

    found, refused = with_connection(work)
    if format is Format.json:
        print_json({**plain(found), "refused_rows": refused})
        return
    outcomes = (found.preview or {}).get("outcomes")
    shown = {
        "load": found.load_id, "source": found.source, "state": found.state, "rank": found.rank,
        "tenants": found.tenants or ["all"], "by": found.actor, "reason": found.reason, "rows": found.row_count,
        "refused": found.refused_count, "posted": found.posted_count, "created at": found.created_at,
        "loaded at": found.loaded_at, "previewed at": found.previewed_at, "preview": outcomes,
        "committed at": found.committed_at, "reverted at": found.reverted_at,
    }  # fmt: skip
    print_lines((name, cell(value)) for name, value in shown.items())
    for file in found.files:
        say(f"file  {file['name']}: {file['rows']:,} rows, {file['bytes']:,} bytes, SHA-256 {file['sha256']}")
    for row in refused:
        note(f"refused  {row.detail}")
    if len(refused) < found.refused_count:
        note(f"and {found.refused_count - len(refused):,} more: --rows")
