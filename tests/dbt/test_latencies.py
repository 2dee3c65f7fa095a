"""Times and tokens by day: percentiles from histograms that add up, whatever reports replace each other."""

import random
from bisect import bisect_right
from decimal import Decimal
from itertools import pairwise
from math import ceil, sqrt
from typing import Any

from tests.dbt.conftest import Marts
from tests.dbt.test_rollup import set_up, usage
from tests.factories import NODE, make_event

MARTS = ("path:models/marts/operations", "fct_cost_daily", "dim_tenants")

EDGES = [int(100 * 10 ** (place / 60) + 0.000001) for place in range(541)]
"""In microseconds, as dbt/macros/latencies.sql has them."""
ERROR = Decimal("0.025")


def histogram(marts: Marts, metric: str = "end_to_end") -> list[tuple[Any, ...]]:
    return marts.ledger.rows(
        "select feature, bucket, request_count from marts.fct_latency_daily where metric = %s and request_count <> 0"
        " order by feature, bucket",
        metric,
    )


def bucket(milliseconds: int) -> int:
    return bisect_right(EDGES, milliseconds * 1000)


def test_a_buckets_middle_is_within_the_stated_error_of_all_that_is_in_it() -> None:
    assert (EDGES[0], EDGES[60], EDGES[-1]) == (100, 1000, 100_000_000_000)
    for low, high in pairwise(EDGES):
        middle = sqrt(low * high)
        assert middle / low - 1 < ERROR
        assert 1 - middle / (high - 1) < ERROR


async def test_percentiles_are_within_the_stated_error_of_exact_ones(marts: Marts) -> None:
    """400 calls, most near a second and some a minute long; the exact percentile is the value at place ceil(n x p)."""
    await set_up(marts)
    chance = random.Random(11)
    times = [max(1, int(chance.lognormvariate(6.5, 1.2))) for _ in range(400)]
    events = [
        make_event(f"ev-{place}", latency_ms=time, ttft_ms=time // 3, usage=usage(10, 11))
        for place, time in enumerate(times)
    ]
    for start in range(0, 400, 100):
        await marts.post(*events[start : start + 100])
        marts.roll_up(*MARTS)
    found = marts.ledger.rows(
        "select metric, measured_count, unmeasured_count, p50_ms, p90_ms, p95_ms, p99_ms from marts.fct_latency_percentiles_daily"
    )
    exact = {
        "end_to_end": sorted(times),
        "first_token": sorted(time // 3 for time in times),
        # 11 tokens: ten stretches after the first.
        "per_output_token": sorted(Decimal(time - time // 3) / 10 for time in times),
    }
    assert {row[0] for row in found} == exact.keys()
    for metric, measured, unmeasured, *percentiles in found:
        assert (measured, unmeasured) == (400, 0)
        for percentile, read in zip((50, 90, 95, 99), percentiles, strict=True):
            value = exact[metric][ceil(400 * percentile / 100) - 1]
            assert abs(read - value) <= value * ERROR, (metric, percentile, read, value)


async def test_a_better_report_takes_the_request_to_its_own_bucket(marts: Marts) -> None:
    """The node says 900 ms; the gateway knows the feature and says 1,200. One request, at 1,200, before and after a rebuild."""
    await set_up(marts)
    await marts.post(
        make_event("n", source=NODE, request_id="r", feature=..., latency_ms=900, usage=usage(9, 1), final=False)
    )
    marts.roll_up(*MARTS)
    assert histogram(marts) == [("", bucket(900), 1)]
    await marts.post(make_event("g", request_id="r", feature="chat", latency_ms=1200, usage=usage(10, 1)))
    marts.roll_up(*MARTS)
    assert histogram(marts) == [("chat", bucket(1200), 1)]
    # Evidence, and a copy: neither is looked at.
    await marts.post(make_event("n2", source=NODE, request_id="r", latency_ms=5000, usage=usage(9, 1)))
    await marts.post(make_event("g", request_id="r", feature="chat", latency_ms=1200, usage=usage(10, 1)))
    marts.roll_up(*MARTS, tests=True)
    assert histogram(marts) == [("chat", bucket(1200), 1)]
    marts.rebuild()
    assert histogram(marts) == [("chat", bucket(1200), 1)]


async def test_a_report_under_the_same_names_moves_the_time_too(marts: Marts) -> None:
    """A second revision differs in counts and time alone, so no row of the ledger takes the request back."""
    await set_up(marts)
    await marts.post(make_event("a", request_id="r", latency_ms=100, usage=usage(10, 1)))
    marts.roll_up(*MARTS)
    await marts.post(make_event("b", request_id="r", revision=1, latency_ms=300, usage=usage(12, 1)))
    assert marts.ledger.rows("select request_count from ledger.entries where kind = 'true_up'") == [(0,)]
    marts.roll_up(*MARTS)
    assert histogram(marts) == [("chat", bucket(300), 1)]


async def test_a_report_without_a_time_leaves_the_one_that_was_known(marts: Marts) -> None:
    await set_up(marts)
    await marts.post(make_event("n", source=NODE, request_id="r", decode_ms=400, latency_ms=500, usage=usage(9, 5)))
    marts.roll_up(*MARTS)
    await marts.post(make_event("g", request_id="r", latency_ms=620, ttft_ms=100, usage=usage(9, 5)))
    marts.roll_up(*MARTS)
    # The gateway's end, and the node's own time of writing: 400 ms over the four tokens after the first.
    assert histogram(marts) == [("chat", bucket(620), 1)]
    assert histogram(marts, "per_output_token") == [("chat", bucket(100), 1)]


async def test_a_void_takes_the_request_back(marts: Marts) -> None:
    await set_up(marts)
    await marts.post(make_event("a", request_id="r", latency_ms=100, final=False), make_event("b", latency_ms=100))
    marts.roll_up(*MARTS)
    assert histogram(marts) == [("chat", bucket(100), 2)]
    await marts.post(make_event("v", request_id="r", status="void", latency_ms=7, usage=...))
    marts.roll_up(*MARTS, tests=True)
    assert histogram(marts) == [("chat", bucket(100), 1)]


async def test_a_call_of_which_nobody_said_a_time_is_counted_as_that(marts: Marts) -> None:
    await set_up(marts)
    await marts.post(make_event("a"), make_event("hit", cache_result="exact_hit", latency_ms=3))
    marts.roll_up(*MARTS)
    assert marts.ledger.rows(
        "select served_by, bucket from marts.fct_latency_daily where metric = 'end_to_end' order by 1"
    ) == [("model", -1), ("response_cache", bucket(3))]
    assert marts.ledger.rows(
        "select measured_count, unmeasured_count, p50_ms from marts.fct_latency_percentiles_daily"
        " where metric = 'end_to_end'"
    ) == [(0, 1, None)]


async def test_what_was_written_after_a_caller_left_is_generated_minus_delivered(marts: Marts) -> None:
    """300 written and 120 delivered leave 180; of another call of 50 nobody says how much arrived; a whole one is none. 40 arrived of a
    call whose usage comes a run later: until then it is in no sum."""
    await set_up(marts)
    await marts.post(
        make_event(
            "a", request_id="a", status="cancelled", usage=usage(10, 280), delivered_output_tokens=100, final=False
        ),
        make_event("b", status="interrupted", usage=usage(10, 50)),
        make_event("c", usage=usage(10, 70), delivered_output_tokens=70),
        make_event("d", request_id="d", status="cancelled", usage=..., delivered_output_tokens=40),
    )
    marts.roll_up(*MARTS)
    cancelled = (
        "select status, request_count, usage_missing_count, generated_output_tokens, delivered_output_tokens,"
        " undelivered_output_tokens, delivery_unknown_count, delivery_unknown_tokens from marts.fct_cancelled_daily order by 1"
    )
    interrupted = ("interrupted", 1, 0, 50, 0, 0, 1, 50)
    assert marts.ledger.rows(cancelled) == [("cancelled", 2, 1, 280, 100, 180, 0, 0), interrupted]
    await marts.post(
        make_event("a2", request_id="a", status="cancelled", usage=usage(10, 300), delivered_output_tokens=120),
        make_event(
            "d2", request_id="d", status="cancelled", usage=usage(10, 60), delivered_output_tokens=40, revision=1
        ),
    )
    marts.roll_up(*MARTS, tests=True)
    assert marts.ledger.rows(cancelled) == [("cancelled", 2, 0, 360, 160, 200, 0, 0), interrupted]


async def test_tokens_per_minute_have_their_peak_and_means(marts: Marts) -> None:
    """600 + 300 tokens end in one minute and 60 in another: peak 900, 480 in a minute with any, 960 / 1,440 in the day's."""
    await set_up(marts, "m-1", "m-2")
    await marts.post(
        make_event("a", model="m-1", time="2026-01-15T10:00:00Z", usage=usage(500, 100)),
        make_event("b", model="m-2", time="2026-01-15T10:00:59.999999Z", usage=usage(300)),
        make_event("c", model="m-1", time="2026-01-15T10:01:00Z", usage=usage(60)),
    )
    marts.roll_up(*MARTS, tests=True)
    assert marts.ledger.rows(
        "select scope, model, peak_tokens_per_minute, to_char(peak_at, 'HH24:MI'), active_minute_count,"
        " mean_tokens_per_active_minute, mean_tokens_per_minute from marts.fct_tokens_per_minute_daily order by 1, 2"
    ) == [
        ("model", "m-1", 600, "10:00", 2, Decimal("330.000"), Decimal("0.458")),
        ("model", "m-2", 300, "10:00", 1, Decimal("300.000"), Decimal("0.208")),
        ("tenant", "", 900, "10:00", 2, Decimal("480.000"), Decimal("0.667")),
    ]
