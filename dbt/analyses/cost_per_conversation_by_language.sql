-- question: What does a conversation cost by language and model?
-- asked by: product, finance
-- one row per: language, model and currency, of conversations that began within the time, each whole and counted once
select
    language,
    model,
    charge_currency,
    sum(charge_conversation_count) as conversations,
    -- While one of their requests has no price, in whatever currency the others are, nobody knows what they cost.
    case
        when sum(whole_charge_unpriced_count) = 0 then sum(charge_amount) / nullif(sum(charge_conversation_count), 0)
    end as charge_per_conversation,
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
