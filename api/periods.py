"""Months over HTTP: list and show them, close and open them again, by the functions that the commands call."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from fastapi import APIRouter
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from api.admin import act, answered, body_of, require
from api.documents import Room, operation, path_parameter, query_parameter
from api.errors import InvalidRequest
from api.parties import Act, Month, Reason, month_of_text
from api.services import services_of
from ledger import closing, periods, seals
from ledger.approvals import Awaiting
from ledger.closing import ClosingPeriod
from ledger.database import Connection
from ledger.periods import PeriodRecord
from ledger.seals import SealRecord

router = APIRouter()

_SCOPE: Final = "periods:write"


class PeriodsReply(Struct):
    """Months, by tenant and month."""

    periods: Sequence[PeriodRecord]


class PeriodReply(Struct):
    """A tenant's month: what it holds, what waits for a person, its seals, and what keeps it closed."""

    period: PeriodRecord
    contains: ClosingPeriod
    seals: Sequence[SealRecord]
    kept_closed_by: Sequence[str]


class PeriodClose(Act, kw_only=True):
    """Whose month to close: one tenant's, that of an entity's tenants, or everybody's."""

    month: Month
    tenant_id: str | None = None
    entity_id: str | None = None
    everybody: bool = False
    is_early: Annotated[bool, Meta(description="Although it has not ended; takes a reason.")] = False
    accept_unknown: Annotated[
        bool,
        Meta(description="Although it holds requests without a charge or usage, or open conflicts; takes a reason."),
    ] = False
    commit: Annotated[bool, Meta(description="Close it; without this, only say what would be.")] = False


class CloseReply(Struct):
    """What a close freezes, and what it did."""

    preview: Annotated[Sequence[ClosingPeriod], Meta(description="As it was before.")]
    closed: Annotated[Sequence[str], Meta(description="Tenants whose month is closed by this; none without `commit`.")]
    closed_before: Sequence[str]
    left_open: Annotated[
        Mapping[str, Sequence[str]],
        Meta(description="Tenants whose month stays open, and why: nobody knows what some of its usage comes to."),
    ]
    seals: Annotated[
        Sequence[SealRecord], Meta(description="Made by this, of earlier closes too that were interrupted.")
    ]


class PeriodReopen(Act, kw_only=True):
    """A closed month that is to take usage again."""

    tenant_id: str
    month: Month
    reason: Reason  # type: ignore[assignment]


class ReopenReply(Struct):
    """What became of it."""

    outcome: Annotated[
        Literal["reopened", "awaiting"], Meta(description="awaiting: a second person has to agree, then send it again.")
    ]
    period: PeriodRecord
    approval_id: int | None


_PERIOD: Final = {
    "tenant_id": "t-alpha",
    "posting_period": "2026-11-01",
    "starts_at": "2026-10-31T23:00:00Z",
    "ends_at": "2026-11-30T23:00:00Z",
    "grace_until": "2026-12-03T23:00:00Z",
    "state": "closed",
    "close_number": 1,
    "closed_at": "2026-12-04T09:00:00Z",
    "is_sealed": True,
}
_CONTENTS: Final = {
    "tenant_id": "t-alpha",
    "posting_period": "2026-11-01",
    "state": "open",
    "ends_at": "2026-11-30T23:00:00Z",
    "grace_until": "2026-12-03T23:00:00Z",
    "entry_count": 1200,
    "evidence_count": 300,
    "request_count": 1190,
    "cost_sums": {"USD": "10.12"},
    "charge_sums": {"EUR": "12.345"},
    "cost_unpriced_count": 0,
    "charge_unpriced_count": 0,
    "usage_missing_count": 0,
    "estimated_count": 0,
    "conflict_count": 0,
    "dead_letter_count": 0,
}
_SEAL: Final = {
    "tenant_id": "t-alpha",
    "posting_period": "2026-11-01",
    "close_number": 1,
    "is_superseded": False,
    "sealed_at": "2026-12-04T09:00:01Z",
    "line_count": 90,
    "row_count": 1500,
    "request_count": 1190,
    "cost_sums": {"USD": "10.12"},
    "charge_sums": {"EUR": "12.345"},
    "cost_unpriced_count": 0,
    "charge_unpriced_count": 0,
    "usage_missing_count": 0,
    "digest": "daf7aa0a98b48582e4b22107fe4fdb99162cfe68e12696a255c9fe4639c46105",
}


@router.get(
    "/v1/periods",
    openapi_extra=operation(
        "listPeriods", "The months of tenants", tag="periods", scope=_SCOPE, answer=PeriodsReply, is_act=True,
        example={"periods": [_PERIOD]}, problems=("invalid-request",),
        parameters=(
            query_parameter("tenant_id", "Of this tenant; this or `month` is needed."),
            query_parameter("month", "Of this month, such as 2026-11."),
        ),
    ),
    response_model=None,
)  # fmt: skip
async def list_periods(request: Request) -> Response:
    """Answer with months of a tenant, or with a month of all tenants."""
    await require(request, _SCOPE)
    tenant_id, month = request.query_params.get("tenant_id"), request.query_params.get("month")
    if tenant_id is None and month is None:
        raise InvalidRequest("tenant_id", "or month is needed: all months of all tenants are no answer")
    first = None if month is None else month_of_text("month", month)
    if tenant_id is not None and "\0" in tenant_id:
        raise InvalidRequest("tenant_id", "holds a character that no name has")
    found = await act(request, lambda connection: periods.list_periods(connection, tenant_id=tenant_id, month=first))
    return answered(PeriodsReply(found))


@router.get(
    "/v1/periods/{tenant_id}/{month}",
    openapi_extra=operation(
        "showPeriod", "A tenant's month and its seals", tag="periods", scope=_SCOPE, answer=PeriodReply, is_act=True,
        example={"period": _PERIOD, "contains": {**_CONTENTS, "state": "closed"}, "seals": [_SEAL], "kept_closed_by": []},
        problems=("invalid-request",),
        parameters=(
            path_parameter("tenant_id", "Whose month.", "t-alpha"), path_parameter("month", "Which.", "2026-11"),
        ),
    ),
    response_model=None,
)  # fmt: skip
async def show_period(request: Request) -> Response:
    """Answer with what a month holds."""
    await require(request, _SCOPE)
    tenant_id = request.path_params["tenant_id"]
    if "\0" in tenant_id:
        raise InvalidRequest("tenant_id", "holds a character that no name has")
    first = month_of_text("month", request.path_params["month"])

    async def work(connection: Connection) -> PeriodReply:
        found = await periods.find_period(connection, tenant_id, first)
        (inside,) = await closing.preview_close(connection, first, tenant_id=tenant_id)
        made = await seals.list_seals(connection, tenant_id=tenant_id, month=first)
        return PeriodReply(found, inside, made, await closing.what_depends_on(connection, tenant_id, first))

    return answered(await act(request, work))


@router.post(
    "/v1/periods:close",
    openapi_extra=operation(
        "closePeriods", "Say what a month holds and, with `commit`, close and seal it", tag="periods", scope=_SCOPE,
        answer=CloseReply, body=PeriodClose, is_act=True,
        example={"preview": [_CONTENTS], "closed": ["t-alpha"], "closed_before": [], "left_open": {}, "seals": [_SEAL]},
        body_example={"month": "2026-11", "tenant_id": "t-alpha", "commit": True},
        description=(
            "No row enters a closed month; late usage goes to the next one. The states flip in one transaction, the seals "
            "follow in others: whatever an interrupted call leaves is finished by the next, or by the scheduler. A month with "
            "requests without a charge or usage, or with open conflicts, is in `left_open` and stays as it is."
        ),
    ),
    response_model=None,
)  # fmt: skip
async def close_periods(request: Request) -> Response:
    """Preview a close, or close and seal."""
    key = await require(request, _SCOPE)
    asked = await body_of(request, _close)
    month = month_of_text("month", asked.month)
    if (asked.tenant_id is not None) + (asked.entity_id is not None) + asked.everybody != 1:
        raise InvalidRequest("body", "must say whose month: tenant_id, entity_id or everybody")
    whose: dict[str, Any] = {"tenant_id": asked.tenant_id, "entity_id": asked.entity_id}
    if asked.accept_unknown and not (asked.reason or "").strip():
        raise InvalidRequest("reason", "is needed to close over what is unknown")
    preview = await act(request, lambda connection: closing.preview_close(connection, month, **whose))
    unknown = {each.tenant_id: each.unknown for each in preview if each.unknown}
    waiting = {} if asked.accept_unknown else unknown
    if not asked.commit:
        before = [each.tenant_id for each in preview if each.state == "closed"]
        return answered(CloseReply(preview, [], before, waiting, []))
    actor = key.actor if asked.actor is None else f"{asked.actor} ({key.actor})"
    done = await act(
        request,
        lambda connection: closing.close_periods(
            connection,
            actor,
            month,
            is_early=asked.is_early,
            reason=asked.reason,
            leave_open=waiting,
            accepted=unknown,
            **whose,
        ),
    )
    made = await act(request, lambda connection: closing.seal_pending(connection, month=month))
    await act(request, closing.close_partitions)
    return answered(CloseReply(preview, done.closed, done.closed_before, waiting, made))


@router.post(
    "/v1/periods:reopen",
    openapi_extra=operation(
        "reopenPeriod", "Let a closed month take usage again", tag="periods", scope=_SCOPE, answer=ReopenReply,
        body=PeriodReopen, is_act=True,
        example={
            "outcome": "reopened",
            "period": {**_PERIOD, "state": "open", "closed_at": None, "is_sealed": False},
            "approval_id": None,
        },
        body_example={"tenant_id": "t-alpha", "month": "2026-11", "reason": "a node was late"},
        description="Its seal stays and is superseded. Refused where something was made of the month, such as an invoice.",
    ),
    response_model=None,
)  # fmt: skip
async def reopen_period(request: Request) -> Response:
    """Open a closed month again."""
    key = await require(request, _SCOPE)
    asked = await body_of(request, _reopen)
    month = month_of_text("month", asked.month)
    config = services_of(request).config
    # The key is who asks, whomever it says it acts for: a second person must hold another one.
    actor = key.actor

    async def work(connection: Connection) -> ReopenReply:
        done = await closing.reopen_period(
            connection,
            actor,
            asked.tenant_id,
            month,
            reason=asked.reason if asked.actor is None else f"{asked.reason} (for {asked.actor})",
            needed=config.second_person,
            grace_days=config.grace_days,
        )
        if isinstance(done, Awaiting):
            found = await periods.find_period(connection, asked.tenant_id, month)
            return ReopenReply("awaiting", found, done.approval_id)
        return ReopenReply("reopened", done, None)

    return answered(await act(request, work))


_close: Final = msgspec.json.Decoder(PeriodClose)
_reopen: Final = msgspec.json.Decoder(PeriodReopen)

ROOM: Final = Room(
    router,
    "periods",
    "Months of tenants: what they hold, closed and opened again. With an operator's key.",
    (PeriodsReply, PeriodReply, PeriodClose, CloseReply, PeriodReopen, ReopenReply),
)
