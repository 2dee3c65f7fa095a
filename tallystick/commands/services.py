"""Commands that run the parts: migrate, worker, scheduler, and the stack whole."""

import logging
import sys

import typer

from tallystick.commands.common import CommandError, say, settings


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command("migrate")(migrate)
    app.command("up")(up)
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
    from rich.console import Console

    from tallystick.up import up as run

    run(settings(), Console(highlight=False))


def worker() -> None:
    """Read usage events from Kafka and post them."""
    from ingest.app import WorkerConfig, run
    from tallystick.addresses import WRITER, addresses

    options = settings()
    if options.kafka is None:
        raise CommandError(
            "worker needs TALLYSTICK_KAFKA, the brokers to read from; `tallystick up` runs one of its own"
        )
    with addresses(options) as found:
        code = run(
            WorkerConfig(
                writer_url=found.url_for(WRITER),
                bootstrap=options.kafka,
                topic=options.usage_topic,
                group=options.consumer_group,
                folder=options.home / "worker",
                session_seconds=options.kafka_session_seconds,
                batch_wait_seconds=options.batch_wait_seconds,
                message_bytes_max=options.message_bytes_max,
                failpoints=options.failpoints,
            )
        )
    raise typer.Exit(code)


def api() -> None:
    """Answer over HTTP: events in, budgets and health out."""
    from api.config import Config
    from api.server import serve
    from migrations.run import newest_revision
    from tallystick.addresses import API, WRITER, addresses

    options = settings()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    with addresses(options) as found:
        config = Config(
            writer_url=found.url_for(WRITER),
            api_url=found.url_for(API),
            name=options.api_name,
            body_bytes_max=options.message_bytes_max,
            batch_events_max=options.batch_events_max,
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
            raise CommandError(f"cannot listen on {options.api_host}:{options.api_port}: {error.strerror}") from None


def scheduler() -> None:
    """Do what comes round: partitions and periods ahead, rollups. Of several, one works and the others wait."""
    from tallystick.addresses import addresses
    from tallystick.scheduler import run

    options = settings()
    with addresses(options) as found:
        run(options, found)
    sys.stdout.flush()
