"""Imports list prices: reads a source, says what would change, and adds what a person accepts.

The source is genai-prices (MIT), kept in data/prices. Its rules from a name to a model are resolved to exact ids: the
model's own id and what it must equal. Rules that match by a part of a name are listed and left, since a prefix of a
name is not the name; so is every price that our meters cannot express.
"""

import gzip
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from ledger.database import Connection, change, record_act
from ledger.errors import CardRefused
from ledger.parties import Model
from ledger.price_book import Band, Body, Card, Price, PriceBook, Slot, Variant, body_to_row, check_card
from ledger.price_store import insert_cards, insert_models, load_price_book, read_model_names, withdrawal_of
from ledger.times import parse_rfc3339

Reason = Literal[
    "no_prices",  # the source knows the model and no price
    "loose_rule",  # matches a part of a name
    "alias_taken",  # two models claim one name
    "key_without_meter",  # a price that no meter of ours expresses; its usage stays unpriced
    "fee_without_meter",  # a fee that no count of ours would show, so that the model would be underpriced
    "condition_unknown",  # a variant that no selector of ours chooses
    "hours_differ",  # a time of day that is not a plain replacement of the price around it
    "refused",  # the price book refuses the card
]

UNDATED: Final = parse_rfc3339("2020-01-01T00:00:00Z")
"""From when a price without a date counts: the earliest time that usage may have."""

# Price key to the meters that it prices, and the units that it is for. What the source calls a cache write covers
# every lifetime that has no price of its own.
_KEYS: Final[Mapping[str, tuple[tuple[str, ...], int]]] = {
    "input_mtok": (("uncached_input_tokens",), 1_000_000),
    "cache_read_mtok": (("cache_read_tokens",), 1_000_000),
    "cache_write_mtok": (("cache_write_5m_tokens", "cache_write_other_tokens"), 1_000_000),
    "cache_write_5m_mtok": (("cache_write_5m_tokens",), 1_000_000),
    "cache_write_1h_mtok": (("cache_write_1h_tokens",), 1_000_000),
    "output_mtok": (("visible_output_tokens",), 1_000_000),
    "output_reasoning_mtok": (("reasoning_tokens",), 1_000_000),
    "output_citation_mtok": (("citation_tokens",), 1_000_000),
    "input_tool_mtok": (("tool_prompt_tokens",), 1_000_000),
    **{f"input_{m}_mtok": ((f"uncached_input_{m}_tokens",), 1_000_000) for m in ("audio", "image", "video")},
    **{f"cache_{m}_read_mtok": ((f"cache_read_{m}_tokens",), 1_000_000) for m in ("audio", "image", "video")},
    **{f"output_{m}_mtok": ((f"visible_output_{m}_tokens",), 1_000_000) for m in ("audio", "image", "video")},
    "input_mchars": (("characters",), 1_000_000),
    "input_audio_hours": (("audio_input_seconds",), 3600),
    "output_audio_hours": (("audio_output_seconds",), 3600),
    "input_document_kpages": (("pages",), 1000),
    "rerank_searches_kcount": (("search_units",), 1000),
    "web_searches_kcount": (("web_search_calls",), 1000),
    "storage_searches_kcount": (("file_search_calls",), 1000),
    "code_executions_kcount": (("code_execution_calls",), 1000),
}
# More particular keys win over general ones for the same meter.
_KEY_ORDER: Final = tuple(_KEYS)
# Fees that every request incurs, whatever it counts.
_HIDDEN_FEES: Final = frozenset({"requests_kcount", "input_text_messages_kcount"})
# What a variant's `when` may ask for, and the service tier that the event then has.
_TIER_KEYS: Final = ("service_tier", "processing", "speed")
_UTC_CLOCK: Final = re.compile(r"(\d\d:\d\d):00(?:\+00:00|Z)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Unresolved:
    """Something of the source that was not imported, and why."""

    provider: str
    model: str
    what: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class Rule:
    """The source's own rule for a model, in its own form; only a person turns a loose one into exact names."""

    provider: str
    model: str
    match: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Imported:
    """What a source says, in our terms."""

    source: str
    """Name and version; it opens the source address of each card, so that a later import knows its own."""
    checked_on: date
    cards: tuple[Card, ...]
    models: tuple[Model, ...]
    aliases: Mapping[tuple[str, str], str]
    """(provider, exact name) to canonical id."""
    unresolved: tuple[Unresolved, ...]
    rules: tuple[Rule, ...]


# --- Reading genai-prices --------------------------------------------------------------------------------------------


def read_genai_prices(path: Path, version: str, checked_on: date) -> Imported:
    """Read the JSON form of genai-prices (see data/prices/README.md) as cards of the cost book, in US dollars."""
    with gzip.open(path) as packed:
        providers = json.load(packed, parse_float=Decimal)
    reader = _Reader(f"genai-prices {version}", checked_on)
    by_id = {provider["id"]: provider for provider in providers}
    for provider in providers:
        for model in provider["models"]:
            reader.add(provider, provider, model)
    # Some providers host others' models at others' prices; the source says so by name. Their own models come first.
    for provider in providers:
        for name in provider.get("fallback_model_providers") or ():
            for model in by_id[name]["models"]:
                reader.add(provider, by_id[name], model)
    return reader.imported()


@dataclass(slots=True)
class _Reader:
    source: str
    checked_on: date
    cards: list[Card] = field(default_factory=list)
    models: dict[tuple[str, str], Model] = field(default_factory=dict)
    names: dict[tuple[str, str], str] = field(default_factory=dict)
    unresolved: list[Unresolved] = field(default_factory=list)
    rules: list[Rule] = field(default_factory=list)

    def imported(self) -> Imported:
        # A name that is one model's id and another's alias is the id.
        taken = [key for key, model in self.names.items() if key in self.models and model != key[1]]
        for provider, name in taken:
            self._leave(provider, self.names.pop((provider, name)), f"name {name!r} is a model's id", "alias_taken")
        return Imported(
            self.source,
            self.checked_on,
            tuple(self.cards),
            tuple(self.models.values()),
            self.names,
            tuple(dict.fromkeys(self.unresolved)),
            tuple(self.rules),
        )

    def add(self, provider: Mapping[str, Any], owner: Mapping[str, Any], model: Mapping[str, Any]) -> None:
        """Read one model of `owner` as one of `provider`."""
        is_borrowed = provider is not owner
        provider_id, model_id = provider["id"], model["id"]
        if is_borrowed and ((provider_id, model_id) in self.models or (provider_id, model_id) in self.names):
            return
        problems: list[Unresolved] = []
        bodies = list(self._bodies(provider_id, model, problems))
        if any(body is not None for _, body in bodies):
            address = f"{self.source}: {next(iter(owner.get('pricing_urls') or ()), owner['api_pattern'])}"
            cards = [self._card(provider_id, model_id, at, body, address) for at, body in bodies]
            try:
                for card in cards:
                    check_card(card)
            except CardRefused as refused:
                self._leave(provider_id, model_id, f"{refused.field} {refused.rule}", "refused")
                return
            self.cards += cards
        elif not problems:
            problems.append(Unresolved(provider_id, model_id, "prices", "no_prices"))
        if not is_borrowed:
            self.unresolved += problems
        # A model without a price is still a model: its name resolves, and its usage is shown as unpriced.
        self.models[provider_id, model_id] = Model(provider_id, model_id)
        self.rules.append(Rule(provider_id, model_id, model["match"]))
        for name in _exact_names(model["match"]):
            if name == model_id:
                continue
            other = self.names.setdefault((provider_id, name), model_id)
            if other != model_id and not is_borrowed:
                self._leave(provider_id, model_id, f"name {name!r} is {other!r} already", "alias_taken")
        if not is_borrowed:
            for rule in _loose_rules(model["match"]):
                self._leave(provider_id, model_id, rule, "loose_rule")

    def _leave(self, provider: str, model: str, what: str, reason: Reason) -> None:
        self.unresolved.append(Unresolved(provider, model, what, reason))

    def _card(self, provider: str, model: str, effective_at: int, body: Body | None, address: str) -> Card:
        return Card(
            book="cost",
            provider=provider,
            model=model,
            currency="USD",
            effective_at=effective_at,
            source_address=address,
            checked_on=self.checked_on,
            body=body or Body(),
            is_withdrawal=body is None,
        )

    def _bodies(
        self, provider: str, model: Mapping[str, Any], problems: list[Unresolved]
    ) -> Iterator[tuple[int, Body | None]]:
        """Yield (from when, what a card says), one for each date on which that changes."""
        raw = model["prices"]
        entries = [{"prices": raw}] if isinstance(raw, dict) else raw
        variants = model.get("price_variants") or []
        dated = [_date(each) for each in (*entries, *variants)]
        before: Body | None = None
        for at in sorted({UNDATED, *(instant for instant in dated if instant is not None)}):
            body = _body_at(at, entries, variants, provider, model["id"], problems)
            if body != before:
                yield at, body
            before = body


def _constraint(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    return entry.get("constraint") or {}


def _date(entry: Mapping[str, Any]) -> int | None:
    start = _constraint(entry).get("start_date")
    return parse_rfc3339(f"{start}T00:00:00Z") if start else None


def _body_at(
    at: int,
    entries: Sequence[Mapping[str, Any]],
    variants: Sequence[Mapping[str, Any]],
    provider: str,
    model: str,
    problems: list[Unresolved],
) -> Body | None:
    """Return what the source says from an instant on, or None where it has no price then."""

    def leave(what: str, reason: Reason) -> None:
        problem = Unresolved(provider, model, what, reason)
        if problem not in problems:
            problems.append(problem)

    # The last entry counts whose constraint holds; without any, the first entry.
    hours: list[tuple[tuple[str, str], Mapping[str, Any]]] = []
    standard = entries[0]["prices"]
    for entry in reversed(entries):
        constraint = _constraint(entry)
        if "start_time" in constraint:
            clocks = [_UTC_CLOCK.fullmatch(constraint[end]) for end in ("start_time", "end_time")]
            if clocks[0] is None or clocks[1] is None:
                leave(f"hours {constraint['start_time']} to {constraint['end_time']}", "hours_differ")
                return None
            hours.append(((clocks[0][1], clocks[1][1]), entry["prices"]))
        elif (_date(entry) or UNDATED) <= at:
            standard = entry["prices"]
            break
    for (start, end), prices in hours:
        if prices.keys() != standard.keys():
            # In these hours the source's price takes the place of the whole, ours of each meter: equal only if the
            # same meters have a price.
            leave(f"hours {start} to {end}", "hours_differ")
            return None
    hidden = _HIDDEN_FEES & standard.keys()
    if hidden:
        leave(", ".join(sorted(hidden)), "fee_without_meter")
        return None
    rates = _rates(standard, leave)
    if not rates:
        return None
    made: list[Variant] = []
    by_tier: dict[str, dict[str, Any]] = {}
    for variant in variants:
        if (_date(variant) or UNDATED) > at:
            continue
        tier = _tier(variant["when"])
        if tier is None or "start_time" in _constraint(variant):
            leave(f"prices when {json.dumps(variant['when'])}", "condition_unknown")
            continue
        prices = by_tier.setdefault(tier, {})
        for key, value in variant["prices"].items():
            prices.setdefault(key, value)
    for tier, prices in by_tier.items():
        layer_rates, layer_bands = _layer(_rates(prices, leave))
        made.append(Variant((tier,), (), None, layer_rates, layer_bands))
    for clock, prices in hours:
        layer_rates, layer_bands = _layer(_rates(prices, leave))
        made.append(Variant((), (), clock, layer_rates, layer_bands))
    base_rates, base_bands = _layer(rates)
    # In the source a general price covers whatever has no price of its own.
    return Body(base_rates, base_bands, tuple(made), missing_component="use_side_rate")


def _tier(when: Mapping[str, str]) -> str | None:
    """Return the service tier that a variant's condition means, or None for a condition that we cannot choose by."""
    if len(when) != 1:
        return None
    ((key, value),) = when.items()
    return value if key in _TIER_KEYS else None


@dataclass(frozen=True, slots=True)
class _Tiered:
    per: int
    base: Decimal
    tiers: tuple[tuple[int, Decimal], ...] = ()

    def above(self, start: int) -> Decimal:
        """The price of a request whose input is above a threshold."""
        return next((price for tier_start, price in reversed(self.tiers) if tier_start <= start), self.base)


def _rates(prices: Mapping[str, Any], leave: Any) -> dict[str, _Tiered]:
    """Return prices by meter; what no meter expresses is left."""
    rates: dict[str, _Tiered] = {}
    for key in sorted(prices, key=lambda key: _KEY_ORDER.index(key) if key in _KEYS else -1):
        value = prices[key]
        if key not in _KEYS:
            # Without a direction the length of audio is the price of the input that stands beside it, if one does.
            if key != "audio_hours" or prices.get("input_audio_hours") != value:
                leave(key, "key_without_meter")
            continue
        meters, per = _KEYS[key]
        tiered = _tiered(value, per)
        if tiered is None:
            leave(f"{key} per {per:,} is no exact price of one", "key_without_meter")
            continue
        for meter in meters:
            rates[meter] = tiered
    return rates


def _tiered(value: Any, per: int) -> _Tiered | None:
    """Read a price, flat or tiered; per 3,600 becomes per 1 where that is exact, and None where it is not."""
    base, tiers = (value, []) if isinstance(value, str) else (value["base"], value["tiers"])
    amounts = [Decimal(base), *(Decimal(tier["price"]) for tier in tiers)]
    if per == 3600:
        exact = [_divided(amount, per) for amount in amounts]
        if any(amount is None for amount in exact):
            return None
        amounts, per = [amount for amount in exact if amount is not None], 1
    pairs = zip((int(tier["start"]) for tier in tiers), amounts[1:], strict=True)
    return _Tiered(per, amounts[0], tuple(sorted(pairs)))


def _divided(amount: Decimal, by: int) -> Decimal | None:
    """Return an exact quotient, or None where its digits never end."""
    quotient = Fraction(amount) / by
    for places in range(19):
        scaled = quotient * 10**places
        if scaled.denominator == 1:
            return Decimal(scaled.numerator).scaleb(-places)
    return None


def _layer(rates: Mapping[str, _Tiered]) -> tuple[dict[str, Price], tuple[Band, ...]]:
    """Return rates below the first threshold, and a band for each threshold with every meter that has one there."""
    starts = sorted({start for tiered in rates.values() for start, _ in tiered.tiers})
    per_token = {meter: tiered for meter, tiered in rates.items() if tiered.tiers or meter.endswith("_tokens")}
    return (
        {meter: _price(tiered.base, tiered.per) for meter, tiered in rates.items()},
        tuple(
            Band(">", start, {meter: _price(tiered.above(start), tiered.per) for meter, tiered in per_token.items()})
            for start in starts
        ),
    )


def _price(amount: Decimal, per: int) -> Price:
    # An unknown price is absent from the source; a zero that stands there is a statement.
    return Price(amount, per, is_free=not amount)


# --- Names -----------------------------------------------------------------------------------------------------------


def _exact_names(match: Mapping[str, Any]) -> list[str]:
    """Return the names that a rule takes as they are: `equals`, alone or as one of several ways."""
    if "equals" in match:
        return [match["equals"]]
    return [name for clause in match.get("or", ()) for name in _exact_names(clause)]


def _loose_rules(match: Mapping[str, Any]) -> list[str]:
    """Return the ways of a rule that look at a part of a name, as text."""
    if "or" in match:
        return [rule for clause in match["or"] for rule in _loose_rules(clause)]
    return [] if "equals" in match else [json.dumps(match, sort_keys=True)]


def _matches(match: Mapping[str, Any], name: str) -> bool:
    """Hold a name in lower case against a rule of the source, the way that the source does."""
    ((kind, value),) = match.items()
    if kind == "or":
        return any(_matches(clause, name) for clause in value)
    if kind == "and":
        return all(_matches(clause, name) for clause in value)
    if kind == "regex":
        return re.search(value, name) is not None
    wanted: str = value.lower()
    if kind == "equals":
        return name == wanted
    if kind == "starts_with":
        return name.startswith(wanted)
    if kind == "ends_with":
        return name.endswith(wanted)
    return kind == "contains" and wanted in name


def propose_aliases(imported: Imported, names: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Return which model the source's loose rules would take each unknown (provider, name) for.

    A proposal for a person, who accepts exact names from it; nothing is priced by a rule.
    """
    by_provider: dict[str, list[Rule]] = {}
    for rule in imported.rules:
        by_provider.setdefault(rule.provider, []).append(rule)
    known = {(model.provider, model.model) for model in imported.models} | imported.aliases.keys()
    proposed = {}
    for provider, name in names:
        if (provider, name) in known:
            continue
        rules = by_provider.get(provider, ())
        found = next((rule for rule in rules if _matches(rule.match, name.lower())), None)
        if found is not None:
            proposed[provider, name] = found.model
    return proposed


# --- What would change -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Change:
    """A card that takes the place of another from its effective_at on."""

    old: Card
    new: Card


@dataclass(frozen=True, slots=True)
class PriceDiff:
    """What accepting an import would add; nothing that stands is touched."""

    source: str
    new: tuple[Card, ...]
    changed: tuple[Change, ...]
    withdrawn: tuple[Change, ...]
    """Models of an earlier import that the source no longer has."""
    kept: tuple[Card, ...]
    """Cards of another origin for the same models; a list price does not overrule them."""
    models: tuple[Model, ...]
    aliases: Mapping[tuple[str, str], str]
    unresolved: tuple[Unresolved, ...]
    unchanged_count: int

    @property
    def cards(self) -> tuple[Card, ...]:
        """All cards that would be added."""
        return (*self.new, *(each.new for each in self.changed), *(each.new for each in self.withdrawn))

    @property
    def is_empty(self) -> bool:
        return not (self.cards or self.models or self.aliases)


def diff_prices(imported: Imported, book: PriceBook, names: Mapping[tuple[str, str], str], now: int) -> PriceDiff:
    """Hold what a source says against the book, whose names map (provider, id or alias) to a canonical id.

    A model that the book does not have gets all its cards, dated ones included. Of a model that it has, only the time
    from `now` on is compared: a price that the source changed without a date counts from now, since what was posted
    before was posted at the price that was known.
    """
    family = imported.source.rpartition(" ")[0] + " "
    theirs: dict[Slot, list[Card]] = {}
    for card in imported.cards:
        theirs.setdefault(card.slot, []).append(card)
    new: list[Card] = []
    changed: list[Change] = []
    withdrawn: list[Change] = []
    kept: list[Card] = []
    unchanged = 0
    for slot, wanted in theirs.items():
        ours = book.history(slot)
        if not ours:
            new += wanted
        elif not ours[-1].source_address.startswith(family):
            kept.append(ours[-1])
        else:
            changes = list(_changes(ours, wanted, now))
            changed += changes
            unchanged += not changes
    for slot in book.slots():
        ours = book.history(slot)
        last = ours[-1]
        if slot not in theirs and last.source_address.startswith(family) and not last.is_withdrawal:
            at = max(now, last.effective_at + 1)
            address = f"{imported.source}: no longer listed"
            withdrawn.append(Change(last, withdrawal_of(last, at, address, imported.checked_on)))
    aliases = {}
    unresolved = list(imported.unresolved)
    for (provider, name), model in imported.aliases.items():
        known = names.get((provider, name))
        if known is None:
            aliases[provider, name] = model
        elif known != model:
            unresolved.append(Unresolved(provider, model, f"name {name!r} is {known!r} already", "alias_taken"))
    return PriceDiff(
        source=imported.source,
        new=tuple(new),
        changed=tuple(changed),
        withdrawn=tuple(withdrawn),
        kept=tuple(kept),
        models=tuple(each for each in imported.models if names.get((each.provider, each.model)) != each.model),
        aliases=aliases,
        unresolved=tuple(unresolved),
        unchanged_count=unchanged,
    )


def _says(card: Card) -> Any:
    """What a card says, whatever it replaces."""
    return (card.currency, card.is_withdrawal, body_to_row(msgspec.structs.replace(card.body, replaces=None)))


def _changes(ours: Sequence[Card], theirs: Sequence[Card], now: int) -> Iterator[Change]:
    """Yield the cards that make the book say what the source says, from now on."""

    def in_force(cards: Sequence[Card], at: int) -> Card | None:
        return next((card for card in reversed(cards) if card.effective_at <= at), None)

    at_instant = {card.effective_at: card for card in ours if card.effective_at >= now}
    standing = in_force(ours, now - 1)
    for at in sorted({now, *at_instant, *(card.effective_at for card in theirs if card.effective_at >= now)}):
        old = at_instant.get(at)
        standing = old or standing
        wanted = in_force(theirs, at)
        if wanted is None or (standing is not None and _says(standing) == _says(wanted)):
            continue
        replaced = old.content_hash if old else None
        made = msgspec.structs.replace(
            wanted, effective_at=at, body=msgspec.structs.replace(wanted.body, replaces=replaced)
        )
        yield Change(standing or made, made)
        standing = made


async def diff_import(connection: Connection, imported: Imported, now: int) -> PriceDiff:
    """Return what accepting an import would add to the database."""
    return diff_prices(imported, await load_price_book(connection), await read_model_names(connection), now)


async def accept_import(connection: Connection, diff: PriceDiff, actor: str, reason: str | None = None) -> int:
    """Add what a person accepted, all or nothing, and return how many cards were new; again, it adds none."""
    if diff.is_empty:
        return 0
    async with change(connection, "prices", "parties"):
        await insert_models(connection, diff.models, diff.aliases, diff.source)
        added = await insert_cards(connection, diff.cards)
        detail = {
            "source": diff.source,
            "new": len(diff.new),
            "changed": len(diff.changed),
            "withdrawn": len(diff.withdrawn),
            "models": len(diff.models),
            "aliases": len(diff.aliases),
        }
        await record_act(connection, actor, "prices.import", detail, reason)
    return len(added)
