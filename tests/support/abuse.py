"""Traffic with abuse put into it: measured arrival patterns, injections by a seed, and what a detector made of them.

The first week is history, the second is judged. The detector sees events only; where the injections are stays here.
"""

import csv
import gzip
import json
import math
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from random import Random
from typing import Any, Final

from ingest.intake import Intake, Message, ease_collection
from ingest.servegen import WINDOW_SECONDS, Client, read_clients
from ingest.synthetic import SOURCE, Plan, party_of, providers_and_models
from ledger import feeds
from ledger.contracts import load_contracts
from ledger.database import connect
from ledger.price_store import insert_cards
from ledger.times import from_micros, parse_rfc3339
from tallystick.generating import DATA
from tests.support.ledger import Ledger

MONDAY: Final = parse_rfc3339("2026-11-09T00:00:00Z")
MINUTE: Final = 60_000_000
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
LIFT: Final = 100
"""Prices are this many times the list: one call stands for so many, which keeps amounts real and events few."""

IN_TIME: Final = 15
"""Minutes: what is caught as late as that, or later, counts as missed for `Score.recall_in_time`."""

CAUGHT_BY: Final = {
    "stolen_key": {"spend", "new_key"},
    "retry_storm": {"retries", "errors", "spend"},
    "language_shift": {"language_shift"},
    "model_shift": {"model_shift", "spend"},
    "prompt_stuffing": {"long_prompts", "spend"},
    "cache_break": {"cache"},
    "one_user": {"one_user"},
}
"""Kinds of abuse, and which signals name them."""

Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Injection:
    """Where abuse is, in UTC microseconds."""

    kind: str
    tenant_id: str
    feature: str
    api_key_id: str
    since: int
    until: int


@dataclass(frozen=True, slots=True)
class Signal:
    """What the detector said about five minutes."""

    kind: str
    tenant_id: str
    feature: str
    api_key_id: str
    starts_at: int


@dataclass(slots=True)
class Score:
    """How a detector did."""

    injections: int
    missed: list[Injection]
    delays: dict[str, list[float]]
    """By kind of abuse: minutes from the beginning of each that was caught to the end of the five minutes that showed it."""
    false_alarms: list[tuple[str, str, str]]
    """Tenant, kind and time of each."""
    tenant_months: float

    @property
    def recall(self) -> float:
        return 1 - len(self.missed) / self.injections

    @property
    def recall_in_time(self) -> float:
        """What part was caught in less than IN_TIME minutes."""
        return sum(delay < IN_TIME for each in self.delays.values() for delay in each) / self.injections

    @property
    def false_alarms_per_tenant_month(self) -> float:
        return len(self.false_alarms) / self.tenant_months

    def delay(self, part: float, kind: str | None = None) -> float:
        """The delay that this part of what was caught, of a kind or of all, stays within."""
        kinds = self.delays.values() if kind is None else [self.delays.get(kind, [])]
        ordered = sorted(delay for each in kinds for delay in each)
        return ordered[max(0, math.ceil(part * len(ordered)) - 1)] if ordered else math.inf

    def line(self) -> str:
        by_kind = Counter(each.kind for each in self.missed)
        missed = f" (missed: {', '.join(f'{n} {kind}' for kind, n in sorted(by_kind.items()))})" if by_kind else ""
        kinds = Counter(kind for _, kind, _ in self.false_alarms)
        said = f" ({', '.join(f'{n} {kind}' for kind, n in sorted(kinds.items()))})" if kinds else ""
        late = sum(delay >= IN_TIME for each in self.delays.values() for delay in each)
        return (
            f"recall {self.recall:.2f} of {self.injections} injections{missed}, {self.recall_in_time:.2f} in time; "
            f"{self.false_alarms_per_tenant_month:.2f} false alarms per tenant-month{said}; delay in minutes: median"
            f" {self.delay(0.5):.0f}, nine of ten {self.delay(0.9):.0f}, longest {self.delay(1):.0f}, {late} not below {IN_TIME}"
        )


# --- Traffic ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Traffic:
    """Events in the order of time, and where abuse is in them."""

    tenants: Sequence[Client]
    events: list[tuple[int, str]]
    """Time and JSON."""
    injections: list[Injection]


def make_traffic(
    seed: int, *, tenants: int = 12, events: int = 150_000, days: int = 14, with_abuse: bool = True
) -> Traffic:
    """Draw tenants out of ServeGen's, let each have from a half to three times the mean volume, and put abuse in."""
    drawn = Random(f"abuse/{seed}")
    clients = [client for client in read_clients(DATA) if sum(rate > 0 for rate in client.rates) > 1500]
    chosen = []
    for client in sorted(drawn.sample(clients, tenants), key=lambda each: each.tenant_id):
        # Of 20,000 calls each, on average, so that tenants have some sixty users.
        factor = 20_000 * (0.5 + 2.5 * drawn.random()) / 1.75 / WINDOW_SECONDS / sum(client.rates)
        chosen.append(replace(client, rates=[rate * factor for rate in client.rates]))
    plan = Plan(seed=f"abuse/{seed}", events=events, since=MONDAY, until=MONDAY + days * DAY, clients=chosen)
    of_tenant: dict[str, list[str]] = defaultdict(list)
    for _, batch in plan.batches():
        for text in batch:
            of_tenant[text.split('"tenant_id":"', 1)[1].split('"', 1)[0]].append(text)
    found: list[tuple[int, str]] = []
    injections: list[Injection] = []
    for client in chosen:
        # One tenant at a time is taken apart: all of them as objects would take a gigabyte.
        own = [(parse_rfc3339(event["time"]), event) for event in map(json.loads, of_tenant.pop(client.tenant_id, ()))]
        added: list[tuple[int, Event]] = []
        kinds = drawn.sample(sorted(CAUGHT_BY), len(CAUGHT_BY)) if with_abuse else []
        for number in range(3):
            # One in each third of the judged days, so that they lie apart: the first kind that has a place there.
            span = (days * DAY - days * DAY // 2) // 3
            low = MONDAY + days * DAY // 2 + number * span
            injector = _Injector(drawn, own, client.tenant_id, low + 2 * HOUR, low + span - 8 * HOUR)
            for kind in kinds:
                made = injector.inject(kind)
                if made is not None:
                    injections.append(made[0])
                    added += made[1]
                    kinds.remove(kind)
                    break
        found += [(at, json.dumps(event, separators=(",", ":"))) for at, event in own + added]
    found.sort()
    return Traffic(chosen, found, injections)


class _Injector:
    """Puts one kind of abuse into a tenant's events, at a time and a place where there is enough to be seen."""

    def __init__(self, drawn: Random, own: list[tuple[int, Event]], tenant_id: str, low: int, high: int) -> None:
        self._drawn, self._own, self._tenant, self._low, self._high = drawn, own, tenant_id, low, high

    def inject(self, kind: str) -> tuple[Injection, list[tuple[int, Event]]] | None:
        duration = int((1 + 2 * self._drawn.random()) * HOUR)
        added: list[tuple[int, Event]] = []
        if kind == "stolen_key":
            since = self._low + int(self._drawn.random() * (self._high - self._low))
            model = self._drawn.choice(self._own)[1]
            feature, key = model["data"]["feature"], model["data"]["api_key_id"]
            if self._drawn.random() < 0.5:
                key = f"key-{self._drawn.randrange(10**6)}"
            added = self._burn(model, key, since, since + duration)
            return Injection(kind, self._tenant, feature, key, since, since + duration), added
        place = self._busy_place(with_cache=kind == "cache_break", whole=kind == "one_user")
        if place is None:
            return None
        since, feature, key = place
        until = since + duration
        user = f"u-abuse-{self._drawn.randrange(10**6)}"
        for at, event in self._own:
            data = event["data"]
            if not since <= at < until or (
                kind != "one_user" and (data["feature"], data["api_key_id"]) != (feature, key)
            ):
                continue
            luck = self._drawn.random()
            if kind == "retry_storm":
                for attempt in range(2, 6):
                    added.append(
                        self._copy(
                            event, at + attempt * 800_000, attempt=attempt, attempt_kind="retry", error=luck < 0.7
                        )
                    )
            elif kind == "language_shift" and luck < 0.8:
                data["language"] = "vi"
            elif kind == "model_shift" and luck < 0.8:
                data["requested_model"] = data["model"] = self._other_model(data["model"])
                data["provider"] = "synthetic"
            elif kind == "prompt_stuffing" and luck < 0.7 and "usage" in data:
                _prompt(data, 30_000 + int(luck * 100_000), 0)
            elif kind == "cache_break" and "usage" in data:
                _prompt(data, data["usage"]["prompt_tokens"], 0)
            elif kind == "one_user" and luck < 0.85:
                data["user_hash"] = user
        return Injection(kind, self._tenant, feature, key, since, until), added

    def _busy_place(self, *, with_cache: bool, whole: bool) -> tuple[int, str, str] | None:
        """Return a time and a series with at least 60 calls in the hour after it, or None."""
        hours: dict[tuple[str, str], list[int]] = defaultdict(list)
        cached: Counter[tuple[str, str]] = Counter()
        total: Counter[tuple[str, str]] = Counter()
        for at, event in self._own:
            data = event["data"]
            series = ("", "") if whole else (data["feature"], data["api_key_id"])
            if self._low <= at < self._high:
                hours[series].append(at)
            if "usage" in data:
                total[series] += data["usage"]["prompt_tokens"]
                cached[series] += data["usage"]["prompt_tokens_details"]["cached_tokens"]
        places = []
        for series, times in hours.items():
            if with_cache and cached[series] < 0.25 * total[series]:
                continue
            first = 0
            for place, at in enumerate(times):
                while times[first] < at - HOUR:
                    first += 1
                # At least 15 of them in the first ten minutes: abuse of a sleeping series begins when it wakes.
                if place - first >= 60 and times[min(first + 15, place)] - times[first] <= 10 * MINUTE:
                    places.append((times[first], *series))
        return self._drawn.choice(places) if places else None

    def _burn(self, model: Event, key: str, since: int, until: int) -> list[tuple[int, Event]]:
        """Return calls that cost three times the tenant's dearest hour of the series' kind, or 50 an hour if that is more."""
        hourly: Counter[tuple[str, str, int]] = Counter()
        for at, event in self._own:
            if at < self._low and "usage" in event["data"]:
                hourly[event["data"]["feature"], event["data"]["api_key_id"], at // HOUR] += _micros(event)
        dearest = max((amount for series, amount in hourly.items() if series[0] == model["data"]["feature"]), default=0)
        wanted = max(3 * dearest, 50_000_000)
        sample = self._copy(model, since)
        _prompt(sample[1]["data"], 4000, 0)
        sample[1]["data"]["usage"]["completion_tokens"] = 1500
        calls = min(2000, max(60, int(wanted / _micros(sample[1]))))
        gap = HOUR // calls
        # Where so many calls are not enough for the amount, they are longer.
        long = max(1.0, wanted / (calls * _micros(sample[1])))
        found = []
        at = since
        while at < until:
            at += int(gap * 2 * self._drawn.random()) + 1
            moment, event = self._copy(model, at)
            data = event["data"]
            data["api_key_id"] = key
            data["user_hash"] = f"u-thief-{self._drawn.randrange(20)}"
            _prompt(data, int(4000 * long), 0)
            data["usage"]["completion_tokens"] = int(1500 * long)
            data["usage"]["total_tokens"] = data["usage"]["prompt_tokens"] + data["usage"]["completion_tokens"]
            found.append((moment, event))
        return found

    def _copy(self, event: Event, at: int, *, error: bool = False, **changed: Any) -> tuple[int, Event]:
        made = json.loads(json.dumps(event))
        made["id"] = f"abuse-{self._drawn.getrandbits(80):020x}"
        made["time"] = from_micros(at).isoformat().replace("+00:00", "Z")
        data = made["data"]
        data.update(changed, request_id=f"abuse-{self._drawn.getrandbits(80):020x}")
        if error:
            data.update(status="error")
            data.pop("usage", None)
            data.pop("stop_reason", None)
        else:
            data.setdefault(
                "usage",
                {
                    "prompt_tokens": 100,
                    "completion_tokens": 10,
                    "total_tokens": 110,
                    "prompt_tokens_details": {"cached_tokens": 0},
                },
            )
            data.update(status="ok")
            data.pop("cache_result", None)
        return at, made

    def _other_model(self, model: str) -> str:
        return "synthetic-large-2" if model != "synthetic-large-2" else "synthetic-mid-2"


def _prompt(data: Event, tokens: int, cached: int) -> None:
    usage = data.setdefault("usage", {"completion_tokens": 100})
    usage["prompt_tokens"] = tokens
    usage["prompt_tokens_details"] = {"cached_tokens": cached}
    usage["total_tokens"] = tokens + usage["completion_tokens"]
    data["status"] = "ok"


_RATES: Final = {
    "synthetic-large-1": (3.0, 14.4), "synthetic-large-2": (3.6, 18.0), "synthetic-mid-1": (0.48, 1.92),
    "synthetic-mid-2": (0.36, 3.0), "synthetic-small-1": (0.06, 0.48), "synthetic-open-1": (0.12, 0.45),
}  # fmt: skip


def _micros(event: Event) -> float:
    """Return about what a call is charged at, in millionths."""
    price_in, price_out = _RATES[event["data"]["model"]]
    usage = event["data"]["usage"]
    return LIFT * (price_in * usage["prompt_tokens"] + price_out * usage["completion_tokens"])


# --- Without abuse ---------------------------------------------------------------------------------------------------

CONVERSATION_DAYS: Final = 7


def conversations() -> Traffic:
    """Return a week of a real service's requests (data/ragpulse): its times, lengths and sessions, each of which is a user here."""
    client = Client("rag", "pulse", rates=(), cvs=(), patterns="", lengths={}, lengths_of=None)
    events = []
    with gzip.open(DATA.parent / "ragpulse" / "week.csv.gz", "rt", newline="") as file:
        for number, row in enumerate(csv.DictReader(file)):
            at = MONDAY + int(row["timestamp_s"]) * 1_000_000
            tokens_in, tokens_out = int(row["input_tokens"]), int(row["output_tokens"])
            data = {
                "tenant_id": client.tenant_id,
                "api_key_id": "key-1",
                "feature": "assistant",
                "provider": "synthetic",
                "requested_model": "synthetic-large-1",
                "model": "synthetic-large-1",
                "flavour": "openai.chat",
                "operation": "chat",
                "user_hash": row["session_id"],
                "conversation_id": row["session_id"],
                "request_id": f"rag-{number}",
                "status": "ok",
                "usage": {
                    "prompt_tokens": tokens_in,
                    "completion_tokens": tokens_out,
                    "total_tokens": tokens_in + tokens_out,
                },
            }
            event = {
                "specversion": "1.0",
                "type": "llm.usage.v1",
                "source": SOURCE,
                "id": f"rag-{number}",
                "time": from_micros(at).isoformat().replace("+00:00", "Z"),
                "data": data,
            }
            events.append((at, json.dumps(event, separators=(",", ":"))))
    events.sort()
    return Traffic([client], events, [])


# --- Into a ledger ----------------------------------------------------------------------------------------------------


async def set_up(ledger: Ledger, tenants: Iterable[Client]) -> None:
    """Register the tenants, the source, and the synthetic models at lifted prices."""
    for client in tenants:
        party = party_of(client)
        ledger.add_tenant(
            party.tenant_id,
            zone=party.time_zone,
            currency=party.charge_currency,
            first_period=date(2026, 10, 1),
            months=4,
        )
    ledger.add_source(SOURCE)
    for provider, model in providers_and_models():
        ledger.add_model(model, provider=provider)
    listed = (DATA / "prices.yaml").read_text().replace("    rates:", "    is_high_price_confirmed: true\n    rates:")
    lifted = listed.replace("per 1000000", f"per {1_000_000 // LIFT}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "prices.yaml"
        path.write_text(lifted)
        cards = load_contracts(path)
    connection = await connect(ledger.database.url)
    try:
        await insert_cards(connection, cards)
    finally:
        await connection.close()
    ledger._raised("prices")


async def post(ledger: Ledger, events: Iterable[tuple[int, str]], *, batch: int = 5000) -> int:
    """Post events by the road of all; return how many."""
    url = ledger.database.url_for("tallystick_writer")
    connection = await connect(url)
    held = await feeds.claim(connection, "file", "file:abuse")
    await connection.close()
    ease_collection()
    intake = await Intake.open(url, held, patience=10)
    count = 0
    try:
        for some in _batches(events, batch):
            bodies = [
                ("[" + ",".join(event for _, event in some[at : at + 100]) + "]").encode()
                for at in range(0, len(some), 100)
            ]
            received = some[-1][0] + MINUTE
            reading = await intake.read([Message(body, received, SOURCE) for body in bodies])
            posted = await intake.post(reading)
            refused = [result for result in posted.results if result.outcome != "created"]
            assert not refused, refused[:3]
            count += len(posted.results)
    finally:
        await intake.close()
    return count


def _batches(events: Iterable[tuple[int, str]], size: int) -> Iterator[list[tuple[int, str]]]:
    some: list[tuple[int, str]] = []
    for pair in events:
        some.append(pair)
        if len(some) == size:
            yield some
            some = []
    if some:
        yield some


# --- What the detector said -------------------------------------------------------------------------------------------


def signals(ledger: Ledger) -> list[Signal]:
    """Read all signals of the marts."""
    rows = ledger.rows(
        "select 'spend', tenant_id, feature, api_key_id, starts_at from marts.fct_spend_spikes"
        " union all select kind, tenant_id, feature, api_key_id, starts_at from marts.fct_abuse_signals"
    )
    return [Signal(*row[:4], starts_at=int(row[4].timestamp() * 1_000_000)) for row in rows]


def judge(found: Sequence[Signal], traffic: Traffic, *, days: int = 14) -> Score:
    """Hold signals against injections, over the judged days.

    A false alarm is a run of signals of one kind for one tenant, with pauses of up to two hours, that no injection explains:
    one explains those of its own series, or of the whole tenant where either goes over all of it, from its first minute until
    65 minutes after its last, since the hour's window still holds it.
    """
    judged_from = MONDAY + days * DAY // 2
    missed: list[Injection] = []
    delays: dict[str, list[float]] = defaultdict(list)
    for injection in traffic.injections:
        seen = [
            signal.starts_at + 5 * MINUTE
            for signal in found
            if signal.tenant_id == injection.tenant_id
            and signal.kind in CAUGHT_BY[injection.kind]
            and (
                signal.kind == "one_user"
                or (signal.feature, signal.api_key_id) == (injection.feature, injection.api_key_id)
            )
            and injection.since < signal.starts_at + 5 * MINUTE <= injection.until + 5 * MINUTE
        ]
        if seen:
            delays[injection.kind].append((min(seen) - injection.since) / MINUTE)
        else:
            missed.append(injection)
    alarms: list[tuple[str, str, str]] = []
    last: dict[tuple[str, str], int] = {}
    for signal in sorted(found, key=lambda each: each.starts_at):
        if signal.starts_at < judged_from:
            continue
        if any(
            injection.tenant_id == signal.tenant_id
            and (
                "" in (injection.feature, signal.feature)
                or (injection.feature, injection.api_key_id) == (signal.feature, signal.api_key_id)
            )
            and injection.since - 5 * MINUTE < signal.starts_at <= injection.until + 65 * MINUTE
            for injection in traffic.injections
        ):
            continue
        key = (signal.tenant_id, signal.kind)
        if signal.starts_at - last.get(key, 0) > 2 * HOUR:
            alarms.append((*key, f"{from_micros(signal.starts_at):%a %H:%M} {signal.feature} {signal.api_key_id}"))
        last[key] = signal.starts_at
    months = len(traffic.tenants) * (days - days // 2) / 30
    return Score(len(traffic.injections), missed, delays, alarms, months)


__all__ = [
    "CAUGHT_BY",
    "CONVERSATION_DAYS",
    "IN_TIME",
    "Injection",
    "Score",
    "Signal",
    "Traffic",
    "conversations",
    "judge",
    "make_traffic",
    "post",
    "set_up",
    "signals",
]
