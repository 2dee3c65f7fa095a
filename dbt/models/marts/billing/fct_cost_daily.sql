{%- set key = ["tenant_id", "local_date"] + usage_dimensions() -%}
{{ config(unique_key=key, indexes=[{"columns": key, "unique": true}]) }}

with unconsumed as (
    {{ unconsumed(ref('int_entries_measured')) }}
),

folded as (
    {{ usage_folded('unconsumed', 'local_date', 'local_date') }}
)

select * from folded
