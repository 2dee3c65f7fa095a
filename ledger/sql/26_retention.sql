-- Which batches of a month are not, in a table of its rows, what was posted: the digest of their COPY lines differs, or one is
-- missing or one too many. Made anew here, from the columns in their order, so that no caller's word is taken for it.
create or replace function ledger.differing_batches(month date, rows_of regclass) returns setof bigint
language plpgsql
stable
set search_path = pg_catalog, pg_temp
set timezone = 'UTC'
set datestyle = 'ISO'
set intervalstyle = 'iso_8601'
as $$
declare
    first_day constant date := date_trunc('month', month)::date;
    -- What COPY escapes, in the order in which it must be replaced: the escape itself first. Version 15 knows no E'\v'.
    escaped constant text := $e$replace(replace(replace(replace(replace(replace(replace(%1$s, E'\\', E'\\\\'),
        E'\t', E'\\t'), E'\n', E'\\n'), E'\r', E'\\r'), E'\b', E'\\b'), E'\f', E'\\f'), E'\x0b', E'\\v')$e$;
    plain text;
    careful text;
    texts text;
begin
    select
        string_agg(format('coalesce(%s, E''\\N'')', c.as_text), ', ' order by c.attnum),
        string_agg(
            format('coalesce(%s, E''\\N'')', case when c.is_free then format(escaped, c.as_text) else c.as_text end),
            ', ' order by c.attnum
        ),
        string_agg(c.as_text, ', ' order by c.attnum) filter (where c.is_free)
    into plain, careful, texts
    from (
        select
            a.attnum,
            a.atttypid in ('text'::regtype, 'jsonb'::regtype, 'text[]'::regtype) as is_free,
            case
                when a.atttypid = 'boolean'::regtype then format('case when e.%1$I then ''t'' when not e.%1$I then ''f'' end', a.attname)
                else format('e.%I::text', a.attname)
            end as as_text
        from pg_attribute as a
        where a.attrelid = 'ledger.entries'::regclass and a.attnum > 0 and not a.attisdropped
    ) as c;
    return query execute format(
        $q$
        with found as (
            select
                e.batch_id,
                sha256(convert_to(string_agg(
                    -- Few rows hold anything that has to be escaped.
                    case when concat(%1$s) ~ E'[\\\\\\t\\n\\r\\b\\f\\v]' then concat_ws(E'\t', %2$s) else concat_ws(E'\t', %3$s) end
                    || E'\n',
                    '' order by e.entry_id
                ), 'UTF8')) as digest
            from %4$s as e
            where e.posting_period = %5$L
            group by e.batch_id
        ),

        stated as (
            select d.batch_id, d.digest from ledger.batch_digests as d where d.posting_period = %5$L
        )

        select batch_id
        from found as f
        full join stated as s using (batch_id)
        where f.digest is distinct from s.digest
        order by 1
        $q$,
        texts, careful, plain, rows_of, first_day
    );
end
$$;

create or replace function ledger.differing_batches(month date) returns setof bigint
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    select ledger.differing_batches(month, 'ledger.entries'::regclass)
$$;

-- Take a month's rows out of the ledger: detach its partition, and keep it as a table of the owner's or drop it. Refuses unless
-- every tenant's period of it is closed and sealed, an export of all its rows stands in `retirements`, and no earlier month has
-- rows left: what stands for a request is folded from its first row's month on. Waits two seconds for the readers of the
-- ledger, behind which everybody queues meanwhile; the caller tries again.
create or replace function ledger.retire_partition(month date, keep boolean, by_whom text, why text) returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
as $$
declare
    first_day constant date := date_trunc('month', month)::date;
    leaf constant text := 'entries_' || to_char(first_day, 'YYYY_MM');
    named constant text := to_char(first_day, 'YYYY-MM');
    refused text;
    stated bigint;
    exported bigint;
    standing bigint;
begin
    perform pg_advisory_xact_lock(7411001);
    if not exists (
        select from pg_inherits where inhparent = 'ledger.entries'::regclass and inhrelid = to_regclass('ledger.' || leaf)
    ) then
        raise exception using errcode = 'TS004', message = format('the rows of %s are not in the ledger', named);
    end if;
    select string_agg(p.tenant_id, ', ' order by p.tenant_id)
    into refused
    from ledger.periods as p
    where
        p.posting_period = first_day
        and (
            p.state <> 'closed'
            or not exists (
                select
                from ledger.seals as s
                where
                    s.tenant_id = p.tenant_id
                    and s.posting_period = p.posting_period
                    and s.close_number = p.close_number
            )
        );
    if refused is not null then
        raise exception using errcode = 'TS004', message = format('%s is not closed and sealed for %s', named, refused);
    end if;
    select string_agg(distinct to_char(d.posting_period, 'YYYY-MM'), ', ')
    into refused
    from ledger.batch_digests as d
    where d.posting_period < first_day and not ledger.is_retired(d.posting_period);
    if refused is not null then
        raise exception using errcode = 'TS004', message = format('%s cannot go before %s', named, refused);
    end if;
    select coalesce(sum(d.row_count), 0) into stated from ledger.batch_digests as d where d.posting_period = first_day;
    execute format('select count(*) from ledger.%I', leaf) into standing;
    select r.row_count
    into exported
    from ledger.retirements as r
    where r.posting_period = first_day and r.step = 'export'
    order by r.retirement_id desc
    limit 1;
    if exported is distinct from stated or standing <> stated then
        raise exception using
            errcode = 'TS004',
            message = format(
                '%s has %s rows, its digests say %s and its export %s', named, standing, stated, coalesce(exported::text, 'is missing')
            );
    end if;
    -- A month that was opened again took corrections of what had meanwhile been posted in a later one.
    execute format(
        'select string_agg(distinct to_char(r.posting_period, ''YYYY-MM''), '', '') from ledger.%I as e'
        ' join ledger.requests as r on r.key = e.request_key'
        ' where e.corrects_entry_id is not null and r.posting_period > %L', leaf, first_day
    ) into refused;
    if refused is not null then
        raise exception using
            errcode = 'TS004', message = format('%s holds corrections of requests of %s, which are in the ledger', named, refused);
    end if;
    execute format('alter table ledger.entries detach partition ledger.%I', leaf);
    if keep then
        -- A detached partition loses the triggers that it had from the ledger; what is kept stays as it is.
        execute format(
            'create trigger keep_rows before insert or update or delete on ledger.%I for each row execute function ledger.refuse_change()', leaf
        );
    else
        execute format('drop table ledger.%I', leaf);
    end if;
    insert into ledger.retirements (posting_period, step, rows_are, row_count, actor, reason)
    values (first_day, 'retire', case when keep then 'kept' else 'dropped' end, stated, by_whom, why);
end
$$;

-- Begin to make a retired month readable again. Returns the table to copy its rows into; null where they were kept beside the
-- ledger. What an earlier attempt left is dropped.
create or replace function ledger.begin_restore(month date) returns text
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    first_day constant date := date_trunc('month', month)::date;
    leaf constant text := 'entries_' || to_char(first_day, 'YYYY_MM');
    restored constant text := 'restored_' || to_char(first_day, 'YYYY_MM');
begin
    perform pg_advisory_xact_lock(7411001);
    if not ledger.is_retired(first_day) then
        raise exception using errcode = 'TS004', message = format('%s is not retired', to_char(first_day, 'YYYY-MM'));
    end if;
    if exists (
        select from pg_inherits where inhparent = 'ledger.entries'::regclass and inhrelid = to_regclass('ledger.' || leaf)
    ) then
        raise exception using errcode = 'TS004', message = format('the rows of %s are in the ledger', to_char(first_day, 'YYYY-MM'));
    end if;
    execute format('drop table if exists ledger.%I', restored);
    if to_regclass('ledger.' || leaf) is not null then
        return null;
    end if;
    execute format('create table ledger.%I (like ledger.entries including all)', restored);
    execute format('grant insert on ledger.%I to tallystick_operator', restored);
    return 'ledger.' || restored;
end
$$;

-- Attach a retired month's rows, kept or copied back, if every batch of them is what was posted. No budget moves and no period
-- opens: the month stays retired.
create or replace function ledger.finish_restore(month date, by_whom text, why text) returns bigint
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
as $$
declare
    first_day constant date := date_trunc('month', month)::date;
    leaf constant text := 'entries_' || to_char(first_day, 'YYYY_MM');
    restored constant text := 'restored_' || to_char(first_day, 'YYYY_MM');
    differing bigint;
    stated bigint;
begin
    perform pg_advisory_xact_lock(7411001);
    if not ledger.is_retired(first_day) then
        raise exception using errcode = 'TS004', message = format('%s is not retired', to_char(first_day, 'YYYY-MM'));
    end if;
    if to_regclass('ledger.' || restored) is not null and to_regclass('ledger.' || leaf) is null then
        execute format('revoke all on ledger.%I from tallystick_operator', restored);
        execute format('alter table ledger.%I rename to %I', restored, leaf);
        execute format(
            'alter table ledger.%I add constraint occurred_before_the_month_ends check (occurred_at < %L)',
            leaf, (first_day + interval '1 month' + interval '12 hours') at time zone 'UTC'
        );
        execute format('alter table ledger.%I add constraint month_is_closed check (false) not valid', leaf);
        execute format(
            'create trigger refuse_truncate before truncate on ledger.%I for each statement execute function ledger.refuse_change()', leaf
        );
        execute format(
            'create trigger refuse_partition before insert on ledger.%I for each statement execute function ledger.refuse_partition()', leaf
        );
    elsif to_regclass('ledger.' || leaf) is null then
        raise exception using errcode = 'TS004', message = format('there are no rows of %s to attach', to_char(first_day, 'YYYY-MM'));
    end if;
    execute format('lock table ledger.%I in share row exclusive mode', leaf);
    select b into differing from ledger.differing_batches(first_day, to_regclass('ledger.' || leaf)) as b limit 1;
    if found then
        raise exception using
            errcode = 'TS004',
            message = format('the rows of %s are not what was posted: batch id %s differs', to_char(first_day, 'YYYY-MM'), differing);
    end if;
    execute format('drop trigger if exists keep_rows on ledger.%I', leaf);
    execute format('alter table ledger.entries attach partition ledger.%I for values in (%L)', leaf, first_day);
    select coalesce(sum(d.row_count), 0) into stated from ledger.batch_digests as d where d.posting_period = first_day;
    insert into ledger.retirements (posting_period, step, rows_are, row_count, actor, reason)
    values (first_day, 'restore', 'attached', stated, by_whom, why);
    return stated;
end
$$;
