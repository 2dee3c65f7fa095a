-- Refuses asks none of which fits, of scopes whose budgets the caller knows from an earlier answer of `quotas.reserve`. It refuses all of
-- them or decides nothing and leaves them to `reserve`: where a version has changed since or a window has turned, one of them fits or was
-- admitted before, a step leads another way, or more than one budget stands in the way of one.
--
-- Matches (m_...) are the budgets of all scopes: whose they are, at which place of its lists, and up to where a call is admitted (null:
-- refuses nothing). Scopes (s_...) and asks (a_...) are as in `reserve_known`.
--
-- Locks: the calendar shared, and nothing else. What refuses changes nothing that others look at, and all that it goes by is seen by one
-- statement: so it was so at one instant.
create or replace function quotas.refuse_known(
    wanted_at timestamptz,
    parties_version bigint,
    prices_version bigint,
    calendar_version bigint,
    budgets_version bigint,
    valid_from timestamptz,
    valid_until timestamptz,
    m_scope integer[],
    m_place integer[],
    m_budget text[],
    m_group text[],
    m_start date[],
    m_room numeric[],
    m_limit numeric[],
    s_feature text[],
    s_model text[],
    s_route text[],
    s_lane text[],
    s_api_key text[],
    a_scope integer[],
    a_tenant text[],
    a_id text[],
    a_operation text[],
    a_amounts text[],
    -- Null: nothing was decided.
    out decided_at timestamptz,
    -- By ask: which match refuses, what it waits for, and what is left.
    out o_match integer[],
    out o_retry text[],
    out o_remaining text[]
)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
-- Plans are kept, and tables grow: those of a small table would read all of a large one.
set enable_seqscan = off
as $$
begin
    perform pg_advisory_xact_lock_shared(7411001);
    decided_at := coalesce(wanted_at, clock_timestamp());

    with matches as materialized (
        select m.n, m.scope, m.place, m.room, w.posted, w.posted + w.held as taken, b.steps
        from unnest(m_scope, m_place, m_budget, m_group, m_start, m_room) with ordinality
            as m (scope, place, budget_id, group_key, window_start, room, n)
        join quotas.windows as w using (budget_id, group_key, window_start)
        join quotas.budgets as b using (budget_id)
    ),

    exhausted as materialized (
        select
            a.n,
            m.n as match,
            a.amount,
            m.taken,
            case
                when a.amount > m.room then 'n'
                when m.posted + a.amount > m.room then 'p'
                else 'h'
            end as retry,
            m.room - m.taken as remaining
        from matches as m
        join (
            select a.n, a.scope, p.place, p.amount
            from unnest(a_scope, a_amounts) with ordinality as a (scope, amounts, n)
            cross join lateral unnest(a.amounts::numeric[]) with ordinality as p (amount, place)
        ) as a
            on a.scope = m.scope and a.place = m.place
        where m.taken + a.amount > m.room
    ),

    verdict as materialized (
        select
            v.parties = parties_version
            and v.prices = prices_version
            and v.calendar = calendar_version
            and v.budgets = budgets_version
            and decided_at >= valid_from
            and decided_at < valid_until
            and f.full_count = cardinality(a_id)
            and f.ask_count = cardinality(a_id)
            and (select count(*) from matches) = cardinality(m_scope)
            and not exists (select from matches as m where m.steps @> '[{"action": "degrade"}]')
            and not exists (
                select
                from unnest(a_tenant, a_id) as k (tenant_id, reservation_id)
                cross join lateral (
                    select
                    from quotas.reservations as q
                    where q.tenant_id = k.tenant_id and q.reservation_id = k.reservation_id
                    offset 0
                ) as r
            ) as is_refused
        from ledger.versions as v
        cross join (select count(*) as full_count, count(distinct n) as ask_count from exhausted) as f
    ),

    kept as (
        insert into quotas.decisions (
            at, tenant_id, reservation_id, operation_id, kind, reason, budget_id, group_key, window_start, asked, taken,
            limit_amount, feature, model, route, lane, api_key_id
        )
        select
            decided_at, a_tenant[f.n], a_id[f.n], a_operation[f.n], 'refused', 'limit', m_budget[f.match],
            m_group[f.match], m_start[f.match], f.amount, f.taken, m_limit[f.match], s_feature[a_scope[f.n]],
            s_model[a_scope[f.n]], s_route[a_scope[f.n]], s_lane[a_scope[f.n]], s_api_key[a_scope[f.n]]
        from exhausted as f
        where (select is_refused from verdict)
        order by f.n
    )

    select
        array_agg(f.match::integer order by f.n),
        array_agg(f.retry order by f.n),
        array_agg(trim_scale(f.remaining)::text order by f.n)
    into o_match, o_retry, o_remaining
    from exhausted as f
    where (select is_refused from verdict);
    if o_match is null then
        decided_at := null;
    end if;
end
$$;

revoke all on function quotas.refuse_known from public;
grant execute on function quotas.refuse_known to tallystick_writer;
