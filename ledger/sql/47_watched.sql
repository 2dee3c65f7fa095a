-- What somebody should be woken for, as numbers that name no tenant, sender or key: for whoever watches the system without
-- reading the ledger. With the owner's rights, so that nobody needs a right on dead letters for it.
create or replace function ledger.watched() returns table (name text, label text, value double precision)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    select 'dead_letters_open', d.reason, count(*)::double precision
    from ledger.dead_letters as d
    where d.resolved_at is null
    group by d.reason
    union all
    select 'dead_letters_oldest_seconds', null, coalesce(extract(epoch from clock_timestamp() - min(d.first_at)), 0)::double precision
    from ledger.dead_letters as d
    where d.resolved_at is null
    union all
    -- In their first minutes they may be on another road still, as `gaps list` says.
    select 'missing_numbers', null, coalesce(sum(m.number_count), 0)::double precision
    from ledger.missing_sequences as m
    where m.accepted_at is null and not m.is_set_aside and m.noted_at < clock_timestamp() - interval '15 minutes'
    union all
    select c.name, null, c.value
    from (
        select b.sent_at, b.budget_seconds, b.failure
        from ledger.canary_beats as b
        order by b.beat_id desc
        limit 1
    ) as newest
    cross join lateral (
        values
            ('canary_age_seconds', extract(epoch from clock_timestamp() - newest.sent_at)::double precision),
            ('canary_seconds', newest.budget_seconds::double precision),
            ('canary_failed', (newest.failure is not null)::integer::double precision)
    ) as c (name, value)
    where c.value is not null
    union all
    select v.name, p.kind, v.value
    from (values ('standing'), ('whole')) as k (kind)
    cross join lateral (
        select q.kind, q.difference_count, q.ended_at
        from ledger.proofs as q
        where q.kind = k.kind
        order by q.proof_id desc
        limit 1
    ) as p
    cross join lateral (
        values
            ('proof_differences', p.difference_count::double precision),
            ('proof_age_seconds', extract(epoch from clock_timestamp() - p.ended_at)::double precision)
    ) as v (name, value)
    union all
    select v.name, v.label, v.value
    from (
        select c.*
        from ledger.check_runs as c
        order by c.run_id desc
        limit 1
    ) as r
    cross join lateral (
        values
            ('checks', 'passed', r.passed_count::double precision),
            ('checks', 'warned', r.warned_count::double precision),
            ('checks', 'failed', r.failed_count::double precision),
            ('checks', 'unknown', r.unknown_count::double precision),
            ('checks', 'broken', r.broken_count::double precision),
            ('checks_age_seconds', null, extract(epoch from clock_timestamp() - r.ended_at)::double precision)
    ) as v (name, label, value)
$$;
