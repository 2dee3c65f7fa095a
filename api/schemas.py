"""What the answers to events, to reads of budgets and to health look like, and how the document says so."""

from datetime import datetime
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from api.documents import answers, keyed, ref
from ingest.usage_events import events_json_schema
from ledger.statements import Outcome
from quotas.remaining import Remaining


def _said(what: str, **more: Any) -> Meta:
    return Meta(description=what, **more)


class EventResult(Struct, omit_defaults=True):
    """What became of one event."""

    index: Annotated[int, _said("Its place in the request, from 0.")]
    id: Annotated[str | None, _said("Its id, or null where that could not be read.")]
    outcome: Annotated[
        Outcome,
        _said(
            "created: an entry. duplicate: known already, nothing changed. evidence: kept beside a better report. "
            "conflict: the same identity with other content; kept, not charged. dead_letter: kept with the reason."
        ),
    ]
    reason: Annotated[str | UnsetType, _said("A stable code.")] = UNSET
    detail: Annotated[str | UnsetType, _said("One line for a person.")] = UNSET


class EventsReply(Struct):
    """The answer to events, after their commit."""

    feed: Annotated[str, _said("The feed of the replica that took them.")]
    batch_number: Annotated[int, _said("Number of the batch in that feed, gapless.")]
    batch_id: Annotated[int, _said("What `last_batch_id` of a budget says once it is moved by them.")]
    counts: Annotated[dict[str, int], _said("How many of each outcome.")]
    results: Annotated[list[EventResult], _said("One for each event, in the order of the request.")]


class Feeds(Struct):
    """How far the Kafka feeds are behind; events over HTTP are in the ledger when they are answered."""

    lag_ms: Annotated[
        int | None,
        _said(
            "The largest: milliseconds since the append time up to which a feed is posted, over the feeds that have "
            "posted within a day. An idle feed is posted up to now. Null without such a feed."
        ),
    ]
    in_use_count: Annotated[int, _said("Kafka feeds that have posted within a day.")]
    silent_count: Annotated[int, _said("Those that have posted, but not within a day.")]


class BudgetsReply(Struct):
    """What remains of the budgets of one tenant, as one statement saw it."""

    tenant_id: str
    time_zone: Annotated[str, _said("The tenant's zone at that instant.")]
    at: Annotated[datetime, _said("The instant whose windows these are.")]
    database_time: datetime
    last_batch_id: Annotated[int | None, _said("The last batch that moved any of these windows.")]
    feeds: Feeds
    budgets: Annotated[msgspec.Raw, _said("Ordered by budget and group.")]


class TenantBudgetsReply(Struct):
    """One tenant in an answer for many."""

    tenant_id: str
    time_zone: str
    last_batch_id: int | None
    budgets: msgspec.Raw


class AllBudgetsReply(Struct):
    """What remains of the budgets of all tenants of a key, a page at a time."""

    at: datetime
    database_time: datetime
    last_batch_id: int | None
    feeds: Feeds
    tenants: Annotated[list[TenantBudgetsReply], _said("Ordered by tenant.")]
    next: Annotated[str | None, _said("The `after` of the next page; null on the last one.")]


class Health(Struct):
    """The process answers."""

    status: Annotated[str, _said("`alive` or `ready`.")]


# --- OpenAPI ---------------------------------------------------------------------------------------------------------

EVENT_EXAMPLE: Final = {
    "specversion": "1.0",
    "id": "0199c2d4-7b1e-7c3a-9f54-2a6d1c0be911",
    "source": "gateway://eu-1",
    "type": "llm.usage.v1",
    "time": "2026-01-15T10:00:00.25Z",
    "data": {
        "tenant_id": "t-alpha",
        "request_id": "req-7f2c",
        "feature": "chat",
        "language": "en",
        "provider": "openai",
        "model": "gpt-4o-mini",
        "flavour": "openai.chat",
        "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
    },
}
RESULT_EXAMPLE: Final = {
    "feed": "api:api-1",
    "batch_number": 42,
    "batch_id": 1042,
    "counts": {"created": 1, "dead_letter": 1},
    "results": [
        {"index": 0, "id": EVENT_EXAMPLE["id"], "outcome": "created"},
        {
            "index": 1,
            "id": None,
            "outcome": "dead_letter",
            "reason": "missing_id",
            "detail": "id: is missing",
        },
    ],
}
BUDGET_EXAMPLE: Final = {
    "budget_id": "alpha-monthly",
    "scope": {"tenant_id": "t-alpha"},
    "group": {},
    "unit": "charge",
    "currency": "USD",
    "window": {
        "kind": "month",
        "time_zone": "Australia/Brisbane",
        "first_date": "2026-09-01",
        "end_date": "2026-10-01",
        "starts_at": "2026-08-31T14:00:00Z",
        "ends_at": "2026-09-30T14:00:00Z",
    },
    "limit": "100",
    "posted": "0.4",
    "held": "0",
    "remaining": "99.6",
    "hardness": "hard",
    "is_tightest": True,
    "thresholds_reached": [],
    "unpriced_count": 0,
    "unpriced_tokens": 0,
    "last_batch_id": 1042,
}
_FEEDS_EXAMPLE: Final = {"lag_ms": 850, "in_use_count": 2, "silent_count": 0}
BUDGETS_EXAMPLE: Final = {
    "tenant_id": "t-alpha",
    "time_zone": "Australia/Brisbane",
    "at": "2026-09-02T00:00:00Z",
    "database_time": "2026-09-02T00:00:00Z",
    "last_batch_id": 1042,
    "feeds": _FEEDS_EXAMPLE,
    "budgets": [BUDGET_EXAMPLE],
}
ALL_EXAMPLE: Final = {
    "at": "2026-09-02T00:00:00Z",
    "database_time": "2026-09-02T00:00:00Z",
    "last_batch_id": 1042,
    "feeds": _FEEDS_EXAMPLE,
    "tenants": [
        {
            "tenant_id": "t-alpha",
            "time_zone": "Australia/Brisbane",
            "last_batch_id": 1042,
            "budgets": [BUDGET_EXAMPLE],
        }
    ],
    "next": None,
}


_AT: Final = {
    "name": "at",
    "in": "query",
    "required": False,
    "schema": {"type": "string", "format": "date-time"},
    "description": "RFC 3339 with an offset: show the windows in force at this instant. Absent: the database's now.",
    "example": "2026-08-31T14:00:00Z",
}
_IF_NONE_MATCH: Final = {
    "name": "If-None-Match",
    "in": "header",
    "required": False,
    "schema": {"type": "string"},
    "description": "The ETag of an earlier answer; if nothing has moved since, the answer is 304 without a body.",
}
_TENANT: Final = {
    "name": "tenant_id",
    "in": "path",
    "required": True,
    "schema": {"type": "string"},
    "example": "t-alpha",
}
_NOT_MODIFIED: Final = {"304": {"description": "Nothing has moved since the answer with that ETag."}}

EVENTS_OPERATION: Final[dict[str, Any]] = {
    "summary": "Post usage events",
    "description": (
        "Posts events straight into the ledger and answers after the commit, with what became of each, in their order. The "
        "status is 200 whenever every event has a stored outcome, `conflict` and `dead_letter` included: such an event "
        "must not be sent again, it is kept and explained."
    ),
    "operationId": "postEvents",
    "tags": ["events"],
    "security": keyed("events:write"),
    "requestBody": {
        "required": True,
        "content": {
            "application/cloudevents+json": {"schema": ref("Event"), "example": EVENT_EXAMPLE},
            "application/cloudevents-batch+json": {
                "schema": {"type": "array", "items": ref("Event")},
                "example": [EVENT_EXAMPLE],
            },
            "application/json": {"schema": {"oneOf": [ref("Event"), {"type": "array", "items": ref("Event")}]}},
            "application/x-ndjson": {"schema": {"type": "string", "description": "One event on each line."}},
        },
    },
    "responses": answers(
        "EventsReply",
        RESULT_EXAMPLE,
        "empty-body",
        "unauthenticated",
        "scope-missing",
        "body-too-large",
        "too-many-events",
        "unsupported-media-type",
        "internal-error",
        "queue-full",
        "deadline-passed",
        "database-away",
        "replica-fenced",
        "closing",
        what="Every event has a stored outcome.",
    ),
}
TENANT_BUDGETS_OPERATION: Final[dict[str, Any]] = {
    "summary": "What remains for a tenant",
    "description": "The tenant's budgets and the templates that apply to it, each in the window in force.",
    "operationId": "getTenantBudgets",
    "tags": ["budgets"],
    "security": keyed("budgets:read"),
    "parameters": [_TENANT, _AT, _IF_NONE_MATCH],
    "responses": {
        **answers(
            "BudgetsReply",
            BUDGETS_EXAMPLE,
            "unauthenticated",
            "scope-missing",
            "tenant-not-found",
            "invalid-request",
            "internal-error",
            "database-away",
        ),
        **_NOT_MODIFIED,
    },
}
BUDGETS_OPERATION: Final[dict[str, Any]] = {
    "summary": "What remains for all tenants of the key",
    "description": "A source's key sees the tenants that it speaks for, a tenant's key itself. By pages, ordered by tenant.",
    "operationId": "getBudgets",
    "tags": ["budgets"],
    "security": keyed("budgets:read"),
    "parameters": [
        _AT,
        {
            "name": "after",
            "in": "query",
            "required": False,
            "schema": {"type": "string"},
            "description": "The last tenant of the page before.",
        },
        {
            "name": "limit",
            "in": "query",
            "required": False,
            "schema": {"type": "integer", "minimum": 1},
            "description": "Tenants on a page, up to the replica's limit.",
        },
        _IF_NONE_MATCH,
    ],
    "responses": {
        **answers(
            "AllBudgetsReply",
            ALL_EXAMPLE,
            "unauthenticated",
            "scope-missing",
            "invalid-request",
            "internal-error",
            "database-away",
        ),
        **_NOT_MODIFIED,
    },
}
HEALTH_OPERATION: Final[dict[str, Any]] = {
    "summary": "Is the process alive",
    "operationId": "getHealth",
    "tags": ["operation"],
    "responses": answers("Health", {"status": "alive"}),
}
READY_OPERATION: Final[dict[str, Any]] = {
    "summary": "May requests be sent here",
    "description": "The database is reachable and migrated, the feed is ours, the queue has room, no commit is stuck.",
    "operationId": "getReadiness",
    "tags": ["operation"],
    "responses": answers("Health", {"status": "ready"}, "not-ready"),
}
METRICS_OPERATION: Final[dict[str, Any]] = {
    "summary": "Counters for Prometheus",
    "description": "No label names a tenant, a source or a key.",
    "operationId": "getMetrics",
    "tags": ["operation"],
    "responses": {"200": {"description": "OK", "content": {"text/plain": {"schema": {"type": "string"}}}}},
}

EVENT_SCHEMAS: Final = (EventResult, EventsReply)
BUDGET_SCHEMAS: Final = (Feeds, BudgetsReply, AllBudgetsReply, TenantBudgetsReply, Remaining)
HEALTH_SCHEMAS: Final = (Health,)


def complete_events(schemas: dict[str, Any]) -> None:
    """Add the events as their reader takes them."""
    events = msgspec.json.decode(
        msgspec.json.encode(events_json_schema()).replace(b"#/$defs/", b"#/components/schemas/")
    )
    schemas.update(events["$defs"])
    schemas["Event"] = {"oneOf": events["oneOf"], "description": "One CloudEvents event."}


def complete_budgets(schemas: dict[str, Any]) -> None:
    """Say what stands where an answer holds text that was encoded before."""
    for name in ("BudgetsReply", "TenantBudgetsReply"):
        schemas[name]["properties"]["budgets"] = {"type": "array", "items": ref("Remaining")}
    schemas["Remaining"]["properties"]["scope"] = {
        "type": "object",
        "description": "What usage must be to count here.",
    }
