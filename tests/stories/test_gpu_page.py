"""The page for GPU nodes says what works: its commands, in their order, on two nodes, and each number that it names."""

import asyncio
import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tallystick.demo import set_up
from tests.api.test_server import served
from tests.support.databases import Database
from tests.support.ledger import Ledger
from tests.tallystick.commands import Commands

CHECKOUT = Path(__file__).parent.parent.parent
PAGE = CHECKOUT / "docs" / "for-gpu-nodes.md"
EVENTS = CHECKOUT / "data" / "gpu-prices" / "two_nodes.ndjson"


@pytest.fixture
def commands(
    database: Database, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, dbt_home: Path
) -> Commands:
    monkeypatch.setenv("TALLYSTICK_HOME", str(dbt_home))
    monkeypatch.setenv("TALLYSTICK_DATABASE_URL", database.url)
    return Commands(capsys, database)


@pytest.fixture
def ledger(database: Database) -> Iterator[Ledger]:
    opened = Ledger(database)
    yield opened
    opened.close()


def steps() -> list[list[str]]:
    """The commands of each step of the page, a string each."""
    found = re.split(r"^## \d\. ", PAGE.read_text(), flags=re.MULTILINE)[1:]
    return [
        [
            command.strip()
            for block in re.findall(r"```sh\n(.*?)```", step, re.DOTALL)
            for command in re.split(r"^(?=tallystick|curl)", block, flags=re.MULTILINE)
            if command.strip()
        ]
        for step in found
    ]


def test_the_window_of_the_page_is_the_first_of_its_file() -> None:
    (shown,) = re.findall(r"```json\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert json.loads(shown) == json.loads(EVENTS.read_text().splitlines()[0])


@pytest.mark.marts
@pytest.mark.timeout(400)
def test_the_commands_of_the_page_do_what_it_says(commands: Commands, ledger: Ledger) -> None:
    asyncio.run(set_up(ledger.database.url_for("tallystick_operator")))
    once, send, price, share, tokens, against, late = steps()

    def run(command: str) -> Any:
        """What a command of ours prints; rows where it asks in SQL."""
        name, *arguments = shlex.split(command)
        assert name == "tallystick"
        if arguments[0] == "sql":
            return [tuple(row.values()) for row in commands.json(*arguments)]
        return commands.ok(*arguments).out

    for command in once:
        said = run(command)
    token = re.findall(r"tsk_\S+|\S{30,}", said)[0]
    with served(ledger) as (_, address):

        def told(command: str) -> list[str]:
            env = {**os.environ, "API": address, "TOKEN": token}
            done = subprocess.run(["bash", "-c", command], cwd=CHECKOUT, env=env, capture_output=True, check=True)
            return [result["outcome"] for result in json.loads(done.stdout)["results"]]

        (curl,) = send
        assert told(curl) == ["created"] * 6
        assert told(curl) == ["duplicate"] * 6
        add, listed = price
        assert "added 8 x H100 at 55.04 USD an hour" in run(add)
        assert "55.04" in run(listed)

        rollup, question = share
        run(rollup)
        assert run(question) == [
            ("gpu-1", "09:00", "idle", "platform", "48.16", 0),
            ("gpu-1", "09:00", "request", "globex", "5.16", 41_370_000_000),
            ("gpu-1", "09:00", "request", "wonka", "1.72", 13_790_000_000),
            ("gpu-1", "10:00", "uncovered", "wonka", None, 13_790_000_000),
            ("gpu-2", "09:00", "idle", "platform", "55.04", 0),
        ]
        (question,) = tokens
        assert run(question) == [
            ("globex", 96_000, "53.750000", "430.000000", "0.125000"),
            ("platform", 0, None, None, None),
            ("wonka", 32_000, "53.750000", "430.000000", "0.237500"),
        ]
        (question,) = against
        offer = ("llama-3.3-70b", "groq", "llama-3.3-70b-versatile")
        assert run(question) == [
            (*offer, "110.08", "0.07712", "1427.385892", 182_705_395, ""),
            (*offer, None, "0.01928", None, None, "no_window"),
        ]
        curl, rollup, question = late
        assert told(curl) == ["created"]
        run(rollup)
        assert run(question) == [("idle", "platform", "48.16"), ("request", "wonka", "6.88")]
        over = curl.replace('"w-4"', '"w-5"').replace("10:00:00Z", "10:30:00Z")
        assert told(over) == ["dead_letter"]
    assert ledger.rows("select reason from ledger.dead_letters") == [("window_overlaps",)]
