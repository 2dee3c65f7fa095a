-- The next four are bound to what they call when they are made. They set no search path, so that Postgres can inline them:
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

-- The first instant after `since` that is on a later day than `day` in the zone: when day windows turn. Where midnight comes twice it is
-- the first of the two, and Postgres alone would take the second; where there is none, the day begins after it.
create or replace function quotas.day_ends(day date, time_zone text, since timestamptz) returns timestamptz
language sql
stable
parallel safe
return (
    select
        case
            when ((m.at - interval '1 microsecond') at time zone time_zone)::date <= day then m.at
            else
                coalesce(
                    (
                        select min(q.at)
                        from generate_series(m.at - interval '3 hours', m.at, interval '15 minutes') as q (at)
                        where (q.at at time zone time_zone)::date > day and q.at > since
                    ),
                    m.at
                )
        end
    from (select (day + 1)::timestamp at time zone time_zone as at) as m
);

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

-- What is still held of one budget for a reservation: nothing once it is closed, and while it is open what was promised
-- less what its entries have posted there.
create or replace function quotas.hold_of(state text, reserved numeric, stated numeric, posted_under numeric) returns numeric
language sql
immutable
parallel safe
return case
    when state in ('held', 'awaiting_entry') then greatest(coalesce(stated, reserved) - posted_under, 0)
    else 0
end;

-- Writes down what entries have posted under reservations, and which of them they closed. Apart from the statement that found it
-- out: that one must not go row by row, and this one must, or each batch would read all reservations that there are.
create or replace function quotas.draw_holds(
    tenants text[], ids text[], states text[], unders text[], batch_ids bigint[]
) returns void
language sql
set search_path = pg_catalog, pg_temp
set enable_nestloop = on
set enable_hashjoin = off
set enable_mergejoin = off
set enable_seqscan = off
as $$
    update quotas.reservations as r
    set
        state = d.state,
        ended_at = case when d.state <> r.state then coalesce(r.ended_at, clock_timestamp()) else r.ended_at end,
        posted_under = d.posted_under::numeric[],
        first_batch_id = coalesce(r.first_batch_id, d.batch_id)
    from unnest(tenants, ids, states, unders, batch_ids) as d (tenant_id, reservation_id, state, posted_under, batch_id)
    where r.tenant_id = d.tenant_id and r.reservation_id = d.reservation_id
$$;

-- What a correction gives back to a prepaid tenant raises nothing by itself: it may have been paid by a grant that is gone since, or by
-- none. It is taken off the limit from the beginning of time on, and the limit is due to be set anew, which says what there is.
-- After the windows: who decides reads the version again once it has their locks.
create or replace function quotas.withhold(budget_ids text[], amounts numeric[]) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if budget_ids is not null then
        insert into quotas.turns as t (budget_id, at, lapses)
        select g.budget_id, 'epoch', g.amount
        from unnest(budget_ids, amounts) as g (budget_id, amount)
        order by g.budget_id
        on conflict (budget_id, at) do update set lapses = t.lapses + excluded.lapses;
        update ledger.versions set budgets = budgets + 1;
    end if;
end
$$;

-- Has what the transaction has written so far on the disk before it takes windows: its commit, for which all who ask for them wait, then
-- has little left to write. Nothing hangs on it; before Postgres 17 there is no call for it, and the commit writes everything.
do $flush$
begin
    execute format(
        'create or replace function quotas.flush_ahead() returns void'
        ' language plpgsql set search_path = pg_catalog, pg_temp as $$ begin %s end $$',
        case
            when current_setting('server_version_num')::integer >= 170000
                then
                    'if pg_current_wal_insert_lsn() - pg_current_wal_flush_lsn() > 65536 then'
                    ' perform pg_logical_emit_message(false, ''tallystick'', '''', true); end if;'
            else ''
        end
    );
end
$flush$;

revoke all on function quotas.flush_ahead from public;

-- Moves the budgets with the rows that are inserted, in the same transaction, whoever inserts, and draws the holds of the
-- reservations that they name. Reservations are locked by key and then windows by key, each written once, so that two
-- writers wait for each other and never in a circle.
create or replace function quotas.move_windows() returns trigger
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
-- The rows of a batch have no statistics. A planner that expects one of them joins thousands with thousands row by row.
set enable_nestloop = off
as $$
declare
    written_count bigint;
    drawn record;
    given_back_to text[];
    given_back numeric[];
begin
    if exists (select from new_rows where kind in ('adjustment', 'reversal') and charge_amount < 0) then
        select array_agg(g.budget_id), array_agg(g.amount)
        into given_back_to, given_back
        from (
            select b.budget_id, -sum(e.charge_amount) as amount
            from new_rows as e
            join quotas.budgets as b on b.tenant_id = e.tenant_id and b.currency = e.charge_currency
            where
                e.kind in ('adjustment', 'reversal')
                and e.charge_amount < 0
                and starts_with(b.budget_id, 'prepaid-')
                and b.ended_at is null
            group by b.budget_id
        ) as g;
    end if;

    if not exists (select from new_rows where reservation_id is not null) then
        with rows as materialized (
            {movements of new rows}
        ),

        caused as materialized (
            select
                r.budget_id,
                r.group_key,
                r.window_start,
                max(r.tenant_id) as tenant_id,
                max(r.currency) as currency,
                sum(r.posted) as posted,
                0::numeric as held,
                sum(r.unpriced_count)::bigint as unpriced_count,
                sum(r.unpriced_tokens)::bigint as unpriced_tokens,
                max(r.batch_id) as batch_id,
                case when r.is_correction then 'correction' else 'unreserved' end as cause
            from rows as r
            group by r.budget_id, r.group_key, r.window_start, cause
        )

        select null::text[] as ids, c.*
        into strict drawn
        from (
            {gathered from caused}
        ) as c;
    else
        -- A statement closes the reservation that it names unless it is interim or more attempts follow. A row that takes back
        -- what an earlier statement said names what that one named, and says nothing for itself; neither do fees and corrections.
        with named as materialized (
            select
                e.sent_tenant_id as tenant_id,
                e.reservation_id,
                max(e.batch_id) as batch_id,
                bool_or(
                    e.is_final
                    and not e.reservation_open
                    and e.kind in ('usage', 'true_up', 'evidence')
                    and e.request_count >= 0
                ) as closes
            from new_rows as e
            where e.reservation_id is not null
            group by 1, 2
        ),

        locked as materialized (
            select
                r.tenant_id,
                r.reservation_id,
                r.state,
                case when n.closes and r.state in ('held', 'awaiting_entry') then 'settled' else r.state end as state_after,
                n.batch_id,
                r.budget_ids,
                r.group_keys,
                r.window_starts,
                r.reserved,
                r.stated,
                r.posted_under
            from (select * from named order by tenant_id, reservation_id) as n
            -- `offset 0` makes it a look-up by key for each, in their order, whatever the planner believes.
            cross join lateral (
                select *
                from quotas.reservations as q
                where q.tenant_id = n.tenant_id and q.reservation_id = n.reservation_id
                offset 0
                for no key update
            ) as r
        ),

        rows as materialized (
            {movements of new rows by reservation}
        ),

        under as materialized (
            select r.reservation_tenant, r.reservation_id, r.budget_id, sum(r.posted) as posted
            from rows as r
            where r.reservation_id is not null
            group by r.reservation_tenant, r.reservation_id, r.budget_id
        ),

        holds as materialized (
            select
                l.tenant_id,
                l.reservation_id,
                l.state,
                l.place,
                l.budget_id,
                l.group_key,
                l.window_start,
                l.batch_id,
                l.under_before + coalesce(u.posted, 0) as posted_under,
                quotas.hold_of(l.state_after, l.reserved_of_it, l.stated_of_it, l.under_before + coalesce(u.posted, 0))
                - quotas.hold_of(l.state, l.reserved_of_it, l.stated_of_it, l.under_before) as held
            from (
                -- Lists side by side: as a function in `from` each reservation would fill a table of its own.
                select
                    r.*,
                    generate_subscripts(r.budget_ids, 1) as place,
                    unnest(r.budget_ids) as budget_id,
                    unnest(r.group_keys) as group_key,
                    unnest(r.window_starts) as window_start,
                    unnest(r.reserved) as reserved_of_it,
                    unnest(r.stated) as stated_of_it,
                    unnest(r.posted_under) as under_before
                from locked as r
            ) as l
            left join under as u
                on u.reservation_tenant = l.tenant_id and u.reservation_id = l.reservation_id and u.budget_id = l.budget_id
        ),

        moves as (
            select
                r.budget_id,
                r.group_key,
                r.window_start,
                r.tenant_id,
                r.currency,
                r.posted,
                0::numeric as held,
                r.unpriced_count,
                r.unpriced_tokens,
                r.batch_id,
                case
                    when r.is_correction then 'correction'
                    when h.state is null then 'unreserved'
                    when h.state in ('held', 'awaiting_entry') then 'overrun'
                    else 'late_settle'
                end as cause
            from rows as r
            left join holds as h
                on h.tenant_id = r.reservation_tenant and h.reservation_id = r.reservation_id and h.budget_id = r.budget_id
            union all
            select
                h.budget_id,
                h.group_key,
                h.window_start,
                null,
                null,
                0,
                h.held,
                0,
                0,
                h.batch_id,
                'release'
            from holds as h
            where h.held <> 0
        ),

        caused as materialized (
            select
                m.budget_id,
                m.group_key,
                m.window_start,
                max(m.tenant_id) as tenant_id,
                max(m.currency) as currency,
                sum(m.posted) as posted,
                sum(m.held) as held,
                sum(m.unpriced_count)::bigint as unpriced_count,
                sum(m.unpriced_tokens)::bigint as unpriced_tokens,
                max(m.batch_id) as batch_id,
                m.cause
            from moves as m
            group by m.budget_id, m.group_key, m.window_start, m.cause
        )

        select d.*, c.*
        into strict drawn
        from (
            select
                array_agg(l.tenant_id) as tenants,
                array_agg(l.reservation_id) as ids,
                array_agg(l.state_after) as states,
                array_agg(coalesce(h.posted_under, '{}')::text) as posted_under,
                array_agg(l.batch_id) as batch_ids
            from locked as l
            left join (
                select d.tenant_id, d.reservation_id, array_agg(d.posted_under order by d.place) as posted_under
                from holds as d
                group by d.tenant_id, d.reservation_id
            ) as h using (tenant_id, reservation_id)
        ) as d
        cross join (
            {gathered from caused}
        ) as c;
        if drawn.ids is not null then
            perform quotas.draw_holds(drawn.tenants, drawn.ids, drawn.states, drawn.posted_under, drawn.batch_ids);
        end if;
    end if;

    -- Windows come last: from here to the commit whoever asks for their tenants waits, and the reservations were locked before.
    perform quotas.flush_ahead();

    with caused as materialized (
        select k.*
        from unnest(
            drawn.w_budgets, drawn.w_groups, drawn.w_starts, drawn.w_tenants, drawn.w_currencies, drawn.w_posted, drawn.w_held,
            drawn.w_unpriced_counts, drawn.w_unpriced_tokens, drawn.w_batches, drawn.w_causes
        ) as k (
            budget_id, group_key, window_start, tenant_id, currency, posted, held, unpriced_count, unpriced_tokens, batch_id,
            cause
        )
    ),

    {written from caused}

    select count(*) into strict written_count from moved;
    perform quotas.withhold(given_back_to, given_back);
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
    select
        r.budget_id,
        r.group_key,
        r.window_start,
        max(r.tenant_id),
        max(r.currency),
        sum(r.posted),
        sum(r.unpriced_count)::bigint,
        sum(r.unpriced_tokens)::bigint,
        max(r.batch_id),
        (array_agg(case when r.is_correction then 'correction' else 'unreserved' end order by abs(r.posted) desc))[1]
    from (
        {movements of the ledger}
    ) as r
    group by r.budget_id, r.group_key, r.window_start
    having sum(r.posted) <> 0 or sum(r.unpriced_count) <> 0 or sum(r.unpriced_tokens) <> 0
$$;

-- What entries have posted under each reservation, by budget, folded from the ledger: what `verify` compares with.
create or replace function quotas.fold_reservations()
returns table (tenant_id text, reservation_id text, budget_id text, posted numeric)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    select r.reservation_tenant, r.reservation_id, r.budget_id, sum(r.posted)
    from (
        {movements of the ledger by reservation}
    ) as r
    group by r.reservation_tenant, r.reservation_id, r.budget_id
$$;

grant usage on schema quotas to tallystick_writer, tallystick_api, tallystick_operator, tallystick_analyst,
    tallystick_billing, tallystick_rollup;
grant select on all tables in schema quotas to tallystick_api, tallystick_operator, tallystick_analyst, tallystick_billing,
    tallystick_rollup;
-- Secrets that messages are signed with: whoever reads one can speak in our name. Here, since the line above would give them.
revoke all on quotas.webhook_secrets from tallystick_api, tallystick_analyst, tallystick_billing, tallystick_rollup;
-- Scope, unit, book and window of a budget never change: nobody has the right to.
revoke update on quotas.budgets from tallystick_operator;
grant insert on quotas.budgets to tallystick_operator;
grant update (
    limit_amount, hardness, interactive_reserve, thresholds, unknown_price, missing_estimate, missing_estimate_amount, steps,
    when_away, away_amount, description, ended_at
) on quotas.budgets to tallystick_operator;
grant insert, update, delete on quotas.group_limits to tallystick_operator;
grant insert on quotas.budget_versions to tallystick_operator;
-- A new budget's windows are folded from the ledger; after that only the trigger moves them, and a rebuild by its own function.
grant insert on quotas.windows to tallystick_operator;
revoke update on quotas.windows from tallystick_operator;
grant insert on quotas.excess, quotas.threshold_notes to tallystick_operator;
grant usage on all sequences in schema quotas to tallystick_operator;
revoke all on function quotas.draw_holds from public;
revoke all on function quotas.withhold from public;
revoke all on function quotas.fold_windows(text) from public;
grant execute on function quotas.fold_windows(text) to tallystick_operator;
revoke all on function quotas.fold_reservations() from public;
grant execute on function quotas.fold_reservations() to tallystick_operator;
