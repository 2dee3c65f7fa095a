"""Documents as PDF: what is printed is what is owed, in every script, on pages that hold together."""

import io
import re
import unicodedata
from datetime import date
from decimal import Decimal
from itertools import pairwise

import pytest
from pypdf import PdfReader

from billing.documents import CreditApplied, Document, Party
from billing.errors import DocumentNotPrintable
from billing.exports.pdf import FONTS, to_pdf
from billing.exports.printed import printed
from billing.exports.words import languages
from tests.billing.documents import CUSTOMER, make_document, make_line


def pages_of(document: Document, **options: bool) -> list[str]:
    """Return the text of each page, spaces and invisible marks made plain."""
    return [_plain(page.extract_text()) for page in PdfReader(io.BytesIO(to_pdf(document, **options))).pages]


def _plain(text: str) -> str:
    kept = "".join(mark for mark in text if unicodedata.category(mark) != "Cf")
    return re.sub(r"\s+", " ", kept)


def fonts_of(data: bytes) -> dict[str, bool]:
    """Return each font that a file uses, and whether it is inside."""
    found = {}
    for page in PdfReader(io.BytesIO(data)).pages:
        for font in page["/Resources"]["/Font"].values():
            inner = font.get_object()["/DescendantFonts"][0].get_object()["/FontDescriptor"].get_object()
            found[font.get_object()["/BaseFont"]] = "/FontFile2" in inner or "/FontFile3" in inner
    return found


def test_every_amount_of_the_document_is_printed() -> None:
    """48.22 + 6.10 = 54.32; 19 % of it is 10.3208, 10.32; 64.64 less 50.00 of a grant is 14.64."""
    document = make_document(
        [make_line("48.22", exact_amount=Decimal("48.215")), make_line("6.10", unit_price=Decimal("0.025"))],
        credits=[CreditApplied("grant-1", "Prepaid in January", Decimal("50.00"))],
    )
    (text,) = pages_of(document)
    for shown in (
        "Invoice", "NW-2026-0001", "February 4, 2026", "March 6, 2026", "Jan 1 – 31, 2026", "Northwind Inference GmbH",
        "DE123456789", "Globex Corporation", "0.025 per 1,000,000", "Subtotal EUR 54.32", "VAT 19 % on EUR 54.32 EUR 10.32", "Germany", "United States", "gpt-5-mini: input tokens chat",
        "Total EUR 64.64", "Credit used: Prepaid in January EUR -50.00", "Amount due EUR 14.64", "Page 1 of 1",
    ):  # fmt: skip
        assert shown in text, shown


def test_the_same_document_has_the_same_bytes() -> None:
    """So the hash of a file that somebody kept can be compared with the file made anew."""
    assert to_pdf(make_document()) == to_pdf(make_document())
    assert to_pdf(make_document()) != to_pdf(make_document(number="NW-2026-0002"))


def test_the_file_says_what_it_is_and_keeps_for_long() -> None:
    reader = PdfReader(io.BytesIO(to_pdf(make_document())))
    assert reader.metadata is not None
    assert reader.metadata.title == "Invoice NW-2026-0001"
    assert reader.metadata["/CreationDate"] == "D:20260204093000Z"
    assert reader.xmp_metadata is not None
    assert b"<pdfaid:part>2</pdfaid:part>" in to_pdf(make_document())


@pytest.mark.parametrize("language", languages())
def test_every_language_prints_its_own_words_with_fonts_of_ours(language: str) -> None:
    data = to_pdf(make_document(language=language))
    fonts = fonts_of(data)
    assert all(fonts.values())
    # Six letters and a plus: only the glyphs that are used are in the file.
    assert all(re.match(r"/[A-Z]{6}\+NotoSans", name) for name in fonts)
    assert len(data) < 100_000


@pytest.mark.parametrize(
    ("language", "currency", "name", "due", "font"),
    [
        ("en", "USD", "Zażółć Ångström & Söhne", "USD 1,469,135.79", "NotoSans"),
        ("de", "EUR", "Müller Straße KG", "1.469.135,79 EUR", "NotoSans"),
        ("hi", "INR", "कृष्ण अनुसंधान", "INR 14,69,135.79", "NotoSansDevanagari"),
        ("zh-Hans-CN", "CNY", "上海星河智能科技有限公司", "CNY 1,469,135.79", "NotoSansCJKsc"),
        ("ar", "SAR", "شركة النخيل", "1,469,135.79 SAR", "NotoSansArabic"),
    ],
)
def test_names_and_numbers_stand_in_the_script_of_the_language(
    language: str, currency: str, name: str, due: str, font: str
) -> None:
    """1,234,567.89 and 19 % of it, 234,567.8991, are 1,469,135.79: grouped as each language groups."""
    document = make_document([make_line("1234567.89")], language=language, currency=currency, customer=Party("t", name))
    (text,) = pages_of(document)
    assert any(font in each for each in fonts_of(to_pdf(document)))
    if language == "ar":
        # Where text runs from right to left, the extraction gives runs in the order of the eye.
        assert "1,469,135.79" in text
        assert "SAR" in text
    else:
        assert due in text
    if language not in {"ar", "hi"}:
        # Devanagari and Arabic are shaped: what stands on the page are clusters, not the letters one by one.
        assert name in text


def test_a_latin_name_turns_no_arabic_line_around() -> None:
    """The name runs from left to right by itself, the line from right to left: so it is read first, at the right, and then the meter."""
    apart = "\u2068{}\u2069".format
    document = make_document(
        [make_line("1.00"), make_line("2.00", kind="fee", description="Platform fee", model=None, meter=None)], language="ar"
    )  # fmt: skip
    rows = printed(document)["rows"]
    assert [row["text"] for row in rows] == [f"{apart('gpt-5-mini')}: رموز الإدخال", apart("Platform fee")]


def test_a_character_that_no_font_has_is_refused_by_name_and_never_printed_as_a_box() -> None:
    document = make_document(customer=Party("t-alpha", "Globex 𓀀 Ltd"))
    with pytest.raises(
        DocumentNotPrintable, match=r"no font has EGYPTIAN HIEROGLYPH A001 \(U\+13000\) in 'Globex 𓀀 Ltd'"
    ):
        to_pdf(document)


def test_a_control_character_is_refused_too() -> None:
    with pytest.raises(DocumentNotPrintable, match=r"U\+0007"):
        to_pdf(make_document(customer=Party("t-alpha", "Globex\a")))


def test_a_language_without_words_is_refused() -> None:
    with pytest.raises(DocumentNotPrintable, match=r"language xx: there are words for ar, de, en, hi, zh only"):
        to_pdf(make_document(language="xx"))


def test_a_folder_that_is_none_is_refused() -> None:
    with pytest.raises(DocumentNotPrintable, match="is not a folder of fonts"):
        to_pdf(make_document(), font_folders=[FONTS / "nowhere"])


def test_what_customers_are_called_is_printed_and_never_run() -> None:
    """Typst would take these for markup, code or a path, were they part of its source."""
    name = '#panic("no") $x$ *bold* `raw` <row> @ref \\ /etc/passwd [a](b) ${jndi}'
    (text,) = pages_of(make_document(customer=Party("t-alpha", name)))
    assert name in text


def test_a_line_alone_and_two_thousand_lines_have_the_same_head_and_foot() -> None:
    """2,000 lines of 1.00 and 19 %: 2,380.00."""
    assert len(pages_of(make_document())) == 1
    pages = pages_of(make_document([make_line("1.00", feature=f"Line {no:04d} of many") for no in range(2000)]))
    assert len(pages) > 40
    assert "Amount due EUR 2,380.00" in pages[-1]
    for number, page in enumerate(pages, 1):
        assert f"Page {number} of {len(pages)}" in page
    # No line is lost or printed twice where pages turn, and each row has all of its parts on one page.
    rows = re.findall(
        r"gpt-5-mini: input tokens Line (\d{4}) of many 1,000,000 1\.00 per 1,000,000 1\.00", " ".join(pages)
    )
    assert rows == [f"{no:04d}" for no in range(2000)]
    assert sum(len(re.findall(r"Line \d{4} of many", page)) for page in pages) == 2000
    assert all("Description Quantity Unit price Amount" in page for page in pages if "of many" in page)


def test_a_page_carries_forward_what_its_rows_add_up_to_and_the_next_brings_it() -> None:
    """Each line is 1.00, so what is carried is the number of rows so far."""
    pages = pages_of(make_document([make_line("1.00", feature=f"Line {no:03d} of") for no in range(1, 101)]))
    assert len(pages) > 3
    for before, after in pairwise(pages):
        rows = re.findall(r"Line (\d{3}) of", before)
        if rows:
            carried = f"{int(rows[-1])}.00"
            assert f"Carried forward EUR {carried}" in before
            assert f"Brought forward EUR {carried}" in after
    assert "Carried forward" not in pages[-1]
    assert "Brought forward" not in pages[0]


def test_long_names_wrap_and_lose_nothing() -> None:
    name = " ".join(f"word{number}" for number in range(60))
    (text,) = pages_of(make_document([make_line(feature=name)], customer=Party("t-alpha", name)))
    assert text.count(name) == 2


def test_late_usage_is_named_with_the_days_it_is_of() -> None:
    late = make_line("0.42", service_start=date(2025, 12, 30), service_end=date(2026, 1, 1))
    (text,) = pages_of(make_document([make_line(), late]))
    assert text.count("Usage of") == 1
    assert "Usage of Dec 30 – 31, 2025" in text


def test_a_line_of_several_prices_says_so_and_an_amount_has_none() -> None:
    several = make_line("5.00", unit_price=None, per=None)
    amount = make_line(
        "7.00", kind="discount", description="Agreed", quantity=None, unit_price=None, per=None,
        feature=None, provider=None, model=None, meter=None,
    )  # fmt: skip
    (text,) = pages_of(make_document([several, amount]))
    assert "1,000,000 several 5.00" in text
    assert "Agreed 7.00" in text


def test_a_draft_is_marked_and_asks_for_nothing() -> None:
    (text,) = pages_of(make_document(state="draft", number=None, issued_at=None, due_date=None, document_id=None))
    assert text.count("DRAFT") == 2
    assert "asks for no payment" in text
    assert "Number" not in text


def test_a_voided_document_is_marked_on_every_page() -> None:
    pages = pages_of(make_document([make_line("1.00") for _ in range(60)], state="voided"))
    assert len(pages) > 1
    assert all("VOID" in page for page in pages)


def test_a_credit_note_names_the_invoice_that_it_corrects_and_why() -> None:
    (text,) = pages_of(
        make_document(
            kind="credit_note",
            number="NW-C-2026-0001",
            corrects_number="NW-2026-0001",
            reason="Wrong price",
            due_date=None,
        )
    )
    for shown in (
        "Credit note",
        "NW-C-2026-0001",
        "Corrects invoice NW-2026-0001",
        "Reason: Wrong price",
        "Amount credited EUR 11.90",
    ):
        assert shown in text


def test_exact_amounts_are_a_list_of_their_own() -> None:
    lines = [
        make_line("0.33", exact_amount=Decimal("0.333333333333333333")),
        make_line("0.34", exact_amount=Decimal("0.3366666")),
    ]
    *_, text = pages_of(make_document(lines), with_exact=True)
    assert "0.333333333333333333" in text
    assert "Subtotal EUR 0.669999933333333333" in text


@pytest.mark.parametrize(
    ("currency", "amount", "printed"),
    [
        ("JPY", "4321", "JPY 4,321"),
        ("USD", "43.21", "USD 43.21"),
        ("BHD", "1.235", "BHD 1.235"),
        ("RWF", "51000", "RWF 51,000"),
    ],
)
def test_b123_a_printed_amount_has_the_places_of_its_currency(currency: str, amount: str, printed: str) -> None:
    (text,) = pages_of(make_document([make_line(amount)], rate=None, currency=currency, customer=CUSTOMER))
    assert f"Amount due {printed} " in text
