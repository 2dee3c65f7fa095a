"""What invoices burn of grants: what is left on the books, the usage of a month that burns it, and the movement itself.

The live balance (`granting.py`) is a projection over all usage so far; the booked burn is what invoices printed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import Final

from ledger.database import Connection, record_act
from ledger.money import amount_text
from ledger.times import from_micros, micros
from quotas.grants import Grant, Use


@dataclass(frozen=True, slots=True)
class Books:
    """The grants of a tenant by currency, with what no invoice has burnt of them yet."""

    grants: Mapping[str, Sequence[Grant]] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    """Their descriptions, where they have one."""
    refusals: Sequence[str] = ()
    """Why nothing can be issued: a grant of which more was taken than there was."""


async def read_books(connection: Connection, tenant_ids: Sequence[str]) -> dict[str, Books]:
    """Return the grants of those tenants that have any: the sum of all movements is what is left on the books.

    A sum below zero is told, and keeps the tenant's months from being issued.
    """
    cursor = await connection.execute(
        """
        select
            g.tenant_id, g.currency::text, g.grant_id, sum(m.amount), g.effective_at, g.expires_at, g.priority, g.feature,
            g.model, g.description
        from quotas.grants as g
        join quotas.grant_movements as m using (grant_id)
        where g.tenant_id = any(%s)
        group by g.grant_id
        order by g.grant_id
        """,
        [list(tenant_ids)],
    )
    grants: dict[str, dict[str, list[Grant]]] = {}
    names: dict[str, dict[str, str]] = {}
    refusals: dict[str, list[str]] = {}
    for (
        tenant_id,
        currency,
        grant_id,
        left,
        effective_at,
        expires_at,
        priority,
        feature,
        model,
        name,
    ) in await cursor.fetchall():
        if left < 0:
            refusals.setdefault(tenant_id, []).append(
                f"grant {grant_id} stands at {amount_text(left)} {currency} on the books: more was revoked, expired or"
                " burnt than there was; adjust it"
            )
        grant = Grant(
            grant_id=grant_id,
            amount=left,
            effective_at=micros(effective_at),
            expires_at=None if expires_at is None else micros(expires_at),
            priority=priority,
            feature=feature,
            model=model,
        )
        grants.setdefault(tenant_id, {}).setdefault(currency, []).append(grant)
        if name is not None:
            names.setdefault(tenant_id, {})[grant_id] = name
    return {
        tenant_id: Books(found, names.get(tenant_id, {}), refusals.get(tenant_id, ()))
        for tenant_id, found in grants.items()
    }


_USES: Final = """
select
    -- A turn is where some grant begins or ends: an hour with one in it is two, each wholly on its side.
    greatest(
        date_bin('1 hour', e.occurred_at, timestamptz '2020-01-01 00:00:00+00'),
        (%(turns)s::timestamptz[])[width_bucket(e.occurred_at, %(turns)s::timestamptz[])]
    ) as at,
    sum(e.charge_amount),
    e.feature,
    e.model
from ledger.entries as e
where
    e.posting_period = %(month)s
    and e.tenant_id = %(tenant_id)s
    and e.charge_currency = %(currency)s
    and e.kind <> 'evidence'
    and e.charge_amount <> 0
    and e.entry_id <> all (%(without)s)
group by 1, e.feature, e.model
"""


async def month_uses(
    connection: Connection,
    tenant_id: str,
    currency: str,
    month: date,
    grants: Sequence[Grant],
    without: Sequence[int] = (),
) -> list[Use]:
    """Return what a month's entries were charged, by the hour they occurred in, feature and model; `without` these entries."""
    turns = sorted(
        {grant.effective_at for grant in grants} | {g.expires_at for g in grants if g.expires_at is not None}
    )
    cursor = await connection.execute(
        _USES,
        {
            "turns": [from_micros(turn) for turn in turns],
            "month": month,
            "tenant_id": tenant_id,
            "currency": currency,
            "without": list(without),
        },
    )
    return [
        Use(at=micros(at), amount=amount, feature=feature, model=model)
        for at, amount, feature, model in await cursor.fetchall()
    ]


async def book_burn(
    connection: Connection, actor: str, grant_id: str, amount: Decimal, *, month: date, key: str, reason: str
) -> None:
    """Book what a document takes of a grant, below zero, or gives back to it; in the transaction that issues or voids it."""
    await connection.execute(
        "insert into quotas.grant_movements (grant_id, kind, amount, key, posting_period, actor, reason)"
        " values (%s, 'burnt', %s, %s, %s, %s, %s)",
        [grant_id, amount, key, month, actor, reason],
    )
    detail = {"grant_id": grant_id, "kind": "burnt", "amount": amount_text(amount), "key": key}
    await record_act(connection, actor, "grants.burnt", detail, reason)
