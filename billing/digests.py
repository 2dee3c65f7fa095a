"""The digest of a document: over all that is printed but its number, its time of issue and the due date that follows. Pure."""

import json
from dataclasses import fields, is_dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from hashlib import sha256
from typing import Any, Final

from billing.documents import Document
from billing.rounding import plain

_UNPRINTED: Final = frozenset(
    {"document_id", "number", "issued_at", "state", "due_date", "digest", "corrects_document_id"}
)


def digest_of(document: Document) -> str:
    """Return the SHA-256 over all that is printed but number, time of issue and the due date that follows from it."""
    content = {each.name: getattr(document, each.name) for each in fields(document) if each.name not in _UNPRINTED}
    text = json.dumps(content, default=_canonical, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return sha256(text.encode()).hexdigest()


def _canonical(value: Any) -> Any:
    if isinstance(value, Decimal):
        return f"{plain(value):f}"
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, date):
        return value.isoformat()
    if is_dataclass(value):
        return {each.name: getattr(value, each.name) for each in fields(value)}
    raise TypeError(f"{type(value).__name__} does not stand on a document")
