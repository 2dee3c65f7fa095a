-- question: How slow is each feature: first token and end to end?
-- asked by: on-call
-- one row per: feature and model
with counted as (
    select
        feature,
        model,
        metric,
        bucket,
        sum(request_count) as requests
    from {{ ref('fct_latency_daily') }}
    where
        metric in ('end_to_end', 'first_token')
        and status = 'ok'
        and served_by = 'model'
        and local_date >= (now() - interval '{{ var("ago", "1 day") }}')::date
        and ('{{ var("tenant", "") }}' = '' or tenant_id = '{{ var("tenant", "") }}')
    group by feature, model, metric, bucket
    having sum(request_count) > 0
),

reached as (
    select
        feature,
        model,
        metric,
        bucket,
        sum(requests) over (own order by bucket) as reached,
        sum(requests) over own as measured
    from counted
    where bucket >= 0
    window own as (partition by feature, model, metric)
),

-- The middle of the bucket that the percentile falls into, within 2.5 %: sixty buckets to a decade, from 0.1 ms on.
percentiles as (
    select
        feature,
        model,
        metric,
        round(0.1 * power(10::numeric, (min(bucket) filter (where reached * 100 >= measured * 50) - 0.5) / 60), 1) as p50,
        round(0.1 * power(10::numeric, (min(bucket) filter (where reached * 100 >= measured * 95) - 0.5) / 60), 1) as p95
    from reached
    group by feature, model, metric
),

totals as (
    select
        feature,
        model,
        sum(requests) filter (where metric = 'end_to_end') as requests,
        coalesce(sum(requests) filter (where metric = 'first_token' and bucket < 0), 0) as without_ttft
    from counted
    group by feature, model
)

select
    t.feature,
    t.model,
    t.requests,
    f.p50 as ttft_ms_p50,
    f.p95 as ttft_ms_p95,
    e.p50 as latency_ms_p50,
    e.p95 as latency_ms_p95,
    t.without_ttft
from totals as t
left join percentiles as e on (e.feature, e.model, e.metric) = (t.feature, t.model, 'end_to_end')
left join percentiles as f on (f.feature, f.model, f.metric) = (t.feature, t.model, 'first_token')
order by latency_ms_p95 desc nulls last, t.feature, t.model
limit {{ var("rows", "50") }}
