"""Marts to try things on: a ledger, and runs of the rollup that keep dbt's files in a folder of the test run."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ledger.posting import Posted
from tallystick.embedded import EmbeddedPostgres
from tallystick.rollup import RollupReport, rebuild, run_rollup
from tests.support import databases
from tests.support.databases import Database
from tests.support.ledger import Ledger


class Marts:
    """A ledger with its rollup."""

    def __init__(self, database: Database, home: Path) -> None:
        self.ledger = Ledger(database)
        self.url = database.url_for("tallystick_rollup")
        self.home = home

    async def post(self, *events: dict[str, Any]) -> Posted:
        """Post events of any time of 2026 as one batch; none may be refused."""
        posted = await self.ledger.post(*events, received_at="2026-12-31T00:00:00Z")
        assert not [result for result in posted.results if result.outcome == "dead_letter"], posted.results
        return posted

    def roll_up(self, *select: str, tests: bool = False) -> RollupReport:
        """Roll everything up, or what dbt selects by these words."""
        return run_rollup(self.url, self.home, tests=tests, select=select)

    def rebuild(self, model: str | None = None) -> RollupReport:
        return rebuild(self.url, self.home, model)


@pytest.fixture(scope="session")
def dbt_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all tests, so that dbt reads the project once and not for each run."""
    return tmp_path_factory.mktemp("dbt")


@pytest.fixture
def marts(postgres_server: EmbeddedPostgres, migrated_template: str, dbt_home: Path) -> Iterator[Marts]:
    """A ledger in a database that has the same name in each test: dbt reads the project anew for each other name."""
    with databases.scratch_database(postgres_server.address, "marts", migrated_template) as database:
        made = Marts(database, dbt_home)
        try:
            yield made
        finally:
            made.ledger.close()
