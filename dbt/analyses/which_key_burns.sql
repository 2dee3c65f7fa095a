-- question: Which key of a gateway burns now, against what it used a day ago?
-- asked by: on-call
-- one row per: tenant, key and currency, the dearest of the last hour first
with recent as (
    select
        tenant_id,
        api_key_id,
        charge_currency,
        -- Of five minutes, as the mart has them.
        starts_at >= now() - interval '{{ var("ago", "1 hour") }}' as is_now,
        charge_amount,
        request_count,
        charge_unpriced_count
    from {{ ref('fct_signals_5min') }}
    where
        ('{{ var("tenant", "") }}' = '' or tenant_id = '{{ var("tenant", "") }}')
        and (
            starts_at >= now() - interval '{{ var("ago", "1 hour") }}'
            or starts_at >= now() - interval '1 day' - interval '{{ var("ago", "1 hour") }}'
            and starts_at < now() - interval '1 day'
        )
)

select
    tenant_id,
    api_key_id,
    charge_currency,
    sum(charge_amount) filter (where is_now) as now_amount,
    sum(charge_amount) filter (where not is_now) as day_ago_amount,
    sum(request_count) filter (where is_now) as now_requests,
    sum(request_count) filter (where not is_now) as day_ago_requests,
    sum(charge_unpriced_count) as unpriced
from recent
group by tenant_id, api_key_id, charge_currency
order by now_amount desc nulls last, tenant_id, api_key_id
limit {{ var("rows", "20") }}
