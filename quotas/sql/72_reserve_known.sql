-- Decides asks that all fit, of scopes whose budgets the caller knows from an earlier answer of `quotas.reserve`: those are matched
-- once, and not again for each call. It admits all asks, as they were asked, or decides nothing and leaves them to `reserve`: where
-- a version has changed since or a window has turned, one of them does not fit, or something would have to be noted.
--
-- Scopes (s_...) and asks (a_...) are as there; s_budgets and what follows are lists as text, one for each scope. Windows (w_...) are
-- those of all scopes: what all asks take of each, up to where they are admitted as asked (null: anywhere), and its marks as text.
--
-- Locks as `reserve` does: the calendar shared, the windows in the order of their keys, then the new keys. An id that is there
-- already is met as a unique violation, which undoes all of this; so does TS003, where a version has changed by the time that a
-- single window is written.
create or replace function quotas.reserve_known(
    wanted_at timestamptz,
    parties_version bigint,
    prices_version bigint,
    calendar_version bigint,
    budgets_version bigint,
    valid_from timestamptz,
    valid_until timestamptz,
    w_budget text[],
    w_group text[],
    w_start date[],
    w_sum numeric[],
    w_room numeric[],
    w_marks text[],
    s_provider_account text[],
    s_feature text[],
    s_model text[],
    s_route text[],
    s_lane text[],
    s_api_key text[],
    s_budgets text[],
    s_groups text[],
    s_starts text[],
    s_zeros text[],
    a_scope integer[],
    a_tenant text[],
    a_id text[],
    a_hash uuid[],
    a_operation text[],
    a_basis text[],
    a_input bigint[],
    a_output bigint[],
    a_ttl integer[],
    a_amounts text[],
    -- Null: nothing was decided.
    out decided_at timestamptz,
    -- What was taken of each window before, where somebody looked.
    out w_taken text[]
)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
-- Plans are kept, and tables grow: those of a small table would read all of a large one.
set enable_seqscan = off
as $$
declare
    is_single constant boolean := cardinality(w_budget) = 1 and w_sum[1] <> 0;
    is_valid boolean;
    fits boolean;
    looked_at timestamptz;
begin
    perform pg_advisory_xact_lock_shared(7411001);
    if is_single then
        -- One window is looked at, locked and written by one statement, which sees it as whoever had it before left it.
        update quotas.windows as w
        set held = w.held + w_sum[1]
        where
            w.budget_id = w_budget[1]
            and w.group_key = w_group[1]
            and w.window_start = w_start[1]
            and coalesce(w.posted + w.held + w_sum[1] <= w_room[1], true)
            and not exists (
                select
                from unnest(w_marks[1]::numeric[]) as t (mark)
                where w.posted + w.held + w_sum[1] >= t.mark and (w.posted + w.held < t.mark or t.mark = 0)
            )
        returning array[(w.posted + w.held - w_sum[1])::text] into w_taken;
        if not found then
            select array_agg((w.posted + w.held)::text)
            into w_taken
            from quotas.windows as w
            where w.budget_id = w_budget[1] and w.group_key = w_group[1] and w.window_start = w_start[1];
            return;
        end if;
    else
        select
            array_agg(k.taken::text order by k.n),
            count(*) = cardinality(w_budget)
            and coalesce(
                bool_and(
                    coalesce(k.taken + k.sum <= k.room, true)
                    and not exists (
                        select
                        from unnest(k.marks::numeric[]) as t (mark)
                        where k.taken + k.sum >= t.mark and (k.taken < t.mark or t.mark = 0)
                    )
                ),
                true
            )
        into w_taken, fits
        from (
            select u.n, w.posted + w.held as taken, u.sum, u.room, u.marks
            from unnest(w_budget, w_group, w_start, w_sum, w_room, w_marks) with ordinality
                as u (budget_id, group_key, window_start, sum, room, marks, n)
            join quotas.windows as w using (budget_id, group_key, window_start)
            order by w.budget_id, w.group_key, w.window_start
            for no key update of w
        ) as k;
        if not fits then
            return;
        end if;
    end if;
    -- Once the windows are locked: a correction may have taken something off a limit while this waited for them.
    select
        v.parties = parties_version
        and v.prices = prices_version
        and v.calendar = calendar_version
        and v.budgets = budgets_version
        and n.at >= valid_from
        and n.at < valid_until,
        n.at
    into strict is_valid, looked_at
    from ledger.versions as v
    cross join lateral (select coalesce(wanted_at, clock_timestamp()) as at) as n;
    if not is_valid then
        if is_single then
            raise exception using errcode = 'TS003', message = 'what was known of the scopes is so no longer';
        end if;
        return;
    end if;

    decided_at := looked_at;

    insert into quotas.reservations (
        tenant_id, reservation_id, content_hash, operation_id, basis, state, provider_account, feature, model, route, lane,
        api_key_id, input_tokens, output_tokens, budget_ids, group_keys, window_starts, reserved, posted_under, decided_at,
        expires_at
    )
    select
        a.tenant_id, a.reservation_id, a.hash, a.operation_id, a.basis, 'held', s.provider_account, s.feature, s.model,
        s.route, s.lane, s.api_key_id, a.input_tokens, a.output_tokens, s.budget_ids, s.group_keys, s.window_starts,
        a.amounts::numeric[], s.zeros, decided_at, decided_at + a.ttl * interval '1 second'
    from unnest(a_scope, a_tenant, a_id, a_hash, a_operation, a_basis, a_input, a_output, a_ttl, a_amounts)
        as a (scope, tenant_id, reservation_id, hash, operation_id, basis, input_tokens, output_tokens, ttl, amounts)
    join (
        select
            g.n, g.provider_account, g.feature, g.model, g.route, g.lane, g.api_key_id, g.budgets::text[] as budget_ids,
            g.groups::text[] as group_keys, g.starts::date[] as window_starts, g.zeros::numeric[] as zeros
        from unnest(
            s_provider_account, s_feature, s_model, s_route, s_lane, s_api_key, s_budgets, s_groups, s_starts, s_zeros
        ) with ordinality
            as g (provider_account, feature, model, route, lane, api_key_id, budgets, groups, starts, zeros, n)
        -- Read once for each scope, and not for each ask.
        offset 0
    ) as s
        on s.n = a.scope
    order by a.tenant_id, a.reservation_id;

    if not is_single then
        update quotas.windows as w
        set held = w.held + c.sum
        from unnest(w_budget, w_group, w_start, w_sum) as c (budget_id, group_key, window_start, sum)
        where
            w.budget_id = c.budget_id
            and w.group_key = c.group_key
            and w.window_start = c.window_start
            and c.sum <> 0;
    end if;
end
$$;

revoke all on function quotas.reserve_known from public;
grant execute on function quotas.reserve_known to tallystick_writer;
