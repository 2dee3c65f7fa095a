{%- set columns = ["tenant_id", "local_month", "language", "provider", "model", "cost_currency", "charge_currency"] -%}
{{ config(materialized="standing_view", incremental_strategy="none", unique_key=columns) }}

with requests as (
    select
        tenant_id,
        date_trunc('month', local_date)::date as local_month,
        language,
        provider,
        model,
        cost_currency,
        charge_currency,
        sum(request_count)::bigint as request_count,
        sum(usage_missing_count)::bigint as usage_missing_count,
        sum(input_tokens)::bigint as input_tokens,
        sum(output_tokens)::bigint as output_tokens,
        sum(cost_amount) as cost_amount,
        sum(cost_unpriced_count)::bigint as cost_unpriced_count,
        sum(charge_amount) as charge_amount,
        sum(charge_unpriced_count)::bigint as charge_unpriced_count
    from {{ ref('fct_cost_daily') }}
    group by 1, 2, 3, 4, 5, 6, 7
),

-- A conversation is of one month, that of its first day, of one language and of one model, with all that it came to: however
-- many it touched, it is one conversation and its amounts are in one row.
by_conversation as (
    select
        tenant_id,
        date_trunc('month', first_date)::date as local_month,
        language,
        provider,
        model,
        cost_currency,
        charge_currency,
        sum(conversation_count)::bigint as conversation_count,
        sum(several_languages_count)::bigint as several_languages_count,
        sum(request_count)::bigint as conversation_request_count,
        sum(input_tokens + output_tokens)::bigint as conversation_tokens,
        sum(cost_amount) as conversation_cost_amount,
        sum(whole_cost_unpriced_count)::bigint as conversation_cost_unpriced_count,
        sum(charge_amount) as conversation_charge_amount,
        sum(whole_charge_unpriced_count)::bigint as conversation_charge_unpriced_count
    from {{ ref('fct_conversations_daily') }}
    group by 1, 2, 3, 4, 5, 6, 7
    having sum(conversation_count) > 0
),

joined as (
    select
        {{ columns | join(",\n        ") }},
        coalesce(r.request_count, 0) as request_count,
        coalesce(r.usage_missing_count, 0) as usage_missing_count,
        coalesce(r.cost_unpriced_count, 0) as cost_unpriced_count,
        coalesce(r.charge_unpriced_count, 0) as charge_unpriced_count,
        coalesce(r.input_tokens, 0) as input_tokens,
        coalesce(r.output_tokens, 0) as output_tokens,
        coalesce(r.cost_amount, 0) as cost_amount,
        coalesce(r.charge_amount, 0) as charge_amount,
        coalesce(c.conversation_count, 0) as conversation_count,
        coalesce(c.several_languages_count, 0) as several_languages_count,
        coalesce(c.conversation_request_count, 0) as conversation_request_count,
        coalesce(c.conversation_tokens, 0) as conversation_tokens,
        coalesce(c.conversation_cost_amount, 0) as conversation_cost_amount,
        coalesce(c.conversation_cost_unpriced_count, 0) as conversation_cost_unpriced_count,
        coalesce(c.conversation_charge_amount, 0) as conversation_charge_amount,
        coalesce(c.conversation_charge_unpriced_count, 0) as conversation_charge_unpriced_count
    from requests as r
    full join by_conversation as c using ({{ columns | join(", ") }})
),

per_unit as (
    select
        *,
        round((input_tokens + output_tokens)::numeric / nullif(request_count - usage_missing_count, 0), 3) as tokens_per_request,
        round(cost_amount / nullif(request_count - cost_unpriced_count, 0), 12) as cost_per_request,
        round(charge_amount / nullif(request_count - charge_unpriced_count, 0), 12) as charge_per_request,
        round(conversation_tokens::numeric / nullif(conversation_count, 0), 3) as tokens_per_conversation,
        case
            when conversation_cost_unpriced_count = 0
                then round(conversation_cost_amount / nullif(conversation_count, 0), 12)
        end as cost_per_conversation,
        case
            when conversation_charge_unpriced_count = 0
                then round(conversation_charge_amount / nullif(conversation_count, 0), 12)
        end as charge_per_conversation,
        round(
            coalesce(sum(request_count) filter (where language = 'und') over month, 0)
            / nullif(sum(request_count) over month, 0),
            6
        ) as und_share
    from joined
    window month as (partition by tenant_id, local_month)
)

select * from per_unit
