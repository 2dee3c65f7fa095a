"""Acts: who changed what by command, and why, to be read by a person. They are written by `database.record_act`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg.rows import class_row

from ledger.database import Connection


@dataclass(frozen=True, slots=True)
class ActRecord:
    """One act of a person or a command."""

    at: datetime
    actor: str
    act: str
    detail: Mapping[str, Any]
    reason: str | None
    second_person: str | None


async def list_acts(
    connection: Connection, *, act: str | None = None, actor: str | None = None, limit: int = 50
) -> Sequence[ActRecord]:
    """List acts, the newest first; `act` takes a whole name (`budgets.set`) or what it begins with (`budgets`)."""
    async with connection.cursor(row_factory=class_row(ActRecord)) as cursor:
        await cursor.execute(
            "select at, actor, act, detail, reason, second_person from ledger.acts"
            " where (%(act)s::text is null or act = %(act)s or starts_with(act, %(act)s || '.'))"
            " and (%(actor)s::text is null or actor = %(actor)s)"
            " order by act_id desc limit %(limit)s",
            {"act": act, "actor": actor, "limit": limit},
        )
        return await cursor.fetchall()
