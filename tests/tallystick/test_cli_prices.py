"""Names, exchange rates, corrected prices and other sources by command."""

import asyncio
import csv
import io
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from tests.factories import make_event, make_window
from tests.ledger.prices import make_card, per_million
from tests.support.databases import Database
from tests.support.ledger import Ledger
from tests.tallystick.commands import Commands

PRICES = Path(__file__).parent.parent.parent / "data" / "prices"
GENAI = str(PRICES / "genai_prices_0.2.3.json.gz")
MAPS = [
    str(PRICES / "litellm" / f"litellm_{version}_model_prices_and_context_window.json.gz")
    for version in ("1.90.7", "1.110.2")
]


@pytest.fixture
def ledger(database: Database, months_template: str) -> Iterator[Ledger]:
    made = Ledger(database).add_tenant().add_source().add_node()
    yield made
    made.close()


def post(ledger: Ledger, provider: str, *models: str) -> None:
    events = [make_event(f"{n}-{m}", provider=provider, model=m, requested_model=m) for n, m in enumerate(models)]
    asyncio.run(ledger.post(*events))


def test_rates_of_nodes_are_added_and_show_beside_the_nodes_that_report(commands: Commands, ledger: Ledger) -> None:
    minute = {"starts_at": "2026-01-15T09:58:00Z", "ends_at": "2026-01-15T09:59:00Z"}
    asyncio.run(
        ledger.post(make_window(), make_window("w-2", **minute), make_window("w-3", node_id="gpu-8", gpu_count=4))
    )
    add = (
        "nodes",
        "rates",
        "add",
        "H100",
        "8",
        "55.04",
        "USD",
        "--from",
        "2026-01-01",
        "--source",
        "https://aws.example/p5",
    )
    assert "added 8 x H100 at 55.04 USD an hour, hash" in commands.ok(*add, "--reason", "contract").out
    assert commands.ok(*add).out.strip() == "8 x H100 at 55.04 USD an hour is there already"
    assert "effective_at is that of another rate" in commands(*add[:5], "9", *add[6:]).line
    assert commands("nodes", "rates", "add", "H100", "8", "0", *add[6:]).line.endswith(
        "it takes a number above 0, at most 10,000"
    )
    (rate,) = commands.json("nodes", "rates", "list")
    assert (rate["gpu_model"], rate["gpu_count"], rate["hourly_price"], rate["checked_on"]) == (
        "H100", 8, "55.04", str(datetime.now(UTC).date()),
    )  # fmt: skip
    nodes = commands.json("nodes", "list", "--days", "36500")
    assert [(node["node_id"], node["window_count"], node["hourly_price"], node["currency"]) for node in nodes] == [
        ("gpu-7", 2, "55.04", "USD"), ("gpu-8", 1, None, None),
    ]  # fmt: skip
    assert "gpu-8" in commands.ok("nodes", "list", "--days", "36500").out
    assert commands.ok("nodes", "list", "--days", "1").out.strip() == "no node reported in the last 1 days"


def test_rules_of_names_are_set_in_order_and_shown(commands: Commands) -> None:
    commands.ok(
        "models",
        "set-rules",
        "aws",
        "--rule",
        "version_suffix",
        "--rule",
        "prefix:us.anthropic.",
        "--rule",
        "fold_case",
    )
    listed = commands.json("models", "rules", "aws")
    assert [(each["place"], each["rule"]) for each in listed] == [
        (1, {"kind": "version_suffix", "text": ""}),
        (2, {"kind": "prefix", "text": "us.anthropic."}),
        (3, {"kind": "fold_case", "text": ""}),
    ]
    assert "us.anthropic." in commands.ok("models", "rules").out
    commands.ok("models", "set-rules", "aws")
    assert commands.json("models", "rules") == []
    assert commands("models", "set-rules", "aws", "--rule", "loose").line.startswith(
        "rule 'loose' is unknown; it is prefix:TEXT"
    )


def test_unknown_names_are_listed_proposed_and_accepted_one_by_one(commands: Commands, ledger: Ledger) -> None:
    commands.ok("prices", "import", GENAI, "--accept")
    post(ledger, "anthropic", "claude-opus-4-1-20310101", "claude-opus-4-1", "claude-opus-4-1-20310101")
    (unknown,) = commands.json("models", "unknown")
    assert (unknown["provider"], unknown["name"], unknown["entry_count"]) == (
        "anthropic",
        "claude-opus-4-1-20310101",
        2,
    )
    proposed = commands.json("models", "propose", GENAI)
    assert proposed == {
        "proposed": [{"provider": "anthropic", "name": "claude-opus-4-1-20310101", "model": "claude-opus-4-1"}],
        "added": None,
    }
    assert "nothing is proposed for 'gpt-9'" in commands("models", "propose", GENAI, "--accept", "gpt-9").line
    accepted = commands.json(
        "models", "propose", GENAI, "--accept", "claude-opus-4-1-20310101", "--reason", "a snapshot"
    )
    assert accepted["added"] == 1
    assert commands.json("models", "propose", GENAI)["proposed"] == []
    assert ledger.rows("select alias, model from ledger.model_aliases where source like 'proposed%%'") == [
        ("claude-opus-4-1-20310101", "claude-opus-4-1")
    ]


def test_exchange_rates_are_added_once_and_listed(commands: Commands) -> None:
    words = (
        "exchange-rates",
        "add",
        "USD",
        "EUR",
        "0.9215",
        "--from",
        "2026-01-01",
        "--source",
        "the bank",
        "--checked-on",
        "2026-01-02",
    )
    added = commands.json(*words)
    assert added["added"] == 1
    assert commands.json(*words)["added"] == 0
    (rate,) = commands.json("exchange-rates", "list")
    assert (rate["from"], rate["to"], rate["rate"], rate["effective_at"]) == (
        "USD",
        "EUR",
        "0.9215",
        "2026-01-01T00:00:00Z",
    )
    assert "0.9215" in commands.ok("exchange-rates", "list").out
    other = ("exchange-rates", "add", "USD", "EUR", "0.93", "--from", "2026-01-01", "--source", "the bank")
    assert "names the rate that it replaces" in commands(*other).line
    commands.ok(*other, "--replaces", added["content_hash"])
    assert (
        "takes a number"
        in commands("exchange-rates", "add", "USD", "EUR", "0", "--from", "2026-01-01", "--source", "x").line
    )


def test_a_corrected_price_is_shown_posted_and_then_nothing(commands: Commands, ledger: Ledger) -> None:
    """100 x 1 + 10 x 1 per million = 0.00011, corrected to twice that."""
    first = make_card(per_million(input="1", output="1"))
    ledger.add_model("m-sub")
    asyncio.run(ledger.add_card(first))
    asyncio.run(ledger.add_card(make_card(book="charge", model=None, markup=Decimal(1))))
    post(ledger, "openai", "m-sub")
    assert "1 requests are priced as today's book says" in commands.ok("prices", "reprice").out
    asyncio.run(ledger.add_card(make_card(per_million(input="2", output="2"), replaces=first.content_hash)))
    then = ledger.value("select now()").isoformat().replace("+00:00", "Z")
    shown = commands.ok("prices", "reprice").out
    assert " ".join(shown.split()).count("2026-01 charge USD 1 0.00011 0.00022 0.00011 0 0") == 1
    assert "nothing is posted yet: --commit --reason posts 2 entries" in shown
    assert commands("prices", "reprice", "--commit").line == "--commit needs --reason: the entries carry it"
    assert ledger.value("select count(*) from ledger.entries") == 1
    done = commands.json("prices", "reprice", "--commit", "--reason", "misread", "--actor", "finance")
    assert done["posted"] == {"run": done["posted"]["run"], "looked_at": 1, "requests": 1, "entries": 2}
    assert {effect["book"]: Decimal(effect["difference"]) for effect in done["effects"]} == {
        "cost": Decimal("0.00011"),
        "charge": Decimal("0.00011"),
    }
    assert commands.json("prices", "reprice", "--commit", "--reason", "misread")["posted"] is None
    assert ledger.rows("select distinct actor, reason from ledger.entries where kind = 'adjustment'") == [
        ("finance", "misread")
    ]
    assert [Decimal(each["amount"]) for each in commands.json("prices", "known-at", then)] == [Decimal("0.00011")] * 2
    now = commands.json("prices", "known-at", "2100-01-01", "--tenant", "t-alpha", "--model", "m-sub")
    assert [Decimal(each["amount"]) for each in now] == [Decimal("0.00022")] * 2
    assert commands.ok("prices", "known-at", "2020-01-01").out == "nothing was known then\n"


def test_another_source_is_held_against_the_book(commands: Commands) -> None:
    commands.ok("prices", "import", GENAI, "--accept")
    found = commands.json("prices", "compare", "litellm", *MAPS, "--at", "2026-11-01", "--provider", "openai")
    assert found["versions"] == ["1.90.7", "1.110.2"]
    assert found["counts"] == {"agrees": 3658, "differs": 380, "only_theirs": 767, "only_ours": 43}
    assert {row["provider"] for row in found["rows"]} == {"openai"}
    assert "gpt-4o-mini-tts" in commands.ok("prices", "compare", "litellm", MAPS[-1], "--provider", "openai").out
    rows = list(
        csv.DictReader(io.StringIO(commands.ok("prices", "compare", "litellm", MAPS[-1], "--format", "csv").out))
    )
    assert {row["verdict"] for row in rows} == {"differs", "only_theirs", "only_ours"}
    assert commands("prices", "compare", "litellm", "LICENSE").line.startswith("LICENSE is not a price map of LiteLLM")
