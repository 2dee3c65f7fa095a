"""GET healthz, readyz, metrics: for whoever runs it, without a key and without a word about any tenant."""

import asyncio
from typing import Final

import msgspec
import psycopg
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from api.documents import Room
from api.errors import DatabaseAway, Problem
from api.metrics import MEDIA_TYPE
from api.schemas import HEALTH_OPERATION, HEALTH_SCHEMAS, METRICS_OPERATION, READY_OPERATION, Health
from api.services import Services, services_of
from ledger.database import Connection

router = APIRouter()

_WAIT_SECONDS: Final = 3.0


@router.get("/healthz", openapi_extra=HEALTH_OPERATION, response_model=None)
async def get_health() -> Response:
    """Say that the process answers."""
    return Response(msgspec.json.encode(Health("alive")), media_type="application/json")


@router.get("/readyz", openapi_extra=READY_OPERATION, response_model=None)
async def get_readiness(request: Request) -> Response:
    """Say whether requests may be sent here, and if not, why."""
    services = services_of(request)
    checks: dict[str, str] = {}
    try:
        async with asyncio.timeout(_WAIT_SECONDS):
            epoch, revision = await services.reader.run(lambda connection: _look(connection, services))
    except (DatabaseAway, TimeoutError):
        checks["database"] = "cannot be reached"
    except psycopg.Error:
        checks["database"] = "is not migrated"
    else:
        wanted = services.config.revision
        if wanted is not None and revision != wanted:
            checks["database"] = f"is at revision {revision}, this code is at {wanted}"
        held = services.commits.feed
        if held is not None and epoch is not None and epoch > held.epoch:
            services.commits.fence()
    complaint = services.commits.complaint()
    if complaint is not None:
        checks["events"] = complaint
    complaint = services.reserving.complaint()
    if complaint is not None:
        checks["reservations"] = complaint
    if checks:
        return Problem("not-ready", checks=checks)
    return Response(msgspec.json.encode(Health("ready")), media_type="application/json")


async def _look(connection: Connection, services: Services) -> tuple[int | None, str | None]:
    """Return the epoch of our feed and the revision of the tables."""
    held = services.commits.feed
    cursor = await connection.execute(
        "select (select epoch from ledger.feeds where feed_id = %s), (select version_num from ledger.alembic_version)",
        [None if held is None else held.feed_id],
    )
    row = await cursor.fetchone()
    assert row is not None
    return row[0], row[1]


@router.get("/metrics", openapi_extra=METRICS_OPERATION, response_model=None)
async def get_metrics(request: Request) -> Response:
    """Answer with the process's counters, and what the database says of what waits."""
    services = services_of(request)
    await services.watch.look()
    return Response(services.metrics.text(), media_type=MEDIA_TYPE)


ROOM: Final = Room(router, "operation", "For whoever runs it; without a key.", HEALTH_SCHEMAS)
