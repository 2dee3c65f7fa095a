"""Commands about what the ledger keeps besides entries: feeds, periods, acts."""

from typing import Annotated

import typer

from tallystick.commands.common import (
    ActorOption,
    Format,
    FormatOption,
    NeededReason,
    acting,
    group,
    now,
    say,
    settings,
    show,
    with_connection,
)

feeds = group("Feeds: where batches come from, and how far each is posted.")
periods = group("Periods: the months of each tenant.")
acts = group("Acts: who changed what by command, and why.")


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
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
