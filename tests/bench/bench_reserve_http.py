"""POST /v1/reservations against a bare ASGI app that reads the body and answers as much, on the same server; in batches; and settled.

One hot tenant with three budgets, none of which ever refuses: every ask is decided, held and committed before its answer. The
baseline does nothing at all, so the ratio is what deciding costs over HTTP itself. A settle brings the call's usage event: its
entry is posted, and the hold given back, in the commit that comes before the answer.
"""

import itertools
import json
from collections.abc import Iterator
from datetime import UTC, datetime

from api.config import Config
from ledger.api_keys import create_key
from ledger.database import connect
from tests.bench import servers
from tests.bench.bench_read_http import check_plain, close
from tests.bench.harness import Comparison, compare, size
from tests.bench.http_load import Answer, at_rate, lines, request, saturate
from tests.bench.world import World, world
from tests.factories import GATEWAY, make_event

BATCH = 100
SETTLES = 4
"""One settle is measured for so many asks: it costs as much as a few of them."""


class Asks:
    """Fresh asks, each under an id of its own."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._numbers: Iterator[int] = itertools.count()

    def body(self) -> dict[str, object]:
        return {
            "reservation_id": f"bench-{next(self._numbers):012d}",
            "tenant_id": "t-0001",
            "provider": "openai",
            "model": "m-sub",
            "feature": "chat",
            "route": "default",
            "lane": "interactive",
            "input_tokens": 1000,
            "output_tokens": 100,
        }

    def single(self, count: int) -> list[bytes]:
        return [
            request("POST", "/v1/reservations", self._token, json.dumps(self.body()).encode()) for _ in range(count)
        ]

    def batches(self, count: int) -> list[bytes]:
        return [
            request(
                "POST",
                "/v1/reservations:batch",
                self._token,
                json.dumps({"reservations": [self.body() for _ in range(BATCH)]}).encode(),
            )
            for _ in range(count)
        ]

    def settles(self, asked: list[bytes]) -> list[bytes]:
        """Return the ends of calls that were asked for."""
        now = datetime.now(UTC).isoformat()
        found = []
        for one in asked:
            name = json.loads(one.partition(b"\r\n\r\n")[2])["reservation_id"]
            event = make_event(f"ev-{name}", tenant_id="t-0001", time=now, reservation_id=name, request_id=name)
            body = json.dumps({"tenant_id": "t-0001", "event": event}).encode()
            found.append(request("POST", f"/v1/reservations/{name}:settle", self._token, body))
        return found


def check_settled(answer: Answer) -> None:
    status, body = answer
    assert status == 200, (status, body)
    told = json.loads(body)
    assert (told["state"], told["event"]["outcome"]) == ("settled", "created"), told


def check_admitted(answer: Answer) -> None:
    status, body = answer
    assert status == 201, (status, body)


def check_batch(answer: Answer) -> None:
    status, body = answer
    assert status == 200, (status, body)
    assert all(one["outcome"] == "admitted" for one in json.loads(body)["results"])


async def run() -> list[Comparison]:
    count = size("REQUESTS", 10_000)
    print(f"    {count:,} asks a run, one tenant with three budgets, batches of {BATCH}, fsync on", flush=True)
    async with world(0) as made:
        made.ledger.superuser.execute(
            "insert into quotas.budgets (budget_id, tenant_id, unit, window_kind, first_window, limit_amount)"
            " select kind || '-t-0001', 't-0001', 'total_tokens', kind, '0001-01-01', 1e15"
            " from unnest(array['day', 'week']) as kind"
        )
        made.ledger.superuser.execute("update quotas.budgets set limit_amount = 1e9 where limit_amount = 1000000")
        async with await connect(made.ledger.database.url_for("tallystick_operator")) as connection:
            token = (await create_key(connection, actor="bench", source=GATEWAY)).token
        config = Config(
            writer_url=made.writer_url,
            api_url=made.ledger.database.url_for("tallystick_api"),
            name="bench",
            reservation_deadline_seconds=30.0,
        )
        asks = Asks(token)
        with servers.api(config) as ours, servers.serving("tests.bench.plain_server", "asgi") as plain:
            return await _measured(made, asks, ours, plain, count)


async def _measured(made: World, asks: Asks, ours: int, plain: int, count: int) -> list[Comparison]:
    found: list[Comparison] = []
    ends: list[Comparison] = []
    for callers in (32, 256):
        our_lines, plain_lines = await lines(ours, callers), await lines(plain, callers)

        async def baseline() -> float:
            return await saturate(plain_lines, asks.single(count), check_plain)  # noqa: B023  awaited in this turn

        async def candidate() -> float:
            before = _held(made)
            speed = await saturate(our_lines, asks.single(count), check_admitted)  # noqa: B023
            assert _held(made) - before == count
            return speed

        found.append(await compare(f"reserve over HTTP, {callers} callers", "asks", baseline, candidate, target=0.35))

        async def plain_ends() -> float:
            return await saturate(plain_lines, asks.settles(asks.single(count // SETTLES)), check_plain)  # noqa: B023

        async def settled() -> float:
            asked = asks.single(count // SETTLES)
            await saturate(our_lines, asked, check_admitted)  # noqa: B023
            before = _entries(made)
            speed = await saturate(our_lines, asks.settles(asked), check_settled)  # noqa: B023
            assert _entries(made) - before == len(asked)
            return speed

        ends.append(
            await compare(f"settle with its event over HTTP, {callers} callers", "settles", plain_ends, settled)
        )
        close(our_lines, plain_lines)
    single = found[-1]
    batch_lines, our_lines = await lines(ours, 8), await lines(ours, 256)

    async def batched() -> float:
        before = _held(made)
        speed = await saturate(batch_lines, asks.batches(count // BATCH), check_batch)
        assert _held(made) - before == count // BATCH * BATCH
        return speed * BATCH

    async def one_by_one() -> float:
        return await saturate(our_lines, asks.single(count), check_admitted)

    found.append(
        await compare(f"asks in batches of {BATCH}, against one by one", "asks", one_by_one, batched, target=10)
    )
    close(batch_lines)
    most = sorted(single.candidate)[len(single.candidate) // 2]
    seconds = size("SECONDS", 5)
    for share in (0.25, 0.5, 0.8):
        rate = share * most
        latencies = await at_rate(our_lines, rate, asks.single(int(rate * seconds)), check_admitted)
        print(latencies.line(f"reserve at {share:.0%} of saturation"), flush=True)
    close(our_lines)
    return [*found, *ends]


def _entries(made: World) -> int:
    return int(made.ledger.value("select count(*) from ledger.entries"))


def _held(made: World) -> int:
    return int(made.ledger.value("select count(*) from quotas.reservations"))
