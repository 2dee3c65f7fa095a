"""Reservations over HTTP: no status but 200 and 201 lets a call go ahead, and every answer follows its commit."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import httpx
import msgspec
import psycopg
import pytest

from api.encoded import Admissions
from api.reservations import _reply
from ledger.database import connect
from ledger.registry import resume_tenant, suspend_tenant
from quotas.asks import Admission
from quotas.known import Fit, Match
from tests.api.support import Site, add_budget, bearer, make_key, problem, site
from tests.factories import GATEWAY, make_event
from tests.support.ledger import Ledger, now

# 100 input tokens at 2 and 10 output tokens at 8 USD a million.
PRICE = Decimal("0.00028")


def ask(reservation_id: str = "r-1", **fields: Any) -> dict[str, Any]:
    """An ask for a call like that of `make_event`: 0.00028 USD."""
    return {
        "reservation_id": reservation_id,
        "tenant_id": "t-alpha",
        "provider": "openai",
        "model": "m-sub",
        "input_tokens": 100,
        "output_tokens": 10,
        **fields,
    }


class Gateway:
    """Somebody who asks."""

    def __init__(self, here: Site, token: str) -> None:
        self.here = here
        self.token = token

    async def post(self, path: str, body: Any = None, **headers: str) -> httpx.Response:
        sent = {} if body is None else {"json": body}
        return await self.here.client.post(f"/v1/{path}", headers={**bearer(self.token), **headers}, **sent)

    async def reserve(self, reservation_id: str = "r-1", **fields: Any) -> httpx.Response:
        return await self.post("reservations", ask(reservation_id, **fields))

    async def get(self, reservation_id: str = "r-1", tenant_id: str = "t-alpha") -> httpx.Response:
        return await self.here.client.get(
            f"/v1/reservations/{reservation_id}", params={"tenant_id": tenant_id}, headers=bearer(self.token)
        )

    async def state(self, reservation_id: str = "r-1") -> str:
        return str((await self.get(reservation_id)).json()["state"])


@pytest.fixture
async def gateway(world: Ledger) -> AsyncIterator[Gateway]:
    token = await make_key(world, source=GATEWAY)
    async with site(world) as here:
        yield Gateway(here, token)


def held(world: Ledger) -> Decimal:
    return Decimal(world.value("select coalesce(sum(held), 0) from quotas.windows where budget_id = 'b-1'"))


# --- Asking -----------------------------------------------------------------------------------------------------------


async def test_what_is_admitted_is_held_and_told_where_it_is(world: Ledger, gateway: Gateway) -> None:
    add_budget(world, limit="1.00")
    answer = await gateway.reserve()
    assert (answer.status_code, answer.headers["location"]) == (201, "/v1/reservations/r-1")
    told = answer.json()
    assert (told["outcome"], told["state"], told.get("is_replay", False)) == (
        "admitted",
        "held",
        False,
    )
    assert [(hold["budget_id"], Decimal(hold["held"])) for hold in told["holds"]] == [("b-1", PRICE)]
    assert Decimal(told["budget"]["remaining"]) == 1 - PRICE
    assert held(world) == PRICE
    assert (await gateway.get()).json()["state"] == "held"


async def test_the_same_ask_again_is_the_same_reservation(world: Ledger, gateway: Gateway) -> None:
    add_budget(world, limit="1.00")
    first, again = await gateway.reserve(), await gateway.reserve()
    assert (first.status_code, again.status_code, again.json()["is_replay"]) == (201, 200, True)
    assert held(world) == PRICE
    other = await gateway.reserve(input_tokens=101)
    assert (other.status_code, problem(other)) == (409, "reservation-conflict")


async def test_an_id_whose_reservation_is_over_lets_no_call_go_ahead(world: Ledger, gateway: Gateway) -> None:
    """Whoever reads the status alone must not send a call that nothing is held for."""
    add_budget(world, limit="1.00")
    await gateway.reserve()
    await gateway.post("reservations/r-1:void", {"tenant_id": "t-alpha"})
    answer = await gateway.reserve()
    assert (answer.status_code, problem(answer), answer.json()["state"]) == (409, "reservation-over", "voided")


async def test_an_exhausted_budget_says_when_it_turns(world: Ledger, gateway: Gateway) -> None:
    add_budget(world, limit="0.0003", window_kind="day")
    assert (await gateway.reserve("r-1")).status_code == 201
    answer = await gateway.reserve("r-2")
    assert (answer.status_code, problem(answer)) == (429, "budget-exhausted")
    told = answer.json()
    assert (told["budget"]["budget_id"], told["budget"]["limit"]) == ("b-1", "0.0003")
    assert Decimal(told["budget"]["remaining"]) == Decimal("0.00002")
    # Only a reservation is in the way, which may go in seconds.
    assert 1 <= int(answer.headers["retry-after"]) <= 5
    assert answer.headers["ratelimit-policy"] == '"b-1";q=300;qu="micro-usd";w=86400'
    assert answer.headers["ratelimit"].startswith('"b-1";r=20;t=')
    assert world.value("select count(*) from quotas.reservations") == 1


async def test_used_money_comes_back_with_the_window_and_a_lifetime_never(world: Ledger, gateway: Gateway) -> None:
    add_budget(world, limit="0.0003", window_kind="day")
    add_budget(
        world,
        "b-life",
        tenant_id="t-beta",
        limit="0.0003",
        window_kind="lifetime",
        first_window=datetime(1, 1, 1, tzinfo=UTC).date(),
    )
    now = datetime.now(UTC).isoformat()
    await gateway.here.send(
        make_event("ev-1", time=now), make_event("ev-2", tenant_id="t-beta", time=now), token=gateway.token
    )
    answer = await gateway.reserve("r-1")
    assert (answer.status_code, problem(answer)) == (429, "budget-exhausted")
    midnight = datetime.fromisoformat(answer.json()["budget"]["window"]["ends_at"])
    assert abs(int(answer.headers["retry-after"]) - (midnight - datetime.now(UTC)).total_seconds()) < 5
    never = await gateway.reserve("r-2", tenant_id="t-beta")
    assert (never.status_code, "retry-after" in never.headers, "retry_at" in never.json()) == (429, False, False)


async def test_what_a_budget_cannot_weigh_is_no_lack_of_money(world: Ledger, gateway: Gateway) -> None:
    add_budget(world)
    unknown = await gateway.reserve("r-1", model="m-nobody-knows")
    assert (unknown.status_code, problem(unknown)) == (422, "price-unknown")
    missing = await gateway.post("reservations", {"reservation_id": "r-2", "tenant_id": "t-alpha"})
    assert (missing.status_code, problem(missing)) == (422, "estimate-missing")


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"reservation_id": ""}, "reservation_id"),
        ({"reservation_id": "a/b"}, "reservation_id"),
        ({"reservation_id": "a\0"}, "reservation_id"),
        ({"reservation_id": "x" * 256}, "reservation_id"),
        ({"input_tokens": -1}, "input_tokens"),
        ({"ttl_seconds": 0}, "ttl_seconds"),
        ({"ttl_seconds": 86_401}, "ttl_seconds"),
        ({"basis": "hope"}, "basis"),
        ({"charge": "-1"}, "charge"),
        ({"charge": "NaN"}, "charge"),
        ({"cost": "1"}, "cost_currency"),
        ({"quantities": {"input_tokens": 1}}, "quantities"),
        ({"input_tokens": None, "output_tokens": None, "quantities": {"nonsense": 1}}, "quantities"),
        ({"tenant_id": None}, "tenant_id"),
        ({"tenent_id": "t-alpha"}, "body"),
        ({"feature": "a\0b"}, "body"),
        ({"tags": {"a": "\0"}}, "body"),
    ],
)
async def test_a_field_that_breaks_a_rule_is_named(
    world: Ledger, gateway: Gateway, fields: dict[str, Any], name: str
) -> None:
    answer = await gateway.post(
        "reservations", ask(**fields) if "reservation_id" not in fields else {**ask(), **fields}
    )
    assert (answer.status_code, problem(answer)) == (422, "invalid-request"), answer.text
    assert answer.json()["errors"][0]["name"] == name
    many = await gateway.post("reservations:batch", {"reservations": [ask("r-0"), {**ask(), **fields}]})
    assert (many.status_code, problem(many)) == (422, "invalid-request")
    assert world.value("select count(*) from quotas.reservations") == 0


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"x"', b"\xff", b"{}"])
async def test_a_body_that_is_no_ask_is_refused(world: Ledger, gateway: Gateway, body: bytes) -> None:
    for path in ("reservations", "reservations:batch", "reservations/r-1:extend"):
        answer = await gateway.here.client.post(f"/v1/{path}", content=body, headers=bearer(gateway.token))
        assert problem(answer) in ("empty-body", "malformed-body", "invalid-request"), answer.text


async def test_a_value_that_the_database_refuses_costs_no_neighbour_its_answer(world: Ledger, gateway: Gateway) -> None:
    add_budget(world, limit="1.00")
    answers = await asyncio.gather(
        *(gateway.reserve(f"r-{n}") for n in range(5)), gateway.reserve("r-bad", charge="1e131072")
    )
    assert [answer.status_code for answer in answers] == [201] * 5 + [422]


# --- Whose ------------------------------------------------------------------------------------------------------------


async def test_a_tenants_key_speaks_for_it_alone(world: Ledger) -> None:
    add_budget(world)
    token = await make_key(world, tenant_id="t-alpha")
    reader = await make_key(world, "budgets:read", tenant_id="t-alpha")
    async with site(world) as here:
        mine = Gateway(here, token)
        assert (await mine.reserve(tenant_id=None)).status_code == 201
        assert (await here.client.get("/v1/reservations/r-1", headers=bearer(token))).json()["tenant_id"] == "t-alpha"
        theirs, nobody = await mine.reserve("r-2", tenant_id="t-beta"), await mine.reserve("r-2", tenant_id="t-none")
        assert (theirs.status_code, problem(theirs)) == (404, "tenant-not-found")
        drop = ("request_id",)
        assert {k: v for k, v in theirs.json().items() if k not in drop} == {
            k: v for k, v in nobody.json().items() if k not in drop
        }
        for path in ("reservations", "reservations/r-1:void", "reservations/r-1:settle", "reservations/r-1:extend"):
            assert problem(await Gateway(here, reader).post(path, {})) == "scope-missing"


async def test_anothers_reservation_is_not_there(world: Ledger) -> None:
    add_budget(world)
    alpha, beta = [await make_key(world, tenant_id=tenant_id) for tenant_id in ("t-alpha", "t-beta")]
    async with site(world) as here:
        await Gateway(here, alpha).reserve()
        other = Gateway(here, beta)
        assert problem(await here.client.get("/v1/reservations/r-1", headers=bearer(beta))) == "reservation-not-found"
        for act, body in (("void", {}), ("settle", {}), ("extend", {"ttl_seconds": 5})):
            assert problem(await other.post(f"reservations/r-1:{act}", body)) == "reservation-not-found"
            assert (
                problem(await other.post(f"reservations/r-1:{act}", {**body, "tenant_id": "t-alpha"}))
                == "tenant-not-found"
            )
    assert held(world) == PRICE


async def test_what_others_use_of_a_shared_budget_is_told_to_nobody_who_speaks_for_one_tenant(
    world: Ledger, gateway: Gateway
) -> None:
    add_budget(world, "b-all", tenant_id=None, unit="requests", currency=None, limit="3")
    alpha = await make_key(world, tenant_id="t-alpha")
    add_budget(world, "b-own", unit="requests", currency=None, limit="100")
    async with site(world) as here:
        mine = Gateway(here, alpha)
        # The first finds out what the budgets are, the second is decided by what is known.
        told = [
            (await one.reserve(name)).json()["budget"] for name, one in (("r-1", mine), ("r-2", gateway), ("r-3", mine))
        ]
        assert [(one["budget_id"], one["limit"], one["remaining"]) for one in told] == [
            ("b-all", None, None), ("b-all", "3", "1"), ("b-all", None, None),
        ]  # fmt: skip
        refused = await mine.reserve("r-4")
        assert (refused.status_code, problem(refused)) == (429, "budget-exhausted")
        assert refused.json()["budget"] == {**told[0], "asked": "1"}
        assert "ratelimit" not in refused.headers
        assert (await gateway.reserve("r-4")).headers["ratelimit"].startswith('"b-all";r=0;')
        (batched,) = (await mine.post("reservations:batch", {"reservations": [ask("r-4")]})).json()["results"]
        assert (batched["reason"], batched["budget"]["remaining"]) == ("limit", None)


async def test_an_unknown_tenant_is_told_as_such_to_a_source_that_speaks_for_all(gateway: Gateway) -> None:
    assert problem(await gateway.reserve(tenant_id="t-none")) == "tenant-not-found"


async def test_a_suspended_tenant_is_admitted_nothing_more_at_once(world: Ledger, gateway: Gateway) -> None:
    """Also by a replica whose books are older than the suspension, and than its end."""
    assert (await gateway.reserve("r-1")).status_code == 201
    async with await connect(world.database.url_for("tallystick_operator")) as operator:
        await suspend_tenant(operator, "test", "t-alpha", now=now(), reason="unpaid")
        answer = await gateway.reserve("r-2")
        assert (answer.status_code, problem(answer)) == (403, "tenant-inactive")
        await resume_tenant(operator, "test", "t-alpha", now=now(), reason="paid")
    assert (await gateway.reserve("r-2")).status_code == 201


# --- Many at once -----------------------------------------------------------------------------------------------------


async def test_a_batch_is_decided_in_order_with_its_refusals_in_place(world: Ledger, gateway: Gateway) -> None:
    add_budget(world, limit=str(2 * PRICE))
    asks = [ask("r-1"), ask("r-2", tenant_id="t-beta"), ask("r-3"), ask("r-4"), ask("r-1")]
    answer = await gateway.post("reservations:batch", {"reservations": asks})
    assert answer.status_code == 200, answer.text
    assert [(one["reservation_id"], one["outcome"]) for one in answer.json()["results"]] == [
        ("r-1", "admitted"), ("r-2", "admitted"), ("r-3", "admitted"), ("r-4", "refused"), ("r-1", "admitted"),
    ]  # fmt: skip
    assert held(world) == 2 * PRICE


async def test_a_batch_has_a_limit(world: Ledger) -> None:
    token = await make_key(world, source=GATEWAY)
    async with site(world, reservation_batch_max=3) as here:
        for count, status in ((3, 200), (4, 422)):
            answer = await Gateway(here, token).post(
                "reservations:batch", {"reservations": [ask(f"r-{n}") for n in range(count)]}
            )
            assert answer.status_code == status
        assert problem(await Gateway(here, token).post("reservations:batch", {"reservations": []})) == "invalid-request"


def test_an_admission_is_written_as_its_decision_is() -> None:
    start, end = datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 4, 1, tzinfo=UTC)

    def match(budget_id: str, **fields: Any) -> Match:
        return Match(
            **{
                "budget_id": budget_id, "group_key": "", "window_start": start.date(), "unit": "charge", "currency": "USD",
                "hardness": "hard", "limit": "100", "kind": "month", "days": None, "anchor": None, "zone": "UTC",
                "room": Decimal(100), "marks": "{}", **fields,
            }
        )  # fmt: skip

    odd = match('100 % "%s" é \\u00004', group_key='["a","%d"]', kind="lifetime")
    none = Fit((), start, end)
    one = Fit((match("b-1"),), start, end)
    two = Fit((odd, match("b-2", unit="requests", currency=None)), start, end)
    written = Admissions(lambda decision: msgspec.json.encode(_reply(decision)))
    names = ["r-1", 'r "2" %s\\', "ré\\u00003\\u0000", "\x01 4"]
    for fit, texts, tightest in (
        (none, (), None), (one, ("0.1",), (0, "-5")), (two, ("1", "7"), (1, "3")), (two, ("2", "8"), (0, "4")),
        (two, ("0", "0"), None), (one, ("0.2",), (0, "0")), (one, ("0.3",), None),
    ):  # fmt: skip
        for name in names:
            for expires_at in (start, end, datetime(2026, 3, 5, 1, 2, 3, 450, tzinfo=UTC)):
                admission = Admission("t-" + name, name, fit, texts, tightest, expires_at, start)
                assert written.written(admission) == msgspec.json.encode(_reply(admission.written_out()))


async def test_concurrent_asks_share_statements_and_admit_exactly_what_there_is(
    world: Ledger, gateway: Gateway
) -> None:
    add_budget(world, limit=str(37 * PRICE))
    answers = await asyncio.gather(*(gateway.reserve(f"r-{n}") for n in range(200)))
    assert sorted(answer.status_code for answer in answers) == [201] * 37 + [429] * 163
    assert held(world) == 37 * PRICE
    assert await gateway.here.metric("tallystick_decision_asks_count") < 60


async def test_a_full_queue_pushes_back(world: Ledger) -> None:
    add_budget(world, limit="1.00")
    token = await make_key(world, source=GATEWAY)
    async with site(world, reservation_queue_max=5, reservation_lock_seconds=5) as here:
        gateway = Gateway(here, token)
        await gateway.reserve("r-first")
        with psycopg.connect(world.database.url) as holder:
            holder.execute("select from quotas.windows where budget_id = 'b-1' for update")
            asking = [asyncio.create_task(gateway.reserve(f"r-{n}")) for n in range(5)]
            await asyncio.sleep(0.2)
            full = await gateway.reserve("r-more")
            assert (full.status_code, problem(full), full.headers["retry-after"]) == (503, "queue-full", "1")
            assert "reservations" in (await here.client.get("/readyz")).json()["checks"]
        assert [(await one).status_code for one in asking] == [201] * 5


async def test_a_window_that_somebody_holds_keeps_only_its_tenant_waiting(world: Ledger) -> None:
    add_budget(world, limit="1.00")
    add_budget(world, "b-2", tenant_id="t-beta", limit="1.00")
    token = await make_key(world, source=GATEWAY)
    async with site(world, reservation_flushers=1, reservation_lock_seconds=0.2) as here:
        gateway = Gateway(here, token)
        for tenant_id in ("t-alpha", "t-beta"):
            await gateway.reserve("r-first", tenant_id=tenant_id)
        with psycopg.connect(world.database.url) as holder:
            holder.execute("select from quotas.windows where budget_id = 'b-1' for update")
            blocked, passed = await asyncio.gather(gateway.reserve("r-1"), gateway.reserve("r-2", tenant_id="t-beta"))
            assert (blocked.status_code, problem(blocked)) == (503, "budget-busy")
            assert passed.status_code == 201
        assert (await gateway.reserve("r-1")).status_code == 201


async def test_a_deadline_leaves_the_outcome_open_and_the_same_ask_finds_it(world: Ledger) -> None:
    add_budget(world, limit="1.00")
    token = await make_key(world, source=GATEWAY)
    async with site(world, reservation_deadline_seconds=0.3, reservation_lock_seconds=5) as here:
        gateway = Gateway(here, token)
        await gateway.reserve("r-first")
        with psycopg.connect(world.database.url) as holder:
            holder.execute("select from quotas.windows where budget_id = 'b-1' for update")
            late = await gateway.reserve("r-1")
            assert (late.status_code, problem(late)) == (503, "deadline-passed")
        await asyncio.sleep(0.2)
        assert (await gateway.reserve("r-1")).json()["state"] == "held"
    assert held(world) == 2 * PRICE


async def test_prices_that_changed_are_the_ones_that_count(world: Ledger, gateway: Gateway) -> None:
    add_budget(world, limit="1.00")
    await gateway.reserve("r-1")
    await world.add_price("m-new", input="4.00", output="16.00")
    assert Decimal((await gateway.reserve("r-2", model="m-new")).json()["holds"][0]["held"]) == 2 * PRICE


# --- How it ends ------------------------------------------------------------------------------------------------------


async def test_a_settle_with_its_event_closes_the_reservation_in_the_commit_that_posts_it(
    world: Ledger, gateway: Gateway
) -> None:
    add_budget(world, limit="1.00")
    await gateway.reserve()
    now = datetime.now(UTC).isoformat()
    event = make_event("ev-1", reservation_id="r-1", time=now)
    answer = await gateway.post("reservations/r-1:settle", {"tenant_id": "t-alpha", "event": event})
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert (told["state"], told["is_changed"], told["event"]["outcome"]) == ("settled", True, "created")
    assert world.rows("select posted, held from quotas.windows where budget_id = 'b-1'") == [(PRICE, 0)]
    again = (await gateway.post("reservations/r-1:settle", {"tenant_id": "t-alpha", "event": event})).json()
    assert (again["state"], again["is_changed"], again["event"]["outcome"]) == ("settled", False, "duplicate")
    assert world.total() == PRICE


async def test_an_event_of_another_reservation_settles_nothing(world: Ledger, gateway: Gateway) -> None:
    add_budget(world, limit="1.00")
    await gateway.reserve()
    for event, name in [
        (make_event("ev-1"), "event.data.reservation_id"),
        (make_event("ev-1", reservation_id="r-2"), "event.data.reservation_id"),
        (make_event("ev-1", reservation_id="r-1", tenant_id="t-beta"), "event.data.tenant_id"),
        ([make_event("ev-1", reservation_id="r-1")], "event"),
        (7, "event"),
    ]:
        answer = await gateway.post("reservations/r-1:settle", {"tenant_id": "t-alpha", "event": event})
        assert (answer.status_code, answer.json()["errors"][0]["name"]) == (422, name)
    lost = await gateway.post(
        "reservations/r-9:settle", {"tenant_id": "t-alpha", "event": make_event("ev-1", reservation_id="r-9")}
    )
    assert problem(lost) == "reservation-not-found"
    assert world.value("select count(*) from ledger.entries") == 0


async def test_a_settle_with_an_event_needs_the_right_to_send_events(world: Ledger) -> None:
    token = await make_key(world, "reservations:write", tenant_id="t-alpha")
    async with site(world) as here:
        gateway = Gateway(here, token)
        await gateway.reserve()
        answer = await gateway.post("reservations/r-1:settle", {"event": make_event("ev-1", reservation_id="r-1")})
        assert (problem(answer), answer.json()["scope"]) == ("scope-missing", "events:write")


async def test_a_call_that_ended_holds_what_is_stated_until_its_usage_comes(world: Ledger, gateway: Gateway) -> None:
    add_budget(world, limit="1.00")
    await gateway.reserve()
    told = (await gateway.post("reservations/r-1:settle", {"tenant_id": "t-alpha", "charge": "0.0001"})).json()
    assert (told["state"], told["is_changed"], held(world)) == ("awaiting_entry", True, Decimal("0.0001"))
    voided = (await gateway.post("reservations/r-1:void", {"tenant_id": "t-alpha"})).json()
    assert (voided["state"], voided["is_changed"]) == ("awaiting_entry", False)
    both = await gateway.post("reservations/r-1:settle", {"tenant_id": "t-alpha", "charge": "1", "event": make_event()})
    assert both.json()["errors"][0]["name"] == "event"


async def test_a_void_gives_back_and_an_extension_gives_time(world: Ledger, gateway: Gateway) -> None:
    add_budget(world, limit="1.00")
    before = datetime.fromisoformat((await gateway.reserve()).json()["expires_at"])
    told = (await gateway.post("reservations/r-1:extend", {"tenant_id": "t-alpha", "ttl_seconds": 3600})).json()
    assert (datetime.fromisoformat(told["expires_at"]) - before).total_seconds() > 2900
    assert (await gateway.post("reservations/r-1:void", {"tenant_id": "t-alpha"})).json()["state"] == "voided"
    assert held(world) == 0
    for act, body in (("void", {}), ("extend", {"ttl_seconds": 0})):
        status = (await gateway.post(f"reservations/none:{act}", {"tenant_id": "t-alpha", **body})).status_code
        assert status == (404 if act == "void" else 422)


async def test_an_empty_body_voids_for_a_tenants_key(world: Ledger) -> None:
    token = await make_key(world, tenant_id="t-alpha")
    async with site(world) as here:
        gateway = Gateway(here, token)
        await gateway.reserve("r:1")
        assert (await gateway.post("reservations/r:1:void")).json()["state"] == "voided"


async def test_the_short_cut_and_the_routed_way_answer_alike(world: Ledger, gateway: Gateway) -> None:
    add_budget(world, limit="1.00")
    for name in ("a", "a:settle", "ä b"):
        await gateway.reserve(f"{name}-1")
        await gateway.reserve(f"{name}-2")
        for verb, body in (
            ("extend", {"ttl_seconds": 1, "tenant_id": "t-alpha"}), ("extend", {"ttl_seconds": 0}), ("settle", {"tenant_id": "t-alpha"}),
            ("void", {"tenant_id": "t-alpha"}), ("void", {"tenant_id": "t-nobody"}), ("void", None), ("open", {}),
        ):  # fmt: skip
            one, other = [
                await gateway.post(f"reservations/{name}-{number}:{verb}{query}", body, **{"x-request-id": "r-1"})
                for number, query in ((1, ""), (2, "?x=1"))
            ]
            assert (one.status_code, set(one.headers)) == (other.status_code, set(other.headers)), verb
            told = [{**answer.json(), "reservation_id": None, "expires_at": None} for answer in (one, other)]
            assert told[0] == told[1]
    for path in (
        "reservations/:settle",
        "reservations/a/b:settle",
        "reservations/a%2Fb:settle",
        "reservations/a:settle/",
    ):
        assert (await gateway.post(path, {})).status_code in (404, 405), path


async def test_what_is_queued_is_decided_when_the_app_ends(world: Ledger) -> None:
    add_budget(world, limit="1.00")
    token = await make_key(world, source=GATEWAY)
    async with site(world, reservation_lock_seconds=5) as here:
        gateway = Gateway(here, token)
        await gateway.reserve("r-first")
        with psycopg.connect(world.database.url) as holder:
            holder.execute("select from quotas.windows where budget_id = 'b-1' for update")
            asking = [asyncio.create_task(gateway.reserve(f"r-{n}")) for n in range(20)]
            await asyncio.sleep(0.2)
            closing = asyncio.create_task(here.app.state.services.reserving.close())
            await asyncio.sleep(0.05)
            assert problem(await gateway.reserve("r-late")) == "closing"
        await closing
        assert [(await one).status_code for one in asking] == [201] * 20


async def test_who_has_no_key_learns_that_before_anything_of_the_body(gateway: Gateway) -> None:
    client, text = gateway.here.client, {"content-type": "text/plain"}
    bodies: list[tuple[bytes, dict[str, str], int]] = [
        (b"{}", text, 415), (b" ", {}, 400), (b"x" * (gateway.here.app.state.services.config.reservation_bytes_max + 1), {}, 413),
    ]  # fmt: skip
    for path in ("reservations", "reservations:batch", "reservations/r-1:settle", "reservations/r-1:void", "reservations/r-1:extend"):  # fmt: skip
        for body, headers, status in bodies:
            stranger = await client.post(f"/v1/{path}", content=body, headers=headers)
            assert (stranger.status_code, problem(stranger)) == (401, "unauthenticated"), (path, status)
            wrong = await client.post(
                f"/v1/{path}", content=body, headers={**bearer(gateway.token[:-1] + "!"), **headers}
            )
            assert (wrong.status_code, problem(wrong)) == (401, "unauthenticated"), (path, status)
            known = await client.post(f"/v1/{path}", content=body, headers={**bearer(gateway.token), **headers})
            assert known.status_code == status, (path, status)
