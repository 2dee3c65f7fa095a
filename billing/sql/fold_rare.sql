-- The rare meters of the same rows, by the same groups.
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
    o.key,
    sum(o.value::numeric)
from ledger.entries as e
cross join lateral jsonb_each_text(e.other_quantities) as o
where
    e.posting_period = %(month)s
    and e.tenant_id = any(%(tenant_ids)s)
    and e.kind <> 'evidence'
    and e.charge_amount is not null
    and e.other_quantities is not null
    {conditions}
group by 1, 2, 3, 4, 5, 6, 7, 8, 9
