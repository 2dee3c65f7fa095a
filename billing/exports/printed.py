"""What is printed of a document, in its language: every text, ready for the page. Pure."""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC
from decimal import Decimal
from typing import Any, Final
from zoneinfo import ZoneInfo

from billing.documents import Document, Line, Party
from billing.exports.words import Words, words_of
from billing.rounding import plain
from ledger.money import EXACT, currency_exponent

Printed = Mapping[str, Any]
"""Texts and lists of texts, as `document.typ` lays them out."""

_DIGEST_SHOWN: Final = 16


def printed(document: Document, *, with_exact: bool = False) -> Printed:
    """Return the texts of a document in the order of the page; with `with_exact`, a list of unrounded amounts too."""
    words = words_of(document.language)
    places = currency_exponent(document.currency)

    def money(amount: Decimal) -> str:
        return words.money(amount, document.currency, places)

    is_invoice = document.kind == "invoice"
    issued_on = document.issued_at and document.issued_at.astimezone(ZoneInfo(document.time_zone)).date()
    mark = {"draft": "draft", "voided": "voided"}.get(document.state)
    facts = [
        (words["number"], document.number),
        (words["corrects"], document.corrects_number),
        (words["issue_date"], issued_on and words.day(issued_on)),
        (words["due_date"], document.due_date and words.day(document.due_date)),
        (words["billing_period"], words.days(document.period_start, document.period_end)),
        (words["account"], document.tenant_id),
    ]
    totals = [(words["subtotal"], money(document.subtotal))]
    totals += [
        (
            words["tax_base"].format(label=words.apart(tax.label), base=money(tax.base)),
            money(tax.amount),
        )
        for tax in document.taxes
    ]
    if document.taxes or document.credits:
        totals.append((words["total"], money(document.total)))
    totals += [
        (
            f"{words['credit' if is_invoice else 'credit_back']}: {words.apart(credit.description)}",
            money(credit.amount.copy_negate()),
        )
        for credit in document.credits
    ]
    notes = [
        *([words[f"{mark}_note"]] if mark else []),
        *([f"{words['reason']}: {_reason(document, words)}"] if document.reason else []),
        *_notes(document, words),
        words["days_note"].format(zone=document.time_zone, currency=document.currency),
        f"{words['digest']}: {document.digest[:_DIGEST_SHOWN]}",
    ]
    return {
        "language": words.locale.language,
        "direction": words.direction,
        "title": words[document.kind],
        "number": document.number or "",
        "mark": words[mark] if mark else "",
        "is_void": document.state == "voided",
        "issuer": _party(document.issuer, words),
        "customer_label": words["bill_to"],
        "customer": _party(document.customer, words),
        "facts": [[label, text] for label, text in facts if text],
        "head": [words[name] for name in ("description", "quantity", "unit_price", "amount")],
        "rows": _rows(document, words, places),
        "brought_forward": words["brought_forward"],
        "carried_forward": words["carried_forward"],
        "totals": [list(each) for each in totals],
        "due": [words["amount_due" if is_invoice else "amount_credited"], money(document.amount_due)],
        "notes": notes,
        "page": words["page"],
        "exact": _exact(document, words) if with_exact else None,
        "on": _instant(document),
    }


def _party(party: Party, words: Words) -> list[str]:
    """Return a party's lines: its name first."""
    lines = [party.name, *party.address, words.country(party.country), party.email]
    tax_id = [f"{words['tax_id']}: {party.tax_id}"] if party.tax_id else []
    return [*(words.apart(each) for each in lines if each), *tax_id]


def _rows(document: Document, words: Words, places: int) -> list[dict[str, Any]]:
    """Return a row per line, each with what the amounts add up to so far."""
    rows = []
    carried = Decimal(0)
    for line in document.lines:
        carried = EXACT.add(carried, line.amount)
        rows.append(
            {
                "text": _text(line, document, words),
                "details": _details(line, document, words),
                "quantity": "" if line.quantity is None else words.number(line.quantity),
                "price": _price(line, words),
                "amount": words.number(line.amount, places),
                "carried": words.money(carried, document.currency, places),
            }
        )
    return rows


def _details(line: Line, document: Document, words: Words) -> list[str]:
    """Return what stands below a line's description: what was used, and when, where that is not the document's period."""
    details = [line.feature or ""]
    # What is owed back names its days itself.
    is_named = line.kind == "owed_back"
    if not is_named and (line.service_start, line.service_end) != (document.period_start, document.period_end):
        days = words.days(line.service_start, line.service_end)
        details.append(words["late"].format(period=days) if line.is_late(document.period_start) else days)
    return [each for each in details if each]


_PART: Final = re.compile(r"(.*) \((\d+) of (\d+) days\)", re.DOTALL)
"""How a fee of less than its whole period is described (`agreements.py`)."""


def _text(line: Line, document: Document, words: Words) -> str:
    """Return what a line is for: in the document's language what we say, and as it was agreed what was agreed."""
    if line.meter is not None:
        counted = words.meter(line.meter)
        return f"{words.apart(line.model)}: {counted}" if line.model else counted
    period = words.days(line.service_start, line.service_end)
    if line.kind == "owed_back":
        # What is placed is of an earlier month; only a draft has more.
        is_open = line.service_start >= document.period_start
        return words["owed_back_open"] if is_open else words["owed_back"].format(period=period)
    if document.basis == "owed_back":
        return words["given_back"].format(period=period)
    if line.kind == "credit" and line.corrects_line_no is None:
        return words["credit_on"].format(number=words.apart(document.corrects_number or ""))
    part = _PART.fullmatch(line.description) if line.item_id is not None or line.corrects_line_no is not None else None
    if part is not None:
        text, days, whole = part.groups()
        return words["part"].format(text=words.apart(text), days=days, whole=whole)
    return words.apart(line.description)


def _reason(document: Document, words: Words) -> str:
    """Return why a credit note was issued: in its language what no person wrote."""
    return words["given_back_reason"] if document.basis == "owed_back" else words.apart(document.reason or "")


def _notes(document: Document, words: Words) -> list[str]:
    """Return the sentences below the sums; those about exchange rates, which say what lines have, in the document's language."""
    known = {}
    for line in document.lines:
        if line.exchange_rate is not None and line.exchange_rate_at is not None:
            values = {"from_currency": line.charged_currency, "currency": document.currency}
            rate, at = line.exchange_rate, line.exchange_rate_at.astimezone(UTC).date()
            english = words_of("en")["exchange_note"].format(**values, rate=f"{plain(rate):f}", day=at.isoformat())
            known[english] = words["exchange_note"].format(**values, rate=words.number(rate), day=words.day(at))
    return [words.apart(known.get(note, note)) for note in document.notes]


def _price(line: Line, words: Words) -> str:
    if line.unit_price is None:
        return "" if line.quantity is None else words["several_prices"]
    price = words.number(line.unit_price, 2)
    return (
        price
        if line.per is None or line.per == 1
        else words["per"].format(price=price, count=words.number(Decimal(line.per)))
    )


def _exact(document: Document, words: Words) -> dict[str, Any]:
    """Return the list of amounts before rounding."""
    return {
        "title": words["exact_amounts"],
        "note": words["exact_note"],
        "head": [words["line"], words["description"], words["exact_amount"]],
        "rows": [
            [str(number), _text(line, document, words), words.number(line.exact_amount)]
            for number, line in enumerate(document.lines, 1)
        ],
        "total": [words["subtotal"], words.money(document.exact_subtotal, document.currency)],
    }


def _instant(document: Document) -> list[int]:
    """Return the year, month, day and time of issue in UTC for the file's own description; a draft's is its period's end."""
    if document.issued_at is None:
        end = document.period_end
        return [end.year, end.month, end.day, 0, 0, 0]
    at = document.issued_at.astimezone(UTC)
    return [at.year, at.month, at.day, at.hour, at.minute, at.second]


def texts(value: object) -> Sequence[str]:
    """Return every text of what is printed."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [text for each in value.values() for text in texts(each)]
    if isinstance(value, list):
        return [text for each in value for text in texts(each)]
    return []
