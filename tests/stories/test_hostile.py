"""Impossible counts, odd totals, wrong clocks: what arrives in one batch becomes money or a letter with its reason, exactly."""

from decimal import Decimal
from typing import Any

from tests.factories import event_bytes, make_event
from tests.support.ledger import Ledger

CENT = {"prompt_tokens": 5000, "completion_tokens": 0, "total_tokens": 5000}
"""0.01 at 2.00 per million input tokens."""


def letters(ledger: Ledger) -> dict[str, str]:
    """Open dead letters by the id of their event, with the reason."""
    rows = ledger.rows("select event_id, reason from ledger.dead_letters where resolved_at is null")
    return dict(rows)


async def test_b081_a_missing_total_is_made_of_the_parts_and_never_the_other_way_round(ledger: Ledger) -> None:
    """12 x 2.50 + 7 x 10.00 per million = 0.0001, whether the total is null, zero or right."""
    await ledger.add_price(input="2.50", output="10.00")
    totals = {"t1": None, "t2": 0, "t3": 19}
    await ledger.post(
        *(
            make_event(event_id, usage={"prompt_tokens": 12, "completion_tokens": 7, "total_tokens": total})
            for event_id, total in totals.items()
        )
    )
    assert ledger.rows(
        "select request_id, input_tokens, output_tokens, charge_amount, usage_flags from ledger.entries order by request_id"
    ) == [
        ("req-t1", 12, 7, Decimal("0.0001"), ["total_missing"]),
        ("req-t2", 12, 7, Decimal("0.0001"), ["total_differs"]),
        ("req-t3", 12, 7, Decimal("0.0001"), []),
    ]


async def test_b082_impossible_counts_are_set_aside_and_their_neighbour_is_booked(ledger: Ledger) -> None:
    """100 x 2.00 + 10 x 8.00 per million = 0.00028 for i4; i1 to i3 wait, each with its reason; no line is negative."""
    await ledger.add_price(input="2.00", cached="0.50", output="8.00")

    def sent(event_id: str, **usage: Any) -> dict[str, Any]:
        return make_event(event_id, usage=usage)

    posted = await ledger.post(
        sent("i1", prompt_tokens=100, prompt_tokens_details={"cached_tokens": 150}, completion_tokens=10),
        sent("i2", prompt_tokens=100, completion_tokens=-50),
        sent("i3", prompt_tokens=10.5, completion_tokens=1),
        sent("i4", prompt_tokens=100, completion_tokens=10),
    )
    assert ledger.outcomes(posted) == ["dead_letter", "dead_letter", "dead_letter", "created"]
    assert letters(ledger) == {"i1": "part_above_whole", "i2": "not_a_count", "i3": "not_a_count"}
    assert ledger.rows("select request_id, charge_amount from ledger.entries") == [("req-i4", Decimal("0.00028"))]
    assert ledger.value("select count(*) from ledger.entry_lines where quantity < 0 or amount < 0") == 0
    assert ledger.budgets_that_differ() == []
    # The next batch goes in: nothing stands still.
    assert ledger.outcomes(await ledger.post(sent("i5", prompt_tokens=100, completion_tokens=10))) == ["created"]


async def test_b085_a_nul_in_a_label_costs_nobody_their_money(ledger: Ledger) -> None:
    """99 x 0.01 = 0.99, and event 57 lies there with the bytes that came."""
    await ledger.add_price(input="2.00", output="8.00")
    events = [
        make_event(f"ev-{number}", feature="chat\0bot" if number == 57 else "chat", usage=CENT) for number in range(100)
    ]
    posted = await ledger.post(*events)
    assert ledger.outcomes(posted).count("created") == 99
    assert ledger.total() == Decimal("0.99")
    assert ledger.rows("select event_id, reason, bytes from ledger.dead_letters") == [
        ("ev-57", "nul_in_text", event_bytes(events[57]))
    ]
    assert b"\\u0000" in event_bytes(events[57])


async def test_b086_a_lone_surrogate_is_set_aside_once_and_known_again(ledger: Ledger) -> None:
    """The ledger sums to 0 both times, never to 0.02; the second send is a repeat of the first."""
    await ledger.add_price(input="2.00", output="8.00")
    body = event_bytes(make_event("ev-1", feature="x?y", usage=CENT)).replace(b"x?y", b"x\\ud835y")
    for _ in range(2):
        assert ledger.outcomes(await ledger.post_bytes(body)) == ["dead_letter"]
    assert ledger.total() == 0
    assert ledger.rows("select reason, bytes, repeats from ledger.dead_letters") == [("lone_surrogate", body, 1)]


async def test_b134_seconds_are_not_milliseconds_and_no_row_lies_outside_the_range(ledger: Ledger) -> None:
    """3 x 0.01 = 0.03 on 2026-01-01; the other four wait."""
    await ledger.add_price(input="2.00", output="8.00")
    stated: dict[str, dict[str, Any]] = {
        "e1": {"time": "2026-01-01T00:00:00Z"},
        "e2": {"time": ..., "time_unix": 1767225600, "time_unit": "s"},
        "e3": {"time": ..., "time_unix": 1767225600000, "time_unit": "ms"},
        "e4": {"time": ..., "time_unix": 1767225600000, "time_unit": "s"},
        "e5": {"time": ..., "time_unix": 1767225600, "time_unit": "ms"},
        "e6": {"time": ..., "time_unix": 1767225600},
        "e7": {"time": "2026-01-01T00:00:00"},
    }
    await ledger.post(
        *(make_event(event_id, usage=CENT, **times) for event_id, times in stated.items()),
        received_at="2026-01-01T00:05:00Z",
    )
    assert ledger.rows(
        "select occurred_at::text, posting_period::text, count(*), sum(charge_amount) from ledger.entries group by 1, 2"
    ) == [("2026-01-01 00:00:00+00", "2026-01-01", 3, Decimal("0.03"))]
    assert letters(ledger) == {"e4": "bad_time", "e5": "time_too_early", "e6": "bad_time", "e7": "bad_time"}


async def test_b135_a_clock_slightly_ahead_is_booked_where_it_says_and_one_far_ahead_waits(ledger: Ledger) -> None:
    """January holds 1.00 and February 2.00; 4.00 and 8.00 are in no month until a person releases them."""
    await ledger.add_price(input="1.00", output="1.00")
    sent = {
        "s1": ("2026-01-31T23:59:20Z", 1),
        "s2": ("2026-02-01T00:01:00Z", 2),
        "s3": ("2026-02-01T00:03:01Z", 4),
        "s4": ("2027-01-01T00:00:00Z", 8),
    }
    await ledger.post(
        *(
            make_event(event_id, time=at, usage={"prompt_tokens": amount * 1_000_000, "completion_tokens": 0})
            for event_id, (at, amount) in sent.items()
        ),
        received_at="2026-01-31T23:58:00Z",
    )
    assert ledger.rows("select posting_period::text, sum(charge_amount) from ledger.entries group by 1 order by 1") == [
        ("2026-01-01", Decimal(1)),
        ("2026-02-01", Decimal(2)),
    ]
    assert letters(ledger) == {"s3": "time_in_future", "s4": "time_in_future"}
