{#
Latency histograms have fixed edges, in microseconds: sixty to a decade, 100 x 10^(k/60) cut to whole microseconds, from 0.1
ms to 100,000 s. A bucket's middle is the square root of its edges' product, at most 2.5 % from any value in it.
#}
{% macro latency_edges() -%}
    {%- set edges = [] -%}
    {%- for place in range(0, 541) -%}
        {%- do edges.append((100 * 10 ** (place / 60) + 0.000001) | int) -%}
    {%- endfor -%}
    {{ return(edges) }}
{%- endmacro %}

{# The bucket of a number of microseconds: 0 below the first edge, 541 from the last on. #}
{% macro latency_bucket(microseconds) -%}
    width_bucket({{ microseconds }}, '{ {{- latency_edges() | join(",") -}} }'::bigint[])
{%- endmacro %}

{#
What the unconsumed batches change of whole requests: rows with a `sign`, -1 for the state that this model holds of a request
and +1 for the state that it has now. A report that takes the place of another has its own times on all its rows, also on
those that take the other one back, so times do not fold as counts do; whole states do.

A request's times are the newest that a report of it said which counted, one by one: a repricing says none and leaves them,
evidence is passed over, and of a request that was withdrawn no state is left. `request_count` is the number of requests that
a state stands for, so sign x request_count folds.
#}
{% macro changed_requests() %}
    {%- set dimensions = [
        "tenant_id", "local_date", "feature", "language", "provider", "model", "route", "lane", "status", "served_by",
    ] -%}
    {%- set times = ["latency_ms", "ttft_ms", "queue_ms", "prefill_ms", "decode_ms", "delivered_output_tokens"] -%}
    with unconsumed as (
        select
            e.entry_id,
            e.entry_no,
            e.corrects_entry_id,
            coalesce(e.corrects_entry_id, e.entry_id - e.entry_no) as first_entry_id,
            e.recorded_at,
            e.request_count,
            e.tenant_id,
            e.local_date,
            e.feature,
            e.language,
            e.provider,
            e.model,
            e.route,
            e.lane,
            e.status,
            case when e.cache_result in ('exact_hit', 'semantic_hit') then 'response_cache' else 'model' end as served_by,
            {%- for time in times %}
            e.{{ time }},
            {%- endfor %}
            e.usage_missing_count,
            e.output_tokens
        from ({{ unconsumed(ref('int_entries_measured')) }}) as e
        where e.kind <> 'evidence'
    ),

    corrected as (
        select distinct first_entry_id
        from unconsumed
        where corrects_entry_id is not null
    ),

    -- Most requests are one report and nothing else: one row, and one for each further part of the answer.
    further_parts as (
        select
            first_entry_id,
            sum(output_tokens) as output_tokens
        from unconsumed
        where entry_no > 0 and corrects_entry_id is null
        group by first_entry_id
    ),

    plain as (
        select
            1 as sign,
            u.request_count,
            {%- for dimension in dimensions %}
            u.{{ dimension }},
            {%- endfor %}
            {%- for time in times %}
            u.{{ time }},
            {%- endfor %}
            u.usage_missing_count,
            u.output_tokens + coalesce(p.output_tokens, 0) as output_tokens
        from unconsumed as u
        left join further_parts as p on p.first_entry_id = u.first_entry_id
        where
            u.request_count <> 0
            and u.corrects_entry_id is null
            and not exists (select from corrected as c where c.first_entry_id = u.first_entry_id)
    ),

    rows_of_corrected as (
        select
            false as is_held,
            u.first_entry_id,
            u.entry_id,
            u.recorded_at,
            u.request_count,
            {%- for dimension in dimensions %}
            u.{{ dimension }},
            {%- endfor %}
            {%- for time in times %}
            u.{{ time }},
            {%- endfor %}
            u.usage_missing_count,
            u.output_tokens
        from unconsumed as u
        join corrected as c on c.first_entry_id = u.first_entry_id
        {%- if is_incremental() and not var("refold", false) %}

        union all

        -- What this model holds of them: the rows of batches that it has consumed.
        select
            true as is_held,
            c.first_entry_id,
            e.entry_id,
            e.recorded_at,
            e.request_count,
            e.tenant_id,
            e.local_date,
            coalesce(e.feature, '') as feature,
            e.language,
            coalesce(e.provider, '') as provider,
            coalesce(e.model, '') as model,
            coalesce(e.route, '') as route,
            coalesce(e.lane, '') as lane,
            e.status,
            case when e.cache_result in ('exact_hit', 'semantic_hit') then 'response_cache' else 'model' end as served_by,
            {%- for time in times %}
            e.{{ time }},
            {%- endfor %}
            case when 'usage_missing' = any (e.usage_flags) then e.request_count else 0 end as usage_missing_count,
            coalesce(e.output_tokens, 0) as output_tokens
        from corrected as c
        cross join lateral (
            {{ rows_of_request('c.first_entry_id') }}
        ) as e
        join {{ source('ledger', 'batches') }} as b on b.batch_id = e.batch_id
        join {{ source('marts', 'watermarks') }} as w
            on w.feed_id = b.feed_id and w.model = '{{ this.identifier }}' and b.number <= w.low
        {%- endif %}
    ),

    sides as (
        select
            s.sign,
            r.*
        from rows_of_corrected as r
        cross join lateral (select 1 as sign union all select -1 where r.is_held) as s
    ),

    said as (
        select
            sign,
            first_entry_id,
            sum(usage_missing_count) as usage_missing_count,
            sum(output_tokens)::bigint as output_tokens,
            {%- for time in times %}
            (array_agg({{ time }} order by recorded_at desc, entry_id desc) filter (where {{ time }} is not null))[1] as {{ time }}
            {{- "," if not loop.last }}
            {%- endfor %}
        from sides
        group by sign, first_entry_id
    ),

    counted as (
        select
            sign,
            first_entry_id,
            sum(request_count) as request_count,
            {{ dimensions | join(",\n            ") }}
        from sides
        group by sign, first_entry_id, {{ dimensions | join(", ") }}
        having sum(request_count) <> 0
    )

    select
        sign,
        request_count,
        {{ dimensions | join(",\n        ") }},
        {{ times | join(",\n        ") }},
        usage_missing_count,
        output_tokens
    from plain

    union all

    select
        c.sign,
        c.request_count,
        {%- for dimension in dimensions %}
        c.{{ dimension }},
        {%- endfor %}
        {%- for time in times %}
        s.{{ time }},
        {%- endfor %}
        s.usage_missing_count,
        s.output_tokens
    from counted as c
    join said as s using (sign, first_entry_id)
{% endmacro %}

{#
All rows of a request that move something, by its first one: that one and the parts beside it, and what corrects them, which
is posted in no month before the one that it occurred in. The digests of the first row's batch say which partition has it;
`offset 0` keeps each step a look-up by key. From the sources themselves: a staging model that a statement names twice would
be read whole.
#}
{% macro rows_of_request(first_entry_id) %}
    select p.*
    from (
        select d.posting_period
        from {{ source('ledger', 'batch_digests') }} as d
        where d.batch_id = {{ first_entry_id }} / 65536
        offset 0
    ) as d
    cross join lateral (
        select
            r.event_key,
            r.occurred_at
        from {{ source('ledger', 'entries') }} as r
        where r.posting_period = d.posting_period and r.entry_id = {{ first_entry_id }}
        offset 0
    ) as f
    cross join lateral (
        select r.*
        from {{ source('ledger', 'entries') }} as r
        where
            r.posting_period = d.posting_period
            and r.entry_id >= {{ first_entry_id }}
            and r.entry_id < {{ first_entry_id }} + 100
            and r.event_key = f.event_key
            and r.kind <> 'evidence'
        union all
        select r.*
        from {{ source('ledger', 'entries') }} as r
        where
            r.posting_period >= date_trunc('month', f.occurred_at - interval '12 hours', 'UTC')::date
            and r.corrects_entry_id = {{ first_entry_id }}
            and r.kind <> 'evidence'
        offset 0
    ) as p
{% endmacro %}

{#
Percentiles out of a histogram, by columns: of n requests the one at place ceil(n x percentile / 100), as the middle of its
bucket, in milliseconds. In a row whose histogram holds fewer requests than a percentile needs to leave one above it, that
percentile is the largest value or near it: the count beside it says so.
#}
{% macro latency_percentiles(relation, columns, percentiles) %}
    select
        {%- for column in columns %}
        {{ column }},
        {%- endfor %}
        coalesce(sum(request_count) filter (where bucket >= 0), 0)::bigint as measured_count,
        coalesce(sum(request_count) filter (where bucket < 0), 0)::bigint as unmeasured_count,
        {%- for percentile in percentiles %}
        {{ latency_middle('min(bucket) filter (where bucket >= 0 and reached_count * 100 >= measured_count * ' ~ percentile ~ ')') }}
        as p{{ percentile }}_ms{{ "," if not loop.last }}
        {%- endfor %}
    from (
        select
            {%- for column in columns %}
            {{ column }},
            {%- endfor %}
            bucket,
            request_count,
            sum(request_count) filter (where bucket >= 0) over (own order by bucket) as reached_count,
            sum(request_count) filter (where bucket >= 0) over own as measured_count
        from (
            select
                {%- for column in columns %}
                {{ column }},
                {%- endfor %}
                bucket,
                sum(request_count) as request_count
            from {{ relation }}
            group by {{ columns | join(", ") }}, bucket
            having sum(request_count) > 0
        ) as b
        window own as (partition by {{ columns | join(", ") }})
    ) as r
    group by {{ columns | join(", ") }}
{% endmacro %}

{# The middle of a bucket in milliseconds; null for what lies above the last edge, whose middle nobody knows. #}
{% macro latency_middle(bucket) -%}
    ('{ {{- latency_middles() | join(",") -}} }'::numeric[])[({{ bucket }}) + 1]
{%- endmacro %}

{% macro latency_middles() -%}
    {%- set edges = latency_edges() -%}
    {%- set middles = [0.05] -%}
    {%- for edge in edges[:-1] -%}
        {%- do middles.append("%.4f" % ((edge * edges[loop.index]) ** 0.5 / 1000)) -%}
    {%- endfor -%}
    {{ return(middles) }}
{%- endmacro %}
