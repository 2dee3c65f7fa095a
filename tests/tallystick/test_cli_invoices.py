"""Invoices by command: agreed from a file, drafted, issued from a closed month, shown, voided, given back."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from ledger import failpoints
from tests.billing.support import dollars
from tests.support.databases import Database
from tests.support.ledger import Ledger
from tests.tallystick.commands import Commands

WHOSE = "say whose month it is: TENANT MONTH, or MONTH with --entity or --all"
FILE = """
issuers:
  - {entity: entity-1, from: 2020-01-01, name: Northwind, address: [Street 1], country: DE, invoice_prefix: NW-,
     credit_note_prefix: NW-C-, payment_days: 14}
taxes:
  - {entity: entity-1, category: full, from: 2020-01-01, rate: 0.20, label: VAT 20 %}
customers:
  - {tenant: t-alpha, from: 2020-01-01, name: Alpha Ltd, address: [High Street], country: GB, tax_category: full, language: en}
"""


@pytest.fixture
async def billed(database: Database, commands: Commands, tmp_path: Path, months_template: str) -> Commands:
    """t-alpha used 3 of chat and 4 of search in January."""
    made = Ledger(database).add_tenant().add_source()
    await made.add_price(input="1.00", output="1.00")
    await made.post(dollars("a", "3"), dollars("b", "4", feature="search"), received_at="2026-06-15T00:00:00Z")
    made.close()
    (tmp_path / "billing.yaml").write_text(FILE)
    return commands


def test_a_month_from_agreement_to_credit_note(billed: Commands, tmp_path: Path) -> None:
    file = str(tmp_path / "billing.yaml")
    assert billed.ok("billing", "apply", file, "--dry-run").out.endswith("would change 3 of 3 agreements\n")
    assert billed.ok("billing", "apply", file).out.endswith("changed 3 of 3 agreements\n")
    assert billed.ok("billing", "apply", file).out.endswith("changed 0 of 3 agreements\n")
    assert billed.json("billing", "show", "t-alpha")["customers"][0]["name"] == "Alpha Ltd"
    assert (
        "cannot be issued: period 2026-01 is open: close it first"
        in billed.ok("invoice", "draft", "t-alpha", "2026-01").out
    )
    early = billed("invoice", "issue", "t-alpha", "--month", "2026-01")
    assert (early.code, early.err) == (1, "parked t-alpha USD: period 2026-01 is open: close it first\n")
    (waiting,) = billed.json("invoice", "parked")
    assert waiting["reasons"] == ["period 2026-01 is open: close it first"]
    billed.ok("period", "close", "2026-01", "--tenant", "t-alpha", "--commit")
    drafted = billed.json("invoice", "draft", "t-alpha", "2026-01")["drafts"][0]
    assert (drafted["document"]["total"], drafted["refusals"]) == ("8.40", [])
    stale = billed("invoice", "issue", "t-alpha", "--month", "2026-01", "--digest", "0" * 64)
    assert "is no longer the one with digest 000000000000: look at it again" in stale.line
    assert drafted["document"]["lines"][0]["meter"] == "uncached_input_tokens"
    digest = drafted["document"]["digest"]
    said = billed.ok("invoice", "issue", "t-alpha", "2026-01", "--digest", digest).out
    assert said == "issued NW-000001: 8.40 USD, due 8.40 USD\n"
    again = billed.ok("invoice", "issue", "--all", "2026-01").out
    assert again == "0 issued; 1 issued before (8.40 USD)\n"
    shown = billed.ok("invoice", "show", "NW-000001").out
    assert "VAT 20 % on 7.00  1.40 USD" in shown
    assert "m-sub: uncached input tokens" in shown
    assert billed.json("invoice", "show", "NW-000001")["digest"] == digest
    would = billed.ok("credit-note", "commercial", "NW-000001", "--line", "1", "--reason", "sorry", "--dry-run").out
    assert would == "would give back 3.60 USD of NW-000001\n"
    made = billed.ok("credit-note", "commercial", "NW-000001", "--line", "2=1.50", "--reason", "sorry").out
    assert made == "issued NW-C-000001: gives back 1.80 USD of NW-000001\n"
    assert [(each["number"], each["state"]) for each in billed.json("invoice", "list", "--tenant", "t-alpha")] == [
        ("NW-000001", "issued"), ("NW-C-000001", "issued"),
    ]  # fmt: skip
    assert billed("invoice", "void", "NW-000001", "--reason", "x").line == (
        "invoice NW-000001 stays: credit note NW-C-000001 corrects it"
    )
    assert "nothing corrects the usage of invoice NW-000001" in billed(
        "credit-note", "usage", "NW-000001", "--reason", "x"
    ).line  # fmt: skip
    acts = [each["act"] for each in billed.json("acts", "list")]
    assert acts[:2] == ["credit-notes.issue", "invoices.issue"]


def test_a_void_is_said_and_makes_room_for_another(billed: Commands, tmp_path: Path) -> None:
    billed.ok("billing", "apply", str(tmp_path / "billing.yaml"))
    billed.ok("period", "close", "2026-01", "--all", "--commit")
    said = billed.ok("invoice", "issue", "--entity", "entity-1", "--month", "2026-01").out
    assert said == "1 issued (8.40 USD)\n"
    assert billed.ok("invoice", "void", "NW-000001", "--reason", "a wrong name").out == "voided: NW-000001\n"
    assert billed.ok("invoice", "void", "NW-000001", "--reason", "again").out == "was voided before: NW-000001\n"
    assert billed.ok("invoice", "issue", "t-alpha", "--month", "2026-01").out.startswith("issued NW-000002")


def test_what_needs_a_second_person_says_so_and_is_not_done(
    billed: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code 3 while it waits, whichever act it is, and 1 where somebody is parked."""
    monkeypatch.setenv("TALLYSTICK_SECOND_PERSON", "invoices, credit-notes")
    acts = (
        ("invoice", "issue", "t-alpha", "2026-01"),
        ("credit-note", "commercial", "NW-000001", "--line", "1=1.00"),
        ("invoice", "void", "NW-000001"),
    )
    billed.ok("billing", "apply", str(tmp_path / "billing.yaml"))
    why = ("--reason", "month end", "--actor", "ann")
    parked = billed("invoice", "issue", "--all", "2026-01", *why)
    assert (parked.code, parked.err) == (1, "parked t-alpha USD: period 2026-01 is open: close it first\n")
    billed.ok("period", "close", "2026-01", "--all", "--commit")
    of_all = billed("invoice", "issue", "--all", "2026-01", *why)
    assert of_all.code == 3
    assert "1 waiting for a second person (8.40 USD)" in of_all.out
    for number, words in enumerate(acts[:2], 1):
        if words[0] == "credit-note":
            assert "would give back 1.20 USD" in billed.ok(*words, *why, "--dry-run").out, "nobody is asked for a look"
        assert f"approval {number} is asked for" in billed.waits(*words, *why)
        asked = billed(*words, *why, "--format", "json")
        assert (asked.code, f'"approval_id": {number}' in asked.out) == (3, True)
        billed.ok("approvals", "approve", str(number), "--actor", "ben")
        billed.ok(*words, *why)
    assert "NW-C-000001 corrects it" in billed(*acts[2], *why).line


def test_a_void_waits_for_a_second_person(billed: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TALLYSTICK_SECOND_PERSON", "invoices.void")
    billed.ok("billing", "apply", str(tmp_path / "billing.yaml"))
    billed.ok("period", "close", "2026-01", "--all", "--commit")
    billed.ok("invoice", "issue", "t-alpha", "2026-01")
    void = ("invoice", "void", "NW-000001", "--reason", "a wrong name", "--actor", "ann")
    assert billed.waits(*void).startswith("invoices.void needs a second person: approval 1")
    billed.ok("approvals", "approve", "1", "--actor", "ben")
    assert billed.ok(*void).out == "voided: NW-000001\n"


def test_a_run_that_is_interrupted_says_how_far_it_came(billed: Commands, tmp_path: Path) -> None:
    def ctrl_c(_: bytes) -> None:
        raise KeyboardInterrupt

    billed.ok("billing", "apply", str(tmp_path / "billing.yaml"))
    billed.ok("period", "close", "2026-01", "--all", "--commit")
    failpoints.set_failpoint("issue.between_groups", ctrl_c)
    try:
        ran = billed("invoice", "issue", "--all", "2026-01")
    finally:
        failpoints.set_failpoint("issue.between_groups", None)
    assert (ran.code, ran.err) == (
        130,
        "1 of 1 tenants are done, and stay so; the same command again does the others\ntallystick: interrupted\n",
    )
    assert billed.ok("invoice", "issue", "--all", "2026-01").out == "0 issued; 1 issued before (8.40 USD)\n"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("invoice", "issue", "t-alpha"), WHOSE),
        (("invoice", "issue", "--month", "2026-01"), WHOSE),
        (("invoice", "issue", "2026-01"), WHOSE),
        (("invoice", "issue", "--all"), "say which month, such as 2026-11"),
        (
            ("invoice", "issue", "t-alpha", "2026-01", "2026-02"),
            "'t-alpha' is a word too many: say TENANT MONTH, or MONTH with --entity or --all",
        ),
        (("invoice", "issue", "2026-01", "t-alpha"), "'t-alpha' is not a month such as 2026-12"),
        (
            ("invoice", "issue", "t-alpha", "--all", "--month", "2026-01"),
            WHOSE,
        ),
        (("invoice", "issue", "--all", "--month", "2026-01", "--digest", "x"), "a digest is of one tenant's draft"),
        (("invoice", "show", "NW-1"), "there is no document 'NW-1'"),
        (("invoice", "draft", "nobody", "2026-01"), "there is no tenant 'nobody'"),
        (("invoice", "draft", "t-alpha", "2031-01"), "tenant t-alpha has no period 2031-01"),
        (("invoice", "list", "--tenant", "nobody"), "there is no tenant 'nobody'"),
        (("invoice", "parked", "--tenant", "nobody"), "there is no tenant 'nobody'"),
        (
            ("invoice", "export", "--month", "2026-01", "--tenant", "nobody", "--output", "x"),
            "there is no tenant 'nobody'",
        ),
        (
            ("focus", "export", "--month", "2026-01", "--tenant", "nobody", "--output", "x"),
            "there is no tenant 'nobody'",
        ),
        (("margin", "2026-01", "--tenant", "nobody"), "there is no tenant 'nobody'"),
        (("invoice", "list", "--kind", "bill"), "--kind is invoice or credit_note, not 'bill'"),
        (
            ("credit-note", "commercial", "x", "--reason", "r", "--line", "one"),
            "--line: 'one' is not a line such as 3 or 3=1.50",
        ),
        (("billing", "apply", "/nowhere.yaml"), "/nowhere.yaml: No such file or directory"),
    ],
)
def test_what_makes_no_sense_is_one_line(billed: Commands, words: tuple[str, ...], line: str) -> None:
    assert billed(*words).line == line


def test_months_are_typed_as_months(billed: Commands) -> None:
    assert "is not a month such as 2026-12" in billed("invoice", "draft", "t-alpha", f"{datetime.now(UTC):%Y}").line
