"""Answers to reads, as bytes with their tags; written out once for as long as nothing moves."""

from hashlib import blake2b
from typing import Any, Final

import msgspec

from quotas.remaining import Remaining

_KEPT_MAX: Final = 10_000
_encode: Final = msgspec.json.Encoder().encode


def with_tag(content: Any) -> tuple[bytes, bytes]:
    """Encode what is shown; its tag is weak, since it stands for that alone: clock and lag differ in each answer and are in headers too."""
    encoded = _encode(content)
    return encoded, b'W/"%s"' % blake2b(encoded, digest_size=12).hexdigest().encode()


class Encoded:
    """What was last sent of tenants, so that what has not moved is not written out again."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[list[Remaining], bytes, bytes]] = {}

    def of(self, tenant_id: str, budgets: list[Remaining]) -> tuple[bytes, bytes]:
        """Return the bytes of a list, and their tag; `quotas.remaining` gives the same list while nothing moves."""
        kept = self._kept.get(tenant_id)
        if kept is not None and kept[0] is budgets:
            return kept[1], kept[2]
        if len(self._kept) >= _KEPT_MAX:
            self._kept.clear()
        encoded, tag = with_tag(budgets)
        self._kept[tenant_id] = budgets, encoded, tag
        return encoded, tag
