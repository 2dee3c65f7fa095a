"""Reservations: may a tenant's call go ahead, and what is held for it until its usage is in the ledger.

Every call here takes an array and is one statement: outside of a transaction it commits by itself. What an ask would come
to is priced before (`estimates.py`), so that SQL sees nothing but amounts; the deciding stands in sql/70_reservations.sql.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

import msgspec
import psycopg
from psycopg.pq import TransactionStatus

from ledger.books import Books, ensure_ids
from ledger.database import Connection
from ledger.errors import StaleBooks
from ledger.parties import Tenant
from ledger.rows import row
from ledger.times import from_micros, micros
from quotas.arrays import AllFit, Answer, NoneFits, Table
from quotas.asks import (
    TTL_SECONDS_MAX,
    Admission,
    Ask,
    Change,
    Decided,
    Decision,
    Hold,
    Key,
    Reason,
    Reservation,
    Settlement,
    Swept,
)
from quotas.errors import AskRefused
from quotas.known import Known, added

SWEEP_ROWS_MAX: Final = 1_000
_ATTEMPTS: Final = 5


# --- Asking -----------------------------------------------------------------------------------------------------------

_RESERVE: Final = """
select * from quotas.reserve(
    %s::timestamptz, %s::bigint, %s::bigint,
    %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::uuid[], %s::jsonb[], %s::text[],
    %s::text[],
    %s::integer[], %s::text[], %s::text[], %s::uuid[], %s::text[], %s::text[], %s::boolean[], %s::numeric[], %s::numeric[],
    %s::bigint[], %s::bigint[], %s::bigint[], %s::integer[], %s::boolean
)
"""


_RESERVE_KNOWN: Final = """
select * from quotas.reserve_known(
    %s::timestamptz, %s::bigint, %s::bigint, %s::bigint, %s::bigint, %s::timestamptz, %s::timestamptz,
    %s::text[], %s::text[], %s::date[], %s::numeric[], %s::numeric[], %s::text[],
    %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[],
    %s::integer[], %s::text[], %s::text[], %s::uuid[], %s::text[], %s::text[], %s::bigint[], %s::bigint[], %s::integer[],
    %s::text[]
)
"""


_REFUSE_KNOWN: Final = """
select * from quotas.refuse_known(
    %s::timestamptz, %s::bigint, %s::bigint, %s::bigint, %s::bigint, %s::timestamptz, %s::timestamptz,
    %s::integer[], %s::integer[], %s::text[], %s::text[], %s::date[], %s::numeric[], %s::numeric[],
    %s::text[], %s::text[], %s::text[], %s::text[], %s::text[],
    %s::integer[], %s::text[], %s::text[], %s::text[], %s::text[]
)
"""


async def reserve(
    connection: Connection,
    asks: Sequence[Ask],
    books: Books,
    *,
    at: int | None = None,
    is_booking: bool = False,
    known: Known | None = None,
) -> list[Decision]:
    """Do what `decide` does, and write every decision out."""
    decided = await decide(connection, asks, books, at=at, is_booking=is_booking, known=known)
    return [each.written_out() if isinstance(each, Admission) else each for each in decided]


async def decide(
    connection: Connection,
    asks: Sequence[Ask],
    books: Books,
    *,
    at: int | None = None,
    is_booking: bool = False,
    known: Known | None = None,
) -> list[Decided]:
    """Decide asks in their order, each against all budgets in its scope, and hold what is admitted.

    Shape: one decision per ask, in order. An id that was admitted before is answered with where it stands now, or as a
    conflict where the ask is another one; a refusal is kept by nobody and decided anew.
    With `known`, outside of a transaction, what earlier calls found out about scopes saves matching them again.
    With `is_booking` they were admitted at `at`, while nobody could ask: all are held, and what is above a limit is `away`.
    Units: `at` in UTC microseconds stands for the database's clock, for tests and replays.
    Errors: StaleBooks when parties or prices have changed since the books were read: read them and ask again.
    """
    if len({(ask.tenant_id, ask.reservation_id) for ask in asks}) == len(asks):
        return await _reserve(asks, connection, books, at, is_booking, known)
    decisions: list[Decided | None] = [None] * len(asks)
    waiting = list(range(len(asks)))
    while waiting:
        # The same id twice in one call is decided in two: the second time it is there already, or it is decided anew.
        seen: set[Key] = set()
        now: list[int] = []
        later: list[int] = []
        for index in waiting:
            key = (asks[index].tenant_id, asks[index].reservation_id)
            (later if key in seen else now).append(index)
            seen.add(key)
        for index, decision in zip(
            now, await _reserve([asks[index] for index in now], connection, books, at, is_booking, known), strict=True
        ):
            decisions[index] = decision
        waiting = later
    return [decision for decision in decisions if decision is not None]


async def _reserve(
    asks: Sequence[Ask], connection: Connection, books: Books, at: int | None, is_booking: bool, known: Known | None
) -> list[Decided]:
    now = micros(datetime.now(UTC)) if at is None else at
    by_name = {name: books.parties.tenant_at(name, now) for name in {ask.tenant_id for ask in asks}}
    payers = [by_name[ask.tenant_id] for ask in asks]
    refused: dict[int, Reason] = {}
    if any(payer is None or payer.at(now).status != "active" for payer in by_name.values()):
        refused = {place: "unknown_tenant" for place, payer in enumerate(payers) if payer is None}
        if not is_booking:
            refused.update(await _inactive(connection, asks, payers, now))
    if refused:
        # These are refused by the books alone: a tenant may have been added, or resumed, since they were read.
        await _refuse_old(connection, books)
    await _know_users(connection, asks, payers, books)
    table = Table(books, now)
    places = [
        None if payer is None or number in refused else table.add(ask, payer)
        for number, (ask, payer) in enumerate(zip(asks, payers, strict=True))
    ]
    decisions = {
        number: Decision(asks[number].tenant_id, asks[number].reservation_id, "refused", reason=reason)
        for number, reason in refused.items()
    }
    if table.is_empty:
        return [decisions[number] for number in range(len(asks))]
    answer: Answer | AllFit | NoneFits | None = None
    is_alone = connection.info.transaction_status == TransactionStatus.IDLE
    if known is not None and is_alone and not is_booking:
        answer = await _decide_known(connection, table, known, books, at, now)
    if answer is None:
        answer = await _decide(connection, table, at, is_booking)
        if known is not None:
            answer.teach(known, table.scopes, books)
    if not refused and isinstance(answer, AllFit | NoneFits):
        return answer.decided(asks)
    earlier = [
        (ask.tenant_id, ask.reservation_id)
        for ask, place in zip(asks, places, strict=True)
        if place is not None and answer.outcomes[place] == "known"
    ]
    standing = await look_up(connection, earlier) if earlier else {}
    return [
        decisions[number]
        if place is None
        else answer.decision(place, ask, standing.get((ask.tenant_id, ask.reservation_id)))
        for number, (ask, place) in enumerate(zip(asks, places, strict=True))
    ]


async def _inactive(
    connection: Connection, asks: Sequence[Ask], payers: Sequence[Tenant | None], now: int
) -> dict[int, Reason]:
    """Return the asks of tenants that are suspended or have left, but for ids that were admitted while they were active."""
    found = {
        number: (asks[number].tenant_id, asks[number].reservation_id)
        for number, payer in enumerate(payers)
        if payer is not None and payer.at(now).status != "active"
    }
    if not found:
        return {}
    admitted = await look_up(connection, list(found.values()))
    return {number: "inactive_tenant" for number, key in found.items() if key not in admitted}


async def _refuse_old(connection: Connection, books: Books) -> None:
    cursor = await connection.execute("select parties, prices from ledger.versions")
    row = await cursor.fetchone()
    if row != (books.parties.version, books.prices.version):
        raise StaleBooks("parties or prices have changed since the books were read")


async def _know_users(
    connection: Connection, asks: Sequence[Ask], payers: Sequence[Tenant | None], books: Books
) -> None:
    """Give users the ids that stand for them in the ledger, so that budgets by user see the first ask of each."""
    users = {
        user: None
        for ask, payer in zip(asks, payers, strict=True)
        if ask.user_hash is not None
        and payer is not None
        and (user := (payer.tenant_id, ask.user_hash)) not in books.subject_ids
    }
    if users:
        await ensure_ids(connection, books, {}, users)


async def _decide_known(
    connection: Connection, table: Table, known: Known, books: Books, at: int | None, now: int
) -> AllFit | NoneFits | None:
    """Decide asks by the budgets that are known of their scopes, or return None: then nothing was decided."""
    fits = known.find(table.scopes, books.parties.version, books.prices.version, from_micros(now))
    if fits is None:
        return None
    asked = AllFit(table, fits)
    if not asked.is_known:
        return None
    if any(known.is_full(key) for key in asked.windows):
        return await _refuse_known(connection, table, asked, known, at)
    try:
        at_text, taken_text = await row(connection, _RESERVE_KNOWN, asked.parameters(table, known, at))
    except (psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected):
        # An id that is there already, or is being made: the long way tells which.
        return None
    except psycopg.Error as error:
        if error.sqlstate == _STALE:
            return None
        raise
    decided_at = None if at_text is None else datetime.fromisoformat(at_text)
    taken = _elements(taken_text)
    has_full = False
    for (key, (_, summed, room, _marks)), before in zip(asked.windows.items(), taken, strict=False):
        if decided_at is not None:
            known.note_room(key)
        elif room is not None and added(Decimal(before), summed) > room:
            known.note_full(key)
            has_full = True
    if decided_at is None:
        return await _refuse_known(connection, table, asked, known, at) if has_full else None
    asked.take(decided_at, taken)
    return asked


def _elements(array: str | None) -> list[str]:
    """Return the elements of an array of numbers or letters as Postgres writes it."""
    return array[1:-1].split(",") if array and array != "{}" else []


async def _refuse_known(
    connection: Connection, table: Table, asked: AllFit, known: Known, at: int | None
) -> NoneFits | None:
    """Refuse asks none of which fits, or return None: then nothing was decided."""
    refusal, parameters = asked.none_fits(table, known, at)
    decided_at, full, why, remaining = await row(connection, _REFUSE_KNOWN, parameters)
    if decided_at is None:
        return None
    refusal.take(
        datetime.fromisoformat(decided_at), list(map(int, _elements(full))), _elements(why), _elements(remaining)
    )
    return refusal


async def _decide(connection: Connection, table: Table, at: int | None, is_booking: bool) -> Answer:
    """Ask the database, again where somebody else was making one of the reservations, or stood in a ring with us."""
    parameters = [*table.parameters(at), is_booking]
    is_alone = connection.info.transaction_status == TransactionStatus.IDLE
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            cursor = await connection.execute(_RESERVE, parameters, prepare=True)
            row = await cursor.fetchone()
            assert row is not None
            return Answer(row)
        except (psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected):
            if not is_alone or attempt == _ATTEMPTS:
                raise
        except psycopg.Error as error:
            if error.sqlstate == _STALE:
                raise StaleBooks(error.diag.message_primary or "parties or prices have changed") from error
            raise
    raise AssertionError("the last attempt returns or raises")


_STALE: Final = "TS003"


# --- What becomes of reservations -------------------------------------------------------------------------------------


async def settle(connection: Connection, settlements: Sequence[Settlement], *, at: int | None = None) -> list[Change]:
    """Say that calls have ended, and that their usage will come as events: what is held stays and does not expire.

    Where amounts are stated, no more than those stays held, and never more than was reserved: usage above it is booked in
    full when it comes. A settle call that carries the event needs none of this: its entry closes the reservation.
    """
    return await _end(
        connection,
        "settle",
        [(each.tenant_id, each.reservation_id) for each in settlements],
        [[each.charge, each.cost, each.input_tokens, each.output_tokens] for each in settlements],
        at,
    )


async def void(connection: Connection, keys: Sequence[Key], *, at: int | None = None) -> list[Change]:
    """Give back what is held for calls that took nothing; after the call has ended this changes nothing, and says so."""
    return await _end(connection, "void", keys, [[None] * 4] * len(keys), at)


async def release(connection: Connection, keys: Sequence[Key], *, at: int | None = None) -> list[Change]:
    """Give back what is held, of calls that have ended too: a person's word that their usage will not come."""
    return await _end(connection, "release", keys, [[None] * 4] * len(keys), at)


async def _end(
    connection: Connection, act: str, keys: Sequence[Key], amounts: Sequence[Sequence[Any]], at: int | None
) -> list[Change]:
    charges, costs, inputs, outputs = ([row[column] for row in amounts] for column in range(4))
    return await _changes(
        connection,
        "select n, state, is_changed, expires_at from quotas.end_reservations("
        "%s, %s::text[], %s::text[], %s::numeric[], %s::numeric[], %s::bigint[], %s::bigint[], %s::timestamptz)",
        [
            act, [key[0] for key in keys], [key[1] for key in keys], charges, costs, inputs, outputs,
            None if at is None else from_micros(at),
        ],
        keys,
    )  # fmt: skip


async def extend(
    connection: Connection, keys: Sequence[Key], ttls: Sequence[int], *, at: int | None = None
) -> list[Change]:
    """Give calls that go on so many seconds from now; never less than they had, and nothing to what is over."""
    for ttl in ttls:
        if not 1 <= ttl <= TTL_SECONDS_MAX:
            raise AskRefused("ttl_seconds", f"is {ttl}; it takes 1 to {TTL_SECONDS_MAX}")
    return await _changes(
        connection,
        "select n, state, is_changed, expires_at from quotas.extend_reservations("
        "%s::text[], %s::text[], %s::integer[], %s::timestamptz)",
        [
            [key[0] for key in keys], [key[1] for key in keys], list(ttls), None if at is None else from_micros(at),
        ],
        keys,
    )  # fmt: skip


async def _changes(
    connection: Connection, statement: str, parameters: Sequence[Any], keys: Sequence[Key]
) -> list[Change]:
    if not keys:
        return []
    is_alone = connection.info.transaction_status == TransactionStatus.IDLE
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            cursor = await connection.execute(statement, parameters, prepare=True)
            found = {row[0]: row[1:] for row in await cursor.fetchall()}
            return [Change(*key, *found.get(place, (None, False))) for place, key in enumerate(keys, 1)]
        except psycopg.errors.DeadlockDetected:
            if not is_alone or attempt == _ATTEMPTS:
                raise
    raise AssertionError("the last attempt returns or raises")


async def expire(connection: Connection, *, rows_max: int = SWEEP_ROWS_MAX, at: int | None = None) -> Swept:
    """Let go of holds that nobody has spoken of in time.

    Only of those that ran out before the low watermark: up to there everything that could speak of them is posted. While
    a worker is down it stands still, and so do they.
    """
    cursor = await connection.execute(
        "select expired_count, watermark from quotas.expire_reservations(%s, %s::timestamptz)",
        [rows_max, None if at is None else from_micros(at)],
    )
    row = await cursor.fetchone()
    assert row is not None
    return Swept(*row)


async def forget(connection: Connection, *, before: int, rows_max: int = 10_000) -> int:
    """Delete decisions and closed reservations from before an instant, in UTC microseconds; return how many."""
    cursor = await connection.execute(
        "select quotas.forget_decisions(%s::timestamptz, %s)", [from_micros(before), rows_max]
    )
    row = await cursor.fetchone()
    assert row is not None
    return int(row[0])


async def look_up(connection: Connection, keys: Sequence[Key]) -> dict[Key, Reservation]:
    """Read reservations as they stand; those that are not there are left out."""
    cursor = await connection.execute(_LOOK_UP, [[key[0] for key in keys], [key[1] for key in keys]], prepare=True)
    found = {}
    for *columns, holds in await cursor.fetchall():
        read = Reservation(*columns, holds=tuple([msgspec.convert(each, Hold) for each in holds or ()]))  # type: ignore[misc]
        found[read.tenant_id, read.reservation_id] = read
    return found


_LOOK_UP: Final = """
select
    r.tenant_id, r.reservation_id, r.state, r.operation_id, r.basis, r.route, r.lane, r.input_tokens, r.output_tokens,
    r.step, r.decided_at, r.expires_at, r.ended_at,
    (
        select
            jsonb_agg(
                jsonb_build_object(
                    'budget_id', h.budget_id, 'group_key', h.group_key, 'window_start', h.window_start, 'unit', h.unit,
                    'currency', h.currency, 'reserved', trim_scale(h.reserved)::text, 'held', trim_scale(h.held)::text
                )
                order by h.budget_id
            )
        from quotas.holds as h
        where h.tenant_id = r.tenant_id and h.reservation_id = r.reservation_id
    )
from unnest(%s::text[], %s::text[]) as k (tenant_id, reservation_id)
join quotas.reservations as r using (tenant_id, reservation_id)
"""
