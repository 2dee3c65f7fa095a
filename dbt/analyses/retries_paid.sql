-- question: What did retries, fallbacks, hedges and continuations cost again?
-- asked by: engineers, finance
-- one row per: tenant, feature, kind of attempt and currency; of a continuation only what it reads again
select
    m.tenant_id,
    m.feature,
    m.attempt_kind,
    m.charge_currency,
    sum(m.quantity) filter (where m.meter = 'requests') as requests,
    sum(m.quantity * r.price / r.per) as charge_amount,
    coalesce(sum(m.quantity) filter (where m.meter like '%input%' or m.meter like 'cache%' or m.meter = 'tool_prompt_tokens'), 0) as input_tokens_again,
    coalesce(sum(m.quantity) filter (where m.meter = 'requests' and m.charge_rate_set_id = 0), 0) as unpriced
from {{ ref('fct_meters_daily') }} as m
left join ledger.rates as r on r.rate_set_id = m.charge_rate_set_id and r.meter = m.meter
where
    m.attempt_kind <> 'first'
    -- As fct_lever_savings_daily has it: what a continuation writes is new.
    and (
        m.attempt_kind <> 'continuation'
        or m.meter like '%input%'
        or m.meter like 'cache%'
        or m.meter in ('requests', 'tool_prompt_tokens', 'pages', 'characters')
    )
    and not m.is_avoided
    and m.local_date >= (now() - interval '{{ var("ago", "30 days") }}')::date
    and ('{{ var("tenant", "") }}' = '' or m.tenant_id = '{{ var("tenant", "") }}')
group by 1, 2, 3, 4
order by charge_amount desc nulls last, 1, 2, 3
limit {{ var("rows", "20") }}
