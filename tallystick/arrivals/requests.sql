-- What each request amounts to after all that the window says of it: a node's report without a price that the gateway's
-- report replaced is not unpriced. Later parts of a request count as 0 requests, so their tokens speak for them.
with requests as (
    select
        max(source) as source,
        -- What is taken back had arrived before.
        sum(request_count) filter (where kind <> 'reversal') as requests,
        coalesce(sum(request_count) filter (where {unpriced}), 0) > 0
        or coalesce(sum(coalesce(input_tokens, 0) + coalesce(output_tokens, 0)) filter (where {unpriced}), 0) > 0
            as is_unpriced,
        coalesce(sum(request_count) filter (where usage_flags @> '{usage_missing}'), 0) > 0 as is_missing,
        coalesce(sum(request_count) filter (where {doubtful}), 0) > 0 as is_flagged,
        coalesce(sum(request_count) filter (where basis = 'estimated'), 0) > 0 as is_estimated
    from {entries} as e
    where kind <> 'evidence'
    group by coalesce(request_key, event_key)
),

folded as (
    select
        case when grouping(source) = 1 then 'all' else 'source' end as kind,
        source,
        coalesce(sum(requests), 0) as requests,
        count(*) filter (where is_unpriced) as unpriced,
        count(*) filter (where is_missing) as missing,
        count(*) filter (where is_flagged) as flagged,
        count(*) filter (where is_estimated) as estimated
    from requests
    group by grouping sets ((), (source))
)

select
    f.kind,
    case when f.kind = 'all' then '' else {name_of_source} end as subject,
    f.requests::bigint as requests,
    f.unpriced::double precision / greatest(f.requests, f.unpriced, 1)::double precision as unpriced_share,
    f.missing::double precision / greatest(f.requests, f.missing, 1)::double precision as usage_missing_share,
    f.flagged::double precision / greatest(f.requests, f.flagged, 1)::double precision as flagged_share,
    f.estimated::double precision / greatest(f.requests, f.estimated, 1)::double precision as estimated_share
from folded as f
