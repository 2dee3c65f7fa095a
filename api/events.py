"""POST /v1/events: bytes to the group commit, and its results to the sender."""

import time
from collections import Counter
from typing import Final

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from api.bodies import read_body
from api.documents import Room
from api.errors import Unavailable, UnsupportedMediaType
from api.group_commit import Answer
from api.schemas import EVENT_SCHEMAS, EVENTS_OPERATION, EventResult, EventsReply, complete_events
from api.services import services_of
from ingest.intake import Message
from ingest.usage_events import Speaker, event_ids

router = APIRouter()

LINES: Final = "application/x-ndjson"
_TYPES: Final = frozenset(
    {"application/json", "application/cloudevents+json", "application/cloudevents-batch+json", LINES}
)


@router.post("/v1/events", include_in_schema=True, openapi_extra=EVENTS_OPERATION, response_model=None)
async def post_events(request: Request) -> Response:
    """Post events and answer after the commit."""
    services = services_of(request)
    key = await services.keys.identify(request.headers.get("authorization"), "events:write")
    is_lines = _content_type(request) == LINES
    body = await read_body(request, services.config.body_bytes_max)
    message = Message(
        body,
        received_at=time.time_ns() // 1000,
        origin=key.key_id,
        # An operator's key speaks for nobody: then the event's own source is held to its tenants, as over Kafka.
        speaker=None if key.is_operators else Speaker(key.tenant_id, key.source),
        is_lines=is_lines,
    )
    try:
        answer = await services.commits.submit(message)
    except Unavailable as refusal:
        services.metrics.pushed_back.labels(refusal.code).inc()
        raise
    return Response(_reply(answer, body, is_lines), media_type="application/json")


def _content_type(request: Request) -> str:
    """Return the media type of the body.

    Errors: `UnsupportedMediaType`. Events whose attributes stand in headers (CloudEvents' binary mode) are refused, since
    their body alone would look like an event without any.
    """
    name, *parameters = request.headers.get("content-type", "").lower().split(";")
    name = name.strip()
    if name not in _TYPES:
        raise UnsupportedMediaType(f"content-type is {name!r:.80}; known are {', '.join(sorted(_TYPES))}")
    for parameter in parameters:
        attribute, _, value = parameter.strip().partition("=")
        if attribute == "charset" and value.strip('"') not in {"utf-8", "utf8", "us-ascii"}:
            raise UnsupportedMediaType("charset must be utf-8")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise UnsupportedMediaType("content-encoding is not supported: send the body as it is")
    if "ce-id" in request.headers or "ce-specversion" in request.headers:
        raise UnsupportedMediaType("events in binary mode are not supported: put the attributes into the body")
    return name


def _reply(answer: Answer, body: bytes, is_lines: bool) -> bytes:
    ids = event_ids(body, is_lines=is_lines)
    results = [
        EventResult(
            index,
            event_id,
            result.outcome,
            msgspec.UNSET if result.reason is None else result.reason,
            msgspec.UNSET if result.detail is None else result.detail,
        )
        for index, (event_id, result) in enumerate(zip(ids, answer.results, strict=True))
    ]
    counts: Counter[str] = Counter(result.outcome for result in answer.results)
    return msgspec.json.encode(EventsReply(answer.feed, answer.number, answer.batch_id, dict(counts), results))


ROOM: Final = Room(router, "events", "Usage in.", EVENT_SCHEMAS, complete_events)
