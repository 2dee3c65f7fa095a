"""The page of the room names every command and every setting that there is, and its questions can be asked."""

import re
from pathlib import Path

import typer

from tallystick.cli import app
from tallystick.settings import Settings
from tests.tallystick.commands import Commands

PAGE = (Path(__file__).parent.parent.parent / "tallystick" / "README.md").read_text()


def test_every_setting_stands_in_the_table() -> None:
    for name, field in Settings.model_fields.items():
        assert f"| `{name}` |" in PAGE, name
        assert (field.description or "") in PAGE, name


def test_every_command_stands_on_the_page() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for name, command in commands.items():
        if command.hidden:
            # An older name of another one.
            continue
        assert f"`{name}" in PAGE, name
        for inner in getattr(command, "commands", {}):
            assert f"`{inner}`" in PAGE or f"`{name} {inner}`" in PAGE, f"{name} {inner}"


def test_the_questions_of_the_page_can_be_asked(commands: Commands) -> None:
    """As a person at night would: the whole block at once, on whatever version of the database."""
    block = re.search(r"```sql\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    assert commands.ok("sql", "--", block[1]).err.count("no rows") == 5
