-- question: What did retries, fallbacks, hedges and continuations cost again?
-- asked by: engineers, finance
-- one row per: tenant, feature, kind of attempt and currency
select
    tenant_id,
    coalesce(feature, '') as feature,
    attempt_kind,
    charge_currency,
    sum(request_count) as requests,
    sum(charge_amount) as charge_amount,
    sum(coalesce(input_tokens, 0)) as input_tokens_again,
    count(*) filter (where charge_amount is null) as unpriced_entries
from ledger.entries
where
    attempt_kind <> 'first'
    and kind <> 'evidence'
    and occurred_at >= now() - interval '{{ var("ago", "30 days") }}'
    and ('{{ var("tenant", "") }}' = '' or tenant_id = '{{ var("tenant", "") }}')
group by 1, 2, 3, 4
order by charge_amount desc nulls last, 1, 2, 3
limit {{ var("rows", "20") }}
