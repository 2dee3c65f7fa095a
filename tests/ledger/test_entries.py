"""Entries: the lines that are written are the lines that Postgres prints back, whatever stands in them."""

from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ledger.entries import COLUMNS, UNPRICED, Entry, Money, jsonb_text, line, tail
from ledger.meters import METERS
from ledger.statements import DIMENSIONS, Statement
from ledger.tables import ENTRY_COLUMNS
from ledger.times import postgres_text
from tests.factories import make_event
from tests.support.databases import Database
from tests.support.ledger import Ledger
from tests.support.soak import examples

KEY = "0192f0c1-0000-7000-8000-000000000001"


def test_the_columns_are_those_of_the_table() -> None:
    assert tuple(column.name for column in ENTRY_COLUMNS) == COLUMNS


def test_the_columns_are_those_of_the_database(ledger: Ledger) -> None:
    rows = ledger.rows(
        "select attname from pg_attribute where attrelid = 'ledger.entries'::regclass and attnum > 0 and not attisdropped"
        " order by attnum"
    )
    assert tuple(name for (name,) in rows) == COLUMNS


# --- What goes in comes back --------------------------------------------------------------------------------------------

NASTY = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12),
    st.text("\\N\t\n\r\b\f\v.,{}\"' \x7f\u0085\u2028\U0001f600é", max_size=8),
    st.sampled_from(["\\N", "\\.", "", " ", "null", "NULL", "\\", "\\\\", "\\t", "{}", '"', "a\tb"]),
)
COUNT = st.integers(-(2**40), 2**40)
AMOUNT = st.one_of(
    st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**12), max_value=10**12, places=15),
    st.sampled_from([Decimal(t) for t in ("0", "-0", "0.000", "-0.00", "1E+3", "1E-18", "2.50", "-0.0000000001")]),
)
INSTANT = st.one_of(
    st.integers(1_577_836_800_000_000, 4_000_000_000_000_000),
    st.sampled_from([1_577_836_800_000_000, 1_769_903_999_999_999, 1_769_904_000_000_000, 1_769_904_000_100_000]),
)
SMALL = st.none() | st.integers(0, 32_767)
BIG = st.none() | st.integers(0, 2**63 - 1)
QUANTITIES = st.none() | st.dictionaries(st.sampled_from(sorted(METERS)), COUNT, max_size=6)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**9), max_value=10**9, places=6)
    | NASTY,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NASTY, inner, max_size=3),
    max_leaves=8,
)
FLAGS = st.lists(st.sampled_from(["usage_missing", "total_differs", "tier_assumed"]), unique=True).map(tuple)
UNPRICED_BY = st.lists(st.sampled_from(["cost:no_card", "charge:usage", "cost:images"]), unique=True).map(tuple)
MONEY = st.just(UNPRICED) | st.builds(
    Money, st.none() | AMOUNT, st.sampled_from(["USD", "EUR", "JPY"]), st.none() | st.integers(1, 2**62)
)


@st.composite
def entries(draw: st.DrawFn) -> Entry:
    texts: list[Any] = [draw(st.none() | NASTY) for _ in DIMENSIONS]
    for name in ("tenant_id", "sent_tenant_id", "source", "language", "status", "basis"):
        texts[DIMENSIONS.index(name)] = draw(NASTY)
    statement = Statement(
        event_key=KEY,
        content_hash=KEY,
        request_key=draw(st.none() | st.just(KEY)),
        rank=(0, 1, 1, 1, 20, 0),
        occurred_at=0,
        dimensions=tuple(texts),
        parts=(),
        status="ok",
        sequence=draw(BIG),
        revision=draw(st.integers(0, 2**31 - 1)),
        is_final=draw(st.booleans()),
        reservation_open=draw(st.booleans()),
        max_output_tokens=draw(BIG),
        delivered_output_tokens=draw(BIG),
        provider_calls=draw(SMALL),
        latency_ms=draw(BIG),
        ttft_ms=draw(BIG),
        queue_ms=draw(BIG),
        prefill_ms=draw(BIG),
        decode_ms=draw(BIG),
    )
    tags = draw(st.none() | st.dictionaries(NASTY, NASTY, min_size=1, max_size=4))
    return Entry(
        statement=statement,
        kind=draw(st.sampled_from(["usage", "true_up"])),
        entry_no=draw(st.integers(0, 32_767)),
        occurred_at=draw(INSTANT),
        local_date=draw(st.dates(date(2020, 1, 1), date(2099, 12, 31))),
        dimensions=tuple(texts),
        subject_id=draw(st.none() | st.just(KEY)),
        request_count=draw(st.integers(-1, 1)),
        quantities=draw(QUANTITIES),
        cost=draw(MONEY),
        charge=draw(MONEY),
        flags=draw(FLAGS),
        unpriced=draw(UNPRICED_BY),
        avoided_tokens=draw(st.none() | COUNT),
        reported=draw(st.none() | st.dictionaries(NASTY, JSON, max_size=3)),
        corrects_entry_id=draw(BIG),
        tags=jsonb_text(tags) if tags else None,
        attempt=draw(SMALL),
        raw_digest=draw(st.none() | st.just(KEY)),
        reason=draw(st.none() | NASTY),
        actor=draw(st.none() | NASTY),
    )


@pytest.fixture
def scratch(database: Database) -> Iterator[psycopg.Connection]:
    """A session like the writer's with a table of the entries' columns and nothing else."""
    with database.connect(autocommit=True) as connection:
        connection.execute("set timezone = 'UTC'")
        connection.execute("create temporary table copied (like ledger.entries)")
        yield connection


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(listed=st.lists(entries(), min_size=1, max_size=3))
def test_a_line_is_what_postgres_prints(scratch: psycopg.Connection, listed: list[Entry]) -> None:
    """So that a digest of lines made while posting can be made again from the table."""
    recorded = postgres_text(1_769_904_000_000_001)
    lines = "".join(
        line(entry, tail(entry), number, "2026-01-01\t7", postgres_text(entry.occurred_at), recorded)
        for number, entry in enumerate(listed, 1)
    ).encode()
    scratch.execute("truncate copied")
    columns = ", ".join(COLUMNS)
    with scratch.cursor().copy(f"copy copied ({columns}) from stdin") as copy:
        copy.write(lines)
    with scratch.cursor().copy(f"copy (select {columns} from copied order by entry_id) to stdout") as copy:
        printed = b"".join(bytes(data) for data in copy)
    assert printed == lines


@settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=JSON)
def test_json_is_written_as_jsonb_prints_it(scratch: psycopg.Connection, value: Any) -> None:
    row = scratch.execute("select %s::jsonb::text", [jsonb_text(value)]).fetchone()
    assert row == (jsonb_text(value),)


# --- Lines of an entry --------------------------------------------------------------------------------------------------

SUMS = """
    select count(*) from ledger.entries as e
    where (
        select coalesce(sum(l.amount), 0) from ledger.entry_lines as l
        where l.entry_id = e.entry_id and l.posting_period = e.posting_period and l.book = '{book}'
    ) is distinct from coalesce(e.{book}_amount, 0)
"""


@pytest.mark.parametrize("book", ["cost", "charge"])
async def test_lines_sum_to_their_entry(ledger: Ledger, book: str) -> None:
    """Uncached, cached, written, reasoning and rare meters; a true-up with negative lines; a markup of 1.17."""
    await ledger.add_price(
        input="2.37", output="8.11", cached="0.237", write_5m="2.9625", reasoning="9.13", web_search_calls="10000",
        markup="1.17",
    )  # fmt: skip
    counts = {
        "uncached_input_tokens": 1013, "cache_read_tokens": 77, "cache_write_5m_tokens": 13, "visible_output_tokens": 311,
        "reasoning_tokens": 29, "web_search_calls": 3,
    }  # fmt: skip
    await ledger.post(
        make_event("ev-1", request_id="r", flavour=..., quantities=counts, final=False),
        make_event("ev-2", request_id="r", flavour=..., quantities={**counts, "reasoning_tokens": 5}, final=True),
    )
    assert ledger.value("select count(*) from ledger.entries") == 2
    assert ledger.value("select count(*) from ledger.entry_lines where quantity < 0") == 2
    assert ledger.value(SUMS.format(book=book)) == 0


async def test_b056_small_amounts_are_not_rounded_before_they_are_summed(ledger: Ledger) -> None:
    """12 x 0.02 / 1,000,000 = 0.00000024; a thousand of them are 0.00024, and a million would be 0.24."""
    await ledger.add_price("m-embed", input="0.02")
    await ledger.post(
        *(
            make_event(
                f"ev-{number}", model="m-embed", requested_model="m-embed", flavour=...,
                quantities={"uncached_input_tokens": 12},
            )
            for number in range(1000)
        )
    )  # fmt: skip
    assert ledger.rows("select distinct charge_amount from ledger.entries") == [(Decimal("0.00000024"),)]
    assert ledger.total() == Decimal("0.00024")
    assert ledger.total() * 1000 == Decimal("0.24")


async def test_the_columns_of_the_sides_are_sums_of_their_meters(ledger: Ledger) -> None:
    """Rare meters count into input and output as well: 10 + 7 in, 3 + 2 out."""
    counts = {
        "uncached_input_tokens": 10, "uncached_input_audio_tokens": 7, "visible_output_tokens": 3,
        "visible_output_audio_tokens": 2, "web_search_calls": 1,
    }  # fmt: skip
    await ledger.post(make_event(flavour=..., quantities=counts))
    assert ledger.rows("select input_tokens, output_tokens, other_quantities from ledger.entries") == [
        (17, 5, {"uncached_input_audio_tokens": 7, "visible_output_audio_tokens": 2, "web_search_calls": 1})
    ]


async def test_nasty_texts_are_kept_as_sent(ledger: Ledger) -> None:
    said = 'tab\there "quoted" back\\slash \\N new\nline \u2028 \U0001f600'
    await ledger.post(make_event(feature=said, route="\\N", tags={said: said, "b": "", "aa": "\\"}))
    assert ledger.rows("select feature, route, tags from ledger.entries") == [
        (said, "\\N", {said: said, "b": "", "aa": "\\"})
    ]
