"""The app: routes, what lies around them, and its life."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from api import (
    budget_terms,
    budgets,
    corrections,
    dead_letters,
    docs,
    events,
    grants,
    health,
    invoices,
    parties,
    periods,
    reservation_routes,
    usage,
    webhooks,
)
from api.config import Config
from api.documents import Room, complete
from api.errors import InvalidRequest, problem_of
from api.frame import Frame
from api.services import Services
from api.short_cut import ShortCut

VERSION: Final = "1"
_START_SECONDS: Final = 5.0

ROOMS: Final[tuple[Room, ...]] = (
    events.ROOM,
    reservation_routes.ROOM,
    budgets.ROOM,
    budget_terms.ROOM,
    grants.ROOM,
    webhooks.ROOM,
    usage.ROOM,
    corrections.ROOM,
    dead_letters.ROOM,
    parties.ROOM,
    periods.ROOM,
    invoices.ROOM,
    health.ROOM,
    docs.ROOM,
)
"""All routes, in the order in which the document lists them."""


class App(FastAPI):
    """The framework, and in front of it the short cut of the few requests that stand around every model call."""

    def __init__(self, services: Services, **options: Any) -> None:
        super().__init__(**options)
        self.state.services = services
        self._short_cut = ShortCut(services)
        self._framed_short_cut = Frame(self._short_cut, services.metrics)
        self.add_middleware(Frame, metrics=services.metrics)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._short_cut.takes(scope):
            await self._framed_short_cut(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


def create_app(config: Config) -> FastAPI:
    """Make the app; it touches the network when its lifespan begins, and finishes what is queued when that ends."""
    services = Services.of(config)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        try:
            await services.reader.open()
            await services.reports.open()
            await services.operator.open()
            services.key_watch.start()
            services.reserving.start()
            await services.commits.start(_START_SECONDS)
            yield
        finally:
            await services.reserving.close()
            await services.commits.close()
            await services.key_watch.close()
            await services.operator.close()
            await services.reports.close()
            await services.reader.close()

    app = App(
        services,
        title="Tallystick",
        version=VERSION,
        lifespan=lifespan,
        # Their pages load scripts from elsewhere; ours is in docs.py.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    for room in ROOMS:
        app.include_router(room.router)
    app.add_exception_handler(HTTPException, _answer)
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = complete(plain(), ROOMS)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
    return app


async def _answer(_: Request, error: Exception) -> Response:
    return problem_of(error)


async def _answer_invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    return problem_of(InvalidRequest(".".join(str(part) for part in first["loc"]), str(first["msg"])))
