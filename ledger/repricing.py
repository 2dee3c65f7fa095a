"""Repricing: a price corrected for the past posts the difference for what was priced otherwise, and nothing else.

What a request should cost is asked of today's book at the request's own instant: a card that replaces another, a card for
an earlier time, a name that somebody accepted, an exchange rate that was missing. Where that differs from what stands, the
true-up rule makes the rows: the old group is taken back and the new one given, as entries of kind `adjustment` with
reason, actor and run. They keep `occurred_at` and enter the earliest open period. A second run finds that what stands is
what it should be; a price that goes there and back nets to zero.

Decided inside the posting transaction, with the request's row locked: a report that arrives meanwhile is in it or after it.
Sums are of Python's decimals and not of a frame's, which end at 38 digits; exact amounts may have more.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from functools import partial
from typing import Any, Final, Literal, NamedTuple

import msgspec
import psycopg
from psycopg.rows import class_row

from ledger.books import Books, ensure_ids, load_books
from ledger.database import Connection, record_act, remedy_for
from ledger.entries import Entry, Money, Standing, tail
from ledger.errors import ActRefused, StaleBooks
from ledger.feeds import claim
from ledger.keys import digest_uuid, key
from ledger.meters import OPERATIONS, input_tokens
from ledger.money import EXACT
from ledger.periods import month_after
from ledger.posting import (
    Batch,
    Correction,
    Known,
    Missing,
    Priced,
    amounts_of,
    fee_set_of,
    fees_of,
    no_message,
    post,
    rate_set_id,
    read_known,
)
from ledger.price_book import Body, Selectors, Variant
from ledger.statements import AMOUNT_STATED, DIMENSIONS, Part, Statement
from ledger.times import from_micros
from ledger.true_ups import true_up

REPRICING: Final = b"repricing"
"""Kind of the keys under which repricings are posted."""
FEED: Final = "commands"
AT_ONCE: Final = 1000
_TRIES: Final = 8

_SENT_TENANT: Final = DIMENSIONS.index("sent_tenant_id")
_PROVIDER: Final = DIMENSIONS.index("provider")
_ACCOUNT: Final = DIMENSIONS.index("provider_account")
_DEPLOYMENT: Final = DIMENSIONS.index("deployment")
_REQUESTED_MODEL: Final = DIMENSIONS.index("requested_model")
_REPORTED_MODEL: Final = DIMENSIONS.index("reported_model")
_MODEL: Final = DIMENSIONS.index("model")
_TIER: Final = DIMENSIONS.index("service_tier")
_REGION: Final = DIMENSIONS.index("region")
_STATUS: Final = DIMENSIONS.index("status")

Book = Literal["cost", "charge"]
BOOKS: Final[tuple[Book, ...]] = ("cost", "charge")


@dataclass(frozen=True, slots=True)
class Scope:
    """Which requests are looked at. `since` and `until` are UTC microseconds of `occurred_at`, half-open."""

    since: int | None = None
    until: int | None = None
    tenant_id: str | None = None
    model: str | None = None
    """Canonical, reported or requested."""


# --- What a request should cost ---------------------------------------------------------------------------------------


class Group(NamedTuple):
    """What stands of a request under one combination of everything but prices, and what it should be."""

    stands: Sequence[Standing]
    entries: Sequence[Entry]
    """The same where it is not changed, or cannot be."""
    is_changed: bool
    is_unclear: bool
    """Parts in one group whose inputs nobody can tell apart any more, and a new price that depends on them."""


Origins = Mapping[int, tuple[str, str | None]]
"""Rate set id to (hash of its card, the band that it resolves): what a price was chosen by."""


class Grain(NamedTuple):
    """What `entries.grain` puts together."""

    dimensions: tuple[str | None, ...]
    local_date: date
    subject_id: str | None
    tags: str | None
    attempt: int | None
    cost_currency: str | None
    cost_rate_set_id: int | None
    charge_currency: str | None
    charge_rate_set_id: int | None
    flags: tuple[str, ...]
    unpriced: tuple[str, ...]


def groups_of(books: Books, known: Known, missing: Missing, origins: Origins) -> list[Group]:
    """Return what stands for a request, each group with what it should be by these books at the request's instant.

    Where the parts of the call are known, each is priced by itself: the length of its own input chooses its band.
    """
    header = Statement(
        event_key="",
        content_hash="",
        request_key=known.request_key,
        rank=known.rank,
        occurred_at=known.occurred_at,
        dimensions=(),
        parts=(),
        status="",
        is_final=len(known.rank) > 2 and bool(known.rank[2]),
    )
    if not known.stands:
        # Withdrawn or reversed: no price makes anything of it.
        return []
    said = known.stands if known.parts is None else known.parts
    parts = [_part(books, Grain(*each.grain), each) for each in said]
    stands: dict[tuple[Any, ...], list[Standing]] = {}
    for each in known.stands:
        stands.setdefault(_place(Grain(*each.grain)), []).append(each)
    should: dict[tuple[Any, ...], list[Entry]] = {place: [] for place in stands}
    unclear = set()
    for each, part in zip(said, parts, strict=True):
        place = _place(Grain(*each.grain))
        priced = _priced(books, _entry(header, known, each), part, parts, missing)
        should.setdefault(place, []).append(priced)
        if known.parts is None and _may_be_several(books, priced, part, Grain(*each.grain), origins):
            unclear.add(place)
    groups = []
    for place, entries in should.items():
        old = stands.get(place, [])
        was = [_entry(header, known, each) for each in old]
        is_changed = _amounts(was) != _amounts(entries)
        is_kept = not is_changed or place in unclear
        groups.append(Group(old, was if is_kept else entries, is_changed, is_changed and place in unclear))
    return groups


def _entry(header: Statement, known: Known, each: Standing) -> Entry:
    found = Grain(*each.grain)
    return Entry(
        statement=header,
        kind="adjustment",
        entry_no=0,
        occurred_at=known.occurred_at,
        local_date=found.local_date,
        dimensions=found.dimensions,
        subject_id=found.subject_id,
        request_count=each.request_count,
        quantities=each.quantities,
        cost=Money(each.cost_amount, found.cost_currency, found.cost_rate_set_id),
        charge=Money(each.charge_amount, found.charge_currency, found.charge_rate_set_id),
        flags=found.flags,
        unpriced=found.unpriced,
        avoided_tokens=each.avoided_tokens,
        tags=found.tags,
        attempt=found.attempt,
    )


def _place(found: Grain) -> tuple[Any, ...]:
    """Return a grain without what a price may change: rate sets, currencies, reasons, and a name that nobody had."""
    dimensions = (*found.dimensions[:_MODEL], *found.dimensions[_MODEL + 1 :])
    return (dimensions, found.local_date, found.subject_id, found.tags, found.attempt, found.flags)


def _amounts(entries: Sequence[Entry]) -> list[tuple[dict[str | None, Decimal], bool]]:
    """Return, for each book, the sums by currency and whether anything has no amount."""
    found = []
    for moneys in ([entry.cost for entry in entries], [entry.charge for entry in entries]):
        sums: dict[str | None, Decimal] = {}
        for money in moneys:
            if money.amount is not None:
                sums[money.currency] = EXACT.add(sums.get(money.currency, Decimal(0)), money.amount)
        found.append((sums, any(money.amount is None for money in moneys)))
    return found


def _part(books: Books, found: Grain, group: Standing) -> Part:
    """Return a group as the part of a call that it was; a name that was nobody's may be somebody's now."""
    dimensions = found.dimensions
    model = dimensions[_MODEL]
    if model is None:
        known = books.parties.model(dimensions[_PROVIDER], dimensions[_REPORTED_MODEL] or dimensions[_REQUESTED_MODEL])
        model = None if known is None else known.model
    return Part(
        model=model,
        reported_model=dimensions[_REPORTED_MODEL],
        quantities=group.quantities,
        flags=found.flags,
        # What a person stated in money stands whatever the price is.
        is_chargeable=dimensions[_STATUS] != "void" and not {"not_charged", AMOUNT_STATED} & {*found.flags},
        is_priceable=not any(why.endswith(":usage") for why in found.unpriced),
    )


def _priced(books: Books, entry: Entry, part: Part, parts: Sequence[Part], missing: Missing) -> Entry:
    """Return a row with the amounts that it should have."""
    if not part.is_chargeable:
        return entry
    tenant_id, at = entry.dimensions[0] or "", entry.occurred_at
    currency = books.parties.tenants[tenant_id].at(at).charge_currency
    if part.quantities is not None and OPERATIONS in part.quantities:
        return _fee(books, entry, currency, missing)
    dimensions = entry.dimensions
    if part.model != dimensions[_MODEL]:
        dimensions = (*dimensions[:_MODEL], part.model, *dimensions[_MODEL + 1 :])
    cost, charge, unpriced = amounts_of(books, tenant_id, currency, dimensions, part, parts, at, missing)
    return msgspec.structs.replace(entry, dimensions=dimensions, cost=cost, charge=charge, unpriced=unpriced)


def _fee(books: Books, entry: Entry, currency: str, missing: Missing) -> Entry:
    """Return the row of a fee with what the card in force asks for now, which may be nothing."""
    book: Book = "cost" if entry.cost.amount or entry.cost.rate_set_id is not None else "charge"
    old = entry.cost if book == "cost" else entry.charge
    fee = fee_set_of(books, book, entry.dimensions[0] or "", currency, entry.dimensions, entry.occurred_at)
    if fee is None:
        amount = Money(Decimal(0), old.currency, None)
    else:
        amount = Money(fee.rates[OPERATIONS].price, fee.currency, rate_set_id(books, fee, missing))
    if book == "cost":
        return msgspec.structs.replace(entry, cost=amount)
    return msgspec.structs.replace(entry, charge=amount)


def _may_be_several(books: Books, entry: Entry, part: Part, found: Grain, origins: Origins) -> bool:
    """Say whether a group may be several parts, whose price now depends on the input of each.

    One part alone stands in the band of its own input: where the price that stands was chosen by another, there are more.
    """
    if part.quantities is None:
        return False
    tokens = input_tokens(part.quantities)
    for priced_by in (found.cost_rate_set_id, found.charge_rate_set_id):
        card_hash, band = origins.get(priced_by or 0, ("", None))
        card = books.prices.cards.get(card_hash)
        layers: list[Body | Variant] = [] if card is None else [card.body, *card.body.variants]
        reached = [each for layer in layers for each in layer.bands if each.starts_at <= tokens]
        highest = max(reached, key=lambda each: each.starts_at, default=None)
        if card is not None and band != (None if highest is None else f"{highest.operator}{highest.input_tokens}"):
            break
    else:
        return False
    tenant_id, dimensions = entry.dimensions[0] or "", entry.dimensions

    def sets(tokens: int) -> list[Any]:
        asked = Selectors(
            provider=dimensions[_PROVIDER],
            model=part.model,
            occurred_at=entry.occurred_at,
            tenant_id=tenant_id,
            currency=books.parties.tenants[tenant_id].at(entry.occurred_at).charge_currency,
            provider_account=dimensions[_ACCOUNT],
            deployment=dimensions[_DEPLOYMENT],
            service_tier=dimensions[_TIER],
            region=dimensions[_REGION],
            input_tokens=tokens,
        )
        return [books.prices.rate_set(book, asked) for book in BOOKS]

    return sets(1) != sets(tokens)


def rows_for(
    books: Books, known: Known, missing: Missing, *, origins: Origins, run: str, reason: str, actor: str
) -> list[Entry]:
    """Return the rows that take a request from what stands to what it should be; none where nothing changes.

    Their key is over the request and its newest row: each state of a request is left once.
    """
    groups = groups_of(books, known, missing, origins)
    if not any(group.is_changed and not group.is_unclear for group in groups):
        return []
    entries = [entry for group in groups for entry in group.entries]
    sent_tenant_id = entries[0].dimensions[_SENT_TENANT] or ""
    event_key = key(REPRICING, sent_tenant_id, known.request_key, str(known.last_entry_id))
    better = []
    for entry in entries:
        statement = msgspec.structs.replace(
            entry.statement,
            event_key=event_key,
            content_hash=digest_uuid(f"repricing {run} {event_key}".encode()),
            dimensions=entry.dimensions,
            status=entry.dimensions[_STATUS] or "",
        )
        better.append(msgspec.structs.replace(entry, statement=statement, reason=reason, actor=actor))
    rows = true_up(known.stands, better, known.entry_id, "adjustment")
    return [msgspec.structs.replace(row, reported={"run": run}) for row in rows]


def fees_for(books: Books, known: Known, missing: Missing, *, run: str, reason: str, actor: str) -> list[Priced]:
    """Return the fees that a request's operation owes by these books, whether they have been booked or not."""
    if not books.prices.has_fees:
        return []
    said = sorted(known.stands if known.parts is None else known.parts, key=lambda each: -each.request_count)
    parts = tuple(_part(books, Grain(*each.grain), each) for each in said)
    if not parts or OPERATIONS in (parts[0].quantities or {}):
        return []
    found = Grain(*said[0].grain)
    statement = Statement(
        event_key="",
        content_hash="",
        request_key=known.request_key,
        rank=known.rank,
        occurred_at=known.occurred_at,
        dimensions=found.dimensions,
        parts=parts,
        status=found.dimensions[_STATUS] or "",
        is_final=len(known.rank) > 2 and bool(known.rank[2]),
    )
    first = _priced(books, _entry(statement, known, said[0]), parts[0], parts, missing)
    fees = []
    for fee in fees_of(books, statement, [first], missing):
        entry = msgspec.structs.replace(fee.entries[0], reason=reason, actor=actor, reported={"run": run})
        fees.append(Priced(fee.statement, [entry], [tail(entry)]))
    return fees


async def _booked(connection: Connection, keys: Sequence[str]) -> set[str]:
    """Return which of these keys are taken."""
    if not keys:
        return set()
    cursor = await connection.execute("select key::text from ledger.event_keys where key = any(%s::uuid[])", [keys])
    return {row[0] async for row in cursor}


async def load_origins(connection: Connection) -> Origins:
    """Read what each rate set was chosen by."""
    cursor = await connection.execute("select rate_set_id, card_hash::text, selectors ->> 'band' from ledger.rate_sets")
    return {row[0]: (row[1], row[2]) async for row in cursor}


# --- Which requests ---------------------------------------------------------------------------------------------------


_FIND: Final = """
select e.entry_id, e.request_key::text
from ledger.entries as e
where
    e.posting_period = %(period)s
    and e.entry_id > %(after)s
    and e.kind in ('usage', 'fee')
    and e.entry_no = 0
    and e.request_key is not null
    and (%(since)s::timestamptz is null or e.occurred_at >= %(since)s)
    and (%(until)s::timestamptz is null or e.occurred_at < %(until)s)
    and (%(tenant_id)s::text is null or e.tenant_id = %(tenant_id)s)
    and (
        %(model)s::text is null
        or %(model)s in (e.model, e.reported_model, e.requested_model)
        -- A later part of the same answer may be another model's.
        or exists (
            select
            from ledger.entries as p
            where
                p.posting_period = e.posting_period
                and p.entry_id > e.entry_id
                and p.entry_id < e.entry_id + 100
                and p.event_key = e.event_key
                and %(model)s in (p.model, p.reported_model, p.requested_model)
        )
    )
order by e.entry_id
limit %(limit)s
"""


async def _check_retired(connection: Connection, scope: Scope) -> None:
    """Raise ActRefused where a scope reaches into months whose rows have left the ledger: they would be passed over in silence."""
    cursor = await connection.execute("select max(posting_period) from ledger.retired_months")
    row = await cursor.fetchone()
    if row is None or row[0] is None:
        return
    after = month_after(row[0])
    if scope.since is None or from_micros(scope.since).date() < after:
        raise ActRefused(
            f"the rows of {row[0]:%Y-%m} and before have left the ledger and cannot be read here:"
            f" begin with {after.isoformat()} or later"
        )


async def _chunks(connection: Connection, scope: Scope) -> AsyncIterator[list[str]]:
    """Yield the keys of requests in scope, month by month in the order of their first rows."""
    await _check_retired(connection, scope)
    # By the rows of the batches and not of the entries: one look-up instead of a read of everything.
    cursor = await connection.execute("select distinct posting_period from ledger.batch_digests order by 1")
    for (period,) in await cursor.fetchall():
        after = -1
        while True:
            cursor = await connection.execute(
                _FIND,
                {
                    "period": period,
                    "after": after,
                    "since": None if scope.since is None else from_micros(scope.since),
                    "until": None if scope.until is None else from_micros(scope.until),
                    "tenant_id": scope.tenant_id,
                    "model": scope.model,
                    "limit": AT_ONCE,
                },
            )
            found = await cursor.fetchall()
            if not found:
                break
            after = found[-1][0]
            yield [request_key for _, request_key in found]


# --- Before: what it would do -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Effect:
    """What a repricing does to a tenant's month in one book; months are those in which the usage occurred."""

    tenant_id: str
    book: Book
    currency: str | None
    month: date
    requests: int = 0
    before: Decimal = Decimal(0)
    after: Decimal = Decimal(0)
    priced: int = 0
    """Groups that had no amount and get one."""
    unpriced: int = 0
    """Groups that had an amount and lose it."""

    @property
    def difference(self) -> Decimal:
        return EXACT.subtract(self.after, self.before)


@dataclass(slots=True)
class Preview:
    """What a repricing would do, and what it would leave."""

    effects: list[Effect] = field(default_factory=list)
    looked_at: int = 0
    requests: int = 0
    entries: int = 0
    """Rows for those requests."""
    fees: int = 0
    """Fees that a card gained for operations that are over: a row each."""
    unclear: list[str] = field(default_factory=list)
    """Keys of requests that are left: parts of one grain that cannot be told apart, under a price that depends on them."""


async def preview(connection: Connection, scope: Scope, books: Books | None = None) -> Preview:
    """Say what a repricing would do, without a lock and without writing anything."""
    books = books or await load_books(connection)
    origins = await load_origins(connection)
    found = Preview()
    effects: dict[tuple[str, Book, str | None, date], Effect] = {}
    seen: set[str] = set()
    async for request_keys in _chunks(connection, scope):
        listed = await read_known(connection, request_keys)
        owed = [fee for known in listed for fee in fees_for(books, known, Missing(), run="", reason="", actor="")]
        seen |= await _booked(connection, [fee.statement.event_key for fee in owed])
        for fee in owed:
            if fee.statement.event_key not in seen:
                seen.add(fee.statement.event_key)
                found.fees += 1
                _add_fee(effects, fee.entries[0])
        for known in listed:
            found.looked_at += 1
            groups = groups_of(books, known, Missing(), origins)
            if any(group.is_unclear for group in groups):
                found.unclear.append(known.request_key)
            rows = rows_for(books, known, Missing(), origins=origins, run="", reason="", actor="")
            if not rows:
                continue
            found.requests += 1
            found.entries += len(rows)
            touched: set[tuple[str, Book, str | None, date]] = set()
            for group in groups:
                if group.is_changed and not group.is_unclear:
                    touched.update(_add_effect(effects, group))
            for place in touched:
                effects[place].requests += 1
        await asyncio.sleep(0)
    found.effects = [effects[place] for place in sorted(effects, key=str)]
    return found


def _add_effect(
    effects: dict[tuple[str, Book, str | None, date], Effect], group: Group
) -> Iterator[tuple[str, Book, str | None, date]]:
    """Add what a group loses and gets, by book; yield the places that were touched."""
    first = group.entries[0]
    month = first.local_date.replace(day=1)
    for number, book in enumerate(BOOKS):
        old: list[tuple[Decimal | None, str | None]] = []
        for each in group.stands:
            grain = Grain(*each.grain)
            amounts = ((each.cost_amount, grain.cost_currency), (each.charge_amount, grain.charge_currency))
            old.append(amounts[number])
        new = [(money.amount, money.currency) for money in ((e.cost, e.charge)[number] for e in group.entries)]
        had, has = (any(amount is None for amount, _ in side) for side in (old, new))
        touched = set()
        for side, is_new in ((old, False), (new, True)):
            for amount, currency in side:
                if amount is None:
                    continue
                place = (first.dimensions[0] or "", book, currency, month)
                effect = effects.setdefault(place, Effect(*place))
                if is_new:
                    effect.after = EXACT.add(effect.after, amount)
                else:
                    effect.before = EXACT.add(effect.before, amount)
                touched.add(place)
        for place in touched:
            effects[place].priced += had and not has
            effects[place].unpriced += has and not had
        yield from touched


def _add_fee(effects: dict[tuple[str, Book, str | None, date], Effect], entry: Entry) -> None:
    for book, money in zip(BOOKS, (entry.cost, entry.charge), strict=True):
        if money.amount:
            place = (entry.dimensions[0] or "", book, money.currency, entry.local_date.replace(day=1))
            effect = effects.setdefault(place, Effect(*place))
            effect.after = EXACT.add(effect.after, money.amount)
            effect.requests += 1


# --- Doing it ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Repriced:
    """What a run did."""

    run: str
    looked_at: int = 0
    requests: int = 0
    entries: int = 0


async def reprice(
    operator: Connection,
    writer: Connection,
    scope: Scope,
    *,
    actor: str,
    reason: str,
    on_chunk: Callable[[Repriced], None] | None = None,
) -> Repriced:
    """Post the difference for every request in scope that was priced otherwise; again, it adds nothing.

    The run is written down as an act first, and its entries name it. What was posted before a failure stays, and the next
    run goes on from there. `operator` writes the act, `writer` the entries, on the feed `commands`.
    """
    detail = {**{name: getattr(scope, name) for name in ("since", "until", "tenant_id", "model")}}
    async with operator.transaction():
        await record_act(operator, actor, "prices.reprice", detail, reason)
        cursor = await operator.execute("select currval(pg_get_serial_sequence('ledger.acts', 'act_id'))")
        row = await cursor.fetchone()
    assert row is not None
    done = Repriced(run=f"act {row[0]}")
    books = await load_books(writer)
    held = await claim(writer, "commands", FEED)
    origins = await load_origins(writer)
    rows = partial(rows_for, origins=origins, run=done.run, reason=reason, actor=actor)
    fees = partial(fees_for, run=done.run, reason=reason, actor=actor)
    async for request_keys in _chunks(writer, scope):
        done.looked_at += len(request_keys)
        tries = 0
        while True:
            tries += 1
            try:
                changed, missing = await _changed(writer, books, request_keys, origins)
                if not changed:
                    break
                if missing:
                    await ensure_ids(writer, books, missing.rate_sets, missing.subjects)
                items = [Correction(request_key, rows, fees, fee_keys) for request_key, fee_keys in changed]
                batch = Batch(items, no_message, no_message, books.versions)
                posted = await post(writer, held, batch, books)
                done.requests += sum(result.outcome == "created" for result in posted.results)
                done.entries += posted.entry_count
                break
            except StaleBooks:
                books = await load_books(writer)
            except psycopg.Error as error:
                if writer.closed or remedy_for(error) != "retry" or tries >= _TRIES:
                    raise
                await asyncio.sleep(2**tries / 50)
        if on_chunk is not None:
            on_chunk(done)
    return done


async def _changed(
    connection: Connection, books: Books, request_keys: Sequence[str], origins: Origins
) -> tuple[list[tuple[str, list[str]]], Missing]:
    """Return which requests would change, each with the keys of its fees, so that the others are not locked; and what
    their prices need ids for.
    """
    missing = Missing()
    found = []
    for known in await read_known(connection, request_keys):
        groups = groups_of(books, known, missing, origins)
        owed = fees_for(books, known, missing, run="", reason="", actor="")
        is_changed = any(group.is_changed and not group.is_unclear for group in groups)
        found.append((known.request_key, is_changed, [fee.statement.event_key for fee in owed]))
    booked = await _booked(connection, [key for _, _, keys in found for key in keys])
    return [
        (request_key, keys) for request_key, is_changed, keys in found if is_changed or not booked >= set(keys)
    ], missing


# --- What was known then ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KnownAmount:
    """What the ledger said at an instant of a tenant's month in one book."""

    tenant_id: str
    month: date
    book: str
    currency: str | None
    amount: Decimal
    requests: int
    unpriced: int


async def amounts_known_at(connection: Connection, known_at: int, scope: Scope) -> list[KnownAmount]:
    """Return the report as it was known at an instant: the entries that had been recorded by then, summed.

    Nothing of the ledger changes, so the sum over `recorded_at` up to an instant is what a report of that instant said,
    whatever has been corrected, repriced or reported since. By tenant, month in which the usage occurred, and book.
    Errors: ActRefused where the scope reaches into months whose rows have left the ledger.
    """
    await _check_retired(connection, scope)
    async with connection.cursor(row_factory=class_row(KnownAmount)) as cursor:
        await cursor.execute(
            """
            select
                e.tenant_id,
                date_trunc('month', e.local_date::timestamp)::date as month,
                b.book,
                b.currency::text as currency,
                coalesce(sum(b.amount), 0) as amount,
                sum(e.request_count)::bigint as requests,
                coalesce(sum(e.request_count) filter (where b.amount is null), 0)::bigint as unpriced
            from ledger.entries as e
            cross join lateral (
                values ('cost', e.cost_currency, e.cost_amount), ('charge', e.charge_currency, e.charge_amount)
            ) as b (book, currency, amount)
            where
                e.recorded_at <= %(known_at)s
                and e.kind <> 'evidence'
                and (%(since)s::timestamptz is null or e.occurred_at >= %(since)s)
                and (%(until)s::timestamptz is null or e.occurred_at < %(until)s)
                and (%(tenant_id)s::text is null or e.tenant_id = %(tenant_id)s)
                and (%(model)s::text is null or %(model)s in (e.model, e.reported_model, e.requested_model))
            group by 1, 2, 3, 4
            having sum(b.amount) <> 0 or sum(e.request_count) <> 0
            order by 1, 2, 3, 4
            """,
            {
                "known_at": from_micros(known_at),
                "since": None if scope.since is None else from_micros(scope.since),
                "until": None if scope.until is None else from_micros(scope.until),
                "tenant_id": scope.tenant_id,
                "model": scope.model,
            },
        )
        return await cursor.fetchall()


__all__ = [
    "Effect", "KnownAmount", "Preview", "Repriced", "Scope", "amounts_known_at", "preview", "reprice",
]  # fmt: skip
