"""Reservations over HTTP: may a call go ahead, and how it ended. Bytes to asks, decisions to answers."""

import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import ROUND_FLOOR, Decimal
from math import ceil
from typing import Annotated, Any, Final
from urllib.parse import quote

import msgspec
from fastapi import APIRouter
from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import force_setattr, replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope

from api.away import AwayDecision
from api.bodies import check_json, decode, read_stream
from api.documents import Room, answers, operation, path_parameter, query_parameter
from api.encoded import Admissions
from api.errors import (
    BudgetExhausted,
    EstimateMissing,
    InvalidRequest,
    PriceUnknown,
    Refusal,
    ReservationConflict,
    ReservationNotFound,
    ReservationOver,
    TenantInactive,
    TenantNotFound,
    Unavailable,
)
from api.reserving import Extension
from api.services import Services, services_of
from ingest.intake import Message
from ingest.usage_events import Speaker
from ledger.api_keys import ApiKey
from ledger.statements import Outcome as EventOutcome
from quotas.asks import (
    Admission,
    Ask,
    Change,
    Decided,
    Decision,
    Hold,
    Key,
    Reservation,
    Settlement,
    State,
    Tightest,
    check_amounts,
)
from quotas.estimates import Basis
from quotas.remaining import Span

router = APIRouter()

PATH: Final = "/v1/reservations"
BATCH_PATH: Final = "/v1/reservations:batch"
ONE_PATH: Final = "/v1/reservations/{reservation_id}"
_EXAMPLE_ID: Final = "0199c2d4-7b1e-7c3a-9f54-2a6d1c0be911"


_Count = Annotated[int, Meta(ge=0, lt=2**53)]
_Payer = Annotated[str | None, Meta(description="As the usage event will name it. A tenant's key may leave it out.")]
_Currency = Annotated[str, Meta(min_length=3, max_length=3)]


class AskBody(Ask, kw_only=True, frozen=True, gc=False, forbid_unknown_fields=True, omit_defaults=True):
    """May this call go ahead? Of input, output, quantities and amounts give what you know."""

    reservation_id: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=255,
            pattern="^[^/\\x00]+$",
            description="Your own, one for each call, made before the first try: asked again, it is answered with where it stands.",
        ),
    ]
    tenant_id: _Payer = None  # type: ignore[assignment]  # until `_for` has put the key's own here
    operation_id: Annotated[str | None, Meta(description="The logical request.")] = None
    basis: Annotated[
        Basis,
        Meta(description="worst_case: counted input and output cap at the dearest rates. expected: your own estimate."),
    ] = "worst_case"
    input_tokens: _Count | None = None
    output_tokens: Annotated[
        _Count | None, Meta(description="The cap that the call is sent with, or your estimate.")
    ] = None
    quantities: Annotated[dict[str, int] | None, Meta(description="Counts by meter, in place of the two.")] = None
    charge: Annotated[Decimal | None, Meta(description="Decimal text, in the tenant's currency.")] = None
    cost: Annotated[Decimal | None, Meta(description="Decimal text, in cost_currency.")] = None
    cost_currency: _Currency | None = None
    model: Annotated[str | None, Meta(description="As it will be requested: an exact id or alias.")] = None
    lane: Annotated[str | None, Meta(description="`batch` leaves the interactive reserve alone.")] = None
    api_key_id: Annotated[str | None, Meta(description="Of your own caller, where budgets look at it.")] = None
    ttl_seconds: Annotated[
        int,
        Meta(
            ge=1, le=86_400, description="Without a word for so long the hold may expire: longer than the call takes."
        ),
    ] = 600

    def __post_init__(self) -> None:
        # Ids, counts and times are held to their rules by their types.
        if (self.quantities, self.charge, self.cost, self.cost_currency) != (None,) * 4:
            check_amounts(self)


class BatchBody(Struct, forbid_unknown_fields=True):
    """Asks of a gateway that gathers."""

    reservations: Annotated[
        list[AskBody], Meta(min_length=1, description="Those of one tenant are decided in this order.")
    ]


class SettleBody(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How the call ended: with its usage, or with the word that the usage will come."""

    tenant_id: Annotated[str | None, Meta(description="A tenant's key may leave it out.")] = None
    event: Annotated[
        msgspec.Raw | UnsetType,
        Meta(
            description="The usage event, with this reservation_id in its data: posted in the commit that closes the reservation."
        ),
    ] = UNSET
    charge: Annotated[Decimal | None, Meta(description="Without an event: how much of what is held stays.")] = None
    cost: Decimal | None = None
    input_tokens: _Count | None = None
    output_tokens: _Count | None = None


class VoidBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """The call took nothing."""

    tenant_id: Annotated[str | None, Meta(description="A tenant's key may leave it out.")] = None


class ExtendBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """The call goes on."""

    ttl_seconds: Annotated[int, Meta(ge=1, le=86_400, description="Seconds from now; never less than it had.")]
    tenant_id: Annotated[str | None, Meta(description="A tenant's key may leave it out.")] = None


class ReservationReply(Struct, omit_defaults=True):
    """What became of an ask."""

    tenant_id: str
    reservation_id: str
    outcome: Annotated[
        str,
        Meta(
            description="admitted, or degraded: by the route and the cap that stand here. In a batch also refused and conflict."
        ),
    ]
    state: Annotated[State | None, Meta(description="Where it stands now; null where none is kept.")]
    reason: Annotated[str | UnsetType, Meta(description="Refused: why.")] = UNSET
    route: Annotated[str | UnsetType, Meta(description="Degraded: where the call must go instead.")] = UNSET
    output_tokens_max: Annotated[int | UnsetType, Meta(description="Degraded: the cap it must be sent with.")] = UNSET
    budget: Annotated[
        Tightest | UnsetType,
        Meta(
            description="The budget with the least left for such a call; limit and remaining are null where other tenants use it too, and the key does not speak for all."
        ),
    ] = UNSET
    holds: Annotated[Sequence[Hold] | UnsetType, Meta(description="What is held, by budget.")] = UNSET
    expires_at: datetime | UnsetType = UNSET
    retry_at: Annotated[datetime | UnsetType, Meta(description="Refused: when there is room at the earliest.")] = UNSET
    is_replay: Annotated[bool, Meta(description="Decided earlier, under the same id.")] = False
    is_away: Annotated[
        bool,
        Meta(
            description="Decided without the database, from the allowance that its budgets give this replica, and booked when it is back."
        ),
    ] = False


class BatchReply(Struct):
    """What became of asks, in their order, after the commit."""

    results: list[ReservationReply]


class StandingReply(Struct):
    """A reservation as it stands."""

    tenant_id: str
    reservation_id: str
    state: State
    operation_id: str | None
    basis: str
    decided_at: datetime
    expires_at: datetime
    ended_at: datetime | None
    holds: Sequence[Hold]


class SettledEvent(Struct, omit_defaults=True):
    """What became of the event of a settle call."""

    outcome: EventOutcome
    batch_id: int
    reason: str | UnsetType = UNSET
    detail: str | UnsetType = UNSET


class ChangeReply(Struct, omit_defaults=True):
    """Where a reservation stands after a call."""

    tenant_id: str
    reservation_id: str
    state: State
    is_changed: Annotated[bool, Meta(description="Whether this call moved it. What is over stays as it is.")]
    expires_at: datetime | UnsetType = UNSET
    event: Annotated[SettledEvent | UnsetType, Meta(description="What became of the event that came with it.")] = UNSET


_ask_decoder: Final = msgspec.json.Decoder(AskBody)
_batch_decoder: Final = msgspec.json.Decoder(BatchBody)
_settle_decoder: Final = msgspec.json.Decoder(SettleBody)
_void_decoder: Final = msgspec.json.Decoder(VoidBody)
_extend_decoder: Final = msgspec.json.Decoder(ExtendBody)
_encode: Final = msgspec.json.Encoder().encode
_PLAIN: Final = re.compile(r"[A-Za-z0-9_.~-]+")
"""What stands in an address as it is."""

Wire = tuple[int, dict[str, str], bytes]
"""Status, headers and body of an answer."""

Act = Callable[..., Awaitable[Wire]]
"""What a request asks for: takes the services, the authorization, the body, and the id in the path where there is one."""


# --- Asking -----------------------------------------------------------------------------------------------------------


async def create(services: Services, authorization: str | None, body: bytes) -> Wire:
    """Decide one ask.

    Errors: a `Refusal` for whatever must not go ahead, so that no client takes a refusal for an admission by its status.
    """
    key = await _asking(services, authorization)
    asks = (decode(_ask_decoder, body),)
    _for(key, asks, "tenant_id")
    _check_zero_bytes(body, asks)
    (decision,) = await _decided(services, key, asks)
    if isinstance(decision, Decision) and not decision.is_admitted:
        raise _refusal(decision)
    if decision.state != "held":
        raise ReservationOver(
            f"it was decided earlier and is {decision.state}",
            reservation_id=decision.reservation_id,
            state=decision.state,
        )
    name = decision.reservation_id
    headers = {"location": f"{PATH}/{name if _PLAIN.fullmatch(name) else quote(name, safe='')}"}
    if isinstance(decision, AwayDecision):
        headers["tallystick-away"] = "true"
    return 200 if decision.is_replay else 201, headers, _written(decision)


async def create_many(services: Services, authorization: str | None, body: bytes) -> Wire:
    """Decide the asks of a gateway that gathers; what is refused is told by its place."""
    key = await _asking(services, authorization)
    asks = decode(_batch_decoder, body).reservations
    most = services.config.reservation_batch_max
    if len(asks) > most:
        raise InvalidRequest("reservations", f"are {len(asks)}; at most {most} go in one request")
    _for(key, asks, "reservations[{}].tenant_id")
    _check_zero_bytes(body, asks)
    decisions = await _decided(services, key, asks)
    return 200, {}, b'{"results":[' + b",".join(map(_written, decisions)) + b"]}"


async def _asking(services: Services, authorization: str | None) -> ApiKey:
    return await services.keys.identify(authorization, "reservations:write", is_away=services.reserving.is_away)


async def _decided(services: Services, key: ApiKey, asks: Sequence[Ask]) -> list[Decided]:
    try:
        decisions = await services.reserving.reserve(asks)
    except Unavailable as refusal:
        services.metrics.pushed_back.labels(refusal.code).inc()
        raise
    services.metrics.decided([decision.outcome for decision in decisions])
    return decisions if key.speaks_for_all else [await _for_some(services, decision) for decision in decisions]


async def _for_some(services: Services, decision: Decided) -> Decided:
    """Leave out what a budget over several tenants has left: who speaks for some of them could tell what the others use."""
    whole = decision.written_out() if isinstance(decision, Admission) else decision
    named = whole.tightest
    if named is None or not await services.over_several_tenants.get(named.budget_id):
        return decision
    return replace(whole, tightest=named.untold)


def _for(key: ApiKey, asks: Sequence[AskBody], field: str) -> None:
    """Hold asks to the tenants that the key speaks for, and put the key's own where none is named. Errors: as `tenant_of`."""
    for named in {ask.tenant_id: None for ask in asks}:
        if named is not None and key.may_read(named):
            continue
        for place, ask in enumerate(asks):
            if ask.tenant_id == named:
                # Nobody else has seen it yet.
                force_setattr(ask, "tenant_id", tenant_of(key, named, field.format(place)))


def tenant_of(key: ApiKey, named: str | None, field: str) -> str:
    """Return the tenant that a request is about: the key's own, or the one named, if the key speaks for it.

    Errors: `InvalidRequest` where none is named and the key has none; `TenantNotFound`.
    """
    if named is None:
        if key.tenant_id is None:
            raise InvalidRequest(field, "must be given: the key speaks for more than one tenant")
        return key.tenant_id
    if not key.may_read(named):
        raise TenantNotFound("there is no such tenant, or it is not this key's to see")
    return named


def _check_zero_bytes(body: bytes, asks: Sequence[Ask]) -> None:
    # Postgres stores none, and one of them would be the fault of a whole array. Few bodies come so far.
    if b"\\u0000" in body and any("\0" in text for ask in asks for text in _texts(ask)):
        raise InvalidRequest("body", "must not hold a zero byte")


def _texts(ask: Ask) -> list[str]:
    found = [value for value in msgspec.structs.astuple(ask) if isinstance(value, str)]
    return [*found, *ask.tags, *ask.tags.values(), *(ask.quantities or ())]


def _reply(decision: Decision) -> ReservationReply:
    return ReservationReply(
        decision.tenant_id,
        decision.reservation_id,
        decision.outcome,
        decision.state,
        UNSET if decision.reason is None else decision.reason,
        UNSET if decision.route is None else decision.route,
        UNSET if decision.output_tokens_max is None else decision.output_tokens_max,
        UNSET if decision.tightest is None else decision.tightest,
        decision.holds or UNSET,
        UNSET if decision.expires_at is None else decision.expires_at,
        UNSET if decision.retry_at is None else decision.retry_at,
        decision.is_replay,
        isinstance(decision, AwayDecision),
    )


_admissions: Final = Admissions(lambda decision: _encode(_reply(decision)))


def _written(decision: Decided) -> bytes:
    return _admissions.written(decision) if isinstance(decision, Admission) else _encode(_reply(decision))


def _refusal(decision: Decision) -> Refusal:
    """Return the problem that says why a call must not go ahead."""
    told: dict[str, Any] = {"reservation_id": decision.reservation_id}
    if decision.tightest is not None:
        told["budget"] = decision.tightest
    if decision.reason == "unknown_tenant":
        return TenantNotFound("there is no such tenant, or it is not this key's to see")
    if decision.reason == "inactive_tenant":
        return TenantInactive("the tenant is suspended, or has left", **told)
    if decision.reason == "conflict":
        return ReservationConflict("another ask was admitted under this id", **told)
    if decision.reason == "unknown_price":
        return PriceUnknown("a budget in scope refuses calls whose price is not known", **told)
    if decision.reason == "missing_estimate":
        return EstimateMissing("a budget in scope refuses calls without an estimate", **told)
    assert decision.reason == "limit", "each reason has its problem"
    headers = _limits(decision.tightest, decision.retry_at)
    if decision.retry_at is not None:
        told["retry_at"] = decision.retry_at
        seconds = decision.retry_at.timestamp() - time.time()
        headers["retry-after"] = str(max(1, ceil(seconds)))
    name = decision.tightest.budget_id if decision.tightest is not None else "a budget in scope"
    return BudgetExhausted(f"{name} has no room for this call", headers, **told)


_INTEGER_MAX: Final = 999_999_999_999_999
_MICRO: Final = Decimal(1_000_000)


def _limits(budget: Tightest | None, retry_at: datetime | None) -> dict[str, str]:
    """Return the RateLimit fields of the budget that binds first; whole numbers only, rounded down.

    Source: draft-ietf-httpapi-ratelimit-headers-11: `q` the quota, `w` the window in seconds, `qu` its unit; `r` what is left,
    `t` the seconds until there is more. Structured fields have 15 digits and ASCII: what does not fit is left out.
    """
    if budget is None or budget.limit is None or budget.remaining is None:
        return {}
    name, currency = budget.budget_id, budget.currency
    scale = Decimal(1) if currency is None else _MICRO
    limit = int((Decimal(budget.limit) * scale).to_integral_value(ROUND_FLOOR))
    left = max(0, int((Decimal(budget.remaining) * scale).to_integral_value(ROUND_FLOOR)))
    if not (name.isascii() and name.isprintable()) or max(limit, left) > _INTEGER_MAX:
        return {}
    text = '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
    unit = budget.unit if currency is None else f"micro-{currency.lower()}"
    window = budget.window
    policy = f'{text};q={limit};qu="{unit}"'
    if window.starts_at is not None and window.ends_at is not None:
        policy += f";w={int((window.ends_at - window.starts_at).total_seconds())}"
    until = retry_at or window.ends_at
    reset = f";t={max(0, ceil((until - datetime.now(UTC)).total_seconds()))}" if until is not None else ""
    return {"ratelimit-policy": policy, "ratelimit": f"{text};r={left}{reset}"}


# --- What becomes of it -----------------------------------------------------------------------------------------------


async def settle(services: Services, authorization: str | None, body: bytes, reservation_id: str) -> Wire:
    """Say that a call has ended: with its usage event, or with the word that it will come."""
    key = await services.keys.identify(authorization, "reservations:write")
    told = decode(_settle_decoder, body)
    tenant_id = tenant_of(key, told.tenant_id, "tenant_id")
    if told.event is UNSET:
        settlement = Settlement(
            tenant_id=tenant_id,
            reservation_id=reservation_id,
            input_tokens=told.input_tokens,
            output_tokens=told.output_tokens,
            charge=told.charge,
            cost=told.cost,
        )
        _check_id(tenant_id, reservation_id)
        return _changed((await _pushed(services, services.reserving.settle((settlement,))))[0])
    if (told.charge, told.cost, told.input_tokens, told.output_tokens) != (None,) * 4:
        raise InvalidRequest("event", "says what was used: no amount or count goes beside it")
    if "events:write" not in key.scopes:
        await services.keys.identify(authorization, "events:write")
    assert isinstance(told.event, msgspec.Raw)
    event = bytes(told.event)
    _check_event(event, tenant_id, reservation_id)
    # The reservation is there, or nothing is posted under a name that was mistyped.
    before = await _standing(services, (tenant_id, reservation_id))
    message = Message(
        event,
        received_at=time.time_ns() // 1000,
        origin=key.key_id,
        speaker=None if key.is_operators else Speaker(key.tenant_id, key.source),
    )
    answer = await _pushed(services, services.commits.submit(message))
    result = answer.results[0]
    after = await _standing(services, (tenant_id, reservation_id))
    reply = ChangeReply(
        tenant_id,
        reservation_id,
        after.state,
        after.state != before.state,
        after.expires_at,
        SettledEvent(
            result.outcome,
            answer.batch_id,
            UNSET if result.reason is None else result.reason,
            UNSET if result.detail is None else result.detail,
        ),
    )
    return 200, {}, _encode(reply)


class _EventData(Struct):
    reservation_id: Any = None
    tenant_id: Any = None


class _Event(Struct):
    data: _EventData | None = None


_event_decoder: Final = msgspec.json.Decoder(_Event)


def _check_event(event: bytes, tenant_id: str, reservation_id: str) -> None:
    """Refuse an event that would not close the reservation; everything else about it is for its reader to judge."""
    try:
        data = _event_decoder.decode(event).data
    except msgspec.DecodeError:
        data = None
    if data is None:
        raise InvalidRequest("event", "must be one usage event, an object with data")
    if data.reservation_id != reservation_id:
        raise InvalidRequest("event.data.reservation_id", "must be the reservation's")
    if data.tenant_id is not None and data.tenant_id != tenant_id:
        raise InvalidRequest("event.data.tenant_id", "must be the reservation's tenant")


async def void(services: Services, authorization: str | None, body: bytes, reservation_id: str) -> Wire:
    """Give back what is held for a call that took nothing."""
    key = await services.keys.identify(authorization, "reservations:write")
    told = decode(_void_decoder, body) if body else VoidBody()
    tenant_id = tenant_of(key, told.tenant_id, "tenant_id")
    _check_id(tenant_id, reservation_id)
    return _changed((await _pushed(services, services.reserving.void(((tenant_id, reservation_id),))))[0])


async def extend(services: Services, authorization: str | None, body: bytes, reservation_id: str) -> Wire:
    """Give a call that goes on more time."""
    key = await services.keys.identify(authorization, "reservations:write")
    told = decode(_extend_decoder, body)
    tenant_id = tenant_of(key, told.tenant_id, "tenant_id")
    _check_id(tenant_id, reservation_id)
    extension = Extension(tenant_id, reservation_id, told.ttl_seconds)
    return _changed((await _pushed(services, services.reserving.extend((extension,))))[0])


async def _pushed(services: Services, work: Any) -> Any:
    try:
        return await work
    except Unavailable as refusal:
        services.metrics.pushed_back.labels(refusal.code).inc()
        raise


def _check_id(tenant_id: str, reservation_id: str) -> None:
    if not 0 < len(reservation_id) <= 255 or "\0" in reservation_id or "\0" in tenant_id:
        raise ReservationNotFound("there is no such reservation")


def _changed(change: Change) -> Wire:
    if change.state is None:
        raise ReservationNotFound("there is no such reservation")
    reply = ChangeReply(
        change.tenant_id,
        change.reservation_id,
        change.state,
        change.is_changed,
        UNSET if change.expires_at is None else change.expires_at,
    )
    return 200, {}, _encode(reply)


async def _standing(services: Services, key: Key) -> Reservation:
    _check_id(*key)
    found = await services.standings.get(key)
    if found is None:
        raise ReservationNotFound("there is no such reservation")
    return found


# --- Routes -----------------------------------------------------------------------------------------------------------

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
    services = services_of(request)
    key = await services.keys.identify(request.headers.get("authorization"), "reservations:write")
    tenant_id = tenant_of(key, request.query_params.get("tenant_id"), "tenant_id")
    found = await _standing(services, (tenant_id, request.path_params["reservation_id"]))
    reply = StandingReply(
        found.tenant_id,
        found.reservation_id,
        found.state,
        found.operation_id,
        found.basis,
        found.decided_at,
        found.expires_at,
        found.ended_at,
        found.holds,
    )
    return Response(_encode(reply), media_type="application/json", headers={"cache-control": "private, no-cache"})


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
