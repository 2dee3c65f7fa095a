"""API keys: shown once, kept as a hash, noticed as revoked within seconds, never told."""

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

import psycopg
import pytest

from api.errors import Unauthenticated
from api.keys import KeyRing
from ledger.api_keys import ApiKey, create_key, find_keys, is_secret_of, list_keys, revoke_key, show_key, split_token
from ledger.database import connect
from ledger.errors import ActRefused, Unknown
from tests.api.support import Site, bearer, make_key, outcomes, problem, revoke, site
from tests.factories import GATEWAY, make_event
from tests.support.ledger import Ledger


async def test_a_key_is_kept_as_the_hash_of_its_secret(world: Ledger) -> None:
    token = await make_key(world, tenant_id="t-alpha")
    key_id, _, secret = token.rpartition("_")
    stored_id, stored_hash = world.rows("select key_id, secret_hash from ledger.api_keys")[0]
    assert (stored_id, bytes(stored_hash)) == (key_id, sha256(secret.encode()).digest())
    assert secret not in str(world.rows("select * from ledger.api_keys")) + str(world.rows("select * from ledger.acts"))


async def test_a_token_is_verified_whole(world: Ledger) -> None:
    token = await make_key(world, source="gateway://beta")
    async with await connect(world.database.url_for("tallystick_api")) as connection:

        async def find(key_id: str) -> ApiKey | None:
            return (await find_keys(connection, [key_id])).get(key_id)

        ring = KeyRing(find, seconds=3.0)
        key = await ring.identify(f"Bearer {token}", "budgets:read")
        assert (key.tenant_id, key.source, key.may_read("t-beta"), key.may_read("t-alpha")) == (
            None, "gateway://beta", True, False,
        )  # fmt: skip
        changed = token[:-1] + ("0" if token[-1] != "0" else "1")
        for wrong in (changed, f"tsk_{'0' * 12}_{'0' * 64}", token[:-1], ""):
            with pytest.raises(Unauthenticated):
                await ring.identify(f"Bearer {wrong}", "budgets:read")
        assert not is_secret_of("", key)


@pytest.mark.parametrize("token", ["", "tsk_", "x" * 81, f"tsk_{'0' * 12}-{'0' * 64}", f"tsk_{'0' * 12}_{'0' * 63}é"])
def test_what_is_no_token_is_not_looked_up(token: str) -> None:
    assert split_token(token) is None


async def test_keys_belong_to_somebody_who_is_there(world: Ledger) -> None:
    async with await connect(world.database.url_for("tallystick_operator")) as connection:
        with pytest.raises(Unknown, match="no tenant 't-nobody'"):
            await create_key(connection, actor="a", tenant_id="t-nobody")
        with pytest.raises(Unknown, match="no source 'x'"):
            await create_key(connection, actor="a", source="x")
        for tenant_id, source, is_operators in [
            (None, None, False),
            ("t-alpha", GATEWAY, False),
            ("t-alpha", None, True),
        ]:
            with pytest.raises(ActRefused, match="one tenant, to one source, or to an operator"):
                await create_key(connection, actor="a", tenant_id=tenant_id, source=source, is_operators=is_operators)
        with pytest.raises(Unknown):
            await revoke_key(connection, "tsk_000000000000", actor="a")
        made = await create_key(connection, actor="a", tenant_id="t-alpha", note="laptop")
        await revoke_key(connection, made.key_id, actor="a")
        (listed,) = await list_keys(connection, tenant_id="t-alpha")
        assert (listed.key_id, listed.note, listed.revoked_at is not None) == (made.key_id, "laptop", True)
    assert made.token not in repr(made)


@pytest.mark.parametrize(
    ("owner", "scopes", "rule"),
    [
        ({"tenant_id": "t-alpha"}, ["events:read"], "scope: there is none named 'events:read'"),
        ({"is_operators": True}, [], "name at least one"),
        ({"tenant_id": "t-alpha"}, ["grants:write"], "only an operator's key may have it"),
        ({"source": GATEWAY}, ["events:write", "parties:write"], "only an operator's key may have it"),
    ],
)
async def test_scopes_are_known_and_those_that_administer_are_operators_alone(
    world: Ledger, owner: dict[str, Any], scopes: list[str], rule: str
) -> None:
    async with await connect(world.database.url_for("tallystick_operator")) as connection:
        with pytest.raises(ActRefused, match=rule):
            await create_key(connection, actor="a", scopes=scopes, **owner)
        # Nor past the function that says so.
        if scopes:
            with pytest.raises(psycopg.errors.CheckViolation):
                await connection.execute(
                    "insert into ledger.api_keys (key_id, secret_hash, tenant_id, source, scopes)"
                    " values ('tsk_x', '', %s, %s, %s)",
                    [owner.get("tenant_id"), owner.get("source"), scopes],
                )


async def test_the_order_of_scopes_and_their_defaults(world: Ledger) -> None:
    async with await connect(world.database.url_for("tallystick_operator")) as connection:
        plain = await create_key(connection, actor="a", tenant_id="t-alpha")
        chosen = await create_key(connection, actor="a", is_operators=True, scopes=["periods:write", "budgets:read"])
        assert plain.scopes == ("events:write", "budgets:read", "reservations:write", "usage:read", "invoices:read")
        assert chosen.scopes == (await show_key(connection, chosen.key_id)).scopes == ("budgets:read", "periods:write")
        with pytest.raises(Unknown, match="no key 'tsk_none'"):
            await show_key(connection, "tsk_none")


async def test_each_route_needs_its_scope(world: Ledger) -> None:
    token = await make_key(world, "events:write", tenant_id="t-alpha")
    reader = await make_key(world, "budgets:read", tenant_id="t-alpha")
    async with site(world) as here:
        for path in ("/v1/budgets", "/v1/tenants/t-alpha/budgets", "/v1/tenants/t-nobody/budgets"):
            answer = await here.client.get(path, headers=bearer(token))
            assert (answer.status_code, problem(answer)) == (403, "scope-missing")
            assert answer.json()["scope"] == "budgets:read"
        assert outcomes(await here.send(make_event(), token=token)) == ["created"]
        assert problem(await here.send(make_event(), token=reader)) == "scope-missing"


async def test_an_operators_key_reads_every_tenant_and_speaks_for_none(world: Ledger) -> None:
    token = await make_key(world, "budgets:read", "events:write")
    async with site(world) as here:
        for tenant_id in ("t-alpha", "t-beta"):
            assert (await here.budgets(tenant_id, token)).status_code == 200
        listed = (await here.client.get("/v1/budgets", headers=bearer(token))).json()["tenants"]
        assert [tenant["tenant_id"] for tenant in listed] == ["t-alpha", "t-beta"]
        # The event's own source is held to the tenants that it may speak for.
        sent = await here.send(make_event("ev-1"), make_event("ev-2", source="gateway://beta"), token=token)
        assert outcomes(sent) == ["created", "dead_letter"]


HEADERS = ["", "Bearer", "Bearer ", "Basic dXNlcjpwYXNz", "Bearer tsk_nope", f"Bearer tsk_{'0' * 12}_{'0' * 64}"]
PATHS = [
    "/v1/budgets",
    "/v1/tenants/t-alpha/budgets",
    "/v1/tenants/t-nobody/budgets",
    "/v1/tenants/t-alpha/budgets?at=x",
]


async def test_without_a_key_nothing_is_told(world: Ledger) -> None:
    async with site(world) as here:
        for path in PATHS:
            for headers in [{}, *({"authorization": header} for header in HEADERS)]:
                answer = await here.client.get(path, headers=headers)
                assert (answer.status_code, problem(answer)) == (401, "unauthenticated"), (path, headers)
                assert answer.headers["www-authenticate"].startswith("Bearer")
                assert "t-alpha" not in answer.text


async def test_a_revoked_key_is_refused_within_its_seconds(world: Ledger) -> None:
    token = await make_key(world, tenant_id="t-alpha")
    async with site(world, key_seconds=0.2) as here:
        assert (await here.budgets("t-alpha", token)).status_code == 200
        await revoke(world, token)
        await asyncio.sleep(0.25)
        assert problem(await here.budgets("t-alpha", token)) == "unauthenticated"


async def test_a_revocation_is_heard_and_not_waited_for(world: Ledger) -> None:
    """The keys are remembered for an hour here: what ends them is the word at the commit."""
    mine, others = [await make_key(world, tenant_id=tenant_id) for tenant_id in ("t-alpha", "t-beta")]
    of_source = await make_key(world, source="gateway://beta")
    async with site(world, key_seconds=3600) as here:
        await listening(world)
        for token, tenant_id in ((mine, "t-alpha"), (others, "t-beta"), (of_source, "t-beta")):
            assert (await here.budgets(tenant_id, token)).status_code == 200
        await revoke(world, mine)
        assert await becomes(here, "t-alpha", mine, 401)
        assert (await here.budgets("t-beta", others)).status_code == 200
        # By hand, past every function of ours.
        world.superuser.execute("delete from ledger.source_tenants where source = 'gateway://beta'")
        assert await becomes(here, "t-beta", of_source, 404)
        # The word does not come through while nobody listens; it is made good on the next connection.
        world.superuser.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where query = 'listen tallystick_keys'"
        )
        await revoke(world, others)
        assert await becomes(here, "t-beta", others, 401)


async def becomes(here: Site, tenant_id: str, token: str, status: int) -> bool:
    """Ask until the answer is the one expected, for a second at most."""
    for _ in range(100):
        if (await here.budgets(tenant_id, token)).status_code == status:
            return True
        await asyncio.sleep(0.01)
    return False


async def listening(world: Ledger) -> None:
    async with asyncio.timeout(10):
        while not world.value("select count(*) from pg_stat_activity where query = 'listen tallystick_keys'"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_key_that_is_read_while_another_is_revoked_is_not_remembered(world: Ledger) -> None:
    """Nobody knows whether what was read is from before or after."""
    token = await make_key(world, tenant_id="t-alpha")
    key = ApiKey(token[:16], sha256(token[17:].encode()).digest(), "t-alpha", None, scopes=frozenset({"budgets:read"}))
    asked = 0

    async def find(key_id: str) -> ApiKey | None:
        nonlocal asked
        asked += 1
        if asked == 1:
            ring.forget()
        return key

    ring = KeyRing(find, seconds=3600)
    for expected in (1, 2, 2):
        await ring.identify(f"Bearer {token}", "budgets:read")
        assert asked == expected


async def test_a_key_ends_at_its_time_by_the_databases_clock_however_long_it_is_remembered(world: Ledger) -> None:
    async with await connect(world.database.url_for("tallystick_operator")) as connection:
        with pytest.raises(ActRefused, match="expires: must be in the future"):
            await create_key(connection, actor="a", tenant_id="t-alpha", expires_at=datetime.now(UTC))
        made = await create_key(
            connection, actor="a", tenant_id="t-alpha", expires_at=datetime.now(UTC) + timedelta(seconds=0.5)
        )
        assert (await show_key(connection, made.key_id)).is_in_force
        async with site(world, key_seconds=3600) as here:
            assert (await here.budgets("t-alpha", made.token)).status_code == 200
            await asyncio.sleep(0.55)
            assert problem(await here.budgets("t-alpha", made.token)) == "unauthenticated"
        assert not (await show_key(connection, made.key_id)).is_in_force


async def test_the_last_use_is_written_beside_the_requests(world: Ledger) -> None:
    used, unused = [await make_key(world, tenant_id="t-alpha") for _ in range(2)]
    async with site(world) as here:
        for _ in range(3):
            await here.budgets("t-alpha", used)
        await here.budgets("t-alpha", unused[:-1] + ("0" if unused[-1] != "0" else "1"))
        assert world.value("select count(last_used_at) from ledger.api_keys") == 0
        await here.app.state.services.key_watch.note()
        seen = dict(world.rows("select key_id, last_used_at is not null from ledger.api_keys"))
    assert seen == {used.rpartition("_")[0]: True, unused.rpartition("_")[0]: False}


async def test_the_key_of_a_source_that_ended_is_refused(world: Ledger) -> None:
    token = await make_key(world, source="gateway://beta")
    world.superuser.execute("update ledger.sources set ended_at = now() where source = 'gateway://beta'")
    async with site(world) as here:
        assert problem(await here.budgets("t-beta", token)) == "unauthenticated"


async def test_a_key_is_in_no_log_line(world: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    token = await make_key(world, tenant_id="t-alpha")
    wrong = token[:-4] + "beef"
    caplog.set_level(logging.DEBUG)
    async with site(world) as here:
        await here.budgets("t-alpha", token)
        await here.budgets("t-alpha", wrong)
        await here.client.get("/v1/tenants/t-alpha/budgets?at=no", headers=bearer(token))
    assert token.rpartition("_")[2] not in caplog.text
    assert wrong.rpartition("_")[2] not in caplog.text
