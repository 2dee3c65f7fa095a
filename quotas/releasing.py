"""Reservations found and released by a person: holds whose usage will not come, or whose caller is gone."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from psycopg.rows import class_row

from ledger.approvals import Awaiting, second_person
from ledger.database import Connection, record_act
from ledger.errors import ActRefused, Unknown
from quotas.asks import Change, Key, Reservation
from quotas.reservations import look_up, release
from quotas.tables import STATES

ACT: Final = "reservations.release"
OPEN: Final = ("held", "awaiting_entry")


@dataclass(frozen=True, slots=True)
class Listed:
    """One reservation with what it holds, as a person looks for it."""

    tenant_id: str
    reservation_id: str
    state: str
    operation_id: str | None
    route: str | None
    decided_at: datetime
    expires_at: datetime
    ended_at: datetime | None
    age_seconds: int
    """Since the call ended, or went ahead; by the database's clock."""
    held: Sequence[str]
    """By budget: amount, unit and budget, of those of which anything is held."""


_LIST: Final = """
select
    r.tenant_id, r.reservation_id, r.state, r.operation_id, r.route, r.decided_at, r.expires_at, r.ended_at,
    floor(extract(epoch from clock_timestamp() - coalesce(r.ended_at, r.decided_at)))::bigint as age_seconds,
    array(
        select trim_scale(h.held)::text || ' ' || coalesce(h.currency, h.unit) || ' of ' || h.budget_id
        from quotas.holds as h
        where h.tenant_id = r.tenant_id and h.reservation_id = r.reservation_id and h.held > 0
        order by h.budget_id
    ) as held
from quotas.reservations as r
where
    {which}
    and (%(tenant_id)s::text is null or r.tenant_id = %(tenant_id)s)
    and (%(before)s::timestamptz is null or coalesce(r.ended_at, r.decided_at) < %(before)s)
order by coalesce(r.ended_at, r.decided_at), r.tenant_id, r.reservation_id
limit %(limit)s
"""
# In the words of the index of what is open, so that it serves the list.
_OPEN: Final = "r.state in ('held', 'awaiting_entry') and r.state = any(%(states)s)"


async def list_reservations(
    connection: Connection,
    *,
    tenant_id: str | None = None,
    states: Collection[str] = OPEN,
    before: datetime | None = None,
    limit: int = 50,
) -> list[Listed]:
    """List reservations in some states, those that have waited longest first; `before`: ended, or decided, earlier than this.

    Raises ActRefused for a state that is none.
    """
    for state in states:
        if state not in STATES:
            raise ActRefused(f"state {state!r} is none of {', '.join(STATES)}")
    which = _OPEN if set(states) <= set(OPEN) else "r.state = any(%(states)s)"
    async with connection.cursor(row_factory=class_row(Listed)) as cursor:
        await cursor.execute(
            _LIST.replace("{which}", which),
            {"tenant_id": tenant_id, "states": list(states), "before": before, "limit": limit},
        )
        return await cursor.fetchall()


async def find_reservation(connection: Connection, tenant_id: str, reservation_id: str) -> Reservation:
    """Return one reservation as it stands; raise Unknown where there is none."""
    found = (await look_up(connection, [(tenant_id, reservation_id)])).get((tenant_id, reservation_id))
    if found is None:
        raise Unknown(f"reservation of tenant {tenant_id}", reservation_id)
    return found


async def release_reservations(
    connection: Connection,
    keys: Sequence[Key],
    *,
    actor: str,
    reason: str,
    needed: Collection[str] = frozenset(),
) -> list[Change] | Awaiting:
    """Give back what reservations hold, all or none: `held` and `awaiting_entry` become `voided`, for good.

    Usage that still comes for them is booked in full; above a limit it is told as `late_settle`.
    `needed` are the acts that the settings ask a second person for.
    Raises Unknown or ActRefused for the first that is not there or holds nothing.
    """
    if not reason.strip():
        raise ActRefused("a release needs a reason: the act carries it")
    keys = list(dict.fromkeys(keys))
    async with connection.transaction():
        for tenant_id, reservation_id in keys:
            found = await find_reservation(connection, tenant_id, reservation_id)
            if found.state not in OPEN:
                raise ActRefused(
                    f"reservation {reservation_id!r} of tenant {tenant_id} is {found.state}: nothing is held"
                )
        detail: dict[str, Any] = {"reservations": [list(key) for key in keys]}
        agreed = await second_person(connection, needed, ACT, detail, actor=actor, reason=reason)
        if isinstance(agreed, Awaiting):
            return agreed
        changes = await release(connection, keys)
        for change in changes:
            if not change.is_changed:
                # Its usage came, or it expired, between the look and the lock.
                raise ActRefused(
                    f"reservation {change.reservation_id!r} of tenant {change.tenant_id} is {change.state} by now"
                )
        await record_act(connection, actor, ACT, detail, reason, agreed.second_person)
    return changes
