"""Issuing: a closed month becomes one invoice, whoever asks and however often; what is unknown keeps it back."""

import asyncio
from datetime import timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest
from alembic import command

from billing.issuing import Terms, issue_month
from billing.voiding import void_invoice
from ledger.closing import reopen_period
from ledger.database import Connection
from migrations import run
from tests.billing.support import (
    FEBRUARY,
    JANE,
    JANUARY,
    LATER,
    agree,
    amounts,
    close,
    dollars,
    draft,
    issue,
    issued,
    owed,
)
from tests.factories import make_event
from tests.ledger.prices import make_card
from tests.support.ledger import Ledger


@pytest.fixture
async def priced(ledger: Ledger, operator: Connection) -> Ledger:
    await ledger.add_price(input="1.00", output="1.00")
    await agree(operator)
    return ledger


async def test_an_invoice_is_the_fold_of_its_entries(priced: Ledger, operator: Connection) -> None:
    """3 and 4 of chat, 5 of search: 12 in two lines, with the quantity and the price that they share."""
    await priced.post(
        dollars("a", "3"), dollars("b", "4"), dollars("c", "5", feature="search"), received_at=LATER
    )  # fmt: skip
    found = await issued(operator)
    assert (found.number, found.total, found.amount_due, found.state) == (
        "NW-000001",
        Decimal(12),
        Decimal(12),
        "issued",
    )
    assert [
        (line.feature, line.meter, line.quantity, line.unit_price, line.per, line.amount) for line in found.lines
    ] == [
        ("chat", "uncached_input_tokens", Decimal(7_000_000), Decimal("1.00"), 1_000_000, Decimal("7.00")),
        ("search", "uncached_input_tokens", Decimal(5_000_000), Decimal("1.00"), 1_000_000, Decimal("5.00")),
    ]
    assert owed(priced) == {"USD": Decimal(12)}


async def test_b064_late_usage_is_a_line_of_the_next_invoice(priced: Ledger, operator: Connection) -> None:
    """January 100.00 stays; 0.75 comes late: February is 40.00 + 0.75 = 40.75, and the invoices sum to 140.75."""
    await priced.post(dollars("a", "100"), received_at=LATER)
    january = await issued(operator)
    await priced.post(
        dollars("late", "0.75", "2026-01-31T23:50:00Z"), dollars("b", "40", "2026-02-10T00:00:00Z"), received_at=LATER
    )  # fmt: skip
    february = await issued(operator, FEBRUARY)
    assert january.total == Decimal(100)
    assert amounts(february) == {("usage", "2026-02"): Decimal(40), ("usage", "2026-01"): Decimal("0.75")}
    assert [line.is_late(FEBRUARY) for line in february.lines] == [False, True]
    assert february.total == Decimal("40.75")
    by_occurrence = dict(
        priced.rows("select to_char(local_date, 'MM'), sum(charge_amount) from ledger.entries group by 1")
    )
    assert by_occurrence == {"01": Decimal("100.75"), "02": Decimal(40)}
    assert owed(priced) == {"USD": Decimal("140.75")} == {"USD": priced.total()}


async def test_an_invoice_is_due_so_many_days_after_the_day_that_it_was_issued_on(
    priced: Ledger, operator: Connection
) -> None:
    """14 days after the printed day, which is the tenant's: at any hour it is another day in one of these zones than in UTC."""
    zones = {"t-east": "Pacific/Kiritimati", "t-west": "Pacific/Pago_Pago"}
    for name, zone in zones.items():
        priced.add_tenant(name, zone=zone)
    await agree(operator, *zones)
    await priced.post(
        *(dollars(f"e-{name}", "1", tenant_id=name, request_id=f"r-{name}") for name in zones), received_at=LATER
    )
    for name, zone in zones.items():
        (drafted,) = (await draft(operator, JANUARY, name)).drafts
        found = await issued(operator, JANUARY, name)
        assert found.issued_at is not None
        due = found.issued_at.astimezone(ZoneInfo(zone)).date() + timedelta(days=14)
        assert (drafted.document.due_date, found.due_date) == (due, due)


async def test_issuing_again_answers_with_what_was_issued(priced: Ledger, operator: Connection) -> None:
    await priced.post(dollars("a", "3"), received_at=LATER)
    found = await issued(operator)
    again = await issue(operator)
    assert (again.result, again.number) == ("issued_before", found.number)
    assert (again.total, again.amount_due) == (Decimal(3), Decimal(3))
    assert priced.value("select count(*) from billing.documents") == 1


async def test_an_open_month_is_parked_and_a_draft_says_why(priced: Ledger, operator: Connection) -> None:
    await priced.post(dollars("a", "3"), received_at=LATER)
    (found,) = (await draft(operator)).drafts
    assert (found.document.total, found.document.state, found.refusals) == (
        Decimal(3), "draft", ("period 2026-01 is open: close it first",),
    )  # fmt: skip
    outcome = await issue(operator)
    assert (outcome.result, outcome.reasons) == ("parked", ("period 2026-01 is open: close it first",))
    assert priced.rows("select tenant_id, currency::text, reasons from billing.waiting") == [
        ("t-alpha", "USD", ["period 2026-01 is open: close it first"])
    ]
    await issued(operator)
    assert priced.rows("select tenant_id from billing.waiting") == []


WAITING = "select currency::text, reasons from billing.waiting"


async def test_a_month_that_holds_nothing_after_all_waits_no_longer(priced: Ledger, operator: Connection) -> None:
    (outcome,) = await issue_month(operator, "t-alpha", JANUARY, JANE)
    assert (outcome.result, outcome.currency) == ("parked", None)
    assert priced.rows(WAITING) == [(None, ["period 2026-01 is open: close it first"])]
    await close(operator, JANUARY)
    (outcome,) = await issue_month(operator, "t-alpha", JANUARY, JANE)
    assert outcome.result == "nothing"
    assert priced.rows(WAITING) == []


async def test_a_month_waits_in_the_currency_of_its_invoice_alone(priced: Ledger, operator: Connection) -> None:
    """In dollars as long as it is open, then in euros, without a rate."""
    await priced.post(dollars("a", "3"), received_at=LATER)
    assert (await issue(operator)).currency == "USD"
    await close(operator, JANUARY)
    await agree(operator, invoice_currency="EUR")
    assert (await issue(operator)).currency == "EUR"
    assert priced.rows(WAITING) == [("EUR", ["no rate from USD to EUR was in force at the end of 2026-01"])]
    await agree(operator)
    assert (await issue(operator)).result == "issued"
    assert priced.rows(WAITING) == []


async def test_what_was_voided_waits_again_for_the_reason_that_it_waited_for_before(
    priced: Ledger, operator: Connection
) -> None:
    await priced.post(dollars("a", "3"), received_at=LATER)
    open_month = [("USD", ["period 2026-01 is open: close it first"])]
    await issue(operator)
    assert priced.rows(WAITING) == open_month
    found = await issued(operator)
    assert priced.rows(WAITING) == []
    await void_invoice(operator, "jane", found.number or "", reason="A wrong address")
    await reopen_period(operator, "jane", "t-alpha", JANUARY, reason="A wrong address")
    assert (await issue(operator)).result == "parked"
    assert priced.rows(WAITING) == open_month


async def test_what_was_issued_before_the_end_of_waiting_was_written_down_does_not_wait(
    priced: Ledger, operator: Connection
) -> None:
    await priced.post(dollars("a", "3"), received_at=LATER)
    await issue(operator)
    await issued(operator)
    url = priced.database.url.replace("postgresql://", "postgresql+psycopg://")
    await asyncio.to_thread(command.downgrade, run.config(url), "0032")
    assert len(priced.rows("select from billing.parked")) == 1
    await asyncio.to_thread(run.migrate, priced.database.url)
    assert priced.rows(WAITING) == []


async def test_b132_a_refreshed_draft_bills_nothing_twice(priced: Ledger, operator: Connection) -> None:
    """10.00, then 1.50 within the grace: one invoice of 11.50, its lines once."""
    await priced.post(dollars("a", "10"), received_at=LATER)
    first = (await draft(operator)).drafts[0].document
    await priced.post(dollars("late", "1.50"), received_at=LATER)
    drafts = [(await draft(operator)).drafts[0].document for _ in range(3)]
    assert (first.total, {each.total for each in drafts}) == (Decimal(10), {Decimal("11.50")})
    assert len({each.digest for each in drafts}) == 1
    assert first.digest != drafts[0].digest
    await close(operator, JANUARY)
    outcomes = [await issue(operator, terms=Terms("jane", digests={"USD": drafts[0].digest})) for _ in range(2)]
    assert [each.result for each in outcomes] == ["issued", "issued_before"]
    assert outcomes[0].total == Decimal("11.50")
    assert priced.value("select count(*) from billing.document_lines") == 1


async def test_nothing_is_issued_over_what_is_unknown(priced: Ledger, operator: Connection) -> None:
    await priced.post(
        dollars("a", "3"), make_event("no-price", model="m-unknown"), make_event("no-usage", usage=...), received_at=LATER
    )  # fmt: skip
    await priced.post(dollars("a", "4", request_id="req-a"), received_at=LATER)
    await close(operator, JANUARY)
    outcome = await issue(operator)
    assert outcome.result == "parked"
    assert outcome.reasons == (
        "2 requests are without a charge", "1 request is without usage", "1 conflict is of its usage open: accept or dismiss",
    )  # fmt: skip


async def test_what_is_free_is_an_invoice_of_zero_to_a_customer_and_none_to_whom_nobody_agreed_with(
    priced: Ledger, operator: Connection
) -> None:
    """Such as the canary, which would wait for an address at the end of each month; what it used and has no price still waits."""
    priced.add_tenant("t-free").add_tenant("t-lost").add_model("m-free")
    await priced.add_card(
        make_card(model="m-free", is_free=True, effective_at="2020-01-01T00:00:00Z"),
    )
    await priced.post(
        dollars("a", "3", model="m-free"), dollars("b", "4", tenant_id="t-free", model="m-free"),
        dollars("c", "5", tenant_id="t-lost", model="m-unknown"), received_at=LATER,
    )  # fmt: skip
    for name in ("t-alpha", "t-free", "t-lost"):
        await close(operator, JANUARY, tenant_id=name)
    found = {name: await issue(operator, JANUARY, name) for name in ("t-alpha", "t-free", "t-lost")}
    assert {name: each.result for name, each in found.items()} == {
        "t-alpha": "issued", "t-free": "nothing", "t-lost": "parked",
    }  # fmt: skip
    assert found["t-alpha"].total == Decimal(0)
    assert found["t-lost"].reasons == ("1 request is without a charge",)


async def test_an_empty_month_is_nothing(priced: Ledger, operator: Connection) -> None:
    await close(operator, JANUARY)
    (outcome,) = await issue_month(operator, "t-alpha", JANUARY, Terms("jane"))
    assert (outcome.result, outcome.currency) == ("nothing", None)
    assert priced.value("select count(*) from billing.parked") == 0
