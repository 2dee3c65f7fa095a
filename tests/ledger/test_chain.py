"""The chain: what was posted can be hashed again from the tables, and a row that was changed shows."""

from datetime import date
from hashlib import sha256
from typing import Any

import pytest

from ledger import chain
from tests.factories import NODE, make_event
from tests.support.ledger import Ledger

GOLDEN = (
    b"version 1\n"
    b"feed kafka:cluster:topic:0\n"
    b"number 2\n"
    b"previous 00ff\n"
    b"positions 5 9\n"
    b"count created 3\n"
    b"count duplicate 1\n"
    b"digest 2026-01-01 aa\n"
    b"digest 2026-02-01 bb\n"
)


def test_the_bytes_under_a_batch_hash() -> None:
    """Golden: whoever changes them must raise the version, or no old chain can be checked again."""
    made = chain.batch_hash(
        feed="kafka:cluster:topic:0",
        number=2,
        previous_hash=b"\x00\xff",
        first_position=5,
        next_position=9,
        counts={"duplicate": 1, "created": 3},
        digests={date(2026, 2, 1): b"\xbb", date(2026, 1, 1): b"\xaa"},
    )
    assert made == sha256(GOLDEN).digest()
    assert made.hex() == "2b62e8a46a5cb793866799fc64424bc40bd2e70bcfeb8675dae8c03ccd3cb52b"


def test_the_first_batch_has_no_predecessor_and_a_feed_may_have_no_positions() -> None:
    made = chain.batch_hash(
        feed="api:a", number=1, previous_hash=b"", first_position=None, next_position=None, counts={}, digests={}
    )
    assert made == sha256(b"version 1\nfeed api:a\nnumber 1\nprevious \npositions - -\n").digest()


def test_the_bytes_of_row_marks() -> None:
    """Golden: CRC-32 as zlib and PNG have it; "123456789" is cbf43926 by its definition."""
    assert chain.row_marks([b"123456789", b"a\n"]).hex() == "cbf43926" + "ddeaa107"
    assert chain.row_marks([]) == b""


LINES = [b"one\n", b"two\n", b"three\n", b"four\n"]


@pytest.mark.parametrize(
    ("now", "found"),
    [
        (LINES, None),
        ([b"One\n", *LINES[1:]], ("changed", 0)),
        ([*LINES[:3], b"Four\n"], ("changed", 3)),
        (LINES[1:], ("missing", 0)),
        ([LINES[0], *LINES[2:]], ("missing", 1)),
        (LINES[:3], ("missing", 3)),
        ([], ("missing", 0)),
        ([LINES[0], b"new\n", *LINES[1:]], ("added", 1)),
        ([*LINES, b"new\n"], ("added", 4)),
        ([LINES[1], LINES[0], *LINES[2:]], ("missing", 0)),
        ([LINES[0], b"x\n", b"y\n", LINES[3]], ("changed", 1)),
    ],
)
def test_the_first_row_that_differs_is_found_by_its_mark(now: list[bytes], found: tuple[str, int] | None) -> None:
    assert chain.first_difference(now, chain.row_marks(LINES)) == found


COUNTS = ("created", "duplicate", "evidence", "conflict", "dead_letter", "entry")


def recomputed(ledger: Ledger) -> list[tuple[str, int, str]]:
    """Batches and periods whose stored digest or hash is not what the tables give: (feed, number, what)."""
    printed = ledger.printed()
    wrong: list[tuple[str, int, str]] = []
    heads: dict[str, bytes] = {}
    digests: dict[int, dict[date, bytes]] = {}
    for batch_id, period, digest in ledger.rows("select batch_id, posting_period, digest from ledger.batch_digests"):
        digests.setdefault(batch_id, {})[period] = bytes(digest)
    for row in ledger.rows(
        "select b.batch_id, f.name, b.number, b.first_position, b.next_position, b.previous_hash, b.hash,"
        f" {', '.join(f'{name}_count' for name in COUNTS)}"
        " from ledger.batches as b join ledger.feeds as f using (feed_id) order by f.name, b.number"
    ):
        batch_id, feed, number, first, following, previous, stored, *counts = row
        mine = digests.get(batch_id, {})
        periods = {period for batch, period in printed if batch == batch_id} | set(mine)
        wrong += [
            (feed, number, f"digest {period}")
            for period in periods
            if chain.digest(printed.get((batch_id, period), b"")) != mine.get(period)
        ]
        made = chain.batch_hash(
            feed=feed,
            number=number,
            previous_hash=heads.get(feed, b""),
            first_position=first,
            next_position=following,
            counts=dict(zip(COUNTS, counts, strict=True)),
            digests=mine,
        )
        if made != bytes(stored) or bytes(previous) != heads.get(feed, b""):
            wrong.append((feed, number, "hash"))
        heads[feed] = bytes(stored)
    for feed, last_hash in ledger.rows("select name, last_hash from ledger.feeds"):
        if bytes(last_hash) != heads.get(feed, b""):
            wrong.append((feed, 0, "head"))
    return wrong


NASTY = "tab\t back\\slash \\N \n\r\b\f\v \x7f\x85\u2028 'quoted' \"twice\" {a,b} \U0001f600 é"


async def post_all_kinds(ledger: Ledger) -> None:
    """Three batches on two feeds: two periods, a true-up, evidence, an unknown model, a cache hit, a rare meter, nasty texts."""
    await ledger.add_price(input="2.37", output="8.11", cached="0.237", web_search_calls="10000", markup="1.17")
    said: dict[str, Any] = {"feature": NASTY, "route": "\\N", "tags": {NASTY: NASTY, "b": "", "": "x"}, "lane": "batch"}
    await ledger.post(
        make_event("a", request_id="r", source=NODE, time="2026-01-15T10:00:00.000001Z", **said),
        make_event("b", request_id="r", user_hash=NASTY, latency_ms=5, attempt=2, max_output_tokens=9),
        make_event("c", request_id="r", source=NODE, revision=9),
        make_event("d", model="m-what"),
        make_event("e", cache_result="exact_hit", time="2025-12-31T23:59:59.999999Z"),
        make_event("f", flavour=..., quantities={"web_search_calls": 3, "uncached_input_audio_tokens": 2}),
        make_event("g", usage=None, local_estimate={"uncached_input_tokens": 5}),
        make_event("h", usage={"prompt_tokens": 5, "completion_tokens": 5, "total_tokens": 99}),
    )
    await ledger.post(make_event("a", request_id="r"), make_event("z", tenant_id="t-nobody"))
    await ledger.post(make_event("i"), feed="api:one")


async def test_digests_and_hashes_are_made_again_from_the_tables(ledger: Ledger) -> None:
    await post_all_kinds(ledger)
    assert ledger.value("select count(distinct posting_period) from ledger.entries") == 2
    assert {kind for (kind,) in ledger.rows("select kind from ledger.entries")} == {"usage", "true_up", "evidence"}
    assert recomputed(ledger) == []


async def test_the_sums_beside_a_digest_are_those_of_its_rows(ledger: Ledger) -> None:
    await post_all_kinds(ledger)
    for book in ("cost", "charge"):
        stated = ledger.rows(
            f"select batch_id, posting_period, s.key, s.value::numeric from ledger.batch_digests,"
            f" jsonb_each_text({book}_sums) as s order by 1, 2, 3"
        )
        summed = ledger.rows(
            f"select batch_id, posting_period, {book}_currency, sum({book}_amount) from ledger.entries"
            f" where {book}_amount is not null and {book}_currency is not null group by 1, 2, 3 order by 1, 2, 3"
        )
        assert stated == summed


@pytest.mark.parametrize(
    "change",
    [
        "update ledger.entries set charge_amount = charge_amount + 0.000001 where request_id = 'req-i'",
        "update ledger.entries set tags = '{}' where request_id = 'r' and kind = 'usage'",
        "delete from ledger.entries where request_id = 'req-i'",
        "update ledger.entries set recorded_at = recorded_at + interval '1 microsecond' where request_id = 'req-d'",
        "update ledger.batches set duplicate_count = 7 where number = 2",
        "update ledger.batches set hash = previous_hash where number = 2",
        "update ledger.feeds set last_hash = '' where name = 'api:one'",
    ],
)
async def test_what_was_changed_shows(ledger: Ledger, change: str) -> None:
    await post_all_kinds(ledger)
    ledger.superuser.execute("set session_replication_role = replica")
    changed = ledger.superuser.execute(change).rowcount
    assert changed
    assert recomputed(ledger) != []
