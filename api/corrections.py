"""Corrections over HTTP: shown, made and listed, by the functions that the commands call."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from functools import partial
from typing import Annotated, Final, Literal

import msgspec
import psycopg
from fastapi import APIRouter
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from api.admin import act, answered, body_of, require
from api.config import Config
from api.documents import Room, operation, query_parameter
from api.errors import DatabaseAway, InvalidRequest, NoAdministration, where
from api.pages import limit_of
from api.parties import Act, Reason
from api.services import services_of
from ingest.letters import content_of
from ledger import corrections
from ledger.approvals import Awaiting
from ledger.books import load_books
from ledger.corrections import (
    Content,
    Corrected,
    CorrectionRecord,
    Counts,
    Difference,
    Effect,
    Fee,
    Proposal,
    Report,
    Reverse,
    Wanted,
)
from ledger.database import connect
from ledger.money import parse_amount
from ledger.price_book import plain

router = APIRouter()

_SCOPE: Final = "corrections:write"
_ID_MAX: Final = 2**63 - 1

AmountText = Annotated[str, Meta(description="Decimal text; negative takes back.", examples=["-0.25"])]
RowId = Annotated[int, Meta(ge=1, le=_ID_MAX)]


class FeeOf(Struct, forbid_unknown_fields=True, kw_only=True):
    """The fee of a logical request in one book."""

    operation_id: Annotated[str, Meta(description="Or the request, where the gateway names no operation.")]
    book: Literal["charge", "cost"] = "charge"


class CorrectionRequest(Act, kw_only=True):
    """What is to be corrected, and how."""

    id: Annotated[
        str,
        Meta(
            description="Yours, unique for the tenant for ever: repeating it does nothing.",
            min_length=1,
            max_length=200,
        ),
    ]
    kind: Annotated[
        Literal["reverse", "adjust", "accept", "refuse"],
        Meta(
            description=(
                "reverse: of a request or a fee, all that stands. adjust: quantities, or a difference in money. "
                "accept: a report that was kept (entry_id), or the second content of a conflict (dead_letter_id). "
                "refuse: a proposal (entry_id)."
            )
        ),
    ]
    tenant_id: Annotated[str | None, Meta(description="As sent; reverse and adjust.")] = None
    request_id: Annotated[str | None, Meta(description="reverse and adjust.")] = None
    fee: Annotated[FeeOf | None, Meta(description="reverse: instead of request_id.")] = None
    quantities: Annotated[
        dict[str, int] | None, Meta(description="adjust: what was used, by meter; a meter that is left out was not.")
    ] = None
    charge_difference: Annotated[AmountText | None, Meta(description="adjust: in the tenant's currency.")] = None
    cost_difference: Annotated[AmountText | None, Meta(description="adjust: in the currency of the cost.")] = None
    entry_id: RowId | None = None
    dead_letter_id: RowId | None = None
    reason: Reason  # type: ignore[assignment]
    commit: Annotated[bool, Meta(description="Make it; without this, only say what would move.")] = False


class EffectReply(Struct):
    """What moves in one book and currency, or of one count; decimal text."""

    what: Literal["charge", "cost", "requests", "input_tokens", "output_tokens"]
    currency: str | None
    before: str
    after: str
    difference: str


class ProposalReply(Struct):
    """A void or a lower count of a final report."""

    entry_id: int
    tenant_id: str
    request_id: str | None
    source: str
    status: str
    occurred_at: datetime
    recorded_at: datetime
    quantities: Mapping[str, int] | None
    charge_amount: Annotated[str | None, Meta(description="Decimal text: what it would be charged.")]
    charge_currency: str | None


class CorrectionReply(Struct):
    """What a correction moves, and what became of it."""

    outcome: Annotated[
        Literal["preview", "made", "repeated", "awaiting"],
        Meta(
            description=(
                "preview: nothing was done. made: it is in the ledger. repeated: it was there before. "
                "awaiting: a second person has to agree, then send it again."
            )
        ),
    ]
    effects: Annotated[Sequence[EffectReply], Meta(description="preview: what it would move.")]
    correction: CorrectionRecord | None
    approval_id: int | None


class CorrectionsReply(Struct):
    """Corrections, the newest first."""

    corrections: Sequence[CorrectionRecord]
    before: Annotated[int | None, Meta(description="Ask for the next page with it; null: this is the last.")]


class ProposalsReply(Struct):
    """Voids and lower counts of final reports that wait for a person, the newest first."""

    proposals: Sequence[ProposalReply]


_RECORD: Final = {
    "correction_no": 7,
    "correction_id": "ticket-4711",
    "kind": "reverse",
    "tenant_id": "t-alpha",
    "sent_tenant_id": "t-alpha",
    "request_id": "req-1",
    "request_key": "8d3ab9a5-6c4d-9d6a-6f0e-6a1c59a3b2c1",
    "detail": {"tenant_id": "t-alpha", "request_id": "req-1"},
    "effects": [{"what": "charge", "currency": "USD", "before": "0.00028", "after": "0"}],
    "entry_count": 1,
    "batch_id": 41,
    "evidence_entry_id": None,
    "dead_letter_id": None,
    "at": "2026-11-30T12:00:00Z",
    "actor": "key tsk_1a2b3c4d",
    "reason": "sent for the wrong tenant",
    "second_person": None,
}


@router.post(
    "/v1/corrections",
    openapi_extra=operation(
        "correct", "Say what a correction moves and, with `commit`, make it", tag="corrections", scope=_SCOPE,
        answer=CorrectionReply, body=CorrectionRequest, is_act=True,
        example={"outcome": "made", "effects": [], "correction": _RECORD, "approval_id": None},
        body_example={
            "id": "ticket-4711", "kind": "reverse", "tenant_id": "t-alpha", "request_id": "req-1",
            "reason": "sent for the wrong tenant", "commit": True,
        },
        description=(
            "New entries in the earliest open month that name what they correct; nothing is changed in place, and no later "
            "report undoes it. Sent again with the same id it is `repeated`; with the id and other content it is refused."
        ),
    ),
    response_model=None,
)  # fmt: skip
async def post_correction(request: Request) -> Response:
    """Preview a correction, or make it."""
    key = await require(request, _SCOPE)
    asked = await body_of(request, _decoder)
    config = services_of(request).config
    # The key is who asks, whomever it says it acts for: a second person must hold another one.
    reason = asked.reason if asked.actor is None else f"{asked.reason} (for {asked.actor})"
    if asked.kind == "refuse":
        entry_id = _refused(asked)
        refuse = partial(
            corrections.refuse, entry_id=entry_id, actor=key.actor, reason=reason, needed=config.second_person
        )
        if not asked.commit:
            return answered(CorrectionReply("preview", [], None, None))
        return answered(_reply(await act(request, refuse)))
    try:
        wanted = Wanted(await _change(asked, config), asked.id)
        # As the writer, which alone posts; corrections are few.
        async with await connect(config.writer_url, connect_timeout=5) as connection:
            if not asked.commit:
                made = await corrections.plan(connection, await load_books(connection), wanted)
                return answered(CorrectionReply("preview", _effects(made.effects), None, None))
            found = await corrections.correct(
                connection,
                wanted,
                actor=key.actor,
                reason=reason,
                needed=config.second_person,
                feed=f"{corrections.FEED}:{config.name}",
            )
    except psycopg.OperationalError as error:
        raise DatabaseAway(f"the database did not answer ({where(error)})") from None
    return answered(_reply(found))


def _effects(effects: Sequence[Effect]) -> list[EffectReply]:
    return [
        EffectReply(each.what, each.currency, plain(each.before), plain(each.after), plain(each.difference))  # type: ignore[arg-type]
        for each in effects
    ]


def _reply(found: Corrected | Awaiting) -> CorrectionReply:
    if isinstance(found, Awaiting):
        return CorrectionReply("awaiting", [], None, found.approval_id)
    return CorrectionReply("repeated" if found.is_repeat else "made", [], found.record, None)


_FIELDS: Final = {
    "reverse": {"tenant_id", "request_id", "fee"},
    "adjust": {"tenant_id", "request_id", "quantities", "charge_difference", "cost_difference"},
    "accept": {"entry_id", "dead_letter_id"},
    "refuse": {"entry_id"},
}
"""What each kind takes; of the others none may be there, since it would be passed over in silence."""


async def _change(asked: CorrectionRequest, config: Config) -> Reverse | Counts | Difference | Report | Content:
    """Return what the body asks for. Errors: `InvalidRequest`, and what the ledger says of a dead letter."""
    _check_fields(asked)
    if asked.kind == "accept":
        if asked.dead_letter_id is not None:
            if config.operator_url is None:
                raise NoAdministration("this replica was started without TALLYSTICK_OPERATOR_URL")
            # Of its own: books are read in one snapshot, which a transaction of the pool's has already.
            async with await connect(config.operator_url, connect_timeout=5) as connection:
                return Content(asked.dead_letter_id, await content_of(connection, asked.dead_letter_id))
        if asked.entry_id is None:
            raise InvalidRequest("entry_id", "or dead_letter_id is needed to accept")
        return Report(asked.entry_id)
    if asked.tenant_id is None:
        raise InvalidRequest("tenant_id", f"is needed to {asked.kind}")
    if asked.fee is not None:
        if asked.request_id is not None:
            raise InvalidRequest("fee", "stands beside request_id; one of them is reversed")
        return Reverse(Fee(asked.tenant_id, asked.fee.operation_id, asked.fee.book))
    if asked.request_id is None:
        raise InvalidRequest("request_id", f"is needed to {asked.kind}")
    of = corrections.Request(asked.tenant_id, asked.request_id)
    if asked.kind == "reverse":
        return Reverse(of)
    is_money = asked.charge_difference is not None or asked.cost_difference is not None
    if (asked.quantities is not None) == is_money:
        raise InvalidRequest("quantities", "or a difference in money is needed to adjust, and not both")
    if asked.quantities is not None:
        return Counts(of, asked.quantities)
    return Difference(
        of,
        charge=_amount("charge_difference", asked.charge_difference),
        cost=_amount("cost_difference", asked.cost_difference),
    )


def _refused(asked: CorrectionRequest) -> int:
    _check_fields(asked)
    if asked.entry_id is None:
        raise InvalidRequest("entry_id", "is needed to refuse a proposal")
    return asked.entry_id


def _check_fields(asked: CorrectionRequest) -> None:
    for name in sorted(set().union(*_FIELDS.values()) - _FIELDS[asked.kind]):
        if getattr(asked, name) is not None:
            raise InvalidRequest(name, f"is nothing that {asked.kind} takes")
    if asked.entry_id is not None and asked.dead_letter_id is not None:
        raise InvalidRequest("dead_letter_id", "stands beside entry_id; one of them is accepted")


def _amount(name: str, text: str | None) -> Decimal | None:
    if text is None:
        return None
    try:
        return parse_amount(text)
    except ValueError as error:
        raise InvalidRequest(name, f"is no amount: {error}") from None


@router.get(
    "/v1/corrections",
    openapi_extra=operation(
        "listCorrections", "Corrections that were made", tag="corrections", scope=_SCOPE, answer=CorrectionsReply,
        is_act=True, example={"corrections": [_RECORD], "before": None}, problems=("invalid-request",),
        parameters=(
            query_parameter("tenant_id", "Of this tenant."),
            query_parameter("request_id", "Of this request."),
            query_parameter("before", "The next page: those before this number.", schema={"type": "integer"}),
            query_parameter("limit", "How many, the newest first.", schema={"type": "integer"}),
        ),
    ),
    response_model=None,
)  # fmt: skip
async def list_corrections(request: Request) -> Response:
    """Answer with corrections, a page at a time."""
    await require(request, _SCOPE)
    query = request.query_params
    limit = limit_of(query.get("limit"), services_of(request).config.page_rows_max)
    before = _number("before", query.get("before"))
    tenant_id, request_id = (_text(name, query.get(name)) for name in ("tenant_id", "request_id"))
    found = await act(
        request,
        lambda connection: corrections.list_corrections(
            connection, tenant_id=tenant_id, request_id=request_id, before=before, limit=limit + 1
        ),
    )
    page = found[:limit]
    return answered(CorrectionsReply(page, page[-1].correction_no if len(found) > limit else None))


@router.get(
    "/v1/corrections/proposals",
    openapi_extra=operation(
        "listProposals", "Voids and lower counts that wait for a person", tag="corrections", scope=_SCOPE,
        answer=ProposalsReply, is_act=True, problems=("invalid-request",),
        example={
            "proposals": [
                {
                    "entry_id": 131072, "tenant_id": "t-alpha", "request_id": "req-1", "source": "gateway://eu-1",
                    "status": "ok", "occurred_at": "2026-11-30T10:00:00Z", "recorded_at": "2026-11-30T10:00:01Z",
                    "quantities": {"uncached_input_tokens": 50}, "charge_amount": "0.0001", "charge_currency": "USD",
                }
            ]
        },
        parameters=(
            query_parameter("tenant_id", "Of this tenant."),
            query_parameter("limit", "How many, the newest first.", schema={"type": "integer"}),
        ),
    ),
    response_model=None,
)  # fmt: skip
async def list_proposals(request: Request) -> Response:
    """Answer with proposals that nobody has decided on."""
    await require(request, _SCOPE)
    query = request.query_params
    limit = limit_of(query.get("limit"), services_of(request).config.page_rows_max)
    read = partial(corrections.list_proposals, tenant_id=_text("tenant_id", query.get("tenant_id")), limit=limit)
    found = await act(request, read)
    return answered(ProposalsReply([_proposal(each) for each in found]))


def _proposal(found: Proposal) -> ProposalReply:
    amount = None if found.charge_amount is None else plain(found.charge_amount)
    return ProposalReply(**{name: getattr(found, name) for name in Proposal.__slots__} | {"charge_amount": amount})


def _text(name: str, text: str | None) -> str | None:
    if text is not None and "\0" in text:
        raise InvalidRequest(name, "holds a character that no name has")
    return text


def _number(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise InvalidRequest(name, "must be a whole number")
    return int(text)


_decoder: Final = msgspec.json.Decoder(CorrectionRequest)

ROOM: Final = Room(
    router,
    "corrections",
    "What a person changes about a request, as new entries with a reason. With an operator's key.",
    (CorrectionRequest, CorrectionReply, CorrectionsReply, ProposalsReply),
)
