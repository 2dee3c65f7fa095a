-- question: What do we owe a provider's account by day, to be held against its bill?
-- asked by: finance
-- one row per: account, UTC day and currency of the cost
select
    provider,
    coalesce(provider_account, '') as provider_account,
    (occurred_at at time zone 'UTC')::date as utc_date,
    cost_currency,
    sum(cost_amount) as cost_amount,
    sum(request_count) as requests,
    sum(coalesce(input_tokens, 0)) as input_tokens,
    sum(coalesce(output_tokens, 0)) as output_tokens,
    sum(request_count) filter (where cost_amount is null) as unpriced,
    sum(request_count) filter (where usage_flags @> '{usage_missing}') as usage_missing
from ledger.entries
where
    kind <> 'evidence'
    and occurred_at >= date '{{ var("from", "yesterday") }}'::timestamp at time zone 'UTC'
    and occurred_at < (date '{{ var("to", "today") }}'::timestamp) at time zone 'UTC'
    and ('{{ var("account", "") }}' = '' or provider_account = '{{ var("account", "") }}')
group by 1, 2, 3, 4
order by 3, 1, 2, 4
limit {{ var("rows", "1000") }}
