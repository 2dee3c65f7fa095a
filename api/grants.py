"""Grants: what a tenant has paid or been given in advance; read by the tenant, moved by operators."""

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from functools import partial
from time import time_ns
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from api.admin import act, answered, body_of, require
from api.documents import Room, operation, path_parameter
from api.errors import TenantNotFound
from api.services import services_of
from ledger.database import Connection
from ledger.errors import Unknown
from ledger.times import micros
from quotas import granting
from quotas.granting import Balances, Done, NewGrant

router = APIRouter()

AmountText = Annotated[
    str, Meta(pattern=r"^[0-9]{1,30}(\.[0-9]{1,30})?$", description="Decimal text, exact, not negative.")
]
KeyText = Annotated[
    str, Meta(min_length=1, max_length=200, description="The same act under the same key is done once.")
]
Aware = Annotated[datetime, Meta(tz=True)]


class GrantBody(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A new grant."""

    key: KeyText
    amount: AmountText
    currency: Annotated[str, Meta(description="The tenant's, ISO 4217.")]
    effective_at: Annotated[
        Aware | None, Meta(description="Usage that occurred from here on burns it; absent, now.")
    ] = None
    expires_at: Annotated[Aware | None, Meta(description="Exclusive end; absent, none.")] = None
    priority: Annotated[
        int, Meta(description="The lower one burns first, then what expires soonest, then the oldest.")
    ] = 100
    feature: Annotated[str | None, Meta(description="Only usage of this feature burns it.")] = None
    model: Annotated[str | None, Meta(description="Only usage of this model burns it, by canonical id.")] = None
    description: Annotated[str | None, Meta(description="A line for people.")] = None
    reason: Annotated[str | None, Meta(description="Why, for the record.")] = None


class RevokeBody(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What to take back of a grant."""

    key: KeyText
    amount: Annotated[AmountText | None, Meta(description="How much of what is left; absent, all of it.")] = None
    reason: Annotated[str | None, Meta(description="Why, for the record.")] = None


class GrantMoved(Struct):
    """What became of an act on a grant."""

    grant_id: str
    amount: Annotated[str, Meta(description="What it moved: below zero where something was taken.")]
    was_done: Annotated[bool, Meta(description="It had been done before under this key; nothing moved now.")]


class GrantLine(Struct, kw_only=True):
    """A grant with what is left of it, live."""

    grant_id: str
    feature: str | None
    model: str | None
    priority: int
    effective_at: datetime
    expires_at: Annotated[datetime | None, Meta(description="Exclusive.")]
    description: str | None
    granted: str
    revoked: str
    burnt: Annotated[str, Meta(description="By usage so far, live; an invoice books it.")]
    left: Annotated[str, Meta(description="What could be burnt now.")]


class GrantBalance(Struct, kw_only=True):
    """The grants of a tenant in one currency."""

    currency: str
    left: Annotated[str, Meta(description="What any usage may burn now, without what is for some features or models.")]
    overflow: Annotated[str, Meta(description="What usage since the first grant was charged beyond all grants.")]
    unpriced_count: Annotated[int, Meta(description="Requests without a charge yet: `left` is too high above zero.")]
    is_prepaid: Annotated[bool, Meta(description="Reservations hold the tenant to `left`.")]
    grants: Annotated[list[GrantLine], Meta(description="In the order in which they burn.")]


class GrantsReply(Struct):
    """All grants of a tenant."""

    tenant_id: str
    balances: Annotated[list[GrantBalance], Meta(description="By currency.")]


_TENANT: Final = path_parameter("tenant_id", "Whose grants.", "t-alpha")
_MOVED: Final = {"grant_id": "gr_5ad2b0c3f1e4a9c21b", "amount": "100.00", "was_done": False}
GET_OPERATION: Final = operation(
    "getTenantGrants",
    "What is left of a tenant's grants",
    tag="grants",
    scope="budgets:read",
    description=(
        "Live: the tenant's charges so far, by when they occurred, held against its grants: the lower priority first, then what "
        "expires soonest, then the oldest."
    ),
    parameters=(_TENANT,),
    answer=GrantsReply,
    example={
        "tenant_id": "t-alpha",
        "balances": [
            {
                "currency": "USD",
                "left": "96",
                "overflow": "0",
                "unpriced_count": 0,
                "is_prepaid": True,
                "grants": [
                    {
                        "grant_id": "gr_5ad2b0c3f1e4a9c21b",
                        "feature": None,
                        "model": None,
                        "priority": 100,
                        "effective_at": "2026-09-01T00:00:00Z",
                        "expires_at": None,
                        "description": "Bought in September",
                        "granted": "100.00",
                        "revoked": "0",
                        "burnt": "4",
                        "left": "96.00",
                    }
                ],
            }
        ],
    },
    problems=("tenant-not-found", "too-much-to-read", "database-away"),
)
POST_OPERATION: Final = operation(
    "createGrant",
    "Make a grant",
    tag="grants",
    scope="grants:write",
    description="The limit of a prepaid tenant moves in the same commit.",
    parameters=(_TENANT,),
    answer=GrantMoved,
    example=_MOVED,
    body=GrantBody,
    body_example={"key": "order-4711", "amount": "100.00", "currency": "USD", "reason": "bought"},
    is_act=True,
)
REVOKE_OPERATION: Final = operation(
    "revokeGrant",
    "Take back what is left of a grant",
    tag="grants",
    scope="grants:write",
    parameters=(_TENANT, path_parameter("grant_id", "Which.", "gr_5ad2b0c3f1e4a9c21b")),
    answer=GrantMoved,
    example={**_MOVED, "amount": "-96.00"},
    body=RevokeBody,
    body_example={"key": "refund-4711", "reason": "paid back"},
    is_act=True,
)

_grant: Final = msgspec.json.Decoder(GrantBody)
_revoke: Final = msgspec.json.Decoder(RevokeBody)
_HEADERS: Final[Mapping[str, str]] = {"cache-control": "private, no-cache", "vary": "authorization"}


@router.get("/v1/tenants/{tenant_id}/grants", openapi_extra=GET_OPERATION, response_model=None)
async def get_tenant_grants(request: Request) -> Response:
    """Answer with what is left of a tenant's grants."""
    key = await require(request, "budgets:read")
    tenant_id = request.path_params["tenant_id"]
    found: list[Balances] | None = None
    if key.may_read(tenant_id) and "\0" not in tenant_id:
        found = await services_of(request).reports.run(partial(_balances, tenant_id))
    if found is None:
        raise TenantNotFound("there is no such tenant, or it is not this key's to see")
    return answered(GrantsReply(tenant_id, [_balance(each) for each in found]), headers=_HEADERS)


async def _balances(tenant_id: str, connection: Connection) -> list[Balances] | None:
    try:
        return await granting.tenant_grants(connection, tenant_id, now=time_ns() // 1000)
    except Unknown:
        return None


def _balance(found: Balances) -> GrantBalance:
    return GrantBalance(
        currency=found.currency,
        left=f"{found.left:f}",
        overflow=f"{found.overflow:f}",
        unpriced_count=found.unpriced_count,
        is_prepaid=found.is_prepaid,
        grants=[
            GrantLine(
                grant_id=each.grant_id,
                feature=each.feature,
                model=each.model,
                priority=each.priority,
                effective_at=each.effective_at,
                expires_at=each.expires_at,
                description=each.description,
                granted=f"{each.granted:f}",
                revoked=f"{each.revoked:f}",
                burnt=f"{each.burnt:f}",
                left=f"{each.left:f}",
            )
            for each in found.grants
        ],
    )


@router.post("/v1/tenants/{tenant_id}/grants", openapi_extra=POST_OPERATION, response_model=None)
async def post_grant(request: Request) -> Response:
    """Make a grant."""
    key = await require(request, "grants:write")
    asked = await body_of(request, _grant)
    wanted = NewGrant(
        tenant_id=request.path_params["tenant_id"],
        amount=Decimal(asked.amount),
        currency=asked.currency,
        effective_at=None if asked.effective_at is None else micros(asked.effective_at),
        expires_at=None if asked.expires_at is None else micros(asked.expires_at),
        priority=asked.priority,
        feature=asked.feature,
        model=asked.model,
        description=asked.description,
    )

    async def work(connection: Connection) -> Done:
        return await granting.create_grant(
            connection, key.actor, wanted, key=asked.key, now=time_ns() // 1000, reason=asked.reason
        )

    return _moved(await act(request, work))


@router.post("/v1/tenants/{tenant_id}/grants/{grant_id}:revoke", openapi_extra=REVOKE_OPERATION, response_model=None)
async def post_revocation(request: Request) -> Response:
    """Take back what is left of a grant."""
    key = await require(request, "grants:write")
    asked = await body_of(request, _revoke)
    tenant_id, grant_id = request.path_params["tenant_id"], request.path_params["grant_id"]

    async def work(connection: Connection) -> Done:
        now = time_ns() // 1000
        if "\0" in grant_id or (await granting.find_grant(connection, grant_id, now=now)).tenant_id != tenant_id:
            raise Unknown("grant", grant_id)
        return await granting.revoke_grant(
            connection,
            key.actor,
            grant_id,
            key=asked.key,
            now=now,
            amount=None if asked.amount is None else Decimal(asked.amount),
            reason=asked.reason,
        )

    return _moved(await act(request, work))


def _moved(done: Done) -> Response:
    body: Any = GrantMoved(done.grant_id, f"{done.amount:f}", done.was_done)
    return answered(body, 200)


ROOM: Final = Room(
    router,
    "grants",
    "What a tenant has paid or been given in advance.",
    (GrantBody, RevokeBody, GrantMoved, GrantsReply),
)
