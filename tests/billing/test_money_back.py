"""What is given back: months that owe back, credit notes for usage and commercial ones, grants; never more than was billed."""

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from billing.agreement_files import Agreements, apply_agreements
from billing.credit_notes import Credited, amount_back, credit_commercially, credit_usage, line_back
from billing.crediting import credit_note, creditable
from billing.documents import CreditApplied, Document
from billing.errors import CreditRefused, VoidRefused
from billing.issuing import Terms, issue_month
from billing.rounding import round_money, spread, total
from billing.store import find_document, read_documents
from billing.voiding import Voided, void_invoice
from ledger.database import Connection
from ledger.exchange import ExchangeRate
from ledger.money import EXACT
from ledger.price_store import save_exchange_rates
from ledger.times import parse_rfc3339
from quotas.granting import NewGrant, create_grant, find_grant
from tallystick.verify import verify
from tests.billing.documents import make_document, make_line
from tests.billing.support import (
    CUSTOMER,
    FEBRUARY,
    JANE,
    JANUARY,
    LATER,
    MARCH,
    agree,
    amounts,
    close,
    discount,
    dollars,
    exactly_owed,
    fee,
    issue,
    issued,
    owed,
    reverse,
    tax,
)
from tests.support.ledger import Ledger


@pytest.fixture
async def priced(ledger: Ledger, operator: Connection) -> Ledger:
    await ledger.add_price(input="1.00", output="1.00")
    await agree(operator)
    return ledger


async def commercial(operator: Connection, name: str, **given: object) -> Document:
    done = await credit_commercially(operator, "jane", name, reason="An apology", **given)  # type: ignore[arg-type]
    assert isinstance(done, Credited)
    return done.document


def in_euros(rate: str, **given: Any) -> ExchangeRate:
    return ExchangeRate(
        from_currency="USD", to_currency="EUR", rate=Decimal(rate), effective_at=parse_rfc3339("2020-01-01T00:00:00Z"),
        source_address="https://rates.example", checked_on=JANUARY, **given,
    )  # fmt: skip


# --- Months that owe back -----------------------------------------------------------------------------------------------


async def test_what_a_month_owes_back_beyond_its_usage_is_a_credit_note(
    priced: Ledger, operator: Connection, writer: Connection
) -> None:
    """January 10; February uses 3 and takes 7 of January back: an invoice of 0, and 4 given back on January's. 10 - 4 = 6."""
    await priced.post(dollars("a", "3"), dollars("b", "7"), received_at=LATER)
    january = await issued(operator)
    await priced.post(dollars("c", "3", "2026-02-10T00:00:00Z"), received_at=LATER)
    await reverse(writer, "b")
    await close(operator, FEBRUARY)
    outcome = await issue(operator, FEBRUARY)
    assert (outcome.result, outcome.total, outcome.credit_notes) == ("issued", Decimal(0), ("NW-C-000001",))
    invoice, note = await read_documents(
        operator, [row[0] for row in priced.rows("select document_id from billing.documents where document_id <> %s"
                                                 " order by kind desc", january.document_id)]
    )  # fmt: skip
    assert amounts(invoice) == {
        ("usage", "2026-02"): Decimal(3), ("usage", "2026-01"): Decimal(-7), ("owed_back", "2026-01"): Decimal(4),
    }  # fmt: skip
    assert (note.corrects_number, note.basis, note.total, note.amount_due) == (
        "NW-000001",
        "owed_back",
        Decimal(4),
        Decimal(4),
    )
    assert owed(priced) == {"USD": Decimal(6)} == {"USD": priced.total()}
    with pytest.raises(VoidRefused, match="NW-C-000001 corrects it"):
        await void_invoice(operator, "jane", "NW-000001", reason="a mistake")
    voided = await void_invoice(operator, "jane", outcome.number or "", reason="a mistake")
    assert isinstance(voided, Voided)
    assert voided.credit_notes == ["NW-C-000001"]
    assert owed(priced) == {"USD": Decimal(10)}
    again = await issue(operator, FEBRUARY)
    assert (again.number, again.credit_notes) == ("NW-000003", ("NW-C-000002",))
    assert owed(priced) == {"USD": Decimal(6)}


async def test_what_nobody_billed_cannot_be_given_back(
    priced: Ledger, operator: Connection, writer: Connection
) -> None:
    """January was closed and never issued; February owes 7 back of it, which waits until it is."""
    await priced.post(dollars("b", "7"), received_at=LATER)
    await close(operator, JANUARY)
    await reverse(writer, "b")
    await close(operator, FEBRUARY)
    outcome = await issue(operator, FEBRUARY)
    assert outcome.result == "parked"
    assert outcome.reasons == (
        "7 USD (none) is owed back beyond what live invoices billed: issue the earlier months first, or give it back"
        " with `credit-note usage`",
    )
    await issue(operator, JANUARY)
    assert (await issue(operator, FEBRUARY)).result == "issued"
    assert owed(priced) == {"USD": Decimal(0)}


@pytest.mark.parametrize("used", ["10", "0.001"])
async def test_what_corrects_usage_stands_under_the_tax_category_that_it_was_billed_under(
    priced: Ledger, operator: Connection, writer: Connection, used: str
) -> None:
    """January's 7 were untaxed, February's usage is at 19 %: 7.00 come back by a note on January's. WRONG: 8.33, or waiting for ever."""
    standard = replace(CUSTOMER, effective_from=FEBRUARY, tax_category="standard")
    await apply_agreements(operator, "jane", Agreements(tax_rates=[tax("0.19", "standard")], customers=[standard]))
    await priced.post(
        dollars("a", "3"), dollars("b", "7"), dollars("c", used, "2026-02-10T00:00:00Z"), received_at=LATER
    )
    await issued(operator)
    await reverse(writer, "b")
    february = await issued(operator, FEBRUARY)
    assert february.total == round_money(Decimal(used) * Decimal("1.19"), "USD")
    assert {(tax.category, tax.base) for tax in february.taxes} == {
        ("none", Decimal(0)), ("standard", round_money(Decimal(used), "USD")),
    }  # fmt: skip
    assert owed(priced) == {"USD": Decimal(3) + february.total}
    note = await find_document(operator, "NW-C-000001")
    assert (note.corrects_number, note.total, note.tax_total) == ("NW-000001", Decimal(7), Decimal(0))


async def test_a_credit_note_for_usage_stands_under_the_category_of_each_month_of_it(
    priced: Ledger, operator: Connection, writer: Connection
) -> None:
    """February bills January's late 5 untaxed and its own 7 at 19 %: 5.00 and 8.33 are given back."""
    standard = replace(CUSTOMER, effective_from=FEBRUARY, tax_category="standard")
    await apply_agreements(operator, "jane", Agreements(tax_rates=[tax("0.19", "standard")], customers=[standard]))
    await close(operator, JANUARY)
    await priced.post(dollars("a", "5"), dollars("b", "7", "2026-02-10T00:00:00Z"), received_at=LATER)
    assert (await issued(operator, FEBRUARY)).total == Decimal("13.33")
    for name in ("a", "b"):
        await reverse(writer, name)
    made = await credit_usage(operator, "jane", "NW-000001", reason="A wrong model")
    assert isinstance(made, Credited)
    assert {(tax.category, tax.base, tax.amount) for tax in made.document.taxes} == {
        ("none", Decimal(5), Decimal(0)), ("standard", Decimal(7), Decimal("1.33")),
    }  # fmt: skip


async def test_a_credit_note_of_several_tax_categories_comes_back_as_it_was_issued(
    priced: Ledger, operator: Connection
) -> None:
    """In whatever order its lines stand, and the database sorts letters."""
    await apply_agreements(operator, "jane", Agreements(tax_rates=[tax("0.07", "Low"), tax("0.19", "high")]))
    fees = [fee("f-1", "8.00", tax_category="none"), fee("f-2", tax_category="high"), fee("f-3", tax_category="Low")]
    await agree(operator, items=fees)
    invoice = await issued(operator)
    assert [each.category for each in invoice.taxes] == ["Low", "high", "none"]
    note = await commercial(operator, invoice.number or "", lines=dict.fromkeys([1, 2, 3]))
    assert await find_document(operator, note.number or "") == note
    assert verify(priced.database.url_for("tallystick_operator")).failures == []


@pytest.mark.parametrize("restated", ["0.8", "1.25"])
async def test_what_corrects_converted_usage_goes_by_the_rate_that_it_was_billed_by(
    priced: Ledger, operator: Connection, writer: Connection, restated: str
) -> None:
    """10 USD at 0.9 are 9.00 EUR; the rate is restated, and the request reversed: 9.00 come back. WRONG: 8.00, or 12.50.

    Once January is voided nothing bills it at 0.9, and the restated rate counts.
    """
    rate = in_euros("0.9")
    await save_exchange_rates(operator, [rate], actor="jane")
    await agree(operator, invoice_currency="EUR")
    await priced.post(dollars("a", "10"), received_at=LATER)
    assert (await issued(operator)).total == Decimal("9.00")
    await save_exchange_rates(operator, [in_euros(restated, replaces=rate.content_hash)], actor="jane")
    await reverse(writer, "a")
    await close(operator, FEBRUARY)
    outcome = await issue(operator, FEBRUARY)
    assert (outcome.result, owed(priced), exactly_owed(priced)) == ("issued", {"EUR": Decimal("0.00")}, Decimal(0))
    for number in (outcome.number, "NW-000001"):
        await void_invoice(operator, "jane", number or "", reason="the rate was restated")
    assert (await issue(operator)).total == 10 * Decimal(restated)


# --- Credit notes for usage ---------------------------------------------------------------------------------------------


async def test_a_credit_note_for_usage_takes_its_reversals_off_the_next_invoice(
    priced: Ledger, operator: Connection, writer: Connection
) -> None:
    """January 10. 7 are reversed: a credit note at once; February's invoice is its own 3 alone."""
    await priced.post(dollars("a", "3"), dollars("b", "7"), received_at=LATER)
    january = await issued(operator)
    with pytest.raises(CreditRefused, match="nothing corrects the usage of invoice NW-000001"):
        await credit_usage(operator, "jane", january.number or "", reason="A wrong model")
    await priced.post(dollars("c", "3", "2026-02-10T00:00:00Z"), received_at=LATER)
    await reverse(writer, "b")
    shown = await credit_usage(operator, "jane", january.number or "", reason="A wrong model", dry_run=True)
    assert isinstance(shown, Credited)
    assert (shown.document.number, shown.document.state, shown.document.total) == (None, "draft", Decimal(7))
    assert priced.value("select count(*) from billing.documents") == 1
    made = await credit_usage(operator, "jane", january.number or "", reason="A wrong model")
    assert isinstance(made, Credited)
    assert (made.document.number, made.document.total, made.entry_count) == ("NW-C-000001", Decimal(7), 1)
    assert [(line.meter, line.quantity, line.amount) for line in made.document.lines] == [
        ("uncached_input_tokens", Decimal(7_000_000), Decimal("7.00"))
    ]
    with pytest.raises(CreditRefused, match="nothing corrects"):
        await credit_usage(operator, "jane", january.number or "", reason="again")
    february = await issued(operator, FEBRUARY)
    assert amounts(february) == {("usage", "2026-02"): Decimal(3)}
    assert owed(priced) == {"USD": Decimal(6)} == {"USD": priced.total()}


async def test_what_an_invoice_gave_back_no_credit_note_gives_back_again(
    priced: Ledger, operator: Connection, writer: Connection
) -> None:
    await priced.post(dollars("a", "3"), dollars("b", "7"), received_at=LATER)
    await issued(operator)
    await reverse(writer, "a")
    await priced.post(dollars("c", "5", "2026-02-10T00:00:00Z"), received_at=LATER)
    assert (await issued(operator, FEBRUARY)).total == Decimal(2)
    with pytest.raises(CreditRefused, match="nothing corrects"):
        await credit_usage(operator, "jane", "NW-000001", reason="again")


@pytest.mark.parametrize("currency", ["USD", "EUR"])
async def test_rows_that_come_to_nothing_on_an_invoice_have_been_given_back_all_the_same(
    priced: Ledger, operator: Connection, writer: Connection, currency: str
) -> None:
    """7 of January are reversed and reported anew in February: its invoice, of a fee alone, has no line for them."""
    await priced.post(dollars("a", "7"), received_at=LATER)
    await issued(operator)
    await reverse(writer, "a")
    await priced.post(dollars("b", "7"), received_at=LATER)
    chosen = replace(CUSTOMER, effective_from=FEBRUARY, invoice_currency=currency)
    fee_in_it = fee(starts_on=FEBRUARY, currency=currency)
    await apply_agreements(operator, "jane", Agreements(customers=[chosen], items=[fee_in_it]))
    assert amounts(await issued(operator, FEBRUARY)) == {("fee", "2026-02"): Decimal(10)}
    with pytest.raises(CreditRefused, match="nothing corrects"):
        await credit_usage(operator, "jane", "NW-000001", reason="A wrong model")


async def test_a_credit_note_for_usage_gives_back_what_was_paid_for_it(
    priced: Ledger, operator: Connection, writer: Connection
) -> None:
    """10 less ten percent were billed for the request: 9.00 come back, not 10."""
    await agree(operator, items=[discount(percent=Decimal(10))])
    await priced.post(dollars("a", "10"), received_at=LATER)
    assert (await issued(operator)).total == Decimal("9.00")
    await reverse(writer, "a")
    made = await credit_usage(operator, "jane", "NW-000001", reason="A wrong model")
    assert isinstance(made, Credited)
    assert made.document.total == Decimal("9.00")
    assert owed(priced) == {"USD": Decimal(0)}
    assert exactly_owed(priced) == 0


# --- Commercial ones ----------------------------------------------------------------------------------------------------


async def test_b128_credit_notes_of_all_lines_add_up_to_the_invoice(priced: Ledger, operator: Connection) -> None:
    """32.16 + 6.43 = 38.59 = 14.80 + 9.00 + 14.79. WRONG: 14.80 + 14.80 + 9.00 = 38.60."""
    await agree(operator, tax_rate="0.20", items=[fee("a", "12.33"), fee("b", "12.33"), fee("c", "7.50")])
    invoice = await issued(operator)
    assert (invoice.subtotal, invoice.tax_total, invoice.total) == (Decimal("32.16"), Decimal("6.43"), Decimal("38.59"))
    number = invoice.number or ""
    notes = [await commercial(operator, number, lines={line: None}) for line in (1, 3, 2)]
    assert [note.total for note in notes] == [Decimal("14.80"), Decimal("9.00"), Decimal("14.79")]
    assert owed(priced) == {"USD": Decimal("0.00")}
    with pytest.raises(CreditRefused, match="line 1 of invoice NW-000001 was given back before"):
        await commercial(operator, number, lines={1: None})


@pytest.mark.parametrize(
    ("wanted", "rule"),
    [
        ({}, "say either which lines are given back or which amount"),
        ({"amount": Decimal("12.34")}, "more than the 12.33 USD that is left of invoice NW-000001 before tax"),
        ({"amount": Decimal("0.001")}, "no amount above zero that USD can print"),
        ({"amount": Decimal(-1)}, "no amount above zero"),
        ({"lines": {7: None}}, "has no line 7"),
        ({"lines": {1: Decimal("12.34")}}, "is more than the 12.33 USD that is left of line 1 of invoice NW-000001"),
    ],
)
async def test_refusals_of_commercial_credit_notes(
    priced: Ledger, operator: Connection, wanted: dict[str, object], rule: str
) -> None:
    await agree(operator, items=[fee("a", "12.33")])
    await issued(operator)
    with pytest.raises(CreditRefused, match=rule):
        await commercial(operator, "NW-000001", **wanted)
    assert priced.value("select count(*) from billing.documents where kind = 'credit_note'") == 0


@pytest.mark.parametrize(
    "wanted",
    [
        {"lines": {1: Decimal("1.57"), 2: None}},
        {"lines": {1: None, 2: Decimal("1.60")}},
        {"amount": Decimal("3.17")},
    ],
)
async def test_what_was_printed_can_be_given_back_though_it_was_rounded_up(
    priced: Ledger, operator: Connection, wanted: dict[str, object]
) -> None:
    """1.566 and 1.599 are 3.165, printed 3.17 = 1.57 + 1.60. WRONG: 3.17 is more than the 3.165 that is left."""
    await agree(operator, tax_rate="0.19")
    await priced.post(dollars("a", "1.566"), dollars("b", "1.599", feature="search"), received_at=LATER)
    invoice = await issued(operator)
    assert ([line.amount for line in invoice.lines], invoice.total) == (
        [Decimal("1.57"), Decimal("1.60")], Decimal("3.77"),
    )  # fmt: skip
    assert (await commercial(operator, "NW-000001", **wanted)).total == Decimal("3.77")
    assert (owed(priced), exactly_owed(priced)) == ({"USD": Decimal("0.00")}, Decimal(0))


async def test_a_credit_note_that_prints_as_nothing_is_none(priced: Ledger, operator: Connection) -> None:
    await priced.post(dollars("a", "0.004"), dollars("b", "1", feature="search"), received_at=LATER)
    await issued(operator)
    with pytest.raises(
        CreditRefused, match=r"it prints as 0\.00 USD: nothing of invoice NW-000001 would be given back"
    ):
        await commercial(operator, "NW-000001", lines={1: None})


async def test_parts_never_come_to_more_than_was_billed(priced: Ledger, operator: Connection) -> None:
    await agree(operator, tax_rate="0.19", items=[fee("a", "10.00")])
    assert (await issued(operator)).total == Decimal("11.90")
    parts = [await commercial(operator, "NW-000001", amount=Decimal("3.33")) for _ in range(3)]
    assert [part.total for part in parts] == [Decimal("3.96")] * 3
    last = await commercial(operator, "NW-000001", amount=Decimal("0.01"))
    assert last.total == Decimal("0.02"), "0.01 and what is left of the tax: 1.90 - 3 x 0.63 = 0.01"
    with pytest.raises(CreditRefused, match="nothing is left of invoice NW-000001: all of it was given back"):
        await commercial(operator, "NW-000001", amount=Decimal("0.01"))
    assert owed(priced) == {"USD": Decimal("0.00")}


_CENTS = st.integers(1, 300).map(lambda cents: Decimal(cents) / 100)
_EXACT = st.integers(1, 40_000).map(lambda parts: Decimal(parts) / 10_000)
_BACK = st.one_of(
    st.tuples(st.just("line"), st.integers(1, 3), st.none() | _CENTS),
    st.tuples(st.just("amount"), st.just(0), _CENTS),
    st.tuples(st.just("usage"), st.just(0), _EXACT),
)


@given(st.lists(_EXACT, min_size=1, max_size=3), st.integers(0, 100), st.lists(_BACK, max_size=6))
def test_no_credit_notes_give_back_more_than_was_billed_and_the_rest_can_be_given_back(
    exact: list[Decimal], percent: int, wanted: list[tuple[str, int, Decimal | None]]
) -> None:
    """By lines, parts, amounts or usage, in any order: neither money, nor tax, nor what a grant paid comes back twice."""
    subtotal = round_money(total(exact), "EUR")
    lines = [
        make_line(str(amount), exact_amount=each)
        for amount, each in zip(spread(subtotal, exact, "EUR"), exact, strict=True)
    ]
    whole = EXACT.add(subtotal, round_money(EXACT.multiply(subtotal, Decimal("0.19")), "EUR"))
    paid = round_money(whole * percent / 100, "EUR")
    invoice = make_document(lines, credits=[CreditApplied("grant-1", "Prepaid", paid)] if paid else [])
    notes: list[Document] = []
    for kind, number, amount in wanted:
        of = creditable(invoice, notes)
        try:
            if kind == "line":
                back = line_back(of, number, amount)
            elif kind == "amount":
                back = amount_back(of, amount or Decimal(0))
            else:
                back = structs.replace(lines[0], exact_amount=amount)
            notes.append(credit_note(of, [back], "commercial", "An apology"))
        except CreditRefused:
            continue
    (left,) = creditable(invoice, notes).left.values()
    if left.base:
        of = creditable(invoice, notes)
        notes.append(credit_note(of, [amount_back(of, left.base)], "commercial", "The rest"))
    for name in ("subtotal", "tax_total", "total", "credit_total", "amount_due"):
        given_back = total(getattr(note, name) for note in notes)
        assert given_back == getattr(invoice, name), name
    assert all(note.total > 0 for note in notes)


# --- Grants -------------------------------------------------------------------------------------------------------------


async def grant(operator: Connection, amount: str, **more: object) -> str:
    values: dict[str, object] = {"tenant_id": "t-alpha", "amount": Decimal(amount), "currency": "USD", **more}
    values.setdefault("effective_at", 1_764_547_200_000_000)  # 2025-12-01
    made = await create_grant(
        operator,
        "jane",
        NewGrant(**values),
        key=f"g-{amount}-{len(more)}",
        now=1_780_000_000_000_000,  # type: ignore[arg-type]
    )
    return made.grant_id


async def booked(operator: Connection, grant_id: str) -> Decimal:
    return (await find_grant(operator, grant_id, now=1_780_000_000_000_000)).booked_burnt


async def test_b129_credit_never_takes_an_invoice_below_zero(priced: Ledger, operator: Connection) -> None:
    """10.004 prints 10.00, the credit pays 10.00 of its 25.00. WRONG: 10.00 - 10.01 = -0.01."""
    name = await grant(operator, "25.00")
    await priced.post(dollars("a", "10.004"), received_at=LATER)
    invoice = await issued(operator)
    assert (invoice.exact_subtotal, invoice.subtotal) == (Decimal("10.004"), Decimal("10.00"))
    assert (invoice.credit_total, invoice.amount_due) == (Decimal("10.00"), Decimal("0.00"))
    assert Decimal(25) - await booked(operator, name) == Decimal("15.00")
    await void_invoice(operator, "jane", invoice.number or "", reason="a mistake")
    assert await booked(operator, name) == 0
    again = await issue(operator)
    assert (again.total, again.amount_due) == (Decimal("10.00"), Decimal("0.00"))
    assert await booked(operator, name) == Decimal("10.00")


async def test_grants_burn_in_the_stated_order_over_months(priced: Ledger, operator: Connection) -> None:
    """Search has 4 of its own, which burns first by its priority; then 10 for anything. 6 + 5, then 8: 4 + 6 is 10, 1 in money..."""
    own = await grant(operator, "4", feature="search", priority=1)
    any_use = await grant(operator, "10")
    await priced.post(
        dollars("a", "6", feature="search"), dollars("b", "5"), dollars("c", "8", "2026-02-10T00:00:00Z"), received_at=LATER
    )  # fmt: skip
    january = await issued(operator)
    assert {credit.grant_id: credit.amount for credit in january.credits} == {own: Decimal(4), any_use: Decimal(7)}
    assert january.amount_due == 0
    february = await issued(operator, FEBRUARY)
    assert {credit.grant_id: credit.amount for credit in february.credits} == {any_use: Decimal(3)}
    assert february.amount_due == Decimal(5)


async def test_a_grant_pays_usage_and_neither_fees_nor_tax_nor_what_a_discount_took_off(
    priced: Ledger, operator: Connection
) -> None:
    """100 less 50 percent, a fee of 10, and tax of 11.40: the grant pays 50.00, 21.40 are due. WRONG: 71.40 of the grant, 0 due."""
    await agree(operator, tax_rate="0.19", items=[discount(percent=Decimal(50)), fee()])
    name = await grant(operator, "200")
    await priced.post(dollars("a", "100"), received_at=LATER)
    invoice = await issued(operator)
    assert (invoice.total, invoice.credit_total, invoice.amount_due) == (
        Decimal("71.40"), Decimal("50.00"), Decimal("21.40"),
    )  # fmt: skip
    assert await booked(operator, name) == Decimal("50.00")


async def test_what_is_given_back_of_another_month_is_no_less_for_a_grant_to_pay(
    priced: Ledger, operator: Connection, writer: Connection
) -> None:
    """January's 7 were paid in money. February: 10 from the grant, 7 back, a fee of 20: 13 are due."""
    await agree(operator, items=[fee(amount="20.00", starts_on=FEBRUARY)])
    await priced.post(dollars("a", "7"), dollars("b", "10", "2026-02-10T00:00:00Z"), received_at=LATER)
    await issued(operator)
    await grant(operator, "10", effective_at=1_769_904_000_000_000)  # 2026-02-01
    await reverse(writer, "a")
    february = await issued(operator, FEBRUARY)
    assert (february.total, february.credit_total, february.amount_due) == (Decimal(23), Decimal(10), Decimal(13))


async def test_a_grant_in_another_currency_than_the_invoice_is_told_and_keeps_the_month_back(
    priced: Ledger, operator: Connection
) -> None:
    """Usage of 3 USD burns a grant in dollars and is invoiced in euros. WRONG: 1.50 EUR due, and the grant burnt by nothing."""
    await save_exchange_rates(operator, [in_euros("0.5")], actor="jane")
    await agree(operator, invoice_currency="EUR")
    name = await grant(operator, "10", feature="chat")
    await priced.post(dollars("a", "3"), dollars("b", "4", feature="search"), received_at=LATER)
    await close(operator, JANUARY)
    parked = await issue(operator)
    assert parked.reasons == (
        f"grant {name} pays 3 USD of the usage, and invoices of t-alpha are in EUR: let that of 2026-01 be in USD",
    )
    await agree(operator, invoice_currency="USD")
    invoice = await issue(operator)
    assert (invoice.total, invoice.amount_due) == (Decimal(7), Decimal(4))


async def test_money_comes_back_as_money_first_and_then_into_grants(
    priced: Ledger, operator: Connection, writer: Connection
) -> None:
    """10 of usage, 6 of them from a grant: of a credit of 7, 4 are money and 3 go back into the grant."""
    name = await grant(operator, "6")
    await priced.post(dollars("a", "3"), dollars("b", "7"), received_at=LATER)
    assert (await issued(operator)).amount_due == Decimal(4)
    await reverse(writer, "b")
    made = await credit_usage(operator, "jane", "NW-000001", reason="A wrong model")
    assert isinstance(made, Credited)
    assert (made.document.total, made.document.credit_total, made.document.amount_due) == (
        Decimal(7),
        Decimal(3),
        Decimal(4),
    )
    assert await booked(operator, name) == Decimal(3)


async def test_a_void_of_a_void_is_the_same_void(priced: Ledger, operator: Connection) -> None:
    await priced.post(dollars("a", "3"), received_at=LATER)
    invoice = await issued(operator)
    done = [await void_invoice(operator, "jane", invoice.document_id or "", reason="a mistake") for _ in range(2)]
    assert [each.was_void for each in done if isinstance(each, Voided)] == [False, True]
    assert priced.value("select count(*) from billing.voids") == 1
    assert (await issue_month(operator, "t-alpha", JANUARY, JANE))[0].number == "NW-000002"


__all__ = ["MARCH", "Terms"]
