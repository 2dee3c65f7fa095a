"""Reading again after a record was mended: shown first, posted once, for what stands alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from ingest import counts
from ingest.flavours import FLAVOURS, Flavour
from ingest.rereading import Reread, lines_of, reread
from ledger.database import connect
from ledger.errors import Unknown
from tests.factories import NODE, make_event
from tests.support.ledger import Ledger
from tests.tallystick.commands import Commands

GROK = {"provider": "xai", "model": "m-grok", "requested_model": "m-grok", "flavour": "xai.chat"}


def grok(event_id: str, **others: Any) -> dict[str, Any]:
    """A call of 1,000 prompt tokens (640 read), 50 visible and 400 reasoning tokens beside them."""
    usage = {
        "prompt_tokens": 1000,
        "completion_tokens": 50,
        "total_tokens": 1450,
        "prompt_tokens_details": {"cached_tokens": 640},
        "completion_tokens_details": {"reasoning_tokens": 400},
    }
    return make_event(event_id, **{"usage": usage, **GROK, **others})


@contextmanager
def older(record: Flavour) -> Iterator[None]:
    """Read with an older record of a flavour."""
    patch = pytest.MonkeyPatch()
    patch.setitem(FLAVOURS, record.name, record)  # type: ignore[arg-type]
    patch.setitem(counts._PLANS, record.name, counts._Plan(record))  # type: ignore[arg-type]
    try:
        yield
    finally:
        patch.undo()


# It knew nothing of reasoning, whose tokens the total then held unexplained; and took what was read from the cache for new.
NO_DETAILS = replace(
    FLAVOURS["xai.chat"],
    version=0,
    input=replace(FLAVOURS["xai.chat"].input, details=()),
    output=replace(FLAVOURS["xai.chat"].output, details=()),
    total=(),
)


async def run(ledger: Ledger, *, keep: bool, flavour: str = "xai.chat", **options: Any) -> Reread:
    connection = await connect(ledger.database.url_for("tallystick_writer"))
    try:
        return await reread(connection, flavour, keep=keep, actor="ann", reason="reasoning lies beside", **options)
    finally:
        await connection.close()


async def priced(ledger: Ledger) -> None:
    await ledger.add_price("m-grok", provider="xai", markup="2", input="3.00", cached="0.75", output="15.00")


async def test_a_mended_record_posts_the_difference_with_its_reason(ledger: Ledger) -> None:
    """Was 1000 x 3.00 + 50 x 15.00 = 3,750; is 360 x 3.00 + 640 x 0.75 + 450 x 15.00 = 8,310 millionths; charged twice that."""
    await priced(ledger)
    with older(NO_DETAILS):
        await ledger.post(grok("a"), grok("b"))
    assert ledger.total("cost") == 2 * Decimal("0.00375")

    shown = await run(ledger, keep=False)
    assert (shown.read_count, shown.total.request_count, shown.unchanged_count) == (2, 2, 0)
    assert shown.by_tenant["t-alpha"].quantities == {
        "uncached_input_tokens": 2 * (360 - 1000),
        "cache_read_tokens": 2 * 640,
        "reasoning_tokens": 2 * 400,
    }
    assert shown.total.cost == {"USD": 2 * (Decimal("0.00831") - Decimal("0.00375"))}
    assert shown.total.charge == {"USD": 2 * 2 * (Decimal("0.00831") - Decimal("0.00375"))}
    assert ledger.value("select count(*) from ledger.entries") == 2

    kept = await run(ledger, keep=True)
    assert kept.total == shown.total
    assert len(kept.batch_ids) == 1
    assert ledger.total("cost") == 2 * Decimal("0.00831")
    assert ledger.total() == 2 * 2 * Decimal("0.00831")
    assert ledger.rows(
        "select distinct kind, actor, reason, source, revision from ledger.entries where kind <> 'usage'"
    ) == [("true_up", "ann", "reasoning lies beside", "gateway://eu-1", 0)]
    assert ledger.value("select sum(request_count) from ledger.entries") == 2
    assert ledger.value("select kind from ledger.feeds where name = 'commands:events-reread'") == "commands"


async def test_a_second_run_adds_nothing(ledger: Ledger) -> None:
    await priced(ledger)
    with older(NO_DETAILS):
        await ledger.post(grok("a"))
    await run(ledger, keep=True)
    count = ledger.value("select count(*) from ledger.entries")
    again = await run(ledger, keep=True)
    assert (again.read_count, again.batch_ids) == (0, [])
    assert ledger.value("select count(*) from ledger.entries") == count


async def test_what_reads_the_same_is_left_alone(ledger: Ledger) -> None:
    await priced(ledger)
    with older(replace(FLAVOURS["xai.chat"], version=0)):
        await ledger.post(grok("a"))
    found = await run(ledger, keep=True)
    assert (found.read_count, found.unchanged_count, found.batch_ids) == (1, 1, [])


async def test_a_lower_count_of_a_final_request_is_accepted_by_the_command(ledger: Ledger) -> None:
    """The faulty record took the total for the output; no report of the same source could take that back."""
    await priced(ledger)
    record = FLAVOURS["xai.chat"]
    with older(replace(record, version=0, output=replace(record.output, at=("total_tokens",)), total=())):
        await ledger.post(grok("a", usage={"prompt_tokens": 10, "completion_tokens": 500, "total_tokens": 510}))
    assert ledger.value("select output_tokens from ledger.entries") == 510
    await run(ledger, keep=True)
    assert ledger.value("select sum(output_tokens) from ledger.entries") == 500
    assert ledger.value("select rank[1] from ledger.requests") == 1


async def test_only_the_statement_that_stands_is_read_again(ledger: Ledger) -> None:
    """The node's report is evidence beside the gateway's and moves nothing, whatever it says now."""
    await priced(ledger)
    with older(NO_DETAILS):
        await ledger.post(grok("a"))
        await ledger.post(grok("b", source=NODE, request_id="req-a"))
    found = await run(ledger, keep=True)
    assert found.read_count == 1
    assert ledger.total("cost") == Decimal("0.00831")


async def test_a_later_report_of_the_source_does_not_undo_the_decision(ledger: Ledger) -> None:
    await priced(ledger)
    with older(NO_DETAILS):
        await ledger.post(grok("a"))
    await run(ledger, keep=True)
    posted = await ledger.post(grok("late", request_id="req-a", revision=1))
    assert ledger.outcomes(posted) == ["evidence"]
    assert ledger.total("cost") == Decimal("0.00831")


async def test_a_stream_is_folded_again_from_its_frames(ledger: Ledger) -> None:
    await ledger.add_price("m-add", provider="anthropic", input="3.00", output="15.00")
    frames = [{"input_tokens": 31, "output_tokens": 1}, {"output_tokens": 22}]
    record = FLAVOURS["anthropic.messages"]
    with older(replace(record, version=1, stream="last_stated")):
        await ledger.post(
            make_event(
                usage_frames=frames, flavour=record.name, provider="anthropic", model="m-add", requested_model="m-add"
            )
        )
    assert ledger.value("select usage_flags from ledger.entries") == ["usage_incomplete"]
    found = await run(ledger, keep=True, flavour=record.name)
    assert (found.total.unpriced_before, found.total.unpriced_after) == (1, 0)
    assert ledger.total() == Decimal("0.000423")


async def test_earlier_requests_are_left_out_by_their_time(ledger: Ledger) -> None:
    await priced(ledger)
    with older(NO_DETAILS):
        await ledger.post(grok("a", time="2026-01-14T10:00:00Z"), grok("b", time="2026-01-15T10:00:00Z"))
    found = await run(ledger, keep=False, since=1_768_435_200_000_000)
    assert found.read_count == 1


async def test_what_is_refused_now_stays_and_is_told(ledger: Ledger) -> None:
    await priced(ledger)
    impossible = {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "total_tokens": 15,
        "prompt_tokens_details": {"cached_tokens": 11},
    }
    with older(NO_DETAILS):
        await ledger.post(grok("a", usage=impossible))
    found = await run(ledger, keep=True)
    assert (dict(found.refused), found.batch_ids) == ({"part_above_whole": 1}, [])
    assert ledger.value("select count(*) from ledger.entries") == 1


async def test_an_unknown_flavour_is_named(ledger: Ledger) -> None:
    with pytest.raises(Unknown, match="there is no flavour 'oops'"):
        await run(ledger, keep=False, flavour="oops")


async def test_what_moves_is_told_by_tenant_and_in_sum(ledger: Ledger) -> None:
    await priced(ledger)
    with older(NO_DETAILS):
        await ledger.post(grok("a"))
    assert list(lines_of(await run(ledger, keep=False)))[:6] == [
        ("t-alpha", "requests", "", "1"),
        ("t-alpha", "uncached_input_tokens", "", "-640"),
        ("t-alpha", "cache_read_tokens", "", "+640"),
        ("t-alpha", "reasoning_tokens", "", "+400"),
        ("t-alpha", "cost", "USD", "+0.00456"),
        ("t-alpha", "charge", "USD", "+0.00912"),
    ]


async def _post_older(ledger: Ledger) -> None:
    await priced(ledger)
    with older(NO_DETAILS):
        await ledger.post(grok("a"))


def test_the_command_shows_first_and_posts_on_demand(
    ledger: Ledger, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    import asyncio

    monkeypatch.setenv("TALLYSTICK_HOME", str(tmp_path))
    monkeypatch.setenv("TALLYSTICK_DATABASE_URL", ledger.database.url)
    commands = Commands(capsys, ledger.database)
    asyncio.run(_post_older(ledger))
    shown = commands.ok("events", "reread", "--flavour", "xai.chat")
    assert "1 requests change" in shown.out
    assert "nothing is posted" in shown.out
    assert commands("events", "reread", "--flavour", "xai.chat", "--commit").line.startswith("--commit needs --reason")
    commands.ok("events", "reread", "--flavour", "xai.chat", "--commit", "--reason", "record mended", "--actor", "ann")
    assert ledger.total("cost") == Decimal("0.00831")
    assert commands.json("events", "reread", "--flavour", "xai.chat")["read_count"] == 0
    assert commands("events", "reread", "--flavour", "oops").line == "there is no flavour 'oops'"
