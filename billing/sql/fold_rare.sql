-- The rare meters of the same rows, by the same groups.
with sums as (
    select
        e.tenant_id,
        e.charge_currency,
        e.feature,
        e.provider,
        e.model,
        e.charge_rate_set_id,
        {aside} as aside,
        o.key as meter,
        sum(o.value::numeric) as quantity
    from ledger.entries as e
    cross join lateral jsonb_each_text(e.other_quantities) as o
    where
        e.posting_period = %(month)s
        and e.kind <> 'evidence'
        and e.charge_amount is not null
        and e.other_quantities is not null
        {conditions}
    group by 1, 2, 3, 4, 5, 6, 7, 8
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
    meter,
    quantity
from sums
