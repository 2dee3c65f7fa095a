"""What a person may ask of a budget: scope, unit and window, which make it, and the terms that can change while it lasts.

The rules stand in the order in which they are checked; the first that is broken is named, in one line.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from decimal import Decimal
from typing import Any, Final

from ledger.books import load_tenants
from ledger.database import Connection
from ledger.errors import Unknown
from ledger.money import CURRENCIES, amount_text
from ledger.parties import Tenant
from quotas.errors import BudgetRefused
from quotas.tables import GROUPS, UNITS, WINDOWS

MONEY_UNITS: Final = ("charge", "cost")
HARDNESS: Final = ("hard", "soft", "shadow")
POLICIES: Final = ("refuse", "admit")
MISSING_ESTIMATE: Final = (*POLICIES, "hold")
LANES: Final = ("interactive", "batch")
ACTIONS: Final = ("degrade", "refuse")
TOTALS: Final = "totals-"
"""Names the templates that the first revision makes: totals per tenant and book, which the standing proof reads."""
GRANTED: Final = "prepaid-"
"""Names the budgets whose limit is what a tenant was granted: grants move it, and nobody else."""
NAME_LENGTH_MAX: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What is done before the limit is reached: from a share of it on."""

    at: Decimal
    """Share of the limit above which, with what is asked for, the step holds."""
    action: str
    """degrade: the call goes on by a cheaper way. refuse: it does not, though the limit is not reached."""
    route: str | None = None
    """degrade: the route to take instead."""
    output_tokens_max: int | None = None
    """degrade: the output cap to set."""
    hold: Decimal | None = None
    """degrade: what is held for the cheaper call; None holds what was asked for."""

    def plain(self) -> dict[str, Any]:
        """Return the step as it stands in the table: amounts as text, what it does not have left out."""
        values = {
            "at": _shortest(self.at),
            "action": self.action,
            "route": self.route,
            "output_tokens_max": self.output_tokens_max,
            "hold": None if self.hold is None else amount_text(self.hold),
        }
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimit:
    """The limit of one group instead of the budget's."""

    group: Mapping[str, str | None]
    """A value for each name of the grouping; `user_hash` may stand for `subject_id`."""
    limit: Decimal | None
    """None: this group is not limited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a person asks of a budget. Scope, unit and window make it; the rest can be changed while it lasts."""

    # Scope: what usage must be to count. None is any.
    tenant_id: str | None = None
    provider_account: str | None = None
    feature: str | None = None
    model: str | None = None
    route: str | None = None
    lane: str | None = None
    api_key_id: str | None = None
    user_hash: str | None = None
    """The sender's hash of its user; the budget holds the id that stands for it in the ledger."""
    tags: Mapping[str, str] = field(default_factory=dict)
    group_by: Sequence[str] = ()

    unit: str
    currency: str | None = None
    window: str = "month"
    window_days: int | None = None
    anchor: date | None = None

    limit: Decimal | None = None
    """Zero forbids everything; None does not limit."""
    # None: as it was, and on a new budget the default of DEFAULTS.
    group_limits: Sequence[GroupLimit] | None = None
    hardness: str | None = None
    interactive_reserve: Decimal | None = None
    thresholds: Sequence[Decimal] | None = None
    steps: Sequence[Step] | None = None
    unknown_price: str | None = None
    missing_estimate: str | None = None
    missing_estimate_amount: Decimal | None = None
    when_away: str | None = None
    away_amount: Decimal | None = None
    description: str | None = None


DEFAULTS: Final[Mapping[str, Any]] = {
    "hardness": "hard",
    "interactive_reserve": Decimal(0),
    "thresholds": [],
    "steps": [],
    "unknown_price": "refuse",
    "missing_estimate": "refuse",
    "when_away": "refuse",
}


def completed(terms: Terms) -> Terms:
    """Return terms with a default for each that is left out: what a file says is all that holds."""
    left_out = {name: value for name, value in DEFAULTS.items() if getattr(terms, name) is None}
    return replace(
        terms,
        **left_out,
        group_limits=terms.group_limits or (),
        description=terms.description or "",
    )


# --- Rules, in the order in which they are checked ---------------------------------------------------------------------


async def check_terms(connection: Connection, terms: Terms) -> Tenant | None:
    """Refuse the first rule that is broken by what is asked for; return the tenant that it names."""
    tenant = await _check_scope(connection, terms)
    _check_unit(terms, tenant)
    _check_limit(terms)
    _check_window(terms)
    _check_policies(terms)
    _check_steps(terms)
    return tenant


def check_name(budget_id: str) -> None:
    if (
        not budget_id.isprintable()
        or not budget_id.strip()
        or len(budget_id) > 100
        or budget_id.startswith((TOTALS, GRANTED))
    ):
        raise BudgetRefused(f"{budget_id!r} cannot name a budget")


async def _check_scope(connection: Connection, terms: Terms) -> Tenant | None:
    scope = ("provider_account", "feature", "model", "route", "lane", "api_key_id", "user_hash")
    for field_name in scope:
        value = getattr(terms, field_name)
        if value is not None and not _is_name(value):
            raise BudgetRefused(f"{field_name} {value!r} is no printable text of 1 to {NAME_LENGTH_MAX} characters")
    for tag, wanted in terms.tags.items():
        if not _is_name(tag) or not _is_name(wanted):
            raise BudgetRefused(f"tag {tag!r} with {wanted!r} is no pair of printable texts")
    tenant = None
    if terms.tenant_id is not None:
        tenant = (await load_tenants(connection)).get(terms.tenant_id)
        if tenant is None:
            raise Unknown("tenant", terms.tenant_id)
    known = (
        ("provider account", "ledger.provider_accounts", "provider_account", terms.provider_account),
        ("model", "ledger.models", "model", terms.model),
        ("API key", "ledger.api_keys", "key_id", terms.api_key_id),
    )
    for what, table, column, name in known:
        if name is None:
            continue
        # Table and column are from the list above, never a person's text.
        cursor = await connection.execute(f"select from {table} where {column} = %s limit 1".encode(), [name])
        # A budget on a misspelt name would never limit anything, in silence.
        if await cursor.fetchone() is None:
            raise Unknown(what, name)
    if terms.lane is not None and terms.lane not in LANES:
        raise BudgetRefused(f"lane {terms.lane!r} is unknown; it is one of {', '.join(LANES)}")
    if terms.user_hash is not None and tenant is None:
        raise BudgetRefused("a user belongs to a tenant: name the tenant too")
    unknown = [name for name in terms.group_by if name not in GROUPS]
    if unknown:
        raise BudgetRefused(f"cannot group by {unknown[0]!r}; it is one of {', '.join(GROUPS)}")
    if len(set(terms.group_by)) < len(terms.group_by):
        raise BudgetRefused("a name in the grouping is there twice")
    return tenant


def _is_name(text: str) -> bool:
    return 0 < len(text) <= NAME_LENGTH_MAX and text.isprintable()


def _check_unit(terms: Terms, tenant: Tenant | None) -> None:
    if terms.unit not in UNITS:
        raise BudgetRefused(f"unit {terms.unit!r} is unknown; it is one of {', '.join(UNITS)}")
    by_currency = "currency" in terms.group_by
    if terms.unit not in MONEY_UNITS:
        if terms.currency is not None or by_currency:
            raise BudgetRefused(f"{terms.unit} have no currency")
        return
    if terms.currency is None and not by_currency:
        raise BudgetRefused(f"a budget in {terms.unit} needs a currency")
    if terms.currency is not None:
        if by_currency:
            raise BudgetRefused("a budget has one currency or is grouped by currency, not both")
        if terms.currency not in CURRENCIES:
            raise BudgetRefused(f"currency {terms.currency!r} is no code of ISO 4217, such as USD")
        charged_in = [version.charge_currency for version in tenant.versions] if tenant else []
        if terms.unit == "charge" and charged_in and terms.currency not in charged_in:
            raise BudgetRefused(
                f"tenant {terms.tenant_id} is charged in {charged_in[-1]}: a budget in {terms.currency} would never move"
            )


def _check_limit(terms: Terms) -> None:
    if terms.limit is not None:
        check_amount("limit", terms.unit, terms.limit)
        if terms.unit in MONEY_UNITS and terms.currency is None:
            raise BudgetRefused("a limit in money needs a currency, not a grouping by currency")
    for each in terms.group_limits or ():
        _check_group(terms, each)
        if each.limit is not None:
            check_amount(f"limit of {group_text(each.group)}", terms.unit, each.limit)
    if terms.interactive_reserve is not None:
        check_amount("interactive reserve", terms.unit, terms.interactive_reserve)
    for threshold in terms.thresholds or ():
        if not threshold.is_finite() or threshold <= 0:
            raise BudgetRefused(f"a threshold is a share of the limit above zero, such as 0.8; {threshold} is not")


def _check_group(terms: Terms, own: GroupLimit) -> None:
    if not terms.group_by:
        raise BudgetRefused("a limit of a group needs a budget by groups")
    if terms.unit in MONEY_UNITS and terms.currency is None:
        raise BudgetRefused("a limit in money needs a currency, not a grouping by currency")
    named = {"subject_id" if name == "user_hash" else name for name in own.group}
    if named != set(terms.group_by) or len(named) < len(own.group):
        raise BudgetRefused(
            f"a limit of a group names {', '.join(terms.group_by)}, and {group_text(own.group)!r} does not"
        )
    for name, value in own.group.items():
        if value is not None and not _is_name(value):
            raise BudgetRefused(f"{name} {value!r} is no printable text of 1 to {NAME_LENGTH_MAX} characters")


def group_text(group: Mapping[str, str | None]) -> str:
    """Return a group in words."""
    return ",".join(f"{name}={'' if value is None else value}" for name, value in group.items())


def check_amount(what: str, unit: str, amount: Decimal) -> None:
    """Refuse what cannot be an amount of a unit."""
    if not amount.is_finite():
        raise BudgetRefused(f"the {what} must be a finite number")
    if amount < 0:
        raise BudgetRefused(f"the {what} must not be negative, and {amount_text(amount)} is")
    if unit not in MONEY_UNITS and amount != amount.to_integral_value():
        raise BudgetRefused(f"the {what} of {unit} must be a whole number, and {amount_text(amount)} is none")


def _check_window(terms: Terms) -> None:
    if terms.window not in WINDOWS:
        raise BudgetRefused(f"window {terms.window!r} is unknown; it is one of {', '.join(WINDOWS)}")
    if terms.window == "days" and terms.window_days is None:
        raise BudgetRefused("a window of days needs a length")
    if terms.window != "days" and terms.window_days is not None:
        raise BudgetRefused("only a window of days has a length")
    # Ten years: far beyond any use, and far from where dates end.
    if terms.window_days is not None and not 1 <= terms.window_days <= 3660:
        raise BudgetRefused(f"a window is 1 to 3660 days long, not {terms.window_days}")
    if terms.window in ("days", "anchored_month") and terms.anchor is None:
        raise BudgetRefused(f"a window of kind {terms.window} needs an anchor: the date that one of them begins on")
    if terms.window not in ("days", "anchored_month") and terms.anchor is not None:
        raise BudgetRefused(f"a window of kind {terms.window} has no anchor")


def _check_policies(terms: Terms) -> None:
    choices = (
        ("hardness", terms.hardness, HARDNESS),
        ("policy for an unknown price", terms.unknown_price, POLICIES),
        ("policy for a missing estimate", terms.missing_estimate, MISSING_ESTIMATE),
        ("policy while away", terms.when_away, POLICIES),
    )
    for what, value, allowed in choices:
        if value is not None and value not in allowed:
            raise BudgetRefused(f"{what} {value!r} is unknown; it is one of {', '.join(allowed)}")
    if terms.missing_estimate_amount is not None:
        check_amount("amount held for a missing estimate", terms.unit, terms.missing_estimate_amount)
    if terms.away_amount is not None:
        check_amount("amount while away", terms.unit, terms.away_amount)
    if terms.description is not None and (len(terms.description) > 500 or not terms.description.isprintable()):
        raise BudgetRefused("the description is a printable line of at most 500 characters")


def _check_steps(terms: Terms) -> None:
    before: Step | None = None
    for step in terms.steps or ():
        if step.action not in ACTIONS:
            raise BudgetRefused(f"step {step.action!r} is unknown; it is one of {', '.join(ACTIONS)}")
        if not step.at.is_finite() or not 0 < step.at < 1:
            raise BudgetRefused(f"a step is taken at a share of the limit between 0 and 1, and {step.at} is none")
        if before is not None and step.at <= before.at:
            raise BudgetRefused(f"steps stand in the order of their shares, and {step.at} comes after {before.at}")
        if before is not None and before.action == "refuse":
            raise BudgetRefused("no step comes after the one that refuses")
        if step.action == "degrade":
            if step.route is None and step.output_tokens_max is None:
                raise BudgetRefused("a step that degrades names a route, an output cap, or both")
            if step.route is not None and not _is_name(step.route):
                raise BudgetRefused(f"route {step.route!r} is no printable text of 1 to {NAME_LENGTH_MAX} characters")
            if step.output_tokens_max is not None and step.output_tokens_max < 1:
                raise BudgetRefused(
                    f"an output cap is a number of tokens above zero, and {step.output_tokens_max} is not"
                )
            if step.hold is not None:
                check_amount("amount held for a degraded call", terms.unit, step.hold)
        elif step.route is not None or step.output_tokens_max is not None or step.hold is not None:
            raise BudgetRefused("a step that refuses has neither route, nor output cap, nor an amount to hold")
        before = step


def check_together(row: Mapping[str, Any]) -> None:
    """Hold the terms that go together against each other: some may be those that the budget had."""
    limit, reserve = row["limit_amount"], row["interactive_reserve"]
    is_limited = limit is not None or any(own is not None for own in row["group_limits"].values())
    if reserve and (not is_limited or (limit is not None and reserve > limit)):
        raise BudgetRefused(f"the interactive reserve of {amount_text(reserve)} must lie within the limit")
    for key, own in row["group_limits"].items():
        if reserve and own is not None and reserve > own:
            raise BudgetRefused(f"the interactive reserve of {amount_text(reserve)} must lie within the limit of {key}")
    if row["thresholds"] and not is_limited:
        raise BudgetRefused("thresholds are shares of a limit, and there is no limit")
    if row["steps"] and not is_limited:
        raise BudgetRefused("steps are taken at shares of a limit, and there is no limit")
    if row["hardness"] != "hard" and any(step["action"] == "refuse" for step in row["steps"]):
        raise BudgetRefused(f"a {row['hardness']} budget refuses nothing: it has no step that refuses")
    for policy, needs, amount in (
        ("missing_estimate", "hold", "missing_estimate_amount"),
        ("when_away", "admit", "away_amount"),
    ):
        if (row[policy] == needs) != (row[amount] is not None):
            rule = "needs" if row[policy] == needs else f"is not {needs}, and takes no"
            raise BudgetRefused(f"{policy} {rule} {amount}")


def _shortest(number: Decimal) -> str:
    return f"{number.normalize():f}"
