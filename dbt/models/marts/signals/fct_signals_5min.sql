{%- set columns = [
    "tenant_id", "date_bin('5 minutes', occurred_at, timestamptz '2020-01-01 00:00:00+00') as starts_at", "feature",
    "api_key_id", "language", "provider", "model", "charge_currency",
] -%}
{%- set measures = [
    "request_count",
    "case when status = 'error' then request_count else 0 end as error_count",
    "case when attempt_kind = 'retry' then request_count else 0 end as retry_count",
    "case when abs(input_tokens) >= 16000 then request_count else 0 end as over_16k_count",
    "case when abs(input_tokens) >= 64000 then request_count else 0 end as over_64k_count",
    "case when abs(input_tokens) between 128 and 255 then request_count else 0 end as cacheable_128_count",
    "case when abs(input_tokens) between 256 and 511 then request_count else 0 end as cacheable_256_count",
    "case when abs(input_tokens) >= 512 then request_count else 0 end as cacheable_512_count",
    "case when abs(input_tokens) between 128 and 255 and cache_read_tokens <> 0 then request_count else 0 end as cache_read_128_count",
    "case when abs(input_tokens) between 256 and 511 and cache_read_tokens <> 0 then request_count else 0 end as cache_read_256_count",
    "case when abs(input_tokens) >= 512 and cache_read_tokens <> 0 then request_count else 0 end as cache_read_512_count",
    "usage_missing_count", "input_tokens", "cache_read_tokens", "output_tokens", "charge_amount", "charge_unpriced_count",
] -%}
{{ config(one_row_per(columns)) }}

with unconsumed as (
    {{ unconsumed(ref('int_entries_measured')) }}
),

folded as (
    {{ folded('unconsumed', columns, measures) }}
)

select * from folded
