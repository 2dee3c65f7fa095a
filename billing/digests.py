"""The digest of a document: over all that is printed but its number, its time of issue and the due date that follows. Pure."""

import json
from dataclasses import fields
from datetime import UTC, date, datetime
from decimal import Decimal
from hashlib import sha256
from operator import attrgetter
from typing import Any, Final

from billing.documents import CreditApplied, Document, Line, Party, Tax
from ledger.money import EXACT

_UNPRINTED: Final = frozenset(
    {"document_id", "number", "issued_at", "state", "due_date", "digest", "corrects_document_id"}
)
_NAMES: Final = tuple(each.name for each in fields(Document) if each.name not in _UNPRINTED)
_PARTS: Final = {kind: attrgetter(*(each.name for each in fields(kind))) for kind in (Party, Line, Tax, CreditApplied)}


def digest_of(document: Document) -> str:
    """Return the SHA-256 over all that is printed but number, time of issue and the due date that follows from it.

    Shape: a JSON object of the fields by name; parties, lines, taxes and credits are lists of their fields in order; decimals
    are their shortest plain digits, so that a document read back from its rows has the same digest.
    """
    text = _ENCODER.encode({name: _canonical(getattr(document, name)) for name in _NAMES})
    return sha256(text.encode()).hexdigest()


_ENCODER: Final = json.JSONEncoder(sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def _canonical(value: Any) -> Any:
    kind = type(value)
    if value is None or kind is str or kind is int:
        return value
    if kind is Decimal:
        return _digits(value)
    if kind is date:
        return value.isoformat()
    if kind in _PARTS:
        # Most values of a line are what they are printed as: they are spared the call.
        return [
            each
            if each is None or (of := type(each)) is str or of is int
            else _digits(each)
            if of is Decimal
            else each.isoformat()
            if of is date
            else _canonical(each)
            for each in _PARTS[kind](value)
        ]
    if kind is datetime:
        return value.astimezone(UTC).isoformat()
    return [_canonical(each) for each in value]


def _digits(value: Decimal) -> str:
    if not value:
        return "0"
    text = str(value)
    if "E" in text:
        return f"{value.normalize(EXACT):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
