"""Reservations: who may spend, what is held for them, and what gives it back."""

from decimal import Decimal

from tests.quotas.support import Desk, add_price, set_budget, spend
from tests.support.ledger import Ledger


async def test_what_is_admitted_is_held(ledger: Ledger) -> None:
    await add_price(ledger)
    await set_budget(ledger, limit="1.00")
    await spend(ledger, "e1", "0.25")
    async with Desk(ledger) as desk:
        (first,) = await desk.ask("r1", "0.50")
        assert (first.outcome, first.state) == ("admitted", "held")
        assert [(hold.budget_id, hold.held) for hold in first.holds] == [("b", "0.50")]
        assert first.tightest is not None
        assert (first.tightest.limit, Decimal(first.tightest.remaining)) == ("1", Decimal("0.25"))
        (second,) = await desk.ask("r2", "0.26")
        assert (second.outcome, second.reason, second.state) == ("refused", "limit", None)
        assert desk.window() == ("0.25", "0.5")
