"""What is remembered of scopes: asks that it decides are decided as matching all budgets anew would."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import date
from decimal import Decimal
from typing import Any

import pytest

from ledger.database import Connection
from ledger.times import parse_rfc3339
from quotas import reservations
from quotas.asks import Decision
from quotas.known import shortest
from quotas.terms import Step
from tests.quotas.support import Desk, add_price, make_ask, set_budget
from tests.support.ledger import Ledger


class Counted:
    """Counts which statements are run."""

    def __init__(self) -> None:
        self.short = self.long = self.refused = 0

    def note(self, statement: str) -> None:
        self.short += "quotas.reserve_known(" in statement
        self.refused += "quotas.refuse_known(" in statement
        self.long += "quotas.reserve(" in statement


@asynccontextmanager
async def desk_of(ledger: Ledger, at: str = "2026-03-10T12:00:00Z") -> AsyncIterator[tuple[Desk, Counted]]:
    counted = Counted()
    async with Desk(ledger, at) as desk:
        with pytest.MonkeyPatch.context() as patch:
            execute, row = desk.connection.execute, reservations.row

            async def executed(statement: Any, *rest: Any, **options: Any) -> Any:
                counted.note(statement)
                return await execute(statement, *rest, **options)

            async def of_row(connection: Connection, statement: str, parameters: Sequence[object]) -> list[str | None]:
                counted.note(statement)
                return await row(connection, statement, parameters)

            patch.setattr(desk.connection, "execute", executed)
            patch.setattr(reservations, "row", of_row)
            yield desk, counted


def said(decision: Decision) -> tuple[Any, ...]:
    """What a decision says, without whose it is."""
    tightest = decision.tightest
    return (
        decision.reservation_id,
        decision.outcome,
        decision.state,
        decision.reason,
        None
        if tightest is None
        else (tightest.budget_id[2:], tightest.window, tightest.limit, tightest.asked, tightest.remaining),
        [(hold.budget_id[2:], hold.window_start, hold.unit, hold.reserved, hold.held) for hold in decision.holds],
        decision.route,
        decision.retry_at,
        decision.expires_at,
        decision.is_replay,
    )


@pytest.mark.parametrize("is_alone", [False, True])
async def test_it_decides_as_matching_does(ledger: Ledger, is_alone: bool) -> None:
    """The same asks of two tenants with the same budgets, one remembered and one matched each time: up to thresholds and limits.

    One budget alone is taken by one statement, several are locked and looked at before.

    A call is 0.10, or 0.20 in the second scope, and 100,000 tokens: the note at 0.5 of 2.00, the token limit of 1.5 million, and
    the shadow's limit of four calls are all passed on the way to 2.00.
    """
    await add_price(ledger)
    ledger.add_tenant("t-beta")
    for tenant in ("t-alpha", "t-beta"):
        begin = tenant[2]
        await set_budget(ledger, budget_id=f"{begin}-money", tenant_id=tenant, limit="2.00", thresholds=["0.5"])
        if is_alone:
            continue
        await set_budget(
            ledger, budget_id=f"{begin}-tokens", tenant_id=tenant, unit="total_tokens", window="day", limit="1500000"
        )
        await set_budget(
            ledger,
            budget_id=f"{begin}-calls",
            tenant_id=tenant,
            unit="requests",
            limit="4",
            hardness="shadow",
            feature="a",
        )
        await set_budget(ledger, budget_id=f"{begin}-cost", tenant_id=tenant, unit="cost", limit=None)
    asked = [
        [(f"r{turn}-{place}", feature) for place, feature in enumerate(features)]
        for turn, features in enumerate(["a", "ab", "b", "aab", "abba", "a", "b", "aaaa", "a", "b"])
    ]
    async with desk_of(ledger) as (desk, counted):
        forgetful = Desk(ledger)
        forgetful.connection, forgetful.books = desk.connection, desk.books
        for asks in asked:
            answers = []
            for tenant, known in (("t-alpha", desk.known), ("t-beta", None)):
                forgetful.known = known  # type: ignore[assignment]
                answers.append(
                    await forgetful.reserve(
                        *(
                            make_ask(
                                name, "0.1" if feature == "a" else "0.20", tenant_id=tenant, feature=feature,
                                input_tokens=100_000, output_tokens=0,
                            )
                            for name, feature in asks
                        )
                    )
                )  # fmt: skip
            assert [said(one) for one in answers[0]] == [said(one) for one in answers[1]], asks
        assert counted.short >= 5
        assert counted.refused >= 1
    rows = ledger.rows(
        "select substr(budget_id, 3), window_start, held, left(budget_id, 1) from quotas.windows where budget_id !~ '^totals' order by 1"
    )
    assert [row[:3] for row in rows if row[3] == "a"] == [row[:3] for row in rows if row[3] == "b"]
    for table in ("threshold_notes", "decisions"):
        counts = dict(ledger.rows(f"select left(budget_id, 1), count(*) from quotas.{table} group by 1"))
        assert counts["a"] == counts["b"] > 0, table


async def test_a_changed_budget_counts_for_the_next_ask(ledger: Ledger) -> None:
    """10.00, of which 0.50 are held each time: after the limit is 1.00 only one more fits, and after a new budget of 0.10 none."""
    await add_price(ledger)
    await set_budget(ledger, limit="10.00")
    async with desk_of(ledger) as (desk, counted):
        for name in ("r1", "r2"):
            assert (await desk.ask(name, "0.25"))[0].is_admitted
        assert (counted.long, counted.short) == (1, 1)
        await set_budget(ledger, limit="1.00")
        assert (await desk.ask("r3", "0.50"))[0].is_admitted
        (refused,) = await desk.ask("r4", "0.01")
        assert refused.reason == "limit"
        await set_budget(ledger, limit="10.00")
        assert (await desk.ask("r5", "0.01"))[0].is_admitted
        await set_budget(ledger, budget_id="small", window="week", limit="0.10")
        (refused,) = await desk.ask("r6", "0.50")
        assert refused.tightest is not None
        assert refused.tightest.budget_id == "small"


async def test_a_window_turns_at_the_tenants_midnight(ledger: Ledger) -> None:
    """t-alpha lives in UTC, t-tokyo nine hours ahead: at 15:00 it is tomorrow there, and the hold lives in that day."""
    await add_price(ledger)
    ledger.add_tenant("t-tokyo", zone="Asia/Tokyo")
    await set_budget(ledger, tenant_id="t-tokyo", window="day", limit="10.00", now="2026-03-01T00:00:00Z")
    async with desk_of(ledger, "2026-03-10T14:59:58Z") as (desk, counted):
        for number, at in enumerate(
            ("2026-03-10T14:59:58Z", "2026-03-10T14:59:59.999999Z", "2026-03-10T15:00:00Z", "2026-03-10T14:59:59Z")
        ):
            desk.at = parse_rfc3339(at)
            (decision,) = await desk.ask(f"r{number}", "1.00", tenant_id="t-tokyo")
            day = date(2026, 3, 11 if at.startswith("2026-03-10T15") else 10)
            assert [hold.window_start for hold in decision.holds] == [day]
        assert (counted.long, counted.short) == (3, 1), "what was found tomorrow says nothing of today"


async def test_an_id_that_is_there_is_answered_as_it_stands(ledger: Ledger) -> None:
    await add_price(ledger)
    await set_budget(ledger, limit="10.00")
    async with desk_of(ledger) as (desk, _):
        await desk.ask("r1", "1.00")
        await desk.ask("r2", "1.00")
        again, new, other = await desk.reserve(make_ask("r2", "1.00"), make_ask("r3", "1.00"), make_ask("r1", "3.00"))
        assert (again.outcome, again.is_replay, new.outcome, other.outcome) == (
            "admitted",
            True,
            "admitted",
            "conflict",
        )
        assert desk.window() == ("0", "3")


async def test_a_full_window_is_not_tried_twice_for_each_ask(ledger: Ledger) -> None:
    """At the limit asks are refused the short way, and every so often admitting is tried; room that came back is found."""
    await add_price(ledger)
    await set_budget(ledger, limit="1.00")
    async with desk_of(ledger) as (desk, counted):
        await desk.ask("r0", "0.90")
        for number in range(1, 41):
            (refused,) = await desk.ask(f"r{number}", "0.50")
            assert refused.reason == "limit"
        assert counted.long == 1
        assert counted.short <= 6
        assert counted.refused == 40
        await set_budget(ledger, limit="100.00")
        for number in range(41, 45):
            assert (await desk.ask(f"r{number}", "0.50"))[0].is_admitted
        assert counted.long == 2


async def test_what_is_not_refused_plainly_goes_the_long_way(ledger: Ledger) -> None:
    """At 0.90 of 1.00 a call of 0.50 is refused the short way: unless another one of the array is there already or fits, a second
    budget is in its way too, or a step leads elsewhere."""
    await add_price(ledger)
    await set_budget(ledger, limit="1.00")
    await set_budget(ledger, budget_id="second", window="lifetime", limit="9.00")
    async with desk_of(ledger) as (desk, counted):

        async def outcomes(**asks: str) -> tuple[list[str], int]:
            before = counted.long
            decisions = await desk.reserve(*(make_ask(name, amount) for name, amount in asks.items()))
            return [decision.outcome for decision in decisions], counted.long - before

        assert await outcomes(first="0.90") == (["admitted"], 1)
        assert await outcomes(other="0.50") == (["refused"], 0)
        assert await outcomes(first="0.90", other="0.50") == (["admitted", "refused"], 1)
        assert await outcomes(little="0.01", other="0.50") == (["admitted", "refused"], 1)
        await set_budget(ledger, budget_id="second", window="lifetime", limit="0.95")
        await outcomes(tiny="0.01")
        assert await outcomes(other="0.50") == (["refused"], 1)
        step = Step(at=Decimal("0.5"), action="degrade", route="small", hold=Decimal("0.01"))
        await set_budget(ledger, budget_id="second", window="lifetime", limit="1.50", steps=[step])
        await set_budget(ledger, limit="2.00")
        await outcomes(last="0.01")
        assert await outcomes(other="0.70") == (["degraded"], 1)


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (7, "7"), (Decimal("0.0016200"), "0.00162"), (Decimal("1E+2"), "100"), (Decimal("-0.00"), "0"), (Decimal("10"), "10"),
        (Decimal("1E-7"), "0.0000001"), (Decimal("-1.50"), "-1.5"),
    ],
)  # fmt: skip
def test_amounts_are_told_in_the_shortest_digits(amount: int | Decimal, text: str) -> None:
    assert shortest(amount) == text
