"""Tenants' readers: which login sees which tenants. The logins themselves are made by `migrations.run`, which may make roles."""

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg.rows import class_row

from ledger.database import Connection


@dataclass(frozen=True, slots=True)
class ReaderRecord:
    """A login of the group tallystick_reader."""

    login: str
    tenants: Sequence[str]


async def list_readers(connection: Connection) -> list[ReaderRecord]:
    """List logins by name, each with its tenants."""
    async with connection.cursor(row_factory=class_row(ReaderRecord)) as cursor:
        await cursor.execute(
            "select login, array_agg(tenant_id order by tenant_id) as tenants from ledger.reader_tenants"
            " group by login order by login"
        )
        return await cursor.fetchall()
