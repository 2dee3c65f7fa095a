"""Issued documents held against what they are made of: entries, seals, numbers, grants, acts, and their own digests."""

import asyncio
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any, Final

import psycopg

from billing.digests import digest_of
from billing.documents import Document
from billing.rounding import round_money, total
from billing.store import read_documents
from ledger.database import Connection, connect
from ledger.meters import COLUMN_METERS
from ledger.money import EXACT, amount_text
from tallystick.addresses import libpq_url

_PROOFS: Final = Path(__file__).parent / "proofs"
_DOCUMENTS_AT_ONCE: Final = 50
"""Read whole, with all their lines."""


def broken_documents(connection: psycopg.Connection[tuple[Any, ...]], gone: list[date]) -> Iterator[str]:
    """Say what of documents differs from entries, seals, numbers, grants and acts; in the transaction of the caller.

    `gone` are the months whose rows have left the ledger: their seals stand for them.
    """
    months = [
        month
        for (month,) in connection.execute(
            "select posting_period from billing.documents union select posting_period from billing.credited_entries"
            " order by 1"
        )
        if month not in gone
    ]
    texts = {
        "gone": _dates(gone),
        "months": _dates(months),
        "meter_sums": ",\n        ".join(f"coalesce(sum(e.{meter}), 0) as {meter}" for meter in COLUMN_METERS),
        "meter_values": ", ".join(f"('{meter}', g.{meter})" for meter in COLUMN_METERS),
    }
    yield from _selected(connection, "documents.sql", texts)
    if months:
        # By hashes: the planner takes the groups for nearly as many as the rows, and would sort them all.
        connection.execute("set local enable_sort = off")
        yield from _selected(connection, "document_lines.sql", texts)
        connection.execute("set local enable_sort = on")


def _dates(months: list[date]) -> str:
    return f"array[{', '.join(repr(month.isoformat()) for month in months)}]::date[]"


def _selected(connection: psycopg.Connection[tuple[Any, ...]], name: str, texts: dict[str, str]) -> Iterator[str]:
    statement = (_PROOFS / name).read_text()
    for key, text in texts.items():
        statement = statement.replace(f"{{{key}}}", text)
    for (text,) in connection.execute(statement.encode()).fetchall():
        yield text


def broken_digests(url: str, snapshot: str) -> list[str]:
    """Read every document as whoever shows it does, in a snapshot that another connection holds; say which is not what was issued."""
    return asyncio.run(_broken_digests(url, snapshot))


async def _broken_digests(url: str, snapshot: str) -> list[str]:
    found: list[str] = []
    async with await connect(libpq_url(url)) as connection:
        await connection.execute("begin isolation level repeatable read read only")
        await connection.execute(f"set transaction snapshot '{snapshot}'".encode())
        cursor = await connection.execute(
            "select document_id, format('%s %s of tenant %s', replace(kind, '_', ' '), number, tenant_id)"
            " from billing.documents order by entity_id, kind, number_value"
        )
        while page := await cursor.fetchmany(_DOCUMENTS_AT_ONCE):
            found += await _broken_page(connection, page)
    return found


async def _broken_page(connection: Connection, page: list[tuple[str, str]]) -> list[str]:
    try:
        documents = await read_documents(connection, [document_id for document_id, _ in page])
    except (ValueError, TypeError) as error:
        if len(page) > 1:
            return [text for each in page for text in await _broken_page(connection, [each])]
        return [f"{page[0][1]} does not add up: {error}"]
    named = dict(page)
    return [f"{named[each.document_id or '']}{text}" for each in documents for text in _faults(each)]


def _faults(document: Document) -> Iterator[str]:
    if digest_of(document) != document.digest:
        yield f" is not what was issued: its content does not have its digest {document.digest[:16]}"
    if document.kind == "credit_note":
        # Of the last part exactly what is left is given back, whatever it rounds to.
        return
    for tax in document.taxes:
        exact = total(line.exact_amount for line in document.lines if line.tax_category == tax.category)
        base = round_money(exact, document.currency)
        if tax.base != base:
            yield f", tax {tax.category}: a base of {amount_text(tax.base)}, its lines round to {amount_text(base)}"
        amount = round_money(EXACT.multiply(tax.base, tax.rate), document.currency)
        if tax.amount != amount:
            yield (
                f", tax {tax.category}: {amount_text(tax.amount)} at {amount_text(tax.rate)} of {amount_text(tax.base)},"
                f" which is {amount_text(amount)}"
            )
