"""Named places where a test can make the process die or fail; in production the table is empty and a hit costs a look-up."""

import os
import signal
from collections.abc import Callable
from typing import Final

_ACTIONS: Final[dict[str, Callable[[], None]]] = {}


def hit(name: str) -> None:
    """Do what a test has set for this place, if anything."""
    if _ACTIONS and (action := _ACTIONS.get(name)):
        action()


def set_failpoint(name: str, action: Callable[[], None] | None) -> None:
    """Set or, with None, clear what happens at a place."""
    if action is None:
        _ACTIONS.pop(name, None)
    else:
        _ACTIONS[name] = action


def die() -> None:
    """End this process as kill -9 would."""
    os.kill(os.getpid(), signal.SIGKILL)


def configure(spec: str) -> None:
    """Read settings such as `post.before_commit=die@3`: die at the third hit of that place."""
    for part in filter(None, spec.split(",")):
        name, _, what = part.partition("=")
        act, _, at = what.partition("@")
        if act != "die":
            raise ValueError(f"failpoint {name!r}: the only action is die, got {act!r}")
        set_failpoint(name, _nth(int(at or "1")))


def _nth(count: int) -> Callable[[], None]:
    hits = 0

    def action() -> None:
        nonlocal hits
        hits += 1
        if hits == count:
            die()

    return action
