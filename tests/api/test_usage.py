"""GET usage: the fold of a tenant's own entries, exact, by pages, and nobody else's."""

from typing import Any

import pytest

from tests.api.support import Site, bearer, make_key, problem, site
from tests.factories import GATEWAY, make_event
from tests.support.ledger import Ledger


async def usage(here: Site, token: str, tenant_id: str = "t-alpha", **params: Any) -> Any:
    params = {"from": "2026-01-01", "to": "2026-02-01", **params}
    return await here.client.get(f"/v1/tenants/{tenant_id}/usage", params=params, headers=bearer(token))


async def test_usage_is_the_fold_by_day_model_and_feature(world: Ledger) -> None:
    """Each event is 100 input tokens at 2 and 10 output tokens at 8 USD a million: 0.0002 + 0.00008."""
    token = await make_key(world, tenant_id="t-alpha")
    gateway = await make_key(world, source=GATEWAY)
    async with site(world) as here:
        await here.send(
            make_event("ev-1", feature="chat"),
            make_event("ev-2", feature="chat"),
            make_event("ev-3", feature="search", time="2026-01-16T10:00:00Z"),
            make_event("ev-4", feature="chat", model="m-nobody-knows"),
            make_event("ev-5", tenant_id="t-beta"),
            token=gateway,
        )
        answer = await usage(here, token)
    assert answer.status_code == 200, answer.text
    lines = answer.json()["lines"]
    assert [
        (one["day"], one["model"], one["feature"], one["request_count"], one["charge_amount"]) for one in lines
    ] == [
        ("2026-01-15", None, "chat", 1, "0"),
        ("2026-01-15", "m-sub", "chat", 2, "0.00056"),
        ("2026-01-16", "m-sub", "search", 1, "0.00028"),
    ]
    assert [one["unpriced_count"] for one in lines] == [1, 0, 0]
    assert lines[1]["quantities"] == {"uncached_input_tokens": 200, "visible_output_tokens": 20}
    assert "cost" not in answer.text


async def test_a_better_report_counts_on_the_day_of_the_first(world: Ledger) -> None:
    token = await make_key(world, source=GATEWAY)
    async with site(world) as here:
        await here.send(make_event("ev-1", request_id="r-1", status="in_progress", final=False), token=token)
        await here.send(make_event("ev-2", request_id="r-1", time="2026-01-20T10:00:00Z"), token=token)
        lines = (await usage(here, token)).json()["lines"]
    assert [(one["day"], one["request_count"], one["charge_amount"]) for one in lines] == [("2026-01-15", 1, "0.00028")]


async def test_days_are_the_tenants_and_half_open(world: Ledger) -> None:
    """Brisbane is ten hours ahead: 14:00 UTC begins its next day."""
    world.add_tenant("t-bne", zone="Australia/Brisbane")
    token = await make_key(world, source=GATEWAY)
    async with site(world) as here:
        for number, at in enumerate(
            ["2026-01-14T13:59:59Z", "2026-01-14T14:00:00Z", "2026-01-15T13:59:59Z", "2026-01-15T14:00:00Z"]
        ):
            await here.send(make_event(f"ev-{number}", tenant_id="t-bne", time=at), token=token)
        asked = {"from": "2026-01-15", "to": "2026-01-16"}
        lines = (await usage(here, token, "t-bne", **asked)).json()["lines"]
    assert [(one["day"], one["request_count"]) for one in lines] == [("2026-01-15", 2)]


async def test_pages_meet_without_gap_or_overlap(world: Ledger) -> None:
    token = await make_key(world, source=GATEWAY)
    events = [
        make_event(f"ev-{day}-{feature}", time=f"2026-01-{day}T10:00:00Z", feature=feature)
        for day in (10, 11, 12)
        for feature in ("a", 'b"', None)
    ]
    async with site(world) as here:
        await here.send(*events, token=token)
        whole = (await usage(here, token)).json()["lines"]
        for limit in (1, 2, 4, 8, 9, 100):
            pages, after = [], None
            while True:
                page = (await usage(here, token, limit=limit, **({} if after is None else {"after": after}))).json()
                assert 0 < len(page["lines"]) <= limit
                pages += page["lines"]
                if (after := page["next"]) is None:
                    break
            assert pages == whole
    assert len(whole) == 9


@pytest.mark.parametrize(
    ("params", "name"),
    [
        ({"from": "x"}, "from"),
        ({"to": "2026-13-01"}, "to"),
        ({"from": "2026-02-01"}, "to"),
        ({"from": "2025-01-01", "to": "2026-01-03"}, "to"),
        ({"from": "0001-01-01"}, "from"),
        ({"after": "x"}, "after"),
        ({"after": '["2026-01-01","\\u0000","",""]'}, "after"),
        ({"limit": "0"}, "limit"),
    ],
)
async def test_a_parameter_that_breaks_a_rule_is_named(world: Ledger, params: dict[str, str], name: str) -> None:
    token = await make_key(world, tenant_id="t-alpha")
    async with site(world) as here:
        answer = await usage(here, token, **params)
    assert (answer.status_code, problem(answer)) == (422, "invalid-request")
    assert answer.json()["errors"][0]["name"] == name


async def test_usage_is_its_tenants_own(world: Ledger) -> None:
    token = await make_key(world, tenant_id="t-alpha")
    reader = await make_key(world, "budgets:read", tenant_id="t-alpha")
    async with site(world) as here:
        asked = {"x-request-id": "r-1", **bearer(token)}
        theirs, nobody, nul = [
            await here.client.get(f"/v1/tenants/{tenant_id}/usage", headers=asked)
            for tenant_id in ("t-beta", "t-none", "%00")
        ]
        assert (theirs.status_code, problem(theirs)) == (404, "tenant-not-found")
        assert theirs.content == nobody.content == nul.content
        assert problem(await usage(here, reader)) == "scope-missing"
        # Without days: the last thirty.
        assert (await here.client.get("/v1/tenants/t-alpha/usage", headers=asked)).json()["lines"] == []


async def test_a_report_that_takes_too_long_is_refused_and_the_next_is_answered(world: Ledger) -> None:
    token = await make_key(world, tenant_id="t-alpha")
    async with site(world, report_seconds=0.3) as here:
        with world.database.connect() as other:
            other.execute("lock table ledger.entries in access exclusive mode")
            assert problem(await usage(here, token)) == "too-much-to-read"
        assert (await usage(here, token)).status_code == 200
