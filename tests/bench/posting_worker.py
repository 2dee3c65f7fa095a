"""Posts messages that wait for it at half load: after each batch it rests as long as that took.

In a process of its own, as a worker is beside a replica. It reads messages, a line each, until an empty one, and at the next
line posts them, a batch each, for as many seconds as that says; then it says how many it posted. At the end of its input it ends.
"""

import asyncio
import sys
import time

from ingest.intake import Intake, Message, ease_collection
from ledger import feeds
from ledger.database import connect


async def work(url: str) -> None:
    async with await connect(url) as connection:
        held = await feeds.claim(connection, "file", "file:bench")
    intake = await Intake.open(url, held, patience=5)
    ease_collection()
    while True:
        messages = [line.encode() for line in iter(lambda: sys.stdin.readline().rstrip("\n"), "")]
        print("ready", flush=True)
        seconds = sys.stdin.readline()
        if not seconds:
            break
        ends = time.monotonic() + float(seconds)
        posted = 0
        for message in messages:
            began = time.monotonic()
            if began >= ends:
                break
            await intake.post(await intake.read([Message(message, time.time_ns() // 1000, "bench")]))
            posted += 1
            await asyncio.sleep(time.monotonic() - began)
        print(posted, flush=True)
    await intake.close()


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1]))
