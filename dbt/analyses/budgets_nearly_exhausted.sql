-- question: Which budgets are about to be exhausted?
-- asked by: on-call
-- one row per: budget and group in force, the fullest first
select
    w.tenant_id,
    w.budget_id,
    w.group_key,
    w.window_start,
    b.unit,
    b.currency,
    b.hardness,
    b.limit_amount,
    w.posted,
    w.held,
    b.limit_amount - w.posted - w.held as remaining,
    round((w.posted + w.held) / b.limit_amount, 4) as share_used
from quotas.budgets as b
join lateral (
    select distinct on (x.group_key) x.*
    from quotas.windows as x
    where x.budget_id = b.budget_id
    order by x.group_key, x.window_start desc
) as w on true
where
    b.ended_at is null
    and b.limit_amount > 0
    and w.posted + w.held >= b.limit_amount * {{ var("share", "0.8") }}
    and ('{{ var("tenant", "") }}' = '' or w.tenant_id = '{{ var("tenant", "") }}')
order by share_used desc, w.tenant_id, w.budget_id, w.group_key
limit {{ var("rows", "50") }}
