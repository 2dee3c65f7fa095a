-- Every event that an entry or a node's window stands for has its key, in the batch that wrote it; no key stands alone. Keys
-- outlive their rows: of batches that wrote to a month whose rows have left, only the number of keys is told.
with stated as (
    select
        e.event_key as key,
        e.batch_id
    from {entries} as e
    union all
    select
        w.event_key,
        w.batch_id
    from ledger.node_windows as w
    where w.batch_id >= {first_batch}
),

left_batches as materialized (
    select distinct batch_id
    from ledger.batch_digests
    where posting_period = any({gone})
),

counted as (
    select
        batch_id,
        count(*) as key_count
    from ledger.event_keys
    where batch_id >= {first_batch}
    group by batch_id
),

-- A fee has a key of its own, beside that of the report which it was booked with.
fees as (
    select
        batch_id,
        count(distinct event_key) as key_count
    from {entries} as e
    where kind = 'fee'
    group by batch_id
),

-- Several rows may stand for one event, and are one failure.
differing as (
    select distinct
        s.key,
        s.batch_id,
        k.key as known_key,
        k.batch_id as known_batch_id
    from stated as s
    full join (select * from ledger.event_keys where batch_id >= {first_batch}) as k on k.key = s.key
    where s.batch_id is distinct from k.batch_id
)

select
    case
        when known_key is null then format('event key %s of batch %s is missing: the event could be posted again', key, batch_id)
        when key is null then format('event key %s of batch %s stands for no entry', known_key, known_batch_id)
        else format('event key %s belongs to batch %s, its entries to batch %s', key, known_batch_id, batch_id)
    end as failure
from differing
where key is not null or known_batch_id not in (select l.batch_id from left_batches as l)

union all

select
    format(
        'batch %s of feed %s accepted %s events and has %s keys', b.number, f.name,
        b.created_count + b.evidence_count, coalesce(c.key_count, 0) - coalesce(x.key_count, 0)
    )
from ledger.batches as b
join ledger.feeds as f on f.feed_id = b.feed_id
left join counted as c on c.batch_id = b.batch_id
left join fees as x on x.batch_id = b.batch_id
left join left_batches as l on l.batch_id = b.batch_id
where
    b.batch_id >= {first_batch}
    and case
        -- Fees whose rows have left have keys too.
        when l.batch_id is not null then coalesce(c.key_count, 0) < b.created_count + b.evidence_count
        else b.created_count + b.evidence_count <> coalesce(c.key_count, 0) - coalesce(x.key_count, 0)
    end
