"""Answers that are written out once: reads for as long as nothing moves, and admissions but for what differs in each."""

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from operator import itemgetter
from typing import Any, Final

import msgspec

from quotas.asks import Admission, Decision
from quotas.known import Fit
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


# No window begins or ends then, since they do so at midnights.
_NEVER: Final = datetime(1970, 1, 1, microsecond=1, tzinfo=UTC)
_MARKED: Final = re.compile(r"\\u0000(\d+)\\u0000")


def _mark(number: int) -> str:
    # No text of Postgres has a zero byte: what looks like a mark is one.
    return f"\0{number}\0"


class Admissions:
    """Answers to asks that were admitted as they were asked: for each set of budgets one text, with places to fill in."""

    def __init__(self, write: Callable[[Decision], bytes]) -> None:
        self._write = write
        self._kept: dict[tuple[int, int | None], tuple[Fit, str, Callable[[Sequence[str]], tuple[str, ...]]]] = {}

    def written(self, admission: Admission) -> bytes:
        """Return what `write` makes of the decision."""
        place = None if admission.tightest is None else admission.tightest[0]
        kept = self._kept.get((id(admission.fit), place))
        if kept is None or kept[0] is not admission.fit:
            kept = self._keep(admission, place)
        _, text, chosen = kept
        left = "" if admission.tightest is None else admission.tightest[1]
        known = (
            _inside(admission.tenant_id), _inside(admission.reservation_id), _inside(admission.expires_at), left, *admission.texts,
        )  # fmt: skip
        return (text % chosen(known)).encode()

    def _keep(
        self, admission: Admission, place: int | None
    ) -> tuple[Fit, str, Callable[[Sequence[str]], tuple[str, ...]]]:
        marked = Admission(
            _mark(0),
            _mark(1),
            admission.fit,
            tuple(_mark(4 + number) for number in range(len(admission.texts))),
            None if place is None else (place, _mark(3)),
            _NEVER,
            admission.decided_at,
        )
        written = self._write(marked.written_out()).decode().replace("%", "%%")
        written = written.replace(f'"{_inside(_NEVER)}"', '"\\u00002\\u0000"')
        if len(self._kept) >= _KEPT_MAX:
            self._kept.clear()
        numbers = [int(number) for number in _MARKED.findall(written)]
        kept = admission.fit, _MARKED.sub("%s", written), itemgetter(*numbers)
        self._kept[id(admission.fit), place] = kept
        return kept


def _inside(value: Any) -> str:
    """Return a text or an instant as it stands between the quotes of JSON."""
    return _encode(value)[1:-1].decode()
