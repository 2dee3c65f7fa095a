-- question: What do requests cost that say no feature, and through which route do they come?
-- asked by: finance, engineers
-- one row per: tenant, route, model and currency
select
    tenant_id,
    route,
    model,
    charge_currency,
    sum(charge_amount) as charge_amount,
    sum(request_count) as requests,
    sum(charge_unpriced_count) as unpriced
from {{ ref('fct_cost_daily') }}
where feature = '' and local_date >= date '{{ var("from", "today") }}' - 30 and ('{{ var("tenant", "") }}' = '' or tenant_id = '{{ var("tenant", "") }}')
group by tenant_id, route, model, charge_currency
order by charge_amount desc nulls last, tenant_id, route, model
limit {{ var("rows", "20") }}
