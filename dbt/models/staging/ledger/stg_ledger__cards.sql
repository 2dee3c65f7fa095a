with source as (
    select * from {{ source('ledger', 'cards') }}
),

renamed as (
    select
        card_id,
        content_hash,
        book,
        provider,
        provider_account,
        deployment,
        model,
        tenant_id,
        currency::text as currency,
        effective_at,
        is_withdrawal,
        body,
        (body ->> 'replaces')::uuid as replaces
    from source
)

select * from renamed
