"""The runbook does what it says: its commands, in their order, on the demo's month; and each sum is what the ledger charged."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pypdf import PdfReader

from ingest.replay import events_of, load_plan, packs, send
from tallystick.demo import DATA, TRACES, set_up
from tallystick.embedded import EmbeddedBroker
from tests.stories.test_worker import seen, wait_for
from tests.support.databases import Database
from tests.support.ledger import Ledger
from tests.support.worker import WorkerProcess

CHECKOUT = Path(__file__).parent.parent.parent
PAGE = CHECKOUT / "docs" / "month-end.md"
CHARGE = Decimal("87.42951735")
LATE = {
    "specversion": "1.0", "type": "llm.usage.v1", "source": "gateway://demo/eu-1", "id": "late-1", "time": "2026-11-12T10:00:00Z",
    "data": {
        "tenant_id": "wonka", "feature": "chat", "language": "en", "request_id": "late-1", "provider": "openai", "model": "gpt-5-mini",
        "status": "ok", "flavour": "openai.chat",
        "usage": {"prompt_tokens": 1_000_000, "completion_tokens": 0, "total_tokens": 1_000_000},
    },
}  # fmt: skip
"""A million input tokens at 0.25, and a markup of 1.20: 0.30."""


@pytest.fixture
def worker(database: Database, embedded_broker: EmbeddedBroker, tmp_path: Path) -> Iterator[WorkerProcess]:
    embedded_broker.create_topic("month-end", 2)
    running = WorkerProcess(
        tmp_path / "worker",
        writer_url=database.url_for("tallystick_writer"),
        bootstrap=embedded_broker.bootstrap,
        topic="month-end",
        group="month-end",
        session_seconds=3.0,
    )
    yield running
    running.kill()


@pytest.fixture
def ledger(database: Database) -> Iterator[Ledger]:
    opened = Ledger(database)
    yield opened
    opened.close()


class Shell:
    """A person's shell: `tallystick` on the path, told where the test's database is."""

    def __init__(self, database: Database, folder: Path, month: str) -> None:
        command = folder / "bin" / "tallystick"
        command.parent.mkdir()
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m tallystick "$@"\n')
        command.chmod(0o755)
        self.folder = folder / "files"
        self.folder.mkdir()
        self._environment = {
            **os.environ,
            "PATH": f"{command.parent}:{os.environ['PATH']}",
            "TALLYSTICK_HOME": str(folder / "home"),
            "TALLYSTICK_DATABASE_URL": database.url,
            "MONTH": month,
            "FOLDER": str(self.folder),
            "COLUMNS": "200",
        }

    def __call__(self, commands: str) -> str:
        done = subprocess.run(
            ["bash", "-e", "-c", commands],
            cwd=CHECKOUT, env=self._environment, capture_output=True, text=True, timeout=400, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{commands}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def json(self, command: str) -> Any:
        return json.loads(self(f"{command} --format json"))


def blocks() -> list[str]:
    return re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)


def usage(documents: list[Any]) -> Decimal:
    return sum(
        (Decimal(line["exact_amount"]) for each in documents for line in each["lines"] if line["kind"] == "usage"),
        Decimal(0),
    )


def test_the_page_has_seven_steps_and_each_has_its_commands() -> None:
    steps = re.findall(r"^## (\d)\. ", PAGE.read_text(), re.MULTILINE)
    assert steps == list("1234567")
    assert len(blocks()) == 7


@pytest.mark.timeout(900)
async def test_the_commands_of_the_page_end_the_demos_month(
    database: Database, embedded_broker: EmbeddedBroker, worker: WorkerProcess, ledger: Ledger, tmp_path: Path
) -> None:
    await set_up(database.url_for("tallystick_operator"))
    plan = load_plan(DATA / "demo" / "plan.json")
    events = [event for path in TRACES for event in events_of(path, plan)]
    send(embedded_broker.bootstrap, "month-end", list(packs(events, 100)))
    wait_for(lambda: seen(ledger) >= len(events), 120, worker)
    # Whoever runs this long after the traces' November has it all billed late, in the month that was open.
    first = ledger.value("select max(posting_period) from ledger.entries")
    month = f"{first:%Y-%m}"
    ended = ledger.value(f"select max(ends_at) < now() from ledger.periods where posting_period = '{first}'")
    shell = Shell(database, tmp_path, month)
    look, close, draft, issue, waits, files, afterwards = blocks()

    said = shell(look)
    assert "no dead letters" in said
    assert "no proposals wait" in said
    assert "everything holds" in said
    assert "nothing is closed yet" in said

    said = shell(close if ended else close.replace("--commit", "--early --reason 'a test' --commit"))
    assert f"closed {month} of 12 tenants, made 12 seals" in said
    assert said.count("sealed") == 12

    said = shell(draft)
    assert "would change 19 of 19 agreements" in said
    assert "cannot be issued" not in said

    said = shell(issue)
    assert "12 issued (" in said
    assert month != "2026-11" or "12 issued (115.17 USD)" in said, "as the page says"
    assert "nothing waits" in shell(waits)
    listed = shell.json(f"tallystick invoice list --month {month}")
    shown = {each["number"]: shell.json(f"tallystick invoice show {each['number']}") for each in listed}
    assert usage([*shown.values()]) == CHARGE == ledger.total()
    for each in shown.values():
        assert usage([each]) == ledger.value(
            f"select sum(charge_amount) from ledger.entries where tenant_id = '{each['tenant_id']}'"
        )
    due = sum((Decimal(each["amount_due"]) for each in shown.values()), Decimal(0))
    globex = f"{shown['DEMO-000003']['amount_due']}".replace(".", ",")

    shell(files)
    assert sorted(each.name for each in (shell.folder / "all").iterdir()) == [
        f"{number}.pdf" for number in sorted(shown)
    ]
    assert (shell.folder / "all" / "DEMO-000003.pdf").read_bytes() == (shell.folder / "DEMO-000003.pdf").read_bytes()
    pages = [page.extract_text() for page in PdfReader(shell.folder / "DEMO-000003.pdf").pages]
    assert globex in pages[0], "what is due stands on the first page"
    assert len(re.findall(rf"Zu zahlen\s+{globex}", "\n".join(pages))) == 2, "and below the lines"
    billed = pl.read_parquet(shell.folder / "focus.parquet").get_column("BilledCost").to_list()
    assert sum(billed, Decimal(0)) == due

    of_month = {each["tenant_id"]: each for each in shell.json(f"tallystick margin {month} --billed --by tenant")}
    for each in shown.values():
        assert Decimal(of_month[each["tenant_id"]]["charge_amount"]) == usage([each])

    said = shell(afterwards)
    assert "issued DEMO-C-000001: gives back 5.00 USD of DEMO-000006" in said
    assert re.search(r"documents +14\n", said)
    assert "everything holds" in said
    of_wonka = shell.json("tallystick invoice list --tenant wonka")
    assert {each["number"]: each["state"] for each in of_wonka} == {"DEMO-000012": "voided", "DEMO-000013": "issued"}

    send(embedded_broker.bootstrap, "month-end", list(packs([json.dumps(LATE).encode()], 1)))
    wait_for(lambda: seen(ledger) >= len(events) + 1, 60, worker)
    after = ledger.value("select posting_period from ledger.entries where request_id = 'late-1'")
    assert after > first
    (late,) = shell.json(f"tallystick invoice draft wonka {after:%Y-%m}")["drafts"]
    (line,) = [each for each in late["document"]["lines"] if each["kind"] == "usage"]
    assert (line["service_start"], Decimal(line["exact_amount"])) == ("2026-11-01", Decimal("0.3"))
    assert usage([shell.json("tallystick invoice show DEMO-000013")]) == Decimal("0.15107493"), "what is issued stays"
    margins = [
        shell.json(f"tallystick margin {of:%Y-%m} --billed --tenant wonka --by tenant")[0]["charge_amount"]
        for of in (first, after)
    ]
    assert margins == ["0.15107493", "0.3"], "late usage is in the margin of the month that bills it"
