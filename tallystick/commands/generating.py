"""`tallystick generate`: synthetic usage, for benchmarks, trials and prepared databases."""

import asyncio
from typing import Annotated, Final

import typer

from tallystick.commands.bars import bar
from tallystick.commands.common import (
    ActorOption,
    CommandError,
    Format,
    FormatOption,
    acting,
    instant,
    now,
    print_json,
    say,
    settings,
)
from tallystick.roles import OPERATOR, WRITER

_DAY: Final = 86_400_000_000
_HOUR: Final = 3_600_000_000


def register(app: typer.Typer) -> None:
    """Add the command of this file."""
    app.command("generate")(generate)


def generate(
    entries: Annotated[int, typer.Option("--entries", min=1, help="How many entries, exactly.")] = 100_000,
    days: Annotated[int, typer.Option("--days", min=1, help="How many days before --until they begin.")] = 14,
    since: Annotated[str | None, typer.Option("--since", help="When they begin, instead of --days.")] = None,
    until: Annotated[
        str | None, typer.Option("--until", help="When they end; default: the last full hour. Dates are UTC.")
    ] = None,
    seed: Annotated[str, typer.Option("--seed", help="Another seed makes other events.")] = "1",
    tenants: Annotated[
        int | None, typer.Option("--tenants", min=1, help="How many tenants; default: all that ServeGen's cut has.")
    ] = None,
    feeds: Annotated[int, typer.Option("--feeds", min=1, max=8, help="Feeds beside each other, a process each.")] = 1,
    actor: ActorOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Fill the ledger with synthetic usage: ServeGen's measured rates, everything else assigned by the seed.

    Tenants, prices and source are made where they are missing, and say that they are synthetic. The same command goes on
    with what was interrupted, and posts nothing twice.
    """
    from shlex import quote

    from ledger.database import connect
    from tallystick.addresses import addresses
    from tallystick.generating import fill, plan_of, set_up

    moment = now()
    end = moment // _HOUR * _HOUR if until is None else _instant(until, "--until")
    start = end - days * _DAY if since is None else _instant(since, "--since")
    plan = plan_of(seed=seed, entries=entries, since=start, until=end, tenants=tenants, now=moment)
    who = acting(actor)
    with addresses(settings()) as found:

        async def prepare() -> None:
            async with await connect(found.url_for(OPERATOR), connect_timeout=10) as connection:
                await set_up(connection, plan, who, now=moment)

        asyncio.run(prepare())
        with bar("synthetic usage", "entries", entries) as move:
            done = fill(
                found.url_for(WRITER),
                plan,
                beside=feeds,
                on_start=lambda posted, total: move(posted, total),
                on_events=lambda count: move(count, None),
            )
    # What had been posted before by another number of feeds is there already.
    refused = {outcome: count for outcome, count in done.outcomes.items() if outcome not in {"created", "duplicate"}}
    if refused:
        told = ", ".join(f"{outcome}: {count:,}" for outcome, count in sorted(refused.items()))
        raise CommandError(f"not every event became an entry ({told}): `tallystick dead-letters list` says why")
    if format is Format.json:
        print_json(done)
        return
    fresh = entries - done.resumed_at
    speed = f", {fresh / done.seconds:,.0f} a second" if fresh and done.seconds else ""
    before = f"; {done.resumed_at:,} had been posted before" if done.resumed_at else ""
    many = "1 synthetic entry" if fresh == 1 else f"{fresh:,} synthetic entries"
    say(f"{many} posted in {done.seconds:.0f} s{speed}{before}")
    same = f"tallystick generate --seed {quote(seed)} --entries {entries} {_span(start, end)}"
    same += "" if tenants is None else f" --tenants {tenants}"
    say("for the same again: " + same + ("" if feeds == 1 else f" --feeds {feeds}"))


def _span(since: int, until: int) -> str:
    from ledger.times import from_micros

    return " ".join(
        f"--{name} {from_micros(at):%Y-%m-%dT%H:%M:%SZ}" for name, at in (("since", since), ("until", until))
    )


def _instant(text: str, option: str) -> int:
    try:
        return instant(text, "UTC")
    except CommandError as error:
        raise CommandError(f"{option}: {error}") from None
