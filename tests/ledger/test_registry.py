"""The register: what is changed counts from then on, and never reaches back over what is in the ledger."""

from datetime import date
from typing import Any

import pytest

from ledger import registry
from ledger.database import Connection
from ledger.errors import ActRefused
from ledger.money import CURRENCIES, currency_exponent
from ledger.times import parse_rfc3339
from tests.factories import make_event
from tests.support.ledger import Ledger

RECEIVED = "2027-01-01T00:00:00Z"


async def use(ledger: Ledger, event_id: str, at: str, **overrides: Any) -> None:
    posted = await ledger.post(make_event(event_id, time=at, **overrides), received_at=RECEIVED)
    assert ledger.outcomes(posted) == ["created"]


async def test_a_change_does_not_reach_back_over_usage(ledger: Ledger, operator: Connection) -> None:
    """Used on 2026-03-31 and 2026-04-01 UTC: a change may start with May, and not with April or March."""
    await use(ledger, "e1", "2026-03-31T23:59:59.999999Z")
    await use(ledger, "e2", "2026-04-01T00:00:00Z")
    for month in (3, 4):
        with pytest.raises(ActRefused, match="usage of tenant t-alpha at 2026-0"):
            await registry.change_tenant(operator, "test", "t-alpha", date(2026, month, 1), time_zone="Asia/Tokyo")
    await registry.change_tenant(operator, "test", "t-alpha", date(2026, 5, 1), time_zone="Asia/Tokyo")
    await use(ledger, "e3", "2026-04-30T23:59:59Z")
    await use(ledger, "e4", "2026-05-01T00:00:00Z")
    assert ledger.rows("select local_date::text, posting_period::text from ledger.entries order by entry_id")[2:] == [
        ("2026-04-30", "2026-04-01"),
        ("2026-05-01", "2026-05-01"),
    ]


async def test_a_closed_month_does_not_change(ledger: Ledger, operator: Connection) -> None:
    ledger.close_period("t-alpha", date(2026, 6, 1))
    with pytest.raises(ActRefused, match="period 2026-06 of tenant t-alpha is closed"):
        await registry.change_tenant(operator, "test", "t-alpha", date(2026, 5, 1), time_zone="Asia/Tokyo")


async def test_a_change_of_currency_leaves_the_months_where_they_are(ledger: Ledger, operator: Connection) -> None:
    before = ledger.rows("select * from ledger.periods order by posting_period")
    await registry.change_tenant(operator, "test", "t-alpha", date(2026, 5, 1), charge_currency="EUR")
    assert ledger.rows("select * from ledger.periods order by posting_period") == before
    versions = await registry.tenant_versions(operator, "t-alpha")
    assert [each.charge_currency for each in versions] == ["USD", "EUR"]


async def test_a_merge_moves_the_future_and_not_the_past(ledger: Ledger, operator: Connection) -> None:
    """B109: t-b is merged into t-alpha from 2026-03-15 on; the day before is its own."""
    ledger.add_tenant("t-b")
    await use(ledger, "e1", "2026-03-15T12:00:00Z", tenant_id="t-b")
    at = parse_rfc3339("2026-03-15T00:00:00Z")
    with pytest.raises(ActRefused, match="usage of tenant t-b at 2026-03-15 12:00:00Z is in the ledger already"):
        await registry.merge_tenants(operator, "test", "t-b", "t-alpha", at=at)
    at = parse_rfc3339("2026-03-16T00:00:00Z")
    await registry.merge_tenants(operator, "test", "t-b", "t-alpha", at=at, reason="bought")
    await use(ledger, "e2", "2026-03-15T23:59:59.999999Z", tenant_id="t-b")
    await use(ledger, "e3", "2026-03-16T00:00:00Z", tenant_id="t-b")
    assert ledger.rows("select tenant_id, sent_tenant_id from ledger.entries order by entry_id") == [
        ("t-b", "t-b"), ("t-b", "t-b"), ("t-alpha", "t-b"),
    ]  # fmt: skip


async def test_a_status_is_kept_by_the_changes_that_follow(ledger: Ledger, operator: Connection) -> None:
    now = parse_rfc3339("2026-03-10T00:00:00Z")
    await registry.change_tenant(operator, "test", "t-alpha", date(2026, 5, 1), name="Alpha")
    await registry.suspend_tenant(operator, "test", "t-alpha", now=now, reason="unpaid")
    for instant, status in (
        (now - 1, "active"),
        (now, "suspended"),
        (parse_rfc3339("2026-06-01T00:00:00Z"), "suspended"),
    ):
        assert (await registry.find_tenant(operator, "t-alpha", now=instant)).status == status
    with pytest.raises(ActRefused, match="tenant t-alpha is suspended"):
        await registry.suspend_tenant(operator, "test", "t-alpha", now=now + 1, reason="again")


async def test_what_is_changed_makes_batches_again(ledger: Ledger, operator: Connection) -> None:
    """Each act raises the version of what it changed, and of nothing else, and is written down."""

    async def versions() -> dict[str, int]:
        cursor = await operator.execute("select calendar, parties, prices, budgets from ledger.versions")
        row = await cursor.fetchone()
        assert row is not None
        return dict(zip(("calendar", "parties", "prices", "budgets"), row, strict=True))

    before = await versions()
    await registry.add_source(operator, "test", "gateway://x", kind="gateway", rank=1, speaks_for_all=True)
    await registry.set_model(operator, "test", "openai", "m-9")
    await registry.change_tenant(operator, "test", "t-alpha", date(2026, 5, 1), name="Alpha")
    assert await versions() == {**before, "parties": before["parties"] + 3, "calendar": before["calendar"] + 1}
    acts = ledger.rows("select actor, act from ledger.acts order by act_id")
    assert acts == [("test", "sources.add"), ("test", "models.set"), ("test", "tenants.change")]


async def test_a_refused_act_leaves_nothing(ledger: Ledger, operator: Connection) -> None:
    before = ledger.rows("select * from ledger.versions")
    with pytest.raises(ActRefused):
        await registry.add_source(
            operator, "test", "gateway://x", kind="gateway", rank=1, tenant_ids=["t-alpha", "t-nobody"]
        )
    with pytest.raises(ActRefused):
        await registry.set_model(operator, "test", "openai", "m-9", aliases=["two", " blanks "])
    assert ledger.rows("select * from ledger.versions") == before
    assert ledger.rows("select source from ledger.sources where source = 'gateway://x'") == []
    assert ledger.rows("select model from ledger.models") == []


def test_currencies_are_codes_that_invoices_can_round() -> None:
    assert {"USD", "EUR", "JPY", "KWD"} <= CURRENCIES
    assert not CURRENCIES & {"XAU", "XXX", "DEM", "usd"}
    assert {currency_exponent(code) for code in CURRENCIES} == {0, 2, 3}
