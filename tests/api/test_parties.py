"""Administration over HTTP: what the commands do, with an operator's key, and each refusal as a problem."""

from typing import Any

import jsonschema
import pytest

from tests.api.support import Site, bearer, make_key, problem, site
from tests.factories import GATEWAY, make_event
from tests.support.ledger import Ledger

TENANT = {"tenant_id": "t-new", "entity_id": "entity-1", "time_zone": "Asia/Kathmandu", "charge_currency": "EUR"}


class Asking:
    """Somebody with an operator's key."""

    def __init__(self, here: Site, token: str) -> None:
        self._here, self._token = here, token

    async def get(self, path: str, **params: Any) -> Any:
        return await self._here.client.get(path, params=params, headers=bearer(self._token))

    async def post(self, path: str, **body: Any) -> Any:
        return await self._here.client.post(path, json=body, headers=bearer(self._token))


async def test_a_tenant_is_added_changed_and_shown(world: Ledger) -> None:
    token = await make_key(world, "parties:write")
    async with site(world) as here:
        ask = Asking(here, token)
        added = await ask.post("/v1/tenants", **TENANT, starts_at="2026-01-01T00:00:00Z", actor="jane")
        assert added.status_code == 201, added.text
        assert added.json()["tenant"]["starts_at"] == "2026-01-01T00:00:00Z"
        changed = await ask.post("/v1/tenants/t-new", month="2031-01", time_zone="Europe/Berlin", reason="moved")
        assert changed.status_code == 200, changed.text
        assert [each["time_zone"] for each in changed.json()["versions"]] == ["Asia/Kathmandu", "Europe/Berlin"]
        for verb, status in (("suspend", "suspended"), ("resume", "active"), ("leave", "left")):
            turned = await ask.post(f"/v1/tenants/t-new:{verb}", reason="because")
            assert turned.json()["tenant"]["status"] == status, turned.text
        shown = (await ask.get("/v1/tenants/t-new")).json()
    assert [each["act"] for each in shown["history"]] == [
        "tenants.add", "tenants.change", "tenants.status", "tenants.status", "tenants.status",
    ]  # fmt: skip
    # Who acts is the key, and the person that it says it acts for.
    actors = [each["actor"] for each in shown["history"]]
    assert actors[0] == f"jane (key {token[: token.rindex('_')]})"
    assert actors[1] == f"key {token[: token.rindex('_')]}"
    # It has its months at once.
    assert world.value("select count(*) from ledger.periods where tenant_id = 't-new'") > 3


async def test_a_merge_over_http_moves_the_future(world: Ledger) -> None:
    token, gateway = await make_key(world, "parties:write"), await make_key(world, source=GATEWAY)
    async with site(world) as here:
        ask = Asking(here, token)
        merged = await ask.post("/v1/tenants/t-beta:merge", into="t-alpha", at="2026-03-15T00:00:00Z", reason="bought")
        assert merged.json()["tenant"]["merged_into"] == "t-alpha", merged.text
        await here.send(
            make_event("a", tenant_id="t-beta", time="2026-03-14T23:59:59Z"),
            make_event("b", tenant_id="t-beta", time="2026-03-15T00:00:00Z"),
            token=gateway,
        )
        ended = await ask.post("/v1/tenants/t-beta:unmerge", at="2026-03-14T00:00:00Z", reason="not bought")
        assert (ended.status_code, problem(ended)) == (409, "act-refused")
        ended = await ask.post("/v1/tenants/t-beta:unmerge", at="2026-03-16T00:00:00Z", reason="not bought")
        assert ended.json()["tenant"]["unmerged_at"] == "2026-03-16T00:00:00Z"
    assert world.rows("select tenant_id from ledger.entries order by occurred_at") == [("t-beta",), ("t-alpha",)]


async def test_tenants_and_models_come_by_pages(world: Ledger) -> None:
    token = await make_key(world, "parties:write")
    async with site(world) as here:
        ask = Asking(here, token)
        first = (await ask.get("/v1/tenants", limit=1)).json()
        assert ([each["tenant_id"] for each in first["tenants"]], first["next"]) == (["t-alpha"], "t-alpha")
        second = (await ask.get("/v1/tenants", limit=1, after=first["next"])).json()
        assert ([each["tenant_id"] for each in second["tenants"]], second["next"]) == (["t-beta"], None)
        for model in ("m-1", "m-2"):
            made = await ask.post("/v1/models", provider="other", model=model, aliases=[f"{model}-a"])
            assert made.json()["model"]["aliases"] == [f"{model}-a"]
        seen: list[str] = []
        after: str | None = None
        for _ in range(3):
            page = (await ask.get("/v1/models", limit=1, **({"after": after} if after else {}))).json()
            seen += [each["model"] for each in page["models"]]
            after = page["next"]
        assert (seen, after) == (["m-sub", "m-1", "m-2"], None)
        assert [each["model"] for each in (await ask.get("/v1/models", provider="other")).json()["models"]] == [
            "m-1",
            "m-2",
        ]


async def test_sources_are_trusted_and_not_trusted_any_more(world: Ledger) -> None:
    """A change is one transaction: a refusal of its last part leaves nothing of the first."""
    token = await make_key(world, "parties:write")
    async with site(world) as here:
        ask = Asking(here, token)
        made = await ask.post("/v1/sources", source="node://x/1", kind="node", rank=10, tenant_ids=["t-alpha"])
        assert made.status_code == 201, made.text
        changed = await ask.post(
            "/v1/sources:change", source="node://x/1", rank=30, allow=["t-beta"], disallow=["t-alpha"], reason="moved"
        )
        assert (changed.json()["source"]["rank"], changed.json()["source"]["tenant_ids"]) == (30, ["t-beta"])
        refused = await ask.post("/v1/sources:change", source="node://x/1", rank=1, disallow=["t-beta"], reason="r")
        assert (refused.status_code, problem(refused)) == (409, "act-refused")
        nothing = await ask.post("/v1/sources:change", source="node://x/1", reason="r")
        assert (nothing.status_code, problem(nothing)) == (422, "invalid-request")
        ended = await ask.post("/v1/sources:change", source="node://x/1", is_ended=True, reason="gone")
        assert ended.json()["source"]["ended_at"] is not None
        assert ended.json()["source"]["rank"] == 30
        listed = [each["source"] for each in (await ask.get("/v1/sources")).json()["sources"]]
        assert "node://x/1" not in listed
        assert "node://x/1" in (await ask.get("/v1/sources", ended="true")).text
        back = await ask.post("/v1/sources:change", source="node://x/1", is_ended=False, reason="back")
        assert [each["act"].partition(".")[2] for each in back.json()["history"]] == [
            "add", "rank", "allow", "disallow", "end", "resume",
        ]  # fmt: skip


async def test_entities_and_accounts(world: Ledger) -> None:
    token = await make_key(world, "parties:write")
    async with site(world) as here:
        ask = Asking(here, token)
        assert (await ask.post("/v1/entities", entity_id="e-2", name="Two")).json()["entity"]["name"] == "Two"
        again = await ask.post("/v1/entities", entity_id="e-2", name="Two")
        assert (again.status_code, problem(again)) == (409, "already-there")
        assert [each["entity_id"] for each in (await ask.get("/v1/entities")).json()["entities"]] == ["e-2", "entity-1"]
        made = await ask.post(
            "/v1/provider-accounts", provider_account="acc", provider="openai", currency="USD", tenant_id="t-beta"
        )
        assert made.json()["provider_account"]["tenant_id"] == "t-beta"
        assert len((await ask.get("/v1/provider-accounts")).json()["provider_accounts"]) == 1


async def test_names_owners_and_limits_that_were_wrong_are_put_right(world: Ledger) -> None:
    """An entity's name, whose an account is, a model's limit and one of its names: each is an act with its reason."""
    token = await make_key(world, "parties:write")
    async with site(world) as here:
        ask = Asking(here, token)
        named = await ask.post("/v1/entities/entity-1:rename", name="Entity One Ltd", reason="renamed")
        assert named.json()["entity"]["name"] == "Entity One Ltd"
        await ask.post("/v1/provider-accounts", provider_account="acc", provider="openai", currency="USD")
        owned = await ask.post(
            "/v1/provider-accounts:change", provider_account="acc", tenant_id="t-beta", reason="theirs"
        )
        assert owned.json()["provider_account"]["tenant_id"] == "t-beta"
        again = await ask.post(
            "/v1/provider-accounts:change", provider_account="acc", tenant_id="t-beta", reason="theirs"
        )
        assert (again.status_code, problem(again)) == (409, "act-refused")
        ours = await ask.post("/v1/provider-accounts:change", provider_account="acc", is_ours=True, reason="ours")
        assert ours.json()["provider_account"] == {**owned.json()["provider_account"], "tenant_id": None}

        async def set_model(**limits: int | None) -> tuple[int | None, int | None]:
            answer = await ask.post("/v1/models", provider="other", model="m-1", **limits)
            model = answer.json()["model"]
            return model["input_tokens_max"], model["output_tokens_max"]

        assert await set_model(input_tokens_max=100, output_tokens_max=10) == (100, 10)
        assert await set_model() == (100, 10), "what is absent stays"
        assert await set_model(input_tokens_max=None) == (None, 10)
        await ask.post("/v1/models", provider="other", model="m-1", aliases=["m-one"])
        dropped = await ask.post("/v1/models:drop-alias", provider="other", alias="m-one", reason="another model")
        assert dropped.json()["model"]["aliases"] == []
        gone = await ask.post("/v1/models:drop-alias", provider="other", alias="m-one", reason="another model")
        assert (gone.status_code, problem(gone)) == (404, "unknown-name")
    assert world.rows(
        "select act, reason, detail ->> 'before' from ledger.acts"
        " where act in ('entities.rename', 'accounts.change', 'models.drop') order by act_id"
    ) == [
        ("entities.rename", "renamed", None),
        ("accounts.change", "theirs", '{"currency": "USD", "provider": "openai", "tenant_id": null}'),
        ("accounts.change", "ours", '{"currency": "USD", "provider": "openai", "tenant_id": "t-beta"}'),
        ("models.drop", "another model", None),
    ]


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "said"),
    [
        ("/v1/tenants", {**TENANT, "time_zone": "Mars/Phobos"}, 409, "act-refused", "time zone 'Mars/Phobos' is unknown"),
        ("/v1/tenants", {**TENANT, "entity_id": "nobody"}, 404, "unknown-name", "there is no entity 'nobody'"),
        ("/v1/tenants", {**TENANT, "tenant_id": "t-alpha"}, 409, "already-there", "there is a tenant 't-alpha' already"),
        ("/v1/tenants", {**TENANT, "charge_currency": "euro"}, 409, "act-refused", "no code of ISO 4217"),
        ("/v1/tenants", {**TENANT, "zone": "UTC"}, 422, "invalid-request", "zone"),
        ("/v1/tenants", {"tenant_id": "t-new"}, 422, "invalid-request", "entity_id"),
        ("/v1/tenants/nobody", {"month": "2031-01", "name": "N"}, 404, "unknown-name", "there is no tenant 'nobody'"),
        ("/v1/tenants/t-alpha", {"month": "2031-13", "name": "N"}, 422, "invalid-request", "must be a month"),
        ("/v1/tenants/t-alpha", {"month": "2031-01-02", "name": "N"}, 422, "invalid-request", "month"),
        ("/v1/tenants/t-alpha", {"month": "0001-01", "name": "N"}, 422, "invalid-request", "month must be between the years 2000 and 2200"),
        ("/v1/tenants", {**TENANT, "starts_at": "1999-12-31T23:59:59Z"}, 422, "invalid-request", "starts_at must be between the years"),
        ("/v1/tenants", {**TENANT, "starts_at": "9999-12-31T23:59:59-14:00"}, 422, "invalid-request", "starts_at must be between the years"),
        ("/v1/tenants/t-alpha:merge", {"into": "t-beta", "reason": "r", "at": "0001-01-01T00:00:00+14:00"}, 422, "invalid-request", "at must be"),
        ("/v1/tenants", {**TENANT, "entity_id": "a\0"}, 422, "invalid-request", "entity_id must not hold a zero byte"),
        ("/v1/entities", {"entity_id": "e", "name": "\0"}, 422, "invalid-request", "name must not hold a zero byte"),
        ("/v1/models", {"provider": "p", "model": "m", "aliases": ["a", "\0"]}, 422, "invalid-request", "aliases[1] must not hold a zero byte"),
        ("/v1/tenants/t-alpha:suspend", {"reason": "r", "actor": "a\0"}, 422, "invalid-request", "actor must not hold a zero byte"),
        ("/v1/tenants/t-alpha", {"month": "2031-01"}, 409, "act-refused", "nothing to change"),
        ("/v1/tenants/t-alpha:suspend", {}, 422, "invalid-request", "reason"),
        ("/v1/tenants/t-alpha:leave", {"reason": "r", "at": "2026-01-01"}, 422, "invalid-request", "at"),
        ("/v1/tenants/t-alpha:merge", {"into": "t-alpha", "reason": "r"}, 409, "act-refused", "into itself"),
        ("/v1/sources", {"source": "s", "kind": "gateway", "rank": 1}, 409, "act-refused", "say which"),
        ("/v1/sources", {"source": "s", "kind": "robot", "rank": 1}, 422, "invalid-request", "kind"),
        ("/v1/sources:change", {"source": "nobody", "rank": 1, "reason": "r"}, 404, "unknown-name", "no source"),
        ("/v1/entities/nobody:rename", {"name": "N"}, 404, "unknown-name", "there is no entity 'nobody'"),
        ("/v1/provider-accounts:change", {"provider_account": "x", "reason": "r"}, 404, "unknown-name", "provider account 'x'"),
        ("/v1/models", {"provider": "p", "model": "m", "input_tokens_max": 0}, 422, "invalid-request", "input_tokens_max"),
    ],
)  # fmt: skip
async def test_each_refusal_is_a_problem_that_names_the_rule(
    world: Ledger, path: str, body: dict[str, Any], status: int, code: str, said: str
) -> None:
    before = world.rows("select * from ledger.versions")
    token = await make_key(world, "parties:write")
    async with site(world) as here:
        answer = await Asking(here, token).post(path, **body)
    assert (answer.status_code, problem(answer)) == (status, code)
    assert said in answer.text
    assert world.rows("select * from ledger.versions") == before, "nothing was changed"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/tenants"), ("POST", "/v1/tenants"), ("GET", "/v1/tenants/t-alpha"), ("POST", "/v1/tenants/t-alpha"),
        ("POST", "/v1/tenants/t-alpha:merge"), ("GET", "/v1/entities"), ("POST", "/v1/sources:change"), ("GET", "/v1/models"),
        ("GET", "/v1/periods?month=2026-01"), ("POST", "/v1/periods:close"), ("POST", "/v1/periods:reopen"),
        ("GET", "/v1/periods/t-alpha/2026-01"),
    ],
)  # fmt: skip
async def test_only_an_operators_key_with_the_scope_administers(world: Ledger, method: str, path: str) -> None:
    """What a key may do is looked at before what it asks for: a broken body is told to nobody else."""
    tokens = [await make_key(world, tenant_id="t-alpha"), await make_key(world, source=GATEWAY)]
    tokens.append(await make_key(world, "usage:read"))
    async with site(world) as here:
        for token in tokens:
            answer = await here.client.request(method, path, headers=bearer(token), content=b"{")
            assert (answer.status_code, problem(answer)) == (403, "scope-missing")
        answer = await here.client.request(method, path, content=b"{")
        assert (answer.status_code, problem(answer)) == (401, "unauthenticated")


async def test_a_replica_without_an_operator_says_so(world: Ledger) -> None:
    token = await make_key(world, "parties:write")
    async with site(world, operator_url=None) as here:
        answer = await Asking(here, token).get("/v1/tenants")
    assert (answer.status_code, problem(answer)) == (503, "no-administration")


async def test_answers_fit_the_document(world: Ledger) -> None:
    token = await make_key(world, "parties:write", "periods:write")
    async with site(world) as here:
        ask = Asking(here, token)
        told = (await here.client.get("/openapi.json")).json()
        answers = {
            "TenantReply": await ask.get("/v1/tenants/t-alpha"),
            "TenantsReply": await ask.get("/v1/tenants"),
            "EntitiesReply": await ask.get("/v1/entities"),
            "SourcesReply": await ask.get("/v1/sources"),
            "SourceReply": await ask.post("/v1/sources:change", source=GATEWAY, rank=21, reason="r"),
            "AccountsReply": await ask.get("/v1/provider-accounts"),
            "ModelsReply": await ask.get("/v1/models"),
            "PeriodsReply": await ask.get("/v1/periods", tenant_id="t-alpha"),
            "CloseReply": await ask.post("/v1/periods:close", month="2026-01", everybody=True, commit=True),
            "PeriodReply": await ask.get("/v1/periods/t-alpha/2026-01"),
            "ReopenReply": await ask.post("/v1/periods:reopen", tenant_id="t-alpha", month="2026-01", reason="r"),
        }
    for name, answer in answers.items():
        assert answer.status_code == 200, answer.text
        jsonschema.validate(answer.json(), {"$ref": f"#/components/schemas/{name}", "components": told["components"]})
