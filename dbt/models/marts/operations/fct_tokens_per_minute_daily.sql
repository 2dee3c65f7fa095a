{{ config(materialized="standing_view", incremental_strategy="none", unique_key=["tenant_id", "local_date", "scope", "provider", "model"]) }}

with minutes as (
    select * from {{ ref('fct_tokens_by_minute') }}
),

tenants as (
    select * from {{ ref('dim_tenants') }}
),

by_scope as (
    select
        tenant_id,
        local_date,
        starts_at,
        'model' as scope,
        provider,
        model,
        request_count,
        usage_missing_count,
        input_tokens + output_tokens as tokens
    from minutes

    union all

    select
        tenant_id,
        local_date,
        starts_at,
        'tenant',
        '',
        '',
        sum(request_count),
        sum(usage_missing_count),
        sum(input_tokens + output_tokens)
    from minutes
    group by tenant_id, local_date, starts_at
),

days as (
    select
        tenant_id,
        local_date,
        scope,
        provider,
        model,
        count(*) filter (where tokens > 0) as active_minute_count,
        sum(request_count)::bigint as request_count,
        sum(usage_missing_count)::bigint as usage_missing_count,
        sum(tokens)::bigint as token_count,
        max(tokens)::bigint as peak_tokens_per_minute,
        (array_agg(starts_at order by tokens desc, starts_at))[1] as peak_at,
        max(request_count)::bigint as peak_requests_per_minute
    from by_scope
    group by tenant_id, local_date, scope, provider, model
),

rated as (
    select
        d.*,
        round(d.token_count::numeric / nullif(d.active_minute_count, 0), 3) as mean_tokens_per_active_minute,
        -- A local day has 1,440 minutes but where the clocks change.
        round(
            d.token_count * 60 / extract(
                epoch from
                (d.local_date + 1)::timestamp at time zone t.time_zone - d.local_date::timestamp at time zone t.time_zone
            ),
            3
        ) as mean_tokens_per_minute
    from days as d
    join tenants as t on t.tenant_id = d.tenant_id
)

select * from rated
