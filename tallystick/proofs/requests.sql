-- The projection `ledger.requests`, held against the entries: first rows, best statement, one request counted once. Requests
-- that begin in a month whose rows have left are not looked at.
--
-- Nearly all requests are told by one row, and hold if that row and theirs agree; so all entries are met with all requests once,
-- and only of what does not fit alone everything is made again.
with met as (
    select
        coalesce(r.key, e.request_key) as key,
        r.posting_period as first_posting_period,
        r.entry_id as first_entry_id,
        e.posting_period,
        e.entry_id,
        e.kind is not distinct from 'evidence' as is_evidence,
        case
            -- A report was kept as evidence because it beat nothing, or because a person has to accept it.
            when e.kind = 'evidence' then (
                not e.usage_flags @> '{proposed}'
                and not (e.status = 'in_progress' and (e.reported -> 'rank' ->> 1) = '0')
                and translate(e.reported ->> 'rank', '[]', '{}')::integer[] > r.rank
                -- The word of a load that was taken back counts no more.
                and e.source not in (select l.source from ledger.loads as l where l.state in ('reverting', 'reverted'))
            ) is true
            else (
                e.kind in ('usage', 'fee')
                and r.posting_period = e.posting_period
                and r.entry_id = e.entry_id
                and e.corrects_entry_id is null
                and e.entry_no = 0
                and r.entry_count = 1
                and r.occurred_at = e.occurred_at
                and r.best_event_key = e.event_key
                and r.rank[3] = e.is_final::integer
                and r.rank[6] = e.revision
                and e.request_count = (e.status is distinct from 'void' and e.kind <> 'fee')::integer
            ) is not true
        end as is_odd
    from (select * from ledger.entries where request_key is not null) as e
    full join ledger.requests as r on r.key = e.request_key
    where r.posting_period is null or r.posting_period <> all({gone})
),

odd_rows as materialized (
    select *
    from met
    where is_odd
),

-- All rows of a request of which one is odd: those, and the first one, which may fit alone.
places as materialized (
    select key, posting_period, entry_id
    from odd_rows
    where not is_evidence and entry_id is not null
    union
    select key, first_posting_period, first_entry_id
    from odd_rows
    where not is_evidence and first_entry_id is not null
),

odd as materialized (
    select distinct key
    from odd_rows
    where not is_evidence
),

spoken as materialized (
    select
        e.request_key as key,
        e.event_key,
        e.kind,
        e.posting_period,
        e.entry_id,
        coalesce(e.corrects_entry_id, e.entry_id - e.entry_no) as begins_with,
        e.occurred_at,
        e.request_count,
        e.is_final,
        e.revision,
        -- A void, or a person's reversal, says that the request does not count; a fee is none.
        e.status = 'void' or e.kind in ('reversal', 'fee') as counts_nothing,
        -- A corrected price, and a difference in money, say nothing of what was used: they are no statements.
        e.kind = 'adjustment' and (e.reported ? 'run' or e.usage_flags @> '{amount_stated}') is true as is_aside,
        b.feed_id,
        b.number
    from places as p
    join ledger.entries as e on e.posting_period = p.posting_period and e.entry_id = p.entry_id and e.request_key = p.key
    join ledger.batches as b on b.batch_id = e.batch_id
    where e.kind <> 'evidence'
),

-- Once all that was said of a request is taken back, the next report begins it anew; what it began with before counts nothing.
begun as materialized (
    select
        key,
        begins_with as entry_id,
        count(*) filter (where kind in ('usage', 'fee')) as entry_count,
        min(posting_period) filter (where kind in ('usage', 'fee')) as posting_period,
        min(occurred_at) as occurred_at,
        min(occurred_at) = max(occurred_at) as is_one_instant,
        sum(request_count) as request_count,
        count(distinct event_key) filter (where kind in ('usage', 'fee')) as statement_count,
        bool_or(kind = 'reversal') and sum(request_count) = 0 as is_taken_back
    from spoken
    group by key, begins_with
),

firsts as (
    select distinct on (key) *
    from begun
    where statement_count > 0
    order by key, is_taken_back, entry_id desc
),

totals as (
    select
        key,
        sum(request_count) as request_count,
        bool_and(is_one_instant) as is_one_instant,
        max(statement_count) + count(*) filter (where not is_taken_back and statement_count > 0) as begun_count
    from begun
    group by key
),

-- Each later statement beat the one before, so the best is the last. Order of commit is known inside a feed only: of a
-- request that several feeds speak of, the last of any of them may be the best.
lasts as (
    select distinct on (key, feed_id)
        key,
        event_key,
        is_final,
        revision
    from spoken
    where not is_aside
    order by key, feed_id, number desc, entry_id desc
),

bests as (
    select
        r.key,
        bool_or(s.counts_nothing) as counts_nothing
    from ledger.requests as r
    join spoken as s on s.key = r.key and s.event_key = r.best_event_key
    group by r.key
),

best_lasts as (
    select distinct r.key
    from ledger.requests as r
    join lasts as l
        on
            l.key = r.key
            and l.event_key = r.best_event_key
            and l.is_final = (r.rank[3] = 1)
            and l.revision = r.rank[6]
),

compared as (
    select
        o.key,
        case
            when r.key is null then 'has entries and no row'
            when f.key is null then 'has a row and no first entry'
            when t.begun_count > 2 or f.statement_count <> 1
                then format('was begun %s times', greatest(f.statement_count, t.begun_count - 1))
            when t.request_count not in (0, 1) then format('counts as %s requests', t.request_count)
            when t.request_count <> (b.counts_nothing is not true)::integer
                then format('counts as %s requests, and its best statement says otherwise', t.request_count)
            when not t.is_one_instant then 'has entries of more than one instant'
            when (r.posting_period, r.entry_id, r.entry_count, r.occurred_at)
                <> (f.posting_period, f.entry_id, f.entry_count, f.occurred_at)
                then format('should begin with the %s rows from entry %s of %s', f.entry_count, f.entry_id, f.posting_period)
            when l.key is null
                then format('names event %s as its best, which is not its last statement or has another rank', r.best_event_key)
        end as fault
    from odd as o
    left join ledger.requests as r on r.key = o.key
    left join totals as t on t.key = o.key
    left join firsts as f on f.key = o.key
    left join bests as b on b.key = o.key
    left join best_lasts as l on l.key = o.key
)

select format('request %s %s', key, fault) as failure
from compared
where fault is not null

union all

select format('request %s: entry %s was kept as evidence and ranks above the best statement', key, entry_id)
from odd_rows
where is_evidence
