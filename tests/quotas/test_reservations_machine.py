"""Everything that can happen to reservations, in every order, against a model that knows no SQL.

The model is written from the design: a window has what is posted and what is held; a reservation holds max(0, reserved -
posted under it) in each budget while it is open; a request is worth its best statement, in the window of its first one.
"""

import asyncio
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ingest.intake import Intake, Message
from ledger import feeds
from ledger.books import load_books
from ledger.database import connect
from ledger.times import from_micros, parse_rfc3339
from quotas import budgets, reservations
from quotas.asks import Settlement
from quotas.known import Known
from quotas.terms import Terms
from tallystick.verify import verify
from tests.factories import GATEWAY, NODE, event_bytes, make_event
from tests.quotas.support import add_price, make_ask
from tests.support.ledger import Ledger
from tests.support.soak import examples

HOUR = 3_600_000_000
MILLION = 1_000_000
RANKS = {GATEWAY: 20, NODE: 10}


@dataclass
class Budget:
    """A budget of the model: `per` is how much of its unit a token is."""

    window: str
    feature: str | None
    per: Decimal
    limit: Decimal | None
    posted: dict[date, Decimal] = field(default_factory=dict)
    held: dict[date, Decimal] = field(default_factory=dict)

    def start(self, day: date) -> date:
        return {"day": day, "month": day.replace(day=1), "lifetime": date(1, 1, 1)}[self.window]

    def takes(self, feature: str) -> bool:
        return self.feature in (None, feature)

    def used(self, start: date) -> Decimal:
        return self.posted.get(start, Decimal(0)) + self.held.get(start, Decimal(0))


@dataclass
class Held:
    start: date
    reserved: Decimal
    under: Decimal = Decimal(0)


@dataclass
class Reserved:
    content: tuple[int, str, int]
    state: str
    expires_at: int
    holds: dict[str, Held]

    @property
    def is_open(self) -> bool:
        return self.state in ("held", "awaiting_entry")

    def held(self, name: str) -> Decimal:
        hold = self.holds[name]
        return max(Decimal(0), hold.reserved - hold.under) if self.is_open else Decimal(0)


@dataclass
class Said:
    """A statement: what it says of a request, and how much it counts."""

    tokens: int
    feature: str
    reservation: str | None
    rank: tuple[int, ...]
    status: str


class Machine(RuleBasedStateMachine):
    """One tenant of its own, with three budgets."""

    ledger: Ledger
    runner: asyncio.Runner
    intakes: dict[str, Intake]
    count = 0

    def __init__(self) -> None:
        super().__init__()
        Machine.count += 1
        self.tenant = f"t-{Machine.count}"
        self.now = parse_rfc3339("2026-03-10T09:00:00Z")
        self.watermark: int | None = None
        self.budgets: dict[str, Budget] = {}
        self.names: list[str] = []
        self.reserved: dict[str, Reserved] = {}
        self.requests: dict[str, tuple[int, Said]] = {}
        self.bodies: dict[str, dict[str, Any]] = {}
        self.events = 0

    def _name(self, which: int) -> str:
        """One of the last ids that were asked under, or one that nobody asked under."""
        return self.names[-which] if 0 < which <= len(self.names) else "nobody"

    def run(self, work: Any) -> Any:
        return self.runner.run(work)

    @initialize(money=st.sampled_from((4, 0, 9)), tokens=st.sampled_from((9, 4, 20)), calls=st.sampled_from((None, 6)))
    def begin(self, money: int, tokens: int, calls: int | None) -> None:
        self.ledger.add_tenant(self.tenant)
        self.budgets = {
            "money": Budget("day", None, Decimal("0.000001"), Decimal(money)),
            "tokens": Budget("lifetime", "chat", Decimal(1), Decimal(tokens * MILLION)),
            "free": Budget("month", None, Decimal(1), None if calls is None else Decimal(calls * MILLION)),
        }
        for name in self.budgets:
            self.run(self._set(name))
        self.run(self._reload())

    async def _set(self, name: str) -> None:
        budget = self.budgets[name]
        unit = "charge" if name == "money" else "total_tokens" if name == "tokens" else "input_tokens"
        terms = Terms(
            tenant_id=self.tenant, unit=unit, currency="USD" if unit == "charge" else None, window=budget.window,
            feature=budget.feature, limit=budget.limit,
        )  # fmt: skip
        async with await connect(self.ledger.database.url_for("tallystick_operator")) as connection:
            await budgets.set_budget(
                connection, "test", terms, now=parse_rfc3339("2026-03-01T00:00:00Z"), budget_id=f"{self.tenant}-{name}"
            )

    async def _reload(self) -> None:
        self.connection = await connect(self.ledger.database.url_for("tallystick_writer"))
        self.books = await load_books(self.connection)
        self.known = Known()

    def teardown(self) -> None:
        if hasattr(self, "connection"):
            self.run(self.connection.close())
        self.ledger.superuser.execute("delete from ledger.feeds where kind = 'kafka'")

    # --- Asking and ending --------------------------------------------------------------------------------------------

    @rule(
        tokens=st.sampled_from((2, 1, 3, 0, 4)), feature=st.sampled_from(("chat", "code")), ttl=st.sampled_from((1800, 7200)),
        again=st.sampled_from((None, None, None, 1, 2)),
    )  # fmt: skip
    def ask(self, tokens: int, feature: str, ttl: int, again: int | None) -> None:
        """Ask under a new id, or once more under one of the last."""
        name = f"r{len(self.names)}" if again is None else self._name(again)
        if again is None:
            self.names.append(name)
        elif again == 1 and name in self.reserved:
            tokens, feature, ttl = self.reserved[name].content
        content = (tokens, feature, ttl)
        ask = make_ask(
            name, tenant_id=self.tenant, input_tokens=tokens * MILLION, output_tokens=0, feature=feature, ttl_seconds=ttl
        )  # fmt: skip
        (decision,) = self.run(reservations.reserve(self.connection, [ask], self.books, at=self.now, known=self.known))
        known = self.reserved.get(name)
        if known is not None:
            expected = "admitted" if known.content == content else "conflict"
            assert (decision.outcome, decision.is_replay) == (expected, expected == "admitted")
            return
        day = from_micros(self.now).date()
        holds = {}
        fits = True
        for each, budget in self.budgets.items():
            if budget.takes(feature):
                amount = tokens * MILLION * budget.per
                start = budget.start(day)
                holds[each] = Held(start, amount)
                fits = fits and (budget.limit is None or budget.used(start) + amount <= budget.limit)
        assert decision.outcome == ("admitted" if fits else "refused")
        if fits:
            self.reserved[name] = Reserved(content, "held", self.now + ttl * 1_000_000, holds)

    @rule(
        which=st.sampled_from((1, 2, 3, 0)), what=st.sampled_from(("void", "settle", "extend")),
        number=st.sampled_from((None, 1, 3)),
    )  # fmt: skip
    def end(self, which: int, what: str, number: int | None) -> None:
        name = self._name(which)
        if what == "void":
            self.void(name)
        elif what == "settle":
            self.settle(name, number)
        else:
            self.extend(name, 1800 * (number or 4))

    def void(self, name: str) -> None:
        self._ended(name, "voided", reservations.void(self.connection, [(self.tenant, name)], at=self.now))

    def settle(self, name: str, stated: int | None) -> None:
        count = None if stated is None else stated * MILLION
        said = Settlement(
            tenant_id=self.tenant, reservation_id=name, input_tokens=count, output_tokens=None if count is None else 0,
            charge=None if stated is None else Decimal(stated),
        )  # fmt: skip
        known = self.reserved.get(name)
        if known is not None and known.state == "held" and stated is not None:
            for each, hold in known.holds.items():
                hold.reserved = min(hold.reserved, stated * MILLION * self.budgets[each].per)
        self._ended(name, "awaiting_entry", reservations.settle(self.connection, [said], at=self.now))

    def _ended(self, name: str, state: str, work: Any) -> None:
        (change,) = self.run(work)
        known = self.reserved.get(name)
        if known is None:
            assert (change.state, change.is_changed) == (None, False)
            return
        assert change.is_changed == (known.state == "held")
        if known.state == "held":
            known.state = state
        assert change.state == known.state

    def extend(self, name: str, ttl: int) -> None:
        (change,) = self.run(reservations.extend(self.connection, [(self.tenant, name)], [ttl], at=self.now))
        known = self.reserved.get(name)
        if known is not None and known.state == "held":
            known.expires_at = max(known.expires_at, self.now + ttl * 1_000_000)
            assert change.expires_at == from_micros(known.expires_at)

    @rule(hours=st.sampled_from((1, 30, 2)), behind=st.sampled_from((None, 0, 3)), sweeps=st.booleans())
    def wait(self, hours: int, behind: int | None, sweeps: bool) -> None:
        self.now += hours * HOUR
        if behind is not None:
            self.lag(behind)
        if sweeps:
            self.sweep()

    def sweep(self) -> None:
        async def swept() -> None:
            async with await connect(self.ledger.database.url_for("tallystick_operator")) as connection:
                await reservations.expire(connection, at=self.now)

        self.run(swept())
        posted_until = self.now if self.watermark is None else min(self.watermark, self.now)
        for known in self.reserved.values():
            if known.state == "held" and known.expires_at < posted_until:
                known.state = "expired"

    # --- Time and limits ----------------------------------------------------------------------------------------------

    def lag(self, behind: int) -> None:
        if self.watermark is None:
            self.run(feeds.claim(self.connection, "kafka", "kafka:c:t:0"))
        self.watermark = self.now - behind * HOUR
        self.ledger.superuser.execute(
            "update ledger.feeds set posted_until = %s where kind = 'kafka'", [from_micros(self.watermark)]
        )

    @rule(name=st.sampled_from(("money", "tokens")), limit=st.sampled_from((6, None, 2, 12)))
    def change_limit(self, name: str, limit: int | None) -> None:
        budget = self.budgets[name]
        budget.limit = None if limit is None else limit * MILLION * budget.per
        self.run(self._set(name))

    # --- Posting ------------------------------------------------------------------------------------------------------

    @rule(
        again=st.sampled_from((None, 1, 1, 2)), which=st.sampled_from((1, 1, 2, 3, 0, None)),
        tokens=st.sampled_from((2, 1, 3, 0, 4)), feature=st.sampled_from(("chat", "chat", "code")), is_final=st.booleans(),
        is_open=st.sampled_from((False, False, True)), is_reported=st.booleans(), source=st.sampled_from((GATEWAY, NODE)),
        revision=st.integers(0, 2), status=st.sampled_from(("ok", "ok", "ok", "ok", "void", "in_progress")),
    )  # fmt: skip
    def post(
        self, again: int | None, which: int | None, tokens: int, feature: str, is_final: bool, is_open: bool,
        is_reported: bool, source: str, revision: int, status: str,
    ) -> None:  # fmt: skip
        """Post a report of a new request, or another one of a request before, under some reservation or none."""
        known_requests = list(self.requests)
        is_new = again is None or again > len(known_requests)
        request = f"q{len(known_requests)}" if is_new else known_requests[-(again or 1)]
        name = None if which is None else self._name(which)
        self.events += 1
        count = tokens * MILLION
        is_final = is_final and status != "in_progress"
        event = make_event(
            f"{self.tenant}-{self.events}", source=source, time=from_micros(self.now).isoformat(), tenant_id=self.tenant,
            request_id=request, feature=feature, final=is_final, basis="reported" if is_reported else "estimated",
            revision=revision, status=status, usage={"prompt_tokens": count, "completion_tokens": 0, "total_tokens": count},
            **({} if name is None else {"reservation_id": name, "reservation_open": is_open}),
        )  # fmt: skip
        outcome = self.run(self._post(event))
        if outcome == "dead_letter":
            raise AssertionError(event)
        self.bodies.pop(request, None)
        self.bodies[request] = event
        rank = (0, 1, int(is_final), int(is_reported), RANKS[source], revision)
        said = Said(0 if status == "void" else count, feature, name, rank, status)
        known = self.requests.get(request)
        if known is None:
            self.requests[request] = (self.now, said)
            self._move(said, self.now, 1)
            assert outcome == "created"
        elif said.rank > known[1].rank and not self._needs_a_person(said, known[1]):
            self._move(known[1], known[0], -1)
            self._move(said, known[0], 1)
            self.requests[request] = (known[0], said)
            assert outcome == "created"
        else:
            assert outcome == "evidence"
        if name in self.reserved and is_final and not is_open and self.reserved[name].is_open:
            self.reserved[name].state = "settled"

    @staticmethod
    def _needs_a_person(said: Said, stood: Said) -> bool:
        is_settled = stood.rank[1:4] == (1, 1, 1)
        is_lower = said.status == "void" or said.tokens < stood.tokens
        return is_settled and said.rank[4] <= stood.rank[4] and is_lower

    def _move(self, said: Said, at: int, sign: int) -> None:
        day = from_micros(at).date()
        for each, budget in self.budgets.items():
            if budget.takes(said.feature):
                amount = sign * said.tokens * budget.per
                start = budget.start(day)
                budget.posted[start] = budget.posted.get(start, Decimal(0)) + amount
                known = self.reserved.get(said.reservation or "")
                # Entries count under a reservation as they come: what takes usage back that came before it counts too.
                if known is not None and each in known.holds:
                    known.holds[each].under += amount

    @precondition(lambda self: self.bodies)
    @rule()
    def post_again(self) -> None:
        """Send the last report once more."""
        assert self.run(self._post(list(self.bodies.values())[-1])) == "duplicate"

    async def _post(self, event: dict[str, Any]) -> str:
        intake = self.intakes["only"]
        reading = await intake.read([Message(event_bytes(event), self.now + 60_000_000, "test")])
        posted = await intake.post(reading)
        return posted.results[0].outcome

    # --- What must hold -----------------------------------------------------------------------------------------------

    @invariant()
    def windows_are_what_the_model_says(self) -> None:
        if not self.budgets:
            return
        for budget in self.budgets.values():
            budget.held = {}
        for known in self.reserved.values():
            for each, hold in known.holds.items():
                held = self.budgets[each].held
                held[hold.start] = held.get(hold.start, Decimal(0)) + known.held(each)
        expected = {}
        over = {}
        for each, budget in self.budgets.items():
            for start in budget.posted.keys() | budget.held.keys():
                posted, held = budget.posted.get(start, Decimal(0)), budget.held.get(start, Decimal(0))
                if posted or held:
                    expected[f"{self.tenant}-{each}", start] = (posted, held)
                excess = 0 if budget.limit is None else max(Decimal(0), posted + held - budget.limit)
                if excess:
                    over[f"{self.tenant}-{each}", start] = excess
        found = self.ledger.rows(
            "select budget_id, window_start, posted, held from quotas.windows"
            " where tenant_id = %s and budget_id !~ '^totals-' and (posted <> 0 or held <> 0)",
            self.tenant,
        )
        assert {(row[0], row[1]): (row[2], row[3]) for row in found} == expected
        found = self.ledger.rows(
            "select budget_id, window_start, sum(change) from quotas.excess where budget_id like %s"
            " group by 1, 2 having sum(change) <> 0",
            f"{self.tenant}-%",
        )
        assert {(row[0], row[1]): row[2] for row in found} == over, "the causes sum to the excess"
        states = self.ledger.rows(
            "select reservation_id, state, expires_at from quotas.reservations where tenant_id = %s", self.tenant
        )
        assert {row[0]: (row[1], row[2]) for row in states} == {
            name: (known.state, from_micros(known.expires_at)) for name, known in self.reserved.items()
        }


@pytest.mark.hypothesis
def test_reservations_do_what_the_model_says(ledger: Ledger) -> None:
    with asyncio.Runner() as runner:
        runner.run(add_price(ledger))

        async def opened() -> Intake:
            connection = await connect(ledger.database.url_for("tallystick_writer"))
            async with connection:
                held = await feeds.claim(connection, "file", "file:machine")
            return await Intake.open(ledger.database.url_for("tallystick_writer"), held, patience=5)

        Machine.ledger, Machine.runner, Machine.count = ledger, runner, 0
        Machine.intakes = {"only": runner.run(opened())}
        try:
            run_state_machine_as_test(Machine, settings=settings(max_examples=examples(10), stateful_step_count=50))
        finally:
            runner.run(Machine.intakes["only"].close())
    # What every example left behind, folded again from the ledger and from the reservations.
    proof = verify(ledger.database.url)
    assert [failure for failure in proof.failures if failure.part in ("budgets", "excess")] == []
