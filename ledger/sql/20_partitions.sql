-- Make the partitions of a month if they are missing. `like` and `attach` do not wait for a COPY that is under way, which
-- `create table ... partition of` would, with everybody else queueing behind it.
create or replace function ledger.make_partitions(month date) returns integer
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    first_day constant date := date_trunc('month', month)::date;
    suffix constant text := to_char(first_day, 'YYYY_MM');
    -- The month's last instant anywhere: local midnight in the zone twelve hours behind UTC.
    last_instant constant timestamptz := (first_day + interval '1 month' + interval '12 hours') at time zone 'UTC';
    made integer := 0;
begin
    -- A month whose rows have left the ledger takes none again.
    if to_regclass(format('ledger.entries_%s', suffix)) is null and not ledger.is_retired(first_day) then
        execute format('create table ledger.entries_%s (like ledger.entries including all)', suffix);
        execute format(
            'alter table ledger.entries_%s add constraint occurred_before_the_month_ends check (occurred_at < %L)',
            suffix, last_instant
        );
        execute format(
            'create trigger refuse_truncate before truncate on ledger.entries_%s'
            ' for each statement execute function ledger.refuse_change()',
            suffix
        );
        execute format(
            'create trigger refuse_partition before insert on ledger.entries_%s'
            ' for each statement execute function ledger.refuse_partition()',
            suffix
        );
        execute format('alter table ledger.entries attach partition ledger.entries_%s for values in (%L)', suffix, first_day);
        made := made + 1;
    end if;
    if to_regclass(format('ledger.raw_usage_%s', suffix)) is null then
        execute format('create table ledger.raw_usage_%s (like ledger.raw_usage including all)', suffix);
        execute format(
            'create trigger refuse_truncate before truncate on ledger.raw_usage_%s'
            ' for each statement execute function ledger.refuse_change()',
            suffix
        );
        execute format('alter table ledger.raw_usage attach partition ledger.raw_usage_%s for values in (%L)', suffix, first_day);
        made := made + 1;
    end if;
    return made;
end
$$;
