"""What is known about tenants' months when their documents are drafted or issued: read for many tenants at once."""

import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final
from zoneinfo import ZoneInfo

from psycopg.rows import class_row

from billing.agreements import Billed, Bound, Customer, Issuer, Item, TaxRate
from billing.crediting import Creditable, creditable
from billing.drafting import Draft, Month, draft_month
from billing.errors import FoldDiffers
from billing.folding import fold, read_rates
from billing.store import read_documents
from billing.usage_lines import Group, Rate, UsageLine, lines_of
from ledger.books import load_tenants
from ledger.closing import open_conflicts
from ledger.database import Connection
from ledger.errors import Unknown
from ledger.exchange import ExchangeRate, ExchangeRates
from ledger.money import EXACT, amount_text
from ledger.parties import Tenant
from ledger.periods import month_after
from ledger.price_store import read_exchange_rates
from ledger.times import micros
from quotas.burning import Books, month_uses, read_books

_ZERO: Final = Decimal(0)
_AT_ONCE: Final = 2
"""Tenants that are drafted between two pauses: less than a millisecond."""


@dataclass(frozen=True, slots=True)
class Live:
    """An invoice that counts, of a tenant's month."""

    document_id: str
    number: str
    currency: str
    total: Decimal
    amount_due: Decimal
    digest: str


@dataclass(frozen=True, slots=True)
class Drafted:
    """A tenant's month: its drafts, and what was issued of it."""

    known: Month
    drafts: Sequence[Draft]
    live: Mapping[str, Live]
    """By currency."""
    revisions: Mapping[str, int]
    """By currency: of the last invoice, voided or not."""
    close_number: int
    is_closed: bool
    sealed: Mapping[str, Decimal]
    """What the seal says was charged, by currency, without entries of credit notes."""


@dataclass(slots=True)
class _Period:
    state: str
    close_number: int
    ends_at: datetime
    credited_count: int = 0
    """Its entries that stand on credit notes."""
    is_sealed: bool = False
    sealed: dict[str, Decimal] = field(default_factory=dict)
    unpriced: int = 0
    missing: int = 0


async def tenants_of(connection: Connection, month: date, entity_id: str | None = None) -> list[str]:
    """Return the tenants that have a month, of one entity or of all; by id."""
    cursor = await connection.execute(
        "select tenant_id, ends_at from ledger.periods where posting_period = %s order by tenant_id", [month]
    )
    rows = await cursor.fetchall()
    if entity_id is None:
        return [tenant_id for tenant_id, _ in rows]
    known = await connection.execute("select from ledger.entities where entity_id = %s", [entity_id])
    if await known.fetchone() is None:
        raise Unknown("entity", entity_id)
    tenants = await load_tenants(connection)
    # Who invoices a month is who did at its last instant: an entity changes only where a month begins.
    return [tenant_id for tenant_id, ends_at in rows if _version(tenants[tenant_id], ends_at).entity_id == entity_id]


def _version(tenant: Tenant, ends_at: datetime) -> Any:
    return tenant.at(micros(ends_at) - 1)


async def lock_tenants(connection: Connection, tenant_ids: Sequence[str]) -> None:
    """Let nobody else issue, void or credit for these tenants until the transaction ends.

    It comes before any lock of their periods: grants and earlier invoices are shared by all months of a tenant.
    """
    await connection.execute(
        "select pg_advisory_xact_lock(hashtextextended('documents ' || t.tenant_id, 0))"
        " from (select distinct n.tenant_id from unnest(%s::text[]) as n (tenant_id) order by 1) as t",
        [list(tenant_ids)],
    )


async def lock_periods(connection: Connection, tenant_id: str, months: Sequence[date]) -> None:
    """Keep months of a tenant as they are until the transaction ends: nobody opens, closes, seals or issues them."""
    await connection.execute(
        "select from ledger.periods where tenant_id = %s and posting_period = any(%s) order by posting_period"
        " for no key update",
        [tenant_id, list(months)],
    )


@dataclass(frozen=True, slots=True)
class FoldedAhead:
    """Folds of months as they were before anybody locked them."""

    groups: Mapping[str, Sequence[Group]]
    states: Mapping[str, tuple[int, int]]
    """Of months that were closed: the close's number, and how many of their rows stood on credit notes."""
    rates: Mapping[int, Mapping[str, Rate]]
    """What prices the groups, by rate set and meter."""


async def fold_ahead(connection: Connection, month: date, tenant_ids: Sequence[str] | None) -> FoldedAhead:
    """Fold a month of some tenants or of all in one pass, before they are issued group by group.

    No row enters a closed month, and a month that was opened has another close number when it is closed again. So a fold
    holds for whoever finds the month in the state in which it was read.
    """
    async with connection.transaction():
        await connection.execute("set transaction isolation level repeatable read, read only")
        states = await _closed_states(connection, month, tenant_ids)
        groups = await fold(connection, month, tenant_ids)
        return FoldedAhead(groups, states, await _rates_of(connection, groups))


async def _rates_of(connection: Connection, folded: Mapping[str, Sequence[Group]]) -> dict[int, dict[str, Rate]]:
    return await read_rates(connection, (group for groups in folded.values() for group in groups))


async def _closed_states(
    connection: Connection, month: date, tenant_ids: Sequence[str] | None
) -> dict[str, tuple[int, int]]:
    cursor = await connection.execute(
        """
        with credited as (
            select tenant_id, count(*) as count
            from billing.credited_entries
            where posting_period = %(month)s
            group by 1
        )

        select p.tenant_id, p.close_number, coalesce(c.count, 0)
        from ledger.periods as p
        left join credited as c on c.tenant_id = p.tenant_id
        where
            p.posting_period = %(month)s
            and p.state = 'closed'
            and (%(ids)s::text[] is null or p.tenant_id = any(%(ids)s))
        """,
        {"month": month, "ids": None if tenant_ids is None else list(tenant_ids)},
    )
    return {tenant_id: (close_number, count) for tenant_id, close_number, count in await cursor.fetchall()}


async def _fold_locked(
    connection: Connection, month: date, periods: Mapping[str, _Period], ahead: FoldedAhead | None
) -> tuple[Mapping[str, Sequence[Group]], Mapping[int, Mapping[str, Rate]]]:
    """Return folds and what prices them: those read ahead where their months are as they were then, the others read now."""
    found: dict[str, Sequence[Group]] = {}
    if ahead is not None:
        for tenant_id, period in periods.items():
            if period.state == "closed" and ahead.states.get(tenant_id) == (period.close_number, period.credited_count):
                found[tenant_id] = ahead.groups.get(tenant_id, ())
        if len(found) == len(periods):
            return found, ahead.rates
    folded = await fold(connection, month, [each for each in periods if each not in found])
    rates = await _rates_of(connection, folded)
    return {**found, **folded}, {**({} if ahead is None else ahead.rates), **rates}


async def draft_months(
    connection: Connection,
    month: date,
    tenant_ids: Sequence[str],
    *,
    now: datetime,
    for_issue: bool = False,
    ahead: FoldedAhead | None = None,
    agreed: "Agreed | None" = None,
    pause: Callable[[], Awaitable[None]] | None = None,
) -> list[Drafted]:
    """Draft a month of some tenants, in the order of their ids; `for_issue` keeps their periods as they are meanwhile.

    Where one of them has no such month it is left out. `for_issue` is called inside the transaction that issues: it locks the
    period of each tenant, so that nobody opens, seals or issues it, in the order of their ids. What was folded `ahead` is
    taken where its month is still as it was. What is `agreed` with these tenants is read now unless it is given. Addresses are
    those of each tenant's local day at `now`. `pause` is awaited every few tenants, so that what another connection waits for
    goes on meanwhile.
    """
    periods = await _periods(connection, month, tenant_ids, for_issue)
    ids = sorted(periods)
    agreed = agreed or await Agreed.read(connection, ids)
    issued = await _issued(connection, month, ids)
    folded, rates = await _fold_locked(connection, month, periods, ahead)
    refused = await _refusals(connection, month, periods)
    books = await read_books(connection, ids)
    found = []
    for place, tenant_id in enumerate(ids):
        if pause is not None and place % _AT_ONCE == 0:
            await pause()
        period = periods[tenant_id]
        version = _version(agreed.tenants[tenant_id], period.ends_at)
        refusals = refused[tenant_id]
        charges: dict[str, Decimal] = {}
        for group in folded.get(tenant_id, ()):
            charges[group.currency] = EXACT.add(charges.get(group.currency, _ZERO), group.charge)
        lines: list[UsageLine] = []
        try:
            lines = lines_of(folded.get(tenant_id, ()), rates)
        except FoldDiffers as error:
            refusals.append(str(error))
        if period.is_sealed:
            refusals += _unsealed(charges, period.sealed)
        owned = books.get(tenant_id, Books())
        refusals += owned.refusals
        known = Month(
            tenant_id=tenant_id,
            month=month,
            time_zone=version.time_zone,
            entity_id=version.entity_id,
            entity_name=agreed.entities.get(version.entity_id, version.entity_id),
            today=now.astimezone(ZoneInfo(version.time_zone)).date(),
            issuers=agreed.issuers.get(version.entity_id, ()),
            customers=agreed.customers.get(tenant_id, ()),
            tax_rates=agreed.tax_rates.get(version.entity_id, ()),
            items=agreed.items.get(tenant_id, ()),
            lines=lines,
            charges=charges,
            exchange_rates=agreed.exchange_rates,
            bounds=agreed.bounds,
            totals_before=issued.totals_before.get(tenant_id, {}),
            refusals=refusals,
            grants=owned.grants,
            grant_names=owned.names,
            uses=await _uses(connection, tenant_id, month, owned, charges),
        )
        late = {(line.currency, line.service_month) for line in lines if line.service_month < month}
        if late and known.terms is not None and known.terms.invoice_currency is not None:
            billed = await _billed_rates(connection, tenant_id, month, known.terms.invoice_currency)
            known = replace(known, billed_rates=billed)
        if any(item.amount is not None and item.kind != "fee" for item in known.items):
            known = replace(known, billed=await read_billed(connection, tenant_id, but=month))
        drafts = draft_month(known)
        owing = [draft.document.currency for draft in drafts if draft.owes_back]
        if owing:
            places = {
                currency: await creditable_invoices(connection, tenant_id, currency, month, known.lines)
                for currency in owing
            }
            known = replace(known, creditable=places)
            drafts = draft_month(known)
        found.append(
            Drafted(
                known, drafts, issued.live.get(tenant_id, {}), issued.revisions.get(tenant_id, {}),
                period.close_number, period.state == "closed", period.sealed,
            )
        )  # fmt: skip
    return found


def _unsealed(charges: Mapping[str, Decimal], sealed: Mapping[str, Decimal]) -> Iterable[str]:
    for currency in sorted({*charges, *sealed}):
        entries, seal = charges.get(currency, _ZERO), sealed.get(currency, _ZERO)
        if entries != seal:
            yield f"its entries come to {amount_text(entries)} {currency}, its seal says {amount_text(seal)}"


# --- Periods, seals, what is unknown ----------------------------------------------------------------------------------


async def _periods(
    connection: Connection, month: date, tenant_ids: Sequence[str], for_issue: bool
) -> dict[str, _Period]:
    # The lock that sealing and opening take too, in one order; what they and other issuers did is seen by the next statement.
    cursor = await connection.execute(
        "select tenant_id from ledger.periods where posting_period = %s and tenant_id = any(%s) order by tenant_id"
        + (" for no key update" if for_issue else ""),
        [month, list(tenant_ids)],
    )
    await cursor.fetchall()
    cursor = await connection.execute(
        """
        with by_currency as (
            select c.tenant_id, e.charge_currency::text as currency, count(*) as count, sum(e.charge_amount) as amount
            from billing.credited_entries as c
            join ledger.entries as e on e.posting_period = c.posting_period and e.entry_id = c.entry_id
            where c.posting_period = %(month)s and c.tenant_id = any(%(ids)s)
            group by 1, 2
        ),

        credited as (
            select
                tenant_id,
                sum(count)::bigint as count,
                jsonb_object_agg(currency, amount::text) filter (where amount is not null) as sums
            from by_currency
            group by 1
        )

        select
            p.tenant_id, p.state, p.close_number, p.ends_at, coalesce(c.count, 0), coalesce(c.sums, '{}'),
            s.charge_sums, s.charge_unpriced_count, s.usage_missing_count
        from ledger.periods as p
        left join ledger.seals as s
            on
                s.tenant_id = p.tenant_id
                and s.posting_period = p.posting_period
                and s.close_number = p.close_number
                and p.state = 'closed'
        left join credited as c on c.tenant_id = p.tenant_id
        where p.posting_period = %(month)s and p.tenant_id = any(%(ids)s)
        order by p.tenant_id
        """,
        {"month": month, "ids": list(tenant_ids)},
    )
    periods = {}
    for tenant_id, state, close_number, ends_at, count, credited, sums, unpriced, missing in await cursor.fetchall():
        period = periods[tenant_id] = _Period(state, close_number, ends_at, count)
        if sums is not None:
            period.is_sealed = True
            period.sealed = {currency: Decimal(amount) for currency, amount in sums.items()}
            # What a credit note for usage was made of stands on no invoice.
            for currency, amount in credited.items():
                period.sealed[currency] = EXACT.subtract(period.sealed.get(currency, _ZERO), Decimal(amount))
            period.unpriced, period.missing = unpriced, missing
    return periods


async def _refusals(connection: Connection, month: date, periods: Mapping[str, _Period]) -> dict[str, list[str]]:
    """Say what keeps each tenant's month from being issued, whatever the currency."""
    found: dict[str, list[str]] = {tenant_id: [] for tenant_id in periods}
    conflicts = await open_conflicts(connection, month)
    proposals = await _proposals(connection, month, list(periods))
    failed = await _failed_proofs(connection)
    for tenant_id, period in periods.items():
        reasons = found[tenant_id]
        if period.state != "closed":
            reasons.append(f"period {month:%Y-%m} is open: close it first")
        elif not period.is_sealed:
            reasons.append(f"period {month:%Y-%m} has no seal: `tallystick period seal` makes it")
        if period.unpriced or period.missing or period.state != "closed":
            reasons += await _unknown(connection, tenant_id, month)
        if conflicts.get(tenant_id):
            reasons.append(f"{_counted(conflicts[tenant_id], 'conflict')} of its usage open: accept or dismiss")
        if proposals.get(tenant_id):
            reasons.append(f"{_counted(proposals[tenant_id], 'proposal')} of its usage open: accept or refuse")
        reasons += [text for names, text in failed if names is None or _names(names, tenant_id)]
    return found


def _counted(count: int, what: str) -> str:
    return f"1 {what} is" if count == 1 else f"{count:,} {what}s are"


async def _unknown(connection: Connection, tenant_id: str, month: date) -> list[str]:
    """Say what of a month's requests nobody knows, as all that was recorded since has it: a price may have come later."""
    cursor = await connection.execute(
        """
        with unsure as (
            select distinct e.request_key, case when e.request_key is null then e.entry_id end as entry_id
            from ledger.entries as e
            where
                e.posting_period = %(month)s
                and e.tenant_id = %(tenant_id)s
                and e.kind <> 'evidence'
                and (e.charge_amount is null or 'usage_missing' = any (e.usage_flags))
        ),

        known as (
            select
                coalesce(sum(e.request_count) filter (where e.charge_amount is null), 0) as unpriced,
                coalesce(sum(e.request_count) filter (where 'usage_missing' = any (e.usage_flags)), 0) as missing
            from unsure as u
            join ledger.entries as e
                on e.tenant_id = %(tenant_id)s
                and e.posting_period >= %(month)s
                and e.kind <> 'evidence'
                and (e.request_key = u.request_key or e.entry_id = u.entry_id)
            group by u.request_key, u.entry_id
        )

        select count(*) filter (where unpriced > 0), count(*) filter (where missing > 0)
        from known
        """,
        {"month": month, "tenant_id": tenant_id},
    )
    row = await cursor.fetchone()
    unpriced, missing = row or (0, 0)
    reasons = []
    if unpriced:
        reasons.append(f"{_counted(unpriced, 'request')} without a charge")
    if missing:
        reasons.append(f"{_counted(missing, 'request')} without usage")
    return reasons


async def _proposals(connection: Connection, month: date, tenant_ids: Sequence[str]) -> dict[str, int]:
    cursor = await connection.execute(
        """
        select e.tenant_id, count(*)
        from ledger.entries as e
        where
            e.posting_period = %s
            and e.tenant_id = any(%s)
            -- In these words, so that the index of the proposals serves it.
            and e.kind = 'evidence' and e.usage_flags @> '{proposed}'
            and e.entry_no = 0
            and not exists (select from ledger.corrections as c where c.evidence_entry_id = e.entry_id)
        group by 1
        """,
        [month, list(tenant_ids)],
    )
    return dict(await cursor.fetchall())


_TENANT: Final = re.compile(r"\btenant ")


async def _failed_proofs(connection: Connection) -> list[tuple[str | None, str]]:
    """Return what the newest proof of each kind found: (its words where they name a tenant, the reason it gives)."""
    cursor = await connection.execute(
        "select distinct on (kind) kind, ended_at, difference_count, differences from ledger.proofs"
        " order by kind, proof_id desc"
    )
    found: list[tuple[str | None, str]] = []
    for kind, ended_at, count, differences in await cursor.fetchall():
        what = f"the {kind} proof of {ended_at:%Y-%m-%d %H:%M}Z"
        if count > len(differences):
            found.append((None, f"{what} found {count:,} differences, more than it names"))
        for each in differences:
            text = each["text"]
            found.append((text if _TENANT.search(text) else None, f"{what} failed: {text}"))
    return found


def _names(text: str, tenant_id: str) -> bool:
    return re.search(rf"\btenant {re.escape(tenant_id)}(?![\w-])", text) is not None


# --- What was issued --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _IssuedBefore:
    """By tenant and currency: a month's live invoices and their last revisions, and what the month before came to."""

    live: dict[str, dict[str, Live]] = field(default_factory=dict)
    revisions: dict[str, dict[str, int]] = field(default_factory=dict)
    totals_before: dict[str, dict[str, Decimal]] = field(default_factory=dict)


async def _issued(connection: Connection, month: date, tenant_ids: Sequence[str]) -> _IssuedBefore:
    cursor = await connection.execute(
        """
        select
            d.posting_period, d.tenant_id, d.currency::text, d.revision, d.document_id, d.number, d.total,
            d.amount_due, d.digest,
            not exists (select from billing.voids as v where v.document_id = d.document_id) as is_live
        from billing.documents as d
        where d.posting_period = any(%s) and d.tenant_id = any(%s) and d.kind = 'invoice'
        order by d.revision
        """,
        [[month_after(month, -1), month], list(tenant_ids)],
    )
    found = _IssuedBefore()
    for (
        period,
        tenant_id,
        currency,
        revision,
        document_id,
        number,
        total,
        due,
        digest,
        is_live,
    ) in await cursor.fetchall():
        if period != month:
            if is_live:
                found.totals_before.setdefault(tenant_id, {})[currency] = total
            continue
        found.revisions.setdefault(tenant_id, {})[currency] = revision
        if is_live:
            found.live.setdefault(tenant_id, {})[currency] = Live(document_id, number, currency, total, due, digest)
    return found


async def _billed_rates(
    connection: Connection, tenant_id: str, before: date, currency: str
) -> dict[tuple[str, date], ExchangeRate]:
    """Return what the first invoice that counts and bills a month's usage of another currency converted it by.

    Of invoices before a month, by charged currency and month of service.
    """
    cursor = await connection.execute(
        """
        select distinct on (l.charged_currency, l.service_start)
            l.charged_currency::text, l.service_start, l.exchange_rate, l.exchange_rate_at
        from billing.documents as d
        join billing.document_lines as l on l.document_id = d.document_id
        where
            d.tenant_id = %s
            and d.currency = %s
            and d.kind = 'invoice'
            and d.posting_period < %s
            and l.exchange_rate is not null
            and not exists (select from billing.voids as v where v.document_id = d.document_id)
        order by l.charged_currency, l.service_start, d.posting_period
        """,
        [tenant_id, currency, before],
    )
    return {
        (charged, service_month): ExchangeRate(
            from_currency=charged, to_currency=currency, rate=rate, effective_at=micros(since), source_address="",
            checked_on=since.date(),
        )
        for charged, service_month, rate, since in await cursor.fetchall()
    }  # fmt: skip


async def read_billed(connection: Connection, tenant_id: str, *, but: date | None = None) -> dict[str, Billed]:
    """Return what a tenant's documents that count bill of usage and of items in an amount, by currency, but those of one month."""
    cursor = await connection.execute(
        """
        select
            d.currency::text,
            array_agg(distinct d.posting_period) filter (where d.kind = 'invoice'),
            l.service_start,
            l.kind,
            l.item_id,
            l.feature,
            l.model,
            sum(case d.kind when 'invoice' then l.exact_amount else -l.exact_amount end)
        from billing.documents as d
        join billing.document_lines as l on l.document_id = d.document_id
        where
            d.tenant_id = %(tenant_id)s
            and d.posting_period is distinct from %(but)s
            and (d.kind = 'invoice' or d.basis = 'usage')
            and not exists (select from billing.voids as v where v.document_id = d.document_id)
        group by 1, 3, 4, 5, 6, 7
        """,
        {"tenant_id": tenant_id, "but": but},
    )
    months: dict[str, set[date]] = {}
    usage: dict[str, dict[date, dict[tuple[str | None, str | None], Decimal]]] = {}
    items: dict[str, dict[tuple[str, date], Decimal]] = {}
    for currency, periods, month, kind, item_id, feature, model, amount in await cursor.fetchall():
        months.setdefault(currency, set()).update(periods or ())
        if kind == "usage":
            usage.setdefault(currency, {}).setdefault(month, {})[feature, model] = amount
        elif item_id is not None:
            its_items = items.setdefault(currency, {})
            its_items[item_id, month] = EXACT.add(its_items.get((item_id, month), _ZERO), amount)
    return {
        currency: Billed(usage.get(currency, {}), items.get(currency, {}), frozenset(its_months))
        for currency, its_months in months.items()
    }


async def creditable_invoices(
    connection: Connection, tenant_id: str, currency: str, before: date, lines: Iterable[UsageLine] = ()
) -> list[Creditable]:
    """Return the live invoices of a tenant that a month before this one may correct, with what is left of each.

    In the order in which what is owed back is placed: months that the lines give back come first, then the others, the newest
    first in both.
    """
    cursor = await connection.execute(
        "select d.document_id, d.posting_period from billing.documents as d"
        " where d.tenant_id = %s and d.currency = %s and d.kind = 'invoice' and d.posting_period < %s"
        " and not exists (select from billing.voids as v where v.document_id = d.document_id)",
        [tenant_id, currency, before],
    )
    given_back = {line.service_month for line in lines if line.amount < 0}
    rows = sorted(await cursor.fetchall(), key=lambda row: (row[1] not in given_back, -row[1].toordinal()))
    return await left_of(connection, [document_id for document_id, _ in rows])


async def left_of(connection: Connection, document_ids: Sequence[str]) -> list[Creditable]:
    """Return what is left of invoices after their live credit notes, in the order as given."""
    cursor = await connection.execute(
        "select d.document_id from billing.documents as d where d.corrects_document_id = any(%s)"
        " and not exists (select from billing.voids as v where v.document_id = d.document_id)",
        [list(document_ids)],
    )
    notes = await read_documents(connection, [row[0] for row in await cursor.fetchall()])
    return [
        creditable(invoice, [note for note in notes if note.corrects_document_id == invoice.document_id])
        for invoice in await read_documents(connection, document_ids)
    ]


# --- Parties, items, grants -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Agreed:
    """What stands on documents besides usage: who issues and pays, in which time zone and currency, under which terms."""

    tenants: Mapping[str, Tenant] = field(default_factory=dict)
    exchange_rates: ExchangeRates = field(default_factory=ExchangeRates)
    entities: dict[str, str] = field(default_factory=dict)
    issuers: dict[str, list[Issuer]] = field(default_factory=dict)
    customers: dict[str, list[Customer]] = field(default_factory=dict)
    tax_rates: dict[str, list[TaxRate]] = field(default_factory=dict)
    items: dict[str, list[Item]] = field(default_factory=dict)
    bounds: dict[str, Bound] = field(default_factory=dict)

    @classmethod
    async def read(cls, connection: Connection, tenant_ids: Sequence[str]) -> "Agreed":
        """Read it for some tenants."""
        found = cls(
            tenants=await load_tenants(connection, tenant_ids),
            exchange_rates=ExchangeRates(await read_exchange_rates(connection)),
        )
        cursor = await connection.execute("select entity_id, name from ledger.entities")
        found.entities.update(await cursor.fetchall())
        for issuer in await read_issuers(connection):
            found.issuers.setdefault(issuer.entity_id, []).append(issuer)
        for customer in await read_customers(connection, tenant_ids):
            found.customers.setdefault(customer.tenant_id, []).append(customer)
        for rate in await read_tax_rates(connection):
            found.tax_rates.setdefault(rate.entity_id, []).append(rate)
        for item in await read_items(connection, tenant_ids):
            found.items.setdefault(item.tenant_id, []).append(item)
        found.bounds.update({bound.currency: bound for bound in await read_bounds(connection)})
        return found


async def read_issuers(connection: Connection) -> list[Issuer]:
    """Return all versions of how entities stand on documents, in the order of recording."""
    cursor = await connection.execute(
        "select entity_id, effective_from, name, address, country::text, tax_id, email, invoice_prefix, credit_note_prefix,"
        " payment_days from billing.issuers order by version_id"
    )
    names = ("entity_id", "effective_from", "name", "address", "country", "tax_id", "email", "invoice_prefix",
             "credit_note_prefix", "payment_days")  # fmt: skip
    return [
        Issuer(**{**dict(zip(names, row, strict=True)), "address": tuple(row[3])}) for row in await cursor.fetchall()
    ]


async def read_customers(connection: Connection, tenant_ids: Collection[str] | None = None) -> list[Customer]:
    """Return all versions of how tenants stand on documents, in the order of recording."""
    cursor = await connection.execute(
        "select tenant_id, effective_from, name, address, country::text, tax_id, email, tax_category, language,"
        " invoice_currency::text from billing.customers"
        " where %(ids)s::text[] is null or tenant_id = any(%(ids)s) order by version_id",
        {"ids": None if tenant_ids is None else list(tenant_ids)},
    )
    names = ("tenant_id", "effective_from", "name", "address", "country", "tax_id", "email", "tax_category", "language",
             "invoice_currency")  # fmt: skip
    return [
        Customer(**{**dict(zip(names, row, strict=True)), "address": tuple(row[3])}) for row in await cursor.fetchall()
    ]


async def read_tax_rates(connection: Connection) -> list[TaxRate]:
    """Return all versions of tax rates, in the order of recording."""
    async with connection.cursor(row_factory=class_row(TaxRate)) as cursor:
        await cursor.execute(
            "select entity_id, category, effective_from, rate, label from billing.tax_rates order by version_id"
        )
        return await cursor.fetchall()


async def read_items(connection: Connection, tenant_ids: Collection[str] | None = None) -> list[Item]:
    """Return the agreed items as they stand, by id."""
    async with connection.cursor(row_factory=class_row(Item)) as cursor:
        await cursor.execute(
            "select distinct on (item_id) item_id, tenant_id, kind, description, currency::text, amount, percent, period,"
            " timing, feature, model, tax_category, starts_on, ends_on from billing.items"
            " where %(ids)s::text[] is null or tenant_id = any(%(ids)s) order by item_id, version_id desc",
            {"ids": None if tenant_ids is None else list(tenant_ids)},
        )
        return await cursor.fetchall()


async def read_bounds(connection: Connection) -> list[Bound]:
    """Return the bounds as they stand, by currency."""
    async with connection.cursor(row_factory=class_row(Bound)) as cursor:
        await cursor.execute(
            "select distinct on (currency) currency::text, total_max, change_max, change_from, lines_max from billing.bounds"
            " order by currency, version_id desc"
        )
        return await cursor.fetchall()


async def _uses(
    connection: Connection, tenant_id: str, month: date, books: Books, charges: Mapping[str, Decimal]
) -> dict[str, Any]:
    found = {}
    for currency, grants in books.grants.items():
        if currency in charges:
            cursor = await connection.execute(
                "select entry_id from billing.credited_entries where tenant_id = %s and posting_period = %s",
                [tenant_id, month],
            )
            without = [row[0] for row in await cursor.fetchall()]
            found[currency] = await month_uses(connection, tenant_id, currency, month, grants, without)
    return found
