with entries as (
    select * from {{ ref('stg_ledger__entries') }}
),

measured as (
    select
        posting_period,
        entry_id,
        batch_id,
        tenant_id,
        occurred_at,
        local_date,
        -- Every zone's offset since 2020 is a multiple of a quarter hour, so these buckets add up to anybody's hours and days.
        date_bin('15 minutes', occurred_at, timestamptz '2020-01-01 00:00:00+00') as quarter_hour_at,
        date_trunc('hour', occurred_at, 'UTC') as hour_at,
        feature,
        language,
        provider,
        model,
        route,
        lane,
        cost_currency,
        charge_currency,

        -- What only some marts are cut by. These fold as the dimensions above do: a better report takes the request from the
        -- old value and gives it to the new one. The empty text is what was not said.
        request_key,
        request_id,
        operation_id,
        conversation_id,
        api_key_id,
        subject_id,
        source,
        provider_account,
        deployment,
        requested_model,
        reported_model,
        requested_service_tier,
        service_tier,
        region,
        node_id,
        operation,
        app_version,
        tags,
        status,
        stop_reason,
        attempt_kind,
        attempt,
        cache_result,
        basis,
        cost_rate_set_id,
        charge_rate_set_id,

        -- As the report said that wrote the row, also on a row that takes back what an earlier one had said: these do not
        -- fold. Null where it said nothing.
        kind,
        entry_no,
        corrects_entry_id,
        recorded_at,
        reported,
        is_final,
        latency_ms,
        ttft_ms,
        queue_ms,
        prefill_ms,
        decode_ms,
        max_output_tokens,
        delivered_output_tokens,
        other_quantities,

        -- Evidence moves nothing: its numbers are zero, and only this count shows that it is there.
        (kind <> 'evidence')::integer as entry_count,
        (kind = 'evidence')::integer as evidence_count,

        -- The states fold with the request: a true-up takes -1 from the old state and gives +1 to the new one.
        request_count,
        case when basis = 'estimated' then request_count else 0 end as estimated_count,
        case when 'usage_missing' = any (usage_flags) then request_count else 0 end as usage_missing_count,

        coalesce(uncached_input_tokens, 0) as uncached_input_tokens,
        coalesce(cache_read_tokens, 0) as cache_read_tokens,
        coalesce(cache_write_5m_tokens, 0) as cache_write_5m_tokens,
        coalesce(cache_write_1h_tokens, 0) as cache_write_1h_tokens,
        coalesce(cache_write_other_tokens, 0) as cache_write_other_tokens,
        coalesce(visible_output_tokens, 0) as visible_output_tokens,
        coalesce(reasoning_tokens, 0) as reasoning_tokens,
        coalesce(input_tokens, 0) as input_tokens,
        coalesce(output_tokens, 0) as output_tokens,
        coalesce(avoided_tokens, 0) as avoided_tokens,

        -- An amount that is unknown adds nothing to the sum and one to the count beside it. Later parts of a request
        -- count no request, so their tokens are counted too.
        coalesce(cost_amount, 0) as cost_amount,
        case when cost_amount is null and kind <> 'evidence' then request_count else 0 end as cost_unpriced_count,
        case when cost_amount is null and kind <> 'evidence' then coalesce(input_tokens + output_tokens, 0) else 0 end
        as cost_unpriced_tokens,
        coalesce(charge_amount, 0) as charge_amount,
        case when charge_amount is null and kind <> 'evidence' then request_count else 0 end as charge_unpriced_count,
        case when charge_amount is null and kind <> 'evidence' then coalesce(input_tokens + output_tokens, 0) else 0 end
        as charge_unpriced_tokens
    from entries
)

select * from measured
