-- question: What took hard budgets above their limits?
-- asked by: finance, on-call
-- one row per: budget, window and cause; the causes of a window sum to its excess
select
    budget_id,
    group_key,
    window_start,
    cause,
    sum(change) as excess,
    count(*) as movements,
    max(at) as last_at
from quotas.excess
where at >= now() - interval '{{ var("ago", "30 days") }}'
group by budget_id, group_key, window_start, cause
having sum(change) <> 0
order by excess desc, budget_id, window_start, cause
limit {{ var("rows", "50") }}
