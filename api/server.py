"""Runs the app in this process until it is told to stop."""

import asyncio
import contextlib
import gc
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from api.config import Config
from api.main import create_app

log = logging.getLogger("tallystick.api")

_GARBAGE: Final = (20_000, 20, 20)
"""How many new objects are looked through together, and how often older ones: a request in flight makes hundreds, and few in cycles."""


def serve(config: Config, host: str, port: int, announce: Callable[[int], None] | None = None) -> None:
    """Answer requests until SIGTERM or SIGINT; then take no more, finish what is queued, and return.

    `announce` is called with the bound port, which differs from `port` if that is 0, once requests are answered.
    Errors: OSError when the address cannot be bound.
    """
    with contextlib.closing(bound(host, port)) as listener:
        bound_port: int = listener.getsockname()[1]
        run(create_app(config), listener, lambda: announce(bound_port) if announce else None, config.deadline_seconds)


def run(app: ASGIApp, listener: socket.socket, announce: Callable[[], None], deadline_seconds: float) -> None:
    """Answer requests on a socket with an app until told to stop."""
    settings = uvicorn.Config(
        app,
        loop="uvloop",
        http=_Protocol,
        lifespan="on",
        # Paths name tenants; what an operator needs is in /metrics.
        access_log=False,
        log_config=None,
        server_header=False,
        date_header=False,
        # Longer than gateways' pools keep an idle line, so that it is not hung up on while a call goes out on it.
        timeout_keep_alive=75,
        # Nothing here asks where a request came from.
        proxy_headers=False,
        timeout_graceful_shutdown=round(deadline_seconds) + 5,
    )
    _Server(settings, announce).run(sockets=[listener])


def bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise
    listener.set_inheritable(True)
    return listener


class _Whole:
    """A transport that sends the head of an answer and its body together: one call to the system for each answer, and not two."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held = b""

    def write(self, data: bytes) -> None:
        if self._held:
            data, self._held = self._held + data, b""
            self._transport.write(data)
        else:
            # A head whose body is long in coming leaves with this turn of the loop.
            self._held = data
            self._loop.call_soon(self._flush)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._held:
            data, self._held = self._held, b""
            self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class _Protocol(HttpToolsProtocol):
    """The server's own, but for how answers leave."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(_Whole(transport, self.loop))  # type: ignore[arg-type]


class _Server(uvicorn.Server):
    """A server that says when it answers, and that ends by returning rather than by the signal that stopped it."""

    def __init__(self, config: uvicorn.Config, announce: Callable[[], None]) -> None:
        super().__init__(config)
        self._announce = announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            # What is there now stays, and looking through it again and again for garbage would hold everybody up.
            gc.collect()
            gc.freeze()
            gc.set_threshold(*_GARBAGE)
            self._announce()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        def stop(number: int, frame: FrameType | None) -> None:
            self.handle_exit(number, frame)

        before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
