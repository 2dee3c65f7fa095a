"""Commands about who takes part: tenants, entities, sources, provider accounts and models."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final
from zoneinfo import ZoneInfo

import typer

from tallystick.commands.common import (
    BIGINT_MAX,
    INTEGER_MAX,
    ActorOption,
    CommandError,
    Format,
    FormatOption,
    NeededReason,
    ReasonOption,
    TenantArgument,
    acting,
    cell,
    group,
    instant,
    month,
    now,
    plain,
    print_json,
    print_table,
    say,
    settings,
    show,
    show_one,
    with_connection,
)

if TYPE_CHECKING:
    from ledger.acts import ActRecord
    from ledger.database import Connection
    from ledger.registry import SourceRecord

_TENANTS_SHOWN_MAX: Final = 2

tenants = group("Tenants: who pays.")
entities = group("Entities: who issues invoices.")
sources = group("Sources: who may report usage, and for whom.")
accounts = group("Provider accounts: what providers bill.")
models = group("Models: canonical ids, exact aliases and limits.")


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    for name, commands in (
        ("tenants", tenants),
        ("entities", entities),
        ("sources", sources),
        ("accounts", accounts),
        ("models", models),
    ):
        app.add_typer(commands, name=name)


# --- Tenants ----------------------------------------------------------------------------------------------------------


@tenants.command("add")
def add_tenant(
    tenant: TenantArgument,
    entity: Annotated[str, typer.Option("--entity", help="The entity that invoices it.")],
    zone: Annotated[str, typer.Option("--zone", help="Time zone of its days and months, such as Europe/Berlin.")],
    currency: Annotated[str, typer.Option("--currency", help="What it is charged in, such as USD.")],
    since: Annotated[
        str | None, typer.Option("--since", help="Start: a date in its zone or an RFC 3339 time; left out, now.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="A name to show; the id alone means something.")] = None,
    actor: ActorOption = None,
) -> None:
    """Add a tenant with its periods, from the month of its start on."""
    from ledger import registry

    options = settings()
    starts_at = None if since is None else instant(since, zone)
    with_connection(
        lambda connection: registry.add_tenant(
            connection,
            acting(actor),
            tenant,
            entity_id=entity,
            time_zone=zone,
            charge_currency=currency,
            now=now(),
            starts_at=starts_at,
            name=name,
            months_ahead=options.months_ahead,
            grace_days=options.grace_days,
        )
    )
    say(f"added tenant {tenant}")


@tenants.command("list")
def list_tenants(format: FormatOption = Format.table) -> None:
    """List tenants as of now."""
    from ledger import registry

    found = with_connection(lambda connection: registry.list_tenants(connection, now=now()))
    # What fits beside each other; `show` has the rest, and times with their hours.
    columns = {
        "tenant": lambda each: each.tenant_id,
        "status": None,
        "entity": lambda each: each.entity_id,
        "zone": lambda each: each.time_zone,
        "currency": lambda each: each.charge_currency,
        "since": lambda each: _day(each.starts_at, each.time_zone),
        "until": lambda each: _day(each.ends_at, each.time_zone),
        "merged into": lambda each: None if each.unmerged_at else each.merged_into,
    }
    show(found, format, columns, empty="no tenants")


def _day(at: datetime | None, zone: str) -> str | None:
    """Return the day of an instant in the tenant's own zone, as `--since` takes it."""
    return None if at is None else f"{at.astimezone(ZoneInfo(zone)):%Y-%m-%d}"


def _show_history(history: "Sequence[ActRecord]") -> None:
    """Print what was done to a party, by whom and why."""
    if not history:
        return
    say("")
    print_table(
        ["at", "who", "act", "with", "why"],
        [
            [cell(each.at), cell(each.actor), each.act.partition(".")[2], cell(each.detail), cell(each.reason)]
            for each in history
        ],
    )


def _show_with_history(
    read: "Callable[[Connection], Awaitable[tuple[Any, Sequence[ActRecord]]]]", format: Format
) -> None:
    """Show a party and its history."""
    found, history = with_connection(read)
    if format is Format.json:
        print_json({**plain(found), "history": plain(history)})
        return
    show_one(found, format)
    _show_history(history)


@tenants.command("show")
def show_tenant(tenant: TenantArgument, format: FormatOption = Format.table) -> None:
    """Show a tenant as of now, all its versions, and who changed it and why."""
    from ledger import registry
    from ledger.acts import acts_about

    async def read(
        connection: "Connection",
    ) -> "tuple[registry.TenantRecord, list[registry.TenantVersionRecord], Sequence[ActRecord]]":
        found = await registry.find_tenant(connection, tenant, now=now())
        versions = await registry.tenant_versions(connection, tenant)
        return found, versions, await acts_about(connection, "tenants", tenant)

    found, versions, history = with_connection(read)
    if format is Format.json:
        show_one(found, format, {"versions": plain(versions), "history": plain(history)})
        return
    show_one(found, format)
    say("")
    fields = ("effective_at", "status", "entity_id", "time_zone", "charge_currency", "name")
    print_table(
        [field.replace("_", " ") for field in fields],
        [[cell(getattr(version, field)) for field in fields] for version in versions],
    )
    _show_history(history)


@tenants.command("change")
def change_tenant(
    tenant: TenantArgument,
    starting: Annotated[
        str, typer.Option("--from", metavar="MONTH", help="The month it starts with, such as 2027-01.")
    ],
    entity: Annotated[str | None, typer.Option("--entity", help="Another entity that invoices it.")] = None,
    zone: Annotated[str | None, typer.Option("--zone", help="Another time zone.")] = None,
    currency: Annotated[str | None, typer.Option("--currency", help="Another currency.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="Another name to show.")] = None,
    reason: ReasonOption = None,
    actor: ActorOption = None,
) -> None:
    """Change a tenant from the start of a month on; months with usage in the ledger do not change."""
    from ledger import registry

    first = month(starting)
    at = with_connection(
        lambda connection: registry.change_tenant(
            connection,
            acting(actor),
            tenant,
            first,
            entity_id=entity,
            time_zone=zone,
            charge_currency=currency,
            name=name,
            reason=reason,
        )
    )
    say(f"tenant {tenant} changes at {cell(at)}")


@tenants.command("suspend")
def suspend_tenant(tenant: TenantArgument, reason: NeededReason, actor: ActorOption = None) -> None:
    """Suspend a tenant from now on: its usage is still recorded."""
    from ledger import registry

    with_connection(
        lambda connection: registry.suspend_tenant(connection, acting(actor), tenant, now=now(), reason=reason)
    )
    say(f"tenant {tenant} is suspended")


@tenants.command("resume")
def resume_tenant(tenant: TenantArgument, reason: ReasonOption = None, actor: ActorOption = None) -> None:
    """End a tenant's suspension."""
    from ledger import registry

    with_connection(
        lambda connection: registry.resume_tenant(connection, acting(actor), tenant, now=now(), reason=reason)
    )
    say(f"tenant {tenant} is active")


@tenants.command("leave")
def leave_tenant(
    tenant: TenantArgument,
    reason: NeededReason,
    at: Annotated[
        str | None, typer.Option("--at", help="When: a date in its zone or an RFC 3339 time; left out, now.")
    ] = None,
    actor: ActorOption = None,
) -> None:
    """Let a tenant leave; its late usage is still taken."""
    from ledger import registry

    async def leave(connection: "Connection") -> None:
        zone = (await registry.find_tenant(connection, tenant, now=now())).time_zone
        leaves_at = None if at is None else instant(at, zone)
        await registry.leave_tenant(connection, acting(actor), tenant, now=now(), at=leaves_at, reason=reason)

    with_connection(leave)
    say(f"tenant {tenant} leaves")


@tenants.command("merge")
def merge_tenants(
    tenant: TenantArgument,
    into: Annotated[str, typer.Argument(metavar="INTO", help="Whom its usage belongs to from then on.")],
    reason: NeededReason,
    at: Annotated[
        str | None, typer.Option("--at", help="From when: a date in its zone or an RFC 3339 time; left out, now.")
    ] = None,
    actor: ActorOption = None,
) -> None:
    """Let usage sent as one tenant belong to another from an instant on; the past stays."""
    from ledger import registry

    async def merge(connection: "Connection") -> None:
        zone = (await registry.find_tenant(connection, tenant, now=now())).time_zone
        merged_at = now() if at is None else instant(at, zone)
        await registry.merge_tenants(connection, acting(actor), tenant, into, at=merged_at, reason=reason)

    with_connection(merge)
    say(f"usage sent as {tenant} belongs to {into}")


@tenants.command("unmerge")
def unmerge_tenant(
    tenant: TenantArgument,
    reason: NeededReason,
    at: Annotated[
        str | None, typer.Option("--at", help="From when: a date in its zone or an RFC 3339 time; left out, now.")
    ] = None,
    actor: ActorOption = None,
) -> None:
    """Let usage sent as a merged tenant be its own again from an instant on; what was booked stays."""
    from ledger import registry

    async def unmerge(connection: "Connection") -> None:
        zone = (await registry.find_tenant(connection, tenant, now=now())).time_zone
        unmerged_at = now() if at is None else instant(at, zone)
        await registry.unmerge_tenant(connection, acting(actor), tenant, at=unmerged_at, reason=reason)

    with_connection(unmerge)
    say(f"usage sent as {tenant} is its own again")


# --- Entities ---------------------------------------------------------------------------------------------------------


@entities.command("add")
def add_entity(
    entity: Annotated[str, typer.Argument(metavar="ENTITY", help="The entity's id.")],
    name: Annotated[str, typer.Option("--name", help="Its name, as on invoices.")],
    actor: ActorOption = None,
) -> None:
    """Add a legal entity that issues invoices."""
    from ledger import registry

    with_connection(lambda connection: registry.add_entity(connection, acting(actor), entity, name))
    say(f"added entity {entity}")


@entities.command("list")
def list_entities(format: FormatOption = Format.table) -> None:
    """List entities."""
    from ledger import registry

    found = with_connection(registry.list_entities)
    show(found, format, {"entity": lambda each: each.entity_id, "name": None, "created at": None}, empty="no entities")


@entities.command("show")
def show_entity(entity: Annotated[str, typer.Argument(metavar="ENTITY")], format: FormatOption = Format.table) -> None:
    """Show an entity, and who changed it and why."""
    from ledger import registry
    from ledger.acts import acts_about

    async def read(connection: "Connection") -> "tuple[registry.EntityRecord, Sequence[ActRecord]]":
        found = await registry.find_entity(connection, entity)
        return found, await acts_about(connection, "entities", entity)

    _show_with_history(read, format)


@entities.command("rename")
def rename_entity(
    entity: Annotated[str, typer.Argument(metavar="ENTITY")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="As it stands on invoices from now on.")],
    reason: ReasonOption = None,
    actor: ActorOption = None,
) -> None:
    """Change the name that an entity's invoices have from now on."""
    from ledger import registry

    with_connection(lambda connection: registry.rename_entity(connection, acting(actor), entity, name, reason))
    say(f"entity {entity} is named {name}")


# --- Sources ----------------------------------------------------------------------------------------------------------


@sources.command("add")
def add_source(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="Exactly what its events say, such as gateway://eu-1.")
    ],
    kind: Annotated[str, typer.Option("--kind", help="gateway, node, load or commands.")],
    rank: Annotated[
        int,
        typer.Option(
            "--rank", min=-INTEGER_MAX, max=INTEGER_MAX, help="Of two reports of a request the higher rank counts."
        ),
    ],
    tenant: Annotated[
        list[str] | None, typer.Option("--tenant", help="A tenant that it may speak for; may be repeated.")
    ] = None,
    all_tenants: Annotated[bool, typer.Option("--all-tenants", help="It may speak for every tenant.")] = False,
    actor: ActorOption = None,
) -> None:
    """Register a sender of usage events."""
    from ledger import registry

    with_connection(
        lambda connection: registry.add_source(
            connection,
            acting(actor),
            source,
            kind=kind,
            rank=rank,
            speaks_for_all=all_tenants,
            tenant_ids=tenant or (),
        )
    )
    say(f"added source {source}")


@sources.command("allow")
def allow_tenants(
    source: Annotated[str, typer.Argument(metavar="SOURCE")],
    tenant: Annotated[list[str], typer.Argument(metavar="TENANT...", help="Whom it may speak for too.")],
    actor: ActorOption = None,
) -> None:
    """Let a source speak for more tenants."""
    from ledger import registry

    count = with_connection(lambda connection: registry.allow_tenants(connection, acting(actor), source, tenant))
    say(f"source {source} speaks for {count} more")


@sources.command("list")
def list_sources(
    ended: Annotated[bool, typer.Option("--ended", help="Also those that have ended.")] = False,
    format: FormatOption = Format.table,
) -> None:
    """List the senders of usage events."""
    from ledger import registry

    found = with_connection(lambda connection: registry.list_sources(connection, with_ended=ended))
    columns = {
        "source": None,
        "kind": None,
        "rank": None,
        "speaks for": _speaks_for,
        "ended at": None,
    }
    show(found, format, columns, empty="no sources")


def _speaks_for(source: "SourceRecord") -> str:
    """Return for whom, in the width of a column: `show` has all of them."""
    if source.speaks_for_all:
        return "every tenant"
    names = cell(list(source.tenant_ids[:_TENANTS_SHOWN_MAX]))
    more = len(source.tenant_ids) - _TENANTS_SHOWN_MAX
    return f"{names} and {more} more" if more > 0 else names


@sources.command("show")
def show_source(source: Annotated[str, typer.Argument(metavar="SOURCE")], format: FormatOption = Format.table) -> None:
    """Show a source, for whom it speaks, and who changed it and why."""
    from ledger import registry
    from ledger.acts import acts_about

    async def read(connection: "Connection") -> "tuple[registry.SourceRecord, Sequence[ActRecord]]":
        found = await registry.find_source(connection, source)
        return found, await acts_about(connection, "sources", source)

    _show_with_history(read, format)


@sources.command("rank")
def rank_source(
    source: Annotated[str, typer.Argument(metavar="SOURCE")],
    rank: Annotated[
        int,
        typer.Argument(
            metavar="RANK",
            min=-INTEGER_MAX,
            max=INTEGER_MAX,
            help="Of two reports of a request the higher rank counts.",
        ),
    ],
    reason: NeededReason,
    actor: ActorOption = None,
) -> None:
    """Change a source's rank for what it says from now on; what is decided stays."""
    from ledger import registry

    before = with_connection(
        lambda connection: registry.rank_source(connection, acting(actor), source, rank, reason=reason)
    )
    say(f"source {source}: rank {before} -> {rank}")


@sources.command("disallow")
def disallow_tenants(
    source: Annotated[str, typer.Argument(metavar="SOURCE")],
    tenant: Annotated[list[str], typer.Argument(metavar="TENANT...", help="Whom it may not speak for any more.")],
    reason: NeededReason,
    actor: ActorOption = None,
) -> None:
    """Let a source no longer speak for tenants; what it has said stays."""
    from ledger import registry

    count = with_connection(
        lambda connection: registry.disallow_tenants(connection, acting(actor), source, tenant, reason=reason)
    )
    say(f"source {source} speaks for {count} less")


@sources.command("resume")
def resume_source(
    source: Annotated[str, typer.Argument(metavar="SOURCE")], reason: NeededReason, actor: ActorOption = None
) -> None:
    """Let a source that has ended speak again."""
    from ledger import registry

    with_connection(lambda connection: registry.resume_source(connection, acting(actor), source, reason))
    say(f"source {source} speaks again")


@sources.command("end")
def end_source(
    source: Annotated[str, typer.Argument(metavar="SOURCE")], reason: NeededReason, actor: ActorOption = None
) -> None:
    """End a source: what it sends from now on is set aside as dead letters."""
    from ledger import registry

    with_connection(lambda connection: registry.end_source(connection, acting(actor), source, reason))
    say(f"source {source} has ended")


# --- Provider accounts and models -------------------------------------------------------------------------------------


@accounts.command("add")
def add_account(
    account: Annotated[str, typer.Argument(metavar="ACCOUNT", help="As events name it.")],
    provider: Annotated[str, typer.Option("--provider", help="Who bills it.")],
    currency: Annotated[str, typer.Option("--currency", help="What it is billed in.")],
    tenant: Annotated[
        str | None, typer.Option("--tenant", help="Whose own account it is, and who is billed for it; left out, ours.")
    ] = None,
    actor: ActorOption = None,
) -> None:
    """Add an account that a provider bills."""
    from ledger import registry

    with_connection(
        lambda connection: registry.add_provider_account(connection, acting(actor), account, provider, currency, tenant)
    )
    say(f"added account {account}")


@accounts.command("change")
def change_account(
    account: Annotated[str, typer.Argument(metavar="ACCOUNT")],
    reason: NeededReason,
    provider: Annotated[str | None, typer.Option("--provider", help="Who bills it.")] = None,
    currency: Annotated[str | None, typer.Option("--currency", help="What it is billed in.")] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", help="Whose own account it is.")] = None,
    ours: Annotated[bool, typer.Option("--ours", help="It is ours, and no tenant's.")] = False,
    actor: ActorOption = None,
) -> None:
    """Put right what was said of an account; what is posted keeps its price until it is repriced."""
    from ledger import registry

    with_connection(
        lambda connection: registry.change_provider_account(
            connection,
            acting(actor),
            account,
            provider=provider,
            currency=currency,
            tenant_id=tenant,
            is_ours=ours,
            reason=reason,
        )
    )
    say(f"changed account {account}; `tallystick prices reprice` shows what that changes of the past")


@accounts.command("list")
def list_accounts(format: FormatOption = Format.table) -> None:
    """List provider accounts."""
    from ledger import registry

    found = with_connection(registry.list_provider_accounts)
    columns = {
        "account": lambda each: each.provider_account,
        "provider": None,
        "currency": None,
        "tenant": lambda each: each.tenant_id,
        "created at": None,
    }
    show(found, format, columns, empty="no accounts")


@accounts.command("show")
def show_account(
    account: Annotated[str, typer.Argument(metavar="ACCOUNT")], format: FormatOption = Format.table
) -> None:
    """Show a provider account, and who added it."""
    from ledger import registry
    from ledger.acts import acts_about

    async def read(connection: "Connection") -> "tuple[registry.AccountRecord, Sequence[ActRecord]]":
        found = await registry.find_provider_account(connection, account)
        return found, await acts_about(connection, "accounts", account)

    _show_with_history(read, format)


@models.command("add")
def add_model(
    provider: Annotated[str, typer.Argument(metavar="PROVIDER")],
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The canonical id.")],
    alias: Annotated[list[str] | None, typer.Option("--alias", help="Another exact name; may be repeated.")] = None,
    input_max: Annotated[
        int | None, typer.Option("--input-max", max=BIGINT_MAX, help="Input tokens above this are impossible.")
    ] = None,
    output_max: Annotated[
        int | None, typer.Option("--output-max", max=BIGINT_MAX, help="Output tokens above this are impossible.")
    ] = None,
    no_input_max: Annotated[bool, typer.Option("--no-input-max", help="It has no limit of input any more.")] = False,
    no_output_max: Annotated[bool, typer.Option("--no-output-max", help="It has no limit of output any more.")] = False,
    actor: ActorOption = None,
) -> None:
    """Add a model, or names and limits to one that is there, or take limits away."""
    from ledger import registry

    without: list[registry.Limit] = []
    if no_input_max:
        without.append("input_tokens_max")
    if no_output_max:
        without.append("output_tokens_max")

    with_connection(
        lambda connection: registry.set_model(
            connection,
            acting(actor),
            provider,
            model,
            input_tokens_max=input_max,
            output_tokens_max=output_max,
            aliases=alias or (),
            without=without,
        )
    )
    say(f"model {model} of {provider} is known")


@models.command("list")
def list_models(
    provider: Annotated[str | None, typer.Option("--provider", help="Of this provider only.")] = None,
    format: FormatOption = Format.table,
) -> None:
    """List models with their exact aliases and limits."""
    from ledger import registry

    found = with_connection(lambda connection: registry.list_models(connection, provider))
    if provider is not None and not found:
        raise CommandError(f"there is no model of a provider {provider!r}")
    columns = {
        "provider": None,
        "model": None,
        "input max": lambda each: each.input_tokens_max,
        "output max": lambda each: each.output_tokens_max,
        "aliases": None,
    }
    show(found, format, columns, empty="no models")


@models.command("show")
def show_model(
    provider: Annotated[str, typer.Argument(metavar="PROVIDER")],
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The canonical id.")],
    format: FormatOption = Format.table,
) -> None:
    """Show a model with its names and limits, and who changed it and why."""
    from ledger import registry
    from ledger.acts import acts_about

    async def read(connection: "Connection") -> "tuple[registry.ModelRecord, Sequence[ActRecord]]":
        found = await registry.find_model(connection, provider, model)
        return found, await acts_about(connection, "models", model, {"provider": provider})

    _show_with_history(read, format)


@models.command("drop-alias")
def drop_alias(
    provider: Annotated[str, typer.Argument(metavar="PROVIDER")],
    alias: Annotated[str, typer.Argument(metavar="ALIAS")],
    reason: NeededReason,
    actor: ActorOption = None,
) -> None:
    """Take an exact alias from its model: reports under it are unpriced from now on."""
    from ledger import registry

    model = with_connection(lambda connection: registry.drop_alias(connection, acting(actor), provider, alias, reason))
    say(f"{alias} is no name of model {model} of {provider} any more")
