"""Reservations: may a tenant's call go ahead, and what is held for it until its usage is in the ledger.

Every call here takes an array and is one statement: outside of a transaction it commits by itself. What an ask would come
to is priced before (`estimates.py`), so that SQL sees nothing but amounts; the deciding stands in sql/70_reservations.sql.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from hashlib import sha256
from operator import attrgetter
from types import NoneType
from typing import Any, ClassVar, Final, Literal

import msgspec
import psycopg
from psycopg.pq import TransactionStatus

from ledger.books import Books, ensure_ids
from ledger.database import Connection
from ledger.errors import StaleBooks
from ledger.meters import METERS, Quantities
from ledger.money import EXACT
from ledger.parties import Tenant
from ledger.rows import row
from ledger.times import from_micros, micros
from quotas.errors import AskRefused
from quotas.estimates import Basis, Reach, estimate, largest_amount, reach
from quotas.known import Amount, Fit, Known, Match, Scope, WindowKey, added, column_of, shortest, total
from quotas.remaining import Span, span

Outcome = Literal["admitted", "degraded", "refused", "conflict"]
State = Literal["held", "awaiting_entry", "settled", "voided", "expired"]
Reason = Literal["limit", "unknown_price", "missing_estimate", "conflict", "unknown_tenant", "inactive_tenant"]

ID_LENGTH_MAX: Final = 255
TTL_SECONDS_MAX: Final = 86_400
SWEEP_ROWS_MAX: Final = 1_000
HOLD_SECONDS: Final = 5
"""When to ask again where nothing but holds is in the way: they go with the calls that they are for, in seconds."""
_ATTEMPTS: Final = 5


_encode_sorted: Final = msgspec.json.Encoder(order="sorted").encode


class Ask(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """May this call go ahead? Of input, output, quantities and amounts the caller gives what it knows.

    Units: amounts in the tenant's currency (`charge`) or `cost_currency`; counts in tokens, quantities by meter.
    """

    tenant_id: str
    """As the usage event will name it: with the id, the key of the reservation."""
    reservation_id: str
    """The caller's own, made before the first try: asked again with the same content, the answer is what became of it."""
    operation_id: str | None = None
    basis: Basis = "worst_case"
    input_tokens: int | None = None
    """Counted, or for `expected` the caller's estimate."""
    output_tokens: int | None = None
    """The cap that the call is sent with, or for `expected` the caller's estimate."""
    quantities: Mapping[str, int] | None = None
    """The caller's own counts by meter, in place of the two above."""
    charge: Decimal | None = None
    cost: Decimal | None = None
    cost_currency: str | None = None
    provider: str | None = None
    provider_account: str | None = None
    deployment: str | None = None
    model: str | None = None
    """As it will be requested: an exact id or alias, as in usage events."""
    service_tier: str | None = None
    region: str | None = None
    feature: str | None = None
    route: str | None = None
    lane: str | None = None
    """`batch` may not touch what a budget reserves for the interactive lane."""
    api_key_id: str | None = None
    user_hash: str | None = None
    tags: Mapping[str, str] = {}
    ttl_seconds: int = 600
    """After so long without a word the hold may expire: longer than the call can take."""

    def __post_init__(self) -> None:
        _check(self)

    @property
    def content_hash(self) -> str:
        """What tells a repeated ask from another one under the same id."""
        # Without the dashes, which Postgres puts in where it prints it.
        return sha256(_encode_sorted(self)).hexdigest()[:32]


def _check(ask: Ask) -> None:
    """Raise AskRefused for the first rule that an ask breaks."""
    if not ask.tenant_id:
        raise AskRefused("tenant_id", "is empty")
    _check_id(ask.reservation_id)
    for name, count in (("input_tokens", ask.input_tokens), ("output_tokens", ask.output_tokens)):
        if count is not None and not 0 <= count < 2**53:
            raise AskRefused(name, f"is {count}; it takes a count that is not negative")
    check_amounts(ask)
    if not 1 <= ask.ttl_seconds <= TTL_SECONDS_MAX:
        raise AskRefused("ttl_seconds", f"is {ask.ttl_seconds}; it takes 1 to {TTL_SECONDS_MAX}")


def check_amounts(ask: Ask) -> None:
    """Raise AskRefused where quantities and amounts that are stated break a rule, or do not go together."""
    if ask.quantities is not None:
        if ask.input_tokens is not None or ask.output_tokens is not None:
            raise AskRefused("quantities", "stand beside input_tokens or output_tokens; give one or the other")
        _check_quantities(ask.quantities)
    for name, amount in (("charge", ask.charge), ("cost", ask.cost)):
        if amount is not None and (not amount.is_finite() or amount < 0):
            raise AskRefused(name, f"is {amount}; it takes an amount that is finite and not negative")
    if (ask.cost is None) != (ask.cost_currency is None):
        raise AskRefused("cost_currency", "goes with cost, and cost with it")


def _check_id(reservation_id: str) -> None:
    if not 0 < len(reservation_id) <= ID_LENGTH_MAX or "\0" in reservation_id:
        raise AskRefused("reservation_id", f"takes 1 to {ID_LENGTH_MAX} characters without a zero byte")


def _check_quantities(quantities: Quantities) -> None:
    for meter, count in quantities.items():
        if meter not in METERS:
            raise AskRefused("quantities", f"name {meter!r}, which is no meter")
        if not 0 <= count < 2**53:
            raise AskRefused(f"quantities.{meter}", f"is {count}; it takes a count that is not negative")


class Hold(msgspec.Struct, frozen=True, gc=False):
    """What is held of one budget for a reservation, in the window that was in force at the decision. Amounts are decimal text."""

    budget_id: str
    group_key: str
    window_start: date
    unit: str
    currency: str | None
    reserved: str
    """As decided; what is still held is in `held`."""
    held: str


class Tightest(msgspec.Struct, frozen=True, gc=False):
    """The budget that has the least left in proportion to what was asked of it: the first that more such calls would meet."""

    budget_id: str
    group_key: str
    unit: str
    currency: str | None
    hardness: str
    window: Span
    limit: str | None
    """What holds for this lane: without the interactive reserve for `batch`."""
    asked: str | None
    """What the call would have taken; None where nobody knows."""
    remaining: str | None
    """limit - posted - held after this decision; below zero where it was overrun."""

    @property
    def untold(self) -> "Tightest":
        """The same, for somebody who may not know what others use."""
        return msgspec.structs.replace(self, limit=None, remaining=None)


class Decision(msgspec.Struct, frozen=True, gc=False):
    """What became of an ask. Whatever is admitted or degraded is held against every budget in `holds`, or against none."""

    tenant_id: str
    reservation_id: str
    outcome: Outcome
    state: State | None = None
    """Where the reservation stands; None where none is kept, as after a refusal, which is decided anew when asked again."""
    reason: Reason | None = None
    tightest: Tightest | None = None
    """None where no budget limits, and for what is answered from an earlier decision."""
    holds: tuple[Hold, ...] = ()
    route: str | None = None
    """Degraded: where the call may go instead."""
    output_tokens_max: int | None = None
    """Degraded: the cap that the call has to be sent with."""
    retry_at: datetime | None = None
    """Refused: when asking again may be answered otherwise; None where waiting alone would never help."""
    expires_at: datetime | None = None
    decided_at: datetime | None = None
    is_replay: bool = False
    """Whether this was decided earlier, under the same id."""

    @property
    def is_admitted(self) -> bool:
        return self.outcome in ("admitted", "degraded")


class Admission(msgspec.Struct, frozen=True, gc=False):
    """Admitted as it was asked, by budgets that were known: a decision that is not written out yet."""

    tenant_id: str
    reservation_id: str
    fit: Fit
    texts: tuple[str, ...]
    """What is held of each of its budgets."""
    tightest: tuple[int, str] | None
    """Which of them, and what remains of it."""
    expires_at: datetime
    decided_at: datetime
    outcome: ClassVar[Outcome] = "admitted"
    state: ClassVar[State] = "held"
    is_admitted: ClassVar[bool] = True
    is_replay: ClassVar[bool] = False

    def written_out(self) -> Decision:
        matches = self.fit.matches
        named = None
        if self.tightest is not None:
            place, left = self.tightest
            match = matches[place]
            assert match.limit is not None, "what has no limit is not the tightest"
            window = span(match.kind, match.days, match.anchor, match.window_start, match.zone)
            named = Tightest(
                match.budget_id, match.group_key, match.unit, match.currency, match.hardness, window, match.limit,
                self.texts[place], left,
            )  # fmt: skip
        holds = [
            Hold(match.budget_id, match.group_key, match.window_start, match.unit, match.currency, text, text)
            for match, text in zip(matches, self.texts, strict=True)
        ]
        return Decision(
            self.tenant_id, self.reservation_id, "admitted", "held", None, named, tuple(holds), None, None, None,
            self.expires_at, self.decided_at,
        )  # fmt: skip


Decided = Decision | Admission


class Reservation(msgspec.Struct, frozen=True, gc=False):
    """A reservation as it stands."""

    tenant_id: str
    reservation_id: str
    state: State
    operation_id: str | None
    basis: str
    route: str | None
    lane: str | None
    input_tokens: int | None
    output_tokens: int | None
    step: Mapping[str, Any] | None
    """The step down that it was admitted by: where the call may go instead, and with which cap."""
    decided_at: datetime
    expires_at: datetime
    ended_at: datetime | None
    """When the call was said to have ended, or when the hold went."""
    holds: tuple[Hold, ...]


class Settlement(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The call has ended, and its usage will come as an event: what is held stays, or as much of it as is stated here."""

    tenant_id: str
    reservation_id: str
    input_tokens: int | None = None
    output_tokens: int | None = None
    charge: Decimal | None = None
    cost: Decimal | None = None

    def __post_init__(self) -> None:
        _check_id(self.reservation_id)
        for name, amount in (("charge", self.charge), ("cost", self.cost)):
            if amount is not None and (not amount.is_finite() or amount < 0):
                raise AskRefused(name, f"is {amount}; it takes an amount that is finite and not negative")
        for name, count in (("input_tokens", self.input_tokens), ("output_tokens", self.output_tokens)):
            if count is not None and not 0 <= count < 2**53:
                raise AskRefused(name, f"is {count}; it takes a count that is not negative")


class Change(msgspec.Struct, frozen=True, gc=False):
    """What became of a wish to settle, void or extend: where the reservation stands now, and whether this moved it."""

    tenant_id: str
    reservation_id: str
    state: State | None
    """None: there is no such reservation."""
    is_changed: bool
    expires_at: datetime | None = None
    holds: tuple[Hold, ...] = ()


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep did: how many holds it let go, and up to when the feeds are posted; without that nothing expires."""

    expired_count: int
    watermark: datetime | None


Key = tuple[str, str]
"""(tenant as the ask named it, reservation id)."""


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
    table = _Table(books, now)
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
    answer: _Answer | _AllFit | _NoneFits | None = None
    is_alone = connection.info.transaction_status == TransactionStatus.IDLE
    if known is not None and is_alone and not is_booking:
        answer = await _decide_known(connection, table, known, books, at, now)
    if answer is None:
        answer = await _decide(connection, table, at, is_booking)
        if known is not None:
            answer.teach(known, table.scopes, books)
    if not refused and isinstance(answer, _AllFit | _NoneFits):
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


_shape_of: Final = attrgetter(
    "tenant_id", "provider", "provider_account", "deployment", "model", "service_tier", "region", "basis", "ttl_seconds",
    "feature", "route", "lane", "api_key_id", "user_hash",
)  # fmt: skip


class _Table:
    """Asks as columns, and the few scopes that they are in."""

    def __init__(self, books: Books, now: int) -> None:
        self._books = books
        self._now = now
        self._scopes: dict[Scope, int] = {}
        self._shapes: dict[tuple[Any, ...], tuple[Reach, Scope, dict[Any, int]]] = {}
        self.rows: list[tuple[Any, ...]] = []

    def add(self, ask: Ask, payer: Tenant) -> int:
        """Price an ask and take it in; return its place."""
        shape = _shape_of(ask)
        if ask.tags:
            shape = (*shape, *ask.tags.items())
        until = self._now + ask.ttl_seconds * 1_000_000
        known = self._shapes.get(shape)
        if known is None:
            known = self._shapes[shape] = (*self._shape(ask, payer, until), {})
        reached, scope, numbers = known
        rates = reached.rates
        into, out = ask.input_tokens, ask.output_tokens
        charge, cost = ask.charge, ask.cost
        reads: int | None = 0
        is_given = True
        if (
            rates[0] is not None
            and rates[1] is not None
            and into is not None
            and out is not None
            and charge is None
            and cost is None
            and ask.quantities is None
        ):
            # What nearly every ask says, and nothing of it has to be looked up.
            cost, charge = largest_amount(rates[0], into, out), largest_amount(rates[1], into, out)
            currencies: tuple[str | None, str | None] = reached.currency, reached.cost_currency
        else:
            estimated = estimate(self._books, payer, ask, self._now, until, reached)
            currencies = estimated.charge_currency, estimated.cost_currency
            charge, cost = estimated.charge, estimated.cost
            into, out, reads = estimated.input_tokens, estimated.output_tokens, estimated.cache_read_tokens
            is_given = estimated.is_given
        number = numbers.get(currencies)
        if number is None:
            number = numbers[currencies] = self._scopes.setdefault((*scope, *currencies), len(self._scopes) + 1)
        self.rows.append(
            (
                number, ask.tenant_id, ask.reservation_id, ask.content_hash, ask.operation_id, ask.basis, is_given, charge,
                cost, into, out, reads, ask.ttl_seconds,
            )
        )  # fmt: skip
        return len(self.rows) - 1

    def _shape(self, ask: Ask, payer: Tenant, until: int) -> tuple[Reach, Scope]:
        """Return what is the same for all asks that say the same of their calls but for counts and amounts."""
        reached = reach(self._books, payer, ask, self._now, until)
        scope = (
            payer.tenant_id,
            ask.provider_account,
            ask.feature,
            None if reached.model is None else reached.model.model,
            ask.route,
            ask.lane,
            ask.api_key_id,
            None if ask.user_hash is None else self._books.subject_ids.get((payer.tenant_id, ask.user_hash)),
            msgspec.json.encode(ask.tags).decode() if ask.tags else None,
        )
        return reached, scope

    @property
    def is_empty(self) -> bool:
        return not self.rows

    @property
    def scopes(self) -> list[Scope]:
        return list(self._scopes)

    @property
    def columns(self) -> list[tuple[Any, ...]]:
        return list(zip(*self.rows, strict=True))

    def parameters(self, at: int | None) -> list[Any]:
        """Return what the statement takes, in order: arrays as text, which costs a tenth of what the driver takes to write them."""
        scopes = [_array(column) for column in zip(*self._scopes, strict=True)] or ["{}"] * _SCOPE_COLUMNS
        rows = [_array(column) for column in self.columns] or ["{}"] * _ROW_COLUMNS
        versions = [self._books.parties.version, self._books.prices.version]
        return [None if at is None else from_micros(at), *versions, *scopes, *rows]


_SCOPE_COLUMNS: Final = 11
_ROW_COLUMNS: Final = 13
_QUOTED: Final = re.compile(r"[^0-9A-Za-z_.:/@-]")


def _array(values: Sequence[Any]) -> str:
    """Return a column as Postgres reads an array: of numbers, of booleans, or of texts."""
    if len(values) > 1 and values.count(values[0]) == len(values):
        # A column often says one thing; what is equal may still be written otherwise, but says the same.
        return "{" + ",".join([_element(values[0])] * len(values)) + "}"
    kinds = set(map(type, values))
    if kinds == {str}:
        joined = "".join(values)
        # No text is empty or says null, and none needs care: the common case costs one look at all of them.
        if not _QUOTED.search(joined) and "" not in values and "null" not in joined.lower():
            return "{" + ",".join(values) + "}"
    elif kinds <= {int, Decimal}:
        return "{" + ",".join(map(str, values)) + "}"
    elif kinds == {NoneType}:
        return "{" + ",".join(["null"] * len(values)) + "}"
    return "{" + ",".join([_element(value) for value in values]) + "}"


def _element(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return str(value)


class _Answer:
    """What the statement says: lists by budget and by ask, read for one ask at a time."""

    def __init__(self, row: Sequence[Any]) -> None:
        self.decided_at: datetime = row[0]
        (
            scopes, self._budgets, self._groups, self._starts, self._units, self._currencies, self._hardness, self._limits,
            self._kinds, self._days, self._anchors, self._zones, self.outcomes, self._scope_of, self._amounts, self._tightest,
            self._asked, self._remaining, self._retries, self._routes, self._caps, self._rooms, self._marks,
        ) = (column or [] for column in row[1:24])  # fmt: skip
        self._calendar, self._budgets_version, self._until = row[24:]
        self._budgets_of: dict[int, list[int]] = {}
        for place, scope in enumerate(scopes):
            self._budgets_of.setdefault(scope, []).append(place)

    def teach(self, known: Known, scopes: Sequence[Scope], books: Books) -> None:
        """Tell which budgets the scopes that were asked for fall under; those that steps lead to are not among them."""
        fits = {
            scope: Fit(
                tuple([self._match(at) for at in self._budgets_of.get(number, ())]), self.decided_at, self._until
            )
            for number, scope in enumerate(scopes, 1)
        }
        known.learn((books.parties.version, books.prices.version, self._calendar, self._budgets_version), fits)

    def _match(self, at: int) -> Match:
        room = self._rooms[at]
        return Match(
            self._budgets[at],
            self._groups[at],
            self._starts[at],
            self._units[at],
            self._currencies[at],
            self._hardness[at],
            self._limits[at],
            self._kinds[at],
            self._days[at],
            self._anchors[at],
            self._zones[at],
            None if room is None else Decimal(room),
            self._marks[at],
        )

    def decision(self, place: int, ask: Ask, standing: "Reservation | None") -> Decision:
        outcome = self.outcomes[place]
        if outcome == "known":
            return _replayed(ask, standing)
        if outcome == "conflict":
            return Decision(
                ask.tenant_id, ask.reservation_id, "conflict", reason="conflict", decided_at=self.decided_at
            )
        if outcome in ("admitted", "degraded"):
            return Decision(
                ask.tenant_id,
                ask.reservation_id,
                outcome,
                "held",
                tightest=self._tightest_of(place),
                holds=self._holds(place),
                route=self._routes[place],
                output_tokens_max=self._caps[place],
                expires_at=self.decided_at + timedelta(seconds=ask.ttl_seconds),
                decided_at=self.decided_at,
            )
        return Decision(
            ask.tenant_id,
            ask.reservation_id,
            "refused",
            reason=outcome,
            tightest=self._tightest_of(place),
            retry_at=self._retry_at(place),
            decided_at=self.decided_at,
        )

    def _holds(self, place: int) -> tuple[Hold, ...]:
        budgets = self._budgets_of.get(self._scope_of[place])
        if not budgets:
            return ()
        amounts = self._amounts[place][1:-1].split(",")
        return tuple(
            [
                Hold(
                    self._budgets[at],
                    self._groups[at],
                    self._starts[at],
                    self._units[at],
                    self._currencies[at],
                    amount,
                    amount,
                )
                for at, amount in zip(budgets, amounts, strict=True)
            ]
        )

    def _window(self, at: int) -> Span:
        return span(self._kinds[at], self._days[at], self._anchors[at], self._starts[at], self._zones[at])

    def _tightest_of(self, place: int) -> Tightest | None:
        at = self._tightest[place]
        if at is None:
            return None
        at -= 1
        return Tightest(
            self._budgets[at],
            self._groups[at],
            self._units[at],
            self._currencies[at],
            self._hardness[at],
            self._window(at),
            self._limits[at],
            self._asked[place],
            self._remaining[place],
        )

    def _retry_at(self, place: int) -> datetime | None:
        """Return when every budget in the way could have room: its next window, or sooner where only holds take the room."""
        if not self._retries[place]:
            return None
        latest = self.decided_at
        for each in self._retries[place].split(","):
            turns_at = _room_at(each[-1], self._window(int(each[:-1]) - 1), self.decided_at)
            if turns_at is None:
                return None
            latest = max(latest, turns_at)
        return latest


class _AllFit:
    """What there is to say where all asks were admitted as they were asked, by budgets that were known."""

    def __init__(self, table: _Table, fits: Sequence[Fit]) -> None:
        self._fits = fits
        self._columns = table.columns
        self._scope_of = [number - 1 for number in self._columns[0]]
        self.outcomes: Sequence[str] = ["admitted"] * len(self._scope_of)
        self.decided_at = _EPOCH
        self._until: dict[int, datetime] = {}
        self._tightest: list[tuple[int, str] | None] = []
        self._texts: list[tuple[str, ...]] = [()] * len(self._scope_of)
        self._sums: list[list[Amount]] = []
        self.is_known = True
        for scope, fit in enumerate(fits):
            places = [place for place, of in enumerate(self._scope_of) if of == scope]
            columns: Sequence[Sequence[Any]] = self._columns
            if len(fits) > 1:
                columns = [[column[place] for place in places] for column in self._columns]
            units: dict[int, tuple[Amount, list[str]]] = {}
            for unit in set(fit.units):
                column = column_of(unit, columns)
                if column is None:
                    self.is_known = False
                    return
                units[unit] = total(column), list(map(shortest, column))
            self._sums.append([units[unit][0] for unit in fit.units])
            for place, texts in zip(places, zip(*(units[unit][1] for unit in fit.units), strict=True), strict=False):
                self._texts[place] = texts
        self.windows: dict[WindowKey, tuple[int, Amount, Decimal | None, str]] = {}
        for fit, sums in zip(fits, self._sums, strict=True):
            for match, summed in zip(fit.matches, sums, strict=True):
                number, before, room, _ = self.windows.get(match.key, (len(self.windows), 0, match.room, ""))
                if room is None or (match.room is not None and match.room < room):
                    room = match.room
                self.windows[match.key] = number, added(before, summed), room, match.marks

    def parameters(self, table: _Table, known: Known, at: int | None) -> list[Any]:
        """Return what the statement takes, in order."""
        keys = list(zip(*self.windows, strict=True)) or [(), (), ()]
        filled = list(zip(*self.windows.values(), strict=True)) or [(), (), (), ()]
        scopes = list(zip(*table.scopes, strict=True))
        lists = [
            (
                _array([match.budget_id for match in fit.matches]),
                _array([match.group_key for match in fit.matches]),
                _array([str(match.window_start) for match in fit.matches]),
                _array(["0"] * len(fit.matches)),
            )
            for fit in self._fits
        ]
        return [
            None if at is None else from_micros(at),
            *known.versions,
            max(fit.since for fit in self._fits),
            min(fit.until for fit in self._fits),
            _array(keys[0]),
            _array(keys[1]),
            _array([str(start) for start in keys[2]]),
            _array(filled[1]),
            _array(filled[2]),
            _array(filled[3]),
            *(_array(scopes[place]) for place in range(1, 7)),
            *(_array(column) for column in zip(*lists, strict=True)),
            *(_array(self._columns[place]) for place in (0, 1, 2, 3, 4, 5, 9, 10, 12)),
            self._amounts(),
        ]

    def _amounts(self) -> str:
        return '{"{' + '}","{'.join([",".join(texts) for texts in self._texts]) + '}"}'

    def none_fits(self, table: _Table, known: Known, at: int | None) -> tuple["_NoneFits", list[Any]]:
        """Return what there is to say where none of them fits, and what the statement takes that finds it out."""
        matches = [
            (scope, place, match)
            for scope, fit in enumerate(self._fits, 1)
            for place, match in enumerate(fit.matches, 1)
        ]
        scopes = list(zip(*table.scopes, strict=True))
        return _NoneFits(matches, self._texts), [
            None if at is None else from_micros(at),
            *known.versions,
            max(fit.since for fit in self._fits),
            min(fit.until for fit in self._fits),
            _array([scope for scope, _, _ in matches]),
            _array([place for _, place, _ in matches]),
            _array([match.budget_id for _, _, match in matches]),
            _array([match.group_key for _, _, match in matches]),
            _array([str(match.window_start) for _, _, match in matches]),
            _array([match.room if match.hardness == "hard" else None for _, _, match in matches]),
            _array([match.limit for _, _, match in matches]),
            *(_array(scopes[place]) for place in range(2, 7)),
            *(_array(self._columns[place]) for place in (0, 1, 2, 4)),
            self._amounts(),
        ]

    def take(self, decided_at: datetime, taken: Sequence[str]) -> None:
        """Take in what the statement found."""
        self.decided_at = decided_at
        after = {
            key: added(Decimal(before), self.windows[key][1]) for key, before in zip(self.windows, taken, strict=True)
        }
        for fit, sums in zip(self._fits, self._sums, strict=True):
            tightest: tuple[int, Amount, Amount] | None = None
            for place, (match, summed) in enumerate(zip(fit.matches, sums, strict=True)):
                if match.hardness == "shadow" or match.limit is None:
                    continue
                left = EXACT.subtract(Decimal(match.limit), Decimal(after[match.key]))
                if tightest is None or EXACT.multiply(left, Decimal(tightest[2])) < EXACT.multiply(
                    Decimal(tightest[1]), Decimal(summed)
                ):
                    tightest = place, left, summed
            self._tightest.append(None if tightest is None else (tightest[0], shortest(tightest[1])))

    def decided(self, asks: Sequence[Ask]) -> list[Decided]:
        return [self._admission(place, ask) for place, ask in enumerate(asks)]

    def decision(self, place: int, ask: Ask, _: "Reservation | None") -> Decision:
        return self._admission(place, ask).written_out()

    def _admission(self, place: int, ask: Ask) -> Admission:
        scope = self._scope_of[place]
        until = self._until.get(ask.ttl_seconds)
        if until is None:
            until = self._until[ask.ttl_seconds] = self.decided_at + timedelta(seconds=ask.ttl_seconds)
        return Admission(
            ask.tenant_id,
            ask.reservation_id,
            self._fits[scope],
            self._texts[place],
            self._tightest[scope],
            until,
            self.decided_at,
        )


class _NoneFits:
    """What there is to say where one known budget has no room for any of the asks."""

    def __init__(self, matches: Sequence[tuple[int, int, Match]], texts: Sequence[tuple[str, ...]]) -> None:
        self._matches = matches
        self._texts = texts
        self.outcomes: Sequence[str] = ["limit"] * len(texts)
        self._windows: dict[int, Span] = {}

    def take(self, decided_at: datetime, full: Sequence[int], why: Sequence[str], remaining: Sequence[str]) -> None:
        """Take in what the statement found: by ask, which match refuses it, what that waits for, and what it has left."""
        self._decided_at = decided_at
        self._found = list(zip(full, why, remaining, strict=True))

    def decided(self, asks: Sequence[Ask]) -> list[Decided]:
        return [self.decision(place, ask, None) for place, ask in enumerate(asks)]

    def decision(self, place: int, ask: Ask, _: "Reservation | None") -> Decision:
        number, why, remaining = self._found[place]
        _scope, at, match = self._matches[number - 1]
        window = self._windows.get(number)
        if window is None:
            window = self._windows[number] = span(match.kind, match.days, match.anchor, match.window_start, match.zone)
        assert match.limit is not None
        return Decision(
            ask.tenant_id,
            ask.reservation_id,
            "refused",
            reason="limit",
            tightest=Tightest(
                match.budget_id, match.group_key, match.unit, match.currency, match.hardness, window, match.limit,
                self._texts[place][at - 1], remaining,
            ),
            retry_at=_room_at(why, window, self._decided_at),
            decided_at=self._decided_at,
        )  # fmt: skip


def _room_at(why: str, window: Span, decided_at: datetime) -> datetime | None:
    """Return when a budget may have room again, by what it waits for: n nothing, p what is posted, h what is held."""
    if why == "n":
        return None
    if why == "p":
        return window.ends_at
    soon = decided_at + timedelta(seconds=HOLD_SECONDS)
    return soon if window.ends_at is None else min(soon, window.ends_at)


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


async def _decide_known(
    connection: Connection, table: _Table, known: Known, books: Books, at: int | None, now: int
) -> _AllFit | _NoneFits | None:
    """Decide asks by the budgets that are known of their scopes, or return None: then nothing was decided."""
    fits = known.find(table.scopes, books.parties.version, books.prices.version, from_micros(now))
    if fits is None:
        return None
    asked = _AllFit(table, fits)
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
    connection: Connection, table: _Table, asked: _AllFit, known: Known, at: int | None
) -> _NoneFits | None:
    """Refuse asks none of which fits, or return None: then nothing was decided."""
    refusal, parameters = asked.none_fits(table, known, at)
    decided_at, full, why, remaining = await row(connection, _REFUSE_KNOWN, parameters)
    if decided_at is None:
        return None
    refusal.take(
        datetime.fromisoformat(decided_at), list(map(int, _elements(full))), _elements(why), _elements(remaining)
    )
    return refusal


async def _decide(connection: Connection, table: _Table, at: int | None, is_booking: bool) -> _Answer:
    """Ask the database, again where somebody else was making one of the reservations, or stood in a ring with us."""
    parameters = [*table.parameters(at), is_booking]
    is_alone = connection.info.transaction_status == TransactionStatus.IDLE
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            cursor = await connection.execute(_RESERVE, parameters, prepare=True)
            row = await cursor.fetchone()
            assert row is not None
            return _Answer(row)
        except (psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected):
            if not is_alone or attempt == _ATTEMPTS:
                raise
        except psycopg.Error as error:
            if error.sqlstate == _STALE:
                raise StaleBooks(error.diag.message_primary or "parties or prices have changed") from error
            raise
    raise AssertionError("the last attempt returns or raises")


_STALE: Final = "TS003"


def _replayed(ask: Ask, standing: "Reservation | None") -> Decision:
    if standing is None:
        # Forgotten between the two statements: closed long ago, and nothing is held.
        return Decision(ask.tenant_id, ask.reservation_id, "refused", reason="conflict", is_replay=True)
    return Decision(
        ask.tenant_id,
        ask.reservation_id,
        "admitted" if standing.step is None else "degraded",
        standing.state,
        holds=standing.holds,
        route=None if standing.step is None else standing.step.get("route"),
        output_tokens_max=None if standing.step is None else standing.step.get("output_tokens_max"),
        expires_at=standing.expires_at,
        decided_at=standing.decided_at,
        is_replay=True,
    )


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
