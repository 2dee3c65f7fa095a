-- question: What has no price, and why?
-- asked by: finance, before an invoice
-- one row per: tenant, model as sent and reason, the most requests first
with days as (
    select distinct
        tenant_id,
        local_date
    from {{ ref('fct_cost_daily') }}
    where
        (cost_unpriced_count <> 0 or cost_unpriced_tokens <> 0 or charge_unpriced_count <> 0 or charge_unpriced_tokens <> 0)
        and ('{{ var("tenant", "") }}' = '' or tenant_id = '{{ var("tenant", "") }}')
),

-- By the index on tenant and time, and no other days.
unpriced as (
    select e.*
    from days as d
    cross join lateral (
        select
            e.tenant_id,
            e.provider,
            coalesce(e.model, e.reported_model, e.requested_model) as model,
            e.unpriced_meters,
            e.request_count,
            coalesce(e.input_tokens, 0) + coalesce(e.output_tokens, 0) as tokens,
            e.occurred_at
        from ledger.entries as e
        where
            e.tenant_id = d.tenant_id
            and e.occurred_at >= (d.local_date - 1)::timestamp at time zone 'UTC'
            and e.occurred_at < (d.local_date + 2)::timestamp at time zone 'UTC'
            and e.local_date = d.local_date
            and e.unpriced_meters <> '{}'
            and e.kind <> 'evidence'
        offset 0
    ) as e
)

select
    u.tenant_id,
    u.provider,
    u.model,
    m.reason,
    sum(u.request_count) as requests,
    sum(u.tokens) as tokens,
    min(u.occurred_at) as since
from unpriced as u
cross join lateral unnest(u.unpriced_meters) as m (reason)
group by 1, 2, 3, 4
-- A report that a priced one replaced folds to nothing.
having sum(u.request_count) <> 0 or sum(u.tokens) <> 0
order by requests desc, tokens desc, 1, 2, 3, 4
limit {{ var("rows", "50") }}
