{%- set columns = ["tenant_id", "minute_at as starts_at", "local_date", "provider", "model"] -%}
{%- set measures = [
    "request_count", "usage_missing_count", "uncached_input_tokens", "input_tokens", "output_tokens",
] -%}
{{ config(one_row_per(columns)) }}

with unconsumed as (
    {{ unconsumed(ref('int_entries_measured')) }}
),

timed as (
    select
        tenant_id,
        date_trunc('minute', occurred_at, 'UTC') as minute_at,
        local_date,
        provider,
        model,
        {{ measures | join(",\n        ") }}
    from unconsumed
    where kind <> 'evidence'
),

folded as (
    {{ folded('timed', columns, measures) }}
)

select * from folded
