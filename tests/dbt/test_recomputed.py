"""The strategy `recomputed`: touched buckets are folded again whole, and take the place of what stood."""

import shutil
from decimal import Decimal
from pathlib import Path

import pytest

from tallystick import rollup
from tests.dbt.conftest import Marts
from tests.dbt.test_rollup import set_up, usage
from tests.factories import NODE, make_event

MARTS = ("fct_usage_hourly", "fct_largest_hourly", "fct_from_hours")

LARGEST = """
{%- set columns = ["tenant_id", "starts_at", "feature"] -%}
{{ config(one_row_per(columns, buckets=["tenant_id", "starts_at"])) }}

with unconsumed as (
    {{ unconsumed(ref('int_entries_measured')) }}
),

touched as (
    select distinct
        tenant_id,
        hour_at as starts_at
    from unconsumed
),

hours as (
    select
        *,
        starts_at + interval '1 hour' as ends_at
    from touched
),

entries as (
    {{ entries_within('hours', ref('int_entries_measured')) }}
),

shares as (
    select
        tenant_id,
        bucket_starts_at as starts_at,
        feature,
        sum(input_tokens) as input_tokens,
        max(sum(input_tokens)) over (partition by tenant_id, bucket_starts_at) as largest_tokens
    from entries
    group by 1, 2, 3
    having sum(request_count) > 0
),

replaced as (
    {{ replacing('shares', 'touched') }}
)

select * from replaced
"""
"""Of each tenant and hour its features, each beside the largest of them: what no sum of parts can tell."""

FROM_HOURS = """
{%- set columns = ["tenant_id", "starts_at"] -%}
{{ config(one_row_per(columns, buckets=columns)) }}

with unconsumed as (
    {{ unconsumed(ref('int_entries_measured')) }}
),

touched as (
    select distinct
        tenant_id,
        hour_at as starts_at
    from unconsumed
),

hours as (
    select
        h.tenant_id,
        h.starts_at,
        sum(h.input_tokens) as input_tokens
    from touched as t
    join {{ ref('fct_usage_hourly') }} as h on h.tenant_id = t.tenant_id and h.starts_at = t.starts_at
    group by 1, 2
),

replaced as (
    {{ replacing('hours', 'touched') }}
)

select * from replaced
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project with two marts more, in a copy of its own, which dbt reads once."""
    copy = tmp_path_factory.mktemp("recomputed") / "dbt"
    shutil.copytree(rollup.PROJECT, copy)
    (copy / "models" / "marts" / "billing" / "fct_largest_hourly.sql").write_text(LARGEST)
    (copy / "models" / "marts" / "billing" / "fct_from_hours.sql").write_text(FROM_HOURS)
    return copy


@pytest.fixture
def with_models(marts: Marts, project: Path, monkeypatch: pytest.MonkeyPatch) -> Marts:
    monkeypatch.setattr(rollup, "PROJECT", project)
    marts.home = project.parent
    return marts


def largest(marts: Marts) -> list[tuple[object, ...]]:
    return marts.ledger.rows(
        "select extract(hour from starts_at at time zone 'UTC')::int, feature, input_tokens, largest_tokens"
        " from marts.fct_largest_hourly order by 1, 2"
    )


async def test_touched_buckets_are_folded_again_whole_and_others_stay(with_models: Marts) -> None:
    """Chat 100 and search 300 at ten; then 500 more of chat come late: all rows of the hour change, those of eleven do not."""
    marts = with_models
    await set_up(marts)
    await marts.post(
        make_event("a", time="2026-01-15T10:00:00Z", feature="chat", usage=usage(100)),
        make_event("b", time="2026-01-15T10:59:59Z", feature="search", usage=usage(300)),
        make_event("c", time="2026-01-15T11:00:00Z", feature="chat", usage=usage(7)),
    )
    marts.roll_up(*MARTS)
    assert largest(marts) == [(10, "chat", 100, 300), (10, "search", 300, 300), (11, "chat", 7, 7)]
    before = marts.ledger.rows("select ctid::text from marts.fct_largest_hourly where starts_at = '2026-01-15 11:00Z'")
    await marts.post(make_event("late", time="2026-01-15T10:30:00Z", feature="chat", usage=usage(500)))
    marts.roll_up(*MARTS)
    assert largest(marts) == [(10, "chat", 600, 600), (10, "search", 300, 600), (11, "chat", 7, 7)]
    assert (
        marts.ledger.rows("select ctid::text from marts.fct_largest_hourly where starts_at = '2026-01-15 11:00Z'")
        == before
    )
    piecemeal = largest(marts)
    marts.rebuild("fct_largest_hourly")
    assert largest(marts) == piecemeal


async def test_a_bucket_of_which_nothing_is_left_is_gone(with_models: Marts) -> None:
    """A request moves from no feature to chat; then it is withdrawn, and the hour holds nothing."""
    marts = with_models
    await set_up(marts)
    await marts.post(make_event("n", source=NODE, request_id="r", feature=..., usage=usage(40), final=False))
    marts.roll_up(*MARTS)
    assert largest(marts) == [(10, "", 40, 40)]
    await marts.post(make_event("g", request_id="r", feature="chat", usage=usage(40)))
    marts.roll_up(*MARTS)
    assert largest(marts) == [(10, "chat", 40, 40)]
    await marts.post(make_event("v", source=NODE, request_id="x", usage=usage(5), final=False))
    await marts.post(make_event("w", request_id="x", status="void", usage=...))
    marts.roll_up(*MARTS)
    assert largest(marts) == [(10, "chat", 40, 40)]
    assert marts.ledger.rows("select input_tokens from marts.fct_from_hours") == [(Decimal(40),)]


async def test_a_mart_made_from_another_goes_no_further_than_that_one(with_models: Marts) -> None:
    """Run alone, it would fold hours that are behind, and mark their batches as consumed."""
    marts = with_models
    await set_up(marts)
    await marts.post(make_event("a", usage=usage(1)))
    marts.roll_up(*MARTS)
    await marts.post(make_event("b", usage=usage(10)))
    rollup.run_rollup(marts.url, marts.home, select=("fct_from_hours",))
    assert marts.ledger.rows(
        "select model, low from marts.watermarks where model in ('fct_from_hours', 'fct_usage_hourly') order by 1"
    ) == [("fct_from_hours", 1), ("fct_usage_hourly", 1)]
    marts.roll_up(*MARTS)
    assert marts.ledger.rows("select input_tokens from marts.fct_from_hours") == [(Decimal(11),)]
