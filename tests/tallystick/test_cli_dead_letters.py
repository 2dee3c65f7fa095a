"""Dead letters by command: found, shown, looked after, released; what is shown cannot steer a terminal."""

import csv
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from tests.factories import event_bytes, make_event
from tests.support.ledger import Ledger
from tests.tallystick.commands import Commands

CHECKOUT = Path(__file__).parent.parent.parent
HOSTILE = b'{"id": "\x1b[2J\xe2\x80\xae\x07",\n\xff\xfe}'


@pytest.fixture
def world(commands: Commands, months_template: str) -> Iterator[Ledger]:
    made = Ledger(commands.database).add_tenant().add_source()
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
async def posted(commands: Commands, world: Ledger) -> Commands:
    """A ledger with one entry and four dead letters: 1 of an unknown tenant, 2 no text, 3 no JSON, 4 a conflict."""
    await world.add_price(input="2.00", output="8.00")
    await world.post(make_event("e1"), make_event("e2", tenant_id="t-nobody"))
    await world.post_bytes(HOSTILE)
    await world.post_bytes("\x1b[2J\u202e garbage".encode())
    await world.post(make_event("e1", usage={"prompt_tokens": 90, "completion_tokens": 10, "total_tokens": 100}))
    return commands


def ids(commands: Commands, *options: str) -> list[int]:
    return [each["dead_letter_id"] for each in commands.json("dead-letters", "list", *options)]


def test_letters_are_listed_by_page_and_for_programs(posted: Commands) -> None:
    listed = ids(posted)
    assert listed == sorted(listed, reverse=True)
    assert len(listed) == 4
    page = posted.ok("dead-letters", "list", "--limit", "3")
    assert f"there are more: --before {listed[2]}" in page.err
    assert "4 wait for a person: " in page.err
    assert ids(posted, "--before", str(listed[2])) == listed[3:]
    assert ids(posted, "--tenant", "t-nobody") == ids(posted, "--code", "unknown_tenant")
    rows = list(csv.DictReader(io.StringIO(posted.ok("dead-letters", "list", "--format", "csv").out)))
    assert [int(row["dead_letter_id"]) for row in rows] == listed
    assert {row["event_id"] for row in rows} == {"e1", "e2", ""}


def test_a_letter_is_shown_with_the_field_at_fault(posted: Commands) -> None:
    (letter,) = ids(posted, "--code", "unknown_tenant")
    shown = posted.ok("dead-letters", "show", str(letter)).out
    assert "at fault  data.tenant_id" in shown
    assert "it says   't-nobody'" in shown
    assert '    "tenant_id": "t-nobody",\n' in shown
    told = posted.json("dead-letters", "show", str(letter))
    assert (told["field"], json.loads(told["bytes"])["id"]) == ("data.tenant_id", "e2")


def test_bytes_that_are_no_text_are_shown_as_hex_and_text_as_escapes(posted: Commands) -> None:
    hostile, garbage = sorted(ids(posted))[1:3]
    shown = posted.ok("dead-letters", "show", str(hostile)).out
    assert '00000000  7b 22 69 64 22 3a 20 22 1b 5b 32 4a e2 80 ae 07  {"id": ".[2J....' in shown
    assert posted.json("dead-letters", "show", str(hostile))["bytes_hex"] == HOSTILE.hex()
    shown = posted.ok("dead-letters", "show", str(garbage)).out
    assert "\\x1b[2J\\u202e garbage\n" in shown
    assert shown.replace("\n", "").isprintable()


def test_the_bytes_come_back_as_they_were(posted: Commands) -> None:
    letter = sorted(ids(posted))[1]
    asked = [sys.executable, "-m", "tallystick", "dead-letters", "show", str(letter), "--raw"]
    assert subprocess.run(asked, cwd=CHECKOUT, capture_output=True, check=True).stdout == HOSTILE


def test_a_conflict_is_shown_beside_what_was_accepted(posted: Commands) -> None:
    (letter,) = ids(posted, "--code", "conflict")
    told = posted.json("dead-letters", "show", str(letter))
    assert told["differences"] == [{"field": "uncached_input_tokens", "accepted": 100, "this": 90}]
    assert [each["kind"] for each in told["accepted"]] == ["usage"]
    # 100 x 2.00 and 10 x 8.00 a million, digit for digit: no amount becomes a float on its way.
    assert Decimal(told["accepted"][0]["values"]["cost_amount"]) == Decimal("0.00028")
    assert isinstance(told["accepted"][0]["values"]["cost_amount"], str)
    lines = posted.ok("dead-letters", "show", str(letter)).out.splitlines()
    assert ["uncached_input_tokens", "100", "90"] in [line.split() for line in lines]
    assert any(told["first_hash"] in line and told["second_hash"] in line for line in lines)


@pytest.fixture
async def less_said(commands: Commands, world: Ledger) -> Commands:
    """A ledger with a cached call of a feature, and the same event again with neither cache nor feature."""
    counts = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    await world.post(make_event("e1", usage={**counts, "prompt_tokens_details": {"cached_tokens": 40}}))
    await world.post(make_event("e1", feature=..., usage=counts))
    return commands


def test_what_a_conflict_leaves_out_differs_too(less_said: Commands) -> None:
    """What was accepted and is not said again is a difference: a feature and 40 of 100 tokens from the cache."""
    (letter,) = ids(less_said, "--code", "conflict")
    differing = {
        each["field"]: (each["accepted"], each["this"])
        for each in less_said.json("dead-letters", "show", str(letter))["differences"]
    }
    assert differing["feature"] == ("chat", None)
    assert differing["cache_read_tokens"] == (40, 0)
    assert differing["uncached_input_tokens"] == (60, 100)


def test_letters_are_looked_after_and_every_act_stands(posted: Commands) -> None:
    first, second, *_ = sorted(ids(posted))
    posted.ok("dead-letters", "assign", str(first), str(second), "--owner", "bea", "--actor", "ann")
    posted.ok("dead-letters", "note", str(first), "asked the sender", "--actor", "bea")
    assert sorted(ids(posted, "--owner", "bea")) == [first, second]
    assert len(ids(posted, "--owner", "")) == 2
    posted.ok("dead-letters", "resolve", str(second), "--reason", "a scanner", "--actor", "bea")
    assert second not in ids(posted)
    (resolved,) = posted.json("dead-letters", "list", "--state", "resolved")
    assert (resolved["resolution"], resolved["resolved_by"]) == ("dismissed", "bea")
    told = posted.json("dead-letters", "show", str(first))
    assert (told["owner"], told["note"]) == ("bea", "asked the sender")
    assert [(each["actor"], each["act"], each["detail"]["letter"]) for each in told["acts"]] == [
        ("ann", "dead_letters.assign", "assigned"),
        ("bea", "dead_letters.note", "noted"),
    ]
    again = posted("dead-letters", "resolve", str(second), "--reason", "r").line
    assert again == f"dead letter {second} is resolved already: dismissed"
    assert posted("dead-letters", "assign", "9999", "--owner", "bea").line == "there is no dead letter '9999'"
    assert ids(posted, "--owner", "bea") == [first]


def test_letters_are_released_by_what_they_have_in_common(posted: Commands, world: Ledger) -> None:
    world.add_tenant("t-nobody")
    ran = posted.json("dead-letters", "replay", "--where", "--code", "unknown_tenant", "--actor", "ann")
    assert [(each["outcome"], each["reason"]) for each in ran] == [("created", None)]
    assert world.total() == Decimal("0.00056")
    again = posted.ok("dead-letters", "replay", "--where", "--code", "unknown_tenant")
    assert again.out == "no dead letters\n"


def test_a_letter_is_mended_by_field_by_file_and_by_editor(
    posted: Commands, world: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three misspelt flavours, each set right another way: 3 x 0.00028 beside what stands."""
    with_flavour = [make_event(f"m{n}", flavour="openai.chatt") for n in range(3)]
    file = tmp_path / "fixed.json"
    file.write_bytes(event_bytes(make_event("m1")))
    script = tmp_path / "editor.py"
    script.write_text(
        "import sys, pathlib\npath = pathlib.Path(sys.argv[1])\n"
        "path.write_text(path.read_text().replace('openai.chatt', 'openai.chat'))\n"
    )
    monkeypatch.setenv("VISUAL", f"{sys.executable} {script}")
    before = world.total()
    ways = (["--set", "data.flavour=openai.chat"], ["--file", str(file)], ["--edit"])
    import asyncio

    for event, way in zip(with_flavour, ways, strict=True):
        asyncio.run(post(world, event))
        (letter,) = ids(posted, "--code", "unknown_flavour")
        assert posted("dead-letters", "replay", str(letter), *way).line == "a dead letter that is mended needs --reason"
        ran = posted.json("dead-letters", "replay", str(letter), *way, "--reason", "misspelt")
        assert [each["outcome"] for each in ran] == ["created"], way
    assert world.total() == before + 3 * Decimal("0.00028")


async def post(world: Ledger, event: dict[str, object]) -> None:
    await world.post(event)


def test_what_cannot_be_released_is_one_line_and_a_code(posted: Commands) -> None:
    (unknown,) = ids(posted, "--code", "unknown_tenant")
    (conflict,) = ids(posted, "--code", "conflict")
    for arguments, line in (
        ([], "name dead letters by id, or choose them with --where and its options"),
        (["--where"], "--where needs an option that chooses, such as --code unknown_source"),
        ([str(unknown), "--code", "conflict"], "dead letters that are named by id need no option that chooses"),
        ([str(unknown), str(conflict), "--edit"], "--file and --edit mend one dead letter"),
        ([str(unknown), "--other-identity"], "--other-identity goes with a mended event"),
        ([str(unknown), "--set", "x", "--reason", "r"], "'x' is neither path=text nor path:=json"),
    ):
        assert posted("dead-letters", "replay", *arguments).line.startswith(line), arguments
    ran = posted("dead-letters", "replay", "9999")
    assert (ran.code, ran.err.count("there is no dead letter 9999")) == (1, 1)
    ran = posted("dead-letters", "replay", str(conflict))
    assert "is conflict (conflict): what was accepted under its identity stands" in ran.err
    ran = posted("dead-letters", "replay", str(unknown), "--set", "id=other", "--reason", "r")
    assert "id would change from 'e2' to 'other'" in ran.err
    assert len(ids(posted)) == 4


def test_gaps_are_listed_and_accepted_by_command(posted: Commands, world: Ledger) -> None:
    """Numbers 1, 2 and 5 came: 3 to 4 are open for a quarter of an hour, then lost, until somebody knows."""
    assert posted.ok("gaps", "list").out == "no sender counts: events carry no sequence\n"
    import asyncio

    for number in (1, 2, 5):
        asyncio.run(post(world, make_event(f"s{number}", sequence=number)))
    (gap,) = posted.json("gaps", "list")["gaps"]
    assert (gap["source"], gap["low"], gap["high"], gap["number_count"], gap["state"]) == (
        "gateway://eu-1", 3, 4, 2, "open",
    )  # fmt: skip
    (gap,) = posted.json("gaps", "list", "--grace", "0")["gaps"]
    assert gap["state"] == "lost"
    assert posted.json("gaps", "list", "--since", "2100-01-01")["gaps"] == []
    posted.ok("gaps", "accept", "gateway://eu-1", "--from", "3", "--to", "4", "--reason", "the disk died")
    assert posted.json("gaps", "list", "--grace", "0")["gaps"][0]["state"] == "accepted"
    assert "has no gap there" in posted("gaps", "accept", "gateway://eu-1", "--reason", "r").line
