{%- set columns = [
    "tenant_id", "local_month", "feature", "provider", "model", "language", "cost_currency", "charge_currency",
] -%}
{%- set sample_min = 30 -%}
{{ config(materialized="standing_view", incremental_strategy="none", unique_key=columns) }}

with requests as (
    select
        tenant_id,
        date_trunc('month', local_date)::date as local_month,
        feature,
        provider,
        model,
        language,
        cost_currency,
        charge_currency,
        sum(request_count)::bigint as request_count,
        sum(usage_missing_count)::bigint as usage_missing_count,
        sum(cost_unpriced_count)::bigint as cost_unpriced_count,
        sum(charge_unpriced_count)::bigint as charge_unpriced_count,
        sum(input_tokens)::bigint as input_tokens,
        sum(output_tokens)::bigint as output_tokens,
        sum(cost_amount) as cost_amount,
        sum(charge_amount) as charge_amount
    from {{ ref('fct_cost_daily') }}
    group by 1, 2, 3, 4, 5, 6, 7, 8
    having sum(request_count) > 0
),

known as (
    select * from {{ ref('dim_tokenizer_premiums') }}
),

english as (
    select * from requests where language in ('en', 'en-Latn')
),

-- English with and without its script is one language.
english_together as (
    select
        tenant_id,
        local_month,
        feature,
        provider,
        model,
        cost_currency,
        charge_currency,
        sum(request_count)::bigint as request_count,
        sum(usage_missing_count)::bigint as usage_missing_count,
        sum(cost_unpriced_count)::bigint as cost_unpriced_count,
        sum(charge_unpriced_count)::bigint as charge_unpriced_count,
        sum(input_tokens + output_tokens)::bigint as tokens,
        sum(cost_amount) as cost_amount,
        sum(charge_amount) as charge_amount
    from english
    group by 1, 2, 3, 4, 5, 6, 7
),

side_by_side as (
    select
        r.*,
        coalesce(e.request_count, 0) as english_request_count,
        (r.input_tokens + r.output_tokens)::numeric / nullif(r.request_count - r.usage_missing_count, 0) as tokens_each,
        e.tokens::numeric / nullif(e.request_count - e.usage_missing_count, 0) as english_tokens_each,
        r.cost_amount / nullif(r.request_count - r.cost_unpriced_count, 0) as cost_each,
        e.cost_amount / nullif(e.request_count - e.cost_unpriced_count, 0) as english_cost_each,
        r.charge_amount / nullif(r.request_count - r.charge_unpriced_count, 0) as charge_each,
        e.charge_amount / nullif(e.request_count - e.charge_unpriced_count, 0) as english_charge_each,
        least(r.request_count - r.cost_unpriced_count, e.request_count - e.cost_unpriced_count) as cost_sample_count,
        least(r.request_count - r.charge_unpriced_count, e.request_count - e.charge_unpriced_count) as charge_sample_count,
        case
            when r.language in ('en', 'en-Latn') then 'english'
            when r.language = 'und' then 'unknown language'
            when e.request_count is null then 'no english'
            when
                least(r.request_count - r.usage_missing_count, e.request_count - e.usage_missing_count) < {{ sample_min }}
                then 'too few'
            else 'enough'
        end as sample
    from requests as r
    left join english_together as e
        using (tenant_id, local_month, feature, provider, model, cost_currency, charge_currency)
),

compared as (
    select
        s.tenant_id,
        s.local_month,
        s.feature,
        s.provider,
        s.model,
        s.language,
        s.cost_currency,
        s.charge_currency,
        s.sample,
        s.request_count,
        s.english_request_count,
        s.usage_missing_count,
        s.cost_unpriced_count,
        s.charge_unpriced_count,
        round(s.tokens_each, 3) as tokens_per_request,
        round(s.english_tokens_each, 3) as english_tokens_per_request,
        round(s.cost_each, 12) as cost_per_request,
        round(s.charge_each, 12) as charge_per_request,
        case when s.sample = 'enough' then round(s.tokens_each / nullif(s.english_tokens_each, 0), 3) end as tokens_premium,
        case
            when s.sample = 'enough' and s.cost_sample_count >= {{ sample_min }}
                then round(s.cost_each / nullif(s.english_cost_each, 0), 3)
        end as cost_premium,
        case
            when s.sample = 'enough' and s.charge_sample_count >= {{ sample_min }}
                then round(s.charge_each / nullif(s.english_charge_each, 0), 3)
        end as charge_premium,
        coalesce(k.tokenizer, '') as tokenizer,
        k.premium as tokenizer_premium
    from side_by_side as s
    left join known as k on k.provider = s.provider and k.model = s.model and k.language = s.language
)

select * from compared
