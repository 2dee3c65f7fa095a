{%- set columns = ["tenant_id", "local_date"] + usage_dimensions() -%}
{{ config(one_row_per(columns)) }}

with unconsumed as (
    {{ unconsumed(ref('int_entries_measured')) }}
),

folded as (
    {{ folded('unconsumed', columns, usage_measures()) }}
)

select * from folded
