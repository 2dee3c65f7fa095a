"""Months over HTTP: shown before they are closed, sealed after, and opened again as a recorded act."""

from typing import Any

import pytest

from tests.api.support import make_key, problem, site
from tests.api.test_parties import Asking
from tests.factories import GATEWAY, make_event
from tests.support.ledger import Ledger


async def test_a_close_is_shown_and_then_done(world: Ledger) -> None:
    """100 input tokens at 2 and 10 output tokens at 8 USD a million: 0.0002 + 0.00008 = 0.00028."""
    token, gateway = await make_key(world, "periods:write"), await make_key(world, source=GATEWAY)
    async with site(world) as here:
        ask = Asking(here, token)
        await here.send(make_event("a"), token=gateway)
        shown = (await ask.post("/v1/periods:close", month="2026-01", tenant_id="t-alpha")).json()
        assert (shown["closed"], shown["seals"]) == ([], [])
        (preview,) = shown["preview"]
        assert (preview["request_count"], preview["charge_sums"]) == (1, {"USD": "0.00028"})
        done = (await ask.post("/v1/periods:close", month="2026-01", tenant_id="t-alpha", commit=True)).json()
        assert (done["closed"], done["closed_before"]) == (["t-alpha"], [])
        (seal,) = done["seals"]
        assert seal["charge_sums"] == {"USD": "0.00028"}
        again = (await ask.post("/v1/periods:close", month="2026-01", everybody=True, commit=True)).json()
        assert (again["closed"], again["closed_before"]) == (["t-beta"], ["t-alpha"])
        # Late usage goes to the next month.
        await here.send(make_event("late"), token=gateway)
        period = (await ask.get("/v1/periods/t-alpha/2026-01")).json()
        assert (period["period"]["state"], period["contains"]["request_count"]) == ("closed", 1)
        assert [each["digest"] for each in period["seals"]] == [seal["digest"]]
        opened = (
            await ask.post(
                "/v1/periods:reopen", tenant_id="t-alpha", month="2026-01", reason="a node was late", actor="jane"
            )
        ).json()
        assert (opened["outcome"], opened["period"]["state"]) == ("reopened", "open")
        months = (await ask.get("/v1/periods", month="2026-01")).json()["periods"]
        assert [(each["tenant_id"], each["state"]) for each in months] == [("t-alpha", "open"), ("t-beta", "closed")]
    assert world.rows("select posting_period::text from ledger.entries order by entry_id") == [
        ("2026-01-01",), ("2026-02-01",),
    ]  # fmt: skip
    assert world.rows("select actor, reason from ledger.acts where act = 'periods.reopen'") == [
        (f"key {token[: token.rindex('_')]}", "a node was late (for jane)")
    ]


async def test_a_month_with_what_nobody_can_bill_stays_open_unless_somebody_says_why(world: Ledger) -> None:
    token, gateway = await make_key(world, "periods:write"), await make_key(world, source=GATEWAY)
    async with site(world) as here:
        ask = Asking(here, token)
        await here.send(make_event("x", model="m-unknown"), token=gateway)
        done = (await ask.post("/v1/periods:close", month="2026-01", everybody=True, commit=True)).json()
        assert (done["closed"], done["left_open"]) == (["t-beta"], {"t-alpha": ["1 request without a charge"]})
        alone = {"month": "2026-01", "tenant_id": "t-alpha", "commit": True, "accept_unknown": True}
        assert problem(await ask.post("/v1/periods:close", **alone)) == "invalid-request"
        done = (await ask.post("/v1/periods:close", **alone, reason="billed in February")).json()
        assert (done["closed"], done["left_open"]) == (["t-alpha"], {})


async def test_opening_again_may_wait_for_a_second_person(world: Ledger) -> None:
    token = await make_key(world, "periods:write")
    async with site(world, second_person=frozenset({"periods.reopen"})) as here:
        ask = Asking(here, token)
        await ask.post("/v1/periods:close", month="2026-01", everybody=True, commit=True)
        asked = await ask.post("/v1/periods:reopen", tenant_id="t-alpha", month="2026-01", reason="late")
        assert (asked.json()["outcome"], asked.json()["period"]["state"]) == ("awaiting", "closed")
        assert asked.json()["approval_id"] == world.value("select approval_id from ledger.approvals")


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "said"),
    [
        ("close", {"month": "2026-01"}, 422, "invalid-request", "must say whose month"),
        ("close", {"month": "2026-01", "everybody": True, "tenant_id": "t"}, 422, "invalid-request", "must say whose"),
        ("close", {"month": "2026-1", "everybody": True}, 422, "invalid-request", "month"),
        ("close", {"month": "2031-01", "everybody": True}, 409, "act-refused", "nobody has a period 2031-01"),
        ("close", {"month": "2026-01", "tenant_id": "nobody"}, 404, "unknown-name", "there is no tenant 'nobody'"),
        ("close", {"month": "2026-01", "everybody": True, "is_early": True, "commit": True}, 409, "act-refused",
         "an early close needs a reason"),
        ("reopen", {"tenant_id": "t-alpha", "month": "2026-01", "reason": "r"}, 409, "act-refused", "is open"),
        ("reopen", {"tenant_id": "t-alpha", "month": "2026-01"}, 422, "invalid-request", "reason"),
    ],
)  # fmt: skip
async def test_each_refusal_is_a_problem(
    world: Ledger, path: str, body: dict[str, Any], status: int, code: str, said: str
) -> None:
    token = await make_key(world, "periods:write")
    async with site(world) as here:
        answer = await Asking(here, token).post(f"/v1/periods:{path}", **body)
    assert (answer.status_code, problem(answer)) == (status, code)
    assert said in answer.text
    assert world.value("select count(*) from ledger.periods where state = 'closed'") == 0
