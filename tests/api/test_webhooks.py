"""Webhooks over HTTP: receivers are administered by operators alone, secrets are told once, and deliveries can be followed."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from quotas.webhooks import Rules, deliver_due
from tests.api.support import Site, bearer, make_key, problem, site
from tests.support.ledger import Ledger

URL = "https://hooks.example.com/tallystick"


@pytest.fixture
async def api(ledger: Ledger) -> AsyncIterator[Site]:
    async with site(ledger) as one:
        yield one


async def ask(api: Site, token: str, method: str, path: str, body: Any = None) -> httpx.Response:
    return await api.client.request(method, f"/v1/webhooks{path}", json=body, headers=bearer(token))


async def test_a_receiver_is_added_listed_rotated_and_removed(api: Site) -> None:
    token = await make_key(api.ledger, "webhooks:write")
    added = await ask(api, token, "POST", "", {"url": URL, "tenant_id": "t-alpha", "kinds": ["budget.exhausted"]})
    assert (added.status_code, added.headers["cache-control"]) == (201, "no-store")
    endpoint_id, secret = added.json()["endpoint_id"], added.json()["secret"]
    listed = await ask(api, token, "GET", "?tenant_id=t-alpha")
    (line,) = listed.json()["webhooks"]
    assert {name: line[name] for name in ("endpoint_id", "tenant_id", "url", "kinds", "disabled_at")} == {
        "endpoint_id": endpoint_id, "tenant_id": "t-alpha", "url": URL, "kinds": ["budget.exhausted"], "disabled_at": None,
    }  # fmt: skip
    assert secret not in listed.text
    assert (await ask(api, token, "GET", "?tenant_id=t-beta")).json() == {"webhooks": []}
    rotated = await ask(api, token, "POST", f"/{endpoint_id}:rotate", {"overlap_hours": 1, "reason": "yearly"})
    assert rotated.json()["secret"].startswith("whsec_")
    assert rotated.json()["secret"] != secret
    removed = await ask(api, token, "POST", f"/{endpoint_id}:remove", {"reason": "moved"})
    assert removed.status_code == 200
    assert (await ask(api, token, "GET", "")).json() == {"webhooks": []}
    acts = api.ledger.rows("select act, actor, reason from ledger.acts where act like 'webhooks.%%' order by act_id")
    actor = f"key {token[: token.rindex('_')]}"
    assert acts == [
        ("webhooks.add", actor, None),
        ("webhooks.rotate", actor, "yearly"),
        ("webhooks.remove", actor, "moved"),
    ]
    assert secret not in str(api.ledger.rows("select * from ledger.acts"))


async def test_what_became_of_a_message_is_told_and_it_can_be_sent_again(api: Site) -> None:
    """Nobody listens at the address, which is a port of this machine: not taken, tried again, and again when asked for."""
    token = await make_key(api.ledger, "webhooks:write")
    async with site(api.ledger, name="api-2", webhooks_allow_private=True) as lenient:
        added = await ask(lenient, token, "POST", "", {"url": "http://127.0.0.1:9/"})
    endpoint_id = added.json()["endpoint_id"]
    message_id = (await ask(api, token, "POST", f"/{endpoint_id}:test", {})).json()["message_id"]
    await deliver_due(api.ledger.database.url_for("tallystick_operator"), Rules(allow_private=True))
    (line,) = (await ask(api, token, "GET", f"/{endpoint_id}/deliveries?state=pending")).json()["deliveries"]
    assert (line["message_id"], line["kind"], line["attempts"], line["last_status"]) == (
        message_id,
        "webhook.test",
        1,
        None,
    )
    assert line["next_at"] > line["last_at"]
    again = await ask(api, token, "POST", f"/{endpoint_id}/deliveries/{message_id}:resend", {"reason": "fixed"})
    assert again.json() == {"endpoint_id": endpoint_id, "message_id": message_id}
    assert api.ledger.value("select next_at <= clock_timestamp() from quotas.deliveries") is True
    assert (await ask(api, token, "GET", f"/{endpoint_id}/deliveries?state=failed")).json()["deliveries"] == []


@pytest.mark.parametrize(
    ("method", "path", "body", "code"),
    [
        ("POST", "", {"url": "http://hooks.example.com/"}, "act-refused"),
        ("POST", "", {"url": "https://10.0.0.1/"}, "act-refused"),
        ("POST", "", {"url": URL, "kinds": ["budget.full"]}, "act-refused"),
        ("POST", "", {"url": URL, "tenant_id": "t-nobody"}, "unknown-name"),
        ("POST", "", {"url": URL, "colour": "red"}, "invalid-request"),
        ("GET", "/we_none/deliveries", None, "unknown-name"),
        ("GET", "/we_none/deliveries?state=lost", None, "invalid-request"),
        ("GET", "/we_none/deliveries?limit=0", None, "invalid-request"),
        ("POST", "/we_none:rotate", {"overlap_hours": 721}, "act-refused"),
        ("POST", "/we_none:rotate", {}, "unknown-name"),
        ("POST", "/we_none:enable", {}, "unknown-name"),
        ("POST", "/we_none:remove", {}, "unknown-name"),
        ("POST", "/we_none:test", {}, "unknown-name"),
        ("POST", "/we_none/deliveries/msg_1:resend", {}, "unknown-name"),
        ("POST", "/we%00:remove", {}, "unknown-name"),
    ],
)
async def test_what_breaks_a_rule_is_a_problem(api: Site, method: str, path: str, body: Any, code: str) -> None:
    token = await make_key(api.ledger, "webhooks:write")
    assert problem(await ask(api, token, method, path, body)) == code


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", ""), ("POST", ""), ("POST", "/we_1:rotate"), ("POST", "/we_1:enable"), ("POST", "/we_1:remove"),
        ("POST", "/we_1:test"), ("GET", "/we_1/deliveries"), ("POST", "/we_1/deliveries/msg_1:resend"),
    ],
)  # fmt: skip
async def test_only_an_operator_administers_receivers(api: Site, method: str, path: str) -> None:
    for token in (await make_key(api.ledger, tenant_id="t-alpha"), await make_key(api.ledger, "budgets:write")):
        answer = await ask(api, token, method, path, {} if method == "POST" else None)
        assert (answer.status_code, problem(answer)) == (403, "scope-missing")
