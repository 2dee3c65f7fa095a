"""`migrate`: roles, then Alembic's revisions, then the functions, triggers, views, policies and grants that changed."""

from hashlib import sha256
from pathlib import Path
from typing import Final

import psycopg
import psycopg.sql
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory

from quotas import windows

HERE: Final = Path(__file__).parent
OWNER: Final = "tallystick_owner"
_LOCK: Final = 7_411_000

# Roles that log in, and whether row-level security lets them pass: COPY refuses to run under it, so the writer does.
ROLES: Final = {
    "tallystick_writer": "login bypassrls",
    "tallystick_api": "login",
    "tallystick_operator": "login",
    "tallystick_analyst": "login",
    "tallystick_billing": "login",
    "tallystick_rollup": "login",
    "tallystick_reader": "nologin",
}


def migrate(url: str, passwords: dict[str, str] | None = None) -> None:
    """Bring a database to the newest revision; running it again changes nothing.

    Roles are made by whoever `url` logs in as, which takes a superuser; everything else is made and owned by
    tallystick_owner, which cannot log in.
    """
    address = url.removeprefix("postgresql+psycopg://").removeprefix("postgresql://")
    with psycopg.connect(f"postgresql://{address}", autocommit=True) as connection:
        # Two that migrate at once wait for each other.
        connection.execute("select pg_advisory_lock(%s)", [_LOCK])
        _make_roles(connection, passwords or {})
        before = _revision(connection)
        command.upgrade(config(f"postgresql+psycopg://{address}"), "head")
        _apply_routines(connection, tables_moved=before != _revision(connection))


def _make_roles(connection: psycopg.Connection, passwords: dict[str, str]) -> None:
    # Roles belong to the server, not to a database: two databases of one server may be migrated at once.
    with connection.transaction():
        connection.execute("select pg_advisory_xact_lock(%s)", [_LOCK + 1])
        present = {row[0] for row in connection.execute("select rolname from pg_roles")}
        for role, attributes in {OWNER: "nologin", **ROLES}.items():
            if role not in present:
                connection.execute(f"create role {role} {attributes}")
            if role in passwords:
                connection.execute(_set_password(connection, role, passwords[role]))
    database = connection.info.dbname
    connection.execute(
        psycopg.sql.SQL("grant create on database {} to {}").format(
            psycopg.sql.Identifier(database), psycopg.sql.Identifier(OWNER)
        )
    )
    connection.execute(f"create schema if not exists ledger authorization {OWNER}")
    connection.execute(f"create schema if not exists quotas authorization {OWNER}")
    connection.execute("create schema if not exists marts authorization tallystick_rollup")
    connection.execute(
        "grant usage on schema marts to tallystick_analyst, tallystick_billing, tallystick_operator, tallystick_api"
    )
    connection.execute(
        "alter default privileges for role tallystick_rollup in schema marts"
        " grant select on tables to tallystick_analyst, tallystick_billing, tallystick_operator"
    )


def _set_password(connection: psycopg.Connection, role: str, password: str) -> psycopg.sql.Composed:
    """Return the statement that sets a password as its verifier, so that no log of the server and no view shows it."""
    verifier = connection.pgconn.encrypt_password(password.encode(), role.encode(), b"scram-sha-256").decode()
    return psycopg.sql.SQL("alter role {} password {}").format(
        psycopg.sql.Identifier(role), psycopg.sql.Literal(verifier)
    )


def config(url: str) -> Config:
    """Return Alembic's configuration for a database."""
    configured = Config()
    configured.set_main_option("script_location", str(HERE))
    configured.set_main_option("file_template", "%%(year)d-%%(month).2d-%%(day).2d-%%(hour).2d%%(minute).2d_%%(slug)s")
    configured.attributes["url"] = url
    return configured


def newest_revision() -> str | None:
    """Return the newest revision that this code knows."""
    return ScriptDirectory.from_config(config("")).get_current_head()


def _revision(connection: psycopg.Connection) -> str | None:
    """Return the revision that the tables are at; None before the first."""
    if connection.execute("select to_regclass('ledger.alembic_version')").fetchone() == (None,):
        return None
    row = connection.execute("select version_num from ledger.alembic_version").fetchone()
    return None if row is None else str(row[0])


def routines() -> dict[str, str]:
    """Return the repeatable texts by name, in the order in which they are applied."""
    ledger = {path.name: path.read_text() for path in sorted((HERE.parent / "ledger" / "sql").glob("[0-9]*.sql"))}
    return {**ledger, **windows.routines()}


def _apply_routines(connection: psycopg.Connection, *, tables_moved: bool) -> None:
    """Apply each text that differs from what was last applied: a change of one function locks no table for another.

    All of them where a revision has run: a table that it made has no guards and no grants yet, whatever was applied before.
    """
    with connection.transaction():
        connection.execute(f"set local role {OWNER}")
        connection.execute("set local lock_timeout = '10s'")
        known: dict[str, str] = dict(connection.execute("select name, sha256 from ledger.routines").fetchall())
        for name, text in routines().items():
            digest = sha256(text.encode()).hexdigest()
            if known.get(name) == digest and not tables_moved:
                continue
            connection.execute(text.encode())
            connection.execute(
                "insert into ledger.routines (name, sha256) values (%s, %s)"
                " on conflict (name) do update set sha256 = excluded.sha256",
                [name, digest],
            )
        # The month in hand and the next two, so that a worker can start at once; the scheduler goes on from there.
        connection.execute(
            "select ledger.make_partitions((date_trunc('month', now()) + make_interval(months => n))::date)"
            " from generate_series(0, 2) as n"
        )


def tables() -> list[sa.MetaData]:
    """Return the metadata of every room that has tables."""
    from ledger.tables import metadata as ledger_tables
    from quotas.tables import metadata as quotas_tables

    return [ledger_tables, quotas_tables]
