"""Corrections by command: shown first, posted with a reason, and by two people where that is set."""

from decimal import Decimal

import pytest

from tests.ledger.test_statements import openai
from tests.support.ledger import Ledger
from tests.tallystick.commands import Commands

COMMIT = ("--commit", "--reason", "wrong tenant", "--actor", "ann")


@pytest.fixture
async def posted(commands: Commands, months_template: str) -> Commands:
    """A request r of 0.00028, a proposal to it of 0.00014, and a conflict of another."""
    ledger = Ledger(commands.database).add_tenant().add_source()
    try:
        await ledger.add_price(input="2.00", output="8.00")
        await ledger.post(openai("a", 100, 10, request_id="r"))
        await ledger.post(openai("b", 50, 5, request_id="r", revision=1))
        await ledger.post(openai("c", 100, 10, request_id="r2"))
        await ledger.post(openai("c", 50, 5, request_id="r2"))
    finally:
        ledger.close()
    return commands


def charge(commands: Commands, request_id: str = "r") -> Decimal:
    with commands.database.connect() as connection:
        row = connection.execute(
            "select sum(charge_amount) from ledger.entries where request_id = %s", [request_id]
        ).fetchone()
    assert row is not None
    return Decimal(row[0])


def test_a_reversal_is_shown_and_then_posted(posted: Commands) -> None:
    shown = posted.ok("corrections", "reverse", "t-alpha", "r").out
    assert "0.00028" in shown
    assert "nothing is posted yet: --commit --reason posts 1 entry" in shown
    assert charge(posted) == Decimal("0.00028")
    assert "--commit needs --reason" in posted("corrections", "reverse", "t-alpha", "r", "--commit").line
    done = posted.ok("corrections", "reverse", "t-alpha", "r", *COMMIT).out
    assert done == (
        "correction 1: posted 1 entry; charge -0.00028 USD, cost -0.00028 USD, requests -1, input tokens -100,"
        " output tokens -10\n"
    )
    assert charge(posted) == 0
    assert "nothing stands that could be reversed" in posted("corrections", "reverse", "t-alpha", "r", *COMMIT).line
    (listed,) = posted.json("corrections", "list", "--request", "r")
    assert (listed["actor"], listed["reason"], listed["kind"]) == ("ann", "wrong tenant", "reverse")
    assert "wrong tenant" in posted.ok("corrections", "list").out
    assert posted.json("acts", "list", "--act", "corrections")[0]["act"] == "corrections.reverse"


def test_counts_and_differences_are_stated(posted: Commands) -> None:
    """50 x 2 + 5 x 8 = 140 millionths; 0.00014 - 0.0001 = 0.00004."""
    counts = ("--count", "uncached_input_tokens=50", "--count", "visible_output_tokens=5")
    shown = posted.json("corrections", "adjust", "t-alpha", "r", *counts)
    charged = shown["effects"][0]
    assert (charged["what"], charged["currency"]) == ("charge", "USD")
    assert Decimal(charged["difference"]) == Decimal("-0.00014")
    posted.ok("corrections", "adjust", "t-alpha", "r", *counts, *COMMIT)
    by_money = ("corrections", "adjust", "t-alpha", "r", "--charge", "-0.0001", *COMMIT)
    posted.ok(*by_money)
    assert "had been made by ann before; nothing was done now" in posted.ok(*by_money).out
    assert charge(posted) == Decimal("0.00004")
    made = posted.json(*by_money, "--id", "once more")
    assert made["record"]["correction_id"] == "once more"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("adjust", "t-alpha", "r"), "state either counts (--count) or a difference"),
        (
            ("adjust", "t-alpha", "r", "--count", "a=1", "--charge", "1"),
            "state either counts (--count) or a difference",
        ),
        (("adjust", "t-alpha", "r", "--count", "a"), "--count 'a' is not METER=N"),
        (("adjust", "t-alpha", "r", "--count", "a=1", "--count", "a=2"), "--count names a twice"),
        (("adjust", "t-alpha", "r", "--count", "a=1"), "quantities: 'a' is no meter"),
        (("adjust", "t-alpha", "r", "--charge", "1,5"), "--charge: '1,5' is not a decimal number"),
        (("reverse", "t-alpha", "r9"), "there is no request 'r9 of tenant t-alpha'"),
        (("reverse", "t-alpha", "r", "--fee", "--book", "both"), "--book is charge or cost"),
        (("accept",), "name either a report (--entry) or a dead letter (--letter)"),
        (("accept", "--entry", "7"), "there is no entry '7'"),
        (("accept", "--letter", "99"), "there is no dead letter '99'"),
        (("refuse", "7", "--reason", "no"), "there is no entry '7'"),
    ],
)
def test_what_makes_no_sense_is_one_line(posted: Commands, arguments: tuple[str, ...], line: str) -> None:
    assert line in posted("corrections", *arguments).line


def test_a_proposal_is_listed_and_accepted(posted: Commands) -> None:
    (waiting,) = posted.json("corrections", "proposals")
    assert waiting["request_id"] == "r"
    entry = str(waiting["entry_id"])
    assert entry in posted.ok("corrections", "proposals", "--tenant", "t-alpha", "--since", "2026-01-01").out
    assert "0.00014" in posted.ok("corrections", "accept", "--entry", entry).out
    posted.ok("corrections", "accept", "--entry", entry, *COMMIT)
    assert charge(posted) == Decimal("0.00014")
    assert posted.ok("corrections", "proposals").out == "no proposals wait\n"


def test_a_proposal_is_refused(posted: Commands) -> None:
    (waiting,) = posted.json("corrections", "proposals")
    said = posted.ok("corrections", "refuse", str(waiting["entry_id"]), "--reason", "the bill says 100")
    assert said.out == f"correction 1: entry {waiting['entry_id']} does not count\n"
    assert posted.json("corrections", "proposals") == []


def test_the_second_content_of_a_conflict_is_accepted(posted: Commands) -> None:
    (letter,) = posted.json("dead-letters", "list", "--code", "conflict")
    number = str(letter["dead_letter_id"])
    posted.ok("corrections", "accept", "--letter", number)
    posted.ok("corrections", "accept", "--letter", number, *COMMIT)
    assert charge(posted, "r2") == Decimal("0.00014")
    assert posted.json("dead-letters", "list", "--code", "conflict") == []


def test_where_two_are_needed_the_second_agrees_first(posted: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TALLYSTICK_SECOND_PERSON", "corrections.reverse")
    command = ("corrections", "reverse", "t-alpha", "r")
    assert "--commit --reason and a second person posts" in posted.ok(*command).out
    asked = posted.waits(*command, *COMMIT)
    assert "corrections.reverse needs a second person: approval 1 is asked for" in asked
    assert charge(posted) == Decimal("0.00028")
    assert "was asked for by ann" in posted("approvals", "approve", "1", "--actor", "ann").line
    posted.ok("approvals", "approve", "1", "--actor", "ben")
    posted.ok(*command, *COMMIT)
    assert charge(posted) == 0
    assert posted.json("corrections", "list")[0]["second_person"] == "ben"
