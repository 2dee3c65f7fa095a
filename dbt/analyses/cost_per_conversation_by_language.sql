-- question: What does a conversation cost by language and model?
-- asked by: product, finance
-- one row per: language, model and currency, of conversations that began within the time, each whole and counted once
select
    language,
    model,
    charge_currency,
    sum(charge_conversation_count) as conversations,
    -- Of what has a price: a request that has none adds nothing here, and one to `unpriced`.
    sum(charge_amount) / nullif(sum(charge_conversation_count), 0) as charge_per_conversation,
    sum(input_tokens + output_tokens) / nullif(sum(charge_conversation_count), 0) as tokens_per_conversation,
    sum(request_count) / nullif(sum(charge_conversation_count), 0) as requests_per_conversation,
    sum(charge_unpriced_count) as unpriced
from {{ ref('fct_conversations_daily') }}
where
    first_date >= (now() - interval '{{ var("ago", "30 days") }}')::date
    and ('{{ var("tenant", "") }}' = '' or tenant_id = '{{ var("tenant", "") }}')
group by language, model, charge_currency
order by charge_per_conversation desc nulls last, language, model
limit {{ var("rows", "50") }}
