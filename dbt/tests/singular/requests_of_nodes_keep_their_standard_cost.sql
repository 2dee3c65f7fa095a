-- Assumption: every request that a node served, by any of its rows, is in the allocation once, with the tokens and the standard cost
-- that the ledger has of it, in the hour in which it ended.
-- Money lost: a request that is missed uses a node for nothing, and its tenant's cost shows as variance: the whole cost of a call for
-- each.
with reachable as (
    select coalesce(max(posting_period) + interval '1 month' + interval '12 hours', '-infinity') as from_at
    from {{ source('ledger', 'retired_months') }}
    where not is_readable
),

consumed as (
    select e.*
    from {{ source('ledger', 'entries') }} as e
    join {{ source('ledger', 'batches') }} as b on b.batch_id = e.batch_id
    join {{ source('marts', 'watermarks') }} as w
        on w.feed_id = b.feed_id and b.number <= w.low and w.model = 'fct_gpu_allocation_hourly'
    where e.request_key is not null
),

ledger as (
    select
        tenant_id,
        date_trunc('hour', occurred_at, 'UTC') as starts_at,
        sum(request_count) as request_count,
        sum(input_tokens) as input_tokens,
        sum(output_tokens) as output_tokens,
        sum(cost_amount) as standard_amount
    from consumed
    where request_key in (select n.request_key from consumed as n where n.node_id is not null)
    group by 1, 2
),

mart as (
    select
        tenant_id,
        starts_at,
        sum(request_count) as request_count,
        sum(input_tokens) as input_tokens,
        sum(output_tokens) as output_tokens,
        sum(standard_amount) as standard_amount
    from {{ ref('fct_gpu_allocation_hourly') }}
    where kind <> 'idle'
    group by 1, 2
)

select
    tenant_id,
    starts_at,
    l.standard_amount as ledger_amount,
    m.standard_amount as mart_amount,
    l.request_count as ledger_requests,
    m.request_count as mart_requests
from ledger as l
full join mart as m using (tenant_id, starts_at)
cross join reachable as r
where
    starts_at >= r.from_at at time zone 'UTC'
    and (
        coalesce(l.request_count, 0) <> coalesce(m.request_count, 0)
        or coalesce(l.input_tokens, 0) <> coalesce(m.input_tokens, 0)
        or coalesce(l.output_tokens, 0) <> coalesce(m.output_tokens, 0)
        or coalesce(l.standard_amount, 0) <> coalesce(m.standard_amount, 0)
    )
