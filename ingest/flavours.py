"""Whose usage object it is, and so what its counts include: one record per flavour, and one reader of the records.

Inclusive totals become disjoint meters here and nowhere else. A record says where each count stands, which counts lie
inside which, how the total is made up and how the frames of a stream fold; code stands only beside what a table cannot
say. Sources are named on each record; all counts are whole numbers from exact JSON, never floats.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final, Literal, NamedTuple

from msgspec import Struct

from ingest.refusals import refused
from ledger.meters import METERS, input_tokens, output_tokens
from ledger.statements import Refused

PARSER_VERSION: Final = 1
"""Raised whenever a record or the reader reads an object differently, so that raw objects can be replayed."""

COUNT_MAX: Final = 2**63 - 1

Place = str
"""Where a count stands: keys joined by dots."""

# --- The records -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Detail:
    """A count beside or inside the count of its side."""

    meter: str
    at: tuple[Place, ...]
    """Every spelling; of several stated ones the first in this order counts."""
    lies: Literal["inside", "beside", "by_total"] = "inside"
    """`by_total`: beside, unless the stated total closes only if it lies inside."""
    by_modality: Place | None = None
    """A list or map that splits this count by modality."""


@dataclass(frozen=True, slots=True)
class Side:
    """The input or the output of a call: a count, what lies inside or beside it, and its split by modality."""

    meter: str
    """What is left of the count once the details inside it are taken off."""
    at: tuple[Place, ...]
    details: tuple[Detail, ...] = ()
    required: Literal["always", "unless_total_closes", "never"] = "always"
    modalities: Mapping[str, tuple[Place, ...]] = field(default_factory=dict)
    """Modality to where its share of the whole side stands; text needs none, it is what is left."""
    by_modality: Place | None = None
    """A list of {modality, tokenCount}, or a map of modality to count, that splits the whole side."""
    modality_prefix: str = ""
    """`uncached_input` for uncached_input_audio_tokens."""


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """Cache writes as one aggregate and split by lifetime."""

    total: tuple[Place, ...]
    split: Mapping[str, tuple[Place, ...]]
    """Meter to place."""


@dataclass(frozen=True, slots=True)
class Flavour:
    """How one kind of usage object is read."""

    name: str
    wrote_by: str
    input: Side
    output: Side
    stream: Literal["last_stated", "anthropic_deltas"]
    total: tuple[Place, ...] = ()
    """Where the provider states the sum of all token counts; none where it states no sum."""
    lifetimes: Lifetimes | None = None
    calls: Mapping[str, tuple[Place, ...]] = field(default_factory=dict)
    """Meter to place of counts that are no tokens."""
    tier: tuple[Place, ...] = ()
    tier_words: Mapping[str, str] = field(default_factory=dict)
    """The provider's word for a tier to ours, where they differ."""
    unknown_if_absent: Mapping[str, str] = field(default_factory=dict)
    """Meter to the flag that says: this sender's counter can be switched off, so its absence is no zero."""
    also: tuple[Place, ...] = ()
    """Counts that stay inside the others and change no meter."""
    unread: tuple[str, ...] = ()
    """Lists with counts that the top level may lack and that this version does not read: shown, and not priced."""
    source: str = ""


_OPENAI_INPUT: Final = Side(
    meter="uncached_input_tokens",
    at=("prompt_tokens",),
    details=(
        Detail("cache_read_tokens", ("prompt_tokens_details.cached_tokens",)),
        Detail("cache_write_other_tokens", ("prompt_tokens_details.cache_write_tokens",)),
    ),
    modalities={
        "audio": ("prompt_tokens_details.audio_tokens",),
        "image": ("prompt_tokens_details.image_tokens",),
        "video": ("prompt_tokens_details.video_tokens",),
    },
    modality_prefix="uncached_input",
)

_OPENAI_OUTPUT: Final = Side(
    meter="visible_output_tokens",
    at=("completion_tokens",),
    details=(
        Detail("reasoning_tokens", ("completion_tokens_details.reasoning_tokens",)),
        Detail("rejected_prediction_tokens", ("completion_tokens_details.rejected_prediction_tokens",)),
    ),
    modalities={
        "audio": ("completion_tokens_details.audio_tokens",),
        "image": ("completion_tokens_details.image_tokens",),
    },
    modality_prefix="visible_output",
)

_BEYOND_THE_SPLIT: Final = "unstated_lifetime_input_tokens"

_RECORDS: Final = (
    Flavour(
        name="openai.chat",
        wrote_by="OpenAI, chat completions",
        input=_OPENAI_INPUT,
        output=_OPENAI_OUTPUT,
        total=("total_tokens",),
        also=(
            "prompt_tokens_details.text_tokens",
            "completion_tokens_details.text_tokens",
            # Predicted tokens that stand in the answer are visible output like any other.
            "completion_tokens_details.accepted_prediction_tokens",
        ),
        stream="last_stated",
        # Servers that copy this shape put the tier beside the counts; OpenAI itself puts it on the response.
        tier=("service_tier",),
        source="openai/openai-python types/completion_usage.py; usage API: input includes cached and written",
    ),
    Flavour(
        name="anthropic.messages",
        wrote_by="Anthropic, messages",
        input=Side(
            meter="uncached_input_tokens",
            at=("input_tokens",),
            details=(
                Detail("cache_read_tokens", ("cache_read_input_tokens",), lies="beside"),
                Detail("cache_write_5m_tokens", (), lies="beside"),
                Detail("cache_write_1h_tokens", (), lies="beside"),
                Detail("cache_write_other_tokens", (), lies="beside"),
            ),
        ),
        output=Side(
            meter="visible_output_tokens",
            at=("output_tokens",),
            details=(Detail("reasoning_tokens", ("output_tokens_details.thinking_tokens",)),),
        ),
        stream="anthropic_deltas",
        lifetimes=Lifetimes(
            total=("cache_creation_input_tokens",),
            split={
                "cache_write_5m_tokens": ("cache_creation.ephemeral_5m_input_tokens",),
                "cache_write_1h_tokens": ("cache_creation.ephemeral_1h_input_tokens",),
                # No provider sends this one: the fold of a stream puts it there.
                "cache_write_other_tokens": (f"cache_creation.{_BEYOND_THE_SPLIT}",),
            },
        ),
        calls={
            "web_search_calls": ("server_tool_use.web_search_requests",),
            "web_fetch_calls": ("server_tool_use.web_fetch_requests",),
        },
        tier=("service_tier",),
        unread=("iterations",),
        source="anthropics/anthropic-sdk-python types/usage.py, types/message_delta_usage.py, types/cache_creation.py",
    ),
    Flavour(
        name="gemini.generate_content",
        wrote_by="Google, Gemini API and Vertex AI",
        input=Side(
            meter="uncached_input_tokens",
            at=("promptTokenCount",),
            details=(
                Detail("cache_read_tokens", ("cachedContentTokenCount",), by_modality="cacheTokensDetails"),
                Detail("tool_prompt_tokens", ("toolUsePromptTokenCount",), lies="beside"),
            ),
            by_modality="promptTokensDetails",
            modality_prefix="uncached_input",
        ),
        output=Side(
            meter="visible_output_tokens",
            at=("candidatesTokenCount",),
            # An older variant counts thoughts inside the candidates; only the total tells.
            details=(Detail("reasoning_tokens", ("thoughtsTokenCount",), lies="by_total"),),
            # Left out where nothing was said; the total must then close without it.
            required="unless_total_closes",
            by_modality="candidatesTokensDetails",
            modality_prefix="visible_output",
        ),
        total=("totalTokenCount",),
        stream="last_stated",
        tier=("serviceTier", "trafficType"),
        tier_words={
            "ON_DEMAND": "standard",
            "ON_DEMAND_PRIORITY": "priority",
            "ON_DEMAND_FLEX": "flex",
            "PROVISIONED_THROUGHPUT": "provisioned",
        },
        source="googleapis/python-genai types.py GenerateContentResponseUsageMetadata, with the total's formula",
    ),
    Flavour(
        name="vllm.chat",
        wrote_by="vLLM, the OpenAI-compatible server",
        input=Side(
            meter="uncached_input_tokens",
            at=("prompt_tokens",),
            details=(Detail("cache_read_tokens", ("prompt_tokens_details.cached_tokens",)),),
            by_modality="prompt_tokens_details.multimodal_tokens",
            modality_prefix="uncached_input",
        ),
        output=Side(
            meter="visible_output_tokens",
            at=("completion_tokens",),
            details=(Detail("reasoning_tokens", ("completion_tokens_details.reasoning_tokens",)),),
        ),
        total=("total_tokens",),
        stream="last_stated",
        # Computed like any other and billed by nobody: they stay uncached input.
        also=("prompt_tokens_details.created_cache_tokens",),
        unknown_if_absent={"cache_read_tokens": "cache_unknown"},
        source="vllm entrypoints/serve/engine/protocol.py; cached counts only with --enable-prompt-tokens-details",
    ),
)

FLAVOURS: Final[Mapping[str, Flavour]] = {flavour.name: flavour for flavour in _RECORDS}

# --- The reader ------------------------------------------------------------------------------------------------------


class Counted(Struct, frozen=True, gc=False):
    """What a usage object says, in meters: each token in exactly one."""

    quantities: dict[str, int] | None
    """Counts above zero; None where not one count could be read."""
    flags: tuple[str, ...] = ()
    """Sorted."""
    is_priceable: bool = True
    notes: Mapping[str, Any] | None = None
    tier: str | None = None
    """The service tier that the object itself names."""
    input_tokens: int = 0
    output_tokens: int = 0
    is_plain: bool = False
    """True where the object holds nothing but whole counts that its record names, so that it can be kept as it is."""


class _Plan:
    """A record turned into what the reader walks: built once, at import."""

    __slots__ = ("flavour", "has_total", "in_meter", "out_meter", "places", "sides", "spellings", "tier")

    def __init__(self, flavour: Flavour) -> None:
        self.flavour = flavour
        self.places: dict[str, Any] = {}
        """The keys to walk: a key leads to a slot, or to the keys below it."""
        self.spellings: dict[str, str] = {}
        """Slot of a later spelling to the slot that it stands for."""
        self.has_total = bool(flavour.total)
        self.tier = tuple(place.split(".") for place in flavour.tier)
        self._put("total", flavour.total)
        self.in_meter, self.out_meter = flavour.input.meter, flavour.output.meter
        self.sides: list[_SidePlan] = []
        for side, name in ((flavour.input, "input"), (flavour.output, "output")):
            self._put(name, side.at)
            for detail in side.details:
                self._put(detail.meter, detail.at)
                if detail.by_modality:
                    self._put(f"{detail.meter}/modalities", (detail.by_modality,))
            for modality, at in side.modalities.items():
                self._put(f"{name}/{modality}", at)
            if side.by_modality:
                self._put(f"{name}/modalities", (side.by_modality,))
            self.sides.append(_side_plan(side, name))
        if flavour.lifetimes:
            self._put("writes", flavour.lifetimes.total)
            for meter, at in flavour.lifetimes.split.items():
                self._put(f"split/{meter}", at)
        for meter, at in flavour.calls.items():
            self._put(meter, at)
        for place in flavour.also:
            self._put("also", (place,))

    def _put(self, slot: str, at: Sequence[Place]) -> None:
        for number, place in enumerate(at):
            *parents, last = place.split(".")
            keys = self.places
            for parent in parents:
                keys = keys.setdefault(parent, {})
            keys[last] = slot if number == 0 else f"{slot}#{number}"
            if number:
                self.spellings[f"{slot}#{number}"] = slot


class _SidePlan(NamedTuple):
    name: str
    meter: str
    inside: tuple[str, ...]
    beside: tuple[str, ...]
    by_total: tuple[str, ...]
    modalities: tuple[str, ...]
    side: Side


def _side_plan(side: Side, name: str) -> _SidePlan:
    inside, beside, by_total = (
        tuple(detail.meter for detail in side.details if detail.lies == lies)
        for lies in ("inside", "beside", "by_total")
    )
    modalities = [f"{name}/{modality}" for modality in side.modalities]
    if side.by_modality:
        modalities.append(f"{name}/modalities")
    return _SidePlan(name, side.meter, inside, beside, by_total, tuple(modalities), side)


_PLANS: Final[Mapping[str, _Plan]] = {name: _Plan(flavour) for name, flavour in FLAVOURS.items()}


_NO_COUNT: Final = ", a count must be a whole number from 0 to 2^63 - 1"


class _NotACountError(Exception):
    """A place holds what is no count; caught where the object is read."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason, self.detail = reason, detail

    def under(self, key: str) -> "_NotACountError":
        return _NotACountError(self.reason, f"{key}.{self.detail}")


def whole_count(value: Any) -> int | None:
    """Return a count as an int, or None for what is none: negative, fractional, no number, wider than 63 bits.

    1.0 and 1e3 are whole numbers, since senders whose language has only one kind of number write them so.
    """
    if type(value) is int:
        return value if 0 <= value <= COUNT_MAX else None
    # Compared before it is converted: int(Decimal("1e999999")) would take the machine's memory.
    if type(value) is Decimal and 0 <= value <= COUNT_MAX and value == value.to_integral_value():
        return int(value)
    return None


def read_quantities(stated: Mapping[str, Any]) -> Counted | Refused:
    """Return canonical quantities, checked: known meters, whole counts. A null count leaves the rest unpriced."""
    quantities: dict[str, int] = {}
    is_complete = True
    for name, value in stated.items():
        if name not in METERS:
            return refused("unknown_meter", f"{name!r} is no meter")
        if value is None:
            is_complete = False
        elif type(value) is int and 0 < value <= COUNT_MAX:
            quantities[name] = value
        else:
            count = whole_count(value)
            if count is None:
                return refused("not_a_count", f"{name} is {value!r:.60}{_NO_COUNT}")
            if count:
                quantities[name] = count
    sums = input_tokens(quantities), output_tokens(quantities)
    if is_complete:
        return Counted(quantities, (), True, None, None, *sums)
    return Counted(quantities or None, ("usage_incomplete",), False, None, None, *sums)


def read_usage(flavour: str, usage: Mapping[str, Any]) -> Counted | Refused:
    """Return what a usage object of a flavour says, each token in exactly one meter; zero counts are left out.

    Sums: the input meters make the provider's input, the output meters its output, and both its total, or a flag says
    how they differ. Refuses what cannot be: no flavour of that name, a part above its whole, a count that is none.
    """
    plan = _PLANS.get(flavour)
    if plan is None:
        return refused("unknown_flavour", f"{flavour!r} is not one of {', '.join(FLAVOURS)}")
    try:
        return _count(plan, usage)
    except _NotACountError as error:
        return refused(error.reason, error.detail)


def fold_frames(flavour: str, frames: Sequence[Mapping[str, Any] | None]) -> dict[str, Any] | Refused | None:
    """Return the one usage object that a stream's usage objects amount to, or None where none says anything."""
    plan = _PLANS.get(flavour)
    if plan is None:
        return refused("unknown_flavour", f"{flavour!r} is not one of {', '.join(FLAVOURS)}")
    stated = [frame for frame in frames if frame]
    if not stated:
        return None
    if plan.flavour.stream == "last_stated":
        return dict(stated[-1])
    return _fold_anthropic(stated)


def _gather(places: Mapping[str, Any], usage: Mapping[str, Any], found: dict[str, Any]) -> bool:
    """Collect what is stated at the places, checked to be counts; a null is as good as absent.

    Say whether nothing else stood there than whole counts in their plain spelling.
    """
    is_plain = True
    for key, value in usage.items():
        place = places.get(key)
        if place is None:
            is_plain = False
        elif type(place) is str:
            if type(value) is int and 0 <= value <= COUNT_MAX:
                found[place] = value
                continue
            if value is None:
                continue
            is_plain = False
            if place.endswith("/modalities"):
                if type(value) is not list and type(value) is not dict:
                    raise _NotACountError("wrong_type", f"{key} must be a list or an object")
                found[place] = value
            else:
                count = whole_count(value)
                if count is None:
                    raise _NotACountError("not_a_count", f"{key} is {value!r:.60}{_NO_COUNT}")
                found[place] = count
        elif type(value) is dict:
            try:
                if not _gather(place, value, found):
                    is_plain = False
            except _NotACountError as error:
                raise error.under(key) from None
        elif value is not None:
            raise _NotACountError("wrong_type", f"{key} must be an object")
    return is_plain


def _count(plan: _Plan, usage: Mapping[str, Any]) -> Counted:
    flavour = plan.flavour
    found: dict[str, Any] = {}
    is_plain = _gather(plan.places, usage, found)
    # A plain object has no room for a word.
    tier = _tier(plan, usage) if plan.tier and not is_plain else None
    if plan.spellings:
        # In the record's order, so that the earlier of two stated spellings stands.
        for spelling, slot in plan.spellings.items():
            if spelling in found:
                found.setdefault(slot, found[spelling])
    if is_plain and len(found) == 3 and plan.has_total and not flavour.unknown_if_absent:
        count_in, count_out = found.get("input"), found.get("output")
        if count_in and count_out and found.get("total") == count_in + count_out:
            # Nothing but two counts and their sum: the most frequent object needs no walk over details.
            counts = {plan.in_meter: count_in, plan.out_meter: count_out}
            return Counted(counts, (), True, None, None, count_in, count_out, True)
    flags: list[str] = []
    if flavour.lifetimes is not None:
        _split_writes(flavour.lifetimes, found, flags)
    total = found.get("total")
    quantities: dict[str, int] = {}
    sums: list[int] = []
    parts_sum = 0
    is_complete = True
    for name, side_meter, inside, beside, by_total, modalities, side in plan.sides:
        whole = found.get(name)
        is_stated = whole is not None
        if whole is None:
            required = side.required
            if required == "always" or (required == "unless_total_closes" and total is None):
                is_complete = False
            whole = 0
        rest = whole
        parts_sum += whole
        for meter in beside:
            count = found.get(meter)
            if count:
                quantities[meter] = count
                parts_sum += count
        for meter in by_total:
            count = found.get(meter)
            if count:
                # Sides are walked in order, so that all but this detail is in the sum by now.
                if total == parts_sum and count <= whole:
                    inside = (*inside, meter)
                else:
                    quantities[meter] = count
                    parts_sum += count
        for meter in inside:
            count = found.get(meter)
            if count:
                rest -= count
                quantities[meter] = count
        if rest < 0:
            if is_stated:
                parts = " + ".join(f"{meter} {found[meter]}" for meter in inside if found.get(meter))
                raise _NotACountError("part_above_whole", f"{parts} is above {side.at[0]} {whole}")
            # The whole is unknown: its parts are kept as read, and nothing of it is priced.
            rest = 0
        for slot in modalities:
            if is_stated and found.get(slot):
                rest = _split_modalities(name, side, found, whole, rest, quantities, flags, inside)
                break
        if rest:
            quantities[side_meter] = rest
        sums.append(parts_sum)
    for meter in flavour.calls:
        count = found.get(meter)
        if count:
            quantities[meter] = count
    for meter, flag in flavour.unknown_if_absent.items():
        if meter not in found:
            flags.append(flag)
    is_priceable = is_complete
    notes: dict[str, Any] | None = None
    if not is_complete:
        flags.append("usage_incomplete")
    elif plan.has_total:
        if total is None:
            flags.append("total_missing")
        elif total < parts_sum:
            flags.append("total_differs")
        elif total > parts_sum:
            flags.append("total_above_parts")
            notes = {"unexplained_tokens": total - parts_sum}
            is_priceable = False
    for name in flavour.unread:
        if usage.get(name) and _holds_more(usage[name]):
            flags.append(f"{name}_unread")
            is_priceable = False
    known = quantities if quantities or is_complete or "input" in found or "output" in found else None
    return Counted(
        known,
        tuple(sorted(set(flags))) if flags else (),
        is_priceable,
        notes,
        tier,
        sums[0],
        sums[1] - sums[0],
        is_plain,
    )


def _split_writes(lifetimes: Lifetimes, found: dict[str, Any], flags: list[str]) -> None:
    """Put cache writes into the meters of their lifetimes; without a split, or against it, the aggregate counts."""
    split = {meter: found.get(f"split/{meter}") for meter in lifetimes.split}
    written = sum(count or 0 for count in split.values())
    total = found.get("writes")
    is_split = any(count is not None for count in split.values())
    if is_split and (total is None or total == written):
        found.update({meter: count for meter, count in split.items() if count})
        if split.get("cache_write_other_tokens"):
            flags.append("lifetime_unknown")
    elif total is not None and (total or written):
        found["cache_write_other_tokens"] = total
        flags.append("lifetime_unknown")


def _tier(plan: _Plan, usage: Mapping[str, Any]) -> str | None:
    for keys in plan.tier:
        value: Any = usage
        for key in keys:
            value = value.get(key) if type(value) is dict else None
        if type(value) is str and 0 < len(value) <= 64 and value.isascii() and value.isprintable():
            return plan.flavour.tier_words.get(value, value)
    return None


def _holds_more(entries: Any) -> bool:
    """Say whether a list of iterations has counts that the top level lacks: anything but plain messages."""
    if type(entries) is not list:
        return True
    return any(type(entry) is not dict or entry.get("type", "message") != "message" for entry in entries)


_MODALITIES: Final = frozenset({"audio", "image", "video", "document"})


def _by_modality(stated: Any, meter: str) -> dict[str, int]:
    """Return counts by modality from a list of {modality, tokenCount} or a map; text is what is left."""
    if type(stated) is dict:
        pairs: list[tuple[Any, Any]] = list(stated.items())
    else:
        pairs = []
        for entry in stated:
            if type(entry) is not dict:
                raise _NotACountError("wrong_type", f"the split of {meter} by modality must list objects")
            pairs.append((entry.get("modality"), entry.get("tokenCount", entry.get("tokens"))))
    counts: dict[str, int] = {}
    for word, value in pairs:
        if value is None:
            continue
        count = whole_count(value)
        if count is None:
            raise _NotACountError("not_a_count", f"{word!r:.40} of {meter} is {value!r:.60}, which is no count")
        # A modality that we do not know stays in the side's own meter, so that the sum holds.
        modality = word.lower() if type(word) is str else ""
        if modality in _MODALITIES and count:
            counts[modality] = counts.get(modality, 0) + count
    return counts


def _split_modalities(
    name: str,
    record: Side,
    found: Mapping[str, Any],
    whole: int,
    rest: int,
    quantities: dict[str, int],
    flags: list[str],
    inside: tuple[str, ...],
) -> int:
    """Split a side by modality and return what is left of `rest` for its own meter, that is text.

    Cache state and modality are two axes over the same tokens. A detail's own split is used where there is one;
    otherwise its tokens are taken from text first and only then from the others, which is an assumption and flagged.
    """
    shares: dict[str, int] = {m: found[f"{name}/{m}"] for m in record.modalities if found.get(f"{name}/{m}")}
    listed = found.get(f"{name}/modalities")
    if listed is not None:
        shares |= _by_modality(listed, record.meter)
    if not shares:
        return rest
    if sum(shares.values()) > whole:
        raise _NotACountError("part_above_whole", f"the modalities of {record.at[0]} sum above {whole}")
    is_assumed = False
    for meter in inside:
        count = found.get(meter)
        if not count:
            continue
        split = found.get(f"{meter}/modalities")
        if split is None:
            is_assumed = True
            continue
        for modality, share in _by_modality(split, meter).items():
            if share > shares.get(modality, 0) or share > quantities.get(meter, 0):
                raise _NotACountError("part_above_whole", f"{meter} of {modality} {share} is above its whole")
            shares[modality] -= share
            quantities[meter] -= share
            quantities[meter.replace("_tokens", f"_{modality}_tokens")] = share
        if not quantities[meter]:
            del quantities[meter]
    over = sum(shares.values()) - rest
    for modality, share in shares.items():
        if over > 0:
            cut = min(over, share)
            share -= cut
            over -= cut
        if share:
            # Output documents and the like have no meter of their own.
            meter = f"{record.modality_prefix}_{modality}_tokens"
            if meter in METERS:
                quantities[meter] = share
                rest -= share
    if is_assumed:
        flags.append("modality_assumed")
    return rest


# --- Streams ---------------------------------------------------------------------------------------------------------

_START_ONLY: Final = frozenset({"cache_creation", "service_tier", "inference_geo", "speed"})
_PLACEHOLDERS: Final = frozenset({"output_tokens", "output_tokens_details"})


def _fold_anthropic(frames: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Fold the usage of message_start and of the deltas after it.

    Deltas are cumulative: each scalar replaces the one before and is never added. The lifetimes of cache writes, tier
    and geography stand only in message_start and are kept; what was written beyond its split has no known lifetime.
    The output in message_start is a placeholder: alone it says nothing, and the count is absent.
    """
    start, *deltas = frames
    folded = {key: value for key, value in start.items() if key not in _PLACEHOLDERS}
    for delta in deltas:
        for key, value in delta.items():
            if value is not None and not (key in _START_ONLY and folded.get(key) is not None):
                folded[key] = value
    split, total = folded.get("cache_creation"), folded.get("cache_creation_input_tokens")
    if deltas and type(split) is dict and type(total) is int:
        stated = [count for count in split.values() if type(count) is int]
        if stated and total > sum(stated):
            folded["cache_creation"] = {**split, _BEYOND_THE_SPLIT: total - sum(stated)}
    return folded
