-- The standing proof, second half: of each tenant's months that moved within two days, the mart equals the sum of all
-- entries less those of batches that it has not consumed yet. Grain: tenant, month and currencies that differ.
with moved as materialized (
    select distinct
        t.tenant_id,
        t.month,
        p.starts_at,
        p.ends_at
    from ledger.proof_totals as t
    left join ledger.periods as p on p.tenant_id = t.tenant_id and p.posting_period = t.month
    where t.moved_at > clock_timestamp() - interval '2 days' and {compared}
),

unconsumed as (
    select
        e.tenant_id,
        date_trunc('month', e.local_date::timestamp)::date as month,
        coalesce(e.cost_currency::text, '') as cost_currency,
        coalesce(e.charge_currency::text, '') as charge_currency,
        -coalesce(sum(e.cost_amount), 0) as cost_amount,
        -coalesce(sum(e.charge_amount), 0) as charge_amount,
        -coalesce(sum(e.request_count), 0) as request_count,
        -coalesce(sum(e.input_tokens), 0) as input_tokens,
        -coalesce(sum(e.output_tokens), 0) as output_tokens
    from {rows} as e
    where e.kind <> 'evidence'
    group by 1, 2, 3, 4
),

ledger as (
    select
        tenant_id,
        month,
        cost_currency,
        charge_currency,
        sum(cost_amount) as cost,
        sum(charge_amount) as charge,
        sum(request_count) as requests,
        sum(input_tokens) as input_tokens,
        sum(output_tokens) as output_tokens
    from (
        select tenant_id, month, cost_currency, charge_currency, cost_amount, charge_amount, request_count, input_tokens, output_tokens
        from ledger.proof_totals
        union all
        select *
        from unconsumed
    ) as both_sides
    where (tenant_id, month) in (select m.tenant_id, m.month from moved as m)
    group by 1, 2, 3, 4
),

mart as (
    select
        d.tenant_id,
        m.month,
        d.cost_currency,
        d.charge_currency,
        sum(d.cost_amount) as cost,
        sum(d.charge_amount) as charge,
        sum(d.request_count) as requests,
        sum(d.input_tokens) as input_tokens,
        sum(d.output_tokens) as output_tokens
    from moved as m
    join marts.{mart} as d on d.tenant_id = m.tenant_id and {of_month}
    group by 1, 2, 3, 4
)

select
    tenant_id,
    month,
    format(
        '{mart}: tenant %s, %s: the mart says charge %s %s, cost %s %s, %s requests; the entries come to %s, %s, %s',
        tenant_id, to_char(month, 'YYYY-MM'), trim_scale(coalesce(m.charge, 0)), charge_currency, trim_scale(coalesce(m.cost, 0)),
        cost_currency, coalesce(m.requests, 0), trim_scale(coalesce(l.charge, 0)), trim_scale(coalesce(l.cost, 0)), coalesce(l.requests, 0)
    ) as failure
from ledger as l
full join mart as m using (tenant_id, month, cost_currency, charge_currency)
where
    coalesce(l.cost, 0) <> coalesce(m.cost, 0)
    or coalesce(l.charge, 0) <> coalesce(m.charge, 0)
    or coalesce(l.requests, 0) <> coalesce(m.requests, 0)
    or coalesce(l.input_tokens, 0) <> coalesce(m.input_tokens, 0)
    or coalesce(l.output_tokens, 0) <> coalesce(m.output_tokens, 0)
order by 1, 2
