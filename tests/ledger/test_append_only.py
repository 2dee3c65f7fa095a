"""Can any running role change, delete or hide a fact? Each thing that was tried, and what stopped it."""

import contextlib

import psycopg
import pytest

from migrations.run import ROLES
from tests.factories import make_event
from tests.support.databases import Database
from tests.support.ledger import Ledger

LOGINS = sorted(role for role, attributes in ROLES.items() if "nologin" not in attributes)

TRIED = {
    "switch the triggers off": "set session_replication_role = replica",
    "switch them off for one's logins": "alter role current_user set session_replication_role = replica",
    "switch one off": "alter table ledger.entries disable trigger all",
    "switch one off on a leaf": "alter table {leaf} disable trigger all",
    "drop one": "drop trigger refuse_change on ledger.entries",
    "replace what it calls": "create or replace function ledger.refuse_change() returns trigger language plpgsql as 'begin return old; end'",
    "rename the table": "alter table ledger.entries rename to old_entries",
    "detach a leaf": "alter table ledger.entries detach partition {leaf}",
    "attach another": "create table pg_temp.other (like ledger.entries); alter table ledger.entries attach partition pg_temp.other for values in ('1999-01-01')",
    "drop a leaf": "drop table {leaf}",
    "become the owner": "set role tallystick_owner",
    "be the owner's session": "set session authorization tallystick_owner",
    "be given the owner": "grant tallystick_owner to current_user",
    "make a superuser": "create role mine superuser",
    "rewrite by a rule": "create rule hide as on select to ledger.entries do instead select 1",
    "rewrite inserts by a rule": "create rule hide as on insert to ledger.entries do instead nothing",
    "a trigger of one's own": "create trigger mine before insert on ledger.entries for each row execute function ledger.refuse_change()",
    "a policy that hides": "create policy hide on ledger.entries as restrictive using (false)",
    "row-level security off": "alter table ledger.entries disable row level security",
    "a foreign key that cascades": "create table pg_temp.parent (id bigint primary key); alter table ledger.acts add foreign key (act_id) references pg_temp.parent on delete cascade",
    "update": "update ledger.entries set charge_amount = 0",
    "update a leaf": "update {leaf} set charge_amount = 0",
    "delete": "delete from ledger.entries",
    "truncate": "truncate ledger.entries",
    "truncate a leaf": "truncate {leaf}",
    "truncate by cascade": "truncate ledger.rate_sets cascade",
    "merge": "merge into ledger.entries as e using (values (1)) as v (x) on e.entry_id > 0 when matched then delete",
    "insert over": "insert into ledger.event_keys select key, content_hash, hash_version, batch_id from ledger.event_keys on conflict (key) do update set batch_id = 0",
    "insert into a leaf": "insert into {leaf} select * from {leaf}",
    "lock everybody out": "lock table ledger.entries in access exclusive mode",
    "lock out writers": "lock table ledger.entries in share mode",
    "read a large file": "select lo_import('/etc/passwd')",
    "write a file": "copy (select 1) to '/tmp/tallystick-tried'",
    "run a program": "copy (select 1) to program 'id'",
    "read a file": "select pg_read_file('postgresql.conf')",
    "load code": "load 'auth_delay'",
    "a function in C": "create function pg_temp.c() returns integer language c as 'x', 'y'",
    "a language that trusts": "create extension if not exists plperlu",
    "an event trigger": "create event trigger mine on ddl_command_start execute function ledger.refuse_change()",
    "change the catalogue": "update pg_catalog.pg_trigger set tgenabled = 'D'",
    "end the writer": "select pg_terminate_backend(pid) from pg_stat_activity where usename = 'postgres' and pid <> pg_backend_pid()",
    "move the clock of the chain": "select setval('ledger.batches_batch_id_seq', 1)",
    "call a definer's trigger oneself": "select ledger.refuse_closed_period()",
    "speak SQL through an argument": "select ledger.make_partitions('2026-01-01''; drop table ledger.entries; --')",
    "a search path of one's own": "set search_path = pg_temp; create function pg_temp.format(text, text) returns text language sql as 'select ''x'''; delete from ledger.acts",
    "another schema of the same name": "create schema mine",
    "a subscription": "create publication mine for table ledger.entries",
    "hide the column": "alter table ledger.entries drop column charge_amount",
    "say it is something else": "comment on table ledger.entries is 'nothing to see'",
    "forget the revision": "delete from ledger.alembic_version",
    "forget the routines": "delete from ledger.routines",
}
"""What was tried; each is refused to every role."""

WARNED_ONLY = "grant update, delete on ledger.entries to current_user"
"""Postgres lets whoever has some right try to grant another, warns, and grants nothing."""


@pytest.fixture
async def filled(ledger: Ledger) -> Ledger:
    await ledger.add_price(input="2.00", output="8.00")
    await ledger.post(make_event("e1"), make_event("e2"))
    ledger.superuser.execute("insert into ledger.acts (actor, act, detail) values ('a', 'b', '{}')")
    return ledger


@pytest.mark.parametrize("role", LOGINS)
async def test_no_running_role_defeats_append_only(filled: Ledger, role: str) -> None:
    """Row for row as before, triggers and rights as before, whatever a role tried."""
    leaf = filled.value("select tableoid::regclass::text from ledger.entries limit 1")
    before = state_of(filled)
    with filled.database.connect(role, autocommit=True) as connection:
        for what, statement in TRIED.items():
            state = outcome_of(connection, statement.format(leaf=leaf))
            assert state in REFUSALS, f"{role} may {what}" if state is None else f"{what}: {state}"
        with contextlib.suppress(psycopg.errors.InsufficientPrivilege):
            connection.execute(WARNED_ONLY)
    assert state_of(filled) == before


REFUSALS = {"42501", "42704", "0A000", "22007", "42809", "42P16", "TS002", "42601"}
"""No right; no such object, feature or form; our own triggers."""


def outcome_of(connection: psycopg.Connection, statements: str) -> str | None:
    """Run statements in a transaction, and return the SQLSTATE that ended it; None where all of them went through."""
    try:
        with connection.transaction():
            for statement in statements.split("; "):
                connection.execute(statement.encode())
    except psycopg.Error as error:
        return error.sqlstate
    return None


def state_of(ledger: Ledger) -> list[list[tuple[object, ...]]]:
    return [
        ledger.rows("select * from ledger.entries order by entry_id"),
        ledger.rows("select * from ledger.event_keys order by key"),
        ledger.rows("select * from ledger.acts order by act_id"),
        ledger.rows("select tgrelid::regclass::text, tgname, tgenabled from pg_trigger order by 1, 2"),
        ledger.rows("select oid::regclass::text, relacl::text, relrowsecurity from pg_class order by 1"),
    ]


async def test_a_running_role_that_inserts_is_held_to_closed_periods(filled: Ledger) -> None:
    """The writer may insert, and whatever it inserts meets the guard and the budgets' trigger."""
    from datetime import date

    filled.close_period("t-alpha", date(2026, 1, 1))
    columns = [
        name
        for (name,) in filled.rows(
            "select attname::text from pg_attribute where attrelid = 'ledger.entries'::regclass and attnum > 0 order by attnum"
        )
    ]
    values = ", ".join("entry_id + 1000000" if name == "entry_id" else name for name in columns)
    with filled.database.connect("tallystick_writer") as writer, pytest.raises(psycopg.Error) as stopped:
        writer.execute(
            f"insert into ledger.entries ({', '.join(columns)}) select {values} from ledger.entries".encode()
        )
    assert stopped.value.sqlstate == "TS001"


def test_every_table_of_facts_is_guarded_whatever_its_name(database: Database) -> None:
    """By the catalogue: a table that nobody may change is guarded by triggers too, and so is each of its partitions."""
    with database.connect() as connection:
        connection.execute("select ledger.make_partitions(date '2031-05-01')")
        rows = connection.execute(
            """
            select
                c.oid::regclass::text,
                exists (select from pg_trigger as t where t.tgrelid = c.oid and t.tgname = 'refuse_change' and t.tgenabled = 'O'),
                exists (select from pg_trigger as t where t.tgrelid = c.oid and t.tgname = 'refuse_truncate' and t.tgenabled = 'O')
            from pg_class as c
            where
                c.relnamespace in ('ledger'::regnamespace, 'quotas'::regnamespace, 'billing'::regnamespace)
                and c.relkind in ('r', 'p')
                and (
                    c.relispartition
                    -- Somebody adds to it, and nobody may change or delete what stands there.
                    or exists (select from aclexplode(c.relacl) as a where a.privilege_type = 'INSERT' and a.grantee <> c.relowner)
                    and not exists (
                        select
                        from unnest(array['tallystick_writer', 'tallystick_operator', 'tallystick_api', 'tallystick_billing']) as r
                        where
                            has_any_column_privilege(r, c.oid, 'update')
                            or has_table_privilege(r, c.oid, 'delete')
                    )
                )
                -- Written by the owner's triggers alone, which change them.
                and c.oid::regclass::text <> all (%s)
            order by 1
            """,
            [["ledger.subjects", "quotas.windows", "quotas.excess", "quotas.threshold_notes"]],
        ).fetchall()
    assert len(rows) >= 19
    assert [name for name, changes, truncates in rows if not (changes and truncates)] == []
