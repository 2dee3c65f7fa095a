with source as (
    select * from {{ source('ledger', 'tenant_versions') }}
),

renamed as (
    select
        tenant_id,
        effective_at,
        entity_id,
        name,
        time_zone,
        charge_currency::text as charge_currency,
        status
    from source
)

select * from renamed
