"""The standing proof: budgets and ledger agree, or the tenant and month are named; what was proved stays known.

Prices are 2.00 and 8.00 a million, so 100 tokens in and 10 out cost 0.00028.
"""

from collections.abc import AsyncIterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from ledger import closing, retention
from ledger.database import connect
from ledger.proofs import Difference, last_proofs, list_proofs
from tallystick.standing import Standing, prove
from tallystick.verify import note, verify
from tests.factories import NODE, make_event
from tests.support.databases import Database
from tests.support.ledger import Ledger
from tests.tallystick.commands import Commands

DECEMBER = date(2025, 12, 1)
NO_MARTS = "the marts are not there yet: run `tallystick rollup`"


@pytest.fixture
async def ledger(database: Database, months_template: str) -> AsyncIterator[Ledger]:
    """A request of each of two tenants, one reported twice, one without a price."""
    made = Ledger(database)
    made.add_tenant(first_period=DECEMBER).add_tenant("t-beta", zone="Europe/Berlin").add_source().add_node()
    await made.add_price(input="2.00", output="8.00")
    await made.post(
        make_event("a"), make_event("b", tenant_id="t-beta"), make_event("u", model="m-x", requested_model="m-x")
    )
    await made.post(make_event("n", source=NODE, request_id="req-a"))
    yield made
    made.close()


async def standing(ledger: Ledger, **options: Any) -> Standing:
    async with await connect(ledger.database.url_for("tallystick_operator")) as operator:
        return await prove(operator, **options)


async def test_budgets_and_ledger_agree_and_it_is_written_down_how_far(ledger: Ledger) -> None:
    assert await standing(ledger, every_seconds=60) == Standing(0, [], [NO_MARTS], 2)
    async with await connect(ledger.database.url_for("tallystick_operator")) as operator:
        (kept,) = await list_proofs(operator)
    assert (kept.kind, kept.difference_count, kept.up_to, kept.notes) == ("standing", 0, {"file:test": 2}, [NO_MARTS])


async def test_only_what_was_posted_since_is_added(ledger: Ledger) -> None:
    """Two batches, then one, then none; the sums are those of all three whichever way they were made."""
    assert (await standing(ledger)).batch_count == 2
    await ledger.post(make_event("c"), make_event("late", time="2025-12-31T23:00:00Z"))
    assert await standing(ledger) == Standing(0, [], [NO_MARTS], 1)
    assert (await standing(ledger)).batch_count == 0
    columns = "tenant_id, month, cost_currency, charge_currency, cost_amount, charge_amount, request_count, input_tokens, output_tokens"
    sums = ledger.rows(f"select {columns} from ledger.proof_totals order by 1, 2, 3, 4")
    assert [row[:2] for row in sums if row[2] == "USD"] == [
        ("t-alpha", date(2025, 12, 1)), ("t-alpha", date(2026, 1, 1)), ("t-beta", date(2026, 1, 1)),
    ]  # fmt: skip
    assert (await standing(ledger, anew=True)).batch_count == 3
    assert ledger.rows(f"select {columns} from ledger.proof_totals order by 1, 2, 3, 4") == sums


async def test_a_window_that_was_changed_is_named_until_it_is_right_again(ledger: Ledger) -> None:
    await standing(ledger)
    where = "where budget_id = 'totals-charge' and tenant_id = 't-beta'"
    ledger.superuser.execute(f"update quotas.windows set posted = posted - 0.0001 {where}")
    said = Difference(
        "budgets", "tenant t-beta, 2026-01, USD: budget totals-charge says 0.00018, the entries come to 0.00028"
    )
    for _ in range(2):
        found = await standing(ledger)
        assert (found.difference_count, list(found.differences)) == (1, [said])
    ledger.superuser.execute(f"update quotas.windows set posted = posted + 0.0001 {where}")
    assert (await standing(ledger)).difference_count == 0


async def test_rows_that_no_budget_saw_are_named(ledger: Ledger) -> None:
    """Somebody switches the triggers off and inserts a copy of a row into a batch that was not added yet."""
    await standing(ledger)
    await ledger.post(make_event("c"))
    ledger.superuser.execute("set session_replication_role = replica")
    ledger.superuser.execute(
        "insert into ledger.entries select (jsonb_populate_record(e, jsonb_build_object('entry_id', entry_id + 9))).*"
        " from ledger.entries as e where e.batch_id = (select max(batch_id) from ledger.batches)"
    )
    texts = [each.text for each in (await standing(ledger)).differences]
    assert texts == [
        f"tenant t-alpha, 2026-01, USD: budget totals-{book} says 0.00056, the entries come to 0.00084"
        for book in ("charge", "cost")
    ]


async def test_the_totals_themselves_are_missed(ledger: Ledger) -> None:
    ledger.superuser.execute("set session_replication_role = replica")
    ledger.superuser.execute("update quotas.budgets set ended_at = now() where budget_id = 'totals-cost'")
    texts = [each.text for each in (await standing(ledger)).differences]
    assert texts == ["budget totals-cost, which the standing proof needs, is gone or ended"]


async def without_december(ledger: Ledger, folder: Path) -> None:
    async with await connect(ledger.database.url_for("tallystick_operator")) as operator:
        await closing.close_periods(operator, "finance", DECEMBER, is_early=True, reason="test")
        await closing.seal_pending(operator)
        await closing.close_partitions(operator)
        made = await retention.export_month(operator, DECEMBER, folder, actor="finance")
        await retention.retire_month(operator, DECEMBER, keep=False, home=made.folder, actor="finance", reason="old")


async def test_a_month_whose_rows_left_still_counts(ledger: Ledger, tmp_path: Path) -> None:
    """From the sums where it was added before, else from its seal: without its rows nobody has to add them again."""
    await ledger.post(
        make_event("d", time="2025-12-10T10:00:00Z"), received_at="2025-12-10T10:00:01Z", feed="file:december"
    )
    await standing(ledger)
    await without_december(ledger, tmp_path)
    assert await standing(ledger) == Standing(0, [], [NO_MARTS], 0)
    sums = ledger.rows(
        "select tenant_id, month, charge_amount, request_count from ledger.proof_totals order by 1, 2, 3"
    )
    ledger.superuser.execute("delete from ledger.proof_marks")
    assert (await standing(ledger)).difference_count == 0
    assert sums == ledger.rows(
        "select tenant_id, month, charge_amount, request_count from ledger.proof_totals order by 1, 2, 3"
    )


async def test_clean_results_go_after_two_days_and_differences_stay(ledger: Ledger) -> None:
    await standing(ledger)
    ledger.superuser.execute(
        "update quotas.windows set posted = 0 where budget_id = 'totals-cost' and tenant_id = 't-beta'"
    )
    await standing(ledger)
    ledger.superuser.execute("update ledger.proofs set ended_at = ended_at - interval '49 hours'")
    await standing(ledger)
    assert [row[0] for row in ledger.rows("select difference_count from ledger.proofs order by proof_id")] == [1, 1]


async def test_a_proof_of_everything_is_written_down_too(ledger: Ledger) -> None:
    url = ledger.database.url_for("tallystick_operator")
    ledger.superuser.execute("set session_replication_role = replica")
    ledger.superuser.execute("update ledger.entries set trace_id = 'x' where entry_id = 65536")
    async with await connect(url) as operator:
        await note(operator, verify(url), every_seconds=86_400)
        (last,) = await last_proofs(operator)
        assert (last.kind, last.difference_count) == ("whole", 1)
        (kept,) = await list_proofs(operator, kind="whole")
    assert [each.part for each in kept.differences] == ["chain"]
    assert kept.up_to == {"file:test": 2}


def test_the_commands_prove_list_and_show(commands: Commands) -> None:
    assert "nothing has been proved yet" in commands.ok("proofs", "list").out
    assert "budgets, ledger and marts agree; 0 new batches" in commands.ok("proofs", "standing").out
    assert "everything holds" in commands.ok("verify").out
    shown = commands.ok("proofs", "show").out
    assert "standing: 0 differences" in shown
    assert "whole: 0 differences" in shown
    with commands.database.connect() as superuser:
        superuser.execute(
            "insert into quotas.windows (budget_id, group_key, window_start, tenant_id, currency, posted, last_batch_id)"
            " values ('totals-charge', '[\"t\", \"USD\"]', '2026-01-01', 't', 'USD', 1, 1)"
        )
    assert "1 total differs" in commands("proofs", "standing").err
    assert "not everything agrees" in commands("proofs", "show").err
    assert "--kind: standing or whole" in commands("proofs", "list", "--kind", "half").line
