"""Reservations by command: found by tenant, state and age, shown, and released by a person with a reason."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from quotas.asks import Settlement
from quotas.reservations import settle
from tests.quotas.support import Desk, add_price, set_budget, spend
from tests.support.ledger import Ledger
from tests.tallystick.commands import Commands


@pytest.fixture
def world(commands: Commands, months_template: str) -> Iterator[Ledger]:
    made = Ledger(commands.database).add_tenant().add_source()
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
async def held(commands: Commands, world: Ledger) -> Commands:
    """A limit of 1.00: 0.40 held, 0.30 awaiting its entry since a day, 0.20 settled, all of t-alpha in March."""
    await add_price(world)
    await set_budget(world, limit="1.00")
    async with Desk(world) as desk:
        for name, amount in (("r-held", "0.40"), ("r-ended", "0.30"), ("r-settled", "0.20")):
            await desk.ask(name, amount, operation_id=f"op-{name}")
        ended = Settlement(tenant_id="t-alpha", reservation_id="r-ended")
        await settle(desk.connection, [ended], at=desk.at + 86_400_000_000)
    await spend(world, "e1", "0.20", reservation_id="r-settled")
    return commands


def listed(commands: Commands, *options: str) -> list[str]:
    return [each["reservation_id"] for each in commands.json("reservations", "list", *options)]


def window(world: Ledger) -> Any:
    return world.rows(
        "select trim_scale(posted)::text, trim_scale(held)::text from quotas.windows where budget_id = 'b'"
    )


def test_what_is_held_is_found_by_tenant_state_and_age(held: Commands, world: Ledger) -> None:
    assert listed(held) == ["r-held", "r-ended"], "the oldest first, and only what is held"
    assert listed(held, "--state", "awaiting_entry") == ["r-ended"]
    assert listed(held, "--state", "settled", "--tenant", "t-alpha") == ["r-settled"]
    assert held("reservations", "list", "--tenant", "t-beta").line == "there is no tenant 't-beta'"
    age = held.json("reservations", "list")[1]["age_seconds"] / 60
    assert listed(held, "--older-than", f"{age + 60}") == ["r-held"], (
        "between the end of one and the start of the other"
    )
    assert listed(held, "--older-than", f"{age + 86_400}") == []
    assert "0.3 USD of b" in held.ok("reservations", "list").out
    assert held("reservations", "list", "--state", "stuck").line.startswith("state 'stuck' is none of held, ")
    shown = held.json("reservations", "show", "t-alpha", "r-ended")
    assert (shown["state"], shown["operation_id"], shown["holds"][0]["held"]) == ("awaiting_entry", "op-r-ended", "0.3")
    assert "awaiting_entry" in held.ok("reservations", "show", "t-alpha", "r-ended").out
    assert (
        held("reservations", "show", "t-alpha", "r-none").line == "there is no reservation of tenant t-alpha 'r-none'"
    )


def test_a_person_releases_what_awaits_an_entry_for_good(held: Commands, world: Ledger) -> None:
    """0.70 held of 1.00; 0.30 are let go, and the usage that comes all the same is booked in full beside the 0.40."""
    assert held("reservations", "release", "t-alpha", "r-ended").code == 2, "a release says why"
    both = ("reservations", "release", "t-alpha", "r-ended", "r-settled", "--reason", "the gateway lost it")
    assert held(*both).line == "reservation 'r-settled' of tenant t-alpha is settled: nothing is held"
    assert window(world) == [("0.2", "0.7")], "all or none"
    said = held.ok(*both[:4], "--reason", "the gateway lost it", "--actor", "ann").out
    assert said == "released 1 reservation of t-alpha\n"
    assert window(world) == [("0.2", "0.4")]
    (act,) = [each for each in held.json("acts", "list") if each["act"] == "reservations.release"]
    assert (act["actor"], act["reason"], act["detail"]) == (
        "ann", "the gateway lost it", {"reservations": [["t-alpha", "r-ended"]]},
    )  # fmt: skip
    asyncio.run(spend(world, "e2", "0.30", reservation_id="r-ended"))
    assert window(world) == [("0.5", "0.4")]
    assert world.value("select state from quotas.reservations where reservation_id = 'r-ended'") == "voided"
    assert held.ok("verify").code == 0


def test_a_release_waits_for_a_second_person_where_the_setting_asks_for_one(
    held: Commands, world: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TALLYSTICK_SECOND_PERSON", "reservations.release")
    release = ("reservations", "release", "t-alpha", "r-held", "--reason", "stuck", "--actor", "ann")
    assert held.waits(*release).startswith("reservations.release needs a second person: approval 1 is asked for until ")
    assert window(world) == [("0.2", "0.7")]
    held.ok("approvals", "approve", "1", "--actor", "ben")
    held.ok(*release)
    assert window(world) == [("0.2", "0.3")]
    (act,) = [each for each in held.json("acts", "list") if each["act"] == "reservations.release"]
    assert (act["actor"], act["second_person"]) == ("ann", "ben")
