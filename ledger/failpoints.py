"""Named places where a test can make the process die or fail; in production the table is empty and a hit costs a look-up."""

import os
import signal
from collections.abc import Callable
from typing import Final

Action = Callable[[bytes], None]

_ACTIONS: Final[dict[str, Action]] = {}


def hit(name: str, content: bytes = b"") -> None:
    """Do what a test has set for this place, if anything; `content` is what is in hand there."""
    if _ACTIONS and (action := _ACTIONS.get(name)):
        action(content)


def set_failpoint(name: str, action: Action | None) -> None:
    """Set or, with None, clear what happens at a place."""
    if action is None:
        _ACTIONS.pop(name, None)
    else:
        _ACTIONS[name] = action


def die() -> None:
    """End this process as kill -9 would."""
    os.kill(os.getpid(), signal.SIGKILL)


def configure(spec: str) -> None:
    """Read settings such as `post.before_commit=die@3`: die at the third hit of that place; or `read.message=die~text`:
    die whenever what is in hand holds that text.
    """
    for part in filter(None, spec.split(",")):
        name, _, what = part.partition("=")
        if what.startswith("die@"):
            set_failpoint(name, _nth(int(what.removeprefix("die@"))))
        elif what.startswith("die~"):
            set_failpoint(name, _with(what.removeprefix("die~").encode()))
        else:
            raise ValueError(f"failpoint {name!r}: the actions are die@n and die~text, got {what!r}")


def _nth(count: int) -> Action:
    hits = 0

    def action(_: bytes) -> None:
        nonlocal hits
        hits += 1
        if hits == count:
            die()

    return action


def _with(text: bytes) -> Action:
    def action(content: bytes) -> None:
        if text in content:
            die()

    return action
