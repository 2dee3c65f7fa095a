"""Months that leave, users that are erased and what has an age limit, by command."""

import json
from datetime import date
from pathlib import Path

import pytest

from tests.factories import make_event
from tests.support.ledger import Ledger
from tests.tallystick.commands import Commands


@pytest.fixture
async def december(commands: Commands, months_template: str) -> Commands:
    """One entry of a user in December, one in January; December can be closed."""
    ledger = Ledger(commands.database).add_tenant().add_source()
    try:
        await ledger.add_price(input="2.00", output="8.00")
        await ledger.post(
            make_event("d1", time="2025-12-10T10:00:00Z", user_hash="hash-of-ada"), received_at="2025-12-10T10:01:00Z"
        )
        await ledger.post(make_event("j1", user_hash="hash-of-ada"))
    finally:
        ledger.close()
    return commands


def test_a_month_is_exported_retired_and_restored(december: Commands, tmp_path: Path) -> None:
    assert december("retention", "export", "2025-12").line == "2025-12 is not closed and sealed for t-alpha"
    december.ok("period", "close", "2025-12", "--all", "--early", "--reason", "test", "--commit")
    assert december("retention", "retire", "2025-12", "--reason", "over").line == (
        "2025-12 has not been exported: `tallystick retention export 2025-12`"
    )
    made = december.json("retention", "export", "2025-12", "--to", str(tmp_path / "out"))
    assert (made["rows"], made["batches"], made["parts"]) == (1, 1, 1)
    manifest = json.loads((Path(made["folder"]) / "manifest.json").read_text())
    assert manifest["row_count"] == 1
    said = december.ok("retention", "retire", "2025-12", "--drop", "--reason", "over", "--actor", "finance").out
    assert said == f"1 row of 2025-12 left the ledger and are in {made['folder']} alone\n"
    listed = {each["posting_period"]: each for each in december.json("retention", "show")}
    assert listed["2025-12-01"]["rows_are"] == "dropped"
    assert listed["2026-01-01"]["rows_are"] == "attached"
    moved = tmp_path / "moved"
    Path(made["folder"]).rename(moved)
    assert "holds no export" in december("retention", "restore", "2025-12", "--reason", "asked").line
    assert (
        "1 row of 2025-12 can be read again"
        in december.ok("retention", "restore", "2025-12", str(moved), "--reason", "asked").out
    )
    assert december("retention", "restore", "2025-12", str(moved), "--reason", "asked").line == (
        "the rows of 2025-12 are in the ledger"
    )
    assert december("retention", "export", "2024-01").line == "2024-01 has no rows"


def test_a_month_that_left_is_not_made_into_marts_again(december: Commands, tmp_path: Path) -> None:
    from tallystick.rollup import RollupFailed, rebuild

    december.ok("period", "close", "2025-12", "--all", "--early", "--reason", "test", "--commit")
    december.ok("retention", "export", "2025-12", "--to", str(tmp_path))
    december.ok("retention", "retire", "2025-12", "--reason", "over")
    with pytest.raises(RollupFailed, match="the rows of 2025-12 have left it"):
        rebuild(december.database.url_for("tallystick_rollup"), tmp_path)
    with december.database.connect() as connection:
        assert connection.execute("select posting_period from ledger.retired_months").fetchall() == [
            (date(2025, 12, 1),)
        ]


def test_a_user_is_shown_and_erased(december: Commands) -> None:
    who = ("--tenant", "t-alpha", "--user-hash", "hash-of-ada")
    shown = december.json("subjects", "show", *who)
    assert shown["entry_count"] == 2
    lines = december.ok("subjects", "show", *who, "--entries").out.splitlines()
    assert [json.loads(line)["request_id"] for line in lines] == ["req-d1", "req-j1"]
    said = december.ok("subjects", "erase", *who, "--reason", "asked").out
    assert f"2 entries keep the bare id {shown['subject_id']}" in said
    assert "nothing links to this hash" in december.ok("subjects", "erase", *who, "--reason", "asked").out
    assert december("subjects", "show", *who).line == "there is no subject of this hash for tenant 't-alpha'"


def test_what_is_old_goes_by_command(december: Commands) -> None:
    """The partitions of the fixture's months were made; those that are older than six months have nothing new to come."""
    first = december.ok("retention", "expire").out
    assert first.startswith("raw usage of 2025-12, ")
    assert first.endswith(" dropped\n")
    assert december.ok("retention", "expire").out == "nothing is that old\n"
    assert [act["act"] for act in december.json("acts", "list", "--act", "retention")] == ["retention.drop_raw_usage"]
