"""API keys: shown once, kept as a hash, noticed as revoked within seconds, never told."""

import asyncio
import logging
from hashlib import sha256

import pytest

from api.errors import Unauthenticated
from api.keys import KeyRing
from ledger.api_keys import ApiKey, create_key, find_keys, is_secret_of, list_keys, revoke_key, split_token
from ledger.database import connect
from ledger.errors import ActRefused, Unknown
from tests.api.support import bearer, make_key, problem, revoke, site
from tests.factories import GATEWAY
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
        key = await ring.identify(f"Bearer {token}")
        assert (key.tenant_id, key.source, key.may_read("t-beta"), key.may_read("t-alpha")) == (
            None, "gateway://beta", True, False,
        )  # fmt: skip
        changed = token[:-1] + ("0" if token[-1] != "0" else "1")
        for wrong in (changed, f"tsk_{'0' * 12}_{'0' * 64}", token[:-1], ""):
            with pytest.raises(Unauthenticated):
                await ring.identify(f"Bearer {wrong}")
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
        for tenant_id, source in [(None, None), ("t-alpha", GATEWAY)]:
            with pytest.raises(ActRefused, match="one tenant or to one source"):
                await create_key(connection, actor="a", tenant_id=tenant_id, source=source)
        with pytest.raises(Unknown):
            await revoke_key(connection, "tsk_000000000000", actor="a")
        made = await create_key(connection, actor="a", tenant_id="t-alpha", note="laptop")
        await revoke_key(connection, made.key_id, actor="a")
        (listed,) = await list_keys(connection, tenant_id="t-alpha")
        assert (listed.key_id, listed.note, listed.revoked_at is not None) == (made.key_id, "laptop", True)
    assert made.token not in repr(made)


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
