with source as (
    select * from {{ source('ledger', 'node_rates') }}
),

-- A rate that another one restates was a mistake; it counts for nothing.
standing as (
    select *
    from source as s
    where not exists (
        select
        from source as later
        where later.replaces = s.content_hash
    )
),

renamed as (
    select
        node_rate_id,
        gpu_model,
        gpu_count,
        mig_profile,
        region,
        node_id,
        hourly_price,
        currency::text as currency,
        effective_at
    from standing
)

select * from renamed
