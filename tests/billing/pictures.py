"""Makes the pictures of docs/invoices.md: `python -m tests.billing.pictures` (needs poppler-utils' pdftoppm)."""

import subprocess
import tempfile
from datetime import date
from decimal import Decimal
from pathlib import Path

from billing.documents import CreditApplied, Document, Party
from billing.exports.pdf import to_pdf
from tests.billing.documents import make_document, make_line

FOLDER = Path(__file__).parent.parent.parent / "docs" / "invoices"
DOTS_PER_INCH = 72

USED = (
    make_line("48.22", exact_amount=Decimal("48.215"), quantity=Decimal(192_860_000), unit_price=Decimal("0.25")),
    make_line("6.10", meter="cache_read_tokens", quantity=Decimal(244_000_000), unit_price=Decimal("0.025")),
    make_line("31.70", meter="visible_output_tokens", quantity=Decimal(15_850_000), unit_price=Decimal("2.00")),
    make_line(
        "0.42",
        meter="visible_output_tokens",
        quantity=Decimal(210_000),
        unit_price=Decimal("2.00"),
        service_start=date(2025, 12, 30),
        service_end=date(2026, 1, 1),
    ),
)
FEE = make_line(
    "99.00", kind="fee", description="Platform fee, January 2026", feature=None, provider=None, model=None, meter=None,
    quantity=Decimal(1), unit_price=Decimal("99.00"), per=1,
)  # fmt: skip
GRANT = CreditApplied("grant-1", "Prepaid on January 1, 2026", Decimal("50.00"))
BANK = "Payable without deduction to IBAN DE02 1203 0000 0000 2020 51."


def documents() -> dict[str, Document]:
    """Return the documents that are shown, by the name of their picture."""
    models = ("gpt-5-mini", "claude-sonnet-4-5", "llama-3.3-70b-instruct")
    many = [
        make_line(f"{number}.{number % 100:02d}", feature=feature, model=model)
        for number in range(1, 61)
        for feature, model in [(f"feature-{number // 7}", models[number % 3])]
    ]
    scripts = {
        "hindi": ("hi", "INR", "Asia/Kolkata", "0.18", "कृष्ण अनुसंधान प्राइवेट लिमिटेड", ("१२, महात्मा गांधी मार्ग", "नई दिल्ली")),
        "chinese": ("zh-Hans-CN", "CNY", "Asia/Shanghai", "0.06", "上海星河智能科技有限公司", ("浦东新区世纪大道 100 号", "上海")),
        "arabic": ("ar", "SAR", "Asia/Riyadh", "0.15", "شركة النخيل للذكاء الاصطناعي", ("شارع الملك فهد ٢٤", "الرياض")),
    }  # fmt: skip
    return {
        "short": make_document([*USED, FEE], credits=[GRANT], notes=(BANK,)),
        "long": make_document(many),
        "draft": make_document(USED, state="draft", number=None, issued_at=None, due_date=None, document_id=None),
        "credit-note": make_document(
            USED[:2], kind="credit_note", number="NW-C-2026-0001", corrects_number="NW-2026-0001",
            reason="Wrong price in January", due_date=None,
        ),
        **{
            name: make_document(
                [make_line("1234567.89"), *USED[1:]], language=language, currency=currency, time_zone=zone, rate=rate,
                customer=Party("t-alpha", customer, address),
            )
            for name, (language, currency, zone, rate, customer, address) in scripts.items()
        },
    }  # fmt: skip


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        for name, document in documents().items():
            path = Path(scratch) / f"{name}.pdf"
            path.write_bytes(to_pdf(document))
            page = "2" if name == "long" else "1"
            subprocess.run(
                ["pdftoppm", "-r", str(DOTS_PER_INCH), "-png", "-singlefile", "-f", page, path, FOLDER / name],
                check=True,
            )


if __name__ == "__main__":
    main()
