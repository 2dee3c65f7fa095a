"""The refold: every bucket of every mart that is a fold equals that of the whole ledger, and one that does not is named."""

from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from pathlib import Path

from ledger import closing
from ledger.database import connect
from ledger.retention import export_month, retire_month
from tallystick.refold import Refold, added, refold
from tallystick.rollup import run_rollup
from tallystick.verify import verify
from tests.dbt import test_gpu
from tests.dbt.conftest import Marts
from tests.dbt.test_rollup import FACTS, set_up, usage
from tests.factories import NODE, make_event


def refolded(marts: Marts) -> Refold:
    return refold(marts.url, marts.home)


async def test_what_runs_added_equals_the_fold_of_the_ledger(marts: Marts) -> None:
    """Two runs, a better statement between them, and a batch that no run has consumed yet, which is in neither side."""
    await set_up(marts)
    await marts.post(
        make_event("a", time="2026-01-15T10:14:00Z", usage=usage(100)),
        make_event("n", source=NODE, request_id="r", feature=..., usage=usage(40), final=False),
    )
    marts.roll_up()
    await marts.post(make_event("g", request_id="r", usage=usage(50)))
    marts.roll_up()
    await marts.post(make_event("waiting", usage=usage(7)))
    found = refolded(marts)
    assert found.differences == []
    assert found.notes == []
    names = {mart.mart for mart in found.marts}
    assert {"fct_usage_15min", "fct_usage_hourly", "fct_cost_daily"} <= names
    additive = marts.ledger.rows("select distinct model from marts.watermarks")
    assert names <= {name for (name,) in additive}
    assert all(mart.row_count for mart in found.marts if mart.mart in {"fct_usage_15min", "fct_cost_daily"})


async def test_a_micro_unit_in_one_bucket_is_named_with_tenant_time_and_number(marts: Marts) -> None:
    await set_up(marts)
    await marts.post(make_event("a", time="2026-01-15T10:14:00Z", usage=usage(1_000_000)))
    marts.roll_up(*FACTS)
    marts.ledger.superuser.execute("update marts.fct_usage_hourly set charge_amount = charge_amount + 0.000001")
    marts.ledger.superuser.execute("delete from marts.fct_cost_daily")
    found = refolded(marts)
    assert found.difference_count == 2
    assert found.differences == [
        "fct_cost_daily: tenant t-alpha, local day 2026-01-15, feature chat, language en, provider openai, model m-sub,"
        " cost_currency USD, charge_currency USD: the mart lacks the row",
        "fct_usage_hourly: tenant t-alpha, from 2026-01-15 10:00 UTC, feature chat, language en, provider openai, model m-sub,"
        " cost_currency USD, charge_currency USD: the mart says charge_amount 1.000001, the ledger 1.000000",
    ]


async def test_the_refold_is_part_of_the_proof_of_everything(marts: Marts) -> None:
    """A count that neither the standing proof nor `verify` compares is found all the same."""
    await set_up(marts)
    await marts.post(make_event("a", usage=usage(1)))
    marts.roll_up(*FACTS)
    marts.ledger.superuser.execute("update marts.fct_usage_15min set evidence_count = 1")
    proof = verify(marts.ledger.database.url_for("tallystick_operator"))
    assert proof.ok
    whole = added(proof, refolded(marts))
    assert [failure.part for failure in whole.failures] == ["marts"]
    assert "the mart says evidence_count 1, the ledger 0" in whole.failures[0].text
    assert whole.checked["mart buckets"] >= 3


async def test_a_micro_unit_in_any_one_copy_is_found_with_its_tenant_and_time(marts: Marts) -> None:
    """A dollar and 2 dollars of t-alpha and t-beta at ten; each copy is broken by a millionth in turn and made right again."""
    await set_up(marts)
    marts.ledger.add_tenant("t-beta")
    await marts.post(
        make_event("a", time="2026-01-15T10:14:00Z", usage=usage(1_000_000)),
        make_event("b", time="2026-01-15T10:14:00Z", usage=usage(2_000_000), tenant_id="t-beta"),
    )
    buckets = {
        "fct_usage_15min": "quarter hour 2026-01-15 10:00 UTC",
        "fct_usage_hourly": "hour 2026-01-15 10:00 UTC",
        "fct_cost_daily": "local day 2026-01-15",
    }
    run_rollup(marts.url, marts.home, select=(*buckets, "fct_signals_5min"))
    marts.ledger.superuser.execute("set session_replication_role = replica")

    def said(table: str, column: str, where: str, *, is_refolded: bool = False) -> list[str]:
        """What is found while one row of a copy is a micro-unit too high."""
        change = f"update {table} set {column} = {column} {{}} 0.000001 where tenant_id = 't-beta' and {where}"
        assert marts.ledger.superuser.execute(change.format("+").encode()).rowcount == 1
        proof = verify(marts.ledger.database.url_for("tallystick_operator"))
        if is_refolded:
            assert proof.ok, proof.failures
            proof = added(proof, refold(marts.url, marts.home, marts=("fct_signals_5min",)))
        marts.ledger.superuser.execute(change.format("-").encode())
        return [failure.text for failure in proof.failures]

    def about(mart: str, bucket: str, copy: str, ledger: str) -> str:
        return (
            f"{mart}: tenant t-beta, {bucket}: the mart says charge {copy} USD, cost 2 USD, 1 requests;"
            f" the ledger says {ledger}, 2, 1"
        )

    for mart, bucket in buckets.items():
        assert said(f"marts.{mart}", "charge_amount", "true") == [about(mart, bucket, "2.000001", "2")]
    (signals,) = said("marts.fct_signals_5min", "charge_amount", "true", is_refolded=True)
    assert signals.startswith("fct_signals_5min: tenant t-beta, from 2026-01-15 10:10 UTC, ")
    assert signals.endswith("the mart says charge_amount 2.000001, the ledger 2.000000")
    window, total = said("quotas.windows", "posted", "budget_id = 'totals-charge'")
    assert window.startswith(
        'budget totals-charge ["t-beta", "USD"] of tenant t-beta, window of 2026-01-01: holds 2.000001'
    )
    assert total == "tenant t-beta, 2026-01, USD: budget totals-charge says 2.000001, the ledger 2"
    entry = said("ledger.entries", "charge_amount", "true")
    assert entry[0].endswith(
        "the rows of batch 1 in 2026-01 differ from what was posted: entry 65537 of tenant t-beta was changed"
    )
    assert {about(mart, bucket, "2", "2.000001") for mart, bucket in buckets.items()} <= set(entry)
    assert verify(marts.ledger.database.url_for("tallystick_operator")).ok


async def test_a_micro_unit_in_a_mart_that_is_made_anew_is_named_with_node_tenant_and_hour(marts: Marts) -> None:
    """A cent a second; alpha's call of 10 s is 0.10 USD. Hours of two runs, of one rate that came late, and of no window."""
    mart = "fct_gpu_allocation_hourly"
    await test_gpu.set_up(marts)
    await test_gpu.add_rates(marts, test_gpu.rate())
    await marts.post(test_gpu.window("w-1", "09:00:00", "10:00:00"), test_gpu.request("e-1", "09:30:10", 1_000, 100))
    marts.roll_up(mart)
    await test_gpu.add_rates(marts, test_gpu.rate("72", "2026-01-15T11:00:00Z"))
    await marts.post(
        test_gpu.window("w-2", "10:00:00", "11:30:00"),
        test_gpu.window("w-3", "14:00:00", "15:00:00", gpu_model="L4"),
        test_gpu.request("e-2", "10:10:00", 1_000, 100, tenant_id="t-beta"),
        test_gpu.request("e-3", "13:00:05", 1_000, 100),
    )
    marts.roll_up(mart)
    # No run has consumed it, so it is in neither side.
    await marts.post(test_gpu.request("e-4", "09:45:00", 1_000, 100))

    def differences() -> Sequence[str]:
        found = refold(marts.url, marts.home, marts=(mart,))
        assert found.notes == []
        assert [(each.mart, each.row_count) for each in found.marts] == [(mart, 8)]
        return found.differences

    assert differences() == []
    change = f"update marts.{mart} set node_amount = node_amount {{}} 0.000001 where kind = 'request' and tenant_id = 't-alpha'"
    assert marts.ledger.superuser.execute(change.format("+").encode()).rowcount == 1
    assert differences() == [
        f"{mart}: tenant t-alpha, from 2026-01-15 09:00 UTC, node_id gpu-7, kind request, feature chat, language en,"
        " provider vllm, model m-own, currency USD, standard_currency USD:"
        " the mart says node_amount 0.100001000000, the ledger 0.100000000000"
    ]
    marts.ledger.superuser.execute(change.format("-").encode())
    # Unknown is not zero.
    unknown = f"update marts.{mart} set bill_amount = 0 where bill_amount is null"
    assert marts.ledger.superuser.execute(unknown.encode()).rowcount == 1
    (text,) = differences()
    assert text.endswith("the mart says bill_amount 0, the ledger None")


async def test_days_of_a_month_that_left_are_held_against_its_seal(marts: Marts, tmp_path: Path) -> None:
    """January is sealed and its rows leave; a call of January that came late stands in February, and its day holds both."""
    await set_up(marts)
    await marts.post(
        make_event("a", time="2026-01-15T10:14:00Z", usage=usage(1_000_000)),
        make_event("f", time="2026-02-03T10:14:00Z", usage=usage(500_000)),
    )
    marts.roll_up(*FACTS)
    january = date(2026, 1, 1)
    async with await connect(marts.ledger.database.url_for("tallystick_operator")) as operator:
        await closing.close_periods(operator, "test", january)
        await closing.seal_pending(operator)
        await closing.close_partitions(operator)
        await marts.post(make_event("late", time="2026-01-15T11:00:00Z", usage=usage(2_000_000)))
        marts.roll_up(*FACTS)
        await export_month(operator, january, tmp_path / "out", actor="test")
        await retire_month(operator, january, keep=False, actor="test", reason="over")
    found = refolded(marts)
    assert found.differences == []
    assert "fct_usage_hourly was compared from 2026-02-01 on: the rows of before have left the ledger" in found.notes
    assert not [note for note in found.notes if note.startswith("fct_cost_daily")]
    assert marts.ledger.rows(
        "select local_date::text, request_count, charge_amount from marts.fct_cost_daily order by 1"
    ) == [("2026-01-15", 2, Decimal(3)), ("2026-02-03", 1, Decimal("0.5"))]
    marts.ledger.superuser.execute(
        "update marts.fct_cost_daily set charge_amount = charge_amount + 0.000001 where local_date = '2026-01-15'"
    )
    (text,) = refolded(marts).differences
    assert text.startswith("fct_cost_daily: tenant t-alpha, local day 2026-01-15, ")
    assert "the mart says charge_amount 3.000001, the ledger 3.000000" in text
