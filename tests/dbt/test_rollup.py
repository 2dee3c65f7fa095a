"""The marts are folds of the ledger: every bucket equals what the ledger holds up to the mart's watermark."""

import random
import threading
from datetime import date
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from ledger import closing
from ledger.database import connect
from ledger.tables import SEAL_DIMENSIONS, SEAL_MEASURES
from tallystick.rollup import RollupBusy, RollupFailed, WarehouseMissing, run_rollup
from tallystick.standing import TURNS, Standing, prove
from tallystick.verify import verify
from tests.dbt.conftest import Marts
from tests.factories import NODE, make_event
from tests.ledger.prices import make_card, per_million

FACTS = ("fct_usage_15min", "fct_usage_hourly", "fct_cost_daily")
PARTIES = ("dim_tenants", "dim_models")


def usage(input_tokens: int, output_tokens: int = 0) -> dict[str, int]:
    return {
        "prompt_tokens": input_tokens,
        "completion_tokens": output_tokens,
        "total_tokens": input_tokens + output_tokens,
    }


async def set_up(marts: Marts, *models: str, zone: str = "UTC") -> None:
    """One tenant, a gateway and a node; a million input tokens of any model cost 1 USD, and are charged as they cost."""
    marts.ledger.add_tenant(zone=zone).add_source().add_node()
    for model in models or ("m-sub",):
        await marts.ledger.add_price(model, input="1.00", output="1.00")


def holds(marts: Marts) -> bool:
    """Budgets = ledger = marts, by recomputing each."""
    proof = verify(marts.ledger.database.url_for("tallystick_operator"))
    assert proof.ok, proof.failures
    return not proof.notes


def contents(marts: Marts) -> dict[str, list[Any]]:
    """Every row of every fact, in one order."""
    return {name: sorted(marts.ledger.rows(f"select * from marts.{name}"), key=repr) for name in FACTS}


async def test_counts_tokens_and_amounts_are_summed_by_quarter_hour_hour_and_day(bare_marts: Marts) -> None:
    marts = bare_marts
    marts.ledger.add_tenant().add_source()
    await marts.ledger.add_price(input="2.00", output="8.00")
    await marts.post(
        make_event("a", time="2026-01-15T10:14:59.999999Z", usage=usage(100, 10)),
        make_event("b", time="2026-01-15T10:15:00Z", usage=usage(200, 20)),
    )
    report = marts.roll_up(tests=True)
    assert report.tests_passed > 30
    assert report.rows["fct_usage_15min"] == 2
    # 100 * 2 / 10^6 + 10 * 8 / 10^6 = 0.00028, and twice that.
    assert marts.ledger.rows(
        "select starts_at::text, request_count, input_tokens, output_tokens, charge_amount"
        " from marts.fct_usage_15min order by starts_at"
    ) == [
        ("2026-01-15 10:00:00+00", 1, 100, 10, Decimal("0.00028")),
        ("2026-01-15 10:15:00+00", 1, 200, 20, Decimal("0.00056")),
    ]
    assert marts.ledger.rows(
        "select starts_at::text, request_count, input_tokens, charge_amount, charge_currency from marts.fct_usage_hourly"
    ) == [("2026-01-15 10:00:00+00", 2, 300, Decimal("0.00084"), "USD")]
    assert marts.ledger.rows(
        "select local_date::text, feature, language, provider, model, route, lane, request_count, charge_amount"
        " from marts.fct_cost_daily"
    ) == [("2026-01-15", "chat", "en", "openai", "m-sub", "", "", 2, Decimal("0.00084"))]


async def test_any_number_of_partial_runs_equals_one_run_over_everything(bare_marts: Marts) -> None:
    """Gateway and node report in random order, some things late or without a price; a run after each few batches."""
    marts = bare_marts
    await set_up(marts, "m-1", "m-2")
    chance = random.Random(7)
    events = []
    for number in range(60):
        shared = {
            "time": f"2026-01-{15 + number % 3}T{number % 24:02d}:{chance.randrange(60):02d}:00Z",
            "request_id": f"req-{number}",
            "feature": chance.choice(["chat", "search", ...]),
            "language": chance.choice(["en", "de", ...]),
            "model": chance.choice(["m-1", "m-2", "m-nobody-knows"]),
        }
        events.append(make_event(f"g-{number}", usage=usage(100 + number, number), **shared))
        if number % 2:
            # The node knows neither feature nor language, and counts a little differently.
            bare = {**shared, "feature": ..., "language": ...}
            events.append(make_event(f"n-{number}", source=NODE, usage=usage(99 + number, number), **bare))
    chance.shuffle(events)
    for start in range(0, len(events), 15):
        await marts.post(*events[start : start + 15])
        if start % 2 == 0:
            marts.roll_up(*FACTS)
            assert holds(marts)
    marts.roll_up(tests=True)
    assert holds(marts)
    piecemeal = contents(marts)
    marts.rebuild()
    assert contents(marts) == piecemeal
    assert marts.ledger.value("select sum(request_count) from marts.fct_cost_daily") == 60


async def test_b076_a_replay_changes_no_mart(marts: Marts) -> None:
    """A thousand events of 12.34 in all; then the same again; then in reverse order in pieces of seven."""
    await set_up(marts)
    # 999 * 0.012340 + 0.012340 = 12.34; 1 USD per million tokens.
    events = [make_event(f"ev-{number}", usage=usage(12_340)) for number in range(1000)]
    await marts.post(*events)
    for step in range(3):
        if step == 1:
            await marts.post(*events)
        if step == 2:
            for start in range(0, 1000, 7):
                await marts.post(*events[::-1][start : start + 7])
        marts.roll_up(*FACTS)
        for sums in (
            "select sum(charge_amount), sum(request_count) from ledger.entries",
            "select sum(charge_amount), sum(request_count) from marts.fct_usage_hourly",
            "select sum(charge_amount), sum(request_count) from marts.fct_cost_daily",
            "select sum(posted), 1000 from quotas.windows where budget_id = 'totals-charge'",
        ):
            assert marts.ledger.rows(sums) == [(Decimal("12.34"), 1000)]


async def test_b080_sums_above_two_to_the_31st_are_whole_in_every_mart(marts: Marts) -> None:
    """3,000 x 1,000,000 = 3,000,000,000 tokens, 300 at 0.10 per million; and 10 tokens beside them are 0.000001."""
    marts.ledger.add_tenant("t-big").add_tenant("t-small").add_source()
    await marts.ledger.add_price("m-bulk", input="0.10", output="1.00")

    def bulk(event_id: str, tenant_id: str, tokens: int) -> dict[str, Any]:
        return make_event(
            event_id, tenant_id=tenant_id, model="m-bulk", time="2026-01-15T10:00:00Z", usage=usage(tokens)
        )

    await marts.post(
        *(bulk(f"ev-{number}", "t-big", 1_000_000) for number in range(3000)), bulk("small", "t-small", 10)
    )
    marts.roll_up(*FACTS)
    expected = [("t-big", 3_000_000_000, Decimal(300)), ("t-small", 10, Decimal("0.000001"))]
    # By quarter hour, hour, local day and the month that is invoiced; the windows of the budgets hold the same.
    for rows in ("marts.fct_usage_15min", "marts.fct_usage_hourly", "marts.fct_cost_daily"):
        assert marts.ledger.rows(f"select tenant_id, input_tokens, charge_amount from {rows} order by 1") == expected
    assert (
        marts.ledger.rows(
            "select tenant_id, sum(input_tokens), sum(charge_amount) from ledger.entries"
            " where posting_period = '2026-01-01' group by 1 order by 1"
        )
        == expected
    )
    assert marts.ledger.rows(
        "select posted from quotas.windows where budget_id = 'totals-charge' order by posted desc"
    ) == [(Decimal(300),), (Decimal("0.000001"),)]
    assert holds(marts)


async def test_a_late_event_adds_to_its_old_hour_and_day(marts: Marts) -> None:
    await set_up(marts)
    await marts.post(make_event("a", time="2026-01-15T10:00:00Z", usage=usage(1)))
    await marts.post(make_event("b", time="2026-01-20T10:00:00Z", usage=usage(10)))
    marts.roll_up(*FACTS)
    await marts.post(make_event("late", time="2026-01-15T10:59:59Z", usage=usage(100)))
    marts.roll_up(*FACTS)
    assert marts.ledger.rows("select starts_at::date::text, input_tokens from marts.fct_usage_hourly order by 1") == [
        ("2026-01-15", 101),
        ("2026-01-20", 10),
    ]
    assert marts.ledger.rows("select local_date::text, input_tokens from marts.fct_cost_daily order by 1") == [
        ("2026-01-15", 101),
        ("2026-01-20", 10),
    ]


async def test_local_days_are_a_partition_in_a_zone_of_five_hours_and_three_quarters(marts: Marts) -> None:
    """B060: in Kathmandu 1.00 falls on the 10th, 2.00 and 4.00 on the 11th, 8.00 on the 12th of July."""
    await set_up(marts, zone="Asia/Kathmandu")
    times = ("2026-07-10T18:14:59Z", "2026-07-10T18:15:00Z", "2026-07-11T18:14:59Z", "2026-07-11T18:15:00Z")
    await marts.post(
        *(make_event(time, time=time, usage=usage(1_000_000 * 2**place)) for place, time in enumerate(times))
    )
    marts.roll_up(*FACTS)
    days = [("2026-07-10", 1), ("2026-07-11", 6), ("2026-07-12", 8)]
    assert marts.ledger.rows("select local_date::text, charge_amount from marts.fct_cost_daily order by 1") == days
    # The quarter hours add up to the days of any zone.
    assert (
        marts.ledger.rows(
            "select (starts_at at time zone 'Asia/Kathmandu')::date::text, sum(charge_amount)"
            " from marts.fct_usage_15min group by 1 order by 1"
        )
        == days
    )


async def test_a_month_ends_at_local_midnight_after_a_clock_change(marts: Marts) -> None:
    """B059: in Berlin the clocks changed on 29 March 2026, so March ends at 22:00 UTC although it began at 23:00."""
    await set_up(marts, zone="Europe/Berlin")
    await marts.post(
        make_event("u1", time="2026-03-31T21:59:59.999999Z", usage=usage(200_000)),
        make_event("u2", time="2026-03-31T22:00:00Z", usage=usage(100_000)),
        make_event("u0", time="2026-02-28T22:59:59.999999Z", usage=usage(400_000)),
    )
    marts.roll_up(*FACTS)
    assert marts.ledger.rows(
        "select to_char(local_date, 'YYYY-MM'), sum(charge_amount) from marts.fct_cost_daily group by 1 order by 1"
    ) == [("2026-02", Decimal("0.4")), ("2026-03", Decimal("0.2")), ("2026-04", Decimal("0.1"))]


async def test_sums_pass_two_to_the_31st(marts: Marts) -> None:
    """B080: 3,000 events of a million tokens at 0.10 are 300 USD; the 10 tokens of a small tenant in that hour stay visible."""
    marts.ledger.add_tenant("t-big").add_tenant("t-small").add_source()
    await marts.ledger.add_price("m-bulk", input="0.10", output="0.10")
    big = [
        make_event(f"b-{number}", tenant_id="t-big", model="m-bulk", usage=usage(1_000_000)) for number in range(3000)
    ]
    await marts.post(*big, make_event("s", tenant_id="t-small", model="m-bulk", usage=usage(10)))
    marts.roll_up(*FACTS)
    for fact in FACTS:
        assert marts.ledger.rows(f"select tenant_id, input_tokens, charge_amount from marts.{fact} order by 1") == [
            ("t-big", 3_000_000_000, Decimal("300")),
            ("t-small", 10, Decimal("0.000001")),
        ]


async def test_b112_one_model_under_four_spellings_is_one_row(marts: Marts) -> None:
    """Four events of 50,000 tokens at 5.00 per million are 1 USD of claude-x-5; the ledger keeps the spellings."""
    spellings = ("claude-x-5", "anthropic/claude-x-5", "Claude-X-5", "openrouter/anthropic/Claude-X-5")
    marts.ledger.add_tenant().add_source().add_model("claude-x-5", aliases=spellings[1:])
    await marts.ledger.add_price("claude-x-5", input="5.00", output="25.00")
    await marts.post(*(make_event(name, model=name, usage=usage(50_000)) for name in spellings))
    marts.roll_up(*FACTS)
    assert marts.ledger.rows("select model, request_count, charge_amount from marts.fct_cost_daily") == [
        ("claude-x-5", 4, Decimal("1"))
    ]
    assert {name for (name,) in marts.ledger.rows("select reported_model from ledger.entries")} == set(spellings)


async def test_b113_the_key_contains_every_dimension(marts: Marts) -> None:
    """0.40, 0.60, 0.10 and 0.20 differ in one dimension each; they are four rows and sum to 1.30 each way."""
    await set_up(marts, "m-1", "m-2")
    said = (
        ("search", "en", "m-1", 40),
        ("chat", "en", "m-1", 60),
        ("chat", "de", "m-1", 10),
        ("chat", "de", "m-2", 20),
    )
    for route, lane in ((..., ...), ("eu", ...), ("eu", "batch")):
        await marts.post(
            *(
                make_event(
                    f"{route}-{lane}-{place}", feature=feature, language=language, model=model, route=route, lane=lane,
                    time="2026-01-15T10:00:00Z", usage=usage(cents * 10_000),
                )
                for place, (feature, language, model, cents) in enumerate(said)
            )
        )  # fmt: skip
    marts.roll_up(*FACTS)
    for fact in FACTS:
        assert marts.ledger.rows(
            f"select feature, language, model, charge_amount from marts.{fact} where route = '' order by charge_amount"
        ) == [
            ("chat", "de", "m-1", Decimal("0.10")),
            ("chat", "de", "m-2", Decimal("0.20")),
            ("search", "en", "m-1", Decimal("0.40")),
            ("chat", "en", "m-1", Decimal("0.60")),
        ]
        assert marts.ledger.rows(
            f"select route, lane, sum(charge_amount) from marts.{fact} group by 1, 2 order by 1, 2"
        ) == [("", "", Decimal("1.30")), ("eu", "", Decimal("1.30")), ("eu", "batch", Decimal("1.30"))]


async def test_amounts_of_two_currencies_are_never_in_one_row(marts: Marts) -> None:
    """B124: 10.00 USD and 5.00 EUR of one tenant are two rows, and no 15.00 is anywhere."""
    marts.ledger.add_tenant().add_source()
    for currency, model in (("USD", "m-us"), ("EUR", "m-eu")):
        marts.ledger.add_model(model)
        await marts.ledger.add_card(
            make_card(
                per_million(input="1.00", output="1.00"), model=model, currency=currency,
                effective_at="2020-01-01T00:00:00Z",
            )
        )  # fmt: skip
    await marts.post(
        make_event("us", model="m-us", usage=usage(10_000_000)),
        make_event("eu", model="m-eu", usage=usage(5_000_000)),
    )
    marts.roll_up(*FACTS, *PARTIES, tests=True)
    assert marts.ledger.rows(
        "select cost_currency, sum(cost_amount), sum(charge_unpriced_count) from marts.fct_cost_daily group by 1 order by 1"
    ) == [("EUR", Decimal("5"), 1), ("USD", Decimal("10"), 1)]


async def test_a_better_statement_moves_money_and_attributes_in_every_dimension(marts: Marts) -> None:
    """The node reports first, knowing no feature; then the gateway. Rolled up between, and after."""
    await set_up(marts)
    await marts.post(
        make_event("n", source=NODE, request_id="r", feature=..., language=..., usage=usage(90), basis="estimated")
    )
    marts.roll_up(*FACTS)
    columns = "feature, language, request_count, estimated_count, input_tokens, charge_amount"
    assert marts.ledger.rows(f"select {columns} from marts.fct_cost_daily") == [
        ("", "und", 1, 1, 90, Decimal("0.00009"))
    ]
    await marts.post(make_event("g", request_id="r", usage=usage(100)))
    # The node's second report is worse than what stands: evidence, counted and without effect.
    await marts.post(make_event("n2", source=NODE, request_id="r", feature=..., language=..., usage=usage(95)))
    marts.roll_up(*FACTS, *PARTIES, tests=True)
    assert marts.ledger.rows(f"select {columns} from marts.fct_cost_daily where request_count > 0") == [
        ("chat", "en", 1, 0, 100, Decimal("0.0001"))
    ]
    # What stood before is still a row, and nothing is left in it but the count of evidence.
    assert marts.ledger.rows(
        f"select {columns}, sum(evidence_count) over () from marts.fct_cost_daily where feature = ''"
    ) == [("", "und", 0, 0, 0, 0, 1)]
    assert holds(marts)


async def test_what_has_no_price_or_no_usage_is_counted_beside_the_sums(marts: Marts) -> None:
    await set_up(marts)
    await marts.post(
        make_event("priced", usage=usage(1_000_000)),
        make_event("unknown", model="m-nobody-knows", requested_model="m-nobody-knows", usage=usage(30, 5)),
        make_event("silent", usage=...),
        make_event("hit", cache_result="exact_hit", usage=usage(40, 2)),
    )
    marts.roll_up(*FACTS, *PARTIES, tests=True)
    columns = "request_count, usage_missing_count, avoided_tokens, charge_amount, charge_unpriced_count, charge_unpriced_tokens"
    assert marts.ledger.rows(f"select model, cost_currency, {columns} from marts.fct_cost_daily order by 1, 2") == [
        ("", "", 1, 0, 0, 0, 1, 35),
        ("m-sub", "", 1, 1, 0, 0, 1, 0),
        ("m-sub", "USD", 2, 0, 42, Decimal("1"), 0, 0),
    ]


async def test_a_run_that_dies_between_delta_and_watermark_adds_nothing(marts: Marts) -> None:
    await set_up(marts)
    await marts.post(make_event("a", usage=usage(1)))
    marts.roll_up(*FACTS)
    await marts.post(make_event("b", usage=usage(10)))
    # The watermark of one model cannot move: its delta, already written, must go with it.
    marts.ledger.superuser.execute(
        "create function marts.fail() returns trigger language plpgsql as $$ begin"
        " if new.model = 'fct_usage_hourly' and new.low > old.low then raise exception 'the power went'; end if;"
        " return new; end $$"
    )
    marts.ledger.superuser.execute(
        "create trigger fail before update on marts.watermarks for each row execute function marts.fail()"
    )
    with pytest.raises(RollupFailed, match=r"rollup: fct_usage_hourly: .*the power went"):
        marts.roll_up(*FACTS)
    sums = "select (select sum(input_tokens) from marts.{}), (select sum(low) from marts.watermarks where model = '{}')"
    assert marts.ledger.rows(sums.format("fct_usage_hourly", "fct_usage_hourly")) == [(1, 1)]
    assert marts.ledger.rows(sums.format("fct_usage_15min", "fct_usage_15min")) == [(11, 2)]
    assert not holds(marts)
    marts.ledger.superuser.execute("drop trigger fail on marts.watermarks")
    marts.roll_up(*FACTS)
    assert marts.ledger.rows(sums.format("fct_usage_hourly", "fct_usage_hourly")) == [(11, 2)]
    assert holds(marts)


async def test_a_backend_killed_in_mid_model_loses_and_doubles_nothing(marts: Marts) -> None:
    await set_up(marts)
    await marts.post(make_event("a", usage=usage(1)))
    marts.roll_up(*FACTS)
    await marts.post(make_event("b", usage=usage(10)))
    # Somebody's lock on the mart stops the model after it has read its delta and before it can add it.
    blocker = psycopg.connect(marts.ledger.database.url)
    blocker.execute("lock table marts.fct_cost_daily in share mode")
    failures: list[Exception] = []

    def run() -> None:
        try:
            marts.roll_up(*FACTS)
        except RollupFailed as failure:
            failures.append(failure)

    running = threading.Thread(target=run)
    running.start()
    killed = 0
    while running.is_alive() and not killed:
        killed = len(
            marts.ledger.rows(
                "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database()"
                " and wait_event_type = 'Lock' and query like '%%fct_cost_daily%%'"
            )
        )
    blocker.close()
    running.join()
    assert killed
    assert failures
    assert "fct_cost_daily" in str(failures[0])
    marts.roll_up(*FACTS)
    assert marts.ledger.value("select sum(input_tokens) from marts.fct_cost_daily") == 11
    assert holds(marts)


async def test_two_runs_at_once_add_everything_once(marts: Marts) -> None:
    await set_up(marts)
    await marts.post(*(make_event(f"ev-{number}", usage=usage(1)) for number in range(50)))
    # Two threads of one process wait in the process; another process waits for the database's lock.
    runs = [threading.Thread(target=marts.roll_up, args=FACTS) for _ in range(2)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert marts.ledger.value("select sum(request_count) from marts.fct_usage_hourly") == 50
    with psycopg.connect(marts.url) as other:
        other.execute("select pg_advisory_lock(7411002)")
        with pytest.raises(RollupBusy, match=r"another rollup has been running for the 0\.2 s that we waited"):
            run_rollup(marts.url, marts.home, wait_seconds=0.2)


async def test_all_marts_of_a_run_hold_the_batches_that_were_there_when_it_began(marts: Marts) -> None:
    """A batch that is committed between two models of a run is in neither, so hours, quarter hours and days agree."""
    await set_up(marts)
    await marts.post(make_event("a", usage=usage(1)))
    marts.roll_up()
    await marts.post(make_event("b", usage=usage(10)))
    # Whichever mart is written first posts another batch, as an ingest that never rests would.
    last = "(select last_number from ledger.feeds where feed_id = new.feed_id)"
    marts.ledger.superuser.execute(
        "create function marts.post() returns trigger language plpgsql security definer as $$ begin"
        " if new.low > old.low then"
        # Two models run at a time.
        " perform from ledger.feeds where feed_id = new.feed_id for update;"
        " insert into ledger.batches select (jsonb_populate_record(b, jsonb_build_object('batch_id',"
        " nextval(pg_get_serial_sequence('ledger.batches', 'batch_id')),"
        f" 'number', b.number + 1))).* from ledger.batches as b where b.feed_id = new.feed_id and b.number = {last};"
        " update ledger.feeds set last_number = last_number + 1 where feed_id = new.feed_id;"
        " end if; return new; end $$"
    )
    marts.ledger.superuser.execute(
        "create trigger post before update on marts.watermarks for each row execute function marts.post()"
    )
    marts.roll_up()
    assert marts.ledger.rows("select distinct low, high from marts.watermarks") == [(2, 2)]
    assert marts.ledger.value("select last_number > 4 from ledger.feeds where last_number > 0")
    assert marts.ledger.rows("select * from marts.run_batches") == []


async def test_batches_posted_while_a_model_runs_wait_for_the_next_run(marts: Marts) -> None:
    """The watermark says which batches a model holds; a later one is in neither until it is in both."""
    await set_up(marts)
    await marts.post(make_event("a", usage=usage(1)))
    marts.roll_up(*FACTS)
    await marts.post(make_event("b", usage=usage(10)))
    proof = verify(marts.ledger.database.url_for("tallystick_operator"))
    assert proof.ok
    assert proof.notes == [f"{fact} is 1 batch behind and was compared up to its watermark" for fact in FACTS]


async def test_the_standing_proof_compares_the_mart_with_what_it_has_consumed(marts: Marts) -> None:
    """A batch that waits for the next rollup is no difference; a changed mart is named with tenant, month and hour."""
    await set_up(marts)
    await marts.post(make_event("a", time="2026-01-15T10:14:00Z", usage=usage(1_000_000)))
    marts.roll_up(*FACTS)
    await marts.post(make_event("b", time="2026-01-15T11:14:00Z", usage=usage(1_000_000)))
    async with await connect(marts.ledger.database.url_for("tallystick_operator")) as operator:
        assert await prove(operator) == Standing(0, [], [], 2)
        for mart in ("fct_usage_hourly", "fct_cost_daily"):
            marts.ledger.superuser.execute(f"update marts.{mart} set charge_amount = charge_amount + 0.5")
        found = await prove(operator)
        assert found.difference_count == 2

        def month(mart: str) -> str:
            return (
                f"{mart}: tenant t-alpha, 2026-01: the mart says charge 1.5 USD, cost 1 USD, 1 requests; the entries come to"
                " 1, 1, 1"
            )

        assert [each.text for each in found.differences] == [
            month("fct_cost_daily"),
            "fct_usage_hourly: tenant t-alpha, hour 2026-01-15 10:00 UTC: the mart says charge 1.5 USD, cost 1 USD, 1 requests;"
            " the ledger says 1, 1, 1",
            month("fct_usage_hourly"),
        ]
        marts.ledger.superuser.execute("update marts.fct_usage_hourly set charge_amount = charge_amount - 0.5")
        found = await prove(operator)
        assert found.differences[1].text.startswith("fct_cost_daily: tenant t-alpha, local day 2026-01-15: ")


async def test_in_turns_the_standing_proof_finds_a_micro_unit_in_any_hour_or_quarter_hour(marts: Marts) -> None:
    """Kathmandu's months begin at a quarter past an hour: only quarter hours say what they come to. Berlin's begin at an hour."""
    marts.ledger.add_tenant(zone="Asia/Kathmandu").add_tenant("t-beta", zone="Europe/Berlin").add_source()
    await marts.ledger.add_price(input="1.00", output="1.00")
    # Of January in both zones, and of December in UTC.
    await marts.post(
        make_event("a", time="2025-12-31T23:30:00Z", usage=usage(1)),
        make_event("b", time="2025-12-31T23:30:00Z", usage=usage(2), tenant_id="t-beta"),
    )
    marts.roll_up(*FACTS)
    operator_url = marts.ledger.database.url_for("tallystick_operator")

    async def found(tenant: str, mart: str) -> list[str]:
        change = f"update marts.{mart} set cost_amount = cost_amount {{}} 0.000001 where tenant_id = '{tenant}'"
        assert marts.ledger.superuser.execute(change.format("+").encode()).rowcount == 1
        async with await connect(operator_url) as operator:
            by_turn = [(await prove(operator, turn=turn)).differences for turn in range(100, 100 + TURNS)]
            whole = (await prove(operator)).differences
        marts.ledger.superuser.execute(change.format("-").encode())
        assert [each for each in by_turn if each] == ([whole] if whole else [])
        return [each.text for each in whole]

    for mart in ("fct_usage_15min", "fct_usage_hourly"):
        texts = await found("t-beta", mart)
        assert len(texts) == 2
        assert texts[0].startswith(
            f"{mart}: tenant t-beta, 2026-01: the mart says charge 0.000002 USD, cost 0.000003 USD, 1 "
        )
        assert "UTC: the mart says charge 0.000002 USD, cost 0.000003 USD" in texts[1]
        assert texts[1].startswith(f"{mart}: tenant t-beta, ")
        assert "hour 2025-12-31 23:" in texts[1]
    assert (await found("t-alpha", "fct_usage_15min"))[1].startswith(
        "fct_usage_15min: tenant t-alpha, quarter hour 2025-12-31 23:30 UTC: "
    )
    assert await found("t-alpha", "fct_usage_hourly") == []


async def test_a_mart_that_was_changed_is_named_with_tenant_and_hour(marts: Marts) -> None:
    await set_up(marts)
    await marts.post(make_event("a", time="2026-01-15T10:14:00Z", usage=usage(1_000_000)))
    marts.roll_up(*FACTS)
    marts.ledger.superuser.execute("update marts.fct_usage_hourly set charge_amount = charge_amount + 0.5")
    marts.ledger.superuser.execute("update marts.fct_usage_15min set output_tokens = 1")
    marts.ledger.superuser.execute("delete from marts.fct_cost_daily")
    texts = [failure.text for failure in verify(marts.ledger.database.url_for("tallystick_operator")).failures]
    assert len(texts) == 3
    assert texts[0].startswith("fct_usage_15min: tenant t-alpha, quarter hour 2026-01-15 10:00 UTC: ")
    assert texts[1] == (
        "fct_usage_hourly: tenant t-alpha, hour 2026-01-15 10:00 UTC: the mart says charge 1.5 USD, cost 1 USD, 1 requests;"
        " the ledger says 1, 1, 1"
    )
    assert texts[2].startswith("fct_cost_daily: tenant t-alpha, local day 2026-01-15: the mart says charge 0 USD")
    with pytest.raises(RollupFailed, match=r"rollup: .*break it"):
        marts.roll_up(tests=True)
    # A mart can be made from nothing; readers see the wrong one until the right one is whole.
    marts.rebuild()
    assert holds(marts)


async def test_a_mart_that_is_gone_is_made_from_the_whole_ledger(marts: Marts) -> None:
    await set_up(marts)
    await marts.post(make_event("a", usage=usage(7)))
    marts.roll_up(*FACTS)
    marts.ledger.superuser.execute("drop table marts.fct_cost_daily cascade")
    marts.roll_up(*FACTS)
    assert marts.ledger.value("select sum(input_tokens) from marts.fct_cost_daily") == 7
    assert holds(marts)


async def test_a_mart_that_is_made_new_lies_in_the_order_of_its_key(marts: Marts) -> None:
    """So what is added to a tenant's day later touches few pages, however many days there are."""
    await set_up(marts)
    days = (10, 14, 11, 13, 12)
    await marts.post(
        *(
            make_event(f"{day}-{feature}", time=f"2026-01-{day}T10:00:00Z", feature=feature, usage=usage(7))
            for feature in ("search", "chat", "code")
            for day in days
        )
    )
    for mart, bucket in (("fct_cost_daily", "local_date"), ("fct_usage_hourly", "starts_at")):
        marts.rebuild(mart)
        rows = marts.ledger.rows(f"select tenant_id, {bucket}, feature from marts.{mart} order by ctid")
        assert len(rows) == 15
        assert rows == sorted(rows), mart


async def test_a_mart_that_nobody_knows_is_one_clear_line(marts: Marts) -> None:
    with pytest.raises(RollupFailed, match="rollup: fct_nobody_knows: there is no such mart"):
        marts.rebuild("fct_nobody_knows")


async def test_people_and_reports_may_read_the_marts_and_nobody_else_writes_them(marts: Marts) -> None:
    await set_up(marts)
    await marts.post(make_event("a"))
    marts.roll_up(*FACTS)
    for role in ("tallystick_analyst", "tallystick_billing", "tallystick_operator"):
        with marts.ledger.database.connect(role) as connection:
            assert connection.execute("select count(*) from marts.fct_cost_daily").fetchone() == (1,)
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute("delete from marts.fct_cost_daily")
    with (
        marts.ledger.database.connect("tallystick_writer") as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute("select count(*) from marts.fct_cost_daily")


async def test_columns_are_described_where_people_look(marts: Marts) -> None:
    await set_up(marts)
    marts.roll_up()
    described = marts.ledger.rows(
        "select c.relname, count(*) filter (where col_description(c.oid, a.attnum) is null), obj_description(c.oid) is not null"
        " from pg_class as c join pg_attribute as a on a.attrelid = c.oid and a.attnum > 0"
        " where c.relnamespace = 'marts'::regnamespace and c.relkind = 'r'"
        " and (c.relname like 'fct%%' or c.relname like 'dim%%') group by 1, 3"
    )
    assert len(described) >= 5
    assert all(missing == 0 and has_comment for _, missing, has_comment in described)


def test_a_ledger_without_tables_is_one_clear_line(empty_database: Any, dbt_home: Any) -> None:
    with pytest.raises(RollupFailed, match="rollup: ledger: its tables are not there: run `tallystick migrate`"):
        run_rollup(empty_database.url, dbt_home)


def test_a_postgres_that_is_away_is_one_clear_line(dbt_home: Any) -> None:
    with pytest.raises(RollupFailed, match="rollup: connection: ") as raised:
        run_rollup("postgresql://tallystick_rollup@/tallystick?host=/nowhere", dbt_home)
    assert "\n" not in str(raised.value)


def test_a_missing_extra_is_one_clear_line(monkeypatch: pytest.MonkeyPatch, dbt_home: Any) -> None:
    def nothing(name: str) -> None:
        return None

    monkeypatch.setattr("tallystick.rollup.importlib.util.find_spec", nothing)
    with pytest.raises(WarehouseMissing, match=r"dbt-core is not installed: pip install 'tallystick\[warehouse\]'"):
        run_rollup("postgresql:///", dbt_home)


async def test_a_seal_holds_what_the_mart_of_its_days_holds(marts: Marts) -> None:
    """Without late usage a month's seal and its days in fct_cost_daily are one fold, in every column: with copies,
    corrections, estimates, voids, and what has no price or no usage."""
    await set_up(marts, "m-sub", zone="Asia/Kathmandu")
    await marts.post(
        make_event("a", usage=usage(100, 10)),
        make_event("n", source=NODE, request_id="req-a", usage=usage(90, 9)),
        make_event("x", model="m-nobody-knows", usage=usage(70, 7), feature=...),
        make_event("m", usage=...),
        make_event("e", basis="estimated", final=False, usage=usage(50, 5), lane="batch"),
        make_event("v", usage=usage(30, 3), final=False),
        make_event("end", time="2026-01-31T18:14:59.999999Z", usage=usage(20, 2)),
        make_event("february", time="2026-01-31T18:15:00Z", usage=usage(10, 1)),
    )
    await marts.post(
        make_event("e2", request_id="req-e", usage=usage(55, 5), lane="batch"),
        make_event("v2", request_id="req-v", status="void", usage=...),
    )
    marts.roll_up(*FACTS)
    async with await connect(marts.ledger.database.url_for("tallystick_operator")) as operator:
        await closing.close_periods(operator, "test", date(2026, 1, 1))
        (sealed,) = await closing.seal_pending(operator)
    assert sealed.row_count > 8
    texts = ", ".join(f"coalesce({name}, '')" for name, _ in SEAL_DIMENSIONS)
    numbers = ", ".join(name for name, _ in SEAL_MEASURES)
    lines = marts.ledger.rows(
        f"select local_date, {texts}, {numbers} from ledger.seal_lines order by 1, 2, 3, 4, 5, 6, 7, 8, 9"
    )
    mart = marts.ledger.rows(
        f"select local_date, {texts}, {numbers} from marts.fct_cost_daily where local_date < '2026-02-01'"
        " order by 1, 2, 3, 4, 5, 6, 7, 8, 9"
    )
    assert len(lines) > 4
    assert lines == mart


async def test_a_second_run_parses_no_sql_again(marts: Marts, monkeypatch: pytest.MonkeyPatch) -> None:
    """dbt would parse the text of each model in each run: more than half of a run that adds little."""
    import sqlparse

    await set_up(marts)
    await marts.post(make_event("a", usage=usage(7)))
    marts.roll_up(*FACTS)
    await marts.post(make_event("b", usage=usage(8)))
    parsed: list[str] = []
    parse = sqlparse.parse
    monkeypatch.setattr(sqlparse, "parse", lambda text: parsed.append(text) or parse(text))
    marts.roll_up(*FACTS)
    assert parsed == []
    assert marts.ledger.value("select sum(input_tokens) from marts.fct_cost_daily") == 15


async def test_columns_that_differ_from_the_models_are_one_clear_line(marts: Marts) -> None:
    """Nothing is added to a mart of another shape; a rebuild gives it the model's."""
    await set_up(marts)
    await marts.post(make_event("a", usage=usage(7)))
    marts.roll_up(*FACTS)
    marts.ledger.superuser.execute("alter table marts.fct_cost_daily rename column entry_count to rows_count")
    await marts.post(make_event("b", usage=usage(8)))
    with pytest.raises(
        RollupFailed, match=r"^rollup: fct_cost_daily: column \w+ is .*: `tallystick rollup --rebuild fct_cost_daily`$"
    ):
        marts.roll_up(*FACTS)
    assert marts.ledger.value("select sum(input_tokens) from marts.fct_cost_daily") == 7
    marts.rebuild("fct_cost_daily")
    assert marts.ledger.value("select sum(input_tokens) from marts.fct_cost_daily") == 15
    assert holds(marts)
