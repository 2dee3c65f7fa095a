"""Budgets and grants over HTTP: who may move them, what is told, and that the same act is done once."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.api.support import Site, bearer, make_key, problem, site
from tests.support.ledger import Ledger

BUDGET = {"budget_id": "b", "tenant_id": "t-alpha", "unit": "charge", "currency": "USD", "limit": "100"}
GRANT = {"key": "order-1", "amount": "10.00", "currency": "USD", "reason": "bought"}


@pytest.fixture
async def api(ledger: Ledger) -> AsyncIterator[Site]:
    async with site(ledger) as one:
        yield one


async def ask(api: Site, token: str, method: str, path: str, body: Any = None) -> httpx.Response:
    return await api.client.request(method, path, json=body, headers=bearer(token))


async def test_a_budget_is_set_shown_and_changed(api: Site) -> None:
    token = await make_key(api.ledger, "budgets:write")
    made = await ask(api, token, "POST", "/v1/budgets", {**BUDGET, "steps": [{"at": "0.9", "action": "refuse"}]})
    assert (made.status_code, made.json()["outcome"]) == (201, "created")
    again = await ask(api, token, "POST", "/v1/budgets", BUDGET)
    assert (again.status_code, again.json()["outcome"]) == (200, "unchanged")
    changed = await ask(
        api, token, "PATCH", "/v1/budgets/b", {"limit": "150.50", "thresholds": ["0.8"], "reason": "more"}
    )
    assert changed.json()["outcome"] == "changed"
    shown = await ask(api, token, "GET", "/v1/budgets/b")
    assert shown.json() == changed.json()["budget"]
    assert {name: shown.json()[name] for name in ("limit", "thresholds", "steps")} == {
        "limit": "150.50", "thresholds": ["0.8"], "steps": [{"at": "0.9", "action": "refuse"}],
    }  # fmt: skip
    unlimited = await ask(api, token, "PATCH", "/v1/budgets/b", {"limit": None, "thresholds": [], "steps": []})
    assert unlimited.json()["budget"]["limit"] is None
    acts = api.ledger.rows("select actor, act, reason from ledger.acts where act like 'budgets.%%' order by act_id")
    assert acts[1] == (f"key {token[: token.rindex('_')]}", "budgets.change", "more")


async def test_a_budget_is_replaced_in_one_commit(api: Site) -> None:
    token = await make_key(api.ledger, "budgets:write")
    await ask(api, token, "POST", "/v1/budgets", BUDGET)
    weekly = {**BUDGET, "budget_id": "w", "window": "week", "replaces": "b"}
    made = await ask(api, token, "POST", "/v1/budgets", weekly)
    assert (made.status_code, made.json()["outcome"]) == (201, "replaced")
    assert (await ask(api, token, "GET", "/v1/budgets/b")).json()["ended_at"] is not None


@pytest.mark.parametrize(
    ("method", "path", "body", "code"),
    [
        ("POST", "/v1/budgets", {**BUDGET, "limit": 100}, "invalid-request"),
        ("POST", "/v1/budgets", {**BUDGET, "limit": "-1"}, "invalid-request"),
        ("POST", "/v1/budgets", {**BUDGET, "colour": "red"}, "invalid-request"),
        ("POST", "/v1/budgets", {**BUDGET, "tenant_id": "t-nobody"}, "unknown-name"),
        ("POST", "/v1/budgets", {**BUDGET, "currency": "EUR"}, "act-refused"),
        ("PATCH", "/v1/budgets/nothing", {"limit": "1"}, "unknown-name"),
        ("PATCH", "/v1/budgets/%00", {"limit": "1"}, "unknown-name"),
        ("POST", "/v1/budgets", {**BUDGET, "since": "0001-01-01"}, "invalid-request"),
        ("PATCH", "/v1/budgets/totals-cost", {"hardness": "soft"}, "act-refused"),
        ("GET", "/v1/budgets/nothing", None, "unknown-name"),
        ("POST", "/v1/tenants/t-alpha/grants", {**GRANT, "amount": "-5"}, "invalid-request"),
        ("POST", "/v1/tenants/t-alpha/grants", {**GRANT, "amount": "0"}, "act-refused"),
        ("POST", "/v1/tenants/t-alpha/grants", {**GRANT, "expires_at": "2026-01-01T00:00:00"}, "invalid-request"),
        ("POST", "/v1/tenants/t-alpha/grants", {**GRANT, "expires_at": "9999-12-31T23:59:59-14:00"}, "invalid-request"),
        ("POST", "/v1/tenants/t-alpha/grants", {**GRANT, "reason": "\0"}, "invalid-request"),
        ("POST", "/v1/tenants/t-nobody/grants", GRANT, "unknown-name"),
        ("POST", "/v1/tenants/t-alpha/grants/gr_0:revoke", {"key": "k"}, "unknown-name"),
    ],
)
async def test_what_breaks_a_rule_is_a_problem(api: Site, method: str, path: str, body: Any, code: str) -> None:
    token = await make_key(api.ledger, "budgets:write", "grants:write")
    assert problem(await ask(api, token, method, path, body)) == code


async def test_only_an_operator_moves_budgets_and_grants(api: Site) -> None:
    tenants = await make_key(api.ledger, tenant_id="t-alpha")
    readers = await make_key(api.ledger, "budgets:read")
    for token in (tenants, readers):
        assert problem(await ask(api, token, "POST", "/v1/budgets", BUDGET)) == "scope-missing"
        assert problem(await ask(api, token, "PATCH", "/v1/budgets/b", {"limit": "1"})) == "scope-missing"
        assert problem(await ask(api, token, "GET", "/v1/budgets/b")) == "scope-missing"
        assert problem(await ask(api, token, "POST", "/v1/tenants/t-alpha/grants", GRANT)) == "scope-missing"


async def test_a_grant_is_made_once_and_revoked_once(api: Site) -> None:
    token = await make_key(api.ledger, "grants:write", "budgets:read")
    first, again = [await ask(api, token, "POST", "/v1/tenants/t-alpha/grants", GRANT) for _ in range(2)]
    assert (first.json()["was_done"], again.json()["was_done"]) == (False, True)
    grant_id = first.json()["grant_id"]
    assert again.json()["grant_id"] == grant_id
    other = {**GRANT, "amount": "11"}
    assert problem(await ask(api, token, "POST", "/v1/tenants/t-alpha/grants", other)) == "act-refused"
    revoke = f"/v1/tenants/t-alpha/grants/{grant_id}:revoke"
    part = await ask(api, token, "POST", revoke, {"key": "r-1", "amount": "4", "reason": "paid back"})
    assert part.json() == {"grant_id": grant_id, "amount": "-4", "was_done": False}
    assert (await ask(api, token, "POST", revoke, {"key": "r-1", "amount": "4"})).json()["was_done"]
    (balance,) = (await ask(api, token, "GET", "/v1/tenants/t-alpha/grants")).json()["balances"]
    assert (balance["left"], balance["grants"][0]["granted"], balance["grants"][0]["revoked"]) == ("6.00", "10.00", "4")


async def test_a_tenant_reads_its_own_grants_and_nobody_elses(api: Site) -> None:
    api.ledger.add_tenant("t-beta")
    operators = await make_key(api.ledger, "grants:write")
    await ask(api, operators, "POST", "/v1/tenants/t-alpha/grants", GRANT)
    token = await make_key(api.ledger, tenant_id="t-alpha")
    own = await ask(api, token, "GET", "/v1/tenants/t-alpha/grants")
    assert [each["left"] for each in own.json()["balances"]] == ["10.00"]
    answers = [await ask(api, token, "GET", f"/v1/tenants/{name}/grants") for name in ("t-beta", "t-nobody")]
    assert [problem(answer) for answer in answers] == ["tenant-not-found", "tenant-not-found"]


async def test_a_grant_of_another_tenant_is_not_there(api: Site) -> None:
    api.ledger.add_tenant("t-beta")
    token = await make_key(api.ledger, "grants:write")
    made = await ask(api, token, "POST", "/v1/tenants/t-alpha/grants", GRANT)
    path = f"/v1/tenants/t-beta/grants/{made.json()['grant_id']}:revoke"
    assert problem(await ask(api, token, "POST", path, {"key": "r-1"})) == "unknown-name"
