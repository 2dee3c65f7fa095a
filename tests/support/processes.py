"""Looks at processes from outside, and runs an owner that can be killed."""

import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Self

CHECKOUT = Path(__file__).parent.parent.parent


def is_running(pid: int) -> bool:
    """Tell whether a process runs; one that has ended and was not yet fetched by its parent does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def wait_until_gone(*pids: int, seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while running := [pid for pid in pids if is_running(pid)]:
        assert time.monotonic() < deadline, f"still running: {running}"
        time.sleep(0.02)


class Owner:
    """A Python process of its own that runs the code until it has printed `ready` and some words."""

    def __init__(self, code: str, *arguments: str | Path) -> None:
        command = [sys.executable, "-c", textwrap.dedent(code), *(str(argument) for argument in arguments)]
        self.process = subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        first, *self.words = self.process.stdout.readline().split() or [""]
        if first != "ready":
            self.kill()
            raise AssertionError("the owner did not come up")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        assert self.process.stdout is not None
        self.process.stdout.close()
