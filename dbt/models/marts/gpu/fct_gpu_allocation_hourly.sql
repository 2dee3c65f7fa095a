{%- set columns = [
    "node_id", "starts_at", "kind", "tenant_id", "feature", "language", "provider", "model", "currency", "standard_currency",
] -%}
{%- set own = one_row_per(columns, buckets=["node_id", "starts_at"], uncompared=["rates_known"]) -%}
{#- By hour, by day for the views of costs, and by what an hour knew of rates and of models' names. -#}
{%- do own["indexes"].extend([
    {"columns": ["starts_at"]},
    {"columns": ["((starts_at at time zone 'UTC')::date)"]},
    {"columns": ["rates_known", "starts_at"]},
    {"columns": ["(case when kind = 'idle' then model end)"]},
]) -%}
{%- do own["meta"].update({"hidden_from_readers": ["tenant_id"]}) -%}
{{ config(own) }}
{%- set hour = "interval '1 hour'" -%}
-- Whether it is there already or not: depends_on: {{ ref('stg_ledger__tenants') }}, {{ ref('stg_ledger__retired_months') }},
-- depends_on: {{ ref('stg_ledger__batches') }}, {{ ref('stg_ledger__batch_digests') }}

with recursive rates as materialized (
    select * from {{ ref('stg_ledger__node_rates') }}
),

names as (
    select * from {{ ref('int_model_names') }}
),

{% if is_incremental() -%}
{{ gpu_touched_by_batches() }},

-- Each idle row says up to which rate it knew: one of a few values, and that rate may have been restated since.
rates_known as (
    select min(h.rates_known) as node_rate_id
    from {{ this }} as h
    union all
    select
        (
            select min(h.rates_known)
            from {{ this }} as h
            where h.rates_known > k.node_rate_id
        )
    from rates_known as k
    where k.node_rate_id is not null
),

-- What a rate that became known since reaches.
touched_by_rates as (
    select
        t.node_id,
        t.starts_at
    from rates_known as k
    cross join lateral (
        select min(r.effective_at) as effective_at
        from rates as r
        where r.node_rate_id > k.node_rate_id
    ) as since
    cross join lateral (
        select
            h.node_id,
            h.starts_at
        from {{ this }} as h
        where h.rates_known = k.node_rate_id and h.starts_at > since.effective_at - {{ hour }}
        offset 0
    ) as t
),

-- A node's name for its model became known since the hour was made: it stands under what the node said.
touched_by_names as (
    select
        h.node_id,
        h.starts_at
    from names as n
    join {{ this }} as h on case when h.kind = 'idle' then h.model end = n.name and h.provider = n.provider
    where n.model <> n.name
),

touched_hours as (
    {%- for relation in ["touched_by_batches", "touched_by_rates", "touched_by_names"] %}
    select
        node_id,
        starts_at
    from {{ relation }}
    {{- "\n    union" if not loop.last }}
    {%- endfor %}
),

-- Of an hour whose month has left the ledger, what the mart holds is all that there is.
reachable as (
    select coalesce(max(posting_period) + interval '1 month' + interval '12 hours', '-infinity') as from_at
    from {{ ref('stg_ledger__retired_months') }}
    where not is_readable
),

touched as materialized (
    select t.*
    from touched_hours as t
    cross join reachable as r
    where t.starts_at >= r.from_at at time zone 'UTC'
),

-- Who was resident in an hour ended in it, or soon after.
read_hours as (
    select distinct
        t.tenant_id,
        h.starts_at,
        h.starts_at + {{ hour }} as ends_at
    from {{ ref('stg_ledger__tenants') }} as t
    cross join (
        select distinct starts_at + n * {{ hour }} as starts_at
        from touched
        cross join generate_series(0, {{ resident_hours_max() }}) as n
    ) as h
),

entries as (
    select r.*
    from read_hours as k
    cross join lateral (
        select {{ gpu_entry_columns("e") }}
        from {{ ref('stg_ledger__entries') }} as e
        where
            e.tenant_id = k.tenant_id
            and e.occurred_at >= k.starts_at
            and e.occurred_at < k.ends_at
            and e.request_key is not null
        offset 0
    ) as r
    where r.batch_id not in ({{ later_batches() }})
),

window_hours as (
    select
        w.*,
        t.starts_at as hour_at
    from touched as t
    cross join lateral (
        select w.*
        from {{ ref('stg_ledger__node_windows') }} as w
        where
            w.node_id = t.node_id
            and w.starts_at > t.starts_at - interval '24 hours'
            and w.starts_at < t.starts_at + {{ hour }}
            and w.ends_at > t.starts_at
        offset 0
    ) as w
    where w.batch_id not in ({{ later_batches() }})
),
{%- else -%}
entries as (
    select {{ gpu_entry_columns("e") }}
    from {{ ref('stg_ledger__entries') }} as e
    where
        e.request_key in (select n.request_key from {{ ref('stg_ledger__entries') }} as n where n.node_id <> '')
        and e.batch_id not in ({{ later_batches() }})
),

window_hours as (
    select
        w.*,
        h.hour_at
    from {{ ref('stg_ledger__node_windows') }} as w
    cross join lateral generate_series(
        date_trunc('hour', w.starts_at, 'UTC'), w.ends_at - interval '1 microsecond', {{ hour }}
    ) as h (hour_at)
    where w.batch_id not in ({{ later_batches() }})
),
{%- endif %}

-- Who served a request, and when: the newest final word of each kind. A node's own phases are the best; a time to first token
-- stands for the prefill; a latency alone holds the whole input all along.
served as (
    select
        request_key,
        occurred_at,
        (array_agg(node_id order by entry_id desc) filter (where node_id <> ''))[1] as node_id,
        (
            array_agg(array[prefill_ms, decode_ms] order by is_final desc, entry_id desc)
            filter (where prefill_ms + decode_ms > 0)
        )[1:1] as phases,
        (
            array_agg(
                array[greatest(ttft_ms - coalesce(queue_ms, 0), 0), latency_ms - ttft_ms] order by is_final desc, entry_id desc
            ) filter (where latency_ms >= ttft_ms and latency_ms > coalesce(queue_ms, 0))
        )[1:1] as first_token,
        (
            array_agg(array[0, latency_ms - coalesce(queue_ms, 0)] order by is_final desc, entry_id desc)
            filter (where latency_ms > coalesce(queue_ms, 0))
        )[1:1] as whole,
        sum(input_tokens) as input_tokens,
        sum(output_tokens) as output_tokens
    from entries
    group by request_key, occurred_at
    having bool_or(node_id <> '')
),

measured as (
    select
        *,
        coalesce(
            case
                when (coalesce(phases, first_token, whole))[1][1] + (coalesce(phases, first_token, whole))[1][2]
                    <= {{ resident_hours_max() * 3600000 }}
                    then coalesce(phases, first_token, whole)
            end,
            array[array[null, null]]::bigint[]
        ) as resident_ms
    from served
),

resident as materialized (
    select
        request_key,
        occurred_at,
        node_id,
        resident_ms[1][1] is null as is_latency_missing,
        (coalesce(resident_ms[1][1], {{ assumed_prefill_ms("greatest(input_tokens, 0)") }}) * 1000)::bigint as prefill_us,
        (coalesce(resident_ms[1][2], {{ assumed_decode_ms("greatest(output_tokens, 0)") }}) * 1000)::bigint as decode_us
    from measured
),

-- What stands of each request, by what the hour is cut by: one row, or one for each of its parts.
stood as (
    select
        request_key,
        tenant_id,
        feature,
        language,
        provider,
        model,
        standard_currency,
        sum(request_count) as request_count,
        sum(input_tokens) as input_tokens,
        sum(cache_read_tokens) as cache_read_tokens,
        sum(output_tokens) as output_tokens,
        sum(usage_missing_count) as usage_missing_count,
        sum(standard_unpriced_count) as standard_unpriced_count,
        sum(standard_amount) as standard_amount
    from entries
    where request_key in (select r.request_key from resident as r)
    group by 1, 2, 3, 4, 5, 6, 7
    having sum(request_count) <> 0 or sum(input_tokens) <> 0 or sum(output_tokens) <> 0 or sum(standard_amount) <> 0
),

requests as materialized (
    select
        r.node_id,
        r.occurred_at - (r.prefill_us + r.decode_us) * interval '1 microsecond' as resident_at,
        r.occurred_at,
        date_trunc('hour', r.occurred_at, 'UTC') as counted_in,
        r.prefill_us,
        r.decode_us,
        case when r.is_latency_missing then s.request_count else 0 end as latency_missing_count,
        s.*
    from resident as r
    join stood as s on s.request_key = r.request_key
),

-- Windows within the hour, cut where a rate begins, each with the rate in force and the model as usage names it.
cuts as (
    select
        w.*,
        greatest(w.starts_at, w.hour_at) as cut_at,
        least(w.ends_at, w.hour_at + {{ hour }}) as until_at
    from window_hours as w
    union
    select
        w.*,
        r.effective_at,
        least(w.ends_at, w.hour_at + {{ hour }})
    from window_hours as w
    join rates as r
        on
            r.gpu_model = w.gpu_model
            and r.gpu_count = w.gpu_count
            and r.effective_at > greatest(w.starts_at, w.hour_at)
            and r.effective_at < least(w.ends_at, w.hour_at + {{ hour }})
),

cut as (
    select
        *,
        lead(cut_at, 1, until_at) over (partition by event_key, hour_at order by cut_at) as ends_cut_at
    from cuts
),

pieces as materialized (
    select
        c.node_id,
        c.hour_at,
        c.tenant_id,
        c.provider,
        coalesce(n.model, c.reported_model) as model,
        coalesce(r.node_rate_id, 0) as node_rate_id,
        coalesce(r.currency, '') as currency,
        r.hourly_price,
        c.cut_at as starts_at,
        c.ends_cut_at as ends_at,
        (extract(epoch from c.ends_cut_at - c.cut_at) * 1000000)::bigint as covered_us,
        -- Each window in the hour in which it begins; its energy by time, in differences that sum to the whole.
        (c.cut_at = c.starts_at)::integer as window_count,
        coalesce(
            round(c.energy_joules * extract(epoch from c.ends_cut_at - c.starts_at) / extract(epoch from c.ends_at - c.starts_at))
            - round(c.energy_joules * extract(epoch from c.cut_at - c.starts_at) / extract(epoch from c.ends_at - c.starts_at)),
            0
        ) as energy_joules,
        case
            when c.energy_joules is null then (extract(epoch from c.ends_cut_at - c.cut_at) * 1000000)::bigint
            else 0
        end as energy_missing_us
    from cut as c
    left join names as n on n.provider = c.provider and n.name = c.reported_model
    left join lateral (
        select r.*
        from rates as r
        where
            r.gpu_model = c.gpu_model
            and r.gpu_count = c.gpu_count
            and r.mig_profile is not distinct from c.mig_profile
            and (r.region is null or r.region = c.region)
            and (r.node_id is null or r.node_id = c.node_id)
            and r.effective_at <= c.cut_at
        order by r.node_id is null, r.region is null, r.effective_at desc
        limit 1
    ) as r on true
),

-- What one price, owner and model share: an hour of a node is one pool, but for a change within it.
pooled as materialized (
    select
        *,
        dense_rank() over (order by node_id, hour_at, tenant_id, provider, model, node_rate_id) as pool_id
    from pieces
),

pools as materialized (
    select
        node_id,
        hour_at,
        tenant_id,
        provider,
        model,
        node_rate_id,
        currency,
        pool_id,
        min(starts_at) as starts_at,
        sum(covered_us) as covered_us,
        sum(window_count) as window_count,
        sum(energy_joules) as energy_joules,
        sum(energy_missing_us) as energy_missing_us,
        -- Rounded once, at twelve places: a whole hour is the price itself.
        round(max(hourly_price) * sum(covered_us) / 3600000000, 12) as bill_amount
    from pooled
    group by node_id, hour_at, tenant_id, provider, model, node_rate_id, currency, pool_id
),

-- The pool's time without gaps: windows that follow each other are one span.
marked as (
    select
        pool_id,
        node_id,
        hour_at,
        starts_at,
        ends_at,
        (starts_at is distinct from lag(ends_at) over (partition by pool_id order by starts_at))::integer as is_first
    from pooled
),

spans as materialized (
    select
        pool_id,
        node_id,
        hour_at,
        min(starts_at) as span_starts_at,
        max(ends_at) as span_ends_at
    from (
        select
            *,
            sum(is_first) over (partition by pool_id order by starts_at) as span_number
        from marked
    ) as numbered
    group by pool_id, node_id, hour_at, span_number
),

resident_hours as materialized (
    select
        q.*,
        h.hour_at,
        {{ kv_held_until("h.hour_at + " ~ hour) }} - {{ kv_held_until("h.hour_at") }} as hour_kv_token_ms
    from requests as q
    cross join lateral generate_series(
        date_trunc('hour', q.resident_at, 'UTC'), q.counted_in, {{ hour }}
    ) as h (hour_at)
    {%- if is_incremental() %}
    where (q.node_id, h.hour_at) in (select t.node_id, t.starts_at from touched as t)
    {%- endif %}
),

held as materialized (
    select
        q.*,
        s.pool_id,
        greatest(q.resident_at, s.span_starts_at) as held_from,
        least(q.occurred_at, s.span_ends_at) as held_until,
        {{ kv_held_until("s.span_ends_at") }} - {{ kv_held_until("s.span_starts_at") }} as kv_token_ms
    from resident_hours as q
    join spans as s on s.node_id = q.node_id and s.hour_at = q.hour_at
    where q.resident_at < s.span_ends_at and q.occurred_at > s.span_starts_at
),

-- Time with at least one request that held something: the union of their stretches.
busy as (
    select
        pool_id,
        sum(extract(epoch from greatest(held_until - greatest(held_from, coalesce(reached_at, held_from)), interval '0')) * 1000000)
        as busy_us
    from (
        select
            pool_id,
            held_from,
            held_until,
            max(held_until) over (
                partition by pool_id order by held_from, held_until rows between unbounded preceding and 1 preceding
            ) as reached_at
        from held
        where kv_token_ms > 0
    ) as ordered
    group by pool_id
),

priced as (
    select
        o.*,
        coalesce(b.busy_us, 0) as busy_us,
        round(o.bill_amount * coalesce(b.busy_us, 0) / o.covered_us, 12) as busy_amount
    from pools as o
    left join busy as b on b.pool_id = o.pool_id
),

pools_of_hours as (
    select
        node_id,
        hour_at,
        array_agg(pool_id order by pool_id) as pool_ids,
        array_agg(starts_at order by pool_id) as starting_at
    from pools
    group by node_id, hour_at
),

-- A request is counted, with its standard cost, in the hour in which it ended, beside the window that was running then or last.
counted as (
    select
        q.*,
        case
            when cardinality(h.pool_ids) = 1 then h.pool_ids[1]
            else (
                select o.pool_id
                from unnest(h.pool_ids, h.starting_at) as o (pool_id, starts_at)
                order by o.starts_at > q.occurred_at, abs(extract(epoch from o.starts_at - q.occurred_at)), o.pool_id
                limit 1
            )
        end as pool_id
    from resident_hours as q
    left join pools_of_hours as h on h.node_id = q.node_id and h.hour_at = q.hour_at
    where q.hour_at = q.counted_in
),

used as (
    select
        pool_id,
        node_id,
        hour_at,
        tenant_id,
        feature,
        language,
        provider,
        model,
        standard_currency,
        sum(request_count) as request_count,
        sum(input_tokens) as input_tokens,
        sum(cache_read_tokens) as cache_read_tokens,
        sum(output_tokens) as output_tokens,
        sum(usage_missing_count) as usage_missing_count,
        sum(latency_missing_count) as latency_missing_count,
        sum(standard_unpriced_count) as standard_unpriced_count,
        sum(standard_amount) as standard_amount,
        sum(kv_token_ms) as kv_token_ms
    from (
        select
            pool_id, node_id, hour_at, tenant_id, feature, language, provider, model, standard_currency,
            request_count, input_tokens, cache_read_tokens, output_tokens, usage_missing_count, latency_missing_count,
            standard_unpriced_count, standard_amount, 0 as kv_token_ms
        from counted
        union all
        select
            pool_id, node_id, hour_at, tenant_id, feature, language, provider, model, standard_currency,
            0, 0, 0, 0, 0, 0, 0, 0, kv_token_ms
        from held
        union all
        -- What no window covers: its hour less its pools.
        select
            null, node_id, hour_at, tenant_id, feature, language, provider, model, standard_currency,
            0, 0, 0, 0, 0, 0, 0, 0, hour_kv_token_ms
        from resident_hours
        union all
        select
            null, node_id, hour_at, tenant_id, feature, language, provider, model, standard_currency,
            0, 0, 0, 0, 0, 0, 0, 0, -kv_token_ms
        from held
    ) as parts
    group by 1, 2, 3, 4, 5, 6, 7, 8, 9
),

-- Each share ends where the sum so far, rounded, ends: shares are never below zero, and sum to the amount exactly.
summed as (
    select
        u.*,
        o.tenant_id as owner_id,
        o.currency,
        o.busy_amount,
        sum(u.kv_token_ms) over (partition by u.pool_id) as pool_kv_token_ms,
        sum(u.kv_token_ms) over (
            partition by u.pool_id
            order by u.tenant_id, u.feature, u.language, u.provider, u.model, u.standard_currency
        ) as kv_so_far
    from used as u
    join priced as o on o.pool_id = u.pool_id
),

shared as (
    select
        *,
        case
            when pool_kv_token_ms = 0 then busy_amount * 0
            else
                round(busy_amount * kv_so_far / pool_kv_token_ms, 12)
                - round(busy_amount * (kv_so_far - kv_token_ms) / pool_kv_token_ms, 12)
        end as node_amount
    from summed
),

-- What standard rates leave over or lack. Unknown where the hour has no price, or a standard rate is in another currency.
variances as (
    select
        pool_id,
        case
            when bool_and(standard_amount = 0 or standard_currency = currency) then sum(node_amount) - sum(standard_amount)
        end as variance_amount
    from shared
    group by pool_id
),

rows_made as (
    select
        node_id,
        hour_at as starts_at,
        'request' as kind,
        tenant_id,
        feature,
        language,
        provider,
        model,
        currency,
        standard_currency,
        request_count,
        input_tokens,
        cache_read_tokens,
        output_tokens,
        usage_missing_count,
        latency_missing_count,
        kv_token_ms,
        node_amount,
        standard_amount,
        standard_unpriced_count,
        0 as bill_amount,
        0 as variance_amount,
        0 as covered_us,
        0 as busy_us,
        0 as window_count,
        0 as energy_joules,
        0 as energy_missing_us,
        null::bigint as rates_known
    from shared
    union all
    select
        node_id,
        hour_at,
        'uncovered',
        tenant_id,
        feature,
        language,
        provider,
        model,
        '',
        standard_currency,
        request_count,
        input_tokens,
        cache_read_tokens,
        output_tokens,
        usage_missing_count,
        latency_missing_count,
        kv_token_ms,
        null,
        standard_amount,
        standard_unpriced_count,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        null
    from used
    where pool_id is null and (kv_token_ms <> 0 or request_count <> 0 or standard_amount <> 0)
    union all
    select
        o.node_id,
        o.hour_at,
        'idle',
        o.tenant_id,
        '',
        'und',
        o.provider,
        o.model,
        o.currency,
        '',
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        o.bill_amount - o.busy_amount,
        0,
        0,
        o.bill_amount,
        case when o.bill_amount is not null and v.pool_id is null then 0 else v.variance_amount end,
        o.covered_us,
        o.busy_us,
        o.window_count,
        o.energy_joules,
        o.energy_missing_us,
        coalesce((select max(r.node_rate_id) from rates as r), 0)
    from priced as o
    left join variances as v on v.pool_id = o.pool_id
),

-- Pools of one hour that differ in nothing but their rate are one row; an amount that one of them lacks, the row lacks.
allocated as (
    select
        {{ columns | join(",\n        ") }},
        sum(request_count)::bigint as request_count,
        sum(input_tokens)::bigint as input_tokens,
        sum(cache_read_tokens)::bigint as cache_read_tokens,
        sum(output_tokens)::bigint as output_tokens,
        sum(usage_missing_count)::bigint as usage_missing_count,
        sum(latency_missing_count)::bigint as latency_missing_count,
        sum(kv_token_ms)::bigint as kv_token_ms,
        case when bool_and(node_amount is not null) then sum(node_amount) end as node_amount,
        sum(standard_amount) as standard_amount,
        sum(standard_unpriced_count)::bigint as standard_unpriced_count,
        case when bool_and(bill_amount is not null) then sum(bill_amount) end as bill_amount,
        case when bool_and(variance_amount is not null) then sum(variance_amount) end as variance_amount,
        sum(covered_us)::bigint as covered_us,
        sum(busy_us)::bigint as busy_us,
        sum(window_count)::bigint as window_count,
        sum(energy_joules)::bigint as energy_joules,
        sum(energy_missing_us)::bigint as energy_missing_us,
        max(rates_known) as rates_known
    from rows_made
    group by {{ columns | join(", ") }}
),

{% if not is_incremental() -%}
touched as (
    select distinct
        node_id,
        starts_at
    from allocated
),
{%- endif %}

replaced as (
    {{ replacing('allocated', 'touched') }}
)

select * from replaced
