"""Servers for the tests: one of each per run, started when the first test asks for it."""

import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from ledger import failpoints
from ledger.database import Connection, connect
from tallystick.embedded import EmbeddedBroker, EmbeddedPostgres
from tallystick.roles import OPERATOR, WRITER
from tests.support import databases
from tests.support import kafka4 as kafka4_support
from tests.support.ledger import Failpoint, Ledger
from tests.support.soak import ROUNDS, SOAK, examples

# A busy machine makes inputs slowly, which says nothing about the code; and what failed must fail again.
settings.register_profile("house", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
# Other inputs each time; what to write into a test to see a failure again is printed.
settings.register_profile(
    "soak", settings.get_profile("house"), derandomize=False, max_examples=examples(100), print_blob=True
)
settings.load_profile("soak" if SOAK > 1 else "house")

CHECKOUT = Path(__file__).parent.parent
_numbers = itertools.count(1)


# Files of few tests that take minutes: a process that gets one of them last would work alone at the end of a run.
SLOW_FIRST = ("stories", "dbt")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {folder: place for place, folder in enumerate(SLOW_FIRST)}
    items.sort(key=lambda item: rank.get(item.path.parent.name, len(rank)))
    for item in items:
        if "kafka4" in getattr(item, "fixturenames", ()):
            item.add_marker("kafka")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Under `make soak`, run what hangs on chance moments (marked `soak`) several times, or with several seeds where it takes one."""
    if ROUNDS > 1 and metafunc.definition.get_closest_marker("soak") and "seed" not in metafunc.fixturenames:
        metafunc.fixturenames.append("soak_round")
        metafunc.parametrize("soak_round", range(ROUNDS))


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """A Postgres that does not wait for the disk."""
    with (
        databases.quick_folder(tmp_path_factory.mktemp("postgres")) as home,
        EmbeddedPostgres(home, binaries=databases.postgres_binaries(), parameters=databases.QUICK) as server,
    ):
        yield server


@pytest.fixture(scope="session")
def migrated_template(postgres_server: EmbeddedPostgres) -> str:
    """The name of the database that every `database` is copied from."""
    return databases.make_template(postgres_server.address)


@pytest.fixture(scope="session")
def months_template(postgres_server: EmbeddedPostgres, migrated_template: str) -> str:
    """The name of the same with the partitions that the first tenant of a `Ledger` would make.

    The `database` of whoever asks for it, such as `ledger`, is copied from this one.
    """
    return databases.make_months_template(postgres_server.address, migrated_template)


@pytest.fixture(scope="session")
def dbt_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all tests, so that dbt reads the project once and not for each run."""
    return tmp_path_factory.mktemp("dbt")


@pytest.fixture(scope="session")
def rolled_template(postgres_server: EmbeddedPostgres, months_template: str, dbt_home: Path) -> str:
    """The name of a migrated database with every mart in it, empty: a run in a copy adds, and makes no tables."""
    return databases.make_rolled_template(postgres_server.address, months_template, dbt_home)


@pytest.fixture
def database(postgres_server: EmbeddedPostgres, request: pytest.FixtureRequest) -> Iterator[databases.Database]:
    """A migrated, empty database for this test alone; of a test that is marked `marts`, with every mart."""
    name, template = f"test_{next(_numbers)}", "migrated_template"
    if request.node.get_closest_marker("marts"):
        name, template = databases.MARTS, "rolled_template"
    elif "months_template" in request.fixturenames:
        template = "months_template"
    template = request.getfixturevalue(template)
    with databases.scratch_database(postgres_server.address, name, template) as made:
        yield made


@pytest.fixture
def empty_database(postgres_server: EmbeddedPostgres) -> Iterator[databases.Database]:
    """A database without any of our tables, for this test alone."""
    with databases.scratch_database(postgres_server.address, f"test_{next(_numbers)}", "template0") as made:
        yield made


@pytest.fixture(scope="session")
def embedded_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """The embedded broker; topics are made by the test, under names of its own."""
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


@pytest.fixture(scope="session")
def kafka4(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kafka4_support.Kafka4]:
    """A real Apache Kafka 4, with the embedded broker's interface; whoever asks for it gets the marker `kafka`."""
    missing = kafka4_support.missing_tool()
    if missing:
        pytest.skip(f"Apache Kafka 4 needs Java 17 and Maven: {missing}")
    jars = kafka4_support.fetch_jars(CHECKOUT / ".tallystick" / "kafka4-jars")
    broker = kafka4_support.Kafka4(tmp_path_factory.mktemp("kafka4"), jars)
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()


@pytest.fixture
def ledger(database: databases.Database, months_template: str) -> Iterator[Ledger]:
    """An empty ledger with t-alpha, a gateway and a node; prices and more by its own calls."""
    made = Ledger(database).add_tenant().add_source().add_node()
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
async def operator(database: databases.Database) -> AsyncIterator[Connection]:
    """A connection with the rights that commands have."""
    async with await connect(database.url_for(OPERATOR)) as connection:
        yield connection


@pytest.fixture
async def writer(database: databases.Database) -> AsyncIterator[Connection]:
    """A connection with the rights of whoever posts."""
    async with await connect(database.url_for(WRITER)) as connection:
        yield connection


@pytest.fixture
def failpoint() -> Iterator[Failpoint]:
    """Sets failpoints of this process; none outlives the test."""
    names: list[str] = []

    def set_one(name: str, action: failpoints.Action) -> None:
        names.append(name)
        failpoints.set_failpoint(name, action)

    yield set_one
    for name in names:
        failpoints.set_failpoint(name, None)
