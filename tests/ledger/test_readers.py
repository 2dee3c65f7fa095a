"""A tenant's reader sees its own tenants: by no view, function, error, statistic or lock anything of another's."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from billing.issuing import issue_month
from billing.voiding import void_invoice
from ledger import closing
from ledger.database import connect
from migrations import run
from tallystick.embedded import EmbeddedPostgres
from tests.billing.support import JANE, agree
from tests.factories import make_event
from tests.support.databases import scratch_database
from tests.support.ledger import Ledger

CHECKOUT = Path(__file__).parent.parent.parent
ROOMS = ("ledger", "quotas", "ingest", "billing", "api", "tallystick")
SECRET = "t-beta-secret"
"""Stands in every text of the other tenant that a reader could ever be shown."""


@dataclass
class Logins:
    """Two readers of one ledger: one sees t-alpha, the other t-beta."""

    ledger: Ledger
    names: dict[str, str]

    def connect(self, tenant: str) -> psycopg.Connection:
        return self.ledger.database.connect(self.names[tenant], autocommit=True)


async def fill(ledger: Ledger) -> None:
    """The other tenant has most of the rows, with values of its own."""
    ledger.add_tenant(SECRET)
    await ledger.add_price(input="2.00", output="8.00")
    await ledger.add_price("m-secret", provider=SECRET, input="3.00", output="9.00")
    alpha = [make_event(f"a{n}", user_hash=f"user-{n}") for n in range(5)]
    beta = [
        make_event(
            f"b{n}", tenant_id=SECRET, feature=f"{SECRET} feature", route=SECRET, model="m-secret", provider=SECRET,
            requested_model=SECRET, user_hash=SECRET, conversation_id=SECRET, trace_id=SECRET, api_key_id=SECRET,
            tags={"team": SECRET},
        )
        for n in range(300)
    ]  # fmt: skip
    await ledger.post(*alpha)
    await ledger.post(*beta)
    ledger.superuser.execute("analyze")


@contextmanager
def added(ledger: Ledger) -> Iterator[Logins]:
    """Add the readers. Logins belong to the server, so they are dropped again."""
    made = {}
    try:
        for tenant, short in (("t-alpha", "one"), (SECRET, "two")):
            made[tenant] = f"reader_{short}_of_{ledger.database.name}"
            run.add_reader(ledger.database.url, made[tenant], "open sesame", [tenant], actor="a person")
        yield Logins(ledger, made)
    finally:
        for name in made.values():
            if ledger.rows("select from pg_roles where rolname = %s", name):
                ledger.superuser.execute(sql.SQL("drop owned by {}").format(sql.Identifier(name)))
                ledger.superuser.execute(sql.SQL("drop role {}").format(sql.Identifier(name)))


@pytest.fixture(scope="module")
def logins(postgres_server: EmbeddedPostgres, months_template: str) -> Iterator[Logins]:
    """Of one ledger for all tests: a reader changes nothing. A test that does change something takes `own_logins`."""
    with scratch_database(postgres_server.address, "readers", months_template) as database:
        ledger = Ledger(database).add_tenant().add_source().add_node()
        try:
            asyncio.run(fill(ledger))
            with added(ledger) as made:
                yield made
        finally:
            ledger.close()


@pytest.fixture
async def own_logins(ledger: Ledger) -> AsyncIterator[Logins]:
    await fill(ledger)
    with added(ledger) as made:
        yield made


async def test_a_reader_sees_its_own_rows_whatever_it_sets(logins: Logins) -> None:
    with logins.connect("t-alpha") as reader:
        for statement in (
            "select 1",
            "set role tallystick_reader",
            "set row_security = off",
            f"set app.tenant = '{SECRET}'",
            "set search_path = ledger",
        ):
            reader.execute(statement)
            assert reader.execute(
                "select distinct tenant_id, count(*) from ledger.own_entries group by 1"
            ).fetchall() == [("t-alpha", 5)]
            assert reader.execute("select tenant_id from ledger.own_tenants").fetchall() == [("t-alpha",)]
            assert reader.execute("select distinct tenant_id from ledger.own_entry_lines").fetchall() == [("t-alpha",)]
    with logins.connect(SECRET) as reader:
        assert reader.execute("select count(*) from ledger.own_entries").fetchone() == (300,)


async def test_a_reader_cannot_become_another(logins: Logins) -> None:
    with logins.connect("t-alpha") as reader:
        for statement in (
            f"set session authorization {logins.names[SECRET]}",
            f"set role {logins.names[SECRET]}",
            "set role tallystick_owner",
            "set role tallystick_analyst",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                reader.execute(statement.encode())


async def test_a_reader_sees_its_own_documents_and_their_lines(own_logins: Logins) -> None:
    """An invoice of each tenant, voided and issued again for t-alpha; nothing of the other's, by no join or guessed id."""
    ledger = own_logins.ledger
    january = date(2026, 1, 1)
    async with await connect(ledger.database.url_for("tallystick_operator")) as operator:
        await agree(operator, "t-alpha", SECRET)
        await closing.close_periods(operator, "jane", january)
        await closing.seal_pending(operator)
        for tenant in ("t-alpha", SECRET):
            await issue_month(operator, tenant, january, JANE)
        await void_invoice(operator, "jane", "NW-000001", reason="a wrong address")
        await issue_month(operator, "t-alpha", january, JANE)
    with own_logins.connect("t-alpha") as reader:
        documents = "select number, tenant_id, total, is_voided from billing.own_documents order by number"
        assert reader.execute(documents).fetchall() == [
            ("NW-000001", "t-alpha", Decimal("0.00"), True), ("NW-000003", "t-alpha", Decimal("0.00"), False),
        ]  # fmt: skip
        # 500 tokens at 2.00 and 50 at 8.00 a million, on each of the two.
        lines = "select document_id, sum(exact_amount) from billing.own_document_lines group by 1"
        found = reader.execute(lines).fetchall()
        assert [amount for _, amount in found] == [Decimal("0.0014")] * 2
        own = {row[0] for row in reader.execute("select document_id from billing.own_documents")}
        assert {document_id for document_id, _ in found} == own
        for table in ("documents", "document_lines", "voids", "live_documents", "customers", "parked", "numbers"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                reader.execute(f"select from billing.{table}".encode())
    with own_logins.connect(SECRET) as reader:
        assert reader.execute("select number, tenant_id from billing.own_documents").fetchall() == [
            ("NW-000002", SECRET)
        ]
        assert reader.execute(
            "select count(distinct document_id) from billing.own_document_lines where feature = %s",
            [f"{SECRET} feature"],
        ).fetchone() == (1,)


async def test_a_reader_without_tenants_sees_nothing(own_logins: Logins) -> None:
    own_logins.ledger.superuser.execute(
        "delete from ledger.reader_tenants where login = %s", [own_logins.names["t-alpha"]]
    )
    with own_logins.connect("t-alpha") as reader:
        for view in ("own_tenants", "own_entries", "own_entry_lines"):
            assert reader.execute(f"select count(*) from ledger.{view}".encode()).fetchone() == (0,)


async def test_a_reader_sees_the_windows_of_its_own_budgets(logins: Logins) -> None:
    """5 x 0.00028 = 0.0014 charged in January; what the provider costs is not shown."""
    with logins.connect("t-alpha") as reader:
        rows = reader.execute("select budget_id, tenant_id, unit, posted from quotas.own_windows").fetchall()
    assert rows == [("totals-charge", "t-alpha", "charge", Decimal("0.0014"))]
    with logins.connect(SECRET) as other:
        assert other.execute("select distinct tenant_id from quotas.own_windows").fetchall() == [(SECRET,)]


async def test_lines_of_a_reader_sum_to_what_it_is_charged(logins: Logins) -> None:
    """5 x (100 x 2.00 + 10 x 8.00) / 1,000,000 = 0.0014; the cost book is not in it."""
    with logins.connect("t-alpha") as reader:
        assert reader.execute("select sum(charge_amount) from ledger.own_entries").fetchone() == (Decimal("0.0014"),)
        assert reader.execute("select sum(amount) from ledger.own_entry_lines").fetchone() == (Decimal("0.0014"),)
        columns = [
            name
            for (name,) in reader.execute(
                "select attname::text from pg_attribute where attrelid in"
                " ('ledger.own_entries'::regclass, 'ledger.own_entry_lines'::regclass) and attnum > 0"
            ).fetchall()
        ]
    assert not [name for name in columns if "cost" in name]


async def test_a_reader_has_rights_on_the_views_of_its_rows_and_on_nothing_else(logins: Logins) -> None:
    with logins.connect("t-alpha") as reader:
        open_to_it = reader.execute(
            """
            select c.oid::regclass::text, r
            from pg_class as c
            cross join unnest('{select,insert,update,delete,truncate,references,trigger}'::text[]) as r
            where
                c.relnamespace in (select oid from pg_namespace where nspname in ('ledger', 'quotas', 'marts', 'public'))
                and (
                    (c.relkind in ('r', 'p', 'v', 'm', 'f') and (
                        has_table_privilege(c.oid, r)
                        or (r in ('select', 'insert', 'update', 'references') and has_any_column_privilege(c.oid, r))
                    ))
                    or (c.relkind = 'S' and r in ('select', 'update') and has_sequence_privilege(c.oid, r))
                )
            order by 1
            """
        ).fetchall()
        functions = reader.execute(
            "select oid::regprocedure::text from pg_proc where pronamespace in"
            " (select oid from pg_namespace where nspname in ('ledger', 'quotas', 'marts', 'public'))"
            " and prorettype <> 'trigger'::regtype and has_function_privilege(oid, 'execute')"
            " and has_schema_privilege(pronamespace, 'usage') order by 1"
        ).fetchall()
    assert [name for name, right in open_to_it if right == "select"] == [name for name, _ in open_to_it]
    assert all(re.fullmatch(r"(ledger|quotas)\.own_\w+", name) for name, _ in open_to_it), open_to_it
    assert len(open_to_it) >= 3
    assert functions == []


LEAKY = {
    "a cast of another's text": "select count(*) from ledger.own_entries where feature::integer = 1",
    "a pattern from the row": "select count(*) from ledger.own_entries where 'x' ~ (feature || '(')",
    "json from the row": "select count(*) from ledger.own_entries where feature::jsonb is not null",
    "a key of the row as a setting": "select count(current_setting(feature)) from ledger.own_entries",
    "a line's meter": "select count(*) from ledger.own_entry_lines where meter::integer = 1",
    "a name that is no column": f"select {SECRET.replace('-', '_')} from ledger.own_entries",
    "a table": "select * from ledger.entries",
    "a leaf": "select * from ledger.entries_2026_01",
    "prices": "select * from ledger.rates",
    "logins and their tenants": "select * from ledger.reader_tenants",
    "a sequence": "select * from ledger.batches_batch_id_seq",
    "the last number of a sequence": "select currval('ledger.batches_batch_id_seq')",
    "a function with the owner's rights": "select quotas.fold_windows('totals-charge')",
    "another's partition made": "select ledger.make_partitions('2026-01-01')",
    "marts": "select * from marts.fct_cost_daily",
    "budgets": "select * from quotas.windows",
    "a row of an own table": "create table public.mine (x text)",
    "a file of the server": "select pg_read_file('postgresql.conf')",
    "a program": "copy (select 1) to program 'id'",
    "a copy of the table": "copy ledger.entries to stdout",
    "the statistics themselves": "select * from pg_statistic",
    "a statistic's function": "select * from pg_statistic_ext_data",
    "passwords": "select * from pg_authid",
}


@pytest.mark.parametrize("what", LEAKY)
async def test_no_error_quotes_another_tenant(logins: Logins, what: str) -> None:
    """A filter that fails on a row tells what is in it; the barrier keeps it from rows that are not the reader's."""
    with logins.connect("t-alpha") as reader:
        notices: list[str] = []
        reader.add_notice_handler(lambda said: notices.append(str(said.message_primary)))
        try:
            reader.execute(LEAKY[what].encode())
        except psycopg.Error as error:
            said = f"{error} {error.diag.message_detail} {error.diag.context}"
            if "does not exist" not in said:
                assert SECRET not in said
        else:
            pytest.fail("went through: it should be refused, or fail on the reader's own rows")
        assert not any(SECRET in notice for notice in notices)


@pytest.mark.parametrize(
    "condition",
    [
        "1 / (case when route is null then 1 else 0 end) = 1",
        "trace_id::date is null",
        "(tags ->> 'team')::integer is null",
    ],
)
async def test_a_filter_that_would_fail_on_another_tenants_row_never_meets_one(logins: Logins, condition: str) -> None:
    with logins.connect("t-alpha") as reader:
        assert reader.execute(f"select count(*) from ledger.own_entries where {condition}".encode()).fetchone() == (5,)


async def test_a_function_of_the_readers_own_is_shown_no_other_row(logins: Logins) -> None:
    """Made to look cheap, it would be called before the filter if nothing stood between."""
    with logins.connect("t-alpha") as reader:
        reader.execute(
            "create function pg_temp.tell(said text) returns boolean language plpgsql cost 0.0000001"
            " as $$ begin raise notice 'saw %', said; return true; end $$"
        )
        notices: list[str] = []
        reader.add_notice_handler(lambda said: notices.append(str(said.message_primary)))
        reader.execute("select count(*) from ledger.own_entries where pg_temp.tell(feature)")
        reader.execute("select count(*) from ledger.own_entry_lines where pg_temp.tell(tenant_id)")
    assert len(notices) == 15
    assert not any(SECRET in notice for notice in notices)


TEXTS = ("tenant_id", "feature", "route", "model", "provider", "conversation_id", "trace_id", "api_key_id")


@pytest.mark.parametrize("column", TEXTS)
async def test_a_plan_guesses_the_same_for_another_tenant_and_for_nobody(logins: Logins, column: str) -> None:
    """The planner knows that most rows are the other's. A guess that showed it would say who is there, and how large."""
    value = {"model": "m-secret", "feature": f"{SECRET} feature"}.get(column, SECRET)
    with logins.connect("t-alpha") as reader:
        plans = [
            reader.execute(
                sql.SQL("explain (format json) select * from ledger.own_entries where {} = {}").format(
                    sql.Identifier(column), sql.Literal(asked)
                )
            ).fetchone()
            for asked in (value, "x" * len(value))
        ]
    assert rows_of(plans[0]) == rows_of(plans[1])
    with logins.ledger.database.connect("tallystick_analyst") as analyst:
        known = [
            analyst.execute(
                sql.SQL("explain (format json) select * from ledger.entries where {} = {}").format(
                    sql.Identifier(column), sql.Literal(asked)
                )
            ).fetchone()
            for asked in (value, "x" * len(value))
        ]
    assert rows_of(known[0]) != rows_of(known[1]), "there are no statistics, so this test says nothing"


def rows_of(plan: Any) -> list[Any]:
    """What a plan guesses, node by node."""
    return re.findall(r"'Plan Rows': (\d+)", str(plan))


async def test_numbers_of_another_tenant_do_not_show_in_a_plan(logins: Logins) -> None:
    """300 of 305 rows have this charge: (100 x 3.00 + 10 x 9.00) / 1,000,000."""
    with logins.connect("t-alpha") as reader:
        for column, theirs, nobodys in (("charge_amount", "0.00039", "0.00038"), ("input_tokens", "100", "99")):
            plans = [
                reader.execute(
                    f"explain (format json) select * from ledger.own_entries where {column} = {asked}".encode()
                ).fetchone()
                for asked in (theirs, nobodys)
            ]
            assert rows_of(plans[0]) == rows_of(plans[1]), column


async def test_statistics_show_a_reader_no_values(logins: Logins) -> None:
    with logins.connect("t-alpha") as reader:
        for view in ("pg_stats", "pg_stats_ext"):
            assert reader.execute(
                f"select count(*) from {view} where schemaname in ('ledger', 'quotas', 'marts')".encode()
            ).fetchone() == (0,)


async def test_what_others_run_is_hidden_from_a_reader(logins: Logins) -> None:
    with logins.connect(SECRET) as other, logins.connect("t-alpha") as reader:
        other.execute(f"select '{SECRET}'".encode())
        shown = reader.execute(
            "select query from pg_stat_activity where usename <> current_user and query <> '<insufficient privilege>'"
            " and query is not null and query <> ''"
        ).fetchall()
    assert shown == []


def test_nothing_is_announced_to_whoever_listens() -> None:
    """Any login may listen to any channel, so what is said on one is that something happened, and nothing more."""
    files = [
        *run.routines().values(),
        *(path.read_text() for room in ROOMS for path in (CHECKOUT / room).rglob("*.py")),
    ]
    calls = [call for text in files for call in re.findall(r"pg_notify\([^)]*\)|^\s*notify [^\n]*", text, re.MULTILINE)]
    assert calls
    assert [call for call in calls if not re.fullmatch(r"pg_notify\('\w+', ''\)", call)] == []


@pytest.mark.parametrize(
    "call",
    [
        "pg_advisory_lock(7411001)",
        "pg_try_advisory_lock(1)",
        "pg_advisory_xact_lock_shared(7411001)",
        "pg_advisory_unlock_all()",
    ],
)
async def test_a_reader_takes_no_advisory_lock(logins: Logins, call: str) -> None:
    """Whoever holds the calendar lock stops every writer."""
    with logins.connect("t-alpha") as reader, pytest.raises(psycopg.errors.InsufficientPrivilege):
        reader.execute(f"select {call}".encode())
    with (
        logins.ledger.database.connect("tallystick_analyst") as analyst,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        analyst.execute(f"select {call}".encode())


async def test_a_reader_logs_in_with_its_limits(logins: Logins) -> None:
    """Members do not inherit what is set for their group, so each login has them."""
    with logins.connect("t-alpha") as reader:
        for name, value in run.READER_LIMITS.items():
            assert reader.execute("select current_setting(%s)", [name]).fetchone() == (value,), name
    assert (
        logins.ledger.value("select rolconnlimit from pg_roles where rolname = %s", logins.names["t-alpha"])
        == run.READER_CONNECTIONS_MAX
    )


async def test_adding_and_removing_a_reader_are_acts_and_no_password_is_in_them(own_logins: Logins) -> None:
    run.remove_reader(own_logins.ledger.database.url, own_logins.names["t-alpha"], actor="a person", reason="left")
    assert own_logins.ledger.value("select count(*) from pg_roles where rolname = %s", own_logins.names["t-alpha"]) == 0
    assert (
        own_logins.ledger.value(
            "select count(*) from ledger.reader_tenants where login = %s", own_logins.names["t-alpha"]
        )
        == 0
    )
    acts = own_logins.ledger.rows(
        "select act, actor, detail::text from ledger.acts where act like 'readers.%%' order by act_id"
    )
    assert [act for act, _, _ in acts] == ["readers.add", "readers.add", "readers.remove"]
    assert all(actor == "a person" and "sesame" not in detail for _, actor, detail in acts)


@pytest.mark.parametrize(
    ("login", "tenants", "rule"),
    [
        ("tallystick_writer", ["t-alpha"], "is a role of the running system"),
        ("postgres", ["t-alpha"], "is there already and is no reader"),
        ("Robert'); drop table", ["t-alpha"], "must be small letters, digits and underscores"),
        ("reader_nobody", ["t-nobody"], "there is no tenant 't-nobody'"),
        ("reader_nobody", [], "needs a tenant"),
    ],
)
async def test_a_login_that_would_be_more_than_a_reader_is_refused(
    ledger: Ledger, login: str, tenants: list[str], rule: str
) -> None:
    from ledger.errors import LedgerError

    with pytest.raises(LedgerError, match=re.escape(rule)):
        run.add_reader(ledger.database.url, login, "open sesame", tenants, actor="a person")
    assert ledger.value("select count(*) from ledger.reader_tenants") == 0
