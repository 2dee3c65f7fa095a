"""Progress bars of commands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Move(Protocol):
    """Moves a bar by a number of things, and may say how many there are."""

    def __call__(self, by: int, total: int | None = None) -> None: ...


@contextmanager
def bar(what: str, unit: str, total: int | None = None) -> Iterator[Move]:
    """Show a bar with rate and remaining time on a terminal, from its first move on; yield what moves it."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    # Into a file or a pipe nothing moves, and a failure stays one line. One thing is over before anybody reads a bar.
    bars = Progress(*columns, console=console, disable=not console.is_terminal or total == 1)
    task = bars.add_task(what, total=total, rate="")
    started = False

    def move(by: int, total: int | None = None) -> None:
        nonlocal started
        if not started:
            started = True
            bars.start()
        if total is not None:
            bars.update(task, total=total)
        bars.update(task, advance=by)
        speed = bars.tasks[0].finished_speed or bars.tasks[0].speed
        if speed:
            bars.update(task, rate=f"{speed:,.0f} {unit}/s")

    try:
        yield move
    finally:
        if started:
            bars.stop()
