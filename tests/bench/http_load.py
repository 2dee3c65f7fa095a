"""Load over HTTP/1.1 on connections that stay open: as much as a server takes, or so much a second whatever it takes.

The second is for latencies. A request is due at its time by the plan and not when the one before was answered; what it waits for
a connection counts, so that a server that stalls is not asked less and does not look better for it (coordinated omission).
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, cast

Request = bytes
Answer = tuple[int, bytes]
"""Status and body."""


class Line(asyncio.Protocol):
    """One connection: a request at a time."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._answer: asyncio.Future[Answer] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionResetError("the server hung up"))

    def data_received(self, data: bytes) -> None:
        self._buffer = buffer = self._buffer + data if self._buffer else data
        end = buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = buffer[:end].lower()
        at = head.find(b"content-length:")
        length = int(head[at + 15 : head.find(b"\r\n", at) if head.find(b"\r\n", at) > 0 else None]) if at > 0 else 0
        if len(buffer) < end + 4 + length:
            return
        self._buffer = b""
        assert self._answer is not None
        self._answer.set_result((int(buffer[9:12]), buffer[end + 4 : end + 4 + length]))

    async def open(self) -> "Line":
        """Connect, or again where the server has hung up on a line that was idle."""
        if self._transport is None or self._transport.is_closing():
            await asyncio.get_running_loop().create_connection(lambda: self, "127.0.0.1", self._port)
        return self

    async def ask(self, request: Request) -> Answer:
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


async def lines(port: int, count: int) -> list[Line]:
    """Open connections to a server on this machine."""
    return [await Line(port).open() for _ in range(count)]


def request(method: str, path: str, token: str, body: bytes = b"") -> Request:
    """Return a request as it goes over the wire."""
    head = f"{method} {path} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {token}\r\n"
    if body:
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


async def saturate(opened: list[Line], requests: list[Request], check: Callable[[Answer], None]) -> float:
    """Send all requests as fast as they are answered; return how many a second were. Answers are checked afterwards."""
    waiting = deque(requests)
    answers: list[Answer] = []

    async def call(line: Line) -> None:
        while waiting:
            answers.append(await line.ask(waiting.popleft()))

    for line in opened:
        await line.open()
    began = time.perf_counter()
    await asyncio.gather(*(call(line) for line in opened))
    seconds = time.perf_counter() - began
    assert len(answers) == len(requests)
    for answer in answers:
        check(answer)
    return len(requests) / seconds


@dataclass(frozen=True, slots=True)
class Latencies:
    """What requests took from when they were due, in milliseconds."""

    rate: float
    sorted_ms: list[float]

    def at(self, share: float) -> float:
        return self.sorted_ms[min(int(share * len(self.sorted_ms)), len(self.sorted_ms) - 1)]

    def line(self, name: str) -> str:
        return (
            f"    {name} at {self.rate:,.0f}/s: p50 {self.at(0.5):.2f} ms, p99 {self.at(0.99):.2f} ms,"
            f" p999 {self.at(0.999):.2f} ms ({len(self.sorted_ms):,} requests)"
        )


_BEHIND_MAX_SECONDS: Final = 30.0


async def at_rate(
    opened: list[Line], rate: float, requests: list[Request], check: Callable[[Answer], None]
) -> Latencies:
    """Send requests at their times, evenly, and return what they took from then on."""
    free: asyncio.Queue[Line] = asyncio.Queue()
    for line in opened:
        free.put_nowait(await line.open())
    took: list[float] = []
    answers: list[Answer] = []

    async def send(due: float, one: Request) -> None:
        line = await free.get()
        try:
            answers.append(await line.ask(one))
        finally:
            free.put_nowait(line)
        took.append(1000 * (time.perf_counter() - due))

    sent: list[asyncio.Task[None]] = []
    began = time.perf_counter()
    for number, one in enumerate(requests):
        due = began + number / rate
        now = time.perf_counter()
        if due > now:
            await asyncio.sleep(due - now)
        elif number % 64 == 0:
            # Behind the plan, which only the answers can end: let them come.
            await asyncio.sleep(0)
        assert now - due < _BEHIND_MAX_SECONDS, "this machine cannot send so much"
        sent.append(asyncio.create_task(send(due, one)))
    await asyncio.gather(*sent)
    for answer in answers:
        check(answer)
    return Latencies(rate, sorted(took))
