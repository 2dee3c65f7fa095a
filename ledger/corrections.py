"""Corrections: what a person changes about a request, by the rule by which everything else changes it.

Each names what it corrects, and has a reason, an actor, an id that is taken once, and, where the settings ask for one, a
second person. It is decided inside the posting transaction with the request's row locked, enters the earliest open period
and keeps `occurred_at`; who did it and why is written in the same transaction as its rows.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, Literal, NoReturn

import msgspec
import psycopg
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from ledger.approvals import Approved, Awaiting, ask, use
from ledger.billing_rules import fee_key
from ledger.books import Books, ensure_ids, load_books
from ledger.database import Connection, record_act, remedy_for
from ledger.entries import Entry, Money, Standing, jsonb_text, standing, tail
from ledger.errors import ActRefused, Fenced, StaleBooks, Unknown
from ledger.feeds import claim
from ledger.keys import digest_uuid, key, request_key
from ledger.meters import METERS, Quantities, input_tokens, output_tokens
from ledger.money import EXACT
from ledger.posting import (
    Batch,
    Correction,
    Known,
    Missing,
    Posted,
    Priced,
    fees_of,
    post,
    price_statement,
    read_known,
)
from ledger.statements import AMOUNT_STATED, DIMENSIONS, Part, Statement
from ledger.times import from_micros
from ledger.true_ups import fold, reported, reversal, true_up

CORRECTION: Final = b"correction"
"""Kind of the keys under which corrections are made, once for ever."""
FEED: Final = "commands:corrections"
ID_MAX: Final = 200
REASON_MAX: Final = 2_000
COUNT_MAX: Final = 10**15
AMOUNT_MAX: Final = Decimal(10) ** 12
PLACES_MAX: Final = 20
_TRIES: Final = 8
_PLACE: Final = {name: number for number, name in enumerate(DIMENSIONS)}

Book = Literal["cost", "charge"]
Kind = Literal["reverse", "adjust", "accept", "refuse"]
BOOKS: Final[tuple[Book, ...]] = ("cost", "charge")


# --- What is asked for ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Request:
    """A request, by the names that its reports give it."""

    tenant_id: str
    """As sent."""
    request_id: str

    @property
    def key(self) -> str:
        return request_key(self.tenant_id, self.request_id)

    @property
    def name(self) -> str:
        return f"request {self.request_id!r} of tenant {self.tenant_id!r}"


@dataclass(frozen=True, slots=True)
class Fee:
    """The fee of a logical request in one book."""

    tenant_id: str
    """As sent."""
    operation_id: str
    """Or the request, where the gateway named no operation."""
    book: Book = "charge"

    @property
    def key(self) -> str:
        return fee_key(self.tenant_id, self.book, self.operation_id)

    @property
    def name(self) -> str:
        return f"{self.book} fee of operation {self.operation_id!r} of tenant {self.tenant_id!r}"


@dataclass(frozen=True, slots=True)
class Reverse:
    """Negate everything that stands."""

    of: Request | Fee


@dataclass(frozen=True, slots=True)
class Counts:
    """State the counts of a request: all of them, in the place of whatever was reported or stated before."""

    of: Request
    quantities: Quantities
    """By meter; one that is left out was not used."""


@dataclass(frozen=True, slots=True)
class Difference:
    """State a difference in money, beside what the reports say: it stays whatever is reported later."""

    of: Request
    charge: Decimal | None = None
    """In the tenant's currency; negative in the tenant's favour."""
    cost: Decimal | None = None
    """In the currency of the cost that stands."""


@dataclass(frozen=True, slots=True)
class Report:
    """Let a report that was kept as evidence count: a proposal, or any other."""

    entry_id: int


@dataclass(frozen=True, slots=True)
class Content:
    """Let the second content of a conflict count."""

    dead_letter_id: int
    statement: Statement
    """What its bytes say: reading them is not the ledger's."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A correction as a person asks for it."""

    change: Reverse | Counts | Difference | Report | Content
    correction_id: str | None = None
    """The caller's own, unique for the tenant: repeating it does nothing. Left out, it is made of what is asked for, and,
    where that only makes sense for what stands now, of the newest row of the request."""


# --- What it does -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Effect:
    """What a correction moves in one book and currency, or of one count."""

    what: str
    """cost, charge, requests, input_tokens or output_tokens."""
    currency: str | None
    before: Decimal
    after: Decimal

    @property
    def difference(self) -> Decimal:
        return EXACT.subtract(self.after, self.before)


@dataclass(frozen=True, slots=True)
class CorrectionRecord:
    """A correction that was made."""

    correction_no: int
    correction_id: str
    kind: Kind
    tenant_id: str
    sent_tenant_id: str
    request_id: str | None
    request_key: str | None
    detail: Mapping[str, Any]
    effects: Sequence[Mapping[str, Any]]
    entry_count: int
    batch_id: int | None
    evidence_entry_id: int | None
    dead_letter_id: int | None
    at: datetime
    actor: str
    reason: str
    second_person: str | None


@dataclass(frozen=True, slots=True)
class Corrected:
    """A correction that stands."""

    record: CorrectionRecord
    is_repeat: bool
    """It had been made before under the same id, with the same content: nothing was done now."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A correction made ready: what it would do now, and what the posting transaction decides it with."""

    kind: Kind
    name: str
    sent_tenant_id: str
    request_id: str | None
    request_key: str | None
    correction_id: str
    event_key: str
    content_hash: str
    detail: Mapping[str, Any]
    known: Known | None
    rows: Sequence[Entry]
    """What it would write as of now."""
    rows_for: "EntriesFor"
    fees_for: Callable[[Books, Known | None, Missing, "Said"], Sequence[Priced]] | None = None
    new: Callable[[Books, Missing, "Said"], Priced] | None = None
    """Set where the request is not there yet: a conflict whose second content speaks of another one."""
    is_statement: bool = True
    evidence_entry_id: int | None = None
    dead_letter_id: int | None = None

    @property
    def act(self) -> str:
        """What it is called among acts."""
        return f"corrections.{self.kind}"

    @property
    def effects(self) -> list[Effect]:
        """What it would move."""
        return effects_of([] if self.known is None else self.known.stands, self.rows)


@dataclass(frozen=True, slots=True)
class Said:
    """Who corrects, why, and under which key."""

    event_key: str
    content_hash: str
    reason: str
    actor: str


EntriesFor = Callable[[Books, Known, Missing, Said], list[Entry]]
"""Returns rows, from what stands of a locked request and from the newest prices."""


def effects_of(stands: Sequence[Standing], rows: Sequence[Entry]) -> list[Effect]:
    """Return what rows move, beside what stood: by book and currency, and of requests and tokens."""
    sums: dict[tuple[str, str | None], list[Decimal]] = {}
    """[what stood, what moves]"""

    def add(place: int, group: Standing) -> None:
        cost_currency, charge_currency = group.grain[5], group.grain[7]
        quantities = group.quantities or {}
        for what, currency, amount in (
            ("charge", charge_currency, group.charge_amount),
            ("cost", cost_currency, group.cost_amount),
            ("requests", None, Decimal(group.request_count)),
            ("input_tokens", None, Decimal(input_tokens(quantities))),
            ("output_tokens", None, Decimal(output_tokens(quantities))),
        ):
            if amount is not None:
                listed = sums.setdefault((what, currency), [Decimal(0), Decimal(0)])
                listed[place] = EXACT.add(listed[place], amount)

    for group in stands:
        add(0, group)
    for row in rows:
        add(1, standing(row))
    order = ("charge", "cost", "requests", "input_tokens", "output_tokens")
    return [
        Effect(what, currency, before, EXACT.add(before, moved))
        for (what, currency), (before, moved) in sorted(
            sums.items(), key=lambda item: (order.index(item[0][0]), item[0][1] or "")
        )
        if before or moved
    ]


# --- Making it ready --------------------------------------------------------------------------------------------------


async def plan(connection: Connection, books: Books, wanted: Wanted) -> Plan:
    """Say what a correction would do now, without a lock and without writing anything.

    Errors: Unknown where there is no such request, fee or row; ActRefused where a rule forbids it or nothing would move.
    """
    change = wanted.change
    if isinstance(change, Report):
        return await _plan_report(connection, books, wanted, change)
    if isinstance(change, Content):
        return await _plan_content(connection, books, wanted, change)
    known = await _known(connection, change.of.key)
    if known is None:
        raise _unknown(change.of)
    named: dict[str, Any] = {"tenant_id": change.of.tenant_id}
    if isinstance(change.of, Request):
        named["request_id"] = change.of.request_id
    else:
        named |= {"operation_id": change.of.operation_id, "book": change.of.book}
    rows_for: EntriesFor
    if isinstance(change, Reverse):
        kind: Kind = "reverse"
        detail = named
        by_default = f"reverse {change.of.key} {known.last_entry_id}"
        rows_for = _reversal
    elif isinstance(change, Counts):
        kind = "adjust"
        _check_counts(change.quantities)
        detail = {**named, "quantities": dict(sorted(change.quantities.items()))}
        by_default = f"counts {change.of.key} {known.last_entry_id} {jsonb_text(detail['quantities'])}"
        rows_for = _counts(change.quantities)
    else:
        kind = "adjust"
        amounts = {"charge": change.charge, "cost": change.cost}
        for book, amount in amounts.items():
            _check_amount(book, amount)
        if not any(amounts.values()):
            raise ActRefused("a difference in money states a charge or a cost other than zero")
        stated = {f"{book}_difference": _digits(amount) for book, amount in amounts.items() if amount is not None}
        detail = {**named, **stated}
        by_default = f"difference {change.of.key} {jsonb_text(stated)}"
        rows_for = _difference(change)
    correction_id = _id(wanted, by_default)
    made = Plan(
        kind=kind,
        name=change.of.name,
        sent_tenant_id=change.of.tenant_id,
        request_id=change.of.request_id if isinstance(change.of, Request) else None,
        request_key=change.of.key,
        correction_id=correction_id,
        event_key=key(CORRECTION, change.of.tenant_id, "", correction_id),
        content_hash=digest_uuid(f"{kind} {jsonb_text(detail)}".encode()),
        detail=detail,
        known=known,
        rows=(),
        rows_for=rows_for,
        is_statement=not isinstance(change, Difference),
    )
    return _with_rows(books, made)


def _unknown(of: Request | Fee) -> Unknown:
    if isinstance(of, Request):
        return Unknown("request", f"{of.request_id} of tenant {of.tenant_id}")
    return Unknown(f"{of.book} fee", f"{of.operation_id} of tenant {of.tenant_id}")


def _id(wanted: Wanted, by_default: str) -> str:
    if wanted.correction_id is None:
        return f"by-content:{digest_uuid(by_default.encode())}"
    text = wanted.correction_id
    if not text.strip() or len(text) > ID_MAX or not text.isprintable():
        raise ActRefused(f"id: must be a printable text of at most {ID_MAX} characters")
    if text.startswith("by-content:"):
        raise ActRefused("id: must not begin with by-content:, which is ours")
    return text


def _check_counts(quantities: Quantities) -> None:
    for meter, count in quantities.items():
        if meter not in METERS:
            raise ActRefused(f"quantities: {meter!r} is no meter")
        if not 0 <= count <= COUNT_MAX:
            raise ActRefused(f"quantities: {meter} must be between 0 and {COUNT_MAX}")


def _check_amount(book: str, amount: Decimal | None) -> None:
    if amount is None:
        return
    if not amount.is_finite() or abs(amount) > AMOUNT_MAX:
        raise ActRefused(f"{book}: must be a number of at most {AMOUNT_MAX:f}")
    exponent = amount.as_tuple().exponent
    if isinstance(exponent, int) and -exponent > PLACES_MAX:
        raise ActRefused(f"{book}: has more than {PLACES_MAX} decimal places")


def _digits(amount: Decimal) -> str:
    return f"{amount.normalize(EXACT):f}"


async def _known(connection: Connection, wanted: str) -> Known | None:
    found = await read_known(connection, [wanted])
    return found[0] if found else None


_NOBODY: Final = Said("", "", "", "")


def _with_rows(books: Books, made: Plan) -> Plan:
    """Return a plan with what it would write now; raises what the rule of the correction refuses."""
    if made.known is not None:
        return replace(made, rows=made.rows_for(books, made.known, Missing(), _NOBODY))
    assert made.new is not None, "what is not there is new"
    return replace(made, rows=made.new(books, Missing(), _NOBODY).entries)


def _main(known: Known) -> Standing:
    if known.main is None:
        raise Unknown("rows of request", known.request_key)
    return known.main


def _next(decision: int) -> int:
    """Return the rank of the next decision of a person: above the last one, and above a request that was taken back."""
    return max(decision, 0) + 1


def _head(known: Known, said: Said, dimensions: tuple[str | None, ...], **other: Any) -> Statement:
    """Return who, when and what for of a correction: by a person's decision, and otherwise ranked as what it corrects."""
    decision, has_usage, is_final, is_reported, source_rank, revision = known.rank
    values: dict[str, Any] = {
        "rank": (_next(decision), has_usage, is_final, is_reported, source_rank, revision),
        "is_final": bool(is_final),
        "revision": revision,
        **other,
    }
    return Statement(
        event_key=said.event_key,
        content_hash=said.content_hash,
        request_key=known.request_key,
        occurred_at=known.occurred_at,
        dimensions=dimensions,
        parts=(),
        status=dimensions[_PLACE["status"]] or "",
        **values,
    )


def _reversal(books: Books, known: Known, missing: Missing, said: Said) -> list[Entry]:
    if not known.stands:
        raise ActRefused("nothing stands that could be reversed: it was reversed or withdrawn before")
    main = _main(known)
    header = _entry(books, known, said, main, _head(known, said, main.grain[0]))
    return reversal(known.stands, header, known.entry_id)


def _entry(books: Books, known: Known, said: Said, main: Standing, statement: Statement, **other: Any) -> Entry:
    dimensions, local_day, subject_id, tags, attempt, *_ = main.grain
    values: dict[str, Any] = {
        "kind": "adjustment",
        "quantities": {},
        "cost": Money(Decimal(0), main.grain[5], None) if main.grain[5] else Money(None, None, None),
        "charge": Money(Decimal(0), main.grain[7], None),
        **other,
    }
    return Entry(
        statement=statement,
        entry_no=0,
        occurred_at=known.occurred_at,
        local_date=local_day,
        dimensions=dimensions,
        subject_id=subject_id,
        request_count=0,
        corrects_entry_id=known.entry_id,
        tags=tags,
        attempt=attempt,
        reason=said.reason,
        actor=said.actor,
        **values,
    )


def _counts(quantities: Quantities) -> EntriesFor:
    def rows_for(books: Books, known: Known, missing: Missing, said: Said) -> list[Entry]:
        stands = reported(known.stands)
        if len({group.grain[0] for group in stands}) > 1:
            raise ActRefused(
                "it has parts of several models: state a difference in money, or reverse it, since these counts would"
                " not say whose they are"
            )
        main = _main(known)
        dimensions = list(main.grain[0])
        dimensions[_PLACE["basis"]] = "reported"
        decision, _, _, _, source_rank, revision = known.rank
        counted = {meter: count for meter, count in quantities.items() if count}
        part = Part(dimensions[_PLACE["model"]], dimensions[_PLACE["reported_model"]], counted)
        statement = msgspec.structs.replace(
            _head(
                known, said, tuple(dimensions), rank=(_next(decision), 1, 1, 1, source_rank, revision), is_final=True
            ),
            parts=(part,),
        )
        (priced,) = price_statement(books, statement, known.occurred_at, "adjustment", missing)
        better = msgspec.structs.replace(
            priced,
            local_date=main.grain[1],
            subject_id=main.grain[2],
            tags=main.grain[3],
            attempt=main.grain[4],
            reason=said.reason,
            actor=said.actor,
        )
        _refuse_the_same(known, stands, [better])
        return true_up(stands, [better], known.entry_id, "adjustment")

    return rows_for


def _refuse_the_same(known: Known, stands: Sequence[Standing], better: Sequence[Entry]) -> None:
    """Refuse what a person has decided already; what only reports say may be confirmed, and then no report moves it."""
    if known.rank[0] > 0 and fold([standing(entry) for entry in better]) == fold(stands):
        raise ActRefused("what stands says the same already, by a person's decision")


def _difference(change: Difference) -> EntriesFor:
    def rows_for(books: Books, known: Known, missing: Missing, said: Said) -> list[Entry]:
        if not known.stands:
            raise ActRefused("nothing stands that a difference could be beside: it was reversed or withdrawn")
        main = _main(known)
        cost, charge = main.grain[5], main.grain[7]
        if change.cost and cost is None:
            raise ActRefused("cost: nobody knows its currency yet, since it has no price")
        if change.charge and charge is None:
            raise ActRefused("charge: nobody knows its currency yet")
        statement = _head(known, said, main.grain[0])
        amounts: dict[str, Any] = {}
        if cost is not None:
            amounts["cost"] = Money(change.cost or Decimal(0), cost, None)
        if charge is not None:
            amounts["charge"] = Money(change.charge or Decimal(0), charge, None)
        return [_entry(books, known, said, main, statement, flags=(AMOUNT_STATED,), **amounts)]

    return rows_for


# --- Reports that were kept -------------------------------------------------------------------------------------------

_CARRIED: Final = (
    "attempt", "sequence", "revision", "is_final", "reservation_open", "max_output_tokens", "delivered_output_tokens",
    "provider_calls", "latency_ms", "ttft_ms", "queue_ms", "prefill_ms", "decode_ms",
)  # fmt: skip
_ROWS_MAX: Final = 100

_EVIDENCE: Final = f"""
select
    e.entry_id, e.entry_no, e.kind, e.request_key::text, e.event_key::text, e.reported, e.usage_flags, e.tags,
    e.subject_id::text, e.raw_digest::text, {", ".join(f"e.{name}" for name in (*DIMENSIONS, *_CARRIED))}
from ledger.batch_digests as d
join ledger.entries as e on e.posting_period = d.posting_period
where
    d.batch_id = %(entry_id)s::bigint / 65536
    and e.entry_id between %(entry_id)s - {_ROWS_MAX} and %(entry_id)s + {_ROWS_MAX}
    and e.event_key = (
        select s.event_key
        from ledger.batch_digests as b
        join ledger.entries as s on s.posting_period = b.posting_period and s.entry_id = %(entry_id)s
        where b.batch_id = %(entry_id)s::bigint / 65536
    )
order by e.entry_id
"""


@dataclass(frozen=True, slots=True)
class _Kept:
    """A report as it was kept."""

    first_entry_id: int
    request_key: str
    rank: tuple[int, ...]
    dimensions: tuple[str | None, ...]
    parts: tuple[Part, ...]
    tags: Mapping[str, str] | None
    subject_id: str | None
    raw_digest: str | None
    carried: Mapping[str, Any]


async def _kept(connection: Connection, entry_id: int) -> _Kept:
    cursor = await connection.execute(_EVIDENCE, {"entry_id": entry_id})
    rows = await cursor.fetchall()
    if not rows:
        raise Unknown("entry", str(entry_id))
    if rows[0][2] != "evidence" or rows[0][3] is None:
        raise ActRefused(f"entry {entry_id} is no report that was kept beside a better one")
    parts = []
    first = rows[0]
    width = 10
    dimensions = tuple(first[width : width + len(DIMENSIONS)])
    for row in rows:
        said, flags = row[5] or {}, tuple(flag for flag in row[6] if flag != "proposed")
        named = row[width : width + len(DIMENSIONS)]
        status = named[_PLACE["status"]]
        parts.append(
            Part(
                model=named[_PLACE["model"]],
                reported_model=named[_PLACE["reported_model"]],
                quantities=said.get("quantities"),
                flags=flags,
                is_chargeable=status != "void" and "not_charged" not in flags,
                is_priceable=not any(why.endswith(":usage") for why in said.get("unpriced", ())),
                notes=said.get("notes"),
            )
        )
    if dimensions[_PLACE["status"]] != "void" and all(part.quantities is None for part in parts):
        raise ActRefused(f"entry {entry_id} has no counts that could count")
    return _Kept(
        first_entry_id=first[0],
        request_key=first[3],
        rank=tuple(first[5]["rank"]),
        dimensions=dimensions,
        parts=tuple(parts),
        tags=first[7],
        subject_id=first[8],
        raw_digest=first[9],
        carried=dict(zip(_CARRIED, first[width + len(DIMENSIONS) :], strict=True)),
    )


async def _plan_report(connection: Connection, books: Books, wanted: Wanted, change: Report) -> Plan:
    kept = await _kept(connection, change.entry_id)
    known = await _known(connection, kept.request_key)
    if known is None:
        raise Unknown("request of entry", str(change.entry_id))
    decided = await _decision_on(connection, Report(kept.first_entry_id))
    if decided is not None:
        raise ActRefused(f"entry {kept.first_entry_id} was decided on by correction {decided.correction_no}")
    sent, request_id = kept.dimensions[_PLACE["sent_tenant_id"]] or "", kept.dimensions[_PLACE["request_id"]]
    detail = {"tenant_id": sent, "request_id": request_id, "entry_id": kept.first_entry_id}
    correction_id = _id(wanted, f"accept {kept.first_entry_id}")

    def statement_for(known: Known, said: Said) -> Statement:
        return Statement(
            event_key=said.event_key,
            content_hash=said.content_hash,
            request_key=known.request_key,
            rank=(_next(known.rank[0]), *kept.rank[1:]),
            occurred_at=known.occurred_at,
            dimensions=kept.dimensions,
            parts=kept.parts,
            status=kept.dimensions[_PLACE["status"]] or "",
            tags=kept.tags,
            **kept.carried,
        )

    def entries_for(books: Books, known: Known, missing: Missing, said: Said) -> list[Entry]:
        statement = statement_for(known, said)
        return [
            msgspec.structs.replace(
                entry, subject_id=kept.subject_id, raw_digest=kept.raw_digest, reason=said.reason, actor=said.actor
            )
            for entry in price_statement(books, statement, known.occurred_at, "true_up", missing)
        ]

    made = Plan(
        kind="accept",
        name=f"entry {kept.first_entry_id} as what counts of request {request_id!r} of tenant {sent!r}",
        sent_tenant_id=sent,
        request_id=request_id,
        request_key=kept.request_key,
        correction_id=correction_id,
        event_key=key(CORRECTION, sent, "", correction_id),
        content_hash=digest_uuid(f"accept {jsonb_text(detail)}".encode()),
        detail=detail,
        known=known,
        rows=(),
        rows_for=_taking_place(entries_for),
        fees_for=_owing(entries_for),
        evidence_entry_id=kept.first_entry_id,
    )
    return _with_rows(books, made)


def _taking_place(entries_for: EntriesFor) -> EntriesFor:
    """Return the rows by which a statement takes the place of what the reports say."""

    def rows_for(books: Books, known: Known, missing: Missing, said: Said) -> list[Entry]:
        better = entries_for(books, known, missing, said)
        stands = reported(known.stands)
        _refuse_the_same(known, stands, better)
        return true_up(stands, better, known.entry_id, "true_up")

    return rows_for


def _owing(entries_for: EntriesFor) -> Callable[[Books, Known | None, Missing, Said], list[Priced]]:
    """Return the fees that a statement owes."""

    def fees_for(books: Books, known: Known | None, missing: Missing, said: Said) -> list[Priced]:
        if known is None or not books.prices.has_fees:
            return []
        entries = entries_for(books, known, missing, said)
        return _signed(fees_of(books, entries[0].statement, entries, missing), said)

    return fees_for


def _signed(fees: Sequence[Priced], said: Said) -> list[Priced]:
    signed = []
    for fee in fees:
        entries = [msgspec.structs.replace(entry, reason=said.reason, actor=said.actor) for entry in fee.entries]
        signed.append(Priced(fee.statement, entries, [tail(entry) for entry in entries]))
    return signed


# --- Conflicts --------------------------------------------------------------------------------------------------------


async def _plan_content(connection: Connection, books: Books, wanted: Wanted, change: Content) -> Plan:
    given = change.statement
    sent, request_id = given.dimensions[_PLACE["sent_tenant_id"]] or "", given.dimensions[_PLACE["request_id"]]
    known = await _known(connection, given.request_key) if given.request_key and given.claims_request else None
    correction_id = _id(wanted, f"accept letter {change.dead_letter_id} {given.content_hash}")
    detail = {
        "tenant_id": sent,
        "request_id": request_id,
        "dead_letter_id": change.dead_letter_id,
        "content_hash": given.content_hash,
    }

    def statement_for(known: Known | None, said: Said) -> Statement:
        decision = 0 if known is None else known.rank[0]
        return msgspec.structs.replace(
            given,
            event_key=said.event_key,
            content_hash=said.content_hash,
            rank=(_next(decision), *given.rank[1:]),
            # A person's word passes over the time window.
            refused_if_new=None,
        )

    def entries_for(books: Books, known: Known, missing: Missing, said: Said) -> list[Entry]:
        priced = price_statement(books, statement_for(known, said), known.occurred_at, "true_up", missing)
        return [msgspec.structs.replace(entry, reason=said.reason, actor=said.actor) for entry in priced]

    def new(books: Books, missing: Missing, said: Said) -> Priced:
        statement = statement_for(None, said)
        entries = [
            msgspec.structs.replace(entry, reason=said.reason, actor=said.actor)
            for entry in price_statement(books, statement, statement.occurred_at, "usage", missing)
        ]
        fees = _signed(fees_of(books, statement, entries, missing), said) if books.prices.has_fees else []
        return Priced(statement, entries, [tail(entry) for entry in entries], fees)

    made = Plan(
        kind="accept",
        name=f"dead letter {change.dead_letter_id} as what counts of request {request_id!r} of tenant {sent!r}",
        sent_tenant_id=sent,
        request_id=request_id,
        request_key=given.request_key,
        correction_id=correction_id,
        event_key=key(CORRECTION, sent, "", correction_id),
        content_hash=digest_uuid(f"accept {jsonb_text(detail)}".encode()),
        detail=detail,
        known=known,
        rows=(),
        rows_for=_taking_place(entries_for),
        fees_for=_owing(entries_for),
        new=new,
        dead_letter_id=change.dead_letter_id,
    )
    return _with_rows(books, made)


# --- Doing it ---------------------------------------------------------------------------------------------------------


async def correct(
    writer: Connection,
    wanted: Wanted,
    *,
    actor: str,
    reason: str,
    needed: Collection[str] = (),
    feed: str = FEED,
) -> Corrected | Awaiting:
    """Make a correction, or ask a second person for it where the settings want one; repeated, it does nothing.

    `needed` holds the acts that need a second person. Errors: as of `plan`; ActRefused for an id that was used for another
    correction, and where no period of the tenant is open; psycopg errors where the database stays away.
    """
    _check_reason(reason)
    books = await load_books(writer)
    tries = 0
    while True:
        tries += 1
        try:
            made = await _made(writer, wanted, books)
            if isinstance(made, Corrected):
                return made
            verdict = await ask(
                writer, needed, made.act, {"id": made.correction_id, **made.detail}, actor=actor, reason=reason
            )
            if isinstance(verdict, Awaiting):
                return verdict
            return await _post(writer, books, made, verdict, actor, reason, feed)
        except StaleBooks:
            books = await load_books(writer)
        except ActRefused:
            # Where another has made the same one meanwhile, it is there, and what it was made from no longer stands.
            found = await _stated_before(writer, wanted)
            if found is None:
                raise
            return found
        except (_MadeMeanwhile, Fenced):
            if tries >= _TRIES:
                raise
        except psycopg.Error as error:
            if writer.closed or remedy_for(error) != "retry" or tries >= _TRIES:
                raise
            await asyncio.sleep(2**tries / 100)


def _check_reason(reason: str) -> None:
    if not reason.strip():
        raise ActRefused("a correction needs a reason")
    if "\0" in reason or len(reason) > REASON_MAX:
        raise ActRefused(f"reason: must be a text of at most {REASON_MAX} characters, without U+0000")


class _MadeMeanwhile(Exception):
    """The same correction was made between the look and the lock."""


async def _made(writer: Connection, wanted: Wanted, books: Books) -> Corrected | Plan:
    """Return the correction that was made under this id before, or what is to be done now."""
    before = await _stated_before(writer, wanted)
    if before is not None:
        return before
    made = await plan(writer, books, wanted)
    found = await _find_by_key(writer, made.event_key)
    return made if found is None else _repeated(found, wanted)


async def _stated_before(writer: Connection, wanted: Wanted) -> Corrected | None:
    """Return the correction with the id that the caller gave, or the decision on the same report or conflict."""
    stated, tenant_id = wanted.correction_id, _tenant_of(wanted)
    if stated is not None and tenant_id is not None:
        found = await _find_by_key(writer, key(CORRECTION, tenant_id, "", stated))
        if found is not None:
            return _repeated(found, wanted)
    decided = await _decision_on(writer, wanted.change)
    if decided is not None and stated in (None, decided.correction_id) and decided.kind == "accept":
        return Corrected(decided, is_repeat=True)
    return None


def _tenant_of(wanted: Wanted) -> str | None:
    change = wanted.change
    if isinstance(change, Report):
        return None
    if isinstance(change, Content):
        return change.statement.dimensions[_PLACE["sent_tenant_id"]]
    return change.of.tenant_id


def _repeated(found: CorrectionRecord, wanted: Wanted) -> Corrected:
    if not _says(found, wanted.change):
        raise ActRefused(f"id: correction {found.correction_no} has it, and says otherwise")
    return Corrected(found, is_repeat=True)


def _says(found: CorrectionRecord, change: Reverse | Counts | Difference | Report | Content) -> bool:
    """Say whether a correction that was made is the one that is asked for."""
    detail = found.detail
    if isinstance(change, Report):
        return found.kind == "accept" and found.evidence_entry_id == change.entry_id
    if isinstance(change, Content):
        return found.kind == "accept" and found.dead_letter_id == change.dead_letter_id
    if found.request_key != change.of.key:
        return False
    if isinstance(change, Reverse):
        return found.kind == "reverse"
    if isinstance(change, Counts):
        return bool(detail.get("quantities") == dict(change.quantities))
    stated = {"charge_difference": change.charge, "cost_difference": change.cost}
    return found.kind == "adjust" and all(
        detail.get(name) == (None if amount is None else _digits(amount)) for name, amount in stated.items()
    )


async def _post(
    writer: Connection, books: Books, made: Plan, verdict: Approved, actor: str, reason: str, feed: str
) -> Corrected:
    said = Said(made.event_key, made.content_hash, reason, actor)
    missing = Missing()
    item: Correction | Priced
    moved: list[Entry] = []
    stood: list[Standing] = []
    if made.known is None:
        assert made.new is not None, "what is not there is new"
        item = made.new(books, missing, said)
        if missing:
            await ensure_ids(writer, books, missing.rate_sets, missing.subjects)
            item = made.new(books, Missing(), said)
        moved = list(item.entries)
    else:
        fees_for = made.fees_for

        def rows_for(books: Books, known: Known, missing: Missing) -> Sequence[Entry]:
            moved[:] = made.rows_for(books, known, missing, said)
            stood[:] = known.stands
            return moved

        def owed(books: Books, known: Known, missing: Missing) -> Sequence[Priced]:
            return () if fees_for is None else fees_for(books, known, missing, said)

        item = Correction(
            request_key=made.known.request_key,
            rows_for=rows_for,
            fees_for=owed,
            fee_keys=[fee.statement.event_key for fee in owed(books, made.known, Missing())],
            event_key=made.event_key,
            content_hash=made.content_hash,
            is_statement=made.is_statement,
        )
    written: list[int] = []

    async def and_then(connection: Connection, posted: Posted) -> None:
        if posted.results[0].outcome != "created":
            raise _MadeMeanwhile
        if verdict.approval_id is not None:
            await use(connection, verdict.approval_id)
        if made.dead_letter_id is not None:
            await _resolve(connection, made.dead_letter_id, actor, posted.batch_id)
        effects = effects_of(stood, moved)
        written.append(
            await _record(
                connection, made, effects, len(moved), posted.batch_id, actor, reason, verdict.second_person,
                moved[0].dimensions[0] or "",
            )
        )  # fmt: skip

    held = await claim(writer, "commands", feed)
    await post(writer, held, Batch([item], _no_period, _no_period, books.versions, and_then=and_then), books)
    found = await find(writer, written[-1])
    return Corrected(found, is_repeat=False)


def _no_period(index: int) -> NoReturn:
    raise ActRefused("the tenant has no open period to post the correction in")


async def _resolve(connection: Connection, dead_letter_id: int, actor: str, batch_id: int) -> None:
    cursor = await connection.execute(
        "update ledger.dead_letters set resolved_at = clock_timestamp(), resolution = 'accepted', resolved_by = %s,"
        " resolved_batch_id = %s where dead_letter_id = %s and resolved_at is null",
        [actor, batch_id, dead_letter_id],
    )
    if cursor.rowcount != 1:
        raise ActRefused(f"dead letter {dead_letter_id} is resolved already")


async def _record(
    connection: Connection,
    made: Plan,
    effects: Sequence[Effect],
    entry_count: int,
    batch_id: int | None,
    actor: str,
    reason: str,
    second_person: str | None,
    tenant_id: str,
) -> int:
    said = [
        {"what": each.what, "currency": each.currency, "before": f"{each.before:f}", "after": f"{each.after:f}"}
        for each in effects
    ]
    cursor = await connection.execute(
        "insert into ledger.corrections (correction_id, event_key, kind, tenant_id, sent_tenant_id, request_id, request_key,"
        " detail, effects, entry_count, batch_id, evidence_entry_id, dead_letter_id, actor, reason, second_person)"
        " values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s) returning correction_no",
        [
            made.correction_id, made.event_key, made.kind, tenant_id, made.sent_tenant_id, made.request_id,
            made.request_key, Jsonb(dict(made.detail)), Jsonb(said), entry_count, batch_id, made.evidence_entry_id,
            made.dead_letter_id, actor, reason, second_person,
        ],
    )  # fmt: skip
    row = await cursor.fetchone()
    assert row is not None
    number = int(row[0])
    detail = {"correction_no": number, **made.detail}
    await record_act(connection, actor, made.act, detail, reason, second_person)
    return number


async def refuse(
    connection: Connection, entry_id: int, *, actor: str, reason: str, needed: Collection[str] = ()
) -> Corrected | Awaiting:
    """Say for good that a proposal does not count; it stays evidence, and is no longer listed as open.

    Errors: Unknown; ActRefused where the row is no proposal, or was decided on before.
    """
    _check_reason(reason)
    async with connection.transaction():
        kept = await _kept(connection, entry_id)
        sent, request_id = kept.dimensions[_PLACE["sent_tenant_id"]] or "", kept.dimensions[_PLACE["request_id"]]
        detail = {"tenant_id": sent, "request_id": request_id, "entry_id": kept.first_entry_id}
        correction_id = f"by-content:{digest_uuid(f'refuse {kept.first_entry_id}'.encode())}"
        event_key = key(CORRECTION, sent, "", correction_id)
        # Two who decide at once wait here.
        await connection.execute("select pg_advisory_xact_lock(hashtextextended(%s, 0))", [f"proposal {entry_id}"])
        decided = await _decision_on(connection, Report(kept.first_entry_id))
        if decided is not None:
            if decided.kind == "refuse":
                return Corrected(decided, is_repeat=True)
            raise ActRefused(f"entry {kept.first_entry_id} was decided on by correction {decided.correction_no}")
        verdict = await ask(connection, needed, "corrections.refuse", detail, actor=actor, reason=reason)
        if isinstance(verdict, Awaiting):
            return verdict
        if verdict.approval_id is not None:
            await use(connection, verdict.approval_id)
        made = Plan(
            kind="refuse",
            name=f"entry {kept.first_entry_id}",
            sent_tenant_id=sent,
            request_id=request_id,
            request_key=kept.request_key,
            correction_id=correction_id,
            event_key=event_key,
            content_hash=digest_uuid(f"refuse {jsonb_text(detail)}".encode()),
            detail=detail,
            known=None,
            rows=(),
            rows_for=_reversal,
            evidence_entry_id=kept.first_entry_id,
        )
        tenant_id = kept.dimensions[0] or ""
        number = await _record(connection, made, [], 0, None, actor, reason, verdict.second_person, tenant_id)
        return Corrected(await find(connection, number), is_repeat=False)


async def _decision_on(connection: Connection, change: object) -> CorrectionRecord | None:
    """Return the correction by which a kept report, or the content of a dead letter, was decided on."""
    if isinstance(change, Report):
        column, value = "evidence_entry_id", change.entry_id
    elif isinstance(change, Content):
        column, value = "dead_letter_id", change.dead_letter_id
    else:
        return None
    async with connection.cursor(row_factory=class_row(CorrectionRecord)) as cursor:
        await cursor.execute(f"select {_COLUMNS} from ledger.corrections where {column} = %s", [value])
        return await cursor.fetchone()


# --- Reading ----------------------------------------------------------------------------------------------------------

_COLUMNS: Final = """
    correction_no, correction_id, kind, tenant_id, sent_tenant_id, request_id, request_key::text, detail, effects, entry_count,
    batch_id, evidence_entry_id, dead_letter_id, at, actor, reason, second_person
"""


async def _find_by_key(connection: Connection, event_key: str) -> CorrectionRecord | None:
    async with connection.cursor(row_factory=class_row(CorrectionRecord)) as cursor:
        await cursor.execute(f"select {_COLUMNS} from ledger.corrections where event_key = %s", [event_key])
        return await cursor.fetchone()


async def find(connection: Connection, correction_no: int) -> CorrectionRecord:
    """Return one correction. Errors: Unknown."""
    async with connection.cursor(row_factory=class_row(CorrectionRecord)) as cursor:
        await cursor.execute(f"select {_COLUMNS} from ledger.corrections where correction_no = %s", [correction_no])
        found = await cursor.fetchone()
    if found is None:
        raise Unknown("correction", str(correction_no))
    return found


async def list_corrections(
    connection: Connection,
    *,
    tenant_id: str | None = None,
    request_id: str | None = None,
    before: int | None = None,
    limit: int = 50,
) -> Sequence[CorrectionRecord]:
    """List corrections, the newest first; `before` is the number with which the page before ended."""
    async with connection.cursor(row_factory=class_row(CorrectionRecord)) as cursor:
        await cursor.execute(
            f"select {_COLUMNS} from ledger.corrections"
            " where (%(tenant_id)s::text is null or tenant_id = %(tenant_id)s)"
            " and (%(request_id)s::text is null or request_id = %(request_id)s)"
            " and (%(before)s::bigint is null or correction_no < %(before)s)"
            " order by correction_no desc limit %(limit)s",
            {"tenant_id": tenant_id, "request_id": request_id, "before": before, "limit": limit},
        )
        return await cursor.fetchall()


@dataclass(frozen=True, slots=True)
class Proposal:
    """A void or a lower count of a final report, which moves nothing until a person decides."""

    entry_id: int
    tenant_id: str
    request_id: str | None
    source: str
    status: str
    occurred_at: datetime
    recorded_at: datetime
    quantities: Mapping[str, int] | None
    charge_amount: Decimal | None
    charge_currency: str | None


async def list_proposals(
    connection: Connection, *, tenant_id: str | None = None, since: int | None = None, limit: int = 50
) -> Sequence[Proposal]:
    """List the proposals that nobody has decided on, the newest first; `since` leaves out what was recorded before."""
    async with connection.cursor(row_factory=class_row(Proposal)) as cursor:
        await cursor.execute(
            "select e.entry_id, e.tenant_id, e.request_id, e.source, e.status, e.occurred_at, e.recorded_at,"
            " e.reported -> 'quantities' as quantities, (e.reported ->> 'charge_amount')::numeric as charge_amount,"
            " e.charge_currency::text"
            " from ledger.entries as e"
            # In these words, so that the index of the proposals serves it.
            " where e.kind = 'evidence' and e.usage_flags @> '{proposed}' and e.entry_no = 0"
            " and (%(tenant_id)s::text is null or e.tenant_id = %(tenant_id)s)"
            " and (%(since)s::timestamptz is null or e.recorded_at >= %(since)s)"
            " and not exists (select from ledger.corrections as c where c.evidence_entry_id = e.entry_id)"
            " order by e.recorded_at desc, e.entry_id desc limit %(limit)s",
            {"tenant_id": tenant_id, "since": None if since is None else from_micros(since), "limit": limit},
        )
        return await cursor.fetchall()


__all__ = [
    "BOOKS", "Content", "Corrected", "CorrectionRecord", "Counts", "Difference", "Effect", "Fee", "Plan", "Proposal",
    "Report", "Request", "Reverse", "Wanted", "correct", "find", "list_corrections", "list_proposals", "plan", "refuse",
]  # fmt: skip
