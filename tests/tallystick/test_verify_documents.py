"""`verify` holds issued documents against what they are made of, and names what differs by number, tenant and line."""

import asyncio
import itertools
from collections.abc import Iterator
from decimal import Decimal
from typing import Final

import psycopg
import pytest

from billing.credit_notes import credit_commercially, credit_usage
from billing.issuing import issue_month
from billing.voiding import void_invoice
from ledger.corrections import Difference, Request, Wanted, correct
from ledger.database import connect
from ledger.exchange import ExchangeRate
from ledger.price_store import save_exchange_rates
from ledger.times import parse_rfc3339
from quotas.granting import NewGrant, create_grant
from tallystick.embedded import EmbeddedPostgres
from tallystick.verify import verify
from tests.billing.support import FEBRUARY, JANE, JANUARY, LATER, agree, close, dollars, fee, issue, reverse
from tests.factories import make_event
from tests.support import databases
from tests.support.databases import Database
from tests.support.ledger import Ledger

_numbers = itertools.count(1)


async def _month_end(ledger: Ledger) -> None:
    """Two months of t-alpha and t-beta with all that stands on documents.

    t-alpha, USD at 19 %: NW-000001 bills January: 3 of chat, 7 of search, an image at 0.04, 0.30 taken off by a person, a fee of
    10; a grant pays 5. NW-C-000001 gives the 7 back, NW-C-000002 2 of the fee. NW-000004 bills February: 1, less the 3 of
    January, whose 2 beyond that NW-C-000003 gives back.
    t-beta, charged in USD and billed in EUR at 0.5: NW-000002 is voided, NW-000003 bills January again.
    """
    ledger.add_tenant("t-beta")
    await ledger.add_price(input="1.00", output="1.00", input_image="40.00")
    async with (
        await connect(ledger.database.url_for("tallystick_operator")) as operator,
        await connect(ledger.database.url_for("tallystick_writer")) as writer,
    ):
        await agree(operator, tax_rate="0.19", items=[fee("fee-1", ends_on=FEBRUARY)])
        await agree(operator, "t-beta", tax_rate="0.19", invoice_currency="EUR")
        rate = ExchangeRate(
            from_currency="USD", to_currency="EUR", effective_at=parse_rfc3339("2026-01-01T00:00:00Z"),
            rate=Decimal("0.5"), source_address="https://rates.example", checked_on=JANUARY,
        )  # fmt: skip
        await save_exchange_rates(operator, [rate], actor="jane")
        given = NewGrant(
            tenant_id="t-alpha", amount=Decimal(5), currency="USD", effective_at=parse_rfc3339("2025-12-01T00:00:00Z")
        )
        await create_grant(operator, "jane", given, key="g", now=parse_rfc3339(LATER))
        await ledger.post(
            dollars("a", "3"),
            dollars("b", "7", feature="search"),
            make_event("i", quantities={"uncached_input_image_tokens": 1000}),
            dollars("z", "4", tenant_id="t-beta"),
            received_at=LATER,
        )
        off = Wanted(Difference(Request("t-alpha", "req-a"), charge=Decimal("-0.30")))
        await correct(writer, off, actor="jane", reason="a promise")
        await close(operator, JANUARY, tenant_id=None)
        for tenant_id in ("t-alpha", "t-beta"):
            assert (await issue(operator, JANUARY, tenant_id)).result == "issued"
        await void_invoice(operator, "jane", "NW-000002", reason="a wrong address")
        await issue_month(operator, "t-beta", JANUARY, JANE)
        await ledger.post(dollars("c", "1", "2026-02-10T00:00:00Z"), received_at=LATER)
        await reverse(writer, "b")
        await credit_usage(operator, "jane", "NW-000001", reason="a wrong model")
        line = ledger.value("select line_no from billing.document_lines where kind = 'fee'")
        await credit_commercially(operator, "jane", "NW-000001", reason="an apology", lines={line: Decimal(2)})
        await reverse(writer, "a")
        await close(operator, FEBRUARY)
        assert (await issue(operator, FEBRUARY)).credit_notes == ("NW-C-000003",)


@pytest.fixture(scope="module")
def month_end(postgres_server: EmbeddedPostgres, migrated_template: str) -> Iterator[str]:
    """The name of a database with all of it; no session is left in it, so that it can be copied."""
    with databases.scratch_database(postgres_server.address, "documents_template", migrated_template) as made:
        ledger = Ledger(made).add_tenant().add_source().add_node()
        asyncio.run(_month_end(ledger))
        ledger.close()
        yield made.name


@pytest.fixture
def copy(postgres_server: EmbeddedPostgres, month_end: str) -> Iterator[Database]:
    """A copy that the test may break."""
    name = f"documents_{next(_numbers)}"
    with databases.scratch_database(postgres_server.address, name, month_end) as made:
        yield made


def broken(copy: Database, *statements: str) -> list[str]:
    """Break a copy as somebody who has the database's own rights may, and return what `verify` says of documents."""
    with psycopg.connect(copy.url, autocommit=True) as superuser:
        superuser.execute("set session_replication_role = replica")
        for statement in statements:
            assert superuser.execute(statement.encode()).rowcount != 0, statement
    return [f.text for f in verify(copy.url_for("tallystick_operator")).failures if f.part == "documents"]


def test_documents_as_they_were_issued_hold(copy: Database) -> None:
    proof = verify(copy.url_for("tallystick_operator"))
    assert proof.ok, proof.failures
    assert proof.checked["documents"] == 7


ALPHA: Final = "(select document_id from billing.documents where number = 'NW-000001')"
OF_ALPHA: Final = f"document_id = {ALPHA}"
LINE: Final = f"{OF_ALPHA} and feature = 'search'"

BROKEN: Final[dict[str, tuple[list[str], list[str]]]] = {
    "a micro-unit in a line": (
        [
            f"update billing.document_lines set charged_amount = charged_amount + 0.000001,"
            f" exact_amount = exact_amount + 0.000001 where {LINE}"
        ],
        [
            "invoice NW-000001 of tenant t-alpha, tax none: a base of",
            "invoice NW-000001 of tenant t-alpha: its lines come to 9.740001 USD, the seal of 2026-01 to 9.74",
            "invoice NW-000001 of tenant t-alpha, line",
            "invoice NW-000001 of tenant t-alpha does not add up: invoice of t-alpha: exact lines do not add up",
        ],
    ),
    "a micro-unit between two lines": (
        [
            f"update billing.document_lines set charged_amount = charged_amount + 0.000001,"
            f" exact_amount = exact_amount + 0.000001 where {LINE}",
            f"update billing.document_lines set charged_amount = charged_amount - 0.000001,"
            f" exact_amount = exact_amount - 0.000001 where {OF_ALPHA} and meter = 'amount_stated'",
        ],
        [
            "7.000001 USD, its entries come to 7000000 and 7",
            "-0.300001 USD, its entries come to 0 and -0.3",
            "invoice NW-000001 of tenant t-alpha is not what was issued: its content does not have its digest",
        ],
    ),
    "a token more on a line": (
        [f"update billing.document_lines set quantity = quantity + 1 where {LINE}"],
        [": 7000001 of uncached_input_tokens of m-sub for search in 2026-01 and 7 USD", "does not have its digest"],
    ),
    "a price on a line": (
        [f"update billing.document_lines set unit_price = 2 where {LINE}"],
        [": a price of 2 for 1000000, its entries have 1 for 1000000", "does not have its digest"],
    ),
    "a line gone": (
        [f"delete from billing.document_lines where {LINE}"],
        [
            "NW-000001 of tenant t-alpha has no line for uncached_input_tokens of m-sub for search in 2026-01: its entries",
            "its lines come to 2.74 USD, the seal of 2026-01 to 9.74",
            "tax none: a base of",
            "lines do not add up to the subtotal",
        ],
    ),
    "a line of a credit note for usage": (
        [
            "update billing.document_lines set quantity = quantity - 1 where kind = 'usage' and document_id ="
            " (select document_id from billing.documents where number = 'NW-C-000001')"
        ],
        [
            "credit note NW-C-000001 of tenant t-alpha, line 1: 6999999 of uncached_input_tokens of m-sub for search in 2026-01"
            " and 7 USD, its entries come to 7000000 and 7",
            "does not have its digest",
        ],
    ),
    "a converted line at another rate": (
        [
            "update billing.document_lines set exchange_rate = 0.6 where document_id ="
            " (select document_id from billing.documents where number = 'NW-000003')"
        ],
        ["invoice NW-000003 of tenant t-beta, line 1: exactly 2 EUR, and 4 USD were charged at a rate of 0.6",
         "a price of 0.5 for 1000000, its entries have 0.6", "does not have its digest"],
    ),
    "an entry of an issued month": (
        ["update ledger.entries set charge_amount = charge_amount + 0.000001, usage_flags = usage_flags || '{amount_stated}'"
         " where tenant_id = 't-beta' and posting_period = '2026-01-01' and charge_amount > 0"],
        ["invoice NW-000003 of tenant t-beta has no line for amount_stated of m-sub"],
    ),
    "a bit of a digest": (
        [
            "update billing.documents set digest = case when left(digest, 1) = '0' then '1' else '0' end || substr(digest, 2)"
            " where number = 'NW-000003'"
        ],
        [
            "invoice NW-000003 of tenant t-beta, issued by jane: no act says so, or it says another number, total, digest,"
            " time or due date",
            "invoice NW-000003 of tenant t-beta is not what was issued: its content does not have its digest",
        ],
    ),
    "a due date": (
        ["update billing.documents set due_date = due_date + 1 where number = 'NW-000003'"],
        ["invoice NW-000003 of tenant t-beta, issued by jane: no act says so"],
    ),
    "a time of issue": (
        ["update billing.documents set issued_at = issued_at - interval '1 microsecond' where number = 'NW-C-000002'"],
        ["credit note NW-C-000002 of tenant t-alpha, issued by jane: no act says so"],
    ),
    "a customer's name": (
        ["update billing.documents set customer = jsonb_set(customer, '{name}', '\"Other\"') where number = 'NW-000004'"],
        ["invoice NW-000004 of tenant t-alpha is not what was issued"],
    ),
    "a total": (
        [
            "alter table billing.documents drop constraint ck_documents_adds_up",
            "update billing.documents set total = total + 1, amount_due = amount_due + 1 where number = 'NW-000001'",
        ],
        ["NW-000001 of tenant t-alpha, issued by jane: no act", "does not add up: invoice of t-alpha: subtotal and tax are not the total"],
    ),
    "a tax": (
        [f"update billing.document_taxes set amount = amount + 0.01 where {OF_ALPHA}",
         f"update billing.documents set tax_total = tax_total + 0.01, total = total + 0.01, amount_due = amount_due + 0.01 where {OF_ALPHA}"],
        ["issued by jane: no act", "does not have its digest", ", tax none: 3.76 at 0.19 of 19.74, which is 3.75"],
    ),
    "a number missing": (
        [
            f"delete from billing.{table} where document_id = (select document_id from billing.documents where number = 'NW-000004')"
            for table in ("document_lines", "document_taxes")
        ]
        + ["delete from billing.documents where number in ('NW-000004', 'NW-C-000003')"],
        [
            "invoice number 4 of entity entity-1 is missing: 4 was the last that was given",
            "credit note number 3 of entity entity-1 is missing",
            "lines, taxes or credits name document cn_",
            "NW-000004 of tenant t-alpha is not there",
            "NW-C-000003 of tenant t-alpha is not there",
        ],
    ),
    "a number given again": (
        ["alter table billing.documents drop constraint uq_documents_entity_id_kind_number_value",
         "update billing.documents set number_value = 3 where number = 'NW-000004'"],
        [
            "invoice number 4 of entity entity-1 is missing: 4 was the last that was given",
            "invoice number 3 of entity entity-1 was given to 2 documents: invoice NW-000003 of tenant t-beta and invoice NW-000004",
            "invoice NW-000004 of tenant t-alpha is printed with another number than its 3",
        ],
    ),
    "the counter set back": (
        ["update billing.numbers set last_value = 3 where kind = 'invoice'"],
        ["invoice NW-000004 of tenant t-alpha has number 4 of entity entity-1, whose last is 3"],
    ),
    "a void gone": (
        ["delete from billing.voids"],
        [
            "tenant t-beta has 2 live invoices of 2026-01 in EUR: NW-000002, NW-000003",
            "invoice NW-000003 of tenant t-beta is revision 2, and the one before it does not stand voided",
            ": document inv_",
            "its lines come to 8 USD, the seal of 2026-01 to 4",
        ],
    ),
    "a void of another month": (
        ["update billing.voids set posting_period = '2026-02-01'"],
        ["is revision 2, and the one before", "invoice NW-000002 of tenant t-beta has a void that speaks of another tenant"],
    ),
    "a void by another": (
        ["update billing.voids set actor = 'bob'"],
        ["invoice NW-000002 of tenant t-beta is voided, and no act says so"],
    ),
    "more given back than was billed": (
        ["update billing.documents set subtotal = 90, tax_total = 0, total = 90, credit_total = 0, amount_due = 90"
         " where number = 'NW-C-000002'"],
        ["invoice NW-000001 of tenant t-alpha billed 23.49 USD, of them 5.00 from grants: NW-C-000001, NW-C-000002, NW-C-000003",
         "NW-C-000002 of tenant t-alpha, issued by jane: no act", "does not add up"],
    ),
    "more of a line given back than it has": (
        ["update billing.document_lines set amount = 10.01, exact_amount = 10.01 where corrects_line_no is not null"],
        ["invoice NW-000001 of tenant t-alpha, line 5: credit notes give back 10.01, exactly 10.01, of 10.00, exactly 10",
         "tax none: a base of", "does not add up"],
    ),
    "a burnt grant": (
        ["update quotas.grant_movements set amount = amount - 0.01 where kind = 'burnt'"],
        ["invoice NW-000001 of tenant t-alpha: -5.01 of grant"],
    ),
    "a movement that no document asked for": (
        ["update quotas.grant_movements set key = 'other' where kind = 'burnt'"],
        ["invoice NW-000001 of tenant t-alpha: 0 of grant", "of tenant t-alpha burnt 5.00 for 2026-01, and no document says so"],
    ),
    "an act gone": (
        ["delete from ledger.acts where act = 'invoices.issue' and detail ->> 'number' = 'NW-000001'"],
        ["invoice NW-000001 of tenant t-alpha, issued by jane: no act says so"],
    ),
    "a seal that says other": (
        ["update ledger.seals set charge_sums = '{\"USD\": \"4.1\"}' where tenant_id = 't-beta'"],
        ["invoice NW-000003 of tenant t-beta: its lines come to 4 USD, the seal of 2026-01 to 4.1"],
    ),
    "a month that was opened under its invoice": (
        ["update ledger.periods set state = 'open' where tenant_id = 't-beta' and posting_period = '2026-01-01'"],
        ["invoice NW-000003 of tenant t-beta is of close 1 of its month, which is open",
         "its lines come to 4 USD, the seal of 2026-01 to 0"],
    ),
    "a credited row that stands on no note": (
        ["delete from billing.credited_entries"],
        ["credit note NW-C-000001 of tenant t-alpha, made of rows of the ledger, names none",
         "NW-000004 of tenant t-alpha", "NW-C-000001 of tenant t-alpha, line 1", "NW-000004"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_a_copy_that_somebody_broke_is_named(copy: Database, what: str) -> None:
    statements, expected = BROKEN[what]
    found = broken(copy, *statements)
    for words in expected:
        assert any(words in text for text in found), (words, found)
    assert len(found) == len(expected), found
