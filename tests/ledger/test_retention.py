"""Months that leave the ledger: exported digit for digit, taken out in one step, and brought back only as they were."""

import json
import os
import signal
import subprocess
import sys
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest

from ledger import closing, retention
from ledger.approvals import Awaiting
from ledger.database import connect
from ledger.entries import COLUMNS
from ledger.errors import ActRefused
from ledger.tables import ENTRY_COLUMNS
from tests.factories import make_event
from tests.support.ledger import Ledger

CHECKOUT = Path(__file__).parent.parent.parent
DECEMBER, JANUARY, FEBRUARY = date(2025, 12, 1), date(2026, 1, 1), date(2026, 2, 1)
ODD = 'tab\t newline\n return\r backslash\\ \\N quote" \b\f\v é 漢 \\t'


@pytest.fixture
async def two_months(ledger: Ledger) -> Ledger:
    """t-alpha with December and January: odd texts, evidence, true-ups, unpriced rows, fees' decimals; December is closed."""
    await ledger.add_price(input="0.123456789", output="8.00")
    await ledger.post(
        make_event("d1", time="2025-12-10T10:00:00.123456Z", route=ODD, tags={"k\\": "v\t\n"}, feature="\\N"),
        make_event("d2", time="2025-12-11T10:00:00Z", model="m-nobody", requested_model="m-nobody"),
        make_event("d3", time="2025-12-31T23:59:59.999999Z", usage=None, status="ok"),
        received_at="2025-12-31T23:59:59.999999Z",
    )
    await ledger.post(
        make_event("d4", request_id="req-d1", time="2025-12-10T10:00:00Z", basis="estimated"),
        received_at="2025-12-31T12:00:00Z",
        feed="file:other",
    )
    await ledger.post(make_event("j1"), make_event("j2"))
    return ledger


async def close(ledger: Ledger, *months: date) -> None:
    async with await connect(ledger.database.url_for("tallystick_operator")) as operator:
        for month in months:
            await closing.close_periods(operator, "finance", month, is_early=True, reason="test")
        await closing.seal_pending(operator)
        await closing.close_partitions(operator)


async def operator_does(ledger: Ledger, what: Any, *arguments: Any, **named: Any) -> Any:
    async with await connect(ledger.database.url_for("tallystick_operator")) as operator:
        return await what(operator, *arguments, **named)


async def export(ledger: Ledger, folder: Path, month: date = DECEMBER) -> retention.Export:
    return await operator_does(ledger, retention.export_month, month, folder, actor="finance")


async def retire(ledger: Ledger, month: date = DECEMBER, *, keep: bool = False, **named: Any) -> Any:
    return await operator_does(
        ledger, retention.retire_month, month, keep=keep, actor="finance", reason="ten years are over", **named
    )


async def restore(ledger: Ledger, home: Path | None = None, month: date = DECEMBER) -> int:
    return await operator_does(ledger, retention.restore_month, month, home, actor="an auditor", reason="asked for")


def lines(ledger: Ledger, month: date) -> list[bytes]:
    statement = f"copy (select {', '.join(COLUMNS)} from ledger.entries where posting_period = '{month}' order by entry_id) to stdout"
    with ledger.superuser.cursor().copy(statement) as copy:
        return [bytes(row) for row in copy]


# --- The files ------------------------------------------------------------------------------------------------------


async def test_an_export_reads_back_as_the_very_lines_that_the_chain_covers(two_months: Ledger, tmp_path: Path) -> None:
    import polars as pl

    await close(two_months, DECEMBER)
    made = await export(two_months, tmp_path)
    frames = [pl.read_parquet(path) for path in sorted(made.folder.glob("part-*.parquet"))]
    read = [line for frame in frames for line in retention.lines_of(frame)]
    assert read == lines(two_months, DECEMBER)
    assert made.row_count == len(read) == 4
    whole = pl.concat(frames)
    assert whole["route"].to_list()[0] == ODD
    assert [Decimal(v) for v in whole["charge_amount"].drop_nulls()] == [
        Decimal(row[0]) for row in two_months.rows(
            "select charge_amount from ledger.entries where posting_period = %s and charge_amount is not null order by entry_id",
            DECEMBER,
        )
    ]  # fmt: skip


async def test_the_manifest_says_what_is_in_the_files(two_months: Ledger, tmp_path: Path) -> None:
    await close(two_months, DECEMBER)
    made = await export(two_months, tmp_path)
    manifest = json.loads((made.folder / "manifest.json").read_text())
    assert manifest["posting_period"] == "2025-12-01"
    assert manifest["row_count"] == 4
    assert manifest["batch_count"] == 2
    assert manifest["columns"] == list(COLUMNS)
    assert manifest["charge_sums"] == {
        "USD": f"{two_months.value('select sum(charge_amount) from ledger.entries where posting_period = %s', DECEMBER):f}"
    }
    assert manifest["schema_version"] == two_months.value("select version_num from ledger.alembic_version")
    assert two_months.value("select encode(manifest_hash, 'hex') from ledger.retirements") == made.manifest_hash


def test_every_column_of_an_entry_has_a_type_in_the_files() -> None:
    import polars as pl

    kinds = {"BIGINT": pl.Int64, "INTEGER": pl.Int64, "SMALLINT": pl.Int64, "DATE": pl.Date, "BOOLEAN": pl.Boolean}
    for column in ENTRY_COLUMNS:
        wanted = kinds.get(str(column.type), pl.String)
        if str(column.type).startswith("TIMESTAMP"):
            wanted = pl.Datetime("us", "UTC")
        assert retention.schema()[column.name] == wanted, column.name


async def test_a_month_that_is_not_closed_and_sealed_is_not_exported(two_months: Ledger, tmp_path: Path) -> None:
    with pytest.raises(retention.RetentionRefused, match="2025-12 is not closed and sealed for t-alpha"):
        await export(two_months, tmp_path)
    async with await connect(two_months.database.url_for("tallystick_operator")) as operator:
        await closing.close_periods(operator, "finance", DECEMBER, is_early=True, reason="test")
    with pytest.raises(retention.RetentionRefused, match="not closed and sealed"):
        await export(two_months, tmp_path)


async def test_rows_that_were_changed_are_not_exported(two_months: Ledger, tmp_path: Path) -> None:
    await close(two_months, DECEMBER)
    two_months.superuser.execute("set session_replication_role = replica")
    two_months.superuser.execute("select ledger.open_partition(%s)", [DECEMBER])
    two_months.superuser.execute(
        "update ledger.entries set route = 'x' where posting_period = %s and entry_no = 0", [DECEMBER]
    )
    with pytest.raises(retention.RetentionRefused, match=r"2025-12: the rows of batch id .* are not what was posted"):
        await export(two_months, tmp_path)


@pytest.mark.parametrize("damage", ["part", "manifest", "missing"])
async def test_a_month_whose_files_are_not_what_was_written_stays(
    two_months: Ledger, tmp_path: Path, damage: str
) -> None:
    await close(two_months, DECEMBER)
    made = await export(two_months, tmp_path)
    part = made.folder / "part-00000.parquet"
    if damage == "part":
        part.write_bytes(part.read_bytes()[:-1] + b"x")
    elif damage == "missing":
        part.unlink()
    else:
        path = made.folder / "manifest.json"
        path.write_text(path.read_text().replace('"row_count": 4', '"row_count": 5'))
    with pytest.raises(retention.RetentionRefused):
        await retire(two_months)
    assert two_months.value("select count(*) from ledger.entries where posting_period = %s", DECEMBER) == 4


# --- What leaves and what stays ---------------------------------------------------------------------------------------


@pytest.fixture
async def retired(two_months: Ledger, tmp_path: Path) -> Ledger:
    """December is in files and no longer in the ledger."""
    await close(two_months, DECEMBER)
    await export(two_months, tmp_path)
    await retire(two_months)
    return two_months


async def test_rows_leave_and_keys_requests_batches_and_digests_stay(retired: Ledger) -> None:
    assert retired.value("select count(*) from ledger.entries") == 2
    assert retired.value("select to_regclass('ledger.entries_2025_12')") is None
    assert retired.value("select count(*) from ledger.event_keys") == 6
    assert retired.value("select count(*) from ledger.requests where posting_period = %s", DECEMBER) == 3
    assert retired.value("select sum(row_count) from ledger.batch_digests where posting_period = %s", DECEMBER) == 4
    assert retired.value("select sum(row_count) from ledger.seals") == 4
    assert retired.rows("select posting_period, rows_are, is_readable, row_count from ledger.retired_months") == [
        (DECEMBER, "dropped", False, 4)
    ]
    assert retired.rows("select act, actor, reason from ledger.acts where act like 'retention%%' order by act_id") == [
        ("retention.export", "finance", None),
        ("retention.retire", "finance", "ten years are over"),
    ]


async def test_a_resend_of_a_retired_event_is_a_duplicate(retired: Ledger) -> None:
    before = retired.value("select count(*) from ledger.entries")
    posted = await retired.post(
        make_event("d1", time="2025-12-10T10:00:00.123456Z", route=ODD, tags={"k\\": "v\t\n"}, feature="\\N")
    )
    assert retired.outcomes(posted) == ["duplicate"]
    posted = await retired.post(make_event("d1", time="2025-12-10T10:00:00.123456Z", model="m-other"))
    assert retired.outcomes(posted) == ["conflict"]
    assert retired.value("select count(*) from ledger.entries") == before


async def test_a_better_statement_for_a_retired_request_is_a_dead_letter(retired: Ledger) -> None:
    """What stands cannot be read, so no difference can be made; a worse one is evidence as ever."""
    better = make_event("d5", request_id="req-d1", time="2025-12-10T10:00:00Z", revision=3)
    worse = make_event("d6", request_id="req-d1", time="2025-12-10T10:00:00Z", basis="estimated")
    posted = await retired.post(better, worse, make_event("j3"))
    assert [(r.outcome, r.reason) for r in posted.results] == [
        ("dead_letter", "retired_request"),
        ("evidence", None),
        ("created", None),
    ]
    assert (
        retired.value("select count(*) from ledger.event_keys where key in (select event_key from ledger.dead_letters)")
        == 0
    )
    again = await retired.post(better)
    assert [r.reason for r in again.results] == ["retired_request"]


async def test_a_late_event_of_a_retired_month_enters_an_open_one(retired: Ledger) -> None:
    await retired.post(make_event("d9", time="2025-12-20T10:00:00Z"))
    assert retired.rows("select posting_period from ledger.entries where request_id = 'req-d9'") == [(JANUARY,)]


async def test_a_retired_request_is_not_corrected(retired: Ledger) -> None:
    from ledger import repricing
    from ledger.posting import read_known

    keys = [row[0] for row in retired.rows("select key::text from ledger.requests where posting_period = %s", DECEMBER)]
    with pytest.raises(ActRefused, match="is of 2025-12, whose rows have left the ledger"):
        await operator_does(retired, read_known, keys)
    with pytest.raises(ActRefused, match=r"the rows of 2025-12 and before .* begin with 2026-01-01 or later"):
        await operator_does(retired, repricing.preview, repricing.Scope())
    since = repricing.Scope(since=1_767_225_600_000_000)
    assert (await operator_does(retired, repricing.preview, since)).looked_at == 2
    with pytest.raises(ActRefused, match="begin with 2026-01-01"):
        await operator_does(retired, repricing.amounts_known_at, 1_800_000_000_000_000, repricing.Scope())


async def test_a_retired_month_is_not_opened_and_gets_no_partition_again(retired: Ledger) -> None:
    with pytest.raises(ActRefused, match="no longer in the ledger"):
        await operator_does(
            retired, closing.reopen_period, "finance", "t-alpha", DECEMBER, reason="x", needed=(), grace_days=3
        )
    with pytest.raises(psycopg.Error) as refused:
        retired.superuser.execute("update ledger.periods set state = 'open' where posting_period = %s", [DECEMBER])
    assert refused.value.sqlstate == "TS003"
    retired.superuser.execute("select ledger.make_partitions(%s)", [DECEMBER])
    assert retired.value("select to_regclass('ledger.entries_2025_12')") is None


async def test_months_leave_in_their_order(two_months: Ledger, tmp_path: Path) -> None:
    """What stands for a request is folded from its first row's month on."""
    await close(two_months, DECEMBER, JANUARY)
    await export(two_months, tmp_path, JANUARY)
    with pytest.raises(retention.RetentionRefused, match="2026-01 cannot go before 2025-12"):
        await retire(two_months, JANUARY)


async def test_a_month_without_an_export_stays(two_months: Ledger) -> None:
    await close(two_months, DECEMBER)
    with pytest.raises(retention.RetentionRefused, match="has not been exported"):
        await retire(two_months)
    with pytest.raises(psycopg.Error) as refused, two_months.database.connect("tallystick_operator") as operator:
        operator.execute("select ledger.retire_partition('2025-12-01', false, 'x', 'y')")
    assert refused.value.sqlstate == "TS004"


async def test_no_other_role_retires(two_months: Ledger) -> None:
    for role in ("writer", "api", "analyst", "billing", "rollup"):
        with (
            two_months.database.connect(f"tallystick_{role}") as connection,
            pytest.raises(psycopg.errors.InsufficientPrivilege),
        ):
            connection.execute("select ledger.retire_partition('2025-12-01', false, 'x', 'y')")


async def test_a_month_leaves_with_a_second_person_where_the_setting_asks(two_months: Ledger, tmp_path: Path) -> None:
    from ledger import approvals

    await close(two_months, DECEMBER)
    await export(two_months, tmp_path)
    needed = approvals.acts_of(["retention"])
    asked = await retire(two_months, needed=needed)
    assert isinstance(asked, Awaiting)
    assert two_months.value("select count(*) from ledger.entries") == 6
    await operator_does(two_months, approvals.decide, asked.approval_id, approve=True, actor="controller", reason="yes")
    await retire(two_months, needed=needed)
    assert two_months.value("select second_person from ledger.acts where act = 'retention.retire'") == "controller"


async def test_a_reader_of_the_ledger_is_waited_for_and_nobody_queues_for_long(
    two_months: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_TRIES", 1)
    await close(two_months, DECEMBER)
    await export(two_months, tmp_path)
    with two_months.database.connect("tallystick_analyst") as analyst:
        analyst.execute("select count(*) from ledger.entries")
        with pytest.raises(retention.RetentionRefused, match="is being read all the time"):
            await retire(two_months)
    await retire(two_months)


# --- Back for an investigation ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [True, False])
async def test_a_month_comes_back_as_it_was(two_months: Ledger, tmp_path: Path, keep: bool) -> None:
    await close(two_months, DECEMBER)
    before = lines(two_months, DECEMBER)
    windows = two_months.rows("select * from quotas.windows order by 1, 2, 3")
    made = await export(two_months, tmp_path)
    await retire(two_months, keep=keep)
    assert two_months.value("select count(*) from ledger.entries") == 2
    assert await restore(two_months, made.folder) == 4
    assert lines(two_months, DECEMBER) == before
    assert two_months.rows("select * from quotas.windows order by 1, 2, 3") == windows
    assert two_months.rows("select rows_are, is_readable from ledger.retired_months") == [("attached", True)]
    # It stays retired, whatever can be read.
    posted = await two_months.post(make_event("d5", request_id="req-d1", time="2025-12-10T10:00:00Z", revision=3))
    assert [r.reason for r in posted.results] == ["retired_request"]
    with pytest.raises(psycopg.Error) as refused:
        two_months.superuser.execute("update ledger.periods set state = 'open' where posting_period = %s", [DECEMBER])
    assert refused.value.sqlstate == "TS003"
    leaf = "ledger.entries_2025_12"
    for statement in (f"delete from {leaf}", f"truncate {leaf}", f"insert into {leaf} select * from {leaf}"):
        with pytest.raises(psycopg.Error) as stopped:
            two_months.superuser.execute(statement.encode())
        assert stopped.value.sqlstate == "TS002"
    assert (
        two_months.rows(
            "select a.grantee::regrole::text from pg_class as c cross join aclexplode(c.relacl) as a"
            " where c.oid = 'ledger.entries_2025_12'::regclass and a.grantee <> c.relowner"
        )
        == []
    )
    await retire(two_months)
    assert two_months.rows("select rows_are from ledger.retired_months") == [("dropped",)]


async def test_rows_kept_beside_the_ledger_are_guarded_and_closed_to_everybody(
    two_months: Ledger, tmp_path: Path
) -> None:
    await close(two_months, DECEMBER)
    await export(two_months, tmp_path)
    await retire(two_months, keep=True)
    leaf = "ledger.entries_2025_12"
    for statement in (f"delete from {leaf}", f"update {leaf} set route = 'x'", f"truncate {leaf}"):
        with pytest.raises(psycopg.Error) as stopped:
            two_months.superuser.execute(statement.encode())
        assert stopped.value.sqlstate == "TS002"
    for role in ("operator", "writer", "analyst"):
        with (
            two_months.database.connect(f"tallystick_{role}") as connection,
            pytest.raises(psycopg.errors.InsufficientPrivilege),
        ):
            connection.execute(f"select * from {leaf}".encode())


async def test_rows_that_are_not_what_was_posted_do_not_come_back(retired: Ledger, tmp_path: Path) -> None:
    """A folder that is sound in itself, with one amount that is another: the digests outlived the rows."""
    import polars as pl

    home = tmp_path / "entries-2025-12"
    part = home / "part-00000.parquet"
    frame = pl.read_parquet(part)
    frame.with_columns(pl.col("charge_amount").str.replace("8", "7")).write_parquet(part)
    manifest = json.loads((home / "manifest.json").read_text())
    manifest["parts"][0]["sha256"] = retention._sha256_of(part)
    (home / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(retention.RetentionRefused, match="are not what was posted: batch id"):
        await restore(retired, home)
    assert retired.value("select count(*) from ledger.entries") == 2
    with pytest.raises(psycopg.errors.InsufficientPrivilege), retired.database.connect("tallystick_analyst") as analyst:
        analyst.execute("select * from ledger.restored_2025_12")


async def test_the_database_makes_the_same_digests_as_python(two_months: Ledger) -> None:
    for month in (DECEMBER, JANUARY):
        assert two_months.rows("select * from ledger.differing_batches(%s)", month) == []
    two_months.superuser.execute("set session_replication_role = replica")
    two_months.superuser.execute("update ledger.entries set latency_ms = 1 where request_id = 'req-d2'")
    (batch_id,) = two_months.rows("select distinct batch_id from ledger.entries where request_id = 'req-d2'")
    assert two_months.rows("select * from ledger.differing_batches(%s)", DECEMBER) == [batch_id]


# --- Interrupted anywhere ---------------------------------------------------------------------------------------------

STEPS = {
    "retention.part_written": "export",
    "retention.part_named": "export",
    "retention.before_manifest": "export",
    "retention.before_noted": "export",
    "retention.before_export_commit": "export",
    "retention.before_act": "retire",
    "retention.before_commit": "retire",
    "retention.after_commit": "retire",
    "retention.part_restored": "restore",
    "retention.before_restore_commit": "restore",
}

RUN = """
import asyncio, sys
from datetime import date
from pathlib import Path
from ledger import failpoints, retention
from ledger.database import connect

async def main(url, folder, step):
    month = date(2025, 12, 1)
    async with await connect(url) as operator:
        await retention.export_month(operator, month, Path(folder), actor="finance") if step == "export" else None
        if step == "retire":
            await retention.retire_month(operator, month, keep=False, actor="finance", reason="over")
        if step == "restore":
            await retention.restore_month(operator, month, actor="finance", reason="asked")

retention.ROWS_PER_PART = 2
failpoints.configure(sys.argv[4])
asyncio.run(main(*sys.argv[1:4]))
"""


def run_step(ledger: Ledger, folder: Path, step: str, failpoint: str = "") -> int:
    done = subprocess.run(
        [sys.executable, "-c", RUN, ledger.database.url_for("tallystick_operator"), str(folder), step, failpoint],
        cwd=CHECKOUT,
        env={**os.environ},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode


@pytest.mark.parametrize("place", STEPS)
async def test_a_step_that_is_killed_is_taken_up_and_leaves_no_month_half_gone(
    two_months: Ledger, tmp_path: Path, place: str
) -> None:
    """Killed at each place: either the month is whole in the ledger, or it is whole outside; and the next run ends it."""
    await close(two_months, DECEMBER)
    before = lines(two_months, DECEMBER)
    for step in ("export", "retire", "restore"):
        if step == STEPS[place]:
            assert run_step(two_months, tmp_path, step, f"{place}=die@1") == -signal.SIGKILL
            found = lines(two_months, DECEMBER)
            states = two_months.rows("select is_readable from ledger.retired_months")
            assert (found, states) in [(before, []), ([], [(False,)]), (before, [(True,)])]
            acts = two_months.value("select count(*) from ledger.acts where act = 'retention.retire'")
            assert acts == (1 if states else 0)
            if place == "retention.after_commit":
                continue
        assert run_step(two_months, tmp_path, step) == 0
    assert lines(two_months, DECEMBER) == before
    assert [row[0] for row in two_months.rows("select step from ledger.retirements order by retirement_id")] == [
        "export",
        "retire",
        "restore",
    ]
