"""Synthetic usage from measured rates: which calls tenants make between two instants, as the bytes that a gateway sends.

Tenants, their skew and rhythm, the irregularity of their calls and the lengths are ServeGen's (`servegen.py`); all else is
assigned here, by the seed. The same plan gives the same bytes on the same Python, from any position on. Pure: no clock,
no database.

Time is cut into blocks of six hours. How many calls a tenant makes in a block is its share of the measured rates, rounded so
that all of them sum to what was asked for; when in it they come is drawn: gaps by Gamma or Weibull with the recorded
coefficient of variation, stretched by the rate of each ten minutes. Rates are counts that were measured: no noise is added to them.
"""

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from random import Random
from typing import Final

from ingest.servegen import (
    BLOCKS,
    QUANTILES,
    WINDOW_SECONDS,
    WINDOWS,
    WINDOWS_PER_BLOCK,
    Client,
    Lengths,
)
from ledger.times import from_micros

SOURCE: Final = "synthetic://servegen"
BATCH_EVENTS: Final = 5000

_WINDOW: Final = WINDOW_SECONDS * 1_000_000
_BLOCK: Final = WINDOWS_PER_BLOCK * _WINDOW
_MONDAY: Final = 4 * 86_400_000_000
"""1970-01-05: the 14 days repeat from Mondays, 00:00 UTC, so that each hour of the week keeps its rate whatever is asked for."""
_LEVELS: Final = 1024

# --- What the source does not say -------------------------------------------------------------------------------------

MODELS: Final = {
    "m-large": (("synthetic", "synthetic-large-1"), ("synthetic", "synthetic-large-2")),
    "m-mid": (("synthetic", "synthetic-mid-1"), ("synthetic", "synthetic-mid-2")),
    "m-small": (("synthetic", "synthetic-small-1"), ("synthetic-gpu", "synthetic-open-1")),
}
"""Provider and model for the calls of each of the source's models: the first for most of them."""
_SECOND_MODEL: Final = 0.15
_FEATURES: Final = (
    # feature, route, lane, share of calls that read from the cache, share of their input that is read
    ("chat", "chat", "interactive", 0.7, 0.6),
    ("support", "chat", "interactive", 0.8, 0.7),
    ("search", "chat", "interactive", 0.5, 0.4),
    ("summaries", "bulk", "batch", 0.0, 0.0),
    ("code-completion", "code", "interactive", 0.9, 0.8),
    ("code-review", "code", "interactive", 0.6, 0.5),
    ("translation", "bulk", "batch", 0.3, 0.2),
    ("agents", "agents", "interactive", 0.9, 0.85),
)
_LANGUAGES: Final = (
    ("en", 46), ("zh-Hans", 14), ("es", 9), ("de", 8), ("ja", 6), ("fr", 6), ("pt", 5), ("ko", 2), ("hi", 2), ("ar", 1), ("ru", 1),
)  # fmt: skip
_ZONES: Final = (
    "UTC", "Europe/Berlin", "America/New_York", "Asia/Shanghai", "Asia/Kolkata", "America/Sao_Paulo", "Asia/Tokyo", "Europe/London",
)  # fmt: skip
_FIRST_TOKEN_MS: Final = {"m-large": 420.0, "m-mid": 240.0, "m-small": 120.0}
_TOKEN_MS: Final = {"m-large": 22.0, "m-mid": 11.0, "m-small": 6.0}
_CACHE_BLOCK: Final = 128
_ERRORS, _CANCELLED, _RETRIES, _EXACT_HITS = 0.006, 0.008, 0.006, 0.01


@dataclass(frozen=True, slots=True)
class Party:
    """A tenant as the generator registers it."""

    tenant_id: str
    time_zone: str
    charge_currency: str


def party_of(client: Client) -> Party:
    """Return the tenant that a client becomes; the same for every seed, since tenants stay."""
    drawn = Random(f"synthetic/party/{client.tenant_id}")
    zone = _ZONES[int(drawn.random() * len(_ZONES))]
    return Party(client.tenant_id, zone, "EUR" if zone.startswith("Europe/B") else "USD")


def providers_and_models() -> list[tuple[str, str]]:
    """List the models of the calls."""
    return [named for pair in MODELS.values() for named in pair]


# --- The plan ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """Which events there are: the same plan is the same events, numbered from 0 in the order of time."""

    seed: str
    events: int
    since: int
    """UTC microseconds."""
    until: int
    """UTC microseconds, exclusive."""
    clients: Sequence[Client]

    def __post_init__(self) -> None:
        if self.events <= 0 or self.since >= self.until or not self.clients:
            raise ValueError("a plan needs events, tenants, and an end after its beginning")

    @property
    def name(self) -> str:
        """Names the feed: whoever asks for the same again goes on with it."""
        return (
            f"synthetic:seed={self.seed} events={self.events} since={_time(self.since)} until={_time(self.until)}"
            f" tenants={len(self.clients)}"
        )

    @cached_property
    def blocks(self) -> Sequence["_Block"]:
        """The blocks of six hours between the instants, each with how many events every client has in it."""
        spans = [
            (max(start, self.since), min(start + _BLOCK, self.until))
            for start in range(_floor(self.since, _BLOCK), self.until, _BLOCK)
        ]
        work = [[_work(client, *span)[-1] for client in self.clients] for span in spans]
        total = sum(map(sum, work))
        if not total:
            raise ValueError("no tenant has calls between these instants")
        found, before, reached = [], 0, 0.0
        for span, row in zip(spans, work, strict=True):
            counts, first = [], before
            for part in row:
                reached += part
                upto = min(self.events, round(reached / total * self.events))
                counts.append(upto - before)
                before = upto
            found.append(_Block(*span, first, counts))
        # What the last rounding left, since floats add up to nearly one.
        found[-1].counts[max(range(len(self.clients)), key=work[-1].__getitem__)] += self.events - before
        return found

    def batches(self, position: int = 0, end: int | None = None) -> Iterator[tuple[int, list[str]]]:
        """Yield (position of the first, events as JSON) from a batch's first position on, up to the `end` of a batch."""
        for block in self.blocks:
            stop = block.first + sum(block.counts)
            if stop <= position:
                continue
            if end is not None and block.first >= end:
                return
            yield from self._of_block(block, position)

    def split(self, parts: int) -> list[tuple[int, int]]:
        """Cut the positions into so many runs of whole blocks, about equally long, for feeds beside each other."""
        ends = [block.first + sum(block.counts) for block in self.blocks]
        wanted = [self.events * number // parts for number in range(1, parts)]
        cuts = [0, *(ends[min(bisect_right(ends, each), len(ends) - 1)] for each in wanted), self.events]
        return [(low, high) for low, high in pairwise(cuts) if low < high]

    def _of_block(self, block: "_Block", position: int) -> Iterator[tuple[int, list[str]]]:
        arrivals: list[tuple[int, int]] = []
        for number, (client, count) in enumerate(zip(self.clients, block.counts, strict=True)):
            if count:
                drawn = Random(f"{self.seed}/arrivals/{client.tenant_id}/{block.since}")
                arrivals += [(at, number) for at in _arrivals(client, block, count, drawn)]
        arrivals.sort()
        writers: dict[int, _Writer] = {}
        for start in range(0, len(arrivals), BATCH_EVENTS):
            first = block.first + start
            if first < position:
                continue
            drawn = Random(f"{self.name}/{first}")
            events = []
            for at, number in arrivals[start : start + BATCH_EVENTS]:
                writer = writers.get(number)
                if writer is None:
                    client = self.clients[number]
                    writer = writers[number] = _Writer(_caller(self.seed, client), client, block)
                events.append(writer.event(at, drawn))
            yield first, events


@dataclass(frozen=True, slots=True)
class _Block:
    since: int
    until: int
    first: int
    """Position of its first event."""
    counts: list[int]
    """Events by client."""


def _floor(instant: int, step: int) -> int:
    return (instant - _MONDAY) // step * step + _MONDAY


def _time(instant: int) -> str:
    return from_micros(instant).strftime("%Y-%m-%dT%H:%M:%SZ")


def _windows(since: int, until: int) -> list[tuple[int, int, int]]:
    """Return (window of the source, from, until) for each window that a span touches."""
    return [
        ((start - _MONDAY) // _WINDOW % WINDOWS, max(start, since), min(start + _WINDOW, until))
        for start in range(_floor(since, _WINDOW), until, _WINDOW)
    ]


def _work(client: Client, since: int, until: int) -> list[float]:
    """Return how many requests the source saw up to the end of each window of a span."""
    return list(accumulate(client.rates[at] * (stop - start) for at, start, stop in _windows(since, until)))


def _arrivals(client: Client, block: _Block, count: int, drawn: Random) -> list[int]:
    """Draw when a client's calls come: equal shares of the block's work on average, gaps as irregular as recorded."""
    windows = _windows(block.since, block.until)
    work = _work(client, block.since, block.until)
    busy = [at for at, _, _ in windows if client.rates[at]]
    busiest = max(busy, key=lambda at: client.rates[at])
    cv = min(max(sorted(client.cvs[at] for at in busy)[len(busy) // 2], 0.2), 12.0)
    if client.patterns[busiest] == "W":
        shape = _weibull_shape(round(cv, 2))
        gaps = [drawn.weibullvariate(1.0, shape) for _ in range(count + 1)]
    else:
        shape = 1.0 / (cv * cv)
        gaps = [drawn.gammavariate(shape, 1.0) for _ in range(count + 1)]
    total = sum(gaps)
    if not total:
        gaps, total = [1.0] * (count + 1), count + 1.0
    found = []
    reached, place, last = 0.0, 0, len(windows) - 1
    for gap in gaps[:-1]:
        reached += gap
        target = reached / total * work[-1]
        while place < last and work[place] < target:
            place += 1
        at, start, stop = windows[place]
        rate = client.rates[at]
        before = work[place - 1] if place else 0.0
        instant = start + (int((target - before) / rate) if rate else 0)
        found.append(min(max(instant, start), stop - 1))
    return found


@lru_cache(maxsize=2048)
def _weibull_shape(cv: float) -> float:
    """Return the shape of the Weibull distribution with this coefficient of variation."""
    low, high = 0.1, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        first = math.gamma(1 + 1 / middle)
        if math.gamma(1 + 2 / middle) / (first * first) - 1 > cv * cv:
            low = middle
        else:
            high = middle
    return high


# --- Who calls for what -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Profile:
    """What calls of one kind of a tenant have in common, written down once."""

    head: str
    cached_calls: float
    cached_share: float
    has_exact_hits: bool
    is_gpu: bool


@dataclass(frozen=True, slots=True)
class _Caller:
    """What is assigned to a tenant."""

    profiles: Sequence[_Profile]
    users: int
    first_token_ms: float
    token_ms: float


_PROFILES: Final = 256


@lru_cache(maxsize=4096)
def _caller(seed: str, client: Client) -> _Caller:
    drawn = Random(f"{seed}/caller/{client.tenant_id}")
    features = drawn.sample(_FEATURES, 1 + int(drawn.random() * 4))
    weights = [1.0 / (place + 1) for place in range(len(features))]
    names, shares = zip(*_LANGUAGES, strict=True)
    first = drawn.choices(names, shares)[0]
    others = [name for name in drawn.choices(names, shares, k=3) if name != first] or ["en"]
    main = 0.7 + drawn.random() * 0.28
    keys = {feature[0]: 1 + int(drawn.random() * 3) for feature in features}
    tenant = client.tenant_id
    profiles = []
    for number in range(_PROFILES):
        feature, route, lane, cached_calls, cached_share = drawn.choices(features, weights)[0]
        luck = drawn.random()
        language = first if luck < main else "und" if luck > 0.997 else drawn.choice(others)
        provider, model = MODELS[client.model][drawn.random() < _SECOND_MODEL]
        is_gpu = provider == "synthetic-gpu"
        key = f"key-{feature}-{1 + int(drawn.random() ** 2 * keys[feature])}"
        node = f'"node_id":"synthetic-gpu-{number % 4}",' if is_gpu else ""
        profiles.append(
            _Profile(
                f'{{"specversion":"1.0","type":"llm.usage.v1","source":"{SOURCE}","data":{{"tenant_id":"{tenant}",'
                f'"api_key_id":"{key}","feature":"{feature}","language":"{language}","route":"{route}","lane":"{lane}",'
                f'"tags":{{"team":"{feature}-team","synthetic":"yes"}},"operation":"chat",{node}'
                f'"provider":"{provider}","requested_model":"{model}","model":"{model}",'
                f'"flavour":"{"vllm.chat" if is_gpu else "openai.chat"}",',
                cached_calls,
                cached_share,
                feature in ("support", "search"),
                is_gpu,
            )
        )
    users = min(2000, max(3, int(0.4 * math.sqrt(sum(client.rates) * WINDOW_SECONDS))))
    return _Caller(profiles, users, _FIRST_TOKEN_MS[client.model], _TOKEN_MS[client.model])


@lru_cache(maxsize=64)
def _spread(sigma: float) -> Sequence[float]:
    """Return levels of a lognormal distribution with median 1."""
    levels = []
    for place in range(_LEVELS):
        # Quantiles of the logistic distribution, scaled to the normal one's spread: no other library is needed for it.
        share = (place + 0.5) / _LEVELS
        levels.append(math.exp(sigma * math.log(share / (1 - share)) * math.sqrt(3) / math.pi))
    return levels


@lru_cache(maxsize=4096)
def _levels(quantiles: tuple[int, ...]) -> Sequence[int]:
    """Return equally likely lengths of a distribution that is known by its quantiles."""
    found = []
    for place in range(_LEVELS):
        share = (place + 0.5) / _LEVELS
        at = min(bisect_right(QUANTILES, share), len(QUANTILES) - 1)
        low, high = QUANTILES[at - 1], QUANTILES[at]
        found.append(round(quantiles[at - 1] + (quantiles[at] - quantiles[at - 1]) * (share - low) / (high - low)))
    return found


_MODEL_INPUT_MAX: Final = 1_000_000


class _Writer:
    """Writes the events of one client in one block."""

    def __init__(self, caller: _Caller, client: Client, block: _Block) -> None:
        self._caller = caller
        lengths = _nearest(client, (block.since - _MONDAY) // _BLOCK % BLOCKS)
        self._input, self._output = _levels(lengths.input), _levels(lengths.output)
        self._tenant = client.tenant_id.removeprefix("synthetic-")
        self._block = (block.since - _MONDAY) // _BLOCK
        self._first_token, self._per_token = _spread(0.5), _spread(0.25)

    def event(self, at: int, drawn: Random) -> str:
        caller, random = self._caller, drawn.random
        bits = drawn.getrandbits(40)
        profile = caller.profiles[bits & 255]
        tokens_in = self._input[bits >> 8 & 1023] or 1
        tokens_out = self._output[bits >> 18 & 1023] or 1
        user = int(caller.users * random() ** 3)
        cached = 0
        if profile.cached_share and random() < profile.cached_calls:
            cached = int(tokens_in * profile.cached_share) // _CACHE_BLOCK * _CACHE_BLOCK
        first_ms = caller.first_token_ms * self._first_token[bits >> 28 & 1023] + (tokens_in - cached) * 0.04
        took_ms = first_ms + tokens_out * caller.token_ms * self._per_token[bits >> 30 & 1023]
        ending = f'"status":"ok","stop_reason":"stop","latency_ms":{took_ms:.0f},"ttft_ms":{first_ms:.0f}'
        attempt = '"attempt":1,"attempt_kind":"first",'
        luck = random()
        usage = (
            f',"usage":{{"prompt_tokens":{tokens_in},"completion_tokens":{tokens_out},"total_tokens":{tokens_in + tokens_out},'
            f'"prompt_tokens_details":{{"cached_tokens":{cached}}}}}'
        )
        if luck < _ERRORS:
            ending, usage = f'"status":"error","latency_ms":{first_ms:.0f}', ""
        elif luck < _ERRORS + _CANCELLED:
            ending = f'{ending.replace("ok", "cancelled", 1)},"delivered_output_tokens":{tokens_out // 2}'
        elif luck < _ERRORS + _CANCELLED + _RETRIES:
            attempt = '"attempt":2,"attempt_kind":"retry",'
        elif profile.has_exact_hits and luck > 1 - _EXACT_HITS:
            ending = '"status":"ok","cache_result":"exact_hit","latency_ms":8'
        clock, tail = f"{at // 1000:012x}", f"{drawn.getrandbits(148):037x}"
        head = f"{clock[:8]}-{clock[8:]}-7"
        return (
            f'{profile.head}"user_hash":"u-{self._tenant}-{user}","conversation_id":"c-{self._tenant}-{user}-{self._block}-{bits >> 38}",'
            f'{attempt}"request_id":"{head}{tail[:3]}-8{tail[3:6]}-{tail[6:18]}",{ending}{usage}}},'
            f'"id":"{head}{tail[18:21]}-9{tail[21:24]}-{tail[24:36]}","time":"{_written(at)}"}}'
        )


def _nearest(client: Client, block: int) -> Lengths:
    """Return the lengths of the block of the 14 days that is nearest in time among those that are known."""
    return client.lengths[min(client.lengths, key=lambda known: (abs(known - block), known))]


def _written(at: int) -> str:
    seconds, micros = divmod(at, 1_000_000)
    return f"{_second(seconds)}.{micros:06d}Z"


@lru_cache(maxsize=65_536)
def _second(seconds: int) -> str:
    return from_micros(seconds * 1_000_000).strftime("%Y-%m-%dT%H:%M:%S")


__all__ = ["BATCH_EVENTS", "SOURCE", "Party", "Plan", "party_of", "providers_and_models"]
