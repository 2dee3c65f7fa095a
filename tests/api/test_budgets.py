"""GET budgets: exact text, the window in force, and nobody else's data."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from ledger.database import connect
from quotas.remaining import window_end
from tests.api.support import Site, add_budget, bearer, make_key, outcomes, problem, site
from tests.factories import GATEWAY, make_event
from tests.support.ledger import Ledger

TOKENS = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}


def only(answer: Any, budget_id: str) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    (found,) = [budget for budget in answer.json()["budgets"] if budget["budget_id"] == budget_id]
    return dict(found)


async def test_a_budget_without_movements_shows_zero_and_its_window(world: Ledger) -> None:
    add_budget(world, limit="100.50")
    token = await make_key(world, tenant_id="t-alpha")
    async with site(world) as here:
        answer = await here.budgets("t-alpha", token, "2026-02-28T23:59:59.999999Z")
    assert only(answer, "b-1") == {
        "budget_id": "b-1",
        "scope": {"tenant_id": "t-alpha"},
        "group": {},
        "unit": "charge",
        "currency": "USD",
        "window": {
            "kind": "month",
            "time_zone": "UTC",
            "first_date": "2026-02-01",
            "end_date": "2026-03-01",
            "starts_at": "2026-02-01T00:00:00Z",
            "ends_at": "2026-03-01T00:00:00Z",
        },
        "limit": "100.5",
        "posted": "0",
        "held": "0",
        "remaining": "100.5",
        "hardness": "hard",
        "is_tightest": True,
        "thresholds_reached": [],
        "unpriced_count": 0,
        "unpriced_tokens": 0,
        "last_batch_id": None,
    }
    assert answer.json()["last_batch_id"] is None


async def test_the_short_cut_and_the_routed_way_answer_alike(world: Ledger) -> None:
    add_budget(world)
    token = await make_key(world, tenant_id="t-alpha")
    asking = {**bearer(token), "x-request-id": "r-1"}
    async with site(world) as here:
        for tenant_id in ("t-alpha", "t-beta", "t-alpha%20", "%2f"):
            short = await here.client.get(f"/v1/tenants/{tenant_id}/budgets", headers=asking)
            routed = await here.client.get(f"/v1/tenants/{tenant_id}/budgets?x=1", headers=asking)
            assert short.status_code == routed.status_code
            if short.status_code == 200:
                assert short.json()["budgets"] == routed.json()["budgets"]
                changing = {"tallystick-database-time", "content-length"}
                told = [{k: v for k, v in answer.headers.items() if k not in changing} for answer in (short, routed)]
                assert told[0] == told[1]
            else:
                assert short.content == routed.content


async def test_what_is_posted_is_seen_by_the_next_read_exactly(world: Ledger) -> None:
    add_budget(world, limit="0.0003")
    token = await make_key(world, source=GATEWAY)
    async with site(world) as here:
        posted = await here.send(make_event("ev-1"), token=token)
        answer = await here.budgets("t-alpha", token, "2026-01-20T00:00:00Z")
        seen = only(answer, "b-1")
        assert (seen["posted"], seen["remaining"]) == ("0.00028", "0.00002")
        assert seen["last_batch_id"] == answer.json()["last_batch_id"] == posted.json()["batch_id"]
        await here.send(make_event("ev-2"), token=token)
        seen = only(await here.budgets("t-alpha", token, "2026-01-20T00:00:00Z"), "b-1")
        # Overrun: below zero, never cut off.
        assert (seen["posted"], seen["remaining"]) == ("0.00056", "-0.00026")


async def test_a_window_turns_at_its_instant(world: Ledger) -> None:
    """B089: 2026-09-01T00:00:00 in Brisbane is 2026-08-31T14:00:00Z."""
    world.add_tenant("t-bne", zone="Australia/Brisbane")
    add_budget(world, "b-bne", tenant_id="t-bne", unit="total_tokens", currency=None, limit="1000")
    token = await make_key(world, source=GATEWAY)
    async with site(world) as here:
        for number, at in enumerate(["2026-08-31T13:59:59.999999Z", "2026-08-31T14:00:00Z"]):
            event = make_event(f"ev-{number}", tenant_id="t-bne", time=at, usage=TOKENS)
            assert outcomes(await here.send(event, token=token)) == ["created"]
        before = only(await here.budgets("t-bne", token, "2026-08-31T13:59:59.999999Z"), "b-bne")
        at = only(await here.budgets("t-bne", token, "2026-09-01T00:00:00+10:00"), "b-bne")
        after = only(await here.budgets("t-bne", token, "2026-08-31T14:00:00.000001Z"), "b-bne")
    assert at == after
    assert (before["posted"], at["posted"], at["remaining"]) == ("110", "110", "890")
    assert before["window"]["ends_at"] == at["window"]["starts_at"] == "2026-08-31T14:00:00Z"
    assert at["window"]["first_date"] == before["window"]["end_date"] == "2026-09-01"


async def test_an_event_on_the_boundary_is_in_exactly_one_window(world: Ledger) -> None:
    """B061: nanoseconds are cut, so the last instant of January stays in January. The sums are counted in tokens."""
    add_budget(world, unit="total_tokens", currency=None, limit=None)
    token = await make_key(world, source=GATEWAY)
    times = {3: "2026-01-31T23:59:59.999999999Z", 5: "2026-02-01T00:00:00Z", 7: "2026-02-28T23:59:59.5Z", 11: "2026-03-01T00:00:00Z"}  # fmt: skip
    async with site(world) as here:
        for count, at in times.items():
            usage = {"prompt_tokens": count, "completion_tokens": 0, "total_tokens": count}
            await here.send(make_event(f"b-{count}", time=at, usage=usage), token=token)
        months = ["2026-01-15T00:00:00Z", "2026-02-15T00:00:00Z", "2026-03-15T00:00:00Z"]
        seen = [only(await here.budgets("t-alpha", token, at), "b-1") for at in months]
    assert [one["posted"] for one in seen] == ["3", "12", "11"]
    assert [one["limit"] for one in seen] == [one["remaining"] for one in seen] == [None] * 3


async def test_a_midnight_that_comes_twice_or_never_begins_the_day_where_it_begins(world: Ledger) -> None:
    """Havana repeats 00:00 to 01:00 on 2025-11-02; Cairo skips it on 2026-04-24."""
    world.add_tenant("t-hav", zone="America/Havana").add_tenant("t-cai", zone="Africa/Cairo")
    add_budget(world, "hav", tenant_id="t-hav", window_kind="day")
    add_budget(world, "cai", tenant_id="t-cai", window_kind="day")
    token = await make_key(world, source=GATEWAY)
    async with site(world) as here:
        havana = only(await here.budgets("t-hav", token, "2025-11-02T04:00:00Z"), "hav")["window"]
        cairo = only(await here.budgets("t-cai", token, "2026-04-23T22:00:00Z"), "cai")["window"]
    assert (havana["first_date"], havana["starts_at"], havana["ends_at"]) == (
        "2025-11-02",
        "2025-11-02T04:00:00Z",
        "2025-11-03T05:00:00Z",
    )
    assert (cairo["first_date"], cairo["starts_at"], cairo["ends_at"]) == (
        "2026-04-24",
        "2026-04-23T22:00:00Z",
        "2026-04-24T21:00:00Z",
    )


@pytest.mark.parametrize(
    ("kind", "days", "anchor"),
    [
        ("day", None, None),
        ("days", 10, date(2026, 1, 7)),
        ("week", None, None),
        ("month", None, None),
        ("anchored_month", None, date(2026, 1, 31)),
        ("anchored_month", None, date(2024, 2, 29)),
        ("anchored_month", None, date(2026, 1, 1)),
    ],
)
async def test_a_window_ends_where_the_next_one_starts(
    ledger: Ledger, kind: str, days: int | None, anchor: date | None
) -> None:
    asked = [date(2023, 12, 20) + timedelta(days=n) for n in range(500)]
    rows = ledger.rows(
        "select day::date, quotas.window_start(%s, %s, %s, day) from unnest(%s::date[]) as day",
        kind,
        days,
        anchor,
        asked,
    )
    for day, start in rows:
        end = window_end(kind, days, anchor, start)
        assert start <= day < end
        assert ledger.value("select quotas.window_start(%s, %s, %s, %s)", kind, days, anchor, end) == end


async def test_a_lifetime_has_no_ends(world: Ledger) -> None:
    add_budget(world, window_kind="lifetime", first_window=date(1, 1, 1))
    token = await make_key(world, tenant_id="t-alpha")
    async with site(world) as here:
        window = only(await here.budgets("t-alpha", token), "b-1")["window"]
    assert [window[name] for name in ("first_date", "end_date", "starts_at", "ends_at")] == [None] * 4


async def test_templates_and_groups_show_what_moved(world: Ledger) -> None:
    add_budget(world, "by-feature", group_by=["feature"])
    add_budget(world, "each-tenant", tenant_id=None, group_by=["tenant_id"], window_kind="day")
    add_budget(world, "account", tenant_id=None, provider_account="acct-1")
    token = await make_key(world, source=GATEWAY)
    at = "2026-01-15T12:00:00Z"
    async with site(world) as here:
        before = (await here.budgets("t-alpha", token, at)).json()["budgets"]
        await here.send(make_event("ev-1", feature="chat", provider_account="acct-1"), token=token)
        await here.send(make_event("ev-2", tenant_id="t-beta", feature="search"), token=token)
        after = (await here.budgets("t-alpha", token, at)).json()["budgets"]
    assert [(b["budget_id"], b["group"], b["posted"]) for b in before] == [
        ("each-tenant", {"tenant_id": "t-alpha"}, "0"),
        ("totals-charge", {"tenant_id": "t-alpha", "currency": "USD"}, "0"),
    ]
    assert [(b["budget_id"], b["group"], b["posted"]) for b in after] == [
        ("by-feature", {"feature": "chat"}, "0.00028"),
        ("each-tenant", {"tenant_id": "t-alpha"}, "0.00028"),
        ("totals-charge", {"tenant_id": "t-alpha", "currency": "USD"}, "0.00028"),
        ("totals-cost", {"tenant_id": "t-alpha", "currency": "USD"}, "0.00028"),
    ]


async def test_scope_conditions_are_shown(world: Ledger) -> None:
    add_budget(world, feature="chat", lane="batch", tags='{"team": "search"}')
    token = await make_key(world, tenant_id="t-alpha")
    async with site(world) as here:
        scope = only(await here.budgets("t-alpha", token), "b-1")["scope"]
    assert scope == {"tenant_id": "t-alpha", "feature": "chat", "lane": "batch", "tags": {"team": "search"}}


async def test_windows_that_nothing_followed_and_ended_budgets_are_not_shown(world: Ledger) -> None:
    add_budget(world, "new", first_window=date(2026, 3, 1))
    add_budget(world, "old", ended_at="2026-03-01T00:00:00Z")
    token = await make_key(world, tenant_id="t-alpha")
    async with site(world) as here:
        february = (await here.budgets("t-alpha", token, "2026-02-28T23:59:59Z")).json()["budgets"]
        march = (await here.budgets("t-alpha", token, "2026-03-01T00:00:00Z")).json()["budgets"]
    assert [b["budget_id"] for b in february] == ["old", "totals-charge"]
    assert [b["budget_id"] for b in march] == ["new", "totals-charge"]


async def test_an_unpriced_request_shows_beside_the_sum(world: Ledger) -> None:
    add_budget(world)
    token = await make_key(world, source=GATEWAY)
    async with site(world) as here:
        await here.send(make_event("ev-1", model="m-nobody-knows"), token=token)
        seen = only(await here.budgets("t-alpha", token, "2026-01-20T00:00:00Z"), "b-1")
    assert (seen["posted"], seen["unpriced_count"]) == ("0", 1)


async def test_an_unchanged_answer_is_not_sent_again(world: Ledger) -> None:
    add_budget(world)
    token = await make_key(world, source=GATEWAY)
    at = "2026-01-20T00:00:00Z"
    async with site(world) as here:
        first = await here.budgets("t-alpha", token, at)
        tag = first.headers["etag"]
        assert tag.startswith('W/"')
        again = await here.budgets("t-alpha", token, at, **{"if-none-match": f'"other", {tag}'})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
        assert datetime.fromisoformat(again.headers["tallystick-database-time"]).tzinfo is not None
        await here.send(make_event(), token=token)
        moved = await here.budgets("t-alpha", token, at, **{"if-none-match": tag})
        assert (moved.status_code, moved.headers["etag"] == tag) == (200, False)
        bulk = await here.client.get("/v1/budgets", params={"at": at}, headers=bearer(token))
        same = await here.client.get(
            "/v1/budgets", params={"at": at}, headers={**bearer(token), "if-none-match": bulk.headers["etag"]}
        )
        assert same.status_code == 304


async def test_the_lag_is_that_of_the_kafka_feeds_in_use(world: Ledger) -> None:
    for name, kind, posted in [
        ("kafka:c:t:0", "kafka", "90 seconds"),
        ("kafka:c:t:1", "kafka", "10 seconds"),
        ("kafka:c:old:0", "kafka", "3 days"),
        ("api:other", "api", "2 hours"),
    ]:
        world.superuser.execute(
            "insert into ledger.feeds (kind, name, posted_until) values (%s, %s, clock_timestamp() - %s::interval)",
            [kind, name, posted],
        )
    token = await make_key(world, tenant_id="t-alpha")
    async with site(world) as here:
        answer = await here.budgets("t-alpha", token)
    feeds = answer.json()["feeds"]
    assert 90_000 <= feeds["lag_ms"] < 120_000
    assert (feeds["in_use_count"], feeds["silent_count"]) == (2, 1)
    assert answer.headers["tallystick-feed-lag-ms"] == str(feeds["lag_ms"])


@pytest.mark.parametrize(
    "at", ["yesterday", "2026-01-15", "2026-01-15T10:00:00", "1999-12-31T23:59:59Z", "9999-12-31T23:59:59Z"]
)
async def test_an_instant_that_is_none_is_refused(world: Ledger, at: str) -> None:
    token = await make_key(world, tenant_id="t-alpha")
    async with site(world) as here:
        answer = await here.budgets("t-alpha", token, at)
    assert (answer.status_code, problem(answer)) == (422, "invalid-request")
    assert answer.json()["errors"][0]["name"] == "at"


# --- Whose ------------------------------------------------------------------------------------------------------------


async def everything(here: Site, token: str, **params: Any) -> Any:
    return await here.client.get("/v1/budgets", params=params, headers=bearer(token))


async def test_a_tenant_sees_itself_and_nothing_tells_it_of_others(world: Ledger) -> None:
    """I11: another tenant's id and one that nobody has are answered alike, byte for byte."""
    add_budget(world, "secret-beta", tenant_id="t-beta")
    token = await make_key(world, tenant_id="t-alpha")
    async with site(world) as here:
        asked = {"x-request-id": "r-1"}
        theirs = await here.budgets("t-beta", token, **asked)
        nobody = await here.budgets("t-nobody", token, **asked)
        strange = await here.budgets("%00", token, **asked)
        bulk = await everything(here, token)
    assert (theirs.status_code, problem(theirs)) == (404, "tenant-not-found")
    assert theirs.content == nobody.content == strange.content
    assert [tenant["tenant_id"] for tenant in bulk.json()["tenants"]] == ["t-alpha"]
    assert "beta" not in bulk.text


async def test_a_source_sees_the_tenants_that_it_speaks_for(world: Ledger) -> None:
    every, beta = await make_key(world, source=GATEWAY), await make_key(world, source="gateway://beta")
    async with site(world) as here:
        assert (await here.budgets("t-beta", beta)).status_code == 200
        assert problem(await here.budgets("t-alpha", beta)) == "tenant-not-found"
        assert problem(await here.budgets("t-nobody", every)) == "tenant-not-found"
        assert [t["tenant_id"] for t in (await everything(here, beta)).json()["tenants"]] == ["t-beta"]
        assert [t["tenant_id"] for t in (await everything(here, every)).json()["tenants"]] == ["t-alpha", "t-beta"]


async def test_all_tenants_come_a_page_at_a_time(world: Ledger) -> None:
    for number in range(5):
        world.add_tenant(f"t-{number}", months=1)
    token = await make_key(world, source=GATEWAY)
    seen: list[str] = []
    after: str | None = ""
    async with site(world, page_tenants_max=3) as here:
        while after is not None:
            page = (await everything(here, token, after=after, limit=100)).json()
            assert len(page["tenants"]) <= 3
            seen += [tenant["tenant_id"] for tenant in page["tenants"]]
            after = page["next"]
        assert problem(await everything(here, token, limit=0)) == "invalid-request"
    assert seen == ["t-0", "t-1", "t-2", "t-3", "t-4", "t-alpha", "t-beta"]


async def test_a_source_of_nobody_gets_an_empty_page(world: Ledger) -> None:
    world.add_source("gateway://new", tenants=[])
    token = await make_key(world, source="gateway://new")
    async with site(world) as here:
        answer = (await everything(here, token)).json()
    assert (answer["tenants"], answer["next"], answer["last_batch_id"]) == ([], None, None)
    assert datetime.fromisoformat(answer["database_time"]) <= datetime.now(UTC) + timedelta(minutes=1)


async def test_a_tenants_key_rules_over_the_body(world: Ledger) -> None:
    token = await make_key(world, tenant_id="t-alpha")
    async with site(world) as here:
        answer = await here.send(make_event("ev-1", tenant_id=...), make_event("ev-2", tenant_id="t-beta"), token=token)
    assert outcomes(answer) == ["created", "dead_letter"]
    assert answer.json()["results"][1]["reason"] == "tenant_not_the_credential"
    assert world.rows("select tenant_id, charge_amount from ledger.entries") == [("t-alpha", Decimal("0.00028"))]


async def test_a_sources_key_speaks_for_its_tenants_only(world: Ledger) -> None:
    token = await make_key(world, source="gateway://beta")
    events = [
        make_event("ev-1", source="gateway://beta", tenant_id="t-beta"),
        make_event("ev-2", source="gateway://beta", tenant_id="t-alpha"),
        make_event("ev-3", tenant_id="t-beta"),
    ]
    async with site(world) as here:
        answer = await here.send(*events, token=token)
    assert outcomes(answer) == ["created", "dead_letter", "dead_letter"]
    assert [r.get("reason") for r in answer.json()["results"]] == [
        None,
        "source_may_not_speak",
        "source_not_the_credential",
    ]


async def test_the_read_role_can_change_nothing(database: Any) -> None:
    async with await connect(database.url_for("tallystick_api")) as connection:
        cursor = await connection.execute(
            "select count(*) from information_schema.role_table_grants"
            " where grantee = 'tallystick_api' and privilege_type <> 'SELECT'"
        )
        assert await cursor.fetchone() == (0,)
