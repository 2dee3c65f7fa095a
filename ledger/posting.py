"""`post`: the only writer of the ledger. One batch, one transaction, one lock order, one COPY of entries at the end.

Lock order: the feed's row, the calendar lock (shared), event keys by key, request keys by key, nodes that report a window by
id, the batch; then the COPY of entries, whose triggers refuse closed periods and move budget windows by id; the commit goes
with its end.
"""

import contextlib
import copy
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final, Literal, NamedTuple, NoReturn

import msgspec
import psycopg

from ledger import chain, failpoints
from ledger.billing_rules import fee_identity, fee_key, rule_that_frees
from ledger.books import Books, ensure_ids
from ledger.database import CALENDAR_LOCK, Connection, copy_and_commit
from ledger.dead_letters import Release, Released, note_released, readable
from ledger.differences import Said, fingerprint, is_settled, sides
from ledger.entries import COLUMNS, NULL, UNPRICED, Entry, Money, Standing, jsonb_text, line, standing, tail
from ledger.errors import (
    ActRefused,
    BatchTooLarge,
    Fenced,
    LedgerError,
    MonthMissing,
    RequestRetired,
    StaleBooks,
    Unknown,
)
from ledger.feeds import Claim
from ledger.keys import digest_uuid
from ledger.meters import (
    COLUMN_METERS,
    INPUT_TOKEN_METERS,
    OPERATIONS,
    OUTPUT_TOKEN_METERS,
    Quantities,
    input_tokens,
    output_tokens,
)
from ledger.money import EXACT
from ledger.node_windows import COPY_WINDOWS, Spans, lock_nodes, read_spans, window_lines
from ledger.parties import first_period
from ledger.price_book import RateSet, Selectors, Unpriced
from ledger.pricing import amount_of, unpriced_meters
from ledger.statements import (
    DIMENSIONS,
    DeadLetter,
    Item,
    Kind,
    Outcome,
    Part,
    Rank,
    Refused,
    Statement,
    Window,
    is_taken_back,
)
from ledger.times import from_micros, micros, postgres_text
from ledger.true_ups import fold, is_stated, reported, true_up

CONTENT_HASH_VERSION: Final = 2
"""Of the content hashes that statements carry: that of `ingest.contents`, which a test holds equal."""
ROWS_PER_BATCH: Final = 65_536
"""entry_id = batch_id x 65,536 + ordinal."""

_PROVIDER: Final = DIMENSIONS.index("provider")
_ACCOUNT: Final = DIMENSIONS.index("provider_account")
_DEPLOYMENT: Final = DIMENSIONS.index("deployment")
_REPORTED_MODEL: Final = DIMENSIONS.index("reported_model")
_MODEL: Final = DIMENSIONS.index("model")
_TIER: Final = DIMENSIONS.index("service_tier")
_REGION: Final = DIMENSIONS.index("region")
_REQUEST: Final = DIMENSIONS.index("request_id")

_RETIRED: Final = Refused("retired_request", "request_id: is of a month whose rows have left the ledger")
_NO_OPEN_PERIOD: Final = Refused("no_open_period", "tenant_id: has no open period for this time")


class CommitUnknown(LedgerError):
    """The connection broke while committing; (feed, number, hash) tells whether the batch is there."""

    def __init__(self, feed_id: int, number: int, batch_hash: bytes, posted: "Posted") -> None:
        self.feed_id, self.number, self.hash, self.posted = feed_id, number, batch_hash, posted
        super().__init__(f"the outcome of batch {number} of feed {feed_id} is unknown")


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one event."""

    outcome: Outcome
    reason: str | None = None
    detail: str | None = None


# Most events say no more than this, and a frozen dataclass is slow to make.
_CREATED: Final = Result("created")
_DUPLICATE: Final = Result("duplicate")
_EVIDENCE: Final = Result("evidence")


@dataclass(frozen=True, slots=True)
class Posted:
    """A committed batch and what became of each of its events, in their order."""

    batch_id: int
    number: int
    hash: bytes
    results: list[Result]
    entry_count: int
    next_position: int | None


@dataclass(slots=True)
class Priced:
    """A statement with its rows, made before the transaction: all that the ledger does not need to be asked for."""

    statement: Statement
    entries: list[Entry]
    tails: list[str]
    fees: "Sequence[Priced]" = ()
    """Fees of the operation that it belongs to, a statement of its own for each book; booked unless they have been."""


@dataclass(frozen=True, slots=True)
class Known:
    """What the ledger knows of a request while its row is locked."""

    request_key: str
    entry_id: int
    """Its first row, which corrections name."""
    last_entry_id: int
    """Its newest row: with every correction another one, so that a key over it is used once."""
    occurred_at: int
    rank: Rank
    stands: Sequence[Standing]
    parts: Sequence[Standing] | None = None
    """The rows of its first statement, each a part of the call, where nothing but prices was corrected since; else None:
    what stands has parts of one grain in one group."""
    main: Standing | None = None
    """The group that counts the request; where nothing stands, the newest row that did, or its first."""


def _no_fees(books: Books, known: Known, missing: "Missing") -> Sequence[Priced]:
    return ()


@dataclass(frozen=True, slots=True)
class Correction:
    """A change to a request that is decided while its row is locked, from what stands then and from the newest prices."""

    request_key: str
    rows_for: Callable[[Books, Known, "Missing"], Sequence[Entry]]
    """The rows of one act, which share a statement and its event key; none where nothing has to change."""
    fees_for: Callable[[Books, Known, "Missing"], Sequence[Priced]] = _no_fees
    """Fees of its operation, booked unless they have been."""
    fee_keys: Sequence[str] = ()
    """The keys of those fees, to be looked up."""
    event_key: str | None = None
    """Where it is known before what stands is: with it taken, the correction was made already."""
    content_hash: str | None = None
    """Tells a repeated correction from another one under the same key."""
    is_statement: bool = False
    """It says what stands for the request from now on, and with which rank: the best statement, or that nothing does."""


def no_message(index: int) -> NoReturn:
    """Stand in for the bytes and the origin of items that no message brought, and that are never set aside."""
    raise AssertionError("a correction is no message, and never a dead letter")


@dataclass(slots=True)
class Batch:
    """Items of one feed in order, with the span of positions that they were read from."""

    items: Sequence[Priced | Window | DeadLetter | Correction]
    body_of: Callable[[int], bytes]
    """The bytes of the event behind an item, for dead letters."""
    origin_of: Callable[[int], str]
    """The credential or topic that brought an item."""
    versions: tuple[int, int, int]
    first_position: int | None = None
    next_position: int | None = None
    expected_position: int | None = None
    """Where the writer believes the feed to be; None for feeds without positions of their own."""
    posted_until: int | None = None
    """Append time, in UTC microseconds, up to which the feed is posted with this batch."""
    position_of: Callable[[int], int | None] = lambda _: None
    """Where in its log the message behind an item lies; None for feeds without positions of their own."""
    release_of: Callable[[int], Release | None] | None = None
    """The release of an item that a person takes out of a dead letter: what becomes of it is noted there."""
    once_locked: "Callable[[Connection], Awaitable[None]] | None" = None
    """Reads what corrections must know besides, while their requests are locked."""
    and_then: "Callable[[Connection, Posted], Awaitable[None]] | None" = None
    """What else is written in the same transaction, before the entries: who corrected and why."""


# --- Before the transaction: price, and write the lines ---------------------------------------------------------------


def prepare(
    books: Books, items: Sequence[Item], missing: "Missing", first_place: int = 0
) -> list[Priced | Window | DeadLetter]:
    """Price statements and write their lines; what has no id yet is noted with the item's place, for `prepare_again`."""
    made = []
    for place, item in enumerate(items, start=first_place):
        noted = missing.noted
        made.append(_prepared(books, item, missing))
        if missing.noted != noted:
            missing.places.append(place)
    return made


def prepare_again(
    books: Books, items: Sequence[Item], made: Sequence[Priced | Window | DeadLetter], was_missing: "Missing"
) -> "tuple[list[Priced | Window | DeadLetter], Missing]":
    """Return what was prepared, with the items made again whose prices or subjects had no id; and what has none still."""
    again = list(made)
    missing = Missing()
    for place in was_missing.places:
        again[place] = prepare(books, [items[place]], missing, place)[0]
    return again, missing


@dataclass(slots=True)
class Missing:
    """Rate sets and subjects that a batch names and that have no id yet."""

    rate_sets: dict[str, RateSet] = field(default_factory=dict)
    subjects: dict[tuple[str, str], None] = field(default_factory=dict)
    places: list[int] = field(default_factory=list)
    """Which items name one of them, so that only those are made again."""
    noted: int = 0
    """How often something was found to be missing."""

    def __bool__(self) -> bool:
        return bool(self.rate_sets or self.subjects)

    def note_rate_set(self, rate_set: RateSet) -> None:
        self.rate_sets[rate_set.content_hash] = rate_set
        self.noted += 1

    def note_subject(self, tenant_id: str, subject_hash: str) -> None:
        self.subjects[tenant_id, subject_hash] = None
        self.noted += 1


def _prepared(books: Books, item: Item, missing: Missing) -> Priced | Window | DeadLetter:
    if not isinstance(item, Statement):
        return item
    kind: Kind = "usage" if item.claims_request else "evidence"
    entries = price_statement(books, item, item.occurred_at, kind, missing)
    fees = fees_of(books, item, entries, missing) if books.prices.has_fees else ()
    return Priced(item, entries, [tail(entry) for entry in entries], fees)


def price_statement(books: Books, statement: Statement, at: int, kind: Kind, missing: Missing) -> list[Entry]:
    """Return the rows of a statement at the prices of an instant.

    Shape: one entry per part. The tenant is the one that pays at that instant; only the first row counts the request, and
    none where it is withdrawn.
    """
    dimensions = statement.dimensions
    tenant_id = dimensions[0] or ""
    if at != statement.occurred_at:
        payer = books.parties.tenant_at(dimensions[1] or "", at)
        if payer is not None and payer.tenant_id != tenant_id:
            tenant_id = payer.tenant_id
            dimensions = (tenant_id, *dimensions[1:])
    tenant = books.parties.tenants[tenant_id]
    subject_id = None
    if statement.subject_hash is not None:
        subject_id = books.subject_ids.get((tenant_id, statement.subject_hash))
        if subject_id is None:
            missing.note_subject(tenant_id, statement.subject_hash)
    terms = tenant.at(at)
    day = terms.local_date(at)
    currency = terms.charge_currency
    # A void says that the call was never made.
    request_count = 0 if statement.status == "void" else 1
    digest = digest_uuid(statement.raw_usage) if statement.raw_usage is not None else None
    tags = jsonb_text(statement.tags) if statement.tags else None
    entries = []
    for number, part in enumerate(statement.parts):
        if number:
            dimensions = _with_model(dimensions, part)
        cost, charge, unpriced = amounts_of(books, tenant_id, currency, dimensions, part, statement.parts, at, missing)
        entry = Entry(
            statement=statement,
            kind=kind,
            entry_no=number,
            occurred_at=at,
            local_date=day,
            dimensions=dimensions,
            subject_id=subject_id,
            request_count=0 if number else request_count,
            quantities=part.quantities,
            cost=cost,
            charge=charge,
            flags=part.flags,
            unpriced=unpriced,
            avoided_tokens=part.avoided_tokens,
            reported=part.notes,
            tags=tags,
            attempt=statement.attempt,
            raw_digest=digest,
        )
        entries.append(entry if kind != "evidence" else as_evidence(entry))
    return entries


def _with_model(dimensions: tuple[str | None, ...], part: Part) -> tuple[str | None, ...]:
    changed = list(dimensions)
    changed[_MODEL], changed[_REPORTED_MODEL] = part.model, part.reported_model
    return tuple(changed)


def amounts_of(
    books: Books,
    tenant_id: str,
    currency: str,
    dimensions: tuple[str | None, ...],
    part: Part,
    parts: Sequence[Part],
    at: int,
    missing: Missing,
) -> tuple[Money, Money, tuple[str, ...]]:
    """Return (cost, charge, why an amount is null) of one part of a call that has these parts."""
    selectors = _selectors(tenant_id, currency, dimensions, part, at)
    cost_set, charge_set = books.prices.rate_sets(selectors)
    cost, cost_unpriced = _amount(books, "cost", cost_set, dimensions, part, parts, currency, missing)
    charge, charge_unpriced = _amount(books, "charge", charge_set, dimensions, part, parts, currency, missing)
    return cost, charge, charge_unpriced + cost_unpriced


def _selectors(tenant_id: str, currency: str, dimensions: tuple[str | None, ...], part: Part, at: int) -> Selectors:
    return Selectors(
        tenant_id=tenant_id,
        currency=currency,
        provider=dimensions[_PROVIDER] or "",
        provider_account=dimensions[_ACCOUNT],
        deployment=dimensions[_DEPLOYMENT],
        model=part.model,
        service_tier=dimensions[_TIER],
        region=dimensions[_REGION],
        occurred_at=at,
        input_tokens=input_tokens(part.quantities) if part.quantities else 0,
    )


_ZERO: Final = Decimal(0)
_NO_USAGE: Final[Quantities] = {}


def _amount(
    books: Books,
    book: Literal["cost", "charge"],
    rate_set: RateSet | Unpriced,
    dimensions: tuple[str | None, ...],
    part: Part,
    parts: Sequence[Part],
    currency: str,
    missing: Missing,
) -> tuple[Money, tuple[str, ...]]:
    quantities = part.quantities
    if (
        isinstance(rate_set, Unpriced)
        or rate_set.billing_rules
        or quantities is None
        or not part.is_chargeable
        or not part.is_priceable
    ):
        return _odd_amount(books, book, rate_set, dimensions, part, parts, currency, missing)
    amount = amount_of(quantities, rate_set)
    if amount is None:
        return _unpriced(book, currency), tuple(f"{book}:{meter}" for meter in unpriced_meters(quantities, rate_set))
    return Money(amount, rate_set.currency, rate_set_id(books, rate_set, missing)), ()


def _odd_amount(
    books: Books,
    book: Literal["cost", "charge"],
    rate_set: RateSet | Unpriced,
    dimensions: tuple[str | None, ...],
    part: Part,
    parts: Sequence[Part],
    currency: str,
    missing: Missing,
) -> tuple[Money, tuple[str, ...]]:
    """Price what most calls are not: without a price, without counts, not charged, or under a billing rule."""
    if not part.is_chargeable:
        if isinstance(rate_set, Unpriced):
            # Nothing is owed whatever the price would have been; the amount needs some currency.
            return Money(_ZERO, currency, None), ()
        return Money(_ZERO, rate_set.currency, rate_set_id(books, rate_set, missing)), ()
    if isinstance(rate_set, RateSet) and rate_set.billing_rules:
        rule = rule_that_frees(rate_set, dimensions, parts, books.parties, part)
        if rule is not None:
            # Free whether the counts are known or not.
            freed = books.prices.freed(rate_set, rule)
            return Money(_ZERO, freed.currency, rate_set_id(books, freed, missing)), ()
    if part.quantities is None or not part.is_priceable:
        return _unpriced(book, currency), (f"{book}:usage",)
    if isinstance(rate_set, Unpriced):
        return _unpriced(book, currency), (f"{book}:{rate_set.reason}",)
    amount = amount_of(part.quantities, rate_set)
    if amount is None:
        meters = unpriced_meters(part.quantities, rate_set)
        return _unpriced(book, currency), tuple(f"{book}:{meter}" for meter in meters)
    return Money(amount, rate_set.currency, rate_set_id(books, rate_set, missing)), ()


def _unpriced(book: Literal["cost", "charge"], currency: str) -> Money:
    # What a tenant owes is in its own currency, known even while the amount is not; a provider's is not.
    return Money(None, currency, None) if book == "charge" else UNPRICED


def rate_set_id(books: Books, rate_set: RateSet, missing: Missing) -> int | None:
    """Return the id of a set; one that has none yet is noted as missing."""
    found = books.rate_set_ids.get(rate_set.content_hash)
    if found is None:
        missing.note_rate_set(rate_set)
    return found


_BOOKS: Final = ("cost", "charge")


def fee_set_of(
    books: Books,
    book: Literal["cost", "charge"],
    tenant_id: str,
    currency: str,
    dimensions: tuple[str | None, ...],
    at: int,
) -> RateSet | None:
    """Return the set of the fee that the card in force for a call at an instant has, if it has one."""
    part = Part(dimensions[_MODEL], dimensions[_REPORTED_MODEL], None)
    rate_set = books.prices.rate_set(book, _selectors(tenant_id, currency, dimensions, part, at))
    return None if isinstance(rate_set, Unpriced) else books.prices.fee(rate_set)


def fees_of(books: Books, statement: Statement, entries: Sequence[Entry], missing: Missing) -> list[Priced]:
    """Return the fees of the operation that a priced report belongs to: one statement and row for each book that has one.

    They stand under the dimensions of this report. A call that a billing rule frees owes none, but for one with the
    tenant's own key: the fee is what remains to be paid for it.
    """
    operation = fee_identity(statement, books.parties)
    if operation is None:
        return []
    first = entries[0]
    currency = first.charge.currency or ""
    selectors = _selectors(first.dimensions[0] or "", currency, first.dimensions, statement.parts[0], first.occurred_at)
    fees = []
    for book in _BOOKS:
        rate_set = books.prices.rate_set(book, selectors)
        fee = None if isinstance(rate_set, Unpriced) else books.prices.fee(rate_set)
        if fee is None or isinstance(rate_set, Unpriced):
            continue
        if rule_that_frees(rate_set, first.dimensions, statement.parts, books.parties) not in (None, "own_key"):
            continue
        key = fee_key(first.dimensions[1] or "", book, operation)
        entry = fee_entry(books, fee, key, first, missing)
        fees.append(Priced(entry.statement, [entry], [tail(entry)]))
    return fees


def fee_entry(books: Books, fee: RateSet, key: str, of: Entry, missing: Missing) -> Entry:
    """Return the row of a fee, under the dimensions of a row of its operation."""
    amount = Money(fee.rates[OPERATIONS].price, fee.currency, rate_set_id(books, fee, missing))
    nothing = Money(_ZERO, of.charge.currency or fee.currency, None)
    said = of.statement
    return Entry(
        statement=Statement(
            event_key=key,
            content_hash=digest_uuid(f"fee {key}".encode()),
            request_key=key,
            rank=(0, 1, 1, 1, 0, 0),
            occurred_at=of.occurred_at,
            dimensions=of.dimensions,
            parts=(),
            status=said.status,
        ),
        kind="fee",
        entry_no=0,
        occurred_at=of.occurred_at,
        local_date=of.local_date,
        dimensions=of.dimensions,
        subject_id=of.subject_id,
        request_count=0,
        quantities={OPERATIONS: 1},
        cost=amount if fee.book == "cost" else nothing,
        charge=amount if fee.book == "charge" else nothing,
        tags=of.tags,
    )


def as_evidence(entry: Entry, *flags: str) -> Entry:
    """Return a row that moves nothing and keeps what was said in `reported`."""
    said: dict[str, Any] = {"rank": list(entry.statement.rank)}
    if entry.quantities is not None:
        said["quantities"] = dict(entry.quantities)
    if entry.unpriced:
        said["unpriced"] = list(entry.unpriced)
    if entry.charge.amount is not None:
        said["charge_amount"] = f"{entry.charge.amount:f}"
    if entry.cost.amount is not None:
        said["cost_amount"] = f"{entry.cost.amount:f}"
    if entry.reported:
        said["notes"] = dict(entry.reported)
    return Entry(
        statement=entry.statement,
        kind="evidence",
        entry_no=entry.entry_no,
        occurred_at=entry.occurred_at,
        local_date=entry.local_date,
        dimensions=entry.dimensions,
        subject_id=entry.subject_id,
        request_count=0,
        quantities=_NO_USAGE,
        cost=Money(_ZERO, entry.cost.currency, None) if entry.cost.currency else UNPRICED,
        charge=Money(_ZERO, entry.charge.currency, None) if entry.charge.currency else UNPRICED,
        flags=tuple(sorted({*entry.flags, *flags})),
        unpriced=(),
        reported=said,
        tags=entry.tags,
        attempt=entry.attempt,
        raw_digest=entry.raw_digest,
        reason=entry.reason,
        actor=entry.actor,
    )


# --- Inside the transaction -------------------------------------------------------------------------------------------


class _Request(msgspec.Struct, gc=False):
    """What the ledger knows of a request, as the batch goes on."""

    rank: Rank
    posting_period: date
    entry_id: int
    entry_count: int
    occurred_at: int
    best_event_key: str
    is_new: bool
    stands: list[Standing] | None = None
    """Read from the ledger, for what a later statement of this batch beats or corrects."""
    said: Sequence[Entry] | None = None
    """The rows of the statement of this batch that counts now: they cannot be read back before they are written."""
    last_entry_id: int = 0
    """Known where what stands was read, and so are its parts."""
    parts: list[Standing] | None = None
    main: Standing | None = None
    is_changed: bool = False
    is_begun_anew: bool = False
    """What stood was taken back, and this report is its first again."""
    counted: int | None = None
    """Fingerprint of what counts; None where nobody could hold a report against it."""

    def may_differ(self, statement: Statement, entries: Sequence[Entry]) -> bool:
        """Say whether a report has to be held against what stands. A person's word, and what is not final, is not."""
        return (
            not self.rank[0]
            and statement.claims_request
            and is_settled(self.rank)
            and is_settled(statement.rank)
            and fingerprint(entries) != self.counted
        )

    @property
    def is_standing_known(self) -> bool:
        return self.said is not None or self.stands is not None

    def standing(self) -> list[Standing]:
        if self.said is not None:
            return [standing(entry) for entry in self.said]
        assert self.stands is not None, "what stands was read for whatever beats or corrects it"
        return self.stands


@dataclass(frozen=True, slots=True)
class _Sealed:
    """The rows of a batch in one posting period, with what proves them."""

    lines: bytes
    digest: bytes
    marks: bytes

    @classmethod
    def of(cls, lines: Sequence[bytes]) -> "_Sealed":
        joined = b"".join(lines)
        return cls(joined, chain.digest(joined), chain.row_marks(lines))


@dataclass(slots=True)
class _Letter:
    origin: str
    body: bytes
    refused: Refused
    position: int | None
    event_key: str | None = None
    first_hash: str | None = None
    second_hash: str | None = None


@dataclass(slots=True)
class _Writing:
    """The rows of one batch in the making."""

    books: Books
    batch: Batch
    batch_id: int
    recorded_at: int
    keys: dict[str, str]
    requests: dict[str, _Request]
    recorded_text: str = ""
    results: list[Result] = field(default_factory=list)
    new_keys: list[str] = field(default_factory=list)
    lines: dict[date, list[str]] = field(default_factory=dict)
    amounts: dict[date, list[tuple[Money, Money]]] = field(default_factory=dict)
    """(cost, charge) of each row."""
    raw: list[str] = field(default_factory=list)
    letters: list[_Letter] = field(default_factory=list)
    still_refused: dict[int, _Letter] = field(default_factory=dict)
    """By item: what a dead letter is that was released and is one still."""
    windows: list[Window] = field(default_factory=list)
    spans: Spans = field(default_factory=Spans)
    """What is taken of the time of the nodes that report a window in this batch."""
    differences: list[dict[str, Any]] = field(default_factory=list)
    missing: Missing = field(default_factory=Missing)
    periods: dict[str, tuple[list[int], list[date]]] = field(default_factory=dict)
    """By tenant: ends and names of the periods that take entries."""
    ordinal: int = 0

    def take_all(self) -> None:
        """Decide each item in order: new, duplicate, conflict; best so far, or evidence."""
        self.recorded_text = postgres_text(self.recorded_at)
        for index, item in enumerate(self.batch.items):
            self.results.append(self._take(index, item))

    def _take(self, index: int, item: Priced | Window | DeadLetter | Correction) -> Result:
        if isinstance(item, DeadLetter):
            return self._refuse(item.body, item.refused, index)
        if isinstance(item, Correction):
            return self._correct(item)
        statement = item if isinstance(item, Window) else item.statement
        known = self.keys.get(statement.event_key)
        if known is not None:
            if known == statement.content_hash:
                return _DUPLICATE
            return self._conflict(index, statement, known)
        if statement.refused_if_new is not None:
            return self._refuse(self.batch.body_of(index), statement.refused_if_new, index)
        if isinstance(item, Window):
            taken = self.spans.overlap(item)
            if taken is not None:
                return self._refuse(self.batch.body_of(index), taken, index)
            self._claim(item.event_key, item.content_hash)
            self.spans.take(item)
            self.windows.append(item)
            return _CREATED
        return self._state(index, item)

    def _claim(self, key: str, content_hash: str) -> None:
        self.keys[key] = content_hash
        self.new_keys.append(key)

    def _refuse(self, body: bytes, refused: Refused, index: int) -> Result:
        self._set_aside(index, _Letter(self.batch.origin_of(index), body, refused, self.batch.position_of(index)))
        return Result("dead_letter", refused.reason, refused.detail)

    def _set_aside(self, index: int, letter: _Letter) -> None:
        release = self.batch.release_of(index) if self.batch.release_of else None
        if release is None or release.is_split:
            self.letters.append(letter)
        else:
            # The letter that it came from stays the one; another would be a person's own bytes under the sender's name.
            self.still_refused[index] = letter

    def _conflict(self, index: int, statement: Statement | Window, known: str) -> Result:
        refused = Refused("conflict", "an event with this tenant, source and id was accepted with other content")
        letter = _Letter(
            self.batch.origin_of(index),
            self.batch.body_of(index),
            refused,
            self.batch.position_of(index),
            statement.event_key,
            known,
            statement.content_hash,
        )
        self._set_aside(index, letter)
        return Result("conflict", refused.reason, refused.detail)

    def _state(self, index: int, item: Priced) -> Result:
        statement = item.statement
        request = self.requests.get(statement.request_key) if statement.request_key else None
        if request is None or (is_taken_back(request.rank) and statement.claims_request):
            period = self._period(item.entries[0], statement.occurred_at)
            if period is None:
                return self._refuse(self.batch.body_of(index), _NO_OPEN_PERIOD, index)
            self._accept(statement)
            first = self._write(item.entries, item.tails, period)
            if statement.request_key is not None and statement.claims_request:
                self.requests[statement.request_key] = _Request(
                    rank=statement.rank,
                    posting_period=period,
                    entry_id=first,
                    entry_count=len(item.entries),
                    occurred_at=statement.occurred_at,
                    best_event_key=statement.event_key,
                    is_new=request is None or request.is_new,
                    said=item.entries,
                    is_begun_anew=request is not None,
                    counted=fingerprint(item.entries) if is_settled(statement.rank) else None,
                )
            self._book_fees(item.fees, period)
            return _CREATED if statement.claims_request else _EVIDENCE
        return self._restate(index, item, request)

    def _restate(self, index: int, item: Priced, request: _Request) -> Result:
        statement = item.statement
        entries = item.entries
        if statement.occurred_at != request.occurred_at:
            # Price date, windows and occurred_at are those of the first entry of the request.
            entries = price_statement(self.books, statement, request.occurred_at, "usage", self.missing)
        beats = statement.claims_request and statement.rank > request.rank
        if beats and request.posting_period in self.books.calendar.retired:
            return self._refuse(self.batch.body_of(index), _RETIRED, index)
        flags: tuple[str, ...] = ()
        if beats and self._needs_a_person(statement, request):
            beats, flags = False, ("proposed",)
        said = entries
        differ = None
        if request.is_standing_known and request.may_differ(statement, said):
            differ = sides(request.standing(), said)
        if beats:
            stood = request.standing()
            entries = true_up(reported(stood), said, request.entry_id)
        else:
            entries = [as_evidence(entry, *flags) if entry.kind != "evidence" else entry for entry in said]
        # Where a merge was recorded late, what stands and what is said belong to different tenants.
        periods = [self._period(entry, request.occurred_at) for entry in entries]
        if None in periods:
            return self._refuse(self.batch.body_of(index), _NO_OPEN_PERIOD, index)
        self._accept(statement)
        if differ is not None:
            self._note(statement, request, differ, entries[0], is_counted=beats)
        for entry, period in zip(entries, periods, strict=True):
            assert period is not None
            self._write([entry], [tail(entry)], period)
        self._book_fees(item.fees, periods[0])
        if not beats:
            return Result("evidence", flags[0] if flags else None)
        stated = [group for group in stood if is_stated(group)]
        if stated:
            request.stands, request.said = [*(standing(entry) for entry in said), *stated], None
        else:
            request.stands, request.said = None, said
        request.rank, request.best_event_key, request.is_changed = statement.rank, statement.event_key, True
        request.counted = fingerprint(said) if is_settled(statement.rank) else None
        return _CREATED

    def _note(
        self, statement: Statement, request: _Request, differ: tuple[Said, Said], first: Entry, *, is_counted: bool
    ) -> None:
        """Note that a report whose rows come next differs from what another source said."""
        stood, said = differ
        self.differences.append(
            {
                "tenant_id": first.dimensions[0],
                "request_id": first.dimensions[_REQUEST],
                "request_key": statement.request_key,
                "occurred_at": postgres_text(request.occurred_at),
                "recorded_at": self.recorded_text,
                "batch_id": self.batch_id,
                "entry_id": self.batch_id * ROWS_PER_BATCH + self.ordinal,
                "is_counted": is_counted,
                "stood_source": stood.source,
                "said_source": said.source,
                "stood_quantities": dict(stood.quantities),
                "said_quantities": dict(said.quantities),
                "stood_charge": _decimal(stood.charge),
                "said_charge": _decimal(said.charge),
                "charge_currency": said.charge_currency,
                "stood_cost": _decimal(stood.cost),
                "said_cost": _decimal(said.cost),
                "cost_currency": said.cost_currency or stood.cost_currency,
            }
        )

    def _correct(self, item: Correction) -> Result:
        """Write what a correction makes of a request as it stands now."""
        taken = self.keys.get(item.event_key) if item.event_key is not None else None
        if taken is not None:
            if taken == item.content_hash:
                return _DUPLICATE
            raise ActRefused("a correction with this id was made before, and says otherwise")
        request = self.requests.get(item.request_key)
        if request is not None and request.posting_period in self.books.calendar.retired:
            raise RequestRetired(item.request_key, request.posting_period)
        if request is None or request.stands is None:
            raise Unknown("request", item.request_key)
        known = _known(item.request_key, request)
        entries = item.rows_for(self.books, known, self.missing)
        self._book_fees(item.fees_for(self.books, known, self.missing), None)
        if not entries:
            return Result("duplicate", "unchanged", "what stands is what it should be")
        periods = [self._period(entry, request.occurred_at) for entry in entries]
        if None in periods:
            raise ActRefused(
                f"tenant {entries[0].dimensions[0]} has no open period to correct request {item.request_key} in"
            )
        statement = entries[0].statement
        self._accept(statement)
        for entry, period in zip(entries, periods, strict=True):
            assert period is not None
            request.last_entry_id = self._write([entry], [tail(entry)], period)
        request.stands = fold([*request.stands, *(standing(entry) for entry in entries)])
        if item.is_statement:
            request.rank, request.best_event_key, request.is_changed = statement.rank, statement.event_key, True
            request.counted = None
        return _CREATED

    def _book_fees(self, fees: Sequence[Priced], period: date | None) -> None:
        """Book the fees of an operation that have not been; they are requests of their own, which nobody else reports."""
        for fee in fees:
            statement = fee.statement
            entries = fee.entries
            taken_back = None
            if statement.event_key in self.keys:
                taken_back = self.requests.get(statement.request_key or "")
                if taken_back is None or not is_taken_back(taken_back.rank):
                    continue
                # It was taken back together with the report that owed it, and is owed again.
                again = digest_uuid(f"fee {statement.event_key} after {taken_back.best_event_key}".encode())
                statement = msgspec.structs.replace(statement, event_key=again)
                entries = [msgspec.structs.replace(entry, statement=statement) for entry in entries]
            within = self._period(entries[0], statement.occurred_at) or period
            if within is None:
                raise ActRefused(f"tenant {entries[0].dimensions[0]} has no open period to book a fee in")
            self._claim(statement.event_key, statement.content_hash)
            first = self._write(entries, fee.tails, within)
            self.requests[statement.request_key or ""] = _Request(
                statement.rank,
                within,
                first,
                1,
                statement.occurred_at,
                statement.event_key,
                is_new=taken_back is None or taken_back.is_new,
                is_begun_anew=taken_back is not None,
            )

    @staticmethod
    def _needs_a_person(statement: Statement, request: _Request) -> bool:
        """Say whether a void or a lower count of a final, reported request comes from no higher source than the first."""
        decision, has_usage, final, is_reported, source_rank, _ = request.rank
        if (
            decision
            or not (has_usage and final and is_reported)
            or statement.rank[0]
            or statement.rank[4] > source_rank
        ):
            return False
        said: Counter[str] = Counter()
        for part in statement.parts:
            said.update(dict(part.quantities or {}))
        stood: Counter[str] = Counter()
        for group in request.standing():
            stood.update(dict(group.quantities or {}))
        return statement.status == "void" or _is_lower(said, stood)

    def _period(self, entry: Entry, occurred_at: int) -> date | None:
        """Return the first period that still takes entries, not before that of `occurred_at`."""
        tenant_id = entry.dimensions[0] or ""
        taking = self.periods.get(tenant_id)
        if taking is None:
            taking = self.periods[tenant_id] = self.books.calendar.taking(tenant_id, self.recorded_at)
        return first_period(taking, occurred_at)

    def _write(self, entries: list[Entry], tails: list[str], period: date) -> int:
        first = self.batch_id * ROWS_PER_BATCH + self.ordinal
        listed = self.lines.get(period)
        if listed is None:
            listed = self.lines[period] = []
        where = f"{period}\t{self.batch_id}"
        occurred_text = postgres_text(entries[0].occurred_at)
        amounts = self.amounts.setdefault(period, [])
        for entry_id, (entry, entry_tail) in enumerate(zip(entries, tails, strict=True), start=first):
            listed.append(line(entry, entry_tail, entry_id, where, occurred_text, self.recorded_text))
            amounts.append((entry.cost, entry.charge))
        self.ordinal += len(entries)
        if self.ordinal > ROWS_PER_BATCH:
            # The next row would take the id of another batch's.
            raise BatchTooLarge(ROWS_PER_BATCH)
        return first

    def _accept(self, statement: Statement) -> None:
        """Claim a statement's key, and keep its usage object under the id of the row that comes next."""
        self._claim(statement.event_key, statement.content_hash)
        if statement.raw_usage is not None and statement.flavour is not None:
            self._keep_raw(statement, statement.raw_usage, self.batch_id * ROWS_PER_BATCH + self.ordinal)

    def _keep_raw(self, statement: Statement, raw_usage: bytes, entry_id: int) -> None:
        usage = raw_usage.decode()
        if "\\" in usage:
            usage = usage.replace("\\", "\\\\")
        self.raw.append(f"{entry_id}\t{statement.flavour}\t{statement.parser_version}\t{usage}\n")

    @property
    def counts(self) -> dict[str, int]:
        outcomes = Counter(result.outcome for result in self.results)
        return {
            "created": outcomes["created"],
            "duplicate": outcomes["duplicate"],
            "evidence": outcomes["evidence"],
            "conflict": outcomes["conflict"],
            "dead_letter": outcomes["dead_letter"],
            "entry": self.ordinal,
        }


def _known(request_key: str, request: _Request) -> Known:
    stands = request.stands or []
    counted = [group for group in stands if group.request_count > 0]
    return Known(
        request_key,
        request.entry_id,
        request.last_entry_id,
        request.occurred_at,
        request.rank,
        stands,
        request.parts,
        counted[0] if counted else request.main,
    )


def _is_lower(said: Quantities, stood: Quantities) -> bool:
    """Say whether less was used: less input or output in all, or less of anything that is no token."""
    if input_tokens(said) < input_tokens(stood) or output_tokens(said) < output_tokens(stood):
        return True
    tokens = INPUT_TOKEN_METERS | OUTPUT_TOKEN_METERS
    return any(said.get(meter, 0) < count for meter, count in stood.items() if meter not in tokens)


async def post(connection: Connection, held: Claim, batch: Batch, books: Books, *, keep: bool = True) -> Posted:
    """Post a batch in one transaction and return what became of each event; without `keep`, try and roll back.

    Errors: `Fenced` when the feed was claimed by another writer or moved on; `StaleBooks` when the batch must be made
    again; psycopg errors as they come, with nothing written; `CommitUnknown` when the connection broke at the commit.
    """
    while True:
        missing = Missing()
        try:
            return await _post_once(connection, held, batch, books, missing, keep)
        except _IdsMissing:
            await ensure_ids(connection, books, missing.rate_sets, missing.subjects)


class _IdsMissing(Exception):
    """A price of another instant was needed, whose rate set has no id yet."""


async def _post_once(
    connection: Connection, held: Claim, batch: Batch, books: Books, missing: Missing, keep: bool
) -> Posted:
    is_ending = False
    await connection.execute("begin")
    try:
        writing, number, previous = await _open(connection, held, batch, books)
        writing.missing = missing
        writing.take_all()
        if missing:
            raise _IdsMissing
        failpoints.hit("post.before_keys")
        await _write_around(connection, writing)
        sealed = {period: _Sealed.of([line.encode() for line in lines]) for period, lines in writing.lines.items()}
        windows = await _write_windows(connection, writing)
        batch_hash = chain.batch_hash(
            feed=held.name,
            number=number,
            previous_hash=previous,
            first_position=batch.first_position,
            next_position=batch.next_position,
            counts=writing.counts,
            digests={period: rows.digest for period, rows in sealed.items()},
            windows=windows,
        )
        posted = Posted(writing.batch_id, number, batch_hash, writing.results, writing.ordinal, batch.next_position)
        await _write_batch(connection, held, batch, writing, posted, previous, sealed, windows)
        if batch.and_then is not None:
            await batch.and_then(connection, posted)
        failpoints.hit("post.before_entries")
        if sealed:
            # Windows are locked by the end of the rows, and the commit goes with it.
            copying = copy_and_commit(connection, COPY_ENTRIES) if keep else connection.cursor().copy(COPY_ENTRIES)
            async with copying as copy:
                for rows in sealed.values():
                    await copy.write(rows.lines)
                failpoints.hit("post.before_commit")
                is_ending = keep
        elif keep:
            failpoints.hit("post.before_commit")
            is_ending = True
            await connection.execute("commit")
        if not keep:
            await connection.execute("rollback")
            return posted
    except BaseException as error:
        if is_ending and connection.closed and isinstance(error, psycopg.Error):
            raise CommitUnknown(held.feed_id, number, batch_hash, posted) from error
        # A broken connection has rolled back by itself, and the first error is the one to tell.
        with contextlib.suppress(psycopg.Error):
            if not connection.closed:
                await connection.execute("rollback")
        if isinstance(error, psycopg.errors.CheckViolation) and error.diag.constraint_name is None:
            # No check of ours: there is no partition for the row.
            found = _MONTH.search(error.diag.message_detail or "")
            raise MonthMissing(found[1] if found else "a month") from error
        raise
    failpoints.hit("post.after_commit")
    if batch.next_position is not None:
        held.next_position = batch.next_position
    return posted


_MONTH: Final = re.compile(r"\((\d{4}-\d\d)-\d\d\)")
"""In the detail of Postgres, whatever its language: the key of the row that no partition takes."""

COPY_ENTRIES: Final = f"copy ledger.entries ({', '.join(COLUMNS)}) from stdin"


def _array(values: Sequence[str]) -> str:
    return "{" + ",".join(values) + "}"


async def _open(connection: Connection, held: Claim, batch: Batch, books: Books) -> tuple[_Writing, int, bytes]:
    """Lock, in order, the feed, the calendar and the requests; read the clock, the versions and the keys."""
    # The shared lock is taken before the statement that reads clock and versions takes its snapshot.
    cursor = await connection.execute(
        "select epoch, next_position, last_number, last_hash, pg_advisory_xact_lock_shared(%s)"
        " from (select * from ledger.feeds where feed_id = %s for update) as f",
        [CALENDAR_LOCK, held.feed_id],
    )
    feed = await cursor.fetchone()
    if feed is None or feed[0] != held.epoch:
        raise Fenced(held.name, held.epoch, -1 if feed is None else feed[0])
    if batch.expected_position is not None and feed[1] != batch.expected_position:
        raise Fenced(held.name, batch.expected_position, feed[1])
    cursor = await connection.execute(
        "select clock_timestamp(), calendar, parties, prices,"
        " nextval(pg_get_serial_sequence('ledger.batches', 'batch_id')) from ledger.versions"
    )
    clock = await cursor.fetchone()
    assert clock is not None
    if clock[1:4] != batch.versions:
        raise StaleBooks(f"the batch was made with versions {batch.versions}, now they are {clock[1:4]}")
    writing = await _begin(connection, batch, books, clock[4], micros(clock[0]), "for update")
    await _read_standing(connection, writing)
    if batch.once_locked is not None:
        await batch.once_locked(connection)
    return writing, feed[2] + 1, feed[3]


async def _begin(
    connection: Connection,
    batch: Batch,
    books: Books,
    batch_id: int,
    recorded_at: int,
    lock: Literal["for update", ""],
) -> _Writing:
    """Read the keys and the requests that a batch speaks of, and those of its fees that were taken back."""
    event_keys, request_keys, fee_keys, windows = _keys_of(batch)
    cursor = await connection.execute(
        "select key::text, content_hash::text from ledger.event_keys where key = any(%s::uuid[])", [_array(event_keys)]
    )
    keys: dict[str, str] = dict(await cursor.fetchall())
    writing = _Writing(books=books, batch=batch, batch_id=batch_id, recorded_at=recorded_at, keys=keys, requests={})
    wanted = "key = any(%(requests)s::uuid[])"
    booked = [key for key in fee_keys if key in keys]
    if booked:
        # The key of a fee is that of its request; nearly all were booked once and stand.
        wanted = f"{wanted} or key = any(%(fees)s::uuid[]) and rank[1] < 0"
    cursor = await connection.execute(
        "select key::text, rank, posting_period, entry_id, entry_count, occurred_at, best_event_key::text, counted"
        f" from ledger.requests where {wanted} order by key {lock}",
        {"requests": _array(request_keys), "fees": _array(booked)},
    )
    for key, rank, period, entry_id, entry_count, occurred_at, best, counted in await cursor.fetchall():
        writing.requests[key] = _Request(
            tuple(rank), period, entry_id, entry_count, micros(occurred_at), best, False, counted=counted
        )
    if windows:
        if lock:
            await lock_nodes(connection, windows)
        writing.spans = await read_spans(connection, windows)
    return writing


def _keys_of(batch: Batch) -> tuple[list[str], list[str], list[str], list[Window]]:
    """Return the keys of events, of requests and of fees, and windows of nodes; keys of fees are among the first too."""
    events, requests, fees, windows = [], [], [], []
    for item in batch.items:
        if isinstance(item, Priced):
            events.append(item.statement.event_key)
            for fee in item.fees:
                events.append(fee.statement.event_key)
                fees.append(fee.statement.event_key)
            if item.statement.request_key is not None:
                requests.append(item.statement.request_key)
        elif isinstance(item, Window):
            events.append(item.event_key)
            windows.append(item)
        elif isinstance(item, Correction):
            events += item.fee_keys
            fees += item.fee_keys
            if item.event_key is not None:
                events.append(item.event_key)
            requests.append(item.request_key)
    return events, requests, fees, windows


async def _read_standing(connection: Connection, writing: _Writing) -> None:
    """Read what stands for the requests that a new statement of the batch beats or differs from, or that it corrects.

    Of a retired month nothing can be read; whoever comes to such a request is refused.
    """
    beaten: dict[int, _Request] = {}
    retired = writing.books.calendar.retired
    for item in writing.batch.items:
        if isinstance(item, Correction) and item.request_key in writing.requests:
            corrected = writing.requests[item.request_key]
            if corrected.posting_period not in retired:
                beaten[corrected.entry_id] = corrected
        elif isinstance(item, Priced):
            statement = item.statement
            request = writing.requests.get(statement.request_key or "")
            if (
                request is not None
                and request.posting_period not in retired
                and not request.is_standing_known
                and not is_taken_back(request.rank)
                and statement.event_key not in writing.keys
                and (statement.rank > request.rank or request.may_differ(statement, item.entries))
            ):
                beaten[request.entry_id] = request
    if not beaten:
        return
    await _read_stands(connection, beaten)


async def _read_stands(connection: Connection, requests: dict[int, _Request]) -> None:
    """Read what stands for requests, by the ids of their first rows."""
    groups: dict[int, list[Standing]] = {entry_id: [] for entry_id in requests}
    wanted = [Rows.of(request) for request in requests.values()]
    counted: dict[int, int] = {}
    for request in requests.values():
        request.parts = []
    async for first_entry_id, entry_id, kind, group in standing_rows(connection, wanted):
        groups[first_entry_id].append(group)
        request = requests[first_entry_id]
        request.last_entry_id = max(request.last_entry_id, entry_id)
        if kind not in ("usage", "fee", "repricing"):
            request.parts = None
        elif kind != "repricing" and request.parts is not None:
            request.parts.append(group)
        # Of a request of which nothing stands, the newest row that counted it still says what it was.
        newest = entry_id if group.request_count > 0 else -1
        if request.main is None or newest > counted.get(first_entry_id, -1):
            request.main, counted[first_entry_id] = group, newest
    for entry_id, request in requests.items():
        request.stands = fold(groups[entry_id])


async def read_known(connection: Connection, request_keys: Sequence[str]) -> list[Known]:
    """Read what the ledger knows of requests, without locking them: for previews. Errors: RequestRetired."""
    cursor = await connection.execute(
        "select key::text, rank, posting_period, entry_id, entry_count, occurred_at, best_event_key::text"
        " from ledger.requests where key = any(%s::uuid[]) order by key",
        [_array(request_keys)],
    )
    requests = {}
    keys = {}
    for key, rank, period, entry_id, entry_count, occurred_at, best in await cursor.fetchall():
        requests[entry_id] = _Request(tuple(rank), period, entry_id, entry_count, micros(occurred_at), best, False)
        keys[entry_id] = key
    cursor = await connection.execute("select posting_period from ledger.retired_months")
    retired = {row[0] for row in await cursor.fetchall()}
    for entry_id, request in requests.items():
        if request.posting_period in retired:
            raise RequestRetired(keys[entry_id], request.posting_period)
    await _read_stands(connection, requests)
    return [_known(keys[entry_id], request) for entry_id, request in requests.items()]


class Rows(NamedTuple):
    """Where the rows of a request are: its first ones, and, from the month in which it occurred on, what corrects them."""

    posting_period: date
    entry_id: int
    entry_count: int
    occurred_at: int

    @classmethod
    def of(cls, request: "_Request") -> "Rows":
        return cls(request.posting_period, request.entry_id, request.entry_count, request.occurred_at)


# `offset 0` keeps each look-up a look-up by index. As a plain join, a partition without statistics yet (the first minutes
# of a month) is read whole and each of its rows held against each request: seconds for a batch, and growing.
# A correction is posted in no month before the one in which the request occurred, twelve hours behind UTC at the earliest:
# partitions before it are not looked into, however many there are.
ROWS_OF_REQUESTS: Final = """
with wanted as (
    select * from unnest(%(periods)s::date[], %(firsts)s::bigint[], %(counts)s::int[], %(months)s::date[])
        as w (posting_period, first_id, entry_count, first_month)
),
rows as (
    select w.first_id, e.*
    from wanted as w
    cross join lateral (
        select *
        from ledger.entries
        where posting_period = w.posting_period and entry_id >= w.first_id and entry_id < w.first_id + w.entry_count
        offset 0
    ) as e
    union all
    select w.first_id, e.*
    from wanted as w
    cross join lateral (
        select *
        from ledger.entries
        where posting_period >= w.first_month and corrects_entry_id = w.first_id
        offset 0
    ) as e
)
"""
STANDING: Final = f"""
{ROWS_OF_REQUESTS}
select
    first_id, entry_id,
    case when kind = 'adjustment' and reported ? 'run' then 'repricing' else kind end,
    {", ".join(DIMENSIONS)}, local_date, subject_id::text, tags::text, attempt, cost_currency, cost_rate_set_id,
    charge_currency, charge_rate_set_id, usage_flags, unpriced_meters, request_count, {", ".join(COLUMN_METERS)},
    other_quantities, avoided_tokens, cost_amount, charge_amount
from rows
"""


def first_month(occurred_at: int) -> date:
    """Return the earliest month that a row of a request may be posted in, whoever's month it is."""
    return from_micros(occurred_at - _FARTHEST_BEHIND).date().replace(day=1)


_FARTHEST_BEHIND: Final = 12 * 3600 * 1_000_000
"""Microseconds by which the last zone is behind UTC."""


def asked(wanted: Sequence[Rows]) -> dict[str, list[Any]]:
    """Return the parameters of ROWS_OF_REQUESTS."""
    return {
        "periods": [rows.posting_period for rows in wanted],
        "firsts": [rows.entry_id for rows in wanted],
        "counts": [rows.entry_count for rows in wanted],
        "months": [first_month(rows.occurred_at) for rows in wanted],
    }


async def standing_rows(
    connection: Connection, wanted: Sequence[Rows]
) -> AsyncIterator[tuple[int, int, str, Standing]]:
    """Yield rows of requests as (first entry id, entry id, kind, group to fold).

    The kind of an adjustment that only corrected a price is `repricing`.
    """
    cursor = await connection.execute(STANDING, asked(wanted))
    width = len(DIMENSIONS)
    for first_id, entry_id, kind, *values in await cursor.fetchall():
        dimensions, rest = tuple(values[:width]), values[width:]
        day, subject_id, tags, attempt, cost_currency, cost_set, charge_currency, charge_set = rest[:8]
        flags, unpriced, request_count, *counts = rest[8:]
        others, avoided, cost, charge = counts[len(COLUMN_METERS) :]
        columns = counts[: len(COLUMN_METERS)]
        quantities = None
        if columns[0] is not None:
            quantities = {name: count for name, count in zip(COLUMN_METERS, columns, strict=True) if count}
            quantities.update(others or {})
        yield (
            first_id,
            entry_id,
            kind,
            Standing(
                grain=(
                    dimensions, day, subject_id, tags, attempt, cost_currency, cost_set, charge_currency, charge_set,
                    tuple(flags), tuple(unpriced),
                ),
                request_count=request_count,
                quantities=quantities,
                avoided_tokens=avoided,
                cost_amount=cost,
                charge_amount=charge,
            ),
        )  # fmt: skip


# --- Without writing --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Rehearsal:
    """What batches that are posted one after another would know of each other: kept in memory, nothing is written."""

    repeated: frozenset[str]
    """Keys of events and requests of which the batches speak more than once: only these are remembered, and fees."""
    batch_id: int = 2**40
    """Beyond all that a database gives in its life, so that rows are told from those that are there."""
    keys: dict[str, str] = field(default_factory=dict)
    requests: dict[str, _Request] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """What became of each event of a batch, and the COPY lines of the entries that it would have made."""

    results: list[Result]
    lines: bytes


async def rehearse(connection: Connection, batch: Batch, books: Books, rehearsal: Rehearsal) -> Rehearsed:
    """Decide a batch as `post` would after those rehearsed before, without a lock and without writing.

    The rows are exactly those that `post` would copy, less ids, times and what others do in between. Rate sets and
    subjects without an id get one.
    """
    while True:
        cursor = await connection.execute("select clock_timestamp()")
        row = await cursor.fetchone()
        assert row is not None
        writing = await _begin(connection, batch, books, rehearsal.batch_id, micros(row[0]), "")
        _, request_keys, fee_keys, _ = _keys_of(batch)
        writing.keys.update(rehearsal.keys)
        for key in (*request_keys, *fee_keys):
            request = rehearsal.requests.get(key)
            if request is not None:
                writing.requests[key] = copy.copy(request)
        await _read_standing(connection, writing)
        writing.take_all()
        if not writing.missing:
            break
        await ensure_ids(connection, books, writing.missing.rate_sets, writing.missing.subjects)
    rehearsal.batch_id += 1
    fees = frozenset(fee_keys)
    for key in writing.new_keys:
        if key in rehearsal.repeated or key in fees:
            rehearsal.keys[key] = writing.keys[key]
    for key, request in writing.requests.items():
        # A fee that stands needs no more than its key; one that was taken back and begun anew must be known to stand.
        if key in rehearsal.repeated or (request.is_begun_anew and key in fees):
            rehearsal.requests[key] = request
    return Rehearsed(writing.results, "".join("".join(listed) for listed in writing.lines.values()).encode())


# --- Writing ----------------------------------------------------------------------------------------------------------


async def _write_around(connection: Connection, writing: _Writing) -> None:
    """Write keys, requests, dead letters and raw usage: everything but windows of nodes, the batch and the entries."""
    if writing.new_keys:
        await _copy(
            connection,
            "copy ledger.event_keys (key, content_hash, hash_version, batch_id) from stdin",
            "".join(
                [
                    f"{key}\t{writing.keys[key]}\t{CONTENT_HASH_VERSION}\t{writing.batch_id}\n"
                    for key in sorted(writing.new_keys)
                ]
            ),
        )
    new = sorted((key, request) for key, request in writing.requests.items() if request.is_new)
    if new:
        await _copy(
            connection,
            "copy ledger.requests (key, rank, posting_period, entry_id, entry_count, occurred_at, best_event_key, counted)"
            " from stdin",
            "".join([_request_line(key, request) for key, request in new]),
        )
    anew = [(key, request) for key, request in writing.requests.items() if request.is_begun_anew and not request.is_new]
    if anew:
        await connection.execute(_BEGIN_ANEW, _columns_of(anew))
    changed = [
        (key, request)
        for key, request in writing.requests.items()
        if request.is_changed and not (request.is_new or request.is_begun_anew)
    ]
    if changed:
        await connection.execute(
            "update ledger.requests as r set rank = c.rank::int[], best_event_key = c.best, counted = c.counted"
            " from unnest(%s::uuid[], %s::text[], %s::uuid[], %s::bigint[]) as c (key, rank, best, counted)"
            " where r.key = c.key",
            [
                [key for key, _ in changed],
                [f"{{{_rank_text(request.rank)}}}" for _, request in changed],
                [request.best_event_key for _, request in changed],
                [request.counted for _, request in changed],
            ],
        )
    await _write_differences(connection, writing)
    await _write_letters(connection, writing)
    await _note_released(connection, writing)
    if writing.raw:
        month = from_micros(writing.recorded_at).date().replace(day=1)
        await _copy(
            connection,
            "copy ledger.raw_usage (received_month, entry_id, flavour, parser_version, usage) from stdin",
            "".join([f"{month}\t{row}" for row in writing.raw]),
        )


@lru_cache(maxsize=4096)
def _rank_text(rank: Rank) -> str:
    return ",".join([str(number) for number in rank])


_BEGIN_ANEW: Final = """
update ledger.requests as r
set
    rank = c.rank::int[],
    posting_period = c.posting_period,
    entry_id = c.entry_id,
    entry_count = c.entry_count,
    occurred_at = c.occurred_at,
    best_event_key = c.best,
    counted = c.counted
from unnest(
    %(keys)s::uuid[], %(ranks)s::text[], %(periods)s::date[], %(entry_ids)s::bigint[], %(counts)s::int[],
    %(instants)s::timestamptz[], %(bests)s::uuid[], %(fingerprints)s::bigint[]
) as c (key, rank, posting_period, entry_id, entry_count, occurred_at, best, counted)
where r.key = c.key
"""


def _columns_of(requests: Sequence[tuple[str, _Request]]) -> dict[str, list[Any]]:
    return {
        "keys": [key for key, _ in requests],
        "ranks": [f"{{{_rank_text(request.rank)}}}" for _, request in requests],
        "periods": [request.posting_period for _, request in requests],
        "entry_ids": [request.entry_id for _, request in requests],
        "counts": [request.entry_count for _, request in requests],
        "instants": [from_micros(request.occurred_at) for _, request in requests],
        "bests": [request.best_event_key for _, request in requests],
        "fingerprints": [request.counted for _, request in requests],
    }


def _request_line(key: str, request: _Request) -> str:
    return (
        f"{key}\t{{{_rank_text(request.rank)}}}\t{request.posting_period}\t{request.entry_id}\t{request.entry_count}\t"
        f"{postgres_text(request.occurred_at)}\t{request.best_event_key}\t"
        f"{NULL if request.counted is None else request.counted}\n"
    )


async def _copy(connection: Connection, statement: str, lines: str) -> None:
    async with connection.cursor().copy(statement) as copy:
        await copy.write(lines.encode())


async def _write_differences(connection: Connection, writing: _Writing) -> None:
    if writing.differences:
        await connection.execute(_NOTE_DIFFERENCES, [jsonb_text(writing.differences)])


_NOTE_DIFFERENCES: Final = """
insert into ledger.differences (
    tenant_id, request_id, request_key, occurred_at, recorded_at, batch_id, entry_id, is_counted, stood_source, said_source,
    stood_quantities, said_quantities, stood_charge, said_charge, charge_currency, stood_cost, said_cost, cost_currency
)
select *
from jsonb_to_recordset(%s::jsonb) as d (
    tenant_id text, request_id text, request_key uuid, occurred_at timestamptz, recorded_at timestamptz, batch_id bigint,
    entry_id bigint, is_counted boolean, stood_source text, said_source text, stood_quantities jsonb, said_quantities jsonb,
    stood_charge numeric, said_charge numeric, charge_currency text, stood_cost numeric, said_cost numeric, cost_currency text
)
"""


def _decimal(amount: Decimal | None) -> str | None:
    return None if amount is None else f"{amount:f}"


async def _write_windows(connection: Connection, writing: _Writing) -> bytes | None:
    """Keep the windows of nodes and return the digest of their rows; None where there are none."""
    if not writing.windows:
        return None
    lines = window_lines(writing.windows, writing.batch_id)
    await _copy(connection, COPY_WINDOWS, lines)
    return chain.digest(lines.encode())


async def _write_letters(connection: Connection, writing: _Writing) -> None:
    """Keep what could not be posted; the same bytes from the same origin are one letter with a count of repeats.

    A repeat says what stands in the way now, and brings back bytes that have expired.
    """
    if not writing.letters:
        return
    times: Counter[tuple[str, bytes]] = Counter()
    latest: dict[tuple[str, bytes], _Letter] = {}
    for letter in writing.letters:
        key = (letter.origin, sha256(letter.body).digest())
        times[key] += 1
        latest[key] = letter
    # In order, so that two feeds that bring the same letters wait for each other and never in a ring.
    keys = sorted(latest)
    letters = [latest[key] for key in keys]
    named = [readable(letter.body) for letter in letters]
    await connection.execute(
        _KEEP_LETTERS,
        {
            "origins": [origin for origin, _ in keys],
            "hashes": [bytes_hash for _, bytes_hash in keys],
            "bodies": [letter.body for letter in letters],
            "reasons": [letter.refused.reason for letter in letters],
            "details": [letter.refused.detail for letter in letters],
            "event_keys": [letter.event_key for letter in letters],
            "first_hashes": [letter.first_hash for letter in letters],
            "second_hashes": [letter.second_hash for letter in letters],
            "positions": [letter.position for letter in letters],
            "tenants": [each.tenant_id for each in named],
            "sources": [each.source for each in named],
            "ids": [each.event_id for each in named],
            "sequences": [each.sequence for each in named],
            "repeats": [times[key] - 1 for key in keys],
            "batch_id": writing.batch_id,
            "at": from_micros(writing.recorded_at),
        },
    )


_KEEP_LETTERS: Final = """
insert into ledger.dead_letters as d (
    origin, bytes_hash, bytes, reason, detail, event_key, first_hash, second_hash, position, sent_tenant_id, source, event_id,
    sequence, repeats, batch_id, first_at, last_at
)
select n.*, %(batch_id)s, %(at)s, %(at)s
from unnest(
    %(origins)s::text[], %(hashes)s::bytea[], %(bodies)s::bytea[], %(reasons)s::text[], %(details)s::text[],
    %(event_keys)s::uuid[], %(first_hashes)s::uuid[], %(second_hashes)s::uuid[], %(positions)s::bigint[],
    %(tenants)s::text[], %(sources)s::text[], %(ids)s::text[], %(sequences)s::bigint[], %(repeats)s::bigint[]
) as n
on conflict (origin, bytes_hash) do update set
    repeats = d.repeats + 1 + excluded.repeats,
    last_at = excluded.last_at,
    bytes = coalesce(d.bytes, excluded.bytes),
    reason = excluded.reason,
    detail = excluded.detail,
    event_key = excluded.event_key,
    first_hash = excluded.first_hash,
    second_hash = excluded.second_hash
"""


async def _note_released(connection: Connection, writing: _Writing) -> None:
    """Note on the dead letters that a person released what has become of them."""
    release_of = writing.batch.release_of
    if release_of is None:
        return
    released = []
    for index, result in enumerate(writing.results):
        release = release_of(index)
        if release is not None:
            letter = writing.still_refused.get(index)
            hashes = (letter.event_key, letter.first_hash, letter.second_hash) if letter else (None, None, None)
            released.append(Released(release, result.outcome, result.reason, result.detail, *hashes))
    if released:
        await note_released(connection, released, batch_id=writing.batch_id, at=from_micros(writing.recorded_at))


async def _write_batch(
    connection: Connection,
    held: Claim,
    batch: Batch,
    writing: _Writing,
    posted: Posted,
    previous: bytes,
    sealed: Mapping[date, _Sealed],
    windows: bytes | None,
) -> None:
    counts = writing.counts
    await connection.execute(
        "insert into ledger.batches (batch_id, feed_id, number, first_position, next_position, created_count,"
        " duplicate_count, evidence_count, conflict_count, dead_letter_count, entry_count, recorded_at, previous_hash,"
        " hash, hash_version, windows_digest)"
        " values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
        [
            writing.batch_id, held.feed_id, posted.number, batch.first_position, batch.next_position, counts["created"],
            counts["duplicate"], counts["evidence"], counts["conflict"], counts["dead_letter"], counts["entry"],
            from_micros(writing.recorded_at), previous, posted.hash, chain.hash_version(windows), windows,
        ],
    )  # fmt: skip
    for period, rows in sealed.items():
        await connection.execute(
            "insert into ledger.batch_digests (batch_id, posting_period, row_count, cost_sums, charge_sums, digest, row_marks)"
            " values (%s, %s, %s, %s::jsonb, %s::jsonb, %s, %s)",
            [
                writing.batch_id, period, len(writing.lines[period]),
                _sums(cost for cost, _ in writing.amounts[period]),
                _sums(charge for _, charge in writing.amounts[period]), rows.digest, rows.marks,
            ],
        )  # fmt: skip
    await connection.execute(
        "update ledger.feeds set next_position = coalesce(%s, next_position + 1), last_number = %s, last_hash = %s,"
        " posted_until = coalesce(%s, posted_until) where feed_id = %s",
        [
            batch.next_position, posted.number, posted.hash,
            None if batch.posted_until is None else from_micros(batch.posted_until), held.feed_id,
        ],
    )  # fmt: skip


def _sums(moneys: Iterable[Money]) -> str:
    """Return amounts by currency, as jsonb text of decimal strings."""
    sums: dict[str, Decimal] = {}
    for money in moneys:
        if money.amount is not None and money.currency is not None:
            sums[money.currency] = EXACT.add(sums.get(money.currency, _ZERO), money.amount)
    return jsonb_text({currency: f"{amount:f}" for currency, amount in sums.items()})
