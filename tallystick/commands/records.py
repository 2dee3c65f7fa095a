"""Commands about what the ledger keeps besides entries: feeds, acts."""

from typing import Annotated

import typer

from tallystick.commands.common import (
    BIGINT_MAX,
    ROWS_MAX,
    ActorOption,
    Format,
    FormatOption,
    NeededReason,
    acting,
    group,
    say,
    show,
    with_connection,
)

feeds = group("Feeds: where batches come from, and how far each is posted.")
acts = group("Acts: who changed what by command, and why.")


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.add_typer(feeds, name="feeds")
    app.add_typer(acts, name="acts")


# --- Acts -------------------------------------------------------------------------------------------------------------


@acts.command("list")
def list_acts(
    act: Annotated[str | None, typer.Option("--act", help="Of this name, or of names that begin with it.")] = None,
    by: Annotated[str | None, typer.Option("--by", help="Of this actor.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=ROWS_MAX, help="How many, the newest first.")] = 50,
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
    position: Annotated[int, typer.Argument(metavar="POSITION", min=0, max=BIGINT_MAX, help="What is read next.")],
    reason: NeededReason,
    actor: ActorOption = None,
) -> None:
    """Accept that everything of a feed before a position is lost."""
    from ledger import feeds as ledger_feeds

    with_connection(
        lambda connection: ledger_feeds.start_here(connection, feed, position, actor=acting(actor), reason=reason)
    )
    say(f"feed {feed} starts at {position}")
