with source as (
    select * from {{ source('ledger', 'batches') }}
),

renamed as (
    select
        batch_id,
        feed_id,
        number as batch_number,
        entry_count,
        recorded_at
    from source
)

select * from renamed
