"""Whatever comes in whatever order, however runs are cut, killed or doubled: every mart is the fold of the ledger."""

import random
import signal
import subprocess
import sys
import threading
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest

from ledger.corrections import Request, Reverse
from ledger.database import connect
from ledger.repricing import Scope, reprice
from tallystick.refold import refold
from tallystick.rollup import RollupFailed
from tests.dbt.conftest import Marts
from tests.dbt.test_rollup import FACTS, contents, holds, set_up, usage
from tests.factories import NODE, make_event
from tests.ingest.test_backfill import Loads, call, table
from tests.ledger.prices import make_card, per_million
from tests.ledger.test_corrections import done
from tests.support.soak import seeds


def is_a_fold(marts: Marts) -> bool:
    """Every bucket of every additive mart, in every number; and the proof that is written without the models."""
    found = refold(marts.url, marts.home)
    assert found.differences == []
    return holds(marts)


def hours(marts: Marts) -> list[tuple[Any, ...]]:
    return marts.ledger.rows(
        "select to_char(starts_at at time zone 'UTC', 'DD HH24'), sum(request_count)::int, sum(input_tokens)::int,"
        " sum(charge_amount) from marts.fct_usage_hourly group by 1 order by 1"
    )


# --- Late, withdrawn, corrected ---------------------------------------------------------------------------------------


async def test_corrections_land_in_the_buckets_of_what_they_correct(marts: Marts) -> None:
    """A million tokens at 1 USD each at 10, 11 and 12 o'clock: one withdrawn by its sender, one reversed by a person, and the third
    priced anew at 3 USD. Each moves its own hour, none the hour in which it was posted."""
    await set_up(marts)
    marts.ledger.add_model("m-deep")
    first = make_card(per_million(input="1.00", output="1.00"), model="m-deep", effective_at="2020-01-01T00:00:00Z")
    await marts.ledger.add_card(first)
    shared = {"model": "m-deep", "requested_model": "m-deep", "usage": usage(1_000_000)}
    await marts.post(
        make_event("a", request_id="a", time="2026-01-15T10:30:00Z", final=False, **shared),
        make_event("b", request_id="b", time="2026-01-15T11:30:00Z", **shared),
        make_event("c", request_id="c", time="2026-01-15T12:30:00Z", **shared),
    )
    marts.roll_up(*FACTS)
    one = Decimal(1)
    assert hours(marts) == [("15 10", 1, 1_000_000, one), ("15 11", 1, 1_000_000, one), ("15 12", 1, 1_000_000, one)]
    await marts.post(make_event("void", request_id="a", time="2026-01-20T09:00:00Z", status="void", usage=...))
    marts.roll_up(*FACTS)
    assert hours(marts)[0] == ("15 10", 0, 0, 0)
    database = marts.ledger.database
    async with (
        await connect(database.url_for("tallystick_writer")) as writer,
        await connect(database.url_for("tallystick_operator")) as operator,
    ):
        await done(writer, Reverse(Request("t-alpha", "b")))
        marts.roll_up(*FACTS)
        assert hours(marts) == [("15 10", 0, 0, 0), ("15 11", 0, 0, 0), ("15 12", 1, 1_000_000, one)]
        await marts.ledger.add_card(
            make_card(
                per_million(input="3.00", output="3.00"),
                model="m-deep",
                effective_at="2020-01-01T00:00:00Z",
                replaces=first.content_hash,
            )
        )
        await reprice(operator, writer, Scope(), actor="finance", reason="the source was misread")
    marts.roll_up(*FACTS)
    assert hours(marts) == [("15 10", 0, 0, 0), ("15 11", 0, 0, 0), ("15 12", 1, 1_000_000, Decimal(3))]
    assert is_a_fold(marts)


async def test_a_load_and_its_revert_move_the_hours_of_its_rows(marts: Marts, tmp_path: Path) -> None:
    """1,000 tokens in and 100 out at 1 USD a million are 0.0011, on the 10th; taken back, the hour holds nothing."""
    await set_up(marts)
    await marts.post(make_event("a", time="2026-01-15T10:30:00Z", usage=usage(1_000_000)))
    marts.roll_up(*FACTS)
    loads = Loads(marts.ledger, tmp_path)
    await loads.whole(table(call(1), call(2)))
    marts.roll_up(*FACTS)
    assert hours(marts) == [("10 10", 2, 2_000, Decimal("0.0022")), ("15 10", 1, 1_000_000, 1)]
    await loads.revert()
    marts.roll_up(*FACTS)
    assert hours(marts) == [("10 10", 0, 0, 0), ("15 10", 1, 1_000_000, 1)]
    assert is_a_fold(marts)


# --- Any order, any cut, any crash ------------------------------------------------------------------------------------


def fail_once(marts: Marts, chance: random.Random) -> None:
    """Let one statement of the next run fail: the write of a mart, or the move of its watermark, whichever chance names."""
    mart = chance.choice(["fct_usage_15min", "fct_usage_hourly", "fct_cost_daily"])
    table, condition = chance.choice([(mart, "true"), ("watermarks", f"new.model = '{mart}' and new.low = new.high")])
    marts.ledger.superuser.execute(
        "create or replace function marts.fail() returns trigger language plpgsql as $$ begin"
        f" if {condition} then raise exception 'the power went'; end if; return new; end $$"
    )
    marts.ledger.superuser.execute(
        f"create trigger fail before insert or update on marts.{table} for each row execute function marts.fail()"
    )
    try:
        with pytest.raises(RollupFailed, match="the power went"):
            marts.roll_up()
    finally:
        marts.ledger.superuser.execute(f"drop trigger fail on marts.{table}")


def twice_at_once(marts: Marts) -> None:
    runs = [threading.Thread(target=marts.roll_up) for _ in range(2)]
    for each in runs:
        each.start()
    for each in runs:
        each.join()


@pytest.mark.parametrize("seed", seeds(11))
async def test_any_order_any_cut_and_any_crash_is_the_fold_of_the_ledger(marts: Marts, seed: int) -> None:
    """Reports of gateways and nodes, voids and repeats, shuffled and cut at random; runs that fail, run twice, or do not run."""
    chance = random.Random(seed)
    await set_up(marts, "m-1", "m-2", zone="Asia/Kathmandu")
    events: list[dict[str, Any]] = []
    for number in range(60):
        shared = {
            "time": f"2026-01-{chance.randrange(14, 17)}T{chance.randrange(24):02d}:{chance.randrange(60):02d}:00Z",
            "request_id": f"r-{number}",
            "model": chance.choice(["m-1", "m-2", "m-nobody-knows"]),
            "language": chance.choice(["en", "de", ...]),
        }
        events.append(make_event(f"g-{number}", usage=usage(chance.randrange(1, 999), number), **shared))
        if chance.random() < 0.5:
            estimate = {**shared, "language": ..., "basis": "estimated", "final": False}
            events.append(make_event(f"n-{number}", source=NODE, usage=usage(chance.randrange(1, 999)), **estimate))
        if chance.random() < 0.1:
            events.append(make_event(f"v-{number}", **{**shared, "usage": ..., "status": "void"}))
    chance.shuffle(events)
    marts.roll_up()
    while events:
        cut = chance.randrange(1, 25)
        batch, events = events[:cut], events[cut:]
        await marts.post(*batch)
        match chance.choice(["run", "fail", "twice", "wait"]):
            case "run":
                marts.roll_up()
                assert is_a_fold(marts)
            case "fail":
                fail_once(marts, chance)
            case "twice":
                twice_at_once(marts)
            case _:
                pass
    marts.roll_up(tests=True)
    assert is_a_fold(marts)
    piecemeal = contents(marts)
    marts.rebuild()
    assert contents(marts) == piecemeal


@pytest.mark.parametrize("mart", ["fct_usage_15min", "fct_cost_daily"])
async def test_a_process_killed_in_mid_model_loses_and_doubles_nothing(marts: Marts, mart: str) -> None:
    """`kill -9` while one mart has read its delta and waits to write it, and another may be done."""
    await set_up(marts)
    await marts.post(make_event("a", usage=usage(1)))
    marts.roll_up(*FACTS)
    await marts.post(make_event("b", usage=usage(10)))
    blocker = psycopg.connect(marts.ledger.database.url)
    blocker.execute(f"lock table marts.{mart} in share mode".encode())
    program = (
        "import sys; from pathlib import Path; from tallystick.rollup import run_rollup;"
        " run_rollup(sys.argv[1], Path(sys.argv[2]), select=tuple(sys.argv[3:]))"
    )
    process = subprocess.Popen([sys.executable, "-c", program, marts.url, str(marts.home), *FACTS])
    waiting = (
        "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        f" and query like '%%{mart}%%'"
    )
    until = time.monotonic() + 120
    while not marts.ledger.value(waiting):
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    blocker.close()
    marts.roll_up(*FACTS)
    assert marts.ledger.value(f"select sum(input_tokens) from marts.{mart}") == 11
    assert is_a_fold(marts)
