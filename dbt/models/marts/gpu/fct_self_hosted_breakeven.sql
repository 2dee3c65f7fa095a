{%- set columns = ["starts_at", "provider", "model", "cost_state", "currency", "offer_provider", "offer_model"] -%}
{{ config(materialized="standing_view", incremental_strategy="none", unique_key=columns) }}

-- Not materialized: a condition on the hour reaches the allocation.
with costs as not materialized (
    select * from {{ ref('fct_self_hosted_cost_hourly') }}
),

offers as (
    select * from {{ ref('self_hosted_offers') }}
),

rates as (
    select * from {{ ref('int_rates_of_named_models') }}
),

served as not materialized (
    select
        starts_at,
        provider,
        model,
        cost_state,
        currency,
        count(distinct tenant_id) filter (where request_count <> 0 or kv_token_ms <> 0) as tenant_count,
        sum(request_count)::bigint as request_count,
        sum(input_tokens - cache_read_tokens)::bigint as uncached_input_tokens,
        sum(cache_read_tokens)::bigint as cache_read_tokens,
        sum(output_tokens)::bigint as output_tokens,
        sum(usage_missing_count)::bigint as usage_missing_count,
        sum(latency_missing_count)::bigint as latency_missing_count,
        sum(used_amount) as used_amount,
        sum(idle_amount) as idle_amount,
        sum(used_amount + idle_amount) as node_amount
    from costs
    group by 1, 2, 3, 4, 5
),

-- The offers' list prices by the time for which a card stands. Where thinking has a price of its own, output has none: how much
-- of it was thinking the sums do not say.
list_prices as (
    select
        provider,
        name,
        currency,
        effective_at,
        until,
        max(unit_price) filter (where meter = 'uncached_input_tokens') as uncached_input_price,
        max(unit_price) filter (where meter = 'cache_read_tokens') as cache_read_price,
        case
            when min(unit_price) filter (where meter in ('visible_output_tokens', 'reasoning_tokens'))
                = max(unit_price) filter (where meter in ('visible_output_tokens', 'reasoning_tokens'))
                then max(unit_price) filter (where meter = 'visible_output_tokens')
        end as output_price
    from rates
    where (provider, name) in (select o.offer_provider, o.offer_model from offers as o)
    group by 1, 2, 3, 4, 5
),

offered as (
    select
        s.*,
        coalesce(o.offer_provider, '') as offer_provider,
        coalesce(o.offer_model, '') as offer_model,
        coalesce(p.currency, '') as list_currency,
        p.until < s.starts_at + interval '1 hour' as has_changed,
        p.uncached_input_price,
        p.cache_read_price,
        p.output_price
    from served as s
    left join offers as o on o.provider = s.provider and o.model = s.model
    left join list_prices as p
        on
            p.provider = o.offer_provider
            and p.name = o.offer_model
            and p.effective_at <= s.starts_at
            and p.until > s.starts_at
),

priced as (
    select
        *,
        uncached_input_tokens + cache_read_tokens + output_tokens as served_tokens,
        case when uncached_input_tokens = 0 then 0 else uncached_input_tokens * uncached_input_price end
        + case when cache_read_tokens = 0 then 0 else cache_read_tokens * cache_read_price end
        + case when output_tokens = 0 then 0 else output_tokens * output_price end as whole_amount,
        (case when uncached_input_price is null then uncached_input_tokens else 0 end)
        + (case when cache_read_price is null then cache_read_tokens else 0 end)
        + (case when output_price is null then output_tokens else 0 end) as list_unpriced_tokens
    from offered
),

judged as (
    select
        *,
        case
            when cost_state <> 'known' then cost_state
            when offer_model = '' then 'no_offer'
            when list_currency = '' then 'no_list_price'
            when has_changed then 'list_price_changed'
            when list_currency <> currency then 'currencies_differ'
            when served_tokens = 0 then 'no_tokens'
            when list_unpriced_tokens <> 0 then 'tokens_unpriced'
            when whole_amount = 0 then 'list_price_is_zero'
            else ''
        end as unknown_because
    from priced
),

compared as (
    select
        {{ columns | join(",\n        ") }},
        tenant_count,
        request_count,
        uncached_input_tokens,
        cache_read_tokens,
        output_tokens,
        usage_missing_count,
        latency_missing_count,
        used_amount,
        idle_amount,
        node_amount,
        list_currency,
        uncached_input_price,
        cache_read_price,
        output_price,
        list_unpriced_tokens,
        case when list_currency <> '' and not has_changed then whole_amount end as list_amount,
        case when unknown_because = '' then whole_amount - node_amount end as saved_amount,
        case when unknown_because = '' then round(node_amount / whole_amount, 6) end as break_even_ratio,
        -- Whole tokens, and never one too few.
        case
            when unknown_because = ''
                then (
                    div(served_tokens * node_amount, whole_amount) + sign(mod(served_tokens * node_amount, whole_amount))
                )::bigint
        end as break_even_tokens,
        unknown_because
    from judged
)

select * from compared
