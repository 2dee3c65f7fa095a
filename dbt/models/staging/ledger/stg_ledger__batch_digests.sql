with source as (
    select * from {{ source('ledger', 'batch_digests') }}
),

renamed as (
    select
        batch_id,
        posting_period,
        row_count
    from source
)

select * from renamed
