"""Commands about names of models: what may stand around them, who is unknown, and what a person accepts."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tallystick.commands.common import (
    ActorOption,
    CommandError,
    Format,
    FormatOption,
    ReasonOption,
    acting,
    print_json,
    print_table,
    say,
    show,
    with_connection,
)
from tallystick.commands.parties import models

if TYPE_CHECKING:
    from ledger.database import Connection
    from ledger.model_names import NameRule


def register(app: typer.Typer) -> None:
    """The commands of this file hang on the group `models`, which is added with the other parties."""


@models.command("rules")
def show_rules(
    provider: Annotated[str | None, typer.Argument(metavar="[PROVIDER]", help="Of this provider only.")] = None,
    format: FormatOption = Format.table,
) -> None:
    """List what may stand around a known name, in order of precedence."""
    from ledger import registry

    found = with_connection(lambda connection: registry.list_name_rules(connection, provider))
    columns = {"provider": None, "place": None, "rule": lambda each: str(each.rule)}
    show(found, format, columns, empty="no rules: a name is known exactly or not at all")


@models.command("set-rules")
def set_rules(
    provider: Annotated[str, typer.Argument(metavar="PROVIDER", help="Whose names the rules are for.")],
    rule: Annotated[
        list[str] | None,
        typer.Option(
            "--rule",
            help="prefix:TEXT (may be left out, whole), version_suffix (-v1 or -v1:0) or fold_case;"
            " repeated, in order of precedence. Without any, names of the provider are exact again.",
        ),
    ] = None,
    actor: ActorOption = None,
) -> None:
    """Set what may stand around a provider's names; what was set before is gone."""
    from ledger import registry

    rules = tuple(_rule(text) for text in rule or ())
    with_connection(lambda connection: registry.set_name_rules(connection, acting(actor), provider, rules))
    say(f"{len(rules)} rules for names of {provider}")


def _rule(text: str) -> NameRule:
    from ledger.model_names import NameRule

    kind, _, rest = text.partition(":")
    if kind == "prefix" and rest:
        return NameRule("prefix", rest)
    if text in ("version_suffix", "fold_case"):
        return NameRule(text)  # type: ignore[arg-type]
    raise CommandError(f"rule {text!r} is unknown; it is prefix:TEXT, version_suffix or fold_case")


@models.command("unknown")
def list_unknown(format: FormatOption = Format.table) -> None:
    """List names that usage came under and that are nobody's: their entries are unpriced."""
    from ledger import registry

    found = with_connection(registry.unknown_names)
    columns = {
        "provider": None,
        "name": None,
        "entries": lambda each: each.entry_count,
        "first at": None,
        "last at": None,
    }
    show(found, format, columns, empty="every name in the ledger is known")


@models.command("propose")
def propose_names(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", exists=True, dir_okay=False, readable=True, help="genai-prices (JSON, gzip)."),
    ],
    accept: Annotated[
        list[str] | None,
        typer.Option("--accept", metavar="NAME", help="Make this name an exact alias of what is proposed; repeated."),
    ] = None,
    accept_all: Annotated[bool, typer.Option("--accept-all", help="Make all of them.")] = False,
    reason: ReasonOption = None,
    actor: ActorOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Propose models for the unknown names in the ledger, by the loose rules of a price source; accept some as exact."""
    from ledger import price_import, registry

    try:
        imported = price_import.read_genai_prices(file, "names", datetime.now(UTC).date())
    except (OSError, EOFError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise CommandError(f"{file} is not genai-prices as gzipped JSON: {error}") from None

    async def work(connection: Connection) -> tuple[dict[tuple[str, str], str], int | None]:
        unknown = [(each.provider, each.name) for each in await registry.unknown_names(connection)]
        known = {(each.provider, each.model) for each in await registry.list_models(connection)}
        proposed = {
            (provider, name): model
            for (provider, name), model in price_import.propose_aliases(imported, unknown).items()
            if (provider, model) in known
        }
        for name in accept or ():
            if not any(name == of for _, of in proposed):
                raise CommandError(f"nothing is proposed for {name!r}")
        chosen = {key: model for key, model in proposed.items() if accept_all or key[1] in (accept or ())}
        if not chosen:
            return proposed, None
        return proposed, await registry.accept_names(
            connection, acting(actor), chosen, f"proposed by {file.name}", reason
        )

    proposed, added = with_connection(work)
    if format is Format.json:
        listed = [{"provider": provider, "name": name, "model": model} for (provider, name), model in proposed.items()]
        print_json({"proposed": listed, "added": added})
        return
    if proposed:
        print_table(["provider", "name", "model"], [[*key, model] for key, model in proposed.items()])
    if added is not None:
        say(f"added {added} aliases; `tallystick prices reprice` prices what came before them")
    else:
        say("nothing is added yet: --accept NAME adds one" if proposed else "nothing to propose")
