"""Commands about gaps: numbers that senders counted and that did not come."""

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tallystick.commands.common import (
    BIGINT_MAX,
    MINUTES_MAX,
    ROWS_MAX,
    ActorOption,
    Format,
    FormatOption,
    NeededReason,
    acting,
    counted,
    group,
    moment,
    note,
    plain,
    print_json,
    say,
    show,
    with_connection,
)

if TYPE_CHECKING:
    from ledger.database import Connection

gaps = group("Gaps: numbers that senders counted and that did not come.")


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.add_typer(gaps, name="gaps")


@gaps.command("list")
def list_gaps(
    source: Annotated[str | None, typer.Option("--source", help="Of this sender only.")] = None,
    since: Annotated[
        str | None, typer.Option("--since", help="Noted at or after: a date in UTC, or an RFC 3339 time.")
    ] = None,
    grace: Annotated[
        float,
        typer.Option("--grace", min=0, max=MINUTES_MAX, help="Minutes in which what is missing may still be late."),
    ] = 15.0,
    limit: Annotated[int, typer.Option("--limit", min=1, max=ROWS_MAX, help="How many.")] = 1000,
    format: FormatOption = Format.table,
) -> None:
    """List what is missing by sender: open (may be late), lost, set aside (a dead letter holds it), or accepted."""
    from ledger import sequences

    noted_since = moment(since)

    async def read(connection: "Connection") -> tuple[Any, ...]:
        await sequences.take_sequences(connection)
        found = await sequences.list_gaps(
            connection, source=source, since=noted_since, grace=timedelta(minutes=grace), limit=limit
        )
        return found, await sequences.list_counters(connection, source=source)

    found, counters = with_connection(read)
    if format is Format.json:
        print_json({"gaps": plain(found), "counters": plain(counters)})
        return
    columns = {
        "source": None,
        "run": None,
        "from": lambda each: each.low,
        "to": lambda each: each.high,
        "numbers": lambda each: each.number_count,
        "noted at": None,
        "state": None,
    }
    show(found, format, columns, empty="no gaps" if counters else "no sender counts: events carry no sequence")
    for each in counters:
        if each.is_sparse:
            note(f"{each.source}: its sequence is no counter, so nothing is looked for")
        elif each.repeats:
            note(
                f"{each.source}: {each.repeats:,} events came under a number of others: do several processes share it?"
            )


@gaps.command("accept")
def accept_gaps(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The sender.")],
    reason: NeededReason,
    low: Annotated[int | None, typer.Option("--from", max=BIGINT_MAX, help="Gaps that begin here or later.")] = None,
    high: Annotated[int | None, typer.Option("--to", max=BIGINT_MAX, help="Gaps that end here or earlier.")] = None,
    actor: ActorOption = None,
) -> None:
    """Say of gaps that what is missing is known to be lost."""
    from ledger import sequences

    count = with_connection(
        lambda connection: sequences.accept_gaps(
            connection, source, low=low, high=high, actor=acting(actor), reason=reason
        )
    )
    say(f"{counted(count, 'gap')} of {source} accepted")
