-- A month's entries by what prices them: one pass. Sums of counts under one rate set are priced as their parts are, so meters
-- need not be taken apart row by row.
with sums as (
    select
        e.tenant_id,
        e.charge_currency,
        e.feature,
        e.provider,
        e.model,
        e.charge_rate_set_id,
        {aside} as aside,
        sum(e.charge_amount) as charge,
        count(e.other_quantities) as rare_count,
        {meters}
    from ledger.entries as e
    where
        e.posting_period = %(month)s
        and e.kind <> 'evidence'
        -- Without a charge nobody knows what it comes to: seals count them, and nothing is issued over them.
        and e.charge_amount is not null
        {conditions}
    group by 1, 2, 3, 4, 5, 6, 7
)

select
    tenant_id,
    charge_currency::text,
    {service_month} as service_month,
    feature,
    provider,
    model,
    charge_rate_set_id,
    {is_stated} as is_stated,
    charge,
    rare_count,
    {meter_names}
from sums
