"""Asks as the arrays of one statement, and what it answers as decisions: pure, by place in the array."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from operator import attrgetter
from types import NoneType
from typing import Any, Final

import msgspec

from ledger.books import Books
from ledger.money import EXACT
from ledger.parties import Tenant
from ledger.times import from_micros
from quotas.asks import HOLD_SECONDS, Admission, Ask, Decided, Decision, Hold, Reservation, Tightest
from quotas.estimates import Reach, estimate, largest_amount, reach
from quotas.known import Amount, Fit, Known, Match, Scope, WindowKey, added, column_of, shortest, total
from quotas.remaining import Span, span

_shape_of: Final = attrgetter(
    "tenant_id", "provider", "provider_account", "deployment", "model", "service_tier", "region", "basis", "ttl_seconds",
    "feature", "route", "lane", "api_key_id", "user_hash",
)  # fmt: skip


class Table:
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


class Answer:
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


class AllFit:
    """What there is to say where all asks were admitted as they were asked, by budgets that were known."""

    def __init__(self, table: Table, fits: Sequence[Fit]) -> None:
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

    def parameters(self, table: Table, known: Known, at: int | None) -> list[Any]:
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

    def none_fits(self, table: Table, known: Known, at: int | None) -> tuple["NoneFits", list[Any]]:
        """Return what there is to say where none of them fits, and what the statement takes that finds it out."""
        matches = [
            (scope, place, match)
            for scope, fit in enumerate(self._fits, 1)
            for place, match in enumerate(fit.matches, 1)
        ]
        scopes = list(zip(*table.scopes, strict=True))
        return NoneFits(matches, self._texts), [
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


class NoneFits:
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
