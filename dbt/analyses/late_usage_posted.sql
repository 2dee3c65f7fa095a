-- question: Which usage came after its month had closed, and on which invoice does it land?
-- asked by: finance
-- one row per: tenant, month of the usage, month that it is billed in and currency
select
    tenant_id,
    date_trunc('month', local_date)::date as month_of_usage,
    posting_period,
    charge_currency,
    sum(request_count) as requests,
    sum(charge_amount) as charge_amount,
    max(recorded_at - occurred_at) as longest_delay,
    count(*) filter (where charge_amount is null) as unpriced_entries
from ledger.entries
where
    kind <> 'evidence'
    and posting_period >= (now() - interval '{{ var("ago", "3 months") }}')::date
    and date_trunc('month', local_date)::date < posting_period
    and ('{{ var("tenant", "") }}' = '' or tenant_id = '{{ var("tenant", "") }}')
group by 1, 2, 3, 4
order by 3 desc, charge_amount desc nulls last, 1, 2
limit {{ var("rows", "50") }}
