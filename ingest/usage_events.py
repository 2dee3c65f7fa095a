"""The event contract: bytes to checked statements. Pure: no clock, no database, no environment.

One message holds one CloudEvents event, a JSON array of them (a pack), or one per line. A pack is decoded in one typed
pass; where that fails, each event is read alone, so that a bad neighbour costs nobody. No bytes raise.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from functools import lru_cache
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from ingest.flavours import COUNT_MAX, FLAVOURS, PARSER_VERSION, Counted, fold_frames, read_quantities, read_usage
from ingest.languages import language_of
from ingest.refusals import refused
from ledger.keys import EVENT, REQUEST, digest_uuid, event_key, key_head, key_under
from ledger.parties import Model, Parties, Source, Tenant
from ledger.statements import DIMENSIONS, DeadLetter, Item, Part, Refused, Statement, Window
from ledger.times import parse_rfc3339

USAGE_TYPE: Final = "llm.usage.v1"
WINDOW_TYPE: Final = "gpu.node.window.v1"

CONTENT_HASH_VERSION: Final = 1
"""Raised whenever the same event would hash to something else."""

TEXT_MAX: Final = 256
"""Characters of any text that lands in a column."""
TAGS_MAX: Final = 32

EARLIEST_AT: Final = 1_577_836_800_000_000
"""2020-01-01 UTC: clocks before it are broken clocks."""
AHEAD_MAX: Final = 5 * 60 * 1_000_000
"""How far a reporter's clock may be ahead of the arrival, in microseconds."""
_CALENDAR: Final = (0, 32_503_680_000_000_000)
"""1970 to 2999: what lies beyond is no time but another number in the wrong unit, and some columns cannot hold it."""

# --- The wire --------------------------------------------------------------------------------------------------------

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
    model: Text | None = None
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
_PACK: Final = msgspec.json.Decoder(list[Event], float_hook=Decimal)
_EVENT: Final = msgspec.json.Decoder(Event, float_hook=Decimal)
_ANY: Final = msgspec.json.Decoder(float_hook=Decimal)
_RAW: Final = msgspec.json.Decoder(msgspec.Raw)
_RAWS: Final = msgspec.json.Decoder(list[msgspec.Raw])
_UNREADABLE: Final = (ValueError, ArithmeticError, RecursionError)


class Speaker(Struct, frozen=True):
    """Whose HTTP credential it is: a tenant's, which rules over the body, or a registered source's."""

    tenant_id: str | None = None
    source: str | None = None

    def __post_init__(self) -> None:
        if (self.tenant_id is None) == (self.source is None):
            raise ValueError("a credential belongs to one tenant or to one source")


# --- Reading a message -----------------------------------------------------------------------------------------------


def read_events(body: bytes, parties: Parties, received_at: int, speaker: Speaker | None = None) -> list[Item]:
    """Read a message that holds one event or a pack of them.

    Shape: one item per event, in the order of the message; at least one for all bodies but an empty pack.
    Units: `received_at` in UTC microseconds: the HTTP arrival, or the broker's append time.
    Errors: none; what cannot be read is a DeadLetter with its bytes.
    """
    return _read(body, _desk(parties, received_at, speaker), False)


def read_ndjson(body: bytes, parties: Parties, received_at: int, speaker: Speaker | None = None) -> list[Item]:
    """Read a message that holds one event per line; blank lines are skipped. Otherwise as `read_events`."""
    return _read(body, _desk(parties, received_at, speaker), True)


def _read(body: bytes, desk: "_Desk", is_lines: bool) -> list[Item]:
    try:
        events = _decode(body, is_lines)
    except _UNREADABLE:
        return [_read_alone(desk, piece) for piece in _pieces(body, is_lines)]
    read: list[Statement | Window | Refused]
    if _NUL_ESCAPE in body:
        # JSON can only say U+0000 by this escape, so that all other messages need no search.
        read = [_nul_in(event) or desk.read(event) for event in events]
    else:
        statement, window = desk.statement, desk.window
        try:
            read = [statement(event) if type(event) is UsageEvent else window(event) for event in events]  # type: ignore[arg-type]
        except Exception:
            read = [desk.read(event) for event in events]
    if Refused in map(type, read):
        # Their bytes are looked for only now, since nearly all messages need none.
        pieces = _pieces(body, is_lines)
        return [DeadLetter(pieces[n].raw, item) if isinstance(item, Refused) else item for n, item in enumerate(read)]
    return read  # type: ignore[return-value]


def event_bodies(body: bytes, *, is_lines: bool = False) -> list[bytes]:
    """Return the bytes of each event of a message, numbered as the items of `read_events` or `read_ndjson`."""
    return [piece.raw for piece in _pieces(body, is_lines)]


def event_bytes(body: bytes, place: int, *, is_lines: bool = False) -> bytes:
    """Return the bytes of the event that became item number `place`."""
    return event_bodies(body, is_lines=is_lines)[place]


class _Named(Struct, gc=False):
    id: str | None = None


_NAMED: Final = msgspec.json.Decoder(_Named)
_NAMED_PACK: Final = msgspec.json.Decoder(list[_Named])


def event_ids(body: bytes, *, is_lines: bool = False) -> list[str | None]:
    """Return the id of each event of a message, numbered likewise; None where it cannot be read."""
    if not is_lines and body.lstrip(_BLANK)[:1] == b"[":
        try:
            return [named.id for named in _NAMED_PACK.decode(body)]
        except _UNREADABLE:
            pass
    return [_event_id(raw) for raw in event_bodies(body, is_lines=is_lines)]


def _event_id(raw: bytes) -> str | None:
    try:
        return _NAMED.decode(raw).id
    except _UNREADABLE:
        return None


def _decode(body: bytes, is_lines: bool) -> Sequence[Event]:
    """Decode all events of a message in one pass; raise where one of them is not of this contract."""
    if is_lines:
        return [_EVENT.decode(line) for line in _lines(body)]
    return _PACK.decode(body) if body.lstrip(_BLANK)[:1] == b"[" else [_EVENT.decode(body)]


def _lines(body: bytes) -> list[bytes]:
    lines = [line for line in (line.strip(_BLANK) for line in body.split(b"\n")) if line]
    return lines or [body]


_BLANK: Final = b" \t\r\n"
_NUL_ESCAPE: Final = b"\\u0000"


def _unreadable(raw: bytes) -> Refused | None:
    """Return why bytes are no JSON that we can read, or None if they are."""
    if not raw.strip(_BLANK):
        return refused("empty_message", "the message is empty")
    try:
        _ANY.decode(raw)
    except RecursionError:
        return refused("nested_too_deep", "the value is nested too deep")
    except msgspec.ValidationError as error:
        return refused("out_of_range", str(error))
    except ArithmeticError:
        return refused("out_of_range", "a number's exponent is beyond all limits")
    except ValueError as error:
        if _has_lone_surrogate(raw):
            return refused("lone_surrogate", "a text holds half of a surrogate pair")
        return refused("truncated" if "truncated" in str(error) else "invalid_json", str(error))
    return None


_ESCAPES: Final = re.compile(rb"\\(?:u([0-9a-fA-F]{4})|.)", re.DOTALL)


def _has_lone_surrogate(raw: bytes) -> bool:
    """Say whether a \\u escape names half of a pair without the other half directly beside it."""
    high_ends_at = -1
    for match in _ESCAPES.finditer(raw):
        code = int(match[1], 16) if match[1] else 0
        if 0xDC00 <= code <= 0xDFFF:
            if match.start() != high_ends_at:
                return True
            high_ends_at = -1
        else:
            if high_ends_at >= 0:
                return True
            high_ends_at = match.end() if 0xD800 <= code <= 0xDBFF else -1
    return high_ends_at >= 0


class _Piece(NamedTuple):
    """The bytes of one event, or those from which on nothing can be told apart, and then why."""

    raw: bytes
    refused: Refused | None = None


def _pieces(body: bytes, is_lines: bool) -> list[_Piece]:
    """Cut a message into its events; the same pieces for the same bytes, whoever asks."""
    if is_lines:
        return [_Piece(line) for line in _lines(body)]
    start = body.lstrip(_BLANK)[:1]
    if start != b"[" and start != b"{":
        return [_Piece(body, _unreadable(body) or refused("not_an_event", "a message must be an object or an array"))]
    try:
        return (
            [_Piece(bytes(raw)) for raw in _RAWS.decode(body)] if start == b"[" else [_Piece(bytes(_RAW.decode(body)))]
        )
    except _UNREADABLE:
        return _delimit(body)


# A string that never ends matches as its lone quote; possessive, so that no bytes make it try twice.
_MARKS: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"|["\[\]{},]', re.DOTALL)
_CLOSES: Final = {b"{": b"}", b"[": b"]"}
_DEEP: Final = 500


def _delimit(body: bytes) -> list[_Piece]:
    """Cut a message that does not decode as a whole into its events, by brackets and strings alone.

    Commas at the top of a pack separate events whatever is wrong inside one of them. Where brackets do not match, a
    string does not end or the bytes run out, all from that event's first byte on is one piece.
    """
    start = len(body) - len(body.lstrip(_BLANK))
    is_pack = body[start : start + 1] == b"["
    item_starts_at = start + 1 if is_pack else start
    pieces: list[_Piece] = []
    closers: list[bytes] = []
    deepest = 0
    ends_at = -1
    for match in _MARKS.finditer(body, item_starts_at):
        mark = match[0]
        if mark in _CLOSES:
            closers.append(_CLOSES[mark])
            deepest = max(deepest, len(closers))
        elif mark == b'"':
            break
        elif mark in (b"}", b"]"):
            if closers:
                if closers.pop() != mark:
                    break
                if not closers and not is_pack:
                    ends_at = match.end()
                    pieces.append(_Piece(body[start:ends_at]))
                    break
            elif mark == b"]" and is_pack:
                pieces.append(_Piece(body[item_starts_at : match.start()].strip(_BLANK)))
                ends_at = match.end()
                break
            else:
                break
        elif mark == b"," and not closers and is_pack:
            pieces.append(_Piece(body[item_starts_at : match.start()].strip(_BLANK)))
            item_starts_at = match.end()
    # A comma too many holds no event, so nothing is lost with it.
    pieces = [piece for piece in pieces if piece.raw]
    rest = body[ends_at if ends_at >= 0 else item_starts_at :].strip(_BLANK)
    if rest and ends_at >= 0:
        pieces.append(_Piece(rest, refused("trailing_bytes", "bytes follow after the end of the message")))
    elif rest and _unreadable(rest) is None:
        # Only the closing bracket of the pack is missing; its last event is whole.
        pieces.append(_Piece(rest))
    elif rest and deepest > _DEEP:
        pieces.append(_Piece(rest, refused("nested_too_deep", "the value is nested too deep")))
    elif rest or not pieces:
        pieces.append(_Piece(rest or body, refused("truncated", "from here on no event can be told from the next")))
    return pieces


def _read_alone(desk: "_Desk", piece: _Piece) -> Item:
    """Read one event from its own bytes."""
    raw, why = piece
    if why is not None:
        return DeadLetter(raw, why)
    try:
        event = _EVENT.decode(raw)
    except _UNREADABLE as error:
        try:
            return DeadLetter(raw, _why_undecodable(raw, error))
        except Exception as fault:
            return DeadLetter(raw, _fault(fault))
    item = (_nul_in(event) if _NUL_ESCAPE in raw else None) or desk.read(event)
    return DeadLetter(raw, item) if isinstance(item, Refused) else item


def _why_undecodable(raw: bytes, error: Exception) -> Refused:
    """Name the first rule that an event breaks, in the order of the table of reasons."""
    why = _unreadable(raw)
    if why is not None:
        return why
    value = _ANY.decode(raw)
    if type(value) is not dict:
        return refused("not_an_event", "an event must be an object")
    if value.get("type") not in (USAGE_TYPE, WINDOW_TYPE):
        stated = f"is {value['type']!r:.80}" if "type" in value else "is missing"
        return refused("unknown_type", f"type {stated}, known are {USAGE_TYPE}, {WINDOW_TYPE}")
    return _shape(str(error))


def _fault(error: Exception) -> Refused:
    return refused("reader_failed", f"{type(error).__name__}: {error}")


def _shape(message: str) -> Refused:
    """Put the decoder's complaint into our words; the tests hold its wording."""
    rule, _, at = message.partition(" - at ")
    where = at.replace("`", "").replace("$.", "").replace("key in ", "a key of ") or "the event"
    if "missing required field" in rule:
        reason = "missing_field"
    elif rule.startswith("Invalid enum value"):
        reason = "unknown_value"
    elif " of length " in rule:
        reason = "too_long"
    elif "out of range" in rule or " >= " in rule or " <= " in rule:
        reason = "out_of_range"
    else:
        reason = "wrong_type"
    return refused(reason, f"{where}: {rule.replace('`', '')}")


def _nul_in(event: Event) -> Refused | None:
    """Refuse an event with U+0000 in any text that would be stored; usage objects are cut to safe ones later."""
    for holder, above in ((event, ""), (event.data, "data.")):
        for name in holder.__struct_fields__:
            value = getattr(holder, name)
            if name == "tags" and value:
                texts: Iterable[str] = (*value, *value.values())
            elif type(value) is str:
                texts = (value,)
            else:
                continue
            if any("\0" in text for text in texts):
                return refused("nul_in_text", f"{above}{name}: holds U+0000")
    return None


# --- Checking one event ----------------------------------------------------------------------------------------------


def _desk(parties: Parties, received_at: int, speaker: Speaker | None) -> "_Desk":
    global _last_desk
    desk = _last_desk
    if desk.parties is not parties or desk.speaker != speaker or desk.received_at != received_at:
        # Who may speak for whom is looked up once per snapshot and credential; messages share it.
        trusted = desk.trusted if desk.parties is parties and desk.speaker == speaker else {}
        _last_desk = desk = _Desk(parties, received_at, speaker, trusted)
    return desk


class _Trust(NamedTuple):
    """A source that may speak for a tenant."""

    tenant_id: str
    """As sent."""
    source: Source
    tenant: Tenant
    event_head: str
    request_head: str


class _Desk:
    """What stays the same for all events of a message: the parties, the arrival, the credential."""

    __slots__ = ("latest_at", "models", "parties", "received_at", "speaker", "trusted")

    def __init__(
        self,
        parties: Parties,
        received_at: int,
        speaker: Speaker | None,
        trusted: "dict[tuple[str | None, str | None], _Trust]",
    ) -> None:
        self.parties, self.received_at, self.speaker, self.trusted = parties, received_at, speaker, trusted
        self.latest_at, self.models = received_at + AHEAD_MAX, parties.models

    def read(self, event: Event) -> Statement | Window | Refused:
        """Return what an event becomes. A fault of ours costs this event and not the worker: its bytes are kept."""
        try:
            return self.statement(event) if type(event) is UsageEvent else self.window(event)  # type: ignore[arg-type]
        except Exception as error:
            return _fault(error)

    def _trust(self, source: str | None, tenant_id: str | None) -> "_Trust | Refused":
        """Return who is meant, or why this sender may not say this."""
        speaker = self.speaker
        if not source:
            return refused("missing_source", "source: is missing")
        if speaker is not None and speaker.source is not None and source != speaker.source:
            return refused("source_not_the_credential", f"source: {source!r:.80} is not the credential's source")
        known = self.parties.sources.get(source)
        if known is None:
            return refused("unknown_source", f"source: {source!r:.80} is not registered")
        if speaker is not None and speaker.tenant_id is not None:
            if tenant_id and tenant_id != speaker.tenant_id:
                return refused(
                    "tenant_not_the_credential", f"data.tenant_id: {tenant_id!r:.80} is not the credential's"
                )
            tenant_id = speaker.tenant_id
        if not tenant_id:
            return refused("missing_tenant", "data.tenant_id: is missing")
        tenant = self.parties.tenants.get(tenant_id)
        if tenant is None:
            return refused("unknown_tenant", f"data.tenant_id: {tenant_id!r:.80} is not registered")
        if not known.may_speak_for(tenant_id):
            return refused("source_may_not_speak", f"source: {source!r:.80} may not speak for {tenant_id!r:.80}")
        event_head, request_head = key_head(EVENT, tenant_id, source), key_head(REQUEST, tenant_id, "")
        return _Trust(tenant_id, known, tenant, event_head, request_head)

    def statement(self, event: UsageEvent) -> Statement | Refused:
        data = event.data
        event_id = event.id
        if not event_id:
            return refused("missing_id", "id: is missing")
        who = (event.source, data.tenant_id)
        trust = self.trusted.get(who)
        if trust is None:
            checked = self._trust(*who)
            if isinstance(checked, Refused):
                return checked
            trust = self.trusted[who] = checked
        sent_tenant_id, source = trust.tenant_id, trust.source
        request_id = data.request_id or None
        if request_id is None and source.kind == "node":
            return refused("missing_request_id", "data.request_id: is missing in a node's report")
        occurred_at = _occurred_at(event.time, data.time_unix, data.time_unit)
        if isinstance(occurred_at, Refused):
            return occurred_at
        if trust.tenant.merged_at is not None:
            payer = self.parties.tenant_at(sent_tenant_id, occurred_at)
            if payer is None:
                return refused("unknown_tenant", f"data.tenant_id: {sent_tenant_id!r:.80} is merged into nobody known")
            tenant_id = payer.tenant_id
        else:
            tenant_id = sent_tenant_id

        # What was used.
        flavour = data.flavour
        if flavour is not None and flavour not in FLAVOURS:
            return refused("unknown_flavour", f"data.flavour: {flavour!r:.80} is not one of {', '.join(FLAVOURS)}")
        usage, frames, quantities = data.usage, data.usage_frames, data.quantities
        counted: Counted | Refused | None = None
        raw = counts = None
        if usage is not None:
            if frames or quantities is not None:
                return refused("two_usages", "data: only one of usage, usage_frames, quantities may be stated")
            if flavour is None:
                return refused("unknown_flavour", "data.flavour: is missing")
            counted = read_usage(flavour, usage)
            if isinstance(counted, Refused):
                return counted
            raw = _canonical(usage if counted.is_plain else _cut(usage))
            counts = b'{"usage":' + raw + b"}"
        elif frames:
            if quantities is not None:
                return refused("two_usages", "data: only one of usage, usage_frames, quantities may be stated")
            if flavour is None:
                return refused("unknown_flavour", "data.flavour: is missing")
            folded = fold_frames(flavour, frames)
            if folded is not None:
                counted = folded if isinstance(folded, Refused) else read_usage(flavour, folded)
                raw = _canonical([_cut(frame) for frame in frames if frame])
                counts = b'{"usage_frames":' + raw + b"}"
        elif quantities is not None:
            counted = read_quantities(quantities)
            counts = b'{"quantities":' + _canonical(_cut(quantities)) + b"}"
        estimate = data.local_estimate
        if estimate is not None and counted is None:
            estimated = read_quantities(estimate)
            counts = b'{"local_estimate":' + _canonical(_cut(estimate)) + b"}"
            if data.basis == "estimated" or type(estimated) is Refused:
                counted = estimated
        if isinstance(counted, Refused):
            return counted
        provider, model = data.provider, data.model
        known_model = self.models.get((provider or "", model or data.requested_model or ""))
        if known_model is not None and counted is not None:
            above = _above_limit(known_model, counted)
            if above is not None:
                return above

        # What that makes of the call.
        status = data.status
        is_final = status != "in_progress" and data.final is not False
        cache_result = data.cache_result
        is_own_hit = cache_result == "exact_hit" or cache_result == "semantic_hit"
        claims_request = True
        is_chargeable = is_priceable = True
        avoided: int | None = None
        notes: Mapping[str, Any] | None = None
        flags: tuple[str, ...] = ()
        found: dict[str, int] | None = None
        served_tier = data.service_tier
        if counted is not None:
            found, flags, is_priceable, notes = counted.quantities, counted.flags, counted.is_priceable, counted.notes
            served_tier = served_tier or counted.tier
        has_usage = found is not None
        if status == "void":
            found, flags, is_priceable, notes, is_chargeable, has_usage = {}, (), True, None, False, True
        elif is_own_hit:
            if counted is not None and found is not None:
                avoided = counted.input_tokens + counted.output_tokens
                if avoided > COUNT_MAX:
                    return refused("not_a_count", "data.usage: the counts sum above 2^63 - 1")
            found, is_priceable, is_chargeable = {}, True, False
        elif counted is None:
            if status == "in_progress":
                claims_request = False
            elif status == "error" or status == "refused":
                found, flags, is_chargeable = {}, ("not_charged",), False
            else:
                flags = ("usage_missing",)
            if estimate is not None:
                notes = {"local_estimate": _cut(estimate)}
        if not served_tier and data.requested_service_tier:
            served_tier = data.requested_service_tier
            flags = tuple(sorted((*flags, "tier_assumed")))

        # Who, what for and how, in the order of DIMENSIONS.
        requested_model, sent_language = data.requested_model, data.language
        canonical_model = None if known_model is None else known_model.model
        dimensions = (
            tenant_id,
            sent_tenant_id,
            event.source,
            request_id,
            data.operation_id or None,
            data.attempt_kind,
            data.response_id or None,
            provider,
            data.provider_account,
            data.deployment,
            requested_model,
            model,
            canonical_model,
            data.requested_service_tier,
            served_tier,
            data.region,
            data.node_id,
            data.operation,
            data.feature,
            language_of(sent_language),
            sent_language,
            data.route,
            data.lane,
            data.api_key_id,
            data.conversation_id,
            data.app_version,
            data.trace_id,
            status,
            data.stop_reason,
            cache_result,
            data.basis,
            data.reservation_id or None,
        )
        if is_own_hit:
            claimed = None
        elif request_id is not None:
            claimed = key_under(trust.request_head, request_id)
        else:
            # With its source in front, so that it can never equal the key of a stated request id.
            claimed = key_under(key_head(REQUEST, sent_tenant_id, source.source), event_id)
        content = canonical_content(event, sent_tenant_id, occurred_at, is_final, counts)
        is_in_time = EARLIEST_AT <= occurred_at <= self.latest_at
        # Positional, since naming thirty-odd fields costs more than checking them; the order is Statement's own.
        return Statement(
            key_under(trust.event_head, event_id),
            digest_uuid(content),
            claimed,
            (
                0,
                1 if has_usage else 0,
                1 if is_final else 0,
                1 if data.basis == "reported" else 0,
                source.rank,
                data.revision,
            ),
            occurred_at,
            dimensions,
            (Part(canonical_model, model, found, flags, is_chargeable, is_priceable, avoided, notes),),
            status,
            claims_request,
            data.lane == "batch",
            data.user_hash,
            data.tags,
            data.attempt,
            data.sequence,
            data.revision,
            is_final,
            data.reservation_open,
            data.max_output_tokens,
            data.delivered_output_tokens,
            data.provider_calls,
            data.latency_ms,
            data.ttft_ms,
            data.queue_ms,
            data.prefill_ms,
            data.decode_ms,
            flavour,
            PARSER_VERSION,
            raw,
            None if is_in_time else _outside_window(occurred_at, self.received_at),
        )

    def window(self, event: WindowEvent) -> Window | Refused:
        data = event.data
        if not event.id:
            return refused("missing_id", "id: is missing")
        trust = self._trust(event.source, data.tenant_id)
        if isinstance(trust, Refused):
            return trust
        sent_tenant_id, source = trust.tenant_id, trust.source
        starts_at = _occurred_at(data.starts_at, None, None, "data.starts_at")
        ends_at = _occurred_at(data.ends_at, None, None, "data.ends_at")
        if isinstance(starts_at, Refused):
            return starts_at
        if isinstance(ends_at, Refused):
            return ends_at
        if ends_at <= starts_at:
            return refused("bad_window", "data.ends_at: must be after data.starts_at")
        body = _canonical(data)
        content = b'{"id":%b,"source":%b,"tenant":%b,"type":"%b","version":%d,"window":%b}' % (
            _canonical(event.id),
            _canonical(source.source),
            _canonical(sent_tenant_id),
            WINDOW_TYPE.encode(),
            CONTENT_HASH_VERSION,
            _canonical({**msgspec.to_builtins(data), "starts_at": starts_at, "ends_at": ends_at}),
        )
        return Window(
            event_key=event_key(sent_tenant_id, source.source, event.id),
            content_hash=digest_uuid(content),
            tenant_id=sent_tenant_id,
            source=source.source,
            node_id=data.node_id,
            starts_at=starts_at,
            ends_at=ends_at,
            body=body,
            refused_if_new=_outside_window(ends_at, self.received_at),
        )


_last_desk = _Desk(Parties(-1, {}, {}), 0, None, {})


def _occurred_at(text: str | None, number: int | None, unit: str | None, field: str = "time") -> int | Refused:
    """Return when the call ended, in UTC microseconds; a bare number is never guessed to be seconds."""
    if text:
        try:
            instant = parse_rfc3339(text)
        except (ValueError, OverflowError) as error:
            return refused("bad_time", f"{field}: {text!r:.60} {error}")
    elif number is None:
        return refused("missing_time", f"{field}: is missing")
    elif unit is None:
        return refused("bad_time", "data.time_unix: needs data.time_unit, s or ms")
    else:
        instant = number * (1_000_000 if unit == "s" else 1_000)
        field = "data.time_unix"
    if not _CALENDAR[0] <= instant < _CALENDAR[1]:
        return refused("bad_time", f"{field}: is not between 1970 and 2999")
    return instant


def _outside_window(occurred_at: int, received_at: int) -> Refused | None:
    if occurred_at < EARLIEST_AT:
        return refused("time_too_early", "time: is before 2020-01-01")
    if occurred_at > received_at + AHEAD_MAX:
        return refused("time_in_future", "time: is more than five minutes after the message arrived")
    return None


def _above_limit(model: Model, counted: Counted) -> Refused | None:
    limit = model.input_tokens_max
    if limit is not None and counted.input_tokens > limit:
        return refused("above_model_limit", f"{counted.input_tokens} input tokens, {model.model} takes at most {limit}")
    limit = model.output_tokens_max
    if limit is not None and counted.output_tokens > limit:
        return refused(
            "above_model_limit", f"{counted.output_tokens} output tokens, {model.model} gives at most {limit}"
        )
    return None


# --- Content ---------------------------------------------------------------------------------------------------------

_encode_canonical: Final = msgspec.json.Encoder(order="deterministic", decimal_format="number").encode


def _canonical(value: Any) -> bytes:
    return _encode_canonical(value)


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
    return _encode_canonical(
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
        "service_tier", "serviceTier", "trafficType", "inference_geo", "speed", "type", "modality", "status",
        "model", "model_id", "finish_reason", "reason",
    }
)  # fmt: skip
_ENUM_VALUE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]{0,63}", re.ASCII).fullmatch
_KEY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*", re.ASCII).fullmatch
_KEY_MAX: Final = 64
_CUT_DEPTH: Final = 8
_EXACT: Final = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])
_WIDTH_MAX: Final = 40


@lru_cache(maxsize=4096)
def _is_key(name: str) -> bool:
    return _KEY(name) is not None


def _cut(usage: Mapping[str, Any], depth: int = _CUT_DEPTH) -> dict[str, Any]:
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
        return _cut(value, depth - 1) if depth else UNSET
    if type(value) is list and depth:
        kept = [_cut_value(name, item, depth - 1) for item in value]
        return [item for item in kept if item is not UNSET]
    return UNSET


# --- The schema ------------------------------------------------------------------------------------------------------


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


assert len(DIMENSIONS) == 32, "the tuple in statement is written in this order"
