"""The event contract: bytes to checked statements. Pure: no clock, no database, no environment.

One message holds one CloudEvents event, a JSON array of them (a pack), or one per line. A pack is decoded in one typed
pass; where that fails, each event is read alone, so that a bad neighbour costs nobody. No bytes raise.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct

from ingest.contents import CONTENT_HASH_VERSION, canonical, canonical_content, cut
from ingest.counts import Counted, read_frames, read_quantities, read_usage
from ingest.flavours import FLAVOURS
from ingest.languages import language_of
from ingest.messages import BLANK, Piece, lines_of, pieces_of, why_unreadable
from ingest.refusals import refused
from ingest.wire import (
    UNDECODABLE,
    USAGE_TYPE,
    WINDOW_TYPE,
    Event,
    UsageEvent,
    WindowEvent,
    decode_any,
    decode_event,
    decode_pack,
)
from ingest.wire import events_json_schema as events_json_schema
from ledger.keys import EVENT, REQUEST, digest_uuid, event_key, key_head, key_under
from ledger.parties import Model, Parties, Source, Tenant
from ledger.statements import (
    DIMENSIONS,
    REFUSED_BEFORE_OUTPUT,
    WINDOW_LENGTH_MAX,
    DeadLetter,
    Item,
    Part,
    Refused,
    Statement,
    Window,
)
from ledger.times import parse_rfc3339

EARLIEST_AT: Final = 1_577_836_800_000_000
"""2020-01-01 UTC: clocks before it are broken clocks."""
AHEAD_MAX: Final = 5 * 60 * 1_000_000
"""How far a reporter's clock may be ahead of the arrival, in microseconds."""
_CALENDAR: Final = (0, 32_503_680_000_000_000)
"""1970 to 2999: what lies beyond is no time but another number in the wrong unit, and some columns cannot hold it."""


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


def read_event(event: Event, parties: Parties, received_at: int) -> Statement | Window | Refused:
    """Return what one decoded event becomes; as `read_events`, without a credential."""
    return _desk(parties, received_at, None).read(event)


def _read(body: bytes, desk: "_Desk", is_lines: bool) -> list[Item]:
    try:
        events = _decode(body, is_lines)
    except UNDECODABLE:
        return [_read_alone(desk, piece) for piece in pieces_of(body, is_lines)]
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
        pieces = pieces_of(body, is_lines)
        return [DeadLetter(pieces[n].raw, item) if isinstance(item, Refused) else item for n, item in enumerate(read)]
    return read  # type: ignore[return-value]


def event_bodies(body: bytes, *, is_lines: bool = False) -> list[bytes]:
    """Return the bytes of each event of a message, numbered as the items of `read_events` or `read_ndjson`."""
    return [piece.raw for piece in pieces_of(body, is_lines)]


def event_ids(body: bytes, *, is_lines: bool = False) -> list[str | None]:
    """Return the id of each event of a message, numbered likewise; None where it cannot be read."""
    if not is_lines and body.lstrip(BLANK)[:1] == b"[":
        try:
            return [named.id for named in _NAMED_PACK.decode(body)]
        except UNDECODABLE:
            pass
    return [_event_id(raw) for raw in event_bodies(body, is_lines=is_lines)]


class _Named(Struct, gc=False):
    id: str | None = None


_NAMED: Final = msgspec.json.Decoder(_Named)
_NAMED_PACK: Final = msgspec.json.Decoder(list[_Named])


def _event_id(raw: bytes) -> str | None:
    try:
        return _NAMED.decode(raw).id
    except UNDECODABLE:
        return None


def _decode(body: bytes, is_lines: bool) -> Sequence[Event]:
    """Decode all events of a message in one pass; raise where one of them is not of this contract."""
    if is_lines:
        return [decode_event(line) for line in lines_of(body)]
    return decode_pack(body) if body.lstrip(BLANK)[:1] == b"[" else [decode_event(body)]


_NUL_ESCAPE: Final = b"\\u0000"


def _read_alone(desk: "_Desk", piece: Piece) -> Item:
    """Read one event from its own bytes."""
    raw, why = piece
    if why is not None:
        return DeadLetter(raw, why)
    try:
        event = decode_event(raw)
    except UNDECODABLE as error:
        try:
            return DeadLetter(raw, _why_undecodable(raw, error))
        except Exception as fault:
            return DeadLetter(raw, _fault(fault))
    item = (_nul_in(event) if _NUL_ESCAPE in raw else None) or desk.read(event)
    return DeadLetter(raw, item) if isinstance(item, Refused) else item


def _why_undecodable(raw: bytes, error: Exception) -> Refused:
    """Name the first rule that an event breaks, in the order of the table of reasons."""
    why = why_unreadable(raw)
    if why is not None:
        return why
    value = decode_any(raw)
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
    rule, _, at = message.rpartition(" - at ") if message.endswith("`") and " - at " in message else (message, "", "")
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


_OWN_WORD: Final = 1_000_000
"""How far a tenant's own credential ranks below the source that it names; ranks of sources are far smaller."""


class _Trust(NamedTuple):
    """A source that may speak for a tenant."""

    tenant_id: str
    """As sent."""
    source: Source
    tenant: Tenant
    rank: int
    """The source's; below every source's where a tenant's own credential speaks in its name."""
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
        if known.kind == "load" and (speaker is None or speaker.source is None):
            return refused(
                "source_may_not_speak", f"source: {source!r:.80} is a load, which only its own feed may name"
            )
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
        # Whoever pays must not decide how much: its word counts until a source's own credential, or the topic, says better.
        own_word = speaker is not None and speaker.tenant_id is not None
        rank = known.rank - _OWN_WORD if own_word else known.rank
        return _Trust(tenant_id, known, tenant, rank, event_head, request_head)

    def statement(self, event: UsageEvent) -> Statement | Refused:
        """Check a report of a call, in the order of the table of reasons, and say what it claims."""
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
        if request_id is None and source.kind in ("node", "load"):
            return refused("missing_request_id", f"data.request_id: is missing in a {source.kind}'s report")
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
            raw = canonical(usage if counted.is_plain else cut(usage))
            counts = b'{"usage":' + raw + b"}"
        elif frames:
            if quantities is not None:
                return refused("two_usages", "data: only one of usage, usage_frames, quantities may be stated")
            if flavour is None:
                return refused("unknown_flavour", "data.flavour: is missing")
            counted = read_frames(flavour, frames)
            if isinstance(counted, Refused):
                return counted
            if counted is not None:
                raw = canonical([cut(frame) for frame in frames if frame])
                counts = b'{"usage_frames":' + raw + b"}"
        elif quantities is not None:
            counted = read_quantities(quantities)
            counts = b'{"quantities":' + canonical(cut(quantities)) + b"}"
        estimate = data.local_estimate
        if estimate is not None and counted is None:
            estimated = read_quantities(estimate)
            counts = b'{"local_estimate":' + canonical(cut(estimate)) + b"}"
            if data.basis == "estimated" or type(estimated) is Refused:
                counted = estimated
        if isinstance(counted, Refused):
            return counted
        provider, model = data.provider, data.model
        known_model = self.models.get((provider or "", model or data.requested_model or ""))
        if known_model is None:
            # What hosts put around a name is taken off by the provider's own rules.
            known_model = self.parties.model(provider, model or data.requested_model)
        calls: tuple[tuple[str | None, Counted], ...] = ()
        if counted is not None:
            calls = counted.calls
            if not calls and known_model is not None:
                above = _above_limit(known_model, counted)
                if above is not None:
                    return above

        # What that makes of the call.
        status = data.status
        is_final = status != "in_progress" and data.final is not False
        cache_result = data.cache_result
        is_own_hit = cache_result == "exact_hit" or cache_result == "semantic_hit"
        if counted is not None and counted.is_cache_hit and not is_own_hit:
            # The sender's own cache answered, and its usage object says so where the event does not.
            cache_result, is_own_hit = "exact_hit", True
        claims_request = True
        is_chargeable = is_priceable = True
        avoided: int | None = None
        notes: Mapping[str, Any] | None = None
        flags: tuple[str, ...] = ()
        found: dict[str, int] | None = None
        served_tier = data.service_tier
        if counted is not None:
            found, flags, is_priceable, notes = counted.quantities, counted.flags, counted.is_priceable, counted.notes
            if not served_tier or counted.is_tier_certain:
                served_tier = counted.tier
        has_usage = found is not None
        if status == "void":
            found, flags, is_priceable, notes, is_chargeable, has_usage = {}, (), True, None, False, True
        elif is_own_hit:
            if counted is not None and found is not None:
                avoided = counted.input_tokens + counted.output_tokens
                if found:
                    # By meter, so that what the hit saved can be priced at the rates that the row names.
                    notes = {**(notes or {}), "avoided": found}
            found, is_priceable, is_chargeable = {}, True, False
        elif counted is None:
            if status == "in_progress":
                claims_request = False
            elif status == "error" or status == "refused":
                found, flags, is_chargeable = {}, ("not_charged",), False
            else:
                flags = ("usage_missing",)
            if estimate is not None:
                notes = {"local_estimate": cut(estimate)}
        if not served_tier and data.requested_service_tier:
            served_tier = data.requested_service_tier
            flags = tuple(sorted((*flags, "tier_assumed")))

        # Who, what for and how, in the order of DIMENSIONS.
        requested_model, sent_language = data.requested_model, data.language
        canonical_model = None if known_model is None else known_model.model
        parts: tuple[Part, ...]
        if calls and found:
            said = self._parts(provider, model, known_model, calls, "tier_assumed" in flags)
            if isinstance(said, Refused):
                return said
            parts = said
            # A statement's own model is that of its first part.
            canonical_model, model = parts[0].model, parts[0].reported_model
        else:
            if (data.stop_reason == "refusal" or status == "refused") and counted is not None and found:
                flags = _before_output(counted, flags)
            parts = (Part(canonical_model, model, found, flags, is_chargeable, is_priceable, avoided, notes),)
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
                trust.rank,
                data.revision,
            ),
            occurred_at,
            dimensions,
            parts,
            status,
            claims_request,
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
            0 if flavour is None else FLAVOURS[flavour].version,
            raw,
            None if is_in_time else _outside_window(occurred_at, self.received_at),
        )

    def _parts(
        self,
        provider: str | None,
        model: str | None,
        known: Model | None,
        calls: Iterable[tuple[str | None, Counted]],
        is_tier_assumed: bool,
    ) -> tuple[Part, ...] | Refused:
        """Return one part per model call inside the answer, each with its own model; without a name it is the answer's."""
        parts = []
        for name, counted in calls:
            named = known if name is None else self.parties.model(provider, name)
            if named is not None:
                above = _above_limit(named, counted)
                if above is not None:
                    return above
            parts.append(
                Part(
                    None if named is None else named.model,
                    name or model,
                    counted.quantities,
                    tuple(sorted((*counted.flags, "tier_assumed"))) if is_tier_assumed else counted.flags,
                    True,
                    counted.is_priceable,
                    None,
                    counted.notes,
                )
            )
        return tuple(parts)

    def window(self, event: WindowEvent) -> Window | Refused:
        """Check a node's report about itself."""
        data = event.data
        if not event.id:
            return refused("missing_id", "id: is missing")
        trust = self._trust(event.source, data.tenant_id)
        if isinstance(trust, Refused):
            return trust
        sent_tenant_id, source = trust.tenant_id, trust.source
        if self.speaker is not None and self.speaker.tenant_id is not None:
            return refused("source_may_not_speak", "a tenant's credential may not report the window of a node")
        if source.kind != "node":
            return refused("source_may_not_speak", f"source: is a {source.kind}, and only a node reports its window")
        starts_at = _occurred_at(data.starts_at, None, None, "data.starts_at")
        ends_at = _occurred_at(data.ends_at, None, None, "data.ends_at")
        if isinstance(starts_at, Refused):
            return starts_at
        if isinstance(ends_at, Refused):
            return ends_at
        if ends_at <= starts_at:
            return refused("bad_window", "data.ends_at: must be after data.starts_at")
        if ends_at - starts_at > WINDOW_LENGTH_MAX:
            return refused("bad_window", "data.ends_at: must be at most a day after data.starts_at")
        if data.busy_ms is not None and (data.busy_ms - 1) * 1_000 >= ends_at - starts_at:
            return refused("part_above_whole", f"data.busy_ms: {data.busy_ms} is more than the window is long")
        if data.cache_read_tokens is not None and data.cache_read_tokens > (data.input_tokens or 0):
            return refused(
                "part_above_whole", f"data.cache_read_tokens: {data.cache_read_tokens} is above input_tokens"
            )
        body = canonical(data)
        content = b'{"id":%b,"source":%b,"tenant":%b,"type":"%b","version":%d,"window":%b}' % (
            canonical(event.id),
            canonical(source.source),
            canonical(sent_tenant_id),
            WINDOW_TYPE.encode(),
            CONTENT_HASH_VERSION,
            canonical({**msgspec.to_builtins(data), "starts_at": starts_at, "ends_at": ends_at}),
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


def _before_output(counted: Counted, flags: tuple[str, ...]) -> tuple[str, ...]:
    """Mark a call that was refused before any output: a card's rule may make it free."""
    return flags if counted.output_tokens else tuple(sorted({*flags, REFUSED_BEFORE_OUTPUT}))


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


assert len(DIMENSIONS) == 32, "the tuple in statement is written in this order"
