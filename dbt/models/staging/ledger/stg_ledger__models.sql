with source as (
    select * from {{ source('ledger', 'models') }}
),

renamed as (
    select
        provider,
        model,
        input_tokens_max,
        output_tokens_max
    from source
)

select * from renamed
