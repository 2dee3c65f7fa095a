"""Budgets as YAML, for operators who keep them under version control; `tallystick budgets apply` brings them about.

    budgets:
      - id: alpha-monthly             # the name; it is given once
        tenant: t-alpha               # left out: every tenant
        unit: charge
        currency: USD
        window: month
        limit: 500                    # or none
        thresholds: [0.8, 0.95]
        steps:
          - {at: 0.9, action: degrade, route: small, output_tokens_max: 512, hold: 0.05}
      - id: alpha-each-user
        tenant: t-alpha
        group_by: [subject_id]
        unit: charge
        currency: USD
        window: day
        limit: 5
        group_limits:
          - {group: {user_hash: u-77}, limit: 20}
        replaces: alpha-each-user-weekly
    ended: [alpha-old]

A budget's terms are those that stand in the file: what is left out is at its default, not as it was. Every scalar is read as
text, so that an amount is the digits that stand there.
"""

from collections.abc import Callable, Mapping
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, TypeVar

from ledger.contracts import read_yaml
from ledger.money import parse_amount
from quotas.budgets import GroupLimit, Step, Terms, Wish
from quotas.errors import BudgetRefused

Value = TypeVar("Value")

_FILE: Final = frozenset({"budgets", "ended"})
_BUDGET: Final = {
    "tenant": "tenant_id", "account": "provider_account", "feature": "feature", "model": "model", "route": "route",
    "lane": "lane", "key": "api_key_id", "user": "user_hash", "unit": "unit", "currency": "currency", "window": "window",
    "hardness": "hardness", "unknown_price": "unknown_price", "missing_estimate": "missing_estimate",
    "when_away": "when_away", "description": "description",
}  # fmt: skip
"""Texts of a budget, and what they are called in its terms."""
_AMOUNTS: Final = ("interactive_reserve", "missing_estimate_amount", "away_amount")
_OTHERS: Final = frozenset(
    {"id", "limit", "tags", "group_by", "days", "anchor", "since", "thresholds", "steps", "group_limits", "replaces"}
)
_STEP: Final = frozenset({"at", "action", "route", "output_tokens_max", "hold"})


def load_budgets(path: Path) -> tuple[list[Wish], list[str]]:
    """Read the budgets of a file and the names of those that are to be over.

    Raises BudgetRefused naming file, budget and field for what is wrong first.
    """
    where = path.name
    try:
        document = read_yaml(path)
    except ValueError as error:
        raise BudgetRefused(f"{where} {error}") from None
    whole = _mapping(where, document, _FILE)
    listed = _list(f"{where}: budgets", whole.get("budgets", []))
    wishes = [_wish(f"{where}: budget no. {number}", each) for number, each in enumerate(listed, 1)]
    ended = [_text(f"{where}: ended", each) for each in _list(f"{where}: ended", whole.get("ended", []))]
    names = [wish.budget_id for wish in wishes] + ended
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise BudgetRefused(f"{where} names budget {twice!r} twice")
    if not names:
        raise BudgetRefused(f"{where} names no budget")
    return wishes, ended


def _wish(where: str, value: object) -> Wish:
    budget = _mapping(where, value, frozenset(_BUDGET) | frozenset(_AMOUNTS) | _OTHERS)
    for name in ("id", "unit", "limit"):
        if name not in budget:
            raise BudgetRefused(f"{where} has no {name}")
    budget_id = _text(f"{where}: id", budget["id"])
    where = f"{where} ({budget_id})"

    def get(name: str, read: Callable[[str, object], Value]) -> Value | None:
        return read(f"{where}: {name}", budget[name]) if name in budget else None

    terms: dict[str, Any] = {}
    for name, term in _BUDGET.items():
        text = get(name, _text)
        if text is not None:
            terms[term] = text
    for name in _AMOUNTS:
        terms[name] = get(name, _amount)
    terms["limit"] = get("limit", _limit)
    terms["tags"] = get("tags", _texts_by_name) or {}
    terms["group_by"] = tuple(get("group_by", _texts) or ())
    terms["window_days"] = get("days", _count)
    terms["anchor"] = get("anchor", _day)
    terms["thresholds"] = get("thresholds", _amounts)
    terms["steps"] = get("steps", _steps)
    terms["group_limits"] = get("group_limits", _group_limits)
    return Wish(budget_id=budget_id, terms=Terms(**terms), since=get("since", _day), replaces=get("replaces", _text))


def _mapping(where: str, value: object, known: frozenset[str] | None = None) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise BudgetRefused(f"{where} is not a mapping of fields")
    for name in value:
        if known is not None and name not in known:
            raise BudgetRefused(f"{where} has the unknown field {name!r}")
    return value


def _list(where: str, value: object) -> list[Any]:
    if not isinstance(value, list):
        raise BudgetRefused(f"{where} is not a list")
    return value


def _text(where: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise BudgetRefused(f"{where} is not a text")
    return value


def _texts(where: str, value: object) -> list[str]:
    return [_text(where, each) for each in _list(where, value)]


def _texts_by_name(where: str, value: object) -> dict[str, str]:
    return {name: _text(f"{where}.{name}", each) for name, each in _mapping(where, value).items()}


def _amount(where: str, value: object) -> Decimal:
    try:
        return parse_amount(_text(where, value))
    except ValueError as error:
        raise BudgetRefused(f"{where}: {error}") from None


def _amounts(where: str, value: object) -> list[Decimal]:
    return [_amount(where, each) for each in _list(where, value)]


def _limit(where: str, value: object) -> Decimal | None:
    return None if value == "none" else _amount(where, value)


def _count(where: str, value: object) -> int:
    text = _text(where, value)
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise BudgetRefused(f"{where}: {text!r} is not a whole number")
    return int(text)


def _day(where: str, value: object) -> date:
    text = _text(where, value)
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise BudgetRefused(f"{where}: {text!r} is not a date such as 2026-12-31") from None


def _steps(where: str, value: object) -> list[Step]:
    steps = []
    for number, each in enumerate(_list(where, value), 1):
        place = f"{where} no. {number}"
        step = _mapping(place, each, _STEP)
        for name in ("at", "action"):
            if name not in step:
                raise BudgetRefused(f"{place} has no {name}")
        steps.append(
            Step(
                at=_amount(f"{place}: at", step["at"]),
                action=_text(f"{place}: action", step["action"]),
                route=_text(f"{place}: route", step["route"]) if "route" in step else None,
                output_tokens_max=_count(f"{place}: output_tokens_max", step["output_tokens_max"])
                if "output_tokens_max" in step
                else None,
                hold=_amount(f"{place}: hold", step["hold"]) if "hold" in step else None,
            )
        )
    return steps


def _group_limits(where: str, value: object) -> list[GroupLimit]:
    limits = []
    for number, each in enumerate(_list(where, value), 1):
        place = f"{where} no. {number}"
        own = _mapping(place, each, frozenset({"group", "limit"}))
        for name in ("group", "limit"):
            if name not in own:
                raise BudgetRefused(f"{place} has no {name}")
        group = _mapping(f"{place}: group", own["group"])
        limits.append(
            GroupLimit(
                # An empty text stands for usage that does not say.
                group={name: each_value or None for name, each_value in group.items()},
                limit=_limit(f"{place}: limit", own["limit"]),
            )
        )
    return limits
