"""Signals: what is unlike a tenant's own past is found, explained, and the same however often the rollup runs."""

import re
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from tests.conftest import CHECKOUT
from tests.dbt.conftest import Marts
from tests.dbt.test_project import invoke
from tests.factories import make_event
from tests.support import abuse

START = datetime(2026, 3, 2, tzinfo=UTC)


def call(number: int, at: datetime, *, tokens: int = 200_000, cached: int = 0, **data: Any) -> dict[str, Any]:
    """A call of 200,000 input tokens, which is charged 0.20 USD."""
    usage = {
        "prompt_tokens": tokens,
        "completion_tokens": 0,
        "total_tokens": tokens,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    data.setdefault("api_key_id", "key-1")
    return make_event(f"ev-{number}", time=f"{at:%Y-%m-%dT%H:%M:%SZ}", usage=usage, **data)


def calm(hours: int, *, every_minutes: int = 6, users: int = 7, **data: Any) -> list[dict[str, Any]]:
    """Ten calls an hour for so many hours from START on: 2 USD an hour."""
    return [
        call(number, START + timedelta(minutes=every_minutes * number), user_hash=f"u-{number % users}", **data)
        for number in range(hours * 60 // every_minutes)
    ]


def burst(at: datetime, count: int, first: int = 1_000_000, **data: Any) -> list[dict[str, Any]]:
    """So many calls, one every ten seconds."""
    return [
        call(first + n, at + timedelta(seconds=10 * n), **{"user_hash": f"u-{n % 7}", **data}) for n in range(count)
    ]


async def set_up(marts: Marts) -> None:
    marts.ledger.add_tenant().add_source()
    await marts.ledger.add_price(input="1.00", cached="0.10", output="1.00")
    await marts.ledger.add_price("m-other", input="1.00", cached="0.10", output="1.00", markup=None)


async def post_all(marts: Marts, events: list[dict[str, Any]]) -> None:
    for first in range(0, len(events), 1000):
        await marts.post(*events[first : first + 1000])


ALL = ("+fct_spend_spikes", "+fct_abuse_signals")
"""What dbt is to roll up: the signals and what they are made from."""


def found(marts: Marts) -> set[str]:
    rows = marts.ledger.rows(
        "select 'spend' from marts.fct_spend_spikes union select kind from marts.fct_abuse_signals"
    )
    return {kind for (kind,) in rows}


def test_the_page_lists_the_limits_that_the_project_has() -> None:
    macro = (CHECKOUT / "dbt" / "macros" / "signals.sql").read_text()
    page = (CHECKOUT / "docs" / "spikes.md").read_text()
    said = macro[macro.index("set limits = {") :]
    limits = {name: float(value) for name, value in re.findall(r'"(\w+)": ([\d.]+)', said[: said.index("} -%}")])}
    listed = {}
    for names, values in re.findall(r"^\| (`[\w`, ]+`) \| ([\d., ]+) \|", page, re.MULTILINE):
        listed |= zip(re.findall(r"\w+", names), map(float, values.split(", ")), strict=True)
    assert listed == limits


def shown_by(marts: Marts, explain: str) -> list[dict[str, Any]]:
    """What a query that explains a signal shows, as it is, to whoever may only read; by names of columns."""
    with psycopg.connect(marts.ledger.database.url_for("tallystick_analyst"), row_factory=dict_row) as connection:
        return connection.execute(explain.encode()).fetchall()


def assert_explained(marts: Marts) -> set[str]:
    """The numbers of each abuse signal are those of the last window that its query shows. Return which kinds there are."""
    kinds = set()
    for kind, value, observed, calls, explain in marts.ledger.rows(
        "select kind, value, observed, sample_count, explain_sql from marts.fct_abuse_signals"
    ):
        rows = shown_by(marts, explain)
        kinds.add(kind)
        if kind == "one_user":
            (last, all_users) = [name for name in rows[0] if name.startswith("last_")]
            assert (sum(row[last] for row in rows), rows[0][all_users]) == (round(observed * calls), calls)
            continue
        rows = [row for row in rows if row["window_at"] == rows[-1]["window_at"]]
        match kind:
            case "language_shift" | "model_shift":
                names = [row for row in rows if row[kind.removesuffix("_shift")] == value]
                (hits, of) = (sum(row["requests"] for row in names), sum(row["requests"] for row in rows))
            case "errors" | "retries":
                (hits, of) = (sum(row[kind] for row in rows), sum(row["requests"] for row in rows))
            case "long_prompts":
                of = sum(row["requests"] for row in rows)
                hits = next(n for n in (rows[0]["over_16k"], rows[0]["over_64k"]) if n == round(observed * calls))
            case "cache":
                (read, length) = [name for name in rows[0] if name[-1].isdigit()]
                (hits, of) = (rows[0][read], rows[0][length])
            case _:
                # In minimums of 5 USD.
                assert {row["charge_currency"] for row in rows} == {"USD"}
                assert abs(sum(row["charge"] for row in rows) / 5 - observed) < 0.0001
                (hits, of) = (None, sum(row["requests"] for row in rows))
        assert of == calls, (kind, rows)
        assert hits is None or abs(hits / of - observed) < 0.0001, (kind, rows)
    return kinds


@pytest.mark.parametrize(
    ("given", "rows"),
    [
        ('{USD: 20, SEK: 50, "": 7}', {"USD": "20", "EUR": "5", "JPY": "750", "SEK": "50", "": "7"}),
        ("{usd: 20}", None),
        ("{USD: 0}", None),
    ],
)
def test_minimums_that_are_set_leave_the_others_as_they_are(
    marts: Marts, tmp_path: Path, given: str, rows: dict[str, str] | None
) -> None:
    inline = ("compile", "--inline", "{{ signal_minimum_rows() }}", "--vars", f"{{signal_minimums: {given}}}")
    outcome = invoke(marts.url, tmp_path, *inline)
    assert outcome.success == (rows is not None)
    if rows is None:
        assert "signal_minimums" in str(outcome.exception)
        return
    (compiled,) = outcome.result.results
    made = dict(
        marts.ledger.rows(f"select charge_currency, minimum_amount::text from ({compiled.node.compiled_code}) as m")
    )
    assert rows.items() <= made.items()


DAY_FIVE = START + timedelta(days=4, hours=10)


async def test_a_burn_is_found_within_its_first_minutes_and_says_since_when(marts: Marts) -> None:
    """Usual: 2 USD an hour, 0.60 in the dearest quarter. Then 30 calls in five minutes: 6 USD, more than twice that and than
    the minimum of 5; as half an hour's 12.40 they are 8 spreads of 1.25 above the usual."""
    await set_up(marts)
    await post_all(marts, calm(4 * 24 + 10))
    await post_all(marts, burst(DAY_FIVE, 60))
    marts.roll_up(*ALL, tests=True)
    rows = marts.ledger.rows(
        "select starts_at::text, severity, round(usual_hour_amount, 2)::text, since_at::text, explain_sql"
        " from marts.fct_spend_spikes order by starts_at"
    )
    assert rows[0][:4] == ("2026-03-06 10:00:00+00", "warning", "2.00", "2026-03-06 10:00:00+00")
    assert {row[3] for row in rows} == {"2026-03-06 10:00:00+00"}
    for at, hour, quarter, requests, explain in marts.ledger.rows(
        "select starts_at, hour_amount, quarter_amount, hour_request_count, explain_sql from marts.fct_spend_spikes"
    ):
        shown = shown_by(marts, explain)
        ends_at = at + timedelta(minutes=5)
        assert shown[0]["window_at"] == ends_at - timedelta(hours=6)
        of_hour = [row for row in shown if row["window_at"] >= ends_at - timedelta(hours=1)]
        assert (sum(row["charge"] for row in of_hour), sum(row["requests"] for row in of_hour)) == (hour, requests)
        assert sum(row["charge"] for row in shown if row["window_at"] == ends_at - timedelta(minutes=15)) == quarter


async def test_the_same_burn_below_the_minimum_wakes_nobody(marts: Marts) -> None:
    """Twenty calls more make 4 USD more, which is below 5, however unusual it is."""
    await set_up(marts)
    await post_all(marts, calm(4 * 24 + 10))
    await post_all(marts, burst(DAY_FIVE, 20))
    marts.roll_up(*ALL)
    assert found(marts) == set()


async def test_calls_that_are_dearer_are_a_burn_where_as_much_in_usual_calls_is_a_burst(marts: Marts) -> None:
    """Two keys that are alike: 2 USD an hour, and once 12 in ten minutes. Then 16 USD and more each: key-1 in twelve calls of 1.40, seven
    times what a call costs, and key-0 in eighty usual ones, which are less than twice the dearest quarter hour."""
    await set_up(marts)
    usual = calm(4 * 24 + 10, every_minutes=3)
    for number, event in enumerate(usual):
        event["data"]["api_key_id"] = f"key-{number % 2}"
    past = START + timedelta(days=2, hours=14)
    await post_all(marts, usual + burst(past, 60, 2_000_000, api_key_id="key-0") + burst(past, 60, 3_000_000))
    await post_all(marts, burst(DAY_FIVE, 80, 4_000_000, api_key_id="key-0") + burst(DAY_FIVE, 12, tokens=1_400_000))
    marts.roll_up(*ALL)
    rows = marts.ledger.rows("select api_key_id, starts_at::text from marts.fct_spend_spikes order by starts_at")
    assert rows[0] == ("key-1", "2026-03-06 10:00:00+00")
    assert {key for key, _ in rows} == {"key-1"}


async def test_an_incident_of_the_past_hides_no_burn_of_many_calls(marts: Marts) -> None:
    """Once 30 calls cost 42 USD within five minutes, 36 of them unexplained by usual calls of 0.20. Then 30 cost 30: less than that.
    A dozen calls may all be dear by chance, so those must be beyond that incident: 12 that cost 24 are not."""
    await set_up(marts)
    past = START + timedelta(days=2, hours=14)
    usual = calm(4 * 24 + 10, every_minutes=1)
    for number, event in enumerate(usual):
        event["data"]["api_key_id"] = f"key-{number % 2}"
    for key in range(2):
        usual += burst(past, 30, (2 + key) * 1_000_000, tokens=1_400_000, api_key_id=f"key-{key}")
    await post_all(marts, usual)
    await post_all(marts, burst(DAY_FIVE, 12, 4_000_000, tokens=2_000_000, api_key_id="key-0"))
    await post_all(marts, burst(DAY_FIVE, 30, 5_000_000, tokens=1_000_000, api_key_id="key-1"))
    marts.roll_up(*ALL)
    rows = marts.ledger.rows("select api_key_id, starts_at::text from marts.fct_spend_spikes order by starts_at")
    assert rows[0] == ("key-1", "2026-03-06 10:00:00+00")
    assert {key for key, _ in rows} == {"key-1"}


async def test_without_three_days_of_history_nothing_is_signalled(marts: Marts) -> None:
    await set_up(marts)
    await post_all(marts, calm(60))
    await post_all(marts, burst(START + timedelta(hours=60), 200))
    marts.roll_up(*ALL)
    assert found(marts) == set()


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("new_key", {"api_key_id": "key-stolen"}),
        ("language_shift", {"language": "vi"}),
        ("model_shift", {"model": "m-other", "requested_model": "m-other"}),
        ("errors", {"status": "error"}),
        ("retries", {"attempt_kind": "retry", "attempt": 2}),
        ("one_user", {"user_hash": "u-thief"}),
    ],
)
async def test_calls_that_are_unlike_the_past_are_named_and_explained(
    marts: Marts, kind: str, data: dict[str, Any]
) -> None:
    await set_up(marts)
    await post_all(marts, calm(4 * 24 + 10))
    await post_all(marts, burst(DAY_FIVE, 60, **data))
    marts.roll_up(*ALL, tests=True)
    rows = marts.ledger.rows(
        "select kind, since_at::text, explain_sql from marts.fct_abuse_signals where kind = %s", kind
    )
    assert rows
    assert {row[1] for row in rows} <= {"2026-03-06 10:00:00+00", "2026-03-06 10:05:00+00"}
    assert kind in assert_explained(marts)


async def test_very_long_prompts_and_caches_that_stop_are_named(marts: Marts) -> None:
    """Usual: prompts of 10,000 tokens, 6,000 of them cached. Then 70,000 and no cache."""
    await set_up(marts)
    usual = [
        call(n, START + timedelta(minutes=3 * n), tokens=10_000, cached=6_000, user_hash=f"u-{n % 7}")
        for n in range((4 * 24 + 10) * 20)
    ]
    await post_all(marts, usual)
    await post_all(marts, burst(DAY_FIVE, 60, tokens=70_000))
    marts.roll_up(*ALL, tests=True)
    assert {"long_prompts", "cache"} <= found(marts)
    assert {"long_prompts", "cache"} <= assert_explained(marts)


@pytest.mark.parametrize(("cached", "kinds"), [(256, {"cache"}), (0, set())], ids=["read before", "never read"])
async def test_short_calls_are_held_against_calls_of_their_length(marts: Marts, cached: int, kinds: set[str]) -> None:
    """Usual: as many calls of 10,000 tokens, 6,000 of them cached, as of 300, which are read from the cache or never were. Then
    calls of 300 tokens that are not read: a cache that broke, or traffic that turned to short calls."""
    await set_up(marts)
    usual = [
        call(n, START + timedelta(minutes=3 * n), user_hash=f"u-{n % 7}", tokens=tokens, cached=read)
        for n in range((4 * 24 + 10) * 20)
        for tokens, read in [((10_000, 6_000), (300, cached))[n % 2]]
    ]
    await post_all(marts, usual)
    await post_all(marts, burst(DAY_FIVE, 60, tokens=300))
    marts.roll_up(*ALL)
    assert found(marts) == kinds
    assert assert_explained(marts) == kinds


async def test_one_run_and_many_runs_signal_the_same(marts: Marts) -> None:
    """What is signalled follows from the usage alone, so that judging all of the past at once is judging it as it came."""
    await set_up(marts)
    events = calm(4 * 24 + 10) + burst(DAY_FIVE, 90, user_hash="u-thief", language="vi")
    events.sort(key=lambda event: event["time"])
    # Within a day, within the burst, and within five minutes of it.
    for first, last in pairwise((0, 500, 1075, 1110, len(events))):
        await marts.post(*events[first:last])
        marts.roll_up(*ALL)
    tables = ("fct_signal_baselines", "fct_spend_spikes", "fct_abuse_signals")
    piecemeal = {name: sorted(marts.ledger.rows(f"select * from marts.{name}"), key=repr) for name in tables}
    assert all(piecemeal.values())
    for name in tables:
        marts.rebuild(name)
        assert sorted(marts.ledger.rows(f"select * from marts.{name}"), key=repr) == piecemeal[name], name


async def test_abuse_in_measured_arrivals_is_found_and_little_else(marts: Marts) -> None:
    """The evaluation in small: four tenants, one seed. `make bench NAME=spikes` has the whole."""
    traffic = abuse.make_traffic(201, tenants=4, events=30_000)
    assert len(traffic.injections) >= 5
    await abuse.set_up(marts.ledger, traffic.tenants)
    await abuse.post(marts.ledger, traffic.events)
    marts.roll_up(*ALL)
    score = abuse.judge(abuse.signals(marts.ledger), traffic)
    assert score.recall_in_time >= 0.9, score.line()
    assert score.delay(0.9) < 15, score.line()
    assert len(score.false_alarms) <= 1, score.line()
    assert {"new_key", "one_user", "cache"} <= assert_explained(marts)
