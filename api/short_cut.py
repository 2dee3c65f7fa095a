"""The way of the few requests that stand around every model call: past the framework's routing, to the same functions."""

from collections.abc import Mapping
from typing import Final

from starlette.types import Receive, Scope, Send

from api.budgets import PATH as BUDGETS_PATH
from api.budgets import tenant_budgets
from api.reservation_routes import ACTS, ONE_PATH, answered
from api.reservations import Act
from api.services import Services

_BEFORE, _AFTER = BUDGETS_PATH.split("{tenant_id}")
_BEFORE_ID: Final = ONE_PATH.removesuffix("{reservation_id}")


class _Route:
    """What the frame counts the request under."""

    def __init__(self, path: str, act: Act | None = None) -> None:
        self.path: Final = path
        self.act: Final = act


_BUDGETS: Final = _Route(BUDGETS_PATH)
_ASKS: Final[Mapping[str, _Route]] = {path: _Route(path, act) for path, act in ACTS.items() if "{" not in path}
_ENDS: Final[Mapping[str, _Route]] = {
    path.removeprefix(ONE_PATH): _Route(path, act) for path, act in ACTS.items() if path not in _ASKS
}


class ShortCut:
    """Answers `GET /v1/tenants/{id}/budgets`, and what is posted about reservations; others, and any query, go the framework's way.

    Finding the route, making a request of it and headers of a response costs as much as the answer.
    """

    def __init__(self, services: Services) -> None:
        self._services = services

    def takes(self, scope: Scope) -> bool:
        """Say whether a request is one of those, and note in its scope what it is and what it names."""
        if scope["type"] != "http" or scope["query_string"]:
            return False
        path: str = scope["path"]
        named = ""
        if scope["method"] == "POST":
            route = _ASKS.get(path)
            if route is None:
                if not path.startswith(_BEFORE_ID):
                    return False
                named, colon, verb = path[len(_BEFORE_ID) :].rpartition(":")
                route = _ENDS.get(colon + verb)
                if route is None or not named:
                    return False
        elif scope["method"] == "GET" and path.startswith(_BEFORE) and path.endswith(_AFTER):
            route = _BUDGETS
            named = path[len(_BEFORE) : -len(_AFTER)]
            if not named:
                return False
        else:
            return False
        if "/" in named:
            return False
        scope["route"], scope["named"] = route, named
        return True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        act = scope["route"].act
        if act is None:
            await self._read(scope, send)
            return
        named = (scope["named"],) if scope["named"] else ()
        status, told, answer = await answered(self._services, scope, receive, act, *named)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(answer)),
            *((name.encode("latin-1"), value.encode("latin-1")) for name, value in told.items()),
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    async def _read(self, scope: Scope, send: Send) -> None:
        authorization = held_tag = None
        for name, value in scope["headers"]:
            if name == b"authorization":
                authorization = value.decode("latin-1")
            elif name == b"if-none-match":
                held_tag = value.decode("latin-1")
        reply = await tenant_budgets(self._services, scope["named"], None, authorization, held_tag)
        await send({"type": "http.response.start", "status": reply.status, "headers": reply.headers})
        await send({"type": "http.response.body", "body": reply.body})
