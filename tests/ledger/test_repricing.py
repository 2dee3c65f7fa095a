"""A price corrected for the past posts the difference once, and what was known before can still be told."""

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ingest.usage_events import read_events
from ledger.books import Books
from ledger.database import Connection, connect
from ledger.entries import Entry, Standing, standing
from ledger.meters import COLUMN_METERS
from ledger.parties import Calendar
from ledger.posting import Known, Missing, price_statement
from ledger.price_book import Card, PriceBook
from ledger.price_store import read_cards
from ledger.repricing import Repriced, Scope, amounts_known_at, preview, reprice, rows_for
from ledger.statements import Part, Statement
from ledger.times import parse_rfc3339
from ledger.true_ups import fold
from tallystick.verify import verify
from tests.factories import NODE, NOW, event_bytes, make_event, make_parties
from tests.ledger.prices import band, make_card, per_million
from tests.support.ledger import Ledger, now

EVERYTHING = Scope()
V1 = make_card(per_million(input="0.40", output="0.80"), model="m-deep", effective_at="2025-12-01T00:00:00Z")
V2 = make_card(
    per_million(input="1.00", output="2.00"),
    model="m-deep",
    effective_at="2025-12-01T00:00:00Z",
    replaces=V1.content_hash,
)
V3 = make_card(
    per_million(input="0.40", output="0.80"),
    model="m-deep",
    effective_at="2025-12-01T00:00:00Z",
    replaces=V2.content_hash,
)
AT_COST = make_card(book="charge", model=None, markup=Decimal(1), effective_at="2020-01-01T00:00:00Z")


async def deep(ledger: Ledger, *cards: Card) -> None:
    ledger.add_model("m-deep")
    for card in (*(cards or (V1,)), AT_COST):
        await ledger.add_card(card)


def call(event_id: str = "e", **others: Any) -> dict[str, Any]:
    """10,000 tokens in, 5,000 out: 0.008 under version 1, 0.02 under version 2."""
    counts = {"prompt_tokens": 10_000, "completion_tokens": 5_000, "total_tokens": 15_000}
    return make_event(event_id, **{"model": "m-deep", "requested_model": "m-deep", "usage": counts, **others})


async def run(operator: Connection, writer: Connection, scope: Scope = EVERYTHING) -> Repriced:
    return await reprice(operator, writer, scope, actor="finance@example", reason="the source was misread")


def proof(ledger: Ledger) -> list[str]:
    return [failure.text for failure in verify(ledger.database.url_for("tallystick_operator")).failures]


async def test_the_difference_is_posted_once_with_reason_run_and_what_it_corrects(
    ledger: Ledger, operator: Connection, writer: Connection
) -> None:
    """0.02 - 0.008 = 0.012 in two rows: the old group taken back, the new one given."""
    await deep(ledger)
    await ledger.post(call())
    await ledger.add_card(V2)
    done = await run(operator, writer)
    assert (done.looked_at, done.requests, done.entries) == (1, 1, 2)
    asked = (
        "select kind, e.cost_amount, e.charge_amount, request_count, input_tokens, corrects_entry_id is not null, reason,"
        " actor, reported, s.card_hash::text, occurred_at = '2026-01-15 10:00:00+00' from ledger.entries as e"
        " join ledger.rate_sets as s on s.rate_set_id = e.cost_rate_set_id order by e.cost_amount"
    )
    given = ("the source was misread", "finance@example", {"run": done.run})
    assert ledger.rows(asked) == [
        ("adjustment", Decimal("-0.008"), Decimal("-0.008"), -1, -10_000, True, *given, V1.content_hash, True),
        ("usage", Decimal("0.008"), Decimal("0.008"), 1, 10_000, False, None, None, None, V1.content_hash, True),
        ("adjustment", Decimal("0.02"), Decimal("0.02"), 1, 10_000, True, *given, V2.content_hash, True),
    ]
    assert ledger.rows("select act, actor, reason from ledger.acts") == [
        ("prices.reprice", "finance@example", "the source was misread")
    ]
    again = await run(operator, writer)
    assert (again.looked_at, again.requests, again.entries) == (1, 0, 0)
    assert ledger.total() == Decimal("0.02")
    assert ledger.value("select sum(amount) from ledger.entry_lines where book = 'charge'") == Decimal("0.02")
    assert ledger.budgets_that_differ() == []
    assert proof(ledger) == []


async def test_a_preview_says_what_a_run_does_and_writes_nothing(
    ledger: Ledger, operator: Connection, writer: Connection
) -> None:
    ledger.add_tenant("t-beta")
    await deep(ledger)
    await ledger.post(
        call("a"), call("b", time="2025-12-31T23:00:00Z"), call("c", tenant_id="t-beta"), call("d", tenant_id="t-beta")
    )
    await ledger.add_card(V2)
    found = await preview(operator, EVERYTHING)
    assert (found.looked_at, found.requests, found.entries, found.unclear) == (4, 4, 8, [])
    assert [
        (each.tenant_id, each.book, each.month, each.requests, each.before, each.after, each.difference)
        for each in found.effects
        if each.book == "charge"
    ] == [
        ("t-alpha", "charge", date(2025, 12, 1), 1, Decimal("0.008"), Decimal("0.02"), Decimal("0.012")),
        ("t-alpha", "charge", date(2026, 1, 1), 1, Decimal("0.008"), Decimal("0.02"), Decimal("0.012")),
        ("t-beta", "charge", date(2026, 1, 1), 2, Decimal("0.016"), Decimal("0.04"), Decimal("0.024")),
    ]
    assert ledger.value("select count(*) from ledger.entries") == 4
    done = await run(operator, writer)
    assert (done.requests, done.entries) == (found.requests, found.entries)
    assert (await preview(operator, EVERYTHING)).effects == []


async def test_a_scope_is_by_time_tenant_and_model(ledger: Ledger, operator: Connection, writer: Connection) -> None:
    ledger.add_tenant("t-beta")
    await deep(ledger)
    await ledger.post(call("a"), call("b", tenant_id="t-beta"), call("c", time="2026-01-15T09:59:59.999999Z"))
    await ledger.add_card(V2)
    at = parse_rfc3339("2026-01-15T10:00:00Z")
    scopes = [
        Scope(since=at),
        Scope(until=at),
        Scope(tenant_id="t-beta"),
        Scope(model="m-deep"),
        Scope(model="m-other"),
        Scope(since=at, tenant_id="t-alpha", model="m-deep"),
    ]
    assert [(await preview(operator, scope)).requests for scope in scopes] == [2, 1, 1, 3, 0, 1]
    assert (await run(operator, writer, Scope(until=at))).requests == 1
    assert (await run(operator, writer)).requests == 2


async def test_there_and_back_nets_to_zero(ledger: Ledger, operator: Connection, writer: Connection) -> None:
    await deep(ledger)
    await ledger.post(call("a"), call("b", usage={"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}))
    before = ledger.total()
    for card in (V2, V3):
        await ledger.add_card(card)
        assert (await run(operator, writer)).entries == 4
    assert ledger.total() == before
    assert ledger.value("select sum(cost_amount) from ledger.entries where kind = 'adjustment'") == 0
    assert ledger.requests("request_id") == {"req-a": (1, Decimal("0.008")), "req-b": (1, Decimal("0.0000052"))}
    assert ledger.budgets_that_differ() == []
    assert proof(ledger) == []


async def test_the_report_as_it_was_known_then_is_still_produced(
    ledger: Ledger, operator: Connection, writer: Connection
) -> None:
    """By the entries recorded until then; the book as it was known then prices the same."""
    await deep(ledger)
    await ledger.post(call())
    then = now()
    await ledger.add_card(V2)
    await run(operator, writer)

    async def known(at: int) -> list[tuple[Any, ...]]:
        found = await amounts_known_at(operator, at, Scope(tenant_id="t-alpha"))
        return [(each.month, each.amount, each.requests, each.unpriced) for each in found if each.book == "charge"]

    assert await known(then) == [(date(2026, 1, 1), Decimal("0.008"), 1, 0)]
    assert await known(now()) == [(date(2026, 1, 1), Decimal("0.02"), 1, 0)]
    assert await known(parse_rfc3339("2026-01-01T00:00:00Z")) == []


async def test_a_closed_month_is_corrected_in_the_earliest_open_one(
    ledger: Ledger, operator: Connection, writer: Connection
) -> None:
    await deep(ledger)
    await ledger.post(call(time="2025-12-20T00:00:00Z"))
    ledger.close_period("t-alpha", date(2025, 12, 1)).close_period("t-alpha", date(2026, 1, 1))
    await ledger.add_card(V2)
    await run(operator, writer)
    asked = "select kind, posting_period, local_date, sum(charge_amount) from ledger.entries group by 1, 2, 3 order by 1 desc"
    assert ledger.rows(asked) == [
        ("usage", date(2025, 12, 1), date(2025, 12, 20), Decimal("0.008")),
        ("adjustment", date(2026, 2, 1), date(2025, 12, 20), Decimal("0.012")),
    ]
    assert proof(ledger) == []


async def test_a_card_for_an_earlier_time_reprices_only_what_came_after_it(
    ledger: Ledger, operator: Connection, writer: Connection
) -> None:
    await deep(ledger)
    await ledger.post(call("before", time="2026-01-09T23:59:59.999999Z"), call("at", time="2026-01-10T00:00:00Z"))
    later = make_card(per_million(input="1.00", output="2.00"), model="m-deep", effective_at="2026-01-10T00:00:00Z")
    await ledger.add_card(later)
    assert (await run(operator, writer)).requests == 1
    assert ledger.requests("request_id") == {"req-before": (1, Decimal("0.008")), "req-at": (1, Decimal("0.02"))}


async def test_a_price_that_says_the_same_posts_nothing(
    ledger: Ledger, operator: Connection, writer: Connection
) -> None:
    await deep(ledger)
    await ledger.post(call())
    same = make_card(
        per_million(input="0.40", output="0.80", cached="0.1"),
        model="m-deep",
        effective_at="2025-12-01T00:00:00Z",
        replaces=V1.content_hash,
    )
    await ledger.add_card(same)
    assert (await run(operator, writer)).entries == 0


async def test_what_was_reported_twice_and_bettered_is_repriced_as_it_stands(
    ledger: Ledger, operator: Connection, writer: Connection
) -> None:
    """The node says 9,000 + 4,000, the gateway 10,000 + 5,000; a better report after the repricing is priced by today's book."""
    await deep(ledger)
    node = {"prompt_tokens": 9_000, "completion_tokens": 4_000, "total_tokens": 13_000}
    await ledger.post(call("n", id="n", source=NODE, request_id="req-e", usage=node, final=False))
    await ledger.post(call("e", final=False))
    await ledger.add_card(V2)
    assert (await run(operator, writer)).requests == 1
    assert ledger.total() == Decimal("0.02")
    more = {"prompt_tokens": 20_000, "completion_tokens": 5_000, "total_tokens": 25_000}
    await ledger.post(call("f", request_id="req-e", usage=more))
    assert ledger.total() == Decimal("0.03")
    assert (await run(operator, writer)).entries == 0
    assert ledger.value("select sum(request_count) from ledger.entries") == 1
    assert ledger.budgets_that_differ() == []
    assert proof(ledger) == []


async def test_usage_that_had_no_price_gets_one(ledger: Ledger, operator: Connection, writer: Connection) -> None:
    ledger.add_model("m-deep")
    await ledger.post(call("a"), call("b", usage=..., status="ok"))
    assert ledger.rows("select distinct unpriced_meters[1] from ledger.entries order by 1") == [
        ("charge:no_card",),
        ("charge:usage",),
    ]
    for card in (V1, AT_COST):
        await ledger.add_card(card)
    found = await preview(operator, EVERYTHING)
    assert [(each.book, each.currency, each.priced, each.after) for each in found.effects] == [
        ("charge", "USD", 1, Decimal("0.008")),
        ("cost", "USD", 1, Decimal("0.008")),
    ]
    assert (await run(operator, writer)).requests == 1
    assert ledger.requests("request_id") == {"req-a": (1, Decimal("0.008")), "req-b": (1, None)}, (
        "unknown counts stay so"
    )
    assert ledger.budgets_that_differ() == []
    assert proof(ledger) == []


async def test_a_fee_that_was_corrected_is_repriced_and_one_that_was_dropped_is_taken_back(
    ledger: Ledger, operator: Connection, writer: Connection
) -> None:
    def plan(fee: str | None, replaces: str | None = None) -> Card:
        rules = {"fee_per_operation": fee} if fee else {}
        return make_card(book="charge", model=None, markup=Decimal(1), billing_rules=rules, replaces=replaces)

    first = plan("0.01")
    second = plan("0.005", first.content_hash)
    third = plan(None, second.content_hash)
    ledger.add_model("m-deep")
    for card in (V1, first):
        await ledger.add_card(card)
    await ledger.post(call("a", operation_id="op"), call("b", operation_id="op"))
    totals = [ledger.total()]
    for card in (second, third):
        await ledger.add_card(card)
        await run(operator, writer)
        totals.append(ledger.total())
        assert proof(ledger) == []
    assert totals == [Decimal("0.026"), Decimal("0.021"), Decimal("0.016")]


async def test_a_fee_that_a_card_gains_for_the_past_is_booked_once_for_each_operation(
    ledger: Ledger, operator: Connection, writer: Connection
) -> None:
    """Two operations of three attempts at 0.008 each, and one that failed: 0.024 becomes 0.044 with two fees of 0.01."""
    ledger.add_model("m-deep")
    plan = make_card(book="charge", model=None, markup=Decimal(1))
    for card in (V1, plan):
        await ledger.add_card(card)
    failed = call("d", operation_id="op-3", status="error", usage=...)
    await ledger.post(
        call("a", operation_id="op"), call("b", operation_id="op"), call("c", operation_id="op-2"), failed
    )
    rules = {"fee_per_operation": "0.01"}
    await ledger.add_card(
        make_card(book="charge", model=None, markup=Decimal(1), billing_rules=rules, replaces=plan.content_hash)
    )
    found = await preview(operator, EVERYTHING)
    assert (found.requests, found.fees) == (0, 2)
    assert [(each.book, each.requests, each.difference) for each in found.effects] == [("charge", 2, Decimal("0.02"))]
    done = await run(operator, writer)
    assert done.entries == 2
    assert (await run(operator, writer)).entries == 0
    assert ledger.total() == Decimal("0.044")
    assert ledger.rows("select distinct reason, actor, reported from ledger.entries where kind = 'fee'") == [
        ("the source was misread", "finance@example", {"run": done.run})
    ]
    await ledger.post(call("e", operation_id="op-2"))
    assert ledger.value("select count(*) from ledger.entries where kind = 'fee'") == 2, "a later attempt makes no other"
    assert proof(ledger) == []


async def test_bands_are_chosen_by_the_input_of_the_request(
    ledger: Ledger, operator: Connection, writer: Connection
) -> None:
    await deep(ledger)
    await ledger.post(
        call("short", usage={"prompt_tokens": 100, "completion_tokens": 1, "total_tokens": 101}), call("long")
    )
    banded = make_card(
        per_million(input="0.40", output="0.80"),
        model="m-deep",
        effective_at="2025-12-01T00:00:00Z",
        bands=(band(">", 9_999, input="0.80", output="1.60"),),
        replaces=V1.content_hash,
    )
    await ledger.add_card(banded)
    await run(operator, writer)
    assert ledger.requests("request_id") == {"req-short": (1, Decimal("0.0000408")), "req-long": (1, Decimal("0.016"))}


async def test_two_runs_at_once_post_the_difference_once(ledger: Ledger, operator: Connection) -> None:
    await deep(ledger)
    await ledger.post(*(call(f"e{number}") for number in range(50)))
    await ledger.add_card(V2)

    async def one() -> int:
        async with (
            await connect(ledger.database.url_for("tallystick_operator")) as mine,
            await connect(ledger.database.url_for("tallystick_writer")) as writing,
        ):
            return (await run(mine, writing)).entries

    found = await asyncio.gather(one(), one(), return_exceptions=True)
    assert [each for each in found if isinstance(each, int) and each], found
    assert ledger.total() == 50 * Decimal("0.02")
    assert ledger.value("select count(*) from ledger.entries") == 150
    assert proof(ledger) == []


# --- Properties -------------------------------------------------------------------------------------------------------

counts = st.dictionaries(st.sampled_from(COLUMN_METERS), st.integers(min_value=0, max_value=10**12), min_size=1)
price = st.decimals(min_value=0, max_value=1000, places=9, allow_nan=False).filter(bool)


@given(parts=st.lists(counts, min_size=1, max_size=3), prices=st.lists(price, max_size=4), first=price)
def test_any_way_there_and_back_nets_to_zero_and_each_step_stands_at_its_price(
    parts: list[dict[str, int]], prices: list[Decimal], first: Decimal
) -> None:
    """Restate a price as often as you like and then as it was: the adjustments sum to nothing, in money and in counts."""
    chain: list[Card] = []
    for each in (first, *prices, first):
        last = chain[-1].content_hash if chain else None
        rates = per_million(input=f"{each:f}", output=f"{each:f}")
        chain.append(make_card(rates, missing_component="use_side_rate", replaces=last))

    def books(cards: list[Card]) -> Books:
        markup = make_card(book="charge", model=None, markup=Decimal("1.1"))
        return Books(make_parties(), Calendar(1, {}), PriceBook(1, [*cards, markup]))

    ids: dict[str, int] = {}

    def known(stands: list[Standing]) -> Known:
        return Known("key", 1, 1, NOW, (0, 1, 1, 1, 20, 0), fold(stands))

    (item,) = read_events(event_bytes(make_event()), make_parties(), NOW)
    assert isinstance(item, Statement)
    said = replace(item, occurred_at=NOW, parts=tuple(Part("m-sub", "m-sub", part) for part in parts))

    def with_ids(cards: list[Card], work: Callable[[Books, Missing], list[Entry]]) -> list[Entry]:
        while True:
            missing, here = Missing(), books(cards)
            here.rate_set_ids.update(ids)
            rows = work(here, missing)
            if not missing:
                return rows
            ids.update({content_hash: len(ids) + 1 + n for n, content_hash in enumerate(missing.rate_sets)})

    posted = with_ids(chain[:1], lambda here, missing: price_statement(here, said, NOW, "usage", missing))
    stands = [standing(entry) for entry in posted]
    adjusted: list[Entry] = []

    def corrected(cards: list[Card]) -> list[Entry]:
        return with_ids(
            cards,
            lambda here, missing: rows_for(here, known(stands), missing, origins={}, run="r", reason="", actor=""),
        )

    for number in range(2, len(chain) + 1):
        rows = corrected(chain[:number])
        adjusted += rows
        stands.extend(standing(row) for row in rows)
        assert corrected(chain[:number]) == []
        expected = with_ids(chain[:number], lambda here, missing: price_statement(here, said, NOW, "usage", missing))
        assert sum(s.cost_amount or 0 for s in fold(stands)) == sum(e.cost.amount or 0 for e in expected)
    assert sum((row.cost.amount or Decimal(0) for row in adjusted), Decimal(0)) == 0
    assert sum((row.charge.amount or Decimal(0) for row in adjusted), Decimal(0)) == 0
    assert sum(row.request_count for row in adjusted) == 0
    assert not any(_counted(adjusted).values())


def _counted(rows: list[Entry]) -> Counter[str]:
    total: Counter[str] = Counter()
    for row in rows:
        total.update(dict(row.quantities or {}))
    return total


async def test_many_corrections_of_chance_and_the_way_back_net_to_zero(
    ledger: Ledger, operator: Connection, writer: Connection
) -> None:
    """A chain of restated prices that ends as it began: whatever was between, every request costs what it did."""
    await deep(ledger)
    await ledger.post(
        *(
            call(f"e{n}", usage={"prompt_tokens": 97 * n, "completion_tokens": n, "total_tokens": 98 * n})
            for n in range(1, 8)
        )
    )
    before = ledger.requests("request_id")
    last = V1
    for price in ("3", "0.000001", "12.5", "0.40"):
        last = make_card(
            per_million(input=price, output="0.80" if price == "0.40" else "7"),
            model="m-deep",
            effective_at="2025-12-01T00:00:00Z",
            replaces=last.content_hash,
        )
        await ledger.add_card(last)
        await run(operator, writer)
    assert ledger.requests("request_id") == before
    assert ledger.value("select sum(charge_amount) from ledger.entries where kind = 'adjustment'") == 0
    assert len(await read_cards(operator, model="m-deep")) == 5
    assert proof(ledger) == []


BANDED = {"bands": (band(">", 200_000, input="6.00", output="22.50"),)}


def answer_of_two_calls(**others: Any) -> dict[str, Any]:
    """Two calls of 150,000 tokens inside one answer: each is below a threshold that their sum is above."""
    inner = {"type": "message", "input_tokens": 150_000, "output_tokens": 0}
    usage = {"input_tokens": 300_000, "output_tokens": 0, "iterations": [inner, inner]}
    said = {
        "provider": "anthropic",
        "flavour": "anthropic.messages",
        "model": "m-add",
        "requested_model": "m-add",
        "usage": usage,
    }
    return make_event("e", **{**said, **others})


async def two_calls(ledger: Ledger) -> list[Card]:
    """A card with a cliff, and what it is restated as: twice the price, and back."""
    first = make_card(per_million(input="3.00", output="15.00"), model="m-add", provider="anthropic", **BANDED)
    twice = (band(">", 200_000, input="12.00", output="45.00"),)
    second = make_card(
        per_million(input="6.00", output="30.00"),
        model="m-add",
        provider="anthropic",
        bands=twice,
        replaces=first.content_hash,
    )
    third = make_card(
        per_million(input="3.00", output="15.00"),
        model="m-add",
        provider="anthropic",
        **BANDED,
        replaces=second.content_hash,
    )
    ledger.add_model("m-add", provider="anthropic")
    await ledger.add_card(first)
    return [second, third]


async def test_each_call_inside_an_answer_is_repriced_in_its_own_band_there_and_back(
    ledger: Ledger, operator: Connection, writer: Connection
) -> None:
    """2 x 150,000 x 3 per million = 0.9, corrected to 1.8, and back."""
    corrections = await two_calls(ledger)
    await ledger.post(answer_of_two_calls())
    found = await preview(operator, EVERYTHING)
    assert (found.requests, found.unclear) == (0, [])
    totals = [ledger.total("cost")]
    for card in corrections:
        await ledger.add_card(card)
        await run(operator, writer)
        totals.append(ledger.total("cost"))
    assert totals == [Decimal("0.9"), Decimal("1.8"), Decimal("0.9")]
    assert proof(ledger) == []


async def test_parts_that_cannot_be_told_apart_any_more_are_left_and_listed(
    ledger: Ledger, operator: Connection, writer: Connection
) -> None:
    """A better report came, whose two calls share a grain: their sum would be in a band that neither of them is in."""
    corrections = await two_calls(ledger)
    node = {"input_tokens": 5, "output_tokens": 0}
    await ledger.post(answer_of_two_calls(id="n", source=NODE, usage=node, request_id="req-e"))
    await ledger.post(answer_of_two_calls(request_id="req-e"))
    assert ledger.total("cost") == Decimal("0.9")
    assert (await run(operator, writer)).entries == 0
    await ledger.add_card(corrections[0])
    found = await preview(operator, EVERYTHING)
    assert (found.requests, len(found.unclear)) == (0, 1)
    assert (await run(operator, writer)).entries == 0
    assert ledger.total("cost") == Decimal("0.9")
