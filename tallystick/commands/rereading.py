"""The command that reads raw usage again after a flavour's record was mended."""

from typing import Annotated

import typer

from tallystick.commands.common import (
    ActorOption,
    CommitOption,
    Format,
    FormatOption,
    acting,
    instant,
    need_reason,
    note,
    plain,
    print_json,
    print_table,
    say,
    with_connection,
)
from tallystick.commands.proofs import events
from tallystick.roles import WRITER


def register(app: typer.Typer) -> None:
    """Add nothing to the top: the command stands among those about events."""


@events.command("reread")
def reread_usage(
    flavour: Annotated[str, typer.Option("--flavour", help="The flavour whose record was mended.")],
    reason: Annotated[str | None, typer.Option("--reason", help="Why, for the entries; needed with --commit.")] = None,
    since: Annotated[
        str | None, typer.Option("--since", help="Leave out what occurred before: a date in UTC, or an RFC 3339 time.")
    ] = None,
    commit: CommitOption = False,
    actor: ActorOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Read raw usage again that an older version of a flavour's record has read, and show or post what changes."""
    from ingest.rereading import lines_of, reread

    why = need_reason(reason) if commit else "preview"
    found = with_connection(
        lambda connection: reread(
            connection,
            flavour,
            since=None if since is None else instant(since, "UTC"),
            keep=commit,
            actor=acting(actor),
            reason=why,
        ),
        role=WRITER,
    )
    if format is Format.json:
        print_json({**plain(found), "total": plain(found.total)})
        return
    moved = found.total.request_count
    say(f"{found.read_count:,} objects of {flavour} read by version {found.version}: {moved:,} requests change")
    if moved:
        print_table(["tenant", "what", "currency", "difference"], [list(line) for line in lines_of(found)], {3})
    for refusal, count in sorted(found.refused.items()):
        note(f"{count:,} are refused now ({refusal}) and stay as they are")
    if moved:
        say(f"posted in {len(found.batch_ids)} batches" if commit else "nothing is posted: --commit posts it")
