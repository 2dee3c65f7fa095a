"""Commands that run the parts: migrate, worker, API, scheduler; the stack whole, the demo on it, and replays through it."""

import errno
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tallystick.commands.bars import bar
from tallystick.commands.common import CommandError, counted, say, second_person_acts, settings
from tallystick.roles import API, OPERATOR, WRITER

if TYPE_CHECKING:
    from rich.console import Console


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command("migrate")(migrate)
    app.command("demo")(demo)
    app.command("up")(up)
    app.command("replay")(replay)
    app.command("worker")(worker)
    app.command("api")(api)
    app.command("scheduler")(scheduler)


def migrate() -> None:
    """Bring the database to this version: roles, tables, functions. Running it again changes nothing."""
    from migrations.run import migrate as run
    from tallystick.addresses import addresses

    with addresses(settings()) as found:
        if found.owner is None:
            raise CommandError("migrate needs TALLYSTICK_DATABASE_URL, an address that may make roles")
        run(found.owner, dict(found.passwords))
    say("the database is at this version")


def up() -> None:
    """Run everything on this machine until it is stopped; Postgres keeps its data."""
    from tallystick.up import up as run

    run(settings(), _console())


def demo(
    month_end: Annotated[
        bool, typer.Option("--month-end", help="Close and invoice its month too: PDFs and a FOCUS file in the home.")
    ] = False,
) -> None:
    """Run the main job on real input, from nothing, and prove the result; the database stays."""
    from tallystick.demo import demo as run

    run(settings(), _console(), with_month_end=month_end)


def replay(
    files: Annotated[
        list[Path], typer.Argument(help="Traces (.csv, .csv.gz), or files with one event a line, as they are.")
    ],
    plan: Annotated[
        Path | None, typer.Option(help="What traces do not say: tenants, features, models. Default: the demo's.")
    ] = None,
    pack: Annotated[int, typer.Option(min=1, max=5000, help="Events in a message.")] = 100,
) -> None:
    """Send files of usage through Kafka: the broker of a running `tallystick up`, or TALLYSTICK_KAFKA."""
    from ingest.replay import events_of, load_plan, packs, send
    from tallystick.settings import CHECKOUT
    from tallystick.stack import running

    options = settings()
    stack = None if options.kafka else running(options.home)
    if stack is None and options.kafka is None:
        raise CommandError("replay needs a broker: start `tallystick up`, or set TALLYSTICK_KAFKA")
    bootstrap, topic = (stack.kafka, stack.topic) if stack else (str(options.kafka), options.usage_topic)
    planned = load_plan(plan or CHECKOUT / "data" / "demo" / "plan.json")
    sent = 0
    for file in files:
        events = list(events_of(file, planned))
        with bar(file.name, "events", len(events)) as move:
            sent += send(bootstrap, topic, packs(events, pack), move)
    say(f"{counted(sent, 'event')} sent; the worker posts them")


def _console() -> "Console":
    """Return the console; into a file or a pipe, tables and addresses keep the width that they need."""
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=160)


def worker() -> None:
    """Read usage events from Kafka and post them."""
    from ingest.app import WorkerConfig, run
    from tallystick.addresses import addresses

    options = settings()
    if options.kafka is None:
        raise CommandError(
            "worker needs TALLYSTICK_KAFKA, the brokers to read from; `tallystick up` runs one of its own"
        )
    folder = options.home / "worker"
    folder.mkdir(parents=True, exist_ok=True)
    with addresses(options) as found:
        code = run(
            WorkerConfig(
                writer_url=found.url_for(WRITER),
                bootstrap=options.kafka,
                topic=options.usage_topic,
                group=options.consumer_group,
                folder=folder,
                session_seconds=options.kafka_session_seconds,
                batch_wait_seconds=options.batch_wait_seconds,
                batch_bytes_max=options.batch_bytes_max,
                message_bytes_max=options.message_bytes_max,
                failpoints=options.failpoints,
            )
        )
    raise typer.Exit(code)


def api() -> None:
    """Answer over HTTP: may a call go ahead, usage in, budgets and health out."""
    from urllib.parse import quote

    from api.config import Config
    from api.server import serve
    from migrations.run import newest_revision
    from tallystick.addresses import NoAddress, addresses

    options = settings()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    with addresses(options) as found:
        try:
            operator_url: str | None = found.url_for(OPERATOR)
        except NoAddress:
            # A replica that takes usage needs no right to change prices.
            operator_url = None
        config = Config(
            writer_url=found.url_for(WRITER),
            api_url=found.url_for(API),
            operator_url=operator_url,
            name=options.api_name,
            journal=str(options.home / "api" / f"{quote(options.api_name, safe='')}.journal"),
            body_bytes_max=options.message_bytes_max,
            batch_events_max=options.batch_events_max,
            grace_days=options.grace_days,
            months_ahead=options.months_ahead,
            second_person=second_person_acts(),
            webhooks_allow_private=options.webhooks_allow_private,
            fonts=options.fonts,
            revision=newest_revision(),
        )
        try:
            serve(
                config,
                options.api_host,
                options.api_port,
                lambda port: say(f"listening on http://{options.api_host}:{port}"),
            )
        except OSError as error:
            address = f"{options.api_host}:{options.api_port}"
            hint = "; TALLYSTICK_API_PORT names another port" if error.errno == errno.EADDRINUSE else ""
            raise CommandError(f"cannot listen on {address}: {error.strerror}{hint}") from None


def scheduler() -> None:
    """Do what comes round: partitions and periods ahead, seals, rollups. Of several, one works and the others wait."""
    from tallystick.addresses import addresses
    from tallystick.scheduler import run

    options = settings()
    with addresses(options) as found:
        run(options, found)
    sys.stdout.flush()
