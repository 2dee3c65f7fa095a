"""Commands that write documents as files: one, or each of a month, as PDF, CSV, JSON or FOCUS; a month as one FOCUS file."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tallystick.commands.bars import bar
from tallystick.commands.common import (
    CommandError,
    OfTenantOption,
    counted,
    group,
    month,
    need_tenant,
    note,
    settings,
    with_connection,
)
from tallystick.commands.invoices import invoice

if TYPE_CHECKING:
    from billing.documents import Document
    from billing.exports.focus import UsageCharge
    from ledger.database import Connection

focus = group("FOCUS 1.2: what tenants were billed, for those who compare bills.")


class DocumentFormat(StrEnum):
    pdf = "pdf"
    csv = "csv"
    json = "json"
    parquet = "focus"
    focus_csv = "focus-csv"


class FocusFormat(StrEnum):
    parquet = "parquet"
    csv = "csv"


OutputOption = Annotated[
    Path | None, typer.Option("--output", help="Write to this file; left out, or -, to standard output.")
]


def register(app: typer.Typer) -> None:
    """Add the group of this file; `export` stands among the commands of invoices."""
    app.add_typer(focus, name="focus")


@invoice.command("export")
def export_document(
    document: Annotated[
        str | None, typer.Argument(metavar="[DOCUMENT]", help="Its number or id; left out with --month.")
    ] = None,
    format: Annotated[
        DocumentFormat,
        typer.Option("--format", help="pdf for people; csv, json; focus is Parquet, focus-csv the same as CSV."),
    ] = DocumentFormat.pdf,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            help="Write to this file, or, with --month, into this folder; left out, or -, to standard output.",
        ),
    ] = None,
    of_month: Annotated[
        str | None, typer.Option("--month", help="Each document of this month that counts, into a folder.")
    ] = None,
    tenant: OfTenantOption = None,
    exact: Annotated[bool, typer.Option("--exact", help="PDF: with a list of the amounts before rounding.")] = False,
) -> None:
    """Write issued invoices and credit notes as files: the same document gives the same bytes."""
    from billing.exports.files import FORMATS
    from billing.exports.names import file_names
    from billing.store import find_document, list_documents, read_documents

    if exact and format is not DocumentFormat.pdf:
        raise CommandError("--exact is for --format pdf: the other formats have exact amounts anyway")
    if (document is None) == (of_month is None):
        raise CommandError("say which: a DOCUMENT, or --month 2026-11")
    output = _unless_dash(output)
    if of_month is None:
        if tenant is not None:
            raise CommandError("--tenant is for --month: a document is of one tenant anyway")
        _check_output(output, is_binary=format in (DocumentFormat.pdf, DocumentFormat.parquet))

        async def one(connection: Connection) -> bytes:
            return await _file(connection, await find_document(connection, document or ""), format, exact=exact)

        _write(with_connection(one), output)
        return
    if output is None:
        raise CommandError("--month writes a file for each document: name a folder with --output")
    first, folder, suffix = month(of_month), output, FORMATS[format].suffix

    async def many(connection: Connection) -> int:
        await need_tenant(connection, tenant)
        listed = await list_documents(connection, tenant_ids=None if tenant is None else [tenant], month=first)
        wanted = [each for each in listed if each.state != "voided"]
        names = file_names(wanted)
        _make_folder(folder)
        with bar(f"documents {of_month}", "documents", len(wanted)) as move:
            for each, name in zip(wanted, names, strict=True):
                (found,) = await read_documents(connection, [each.document_id])
                _write(await _file(connection, found, format, exact=exact), folder / f"{name}.{suffix}")
                move(1)
        return len(wanted)

    note(f"{counted(with_connection(many), 'document')} of {first:%Y-%m} in {folder}")


async def _file(connection: Connection, found: Document, format: DocumentFormat, *, exact: bool) -> bytes:
    from billing.exports.files import FORMATS, to_file
    from billing.exports.focus_source import read_charges

    folder = settings().fonts
    charges: Sequence[UsageCharge] = ()
    if FORMATS[format].has_charges:
        async with connection.transaction():
            await connection.execute("set transaction isolation level repeatable read, read only")
            charges = await read_charges(connection, found)
    return to_file(found, format, charges, font_folders=[] if folder is None else [folder], with_exact=exact)


@focus.command("export")
def export_month(
    of_month: Annotated[str, typer.Option("--month", help="Of documents of this month, such as 2026-11.")],
    tenant: OfTenantOption = None,
    format: Annotated[
        FocusFormat, typer.Option("--format", help="parquet has types; csv is for people.")
    ] = FocusFormat.parquet,
    output: OutputOption = None,
) -> None:
    """Write all invoices and credit notes of a month that count as one FOCUS file; voided ones are left out."""
    from billing.store import list_documents, read_documents

    first, output = month(of_month), _unless_dash(output)
    _check_output(output, is_binary=format is FocusFormat.parquet)

    async def read(connection: Connection) -> tuple[int, bytes]:
        await need_tenant(connection, tenant)
        listed = await list_documents(connection, tenant_ids=None if tenant is None else [tenant], month=first)
        ids = [each.document_id for each in listed if each.state != "voided"]
        found = await read_documents(connection, ids)
        return len(found), await _focus_file(connection, found, format)

    count, content = with_connection(read)
    _write(content, output)
    note(f"{counted(count, 'document')} of {first:%Y-%m}")


async def _focus_file(connection: Connection, documents: Sequence[Document], format: FocusFormat) -> bytes:
    """Return documents as one FOCUS file, all read in one snapshot."""
    from billing.exports.focus import focus_frame, focus_rows, to_focus_csv, to_parquet
    from billing.exports.focus_source import read_charges

    rows = []
    with bar("documents", "documents", len(documents)) as move:
        async with connection.transaction():
            await connection.execute("set transaction isolation level repeatable read, read only")
            for each in documents:
                rows += focus_rows(each, await read_charges(connection, each))
                move(1)
    frame = focus_frame(rows)
    return to_parquet(frame) if format is FocusFormat.parquet else to_focus_csv(frame).encode()


def _unless_dash(output: Path | None) -> Path | None:
    return None if output == Path("-") else output


def _check_output(output: Path | None, *, is_binary: bool) -> None:
    """Refuse to write what is no text to a terminal, before any work is done."""
    if output is None and is_binary and sys.stdout.isatty():
        raise CommandError("this is no text for a terminal: name a file with --output")


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(f"{folder}: {error.strerror}") from None


def _write(content: bytes, output: Path | None) -> None:
    if output is None:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return
    try:
        output.write_bytes(content)
    except OSError as error:
        raise CommandError(f"{output}: {error.strerror}") from None
