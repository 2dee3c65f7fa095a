"""What is counted: the meters, their units, and whose rate a meter takes where a card names none for it.

Each token of a request is in exactly one token meter, so the input meters sum to the provider's input and the
output meters to its output. What lies inside what for each provider: ingest/flavours.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Unit = Literal["token", "call", "unit", "second", "image", "character", "page"]
Side = Literal["input", "output"]

Quantities = Mapping[str, int]
"""Meter name to count, in the meter's unit; a meter that is absent was not used, which is not the same as unknown."""


@dataclass(frozen=True, slots=True)
class Meter:
    """A thing that is counted."""

    name: str
    unit: Unit
    side: Side | None = None
    priced_as: str | None = None
    """The meter whose rate counts where a card has none for this one; only where providers bill it that way."""
    is_column: bool = False
    """Common meters are columns of `ledger.entries`, the others stand in `other_quantities`."""


def _text(name: str, side: Side, priced_as: str | None = None) -> Meter:
    return Meter(name, "token", side, priced_as, is_column=True)


_COLUMNS: Final = (
    _text("uncached_input_tokens", "input"),
    _text("cache_read_tokens", "input"),
    _text("cache_write_5m_tokens", "input"),
    _text("cache_write_1h_tokens", "input"),
    # A write whose lifetime nobody stated is billed like the shorter one (design section 4).
    _text("cache_write_other_tokens", "input", "cache_write_5m_tokens"),
    _text("visible_output_tokens", "output"),
    _text("reasoning_tokens", "output", "visible_output_tokens"),
)

_MODALITIES: Final = ("audio", "image", "video", "document")

_OTHERS: Final = (
    *(Meter(f"uncached_input_{m}_tokens", "token", "input") for m in _MODALITIES),
    *(Meter(f"cache_read_{m}_tokens", "token", "input") for m in _MODALITIES),
    *(Meter(f"visible_output_{m}_tokens", "token", "output") for m in ("audio", "image", "video")),
    Meter("tool_prompt_tokens", "token", "input", "uncached_input_tokens"),
    Meter("embedding_input_tokens", "token", "input", "uncached_input_tokens"),
    Meter("rejected_prediction_tokens", "token", "output", "visible_output_tokens"),
    Meter("citation_tokens", "token", "output"),
    *(
        Meter(f"{tool}_calls", "call")
        for tool in (
            "web_search",
            "web_fetch",
            "x_search",
            "file_search",
            "document_search",
            "code_execution",
            "maps",
            "image_generation",
        )
    ),
    Meter("search_units", "unit"),
    Meter("audio_input_seconds", "second", "input"),
    Meter("audio_output_seconds", "second", "output"),
    Meter("images", "image", "output"),
    Meter("pages", "page", "input"),
    Meter("characters", "character", "input"),
)

METERS: Final[Mapping[str, Meter]] = {meter.name: meter for meter in (*_COLUMNS, *_OTHERS)}
OPERATIONS: Final = "operations"
"""Logical requests, counted by us for fees: neither senders nor cards may name it, so it is not among the meters."""
COLUMN_METERS: Final = tuple(meter.name for meter in _COLUMNS)
INPUT_TOKEN_METERS: Final = frozenset(m.name for m in METERS.values() if m.unit == "token" and m.side == "input")
OUTPUT_TOKEN_METERS: Final = frozenset(m.name for m in METERS.values() if m.unit == "token" and m.side == "output")


def input_tokens(quantities: Quantities) -> int:
    """Return all input tokens: uncached, read from and written to a cache."""
    total = 0
    for name, count in quantities.items():
        if name in INPUT_TOKEN_METERS:
            total += count
    return total


def output_tokens(quantities: Quantities) -> int:
    """Return all output tokens: visible and reasoning."""
    total = 0
    for name, count in quantities.items():
        if name in OUTPUT_TOKEN_METERS:
            total += count
    return total
