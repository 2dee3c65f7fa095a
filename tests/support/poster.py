"""A process that posts numbered messages to a feed, as a worker does, and may be told where to die."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from ingest.intake import Intake, Message
from ledger import failpoints, feeds
from ledger.database import connect
from ledger.times import parse_rfc3339
from tests.support.ledger import RECEIVED

CHECKOUT = Path(__file__).parent.parent.parent


def post_in_a_process(url: str, bodies: list[bytes], *, size: int, failpoints: str = "") -> int:
    """Post from where the feed stands to the end, `size` messages a batch; return the process's exit code."""
    given: dict[str, Any] = {"url": url, "size": size, "failpoints": failpoints}
    given["bodies"] = [body.decode() for body in bodies]
    command = [sys.executable, "-m", "tests.support.poster"]
    return subprocess.run(command, cwd=CHECKOUT, input=json.dumps(given), text=True, timeout=60, check=False).returncode


async def _post(url: str, bodies: list[bytes], size: int) -> None:
    async with await connect(url) as connection:
        held = await feeds.claim(connection, "kafka", "kafka:c:t:0")
    intake = await Intake.open(url, held, patience=5)
    received = parse_rfc3339(RECEIVED)
    for first in range(held.next_position, len(bodies), size):
        following = min(first + size, len(bodies))
        messages = [Message(bodies[at], received, "test", at) for at in range(first, following)]
        await intake.post(await intake.read(messages, expected_position=first, next_position=following))
    await intake.close()


if __name__ == "__main__":
    told = json.load(sys.stdin)
    failpoints.configure(told["failpoints"])
    asyncio.run(_post(told["url"], [body.encode() for body in told["bodies"]], told["size"]))
