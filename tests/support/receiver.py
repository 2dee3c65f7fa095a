"""A receiver of webhooks that really listens: it answers as it is told, and keeps what it was sent."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Received:
    """A request as it arrived."""

    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Receiver:
    """What the test sees of it. `answer` says what the next request gets: a status, headers, or None to hang."""

    port: int = 0
    received: list[Received] = field(default_factory=list)
    answer: Callable[[Received], tuple[int, dict[str, str]] | None] = lambda _: (204, {})

    def url(self, path: str = "/hook") -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    @property
    def ids(self) -> list[str]:
        return [each.headers["webhook-id"] for each in self.received]


@asynccontextmanager
async def listening() -> AsyncIterator[Receiver]:
    """Listen on a free port of this machine for the length of the block."""
    receiver = Receiver()
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
            body = await reader.readexactly(int(headers["content-length"]))
            one = Received(head[0].split(" ")[1], headers, body)
            receiver.received.append(one)
            answer = receiver.answer(one)
            if answer is None:
                await asyncio.sleep(3600)
                return
            status, more = answer
            lines = [
                f"HTTP/1.1 {status} Said",
                "content-length: 0",
                *(f"{name}: {value}" for name, value in more.items()),
            ]
            writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.sleep(0)
