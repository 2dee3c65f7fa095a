"""What is agreed besides usage: fees by days, minimums, discounts, tax, currencies; and the file that says it."""

import re
from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pytest

from billing.agreement_files import Agreements, apply_agreements, load_agreements
from billing.agreements import Billed, Bound, Item, fee_part, item_lines
from billing.credit_notes import Credited, credit_usage
from billing.errors import AgreementRefused, CreditRefused
from billing.issuing import Terms
from billing.store import read_documents
from billing.usage_lines import UsageLine
from billing.voiding import void_invoice
from ledger.database import Connection, connect
from ledger.errors import ActRefused, Unknown
from ledger.exchange import ExchangeRate
from ledger.price_store import save_exchange_rates
from ledger.registry import change_tenant
from ledger.times import parse_rfc3339
from tallystick.verify import verify
from tests.billing.support import (
    CUSTOMER,
    FEBRUARY,
    ISSUER,
    JANUARY,
    LATER,
    TODAY,
    agree,
    amounts,
    close,
    discount,
    dollars,
    draft,
    fee,
    issue,
    issued,
    reverse,
    tax,
)
from tests.support.ledger import Ledger


@pytest.fixture
async def priced(ledger: Ledger, operator: Connection) -> Ledger:
    await ledger.add_price(input="1.00", output="1.00")
    await agree(operator)
    return ledger


# --- Fees ---------------------------------------------------------------------------------------------------------------


def quarterly(timing: str, starts_on: date, ends_on: date | None = None) -> Item:
    return fee(amount="920.00", period="quarter", timing=timing, starts_on=starts_on, ends_on=ends_on)


@pytest.mark.parametrize(
    ("timing", "starts_on", "ends_on", "billed"),
    [
        ("advance", date(2026, 8, 12), None, {8: 50, 10: 92}),
        ("arrears", date(2026, 8, 12), None, {9: 50, 12: 92}),
        ("advance", date(2026, 7, 1), date(2026, 8, 20), {7: 50}),
        ("arrears", date(2026, 7, 1), date(2026, 8, 20), {8: 50}),
        ("advance", date(2026, 8, 1), date(2026, 8, 1), {}),
    ],
)
def test_b126_each_part_of_a_fee_is_billed_once(
    timing: str, starts_on: date, ends_on: date | None, billed: dict[int, int]
) -> None:
    """A quarter of 92 days, whatever the month that its parts are billed in."""
    item = quarterly(timing, starts_on, ends_on)
    found = {month: part for month in range(1, 13) if (part := fee_part(item, date(2026, month, 1))) is not None}
    assert {month: part.days for month, part in found.items()} == billed
    assert {part.whole for part in found.values()} <= {92}


async def test_b126_the_denominator_is_the_whole_period(priced: Ledger, operator: Connection) -> None:
    """31 + 31 + 30 = 92 days, 20 + 30 = 50 of them: 920.00 x 50 / 92 = 500.00. WRONG: 920.00 x 50 / 50."""
    await agree(operator, items=[quarterly("advance", date(2026, 8, 12))])
    found = await issued(operator, date(2026, 8, 1))
    (line,) = found.lines
    assert (line.amount, line.description) == (Decimal("500.00"), "Platform fee (50 of 92 days)")
    assert (line.service_start, line.service_end) == (date(2026, 8, 12), date(2026, 10, 1))


async def test_a_minimum_tops_up_the_months_own_usage_after_discounts(priced: Ledger, operator: Connection) -> None:
    """February: 40 less ten percent is 36; the minimum of 50 adds 14. January's late 5 stand beside it, less their own share."""
    least = Item(
        item_id="least", tenant_id="t-alpha", kind="minimum", description="Minimum", currency="USD", amount=Decimal(50),
        starts_on=FEBRUARY,
    )  # fmt: skip
    await close(operator, JANUARY)
    await agree(operator, items=[discount(percent=Decimal(10), starts_on=FEBRUARY), least])
    await priced.post(
        dollars("late", "5"), dollars("b", "40", "2026-02-10T00:00:00Z"), received_at=LATER
    )  # fmt: skip
    found = await issued(operator, FEBRUARY)
    assert amounts(found) == {
        ("usage", "2026-02"): Decimal(40), ("usage", "2026-01"): Decimal(5), ("discount", "2026-02"): Decimal(-4),
        ("minimum", "2026-02"): Decimal(14),
    }  # fmt: skip
    assert found.total == Decimal(55)


LEAST: Final = Item(
    item_id="least", tenant_id="t-alpha", kind="minimum", description="Minimum", currency="USD", amount=Decimal(50),
    starts_on=JANUARY, ends_on=FEBRUARY,
)  # fmt: skip


@pytest.mark.parametrize(
    ("in_time", "late", "first", "then"),
    [
        ("40", "5", ("minimum", "10"), ("minimum", "-5")),
        ("40", "30", ("minimum", "10"), ("minimum", "-10")),
        ("60", "5", None, None),
    ],
)
async def test_late_usage_counts_for_the_minimum_of_its_month(
    priced: Ledger,
    operator: Connection,
    in_time: str,
    late: str,
    first: tuple[str, str] | None,
    then: tuple[str, str] | None,
) -> None:
    """50 at least for January, whether its usage comes in time or late. WRONG: 40 + 10, then 5 more."""
    await agree(operator, items=[LEAST])
    await priced.post(dollars("a", in_time), received_at=LATER)
    january = await issued(operator)
    await priced.post(dollars("b", late), received_at=LATER)
    february = await issued(operator, FEBRUARY)
    for found, line in ((january, first), (february, then)):
        assert [(each.kind, each.exact_amount, each.service_start) for each in found.lines if each.kind != "usage"] == (
            [] if line is None else [(line[0], Decimal(line[1]), JANUARY)]
        )
    assert january.total + february.total == max(Decimal(in_time) + Decimal(late), Decimal(50))
    # What February moved is no other January: it would be issued as it was.
    (again,) = (await draft(operator)).drafts
    assert again.document.digest == january.digest


async def test_late_usage_has_what_its_month_left_of_a_discount(priced: Ledger, operator: Connection) -> None:
    """5 off January: 3 of them go with its own usage, and 2 with the late 4, on February's invoice."""
    await agree(operator, items=[discount(amount=Decimal(5), currency="USD", ends_on=FEBRUARY)])
    await priced.post(dollars("a", "3"), received_at=LATER)
    assert (await issued(operator)).total == Decimal(0)
    await priced.post(dollars("b", "4"), received_at=LATER)
    february = await issued(operator, FEBRUARY)
    assert amounts(february) == {("usage", "2026-01"): Decimal(4), ("discount", "2026-01"): Decimal(-2)}


async def test_what_a_discount_paid_for_is_not_given_back(
    priced: Ledger, operator: Connection, writer: Connection
) -> None:
    """10 off January's 10; 7 of them are reversed in February, which has 1 of its own. WRONG: 7 back, of which none was paid."""
    await agree(operator, items=[discount(amount=Decimal(10), currency="USD", ends_on=FEBRUARY)])
    await priced.post(dollars("a", "3"), dollars("b", "7"), received_at=LATER)
    january = await issued(operator)
    await reverse(writer, "b")
    with pytest.raises(CreditRefused, match=r"0 USD \(none\) gives nothing back"):
        await credit_usage(operator, "jane", january.number or "", reason="A wrong model")
    await priced.post(dollars("c", "1", "2026-02-10T00:00:00Z"), received_at=LATER)
    february = await issued(operator, FEBRUARY)
    assert (january.total, february.total) == (Decimal(0), Decimal(1))


async def test_a_credit_note_for_usage_leaves_the_minimum_of_its_month(
    priced: Ledger, operator: Connection, writer: Connection
) -> None:
    """60 of January, of which 20 are reversed: 10 come back, and 50 stay."""
    await agree(operator, items=[LEAST])
    await priced.post(dollars("a", "40"), dollars("b", "20"), received_at=LATER)
    january = await issued(operator)
    await reverse(writer, "b")
    made = await credit_usage(operator, "jane", january.number or "", reason="A wrong model")
    assert isinstance(made, Credited)
    assert [(line.kind, line.amount) for line in made.document.lines] == [
        ("usage", Decimal(20)),
        ("minimum", Decimal(-10)),
    ]
    assert made.document.total == Decimal(10)
    await priced.post(dollars("c", "1", "2026-02-10T00:00:00Z"), received_at=LATER)
    assert (await issued(operator, FEBRUARY)).total == Decimal(1)


@pytest.mark.parametrize("order", [("chat", "search"), ("search", "chat")])
@pytest.mark.parametrize("elsewhere", [(), ("chat",), ("search",)])
def test_what_an_amount_is_taken_off_hangs_on_no_order_of_documents_or_lines(
    order: tuple[str, ...], elsewhere: tuple[str, ...]
) -> None:
    """6 of chat and 6 of search, 5 off: they come off chat, of which 10 are the least. WRONG: off whatever is read first."""
    lines = [
        (UsageLine("USD", JANUARY, feature, "openai", "m-sub", "uncached_input_tokens", Decimal(6), Decimal(1), 1, Decimal(6)),
         Decimal(6))
        for feature in order if feature not in elsewhere
    ]  # fmt: skip
    billed = Billed({JANUARY: {(feature, "m-sub"): Decimal(6) for feature in elsewhere}} if elsewhere else {})
    items = [discount(amount=Decimal(5), currency="USD"), replace(LEAST, amount=Decimal(10), feature="chat")]
    found = {line.item_id: line.amount for line in item_lines(items, lines, JANUARY, "USD", billed)}
    assert found == {"less-1": Decimal(-5), "least": Decimal(9)}


async def test_discounts_take_their_share_one_after_the_other(priced: Ledger, operator: Connection) -> None:
    """100 of chat and 10 of search: half of chat, then 20 percent of what is left of all (60): 12; then 3 dollars. 45."""
    await agree(
        operator,
        items=[
            discount("a", percent=Decimal(50), feature="chat"),
            discount("b", percent=Decimal(20)),
            discount("c", amount=Decimal(3), currency="USD"),
            discount("d", amount=Decimal(1000), currency="USD", feature="nothing"),
        ],
    )
    await priced.post(dollars("a", "100"), dollars("b", "10", feature="search"), received_at=LATER)
    found = await issued(operator)
    assert [line.exact_amount for line in found.lines if line.kind == "discount"] == [
        Decimal(-50),
        Decimal(-12),
        Decimal(-3),
    ]
    assert found.total == Decimal(45)


async def test_b057_tax_is_on_the_rounded_subtotal(priced: Ledger, operator: Connection) -> None:
    """3 x 0.3349 = 1.0047: 1.00, tax 0.20, total 1.20. WRONG (tax per line): 0.21."""
    await agree(operator, tax_rate="0.20")
    await priced.post(*(dollars(name, "0.3349", feature=name) for name in "abc"), received_at=LATER)
    found = await issued(operator)
    assert (found.exact_subtotal, found.subtotal, found.tax_total, found.total) == (
        Decimal("1.0047"), Decimal("1.00"), Decimal("0.20"), Decimal("1.20"),
    )  # fmt: skip
    assert sorted(line.amount for line in found.lines) == [Decimal("0.33"), Decimal("0.33"), Decimal("0.34")]
    assert {line.exact_amount for line in found.lines} == {Decimal("0.3349")}


async def test_items_of_another_tax_category_are_rounded_by_themselves(priced: Ledger, operator: Connection) -> None:
    await agree(operator, tax_rate="0.10", items=[fee(amount="10.00", tax_category="full")])
    await apply_agreements(operator, "jane", Agreements(tax_rates=[tax("0.20", "full")]))
    await priced.post(dollars("a", "5"), received_at=LATER)
    found = await issued(operator)
    assert [(each.category, each.base, each.amount) for each in found.taxes] == [
        ("full", Decimal("10.00"), Decimal("2.00")), ("none", Decimal("5.00"), Decimal("0.50")),
    ]  # fmt: skip
    assert found.total == Decimal("17.50")


# --- Currencies ---------------------------------------------------------------------------------------------------------


async def test_b124_currencies_are_never_added(ledger: Ledger, operator: Connection) -> None:
    """10.00 USD and 5.00 EUR: two invoices. In USD with the rate 1.10 of its month: 15.50. WRONG: 15.00."""
    await ledger.add_price(input="1.00", output="1.00")
    await agree(operator)
    # Charged in dollars until December's end, in euros from then on: what comes late of December is in dollars.
    ledger.superuser.execute(
        "insert into ledger.tenant_versions (tenant_id, effective_at, entity_id, time_zone, charge_currency)"
        " values ('t-alpha', '2026-01-01', 'entity-1', 'UTC', 'EUR')"
    )
    rate = ExchangeRate(
        from_currency="USD", to_currency="EUR", rate=Decimal(1), effective_at=parse_rfc3339("2020-01-01T00:00:00Z"),
        source_address="https://rates.example", checked_on=date(2026, 1, 1),
    )  # fmt: skip
    await save_exchange_rates(operator, [rate], actor="jane")
    ledger._raised("parties", "prices")
    await close(operator, date(2025, 12, 1))
    await ledger.post(dollars("usd", "10", "2025-12-10T00:00:00Z"), dollars("eur", "5"), received_at=LATER)
    assert dict(ledger.rows("select charge_currency::text, sum(charge_amount) from ledger.entries group by 1")) == {
        "USD": Decimal(10), "EUR": Decimal(5),
    }  # fmt: skip
    drafts = {each.document.currency: each.document.total for each in (await draft(operator)).drafts}
    assert drafts == {"USD": Decimal(10), "EUR": Decimal(5)}
    await agree(operator, invoice_currency="USD")
    await close(operator, JANUARY)
    refused = await issue(operator)
    assert (refused.result, refused.reasons) == (
        "parked", ("no rate from EUR to USD was in force at the end of 2026-01",),
    )  # fmt: skip
    back = replace_rate(rate, "1.10")
    await save_exchange_rates(operator, [back], actor="jane")
    outcome = await issue(operator)
    assert (outcome.result, outcome.currency, outcome.total) == ("issued", "USD", Decimal("15.50"))
    found = (await draft(operator)).drafts[0].document
    assert found.notes == ("Amounts in EUR at 1.1 USD for 1 EUR, in force since 2020-01-01.",)
    assert {(line.charged_amount, line.charged_currency, line.exact_amount) for line in found.lines} == {
        (Decimal(10), "USD", Decimal(10)), (Decimal(5), "EUR", Decimal("5.50")),
    }  # fmt: skip


def replace_rate(rate: ExchangeRate, amount: str) -> ExchangeRate:
    return ExchangeRate(
        from_currency=rate.to_currency, to_currency=rate.from_currency, rate=Decimal(amount), effective_at=rate.effective_at,
        source_address=rate.source_address, checked_on=rate.checked_on,
    )  # fmt: skip


# --- Bounds -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bound", "rule"),
    [
        (
            Bound(currency="USD", total_max=Decimal("41.99")),
            "total 42.00 is above 41.99 USD, the most that is issued unseen",
        ),
        (Bound(currency="USD", total_max=Decimal("42.00")), None),
        (Bound(currency="USD", change_max=Decimal(2)), "total 42.00 after 20.00 USD changes more than 2 times"),
        (Bound(currency="USD", change_max=Decimal("2.1")), None),
        (Bound(currency="USD", change_max=Decimal(2), change_from=Decimal("42.01")), None),
        (Bound(currency="USD", lines_max=1), "2 lines are more than 1, the most that are issued unseen"),
        (Bound(currency="EUR", total_max=Decimal(1)), None),
    ],
)
async def test_what_is_larger_than_is_issued_unseen_waits_for_a_person(
    priced: Ledger, operator: Connection, bound: Bound, rule: str | None
) -> None:
    await priced.post(
        dollars("a", "20"), dollars("b", "40", "2026-02-10T00:00:00Z"),
        dollars("c", "2", "2026-02-10T00:00:00Z", feature="search"), received_at=LATER,
    )  # fmt: skip
    await issued(operator)
    await apply_agreements(operator, "jane", Agreements(bounds=[bound]))
    await close(operator, FEBRUARY)
    outcome = await issue(operator, FEBRUARY)
    assert outcome.reasons == (() if rule is None else (rule,))
    if rule is not None:
        accepted = await issue(operator, FEBRUARY, terms=Terms("jane", "a launch", accepts_bounds=True))
        assert accepted.result == "issued"
        assert priced.value("select detail ->> 'beyond_bounds' from ledger.acts order by act_id desc limit 1") == "true"


async def test_nobody_is_invoiced_without_names_and_taxes(ledger: Ledger, operator: Connection) -> None:
    await ledger.add_price(input="1.00", output="1.00")
    await ledger.post(dollars("a", "3"), received_at=LATER)
    await close(operator, JANUARY)
    (reasons,) = [(await issue(operator)).reasons]
    assert [re.sub(r" on .*", "", reason) for reason in reasons] == [
        "entity entity-1 has no issuer data", "tenant t-alpha has no customer data",
    ]  # fmt: skip
    await agree(operator)
    await apply_agreements(operator, "jane", Agreements(customers=[replace(CUSTOMER, tax_category="full")]))
    assert (await issue(operator)).reasons == ("entity entity-1 has no tax rate 'full' on 2026-01-31",)


# --- The file -----------------------------------------------------------------------------------------------------------

PAGE = Path(__file__).parent.parent.parent / "billing" / "agreements.md"


async def test_the_file_of_the_page_can_be_applied_and_again_changes_nothing(
    priced: Ledger, operator: Connection, tmp_path: Path
) -> None:
    block = re.search(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert block is not None
    path = tmp_path / "billing.yaml"
    path.write_text(block[1])
    wanted = load_agreements(path)
    shown = await apply_agreements(operator, "jane", wanted, dry_run=True)
    assert {each.outcome for each in shown} == {"added"}
    assert priced.value("select count(*) from billing.items") == 0
    assert [each.outcome for each in await apply_agreements(operator, "jane", wanted)] == ["added"] * 7
    assert {each.outcome for each in await apply_agreements(operator, "jane", wanted)} == {"unchanged"}
    assert priced.value("select count(*) from ledger.acts where act = 'billing.apply'") == 2, (
        "the fixture's and this one"
    )


FEE = {"id": "f", "tenant": "t-alpha", "kind": "fee", "description": "Fee", "currency": "USD", "amount": "10", "period": "month",
       "timing": "advance", "from": "2026-01-01"}  # fmt: skip
LESS = {
    "id": "d",
    "tenant": "t-alpha",
    "kind": "discount",
    "description": "Less",
    "percent": "10",
    "from": "2026-01-01",
}


@pytest.mark.parametrize(
    ("part", "entry", "rule"),
    [
        ("items", {**FEE, "amount": "ten"}, "items no. 1: amount is 'ten', which is no decimal number"),
        ("items", {**FEE, "amount": "0"}, "amount is 0; it is above zero"),
        ("items", {**FEE, "amount": "1.001"}, "amount has more places than USD"),
        ("items", {**FEE, "currency": "EURO"}, "currency is 'EURO', which is no code of ISO 4217"),
        ("items", {**FEE, "colour": "red"}, "'colour' is unknown"),
        ("items", {k: v for k, v in FEE.items() if k != "period"}, "period is missing"),
        ("items", {**LESS, "period": "month"}, "period is of fees alone"),
        ("items", {**LESS, "percent": "101"}, "percent is 101; it is above 0 and at most 100"),
        ("items", {**LESS, "amount": "1"}, "amount or percent: an item has one of the two"),
        ("items", {**LESS, "from": "2026-01-02"}, "from and until of what is no fee are first days of months"),
        ("items", {**FEE, "until": "2025-01-01"}, "until is before it starts"),
        (
            "taxes",
            {"entity": "e", "category": "c", "from": "2026-01-01", "rate": "20", "label": "x"},
            "rate is 20; it is a share",
        ),
        (
            "customers",
            {
                "tenant": "t",
                "from": "2026-01-01",
                "name": "n",
                "address": ["a"],
                "country": "FR",
                "tax_category": "c",
                "language": "fr",
            },
            "language is 'fr', which is no language of documents, which are ar, de, en, hi, zh",
        ),
        ("bounds", {"currency": "USD", "change_max": "0.5"}, "change_max is below one"),
        ("others", {}, "has the unknown part 'others'"),
    ],
)
def test_refusals_of_a_file(tmp_path: Path, part: str, entry: dict[str, Any], rule: str) -> None:
    import yaml

    path = tmp_path / "billing.yaml"
    path.write_text(yaml.safe_dump({part: [entry]}))
    with pytest.raises(AgreementRefused, match=re.escape(rule)):
        load_agreements(path)


async def test_an_item_changes_nothing_that_is_invoiced(priced: Ledger, operator: Connection) -> None:
    await agree(operator, items=[fee()])
    await issued(operator)
    for wish in (fee(amount="11.00"), fee("fee-2"), fee(ends_on=date(2026, 1, 20))):
        with pytest.raises(
            AgreementRefused, match="2026-01 of t-alpha is invoiced, and it would have been billed otherwise"
        ):
            await apply_agreements(operator, "jane", Agreements(items=[wish]))
    done = await apply_agreements(
        operator, "jane", Agreements(items=[fee(ends_on=FEBRUARY), fee("fee-2", "11.00", starts_on=FEBRUARY)])
    )
    assert [each.outcome for each in done] == ["changed", "added"]
    assert (await issued(operator, FEBRUARY)).total == Decimal("11.00")
    with pytest.raises(Unknown, match="there is no tenant 'nobody'"):
        await apply_agreements(operator, "jane", Agreements(items=[replace(fee("x"), tenant_id="nobody")]))


async def test_a_prefix_stays_that_of_its_kind_of_document(priced: Ledger, operator: Connection) -> None:
    """NW-000001 is an invoice: no later day makes a credit note of that number, which no database would take twice."""
    await agree(operator, items=[fee()])
    await issued(operator)
    swapped = replace(ISSUER, effective_from=FEBRUARY, invoice_prefix="INV-", credit_note_prefix="NW-")
    renamed = replace(ISSUER, invoice_prefix="INV-")
    for wish in ([swapped], [renamed, swapped]):
        with pytest.raises(AgreementRefused, match="prefix 'NW-' is that of invoices and of credit notes"):
            await apply_agreements(operator, "jane", Agreements(issuers=wish))
    other = replace(swapped, credit_note_prefix="NW-C-")
    assert [each.outcome for each in await apply_agreements(operator, "jane", Agreements(issuers=[other]))] == ["added"]


# --- What changes backwards in time -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("item", "month"),
    [
        (fee(currency="EUR"), "2026-01"),
        (fee(currency="EUR", period="quarter", timing="arrears"), "2026-03"),
        (discount(currency="EUR", amount=Decimal(5)), "2026-01"),
    ],
)
async def test_an_item_in_another_currency_than_the_invoices_is_refused_and_keeps_the_month_back(
    priced: Ledger, operator: Connection, item: Item, month: str
) -> None:
    """Nothing would bill it: it is neither converted nor forgotten."""
    rule = f"item {item.item_id}: currency is EUR, and {month} of t-alpha is invoiced in USD; agree it in that one, or let it end before"
    with pytest.raises(AgreementRefused, match=f"^{re.escape(rule)}$"):
        await agree(operator, invoice_currency="USD", items=[item])
    # As an earlier version, which did not look, would have left it.
    await agree(operator, items=[item])
    fields = "tenant_id, effective_from, name, address, country, tax_category, language, actor"
    priced.superuser.execute(
        f"insert into billing.customers ({fields}, invoice_currency) select {fields}, 'USD' from billing.customers"
    )
    (found,) = (await draft(operator, date.fromisoformat(f"{month}-01"))).drafts
    assert f"item {item.item_id} is in EUR, and invoices of t-alpha are in USD" in found.refusals


async def test_an_item_may_end_where_the_currency_of_invoices_changes(priced: Ledger, operator: Connection) -> None:
    await agree(operator, items=[fee(currency="EUR", ends_on=FEBRUARY)])
    dollars_later = replace(CUSTOMER, effective_from=FEBRUARY, invoice_currency="USD")
    await apply_agreements(
        operator, "jane", Agreements(customers=[dollars_later], items=[fee("fee-2", starts_on=FEBRUARY)])
    )
    assert [each.document.currency for each in (await draft(operator, FEBRUARY)).drafts] == ["USD"]


async def test_a_customer_changed_backwards_leaves_what_is_invoiced_as_it_was(
    priced: Ledger, operator: Connection
) -> None:
    """January is invoiced in USD untaxed. A name may change back to then; a currency or tax of then may not, until it is void."""
    await agree(operator)
    await apply_agreements(operator, "jane", Agreements(tax_rates=[tax("0.20", "full")]))
    await priced.post(dollars("a", "3"), dollars("b", "4", "2026-02-10T00:00:00Z"), received_at=LATER)
    january = await issued(operator)
    for change, says in (
        ({"invoice_currency": "EUR"}, "with invoice_currency that of the charge, and this says EUR"),
        ({"tax_category": "full"}, "with tax_category none, and this says full"),
        ({"tax_category": "full", "effective_from": JANUARY}, "with tax_category none, and this says full"),
        ({"tax_category": "full", "effective_from": date(2026, 1, 31)}, "with tax_category none, and this says full"),
    ):
        wish = replace(CUSTOMER, **change)
        with pytest.raises(AgreementRefused, match=f"2026-01 is invoiced as NW-000001 {says}"):
            await apply_agreements(operator, "jane", Agreements(customers=[wish]))
    moved = replace(CUSTOMER, name="Alpha Holding", address=("2 Low Street",), effective_from=JANUARY)
    taxed = replace(moved, tax_category="full", effective_from=FEBRUARY)
    await apply_agreements(operator, "jane", Agreements(customers=[moved, taxed]))
    (kept,) = await read_documents(operator, [january.document_id or ""])
    assert (kept.customer.name, kept.digest, kept.total) == ("Alpha Ltd", january.digest, Decimal("3.00"))
    assert (await issue(operator)).result == "issued_before"
    february = await issued(operator, FEBRUARY)
    assert (february.customer.name, february.total) == ("Alpha Holding", Decimal("4.80"))
    await void_invoice(operator, "jane", "NW-000001", reason="it is taxed")
    await apply_agreements(operator, "jane", Agreements(customers=[replace(moved, tax_category="full")]))
    again = await issue(operator)
    assert (again.number, again.total) == ("NW-000003", Decimal("3.60"))


async def test_a_customer_whom_nobody_had_described_then_keeps_what_it_was_invoiced_with(
    ledger: Ledger, operator: Connection
) -> None:
    """Described from today on, January is invoiced with that; a description of January that says otherwise is refused."""
    await ledger.add_price(input="1.00", output="1.00")
    await agree(operator, effective_from=TODAY)
    await ledger.post(dollars("a", "3"), received_at=LATER)
    assert (await issued(operator)).total == Decimal("3.00")
    wish = replace(CUSTOMER, tax_category="full", effective_from=JANUARY)
    with pytest.raises(AgreementRefused, match="2026-01 is invoiced as NW-000001 with tax_category none"):
        await apply_agreements(operator, "jane", Agreements(customers=[wish]))
    await apply_agreements(operator, "jane", Agreements(customers=[replace(CUSTOMER, effective_from=JANUARY)]))


async def test_what_is_owed_back_is_a_note_of_whoever_issued_the_invoice(ledger: Ledger, operator: Connection) -> None:
    """January's 7 were entity-1's; from February on entity-2 invoices. The note over January has entity-1's name and number."""
    await ledger.add_price(input="1.00", output="1.00")
    await agree(operator)
    ledger.superuser.execute("insert into ledger.entities values ('entity-2', 'Entity Two')")
    other = replace(ISSUER, entity_id="entity-2", name="Southwind", invoice_prefix="SW-", credit_note_prefix="SW-C-")
    rate = replace(tax("0"), entity_id="entity-2")
    await apply_agreements(operator, "jane", Agreements([other], [rate]))
    await ledger.post(dollars("b", "7"), received_at=LATER)
    with pytest.raises(ActRefused, match="usage"):
        await change_tenant(operator, "jane", "t-alpha", JANUARY, entity_id="entity-2")
    await change_tenant(operator, "jane", "t-alpha", FEBRUARY, entity_id="entity-2")
    await issued(operator)
    async with await connect(ledger.database.url_for("tallystick_writer")) as writer:
        await reverse(writer, "b")
    await close(operator, FEBRUARY)
    outcome = await issue(operator, FEBRUARY)
    assert (outcome.result, outcome.number, outcome.credit_notes) == ("issued", "SW-000001", ("NW-C-000001",))
    assert ledger.rows(
        "select entity_id, kind, issuer ->> 'name' from billing.documents order by entity_id, kind desc"
    ) == [
        ("entity-1", "invoice", "Northwind Inference GmbH"), ("entity-1", "credit_note", "Northwind Inference GmbH"),
        ("entity-2", "invoice", "Southwind"),
    ]  # fmt: skip
    found = [each.text for each in verify(ledger.database.url_for("tallystick_operator")).failures]
    assert found == []
