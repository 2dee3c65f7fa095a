{%- set columns = [
    "tenant_id", "date_bin('5 minutes', occurred_at, timestamptz '2020-01-01 00:00:00+00') as starts_at", "subject_id",
    "charge_currency",
] -%}
{{ config(one_row_per(columns)) }}

with unconsumed as (
    {{ unconsumed(ref('int_entries_measured')) }}
),

named as (
    select *
    from unconsumed
    where subject_id is not null
),

folded as (
    {{ folded('named', columns, [
        "request_count", "usage_missing_count", "input_tokens", "output_tokens", "charge_amount", "charge_unpriced_count",
    ]) }}
)

select * from folded
