{%- set columns = ["tenant_id", "date", "measure", "feature", "api_key_id", "value", "charge_currency", "hour_of_day"] -%}
{{ config(one_row_per(columns, buckets=["tenant_id", "date"], is_fold=false)) }}

with unconsumed as (
    {{ unconsumed(ref('int_entries_measured')) }}
),

-- A day is held against what came before it, so it is enough to look once, when its first entry comes.
touched as (
    select distinct
        u.tenant_id,
        (u.occurred_at at time zone 'UTC')::date as date
    from unconsumed as u
    {% if is_incremental() %}
    where not exists (
        select
        from {{ this }} as t
        where t.tenant_id = u.tenant_id and t.date = (u.occurred_at at time zone 'UTC')::date
    )
    {% endif %}
),

usage_hours as (
    select
        t.tenant_id,
        t.date,
        date_trunc('hour', f.starts_at, 'UTC') as hour_at,
        f.feature,
        f.api_key_id,
        f.language,
        f.model,
        f.charge_currency,
        sum(f.request_count) as request_count,
        sum(f.error_count) as error_count,
        sum(f.retry_count) as retry_count,
        sum(f.over_16k_count) as over_16k_count,
        sum(f.over_64k_count) as over_64k_count,
        sum(f.cacheable_count) as cacheable_count,
        sum(f.cache_read_count) as cache_read_count,
        sum(f.charge_amount) as charge_amount
    from touched as t
    join {{ ref('fct_signals_5min') }} as f on {{ is_past_of("f", "t") }}
    group by t.tenant_id, t.date, date_trunc('hour', f.starts_at, 'UTC'), f.feature, f.api_key_id, f.language, f.model, f.charge_currency
),

spent as (
    select
        tenant_id,
        date,
        hour_at,
        feature,
        api_key_id,
        charge_currency,
        sum(charge_amount) as charge_amount,
        sum(request_count) as request_count,
        min(min(hour_at)) over (partition by tenant_id, date) as first_hour_at
    from usage_hours
    group by tenant_id, date, hour_at, feature, api_key_id, charge_currency
),

-- Those that end with any five minutes, as the quarter hours that are judged.
dearest_quarters as (
    select
        tenant_id,
        date,
        feature,
        api_key_id,
        charge_currency,
        max(charge_amount) as charge_amount
    from (
        select
            t.tenant_id,
            t.date,
            f.feature,
            f.api_key_id,
            f.charge_currency,
            sum(sum(f.charge_amount)) over (
                partition by t.tenant_id, t.date, f.feature, f.api_key_id, f.charge_currency
                order by f.starts_at
                range between interval '10 minutes' preceding and current row
            ) as charge_amount
        from touched as t
        join {{ ref('fct_signals_5min') }} as f on {{ is_past_of("f", "t") }}
        group by t.tenant_id, t.date, f.feature, f.api_key_id, f.charge_currency, f.starts_at
    ) as q
    group by tenant_id, date, feature, api_key_id, charge_currency
),

-- Hours without usage are hours of zero, from the tenant's first on.
every_hour as (
    select
        tenant_id,
        date,
        feature,
        api_key_id,
        charge_currency,
        hour_at,
        extract(hour from hour_at at time zone 'UTC')::integer as hour_of_day,
        extract(isodow from hour_at at time zone 'UTC') = extract(isodow from date) as is_same_weekday,
        sum(charge_amount) as charge_amount
    from (
        select
            tenant_id,
            date,
            feature,
            api_key_id,
            charge_currency,
            hour_at,
            charge_amount
        from spent
        union all
        select
            s.tenant_id,
            s.date,
            s.feature,
            s.api_key_id,
            s.charge_currency,
            h.hour_at,
            0
        from (
            select distinct
                tenant_id,
                date,
                feature,
                api_key_id,
                charge_currency,
                first_hour_at
            from spent
        ) as s
        cross join lateral generate_series(
            s.first_hour_at, s.date::timestamp at time zone 'UTC' - interval '1 hour', interval '1 hour'
        ) as h (hour_at)
    ) as u
    group by tenant_id, date, feature, api_key_id, charge_currency, hour_at
),

-- Of each hour of the day, and of all hours.
middles as (
    select
        tenant_id,
        date,
        feature,
        api_key_id,
        charge_currency,
        hour_of_day,
        grouping(hour_of_day) = 1 as is_of_all,
        count(*) as hours,
        count(*) filter (where is_same_weekday) as weeks,
        percentile_disc(0.5) within group (order by charge_amount) as middle,
        percentile_disc(0.9) within group (order by charge_amount) as high,
        max(charge_amount) as peak,
        coalesce(percentile_disc(0.5) within group (order by charge_amount) filter (where is_same_weekday), 0) as week_middle
    from every_hour
    group by grouping sets (
        (tenant_id, date, feature, api_key_id, charge_currency),
        (tenant_id, date, feature, api_key_id, charge_currency, hour_of_day)
    )
),

beside_all as (
    select
        *,
        max(hours) filter (where is_of_all) over series as all_hours,
        max(middle) filter (where is_of_all) over series as all_middle,
        max(high) filter (where is_of_all) over series as all_high,
        max(peak) filter (where is_of_all) over series as all_peak
    from middles
    window series as (partition by tenant_id, date, feature, api_key_id, charge_currency)
),

-- The hour of the week, as far as there are weeks; the hour of the day, as far as there are days; then any hour.
shrunk as (
    select
        *,
        (hours * middle + 3 * all_middle) / (hours + 3) as usual_of_day,
        (hours * (high - middle) + 3 * (all_high - all_middle)) / (hours + 3) as spread
    from beside_all
    where not is_of_all
),

spend as (
    select
        tenant_id,
        date,
        'spend' as measure,
        feature,
        api_key_id,
        '' as value,
        charge_currency,
        hour_of_day,
        (weeks * week_middle + 3 * usual_of_day) / (weeks + 3) as usual,
        spread,
        all_peak as peak,
        q.charge_amount as quarter_peak,
        all_hours as sample_count
    from shrunk
    join dearest_quarters as q using (tenant_id, date, feature, api_key_id, charge_currency)
),

-- What a call costs: over all of the past, and in the dearest of hours with enough calls to tell.
call_prices as (
    select
        tenant_id,
        date,
        'call' as measure,
        feature,
        api_key_id,
        '' as value,
        charge_currency,
        -1 as hour_of_day,
        sum(charge_amount) / sum(request_count) as usual,
        null::numeric as spread,
        coalesce(
            percentile_disc(0.98) within group (order by charge_amount / request_count) filter (where request_count >= 20),
            percentile_disc(0.98) within group (order by charge_amount / request_count) filter (where request_count >= 10),
            percentile_disc(0.98) within group (order by charge_amount / request_count)
        ) as peak,
        null::numeric as quarter_peak,
        sum(request_count)::bigint as sample_count
    from spent
    where request_count > 0
    group by tenant_id, date, feature, api_key_id, charge_currency
),

calls as (
    select
        tenant_id,
        date,
        feature,
        api_key_id,
        hour_at,
        sum(request_count) as request_count,
        sum(error_count) as error_count,
        sum(retry_count) as retry_count,
        sum(over_16k_count) as over_16k_count,
        sum(over_64k_count) as over_64k_count,
        sum(cacheable_count) as cacheable_count,
        sum(cacheable_count - cache_read_count) as uncached_count
    from usage_hours
    group by tenant_id, date, feature, api_key_id, hour_at
),

parts_by_hour as (
    select
        c.tenant_id,
        c.date,
        m.measure,
        c.feature,
        c.api_key_id,
        '' as value,
        m.hits,
        m.calls
    from calls as c
    cross join lateral (
        values
            ('errors', c.error_count, c.request_count),
            ('retries', c.retry_count, c.request_count),
            ('over_16k', c.over_16k_count, c.request_count),
            ('over_64k', c.over_64k_count, c.request_count),
            ('uncached', c.uncached_count, c.cacheable_count)
    ) as m (measure, hits, calls)
    where m.calls > 0
    union all
    select
        u.tenant_id,
        u.date,
        m.measure,
        u.feature,
        u.api_key_id,
        m.value,
        sum(u.request_count) as hits,
        c.request_count as calls
    from usage_hours as u
    cross join lateral (
        values
            ('language', u.language),
            ('model', u.model)
    ) as m (measure, value)
    join calls as c using (tenant_id, date, feature, api_key_id, hour_at)
    where c.request_count > 0
    group by u.tenant_id, u.date, m.measure, u.feature, u.api_key_id, m.value, u.hour_at, c.request_count
),

-- What all hours have, those too in which the language or the model was not used.
totals as (
    select
        tenant_id,
        date,
        feature,
        api_key_id,
        sum(request_count) as calls,
        sum(request_count * request_count) as squared_calls,
        sum(cacheable_count) as cacheable_calls,
        sum(cacheable_count * cacheable_count) as squared_cacheable_calls
    from calls
    group by tenant_id, date, feature, api_key_id
),

parts as (
    select
        p.tenant_id,
        p.date,
        p.measure,
        p.feature,
        p.api_key_id,
        p.value,
        sum(p.hits) as hits,
        sum(p.hits * p.hits) as squared_hits,
        sum(p.hits * p.calls) as hits_by_calls,
        case when p.measure = 'uncached' then t.cacheable_calls else t.calls end as calls,
        case when p.measure = 'uncached' then t.squared_cacheable_calls else t.squared_calls end as squared_calls,
        coalesce(
            percentile_disc(0.98) within group (order by p.hits / p.calls) filter (where p.calls >= 20),
            percentile_disc(0.98) within group (order by p.hits / p.calls) filter (where p.calls >= 10),
            0
        ) as peak
    from parts_by_hour as p
    join totals as t using (tenant_id, date, feature, api_key_id)
    group by
        p.tenant_id, p.date, p.measure, p.feature, p.api_key_id, p.value,
        t.calls, t.squared_calls, t.cacheable_calls, t.squared_cacheable_calls
),

-- A late correction may leave a bucket with more parts than calls, or with less than none.
shares as (
    select
        tenant_id,
        date,
        measure,
        feature,
        api_key_id,
        value,
        '' as charge_currency,
        -1 as hour_of_day,
        c.usual,
        {{ dispersion("c.chance") }} as spread,
        least(greatest(peak, 0), 1) as peak,
        null::numeric as quarter_peak,
        calls::bigint as sample_count
    from parts
    cross join lateral (
        select
            least(greatest(hits / calls, 0), 1) as usual,
            {{ between_chances("hits / calls") }} as chance
    ) as c
    where calls > 0
),

users_by_hour as (
    select
        t.tenant_id,
        t.date,
        date_trunc('hour', f.starts_at, 'UTC') as hour_at,
        f.subject_id,
        sum(f.request_count) as request_count
    from touched as t
    join {{ ref('fct_user_usage_5min') }} as f on {{ is_past_of("f", "t") }}
    group by t.tenant_id, t.date, date_trunc('hour', f.starts_at, 'UTC'), f.subject_id
),

heaviest as (
    select
        tenant_id,
        date,
        hour_at,
        max(request_count) / sum(request_count) as share,
        sum(request_count) as request_count
    from users_by_hour
    group by tenant_id, date, hour_at
    having sum(request_count) > 0
),

each_user as (
    select
        u.tenant_id,
        u.date,
        u.subject_id,
        sum(u.request_count) as hits,
        sum(u.request_count * u.request_count) as squared_hits,
        sum(u.request_count * h.request_count) as hits_by_calls,
        t.calls,
        t.squared_calls,
        least(greatest(sum(u.request_count) / t.calls, 0), 1) as share
    from users_by_hour as u
    join heaviest as h using (tenant_id, date, hour_at)
    join (
        select
            tenant_id,
            date,
            sum(request_count) as calls,
            sum(request_count * request_count) as squared_calls
        from heaviest
        group by tenant_id, date
    ) as t using (tenant_id, date)
    group by u.tenant_id, u.date, u.subject_id, t.calls, t.squared_calls
),

-- How far users go from their own share, over all of them: people come in sessions.
sessions as (
    select
        tenant_id,
        date,
        max(calls) as calls,
        greatest(1, sum(squared_hits - 2 * share * hits_by_calls + share * share * squared_calls)
        / nullif(sum(share * (1 - share) * calls), 0)) as dispersion
    from each_user
    group by tenant_id, date
),

-- The heaviest user of an hour, whoever it is; hours of few calls only where there are no others. Then each who is often heavy.
users as (
    select
        h.tenant_id,
        h.date,
        'user' as measure,
        '' as feature,
        '' as api_key_id,
        '' as value,
        '' as charge_currency,
        -1 as hour_of_day,
        coalesce(
            percentile_disc(0.5) within group (order by h.share) filter (where h.request_count >= 20),
            percentile_disc(0.5) within group (order by h.share) filter (where h.request_count >= 10),
            1
        ) as usual,
        s.dispersion as spread,
        coalesce(
            percentile_disc(0.98) within group (order by h.share) filter (where h.request_count >= 20),
            percentile_disc(0.98) within group (order by h.share) filter (where h.request_count >= 10),
            1
        ) as peak,
        null::numeric as quarter_peak,
        s.calls::bigint as sample_count
    from heaviest as h
    join sessions as s using (tenant_id, date)
    group by h.tenant_id, h.date, s.dispersion, s.calls
    union all
    select
        tenant_id,
        date,
        'user' as measure,
        '' as feature,
        '' as api_key_id,
        subject_id::text as value,
        '' as charge_currency,
        -1 as hour_of_day,
        share as usual,
        1 as spread,
        share as peak,
        null::numeric as quarter_peak,
        hits::bigint as sample_count
    from each_user
    where share > {{ signal_limits().user_usual }}
),

baselines as (
    select * from spend
    union all
    select * from call_prices
    union all
    select * from shares
    union all
    select * from users
),

replaced as (
    {{ replacing('baselines', 'touched') }}
)

select * from replaced
