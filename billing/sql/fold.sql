-- A month's entries of some tenants by what prices them: one pass. Sums of counts under one rate set are priced as their parts
-- are, so meters need not be taken apart row by row.
select
    e.tenant_id,
    e.charge_currency::text,
    case
        when e.local_date >= %(month)s::date then %(month)s::date
        else date_trunc('month', e.local_date::timestamp)::date
    end as service_month,
    e.feature,
    e.provider,
    e.model,
    e.charge_rate_set_id,
    e.usage_flags @> '{amount_stated}' as is_stated,
    sum(e.charge_amount),
    count(e.other_quantities),
    {meters}
from ledger.entries as e
where
    e.posting_period = %(month)s
    and e.tenant_id = any(%(tenant_ids)s)
    and e.kind <> 'evidence'
    -- Without a charge nobody knows what it comes to: seals count them, and nothing is issued over them.
    and e.charge_amount is not null
    {conditions}
group by 1, 2, 3, 4, 5, 6, 7, 8
