"""Runs over many tenants: at once, killed anywhere, resumed; one invoice for each, numbers without a gap."""

import asyncio
import sys
from collections.abc import Sequence
from contextlib import aclosing, nullcontext
from datetime import date
from decimal import Decimal

import psycopg
import pytest

from billing import issuing
from billing.issuing import Outcome, Terms, issue_all, issue_month
from billing.months import FoldedAhead
from billing.voiding import void_invoice
from ledger import closing
from ledger.approvals import decide
from ledger.database import Connection, connect
from ledger.errors import ActRefused, Unknown
from tests.billing.support import (
    FEBRUARY,
    JANE,
    JANUARY,
    LATER,
    agree,
    close,
    dollars,
    issue,
    issued,
    owed,
)
from tests.support.ledger import Ledger
from tests.support.processes import CHECKOUT

TENANTS = [f"t-{number:02d}" for number in range(12)]


@pytest.fixture
async def priced(ledger: Ledger, operator: Connection) -> Ledger:
    await ledger.add_price(input="1.00", output="1.00")
    await agree(operator)
    return ledger


@pytest.fixture
async def many(priced: Ledger, operator: Connection) -> Ledger:
    """Twelve tenants of which each used its number in dollars, and one, t-alpha, that used nothing; January is closed."""
    for tenant_id in TENANTS:
        priced.add_tenant(tenant_id)
    await priced.post(
        *(
            dollars(f"e{place}", str(place + 1), tenant_id=name, request_id=f"r{place}")
            for place, name in enumerate(TENANTS)
        ),
        received_at=LATER,
    )
    await agree(operator, *TENANTS)
    await close(operator, JANUARY, tenant_id=None)
    return priced


async def run(
    connection: Connection,
    month: date = JANUARY,
    terms: Terms = JANE,
    group: int = 5,
    second: Connection | None = None,
) -> list[Outcome]:
    found: list[Outcome] = []
    async for outcomes, _, _ in issue_all(connection, month, terms, group=group, second=second):
        found += outcomes
    return found


def numbers(ledger: Ledger) -> list[int]:
    return [row[0] for row in ledger.rows("select number_value from billing.documents order by 1")]


async def test_a_run_issues_each_tenant_once_and_parks_who_must_wait(many: Ledger, operator: Connection) -> None:
    """t-zz came later and its month is open: it waits, and the others go on."""
    await close(operator)
    many.add_tenant("t-zz")
    outcomes = await run(operator)
    results = {each.tenant_id: each.result for each in outcomes}
    assert results == {**dict.fromkeys(TENANTS, "issued"), "t-alpha": "nothing", "t-zz": "parked"}
    assert numbers(many) == list(range(1, 13))
    again = await run(operator)
    assert [each.result for each in again].count("issued_before") == 12
    assert sum((owed(many, name)["USD"] for name in TENANTS), Decimal(0)) == Decimal(78) == many.total()
    assert many.value("select count(*) from billing.parked") == 1, "the same reason is written down once"


async def test_b131_nine_at_once_make_one_invoice(priced: Ledger, operator: Connection) -> None:
    """42.00 once, under one number. WRONG: 9 x 42.00 = 378.00. Voided and issued again: one live, one void."""
    await priced.post(dollars("a", "42"), received_at=LATER)
    await close(operator, JANUARY)

    async def one() -> Outcome:
        async with await connect(priced.database.url_for("tallystick_operator")) as connection:
            return await issue(connection)

    outcomes = await asyncio.gather(*(one() for _ in range(9)))
    assert {each.number for each in outcomes} == {"NW-000001"}
    assert sorted(each.result for each in outcomes) == ["issued"] + ["issued_before"] * 8
    assert owed(priced) == {"USD": Decimal(42)}
    await void_invoice(operator, "jane", "NW-000001", reason="a wrong address")
    assert owed(priced) == {}
    outcomes = await asyncio.gather(*(one() for _ in range(9)))
    assert {each.number for each in outcomes} == {"NW-000002"}
    assert owed(priced) == {"USD": Decimal(42)}
    assert numbers(priced) == [1, 2]


@pytest.mark.soak
async def test_runs_at_once_make_each_invoice_once_and_leave_no_gap(many: Ledger) -> None:
    url = many.database.url_for("tallystick_operator")

    async def one(group: int) -> list[Outcome]:
        async with await connect(url) as connection, await connect(url) as second:
            return await run(connection, group=group, second=second)

    outcomes = [found for each in await asyncio.gather(*(one(group) for group in (1, 2, 3, 5, 12))) for found in each]
    assert [each.result for each in outcomes].count("issued") == 12
    assert numbers(many) == list(range(1, 13))
    assert sum((owed(many, name)["USD"] for name in TENANTS), Decimal(0)) == Decimal(78)


_RUN = """
import asyncio, sys
from datetime import date
from billing.issuing import Terms, issue_all
from ledger import failpoints
from ledger.database import connect

async def main(url, spec):
    failpoints.configure(spec)
    async with await connect(url) as connection, await connect(url) as second:
        async for _ in issue_all(connection, date(2026, 1, 1), Terms("jane"), group=5, second=second):
            pass

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize(
    "place",
    [
        "issue.after_drafts",
        "issue.after_numbers",
        "issue.after_documents",
        "issue.before_commit",
        "issue.between_groups",
    ],
)
async def test_a_run_that_is_killed_is_finished_by_the_next(
    many: Ledger, operator: Connection, place: str, nth: int
) -> None:
    """Killed in a group: nothing of it is there; between groups: all of it. The next run makes the rest."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _RUN, many.database.url_for("tallystick_operator"), f"{place}=die@{nth}", cwd=CHECKOUT
    )
    assert await process.wait() == -9
    done = nth if place == "issue.between_groups" else nth - 1
    assert numbers(many) == list(range(1, 5 * done + 1))
    outcomes = await run(operator)
    assert [each.result for each in outcomes].count("issued") == 12 - 5 * done
    assert numbers(many) == list(range(1, 13))
    assert sum((owed(many, name)["USD"] for name in TENANTS), Decimal(0)) == Decimal(78)
    assert many.value("select count(*) from ledger.acts where act = 'invoices.issue'") == 12


async def test_a_run_reads_again_what_changed_since_it_was_folded(
    many: Ledger, operator: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """t-03 is opened after the fold, takes another dollar and is closed again: 4 + 1 on its invoice, and the others as folded."""
    url = many.database.url_for("tallystick_operator")
    ahead = issuing.fold_ahead

    async def changed_meanwhile(connection: Connection, month: date, ids: Sequence[str] | None) -> FoldedAhead:
        found = await ahead(connection, month, ids)
        async with await connect(url) as other:
            await closing.reopen_period(other, "jane", "t-03", JANUARY, reason="a node was late")
            await many.post(dollars("late", "1", tenant_id="t-03", request_id="late"), received_at=LATER)
            await close(other, JANUARY, tenant_id=None)
        return found

    monkeypatch.setattr(issuing, "fold_ahead", changed_meanwhile)
    outcomes = {each.tenant_id: each for each in await run(operator)}
    assert outcomes["t-03"].total == Decimal(5)
    assert [each.result for each in outcomes.values()].count("issued") == 12
    assert sum((owed(many, name)["USD"] for name in TENANTS), Decimal(0)) == Decimal(79) == many.total()


async def test_a_run_cut_off_by_its_caller_leaves_whole_groups(many: Ledger, operator: Connection) -> None:
    async with (
        await connect(many.database.url_for("tallystick_operator")) as second,
        aclosing(issue_all(operator, JANUARY, JANE, group=5, second=second)) as groups,
    ):
        assert await anext(groups) == ([], 0, 13)
        await anext(groups)
    done = len(numbers(many))
    assert done in {5, 10}
    assert [each.result for each in await run(operator)].count("issued_before") == done
    assert numbers(many) == list(range(1, 13))


async def test_an_invoice_keeps_its_month_closed_until_it_is_voided(priced: Ledger, operator: Connection) -> None:
    await priced.post(dollars("a", "3"), received_at=LATER)
    await issued(operator)
    assert await closing.what_depends_on(operator, "t-alpha", JANUARY) == ["invoice NW-000001 is issued: void it first"]
    with pytest.raises(ActRefused, match="stays closed: invoice NW-000001 is issued"):
        await closing.reopen_period(operator, "jane", "t-alpha", JANUARY, reason="a node was late")
    await void_invoice(operator, "jane", "NW-000001", reason="a node was late")
    await closing.reopen_period(operator, "jane", "t-alpha", JANUARY, reason="a node was late")
    await priced.post(dollars("b", "4"), received_at=LATER)
    again = await issued(operator)
    assert (again.number, again.total) == ("NW-000002", Decimal(7))
    assert priced.rows("select revision, close_number from billing.documents order by 1") == [(1, 1), (2, 2)]


@pytest.mark.parametrize(
    "statement",
    [
        "update billing.documents set total = 0",
        "delete from billing.documents",
        "truncate billing.documents cascade",
        "update billing.document_lines set amount = 0",
        "delete from billing.document_taxes",
        "insert into billing.document_lines (document_id, line_no, kind, description, service_start, service_end,"
        " exact_amount, amount, tax_category) select document_id, 99, 'fee', 'x', '2026-01-01', '2026-02-01', 1, 1, 'none'"
        " from billing.documents",
    ],
)
async def test_the_database_keeps_what_was_issued(priced: Ledger, operator: Connection, statement: str) -> None:
    await priced.post(dollars("a", "3"), received_at=LATER)
    await issued(operator)
    with pytest.raises(psycopg.Error) as refused:
        priced.superuser.execute(statement.encode())
    assert refused.value.sqlstate == "TS002"


@pytest.mark.parametrize(
    ("values", "refusal"),
    [
        ([3], "invoice 3 of entity-1 does not follow 1"),
        ([2, 4], "invoice of entity-1: 2 numbers from 2 to 4"),
        ([4, 2, 3], None),
    ],
)
async def test_the_database_leaves_no_number_out(
    priced: Ledger, operator: Connection, values: list[int], refusal: str | None
) -> None:
    await priced.post(dollars("a", "3"), received_at=LATER)
    await issued(operator)
    given = nullcontext() if refusal is None else pytest.raises(psycopg.Error, match=refusal)
    with given as refused:
        priced.superuser.execute(
            "insert into billing.documents select (jsonb_populate_record(d, jsonb_build_object('document_id', n::text,"
            " 'tenant_id', n::text, 'number', n::text, 'number_value', n))).*"
            " from billing.documents as d cross join unnest(%s::bigint[]) as n",
            [values],
        )
    assert refused is None or refused.value.sqlstate == "TS004"


async def test_a_line_without_its_document_is_refused(priced: Ledger) -> None:
    with pytest.raises(psycopg.errors.ForeignKeyViolation, match="there is no document inv_none"):
        priced.superuser.execute(
            "insert into billing.document_lines (document_id, line_no, kind, description, service_start, service_end,"
            " exact_amount, amount, tax_category) values ('inv_none', 1, 'fee', 'x', '2026-01-01', '2026-02-01', 1, 1, 'none')"
        )


async def test_the_database_takes_no_second_live_invoice(priced: Ledger, operator: Connection) -> None:
    await priced.post(dollars("a", "3"), received_at=LATER)
    await issued(operator)
    for revision, previous in ((1, None), (2, 1)):
        with pytest.raises(psycopg.errors.IntegrityError):
            priced.superuser.execute(
                "insert into billing.documents select (jsonb_populate_record(d, jsonb_build_object('document_id', 'x',"
                " 'number', 'x', 'number_value', 2, 'revision', %s::int, 'previous_revision', %s::int))).*"
                " from billing.documents as d",
                [revision, previous],
            )


async def test_an_invoice_may_need_a_second_person(priced: Ledger, operator: Connection) -> None:
    await priced.post(dollars("a", "3"), received_at=LATER)
    await close(operator, JANUARY)
    terms = Terms("jane", "month end", frozenset({"invoices.issue"}))
    waiting = await issue(operator, terms=terms)
    assert (waiting.result, waiting.total) == ("awaiting", Decimal(3))
    assert waiting.approval_id is not None
    await decide(operator, waiting.approval_id, approve=True, actor="ann", reason=None)
    assert (await issue(operator, terms=terms)).result == "issued"
    assert priced.rows("select actor, second_person from billing.documents") == [("jane", "ann")]


async def test_what_is_asked_of_nobody_is_refused(priced: Ledger, operator: Connection) -> None:
    with pytest.raises(ActRefused, match="nobody has a period 2031-01"):
        await run(operator, date(2031, 1, 1))
    with pytest.raises(Unknown, match="there is no tenant 'nobody'"):
        await issue_month(operator, "nobody", FEBRUARY, JANE)
    with pytest.raises(ActRefused, match="tenant t-alpha has no period 2031-01"):
        await issue_month(operator, "t-alpha", date(2031, 1, 1), JANE)
    with pytest.raises(ActRefused, match="beyond the bounds needs a reason"):
        await issue(operator, terms=Terms("jane", accepts_bounds=True))
