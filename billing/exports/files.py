"""A document as a file, in each format that there is: what it is served as and what its name ends in, and its bytes. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from billing.documents import Document
    from billing.exports.focus import UsageCharge


@dataclass(frozen=True, slots=True)
class FileFormat:
    """A format of a document's file."""

    suffix: str
    media_type: str
    has_charges: bool = False
    """Whether it shows usage by meter, day and price, which `focus_source.read_charges` reads."""


FORMATS: Final[Mapping[str, FileFormat]] = {
    "pdf": FileFormat("pdf", "application/pdf"),
    "csv": FileFormat("csv", "text/csv; charset=utf-8"),
    "json": FileFormat("json", "application/json"),
    "focus": FileFormat("parquet", "application/vnd.apache.parquet", has_charges=True),
    "focus-csv": FileFormat("csv", "text/csv; charset=utf-8", has_charges=True),
}


def to_file(
    document: Document,
    format: str,
    charges: Sequence[UsageCharge] = (),
    *,
    font_folders: Sequence[Path] = (),
    with_exact: bool = False,
) -> bytes:
    """Return a document's bytes in one of FORMATS; `charges` are of those that have them, fonts and exact amounts of a PDF.

    Errors: DocumentNotPrintable, ExportRefused.
    """
    # What makes one format is loaded for that format: Typst is of no use to a CSV.
    if format == "pdf":
        from billing.exports.pdf import to_pdf

        return to_pdf(document, font_folders=font_folders, with_exact=with_exact)
    if format == "csv":
        from billing.exports.csv_text import to_csv

        return to_csv([document]).encode()
    if format == "json":
        from billing.exports.json_text import to_json

        return to_json(document).encode()
    from billing.exports.focus import focus_frame, focus_rows, to_focus_csv, to_parquet

    frame = focus_frame(focus_rows(document, charges))
    return to_parquet(frame) if format == "focus" else to_focus_csv(frame).encode()
