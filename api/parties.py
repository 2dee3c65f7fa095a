"""Administration of parties: tenants, entities, sources, provider accounts and models, by the functions that the commands call."""

import time
from collections.abc import Sequence
from datetime import date, datetime
from typing import Annotated, Any, Final, Literal

import msgspec
from fastapi import APIRouter
from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from api.admin import act, answered, body_of, require
from api.bodies import WITHIN_YEARS
from api.documents import Room, operation, path_parameter, query_parameter
from api.errors import InvalidRequest
from api.pages import limit_of
from api.services import services_of
from ledger import registry
from ledger.acts import ActRecord, acts_about
from ledger.database import Connection
from ledger.registry import (
    AccountRecord,
    EntityRecord,
    ModelRecord,
    SourceRecord,
    TenantRecord,
    TenantVersionRecord,
)
from ledger.times import YEARS, micros

router = APIRouter()

_SCOPE: Final = "parties:write"

Month = Annotated[str, Meta(pattern=r"^\d{4}-\d\d$", description="Such as 2026-12.")]
Instant = Annotated[datetime, Meta(tz=True)]
Person = Annotated[
    str, Meta(min_length=1, max_length=200, description="The person that the key acts for, for the record.")
]
Rank = Annotated[
    int, Meta(description="Of two reports of a request the higher rank counts.", ge=-(2**31), le=2**31 - 1)
]
Limit = Annotated[int, Meta(gt=0, le=2**63 - 1, description="Tokens above it are impossible.")]
Reason = Annotated[str, Meta(min_length=1, description="Why, for the record.")]


def month_of_text(name: str, text: str) -> date:
    """Return the first day of a month such as 2026-12. Errors: `InvalidRequest`."""
    try:
        first = date.fromisoformat(f"{text}-01")
    except ValueError:
        raise InvalidRequest(name, "must be a month such as 2026-12") from None
    if first.year not in YEARS:
        raise InvalidRequest(name, WITHIN_YEARS)
    return first


def _now() -> int:
    return time.time_ns() // 1000


def _at(asked: datetime | None) -> int:
    """Return the instant that was asked for, or now, in UTC microseconds."""
    return _now() if asked is None else micros(asked)


def _actor(key: Any, asked: str | None) -> str:
    """Return who acts: the key, and the person that it says it acts for."""
    return key.actor if asked is None else f"{asked} ({key.actor})"


# --- What is said and answered ----------------------------------------------------------------------------------------


class Act(Struct, forbid_unknown_fields=True, kw_only=True):
    """What every act may say besides."""

    reason: Reason | None = None
    actor: Person | None = None


class TenantAdd(Act, kw_only=True):
    """A tenant to be, with its periods from the month of `starts_at` (absent: now) on."""

    tenant_id: str
    entity_id: Annotated[str, Meta(description="Who invoices it.")]
    time_zone: Annotated[str, Meta(description="Of its days and months, such as Europe/Berlin.")]
    charge_currency: Annotated[str, Meta(description="ISO 4217.")]
    starts_at: Instant | None = None
    name: str | None = None


class TenantChange(Act, kw_only=True):
    """What holds for a tenant from the start of a month on; what is absent stays."""

    month: Month
    entity_id: str | None = None
    time_zone: str | None = None
    charge_currency: str | None = None
    name: str | None = None


class TenantTurn(Act, kw_only=True):
    """From when a tenant leaves, or is merged or its own again; absent: now."""

    reason: Reason  # type: ignore[assignment]
    at: Instant | None = None


class TenantMerge(TenantTurn, kw_only=True):
    """Into whom."""

    into: str


class TenantStatus(Act, kw_only=True):
    """Why, for a suspension or its end."""

    reason: Reason  # type: ignore[assignment]


class TenantReply(Struct):
    """A tenant as of now, all its versions, and who changed it and why, the oldest first."""

    tenant: TenantRecord
    versions: Sequence[TenantVersionRecord]
    history: Sequence[ActRecord]


class TenantsReply(Struct):
    """Tenants as of now, by id, a page at a time."""

    tenants: Sequence[TenantRecord]
    next: Annotated[str | None, Meta(description="The `after` of the next page; null on the last one.")]


class EntityAdd(Act, kw_only=True):
    """A legal entity that issues invoices."""

    entity_id: str
    name: Annotated[str, Meta(min_length=1, description="As it stands on invoices.")]


class EntityRename(Act, kw_only=True):
    """The name that stands on invoices from now on."""

    name: Annotated[str, Meta(min_length=1)]


class EntityReply(Struct):
    """An entity."""

    entity: EntityRecord


class EntitiesReply(Struct):
    """All entities, by id."""

    entities: Sequence[EntityRecord]


class SourceAdd(Act, kw_only=True):
    """A sender to be: it speaks for all tenants, or for those named."""

    source: Annotated[str, Meta(description="Exactly what its events say, such as gateway://eu-1.")]
    kind: Literal["gateway", "node", "load", "commands"]
    rank: Rank
    speaks_for_all: bool = False
    tenant_ids: Sequence[str] = ()


class SourceChange(Act, kw_only=True):
    """What changes about a source from now on; what it has said stays, and what is decided stays decided."""

    source: str
    reason: Reason  # type: ignore[assignment]
    rank: Rank | None = None
    allow: Annotated[Sequence[str], Meta(description="Tenants that it may speak for too.")] = ()
    disallow: Annotated[Sequence[str], Meta(description="Tenants that it may not speak for any more.")] = ()
    is_ended: Annotated[bool | None, Meta(description="true: what it sends is a dead letter; false: no longer.")] = None


class SourceReply(Struct):
    """A source, and who changed it and why, the oldest first."""

    source: SourceRecord
    history: Sequence[ActRecord]


class SourcesReply(Struct):
    """Sources, by name."""

    sources: Sequence[SourceRecord]


class AccountAdd(Act, kw_only=True):
    """An account that a provider bills: ours, or a tenant's own."""

    provider_account: str
    provider: str
    currency: str
    tenant_id: Annotated[str | None, Meta(description="Whose own it is; absent: ours.")] = None


class AccountChange(Act, kw_only=True):
    """What was said of an account and is put right; what is absent stays."""

    provider_account: str
    reason: Reason  # type: ignore[assignment]
    provider: str | None = None
    currency: str | None = None
    tenant_id: Annotated[str | None, Meta(description="Whose own it is.")] = None
    is_ours: Annotated[bool, Meta(description="true: it is no tenant's.")] = False


class AccountReply(Struct):
    """A provider account."""

    provider_account: AccountRecord


class AccountsReply(Struct):
    """Provider accounts, by name."""

    provider_accounts: Sequence[AccountRecord]


class ModelSet(Act, kw_only=True):
    """A model, or limits and exact aliases of one that is there; what is absent stays, and null takes a limit away."""

    provider: str
    model: Annotated[str, Meta(description="The canonical id.")]
    input_tokens_max: Limit | UnsetType | None = UNSET
    output_tokens_max: Limit | UnsetType | None = UNSET
    aliases: Sequence[str] = ()


class AliasDrop(Act, kw_only=True):
    """An exact name that is none of any model's from now on."""

    provider: str
    alias: str
    reason: Reason  # type: ignore[assignment]


class ModelReply(Struct):
    """A model with its exact names and limits."""

    model: ModelRecord


class ModelsReply(Struct):
    """Models by provider and id, a page at a time."""

    models: Sequence[ModelRecord]
    next: Annotated[str | None, Meta(description="The `after` of the next page; null on the last one.")]


# --- Examples ---------------------------------------------------------------------------------------------------------

_TENANT: Final = {
    "tenant_id": "t-alpha",
    "name": "Alpha",
    "status": "active",
    "entity_id": "entity-1",
    "time_zone": "Europe/Berlin",
    "charge_currency": "EUR",
    "starts_at": "2025-12-31T23:00:00Z",
    "ends_at": None,
    "merged_into": None,
    "merged_at": None,
    "unmerged_at": None,
}
_ACT: Final = {
    "at": "2026-01-02T08:00:00Z",
    "actor": "key tsk_000000000000",
    "act": "tenants.add",
    "detail": {"tenant_id": "t-alpha"},
    "reason": None,
    "second_person": None,
}
_TENANT_REPLY: Final = {
    "tenant": _TENANT,
    "versions": [
        {
            "effective_at": "2025-12-31T23:00:00Z",
            "name": "Alpha",
            "status": "active",
            "entity_id": "entity-1",
            "time_zone": "Europe/Berlin",
            "charge_currency": "EUR",
            "recorded_at": "2026-01-02T08:00:00Z",
        }
    ],
    "history": [_ACT],
}
_ENTITY: Final = {"entity_id": "entity-1", "name": "Entity One Ltd", "created_at": "2026-01-02T08:00:00Z"}
_SOURCE: Final = {
    "source": "gateway://eu-1",
    "kind": "gateway",
    "rank": 20,
    "speaks_for_all": False,
    "tenant_ids": ["t-alpha"],
    "created_at": "2026-01-02T08:00:00Z",
    "ended_at": None,
}
_SOURCE_REPLY: Final = {
    "source": _SOURCE,
    "history": [{**_ACT, "act": "sources.add", "detail": {"source": "gateway://eu-1"}}],
}
_ACCOUNT: Final = {
    "provider_account": "openai-eu",
    "provider": "openai",
    "currency": "USD",
    "tenant_id": None,
    "created_at": "2026-01-02T08:00:00Z",
}
_MODEL: Final = {
    "provider": "openai",
    "model": "gpt-5-mini",
    "input_tokens_max": 400000,
    "output_tokens_max": 128000,
    "aliases": ["gpt-5-mini-2025-08-07"],
}
_ID: Final = path_parameter("tenant_id", "Which tenant.", "t-alpha")
_LIMIT: Final = query_parameter("limit", "How many on a page.", {"type": "integer", "minimum": 1})


# --- Tenants ----------------------------------------------------------------------------------------------------------

_LIST_TENANTS: Final = operation(
    "listTenants", "All tenants", tag="parties", scope=_SCOPE, answer=TenantsReply,
    example={"tenants": [_TENANT], "next": None}, is_act=True, problems=("invalid-request",),
    parameters=(query_parameter("after", "The `next` of the page before."), _LIMIT),
)  # fmt: skip


@router.get("/v1/tenants", openapi_extra=_LIST_TENANTS, response_model=None)
async def list_tenants(request: Request) -> Response:
    """Answer with tenants as of now."""
    await require(request, _SCOPE)
    query = request.query_params
    limit = limit_of(query.get("limit"), services_of(request).config.page_tenants_max)
    after = _text("after", query.get("after", ""))
    found = await act(
        request, lambda connection: registry.list_tenants(connection, now=_now(), after=after, limit=limit + 1)
    )
    following = found[limit - 1].tenant_id if len(found) > limit else None
    return answered(TenantsReply(found[:limit], following))


_ADD_TENANT: Final = operation(
    "addTenant", "Add a tenant with its periods", tag="parties", scope=_SCOPE, answer=TenantReply, example=_TENANT_REPLY,
    body=TenantAdd, is_act=True, status=201, problems=("already-there",),
    body_example={
        "tenant_id": "t-alpha", "entity_id": "entity-1", "time_zone": "Europe/Berlin", "charge_currency": "EUR",
        "starts_at": "2025-12-31T23:00:00Z", "name": "Alpha",
    },
)  # fmt: skip


@router.post("/v1/tenants", openapi_extra=_ADD_TENANT, response_model=None)
async def add_tenant(request: Request) -> Response:
    """Add a tenant."""
    key = await require(request, _SCOPE)
    asked = await body_of(request, _tenant_add)
    config = services_of(request).config

    async def work(connection: Connection) -> TenantReply:
        await registry.add_tenant(
            connection,
            _actor(key, asked.actor),
            asked.tenant_id,
            entity_id=asked.entity_id,
            time_zone=asked.time_zone,
            charge_currency=asked.charge_currency,
            now=_now(),
            starts_at=None if asked.starts_at is None else micros(asked.starts_at),
            name=asked.name,
            months_ahead=config.months_ahead,
            grace_days=config.grace_days,
        )
        return await _tenant(connection, asked.tenant_id)

    return answered(await act(request, work), 201)


async def _tenant(connection: Connection, tenant_id: str) -> TenantReply:
    return TenantReply(
        await registry.find_tenant(connection, tenant_id, now=_now()),
        await registry.tenant_versions(connection, tenant_id),
        await acts_about(connection, "tenants", tenant_id),
    )


_SHOW_TENANT: Final = operation(
    "showTenant", "A tenant, its versions and its history", tag="parties", scope=_SCOPE, answer=TenantReply,
    example=_TENANT_REPLY, parameters=(_ID,), is_act=True, problems=("invalid-request",),
)  # fmt: skip


@router.get("/v1/tenants/{tenant_id}", openapi_extra=_SHOW_TENANT, response_model=None)
async def show_tenant(request: Request) -> Response:
    """Answer with a tenant, its versions and its history."""
    await require(request, _SCOPE)
    tenant_id = _text("tenant_id", request.path_params["tenant_id"])
    return answered(await act(request, lambda connection: _tenant(connection, tenant_id)))


def _turn(verb: str, summary: str, body: type[Act], example: dict[str, Any]) -> dict[str, Any]:
    return operation(
        f"{verb}Tenant", summary, tag="parties", scope=_SCOPE, answer=TenantReply, example=_TENANT_REPLY, body=body,
        body_example=example, parameters=(_ID,), is_act=True,
    )  # fmt: skip


# The turns stand before the change: its path would take theirs for a tenant's id.
@router.post(
    "/v1/tenants/{tenant_id}:suspend",
    openapi_extra=_turn(
        "suspend", "Suspend a tenant: recorded, nothing more admitted", TenantStatus, {"reason": "unpaid"}
    ),
    response_model=None,
)
async def suspend_tenant(request: Request) -> Response:
    """Suspend a tenant from now on."""
    return await _change_status(request, registry.suspend_tenant)


@router.post(
    "/v1/tenants/{tenant_id}:resume",
    openapi_extra=_turn("resume", "End a tenant's suspension", TenantStatus, {"reason": "paid"}),
    response_model=None,
)
async def resume_tenant(request: Request) -> Response:
    """End a tenant's suspension."""
    return await _change_status(request, registry.resume_tenant)


async def _change_status(request: Request, change: Any) -> Response:
    key = await require(request, _SCOPE)
    asked = await body_of(request, _tenant_status)
    tenant_id = _text("tenant_id", request.path_params["tenant_id"])

    async def work(connection: Connection) -> TenantReply:
        await change(connection, _actor(key, asked.actor), tenant_id, now=_now(), reason=asked.reason)
        return await _tenant(connection, tenant_id)

    return answered(await act(request, work))


@router.post(
    "/v1/tenants/{tenant_id}:leave",
    openapi_extra=_turn(
        "leave",
        "Let a tenant leave; late usage is still taken",
        TenantTurn,
        {"reason": "over", "at": "2026-12-31T23:00:00Z"},
    ),
    response_model=None,
)
async def leave_tenant(request: Request) -> Response:
    """Let a tenant leave."""
    key = await require(request, _SCOPE)
    asked = await body_of(request, _tenant_turn)
    tenant_id = _text("tenant_id", request.path_params["tenant_id"])

    async def work(connection: Connection) -> TenantReply:
        at = None if asked.at is None else micros(asked.at)
        await registry.leave_tenant(
            connection, _actor(key, asked.actor), tenant_id, now=_now(), at=at, reason=asked.reason
        )
        return await _tenant(connection, tenant_id)

    return answered(await act(request, work))


@router.post(
    "/v1/tenants/{tenant_id}:merge",
    openapi_extra=_turn(
        "merge",
        "Let usage sent as a tenant belong to another from an instant on",
        TenantMerge,
        {"into": "t-beta", "reason": "bought", "at": "2026-12-15T00:00:00Z"},
    ),
    response_model=None,
)
async def merge_tenants(request: Request) -> Response:
    """Merge a tenant into another: the future, not the past."""
    key = await require(request, _SCOPE)
    asked = await body_of(request, _tenant_merge)
    tenant_id = _text("tenant_id", request.path_params["tenant_id"])

    async def work(connection: Connection) -> TenantReply:
        await registry.merge_tenants(
            connection, _actor(key, asked.actor), tenant_id, asked.into, at=_at(asked.at), reason=asked.reason
        )
        return await _tenant(connection, tenant_id)

    return answered(await act(request, work))


@router.post(
    "/v1/tenants/{tenant_id}:unmerge",
    openapi_extra=_turn(
        "unmerge", "End a merge from an instant on; what was booked stays", TenantTurn, {"reason": "not bought"}
    ),
    response_model=None,
)
async def unmerge_tenant(request: Request) -> Response:
    """Let usage sent as a merged tenant be its own again."""
    key = await require(request, _SCOPE)
    asked = await body_of(request, _tenant_turn)
    tenant_id = _text("tenant_id", request.path_params["tenant_id"])

    async def work(connection: Connection) -> TenantReply:
        await registry.unmerge_tenant(
            connection, _actor(key, asked.actor), tenant_id, at=_at(asked.at), reason=asked.reason
        )
        return await _tenant(connection, tenant_id)

    return answered(await act(request, work))


_CHANGE_TENANT: Final = operation(
    "changeTenant", "Change a tenant from the start of a month on", tag="parties", scope=_SCOPE, answer=TenantReply,
    example=_TENANT_REPLY, body=TenantChange, parameters=(_ID,), is_act=True,
    body_example={"month": "2027-01", "time_zone": "America/New_York", "reason": "moved"},
    description="Refused where usage of that month is in the ledger, or it is closed; the refusal names the next month that is free.",
)  # fmt: skip


@router.post("/v1/tenants/{tenant_id}", openapi_extra=_CHANGE_TENANT, response_model=None)
async def change_tenant(request: Request) -> Response:
    """Change a tenant from the start of a month on."""
    key = await require(request, _SCOPE)
    asked = await body_of(request, _tenant_change)
    tenant_id = _text("tenant_id", request.path_params["tenant_id"])
    month = month_of_text("month", asked.month)

    async def work(connection: Connection) -> TenantReply:
        await registry.change_tenant(
            connection,
            _actor(key, asked.actor),
            tenant_id,
            month,
            entity_id=asked.entity_id,
            time_zone=asked.time_zone,
            charge_currency=asked.charge_currency,
            name=asked.name,
            reason=asked.reason,
        )
        return await _tenant(connection, tenant_id)

    return answered(await act(request, work))


def _text(name: str, text: str) -> str:
    """Return a text that the database can hold. Errors: `InvalidRequest`."""
    if "\0" in text:
        raise InvalidRequest(name, "holds a character that no name has")
    return text


# --- Entities ---------------------------------------------------------------------------------------------------------


@router.get(
    "/v1/entities",
    openapi_extra=operation(
        "listEntities", "All entities", tag="parties", scope=_SCOPE, answer=EntitiesReply, is_act=True,
        example={"entities": [_ENTITY]},
    ),
    response_model=None,
)  # fmt: skip
async def list_entities(request: Request) -> Response:
    """Answer with all entities."""
    await require(request, _SCOPE)
    return answered(EntitiesReply(await act(request, registry.list_entities)))


@router.post(
    "/v1/entities",
    openapi_extra=operation(
        "addEntity", "Add an entity that issues invoices", tag="parties", scope=_SCOPE, answer=EntityReply, status=201,
        example={"entity": _ENTITY}, body=EntityAdd, body_example={"entity_id": "entity-1", "name": "Entity One Ltd"},
        is_act=True, problems=("already-there",),
    ),
    response_model=None,
)  # fmt: skip
async def add_entity(request: Request) -> Response:
    """Add an entity."""
    key = await require(request, _SCOPE)
    asked = await body_of(request, _entity_add)

    async def work(connection: Connection) -> EntityReply:
        await registry.add_entity(connection, _actor(key, asked.actor), asked.entity_id, asked.name)
        return EntityReply(await registry.find_entity(connection, asked.entity_id))

    return answered(await act(request, work), 201)


@router.post(
    "/v1/entities/{entity_id}:rename",
    openapi_extra=operation(
        "renameEntity", "Change the name on the invoices from now on", tag="parties", scope=_SCOPE, answer=EntityReply,
        example={"entity": _ENTITY}, body=EntityRename, body_example={"name": "Entity One Ltd", "reason": "renamed"},
        parameters=(path_parameter("entity_id", "Which entity.", "entity-1"),), is_act=True,
    ),
    response_model=None,
)  # fmt: skip
async def rename_entity(request: Request) -> Response:
    """Change the name of an entity."""
    key = await require(request, _SCOPE)
    asked = await body_of(request, _entity_rename)
    entity_id = _text("entity_id", request.path_params["entity_id"])

    async def work(connection: Connection) -> EntityReply:
        await registry.rename_entity(connection, _actor(key, asked.actor), entity_id, asked.name, asked.reason)
        return EntityReply(await registry.find_entity(connection, entity_id))

    return answered(await act(request, work))


# --- Sources ----------------------------------------------------------------------------------------------------------


@router.get(
    "/v1/sources",
    openapi_extra=operation(
        "listSources", "Who may report usage, and for whom", tag="parties", scope=_SCOPE, answer=SourcesReply, is_act=True,
        example={"sources": [_SOURCE]}, problems=("invalid-request",),
        parameters=(query_parameter("ended", "Also those that have ended.", {"type": "boolean"}),),
    ),
    response_model=None,
)  # fmt: skip
async def list_sources(request: Request) -> Response:
    """Answer with sources."""
    await require(request, _SCOPE)
    ended = request.query_params.get("ended", "false")
    if ended not in ("true", "false"):
        raise InvalidRequest("ended", "must be true or false")
    found = await act(request, lambda connection: registry.list_sources(connection, with_ended=ended == "true"))
    return answered(SourcesReply(found))


@router.post(
    "/v1/sources",
    openapi_extra=operation(
        "addSource", "Register a sender of usage events", tag="parties", scope=_SCOPE, answer=SourceReply, status=201,
        example=_SOURCE_REPLY, body=SourceAdd, is_act=True, problems=("already-there",),
        body_example={"source": "gateway://eu-1", "kind": "gateway", "rank": 20, "tenant_ids": ["t-alpha"]},
    ),
    response_model=None,
)  # fmt: skip
async def add_source(request: Request) -> Response:
    """Register a sender."""
    key = await require(request, _SCOPE)
    asked = await body_of(request, _source_add)

    async def work(connection: Connection) -> SourceReply:
        await registry.add_source(
            connection,
            _actor(key, asked.actor),
            asked.source,
            kind=asked.kind,
            rank=asked.rank,
            speaks_for_all=asked.speaks_for_all,
            tenant_ids=asked.tenant_ids,
        )
        return await _source(connection, asked.source)

    return answered(await act(request, work), 201)


async def _source(connection: Connection, source: str) -> SourceReply:
    return SourceReply(await registry.find_source(connection, source), await acts_about(connection, "sources", source))


@router.post(
    "/v1/sources:change",
    openapi_extra=operation(
        "changeSource", "Change a source from now on", tag="parties", scope=_SCOPE, answer=SourceReply,
        example=_SOURCE_REPLY, body=SourceChange, is_act=True,
        body_example={"source": "gateway://eu-1", "rank": 30, "reason": "its counters are exact"},
        description=(
            "All of it in one transaction. A statement keeps the rank that its source had when it came, so a new rank moves "
            "nothing that is decided. The source stands in the body, since most names of sources hold slashes."
        ),
    ),
    response_model=None,
)  # fmt: skip
async def change_source(request: Request) -> Response:
    """Change rank, trust or end of a source."""
    key = await require(request, _SCOPE)
    asked = await body_of(request, _source_change)
    actor = _actor(key, asked.actor)
    if asked.rank is None and asked.is_ended is None and not asked.allow and not asked.disallow:
        raise InvalidRequest("body", "must name a rank, tenants to allow or disallow, or is_ended")

    async def work(connection: Connection) -> SourceReply:
        # What may speak again comes first, and what ends last: a source that has ended takes no more tenants.
        if asked.is_ended is False:
            await registry.resume_source(connection, actor, asked.source, asked.reason)
        if asked.rank is not None:
            await registry.rank_source(connection, actor, asked.source, asked.rank, asked.reason)
        if asked.allow:
            await registry.allow_tenants(connection, actor, asked.source, asked.allow)
        if asked.disallow:
            await registry.disallow_tenants(connection, actor, asked.source, asked.disallow, asked.reason)
        if asked.is_ended:
            await registry.end_source(connection, actor, asked.source, asked.reason)
        return await _source(connection, asked.source)

    return answered(await act(request, work))


# --- Provider accounts and models -------------------------------------------------------------------------------------


@router.get(
    "/v1/provider-accounts",
    openapi_extra=operation(
        "listProviderAccounts", "What providers bill", tag="parties", scope=_SCOPE, answer=AccountsReply, is_act=True,
        example={"provider_accounts": [_ACCOUNT]},
    ),
    response_model=None,
)  # fmt: skip
async def list_accounts(request: Request) -> Response:
    """Answer with provider accounts."""
    await require(request, _SCOPE)
    return answered(AccountsReply(await act(request, registry.list_provider_accounts)))


@router.post(
    "/v1/provider-accounts",
    openapi_extra=operation(
        "addProviderAccount", "Add an account that a provider bills", tag="parties", scope=_SCOPE, answer=AccountReply,
        example={"provider_account": _ACCOUNT}, body=AccountAdd, is_act=True, status=201, problems=("already-there",),
        body_example={"provider_account": "openai-eu", "provider": "openai", "currency": "USD"},
    ),
    response_model=None,
)  # fmt: skip
async def add_account(request: Request) -> Response:
    """Add an account that a provider bills."""
    key = await require(request, _SCOPE)
    asked = await body_of(request, _account_add)

    async def work(connection: Connection) -> AccountReply:
        await registry.add_provider_account(
            connection,
            _actor(key, asked.actor),
            asked.provider_account,
            asked.provider,
            asked.currency,
            asked.tenant_id,
        )
        return AccountReply(await registry.find_provider_account(connection, asked.provider_account))

    return answered(await act(request, work), 201)


@router.post(
    "/v1/provider-accounts:change",
    openapi_extra=operation(
        "changeProviderAccount", "Put right what was said of an account", tag="parties", scope=_SCOPE,
        answer=AccountReply, example={"provider_account": {**_ACCOUNT, "tenant_id": "t-alpha"}}, body=AccountChange,
        is_act=True,
        body_example={"provider_account": "openai-eu", "tenant_id": "t-alpha", "reason": "it is their own"},
        description="What is posted keeps its price until it is repriced.",
    ),
    response_model=None,
)  # fmt: skip
async def change_account(request: Request) -> Response:
    """Put right what was said of an account."""
    key = await require(request, _SCOPE)
    asked = await body_of(request, _account_change)

    async def work(connection: Connection) -> AccountReply:
        await registry.change_provider_account(
            connection,
            _actor(key, asked.actor),
            asked.provider_account,
            provider=asked.provider,
            currency=asked.currency,
            tenant_id=asked.tenant_id,
            is_ours=asked.is_ours,
            reason=asked.reason,
        )
        return AccountReply(await registry.find_provider_account(connection, asked.provider_account))

    return answered(await act(request, work))


@router.get(
    "/v1/models",
    openapi_extra=operation(
        "listModels", "Models with their exact names and limits", tag="parties", scope=_SCOPE, answer=ModelsReply,
        example={"models": [_MODEL], "next": None}, is_act=True, problems=("invalid-request",),
        parameters=(
            query_parameter("provider", "Of this provider only."),
            query_parameter("after", "The `next` of the page before."),
            _LIMIT,
        ),
    ),
    response_model=None,
)  # fmt: skip
async def list_models(request: Request) -> Response:
    """Answer with models."""
    await require(request, _SCOPE)
    query = request.query_params
    provider = query.get("provider")
    limit = limit_of(query.get("limit"), services_of(request).config.page_rows_max)
    after = _model_place(query.get("after"))
    found = await act(
        request,
        lambda connection: registry.list_models(
            connection, None if provider is None else _text("provider", provider), after=after, limit=limit + 1
        ),
    )
    last = found[limit - 1] if len(found) > limit else None
    following = None if last is None else msgspec.json.encode((last.provider, last.model)).decode()
    return answered(ModelsReply(found[:limit], following))


def _model_place(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    try:
        provider, model = _place_decoder.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        raise InvalidRequest("after", "must be the `next` of the page before") from None
    return _text("after", provider), _text("after", model)


@router.post(
    "/v1/models",
    openapi_extra=operation(
        "setModel", "Add a model, or names and limits to one that is there", tag="parties", scope=_SCOPE, answer=ModelReply,
        example={"model": _MODEL}, body=ModelSet, is_act=True, body_example=_MODEL,
    ),
    response_model=None,
)  # fmt: skip
async def set_model(request: Request) -> Response:
    """Add a model, or names and limits."""
    key = await require(request, _SCOPE)
    asked = await body_of(request, _model_set)
    without: list[registry.Limit] = []
    if asked.input_tokens_max is None:
        without.append("input_tokens_max")
    if asked.output_tokens_max is None:
        without.append("output_tokens_max")

    async def work(connection: Connection) -> ModelReply:
        await registry.set_model(
            connection,
            _actor(key, asked.actor),
            asked.provider,
            asked.model,
            input_tokens_max=asked.input_tokens_max or None,
            output_tokens_max=asked.output_tokens_max or None,
            aliases=asked.aliases,
            without=without,
        )
        return ModelReply(await registry.find_model(connection, asked.provider, asked.model))

    return answered(await act(request, work))


@router.post(
    "/v1/models:drop-alias",
    openapi_extra=operation(
        "dropAlias", "Take an exact name from its model", tag="parties", scope=_SCOPE, answer=ModelReply,
        example={"model": {**_MODEL, "aliases": []}}, body=AliasDrop, is_act=True,
        body_example={"provider": "openai", "alias": "gpt-5-mini-2025-08-07", "reason": "another model"},
        description="Reports under it are unpriced from now on. What is in the ledger stays until it is repriced.",
    ),
    response_model=None,
)  # fmt: skip
async def drop_alias(request: Request) -> Response:
    """Take an exact name from its model."""
    key = await require(request, _SCOPE)
    asked = await body_of(request, _alias_drop)

    async def work(connection: Connection) -> ModelReply:
        model = await registry.drop_alias(
            connection, _actor(key, asked.actor), asked.provider, asked.alias, asked.reason
        )
        return ModelReply(await registry.find_model(connection, asked.provider, model))

    return answered(await act(request, work))


_tenant_add: Final = msgspec.json.Decoder(TenantAdd)
_tenant_change: Final = msgspec.json.Decoder(TenantChange)
_tenant_turn: Final = msgspec.json.Decoder(TenantTurn)
_tenant_merge: Final = msgspec.json.Decoder(TenantMerge)
_tenant_status: Final = msgspec.json.Decoder(TenantStatus)
_entity_add: Final = msgspec.json.Decoder(EntityAdd)
_entity_rename: Final = msgspec.json.Decoder(EntityRename)
_source_add: Final = msgspec.json.Decoder(SourceAdd)
_source_change: Final = msgspec.json.Decoder(SourceChange)
_account_add: Final = msgspec.json.Decoder(AccountAdd)
_account_change: Final = msgspec.json.Decoder(AccountChange)
_alias_drop: Final = msgspec.json.Decoder(AliasDrop)
_model_set: Final = msgspec.json.Decoder(ModelSet)
_place_decoder: Final = msgspec.json.Decoder(tuple[str, str])

ROOM: Final = Room(
    router,
    "parties",
    "Who takes part: tenants, entities, sources, provider accounts, models. With an operator's key.",
    (
        TenantAdd, TenantChange, TenantTurn, TenantMerge, TenantStatus, TenantReply, TenantsReply, EntityAdd, EntityReply,
        EntitiesReply, SourceAdd, SourceChange, SourceReply, SourcesReply, AccountAdd, AccountReply, AccountsReply, ModelSet,
        ModelReply, ModelsReply, EntityRename, AccountChange, AliasDrop,
    ),
)  # fmt: skip
