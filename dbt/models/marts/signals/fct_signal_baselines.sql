{%- set columns = ["tenant_id", "date", "measure", "feature", "api_key_id", "value", "charge_currency", "hour_of_day"] -%}
{%- set entries = unconsumed(ref('int_entries_measured')) -%}
{{ config(one_row_per(columns, buckets=["tenant_id", "date"], is_fold=false)) }}

with touched as (
    {% if is_incremental() -%}
    -- A day is held against what came before it, so it is enough to look once, when its first entry comes.
    select distinct
        u.tenant_id,
        (u.occurred_at at time zone 'UTC')::date as date
    from ({{ entries }}) as u
    where not exists (
        select
        from {{ this }} as t
        where t.tenant_id = u.tenant_id and t.date = (u.occurred_at at time zone 'UTC')::date
    )
    {%- else -%}
    -- Each entry is in one of these five minutes.
    select distinct
        tenant_id,
        (starts_at at time zone 'UTC')::date as date
    from {{ ref('fct_signals_5min') }}
    {%- endif %}
),

-- What makes a day usual. Whatever is of one hour or one day is made once, and joined to these last.
past_days as (
    select
        t.tenant_id,
        t.date,
        t.date - n as day
    from touched as t
    cross join generate_series(1, {{ signal_history_days() }}) as n
),

past_usage as (
    {{ past_rows(ref('fct_signals_5min')) }}
),

past_user_usage as (
    {{ past_rows(ref('fct_user_usage_5min')) }}
),

usage_hours as (
    select
        tenant_id,
        (starts_at at time zone 'UTC')::date as day,
        date_trunc('hour', starts_at, 'UTC') as hour_at,
        feature,
        api_key_id,
        language,
        model,
        charge_currency,
        sum(request_count)::bigint as request_count,
        sum(error_count)::bigint as error_count,
        sum(retry_count)::bigint as retry_count,
        sum(over_16k_count)::bigint as over_16k_count,
        sum(over_64k_count)::bigint as over_64k_count,
        sum(cacheable_128_count)::bigint as cacheable_128_count,
        sum(cacheable_256_count)::bigint as cacheable_256_count,
        sum(cacheable_512_count)::bigint as cacheable_512_count,
        sum(cache_read_128_count)::bigint as cache_read_128_count,
        sum(cache_read_256_count)::bigint as cache_read_256_count,
        sum(cache_read_512_count)::bigint as cache_read_512_count,
        sum(charge_amount) as charge_amount
    from past_usage
    group by 1, 2, 3, feature, api_key_id, language, model, charge_currency
),

spent_hours as (
    select
        tenant_id,
        day,
        hour_at,
        feature,
        api_key_id,
        charge_currency,
        sum(charge_amount) as charge_amount,
        sum(request_count) as request_count
    from usage_hours
    group by tenant_id, day, hour_at, feature, api_key_id, charge_currency
),

spent_series as (
    select
        tenant_id,
        date,
        feature,
        api_key_id,
        charge_currency,
        min(min(s.hour_at)) over (partition by tenant_id, date) as first_hour_at
    from past_days
    join spent_hours as s using (tenant_id, day)
    group by tenant_id, date, feature, api_key_id, charge_currency
),

-- Those that end with any five minutes, as the quarter hours that are judged; and those that begin on the day as well, which are
-- all that the first day of a history has.
quarters as (
    select
        tenant_id,
        day,
        feature,
        api_key_id,
        charge_currency,
        sum(charge_amount) over (
            partition by tenant_id, feature, api_key_id, charge_currency
            order by starts_at
            range between interval '10 minutes' preceding and current row
        ) as charge_amount,
        sum(charge_amount) over (
            partition by tenant_id, feature, api_key_id, charge_currency, day
            order by starts_at
            range between interval '10 minutes' preceding and current row
        ) as charge_amount_of_day,
        sum(request_count) over (
            partition by tenant_id, feature, api_key_id, charge_currency, day
            order by starts_at
            range between interval '10 minutes' preceding and current row
        ) as request_count_of_day
    from (
        select
            tenant_id,
            (starts_at at time zone 'UTC')::date as day,
            starts_at,
            feature,
            api_key_id,
            charge_currency,
            sum(charge_amount) as charge_amount,
            sum(request_count) as request_count
        from past_usage
        group by tenant_id, starts_at, feature, api_key_id, charge_currency
    ) as u
),

dearest_quarters as (
    select
        tenant_id,
        date,
        feature,
        api_key_id,
        charge_currency,
        max(case when day = date - {{ signal_history_days() }} then charge_amount_of_day else charge_amount end) as charge_amount
    from past_days
    join (
        select
            tenant_id,
            day,
            feature,
            api_key_id,
            charge_currency,
            max(charge_amount) as charge_amount,
            max(charge_amount_of_day) as charge_amount_of_day
        from quarters
        group by tenant_id, day, feature, api_key_id, charge_currency
    ) as q using (tenant_id, day)
    group by tenant_id, date, feature, api_key_id, charge_currency
),

-- Hours without usage are hours of zero, from the tenant's first on.
every_hour as (
    select
        s.tenant_id,
        s.date,
        s.feature,
        s.api_key_id,
        s.charge_currency,
        extract(hour from e.hour_at at time zone 'UTC')::integer as hour_of_day,
        extract(isodow from e.hour_at at time zone 'UTC') = extract(isodow from s.date) as is_same_weekday,
        coalesce(h.charge_amount, 0) as charge_amount
    from spent_series as s
    cross join lateral generate_series(
        s.first_hour_at, s.date::timestamp at time zone 'UTC' - interval '1 hour', interval '1 hour'
    ) as e (hour_at)
    left join spent_hours as h using (tenant_id, feature, api_key_id, charge_currency, hour_at)
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
    from past_days
    join spent_hours using (tenant_id, day)
    where request_count > 0
    group by tenant_id, date, feature, api_key_id, charge_currency
),

-- Quarter hours of a day that cost more than any of as many or fewer calls: whatever a call costs, the most beyond it is one of these.
telling_quarters as (
    select
        tenant_id,
        day,
        feature,
        api_key_id,
        charge_currency,
        charge_amount_of_day,
        request_count_of_day
    from (
        select
            *,
            max(charge_amount_of_day) over (
                partition by tenant_id, feature, api_key_id, charge_currency, day
                order by request_count_of_day, charge_amount_of_day desc
                rows between unbounded preceding and 1 preceding
            ) as dearest_of_fewer
        from quarters
    ) as q
    where dearest_of_fewer is null or charge_amount_of_day > dearest_of_fewer
),

-- What a quarter hour costs beyond as many calls at the price that nearly all hours stayed within: what more of the usual calls do
-- not explain.
excess_of_days as (
    select
        tenant_id,
        date,
        day,
        feature,
        api_key_id,
        charge_currency,
        greatest(max(q.charge_amount_of_day - p.peak * q.request_count_of_day), 0) as amount
    from past_days
    join telling_quarters as q using (tenant_id, day)
    join call_prices as p using (tenant_id, date, feature, api_key_id, charge_currency)
    group by tenant_id, date, day, feature, api_key_id, charge_currency
),

-- The most of it, and the most outside of that day and those beside it: one incident, or the night of one, must not hide the next.
excess as (
    select
        tenant_id,
        date,
        'excess' as measure,
        feature,
        api_key_id,
        '' as value,
        charge_currency,
        -1 as hour_of_day,
        coalesce(max(amount) filter (where abs(day - most_on) > 1), 0) as usual,
        null::numeric as spread,
        max(amount) as peak,
        null::numeric as quarter_peak,
        count(*) as sample_count
    from (
        select
            *,
            first_value(day) over (
                partition by tenant_id, date, feature, api_key_id, charge_currency
                order by amount desc, day
            ) as most_on
        from excess_of_days
    ) as e
    group by tenant_id, date, feature, api_key_id, charge_currency
),

call_hours as (
    select
        tenant_id,
        day,
        hour_at,
        feature,
        api_key_id,
        sum(request_count)::bigint as request_count,
        sum(error_count)::bigint as error_count,
        sum(retry_count)::bigint as retry_count,
        sum(over_16k_count)::bigint as over_16k_count,
        sum(over_64k_count)::bigint as over_64k_count,
        sum(cacheable_128_count)::bigint as cacheable_128_count,
        sum(cacheable_256_count)::bigint as cacheable_256_count,
        sum(cacheable_512_count)::bigint as cacheable_512_count,
        sum(cacheable_128_count - cache_read_128_count)::bigint as uncached_128_count,
        sum(cacheable_256_count - cache_read_256_count)::bigint as uncached_256_count,
        sum(cacheable_512_count - cache_read_512_count)::bigint as uncached_512_count
    from usage_hours
    group by tenant_id, day, hour_at, feature, api_key_id
),

part_hours as (
    select
        c.tenant_id,
        c.day,
        m.measure,
        c.feature,
        c.api_key_id,
        '' as value,
        m.hits,
        m.calls,
        m.hits / m.calls::numeric as share
    from call_hours as c
    cross join lateral (
        values
            ('errors', c.error_count, c.request_count),
            ('retries', c.retry_count, c.request_count),
            ('over_16k', c.over_16k_count, c.request_count),
            ('over_64k', c.over_64k_count, c.request_count),
            ('uncached_128', c.uncached_128_count, c.cacheable_128_count),
            ('uncached_256', c.uncached_256_count, c.cacheable_256_count),
            ('uncached_512', c.uncached_512_count, c.cacheable_512_count)
    ) as m (measure, hits, calls)
    where m.calls > 0
    union all
    select
        u.tenant_id,
        u.day,
        m.measure,
        u.feature,
        u.api_key_id,
        m.value,
        sum(u.request_count)::bigint as hits,
        c.request_count as calls,
        sum(u.request_count) / c.request_count as share
    from usage_hours as u
    cross join lateral (
        values
            ('language', u.language),
            ('model', u.model)
    ) as m (measure, value)
    join call_hours as c using (tenant_id, feature, api_key_id, hour_at)
    where c.request_count > 0
    group by u.tenant_id, u.day, m.measure, u.feature, u.api_key_id, m.value, u.hour_at, c.request_count
),

-- What all hours have, those too in which the language or the model was not used.
totals as (
    select
        tenant_id,
        date,
        feature,
        api_key_id,
        sum(request_count) as calls,
        sum(request_count * request_count) as squared_calls
    from past_days
    join call_hours using (tenant_id, day)
    group by tenant_id, date, feature, api_key_id
),

parts as (
    select
        p.*,
        case when p.measure like 'uncached%' then p.own_calls else t.calls end as calls,
        case when p.measure like 'uncached%' then p.squared_own_calls else t.squared_calls end as squared_calls
    from (
        select
            tenant_id,
            date,
            measure,
            feature,
            api_key_id,
            value,
            sum(hits) as hits,
            sum(hits * hits) as squared_hits,
            sum(hits * calls) as hits_by_calls,
            sum(calls) as own_calls,
            sum(calls * calls) as squared_own_calls,
            coalesce(
                percentile_disc(0.98) within group (order by share) filter (where calls >= 20),
                percentile_disc(0.98) within group (order by share) filter (where calls >= 10),
                0
            ) as peak
        from past_days
        join part_hours using (tenant_id, day)
        group by tenant_id, date, measure, feature, api_key_id, value
    ) as p
    join totals as t using (tenant_id, date, feature, api_key_id)
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

user_hours as (
    select
        tenant_id,
        date_trunc('hour', starts_at, 'UTC') as hour_at,
        subject_id,
        sum(request_count)::bigint as request_count
    from past_user_usage
    group by 1, 2, subject_id
),

heaviest_of_hours as (
    select
        tenant_id,
        (hour_at at time zone 'UTC')::date as day,
        hour_at,
        max(request_count) / sum(request_count) as share,
        sum(request_count)::bigint as request_count
    from user_hours
    group by tenant_id, hour_at
    having sum(request_count) > 0
),

user_days as (
    select
        u.tenant_id,
        h.day,
        u.subject_id,
        sum(u.request_count)::bigint as hits,
        sum(u.request_count * u.request_count)::bigint as squared_hits,
        sum(u.request_count * h.request_count)::bigint as hits_by_calls
    from user_hours as u
    join heaviest_of_hours as h using (tenant_id, hour_at)
    group by u.tenant_id, h.day, u.subject_id
),

heaviest as (
    select
        tenant_id,
        date,
        share,
        request_count
    from past_days
    join heaviest_of_hours using (tenant_id, day)
),

each_user as (
    select
        *,
        least(greatest(hits / calls, 0), 1) as share
    from (
        select
            tenant_id,
            date,
            subject_id,
            sum(hits) as hits,
            sum(squared_hits) as squared_hits,
            sum(hits_by_calls) as hits_by_calls
        from past_days
        join user_days using (tenant_id, day)
        group by tenant_id, date, subject_id
    ) as u
    join (
        select
            tenant_id,
            date,
            sum(request_count) as calls,
            sum(request_count * request_count) as squared_calls
        from heaviest
        group by tenant_id, date
    ) as t using (tenant_id, date)
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
    select * from excess
    union all
    select * from shares
    union all
    select * from users
),

replaced as (
    {{ replacing('baselines', 'touched') }}
)

select * from replaced
