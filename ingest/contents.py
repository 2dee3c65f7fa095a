"""What is hashed and what is kept of an event: canonical JSON, and usage objects cut to what holds no text."""

import re
from collections.abc import Mapping
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from functools import lru_cache
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct, UnsetType

from ingest.wire import UsageEvent

CONTENT_HASH_VERSION: Final = 2
"""Raised whenever the same event would hash to something else."""

_encode: Final = msgspec.json.Encoder(order="deterministic", decimal_format="number").encode


def canonical(value: Any) -> bytes:
    return _encode(value)


class _Content(Struct, omit_defaults=True, gc=False):
    """What makes two events with one identity the same. Fields stand in order of their names, as they are written."""

    basis: str
    cache_result: str | None = None
    counts: msgspec.Raw | UnsetType = UNSET
    deployment: str | None = None
    final: bool = True
    flavour: str | None = None
    id: str | None = None
    model: str | None = None
    provider: str | None = None
    provider_account: str | None = None
    region: str | None = None
    request_id: str | None = None
    requested_model: str | None = None
    requested_service_tier: str | None = None
    revision: int = 0
    service_tier: str | None = None
    source: str | None = None
    status: str = ""
    tenant: str = ""
    time: int = 0
    version: int = 0


def canonical_content(event: UsageEvent, tenant: str, occurred_at: int, final: bool, counts: bytes | None) -> bytes:
    """Return the canonical JSON over which the content hash goes: sorted keys, UTC microseconds, exact decimals.

    Shape: identity, time, tenant, model, selectors, usage, status; absent and default fields are left out, so that a
    field that a later version adds changes no hash. Latency, tags and unknown fields are no content.
    """
    data = event.data
    return _encode(
        _Content(
            data.basis,
            data.cache_result,
            UNSET if counts is None else msgspec.Raw(counts),
            data.deployment,
            final,
            data.flavour,
            event.id,
            data.model,
            data.provider,
            data.provider_account,
            data.region,
            data.request_id or None,
            data.requested_model,
            data.requested_service_tier,
            data.revision,
            data.service_tier,
            event.source,
            data.status,
            tenant,
            occurred_at,
            CONTENT_HASH_VERSION,
        )
    )


# Strings of a usage object that are one of a few words; every other string may be somebody's text and is cut.
_ENUM_KEYS: Final = frozenset(
    {
        "service_tier", "serviceTier", "trafficType", "inference_geo", "speed", "type", "modality", "status", "ttl",
        "model", "model_id", "finish_reason", "stop_reason", "reason", "openai.response.service_tier",
        "server_side_tools_used",
    }
)  # fmt: skip
_ENUM_VALUE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/@-]{0,63}", re.ASCII).fullmatch
_KEY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*", re.ASCII).fullmatch
_KEY_MAX: Final = 64
_CUT_DEPTH: Final = 8
_EXACT: Final = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])
_WIDTH_MAX: Final = 40


@lru_cache(maxsize=4096)
def _is_key(name: str) -> bool:
    return _KEY(name) is not None


def cut(usage: Mapping[str, Any], depth: int = _CUT_DEPTH) -> dict[str, Any]:
    """Return a usage object cut to numbers, flags and known words, with one spelling per number."""
    kept = {}
    for name, value in usage.items():
        if len(name) <= _KEY_MAX and _is_key(name):
            value = _cut_value(name, value, depth)
            if value is not UNSET:
                kept[name] = value
    return kept


def _cut_value(name: str, value: Any, depth: int) -> Any:
    """Return a value as it may be kept, or UNSET."""
    if value is None or type(value) is bool:
        return value
    if type(value) is int:
        return value if abs(value) < 10**_WIDTH_MAX else UNSET
    if type(value) is Decimal:
        # Wider numbers are no count and no price, and a jsonb column would refuse them.
        if not value:
            return 0
        if not -_WIDTH_MAX < value.adjusted() < _WIDTH_MAX or len(value.as_tuple().digits) > 2 * _WIDTH_MAX:
            return UNSET
        return int(value) if value == value.to_integral_value(context=_EXACT) else value.normalize(_EXACT)
    if type(value) is str:
        return value if name in _ENUM_KEYS and _ENUM_VALUE(value) else UNSET
    if type(value) is dict:
        return cut(value, depth - 1) if depth else UNSET
    if type(value) is list and depth:
        kept = [_cut_value(name, item, depth - 1) for item in value]
        return [item for item in kept if item is not UNSET]
    return UNSET
