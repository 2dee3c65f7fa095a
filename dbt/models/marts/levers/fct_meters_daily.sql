{%- set columns = [
    "tenant_id", "local_date", "feature", "language", "provider", "model", "asked_model", "attempt_kind", "cost_currency",
    "charge_currency", "cost_rate_set_id", "charge_rate_set_id", "is_avoided", "meter",
] -%}
{%- set said = columns | reject("in", ["is_avoided", "meter"]) | list -%}
{%- set meters = [
    "uncached_input_tokens", "cache_read_tokens", "cache_write_5m_tokens", "cache_write_1h_tokens", "cache_write_other_tokens",
    "visible_output_tokens", "reasoning_tokens",
] -%}
{{ config(one_row_per(columns)) }}

with unconsumed as (
    select
        e.corrects_entry_id,
        {%- for column in said if column not in ["asked_model", "attempt_kind"] and "rate_set" not in column %}
        e.{{ column }},
        {%- endfor %}
        -- Only where another model was asked for than the one that answered, so that a mart has no row for each spelling.
        case when e.requested_model in (e.model, e.reported_model) then '' else e.requested_model end as asked_model,
        case
            when e.attempt_kind <> '' then e.attempt_kind
            when e.attempt > 1 then 'later'
            else 'first'
        end as attempt_kind,
        coalesce(e.cost_rate_set_id, 0) as cost_rate_set_id,
        coalesce(e.charge_rate_set_id, 0) as charge_rate_set_id,
        e.request_count,
        {%- for meter in meters %}
        e.{{ meter }},
        {%- endfor %}
        e.other_quantities,
        e.avoided_tokens,
        e.avoided_tokens <> 0 as is_hit,
        case when e.avoided_tokens <> 0 then e.reported -> 'avoided' end as avoided
    from ({{ unconsumed(ref('int_entries_measured')) }}) as e
    where e.kind <> 'evidence'
),

-- Summed before there is a row for each meter; what is a map is part of the key, so that all entries of a row have the same.
summed as (
    select
        {{ said | join(",\n        ") }},
        other_quantities,
        is_hit,
        avoided,
        case when is_hit and avoided is null then corrects_entry_id end as corrected_hit_id,
        count(*) as entry_count,
        {%- for meter in meters %}
        sum({{ meter }})::bigint as {{ meter }},
        {%- endfor %}
        sum(request_count)::bigint as request_count,
        sum(avoided_tokens)::bigint as avoided_tokens,
        sum(sign(avoided_tokens))::bigint as hit_count
    from unconsumed
    group by {{ said | join(", ") }}, other_quantities, is_hit, avoided, corrected_hit_id
),

-- What takes a hit back says how many tokens and not which: as the first row of the hit says, with its own sign.
hits as (
    select
        s.*,
        coalesce(s.avoided, f.avoided) as avoided_by_meter
    from summed as s
    left join lateral (
        select r.reported -> 'avoided' as avoided
        from {{ source('ledger', 'batch_digests') }} as d
        join {{ source('ledger', 'entries') }} as r
            on r.posting_period = d.posting_period and r.entry_id = s.corrected_hit_id
        where d.batch_id = s.corrected_hit_id / 65536
        offset 0
    ) as f on true
    where s.is_hit
),

metered as (
    select
        {%- for column in said %}
        s.{{ column }},
        {%- endfor %}
        false as is_avoided,
        m.meter,
        m.quantity
    from summed as s
    cross join lateral (
        values
            ('requests', s.request_count)
            {%- for meter in meters %},
            ('{{ meter }}', s.{{ meter }})
            {%- endfor %}
        union all
        select
            o.key,
            o.value::bigint * s.entry_count
        from jsonb_each_text(s.other_quantities) as o
    ) as m (meter, quantity)
    where m.quantity <> 0

    union all

    select
        {%- for column in said %}
        h.{{ column }},
        {%- endfor %}
        true,
        m.meter,
        m.quantity
    from hits as h
    cross join lateral (
        select
            'requests',
            h.request_count
        union all
        select
            a.key,
            h.hit_count * a.value::bigint
        from jsonb_each_text(h.avoided_by_meter) as a
        union all
        -- Before hits said which meters they avoided, and where a sender gives a total only.
        select
            'tokens',
            h.avoided_tokens
        where h.avoided_by_meter is null
    ) as m (meter, quantity)
    where m.quantity <> 0
),

folded as (
    select
        {{ columns | join(",\n        ") }},
        sum(quantity)::bigint as quantity
    from metered
    group by {{ columns | join(", ") }}
)

select * from folded
