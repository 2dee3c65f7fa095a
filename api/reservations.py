"""Reservations over HTTP: may a call go ahead, and how it ended. Bytes to asks, decisions to answers."""

import re
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from decimal import ROUND_FLOOR, Decimal
from math import ceil
from typing import Annotated, Any, Final
from urllib.parse import quote

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import force_setattr, replace

from api.away import AwayDecision
from api.bodies import ZERO_BYTE, decode
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
from api.services import Services
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

PATH: Final = "/v1/reservations"

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
        raise InvalidRequest("body", ZERO_BYTE)


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


async def standing(services: Services, authorization: str | None, tenant: str | None, reservation_id: str) -> Wire:
    """Say where a reservation stands."""
    key = await services.keys.identify(authorization, "reservations:write")
    found = await _standing(services, (tenant_of(key, tenant, "tenant_id"), reservation_id))
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
    return 200, {"cache-control": "private, no-cache"}, _encode(reply)


async def _standing(services: Services, key: Key) -> Reservation:
    _check_id(*key)
    found = await services.standings.get(key)
    if found is None:
        raise ReservationNotFound("there is no such reservation")
    return found
