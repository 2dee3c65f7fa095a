"""Approvals by command."""

import asyncio

import pytest

from ledger.approvals import Awaiting, second_person
from ledger.database import connect
from tests.tallystick.commands import Commands


async def asked_for(commands: Commands, request_id: str = "r") -> int:
    async with await connect(commands.database.url_for("tallystick_operator")) as connection:
        found = await second_person(
            connection,
            {"corrections.reverse"},
            "corrections.reverse",
            {"request_id": request_id},
            actor="ann",
            reason="twice",
        )
    assert isinstance(found, Awaiting)
    assert f"approval {found.approval_id} is asked for" in found.line
    return found.approval_id


def test_what_waits_is_listed_answered_and_gone(commands: Commands) -> None:
    assert commands.ok("approvals", "list").out == "nothing waits for a second person\n"
    first = asyncio.run(asked_for(commands))
    (listed,) = commands.json("approvals", "list")
    assert (listed["approval_id"], listed["state"], listed["detail"]) == (first, "requested", {"request_id": "r"})
    assert "was asked for by ann" in commands("approvals", "approve", str(first), "--actor", "ann").line
    assert "may be done by ann" in commands.ok("approvals", "approve", str(first), "--actor", "ben").out
    assert (
        f"approval {first} is approved by ben" in commands("approvals", "approve", str(first), "--actor", "cleo").line
    )
    assert commands.json("approvals", "list")[0]["decided_by"] == "ben"
    assert commands("approvals", "refuse", str(first), "--actor", "ben").code == 2, "a refusal says why"
    assert "there is no approval '99'" in commands("approvals", "refuse", "99", "--reason", "no").line
    assert [each["act"] for each in commands.json("acts", "list")] == ["approvals.approve"]


def test_several_are_answered_at_once_or_none(commands: Commands) -> None:
    """A month of invoices asks for one each."""
    ids = [str(asyncio.run(asked_for(commands, f"r-{number}"))) for number in range(3)]
    assert "there is no approval '99'" in commands("approvals", "approve", *ids, "99", "--actor", "ben").line
    assert {each["state"] for each in commands.json("approvals", "list")} == {"requested"}
    said = commands.ok("approvals", "approve", *ids, ids[0], "--actor", "ben").out
    assert said.count("may be done by ann") == 3
    assert {each["state"] for each in commands.json("approvals", "list")} == {"approved"}


def test_the_setting_is_read_and_a_name_that_is_no_act_is_refused(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TALLYSTICK_SECOND_PERSON", "corrections.reverse, corrections.adjust")
    needed = {each["act"] for each in commands.json("approvals", "acts") if each["needs_two"]}
    assert needed == {"corrections.reverse", "corrections.adjust"}
    assert "negate everything" in commands.ok("approvals", "acts").out
    monkeypatch.setenv("TALLYSTICK_SECOND_PERSON", "corrections.revers")
    assert "no act 'corrections.revers' can need a second person" in commands("approvals", "acts").line
