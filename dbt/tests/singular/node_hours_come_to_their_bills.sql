-- Assumption: what tenants used of a node and what was idle come to the node's bill each hour, and so do standard cost, variance and
-- idle; and the bill is the covered time at the rate in force, written out a second time from windows and rates.
-- Money lost: a share that is rounded away each hour, or an hour that is paid twice where windows meet: for 100 nodes at 55 USD
-- an hour, up to 5,500 USD an hour that no tenant's cost shows.
with consumed as (
    select w.*
    from {{ source('ledger', 'node_windows') }} as w
    join {{ source('ledger', 'batches') }} as b on b.batch_id = w.batch_id
    join {{ source('marts', 'watermarks') }} as m
        on m.feed_id = b.feed_id and b.number <= m.low and m.model = 'fct_gpu_allocation_hourly'
),

-- Instants at which something may change, of each window: its start, full hours, starts of rates.
instants as (
    select
        event_key,
        starts_at as at
    from consumed
    union
    select
        w.event_key,
        h.at
    from consumed as w
    cross join lateral generate_series(
        date_trunc('hour', w.starts_at, 'UTC') + interval '1 hour', w.ends_at - interval '1 microsecond', interval '1 hour'
    ) as h (at)
    union
    select
        w.event_key,
        r.effective_at
    from consumed as w
    join {{ source('ledger', 'node_rates') }} as r on r.effective_at > w.starts_at and r.effective_at < w.ends_at
),

stretches as (
    select
        w.node_id,
        w.tenant_id,
        w.body,
        i.at,
        coalesce(lead(i.at) over (partition by w.event_key order by i.at), w.ends_at) as until_at
    from consumed as w
    join instants as i on i.event_key = w.event_key
),

priced as (
    select
        s.node_id,
        date_trunc('hour', s.at, 'UTC') as starts_at,
        r.currency::text as currency,
        r.node_rate_id,
        r.hourly_price,
        s.tenant_id,
        s.body ->> 'provider' as provider,
        coalesce(
            (
                select a.model
                from {{ source('ledger', 'model_aliases') }} as a
                where a.provider = s.body ->> 'provider' and a.alias = s.body ->> 'model'
            ),
            s.body ->> 'model'
        ) as model,
        sum(extract(epoch from s.until_at - s.at)) as seconds
    from stretches as s
    join lateral (
        select r.*
        from {{ source('ledger', 'node_rates') }} as r
        where
            (r.gpu_model, r.gpu_count::text, coalesce(r.mig_profile, ''))
            = (s.body ->> 'gpu_model', s.body ->> 'gpu_count', coalesce(s.body ->> 'mig_profile', ''))
            and coalesce(r.region, s.body ->> 'region', '') = coalesce(s.body ->> 'region', '')
            and coalesce(r.node_id, s.node_id) = s.node_id
            and r.effective_at <= s.at
            and r.content_hash not in (
                select o.replaces
                from {{ source('ledger', 'node_rates') }} as o
                where o.replaces is not null
            )
        order by (r.node_id is not null)::integer * 2 + (r.region is not null)::integer desc, r.effective_at desc
        limit 1
    ) as r on true
    group by 1, 2, 3, 4, 5, 6, 7, 8
),

bills as (
    select
        node_id,
        starts_at,
        currency,
        sum(round(hourly_price * seconds / 3600, 12)) as bill_amount
    from priced
    group by node_id, starts_at, currency
),

hours as (
    select
        node_id,
        starts_at,
        currency,
        sum(bill_amount) as bill_amount,
        sum(node_amount) as shared_amount,
        sum(node_amount) filter (where kind = 'idle')
        + sum(standard_amount) filter (where kind in ('idle', 'request'))
        + case when bool_and(variance_amount is not null) then sum(variance_amount) end as explained_amount
    from {{ ref('fct_gpu_allocation_hourly') }}
    where currency <> ''
    group by node_id, starts_at, currency
)

select
    node_id,
    starts_at,
    currency,
    b.bill_amount as bill_by_windows,
    h.bill_amount,
    h.shared_amount,
    h.explained_amount
from bills as b
full join hours as h using (node_id, starts_at, currency)
where
    b.bill_amount is distinct from h.bill_amount
    or h.bill_amount is distinct from h.shared_amount
    or h.bill_amount <> h.explained_amount
