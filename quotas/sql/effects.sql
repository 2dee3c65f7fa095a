-- What rows that are not in the ledger would do to windows: the text of the trigger's movements, and its rules of thresholds and
-- excess, over all rows at once. Nothing is written.
with rows as materialized (
    {movements of these rows}
),

moved as materialized (
    select
        r.budget_id,
        r.group_key,
        r.window_start,
        max(r.tenant_id) as tenant_id,
        max(r.currency) as currency,
        sum(r.posted) as posted,
        sum(r.unpriced_count)::bigint as unpriced_count
    from rows as r
    group by r.budget_id, r.group_key, r.window_start
    having sum(r.posted) <> 0 or sum(r.unpriced_count) <> 0 or sum(r.unpriced_tokens) <> 0
),

limited as (
    select
        m.budget_id,
        m.group_key,
        m.window_start,
        coalesce(w.tenant_id, m.tenant_id) as tenant_id,
        b.unit,
        m.currency,
        b.hardness,
        b.thresholds,
        quotas.limit_of(b.limit_amount, g.budget_id, g.limit_amount) as limit_amount,
        coalesce(w.held, 0) as held,
        coalesce(w.posted, 0) as posted_before,
        coalesce(w.posted, 0) + m.posted as posted_after,
        coalesce(w.unpriced_count, 0) as unpriced_before,
        coalesce(w.unpriced_count, 0) + m.unpriced_count as unpriced_after
    from moved as m
    join quotas.budgets as b using (budget_id)
    left join quotas.windows as w using (budget_id, group_key, window_start)
    left join quotas.group_limits as g on g.budget_id = m.budget_id and g.group_key = m.group_key
)

select
    l.budget_id,
    l.group_key,
    l.window_start,
    l.tenant_id,
    l.unit,
    l.currency::text as currency,
    l.hardness,
    l.limit_amount,
    l.held,
    l.posted_before,
    l.posted_after,
    l.unpriced_before,
    l.unpriced_after,
    case
        when l.hardness = 'hard' and l.limit_amount is not null
            then
                greatest(l.posted_after + l.held - l.limit_amount, 0)
                - greatest(l.posted_before + l.held - l.limit_amount, 0)
        else 0
    end as excess_change,
    array(
        select distinct t.threshold
        from unnest(l.thresholds || 1::numeric) as t (threshold)
        where
            l.limit_amount is not null
            and (
                (
                    l.posted_after + l.held >= t.threshold * l.limit_amount
                    and l.posted_before + l.held < t.threshold * l.limit_amount
                )
                or (l.limit_amount = 0 and (l.posted_after + l.held > 0 or l.unpriced_after > 0))
            )
            and not exists (
                select
                from quotas.threshold_notes as n
                where
                    n.budget_id = l.budget_id
                    and n.group_key = l.group_key
                    and n.window_start = l.window_start
                    and n.threshold = t.threshold
            )
        order by 1
    ) as thresholds
from limited as l
order by l.budget_id, l.group_key, l.window_start
