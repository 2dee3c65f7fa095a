-- question: Where do gateway and node report the same request differently?
-- asked by: engineers, finance
-- one row per: pair of senders and tenant
select
    tenant_id,
    stood_source,
    said_source,
    count(*) as pairs,
    count(*) filter (where is_counted) as counted,
    sum(said_charge - stood_charge) as charge_apart,
    charge_currency,
    max(recorded_at) as last_at
from ledger.differences
where recorded_at >= now() - interval '{{ var("ago", "30 days") }}' and ('{{ var("tenant", "") }}' = '' or tenant_id = '{{ var("tenant", "") }}')
group by tenant_id, stood_source, said_source, charge_currency
order by pairs desc, tenant_id, stood_source, said_source
limit {{ var("rows", "50") }}
