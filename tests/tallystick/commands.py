"""Runs commands as a person would, in this process, and reads what they print."""

import json
from dataclasses import dataclass
from typing import Any

import pytest

from tallystick.cli import main
from tests.support.databases import Database


@dataclass(frozen=True)
class Ran:
    """What a command said and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def line(self) -> str:
        """The one line of a failure: more or fewer are a mistake."""
        assert self.code != 0, self.out
        assert self.err.count("\n") == 1, self.err
        assert "Traceback" not in self.err
        return self.err.removeprefix("tallystick: ").rstrip("\n")


class Commands:
    """The command line against a database of the test's own."""

    def __init__(self, capsys: pytest.CaptureFixture[str], database: Database) -> None:
        self._capsys = capsys
        self.database = database

    def __call__(self, *arguments: str) -> Ran:
        """Run a command that may fail."""
        self._capsys.readouterr()
        code = main(arguments)
        said = self._capsys.readouterr()
        return Ran(code, said.out, said.err)

    def ok(self, *arguments: str) -> Ran:
        """Run a command that must succeed."""
        ran = self(*arguments)
        assert ran.code == 0, ran.err
        return ran

    def waits(self, *arguments: str) -> str:
        """Run a command that a second person has to agree to first, and return the line that says so."""
        ran = self(*arguments)
        assert (ran.code, ran.out) == (3, ""), ran
        return ran.err

    def json(self, *arguments: str) -> Any:
        return self.ok(*arguments, "--format", "json").json
