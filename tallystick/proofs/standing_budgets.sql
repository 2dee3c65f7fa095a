-- The standing proof, first half: per tenant, currency and month, what budgets carry equals the sum of all entries.
with ledger as (
    select
        'totals-charge' as budget_id,
        tenant_id,
        charge_currency as currency,
        month,
        sum(charge_amount) as amount
    from ledger.proof_totals
    group by tenant_id, charge_currency, month
    union all
    select
        'totals-cost',
        tenant_id,
        cost_currency,
        month,
        sum(cost_amount)
    from ledger.proof_totals
    group by tenant_id, cost_currency, month
),

budgets as (
    select
        budget_id,
        tenant_id,
        coalesce(currency, '') as currency,
        window_start as month,
        posted as amount
    from quotas.windows
    where budget_id in ('totals-charge', 'totals-cost')
)

select
    format(
        'tenant %s, %s, %s: budget %s says %s, the entries come to %s', tenant_id, to_char(month, 'YYYY-MM'),
        coalesce(nullif(currency, ''), 'no currency'), budget_id, trim_scale(coalesce(b.amount, 0)), trim_scale(coalesce(l.amount, 0))
    ) as failure
from ledger as l
full join budgets as b using (budget_id, tenant_id, currency, month)
where coalesce(l.amount, 0) <> coalesce(b.amount, 0)

union all

select format('budget %s, which the standing proof needs, is gone or ended', needed)
from (values ('totals-charge'), ('totals-cost')) as n (needed)
where not exists (select from quotas.budgets as b where b.budget_id = n.needed and b.ended_at is null)

order by 1
