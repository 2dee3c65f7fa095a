"""The routes of reservations: their place, their documents, and what is posted about them read from a request."""

from collections.abc import Mapping
from typing import Any, Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope

from api.bodies import check_json, read_stream
from api.documents import Room, answers, operation, path_parameter, query_parameter
from api.errors import Refusal
from api.reservations import (
    PATH,
    Act,
    AskBody,
    BatchBody,
    BatchReply,
    ChangeReply,
    ExtendBody,
    ReservationReply,
    SettleBody,
    StandingReply,
    VoidBody,
    Wire,
    create,
    create_many,
    extend,
    settle,
    standing,
    void,
)
from api.services import Services, services_of
from quotas.remaining import Span

router = APIRouter()

BATCH_PATH: Final = PATH + ":batch"
ONE_PATH: Final = PATH + "/{reservation_id}"
_EXAMPLE_ID: Final = "0199c2d4-7b1e-7c3a-9f54-2a6d1c0be911"

_BUDGET_EXAMPLE: Final = {
    "budget_id": "alpha-monthly",
    "group_key": "",
    "unit": "charge",
    "currency": "USD",
    "hardness": "hard",
    "window": {
        "kind": "month",
        "time_zone": "UTC",
        "first_date": "2026-09-01",
        "end_date": "2026-10-01",
        "starts_at": "2026-09-01T00:00:00Z",
        "ends_at": "2026-10-01T00:00:00Z",
    },
    "limit": "100",
    "asked": "0.00028",
    "remaining": "99.59972",
}
_HOLD_EXAMPLE: Final = {
    "budget_id": "alpha-monthly",
    "group_key": "",
    "window_start": "2026-09-01",
    "unit": "charge",
    "currency": "USD",
    "reserved": "0.00028",
    "held": "0.00028",
}
_ADMITTED_EXAMPLE: Final = {
    "tenant_id": "t-alpha",
    "reservation_id": _EXAMPLE_ID,
    "outcome": "admitted",
    "state": "held",
    "budget": _BUDGET_EXAMPLE,
    "holds": [_HOLD_EXAMPLE],
    "expires_at": "2026-09-02T00:10:00Z",
}
_ASK_EXAMPLE: Final = {
    "reservation_id": _EXAMPLE_ID,
    "tenant_id": "t-alpha",
    "provider": "openai",
    "model": "gpt-4o-mini",
    "feature": "chat",
    "input_tokens": 100,
    "output_tokens": 10,
}
_UNAVAILABLE: Final = ("queue-full", "deadline-passed", "budget-busy", "database-away", "closing")
_ID: Final = path_parameter("reservation_id", "As it was asked for.", _EXAMPLE_ID)
_TAG: Final = "reservations"
_CHANGED: Final = {
    "tenant_id": "t-alpha",
    "reservation_id": _EXAMPLE_ID,
    "state": "awaiting_entry",
    "is_changed": True,
    "expires_at": "2026-09-02T00:10:00Z",
}

CREATE_OPERATION: Final = operation(
    "createReservation",
    "May this call go ahead",
    tag=_TAG,
    scope="reservations:write",
    description=(
        "Holds what the call may take against every budget in its scope, or against none, and answers after the commit. Any status "
        "but 200 and 201 means: do not send the call. The id makes it repeatable: after a 503 or a lost answer ask again with the "
        "same body. A refusal is kept by nobody and decided anew."
    ),
    body=AskBody,
    body_example=_ASK_EXAMPLE,
    answer=ReservationReply,
    example=_ADMITTED_EXAMPLE,
    status=201,
    problems=(
        "tenant-not-found",
        "tenant-inactive",
        "reservation-conflict",
        "reservation-over",
        "price-unknown",
        "estimate-missing",
        "budget-exhausted",
        *_UNAVAILABLE,
    ),
)
CREATE_OPERATION["responses"]["200"] = answers(
    "ReservationReply",
    {**_ADMITTED_EXAMPLE, "is_replay": True},
    what="It was admitted earlier under this id, and is still held.",
)["200"]
CREATE_OPERATION["responses"]["429"]["headers"] = {
    "Retry-After": {"schema": {"type": "integer"}, "description": "Seconds until there is room at the earliest."},
    "RateLimit-Policy": {
        "schema": {"type": "string"},
        "description": "The budget that binds: its limit (q), window (w) and unit (qu), money in millionths.",
    },
    "RateLimit": {"schema": {"type": "string"}, "description": "What is left of it (r), and for how long (t)."},
}
BATCH_OPERATION: Final = operation(
    "createReservations",
    "May these calls go ahead",
    tag=_TAG,
    scope="reservations:write",
    description=(
        "The same for a gateway that gathers: one result for each ask, in order, refusals among them. Those of one tenant are decided in "
        "their order. After a 503 ask again with the same body: what was admitted is found under its ids."
    ),
    body=BatchBody,
    body_example={"reservations": [_ASK_EXAMPLE]},
    answer=BatchReply,
    example={
        "results": [
            _ADMITTED_EXAMPLE,
            {
                "tenant_id": "t-alpha",
                "reservation_id": "r-2",
                "outcome": "refused",
                "state": None,
                "reason": "limit",
                "budget": _BUDGET_EXAMPLE,
                "retry_at": "2026-10-01T00:00:00Z",
            },
        ]
    },
    problems=("tenant-not-found", *_UNAVAILABLE),
)
GET_OPERATION: Final = operation(
    "getReservation",
    "Where a reservation stands",
    tag=_TAG,
    scope="reservations:write",
    parameters=(_ID, query_parameter("tenant_id", "Whose. A tenant's key may leave it out.")),
    answer=StandingReply,
    example={
        "tenant_id": "t-alpha",
        "reservation_id": _EXAMPLE_ID,
        "state": "held",
        "operation_id": None,
        "basis": "worst_case",
        "decided_at": "2026-09-02T00:00:00Z",
        "expires_at": "2026-09-02T00:10:00Z",
        "ended_at": None,
        "holds": [_HOLD_EXAMPLE],
    },
    problems=("reservation-not-found", "tenant-not-found", "invalid-request", "database-away"),
)
_ENDS: Final = ("reservation-not-found", "tenant-not-found", *_UNAVAILABLE)
SETTLE_OPERATION: Final = operation(
    "settleReservation",
    "The call has ended",
    tag=_TAG,
    scope="reservations:write",
    description=(
        "With `event`: the usage event is posted (which needs the scope `events:write` too), and its commit closes the reservation; "
        "sent again it is a duplicate and changes nothing. Without: what is held stays, or as much of it as is stated, and does not expire "
        "until the usage comes by another way."
    ),
    parameters=(_ID,),
    body=SettleBody,
    body_example={"tenant_id": "t-alpha", "charge": "0.0002"},
    answer=ChangeReply,
    example=_CHANGED,
    problems=(*_ENDS, "replica-fenced"),
)
VOID_OPERATION: Final = operation(
    "voidReservation",
    "The call took nothing",
    tag=_TAG,
    scope="reservations:write",
    description="Gives back what is held. After the end of the call this changes nothing, and says so. The body may be empty.",
    parameters=(_ID,),
    body=VoidBody,
    body_example={"tenant_id": "t-alpha"},
    answer=ChangeReply,
    example={**_CHANGED, "state": "voided"},
    problems=_ENDS,
)
VOID_OPERATION["requestBody"]["required"] = False
EXTEND_OPERATION: Final = operation(
    "extendReservation",
    "The call goes on",
    tag=_TAG,
    scope="reservations:write",
    parameters=(_ID,),
    body=ExtendBody,
    body_example={"tenant_id": "t-alpha", "ttl_seconds": 600},
    answer=ChangeReply,
    example={**_CHANGED, "state": "held"},
    problems=_ENDS,
)
# What was held is found under its id, in the words of OpenAPI's links.
_LINKS: Final = {
    "get": {"operationId": "getReservation", "parameters": {"reservation_id": "$response.body#/reservation_id"}},
    "settle": {"operationId": "settleReservation", "parameters": {"reservation_id": "$response.body#/reservation_id"}},
    "void": {"operationId": "voidReservation", "parameters": {"reservation_id": "$response.body#/reservation_id"}},
    "extend": {"operationId": "extendReservation", "parameters": {"reservation_id": "$response.body#/reservation_id"}},
}
CREATE_OPERATION["responses"]["201"]["links"] = _LINKS


ACTS: Final[Mapping[str, Act]] = {
    PATH: create,
    BATCH_PATH: create_many,
    ONE_PATH + ":settle": settle,
    ONE_PATH + ":void": void,
    ONE_PATH + ":extend": extend,
}
"""What is posted about reservations, by path."""


async def answered(services: Services, scope: Scope, receive: Receive, act: Act, *named: str) -> Wire:
    """Read a request and do what it asks for."""
    authorization = encoding = None
    content_type = length = ""
    for name, value in scope["headers"]:
        if name == b"authorization":
            authorization = value.decode("latin-1")
        elif name == b"content-type":
            content_type = value.decode("latin-1")
        elif name == b"content-encoding":
            encoding = value.decode("latin-1")
        elif name == b"content-length":
            length = value.decode("latin-1")
    try:
        check_json(content_type, encoding)
        body = await read_stream(receive, length, services.config.reservation_bytes_max, may_be_empty=act is void)
    except Refusal:
        # Whoever has no key learns that first, as everywhere.
        await services.keys.identify(authorization, "reservations:write")
        raise
    return await act(services, authorization, body, *named)


async def _answered(request: Request, act: Act) -> Response:
    named = request.path_params.values()
    return _response(await answered(services_of(request), request.scope, request.receive, act, *named))


def _response(wire: Wire) -> Response:
    status, headers, body = wire
    return Response(body, status, headers, media_type="application/json")


@router.post(PATH, openapi_extra=CREATE_OPERATION, response_model=None)
async def post_reservation(request: Request) -> Response:
    """Answer whether a call may go ahead."""
    return await _answered(request, create)


@router.post(BATCH_PATH, openapi_extra=BATCH_OPERATION, response_model=None)
async def post_reservations(request: Request) -> Response:
    """Answer which calls may go ahead."""
    return await _answered(request, create_many)


@router.get(ONE_PATH, openapi_extra=GET_OPERATION, response_model=None)
async def get_reservation(request: Request) -> Response:
    """Answer where a reservation stands."""
    authorization, tenant = request.headers.get("authorization"), request.query_params.get("tenant_id")
    return _response(await standing(services_of(request), authorization, tenant, request.path_params["reservation_id"]))


@router.post(ONE_PATH + ":settle", openapi_extra=SETTLE_OPERATION, response_model=None)
async def post_settle(request: Request) -> Response:
    """Take the end of a call."""
    return await _answered(request, settle)


@router.post(ONE_PATH + ":void", openapi_extra=VOID_OPERATION, response_model=None)
async def post_void(request: Request) -> Response:
    """Take back a promise."""
    return await _answered(request, void)


@router.post(ONE_PATH + ":extend", openapi_extra=EXTEND_OPERATION, response_model=None)
async def post_extend(request: Request) -> Response:
    """Give a call more time."""
    return await _answered(request, extend)


def complete(schemas: Mapping[str, Any]) -> None:
    """Say what stands where a body holds an event as it is."""
    schemas["SettleBody"]["properties"]["event"] = {
        "$ref": "#/components/schemas/Event",
        "description": "With this reservation_id in its data: posted in the commit that closes the reservation.",
    }


ROOM: Final = Room(
    router,
    _TAG,
    "May a call go ahead, and how it ended.",
    (
        AskBody,
        BatchBody,
        SettleBody,
        VoidBody,
        ExtendBody,
        ReservationReply,
        BatchReply,
        StandingReply,
        ChangeReply,
        Span,
    ),
    complete,  # type: ignore[arg-type]
)
