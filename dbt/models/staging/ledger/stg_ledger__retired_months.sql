with source as (
    select * from {{ source('ledger', 'retired_months') }}
),

renamed as (
    select
        posting_period,
        is_readable
    from source
)

select * from renamed
