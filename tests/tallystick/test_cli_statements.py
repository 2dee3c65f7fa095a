"""Reports that disagree, by command."""

import pytest

from tests.factories import NODE
from tests.ledger.test_statements import openai
from tests.support.ledger import Ledger
from tests.tallystick.commands import Commands


@pytest.fixture
async def posted(commands: Commands, months_template: str) -> Commands:
    """A pair that differs by two tokens, and one answer under two requests."""
    ledger = Ledger(commands.database).add_tenant().add_source().add_node()
    try:
        await ledger.add_price(input="2.00", output="8.00")
        await ledger.post(openai("g", 100, 10, request_id="r1", response_id="resp"))
        await ledger.post(openai("n", 102, 10, request_id="r1", source=NODE))
        await ledger.post(openai("h", 100, 10, request_id="r2", response_id="resp"))
    finally:
        ledger.close()
    return commands


def test_pairs_that_differ_are_listed_with_what_differs(posted: Commands) -> None:
    (found,) = posted.json("statements", "differ", "--tenant", "t-alpha")
    assert (found["request_id"], found["charge_difference"], found["is_counted"]) == ("r1", "0.000004", False)
    assert "uncached_input_tokens 100 > 102" in posted.ok("statements", "differ").out
    assert posted.ok("statements", "differ", "--since", "2100-01-01").out == "no reports differ\n"
    assert "the newest 1; --limit shows more" in posted.ok("statements", "differ", "--limit", "1").err


def test_an_answer_under_two_requests_is_listed(posted: Commands) -> None:
    (found,) = posted.json("statements", "shared-responses", "--since", "2026-01-15")
    assert (found["response_id"], sorted(found["request_ids"])) == ("resp", ["r1", "r2"])
    assert "resp" in posted.ok("statements", "shared-responses", "--since", "2026-01-01").out
    empty = posted.ok("statements", "shared-responses", "--since", "2026-02-01").out
    assert empty == "no answer stands under several requests\n"
