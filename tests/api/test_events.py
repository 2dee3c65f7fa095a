"""POST /v1/events: every shape of body, an outcome for each event, and nothing acknowledged that is not stored."""

import asyncio
import json
from decimal import Decimal
from typing import Any

import pytest

from ledger import failpoints
from tests.api.support import bearer, make_key, outcomes, problem, site
from tests.factories import GATEWAY, NODE, make_event, make_window
from tests.support.ledger import Ledger

PRICE = Decimal("0.00028")  # 100 * 2.00 / 1000000 + 10 * 8.00 / 1000000


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("application/cloudevents+json", json.dumps(make_event())),
        ("application/json", json.dumps(make_event())),
        ("application/json; charset=utf-8", f" \n{json.dumps([make_event()])}\n"),
        ("application/cloudevents-batch+json", json.dumps([make_event()])),
        ("application/x-ndjson", json.dumps(make_event()) + "\n\n"),
    ],
)
async def test_an_event_is_stored_in_every_shape(world: Ledger, content_type: str, body: str) -> None:
    token = await make_key(world, source=GATEWAY)
    async with site(world) as here:
        answer = await here.send(body.encode(), token=token, content_type=content_type)
    assert outcomes(answer) == ["created"]
    told = answer.json()
    assert told["feed"] == "api:api-1"
    assert told["counts"] == {"created": 1}
    assert told["results"] == [{"index": 0, "id": "ev-1", "outcome": "created"}]
    assert world.total() == PRICE
    assert world.value("select batch_id from ledger.batches") == told["batch_id"]


@pytest.mark.parametrize("shape", ["one", "pack", "lines"])
async def test_a_nodes_windows_are_answered_one_by_one(world: Ledger, shape: str) -> None:
    """Kept, sent again, sent with other content, over one that is there, and broken."""
    token = await make_key(world, source=NODE)
    minute = {"starts_at": "2026-01-15T09:58:00Z", "ends_at": "2026-01-15T09:59:00Z"}
    sent = [
        make_window("w-1"), make_window("w-1"), make_window("w-1", gpu_count=4), make_window("w-2"),
        make_window("w-3", **minute), make_window("w-4", starts_at="yesterday"),
    ]  # fmt: skip
    bodies = {
        "one": [json.dumps(event).encode() for event in sent],
        "pack": [json.dumps(sent).encode()],
        "lines": ["\n".join(map(json.dumps, sent)).encode()],
    }[shape]
    content_type = "application/x-ndjson" if shape == "lines" else "application/json"
    results: list[dict[str, Any]] = []
    async with site(world) as here:
        for body in bodies:
            results += (await here.send(body, token=token, content_type=content_type)).json()["results"]
    assert [(result["outcome"], result.get("reason")) for result in results] == [
        ("created", None), ("duplicate", None), ("conflict", "conflict"), ("dead_letter", "window_overlaps"),
        ("created", None), ("dead_letter", "bad_time"),
    ]  # fmt: skip
    assert world.rows("select count(*), min(node_id) from ledger.node_windows") == [(2, "gpu-7")]
    assert world.value("select count(*) from ledger.entries") == 0


async def test_every_event_of_a_pack_is_answered_in_order(world: Ledger) -> None:
    """B072: five events, the third booked already; sent again after the answer, nothing is added."""
    token = await make_key(world, source=GATEWAY)
    pack = [make_event(f"ev-{n}") for n in range(5)]
    async with site(world) as here:
        assert outcomes(await here.send(pack[2], token=token)) == ["created"]
        answer = await here.send(*pack, token=token)
        assert outcomes(answer) == ["created", "created", "duplicate", "created", "created"]
        assert [result["id"] for result in answer.json()["results"]] == [event["id"] for event in pack]
        assert outcomes(await here.send(*pack, token=token)) == ["duplicate"] * 5
    assert world.total() == 5 * PRICE


async def test_broken_events_are_kept_and_their_neighbours_posted(world: Ledger) -> None:
    token = await make_key(world, source=GATEWAY)
    body = b'[%s, {"id": "ev-2", "type": "llm.usage.v1"}, 17, {"id": 5}, %s, {"id": "ev-6", "time' % (
        json.dumps(make_event("ev-1")).encode(),
        json.dumps(make_event("ev-5", tenant_id="t-nobody")).encode(),
    )
    async with site(world) as here:
        answer = await here.send(body, token=token)
    results = answer.json()["results"]
    assert outcomes(answer) == ["created", *["dead_letter"] * 5]
    assert [result["index"] for result in results] == [0, 1, 2, 3, 4, 5]
    assert [result["id"] for result in results] == ["ev-1", "ev-2", None, None, "ev-5", None]
    assert all(result["reason"] and result["detail"] for result in results[1:])
    assert results[4]["reason"] == "unknown_tenant"
    key_id = token[: token.rindex("_")]
    assert world.rows("select distinct origin from ledger.dead_letters") == [(key_id,)]
    assert (b"17",) in world.rows("select bytes from ledger.dead_letters")


async def test_the_same_id_with_other_content_is_a_conflict(world: Ledger) -> None:
    """B071: the third, the first in other words, is a duplicate."""
    token = await make_key(world, source=GATEWAY)
    first = make_event("ev-9")
    second = make_event("ev-9", usage={"prompt_tokens": 100, "completion_tokens": 900, "total_tokens": 1000})
    reordered = {"data": dict(reversed(first["data"].items())), **first, "time": "2026-01-15T11:00:00.000+01:00"}
    async with site(world) as here:
        assert outcomes(await here.send(first, token=token)) == ["created"]
        answer = await here.send(second, token=token)
        assert outcomes(answer) == ["conflict"]
        assert outcomes(await here.send(json.dumps(reordered, indent=3).encode(), token=token)) == ["duplicate"]
    assert world.total() == PRICE
    assert len(set(world.rows("select first_hash, second_hash from ledger.dead_letters")[0])) == 2


async def test_a_retry_after_a_failed_write_counts_once(world: Ledger) -> None:
    """B069: the first write fails after the de-duplication; the sender gets an error and sends again."""
    token = await make_key(world, source=GATEWAY)

    def fail(*_: Any) -> None:
        raise RuntimeError("the disk is on fire, says t-beta")

    async with site(world) as here:
        failpoints.set_failpoint("post.before_entries", fail)
        try:
            answer = await here.send(make_event("ev-77"), token=token)
        finally:
            failpoints.set_failpoint("post.before_entries", None)
        assert problem(answer) == "internal-error"
        assert "fire" not in answer.text
        assert world.total() == 0
        assert outcomes(await here.send(make_event("ev-77"), token=token)) == ["created"]
        assert outcomes(await here.send(make_event("ev-77"), token=token)) == ["duplicate"]
    assert world.total() == PRICE


async def test_a_duplicate_is_recognised_however_late(world: Ledger) -> None:
    """B070, and the copy's time is far outside of the window of accepted times by then."""
    token = await make_key(world, source=GATEWAY)
    event = make_event("ev-5", time="2026-01-02T00:00:00Z")
    async with site(world) as here:
        assert outcomes(await here.send(event, token=token)) == ["created"]
        # Past the guard, as age has it one day.
        world.superuser.execute("set session_replication_role = replica")
        world.superuser.execute("delete from ledger.raw_usage")
        world.superuser.execute("set session_replication_role = origin")
    async with site(world, name="api-2") as later:
        assert outcomes(await later.send(event, token=token)) == ["duplicate"]
    assert world.total() == PRICE


async def test_b085_a_nul_in_a_label_costs_nobody_their_money(world: Ledger) -> None:
    token = await make_key(world, source=GATEWAY)
    pack = [make_event(f"ev-{n}") for n in range(100)]
    pack[57]["data"]["feature"] = "chat\0bot"
    async with site(world) as here:
        answer = await here.send(*pack, token=token)
    assert answer.json()["counts"] == {"created": 99, "dead_letter": 1}
    assert answer.json()["results"][57] == {
        "index": 57,
        "id": "ev-57",
        "outcome": "dead_letter",
        "reason": "nul_in_text",
        "detail": "data.feature: holds U+0000",
    }
    assert world.total() == 99 * PRICE


async def test_b086_a_lone_surrogate_is_kept_and_counted_once(world: Ledger) -> None:
    token = await make_key(world, source=GATEWAY)
    body = json.dumps(make_event("ev-1", feature="x?y")).replace("x?y", "x\\ud835y").encode()
    async with site(world) as here:
        for _ in range(2):
            answer = await here.send(body, token=token)
            assert outcomes(answer) == ["dead_letter"]
            assert answer.json()["results"][0]["reason"] == "lone_surrogate"
    assert world.total() == 0
    assert world.rows("select bytes, repeats from ledger.dead_letters") == [(body, 1)]


REFUSALS: list[tuple[str, dict[str, str], bytes, int, str]] = [
    ("no key", {"authorization": ""}, b"{}", 401, "unauthenticated"),
    ("no content type", {}, b"{}", 415, "unsupported-media-type"),
    ("text", {"content-type": "text/plain"}, b"{}", 415, "unsupported-media-type"),
    ("latin", {"content-type": "application/json; charset=latin-1"}, b"{}", 415, "unsupported-media-type"),
    ("gzip", {"content-type": "application/json", "content-encoding": "gzip"}, b"{}", 415, "unsupported-media-type"),
    ("binary mode", {"content-type": "application/json", "ce-id": "1"}, b"{}", 415, "unsupported-media-type"),
    ("nothing", {"content-type": "application/json"}, b"", 400, "empty-body"),
    ("blank", {"content-type": "application/x-ndjson"}, b" \n\n", 400, "empty-body"),
    ("no event", {"content-type": "application/json"}, b" []", 400, "empty-body"),
    ("too large", {"content-type": "application/json"}, b'"' + b"x" * 2_000 + b'"', 413, "body-too-large"),
    ("too many", {"content-type": "application/json"}, b"[1,2,3,4,5]", 413, "too-many-events"),
]


@pytest.mark.parametrize(
    ("headers", "body", "status", "code"), [case[1:] for case in REFUSALS], ids=[r[0] for r in REFUSALS]
)
async def test_a_request_that_cannot_be_taken_is_refused_whole(
    world: Ledger, headers: dict[str, str], body: bytes, status: int, code: str
) -> None:
    token = await make_key(world, source=GATEWAY)
    async with site(world, body_bytes_max=1_000, body_events_max=4) as here:
        answer = await here.client.post("/v1/events", content=body, headers={**bearer(token), **headers})
    assert (answer.status_code, problem(answer)) == (status, code)
    assert world.value("select count(*) from ledger.batches") == 0


async def test_a_body_without_a_stated_length_is_cut_off_at_the_limit(world: Ledger) -> None:
    token = await make_key(world, source=GATEWAY)
    sent = 0

    async def endless() -> Any:
        nonlocal sent
        while sent < 1_000_000:
            sent += 100
            yield b" " * 100

    async with site(world, body_bytes_max=1_000) as here:
        answer = await here.client.post(
            "/v1/events", content=endless(), headers={**bearer(token), "content-type": "application/json"}
        )
    assert problem(answer) == "body-too-large"
    assert sent < 10_000


async def test_twenty_clients_with_the_same_event_create_one(world: Ledger) -> None:
    token = await make_key(world, source=GATEWAY)
    async with site(world) as here:
        answers = await asyncio.gather(*[here.send(make_event(), token=token) for _ in range(20)])
    told = sorted(outcome for answer in answers for outcome in outcomes(answer))
    assert told == ["created", *["duplicate"] * 19]
    assert world.total() == PRICE


async def test_concurrent_requests_share_commits(world: Ledger) -> None:
    token = await make_key(world, source=GATEWAY)
    async with site(world) as here:
        answers = await asyncio.gather(*[here.send(make_event(f"ev-{n}"), token=token) for n in range(50)])
        assert [outcomes(answer) for answer in answers] == [["created"]] * 50
        assert await here.metric('tallystick_events_total{outcome="created"}') == 50
        assert await here.metric("tallystick_queue_events") == 0
    # The first goes alone, and whoever came meanwhile goes together.
    assert world.value("select count(*) from ledger.batches") <= 5
    numbers = [answer.json()["batch_number"] for answer in answers]
    assert numbers == sorted(numbers)


async def test_a_batch_takes_no_more_events_than_its_limit(world: Ledger) -> None:
    token = await make_key(world, source=GATEWAY)
    async with site(world, batch_events_max=4) as here:
        sent = [[make_event(f"ev-{n}-{m}") for m in range(3)] for n in range(4)]
        sent.append([make_event(f"big-{m}") for m in range(9)])
        answers = await asyncio.gather(*[here.send(*pack, token=token) for pack in sent])
    assert [set(outcomes(answer)) for answer in answers] == [{"created"}] * 5
    assert sorted(world.rows("select created_count from ledger.batches")) == [(3,), (3,), (3,), (3,), (9,)]


async def test_prices_that_changed_while_a_request_waited_are_the_ones_that_count(world: Ledger) -> None:
    token = await make_key(world, source=GATEWAY)
    async with site(world) as here:
        assert outcomes(await here.send(make_event("ev-1"), token=token)) == ["created"]
        world.add_tenant("t-new")
        answers = await asyncio.gather(
            *[here.send(make_event(f"ev-{n}", tenant_id="t-new"), token=token) for n in range(2, 5)]
        )
    assert [outcomes(answer) for answer in answers] == [["created"]] * 3
