"""An example gateway: counts, asks, degrades, streams with heartbeats, and tells Tallystick how each call ended.

One logical request is one operation with one reservation. Each upstream attempt is a request with an id of its own, reported
under that reservation; all but the last say that more follow.
"""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import httpx
from fastapi import FastAPI, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from tests.gateway.tally import Admitted, Refused, Tally

_ATTEMPTS: Final = 3
HEARTBEAT: Final = b": still at work\n\n"


@dataclass(frozen=True)
class Route:
    """Where calls go."""

    provider: str
    model: str
    address: str


@dataclass(frozen=True)
class Caller:
    """Who calls us, by our own key."""

    tenant_id: str
    feature: str
    user_hash: str


@dataclass(frozen=True)
class Settings:
    """What the gateway is run with."""

    tallystick: str
    token: str
    source: str
    callers: Mapping[str, Caller]
    routes: Mapping[str, Route]
    spool: Path
    heartbeat_seconds: float = 10.0
    output_tokens_max: int = 256
    """The cap of a call that states none: without one nobody could say what it may take."""
    ttl_seconds: int = 60


def uuid7() -> str:
    """Return an id that begins with its time, so that keys which arrive together lie together."""
    value = (time.time_ns() // 1_000_000 << 80) | secrets.randbits(80)
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    digits = f"{value:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def input_tokens_at_most(messages: list[dict[str, str]]) -> int:
    """Return a count that no byte-level tokenizer exceeds: a token holds at least one byte, and a message a few marks."""
    return sum(len(message["content"].encode()) + 8 for message in messages)


def input_tokens_about(messages: list[dict[str, str]]) -> int:
    """Return a count to book where the provider never says its own: about four bytes a token."""
    return sum(len(message["content"].encode()) // 4 + 4 for message in messages)


@dataclass
class Attempt:
    """One upstream call, and what is known of it so far."""

    number: int
    kind: str
    request_id: str = field(default_factory=uuid7)
    began: float = field(default_factory=time.monotonic)
    messages: list[dict[str, str]] = field(default_factory=list)
    was_accepted: bool = False
    """Whether the upstream began to answer: from then on it bills."""
    first_word: float | None = None
    words: list[str] = field(default_factory=list)
    usage: dict[str, Any] | None = None
    model: str | None = None
    response_id: str | None = None
    stop_reason: str | None = None


class Interrupted(Exception):
    """The upstream went away in the middle of its answer."""


class UpstreamFailed(Exception):
    """The upstream gave no answer; `was_reached` says whether it may have done anything for it."""

    def __init__(self, was_reached: bool) -> None:
        self.was_reached = was_reached
        super().__init__("the model server gave no answer")


class Call:
    """A logical request from admission to its last report."""

    def __init__(
        self, settings: Settings, tally: Tally, upstream: httpx.AsyncClient, caller: Caller, body: dict[str, Any]
    ) -> None:
        self.settings, self.tally, self.upstream, self.caller, self.body = settings, tally, upstream, caller, body
        self.operation_id = uuid7()
        self.route_name = str(body["model"])
        self.output_tokens_max = int(body.get("max_tokens") or settings.output_tokens_max)
        self.input_tokens = input_tokens_at_most(body["messages"])
        self._extended = time.monotonic()

    @property
    def route(self) -> Route:
        return self.settings.routes[self.route_name]

    async def ask(self) -> Admitted | Refused:
        """Ask for what the call may take at the worst; take the step down that is offered."""
        decision = await self.tally.ask(
            {
                "reservation_id": self.operation_id,
                "operation_id": self.operation_id,
                "tenant_id": self.caller.tenant_id,
                "feature": self.caller.feature,
                "user_hash": self.caller.user_hash,
                "route": self.route_name,
                "provider": self.route.provider,
                "model": self.route.model,
                "input_tokens": self.input_tokens,
                "output_tokens": self.output_tokens_max,
                "ttl_seconds": self.settings.ttl_seconds,
            }
        )
        if isinstance(decision, Admitted):
            if decision.route is not None:
                self.route_name = decision.route
            if decision.output_tokens_max is not None:
                self.output_tokens_max = min(self.output_tokens_max, decision.output_tokens_max)
        return decision

    # --- Answers -----------------------------------------------------------------------------------------------------

    async def whole(self) -> Response:
        """Answer at once, when all of it is there."""
        for number in range(1, _ATTEMPTS + 1):
            attempt = Attempt(number, "first" if number == 1 else "retry")
            try:
                said = await self._post(attempt, self.body["messages"], stream=False)
                answer = json.loads(await said.aread())
            except UpstreamFailed as failure:
                if not self._go_on_after(attempt, failure):
                    return _unavailable()
                continue
            attempt.usage, attempt.model = answer["usage"], answer["model"]
            attempt.response_id, attempt.stop_reason = answer["id"], answer["choices"][0]["finish_reason"]
            self._settle(attempt, "ok")
            return JSONResponse(answer)
        raise AssertionError("the last attempt ends the loop")

    async def stream(self) -> AsyncIterator[bytes]:
        """Answer word by word; where the upstream breaks off, go on from there with another attempt."""
        said: list[str] = []
        kind, attempt = "first", None
        try:
            for number in range(1, _ATTEMPTS + 1):
                attempt = Attempt(number, kind)
                messages = [*self.body["messages"]]
                if said:
                    messages.append({"role": "assistant", "content": "".join(said)})
                try:
                    async for line in self._lines(attempt, messages):
                        yield line
                except UpstreamFailed as failure:
                    kind = "retry"
                    if not self._go_on_after(attempt, failure):
                        attempt = None
                        yield _error_line()
                        return
                    continue
                except Interrupted:
                    is_last = number == _ATTEMPTS
                    said += attempt.words
                    self._settle(attempt, "interrupted", is_open=not is_last)
                    kind, attempt = "continuation", None
                    if is_last:
                        yield _error_line()
                        return
                    continue
                self._settle(attempt, "ok")
                attempt = None
                yield b"data: [DONE]\n\n"
                return
        finally:
            if attempt is not None:
                # Our caller has left: what it got is estimated, and no more follows. Nothing here waits for anybody.
                self._settle(attempt, "cancelled")

    async def _lines(self, attempt: Attempt, messages: list[dict[str, str]]) -> AsyncIterator[bytes]:
        """Yield what goes to the caller: words, and a heartbeat whenever the model says nothing for a while."""
        answer = await self._post(attempt, messages, stream=True)
        lines = answer.aiter_lines()
        under_way: asyncio.Future[str] | None = None
        try:
            while True:
                under_way = under_way or asyncio.ensure_future(anext(lines))
                done, _ = await asyncio.wait({under_way}, timeout=self.settings.heartbeat_seconds)
                await self._stay()
                if not done:
                    yield HEARTBEAT
                    continue
                try:
                    line, under_way = under_way.result(), None
                except (StopAsyncIteration, httpx.HTTPError):
                    under_way = None
                    raise Interrupted from None
                if line == "data: [DONE]":
                    return
                if line.startswith("data: ") and (word := _take(attempt, json.loads(line[6:]))) is not None:
                    attempt.first_word = attempt.first_word or time.monotonic()
                    attempt.words.append(word)
                    yield f"{line}\n\n".encode()
        finally:
            if under_way is not None:
                under_way.cancel()
            await answer.aclose()

    async def _post(self, attempt: Attempt, messages: list[dict[str, str]], *, stream: bool) -> httpx.Response:
        body = {"model": self.route.model, "messages": messages, "max_tokens": self.output_tokens_max, "stream": stream}
        if stream:
            body["stream_options"] = {"include_usage": True}
        request = self.upstream.build_request("POST", f"{self.route.address}/v1/chat/completions", json=body)
        try:
            answer = await self.upstream.send(request, stream=True)
        except httpx.ConnectError:
            raise UpstreamFailed(was_reached=False) from None
        except httpx.HTTPError:
            raise UpstreamFailed(was_reached=True) from None
        if answer.status_code != 200:
            await answer.aclose()
            raise UpstreamFailed(was_reached=True)
        attempt.was_accepted, attempt.messages = True, messages
        return answer

    async def _stay(self) -> None:
        """Extend the reservation of a long call before it could expire."""
        if time.monotonic() - self._extended > self.settings.ttl_seconds / 2:
            self._extended = time.monotonic()
            await self.tally.extend(self.caller.tenant_id, self.operation_id, self.settings.ttl_seconds)

    # --- Reports -----------------------------------------------------------------------------------------------------

    def _go_on_after(self, attempt: Attempt, failure: UpstreamFailed) -> bool:
        """Tell of an attempt that gave nothing; return whether another one follows."""
        is_last = attempt.number == _ATTEMPTS
        if failure.was_reached:
            self._settle(attempt, "error", is_open=not is_last)
        elif is_last:
            # Nobody upstream ever heard of it: nothing was used, and nothing is reported.
            self.tally.void(self.caller.tenant_id, self.operation_id)
        return not is_last

    def _settle(self, attempt: Attempt, status: str, *, is_open: bool = False) -> None:
        event = self._event(attempt, status, is_open)
        if is_open:
            self.tally.report(event)
        else:
            self.tally.settle(self.caller.tenant_id, self.operation_id, event)

    def _event(self, attempt: Attempt, status: str, is_open: bool) -> dict[str, Any]:
        now = time.monotonic()
        data: dict[str, Any] = {
            "tenant_id": self.caller.tenant_id,
            "user_hash": self.caller.user_hash,
            "feature": self.caller.feature,
            "route": self.route_name,
            "lane": "interactive",
            "request_id": attempt.request_id,
            "operation_id": self.operation_id,
            "attempt": attempt.number,
            "attempt_kind": attempt.kind,
            "reservation_id": self.operation_id,
            "reservation_open": is_open,
            "operation": "chat",
            "provider": self.route.provider,
            "requested_model": self.route.model,
            "model": attempt.model or self.route.model,
            "response_id": attempt.response_id,
            "max_output_tokens": self.output_tokens_max,
            "status": status,
            "stop_reason": attempt.stop_reason,
            "latency_ms": round((now - attempt.began) * 1000),
        }
        if attempt.first_word is not None:
            data["ttft_ms"] = round((attempt.first_word - attempt.began) * 1000)
        if attempt.usage is not None:
            data |= {"flavour": "openai.chat", "usage": attempt.usage}
        elif attempt.was_accepted:
            # The provider will bill the input and about what it said. Whoever knows better later, the node or the
            # provider's report, beats an estimate.
            data |= {
                "basis": "estimated",
                "delivered_output_tokens": len(attempt.words),
                "quantities": {
                    "uncached_input_tokens": input_tokens_about(attempt.messages),
                    "visible_output_tokens": len(attempt.words),
                },
            }
        return {
            "specversion": "1.0",
            "type": "llm.usage.v1",
            "source": self.settings.source,
            "id": uuid7(),
            "time": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
            "data": data,
        }


def _take(attempt: Attempt, chunk: dict[str, Any]) -> str | None:
    """Keep what a chunk says about its call; return its word, if it has one."""
    attempt.model, attempt.response_id = chunk.get("model"), chunk.get("id")
    attempt.usage = chunk.get("usage") or attempt.usage
    for choice in chunk["choices"]:
        attempt.stop_reason = choice.get("finish_reason") or attempt.stop_reason
        if content := choice["delta"].get("content"):
            return str(content)
    return None


def _unavailable() -> Response:
    return JSONResponse({"error": {"type": "upstream_unavailable", "message": "the model gave no answer"}}, 502)


def _error_line() -> bytes:
    error = {"error": {"type": "upstream_unavailable", "message": "the model broke off its answer"}}
    return b"data: " + json.dumps(error).encode() + b"\n\n"


def _refusal(refused: Refused) -> Response:
    """Return a refusal with the time after which asking again makes sense; without one there is none to give."""
    kind = {429: "budget_exhausted", 503: "temporarily_unavailable"}.get(refused.status, "refused")
    headers = {} if refused.retry_after is None else {"retry-after": str(refused.retry_after)}
    error = {"type": kind, "code": refused.code, "message": refused.detail}
    return JSONResponse({"error": error}, refused.status, headers)


def create_app(settings: Settings) -> FastAPI:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.tally = Tally(settings.tallystick, settings.token, settings.spool)
        app.state.tally.start()
        async with httpx.AsyncClient(timeout=httpx.Timeout(60, connect=2)) as app.state.upstream:
            yield
        await app.state.tally.close()

    app = FastAPI(lifespan=lifespan)

    @app.post("/v1/chat/completions")
    async def complete(request: Request) -> Response:
        caller = settings.callers.get(request.headers.get("authorization", "").removeprefix("Bearer "))
        if caller is None:
            return JSONResponse({"error": {"type": "invalid_key", "message": "the key is nobody's"}}, 401)
        body = await request.json()
        if body.get("model") not in settings.routes:
            return JSONResponse(
                {"error": {"type": "unknown_model", "message": f"routes: {sorted(settings.routes)}"}}, 404
            )
        call = Call(settings, app.state.tally, app.state.upstream, caller, body)
        decision = await call.ask()
        if isinstance(decision, Refused):
            return _refusal(decision)
        if body.get("stream"):
            return StreamingResponse(call.stream(), media_type="text/event-stream")
        return await call.whole()

    return app
