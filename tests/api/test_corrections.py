"""Corrections over HTTP: an operator's key with the scope, shown before they are made, once for each id.

100 tokens in at 2.00 and 10 out at 8.00 a million = 0.00028.
"""

from decimal import Decimal
from typing import Any

import pytest

from tests.api.support import make_key, problem, site
from tests.api.test_parties import Asking
from tests.factories import GATEWAY, make_event
from tests.ledger.test_statements import openai
from tests.support.ledger import Ledger

REVERSE = {"id": "t-1", "kind": "reverse", "tenant_id": "t-alpha", "request_id": "req-a", "reason": "wrong tenant"}


async def test_a_correction_is_shown_made_and_repeated(world: Ledger) -> None:
    token, gateway = await make_key(world, "corrections:write"), await make_key(world, source=GATEWAY)
    async with site(world) as here:
        ask = Asking(here, token)
        await here.send(make_event("a"), token=gateway)
        shown = (await ask.post("/v1/corrections", **REVERSE)).json()
        assert (shown["outcome"], shown["correction"]) == ("preview", None)
        assert shown["effects"][0] == {
            "what": "charge", "currency": "USD", "before": "0.00028", "after": "0", "difference": "-0.00028",
        }  # fmt: skip
        assert world.total() == Decimal("0.00028")
        made = (await ask.post("/v1/corrections", **REVERSE, commit=True, actor="jane")).json()
        assert (made["outcome"], made["correction"]["kind"]) == ("made", "reverse")
        again = (await ask.post("/v1/corrections", **REVERSE, commit=True)).json()
        assert (again["outcome"], again["correction"]) == ("repeated", made["correction"])
        other = await ask.post("/v1/corrections", **{**REVERSE, "kind": "adjust", "quantities": {}}, commit=True)
        assert (other.status_code, problem(other)) == (409, "act-refused")
        listed = (await ask.get("/v1/corrections", tenant_id="t-alpha")).json()
        assert (listed["corrections"], listed["before"]) == ([made["correction"]], None)
        assert (await ask.get("/v1/corrections", request_id="other")).json()["corrections"] == []
    assert world.total() == 0
    assert world.rows("select distinct actor, reason from ledger.acts where act = 'corrections.reverse'") == [
        (f"key {token[: token.rindex('_')]}", "wrong tenant (for jane)")
    ]


async def test_proposals_are_listed_accepted_and_refused(world: Ledger) -> None:
    """50 x 2 + 5 x 8 = 140 millionths for the one that is accepted; 280 stay for the other."""
    token = await make_key(world, "corrections:write")
    for request_id in ("r1", "r2"):
        await world.post(openai(f"a-{request_id}", 100, 10, request_id=request_id))
        await world.post(openai(f"b-{request_id}", 50, 5, request_id=request_id, revision=1))
    async with site(world) as here:
        ask = Asking(here, token)
        waiting = (await ask.get("/v1/corrections/proposals", tenant_id="t-alpha")).json()["proposals"]
        by_request = {each["request_id"]: each["entry_id"] for each in waiting}
        assert sorted(by_request) == ["r1", "r2"]
        for kind, request_id in (("accept", "r1"), ("refuse", "r2")):
            said = {"id": kind, "kind": kind, "entry_id": by_request[request_id], "reason": "as the bill says"}
            assert (await ask.post("/v1/corrections", **said)).json()["outcome"] == "preview"
            assert (await ask.post("/v1/corrections", **said, commit=True)).json()["outcome"] == "made"
            assert (await ask.post("/v1/corrections", **said, commit=True)).json()["outcome"] == "repeated"
        assert (await ask.get("/v1/corrections/proposals")).json()["proposals"] == []
    assert world.requests("request_id") == {"r1": (1, Decimal("0.00014")), "r2": (1, Decimal("0.00028"))}


async def test_the_second_content_of_a_conflict_is_accepted(world: Ledger) -> None:
    token = await make_key(world, "corrections:write")
    await world.post(openai("a", 100, 10, request_id="r"))
    await world.post(openai("a", 50, 5, request_id="r"))
    letter = world.value("select dead_letter_id from ledger.dead_letters")
    async with site(world) as here:
        said = {"id": "x", "kind": "accept", "dead_letter_id": letter, "reason": "the first was a test"}
        made = (await Asking(here, token).post("/v1/corrections", **said, commit=True)).json()
        assert (made["outcome"], made["correction"]["dead_letter_id"]) == ("made", letter)
    assert world.total() == Decimal("0.00014")


async def test_a_correction_may_wait_for_a_second_person(world: Ledger) -> None:
    token = await make_key(world, "corrections:write")
    await world.post(make_event("a"))
    async with site(world, second_person=frozenset({"corrections.reverse"})) as here:
        asked = (await Asking(here, token).post("/v1/corrections", **REVERSE, commit=True)).json()
        assert (asked["outcome"], asked["approval_id"]) == ("awaiting", 1)
    assert world.total() == Decimal("0.00028")


@pytest.mark.parametrize(
    ("change", "status", "code", "field"),
    [
        ({"kind": "reverse", "request_id": None}, 422, "invalid-request", "request_id"),
        ({"kind": "reverse", "tenant_id": None}, 422, "invalid-request", "tenant_id"),
        ({"kind": "reverse", "entry_id": 7}, 422, "invalid-request", "entry_id"),
        ({"kind": "reverse", "fee": {"operation_id": "o"}}, 422, "invalid-request", "fee"),
        ({"kind": "adjust"}, 422, "invalid-request", "quantities"),
        ({"kind": "adjust", "quantities": {}, "charge_difference": "1"}, 422, "invalid-request", "quantities"),
        ({"kind": "adjust", "charge_difference": "1,5"}, 422, "invalid-request", "charge_difference"),
        ({"kind": "accept", "request_id": None, "tenant_id": None}, 422, "invalid-request", "entry_id"),
        ({"kind": "refuse", "request_id": None, "tenant_id": None}, 422, "invalid-request", "entry_id"),
        ({"kind": "undo"}, 422, "invalid-request", "kind"),
        ({"reason": ""}, 422, "invalid-request", "reason"),
        ({"reason": "a\0b"}, 422, "invalid-request", "reason"),
        ({"id": "a\0b"}, 422, "invalid-request", "id"),
        ({"request_id": "nobody's"}, 404, "unknown-name", None),
        ({"request_id": "a\0b"}, 422, "invalid-request", "request_id"),
        ({"kind": "adjust", "quantities": {"tokens": 1}}, 409, "act-refused", None),
        ({"kind": "adjust", "quantities": {"images": 1.5}}, 422, "invalid-request", "quantities"),
    ],
)
async def test_what_is_refused_is_a_problem_that_names_the_field(
    world: Ledger, change: dict[str, Any], status: int, code: str, field: str | None
) -> None:
    token = await make_key(world, "corrections:write")
    await world.post(make_event("a"))
    async with site(world) as here:
        body = {name: value for name, value in {**REVERSE, **change}.items() if value is not None}
        answer = await Asking(here, token).post("/v1/corrections", **body, commit=True)
    assert (answer.status_code, problem(answer)) == (status, code)
    if field is not None:
        assert field in answer.json()["errors"][0]["name"]
    assert world.value("select count(*) from ledger.corrections") == 0


async def test_other_keys_correct_nothing(world: Ledger) -> None:
    async with site(world) as here:
        for token in (await make_key(world, "periods:write"), await make_key(world, source=GATEWAY)):
            ask = Asking(here, token)
            assert problem(await ask.post("/v1/corrections", **REVERSE)) == "scope-missing"
            assert problem(await ask.get("/v1/corrections")) == "scope-missing"
