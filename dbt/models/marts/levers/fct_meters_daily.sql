{%- set columns = [
    "tenant_id", "local_date", "feature", "language", "provider", "model", "asked_model", "attempt_kind", "cost_currency",
    "charge_currency", "cost_rate_set_id", "charge_rate_set_id", "is_avoided", "meter",
] -%}
{{ config(one_row_per(columns)) }}

with unconsumed as (
    select
        e.entry_id,
        e.corrects_entry_id,
        {%- for column in columns if column not in ["asked_model", "attempt_kind", "is_avoided", "meter"] and "rate_set" not in column %}
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
        e.uncached_input_tokens,
        e.cache_read_tokens,
        e.cache_write_5m_tokens,
        e.cache_write_1h_tokens,
        e.cache_write_other_tokens,
        e.visible_output_tokens,
        e.reasoning_tokens,
        e.other_quantities,
        e.avoided_tokens,
        e.reported -> 'avoided' as avoided
    from ({{ unconsumed(ref('int_entries_measured')) }}) as e
    where e.entry_count = 1
),

-- What takes a hit back says how many tokens and not which: as the first row of the hit says, with its own sign.
hits as (
    select
        u.*,
        coalesce(u.avoided, f.avoided) as avoided_by_meter
    from unconsumed as u
    left join lateral (
        select r.reported -> 'avoided' as avoided
        from {{ source('ledger', 'batch_digests') }} as d
        join {{ source('ledger', 'entries') }} as r
            on r.posting_period = d.posting_period and r.entry_id = u.corrects_entry_id
        where u.avoided is null and d.batch_id = u.corrects_entry_id / 65536
        offset 0
    ) as f on true
    where u.avoided_tokens <> 0
),

metered as (
    select
        {%- for column in columns if column not in ["is_avoided", "meter"] %}
        u.{{ column }},
        {%- endfor %}
        false as is_avoided,
        m.meter,
        m.quantity
    from unconsumed as u
    cross join lateral (
        values
            ('requests', u.request_count::bigint),
            ('uncached_input_tokens', u.uncached_input_tokens),
            ('cache_read_tokens', u.cache_read_tokens),
            ('cache_write_5m_tokens', u.cache_write_5m_tokens),
            ('cache_write_1h_tokens', u.cache_write_1h_tokens),
            ('cache_write_other_tokens', u.cache_write_other_tokens),
            ('visible_output_tokens', u.visible_output_tokens),
            ('reasoning_tokens', u.reasoning_tokens)
        union all
        select
            o.key,
            o.value::bigint
        from jsonb_each_text(u.other_quantities) as o
    ) as m (meter, quantity)
    where m.quantity <> 0

    union all

    select
        {%- for column in columns if column not in ["is_avoided", "meter"] %}
        h.{{ column }},
        {%- endfor %}
        true,
        m.meter,
        m.quantity
    from hits as h
    cross join lateral (
        select
            'requests',
            h.request_count::bigint
        union all
        select
            a.key,
            sign(h.avoided_tokens)::bigint * a.value::bigint
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
