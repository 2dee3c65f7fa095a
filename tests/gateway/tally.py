"""What a gateway says to Tallystick: ask before a call, tell how it ended, and lose nothing of what was told.

Asks carry an id of the gateway's own, so that a lost answer is asked for again. Reports are written to disk before they are
sent and stay there until they were acknowledged: a gateway that dies, or that finds nobody, sends them after its next start.
"""

import asyncio
import contextlib
import json
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import httpx

log = logging.getLogger("gateway")

_ASK_TRIES: Final = 3
_PAUSE_SECONDS: Final = 0.1


@dataclass(frozen=True)
class Admitted:
    """The call may go ahead: on this route and with this cap, where they are stated."""

    route: str | None = None
    output_tokens_max: int | None = None


@dataclass(frozen=True)
class Refused:
    """The call must not go ahead; `retry_after` is in seconds, and None where waiting alone does not help."""

    status: int
    code: str
    detail: str
    retry_after: int | None


class Tally:
    """A gateway's connection to the API of Tallystick."""

    def __init__(self, address: str, token: str, spool: Path, *, ask_seconds: float = 2.0) -> None:
        self._client = httpx.AsyncClient(base_url=address, headers={"authorization": f"Bearer {token}"})
        self._spool = spool
        self._ask_seconds = ask_seconds
        self._number = 0
        self._task: asyncio.Task[None] | None = None
        self._has_work = asyncio.Event()
        spool.mkdir(parents=True, exist_ok=True)

    def start(self) -> None:
        """Begin to send what is on the disk, that of an earlier run first."""
        self._has_work.set()
        self._task = asyncio.create_task(self._send_on())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._client.aclose()

    # --- Before a call -----------------------------------------------------------------------------------------------

    async def ask(self, ask: Mapping[str, Any]) -> Admitted | Refused:
        """Ask whether a call may go ahead. Who cannot be asked has not admitted anything: that is a refusal for a moment."""
        for number in range(_ASK_TRIES):
            try:
                answer = await self._client.post("/v1/reservations", json=ask, timeout=self._ask_seconds)
            except httpx.HTTPError:
                # Nobody knows whether it was decided; under the same id it is decided once.
                await asyncio.sleep(_PAUSE_SECONDS * 2**number)
                continue
            if answer.status_code in (200, 201):
                said = answer.json()
                return Admitted(said.get("route"), said.get("output_tokens_max"))
            if answer.status_code != 503 or number == _ASK_TRIES - 1:
                problem = answer.json()
                after = answer.headers.get("retry-after")
                return Refused(
                    answer.status_code,
                    str(problem["type"]).rpartition("/")[2],
                    str(problem.get("detail", problem["title"])),
                    None if after is None else int(after),
                )
            await asyncio.sleep(_PAUSE_SECONDS * 2**number)
        return Refused(503, "budgets-away", "the budgets cannot be asked just now", 2)

    async def extend(self, tenant_id: str, reservation_id: str, seconds: int) -> None:
        """Say that a call goes on. Where nobody hears it the hold may expire; the usage is booked all the same."""
        with contextlib.suppress(httpx.HTTPError):
            body = {"tenant_id": tenant_id, "ttl_seconds": seconds}
            await self._client.post(_path(reservation_id, "extend"), json=body, timeout=self._ask_seconds)

    # --- After a call ------------------------------------------------------------------------------------------------

    def settle(self, tenant_id: str, reservation_id: str, event: Mapping[str, Any]) -> None:
        """Tell how a call ended, with its usage; returns when it is on the disk."""
        self._keep(_path(reservation_id, "settle"), {"tenant_id": tenant_id, "event": event})

    def report(self, event: Mapping[str, Any]) -> None:
        """Tell what one attempt of a call used, while more follow; returns when it is on the disk."""
        self._keep("/v1/events", event)

    def void(self, tenant_id: str, reservation_id: str) -> None:
        """Give back what is held for a call that took nothing; returns when it is on the disk."""
        self._keep(_path(reservation_id, "void"), {"tenant_id": tenant_id})

    @property
    def untold(self) -> int:
        """How many reports are on the disk and not acknowledged."""
        return len(self._waiting())

    def _keep(self, path: str, body: Mapping[str, Any]) -> None:
        self._number += 1
        # By time and number: what was told first is sent first, also after a restart.
        name = f"{time.time_ns():020d}-{self._number:06d}.json"
        partial = self._spool / f".{name}"
        with partial.open("wb") as file:
            file.write(json.dumps({"path": path, "body": body}).encode())
            file.flush()
            os.fsync(file.fileno())
        partial.rename(self._spool / name)
        self._has_work.set()

    def _waiting(self) -> list[Path]:
        return sorted(path for path in self._spool.glob("*.json") if not path.name.startswith("."))

    async def _send_on(self) -> None:
        pause = _PAUSE_SECONDS
        while True:
            await self._has_work.wait()
            self._has_work.clear()
            for path in self._waiting():
                while not await self._sent(path):
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, 5.0)
                pause = _PAUSE_SECONDS

    async def _sent(self, path: Path) -> bool:
        """Send one report; return whether it needs no sending any more."""
        told = json.loads(path.read_bytes())
        try:
            answer = await self._client.post(told["path"], json=told["body"], timeout=30)
        except httpx.HTTPError:
            return False
        if answer.status_code in (429, 503):
            return False
        if answer.status_code == 404 and told["path"].endswith(":settle"):
            # The reservation is nobody's: what was used is used, and is told without it.
            answer = await self._client.post("/v1/events", json=told["body"]["event"], timeout=30)
        if answer.status_code >= 500:
            return False
        if answer.status_code != 200:
            log.error("%s was refused and is kept: %s", path.name, answer.text)
            path.rename(path.with_suffix(".refused"))
            return True
        path.unlink()
        return True


def _path(reservation_id: str, act: str) -> str:
    return f"/v1/reservations/{quote(reservation_id, safe='')}:{act}"
