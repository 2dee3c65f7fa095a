"""The event as senders write it: the types that read it, with their limits, and the JSON Schema that they make."""

from decimal import Decimal
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from ingest.counts import COUNT_MAX

USAGE_TYPE: Final = "llm.usage.v1"
WINDOW_TYPE: Final = "gpu.node.window.v1"

TEXT_MAX: Final = 256
"""Characters of any text that lands in a column."""
TAGS_MAX: Final = 32

Text = Annotated[str, Meta(max_length=TEXT_MAX)]
Small = Annotated[int, Meta(ge=0, le=32_767)]
Medium = Annotated[int, Meta(ge=0, le=2_147_483_647)]
Big = Annotated[int, Meta(ge=0, le=COUNT_MAX)]
Object = dict[str, Any]
Tags = Annotated[dict[Text, Text], Meta(max_length=TAGS_MAX)]

AttemptKind = Literal["first", "retry", "fallback", "continuation", "hedge"]
Status = Literal["ok", "error", "cancelled", "interrupted", "refused", "in_progress", "void"]
CacheResult = Literal["miss", "exact_hit", "semantic_hit", "prefix_hit"]


def _said(what: str) -> Meta:
    return Meta(description=what)


class UsageData(Struct, kw_only=True, gc=False):
    """What happened in one model call, as its reporter saw it. Unknown fields are ignored."""

    # Who.
    tenant_id: Annotated[Text | None, _said("Who pays; a tenant's credential supplies it.")] = None
    user_hash: Annotated[Text | None, _said("The sender's keyed hash of its user; never a name or an address.")] = None
    conversation_id: Annotated[Text | None, _said("Groups the calls of one conversation.")] = None
    api_key_id: Annotated[Text | None, _said("Id of the caller's key, never the key.")] = None
    # What for.
    feature: Annotated[Text | None, _said("The product feature that the call served.")] = None
    language: Annotated[Text | None, _said("Language tag of the text; und if unknown.")] = None
    route: Annotated[Text | None, _said("The gateway's route.")] = None
    lane: Annotated[Literal["interactive", "batch"] | None, _said("Urgency; never selects a price.")] = None
    tags: Annotated[Tags | None, _said("Free labels for cost allocation.")] = None
    app_version: Annotated[Text | None, _said("Version of the calling application.")] = None
    trace_id: Annotated[Text | None, _said("Trace that the call belongs to.")] = None
    # Call.
    request_id: Annotated[
        Text | None, _said("One upstream attempt that somebody bills; minted by the gateway, passed on to the node.")
    ] = None
    operation_id: Annotated[Text | None, _said("Groups the attempts of one logical request.")] = None
    attempt: Annotated[Small | None, _said("Number of the attempt inside its operation.")] = None
    attempt_kind: Annotated[AttemptKind | None, _said("Why this attempt was made.")] = None
    sequence: Annotated[Big | None, _said("The source's own counter; gaps show lost events.")] = None
    response_id: Annotated[Text | None, _said("The provider's id of its answer: an attribute, no identity.")] = None
    reservation_id: Annotated[Text | None, _said("The reservation that this usage settles.")] = None
    reservation_open: Annotated[bool, _said("More attempts follow under the reservation.")] = False
    operation: Annotated[Text | None, _said("Kind of call, such as chat or embeddings.")] = None
    provider: Annotated[Text | None, _said("Who bills us; our own name for self-hosted models.")] = None
    provider_account: Annotated[Text | None, _said("The account there.")] = None
    deployment: Annotated[Text | None, _said("The deployment there.")] = None
    requested_model: Annotated[Text | None, _said("The model that was asked for.")] = None
    model: Annotated[Text | None, _said("The model as the provider reported it.")] = None
    requested_service_tier: Annotated[Text | None, _said("The service tier that was asked for.")] = None
    service_tier: Annotated[Text | None, _said("The service tier that served the call.")] = None
    region: Annotated[Text | None, _said("Where the call was served.")] = None
    node_id: Annotated[Text | None, _said("The GPU node that served it.")] = None
    max_output_tokens: Annotated[Big | None, _said("The cap on output that the call carried.")] = None
    # Outcome.
    status: Annotated[Status, _said("How the call ended; void withdraws a report.")] = "ok"
    stop_reason: Annotated[Text | None, _said("The provider's word for why output ended.")] = None
    cache_result: Annotated[
        CacheResult | None, _said("exact_hit and semantic_hit are the gateway's own cache: no upstream request.")
    ] = None
    provider_calls: Annotated[Medium | None, _said("Upstream calls made inside this request.")] = None
    latency_ms: Annotated[Big | None, _said("Whole milliseconds from first byte in to last byte out.")] = None
    ttft_ms: Annotated[Big | None, _said("Whole milliseconds to the first token.")] = None
    queue_ms: Annotated[Big | None, _said("Whole milliseconds in a queue.")] = None
    prefill_ms: Annotated[Big | None, _said("Whole milliseconds of prefill.")] = None
    decode_ms: Annotated[Big | None, _said("Whole milliseconds of decoding.")] = None
    delivered_output_tokens: Annotated[Big | None, _said("Output that reached the caller.")] = None
    # Usage.
    flavour: Annotated[Text | None, _said("Whose usage object it is, and so what its counts include.")] = None
    usage: Annotated[Object | None, _said("The provider's usage object, verbatim.")] = None
    usage_frames: Annotated[
        list[Object | None] | None, _said("A stream's usage objects in order; the receiver folds them.")
    ] = None
    quantities: Annotated[Object | None, _said("Canonical counts by meter, instead of a provider's object.")] = None
    local_estimate: Annotated[Object | None, _said("The sender's own estimate by meter; counts if all else lacks.")] = (
        None
    )
    basis: Annotated[Literal["reported", "estimated"], _said("Whether a provider or a guess says so.")] = "reported"
    final: Annotated[bool | None, _said("No more is expected; absent: true, false for in_progress.")] = None
    revision: Annotated[Medium, _said("Orders the reports of one source about one request.")] = 0
    # Senders without RFC 3339.
    time_unix: Annotated[int | None, _said("End of the call as a whole number, in time_unit.")] = None
    time_unit: Annotated[Literal["s", "ms"] | None, _said("Unit of time_unix.")] = None


class WindowData(Struct, kw_only=True, gc=False, omit_defaults=True):
    """What one GPU node did over a span of time, in whole numbers. Unknown fields are ignored."""

    tenant_id: Annotated[Text | None, _said("The platform's tenant, which owns the node.")] = None
    node_id: Annotated[Text, _said("The node.")]
    starts_at: Annotated[Text, _said("RFC 3339.")]
    ends_at: Annotated[Text, _said("RFC 3339, exclusive.")]
    gpu_model: Text | None = None
    gpu_count: Annotated[Small | None, _said("GPUs, or slices of one, under this node.")] = None
    mig_profile: Text | None = None
    engine: Text | None = None
    provider: Annotated[Text | None, _said("Our own name for self-hosted models, as usage of this node says it.")] = (
        None
    )
    model: Annotated[Text | None, _said("The model that it serves, by any name that usage may use.")] = None
    region: Text | None = None
    busy_ms: Annotated[Big | None, _said("Milliseconds with at least one request in hand.")] = None
    energy_joules: Big | None = None
    request_count: Big | None = None
    input_tokens: Annotated[Big | None, _said("Including those read from the prefix cache.")] = None
    cache_read_tokens: Big | None = None
    output_tokens: Big | None = None
    kv_token_seconds: Annotated[Big | None, _said("Integral of resident KV-cache tokens over the span.")] = None
    preemption_count: Big | None = None


class _Envelope(Struct, kw_only=True, gc=False, tag_field="type"):
    id: Annotated[
        Text | None, _said("Minted before the first try, best a UUIDv7; with source and tenant it is the identity.")
    ] = None
    source: Annotated[Text | None, _said("The registered sender, exactly as registered.")] = None
    specversion: Annotated[Literal["1.0"], _said("CloudEvents version.")] = "1.0"
    time: Annotated[Text | None, _said("RFC 3339 with offset: the end of the call as the reporter saw it.")] = None


class UsageEvent(_Envelope, kw_only=True, gc=False, tag_field="type", tag=USAGE_TYPE):
    """A CloudEvents event of type llm.usage.v1: one report of one model call."""

    data: UsageData


class WindowEvent(_Envelope, kw_only=True, gc=False, tag_field="type", tag=WINDOW_TYPE):
    """A CloudEvents event of type gpu.node.window.v1: one report of a node about itself."""

    data: WindowData


Event = UsageEvent | WindowEvent

# Numbers that the contract does not type, such as those in a usage object, become Decimal: none passes through a float.
decode_pack: Final = msgspec.json.Decoder(list[Event], float_hook=Decimal).decode
decode_event: Final = msgspec.json.Decoder(Event, float_hook=Decimal).decode
decode_any: Final = msgspec.json.Decoder(float_hook=Decimal).decode
UNDECODABLE: Final = (ValueError, ArithmeticError, RecursionError)
"""All that these decoders raise, whatever the bytes."""


def events_json_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of one event, exported from the types that read it."""
    _, definitions = msgspec.json.schema_components((Event,), ref_template="#/$defs/{name}")
    for name, type_name in (("UsageEvent", USAGE_TYPE), ("WindowEvent", WINDOW_TYPE)):
        event = definitions[name]
        properties = event["properties"]
        properties["type"] = {"const": type_name, "description": "What the event is."}
        for field in ("id", "source"):
            said = properties[field]["description"]
            properties[field] = {"type": "string", "minLength": 1, "maxLength": TEXT_MAX, "description": said}
        event["required"] = ["id", "source", "type", "data"]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Tallystick usage events",
        "oneOf": [{"$ref": "#/$defs/UsageEvent"}, {"$ref": "#/$defs/WindowEvent"}],
        "$defs": definitions,
    }
