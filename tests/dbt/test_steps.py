"""A process that stays runs again what dbt ran, without dbt; where something is no longer as it was, dbt runs."""

from collections.abc import Callable
from typing import Any

import pytest

from tallystick import rollup
from tallystick.refold import refold
from tallystick.rollup import RollupFailed
from tests.dbt.conftest import Marts
from tests.dbt.test_rollup import set_up, usage
from tests.factories import make_event

# Additive marts, a recomputed one that is made from two of them, and a view.
ADDITIVE = ("fct_cost_daily", "fct_signals_5min", "fct_user_usage_5min", "fct_latency_daily")
SELECT = (*ADDITIVE, "fct_signal_baselines", "fct_latency_percentiles_daily")


@pytest.fixture
def dbt_runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commands that dbt was given."""
    given: list[str] = []
    runner: Callable[..., Any] = rollup._runner

    def noted(*arguments: Any) -> Any:
        made = runner(*arguments)
        invoke = made.invoke

        def invoked(command: list[str]) -> Any:
            given.append(command[0])
            return invoke(command)

        made.invoke = invoked
        return made

    monkeypatch.setattr(rollup, "_runner", noted)
    return given


async def stay(marts: Marts) -> None:
    """Make the marts, and let dbt add to them once."""
    await set_up(marts)
    await marts.post(make_event("a", time="2026-01-15T10:00:00Z", usage=usage(1)))
    marts.roll_up(*SELECT)
    await marts.post(make_event("b", time="2026-01-15T10:00:00Z", usage=usage(10)))
    marts.roll_up(*SELECT)


def tokens(marts: Marts, mart: str = "fct_cost_daily") -> int:
    return int(marts.ledger.value(f"select sum(input_tokens) from marts.{mart}"))


async def test_a_process_that_stays_adds_without_dbt_what_dbt_would_add(marts: Marts, dbt_runs: list[str]) -> None:
    """1 and 10 tokens by dbt, 100 of an old day without: as many rows as a mart made from nothing has."""
    await stay(marts)
    dbt_runs.clear()
    await marts.post(make_event("c", time="2026-01-14T10:00:00Z", usage=usage(100)))
    added = marts.roll_up(*SELECT)
    assert dbt_runs == []
    assert (tokens(marts), tokens(marts, "fct_signals_5min")) == (111, 111)
    assert added.rows["fct_cost_daily"] == 1
    assert set(added.rows) == set(SELECT)
    assert marts.ledger.rows("select * from marts.run_batches") == []
    assert marts.ledger.rows("select distinct low, high from marts.watermarks") == [(3, 3)]
    found = refold(marts.url, marts.home, marts=ADDITIVE)
    assert (found.differences, len(found.marts)) == ([], len(ADDITIVE))
    assert set(marts.roll_up(*SELECT).rows.values()) == {0}
    assert tokens(marts) == 111


@pytest.mark.parametrize(
    ("change", "back"),
    [
        ("drop table marts.fct_cost_daily cascade", None),
        ("alter table marts.fct_cost_daily add note text", "alter table marts.fct_cost_daily drop note"),
        ("drop view marts.fct_latency_percentiles_daily cascade", None),
    ],
)
async def test_marts_that_are_not_as_they_were_are_for_dbt(
    marts: Marts, dbt_runs: list[str], change: str, back: str | None
) -> None:
    await stay(marts)
    dbt_runs.clear()
    marts.ledger.superuser.execute(change.encode())
    await marts.post(make_event("c", usage=usage(100)))
    if back is not None:
        with pytest.raises(RollupFailed, match=r"fct_cost_daily: .*column note is text in the mart"):
            marts.roll_up(*SELECT)
        marts.ledger.superuser.execute(back.encode())
    else:
        marts.roll_up(*SELECT)
        assert dbt_runs == ["run"]
    marts.roll_up(*SELECT)
    assert tokens(marts) == 111


async def test_what_is_made_from_a_mart_that_fails_waits_and_the_others_go_on(
    marts: Marts, dbt_runs: list[str]
) -> None:
    await stay(marts)
    dbt_runs.clear()
    await marts.post(make_event("c", usage=usage(100)))
    marts.ledger.superuser.execute(
        "create function marts.fail() returns trigger language plpgsql as $$ begin"
        " if new.model = 'fct_signals_5min' and new.low > old.low then raise exception 'the power went'; end if;"
        " return new; end $$"
    )
    marts.ledger.superuser.execute(
        "create trigger fail before update on marts.watermarks for each row execute function marts.fail()"
    )
    with pytest.raises(RollupFailed, match=r"^rollup: fct_signals_5min: the power went"):
        marts.roll_up(*SELECT)
    assert dbt_runs == []
    assert marts.ledger.rows(
        "select model, max(low) from marts.watermarks group by 1 having max(low) < 3 order by 1"
    ) == [("fct_signal_baselines", 2), ("fct_signals_5min", 2)]
    assert (tokens(marts), tokens(marts, "fct_signals_5min")) == (111, 11)
    marts.ledger.superuser.execute("drop trigger fail on marts.watermarks")
    marts.roll_up(*SELECT)
    assert dbt_runs == []
    assert tokens(marts, "fct_signals_5min") == 111
