"""What a call that has not happened would come to."""

from decimal import Decimal
from typing import Any

import pytest

from ledger.books import Books
from ledger.parties import Calendar, Model
from ledger.price_book import Card, PriceBook
from ledger.times import parse_rfc3339
from quotas.estimates import Estimate, estimate
from tests.factories import make_parties, make_tenant
from tests.ledger.prices import band, make_card, per_million, variant
from tests.quotas.support import make_ask

NOW = parse_rfc3339("2026-03-10T12:00:00Z")
HOUR = 3_600_000_000
CHARGE = make_card(book="charge", model=None, markup=Decimal("1.5"))


def books_of(*cards: Card, **parties: Any) -> Books:
    known = make_parties(models=[("m-out", Model("openai", "m-out", None, 1_000_000))], **parties)
    return Books(known, Calendar(1, {}), PriceBook(1, [*cards, CHARGE]))


def estimated(books: Books, *, until: int = NOW + HOUR, **ask: Any) -> Estimate:
    return estimate(
        books, make_tenant(), make_ask("r1", **{"input_tokens": 1_000_000, "output_tokens": 0, **ask}), NOW, until
    )


def costs(books: Books, **ask: Any) -> str | None:
    found = estimated(books, **ask).cost
    return None if found is None else f"{found.normalize():f}"


def test_the_worst_case_is_the_dearest_input_and_the_cap() -> None:
    """A million in at the dearest text rate, the one-hour cache write of 4.00, and a million out at 12.00: 16.00, and 24.00 charged."""
    books = books_of(
        make_card(per_million(input="2.00", cached="0.50", write_5m="2.50", write_1h="4.00", output="12.00"))
    )
    found = estimated(books, output_tokens=1_000_000)
    assert (found.cost, found.charge) == (Decimal(16), Decimal(24))
    assert (found.input_tokens, found.output_tokens, found.cache_read_tokens) == (1_000_000, 1_000_000, 0)


def test_the_expected_case_is_at_plain_rates() -> None:
    """2.00 in and 12.00 out."""
    books = books_of(
        make_card(
            per_million(input="2.00", write_1h="4.00", output="12.00"), variants=(variant("priority", input="9.00"),)
        )
    )
    assert costs(books, basis="expected", output_tokens=1_000_000) == "14"


@pytest.mark.parametrize(
    ("tier", "cost"), [(None, "5"), ("auto", "5"), ("priority", "5"), ("flex", "2"), ("unknown", None)]
)
def test_the_worst_case_counts_every_tier_that_may_be_served(tier: str | None, cost: str | None) -> None:
    """Standard 2.00, flex 1.00, priority 5.00. A named tier is served as such or as standard; without one any may be."""
    books = books_of(
        make_card(
            per_million(input="2.00", output="1.00"),
            variants=(variant("flex", input="1.00"), variant("priority", input="5.00")),
        )
    )
    assert costs(books, service_tier=tier) == cost


@pytest.mark.parametrize(("tokens", "cost"), [(199_999, "0.399998"), (200_000, "0.4"), (200_001, "0.800004")])
def test_the_band_is_that_of_the_counted_input(tokens: int, cost: str) -> None:
    books = books_of(
        make_card(per_million(input="2.00", output="1.00"), bands=(band(">", 200_000, input="4.00", output="2.00"),))
    )
    assert costs(books, input_tokens=tokens) == cost
    assert costs(books, input_tokens=tokens) == cost, "and again, from what was kept"


@pytest.mark.parametrize(("starts", "cost"), [("12:59:59", "3"), ("13:00:00", "3"), ("13:00:01", "2")])
def test_a_price_that_begins_while_the_hold_lasts_counts(starts: str, cost: str) -> None:
    old = make_card(per_million(input="2.00", output="1.00"))
    new = make_card(per_million(input="3.00", output="1.00"), effective_at=f"2026-03-10T{starts}Z")
    assert costs(books_of(old, new)) == cost


def test_without_a_cap_the_models_limit_is_one() -> None:
    """0 in, a million out at 12.00; a model without a limit gives no estimate."""
    books = books_of(
        *(make_card(per_million(input="2.00", output="12.00"), model=model) for model in ("m-out", "m-free"))
    )
    assert costs(books, model="m-out", input_tokens=0, output_tokens=None) == "12"
    found = estimated(books, model="m-add", provider="anthropic", output_tokens=None)
    assert (found.cost, found.is_given) == (None, False)


def test_what_the_caller_states_counts_as_it_is() -> None:
    books = books_of(make_card(per_million(input="2.00", cached="0.50", output="12.00")))
    found = estimated(books, charge=Decimal("0.07"), cost=Decimal("0.05"), cost_currency="EUR")
    assert (found.charge, found.cost, found.cost_currency) == (Decimal("0.07"), Decimal("0.05"), "EUR")
    quantities = {"uncached_input_tokens": 1_000_000, "cache_read_tokens": 1_000_000, "visible_output_tokens": 500_000}
    found = estimated(books, quantities=quantities, input_tokens=None, output_tokens=None)
    assert (found.cost, found.input_tokens, found.cache_read_tokens) == (Decimal("8.5"), 2_000_000, 1_000_000)


def test_the_fee_of_an_operation_is_held_too() -> None:
    """2.00 and a fee of 0.01; 1.5 times both are charged."""
    books = books_of(make_card(per_million(input="2.00", output="1.00"), billing_rules={"fee_per_operation": "0.01"}))
    found = estimated(books)
    assert (found.cost, found.charge) == (Decimal("2.01"), Decimal("3.015"))


def test_no_price_is_not_a_price_of_zero() -> None:
    found = estimated(books_of(), model="m-nobody")
    assert (found.cost, found.charge, found.charge_currency, found.is_given) == (None, None, "USD", True)
