with source as (
    select * from {{ source('ledger', 'tenants') }}
),

renamed as (
    select
        tenant_id,
        starts_at,
        ends_at,
        merged_into,
        merged_at
    from source
)

select * from renamed
