"""An app in this process, with keys, answering through ASGI."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import date
from typing import Any

import httpx
from fastapi import FastAPI

from api.config import Config
from api.group_commit import GroupCommit
from api.main import create_app
from ledger.api_keys import create_key, revoke_key
from ledger.database import connect
from tests.support.ledger import Ledger


def config_of(ledger: Ledger, **overrides: Any) -> Config:
    return Config(
        **{
            "writer_url": ledger.database.url_for("tallystick_writer"),
            "api_url": ledger.database.url_for("tallystick_api"),
            "operator_url": ledger.database.url_for("tallystick_operator"),
            "name": "api-1",
            **overrides,
        }
    )


async def make_key(ledger: Ledger, *scopes: str, tenant_id: str | None = None, source: str | None = None) -> str:
    """Make a key as an operator does and return its token; without tenant and source it is an operator's."""
    async with await connect(ledger.database.url_for("tallystick_operator")) as connection:
        made = await create_key(
            connection,
            actor="test",
            tenant_id=tenant_id,
            source=source,
            is_operators=tenant_id is None and source is None,
            scopes=scopes,
        )
        return made.token


async def revoke(ledger: Ledger, token: str) -> None:
    async with await connect(ledger.database.url_for("tallystick_operator")) as connection:
        await revoke_key(connection, token[: token.rindex("_")], actor="test")


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@dataclass(frozen=True)
class Site:
    """An app that is running, and somebody who asks it."""

    app: FastAPI
    client: httpx.AsyncClient
    ledger: Ledger

    @property
    def commits(self) -> GroupCommit:
        commits: GroupCommit = self.app.state.services.commits
        return commits

    async def send(self, *events: Any, token: str, content_type: str = "application/json") -> httpx.Response:
        """Post events as one object or an array, or bytes as they are."""
        if len(events) == 1 and isinstance(events[0], bytes):
            body = events[0]
        else:
            body = json.dumps(events[0] if len(events) == 1 else list(events)).encode()
        return await self.client.post(
            "/v1/events", content=body, headers={**bearer(token), "content-type": content_type}
        )

    async def budgets(self, tenant_id: str, token: str, at: str | None = None, **headers: str) -> httpx.Response:
        return await self.client.get(
            f"/v1/tenants/{tenant_id}/budgets",
            params={} if at is None else {"at": at},
            headers={**bearer(token), **headers},
        )

    async def metric(self, line: str) -> float:
        """Return the value of a metric, by its name with labels; zero where it was never counted."""
        text = (await self.client.get("/metrics")).text
        for one in text.splitlines():
            if one.startswith(f"{line} "):
                return float(one.rpartition(" ")[2])
        return 0.0


@asynccontextmanager
async def site(ledger: Ledger, **overrides: Any) -> AsyncIterator[Site]:
    """Run an app for the length of the block."""
    app = create_app(config_of(ledger, **overrides))
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://api") as client,
    ):
        yield Site(app, client, ledger)


def outcomes(answer: httpx.Response) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [result["outcome"] for result in answer.json()["results"]]


def problem(answer: httpx.Response) -> str:
    """Return the code of a problem, after checking that it is one."""
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert body["status"] == answer.status_code
    assert body["title"]
    return str(body["type"]).removeprefix("/problems/")


def add_budget(
    ledger: Ledger,
    budget_id: str = "b-1",
    *,
    tenant_id: str | None = "t-alpha",
    unit: str = "charge",
    currency: str | None = "USD",
    window_kind: str = "month",
    limit: str | None = "100",
    first_window: date = date(2025, 1, 1),
    **others: Any,
) -> None:
    values = {
        "budget_id": budget_id, "tenant_id": tenant_id, "unit": unit, "currency": currency, "window_kind": window_kind,
        "limit_amount": limit, "first_window": first_window, **others,
    }  # fmt: skip
    names = ", ".join(values)
    ledger.superuser.execute(
        f"insert into quotas.budgets ({names}) values ({', '.join(['%s'] * len(values))})".encode(),
        list(values.values()),
    )
