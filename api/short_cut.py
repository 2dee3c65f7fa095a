"""The way of the few requests that stand around every model call: past the framework's routing, to the same functions."""

from typing import Final

from starlette.types import Receive, Scope, Send

from api.bodies import check_json, read_stream
from api.budgets import PATH as BUDGETS_PATH
from api.budgets import tenant_budgets
from api.errors import Refusal
from api.reservations import BATCH_PATH, PATH, create, create_many
from api.services import Services

_BEFORE, _AFTER = BUDGETS_PATH.split("{tenant_id}")


class _Route:
    """What the frame counts the request under."""

    def __init__(self, path: str) -> None:
        self.path: Final = path


_BUDGETS: Final = _Route(BUDGETS_PATH)
_ASKS: Final = {PATH: (_Route(PATH), create), BATCH_PATH: (_Route(BATCH_PATH), create_many)}


def _tenant_of(path: str) -> str:
    tenant_id = path[len(_BEFORE) : -len(_AFTER)]
    return "" if "/" in tenant_id else tenant_id


class ShortCut:
    """Answers `GET /v1/tenants/{id}/budgets` without a query, `POST /v1/reservations` and its batch; others go the framework's way.

    Finding the route, making a request of it and headers of a response costs as much as the answer.
    """

    def __init__(self, services: Services) -> None:
        self._services = services

    def takes(self, scope: Scope) -> bool:
        """Say whether a request is one of those."""
        if scope["type"] != "http" or scope["query_string"]:
            return False
        path: str = scope["path"]
        if scope["method"] == "POST":
            return path in _ASKS
        return (
            scope["method"] == "GET" and path.startswith(_BEFORE) and path.endswith(_AFTER) and bool(_tenant_of(path))
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "POST":
            await self._ask(scope["path"], scope, receive, send)
        else:
            await self._read(_tenant_of(scope["path"]), scope, send)

    async def _read(self, tenant_id: str, scope: Scope, send: Send) -> None:
        scope["route"] = _BUDGETS
        authorization = held_tag = None
        for name, value in scope["headers"]:
            if name == b"authorization":
                authorization = value.decode("latin-1")
            elif name == b"if-none-match":
                held_tag = value.decode("latin-1")
        reply = await tenant_budgets(self._services, tenant_id, None, authorization, held_tag)
        await send({"type": "http.response.start", "status": reply.status, "headers": reply.headers})
        await send({"type": "http.response.body", "body": reply.body})

    async def _ask(self, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        route, decide = _ASKS[path]
        scope["route"] = route
        authorization = encoding = None
        content_type = length = ""
        for name, value in scope["headers"]:
            if name == b"authorization":
                authorization = value.decode("latin-1")
            elif name == b"content-type":
                content_type = value.decode("latin-1")
            elif name == b"content-encoding":
                encoding = value.decode("latin-1")
            elif name == b"content-length":
                length = value.decode("latin-1")
        try:
            check_json(content_type, encoding)
            body = await read_stream(receive, length, self._services.config.reservation_bytes_max)
        except Refusal:
            # Whoever has no key learns that first, as everywhere.
            await self._services.keys.identify(authorization, "reservations:write")
            raise
        status, told, answer = await decide(self._services, authorization, body)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(answer)),
            *((name.encode("latin-1"), value.encode("latin-1")) for name, value in told.items()),
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": answer})
