"""Statements: what somebody reports about a request, which of them counts, and the difference a better one makes."""

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from ledger.meters import Quantities

Kind = Literal["usage", "true_up", "adjustment", "reversal", "evidence", "fee"]
Outcome = Literal["created", "duplicate", "evidence", "conflict", "dead_letter"]

Rank = tuple[int, ...]
"""(a person's decision, has usage, final, reported over estimated, rank of the source, revision): the larger counts."""

TAKEN_BACK: Final[Rank] = (-1, 0, 1, 0, 0, 0)
"""Of a request for which nothing stands any more: the statement that it rests on was taken back, and any other beats it."""


def is_taken_back(rank: Rank) -> bool:
    """Say whether nothing stands for a request of this rank."""
    return rank[0] < 0


# The text columns of an entry that say who, what for and how: the grain of a true-up, together with the rate sets.
DIMENSIONS: Final = (
    "tenant_id",
    "sent_tenant_id",
    "source",
    "request_id",
    "operation_id",
    "attempt_kind",
    "response_id",
    "provider",
    "provider_account",
    "deployment",
    "requested_model",
    "reported_model",
    "model",
    "requested_service_tier",
    "service_tier",
    "region",
    "node_id",
    "operation",
    "feature",
    "language",
    "sent_language",
    "route",
    "lane",
    "api_key_id",
    "conversation_id",
    "app_version",
    "trace_id",
    "status",
    "stop_reason",
    "cache_result",
    "basis",
    "reservation_id",
)


REFUSED_BEFORE_OUTPUT: Final = "refused_before_output"
"""The flag of a call that was refused before any output: a card's billing rule of nearly that name may make it free."""


AMOUNT_STATED: Final = "amount_stated"
"""The flag of a row whose amounts a person stated: no meter has them, and no report or price moves them."""


class Refused(msgspec.Struct, frozen=True):
    """A report that cannot become an entry, and why; it ends as a dead letter with its bytes."""

    reason: str
    """A stable code, such as `invalid_json` or `unknown_tenant`."""
    detail: str
    """One line for a person: the field and the rule."""


class Part(msgspec.Struct, frozen=True, gc=False):
    """One priced model call inside a statement; it becomes one row. Most statements have one part."""

    model: str | None
    """The canonical id, or None where the reported name is nobody's: such a part is unpriced."""
    reported_model: str | None
    quantities: Quantities | None
    """Counts by meter, each above zero or stated as zero; None when usage is missing."""
    flags: tuple[str, ...] = ()
    """Visible states, sorted: `usage_missing`, `usage_incomplete`, `total_above_parts`, `total_differs`, ..."""
    is_chargeable: bool = True
    """False where the call counts but nothing is owed (an error before output, a cache hit): amounts are zero."""
    is_priceable: bool = True
    """False where the counts are too uncertain to price: amounts are null and `unpriced_meters` says `usage`."""
    avoided_tokens: int | None = None
    notes: Mapping[str, Any] | None = None
    """What the counts said besides, such as {"unexplained_tokens": 1400}; lands in `reported`."""


class Statement(msgspec.Struct, frozen=True, gc=False):
    """A report of a request, read and checked, before it has a price. Immutable; times are UTC microseconds."""

    event_key: str
    content_hash: str
    request_key: str | None
    """None for what claims no request: a gateway's own cache hit, a report without request id."""
    rank: Rank
    occurred_at: int
    """Microseconds since 1970 UTC, cut and never rounded."""
    dimensions: tuple[str | None, ...]
    """In the order of DIMENSIONS; `model` and `reported_model` here are those of the first part."""
    parts: tuple[Part, ...]
    status: str
    claims_request: bool = True
    """False for `in_progress` without usage: it is kept as evidence and nothing more."""
    subject_hash: str | None = None
    """The sender's hash of its user; entries hold the id that `ledger.subjects` gives it."""
    tags: Mapping[str, str] | None = None
    attempt: int | None = None
    sequence: int | None = None
    revision: int = 0
    is_final: bool = True
    reservation_open: bool = False
    max_output_tokens: int | None = None
    delivered_output_tokens: int | None = None
    provider_calls: int | None = None
    latency_ms: int | None = None
    ttft_ms: int | None = None
    queue_ms: int | None = None
    prefill_ms: int | None = None
    decode_ms: int | None = None
    flavour: str | None = None
    parser_version: int = 0
    raw_usage: bytes | None = None
    """The provider's object cut to the allow-list, as JSON; kept apart from the entry and for a limited time."""
    refused_if_new: Refused | None = None
    """Set where a rule refuses the event but not its duplicate: keys are looked up before the time window is tested."""


WINDOW_LENGTH_MAX: Final = 24 * 3600 * 1_000_000
"""Microseconds that a node's window may cover; the table has the same check."""


class Window(msgspec.Struct, frozen=True):
    """What a GPU node reports about itself over a span of time (`gpu.node.window.v1`); no entry."""

    event_key: str
    content_hash: str
    tenant_id: str
    source: str
    node_id: str
    starts_at: int
    ends_at: int
    body: bytes
    refused_if_new: Refused | None = None


class DeadLetter(msgspec.Struct, frozen=True):
    """Bytes that could not become an entry, with the reason."""

    body: bytes
    refused: Refused


Item = Statement | Window | DeadLetter
"""What one event of a message became."""
