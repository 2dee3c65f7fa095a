"""The command line, told by its settings where a test's database is."""

from pathlib import Path

import pytest

from tests.support.databases import Database
from tests.tallystick.commands import Commands


@pytest.fixture
def commands(
    database: Database, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Commands:
    """Commands against a migrated, empty database."""
    monkeypatch.setenv("TALLYSTICK_HOME", str(tmp_path))
    monkeypatch.setenv("TALLYSTICK_DATABASE_URL", database.url)
    return Commands(capsys, database)


@pytest.fixture
def with_tenant(commands: Commands) -> Commands:
    """The same with a tenant, acme, in Berlin."""
    commands.ok("entities", "add", "entity-1", "--name", "Entity One")
    commands.ok(
        "tenants",
        "add",
        "acme",
        "--entity",
        "entity-1",
        "--zone",
        "Europe/Berlin",
        "--currency",
        "EUR",
        "--since",
        "2026-09-01",
    )
    return commands
