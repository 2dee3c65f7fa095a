"""Invoices and credit notes over HTTP: drafted, issued, voided and given back by operators; read by the tenant too."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal
from urllib.parse import quote

import msgspec
from fastapi import APIRouter
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from api.admin import act, answered, body_of, look, require
from api.documents import Room, operation, path_parameter, query_parameter, with_files
from api.errors import InvalidRequest, TenantNotFound
from api.pages import limit_of
from api.parties import Act, Month, Reason, month_of_text
from api.services import services_of
from billing import credit_notes, issuing, voiding
from billing.credit_notes import Credited
from billing.documents import Document
from billing.exports.files import FORMATS, to_file
from billing.exports.names import file_names
from billing.issuing import Outcome, Terms, Waiting
from billing.months import Live
from billing.store import DocumentRecord, find_document, list_documents
from ledger.api_keys import ApiKey
from ledger.approvals import Awaiting
from ledger.database import Connection
from ledger.errors import Unknown
from ledger.money import parse_amount

if TYPE_CHECKING:
    from billing.exports.focus import UsageCharge

router = APIRouter()

_READ: Final = "invoices:read"
_WRITE: Final = "invoices:write"

AmountText = Annotated[str, Meta(pattern=r"^[0-9]{1,30}(\.[0-9]{1,6})?$", description="Decimal text above zero.")]
Name = Annotated[str, Meta(min_length=1, max_length=200, description="The invoice's number or id.")]


class DocumentsReply(Struct):
    """Issued documents of a tenant; voided ones are among them and say so."""

    tenant_id: str
    documents: Annotated[Sequence[DocumentRecord], Meta(description="By month and number.")]


class DocumentReply(Struct):
    """A document as it was issued, whole."""

    document: Document


class DraftReply(Struct):
    """What would be issued in one currency, and what keeps it from that."""

    document: Document
    credit_notes: Annotated[Sequence[Document], Meta(description="Issued with it: what the month owes back.")]
    refusals: Annotated[Sequence[str], Meta(description="What has to be mended first.")]
    bounds: Annotated[
        Sequence[str], Meta(description="What is larger than is issued unseen; `accept_bounds` accepts it.")
    ]


class DraftsReply(Struct):
    """A tenant's month, drafted: nothing is stored."""

    tenant_id: str
    month: str
    drafts: Sequence[DraftReply]
    live: Annotated[Mapping[str, Live], Meta(description="Invoices of it that count, by currency.")]
    refusals: Annotated[Sequence[str], Meta(description="What keeps the whole month from being issued.")]


class InvoiceIssue(Act, kw_only=True):
    """Whose month to issue."""

    tenant_id: str
    month: Month
    digests: Annotated[
        dict[str, str] | None,
        Meta(description="By currency: of the drafts that you looked at; anything else is refused."),
    ] = None
    accept_bounds: Annotated[bool, Meta(description="Although it is larger than is issued unseen; takes a reason.")] = (
        False
    )


class IssueReply(Struct):
    """What became of a tenant's month, by currency. Issued again, it answers with what was issued."""

    outcomes: Sequence[Outcome]


class InvoiceVoid(Act, kw_only=True):
    """An invoice that is to count no longer."""

    invoice: Name
    reason: Reason  # type: ignore[assignment]


class VoidReply(Struct):
    """What became of it."""

    outcome: Annotated[
        Literal["voided", "voided_before", "awaiting"],
        Meta(description="awaiting: a second person has to agree, then send it again."),
    ]
    number: str | None
    credit_notes: Annotated[Sequence[str], Meta(description="What its month had given back, voided with it.")]
    approval_id: int | None


class UsageCredit(Act, kw_only=True):
    """Usage of an invoice that was corrected since."""

    invoice: Name
    request_ids: Annotated[list[str] | None, Meta(description="Only what corrects these requests; absent, all.")] = None
    reason: Reason  # type: ignore[assignment]
    commit: Annotated[bool, Meta(description="Issue it; without this, only say what it would be.")] = False


class CreditedLine(Struct, kw_only=True, forbid_unknown_fields=True):
    """A line of the invoice, whole or in part."""

    line_no: Annotated[int, Meta(ge=1, le=1_000_000)]
    amount: Annotated[AmountText | None, Meta(description="Absent: what is left of it.")] = None


class CommercialCredit(Act, kw_only=True):
    """Lines of an invoice, or an amount of it before tax, whatever was used."""

    invoice: Name
    lines: Annotated[list[CreditedLine] | None, Meta(description="Or `amount`; one at least.")] = None
    amount: AmountText | None = None
    reason: Reason  # type: ignore[assignment]
    commit: Annotated[bool, Meta(description="Issue it; without this, only say what it would be.")] = False


class CreditReply(Struct):
    """A credit note, issued or as it would be."""

    outcome: Annotated[
        Literal["preview", "issued", "awaiting"],
        Meta(description="awaiting: a second person has to agree, then send it again."),
    ]
    document: Document | None
    entry_count: Annotated[int, Meta(description="Rows of the ledger that it is made of; none of a commercial one.")]
    approval_id: int | None


class WaitingReply(Struct):
    """Months that something keeps from being invoiced, with the newest reasons."""

    waiting: Sequence[Waiting]


# --- Examples ---------------------------------------------------------------------------------------------------------

_PARTY: Final = {
    "party_id": "t-alpha", "name": "Alpha Ltd", "address": ["1 High Street", "London"], "country": "GB", "tax_id": None,
    "email": None,
}  # fmt: skip
_LINE: Final[dict[str, Any]] = {
    "line_no": 1, "kind": "usage", "description": "gpt-5-mini: uncached input tokens", "service_start": "2026-11-01",
    "service_end": "2026-12-01", "feature": "chat", "provider": "openai", "model": "gpt-5-mini",
    "meter": "uncached_input_tokens", "quantity": "40000000", "unit_price": "0.25", "per": 1000000, "exact_amount": "10.00",
    "amount": "10.00", "tax_category": "standard", "item_id": None, "charged_amount": "10.00", "charged_currency": "USD",
    "exchange_rate": None, "exchange_rate_at": None, "corrects_line_no": None,
}  # fmt: skip
_DOCUMENT: Final[dict[str, Any]] = {
    "kind": "invoice", "document_id": "inv_5ad2b0c3f1e4a9c21b0f3c77", "number": "NW-000001",
    "issued_at": "2026-12-04T09:00:00Z", "state": "issued", "issuer": {**_PARTY, "party_id": "entity-1", "name": "Northwind GmbH"},
    "customer": _PARTY, "tenant_id": "t-alpha", "posting_period": "2026-11-01", "period_start": "2026-11-01",
    "period_end": "2026-12-01", "time_zone": "Europe/London", "currency": "USD", "language": "en", "lines": [_LINE],
    "taxes": [{"category": "standard", "label": "VAT 20 %", "rate": "0.20", "base": "10.00", "amount": "2.00"}],
    "credits": [], "exact_subtotal": "10.00", "subtotal": "10.00", "tax_total": "2.00", "total": "12.00",
    "credit_total": "0", "amount_due": "12.00", "due_date": "2026-12-18",
    "digest": "daf7aa0a98b48582e4b22107fe4fdb99162cfe68e12696a255c9fe4639c46105", "corrects_number": None,
    "corrects_document_id": None, "basis": "period", "reason": None, "notes": [],
}  # fmt: skip
_RECORD: Final = {
    "document_id": "inv_5ad2b0c3f1e4a9c21b0f3c77", "kind": "invoice", "basis": "period", "number": "NW-000001",
    "state": "issued", "tenant_id": "t-alpha", "posting_period": "2026-11-01", "currency": "USD", "subtotal": "10.00",
    "tax_total": "2.00", "total": "12.00", "credit_total": "0", "amount_due": "12.00", "issued_at": "2026-12-04T09:00:00Z",
    "due_date": "2026-12-18", "corrects_number": None,
}  # fmt: skip
_OUTCOME: Final[dict[str, Any]] = {
    "tenant_id": "t-alpha", "month": "2026-11-01", "result": "issued", "currency": "USD",
    "document_id": "inv_5ad2b0c3f1e4a9c21b0f3c77", "number": "NW-000001", "total": "12.00", "amount_due": "12.00",
    "credit_notes": [], "reasons": [], "approval_id": None,
}  # fmt: skip
_NOTE: Final = {
    **_DOCUMENT, "kind": "credit_note", "document_id": "cn_77c30f1b2ac9a4e1f3c0b2da", "number": "NW-C-000001",
    "due_date": None, "corrects_number": "NW-000001", "corrects_document_id": "inv_5ad2b0c3f1e4a9c21b0f3c77",
    "basis": "commercial", "reason": "An outage on the 5th",
    "lines": [{**_LINE, "kind": "credit", "quantity": None, "unit_price": None, "per": None, "charged_amount": None,
               "charged_currency": None, "corrects_line_no": 1}],
}  # fmt: skip


# --- Reading ----------------------------------------------------------------------------------------------------------


@router.get(
    "/v1/tenants/{tenant_id}/documents",
    openapi_extra=operation(
        "listTenantDocuments", "Invoices and credit notes of a tenant", tag="invoices", scope=_READ, answer=DocumentsReply,
        example={"tenant_id": "t-alpha", "documents": [_RECORD]},
        problems=("tenant-not-found", "invalid-request", "database-away"),
        parameters=(
            path_parameter("tenant_id", "Whose.", "t-alpha"),
            query_parameter("month", "Of this month, such as 2026-11."),
            query_parameter("limit", "How many at most.", {"type": "integer", "minimum": 1}),
        ),
    ),
    response_model=None,
)  # fmt: skip
async def list_tenant_documents(request: Request) -> Response:
    """Answer with what was issued to a tenant."""
    key = await require(request, _READ)
    tenant_id = request.path_params["tenant_id"]
    if not key.may_read(tenant_id) or "\0" in tenant_id:
        raise TenantNotFound("there is no such tenant, or it is not this key's to see")
    month = request.query_params.get("month")
    first = None if month is None else month_of_text("month", month)
    limit = limit_of(request.query_params.get("limit"), services_of(request).config.page_rows_max)

    async def read(connection: Connection) -> list[DocumentRecord] | None:
        cursor = await connection.execute("select from ledger.tenants where tenant_id = %s", [tenant_id])
        if await cursor.fetchone() is None:
            return None
        return await list_documents(connection, tenant_ids=[tenant_id], month=first, limit=limit)

    found = await look(request, read)
    if found is None:
        raise TenantNotFound("there is no such tenant, or it is not this key's to see")
    return answered(DocumentsReply(tenant_id, found), headers=_PRIVATE)


_PRIVATE: Final = {"cache-control": "private, no-cache", "vary": "authorization"}


@router.get(
    "/v1/documents/{document}",
    openapi_extra=operation(
        "showDocument", "An invoice or a credit note, whole", tag="invoices", scope=_READ, answer=DocumentReply,
        example={"document": _DOCUMENT}, problems=("unknown-name", "database-away"),
        parameters=(path_parameter("document", "Its number or id.", "NW-000001"),),
    ),
    response_model=None,
)  # fmt: skip
async def show_document(request: Request) -> Response:
    """Answer with a document as it was issued."""
    return answered(DocumentReply(await _document(request, await require(request, _READ))), headers=_PRIVATE)


async def _document(request: Request, key: ApiKey) -> Document:
    """Return the document that the path names, if the key may see it. Errors: Unknown."""
    name = request.path_params["document"]
    if "\0" in name:
        raise Unknown("document", "?")
    found = await look(request, lambda connection: find_document(connection, name))
    if not key.may_read(found.tenant_id):
        # As if it were not there: a number says how many invoices others got.
        raise Unknown("document", name)
    return found


@router.get(
    "/v1/documents/{document}/file",
    openapi_extra=with_files(
        operation(
            "exportDocument", "A document as a file", tag="invoices", scope=_READ, answer=DocumentReply,
            example={"document": _DOCUMENT},
            problems=("unknown-name", "invalid-request", "act-refused", "no-administration", "database-away"),
            parameters=(
                path_parameter("document", "Its number or id.", "NW-000001"),
                query_parameter(
                    "format", "pdf for people; csv, json; focus is FOCUS 1.2 as Parquet, focus-csv the same as CSV.",
                    {"type": "string", "enum": [*FORMATS], "default": "pdf"},
                ),
                query_parameter(
                    "exact", "Of a PDF: with a list of the amounts before rounding.", {"type": "boolean", "default": False}
                ),
            ),
            description="The bytes that `tallystick invoice export` writes: the same for the same document.",
        ),
        [each.media_type for each in FORMATS.values()],
    ),
    response_model=None,
)  # fmt: skip
async def export_document(request: Request) -> Response:
    """Answer with a document as a file."""
    key = await require(request, _READ)
    format, exact = request.query_params.get("format", "pdf"), request.query_params.get("exact", "false")
    if format not in FORMATS:
        raise InvalidRequest("format", f"must be one of {', '.join(FORMATS)}")
    if exact not in ("true", "false"):
        raise InvalidRequest("exact", "must be true or false")
    if exact == "true" and format != "pdf":
        raise InvalidRequest("exact", "is of a pdf: the other formats have exact amounts anyway")
    found = await _document(request, key)
    charges = await act(request, lambda connection: _charges(connection, found)) if FORMATS[format].has_charges else ()
    fonts = services_of(request).config.fonts
    make = partial(
        to_file, found, format, charges, font_folders=[] if fonts is None else [fonts], with_exact=exact == "true"
    )
    content = await asyncio.get_running_loop().run_in_executor(_PRINTER, make)
    name = f"{file_names([found])[0]}.{FORMATS[format].suffix}"
    # A prefix of numbers may have letters that a header has not (RFC 6266).
    headers = {**_PRIVATE, "content-disposition": f"attachment; filename*=UTF-8''{quote(name)}"}
    return Response(content, headers=headers, media_type=FORMATS[format].media_type)


async def _charges(connection: Connection, document: Document) -> "list[UsageCharge]":
    # Polars is loaded for whoever asks for it: a gateway's replica does not wait for it.
    from billing.exports.focus_source import read_charges

    await connection.execute("set transaction isolation level repeatable read, read only")
    return await read_charges(connection, document)


_PRINTER: Final = ThreadPoolExecutor(1, "documents")
"""Makes files beside the loop, one after the other: Typst takes one document at a time, and lets go of the interpreter."""


@router.get(
    "/v1/invoices/parked",
    openapi_extra=operation(
        "listParked", "Months that something keeps from being invoiced", tag="invoices", scope=_WRITE, answer=WaitingReply,
        is_act=True, problems=("invalid-request",),
        example={"waiting": [{"tenant_id": "t-alpha", "posting_period": "2026-11-01", "currency": "USD",
                              "reasons": ["1 request is without a charge"], "parked_at": "2026-12-04T09:00:00Z"}]},
        parameters=(query_parameter("month", "Of this month, such as 2026-11."),),
    ),
    response_model=None,
)  # fmt: skip
async def list_parked(request: Request) -> Response:
    """Answer with what waits."""
    await require(request, _WRITE)
    month = request.query_params.get("month")
    first = None if month is None else month_of_text("month", month)
    return answered(WaitingReply(await act(request, lambda connection: issuing.list_waiting(connection, month=first))))


@router.get(
    "/v1/invoices/{tenant_id}/{month}",
    openapi_extra=operation(
        "draftInvoice", "What would be issued of a tenant's month", tag="invoices", scope=_WRITE, answer=DraftsReply,
        is_act=True, problems=("invalid-request",),
        example={"tenant_id": "t-alpha", "month": "2026-11", "live": {}, "refusals": [],
                 "drafts": [{"document": {**_DOCUMENT, "state": "draft", "number": None, "document_id": None,
                                          "issued_at": None}, "credit_notes": [], "refusals": [], "bounds": []}]},
        parameters=(
            path_parameter("tenant_id", "Whose month.", "t-alpha"), path_parameter("month", "Which.", "2026-11"),
        ),
        description="A dry run for any month, computed and never stored. Its digest can be named when it is issued.",
    ),
    response_model=None,
)  # fmt: skip
async def draft_invoice(request: Request) -> Response:
    """Answer with the drafts of a month."""
    await require(request, _WRITE)
    tenant_id, text = request.path_params["tenant_id"], request.path_params["month"]
    first = month_of_text("month", text)
    if "\0" in tenant_id:
        raise InvalidRequest("tenant_id", "holds a character that no name has")

    async def work(connection: Connection) -> DraftsReply:
        found = await issuing.preview(connection, tenant_id, first, now=datetime.now(UTC))
        drafts = [DraftReply(each.document, each.notes, each.refusals, each.bounds) for each in found.drafts]
        return DraftsReply(tenant_id, text, drafts, found.live, found.known.refusals)

    return answered(await act(request, work))


# --- Acts -------------------------------------------------------------------------------------------------------------


@router.post(
    "/v1/invoices:issue",
    openapi_extra=operation(
        "issueInvoice", "Issue a tenant's closed month", tag="invoices", scope=_WRITE, answer=IssueReply, body=InvoiceIssue,
        is_act=True, example={"outcomes": [_OUTCOME]},
        body_example={"tenant_id": "t-alpha", "month": "2026-11", "digests": {"USD": _DOCUMENT["digest"]}},
        description=(
            "At most one invoice of a tenant, month and currency counts, whoever asks and however often. What something keeps "
            "back is parked with the reasons."
        ),
    ),
    response_model=None,
)  # fmt: skip
async def issue_invoice(request: Request) -> Response:
    """Issue a month."""
    key = await require(request, _WRITE)
    asked = await body_of(request, _issue)
    first = month_of_text("month", asked.month)
    terms = Terms(
        key.actor,
        _reason(asked.reason, asked.actor),
        services_of(request).config.second_person,
        asked.accept_bounds,
        asked.digests or {},
    )
    outcomes = await act(request, lambda connection: issuing.issue_month(connection, asked.tenant_id, first, terms))
    return answered(IssueReply(outcomes))


def _reason(reason: str | None, actor: str | None) -> str | None:
    """Return the reason with whom the key acts for: the key is who asks, and a second person must hold another one."""
    return reason if actor is None else f"{reason or ''} (for {actor})".strip()


@router.post(
    "/v1/invoices:void",
    openapi_extra=operation(
        "voidInvoice", "Say that an invoice no longer counts", tag="invoices", scope=_WRITE, answer=VoidReply,
        body=InvoiceVoid, is_act=True,
        example={"outcome": "voided", "number": "NW-000001", "credit_notes": [], "approval_id": None},
        body_example={"invoice": "NW-000001", "reason": "a wrong address"},
        description="It stays as it was; its month may be issued again, under the next number.",
    ),
    response_model=None,
)  # fmt: skip
async def void_invoice(request: Request) -> Response:
    """Void an invoice."""
    key = await require(request, _WRITE)
    asked = await body_of(request, _void)
    needed = services_of(request).config.second_person
    reason = _reason(asked.reason, asked.actor) or ""
    done = await act(
        request,
        lambda connection: voiding.void_invoice(connection, key.actor, asked.invoice, reason=reason, needed=needed),
    )
    if isinstance(done, Awaiting):
        return answered(VoidReply("awaiting", None, [], done.approval_id))
    return answered(VoidReply("voided_before" if done.was_void else "voided", done.number, done.credit_notes, None))


@router.post(
    "/v1/credit-notes:usage",
    openapi_extra=operation(
        "creditUsage", "Give back what was corrected of an invoice's usage", tag="invoices", scope=_WRITE,
        answer=CreditReply, body=UsageCredit, is_act=True,
        example={"outcome": "issued", "document": {**_NOTE, "basis": "usage"}, "entry_count": 3, "approval_id": None},
        body_example={"invoice": "NW-000001", "reason": "A wrong model", "commit": True},
        description="Made of the rows that correct it and stand on no document yet; they then stand on no invoice.",
    ),
    response_model=None,
)  # fmt: skip
async def credit_usage(request: Request) -> Response:
    """Preview or issue a credit note for usage."""
    key = await require(request, _WRITE)
    asked = await body_of(request, _usage)
    needed = services_of(request).config.second_person if asked.commit else frozenset[str]()
    done = await act(
        request,
        lambda connection: credit_notes.credit_usage(
            connection, _actor(key.actor, asked.actor, needed), asked.invoice, reason=asked.reason, request_ids=asked.request_ids,
            needed=needed, dry_run=not asked.commit,
        ),
    )  # fmt: skip
    return answered(_credit_reply(done, asked.commit))


@router.post(
    "/v1/credit-notes:commercial",
    openapi_extra=operation(
        "creditCommercially", "Give back lines of an invoice, or an amount of it", tag="invoices", scope=_WRITE,
        answer=CreditReply, body=CommercialCredit, is_act=True,
        example={"outcome": "issued", "document": _NOTE, "entry_count": 0, "approval_id": None},
        body_example={
            "invoice": "NW-000001", "lines": [{"line_no": 1}], "reason": "An outage on the 5th", "commit": True,
        },
        description="Whatever was used; no entry moves. Never more than is left of the invoice.",
    ),
    response_model=None,
)  # fmt: skip
async def credit_commercially(request: Request) -> Response:
    """Preview or issue a commercial credit note."""
    key = await require(request, _WRITE)
    asked = await body_of(request, _commercial)
    lines: dict[int, Decimal | None] | None = None
    if asked.lines:
        lines = {each.line_no: None if each.amount is None else parse_amount(each.amount) for each in asked.lines}
        if len(lines) < len(asked.lines):
            raise InvalidRequest("lines", "name a line twice")
    if (lines is None) == (asked.amount is None):
        raise InvalidRequest("body", "must say either which lines are given back or which amount")
    amount = None if asked.amount is None else parse_amount(asked.amount)
    needed = services_of(request).config.second_person if asked.commit else frozenset[str]()
    done = await act(
        request,
        lambda connection: credit_notes.credit_commercially(
            connection, _actor(key.actor, asked.actor, needed), asked.invoice, reason=asked.reason, lines=lines, amount=amount,
            needed=needed, dry_run=not asked.commit,
        ),
    )  # fmt: skip
    return answered(_credit_reply(done, asked.commit))


def _actor(key: str, actor: str | None, needed: Collection[str]) -> str:
    """Return who gives back: the reason is the customer's to read, so whom the key acts for stands beside the key.

    Where a second person is needed the key alone counts, whomever it says it acts for.
    """
    return key if actor is None or "credit-notes.issue" in needed else f"{actor} ({key})"


def _credit_reply(done: Credited | Awaiting, commit: bool) -> CreditReply:
    if isinstance(done, Awaiting):
        return CreditReply("awaiting", None, 0, done.approval_id)
    return CreditReply("issued" if commit else "preview", done.document, done.entry_count, None)


_issue: Final = msgspec.json.Decoder(InvoiceIssue)
_void: Final = msgspec.json.Decoder(InvoiceVoid)
_usage: Final = msgspec.json.Decoder(UsageCredit)
_commercial: Final = msgspec.json.Decoder(CommercialCredit)

ROOM: Final = Room(
    router,
    "invoices",
    "Invoices and credit notes: read by the tenant; drafted, issued, voided and given back with an operator's key.",
    (
        DocumentsReply, DocumentReply, DraftReply, DraftsReply, InvoiceIssue, IssueReply, InvoiceVoid, VoidReply, UsageCredit,
        CreditedLine, CommercialCredit, CreditReply, WaitingReply,
    ),
)  # fmt: skip
