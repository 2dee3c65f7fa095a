"""`verify` finds nothing where nothing was changed, and names what was, whoever changed it."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, date, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from ledger import closing, retention
from ledger.corrections import Request, Reverse, Wanted, correct
from ledger.database import connect
from tallystick.verify import Proof, publish_heads, verify
from tests.factories import NODE, make_event
from tests.quotas.support import set_budget
from tests.support.databases import Database
from tests.support.ledger import Ledger


@pytest.fixture
async def ledger(database: Database, months_template: str) -> AsyncIterator[Ledger]:
    """Two tenants, three batches: a request each, one reported twice, one of a model without a price, a dead letter."""
    made = Ledger(database)
    made.add_tenant().add_tenant("t-beta", zone="Europe/Berlin").add_source().add_node()
    await made.add_price(input="2.00", output="8.00")
    await made.post(make_event("a"), make_event("b", tenant_id="t-beta"))
    await made.post(
        make_event("n", source=NODE, request_id="req-c", usage={"prompt_tokens": 90, "completion_tokens": 9}),
        make_event("x", model="m-nobody-knows", requested_model="m-nobody-knows"),
    )
    await made.post(make_event("c", request_id="req-c"), make_event("bad", tenant_id="t-nobody"))
    # From here on no trigger stands in the way of whoever has the database's own rights.
    made.superuser.execute("set session_replication_role = replica")
    yield made
    made.close()


def proof(ledger: Ledger, **options: Path) -> Proof:
    return verify(ledger.database.url_for("tallystick_operator"), **options)


def parts(ledger: Ledger) -> dict[str, str]:
    """The first failure of each part."""
    found: dict[str, str] = {}
    for failure in proof(ledger).failures:
        found.setdefault(failure.part, failure.text)
    return found


async def test_an_untouched_ledger_holds(ledger: Ledger) -> None:
    result = proof(ledger)
    assert result.ok, result.failures
    assert dict(result.checked) == {"batches": 3, "entries": 6, "keys": 5, "requests": 4, "windows": 5, "documents": 0}
    # No rollup has run: said, and not failed.
    assert [note.split()[0] for note in result.notes] == ["fct_usage_15min", "fct_usage_hourly", "fct_cost_daily"]


async def test_an_empty_ledger_holds(database: Database) -> None:
    assert verify(database.url_for("tallystick_operator")).ok


async def test_what_is_posted_while_the_proof_runs_does_not_disturb_it(ledger: Ledger) -> None:
    ledger.superuser.execute("set session_replication_role = origin")
    url = ledger.database.url_for("tallystick_operator")
    loop = asyncio.get_running_loop()

    def post(part: str) -> None:
        """Post a better statement of a known request, and a new request, between one part of the proof and the next."""
        events = (
            make_event(f"b-{part}", request_id=f"req-{part}"),
            make_event(f"v-{part}", request_id="req-a", revision=1),
        )
        asyncio.run_coroutine_threadsafe(ledger.post(*events), loop).result(30)

    proved = await asyncio.to_thread(verify, url, on_part=post)
    assert proved.ok, proved.failures
    # The first statement, after the first word, takes the snapshot.
    assert proved.checked["batches"] == 4
    assert verify(url).checked["batches"] == 3 + 13


FIRST = "(select min(entry_id) from ledger.entries)"

TAMPERED = {
    "an amount": (
        f"update ledger.entries set charge_amount = charge_amount + 0.01 where entry_id = {FIRST}",
        {
            "chain": "feed file:test: the rows of batch 1 in 2026-01 differ from what was posted: entry 65536 of tenant t-alpha was changed",
            "batches": "the rows sum to 0.01056, the digest says 0.00056",
            "budgets": "budget totals-charge",
            "totals": "tenant t-alpha, 2026-01, USD: budget totals-charge says 0.00056, the ledger 0.01056",
            "lines": "its amounts are cost 0.00028 and charge 0.01028, its lines sum to 0.00028 and 0.00028",
        },
    ),
    "a text that no sum shows": (
        f"update ledger.entries set trace_id = 'other' where entry_id = {FIRST}",
        {"chain": "the rows of batch 1 in 2026-01 differ"},
    ),
    "a row gone": (
        f"delete from ledger.entries where entry_id = {FIRST}",
        {
            "chain": "the rows of batch 1 in 2026-01 differ from what was posted: a row is missing before entry 65537 of tenant",
            "batches": "holds 1 rows of 2026-01, its digest says 2",
            "keys": "stands for no entry",
            "requests": "has a row and no first entry",
            "budgets": "budget totals-charge",
            "totals": "tenant t-alpha",
        },
    ),
    "two rows swapped": (
        "update ledger.entries as e set entry_id = -1 - o.entry_id from ledger.entries as o"
        f" where o.batch_id = e.batch_id and o.entry_id <> e.entry_id and e.batch_id = {FIRST} / 65536;"
        "update ledger.entries set entry_id = -1 - entry_id where entry_id < 0",
        {"chain": "the rows of batch 1 in 2026-01 differ", "requests": "should begin with the 1 rows from entry"},
    ),
    "a digest made to fit": (
        "update ledger.batch_digests set digest = sha256('other') where batch_id = (select min(batch_id) from ledger.batches)",
        {"chain": "feed file:test: batch 1 is not what its hash covers"},
    ),
    "a batch count": (
        "update ledger.batches set duplicate_count = 7 where number = 2",
        {"chain": "feed file:test: batch 2 is not what its hash covers"},
    ),
    "a batch made anew with a sound hash": (
        "update ledger.batches set hash = sha256('other') where number = 2",
        {"chain": "feed file:test: batch 2 is not what its hash covers"},
    ),
    "a batch gone": (
        "delete from ledger.batches where number = 2",
        {"chain": "feed file:test: batch 2 is missing; after 1 comes 3", "requests": "has a row and no first entry"},
    ),
    "the last batch gone": (
        "delete from ledger.batches where number = 3",
        {
            "chain": "feed file:test: its row says batch 3 is the last, the chain ends with 2",
            "requests": "as its best, which is not its last statement",
        },
    ),
    "a key gone, so that its event could be posted again": (
        "delete from ledger.event_keys where key = (select event_key from ledger.entries order by entry_id limit 1)",
        {"keys": "is missing: the event could be posted again"},
    ),
    "a key of another batch": (
        "update ledger.event_keys set batch_id = batch_id + 1 where key ="
        " (select event_key from ledger.entries order by entry_id limit 1)",
        {"keys": "belongs to batch"},
    ),
    "a key of nothing": (
        "insert into ledger.event_keys values (gen_random_uuid(), gen_random_uuid(), 1,"
        " (select min(batch_id) from ledger.batches))",
        {"keys": "stands for no entry"},
    ),
    "a request's first row": (
        f"update ledger.requests set entry_count = 2 where entry_id = {FIRST}",
        {"requests": "should begin with the 1 rows from entry"},
    ),
    "a request gone": (f"delete from ledger.requests where entry_id = {FIRST}", {"requests": "has entries and no row"}),
    "a request's best statement": (
        "update ledger.requests as r set best_event_key = e.event_key from ledger.entries as e"
        " where e.kind = 'usage' and e.source like 'node%' and r.key = e.request_key",
        {"requests": "as its best, which is not its last statement"},
    ),
    "a window": (
        "update quotas.windows set posted = posted - 0.0000000001 where budget_id = 'totals-cost'"
        " and tenant_id = 't-beta'",
        {
            "budgets": "window of 2026-01-01: holds 0.0002799999 posted, 0 requests and 0 tokens unpriced, the ledger says 0.00028, 0 and 0",
            "totals": "tenant t-beta, 2026-01, USD: budget totals-cost says 0.0002799999, the ledger 0.00028",
        },
    ),
    "a window's count of what has no price": (
        "update quotas.windows set unpriced_count = 0",
        {"budgets": "0 requests and 110 tokens unpriced, the ledger says 0.00056, 1 and 110"},
    ),
    "a window from nowhere": (
        "insert into quotas.windows (budget_id, group_key, window_start, tenant_id, currency, posted, last_batch_id)"
        " values ('totals-charge', '[\"t-gamma\", \"USD\"]', '2026-01-01', 't-gamma', 'USD', 1, 1)",
        {"budgets": "the ledger says 0, 0 and 0", "totals": "tenant t-gamma"},
    ),
    "the totals themselves": (
        "update quotas.budgets set ended_at = now() where budget_id = 'totals-charge'",
        {"totals": "budget totals-charge, which the standing proof needs, is gone or ended"},
    ),
    "a price that was used": (
        "update ledger.rates set price = price * 2 where meter = 'visible_output_tokens'",
        {"lines": "its amounts are"},
    ),
}


@pytest.mark.parametrize("what", TAMPERED)
async def test_a_change_by_somebody_who_may_do_anything_is_named(ledger: Ledger, what: str) -> None:
    statements, expected = TAMPERED[what]
    for statement in statements.split(";"):
        changed = ledger.superuser.execute(statement)
        assert changed.rowcount > 0
    found = parts(ledger)
    assert found.keys() == expected.keys(), found
    for part, words in expected.items():
        assert words in found[part]


async def test_the_last_row_of_a_batch_gone_is_named(ledger: Ledger) -> None:
    ledger.superuser.execute(f"delete from ledger.entries where entry_id = {FIRST} + 1")
    assert "differ from what was posted: the last of its 2 rows is missing" in parts(ledger)["chain"]


async def test_a_batch_of_before_there_were_marks_is_named_as_a_whole(ledger: Ledger) -> None:
    ledger.superuser.execute("update ledger.batch_digests set row_marks = null")
    ledger.superuser.execute(f"update ledger.entries set trace_id = 'other' where entry_id = {FIRST}")
    assert parts(ledger) == {"chain": "feed file:test: the rows of batch 1 in 2026-01 differ from what was posted"}


async def test_what_was_recorded_since_is_proved_alone(ledger: Ledger) -> None:
    """Three batches: the second and third from their instant on; a fault in the first shows only in the whole."""
    url = ledger.database.url_for("tallystick_operator")
    since = ledger.value("select recorded_at from ledger.batches where number = 2")
    proved = verify(url, since=since)
    assert proved.ok, proved.failures
    whole = ledger.value("select count(*) from ledger.entries")
    first = ledger.value(f"select count(*) from ledger.entries where batch_id = {FIRST} / 65536")
    assert (proved.checked["batches"], proved.checked["entries"]) == (2, whole - first)
    ledger.superuser.execute(f"update ledger.entries set charge_amount = charge_amount + 1 where entry_id = {FIRST}")
    assert verify(url, since=since).ok
    assert not verify(url).ok
    ledger.superuser.execute(
        "update ledger.entries set charge_amount = charge_amount + 1 where batch_id >"
        f" {FIRST} / 65536 and charge_amount is not null"
    )
    found = {failure.part for failure in verify(url, since=since).failures}
    assert found == {"chain", "batches", "lines"}


async def test_a_link_to_what_came_before_is_held_even_when_only_the_rest_is_proved(ledger: Ledger) -> None:
    since = ledger.value("select recorded_at from ledger.batches where number = 2")
    ledger.superuser.execute("update ledger.batches set hash = sha256('other') where number = 1")
    [failure] = verify(ledger.database.url_for("tallystick_operator"), since=since).failures
    assert failure.text == "feed file:test: batch 2 does not name the hash of batch 1"


async def test_nothing_recorded_since_leaves_nothing_to_prove(ledger: Ledger) -> None:
    proved = verify(ledger.database.url_for("tallystick_operator"), since=datetime(2999, 1, 1, tzinfo=UTC))
    assert proved.ok
    assert set(proved.checked.values()) == {0}


async def test_causes_that_do_not_sum_to_the_excess_are_named(ledger: Ledger) -> None:
    """A budget of nothing is above its limit by all that was spent; half of what says so is taken away."""
    ledger.superuser.execute("set session_replication_role = origin")
    await set_budget(ledger, now="2026-01-20T00:00:00Z", limit="0.0001")
    assert proof(ledger).ok
    ledger.superuser.execute("set session_replication_role = replica")
    ledger.superuser.execute("update quotas.excess set change = change / 2 where budget_id = 'b'")
    assert parts(ledger) == {
        "excess": "budget b of tenant t-alpha, window of 2026-01-01: is 0.00046 above its limit, the noted causes sum to 0.00023"
    }


async def test_many_failures_are_counted_not_listed(ledger: Ledger) -> None:
    ledger.superuser.execute(
        "insert into ledger.event_keys select gen_random_uuid(), gen_random_uuid(), 1, 1 from generate_series(1, 30)"
    )
    texts = [failure.text for failure in proof(ledger).failures if failure.part == "keys"]
    assert len(texts) == 21
    assert texts[-1] == "and 11 more"  # 30 keys, and the batch that has too many


async def test_a_chain_made_anew_is_sound_in_itself_and_differs_from_its_published_head(
    ledger: Ledger, tmp_path: Path
) -> None:
    path = tmp_path / "heads.jsonl"
    url = ledger.database.url_for("tallystick_operator")
    assert [(head.feed, head.number) for head in publish_heads(url, path)] == [("file:test", 3)]
    assert proof(ledger, heads=path).ok
    # The last batch is taken away with everything that hangs on it, and the feed's row says that it never was.
    for statement in (
        "create temporary table gone as select batch_id from ledger.batches where number = 3",
        "delete from ledger.batch_digests where batch_id in (select * from gone)",
        "delete from ledger.batches where batch_id in (select * from gone)",
        "update ledger.feeds set last_number = 2, last_hash = (select hash from ledger.batches where number = 2)",
        "delete from ledger.entries where batch_id in (select * from gone)",
        "delete from ledger.event_keys where batch_id in (select * from gone)",
        "update ledger.requests as r set rank[5] = 10, best_event_key = e.event_key from ledger.entries as e"
        " where e.request_key = r.key",
        "delete from quotas.windows",
        "insert into quotas.windows (budget_id, group_key, window_start, tenant_id, currency, posted, unpriced_count,"
        " unpriced_tokens, last_batch_id) select f.budget_id, f.group_key, f.window_start, f.tenant_id, f.currency, f.posted,"
        " f.unpriced_count, f.unpriced_tokens, f.batch_id from quotas.budgets as b cross join lateral quotas.fold_windows(b.budget_id) as f",
    ):
        ledger.superuser.execute(statement)
    assert proof(ledger).ok
    failures = proof(ledger, heads=path).failures
    assert [failure.part for failure in failures] == ["heads"]
    assert failures[0].text.startswith("feed file:test: batch 3 was published as ")
    assert failures[0].text.endswith("and is gone")


async def test_heads_are_published_when_they_moved_and_never_twice(ledger: Ledger, tmp_path: Path) -> None:
    path = tmp_path / "outside" / "heads.jsonl"
    url = ledger.database.url_for("tallystick_operator")
    publish_heads(url, path)
    assert publish_heads(url, path) == []
    ledger.superuser.execute("set session_replication_role = origin")
    await ledger.post(make_event("d"))
    assert [(head.feed, head.number) for head in publish_heads(url, path)] == [("file:test", 4)]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["number"] for line in lines] == [3, 4]
    assert bytes.fromhex(lines[1]["hash"]) == ledger.value("select last_hash from ledger.feeds")


async def test_a_line_cut_short_by_a_crash_harms_no_other(ledger: Ledger, tmp_path: Path) -> None:
    path = tmp_path / "heads.jsonl"
    path.write_text('{"feed": "file:te')
    publish_heads(ledger.database.url_for("tallystick_operator"), path)
    assert proof(ledger, heads=path).ok
    assert json.loads(path.read_text().splitlines()[-1])["number"] == 3


async def test_heads_that_nobody_published_are_missed(ledger: Ledger, tmp_path: Path) -> None:
    assert [failure.text for failure in proof(ledger, heads=tmp_path / "heads.jsonl").failures] == [
        "no heads have been published to heads.jsonl"
    ]


async def test_a_file_that_holds_no_head_proves_nothing(ledger: Ledger, tmp_path: Path) -> None:
    path = tmp_path / "heads.jsonl"
    path.write_bytes(b"\xff is no head\n{}\n")
    assert [failure.text for failure in proof(ledger, heads=path).failures] == [
        "no line of heads.jsonl is a published head"
    ]


# --- Seals --------------------------------------------------------------------------------------------------------------


@pytest.fixture
async def sealed(ledger: Ledger) -> Ledger:
    """The same, closed and sealed for January."""
    ledger.superuser.execute("set session_replication_role = origin")
    async with await connect(ledger.database.url_for("tallystick_operator")) as operator:
        await closing.close_periods(operator, "test", date(2026, 1, 1))
        assert (
            "2 closed months have no seal yet, run `tallystick period seal`: 2026-01 of t-alpha, 2026-01 of t-beta"
            in proof(ledger).notes
        )
        assert len(await closing.seal_pending(operator)) == 2
    ledger.superuser.execute("set session_replication_role = replica")
    assert proof(ledger).ok
    assert len(proof(ledger).notes) == 3
    return ledger


@pytest.mark.parametrize(
    ("statement", "failures"),
    [
        (
            "update ledger.seal_lines set charge_amount = 7 where tenant_id = 't-alpha'",
            [
                "its lines do not have its digest",
                "its lines do not add up to it",
                "the rows of the month no longer come to it",
            ],
        ),
        ('update ledger.seals set charge_sums = \'{"USD": "7"}\'', ["its lines do not add up to it"]),
        (
            "insert into ledger.entries select (jsonb_populate_record(e, jsonb_build_object('entry_id', entry_id + 9))).*"
            " from ledger.entries as e where tenant_id = 't-alpha' and kind = 'usage'",
            ["the rows of the month no longer come to it"],
        ),
    ],
)
async def test_a_seal_tells_what_was_changed_after_it(sealed: Ledger, statement: str, failures: list[str]) -> None:
    sealed.superuser.execute(statement.encode())
    found = [
        failure.text for failure in proof(sealed).failures if failure.part == "seals" and "t-alpha" in failure.text
    ]
    assert found == [f"seal 1 of tenant t-alpha for 2026-01: {failure}" for failure in failures]


# --- Acts ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
async def corrected(ledger: Ledger) -> Ledger:
    """The same, with one request that a person reversed."""
    ledger.superuser.execute("set session_replication_role = origin")
    url = ledger.database.url_for("tallystick_writer")
    async with await connect(url) as writer:
        await correct(writer, Wanted(Reverse(Request("t-alpha", "req-a"))), actor="ada", reason="sent by mistake")
    ledger.superuser.execute("set session_replication_role = replica")
    assert proof(ledger).ok, proof(ledger).failures
    return ledger


ACTS = {
    "the act gone": (
        "delete from ledger.acts where act = 'corrections.reverse'",
        "correction 1 of tenant t-alpha, by ada: no act of that kind names it",
    ),
    "by another": (
        "update ledger.acts set actor = 'bob' where act = 'corrections.reverse'",
        "no act of that kind names it",
    ),
    "the correction gone": (
        "delete from ledger.corrections",
        "act 1, corrections.reverse by ada: there is no correction 1",
    ),
    "its rows gone": (
        "delete from ledger.entries where kind = 'reversal'",
        "correction 1 of tenant t-alpha wrote 1 entries, the ledger has 0",
    ),
    "nobody's": (
        "update ledger.entries set actor = null where kind = 'reversal'",
        "is of kind reversal and does not say who wrote it and why",
    ),
    "without a reason": (
        "update ledger.entries set reason = '' where kind = 'reversal'",
        "does not say who wrote it and why",
    ),
    "a report in a person's name": (
        f"update ledger.entries set actor = 'bob', reason = 'why not' where entry_id = {FIRST} + 1",
        "was written by bob, and no act says so",
    ),
    "a letter that nobody resolved": (
        "update ledger.dead_letters set resolved_at = now(), resolution = 'dismissed', resolved_by = 'bob'",
        "was resolved by bob, and no act says so",
    ),
    "a load that nobody committed": (
        "insert into ledger.loads (load_id, source, state, actor, reason, commit_started_at)"
        " values ('l', 'load:l', 'committing', 'bob', 'r', now())",
        "load l was backfill.commit, and no act says so",
    ),
}


@pytest.mark.parametrize("what", ACTS)
async def test_what_a_person_wrote_and_what_says_so_are_the_same(corrected: Ledger, what: str) -> None:
    statement, text = ACTS[what]
    assert corrected.superuser.execute(statement.encode()).rowcount > 0
    found = [failure.text for failure in proof(corrected).failures if failure.part == "acts"]
    assert any(text in each for each in found), found


# --- Months that left ---------------------------------------------------------------------------------------------------


@pytest.fixture
async def retired(ledger: Ledger, tmp_path: Path) -> Ledger:
    """January is closed, sealed, exported and gone; February has a batch, with usage of January that came late."""
    ledger.superuser.execute("set session_replication_role = origin")
    async with await connect(ledger.database.url_for("tallystick_operator")) as operator:
        await closing.close_periods(operator, "finance", date(2026, 1, 1), is_early=True, reason="test")
        await closing.seal_pending(operator)
        await closing.close_partitions(operator)
        made = await retention.export_month(operator, date(2026, 1, 1), tmp_path, actor="finance")
        await ledger.post(
            make_event("late"), make_event("f", time="2026-02-03T10:00:00Z"), received_at="2026-02-04T00:00:00Z"
        )
        await retention.retire_month(
            operator, date(2026, 1, 1), home=made.folder, keep=False, actor="finance", reason="ten years are over"
        )
    ledger.superuser.execute("set session_replication_role = replica")
    return ledger


async def test_what_stands_in_the_place_of_rows_that_left_is_proved(retired: Ledger) -> None:
    """Keys, requests, batches, budgets and seals outlive the rows and are no failure without them."""
    result = proof(retired)
    assert result.ok, result.failures
    assert result.notes[0] == (
        "the rows of 2026-01 have left the ledger: digests, keys and seals were proved in their place, and the totals of"
        " budgets; other windows and marts were compared from 2026-02-01 on"
    )


LEFT = {
    "a digest": (
        "update ledger.batch_digests set digest = sha256('x') where posting_period = '2026-01-01'",
        {"chain": "batch 1 is not what its hash covers", "seals": "its digests are not those of its export"},
    ),
    "a sum beside it": (
        "update ledger.batch_digests set charge_sums = '{}' where posting_period = '2026-01-01'",
        {"seals": "its seals come to 0.00084 USD of charge, its digests to 0"},
    ),
    "a seal's line": (
        "update ledger.seal_lines set charge_amount = 7 where charge_amount > 0",
        {"seals": "its lines do not have its digest", "totals": "budget totals-charge says 0.00028, the ledger 7"},
    ),
    "a window": (
        "update quotas.windows set posted = 7 where budget_id = 'totals-charge' and tenant_id = 't-beta'",
        {"totals": "tenant t-beta, 2026-01, USD: budget totals-charge says 7"},
    ),
    "the manifest": (
        "update ledger.retirements set manifest = manifest || '{\"row_count\": 1}' where step = 'export'",
        {"seals": "the manifest of its export does not have its hash"},
    ),
    "a key": (
        "delete from ledger.event_keys where batch_id = (select min(batch_id) from ledger.batches)",
        {"keys": "accepted 2 events and has 0 keys"},
    ),
    "the act": (
        "delete from ledger.acts where act = 'retention.retire'",
        {"acts": "2026-01: its rows left the ledger by finance, and no act says so"},
    ),
}


@pytest.mark.parametrize("what", LEFT)
async def test_a_change_of_what_is_left_of_a_month_is_named(retired: Ledger, what: str) -> None:
    statement, expected = LEFT[what]
    assert retired.superuser.execute(statement.encode()).rowcount > 0
    found = parts(retired)
    assert found.keys() == expected.keys(), found
    for part, words in expected.items():
        assert words in found[part]


async def test_a_partition_that_was_taken_away_by_hand_is_no_month_that_left(ledger: Ledger) -> None:
    ledger.superuser.execute("alter table ledger.entries detach partition ledger.entries_2026_01")
    found = parts(ledger)
    assert found["seals"] == "the rows of 2026-01 are not in the ledger, and no act took them out"
    assert {"chain", "batches", "keys", "requests", "totals"} <= found.keys()


async def test_a_zone_that_changed_in_one_copy_of_the_time_zones_only_is_named(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "ledger.zones.ZoneInfo", lambda name: ZoneInfo("Africa/Lagos" if name == "Europe/Berlin" else name)
    )
    found = parts(ledger)
    assert list(found) == ["zones"]
    assert found["zones"].startswith("time zone Europe/Berlin at ")
