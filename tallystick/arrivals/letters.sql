-- Dead letters that were first set aside in the window: by reason, as a share of all events, and by registered sender, as a
-- share of what that sender sent. The reasons are the code's own words.
with letters as (
    select
        d.reason,
        d.source
    from {batches} as b
    join ledger.dead_letters as d on d.batch_id = b.batch_id
    where d.reason <> 'conflict'
),

events as (
    select sum(created_count + duplicate_count + evidence_count + conflict_count + dead_letter_count) as events
    from {batches} as b
),

by_source as (
    select
        source,
        count(*) as letters
    from letters
    group by 1
),

accepted as (
    select
        source,
        count(distinct event_key) as events
    from {entries} as e
    group by 1
)

select
    'reason' as kind,
    l.reason as subject,
    max(v.events)::bigint as events,
    count(*)::double precision / nullif(max(v.events), 0)::double precision as reason_share,
    null::double precision as source_letter_share
from letters as l
cross join events as v
group by l.reason
union all
select
    'source',
    {name_of_source},
    coalesce(f.letters, 0) + coalesce(a.events, 0),
    null,
    coalesce(f.letters, 0)::double precision / nullif(coalesce(f.letters, 0) + coalesce(a.events, 0), 0)
from by_source as f
full join accepted as a using (source)
join ledger.sources as s using (source)
