"""Each way out of "parked": why a tenant waits, what a person does about it by command, and that the next run issues."""

import asyncio
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Final

import psycopg
import pytest

from billing.agreements import Bound
from ledger.database import connect
from tallystick.embedded import EmbeddedPostgres
from tests.billing.support import JANUARY, LATER, agree, close, dollars, issued
from tests.factories import make_event
from tests.support import databases
from tests.support.databases import Database
from tests.support.ledger import Ledger
from tests.tallystick.commands import Commands

DECEMBER: Final = JANUARY.replace(year=2025, month=12)
TENANTS: Final = (
    "t-unpriced", "t-missing", "t-conflict", "t-proposal", "t-proof", "t-large", "t-change", "t-lines", "t-new",
)  # fmt: skip
CONTRACT: Final = """
source: A contract
checked_on: 2026-02-01
cards:
  - {book: charge, provider: openai, model: m-new, tenant_id: t-unpriced, currency: USD, effective_at: 2026-01-01T00:00:00Z,
     rates: {uncached_input_tokens: 4.00 per 1000000}}
"""
CUSTOMER: Final = """
customers:
  - {tenant: t-new, from: 2026-01-01, name: New Ltd, address: [High Street], country: GB, tax_category: none, language: en}
"""


async def _month(ledger: Ledger) -> None:
    """A January of nine tenants, each with 3.00 and one thing that keeps its invoice back; at most 100.00, 3 times, 4 lines unseen."""
    for name in TENANTS:
        ledger.add_tenant(name)
    ledger.add_model("m-new")
    await ledger.add_price(input="1.00", output="1.00")
    async with await connect(ledger.database.url_for("tallystick_operator")) as operator:
        bound = Bound(
            currency="USD", total_max=Decimal(100), change_max=Decimal(3), change_from=Decimal(10), lines_max=4
        )
        await agree(operator, *(name for name in TENANTS if name != "t-new"), bounds=[bound])
        before = dollars("before", "20", "2025-12-10T00:00:00Z", tenant_id="t-change")
        await ledger.post(before, received_at=LATER)
        await issued(operator, DECEMBER, "t-change")
        a_million = {"prompt_tokens": 1_000_000, "completion_tokens": 0}
        await ledger.post(
            *(dollars(f"own-{name}", "3", tenant_id=name, request_id=f"own-{name}") for name in TENANTS),
            make_event("u", tenant_id="t-unpriced", model="m-new", requested_model="m-new", usage=a_million),
            make_event("m", tenant_id="t-missing", request_id="m", usage=...),
            dollars("c", "1", tenant_id="t-conflict", request_id="c"),
            dollars("p", "2", tenant_id="t-proposal", request_id="p"),
            dollars("l", "98", tenant_id="t-large"),
            dollars("x", "60", tenant_id="t-change"),
            *(dollars(f"f{n}", "1", tenant_id="t-lines", feature=f"feature-{n}") for n in range(4)),
            received_at=LATER,
        )
        await ledger.post(dollars("c", "1.5", tenant_id="t-conflict", request_id="c"), received_at=LATER)
        await ledger.post(dollars("p2", "1", tenant_id="t-proposal", request_id="p", revision=1), received_at=LATER)
        await close(operator, JANUARY, tenant_id=None)


@pytest.fixture(scope="module")
def month(postgres_server: EmbeddedPostgres, migrated_template: str) -> Iterator[Database]:
    """The month, made once: every story is about a tenant of its own."""
    with databases.scratch_database(postgres_server.address, "parked", migrated_template) as made:
        ledger = Ledger(made).add_source()
        asyncio.run(_month(ledger))
        ledger.close()
        yield made


@pytest.fixture
def person(
    month: Database, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Commands:
    monkeypatch.setenv("TALLYSTICK_HOME", str(tmp_path))
    monkeypatch.setenv("TALLYSTICK_DATABASE_URL", month.url)
    return Commands(capsys, month)


def waits(person: Commands, tenant: str) -> list[str]:
    """Try to issue a tenant's January, which must not be, and return what keeps it back, as the list says it too."""
    said = person("invoice", "issue", tenant, "2026-01")
    assert said.code == 1
    (parked,) = [each for each in person.json("invoice", "parked", "--month", "2026-01") if each["tenant_id"] == tenant]
    assert [f"parked {tenant} USD: {reason}" for reason in parked["reasons"]] == said.err.splitlines()
    return list(parked["reasons"])


def goes_on(person: Commands, tenant: str, total: str, *more: str) -> None:
    """Issue the tenant's January now: it waits no longer."""
    said = person.ok("invoice", "issue", tenant, "2026-01", *more).out
    assert f": {total} USD, due {total} USD" in said
    assert tenant not in [each["tenant_id"] for each in person.json("invoice", "parked")]


def february(person: Commands, tenant: str) -> dict[str, Decimal]:
    """What a tenant's next invoice will bill of January, by model."""
    (draft,) = person.json("invoice", "draft", tenant, "2026-02")["drafts"]
    return {
        line["model"]: Decimal(line["exact_amount"])
        for line in draft["document"]["lines"]
        if line["service_start"] == "2026-01-01"
    }


def test_unpriced_usage_gets_a_price_and_is_billed_with_the_next_month(person: Commands, tmp_path: Path) -> None:
    """A million tokens of m-new, for which nobody had agreed a price: 4.00, in February. January is 3.00."""
    assert waits(person, "t-unpriced") == ["1 request is without a charge"]
    (tmp_path / "contract.yaml").write_text(CONTRACT)
    person.ok("prices", "contracts", str(tmp_path / "contract.yaml"), "--accept")
    person.ok("prices", "reprice", "--tenant", "t-unpriced", "--commit", "--reason", "the contract came")
    goes_on(person, "t-unpriced", "3.00")
    assert february(person, "t-unpriced") == {"m-new": Decimal(4)}


def test_missing_usage_is_stated_and_billed_with_the_next_month(person: Commands) -> None:
    assert waits(person, "t-missing") == ["1 request is without a charge", "1 request is without usage"]
    count = ("--count", "uncached_input_tokens=500000")
    person.ok("corrections", "adjust", "t-missing", "m", *count, "--commit", "--reason", "from the node's log")
    goes_on(person, "t-missing", "3.00")
    assert february(person, "t-missing") == {"m-sub": Decimal("0.5")}


def test_a_conflict_is_dismissed_or_its_other_content_accepted(person: Commands) -> None:
    """The request said 1.00 and then 1.50: a person takes the second, and February bills 0.50 more."""
    assert waits(person, "t-conflict") == ["1 conflict is of its usage open: accept or dismiss"]
    (letter,) = person.json("dead-letters", "list", "--tenant", "t-conflict")
    person.ok("corrections", "accept", "--letter", str(letter["dead_letter_id"]), "--commit", "--reason", "so it was")
    goes_on(person, "t-conflict", "4.00")
    assert february(person, "t-conflict") == {"m-sub": Decimal("0.5")}


def test_a_proposal_is_refused(person: Commands) -> None:
    assert waits(person, "t-proposal") == ["1 proposal is of its usage open: accept or refuse"]
    (proposal,) = [each for each in person.json("corrections", "proposals") if each["tenant_id"] == "t-proposal"]
    person.ok("corrections", "refuse", str(proposal["entry_id"]), "--reason", "a test of the sender's")
    goes_on(person, "t-proposal", "5.00")


def test_a_failed_proof_holds_whom_it_names_until_it_holds_again(person: Commands) -> None:
    """Somebody moved a total by a micro-unit; once the database is mended and proved, the tenant is issued."""
    move = "update quotas.windows set posted = posted {} 0.000001 where budget_id = 'totals-charge' and tenant_id = 't-proof'"

    def by_hand(sign: str) -> None:
        with psycopg.connect(person.database.url, autocommit=True) as superuser:
            superuser.execute("set session_replication_role = replica")
            assert superuser.execute(move.format(sign).encode()).rowcount == 1

    by_hand("+")
    assert person("proofs", "standing").code == 1
    (reason,) = waits(person, "t-proof")
    assert reason.startswith("the standing proof of ")
    assert "tenant t-proof, 2026-01, USD: budget totals-charge says 3.000001" in reason
    by_hand("-")
    person.ok("proofs", "standing")
    goes_on(person, "t-proof", "3.00")


@pytest.mark.parametrize(
    ("tenant", "total", "reason"),
    [
        ("t-large", "101.00", "total 101.00 is above 100 USD, the most that is issued unseen"),
        ("t-change", "63.00", "total 63.00 after 20.00 USD changes more than 3 times"),
        ("t-lines", "7.00", "5 lines are more than 4, the most that are issued unseen"),
    ],
)
def test_what_is_beyond_a_bound_is_looked_at_and_accepted(
    person: Commands, tenant: str, total: str, reason: str
) -> None:
    assert waits(person, tenant) == [reason]
    assert f"waits for a person: {reason}" in person.ok("invoice", "draft", tenant, "2026-01").out
    refused = person("invoice", "issue", tenant, "2026-01", "--accept-bounds")
    assert refused.line == "issuing beyond the bounds needs a reason"
    goes_on(person, tenant, total, "--accept-bounds", "--reason", "looked at")
    (act, *_) = person.json("acts", "list", "--act", "invoices.issue")
    assert (act["detail"]["beyond_bounds"], act["reason"]) == (True, "looked at")


def test_a_tenant_whom_nobody_described_is_described(person: Commands, tmp_path: Path) -> None:
    (reason,) = waits(person, "t-new")
    assert reason.startswith("tenant t-new has no customer data on ")
    (tmp_path / "billing.yaml").write_text(CUSTOMER)
    person.ok("billing", "apply", str(tmp_path / "billing.yaml"))
    goes_on(person, "t-new", "3.00")


def test_the_others_go_on_meanwhile(person: Commands, month: Database) -> None:
    """A run over all leaves nobody out, whoever waits, and parks nobody twice for the same reason."""
    rows = "select count(*) from billing.parked"
    person("invoice", "issue", "--all", "2026-01")
    before = _value(month, rows)
    done = person("invoice", "issue", "--all", "2026-01")
    assert done.out.startswith("0 issued")
    assert _value(month, rows) == before
    waiting = {each["tenant_id"] for each in person.json("invoice", "parked", "--month", "2026-01")}
    live = {each["tenant_id"] for each in person.json("invoice", "list", "--month", "2026-01")}
    assert done.code == (1 if waiting else 0), "a script sees that somebody waits"
    assert waiting | live == set(TENANTS)
    assert not waiting & live


def _value(database: Database, statement: str) -> int:
    with database.connect() as connection:
        row = connection.execute(statement.encode()).fetchone()
    assert row is not None
    return int(row[0])
