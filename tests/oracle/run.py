"""Holds every recorded response and every priced expectation against our reading, and says what became of each."""

import csv
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

from ingest.counts import Counted, read_frames, read_usage
from ingest.flavours import FLAVOURS
from ledger.meters import METERS
from ledger.price_book import PriceBook, RateSet, Selectors
from ledger.price_import import read_genai_prices
from ledger.pricing import price
from ledger.statements import Refused
from ledger.times import parse_rfc3339
from tests.oracle.corpus import AS_OF, DATA, Expectation, Recording, expectations, recordings, transcriptions

DIFFERENCES: Final = Path(__file__).with_name("differences.csv")

Kind = Literal["agrees", "quantity", "price", "quarantined", "nothing", "unexplained"]


@dataclass(frozen=True, slots=True)
class Rule:
    """A reviewed row: which difference, where, and why our reading is the right one."""

    kind: Kind
    provider: str
    api: str
    field: str
    rule: str
    rows: int
    why: str


@cache
def reviewed() -> tuple[Rule, ...]:
    """Return the reviewed table of differences."""
    with DIFFERENCES.open(newline="") as listed:
        return tuple(
            Rule(row["kind"], row["provider"], row["api"], row["field"], row["rule"], int(row["rows"]), row["why"])  # type: ignore[arg-type]
            for row in csv.DictReader(listed)
        )


@dataclass(slots=True)
class Judged:
    """What became of the rows of one corpus: how many of each kind, and how many each reviewed row explains."""

    kinds: Counter[str] = field(default_factory=Counter)
    explained: Counter[Rule] = field(default_factory=Counter)
    unexplained: list[str] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return sum(self.kinds.values())

    def add(self, found: str | None, provider: str, api: str, said: str) -> None:
        """Count a row that agrees (None), or that differs by a rule if the reviewed table names it there."""
        if found is None:
            self.kinds["agrees"] += 1
            return
        rule = next(
            (r for r in reviewed() if r.rule == found and r.provider in (provider, "*") and r.api in (api, "*")), None
        )
        if rule is None:
            self.kinds["unexplained"] += 1
            self.unexplained.append(f"{provider} {api}: {found}: {said}")
        else:
            self.kinds[rule.kind] += 1
            self.explained[rule] += 1


# --- Recorded responses ----------------------------------------------------------------------------------------------


def read_recording(row: Recording) -> Counted | Refused | None:
    """Read a recording as a sender would hand it over: a stream's frames, or the one object of an answer."""
    if row.is_stream:
        return read_frames(row.flavour, row.frames)
    return read_usage(row.flavour, row.frames[0]) if row.frames else None


def _stated_total(usage: Mapping[str, Any]) -> Any:
    return next((usage[name] for name in ("total_tokens", "totalTokenCount", "totalTokens") if name in usage), None)


def _why_recording_differs(row: Recording, read: Counted | Refused | None) -> str | None:
    """Return which rule a recording needs, or None where it was read whole and its total is ours."""
    if read is None:
        return "no_usage"
    if isinstance(read, Refused):
        return read.reason
    if not read.is_priceable:
        return "unpriced:" + ",".join(read.flags)
    frames = row.frames if FLAVOURS[row.flavour].stream == "each_counts" else row.frames[-1:]
    totals = [_stated_total(frame) for frame in frames]
    if None not in totals and read.input_tokens + read.output_tokens != sum(totals):
        return "total_is_another"
    return next((f"flag:{flag}" for flag in read.flags if flag in {"total_differs", "total_missing"}), None)


def judge_recordings() -> Judged:
    """Run every recorded response through its flavour."""
    judged = Judged()
    for row in (*recordings(), *transcriptions()):
        read = read_recording(row)
        said = f"recording {row.number}, {row.flavour}: {row.frames!r:.200}"
        judged.add(_why_recording_differs(row, read), row.provider, row.api, said)
    return judged


def flavour_table() -> list[tuple[str, int, int]]:
    """Return (flavour, recorded responses, priced expectations) of every flavour, in their order."""
    recorded = Counter(row.flavour for row in (*recordings(), *transcriptions()) if read_recording(row) is not None)
    priced = Counter(row.flavour for row in expectations())
    return [(name, recorded[name], priced[name]) for name in FLAVOURS]


_FOLDS: Final = {
    "last_stated": "the last one that counts anything",
    "anthropic_deltas": "deltas replace; lifetimes and tier of the first, whose output is a placeholder",
    "each_counts": "each is a call of its own and becomes a row of its own",
}


def flavour_lines() -> list[str]:
    """Return the table of flavours as it stands in ingest/flavours.md."""
    return [
        "| flavour | written by | a stream's frames | recorded responses | priced expectations |",
        "| --- | --- | --- | --- | --- |",
        *(
            f"| `{name}` | {FLAVOURS[name].wrote_by} | {_FOLDS[FLAVOURS[name].stream]} | {recorded or 'none'} | {priced or 'none'} |"
            for name, recorded, priced in flavour_table()
        ),
    ]


# --- Priced expectations ---------------------------------------------------------------------------------------------


@cache
def price_book() -> PriceBook:
    """Return the cost book that our import makes of the same source."""
    path = DATA / "prices" / "genai_prices_0.2.3.json.gz"
    return PriceBook(1, read_genai_prices(path, "0.2.3", date(2026, 11, 1)).cards)


@dataclass(frozen=True, slots=True)
class Bill:
    """What our reading of an object costs: in all, and for its input; `why` says why it has no price."""

    amount: Decimal
    input_amount: Decimal
    why: str = ""


def bill(row: Expectation, counted: Counted) -> Bill:
    """Price what was read with the card that the library prices with, each call by its own model."""
    at, total, of_input = parse_rfc3339(AS_OF), Decimal(0), Decimal(0)
    for model, call in counted.calls or ((None, counted),):
        tier = call.tier or counted.tier
        asked = Selectors(row.provider, model or row.model, at, service_tier=tier, input_tokens=call.input_tokens)
        rates = price_book().rate_set("cost", asked)
        if not isinstance(rates, RateSet):
            return Bill(total, of_input, rates.reason)
        priced = price(call.quantities or {}, rates)
        if priced.amount is None:
            return Bill(total, of_input, ",".join(priced.unpriced))
        total += priced.amount
        of_input += sum((line.amount for line in priced.lines if METERS[line.meter].side == "input"), Decimal(0))
    return Bill(total, of_input)


def _why_expectation_differs(
    row: Expectation, counted: Counted | Refused, billed: Callable[[Expectation, Counted], Bill]
) -> str | None:
    """Return the rule by which our price is another, or None where it is the same to the digit."""
    if isinstance(counted, Refused):
        return f"refused:{counted.reason}"
    if not counted.is_priceable:
        return "unpriced:" + ",".join(counted.flags)
    quantities = counted.quantities or {}
    ours = billed(row, counted)
    if not ours.why:
        if (ours.amount if row.sees_output else ours.input_amount) == row.total_price:
            return None if _counts_agree(row, counted) else "counts"
        if counted.calls:
            return "calls_beyond_the_top_level"
        if quantities.get("web_search_calls", 0) != row.counts.get("web_searches", 0):
            return "searches_uncounted"
        if quantities.get("cache_read_tokens", 0) != row.counts.get("cache_read_tokens", 0):
            return "cache_reads_uncounted"
        if quantities.get("cache_write_other_tokens", 0) != row.counts.get("cache_write_tokens", 0):
            return "cache_writes_uncounted"
        return "amount"
    if ours.why == "no_card" and not counted.calls:
        return "free_by_absence" if not row.total_price else "no_card"
    return f"no_price:{ours.why}"


def _counts_agree(row: Expectation, counted: Counted) -> bool:
    """Say whether input, output and what was read from a cache are the library's, where it states them."""
    quantities = counted.quantities or {}
    ours = {"input_tokens": counted.input_tokens, "output_tokens": counted.output_tokens}
    ours["cache_read_tokens"] = sum(n for name, n in quantities.items() if name.startswith("cache_read_"))
    ours["output_reasoning_tokens"] = quantities.get("reasoning_tokens", 0)
    return all(count == row.counts[name] for name, count in ours.items() if name in row.counts)


def judge_expectations(billed: Callable[[Expectation, Counted], Bill] = bill) -> Judged:
    """Read and price the object of every expectation, and hold the amount against the library's, digit for digit."""
    judged = Judged()
    for row in expectations():
        counted = read_usage(row.flavour, row.usage)
        said = f"expectation {row.number} of {row.model}: {row.total_price} for {row.usage!r:.300}"
        judged.add(_why_expectation_differs(row, counted, billed), row.provider, row.api, said)
    return judged


# --- The verdict -----------------------------------------------------------------------------------------------------

AGREEING_MIN: Final = Decimal("0.95")
EXPLAINED_MAX: Final = Decimal("0.02")


def faults(recorded: Judged, priced: Judged) -> list[str]:
    """Say what of the oracle's promises does not hold."""
    found = [*recorded.unexplained, *priced.unexplained]
    if priced.kinds["agrees"] < AGREEING_MIN * priced.rows:
        found.append(f"{priced.kinds['agrees']} of {priced.rows} priced rows agree, which is below {AGREEING_MIN}")
    explained = sum(judged.kinds[kind] for judged in (recorded, priced) for kind in ("quantity", "price"))
    if explained > EXPLAINED_MAX * (recorded.rows + priced.rows):
        found.append(f"the reviewed table explains {explained} rows, which is above {EXPLAINED_MAX} of the corpus")
    counted = recorded.explained + priced.explained
    found += [
        f"the reviewed table says {rule.rows} rows of {rule.provider} {rule.api} differ by {rule.rule}, it is {counted[rule]}"
        for rule in reviewed()
        if counted[rule] != rule.rows
    ]
    return found


def report(recorded: Judged, priced: Judged) -> Iterable[str]:
    """Yield the oracle's lines."""
    compared = sum(not row.sees_output for row in expectations())
    headings = (
        "",
        "rows",
        "agreeing",
        "explained by quantity",
        "explained by price",
        "quarantined",
        "without usage",
        "unexplained",
    )
    kinds: tuple[Kind, ...] = ("agrees", "quantity", "price", "quarantined", "nothing", "unexplained")
    yield " | ".join(headings)
    for name, judged in (("recorded responses", recorded), ("priced expectations", priced)):
        yield " | ".join([name, str(judged.rows), *(str(judged.kinds[kind]) for kind in kinds)])
    share = Decimal(priced.kinds["agrees"]) / max(priced.rows, 1)
    yield f"{share:.2%} of the priced rows agree to the digit ({compared} of the rows state the price of the input alone)"
