-- question: Which feature of which tenant costs more than in the week before?
-- asked by: finance, product
-- one row per: tenant, feature and currency, the largest growth first
with weeks as (
    select
        tenant_id,
        feature,
        charge_currency,
        sum(charge_amount) filter (where local_date > date '{{ var("day", "yesterday") }}' - 7) as this_week,
        sum(charge_amount) filter (where local_date <= date '{{ var("day", "yesterday") }}' - 7) as week_before,
        sum(request_count) filter (where local_date > date '{{ var("day", "yesterday") }}' - 7) as requests,
        sum(request_count) filter (where local_date <= date '{{ var("day", "yesterday") }}' - 7) as requests_before,
        sum(charge_unpriced_count) as unpriced
    from {{ ref('fct_cost_daily') }}
    where
        local_date > date '{{ var("day", "yesterday") }}' - 14
        and local_date <= date '{{ var("day", "yesterday") }}'
        and ('{{ var("tenant", "") }}' = '' or tenant_id = '{{ var("tenant", "") }}')
    group by tenant_id, feature, charge_currency
)

select
    *,
    coalesce(this_week, 0) - coalesce(week_before, 0) as growth
from weeks
order by growth desc, tenant_id, feature
limit {{ var("rows", "20") }}
