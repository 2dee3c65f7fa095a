"""Rebuilding: a window that somebody's hand made wrong is made what ledger and reservations say, and nothing else changes."""

import asyncio
from decimal import Decimal

import pytest

from ledger.database import connect
from ledger.errors import Unknown
from quotas.rebuilding import Rebuilt, rebuild_windows
from tallystick.verify import verify
from tests.quotas.support import RECEIVED, Desk, add_price, end_budget, excesses, set_budget, spend, spending, windows
from tests.support.ledger import Ledger


async def rebuild(ledger: Ledger, budget_id: str | None = "b", *, dry_run: bool = False) -> list[Rebuilt]:
    async with await connect(ledger.database.url_for("tallystick_operator")) as connection:
        return await rebuild_windows(connection, "test", budget_id, reason="a page was lost", dry_run=dry_run)


def by_hand(ledger: Ledger, statement: str) -> None:
    """As a superuser, whom no right and no trigger stops."""
    ledger.superuser.execute("set session_replication_role = replica")
    ledger.superuser.execute(statement.encode())
    ledger.superuser.execute("set session_replication_role = origin")


def faults(ledger: Ledger) -> list[str]:
    proof = verify(ledger.database.url_for("tallystick_operator"))
    return [failure.text for failure in proof.failures if failure.part in ("budgets", "excess")]


@pytest.fixture
async def used(ledger: Ledger) -> Ledger:
    """A budget of 10 with 4 posted in March, 1 in February, and two reservations, of which one has a first part posted."""
    await add_price(ledger)
    await set_budget(ledger, limit="10", thresholds=["0.5"], since=None, now="2026-01-15T12:00:00Z")
    await spend(ledger, "old", "1", at="2026-02-10T12:00:00Z")
    await spend(ledger, "new", "3")
    async with Desk(ledger) as desk:
        await desk.ask("r1", "2")
        await desk.ask("r2", "0.5")
    await spend(ledger, "part", "1", reservation_id="r1", reservation_open=True)
    return ledger


WRONG = [
    ("update quotas.windows set posted = posted + 0.000001 where budget_id = 'b' and window_start = '2026-03-01'", 1),
    ("update quotas.windows set posted = posted + 20 where budget_id = 'b' and window_start = '2026-03-01'", 1),
    (
        "update quotas.windows set held = held - 0.5, unpriced_count = 3 where budget_id = 'b' and window_start = '2026-03-01'",
        1,
    ),
    ("delete from quotas.windows where budget_id = 'b'", 2),
    ("update quotas.reservations set posted_under = '{0.25}' where reservation_id = 'r1'", 1),
]


@pytest.mark.parametrize(("statement", "wrong_count"), WRONG)
async def test_what_verify_names_is_made_right_and_written_down(used: Ledger, statement: str, wrong_count: int) -> None:
    before = used.rows("select * from quotas.windows order by 1, 2, 3")
    holds = used.rows("select * from quotas.holds where budget_id = 'b' order by 1, 2")
    by_hand(used, statement)
    assert faults(used)
    shown = await rebuild(used, dry_run=True)
    assert faults(used), "a dry run writes nothing"
    assert await rebuild(used) == shown
    assert len(shown) == wrong_count
    assert faults(used) == []
    assert used.rows("select * from quotas.windows order by 1, 2, 3") == before
    assert used.rows("select * from quotas.holds where budget_id = 'b' order by 1, 2") == holds
    acts = used.rows(
        "select actor, reason, jsonb_array_length(detail -> 'windows') from ledger.acts where act = 'budgets.rebuild'"
    )
    assert acts == [("test", "a page was lost", wrong_count)]


async def test_where_nothing_differs_nothing_is_written(used: Ledger) -> None:
    versions = used.rows("select * from ledger.versions")
    assert await rebuild(used, None) == []
    assert used.rows("select * from ledger.versions") == versions
    assert used.rows("select from ledger.acts where act = 'budgets.rebuild'") == []


async def test_what_was_above_the_limit_all_along_is_noted_with_its_threshold(used: Ledger) -> None:
    """Ten more were lost from the window while the notes say what it was: what comes back has a cause, as everything has."""
    await spend(used, "more", "9")
    assert excesses(used) == [("unreserved", "4.5")]
    by_hand(used, "update quotas.windows set posted = 0 where window_start = '2026-03-01'; delete from quotas.excess")
    (window,) = await rebuild(used)
    assert (window.posted_before, window.posted) == (0, 13)
    assert excesses(used) == [("correction", "4.5")]
    assert used.rows("select threshold::text from quotas.threshold_notes order by 1") == [("0.5",), ("1",)]


async def test_windows_of_months_that_left_the_ledger_stay_as_they_are(used: Ledger) -> None:
    """Their entries cannot be folded: the seals and totals stand for them."""
    by_hand(
        used,
        "insert into ledger.retirements (posting_period, step, rows_are, row_count, location, manifest_hash, actor) values"
        " ('2026-02-01', 'export', 'kept', 1, 'away', '', 'test'), ('2026-02-01', 'retire', 'dropped', 1, null, null, 'test')",
    )
    by_hand(used, "update quotas.windows set posted = 7")
    assert [str(each.window_start) for each in await rebuild(used)] == ["2026-03-01"]
    assert windows(used) == {"2026-02-01": "7", "2026-03-01": "4"}


async def test_an_ended_budget_and_an_unknown_one_are_refused(used: Ledger) -> None:
    await end_budget(used)
    for name in ("b", "nobody"):
        with pytest.raises(Unknown, match="there is no budget in force"):
            await rebuild(used, name)


async def test_asks_and_usage_go_on_meanwhile(used: Ledger) -> None:
    """Three writers at once: each movement is in the window once, whichever came first."""
    by_hand(used, "update quotas.windows set posted = 100, held = 0")

    async def ask() -> None:
        async with Desk(used) as desk:
            for number in range(12):
                await desk.ask(f"beside-{number}", "0.01")

    async def post() -> None:
        for number in range(12):
            await used.post(spending(f"beside-{number}", "0.01"), received_at=RECEIVED)

    async def again() -> None:
        for _ in range(6):
            await rebuild(used, None)

    await asyncio.gather(ask(), post(), again())
    await rebuild(used, None)
    assert faults(used) == []
    assert Decimal(windows(used)["2026-03-01"]) == Decimal("4.12")
