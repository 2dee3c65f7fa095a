-- The first report of each request in the window: when it came, and what it says of itself.
with first_reports as (
    select
        source,
        feature,
        language,
        extract(epoch from recorded_at - occurred_at) as delay_seconds
    from {entries} as e
    where kind = 'usage' and entry_no = 0
),

folded as (
    select
        case when grouping(source) = 1 then 'all' else 'source' end as kind,
        source,
        count(*) as requests,
        count(*) filter (where delay_seconds > {late_seconds}) as late,
        count(*) filter (where delay_seconds < -{ahead_seconds}) as ahead,
        percentile_cont(0.95) within group (order by delay_seconds) as delay_p95_seconds,
        count(*) filter (where feature is null) as without_feature,
        count(*) filter (where language = 'und') as without_language
    from first_reports
    group by grouping sets ((), (source))
)

select
    f.kind,
    case when f.kind = 'all' then '' else {name_of_source} end as subject,
    f.requests,
    f.late::double precision / nullif(f.requests, 0) as late_share,
    f.delay_p95_seconds::double precision as delay_p95_seconds,
    f.ahead::double precision as ahead_count,
    f.without_feature::double precision / nullif(f.requests, 0) as feature_missing_share,
    f.without_language::double precision / nullif(f.requests, 0) as language_und_share
from folded as f
