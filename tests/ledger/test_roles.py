"""Rights: nobody of the running system can change facts, and readers see their own tenants."""

import psycopg
import pytest

from migrations.run import ROLES
from tests.factories import make_event
from tests.support.databases import Database
from tests.support.ledger import Ledger

RUNNING = sorted(ROLES)
FACTS = ("entries", "event_keys", "batches", "batch_digests", "rate_sets", "rates", "cards", "acts", "raw_usage")
# Names say what a row of the ledger means for ever: its partitions too.
LEAVES = """
    select c.oid::regclass::text
    from pg_inherits as i
    join pg_class as c on c.oid = i.inhrelid
    where i.inhparent in ('ledger.entries'::regclass, 'ledger.raw_usage'::regclass)
"""


async def posted(ledger: Ledger) -> None:
    ledger.add_tenant("t-beta")
    await ledger.add_price(input="2.00", output="8.00")
    await ledger.post(make_event("e1"), make_event("e2", tenant_id="t-beta"))


@pytest.mark.parametrize("role", RUNNING)
def test_no_running_role_may_change_facts(database: Database, role: str) -> None:
    with database.connect() as connection:
        for table in FACTS:
            rights = connection.execute(
                "select p from unnest('{update,delete,truncate}'::text[]) as p where has_table_privilege(%s, %s, p)",
                [role, f"ledger.{table}"],
            ).fetchall()
            assert rights == [], f"{role} on {table}"
            columns = connection.execute("select has_any_column_privilege(%s, %s, 'update')", [role, f"ledger.{table}"])
            assert columns.fetchone() == (False,), f"{role} on columns of {table}"


def test_only_the_writer_adds_entries(database: Database) -> None:
    with database.connect() as connection:
        rows = connection.execute(
            "select rolname::text from pg_roles where rolname = any(%s) and has_table_privilege(oid, 'ledger.entries', 'insert')",
            [RUNNING],
        ).fetchall()
    assert rows == [("tallystick_writer",)]


def test_nobody_has_rights_on_partitions(database: Database) -> None:
    """They inherit no policies, so that whoever could read one would read every tenant's rows."""
    with database.connect() as connection:
        connection.execute("select ledger.make_partitions(date '2031-05-01')")
        rights = connection.execute(
            f"select r, l, p from unnest(%s::text[]) as r cross join ({LEAVES}) as leaves (l)"
            " cross join unnest('{select,insert,update,delete,truncate}'::text[]) as p where has_table_privilege(r, l, p)",
            [RUNNING],
        ).fetchall()
    assert rights == []


def test_every_role_that_may_read_entries_has_a_policy(database: Database) -> None:
    """Without one it would see nothing, in silence; the writer passes row-level security, which COPY refuses to run under."""
    with database.connect() as connection:
        readers = connection.execute(
            "select rolname::text from pg_roles where not rolsuper and not rolbypassrls and rolname like 'tallystick%%'"
            " and rolname <> 'tallystick_owner' and has_any_column_privilege(oid, 'ledger.entries', 'select')"
        ).fetchall()
        policies = connection.execute(
            "select distinct unnest(roles)::text from pg_policies where schemaname = 'ledger' and tablename = 'entries'"
        ).fetchall()
    assert {role for (role,) in readers} == {role for (role,) in policies}
    assert len(readers) >= 5


async def test_each_policy_shows_what_it_should(ledger: Ledger) -> None:
    await posted(ledger)
    for role in ("analyst", "billing", "api", "operator", "rollup"):
        with ledger.database.connect(f"tallystick_{role}") as connection:
            assert connection.execute("select count(*) from ledger.entries").fetchone() == (2,), role


@pytest.mark.parametrize(
    "statement",
    [
        "update ledger.entries set charge_amount = 0",
        "delete from ledger.entries",
        "truncate ledger.entries",
        "update {leaf} set charge_amount = 0",
        "delete from {leaf}",
        "truncate {leaf}",
        "update ledger.event_keys set content_hash = gen_random_uuid()",
        "delete from ledger.batches",
        "truncate ledger.batches cascade",
        "update ledger.batch_digests set row_count = 0",
        "update ledger.rates set price = 0",
        "delete from ledger.rate_sets",
        "update ledger.cards set currency = 'EUR'",
        "delete from ledger.acts",
        "truncate ledger.acts",
    ],
)
async def test_a_trigger_stops_even_a_superuser(ledger: Ledger, statement: str) -> None:
    await posted(ledger)
    ledger.superuser.execute("insert into ledger.acts (actor, act, detail) values ('a', 'b', '{}')")
    leaf = ledger.value("select tableoid::regclass::text from ledger.entries limit 1")
    with pytest.raises(psycopg.Error) as stopped:
        ledger.superuser.execute(statement.format(leaf=leaf).encode())
    assert stopped.value.sqlstate == "TS002"
    assert ledger.value("select count(*) from ledger.entries") == 2


def test_functions_with_the_owners_rights_are_closed_and_fix_their_path(database: Database) -> None:
    """A caller's search_path must not choose what such a function calls, and not everybody may call it."""
    with database.connect() as connection:
        rows = connection.execute(
            """
            select p.oid::regprocedure::text, coalesce(array_to_string(p.proconfig, ' '), ''), p.prorettype = 'trigger'::regtype,
                exists (select from aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) as a where a.grantee = 0)
            from pg_proc as p
            where p.prosecdef and p.pronamespace in ('ledger'::regnamespace, 'quotas'::regnamespace, 'billing'::regnamespace)
            """
        ).fetchall()
    assert len(rows) >= 4
    for name, settings, is_trigger, is_public in rows:
        assert "search_path=pg_catalog, pg_temp" in settings, name
        assert is_trigger or not is_public, name


@pytest.mark.parametrize("role", RUNNING)
def test_no_running_role_moves_windows_itself(database: Database, role: str) -> None:
    """What a budget has posted is moved by the insert into the ledger; a new budget's windows are folded from it."""
    with database.connect() as connection:
        row = connection.execute(
            "select has_any_column_privilege(%(role)s, 'quotas.windows', 'update')"
            " or has_table_privilege(%(role)s, 'quotas.windows', 'delete')",
            {"role": role},
        ).fetchone()
    assert row == (False,)


def test_only_who_needs_them_reads_the_hashes_of_keys(database: Database) -> None:
    with database.connect() as connection:
        rows = connection.execute(
            "select r from unnest(%s::text[]) as r where has_column_privilege(r, 'ledger.api_keys', 'secret_hash', 'select')",
            [RUNNING],
        ).fetchall()
    assert rows == [("tallystick_api",), ("tallystick_operator",)]


def test_the_analyst_reads_no_secrets(database: Database) -> None:
    with database.connect("tallystick_analyst", autocommit=True) as analyst:
        for table in ("ledger.subjects", "ledger.api_keys", "ledger.raw_usage", "ledger.acts"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                analyst.execute(f"select * from {table}".encode())
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            analyst.execute("select bytes from ledger.dead_letters")
        analyst.execute("select reason, detail from ledger.dead_letters")


def test_a_view_runs_with_the_rights_of_whoever_asks_or_is_a_readers(database: Database) -> None:
    """A view with the owner's rights passes row-level security: only those that sift by login themselves may."""
    with database.connect() as connection:
        rows = connection.execute(
            "select c.oid::regclass::text, coalesce(c.reloptions, '{}')::text[] from pg_class as c"
            " where c.relnamespace in ('ledger'::regnamespace, 'quotas'::regnamespace, 'billing'::regnamespace) and c.relkind = 'v'"
        ).fetchall()
    assert len(rows) >= 4
    for name, options in rows:
        wanted = "security_barrier=true" if name.partition(".")[2].startswith("own_") else "security_invoker=true"
        assert wanted in options, name
