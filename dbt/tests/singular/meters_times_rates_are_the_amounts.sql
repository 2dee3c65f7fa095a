-- Assumption: what was used, times the rates that it was priced by, is the cost and the charge of the same days to the last
-- digit, but for differences in money that people stated, which have no meter.
-- Money lost: what a lever saved is priced with these quantities; a meter that is missing or doubled would make a cache or a
-- cheaper model look better than it is, by its whole amount, and somebody would buy more of it.
with same_batches as (
    select count(distinct w.marks) = 1 as is_comparable
    from (
        select array_agg((feed_id, low) order by feed_id)::text as marks
        from {{ source('marts', 'watermarks') }}
        where model in ('fct_meters_daily', 'fct_cost_daily')
        group by model
    ) as w
),

rates as (
    select * from {{ ref('stg_ledger__rates') }}
),

priced as (
    select
        m.tenant_id,
        m.local_date,
        m.cost_currency,
        m.charge_currency,
        coalesce(sum(m.quantity * c.unit_price), 0) as cost_amount,
        coalesce(sum(m.quantity * h.unit_price), 0) as charge_amount
    from {{ ref('fct_meters_daily') }} as m
    left join rates as c on c.rate_set_id = m.cost_rate_set_id and c.meter = m.meter
    left join rates as h on h.rate_set_id = m.charge_rate_set_id and h.meter = m.meter
    where not m.is_avoided
    group by m.tenant_id, m.local_date, m.cost_currency, m.charge_currency
),

stated as (
    select
        e.tenant_id,
        e.local_date,
        coalesce(e.cost_currency::text, '') as cost_currency,
        coalesce(e.charge_currency::text, '') as charge_currency,
        coalesce(sum(e.cost_amount), 0) as cost_amount,
        coalesce(sum(e.charge_amount), 0) as charge_amount
    from {{ source('ledger', 'entries') }} as e
    join {{ source('ledger', 'batches') }} as b on b.batch_id = e.batch_id
    join {{ source('marts', 'watermarks') }} as w
        on w.model = 'fct_meters_daily' and w.feed_id = b.feed_id and b.number <= w.low
    where e.usage_flags @> '{amount_stated}'
    group by 1, 2, 3, 4
),

daily as (
    select
        tenant_id,
        local_date,
        cost_currency,
        charge_currency,
        sum(cost_amount) as cost_amount,
        sum(charge_amount) as charge_amount
    from {{ ref('fct_cost_daily') }}
    group by tenant_id, local_date, cost_currency, charge_currency
)

select
    tenant_id,
    local_date,
    cost_currency,
    charge_currency,
    d.cost_amount,
    p.cost_amount as cost_of_meters,
    d.charge_amount,
    p.charge_amount as charge_of_meters
from daily as d
full join priced as p using (tenant_id, local_date, cost_currency, charge_currency)
left join stated as s using (tenant_id, local_date, cost_currency, charge_currency)
where
    (select is_comparable from same_batches)
    and (
        coalesce(d.cost_amount, 0) <> coalesce(p.cost_amount, 0) + coalesce(s.cost_amount, 0)
        or coalesce(d.charge_amount, 0) <> coalesce(p.charge_amount, 0) + coalesce(s.charge_amount, 0)
    )
