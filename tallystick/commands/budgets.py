"""Commands about budgets: set, list, end."""

from typing import Annotated

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
    day,
    group,
    now,
    plain,
    print_json,
    say,
    show,
    with_connection,
)

budgets = group("Budgets: how much may be used, of what, in which window.")


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.add_typer(budgets, name="budgets")


@budgets.command("set")
def set_budget(
    unit: Annotated[
        str,
        typer.Option(
            "--unit",
            help="charge, cost, total_tokens, input_tokens, output_tokens, input_tokens_without_cache_reads or requests.",
        ),
    ],
    limit: Annotated[str, typer.Option("--limit", help="An amount; 0 forbids everything, none does not limit.")],
    tenant: Annotated[str | None, typer.Option("--tenant", help="Whose usage; left out, everybody's together.")] = None,
    currency: Annotated[str | None, typer.Option("--currency", help="Of a budget in charge or cost.")] = None,
    window: Annotated[
        str, typer.Option("--window", help="day, days, week, month, anchored_month or lifetime.")
    ] = "month",
    days: Annotated[int | None, typer.Option("--days", help="Length of a window of days.")] = None,
    anchor: Annotated[
        str | None, typer.Option("--anchor", help="A date on which a window begins, for days and anchored_month.")
    ] = None,
    feature: Annotated[str | None, typer.Option("--feature")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Canonical id.")] = None,
    route: Annotated[str | None, typer.Option("--route")] = None,
    lane: Annotated[str | None, typer.Option("--lane", help="interactive or batch.")] = None,
    account: Annotated[str | None, typer.Option("--account", help="Provider account.")] = None,
    key: Annotated[str | None, typer.Option("--key", help="Id of an API key.")] = None,
    user: Annotated[str | None, typer.Option("--user", help="The sender's hash of a user.")] = None,
    tag: Annotated[
        list[str] | None, typer.Option("--tag", help="name=value that usage must carry; may be repeated.")
    ] = None,
    group_by: Annotated[
        list[str] | None,
        typer.Option("--group-by", help="A window for each value, such as tenant_id; may be repeated."),
    ] = None,
    hardness: Annotated[
        str | None, typer.Option("--hardness", help="hard refuses, soft warns, shadow only counts; left out, hard.")
    ] = None,
    threshold: Annotated[
        list[str] | None, typer.Option("--threshold", help="Share of the limit to note, such as 0.8; may be repeated.")
    ] = None,
    interactive_reserve: Annotated[
        str | None, typer.Option("--interactive-reserve", help="What the batch lane may not touch.")
    ] = None,
    unknown_price: Annotated[
        str | None, typer.Option("--unknown-price", help="refuse or admit what has no price; left out, refuse.")
    ] = None,
    missing_estimate: Annotated[
        str | None, typer.Option("--missing-estimate", help="refuse or admit what has no estimate; left out, refuse.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", help="Count from the window of this date on; left out, the window in force."),
    ] = None,
    name: Annotated[str | None, typer.Option("--id", help="Id of a new budget; left out, it gets one.")] = None,
    reason: ReasonOption = None,
    actor: ActorOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Set a budget: a new one, or other terms for the one with this scope, unit and window."""
    from quotas.budgets import Terms
    from quotas.budgets import set_budget as set_it

    terms = Terms(
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
        limit=None if limit == "none" else amount(limit),
        hardness=hardness,
        interactive_reserve=None if interactive_reserve is None else amount(interactive_reserve),
        thresholds=None if threshold is None else [amount(each) for each in threshold],
        unknown_price=unknown_price,
        missing_estimate=missing_estimate,
    )
    first = None if since is None else day(since)
    done = with_connection(
        lambda connection: set_it(
            connection, acting(actor), terms, now=now(), since=first, budget_id=name, reason=reason
        )
    )
    if format is Format.json:
        print_json({"budget_id": done.budget_id, "outcome": done.outcome})
        return
    before = "no limit" if done.before is None or done.before.limit_amount is None else cell(done.before.limit_amount)
    after = "no limit" if terms.limit is None else cell(terms.limit)
    limits = {"created": after, "changed": f"{before} -> {after}", "unchanged": after}
    say(f"{done.outcome} budget {done.budget_id}: {limits[done.outcome]}")


def _tags(given: list[str]) -> dict[str, str]:
    tags = {}
    for each in given:
        name, separator, value = each.partition("=")
        if not separator or not name:
            raise CommandError(f"--tag {each!r} is not name=value")
        tags[name] = value
    return tags


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
