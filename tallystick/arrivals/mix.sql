-- How far the largest share of a value moved in each dimension, against the seven days before by the hourly mart. Which value it
-- was is for the terminal; here stands how far.
with before as (
    select
        v.dimension,
        v.value,
        sum(m.request_count) as requests
    from {usage_week} as m
    cross join lateral (
        values ('feature', m.feature), ('language', m.language), ('lane', m.lane), ('model', m.model)
    ) as v (dimension, value)
    group by 1, 2
),

arrived as (
    select
        v.dimension,
        coalesce(v.value, '') as value,
        sum(e.request_count) as requests
    from {entries} as e
    cross join lateral (
        values ('feature', e.feature), ('language', e.language), ('lane', e.lane), ('model', e.model)
    ) as v (dimension, value)
    where e.kind not in ('evidence', 'reversal')
    group by 1, 2
),

shares as (
    select
        dimension,
        value,
        coalesce(sum(a.requests) over of_dimension, 0) as requests,
        coalesce(sum(b.requests) over of_dimension, 0) as requests_before,
        coalesce(a.requests, 0) / nullif(sum(a.requests) over of_dimension, 0) as share,
        coalesce(b.requests, 0) / nullif(sum(b.requests) over of_dimension, 0) as share_before
    from arrived as a
    full join before as b using (dimension, value)
    window of_dimension as (partition by dimension)
)

select
    'dimension' as kind,
    dimension as subject,
    least(max(requests), max(requests_before))::bigint as requests,
    max(abs(share - share_before))::double precision as largest_move
from shares
group by dimension
