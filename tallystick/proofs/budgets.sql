-- Every window of every budget in force equals the fold of the ledger by the rule that the trigger uses, both ways; what
-- any window holds is the sum of its reservations' holds; and what was posted under those is what their entries say. Windows
-- that begin in or before a month whose rows have left cannot be folded; of the totals, totals.sql compares them.
with folded as (
    select *
    from quotas.fold_windows(null)
    -- A window over tenants has days of UTC: one of the last local day may begin the next.
    where window_start >= {foldable_from} + (tenant_id is null)::integer
),

kept as (
    select w.*
    from quotas.windows as w
    join quotas.budgets as b on b.budget_id = w.budget_id
    where b.ended_at is null and w.window_start >= {foldable_from} + (w.tenant_id is null)::integer
),

held as (
    select budget_id, group_key, window_start, sum(held) as held
    from quotas.holds
    where state in ('held', 'awaiting_entry')
    group by 1, 2, 3
)

select
    format(
        'budget %s%s of %s, window of %s: holds %s posted, %s requests and %s tokens unpriced, the ledger says %s, %s and %s',
        budget_id, case when group_key <> '' then ' ' || group_key end,
        coalesce('tenant ' || coalesce(k.tenant_id, f.tenant_id), 'all tenants'), window_start,
        trim_scale(coalesce(k.posted, 0)), coalesce(k.unpriced_count, 0), coalesce(k.unpriced_tokens, 0),
        trim_scale(coalesce(f.posted, 0)), coalesce(f.unpriced_count, 0), coalesce(f.unpriced_tokens, 0)
    ) as failure
from kept as k
full join folded as f using (budget_id, group_key, window_start)
where
    coalesce(k.posted, 0) <> coalesce(f.posted, 0)
    or coalesce(k.unpriced_count, 0) <> coalesce(f.unpriced_count, 0)
    or coalesce(k.unpriced_tokens, 0) <> coalesce(f.unpriced_tokens, 0)

union all

select
    format(
        'budget %s%s of %s, window of %s: says %s held, its reservations hold %s', budget_id,
        case when group_key <> '' then ' ' || group_key end, coalesce('tenant ' || w.tenant_id, 'all tenants'), window_start,
        trim_scale(coalesce(w.held, 0)),
        trim_scale(coalesce(h.held, 0))
    )
from quotas.windows as w
full join held as h using (budget_id, group_key, window_start)
where coalesce(w.held, 0) <> coalesce(h.held, 0)

union all

select
    format(
        'reservation %s of tenant %s, budget %s: says %s posted under it, the ledger says %s', reservation_id, tenant_id,
        budget_id, trim_scale(h.posted_under), trim_scale(coalesce(f.posted, 0))
    )
from quotas.holds as h
left join quotas.fold_reservations() as f using (tenant_id, reservation_id, budget_id)
where
    budget_id in (select b.budget_id from quotas.budgets as b where b.ended_at is null)
    and h.window_start >= {foldable_from}
    and h.posted_under <> coalesce(f.posted, 0)

order by 1
