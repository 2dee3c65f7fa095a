-- What a person did and what was written for it are the same, both ways. Rows that correct name who and why, and the act that
-- wrote them; corrections, loads, resolved dead letters and months that left have their act, and acts what they speak of.
with written as materialized (
    select
        e.event_key,
        e.entry_id,
        e.tenant_id,
        e.batch_id,
        e.kind,
        e.actor,
        e.reason,
        e.reported ->> 'run' as run
    from {entries} as e
    where e.actor is not null or e.kind in ('adjustment', 'reversal')
),

acted as (
    select
        w.*,
        f.name as feed
    from written as w
    join ledger.batches as b on b.batch_id = w.batch_id
    join ledger.feeds as f on f.feed_id = b.feed_id
),

corrected as (
    select
        event_key,
        count(*) as entry_count
    from written
    group by event_key
)

select format('entry %s of tenant %s is of kind %s and does not say who wrote it and why', entry_id, tenant_id, kind) as failure
from written
where actor is null or coalesce(reason, '') = ''

union all

select format('entry %s of tenant %s was written by %s, and no act says so', w.entry_id, w.tenant_id, w.actor)
from acted as w
left join ledger.corrections as c on c.event_key = w.event_key and c.actor = w.actor and c.batch_id = w.batch_id
where
    w.actor is not null
    and c.event_key is null
    -- A fee that a correction makes owed has a key of its own.
    and not (
        w.kind = 'fee'
        and exists (select from ledger.corrections as o where o.batch_id = w.batch_id and o.actor = w.actor)
    )
    and not exists (
        select
        from ledger.acts as a
        where
            a.act = 'prices.reprice' and w.run = 'act ' || a.act_id and a.actor = w.actor
            or a.act = 'events.reread' and a.detail @> jsonb_build_object('batch_id', w.batch_id) and a.actor = w.actor
            or a.act = 'backfill.revert' and w.feed = 'load:' || (a.detail ->> 'load') || ':revert'
    )

union all

select format('correction %s of tenant %s, by %s: no act of that kind names it', c.correction_no, c.tenant_id, c.actor)
from ledger.corrections as c
where not exists (
    select
    from ledger.acts as a
    where a.act = 'corrections.' || c.kind and a.actor = c.actor and a.detail @> jsonb_build_object('correction_no', c.correction_no)
)

union all

select format('act %s, %s by %s: there is no correction %s', a.act_id, a.act, a.actor, a.detail ->> 'correction_no')
from ledger.acts as a
where
    a.act in ('corrections.reverse', 'corrections.adjust', 'corrections.accept', 'corrections.refuse')
    and not exists (select from ledger.corrections as c where a.detail @> jsonb_build_object('correction_no', c.correction_no))

union all

select
    format(
        'correction %s of tenant %s wrote %s entries, the ledger has %s', c.correction_no, c.tenant_id, c.entry_count,
        coalesce(w.entry_count, 0)
    )
from ledger.corrections as c
left join corrected as w on w.event_key = c.event_key
where
    c.entry_count <> coalesce(w.entry_count, 0)
    and c.batch_id not in (select d.batch_id from ledger.batch_digests as d where d.posting_period = any({gone}))

union all

select format('load %s was %s, and no act says so', l.load_id, s.act)
from ledger.loads as l
cross join lateral (
    values
        ('backfill.commit', l.commit_started_at is not null),
        ('backfill.revert', l.state in ('reverting', 'reverted'))
) as s (act, is_due)
where
    s.is_due
    and not exists (select from ledger.acts as a where a.act = s.act and a.detail @> jsonb_build_object('load', l.load_id))

union all

select format('dead letter %s was resolved by %s, and no act says so', d.dead_letter_id, d.resolved_by)
from ledger.dead_letters as d
where
    d.resolved_by is not null
    and not exists (
        select
        from ledger.acts as a
        where starts_with(a.act, 'dead_letters.') and a.actor = d.resolved_by and a.detail -> 'letters' ? d.dead_letter_id::text
    )
    and not exists (
        select
        from ledger.corrections as c
        where c.dead_letter_id = d.dead_letter_id and c.actor = d.resolved_by
    )

union all

select format('%s: its rows left the ledger by %s, and no act says so', to_char(r.posting_period, 'YYYY-MM'), r.actor)
from ledger.retirements as r
where
    r.step in ('retire', 'restore')
    and not exists (
        select
        from ledger.acts as a
        where
            a.act = 'retention.' || r.step
            and a.actor = r.actor
            and a.detail @> jsonb_build_object('month', to_char(r.posting_period, 'YYYY-MM'))
    )

order by 1
