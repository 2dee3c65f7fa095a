"""What administrative routes share: who may act, what the body says, the transaction, and the answer.

A file of routes (`corrections.py`, `parties.py`, ...) makes a `Room` and is named once in `main.ROOMS`:

    @router.post("/v1/grants", openapi_extra=GRANT_OPERATION, response_model=None)
    async def post_grant(request: Request) -> Response:
        key = await require(request, "grants:write")
        asked = await body_of(request, _grant_decoder)
        made = await act(request, lambda connection: grants.grant(connection, actor=key.actor, ...))
        return answered(GrantReply(...), status=201)
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from api.bodies import Decoded, check_json, check_values, decode, read_body
from api.services import services_of
from ledger.api_keys import ApiKey, Scope
from ledger.database import Connection

Found = TypeVar("Found")


async def require(request: Request, scope: Scope) -> ApiKey:
    """Return the key in force that the request carries, if it has the scope.

    Errors: `Unauthenticated`, `ScopeMissing`.
    """
    return await services_of(request).keys.identify(request.headers.get("authorization"), scope)


async def body_of(request: Request, decoder: "msgspec.json.Decoder[Decoded]") -> Decoded:
    """Return what the request's body says.

    Errors: `UnsupportedMediaType`, `BodyTooLarge`, `EmptyBody`, `MalformedBody`, and `InvalidRequest` with field and rule.
    """
    headers = request.headers
    check_json(headers.get("content-type", ""), headers.get("content-encoding"))
    asked = decode(decoder, await read_body(request, services_of(request).config.admin_bytes_max))
    check_values(asked)
    return asked


async def act(request: Request, work: Callable[[Connection], Awaitable[Found]]) -> Found:
    """Run work as the operator in a transaction, and return what it returns, after the commit."""
    return await services_of(request).operator.run(work)


async def look(request: Request, work: Callable[[Connection], Awaitable[Found]]) -> Found:
    """Run a read as the API's own role, which may be run twice."""
    return await services_of(request).reader.run(work)


def answered(reply: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a reply as JSON."""
    return Response(msgspec.json.encode(reply), status, headers, media_type="application/json")
