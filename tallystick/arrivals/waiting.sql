-- What waits for a person now, whenever it arrived, and whether whoever watches is awake.
with letters as (
    select
        count(*) filter (
            where owner is null and first_at < {ends_at} - interval '{letter_unowned_hours} hours'
        ) as unowned,
        coalesce(extract(epoch from {ends_at} - min(first_at)) / 3600, 0) as oldest_hours
    from ledger.dead_letters
    where resolved_at is null
),

numbers as (
    select coalesce(sum(number_count), 0) as lost
    from ledger.missing_sequences
    where not is_set_aside and accepted_at is null and noted_at < {ends_at} - interval '{gap_minutes} minutes'
),

-- Silence is trouble too: three pauses without a beat.
canary as (
    select
        case
            when count(*) = 0 then 0
            when count(*) filter (where failure is not null) = 2 then 2
            when {ends_at} > max(sent_at) + make_interval(secs => 3 * max(every_seconds)::double precision + 60)
                and max(every_seconds) > 0 then 2
            when count(*) filter (where age = 1 and (failure is not null or budget_seconds > {canary_seconds})) > 0 then 1
            else 0
        end as trouble
    from (
        select
            c.*,
            row_number() over (order by c.beat_id desc) as age
        from ledger.canary_beats as c
        order by c.beat_id desc
        limit 2
    ) as c
),

-- The month in hand and the next one of each tenant, by its own clock.
months as (
    select
        t.tenant_id,
        (date_trunc('month', clock_timestamp() at time zone v.time_zone) + make_interval(months => n))::date as month,
        date_trunc('month', t.starts_at at time zone v.time_zone)::date as first_month
    from ledger.tenants as t
    cross join lateral (
        select time_zone
        from ledger.tenant_versions as v
        where v.tenant_id = t.tenant_id
        order by v.effective_at <= clock_timestamp() desc, abs(extract(epoch from v.effective_at - clock_timestamp()))
        limit 1
    ) as v
    cross join generate_series(0, 1) as n
),

unprepared as (
    select
        count(*) filter (where p.tenant_id is null) as periods,
        count(distinct m.month) filter (
            where to_regclass('ledger.entries_' || to_char(m.month, 'YYYY_MM')) is null
        ) as partitions
    from months as m
    left join ledger.periods as p on p.tenant_id = m.tenant_id and p.posting_period = m.month
    where m.month >= m.first_month
),

proofs as (
    select
        coalesce(sum(p.difference_count), 0) as differences,
        count(*) filter (
            where p.ended_at
                < {ends_at} - make_interval(secs => 3 * coalesce(p.every_seconds, 86400)::double precision + 60)
        ) as missed
    from (values ('standing'), ('whole')) as k (kind)
    cross join lateral (
        select q.*
        from ledger.proofs as q
        where q.kind = k.kind
        order by q.proof_id desc
        limit 1
    ) as p
)

select
    'all' as kind,
    '' as subject,
    null::bigint as nothing,
    letters.unowned::double precision as unowned_letters,
    letters.oldest_hours::double precision as oldest_letter_hours,
    numbers.lost::double precision as lost_numbers,
    canary.trouble::double precision as canary_trouble,
    (unprepared.periods + unprepared.partitions)::double precision as months_missing,
    proofs.differences::double precision as proof_differences,
    proofs.missed::double precision as proofs_missed
from letters
cross join numbers
cross join canary
cross join unprepared
cross join proofs
