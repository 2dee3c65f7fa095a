with source as (
    select * from {{ source('ledger', 'rates') }}
),

renamed as (
    select
        rate_set_id,
        meter,
        price,
        per,
        priced_as,
        {{ unit_price('price', 'per') }} as unit_price
    from source
)

select * from renamed
