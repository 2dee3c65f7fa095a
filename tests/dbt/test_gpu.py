"""Self-hosted GPUs: tenants and idle time come to the node's bill, to the last digit, each hour."""

import asyncio
import random
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ledger.database import connect
from ledger.node_rates import NodeRate, save_node_rates
from ledger.times import parse_rfc3339
from tallystick.refold import refold
from tests.dbt.conftest import Marts
from tests.factories import NODE, make_event, make_window
from tests.support.soak import examples

PLATFORM = "t-platform"
MARTS = ("+path:models/marts/gpu", "dim_tenants")


async def set_up(marts: Marts) -> None:
    """A platform with a node of eight H100, two tenants, and standard rates of 1 and 2 USD a million tokens in and out."""
    marts.ledger.add_tenant(PLATFORM).add_tenant("t-alpha").add_tenant("t-beta").add_source().add_node()
    await marts.ledger.add_price("m-own", provider="vllm", input="1.00", output="2.00")


async def add_rates(marts: Marts, *rates: NodeRate) -> None:
    async with await connect(marts.ledger.database.url_for("tallystick_operator")) as connection:
        assert await save_node_rates(connection, rates, "ada") == len(rates)


def rate(price: str = "36", since: str = "2026-01-01T00:00:00Z", **overrides: Any) -> NodeRate:
    """36 USD an hour: a cent a second."""
    given = {
        "gpu_model": "H100", "gpu_count": 8, "hourly_price": Decimal(price), "currency": "USD",
        "effective_at": parse_rfc3339(since), "source_address": "https://cloud.example/h100", "checked_on": date(2026, 11, 30),
    }  # fmt: skip
    return NodeRate(**{**given, **overrides})


def window(event_id: str, start: str, end: str, **overrides: Any) -> dict[str, Any]:
    """A window of gpu-7 on 15 January, by times of day."""
    return make_window(
        event_id, **{
            "tenant_id": PLATFORM, "provider": "vllm", "model": "m-own",
            "starts_at": f"2026-01-15T{start}Z", "ends_at": f"2026-01-15T{end}Z", **overrides,
        },
    )  # fmt: skip


def request(event_id: str, end: str, into: int, out: int, **overrides: Any) -> dict[str, Any]:
    """A report of gpu-7 about a call that ended on 15 January; a second of prefill, nine of decoding."""
    return make_event(
        event_id, **{
            "source": NODE, "provider": "vllm", "model": "m-own", "requested_model": ..., "flavour": "vllm.chat",
            "usage": {"prompt_tokens": into, "completion_tokens": out, "total_tokens": into + out},
            "time": f"2026-01-15T{end}Z", "node_id": "gpu-7", "prefill_ms": 1_000, "decode_ms": 9_000, **overrides,
        },
    )  # fmt: skip


def rows(marts: Marts, *columns: str, where: str = "true") -> list[tuple[Any, ...]]:
    listed = ", ".join(columns)
    return marts.ledger.rows(
        f"select to_char(starts_at, 'HH24:MI'), kind, tenant_id, {listed} from marts.fct_gpu_allocation_hourly"
        f" where {where} order by starts_at, kind, tenant_id, feature"
    )


def unbalanced(marts: Marts) -> Sequence[tuple[Any, ...]]:
    """Node-hours in which tenants and idle time are not the bill; the bill by windows and rates is a test of the project."""
    return marts.ledger.rows(
        "select node_id, starts_at, currency, sum(node_amount) filter (where kind <> 'uncovered'), sum(bill_amount)"
        " from marts.fct_gpu_allocation_hourly where currency <> '' group by 1, 2, 3"
        " having sum(node_amount) <> sum(bill_amount)"
    )


async def test_an_hour_of_a_node_is_shared_by_what_its_cache_held(marts: Marts) -> None:
    """36 USD for 3,600 s, a cent a second; two calls at once for 10 s, so 0.10 is shared and 35.90 is idle.

    Alpha held 1,000 x 1 / 2 + 1,000 x 9 + 100 x 9 / 2 = 9,950 token-seconds; beta 3,000 x 1 / 2 + 3,000 x 9 + 300 x 9 / 2 =
    29,850: a quarter and three quarters, 0.025 and 0.075. Standard: 1,000 x 1 + 100 x 2 = 1,200 and 3,600 millionths. The
    platform has the idle hours and the variance, 0.1 - 0.0048 = 0.0952.
    """
    await set_up(marts)
    await add_rates(marts, rate())
    await marts.post(
        window("w-1", "09:00:00", "10:00:00", energy_joules=7_200_000),
        request("e-1", "09:30:10", 1_000, 100),
        request("e-2", "09:30:10", 3_000, 300, tenant_id="t-beta", feature="search"),
    )
    marts.roll_up(*MARTS, tests=True)
    assert rows(marts, "kv_token_ms", "node_amount", "standard_amount", "request_count") == [
        ("09:00", "idle", PLATFORM, 0, Decimal("35.9"), 0, 0),
        ("09:00", "request", "t-alpha", 9_950_000, Decimal("0.025"), Decimal("0.0012"), 1),
        ("09:00", "request", "t-beta", 29_850_000, Decimal("0.075"), Decimal("0.0036"), 1),
    ]
    assert rows(
        marts, "bill_amount", "variance_amount", "covered_us / 1000000", "busy_us / 1000000", "window_count",
        "energy_joules", "provider", "model", "currency", where="kind = 'idle'",
    ) == [("09:00", "idle", PLATFORM, 36, Decimal("0.0952"), 3600, 10, 1, 7_200_000, "vllm", "m-own", "USD")]  # fmt: skip
    assert unbalanced(marts) == []


def contents(marts: Marts) -> list[Any]:
    """Every row of the allocation, but up to which rate it knew."""
    columns = marts.ledger.value(
        "select string_agg(column_name, ', ' order by column_name) from information_schema.columns"
        " where table_name = 'fct_gpu_allocation_hourly' and column_name <> 'rates_known'"
    )
    return sorted(marts.ledger.rows(f"select {columns} from marts.fct_gpu_allocation_hourly"), key=repr)


async def test_a_request_that_spans_hours_is_shared_by_what_it_held_in_each(marts: Marts) -> None:
    """The only one, 10 s of which 4 are before ten: a second of prefill, three of decoding, then six.

    Until ten: 1,000 / 2 + 1,000 x 3 + 900 x 3 x 3 / (2 x 9) = 3,950 token-seconds; in all 500 + 9,000 + 4,050 = 13,550.
    Each hour's busy time is all its own: 0.04 and 0.06. It is counted, with its standard cost, where it ended.
    """
    await set_up(marts)
    await add_rates(marts, rate())
    await marts.post(
        window("w-1", "09:00:00", "10:00:00"),
        window("w-2", "10:00:00", "11:00:00"),
        request("e-1", "10:00:06", 1_000, 900),
    )
    marts.roll_up(*MARTS, tests=True)
    assert rows(marts, "kv_token_ms", "node_amount", "request_count", "standard_amount", where="kind = 'request'") == [
        ("09:00", "request", "t-alpha", 3_950_000, Decimal("0.04"), 0, 0),
        ("10:00", "request", "t-alpha", 9_600_000, Decimal("0.06"), 1, Decimal("0.0028")),
    ]
    assert unbalanced(marts) == []


async def test_a_request_that_ends_with_an_hour_costs_in_it_and_counts_in_the_next(marts: Marts) -> None:
    """Half-open: at ten sharp nothing is held any more, and 10:00 is the hour of its `occurred_at`, as in every mart."""
    await set_up(marts)
    await add_rates(marts, rate())
    await marts.post(window("w-1", "09:00:00", "11:00:00"), request("e-1", "10:00:00", 1_000, 0))
    marts.roll_up(*MARTS, tests=True)
    assert rows(marts, "kv_token_ms", "node_amount", "request_count", where="kind = 'request'") == [
        ("09:00", "request", "t-alpha", 9_500_000, Decimal("0.1"), 0),
        ("10:00", "request", "t-alpha", 0, 0, 1),
    ]


async def test_what_has_no_window_and_what_has_no_rate_stand_apart(marts: Marts) -> None:
    """The node says nothing of the first half of nine o'clock: a call that began in it is shared from half past on.

    A call at eight has no window at all; a node of four is one that nobody has given a price.
    """
    await set_up(marts)
    await add_rates(marts, rate())
    await marts.post(
        window("w-1", "09:30:00", "10:00:00"),
        window("w-2", "09:00:00", "10:00:00", node_id="gpu-8", gpu_count=4),
        request("e-1", "08:30:00", 1_000, 0),
        request("e-2", "09:30:05", 1_000, 0, feature="half"),
        request("e-3", "09:30:05", 1_000, 0, feature="unpriced", node_id="gpu-8"),
    )
    marts.roll_up(*MARTS, tests=True)
    assert rows(
        marts, "node_id", "feature", "currency", "kv_token_ms", "node_amount", "request_count", "bill_amount"
    ) == [
        ("08:00", "uncovered", "t-alpha", "gpu-7", "chat", "", 9_500_000, None, 1, 0),
        ("09:00", "idle", PLATFORM, "gpu-7", "", "USD", 0, Decimal("17.95"), 0, 18),
        ("09:00", "idle", PLATFORM, "gpu-8", "", "", 0, None, 0, None),
        ("09:00", "request", "t-alpha", "gpu-7", "half", "USD", 5_000_000, Decimal("0.05"), 1, 0),
        ("09:00", "request", "t-alpha", "gpu-8", "unpriced", "", 9_500_000, None, 1, 0),
        ("09:00", "uncovered", "t-alpha", "gpu-7", "half", "", 4_500_000, None, 0, 0),
    ]


async def test_the_rate_in_force_counts_and_one_that_is_known_late_makes_its_hours_anew(marts: Marts) -> None:
    """36 an hour, then 72 from half past nine: 18 + 36 = 54. The node's own rate of 7.2 from eleven is added after the run."""
    await set_up(marts)
    await add_rates(marts, rate(), rate("72", "2026-01-15T09:30:00Z"))
    await marts.post(
        window("w-1", "09:00:00", "12:00:00"),
        request("e-1", "09:10:10", 1_000, 0),
        request("e-2", "09:40:10", 1_000, 0),
    )
    marts.roll_up(*MARTS, tests=True)
    bills = ("bill_amount", "node_amount")
    assert rows(marts, *bills, where="kind = 'idle'") == [
        ("09:00", "idle", PLATFORM, 54, Decimal("53.7")), ("10:00", "idle", PLATFORM, 72, 72),
        ("11:00", "idle", PLATFORM, 72, 72),
    ]  # fmt: skip
    assert rows(marts, "node_amount", "kv_token_ms", where="kind = 'request'") == [
        ("09:00", "request", "t-alpha", Decimal("0.3"), 19_000_000)
    ]
    await add_rates(marts, rate("7.2", "2026-01-15T11:00:00Z", node_id="gpu-7"))
    assert marts.roll_up(*MARTS, tests=True).rows["fct_gpu_allocation_hourly"] == 1
    assert rows(marts, *bills, where="kind = 'idle'")[2] == ("11:00", "idle", PLATFORM, Decimal("7.2"), Decimal("7.2"))
    assert marts.roll_up(*MARTS).rows["fct_gpu_allocation_hourly"] == 0


async def test_a_rate_that_is_restated_makes_its_hours_anew(marts: Marts) -> None:
    """36 an hour was a mistake for 18, and that for 9."""
    await set_up(marts)
    first = rate()
    await add_rates(marts, first)
    await marts.post(window("w-1", "09:00:00", "10:00:00"))
    marts.roll_up(*MARTS)
    second = rate("18", replaces=first.content_hash)
    for restated in (second, rate("9", replaces=second.content_hash)):
        await add_rates(marts, restated)
        marts.roll_up(*MARTS)
        assert rows(marts, "bill_amount") == [("09:00", "idle", PLATFORM, restated.hourly_price)]
    assert marts.roll_up(*MARTS).rows["fct_gpu_allocation_hourly"] == 0


async def test_a_name_of_the_model_that_becomes_known_late_makes_its_hours_anew(marts: Marts) -> None:
    """A node says org/own, and nobody used it; then somebody says that this is m-own."""
    await set_up(marts)
    await add_rates(marts, rate())
    await marts.post(window("w-1", "09:00:00", "10:00:00", model="org/own"))
    marts.roll_up(*MARTS)
    assert rows(marts, "model") == [("09:00", "idle", PLATFORM, "org/own")]
    marts.ledger.superuser.execute("insert into ledger.model_aliases values ('vllm', 'org/own', 'm-own', 'test')")
    marts.roll_up(*MARTS, tests=True)
    assert rows(marts, "model", "bill_amount") == [("09:00", "idle", PLATFORM, "m-own", 36)]
    assert refold(marts.url, marts.home, marts=("fct_gpu_allocation_hourly",)).differences == []
    assert marts.roll_up(*MARTS).rows["fct_gpu_allocation_hourly"] == 0


async def test_gateway_and_node_are_one_request_whichever_comes_first(marts: Marts) -> None:
    """The gateway knows the feature and not the node; the node knows its phases, and its word is evidence. One row, once.

    Before the node's report came nobody knew that the call was on a node.
    """
    await set_up(marts)
    await add_rates(marts, rate())
    gateway = make_event(
        "g-1", provider="vllm", model="m-own", requested_model=..., request_id="r-1", feature="search",
        usage={"prompt_tokens": 1_000, "completion_tokens": 100, "total_tokens": 1_100},
        time="2026-01-15T09:30:10Z", latency_ms=60_000,
    )  # fmt: skip
    node = request("n-1", "09:30:10.250", 1_000, 100, request_id="r-1", feature=...)
    await marts.post(window("w-1", "09:00:00", "10:00:00"), gateway)
    marts.roll_up(*MARTS, tests=True)
    assert rows(marts, "feature", where="kind <> 'idle'") == []
    posted = await marts.post(node)
    assert [result.outcome for result in posted.results] == ["evidence"]
    marts.roll_up(*MARTS, tests=True)
    assert rows(marts, "feature", "request_count", "kv_token_ms", "node_amount", where="kind <> 'idle'") == [
        ("09:00", "request", "t-alpha", "search", 1, 9_950_000, Decimal("0.1"))
    ]
    # A revision of the gateway, which does not name the node, moves the node's hour.
    await marts.post(
        {**gateway, "id": "g-2", "data": {**gateway["data"], "revision": 1, "tenant_id": "t-alpha", "feature": "chat"}}
    )
    marts.roll_up(*MARTS, tests=True)
    assert rows(marts, "feature", "request_count", where="kind <> 'idle'") == [
        ("09:00", "request", "t-alpha", "chat", 1)
    ]
    before = contents(marts)
    marts.rebuild("fct_gpu_allocation_hourly")
    assert contents(marts) == before


@pytest.mark.parametrize(
    ("said", "kv", "missing"),
    [
        # A node's own phases: 1,000 x 1 / 2 + 1,000 x 9 + 100 x 9 / 2.
        ({"prefill_ms": 1_000, "decode_ms": 9_000, "latency_ms": 99_000}, 9_950_000, 0),
        # The first token ends the prefill, the queue holds nothing: the same 1 s and 9 s.
        ({"ttft_ms": 3_000, "queue_ms": 2_000, "latency_ms": 12_000}, 9_950_000, 0),
        # A latency alone: the input all along, 1,000 x 10 + 100 x 10 / 2.
        ({"latency_ms": 10_000}, 10_500_000, 0),
        # None: 5,000 tokens a second in, 30 out: 0.2 s and 3.334 s: 1,000 x 0.2 / 2 + 1,000 x 3.334 + 100 x 3.334 / 2.
        ({}, 3_600_700, 1),
        # None that could be: longer than three hours, or no time at all.
        ({"latency_ms": 10_800_001}, 3_600_700, 1),
        ({"latency_ms": 0, "prefill_ms": 0, "decode_ms": 0}, 3_600_700, 1),
    ],
)
async def test_how_long_a_request_was_there_is_the_best_word_of_it(
    marts: Marts, said: dict[str, int], kv: int, missing: int
) -> None:
    await set_up(marts)
    await add_rates(marts, rate())
    plain = {"prefill_ms": ..., "decode_ms": ...}
    await marts.post(window("w-1", "09:00:00", "10:00:00"), request("e-1", "09:30:00", 1_000, 100, **{**plain, **said}))
    marts.roll_up(*MARTS)
    assert rows(marts, "kv_token_ms", "latency_missing_count", where="kind = 'request'") == [
        ("09:00", "request", "t-alpha", kv, missing)
    ]
    assert unbalanced(marts) == []


async def test_a_call_whose_tokens_nobody_knows_shows_and_costs_nothing_here(marts: Marts) -> None:
    await set_up(marts)
    await add_rates(marts, rate())
    await marts.post(window("w-1", "09:00:00", "10:00:00"), request("e-1", "09:30:00", 1, 1, usage=..., flavour=...))
    marts.roll_up(*MARTS, tests=True)
    assert rows(marts, "usage_missing_count", "standard_unpriced_count", "node_amount", where="kind = 'request'") == [
        ("09:00", "request", "t-alpha", 1, 1, 0)
    ]


async def test_a_withdrawn_call_gives_its_share_back(marts: Marts) -> None:
    await set_up(marts)
    await add_rates(marts, rate())
    call = request("e-1", "09:30:10", 1_000, 100)
    await marts.post(window("w-1", "09:00:00", "10:00:00"), {**call, "data": {**call["data"], "final": False}})
    marts.roll_up(*MARTS, tests=True)
    void = request("e-2", "09:30:10", 0, 0, request_id="req-e-1", status="void", usage=..., flavour=..., revision=1)
    await marts.post(void)
    marts.roll_up(*MARTS, tests=True)
    assert rows(marts, "node_amount", "busy_us") == [("09:00", "idle", PLATFORM, 36, 0)]


async def test_a_window_that_comes_late_and_minutes_instead_of_an_hour_change_nothing(marts: Marts) -> None:
    """Sixty windows, the last of them a run later, are the hour that one window is: 36 to the last digit, energy too."""
    await set_up(marts)
    await add_rates(marts, rate())

    def minute(number: int, node_id: str) -> dict[str, Any]:
        end = "10:00:00" if number == 59 else f"09:{number + 1:02d}:00"
        return window(f"w-{node_id}-{number}", f"09:{number:02d}:00", end, node_id=node_id, energy_joules=101)

    calls = [
        request(f"e-{node}-{number}", f"09:{number:02d}:03", 100 + number, 7 * number, node_id=node)
        for node in ("gpu-7", "gpu-8")
        for number in range(1, 60, 7)
    ]
    await marts.post(
        *calls, *(minute(number, "gpu-7") for number in range(59)),
        window("w-8", "09:00:00", "10:00:00", node_id="gpu-8", energy_joules=6_060),
    )  # fmt: skip
    marts.roll_up(*MARTS)
    await marts.post(minute(59, "gpu-7"))
    marts.roll_up(*MARTS, tests=True)
    listed = ("kind", "feature", "kv_token_ms", "node_amount", "bill_amount", "busy_us", "energy_joules")
    assert rows(marts, *listed, where="node_id = 'gpu-7'") == rows(marts, *listed, where="node_id = 'gpu-8'")
    assert rows(marts, "bill_amount", "energy_joules", where="kind = 'idle' and node_id = 'gpu-7'")[0][3:] == (
        36,
        6_060,
    )


async def test_two_owners_and_two_models_of_one_hour_pay_each_its_own_time(marts: Marts) -> None:
    """Sold at half past, in the middle of a call: 5 s of it are shared on the old owner's time, 5 on the new one's."""
    await set_up(marts)
    marts.ledger.add_tenant("t-buyer")
    await add_rates(marts, rate())
    await marts.post(
        window("w-1", "09:00:00", "09:30:00"),
        window("w-2", "09:30:00", "10:00:00", tenant_id="t-buyer", model="m-else"),
        request("e-1", "09:30:05", 1_000, 0),
    )
    marts.roll_up(*MARTS, tests=True)
    assert rows(marts, "model", "node_amount", "bill_amount", "busy_us") == [
        ("09:00", "idle", "t-buyer", "m-else", Decimal("17.95"), 18, 5_000_000),
        ("09:00", "idle", PLATFORM, "m-own", Decimal("17.95"), 18, 5_000_000),
        ("09:00", "request", "t-alpha", "m-own", Decimal("0.1"), 0, 0),
    ]


async def test_a_standard_rate_in_another_currency_leaves_the_variance_unknown(marts: Marts) -> None:
    await set_up(marts)
    await add_rates(marts, rate(currency="EUR"))
    await marts.post(window("w-1", "09:00:00", "10:00:00"), request("e-1", "09:30:10", 1_000, 100))
    marts.roll_up(*MARTS, tests=True)
    assert rows(marts, "currency", "standard_currency", "node_amount", "variance_amount") == [
        ("09:00", "idle", PLATFORM, "EUR", "", Decimal("35.9"), None),
        ("09:00", "request", "t-alpha", "EUR", "USD", Decimal("0.1"), 0),
    ]


async def test_no_reader_of_a_tenant_sees_a_node(marts: Marts) -> None:
    await set_up(marts)
    marts.roll_up(*MARTS)
    assert marts.ledger.value("select to_regclass('marts.own_fct_gpu_allocation_hourly')") is None
    assert not marts.ledger.value(
        "select has_table_privilege('tallystick_reader', 'marts.fct_gpu_allocation_hourly', 'select')"
    )


@st.composite
def loads(draw: st.DrawFn) -> tuple[list[tuple[int, int]], list[tuple[int, int, int, int, int, int]]]:
    """Windows of a node within three hours, as (start, end) in milliseconds, and calls as (tenant, end, in, out, prefill, decode)."""
    marks = sorted(draw(st.sets(st.integers(0, 10_800_000), min_size=2, max_size=12)))
    windows = [pair for pair in pairwise(marks) if draw(st.booleans())] or [(marks[0], marks[-1])]
    call = st.tuples(
        st.integers(0, 1), st.integers(0, 10_800_000), st.integers(0, 200_000), st.integers(0, 5_000),
        st.integers(0, 60_000), st.integers(0, 4_000_000),
    )  # fmt: skip
    return windows, draw(st.lists(call, max_size=25))


def test_whatever_the_load_tenants_and_idle_come_to_the_bill(marts: Marts) -> None:
    """Any windows, with gaps; any calls, over hours, at once, of no length or no tokens; an odd price. In one run or in several.

    The bill is made here from the windows alone: the price for each hour's covered time, rounded at twelve places.
    """
    price = Decimal("29.876543210987")
    asyncio.run(set_up(marts))
    asyncio.run(add_rates(marts, rate(str(price))))
    base = datetime(2026, 1, 15, 6, tzinfo=UTC)
    numbers = iter(range(1_000_000))
    expected: dict[tuple[str, datetime], Decimal] = {}

    @settings(max_examples=examples(12), suppress_health_check=list(HealthCheck))
    @given(loads(), st.randoms(use_true_random=False))
    def holds(load: tuple[Any, Any], chance: random.Random) -> None:
        node_id = f"n-{next(numbers)}"
        windows, calls = load

        def at(ms: int) -> str:
            return (base + timedelta(milliseconds=ms)).isoformat().replace("+00:00", "Z")

        events = [
            make_window(
                f"{node_id}-w-{n}", node_id=node_id, tenant_id=PLATFORM, starts_at=at(start), ends_at=at(end), energy_joules=n
            )
            for n, (start, end) in enumerate(windows)
        ] + [
            request(
                f"{node_id}-e-{n}", "00:00:00", into, out, node_id=node_id, tenant_id=("t-alpha", "t-beta")[tenant],
                time=at(end), prefill_ms=prefill, decode_ms=decode,
            )
            for n, (tenant, end, into, out, prefill, decode) in enumerate(calls)
        ]  # fmt: skip
        chance.shuffle(events)
        half = chance.randint(0, len(events))
        for part in (events[:half], events[half:]):
            if part:
                asyncio.run(marts.post(*part))
                marts.roll_up(*MARTS)
        for hour in range(3):
            covered = sum(
                max(min(end, (hour + 1) * 3_600_000) - max(start, hour * 3_600_000), 0) for start, end in windows
            )
            if covered:
                bill = (price * covered / 3_600_000).quantize(Decimal("1e-12"))
                expected[node_id, base + timedelta(hours=hour)] = bill
        found = {
            (node, starts_at): (shared, bill)
            for node, starts_at, shared, bill in marts.ledger.rows(
                "select node_id, starts_at, sum(node_amount), sum(bill_amount) from marts.fct_gpu_allocation_hourly"
                " where currency <> '' group by 1, 2"
            )
        }
        assert found.keys() == expected.keys()
        for key, bill in expected.items():
            # Python rounds a half to even, Postgres away from zero: that is no difference at twelve places of these prices.
            assert found[key] == (bill, bill), key

    holds()
    marts.roll_up(*MARTS, tests=True)
    # However idle time is shared, by the hour or by the day, it comes to the bills.
    bills = marts.ledger.value("select sum(bill_amount) from marts.fct_gpu_allocation_hourly where currency <> ''")
    assert bills == sum(expected.values())
    for mart in ("fct_self_hosted_cost_hourly", "fct_self_hosted_cost_daily"):
        assert marts.ledger.rows(
            f"select sum(used_amount + idle_amount), count(*) filter (where used_amount < 0 or idle_amount < 0) from marts.{mart}"
        ) == [(bills, 0)]
    piecemeal = contents(marts)
    marts.rebuild("fct_gpu_allocation_hourly")
    assert contents(marts) == piecemeal
