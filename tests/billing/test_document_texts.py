"""Documents for programs: JSON with minor units, CSV that adds up and that no spreadsheet runs, numbers of each language."""

import csv
import io
import json
import unicodedata
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import jsonschema
import pytest
from msgspec import structs

from billing.crediting import creditable
from billing.digests import digest_of
from billing.documents import CreditApplied, Document, Line, Party
from billing.drafting import Draft, Month, draft_month
from billing.exports.csv_text import COLUMNS, safe_text, to_csv
from billing.exports.json_text import SCHEMA, minor_units, printed_amount, to_json
from billing.exports.names import file_names
from billing.exports.printed import printed
from billing.exports.words import languages, words_of
from billing.usage_lines import UsageLine
from ledger.exchange import ExchangeRate, ExchangeRates
from ledger.times import parse_rfc3339
from tests.billing.documents import make_document, make_line
from tests.billing.support import CUSTOMER, fee, tax

GRANT = CreditApplied("grant-1", "Prepaid in January", Decimal("50.00"))


def read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.parametrize(
    ("currency", "amount", "text", "minor"),
    [
        ("JPY", "4321", "4321", 4321),
        ("USD", "43.21", "43.21", 4321),
        ("BHD", "1.235", "1.235", 1235),
        ("RWF", "51000", "51000", 51000),
    ],
)
def test_b123_minor_units_stand_beside_the_amount(currency: str, amount: str, text: str, minor: int) -> None:
    """43.21 x 10^2 = 4321; a yen has no hundredth, so 4321 yen are 4321 and not 432100."""
    document = make_document([make_line(amount)], rate=None, currency=currency)
    due = json.loads(to_json(document))["amount_due"]
    assert due == {"amount": text, "minor_units": minor}
    (line, _tax) = read(to_csv([document]))
    assert (line["amount"], line["minor_units"]) == (text, str(minor))


def test_an_amount_with_more_places_than_its_currency_is_an_error() -> None:
    with pytest.raises(ValueError, match="more places"):
        minor_units(Decimal("0.5"), 0)
    with pytest.raises(ValueError, match="more places"):
        printed_amount(Decimal("0.005"), 2)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"state": "draft", "number": None, "issued_at": None, "due_date": None, "document_id": None},
        {"kind": "credit_note", "corrects_number": "NW-2026-0001", "reason": "Wrong price"},
        {"credits": [CreditApplied("grant-1", "Prepaid", Decimal("1.00"))], "notes": ("Thank you.",)},
    ],
)
def test_json_is_as_its_schema_says(changes: dict[str, Any]) -> None:
    amount = make_line("7.00", kind="fee", quantity=None, unit_price=None, per=None, meter=None)
    document = make_document([make_line(), amount], **changes)
    jsonschema.validate(json.loads(to_json(document)), json.loads(SCHEMA.read_text()))


def test_json_keeps_every_digit_and_no_exponent() -> None:
    line = make_line(
        "0.00", quantity=Decimal("1E+9"), unit_price=Decimal("1E-20"), exact_amount=Decimal("1E-11"), per=1
    )
    (found,) = json.loads(to_json(make_document([line])))["lines"]
    assert found["quantity"] == "1000000000"
    assert found["unit_price"] == "0.00000000000000000001"
    assert found["exact_amount"] == "0.00000000001"


def test_the_amounts_of_a_csv_add_up_to_what_is_due() -> None:
    """54.32 of lines, 10.32 of tax, 50.00 of a grant."""
    document = make_document([make_line("48.22", exact_amount=Decimal("48.215")), make_line("6.10")], credits=[GRANT])
    rows = read(to_csv([document]))
    assert [row["row_kind"] for row in rows] == ["usage", "usage", "tax", "grant"]
    assert sum(Decimal(row["amount"]) for row in rows) == document.amount_due == Decimal("14.64")
    assert sum(int(row["minor_units"]) for row in rows) == 1464
    assert rows[0]["exact_amount"] == "48.215"
    assert rows[2]["tax_rate"] == "0.19"


def test_a_csv_tells_a_line_of_a_credit_note_from_what_goes_into_a_grant() -> None:
    """10.00 given back of an invoice, 4.00 of it into the grant that had paid: 7.90 in money with its tax."""
    line = make_line("10.00", kind="credit", quantity=None, unit_price=None, per=None)
    note = make_document(
        [line], kind="credit_note", number="NW-C-1", basis="commercial", corrects_document_id="inv-0", due_date=None,
        corrects_number="NW-0", reason="An hour of outage", credits=[replace(GRANT, amount=Decimal("4.00"))],
    )  # fmt: skip
    rows = read(to_csv([note]))
    assert [(row["row_kind"], row["amount"]) for row in rows] == [
        ("credit", "10.00"), ("tax", "1.90"), ("grant", "-4.00"),
    ]  # fmt: skip
    assert {
        (row["basis"], row["document_id"], row["corrects_document_id"], row["corrects_number"]) for row in rows
    } == {("commercial", "inv-1", "inv-0", "NW-0")}
    found = json.loads(to_json(note))
    assert (found["basis"], found["corrects_document_id"]) == ("commercial", "inv-0")


def test_several_documents_stand_in_one_csv_under_one_head() -> None:
    text = to_csv([make_document(), make_document(number="NW-2026-0002")])
    assert text.count("document_kind") == 1
    assert [row["number"] for row in read(text) if row["row_kind"] == "usage"] == ["NW-2026-0001", "NW-2026-0002"]
    assert tuple(read(text)[0]) == COLUMNS


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n", "'", "|", "%"])
def test_no_text_of_a_csv_can_be_run_as_a_formula(start: str) -> None:
    """`=HYPERLINK(...)` as a customer's name would send the sheet to whoever chose it."""
    text = f"{start}HYPERLINK(0)"
    party = Party("t-alpha", text)
    line = make_line(description=text, feature=text, model=text)
    (row, _tax) = read(to_csv([make_document([line], customer=party, tenant_id=text)]))
    for column in ("customer_name", "tenant_id", "description", "feature", "model"):
        assert row[column] == f"'{text}", column
        assert row[column][1:] == text
    assert safe_text("Globex") == "Globex"
    assert safe_text("") == ""


def test_numbers_of_a_csv_stay_numbers_when_they_are_negative() -> None:
    rows = read(to_csv([make_document(credits=[replace(GRANT, amount=Decimal("1.00"))])]))
    assert rows[-1]["amount"] == "-1.00"


NEGATIVE = UsageLine(
    "USD", date(2026, 1, 1), None, "openai", "gpt-5-mini", "uncached_input_tokens", Decimal(-5_000_000), Decimal(1), 1_000_000, Decimal(-5)
)  # fmt: skip
RATE = ExchangeRate(
    from_currency="USD", to_currency="EUR", rate=Decimal("0.50"), effective_at=parse_rfc3339("2026-01-01T00:00:00Z"),
    source_address="https://rates.example", checked_on=date(2026, 1, 1),
)  # fmt: skip
FEBRUARY = date(2026, 2, 1)


def february(language: str, *billed: Document) -> Draft:
    """A February that takes back 5.00 of January, of which `billed` are the invoices, and has half a fee; in EUR at 0.5."""
    known = Month(
        tenant_id="t-alpha", month=FEBRUARY, time_zone="UTC", entity_id="entity-1", entity_name="Entity", today=FEBRUARY,
        customers=[replace(CUSTOMER, tax_category="standard", language=language, invoice_currency="EUR")],
        tax_rates=[tax("0.19", "standard")],
        items=[fee(amount="2.80", starts_on=date(2026, 2, 15), currency="EUR")],
        lines=[NEGATIVE],
        exchange_rates=ExchangeRates([RATE]),
        creditable={"EUR": [creditable(each, []) for each in billed]},
    )  # fmt: skip
    (found,) = draft_month(known)
    return found


WORDS = {
    "en": (
        "Given back by credit note for Jan 1 – 31, 2026", "Owed back, on no credit note yet", "Usage of Jan 1 – 31, 2026 given back",
        "Usage that was billed was corrected later.", "Platform fee (14 of 28 days)",
        "Amounts in USD at 0.5 EUR for 1 USD, in force since January 1, 2026.",
    ),
    "de": (
        "Mit Gutschrift erstattet für 1.–31. Jan. 2026", "Zu erstatten, noch auf keiner Gutschrift",
        "Erstattung der Nutzung vom 1.–31. Jan. 2026", "Abgerechnete Nutzung wurde nachträglich berichtigt.",
        "Platform fee (14 von 28 Tagen)", "Beträge in USD zum Kurs von 0,5 EUR für 1 USD, gültig seit 1. Januar 2026.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("tag", languages())
def test_what_we_say_of_an_amount_is_said_in_the_language_of_the_document(tag: str) -> None:
    """Owed back, parts of a fee and rates of exchange: no word of the English description is left, where it is not English."""
    january = make_document([make_line("9.00")], language=tag)
    placed, unplaced = february(tag, january), february(tag)
    (note,) = placed.notes
    (given,), texts = printed(note)["rows"], printed(placed.document)
    rows = [_plain(row["text"]) for row in texts["rows"]]
    said = (
        rows[-1], _plain(printed(unplaced.document)["rows"][-1]["text"]), _plain(given["text"]), _plain(note_reason(note)),
        rows[1], _plain(texts["notes"][1]),
    )  # fmt: skip
    assert placed.document.lines[-1].kind == "owed_back"
    assert texts["rows"][-1]["details"] == [], "its days stand in its text"
    if tag in WORDS:
        assert said == WORDS[tag]
    else:
        for english, here in zip(WORDS["en"], said, strict=True):
            assert here
            assert not {"back", "days", "Usage", "Amounts", "credit", "of"} & set(here.split()), (english, here)


def note_reason(note: Document) -> str:
    words = words_of(note.language)
    (found,) = [text for text in printed(note)["notes"] if text.startswith(f"{words['reason']}: ")]
    return str(found.removeprefix(f"{words['reason']}: "))


def _plain(text: str) -> str:
    return "".join(mark for mark in text if unicodedata.category(mark) != "Cf").replace("\u2009", " ")


@pytest.mark.parametrize("tag", languages())
def test_a_credit_on_a_whole_invoice_and_into_grants_is_said_in_its_language(tag: str) -> None:
    line = make_line(
        "10.00", kind="credit", description="Credit on invoice NW-0", feature=None, provider=None, model=None, meter=None,
        quantity=None, unit_price=None, per=None,
    )  # fmt: skip
    note = make_document(
        [line], kind="credit_note", basis="commercial", corrects_number="NW-0", reason="=", due_date=None, language=tag,
        credits=[replace(GRANT, amount=Decimal("4.00"))],
    )  # fmt: skip
    shown, words = printed(note), words_of(tag)
    assert _plain(shown["rows"][0]["text"]) == words["credit_on"].format(number="NW-0")
    assert [_plain(label) for label, _ in shown["totals"]][-1] == f"{words['credit_back']}: Prepaid in January"
    assert words["credit"] != words["credit_back"]


def test_every_language_has_every_word() -> None:
    english = words_of("en")
    for tag in languages():
        words = words_of(tag)
        assert words.words.keys() == english.words.keys(), tag
        assert words.meters.keys() == english.meters.keys(), tag
        assert all(words.words.values()), tag
        for name, text in english.words.items():
            assert {part.split("}")[0] for part in text.split("{")[1:]} == {
                part.split("}")[0] for part in words[name].split("{")[1:]
            }, (tag, name)


@pytest.mark.parametrize(
    ("tag", "number"),
    [
        ("en", "-12,345,678.000000000000000000001"),
        ("de", "-12.345.678,000000000000000000001"),
        ("de-CH", "-12'345'678.000000000000000000001"),
        ("hi", "-1,23,45,678.000000000000000000001"),
        ("zh", "-12,345,678.000000000000000000001"),
        ("ar", "\u200e-12,345,678.000000000000000000001"),
    ],
)
def test_a_number_is_grouped_as_its_language_groups_and_loses_no_digit(tag: str, number: str) -> None:
    assert words_of(tag).number(Decimal("-12345678.000000000000000000001")).replace("’", "'") == number


def test_a_number_longer_than_any_register_is_whole() -> None:
    digits = "1234567890" * 5
    assert words_of("en").number(Decimal(digits)).replace(",", "") == digits


@pytest.mark.parametrize(
    ("value", "places", "text"),
    [
        ("0", 2, "0.00"),
        ("0.25", 2, "0.25"),
        ("0.025", 2, "0.025"),
        ("2", None, "2"),
        ("2.50", None, "2.5"),
        ("-0.00", 2, "0.00"),
    ],
)
def test_at_least_so_many_places_are_shown(value: str, places: int | None, text: str) -> None:
    assert words_of("en").number(Decimal(value), places) == text


def test_days_are_named_with_the_last_one_and_not_the_one_after() -> None:
    words = words_of("en-GB")
    assert words.days(date(2026, 1, 31), date(2026, 2, 1)) == "31 January 2026"
    assert words.days(date(2026, 1, 1), date(2026, 2, 1)).replace("\u2009", " ") == "1 – 31 Jan 2026"
    assert words.days(date(2025, 12, 31), date(2026, 1, 2)).replace("\u2009", " ") == "31 Dec 2025 – 1 Jan 2026"


# --- Names of files -------------------------------------------------------------------------------------------------------


def test_a_number_names_a_file_and_no_folder() -> None:
    """A prefix is what somebody chose, and two entities may choose the same."""
    numbers = [("inv-1", "../RE/2026/1"), ("inv-2", "RE/1"), ("inv-3", "RE_1"), ("inv-4", "RE 1 é")]
    documents = [make_document(document_id=name, number=number) for name, number in numbers]
    assert file_names(documents) == ["_RE_2026_1", "RE_1-inv-2", "RE_1-inv-3", "RE_1_é"]


# --- Digests --------------------------------------------------------------------------------------------------------------

CONVERTED = make_line(
    "0.30", exact_amount=Decimal("0.3000000"), quantity=Decimal("1E+6"), charged_amount=Decimal("0.30"), charged_currency="USD",
    exchange_rate=Decimal("0.9200"), exchange_rate_at=datetime(2026, 1, 31, 22, 59, 59, 999999, tzinfo=UTC),
)  # fmt: skip
AGREED = make_line(
    "5", kind="fee", description='Support "gold"\n\\ 日本', feature=None, provider=None, model=None, meter=None, quantity=None,
    unit_price=None, per=None, item_id="fee-1", corrects_line_no=2,
)  # fmt: skip


def test_a_digest_that_was_issued_is_what_its_document_has_for_ever() -> None:
    issued = make_document(
        [CONVERTED, AGREED], credits=[CreditApplied("g-1", "Prepaid", Decimal("1.00"))], notes=("At 0.92.",)
    )
    assert digest_of(issued) == "1feb87ee39883e9949fee95c64f2073570afbefd9db24da064ecfd989739e470"


OTHER = {
    str: "other", int: 7, Decimal: Decimal(7), date: date(2026, 1, 2), datetime: datetime(2026, 1, 2, tzinfo=UTC),
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in Line.__struct_fields__ if not name.endswith("amount")])
def test_whatever_changes_on_a_line_changes_the_digest(name: str) -> None:
    line = structs.replace(CONVERTED, item_id="fee-1", corrects_line_no=2)
    other = structs.replace(line, **{name: OTHER[type(getattr(line, name))]})
    document = make_document()
    first, second = (document.marked(lines=[each]) for each in (line, other))
    assert digest_of(first) != digest_of(second)
