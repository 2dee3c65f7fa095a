"""`tallystick spikes`: signals with score and since when, and a query that runs as it is printed."""

import asyncio
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from tallystick.commands.common import WAITS
from tallystick.commands.spikes import Finding, by_incident
from tests.factories import make_event
from tests.support.ledger import Ledger
from tests.tallystick.commands import Commands

START = datetime(2026, 3, 2, tzinfo=UTC)


def call(number: int, at: datetime, **data: Any) -> dict[str, Any]:
    """A call of 0.20 USD."""
    usage = {"prompt_tokens": 200_000, "completion_tokens": 0, "total_tokens": 200_000}
    return make_event(
        f"ev-{number}", time=f"{at:%Y-%m-%dT%H:%M:%SZ}", usage=usage, **{"user_hash": f"u-{number % 7}", **data}
    )


async def _post(commands: Commands) -> None:
    """Ten calls an hour for four days; then a new key makes sixty in ten minutes, with quotes in its name."""
    ledger = Ledger(commands.database)
    try:
        ledger.add_tenant().add_tenant("t-beta").add_source()
        await ledger.add_price(input="1.00", output="1.00")
        usual = [call(n, START + timedelta(minutes=6 * n), api_key_id="key-1") for n in range(970)]
        burst = START + timedelta(days=4)
        stolen = [call(10_000 + n, burst + timedelta(seconds=10 * n), api_key_id="o'key\"") for n in range(60)]
        await ledger.post(*usual, received_at="2026-03-31T00:00:00Z")
        await ledger.post(*stolen, received_at="2026-03-31T00:00:00Z")
    finally:
        ledger.close()


async def _post_one(commands: Commands) -> None:
    ledger = Ledger(commands.database)
    try:
        await ledger.post(call(99_999, START + timedelta(days=5)), received_at="2026-03-31T00:00:00Z")
    finally:
        ledger.close()


def test_before_the_first_rollup_there_are_no_signals_to_show(commands: Commands) -> None:
    assert commands("spikes").line == "the marts hold no signals yet: run `tallystick rollup`"


@pytest.mark.marts
def test_signals_are_shown_with_score_time_and_the_query_that_explains_them(commands: Commands) -> None:
    asyncio.run(_post(commands))
    commands.ok("rollup")

    ran = commands("spikes", "--since", "2026-03-06", "--format", "json")
    assert ran.code == WAITS
    (found,) = [each for each in ran.json if each["kind"] == "new_key"]
    assert (found["tenant_id"], found["api_key_id"], found["since_at"]) == (
        "t-alpha", "o'key\"", "2026-03-06T00:00:00Z",
    )  # fmt: skip
    # 12 USD are 2.4 times the minimum of 5, each of which has the score that a signal needs: 4.5.
    assert found["score"] == "10.8"
    assert commands.json("sql", found["explain_sql"])

    table = commands("spikes", "--since", "2026-03-06", "--tenant", "t-alpha")
    assert table.code == WAITS
    assert "1 new_key of t-alpha: select " in table.out
    assert "2.4 minimums" in table.out
    assert commands.ok("spikes", "--since", "2026-03-06", "--tenant", "t-beta").out == "nothing unusual\n"
    # By default a day back from now, and that was months ago.
    assert commands.ok("spikes").out == "nothing unusual\n"
    assert commands("spikes", "--since", "yesterday").code == 1
    assert commands("spikes", "--tenant", "t-alhpa").line == "there is no tenant 't-alhpa'"

    # A batch that the marts have not taken up: for a minute nobody minds, then it could be what one looks for.
    asyncio.run(_post_one(commands))
    assert commands.ok("spikes").out == "nothing unusual\n"
    with commands.database.connect(autocommit=True) as connection:
        connection.execute("set session_replication_role = replica")
        connection.execute(
            "update ledger.batches set recorded_at = now() - interval '1 hour' where batch_id = (select max(batch_id) from ledger.batches)"
        )
    unseen = commands("spikes")
    assert (unseen.code, unseen.out) == (1, "")
    assert unseen.line.endswith("UTC is not in the marts, and not looked at: `tallystick rollup`")
    found = commands("spikes", "--since", "2026-03-06")
    assert found.code == WAITS
    assert "is not in the marts" in found.err


def _finding(
    kind: str, since: int, last: int, *, key: str = "key-1", severity: str = "warning", score: int = 10
) -> Finding:
    """A finding of t-alpha, seen from one minute of an hour to another."""
    at = [START + timedelta(minutes=minute) for minute in (since, last)]
    share = Decimal("0.5")
    return Finding(
        "t-alpha", kind, "chat", key, "", severity, Decimal(score), at[0], at[1], share, share, None, "select 1"
    )


def test_what_is_unusual_of_one_key_at_one_time_is_one_incident_and_the_most_urgent_comes_first() -> None:
    """The user is of all keys, and so joins them; without one, key-2 is another incident. So is what key-1 did an hour later."""
    found = [
        _finding("cache", 10, 30, severity="notice"),
        _finding("spend", 0, 20, severity="critical"),
        _finding("errors", 5, 20, key="key-2", score=11),
        _finding("one_user", 20, 40, key="", score=12),
        _finding("model_shift", 80, 90),
    ]
    assert [(each.incident, each.kind) for each in by_incident(found)] == [
        (1, "spend"),
        (1, "one_user"),
        (1, "errors"),
        (1, "cache"),
        (2, "model_shift"),
    ]
    assert [(each.incident, each.kind) for each in by_incident(found[:3])] == [
        (1, "spend"),
        (1, "cache"),
        (2, "errors"),
    ]
