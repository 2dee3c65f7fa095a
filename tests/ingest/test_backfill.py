"""Backfills: what is shown is what is posted, an interrupted commit loses and repeats nothing, and a revert leaves no trace."""

import json
from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from ingest import backfill
from ingest.load_files import FileMapping, LoadFileRefused
from ledger import expiry, loads, reverting
from ledger.api_keys import create_key
from ledger.database import connect
from ledger.errors import ActRefused, Fenced, Unknown
from ledger.times import parse_rfc3339
from tests.factories import GATEWAY, NODE, event_bytes, make_event
from tests.ledger.prices import make_card, per_million
from tests.quotas.support import set_budget
from tests.support.ledger import Ledger

HEADER = "tenant_id,id,time,request_id,provider,model,uncached_input_tokens,visible_output_tokens"


def table(*rows: str, header: str = HEADER) -> str:
    return "\n".join([header, *rows]) + "\n"


def call(
    number: int, *, tokens_in: int = 1000, tokens_out: int = 100, time: str = "2026-01-10T10:00:00Z", **others: str
) -> str:
    """One row: a call of t-alpha to m-sub."""
    tenant, request, model = (
        others.get(n, d) for n, d in (("tenant", "t-alpha"), ("request", f"req-{number}"), ("model", "m-sub"))
    )
    return f"{tenant},id-{number},{time},{request},openai,{model},{tokens_in},{tokens_out}"


class Loads:
    """Loads of a test's ledger, by the calls that the commands make."""

    def __init__(self, ledger: Ledger, folder: Path) -> None:
        self.ledger, self.folder = ledger, folder

    async def create(self, load_id: str = "jan", *, rank: int = 5, tenants: Sequence[str] = ()) -> None:
        async with await connect(self.ledger.database.url_for("tallystick_operator")) as operator:
            await loads.create_load(
                operator,
                "ann",
                load_id,
                rank=rank,
                reason="the gateway was down",
                speaks_for_all=not tenants,
                tenant_ids=tenants,
            )

    async def load(
        self, text: str | bytes, name: str = "usage.csv", *, load_id: str = "jan", mapping: FileMapping | None = None
    ) -> backfill.Loaded:
        path = self.folder / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return await self.load_path(path, load_id=load_id, mapping=mapping)

    async def load_path(
        self, path: Path, *, load_id: str = "jan", mapping: FileMapping | None = None
    ) -> backfill.Loaded:
        async with await connect(self.ledger.database.url_for("tallystick_operator")) as operator:
            return await backfill.load_file(operator, "ann", load_id, path, mapping or FileMapping())

    async def preview(self, load_id: str = "jan") -> backfill.Preview:
        async with await connect(self.ledger.database.url_for("tallystick_operator")) as operator:
            return await backfill.preview(operator, load_id, "ann")

    async def commit(self, load_id: str = "jan", **options: Any) -> backfill.Committed:
        options = {"without_preview": True, **options}
        async with await connect(self.ledger.database.url_for("tallystick_operator")) as operator:
            done = await backfill.commit(
                operator, self.ledger.database.url_for("tallystick_writer"), "ann", load_id, **options
            )
        assert isinstance(done, backfill.Committed)
        return done

    async def revert(self, load_id: str = "jan") -> reverting.TakenBack:
        async with (
            await connect(self.ledger.database.url_for("tallystick_operator")) as operator,
            await connect(self.ledger.database.url_for("tallystick_writer")) as writer,
        ):
            done = await backfill.revert(operator, writer, "ann", load_id, "it was the wrong file")
        assert isinstance(done, reverting.TakenBack)
        return done

    async def whole(self, text: str | bytes, name: str = "usage.csv", *, load_id: str = "jan", rank: int = 5) -> None:
        """Create, load and commit."""
        await self.create(load_id, rank=rank)
        await self.load(text, name, load_id=load_id)
        await self.commit(load_id)


@pytest.fixture
async def made(ledger: Ledger, tmp_path: Path) -> Loads:
    """A ledger with a price: 1.00 in and 10.00 out per million, so that 1,000 and 100 tokens are 0.002."""
    await ledger.add_price(input="1.00", output="10.00")
    return Loads(ledger, tmp_path)


CALL = Decimal("0.002")


# --- From file to ledger ----------------------------------------------------------------------------------------------


async def test_rows_of_a_csv_become_entries_under_the_loads_own_source(made: Loads) -> None:
    await made.create()
    loaded = await made.load(table(call(1), call(2)))
    assert (loaded.rows, loaded.refused) == (2, {})
    assert made.ledger.value("select count(*) from ledger.entries") == 0
    done = await made.commit()
    assert done.outcomes == {"created": 2}
    assert made.ledger.total() == 2 * CALL
    assert made.ledger.rows(
        "select distinct e.source, f.name, f.kind, f.next_position from ledger.entries as e"
        " join ledger.batches as b using (batch_id) join ledger.feeds as f using (feed_id)"
    ) == [("load:jan", "load:jan", "load", 2)]
    assert made.ledger.value("select state from ledger.loads") == "committed"


async def test_an_event_file_keeps_its_events_and_what_they_named_as_their_source(made: Loads) -> None:
    await made.create()
    lines = b"\n".join(event_bytes(make_event(f"e{n}")) for n in range(3))
    await made.load(lines, "usage.ndjson")
    await made.load(event_bytes(make_event("a1"), make_event("a2")), "usage.json")
    done = await made.commit()
    assert done.outcomes == {"created": 5}
    assert made.ledger.rows("select distinct source from ledger.entries") == [("load:jan",)]
    bodies = [json.loads(row[0]) for row in made.ledger.rows("select body from ledger.load_rows")]
    assert {body["sentsource"] for body in bodies} == {GATEWAY}


async def test_what_a_gateway_has_reported_is_not_charged_again(made: Loads) -> None:
    """Gateway (rank 20) said req-1; the load (5) says it too, and req-2, which nobody knows: one of two is charged anew."""
    await made.ledger.post(
        make_event(
            "g1", request_id="req-1", usage={"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}
        )
    )
    await made.create()
    await made.load(table(call(1), call(2)))
    found = await made.preview()
    assert found.outcomes == {"evidence": 1, "created": 1}
    await made.commit()
    assert made.ledger.total() == 2 * CALL


async def test_nobody_but_its_own_feed_speaks_in_a_loads_name(made: Loads) -> None:
    await made.create()
    posted = await made.ledger.post(make_event("x", source="load:jan"))
    assert [(r.outcome, r.reason) for r in posted.results] == [("dead_letter", "source_may_not_speak")]


async def test_no_key_is_made_for_a_load(made: Loads) -> None:
    await made.create()
    async with await connect(made.ledger.database.url_for("tallystick_operator")) as operator:
        with pytest.raises(ActRefused, match="source load:jan is a load: nobody but its own feed speaks in its name"):
            await create_key(operator, actor="ann", source="load:jan")


async def test_a_second_commit_fences_the_first_and_ends_it(made: Loads) -> None:
    await made.create()
    await made.load(table(call(1), call(2)))

    def somebody_else_begins(posted: int, rows: int) -> None:
        made.ledger.superuser.execute("update ledger.feeds set epoch = epoch + 1 where name = 'load:jan'")

    with pytest.raises(Fenced, match="feed load:jan was claimed by another writer"):
        await made.commit(on_start=somebody_else_begins)
    assert made.ledger.total() == 0
    assert (await made.commit()).outcomes == {"created": 2}
    assert made.ledger.total() == 2 * CALL


async def test_a_load_speaks_for_the_tenants_that_were_stated_and_no_others(made: Loads) -> None:
    made.ledger.add_tenant("t-beta")
    await made.create(tenants=["t-alpha"])
    loaded = await made.load(table(call(1), call(2, tenant="t-beta")))
    assert loaded.refused == {"source_may_not_speak": 1}
    assert loaded.first_refused[0].detail == "usage.csv row 2: source: 'load:jan' may not speak for 't-beta'"


# --- The preview is the commit ----------------------------------------------------------------------------------------


async def test_a_preview_equals_the_commit_digit_for_digit(made: Loads, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small batches, so that rows of one decide what rows of a later one do; every kind of outcome among them."""
    monkeypatch.setattr(backfill, "AT_ONCE", 3)
    ledger = made.ledger
    ledger.close_period("t-alpha", date(2025, 12, 1))
    await set_budget(ledger, budget_id="hard", since=date(2025, 1, 1), limit="0.011", thresholds=["0.5", "0.9"])
    await set_budget(ledger, budget_id="by-model", since=date(2025, 1, 1), unit="total_tokens", group_by=["model"])
    await ledger.post(make_event("g1", request_id="req-1"), make_event("g2", source=NODE, request_id="req-2"))
    await made.create(rank=15)
    rows = [
        call(1),  # the gateway (20) ranks above
        call(2, tokens_in=3333),  # the node (10) does not
        call(3),
        call(4, time="2025-12-31T23:59:59.9999999Z"),  # its month is closed
        call(5, model="m-nobody"),
        call(3),  # a copy of the third row
        call(6, request="req-3", tokens_out=700),  # the same request again: no better
        call(7),
        call(8, request="req-7"),
        call(9, tokens_in=123_457, tokens_out=89),
    ]
    await made.load(table(*rows))
    found = await made.preview()
    assert ledger.value("select count(*) from ledger.entries where source = 'load:jan'") == 0
    assert found.outcomes == {"evidence": 3, "created": 6, "duplicate": 1}
    assert found.true_ups == 1
    assert ledger.rows("select position, outcome from ledger.load_rows where outcome is not null order by 1") == [
        (0, "evidence"), (5, "duplicate"), (6, "evidence"), (8, "evidence"),
    ]  # fmt: skip
    before = {(w.budget_id, w.group_key, w.window_start): w.posted_before for w in found.budgets}
    windows = "select budget_id, group_key, window_start, posted, unpriced_count from quotas.windows"
    assert all(before[row[:3]] == row[3] for row in ledger.rows(windows) if row[:3] in before)

    done = await made.commit(without_preview=False)
    assert done.outcomes == found.outcomes
    in_load = "batch_id in (select b.batch_id from ledger.batches as b join ledger.feeds as f using (feed_id) where f.name = 'load:jan')"
    async with await connect(ledger.database.url) as connection:
        cursor = await connection.execute(backfill.amounts_in("ledger.entries", in_load))
        posted = [backfill.Amounts(*row) for row in await cursor.fetchall()]
    assert posted == found.amounts
    after = {row[:3]: row[3:] for row in ledger.rows(windows)}
    assert {(w.budget_id, w.group_key, w.window_start): (w.posted_after, w.unpriced_after) for w in found.budgets} == {
        place: after[place] for place in before
    }
    assert ledger.value("select coalesce(sum(change), 0) from quotas.excess where budget_id = 'hard'") == sum(
        w.excess_change for w in found.budgets if w.budget_id == "hard"
    )
    noted = ledger.rows("select budget_id, threshold from quotas.threshold_notes order by 1, 2")
    assert sorted((w.budget_id, share) for w in found.budgets for share in w.thresholds) == noted
    assert [(p.posting_period, p.state, p.late_rows) for p in found.periods] == [(date(2026, 1, 1), "open", 1)]
    assert ledger.budgets_that_differ() == []


async def test_a_commit_wants_a_preview_of_the_rows_that_are_there(made: Loads) -> None:
    await made.create()
    await made.load(table(call(1)))
    with pytest.raises(ActRefused, match="was not previewed since rows were loaded"):
        await made.commit(without_preview=False)
    await made.preview()
    await made.load(table(call(2)), "more.csv")
    with pytest.raises(ActRefused, match="was not previewed since rows were loaded"):
        await made.commit(without_preview=False)
    await made.preview()
    assert (await made.commit(without_preview=False)).rows == 2


# --- Revert -----------------------------------------------------------------------------------------------------------


async def test_a_wrong_file_is_reverted_and_the_corrected_one_stands_alone(made: Loads) -> None:
    """Same ids, same requests; the wrong file had ten times the input, and a month that was not the right one."""
    ledger = made.ledger
    await set_budget(ledger, since=date(2025, 1, 1))
    await made.whole(
        table(*(call(n, tokens_in=10_000, time="2026-02-10T10:00:00Z") for n in range(5)), call(99)), load_id="wrong"
    )
    assert ledger.total() == 5 * Decimal("0.011") + CALL
    done = await made.revert("wrong")
    assert (done.requests, ledger.total(), ledger.value("select sum(request_count) from ledger.entries")) == (6, 0, 0)
    await made.whole(table(*(call(n) for n in range(5))), "corrected.csv", load_id="right")
    assert ledger.requests("source", "local_date") == {("load:right", date(2026, 1, 10)): (5, 5 * CALL)}
    assert ledger.value("select sum(uncached_input_tokens) from ledger.entries") == 5000
    assert {row[0]: row[1] for row in ledger.rows("select window_start, posted from quotas.windows")} == {
        date(2026, 1, 1): 5 * CALL, date(2026, 2, 1): 0,
    }  # fmt: skip
    assert ledger.rows("select distinct occurred_at::date from ledger.requests order by 1") == [(date(2026, 1, 10),)]
    assert ledger.budgets_that_differ() == []
    assert await broken(ledger) == []


async def broken(ledger: Ledger) -> list[str]:
    """What `tallystick verify` finds."""
    from tallystick.verify import verify

    return [str(failure) for failure in verify(ledger.database.url).failures]


async def test_a_revert_is_done_once(made: Loads) -> None:
    await made.whole(table(call(1)))
    await made.revert()
    count = made.ledger.value("select count(*) from ledger.entries")
    with pytest.raises(ActRefused, match="load jan is reverted"):
        await made.revert()
    assert made.ledger.value("select count(*) from ledger.entries") == count


async def test_what_the_load_had_beaten_stands_again(made: Loads) -> None:
    """The node (10) said 100 and 10 tokens; the load (15) 1,000 and 100; then the node's word stands again."""
    await made.ledger.post(make_event("n1", source=NODE, request_id="req-1"))
    stood = made.ledger.total()
    await made.whole(table(call(1)), rank=15)
    assert made.ledger.total() == CALL
    await made.revert()
    assert made.ledger.requests("source") == {NODE: (1, stood)}
    assert await broken(made.ledger) == []
    # It ranks as the node's word does: the gateway's beats it.
    assert made.ledger.outcomes(await made.ledger.post(make_event("g1", request_id="req-1", revision=1))) == ["created"]


async def test_what_came_later_and_only_ranked_below_the_load_stands_after_it(made: Loads) -> None:
    """The load (15) was first; the node's report (10) was evidence. Without the load it is all that is known."""
    await made.whole(table(call(1)), rank=15)
    assert made.ledger.outcomes(await made.ledger.post(make_event("n1", source=NODE, request_id="req-1"))) == [
        "evidence"
    ]
    await made.revert()
    # 100 x 1.00 + 10 x 10.00 = 200 millionths
    assert made.ledger.requests("source") == {NODE: (1, Decimal("0.0002"))}
    assert made.ledger.value("select sum(uncached_input_tokens) from ledger.entries") == 100
    assert await broken(made.ledger) == []


async def test_the_higher_of_what_stood_before_and_what_was_evidence_stands(made: Loads) -> None:
    """Node revision 0 (100 tokens), load, node revision 1 (200 tokens) as evidence: the second is the better."""
    await made.ledger.post(make_event("n1", source=NODE, request_id="req-1"))
    await made.whole(table(call(1)), rank=15)
    later = {"prompt_tokens": 200, "completion_tokens": 10, "total_tokens": 210}
    await made.ledger.post(make_event("n2", source=NODE, request_id="req-1", revision=1, usage=later))
    await made.revert()
    assert made.ledger.value("select sum(uncached_input_tokens) from ledger.entries") == 200
    assert made.ledger.value("select rank from ledger.requests") == [0, 1, 1, 1, 10, 1]
    assert await broken(made.ledger) == []


async def test_where_something_better_stands_nothing_moves(made: Loads) -> None:
    await made.whole(table(call(1)))
    await made.ledger.post(make_event("g1", request_id="req-1"))
    total, count = made.ledger.total(), made.ledger.value("select count(*) from ledger.entries")
    done = await made.revert()
    assert (done.requests, made.ledger.total(), made.ledger.value("select count(*) from ledger.entries")) == (
        0,
        total,
        count,
    )
    assert await broken(made.ledger) == []


async def test_a_void_of_the_load_is_taken_back_and_the_request_counts_again(made: Loads) -> None:
    await made.ledger.post(make_event("n1", source=NODE, request_id="req-1"))
    stood = made.ledger.total()
    void = make_event("v1", request_id="req-1", status="void", usage=..., flavour=...)
    await made.whole(event_bytes(void), "voids.ndjson", rank=15)
    assert made.ledger.rows("select sum(request_count), sum(charge_amount) from ledger.entries") == [(0, 0)]
    await made.revert()
    assert made.ledger.requests("source") == {NODE: (1, stood)}
    assert await broken(made.ledger) == []


async def test_a_fee_goes_with_the_report_that_owed_it_and_comes_with_the_corrected_one(made: Loads) -> None:
    """0.01 for an operation: booked with the wrong file, taken back with it, and booked again at its place."""
    ledger = made.ledger
    ledger.add_model("m-fee")
    for book in ("cost", "charge"):
        card = make_card(
            per_million(input="1.00", output="10.00"),
            model="m-fee",
            book=book,
            effective_at="2020-01-01T00:00:00Z",
            billing_rules={"fee_per_operation": "0.01"} if book == "charge" else {},
        )
        await ledger.add_card(card)
    wrong = table(call(1, tokens_in=9000, model="m-fee"), call(2, model="m-fee"))
    await made.whole(wrong, load_id="wrong")
    assert ledger.total() == Decimal("0.01") + CALL + Decimal("0.01") + Decimal("0.01")
    await made.revert("wrong")
    assert ledger.total() == 0
    await made.create("right")
    await made.load(table(call(1, model="m-fee"), call(1, model="m-fee")), "right.csv", load_id="right")
    shown = await made.preview("right")
    assert sum(each.charge for each in shown.amounts) == CALL + Decimal("0.01")
    await made.commit("right")
    assert ledger.total() == CALL + Decimal("0.01")
    assert await broken(ledger) == []


async def test_neither_of_two_reverted_loads_stands_again(made: Loads) -> None:
    await made.whole(table(call(1, tokens_in=5000)), "one.csv", load_id="one", rank=5)
    await made.whole(table(call(1, tokens_in=7000)), "two.csv", load_id="two", rank=6)
    await made.revert("one")
    assert made.ledger.value("select sum(uncached_input_tokens) from ledger.entries") == 7000
    await made.revert("two")
    assert made.ledger.requests("source") == {}
    assert await broken(made.ledger) == []


async def test_the_newer_of_two_loads_goes_and_the_older_stands_again(made: Loads) -> None:
    await made.whole(table(call(1, tokens_in=5000)), "one.csv", load_id="one", rank=5)
    await made.whole(table(call(1, tokens_in=7000)), "two.csv", load_id="two", rank=6)
    await made.revert("two")
    assert made.ledger.value("select sum(uncached_input_tokens) from ledger.entries") == 5000
    await made.revert("one")
    assert made.ledger.requests("source") == {}
    assert await broken(made.ledger) == []


async def test_a_revert_enters_the_earliest_open_month(made: Loads) -> None:
    await made.whole(table(call(1, time="2025-12-10T10:00:00Z")))
    made.ledger.close_period("t-alpha", date(2025, 12, 1))
    await made.revert()
    assert made.ledger.rows("select posting_period, kind, charge_amount, occurred_at::date from ledger.entries order by entry_id") == [
        (date(2025, 12, 1), "usage", CALL, date(2025, 12, 10)),
        (date(2026, 1, 1), "reversal", -CALL, date(2025, 12, 10)),
    ]  # fmt: skip


async def test_a_load_that_was_never_committed_only_ends(made: Loads) -> None:
    await made.create()
    await made.load(table(call(1)))
    await made.revert()
    assert made.ledger.rows("select state, (select count(*) from ledger.load_rows) from ledger.loads") == [
        ("reverted", 0)
    ]
    assert made.ledger.value("select count(*) from ledger.batches") == 0


async def expired(made: Loads, now: str) -> int:
    async with await connect(made.ledger.database.url_for("tallystick_operator")) as operator:
        done = await expiry.expire(
            operator,
            now=parse_rfc3339(now),
            raw_usage_months=120,
            dead_letter_days=90,
            open_dead_letter_days=400,
            load_days=90,
            actor="scheduler",
        )
    return done.load_rows


@pytest.mark.parametrize(("days", "rows"), [(89, 0), (91, 2)])
async def test_staged_rows_have_an_age_and_what_was_posted_stays(made: Loads, days: int, rows: int) -> None:
    await made.whole(table(call(1), call(2)))
    made.ledger.superuser.execute(
        "update ledger.loads set committed_at = timestamptz '2026-06-01' - make_interval(days => %s)", [days]
    )
    assert await expired(made, "2026-06-01T00:00:00Z") == rows
    assert made.ledger.value("select count(*) from ledger.load_rows") == 2 - rows
    assert made.ledger.total() == 2 * CALL
    acts = made.ledger.rows("select detail ->> 'rows' from ledger.acts where act = 'retention.expire_load_rows'")
    assert acts == ([("2",)] if rows else [])
    # It can be taken back all the same: a revert reads the ledger.
    await made.revert()
    assert made.ledger.total() == 0


@pytest.mark.parametrize(("days", "state"), [(399, "loaded"), (401, "reverted")])
async def test_a_load_that_nobody_commits_ends(made: Loads, days: int, state: str) -> None:
    await made.create()
    await made.load(table(call(1)))
    made.ledger.superuser.execute(
        "update ledger.loads set loaded_at = timestamptz '2027-06-01' - make_interval(days => %s)", [days]
    )
    assert await expired(made, "2027-06-01T00:00:00Z") == int(state == "reverted")
    assert made.ledger.rows("select state from ledger.loads") == [(state,)]


async def test_a_gateways_own_cache_hits_are_taken_back_too(made: Loads) -> None:
    hit = make_event("h1", cache_result="exact_hit")
    await made.whole(event_bytes(hit), "hits.ndjson")
    assert made.ledger.value("select sum(avoided_tokens) from ledger.entries") == 110
    await made.revert()
    assert made.ledger.rows("select sum(request_count), sum(avoided_tokens) from ledger.entries") == [(0, 0)]


# --- Refused rows -----------------------------------------------------------------------------------------------------


async def test_refused_rows_stop_a_commit_until_somebody_says_without_them(made: Loads) -> None:
    await made.create()
    loaded = await made.load(table(call(1), call(2).replace(",1000,", ",12.5,"), call(3)))
    assert (
        loaded.first_refused[0].detail == "usage.csv row 2: uncached_input_tokens: '12.5' is no whole number below 2^63"
    )
    with pytest.raises(ActRefused, match="load jan has 1 refused rows"):
        await made.commit()
    done = await made.commit(without_refused=True)
    assert done.outcomes == {"created": 2, "dead_letter": 1}
    ((origin, body, detail),) = made.ledger.rows("select origin, bytes, detail from ledger.dead_letters")
    assert (origin, json.loads(body)["uncached_input_tokens"]) == ("load:jan", "12.5")
    assert detail == loaded.first_refused[0].detail


async def test_two_rows_under_one_id_that_differ_are_both_refused(made: Loads) -> None:
    await made.create()
    loaded = await made.load(table(call(1), call(1, tokens_in=7), call(2), call(2)))
    assert loaded.refused == {"duplicate_id": 2}
    assert (
        loaded.first_refused[0].detail == "usage.csv row 1: id: stands on another row of this load with other content"
    )
    assert (await made.commit(without_refused=True)).outcomes == {"dead_letter": 2, "created": 1, "duplicate": 1}


async def test_the_same_file_is_loaded_once(made: Loads) -> None:
    await made.create()
    await made.load(table(call(1)))
    with pytest.raises(ActRefused, match="load jan has this file already"):
        await made.load(table(call(1)), "again.csv")


async def test_a_line_that_is_no_json_is_a_refused_row(made: Loads) -> None:
    await made.create()
    lines = b"\n".join([event_bytes(make_event("e1")), b'{"id": ', b"[1,2]", event_bytes(make_event("e2"))])
    loaded = await made.load(lines, "usage.ndjson")
    assert (loaded.rows, loaded.refused) == (4, {"not_an_event": 1, "truncated": 1})
    assert (await made.commit(without_refused=True)).outcomes == {"created": 2, "dead_letter": 2}


async def test_a_row_without_a_request_id_is_refused(made: Loads) -> None:
    await made.create()
    assert (await made.load(table(call(1, request="")))).refused == {"missing_request_id": 1}


async def test_loads_are_named_well_and_known(made: Loads) -> None:
    with pytest.raises(ActRefused, match="an id is letters"):
        await made.create("a b")
    with pytest.raises(Unknown, match="there is no load 'nope'"):
        await made.preview("nope")
    await made.create()
    with pytest.raises(LoadFileRefused, match="holds no rows"):
        await made.load(HEADER + "\n")
