"""The fold: every charge has a line, whatever made it, and lines are held against charges, seals and proofs."""

from collections.abc import AsyncIterator
from datetime import date
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from billing.errors import FoldDiffers
from billing.usage_lines import Group, Rate, lines_of
from ledger.corrections import Difference, Request, Wanted, correct
from ledger.database import Connection, connect
from ledger.money import EXACT
from ledger.proofs import Difference as Differs
from ledger.proofs import note_proof
from tests.billing.support import JANUARY, LATER, agree, close, dollars, draft, issue, issued
from tests.factories import NODE, make_event
from tests.ledger.prices import make_card, per_million
from tests.support.ledger import Ledger

GROUP = Group(
    "t-alpha", "USD", JANUARY, "chat", "openai", "m-sub", 1, False, Decimal("7.000001"),
    {"uncached_input_tokens": Decimal(3_500_000), "visible_output_tokens": Decimal(1)},
)  # fmt: skip
RATES = {
    1: {"uncached_input_tokens": Rate(Decimal(2), 1_000_000), "visible_output_tokens": Rate(Decimal(1), 1_000_000)}
}


@pytest.fixture
async def priced(ledger: Ledger, operator: Connection) -> Ledger:
    await ledger.add_price(input="1.00", output="1.00", input_image="40.00")
    await agree(operator)
    return ledger


@pytest.fixture
async def writer(ledger: Ledger) -> AsyncIterator[Connection]:
    async with await connect(ledger.database.url_for("tallystick_writer")) as connection:
        yield connection


# --- Pure ---------------------------------------------------------------------------------------------------------------


def test_quantities_times_rates_are_the_charge() -> None:
    """3.5 million at 2.00 and one at 1.00 a million: 7 + 0.000001."""
    lines = lines_of([GROUP], RATES)
    assert [(line.meter, line.amount, line.unit_price, line.per) for line in lines] == [
        ("uncached_input_tokens", Decimal(7), Decimal(2), 1_000_000),
        ("visible_output_tokens", Decimal("0.000001"), Decimal(1), 1_000_000),
    ]


def test_a_line_of_several_prices_has_none() -> None:
    other = structs.replace(
        GROUP, rate_set_id=2, charge=Decimal(3), quantities={"uncached_input_tokens": Decimal(1_000_000)}
    )
    lines = lines_of([GROUP, other], {**RATES, 2: {"uncached_input_tokens": Rate(Decimal(3), 1_000_000)}})
    assert (lines[0].quantity, lines[0].unit_price, lines[0].per, lines[0].amount) == (
        Decimal(4_500_000), None, None, Decimal(10),
    )  # fmt: skip


def test_what_a_person_stated_is_a_line_without_a_quantity() -> None:
    stated = Group("t-alpha", "USD", JANUARY, "chat", "openai", "m-sub", None, True, Decimal("-0.25"), {})
    (line,) = lines_of([stated], {})
    assert (line.meter, line.quantity, line.amount) == ("amount_stated", None, Decimal("-0.25"))


@pytest.mark.parametrize("charge", ["7.000002", "7", "0"])
def test_a_charge_that_no_price_explains_is_refused(charge: str) -> None:
    with pytest.raises(FoldDiffers, match="quantities times rates of m-sub differ from its charges"):
        lines_of([structs.replace(GROUP, charge=Decimal(charge))], RATES)


def test_what_was_taken_back_wholly_has_no_line() -> None:
    back = structs.replace(
        GROUP, charge=-GROUP.charge, quantities={meter: -quantity for meter, quantity in GROUP.quantities.items()}
    )
    assert lines_of([GROUP, back], RATES) == []


_METERS = ("uncached_input_tokens", "cache_read_tokens", "visible_output_tokens")
_PRICES = st.builds(
    Rate, st.decimals(min_value=0, max_value=100, allow_nan=False, places=9), st.sampled_from([1, 1000, 1_000_000])
)
_REQUESTS = st.tuples(
    st.sampled_from([None, "chat", "search"]), st.integers(1, 3), st.fixed_dictionaries({each: st.integers(-10**9, 10**9) for each in _METERS})
)  # fmt: skip


@given(
    st.fixed_dictionaries({number: st.fixed_dictionaries(dict.fromkeys(_METERS, _PRICES)) for number in (1, 2, 3)}),
    st.lists(_REQUESTS, max_size=12),
)
def test_lines_sum_to_the_charges_of_their_requests_exactly(
    rates: dict[int, dict[str, Rate]], requests: list[tuple[str | None, int, dict[str, int]]]
) -> None:
    """Each request is priced by itself, in fractions; the fold sums counts by price and knows nothing of requests."""
    charges: dict[tuple[str | None, int], Fraction] = {}
    counts: dict[tuple[str | None, int], dict[str, Decimal]] = {}
    for feature, number, used in requests:
        key = (feature, number)
        charges[key] = charges.get(key, Fraction(0)) + sum(
            Fraction(count) * Fraction(rates[number][meter].price) / rates[number][meter].per
            for meter, count in used.items()
        )
        counts[key] = {meter: counts.get(key, {}).get(meter, Decimal(0)) + count for meter, count in used.items()}
    groups = [
        structs.replace(
            GROUP, feature=key[0], rate_set_id=key[1], charge=_decimal(charge), quantities=counts[key]
        )
        for key, charge in charges.items()
    ]  # fmt: skip
    lines = lines_of(groups, rates)
    assert sum(Fraction(line.amount) for line in lines) == sum(charges.values())
    assert sum(line.quantity or 0 for line in lines) == sum(count for _, _, used in requests for count in used.values())


def _decimal(value: Fraction) -> Decimal:
    """Return a fraction of a power of ten digit for digit."""
    return EXACT.divide(Decimal(value.numerator), Decimal(value.denominator))


# --- Of real entries ----------------------------------------------------------------------------------------------------


async def test_both_reports_of_a_request_are_one_quantity(priced: Ledger, operator: Connection) -> None:
    """The node says 100, the gateway 90 and counts: a true-up takes 10 back, and evidence adds nothing."""
    event = make_event("a", usage={"prompt_tokens": 100, "completion_tokens": 0}, request_id="r")
    await priced.post({**event, "source": NODE, "id": "node-a"}, received_at=LATER)
    await priced.post(
        make_event("a", usage={"prompt_tokens": 90, "completion_tokens": 0}, request_id="r"), received_at=LATER
    )  # fmt: skip
    found = await issued(operator)
    assert [(line.meter, line.quantity) for line in found.lines] == [("uncached_input_tokens", Decimal(90))]
    assert found.exact_subtotal == priced.total()


async def test_rare_meters_and_stated_differences_have_lines(
    priced: Ledger, operator: Connection, writer: Connection
) -> None:
    """A thousand tokens of an image at 40.00 a million, 1.00 of text, and a difference of -0.30: 0.04 + 1.00 - 0.30 = 0.74."""
    await priced.post(
        make_event("a", quantities={"uncached_input_image_tokens": 1000}), dollars("b", "1"), received_at=LATER
    )  # fmt: skip
    await correct(
        writer, Wanted(Difference(Request("t-alpha", "req-b"), charge=Decimal("-0.30"))), actor="jane", reason="a promise"
    )  # fmt: skip
    found = await issued(operator)
    assert {line.meter: line.exact_amount for line in found.lines} == {
        "uncached_input_image_tokens": Decimal("0.04"), "uncached_input_tokens": Decimal(1), "amount_stated": Decimal("-0.30"),
    }  # fmt: skip
    assert found.exact_subtotal == priced.total() == Decimal("0.74")


async def test_a_fee_for_each_operation_is_a_line(ledger: Ledger, operator: Connection) -> None:
    ledger.add_model()
    rates = per_million(input="1.00", output="1.00")
    await ledger.add_card(
        make_card(rates, effective_at="2020-01-01T00:00:00Z", billing_rules={"fee_per_operation": "0.02"})
    )
    await ledger.add_card(make_card(book="charge", model=None, effective_at="2020-01-01T00:00:00Z", markup=Decimal(1)))
    await agree(operator)
    await ledger.post(dollars("a", "1"), dollars("b", "1"), received_at=LATER)
    found = await issued(operator)
    assert {line.meter: (line.quantity, line.exact_amount) for line in found.lines} == {
        "uncached_input_tokens": (Decimal(2_000_000), Decimal(2)), "operations": (Decimal(2), Decimal("0.04")),
    }  # fmt: skip


# --- Held against seals, proofs and what waits for a person ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "is_held"),
    [
        ("tenant t-alpha, 2026-01, USD: budget totals-charge says 3, the entries come to 4", True),
        ("fct_cost_daily: tenant t-alpha, 2026-01: the mart says charge 3 USD", True),
        ("tenant t-alpha-2, 2026-01, USD: budget totals-charge says 3", False),
        ("budget totals-charge, which the standing proof needs, is gone or ended", True),
    ],
)
async def test_a_failed_proof_holds_whom_it_names_or_everybody(
    priced: Ledger, operator: Connection, text: str, is_held: bool
) -> None:
    await priced.post(dollars("a", "3"), received_at=LATER)
    await close(operator, JANUARY)

    async def proved(*differences: Differs) -> None:
        from datetime import UTC, datetime

        await note_proof(
            operator, "standing", started_at=datetime.now(UTC), up_to={}, difference_count=len(differences),
            differences=differences, notes=(), every_seconds=None,
        )  # fmt: skip

    await proved(Differs("budgets", text))
    refusals = (await draft(operator)).drafts[0].refusals
    assert [reason.endswith(f"failed: {text}") for reason in refusals] == [True] * is_held
    await proved()
    assert (await draft(operator)).drafts[0].refusals == ()


async def test_a_proposal_waits_for_a_person_and_so_does_the_invoice(priced: Ledger, operator: Connection) -> None:
    await priced.post(dollars("a", "3", request_id="r"), received_at=LATER)
    await priced.post(dollars("a-less", "1", request_id="r", revision=1), received_at=LATER)
    assert priced.value("select count(*) from ledger.entries where usage_flags @> '{proposed}'") == 1
    await close(operator, JANUARY)
    outcome = await issue(operator)
    assert outcome.reasons == ("1 proposal is of its usage open: accept or refuse",)


async def test_what_is_priced_later_no_longer_holds_its_month(priced: Ledger, operator: Connection) -> None:
    """Without a price in January; the better report of February has one: January is issued without, February with it."""
    few = {"prompt_tokens": 1, "completion_tokens": 0}
    unknown = make_event("b", model="m-unknown", request_id="r", usage=few)
    await priced.post(dollars("a", "3"), unknown, received_at=LATER)
    await close(operator, JANUARY)
    assert (await issue(operator)).reasons == ("1 request is without a charge",)
    await priced.post(
        make_event("b2", request_id="r", revision=1, usage={"prompt_tokens": 2_000_000, "completion_tokens": 0}),
        received_at=LATER,
    )  # fmt: skip
    assert (await issue(operator)).total == Decimal(3)
    february = await issued(operator, date(2026, 2, 1))
    assert february.total == Decimal(2)
    assert february.exact_subtotal + 3 == priced.total()
