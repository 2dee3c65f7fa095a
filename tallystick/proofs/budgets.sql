-- Every window of every budget in force equals the fold of the ledger by the rule that the trigger uses, both ways.
with folded as (
    select * from quotas.fold_windows(null)
),

kept as (
    select w.*
    from quotas.windows as w
    join quotas.budgets as b on b.budget_id = w.budget_id
    where b.ended_at is null
)

select
    format(
        'budget %s%s, window of %s: holds %s posted, %s requests and %s tokens unpriced, the ledger says %s, %s and %s',
        budget_id, case when group_key <> '' then ' ' || group_key end, window_start,
        trim_scale(coalesce(k.posted, 0)), coalesce(k.unpriced_count, 0), coalesce(k.unpriced_tokens, 0),
        trim_scale(coalesce(f.posted, 0)), coalesce(f.unpriced_count, 0), coalesce(f.unpriced_tokens, 0)
    ) as failure
from kept as k
full join folded as f using (budget_id, group_key, window_start)
where
    coalesce(k.posted, 0) <> coalesce(f.posted, 0)
    or coalesce(k.unpriced_count, 0) <> coalesce(f.unpriced_count, 0)
    or coalesce(k.unpriced_tokens, 0) <> coalesce(f.unpriced_tokens, 0)
order by 1
