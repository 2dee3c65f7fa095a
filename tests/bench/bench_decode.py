"""Bytes to a priced batch, per flavour, against bare msgspec decoding of the same bytes into the same structs.

The candidate does all that comes before the transaction: decode, check, trust, keys, content hash, meters, prices in both
books, and the lines of the rows. The usage objects are recorded ones where recordings exist, each flavour's own; a flavour
without recordings has a small object of its own. Nothing waits for a database.
"""

import asyncio
import json
import time
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from ingest.flavours import FLAVOURS
from ingest.intake import ease_collection
from ingest.usage_events import read_events
from ingest.wire import decode_pack
from ledger.books import Books
from ledger.meters import METERS
from ledger.parties import Calendar, Model
from ledger.posting import Missing, Priced, prepare
from ledger.price_book import Price, PriceBook
from ledger.statements import Statement
from tests.bench.harness import Comparison, Timed, compare, size
from tests.factories import NOW, make_event, make_parties
from tests.ledger.prices import make_card
from tests.oracle.corpus import recordings
from tests.oracle.run import read_recording
from tests.support.bench_usages import SMALL

PACK = 100
# The flavours that most traffic has; ALL=1 measures every one.
USUAL = (
    "openai.chat", "openai.responses", "anthropic.messages", "gemini.generate_content", "bedrock.converse", "vllm.chat",
    "xai.chat", "litellm.standard",
)  # fmt: skip


def usages(flavour: str) -> list[dict[str, Any]]:
    """Return what events of a flavour say: the recorded objects that can be read and priced, or a small one."""
    found: list[dict[str, Any]] = []
    for row in recordings():
        if row.flavour == flavour and row.frames:
            read = read_recording(row)
            if isinstance(read, Statement) or (getattr(read, "is_priceable", False) and not getattr(read, "calls", ())):
                found.append({"usage_frames": row.frames} if row.is_stream else {"usage": row.frames[0]})
    return found or [{"usage": SMALL[flavour]}]


def packs(flavour: str, events: int) -> list[bytes]:
    """Return messages of a flavour's events, whose recorded objects come in turn."""
    said = usages(flavour)
    texts = []
    for number in range(events):
        event = make_event(
            f"0198c0de-0000-7000-8000-{number:012x}",
            request_id=f"0198c0de-0001-7000-8000-{number:012x}",
            flavour=flavour,
            trace_id=f"{number:032x}",
            latency_ms=900,
            ttft_ms=80,
            service_tier="standard",
            **({"usage": ...} if "usage_frames" in said[number % len(said)] else {}),
            **said[number % len(said)],
        )
        texts.append(json.dumps(event, separators=(",", ":"), default=_number))
    return [("[" + ",".join(texts[at : at + PACK]) + "]").encode() for at in range(0, events, PACK)]


def _number(value: Any) -> Any:
    # Only written here, for the senders' side: they have floats.
    return float(value) if isinstance(value, Decimal) else str(value)


def books() -> Books:
    """Return books with a price for every meter, so that everything is priced."""
    rates = {name: Price(Decimal("0.25"), 1_000_000) for name in METERS}
    cost = make_card(rates, effective_at="2020-01-01T00:00:00Z", other_tiers="use_base_rates")
    charge = make_card(book="charge", model=None, markup=Decimal("1.2"), effective_at="2020-01-01T00:00:00Z")
    return Books(
        make_parties(models=[("m-sub", Model("openai", "m-sub"))]), Calendar(1, {}), PriceBook(1, [cost, charge])
    )


def timed(bodies: list[bytes], events: int, work: Callable[[bytes], int]) -> Timed:
    """Return a run of some work over all messages, in events a second."""

    async def run() -> float:
        started = time.perf_counter()
        done = 0
        for body in bodies:
            done += work(body)
        seconds = time.perf_counter() - started
        assert done == events
        await asyncio.sleep(0)
        return events / seconds

    return run


async def run() -> list[Comparison]:
    events = size("EVENTS", 5_000)
    names = list(FLAVOURS) if size("ALL", 0) else list(USUAL)
    print(f"    {events:,} events a run, packs of {PACK}, {len(names)} flavours (ALL=1 measures every one)", flush=True)
    ease_collection()
    with_prices = books()

    def candidate(body: bytes) -> int:
        prepared = prepare(with_prices, read_events(body, with_prices.parties, NOW), Missing())
        return sum(
            1
            for item in prepared
            if isinstance(item, Priced) and all(entry.cost.amount is not None for entry in item.entries)
        )

    def baseline(body: bytes) -> int:
        return len(decode_pack(body))

    found = []
    for name in names:
        bodies = packs(name, events)
        name = f"decode, {name} ({len(bodies[0]) // PACK:,} bytes an event)"
        found.append(await compare(name, "events", timed(bodies, events, baseline), timed(bodies, events, candidate)))
    return found
