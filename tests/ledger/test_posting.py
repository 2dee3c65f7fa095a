"""`post`: recorded once, charged once, nothing lost, nothing half done."""

from decimal import Decimal

from tests.factories import make_event
from tests.support.ledger import Ledger


async def test_an_event_becomes_one_priced_entry(ledger: Ledger) -> None:
    """100 x 2.00 / 1,000,000 + 10 x 8.00 / 1,000,000 = 0.00028."""
    await ledger.add_price(input="2.00", output="8.00")
    posted = await ledger.post(make_event())
    assert ledger.outcomes(posted) == ["created"]
    assert ledger.rows("select kind, request_count, cost_amount, charge_amount, input_tokens from ledger.entries") == [
        ("usage", 1, Decimal("0.00028"), Decimal("0.00028"), 100)
    ]
