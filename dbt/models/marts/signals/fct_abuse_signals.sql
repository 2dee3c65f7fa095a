{%- set columns = ["tenant_id", "starts_at", "kind", "feature", "api_key_id", "value"] -%}
{{ config(one_row_per(columns, buckets=["tenant_id", "starts_at"])) }}

with touched as (
    {{ touched_buckets(ref('fct_signals_5min')) }}
),

recent as (
    {{ rows_of_windows(ref('fct_signals_5min')) }}
),

recent_users as (
    {{ rows_of_windows(ref('fct_user_usage_5min')) }}
),

minimums as (
    {{ signal_minimum_rows() }}
),

-- Tenants with enough history; the others have no signals yet.
known_tenants as (
    select
        t.tenant_id,
        t.date
    from (
        select distinct
            tenant_id,
            (starts_at at time zone 'UTC')::date as date
        from touched
    ) as t
    cross join lateral (
        select max(b.sample_count) as hours
        from {{ ref('fct_signal_baselines') }} as b
        where b.tenant_id = t.tenant_id and b.date = t.date and b.measure = 'spend'
        offset 0
    ) as b
    where b.hours >= {{ signal_least_hours() }}
),

series as (
    select
        tenant_id,
        starts_at,
        feature,
        api_key_id,
        sum(request_count) as request_count,
        sum(error_count) as error_count,
        sum(retry_count) as retry_count,
        sum(over_4k_count) as over_4k_count,
        sum(over_16k_count) as over_16k_count,
        sum(over_64k_count) as over_64k_count,
        sum(input_tokens) as input_tokens,
        sum(cache_read_tokens) as cache_read_tokens,
        -- In units of the currency's minimum, so that amounts of two currencies can stand in one row.
        sum(charge_amount / coalesce(m.minimum_amount, {{ signal_minimums()[""] }})) as minimums_charged
    from recent
    left join minimums as m using (charge_currency)
    group by tenant_id, starts_at, feature, api_key_id
),

windowed as (
    select
        tenant_id,
        (starts_at at time zone 'UTC')::date as date,
        starts_at,
        feature,
        api_key_id,
        {{ sums_of_last('request_count') }},
        {{ sums_of_last('error_count') }},
        {{ sums_of_last('retry_count') }},
        {{ sums_of_last('over_4k_count') }},
        {{ sums_of_last('over_16k_count') }},
        {{ sums_of_last('over_64k_count') }},
        {{ sums_of_last('input_tokens') }},
        {{ sums_of_last('cache_read_tokens') }},
        {{ sums_of_last('minimums_charged') }}
    from series
    window {{ last_windows("tenant_id, feature, api_key_id") }}
),

in_hand as (
    select w.*
    from windowed as w
    where {{ is_touched("w") }} and {{ is_known("w.tenant_id", "w.date") }}
),

-- Shares of calls that should stay low, over the quarter hour and over the hour.
share_tests as (
    select
        w.tenant_id,
        w.date,
        w.starts_at,
        m.kind,
        m.measure,
        w.feature,
        w.api_key_id,
        '' as value,
        n.calls,
        n.hits
    from in_hand as w
    cross join lateral (
        values
            ('errors', 'errors', w.error_count_15, w.error_count_60),
            ('retries', 'retries', w.retry_count_15, w.retry_count_60),
            ('long_prompts', 'over_4k', w.over_4k_count_15, w.over_4k_count_60),
            ('long_prompts', 'over_16k', w.over_16k_count_15, w.over_16k_count_60),
            ('long_prompts', 'over_64k', w.over_64k_count_15, w.over_64k_count_60)
    ) as m (kind, measure, hits_15, hits_60)
    cross join lateral (
        values
            (w.request_count_15, m.hits_15),
            (w.request_count_60, m.hits_60)
    ) as n (calls, hits)
),

mix_series as (
    select
        r.tenant_id,
        r.starts_at,
        r.feature,
        r.api_key_id,
        m.measure,
        m.value,
        sum(r.request_count) as request_count
    from recent as r
    cross join lateral (
        values
            ('language', r.language),
            ('model', r.model)
    ) as m (measure, value)
    group by r.tenant_id, r.starts_at, r.feature, r.api_key_id, m.measure, m.value
),

-- A range takes in all rows of its last instant, so that sums over all values of a series stand beside each value.
mix_windowed as (
    select
        tenant_id,
        (starts_at at time zone 'UTC')::date as date,
        starts_at,
        feature,
        api_key_id,
        measure,
        value,
        {{ sums_of_last('request_count') }},
        sum(request_count) over quarter_of_all as calls_15,
        sum(request_count) over hour_of_all as calls_60
    from mix_series
    window
        {{ last_windows("tenant_id, feature, api_key_id, measure, value") }},
        {{ last_windows("tenant_id, feature, api_key_id, measure", "_of_all") }}
),

-- A language or a model that takes more of the calls than it ever did.
mix_tests as (
    select
        m.tenant_id,
        m.date,
        m.starts_at,
        m.measure || '_shift' as kind,
        m.measure,
        m.feature,
        m.api_key_id,
        m.value,
        n.calls,
        n.hits
    from mix_windowed as m
    cross join lateral (
        values
            (m.calls_15, m.request_count_15),
            (m.calls_60, m.request_count_60)
    ) as n (calls, hits)
    where {{ is_touched("m") }} and {{ is_known("m.tenant_id", "m.date") }}
),

-- How far a share is beyond the largest that hours have had, in standard deviations of so many calls.
risen as (
    select
        t.tenant_id,
        t.starts_at,
        t.kind,
        t.feature,
        t.api_key_id,
        t.value,
        t.hits / nullif(t.calls, 0) as observed,
        coalesce(b.usual, 0) as usual,
        t.calls as sample_count,
        (t.hits - t.calls * c.high) / sqrt(t.calls * c.high * (1 - c.high) + 1) as score
    from (
        select *
        from (
            select * from share_tests
            union all
            select
                tenant_id,
                date,
                starts_at,
                kind,
                measure,
                feature,
                api_key_id,
                value,
                calls,
                hits
            from mix_tests
        ) as a
        where hits >= {{ signal_limits().hits }} and hits >= {{ signal_limits().share }} * calls
    ) as t
    -- How much the series has called at all: one without history is new, and its shares say nothing.
    cross join lateral (
        select b.sample_count
        from {{ ref('fct_signal_baselines') }} as b
        where {{ is_baseline_of("b", "t", "'errors'") }}
        offset 0
    ) as s
    left join lateral (
        select
            b.usual,
            b.peak
        from {{ ref('fct_signal_baselines') }} as b
        where {{ is_baseline_of("b", "t", "t.measure", "t.value") }}
        offset 0
    ) as b on true
    cross join lateral (
        select least(greatest(coalesce(b.usual, 0), coalesce(b.peak, 0), 0.01), 0.99) as high
    ) as c
    where s.sample_count >= {{ signal_limits().calls }}
),

-- A cache that was read from, and is not any more.
fallen as (
    select
        w.tenant_id,
        w.starts_at,
        'cache' as kind,
        w.feature,
        w.api_key_id,
        '' as value,
        n.cached / n.input as observed,
        b.usual,
        n.calls as sample_count,
        (b.usual - n.cached / n.input) / b.usual * sqrt(n.calls) * 1.1 as score
    from in_hand as w
    cross join lateral (
        values
            (w.request_count_15, nullif(w.input_tokens_15, 0), w.cache_read_tokens_15),
            (w.request_count_60, nullif(w.input_tokens_60, 0), w.cache_read_tokens_60)
    ) as n (calls, input, cached)
    cross join lateral (
        select
            b.usual,
            b.peak,
            b.sample_count
        from {{ ref('fct_signal_baselines') }} as b
        where {{ is_baseline_of("b", "w", "'cache'") }}
        offset 0
    ) as b
    where
        n.calls >= {{ signal_limits().hits }}
        and n.cached / n.input < 0.2
        and b.usual >= 0.15
        and b.sample_count >= {{ signal_limits().calls }}
        -- Where some hours never read from it, none of it says nothing.
        and n.cached / n.input < least(b.usual / 10, b.peak / 2)
),

-- A key that the tenant never used before, or never for this, and that takes an amount that is worth a look at once.
new_keys as (
    select
        w.tenant_id,
        w.starts_at,
        'new_key' as kind,
        w.feature,
        w.api_key_id,
        '' as value,
        w.minimums_charged_60 as observed,
        0::numeric as usual,
        w.request_count_60 as sample_count,
        6 * w.minimums_charged_60 as score
    from in_hand as w
    left join lateral (
        select b.usual
        from {{ ref('fct_signal_baselines') }} as b
        where {{ is_baseline_of("b", "w", "'errors'") }}
        offset 0
    ) as b on true
    where w.minimums_charged_60 >= 1 and b.usual is null
),

user_series as (
    select
        tenant_id,
        (starts_at at time zone 'UTC')::date as date,
        starts_at,
        '' as feature,
        '' as api_key_id,
        subject_id,
        sum(request_count) as request_count
    from recent_users
    group by tenant_id, starts_at, subject_id
),

users as (
    select
        tenant_id,
        date,
        starts_at,
        feature,
        api_key_id,
        subject_id,
        {{ sums_of_last('request_count') }},
        sum(request_count) over quarter_of_all as calls_15,
        sum(request_count) over hour_of_all as calls_60
    from user_series
    window
        {{ last_windows("tenant_id, subject_id") }},
        {{ last_windows("tenant_id", "_of_all") }}
),

-- One user with most of a tenant's calls, where no user ever had so many.
crowding as (
    select
        u.tenant_id,
        u.starts_at,
        'one_user' as kind,
        '' as feature,
        '' as api_key_id,
        u.subject_id::text as value,
        n.hits / nullif(n.calls, 0) as observed,
        b.usual,
        n.calls as sample_count,
        -- One test for a tenant and not one for each of its series: four deviations are as rare as six there.
        1.5 * (n.hits - n.calls * c.high) / sqrt(n.calls * c.high * (1 - c.high) + 1) as score
    from users as u
    cross join lateral (
        values
            (u.calls_15, u.request_count_15),
            (u.calls_60, u.request_count_60)
    ) as n (calls, hits)
    cross join lateral (
        select
            b.usual,
            b.peak
        from {{ ref('fct_signal_baselines') }} as b
        where {{ is_baseline_of("b", "u", "'user'") }}
        offset 0
    ) as b
    cross join lateral (
        select least(greatest(b.peak, 0.05), 0.99) as high
    ) as c
    where
        n.hits >= 2 * {{ signal_limits().hits }}
        and n.hits >= 0.4 * n.calls
        and {{ is_touched("u") }}
        and {{ is_known("u.tenant_id", "u.date") }}
),

found as (
    select * from risen
    union all
    select * from fallen
    union all
    select * from new_keys
    union all
    select * from crowding
),

-- The window, and of long prompts the limit, that says most.
strongest as (
    select distinct on (tenant_id, starts_at, kind, feature, api_key_id, value)
        tenant_id,
        starts_at,
        kind,
        feature,
        api_key_id,
        value,
        round(score, 1) as score,
        case when score >= 4 * {{ signal_limits().score }} then 'warning' else 'notice' end as severity,
        round(observed, 4) as observed,
        round(usual, 4) as usual,
        sample_count::bigint as sample_count
    from found
    where score >= {{ signal_limits().score }}
    order by tenant_id, starts_at, kind, feature, api_key_id, value, score desc
),

explained as (
    select
        *,
        case
            when kind = 'one_user'
                then format(
                    'select feature, api_key_id, language, model, status, count(*) as entries, sum(request_count) as requests,'
                    ' sum(charge_amount) as charge from %I.%I where tenant_id = %L and subject_id = %L'
                    ' and occurred_at >= timestamptz %L - interval ''55 minutes'' and occurred_at < timestamptz %L + interval ''5 minutes'''
                    ' group by 1, 2, 3, 4, 5 order by 7 desc',
                    'ledger', 'entries', tenant_id, value, starts_at, starts_at
                )
            else format(
                'select date_bin(''15 minutes'', starts_at, timestamptz ''2020-01-01 00:00:00+00'') as quarter_hour, %s'
                ' from {{ ref('fct_signals_5min').include(database=false) }} where tenant_id = %L and feature = %L and api_key_id = %L'
                ' and starts_at between timestamptz %L - interval ''6 hours'' and timestamptz %L group by %s order by 1',
                case kind
                    when 'errors' then 'model, sum(error_count) as errors, sum(request_count) as requests'
                    when 'retries' then 'model, sum(retry_count) as retries, sum(request_count) as requests'
                    when 'long_prompts'
                        then 'sum(over_4k_count) as over_4k, sum(over_16k_count) as over_16k, sum(over_64k_count) as over_64k,'
                        ' sum(request_count) as requests, sum(input_tokens) as input'
                    when 'cache' then 'sum(cache_read_tokens) as cached, sum(input_tokens) as input, sum(charge_amount) as charge'
                    when 'language_shift' then 'language, sum(request_count) as requests, sum(charge_amount) as charge'
                    when 'model_shift' then 'model, sum(request_count) as requests, sum(charge_amount) as charge'
                    else 'language, model, sum(request_count) as requests, sum(charge_amount) as charge'
                end,
                tenant_id, feature, api_key_id, starts_at, starts_at,
                case
                    when kind in ('long_prompts', 'cache') then '1'
                    when kind in ('errors', 'retries', 'language_shift', 'model_shift') then '1, 2'
                    else '1, 2, 3'
                end
            )
        end as explain_sql
    from strongest
),

since as (
    {{ with_since('explained', ["tenant_id", "kind", "feature", "api_key_id", "value"]) }}
),

replaced as (
    {{ replacing('since', 'touched') }}
)

select * from replaced
