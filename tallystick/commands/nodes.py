"""Commands about GPU nodes: which report, and what an hour of each costs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from tallystick.commands.common import (
    INTEGER_MAX,
    ActorOption,
    Format,
    FormatOption,
    ReasonOption,
    acting,
    amount,
    day,
    group,
    instant,
    print_json,
    say,
    show,
    with_connection,
)

nodes = group("GPU nodes: which report, and what an hour of each costs.")
rates = group("What an hour of a GPU node costs, from when.")


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    nodes.add_typer(rates, name="rates")
    app.add_typer(nodes, name="nodes")


@nodes.command("list")
def list_nodes(
    days: Annotated[
        int, typer.Option("--days", min=1, max=36_500, help="Nodes that reported in the last so many days.")
    ] = 7,
    format: FormatOption = Format.table,
) -> None:
    """List nodes by their newest window; one without a price an hour has no rate in force: its hours have no cost."""
    from ledger import node_rates

    since = datetime.now(UTC) - timedelta(days=days)
    found = with_connection(lambda connection: node_rates.list_nodes(connection, since=since))
    columns = {
        "node": lambda each: each.node_id,
        "tenant": lambda each: each.tenant_id,
        "source": None,
        "gpu model": None,
        "gpu count": None,
        "mig profile": None,
        "region": None,
        "model": None,
        "windows": lambda each: each.window_count,
        "reported until": None,
        "hourly price": None,
        "currency": None,
    }
    show(found, format, columns, empty=f"no node reported in the last {days} days")


@rates.command("add")
def add_rate(
    gpu_model: Annotated[str, typer.Argument(metavar="GPU_MODEL", help="As windows name it, such as H100.")],
    gpu_count: Annotated[
        int, typer.Argument(metavar="GPU_COUNT", max=INTEGER_MAX, help="GPUs of one node, such as 8.")
    ],
    hourly_price: Annotated[str, typer.Argument(metavar="PRICE", help="Of the whole node for an hour, power in it.")],
    currency: Annotated[str, typer.Argument(metavar="CURRENCY", help="Such as USD.")],
    effective_from: Annotated[
        str, typer.Option("--from", help="In force from this day (UTC) or RFC 3339 time until the next rate.")
    ],
    source: Annotated[str, typer.Option("--source", help="Where the price stands.")],
    checked_on: Annotated[
        str | None, typer.Option("--checked-on", help="When it was held against its source; left out, today.")
    ] = None,
    mig_profile: Annotated[
        str | None, typer.Option("--mig-profile", help="Of nodes that are slices; left out, of whole GPUs.")
    ] = None,
    region: Annotated[str | None, typer.Option("--region", help="In this region only.")] = None,
    node: Annotated[str | None, typer.Option("--node", help="For this node only.")] = None,
    replaces: Annotated[
        str | None, typer.Option("--replaces", help="Hash of the rate of the same instant that this one restates.")
    ] = None,
    reason: ReasonOption = None,
    actor: ActorOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Add a dated rate; a rate never changes. The next rollup prices anew the hours since it counts."""
    from ledger import node_rates

    made = node_rates.NodeRate(
        gpu_model=gpu_model,
        gpu_count=gpu_count,
        hourly_price=amount(hourly_price),
        currency=currency,
        effective_at=instant(effective_from, "UTC"),
        source_address=source,
        checked_on=datetime.now(UTC).date() if checked_on is None else day(checked_on),
        mig_profile=mig_profile,
        region=region,
        node_id=node,
        replaces=replaces,
    )
    added = with_connection(lambda connection: node_rates.save_node_rates(connection, [made], acting(actor), reason))
    if format is Format.json:
        print_json({"content_hash": made.content_hash, "added": added})
        return
    say(f"added {made}, hash {made.content_hash}" if added else f"{made} is there already")


@rates.command("list")
def list_rates(format: FormatOption = Format.table) -> None:
    """List rates by kind of node, in order of time."""
    from ledger import node_rates
    from ledger.times import from_micros

    found = with_connection(node_rates.read_node_rates)
    if format is Format.json:
        print_json(
            [
                {
                    "gpu_model": each.gpu_model,
                    "gpu_count": each.gpu_count,
                    "mig_profile": each.mig_profile,
                    "region": each.region,
                    "node_id": each.node_id,
                    "hourly_price": each.hourly_price,
                    "currency": each.currency,
                    "effective_at": from_micros(each.effective_at),
                    "recorded_at": from_micros(each.recorded_at),
                    "source_address": each.source_address,
                    "checked_on": each.checked_on,
                    "replaces": each.replaces,
                    "content_hash": each.content_hash,
                }
                for each in found
            ]
        )
        return
    columns = {
        "gpu model": None,
        "gpu count": None,
        "mig profile": None,
        "region": None,
        "node": lambda each: each.node_id,
        "hourly price": None,
        "currency": None,
        "in force from": lambda each: from_micros(each.effective_at),
        "source": lambda each: each.source_address,
        "checked on": None,
        "replaces": None,
        "hash": lambda each: each.content_hash,
    }
    show(found, Format.table, columns, empty="no node rates")
