"""A gateway in front of a model server, with real budgets behind it: what its callers get, and what is booked."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from api.main import create_app as create_api
from tests.api.support import add_budget, config_of, make_key
from tests.api.test_server import served
from tests.factories import GATEWAY, NODE, make_event
from tests.gateway import model_server
from tests.gateway.gateway import HEARTBEAT, Caller, Route, Settings, create_app
from tests.gateway.model_server import Answer, Script
from tests.support.ledger import Ledger
from tests.support.waiting import until

IN, OUT = Decimal("0.000002"), Decimal("0.000008")
"""Of m-sub: 2.00 and 8.00 for a million; m-small costs a tenth."""
HELLO = [{"role": "user", "content": "Hello!"}]
"""Six bytes: at most 14 tokens for an ask, about 5 for an estimate."""


@asynccontextmanager
async def serving(app: FastAPI) -> AsyncIterator[str]:
    """Serve an app on a free port of this machine, in this loop."""
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="critical", lifespan="on"))
    task = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


@dataclass
class Site:
    """All of it: a caller, the gateway's app, the script of the model server, and the ledger."""

    client: httpx.AsyncClient
    app: FastAPI
    script: Script
    ledger: Ledger
    settings: Settings

    async def chat(self, *, key: str = "k-alpha", model: str = "large", **body: Any) -> httpx.Response:
        sent = {"model": model, "messages": HELLO, "max_tokens": 20, **body}
        return await self.client.post(
            "/v1/chat/completions", json=sent, headers={"authorization": f"Bearer {key}"}, timeout=30
        )

    async def streamed(self, **body: Any) -> tuple[str, list[bytes]]:
        """The words of a streamed answer, and its lines."""
        answer = await self.chat(stream=True, **body)
        lines = [line for line in answer.content.split(b"\n\n") if line]
        chunks = [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]
        words = [choice["delta"].get("content", "") for chunk in chunks for choice in chunk.get("choices", ())]
        return "".join(words).strip(), lines

    async def told(self) -> None:
        """Wait until everything that the gateway had to tell was acknowledged."""
        await until(lambda: not self.app.state.tally.untold)

    def booked(self) -> list[tuple[Any, ...]]:
        """Attempts as they stand: (attempt, kind, status, basis, output tokens, charge)."""
        return self.ledger.rows(
            "select attempt, attempt_kind, status, basis, sum(output_tokens), trim_scale(sum(charge_amount))"
            " from ledger.entries where kind <> 'evidence' group by request_id, attempt, attempt_kind, status, basis"
            " having sum(request_count) <> 0 order by attempt"
        )

    def held(self) -> Decimal:
        return Decimal(self.ledger.value("select coalesce(sum(held), 0) from quotas.windows"))

    def states(self) -> list[str]:
        return [state for (state,) in self.ledger.rows("select state from quotas.reservations order by decided_at")]


@pytest.fixture
async def address(ledger: Ledger) -> AsyncIterator[str]:
    await ledger.add_price(input="2.00", output="8.00")
    await ledger.add_price("m-small", input="0.20", output="0.80")
    # In this loop, for starting a process takes longer than most of the tests: whoever kills the API serves its own.
    async with serving(create_api(config_of(ledger))) as found:
        yield found


@pytest.fixture
async def run(ledger: Ledger, address: str, tmp_path: Path) -> Callable[..., Any]:
    """Gives a gateway that is running, with settings that a test may change."""
    token = await make_key(ledger, source=GATEWAY)

    @asynccontextmanager
    async def running(**changes: Any) -> AsyncIterator[Site]:
        script = Script()
        async with serving(model_server.create_app(script)) as upstream:
            settings = replace(
                Settings(
                    tallystick=address,
                    token=token,
                    source=GATEWAY,
                    callers={"k-alpha": Caller("t-alpha", "chat", "u-1")},
                    routes={
                        "large": Route("openai", "m-sub", upstream),
                        "small": Route("openai", "m-small", upstream),
                    },
                    spool=tmp_path / "spool",
                ),
                **changes,
            )
            app = create_app(settings)
            async with serving(app) as own, httpx.AsyncClient(base_url=own) as client:
                yield Site(client, app, script, ledger, settings)

    return running


async def test_a_call_is_booked_at_what_it_used_and_nothing_stays_held(run: Callable[..., Any], ledger: Ledger) -> None:
    """Asked for 14 x 0.000002 + 20 x 0.000008 = 0.000188; used 10 x 0.000002 + 2 x 0.000008 = 0.000036."""
    add_budget(ledger, limit="0.000188")
    async with run() as site:
        site.script.say(Answer(("Good", "day")))
        answer = await site.chat()
        assert answer.json()["choices"][0]["message"]["content"] == "Good day"
        await site.told()
        assert site.booked() == [(1, "first", "ok", "reported", 2, Decimal("0.000036"))]
        assert site.held() == 0
        assert site.states() == ["settled"]


async def test_a_stream_passes_words_and_heartbeats_and_is_booked_from_its_last_usage(
    run: Callable[..., Any], ledger: Ledger
) -> None:
    add_budget(ledger)
    async with run(heartbeat_seconds=0.1) as site:
        site.script.say(Answer(("one", "two", "three"), pause_seconds=0.25))
        text, lines = await site.streamed()
        assert text == "one two three"
        assert lines.count(HEARTBEAT.strip()) >= 3
        assert lines[-1] == b"data: [DONE]"
        await site.told()
        assert site.booked() == [(1, "first", "ok", "reported", 3, 10 * IN + 3 * OUT)]


async def test_what_the_budget_has_no_room_for_is_refused_with_a_time_and_never_sent(
    run: Callable[..., Any], ledger: Ledger
) -> None:
    add_budget(ledger, limit="0.000187")
    async with run() as site:
        answer = await site.chat()
        assert answer.status_code == 429
        # The budget can never hold such a call, however long one waits: no time is given.
        assert "retry-after" not in answer.headers
        assert answer.json()["error"]["code"] == "budget-exhausted"
        assert site.script.calls == []
    add_budget(ledger, "b-day", limit="0.0002", window_kind="day")
    ledger.superuser.execute("update quotas.budgets set limit_amount = 100 where budget_id = 'b-1'")
    ledger.superuser.execute("update ledger.versions set budgets = budgets + 1")
    async with run() as site:
        site.script.say(Answer(("Good", "day")))
        assert (await site.chat()).status_code == 200
        await site.told()
        answer = await site.chat()
        assert answer.status_code == 429
        assert 0 < int(answer.headers["retry-after"]) <= 24 * 3600
        assert len(site.script.calls) == 1


async def test_a_call_above_the_step_goes_to_the_small_model_with_its_cap(
    run: Callable[..., Any], ledger: Ledger
) -> None:
    """Asked for 0.000188 of 0.0002: above half of it the step sends calls to the small model, with 5 tokens at most."""
    steps = [{"at": "0.5", "action": "degrade", "route": "small", "output_tokens_max": 5, "hold": "0.00001"}]
    add_budget(ledger, limit="0.0002", steps=json.dumps(steps))
    async with run() as site:
        site.script.say(Answer(("Good", "day")))
        assert (await site.chat()).status_code == 200
        assert [(call["model"], call["max_tokens"]) for call in site.script.calls] == [("m-small", 5)]
        await site.told()
        assert site.booked() == [(1, "first", "ok", "reported", 2, (10 * IN + 2 * OUT) / 10)]
        assert ledger.rows("select route, model from ledger.entries") == [("small", "m-small")]
        assert site.held() == 0


async def test_a_model_that_fails_is_tried_again_under_the_same_reservation(
    run: Callable[..., Any], ledger: Ledger
) -> None:
    add_budget(ledger)
    async with run() as site:
        site.script.say(Answer(status=503), Answer(("Good", "day")))
        assert (await site.chat()).status_code == 200
        await site.told()
        assert site.booked() == [
            (1, "first", "error", "reported", 0, 0),
            (2, "retry", "ok", "reported", 2, 10 * IN + 2 * OUT),
        ]
        assert ledger.value("select count(distinct operation_id) from ledger.entries") == 1
        assert site.states() == ["settled"]
        assert site.held() == 0


async def test_a_model_that_nobody_reached_gives_the_reservation_back(run: Callable[..., Any], ledger: Ledger) -> None:
    """B101: the call took nothing, so nothing is booked and nothing held."""
    add_budget(ledger)
    with socket.socket() as nobody:
        # Bound and never listened to: connecting is refused.
        nobody.bind(("127.0.0.1", 0))
        route = Route("openai", "m-sub", f"http://127.0.0.1:{nobody.getsockname()[1]}")
        async with run(routes={"large": route}) as site:
            assert (await site.chat()).status_code == 502
            await site.told()
            assert site.booked() == []
            assert site.states() == ["voided"]
            assert site.held() == 0


async def test_an_interrupted_stream_is_estimated_and_continued_and_the_nodes_word_corrects_it(
    run: Callable[..., Any], ledger: Ledger
) -> None:
    """Two words of four came: estimated at about 5 x 0.000002 + 2 x 0.000008; the node later says 9 and 3."""
    add_budget(ledger)
    async with run() as site:
        site.script.say(Answer(("one", "two", "three", "four"), breaks_after=2), Answer(("three", "four")))
        text, lines = await site.streamed()
        assert text == "one two three four"
        assert lines[-1] == b"data: [DONE]"
        assert site.script.calls[1]["messages"][-1] == {"role": "assistant", "content": "one two "}
        await site.told()
        assert site.booked() == [
            (1, "first", "interrupted", "estimated", 2, 5 * IN + 2 * OUT),
            (2, "continuation", "ok", "reported", 2, 10 * IN + 2 * OUT),
        ]
        assert site.states() == ["settled"]
        request_id = ledger.value("select request_id from ledger.entries where attempt = 1")
        node = make_event("node-1", source=NODE, request_id=request_id, usage=..., flavour=..., attempt=1,
                          quantities={"uncached_input_tokens": 9, "visible_output_tokens": 3})  # fmt: skip
        at = ledger.value("select to_char(occurred_at at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')"
                          " from ledger.entries where attempt = 1")  # fmt: skip
        await ledger.post({**node, "time": at}, received_at=at)
        assert ledger.total() == 9 * IN + 3 * OUT + 10 * IN + 2 * OUT
        assert site.held() == 0


async def test_a_caller_that_leaves_ends_the_call_and_pays_about_what_it_got(
    run: Callable[..., Any], ledger: Ledger
) -> None:
    """B018, B101: the model is stopped, what was delivered is estimated, and the rest of the hold is given back."""
    add_budget(ledger)
    async with run() as site:
        site.script.say(Answer(("one", "two", "three", "four"), pause_seconds=0.2))
        sent = {"model": "large", "messages": HELLO, "max_tokens": 20, "stream": True}
        headers = {"authorization": "Bearer k-alpha"}
        async with site.client.stream("POST", "/v1/chat/completions", json=sent, headers=headers) as answer:
            async for line in answer.aiter_lines():
                if "two" in line:
                    break
        await until(lambda: bool(site.booked()))
        [(attempt, kind, status, basis, output, _)] = site.booked()
        assert (attempt, kind, status, basis) == (1, "first", "cancelled", "estimated")
        assert 2 <= output < 4
        assert site.script.gone == 1
        assert site.states() == ["settled"]
        assert site.held() == 0


async def test_a_long_stream_keeps_its_reservation(run: Callable[..., Any], ledger: Ledger) -> None:
    add_budget(ledger)
    async with run(ttl_seconds=1, heartbeat_seconds=0.2) as site:
        site.script.say(Answer(("one", "two"), pause_seconds=1.2))
        await site.streamed()
        first, last = ledger.rows("select decided_at, expires_at from quotas.reservations")[0]
        assert (last - first).total_seconds() > 2
        await site.told()
        assert site.states() == ["settled"]


async def test_callers_beyond_the_money_are_refused_whatever_their_number(
    run: Callable[..., Any], ledger: Ledger
) -> None:
    """B093: money for 7 calls of 0.000188 at the worst, and 40 that ask at once."""
    add_budget(ledger, limit=str(7 * Decimal("0.000188")))
    async with run() as site:
        site.script.say(*[Answer(tuple("abcdefghijklmnopqrst"), input_tokens=14, pause_seconds=0.05)] * 7)
        answers = await asyncio.gather(*[site.chat(stream=True) for _ in range(40)])
        assert sorted(answer.status_code for answer in answers) == [200] * 7 + [429] * 33
        # Whoever waits for calls that are under way is told to come back soon.
        assert {answer.headers["retry-after"] for answer in answers if answer.status_code == 429} <= {"5", "4", "6"}
        await site.told()
        assert ledger.total() == 7 * Decimal("0.000188")
        assert ledger.value("select count(*) from quotas.excess") == 0


async def test_budgets_that_cannot_be_asked_admit_nothing_and_reports_wait_on_the_disk(
    ledger: Ledger, tmp_path: Path
) -> None:
    """The API dies while a call is under way: the next is refused for a moment, and the first is booked when it is back."""
    await ledger.add_price(input="2.00", output="8.00")
    add_budget(ledger)
    token = await make_key(ledger, source=GATEWAY)
    script = Script()
    async with serving(model_server.create_app(script)) as upstream:
        routes = {"large": Route("openai", "m-sub", upstream)}
        settings = Settings(
            "", token, GATEWAY, {"k-alpha": Caller("t-alpha", "chat", "u-1")}, routes, tmp_path / "spool"
        )
        with served(ledger) as (process, address):
            app = create_app(replace(settings, tallystick=address))
            async with serving(app) as own, httpx.AsyncClient(base_url=own) as client:
                site = Site(client, app, script, ledger, settings)
                script.say(Answer(("one", "two"), pause_seconds=0.5))
                under_way = asyncio.create_task(site.streamed())
                await until(lambda: bool(script.calls))
                process.kill()
                process.wait()
                assert (await under_way)[0] == "one two"
                refused = await site.chat()
                assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")
                assert len(script.calls) == 1
        # The gateway ends as well; its report does not.
        assert len(list((tmp_path / "spool").glob("*.json"))) == 1
        with served(ledger) as (_, address):
            app = create_app(replace(settings, tallystick=address))
            async with serving(app) as own, httpx.AsyncClient(base_url=own) as client:
                site = Site(client, app, script, ledger, settings)
                await site.told()
                assert site.booked() == [(1, "first", "ok", "reported", 2, 10 * IN + 2 * OUT)]
                assert site.states() == ["settled"]
                assert site.held() == 0
