"""Counters and histograms of one process. No label names a tenant, a key or a source."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_EVENTS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)


Found = tuple[str, str | None, float]
"""A gauge of the whole database: its name, its label where it has one, and its value."""

_WATCHED: Final = {
    "dead_letters_open": "Dead letters that wait for a person, by reason.",
    "dead_letters_oldest_seconds": "Age of the oldest dead letter that waits for a person; 0 where none does.",
    "missing_numbers": "Numbers of senders' counters that are lost, as `tallystick gaps list` tells them.",
    "canary_age_seconds": "Since the newest event of the canary was sent; absent where none ever was.",
    "canary_seconds": "From sending it to the budget having moved; absent where it never did.",
    "webhooks_oldest_seconds": "Age of the oldest message that an endpoint in use has not taken; 0 where none waits.",
    "webhooks_disabled": "Endpoints that took nothing for so long that nothing more is sent to them.",
    "holds_overdue_seconds": "Since the oldest hold should have expired: it waits for the feeds to be posted up to there.",
    "entries_awaited_seconds": "Since the oldest call ended whose usage has not come.",
    "prepaid_limits_overdue_seconds": "Since a grant began or ended that no limit has been set for: the scheduler is late.",
    "canary_failed": "1 where the newest event of the canary failed.",
    "proof_differences": "What the last proof found, standing (totals) and whole: any but 0 needs a person; absent where none was made.",
    "proof_age_seconds": "Since that proof ended.",
    "checks": "Results of the last checks on what arrived: passed, warned, failed, unknown (too little to say), broken (the check itself).",
    "checks_age_seconds": "Since those checks ended; absent where none ever ran.",
}
_LABELS: Final = {
    "dead_letters_open": "reason",
    "proof_differences": "proof",
    "proof_age_seconds": "proof",
    "checks": "outcome",
}


class Watched(Collector):
    """Gauges that were read from the database for this answer; those that it did not give are absent, and not zero."""

    def __init__(self, found: Callable[[], Sequence[Found]]) -> None:
        self._found = found

    def collect(self) -> Iterator[Metric]:
        families: dict[str, GaugeMetricFamily] = {}
        for name, label, value in self._found():
            labels = [_LABELS[name]] if label is not None else []
            family = families.setdefault(name, GaugeMetricFamily(f"tallystick_{name}", _WATCHED[name], labels=labels))
            family.add_metric([label] if label is not None else [], value)
        yield from families.values()


class Answers(Collector):
    """Answers by route, and what they took: counted by the one thread there is, where the library's own take a lock for each figure."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, int], int] = {}
        self._seconds: dict[str, list[float]] = {}

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        key = method, route, status
        self._counts[key] = self._counts.get(key, 0) + 1
        found = self._seconds.get(route)
        if found is None:
            # By bucket, the last without a bound, and behind them the sum.
            found = self._seconds[route] = [0.0] * (len(_SECONDS) + 2)
        found[bisect_left(_SECONDS, seconds)] += 1
        found[-1] += seconds

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "tallystick_http_requests", "Answers by route, method and status.", labels=["method", "route", "status"]
        )
        for (method, route, status), count in self._counts.items():
            requests.add_metric([method, route, str(status)], count)
        yield requests
        took = HistogramMetricFamily(
            "tallystick_http_request_seconds", "From the request's head to the end of the answer.", labels=["route"]
        )
        for route, (*counts, total) in self._seconds.items():
            bounds = [*(str(float(bound)) for bound in _SECONDS), "+Inf"]
            took.add_metric([route], list(zip(bounds, accumulate(counts), strict=True)), total)
        yield took


class Metrics:
    """All of them, in a registry of their own, so that two apps in one process do not meet."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._answers = Answers()
        self.registry.register(self._answers)
        self.answered: Final = self._answers.count
        self.events = Counter(
            "tallystick_events", "Events answered, by what became of them.", ["outcome"], registry=self.registry
        )
        self.pushed_back = Counter(
            "tallystick_requests_pushed_back",
            "Requests with events that were told to come again, by problem.",
            ["problem"],
            registry=self.registry,
        )
        self.queue_events = Gauge(
            "tallystick_queue_events", "Events that wait for a commit or are in one.", registry=self.registry
        )
        self.queue_bytes = Gauge("tallystick_queue_bytes", "Bytes of those.", registry=self.registry)
        self.is_fenced = Gauge(
            "tallystick_feed_fenced", "1 once another process has taken the feed.", registry=self.registry
        )
        self.commit_seconds = Histogram(
            "tallystick_commit_seconds", "Posting one batch.", buckets=_SECONDS, registry=self.registry
        )
        self.batch_events = Histogram(
            "tallystick_batch_events", "Events of one batch.", buckets=_EVENTS, registry=self.registry
        )
        self.batch_requests = Histogram(
            "tallystick_batch_requests", "Requests that shared one batch.", buckets=_EVENTS, registry=self.registry
        )
        self.queue_asks = Gauge(
            "tallystick_queue_asks", "Reservations that wait for a decision or are in one.", registry=self.registry
        )
        self._decisions = Counter(
            "tallystick_decisions",
            "Reservations answered, by what became of them.",
            ["outcome"],
            registry=self.registry,
        )
        self.decision_seconds = Histogram(
            "tallystick_decision_seconds",
            "Deciding one array, commit included.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.decision_asks = Histogram(
            "tallystick_decision_asks", "Asks of one array.", buckets=_EVENTS, registry=self.registry
        )
        self.is_away = Gauge(
            "tallystick_away", "1 while calls are decided without the database.", registry=self.registry
        )
        self.away_admitted = Counter(
            "tallystick_away_admitted", "Calls that were admitted without the database.", registry=self.registry
        )
        self.away_booked = Counter(
            "tallystick_away_booked", "Those that were booked when it was back.", registry=self.registry
        )
        self.away_unbooked = Gauge(
            "tallystick_away_unbooked", "Those that are still to be booked.", registry=self.registry
        )
        self.away_unbookable = Counter(
            "tallystick_away_unbookable", "Those that the database would not take.", registry=self.registry
        )
        self._found: Sequence[Found] = ()
        self.registry.register(Watched(lambda: self._found))
        self._outcomes: dict[str, Counter] = {}

    def decided(self, outcomes: Sequence[str]) -> None:
        # Looking a label up costs more than counting.
        for outcome in set(outcomes):
            counter = self._outcomes.get(outcome)
            if counter is None:
                counter = self._outcomes[outcome] = self._decisions.labels(outcome)
            counter.inc(outcomes.count(outcome))

    def watch(self, found: Sequence[Found]) -> None:
        """Take what the database says in the place of what it said before; nothing: it says nothing."""
        self._found = found

    def text(self) -> bytes:
        return generate_latest(self.registry)
