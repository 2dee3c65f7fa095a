"""Windows: moved by the insert into the ledger itself, by the rule that also rebuilds them."""

import asyncio
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ingest.intake import Intake, Message
from ledger import feeds
from ledger.database import connect
from ledger.registry import time_zones
from ledger.times import parse_rfc3339
from tests.factories import GATEWAY, NODE, event_bytes, make_event
from tests.quotas.support import (
    RECEIVED,
    add_price,
    differences,
    end_budget,
    excesses,
    grouped,
    set_budget,
    spend,
    spending,
    windows,
)
from tests.support.databases import Database
from tests.support.ledger import Ledger
from tests.support.soak import examples

# --- Which window a day belongs to -------------------------------------------------------------------------------------

STARTS = [
    ("day", None, None, "2026-03-29", "2026-03-29"),
    ("week", None, None, "2026-03-15", "2026-03-09"),  # a Sunday: its week began on Monday
    ("week", None, None, "2026-03-16", "2026-03-16"),
    ("week", None, None, "2026-03-17", "2026-03-16"),
    ("week", None, None, "2027-01-01", "2026-12-28"),
    ("month", None, None, "2026-02-28", "2026-02-01"),
    ("month", None, None, "2026-03-01", "2026-03-01"),
    ("month", None, None, "2026-03-02", "2026-03-01"),
    ("days", 30, "2026-01-10", "2026-02-08", "2026-01-10"),
    ("days", 30, "2026-01-10", "2026-02-09", "2026-02-09"),
    ("days", 30, "2026-01-10", "2026-02-10", "2026-02-09"),
    ("days", 30, "2026-01-10", "2026-01-09", "2025-12-11"),  # before the anchor windows count on backwards
    ("days", 1, "2026-01-10", "2026-01-09", "2026-01-09"),
    ("anchored_month", None, "2026-01-31", "2026-02-27", "2026-01-31"),
    ("anchored_month", None, "2026-01-31", "2026-02-28", "2026-02-28"),  # 31 is the 28th in February
    ("anchored_month", None, "2026-01-31", "2026-03-01", "2026-02-28"),
    ("anchored_month", None, "2026-01-31", "2026-03-30", "2026-02-28"),
    ("anchored_month", None, "2026-01-31", "2026-03-31", "2026-03-31"),
    ("anchored_month", None, "2026-01-31", "2026-04-29", "2026-03-31"),
    ("anchored_month", None, "2026-01-31", "2026-04-30", "2026-04-30"),
    ("anchored_month", None, "2026-01-31", "2028-02-28", "2028-01-31"),
    ("anchored_month", None, "2026-01-31", "2028-02-29", "2028-02-29"),
    ("anchored_month", None, "2026-01-01", "2026-02-28", "2026-02-01"),
    ("anchored_month", None, "2026-01-15", "2026-01-14", "2025-12-15"),
    ("lifetime", None, None, "2026-03-15", "0001-01-01"),
]


def test_a_day_belongs_to_one_window(database: Database) -> None:
    """One table of days: below, at and above each boundary."""
    with database.connect() as connection:
        found = [
            (
                kind, length, anchor, day,
                connection.execute(
                    "select quotas.window_start(%s, %s, %s, %s)::text", [kind, length, anchor, day]
                ).fetchone()[0],  # type: ignore[index]
            )
            for kind, length, anchor, day, _ in STARTS
        ]  # fmt: skip
    assert found == STARTS


def test_every_day_is_in_the_window_that_its_start_begins(database: Database) -> None:
    """Windows are a partition of the days: a start is its own start, and starts never go back."""
    with database.connect() as connection:
        broken = connection.execute(
            """
            with days as (
                select k.kind, k.length, k.anchor, d::date as day, quotas.window_start(k.kind, k.length, k.anchor, d::date) as start
                from generate_series(date '2023-12-20', date '2029-03-05', interval '1 day') as d
                cross join (
                    select 'week', null::integer, null::date
                    union all select 'month', null, null
                    union all select 'days', n, date '2026-01-10' from unnest('{1,7,30,365}'::integer[]) as n
                    union all select 'anchored_month', null, date '2026-01-01' + n from generate_series(0, 30) as n
                ) as k (kind, length, anchor)
            )

            select *
            from (
                select
                    *,
                    quotas.window_start(kind, length, anchor, start) as start_of_start,
                    lag(start) over (partition by kind, length, anchor order by day) as before
                from days
            ) as d
            where start > day or start_of_start <> start or start < before or (start > before and start <> day)
            """
        ).fetchall()
    assert broken == []


def test_a_day_ends_when_the_next_begins_in_every_zone(database: Database) -> None:
    """All zones, each day that clocks make longer or shorter and the days beside it: what decided a call under a window is not
    remembered beyond it, also where midnight comes twice.
    """
    with database.connect() as connection:
        wrong = connection.execute(
            """
            with noons as (
                select name as zone, day::date as day, (day + interval '12 hours') at time zone name as noon
                from unnest(%s::text[]) as name
                cross join generate_series(timestamp '2026-01-01', '2027-12-31', '1 day') as day
            ),

            lengths as (
                select
                    *,
                    greatest(lead(noon) over beside - noon, lead(noon, 2) over beside - lead(noon) over beside) as longest,
                    least(lead(noon) over beside - noon, noon - lag(noon) over beside) as shortest
                from noons
                window beside as (partition by zone order by day)
            ),

            ends as materialized (
                select *, quotas.day_ends(day, zone, noon) as at
                from lengths
                where longest > interval '24 hours' or shortest < interval '24 hours'
            )

            select *
            from ends
            where
                ((at - interval '1 microsecond') at time zone zone)::date <> day
                or (at at time zone zone)::date <> day + 1
                or at - noon > interval '13 hours'
            """,
            [sorted(time_zones())],
        ).fetchall()
        (havana,) = connection.execute(
            "select quotas.day_ends('2026-10-31', 'America/Havana', '2026-10-31T20:00:00Z') = '2026-11-01T04:00:00Z'"
        ).fetchone()  # type: ignore[misc]
    assert wrong == []
    assert havana


async def test_a_window_turns_at_the_tenants_midnight(ledger: Ledger) -> None:
    """B089: August in Brisbane ends at 14:00 UTC. August 100.00; September 0.40 and 0.01, and 99.59 of 100.00 remain."""
    ledger.add_tenant("t-brisbane", zone="Australia/Brisbane")
    await add_price(ledger)
    await set_budget(ledger, tenant_id="t-brisbane", limit="100.00", now="2026-08-01T00:00:00Z")
    await spend(ledger, "e1", "100.00", "2026-08-31T13:59:59.999999Z", tenant_id="t-brisbane")
    await spend(ledger, "e2", "0.40", "2026-08-31T14:00:00Z", tenant_id="t-brisbane")
    await spend(ledger, "e3", "0.01", "2026-08-31T14:00:00.000001Z", tenant_id="t-brisbane")
    assert windows(ledger) == {"2026-08-01": "100", "2026-09-01": "0.41"}


async def test_a_day_of_23_and_one_of_25_hours_are_days(ledger: Ledger) -> None:
    """In Berlin the clocks go forward on 2026-03-29 and back on 2026-10-25; each day takes what happened on it."""
    ledger.add_tenant("t-berlin", zone="Europe/Berlin")
    await add_price(ledger)
    await set_budget(ledger, tenant_id="t-berlin", window="day", since=date(2026, 3, 1))
    for number, at in enumerate(
        (
            "2026-03-28T22:59:59Z", "2026-03-28T23:00:00Z", "2026-03-29T21:59:59Z", "2026-03-29T22:00:00Z",
            "2026-10-24T21:59:59Z", "2026-10-24T22:00:00Z", "2026-10-25T22:59:59Z", "2026-10-25T23:00:00Z",
        )
    ):  # fmt: skip
        await spend(ledger, f"e{number}", f"{2**number}", at, tenant_id="t-berlin")
    assert windows(ledger) == {
        "2026-03-28": "1", "2026-03-29": "6", "2026-03-30": "8", "2026-10-24": "16", "2026-10-25": "96", "2026-10-26": "128",
    }  # fmt: skip


async def test_a_budget_over_tenants_counts_the_days_of_utc(ledger: Ledger) -> None:
    ledger.add_tenant("t-brisbane", zone="Australia/Brisbane")
    await add_price(ledger)
    await set_budget(ledger, tenant_id=None, window="day", since=date(2026, 3, 1))
    await spend(ledger, "e1", "1", "2026-03-10T13:59:59Z", tenant_id="t-brisbane")
    await spend(ledger, "e2", "2", "2026-03-10T14:00:00Z", tenant_id="t-brisbane")
    await spend(ledger, "e3", "4", "2026-03-10T23:59:59Z")
    await spend(ledger, "e4", "8", "2026-03-11T00:00:00Z")
    assert windows(ledger) == {"2026-03-10": "7", "2026-03-11": "8"}


# --- What moves a window -----------------------------------------------------------------------------------------------


async def test_a_new_budget_counts_what_is_there_once(ledger: Ledger) -> None:
    """B095, and B090: 6.00 is in the ledger, the budget is set, 0.50 comes: 6.50, and no job resets it."""
    await add_price(ledger)
    await spend(ledger, "e1", "6.00")
    await set_budget(ledger, limit="10.00", window="days", window_days=30, anchor=date(2026, 3, 10))
    assert windows(ledger) == {"2026-03-10": "6"}
    await spend(ledger, "e2", "0.50")
    assert windows(ledger) == {"2026-03-10": "6.5"}
    assert differences(ledger) == []


async def test_a_duplicate_and_evidence_move_nothing(ledger: Ledger) -> None:
    await add_price(ledger)
    await set_budget(ledger, unit="requests", currency=None)
    await spend(ledger, "e1", "1.00")
    again = await ledger.post(spending("e1", "1.00"), received_at=RECEIVED)
    node = await ledger.post(spending("n1", "3.00", source=NODE, request_id="req-e1"), received_at=RECEIVED)
    assert ledger.outcomes(again) + ledger.outcomes(node) == ["duplicate", "evidence"]
    assert windows(ledger) == {"2026-03-01": "1"}


async def test_a_better_statement_moves_the_window_of_the_first_one(ledger: Ledger) -> None:
    """The node says 3.00 in March, the gateway afterwards 4.00 in April: March moves by 1.00, April not at all."""
    await add_price(ledger)
    await set_budget(ledger)
    await spend(ledger, "n1", "3.00", "2026-03-31T23:59:59Z", source=NODE, request_id="req-1")
    await spend(ledger, "e1", "4.00", "2026-04-01T00:00:00Z", request_id="req-1")
    assert windows(ledger) == {"2026-03-01": "4"}
    assert differences(ledger) == []


async def test_spend_under_one_scope_does_not_use_up_another(ledger: Ledger) -> None:
    """B098: 2.00 of the chat feature leave the batch lane's budget alone."""
    await add_price(ledger)
    await set_budget(ledger, budget_id="chat", feature="chat", limit="50.00")
    await set_budget(ledger, budget_id="batch", lane="batch", limit="1.00")
    await set_budget(ledger, budget_id="both", feature="chat", lane="batch")
    await spend(ledger, "e1", "2.00", feature="chat", lane="interactive")
    await spend(ledger, "e2", "0.10", feature="search", lane="batch")
    assert (windows(ledger, "chat"), windows(ledger, "batch"), windows(ledger, "both")) == (
        {"2026-03-01": "2"}, {"2026-03-01": "0.1"}, {},
    )  # fmt: skip


async def test_usage_with_several_tags_counts_once(ledger: Ledger) -> None:
    """B111: 0.90 and 0.10 carry three tags, 1.00 none: in total 2.00, under one tag 1.00."""
    await add_price(ledger)
    await set_budget(ledger, budget_id="all")
    await set_budget(ledger, budget_id="tagged", tags={"team": "a"})
    tags = {"team": "a", "stage": "b", "cost": "c"}
    await spend(ledger, "e1", "0.90", tags=tags)
    await spend(ledger, "e2", "0.10", tags=tags)
    await spend(ledger, "e3", "1.00")
    assert (windows(ledger, "all"), windows(ledger, "tagged")) == ({"2026-03-01": "2"}, {"2026-03-01": "1"})


async def test_each_unit_counts_its_own(ledger: Ledger) -> None:
    """100 in, of which 40 from a cache, and 10 out."""
    await ledger.add_price(input="1.00", cached="0.50", output="2.00")
    units = ("total_tokens", "input_tokens", "output_tokens", "input_tokens_without_cache_reads", "requests", "cost")
    for unit in units:
        await set_budget(ledger, budget_id=unit, unit=unit)
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 40}}
    await ledger.post(make_event(usage=usage, time="2026-03-10T12:00:00Z"), received_at=RECEIVED)
    assert [windows(ledger, unit)["2026-03-01"] for unit in units] == ["110", "100", "10", "60", "1", "0.0001"]


async def test_what_has_no_price_is_seen(ledger: Ledger) -> None:
    """A request of an unknown model posts nothing to money, and is counted as unpriced by every budget of the book."""
    await add_price(ledger)
    await set_budget(ledger, budget_id="money", limit="1.00")
    await set_budget(ledger, budget_id="requests", unit="requests")
    await spend(ledger, "e1", "1.00", model="m-nobody-knows", requested_model="m-nobody-knows")
    assert ledger.rows("select budget_id, posted, unpriced_count from quotas.windows where budget_id !~ '^totals' order by 1") == [
        ("money", Decimal(0), 1), ("requests", Decimal(1), 0),
    ]  # fmt: skip
    assert excesses(ledger, "money") == []


async def test_an_ended_budget_counts_no_more(ledger: Ledger) -> None:
    await add_price(ledger)
    await set_budget(ledger)
    await spend(ledger, "e1", "1.00")
    await end_budget(ledger)
    await spend(ledger, "e2", "2.00")
    assert windows(ledger) == {"2026-03-01": "1"}


async def test_a_window_before_the_first_is_not_followed(ledger: Ledger) -> None:
    """Set in March: late usage of February moves nothing, and the fold agrees."""
    await add_price(ledger)
    await set_budget(ledger)
    await spend(ledger, "e1", "1.00", "2026-02-28T23:59:59Z")
    await spend(ledger, "e2", "2.00", "2026-03-01T00:00:00Z")
    assert windows(ledger) == {"2026-03-01": "2"}
    assert differences(ledger) == []


# --- Templates -----------------------------------------------------------------------------------------------------------


async def test_a_template_has_a_window_for_each_group(ledger: Ledger) -> None:
    """By tenant: each in the days of its own zone."""
    ledger.add_tenant("t-tokyo", zone="Asia/Tokyo")
    await add_price(ledger)
    await set_budget(
        ledger, tenant_id=None, group_by=("tenant_id", "feature"), window="day", since=date(2026, 3, 1), limit="1.00"
    )
    await spend(ledger, "e1", "1", "2026-03-10T15:00:00Z")
    await spend(ledger, "e2", "2", "2026-03-10T15:00:00Z", tenant_id="t-tokyo")
    await spend(ledger, "e3", "4", "2026-03-10T15:00:00Z", tenant_id="t-tokyo", feature=...)
    assert grouped(ledger) == {
        ('["t-alpha", "chat"]', "2026-03-10"): "1",
        ('["t-tokyo", "chat"]', "2026-03-11"): "2",
        ('["t-tokyo", null]', "2026-03-11"): "4",
    }
    assert excesses(ledger) == [("unreserved", "1"), ("unreserved", "3")]


async def test_the_totals_are_there_from_the_first_entry_on(ledger: Ledger) -> None:
    ledger.add_tenant("t-yen", currency="JPY")
    await add_price(ledger)
    await spend(ledger, "e1", "1.25")
    await spend(ledger, "e2", "2.00", "2026-04-10T12:00:00Z")
    assert grouped(ledger, "totals-charge") == {
        ('["t-alpha", "USD"]', "2026-03-01"): "1.25",
        ('["t-alpha", "USD"]', "2026-04-01"): "2",
    }


# --- Limits, excess and thresholds ---------------------------------------------------------------------------------------


async def test_the_changes_of_a_windows_excess_sum_to_it(ledger: Ledger) -> None:
    """Limit 1.00. 0.60: none. 0.60: 0.20 above. A true-up of 0.10: 0.30. Limit 0.50: 0.80. Limit 2.00: none again."""
    await add_price(ledger)
    await set_budget(ledger, limit="1.00")
    await spend(ledger, "e1", "0.60")
    await spend(ledger, "n2", "0.60", source=NODE, request_id="req-2")
    await spend(ledger, "e2", "0.70", request_id="req-2")
    await set_budget(ledger, limit="0.50")
    await set_budget(ledger, limit="2.00")
    assert excesses(ledger) == [("unreserved", "0.2"), ("unreserved", "0.1"), ("limit", "0.5"), ("limit", "-0.8")]
    assert windows(ledger) == {"2026-03-01": "1.3"}


@pytest.mark.parametrize(
    ("amount", "excess"), [("0.999999", []), ("1", []), ("1.000001", [("unreserved", "0.000001")])]
)
async def test_at_the_limit_is_within_it(ledger: Ledger, amount: str, excess: list[tuple[str, str]]) -> None:
    await add_price(ledger)
    await set_budget(ledger, limit="1.00")
    await spend(ledger, "e1", amount)
    assert excesses(ledger) == excess


async def test_a_limit_of_zero_forbids_and_none_does_not_limit(ledger: Ledger) -> None:
    """B099: what is spent all the same is above a limit of zero from the first cent on."""
    await add_price(ledger)
    await set_budget(ledger, budget_id="zero", limit="0")
    await set_budget(ledger, budget_id="none", feature="chat", limit=None)
    await set_budget(ledger, budget_id="soft", lane="batch", limit="0", hardness="soft")
    await spend(ledger, "e1", "0.01", lane="batch")
    assert (excesses(ledger, "zero"), excesses(ledger, "none"), excesses(ledger, "soft")) == (
        [("unreserved", "0.01")],
        [],
        [],
    )


async def test_a_threshold_is_noted_once(ledger: Ledger) -> None:
    """0.8 of 1.00: below, at, above; then below again by a true-up, and above again."""
    await add_price(ledger)
    await set_budget(ledger, limit="1.00", thresholds=["0.8", "1"])

    def noted() -> list[str]:
        rows = ledger.rows(
            "select threshold::text from quotas.threshold_notes where budget_id = 'b' order by threshold"
        )
        return [row[0] for row in rows]

    await spend(ledger, "e1", "0.79")
    assert noted() == []
    await spend(ledger, "n2", "0.01", source=NODE, request_id="req-2")
    assert noted() == ["0.8"]
    await spend(ledger, "e3", "0.30")
    assert noted() == ["0.8", "1"]
    await set_budget(ledger, limit="100.00")
    await set_budget(ledger, limit="1.00")
    assert noted() == ["0.8", "1"]


async def test_an_exhausted_window_is_noted_whatever_its_thresholds(ledger: Ledger) -> None:
    """The whole limit is always a threshold: 0.99 of 1.00, then 1.00. Without a limit nothing is."""
    await add_price(ledger)
    await set_budget(ledger, limit="1.00")
    await set_budget(ledger, budget_id="none", feature="chat", limit=None)
    await spend(ledger, "e1", "0.99")
    assert ledger.rows("select * from quotas.threshold_notes") == []
    await spend(ledger, "e2", "0.01")
    assert ledger.rows("select budget_id, threshold from quotas.threshold_notes") == [("b", Decimal(1))]


async def test_a_budget_that_forbids_notes_what_touches_it(ledger: Ledger) -> None:
    """A limit of zero is noted by the first cent, and by the first request without a price."""
    await add_price(ledger)
    await set_budget(ledger, budget_id="chat", feature="chat", limit="0")
    await set_budget(ledger, budget_id="search", feature="search", limit="0")
    assert ledger.rows("select * from quotas.threshold_notes") == []
    await spend(ledger, "e1", "0.01", feature="chat")
    await spend(ledger, "e2", "1", feature="search", model="m-nobody-knows", requested_model="m-nobody-knows")
    assert ledger.rows("select budget_id, threshold from quotas.threshold_notes order by 1") == [
        ("chat", Decimal(1)), ("search", Decimal(1)),
    ]  # fmt: skip


async def test_a_group_may_have_a_limit_of_its_own(ledger: Ledger) -> None:
    """Each feature 1.00, search 3.00, mail without limit: 2.00 of each is 1.00 too much for chat alone."""
    await add_price(ledger)
    await set_budget(ledger, group_by=("feature",), limit="1.00")
    ledger.superuser.execute(
        """insert into quotas.group_limits values ('b', '["search"]', 3), ('b', '["mail"]', null)"""
    )
    for number, feature in enumerate(("chat", "search", "mail")):
        await spend(ledger, f"e{number}", "2.00", feature=feature)
    assert ledger.rows("select group_key, change from quotas.excess") == [('["chat"]', Decimal(1))]
    assert ledger.rows("select group_key from quotas.threshold_notes") == [('["chat"]',)]
    await spend(ledger, "e4", "1.50", feature="search")
    assert ledger.rows("select group_key, trim_scale(change)::text from quotas.excess order by excess_id") == [
        ('["chat"]', "1"), ('["search"]', "0.5"),
    ]  # fmt: skip


async def test_a_later_part_without_a_price_is_seen(ledger: Ledger) -> None:
    """One answer by two models, the second of which nobody priced: the request counts as priced, its tokens do not."""
    await ledger.add_price("m-add", provider="anthropic", input="1.00", output="1.00")
    await set_budget(ledger, limit="1.00")
    part = {"input_tokens": 10, "output_tokens": 5}
    usage = {
        **part,
        "iterations": [
            {"type": "message", **part},
            {"type": "advisor_message", "model": "m-nobody-knows", "input_tokens": 30, "output_tokens": 7},
        ],
    }
    event = make_event(
        provider="anthropic", model="m-add", requested_model="m-add", flavour="anthropic.messages", usage=usage,
        time="2026-03-10T12:00:00Z",
    )  # fmt: skip
    await ledger.post(event, received_at=RECEIVED)
    assert ledger.rows("select unpriced_count, unpriced_tokens from quotas.windows where budget_id = 'b'") == [(0, 37)]
    assert differences(ledger) == []


# --- Many at once --------------------------------------------------------------------------------------------------------


async def test_two_writers_in_opposite_order_lose_nothing(ledger: Ledger) -> None:
    """B120: one posts A then B, the other B then A, each as one batch, many times: windows are locked in one order."""
    await add_price(ledger)
    for feature in ("a", "b"):
        await set_budget(ledger, budget_id=feature, feature=feature, limit="100.00")
    url = ledger.database.url_for("tallystick_writer")
    rounds = 40

    async def write(name: str, order: str, amounts: str) -> int:
        async with await connect(url) as connection:
            held = await feeds.claim(connection, "file", f"file:{name}")
        intake = await Intake.open(url, held, patience=5)
        created = 0
        for number in range(rounds):
            events = [
                spending(f"{name}-{number}-{feature}", amount, feature=feature)
                for feature, amount in zip(order, amounts, strict=True)
            ]
            message = Message(event_bytes(*events), parse_rfc3339(RECEIVED), "test")
            posted = await intake.post(await intake.read([message]))
            created += [result.outcome for result in posted.results].count("created")
        await intake.close()
        return created

    assert await asyncio.gather(write("one", "ab", "12"), write("two", "ba", "48")) == [2 * rounds, 2 * rounds]
    assert windows(ledger, "a") == {"2026-03-01": str(rounds * (1 + 8))}
    assert windows(ledger, "b") == {"2026-03-01": str(rounds * (2 + 4))}
    assert ledger.value("select deadlocks from pg_stat_database where datname = current_database()") == 0


BUDGETS: list[dict[str, Any]] = [
    {"budget_id": "month", "limit": "3.00"},
    {"budget_id": "day", "window": "day", "limit": "1.00", "feature": "chat"},
    {"budget_id": "week", "window": "week", "unit": "total_tokens", "tenant_id": None},
    {"budget_id": "days", "window": "days", "window_days": 3, "anchor": date(2026, 3, 2), "unit": "requests"},
    {"budget_id": "anchored", "window": "anchored_month", "anchor": date(2026, 1, 31), "tenant_id": "t-tokyo"},
    {"budget_id": "life", "window": "lifetime", "unit": "cost", "lane": "batch"},
    {"budget_id": "template", "tenant_id": None, "group_by": ("tenant_id", "model"), "window": "day", "limit": "0.5"},
    {"budget_id": "shared", "tenant_id": None, "group_by": ("feature",), "window": "day"},
    {"budget_id": "tagged", "tags": {"team": "a"}, "unit": "input_tokens"},
]

reports = st.builds(
    dict,
    number=st.integers(0, 9),
    source=st.sampled_from([GATEWAY, NODE]),
    amount=st.sampled_from(["0", "0.000001", "0.25", "1.5"]),
    at=st.sampled_from(
        ["2026-02-28T14:59:59Z", "2026-02-28T15:00:00Z", "2026-03-01T00:00:00Z", "2026-03-31T15:00:00Z"]
    ),
    tenant_id=st.sampled_from(["t-alpha", "t-tokyo"]),
    feature=st.sampled_from(["chat", "search"]),
    lane=st.sampled_from(["batch", "interactive"]),
    model=st.sampled_from(["m-sub", "m-nobody-knows"]),
    tags=st.sampled_from([{}, {"team": "a", "stage": "b"}]),
)


@settings(max_examples=examples(30), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(batches=st.lists(st.lists(reports, min_size=1, max_size=8), min_size=1, max_size=3))
async def test_windows_are_the_fold_of_the_ledger_after_any_mix(
    ledger: Ledger, batches: list[list[dict[str, Any]]]
) -> None:
    """Gateways and nodes, first and better statements, duplicates and conflicts: nothing moves a window but entries."""
    if not ledger.value("select count(*) from ledger.cards"):
        ledger.add_tenant("t-tokyo", zone="Asia/Tokyo")
        await add_price(ledger)
        for budget in BUDGETS:
            await set_budget(ledger, now="2026-03-01T00:00:00Z", **budget)
    example = ledger.value("select count(*) from ledger.batches")
    for batch in batches:
        events = [
            spending(
                f"{example}-{each['number']}-{each['source']}",
                request_id=f"req-{example}-{each['number']}",
                requested_model=each["model"],
                **{name: value for name, value in each.items() if name != "number"},
            )
            for each in batch
        ]
        await ledger.post(*events, received_at=RECEIVED)
        assert differences(ledger) == []
    assert (
        ledger.rows(
            """
        select w.budget_id, w.group_key, w.window_start
        from quotas.windows as w
        join quotas.budgets as b using (budget_id)
        left join (
            select budget_id, group_key, window_start, sum(change) as excess from quotas.excess group by 1, 2, 3
        ) as e using (budget_id, group_key, window_start)
        where coalesce(e.excess, 0) <> case when b.limit_amount is null then 0 else greatest(w.posted + w.held - b.limit_amount, 0) end
        """
        )
        == []
    ), "the changes of each window's excess sum to it"
