"""What lies around every request: it has an id, its time is taken, and no error leaves as anything but a problem."""

import time
from typing import Any, Final

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import problem_of, request_id, request_id_of
from api.metrics import Metrics

_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Frame:
    """ASGI middleware; plain, since the ready-made base costs more than most of our routes."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 0

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", told.encode())]
            await send(message)

        began = time.perf_counter()
        sent = next((value for name, value in scope["headers"] if name == b"x-request-id"), None)
        told = request_id_of(None if sent is None else sent.decode("latin-1"))
        request_id.set(told)
        try:
            await self._app(scope, receive, noting)
        except ClientDisconnect:
            # Nobody is left to be answered.
            pass
        except Exception as error:
            problem = problem_of(error)
            if status:
                # The head has left, so the connection is all that can still be ended.
                raise RuntimeError("the answer broke off") from None
            await problem(scope, receive, noting)
        finally:
            route: Any = scope.get("route")
            path = "unmatched" if route is None else route.path
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self._metrics.answered(method, path, status, time.perf_counter() - began)
