{#
How long requests hold a node's KV cache, and how much of it. A request with P input tokens (those that were cached included:
it pins them) and G output tokens is resident for Tp of prefill and Td of decoding before its end, and holds

    P x t / Tp               tokens at t into the prefill (its chunks come one after another)
    P + G x (t - Tp) / Td    tokens in the decoding

so P x Tp / 2 + P x Td + G x Td / 2 token-seconds in all. Time in the queue holds nothing.
#}

{# A measurement of more than this is none, and `entries_read_hours` follows from it. #}
{% macro resident_hours_max() %}{{ return(3) }}{% endmacro %}

{# What stands in where no latency was reported: a server of usual speed. Milliseconds of prefill and of decoding. #}
{% macro assumed_prefill_ms(input_tokens) -%}
    least(ceil({{ input_tokens }} / 5.0), {{ resident_hours_max() * 3600000 // 2 }})
{%- endmacro %}

{% macro assumed_decode_ms(output_tokens) -%}
    least(ceil({{ output_tokens }} * 1000 / 30.0), {{ resident_hours_max() * 3600000 // 2 }})
{%- endmacro %}

{#
Token-milliseconds that a request has held from its start until an instant, whole: pieces of a request are differences of
these, so they sum to the request exactly. A row has resident_at, occurred_at, prefill_us, decode_us, input_tokens, output_tokens.
#}
{% macro kv_held_until(instant) -%}
    {%- set at -%}
        extract(epoch from least(greatest({{ instant }}, resident_at), occurred_at) - resident_at) * 1000000
    {%- endset -%}
    {%- set in_prefill = "least(" ~ at ~ ", prefill_us)" -%}
    {%- set in_decode = "greatest(" ~ at ~ " - prefill_us, 0)" -%}
    round(
        (
            coalesce(input_tokens * ({{ in_prefill }}) * ({{ in_prefill }}) / nullif(2 * prefill_us, 0), 0)
            + input_tokens * ({{ in_decode }})
            + coalesce(output_tokens * ({{ in_decode }}) * ({{ in_decode }}) / nullif(2 * decode_us, 0), 0)
        ) / 1000
    )
{%- endmacro %}

{# Of rows of entries, the columns that the allocation of nodes needs. #}
{% macro gpu_entry_columns(alias) %}
        {{ alias }}.entry_id,
        {{ alias }}.batch_id,
        {{ alias }}.request_key,
        {{ alias }}.occurred_at,
        {{ alias }}.tenant_id,
        {{ alias }}.node_id,
        {{ alias }}.feature,
        {{ alias }}.language,
        {{ alias }}.provider,
        {{ alias }}.model,
        {{ alias }}.cost_currency as standard_currency,
        {{ alias }}.is_final,
        {{ alias }}.latency_ms,
        {{ alias }}.ttft_ms,
        {{ alias }}.queue_ms,
        {{ alias }}.prefill_ms,
        {{ alias }}.decode_ms,
        {{ alias }}.request_count,
        coalesce({{ alias }}.input_tokens, 0) as input_tokens,
        coalesce({{ alias }}.cache_read_tokens, 0) as cache_read_tokens,
        coalesce({{ alias }}.output_tokens, 0) as output_tokens,
        case when 'usage_missing' = any ({{ alias }}.usage_flags) then {{ alias }}.request_count else 0 end as usage_missing_count,
        case when {{ alias }}.cost_amount is null and {{ alias }}.kind <> 'evidence' then {{ alias }}.request_count else 0 end
        as standard_unpriced_count,
        coalesce({{ alias }}.cost_amount, 0) as standard_amount
{%- endmacro %}

{#
As parts of a `with`: the node-hours that the batches of this run touch, `touched_by_batches`, by the requests that their
entries speak of and by windows of nodes. For a table that is there already.
#}
{% macro gpu_touched_by_batches() %}
unconsumed as (
    {{ unconsumed(ref('stg_ledger__entries')) }}
),

unconsumed_windows as (
    {{ unconsumed_by_batch(ref('stg_ledger__node_windows')) }}
),

-- Whatever row of a request is new, the request's node and times may stand on another one. Rows of a request share their
-- instant, and the tenant but for a merge that became known late.
spoken_of as (
    select distinct
        tenant_id,
        occurred_at,
        request_key
    from unconsumed
    where request_key is not null and exists (select from {{ ref('stg_ledger__node_windows') }})
    union
    select distinct
        tenant_id,
        occurred_at,
        request_key
    from unconsumed
    where node_id <> ''
),

touched_requests as (
    select
        r.request_key,
        r.occurred_at,
        array_remove(array_agg(distinct r.node_id), '') as node_ids,
        -- At least as long as any word of it, so that the hours that it leaves are made anew too.
        greatest(
            least(max(greatest(r.latency_ms, r.prefill_ms + r.decode_ms)), {{ resident_hours_max() * 3600000 }}),
            {{ assumed_prefill_ms("sum(abs(r.input_tokens))") }} + {{ assumed_decode_ms("sum(abs(r.output_tokens))") }}
        ) as resident_ms
    from spoken_of as s
    cross join lateral (
        select {{ gpu_entry_columns("e") }}
        from {{ ref('stg_ledger__entries') }} as e
        where e.tenant_id = s.tenant_id and e.occurred_at = s.occurred_at and e.request_key = s.request_key
        offset 0
    ) as r
    group by r.request_key, r.occurred_at
),

touched_by_batches as (
    select
        n.node_id,
        h.starts_at
    from touched_requests as r
    cross join lateral unnest(r.node_ids) as n (node_id)
    cross join lateral generate_series(
        date_trunc('hour', r.occurred_at - r.resident_ms * interval '1 millisecond', 'UTC'),
        date_trunc('hour', r.occurred_at, 'UTC'),
        interval '1 hour'
    ) as h (starts_at)
    union
    select
        w.node_id,
        h.starts_at
    from unconsumed_windows as w
    cross join lateral generate_series(
        date_trunc('hour', w.starts_at, 'UTC'), w.ends_at - interval '1 microsecond', interval '1 hour'
    ) as h (starts_at)
)
{% endmacro %}

{#
What self-hosted models cost by tenant, model and `period` (an expression of the allocation's starts_at), with the idle time of
nodes: a node's idle amount of the period is shared among those who used the node in it, by KV token-milliseconds. What is left
of a node that nobody used stays with its owner. Shares end where the sum so far, rounded, ends, so that they sum to the amount.
As the body of a model; `allocated` is read once, so a condition on the period reaches the table.
#}
{% macro self_hosted_costs(period) %}
with allocated as (
    select * from {{ ref('fct_gpu_allocation_hourly') }}
),

of_nodes as (
    select
        node_id,
        {{ expression_of(period) }} as {{ name_of(period) }},
        kind,
        tenant_id,
        provider,
        model,
        currency,
        standard_currency,
        sum(request_count) as request_count,
        sum(input_tokens) as input_tokens,
        sum(cache_read_tokens) as cache_read_tokens,
        sum(output_tokens) as output_tokens,
        sum(usage_missing_count) as usage_missing_count,
        sum(latency_missing_count) as latency_missing_count,
        sum(standard_unpriced_count) as standard_unpriced_count,
        sum(standard_amount) as standard_amount,
        sum(kv_token_ms) as kv_token_ms,
        sum(node_amount) as node_amount
    from allocated
    group by 1, 2, 3, 4, 5, 6, 7, 8
),

-- Rows of one node and one rate's currency; what no window covers has no part in its idle time.
summed as (
    select
        *,
        sum(node_amount) filter (where kind = 'idle') over pool as pool_idle_amount,
        coalesce(sum(kv_token_ms) filter (where kind = 'request') over pool, 0) as pool_kv_token_ms,
        coalesce(
            sum(kv_token_ms) filter (where kind = 'request') over (
                pool order by tenant_id, provider, model, standard_currency
            ), 0
        ) as kv_so_far
    from of_nodes
    window pool as (partition by node_id, {{ name_of(period) }}, currency, kind = 'uncovered')
),

shared as (
    select
        *,
        case
            when kind = 'idle' then node_amount
            when pool_kv_token_ms = 0 then pool_idle_amount * 0
            else
                round(pool_idle_amount * kv_so_far / pool_kv_token_ms, 12)
                - round(pool_idle_amount * (kv_so_far - kv_token_ms) / pool_kv_token_ms, 12)
        end as idle_amount,
        case
            when kind = 'uncovered' then 'no_window'
            when currency = '' then 'no_rate'
            else 'known'
        end as cost_state
    from summed
    -- Idle time that somebody bears stands there.
    where kind <> 'idle' or pool_kv_token_ms = 0
),

folded as (
    select
        {{ name_of(period) }},
        tenant_id,
        provider,
        model,
        cost_state,
        currency,
        standard_currency,
        count(distinct node_id) as node_count,
        sum(request_count)::bigint as request_count,
        sum(input_tokens)::bigint as input_tokens,
        sum(cache_read_tokens)::bigint as cache_read_tokens,
        sum(output_tokens)::bigint as output_tokens,
        sum(usage_missing_count)::bigint as usage_missing_count,
        sum(latency_missing_count)::bigint as latency_missing_count,
        sum(standard_unpriced_count)::bigint as standard_unpriced_count,
        sum(kv_token_ms)::bigint as kv_token_ms,
        case when cost_state = 'known' then coalesce(sum(node_amount) filter (where kind = 'request'), 0) end as used_amount,
        case when cost_state = 'known' then sum(idle_amount) end as idle_amount,
        sum(standard_amount) as standard_amount
    from shared
    group by 1, 2, 3, 4, 5, 6, 7
),

compared as (
    select
        *,
        {{ per_million("used_amount") }} as used_per_million,
        {{ per_million("used_amount + idle_amount") }} as with_idle_per_million,
        {{ per_million("case when standard_currency <> '' then standard_amount end") }} as standard_per_million
    from folded
)

select * from compared
{% endmacro %}

{# An amount by a million tokens, at six places; null where there are no tokens. The one place that says so. #}
{% macro per_million(amount) -%}
    round(({{ amount }}) * 1000000 / nullif(input_tokens + output_tokens, 0), 6)
{%- endmacro %}
