"""The command line: `tallystick`. Every failure is one line on stderr and a code that is not zero."""

import sys
import traceback
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from tallystick.commands import (
    approvals,
    backfill,
    budgets,
    canary,
    corrections,
    dead_letters,
    exchange_rates,
    gaps,
    generating,
    grants,
    invoice_files,
    invoices,
    keys,
    margin,
    names,
    nodes,
    parties,
    periods,
    price_comparison,
    prices,
    proofs,
    readers,
    records,
    repricing,
    rereading,
    reservations,
    retention,
    services,
    spikes,
    sql,
    statements,
    subjects,
    webhooks,
)
from tallystick.commands.common import CommandError, Group, safe

app = typer.Typer(
    name="tallystick",
    cls=Group,
    help="The usage ledger and billing pipeline for LLM serving.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)

for module in (
    services, backfill, parties, periods, names, prices, price_comparison, repricing, exchange_rates, nodes, budgets, reservations, grants, invoices, invoice_files, webhooks, keys, readers, records, dead_letters, gaps, canary, statements, corrections, approvals, rereading, retention, subjects, proofs, sql, generating, spikes, margin,
):  # fmt: skip
    module.register(app)


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show where an unexpected error came from.")] = False,
) -> None:
    """Usage in, invoices out, one append-only ledger between them."""
    _DEBUG["on"] = debug


_DEBUG: Final = {"on": False}

# Errors whose message is for a person, by the module that raises them: a module that was never loaded raised nothing.
_EXPECTED: Final = {
    "tallystick.commands.common": ("CommandError",),
    "tallystick.addresses": ("BadAddress", "NoAddress"),
    "tallystick.processes": ("EmbeddedError",),
    "tallystick.rollup": ("RollupError",),
    "tallystick.checks": ("ChecksError",),
    "tallystick.cookbook": ("CookbookError",),
    "tallystick.expectations": ("BadExpectations",),
    "ledger.errors": ("LedgerError",),
    "ingest.replay": ("ReplayError",),
    "tallystick.demo": ("DemoFailed",),
    "tallystick.generating": ("GenerateError",),
}
_NOT_MIGRATED: Final = "the database is not migrated to this version: run `tallystick migrate`"


_INTERRUPTED: Final = 130


@cache
def _command() -> Any:
    # Made of all groups: once for a process that runs several, as the tests do.
    return typer.main.get_command(app)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0, 1 after a failure, 2 for a command that makes no sense, 3 where a person is to act
    or to look, 130 after Ctrl-C.
    """
    _DEBUG["on"] = False
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        outcome = _command()(args=given or ["--help"], prog_name="tallystick", standalone_mode=False)
        sys.stdout.flush()
        if outcome == _INTERRUPTED:
            # Typer takes Ctrl-C for an exit, and says nothing.
            return _failed("tallystick: interrupted", _INTERRUPTED)
        return outcome if isinstance(outcome, int) else 0
    except typer.TyperException as error:
        # What was typed makes no sense: say so behind the command that it was typed after.
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "tallystick"
        message = error.format_message()
        if message == "Missing command.":
            message = "a command is missing; --help lists them"
        return _failed(f"{command}: {message}", error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return _failed("tallystick: interrupted", _INTERRUPTED)
    except SystemExit as ended:
        # Typer ends the process where whoever read us has gone. They have seen enough, which is no failure.
        return 0 if isinstance(ended.__context__, BrokenPipeError) else 1
    except Exception as error:
        return _failed(f"tallystick: {_line(error)}", 1)


def _failed(line: str, code: int) -> int:
    if _DEBUG["on"] and sys.exc_info()[0] is not None:
        traceback.print_exc()
    sys.stderr.write(safe(" ".join(line.split())) + "\n")
    return code


def _line(error: Exception) -> str:
    """Return what a person is told about an error; for one that nobody expected, where the rest is."""
    if isinstance(error, _expected()):
        return str(error)
    about_database = _about_database(error)
    if about_database is not None:
        return about_database
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, TimeoutError) and error.args:
        return str(error)
    if isinstance(error, UnicodeEncodeError) and error.reason == "surrogates not allowed":
        return "what was typed, or read, is no UTF-8 text"
    log = _log(error)
    return f"unexpected {type(error).__name__}: {error}" + (f" (the rest is in {log})" if log else "")


def _expected() -> tuple[type[Exception], ...]:
    return tuple(
        getattr(sys.modules[module], name)
        for module, names in _EXPECTED.items()
        if module in sys.modules
        for name in names
        if hasattr(sys.modules[module], name)
    )


def _about_database(error: Exception) -> str | None:
    psycopg: Any = sys.modules.get("psycopg")
    if psycopg is None or not isinstance(error, psycopg.Error):
        return None
    refused = (
        psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn, psycopg.errors.UndefinedFunction,
        psycopg.errors.InvalidSchemaName,
    )  # fmt: skip
    if isinstance(error, refused):
        return _NOT_MIGRATED
    primary = error.diag.message_primary
    if primary is not None:
        return f"the database refused: {primary}"
    if isinstance(error, psycopg.OperationalError):
        first = str(error).strip().partition("\n")[0]
        if 'role "tallystick_' in first and "does not exist" in first:
            return _NOT_MIGRATED
        return f"the database is away: {first}"
    return None


def _log(error: Exception) -> Path | None:
    """Write an unexpected error down and return where."""
    try:
        from tallystick.settings import Settings

        log = Settings().home / "logs" / "commands.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a") as written:
            written.write("".join(traceback.format_exception(error)) + "\n")
    except Exception:
        return None
    return log


__all__ = ["CommandError", "app", "main"]
