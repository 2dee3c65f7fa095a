"""Servers to measure, each a process of its own as in production."""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from api.config import Config


@contextmanager
def serving(*arguments: str) -> Iterator[int]:
    """Run a module that prints its port; yields the port."""
    with subprocess.Popen([sys.executable, "-m", *arguments], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.terminate()
            process.wait(20)


@contextmanager
def api(config: Config) -> Iterator[int]:
    """Run the API; yields its port."""
    with serving("tests.api.serve_api", json.dumps(dataclasses.asdict(config), default=sorted)) as port:
        yield port
