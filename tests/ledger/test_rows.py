"""One row of a prepared statement by the short way: the driver's answers, errors and connections, at less cost."""

import asyncio
from collections.abc import AsyncIterator

import psycopg
import pytest

from ledger.database import Connection, connect
from ledger.rows import row
from tests.support.ledger import Ledger


@pytest.fixture
async def connection(ledger: Ledger) -> AsyncIterator[Connection]:
    async with await connect(ledger.database.url_for("tallystick_writer")) as connection:
        yield connection


async def test_values_come_back_as_texts(connection: Connection) -> None:
    asked = ["7", None, "a'{\"}%", "1.50"]
    for _ in range(2):
        assert await row(connection, "select %s::integer, %s::text, %s::text, %s::numeric", asked) == asked


async def test_what_is_larger_than_the_socket_takes_goes_through(connection: Connection) -> None:
    text = "x" * 5_000_000
    assert await row(connection, "select length(%s::text)", [text]) == ["5000000"]


async def test_an_error_leaves_the_connection_usable(connection: Connection) -> None:
    for _ in range(2):
        with pytest.raises(psycopg.errors.DivisionByZero):
            await row(connection, "select 1 / %s::integer", [0])
    assert await row(connection, "select 1 / %s::integer", [1]) == ["1"]
    with pytest.raises(psycopg.errors.SyntaxError):
        await row(connection, "selekt 1", [])
    assert await (await connection.execute("select 1")).fetchone() == (1,)


async def test_a_statement_that_the_session_forgot_is_prepared_again(connection: Connection) -> None:
    assert await row(connection, "select %s::text", ["a"]) == ["a"]
    await connection.execute("deallocate all")
    assert await row(connection, "select %s::text", ["b"]) == ["b"]


async def test_a_session_that_ends_is_told_as_by_the_driver(ledger: Ledger, connection: Connection) -> None:
    await row(connection, "select %s::text", ["a"])
    waiting = asyncio.create_task(row(connection, "select pg_sleep(%s::integer)", [5]))
    await asyncio.sleep(0.1)
    ledger.superuser.execute("select pg_terminate_backend(%s)", [connection.info.backend_pid])
    with pytest.raises(psycopg.OperationalError):
        await waiting
    assert connection.closed
    with pytest.raises(psycopg.OperationalError):
        await row(connection, "select %s::text", ["a"])


async def test_one_that_is_cancelled_closes_the_connection(connection: Connection) -> None:
    """Its answer would be taken for that of the next."""
    waiting = asyncio.create_task(row(connection, "select pg_sleep(%s::integer)", [5]))
    await asyncio.sleep(0.1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert connection.closed
