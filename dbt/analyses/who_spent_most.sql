-- question: Who spent most since midnight (UTC), and on what?
-- asked by: on-call, finance
-- one row per: tenant, feature, model and currency; the dearest first
select
    tenant_id,
    feature,
    model,
    charge_currency,
    sum(charge_amount) as charge_amount,
    sum(request_count) as requests,
    sum(input_tokens + output_tokens) as tokens,
    sum(charge_unpriced_count) as unpriced,
    sum(usage_missing_count) as usage_missing
from {{ ref('fct_usage_hourly') }}
where starts_at >= timestamptz '{{ var("since", "today") }}' and ('{{ var("tenant", "") }}' = '' or tenant_id = '{{ var("tenant", "") }}')
group by tenant_id, feature, model, charge_currency
order by charge_amount desc nulls last, tokens desc, tenant_id, feature, model
limit {{ var("rows", "20") }}
