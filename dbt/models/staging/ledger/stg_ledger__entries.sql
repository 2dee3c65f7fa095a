with source as (
    select * from {{ source('ledger', 'entries') }}
),

renamed as (
    select
        -- ids
        entry_id,
        entry_no,
        batch_id,
        request_key,
        corrects_entry_id,
        coalesce(request_id, '') as request_id,
        coalesce(operation_id, '') as operation_id,
        coalesce(conversation_id, '') as conversation_id,
        coalesce(api_key_id, '') as api_key_id,
        coalesce(node_id, '') as node_id,
        subject_id,
        cost_rate_set_id,
        charge_rate_set_id,

        -- times
        posting_period,
        occurred_at,
        recorded_at,
        local_date,

        -- dimensions: a key cannot hold null, so what was not said is the empty text
        tenant_id,
        coalesce(feature, '') as feature,
        language,
        coalesce(provider, '') as provider,
        coalesce(model, '') as model,
        coalesce(route, '') as route,
        coalesce(lane, '') as lane,
        source,
        coalesce(provider_account, '') as provider_account,
        coalesce(deployment, '') as deployment,
        coalesce(requested_model, '') as requested_model,
        coalesce(reported_model, '') as reported_model,
        coalesce(requested_service_tier, '') as requested_service_tier,
        coalesce(service_tier, '') as service_tier,
        coalesce(region, '') as region,
        coalesce(operation, '') as operation,
        coalesce(app_version, '') as app_version,
        tags,
        coalesce(cost_currency::text, '') as cost_currency,
        coalesce(charge_currency::text, '') as charge_currency,

        -- states
        kind,
        status,
        coalesce(stop_reason, '') as stop_reason,
        coalesce(attempt_kind, '') as attempt_kind,
        attempt,
        coalesce(cache_result, '') as cache_result,
        basis,
        is_final,
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
        other_quantities,
        reported,
        max_output_tokens,
        delivered_output_tokens,

        -- milliseconds; null where not said
        latency_ms,
        ttft_ms,
        queue_ms,
        prefill_ms,
        decode_ms,

        -- amounts; null while unpriced
        cost_amount,
        charge_amount
    from source
)

select * from renamed
