-- question: Which usage came after its month had closed, and on which invoice does it land?
-- asked by: finance
-- one row per: tenant, month of the usage, month that it is billed in and currency
select
    e.tenant_id,
    date_trunc('month', e.local_date)::date as month_of_usage,
    e.posting_period,
    e.charge_currency,
    sum(e.request_count) as requests,
    sum(e.charge_amount) as charge_amount,
    max(e.recorded_at - e.occurred_at) as longest_delay,
    coalesce(sum(e.request_count) filter (where e.charge_amount is null), 0) as unpriced
from ledger.periods as p
-- What occurred before a period began, by the index on tenant and time, and nothing else of it.
cross join lateral (
    select r.*
    from ledger.entries as r
    where
        r.tenant_id = p.tenant_id
        and r.posting_period = p.posting_period
        and r.occurred_at < p.starts_at
        and r.kind <> 'evidence'
    offset 0
) as e
where
    p.posting_period >= (now() - interval '{{ var("ago", "3 months") }}')::date
    and ('{{ var("tenant", "") }}' = '' or p.tenant_id = '{{ var("tenant", "") }}')
group by 1, 2, 3, 4
order by 3 desc, charge_amount desc nulls last, 1, 2
limit {{ var("rows", "50") }}
