"""Pages for people: /docs renders /openapi.json with a script of our own, since the usual ones load theirs from elsewhere; and
/problems/{code} explains a problem under the address that is its type."""

from html import escape
from pathlib import Path
from typing import Final

from fastapi import APIRouter
from starlette.responses import Response

from api.documents import Room
from api.errors import PROBLEMS, Kind, Problem, type_of

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


def _page(title: str, content: str) -> bytes:
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{escape(title)}</title><link rel="icon" href="/favicon.svg" type="image/svg+xml">'
        f'<link rel="stylesheet" href="/docs.css"></head><body><main>{content}'
        '<p><a href="/problems">All problems</a> · <a href="/docs">The API</a></p></main></body></html>\n'
    ).encode()


def _told(text: str) -> str:
    """Return a text with what stands between backticks as code."""
    return "".join(f"<code>{part}</code>" if at % 2 else part for at, part in enumerate(escape(text).split("`")))


def _explained(code: str, kind: Kind) -> str:
    headers = "".join(f"<li><code>{escape(name)}: {escape(value)}</code></li>" for name, value in kind.headers.items())
    return (
        f"<h2>{escape(kind.title)}</h2><p><code>{type_of(code)}</code>, status {kind.status}</p><p>{_told(kind.means)}</p>"
        + (f"<p>It comes with</p><ul>{headers}</ul>" if headers else "")
    )


_PROBLEM_PAGES: Final = {code: _page(kind.title, _explained(code, kind)) for code, kind in PROBLEMS.items()}
_ALL_PROBLEMS: Final = _page(
    "Problems",
    "<h1>Problems</h1><ul>"
    + "".join(
        f'<li><a href="{type_of(code)}">{code}</a> ({kind.status}): {escape(kind.title)}</li>'
        for code, kind in PROBLEMS.items()
    )
    + "</ul>",
)
_HTML: Final = "text/html; charset=utf-8"


@router.get("/problems", include_in_schema=False, response_model=None)
async def get_problems() -> Response:
    """List all problems."""
    return Response(_ALL_PROBLEMS, media_type=_HTML, headers=_HEADERS)


@router.get("/problems/{code}", include_in_schema=False, response_model=None)
async def get_problem(code: str) -> Response:
    """Explain a problem."""
    page = _PROBLEM_PAGES.get(code)
    if page is None:
        return Problem("not-found", "there is no problem of this name")
    return Response(page, media_type=_HTML, headers=_HEADERS)


ROOM: Final = Room(router, "", "")
