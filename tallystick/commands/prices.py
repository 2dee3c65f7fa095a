"""Commands about prices: import, contracts, list, show."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tallystick.commands.common import (
    ActorOption,
    CommandError,
    Format,
    FormatOption,
    ReasonOption,
    acting,
    day,
    group,
    note,
    now,
    plain,
    print_json,
    print_table,
    say,
    show,
    with_connection,
)

if TYPE_CHECKING:
    from ledger.database import Connection
    from ledger.price_book import Body, Card, Price
    from ledger.price_import import PriceDiff

prices = group("Prices: what providers cost us, and what tenants are charged.")

_SHOWN_MAX = 40

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False, readable=True)]
AcceptOption = Annotated[bool, typer.Option("--accept", help="Add it; without this it is only shown.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.add_typer(prices, name="prices")


@prices.command("import")
def import_prices(
    file: FileArgument,
    version: Annotated[
        str | None, typer.Option("--version", help="Of the source; left out, the one in the file's name.")
    ] = None,
    checked_on: Annotated[
        str | None, typer.Option("--checked-on", help="When it was held against its source; left out, today.")
    ] = None,
    accept: AcceptOption = False,
    reason: ReasonOption = None,
    actor: ActorOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Show what list prices of genai-prices (JSON, gzip) would change, and add them with --accept."""
    from ledger import price_import

    version, checked = version or _version_of(file), _day(checked_on)
    try:
        imported = price_import.read_genai_prices(file, version, checked)
    except (OSError, EOFError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise CommandError(f"{file} is not genai-prices as gzipped JSON: {error}") from None

    async def work(connection: Connection) -> tuple[PriceDiff, int | None]:
        diff = await price_import.diff_import(connection, imported, now())
        return diff, await price_import.accept_import(connection, diff, acting(actor), reason) if accept else None

    diff, added = with_connection(work)
    counts = {
        "new cards": len(diff.new),
        "changed prices": len(diff.changed),
        "withdrawn": len(diff.withdrawn),
        "unchanged": diff.unchanged_count,
        "kept, of another origin": len(diff.kept),
        "new models": len(diff.models),
        "new aliases": len(diff.aliases),
        "not imported": len(diff.unresolved),
    }
    if format is Format.json:
        print_json(
            {
                "source": diff.source,
                "counts": counts,
                "cards": [_card(card) for card in diff.cards],
                "unresolved": plain(diff.unresolved),
                "added": added,
            }
        )
        return
    print_table([diff.source, "count"], [[name, f"{count:,}"] for name, count in counts.items()], [1])
    changes = [(change.old, change.new) for change in (*diff.changed, *diff.withdrawn)]
    if changes:
        say("")
        rows = [[str(old), _rates(old), "withdrawn" if new.is_withdrawal else _rates(new)] for old, new in changes]
        print_table(["card", "was", "becomes"], rows[:_SHOWN_MAX])
        if len(rows) > _SHOWN_MAX:
            note(f"the first {_SHOWN_MAX} of {len(rows):,}; --format json has all")
    _say_outcome(added, len(diff.cards), diff.is_empty)


@prices.command("contracts")
def contracts(
    file: FileArgument,
    accept: AcceptOption = False,
    reason: ReasonOption = None,
    actor: ActorOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Show which cards of a contract file (YAML) are new, and add them with --accept."""
    from ledger import contracts as files
    from ledger import price_store

    wanted = files.load_contracts(file)

    async def work(connection: Connection) -> tuple[list[Card], int | None]:
        known = {card.content_hash for card in await price_store.read_cards(connection)}
        new = [card for card in wanted if card.content_hash not in known]
        return new, await price_store.save_cards(connection, new, acting(actor), reason) if accept else None

    new, added = with_connection(work)
    if format is Format.json:
        print_json({"cards": [_card(card) for card in new], "unchanged": len(wanted) - len(new), "added": added})
        return
    if new:
        print_table(["new card", "rates"], [[str(card), _rates(card)] for card in new])
    say(f"{len(wanted) - len(new)} of {len(wanted)} cards are in the book already")
    _say_outcome(added, len(new), not new)


def _say_outcome(added: int | None, count: int, is_empty: bool) -> None:
    if added is not None:
        say(f"added {added:,} cards")
    elif is_empty:
        say("nothing would change")
    else:
        say(f"nothing is added yet: --accept adds {count:,} cards")


@prices.command("list")
def list_prices(
    book: Annotated[str | None, typer.Option("--book", help="cost or charge.")] = None,
    provider: Annotated[str | None, typer.Option("--provider")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Canonical id.")] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", help="Contracts of this tenant.")] = None,
    format: FormatOption = Format.table,
) -> None:
    """List cards in the order in which they replace each other."""
    cards = _cards(book, provider, model, tenant)
    if format is Format.json:
        print_json([_card(card) for card in cards])
        return
    columns: dict[str, Any] = {
        "book": None,
        "provider": None,
        "account": lambda card: card.provider_account or card.deployment,
        "model": lambda card: card.model or "(every model)",
        "tenant": lambda card: card.tenant_id,
        "from": _from,
        "rates": _rates,
    }
    show(cards, Format.table, columns, empty="no cards")


@dataclass(frozen=True, slots=True)
class _Line:
    """A rate of a card, as `prices show` prints it."""

    card: str
    applies: str
    meter: str
    price: str
    per: int | None
    currency: str


@prices.command("show")
def show_prices(
    provider: Annotated[str, typer.Argument(metavar="PROVIDER")],
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Canonical id or exact alias.")],
    tenant: Annotated[str | None, typer.Option("--tenant", help="Contracts of this tenant only.")] = None,
    format: FormatOption = Format.table,
) -> None:
    """Show every card of a model with all its rates, and where they were read."""
    cards = _cards(None, provider, model, tenant)
    if not cards:
        raise CommandError(f"there is no card for model {model!r} of {provider!r}")
    if format is Format.json:
        print_json([_card(card) for card in cards])
        return
    for number, card in enumerate(cards):
        if number:
            say("")
        say(f"{card}: {card.source_address}, checked {card.checked_on}")
        lines = list(_lines(card))
        columns = {"applies": None, "meter": None, "price": None, "per": lambda line: f"{line.per:,}", "currency": None}
        show(lines, Format.table, columns, empty=_rates(card))


# --- Reading and writing cards ------------------------------------------------------------------------------------------


def _cards(book: str | None, provider: str | None, model: str | None, tenant: str | None) -> list[Card]:
    from ledger import price_store

    if book not in (None, "cost", "charge"):
        raise CommandError(f"book {book!r} is unknown; it is cost or charge")

    async def read(connection: Connection) -> list[Card]:
        names = await price_store.read_model_names(connection)
        canonical = names.get((provider, model), model) if provider and model else model
        return await price_store.read_cards(
            connection,
            book=book,  # type: ignore[arg-type]
            provider=provider,
            model=canonical,
            tenant_id=tenant,
        )

    return with_connection(read, of_tenant=tenant)


def _version_of(file: Path) -> str:
    found = re.search(r"\d+(?:\.\d+)+", file.name)
    if found is None:
        raise CommandError(f"the name {file.name} has no version: give one with --version")
    return found[0]


def _day(text: str | None) -> Any:
    return datetime.now(UTC).date() if text is None else day(text)


def _from(card: Card) -> str:
    from ledger.times import from_micros

    at = from_micros(card.effective_at)
    return (
        f"{at:%Y-%m-%d}" if at == at.replace(hour=0, minute=0, second=0, microsecond=0) else f"{at:%Y-%m-%d %H:%M:%S}Z"
    )


def _rates(card: Card) -> str:
    """Return the two rates that people compare by, and what else there is."""
    body = card.body
    if card.is_withdrawal:
        return "withdrawn"
    if body.is_free:
        return "free"
    if body.markup is not None:
        return f"cost x {body.markup:f}"
    shown = [
        f"{name} {_price(body.rates[meter])}"
        for name, meter in (("input", "uncached_input_tokens"), ("output", "visible_output_tokens"))
        if meter in body.rates
    ]
    others = len(body.rates) - len(shown)
    more = [f"{others} more" if others else "", "bands" if body.bands else "", "variants" if body.variants else ""]
    return ", ".join([*shown, *filter(None, more)]) + f" {card.currency}"


def _price(price: Price) -> str:
    return "free" if price.is_free else f"{price.price:f} per {price.per:,}"


def _lines(card: Card) -> Iterable[_Line]:
    body: Body | Any = card.body
    for applies, rates in (
        ("always", body.rates),
        *((f"input {band.operator} {band.input_tokens:,}", band.rates) for band in body.bands),
        *((_condition(variant), variant.rates) for variant in body.variants),
        *(
            (f"{_condition(variant)}, input {band.operator} {band.input_tokens:,}", band.rates)
            for variant in body.variants
            for band in variant.bands
        ),
    ):
        for meter, price in rates.items():
            yield _Line(str(card), applies, meter, f"{price.price:f}", price.per, card.currency)


def _condition(variant: Any) -> str:
    parts: Sequence[str] = [
        "/".join(variant.service_tiers),
        "/".join(variant.regions),
        f"{variant.hours[0]} to {variant.hours[1]} UTC" if variant.hours else "",
    ]
    return ", ".join(filter(None, parts)) or "otherwise"


def _card(card: Card) -> dict[str, Any]:
    from ledger.price_book import body_to_row
    from ledger.times import from_micros

    return {
        "book": card.book,
        "provider": card.provider,
        "provider_account": card.provider_account,
        "deployment": card.deployment,
        "model": card.model,
        "tenant_id": card.tenant_id,
        "currency": card.currency,
        "effective_at": plain(from_micros(card.effective_at)),
        "is_withdrawal": card.is_withdrawal,
        "source_address": card.source_address,
        "checked_on": plain(card.checked_on),
        "content_hash": card.content_hash,
        "body": body_to_row(card.body),
    }
