-- Drop the raw usage that was received before a month; returns the months that went. Never that of this month or the last one:
-- a wrong setting must not take what a mended reader would read again tomorrow.
create or replace function ledger.drop_raw_usage(first_kept date) returns setof date
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
as $$
declare
    leaf record;
begin
    for leaf in
        -- First the partitions, then what their names say: names of other relations are no months.
        with leaves as materialized (
            select c.relname
            from pg_inherits as i
            join pg_class as c on c.oid = i.inhrelid
            where i.inhparent = 'ledger.raw_usage'::regclass
        )

        select c.relname, to_date(right(c.relname, 7), 'YYYY_MM') as month
        from leaves as c
        where
            to_date(right(c.relname, 7), 'YYYY_MM')
            < least(date_trunc('month', first_kept)::date, (date_trunc('month', now() at time zone 'UTC') - interval '1 month')::date)
        order by c.relname
    loop
        execute format('drop table ledger.%I', leaf.relname);
        return next leaf.month;
    end loop;
end
$$;

-- Let go of the bytes of some dead letters: resolved before one instant, or open and last seen before another. Returns how many.
create or replace function ledger.expire_dead_letters(resolved_before timestamptz, came_before timestamptz, at_most integer)
returns integer
language sql
security definer
set search_path = pg_catalog, pg_temp
as $$
    with chosen as (
        select d.dead_letter_id
        from ledger.dead_letters as d
        where
            d.bytes is not null
            and case when d.resolved_at is not null then d.resolved_at < resolved_before else d.last_at < came_before end
        order by d.origin, d.bytes_hash
        limit at_most
        for update skip locked
    ),

    gone as (
        update ledger.dead_letters as d
        set bytes = null
        from chosen as c
        where d.dead_letter_id = c.dead_letter_id
        returning d.dead_letter_id
    )

    select count(*)::integer from gone
$$;

-- Cut the link between a tenant's user and what entries hold of them; returns the subject that is nobody's now, null where
-- there was no link.
create or replace function ledger.erase_subject(of_tenant text, of_user text) returns uuid
language sql
security definer
set search_path = pg_catalog, pg_temp
as $$
    update ledger.subjects as s
    set user_hash = null
    where s.tenant_id = of_tenant and s.user_hash = of_user
    returning s.subject_id
$$;
