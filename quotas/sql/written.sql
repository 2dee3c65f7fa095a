-- What is done with movements by window and cause: each window is written once, in the order of its key; then what that
-- does to thresholds and to the excess, whose cause is that of the largest movement in its direction.
moved as materialized (
    select
        c.budget_id,
        c.group_key,
        c.window_start,
        max(c.tenant_id) as tenant_id,
        max(c.currency) as currency,
        sum(c.posted) as posted,
        sum(c.held) as held,
        sum(c.unpriced_count)::bigint as unpriced_count,
        sum(c.unpriced_tokens)::bigint as unpriced_tokens,
        max(c.batch_id) as batch_id,
        (array_agg(c.cause order by c.posted + c.held desc, c.cause))[1] as cause_up,
        (array_agg(c.cause order by c.posted + c.held, c.cause))[1] as cause_down
    from caused as c
    group by c.budget_id, c.group_key, c.window_start
    having sum(c.posted) <> 0 or sum(c.held) <> 0 or sum(c.unpriced_count) <> 0 or sum(c.unpriced_tokens) <> 0
),

written as (
    insert into quotas.windows as w (
        budget_id, group_key, window_start, tenant_id, currency, posted, held, unpriced_count, unpriced_tokens, last_batch_id
    )
    select
        m.budget_id, m.group_key, m.window_start, m.tenant_id, m.currency, m.posted, m.held, m.unpriced_count,
        m.unpriced_tokens, m.batch_id
    from moved as m
    order by m.budget_id, m.group_key, m.window_start
    on conflict (budget_id, group_key, window_start) do update set
        posted = w.posted + excluded.posted,
        held = w.held + excluded.held,
        unpriced_count = w.unpriced_count + excluded.unpriced_count,
        unpriced_tokens = w.unpriced_tokens + excluded.unpriced_tokens,
        last_batch_id = excluded.last_batch_id
    returning w.budget_id, w.group_key, w.window_start, w.posted, w.held, w.unpriced_count
),

limited as (
    select
        w.budget_id,
        w.group_key,
        w.window_start,
        m.batch_id,
        m.cause_up,
        m.cause_down,
        b.hardness,
        b.thresholds,
        quotas.limit_of(b.limit_amount, g.budget_id, g.limit_amount) as limit_amount,
        w.posted + w.held as taken,
        w.posted + w.held - m.posted - m.held as taken_before,
        w.unpriced_count > 0 as has_unpriced
    from written as w
    join moved as m using (budget_id, group_key, window_start)
    join quotas.budgets as b using (budget_id)
    left join quotas.group_limits as g on g.budget_id = w.budget_id and g.group_key = w.group_key
    where quotas.limit_of(b.limit_amount, g.budget_id, g.limit_amount) is not null
),

noted as (
    insert into quotas.threshold_notes (budget_id, group_key, window_start, threshold, batch_id)
    select l.budget_id, l.group_key, l.window_start, t.threshold, l.batch_id
    from limited as l
    -- The whole limit is a threshold of every budget that has one: a window that is exhausted always says so.
    cross join unnest(l.thresholds || 1::numeric) as t (threshold)
    where
        (l.taken >= t.threshold * l.limit_amount and l.taken_before < t.threshold * l.limit_amount)
        -- A limit of zero is reached from the start, and noted once something touches it.
        or (l.limit_amount = 0 and (l.taken > 0 or l.has_unpriced))
    on conflict do nothing
),

exceeded as (
    insert into quotas.excess (budget_id, group_key, window_start, batch_id, change, cause)
    select
        l.budget_id,
        l.group_key,
        l.window_start,
        l.batch_id,
        e.change,
        case when e.change > 0 then l.cause_up else l.cause_down end
    from limited as l
    cross join lateral (
        select greatest(l.taken - l.limit_amount, 0) - greatest(l.taken_before - l.limit_amount, 0) as change
    ) as e
    where l.hardness = 'hard' and e.change <> 0
)
