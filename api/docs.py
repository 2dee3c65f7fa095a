"""The page at /docs: renders /openapi.json with a script of our own, since the usual ones load theirs from elsewhere."""

from pathlib import Path
from typing import Final

from fastapi import APIRouter
from starlette.responses import Response

from api.documents import Room

router = APIRouter()

_FOLDER: Final = Path(__file__).parent / "static"
# Nothing may come from anywhere but here.
_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'",
    "x-content-type-options": "nosniff",
    "cache-control": "max-age=300",
}


def _serve(path: str, file: str, media_type: str) -> None:
    content = (_FOLDER / file).read_bytes()

    async def get() -> Response:
        return Response(content, media_type=media_type, headers=_HEADERS)

    router.add_api_route(path, get, include_in_schema=False, response_model=None)


_serve("/docs", "docs.html", "text/html; charset=utf-8")
_serve("/docs.js", "docs.js", "text/javascript; charset=utf-8")
_serve("/docs.css", "docs.css", "text/css; charset=utf-8")
_serve("/favicon.ico", "favicon.svg", "image/svg+xml")
_serve("/favicon.svg", "favicon.svg", "image/svg+xml")


ROOM: Final = Room(router, "", "")
