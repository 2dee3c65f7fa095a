"""Seals: one text for what a month came to, whatever the database's collation, and one digest over it."""

from datetime import date
from decimal import Decimal
from typing import Any

from ledger.seals import COLUMNS, canonical_line, in_order, seal_digest, sums_by_currency, total
from ledger.tables import SEAL_DIMENSIONS, SEAL_MEASURES
from tests.test_house import CHECKOUT

JANUARY = date(2026, 1, 1)


def make_line(**given: Any) -> list[Any]:
    """A line of one request on the tenth; text columns are null, counts zero."""
    texts: dict[str, Any] = dict.fromkeys([name for name, _ in SEAL_DIMENSIONS])
    counts = {name: Decimal(0) if name.endswith("_amount") else 0 for name, _ in SEAL_MEASURES}
    values = {"local_date": date(2026, 1, 10), **texts, "language": "und", **counts, "request_count": 1, **given}
    assert set(values) == set(COLUMNS)
    return [values[name] for name in COLUMNS]


def test_the_canonical_text_of_a_line() -> None:
    """Null is \\N, an amount has no exponent and no trailing zeros, and no text can break a line."""
    line = make_line(
        feature="a\tb\\c\nd", charge_currency="USD", charge_amount=Decimal("1.2300"), cost_amount=Decimal("1E+2")
    )
    assert canonical_line(line) == (
        "2026-01-10\ta\\tb\\\\c\\nd\tund\t\\N\t\\N\t\\N\t\\N\t\\N\tUSD"
        "\t0\t0\t1\t0\t0\t0\t0\t0\t0\t0\t0\t0\t0\t0\t0\t100\t0\t0\t1.23\t0\t0"
    )


def test_the_digest_has_golden_bytes() -> None:
    """The text is the promise: whoever changes it makes a new version of the digest, and old seals keep theirs."""
    lines = in_order(
        [
            make_line(feature="search", charge_currency="USD", charge_amount=Decimal("0.10")),
            make_line(feature="chat", charge_currency="EUR", charge_amount=Decimal("2.5"), request_count=3),
        ]
    )
    assert [line[1] for line in lines] == ["chat", "search"]
    assert seal_digest("t-alpha", JANUARY, lines).hex() == (
        "daf7aa0a98b48582e4b22107fe4fdb99162cfe68e12696a255c9fe4639c46105"
    )
    assert seal_digest("t-beta", JANUARY, lines) != seal_digest("t-alpha", JANUARY, lines)
    assert seal_digest("t-alpha", JANUARY, lines[:1]) != seal_digest("t-alpha", JANUARY, lines)


def test_the_order_is_that_of_bytes() -> None:
    """A collation may put Z before a, or ignore hyphens; bytes put Z (5a) before a (61) and a before ä (c3a4)."""
    lines = in_order([make_line(feature=name) for name in ("ä", "a", "Z", "a-b", "ab")])
    assert [line[1] for line in lines] == ["Z", "a", "a-b", "ab", "ä"]


def test_sums_add_no_two_currencies() -> None:
    lines = [
        make_line(charge_currency="USD", charge_amount=Decimal("0.1")),
        make_line(charge_currency="USD", charge_amount=Decimal("0.2")),
        make_line(charge_currency="EUR", charge_amount=Decimal("7")),
        make_line(charge_unpriced_count=1),
    ]
    assert sums_by_currency(lines, "charge") == {"USD": Decimal("0.3"), "EUR": Decimal(7)}
    assert total(lines, "charge_unpriced_count") == 1


def test_a_seal_is_cut_and_summed_as_the_marts_are() -> None:
    """Once the rows are gone, marts are folded from seals: a column that the seal lacks could not be."""
    macro = (CHECKOUT / "dbt" / "macros" / "usage.sql").read_text()
    named = [
        [part.strip().strip('"') for part in text.replace("\n", " ").split(",") if part.strip()]
        for text in (part.partition("]")[0] for part in macro.split("return([")[1:])
    ]
    assert named == [[name for name, _ in SEAL_DIMENSIONS], [name for name, _ in SEAL_MEASURES]]
