with source as (
    select * from {{ source('ledger', 'tenants') }}
),

renamed as (
    select
        tenant_id,
        starts_at,
        ends_at,
        -- A merge that has ended is none: who paid for usage meanwhile stands on the entries.
        case when unmerged_at is null or unmerged_at > now() then merged_into end as merged_into,
        case when unmerged_at is null or unmerged_at > now() then merged_at end as merged_at
    from source
)

select * from renamed
