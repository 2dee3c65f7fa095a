"""Issued documents in the database: written once, read back as they were."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import date, datetime
from decimal import Decimal
from functools import lru_cache
from itertools import islice
from typing import Any, Final

from psycopg.rows import class_row, dict_row

from billing.documents import CreditApplied, Document, Line, Party, Tax
from billing.rounding import total
from ledger.database import Connection
from ledger.entries import NULL, escaped
from ledger.errors import Unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """A document with what its rows say besides what is printed."""

    document: Document
    entity_id: str
    number_value: int
    revision: int | None
    close_number: int | None
    issued_with_document_id: str | None
    actor: str
    second_person: str | None


_ROWS_AT_ONCE: Final = 1000
_LINE: Final = Line.__struct_fields__
_DOCUMENT: Final = (
    "document_id", "kind", "basis", "entity_id", "number_value", "number", "tenant_id", "posting_period", "currency",
    "revision", "previous_revision", "close_number", "period_start", "period_end", "time_zone", "language", "issuer",
    "customer", "exact_subtotal", "subtotal", "tax_total", "total", "credit_total", "amount_due", "due_date", "digest",
    "corrects_document_id", "issued_with_document_id", "reason", "notes", "actor", "second_person", "issued_at",
)  # fmt: skip


async def insert_documents(connection: Connection, issued: Sequence[Issued]) -> None:
    """Write documents with their lines, taxes and credits, in the order of their numbers."""
    await _copy(connection, f"documents ({', '.join(_DOCUMENT)})", map(_copy_document, issued))
    await _copy(
        connection,
        f"document_lines (document_id, {', '.join(_LINE)})",
        (_copy_line(str(each.document.document_id), line) for each in issued for line in each.document.lines),
    )
    await _copy(
        connection,
        "document_taxes (document_id, category, label, rate, exact_base, base, amount)",
        (_copy_tax(each.document, tax) for each in issued for tax in each.document.taxes),
    )
    if any(each.document.credits for each in issued):
        await _copy(
            connection,
            "document_credits (document_id, place, grant_id, description, amount)",
            (
                _row(each.document.document_id, place, credit.grant_id, credit.description, credit.amount)
                for each in issued
                for place, credit in enumerate(each.document.credits, 1)
            ),
        )


async def _copy(connection: Connection, target: str, rows: Iterator[str]) -> None:
    async with connection.cursor().copy(f"copy billing.{target} from stdin") as copy:
        # The server takes some in while the next are made; each write is a turn of the event loop.
        while some := "".join(islice(rows, _ROWS_AT_ONCE)):
            await copy.write(some)


def _row(*values: str | Decimal | date | int | None) -> str:
    """Return a row as COPY takes it."""
    return "\t".join([escaped(each) if isinstance(each, str) else _plain(each) for each in values]) + "\n"


def _copy_document(each: Issued) -> str:
    document = each.document
    previous = None if each.revision is None or each.revision == 1 else each.revision - 1
    return _row(
        document.document_id, document.kind, document.basis, each.entity_id, each.number_value, document.number,
        document.tenant_id, document.posting_period, document.currency, each.revision, previous, each.close_number,
        document.period_start, document.period_end, document.time_zone, document.language, _party(document.issuer),
        _party(document.customer), document.exact_subtotal, document.subtotal, document.tax_total, document.total,
        document.credit_total, document.amount_due, document.due_date, document.digest, document.corrects_document_id,
        each.issued_with_document_id, document.reason, _array(document.notes), each.actor, each.second_person,
        document.issued_at,
    )  # fmt: skip


def _array(texts: Iterable[str]) -> str:
    quoted = [text.replace("\\", "\\\\").replace('"', '\\"') for text in texts]
    return "{" + ",".join([f'"{text}"' for text in quoted]) + "}"


def _copy_tax(document: Document, tax: Tax) -> str:
    exact = total(line.exact_amount for line in document.lines if line.tax_category == tax.category)
    return _row(document.document_id, tax.category, tax.label, tax.rate, exact, tax.base, tax.amount)


def _copy_line(document_id: str, line: Line) -> str:
    """Return a line as COPY takes it, its fields in order."""
    service = _copied(
        line.kind, line.description, line.service_start, line.service_end, line.feature, line.provider, line.model,
        line.meter,
    )  # fmt: skip
    # Mostly one value: what was charged is what is billed.
    exact = str(line.exact_amount)
    charged = exact if line.charged_amount is line.exact_amount else _plain(line.charged_amount)
    return (
        f"{document_id}\t{line.line_no}\t{service}\t{_plain(line.quantity)}\t{_plain(line.unit_price)}\t{_plain(line.per)}"
        f"\t{exact}\t{line.amount}\t{_copied(line.tax_category, line.item_id)}\t{charged}\t{_copied(line.charged_currency)}"
        f"\t{_plain(line.exchange_rate)}\t{_plain(line.exchange_rate_at)}\t{_plain(line.corrects_line_no)}\n"
    )


def _plain(value: Decimal | date | int | None) -> str:
    return NULL if value is None else str(value)


@lru_cache(maxsize=8192)
def _copied(*values: str | date | None) -> str:
    # The same names and days stand on many lines of a run.
    return "\t".join([escaped(None if each is None else str(each)) for each in values])


@lru_cache(maxsize=64)
def _party(party: Party) -> str:
    # One issuer stands on most documents of a run.
    return json.dumps({each.name: getattr(party, each.name) for each in fields(party)})


# --- Reading ----------------------------------------------------------------------------------------------------------


async def find_document(connection: Connection, name: str) -> Document:
    """Return a document by its id or its number; a number that two entities gave is refused. Errors: Unknown."""
    cursor = await connection.execute(
        "select document_id from billing.documents where document_id = %(name)s or number = %(name)s", {"name": name}
    )
    found = await cursor.fetchall()
    if len(found) != 1:
        raise Unknown("document" if not found else "document of one entity alone with number", name)
    (document,) = await read_documents(connection, [found[0][0]])
    return document


async def read_documents(connection: Connection, document_ids: Sequence[str]) -> list[Document]:
    """Return documents whole, in the order of their ids as given."""
    wanted = list(document_ids)
    async with connection.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(
            """
            select
                d.*,
                c.number as corrects_number,
                exists (select from billing.voids as v where v.document_id = d.document_id) as is_voided
            from billing.documents as d
            left join billing.documents as c on c.document_id = d.corrects_document_id
            where d.document_id = any(%s)
            """,
            [wanted],
        )
        heads = {row["document_id"]: row for row in await cursor.fetchall()}
        lines: dict[str, list[Line]] = {}
        await cursor.execute(
            f"select document_id, {', '.join(_LINE)} from billing.document_lines where document_id = any(%s)"
            " order by document_id, line_no",
            [wanted],
        )
        for row in await cursor.fetchall():
            lines.setdefault(row.pop("document_id"), []).append(Line(**row))
        taxes: dict[str, list[Tax]] = {}
        await cursor.execute(
            "select document_id, category, label, rate, base, amount from billing.document_taxes"
            # As documents are made: by the letters, whatever the database's collation says.
            ' where document_id = any(%s) order by document_id, category collate "C"',
            [wanted],
        )
        for row in await cursor.fetchall():
            taxes.setdefault(row.pop("document_id"), []).append(Tax(**row))
        credits: dict[str, list[CreditApplied]] = {}
        await cursor.execute(
            "select document_id, grant_id, description, amount from billing.document_credits"
            " where document_id = any(%s) order by document_id, place",
            [wanted],
        )
        for row in await cursor.fetchall():
            credits.setdefault(row.pop("document_id"), []).append(CreditApplied(**row))
    return [
        _from_row(heads[each], lines.get(each, []), taxes.get(each, []), credits.get(each, []))
        for each in wanted
        if each in heads
    ]


_PLAIN: Final = (
    "kind", "document_id", "number", "issued_at", "tenant_id", "posting_period", "period_start", "period_end",
    "time_zone", "currency", "language", "exact_subtotal", "subtotal", "tax_total", "total", "credit_total",
    "amount_due", "due_date", "digest", "corrects_number", "corrects_document_id", "basis", "reason",
)  # fmt: skip


def _from_row(
    row: dict[str, Any], lines: Sequence[Line], taxes: Sequence[Tax], credits: Sequence[CreditApplied]
) -> Document:
    return Document(
        **{name: row[name] for name in _PLAIN},
        state="voided" if row["is_voided"] else "issued",
        issuer=_party_from_row(row["issuer"]),
        customer=_party_from_row(row["customer"]),
        lines=tuple(lines),
        taxes=tuple(taxes),
        credits=tuple(credits),
        notes=tuple(row["notes"]),
    )


def _party_from_row(kept: dict[str, Any]) -> Party:
    return Party(**{**kept, "address": tuple(kept["address"])})


@dataclass(frozen=True, slots=True)
class DocumentRecord:
    """A document in a list."""

    document_id: str
    kind: str
    basis: str
    number: str
    state: str
    tenant_id: str
    posting_period: date
    currency: str
    subtotal: Decimal
    tax_total: Decimal
    total: Decimal
    credit_total: Decimal
    amount_due: Decimal
    issued_at: datetime
    due_date: date | None
    corrects_number: str | None


async def list_documents(
    connection: Connection,
    *,
    tenant_ids: Iterable[str] | None = None,
    month: date | None = None,
    kind: str | None = None,
    limit: int | None = None,
) -> list[DocumentRecord]:
    """List documents by month, tenant and number; voided ones are in it and say so."""
    async with connection.cursor(row_factory=class_row(DocumentRecord)) as cursor:
        await cursor.execute(
            """
            select
                d.document_id, d.kind, d.basis, d.number,
                case when exists (select from billing.voids as v where v.document_id = d.document_id)
                    then 'voided' else 'issued' end as state,
                d.tenant_id, d.posting_period, d.currency::text, d.subtotal, d.tax_total, d.total, d.credit_total,
                d.amount_due, d.issued_at, d.due_date, c.number as corrects_number
            from billing.documents as d
            left join billing.documents as c on c.document_id = d.corrects_document_id
            where
                (%(tenant_ids)s::text[] is null or d.tenant_id = any(%(tenant_ids)s))
                and (%(month)s::date is null or d.posting_period = %(month)s)
                and (%(kind)s::text is null or d.kind = %(kind)s)
            order by d.posting_period, d.tenant_id, d.kind desc, d.number_value
            limit %(limit)s
            """,
            {
                "tenant_ids": None if tenant_ids is None else list(tenant_ids),
                "month": month,
                "kind": kind,
                "limit": limit,
            },
        )
        return await cursor.fetchall()
