"""Lanes, where a story with a broker would say less."""

import asyncio
from typing import Any

import psycopg
import pytest

from ingest.intake import Intake
from ingest.lanes import BatchRefused, Lane, Lanes, Record
from ledger import failpoints
from tests.factories import event_bytes, make_event
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


async def test_a_message_that_is_noted_is_alone_in_hand(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two partitions, both under suspicion, and commits that take their time: when the second is read, the first is posted, so
    its message would not be accused if this read killed the process.
    """
    in_hand: list[list[str]] = []
    failpoints.set_failpoint("read.message", lambda _: in_hand.append(_noted(ledger)))
    posted = Intake.post

    async def slowly(self: Intake, reading: Any) -> Any:
        await asyncio.sleep(0.1)
        return await posted(self, reading)

    monkeypatch.setattr(Intake, "post", slowly)
    try:
        async with (
            ledger.intake("kafka:log:0", kind="kafka") as zero,
            ledger.intake("kafka:log:1", kind="kafka") as one,
        ):
            lanes = Lanes(ledger.database.url_for("tallystick_writer"), "", "usage", 10_000, on_failure=lambda _: None)
            lanes._lanes = {0: Lane(zero, 200, 0), 1: Lane(one, 200, 0)}
            await lanes.take(
                [
                    Record(partition, offset, 1_767_225_600_000, event_bytes(make_event(f"{partition}-{offset}")), 0)
                    for partition in (0, 1)
                    for offset in (0, 1)
                ],
                1_000_000,
            )
            await lanes.release()
    finally:
        failpoints.set_failpoint("read.message", None)
    assert in_hand == [["kafka:log:0"], ["kafka:log:0"], ["kafka:log:1"], ["kafka:log:1"]]
    assert ledger.rows("select name, next_position from ledger.feeds where kind = 'kafka' order by 1") == [
        ("kafka:log:0", 2),
        ("kafka:log:1", 2),
    ]


def _noted(ledger: Ledger) -> list[str]:
    """The feeds of which a message is in hand: it is noted, and not posted."""
    return [
        row[0] for row in ledger.rows("select name from ledger.feeds where suspect_position = next_position order by 1")
    ]
