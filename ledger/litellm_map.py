"""LiteLLM's price map: held against our book as a report, and its versions read as a history of dated cards.

The map says what each model costs for a single token, in fields whose names hold meter, threshold and tier. Read here is
what is sure: input, output, reasoning, cache reads and writes with two lifetimes, modalities, characters, pages; thresholds
as `>`; batch, flex and priority. Everything else that is a price is counted by its field and left. A zero is not read as
free: the map also writes zero where nobody knows.
"""

import gzip
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from ledger.errors import CardRefused
from ledger.meters import METERS
from ledger.money import EXACT
from ledger.price_book import (
    Band,
    Body,
    Card,
    Price,
    PriceBook,
    Rate,
    RateSet,
    Selectors,
    Variant,
    body_to_row,
    check_card,
)

# --- Reading a map ----------------------------------------------------------------------------------------------------

# What the map calls a provider, and what we do. Hosts whose names for models differ are not here: nothing would match.
PROVIDERS: Final[Mapping[str, str]] = {
    "anthropic": "anthropic",
    "azure": "azure",
    "bedrock": "aws",
    "bedrock_converse": "aws",
    "cerebras": "cerebras",
    "cloudflare": "cloudflare",
    "cohere": "cohere",
    "cohere_chat": "cohere",
    "databricks": "databricks",
    "deepseek": "deepseek",
    "fireworks_ai": "fireworks",
    "gemini": "google",
    "groq": "groq",
    "minimax": "minimax",
    "mistral": "mistral",
    "moonshot": "moonshotai",
    "novita": "novita",
    "openai": "openai",
    "openrouter": "openrouter",
    "ovhcloud": "ovhcloud",
    "perplexity": "perplexity",
    "text-completion-openai": "openai",
    "together_ai": "together",
    "vertex_ai-language-models": "google",
    "voyage": "voyageai",
    "xai": "x-ai",
    "zai": "zai",
}

# Field, without threshold and tier, to the meter that it prices.
_METERS: Final[Mapping[str, str]] = {
    "input_cost_per_token": "uncached_input_tokens",
    "output_cost_per_token": "visible_output_tokens",
    "output_cost_per_reasoning_token": "reasoning_tokens",
    "cache_read_input_token_cost": "cache_read_tokens",
    "cache_creation_input_token_cost": "cache_write_5m_tokens",
    "cache_creation_input_token_cost_above_1hr": "cache_write_1h_tokens",
    **{f"input_cost_per_{m}_token": f"uncached_input_{m}_tokens" for m in ("audio", "image", "video")},
    **{f"cache_read_input_{m}_token_cost": f"cache_read_{m}_tokens" for m in ("audio", "image")},
    **{f"output_cost_per_{m}_token": f"visible_output_{m}_tokens" for m in ("audio", "image", "video")},
    "citation_cost_per_token": "citation_tokens",
    "input_cost_per_character": "characters",
    "ocr_cost_per_page": "pages",
}
_TIERS: Final[Mapping[str, str]] = {"batches": "batch", "flex": "flex", "priority": "priority"}
_FIELD: Final = re.compile(r"(.+?)(?:_above_(\d+)k_tokens)?(?:_(batches|flex|priority))?", re.ASCII)
_IS_PRICE: Final = re.compile(r"cost|pricing", re.ASCII)


@dataclass(frozen=True, slots=True)
class Field:
    """What a field of the map prices: a meter, in a tier, above an input."""

    name: str
    meter: str
    tier: str | None = None
    above: int | None = None

    @property
    def per(self) -> int:
        """Units that a price is quoted for: a million tokens or characters, or one."""
        return 1_000_000 if METERS[self.meter].unit in ("token", "character") else 1


@dataclass(frozen=True, slots=True)
class Model:
    """One key of the map, in our terms. Prices are for `Field.per` units, in US dollars."""

    key: str
    provider: str
    name: str
    prices: Mapping[Field, Decimal]
    unread: tuple[str, ...]
    """Fields that price something and that we do not read."""


@dataclass(frozen=True, slots=True)
class Map:
    """One version of the map, by key."""

    version: str
    models: Mapping[str, Model]
    foreign: int
    """How many of its keys belong to providers that are not ours."""


def read_map(path: Path, version: str) -> Map:
    """Read a version of the map, packed with gzip or not; amounts are decimals made from their digits."""
    raw = path.read_bytes()
    text = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    document = json.loads(text, parse_float=Decimal)
    models, foreign = {}, 0
    for key, said in document.items():
        provider = PROVIDERS.get(str(said.get("litellm_provider")))
        if provider is None:
            foreign += key != "sample_spec"
            continue
        models[key] = _model(key, provider, said)
    return Map(version, models, foreign)


def read_field(name: str) -> Field | None:
    """Return what a field prices, or None for one that is no price or that we do not read."""
    match = _FIELD.fullmatch(name)
    if match is None or match[1] not in _METERS:
        return None
    above = int(match[2]) * 1000 if match[2] else None
    return Field(name, _METERS[match[1]], _TIERS.get(match[3] or ""), above)


def _model(key: str, provider: str, said: Mapping[str, Any]) -> Model:
    prices, unread = {}, []
    for name, value in said.items():
        field = read_field(name)
        if field is not None and isinstance(value, Decimal | int) and not isinstance(value, bool):
            prices[field] = EXACT.multiply(Decimal(value), Decimal(field.per)).normalize(EXACT)
        elif _IS_PRICE.search(name) and value is not None:
            unread.append(name)
    prefix = f"{said['litellm_provider']}/"
    return Model(key, provider, key.removeprefix(prefix), prices, tuple(unread))


# --- The comparison ---------------------------------------------------------------------------------------------------

Verdict = Literal["agrees", "differs", "only_theirs", "only_ours"]


@dataclass(frozen=True, slots=True)
class Row:
    """One price of one model, as both say it; amounts in US dollars for `per` units."""

    provider: str
    model: str
    key: str
    """The map's name for the model."""
    field: str
    meter: str
    tier: str | None
    above: int | None
    per: int
    ours: Decimal | None
    theirs: Decimal | None
    verdict: Verdict
    since: str | None
    """The version of the map from which on theirs has been what it is; None for what it does not have."""
    before: Decimal | None
    """What the version before that one said, where it said something."""


@dataclass(frozen=True, slots=True)
class Report:
    """The newest version of the map against our book."""

    versions: tuple[str, ...]
    rows: tuple[Row, ...]
    unknown: tuple[str, ...]
    """Keys of the map whose exact name is none of our models'."""
    missing: tuple[tuple[str, str], ...]
    """Our models, of the map's providers, that it does not have."""
    gone: tuple[tuple[str, str], ...]
    """(key, last version that had it): models of ours that the newest version has dropped."""
    unread: Mapping[str, int]
    """Fields that price something and that are not read, with how many models have them."""
    foreign: int

    @property
    def counts(self) -> dict[str, int]:
        found: Counter[str] = Counter(row.verdict for row in self.rows)
        return {verdict: found[verdict] for verdict in ("agrees", "differs", "only_theirs", "only_ours")}


Resolve = Callable[[str, str], str | None]
"""(provider, name) to the canonical id of our model, by exact names and declared rules."""


def compare(maps: Sequence[Map], book: PriceBook, resolve: Resolve, at: int) -> Report:
    """Hold the newest of several versions, given in order, against the cards in force at an instant."""
    newest = maps[-1]
    rows: list[Row] = []
    unknown: list[str] = []
    unread: Counter[str] = Counter()
    seen: set[tuple[str, str]] = set()
    for key, model in newest.models.items():
        ours = resolve(model.provider, model.name)
        if ours is None:
            unknown.append(key)
            continue
        seen.add((model.provider, ours))
        unread.update(model.unread)
        rows += _rows(maps, model, ours, book, at)
    gone = {}
    for version in maps[:-1]:
        for key, model in version.models.items():
            if key not in newest.models and resolve(model.provider, model.name) is not None:
                gone[key] = version.version
    providers = {provider for provider, _ in seen}
    listed = {
        (slot[1], slot[2])
        for slot in book.slots()
        if slot[0] == "cost" and slot[1] in providers and slot[2] is not None
    }
    return Report(
        tuple(version.version for version in maps),
        tuple(rows),
        tuple(unknown),
        tuple(sorted(listed - seen)),
        tuple(sorted(gone.items())),
        dict(unread.most_common()),
        newest.foreign,
    )


def _rows(maps: Sequence[Map], model: Model, ours: str, book: PriceBook, at: int) -> Iterator[Row]:
    """Yield each price that either has."""

    def rate_set(tier: str | None, above: int | None) -> RateSet | None:
        asked = Selectors(model.provider, ours, at, service_tier=tier, input_tokens=0 if above is None else above + 1)
        found = book.rate_set("cost", asked)
        return found if isinstance(found, RateSet) else None

    for field, theirs in model.prices.items():
        found = rate_set(field.tier, field.above)
        rate = None if found is None else found.rates.get(field.meter)
        price = None if rate is None else _per(rate, field.per)
        since, before = _since(maps, model.key, field)
        verdict: Verdict = "only_theirs" if price is None else "agrees" if price == theirs else "differs"
        yield _row(model, ours, field, price, theirs, verdict, since, before)
    # What only we say is looked for in the card's own rates: tiers and bands are replacements of those.
    base = rate_set(None, None)
    # Flat fields only: a meter that they price above a threshold alone is one that they do not price below it.
    stated = {field.meter for field in model.prices if field.tier is None and field.above is None}
    for meter, rate in (base.rates if base is not None else {}).items():
        if rate.priced_as is None and meter not in stated and meter in _METERS.values():
            field = Field("", meter)
            yield _row(model, ours, field, _per(rate, field.per), None, "only_ours", None, None)


def _per(rate: Rate, per: int) -> Decimal:
    """Return a rate for another number of units, both powers of ten."""
    return EXACT.divide(EXACT.multiply(rate.price, Decimal(per)), Decimal(rate.per)).normalize(EXACT)


def _row(
    model: Model,
    ours: str,
    field: Field,
    price: Decimal | None,
    theirs: Decimal | None,
    verdict: Verdict,
    since: str | None,
    before: Decimal | None,
) -> Row:
    return Row(
        model.provider, ours, model.key, field.name, field.meter, field.tier, field.above, field.per, price, theirs,
        verdict, since, before,
    )  # fmt: skip


def _since(maps: Sequence[Map], key: str, field: Field) -> tuple[str, Decimal | None]:
    """Return the version from which on a price has been what the newest says, and what the one before it said."""
    theirs = maps[-1].models[key].prices[field]
    since = maps[-1].version
    for version in reversed(maps[:-1]):
        model = version.models.get(key)
        earlier = None if model is None else model.prices.get(field)
        if earlier != theirs:
            return since, earlier
        since = version.version
    return since, None


# --- The history ------------------------------------------------------------------------------------------------------


def dated_cards(maps: Iterable[tuple[Map, int]], keys: Iterable[str]) -> tuple[list[Card], list[str]]:
    """Return the prices of some keys as cards of the cost book, one for each version that changed them.

    Shape: maps with the instant from which each version is taken to count, in order. The map has no dates: whoever calls
    this assumes them, and says so. A model that a version drops is withdrawn. Returned beside the cards are the keys and
    versions that the price book refuses, with the reason.
    """
    cards: list[Card] = []
    refused: list[str] = []
    wanted = list(keys)
    standing: dict[str, Card] = {}
    for version, at in maps:
        for key in wanted:
            model = version.models.get(key)
            body = None if model is None else _body(model)
            old = standing.get(key)
            if body is None:
                if old is None or old.is_withdrawal:
                    continue
                made = msgspec.structs.replace(
                    old, effective_at=at, body=Body(), is_withdrawal=True, source_address=_address(version)
                )
            else:
                assert model is not None, "it has a body"
                made = Card(
                    book="cost",
                    provider=model.provider,
                    model=model.name,
                    currency="USD",
                    effective_at=at,
                    source_address=_address(version),
                    checked_on=_day(at),
                    body=body,
                )
                if old is not None and body_to_row(old.body) == body_to_row(body) and not old.is_withdrawal:
                    continue
            try:
                check_card(made)
            except CardRefused as error:
                refused.append(f"{key} in {version.version}: {error.field} {error.rule}")
                continue
            standing[key] = made
            cards.append(made)
    return cards, refused


def _address(version: Map) -> str:
    return f"litellm {version.version}: model_prices_and_context_window.json"


def _day(instant: int) -> date:
    return date.fromordinal(date(1970, 1, 1).toordinal() + instant // 86_400_000_000)


def _body(model: Model) -> Body | None:
    """Return what a key says as a card's body, or None where it states no price above zero."""
    stated = {field: price for field, price in model.prices.items() if price}
    if not stated:
        return None
    rates, bands = _layer(stated, None, {})
    if not rates:
        return None
    variants = []
    for tier in _TIERS.values():
        tier_rates, tier_bands = _layer(stated, tier, rates)
        if tier_rates:
            variants.append(Variant((tier,), (), None, tier_rates, tier_bands))
    return Body(rates, bands, tuple(variants), missing_component="use_side_rate")


def _layer(
    stated: Mapping[Field, Decimal], tier: str | None, base: Mapping[str, Price]
) -> tuple[dict[str, Price], tuple[Band, ...]]:
    """Return the rates of a tier, and a band for each threshold; what a band leaves out keeps the price below it."""
    rates = {
        field.meter: Price(price, field.per)
        for field, price in stated.items()
        if field.tier == tier and field.above is None and (not base or field.meter in base)
    }
    per_token = {meter: price for meter, price in rates.items() if METERS[meter].unit == "token"}
    starts = sorted({field.above for field in stated if field.tier == tier and field.above is not None})
    bands = []
    running = per_token
    for start in starts:
        above = {f.meter: Price(p, f.per) for f, p in stated.items() if f.tier == tier and f.above == start}
        running = {meter: above.get(meter, price) for meter, price in running.items()}
        bands.append(Band(">", start, running))
    return rates, tuple(bands) if rates else ()
