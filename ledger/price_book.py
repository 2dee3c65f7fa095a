"""The price book: which card is in force for a piece of usage, and what it resolves to.

A card is immutable and holds what one source says about one model: rates by meter, long-context bands, and variants by
service tier, region and hour. Resolving it for given selectors gives a rate set: one rate per meter and no rule left,
so that SQL can join lines without knowing any. Pure: nothing here reads a database, a file or the clock.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from itertools import pairwise
from typing import Any, Final, Literal

import msgspec

from ledger.errors import CardRefused
from ledger.exchange import ExchangeRate, ExchangeRates
from ledger.keys import digest_uuid
from ledger.meters import METERS, OPERATIONS, Unit
from ledger.money import EXACT, currency_exponent

Book = Literal["cost", "charge"]
Reason = Literal[
    "unknown_model",
    "no_card",
    "no_card_in_force",
    "no_rate_for_service_tier",
    "no_rate_in_currency",
]

STANDARD_TIERS: Final = frozenset({"", "auto", "default", "on_demand", "standard", "unspecified"})
"""Served tiers that mean a card's own rates. Any other tier needs a variant: its price is not known to be the same."""

# The most that a single unit may cost before a person has to confirm it, in a currency with cents: 1,000 for a million
# tokens or characters, 10 for a call, a search unit, an image or a page, 1 for a second (3,600 an hour). A price per
# thousand that was read as a price per one lands above them.
PRICE_BOUNDS: Final[Mapping[Unit, Decimal]] = {
    "token": Decimal("0.001"),
    "character": Decimal("0.001"),
    "call": Decimal(10),
    "unit": Decimal(10),
    "image": Decimal(10),
    "page": Decimal(10),
    "second": Decimal(1),
}
PLACES_MAX: Final = 20
"""More decimal places than this is no price that anybody quotes."""
MARKUP_MAX: Final = Decimal(10)

_CLOCK: Final = re.compile(r"([01]\d|2[0-3]):([0-5]\d)|24:00", re.ASCII)
_CURRENCY: Final = re.compile(r"[A-Z]{3}", re.ASCII)
_POWERS: Final = frozenset(10**n for n in range(10))
_MINUTE: Final = 60_000_000
_DAY: Final = 24 * 60
_MEMO_MAX: Final = 200_000

# --- Cards -----------------------------------------------------------------------------------------------------------


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What `per` units of a meter cost, in the card's currency; a price of zero has to say that it is free."""

    price: Decimal
    per: int
    is_free: bool = False


class Band(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The rates of all tokens of a request whose whole input is above (`>`) or at and above (`>=`) a threshold."""

    operator: Literal[">", ">="]
    input_tokens: int
    rates: Mapping[str, Price]

    @property
    def starts_at(self) -> int:
        """The smallest input that is in the band."""
        return self.input_tokens + (self.operator == ">")


class Variant(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Rates that replace the card's own, meter by meter, where every condition given holds; an empty one always holds.

    `hours` is (from, until) as HH:MM in UTC, half-open, over midnight where until is not later than from. A variant
    without rates says that a tier costs what the card says anyway.
    """

    service_tiers: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    hours: tuple[str, str] | None = None
    rates: Mapping[str, Price] = {}
    bands: tuple[Band, ...] = ()


class Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a card says. Of several variants that hold, the first that names a meter counts for it."""

    rates: Mapping[str, Price] = {}
    bands: tuple[Band, ...] = ()
    variants: tuple[Variant, ...] = ()
    missing_component: Literal["refuse", "use_input_rate", "use_side_rate"] = "refuse"
    """What a token meter without a rate costs: nothing that we know; for input meters the rate of the nearest meter
    that contains it, in the end the input rate; or that for output meters too."""
    other_tiers: Literal["refuse", "use_base_rates"] = "refuse"
    is_free: bool = False
    """Everything is free of charge; otherwise a zero price is a mistake."""
    markup: Decimal | None = None
    """Charge book only: the charge is the cost times this."""
    billing_rules: Mapping[str, str] = {}
    """See BILLING_RULES."""
    is_high_price_confirmed: bool = False
    replaces: str | None = None
    """Content hash of the card that this one restates: same selectors, same effective_at, known better later."""


BILLING_RULES: Final[Mapping[str, frozenset[str]]] = {
    # Whether a call costs anything that was refused before any output, that the client broke off, or that was made with
    # the tenant's own key; billed where nothing is said. ledger.billing_rules acts on them.
    "refusal_before_output": frozenset({"free", "billed"}),
    "disconnect": frozenset({"free", "billed"}),
    "own_key": frozenset({"free", "billed"}),
    # A price in the card's currency for each logical request, however many attempts it takes.
    "fee_per_operation": frozenset(),
}


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """The prices of one model from `effective_at` until the next card. Instants are UTC microseconds.

    `content_hash` covers what the card says and not where it was read, so that an import can be repeated.
    """

    book: Book
    provider: str
    model: str | None
    """Canonical id; None only in the charge book, for a markup over cost on everything of the provider."""
    currency: str
    effective_at: int
    source_address: str
    checked_on: date
    body: Body = Body()
    recorded_at: int = 0
    provider_account: str | None = None
    deployment: str | None = None
    tenant_id: str | None = None
    """Charge book: whose contract this is; None is the plan."""
    is_withdrawal: bool = False
    content_hash: str = ""

    def __post_init__(self) -> None:
        content = {
            "book": self.book,
            "provider": self.provider,
            "provider_account": self.provider_account,
            "deployment": self.deployment,
            "model": self.model,
            "tenant_id": self.tenant_id,
            "currency": self.currency,
            "effective_at": self.effective_at,
            "is_withdrawal": self.is_withdrawal,
            "body": body_to_row(self.body),
        }
        msgspec.structs.force_setattr(self, "content_hash", digest_uuid(msgspec.json.encode(content, order="sorted")))

    @property
    def slot(self) -> "Slot":
        """What the card is for: within one slot a card counts until the next."""
        return (self.book, self.provider, self.model, self.tenant_id, self.provider_account, self.deployment)

    def __str__(self) -> str:
        whose = f" for {self.tenant_id}" if self.tenant_id else ""
        where = "".join(f"/{part}" for part in (self.provider_account, self.deployment) if part)
        return (
            f"{self.book} {self.provider}{where} {self.model or '(every model)'}{whose} from {_day(self.effective_at)}"
        )


Slot = tuple[Book, str, str | None, str | None, str | None, str | None]


def plain(amount: Decimal) -> str:
    """Return the shortest plain digits of a decimal, so that 2.50 and 2.5 are the same price."""
    return f"{amount.normalize(EXACT):f}" if amount else "0"


def body_to_row(body: Body) -> dict[str, Any]:
    """Return a body as JSON values, prices as text in their shortest digits, defaults left out."""
    row: dict[str, Any] = msgspec.to_builtins(body, builtin_types=(Decimal,))
    return _with_plain_decimals(row)  # type: ignore[no-any-return]


def body_from_row(row: object) -> Body:
    """Read a body from JSON values; raise msgspec.ValidationError naming the field, for what is no body."""
    return msgspec.convert(row, Body)


def _with_plain_decimals(value: Any) -> Any:
    if isinstance(value, Decimal):
        return plain(value)
    if isinstance(value, dict):
        return {key: _with_plain_decimals(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_with_plain_decimals(inner) for inner in value]
    return value


def _day(instant: int) -> str:
    seconds = instant // 1_000_000
    return date.fromordinal(date(1970, 1, 1).toordinal() + seconds // 86_400).isoformat()


# --- What a card must be ---------------------------------------------------------------------------------------------


def check_card(card: Card) -> None:
    """Raise CardRefused, naming card, field and rule, for a card that could misprice."""

    def refuse(name: str, rule: str) -> None:
        raise CardRefused(str(card), name, rule)

    body = card.body
    if not card.provider:
        refuse("provider", "is empty")
    if not _CURRENCY.fullmatch(card.currency):
        refuse("currency", f"is {card.currency!r}; it takes three capital letters of ISO 4217")
    if not card.source_address:
        refuse("source_address", "is empty; a price says where it stands")
    if card.book == "cost" and card.tenant_id is not None:
        refuse("tenant_id", "is set on a cost card; what we owe a provider does not depend on the tenant")
    if card.is_withdrawal:
        if body_to_row(msgspec.structs.replace(body, replaces=None)):
            refuse("body", "is not empty, but the card withdraws")
        return
    if body.markup is not None:
        if card.book == "cost":
            refuse("markup", "is set on a cost card")
        if body.rates or body.bands or body.variants or body.is_free:
            refuse("markup", "stands beside rates; the cost's rates are what it multiplies")
        if not body.markup.is_finite() or not 0 < body.markup <= MARKUP_MAX:
            refuse("markup", f"is {body.markup}; it takes a factor above 0 and at most {MARKUP_MAX}")
        _check_places(refuse, "markup", body.markup)
    elif card.model is None:
        refuse("model", "is empty; only a markup over cost stands for every model of a provider")
    elif body.is_free:
        if body.rates or body.bands or any(variant.rates for variant in body.variants):
            refuse("is_free", "stands beside rates")
    elif not body.rates:
        refuse("rates", "are empty; a card that costs nothing says is_free")
    _check_rates(refuse, card, "rates", body.rates)
    _check_bands(refuse, card, "bands", body.rates, body.bands)
    conditions = set()
    for number, variant in enumerate(body.variants, 1):
        name = f"variants[{number}]"
        condition = (variant.service_tiers, variant.regions, variant.hours)
        if condition == ((), (), None):
            refuse(name, "has no condition")
        if condition in conditions:
            refuse(name, "has the conditions of one before it")
        conditions.add(condition)
        if variant.hours is not None:
            for clock in variant.hours:
                if not _CLOCK.fullmatch(clock):
                    refuse(f"{name}.hours", f"has {clock!r}; it takes HH:MM in UTC")
            if variant.hours[0] == variant.hours[1]:
                refuse(f"{name}.hours", "start where they end")
        _check_rates(refuse, card, f"{name}.rates", variant.rates)
        _check_bands(refuse, card, f"{name}.bands", variant.rates, variant.bands)
    for rule, value in body.billing_rules.items():
        if rule not in BILLING_RULES:
            refuse(f"billing_rules.{rule}", f"is not a rule; the rules are {', '.join(BILLING_RULES)}")
        allowed = BILLING_RULES[rule]
        if allowed and value not in allowed:
            refuse(f"billing_rules.{rule}", f"is {value!r}; it takes one of {', '.join(sorted(allowed))}")
        if not allowed and not re.fullmatch(r"\d{1,9}(\.\d{1,12})?", value, re.ASCII):
            refuse(f"billing_rules.{rule}", f"is {value!r}; it takes a price as digits")
        if not allowed and not Decimal(value):
            refuse(f"billing_rules.{rule}", "is zero; a card without a fee has no such rule")


def _check_places(refuse: Any, name: str, amount: Decimal) -> None:
    exponent = amount.as_tuple().exponent
    if isinstance(exponent, int) and -exponent > PLACES_MAX:
        refuse(name, f"has more than {PLACES_MAX} decimal places")


def _check_rates(refuse: Any, card: Card, name: str, rates: Mapping[str, Price]) -> None:
    scale = Decimal(10) ** (2 - min(currency_exponent(card.currency), 2))
    for meter_name, rate in rates.items():
        here = f"{name}.{meter_name}"
        meter = METERS.get(meter_name)
        if meter is None:
            refuse(here, "is not a meter")
            return
        if rate.per not in _POWERS:
            refuse(here, f"is per {rate.per}; it takes a power of ten up to 1,000,000,000, so that amounts are exact")
        if not rate.price.is_finite() or rate.price < 0:
            refuse(here, f"is {rate.price}; a price is a number that is not negative")
        if not rate.price and not rate.is_free:
            refuse(here, "is zero; what is free says so")
        if rate.price and rate.is_free:
            refuse(here, f"is {rate.price} and free")
        _check_places(refuse, here, rate.price)
        bound = PRICE_BOUNDS[meter.unit] * scale
        if rate.price / rate.per > bound and not card.body.is_high_price_confirmed:
            shown = f"{plain(rate.price)} {card.currency} per {rate.per:,}"
            most = f"{plain(bound * rate.per)} {card.currency}"
            refuse(here, f"is {shown}; above {most} the card must say is_high_price_confirmed")


def _check_bands(refuse: Any, card: Card, name: str, rates: Mapping[str, Price], bands: tuple[Band, ...]) -> None:
    tokens = {meter for meter in rates if METERS[meter].unit == "token"}
    starts = 0
    for number, band in enumerate(bands, 1):
        here = f"{name}[{number}]"
        if band.input_tokens < 1:
            refuse(here, f"starts at {band.input_tokens} tokens")
        if band.starts_at <= starts:
            refuse(here, "is out of order; bands stand in the order of their thresholds, each once")
        starts = band.starts_at
        # A band is a cliff under the whole request: a token meter that it left out would stay at the lower rate.
        for meter in sorted(tokens - band.rates.keys()):
            refuse(f"{here}.rates", f"have no {meter}, which has a rate below the threshold")
        for meter in sorted(band.rates.keys() - rates.keys()):
            refuse(f"{here}.rates", f"have {meter}, which has no rate below the threshold")
        _check_rates(refuse, card, f"{here}.rates", band.rates)


# --- Rate sets -------------------------------------------------------------------------------------------------------


class Selectors(msgspec.Struct, frozen=True):
    """What chooses a price. `occurred_at` is UTC microseconds; `input_tokens` is the whole input of the request."""

    provider: str | None
    model: str | None
    """Canonical id, or None where the reported name is nobody's."""
    occurred_at: int
    tenant_id: str | None = None
    currency: str | None = None
    """Charge book: the currency that the tenant is charged in. The cost book has the card's."""
    provider_account: str | None = None
    deployment: str | None = None
    service_tier: str | None = None
    region: str | None = None
    input_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Rate:
    """The price of `per` units of a meter, never rounded; `priced_as` is the meter whose rate was taken for it."""

    meter: str
    price: Decimal
    per: int
    priced_as: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class RateSet:
    """What a card resolves to: one rate per meter that it prices. The same content is the same object within a book."""

    content_hash: str
    book: Book
    currency: str
    card_hash: str
    selectors: Mapping[str, str]
    """What chose it inside the card: service tier, region, hours, band; for a markup also the cost set's hash, for what
    was converted the exchange rate's."""
    is_free: bool
    rates: Mapping[str, Rate]
    billing_rules: Mapping[str, str] = field(default_factory=dict)
    scaled_prices: dict[str, int] = field(default_factory=dict, repr=False)
    """Price of one unit by meter, as a whole number of `unit`: the exact sum needs integers only."""
    unit: Decimal = field(default=Decimal(1), repr=False)
    """A power of ten that every price of one unit is a multiple of."""


def make_rate_set(
    book: Book,
    currency: str,
    card_hash: str,
    selectors: Mapping[str, str],
    rates: Mapping[str, Rate],
    billing_rules: Mapping[str, str] | None = None,
) -> RateSet:
    """Return a rate set with its content hash and its integer prices; rates in meter order."""
    ordered = {name: rates[name] for name in (*METERS, OPERATIONS) if name in rates}
    is_free = all(not rate.price for rate in ordered.values())
    content = {
        "book": book,
        "currency": currency,
        "card": card_hash,
        "selectors": selectors,
        "is_free": is_free,
        "rates": {rate.meter: [plain(rate.price), rate.per, rate.priced_as] for rate in ordered.values()},
    }
    single = {name: EXACT.divide(rate.price, Decimal(rate.per)) for name, rate in ordered.items()}
    places = max((-_exponent(price) for price in single.values() if price), default=0)
    scale = max(places, 0)
    return RateSet(
        content_hash=digest_uuid(msgspec.json.encode(content, order="sorted")),
        book=book,
        currency=currency,
        card_hash=card_hash,
        selectors=dict(selectors),
        is_free=is_free,
        rates=ordered,
        billing_rules=dict(billing_rules or {}),
        scaled_prices={name: int(EXACT.scaleb(price, scale)) for name, price in single.items()},
        unit=Decimal((0, (1,), -scale)),
    )


def _exponent(price: Decimal) -> int:
    exponent = price.normalize(EXACT).as_tuple().exponent
    assert isinstance(exponent, int), "checked cards hold finite prices"
    return exponent


class Unpriced(msgspec.Struct, frozen=True):
    """No price is known, which is not the same as free; the usage is booked without an amount, and shown."""

    reason: Reason
    detail: str


# --- Resolving a card ------------------------------------------------------------------------------------------------


def _containing(meter: str) -> tuple[tuple[str, ...], ...]:
    """Return the meters that contain one, nearest first; two in one step contain it both, and neither more nearly."""
    side = METERS[meter].side
    if METERS[meter].unit != "token" or side is None:
        return ()
    if side == "output":
        return (("visible_output_tokens",),)
    last = ("uncached_input_tokens",)
    if meter == "cache_write_1h_tokens":
        return (("cache_write_other_tokens",), ("cache_write_5m_tokens",), last)
    if meter == "cache_write_5m_tokens":
        return (("cache_write_other_tokens",), last)
    if meter.startswith("cache_read_") and meter != "cache_read_tokens":
        return (("cache_read_tokens", f"uncached_input_{meter.removeprefix('cache_read_')}"), last)
    return (last,)


_CONTAINING: Final = {name: _containing(name) for name in METERS}


def _fallback(meter: str, named: Mapping[str, Price], policy: str) -> str | None:
    """Return whose rate a meter without one takes, or None where nobody knows."""
    billed_as = METERS[meter].priced_as
    if billed_as is not None and billed_as in named:
        return billed_as
    if policy == "use_side_rate" or (policy == "use_input_rate" and METERS[meter].side == "input"):
        for step in _CONTAINING[meter]:
            found = [name for name in step if name in named]
            if len(found) > 1:
                return None
            if found:
                return found[0]
    if billed_as is not None:
        return _fallback(billed_as, named, policy)
    return None


def _minute_of(clock: str) -> int:
    hours, minutes = clock.split(":")
    return int(hours) * 60 + int(minutes)


def _covers(hours: tuple[str, str], minute: int) -> bool:
    starts, ends = _minute_of(hours[0]), _minute_of(hours[1])
    if starts < ends:
        return starts <= minute < ends
    return minute >= starts or minute < ends


def _candidates(body: Body, tier: str | None, region: str | None) -> tuple[Variant, ...] | None:
    """Return the variants that a tier and a region leave, in order; None where the tier has no price."""
    is_known = (
        (tier or "") in STANDARD_TIERS
        or body.other_tiers == "use_base_rates"
        or body.is_free
        or any(tier in variant.service_tiers for variant in body.variants)
    )
    if not is_known:
        return None
    return tuple(
        variant
        for variant in body.variants
        if (not variant.service_tiers or tier in variant.service_tiers)
        and (not variant.regions or region in variant.regions)
    )


def _resolve(card: Card, variants: tuple[Variant, ...], minute: int, input_tokens: int) -> RateSet:
    """Resolve a card for an hour and a length: one rate per meter, fallbacks included."""
    body = card.body
    chosen: dict[str, str] = {}
    if body.is_free:
        zero = {name: Rate(name, Decimal(0), 1) for name in METERS}
        return make_rate_set(card.book, card.currency, card.content_hash, chosen, zero, body.billing_rules)
    layers: list[Variant | Body] = [v for v in variants if v.hours is None or _covers(v.hours, minute)]
    layers.append(body)
    named: dict[str, Price] = {}
    for layer in layers:
        band = next((band for band in reversed(layer.bands) if input_tokens >= band.starts_at), None)
        fresh = {
            name: (band.rates.get(name, price) if band else price)
            for name, price in layer.rates.items()
            if name not in named
        }
        named.update(fresh)
        if fresh and band:
            chosen.setdefault("band", f"{band.operator}{band.input_tokens}")
        if fresh and isinstance(layer, Variant):
            if layer.service_tiers:
                chosen.setdefault("service_tier", "|".join(layer.service_tiers))
            if layer.regions:
                chosen.setdefault("region", "|".join(layer.regions))
            if layer.hours:
                chosen.setdefault("hours", "-".join(layer.hours))
    rates = {name: Rate(name, price.price, price.per) for name, price in named.items()}
    for name in METERS:
        if name not in named:
            taken = _fallback(name, named, body.missing_component)
            if taken is not None:
                rates[name] = Rate(name, named[taken].price, named[taken].per, taken)
    return make_rate_set(card.book, card.currency, card.content_hash, chosen, rates, body.billing_rules)


def _marked_up(card: Card, cost: RateSet, exchange: ExchangeRate | None) -> RateSet:
    """Multiply a cost set's exact prices, and convert them where the tenant is charged in another currency.

    What was free stays free. The cost's billing rules hold for the charge too, unless the markup's card has its own.
    """
    markup = card.body.markup
    assert markup is not None, "only cards with a markup come here"
    selectors = {**cost.selectors, "markup": plain(markup), "cost": cost.content_hash}
    rules = {**_times(cost.billing_rules, markup), **card.body.billing_rules}
    made = make_rate_set(
        card.book, cost.currency, card.content_hash, selectors, _times_rates(cost.rates, markup), rules
    )
    return made if exchange is None else _converted(made, exchange)


def _converted(rate_set: RateSet, exchange: ExchangeRate) -> RateSet:
    """Return a set in another currency: each price times the rate, exactly, with the rate named in the selectors."""
    selectors = {**rate_set.selectors, "converted": str(exchange), "exchange_rate": exchange.content_hash}
    return make_rate_set(
        rate_set.book,
        exchange.to_currency,
        rate_set.card_hash,
        selectors,
        _times_rates(rate_set.rates, exchange.rate),
        _times(rate_set.billing_rules, exchange.rate),
    )


def _times_rates(rates: Mapping[str, Rate], factor: Decimal) -> dict[str, Rate]:
    return {
        name: Rate(name, EXACT.multiply(rate.price, factor), rate.per, rate.priced_as) for name, rate in rates.items()
    }


def _times(rules: Mapping[str, str], factor: Decimal) -> dict[str, str]:
    """Return billing rules with their fee multiplied."""
    fee = rules.get("fee_per_operation")
    if fee is None:
        return dict(rules)
    return {**rules, "fee_per_operation": plain(EXACT.multiply(Decimal(fee), factor))}


# --- The book --------------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Piece:
    """A stretch of time in which one card counts; its cells differ by hour and by length of the input."""

    only: RateSet | Unpriced | None
    """The answer where neither hour nor length matters."""
    card: Card | None = None
    variants: tuple[Variant, ...] = ()
    cost: "_Piece | None" = None
    """What a markup multiplies."""
    exchange: ExchangeRate | None = None
    """What turns the result into the tenant's currency, where it is in another one."""
    edges: tuple[int, ...] = ()
    """Minutes of the day at which a variant starts or ends, ascending."""
    thresholds: tuple[int, ...] = ()
    """Inputs at which a band starts, ascending."""
    cells: dict[tuple[int, int], RateSet | Unpriced] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Timeline:
    """All pieces for one set of selectors; piece n + 1 counts from starts[n] on."""

    starts: list[int]
    pieces: list[_Piece]


class PriceBook:
    """All cards as of one version of `ledger.versions.prices`; answers are kept, so that asking again costs a look-up.

    Raises CardRefused while it is built if a card misprices or two cards claim the same selectors and instant.
    `known_at` leaves out what was recorded later: the book as it was known then.
    """

    def __init__(
        self,
        version: int,
        cards: Iterable[Card],
        known_at: int | None = None,
        exchange_rates: Iterable[ExchangeRate] = (),
    ) -> None:
        self.version = version
        self.exchange_rates = ExchangeRates(exchange_rates, known_at)
        self.cards: Mapping[str, Card] = {
            card.content_hash: card for card in cards if known_at is None or card.recorded_at <= known_at
        }
        self._chains = _chains(self.cards)
        self._own_tenants = frozenset(slot[3] for slot in self._chains if slot[3] is not None)
        self._timelines: dict[tuple[str | None, ...], _Timeline] = {}
        self._by_selectors: dict[tuple[str | None, ...], tuple[_Timeline, _Timeline]] = {}
        self._rate_sets: dict[str, RateSet] = {}
        self._derived: dict[tuple[str, str], RateSet] = {}
        self.has_fees = any("fee_per_operation" in card.body.billing_rules for card in self.cards.values())
        """Whether any card has a fee: most books have none, and need not be asked for each call."""

    def rate_set(self, book: Book, selectors: Selectors) -> RateSet | Unpriced:
        """Return what prices usage in a book: the rates of the card in force at its time, or why there are none."""
        return self.rate_sets(selectors)[book == "charge"]

    def rate_sets(self, selectors: Selectors) -> tuple[RateSet | Unpriced, RateSet | Unpriced]:
        """Return what prices usage in the cost and in the charge book."""
        key = (
            selectors.provider,
            selectors.model,
            selectors.tenant_id,
            selectors.currency,
            selectors.provider_account,
            selectors.deployment,
            selectors.service_tier,
            selectors.region,
        )
        timelines = self._by_selectors.get(key)
        if timelines is None:
            # Selectors come from outside: names that nobody will send twice must not fill the memory.
            if len(self._by_selectors) >= _MEMO_MAX:
                self._by_selectors.clear()
            timelines = self._timeline("cost", selectors), self._timeline("charge", selectors)
            self._by_selectors[key] = timelines
        at = selectors.occurred_at
        cost, charge = timelines
        cost_piece = cost.pieces[bisect_right(cost.starts, at)]
        charge_piece = charge.pieces[bisect_right(charge.starts, at)]
        minute = at // _MINUTE % _DAY
        return (
            cost_piece.only or self._cell(cost_piece, minute, selectors.input_tokens),
            charge_piece.only or self._cell(charge_piece, minute, selectors.input_tokens),
        )

    def freed(self, rate_set: RateSet, rule: str) -> RateSet:
        """Return the set of a call that costs nothing by a billing rule of the card: every meter at zero."""
        key = (rate_set.card_hash + rate_set.currency, rule)
        found = self._derived.get(key)
        if found is None:
            zero = {name: Rate(name, Decimal(0), 1) for name in METERS}
            selectors = {"billing_rule": rule}
            found = make_rate_set(rate_set.book, rate_set.currency, rate_set.card_hash, selectors, zero)
            self._derived[key] = found
        return found

    def fee(self, rate_set: RateSet) -> RateSet | None:
        """Return the set that prices an operation's fee, where the card of a call has one."""
        amount = rate_set.billing_rules.get("fee_per_operation")
        if amount is None:
            return None
        key = (rate_set.card_hash + rate_set.currency, f"fee {amount}")
        found = self._derived.get(key)
        if found is None:
            named = ("markup", "converted", "exchange_rate")
            selectors = {name: rate_set.selectors[name] for name in named if name in rate_set.selectors}
            selectors["billing_rule"] = "fee_per_operation"
            rates = {OPERATIONS: Rate(OPERATIONS, Decimal(amount), 1)}
            found = make_rate_set(rate_set.book, rate_set.currency, rate_set.card_hash, selectors, rates)
            found = self._derived[key] = self._rate_sets.setdefault(found.content_hash, found)
        return found

    def slots(self) -> tuple[Slot, ...]:
        """Return everything that has a card."""
        return tuple(self._chains)

    def history(self, slot: Slot, currency: str = "") -> tuple[Card, ...]:
        """Return the cards of a slot in order of time, without those that were replaced; the charge book has a currency."""
        return tuple(self._chains.get(slot, {}).get(currency, ()))

    def _timeline(self, book: Book, asked: Selectors) -> _Timeline:
        tenant_id = asked.tenant_id if book == "charge" and asked.tenant_id in self._own_tenants else None
        currency = asked.currency if book == "charge" else None
        key = (
            book,
            asked.provider,
            asked.model,
            tenant_id,
            currency,
            asked.provider_account,
            asked.deployment,
            asked.service_tier,
            asked.region,
        )
        timeline = self._timelines.get(key)
        if timeline is None:
            if len(self._timelines) >= _MEMO_MAX:
                self._timelines.clear()
            timeline = self._timelines[key] = self._build(book, asked, tenant_id, currency)
        return timeline

    def _build(self, book: Book, asked: Selectors, tenant_id: str | None, currency: str | None) -> _Timeline:
        if asked.provider is None or asked.model is None:
            unknown = Unpriced("unknown_model", "the reported name is not the exact id or alias of a model")
            return _Timeline([], [_Piece(unknown)])
        levels = [self._chains[slot] for slot in _slots(book, asked, tenant_id) if slot in self._chains]
        named = f"{asked.provider} {asked.model}"
        if not levels:
            return _Timeline([], [_Piece(Unpriced("no_card", f"the {book} book has no card for {named}"))])
        cost: _Timeline | None = None
        starts = {card.effective_at for level in levels for chain in level.values() for card in chain}
        if any(card.body.markup is not None for level in levels for chain in level.values() for card in chain):
            cost = self._timeline("cost", asked)
            starts.update(cost.starts)
        if currency is not None:
            for other in {
                card.currency for level in levels for chain in level.values() for card in chain
            } | _currencies(cost):
                starts.update(self.exchange_rates.changes(other, currency))
        ordered = sorted(starts)
        not_yet = Unpriced("no_card_in_force", f"the {book} book has no card for {named} at that time")
        timeline = _Timeline(ordered, [_Piece(not_yet)])
        for start in ordered:
            card = _in_force(levels, start, currency)
            if card is None:
                piece = _Piece(not_yet)
            elif isinstance(card, Unpriced):
                piece = _Piece(card)
            elif card.body.markup is None:
                piece = self._piece(card, asked, start, currency)
            else:
                assert cost is not None, "built above where any card has a markup"
                piece = self._piece_over_cost(card, cost.pieces[bisect_right(cost.starts, start)], start, currency)
            timeline.pieces.append(piece)
        return timeline

    def _exchange(self, what: str, has: str, currency: str | None, start: int) -> ExchangeRate | Unpriced | None:
        """Return the rate that turns a price into the tenant's currency, or None where it is in it already."""
        if currency is None or has == currency:
            return None
        found = self.exchange_rates.in_force(has, currency, start)
        if found is None:
            detail = f"{what} is in {has}, the tenant is charged in {currency}, and no exchange rate is in force"
            return Unpriced("no_rate_in_currency", detail)
        return found

    def _piece(self, card: Card, asked: Selectors, start: int, currency: str | None) -> _Piece:
        variants = _candidates(card.body, asked.service_tier, asked.region)
        if variants is None:
            detail = f"card {card} has no rates for service tier {asked.service_tier!r}"
            return _Piece(Unpriced("no_rate_for_service_tier", detail))
        edges = {_minute_of(clock) % _DAY for variant in variants if variant.hours for clock in variant.hours}
        layers: tuple[Body | Variant, ...] = (card.body, *variants)
        thresholds = {band.starts_at for layer in layers for band in layer.bands}
        exchange = self._exchange(f"card {card}", card.currency, currency, start)
        if isinstance(exchange, Unpriced):
            return _Piece(exchange)
        piece = _Piece(None, card, variants, None, exchange, tuple(sorted(edges)), tuple(sorted(thresholds)))
        if not edges and not thresholds:
            piece.only = self._cell(piece, 0, 0)
        return piece

    def _piece_over_cost(self, card: Card, cost: _Piece, start: int, currency: str | None) -> _Piece:
        if isinstance(cost.only, Unpriced):
            return _Piece(cost.only)
        of = cost.only or cost.card
        assert of is not None, "a piece has an answer or a card"
        # A factor has no currency: what is converted is the cost, from its own straight into the tenant's.
        exchange = self._exchange(f"the cost under card {card}", of.currency, currency, start)
        if isinstance(exchange, Unpriced):
            return _Piece(exchange)
        piece = _Piece(None, card, (), cost, exchange, cost.edges, cost.thresholds)
        if not cost.edges and not cost.thresholds:
            piece.only = self._cell(piece, 0, 0)
        return piece

    def _cell(self, piece: _Piece, minute: int, input_tokens: int) -> RateSet | Unpriced:
        place = (bisect_right(piece.edges, minute), bisect_right(piece.thresholds, input_tokens))
        found = piece.cells.get(place)
        if found is not None:
            return found
        assert piece.card is not None, "a piece without a card has its answer in `only`"
        made: RateSet | Unpriced
        if piece.cost is None:
            made = _resolve(piece.card, piece.variants, minute, input_tokens)
            if piece.exchange is not None:
                made = _converted(made, piece.exchange)
        else:
            cost = piece.cost.only or self._cell(piece.cost, minute, input_tokens)
            made = cost if isinstance(cost, Unpriced) else _marked_up(piece.card, cost, piece.exchange)
        if isinstance(made, RateSet):
            made = self._rate_sets.setdefault(made.content_hash, made)
        piece.cells[place] = made
        return made


Chains = dict[Slot, dict[str, list[Card]]]
"""By slot, then by currency in the charge book (the cost book has one chain, under ""): cards in order of time."""


def _chains(cards: Mapping[str, Card]) -> Chains:
    """Order the cards of each slot; raise CardRefused where two claim the same instant."""
    replaced: dict[str, Card] = {}
    for card in cards.values():
        check_card(card)
        old_hash = card.body.replaces
        if old_hash is None:
            continue
        old = cards.get(old_hash)
        if old is None:
            raise CardRefused(str(card), "replaces", f"names {old_hash}, which is no card")
        if old.slot != card.slot or old.effective_at != card.effective_at:
            raise CardRefused(str(card), "replaces", f"names a card for other selectors or another instant: {old}")
        if old_hash in replaced:
            raise CardRefused(str(card), "replaces", f"names {old_hash}, which another card replaces already")
        replaced[old_hash] = card
    chains: Chains = {}
    for card in cards.values():
        if card.content_hash not in replaced:
            currency = card.currency if card.book == "charge" else ""
            chains.setdefault(card.slot, {}).setdefault(currency, []).append(card)
    for slot in chains.values():
        for chain in slot.values():
            chain.sort(key=lambda card: card.effective_at)
            for before, after in pairwise(chain):
                if before.effective_at == after.effective_at:
                    rule = (
                        "is that of another card for the same selectors; a correction names the card that it replaces"
                    )
                    raise CardRefused(str(after), "effective_at", rule)
    return chains


def _slots(book: Book, asked: Selectors, tenant_id: str | None) -> Iterator[Slot]:
    """List the slots that could price usage, the most specific first.

    Charge: the tenant's card for the model, its markup, the plan's card, the plan's markup.
    """
    assert asked.provider is not None, "asked for a known model"
    accounts = (asked.provider_account, None) if asked.provider_account is not None else (None,)
    deployments = (asked.deployment, None) if asked.deployment is not None else (None,)
    tenants = (tenant_id, None) if tenant_id is not None else (None,)
    models = (asked.model, None) if book == "charge" else (asked.model,)
    for tenant in tenants:
        for model in models:
            for account in accounts:
                for deployment in deployments:
                    yield (book, asked.provider, model, tenant, account, deployment)


def _currencies(cost: _Timeline | None) -> set[str]:
    """Return the currencies that a cost is in, over time."""
    return set() if cost is None else {piece.card.currency for piece in cost.pieces if piece.card is not None}


def _in_force(levels: list[dict[str, list[Card]]], instant: int, currency: str | None) -> Card | Unpriced | None:
    """Return the card that counts at an instant; the exact instant of a change belongs to the new card.

    The first slot that has any card in force decides, whatever its currency: a contract in another currency is converted,
    and must not let the plan's price through. A card in the tenant's own currency comes before one that needs converting.
    """
    for level in levels:
        standing = {}
        for chain_currency, chain in level.items():
            place = bisect_right(chain, instant, key=lambda card: card.effective_at)
            if place and not chain[place - 1].is_withdrawal:
                standing[chain_currency] = chain[place - 1]
        if not standing:
            continue
        card = standing.get("") or standing.get(currency or "")
        if card is not None:
            return card
        others = sorted(standing.values(), key=lambda card: card.currency)
        if currency is None or len(others) > 1:
            # Which of several prices to convert is for a person to say, by a card in the tenant's currency.
            listed = ", ".join(card.currency for card in others)
            detail = f"card {others[0]} is in {listed}, the tenant is charged in {currency}"
            return Unpriced("no_rate_in_currency", detail)
        return others[0]
    return None
