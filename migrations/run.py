"""`migrate`: roles, then Alembic's revisions, then the functions, triggers, views, policies and grants that changed."""

import re
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import psycopg
import psycopg.sql
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from psycopg.types.json import Jsonb

from ledger.errors import ActRefused, Unknown
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
    "tallystick_letters": "nologin",
    "tallystick_reader": "nologin",
}

# Limits of each role's sessions: what a slip of a query, or a program that hangs, may cost the others. `temp_file_limit` only a
# superuser can lift; the others are a session's own to change, so they stop accidents and nobody who means harm.
LIMITS: Final[dict[str, dict[str, str]]] = {
    "tallystick_writer": {
        "statement_timeout": "5min",
        "lock_timeout": "1min",
        "idle_in_transaction_session_timeout": "1min",
    },
    "tallystick_api": {
        "statement_timeout": "30s",
        "lock_timeout": "10s",
        "idle_in_transaction_session_timeout": "30s",
    },
    # Commands and proofs may read for hours; what they must not do is wait or idle with a lock that others need.
    "tallystick_operator": {"lock_timeout": "1min", "idle_in_transaction_session_timeout": "10min"},
    "tallystick_analyst": {
        "statement_timeout": "10min",
        "lock_timeout": "10s",
        "idle_in_transaction_session_timeout": "5min",
        "temp_file_limit": "20GB",
    },
    "tallystick_billing": {
        "statement_timeout": "30min",
        "lock_timeout": "1min",
        "idle_in_transaction_session_timeout": "5min",
    },
    # A mart that is made new reads the whole ledger; a run waits for the one before it.
    "tallystick_rollup": {"lock_timeout": "10min", "idle_in_transaction_session_timeout": "10min"},
}

# Logins of the group tallystick_reader: members do not inherit a group's settings, so each login gets them.
READER_LIMITS: Final[dict[str, str]] = {
    "statement_timeout": "1min",
    "lock_timeout": "5s",
    "idle_in_transaction_session_timeout": "1min",
    "idle_session_timeout": "1h",
    "temp_file_limit": "2GB",
}
READER_CONNECTIONS_MAX: Final = 5


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
                if role == "tallystick_letters":
                    # Only here: whoever takes the bytes of dead letters from the operator, and gives them to people by name,
                    # does not find them given back.
                    connection.execute(f"grant {role} to tallystick_operator")
            if role in passwords:
                connection.execute(_set_password(connection, role, passwords[role]))
        for role, limits in LIMITS.items():
            _set_limits(connection, role, limits)
    _close_advisory_locks(connection)
    database = connection.info.dbname
    connection.execute(
        psycopg.sql.SQL("grant create on database {} to {}").format(
            psycopg.sql.Identifier(database), psycopg.sql.Identifier(OWNER)
        )
    )
    connection.execute(f"create schema if not exists ledger authorization {OWNER}")
    connection.execute(f"create schema if not exists quotas authorization {OWNER}")
    connection.execute(f"create schema if not exists billing authorization {OWNER}")
    connection.execute("create schema if not exists marts authorization tallystick_rollup")
    connection.execute(
        "grant usage on schema marts to tallystick_analyst, tallystick_billing, tallystick_operator, tallystick_api,"
        # Of its tables a reader may read none; the rollup grants the views of own rows.
        " tallystick_reader"
    )
    connection.execute(
        "alter default privileges for role tallystick_rollup in schema marts"
        " grant select on tables to tallystick_analyst, tallystick_billing, tallystick_operator"
    )


def _set_limits(connection: psycopg.Connection, role: str, limits: dict[str, str]) -> None:
    """Give a role the limits that it has none of yet: what the database's administrator set otherwise stays."""
    row = connection.execute(
        "select coalesce(setconfig, '{}') from pg_db_role_setting where setdatabase = 0 and setrole = to_regrole(%s)",
        [role],
    ).fetchone()
    present = {setting.partition("=")[0] for setting in (row[0] if row else [])}
    for name, value in limits.items():
        if name not in present:
            connection.execute(
                psycopg.sql.SQL("alter role {} set {} = {}").format(
                    psycopg.sql.Identifier(role), psycopg.sql.Identifier(name), psycopg.sql.Literal(value)
                )
            )


# Whoever holds the calendar lock stops every writer, and any login may take any advisory lock: so only who needs one may.
_ADVISORY_LOCKERS: Final = (
    OWNER,
    *(role for role in ROLES if role not in {"tallystick_analyst", "tallystick_letters", "tallystick_reader"}),
)


def _close_advisory_locks(connection: psycopg.Connection) -> None:
    """Leave Postgres' functions of advisory locks to the roles of the running system, in this database."""
    open_to_all = connection.execute(
        "select p.oid::regprocedure::text from pg_proc as p"
        " where p.pronamespace = 'pg_catalog'::regnamespace and p.proname ~ 'advisory'"
        " and exists ("
        "   select from aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) as a where a.grantee = 0"
        " ) order by 1"
    ).fetchall()
    for (function,) in open_to_all:
        # Names of the catalogue itself.
        connection.execute(f"grant execute on function pg_catalog.{function} to {', '.join(_ADVISORY_LOCKERS)}")
        connection.execute(f"revoke execute on function pg_catalog.{function} from public")


def _set_password(connection: psycopg.Connection, role: str, password: str) -> psycopg.sql.Composed:
    """Return the statement that sets a password as its verifier, so that no log of the server and no view shows it."""
    verifier = connection.pgconn.encrypt_password(password.encode(), role.encode(), b"scram-sha-256").decode()
    return psycopg.sql.SQL("alter role {} password {}").format(
        psycopg.sql.Identifier(role), psycopg.sql.Literal(verifier)
    )


def add_reader(url: str, login: str, password: str, tenants: Sequence[str], *, actor: str) -> bool:
    """Make a login that sees these tenants' rows and no others; of one that is there, add tenants. Return whether it is new.

    `url` logs in as somebody who may make roles. Everything happens in one transaction, with the act.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,62}", login):
        raise ActRefused(f"login {login!r} must be small letters, digits and underscores, and begin with a letter")
    if login in ROLES or login == OWNER:
        raise ActRefused(f"login {login!r} is a role of the running system")
    if not tenants:
        raise ActRefused(f"login {login!r} needs a tenant that it may see")
    with psycopg.connect(_libpq(url)) as connection:
        row = connection.execute(
            "select pg_has_role(oid, 'tallystick_reader', 'member') and not rolsuper from pg_roles where rolname = %s",
            [login],
        ).fetchone()
        if row is not None and not row[0]:
            raise ActRefused(f"login {login!r} is there already and is no reader")
        for tenant_id in tenants:
            if connection.execute("select from ledger.tenants where tenant_id = %s", [tenant_id]).fetchone() is None:
                raise Unknown("tenant", tenant_id)
        if row is None:
            connection.execute(
                psycopg.sql.SQL("create role {} login connection limit {} in role tallystick_reader").format(
                    psycopg.sql.Identifier(login), psycopg.sql.Literal(READER_CONNECTIONS_MAX)
                )
            )
            connection.execute(_set_password(connection, login, password))
        _set_limits(connection, login, READER_LIMITS)
        connection.execute(
            "insert into ledger.reader_tenants (login, tenant_id) select %s, unnest(%s::text[]) on conflict do nothing",
            [login, list(tenants)],
        )
        _record(connection, actor, "readers.add", {"login": login, "tenants": list(tenants)}, None)
    return row is None


def remove_reader(url: str, login: str, *, actor: str, reason: str) -> None:
    """Drop a reader's login and forget its tenants; sessions that it has are ended by their own limits."""
    with psycopg.connect(_libpq(url)) as connection:
        row = connection.execute(
            "select from pg_roles where rolname = %s and pg_has_role(oid, 'tallystick_reader', 'member') and not rolsuper",
            [login],
        ).fetchone()
        if row is None or login in ROLES:
            raise Unknown("reader", login)
        connection.execute("delete from ledger.reader_tenants where login = %s", [login])
        # What a session left behind, such as a function of its own, would keep the role.
        connection.execute(psycopg.sql.SQL("drop owned by {}").format(psycopg.sql.Identifier(login)))
        connection.execute(psycopg.sql.SQL("drop role {}").format(psycopg.sql.Identifier(login)))
        _record(connection, actor, "readers.remove", {"login": login}, reason)


def _record(connection: psycopg.Connection, actor: str, act: str, detail: dict[str, Any], reason: str | None) -> None:
    connection.execute(
        "insert into ledger.acts (actor, act, detail, reason) values (%s, %s, %s, %s)",
        [actor, act, Jsonb(detail), reason],
    )


def _libpq(url: str) -> str:
    return f"postgresql://{url.removeprefix('postgresql+psycopg://').removeprefix('postgresql://')}"


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

    def texts(room: str) -> dict[str, str]:
        return {path.name: path.read_text() for path in sorted((HERE.parent / room / "sql").glob("[0-9]*.sql"))}

    return {**texts("ledger"), **windows.routines(), **texts("billing")}


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
    from billing.tables import metadata as billing_tables
    from ledger.tables import metadata as ledger_tables
    from quotas.tables import metadata as quotas_tables

    return [ledger_tables, quotas_tables, billing_tables]
