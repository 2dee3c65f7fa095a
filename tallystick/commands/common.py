"""What commands share: options, the connection they run on, and how they print.

Everything heavy is imported where it is used: `tallystick --help` must not wait for a database driver.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn, TypeVar

import typer
import typer.core

from tallystick.roles import OPERATOR

if TYPE_CHECKING:
    from ledger.approvals import Awaiting
    from ledger.database import Connection
    from tallystick.settings import Settings

Result = TypeVar("Result")

# What a line may hold where nobody's window says it: a file, a pipe, a log.
_COLUMNS_WITHOUT_TERMINAL: Final = 200
_CONNECT_SECONDS: Final = 10

ROWS_MAX: Final = 1_000_000
MINUTES_MAX: Final = 5_256_000
"""Ten years."""
INTEGER_MAX: Final = 2**31 - 1
BIGINT_MAX: Final = 2**63 - 1
"""What these columns of the database hold."""

WAITS: Final = 3
"""The code of a command after which nothing has failed, and a person is to act or to look."""


class CommandError(Exception):
    """A command cannot go on; the message is one line for a person."""


class Format(StrEnum):
    table = "table"
    json = "json"


class TableFormat(StrEnum):
    table = "table"
    csv = "csv"
    json = "json"


FormatOption = Annotated[Format, typer.Option("--format", help="table for people, json for programs.")]
ActorOption = Annotated[
    str | None, typer.Option("--actor", help="Who does this, for the record; left out, the user of the machine.")
]
ReasonOption = Annotated[str | None, typer.Option("--reason", help="Why, for the record.")]
NeededReason = Annotated[str, typer.Option("--reason", help="Why, for the record.")]
CommitOption = Annotated[bool, typer.Option("--commit", help="Post it; without this it is only shown.")]
OfTenantOption = Annotated[str | None, typer.Option("--tenant", help="Of this tenant only.")]
TenantArgument = Annotated[str, typer.Argument(metavar="TENANT", help="The tenant's id.")]
TenantMonthArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[TENANT] MONTH", help="Whose month, such as 2026-11; MONTH alone with --entity or --all."),
]
# The same as options, for whoever would rather name them.
HiddenTenantOption = Annotated[str | None, typer.Option("--tenant", hidden=True, help="Whose month.")]
HiddenMonthOption = Annotated[str | None, typer.Option("--month", hidden=True, help="Which month.")]
MonthArgument = Annotated[str, typer.Argument(metavar="MONTH", help="Such as 2026-11.")]
OfMonthOption = Annotated[str | None, typer.Option("--month", help="Of this month only, such as 2026-11.")]


class Group(typer.core.TyperGroup):
    """Lists commands with their whole first sentence, over several lines where it needs them; Typer's own cuts it."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        names = self.list_commands(ctx)
        commands = [(name, self.commands[name]) for name in names if not self.commands[name].hidden]
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.get_short_help_str(limit=1000)) for name, command in commands])


def group(summary: str) -> typer.Typer:
    """Return a group of commands under one noun."""
    return typer.Typer(cls=Group, help=summary, rich_markup_mode=None, pretty_exceptions_enable=False)


# --- Who, when, with which settings -----------------------------------------------------------------------------------


def settings() -> Settings:
    """Return the settings, or say in one line which of them makes no sense."""
    from pydantic import ValidationError

    from tallystick.settings import Settings as Read

    try:
        return Read()
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name = "_".join(str(part) for part in first["loc"]).upper()
        raise CommandError(f"TALLYSTICK_{name}: {first['msg']}") from None


def acting(actor: str | None) -> str:
    """Return who acts: the one named, or the user of the machine."""
    if actor is not None:
        if not actor.strip() or not actor.isprintable():
            raise CommandError("--actor must be a printable name")
        return actor
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError):
        raise CommandError("the user of this machine has no name: say who acts with --actor") from None


def second_person_acts() -> frozenset[str]:
    """Return the acts that the settings ask a second person for."""
    from ledger.approvals import acts_of

    return acts_of(settings().second_person_acts)


async def need_tenant(connection: Connection, tenant: str | None) -> None:
    """Refuse a tenant that is not there: a list of nothing would look as if it had nothing. Errors: Unknown."""
    from ledger.registry import find_tenant

    if tenant is not None:
        await find_tenant(connection, tenant, now=now())


def wait_for_second_person(found: Awaiting, format: Format = Format.table) -> NoReturn:
    """Say that an act is asked for and was not done, and end with the code that says so."""
    if format is Format.json:
        print_json({"outcome": "awaiting", **plain(found)})
    else:
        note(found.line)
    raise typer.Exit(WAITS)


def now() -> int:
    """Return the machine's clock in UTC microseconds."""
    return time.time_ns() // 1000


def with_connection(
    work: Callable[[Connection], Awaitable[Result]],
    *,
    role: str = OPERATOR,
    of_tenant: str | None = None,
    **options: Any,
) -> Result:
    """Run work on a connection as a role; with no address set, against the embedded server, started if nobody runs it.

    A tenant that the work is about is refused where it is not there.
    """
    import asyncio

    from ledger.database import connect
    from tallystick.addresses import addresses

    async def connected(url: str) -> Result:
        async with await connect(url, connect_timeout=_CONNECT_SECONDS, **options) as connection:
            if of_tenant is not None:
                await need_tenant(connection, of_tenant)
            return await work(connection)

    with addresses(settings()) as found:
        return asyncio.run(connected(found.url_for(role)))


def with_connections(work: Callable[..., Awaitable[Result]], *roles: str) -> Result:
    """Run work on one connection for each role: what one may not do, the other may."""
    import asyncio
    from contextlib import AsyncExitStack

    from ledger.database import connect
    from tallystick.addresses import addresses

    async def connected(urls: Sequence[str]) -> Result:
        async with AsyncExitStack() as opened:
            connections = [
                await opened.enter_async_context(await connect(url, connect_timeout=_CONNECT_SECONDS)) for url in urls
            ]
            return await work(*connections)

    with addresses(settings()) as found:
        return asyncio.run(connected([found.url_for(role) for role in roles]))


# --- Reading what people type -----------------------------------------------------------------------------------------


def day(text: str) -> date:
    """Read a date such as 2026-12-31."""
    try:
        found = date.fromisoformat(text)
    except ValueError:
        raise CommandError(f"{text!r} is not a date such as 2026-12-31") from None
    return _within_years(text, found)


def whose_month(
    words: Sequence[str] | None, tenant: str | None, of_month: str | None, *, entity: str | None, everybody: bool
) -> tuple[str | None, str]:
    """Return the tenant, None for several, and the month of `[TENANT] MONTH`, of which each may be given as an option too."""
    given = list(words or ())
    if of_month is None and given:
        of_month = given.pop()
    if tenant is None and given:
        tenant = given.pop()
    if given:
        raise CommandError(f"{given[-1]!r} is a word too many: say TENANT MONTH, or MONTH with --entity or --all")
    if (tenant is not None) + (entity is not None) + everybody != 1:
        raise CommandError("say whose month it is: TENANT MONTH, or MONTH with --entity or --all")
    if of_month is None:
        raise CommandError("say which month, such as 2026-11")
    return tenant, of_month


def month(text: str) -> date:
    """Read a month such as 2026-12 as its first day."""
    try:
        first = date.fromisoformat(f"{text}-01")
    except ValueError:
        raise CommandError(f"{text!r} is not a month such as 2026-12") from None
    return _within_years(text, first)


def _within_years(text: str, found: date) -> date:
    from ledger.times import YEARS

    if found.year not in YEARS:
        raise _of_no_year(text)
    return found


def _of_no_year(text: str) -> CommandError:
    from ledger.times import YEARS

    return CommandError(f"{text!r} is not between the years {YEARS.start} and {YEARS.stop}")


def instant(text: str, zone: str) -> int:
    """Read an RFC 3339 time, or a date as its local midnight in a zone; in UTC microseconds."""
    from ledger.registry import start_of
    from ledger.times import is_within_years, parse_rfc3339

    if len(text) == len("2026-12-31"):
        return start_of(day(text), zone)
    try:
        found = parse_rfc3339(text)
    except ValueError:
        raise CommandError(
            f"{text!r} is neither a date such as 2026-12-31 nor a time such as 2026-12-31T00:00:00Z"
        ) from None
    if not is_within_years(found):
        raise _of_no_year(text)
    return found


def moment(text: str | None) -> datetime | None:
    """Read an RFC 3339 time, or a date as its midnight in UTC; nothing where nothing was typed."""
    from ledger.times import from_micros

    return None if text is None else from_micros(instant(text, "UTC"))


def amount(text: str, option: str | None = None) -> Decimal:
    """Read a decimal number; a refusal names the option, where one is given."""
    from ledger.money import parse_amount

    try:
        return parse_amount(text)
    except ValueError as error:
        raise CommandError(f"{option}: {error}" if option else str(error)) from None


def need_reason(reason: str | None) -> str:
    """Return the reason that --commit needs, or say that it is missing."""
    if not (reason or "").strip():
        raise CommandError("--commit needs --reason: the entries carry it")
    assert reason is not None
    return reason


# --- Printing ---------------------------------------------------------------------------------------------------------


def say(text: str) -> None:
    """Print a line for a person."""
    sys.stdout.write(safe(text) + "\n")


def note(text: str) -> None:
    """Print a line beside the result: what reads the result does not see it."""
    sys.stderr.write(safe(text) + "\n")


def safe(text: str) -> str:
    """Return a text with what could steer a terminal, or hide, written as escapes."""
    if text.isprintable():
        return text
    return "".join(mark if mark.isprintable() else _escaped(mark) for mark in text)


_NAMED: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def _escaped(mark: str) -> str:
    code = ord(mark)
    return _NAMED.get(mark) or (
        f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    )


def plain(value: Any) -> Any:
    """Return a value as JSON takes it: decimals as text, times in UTC, records as objects."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if names := getattr(value, "__struct_fields__", None):
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(inner) for inner in value]
    return value


def digits(value: Decimal) -> str:
    """Return the shortest plain digits of an amount."""
    from ledger.price_book import plain as shortest

    return shortest(value)


def cell(value: Any) -> str:
    """Return a value as a table shows it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"
    if isinstance(value, Mapping):
        return safe(" ".join(f"{name}={_inner(inner)}" for name, inner in value.items() if inner is not None))
    if isinstance(value, list | tuple):
        return safe(", ".join(str(plain(inner)) for inner in value))
    return safe(str(plain(value)))


def _inner(value: Any) -> str:
    """Return what stands behind a name: a list of texts by its items, what is nested as JSON."""
    value = plain(value)
    if isinstance(value, list) and not any(isinstance(inner, list | dict) for inner in value):
        return ",".join(str(inner) for inner in value)
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else str(value)


def counted(count: int, one: str) -> str:
    """Return a number of things in words."""
    return f"{count:,} {one}" + ("" if count == 1 else "s")


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    sys.stdout.write(json.dumps(plain(value), ensure_ascii=False, indent=2) + "\n")


def show(
    records: Sequence[Any],
    chosen: Format,
    columns: Mapping[str, Callable[[Any], Any] | None],
    *,
    empty: str = "none",
) -> None:
    """Print records: as JSON whole, as a table the chosen columns.

    Shape: columns map a heading to what it shows of a record; None takes the attribute of that name.
    """
    if chosen is Format.json:
        print_json(records)
        return
    if not records:
        say(empty)
        return
    rows = [
        [(getattr(record, name.replace(" ", "_")) if read is None else read(record)) for name, read in columns.items()]
        for record in records
    ]
    numbers = {index for index in range(len(columns)) if any(isinstance(row[index], int | Decimal) for row in rows)}
    lists = {index for index in range(len(columns)) if any(isinstance(row[index], list | tuple) for row in rows)}
    print_table(list(columns), [[cell(value) for value in row] for row in rows], numbers, lists)


def show_one(record: Any, chosen: Format, extra: Mapping[str, Any] | None = None) -> None:
    """Print one record, a line per field."""
    if chosen is Format.json:
        print_json({**plain(record), **(extra or {})})
        return
    values = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
    print_lines([(name.replace("_", " "), cell(value)) for name, value in {**values, **(extra or {})}.items()])


def print_lines(pairs: Iterable[tuple[str, str]]) -> None:
    """Print names and values, a line each, the values below each other."""
    listed = list(pairs)
    width = max((len(name) for name, _ in listed), default=0)
    for name, value in listed:
        sys.stdout.write(f"{name:<{width}}  {value}".rstrip() + "\n")


def print_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], numbers: Iterable[int] = (), lists: Iterable[int] = ()
) -> None:
    """Print a table where a line can hold a row, else each row as lines of its own: nothing is cut.

    Numbers stand right, so that digits of a kind lie below each other. Where only lists are too long, their items go on
    over several lines of their column, so that one long list does not take a table apart.
    """
    from rich import box
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, markup=False, emoji=False)
    available = console.width if console.is_terminal else _COLUMNS_WITHOUT_TERMINAL
    widths = [
        max(cell_len(heading), *(cell_len(row[index]) for row in rows)) if rows else cell_len(heading)
        for index, heading in enumerate(headings)
    ]
    wrapped = set(lists)
    over = sum(widths) + 3 * len(widths) - available
    if over > 0:
        shrunk = _shrunk(widths, over, {index: _longest_item(headings[index], rows, index) for index in wrapped})
        if shrunk is None:
            print_rows(headings, rows)
            return
        widths = shrunk
    console.width = max(available, 1)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    right = set(numbers)
    for index, heading in enumerate(headings):
        table.add_column(
            Text(heading),
            justify="right" if index in right else "left",
            no_wrap=index not in wrapped,
            width=widths[index] if index in wrapped else None,
        )
    for row in rows:
        table.add_row(*(Text(value) for value in row))
    console.print(table)


def _longest_item(heading: str, rows: Sequence[Sequence[str]], index: int) -> int:
    """Return how narrow a column of lists may be without breaking an item."""
    from rich.cells import cell_len

    return max(cell_len(word) for text in (heading, *(row[index] for row in rows)) for word in text.split(" "))


def _shrunk(widths: Sequence[int], over: int, least: Mapping[int, int]) -> list[int] | None:
    """Return widths that are narrower by so much in all, the widest first; None where that cannot be."""
    found = list(widths)
    for index in sorted(least, key=lambda index: -widths[index]):
        less = min(over, found[index] - least[index])
        found[index] -= less
        over -= less
    return None if over > 0 else found


def print_rows(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print each row as lines of heading and value."""
    for number, row in enumerate(rows, 1):
        sys.stdout.write(f"--- {number} ---\n")
        print_lines(zip(headings, row, strict=True))
