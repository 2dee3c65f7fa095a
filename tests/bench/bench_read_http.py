"""GET /v1/tenants/{id}/budgets against a FastAPI route that does nothing, on the same server, read by the same callers."""

import json
import random
from collections.abc import Sequence
from datetime import UTC, datetime

from api.config import Config
from ledger.api_keys import create_key
from ledger.database import connect
from tests.bench import servers
from tests.bench.harness import Comparison, compare, size
from tests.bench.http_load import Answer, Line, at_rate, lines, request, saturate
from tests.bench.world import TENANTS, World, world
from tests.factories import GATEWAY

BUDGETS = 3


def requests(token: str, count: int) -> list[bytes]:
    chosen = random.Random(7)
    known = [request("GET", f"/v1/tenants/t-{number:04d}/budgets", token) for number in range(TENANTS)]
    return [chosen.choice(known) for _ in range(count)]


def check_read(answer: Answer) -> None:
    status, body = answer
    assert status == 200, (status, body)
    # The templates of the first migration are shown too.
    assert len(json.loads(body)["budgets"]) >= BUDGETS, body


def check_plain(answer: Answer) -> None:
    assert answer[0] == 200


async def run() -> list[Comparison]:
    count = size("REQUESTS", 20_000)
    print(
        f"    {count:,} requests a run, {TENANTS} tenants with {BUDGETS} budgets each and what they moved", flush=True
    )
    async with world(0) as made:
        token = await prepared(made)
        config = Config(
            writer_url=made.writer_url, api_url=made.ledger.database.url_for("tallystick_api"), name="bench"
        )
        with servers.api(config) as ours, servers.serving("tests.bench.plain_server", "fastapi") as plain:
            found = [await measured(ours, plain, token, count, callers) for callers in (32, 128)]
            await latencies(ours, token, found[-1])
            return found


async def prepared(made: World) -> str:
    """Add budgets, move their windows, and return a key that may read them."""
    made.ledger.superuser.execute(
        "insert into quotas.budgets (budget_id, tenant_id, unit, window_kind, first_window, limit_amount)"
        " select kind || '-' || tenant_id, tenant_id, 'total_tokens', kind, '0001-01-01', 1000000"
        " from ledger.tenants, unnest(array['day', 'week']) as kind"
    )
    await made.ledger.post_bytes(*made.packs(2_000), received_at=datetime.now(UTC).isoformat())
    made.ledger.superuser.execute("vacuum analyze")
    async with await connect(made.ledger.database.url_for("tallystick_operator")) as connection:
        return (await create_key(connection, actor="bench", source=GATEWAY)).token


async def measured(ours: int, plain: int, token: str, count: int, callers: int) -> Comparison:
    our_lines, plain_lines = await lines(ours, callers), await lines(plain, callers)
    asked = requests(token, count)
    try:
        return await compare(
            f"read over HTTP, {callers} callers",
            "reads",
            lambda: saturate(plain_lines, asked, check_plain),
            lambda: saturate(our_lines, asked, check_read),
            target=0.85,
        )
    finally:
        close(our_lines, plain_lines)


async def latencies(port: int, token: str, saturated: Comparison) -> None:
    """Print latencies at shares of what the server takes."""
    most = sorted(saturated.candidate)[len(saturated.candidate) // 2]
    opened = await lines(port, 512)
    seconds = size("SECONDS", 5)
    for share in (0.25, 0.5, 0.8):
        rate = share * most
        found = await at_rate(opened, rate, requests(token, int(rate * seconds)), check_read)
        print(found.line(f"read at {share:.0%} of saturation"), flush=True)
    close(opened)


def close(*groups: Sequence[Line]) -> None:
    for group in groups:
        for line in group:
            line.close()
