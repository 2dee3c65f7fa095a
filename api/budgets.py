"""GET budgets: the key's tenants to the reader, and what remains to the caller."""

from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from api.bodies import WITHIN_YEARS
from api.documents import Room
from api.encoded import with_tag
from api.errors import InvalidRequest, TenantNotFound
from api.pages import limit_of
from api.schemas import (
    BUDGET_SCHEMAS,
    BUDGETS_OPERATION,
    TENANT_BUDGETS_OPERATION,
    AllBudgetsReply,
    BudgetsReply,
    Feeds,
    TenantBudgetsReply,
    complete_budgets,
)
from api.services import Services, services_of
from ledger.api_keys import ApiKey
from ledger.database import Connection
from ledger.times import from_micros, is_within_years, parse_rfc3339
from quotas.remaining import Lag, Snapshot, TenantBudgets, remaining, tenant_ids_after

router = APIRouter()

_HEADERS: Final = ((b"cache-control", b"private, no-cache"), (b"vary", b"authorization"))
_encode: Final = msgspec.json.Encoder().encode

PATH: Final = "/v1/tenants/{tenant_id}/budgets"


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer as it goes to the wire."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes

    def response(self) -> Response:
        response = Response(self.body, self.status)
        response.raw_headers = self.headers
        return response


@router.get(PATH, openapi_extra=TENANT_BUDGETS_OPERATION, response_model=None)
async def get_tenant_budgets(request: Request) -> Response:
    """Answer with what remains for one tenant."""
    headers = request.headers
    reply = await tenant_budgets(
        services_of(request),
        request.path_params["tenant_id"],
        request.query_params.get("at"),
        headers.get("authorization"),
        headers.get("if-none-match"),
    )
    return reply.response()


async def tenant_budgets(
    services: Services, tenant_id: str, at_text: str | None, authorization: str | None, held_tag: str | None
) -> Reply:
    """Return the answer with what remains for one tenant, for whoever the header says is asking."""
    key = await services.keys.identify(authorization, "budgets:read")
    at = _instant(at_text)
    found = await services.budgets.get((tenant_id, at)) if key.may_read(tenant_id) and "\0" not in tenant_id else None
    if found is None:
        raise TenantNotFound("there is no such tenant, or it is not this key's to see")
    budgets, tag = services.encoded.of(tenant_id, found.budgets) if at is None else with_tag(found.budgets)
    body = BudgetsReply(
        found.tenant_id,
        found.time_zone,
        found.at,
        found.database_time,
        found.last_batch_id,
        _feeds(found.lag),
        msgspec.Raw(budgets),
    )
    return _reply(held_tag, body, tag, found.database_time, found.lag)


@router.get("/v1/budgets", openapi_extra=BUDGETS_OPERATION, response_model=None)
async def get_budgets(request: Request) -> Response:
    """Answer with what remains for all tenants of the key, a page at a time."""
    services = services_of(request)
    key = await services.keys.identify(request.headers.get("authorization"), "budgets:read")
    at = _instant(request.query_params.get("at"))
    limit = limit_of(request.query_params.get("limit"), services.config.page_tenants_max)
    after = request.query_params.get("after", "")
    if "\0" in after:
        raise InvalidRequest("after", "is no tenant id")
    found, tenants, following = await services.reader.run(partial(_page, key, at, after, limit))
    listed = [
        TenantBudgetsReply(one.tenant_id, one.time_zone, one.last_batch_id, msgspec.Raw(_encode(one.budgets)))
        for one in tenants
    ]
    last = max((one.last_batch_id for one in tenants if one.last_batch_id is not None), default=None)
    shown_at = found.database_time if at is None else from_micros(at)
    reply = AllBudgetsReply(shown_at, found.database_time, last, _feeds(found.lag), listed, following)
    held_tag = request.headers.get("if-none-match")
    _, tag = with_tag((listed, following))
    return _reply(held_tag, reply, tag, found.database_time, found.lag).response()


async def _page(
    key: ApiKey, at: int | None, after: str, limit: int, connection: Connection
) -> tuple[Snapshot, list[TenantBudgets], str | None]:
    """Read a page of a key's tenants; also return after whom the next one begins."""
    if key.speaks_for_all:
        ids = await tenant_ids_after(connection, after, limit + 1)
    else:
        own = key.tenant_ids if key.tenant_id is None else {key.tenant_id}
        ids = sorted(tenant_id for tenant_id in own if tenant_id > after)
    following = ids[limit - 1] if len(ids) > limit else None
    snapshot = await remaining(connection, [(tenant_id, at) for tenant_id in ids[:limit]])
    return snapshot, list(snapshot.tenants.values()), following


def _instant(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        # A plus sign that nobody escaped arrives as a space.
        at = parse_rfc3339(text.replace(" ", "+") if text[-6:-5] == " " else text)
    except (ValueError, OverflowError):
        raise InvalidRequest("at", "must be an RFC 3339 time with an offset") from None
    if not is_within_years(at):
        raise InvalidRequest("at", WITHIN_YEARS)
    return at


def _feeds(lag: Lag) -> Feeds:
    return Feeds(lag.lag_ms, lag.in_use_count, lag.silent_count)


def _reply(held_tag: str | None, body: Any, tag: bytes, now: datetime, lag: Lag) -> Reply:
    """Encode an answer, or say that nothing has moved since the one that the caller holds."""
    headers = [
        *_HEADERS,
        (b"etag", tag),
        (b"tallystick-database-time", now.isoformat().encode()),
    ]
    if lag.lag_ms is not None:
        headers.append((b"tallystick-feed-lag-ms", b"%d" % lag.lag_ms))
    if held_tag is not None and (
        held_tag.strip() == "*" or tag.decode() in [one.strip() for one in held_tag.split(",")]
    ):
        return Reply(304, headers, b"")
    encoded = _encode(body)
    headers.append((b"content-type", b"application/json"))
    headers.append((b"content-length", b"%d" % len(encoded)))
    return Reply(200, headers, encoded)


ROOM: Final = Room(router, "budgets", "What may still be spent.", BUDGET_SCHEMAS, complete_budgets)
