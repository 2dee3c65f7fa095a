with source as (
    select * from {{ source('ledger', 'rates') }}
),

renamed as (
    select
        rate_set_id,
        meter,
        price,
        per
    from source
)

select * from renamed
