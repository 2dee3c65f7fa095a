-- question: Which dead letters wait, from whom and why?
-- asked by: on-call
-- one row per: sender as the bytes name it, and reason
select
    coalesce(source, '') as source,
    reason,
    count(*) as letters,
    sum(repeats) as came_again,
    min(first_at) as since,
    count(*) filter (where owner is null) as nobody_looks_after,
    min(detail) as an_example
from ledger.dead_letters
where resolved_at is null
group by 1, 2
order by letters desc, 1, 2
limit {{ var("rows", "50") }}
