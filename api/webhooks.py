"""Webhooks over HTTP, for operators: receivers, their secrets, and what became of messages."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from api.admin import act, answered, body_of, require
from api.documents import Room, operation, path_parameter, query_parameter
from api.errors import InvalidRequest
from api.pages import limit_of
from api.services import services_of
from ledger.database import Connection
from ledger.errors import Unknown
from quotas import webhooks
from quotas.webhooks import KINDS, ROTATION_HOURS, Delivery, Endpoint, Rules

router = APIRouter()

_STATES: Final = ("pending", "delivered", "failed")
_SECRET: Final = "What signatures are checked with (standardwebhooks.com). Shown once: keep this answer out of logs."


class WebhookBody(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A new receiver."""

    url: Annotated[str, Meta(description="https, to a public address.")]
    tenant_id: Annotated[str | None, Meta(description="Hears of this tenant alone; absent, of everybody.")] = None
    kinds: Annotated[list[str], Meta(description=f"Some of {', '.join(KINDS)}; absent or empty, all.")] = []
    reason: Annotated[str | None, Meta(description="Why, for the record.")] = None


class RotationBody(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A new secret."""

    overlap_hours: Annotated[int, Meta(description="For how long the old secret signs beside it, 0 to 720.")] = (
        ROTATION_HOURS
    )
    reason: Annotated[str | None, Meta(description="Why, for the record.")] = None


class WebhookActBody(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Why something is done to a receiver."""

    reason: Annotated[str | None, Meta(description="Why, for the record.")] = None


class WebhookSecret(Struct):
    """A receiver with its newest secret."""

    endpoint_id: str
    secret: Annotated[str, Meta(description=_SECRET)]


class WebhookLine(Struct, kw_only=True):
    """A receiver as it stands."""

    endpoint_id: str
    tenant_id: Annotated[str | None, Meta(description="Null: hears of everybody.")]
    url: str
    kinds: Annotated[list[str], Meta(description="Empty: all.")]
    created_at: datetime
    failing_since: Annotated[
        datetime | None, Meta(description="When it first did not take a message, if since then none.")
    ]
    disabled_at: datetime | None
    disabled_reason: str | None


class WebhooksReply(Struct):
    """Receivers, without their secrets."""

    webhooks: list[WebhookLine]


class WebhookDone(Struct):
    """What was done to a receiver."""

    endpoint_id: str
    message_id: Annotated[str | None, Meta(description="Of the message that goes out now.")] = None


class DeliveryLine(Struct, kw_only=True):
    """A message on its way to a receiver."""

    message_id: Annotated[str, Meta(description="The `webhook-id` that it is sent under.")]
    kind: str
    tenant_id: str | None
    state: Annotated[str, Meta(description="pending, delivered or failed.")]
    attempts: int
    created_at: datetime
    next_at: Annotated[datetime | None, Meta(description="pending: when it is sent next.")]
    last_at: datetime | None
    last_status: Annotated[int | None, Meta(description="What the receiver answered.")]
    last_error: str | None
    delivered_at: datetime | None


class DeliveriesReply(Struct):
    """Messages to one receiver, the newest first."""

    endpoint_id: str
    deliveries: list[DeliveryLine]


_ID: Final = "we_5ad2b0c3f1e4"
_MESSAGE: Final = "msg_0199d3c4-6a5e-4c2f-9d3e-1f2a3b4c5d6e"
_ENDPOINT: Final = path_parameter("endpoint_id", "Which receiver.", _ID)
_DONE: Final = {"endpoint_id": _ID, "message_id": None}
_TOLD: Final = {"endpoint_id": _ID, "secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYo="}
_WHY: Final = {"reason": "the receiver moved"}


def _acting(operation_id: str, summary: str, **other: Any) -> dict[str, Any]:
    known = {"answer": WebhookDone, "example": _DONE, "body": WebhookActBody, "body_example": _WHY}
    return operation(
        operation_id,
        summary,
        tag="webhooks",
        scope="webhooks:write",
        is_act=True,
        **{"parameters": (_ENDPOINT,), **known, **other},
    )


LIST_OPERATION: Final = operation(
    "listWebhooks",
    "List receivers of webhooks",
    tag="webhooks",
    scope="webhooks:write",
    parameters=(query_parameter("tenant_id", "Those of this tenant only."),),
    answer=WebhooksReply,
    example={
        "webhooks": [
            {
                "endpoint_id": _ID,
                "tenant_id": "t-alpha",
                "url": "https://hooks.example.com/tallystick",
                "kinds": ["budget.exhausted"],
                "created_at": "2026-09-01T00:00:00Z",
                "failing_since": None,
                "disabled_at": None,
                "disabled_reason": None,
            }
        ]
    },
    problems=("invalid-request", "no-administration", "database-away"),
)
ADD_OPERATION: Final = _acting(
    "addWebhook",
    "Add a receiver",
    description="It hears of what happens from now on. The answer holds its secret, which is shown once.",
    parameters=(),
    answer=WebhookSecret,
    example=_TOLD,
    body=WebhookBody,
    body_example={
        "url": "https://hooks.example.com/tallystick",
        "tenant_id": "t-alpha",
        "kinds": ["budget.exhausted"],
        "reason": "asked for",
    },
    status=201,
)
ROTATE_OPERATION: Final = _acting(
    "rotateWebhookSecret",
    "Give a receiver a new secret",
    description="For a while messages are signed with both, so that the receiver can change in between.",
    answer=WebhookSecret,
    example=_TOLD,
    body=RotationBody,
    body_example={"overlap_hours": 24, "reason": "yearly"},
)
ENABLE_OPERATION: Final = _acting(
    "enableWebhook", "Send to a disabled receiver again, beginning with what waits for it"
)
REMOVE_OPERATION: Final = _acting("removeWebhook", "Remove a receiver; what waits for it is given up")
TEST_OPERATION: Final = _acting(
    "testWebhook",
    "Send a message to a receiver, whatever kinds it listens to",
    description="It goes out within seconds; its delivery says what the receiver answered.",
    example={"endpoint_id": _ID, "message_id": _MESSAGE},
)
RESEND_OPERATION: Final = _acting(
    "resendWebhook",
    "Send a message to a receiver again, under the id that it had",
    parameters=(_ENDPOINT, path_parameter("message_id", "Which message.", _MESSAGE)),
    example={"endpoint_id": _ID, "message_id": _MESSAGE},
)
DELIVERIES_OPERATION: Final = operation(
    "listWebhookDeliveries",
    "What became of the messages to a receiver",
    tag="webhooks",
    scope="webhooks:write",
    parameters=(
        _ENDPOINT,
        query_parameter("state", "Those in this state only.", {"type": "string", "enum": list(_STATES)}),
        query_parameter(
            "limit", "At most so many, the newest first.", {"type": "integer", "minimum": 1, "maximum": 1000}
        ),
    ),
    answer=DeliveriesReply,
    example={
        "endpoint_id": _ID,
        "deliveries": [
            {
                "message_id": _MESSAGE,
                "kind": "budget.exhausted",
                "tenant_id": "t-alpha",
                "state": "delivered",
                "attempts": 1,
                "created_at": "2026-09-01T00:00:00Z",
                "next_at": None,
                "last_at": "2026-09-01T00:00:05Z",
                "last_status": 204,
                "last_error": None,
                "delivered_at": "2026-09-01T00:00:05Z",
            }
        ],
    },
    problems=("invalid-request", "unknown-name", "no-administration", "database-away"),
)

_add: Final = msgspec.json.Decoder(WebhookBody)
_rotate: Final = msgspec.json.Decoder(RotationBody)
_why: Final = msgspec.json.Decoder(WebhookActBody)


@router.get("/v1/webhooks", openapi_extra=LIST_OPERATION, response_model=None)
async def get_webhooks(request: Request) -> Response:
    """Answer with the receivers, of one tenant or all."""
    await require(request, "webhooks:write")
    tenant_id = request.query_params.get("tenant_id")
    if tenant_id is not None and "\0" in tenant_id:
        raise InvalidRequest("tenant_id", "is no tenant id")

    async def work(connection: Connection) -> list[Endpoint]:
        return await webhooks.list_endpoints(connection, tenant_id=tenant_id)

    return answered(WebhooksReply([_line(each) for each in await act(request, work)]))


def _line(found: Endpoint) -> WebhookLine:
    return WebhookLine(
        endpoint_id=found.endpoint_id,
        tenant_id=found.tenant_id,
        url=found.url,
        kinds=list(found.kinds),
        created_at=found.created_at,
        failing_since=found.failing_since,
        disabled_at=found.disabled_at,
        disabled_reason=found.disabled_reason,
    )


@router.post("/v1/webhooks", openapi_extra=ADD_OPERATION, response_model=None)
async def post_webhook(request: Request) -> Response:
    """Add a receiver, and tell its secret."""
    key = await require(request, "webhooks:write")
    asked = await body_of(request, _add)
    rules = Rules(allow_private=services_of(request).config.webhooks_allow_private)

    async def work(connection: Connection) -> webhooks.Added:
        return await webhooks.add_endpoint(
            connection, key.actor, asked.url, rules, tenant_id=asked.tenant_id, kinds=asked.kinds, reason=asked.reason
        )

    added = await act(request, work)
    return _told(added.endpoint_id, added.secret, 201)


@router.post("/v1/webhooks/{endpoint_id}:rotate", openapi_extra=ROTATE_OPERATION, response_model=None)
async def post_rotation(request: Request) -> Response:
    """Give a receiver a new secret, and tell it."""
    key = await require(request, "webhooks:write")
    asked = await body_of(request, _rotate)
    endpoint_id = _endpoint_of(request)

    async def work(connection: Connection) -> str:
        return await webhooks.rotate_secret(
            connection, key.actor, endpoint_id, overlap_hours=asked.overlap_hours, reason=asked.reason
        )

    return _told(endpoint_id, await act(request, work), 200)


def _told(endpoint_id: str, secret: str, status: int) -> Response:
    return answered(WebhookSecret(endpoint_id, secret), status, {"cache-control": "no-store"})


@router.post("/v1/webhooks/{endpoint_id}:enable", openapi_extra=ENABLE_OPERATION, response_model=None)
async def post_enabling(request: Request) -> Response:
    """Send to a disabled receiver again."""
    return await _done(request, webhooks.enable_endpoint)


@router.post("/v1/webhooks/{endpoint_id}:remove", openapi_extra=REMOVE_OPERATION, response_model=None)
async def post_removal(request: Request) -> Response:
    """Remove a receiver."""
    return await _done(request, webhooks.remove_endpoint)


async def _done(request: Request, change: Callable[..., Awaitable[None]]) -> Response:
    key = await require(request, "webhooks:write")
    asked = await body_of(request, _why)
    endpoint_id = _endpoint_of(request)

    async def work(connection: Connection) -> None:
        await change(connection, key.actor, endpoint_id, reason=asked.reason)

    await act(request, work)
    return answered(WebhookDone(endpoint_id))


@router.post("/v1/webhooks/{endpoint_id}:test", openapi_extra=TEST_OPERATION, response_model=None)
async def post_test(request: Request) -> Response:
    """Put a message for a receiver into the outbox."""
    key = await require(request, "webhooks:write")
    await body_of(request, _why)
    endpoint_id = _endpoint_of(request)

    async def work(connection: Connection) -> str:
        return await webhooks.send_test(connection, key.actor, endpoint_id)

    return answered(WebhookDone(endpoint_id, f"msg_{await act(request, work)}"))


@router.get("/v1/webhooks/{endpoint_id}/deliveries", openapi_extra=DELIVERIES_OPERATION, response_model=None)
async def get_deliveries(request: Request) -> Response:
    """Answer with what became of the messages to a receiver."""
    await require(request, "webhooks:write")
    endpoint_id = _endpoint_of(request)
    state = request.query_params.get("state")
    if state is not None and state not in _STATES:
        raise InvalidRequest("state", f"is one of {', '.join(_STATES)}")
    limit = limit_of(request.query_params.get("limit"), services_of(request).config.page_rows_max)

    async def work(connection: Connection) -> list[Delivery]:
        await webhooks.find_endpoint(connection, endpoint_id)
        return await webhooks.list_deliveries(connection, endpoint_id=endpoint_id, state=state, limit=limit)

    listed = [_delivery(each) for each in await act(request, work)]
    return answered(DeliveriesReply(endpoint_id, listed))


def _delivery(found: Delivery) -> DeliveryLine:
    return DeliveryLine(
        message_id=f"msg_{found.message_id}",
        kind=found.kind,
        tenant_id=found.tenant_id,
        state=found.state,
        attempts=found.attempts,
        created_at=found.created_at,
        next_at=found.next_at,
        last_at=found.last_at,
        last_status=found.last_status,
        last_error=found.last_error,
        delivered_at=found.delivered_at,
    )


@router.post(
    "/v1/webhooks/{endpoint_id}/deliveries/{message_id}:resend", openapi_extra=RESEND_OPERATION, response_model=None
)
async def post_resending(request: Request) -> Response:
    """Send a message to a receiver again."""
    key = await require(request, "webhooks:write")
    asked = await body_of(request, _why)
    endpoint_id, message_id = _endpoint_of(request), request.path_params["message_id"]

    async def work(connection: Connection) -> None:
        await webhooks.resend(connection, key.actor, message_id, endpoint_id=endpoint_id, reason=asked.reason)

    await act(request, work)
    return answered(WebhookDone(endpoint_id, f"msg_{message_id.removeprefix('msg_')}"))


def _endpoint_of(request: Request) -> str:
    endpoint_id: str = request.path_params["endpoint_id"]
    if "\0" in endpoint_id:
        raise Unknown("endpoint", endpoint_id)
    return endpoint_id


ROOM: Final = Room(
    router,
    "webhooks",
    "Who is told when a budget is reached, exhausted or overrun.",
    (
        WebhookBody,
        RotationBody,
        WebhookActBody,
        WebhookSecret,
        WebhooksReply,
        WebhookDone,
        DeliveriesReply,
    ),
)
