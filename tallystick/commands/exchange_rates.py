"""Commands about exchange rates: add, list."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from tallystick.commands.common import (
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

rates = group("Exchange rates: what turns a price into the currency that a tenant is charged in.")


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.add_typer(rates, name="exchange-rates")


@rates.command("add")
def add_rate(
    from_currency: Annotated[str, typer.Argument(metavar="FROM", help="What is converted, such as USD.")],
    to_currency: Annotated[str, typer.Argument(metavar="TO", help="What it becomes, such as EUR.")],
    rate: Annotated[str, typer.Argument(metavar="RATE", help="What one unit of FROM is in TO, such as 0.9215.")],
    effective_from: Annotated[
        str, typer.Option("--from", help="In force from this day (UTC) or RFC 3339 time until the next rate.")
    ],
    source: Annotated[str, typer.Option("--source", help="Where the rate stands.")],
    checked_on: Annotated[
        str | None, typer.Option("--checked-on", help="When it was held against its source; left out, today.")
    ] = None,
    replaces: Annotated[
        str | None, typer.Option("--replaces", help="Hash of the rate of the same instant that this one restates.")
    ] = None,
    reason: ReasonOption = None,
    actor: ActorOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Add a dated rate; a rate never changes, and nothing is derived from one for another pair or the way back."""
    from ledger import price_store
    from ledger.exchange import ExchangeRate

    made = ExchangeRate(
        from_currency=from_currency,
        to_currency=to_currency,
        rate=amount(rate),
        effective_at=instant(effective_from, "UTC"),
        source_address=source,
        checked_on=datetime.now(UTC).date() if checked_on is None else day(checked_on),
        replaces=replaces,
    )
    added = with_connection(
        lambda connection: price_store.save_exchange_rates(connection, [made], acting(actor), reason)
    )
    if format is Format.json:
        print_json({"content_hash": made.content_hash, "added": added})
        return
    say(f"added {made}, hash {made.content_hash}" if added else f"{made} is there already")


@rates.command("list")
def list_rates(format: FormatOption = Format.table) -> None:
    """List exchange rates by pair, in order of time."""
    from ledger import price_store
    from ledger.times import from_micros

    found = with_connection(price_store.read_exchange_rates)
    if format is Format.json:
        print_json(
            [
                {
                    "from": each.from_currency,
                    "to": each.to_currency,
                    "rate": each.rate,
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
        "from": lambda each: each.from_currency,
        "to": lambda each: each.to_currency,
        "rate": None,
        "in force from": lambda each: from_micros(each.effective_at),
        "source": lambda each: each.source_address,
        "checked on": None,
        "hash": lambda each: each.content_hash,
    }
    show(found, Format.table, columns, empty="no exchange rates")
