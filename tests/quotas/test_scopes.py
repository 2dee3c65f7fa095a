"""Each unit in each window and scope; provider accounts across tenants; changes of budgets while usage is posted."""

import asyncio
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ingest.intake import Intake, Message
from ledger import feeds
from ledger.database import connect
from ledger.times import parse_rfc3339
from quotas import budgets
from quotas.budgets import Changes
from quotas.tables import UNITS, WINDOWS
from quotas.terms import GroupLimit
from tests.factories import event_bytes, make_event
from tests.quotas.support import (
    RECEIVED,
    add_price,
    differences,
    end_budget,
    grouped,
    set_budget,
    spend,
    spending,
    windows,
)
from tests.support.ledger import Ledger
from tests.support.soak import examples

WINDOW: dict[str, dict[str, Any]] = {
    "days": {"window_days": 7, "anchor": date(2026, 3, 4)},
    "anchored_month": {"anchor": date(2026, 1, 31)},
}
STARTS = {
    "day": "2026-03-10", "days": "2026-03-04", "week": "2026-03-09", "month": "2026-03-01",
    "anchored_month": "2026-02-28", "lifetime": "0001-01-01",
}  # fmt: skip
# 100 in, of which 40 from a cache, and 10 out: 60 x 1.00 + 40 x 0.50 + 10 x 2.00 millionths.
USED = {
    "charge": "0.0001", "cost": "0.0001", "total_tokens": "110", "input_tokens": "100", "output_tokens": "10",
    "input_tokens_without_cache_reads": "60", "requests": "1",
}  # fmt: skip
ASKED: dict[str, Any] = {
    "feature": "chat", "route": "fast", "lane": "batch", "api_key_id": "key-1", "user_hash": "u-1",
    "tags": {"team": "a", "stage": "b"}, "provider_account": "acc-1",
}  # fmt: skip
SCOPES: dict[str, dict[str, Any]] = {
    "tenant": {}, "feature": {"feature": "chat"}, "model": {"model": "m-sub"}, "route": {"route": "fast"},
    "lane": {"lane": "batch"}, "user": {"user_hash": "u-1"}, "tags": {"tags": {"team": "a"}},
    "account": {"provider_account": "acc-1"}, "account of all tenants": {"provider_account": "acc-1", "tenant_id": None},
    "all of it": {"feature": "chat", "model": "m-sub", "route": "fast", "lane": "batch", "user_hash": "u-1", "tags": {"team": "a"}},
}  # fmt: skip


async def world(ledger: Ledger) -> None:
    await ledger.add_price(input="1.00", cached="0.50", output="2.00")
    ledger.superuser.execute(
        "insert into ledger.provider_accounts (provider_account, provider, currency) values ('acc-1', 'openai', 'USD')"
    )
    ledger._raised("parties")


@pytest.mark.parametrize("window", WINDOWS)
async def test_every_unit_counts_in_every_scope_of_a_window(ledger: Ledger, window: str) -> None:
    """One call that is in each scope, and one that is in none but the tenant's: 7 units x 10 scopes, each its own number."""
    await world(ledger)
    for unit in UNITS:
        for scope, values in SCOPES.items():
            await set_budget(
                ledger, now="2026-03-10T12:00:00Z", budget_id=f"{unit} {scope}", unit=unit, window=window,
                **WINDOW.get(window, {}), **values,
            )  # fmt: skip
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 40}}
    at = "2026-03-10T12:00:00Z"
    await ledger.post(make_event("e1", usage=usage, time=at, **ASKED), received_at=RECEIVED)
    other = {
        "feature": "mail", "route": "slow", "lane": "interactive", "user_hash": "u-2", "tags": {"team": "b"}, "model": "m-nobody",
        "requested_model": "m-nobody",
    }  # fmt: skip
    await ledger.post(make_event("e2", usage=usage, time=at, **other), received_at=RECEIVED)
    for unit in UNITS:
        for scope in SCOPES:
            is_tenants = scope == "tenant" and unit not in ("charge", "cost")
            expected = str(Decimal(USED[unit]) * (2 if is_tenants else 1))
            assert windows(ledger, f"{unit} {scope}") == {STARTS[window]: expected}, (unit, scope)
    assert differences(ledger) == []


async def test_a_provider_account_is_counted_across_tenants(ledger: Ledger) -> None:
    """2.00 of one tenant and 3.00 of another on the same account, by the days of UTC; 4.00 on another account are not in it."""
    ledger.add_tenant("t-tokyo", zone="Asia/Tokyo")
    await world(ledger)
    for unit in ("cost", "requests", "total_tokens"):
        await set_budget(
            ledger, budget_id=unit, tenant_id=None, provider_account="acc-1", unit=unit, window="day", since=date(2026, 3, 1),
            limit="4",
        )  # fmt: skip
    await spend(ledger, "e1", "2.00", "2026-03-10T23:59:59Z", provider_account="acc-1")
    await spend(ledger, "e2", "3.00", "2026-03-10T15:00:00Z", provider_account="acc-1", tenant_id="t-tokyo")
    await spend(ledger, "e3", "4.00", provider_account="acc-2")
    assert windows(ledger, "cost") == {"2026-03-10": "5"}
    assert windows(ledger, "requests") == {"2026-03-10": "2"}
    assert windows(ledger, "total_tokens") == {"2026-03-10": "5000000"}
    assert ledger.rows(
        "select trim_scale(change)::text from quotas.excess where budget_id = 'cost' order by excess_id"
    ) == [("1",)]


async def test_a_template_by_tenant_and_account_gives_each_its_own(ledger: Ledger) -> None:
    ledger.add_tenant("t-beta")
    await world(ledger)
    await set_budget(ledger, tenant_id=None, group_by=("provider_account", "tenant_id"), limit="1")
    for tenant_id in ("t-alpha", "t-beta"):
        await spend(ledger, f"e-{tenant_id}", "2.00", provider_account="acc-1", tenant_id=tenant_id)
    assert grouped(ledger) == {
        ('["acc-1", "t-alpha"]', "2026-03-01"): "2", ('["acc-1", "t-beta"]', "2026-03-01"): "2",
    }  # fmt: skip


async def test_budgets_change_while_usage_is_posted_and_lose_nothing(ledger: Ledger) -> None:
    """A writer posts 40 batches while budgets are made, changed, replaced and ended: each holds what the ledger folds to."""
    await add_price(ledger)
    await set_budget(ledger, limit="10")
    writer = ledger.database.url_for("tallystick_writer")

    async def write() -> int:
        async with await connect(writer) as connection:
            held = await feeds.claim(connection, "file", "file:load")
        intake = await Intake.open(writer, held, patience=5)
        created = 0
        for number in range(40):
            events = [spending(f"{number}-{each}", "0.25", feature=each) for each in ("chat", "search")]
            message = Message(event_bytes(*events), parse_rfc3339(RECEIVED), "test")
            posted = await intake.post(await intake.read([message]))
            created += [result.outcome for result in posted.results].count("created")
        await intake.close()
        return created

    async def administer() -> None:
        for number in range(10):
            await set_budget(ledger, budget_id=f"n-{number}", feature="chat", tags={"n": str(number)}, limit="1")
            if number < 2:
                await set_budget(
                    ledger, budget_id=f"g-{number}", group_by=("feature",), window="day", unit=UNITS[-number], limit="3"
                )
            async with await connect(ledger.database.url_for("tallystick_operator")) as connection:
                await budgets.change_budget(connection, "test", "b", Changes(terms={"limit": Decimal(number)}))
            if number % 2:
                await end_budget(ledger, f"n-{number}")

    created, _ = await asyncio.gather(write(), administer())
    assert created == 80
    assert windows(ledger) == {"2026-03-01": "20"}
    assert differences(ledger) == []
    above = "select sum(change) from quotas.excess where budget_id = 'b'"
    assert ledger.value(above) == Decimal(20) - 9, "the causes sum to the excess, however limit and usage moved"
    assert ledger.value("select deadlocks from pg_stat_database where datname = current_database()") == 0


# Budgets whose row is not what their newest version says, term by term, and limits of groups.
OUT_OF_STEP = """
select b.budget_id, v.terms
from quotas.budgets as b
cross join lateral (
    select n.terms from quotas.budget_versions as n where n.budget_id = b.budget_id order by n.version desc limit 1
) as v
where
    b.budget_id !~ '^totals-'
    and (
        select jsonb_object_agg(t.key, case when jsonb_typeof(t.value) = 'number' then to_jsonb(t.value::text) else t.value end)
        from jsonb_each(to_jsonb(b)) as t
        where v.terms ? t.key and t.key <> 'thresholds'
    ) || jsonb_build_object(
        'thresholds', to_jsonb(b.thresholds::text[]),
        'group_limits',
        coalesce(
            (select jsonb_object_agg(g.group_key, g.limit_amount::text) from quotas.group_limits as g where g.budget_id = b.budget_id),
            '{}'
        )
    ) is distinct from v.terms
"""


@settings(max_examples=examples(15), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    moves=st.lists(
        st.one_of(
            st.tuples(
                st.just("spend"), st.sampled_from(["chat", "search", "mail"]), st.sampled_from(["0.25", "0.75", "1.5"])
            ),
            st.tuples(st.just("limit"), st.sampled_from(["0", "1", "2", "none"]), st.just("")),
            st.tuples(st.just("own"), st.sampled_from(["chat", "search"]), st.sampled_from(["0", "0.5", "3", "none"])),
            st.tuples(st.just("hardness"), st.sampled_from(["hard", "soft", "shadow"]), st.just("")),
        ),
        min_size=1,
        max_size=8,
    )
)
async def test_the_changes_of_each_groups_excess_sum_to_it_however_its_limits_move(
    ledger: Ledger, moves: list[tuple[str, str, str]]
) -> None:
    """Usage, the limit of all, limits of groups and hardness, in any order: each window's notes sum to its excess."""
    if not ledger.value("select count(*) from ledger.cards"):
        await add_price(ledger)
        await set_budget(ledger, group_by=("feature",), limit="1")

    def amount(text: str) -> Decimal | None:
        return None if text == "none" else Decimal(text)

    async with await connect(ledger.database.url_for("tallystick_operator")) as connection:
        for kind, what, value in moves:
            if kind == "spend":
                number = ledger.value("select count(*) from ledger.entries")
                await spend(ledger, f"e-{number}", value, feature=what)
                continue
            terms: dict[str, Any] = {"hardness": what}
            if kind == "limit":
                terms = {"limit": amount(what)}
            elif kind == "own":
                terms = {"group_limits": [GroupLimit(group={"feature": what}, limit=amount(value))]}
            await budgets.change_budget(connection, "test", "b", Changes(terms=terms))
    assert differences(ledger) == []
    assert ledger.rows(OUT_OF_STEP) == []
    broken = ledger.rows(
        """
        select w.group_key, e.excess, l.amount
        from quotas.windows as w
        join quotas.budgets as b using (budget_id)
        left join quotas.group_limits as g using (budget_id, group_key)
        cross join lateral (
            select case when b.hardness = 'hard'
                then greatest(w.posted + w.held - quotas.limit_of(b.limit_amount, g.budget_id, g.limit_amount), 0) end as amount
        ) as l
        left join (select group_key, sum(change) as excess from quotas.excess where budget_id = 'b' group by 1) as e using (group_key)
        where w.budget_id = 'b' and coalesce(e.excess, 0) <> coalesce(l.amount, 0)
        """
    )
    assert broken == []
