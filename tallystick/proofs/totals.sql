-- The standing proof, first half: per tenant, currency and month, the totals that budgets carry equal the ledger's plain sums;
-- of months whose rows have left, the sums of the lines of their seals.
with summed as materialized (
    select
        tenant_id,
        date_trunc('month', local_date::timestamp)::date as month,
        cost_currency::text as cost_currency,
        charge_currency::text as charge_currency,
        sum(cost_amount) as cost,
        sum(charge_amount) as charge
    from ledger.entries
    where kind <> 'evidence'
    group by 1, 2, 3, 4
    union all
    select
        l.tenant_id,
        date_trunc('month', l.local_date::timestamp)::date,
        l.cost_currency,
        l.charge_currency,
        sum(l.cost_amount),
        sum(l.charge_amount)
    from ledger.seal_lines as l
    join ledger.periods as p
        on p.tenant_id = l.tenant_id and p.posting_period = l.posting_period and p.close_number = l.close_number
    where l.posting_period = any({gone})
    group by 1, 2, 3, 4
),

ledger as (
    select
        'totals-charge' as budget_id,
        tenant_id,
        charge_currency as currency,
        month,
        sum(charge) as amount
    from summed
    group by 2, 3, 4
    union all
    select
        'totals-cost',
        tenant_id,
        cost_currency,
        month,
        sum(cost)
    from summed
    group by 2, 3, 4
),

budgets as (
    select
        budget_id,
        tenant_id,
        currency,
        window_start as month,
        posted as amount
    from quotas.windows
    where budget_id in ('totals-charge', 'totals-cost')
)

select
    format(
        'tenant %s, %s, %s: budget %s says %s, the ledger %s', coalesce(l.tenant_id, b.tenant_id),
        to_char(coalesce(l.month, b.month), 'YYYY-MM'), coalesce(l.currency, b.currency, 'no currency'),
        coalesce(l.budget_id, b.budget_id), trim_scale(coalesce(b.amount, 0)), trim_scale(coalesce(l.amount, 0))
    ) as failure
from ledger as l
full join budgets as b
    on
        b.budget_id = l.budget_id
        and b.tenant_id = l.tenant_id
        and b.month = l.month
        and coalesce(b.currency, '') = coalesce(l.currency, '')
where coalesce(l.amount, 0) <> coalesce(b.amount, 0)

union all

select format('budget %s, which the standing proof needs, is gone or ended', needed)
from (values ('totals-charge'), ('totals-cost')) as n (needed)
where not exists (select from quotas.budgets as b where b.budget_id = n.needed and b.ended_at is null)
