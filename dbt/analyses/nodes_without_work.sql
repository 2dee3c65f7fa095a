-- question: What do own GPU nodes cost while they serve nothing?
-- asked by: capacity, finance
-- one row per: node and currency of its rate, the dearest idle time first; an empty currency is a node without a rate
select
    node_id,
    currency,
    sum(window_count) as windows,
    round(sum(covered_us) / 3600000000.0, 2) as covered_hours,
    round(sum(covered_us - busy_us) / 3600000000.0, 2) as idle_hours,
    sum(bill_amount) as bill_amount,
    sum(node_amount) as idle_amount,
    count(*) filter (where bill_amount is null) as hours_without_rate
from {{ ref('fct_gpu_allocation_hourly') }}
where kind = 'idle' and starts_at >= now() - interval '{{ var("ago", "7 days") }}'
group by node_id, currency
order by idle_amount desc nulls last, idle_hours desc, node_id, currency
limit {{ var("rows", "50") }}
