{%- set columns = [
    "tenant_id", "local_date", "is_tagged", "tag", "feature", "language", "provider", "model", "cost_currency", "charge_currency",
] -%}
{%- set measures = tag_measures() -%}
{{ config(one_row_per(columns)) }}

with unconsumed as (
    {{ unconsumed(ref('int_entries_measured')) }}
),

-- An entry's tags in the order of their text, so that the remainder falls on the same tag whatever order a sender has.
tagged as (
    select
        u.*,
        t.tag is not null as is_tagged,
        coalesce(t.tag, 'untagged') as tag,
        coalesce(t.place, 1) as place,
        coalesce(t.tag_count, 1) as tag_count
    from unconsumed as u
    left join lateral (
        select
            {{ tag_text('p.key', 'p.value') }} as tag,
            row_number() over (order by p.key, p.value) as place,
            count(*) over () as tag_count
        from jsonb_each_text(u.tags) as p
    ) as t on true
),

parted as (
    select
        {{ columns | join(",\n        ") }},
        {%- for measure in measures %}
        {{ equal_part(measure, 'place', 'tag_count') }} as {{ measure }}{{ "," if not loop.last }}
        {%- endfor %}
    from tagged
    where kind <> 'evidence'
),

folded as (
    select
        {{ columns | join(",\n        ") }},
        {%- for measure in measures %}
        sum({{ measure }}) as {{ measure }}{{ "," if not loop.last }}
        {%- endfor %}
    from parted
    group by {{ columns | join(", ") }}
)

select * from folded
