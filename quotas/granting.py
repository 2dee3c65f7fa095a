"""Grants in the database: made, revoked, adjusted, expired, held against usage; and tenants that are held to them.

Movements are rows that nobody changes; the balance is their sum. What usage has burnt so far is a projection
(`quotas.grants`); billing books it when it issues an invoice.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

from ledger.books import load_tenants
from ledger.database import Connection, change, record_act
from ledger.errors import Unknown
from ledger.money import CURRENCIES, EXACT, amount_text
from ledger.times import from_micros, micros
from quotas import budgets
from quotas.errors import GrantRefused
from quotas.grants import Balance, Grant, Projection, Use, project
from quotas.terms import DEFAULTS, GRANTED, NAME_LENGTH_MAX, Terms

PRIORITIES: Final = (1, 1000)
_ZERO: Final = Decimal(0)
_AHEAD: Final = 120_000_000
"""How long before a grant begins or ends its tenant's limit is set again, so that what lapses is known to the minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewGrant:
    """A grant as a person asks for it. Instants are UTC microseconds; the end is exclusive."""

    tenant_id: str
    amount: Decimal
    currency: str
    effective_at: int | None = None
    """None: from now on."""
    expires_at: int | None = None
    priority: int = 100
    feature: str | None = None
    model: str | None = None
    description: str | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """What became of an act on a grant."""

    grant_id: str
    amount: Decimal
    """What it moved: above zero where something was added."""
    was_done: bool
    """The same act was done before under the same key; nothing moved now."""


@dataclass(frozen=True, slots=True)
class GrantRecord:
    """A grant with what has happened to it and what is left, live."""

    grant_id: str
    tenant_id: str
    currency: str
    feature: str | None
    model: str | None
    priority: int
    effective_at: datetime
    expires_at: datetime | None
    description: str | None
    created_at: datetime
    granted: Decimal
    """What was granted, with adjustments."""
    revoked: Decimal
    booked_expired: Decimal
    """What was not burnt by its end, once that is booked."""
    booked_burnt: Decimal
    """What invoices have burnt."""
    burnt: Decimal
    """What usage so far has burnt, live."""
    left: Decimal
    """What could be burnt now."""


@dataclass(frozen=True, slots=True)
class Balances:
    """The grants of a tenant in one currency, live."""

    tenant_id: str
    currency: str
    left: Decimal
    """What any usage may burn now: without what is left for some features or models alone."""
    overflow: Decimal
    """What usage since the first grant was charged beyond all grants."""
    unpriced_count: int
    """Requests since the first grant without a charge yet: what is left is too high while above zero."""
    is_prepaid: bool
    """Reservations hold the tenant to what is left."""
    grants: Sequence[GrantRecord]
    """In the order in which they burn."""


async def create_grant(
    connection: Connection, actor: str, wanted: NewGrant, *, key: str, now: int, reason: str | None = None
) -> Done:
    """Make a grant, once for each key: the same wish under the same key finds the one that is there.

    Units: `now` in UTC microseconds.
    Raises GrantRefused or Unknown for the first rule that is broken.
    """
    _check_key(key)
    await _check_grant(connection, wanted, now)
    async with change(connection, "budgets"):
        done = await _done_before(connection, key)
        if done is not None:
            await _check_same(connection, done[0], done[1], wanted, key)
            return Done(done[0], done[2], True)
        # Time in front: of grants that are equal in all else, the one that was made first burns first.
        grant_id = f"gr_{now:x}{secrets.token_hex(3)}"
        await connection.execute(
            "insert into quotas.grants"
            " (grant_id, tenant_id, currency, feature, model, priority, effective_at, expires_at, description)"
            " values (%s, %s, %s, %s, %s, %s, %s, %s, %s)",
            [
                grant_id, wanted.tenant_id, wanted.currency, wanted.feature, wanted.model, wanted.priority,
                from_micros(now if wanted.effective_at is None else wanted.effective_at),
                None if wanted.expires_at is None else from_micros(wanted.expires_at), wanted.description,
            ],
        )  # fmt: skip
        await _move(connection, actor, "granted", grant_id, wanted.amount, key, reason)
        await hold_to_grants(connection, actor, wanted.tenant_id, wanted.currency, now=now, reason="a grant was made")
    return Done(grant_id, wanted.amount, False)


async def revoke_grant(
    connection: Connection,
    actor: str,
    grant_id: str,
    *,
    key: str,
    now: int,
    amount: Decimal | None = None,
    reason: str | None = None,
) -> Done:
    """Take back what is left of a grant, or a part of it, once for each key; what was burnt stays burnt."""
    _check_key(key)
    async with change(connection, "budgets"):
        grant = await _grant(connection, grant_id)
        done = await _done_before(connection, key)
        if done is not None:
            if done[:2] != (grant_id, "revoked") or (amount is not None and done[2] != -amount):
                raise GrantRefused(f"key {key!r} was used for another act")
            return Done(grant_id, done[2], True)
        rest = _rest(grant, await _balance(connection, grant, now))
        wanted = rest if amount is None else amount
        if not wanted.is_finite() or wanted <= 0:
            if amount is None:
                raise GrantRefused(f"grant {grant_id} has nothing left to revoke")
            raise GrantRefused(f"the amount to revoke must be above zero, and {amount_text(wanted)} is not")
        if wanted > rest:
            raise GrantRefused(
                f"grant {grant_id} has {amount_text(rest)} left, which is less than {amount_text(wanted)}"
            )
        await _move(connection, actor, "revoked", grant_id, EXACT.minus(wanted), key, reason)
        await hold_to_grants(
            connection, actor, grant["tenant_id"], grant["currency"], now=now, reason="a grant was revoked"
        )
    return Done(grant_id, EXACT.minus(wanted), False)


async def adjust_grant(
    connection: Connection, actor: str, grant_id: str, amount: Decimal, *, key: str, now: int, reason: str
) -> Done:
    """Add to a grant, or take from what is left of it, once for each key: for what was granted in error."""
    _check_key(key)
    if not amount.is_finite() or not amount:
        raise GrantRefused("an adjustment is an amount above or below zero")
    async with change(connection, "budgets"):
        grant = await _grant(connection, grant_id)
        done = await _done_before(connection, key)
        if done is not None:
            if done != (grant_id, "adjusted", amount):
                raise GrantRefused(f"key {key!r} was used for another act")
            return Done(grant_id, done[2], True)
        rest = _rest(grant, await _balance(connection, grant, now))
        if EXACT.add(rest, amount) < 0:
            raise GrantRefused(
                f"grant {grant_id} has {amount_text(rest)} left, which {amount_text(amount)} would overdraw"
            )
        await _move(connection, actor, "adjusted", grant_id, amount, key, reason)
        await hold_to_grants(
            connection, actor, grant["tenant_id"], grant["currency"], now=now, reason="a grant was adjusted"
        )
    return Done(grant_id, amount, False)


async def expire_due(connection: Connection, actor: str, *, now: int) -> tuple[int, int]:
    """Book what expired grants had left, and move the limits of tenants that are held to their grants.

    Shape: (grants whose rest was booked, limits moved). A rest is booked when usage from before the end can no longer enter
    its own month; what comes later still finds the grant gone. Limits move as soon as a grant begins or ends.
    """
    booked = 0
    cursor = await connection.execute(
        """
        select g.grant_id
        from quotas.grants as g
        where
            g.expires_at <= %(now)s
            and not exists (
                select from quotas.grant_movements as m where m.grant_id = g.grant_id and m.kind = 'expired'
            )
            and (select sum(m.amount) from quotas.grant_movements as m where m.grant_id = g.grant_id and m.kind <> 'burnt') > 0
            and not exists (
                select
                from ledger.periods as p
                where
                    p.tenant_id = g.tenant_id
                    and p.state = 'open'
                    and p.starts_at < g.expires_at
                    and p.grace_until > %(now)s
            )
        order by g.grant_id
        """,
        {"now": from_micros(now)},
    )
    for (grant_id,) in await cursor.fetchall():
        async with change(connection, "budgets"):
            booked += await _book_expiry(connection, actor, grant_id, now)
    moved = 0
    for tenant_id, currency in await _limits_due(connection, now):
        async with change(connection, "budgets"):
            moved += await hold_to_grants(
                connection, actor, tenant_id, currency, now=now, reason="a grant began or expired"
            )
    return booked, moved


async def _book_expiry(connection: Connection, actor: str, grant_id: str, now: int) -> int:
    key = f"expired:{grant_id}"
    if await _done_before(connection, key) is not None:
        return 0
    grant = await _grant(connection, grant_id)
    rest = _rest(grant, await _balance(connection, grant, now))
    if rest <= 0:
        return 0
    await _move(connection, actor, "expired", grant_id, EXACT.minus(rest), key, None)
    return 1


def _rest(grant: Mapping[str, Any], balance: Balance) -> Decimal:
    """Return what may still be taken of a grant: neither what usage has burnt, nor what invoices have.

    Invoices burn rounded amounts, and go on to have burnt what a correction has given back since until a credit note says so.
    """
    return EXACT.subtract(balance.grant.amount, max(balance.burnt, grant["booked_burnt"]))


async def _limits_due(connection: Connection, now: int) -> list[tuple[str, str]]:
    """Return the prepaid tenants one of whose grants has begun or ended since their limit was last set, or soon does."""
    cursor = await connection.execute(
        "select distinct b.tenant_id, b.currency from quotas.turns as t join quotas.budgets as b using (budget_id)"
        " where t.at <= %s and b.ended_at is null order by 1, 2",
        [from_micros(now + _AHEAD)],
    )
    return [(row[0], row[1]) for row in await cursor.fetchall()]


# --- Tenants that are held to their grants -----------------------------------------------------------------------------


async def prepay(
    connection: Connection, actor: str, tenant_id: str, *, now: int, reason: str | None = None
) -> budgets.BudgetSet:
    """Hold a tenant to what is left of its grants: a hard budget over its whole life, whose limit the grants move."""
    tenant = (await load_tenants(connection)).get(tenant_id)
    if tenant is None:
        raise Unknown("tenant", tenant_id)
    currency = tenant.at(now).charge_currency
    async with change(connection, "budgets"):
        if await _prepaid_budget(connection, tenant_id, currency) is not None:
            raise GrantRefused(f"tenant {tenant_id} is prepaid already")
        cursor = await connection.execute(
            "select budget_id from quotas.budgets where ended_at is null and tenant_id = %s and unit = 'charge'"
            " and currency = %s and window_kind = 'lifetime' and group_by = '{}' and tags is null"
            " and coalesce(provider_account, feature, model, route, lane, api_key_id, subject_id::text) is null",
            [tenant_id, currency],
        )
        taken = await cursor.fetchone()
        if taken is not None:
            raise GrantRefused(f"budget {taken[0]} limits all that tenant {tenant_id} may ever spend: end it first")
        terms = Terms(tenant_id=tenant_id, unit="charge", currency=currency, window="lifetime", limit=_ZERO)
        row = {
            **(await budgets.row_of(connection, terms)),
            **DEFAULTS,
            "group_limits": {},
            "description": "Prepaid: what is left of the tenant's grants.",
        }
        row["budget_id"] = f"{GRANTED}{secrets.token_hex(6)}"
        row["first_window"] = datetime(1, 1, 1).date()  # noqa: DTZ001  the one window of a lifetime
        # Made without a limit, so that what was spent before is not above one; the grants set it in the same commit.
        await budgets.create_budget(connection, actor, {**row, "limit_amount": None}, reason)
        await hold_to_grants(connection, actor, tenant_id, currency, now=now, reason=reason)
    return budgets.BudgetSet(row["budget_id"], "created")


async def postpay(connection: Connection, actor: str, tenant_id: str, *, reason: str | None = None) -> str:
    """Hold a tenant to its grants no longer; they go on to be burnt by its usage."""
    async with change(connection, "budgets"):
        cursor = await connection.execute(
            "select budget_id from quotas.budgets where budget_id like %s and tenant_id = %s and ended_at is null",
            [f"{GRANTED}%", tenant_id],
        )
        found = await cursor.fetchall()
        if not found:
            raise GrantRefused(f"tenant {tenant_id} is not prepaid")
        for (budget_id,) in found:
            await budgets.end_in_force(connection, actor, budget_id, reason)
    return str(found[0][0])


async def hold_to_grants(
    connection: Connection, actor: str, tenant_id: str, currency: str, *, now: int, reason: str | None
) -> int:
    """Set the limit of a prepaid tenant to what is posted and what is left of its grants; return how many limits moved.

    The caller holds the calendar, so that no usage is posted in between. From then on usage moves what is posted, and what
    remains is what is left of the grants less what was used since: never more.
    """
    current = await _prepaid_budget(connection, tenant_id, currency)
    if current is None:
        return 0
    projection, _ = await _project(connection, tenant_id, currency, now)
    cursor = await connection.execute(
        "select coalesce(sum(posted), 0) from quotas.windows where budget_id = %s", [current.budget_id]
    )
    row = await cursor.fetchone()
    assert row is not None
    # A tenant that was given back more than it ever spent has a limit of zero, and that much remains.
    limit = max(EXACT.add(row[0], projection.left), _ZERO)
    await _write_turns(connection, current.budget_id, projection, now)
    if current.limit_amount is not None and limit == current.limit_amount:
        return 0
    # What was exhausted before a top-up may be exhausted again, and is to be said again.
    await connection.execute(
        "delete from quotas.threshold_notes as n using quotas.windows as w"
        " where n.budget_id = %(budget)s and w.budget_id = n.budget_id and w.posted + w.held < n.threshold * %(limit)s",
        {"budget": current.budget_id, "limit": limit},
    )
    unchanged = dict.fromkeys(DEFAULTS)
    terms = {
        **unchanged, "limit_amount": limit, "missing_estimate_amount": None, "away_amount": None, "description": None,
        "group_limits": None,
    }  # fmt: skip
    await budgets.change_terms(connection, actor, current, terms, reason)
    return 1


async def _write_turns(connection: Connection, budget_id: str, projection: Projection, now: int) -> None:
    """Say when what is left changes by itself, and what lapses then.

    A reservation takes it off the limit from that instant on, whoever has looked by then. What usage burns of a grant in
    between counts as burnt of what stays: that admits less, until the limit is set again, and never more.
    """
    turns: dict[int, Decimal] = {}
    for each in projection.balances:
        grant = each.grant
        if grant.effective_at > now:
            turns.setdefault(grant.effective_at, _ZERO)
        if grant.expires_at is not None and grant.expires_at > now:
            lapses = _ZERO if grant.has_conditions else each.left
            turns[grant.expires_at] = EXACT.add(turns.get(grant.expires_at, _ZERO), lapses)
    await connection.execute("delete from quotas.turns where budget_id = %s", [budget_id])
    await connection.execute(
        "insert into quotas.turns (budget_id, at, lapses) select %s, * from unnest(%s::timestamptz[], %s::numeric[])",
        [budget_id, [from_micros(at) for at in turns], list(turns.values())],
    )


async def _prepaid_budget(connection: Connection, tenant_id: str, currency: str) -> budgets.BudgetRecord | None:
    cursor = await connection.execute(
        "select budget_id from quotas.budgets"
        " where budget_id like %s and tenant_id = %s and currency = %s and ended_at is null",
        [f"{GRANTED}%", tenant_id, currency],
    )
    row = await cursor.fetchone()
    return None if row is None else await budgets.find_budget(connection, row[0])


# --- Reading -----------------------------------------------------------------------------------------------------------


async def tenant_grants(connection: Connection, tenant_id: str, *, now: int) -> list[Balances]:
    """Return the live balances of a tenant by currency, in one snapshot; none where it has no grant.

    Raises Unknown where there is no such tenant.
    """
    async with connection.transaction():
        await connection.execute("set transaction isolation level repeatable read, read only")
        cursor = await connection.execute("select from ledger.tenants where tenant_id = %s", [tenant_id])
        if await cursor.fetchone() is None:
            raise Unknown("tenant", tenant_id)
        cursor = await connection.execute(
            "select distinct currency from quotas.grants where tenant_id = %s order by 1", [tenant_id]
        )
        found = []
        for (currency,) in await cursor.fetchall():
            projection, unpriced = await _project(connection, tenant_id, currency, now)
            rows = {row["grant_id"]: row for row in await _rows(connection, tenant_id, currency)}
            listed = [_record(rows[each.grant.grant_id], each) for each in projection.balances]
            is_prepaid = await _prepaid_budget(connection, tenant_id, currency) is not None
            found.append(
                Balances(tenant_id, currency, projection.left, projection.overflow, unpriced, is_prepaid, listed)
            )
        return found


async def find_grant(connection: Connection, grant_id: str, *, now: int) -> GrantRecord:
    """Return a grant with what is left of it; raise Unknown where there is none."""
    grant = await _grant(connection, grant_id)
    return _record(grant, await _balance(connection, grant, now))


@dataclass(frozen=True, slots=True)
class Movement:
    """One movement of a grant."""

    movement_id: int
    kind: str
    amount: Decimal
    key: str
    actor: str
    reason: str | None
    at: datetime


async def movements(connection: Connection, grant_id: str) -> list[Movement]:
    """Return what has happened to a grant, in order."""
    cursor = await connection.execute(
        "select movement_id, kind, amount, key, actor, reason, at from quotas.grant_movements where grant_id = %s"
        " order by movement_id",
        [grant_id],
    )
    return [Movement(*row) for row in await cursor.fetchall()]


def _record(row: Mapping[str, Any], balance: Balance) -> GrantRecord:
    return GrantRecord(
        **{name: row[name] for name in _GRANT},
        granted=row["granted"],
        revoked=row["revoked"],
        booked_expired=row["booked_expired"],
        booked_burnt=row["booked_burnt"],
        burnt=balance.burnt,
        left=balance.left,
    )


_GRANT: Final = (
    "grant_id", "tenant_id", "currency", "feature", "model", "priority", "effective_at", "expires_at", "description",
    "created_at",
)  # fmt: skip
_SUMS: Final = ("granted", "revoked", "booked_expired", "booked_burnt")


async def _rows(
    connection: Connection, tenant_id: str, currency: str, grant_id: str | None = None
) -> list[dict[str, Any]]:
    """Read the grants of a tenant in a currency with the sums of their movements."""
    cursor = await connection.execute(
        f"""
        select
            {", ".join(f"g.{name}" for name in _GRANT)},
            coalesce(sum(m.amount) filter (where m.kind in ('granted', 'adjusted')), 0) as granted,
            coalesce(-sum(m.amount) filter (where m.kind = 'revoked'), 0) as revoked,
            coalesce(-sum(m.amount) filter (where m.kind = 'expired'), 0) as booked_expired,
            coalesce(-sum(m.amount) filter (where m.kind = 'burnt'), 0) as booked_burnt
        from quotas.grants as g
        join quotas.grant_movements as m using (grant_id)
        where
            (%(grant_id)s::text is null and g.tenant_id = %(tenant_id)s and g.currency = %(currency)s)
            or g.grant_id = %(grant_id)s
        group by g.grant_id
        order by g.grant_id
        """,
        {"tenant_id": tenant_id, "currency": currency, "grant_id": grant_id},
    )
    return [dict(zip((*_GRANT, *_SUMS), row, strict=True)) for row in await cursor.fetchall()]


async def _grant(connection: Connection, grant_id: str) -> dict[str, Any]:
    found = await _rows(connection, "", "", grant_id)
    if not found:
        raise Unknown("grant", grant_id)
    return found[0]


async def _balance(connection: Connection, grant: Mapping[str, Any], now: int) -> Balance:
    projection, _ = await _project(connection, grant["tenant_id"], grant["currency"], now)
    return next(each for each in projection.balances if each.grant.grant_id == grant["grant_id"])


def _from_row(row: Mapping[str, Any]) -> Grant:
    # What was revoked or has expired on the books is taken off the amount: usage that comes late then finds it gone.
    amount = EXACT.subtract(EXACT.subtract(row["granted"], row["revoked"]), row["booked_expired"])
    return Grant(
        grant_id=row["grant_id"],
        amount=amount,
        effective_at=micros(row["effective_at"]),
        expires_at=None if row["expires_at"] is None else micros(row["expires_at"]),
        priority=row["priority"],
        feature=row["feature"],
        model=row["model"],
    )


_USES: Final = """
with sealed as materialized (
    select coalesce(array_agg(m), '{}') as months from quotas.sealed_months(%(tenant_id)s, %(turns)s::timestamptz[]) as m
),

used as (
    select
        date_bin('1 hour', e.occurred_at, timestamptz '2020-01-01 00:00:00+00') as hour,
        width_bucket(e.occurred_at, %(turns)s::timestamptz[]) as turn,
        case when %(by_feature)s then e.feature end as feature,
        case when %(by_model)s then e.model end as model,
        e.charge_amount,
        case when e.charge_amount is null then e.request_count else 0 end as unpriced_count
    from ledger.entries as e
    where
        e.tenant_id = %(tenant_id)s
        and e.charge_currency = %(currency)s
        and e.kind <> 'evidence'
        and e.posting_period <> all ((select s.months from sealed as s)::date[])
        and e.occurred_at >= %(since)s
        -- No usage is accepted from later than five minutes ahead.
        and e.occurred_at < %(now)s::timestamptz + interval '1 day'
    union all
    -- What is sealed need not be read again, and may have left the ledger: there the day is known, and not the hour.
    select
        r.noon,
        width_bucket(r.noon, %(turns)s::timestamptz[]),
        case when %(by_feature)s then r.feature end,
        case when %(by_model)s then r.model end,
        r.charge_amount,
        r.unpriced_count
    from sealed as s
    cross join lateral quotas.sealed_charges(%(tenant_id)s, %(currency)s, s.months) as r
    where r.noon >= %(since)s
)

select
    -- A turn is where some grant begins or ends: an hour with one in it is two, each wholly on its side.
    greatest(hour, (%(turns)s::timestamptz[])[turn]) as at,
    coalesce(sum(charge_amount), 0) as amount,
    feature,
    model,
    sum(unpriced_count)::bigint as unpriced_count
from used
group by hour, turn, feature, model
"""


async def _project(connection: Connection, tenant_id: str, currency: str, now: int) -> tuple[Projection, int]:
    """Hold a tenant's usage, by the hour it occurred in, against its grants; also count its requests without a charge."""
    grants = [_from_row(row) for row in await _rows(connection, tenant_id, currency)]
    if not grants:
        return project([], [], now), 0
    turns = sorted(
        {grant.effective_at for grant in grants}
        | {grant.expires_at for grant in grants if grant.expires_at is not None}
    )
    cursor = await connection.execute(
        _USES,
        {
            "turns": [from_micros(turn) for turn in turns],
            "by_feature": any(grant.feature is not None for grant in grants),
            "by_model": any(grant.model is not None for grant in grants),
            "tenant_id": tenant_id,
            "currency": currency,
            "since": from_micros(min(grant.effective_at for grant in grants)),
            "now": from_micros(now),
        },
    )
    rows = await cursor.fetchall()
    uses = [Use(at=micros(at), amount=amount, feature=feature, model=model) for at, amount, feature, model, _ in rows]
    return project(grants, uses, now), sum(row[4] for row in rows)


# --- Rules -------------------------------------------------------------------------------------------------------------


def _check_key(key: str) -> None:
    if not 0 < len(key) <= NAME_LENGTH_MAX or not key.isprintable():
        raise GrantRefused(f"an idempotency key is a printable text of 1 to {NAME_LENGTH_MAX} characters")
    if key.startswith("expired:"):
        raise GrantRefused(f"key {key!r} is one of ours")


async def _check_grant(connection: Connection, wanted: NewGrant, now: int) -> None:
    tenant = (await load_tenants(connection)).get(wanted.tenant_id)
    if tenant is None:
        raise Unknown("tenant", wanted.tenant_id)
    if not wanted.amount.is_finite() or wanted.amount <= 0:
        raise GrantRefused("the amount of a grant must be a finite number above zero")
    if wanted.currency not in CURRENCIES:
        raise GrantRefused(f"currency {wanted.currency!r} is no code of ISO 4217, such as USD")
    charged_in = [version.charge_currency for version in tenant.versions]
    if wanted.currency not in charged_in:
        raise GrantRefused(
            f"tenant {wanted.tenant_id} is charged in {charged_in[-1]}: a grant in {wanted.currency} would never burn"
        )
    for name in ("feature", "model", "description"):
        value = getattr(wanted, name)
        if value is not None and (not 0 < len(value) <= NAME_LENGTH_MAX or not value.isprintable()):
            raise GrantRefused(f"{name} {value!r} is no printable text of 1 to {NAME_LENGTH_MAX} characters")
    if wanted.model is not None:
        cursor = await connection.execute("select from ledger.models where model = %s limit 1", [wanted.model])
        if await cursor.fetchone() is None:
            raise Unknown("model", wanted.model)
    if not PRIORITIES[0] <= wanted.priority <= PRIORITIES[1]:
        raise GrantRefused(f"a priority is {PRIORITIES[0]} to {PRIORITIES[1]}, not {wanted.priority}")
    effective_at = now if wanted.effective_at is None else wanted.effective_at
    if effective_at < tenant.starts_at:
        raise GrantRefused(f"tenant {wanted.tenant_id} begins at {from_micros(tenant.starts_at).isoformat()}, later")
    if wanted.expires_at is not None and wanted.expires_at <= effective_at:
        raise GrantRefused("a grant expires after it takes effect")
    if wanted.expires_at is not None and wanted.expires_at <= now:
        raise GrantRefused("a grant that has expired already would be none")


async def _done_before(connection: Connection, key: str) -> tuple[str, str, Decimal] | None:
    """Return grant, kind and amount of the act that was done under a key."""
    cursor = await connection.execute("select grant_id, kind, amount from quotas.grant_movements where key = %s", [key])
    row = await cursor.fetchone()
    return None if row is None else (row[0], row[1], row[2])


async def _check_same(connection: Connection, grant_id: str, kind: str, wanted: NewGrant, key: str) -> None:
    """Refuse a key that was used for something else; what was left to the clock is not held against it."""
    grant = await _grant(connection, grant_id)
    cursor = await connection.execute(
        "select amount from quotas.grant_movements where grant_id = %s and kind = 'granted'", [grant_id]
    )
    row = await cursor.fetchone()
    expires_at = None if grant["expires_at"] is None else micros(grant["expires_at"])
    said = {
        "tenant_id": wanted.tenant_id, "currency": wanted.currency, "feature": wanted.feature, "model": wanted.model,
        "priority": wanted.priority, "description": wanted.description,
    }  # fmt: skip
    if (
        kind != "granted"
        or row is None
        or row[0] != wanted.amount
        or any(grant[name] != value for name, value in said.items())
        or expires_at != wanted.expires_at
        or (wanted.effective_at is not None and micros(grant["effective_at"]) != wanted.effective_at)
    ):
        raise GrantRefused(f"key {key!r} was used for another act")


async def _move(
    connection: Connection, actor: str, kind: str, grant_id: str, amount: Decimal, key: str, reason: str | None
) -> None:
    await connection.execute(
        "insert into quotas.grant_movements (grant_id, kind, amount, key, actor, reason) values (%s, %s, %s, %s, %s, %s)",
        [grant_id, kind, amount, key, actor, reason],
    )
    detail = {"grant_id": grant_id, "kind": kind, "amount": amount_text(amount), "key": key}
    await record_act(connection, actor, f"grants.{kind}", detail, reason)
