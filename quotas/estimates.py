"""What an ask would come to: a call that has not happened yet, priced from the book before any lock is taken. Pure.

`worst_case` is the counted input at the dearest rate that its tokens could meet, and the output cap at the dearest output
rate, over every service tier that the provider may serve the call in and the prices in force from now until the hold
would expire. `expected` is what the caller expects: input and output at the asked tier's plain rates.
"""

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final, Literal, Protocol

import msgspec

from ledger.books import Books
from ledger.meters import INPUT_TOKEN_METERS, Quantities, input_tokens, output_tokens
from ledger.money import EXACT
from ledger.parties import Model, Tenant
from ledger.price_book import STANDARD_TIERS, PriceBook, RateSet, Selectors, Unpriced
from ledger.pricing import amount_of

Basis = Literal["worst_case", "expected"]

CACHE_READ_METERS: Final = frozenset(meter for meter in INPUT_TOKEN_METERS if meter.startswith("cache_read_"))
_TEXT_INPUT: Final = (
    "uncached_input_tokens",
    "cache_read_tokens",
    "cache_write_5m_tokens",
    "cache_write_1h_tokens",
    "cache_write_other_tokens",
)
_TEXT_OUTPUT: Final = ("visible_output_tokens", "reasoning_tokens")
_ZERO: Final = Decimal(0)

Sets = tuple[RateSet | Unpriced, ...]


class Estimate(msgspec.Struct, frozen=True, gc=False):
    """What a call is expected to take of each unit; None is unknown, which is not zero."""

    charge: Decimal | None
    charge_currency: str | None
    cost: Decimal | None
    cost_currency: str | None
    input_tokens: int | None
    output_tokens: int | None
    cache_read_tokens: int | None
    is_given: bool = True
    """Whether the caller gave anything to estimate from: without it, what is unknown is an estimate, and not a price."""


class Call(Protocol):
    """What an ask says of its call: what chooses the price, and how much of what."""

    @property
    def basis(self) -> Basis: ...
    @property
    def provider(self) -> str | None: ...
    @property
    def provider_account(self) -> str | None: ...
    @property
    def deployment(self) -> str | None: ...
    @property
    def model(self) -> str | None: ...
    @property
    def service_tier(self) -> str | None: ...
    @property
    def region(self) -> str | None: ...
    @property
    def input_tokens(self) -> int | None: ...
    @property
    def output_tokens(self) -> int | None: ...
    @property
    def quantities(self) -> Quantities | None: ...
    @property
    def charge(self) -> Decimal | None: ...
    @property
    def cost(self) -> Decimal | None: ...
    @property
    def cost_currency(self) -> str | None: ...


Rates = tuple[tuple[int, int, Decimal, Decimal], ...]
"""By rate set: the prices of a token in and of one out, the unit that both are in, and the fee of a request."""


class Reach(msgspec.Struct, frozen=True, gc=False):
    """What could price calls that differ in nothing but their counts and stated amounts, from now on until a time."""

    model: Model | None
    currency: str
    sets: tuple[Sets, Sets] | None
    """Of the cost and the charge book; None where the count of input chooses them too."""
    rates: tuple[Rates | None, Rates | None] = (None, None)
    """What those come to for counts of input and output; None where more has to be looked at than the counts."""

    cost_currency: str | None = None
    """What the cost of counts is in, where there is a price for it."""


def reach(books: Books, tenant: Tenant, call: Call, now: int, until: int) -> Reach:
    """Find what could price calls like this one, so that many of them need not be looked up one by one."""
    currency = tenant.at(now).charge_currency
    model = books.parties.model(call.provider, call.model)
    asked = _selectors(tenant, call, currency, model, now, 0)
    prices = books.prices
    then = prices.rate_sets(msgspec.structs.replace(asked, occurred_at=until))
    if any(_has_bands(prices, each) for each in (*prices.rate_sets(asked), *then)):
        return Reach(model, currency, None)
    cost, charge = sets = _reachable(prices, asked, call.basis, until)
    rates = _rates(books, cost, tenant, call), _rates(books, charge, tenant, call)
    return Reach(model, currency, sets, rates, None if isinstance(cost[0], Unpriced) else cost[0].currency)


def _rates(books: Books, sets: Sets, tenant: Tenant, call: Call) -> Rates | None:
    """Return what `_amount` would make of any counts, or None where that takes more than two prices and a fee."""
    found = []
    for rate_set in sets:
        if isinstance(rate_set, Unpriced) or _is_own(books, rate_set, tenant, call):
            return None
        into, out = _dearest(rate_set) if call.basis == "worst_case" else _plain(rate_set)
        if into is None or out is None:
            return None
        found.append((into, out, rate_set.unit, _fee(books, rate_set)))
    return tuple(found)


def estimate(books: Books, tenant: Tenant, call: Call, now: int, until: int, reached: Reach | None = None) -> Estimate:
    """Estimate a call that begins now and ends before `until`; both are UTC microseconds.

    Amounts that the caller states count as they are. Otherwise quantities are priced meter by meter, and counts of input
    and output by their basis; a count that is missing leaves amounts unknown, but for the output of a model with a limit.
    `reached` is what `reach` found for a call like this one.
    """
    if reached is None:
        reached = reach(books, tenant, call, now, until)
    currency, model = reached.currency, reached.model
    into: int | None
    out: int | None
    if call.quantities is not None:
        into, out = input_tokens(call.quantities), output_tokens(call.quantities)
        reads = sum(count for meter, count in call.quantities.items() if meter in CACHE_READ_METERS)
    else:
        into, reads = call.input_tokens, 0
        out = call.output_tokens
        if out is None and into is not None and model is not None and call.basis == "worst_case":
            out = model.output_tokens_max
    charge, charge_currency = call.charge, currency
    cost, cost_currency = call.cost, call.cost_currency
    if into is not None and out is not None and (charge is None or cost is None):
        cost_sets, charge_sets = reached.sets or _reachable(
            books.prices, _selectors(tenant, call, currency, model, now, into), call.basis, until
        )
        cost_rates, charge_rates = reached.rates if call.quantities is None else (None, None)
        if charge is None:
            if charge_rates is not None:
                charge = largest_amount(charge_rates, into, out)
            else:
                charge, _ = _amount(books, charge_sets, tenant, call, into, out)
        if cost is None:
            if cost_rates is not None:
                first = cost_sets[0]
                assert isinstance(first, RateSet), "what has rates has a price"
                cost, cost_currency = largest_amount(cost_rates, into, out), first.currency
            else:
                cost, cost_currency = _amount(books, cost_sets, tenant, call, into, out)
    return Estimate(
        charge,
        charge_currency,
        cost,
        cost_currency,
        into,
        out,
        None if into is None else reads,
        (into is not None and out is not None) or call.charge is not None or call.cost is not None,
    )


def _selectors(tenant: Tenant, call: Call, currency: str, model: Model | None, now: int, into: int) -> Selectors:
    return Selectors(
        tenant_id=tenant.tenant_id,
        currency=currency,
        provider=call.provider,
        provider_account=call.provider_account,
        deployment=call.deployment,
        model=None if model is None else model.model,
        service_tier=call.service_tier,
        region=call.region,
        occurred_at=now,
        input_tokens=into,
    )


def _amount(
    books: Books, sets: Sequence[RateSet | Unpriced], tenant: Tenant, call: Call, into: int, out: int
) -> tuple[Decimal | None, str | None]:
    """Return the largest amount over everything that the call could be priced by, or None where a price is missing."""
    found: Decimal | None = None
    currency: str | None = None
    for rate_set in sets:
        amount = None if isinstance(rate_set, Unpriced) else _amount_of(books, rate_set, tenant, call, into, out)
        if amount is None or isinstance(rate_set, Unpriced):
            return None, None
        if found is None or amount > found:
            found = amount
        currency = rate_set.currency
    return found, currency


def largest_amount(rates: Rates, into: int, out: int) -> Decimal:
    """Return the largest amount that counts come to."""
    price_in, price_out, unit, fee = rates[0]
    found = EXACT.multiply(Decimal(into * price_in + out * price_out), unit)
    if fee:
        found = EXACT.add(found, fee)
    if len(rates) > 1:
        found = max(found, largest_amount(rates[1:], into, out))
    return found


def _is_own(books: Books, rate_set: RateSet, tenant: Tenant, call: Call) -> bool:
    return rate_set.billing_rules.get("own_key") == "free" and (
        books.parties.own_accounts.get(call.provider_account or "") == tenant.tenant_id
    )


def _fee(books: Books, rate_set: RateSet) -> Decimal:
    """Return what a request costs beside its tokens."""
    fee = books.prices.fee(rate_set) if books.prices.has_fees else None
    if fee is None:
        return _ZERO
    (rate,) = fee.rates.values()
    return rate.price


def _amount_of(books: Books, rate_set: RateSet, tenant: Tenant, call: Call, into: int, out: int) -> Decimal | None:
    if _is_own(books, rate_set, tenant, call):
        amount: Decimal | None = _ZERO
    elif call.quantities is not None:
        amount = amount_of(call.quantities, rate_set)
    else:
        rates = _dearest(rate_set) if call.basis == "worst_case" else _plain(rate_set)
        if (into and rates[0] is None) or (out and rates[1] is None):
            return None
        amount = EXACT.multiply(Decimal(into * (rates[0] or 0) + out * (rates[1] or 0)), rate_set.unit)
    fee = _fee(books, rate_set)
    return EXACT.add(amount, fee) if fee and amount is not None else amount


_SETS_MAX: Final = 10_000
_sets: Final[dict[tuple[Any, ...], tuple[Sets, Sets]]] = {}
_is_banded: Final[dict[str, bool]] = {}


def _reachable(prices: PriceBook, asked: Selectors, basis: Basis, until: int) -> tuple[Sets, Sets]:
    """Return what could price the call in the cost and in the charge book: as asked, later, and in the tiers it may be served in.

    A provider may serve a call that names no tier, or `auto`, in any that the card knows (OpenAI and Groq: the served tier may
    differ from the requested), and one that names a tier in that or in the standard one.
    """
    now = prices.rate_sets(asked)
    if basis == "expected":
        return now[:1], now[1:]
    then = prices.rate_sets(msgspec.structs.replace(asked, occurred_at=until))
    banded = asked.input_tokens if any(_has_bands(prices, each) for each in now) else 0
    # A set is of one card, tier, band and hour: where those of now and then are the same, so are all others.
    key = (*now, *then, asked.service_tier, asked.region, banded)
    found = _sets.get(key)
    if found is None:
        if len(_sets) >= _SETS_MAX:
            _sets.clear()
        others = list(_others(prices, now, asked, until))
        cost, charge = ([now[book], then[book], *(other[book] for other in others)] for book in (0, 1))
        found = _sets[key] = _distinct(cost), _distinct(charge)
    return found


def _others(
    prices: PriceBook, now: Sequence[RateSet | Unpriced], asked: Selectors, until: int
) -> Iterator[Sequence[RateSet | Unpriced]]:
    """Yield the sets of other tiers, now and later."""
    tiers: set[str | None] = set()
    if (asked.service_tier or "") in STANDARD_TIERS:
        for rate_set in now:
            if isinstance(rate_set, RateSet):
                for variant in prices.cards[rate_set.card_hash].body.variants:
                    tiers.update(variant.service_tiers)
    else:
        tiers.add(None)
    for tier in sorted(tiers, key=str):
        for at in (asked.occurred_at, until):
            yield prices.rate_sets(msgspec.structs.replace(asked, service_tier=tier, occurred_at=at))


def _distinct(sets: Sequence[RateSet | Unpriced]) -> Sets:
    """Return sets without those that the call could not be billed by: another tier that has no price, or none in its currency."""
    first = sets[0]
    if isinstance(first, Unpriced):
        return (first,)
    found: list[RateSet | Unpriced] = [first]
    for each in sets[1:]:
        if isinstance(each, RateSet) and each.currency == first.currency and each not in found:
            found.append(each)
    return tuple(found)


def _has_bands(prices: PriceBook, rate_set: RateSet | Unpriced) -> bool:
    if isinstance(rate_set, Unpriced):
        return False
    found = _is_banded.get(rate_set.card_hash)
    if found is None:
        body = prices.cards[rate_set.card_hash].body
        # What a markup multiplies shows its own bands: its card is that of the cost beside it.
        found = bool(body.bands) or any(variant.bands for variant in body.variants)
        _is_banded[rate_set.card_hash] = found
    return found


@lru_cache(maxsize=16_384)
def _dearest(rate_set: RateSet) -> tuple[int | None, int | None]:
    """Return the dearest prices of a text token into and out of a call, in the set's unit; None where there is none."""
    return _largest(rate_set.scaled_prices, _TEXT_INPUT), _largest(rate_set.scaled_prices, _TEXT_OUTPUT)


def _largest(prices: Mapping[str, int], meters: tuple[str, ...]) -> int | None:
    if meters[0] not in prices:
        return None
    return max(prices[meter] for meter in meters if meter in prices)


def _plain(rate_set: RateSet) -> tuple[int | None, int | None]:
    prices = rate_set.scaled_prices
    return prices.get(_TEXT_INPUT[0]), prices.get(_TEXT_OUTPUT[0])
