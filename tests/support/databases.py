"""Gives each test a database of its own, copied from one that was migrated once."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from tallystick.embedded import PostgresAddress
from tests.support.processes import is_running

# Below this a container's small default could fill up in the middle of a run.
MEMORY_BYTES_MIN = 4 * 2**30
TEMPLATE = "migrated_template"
MONTHS_TEMPLATE = "months_template"
FIRST_MONTH, MONTHS = "2025-12-01", 18
"""The months that the tests' usage is of; see `Ledger.add_tenant`."""
ROLLED_TEMPLATE = "rolled_template"
MARTS = "marts"
"""The database that dbt is run in, by one name in all tests: dbt reads the project anew for each other name."""
# A test database may be lost with its machine, so nothing waits for the disk.
QUICK = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "max_connections": "200"}


def postgres_binaries() -> Path | None:
    """Where `TALLYSTICK_TEST_POSTGRES=15` points: Debian's binaries of that version; unset, the embedded ones."""
    version = os.environ.get("TALLYSTICK_TEST_POSTGRES")
    return Path(f"/usr/lib/postgresql/{version}/bin") if version else None


@contextmanager
def quick_folder(otherwise: Path) -> Iterator[Path]:
    """Give a folder in memory where there is room: copying a database takes 20 ms there, and up to 300 ms on a busy disk."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK) or shutil.disk_usage(memory).free < MEMORY_BYTES_MIN:
        yield otherwise
        return
    # A run that was killed could not clean up.
    for left in memory.glob("tallystick-tests-*"):
        if not is_running(int(left.name.rpartition("-")[2])):
            shutil.rmtree(left, ignore_errors=True)
    folder = memory / f"tallystick-tests-{os.getpid()}"
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def migrate(url: str) -> None:
    """Bring a database to the newest revision."""
    # Imported late, so that tests which need no tables run without it.
    from migrations.run import migrate as run

    run(url)


@dataclass(frozen=True)
class Database:
    """A database that lives as long as its test."""

    server: PostgresAddress
    name: str

    @property
    def url(self) -> str:
        """The superuser's address."""
        return self.url_for("postgres")

    def url_for(self, role: str) -> str:
        return self.server.url_for(role, self.name)

    def connect(self, role: str = "postgres", *, autocommit: bool = False) -> psycopg.Connection:
        return psycopg.connect(self.url_for(role), autocommit=autocommit)


def make_template(server: PostgresAddress) -> str:
    """Make and migrate the database that the others are copied from, and close it: it must have no session then."""
    with psycopg.connect(server.url_for("postgres", "postgres"), autocommit=True) as connection:
        connection.execute(f"create database {TEMPLATE}")
        migrate(server.url_for("postgres", TEMPLATE))
        return _closed(connection, TEMPLATE)


def make_months_template(server: PostgresAddress, template: str) -> str:
    """Make a template that has the partitions of the months that tests are about: making them takes longer than most tests."""
    with psycopg.connect(server.url_for("postgres", "postgres"), autocommit=True) as connection:
        connection.execute(f"create database {MONTHS_TEMPLATE} template {template}")
        with psycopg.connect(server.url_for("postgres", MONTHS_TEMPLATE)) as inside:
            inside.execute(
                "select ledger.make_partitions((%s::date + make_interval(months => n))::date) from generate_series(0, %s - 1) as n",
                [FIRST_MONTH, MONTHS],
            )
        return _closed(connection, MONTHS_TEMPLATE)


def _closed(connection: psycopg.Connection, name: str) -> str:
    connection.execute("select pg_terminate_backend(pid, 10000) from pg_stat_activity where datname = %s", [name])
    connection.execute(f"alter database {name} with is_template true allow_connections false")
    return name


def make_rolled_template(server: PostgresAddress, template: str, home: Path) -> str:
    """Roll up an empty ledger, so that all marts are there and hold nothing, and close the database as a template."""
    from tallystick.rollup import run_rollup

    with psycopg.connect(server.url_for("postgres", "postgres"), autocommit=True) as connection:
        connection.execute(f"create database {MARTS} template {template}")
        run_rollup(server.url_for("tallystick_rollup", MARTS), home)
        connection.execute("select pg_terminate_backend(pid, 10000) from pg_stat_activity where datname = %s", [MARTS])
        connection.execute(f"alter database {MARTS} rename to {ROLLED_TEMPLATE}")
        return _closed(connection, ROLLED_TEMPLATE)


@contextmanager
def scratch_database(server: PostgresAddress, name: str, template: str) -> Iterator[Database]:
    """Copy a database for the length of the block; sessions that are left open do not keep it."""
    with psycopg.connect(server.url_for("postgres", "postgres"), autocommit=True) as connection:
        # The other strategy writes every page to the log: twice the work.
        connection.execute(f"create database {name} template {template} strategy file_copy")
        try:
            yield Database(server, name)
        finally:
            connection.execute(f"drop database {name} with (force)")
