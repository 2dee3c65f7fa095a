"""GET usage: what a tenant used and owes, for the tenant itself."""

from datetime import date, datetime, timedelta
from functools import partial
from typing import Annotated, Final

import msgspec
from fastapi import APIRouter
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from api.admin import answered, require
from api.bodies import WITHIN_YEARS
from api.documents import Room, operation, path_parameter, query_parameter
from api.errors import InvalidRequest, TenantNotFound
from api.pages import limit_of
from api.services import services_of
from ledger.database import Connection
from ledger.times import YEARS
from ledger.usage import BEFORE_ALL, Place, Usage, usage_of

router = APIRouter()

_DAYS_MAX: Final = 366


class UsageLine(Struct):
    """What was used and is owed on one local day for one model and feature, in one currency. Corrections are in it."""

    day: Annotated[date, Meta(description="In the tenant's zone.")]
    model: Annotated[str | None, Meta(description="Null where no report named one.")]
    feature: str | None
    currency: Annotated[str | None, Meta(description="ISO 4217; null where the charge's currency is not known.")]
    request_count: int
    charge_amount: Annotated[str, Meta(description="Decimal text, exact, unrounded: of the requests that are priced.")]
    unpriced_count: Annotated[int, Meta(description="Requests whose charge is not known yet: not in the amount.")]
    missing_count: Annotated[int, Meta(description="Requests whose counts never came: not in the quantities.")]
    quantities: Annotated[msgspec.Raw, Meta(description="By meter; what was not used is not there.")]


class UsageReply(Struct):
    """A tenant's usage, a page at a time."""

    tenant_id: str
    first_date: date
    end_date: Annotated[date, Meta(description="Exclusive.")]
    database_time: Annotated[datetime, Meta(description="Whatever was acknowledged until then is in it.")]
    lines: Annotated[list[UsageLine], Meta(description="Ordered by day, model, feature and currency.")]
    next: Annotated[str | None, Meta(description="The `after` of the next page; null on the last one.")]


_EXAMPLE: Final = {
    "tenant_id": "t-alpha",
    "first_date": "2026-01-01",
    "end_date": "2026-02-01",
    "database_time": "2026-01-20T08:00:00Z",
    "lines": [
        {
            "day": "2026-01-15",
            "model": "gpt-4o-mini",
            "feature": "chat",
            "currency": "USD",
            "request_count": 2,
            "charge_amount": "0.00056",
            "unpriced_count": 0,
            "missing_count": 0,
            "quantities": {"uncached_input_tokens": 200, "visible_output_tokens": 20},
        }
    ],
    "next": None,
}
_DATE: Final = {"type": "string", "format": "date"}

USAGE_OPERATION: Final = operation(
    "getTenantUsage",
    "What a tenant used and owes",
    tag="usage",
    scope="usage:read",
    description=(
        "The fold of the tenant's entries by its local day, model, feature and currency, corrections included, exact and "
        "unrounded. An invoice rounds, and takes late usage into a later month; this shows when usage occurred."
    ),
    parameters=(
        path_parameter("tenant_id", "Whose usage.", "t-alpha"),
        query_parameter("from", "The first day, in the tenant's zone. Absent: thirty days before `to`.", _DATE),
        query_parameter("to", "The day after the last one. Absent: tomorrow.", _DATE),
        query_parameter("after", "The `next` of the page before."),
        query_parameter("limit", "Lines on a page, up to the replica's limit.", {"type": "integer", "minimum": 1}),
    ),
    answer=UsageReply,
    example=_EXAMPLE,
    problems=("tenant-not-found", "invalid-request", "too-much-to-read", "database-away"),
)


@router.get("/v1/tenants/{tenant_id}/usage", openapi_extra=USAGE_OPERATION, response_model=None)
async def get_tenant_usage(request: Request) -> Response:
    """Answer with what a tenant used and owes."""
    key = await require(request, "usage:read")
    services = services_of(request)
    query = request.query_params
    limit = limit_of(query.get("limit"), services.config.page_rows_max)
    after = _place(query.get("after"))
    asked = _day("from", query.get("from")), _day("to", query.get("to"))
    tenant_id = request.path_params["tenant_id"]
    found = None
    if key.may_read(tenant_id) and "\0" not in tenant_id:
        found = await services.reports.run(partial(_usage, tenant_id, asked, limit, after))
    if found is None:
        raise TenantNotFound("there is no such tenant, or it is not this key's to see")
    first, end, usage = found
    lines = [
        UsageLine(
            row.day,
            row.model or None,
            row.feature or None,
            row.currency or None,
            row.request_count,
            row.charge_amount,
            row.unpriced_count,
            row.missing_count,
            msgspec.Raw((row.quantities or "{}").encode()),
        )
        for row in usage.rows[:limit]
    ]
    following = _cursor(usage.rows[limit - 1].place) if len(usage.rows) > limit else None
    reply = UsageReply(tenant_id, first, end, usage.at, lines, following)
    return answered(reply, headers={"cache-control": "private, no-cache", "vary": "authorization"})


async def _usage(
    tenant_id: str, asked: tuple[date | None, date | None], limit: int, after: Place, connection: Connection
) -> tuple[date, date, Usage] | None:
    """Read a page and one line more; None without such a tenant."""
    cursor = await connection.execute(
        "select (clock_timestamp() at time zone v.time_zone)::date"
        " from ledger.tenant_versions as v where v.tenant_id = %s"
        " order by v.effective_at <= clock_timestamp() desc, v.effective_at desc limit 1",
        [tenant_id],
    )
    row = await cursor.fetchone()
    if row is None:
        return None
    end = asked[1] or row[0] + timedelta(days=1)
    first = asked[0] or end - timedelta(days=30)
    if not 0 < (end - first).days <= _DAYS_MAX:
        raise InvalidRequest("to", f"must be after from, by {_DAYS_MAX} days at most")
    return first, end, await usage_of(connection, tenant_id, first, end, limit=limit + 1, after=after)


def _day(name: str, text: str | None) -> date | None:
    if text is None:
        return None
    try:
        day = date.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(name, "must be a date such as 2026-12-31") from None
    if day.year not in YEARS:
        raise InvalidRequest(name, WITHIN_YEARS)
    return day


_place_decoder: Final = msgspec.json.Decoder(tuple[date, str, str, str])


def _place(text: str | None) -> Place:
    if text is None:
        return BEFORE_ALL
    try:
        place = _place_decoder.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        raise InvalidRequest("after", "must be the `next` of the page before") from None
    if any("\0" in part for part in place[1:]):
        raise InvalidRequest("after", "must be the `next` of the page before")
    return place


def _cursor(place: Place) -> str:
    return msgspec.json.encode(place).decode()


def complete(schemas: dict[str, object]) -> None:
    """Say what stands where a line holds text that was encoded before."""
    line = schemas["UsageLine"]
    assert isinstance(line, dict)
    line["properties"]["quantities"] = {
        "type": "object",
        "additionalProperties": {"type": "integer"},
        "description": "By meter; what was not used is not there.",
    }


ROOM: Final = Room(router, "usage", "What was used and is owed.", (UsageReply, UsageLine), complete)
