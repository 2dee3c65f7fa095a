"""Backfills by command: the page's own example runs, and what a person or a program reads."""

import re
import shlex
from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest

from tests.support.ledger import Ledger
from tests.tallystick.commands import Commands

CHECKOUT = Path(__file__).parent.parent.parent
PAGE = CHECKOUT / "ingest" / "backfills.md"


@pytest.fixture
async def acme(commands: Commands) -> Commands:
    """A tenant, acme, from 2023 on, and a price of 0.25 in and 2.00 out per million."""
    ledger = Ledger(commands.database).add_tenant("acme", first_period=date(2023, 11, 1), months=40)
    try:
        await ledger.add_price("gpt-5-mini", input="0.25", cached="0.025", output="2.00")
    finally:
        ledger.close()
    return commands


def test_the_example_of_the_page_runs(acme: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CHECKOUT)
    example = re.search(r"```sh\n(tallystick backfill create.*?)```", PAGE.read_text(), re.DOTALL)
    assert example is not None
    said = [acme.ok(*shlex.split(line)[1:]).out for line in example[1].splitlines() if line]
    created, loaded, preview, committed, shown, reverted, _, trace, listed = said
    assert "load sept is made" in created
    assert "late-usage.csv: 3 rows staged" in loaded
    # September: 1200 x 0.25 + 80 x 2.00 = 460 millionths. October: 15900 x 0.25 + 12300 x 0.025 + 275 x 2.00 = 4,832.5.
    assert "0.00046 " in preview
    assert {"amounts", "months", "budgets"} <= set(preview.splitlines()), "headings stand on lines of their own"
    assert "0.0048325 " in preview
    assert "load sept is committed: 3 created; 3 rows written" in committed
    assert re.search(r"state +committed", shown)
    assert "load sept is reverted: 3 requests taken back, 3 rows written" in reverted
    assert "AzureLLMInferenceTrace_conv.csv.gz: 19,366 rows staged" in trace
    assert re.search(r"trace .* loaded", listed)


def test_programs_read_what_people_see(acme: Commands, tmp_path: Path) -> None:
    acme.ok("backfill", "create", "b", "--rank", "5", "--all-tenants", "--reason", "r", "--actor", "ann")
    text = (CHECKOUT / "data" / "backfill" / "late-usage.csv").read_text()
    (tmp_path / "u.csv").write_text(
        text + text.splitlines()[1].replace("1200", "12.5").replace("late-1", "late-4") + "\n"
    )
    (loaded,) = acme.json("backfill", "load", "b", str(tmp_path / "u.csv"), "--actor", "ann")
    assert (loaded["rows"], loaded["refused"]) == (4, {"bad_row": 1})
    preview = acme.json("backfill", "preview", "b")
    assert preview["outcomes"] == {"created": 3}
    assert {each["month"]: Decimal(each["charge"]) for each in preview["amounts"]} == {
        "2026-09-01": Decimal("0.00046"),
        "2026-10-01": Decimal("0.0048325"),
    }
    assert acme("backfill", "commit", "b").line.startswith("load b has 1 refused rows")
    done = acme.json("backfill", "commit", "b", "--without-refused")
    assert done["outcomes"] == {"created": 3, "dead_letter": 1}
    shown = acme.json("backfill", "show", "b")
    assert (shown["state"], shown["posted_count"], shown["files"][0]["sha256"]) == ("committed", 4, loaded["sha256"])
    assert shown["refused_rows"][0]["detail"].startswith("u.csv row 4: uncached_input_tokens: '12.5'")
    assert acme.json("backfill", "list")[0]["load_id"] == "b"
    assert acme.json("backfill", "revert", "b", "--reason", "wrong")["requests"] == 3
    acts = [(each["act"], each["actor"]) for each in acme.json("acts", "list", "--act", "backfill")]
    assert ("backfill.create", "ann") in acts
    assert [act for act, _ in acts][::-1] == [
        "backfill.create", "backfill.load", "backfill.preview", "backfill.commit", "backfill.revert",
    ]  # fmt: skip


def test_a_commit_and_a_revert_wait_for_a_second_person_where_it_is_set(
    acme: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TALLYSTICK_SECOND_PERSON", "backfill")
    acme.ok("backfill", "create", "b", "--rank", "5", "--tenant", "acme", "--reason", "r", "--actor", "ann")
    acme.ok("backfill", "load", "b", str(CHECKOUT / "data" / "backfill" / "late-usage.csv"), "--actor", "ann")
    acme.ok("backfill", "preview", "b", "--actor", "ann")
    for act, state in (("commit", "committed"), ("revert", "reverted")):
        asked = acme.waits("backfill", act, "b", "--reason", "september", "--actor", "ann")
        approval = re.search(rf"backfill\.{act} needs a second person: approval (\d+)", asked)
        assert approval is not None, asked
        assert acme.json("backfill", "show", "b")["state"] != state
        acme.ok("approvals", "approve", approval[1], "--actor", "bob")
        acme.ok("backfill", act, "b", "--reason", "september", "--actor", "ann")
        assert acme.json("backfill", "show", "b")["state"] == state
        (found,) = acme.json("acts", "list", "--act", f"backfill.{act}")
        assert found["second_person"] == "bob"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["preview", "nope"], "there is no load 'nope'"),
        (["load", "nope", "u.csv"], "u.csv: no such file"),
        (["load", "nope", "README.md"], "README.md: its name ends in none of .csv, .parquet, .ndjson, .jsonl, .json (and .gz of those)"),
        (["load", "nope", "u.csv", "--time-zone", "Mars/Olympus"], "--time-zone: 'Mars/Olympus' is no time zone such as Europe/Berlin"),
        (["create", "x", "--rank", "1", "--reason", "r"], "a source speaks for all tenants or for named ones: say which"),
        (["revert", "x", "--reason", " "], "a revert needs a reason: it stands on every entry"),
    ],
)  # fmt: skip
def test_failures_are_one_line(
    commands: Commands, monkeypatch: pytest.MonkeyPatch, words: list[str], line: str
) -> None:
    monkeypatch.chdir(CHECKOUT)
    assert commands("backfill", *words).line == line
