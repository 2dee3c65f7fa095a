-- question: How slow is each feature: first token and end to end?
-- asked by: on-call
-- one row per: feature and model
select
    coalesce(feature, '') as feature,
    model,
    count(*) as requests,
    percentile_disc(0.5) within group (order by ttft_ms) as ttft_ms_p50,
    percentile_disc(0.95) within group (order by ttft_ms) as ttft_ms_p95,
    percentile_disc(0.5) within group (order by latency_ms) as latency_ms_p50,
    percentile_disc(0.95) within group (order by latency_ms) as latency_ms_p95,
    count(*) filter (where ttft_ms is null) as without_ttft
from ledger.entries
where
    kind = 'usage'
    and entry_no = 0
    and latency_ms is not null
    and occurred_at >= now() - interval '{{ var("ago", "1 day") }}'
    and ('{{ var("tenant", "") }}' = '' or tenant_id = '{{ var("tenant", "") }}')
group by 1, 2
order by latency_ms_p95 desc, 1, 2
limit {{ var("rows", "50") }}
