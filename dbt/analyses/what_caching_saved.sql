-- question: What did providers' prompt caches save, at the price of input that is not cached?
-- asked by: finance, engineers
-- one row per: tenant, model and currency of the charge
with cached as (
    select
        e.tenant_id,
        e.model,
        e.charge_currency,
        e.cache_read_tokens as tokens,
        c.price / c.per as cached_price,
        u.price / u.per as uncached_price
    from ledger.entries as e
    join ledger.rates as c on c.rate_set_id = e.charge_rate_set_id and c.meter = 'cache_read_tokens'
    join ledger.rates as u on u.rate_set_id = e.charge_rate_set_id and u.meter = 'uncached_input_tokens'
    where
        e.cache_read_tokens <> 0
        and e.kind <> 'evidence'
        and e.occurred_at >= now() - interval '{{ var("ago", "30 days") }}'
        and ('{{ var("tenant", "") }}' = '' or e.tenant_id = '{{ var("tenant", "") }}')
)

select
    tenant_id,
    model,
    charge_currency,
    sum(tokens) as cached_tokens,
    sum(tokens * uncached_price) as at_full_price,
    sum(tokens * cached_price) as paid,
    sum(tokens * (uncached_price - cached_price)) as saved
from cached
group by tenant_id, model, charge_currency
order by saved desc, tenant_id, model
limit {{ var("rows", "20") }}
