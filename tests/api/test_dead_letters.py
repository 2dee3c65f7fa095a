"""Dead letters over HTTP: an operator's key finds, shows and releases them, and nobody else's does."""

import asyncio
import base64
import json
from decimal import Decimal
from typing import Any

import jsonschema
import pytest

from tests.api.support import bearer, make_key, problem, site
from tests.factories import GATEWAY, event_bytes, make_event
from tests.support.ledger import Ledger

PRICE = Decimal("0.00028")


async def test_letters_are_found_shown_and_released(world: Ledger) -> None:
    """Two events of a source that nobody knows: one is released as it is, once its source is registered, one mended."""
    token = await make_key(world, "dead-letters:write")
    body = event_bytes(make_event("a", source="gateway://new"))
    await world.post_bytes(body)
    await world.post(make_event("b", flavour="openai.chatt"))
    async with site(world) as here:
        told = (await here.client.get("/openapi.json")).json()

        def fits(name: str, answer: Any) -> Any:
            assert answer.status_code == 200, answer.text
            schema = {"$ref": f"#/components/schemas/{name}", "components": told["components"]}
            jsonschema.validate(answer.json(), schema)
            return answer.json()

        first = fits(
            "DeadLettersReply", await here.client.get("/v1/dead-letters", params={"limit": "1"}, headers=bearer(token))
        )
        rest = fits(
            "DeadLettersReply",
            await here.client.get("/v1/dead-letters", params={"before": str(first["next"])}, headers=bearer(token)),
        )
        (mended,), (plain,) = first["dead_letters"], rest["dead_letters"]
        assert (mended["reason"], plain["reason"], rest["next"]) == ("unknown_flavour", "unknown_source", None)
        address = f"/v1/dead-letters/{plain['dead_letter_id']}"
        shown = fits("DeadLetterReply", await here.client.get(address, headers=bearer(token)))
        assert (shown["field"], base64.b64decode(shown["bytes_base64"])) == ("source", body)
        assert json.loads(shown["text"])["id"] == "a"

        refused = fits("ReplayReply", await here.client.post(f"{address}:replay", json={}, headers=bearer(token)))
        assert (refused["outcome"], refused["reason"]) == ("dead_letter", "unknown_source")
        world.add_source("gateway://new")
        both = await asyncio.gather(
            *(here.client.post(f"{address}:replay", json={}, headers=bearer(token)) for _ in range(2))
        )
        assert sorted(answer.json()["outcome"] for answer in both) == ["created", "resolved"]

        address = f"/v1/dead-letters/{mended['dead_letter_id']}:replay"
        wanted = {"set": {"data.flavour": "openai.chat"}}
        answer = await here.client.post(address, json=wanted, headers=bearer(token))
        assert answer.json()["errors"] == [{"name": "reason", "rule": "is needed where a dead letter is mended"}]
        answer = await here.client.post(address, json={**wanted, "reason": "misspelt"}, headers=bearer(token))
        assert fits("ReplayReply", answer)["outcome"] == "created"
    assert world.total() == 2 * PRICE
    key = token[: token.rindex("_")]
    assert {row[0] for row in world.rows("select resolved_by from ledger.dead_letters")} == {f"key {key}"}
    assert {row[0] for row in world.rows("select actor from ledger.acts where act = 'dead_letters.replay'")} == {
        f"key {key}"
    }


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/v1/dead-letters?state=lost", None, 422, "invalid-request"),
        ("/v1/dead-letters?since=yesterday", None, 422, "invalid-request"),
        ("/v1/dead-letters?since=0001-01-01T00:00:00%2B14:00", None, 422, "invalid-request"),
        ("/v1/dead-letters?before=x", None, 422, "invalid-request"),
        ("/v1/dead-letters?text=%00", None, 422, "invalid-request"),
        ("/v1/dead-letters/9999", None, 404, "unknown-name"),
        ("/v1/dead-letters/99999999999999999999", None, 422, "invalid-request"),
        ("/v1/dead-letters/9999:replay", {}, 404, "unknown-name"),
        ("/v1/dead-letters/1:replay", {"other_identity": True}, 422, "invalid-request"),
        ("/v1/dead-letters/1:replay", {"set": {"id": "x"}, "event": {}, "reason": "r"}, 422, "invalid-request"),
        ("/v1/dead-letters/1:replay", {"unknown": 1}, 422, "invalid-request"),
        ("/v1/dead-letters/9999:note", {"note": "n"}, 404, "unknown-name"),
        ("/v1/dead-letters/1:note", {"note": ""}, 422, "invalid-request"),
        ("/v1/dead-letters/1:note", {"note": "a\0b"}, 422, "invalid-request"),
        ("/v1/dead-letters:assign", {"dead_letter_ids": [], "owner": "jane"}, 422, "invalid-request"),
        ("/v1/dead-letters:assign", {"dead_letter_ids": [1], "owner": "a\nb"}, 422, "invalid-request"),
        ("/v1/dead-letters:resolve", {"dead_letter_ids": [1]}, 422, "invalid-request"),
        ("/v1/dead-letters:resolve", {"dead_letter_ids": [1], "reason": " "}, 422, "invalid-request"),
        ("/v1/dead-letters/1:replay", {"reason": "a\0b"}, 422, "invalid-request"),
    ],
)
async def test_what_makes_no_sense_is_a_problem(world: Ledger, path: str, body: Any, status: int, code: str) -> None:
    token = await make_key(world, "dead-letters:write")
    async with site(world) as here:
        if body is None:
            answer = await here.client.get(path, headers=bearer(token))
        else:
            answer = await here.client.post(path, json=body, headers=bearer(token))
    assert (answer.status_code, problem(answer)) == (status, code)


async def test_letters_are_looked_after_and_done_with(world: Ledger) -> None:
    """Two letters: both get an owner, one a note; both are resolved together, and neither a second time."""
    token = await make_key(world, "dead-letters:write")
    await world.post(make_event("a", source="gateway://new"), make_event("b", source="gateway://new"))
    ids = [row[0] for row in world.rows("select dead_letter_id from ledger.dead_letters order by 1")]
    async with site(world) as here:
        told = (await here.client.get("/openapi.json")).json()

        async def post(path: str, **body: Any) -> Any:
            answer = await here.client.post(f"/v1/dead-letters{path}", json=body, headers=bearer(token))
            if answer.status_code == 200:
                schema = {"$ref": "#/components/schemas/TendedReply", "components": told["components"]}
                jsonschema.validate(answer.json(), schema)
            return answer

        owned = (await post(":assign", dead_letter_ids=ids, owner="jane")).json()["dead_letters"]
        assert [(each["dead_letter_id"], each["owner"]) for each in owned] == [(ids[0], "jane"), (ids[1], "jane")]
        noted = (await post(f"/{ids[0]}:note", note="not registered yet")).json()["dead_letters"]
        assert noted[0]["note"] == "not registered yet"
        # One that is not there: nothing of the act happens.
        missing = await post(":resolve", dead_letter_ids=[*ids, 9999], reason="a test")
        assert (missing.status_code, problem(missing)) == (404, "unknown-name")
        assert world.value("select count(*) from ledger.dead_letters where resolved_at is null") == 2
        done = (await post(":resolve", dead_letter_ids=ids, reason="a test")).json()["dead_letters"]
        assert {each["resolution"] for each in done} == {"dismissed"}
        again = await post(":resolve", dead_letter_ids=ids[:1], reason="a test")
        assert (again.status_code, problem(again)) == (409, "act-refused")
        freed = (await post(":assign", dead_letter_ids=ids[:1], owner=None)).json()["dead_letters"]
        assert freed[0]["owner"] is None
    key = token[: token.rindex("_")]
    assert world.rows(
        "select act, actor, reason from ledger.acts where starts_with(act, 'dead_letters.') order by act_id"
    ) == [
        ("dead_letters.assign", f"key {key}", None),
        ("dead_letters.note", f"key {key}", None),
        ("dead_letters.dismiss", f"key {key}", "a test"),
        ("dead_letters.assign", f"key {key}", None),
    ]


async def test_what_kills_its_reader_is_not_read_by_a_replica(world: Ledger) -> None:
    await world.post(make_event("a", source="gateway://new"))
    world.superuser.execute("update ledger.dead_letters set reason = 'kills_process'")
    letter = world.value("select dead_letter_id from ledger.dead_letters")
    token = await make_key(world, "dead-letters:write")
    async with site(world) as here:
        answer = await here.client.post(f"/v1/dead-letters/{letter}:replay", json={}, headers=bearer(token))
    assert (answer.status_code, problem(answer)) == (409, "act-refused")
    assert "in a process of its own" in answer.json()["detail"]


async def test_nobody_else_reads_them(world: Ledger) -> None:
    await world.post(make_event("a", source="gateway://new"))
    tokens = [await make_key(world, source=GATEWAY), await make_key(world, tenant_id="t-alpha")]
    tokens.append(await make_key(world, "budgets:write"))
    async with site(world) as here:
        for token in tokens:
            for path in ("/v1/dead-letters", "/v1/dead-letters/1"):
                answer = await here.client.get(path, headers=bearer(token))
                assert (answer.status_code, problem(answer)) == (403, "scope-missing")
            answer = await here.client.post("/v1/dead-letters/1:replay", json={}, headers=bearer(token))
            assert (answer.status_code, problem(answer)) == (403, "scope-missing")
        assert problem(await here.client.get("/v1/dead-letters")) == "unauthenticated"
