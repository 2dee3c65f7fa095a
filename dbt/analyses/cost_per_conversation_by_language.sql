-- question: What does a conversation cost by language and model?
-- asked by: product, finance
-- one row per: language, model and currency
with conversations as (
    select
        tenant_id,
        conversation_id,
        language,
        model,
        charge_currency,
        sum(charge_amount) as charge_amount,
        sum(coalesce(input_tokens, 0) + coalesce(output_tokens, 0)) as tokens,
        sum(request_count) as requests,
        count(*) filter (where charge_amount is null) as unpriced_entries
    from ledger.entries
    where
        conversation_id is not null
        and kind <> 'evidence'
        and occurred_at >= now() - interval '{{ var("ago", "30 days") }}'
        and ('{{ var("tenant", "") }}' = '' or tenant_id = '{{ var("tenant", "") }}')
    group by tenant_id, conversation_id, language, model, charge_currency
)

select
    language,
    model,
    charge_currency,
    count(*) as conversations,
    sum(charge_amount) / count(*) as charge_per_conversation,
    sum(tokens) / count(*) as tokens_per_conversation,
    sum(requests) / count(*) as requests_per_conversation,
    sum(unpriced_entries) as unpriced_entries
from conversations
group by language, model, charge_currency
order by charge_per_conversation desc nulls last, language, model
limit {{ var("rows", "50") }}
