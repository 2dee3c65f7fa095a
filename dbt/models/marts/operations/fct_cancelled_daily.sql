{%- set columns = ["tenant_id", "local_date", "feature", "provider", "model", "route", "lane", "status"] -%}
{%- set measures = [
    "request_count", "usage_missing_count", "generated_output_tokens", "delivered_output_tokens", "undelivered_output_tokens",
    "delivery_unknown_count", "delivery_unknown_tokens",
] -%}
{{ config(one_row_per(columns)) }}

with changed as (
    {{ changed_requests() }}
),

broken_off as (
    select
        *,
        sign * request_count as signed_count,
        -- Of what was written in a call that nobody gave the usage of, how much arrived says nothing of how much did not.
        (usage_missing_count = 0)::integer as is_known
    from changed
    where status in ('cancelled', 'interrupted') and served_by = 'model'
),

measured as (
    select
        {{ columns | join(",\n        ") }},
        signed_count as request_count,
        signed_count * (1 - is_known) as usage_missing_count,
        signed_count * output_tokens as generated_output_tokens,
        signed_count * is_known * coalesce(delivered_output_tokens, 0) as delivered_output_tokens,
        signed_count * is_known * coalesce(output_tokens - delivered_output_tokens, 0) as undelivered_output_tokens,
        signed_count * (delivered_output_tokens is null)::integer as delivery_unknown_count,
        signed_count * case when delivered_output_tokens is null then output_tokens else 0 end as delivery_unknown_tokens
    from broken_off
),

folded as (
    {{ folded('measured', columns, measures) }}
)

select * from folded
