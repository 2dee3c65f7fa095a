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

conversations as (
    select * from {{ ref('dim_conversations') }}
),

conversation_parts as (
    select * from {{ ref('fct_conversation_cost') }}
),

-- A conversation is of one month, that of its first day, of one language and of one model, with all that it came to: however
-- many it touched, it is one conversation and its amounts are in one row. Without what a withdrawn request left behind.
whole as (
    select
        c.tenant_id,
        date_trunc('month', c.first_date)::date as local_month,
        c.language,
        c.provider,
        c.model,
        p.cost_currency,
        p.charge_currency,
        c.conversation_id,
        c.language_count,
        sum(p.request_count) as request_count,
        sum(p.input_tokens + p.output_tokens) as tokens,
        sum(p.cost_amount) as cost_amount,
        sum(p.charge_amount) as charge_amount,
        -- Of all rows of the conversation: what has no price is in a row of its own, of no currency.
        sum(sum(p.cost_unpriced_count)) over conversation as cost_unpriced_count,
        sum(sum(p.charge_unpriced_count)) over conversation as charge_unpriced_count
    from conversations as c
    join conversation_parts as p on p.tenant_id = c.tenant_id and p.conversation_id = c.conversation_id
    group by 1, 2, 3, 4, 5, 6, 7, 8, 9
    window conversation as (partition by c.tenant_id, c.conversation_id)
),

by_conversation as (
    select
        tenant_id,
        local_month,
        language,
        provider,
        model,
        cost_currency,
        charge_currency,
        count(*) as conversation_count,
        count(*) filter (where language_count > 1) as several_languages_count,
        sum(request_count)::bigint as conversation_request_count,
        sum(tokens)::bigint as conversation_tokens,
        sum(cost_amount) as conversation_cost_amount,
        sum(cost_unpriced_count)::bigint as conversation_cost_unpriced_count,
        sum(charge_amount) as conversation_charge_amount,
        sum(charge_unpriced_count)::bigint as conversation_charge_unpriced_count
    from whole
    where request_count <> 0 or cost_amount <> 0 or charge_amount <> 0
    group by 1, 2, 3, 4, 5, 6, 7
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
