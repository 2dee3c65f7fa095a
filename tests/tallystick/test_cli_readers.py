"""Readers by command: made with a password that is shown once, listed, and gone."""

import os

import psycopg

from tests.tallystick.commands import Commands


def test_a_reader_is_added_listed_and_removed(with_tenant: Commands) -> None:
    login = f"reader_by_command_{os.getpid()}"
    made = with_tenant.json("readers", "add", login, "--tenant", "acme")
    try:
        assert len(made["password"]) >= 32
        assert with_tenant.ok("readers", "add", login, "--tenant", "acme").out == f"{login} sees acme too\n"
        assert with_tenant.json("readers", "list") == [{"login": login, "tenants": ["acme"]}]
        with psycopg.connect(with_tenant.database.url_for(login)) as reader:
            assert reader.execute("select tenant_id from ledger.own_tenants").fetchall() == [("acme",)]
    finally:
        with_tenant.ok("readers", "remove", login, "--reason", "done")
    assert with_tenant("readers", "remove", login, "--reason", "done").line == f"there is no reader '{login}'"
    assert [act["act"] for act in with_tenant.json("acts", "list", "--act", "readers")] == [
        "readers.remove",
        "readers.add",
        "readers.add",
    ]


def test_a_reader_of_a_tenant_that_is_not_there_is_refused(with_tenant: Commands) -> None:
    assert with_tenant("readers", "add", "reader_x", "--tenant", "acne").line == "there is no tenant 'acne'"


def test_a_reader_needs_an_address_that_may_make_roles(with_tenant: Commands, monkeypatch: object) -> None:
    url = with_tenant.database.url_for("tallystick_operator")
    monkeypatch.delenv("TALLYSTICK_DATABASE_URL")  # type: ignore[attr-defined]
    monkeypatch.setenv("TALLYSTICK_OPERATOR_URL", url)  # type: ignore[attr-defined]
    assert "may make roles" in with_tenant("readers", "add", "reader_x", "--tenant", "acme").line
