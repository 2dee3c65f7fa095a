with source as (
    select * from {{ source('ledger', 'entries') }}
),

renamed as (
    select
        -- ids
        entry_id,
        batch_id,
        request_key,

        -- times
        posting_period,
        occurred_at,
        local_date,

        -- dimensions: a key cannot hold null, so what was not said is the empty text
        tenant_id,
        coalesce(feature, '') as feature,
        language,
        coalesce(provider, '') as provider,
        coalesce(model, '') as model,
        coalesce(route, '') as route,
        coalesce(lane, '') as lane,
        coalesce(cost_currency::text, '') as cost_currency,
        coalesce(charge_currency::text, '') as charge_currency,

        -- states
        kind,
        basis,
        usage_flags,

        -- counts; null where usage is missing
        request_count,
        uncached_input_tokens,
        cache_read_tokens,
        cache_write_5m_tokens,
        cache_write_1h_tokens,
        cache_write_other_tokens,
        visible_output_tokens,
        reasoning_tokens,
        input_tokens,
        output_tokens,
        avoided_tokens,

        -- amounts; null while unpriced
        cost_amount,
        charge_amount
    from source
)

select * from renamed
