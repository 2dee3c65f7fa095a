"""Why a report cannot become an entry: one table of reason codes, in the order in which they are checked."""

from collections.abc import Mapping
from typing import Final

from ledger.statements import Refused

REASONS: Final[Mapping[str, str]] = {
    # The message, and where one event ends and the next begins.
    "empty_message": "The message holds no bytes but white space.",
    "invalid_json": "The bytes are not JSON.",
    "truncated": "The bytes end inside a value.",
    "trailing_bytes": "Bytes follow after the end of the event or of the pack.",
    "not_an_event": "The value is JSON, but no object.",
    "nested_too_deep": "The value is nested deeper than any reader follows.",
    "lone_surrogate": "A text holds half of a surrogate pair, which is no character.",
    # The shape of one event.
    "unknown_type": "The CloudEvents type is missing, or none that this version reads.",
    "missing_field": "A field without which nothing can be posted is absent.",
    "wrong_type": "A field holds another JSON type than the contract says.",
    "unknown_value": "A field with listed values holds another one.",
    "too_long": "A text or a map is longer than its limit.",
    "out_of_range": "A number is below or above its range, or does not fit into 63 bits.",
    "nul_in_text": "A text holds U+0000, which Postgres cannot store.",
    "missing_id": "The event has no id, so it could not be told from its copies.",
    # Who speaks, and for whom.
    "missing_source": "The event names no source.",
    "source_not_the_credential": "The credential belongs to another source than the event names.",
    "unknown_source": "The source is not registered.",
    "tenant_not_the_credential": "The credential belongs to another tenant than the event names.",
    "missing_tenant": "The event names no tenant, and no credential does.",
    "unknown_tenant": "The tenant is not registered.",
    "source_may_not_speak": "The source is not registered for this tenant, is a load, which only its own feed may name, or no node, whose window it is.",
    "missing_request_id": "A node or a load reports no request id, so its report could be charged beside the gateway's.",
    # When.
    "missing_time": "The event does not say when the call ended.",
    "bad_time": "The time is not RFC 3339 with an offset, is a number without its unit, or lies beyond 1970 to 2999.",
    # What was used.
    "unknown_flavour": "Usage came without a flavour, or with one that nobody has described.",
    "two_usages": "More than one of usage, usage_frames and quantities is stated.",
    "unknown_meter": "A quantity is stated for a meter that does not exist.",
    "not_a_count": "A count is negative, fractional, no number, or does not fit into 63 bits.",
    "part_above_whole": "A count is above the count that contains it.",
    "above_model_limit": "More tokens than the model can take or give.",
    # A node's report about itself.
    "bad_window": "A window does not end after it starts, or is longer than a day.",
    # Tested after the keys were looked up, so that a late copy of an accepted event stays a duplicate.
    "time_too_early": "The call ended before 2020-01-01.",
    "time_in_future": "The call ended more than five minutes after the message arrived.",
    # A fault of ours.
    "reader_failed": "Our own reader failed on these bytes; replay them once it is mended.",
}

DETAIL_MAX: Final = 300


def refused(reason: str, detail: str) -> Refused:
    """Return a refusal whose detail is one printable line, since it lands in a text column and in terminals."""
    if not detail.isprintable():
        detail = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in detail)
    return Refused(reason, detail if len(detail) <= DETAIL_MAX else detail[: DETAIL_MAX - 1] + "…")
