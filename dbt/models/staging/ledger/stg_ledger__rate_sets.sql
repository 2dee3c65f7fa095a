with source as (
    select * from {{ source('ledger', 'rate_sets') }}
),

renamed as (
    select
        rate_set_id,
        content_hash,
        book,
        currency::text as currency,
        card_hash,
        coalesce(selectors ->> 'service_tier', '') as service_tier,
        selectors ->> 'band' as band,
        coalesce(selectors ->> 'region', '') as region,
        coalesce(selectors ->> 'hours', '') as hours,
        (selectors ->> 'cost')::uuid as cost_hash,
        (selectors ->> 'markup')::numeric as markup,
        (selectors ->> 'exchange_rate')::uuid as exchange_rate_hash,
        selectors ? 'billing_rule' as is_freed
    from source
)

select * from renamed
