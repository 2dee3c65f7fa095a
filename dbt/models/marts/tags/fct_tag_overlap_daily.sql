{%- set columns = [
    "tenant_id", "local_date", "is_tagged", "tag", "feature", "language", "provider", "model", "cost_currency", "charge_currency",
] -%}
{{ config(one_row_per(columns)) }}

with unconsumed as (
    {{ unconsumed(ref('int_entries_measured')) }}
),

tagged as (
    select
        u.*,
        t.tag is not null as is_tagged,
        coalesce(t.tag, 'untagged') as tag
    from unconsumed as u
    left join lateral (
        select {{ tag_text('p.key', 'p.value') }} as tag
        from jsonb_each_text(u.tags) as p
    ) as t on true
    where u.kind <> 'evidence'
),

folded as (
    select
        {{ columns | join(",\n        ") }},
        {%- for measure in tag_measures() %}
        sum({{ measure }}){{ "::bigint" if not measure.endswith("_amount") }} as {{ measure }}_overlapping{{ "," if not loop.last }}
        {%- endfor %}
    from tagged
    group by {{ columns | join(", ") }}
)

select * from folded
