-- question: What did providers' prompt caches save, at the price of input that is not cached?
-- asked by: finance, engineers
-- one row per: tenant, model and currency of the charge
select
    m.tenant_id,
    m.model,
    m.charge_currency,
    sum(m.quantity) as cached_tokens,
    sum(m.quantity * u.price / u.per) filter (where c.price is not null) as at_full_price,
    sum(m.quantity * c.price / c.per) filter (where u.price is not null) as paid,
    sum(m.quantity * (u.price / u.per - c.price / c.per)) as saved,
    -- Of the cached tokens, those without a price on one side: in none of the amounts.
    coalesce(sum(m.quantity) filter (where u.price is null or c.price is null), 0) as unpriced_tokens
from {{ ref('fct_meters_daily') }} as m
left join ledger.rates as c on c.rate_set_id = m.charge_rate_set_id and c.meter = 'cache_read_tokens'
left join ledger.rates as u on u.rate_set_id = m.charge_rate_set_id and u.meter = 'uncached_input_tokens'
where
    m.meter = 'cache_read_tokens'
    and not m.is_avoided
    and m.local_date >= (now() - interval '{{ var("ago", "30 days") }}')::date
    and ('{{ var("tenant", "") }}' = '' or m.tenant_id = '{{ var("tenant", "") }}')
group by m.tenant_id, m.model, m.charge_currency
order by saved desc nulls last, m.tenant_id, m.model
limit {{ var("rows", "20") }}
