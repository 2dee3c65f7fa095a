-- Close a month's partition once every tenant has closed it: the database then refuses its rows without asking anybody, also
-- those that name no period. Returns whether it is closed now. Waits for no lock longer than the caller's lock_timeout.
create or replace function ledger.close_partition(month date) returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    first_day constant date := date_trunc('month', month)::date;
    leaf constant text := 'entries_' || to_char(first_day, 'YYYY_MM');
begin
    -- Nobody opens a period of it, or adds a tenant that has one, meanwhile.
    perform pg_advisory_xact_lock_shared(7411001);
    if
        to_regclass('ledger.' || leaf) is null
        or not exists (select from ledger.periods as p where p.posting_period = first_day)
        or exists (select from ledger.periods as p where p.posting_period = first_day and p.state <> 'closed')
    then
        return false;
    end if;
    if not ledger.is_partition_closed(first_day) then
        execute format('alter table ledger.%I add constraint month_is_closed check (false) not valid', leaf);
    end if;
    return true;
end
$$;

-- Let a month's partition take rows again; returns whether it had been closed.
create or replace function ledger.open_partition(month date) returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if not ledger.is_partition_closed(month) then
        return false;
    end if;
    execute format('alter table ledger.entries_%s drop constraint month_is_closed', to_char(month, 'YYYY_MM'));
    return true;
end
$$;

create or replace function ledger.is_partition_closed(month date) returns boolean
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
    select exists (
        select
        from pg_constraint as k
        where k.conrelid = to_regclass('ledger.entries_' || to_char(month, 'YYYY_MM')) and k.conname = 'month_is_closed'
    )
$$;

-- A closed period stays as it was closed. Whoever closes or opens it, the count of closes and the time are right; what was
-- made of it, such as an invoice, keeps it closed.
create or replace function ledger.keep_closed_period() returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    kept text;
begin
    if tg_op = 'DELETE' then
        if old.state = 'closed' or old.close_number > 0 then
            raise exception using
                errcode = 'TS003',
                message = format('period %s of tenant %s was closed: it cannot be deleted',
                    to_char(old.posting_period, 'YYYY-MM'), old.tenant_id);
        end if;
        return old;
    end if;
    if new.state = 'closed' and old.state = 'open' then
        new.close_number := old.close_number + 1;
        new.closed_at := clock_timestamp();
        return new;
    end if;
    if new.close_number <> old.close_number then
        raise exception using
            errcode = 'TS003',
            message = format('period %s of tenant %s: only a close counts as one',
                to_char(old.posting_period, 'YYYY-MM'), old.tenant_id);
    end if;
    if old.state = 'closed' then
        if new.state = 'closed' then
            if new is distinct from old then
                raise exception using
                    errcode = 'TS003',
                    message = format('period %s of tenant %s is closed: it cannot be changed',
                        to_char(old.posting_period, 'YYYY-MM'), old.tenant_id);
            end if;
            return new;
        end if;
        select string_agg(what, '; ') into kept from ledger.what_depends_on(old.tenant_id, old.posting_period) as what;
        if kept is not null then
            raise exception using
                errcode = 'TS003',
                message = format('period %s of tenant %s stays closed: %s',
                    to_char(old.posting_period, 'YYYY-MM'), old.tenant_id, kept);
        end if;
        new.closed_at := null;
    end if;
    return new;
end
$$;

-- Have a month's rows left the ledger? For good once they were retired, also while they are readable again for an
-- investigation; and where a month had rows and has no partition any more.
create or replace function ledger.is_retired(month date) returns boolean
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    select
        exists (
            select
            from ledger.retirements as r
            where r.step = 'retire' and r.posting_period = date_trunc('month', month)::date
        )
        or not exists (
            select
            from pg_inherits as i
            where
                i.inhparent = 'ledger.entries'::regclass
                and i.inhrelid = to_regclass('ledger.entries_' || to_char(month, 'YYYY_MM'))
                -- One that is being detached takes nothing any more.
                and not i.inhdetachpending
        )
        and exists (select from ledger.batch_digests as d where d.posting_period = date_trunc('month', month)::date)
$$;

-- What was made of a closed month and would no longer agree with it if it were opened: one line each, for a person. A room
-- above that makes something of closed months says so in a function of this name and signature in its own schema, owned by
-- the owner of this one; it needs no entry anywhere.
create or replace function ledger.what_depends_on(of_tenant text, of_month date) returns setof text
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    room name;
begin
    if ledger.is_retired(of_month) then
        return next format('the rows of %s are no longer in the ledger', to_char(of_month, 'YYYY-MM'));
    end if;
    for room in
        select n.nspname
        from pg_proc as p
        join pg_namespace as n on n.oid = p.pronamespace
        where
            p.proname = 'what_depends_on'
            and n.nspname <> 'ledger'
            and p.proargtypes = '25 1082'::oidvector
            and p.proowner = (select proowner from pg_proc where oid = 'ledger.what_depends_on(text, date)'::regprocedure)
        order by 1
    loop
        return query execute format('select * from %I.what_depends_on($1, $2)', room) using of_tenant, of_month;
    end loop;
end
$$;

create or replace trigger keep_closed_period
before update or delete on ledger.periods
for each row execute function ledger.keep_closed_period();

-- Seals are facts: what a month came to is never changed, and outlives its rows.
create or replace trigger refuse_change
before update or delete on ledger.seals
for each row execute function ledger.refuse_change();

create or replace trigger refuse_change
before update or delete on ledger.seal_lines
for each row execute function ledger.refuse_change();

create or replace trigger refuse_truncate
before truncate on ledger.seals
for each statement execute function ledger.refuse_change();

create or replace trigger refuse_truncate
before truncate on ledger.seal_lines
for each statement execute function ledger.refuse_change();

-- What a tenant's month comes to, by local day and the dimensions of the marts: the text that seals are made with. The
-- measures are those of the mart `int_entries_measured`; a test holds the two lists together.
create or replace function ledger.period_totals(of_tenant text, of_month date)
returns table (
    local_date date,
    feature text,
    language text,
    provider text,
    model text,
    route text,
    lane text,
    cost_currency text,
    charge_currency text,
    entry_count bigint,
    evidence_count bigint,
    request_count bigint,
    estimated_count bigint,
    usage_missing_count bigint,
    uncached_input_tokens bigint,
    cache_read_tokens bigint,
    cache_write_5m_tokens bigint,
    cache_write_1h_tokens bigint,
    cache_write_other_tokens bigint,
    visible_output_tokens bigint,
    reasoning_tokens bigint,
    input_tokens bigint,
    output_tokens bigint,
    avoided_tokens bigint,
    cost_amount numeric,
    cost_unpriced_count bigint,
    cost_unpriced_tokens bigint,
    charge_amount numeric,
    charge_unpriced_count bigint,
    charge_unpriced_tokens bigint
)
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
    select
        e.local_date,
        e.feature,
        e.language,
        e.provider,
        e.model,
        e.route,
        e.lane,
        e.cost_currency::text,
        e.charge_currency::text,
        count(*) filter (where e.kind <> 'evidence'),
        count(*) filter (where e.kind = 'evidence'),
        sum(e.request_count)::bigint,
        coalesce(sum(e.request_count) filter (where e.basis = 'estimated'), 0)::bigint,
        coalesce(sum(e.request_count) filter (where 'usage_missing' = any (e.usage_flags)), 0)::bigint,
        coalesce(sum(e.uncached_input_tokens), 0)::bigint,
        coalesce(sum(e.cache_read_tokens), 0)::bigint,
        coalesce(sum(e.cache_write_5m_tokens), 0)::bigint,
        coalesce(sum(e.cache_write_1h_tokens), 0)::bigint,
        coalesce(sum(e.cache_write_other_tokens), 0)::bigint,
        coalesce(sum(e.visible_output_tokens), 0)::bigint,
        coalesce(sum(e.reasoning_tokens), 0)::bigint,
        coalesce(sum(e.input_tokens), 0)::bigint,
        coalesce(sum(e.output_tokens), 0)::bigint,
        coalesce(sum(e.avoided_tokens), 0)::bigint,
        coalesce(sum(e.cost_amount), 0),
        coalesce(sum(e.request_count) filter (where e.cost_amount is null and e.kind <> 'evidence'), 0)::bigint,
        coalesce(sum(e.input_tokens + e.output_tokens) filter (where e.cost_amount is null and e.kind <> 'evidence'), 0)::bigint,
        coalesce(sum(e.charge_amount), 0),
        coalesce(sum(e.request_count) filter (where e.charge_amount is null and e.kind <> 'evidence'), 0)::bigint,
        coalesce(sum(e.input_tokens + e.output_tokens) filter (where e.charge_amount is null and e.kind <> 'evidence'), 0)::bigint
    from ledger.entries as e
    where e.posting_period = of_month and e.tenant_id = of_tenant
    group by 1, 2, 3, 4, 5, 6, 7, 8, 9
$$;

-- Where a zone changes and the clocks go back, the hours that they repeat would carry the last day of the month before, inside
-- the new month. They belong to the day on which the change takes effect, by the clocks until then; so local days never go
-- back, and a month is exactly its days.
create or replace function ledger.bound_days() returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    select greatest((new.effective_at at time zone v.time_zone)::date, v.first_day)
    into new.first_day
    from ledger.tenant_versions as v
    where v.tenant_id = new.tenant_id and v.effective_at < new.effective_at
    order by v.effective_at desc
    limit 1;
    return new;
end
$$;

create or replace trigger bound_days
before insert on ledger.tenant_versions
for each row execute function ledger.bound_days();
