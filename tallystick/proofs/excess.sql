-- The causes sum to the excess: what the notes of a window say of how far it is above its hard limit, and how far it is.
with noted as (
    select
        budget_id,
        group_key,
        window_start,
        sum(change) as amount
    from quotas.excess
    group by budget_id, group_key, window_start
),

found as (
    select
        w.budget_id,
        w.group_key,
        w.window_start,
        w.tenant_id,
        case
            when b.hardness = 'hard' and l.limit_amount is not null then greatest(w.posted + w.held - l.limit_amount, 0)
            else 0
        end as amount
    from quotas.windows as w
    join quotas.budgets as b on b.budget_id = w.budget_id
    left join quotas.group_limits as g on g.budget_id = w.budget_id and g.group_key = w.group_key
    cross join lateral (select quotas.limit_of(b.limit_amount, g.budget_id, g.limit_amount) as limit_amount) as l
)

select
    format(
        'budget %s%s of %s, window of %s: is %s above its limit, the noted causes sum to %s',
        budget_id, case when group_key <> '' then ' ' || group_key end, coalesce('tenant ' || f.tenant_id, 'all tenants'),
        window_start,
        trim_scale(coalesce(f.amount, 0)), trim_scale(coalesce(n.amount, 0))
    ) as failure
from found as f
full join noted as n using (budget_id, group_key, window_start)
where coalesce(f.amount, 0) <> coalesce(n.amount, 0)
