-- question: What does a conversation cost by language and model?
-- asked by: product, finance
-- one row per: language, model and currency
with conversations as (
    select
        language,
        model,
        charge_currency,
        sum(charge_amount) as charge_amount,
        sum(input_tokens + output_tokens) as tokens,
        sum(request_count) as requests,
        sum(charge_unpriced_count) as unpriced
    from {{ ref('fct_conversation_cost') }}
    where
        conversation_id <> ''
        and local_date >= (now() - interval '{{ var("ago", "30 days") }}')::date
        and ('{{ var("tenant", "") }}' = '' or tenant_id = '{{ var("tenant", "") }}')
    group by tenant_id, conversation_id, language, model, charge_currency
)

select
    language,
    model,
    charge_currency,
    count(*) as conversations,
    -- What has no price is in rows of no currency.
    case when charge_currency <> '' then sum(charge_amount) / count(*) end as charge_per_conversation,
    sum(tokens) / count(*) as tokens_per_conversation,
    sum(requests) / count(*) as requests_per_conversation,
    sum(unpriced) as unpriced
from conversations
group by language, model, charge_currency
order by charge_per_conversation desc nulls last, language, model
limit {{ var("rows", "50") }}
