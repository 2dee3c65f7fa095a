-- question: What do we owe a provider's account by day, to be held against its bill?
-- asked by: finance
-- one row per: account, UTC day and currency of the cost
select
    e.provider,
    coalesce(e.provider_account, '') as provider_account,
    (e.occurred_at at time zone 'UTC')::date as utc_date,
    e.cost_currency,
    sum(e.cost_amount) as cost_amount,
    sum(e.request_count) as requests,
    sum(coalesce(e.input_tokens, 0)) as input_tokens,
    sum(coalesce(e.output_tokens, 0)) as output_tokens,
    sum(e.request_count) filter (where e.cost_amount is null) as unpriced,
    sum(e.request_count) filter (where e.usage_flags @> '{usage_missing}') as usage_missing
from ledger.tenants as t
-- By the index on tenant and time, tenant by tenant.
cross join lateral (
    select r.*
    from ledger.entries as r
    where
        r.tenant_id = t.tenant_id
        and r.occurred_at >= date '{{ var("from", "yesterday") }}'::timestamp at time zone 'UTC'
        and r.occurred_at < (date '{{ var("to", "today") }}'::timestamp) at time zone 'UTC'
        and r.kind <> 'evidence'
        and ('{{ var("account", "") }}' = '' or r.provider_account = '{{ var("account", "") }}')
    offset 0
) as e
group by 1, 2, 3, 4
order by 3, 1, 2, 4
limit {{ var("rows", "1000") }}
