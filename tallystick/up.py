"""`tallystick up`: the whole stack on this machine, until it is stopped."""

import time

import psycopg
from rich.console import Console
from rich.live import Live
from rich.text import Text

from tallystick.processes import termination_as_interrupt
from tallystick.roles import OPERATOR
from tallystick.settings import Settings
from tallystick.stack import MADE_BY_DEMO, Stack


def up(settings: Settings, console: Console) -> None:
    """Run Postgres, broker, worker, API and scheduler until stopped; the data of Postgres stay.

    Errors: EmbeddedError or TimeoutError with one clear line, when a part does not start or ends by itself.
    """
    try:
        with (
            termination_as_interrupt(),
            console.status("starting") as status,
            Stack(settings, say=status.update) as stack,
        ):
            # From here on the database may hold what is not the demo's, and the next demo must put it aside.
            (settings.home / MADE_BY_DEMO).unlink(missing_ok=True)
            stack.start_services()
            status.stop()
            _say_where(stack, console)
            _stay(stack, console)
    except KeyboardInterrupt:
        console.print("stopped; the data stay in", f"{settings.home}")


def _say_where(stack: Stack, console: Console) -> None:
    endpoints = stack.endpoints
    for name, address in (
        ("API", endpoints.api),
        ("OpenAPI page", f"{endpoints.api}/docs"),
        ("Postgres", endpoints.postgres),
        ("broker", f"{endpoints.kafka} (topic {endpoints.topic}; in memory, so it forgets when it stops)"),
        ("logs", str(stack.children.logs)),
    ):
        # The terminal may wrap an address, we must not: one with a break in it cannot be copied.
        console.print(Text(f"{name:<14}{address}"), soft_wrap=True)
    console.print("Ctrl-C stops it.")


def _stay(stack: Stack, console: Console) -> None:
    if not console.is_terminal:
        stack.children.watch()
        return
    with Live(console=console, refresh_per_second=2, transient=True) as live:
        while True:
            live.update(Text(_status_line(stack), style="dim"))
            stack.children.watch(2.0)


def _status_line(stack: Stack) -> str:
    try:
        row = _counts(stack.url_for(OPERATOR))
    except psycopg.OperationalError:
        # A status line must not end the stack; if the server is gone, its watcher says so.
        return f"{time.strftime('%H:%M:%S')}  the database does not answer"
    return f"{time.strftime('%H:%M:%S')}  {row[0]:,} entries, {row[1]:,} duplicates, {row[2]:,} set aside"


def _counts(url: str) -> tuple[int, int, int]:
    """Return how many entries, duplicates and events set aside there are, by the batches."""
    with psycopg.connect(url, autocommit=True, connect_timeout=5) as connection:
        row = connection.execute(
            "select coalesce(sum(entry_count), 0), coalesce(sum(duplicate_count), 0),"
            " coalesce(sum(dead_letter_count + conflict_count), 0) from ledger.batches"
        ).fetchone()
    assert row is not None
    return int(row[0]), int(row[1]), int(row[2])
