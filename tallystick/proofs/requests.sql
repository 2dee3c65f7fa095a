-- The projection `ledger.requests`, made again from the entries: first rows, best statement, one request counted once.
with spoken as (
    select
        e.request_key as key,
        e.event_key,
        e.kind,
        e.posting_period,
        e.entry_id,
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
    from ledger.entries as e
    join ledger.batches as b on b.batch_id = e.batch_id
    where e.request_key is not null and e.kind <> 'evidence'
),

firsts as (
    select
        key,
        min(entry_id) as entry_id,
        count(*) as entry_count,
        min(posting_period) as posting_period,
        min(occurred_at) as occurred_at,
        count(distinct event_key) as statement_count
    from spoken
    where kind in ('usage', 'fee')
    group by key
),

totals as (
    select
        key,
        sum(request_count) as request_count,
        min(occurred_at) = max(occurred_at) as is_one_instant
    from spoken
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

compared as (
    select
        coalesce(r.key, t.key) as key,
        case
            when r.key is null then 'has entries and no row'
            when f.key is null then 'has a row and no first entry'
            when f.statement_count <> 1 then format('was begun %s times', f.statement_count)
            when t.request_count not in (0, 1) then format('counts as %s requests', t.request_count)
            when t.request_count <> (
                not exists (select from spoken as s where s.key = r.key and s.event_key = r.best_event_key and s.counts_nothing)
            )::integer
                then format('counts as %s requests, and its best statement says otherwise', t.request_count)
            when not t.is_one_instant then 'has entries of more than one instant'
            when (r.posting_period, r.entry_id, r.entry_count, r.occurred_at)
                <> (f.posting_period, f.entry_id, f.entry_count, f.occurred_at)
                then format('should begin with the %s rows from entry %s of %s', f.entry_count, f.entry_id, f.posting_period)
            when not exists (
                select
                from lasts as l
                where
                    l.key = r.key
                    and l.event_key = r.best_event_key
                    and l.is_final = (r.rank[3] = 1)
                    and l.revision = r.rank[6]
            ) then format('names event %s as its best, which is not its last statement or has another rank', r.best_event_key)
        end as fault
    from ledger.requests as r
    full join totals as t on t.key = r.key
    left join firsts as f on f.key = t.key
)

select format('request %s %s', key, fault) as failure
from compared
where fault is not null

union all

-- A report was kept as evidence because it beat nothing, or because a person has to accept it.
select format('request %s: entry %s was kept as evidence and ranks above the best statement', r.key, e.entry_id)
from ledger.entries as e
join ledger.requests as r on r.key = e.request_key
where
    e.kind = 'evidence'
    and not e.usage_flags @> '{proposed}'
    and not (e.status = 'in_progress' and (e.reported -> 'rank' ->> 1) = '0')
    and array(select jsonb_array_elements_text(e.reported -> 'rank')::integer) > r.rank
