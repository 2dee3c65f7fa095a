"""Pairs that a person should see: two reports of one request that differ, and one answer under two requests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from psycopg.rows import class_row

from ledger.database import Connection
from ledger.times import from_micros


@dataclass(frozen=True, slots=True)
class DifferingPair:
    """A final report of another source that said other counts or amounts of a request than what stood."""

    difference_no: int
    recorded_at: datetime
    tenant_id: str
    request_id: str | None
    occurred_at: datetime
    stood_source: str
    said_source: str
    is_counted: bool
    """Whether the later report counts from then on."""
    stood_quantities: Mapping[str, int]
    said_quantities: Mapping[str, int]
    stood_charge: Decimal | None
    said_charge: Decimal | None
    charge_difference: Decimal | None
    charge_currency: str | None
    stood_cost: Decimal | None
    said_cost: Decimal | None
    cost_difference: Decimal | None
    cost_currency: str | None
    entry_id: int


async def differing_pairs(
    connection: Connection,
    *,
    since: int | None = None,
    tenant_id: str | None = None,
    before: int | None = None,
    limit: int = 100,
) -> Sequence[DifferingPair]:
    """List pairs that differ, the newest first, as of when the later report was recorded; `before` ends the page before."""
    conditions: list[str] = []
    values: list[Any] = []
    # Each condition only where it is asked for: with `or`, no index serves any.
    if since is not None:
        conditions.append("recorded_at >= %s")
        values.append(from_micros(since))
    if tenant_id is not None:
        conditions.append("tenant_id = %s")
        values.append(tenant_id)
    if before is not None:
        conditions.append(
            "(recorded_at, difference_no) < (select recorded_at, difference_no from ledger.differences"
            " where difference_no = %s)"
        )
        values.append(before)
    where = f" where {' and '.join(conditions)}" if conditions else ""
    async with connection.cursor(row_factory=class_row(DifferingPair)) as cursor:
        await cursor.execute(
            "select difference_no, recorded_at, tenant_id, request_id, occurred_at, stood_source, said_source, is_counted,"
            " stood_quantities, said_quantities, stood_charge, said_charge, charge_difference,"
            " charge_currency::text as charge_currency, stood_cost, said_cost, cost_difference,"
            " cost_currency::text as cost_currency, entry_id"
            f" from ledger.statements_that_differ{where} order by recorded_at desc, difference_no desc limit %s",
            [*values, limit],
        )
        return await cursor.fetchall()


@dataclass(frozen=True, slots=True)
class SharedResponse:
    """An answer of a provider that stands under several requests: counted more than once, or an id used twice."""

    posting_period: date
    provider: str
    provider_account: str | None
    response_id: str
    request_count: int
    tenant_ids: Sequence[str]
    request_ids: Sequence[str]
    first_occurred_at: datetime
    last_occurred_at: datetime


async def shared_responses(
    connection: Connection, *, since: date, tenant_id: str | None = None, limit: int = 100
) -> Sequence[SharedResponse]:
    """List answers that stand under several requests of one month, from the month of a day on; the newest first."""
    found: list[SharedResponse] = []
    async with connection.transaction(), connection.cursor(row_factory=class_row(SharedResponse)) as cursor:
        # A month is grouped in memory; with the default it would go to disk at a few ten thousand answers.
        await connection.execute("set local work_mem = '256MB'")
        # By the rows of the batches and not of the entries: one look-up instead of a read of everything.
        months = await connection.execute(
            "select distinct posting_period from ledger.batch_digests where posting_period >= %s order by 1 desc",
            [since.replace(day=1)],
        )
        # Month by month: of a month that is named, only its partition is read.
        for (month,) in await months.fetchall():
            await cursor.execute(
                "select posting_period, provider, provider_account, response_id, request_count, tenant_ids, request_ids,"
                " first_occurred_at, last_occurred_at from ledger.responses_under_several_requests"
                " where posting_period = %(month)s and (%(tenant_id)s::text is null or %(tenant_id)s = any (tenant_ids))"
                " order by last_occurred_at desc, response_id limit %(limit)s",
                {"month": month, "tenant_id": tenant_id, "limit": limit - len(found)},
            )
            found += await cursor.fetchall()
            if len(found) == limit:
                break
    return found
