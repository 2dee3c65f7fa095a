-- question: Why is this month higher than the one before: more tokens, or dearer tokens?
-- asked by: finance
-- one row per: model, feature and currency of a tenant; tokens at the old price plus the new price on all tokens is the difference, where it is by tokens
with months as (
    select
        model,
        feature,
        charge_currency,
        coalesce(sum(charge_amount) filter (where local_date >= date '{{ var("month", "today") }}' - extract(day from date '{{ var("month", "today") }}')::int + 1), 0) as this_month,
        coalesce(sum(charge_amount) filter (where local_date < date '{{ var("month", "today") }}' - extract(day from date '{{ var("month", "today") }}')::int + 1), 0) as month_before,
        coalesce(sum(input_tokens + output_tokens) filter (where local_date >= date '{{ var("month", "today") }}' - extract(day from date '{{ var("month", "today") }}')::int + 1), 0) as tokens,
        coalesce(sum(input_tokens + output_tokens) filter (where local_date < date '{{ var("month", "today") }}' - extract(day from date '{{ var("month", "today") }}')::int + 1), 0) as tokens_before,
        sum(charge_unpriced_count) as unpriced
    from {{ ref('fct_cost_daily') }}
    where
        local_date >= (date_trunc('month', date '{{ var("month", "today") }}') - interval '1 month')::date
        and local_date < (date_trunc('month', date '{{ var("month", "today") }}') + interval '1 month')::date
        and ('{{ var("tenant", "") }}' = '' or tenant_id = '{{ var("tenant", "") }}')
    group by model, feature, charge_currency
)

select
    model,
    feature,
    charge_currency,
    month_before,
    this_month,
    this_month - month_before as difference,
    -- What is new has no old price: all of it is volume. What was paid without tokens (images, seconds) cannot be told apart here.
    case
        when tokens_before <> 0 then (tokens - tokens_before) * month_before / tokens_before
        when month_before = 0 then this_month
    end as by_volume,
    case
        when tokens_before <> 0 then this_month - tokens * month_before / tokens_before
        when month_before = 0 then 0
    end as by_price,
    unpriced
from months
order by abs(this_month - month_before) desc, model, feature
limit {{ var("rows", "20") }}
