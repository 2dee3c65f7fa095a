-- question: Did own GPU nodes cost less than an API's list price, and from how many tokens on do they?
-- asked by: finance, capacity
-- one row per: UTC hour, self-hosted model, offer and currency of the node's rate, the newest hour first
select
    starts_at,
    provider,
    model,
    offer_provider,
    offer_model,
    currency,
    node_amount,
    list_amount,
    saved_amount,
    -- Below 1, the nodes were cheaper.
    break_even_ratio,
    uncached_input_tokens + cache_read_tokens + output_tokens as tokens,
    break_even_tokens,
    unknown_because
from {{ ref('fct_self_hosted_breakeven') }}
where
    starts_at >= now() - interval '{{ var("ago", "7 days") }}'
    and ('{{ var("model", "") }}' = '' or model = '{{ var("model", "") }}')
order by starts_at desc, model, offer_provider, offer_model, currency, cost_state
limit {{ var("rows", "200") }}
