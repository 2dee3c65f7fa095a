-- question: Which windows of own GPU nodes served nothing, while somebody pays for them?
-- asked by: capacity, finance
-- one row per: node with windows, the most idle first
with windows as (
    select
        w.node_id,
        w.starts_at,
        w.ends_at,
        exists (
            select from ledger.entries as e
            where e.node_id = w.node_id and e.occurred_at >= w.starts_at and e.occurred_at < w.ends_at
                and e.occurred_at >= now() - interval '{{ var("ago", "7 days") }}'
        ) as had_work
    from ledger.node_windows as w
    where w.starts_at >= now() - interval '{{ var("ago", "7 days") }}'
)

select
    node_id,
    count(*) as windows,
    count(*) filter (where not had_work) as idle_windows,
    sum(ends_at - starts_at) as reported,
    sum(ends_at - starts_at) filter (where not had_work) as idle
from windows
group by node_id
order by idle_windows desc, node_id
limit {{ var("rows", "50") }}
