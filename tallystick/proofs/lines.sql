-- A priced entry is the sum of its lines, quantity times the rate that its rate set names, digit for digit.
with lines as (
    select
        posting_period,
        entry_id,
        sum(amount) filter (where book = 'cost') as cost,
        sum(amount) filter (where book = 'charge') as charge
    from ledger.entry_lines
    where entry_id >= {first_batch}::bigint * 65536
    group by posting_period, entry_id
)

select
    format(
        'entry %s of tenant %s: its amounts are cost %s and charge %s, its lines sum to %s and %s', e.entry_id, e.tenant_id,
        trim_scale(e.cost_amount), trim_scale(e.charge_amount), trim_scale(coalesce(l.cost, 0)), trim_scale(coalesce(l.charge, 0))
    ) as failure
from {entries} as e
left join lines as l on l.posting_period = e.posting_period and l.entry_id = e.entry_id
where
    e.kind <> 'evidence'
    and (
        e.cost_amount <> coalesce(l.cost, 0)
        or e.charge_amount <> coalesce(l.charge, 0)
    )
