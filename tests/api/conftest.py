"""A small world for the API's tests."""

import pytest

from tests.support.ledger import Ledger


@pytest.fixture
async def world(ledger: Ledger) -> Ledger:
    """Two tenants, a gateway that speaks for all, a gateway of t-beta alone, and a model at 2 and 8 USD a million."""
    ledger.add_tenant("t-beta").add_source("gateway://beta", tenants=["t-beta"])
    return await ledger.add_price(input="2.00", output="8.00")
