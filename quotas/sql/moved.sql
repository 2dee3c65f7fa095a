-- What windows hold now, with what it depends on that they are the right ones: versions and clock of the same moment. One row, with a
-- list for each column: a row for each window would repeat all else.
with lag as materialized (
    select
        -- The broker's clock may be ahead of ours.
        max(greatest(extract(epoch from statement_timestamp() - posted_until) * 1000, 0)::bigint) filter (where is_in_use)
            as lag_ms,
        count(*) filter (where is_in_use) as in_use_count,
        count(*) filter (where not is_in_use) as silent_count
    from (
        select
            f.posted_until,
            f.posted_until > statement_timestamp() - interval '1 day' as is_in_use
        from ledger.feeds as f
        where f.kind = 'kafka' and f.posted_until is not null
    ) as feeds
),

moved as materialized (
    select
        a.number,
        w.group_key,
        w.currency,
        w.posted,
        w.held,
        w.unpriced_count,
        w.unpriced_tokens,
        w.last_batch_id,
        case when a.has_own_limits then g.budget_id is not null else false end as has_own_limit,
        g.limit_amount as own_limit
    from unnest(%(tenants)s::text[], %(budgets)s::text[], %(starts)s::date[], %(own_limits)s::boolean[]) with ordinality
        as a (tenant_id, budget_id, window_start, has_own_limits, number)
    -- The empty text keeps the planner from the primary key, by which it would read a template's windows of all tenants.
    join quotas.windows as w
        on w.tenant_id = a.tenant_id
        and w.window_start = a.window_start
        and w.budget_id || '' = a.budget_id
    left join quotas.group_limits as g
        on a.has_own_limits
        and g.budget_id = a.budget_id
        and g.group_key = w.group_key
)

select
    v.parties,
    v.calendar,
    v.budgets,
    statement_timestamp() as read_at,
    l.lag_ms,
    l.in_use_count,
    l.silent_count,
    m.numbers,
    m.group_keys,
    m.currencies,
    m.posted,
    m.held,
    m.unpriced_counts,
    m.unpriced_tokens,
    m.last_batch_ids,
    m.have_own_limits,
    m.own_limits
from ledger.versions as v
cross join lag as l
cross join (
    select
        array_agg(number::integer) as numbers,
        array_agg(group_key) as group_keys,
        array_agg(currency::text) as currencies,
        array_agg(trim_scale(posted)::text) as posted,
        array_agg(trim_scale(held)::text) as held,
        array_agg(unpriced_count) as unpriced_counts,
        array_agg(unpriced_tokens) as unpriced_tokens,
        array_agg(last_batch_id) as last_batch_ids,
        array_agg(has_own_limit) as have_own_limits,
        array_agg(own_limit) as own_limits
    from moved
) as m
