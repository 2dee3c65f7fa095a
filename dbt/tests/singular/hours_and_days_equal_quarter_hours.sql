-- Assumption: three marts that have consumed the same batches hold the same totals per tenant and currency, since each
-- entry is in exactly one quarter hour, one hour and one local day.
-- Money lost: an entry that falls between two local days (a zone of 5:45, the night of a clock change) is on no report,
-- and one in both is reported twice: its whole charge.
with same_watermark as (
    select count(distinct w.marks) = 1 as is_comparable
    from (
        select
            model,
            array_agg((feed_id, low) order by feed_id)::text as marks
        from {{ source('marts', 'watermarks') }}
        where model in ('fct_usage_15min', 'fct_usage_hourly', 'fct_cost_daily')
        group by model
    ) as w
),

quarter_hours as (
    select
        tenant_id,
        charge_currency,
        sum(request_count) as request_count,
        sum(charge_amount) as charge_amount
    from {{ ref('fct_usage_15min') }}
    group by tenant_id, charge_currency
),

hours as (
    select
        tenant_id,
        charge_currency,
        sum(request_count) as request_count,
        sum(charge_amount) as charge_amount
    from {{ ref('fct_usage_hourly') }}
    group by tenant_id, charge_currency
),

days as (
    select
        tenant_id,
        charge_currency,
        sum(request_count) as request_count,
        sum(charge_amount) as charge_amount
    from {{ ref('fct_cost_daily') }}
    group by tenant_id, charge_currency
)

select
    tenant_id,
    charge_currency,
    q.charge_amount as charge_by_quarter_hours,
    h.charge_amount as charge_by_hours,
    d.charge_amount as charge_by_days
from quarter_hours as q
full join hours as h using (tenant_id, charge_currency)
full join days as d using (tenant_id, charge_currency)
cross join same_watermark as s
where
    s.is_comparable
    and (
        q.charge_amount is distinct from h.charge_amount
        or q.charge_amount is distinct from d.charge_amount
        or q.request_count is distinct from h.request_count
        or q.request_count is distinct from d.request_count
    )
