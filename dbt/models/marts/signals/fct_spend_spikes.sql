{%- set columns = ["tenant_id", "starts_at", "feature", "api_key_id", "charge_currency"] -%}
{{ config(one_row_per(columns, buckets=["tenant_id", "starts_at"], is_fold=false)) }}
{%- set limits = signal_limits() %}

with touched as (
    {{ touched_buckets(ref('fct_signals_5min')) }}
),

recent as (
    {{ rows_of_windows(ref('fct_signals_5min')) }}
),

minimums as (
    {{ signal_minimum_rows() }}
),

series as (
    select
        tenant_id,
        starts_at,
        feature,
        api_key_id,
        charge_currency,
        sum(request_count) as request_count,
        sum(charge_amount) as charge_amount
    from recent
    group by tenant_id, starts_at, feature, api_key_id, charge_currency
),

windowed as (
    select
        tenant_id,
        starts_at,
        feature,
        api_key_id,
        charge_currency,
        {{ sums_of_last('request_count') }},
        {{ sums_of_last('charge_amount') }}
    from series
    window {{ last_windows("tenant_id, feature, api_key_id, charge_currency") }}
),

-- What a quarter hour alone says of the hour: it may be a burst, so it counts half.
dear as (
    select
        w.*,
        coalesce(m.minimum_amount, {{ signal_minimums()[""] }}) as minimum_amount,
        greatest(w.charge_amount_60, 2 * w.charge_amount_15) as hour_amount
    from windowed as w
    left join minimums as m on m.charge_currency = w.charge_currency
    where
        greatest(w.charge_amount_60, 2 * w.charge_amount_15) >= coalesce(m.minimum_amount, {{ signal_minimums()[""] }})
        and {{ is_touched("w") }}
),

held as (
    select
        d.*,
        b.usual,
        b.spread,
        b.peak,
        b.quarter_peak,
        b.sample_count,
        p.call_peak,
        x.excess_usual,
        x.excess_peak,
        d.charge_amount_15 - p.call_peak * d.request_count_15 as excess_amount
    from dear as d
    cross join lateral (
        select
            b.usual,
            b.spread,
            b.peak,
            b.quarter_peak,
            b.sample_count
        from {{ ref('fct_signal_baselines') }} as b
        where
            b.tenant_id = d.tenant_id and b.date = (d.starts_at at time zone 'UTC')::date and b.measure = 'spend'
            and b.feature = d.feature and b.api_key_id = d.api_key_id and b.value = ''
            and b.charge_currency = d.charge_currency
            and b.hour_of_day = extract(hour from d.starts_at at time zone 'UTC')
        offset 0
    ) as b
    left join lateral (
        select p.peak as call_peak
        from {{ ref('fct_signal_baselines') }} as p
        where
            p.tenant_id = d.tenant_id and p.date = (d.starts_at at time zone 'UTC')::date and p.measure = 'call'
            and p.feature = d.feature and p.api_key_id = d.api_key_id and p.value = ''
            and p.charge_currency = d.charge_currency and p.hour_of_day = -1
        offset 0
    ) as p on true
    left join lateral (
        select
            x.usual as excess_usual,
            x.peak as excess_peak
        from {{ ref('fct_signal_baselines') }} as x
        where
            x.tenant_id = d.tenant_id and x.date = (d.starts_at at time zone 'UTC')::date and x.measure = 'excess'
            and x.feature = d.feature and x.api_key_id = d.api_key_id and x.value = ''
            and x.charge_currency = d.charge_currency and x.hour_of_day = -1
        offset 0
    ) as x on true
),

judged as (
    select
        *,
        (hour_amount - usual) / greatest(spread, usual / 4, minimum_amount / 4) as score
    from held
),

spikes as (
    select
        tenant_id,
        starts_at,
        feature,
        api_key_id,
        charge_currency,
        round(score, 1) as score,
        case when hour_amount - usual >= 20 * minimum_amount then 'critical' else 'warning' end as severity,
        charge_amount_60 as hour_amount,
        charge_amount_15 as quarter_amount,
        usual as usual_hour_amount,
        peak as peak_hour_amount,
        request_count_60::bigint as hour_request_count,
        -- Quarter hours that end where the one that was judged ends: the last is that one, and the last four are the hour.
        format(
            'select date_bin(''15 minutes'', starts_at, timestamptz %L) as window_at, language, model,'
            ' sum(request_count) as requests, sum(input_tokens) as input, sum(output_tokens) as output,'
            ' sum(charge_amount) as charge, charge_currency, sum(charge_unpriced_count) as unpriced'
            ' from {{ ref('fct_signals_5min').include(database=false) }} where tenant_id = %L and feature = %L and api_key_id = %L'
            ' and starts_at >= timestamptz %L - interval ''6 hours'' and starts_at < timestamptz %L'
            ' group by window_at, language, model, charge_currency order by window_at, charge desc',
            starts_at + interval '5 minutes', tenant_id, feature, api_key_id,
            starts_at + interval '5 minutes', starts_at + interval '5 minutes'
        ) as explain_sql
    from judged
    where
        sample_count >= {{ signal_least_hours() }}
        and hour_amount - usual >= minimum_amount
        and score >= {{ limits.spend_score }}
        and (
            (
                request_count_60 >= {{ limits.spend_calls_60 }}
                and charge_amount_60 >= greatest({{ limits.spend_hour }} * peak, peak + minimum_amount)
            )
            or (
                request_count_15 >= {{ limits.spend_calls_15 }}
                and charge_amount_15 >= greatest({{ limits.spend_quarter }} * quarter_peak, minimum_amount)
            )
            -- A burst has more of the usual calls; this is what those do not explain.
            or (
                request_count_15 >= {{ limits.excess_peak_calls }}
                and excess_amount >= greatest({{ limits.excess_peak }} * excess_peak, minimum_amount)
            )
            -- Many calls are not all dear by chance, so the dearest day may be left out, in which there may have been an incident.
            or (
                request_count_15 >= {{ limits.excess_usual_calls }}
                and excess_amount >= greatest({{ limits.excess_usual }} * excess_usual, minimum_amount)
            )
        )
),

since as (
    {{ with_since('spikes', ["tenant_id", "feature", "api_key_id", "charge_currency"]) }}
),

replaced as (
    {{ replacing('since', 'touched') }}
)

select * from replaced
