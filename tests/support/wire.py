"""A wire to Postgres that can be cut at a chosen word: the socket of a server, passed on by us."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Literal

from tallystick.embedded import PostgresAddress

Cut = Literal["before", "after", "delayed"]
_END_OF_ROWS = b"c\x00\x00\x00\x04"
"""The protocol's word for the end of a COPY."""


class Wire:
    """Passes bytes on both ways. Once armed, it cuts one session at its next commit, or at another word that ends a
    transaction: a statement that stands alone commits by itself. Where the commit goes with rows, it is their end.

    before: the server never hears the word. after: it does, and its answer is lost. delayed: the client is cut off at
    once, and the server hears the word only `seconds` later.
    """

    def __init__(self, server: PostgresAddress, folder: Path) -> None:
        self._server = server
        self._folder = folder
        self._cut: Cut | None = None
        self._seconds = 0.0
        self._word = b"commit"
        self._sessions: set[asyncio.Task[None]] = set()
        self.cuts = 0

    def arm(self, cut: Cut, seconds: float = 0.0, word: bytes = b"commit") -> None:
        self._cut, self._seconds, self._word = cut, seconds, word

    def url_for(self, role: str, database: str) -> str:
        return PostgresAddress(self._folder, self._server.port).url_for(role, database)

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Wire"]:
        path = self._folder / f".s.PGSQL.{self._server.port}"
        server = await asyncio.start_unix_server(self._session, path)
        try:
            yield self
        finally:
            server.close()
            for session in list(self._sessions):
                session.cancel()
            await asyncio.gather(*self._sessions, return_exceptions=True)

    async def _session(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._sessions.add(task)
        task.add_done_callback(self._sessions.discard)
        from_server, to_server = await asyncio.open_unix_connection(
            f"{self._server.sockets}/.s.PGSQL.{self._server.port}"
        )
        back = asyncio.create_task(_pass_on(from_server, to_client))
        try:
            while data := await client.read(65_536):
                if self._cut is not None and self._word in data:
                    if not self._word.startswith(b"commit") or b"copy " not in data or data.endswith(_END_OF_ROWS):
                        await self._cut_at(data, back, to_client, to_server)
                        return
                    self._word = _END_OF_ROWS
                to_server.write(data)
                await to_server.drain()
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            back.cancel()
            with suppress(asyncio.CancelledError):
                await back
            for writer in (to_client, to_server):
                writer.close()

    async def _cut_at(
        self, data: bytes, back: "asyncio.Task[None]", to_client: asyncio.StreamWriter, to_server: asyncio.StreamWriter
    ) -> None:
        cut, self._cut = self._cut, None
        self.cuts += 1
        back.cancel()
        with suppress(asyncio.CancelledError):
            await back
        if cut == "delayed":
            to_client.close()
            await asyncio.sleep(self._seconds)
        if cut != "before":
            to_server.write(data)
            await to_server.drain()
            # The server reads what came before the end of the wire.
            await asyncio.sleep(0.1)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
        writer.close()
