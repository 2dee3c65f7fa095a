{%- set columns = ["tenant_id", "date", "measure", "feature", "api_key_id", "value", "charge_currency", "hour_of_day"] -%}
{{ config(one_row_per(columns, buckets=["tenant_id", "date"])) }}

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
        sum(f.over_4k_count) as over_4k_count,
        sum(f.over_16k_count) as over_16k_count,
        sum(f.over_64k_count) as over_64k_count,
        sum(f.input_tokens) as input_tokens,
        sum(f.cache_read_tokens) as cache_read_tokens,
        sum(f.charge_amount) as charge_amount
    from touched as t
    join {{ ref('fct_signals_5min') }} as f
        on f.tenant_id = t.tenant_id
        and f.starts_at >= (t.date - {{ signal_history_days() }})::timestamp at time zone 'UTC'
        and f.starts_at < t.date::timestamp at time zone 'UTC'
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
        min(min(hour_at)) over (partition by tenant_id, date) as first_hour_at
    from usage_hours
    group by tenant_id, date, hour_at, feature, api_key_id, charge_currency
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
        percentile_disc(0.99) within group (order by charge_amount) as peak,
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
        all_hours as sample_count
    from shrunk
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
        sum(over_4k_count) as over_4k_count,
        sum(over_16k_count) as over_16k_count,
        sum(over_64k_count) as over_64k_count,
        sum(input_tokens) as input_tokens,
        sum(cache_read_tokens) as cache_read_tokens
    from usage_hours
    group by tenant_id, date, feature, api_key_id, hour_at
),

-- The share of calls, or of input for caches; how far hours with enough calls go from it.
shares as (
    select
        c.tenant_id,
        c.date,
        m.measure,
        c.feature,
        c.api_key_id,
        '' as value,
        '' as charge_currency,
        -1 as hour_of_day,
        coalesce(sum(m.part) / nullif(sum(m.whole), 0), 0) as usual,
        0::numeric as spread,
        coalesce(
            case
                when m.measure = 'cache'
                    then percentile_disc(0.02) within group (order by m.part / nullif(m.whole, 0)) filter (where c.request_count >= 10)
                else percentile_disc(0.98) within group (order by m.part / nullif(m.whole, 0)) filter (where c.request_count >= 10)
            end,
            0
        ) as peak,
        sum(c.request_count)::bigint as sample_count
    from calls as c
    cross join lateral (
        values
            ('errors', c.error_count, c.request_count),
            ('retries', c.retry_count, c.request_count),
            ('over_4k', c.over_4k_count, c.request_count),
            ('over_16k', c.over_16k_count, c.request_count),
            ('over_64k', c.over_64k_count, c.request_count),
            ('cache', c.cache_read_tokens, c.input_tokens)
    ) as m (measure, part, whole)
    group by c.tenant_id, c.date, m.measure, c.feature, c.api_key_id
),

mixes as (
    select
        u.tenant_id,
        u.date,
        m.measure,
        u.feature,
        u.api_key_id,
        m.value,
        u.hour_at,
        sum(u.request_count) as request_count,
        sum(sum(u.request_count)) over (
            partition by u.tenant_id, u.date, m.measure, u.feature, u.api_key_id, u.hour_at
        ) as hour_request_count
    from usage_hours as u
    cross join lateral (
        values
            ('language', u.language),
            ('model', u.model)
    ) as m (measure, value)
    group by u.tenant_id, u.date, m.measure, u.feature, u.api_key_id, m.value, u.hour_at
),

mix_shares as (
    select
        tenant_id,
        date,
        measure,
        feature,
        api_key_id,
        value,
        '' as charge_currency,
        -1 as hour_of_day,
        sum(request_count) / nullif(sum(sum(request_count)) over (
            partition by tenant_id, date, measure, feature, api_key_id
        ), 0) as usual,
        0::numeric as spread,
        coalesce(
            percentile_disc(0.98) within group (order by request_count / nullif(hour_request_count, 0))
            filter (where hour_request_count >= 10),
            0
        ) as peak,
        sum(request_count)::bigint as sample_count
    from mixes
    group by tenant_id, date, measure, feature, api_key_id, value
),

users_by_hour as (
    select
        t.tenant_id,
        t.date,
        date_trunc('hour', f.starts_at, 'UTC') as hour_at,
        f.subject_id,
        sum(f.request_count) as request_count
    from touched as t
    join {{ ref('fct_user_usage_5min') }} as f
        on f.tenant_id = t.tenant_id
        and f.starts_at >= (t.date - {{ signal_history_days() }})::timestamp at time zone 'UTC'
        and f.starts_at < t.date::timestamp at time zone 'UTC'
    group by t.tenant_id, t.date, date_trunc('hour', f.starts_at, 'UTC'), f.subject_id
),

heaviest as (
    select
        tenant_id,
        date,
        hour_at,
        max(request_count) / nullif(sum(request_count), 0) as share,
        sum(request_count) as request_count
    from users_by_hour
    group by tenant_id, date, hour_at
),

-- What share of an hour's calls the heaviest user of that hour has; hours of few calls only where there are no others.
users as (
    select
        tenant_id,
        date,
        'user' as measure,
        '' as feature,
        '' as api_key_id,
        '' as value,
        '' as charge_currency,
        -1 as hour_of_day,
        coalesce(
            percentile_disc(0.5) within group (order by share) filter (where request_count >= 20),
            percentile_disc(0.5) within group (order by share) filter (where request_count >= 10),
            1
        ) as usual,
        0::numeric as spread,
        coalesce(
            percentile_disc(0.98) within group (order by share) filter (where request_count >= 20),
            percentile_disc(0.98) within group (order by share) filter (where request_count >= 10),
            1
        ) as peak,
        sum(request_count)::bigint as sample_count
    from heaviest
    group by tenant_id, date
),

baselines as (
    select * from spend
    union all
    select * from shares
    union all
    select * from mix_shares
    where usual is not null
    union all
    select * from users
),

replaced as (
    {{ replacing('baselines', 'touched') }}
)

select * from replaced
