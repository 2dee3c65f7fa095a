"""Nonsense to a command is one line that says what is wrong, and a code that is not zero."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tallystick.cli import app, main
from tests.support.databases import Database
from tests.tallystick.commands import Commands

CHECKOUT = Path(__file__).parent.parent.parent

NONSENSE: list[tuple[list[str], int, str]] = [
    (["nonsense"], 2, "No such command 'nonsense'"),
    (["tenants"], 2, "tenants: a command is missing; --help lists them"),
    (["tenants", "add"], 2, "tenants add: Missing argument 'TENANT'"),
    (["tenants", "add", "x", "--entity", "e"], 2, "tenants add: Missing option '--zone'"),
    (["tenants", "list", "--colour", "red"], 2, "No such option"),
    (["tenants", "list", "--format", "xml"], 2, "--format"),
    (["sources", "add", "s", "--kind", "gateway", "--rank", "high"], 2, "--rank"),
    (["tenants", "show", "nobody"], 1, "there is no tenant 'nobody'"),
    (["tenants", "show", "no\x1bbody"], 1, "there is no tenant 'no\\x1bbody'"),
    (["tenants", "merge", "acme", "acme", "--reason", "r"], 1, "cannot be merged into itself"),
    (["tenants", "merge", "acme", "nobody", "--reason", "r"], 1, "there is no tenant 'nobody'"),
    (["tenants", "add", "acme", "--entity", "entity-1", "--zone", "UTC", "--currency", "EUR"], 1, "there is a tenant 'acme' already"),
    (["tenants", "add", "b", "--entity", "e-2", "--zone", "UTC", "--currency", "EUR"], 1, "there is no entity 'e-2'"),
    (["tenants", "add", "b", "--entity", "entity-1", "--zone", "Europe/Berln", "--currency", "EUR"], 1, "did you mean Europe/Berlin?"),
    (["tenants", "add", "b", "--entity", "entity-1", "--zone", "UTC", "--currency", "euro"], 1, "currency 'euro' is no code"),
    (["tenants", "add", " b", "--entity", "entity-1", "--zone", "UTC", "--currency", "EUR"], 1, "printable characters"),
    (["tenants", "add", "b", "--entity", "entity-1", "--zone", "UTC", "--currency", "EUR", "--since", "soon"], 1, "'soon' is neither a date"),
    (["tenants", "change", "acme", "--from", "2027-13", "--zone", "UTC"], 1, "'2027-13' is not a month such as 2026-12"),
    (["tenants", "change", "acme", "--from", "2027-01"], 1, "nothing to change"),
    (["tenants", "change", "acme", "--from", "9999-12", "--zone", "UTC"], 1, "'9999-12' is not between the years 2000 and 2200"),
    (["tenants", "leave", "acme", "--reason", "r", "--at", "0001-01-01T00:00:00+14:00"], 1, "is not between the years 2000 and 2200"),
    (["tenants", "add", "b", "--entity", "entity-1", "--zone", "Asia/Tokyo", "--currency", "EUR", "--since", "0001-01-01"], 1, "'0001-01-01' is not between"),
    (["tenants", "change", "acme", "--from", "2026-09", "--zone", "UTC"], 1, "2026-09-01 is too early"),
    (["tenants", "resume", "acme"], 1, "tenant acme is active"),
    (["tenants", "leave", "acme"], 2, "Missing option '--reason'"),
    (["tenants", "leave", "acme", "--reason", "r", "--actor", " "], 1, "--actor must be a printable name"),
    (["sources", "add", "s", "--kind", "cloud", "--rank", "1", "--all-tenants"], 1, "source kind 'cloud' is unknown"),
    (["sources", "add", "s", "--kind", "gateway", "--rank", "1"], 1, "say which"),
    (["sources", "add", "s", "--kind", "gateway", "--rank", "1", "--tenant", "nobody"], 1, "there is no tenant 'nobody'"),
    (["sources", "end", "s", "--reason", "r"], 1, "there is no source 's'"),
    (["accounts", "add", "a", "--provider", "openai", "--currency", "XXX"], 1, "currency 'XXX' is no code"),
    (["models", "add", "openai", "m", "--input-max", "0"], 1, "a limit of 0 tokens"),
    (["models", "list", "--provider", "nobody"], 1, "there is no model of a provider 'nobody'"),
    (["prices", "import", "/nowhere.gz"], 2, "/nowhere.gz"),
    (["prices", "import", "LICENSE", "--version", "1"], 1, "LICENSE is not genai-prices as gzipped JSON"),
    (["prices", "import", "LICENSE"], 1, "the name LICENSE has no version"),
    (["prices", "contracts", "pyproject.toml"], 1, "pyproject.toml"),
    (["prices", "list", "--book", "green"], 1, "book 'green' is unknown"),
    (["prices", "show", "openai", "m"], 1, "there is no card for model 'm'"),
    (["budgets", "set", "--unit", "charge", "--limit", "ten", "--currency", "EUR"], 1, "'ten' is not a decimal number"),
    (["budgets", "set", "--unit", "charge", "--limit", "1"], 1, "a budget in charge needs a currency"),
    (["budgets", "set", "--unit", "requests", "--limit", "-1"], 1, "the limit must not be negative"),
    (["budgets", "set", "--unit", "requests", "--limit", "1", "--tag", "team"], 1, "--tag 'team' is not name=value"),
    (["budgets", "set", "--unit", "requests", "--limit", "1", "--since", "2026-02-30"], 1, "'2026-02-30' is not a date"),
    (["budgets", "list", "--tenant", "nobody"], 1, "there is no tenant 'nobody'"),
    (["prices", "reprice", "--tenant", "nobody"], 1, "there is no tenant 'nobody'"),
    (["prices", "known-at", "2026-11-20", "--tenant", "nobody"], 1, "there is no tenant 'nobody'"),
    (["prices", "list", "--tenant", "nobody"], 1, "there is no tenant 'nobody'"),
    (["corrections", "list", "--tenant", "nobody"], 1, "there is no tenant 'nobody'"),
    (["corrections", "proposals", "--tenant", "nobody"], 1, "there is no tenant 'nobody'"),
    (["reservations", "list", "--tenant", "nobody"], 1, "there is no tenant 'nobody'"),
    (["statements", "differ", "--tenant", "nobody"], 1, "there is no tenant 'nobody'"),
    (["statements", "shared-responses", "--tenant", "nobody"], 1, "there is no tenant 'nobody'"),
    (["keys", "list", "--tenant", "nobody"], 1, "there is no tenant 'nobody'"),
    (["webhooks", "list", "--tenant", "nobody"], 1, "there is no tenant 'nobody'"),
    (["budgets", "end", "nothing", "--reason", "r"], 1, "there is no budget in force 'nothing'"),
    (["sources", "add", "s", "--kind", "gateway", "--all-tenants", "--rank", "9999999999"], 2, "'--rank'"),
    (["models", "add", "openai", "m", "--input-max", "9" * 20], 2, "'--input-max'"),
    (["acts", "list", "--limit", "9" * 20], 2, "'--limit'"),
    (["dead-letters", "show", "9" * 20], 2, "'ID'"),
    (["dead-letters", "resolve", "1", "9" * 20, "--reason", "r"], 2, "'ID...'"),
    (["corrections", "accept", "--entry", "9" * 20], 2, "'--entry'"),
    (["nodes", "list", "--days", "99999999"], 2, "'--days'"),
    (["gaps", "list", "--grace", "1e300"], 2, "'--grace'"),
    (["reservations", "list", "--older-than", "1e999"], 2, "'--older-than'"),
    (["sql", "select 1", "--timeout", "1e999"], 2, "'--timeout'"),
    (["spikes", "--since", "9999-12-31"], 1, "'9999-12-31' is not between the years 2000 and 2200"),
    (["grants", "create", "--tenant", "acme", "--amount", "1e999", "--currency", "EUR"], 1, "'1e999' has more than 30 digits"),
    (["grants", "create", "--tenant", "acme", "--amount", "1e-31", "--currency", "EUR"], 1, "'1e-31' has more than 30 digits"),
    (["budgets", "set", "--unit", "requests", "--limit", "1e30"], 1, "'1e30' has more than 30 digits before or after the point"),
    (["keys", "create"], 1, "a key belongs to one tenant, to one source, or to an operator"),
    (["keys", "create", "--tenant", "nobody"], 1, "there is no tenant 'nobody'"),
    (["keys", "revoke", "tsk_0", "--reason", "r"], 1, "there is no key in force 'tsk_0'"),
    (["dead-letters", "show", "7"], 1, "there is no dead letter '7'"),
    (["dead-letters", "show", "first"], 2, "ID"),
    (["feeds", "start-here", "f", "7", "--reason", "r"], 1, "there is no feed 'f'"),
    (["periods", "list", "--tenant", "nobody"], 1, "there is no tenant 'nobody'"),
    (["sql", ""], 1, "there is no statement to run"),
    (["sql", "selec 1"], 1, 'syntax error at or near "selec" (line 1, column 1)'),
    (["sql", "select\n  nothing"], 1, 'column "nothing" does not exist (line 2, column 3)'),
    (["sql", "delete from entries"], 1, "read-only transaction"),
    (["sql", "select pg_sleep(3)", "--timeout", "0.05"], 1, "the statement was stopped after 0.05 seconds"),
    (["sql", "copy (select 1) to stdout"], 1, "sql runs no copy: --format csv writes the rows of a select"),
    (["sql", "select '\udcff'"], 1, "no UTF-8 text"),
    (["sql", "--query", "budgets-nearly-exhausted", "--var", "tenant=nobody"], 1, "there is no tenant 'nobody'"),
    (["sql", "--query", "budgets-nearly-exhausted", "--var", "share=most"], 1, "share must be a number, not 'most'"),
    (["tenants", "show", "no\udcffbody"], 1, "no UTF-8 text"),
    (["check", "--hours", "inf"], 2, "--hours"),
    (["check", "--page", "docs"], 1, "--page: docs is a folder, and a page is a file"),
    (["verify", "--heads", "/nowhere/heads.jsonl"], 1, "--heads: /nowhere/heads.jsonl: there is no such file"),
    (["rollup", "--rebuild", "all", "--tests"], 1, "after the rebuild, by `tallystick rollup --tests`"),
    (["replay", "LICENSE"], 1, "replay needs a broker: start `tallystick up`, or set TALLYSTICK_KAFKA"),
    (["worker"], 1, "worker needs TALLYSTICK_KAFKA"),
]  # fmt: skip


def test_nonsense_is_one_line(with_tenant: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CHECKOUT)
    for arguments, code, line in NONSENSE:
        ran = with_tenant(*arguments)
        assert line in ran.line, arguments
        assert ran.code == code, arguments
        assert ran.out == "", arguments


BAD_SETTINGS = [
    ("TALLYSTICK_DATABASE_URL", "postgresql://postgres:secret@127.0.0.1:1/x", "the database is away: "),
    ("TALLYSTICK_DATABASE_URL", "127.0.0.1:5432", "TALLYSTICK_DATABASE_URL is no address such as postgresql://"),
    ("TALLYSTICK_OPERATOR_URL", "mysql://x:secret@y/z", "TALLYSTICK_OPERATOR_URL is no address such as postgresql://"),
    ("TALLYSTICK_API_PORT", "secret", "TALLYSTICK_API_PORT: "),
    ("TALLYSTICK_API_PORT", "65536", "TALLYSTICK_API_PORT: "),
    ("TALLYSTICK_USAGE_PARTITIONS", "0", "TALLYSTICK_USAGE_PARTITIONS: "),
    ("TALLYSTICK_MONTHS_AHEAD", "0", "TALLYSTICK_MONTHS_AHEAD: "),
]


@pytest.mark.parametrize(("name", "value", "line"), BAD_SETTINGS)
def test_a_setting_that_makes_no_sense_is_named_without_its_value(
    commands: Commands, monkeypatch: pytest.MonkeyPatch, name: str, value: str, line: str
) -> None:
    monkeypatch.setenv(name, value)
    ran = commands("tenants", "list")
    assert ran.line.startswith(line)
    assert "secret" not in ran.err
    assert ran.code == 1


def test_a_database_that_is_not_migrated_says_what_to_do(
    commands: Commands, empty_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TALLYSTICK_DATABASE_URL", empty_database.url)
    assert commands("tenants", "list").line.endswith("run `tallystick migrate`")
    commands.ok("migrate")
    assert commands.ok("tenants", "list").out == "no tenants\n"


def test_migrate_alone_needs_the_address_that_may_make_roles(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TALLYSTICK_DATABASE_URL")
    monkeypatch.setenv("TALLYSTICK_OPERATOR_URL", commands.database.url_for("tallystick_operator"))
    assert commands.ok("tenants", "list").out == "no tenants\n"
    assert "TALLYSTICK_DATABASE_URL" in commands("migrate").line
    assert "TALLYSTICK_ANALYST_URL" in commands("sql", "select 1").line


def test_what_nobody_expected_is_one_line_and_a_log(
    commands: Commands, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("of\nour own")

    monkeypatch.setattr("ledger.registry.list_tenants", fail)
    log = tmp_path / "logs" / "commands.log"
    assert commands("tenants", "list").line == f"unexpected ZeroDivisionError: of our own (the rest is in {log})"
    assert "Traceback" in log.read_text()
    assert "Traceback" in commands("--debug", "tenants", "list").err


def test_without_a_word_the_help_is_shown(commands: Commands) -> None:
    assert commands.ok().out == commands.ok("--help").out


def walked(group: object, *path: str) -> list[tuple[str, ...]]:
    found = []
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        found += walked(command, *path, name) if hasattr(command, "commands") else [(*path, name)]
    return found


def test_every_command_explains_itself(commands: Commands) -> None:
    """A first line that says what it does, and a word for each option that is not obvious by its name."""
    import typer

    listed = walked(typer.main.get_command(app))
    assert len(listed) > 40
    for path in listed:
        text = commands.ok(*path, "--help").out
        # A usage with many arguments goes on over several lines; what the command does is the paragraph after it.
        said = text.partition("\n\n")[2].splitlines()[0].strip()
        assert said not in {"", "Arguments:", "Options:"}, path
        if path[-1] in {"list", "show"}:
            assert "--format" in text, path


def test_no_list_of_commands_is_cut(commands: Commands) -> None:
    for noun in [(), ("tenants",), ("models",), ("prices",), ("budgets",)]:
        usage, *rest = commands.ok(*noun, "--help").out.splitlines()
        assert usage.endswith("COMMAND [ARGS]...")
        assert not [line for line in rest if line.endswith("...")], noun


def run(*arguments: str, text: str | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "tallystick", *arguments],
        cwd=CHECKOUT,
        input=text,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


def test_the_help_is_there_at_once() -> None:
    """No driver, no dbt, no web server, no data frame is loaded for it: it is shown before any of them would be."""
    shown = (
        "import runpy, sys\nsys.argv[1:] = ['--help']\ntry:\n    runpy.run_module('tallystick', run_name='__main__')\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", f"{shown}finally:\n    print(*sys.modules, file=sys.stderr)"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0
    assert "Usage:" in ran.stdout
    loaded = {module.partition(".")[0] for module in ran.stderr.split()}
    assert "typer" in loaded
    assert not loaded & {"psycopg", "sqlalchemy", "alembic", "dbt", "fastapi", "uvicorn", "polars", "faust", "msgspec"}


def test_a_program_reads_code_and_streams(database: Database, tmp_path: Path) -> None:
    told = {"TALLYSTICK_HOME": str(tmp_path), "TALLYSTICK_DATABASE_URL": database.url}
    asked = run("sql", "--format", "csv", text="select 0.10 as a; -- and;\nselect ';' as b;", **told)
    assert (asked.returncode, asked.stdout, asked.stderr) == (0, "a\n0.10\nb\n;\n", "")
    failed = run("tenants", "show", "nobody", **told)
    assert (failed.returncode, failed.stdout, failed.stderr) == (1, "", "tallystick: there is no tenant 'nobody'\n")


def test_a_reader_that_has_seen_enough_is_no_failure(database: Database, tmp_path: Path) -> None:
    told = {**os.environ, "TALLYSTICK_HOME": str(tmp_path), "TALLYSTICK_DATABASE_URL": database.url}
    command = [sys.executable, "-m", "tallystick", "sql", "--format", "csv", "select generate_series(1, 300000)"]
    with subprocess.Popen(
        command, cwd=CHECKOUT, env=told, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "generate_series\n"
        process.stdout.close()
        assert (process.wait(20), process.stderr.read()) == (0, "")


def test_commands_run_the_embedded_server_for_themselves(tmp_path: Path) -> None:
    """With nothing set: started for the command, stopped with it, its data still there for the next one."""
    told = {"TALLYSTICK_HOME": str(tmp_path)}
    assert run("migrate", **told).returncode == 0
    assert run("entities", "add", "e", "--name", "E", **told).returncode == 0
    assert run("sql", "select entity_id from entities", "--format", "csv", **told).stdout == "entity_id\ne\n"
    assert not (tmp_path / "postgres" / "address.json").exists()


def test_main_can_be_called_twice() -> None:
    assert main(["nonsense"]) == main(["nonsense"]) == 2
