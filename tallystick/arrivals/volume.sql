-- What arrived in the window against the same hours one week before: all of it, and each sender that may still speak.
-- A sender that was there last week and is silent now has a row with zero.
with now_and_before as (
    select
        source,
        sum(request_count) as requests,
        0::bigint as requests_before
    from {entries} as e
    where kind not in ('evidence', 'reversal')
    group by 1
    union all
    select
        source,
        0::bigint,
        sum(request_count)
    from {entries_same_hours} as e
    where kind not in ('evidence', 'reversal')
    group by 1
),

folded as (
    select
        case when grouping(source) = 1 then 'all' else 'source' end as kind,
        source,
        sum(requests) as requests,
        sum(requests_before) as requests_before
    from now_and_before
    group by grouping sets ((), (source))
)

select
    f.kind,
    case when f.kind = 'all' then '' else {name_of_source} end as subject,
    coalesce(f.requests, 0)::bigint as requests,
    coalesce(f.requests_before, 0)::bigint as requests_before,
    (coalesce(f.requests, 0) / nullif(f.requests_before, 0))::double precision as volume_ratio
from folded as f
left join ledger.sources as s using (source)
where f.kind = 'all' or (s.source is not null and s.ended_at is null)
