"""A real server on a free port: answers, ends in order on SIGTERM, and loses nothing when it is killed."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import httpx
import psycopg

from ledger.database import CALENDAR_LOCK
from tests.api.support import bearer, config_of, make_key
from tests.factories import GATEWAY, make_event
from tests.support.ledger import Ledger


@contextmanager
def served(ledger: Ledger, **overrides: Any) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run the server in a process of its own; yields it and its address."""
    config = json.dumps(dataclasses.asdict(config_of(ledger, **overrides)), default=sorted)
    with subprocess.Popen(
        [sys.executable, "-m", "tests.api.serve_api", config],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            yield process, f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


def post(address: str, token: str, number: int, **overrides: str) -> str:
    event = make_event(f"ev-{number}", **overrides)
    answer = httpx.post(f"{address}/v1/events", json=event, headers=bearer(token), timeout=20)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["results"][0]["outcome"])


async def test_b118_what_was_acknowledged_is_there_after_two_kills(world: Ledger) -> None:
    """200 events of 0.002 USD (100 x 18 + 10 x 20, a million each), the process killed right after the last answer, twice.

    200 x 0.002 = 0.4
    """
    await world.add_price("m-118", input="18.00", output="20.00")
    token = await make_key(world, source=GATEWAY)
    for run in range(2):
        with served(world) as (process, address):
            for number in range(100 * run, 100 * (run + 1)):
                assert post(address, token, number, model="m-118") == "created"
            os.kill(process.pid, signal.SIGKILL)
            assert process.wait(10) == -signal.SIGKILL
    with served(world) as (_, address):
        assert post(address, token, 199, model="m-118") == "duplicate"
        assert httpx.get(f"{address}/readyz").json() == {"status": "ready"}
    assert world.total() == Decimal("0.4")
    assert world.value("select count(*) from ledger.entries") == 200


async def test_a_stopped_server_answers_what_it_has_taken(world: Ledger) -> None:
    token = await make_key(world, source=GATEWAY)
    outcomes: list[str] = []
    with served(world) as (process, address):
        assert post(address, token, 0) == "created"
        with psycopg.connect(world.database.url) as holder:
            holder.execute("select pg_advisory_xact_lock(%s)", [CALENDAR_LOCK])
            sender = threading.Thread(target=lambda: outcomes.append(post(address, token, 1)))
            sender.start()
            while not world.value("select exists (select from pg_stat_activity where wait_event = 'advisory')"):
                pass
            process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        sender.join(20)
    assert outcomes == ["created"]
    assert world.total() == 2 * Decimal("0.00028")
