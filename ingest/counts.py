"""Reads usage objects by their flavour's record: counts as stated become meters, each token in exactly one.

One reader interprets all records. All counts are whole numbers from exact JSON, never floats; nothing is clamped, and
what does not add up is refused or flagged.
"""

from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING, Decimal
from itertools import product
from typing import Any, Final, NamedTuple

from msgspec import Struct

from ingest.flavours import BEYOND_THE_SPLIT, FLAVOURS, Flavour, Inner, Lifetimes, Place, Places, Side
from ingest.refusals import refused
from ledger.meters import METERS, input_tokens, output_tokens
from ledger.price_book import STANDARD_TIERS
from ledger.statements import REFUSED_BEFORE_OUTPUT, Refused

COUNT_MAX: Final = 2**63 - 1
_NO_COUNT: Final = ", a count must be a whole number from 0 to 2^63 - 1"


class Counted(Struct, frozen=True, gc=False):
    """What a usage object says, in meters: each token in exactly one."""

    quantities: dict[str, int] | None
    """Counts above zero, over all calls; None where not one count could be read."""
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
    calls: "tuple[tuple[str | None, Counted], ...]" = ()
    """The model calls that it lists, each with its model, where there is more to say than one."""
    is_cache_hit: bool = False
    """The sender's own cache answered: the counts were avoided."""
    is_tier_certain: bool = False
    """True where the tier holds whatever the event says beside the object."""


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
    if sum(sums) > COUNT_MAX:
        return refused("not_a_count", "the counts sum above 2^63 - 1")
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
        counted = _read(plan, usage) if plan.is_composed else _count(plan, usage)
    except _NotACountError as error:
        return refused(error.reason, error.detail)
    if counted.input_tokens + counted.output_tokens > COUNT_MAX:
        return refused("not_a_count", "the counts sum above 2^63 - 1")
    return counted


def read_frames(flavour: str, frames: Sequence[Mapping[str, Any] | None]) -> Counted | Refused | None:
    """Return what the usage objects of a stream say together, or None where none says anything."""
    plan = _PLANS.get(flavour)
    if plan is not None and plan.flavour.stream == "each_counts":
        counted = []
        for frame in frames:
            if frame:
                read = read_usage(flavour, frame)
                if isinstance(read, Refused):
                    return read
                counted.append(read)
        if len(counted) < 2:
            return counted[0] if counted else None
        return _together([(None, each) for each in counted])
    folded = fold_frames(flavour, frames)
    return folded if folded is None or isinstance(folded, Refused) else read_usage(flavour, folded)


def fold_frames(flavour: str, frames: Sequence[Mapping[str, Any] | None]) -> dict[str, Any] | Refused | None:
    """Return the one usage object that a stream's usage objects amount to, or None where none says anything."""
    plan = _PLANS.get(flavour)
    if plan is None:
        return refused("unknown_flavour", f"{flavour!r} is not one of {', '.join(FLAVOURS)}")
    stated = [frame for frame in frames if frame]
    if not stated:
        return None
    if plan.flavour.stream == "anthropic_deltas":
        return _fold_anthropic(stated)
    # Some servers open a stream with counts of zero; the last object that counts anything stands.
    return dict(next((frame for frame in reversed(stated) if any(frame.values())), stated[-1]))


# --- Plans -----------------------------------------------------------------------------------------------------------


class _SidePlan(NamedTuple):
    name: str
    meter: str
    inside: tuple[str, ...]
    beside: tuple[str, ...]
    modalities: tuple[str, ...]
    side: Side


class _Plan:
    """A record turned into what the reader walks: built once, at import."""

    __slots__ = (
        "fitting", "flavour", "has_total", "in_meter", "is_composed", "is_extended", "movable", "needed", "out_meter",
        "places", "premium", "quick", "sides", "spellings", "split_slots", "tier", "wrappers",
    )  # fmt: skip

    def __init__(self, flavour: Flavour) -> None:
        self.flavour = flavour
        self.places: dict[str, Any] = {}
        """The keys to walk: a key leads to a slot, or to the keys below it."""
        self.spellings: dict[str, str] = {}
        """Slot of a later spelling to the slot that it stands for."""
        self.has_total = bool(flavour.total)
        self.tier = tuple(_keys(place) for place in flavour.tier)
        self.premium = tuple(_keys(place) for place in flavour.premium)
        self._put("total", flavour.total)
        self.in_meter, self.out_meter = flavour.input.meter, flavour.output.meter
        sides = []
        self.movable: list[tuple[str, str, bool]] = []
        """(side, meter, inside unless the total says otherwise) of details whose place the total tells."""
        self.fitting: list[tuple[str, tuple[str, ...]]] = []
        """(side, meters) of details that lie inside if they fit."""
        for side, name in ((flavour.input, "input"), (flavour.output, "output")):
            self._put(name, side.at)
            for detail in side.details:
                self._put(detail.meter, detail.at)
                self._put(f"{detail.meter}/list", detail.by_modality)
                if "_or_" in detail.lies:
                    self.movable.append((name, detail.meter, detail.lies == "inside_or_beside"))
            for modality, at in side.modalities.items():
                self._put(f"{name}/{modality}", at)
            self._put(f"{name}/list", side.by_modality)
            sides.append(_side_plan(side, name))
            fitting = tuple(detail.meter for detail in side.details if detail.lies == "inside_if_it_fits")
            if fitting:
                self.fitting.append((name, fitting))
        self.sides = tuple(sides)
        self.split_slots: tuple[str, ...] = ("writes", "writes/list")
        if flavour.lifetimes:
            self.split_slots += tuple(f"split/{meter}" for meter in flavour.lifetimes.split)
            self._put("writes", flavour.lifetimes.total)
            for meter, at in flavour.lifetimes.split.items():
                self._put(f"split/{meter}", at)
            if flavour.lifetimes.listed:
                self._put("writes/list", (flavour.lifetimes.listed,))
        for meter, at in flavour.calls.items():
            self._put(meter, at)
        for meter, at in flavour.seconds.items():
            self._put(f"{meter}/seconds", at)
        for name, at in flavour.noted.items():
            self._put(f"{name}/note", at)
        if flavour.called:
            self._put("called/list", (flavour.called,))
        for place in flavour.also:
            self._put("also", (place,))
        self.wrappers = tuple(_keys(place) for place in flavour.wrapped_in)
        self.is_composed = bool(flavour.inner or flavour.wrapped_in or flavour.cache_hit)
        self.is_extended = bool(flavour.seconds or flavour.noted or flavour.called or flavour.each_call)
        self.needed = frozenset(flavour.unknown_if_absent)
        self.quick: dict[str, str] | None = None
        """Slot to where it lies, of a flavour whose objects are mostly two counts, their sum and details inside them."""
        if self.has_total and not (flavour.lifetimes or flavour.unread or self.is_extended):
            self.quick = {"input": "", "output": "", "total": "", "also": ""}
            for side, name in ((flavour.input, "in"), (flavour.output, "out")):
                self.quick |= {detail.meter: name for detail in side.details if detail.lies == "inside"}

    def _put(self, slot: str, at: Places) -> None:
        for number, place in enumerate(at):
            *parents, last = _keys(place)
            keys = self.places
            for parent in parents:
                keys = keys.setdefault(parent, {})
            keys[last] = slot if number == 0 else f"#{number}{slot}"
            if number:
                self.spellings[f"#{number}{slot}"] = slot


def _keys(place: Place) -> tuple[str, ...]:
    return tuple(place.split(".")) if isinstance(place, str) else place


def _side_plan(side: Side, name: str) -> _SidePlan:
    inside = tuple(detail.meter for detail in side.details if detail.lies == "inside")
    beside = tuple(detail.meter for detail in side.details if detail.lies == "beside")
    modalities = [f"{name}/{modality}" for modality in side.modalities]
    if side.by_modality:
        modalities.append(f"{name}/list")
    return _SidePlan(name, side.meter, inside, beside, tuple(modalities), side)


_PLANS: Final[Mapping[str, _Plan]] = {name: _Plan(flavour) for name, flavour in FLAVOURS.items()}


# --- One object ------------------------------------------------------------------------------------------------------


class _NotACountError(Exception):
    """A place holds what is no count; caught where the object is read."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason, self.detail = reason, detail

    def under(self, key: str) -> "_NotACountError":
        return _NotACountError(self.reason, f"{key}.{self.detail}")


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
            found[place] = _stated(place, key, value)
        elif type(value) is dict:
            try:
                if not _gather(place, value, found):
                    is_plain = False
            except _NotACountError as error:
                raise error.under(key) from None
        elif value is not None:
            raise _NotACountError("wrong_type", f"{key} must be an object")
    return is_plain


def _stated(place: str, key: str, value: Any) -> Any:
    """Return what stands at a place if it is no plain count: a list, a length, a number to note, an odd spelling."""
    if place.endswith("/list"):
        if type(value) is not list and type(value) is not dict:
            raise _NotACountError("wrong_type", f"{key} must be a list or an object")
        return value
    if place.endswith("/note"):
        return value if type(value) is Decimal and value.is_finite() else None
    if place.endswith("/seconds") and type(value) is Decimal and 0 <= value <= COUNT_MAX:
        return value
    count = whole_count(value)
    if count is None:
        raise _NotACountError("not_a_count", f"{key} is {value!r:.60}{_NO_COUNT}")
    return count


def _count(plan: _Plan, usage: Mapping[str, Any]) -> Counted:
    """Read the counts of one model call."""
    flavour = plan.flavour
    found: dict[str, Any] = {}
    is_plain = _gather(plan.places, usage, found)
    # A plain object has no room for a word.
    tier: str | None = None
    is_certain = False
    if flavour.tier_is:
        tier, is_certain = flavour.tier_is, True
    elif plan.tier and not is_plain:
        tier = _tier(plan, plan.tier, usage)
        premium = _tier(plan, plan.premium, usage) if plan.premium else None
        if premium is not None and premium not in STANDARD_TIERS:
            tier, is_certain = premium, True
    if plan.spellings:
        # In the record's order, so that the earlier of two stated spellings stands.
        for spelling, slot in plan.spellings.items():
            if spelling in found:
                found.setdefault(slot, found[spelling])
    total = found.get("total")
    quick = plan.quick
    if quick is not None and total:
        count_in, count_out = found.get("input"), found.get("output")
        if count_in and count_out and total == count_in + count_out:
            # The most frequent objects: the total closes, and nothing is stated but details inside the two sides.
            if len(found) == 3 and not plan.needed:
                counts = {plan.in_meter: count_in, plan.out_meter: count_out}
                return Counted(counts, (), True, None, tier, count_in, count_out, is_plain, (), False, is_certain)
            counts = {}
            rest_in, rest_out = count_in, count_out
            for slot, value in found.items():
                if value:
                    lies = quick.get(slot)
                    if lies == "in":
                        rest_in -= value
                        counts[slot] = value
                    elif lies == "out":
                        rest_out -= value
                        counts[slot] = value
                    elif lies is None:
                        break
            else:
                if rest_in >= 0 and rest_out >= 0 and plan.needed <= found.keys():
                    if rest_in:
                        counts[plan.in_meter] = rest_in
                    if rest_out:
                        counts[plan.out_meter] = rest_out
                    return Counted(counts, (), True, None, tier, count_in, count_out, is_plain, (), False, is_certain)
    flags: list[str] = []
    if flavour.lifetimes is not None:
        for slot in plan.split_slots:
            if found.get(slot):
                _split_writes(flavour.lifetimes, found, flags)
                break
    placed = _placed(plan, found, total, flags) if plan.movable or plan.fitting else None
    quantities: dict[str, int] = {}
    sums: list[int] = []
    parts_sum = 0
    is_complete = True
    for name, side_meter, inside, beside, modalities, side in plan.sides:
        whole = found.get(name)
        is_stated = whole is not None
        if whole is None:
            required = side.required
            if required == "always" or (required == "unless_total_closes" and total is None):
                is_complete = False
            whole = 0
        if placed is not None:
            inside, beside = (*inside, *placed[name, True]), (*beside, *placed[name, False])
        rest = whole
        parts_sum += whole
        for meter in beside:
            count = found.get(meter)
            if count:
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
                raise _NotACountError("part_above_whole", f"{parts} is above {_spoken(side.at[0])} {whole}")
            # The whole is unknown: its parts are kept as read, and nothing of it is priced.
            rest = 0
        for slot in modalities:
            if is_stated and found.get(slot):
                rest = _split_modalities(name, side, found, whole, rest, quantities, flags, inside)
                break
        if rest:
            quantities[side_meter] = quantities.get(side_meter, 0) + rest
        sums.append(parts_sum)
    for meter in flavour.calls:
        count = found.get(meter)
        if count:
            quantities[meter] = count
    notes: dict[str, Any] | None = None
    is_priceable = is_complete
    if plan.is_extended:
        notes, is_priceable = _extend(flavour, found, quantities, flags, is_priceable)
    for meter, flag in flavour.unknown_if_absent.items():
        if meter not in found:
            flags.append(flag)
    if not is_complete:
        flags.append("usage_incomplete")
    elif not quantities and not sums[-1] and not _says_anything(flavour, found):
        # Not one count of a flavour that requires none.
        is_complete = is_priceable = False
        flags.append("usage_incomplete")
    elif plan.has_total:
        if total is None:
            if not flavour.is_total_optional:
                flags.append("total_missing")
        elif total < parts_sum:
            lacking = sum(found.get(meter) or 0 for meter in flavour.outside_total)
            if total != parts_sum - lacking:
                flags.append("total_differs")
        elif total > parts_sum and not (
            flavour.twice_in_total
            and total == parts_sum + sum(found.get(meter) or 0 for meter in flavour.twice_in_total)
        ):
            flags.append("total_above_parts")
            notes = {**(notes or {}), "unexplained_tokens": total - parts_sum}
            is_priceable = False
    for unread in flavour.unread:
        word = _at(usage, _keys(unread.at))
        if word is not None and (not unread.words or (type(word) is str and word in unread.words)):
            flags.append(unread.flag)
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
        (),
        False,
        is_certain,
    )


def _says_anything(flavour: Flavour, found: Mapping[str, Any]) -> bool:
    """Say whether any count that can be billed was stated, be it zero."""
    named = ("input", "output", *flavour.calls, *flavour.each_call, *(f"{meter}/seconds" for meter in flavour.seconds))
    return bool(flavour.each_call) or any(name in found for name in named)


def _spoken(place: Place) -> str:
    return place if isinstance(place, str) else ".".join(place)


def _at(usage: Any, keys: Sequence[str]) -> Any:
    for key in keys:
        usage = usage.get(key) if type(usage) is dict else None
    return usage


def _placed(
    plan: _Plan, found: Mapping[str, Any], total: int | None, flags: list[str]
) -> dict[tuple[str, bool], list[str]]:
    """Say of the details that may lie inside or beside where they do, as (side, lies inside) to meters."""
    placed: dict[tuple[str, bool], list[str]] = {
        (name, is_inside): [] for name in ("input", "output") for is_inside in (True, False)
    }
    for name, meters in plan.fitting:
        count = sum(found.get(meter) or 0 for meter in meters)
        fits = count <= (found.get(name) or 0)
        placed[name, fits] += meters
        if count and fits:
            flags.append("cache_assumed")
    usual = [is_inside for _, _, is_inside in plan.movable]
    chosen = usual
    stated = [found.get(meter) or 0 for _, meter, _ in plan.movable]
    if total is not None and any(stated):
        wholes = {"input": found.get("input") or 0, "output": found.get("output") or 0}
        fixed = sum(wholes.values()) + sum(found.get(m) or 0 for side in plan.sides for m in side.beside)
        # The usual places first: others are taken only if the total closes with them and not with those.
        for places in sorted(product((True, False), repeat=len(usual)), key=lambda p: sum(map(_differs, p, usual))):
            beside = sum(count for count, is_inside in zip(stated, places, strict=True) if not is_inside)
            fits = all(
                count <= wholes[name]
                for count, is_inside, (name, _, _) in zip(stated, places, plan.movable, strict=True)
                if is_inside
            )
            if fits and fixed + beside == total:
                chosen = list(places)
                break
    for is_inside, (name, meter, _) in zip(chosen, plan.movable, strict=True):
        placed[name, is_inside].append(meter)
    return placed


def _differs(left: bool, right: bool) -> bool:
    return left is not right


def _extend(
    flavour: Flavour, found: Mapping[str, Any], quantities: dict[str, int], flags: list[str], is_priceable: bool
) -> tuple[dict[str, Any] | None, bool]:
    """Read what few flavours have: lengths, calls of tools by name, what every call counts, numbers worth a note."""
    for meter in flavour.seconds:
        seconds = found.get(f"{meter}/seconds")
        if seconds:
            # Providers count whole seconds and bill a started one; the exact length stays in the raw object.
            whole = int(Decimal(seconds).to_integral_value(ROUND_CEILING))
            if whole != seconds:
                flags.append("seconds_rounded_up")
            quantities[meter] = whole
    words = found.get("called/list") or ()
    for word in words:
        called = flavour.called_words.get(word) if type(word) is str else None
        if called is None:
            # A tool that we do not know may cost something.
            flags.append("tool_unread")
            is_priceable = False
        elif called:
            quantities[called] = quantities.get(called, 0) + 1
    for meter in flavour.each_call:
        quantities[meter] = 1
    notes = {}
    for name in flavour.noted:
        value = found.get(f"{name}/note")
        if value:
            notes[name] = value if type(value) is int else f"{value:f}"[:_NOTE_MAX]
    return notes or None, is_priceable


_NOTE_MAX: Final = 40


def _split_writes(lifetimes: Lifetimes, found: dict[str, Any], flags: list[str]) -> None:
    """Put cache writes into the meters of their lifetimes; without a split, or against it, the aggregate counts."""
    split = {meter: found.get(f"split/{meter}") for meter in lifetimes.split}
    listed = found.get("writes/list")
    if listed is not None:
        split |= _listed_writes(lifetimes, listed)
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


def _listed_writes(lifetimes: Lifetimes, listed: Any) -> dict[str, int | None]:
    """Read a list of {ttl, inputTokens}; a lifetime that we do not know is no known lifetime."""
    if type(listed) is not list:
        raise _NotACountError("wrong_type", f"{_spoken(lifetimes.listed)} must be a list")
    split: dict[str, int | None] = {}
    for entry in listed:
        count = whole_count(entry.get("inputTokens")) if type(entry) is dict else None
        if count is None:
            raise _NotACountError("not_a_count", f"an entry of {_spoken(lifetimes.listed)} holds no count")
        word = entry.get("ttl")
        meter = lifetimes.words.get(word, "") if type(word) is str else ""
        meter = meter or "cache_write_other_tokens"
        split[meter] = (split.get(meter) or 0) + count
    return split


def _tier(plan: _Plan, places: Sequence[tuple[str, ...]], usage: Mapping[str, Any]) -> str | None:
    """Return the tier that an object names at the places: the first that is not the standard one, else that."""
    standard = None
    for keys in places:
        value = _at(usage, keys)
        if type(value) is str and 0 < len(value) <= 64 and value.isascii() and value.isprintable():
            word = plan.flavour.tier_words.get(value, value)
            if word not in STANDARD_TIERS:
                return word
            standard = standard or word
    return standard


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
        modality = word.lower().removesuffix("_tokens") if type(word) is str else ""
        if modality in _MODALITIES and count:
            counts[modality] = counts.get(modality, 0) + count
    return counts


def _meter_of(prefix: str, modality: str) -> str:
    """Return the meter of a modality; text's has no modality in its name."""
    return f"{prefix}_tokens" if modality == "text" else f"{prefix}_{modality}_tokens"


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
    listed = found.get(f"{name}/list")
    if listed is not None:
        shares |= _by_modality(listed, record.meter)
    if not shares:
        return rest
    if sum(shares.values()) > whole:
        raise _NotACountError("part_above_whole", f"the modalities of {_spoken(record.at[0])} sum above {whole}")
    is_assumed = False
    for meter in inside:
        count = found.get(meter)
        if not count:
            continue
        split = found.get(f"{meter}/list")
        if split is None:
            is_assumed = True
            continue
        for modality, share in _by_modality(split, meter).items():
            if share > shares.get(modality, 0) or share > quantities.get(meter, 0):
                raise _NotACountError("part_above_whole", f"{meter} of {modality} {share} is above its whole")
            own_meter = meter.replace("_tokens", f"_{modality}_tokens")
            if own_meter in METERS:
                quantities[own_meter] = share
                quantities[meter] -= share
            shares[modality] -= share
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
            meter = _meter_of(record.modality_prefix, modality)
            if meter in METERS:
                quantities[meter] = quantities.get(meter, 0) + share
                rest -= share
    if is_assumed:
        flags.append("modality_assumed")
    return rest


# --- Answers that hold more than one object --------------------------------------------------------------------------


def _read(plan: _Plan, usage: Mapping[str, Any]) -> Counted:
    """Read an object that may stand inside an answer, list calls of its own, or come from the sender's cache."""
    flavour = plan.flavour
    counts = usage
    for keys in plan.wrappers:
        wrapped = _at(usage, keys)
        if type(wrapped) is dict and any(_at(wrapped, _keys(place)) is not None for place in flavour.input.at):
            counts = wrapped
            break
    counted = _count(plan, counts)
    if counts is not usage:
        outer = _tier(plan, plan.tier, usage)
        counted = _changed(counted, is_plain=False, tier=counted.tier or outer)
    if flavour.cache_hit and usage.get(flavour.cache_hit) is True:
        return _changed(counted, is_cache_hit=True)
    if flavour.inner is not None:
        listed = _at(counts, flavour.inner.at.split("."))
        if listed:
            return _with_calls(plan, flavour.inner, listed, counted)
    return counted


def _changed(counted: Counted, **fields: Any) -> Counted:
    stated = {name: getattr(counted, name) for name in Counted.__struct_fields__}
    return Counted(**{**stated, **fields})


def _with_calls(plan: _Plan, inner: Inner, listed: Any, top: Counted) -> Counted:
    """Read the calls that an answer lists, each with its own model; the top level is their check.

    Calls outside the top level's counts are counted too. What only the top level says, such as fees of tools, goes to
    the first call that it covers; how many of its tokens were reasoning, where no call says so, is noted there.
    """
    if type(listed) is not list or any(type(entry) is not dict for entry in listed):
        raise _NotACountError("wrong_type", f"{inner.at} must list objects")
    kinds = [entry.get("type", "message") for entry in listed]
    replacing = [number for number, kind in enumerate(kinds) if inner.replaced_by and kind == inner.replaced_by]
    if len(listed) == 1 and not replacing and (not inner.kinds_in_total or kinds[0] in inner.kinds_in_total):
        model = _model_of(listed[0])
        if top.input_tokens or top.output_tokens:
            return _together([(model, top)], top) if model else top
    calls: list[tuple[str | None, Counted]] = []
    covered = []
    for number, entry in enumerate(listed):
        usage = entry.get(inner.usage) if inner.usage else {k: v for k, v in entry.items() if k != inner.at}
        if type(usage) is not dict:
            raise _NotACountError("wrong_type", f"{inner.at} must list objects with {inner.usage}")
        try:
            counted = _count(plan, usage)
        except _NotACountError as error:
            raise error.under(f"{inner.at}[{number}]") from None
        was_declined = bool(replacing) and number < replacing[0]
        if not counted.output_tokens and (was_declined or entry.get("stop_reason") == "refusal"):
            counted = _changed(counted, flags=tuple(sorted({*counted.flags, REFUSED_BEFORE_OUTPUT})))
        calls.append((_model_of(entry), counted))
        if replacing:
            is_covered = number in replacing
        else:
            is_covered = not inner.kinds_in_total or kinds[number] in inner.kinds_in_total
        if is_covered:
            covered.append(number)
    first = covered[0] if covered else 0
    model, counted = calls[first]
    flags, is_priceable = set(counted.flags), counted.is_priceable
    notes = dict(counted.notes or {})
    quantities = dict(counted.quantities or {})
    stated = top.input_tokens + top.output_tokens
    parts = sum(calls[number][1].input_tokens + calls[number][1].output_tokens for number in covered)
    if stated > parts:
        flags.add("total_above_parts")
        notes["unexplained_tokens"] = stated - parts
        is_priceable = False
    elif 0 < stated < parts:
        flags.add("total_differs")
    for name, count in (top.quantities or {}).items():
        if METERS[name].unit != "token":
            quantities.setdefault(name, count)
    thought = (top.quantities or {}).get("reasoning_tokens", 0)
    if thought and not any((each.quantities or {}).get("reasoning_tokens") for _, each in calls):
        notes["reasoning_tokens"] = thought
    calls[first] = (
        model,
        _changed(
            counted,
            quantities=quantities if quantities or counted.quantities is not None else None,
            flags=tuple(sorted(flags)),
            is_priceable=is_priceable,
            notes=notes or None,
        ),
    )
    own = {unread.flag for unread in plan.flavour.unread} & set(top.flags)
    if own:
        calls = [
            (name, _changed(each, flags=tuple(sorted({*each.flags, *own})), is_priceable=False)) for name, each in calls
        ]
    return _together(calls, top)


def _model_of(entry: Mapping[str, Any]) -> str | None:
    model = entry.get("model")
    return model if type(model) is str and 0 < len(model) <= 256 and "\0" not in model else None


def _together(calls: Sequence[tuple[str | None, Counted]], top: Counted | None = None) -> Counted:
    """Return calls as one answer: their sums, and each of them."""
    quantities: dict[str, int] = {}
    flags: set[str] = set()
    for _, counted in calls:
        flags.update(counted.flags)
        for meter, count in (counted.quantities or {}).items():
            quantities[meter] = quantities.get(meter, 0) + count
    is_known = any(counted.quantities is not None for _, counted in calls)
    return Counted(
        quantities if is_known else None,
        tuple(sorted(flags)),
        all(counted.is_priceable for _, counted in calls),
        None,
        calls[0][1].tier if top is None else top.tier,
        sum(counted.input_tokens for _, counted in calls),
        sum(counted.output_tokens for _, counted in calls),
        False,
        tuple(calls),
        False,
        (calls[0][1] if top is None else top).is_tier_certain,
    )


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
            folded["cache_creation"] = {**split, BEYOND_THE_SPLIT: total - sum(stated)}
    return folded
