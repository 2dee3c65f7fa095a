with source as (
    select * from {{ source('ledger', 'exchange_rates') }}
),

renamed as (
    select
        content_hash,
        from_currency::text as from_currency,
        to_currency::text as to_currency,
        rate
    from source
)

select * from renamed
