-- The next three are bound to what they call when they are made. They set no search path, so that Postgres can inline them:
-- they run for each group of rows that moves a window.

-- The latest day, not after `day`, that is the anchor's day of the month, cut to the month's length: 31 is the 28th in February.
create or replace function quotas.anchored_month(anchor_day integer, day date) returns date
language sql
immutable
parallel safe
return (
    select max(start)
    from (
        select
            (month + (least(anchor_day, extract(day from month + interval '1 month' - interval '1 day')::integer) - 1) * interval '1 day')::date
            as start
        from (
            select date_trunc('month', day::timestamp) as month
            union all
            select date_trunc('month', day::timestamp) - interval '1 month'
        ) as months
    ) as starts
    where start <= day
);

-- The one rule for which window a day belongs to: reservations, the trigger and the rebuild all ask it.
-- Days are local days of the tenant, so that a window turns at local midnight whatever the clocks do.
create or replace function quotas.window_start(kind text, length integer, anchor date, day date) returns date
language sql
immutable
parallel safe
return case kind
    when 'day' then day
    when 'days' then anchor + floor((day - anchor)::numeric / length)::integer * length
    when 'week' then date_trunc('week', day::timestamp)::date
    when 'month' then date_trunc('month', day::timestamp)::date
    when 'anchored_month' then quotas.anchored_month(extract(day from anchor)::integer, day)
    when 'lifetime' then date '0001-01-01'
end;

create or replace function quotas.group_key(
    group_by text[],
    tenant_id text,
    provider_account text,
    feature text,
    model text,
    route text,
    lane text,
    api_key_id text,
    subject_id uuid,
    currency text
) returns text
language sql
immutable
parallel safe
return case
    when group_by = '{}' then ''
    else (
        select
            jsonb_agg(
                case g.name
                    when 'tenant_id' then tenant_id
                    when 'provider_account' then provider_account
                    when 'feature' then feature
                    when 'model' then model
                    when 'route' then route
                    when 'lane' then lane
                    when 'api_key_id' then api_key_id
                    when 'subject_id' then subject_id::text
                    when 'currency' then currency
                end
                order by g.place
            )::text
        from unnest(group_by) with ordinality as g (name, place)
    )
end;

-- The limit of a window: its group's own where it has one, which may be none at all, else the budget's. To be asked with
-- the row of quotas.group_limits, if there is one, so that Postgres inlines it.
create or replace function quotas.limit_of(
    budgets_limit numeric, own_budget_id text, own_limit numeric
) returns numeric
language sql
immutable
parallel safe
return case when own_budget_id is null then budgets_limit else own_limit end;

-- Moves the budgets with the rows that are inserted, in the same transaction, whoever inserts. Each window is written
-- once, in the order of its key, so that two writers wait for each other and never in a circle.
create or replace function quotas.move_windows() returns trigger
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    with moved as materialized (
        {movements of new rows}
    ),

    written as (
        insert into quotas.windows as w
            (budget_id, group_key, window_start, tenant_id, currency, posted, unpriced_count, unpriced_tokens, last_batch_id)
        select
            m.budget_id, m.group_key, m.window_start, m.tenant_id, m.currency, m.posted, m.unpriced_count, m.unpriced_tokens,
            m.batch_id
        from moved as m
        order by m.budget_id, m.group_key, m.window_start
        on conflict (budget_id, group_key, window_start) do update set
            posted = w.posted + excluded.posted,
            unpriced_count = w.unpriced_count + excluded.unpriced_count,
            unpriced_tokens = w.unpriced_tokens + excluded.unpriced_tokens,
            last_batch_id = excluded.last_batch_id
        returning w.budget_id, w.group_key, w.window_start, w.posted, w.held, w.unpriced_count
    ),

    limited as (
        select
            w.budget_id,
            w.group_key,
            w.window_start,
            m.batch_id,
            m.cause,
            b.hardness,
            b.thresholds,
            quotas.limit_of(b.limit_amount, g.budget_id, g.limit_amount) as limit_amount,
            w.posted + w.held as taken,
            w.posted + w.held - m.posted as taken_before,
            w.unpriced_count > 0 as has_unpriced
        from written as w
        join moved as m using (budget_id, group_key, window_start)
        join quotas.budgets as b using (budget_id)
        left join quotas.group_limits as g on g.budget_id = w.budget_id and g.group_key = w.group_key
        where quotas.limit_of(b.limit_amount, g.budget_id, g.limit_amount) is not null
    ),

    noted as (
        insert into quotas.threshold_notes (budget_id, group_key, window_start, threshold, batch_id)
        select l.budget_id, l.group_key, l.window_start, t.threshold, l.batch_id
        from limited as l
        -- The whole limit is a threshold of every budget that has one: a window that is exhausted always says so.
        cross join unnest(l.thresholds || 1::numeric) as t (threshold)
        where
            (l.taken >= t.threshold * l.limit_amount and l.taken_before < t.threshold * l.limit_amount)
            -- A limit of zero is reached from the start, and noted once something touches it.
            or (l.limit_amount = 0 and (l.taken > 0 or l.has_unpriced))
        on conflict do nothing
    )

    insert into quotas.excess (budget_id, group_key, window_start, batch_id, change, cause)
    select
        l.budget_id,
        l.group_key,
        l.window_start,
        l.batch_id,
        greatest(l.taken - l.limit_amount, 0) - greatest(l.taken_before - l.limit_amount, 0),
        l.cause
    from limited as l
    where
        l.hardness = 'hard'
        and greatest(l.taken - l.limit_amount, 0) <> greatest(l.taken_before - l.limit_amount, 0);
    return null;
end
$$;

create or replace trigger z_move
after insert on ledger.entries
referencing new table as new_rows
for each statement execute function quotas.move_windows();

create or replace trigger refuse_change
before update or delete on quotas.budget_versions
for each row execute function ledger.refuse_change();

create or replace trigger refuse_truncate
before truncate on quotas.budget_versions
for each statement execute function ledger.refuse_change();

-- The same movements, folded from the ledger: fills the windows of a new budget, and is what `verify` compares with. Null
-- folds all budgets in force, and reads the ledger once for all of them.
create or replace function quotas.fold_windows(wanted text)
returns table (
    budget_id text,
    group_key text,
    window_start date,
    tenant_id text,
    currency text,
    posted numeric,
    unpriced_count bigint,
    unpriced_tokens bigint,
    batch_id bigint,
    cause text
)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    {movements of the ledger}
$$;

grant usage on schema quotas to tallystick_writer, tallystick_api, tallystick_operator, tallystick_analyst,
    tallystick_billing, tallystick_rollup;
grant select on all tables in schema quotas to tallystick_api, tallystick_operator, tallystick_analyst, tallystick_billing,
    tallystick_rollup;
-- Scope, unit, book and window of a budget never change: nobody has the right to.
revoke update on quotas.budgets from tallystick_operator;
grant insert on quotas.budgets to tallystick_operator;
grant update (
    limit_amount, hardness, interactive_reserve, thresholds, unknown_price, missing_estimate, missing_estimate_amount, steps,
    when_away, away_amount, description, ended_at
) on quotas.budgets to tallystick_operator;
grant insert, update, delete on quotas.group_limits to tallystick_operator;
grant insert on quotas.budget_versions to tallystick_operator;
-- A new budget's windows are folded from the ledger; after that only the trigger moves them.
grant insert on quotas.windows to tallystick_operator;
revoke update on quotas.windows from tallystick_operator;
grant insert on quotas.excess, quotas.threshold_notes to tallystick_operator;
grant usage on all sequences in schema quotas to tallystick_operator;
revoke all on function quotas.fold_windows(text) from public;
grant execute on function quotas.fold_windows(text) to tallystick_operator;
