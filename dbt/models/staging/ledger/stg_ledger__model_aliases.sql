with source as (
    select * from {{ source('ledger', 'model_aliases') }}
),

renamed as (
    select
        provider,
        alias,
        model
    from source
)

select * from renamed
