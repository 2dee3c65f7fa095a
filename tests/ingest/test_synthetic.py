"""Synthetic usage: measured rates in, the bytes of a gateway out; the same plan is the same bytes."""

import json
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import mean, pstdev

import pytest

from ingest.servegen import WINDOW_SECONDS, WINDOWS, Client, read_clients
from ingest.synthetic import SOURCE, Plan, party_of
from ledger.times import parse_rfc3339

DATA = Path(__file__).parent.parent.parent / "data" / "servegen"
MONDAY = parse_rfc3339("2026-11-09T00:00:00Z")
DAY = 86_400_000_000


@pytest.fixture(scope="module")
def clients() -> Sequence[Client]:
    return read_clients(DATA)


def a_plan(clients: Sequence[Client], events: int = 3000, seed: str = "a", since: int = MONDAY, days: int = 14) -> Plan:
    return Plan(seed=seed, events=events, since=since, until=since + days * DAY, clients=clients)


def events_of(plan: Plan) -> list[str]:
    return [event for _, events in plan.batches() for event in events]


def times_of(plan: Plan) -> list[int]:
    return [parse_rfc3339(json.loads(event)["time"]) for event in events_of(plan)]


def test_the_cut_is_what_its_page_says(clients: Sequence[Client]) -> None:
    assert len(clients) == 76
    assert sum(client.lengths_of is not None for client in clients) == 30
    # A rate of zero is a window that the source's file does not have.
    assert sum(rate > 0 for client in clients for rate in client.rates) == 119_955
    assert all(len(client.rates) == WINDOWS for client in clients)
    assert (DATA / "client_rates.csv.gz").stat().st_size + (DATA / "client_lengths.csv.gz").stat().st_size < 1 << 20


def test_there_are_exactly_as_many_events_as_asked_for_in_the_order_of_time(clients: Sequence[Client]) -> None:
    for events in (1, 999, 1000, 1001):
        times = times_of(a_plan(clients, events))
        assert len(times) == events
        assert times == sorted(times)
        assert MONDAY <= times[0] <= times[-1] < MONDAY + 14 * DAY


def test_a_span_that_cuts_blocks_and_windows_is_kept_to(clients: Sequence[Client]) -> None:
    since = MONDAY + 7 * 3_600_000_000 + 123_456
    plan = Plan(seed="a", events=500, since=since, until=since + 300_000_000, clients=clients)
    times = times_of(plan)
    assert len(times) == 500
    assert since <= min(times) <= max(times) < since + 300_000_000


def test_the_same_plan_is_the_same_events_from_any_batch_on(clients: Sequence[Client]) -> None:
    whole = list(a_plan(clients).batches())
    position, _ = whole[20]
    assert list(a_plan(clients).batches(position)) == whole[20:]
    assert [first for first, _ in whole] == [0, *[first + len(events) for first, events in whole[:-1]]]


def test_another_seed_span_or_number_shares_no_event(clients: Sequence[Client]) -> None:
    plans = [a_plan(clients), a_plan(clients, seed="b"), a_plan(clients, events=3001), a_plan(clients, days=13)]
    ids = [{json.loads(event)["id"] for event in events_of(plan)} for plan in plans]
    assert [len(each) for each in ids] == [3000, 3000, 3001, 3000]
    assert all(not one & other for place, one in enumerate(ids) for other in ids[place + 1 :])
    assert len({plan.name for plan in plans}) == 4


def test_feeds_beside_each_other_share_the_positions_without_a_gap(clients: Sequence[Client]) -> None:
    plan = a_plan(clients)
    parts = plan.split(3)
    assert [low for low, _ in parts] == [0, *[high for _, high in parts[:-1]]]
    assert parts[-1][1] == 3000
    assert all(800 < high - low < 1200 for low, high in parts)
    assert [event for low, high in parts for _, events in plan.batches(low, high) for event in events] == events_of(
        plan
    )


def test_each_event_says_that_it_is_synthetic(clients: Sequence[Client]) -> None:
    tenants = {client.tenant_id for client in clients}
    for event in map(json.loads, events_of(a_plan(clients))):
        assert event["source"] == SOURCE
        assert event["data"]["tenant_id"] in tenants
        assert event["data"]["tenant_id"].startswith("synthetic-")
        assert event["data"]["provider"] in {"synthetic", "synthetic-gpu"}
        assert event["data"]["tags"]["synthetic"] == "yes"


def test_tenants_keep_their_measured_shares(clients: Sequence[Client]) -> None:
    """The heaviest client made 1.13 of 3.47 thousand million requests of the cut: 2,000 events are split likewise, give or take a rounding."""
    found = Counter(json.loads(event)["data"]["tenant_id"] for event in events_of(a_plan(clients, 2000)))
    total = sum(sum(client.rates) for client in clients)
    for client in clients[:10]:
        assert abs(found[client.tenant_id] - 2000 * sum(client.rates) / total) <= 30


def test_hours_of_the_week_keep_their_rates(clients: Sequence[Client]) -> None:
    """A tenant whose rate is nine times its mean at some hours has its events there; also two weeks later."""
    client = max(clients[:12], key=lambda each: max(each.rates) / mean(each.rates))
    for since in (MONDAY, MONDAY + 14 * DAY):
        plan = Plan(seed="a", events=4000, since=since, until=since + 14 * DAY, clients=[client])
        found = Counter((at - since) // (6 * 3_600_000_000) for at in times_of(plan))
        work = [sum(client.rates[block * 36 : block * 36 + 36]) for block in range(56)]
        for block in range(56):
            assert abs(found[block] - 4000 * work[block] / sum(work)) <= 2


@pytest.mark.parametrize(
    ("pattern", "wanted", "low", "high"),
    [("G", 0.5, 0.45, 0.55), ("G", 2.0, 1.8, 2.2), ("W", 1.0, 0.9, 1.1), ("W", 3.0, 2.0, 3.5)],
)
def test_gaps_are_as_irregular_as_recorded(
    clients: Sequence[Client], pattern: str, wanted: float, low: float, high: float
) -> None:
    first = clients[0]
    even = Client("m-mid", "0", [1.0] * WINDOWS, [wanted] * WINDOWS, pattern * WINDOWS, first.lengths, None)
    times = times_of(Plan(seed="a", events=6000, since=MONDAY, until=MONDAY + 14 * DAY, clients=[even]))
    gaps = [after - before for before, after in pairwise(times)]
    assert low < pstdev(gaps) / mean(gaps) < high


def test_lengths_stay_within_what_was_recorded_for_the_client(clients: Sequence[Client]) -> None:
    client = next(each for each in clients if each.lengths_of is None)
    longest = max(lengths.input[-1] for lengths in client.lengths.values())
    middle = [lengths.input[5] for lengths in client.lengths.values()]
    found = sorted(
        event["data"]["usage"]["prompt_tokens"]
        for event in map(json.loads, events_of(a_plan([client])))
        if "usage" in event["data"]
    )
    assert 1 <= found[0] <= found[-1] <= longest
    assert min(middle) <= found[len(found) // 2] <= max(middle)


def test_missing_lengths_are_those_of_a_client_of_the_same_model(clients: Sequence[Client]) -> None:
    own = {(client.model, client.client_id) for client in clients if client.lengths_of is None}
    for client in clients:
        assert client.lengths_of is None or (client.model, client.lengths_of) in own


def test_a_tenant_is_the_same_party_for_every_seed(clients: Sequence[Client]) -> None:
    assert [party_of(client) for client in clients] == [party_of(client) for client in read_clients(DATA)]
    assert {party_of(client).charge_currency for client in clients} == {"USD", "EUR"}


def test_a_plan_without_calls_is_refused(clients: Sequence[Client]) -> None:
    quiet = Client("m-mid", "0", [0.0] * WINDOWS, [1.0] * WINDOWS, " " * WINDOWS, clients[0].lengths, None)
    with pytest.raises(ValueError, match="no tenant has calls"):
        list(a_plan([quiet]).batches())
    with pytest.raises(ValueError, match="an end after its beginning"):
        a_plan(clients, days=0)


def test_a_window_is_ten_minutes() -> None:
    assert WINDOWS * WINDOW_SECONDS == 14 * 86_400
