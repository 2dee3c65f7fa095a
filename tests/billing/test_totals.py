"""What is owed over all documents: the same for any order and delay of the same usage; months end where the tenant's clocks say."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from billing.agreements import Item
from billing.digests import digest_of
from billing.issuing import issue_month, numbered
from billing.store import Issued, insert_documents, read_documents
from ledger import registry
from ledger.database import Connection, connect
from ledger.periods import month_after
from ledger.times import micros, parse_rfc3339
from tests.billing.support import (
    APRIL,
    FEBRUARY,
    ISSUER,
    JANE,
    JANUARY,
    LATER,
    MARCH,
    agree,
    amounts,
    close,
    discount,
    dollars,
    draft,
    exactly_owed,
    fee,
    issue,
    issued,
    owed,
    reverse,
)
from tests.ledger.prices import make_card, per_million
from tests.support.databases import Database, scratch_database
from tests.support.ledger import Ledger
from tests.support.soak import examples


@pytest.fixture
async def priced(ledger: Ledger, operator: Connection) -> Ledger:
    await ledger.add_price(input="1.00", output="1.00")
    await agree(operator)
    return ledger


# --- Where months end ---------------------------------------------------------------------------------------------------


async def test_b059_a_month_ends_at_the_local_midnight(ledger: Ledger, operator: Connection) -> None:
    """In Berlin March 2026 ends at 22:00 UTC, though it began at 23:00: u1 of 0.20 is March's, u2 of 0.10 April's."""
    await ledger.add_price(input="1.00", output="1.00")
    ledger.add_tenant("t-old", zone="Europe/Berlin").add_tenant("t-new", zone="Europe/Berlin", first_period=MARCH)
    await agree(operator, "t-old", "t-new")
    for name in ("t-old", "t-new"):
        await ledger.post(
            dollars(f"u1-{name}", "0.20", "2026-03-31T21:59:59.999999Z", tenant_id=name),
            dollars(f"u2-{name}", "0.10", "2026-03-31T22:00:00Z", tenant_id=name), received_at=LATER,
        )  # fmt: skip
        march, april = await issued(operator, MARCH, name), await issued(operator, APRIL, name)
        assert (march.total, april.total, march.time_zone) == (Decimal("0.20"), Decimal("0.10"), "Europe/Berlin")


async def test_b060_the_local_days_of_an_invoice_add_up_to_it(ledger: Ledger, operator: Connection) -> None:
    """Kathmandu, 5:45 ahead: July 10 has 1, July 11 2 + 4, July 12 8; the invoice of July is 15, and 16 more are August's."""
    await ledger.add_price(input="1.00", output="1.00")
    ledger.add_tenant("t-ktm", zone="Asia/Kathmandu")
    await agree(operator, "t-ktm")
    times = ("10T18:14:59Z", "10T18:15:00Z", "11T18:14:59Z", "11T18:15:00Z", "31T18:15:00Z")
    await ledger.post(
        *(dollars(f"k{n}", str(2**n), f"2026-07-{at}", tenant_id="t-ktm") for n, at in enumerate(times)),
        received_at="2026-09-15T00:00:00Z",
    )
    july = await issued(operator, date(2026, 7, 1), "t-ktm")
    days = dict(
        ledger.rows(
            "select local_date, sum(charge_amount) from ledger.entries where tenant_id = 't-ktm'"
            " and posting_period = '2026-07-01' group by 1"
        )
    )
    assert days == {date(2026, 7, day): Decimal(amount) for day, amount in ((10, 1), (11, 6), (12, 8))}
    assert july.exact_subtotal == sum(days.values()) == Decimal(15)
    assert (await issued(operator, date(2026, 8, 1), "t-ktm")).exact_subtotal == Decimal(16)


async def test_b062_days_of_the_calendar_are_counted_across_a_clock_change(
    ledger: Ledger, operator: Connection
) -> None:
    """A trial in Denver from 20 February, 23:30: 30 days end on 22 March, the billing day. A fee of 31.00 has 10 of 31 days of March.

    WRONG: 720 hours end on 23 March, 9 days. Usage until the local midnight of April, 06:00 UTC now and not 07:00, is March's.
    """
    await ledger.add_price(input="1.00", output="1.00")
    ledger.add_tenant("t-den", zone="America/Denver")
    billing_day = date(2026, 2, 20) + timedelta(days=30)
    await agree(operator, "t-den", items=[fee(amount="31.00", starts_on=billing_day, tenant_id="t-den")])
    await ledger.post(
        dollars("d0", "1", "2026-03-23T05:30:00Z", tenant_id="t-den"),
        dollars("d1", "2", "2026-04-01T05:59:59.999999Z", tenant_id="t-den"),
        dollars("d2", "4", "2026-04-01T06:00:00Z", tenant_id="t-den"),
        received_at=LATER,
    )
    march = await issued(operator, MARCH, "t-den")
    found = {line.kind: (line.service_start, line.service_end, line.amount) for line in march.lines}
    assert found == {
        "usage": (MARCH, APRIL, Decimal("3.00")),
        "fee": (date(2026, 3, 22), APRIL, Decimal("10.00")),
    }
    assert ledger.value("select min(local_date) from ledger.entries where tenant_id = 't-den'") == billing_day
    april = await issued(operator, APRIL, "t-den")
    assert amounts(april) == {("usage", "2026-04"): Decimal(4), ("fee", "2026-04"): Decimal(31)}


async def test_b061_an_event_on_the_boundary_is_on_exactly_one_invoice(priced: Ledger, operator: Connection) -> None:
    """January 3, February 5 + 7 = 12, March 11; together 26. A nanosecond before midnight is not rounded up."""
    await priced.post(
        dollars("b1", "3", "2026-01-31T23:59:59.999999999Z"), dollars("b2", "5", "2026-02-01T00:00:00Z"),
        dollars("b3", "7", "2026-02-28T23:59:59.5Z"), dollars("b4", "11", "2026-03-01T00:00:00Z"), received_at=LATER,
    )  # fmt: skip
    totals = [(await issued(operator, month)).total for month in (JANUARY, FEBRUARY, MARCH)]
    assert totals == [Decimal(3), Decimal(12), Decimal(11)]
    assert owed(priced) == {"USD": Decimal(26)} == {"USD": priced.total()}


async def test_b065_usage_after_midnight_waits_for_its_own_invoice(priced: Ledger, operator: Connection) -> None:
    """The run is late; what happened at 00:03 is February's all the same."""
    await priced.post(
        dollars("m1", "2", "2026-01-31T23:58:00Z"), dollars("m2", "1", "2026-02-01T00:03:00Z"), received_at=LATER
    )  # fmt: skip
    assert (await issued(operator)).total == Decimal(2)
    assert (await issued(operator, FEBRUARY)).total == Decimal(1)


async def test_b066_an_old_event_keeps_its_time_and_its_price(ledger: Ledger, operator: Connection) -> None:
    """January's price is 2.00 a million, February's 3.00: a million of 20 January that comes in March costs 2. WRONG: 3."""
    ledger.add_model()
    for start, price in (("2026-01-01T00:00:00Z", "2.00"), ("2026-02-01T00:00:00Z", "3.00")):
        await ledger.add_card(make_card(per_million(input=price), effective_at=start))
    await ledger.add_card(make_card(book="charge", model=None, effective_at="2020-01-01T00:00:00Z", markup=Decimal(1)))
    await agree(operator)
    await close(operator, JANUARY, FEBRUARY)
    await ledger.post(dollars("old", "1", "2026-01-20T00:00:00Z"), received_at="2026-03-15T00:00:00Z")
    march = await issued(operator, MARCH)
    (line,) = march.lines
    assert (line.service_start, line.is_late(march.period_start), line.amount) == (JANUARY, True, Decimal("2.00"))
    assert ledger.value("select occurred_at::date from ledger.entries") == date(2026, 1, 20)


async def test_b067_the_last_usage_of_a_leaving_tenant_is_invoiced(priced: Ledger, operator: Connection) -> None:
    """9.00 were the final invoice; 1.25 come later, of before the tenant left: a supplementary invoice of the next month."""
    await priced.post(dollars("a", "9"), received_at=LATER)
    assert (await issued(operator)).total == Decimal("9.00")
    await registry.leave_tenant(
        operator, "jane", "t-alpha", at=parse_rfc3339("2026-01-31T12:00:00Z"), now=micros_now(), reason="gone"
    )  # fmt: skip
    await priced.post(dollars("late", "1.25", "2026-01-31T11:59:00Z"), received_at=LATER)
    supplement = await issued(operator, FEBRUARY)
    assert amounts(supplement) == {("usage", "2026-01"): Decimal("1.25")}
    assert owed(priced) == {"USD": Decimal("10.25")}


def micros_now() -> int:
    from datetime import UTC, datetime

    return micros(datetime.now(UTC))


# --- Exactness ----------------------------------------------------------------------------------------------------------


async def test_b056_small_amounts_are_summed_before_they_are_rounded(ledger: Ledger, operator: Connection) -> None:
    """1,200 tokens at 0.02 a million are 0.000024; 500 of them are 0.012: 0.01 on the invoice. WRONG (each rounded): 0."""
    await ledger.add_price(input="0.02", output="0.02")
    await agree(operator)
    events = [dollars(f"e{n}", "0.0012", "2026-01-10T00:00:00Z", request_id=f"r{n}") for n in range(500)]
    await ledger.post(*events, received_at=LATER)
    found = await issued(operator)
    assert found.exact_subtotal == Decimal("0.012") == 500 * Decimal("0.000024")
    assert found.total == Decimal("0.01")


async def test_b055_ten_dimes_are_a_dollar(priced: Ledger, operator: Connection) -> None:
    """10 x 0.1 = 1, in as many lines as there are features."""
    await priced.post(*(dollars(f"e{n}", "0.1", feature=f"f{n}") for n in range(10)), received_at=LATER)
    found = await issued(operator)
    assert (len(found.lines), found.exact_subtotal, found.total) == (10, Decimal(1), Decimal("1.00"))


async def test_a_document_read_back_has_the_digest_that_it_was_issued_with(
    priced: Ledger, operator: Connection
) -> None:
    await agree(operator, tax_rate="0.077", items=[discount(percent=Decimal("12.5"))])
    await priced.post(dollars("a", "3.333333"), dollars("b", "100", feature="search"), received_at=LATER)
    found = await issued(operator)
    assert digest_of(found) == found.digest


async def test_what_is_written_comes_back_whatever_its_texts_hold(priced: Ledger, operator: Connection) -> None:
    """Tabs, quotes, backslashes, braces, a text that reads like a null, and an empty one."""
    odd = 'a\tb\nc\\d "e" {f},\\N'
    await agree(operator, name=odd, address=("\\N", odd, "NULL"), items=[replace(fee(), description=odd)])
    await priced.post(dollars("a", "3", feature="\\N"), received_at=LATER)
    drafted = (await draft(operator)).drafts[0]
    notes = (odd, "", "NULL", "\\N")
    document = drafted.document.marked(notes=notes)
    document = document.marked(digest=digest_of(document))
    await close(operator, JANUARY)
    made = numbered(document, ISSUER, 1, datetime.now(UTC))
    await operator.execute(
        "insert into billing.numbers (entity_id, kind, last_value) values ('entity-1', 'invoice', 1)"
    )
    row = Issued(
        document=made, entity_id="entity-1", number_value=1, revision=1, close_number=1, issued_with_document_id=None,
        actor=odd, second_person=None,
    )  # fmt: skip
    async with operator.transaction():
        await insert_documents(operator, [row])
    (found,) = await read_documents(operator, [str(made.document_id)])
    assert found == made
    assert digest_of(found) == made.digest
    assert priced.value("select actor from billing.documents") == odd


# --- Any order, any delay -----------------------------------------------------------------------------------------------

MONTHS: Final = (JANUARY, FEBRUARY, MARCH, APRIL)
EVENTS: Final = [(number, MONTHS[number % 3]) for number in range(6)]
_CENTS: Final = st.integers(1, 2000)


@pytest.mark.parametrize("with_items", [False, True])
@settings(
    max_examples=examples(8), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)  # fmt: skip
@given(data=st.data())
async def test_any_order_and_delay_of_the_same_usage_owes_the_same(
    postgres_server: Any, months_template: str, with_items: bool, data: st.DataObject
) -> None:
    """Six calls of January to March, some reversed, come in any order with closes and invoices of any month in between.

    In the end every month is issued. Exactly owed: what stands of the calls, less the discounts, and no less than the minimum of
    each month; printed, within half a cent for each document. No document is below zero, and every charge stands on one.
    """
    amounts_cents = {number: data.draw(_CENTS, f"cents of {number}") for number, _ in EVENTS}
    reversed_ones = data.draw(st.sets(st.sampled_from([number for number, _ in EVENTS])), "reversed")
    acts = data.draw(
        st.permutations(
            [("post", number) for number, _ in EVENTS]
            + [("reverse", number) for number in sorted(reversed_ones)]
            + [("issue", place) for place in range(3)]
        ),
        "acts",
    )
    with scratch_database(postgres_server.address, f"any_order_{next(_NUMBER)}", months_template) as database:
        await _play(database, amounts_cents, reversed_ones, acts, with_items)


_NUMBER = iter(range(1_000_000))
ITEMS: Final = [
    discount(percent=Decimal("7.5")),
    discount("less-2", amount=Decimal(4), currency="USD"),
    Item(
        item_id="least", tenant_id="t-alpha", kind="minimum", description="Minimum", currency="USD", amount=Decimal(8),
        starts_on=JANUARY, ends_on=APRIL,
    ),
]  # fmt: skip


def _owed_of(cents: dict[int, int], reversed_ones: set[int]) -> Decimal:
    owed_of = dict.fromkeys(MONTHS[:3], Decimal(0))
    for number, month in EVENTS:
        if number not in reversed_ones:
            owed_of[month] += Decimal(cents[number]) / 100 * Decimal("0.925")
    return sum((max(amount - 4, Decimal(8)) for amount in owed_of.values()), Decimal(0))


async def _play(
    database: Database, cents: dict[int, int], reversed_ones: set[int], acts: list[tuple[str, int]], with_items: bool
) -> None:
    ledger = Ledger(database).add_tenant().add_source()
    try:
        await ledger.add_price(input="1.00", output="1.00")
        async with (
            await connect(database.url_for("tallystick_operator")) as operator,
            await connect(database.url_for("tallystick_writer")) as writer,
        ):
            await agree(operator, items=ITEMS if with_items else [])
            posted: set[int] = set()
            waiting: set[int] = set()
            closed: list[date] = []

            async def next_issue() -> None:
                if len(closed) < len(MONTHS):
                    month = MONTHS[len(closed)]
                    closed.append(month)
                    await close(operator, month)
                    outcomes = await issue_month(operator, "t-alpha", month, JANE)
                    assert {each.result for each in outcomes} <= {"issued", "nothing"}, outcomes

            for what, number in acts:
                if what == "post":
                    at = f"{EVENTS[number][1]:%Y-%m}-10T00:00:00Z"
                    await ledger.post(dollars(f"e{number}", str(Decimal(cents[number]) / 100), at), received_at=LATER)
                    posted.add(number)
                    if number in waiting:
                        await reverse(writer, f"e{number}")
                elif what == "reverse":
                    # Nobody reverses what is not there yet: it is done when it comes.
                    if number in posted:
                        await reverse(writer, f"e{number}")
                    else:
                        waiting.add(number)
                else:
                    await next_issue()
            for month in [*MONTHS[len(closed) :], month_after(APRIL)]:
                await close(operator, month)
                outcomes = await issue_month(operator, "t-alpha", month, JANE)
                assert {each.result for each in outcomes} <= {"issued", "nothing"}, outcomes
            stands = sum((Decimal(cents[n]) / 100 for n in cents if n not in reversed_ones), Decimal(0))
            wanted = _owed_of(cents, reversed_ones) if with_items else stands
            assert ledger.total() == stands
            documents = await read_documents(
                operator, [row[0] for row in ledger.rows("select document_id from billing.documents")]
            )
            assert all(each.amount_due >= 0 for each in documents)
            exact = exactly_owed(ledger)
            # What prints as nothing and no invoice can give back stays below half a cent.
            assert exact == wanted
            printed = owed(ledger).get("USD", Decimal(0))
            assert abs(printed - wanted) <= Decimal("0.005") * len(documents)
            charged = ledger.value(
                "select coalesce(sum(l.charged_amount), 0) from billing.document_lines as l"
                " join billing.documents as d using (document_id) where d.kind = 'invoice'"
            )
            assert charged == stands
    finally:
        ledger.close()


async def test_issue_of_an_unissued_month_is_still_possible_later(priced: Ledger, operator: Connection) -> None:
    """Months may be issued in any order where nothing is owed back."""
    await priced.post(dollars("a", "3"), dollars("b", "4", "2026-02-10T00:00:00Z"), received_at=LATER)
    await close(operator, JANUARY, FEBRUARY)
    assert (await issue(operator, FEBRUARY)).number == "NW-000001"
    assert (await issue(operator, JANUARY)).number == "NW-000002"
    assert owed(priced) == {"USD": Decimal(7)}
