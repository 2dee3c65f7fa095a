"""Months by command: nothing is closed before it has been said what that closes."""

from datetime import date

import pytest

from tests.billing.support import LATER, dollars
from tests.factories import make_event
from tests.support.ledger import Ledger, this_month
from tests.tallystick.commands import Commands

WHOSE = "say whose month it is: TENANT MONTH, or MONTH with --entity or --all"


def test_a_close_shows_what_it_closes_and_closes_with_commit(with_tenant: Commands) -> None:
    shown = with_tenant.ok("period", "close", "acme", "2026-09").out
    assert "requests           0, 0 of them estimated" in shown
    assert shown.endswith("nothing is closed yet: --commit closes\n")
    assert [each["state"] for each in with_tenant.json("period", "list", "--month", "2026-09")] == ["open"]
    said = with_tenant.ok("period", "close", "2026-09", "--tenant", "acme", "--commit").out
    assert said.endswith("closed 2026-09 of 1 tenant, made 1 seal\n")
    (september,) = with_tenant.json("period", "list", "--month", "2026-09")
    assert (september["state"], september["close_number"], september["is_sealed"]) == ("closed", 1, True)
    assert "sealed" in with_tenant.ok("period", "list", "--tenant", "acme").out
    again = with_tenant.ok("period", "close", "2026-09", "--all", "--commit")
    assert again.err == "closed before: acme\n"
    assert with_tenant.ok("period", "seal").out == "every closed month is sealed\n"


def test_an_early_close_needs_a_reason_and_is_undone_by_another(with_tenant: Commands) -> None:
    month = f"{this_month('Europe/Berlin'):%Y-%m}"
    words = ("period", "close", month, "--entity", "entity-1")
    assert "ends at" in with_tenant(*words, "--commit").line
    assert with_tenant(*words, "--early", "--commit").line == "an early close needs a --reason"
    closed = with_tenant.ok(*words, "--early", "--reason", "sold", "--commit").out
    assert closed.endswith(f"every tenant has closed {month}: its partition takes no row any more\n")
    said = with_tenant.ok("period", "reopen", "acme", month, "--reason", "not sold", "--actor", "jane").out
    assert said.startswith(f"period {month} of tenant acme is open again and takes usage until ")
    shown = with_tenant.json("period", "show", "acme", month)
    assert (shown["state"], shown["close_number"], shown["is_sealed"]) == ("open", 1, False)
    assert [(each["close_number"], each["is_superseded"]) for each in shown["seals"]] == [(1, True)]
    assert shown["kept_closed_by"] == []
    table = with_tenant.ok("period", "show", "acme", month).out
    assert "open again" in table
    assert "superseded" in table
    acts = with_tenant.json("acts", "list", "--act", "periods")
    assert [(each["act"], each["reason"]) for each in acts] == [
        ("periods.reopen", "not sold"),
        ("periods.close", "sold"),
    ]


def test_opening_again_may_need_a_second_person(with_tenant: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TALLYSTICK_SECOND_PERSON", "periods")
    with_tenant.ok("period", "close", "2026-09", "--all", "--commit")
    words = ("period", "reopen", "acme", "2026-09", "--reason", "a node was late", "--actor", "jane")
    asked = with_tenant.waits(*words)
    assert asked.startswith("periods.reopen needs a second person: approval 1 is asked for until ")
    assert with_tenant.json("period", "show", "acme", "2026-09")["state"] == "closed"
    with_tenant.ok("approvals", "approve", "1", "--actor", "joe")
    assert "is open again" in with_tenant.ok(*words).out
    with with_tenant.database.connect() as connection:
        row = connection.execute("select actor, second_person from ledger.acts where act = 'periods.reopen'").fetchone()
    assert row == ("jane", "joe")


@pytest.fixture
async def with_unknown(commands: Commands) -> Commands:
    """t-alpha has a request of a model without a price and one that says two things; t-beta has 3.00."""
    made = Ledger(commands.database).add_tenant().add_tenant("t-beta").add_source()
    try:
        await made.add_price(input="1.00", output="1.00")
        await made.post(
            dollars("a", "1"), make_event("x", model="m-unknown"), dollars("b", "3", tenant_id="t-beta"), received_at=LATER
        )  # fmt: skip
        await made.post(dollars("a", "2", request_id="req-a"), received_at=LATER)
    finally:
        made.close()
    return commands


def test_a_month_with_what_nobody_can_bill_yet_stays_open_and_the_others_are_closed(with_unknown: Commands) -> None:
    commands = with_unknown
    why = "1 request without a charge, 1 conflict open"
    shown = commands.ok("period", "close", "--all", "2026-01")
    assert f"t-alpha would stay open: {why}" in shown.err
    alone = commands("period", "close", "t-alpha", "2026-01", "--commit")
    assert alone.line == (
        f"period 2026-01 of tenant t-alpha stays open: {why}; mend them, or --accept-unknown with a reason"
    )
    early = commands("period", "close", "t-alpha", "2026-01", "--early", "--reason", "sold", "--commit")
    assert "stays open" in early.line
    ran = commands("period", "close", "--all", "2026-01", "--commit", "--format", "json")
    assert (ran.json["closed"], ran.json["left_open"]) == (["t-beta"], {"t-alpha": why.split(", ")})
    again = commands("period", "close", "--all", "2026-01", "--commit")
    assert (ran.code, again.code) == (1, 1), "a script sees that somebody stays open"
    assert f"t-alpha stays open: {why}" in again.err
    words = ("period", "close", "t-alpha", "2026-01", "--accept-unknown", "--commit")
    assert commands(*words).line == "closing over what is unknown needs a --reason"
    assert "closed 2026-01 of 1 tenant, made 1 seal" in commands.ok(*words, "--reason", "billed in February").out
    acts = commands.json("acts", "list", "--act", "periods.close")
    assert [each["reason"] for each in acts] == ["billed in February", None]
    assert acts[0]["detail"]["unknown"] == {"t-alpha": why.split(", ")}
    assert "unknown" not in acts[1]["detail"]


def test_a_preview_is_read_by_programs(with_tenant: Commands) -> None:
    with_tenant.ok(
        "tenants", "add", "b", "--entity", "entity-1", "--zone", "UTC", "--currency", "EUR", "--since", "2026-09-01"
    )
    found = with_tenant.json("period", "close", "2026-09", "--all")
    assert [each["tenant_id"] for each in found["preview"]] == ["acme", "b"]
    assert (found["closed"], found["seals"]) == ([], [])
    assert found["preview"][0]["charge_sums"] == {}
    table = with_tenant.ok("period", "close", "2026-09", "--all").out
    assert max(len(line) for line in table.splitlines()) <= 120
    done = with_tenant.json("period", "close", "2026-09", "--all", "--commit")
    assert done["closed"] == ["acme", "b"]
    assert [each["charge_sums"] for each in done["seals"]] == [{}, {}]


def test_refusals_are_one_line(with_tenant: Commands) -> None:
    following = date(2031, 1, 1)
    for words, line in (
        (("close", "2026-09"), WHOSE),
        (("close", "2026-09", "--all", "--tenant", "acme"), WHOSE),
        (("close", "2026-13", "--all"), "'2026-13' is not a month such as 2026-12"),
        (("close", f"{following:%Y-%m}", "--all"), "nobody has a period 2031-01"),
        (("close", "2026-09", "--tenant", "nobody"), "there is no tenant 'nobody'"),
        (("show", "acme", "2031-01"), "tenant acme has no period 2031-01"),
        (("reopen", "acme", "2026-09", "--reason", "r"), "period 2026-09 of tenant acme is open"),
        (("reopen", "acme", "2026-09", "--reason", " "), "opening a closed period needs a reason"),
    ):
        assert with_tenant("period", *words).line == line
