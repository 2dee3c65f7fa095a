"""Administration of budgets: what they are made of and their terms, for operators."""

from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from functools import partial
from time import time_ns
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter
from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from api.admin import act, answered, body_of, look, require
from api.documents import Room, operation, path_parameter
from ledger.database import Connection
from ledger.errors import Unknown
from quotas import budgets
from quotas.budgets import BudgetRecord, BudgetSet, Changes, GroupLimit, Step, Terms

router = APIRouter()

AmountText = Annotated[
    str, Meta(pattern=r"^[0-9]{1,30}(\.[0-9]{1,30})?$", description="Decimal text, exact, not negative.")
]
"""Text, since a JSON number may pass through a float on its way."""


class StepBody(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is done before the limit is reached."""

    at: Annotated[AmountText, Meta(description="The share of the limit from which it holds, below 1.")]
    action: Annotated[str, Meta(description="degrade: the call goes on by a cheaper way. refuse: it does not.")]
    route: Annotated[str | None, Meta(description="degrade: the route to take instead.")] = None
    output_tokens_max: Annotated[int | None, Meta(description="degrade: the output cap to set.")] = None
    hold: Annotated[AmountText | None, Meta(description="degrade: what is held for it; absent, what was asked.")] = None


class GroupLimitBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """The limit of one group instead of the budget's."""

    group: Annotated[dict[str, str | None], Meta(description="A value for each name of `group_by`.")]
    limit: Annotated[AmountText | None, Meta(description="Null: this group is not limited.")]


class BudgetChangeBody(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Terms to change: what is not there stays."""

    limit: Annotated[AmountText | UnsetType | None, Meta(description="0 forbids everything, null does not limit.")] = (
        UNSET
    )
    group_limits: Annotated[
        list[GroupLimitBody] | UnsetType, Meta(description="All limits of groups: those left out are no more.")
    ] = UNSET
    hardness: Annotated[str | UnsetType, Meta(description="hard refuses, soft warns, shadow only counts.")] = UNSET
    interactive_reserve: Annotated[AmountText | UnsetType, Meta(description="What the batch lane may not touch.")] = (
        UNSET
    )
    thresholds: Annotated[list[AmountText] | UnsetType, Meta(description="Shares of the limit to note.")] = UNSET
    steps: Annotated[list[StepBody] | UnsetType, Meta(description="On the way to the limit, ascending.")] = UNSET
    unknown_price: Annotated[str | UnsetType, Meta(description="refuse or admit.")] = UNSET
    missing_estimate: Annotated[str | UnsetType, Meta(description="refuse, admit or hold.")] = UNSET
    missing_estimate_amount: Annotated[AmountText | UnsetType, Meta(description="For hold: how much.")] = UNSET
    when_away: Annotated[
        str | UnsetType, Meta(description="What a gateway does while nobody answers it: refuse or admit.")
    ] = UNSET
    away_amount: Annotated[AmountText | UnsetType, Meta(description="For admit: up to how much.")] = UNSET
    description: Annotated[str | UnsetType, Meta(description="A line for people.")] = UNSET
    reason: Annotated[str | None, Meta(description="Why, for the record.")] = None


class BudgetBody(BudgetChangeBody, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A new budget. Terms that are left out are at their defaults; `limit` must be said, null for none."""

    limit: Annotated[AmountText | None, Meta(description="0 forbids everything, null does not limit.")]
    budget_id: Annotated[str | None, Meta(description="Its name, given once; absent, it gets one.")] = None
    replaces: Annotated[str | None, Meta(description="A budget that ends in the same commit.")] = None
    tenant_id: Annotated[str | None, Meta(description="Absent: every tenant. Likewise down to `tags`: any.")] = None
    provider_account: str | None = None
    feature: str | None = None
    model: Annotated[str | None, Meta(description="Canonical id.")] = None
    route: str | None = None
    lane: str | None = None
    api_key_id: str | None = None
    user_hash: Annotated[str | None, Meta(description="The sender's hash of a user.")] = None
    tags: dict[str, str] = {}
    group_by: Annotated[list[str], Meta(description="A window for each value.")] = []
    unit: Annotated[str, Meta(description="charge, cost, requests, or tokens of a kind.")]
    currency: Annotated[str | None, Meta(description="Of charge and cost.")] = None
    window: Annotated[str, Meta(description="day, days, week, month, anchored_month or lifetime.")] = "month"
    window_days: int | None = None
    anchor: date | None = None
    since: Annotated[date | None, Meta(description="Count from the window of this day; absent, the one in force.")] = (
        None
    )


class BudgetDefinition(Struct, kw_only=True):
    """A budget: what makes it, and its terms."""

    budget_id: str
    tenant_id: str | None
    provider_account: str | None
    feature: str | None
    model: str | None
    route: str | None
    lane: str | None
    api_key_id: str | None
    subject_id: str | None
    tags: dict[str, str]
    group_by: list[str]
    unit: str
    currency: str | None
    window: str
    window_days: int | None
    anchor: date | None
    first_window: Annotated[date, Meta(description="Movements into earlier windows are not followed.")]
    limit: str | None
    group_limits: Annotated[dict[str, str | None], Meta(description="By group: a JSON array of its values.")]
    hardness: str
    interactive_reserve: str
    thresholds: list[str]
    steps: list[StepBody]
    unknown_price: str
    missing_estimate: str
    missing_estimate_amount: str | None
    when_away: str
    away_amount: str | None
    description: str | None
    created_at: datetime
    ended_at: datetime | None


class BudgetSetReply(Struct, kw_only=True):
    """What became of a wish for a budget."""

    outcome: Annotated[str, Meta(description="created, changed, unchanged or replaced.")]
    windows_above: Annotated[int, Meta(description="Windows that are above their limit as it is now.")]
    budget: BudgetDefinition


_EXAMPLE: Final[dict[str, Any]] = {
    "budget_id": "alpha-monthly",
    "tenant_id": "t-alpha",
    "provider_account": None,
    "feature": None,
    "model": None,
    "route": None,
    "lane": None,
    "api_key_id": None,
    "subject_id": None,
    "tags": {},
    "group_by": [],
    "unit": "charge",
    "currency": "USD",
    "window": "month",
    "window_days": None,
    "anchor": None,
    "first_window": "2026-09-01",
    "limit": "100",
    "group_limits": {},
    "hardness": "hard",
    "interactive_reserve": "0",
    "thresholds": ["0.8"],
    "steps": [{"at": "0.9", "action": "degrade", "route": "small", "hold": "0.05"}],
    "unknown_price": "refuse",
    "missing_estimate": "refuse",
    "missing_estimate_amount": None,
    "when_away": "refuse",
    "away_amount": None,
    "description": None,
    "created_at": "2026-09-01T08:00:00Z",
    "ended_at": None,
}
_SET_EXAMPLE: Final = {"outcome": "created", "windows_above": 0, "budget": _EXAMPLE}
_BUDGET: Final = path_parameter("budget_id", "Its name.", "alpha-monthly")
_TAG: Final = "administration of budgets"

GET_OPERATION: Final = operation(
    "getBudget",
    "What a budget is made of",
    tag=_TAG,
    scope="budgets:write",
    parameters=(_BUDGET,),
    answer=BudgetDefinition,
    example=_EXAMPLE,
    problems=("unknown-name", "database-away"),
)
POST_OPERATION: Final = operation(
    "setBudget",
    "Set a budget",
    tag=_TAG,
    scope="budgets:write",
    description=(
        "Makes a budget, or changes the terms of the one with this scope, unit and window; the same again changes nothing. It "
        "starts with what the ledger already holds of its window. With `replaces` another one ends in the same commit."
    ),
    answer=BudgetSetReply,
    example=_SET_EXAMPLE,
    body=BudgetBody,
    body_example={"tenant_id": "t-alpha", "unit": "charge", "currency": "USD", "limit": "100", "thresholds": ["0.8"]},
    is_act=True,
    problems=("already-there",),
)
PATCH_OPERATION: Final = operation(
    "changeBudget",
    "Change terms of a budget",
    tag=_TAG,
    scope="budgets:write",
    description="Scope, unit and window never change: a change of those is a new budget, with `replaces`.",
    parameters=(_BUDGET,),
    answer=BudgetSetReply,
    example={**_SET_EXAMPLE, "outcome": "changed"},
    body=BudgetChangeBody,
    body_example={"limit": "150", "reason": "asked for"},
    is_act=True,
)

_budget: Final = msgspec.json.Decoder(BudgetBody)
_change: Final = msgspec.json.Decoder(BudgetChangeBody)


@router.get("/v1/budgets/{budget_id}", openapi_extra=GET_OPERATION, response_model=None)
async def get_budget(request: Request) -> Response:
    """Answer with what a budget is made of."""
    await require(request, "budgets:write")
    return answered(await look(request, partial(_find, request.path_params["budget_id"])))


@router.post("/v1/budgets", openapi_extra=POST_OPERATION, response_model=None)
async def post_budget(request: Request) -> Response:
    """Make a budget or change its terms."""
    key = await require(request, "budgets:write")
    asked = await body_of(request, _budget)
    terms = Terms(
        tenant_id=asked.tenant_id,
        provider_account=asked.provider_account,
        feature=asked.feature,
        model=asked.model,
        route=asked.route,
        lane=asked.lane,
        api_key_id=asked.api_key_id,
        user_hash=asked.user_hash,
        tags=asked.tags,
        group_by=tuple(asked.group_by),
        unit=asked.unit,
        currency=asked.currency,
        window=asked.window,
        window_days=asked.window_days,
        anchor=asked.anchor,
        **_terms(asked),
    )

    async def work(connection: Connection) -> BudgetSetReply:
        now = time_ns() // 1000
        if asked.replaces is not None:
            done = await budgets.replace_budget(
                connection, key.actor, asked.replaces, terms, now=now, since=asked.since, budget_id=asked.budget_id,
                reason=asked.reason,
            )  # fmt: skip
        else:
            done = await budgets.set_budget(
                connection, key.actor, terms, now=now, since=asked.since, budget_id=asked.budget_id, reason=asked.reason
            )
        return await _reply(connection, done)

    reply = await act(request, work)
    return answered(reply, 201 if reply.outcome in ("created", "replaced") else 200)


@router.patch("/v1/budgets/{budget_id}", openapi_extra=PATCH_OPERATION, response_model=None)
async def patch_budget(request: Request) -> Response:
    """Change terms of a budget."""
    key = await require(request, "budgets:write")
    asked = await body_of(request, _change)
    changes = Changes(terms=_terms(asked))

    async def work(connection: Connection) -> BudgetSetReply:
        if "\0" in (budget_id := request.path_params["budget_id"]):
            raise Unknown("budget", budget_id)
        done = await budgets.change_budget(connection, key.actor, budget_id, changes, reason=asked.reason)
        return await _reply(connection, done)

    return answered(await act(request, work))


def _terms(asked: BudgetChangeBody) -> dict[str, Any]:
    """Return the terms that a body names, as quotas takes them."""
    amounts = ("limit", "interactive_reserve", "missing_estimate_amount", "away_amount")
    found: dict[str, Any] = {}
    for name in (*amounts, "hardness", "unknown_price", "missing_estimate", "when_away", "description"):
        value = getattr(asked, name)
        if value is not UNSET:
            found[name] = Decimal(value) if name in amounts and value is not None else value
    if asked.thresholds is not UNSET:
        found["thresholds"] = [Decimal(each) for each in asked.thresholds]
    if asked.group_limits is not UNSET:
        found["group_limits"] = [
            GroupLimit(group=each.group, limit=None if each.limit is None else Decimal(each.limit))
            for each in asked.group_limits
        ]
    if asked.steps is not UNSET:
        found["steps"] = [
            Step(
                at=Decimal(each.at),
                action=each.action,
                route=each.route,
                output_tokens_max=each.output_tokens_max,
                hold=None if each.hold is None else Decimal(each.hold),
            )
            for each in asked.steps
        ]
    return found


async def _reply(connection: Connection, done: BudgetSet) -> BudgetSetReply:
    return BudgetSetReply(
        outcome=done.outcome, windows_above=done.windows_above, budget=await _find(done.budget_id, connection)
    )


async def _find(budget_id: str, connection: Connection) -> BudgetDefinition:
    found = None if "\0" in budget_id else await budgets.find_budget(connection, budget_id)
    if found is None:
        raise Unknown("budget", budget_id)
    return _from_record(found)


def _from_record(found: BudgetRecord) -> BudgetDefinition:
    def text(amount: Decimal | None) -> str | None:
        return None if amount is None else f"{amount:f}"

    return BudgetDefinition(
        budget_id=found.budget_id,
        tenant_id=found.tenant_id,
        provider_account=found.provider_account,
        feature=found.feature,
        model=found.model,
        route=found.route,
        lane=found.lane,
        api_key_id=found.api_key_id,
        subject_id=found.subject_id,
        tags=dict(found.tags or {}),
        group_by=list(found.group_by),
        unit=found.unit,
        currency=found.currency,
        window=found.window_kind,
        window_days=found.window_days,
        anchor=found.anchor,
        first_window=found.first_window,
        limit=text(found.limit_amount),
        group_limits=dict(found.group_limits),
        hardness=found.hardness,
        interactive_reserve=f"{found.interactive_reserve:f}",
        thresholds=[f"{each:f}" for each in found.thresholds],
        steps=[_step(each) for each in found.steps],
        unknown_price=found.unknown_price,
        missing_estimate=found.missing_estimate,
        missing_estimate_amount=text(found.missing_estimate_amount),
        when_away=found.when_away,
        away_amount=text(found.away_amount),
        description=found.description,
        created_at=found.created_at,
        ended_at=found.ended_at,
    )


def _step(step: Mapping[str, Any]) -> StepBody:
    return msgspec.convert(step, StepBody)


ROOM: Final = Room(
    router,
    _TAG,
    "What budgets are made of, for operators.",
    (BudgetBody, BudgetChangeBody, BudgetDefinition, BudgetSetReply),
)
