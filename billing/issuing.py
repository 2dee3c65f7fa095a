"""Issuing: a closed and sealed month becomes invoices, once; what cannot be issued is parked with the reason.

Tenants are issued in groups, each in one transaction: it locks their periods, folds, checks, numbers and writes. Whatever an
interrupted run leaves is issued by the next one, and several runs at once make each invoice once.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final, Literal

import psycopg
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from billing.agreements import Issuer, in_force
from billing.documents import Document
from billing.drafting import Draft
from billing.errors import IssueRefused
from billing.months import (
    Agreed,
    Drafted,
    FoldedAhead,
    draft_months,
    fold_ahead,
    lock_tenants,
    read_issuers,
    tenants_of,
)
from billing.store import Issued, insert_documents
from ledger import failpoints
from ledger.approvals import Awaiting, second_person
from ledger.database import Connection
from ledger.errors import ActRefused
from ledger.money import EXACT, amount_text
from ledger.periods import find_period
from quotas.burning import book_burn

GROUP: Final = 125
"""Tenants that one transaction issues."""
FOLDED: Final = 2000
"""Tenants whose entries are read in one scan of the month, before they are issued group by group."""

Result = Literal["issued", "issued_before", "awaiting", "parked", "nothing"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a tenant's month in one currency."""

    tenant_id: str
    month: date
    result: Result
    currency: str | None = None
    """None where the whole month is refused or holds nothing."""
    document_id: str | None = None
    number: str | None = None
    total: Decimal | None = None
    amount_due: Decimal | None = None
    credit_notes: Sequence[str] = ()
    """Numbers of what was issued with it, for what the month owes back."""
    reasons: Sequence[str] = ()
    approval_id: int | None = None


@dataclass(frozen=True, slots=True)
class Terms:
    """Under what somebody issues."""

    actor: str
    reason: str | None = None
    needed: Collection[str] = ()
    """Acts that the settings ask a second person for."""
    accepts_bounds: bool = False
    """Issue although it is larger than is issued unseen; takes a reason."""
    digests: Mapping[str, str] = field(default_factory=dict)
    """By currency: what somebody looked at; anything else is refused."""


async def preview(connection: Connection, tenant_id: str, month: date, *, now: datetime) -> Drafted:
    """Draft a tenant's month; nothing is stored or locked. In one snapshot, unless the caller has a transaction already.

    Errors: Unknown for a tenant that is not there, ActRefused for a month that it does not have.
    """
    is_first = connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    async with connection.transaction():
        if is_first:
            await connection.execute("set transaction isolation level repeatable read, read only")
        found = await draft_months(connection, month, [tenant_id], now=now)
    if not found:
        # Says which of both is not there.
        await find_period(connection, tenant_id, month)
    return found[0]


async def issue_month(connection: Connection, tenant_id: str, month: date, terms: Terms) -> list[Outcome]:
    """Issue a tenant's month: an outcome for each currency. Issued again, it answers with what was issued.

    Raises Unknown for a tenant that is not there, ActRefused for a month that it does not have and where bounds are accepted
    without a reason.
    """
    _check(terms)
    async with connection.transaction():
        found = await _issue_group(connection, _Group(month, [tenant_id], terms))
    if not found:
        await find_period(connection, tenant_id, month)
    return found


async def issue_all(
    connection: Connection,
    month: date,
    terms: Terms,
    *,
    entity_id: str | None = None,
    group: int = GROUP,
    second: Connection | None = None,
) -> AsyncIterator[tuple[list[Outcome], int, int]]:
    """Issue a month of all tenants, or of an entity's; yield outcomes, tenants done and tenants in all, group by group.

    The first is empty and comes before the month is read, which takes a while: what can be refused at once is refused by then.
    A tenant that cannot be issued is parked and the others go on. What is agreed with tenants is read when their entries are
    folded. With a `second` connection the one is read beside the other, and the next group is locked and drafted while one is
    written; it is numbered when that one has been committed.
    """
    _check(terms)
    ids = await tenants_of(connection, month, entity_id)
    if not ids:
        raise ActRefused(f"nobody has a period {month:%Y-%m}")
    yield [], 0, len(ids)
    lanes = [connection] if second is None else [connection, second]
    done = 0
    for start in range(0, len(ids), FOLDED):
        part = ids[start : start + FOLDED]
        ahead, agreed = await _read_ahead(
            connection, second, month, part, is_all=entity_id is None and len(ids) <= FOLDED
        )
        groups = [
            _Group(month, part[first : first + group], terms, ahead, agreed) for first in range(0, len(part), group)
        ]
        running: list[_Turn] = []
        try:
            for place, one in enumerate(groups):
                for following in range(place + len(running), min(place + len(lanes), len(groups))):
                    turn = _Turn(before=running[-1] if running else None)
                    turn.task = asyncio.create_task(
                        _issue_whole(lanes[following % len(lanes)], groups[following], turn)
                    )
                    running.append(turn)
                assert running[0].task is not None
                try:
                    outcomes = await running[0].task
                    del running[0]
                except _BROKEN:
                    # The parts lock their tenants anew: whoever has locked later ones lets them go first.
                    await _stop(running)
                    outcomes = await _issue_parts(lanes[place % len(lanes)], one)
                done += len(one.ids)
                yield outcomes, done, len(ids)
                failpoints.hit("issue.between_groups")
        finally:
            await _stop(running)


async def _read_ahead(
    connection: Connection, second: Connection | None, month: date, tenant_ids: Sequence[str], *, is_all: bool
) -> tuple[FoldedAhead, Agreed]:
    folded = None if is_all else tenant_ids
    if second is None:
        return await fold_ahead(connection, month, folded), await Agreed.read(connection, tenant_ids)
    agreed = asyncio.create_task(Agreed.read(second, tenant_ids))
    try:
        return await fold_ahead(connection, month, folded), await agreed
    finally:
        agreed.cancel()
        await asyncio.gather(agreed, return_exceptions=True)


def _check(terms: Terms) -> None:
    if terms.accepts_bounds and not (terms.reason or "").strip():
        raise ActRefused("issuing beyond the bounds needs a reason")


@dataclass(frozen=True, slots=True)
class _Group:
    """Tenants that are issued in one transaction."""

    month: date
    ids: Sequence[str]
    terms: Terms
    ahead: FoldedAhead | None = None
    agreed: Agreed | None = None


@dataclass(slots=True)
class _Turn:
    """The place of a group in a run of two connections.

    It locks its tenants when the group before has locked its own, which come first in the order of locks, and numbers when
    that group has been committed: so no two runs wait for each other, and numbers follow the order of groups. It drafts when
    the group before has been drafted, and so while that one is written.
    """

    before: "_Turn | None" = None
    has_locked: asyncio.Event = field(default_factory=asyncio.Event)
    has_drafted: asyncio.Event = field(default_factory=asyncio.Event)
    task: "asyncio.Task[list[Outcome]] | None" = None

    async def to_lock(self) -> None:
        if self.before is not None:
            await self.before.has_locked.wait()

    async def to_draft(self) -> None:
        if self.before is not None:
            await self.before.has_drafted.wait()
        # And again every few tenants: what the group before waits for goes on meanwhile.
        await asyncio.sleep(0)

    async def to_number(self) -> None:
        if self.before is not None and self.before.task is not None:
            await asyncio.wait([self.before.task])
            if self.before.task.cancelled() or self.before.task.exception() is not None:
                # The group before is to be issued first, by its parts, or by the next run.
                raise asyncio.CancelledError
            self.before = None


async def _stop(running: list[_Turn]) -> None:
    tasks = [turn.task for turn in running if turn.task is not None]
    running.clear()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


_BROKEN: Final = (ActRefused, ValueError, psycopg.IntegrityError)
"""What breaks a rule of a group that only the database sees."""


async def _issue_whole(connection: Connection, group: _Group, turn: _Turn) -> list[Outcome]:
    try:
        await turn.to_lock()
        async with connection.transaction():
            return await _issue_group(connection, group, turn)
    finally:
        turn.has_locked.set()
        turn.has_drafted.set()


async def _issue_parts(connection: Connection, group: _Group) -> list[Outcome]:
    """Issue each tenant of a group by itself, and park whose documents break a rule."""
    found: list[Outcome] = []
    for tenant_id in group.ids:
        try:
            async with connection.transaction():
                found += await _issue_group(connection, replace(group, ids=[tenant_id], agreed=None))
        except _BROKEN as error:
            outcome = Outcome(tenant_id, group.month, "parked", reasons=(_line(error),))
            async with connection.transaction():
                await _park(connection, group.terms.actor, group.month, [], [outcome])
            found.append(outcome)
    return found


def _line(error: Exception) -> str:
    if isinstance(error, psycopg.Error):
        return f"the database refuses it: {error.diag.constraint_name or error.sqlstate}"
    return str(error)


@dataclass(frozen=True, slots=True)
class _Chosen:
    """A draft that is issued now."""

    of: Drafted
    draft: Draft
    second_person: str | None


async def _issue_group(connection: Connection, group: _Group, turn: _Turn | None = None) -> list[Outcome]:
    turn = turn or _Turn()
    month, ids, terms = group.month, group.ids, group.terms
    cursor = await connection.execute("select clock_timestamp()")
    row = await cursor.fetchone()
    assert row is not None
    now: datetime = row[0]
    await lock_tenants(connection, ids)
    turn.has_locked.set()
    drafted = await draft_months(
        connection, month, ids, now=now, for_issue=True, ahead=group.ahead, agreed=group.agreed,
        pause=turn.to_draft,
    )  # fmt: skip
    turn.has_drafted.set()
    await turn.to_number()
    failpoints.hit("issue.after_drafts")
    outcomes: list[Outcome] = []
    chosen: list[_Chosen] = []
    for each in drafted:
        outcomes += await _choose(connection, each, terms, chosen)
    parked = [outcome for outcome in outcomes if outcome.result == "parked"]
    await _park(connection, terms.actor, month, ids, parked)
    if chosen:
        outcomes += await _write(connection, month, chosen, terms, now)
    failpoints.hit("issue.before_commit")
    return sorted(outcomes, key=lambda outcome: (outcome.tenant_id, outcome.currency or ""))


async def _choose(connection: Connection, of: Drafted, terms: Terms, chosen: list[_Chosen]) -> list[Outcome]:
    """Say what becomes of a tenant's month; what is issued now is added to `chosen` and has no outcome yet."""
    tenant_id, month = of.known.tenant_id, of.known.month
    outcomes = [
        Outcome(
            tenant_id, month, "issued_before", live.currency, live.document_id, live.number, live.total, live.amount_due
        )
        for live in of.live.values()
    ]
    _refuse_stale(of, terms)
    for draft in of.drafts:
        document = draft.document
        if document.currency in of.live:
            continue
        reasons = [*draft.refusals, *(() if terms.accepts_bounds else draft.bounds)]
        if reasons:
            outcomes.append(Outcome(tenant_id, month, "parked", document.currency, reasons=tuple(reasons)))
            continue
        agreed = await second_person(
            connection,
            terms.needed,
            "invoices.issue",
            {
                "tenant_id": tenant_id,
                "month": f"{month:%Y-%m}",
                "currency": document.currency,
                "total": amount_text(document.total),
                "digest": document.digest,
            },
            actor=terms.actor,
            reason=terms.reason,
        )
        if isinstance(agreed, Awaiting):
            outcomes.append(
                Outcome(tenant_id, month, "awaiting", document.currency, total=document.total,
                        reasons=(agreed.line,), approval_id=agreed.approval_id)
            )  # fmt: skip
            continue
        chosen.append(_Chosen(of, draft, agreed.second_person))
    if not of.drafts and not of.live:
        # Nothing is billed, and yet there may be something that nobody knows.
        refusals = tuple(of.known.refusals)
        outcomes.append(Outcome(tenant_id, month, "parked" if refusals else "nothing", reasons=refusals))
    return outcomes


def _refuse_stale(of: Drafted, terms: Terms) -> None:
    """Raise IssueRefused where what was looked at is no longer what would be issued."""
    for currency, digest in terms.digests.items():
        live = of.live.get(currency)
        found = next((draft.document.digest for draft in of.drafts if draft.document.currency == currency), None)
        if digest not in (found, None if live is None else live.digest):
            raise IssueRefused(
                f"the draft of {of.known.tenant_id} {of.known.month:%Y-%m} in {currency} is no longer the one with digest"
                f" {digest[:12]}: look at it again"
            )


# --- Writing ----------------------------------------------------------------------------------------------------------


async def take_numbers(connection: Connection, entity_id: str, kind: str, count: int) -> int:
    """Take the next numbers of an entity and return the first; nobody else takes one until the transaction ends."""
    cursor = await connection.execute(
        "insert into billing.numbers (entity_id, kind, last_value) values (%(entity)s, %(kind)s, %(count)s)"
        " on conflict (entity_id, kind) do update set last_value = billing.numbers.last_value + excluded.last_value"
        " returning last_value",
        {"entity": entity_id, "kind": kind, "count": count},
    )
    row = await cursor.fetchone()
    assert row is not None
    return int(row[0]) - count + 1


def number_text(prefix: str, value: int) -> str:
    """Return a number as printed."""
    return f"{prefix}{value:06d}"


def new_id(kind: str) -> str:
    return f"{'inv' if kind == 'invoice' else 'cn'}_{secrets.token_hex(12)}"


async def _write(
    connection: Connection, month: date, chosen: Sequence[_Chosen], terms: Terms, now: datetime
) -> list[Outcome]:
    """Number and write documents, burn grants, and note the acts; in the transaction that drafted them."""
    invoices = await _numbered(
        connection, "invoice", [(each, each.draft.document, None) for each in chosen], terms, now
    )
    ids = {(each.document.tenant_id, each.document.currency): each.document.document_id for each in invoices}
    given_back = [(each, note, ids[note.tenant_id, note.currency]) for each in chosen for note in each.draft.notes]
    issued = [*invoices, *await _numbered(connection, "credit_note", given_back, terms, now)]
    failpoints.hit("issue.after_numbers")
    await insert_documents(connection, issued)
    failpoints.hit("issue.after_documents")
    await prove_lines(connection, month, [each.of for each in chosen])
    await burn_credits(connection, terms.actor, [each.document for each in issued])
    await record_documents(connection, terms, issued)
    notes: dict[str, list[str]] = {}
    for each in issued:
        if each.issued_with_document_id is not None:
            notes.setdefault(each.issued_with_document_id, []).append(each.document.number or "")
    return [
        Outcome(
            each.document.tenant_id, month, "issued", each.document.currency, each.document.document_id,
            each.document.number, each.document.total, each.document.amount_due,
            tuple(notes.get(each.document.document_id or "", ())),
        )
        for each in issued
        if each.document.kind == "invoice"
    ]  # fmt: skip


async def _numbered(
    connection: Connection,
    kind: str,
    listed: Sequence[tuple[_Chosen, Document, str | None]],
    terms: Terms,
    now: datetime,
) -> list[Issued]:
    """Give documents of one kind their numbers: entities in one order, so that no two runs wait for each other's.

    A credit note is of whoever issued the invoice that it corrects, though the tenant may have moved to another entity since.
    """
    found = []
    issuers = {each.of.known.entity_id: each.of.known.issuer for each, _, _ in listed}
    entities = sorted({document.issuer.party_id for _, document, _ in listed})
    if not issuers.keys() >= set(entities):
        day = now.astimezone(UTC).date()
        known = await read_issuers(connection)
        for entity_id in entities:
            issuers.setdefault(entity_id, in_force([one for one in known if one.entity_id == entity_id], day))
    for entity_id in entities:
        own = [each for each in listed if each[1].issuer.party_id == entity_id]
        value = await take_numbers(connection, entity_id, kind, len(own))
        for place, (each, document, issued_with) in enumerate(own):
            issuer = issuers[entity_id]
            # A draft without issuer is refused before.
            assert issuer is not None
            found.append(
                Issued(
                    document=numbered(document, issuer, value + place, now),
                    entity_id=entity_id,
                    number_value=value + place,
                    revision=each.of.revisions.get(document.currency, 0) + 1 if kind == "invoice" else None,
                    close_number=each.of.close_number if kind == "invoice" else None,
                    issued_with_document_id=issued_with,
                    actor=terms.actor,
                    second_person=each.second_person,
                )
            )
    return found


def numbered(document: Document, issuer: Issuer, value: int, now: datetime) -> Document:
    """Return a draft as issued: its number, its id and its time."""
    prefix = issuer.invoice_prefix if document.kind == "invoice" else issuer.credit_note_prefix
    return document.marked(
        document_id=new_id(document.kind),
        number=number_text(prefix, value),
        issued_at=now,
        state="issued",
    )


async def prove_lines(connection: Connection, month: date, drafted: Sequence[Drafted]) -> None:
    """Hold the stored usage lines of live invoices against the seal, digit for digit; raise IssueRefused where they differ.

    The seal was read under the locks of this transaction, and the entries were held against it and the lines, when the month
    was drafted.
    """
    sealed = {each.known.tenant_id: each.sealed for each in drafted}
    cursor = await connection.execute(
        """
        select d.tenant_id, l.currency::text, sum(l.amount)
        from billing.documents as d
        -- By document: what was written a moment ago is in no statistics.
        cross join lateral (
            select l.charged_currency as currency, sum(l.charged_amount) as amount
            from billing.document_lines as l
            where l.document_id = d.document_id and l.kind = 'usage'
            group by 1
        ) as l
        where
            d.posting_period = %s
            and d.tenant_id = any(%s)
            and d.kind = 'invoice'
            and not exists (select from billing.voids as v where v.document_id = d.document_id)
        group by 1, 2
        order by 1, 2
        """,
        [month, list(sealed)],
    )
    for tenant_id, currency, lines in await cursor.fetchall():
        wanted = sealed[tenant_id].get(currency, Decimal(0))
        if lines != wanted:
            raise IssueRefused(
                f"invoice lines of {tenant_id} {month:%Y-%m} come to {amount_text(lines)} {currency}, its seal to {amount_text(wanted)}"
            )


async def burn_credits(connection: Connection, actor: str, documents: Sequence[Document]) -> None:
    """Book what invoices take of grants, and what credit notes give back to them."""
    for document in documents:
        for credit in document.credits:
            await book_burn(
                connection,
                actor,
                credit.grant_id,
                credit.amount if document.kind == "credit_note" else EXACT.minus(credit.amount),
                month=document.posting_period,
                key=f"{document.document_id}:{credit.grant_id}",
                reason=f"{'credit note' if document.kind == 'credit_note' else 'invoice'} {document.number}",
            )


async def record_documents(
    connection: Connection, terms: Terms, issued: Sequence[Issued], detail: Mapping[str, Any] | None = None
) -> None:
    """Write an act for each document, in its own transaction's one statement."""
    acts = [
        {
            "act": "invoices.issue" if each.document.kind == "invoice" else "credit-notes.issue",
            "second_person": each.second_person,
            "detail": {
                "document_id": each.document.document_id,
                "number": each.document.number,
                "tenant_id": each.document.tenant_id,
                "month": f"{each.document.posting_period:%Y-%m}",
                "currency": each.document.currency,
                "total": amount_text(each.document.total),
                "digest": each.document.digest,
                # What the digest leaves out, so that a draft has it too.
                "issued_at": None if each.document.issued_at is None else each.document.issued_at.isoformat(),
                "due_date": None if each.document.due_date is None else each.document.due_date.isoformat(),
                **({"beyond_bounds": True} if terms.accepts_bounds and each.document.kind == "invoice" else {}),
                **(detail or {}),
            },
        }
        for each in issued
    ]
    await connection.execute(
        "insert into ledger.acts (actor, act, detail, reason, second_person)"
        " select %s, a.act, a.detail, %s, a.second_person"
        " from jsonb_to_recordset(%s) as a (act text, detail jsonb, second_person text)",
        [terms.actor, terms.reason, Jsonb(acts)],
    )


# --- What waits -------------------------------------------------------------------------------------------------------


async def _park(
    connection: Connection, actor: str, month: date, looked_at: Sequence[str], outcomes: Sequence[Outcome]
) -> None:
    """Write down refusals that say something new about their tenant and currency, and which ones of tenants looked at are over."""
    await connection.execute(
        """
        with said as (
            select n.tenant_id, n.currency, array(select jsonb_array_elements_text(n.reasons)) as reasons
            from unnest(%(tenants)s::text[], %(currencies)s::text[], %(reasons)s::jsonb[])
                as n (tenant_id, currency, reasons)
        ),

        newest as (
            select distinct on (tenant_id, currency) tenant_id, currency::text, reasons
            from billing.parked
            where posting_period = %(month)s and tenant_id = any(%(looked_at)s::text[] || %(tenants)s::text[])
            order by tenant_id, currency, parked_id desc
        )

        insert into billing.parked (tenant_id, posting_period, currency, reasons, actor)
        select s.tenant_id, %(month)s, s.currency, s.reasons, %(actor)s
        from said as s
        left join newest as n on n.tenant_id = s.tenant_id and n.currency is not distinct from s.currency
        where n.reasons is distinct from s.reasons
        union all
        select n.tenant_id, %(month)s, n.currency, '{}', %(actor)s
        from newest as n
        where
            cardinality(n.reasons) > 0
            and n.tenant_id = any(%(looked_at)s::text[])
            and not exists (
                select
                from said as s
                where s.tenant_id = n.tenant_id and s.currency is not distinct from n.currency
            )
        """,
        {
            "actor": actor,
            "month": month,
            "looked_at": list(looked_at),
            "tenants": [each.tenant_id for each in outcomes],
            "currencies": [each.currency for each in outcomes],
            "reasons": [Jsonb(list(each.reasons)) for each in outcomes],
        },
    )


@dataclass(frozen=True, slots=True)
class Waiting:
    """A tenant's month that could not be invoiced yet."""

    tenant_id: str
    posting_period: date
    currency: str | None
    reasons: Sequence[str]
    parked_at: datetime


async def list_waiting(
    connection: Connection, *, month: date | None = None, tenant_id: str | None = None
) -> list[Waiting]:
    """List what could not be invoiced yet, with the newest reasons, by month and tenant."""
    async with connection.cursor(row_factory=class_row(Waiting)) as cursor:
        await cursor.execute(
            "select tenant_id, posting_period, currency::text, reasons, parked_at from billing.waiting"
            " where (%(month)s::date is null or posting_period = %(month)s)"
            " and (%(tenant_id)s::text is null or tenant_id = %(tenant_id)s) order by posting_period, tenant_id, currency",
            {"month": month, "tenant_id": tenant_id},
        )
        return await cursor.fetchall()
