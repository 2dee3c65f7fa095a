-- What became of the events of the window, by the counts of their batches.
with folded as (
    select
        coalesce(sum(created_count + duplicate_count + evidence_count + conflict_count + dead_letter_count), 0) as events,
        coalesce(sum(duplicate_count), 0) as duplicates,
        coalesce(sum(conflict_count), 0) as conflicts,
        coalesce(sum(dead_letter_count), 0) as dead_letters
    from {batches} as b
)

select
    'all' as kind,
    '' as subject,
    events::bigint as events,
    duplicates::double precision / nullif(events, 0)::double precision as duplicate_share,
    conflicts::double precision / nullif(events, 0)::double precision as conflict_share,
    dead_letters::double precision / nullif(events, 0)::double precision as dead_letter_share
from folded
