"""Lanes, where a story with a broker would say less."""

from typing import Any

import psycopg
import pytest

from ingest.lanes import BatchRefused, Lane, Lanes
from tests.support.ledger import Ledger


async def test_what_ends_a_worker_is_told_without_any_row(ledger: Ledger) -> None:
    """Postgres quotes the whole row in the detail of a broken check; a log must not hold what a tenant sent."""
    with pytest.raises(psycopg.errors.CheckViolation) as broken:
        ledger.superuser.execute("insert into ledger.sources (source, kind, rank) values ('told-to-nobody', 'odd', 1)")
    assert "told-to-nobody" in str(broken.value)

    async def posting() -> Any:
        raise broken.value

    async with ledger.intake() as intake:
        lanes = Lanes("", "", "", 0, on_failure=lambda _: None)
        with pytest.raises(BatchRefused) as told:
            await lanes._posted(Lane(intake, 0, 0), posting())
    assert "23514" in str(told.value)
    assert "told-to-nobody" not in repr(told.value)
    assert told.value.__suppress_context__
