"""Commands about the canary: a synthetic event over the real path."""

from typing import TYPE_CHECKING, Annotated

import typer

from tallystick.commands.common import (
    ROWS_MAX,
    ActorOption,
    CommandError,
    Format,
    FormatOption,
    acting,
    group,
    now,
    say,
    settings,
    show,
    show_one,
    with_connection,
)

if TYPE_CHECKING:
    from tallystick.canary import Http, Kafka
    from tallystick.settings import Settings

canary = group("The canary: a synthetic event over the real path, and how long it took.")


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.add_typer(canary, name="canary")


def road_of(options: "Settings") -> "Http | Kafka":
    """Return the road that the settings say, else that of the running stack."""
    from tallystick.canary import Http, Kafka
    from tallystick.stack import running

    if options.canary_api is not None:
        if options.canary_key is None:
            raise CommandError(
                "TALLYSTICK_CANARY_API needs TALLYSTICK_CANARY_KEY, a key of the source canary://tallystick"
            )
        return Http(options.canary_api, options.canary_key.get_secret_value())
    if options.kafka is not None:
        return Kafka(options.kafka, options.usage_topic)
    stack = running(options.home)
    if stack is None:
        raise CommandError(
            "the canary needs a road: TALLYSTICK_CANARY_API and TALLYSTICK_CANARY_KEY, TALLYSTICK_KAFKA,"
            " or a running `tallystick up`"
        )
    return Kafka(stack.kafka, stack.topic)


@canary.command("setup")
def set_up(actor: ActorOption = None) -> None:
    """Make the canary's tenant, source, free model and budget, which the scheduler does too where the canary is set."""
    from tallystick import canary as own

    options = settings()
    made = with_connection(
        lambda connection: own.set_up(
            connection, acting(actor), now=now(), months_ahead=options.months_ahead, grace_days=options.grace_days
        )
    )
    say(f"tenant {own.TENANT}, source {own.SOURCE} and budget {own.BUDGET} {'made' if made else 'are there'}")


@canary.command("beat")
def beat(format: FormatOption = Format.table) -> None:
    """Send one event, wait until it is an entry and has moved its budget, and say how long that took."""
    from tallystick import canary as own

    options = settings()
    road = road_of(options)
    done = with_connection(lambda connection: own.beat(connection, road, every_seconds=options.canary_seconds))
    show_one(done, format)
    if done.failure is not None:
        raise CommandError(f"the canary failed: {done.failure}")


@canary.command("list")
def list_beats(
    limit: Annotated[int, typer.Option("--limit", min=1, max=ROWS_MAX, help="How many, the newest first.")] = 20,
    format: FormatOption = Format.table,
) -> None:
    """List what the canary sent, the newest first."""
    from tallystick import canary as own

    found = with_connection(lambda connection: own.list_beats(connection, limit=limit))
    columns = {"sent at": None, "road": None, "entry seconds": None, "budget seconds": None, "failure": None}
    show(found, format, columns, empty="the canary has not been sent")
