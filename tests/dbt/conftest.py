"""Marts to try things on: a ledger, and runs of the rollup that keep dbt's files in a folder of the test run.

A run takes as long as its models are many: a test names those that it looks at (`marts.roll_up(*FACTS)`). Whole runs, with the
project's own tests of its data, are for tests that are about all marts.
"""

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


@pytest.fixture
def marts(postgres_server: EmbeddedPostgres, rolled_template: str, dbt_home: Path) -> Iterator[Marts]:
    """A ledger whose marts are there and hold nothing, so that a run costs what its models cost."""
    yield from _marts(postgres_server, rolled_template, dbt_home)


@pytest.fixture
def bare_marts(postgres_server: EmbeddedPostgres, migrated_template: str, dbt_home: Path) -> Iterator[Marts]:
    """A ledger that was never rolled up: the first run makes each mart, which takes several times as long."""
    yield from _marts(postgres_server, migrated_template, dbt_home)


def _marts(server: EmbeddedPostgres, template: str, home: Path) -> Iterator[Marts]:
    with databases.scratch_database(server.address, databases.MARTS, template) as database:
        made = Marts(database, home)
        try:
            yield made
        finally:
            made.ledger.close()
