"""The command that holds another source's prices against ours: a report, which changes nothing."""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tallystick.commands.common import (
    CommandError,
    TableFormat,
    digits,
    group,
    instant,
    note,
    now,
    print_json,
    print_table,
    say,
    with_connection,
)
from tallystick.commands.prices import prices

if TYPE_CHECKING:
    from ledger.database import Connection
    from ledger.litellm_map import Map, Report, Row

comparisons = group("Hold another source's prices against ours.")
prices.add_typer(comparisons, name="compare")

_SHOWN_MAX = 40


def register(app: typer.Typer) -> None:
    """The commands of this file hang on the group `prices`."""


@comparisons.command("litellm")
def compare_litellm(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            exists=True,
            dir_okay=False,
            readable=True,
            help="Versions of its map, JSON or gzip, oldest first; the last is compared, the others say since when.",
        ),
    ],
    at: Annotated[
        str | None, typer.Option("--at", help="Against our cards of this day or time; left out, now.")
    ] = None,
    provider: Annotated[str | None, typer.Option("--provider", help="Of this provider of ours only.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Also list what agrees.")] = False,
    format: Annotated[
        TableFormat, typer.Option("--format", help="table for people, csv or json for programs.")
    ] = TableFormat.table,
) -> None:
    """Show where LiteLLM's price map and our book differ, in which fields, and since which of its versions."""
    from ledger import litellm_map

    maps = [_read(file) for file in files]
    moment = now() if at is None else instant(at, "UTC")

    async def work(connection: Connection) -> Report:
        from ledger.books import load_books

        books = await load_books(connection)

        def resolve(of: str, name: str) -> str | None:
            known = books.parties.model(of, name)
            return None if known is None else known.model

        return litellm_map.compare(maps, books.prices, resolve, moment)

    report = with_connection(work)
    rows = [row for row in report.rows if (everything or row.verdict != "agrees") and provider in (None, row.provider)]
    if format is TableFormat.json:
        print_json(
            {
                "versions": report.versions,
                "counts": report.counts,
                "rows": rows,
                "unknown": report.unknown,
                "missing": report.missing,
                "gone": report.gone,
                "unread": report.unread,
                "foreign": report.foreign,
            }
        )
    elif format is TableFormat.csv:
        _write_csv(rows)
    else:
        _print(report, rows)


def _read(file: Path) -> Map:
    from ledger.litellm_map import read_map

    found = re.search(r"\d+(?:\.\d+)+", file.name)
    try:
        return read_map(file, found[0] if found else file.name)
    except (OSError, EOFError, ValueError, AttributeError) as error:
        raise CommandError(f"{file} is not a price map of LiteLLM: {error}") from None


_COLUMNS = (
    "provider",
    "model",
    "key",
    "field",
    "meter",
    "tier",
    "above",
    "per",
    "ours",
    "theirs",
    "verdict",
    "since",
    "before",
)


def _cells(row: Row) -> list[str]:
    values: Iterable[Any] = (getattr(row, name) for name in _COLUMNS)
    return ["" if value is None else digits(value) if isinstance(value, Decimal) else str(value) for value in values]


def _write_csv(rows: list[Row]) -> None:
    written = csv.writer(sys.stdout, lineterminator="\n")
    written.writerow(_COLUMNS)
    written.writerows(_cells(row) for row in rows)


def _print(report: Report, rows: list[Row]) -> None:
    counts = {
        **{name.replace("_", " "): count for name, count in report.counts.items()},
        "their models that are none of ours": len(report.unknown),
        "our models that they lack": len(report.missing),
        "our models that they dropped": len(report.gone),
        "prices in fields that are not read": sum(report.unread.values()),
    }
    print_table(
        [f"litellm {report.versions[-1]}", "count"], [[name, f"{count:,}"] for name, count in counts.items()], [1]
    )
    listed = [row for row in rows if row.verdict == "differs"] or rows
    if not listed:
        return
    say("")
    shown = []
    for row in listed[:_SHOWN_MAX]:
        where = " ".join(filter(None, [row.tier, f"above {row.above:,}" if row.above else None]))
        texts = ["" if value is None else digits(value) for value in (row.ours, row.theirs, row.before)]
        shown.append(
            [
                row.provider,
                row.model,
                row.meter,
                where,
                f"{row.per:,}",
                *texts[:2],
                row.verdict,
                row.since or "",
                texts[2],
            ]
        )
    print_table(
        ["provider", "model", "meter", "where", "per", "ours", "theirs", "verdict", "since", "before"],
        shown,
        [4, 5, 6, 9],
    )
    if len(rows) > len(shown):
        note(f"{len(shown)} of {len(rows):,} rows that do not agree; --format csv has all")
