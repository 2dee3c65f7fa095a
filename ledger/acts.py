"""Acts: who changed what by command, and why, to be read by a person. They are written by `database.record_act`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from psycopg.rows import class_row
from psycopg.types.json import Jsonb

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


_NAMED_BY: Final[Mapping[str, str]] = {
    "tenants": "tenant_id",
    "entities": "entity_id",
    "sources": "source",
    "accounts": "provider_account",
    "models": "model",
}


async def acts_about(
    connection: Connection, noun: str, name: str, also: Mapping[str, str] | None = None
) -> Sequence[ActRecord]:
    """List what was done to a party, the oldest first: its history, with who did it and why.

    `also` holds more values of the detail that tell two of one name apart, such as a model's provider.
    """
    detail = {_NAMED_BY[noun]: name, **(also or {})}
    async with connection.cursor(row_factory=class_row(ActRecord)) as cursor:
        await cursor.execute(
            "select at, actor, act, detail, reason, second_person from ledger.acts"
            " where starts_with(act, %s) and detail @> %s order by act_id",
            [f"{noun}.", Jsonb(detail)],
        )
        return await cursor.fetchall()
