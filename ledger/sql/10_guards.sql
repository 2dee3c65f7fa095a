-- Rows of the ledger are added, never changed. Row-level triggers reach every partition, which statement-level ones do not.
create or replace function ledger.refuse_change() returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception using
        errcode = 'TS002',
        message = format('%s.%s is append-only: %s is refused', tg_table_schema, tg_table_name, lower(tg_op)),
        hint = 'Corrections are new entries that name what they correct.';
end
$$;

-- The tables of facts, a line each. Of a partitioned one the row trigger reaches every leaf, present and to come, since leaves
-- inherit it; truncating is refused per statement, which they do not inherit: `make_partitions` gives each new leaf its own.
do $$
declare
    fact text;
    leaf regclass;
begin
    foreach fact in array array[
        'acts',
        'batch_digests',
        'batches',
        'cards',
        'corrections',
        'differences',
        'entries',
        'event_keys',
        'exchange_rates',
        'node_rates',
        'node_windows',
        'rate_sets',
        'rates',
        'raw_usage',
        'retirements'
    ] loop
        execute format(
            'create or replace trigger refuse_change before update or delete on ledger.%I'
            ' for each row execute function ledger.refuse_change()',
            fact
        );
        for leaf in
            select format('ledger.%I', fact)::regclass
            union all
            select i.inhrelid::regclass from pg_inherits as i where i.inhparent = format('ledger.%I', fact)::regclass
        loop
            execute format(
                'create or replace trigger refuse_truncate before truncate on %s'
                ' for each statement execute function ledger.refuse_change()',
                leaf
            );
        end loop;
    end loop;
end
$$;

-- No row enters a closed period, whoever inserts it. The name puts this before the budgets' trigger.
create or replace function ledger.refuse_closed_period() returns trigger
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    refused record;
begin
    -- `post` holds it already. Whoever inserts by hand does not, and would pass while a close commits: the next statement
    -- sees what the close has done, and no close comes before this row is committed.
    perform pg_advisory_xact_lock_shared(7411001);
    select n.tenant_id, n.posting_period, p.state
    into refused
    from (select distinct tenant_id, posting_period from new_rows) as n
    left join ledger.periods as p using (tenant_id, posting_period)
    where p.state is distinct from 'open'
    limit 1;
    if found then
        raise exception using
            errcode = 'TS001',
            message = format(
                'period %s of tenant %s is %s: no entry may enter it',
                to_char(refused.posting_period, 'YYYY-MM'), refused.tenant_id, coalesce(refused.state, 'unknown')
            );
    end if;
    return null;
end
$$;

create or replace trigger a_guard
after insert on ledger.entries
referencing new table as new_rows
for each statement execute function ledger.refuse_closed_period();

-- Rows go in through ledger.entries, whose triggers guard closed periods and move budgets: a statement that names a
-- partition would pass both.
create or replace function ledger.refuse_partition() returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception using
        errcode = 'TS002',
        message = format('%s.%s takes rows through ledger.entries only', tg_table_schema, tg_table_name);
end
$$;

do $$
declare
    leaf regclass;
begin
    -- Partitions of an earlier version have none.
    for leaf in
        select i.inhrelid::regclass
        from pg_inherits as i
        where
            i.inhparent = 'ledger.entries'::regclass
            and not exists (select from pg_trigger as t where t.tgrelid = i.inhrelid and t.tgname = 'refuse_partition')
    loop
        execute format(
            'create trigger refuse_partition before insert on %s'
            ' for each statement execute function ledger.refuse_partition()',
            leaf
        );
    end loop;
end
$$;
