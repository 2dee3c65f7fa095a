-- Messages for webhooks, written in the transaction that makes them true. Statement triggers on what only the windows' own
-- statements insert: whoever comes here holds the lock of the window that it is about, so that two never meet over one
-- fact, and no other lock is taken.

-- Writes the messages that some endpoint listens to, and a delivery for each of these. A fact that has a message gets no
-- second one.
create or replace function quotas.send_to_endpoints(
    facts text[], kinds text[], tenant_ids text[], datas jsonb[]
) returns integer
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    sent integer;
begin
    with told as materialized (
        select
            gen_random_uuid() as message_id,
            f.fact,
            f.kind,
            f.tenant_id,
            f.data
        from unnest(facts, kinds, tenant_ids, datas) as f (fact, kind, tenant_id, data)
    ),

    heard as materialized (
        select t.message_id, e.endpoint_id
        from told as t
        join quotas.webhook_endpoints as e
            on (e.tenant_id is null or e.tenant_id = t.tenant_id)
            and (e.kinds = '{}' or t.kind = any (e.kinds))
            and e.removed_at is null
    ),

    written as (
        insert into quotas.outbox (message_id, fact, kind, tenant_id, payload, created_at)
        select
            t.message_id,
            t.fact,
            t.kind,
            t.tenant_id,
            jsonb_build_object(
                'type', t.kind, 'version', 1, 'timestamp',
                to_char(clock_timestamp() at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), 'data', t.data
            ),
            clock_timestamp()
        from told as t
        where exists (select from heard as h where h.message_id = t.message_id)
        on conflict (fact) do nothing
        returning message_id
    )

    insert into quotas.deliveries (message_id, endpoint_id)
    select h.message_id, h.endpoint_id
    from heard as h
    join written using (message_id);
    get diagnostics sent = row_count;
    return sent;
end
$$;

-- What a message says of a window: exact amounts as text.
create or replace function quotas.window_data(
    of_budget text, of_group text, of_window date, more jsonb
) returns jsonb
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    select
        jsonb_build_object(
            'budget_id', b.budget_id,
            'tenant_id', w.tenant_id,
            'group', case
                when w.group_key = '' then '{}'::jsonb
                else (
                    select jsonb_object_agg(g.name, w.group_key::jsonb -> (g.place - 1)::integer)
                    from unnest(b.group_by) with ordinality as g (name, place)
                )
            end,
            'unit', b.unit,
            'currency', w.currency,
            'window_kind', b.window_kind,
            'window_start', case when b.window_kind <> 'lifetime' then w.window_start end,
            'limit', trim_scale(quotas.limit_of(b.limit_amount, o.budget_id, o.limit_amount))::text,
            'posted', trim_scale(w.posted)::text,
            'held', trim_scale(w.held)::text,
            'hardness', b.hardness
        ) || more
    from quotas.windows as w
    join quotas.budgets as b using (budget_id)
    left join quotas.group_limits as o on o.budget_id = w.budget_id and o.group_key = w.group_key
    where w.budget_id = of_budget and w.group_key = of_group and w.window_start = of_window
$$;

create or replace function quotas.tell_thresholds() returns trigger
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if not exists (select from new_notes) or not exists (select from quotas.webhook_endpoints where removed_at is null) then
        return null;
    end if;
    perform quotas.send_to_endpoints(
        array_agg(
            format('threshold %s %s %s %s %s', n.budget_id, n.group_key, n.window_start, n.threshold, extract(epoch from n.at))
        ),
        array_agg(case when n.threshold = 1 then 'budget.exhausted' else 'budget.threshold_reached' end),
        array_agg(w.tenant_id),
        array_agg(
            quotas.window_data(
                n.budget_id, n.group_key, n.window_start,
                jsonb_build_object('threshold', trim_scale(n.threshold)::text, 'batch_id', n.batch_id)
            )
        )
    )
    from new_notes as n
    join quotas.windows as w using (budget_id, group_key, window_start);
    return null;
end
$$;

create or replace trigger tell
after insert on quotas.threshold_notes
referencing new table as new_notes
for each statement execute function quotas.tell_thresholds();

-- One message for each window and cause: while a window stays above its limit, every commit would make one.
create or replace function quotas.tell_overruns() returns trigger
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if not exists (select from new_excess as x where x.change > 0)
        or not exists (select from quotas.webhook_endpoints where removed_at is null)
    then
        return null;
    end if;
    perform quotas.send_to_endpoints(
        array_agg(format('overrun %s %s %s %s', x.budget_id, x.group_key, x.window_start, x.cause)),
        array_agg('budget.overrun'::text),
        array_agg(w.tenant_id),
        array_agg(
            quotas.window_data(
                x.budget_id, x.group_key, x.window_start,
                jsonb_build_object('cause', x.cause, 'change', trim_scale(x.change)::text, 'batch_id', x.batch_id)
            )
        )
    )
    from new_excess as x
    join quotas.windows as w using (budget_id, group_key, window_start)
    where x.change > 0;
    return null;
end
$$;

create or replace trigger tell
after insert on quotas.excess
referencing new table as new_excess
for each statement execute function quotas.tell_overruns();

revoke all on function quotas.send_to_endpoints(text[], text[], text[], jsonb[]) from public;
revoke all on function quotas.window_data(text, text, date, jsonb) from public;
grant execute on function quotas.send_to_endpoints(text[], text[], text[], jsonb[]) to tallystick_operator;

grant select on quotas.webhook_endpoints, quotas.outbox, quotas.deliveries to tallystick_operator, tallystick_analyst;
grant insert, update on quotas.webhook_endpoints to tallystick_operator;
grant select, insert, update on quotas.webhook_secrets to tallystick_operator;
grant insert, delete on quotas.outbox to tallystick_operator;
grant insert, update on quotas.deliveries to tallystick_operator;
grant usage on all sequences in schema quotas to tallystick_operator;
