"""A tenant's reader sees its own rows of every mart that has a tenant, and nothing else of the marts."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from psycopg import sql

from migrations import run
from tests.dbt.conftest import Marts
from tests.dbt.test_rollup import set_up, usage
from tests.factories import make_event

LOGIN = "reader_of_marts"


@contextmanager
def reader(marts: Marts, *tenants: str) -> Iterator[psycopg.Connection]:
    run.add_reader(marts.ledger.database.url, LOGIN, "open sesame", tenants, actor="a person")
    try:
        with marts.ledger.database.connect(LOGIN, autocommit=True) as connection:
            yield connection
    finally:
        marts.ledger.superuser.execute(sql.SQL("drop owned by {}").format(sql.Identifier(LOGIN)))
        marts.ledger.superuser.execute(sql.SQL("drop role {}").format(sql.Identifier(LOGIN)))


def columns_of(marts: Marts, kind: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, column in marts.ledger.rows(
        "select c.relname, a.attname::text from pg_class as c"
        " join pg_attribute as a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped"
        " where c.relnamespace = 'marts'::regnamespace and c.relkind::text = %s order by c.relname, a.attnum",
        kind,
    ):
        found.setdefault(name, []).append(column)
    return found


async def test_a_reader_sees_its_own_rows_of_each_mart_and_no_cost(marts: Marts) -> None:
    """Two tenants, of which the reader sees one: 1,000,000 tokens at 1 USD per million."""
    await set_up(marts)
    marts.ledger.add_tenant("t-beta")
    await marts.post(
        make_event("a", usage=usage(1_000_000)), make_event("b", tenant_id="t-beta", usage=usage(2_000_000))
    )
    marts.roll_up()
    for is_rebuilt in (False, True):
        if is_rebuilt:
            marts.rebuild()
        tables, views = columns_of(marts, "r"), columns_of(marts, "v")
        # Marts that are views themselves are no other than tables to a reader.
        tables |= {name: views.pop(name) for name in list(views) if not name.startswith("own_")}
        # Nodes are the platform's own.
        owned = {name for name, columns in tables.items() if "tenant_id" in columns} - {
            "fct_gpu_allocation_hourly",
            "fct_self_hosted_cost_hourly",
            "fct_self_hosted_cost_daily",
        }
        assert set(views) == {f"own_{name}" for name in owned}
        with reader(marts, "t-alpha") as own:
            for name in owned:
                hidden = set(tables[name]) - set(views[f"own_{name}"])
                assert all("cost" in column for column in hidden - {"merged_into", "merged_at"}), name
                # FOCUS calls the tenant's own charge a cost.
                assert {column for column in views[f"own_{name}"] if "cost" in column} <= {"billed_cost"}, name
                seen = own.execute(f"select distinct tenant_id from marts.own_{name}".encode()).fetchall()
                assert set(seen) <= {("t-alpha",)}, name
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    own.execute(f"select from marts.{name}".encode())
            for name in ("own_fct_cost_daily", "own_fct_usage_hourly", "own_fct_usage_15min"):
                assert own.execute(f"select tenant_id, charge_amount from marts.{name}".encode()).fetchall() == [
                    ("t-alpha", 1)
                ]
            assert own.execute(
                "select tenant_id, sku_meter, billed_cost from marts.own_fct_focus_charges"
            ).fetchall() == [("t-alpha", "uncached_input_tokens", 1)]
            for name in set(tables) - owned:
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    own.execute(f"select from marts.{name}".encode())


async def test_the_views_of_readers_are_barriers_that_show_others_nothing(marts: Marts) -> None:
    await set_up(marts)
    await marts.post(make_event("a", usage=usage(1)))
    marts.roll_up()
    described = marts.ledger.rows(
        "select c.relname, c.reloptions::text, obj_description(c.oid) is not null,"
        " (select count(*) from pg_attribute as a where a.attrelid = c.oid and a.attnum > 0"
        " and col_description(c.oid, a.attnum) is null)"
        " from pg_class as c where c.relnamespace = 'marts'::regnamespace and c.relkind = 'v' and starts_with(c.relname, 'own_')"
    )
    assert len(described) >= 4
    assert {row[1:] for row in described} == {("{security_barrier=true}", True, 0)}
    for role in ("tallystick_analyst", "tallystick_billing", "tallystick_operator"):
        with marts.ledger.database.connect(role) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("select from marts.own_fct_cost_daily")
    with marts.ledger.database.connect("tallystick_rollup") as rollup:
        assert rollup.execute("select count(*) from marts.own_fct_cost_daily").fetchone() == (0,)


async def test_a_view_of_before_what_is_shown_was_named_is_made_anew(marts: Marts) -> None:
    await set_up(marts)
    await marts.post(make_event("a", usage=usage(1_000_000)))
    marts.roll_up()
    marts.ledger.superuser.execute(
        "drop view marts.own_fct_focus_charges; create view marts.own_fct_focus_charges as select tenant_id"
        " from marts.fct_focus_charges; alter view marts.own_fct_focus_charges owner to tallystick_rollup"
    )
    marts.roll_up()
    with reader(marts, "t-alpha") as own:
        assert own.execute("select billed_cost from marts.own_fct_focus_charges").fetchall() == [(1,)]


async def test_a_view_that_was_dropped_is_there_after_the_next_run(marts: Marts) -> None:
    await set_up(marts)
    await marts.post(make_event("a", usage=usage(1)))
    marts.roll_up("fct_cost_daily")
    marts.ledger.superuser.execute("drop view marts.own_fct_cost_daily")
    marts.roll_up("fct_cost_daily")
    with reader(marts, "t-alpha") as own:
        assert own.execute("select tenant_id from marts.own_fct_cost_daily").fetchall() == [("t-alpha",)]
