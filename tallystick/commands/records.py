"""Commands about what the ledger keeps besides entries: dead letters, feeds, periods, acts."""

import sys
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
    now,
    plain,
    print_json,
    safe,
    say,
    settings,
    show,
    show_one,
    with_connection,
)

dead_letters = group("Dead letters: what was received and could not be posted, with its bytes and the reason.")
feeds = group("Feeds: where batches come from, and how far each is posted.")
periods = group("Periods: the months of each tenant.")
acts = group("Acts: who changed what by command, and why.")

# A page is enough to see what is wrong; the whole is there with --raw.
_BYTES_SHOWN_MAX = 4096


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.add_typer(dead_letters, name="dead-letters")
    app.add_typer(feeds, name="feeds")
    app.add_typer(periods, name="periods")
    app.add_typer(acts, name="acts")


# --- Acts -------------------------------------------------------------------------------------------------------------


@acts.command("list")
def list_acts(
    act: Annotated[str | None, typer.Option("--act", help="Of this name, or of names that begin with it.")] = None,
    by: Annotated[str | None, typer.Option("--by", help="Of this actor.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many, the newest first.")] = 50,
    format: FormatOption = Format.table,
) -> None:
    """List acts, the newest first."""
    from ledger import acts as recorded

    found = with_connection(lambda connection: recorded.list_acts(connection, act=act, actor=by, limit=limit))
    columns = {"at": None, "actor": None, "act": None, "detail": None, "reason": None}
    show(found, format, columns, empty="no acts")


# --- Dead letters -----------------------------------------------------------------------------------------------------


@dead_letters.command("list")
def list_dead_letters(
    reason: Annotated[str | None, typer.Option("--reason", help="Of this reason code only.")] = None,
    resolved: Annotated[bool, typer.Option("--resolved", help="Also those that somebody has dealt with.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many, the newest first.")] = 50,
    format: FormatOption = Format.table,
) -> None:
    """List dead letters, the newest first."""
    from ledger import dead_letters as letters
    from ledger.database import Connection

    async def read(connection: Connection) -> tuple[list[letters.DeadLetterRecord], dict[str, int]]:
        found = await letters.list_dead_letters(connection, reason=reason, with_resolved=resolved, limit=limit)
        return list(found), await letters.count_by_reason(connection)

    found, counts = with_connection(read)
    columns = {
        "id": lambda each: each.dead_letter_id,
        "reason": None,
        "detail": None,
        "origin": None,
        "bytes": lambda each: each.byte_count,
        "last at": None,
        "repeats": None,
    }
    show(found, format, columns, empty="no dead letters")
    if format is Format.table and sum(counts.values()) > len(found):
        listed = ", ".join(f"{code} {count:,}" for code, count in counts.items())
        note(f"{sum(counts.values()):,} wait for a person: {listed}")


@dead_letters.command("show")
def show_dead_letter(
    letter: Annotated[int, typer.Argument(metavar="ID", help="As listed.")],
    raw: Annotated[bool, typer.Option("--raw", help="Write the bytes as received and nothing else.")] = False,
    format: FormatOption = Format.table,
) -> None:
    """Show a dead letter with its bytes, whatever is in them written so that it cannot steer a terminal."""
    from ledger import dead_letters as letters

    found, body = with_connection(lambda connection: letters.find_dead_letter(connection, letter))
    if raw:
        if body is None:
            raise CommandError(f"the bytes of dead letter {letter} have expired")
        sys.stdout.buffer.write(body)
        return
    if format is Format.json:
        print_json({**plain(found), "bytes": None if body is None else body.decode("utf-8", "backslashreplace")})
        return
    show_one(found, format)
    say("")
    if body is None:
        note("its bytes have expired")
        return
    # A line break may stay one: nothing is printed after the bytes that it could be taken for.
    for line in body[:_BYTES_SHOWN_MAX].decode("utf-8", "backslashreplace").split("\n"):
        sys.stdout.write(safe(line) + "\n")
    if len(body) > _BYTES_SHOWN_MAX:
        note(f"the first {_BYTES_SHOWN_MAX:,} of {len(body):,} bytes; --raw writes them all")


# --- Feeds ------------------------------------------------------------------------------------------------------------


@feeds.command("list")
def list_feeds(format: FormatOption = Format.table) -> None:
    """List feeds with what is read next and the time up to which they are posted."""
    from ledger import feeds as ledger_feeds

    found = with_connection(ledger_feeds.list_feeds)
    columns = {
        "feed": lambda each: each.name,
        "kind": None,
        "next position": None,
        "batches": lambda each: each.last_number,
        "posted until": None,
        "starts here": None,
    }
    show(found, format, columns, empty="no feeds")


@feeds.command("start-here")
def start_here(
    feed: Annotated[str, typer.Argument(metavar="FEED", help="The feed's name, as listed.")],
    position: Annotated[int, typer.Argument(metavar="POSITION", min=0, help="What is read next.")],
    reason: NeededReason,
    actor: ActorOption = None,
) -> None:
    """Accept that everything of a feed before a position is lost."""
    from ledger import feeds as ledger_feeds

    with_connection(
        lambda connection: ledger_feeds.start_here(connection, feed, position, actor=acting(actor), reason=reason)
    )
    say(f"feed {feed} starts at {position}")


# --- Periods ----------------------------------------------------------------------------------------------------------


@periods.command("list")
def list_periods(
    tenant: Annotated[str | None, typer.Option("--tenant", help="Of this tenant only.")] = None,
    format: FormatOption = Format.table,
) -> None:
    """List the months of tenants, when each begins and ends, and until when late usage enters it."""
    from ledger import periods as calendar
    from ledger import registry
    from ledger.database import Connection

    async def read(connection: Connection) -> list[calendar.PeriodRecord]:
        if tenant is not None:
            await registry.find_tenant(connection, tenant, now=now())
        return await calendar.list_periods(connection, tenant_id=tenant)

    columns = {
        "tenant": lambda each: each.tenant_id,
        "period": lambda each: f"{each.posting_period:%Y-%m}",
        "state": None,
        "starts at": None,
        "ends at": None,
        "grace until": None,
    }
    show(with_connection(read), format, columns, empty="no periods")


@periods.command("ahead")
def make_ahead(
    months: Annotated[int | None, typer.Option("--months", min=1, max=24, help="How many; left out, as set.")] = None,
    actor: ActorOption = None,
) -> None:
    """Make the partitions and periods of the next months, which the scheduler does by itself."""
    from ledger import periods as calendar
    from ledger.database import Connection

    options = settings()
    ahead = options.months_ahead if months is None else months

    async def make(connection: Connection) -> tuple[int, int]:
        partitions = await calendar.ensure_partitions(connection, now=now(), months_ahead=ahead)
        made = await calendar.ensure_periods(
            connection, now=now(), months_ahead=ahead, grace_days=options.grace_days, actor=acting(actor)
        )
        return partitions, made

    partitions, made = with_connection(make)
    say(f"{made} periods and {partitions} partitions made")
