"""What our routes are held against: the same server around an app that does nothing. `fastapi`, or `asgi` with a body in and out."""

import sys
from typing import Any

from fastapi import FastAPI

from api.server import bound, run


def fastapi_app() -> FastAPI:
    """Return a FastAPI app whose one route does nothing, in the way its manual writes one."""
    app = FastAPI(openapi_url=None)

    @app.get("/v1/tenants/{tenant_id}/budgets")
    async def get(tenant_id: str) -> dict[str, str]:
        return {"tenant_id": tenant_id}

    return app


async def asgi_app(scope: Any, receive: Any, send: Any) -> None:
    """Read the body and answer with as many bytes as an admitted reservation's answer has."""
    if scope["type"] != "http":
        await _lifespan(receive, send)
        return
    more = True
    while more:
        more = (await receive()).get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": _HEAD})
    await send({"type": "http.response.body", "body": _BODY})


_BODY = b"x" * 900
_HEAD = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(_BODY))]


async def _lifespan(receive: Any, send: Any) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


def main(kind: str) -> None:
    listener = bound("127.0.0.1", 0)
    port = listener.getsockname()[1]
    run(fastapi_app() if kind == "fastapi" else asgi_app, listener, lambda: print(port, flush=True), 1.0)


if __name__ == "__main__":
    main(sys.argv[1])
