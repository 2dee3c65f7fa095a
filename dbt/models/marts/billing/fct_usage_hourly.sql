{%- set key = ["tenant_id", "starts_at"] + usage_dimensions() -%}
{{ config(unique_key=key, indexes=[{"columns": key, "unique": true}]) }}

with unconsumed as (
    {{ unconsumed(ref('int_entries_measured')) }}
),

folded as (
    {{ usage_folded('unconsumed', 'starts_at', 'hour_at') }}
)

select * from folded
