"""What files of documents are called. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from billing.documents import Document
    from billing.store import DocumentRecord


def file_names(documents: Sequence[Document | DocumentRecord]) -> list[str]:
    """Return a name for each document, without a suffix: its number, in characters that a file may have.

    A prefix is what a person chose, and may hold a slash. A number is its entity's own: where two have the same, or would have
    the same name, their ids are added.
    """
    names = [re.sub(r"[^\w.-]", "_", each.number or "draft").lstrip(".") for each in documents]
    counts = Counter(names)
    return [
        name if counts[name] == 1 else f"{name}-{each.document_id}" for name, each in zip(names, documents, strict=True)
    ]
