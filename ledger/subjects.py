"""Subjects: a tenant's users, of whom entries hold a random id; one table links it to the sender's hash, until it is erased."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from psycopg.rows import dict_row

from ledger.database import Connection, change, record_act
from ledger.errors import Unknown


@dataclass(frozen=True, slots=True)
class Subject:
    """What the ledger holds about a tenant's user."""

    tenant_id: str
    subject_id: str
    created_at: datetime
    entry_count: int
    request_count: int
    first_at: datetime | None
    last_at: datetime | None
    charge_sums: Mapping[str, Decimal]
    """By currency, unrounded."""
    conversation_count: int


@dataclass(frozen=True, slots=True)
class Erased:
    """What an erasure did, and what remains."""

    tenant_id: str
    subject_id: str | None
    """The id that is nobody's now; None where there was no link, any more or ever."""
    entry_count: int
    """Entries that keep the bare id, for ever or until their month leaves the ledger."""
    conversation_count: int
    """Conversations that they name."""
    tagged_count: int
    """Entries with tags of the sender's own."""
    dead_letter_count: int
    """Dead letters of the tenant whose bytes are there."""
    retired_months: int
    """Months that have left the ledger, whose exports hold bare ids."""


_FIND = "select subject_id::text, created_at from ledger.subjects where tenant_id = %s and user_hash = %s"

_SUMMARY = """
with own as (
    select e.* from ledger.entries as e where e.tenant_id = %(tenant)s and e.subject_id = %(subject)s
)
select
    count(*) as entry_count,
    coalesce(sum(request_count), 0) as request_count,
    min(occurred_at) as first_at,
    max(occurred_at) as last_at,
    count(distinct conversation_id) as conversation_count,
    count(*) filter (where tags is not null) as tagged_count,
    (
        select coalesce(jsonb_object_agg(currency, amount::text), '{}')
        from (
            select charge_currency::text as currency, sum(charge_amount) as amount
            from own where charge_amount is not null group by 1
        ) as s
    ) as charge_sums
from own
"""


async def find_subject(connection: Connection, tenant_id: str, user_hash: str) -> Subject:
    """Return what the ledger holds about a tenant's user. Errors: Unknown where nothing links to them."""
    cursor = await connection.execute(_FIND, [tenant_id, user_hash])
    row = await cursor.fetchone()
    if row is None:
        raise Unknown("subject of this hash for tenant", tenant_id)
    subject_id, created_at = row
    found = await _summary(connection, tenant_id, subject_id)
    return Subject(
        tenant_id,
        subject_id,
        created_at,
        found["entry_count"],
        found["request_count"],
        found["first_at"],
        found["last_at"],
        {currency: Decimal(amount) for currency, amount in found["charge_sums"].items()},
        found["conversation_count"],
    )


async def _summary(connection: Connection, tenant_id: str, subject_id: str) -> dict[str, Any]:
    async with connection.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(_SUMMARY, {"tenant": tenant_id, "subject": subject_id})
        row = await cursor.fetchone()
    assert row is not None
    return row


EXPORTED = (
    "entry_id", "kind", "occurred_at", "recorded_at", "source", "request_id", "operation_id", "conversation_id", "provider",
    "model", "feature", "language", "route", "lane", "api_key_id", "app_version", "trace_id", "status", "stop_reason", "tags",
    "request_count", "input_tokens", "output_tokens", "charge_amount", "charge_currency",
)  # fmt: skip
"""What an access request is answered with; what the providers cost is no matter of a user's."""


async def entries_of(connection: Connection, subject: Subject) -> AsyncIterator[dict[str, Any]]:
    """Yield the entries of a subject, the oldest first, without holding them all."""
    async with (
        connection.transaction(),
        connection.cursor(name="entries_of_subject", row_factory=dict_row) as cursor,
    ):
        await cursor.execute(
            f"select {', '.join(EXPORTED)} from ledger.entries where tenant_id = %s and subject_id = %s"
            " order by occurred_at, entry_id",
            [subject.tenant_id, subject.subject_id],
        )
        async for row in cursor:
            yield row


async def erase_subject(connection: Connection, tenant_id: str, user_hash: str, *, actor: str, reason: str) -> Erased:
    """Cut the link to a tenant's user, and say what remains. A second time finds nothing to cut and says so.

    Under the calendar lock, and with a new version of the parties: a writer that remembers the id makes its batch again, and
    finds the hash linked to nothing. Neither the act nor anything else keeps the hash.
    """
    async with change(connection, "parties"):
        cursor = await connection.execute("select 1 from ledger.tenants where tenant_id = %s", [tenant_id])
        if await cursor.fetchone() is None:
            raise Unknown("tenant", tenant_id)
        cursor = await connection.execute("select ledger.erase_subject(%s, %s)::text", [tenant_id, user_hash])
        row = await cursor.fetchone()
        subject_id = row[0] if row else None
        if subject_id is not None:
            await record_act(
                connection, actor, "subjects.erase", {"tenant_id": tenant_id, "subject_id": subject_id}, reason
            )
    left: dict[str, Any] = {"entry_count": 0, "conversation_count": 0, "tagged_count": 0}
    if subject_id is not None:
        left = await _summary(connection, tenant_id, subject_id)
    cursor = await connection.execute(
        "select (select count(*) from ledger.dead_letters as d"
        "   where d.sent_tenant_id = %s and ledger.dead_letter_size(d.dead_letter_id) is not null),"
        " (select count(*) from ledger.retired_months)",
        [tenant_id],
    )
    others = await cursor.fetchone()
    assert others is not None
    return Erased(
        tenant_id,
        subject_id,
        left["entry_count"],
        left["conversation_count"],
        left["tagged_count"],
        others[0],
        others[1],
    )
