"""Voiding: a row that says an invoice no longer counts. The invoice stays as it was; its month may be issued again."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import date

from billing.documents import Document
from billing.errors import VoidRefused
from billing.months import lock_periods, lock_tenants
from billing.store import find_document, read_documents
from ledger import failpoints
from ledger.approvals import Awaiting, second_person
from ledger.database import Connection, record_act
from ledger.money import EXACT, amount_text
from quotas.burning import book_burn


@dataclass(frozen=True, slots=True)
class Voided:
    """What a void did."""

    document_id: str
    number: str
    tenant_id: str
    month: date
    credit_notes: Sequence[str]
    """Numbers of what was issued with it, and is voided with it."""
    was_void: bool
    """It had been voided before; nothing was done now."""


async def void_invoice(
    connection: Connection, actor: str, name: str, *, reason: str, needed: Collection[str] = ()
) -> Voided | Awaiting:
    """Void an invoice by id or number, with the credit notes that its month owed back; what it burnt of grants is given back.

    Raises VoidRefused where a credit note corrects it, Unknown where there is none.
    """
    if not reason.strip():
        raise VoidRefused("voiding an invoice needs a reason")
    async with connection.transaction():
        found = await find_document(connection, name)
        if found.kind != "invoice":
            raise VoidRefused(f"{found.number} is a credit note: only invoices are voided")
        # As issuing does: nobody opens or issues the month meanwhile, and nobody corrects this invoice.
        await lock_tenants(connection, [found.tenant_id])
        await lock_periods(connection, found.tenant_id, [found.posting_period])
        with_it = await _issued_with(connection, found)
        (invoice,) = await read_documents(connection, [found.document_id or ""])
        numbers = [note.number or "" for note in with_it]
        if invoice.state == "voided":
            return Voided(
                invoice.document_id or "",
                invoice.number or "",
                invoice.tenant_id,
                invoice.posting_period,
                numbers,
                True,
            )
        cursor = await connection.execute(
            "select d.number from billing.documents as d where d.corrects_document_id = %s"
            " and not exists (select from billing.voids as v where v.document_id = d.document_id) order by d.number",
            [invoice.document_id],
        )
        correcting = [row[0] for row in await cursor.fetchall()]
        if correcting:
            raise VoidRefused(f"invoice {invoice.number} stays: credit note {', '.join(correcting)} corrects it")
        detail = {
            "document_id": invoice.document_id,
            "number": invoice.number,
            "tenant_id": invoice.tenant_id,
            "month": f"{invoice.posting_period:%Y-%m}",
            "total": amount_text(invoice.total),
        }
        agreed = await second_person(connection, needed, "invoices.void", detail, actor=actor, reason=reason)
        if isinstance(agreed, Awaiting):
            return agreed
        for document in (invoice, *with_it):
            await _void(connection, actor, document, reason, agreed.second_person)
        failpoints.hit("void.before_commit")
        await record_act(
            connection, actor, "invoices.void", {**detail, "credit_notes": numbers}, reason, agreed.second_person
        )
    return Voided(
        invoice.document_id or "", invoice.number or "", invoice.tenant_id, invoice.posting_period, numbers, False
    )


async def _issued_with(connection: Connection, invoice: Document) -> list[Document]:
    cursor = await connection.execute(
        "select document_id from billing.documents where issued_with_document_id = %s order by number_value",
        [invoice.document_id],
    )
    return await read_documents(connection, [row[0] for row in await cursor.fetchall()])


async def _void(connection: Connection, actor: str, document: Document, reason: str, second: str | None) -> None:
    await connection.execute(
        "insert into billing.voids (document_id, tenant_id, posting_period, currency, revision, reason, actor, second_person)"
        " select document_id, tenant_id, posting_period, currency, revision, %s, %s, %s from billing.documents"
        " where document_id = %s",
        [reason, actor, second, document.document_id],
    )
    for credit in document.credits:
        await book_burn(
            connection,
            actor,
            credit.grant_id,
            EXACT.minus(credit.amount) if document.kind == "credit_note" else credit.amount,
            month=document.posting_period,
            key=f"void:{document.document_id}:{credit.grant_id}",
            reason=f"void of {document.number}",
        )
