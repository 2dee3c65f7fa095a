"""The cookbook's questions can be asked by name, and answer what was posted."""

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tallystick.cookbook import FOLDER, CookbookError, questions, statement
from tallystick.rollup import run_rollup
from tests.factories import NODE, make_event
from tests.support.databases import Database
from tests.support.ledger import Ledger
from tests.tallystick.commands import Commands, Ran

NAMES = [each.name for each in questions()]
NOW = datetime.now(UTC)


@pytest.fixture
async def asked(database: Database, commands: Commands, dbt_home: Path) -> AsyncIterator[Ledger]:
    """A day of t-alpha: 100 tokens in at 2.00 and 10 out at 8.00 a million are 0.00028 a request."""
    ledger = Ledger(database)
    first = (NOW - timedelta(days=62)).date().replace(day=1)
    ledger.add_tenant(first_period=first, months=8).add_source().add_node()
    await ledger.add_price(input="2.00", output="8.00", cache_read_tokens="0.50")
    at = NOW.isoformat()
    cached = {
        "prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110, "prompt_tokens_details": {"cached_tokens": 60},
    }  # fmt: skip
    what: dict[str, Any] = {
        "time": at,
        "api_key_id": "key-1",
        "conversation_id": "c-1",
        "latency_ms": 900,
        "ttft_ms": 90,
    }
    await ledger.post(
        *(make_event(f"ev-{number}", **what) for number in range(3)),
        make_event("cached", usage=cached, **{**what, "conversation_id": "c-2", "language": "de"}),
        make_event("again", attempt_kind="retry", attempt=2, **{**what, "feature": ...}),
        make_event("odd", model="m-x", **what),
        make_event("node", source=NODE, node_id="gpu-7", **{**what, "conversation_id": ..., "feature": "batch"}),
        make_event("bad", tenant_id="t-nobody", time=at),
        received_at=at,
    )
    run_rollup(database.url_for("tallystick_rollup"), dbt_home)
    yield ledger
    ledger.close()


async def ask(commands: Commands, name: str, *variables: str) -> list[dict[str, Any]]:
    arguments = [part for each in variables for part in ("--var", each)]
    ran: Ran = await asyncio.to_thread(commands, "sql", "--query", name, *arguments, "--format", "json")
    assert ran.code == 0, ran.err
    return [{name: number(value) for name, value in row.items()} for row in ran.json]


def number(value: Any) -> Any:
    """Return a number as a decimal, whose places do not matter."""
    is_number = isinstance(value, int) or (isinstance(value, str) and re.fullmatch(r"-?\d+(\.\d+)?", value))
    return Decimal(value) if is_number else value


def test_there_are_twenty_one_questions_and_each_says_what_it_answers() -> None:
    assert len(NAMES) == 21
    for each in questions():
        assert each.question.endswith("?")
        assert each.asked_by
        assert each.grain


@pytest.mark.marts
async def test_each_question_can_be_asked(asked: Ledger, commands: Commands) -> None:
    for name in NAMES:
        await ask(commands, name)


@pytest.mark.marts
async def test_the_answers_are_what_was_posted(asked: Ledger, commands: Commands) -> None:
    """Four chat requests, one of them with 60 of its 100 tokens from the cache: 0.00028 x 3 + 0.00019; one retry without a feature."""
    spent = await ask(commands, "who-spent-most", "tenant=t-alpha", f"since={NOW - timedelta(hours=1):%Y-%m-%dT%H:00Z}")
    by = {(row["feature"], row["model"]): row for row in spent}
    assert by["chat", "m-sub"]["charge_amount"] == Decimal("0.00103")
    assert by["chat", "m-sub"]["requests"] == 4
    assert by["chat", ""]["unpriced"] == 1
    assert [row["requests"] for row in spent if row["feature"] == "batch"] == [1]

    [saved] = await ask(commands, "what-caching-saved")
    # 60 x (2.00 - 0.50) a million
    assert (saved["cached_tokens"], saved["saved"]) == (60, Decimal("0.00009"))

    [again] = await ask(commands, "retries-paid")
    assert (again["attempt_kind"], again["requests"], again["charge_amount"]) == ("retry", 1, Decimal("0.00028"))

    [hidden] = await ask(commands, "cost-without-feature")
    assert hidden["charge_amount"] == Decimal("0.00028")

    unpriced = await ask(commands, "what-is-unpriced")
    assert {(row["model"], row["requests"]) for row in unpriced} == {("m-x", 1)}

    talks = {
        (row["language"], row["charge_currency"]): (
            row["conversations"],
            row["charge_per_conversation"],
            row["unpriced"],
        )
        for row in await ask(commands, "cost-per-conversation-by-language")
        if row["model"] == "m-sub"
    }
    # One request of the English conversation has no price, so nobody knows what it cost.
    assert talks == {("de", "USD"): (1, Decimal("0.00019"), 0), ("en", "USD"): (1, None, 1)}

    [burning] = await ask(commands, "which-key-burns")
    assert (burning["api_key_id"], burning["now_requests"], burning["day_ago_requests"]) == ("key-1", 7, None)

    [letters] = await ask(commands, "dead-letters-by-source")
    assert (letters["reason"], letters["letters"]) == ("unknown_tenant", 1)

    [slow] = [
        row
        for row in await ask(commands, "latency-p95-by-feature")
        if (row["feature"], row["model"]) == ("chat", "m-sub")
    ]
    assert slow["requests"] == 4
    # A histogram's buckets are 4 % wide.
    assert (round(slow["latency_ms_p95"] / 900, 1), round(slow["ttft_ms_p95"] / 90, 1)) == (1, 1)

    tomorrow = f"{NOW + timedelta(days=1):%Y-%m-%d}"
    bill = await ask(commands, "reconcile-with-the-provider", f"from={NOW:%Y-%m-%d}", f"to={tomorrow}")
    owed = {row["cost_currency"]: (row["cost_amount"], row["requests"], row["unpriced"]) for row in bill}
    assert owed == {"USD": (Decimal("0.00159"), 6, None), None: (None, 1, 1)}

    lines = await ask(commands, "trace-a-cent", "tenant=t-alpha", f"day={NOW:%Y-%m-%d}", "feature=batch")
    charged = [row for row in lines if row["book"] == "charge"]
    assert {(row["meter"], row["quantity"]) for row in charged} == {
        ("uncached_input_tokens", 100), ("visible_output_tokens", 10),
    }  # fmt: skip
    assert sum(row["amount"] for row in charged) == Decimal("0.00028")


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("who-spent-least", {}, "there is no question who-spent-least"),
        ("../../etc/passwd", {}, "there is no question"),
        ("who-spent-most", {"tenants": "x"}, "who-spent-most takes no tenants; it takes rows, since, tenant"),
        ("who-spent-most", {"rows": "1; drop table x"}, "rows must be a number, not '1; drop table x'"),
    ],
)
def test_what_cannot_be_asked_is_one_clear_line(name: str, given: dict[str, str], said: str) -> None:
    with pytest.raises(CookbookError) as raised:
        statement(name, given)
    assert said in str(raised.value)


def test_a_value_stays_a_value() -> None:
    text = statement("who-spent-most", {"tenant": "x' or '1' = '1"})
    assert "tenant_id = 'x'' or ''1'' = ''1'" in text


def test_the_list_names_each_with_its_defaults(commands: Commands) -> None:
    listed = commands.json("sql", "--list")
    assert [each["name"] for each in listed] == NAMES
    assert "--var goes with --query" in commands("sql", "--var", "a=b").line


def test_the_page_of_the_cookbook_names_each() -> None:
    page = (FOLDER / "README.md").read_text()
    for each in questions():
        assert f"| [`{each.name}`]({each.name.replace('-', '_')}.sql) | {each.question} | {each.asked_by} |" in page
