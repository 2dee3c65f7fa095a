"""Migrations: they make what tables.py says, once, and touch only what changed."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from migrations import run
from tests.support.databases import Database


def differences(database: Database) -> list[Any]:
    """What Alembic would change to make the database look like tables.py."""
    engine = sa.create_engine(database.url.replace("postgresql://", "postgresql+psycopg://"), poolclass=sa.NullPool)
    with engine.connect() as connection:
        leaves = {row[0] for row in connection.execute(sa.text("select relname from pg_class where relispartition"))}

        def is_ours(name: str | None, kind: str, _parents: Any) -> bool:
            if kind == "schema":
                return name in {"ledger", "quotas", "billing"}
            return not (kind == "table" and name in leaves)

        context = MigrationContext.configure(
            connection,
            opts={
                "include_schemas": True,
                "include_name": is_ours,
                "compare_type": True,
                "version_table_schema": "ledger",
                "target_metadata": run.tables(),
            },
        )
        return list(compare_metadata(context, run.tables()))  # type: ignore[arg-type]


def fingerprint(database: Database) -> list[tuple[Any, ...]]:
    """Every catalogue row of our schemas with the transaction that wrote it last."""
    with database.connect() as connection:
        return connection.execute(
            """
            select 'class', oid::regclass::text, xmin::text from pg_class
            where relnamespace in ('ledger'::regnamespace, 'quotas'::regnamespace, 'billing'::regnamespace, 'marts'::regnamespace)
            union all
            select 'function', oid::regprocedure::text, xmin::text from pg_proc
            where pronamespace in ('ledger'::regnamespace, 'quotas'::regnamespace, 'billing'::regnamespace)
            union all
            select 'trigger', tgrelid::regclass || ' ' || tgname, xmin::text from pg_trigger
            union all
            select 'policy', polrelid::regclass || ' ' || polname, xmin::text from pg_policy
            union all
            select 'routine', name || ' ' || sha256, xmin::text from ledger.routines
            order by 1, 2
            """
        ).fetchall()


def test_migrating_an_empty_database_gives_the_tables(empty_database: Database) -> None:
    run.migrate(empty_database.url)
    assert differences(empty_database) == []


def test_migrating_again_changes_nothing(database: Database) -> None:
    before = fingerprint(database)
    run.migrate(database.url)
    assert fingerprint(database) == before


def test_two_that_migrate_at_once_wait_for_each_other(empty_database: Database) -> None:
    with ThreadPoolExecutor(2) as both:
        for done in [both.submit(run.migrate, empty_database.url) for _ in range(2)]:
            done.result()
    with empty_database.connect() as connection:
        assert connection.execute("select count(*) from ledger.versions").fetchone() == (1,)


def test_only_a_routine_that_changed_is_applied_again(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {row[:2]: row[2] for row in fingerprint(database)}
    texts = run.routines()
    changed = {**texts, "20_partitions.sql": texts["20_partitions.sql"] + "\n-- Another reason.\n"}
    monkeypatch.setattr(run, "routines", lambda: changed)
    run.migrate(database.url)
    after = {row[:2]: row[2] for row in fingerprint(database)}
    moved = {name for kind, name in after if before.get((kind, name)) != after[kind, name]}
    assert {name.partition(" ")[0] for name in moved} == {"ledger.make_partitions(date)", "20_partitions.sql"}


def test_a_routine_that_fails_leaves_nothing_half_done(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint(database)
    texts = run.routines()
    broken = {**texts, "10_guards.sql": texts["10_guards.sql"] + "\n-- new", "40_views.sql": "select nonsense"}
    monkeypatch.setattr(run, "routines", lambda: broken)
    with pytest.raises(psycopg.errors.UndefinedColumn):
        run.migrate(database.url)
    assert fingerprint(database) == before


def test_the_newest_revision_is_the_one_in_place(database: Database) -> None:
    with database.connect() as connection:
        assert connection.execute("select version_num from ledger.alembic_version").fetchone() == (
            run.newest_revision(),
        )


def test_partitions_are_there_for_this_month_and_the_next_two(database: Database) -> None:
    with database.connect() as connection:
        missing = connection.execute(
            "select n from generate_series(0, 2) as n where to_regclass(to_char("
            "date_trunc('month', now()) + make_interval(months => n), '\"ledger.entries_\"YYYY_MM')) is null"
        ).fetchall()
    assert missing == []


def test_every_table_view_and_column_says_what_it_is(database: Database) -> None:
    """Of both schemas, partitions aside: who asks the database at night finds the answer in it."""
    with database.connect() as connection:
        silent = connection.execute(
            """
            select c.oid::regclass::text || coalesce('.' || a.attname, '')
            from pg_class as c
            left join pg_attribute as a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
            where
                c.relnamespace in ('ledger'::regnamespace, 'quotas'::regnamespace, 'billing'::regnamespace)
                and c.relkind in ('r', 'p', 'v')
                and not c.relispartition
                and (obj_description(c.oid, 'pg_class') is null or col_description(c.oid, a.attnum) is null)
            order by 1
            """
        ).fetchall()
    assert silent == []


def guards_and_rights(database: Database) -> list[tuple[Any, ...]]:
    with database.connect() as connection:
        return connection.execute(
            """
            select 'trigger', tgrelid::regclass::text, tgname::text from pg_trigger where not tgisinternal
            union all
            select 'rights', c.oid::regclass::text, a.grantee::regrole || ' ' || a.privilege_type
            from pg_class as c cross join aclexplode(c.relacl) as a
            where c.relnamespace in ('ledger'::regnamespace, 'quotas'::regnamespace, 'billing'::regnamespace) and a.grantee <> c.relowner
            union all
            select 'policy', polrelid::regclass::text, polname::text from pg_policy
            order by 1, 2, 3
            """
        ).fetchall()


@pytest.mark.parametrize("revision", ["0003", "base"])
def test_down_and_up_again_gives_the_same_tables_guards_and_rights(database: Database, revision: str) -> None:
    """A table that was dropped and made again must not come back without its triggers and grants."""
    before = guards_and_rights(database)
    command.downgrade(run.config(database.url.replace("postgresql://", "postgresql+psycopg://")), revision)
    assert guards_and_rights(database) != before
    run.migrate(database.url)
    assert guards_and_rights(database) == before
    assert differences(database) == []


def test_grants_that_are_applied_again_do_not_reach_partitions(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = run.routines()
    monkeypatch.setattr(run, "routines", lambda: {**texts, "50_grants.sql": texts["50_grants.sql"] + "\n-- again\n"})
    before = guards_and_rights(database)
    run.migrate(database.url)
    assert guards_and_rights(database) == before


def test_a_password_reaches_the_server_as_its_verifier(empty_database: Database) -> None:
    """A statement may land in the server's log and in pg_stat_activity; who reads it there must not learn the password."""
    with empty_database.connect() as connection:
        statement = run._set_password(connection, "tallystick_writer", "open sesame").as_string(connection)
    assert "open sesame" not in statement
    assert "'SCRAM-SHA-256$" in statement
