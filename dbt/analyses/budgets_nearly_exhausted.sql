-- question: Which budgets are about to be exhausted?
-- asked by: on-call
-- one row per: budget and group, in the window in force, the fullest first
with today as (
    select distinct on (tenant_id)
        tenant_id,
        greatest((now() at time zone time_zone)::date, first_day) as local_date
    from ledger.tenant_versions
    order by tenant_id, effective_at <= now() desc, case when effective_at <= now() then effective_at end desc, effective_at
),

limited as (
    select
        b.*,
        -- A group may have a limit of its own; of a prepaid budget, what grants that have ended had left is gone.
        quotas.limit_of(b.limit_amount, g.budget_id, g.limit_amount)
        - (select coalesce(sum(p.lapses), 0) from quotas.turns as p where p.budget_id = b.budget_id and p.at <= now()) as limit_in_force,
        w.tenant_id as window_tenant_id,
        w.group_key,
        w.window_start,
        w.posted,
        w.held
    from quotas.budgets as b
    cross join lateral (
        select *
        from quotas.windows as x
        where x.budget_id = b.budget_id
        offset 0
    ) as w
    left join quotas.group_limits as g on g.budget_id = w.budget_id and g.group_key = w.group_key
    where b.ended_at is null
)

select
    w.window_tenant_id as tenant_id,
    w.budget_id,
    w.group_key,
    w.window_start,
    w.unit,
    w.currency,
    w.hardness,
    w.limit_in_force as limit_amount,
    w.posted,
    w.held,
    w.limit_in_force - w.posted - w.held as remaining,
    round((w.posted + w.held) / w.limit_in_force, 4) as share_used
from limited as w
left join today as t on t.tenant_id = w.window_tenant_id
where
    w.limit_in_force > 0
    and w.posted + w.held >= w.limit_in_force * {{ var("share", "0.8") }}
    -- A budget over all tenants has days of UTC.
    and w.window_start = quotas.window_start(
        w.window_kind, w.window_days, w.anchor,
        case when w.tenant_id is null and not 'tenant_id' = any (w.group_by) then (now() at time zone 'UTC')::date else t.local_date end
    )
    and ('{{ var("tenant", "") }}' = '' or w.window_tenant_id = '{{ var("tenant", "") }}')
order by share_used desc, w.window_tenant_id, w.budget_id, w.group_key
limit {{ var("rows", "50") }}
