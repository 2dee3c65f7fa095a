"""Backfills through the front door: killed and gone on with, and a real trace that costs what its replay cost."""

import gzip
import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from pathlib import Path

import polars as pl
import pytest

from ingest.intake import Message
from ingest.load_files import read_mapping
from ingest.replay import Plan, TracePlan, packs, trace_events
from tests.ingest.test_backfill import Loads, broken
from tests.support.ledger import Ledger, now

CHECKOUT = Path(__file__).parent.parent.parent
TRACE = CHECKOUT / "data" / "azure-llm-2023" / "AzureLLMInferenceTrace_conv.csv.gz"
KILLED = -9


def command(
    ledger: Ledger, folder: Path, words: Sequence[str], failpoints: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own."""
    told = {
        "TALLYSTICK_HOME": str(folder),
        "TALLYSTICK_DATABASE_URL": ledger.database.url,
        "TALLYSTICK_FAILPOINTS": failpoints,
    }
    return subprocess.run(
        [sys.executable, "-m", "tallystick", *words],
        cwd=CHECKOUT,
        env={**os.environ, **told},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def calls(path: Path, count: int) -> None:
    """Write calls of 1,000 tokens in and 100 out, an id for each row."""
    number = pl.int_range(count, eager=True).cast(pl.String)
    frame = pl.DataFrame(
        {
            "tenant_id": "t-alpha",
            "id": "id-" + number,
            "time": "2026-01-10T10:00:00Z",
            "request_id": "req-" + number,
            "provider": "openai",
            "model": "m-sub",
            "uncached_input_tokens": pl.repeat(1000, count, eager=True),
            "visible_output_tokens": pl.repeat(100, count, eager=True),
        }
    )
    frame.write_csv(path)


@pytest.mark.parametrize("place", ["post.before_commit", "post.after_commit"])
async def test_a_commit_and_a_revert_that_are_killed_go_on_where_they_were(
    ledger: Ledger, tmp_path: Path, place: str
) -> None:
    """12,000 rows are three batches: killed in the second, whether it was written down or not."""
    await ledger.add_price(input="1.00", output="10.00")
    calls(tmp_path / "usage.csv", 12_000)
    run = Loads(ledger, tmp_path)
    await run.create()
    await run.load_path(tmp_path / "usage.csv")
    whole = 12_000 * Decimal("0.002")

    words = ["backfill", "commit", "jan", "--without-preview"]
    assert command(ledger, tmp_path, words, f"{place}=die@2").returncode == KILLED
    posted = ledger.value("select next_position from ledger.feeds where name = 'load:jan'")
    assert posted == (5_000 if place == "post.before_commit" else 10_000)
    assert ledger.value("select count(*) from ledger.entries") == posted
    assert ledger.value("select state from ledger.loads") == "committing"
    ended = command(ledger, tmp_path, words)
    assert f"load jan is committed from row {posted:,} on: {12_000 - posted:,} created" in ended.stdout, ended.stderr
    assert (ledger.total(), ledger.value("select count(*) from ledger.entries")) == (whole, 12_000)

    # Each batch of the load is taken back a thousand requests at a time.
    words = ["backfill", "revert", "jan", "--reason", "r"]
    assert command(ledger, tmp_path, words, f"{place}=die@7").returncode == KILLED
    back = 6 if place == "post.before_commit" else 7
    assert ledger.total() == whole - back * 1000 * Decimal("0.002")
    assert ledger.value("select state from ledger.loads") == "reverting"
    assert command(ledger, tmp_path, words).returncode == 0
    assert (ledger.total(), ledger.value("select sum(request_count) from ledger.entries")) == (0, 0)
    assert ledger.value("select count(*) from ledger.entries") == 24_000
    assert ledger.value("select state from ledger.loads") == "reverted"
    assert await broken(ledger) == []


async def test_a_real_trace_backfilled_through_a_mapping_costs_what_its_replay_cost(
    ledger: Ledger, tmp_path: Path
) -> None:
    """2,000 rows of an hour of Azure's conversations, as a gateway's events and as a load."""
    ledger.add_tenant("acme", first_period=date(2023, 11, 1), months=4).add_source("gateway://replay")
    await ledger.add_price("gpt-5-mini", input="0.25", output="2.00", markup="1.2")
    lines = gzip.decompress(TRACE.read_bytes()).decode().splitlines()[:2001]
    path = tmp_path / "AzureLLMInferenceTrace_conv.csv"
    path.write_text("\n".join(lines) + "\n")

    plan = Plan(
        note="",
        seed="s",
        shift_days=0,
        source="gateway://replay",
        tenants={"acme": 1},
        traces={"conv": TracePlan(features={"chat": 1}, languages={"en": 1}, models={"openai/gpt-5-mini": 1})},
        flavours={"openai": "openai.chat"},
    )
    async with ledger.intake() as intake:
        for body, _ in packs(trace_events(path, plan), 500):
            await intake.post(await intake.read([Message(body, now(), "replay")]))
    run = Loads(ledger, tmp_path)
    await run.create(tenants=["acme"])
    mapping = read_mapping(CHECKOUT / "data" / "backfill" / "azure-trace.yaml")
    loaded = await run.load_path(path, mapping=mapping)
    assert (loaded.rows, loaded.refused) == (2000, {})
    await run.commit()

    by_source = {
        source: rest
        for source, *rest in ledger.rows(
            "select source, sum(request_count), sum(charge_amount), sum(cost_amount), sum(input_tokens), sum(output_tokens),"
            " min(occurred_at), max(occurred_at) from ledger.entries group by source"
        )
    }
    assert by_source["load:jan"] == by_source["gateway://replay"]
    assert by_source["load:jan"][0] == 2000
    assert by_source["load:jan"][1] > 0
