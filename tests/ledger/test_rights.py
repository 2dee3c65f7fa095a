"""What each role may and may not do: the pages say it, the catalogue has it, and logging in shows it."""

import os
from pathlib import Path

import psycopg
import pytest

from migrations.run import LIMITS, ROLES
from tests.support.databases import Database
from tests.support.rights import rights_of

CHECKOUT = Path(__file__).parent.parent.parent
_MARK = "<!-- from here on as the catalogue has it: `make rights` writes it -->\n"


@pytest.mark.parametrize("room", ["ledger", "quotas", "billing"])
def test_the_page_of_rights_says_what_the_catalogue_has(database: Database, room: str) -> None:
    """Whoever adds a table or a grant changes the page with it, so that a reviewer reads who may do what."""
    page = CHECKOUT / room / "rights.md"
    with database.connect() as connection:
        found = rights_of(connection, room)
    before, mark, said = page.read_text().partition(_MARK)
    assert mark
    if os.environ.get("TALLYSTICK_WRITE_RIGHTS"):
        page.write_text(f"{before}{_MARK}\n{found}")
        return
    assert said.strip() == found.strip(), f"{room}/rights.md is not what the catalogue has: `make rights` writes it"


def test_the_columns_of_views_change_on_purpose_only(database: Database) -> None:
    """Queries, sheets and programs of others stand on them: names and types are a contract, kept in views.txt."""
    with database.connect() as connection:
        rows = connection.execute(
            "select c.oid::regclass || ' ' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod)"
            " from pg_class as c join pg_attribute as a on a.attrelid = c.oid and a.attnum > 0"
            " where c.relnamespace in ('ledger'::regnamespace, 'quotas'::regnamespace, 'billing'::regnamespace) and c.relkind = 'v'"
            " order by c.oid::regclass::text, a.attnum"
        ).fetchall()
    found = "".join(f"{line}\n" for (line,) in rows)
    golden = Path(__file__).parent / "views.txt"
    if os.environ.get("TALLYSTICK_WRITE_RIGHTS"):
        golden.write_text(found)
        return
    assert golden.read_text() == found, "a view has other columns: `make rights` writes tests/ledger/views.txt"


@pytest.mark.parametrize("role", sorted(LIMITS))
def test_each_role_logs_in_with_its_limits(database: Database, role: str) -> None:
    with database.connect(role) as connection:
        assert connection.execute("select session_user::text").fetchone() == (role,)
        for name, value in LIMITS[role].items():
            assert connection.execute("select current_setting(%s)", [name]).fetchone() == (value,), name


def test_every_role_that_logs_in_has_limits() -> None:
    assert set(LIMITS) == {role for role, attributes in ROLES.items() if "nologin" not in attributes}
    assert all(
        "idle_in_transaction_session_timeout" in limits and "lock_timeout" in limits for limits in LIMITS.values()
    )


def test_a_statement_that_takes_too_long_ends(database: Database) -> None:
    with database.connect("tallystick_analyst", autocommit=True) as analyst:
        analyst.execute("set statement_timeout = '50ms'")
        with pytest.raises(psycopg.errors.QueryCanceled):
            analyst.execute("select pg_sleep(10)")


def test_only_a_superuser_lifts_the_limit_of_temporary_files(database: Database) -> None:
    with database.connect("tallystick_analyst") as analyst, pytest.raises(psycopg.errors.InsufficientPrivilege):
        analyst.execute("set temp_file_limit = -1")


def test_a_limit_that_an_administrator_set_stays(database: Database) -> None:
    from migrations import run

    with database.connect(autocommit=True) as superuser:
        try:
            superuser.execute("alter role tallystick_analyst set statement_timeout = '7min'")
            run.migrate(database.url)
            with database.connect("tallystick_analyst") as analyst:
                assert analyst.execute("select current_setting('statement_timeout')").fetchone() == ("7min",)
        finally:
            superuser.execute("alter role tallystick_analyst set statement_timeout = '10min'")


@pytest.mark.parametrize("role", sorted(role for role in LIMITS if role != "tallystick_rollup"))
def test_no_role_but_the_rollup_makes_tables(database: Database, role: str) -> None:
    with database.connect(role, autocommit=True) as connection:
        for schema in ("public", "ledger", "quotas", "billing", "marts"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(f"create table {schema}.mine (x int)".encode())


def test_the_bytes_of_dead_letters_have_a_role_of_their_own(database: Database) -> None:
    """The operator is a member of it until an administrator takes that back, which a migration does not undo."""
    from migrations import run

    asked = "select ledger.dead_letter_bytes(1)"
    with (
        database.connect(autocommit=True) as superuser,
        database.connect("tallystick_operator", autocommit=True) as operator,
    ):
        assert operator.execute(asked).fetchone() == (None,)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            operator.execute("select bytes from ledger.dead_letters")
        superuser.execute("revoke tallystick_letters from tallystick_operator")
        try:
            run.migrate(database.url)
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                operator.execute(asked)
            operator.execute("select ledger.dead_letter_size(1)")
        finally:
            superuser.execute("grant tallystick_letters to tallystick_operator")
