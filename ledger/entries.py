"""Entries: the rows of the ledger, and their COPY lines, which the chain's digests cover.

A line is written exactly as Postgres prints the row back (`copy ... to stdout` in UTC), so that a digest made when the
row was posted can be recomputed from the table at any later time.
"""

import json
import re
from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from functools import lru_cache
from json.encoder import encode_basestring
from typing import Any, Final

import msgspec

from ledger.meters import COLUMN_METERS, Quantities, input_tokens, output_tokens
from ledger.money import amount_text
from ledger.statements import DIMENSIONS, Kind, Statement

NULL: Final = "\\N"

COLUMNS: Final = (
    "entry_id", "posting_period", "batch_id", "event_key", "request_key", "entry_no", "kind", "corrects_entry_id",
    "occurred_at", "recorded_at", "local_date", *DIMENSIONS, "subject_id", "tags", "attempt", "sequence", "revision",
    "is_final", "reservation_open", "request_count", *COLUMN_METERS, "input_tokens", "output_tokens", "avoided_tokens",
    "other_quantities", "reported", "cost_amount", "cost_currency", "cost_rate_set_id", "charge_amount", "charge_currency",
    "charge_rate_set_id", "usage_flags", "unpriced_meters", "max_output_tokens", "delivered_output_tokens", "provider_calls",
    "latency_ms", "ttft_ms", "queue_ms", "prefill_ms", "decode_ms", "raw_digest", "reason", "actor",
)  # fmt: skip
"""In the order of the table and of the lines."""


class Money(msgspec.Struct, frozen=True, gc=False):
    """An amount in one book, and the rate set that made it; null amounts are unpriced."""

    amount: Decimal | None
    currency: str | None
    rate_set_id: int | None


UNPRICED: Final = Money(None, None, None)


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One row, less what only the posting transaction knows: its id, batch, period and time of recording."""

    statement: Statement
    """Who, when and what for: the header of the row."""
    kind: Kind
    entry_no: int
    occurred_at: int
    local_date: date
    dimensions: tuple[str | None, ...]
    subject_id: str | None
    request_count: int
    quantities: Quantities | None
    cost: Money
    charge: Money
    flags: tuple[str, ...] = ()
    unpriced: tuple[str, ...] = ()
    avoided_tokens: int | None = None
    reported: Mapping[str, Any] | None = None
    corrects_entry_id: int | None = None
    tags: str | None = None
    """As jsonb text."""
    attempt: int | None = None
    raw_digest: str | None = None
    reason: str | None = None
    actor: str | None = None


class Standing(msgspec.Struct, frozen=True, gc=False):
    """What stands for a request under one combination of everything that is not a number: a group of the fold."""

    grain: tuple[Any, ...]
    request_count: int
    quantities: Mapping[str, int] | None
    avoided_tokens: int | None
    cost_amount: Decimal | None
    charge_amount: Decimal | None


_SPECIAL: Final = re.compile(r"[\\\t\n\r\b\f\v]")
_ESCAPES: Final = str.maketrans(
    {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\b": "\\b", "\f": "\\f", "\v": "\\v"}
)


def escaped(text: str | None) -> str:
    """Return a text as COPY writes it."""
    if text is None:
        return NULL
    return text.translate(_ESCAPES) if _SPECIAL.search(text) else text


def _texts(values: tuple[str | None, ...]) -> str:
    joined = "\t".join([NULL if value is None else value for value in values])
    # Every tab is one of ours and every backslash opens a null, or some text needs care: the common case costs two counts.
    if (
        joined.count("\t") == len(values) - 1
        and joined.count("\\") == values.count(None)
        and "\n" not in joined
        and "\r" not in joined
        and "\b" not in joined
        and "\f" not in joined
        and "\v" not in joined
    ):
        return joined
    return "\t".join([escaped(value) for value in values])


def jsonb_text(value: Any) -> str:
    """Return a value as Postgres prints jsonb: keys by length and then bytes, a blank after each comma and colon."""
    kind = type(value)
    if kind is int:
        return str(value)
    if kind is str:
        return encode_basestring(value)
    if isinstance(value, Mapping):
        named = _in_order(tuple(value))
        return "{" + ", ".join([f"{text}: {jsonb_text(value[name])}" for name, text in named]) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join([jsonb_text(item) for item in value]) + "]"
    if isinstance(value, Decimal):
        return amount_text(value)
    return json.dumps(value, ensure_ascii=False)


@lru_cache(maxsize=4096)
def _in_order(names: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Return keys in the order of jsonb, each with its text: most objects are of a few shapes."""
    ordered = sorted(names, key=lambda name: (len(name.encode()), name.encode()))
    return tuple((name, encode_basestring(name)) for name in ordered)


def _number(value: int | None) -> str:
    return NULL if value is None else str(value)


def _jsonb(value: Mapping[str, Any] | None) -> str:
    return NULL if not value else escaped(jsonb_text(value))


def _money(money: Money) -> str:
    if money is UNPRICED:
        return "\\N\t\\N\t\\N"
    amount = NULL if money.amount is None else amount_text(money.amount)
    return f"{amount}\t{money.currency or NULL}\t{_number(money.rate_set_id)}"


def _array(values: tuple[str, ...]) -> str:
    # Flags and meters are identifiers with colons at most, which an array literal does not quote.
    return "{" + ",".join(values) + "}"


_COLUMN_SET: Final = frozenset(COLUMN_METERS)
_NO_QUANTITIES: Final = "\t".join([NULL] * (len(COLUMN_METERS) + 2))


def _quantities(quantities: Quantities | None, avoided_tokens: int | None) -> str:
    """Return the columns from the first meter to `other_quantities`."""
    if quantities is None:
        return f"{_NO_QUANTITIES}\t{_number(avoided_tokens)}\t{NULL}"
    get = quantities.get
    uncached, read = get("uncached_input_tokens", 0), get("cache_read_tokens", 0)
    write_5m, write_1h = get("cache_write_5m_tokens", 0), get("cache_write_1h_tokens", 0)
    write_other = get("cache_write_other_tokens", 0)
    visible, reasoning = get("visible_output_tokens", 0), get("reasoning_tokens", 0)
    columns = f"{uncached}\t{read}\t{write_5m}\t{write_1h}\t{write_other}\t{visible}\t{reasoning}"
    if quantities.keys() <= _COLUMN_SET:
        into, out = uncached + read + write_5m + write_1h + write_other, visible + reasoning
        return f"{columns}\t{into}\t{out}\t{_number(avoided_tokens)}\t{NULL}"
    others = {name: count for name, count in quantities.items() if name not in _COLUMN_SET and count}
    return f"{columns}\t{input_tokens(quantities)}\t{output_tokens(quantities)}\t{_number(avoided_tokens)}\t{_jsonb(others)}"


def tail(entry: Entry) -> str:
    """Return the line from `local_date` on: all that is known before the posting transaction."""
    s = entry.statement
    flags, unpriced = entry.flags, entry.unpriced
    return (
        f"{entry.local_date}\t{_texts(entry.dimensions)}\t{entry.subject_id or NULL}\t"
        f"{NULL if entry.tags is None else escaped(entry.tags)}\t"
        f"{NULL if entry.attempt is None else entry.attempt}\t{NULL if s.sequence is None else s.sequence}\t{s.revision}\t"
        f"{'t' if s.is_final else 'f'}\t{'t' if s.reservation_open else 'f'}\t{entry.request_count}\t"
        f"{_quantities(entry.quantities, entry.avoided_tokens)}\t"
        f"{NULL if entry.reported is None else _jsonb(entry.reported)}\t"
        f"{_money(entry.cost)}\t{_money(entry.charge)}\t"
        f"{_array(flags) if flags else '{}'}\t{_array(unpriced) if unpriced else '{}'}\t"
        f"{NULL if s.max_output_tokens is None else s.max_output_tokens}\t"
        f"{NULL if s.delivered_output_tokens is None else s.delivered_output_tokens}\t"
        f"{NULL if s.provider_calls is None else s.provider_calls}\t{NULL if s.latency_ms is None else s.latency_ms}\t"
        f"{NULL if s.ttft_ms is None else s.ttft_ms}\t{NULL if s.queue_ms is None else s.queue_ms}\t"
        f"{NULL if s.prefill_ms is None else s.prefill_ms}\t{NULL if s.decode_ms is None else s.decode_ms}\t"
        f"{entry.raw_digest or NULL}\t{NULL if entry.reason is None else escaped(entry.reason)}\t"
        f"{NULL if entry.actor is None else escaped(entry.actor)}\n"
    )


def line(entry: Entry, entry_tail: str, entry_id: int, where: str, occurred_text: str, recorded_text: str) -> str:
    """Return the COPY line of an entry, with its newline; `where` is its posting period and batch, as text with a tab."""
    s = entry.statement
    corrects = entry.corrects_entry_id
    return (
        f"{entry_id}\t{where}\t{s.event_key}\t{s.request_key or NULL}\t{entry.entry_no}\t{entry.kind}\t"
        f"{NULL if corrects is None else corrects}\t{occurred_text}\t{recorded_text}\t{entry_tail}"
    )


def grain(entry: Entry) -> tuple[Any, ...]:
    """Return everything of an entry that a true-up must not mix: what is not a number that folds."""
    return (
        entry.dimensions,
        entry.local_date,
        entry.subject_id,
        entry.tags,
        entry.attempt,
        entry.cost.currency,
        entry.cost.rate_set_id,
        entry.charge.currency,
        entry.charge.rate_set_id,
        entry.flags,
        entry.unpriced,
    )


def standing(entry: Entry) -> Standing:
    """Return an entry as a group of the fold."""
    return Standing(
        grain=grain(entry),
        request_count=entry.request_count,
        quantities=entry.quantities,
        avoided_tokens=entry.avoided_tokens,
        cost_amount=entry.cost.amount,
        charge_amount=entry.charge.amount,
    )
