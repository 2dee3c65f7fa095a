{%- set columns = ["tenant_id", "starts_at", "kind", "feature", "api_key_id", "value"] -%}
{{ config(one_row_per(columns, buckets=["tenant_id", "starts_at"], is_fold=false)) }}
{%- set limits = signal_limits() %}

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
        sum(over_16k_count) as over_16k_count,
        sum(over_64k_count) as over_64k_count,
        sum(cacheable_128_count) as cacheable_128_count,
        sum(cacheable_256_count) as cacheable_256_count,
        sum(cacheable_512_count) as cacheable_512_count,
        sum(cacheable_128_count - cache_read_128_count) as uncached_128_count,
        sum(cacheable_256_count - cache_read_256_count) as uncached_256_count,
        sum(cacheable_512_count - cache_read_512_count) as uncached_512_count,
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
        {{ sums_of_last('over_16k_count') }},
        {{ sums_of_last('over_64k_count') }},
        {{ sums_of_last('cacheable_128_count') }},
        {{ sums_of_last('cacheable_256_count') }},
        {{ sums_of_last('cacheable_512_count') }},
        {{ sums_of_last('uncached_128_count') }},
        {{ sums_of_last('uncached_256_count') }},
        {{ sums_of_last('uncached_512_count') }},
        {{ sums_of_last('minimums_charged') }}
    from series
    window {{ last_windows("tenant_id, feature, api_key_id") }}
),

in_hand as (
    select w.*
    from windowed as w
    where {{ is_touched("w") }} and {{ is_known("w.tenant_id", "w.date") }}
),

-- Shares of calls that should stay low, over ten minutes, the quarter hour and the hour. A late correction may leave more hits
-- than calls in five minutes; there all of them are hits.
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
        m.minutes,
        greatest(m.calls, m.hits)::double precision as calls,
        m.hits::double precision as hits
    from in_hand as w
    cross join lateral (
        values
            {%- for kind, measure, calls, hits in [
                ("errors", "errors", "request_count", "error_count"),
                ("retries", "retries", "request_count", "retry_count"),
                ("long_prompts", "over_16k", "request_count", "over_16k_count"),
                ("long_prompts", "over_64k", "request_count", "over_64k_count"),
                ("cache", "uncached_128", "cacheable_128_count", "uncached_128_count"),
                ("cache", "uncached_256", "cacheable_256_count", "uncached_256_count"),
                ("cache", "uncached_512", "cacheable_512_count", "uncached_512_count"),
            ] %}
            {%- for minutes in signal_windows() %}
            (
                '{{ kind }}', '{{ measure }}', {{ minutes }}, w.{{ calls }}_{{ minutes }}, w.{{ hits }}_{{ minutes }},
                {{ limits["calls_" ~ minutes] }}
            )
            {{- "," if not loop.last }}
            {%- endfor %}{{ "," if not loop.last }}
            {%- endfor %}
    ) as m (kind, measure, minutes, calls, hits, enough)
    where m.hits >= m.enough and m.hits >= {{ limits.rise }} * m.calls
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
        sum(request_count) over ten_of_all as calls_10,
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
        n.minutes,
        greatest(n.calls, n.hits)::double precision as calls,
        n.hits::double precision as hits
    from mix_windowed as m
    cross join lateral (
        values
            {%- for minutes in signal_windows() %}
            ({{ minutes }}, m.calls_{{ minutes }}, m.request_count_{{ minutes }}, {{ limits["calls_" ~ minutes] }})
            {{- "," if not loop.last }}
            {%- endfor %}
    ) as n (minutes, calls, hits, enough)
    where
        n.hits >= n.enough and n.hits >= {{ limits.rise }} * n.calls
        and {{ is_touched("m") }} and {{ is_known("m.tenant_id", "m.date") }}
),

tests as (
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
        minutes,
        calls,
        hits
    from mix_tests
),

-- Beyond what is usual, as widely as hours are spread about it, and beyond what nearly all hours stayed within.
risen as (
    select
        t.tenant_id,
        t.starts_at,
        t.kind,
        t.feature,
        t.api_key_id,
        t.value,
        t.measure,
        t.minutes,
        case when t.kind = 'cache' then 1 - t.hits / t.calls else t.hits / t.calls end as observed,
        case when t.kind = 'cache' then 1 - c.usual else c.usual end as usual,
        t.calls as sample_count,
        greatest(p.beyond_peak, {{ deviations("t.hits", "t.calls", "c.chance", "c.dispersion") }}) as score
    from tests as t
    -- How much the series has called at all: one without history is new, and its shares say nothing.
    cross join lateral (
        select b.sample_count
        from {{ ref('fct_signal_baselines') }} as b
        where {{ is_baseline_of("b", "t", "case when t.kind = 'cache' then t.measure else 'errors' end") }}
        offset 0
    ) as s
    left join lateral (
        select
            b.usual,
            b.spread,
            b.peak
        from {{ ref('fct_signal_baselines') }} as b
        where {{ is_baseline_of("b", "t", "t.measure", "t.value") }}
        offset 0
    ) as b on true
    cross join lateral (
        select
            coalesce(b.usual, 0)::double precision as usual,
            {{ between_chances("coalesce(b.usual, 0)") }}::double precision as chance,
            {{ between_chances("greatest(b.usual, b.peak, 0)") }}::double precision as high,
            coalesce(b.spread, 1)::double precision as dispersion
    ) as c
    cross join lateral (
        select {{ deviations("t.hits", "t.calls", "c.high") }} as beyond_peak
        offset 0
    ) as p
    where
        s.sample_count >= {{ limits.history_calls }}
        and p.beyond_peak >= {{ limits.beyond_peak }}
        and case
            when t.kind = 'cache'
                then 1 - c.usual >= {{ limits.cache_usual }} and t.calls - t.hits <= {{ limits.cache_left }} * (1 - c.usual) * t.calls
            else t.hits >= (c.usual + {{ limits.rise }}) * t.calls
        end
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
        '' as measure,
        60 as minutes,
        w.minimums_charged_60 as observed,
        0 as usual,
        w.request_count_60 as sample_count,
        {{ limits.score }} * w.minimums_charged_60 as score
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
        sum(request_count) over ten_of_all as calls_10,
        sum(request_count) over quarter_of_all as calls_15,
        sum(request_count) over hour_of_all as calls_60
    from user_series
    window
        {{ last_windows("tenant_id, subject_id") }},
        {{ last_windows("tenant_id", "_of_all") }}
),

-- One user with most of a tenant's calls, who never had so many, where no user ever had.
crowding as (
    select
        u.tenant_id,
        u.starts_at,
        'one_user' as kind,
        '' as feature,
        '' as api_key_id,
        u.subject_id::text as value,
        'user' as measure,
        n.minutes,
        n.hits / n.calls as observed,
        coalesce(o.usual, 0) as usual,
        n.calls as sample_count,
        greatest(p.beyond_peak, {{ deviations("n.hits", "n.calls", "c.chance", "c.dispersion") }}) as score
    from users as u
    cross join lateral (
        select
            w.minutes,
            greatest(w.calls, w.hits)::double precision as calls,
            w.hits::double precision as hits
        from (
            values
                {%- for minutes in signal_windows() %}
                ({{ minutes }}, u.calls_{{ minutes }}, u.request_count_{{ minutes }}, {{ limits["calls_" ~ minutes] }})
                {{- "," if not loop.last }}
                {%- endfor %}
        ) as w (minutes, calls, hits, enough)
        where w.hits >= w.enough and w.hits >= {{ limits.user_share }} * w.calls
    ) as n
    cross join lateral (
        select
            b.peak,
            b.spread
        from {{ ref('fct_signal_baselines') }} as b
        where {{ is_baseline_of("b", "u", "'user'") }}
        offset 0
    ) as b
    left join lateral (
        select o.usual
        from {{ ref('fct_signal_baselines') }} as o
        where {{ is_baseline_of("o", "u", "'user'", "u.subject_id::text") }}
        offset 0
    ) as o on true
    cross join lateral (
        select
            {{ between_chances("coalesce(o.usual, 0)", limits.user_usual) }}::double precision as chance,
            {{ between_chances("b.peak", limits.user_usual) }}::double precision as high,
            b.spread::double precision as dispersion
    ) as c
    cross join lateral (
        select {{ deviations("n.hits", "n.calls", "c.high") }} as beyond_peak
        offset 0
    ) as p
    where
        p.beyond_peak >= {{ limits.beyond_peak }}
        and {{ is_touched("u") }}
        and {{ is_known("u.tenant_id", "u.date") }}
),

found as (
    select * from risen
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
        measure,
        minutes,
        starts_at + interval '5 minutes' as ends_at,
        round(score::numeric, 1) as score,
        case when score >= 3 * {{ limits.score }} then 'warning' else 'notice' end as severity,
        round(observed::numeric, 4) as observed,
        round(usual::numeric, 4) as usual,
        sample_count::bigint as sample_count
    from found
    where score >= {{ limits.score }}
    order by tenant_id, starts_at, kind, feature, api_key_id, value, found.score desc, minutes, measure
),

-- The windows of a query end where the one that was judged ends, so that its last is that one.
explained as (
    select
        tenant_id,
        starts_at,
        kind,
        feature,
        api_key_id,
        value,
        score,
        severity,
        observed,
        usual,
        sample_count,
        case
            when kind = 'one_user'
                then format(
                    'select feature, api_key_id, language, model, status, count(*) as entries, sum(request_count) as requests,'
                    ' coalesce(sum(request_count) filter (where occurred_at >= timestamptz %L - interval ''%s minutes''), 0)'
                    ' as last_%s_minutes,'
                    ' (select sum(u.request_count) from {{ ref('fct_user_usage_5min').include(database=false) }} as u'
                    ' where u.tenant_id = %L and u.starts_at >= timestamptz %L - interval ''%s minutes'' and u.starts_at < timestamptz %L)'
                    ' as last_%s_minutes_of_all_users,'
                    ' sum(charge_amount) as charge, charge_currency,'
                    ' coalesce(sum(request_count) filter (where charge_amount is null), 0) as unpriced'
                    ' from %I.%I where tenant_id = %L and subject_id = %L'
                    ' and occurred_at >= timestamptz %L - interval ''1 hour'' and occurred_at < timestamptz %L'
                    ' group by 1, 2, 3, 4, 5, charge_currency order by 7 desc',
                    ends_at, minutes, minutes, tenant_id, ends_at, minutes, ends_at, minutes,
                    'ledger', 'entries', tenant_id, value, ends_at, ends_at
                )
            else format(
                'select date_bin(''%s minutes'', starts_at, timestamptz %L) as window_at, %s'
                ' from {{ ref('fct_signals_5min').include(database=false) }} where tenant_id = %L and feature = %L and api_key_id = %L'
                ' and starts_at >= timestamptz %L - interval ''6 hours'' and starts_at < timestamptz %L'
                ' group by window_at%s order by window_at, requests desc',
                minutes,
                ends_at,
                case
                    when kind = 'errors' then 'model, sum(error_count) as errors, sum(request_count) as requests'
                    when kind = 'retries' then 'model, sum(retry_count) as retries, sum(request_count) as requests'
                    when kind = 'long_prompts'
                        then 'sum(over_16k_count) as over_16k, sum(over_64k_count) as over_64k,'
                        ' sum(request_count) as requests, sum(input_tokens) as input'
                    when kind = 'cache'
                        then format(
                            'sum(cache_read_%1$s_count) as read_from_cache_%1$s, sum(cacheable_%1$s_count) as cacheable_%1$s,'
                            ' sum(request_count) as requests, sum(cache_read_tokens) as cached, sum(input_tokens) as input,',
                            substr(measure, 10)
                        ) || ' ' || charge.columns
                    when kind = 'language_shift' then 'language, sum(request_count) as requests, ' || charge.columns
                    when kind = 'model_shift' then 'model, sum(request_count) as requests, ' || charge.columns
                    else 'language, model, sum(request_count) as requests, ' || charge.columns
                end,
                tenant_id,
                feature,
                api_key_id,
                ends_at,
                ends_at,
                case
                    when kind in ('errors', 'retries') then ', model'
                    when kind = 'long_prompts' then ''
                    when kind = 'cache' then ', charge_currency'
                    when kind = 'model_shift' then ', model, charge_currency'
                    when kind = 'language_shift' then ', language, charge_currency'
                    else ', language, model, charge_currency'
                end
            )
        end as explain_sql
    from strongest
    cross join (
        values ('sum(charge_amount) as charge, charge_currency, sum(charge_unpriced_count) as unpriced')
    ) as charge (columns)
),

since as (
    {{ with_since('explained', ["tenant_id", "kind", "feature", "api_key_id", "value"]) }}
),

replaced as (
    {{ replacing('since', 'touched') }}
)

select * from replaced
