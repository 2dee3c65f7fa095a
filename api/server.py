"""Runs the app in this process until it is told to stop."""

import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from types import FrameType

import uvicorn

from api.config import Config
from api.main import create_app

log = logging.getLogger("tallystick.api")


def serve(config: Config, host: str, port: int, announce: Callable[[int], None] | None = None) -> None:
    """Answer requests until SIGTERM or SIGINT; then take no more, finish what is queued, and return.

    `announce` is called with the bound port, which differs from `port` if that is 0, once requests are answered.
    Errors: OSError when the address cannot be bound.
    """
    with contextlib.closing(_bound(host, port)) as listener:
        bound_port: int = listener.getsockname()[1]
        settings = uvicorn.Config(
            create_app(config),
            loop="uvloop",
            http="httptools",
            lifespan="on",
            # Paths name tenants; what an operator needs is in /metrics.
            access_log=False,
            log_config=None,
            server_header=False,
            date_header=False,
            timeout_graceful_shutdown=round(config.deadline_seconds) + 5,
        )
        _Server(settings, lambda: announce(bound_port) if announce else None).run(sockets=[listener])


def _bound(host: str, port: int) -> socket.socket:
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


class _Server(uvicorn.Server):
    """A server that says when it answers, and that ends by returning rather than by the signal that stopped it."""

    def __init__(self, config: uvicorn.Config, announce: Callable[[], None]) -> None:
        super().__init__(config)
        self._announce = announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
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
