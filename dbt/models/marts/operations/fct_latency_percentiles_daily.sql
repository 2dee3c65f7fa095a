{{ config(materialized="standing_view", incremental_strategy="none", unique_key=["tenant_id", "local_date", "feature", "provider", "model", "route", "lane", "metric"]) }}

with answered as (
    select *
    from {{ ref('fct_latency_daily') }}
    where status = 'ok' and served_by = 'model'
),

percentiles as (
    {{ latency_percentiles(
        "answered", ["tenant_id", "local_date", "feature", "provider", "model", "route", "lane", "metric"], [50, 90, 95, 99]
    ) }}
)

select * from percentiles
