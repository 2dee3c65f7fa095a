{%- set columns = [
    "tenant_id", "conversation_id", "local_date", "feature", "language", "provider", "model", "cost_currency", "charge_currency",
] -%}
{{ config(one_row_per(columns)) }}

with unconsumed as (
    {{ unconsumed(ref('int_entries_measured')) }}
),

folded as (
    {{ folded('unconsumed', columns, usage_measures()) }}
)

select * from folded
