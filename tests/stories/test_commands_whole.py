"""What a stranger does: the demo from nothing, twice, once to its invoices; the stack until it is stopped, and again after kill -9."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import is_running

CHECKOUT = Path(__file__).parent.parent.parent


def tallystick(home: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "tallystick", *arguments]


def environment(home: Path, **settings: str) -> dict[str, str]:
    return {**os.environ, "TALLYSTICK_HOME": str(home), "COLUMNS": "140", **settings}


def left_running(home: Path) -> list[str]:
    """The command lines of processes that name this home."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if str(home) in line:
                found.append(line)
    return found


def test_the_demo_runs_from_nothing_twice_and_leaves_its_database_and_no_process(tmp_path: Path) -> None:
    home = tmp_path / "home"
    for options in ([], ["--month-end"]):
        done = subprocess.run(
            tallystick(home, "demo", *options),
            cwd=CHECKOUT,
            env=environment(home),
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        summary = json.loads((home / "demo-summary.json").read_text())
        assert summary["events_sent"] == summary["entries"] == 28_185
        assert (summary["input_tokens"], summary["output_tokens"]) == (40_421_844, 4_334_561)
        assert summary["duplicates"] == summary["dead_letters"] == 0
        assert summary["ledger_charge"] == summary["mart_charge"] == summary["budget_posted"]
        assert left_running(home) == []
        # What a scheduler publishes of this database must not be held against the next one.
        heads = home / "heads.jsonl"
        assert not heads.exists()
        heads.write_text('{"feed": "api:gone", "number": 1, "hash": "00"}\n')
    made = sorted((home / "month-end").iterdir())
    assert [path.name for path in made] == [f"DEMO-{number:06d}.pdf" for number in range(1, 13)] + [
        "focus.csv",
        "focus.parquet",
    ]
    assert all(path.read_bytes().startswith(b"%PDF-") for path in made[:12])
    assert f"usage lines of all invoices, exactly                         {summary['ledger_charge']}" in done.stdout
    asked = subprocess.run(
        tallystick(home, "sql", "--format", "json", "select count(*) as entries, sum(charge_amount) as charge from ledger.entries"),
        cwd=CHECKOUT, env=environment(home), capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    answer = json.loads(asked.stdout)
    rows: list[dict[str, Any]] = answer if isinstance(answer, list) else answer["rows"]
    assert str(rows[0]["charge"]).rstrip("0") == summary["ledger_charge"].rstrip("0")


class Up:
    """`tallystick up` in a process of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.process = subprocess.Popen(
            tallystick(home, "up"),
            cwd=CHECKOUT,
            env=environment(home, TALLYSTICK_API_PORT="0"),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        deadline = time.monotonic() + 60
        while not (home / "stack.json").exists() and self.process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert self.process.poll() is None, self.process.communicate()[0]
        self.addresses: dict[str, str] = json.loads((home / "stack.json").read_text())

    def is_ready(self) -> bool:
        with urllib.request.urlopen(f"{self.addresses['api']}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "home"
    for line in left_running(tmp_path / "home"):
        pytest.fail(f"left running: {line}")


def test_the_stack_comes_up_again_after_kill_9_with_its_data(home: Path) -> None:
    first = Up(home)
    assert first.is_ready()
    added = subprocess.run(
        tallystick(home, "entities", "add", "acme-gmbh", "--name", "Acme"),
        cwd=CHECKOUT, env=environment(home), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert added.returncode == 0, added.stderr
    first.process.kill()
    first.process.communicate()
    deadline = time.monotonic() + 20
    while left_running(home) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left_running(home) == []
    (home / "stack.json").unlink()

    again = Up(home)
    assert again.is_ready()
    listed = subprocess.run(
        tallystick(home, "sql", "--format", "csv", "select name from ledger.entities"),
        cwd=CHECKOUT, env=environment(home), capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert "Acme" in listed.stdout
    refused = subprocess.run(
        tallystick(home, "demo"),
        cwd=CHECKOUT, env=environment(home), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1), refused.stderr
    assert f"already belongs to the running process {again.process.pid}" in refused.stderr
    assert again.is_ready()
    again.process.send_signal(signal.SIGINT)
    said, _ = again.process.communicate(timeout=30)
    assert again.process.returncode == 0, said
    assert "OpenAPI page" in said
    assert not is_running(again.process.pid)
