"""Where Postgres is for each role: said, derived, or embedded."""

import hmac
from hashlib import sha256
from pathlib import Path
from typing import Any

import psycopg
import pytest

from migrations import run
from migrations.run import migrate
from tallystick.addresses import BadAddress, NoAddress, addresses, configured
from tallystick.roles import ROLES
from tallystick.settings import Settings
from tests.support.databases import Database


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DATABASE", "WRITER", "API", "OPERATOR", "ANALYST", "ROLLUP"):
        monkeypatch.delenv(f"TALLYSTICK_{name}_URL", raising=False)


def made(**values: Any) -> Settings:
    return Settings(**values)


def test_one_address_is_enough() -> None:
    found = configured(made(database_url="postgresql://post%40gres:s3cr%3At@db:5433/tally?sslmode=require"))
    assert found is not None
    assert found.owner == "postgresql://post%40gres:s3cr%3At@db:5433/tally?sslmode=require"
    password = hmac.new(b"s3cr:t", b"tallystick_api", sha256).hexdigest()
    assert found.url_for("tallystick_api") == f"postgresql://tallystick_api:{password}@db:5433/tally?sslmode=require"
    assert set(found.passwords) == set(ROLES)
    assert set(ROLES) == {role for role, rights in run.ROLES.items() if rights.startswith("login")}
    assert len(set(found.passwords.values())) == len(ROLES), "each role has a password of its own"


def test_an_address_without_a_password_gives_none() -> None:
    found = configured(made(database_url="postgres://postgres@/tally?host=/run/postgres"))
    assert found is not None
    assert found.url_for("tallystick_rollup") == "postgresql://tallystick_rollup@/tally?host=/run/postgres"
    assert found.passwords == {}


def test_an_explicit_address_wins_and_is_what_migrate_sets() -> None:
    found = configured(
        made(
            database_url="postgresql+psycopg://postgres:a@db/tally",
            api_url="postgresql://tallystick_api:b@replica/tally",
            analyst_url="postgresql://somebody:c@db/tally",
        )
    )
    assert found is not None
    assert found.owner == "postgresql://postgres:a@db/tally"
    assert found.url_for("tallystick_api") == "postgresql://tallystick_api:b@replica/tally"
    assert found.passwords["tallystick_api"] == "b"
    assert "tallystick_analyst" not in found.passwords, "that login is not ours to set"


def test_without_the_owners_address_only_what_is_said_is_there() -> None:
    found = configured(made(writer_url="postgresql://tallystick_writer@db/tally"))
    assert found is not None
    assert found.owner is None
    with pytest.raises(NoAddress, match="set TALLYSTICK_API_URL or TALLYSTICK_DATABASE_URL"):
        found.url_for("tallystick_api")


@pytest.mark.parametrize("text", ["", "db:5432", "mysql://x:hush@db/y", "host=db password=hush"])
def test_what_is_no_address_is_refused_without_being_repeated(text: str) -> None:
    with pytest.raises(BadAddress) as refused:
        configured(made(operator_url=text))
    assert "TALLYSTICK_OPERATOR_URL" in str(refused.value)
    assert "hush" not in str(refused.value)


def test_no_secret_is_in_the_text_of_the_addresses() -> None:
    found = configured(made(database_url="postgresql://postgres:hush@db/tally"))
    assert "hush" not in repr(found)


def test_migrate_sets_the_passwords_that_the_addresses_have(empty_database: Database) -> None:
    migrate(empty_database.url, {"tallystick_api": "it's \\ odd"})
    with empty_database.connect() as connection:
        stored = connection.execute("select rolpassword from pg_authid where rolname = 'tallystick_api'").fetchone()
        assert stored is not None
        assert stored[0].startswith("SCRAM-SHA-256$")
        connection.execute("alter role tallystick_api password null")


def test_with_nothing_set_the_embedded_server_is_run(tmp_path: Path) -> None:
    with addresses(made(home=tmp_path)) as found:
        assert found.owner is not None
        with psycopg.connect(found.owner) as connection:
            assert connection.execute("select current_database()").fetchone() == ("tallystick",)
        assert "tallystick_writer@" in found.url_for("tallystick_writer")
