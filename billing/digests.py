"""The digest of a document: over all that is printed but its number, its time of issue and the due date that follows. Pure."""

from dataclasses import fields
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import lru_cache
from hashlib import sha256
from json.encoder import encode_basestring
from operator import attrgetter
from typing import Any, Final

from billing.documents import CreditApplied, Document, Line, Party, Tax
from ledger.money import EXACT

_UNPRINTED: Final = frozenset(
    {"document_id", "number", "issued_at", "state", "due_date", "digest", "corrects_document_id"}
)
_NAMES: Final = sorted(frozenset(Document.__struct_fields__) - _UNPRINTED)
_PARTS: Final = {kind: attrgetter(*(each.name for each in fields(kind))) for kind in (Tax, CreditApplied)}
_PARTY: Final = attrgetter(*(each.name for each in fields(Party)))


def digest_of(document: Document) -> str:
    """Return the SHA-256 over all that is printed but number, time of issue and the due date that follows from it.

    Shape: a JSON object of the fields by name, without blanks; parties, lines, taxes and credits are lists of their fields in
    order; decimals are texts of their shortest plain digits, so that a document read back from its rows has the same digest.
    """
    text = ",".join([f'"{name}":{_text(getattr(document, name))}' for name in _NAMES])
    return sha256(f"{{{text}}}".encode()).hexdigest()


def _text(value: Any) -> str:
    kind = type(value)
    if value is None:
        return "null"
    if kind is Line:
        return _line(value)
    if kind is Decimal:
        return _number(value)
    if kind is str:
        return encode_basestring(value)
    if kind is int:
        return str(value)
    if kind is date:
        return f'"{value.isoformat()}"'
    if kind is datetime:
        return f'"{value.astimezone(UTC).isoformat()}"'
    if kind is Party:
        return _party(value)
    return f"[{_texts(*_PARTS[kind](value)) if kind in _PARTS else _texts(*value)}]"


def _texts(*values: Any) -> str:
    return ",".join([_text(each) for each in values])


@lru_cache(maxsize=64)
def _party(party: Party) -> str:
    # One issuer stands on most documents of a run.
    return f"[{_texts(*_PARTY(party))}]"


def _line(line: Line) -> str:
    """Return all fields of a line, in order: most of a document's text, so by hand."""
    per, exact = line.per, _number(line.exact_amount)
    # Mostly one value: what was charged is what is billed.
    charged = exact if line.charged_amount is line.exact_amount else _number(line.charged_amount)
    service = _names(
        line.kind, line.description, line.service_start, line.service_end, line.feature, line.provider, line.model,
        line.meter,
    )  # fmt: skip
    return (
        f"[{line.line_no},{service},{_number(line.quantity)},{_number(line.unit_price)},{'null' if per is None else per}"
        f",{exact},{_number(line.amount)},{_names(line.tax_category, line.item_id)}"
        f",{charged},{_names(line.charged_currency)},{_number(line.exchange_rate)}"
        f",{_text(line.exchange_rate_at)},{_text(line.corrects_line_no)}]"
    )


# The same names and days stand on many lines of a run.
_names: Final = lru_cache(maxsize=8192)(_texts)


def _number(value: Decimal | None) -> str:
    """Return the shortest plain digits, as a text."""
    if value is None:
        return "null"
    text = str(value)
    if "E" in text:
        text = f"{value.normalize(EXACT):f}"
    elif "." in text:
        text = text.rstrip("0").rstrip(".")
    # Zero has no sign.
    return '"0"' if text == "-0" else f'"{text}"'
