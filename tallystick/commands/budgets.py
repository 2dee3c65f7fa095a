"""Commands about budgets: set, change, replace, apply, list, show, history, end, rebuild."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tallystick.commands.common import (
    ActorOption,
    CommandError,
    Format,
    FormatOption,
    NeededReason,
    ReasonOption,
    acting,
    amount,
    cell,
    counted,
    day,
    group,
    instant,
    now,
    plain,
    print_json,
    print_lines,
    say,
    show,
    with_connection,
)

if TYPE_CHECKING:
    from quotas.budgets import BudgetSet
    from quotas.terms import GroupLimit, Step

budgets = group("Budgets: how much may be used, of what, in which window.")


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.add_typer(budgets, name="budgets")


# --- What makes a budget, and its terms: shared by set and replace -----------------------------------------------------

UnitOption = Annotated[
    str,
    typer.Option(
        "--unit",
        help="charge, cost, total_tokens, input_tokens, output_tokens, input_tokens_without_cache_reads or requests.",
    ),
]
LimitOption = Annotated[str, typer.Option("--limit", help="An amount; 0 forbids everything, none does not limit.")]
TenantOption = Annotated[str | None, typer.Option("--tenant", help="Whose usage; left out, everybody's together.")]
CurrencyOption = Annotated[str | None, typer.Option("--currency", help="Of a budget in charge or cost.")]
WindowOption = Annotated[str, typer.Option("--window", help="day, days, week, month, anchored_month or lifetime.")]
DaysOption = Annotated[int | None, typer.Option("--days", help="Length of a window of days.")]
AnchorOption = Annotated[
    str | None, typer.Option("--anchor", help="A date on which a window begins, for days and anchored_month.")
]
FeatureOption = Annotated[str | None, typer.Option("--feature")]
ModelOption = Annotated[str | None, typer.Option("--model", help="Canonical id.")]
RouteOption = Annotated[str | None, typer.Option("--route")]
LaneOption = Annotated[str | None, typer.Option("--lane", help="interactive or batch.")]
AccountOption = Annotated[
    str | None, typer.Option("--account", help="Provider account; without a tenant, of them all.")
]
KeyOption = Annotated[str | None, typer.Option("--key", help="Id of an API key.")]
UserOption = Annotated[str | None, typer.Option("--user", help="The sender's hash of a user.")]
TagOption = Annotated[
    list[str] | None, typer.Option("--tag", help="name=value that usage must carry; may be repeated.")
]
GroupByOption = Annotated[
    list[str] | None,
    typer.Option(
        "--group-by",
        help="A window for each value of tenant_id, subject_id (a user), feature, model, route, lane, api_key_id,"
        " provider_account or currency; may be repeated.",
    ),
]
GroupLimitOption = Annotated[
    list[str] | None,
    typer.Option(
        "--group-limit",
        help="A limit of one group instead, such as feature=chat:5.00, user_hash=u-77:none; may be repeated.",
    ),
]
HardnessOption = Annotated[
    str | None, typer.Option("--hardness", help="hard refuses, soft warns, shadow only counts; left out, hard.")
]
ThresholdOption = Annotated[
    list[str] | None, typer.Option("--threshold", help="Share of the limit to note, such as 0.8; may be repeated.")
]
StepOption = Annotated[
    list[str] | None,
    typer.Option(
        "--step",
        help="On the way to the limit, such as 0.8:degrade:route=small,output_tokens_max=512,hold=0.05 or 0.95:refuse;"
        " may be repeated.",
    ),
]
ReserveOption = Annotated[str | None, typer.Option("--interactive-reserve", help="What the batch lane may not touch.")]
UnknownPriceOption = Annotated[
    str | None, typer.Option("--unknown-price", help="refuse or admit what has no price; left out, refuse.")
]
MissingEstimateOption = Annotated[
    str | None,
    typer.Option(
        "--missing-estimate", help="refuse or admit what has no estimate, or hold=AMOUNT for it; left out, refuse."
    ),
]
WhenAwayOption = Annotated[
    str | None,
    typer.Option(
        "--when-away",
        help="What a gateway does while nobody answers it: refuse, or admit=AMOUNT by itself; left out, refuse.",
    ),
]
DescriptionOption = Annotated[str | None, typer.Option("--description", help="A line for people.")]
SinceOption = Annotated[
    str | None, typer.Option("--since", help="Count from the window of this date on; left out, the window in force.")
]
IdOption = Annotated[str | None, typer.Option("--id", help="Id of a new budget; left out, it gets one.")]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Say what would be done, and how many windows would be above; keep nothing.")
]


@budgets.command("set")
def set_budget(
    unit: UnitOption,
    limit: LimitOption,
    tenant: TenantOption = None,
    currency: CurrencyOption = None,
    window: WindowOption = "month",
    days: DaysOption = None,
    anchor: AnchorOption = None,
    feature: FeatureOption = None,
    model: ModelOption = None,
    route: RouteOption = None,
    lane: LaneOption = None,
    account: AccountOption = None,
    key: KeyOption = None,
    user: UserOption = None,
    tag: TagOption = None,
    group_by: GroupByOption = None,
    group_limit: GroupLimitOption = None,
    hardness: HardnessOption = None,
    threshold: ThresholdOption = None,
    step: StepOption = None,
    interactive_reserve: ReserveOption = None,
    unknown_price: UnknownPriceOption = None,
    missing_estimate: MissingEstimateOption = None,
    when_away: WhenAwayOption = None,
    description: DescriptionOption = None,
    since: SinceOption = None,
    name: IdOption = None,
    dry_run: DryRunOption = False,
    reason: ReasonOption = None,
    actor: ActorOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Set a budget: a new one, or other terms for the one with this scope, unit and window."""
    from quotas import budgets as rules

    terms = _terms(**locals())
    first = None if since is None else day(since)
    done = with_connection(
        lambda connection: rules.set_budget(
            connection, acting(actor), terms, now=now(), since=first, budget_id=name, reason=reason, dry_run=dry_run
        )
    )
    _tell(done, format, dry_run)


@budgets.command("replace")
def replace_budget(
    old: Annotated[str, typer.Argument(metavar="OLD", help="The budget that ends.")],
    unit: UnitOption,
    limit: LimitOption,
    reason: NeededReason,
    tenant: TenantOption = None,
    currency: CurrencyOption = None,
    window: WindowOption = "month",
    days: DaysOption = None,
    anchor: AnchorOption = None,
    feature: FeatureOption = None,
    model: ModelOption = None,
    route: RouteOption = None,
    lane: LaneOption = None,
    account: AccountOption = None,
    key: KeyOption = None,
    user: UserOption = None,
    tag: TagOption = None,
    group_by: GroupByOption = None,
    group_limit: GroupLimitOption = None,
    hardness: HardnessOption = None,
    threshold: ThresholdOption = None,
    step: StepOption = None,
    interactive_reserve: ReserveOption = None,
    unknown_price: UnknownPriceOption = None,
    missing_estimate: MissingEstimateOption = None,
    when_away: WhenAwayOption = None,
    description: DescriptionOption = None,
    since: SinceOption = None,
    name: IdOption = None,
    dry_run: DryRunOption = False,
    actor: ActorOption = None,
    format: FormatOption = Format.table,
) -> None:
    """End a budget and make another in one commit: how scope, unit and window change."""
    from quotas import budgets as rules

    terms = _terms(**locals())
    first = None if since is None else day(since)
    done = with_connection(
        lambda connection: rules.replace_budget(
            connection,
            acting(actor),
            old,
            terms,
            now=now(),
            since=first,
            budget_id=name,
            reason=reason,
            dry_run=dry_run,
        )
    )
    _tell(done, format, dry_run)


@budgets.command("change")
def change_budget(
    budget: Annotated[str, typer.Argument(metavar="BUDGET", help="The budget's id.")],
    limit: Annotated[str | None, typer.Option("--limit", help="An amount, or none.")] = None,
    group_limit: GroupLimitOption = None,
    hardness: HardnessOption = None,
    threshold: ThresholdOption = None,
    step: StepOption = None,
    interactive_reserve: ReserveOption = None,
    unknown_price: UnknownPriceOption = None,
    missing_estimate: MissingEstimateOption = None,
    when_away: WhenAwayOption = None,
    description: DescriptionOption = None,
    dry_run: DryRunOption = False,
    reason: ReasonOption = None,
    actor: ActorOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Change terms of a budget by its id: what is left out stays."""
    from quotas import budgets as rules

    given = _changeable(**locals())
    changes = rules.Changes(
        terms={name: value for name, value in given.items() if value is not None or name == "limit"}
    )
    if limit is None:
        changes = rules.Changes(terms={name: value for name, value in changes.terms.items() if name != "limit"})
    if not changes.terms:
        raise CommandError("nothing to change: say which terms")
    done = with_connection(
        lambda connection: rules.change_budget(
            connection, acting(actor), budget, changes, reason=reason, dry_run=dry_run
        )
    )
    _tell(done, format, dry_run)


@budgets.command("apply")
def apply_budgets(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="YAML; quotas/README.md says how it looks.")],
    dry_run: DryRunOption = False,
    reason: ReasonOption = None,
    actor: ActorOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Bring budgets to what a file says, all or none; applying it again changes nothing."""
    from quotas.budget_files import load_budgets
    from quotas.budgets import apply_budgets as apply

    wishes, ended = load_budgets(file)
    done = with_connection(
        lambda connection: apply(connection, acting(actor), wishes, ended, now=now(), reason=reason, dry_run=dry_run)
    )
    if format is Format.json:
        print_json([_plain(each, dry_run) for each in done])
        return
    signs = {"created": "+", "replaced": "+", "changed": "~", "ended": "-", "unchanged": "="}
    for each in done:
        say(f"{signs[each.outcome]} {each.budget_id}{_difference(each)}")
    moved = sum(each.outcome != "unchanged" for each in done)
    say(f"{'would change' if dry_run else 'changed'} {counted(moved, 'budget')} of {len(done)}")


def _terms(
    *,
    unit: str,
    tenant: str | None,
    currency: str | None,
    window: str,
    days: int | None,
    anchor: str | None,
    feature: str | None,
    model: str | None,
    route: str | None,
    lane: str | None,
    account: str | None,
    key: str | None,
    user: str | None,
    tag: list[str] | None,
    group_by: list[str] | None,
    **given: Any,
) -> Any:
    from quotas.terms import Terms

    return Terms(
        tenant_id=tenant,
        provider_account=account,
        feature=feature,
        model=model,
        route=route,
        lane=lane,
        api_key_id=key,
        user_hash=user,
        tags=_tags(tag or []),
        group_by=tuple(group_by or ()),
        unit=unit,
        currency=currency,
        window=window,
        window_days=days,
        anchor=None if anchor is None else day(anchor),
        **_changeable(**given),
    )


def _changeable(
    *,
    limit: str | None,
    group_limit: list[str] | None,
    hardness: str | None,
    threshold: list[str] | None,
    step: list[str] | None,
    interactive_reserve: str | None,
    unknown_price: str | None,
    missing_estimate: str | None,
    when_away: str | None,
    description: str | None,
    **_: Any,
) -> dict[str, Any]:
    """Return the terms that can change, by the names that they have in quotas; None is what nobody said."""
    estimate, held = _with_amount("--missing-estimate", missing_estimate, "hold")
    away, alone = _with_amount("--when-away", when_away, "admit")
    return {
        "limit": None if limit in (None, "none") else amount(limit or ""),
        "group_limits": None if group_limit is None else [_group_limit(each) for each in group_limit],
        "hardness": hardness,
        "interactive_reserve": None if interactive_reserve is None else amount(interactive_reserve),
        "thresholds": None if threshold is None else [amount(each) for each in threshold],
        "steps": None if step is None else [_step(each) for each in step],
        "unknown_price": unknown_price,
        "missing_estimate": estimate,
        "missing_estimate_amount": held,
        "when_away": away,
        "away_amount": alone,
        "description": description,
    }


def _with_amount(option: str, text: str | None, policy: str) -> tuple[str | None, Any]:
    if text is None:
        return None, None
    name, separator, value = text.partition("=")
    if not separator:
        return name, None
    if name != policy:
        raise CommandError(f"{option} {text!r}: only {policy} takes an amount, as {policy}=AMOUNT")
    return name, amount(value)


def _tags(given: list[str]) -> dict[str, str]:
    tags = {}
    for each in given:
        name, separator, value = each.partition("=")
        if not separator or not name:
            raise CommandError(f"--tag {each!r} is not name=value")
        tags[name] = value
    return tags


def _group_limit(text: str) -> GroupLimit:
    from quotas.terms import GroupLimit

    pairs, separator, limit = text.rpartition(":")
    group = [each.partition("=") for each in pairs.split(",")]
    if not separator or not all(equals and name for name, equals, _ in group):
        raise CommandError(f"--group-limit {text!r} is not name=value:limit")
    return GroupLimit(
        group={name: value or None for name, _, value in group}, limit=None if limit == "none" else amount(limit)
    )


def _step(text: str) -> Step:
    from quotas.terms import Step

    at, separator, rest = text.partition(":")
    action, _, listed = rest.partition(":")
    values = dict(each.partition("=")[::2] for each in listed.split(",")) if listed else {}
    if not separator or not values.keys() <= {"route", "output_tokens_max", "hold"}:
        raise CommandError(f"--step {text!r} is not SHARE:degrade:route=R,output_tokens_max=N,hold=A or SHARE:refuse")
    cap = values.get("output_tokens_max")
    if cap is not None and not (cap.isascii() and cap.isdecimal() and len(cap) < 10):
        raise CommandError(f"--step {text!r}: output_tokens_max is a whole number")
    return Step(
        at=amount(at),
        action=action,
        route=values.get("route"),
        output_tokens_max=None if cap is None else int(cap),
        hold=amount(values["hold"]) if "hold" in values else None,
    )


def _plain(done: BudgetSet, dry_run: bool) -> dict[str, Any]:
    return {
        "budget_id": done.budget_id,
        "outcome": done.outcome,
        "dry_run": dry_run,
        "changed": {name: {"before": before, "after": after} for name, (before, after) in done.changed.items()},
        "windows_above": done.windows_above,
    }


def _difference(done: BudgetSet) -> str:
    parts = [
        f"{name.removesuffix('_amount')} {'none' if before is None else cell(before)} -> {'none' if after is None else cell(after)}"
        for name, (before, after) in done.changed.items()
    ]
    if done.windows_above:
        parts.append(f"{counted(done.windows_above, 'window')} above the limit")
    return f": {'; '.join(parts)}" if parts else ""


def _tell(done: BudgetSet, format: Format, dry_run: bool) -> None:
    if format is Format.json:
        print_json(_plain(done, dry_run))
        return
    say(f"{'would have ' if dry_run else ''}{done.outcome} budget {done.budget_id}{_difference(done)}")


@budgets.command("list")
def list_budgets(
    tenant: Annotated[str | None, typer.Option("--tenant", help="What holds for this tenant only.")] = None,
    ended: Annotated[bool, typer.Option("--ended", help="Also those that have ended.")] = False,
    format: FormatOption = Format.table,
) -> None:
    """List budgets, what they cover, and what is used of the window in force."""
    from ledger import registry
    from ledger.database import Connection
    from quotas import budgets as rules

    async def read(connection: Connection) -> tuple[list[rules.BudgetRecord], dict[str, rules.Usage]]:
        if tenant is not None:
            await registry.find_tenant(connection, tenant, now=now())
        found = await rules.list_budgets(connection, tenant_id=tenant, with_ended=ended)
        return found, await rules.used_now(connection, now=now())

    found, used = with_connection(read)
    if format is Format.json:
        print_json([{**plain(each), "used": plain(used.get(each.budget_id))} for each in found])
        return

    def amounts(each: rules.BudgetRecord, name: str) -> object:
        usage = used.get(each.budget_id)
        return None if usage is None else getattr(usage, name)

    columns = {
        "budget": lambda each: each.budget_id,
        "scope": rules.scope_text,
        "unit": lambda each: f"{each.unit} {each.currency}" if each.currency else each.unit,
        "window": rules.window_text,
        "since": lambda each: (
            None if each.window_kind == "lifetime" or each.first_window.year == 1 else each.first_window
        ),
        "limit": lambda each: each.limit_amount,
        "hardness": lambda each: each.hardness if each.limit_amount is not None else None,
        "posted": lambda each: amounts(each, "posted"),
        "held": lambda each: amounts(each, "held"),
        "ended at": None,
    }
    if not ended:
        del columns["ended at"]
    show(found, format, columns, empty="no budgets")


@budgets.command("show")
def show_budget(
    budget: Annotated[str, typer.Argument(metavar="BUDGET", help="The budget's id.")],
    format: FormatOption = Format.table,
) -> None:
    """Show a budget: what makes it, its terms, and what is used of the window in force."""
    from ledger.database import Connection
    from ledger.errors import Unknown
    from quotas import budgets as rules

    async def read(connection: Connection) -> tuple[rules.BudgetRecord, rules.Usage | None]:
        found = await rules.find_budget(connection, budget)
        if found is None:
            raise Unknown("budget", budget)
        return found, (await rules.used_now(connection, now=now())).get(budget)

    found, used = with_connection(read)
    if format is Format.json:
        print_json({**plain(found), "used": plain(used)})
        return
    print_lines(
        [
            ("budget", found.budget_id),
            ("description", found.description or ""),
            ("scope", rules.scope_text(found)),
            ("unit", f"{found.unit} {found.currency or ''}"),
            ("window", rules.window_text(found)),
            ("limit", "none" if found.limit_amount is None else cell(found.limit_amount)),
            *((f"limit of {key}", "none" if own is None else own) for key, own in found.group_limits.items()),
            ("hardness", found.hardness),
            ("thresholds", cell(list(found.thresholds))),
            *(("step", cell(step)) for step in found.steps),
            ("interactive reserve", cell(found.interactive_reserve)),
            ("unknown price", found.unknown_price),
            ("missing estimate", f"{found.missing_estimate} {cell(found.missing_estimate_amount)}"),
            ("when away", f"{found.when_away} {cell(found.away_amount)}"),
            ("created at", cell(found.created_at)),
            ("ended at", cell(found.ended_at)),
            *(
                [
                    ("window begins", cell(used.window_start)),
                    ("posted", cell(used.posted)),
                    ("held", cell(used.held)),
                    ("unpriced requests", cell(used.unpriced_count)),
                ]
                if used is not None
                else []
            ),
        ]
    )


@budgets.command("history")
def show_history(
    budget: Annotated[str, typer.Argument(metavar="BUDGET", help="The budget's id.")],
    at: Annotated[
        str | None, typer.Option("--at", help="Only the terms at this instant: RFC 3339, or a date in UTC.")
    ] = None,
    format: FormatOption = Format.table,
) -> None:
    """Show what the terms of a budget were, who changed them and why."""
    from ledger.database import Connection
    from quotas import budgets as rules

    async def read(connection: Connection) -> list[rules.Version]:
        if at is None:
            return await rules.history(connection, budget)
        found = await rules.terms_at(connection, budget, instant(at, "UTC"))
        if found is None:
            raise CommandError(f"budget {budget} had no terms yet at {at}")
        return [found]

    found = with_connection(read)
    columns = {
        "version": None,
        "from": lambda each: each.at,
        "by": lambda each: each.actor,
        "reason": None,
        "limit": lambda each: "none" if each.terms["limit_amount"] is None else each.terms["limit_amount"],
        "hardness": lambda each: each.terms["hardness"],
        "other terms": lambda each: {
            name: value
            for name, value in each.terms.items()
            if value not in (None, [], {}, "0", "refuse") and name not in ("limit_amount", "hardness")
        },
    }
    show(found, format, columns)


@budgets.command("end")
def end_budget(
    budget: Annotated[str, typer.Argument(metavar="BUDGET", help="The budget's id.")],
    reason: NeededReason,
    actor: ActorOption = None,
) -> None:
    """End a budget: from now on it neither limits nor counts."""
    from quotas import budgets as rules

    with_connection(lambda connection: rules.end_budget(connection, acting(actor), budget, reason=reason))
    say(f"budget {budget} has ended")


@budgets.command("rebuild")
def rebuild_windows(
    budget: Annotated[str | None, typer.Argument(metavar="[BUDGET]", help="Left out, all in force.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say which windows are wrong; write nothing.")] = False,
    reason: ReasonOption = None,
    actor: ActorOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Make windows what ledger and reservations say, where `verify` found others; needs --reason unless it is a dry run."""
    from quotas import rebuilding

    if reason is None and not dry_run:
        raise CommandError("--reason is needed: say why windows are written by hand; --dry-run writes nothing")
    rebuilt = with_connection(
        lambda connection: rebuilding.rebuild_windows(connection, acting(actor), budget, reason=reason, dry_run=dry_run)
    )
    columns = {
        "budget": lambda each: each.budget_id,
        "group": lambda each: each.group_key or None,
        "tenant": lambda each: each.tenant_id,
        "window": lambda each: each.window_start,
        "posted": lambda each: _corrected(each.posted_before, each.posted),
        "held": lambda each: _corrected(each.held_before, each.held),
        "unpriced": lambda each: _corrected(each.unpriced_count_before, each.unpriced_count),
        "unpriced tokens": lambda each: _corrected(each.unpriced_tokens_before, each.unpriced_tokens),
        "wrong reservations": lambda each: each.reservation_count,
    }
    show(rebuilt, format, columns, empty="every window is what ledger and reservations say")
    if rebuilt and format is not Format.json:
        say(f"{'would rebuild' if dry_run else 'rebuilt'} {counted(len(rebuilt), 'window')}")


def _corrected(before: Any, after: Any) -> str:
    return cell(after) if before == after else f"{cell(before)} -> {cell(after)}"
