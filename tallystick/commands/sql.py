"""`tallystick sql`: reads the ledger, the budgets and the marts, and can change nothing."""

import csv
import json
import re
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tallystick.commands.common import (
    CommandError,
    TableFormat,
    note,
    plain,
    print_json,
    print_table,
    safe,
    with_connection,
)
from tallystick.roles import ANALYST

if TYPE_CHECKING:
    from psycopg.abc import AdaptContext

    from ledger.database import Connection

_SEARCH_PATH: Final = "ledger, quotas, marts, public"


def register(app: typer.Typer) -> None:
    """Add the command of this file."""
    app.command("sql")(sql)


def sql(
    statement: Annotated[
        str | None,
        typer.Argument(help="Statements, with ; between them. Left out, they are read from standard input."),
    ] = None,
    format: Annotated[TableFormat, typer.Option("--format", help="table for people, csv or json for programs.")] = (
        TableFormat.table
    ),
    rows: Annotated[
        int, typer.Option("--rows", min=1, help="How many rows a table shows; csv and json give all.")
    ] = 1000,
    seconds: Annotated[
        float, typer.Option("--timeout", min=0.001, max=604_800, help="Seconds that a statement may take.")
    ] = 60.0,
    query: Annotated[
        str | None, typer.Option("--query", metavar="NAME", help="Ask a question of the cookbook.")
    ] = None,
    values: Annotated[
        list[str] | None,
        typer.Option("--var", metavar="NAME=VALUE", help="What the question takes; --list names them."),
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the questions of the cookbook.")] = False,
) -> None:
    """Ask the database, read-only, as tallystick_analyst.

    Tables of ledger, quotas and marts need no schema in front. Decimals are shown digit for digit.
    """
    from tallystick.cookbook import statement as cookbook_statement

    if listed:
        return _list_questions(format)
    tenant: str | None = None
    if query is not None:
        if statement is not None:
            raise CommandError("--query and a statement: only one of them")
        given = _given(values or [])
        statement, tenant = cookbook_statement(query, given), given.get("tenant") or None
    elif values:
        raise CommandError("--var goes with --query")
    statements: Iterable[str]
    if statement is not None:
        statements = [text for text, _ in split_statements(statement)]
        if not statements:
            raise CommandError("there is no statement to run")
    else:
        statements = _read_statements(sys.stdin)
    is_talk = statement is None and sys.stdin.isatty()

    async def work(connection: "Connection") -> None:
        if tenant is not None:
            await _need_tenant(connection, tenant)
        if is_talk:
            await _converse(connection, format, rows, seconds)
        else:
            await _run_all(connection, statements, format, rows, seconds)

    with_connection(work, role=ANALYST, context=_texts())


def _list_questions(format: TableFormat) -> None:
    from tallystick.cookbook import questions

    found = questions()
    if format is TableFormat.json:
        print_json([plain(each) for each in found])
        return
    rows = [
        [each.name, each.question, " ".join(f"{name}={value}" for name, value in each.variables.items())]
        for each in found
    ]
    print_table(["query", "question", "takes, with its defaults"], rows)


async def _need_tenant(connection: "Connection", tenant: str) -> None:
    """As `need_tenant` of the other commands, on a connection on which every value is a text."""
    from ledger.errors import Unknown

    cursor = await connection.execute("select from ledger.tenants where tenant_id = %s", [tenant])
    if await cursor.fetchone() is None:
        raise Unknown("tenant", tenant)


def _given(values: list[str]) -> dict[str, str]:
    given = {}
    for text in values:
        variable, equals, value = text.partition("=")
        if not equals:
            raise CommandError(f"--var: name=value, not {text!r}")
        given[variable] = value
    return given


# --- Where one statement ends ------------------------------------------------------------------------------------------

_COMMENT: Final = r"--[^\n]*(?:\n|\Z)|/\*.*?(?:\*/|\Z)"
_TOKENS: Final = re.compile(
    rf"""{_COMMENT}
    | (?<!\w)[eE]'(?:[^'\\]|\\.)*(?:'|\Z)
    | '[^']*(?:'|\Z)
    | "[^"]*(?:"|\Z)
    | (?<![\w$])(?P<quote>\$(?:[^\W\d]\w*)?\$).*?(?:(?P=quote)|\Z)
    | (?P<end>;)
    """,
    re.DOTALL | re.VERBOSE,
)
# The driver would leave the answer of a copy unread.
_COPY: Final = re.compile(rf"(?:\s|{_COMMENT})*copy\b", re.IGNORECASE | re.DOTALL)
_BLANK: Final = re.compile(rf"(?:\s|{_COMMENT})*", re.DOTALL)


def split_statements(text: str) -> Iterator[tuple[str, bool]]:
    """Yield each statement of a text and whether a semicolon ended it; quoted texts and comments may hold semicolons."""
    start = 0
    for token in _TOKENS.finditer(text):
        if token["end"]:
            if not _BLANK.fullmatch(text, start, token.start()):
                yield text[start : token.start()].strip(), True
            start = token.end()
    if not _BLANK.fullmatch(text, start):
        yield text[start:].strip(), False


def _read_statements(lines: Iterable[str]) -> Iterator[str]:
    """Yield statements as they are complete."""
    held = ""
    for line in lines:
        held += line
        found = list(split_statements(held))
        complete = [text for text, ended in found if ended]
        yield from complete
        if complete or not found:
            held = next((text + "\n" for text, ended in found if not ended), "")
    yield from (text for text, _ in split_statements(held))


# --- Running ------------------------------------------------------------------------------------------------------------


async def _run_all(
    connection: "Connection", statements: Iterable[str], format: TableFormat, rows: int, seconds: float
) -> None:
    import psycopg

    await _prepare(connection, seconds)
    # One snapshot for all of them, so that their answers belong together.
    await connection.execute("begin isolation level repeatable read read only")
    for statement in statements:
        try:
            await _answer(connection, statement, format, rows)
        except psycopg.Error as error:
            raise CommandError(_about(error, statement, seconds)) from None


async def _converse(connection: "Connection", format: TableFormat, rows: int, seconds: float) -> None:
    import psycopg

    with suppress(ImportError):
        import readline  # noqa: F401  its import gives `input` a history
    await _prepare(connection, seconds)
    note("Statements end with a semicolon; Ctrl-D leaves.")
    for statement in _read_statements(_typed()):
        try:
            await connection.execute("begin isolation level repeatable read read only")
            await _answer(connection, statement, format, rows)
        except psycopg.Error as error:
            note(_about(error, statement, seconds))
            if connection.closed:
                raise
        finally:
            if not connection.closed:
                await connection.execute("rollback")


def _typed() -> Iterator[str]:
    while True:
        try:
            yield input("tallystick=> ") + "\n"
        except EOFError:
            sys.stdout.write("\n")
            return


async def _prepare(connection: "Connection", seconds: float) -> None:
    await connection.execute(f"set search_path = {_SEARCH_PATH}")
    await connection.execute(f"set statement_timeout = {max(1, round(seconds * 1000))}".encode())
    # The role may write nothing anyway; this says so with a better error.
    await connection.execute("set default_transaction_read_only = on")


def _about(error: Any, statement: str, seconds: float) -> str:
    """Return in one line what the database says about a statement, and where in it."""
    diagnosis = error.diag
    if diagnosis.sqlstate == "57014":
        return f"the statement was stopped after {seconds:g} seconds; --timeout gives it more"
    text = diagnosis.message_primary or str(error).strip().partition("\n")[0]
    if diagnosis.statement_position:
        before = statement[: int(diagnosis.statement_position) - 1]
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        text += f" (line {line}, column {column})"
    if diagnosis.message_hint:
        text += f"; {diagnosis.message_hint}"
    return text


def _texts() -> "AdaptContext":
    """Return what makes every value arrive as Postgres prints it: a decimal keeps each digit, any date can be shown."""
    from psycopg.adapt import AdaptersMap
    from psycopg.types.string import StrDumper, TextLoader

    class Texts:
        adapters = AdaptersMap()
        connection = None

    Texts.adapters.register_loader(0, TextLoader)
    Texts.adapters.register_dumper(str, StrDumper)
    return Texts()


async def _answer(connection: "Connection", statement: str, format: TableFormat, rows: int) -> None:
    import psycopg

    headings, types = _columns(connection, statement)
    cursor = connection.cursor()
    if not headings:
        if _COPY.match(statement):
            raise psycopg.NotSupportedError("sql runs no copy: --format csv writes the rows of a select")
        await cursor.execute(statement.encode())
        note(cursor.statusmessage or "done")
        return
    # Rows come in groups, so that a table larger than this machine's memory can be written to a file. Closed at once when
    # nobody reads on, since the connection waits for that.
    size = 1000 if psycopg.capabilities.has_stream_chunked() else 1
    found: AsyncGenerator[Row, None] = cursor.stream(statement.encode(), size=size)  # type: ignore[assignment]
    async with aclosing(found):
        if format is TableFormat.csv:
            await _write_csv(headings, found)
        elif format is TableFormat.json:
            await _write_json(headings, types, found)
        else:
            await _write_table(headings, types, found, rows)


def _columns(connection: "Connection", statement: str) -> tuple[list[str], list[int]]:
    """Return names and type ids of what a statement will give, before it runs: a stream of no rows does not say."""
    from psycopg.errors import error_from_result
    from psycopg.pq import ExecStatus

    wire = connection.pgconn
    result = wire.prepare(b"", statement.encode())
    if result.status != ExecStatus.FATAL_ERROR:
        result = wire.describe_prepared(b"")
    if result.status == ExecStatus.FATAL_ERROR:
        raise error_from_result(result)
    columns = range(result.nfields)
    return [(result.fname(index) or b"").decode() for index in columns], [result.ftype(index) for index in columns]


Row = tuple[Any, ...]
"""Texts and nulls."""


async def _write_table(headings: list[str], types: list[int], found: AsyncIterator[Row], rows: int) -> None:
    shown: list[Row] = []
    async for row in found:
        if len(shown) == rows:
            note(f"the first {rows:,} rows; --rows shows more, --format csv gives all")
            break
        shown.append(row)
    numbers = [index for index, oid in enumerate(types) if oid in _NUMBERS]
    cells = [
        ["" if value is None else safe(_boolean(value, oid)) for value, oid in zip(row, types, strict=True)]
        for row in shown
    ]
    print_table([safe(heading) for heading in headings], cells, numbers)
    if not shown:
        note("no rows")


async def _write_csv(headings: list[str], found: AsyncIterator[Row]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(headings)
    async for row in found:
        writer.writerow(row)


async def _write_json(headings: list[str], types: list[int], found: AsyncIterator[Row]) -> None:
    """Write an array of objects, a line each; numbers with a fraction are texts, so that no reader makes them binary."""
    names = _distinct(headings)
    separator = "["
    async for row in found:
        values = {name: _json_value(value, oid) for name, value, oid in zip(names, row, types, strict=True)}
        sys.stdout.write(f"{separator}\n{json.dumps(values, ensure_ascii=False)}")
        separator = ","
    sys.stdout.write("[]\n" if separator == "[" else "\n]\n")


def _distinct(headings: list[str]) -> list[str]:
    """Return names of which none is there twice, since an object would keep only the last one's value."""
    names: list[str] = []
    for heading in headings:
        name, number = heading, 1
        while name in names:
            number += 1
            name = f"{heading}_{number}"
        names.append(name)
    return names


# Source: pg_type.dat of PostgreSQL 18.
_BOOLEAN: Final = 16
_INTEGERS: Final = frozenset({20, 21, 23, 26})
_NUMBERS: Final = _INTEGERS | {700, 701, 1700}
_JSON: Final = frozenset({114, 3802})


def _boolean(value: str, oid: int) -> str:
    return {"t": "yes", "f": "no"}[value] if oid == _BOOLEAN else value


def _json_value(value: str | None, oid: int) -> Any:
    if value is None:
        return None
    if oid in _INTEGERS:
        return int(value)
    if oid == _BOOLEAN:
        return value == "t"
    if oid in _JSON:
        return json.loads(value, parse_float=str)
    return value
