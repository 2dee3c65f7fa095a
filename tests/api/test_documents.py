"""What the API says about itself: OpenAPI, problems, health, metrics, and a page that loads nothing from elsewhere."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from fastapi.routing import APIRoute

from api import errors
from api.errors import PROBLEMS, Refusal, type_of
from api.main import ROOMS
from ledger.api_keys import SCOPES
from tests.api.support import add_budget, bearer, make_key, problem, site
from tests.factories import GATEWAY, make_event
from tests.support.ledger import Ledger


async def document(ledger: Ledger) -> dict[str, Any]:
    async with site(ledger) as here:
        answer = await here.client.get("/openapi.json")
    return dict(answer.json())


def references(value: Any) -> set[str]:
    return set(re.findall(r'"\$ref": "#/components/schemas/([^"]+)"', json.dumps(value)))


async def test_the_document_is_complete(world: Ledger) -> None:
    told = await document(world)
    assert references(told) <= set(told["components"]["schemas"])
    routed = {
        (route.path, method.lower())
        for room in ROOMS
        for route in room.router.routes
        if isinstance(route, APIRoute) and route.include_in_schema
        for method in route.methods
    }
    assert {(path, method) for path, methods in told["paths"].items() for method in methods} == routed
    assert {"/v1/events", "/v1/budgets", "/v1/tenants/{tenant_id}/budgets"} <= set(told["paths"])
    named = [operation["operationId"] for methods in told["paths"].values() for operation in methods.values()]
    assert len(named) == len(set(named))
    for path, methods in told["paths"].items():
        for operation in methods.values():
            assert operation["summary"], path
            assert operation["tags"][0] in {tag["name"] for tag in told["tags"]}
            for status, answer in operation["responses"].items():
                assert answer["description"], (path, status)
            if path.startswith("/v1/"):
                ((scope,),) = operation["security"][0].values()
                assert scope in SCOPES
                assert {"401", "403", "500", "503"} <= set(operation["responses"])


async def test_each_example_fits_its_schema(world: Ledger) -> None:
    told = await document(world)
    checked = 0
    for methods in told["paths"].values():
        for operation in methods.values():
            contents = [operation.get("requestBody", {}), *operation["responses"].values()]
            for media in [one for content in contents for one in content.get("content", {}).values()]:
                examples = [one["value"] for one in media.get("examples", {}).values()]
                for example in [*examples, *([media["example"]] if "example" in media else [])]:
                    jsonschema.validate(example, {**media["schema"], "components": told["components"]})
                    checked += 1
    assert checked > 20


async def test_answers_fit_the_document(world: Ledger) -> None:
    add_budget(world)
    token = await make_key(world, source=GATEWAY)
    async with site(world) as here:
        told = (await here.client.get("/openapi.json")).json()
        answers = {
            "EventsReply": await here.send(make_event(), {"id": "x"}, token=token),
            "BudgetsReply": await here.budgets("t-alpha", token),
            "AllBudgetsReply": await here.client.get("/v1/budgets", headers=bearer(token)),
            "ProblemReply": await here.budgets("t-nobody", token),
            "Health": await here.client.get("/readyz"),
        }
    for name, answer in answers.items():
        jsonschema.validate(answer.json(), {"$ref": f"#/components/schemas/{name}", "components": told["components"]})


def test_every_refusal_has_a_problem() -> None:
    def below(kind: type[Refusal]) -> set[type[Refusal]]:
        return {kind, *(one for child in kind.__subclasses__() for one in below(child))}

    codes = {kind.code for kind in below(Refusal)}
    assert codes <= set(PROBLEMS)
    assert all(400 <= kind.status < 600 and kind.title and kind.means for kind in PROBLEMS.values())


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/nothing", 404, "not-found"),
        ("GET", "/", 404, "not-found"),
        ("GET", "/v1/budgets/", 404, "not-found"),
        ("GET", "/v1/events", 405, "method-not-allowed"),
        ("DELETE", "/v1/budgets", 405, "method-not-allowed"),
    ],
)
async def test_what_is_not_there_is_a_problem_too(
    world: Ledger, method: str, path: str, status: int, code: str
) -> None:
    async with site(world) as here:
        answer = await here.client.request(method, path)
        assert (answer.status_code, problem(answer)) == (status, code)
        assert answer.json()["type"] == type_of(code)
        if status == 405:
            assert answer.headers["allow"]


async def test_the_page_loads_nothing_from_elsewhere(world: Ledger) -> None:
    async with site(world) as here:
        for path, kind in [
            ("/docs", "text/html"),
            ("/docs.js", "text/javascript"),
            ("/docs.css", "text/css"),
            ("/favicon.ico", "image/svg+xml"),
            ("/favicon.svg", "image/svg+xml"),
        ]:
            answer = await here.client.get(path)
            assert answer.status_code == 200
            assert answer.headers["content-type"].startswith(kind)
            assert "default-src 'none'" in answer.headers["content-security-policy"]
            assert set(re.findall(r"https?://[^\s\"']+", answer.text)) <= {"http://www.w3.org/2000/svg"}


async def test_a_page_of_problems_has_the_whole_width(world: Ledger) -> None:
    """It shares its style with a page of two columns, whose first is for the routes; it has no routes."""
    async with site(world) as here:
        page, style = (await here.client.get("/problems")).text, (await here.client.get("/docs.css")).text
    assert "<nav" not in page
    assert re.search(r"main:only-child \{[^}]*grid-column: 1 / -1", style)


async def test_the_type_of_a_problem_is_the_address_of_its_page(world: Ledger) -> None:
    async with site(world) as here:
        listed = await here.client.get("/problems")
        for code, kind in PROBLEMS.items():
            page = await here.client.get(type_of(code))
            assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
            assert f"status {kind.status}" in page.text
            assert f'href="{type_of(code)}"' in listed.text
        assert problem(await here.client.get("/problems/none")) == "not-found"


@pytest.mark.parametrize(
    ("sent", "is_kept"),
    [
        ("a1-B2.c:d/e+f=@", True),
        ("x" * 128, True),
        ("x" * 129, False),
        ("", False),
        ("a b", False),
        ('a"b', False),
        (None, False),
    ],
)
async def test_a_request_keeps_its_plain_id_and_else_gets_one(world: Ledger, sent: str | None, is_kept: bool) -> None:
    async with site(world) as here:
        headers = {} if sent is None else {"x-request-id": sent}
        answers = [await here.client.get(path, headers=headers) for path in ("/healthz", "/v1/budgets", "/v1/nothing")]
    ids = [answer.headers["x-request-id"] for answer in answers]
    assert [one == sent for one in ids] == [is_kept] * 3
    assert all(re.fullmatch(r"[0-9a-f]{32}", one) for one in ids) is not is_kept
    assert [answer.json()["request_id"] for answer in answers[1:]] == ids[1:]


async def test_health_needs_no_database_and_readiness_does(world: Ledger) -> None:
    async with site(world, api_url="postgresql://nobody@127.0.0.1:1/none", read_connections=1) as here:
        assert (await here.client.get("/healthz")).json() == {"status": "alive"}
        answer = await here.client.get("/readyz")
        assert (answer.status_code, problem(answer)) == (503, "not-ready")
        assert answer.json()["checks"] == {"database": "cannot be reached"}
        refused = await here.client.get("/v1/budgets", headers=bearer(f"tsk_{'0' * 12}_{'0' * 64}"))
        assert (refused.status_code, problem(refused)) == (503, "database-away")


async def test_a_database_at_another_revision_is_not_ready(world: Ledger) -> None:
    async with site(world, revision="9999") as here:
        answer = await here.client.get("/readyz")
    assert answer.json()["checks"]["database"].endswith("this code is at 9999")


async def test_counters_name_routes_and_nobody(world: Ledger) -> None:
    token = await make_key(world, source=GATEWAY)
    async with site(world) as here:
        await here.send(make_event(), token=token)
        await here.budgets("t-alpha", token)
        await here.client.request("BREW", "/coffee/t-alpha")
        text = (await here.client.get("/metrics")).text
        assert await here.metric('tallystick_http_requests_total{method="POST",route="/v1/events",status="200"}') == 1
    assert 'route="/v1/tenants/{tenant_id}/budgets"' in text
    assert 'method="other",route="unmatched"' in text
    assert "tallystick_commit_seconds_count 1.0" in text
    assert "alpha" not in text
    assert "gateway://" not in text


async def test_gauges_say_what_waits_and_fall_silent_with_the_database(world: Ledger) -> None:
    """Two letters of one reason, one of another, resolved; the canary failed; three numbers are lost, one came late."""
    await world.post(
        make_event("a", source="gateway://new"),
        make_event("b", source="gateway://new"),
        make_event("c", flavour="openai.chatt"),
    )
    world.superuser.execute(
        "update ledger.dead_letters set resolved_at = now(), resolution = 'dismissed' where reason = 'unknown_flavour';"
        "update ledger.dead_letters set first_at = now() - interval '1 hour' where resolved_at is null;"
        "insert into ledger.canary_beats (road, every_seconds, event_id, failure) values ('http', 60, 'c-1', 'no answer');"
        f"insert into ledger.sequence_runs (source, run, seen, first_at, last_at) values ('{GATEWAY}', 1, '{{[1,3],[7,7],[9,10]}}', now(), now());"
        "insert into ledger.sequence_gaps (source, run, low, high, noted_at)"
        f" values ('{GATEWAY}', 1, 4, 6, now() - interval '16 minutes'), ('{GATEWAY}', 1, 8, 8, now())"
    )
    async with site(world) as here:
        assert await here.metric('tallystick_dead_letters_open{reason="unknown_source"}') == 2
        text = (await here.client.get("/metrics")).text
        assert 3600 <= await here.metric("tallystick_dead_letters_oldest_seconds") < 3700
        assert await here.metric("tallystick_missing_numbers") == 3
        assert await here.metric("tallystick_canary_failed") == 1
    assert "unknown_flavour" not in text
    assert "tallystick_canary_seconds" not in text, "it never arrived"
    assert "gateway://" not in text
    world.superuser.execute("alter function ledger.watched() rename to unwatched")
    async with site(world) as here:
        text = (await here.client.get("/metrics")).text
    assert "tallystick_http_requests" in text
    assert "tallystick_dead_letters_open" not in text
    assert "tallystick_missing_numbers" not in text


async def test_metrics_say_what_the_last_proofs_found_and_name_nobody(world: Ledger) -> None:
    async with site(world) as here:
        assert "tallystick_proof" not in (await here.client.get("/metrics")).text
    for count in (0, 3):
        world.superuser.execute(
            "insert into ledger.proofs (kind, started_at, ended_at, up_to, difference_count, differences, notes) values"
            " ('standing', now(), now() - interval '1 hour', '{}', %s, '[{\"part\": \"x\", \"text\": \"t-alpha\"}]', '[]')",
            [count],
        )
    async with site(world) as here:
        assert await here.metric('tallystick_proof_differences{proof="standing"}') == 3
        assert 3600 <= await here.metric('tallystick_proof_age_seconds{proof="standing"}') < 3700
        assert "alpha" not in (await here.client.get("/metrics")).text


async def test_metrics_say_what_came_of_the_last_checks(world: Ledger) -> None:
    async with site(world) as here:
        assert "tallystick_checks" not in (await here.client.get("/metrics")).text
    for failed in (0, 2):
        world.superuser.execute(
            "insert into ledger.check_runs (kind, started_at, ended_at, window_starts_at, window_ends_at, request_count,"
            " passed_count, warned_count, failed_count, unknown_count, broken_count)"
            " values ('schedule', now(), now() - interval '1 hour', now(), now(), 9, 20, 1, %s, 4, 3)",
            [failed],
        )
    async with site(world) as here:
        outcomes = ("passed", "warned", "failed", "unknown", "broken")
        found = [await here.metric(f'tallystick_checks{{outcome="{outcome}"}}') for outcome in outcomes]
        assert found == [20, 1, 2, 4, 3]
        assert 3600 <= await here.metric("tallystick_checks_age_seconds") < 3700


async def test_gauges_say_how_long_webhooks_holds_and_calls_have_waited(world: Ledger) -> None:
    """A message for an hour, and an older one that its disabled endpoint does not take; a hold due for two, a call ended for three."""
    world.superuser.execute(
        "insert into quotas.webhook_endpoints (endpoint_id, url, disabled_at) values ('we_1', 'https://a', null), ('we_2', 'https://b', now());"
        "insert into quotas.outbox (message_id, fact, kind, payload, created_at) values"
        " ('00000000-0000-0000-0000-000000000001', 'f1', 'webhook.test', '{}', now() - interval '1 hour'),"
        " ('00000000-0000-0000-0000-000000000002', 'f2', 'webhook.test', '{}', now() - interval '9 hours');"
        "insert into quotas.deliveries (message_id, endpoint_id) values"
        " ('00000000-0000-0000-0000-000000000001', 'we_1'), ('00000000-0000-0000-0000-000000000002', 'we_2')"
    )
    add_budget(world)
    gateway = await make_key(world, source=GATEWAY)
    async with site(world) as here:
        for name in ("r-1", "r-2"):
            ask = {
                "reservation_id": name,
                "tenant_id": "t-alpha",
                "provider": "openai",
                "model": "m-sub",
                "charge": "0.10",
            }
            answer = await here.client.post("/v1/reservations", json=ask, headers=bearer(gateway))
            assert answer.status_code == 201, answer.text
        world.superuser.execute(
            "update quotas.reservations set expires_at = now() - interval '2 hours' where reservation_id = 'r-1';"
            "update quotas.reservations set state = 'awaiting_entry', ended_at = now() - interval '3 hours' where reservation_id = 'r-2'"
        )
        for name, hours in (("webhooks_oldest", 1), ("holds_overdue", 2), ("entries_awaited", 3)):
            assert hours * 3600 <= await here.metric(f"tallystick_{name}_seconds") < hours * 3600 + 100
        assert await here.metric("tallystick_webhooks_disabled") == 1
        assert "tallystick_prepaid_limits_overdue_seconds 0.0" in (await here.client.get("/metrics")).text


def test_the_readme_lists_all_routes_and_problems() -> None:
    readme = (Path(errors.__file__).parent / "README.md").read_text()
    missing = [code for code in PROBLEMS if f"`{code}`" not in readme]
    assert missing == []
