"""A model server that says what its script says: the wire of an OpenAI-style provider, without the model.

Each call takes the next answer of the script; a call that nobody scripted is a fault of the test.
"""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import JSONResponse, Response, StreamingResponse


@dataclass(frozen=True)
class Answer:
    """What one call gets: words one by one, then the usage; or a status and nothing else."""

    words: tuple[str, ...] = ()
    input_tokens: int = 10
    status: int = 200
    breaks_after: int | None = None
    """After so many words the connection breaks, and no usage is ever said."""
    pause_seconds: float = 0.0
    """Before each word."""

    @property
    def usage(self) -> dict[str, int]:
        output = len(self.words)
        return {
            "prompt_tokens": self.input_tokens,
            "completion_tokens": output,
            "total_tokens": self.input_tokens + output,
        }


@dataclass
class Script:
    """The answers to come, and the calls that came."""

    answers: deque[Answer] = field(default_factory=deque)
    calls: list[dict[str, Any]] = field(default_factory=list)
    gone: int = 0
    """How many callers left before their answer was over."""

    def say(self, *answers: Answer) -> None:
        self.answers.extend(answers)


class Broken(Exception):
    """Ends a response in its middle, as a crash of the server does."""


def create_app(script: Script) -> FastAPI:
    app = FastAPI()

    @app.post("/v1/chat/completions")
    async def complete(request: Request) -> Response:
        body = await request.json()
        script.calls.append(body)
        answer = script.answers.popleft()
        if answer.status != 200:
            return JSONResponse({"error": {"message": "not now"}}, answer.status)
        if body.get("stream"):
            return StreamingResponse(stream(answer, body["model"]), media_type="text/event-stream")
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": " ".join(answer.words)},
            "finish_reason": "stop",
        }
        return JSONResponse({"id": "resp", "model": body["model"], "choices": [choice], "usage": answer.usage})

    async def stream(answer: Answer, model: str) -> AsyncIterator[bytes]:
        try:
            for number, word in enumerate(answer.words):
                if number == answer.breaks_after:
                    raise Broken
                await asyncio.sleep(answer.pause_seconds)
                delta = {"index": 0, "delta": {"content": word + " "}, "finish_reason": None}
                yield _line({"id": "resp", "model": model, "choices": [delta]})
            yield _line({"id": "resp", "model": model, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
            yield _line({"id": "resp", "model": model, "choices": [], "usage": answer.usage})
            yield b"data: [DONE]\n\n"
        except (asyncio.CancelledError, GeneratorExit):
            script.gone += 1
            raise

    return app


def _line(chunk: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"
