create or replace view quotas.holds
with (security_invoker = true)
as
select
    r.tenant_id,
    r.reservation_id,
    r.state,
    h.budget_id,
    h.group_key,
    h.window_start,
    b.unit,
    b.currency,
    h.reserved,
    h.stated,
    h.posted_under,
    quotas.hold_of(r.state, h.reserved, h.stated, h.posted_under) as held,
    r.decided_at
from quotas.reservations as r
cross join lateral unnest(r.budget_ids, r.group_keys, r.window_starts, r.reserved, r.stated, r.posted_under) with ordinality
    as h (budget_id, group_key, window_start, reserved, stated, posted_under, place)
join quotas.budgets as b on b.budget_id = h.budget_id;

comment on view quotas.holds is 'One row per reservation and budget that it is held against.';
comment on column quotas.holds.tenant_id is 'As the ask and the usage event name it.';
comment on column quotas.holds.reservation_id is 'The caller''s idempotency key.';
comment on column quotas.holds.state is 'Of the reservation; only held and awaiting_entry hold anything.';
comment on column quotas.holds.budget_id is 'What it is held against.';
comment on column quotas.holds.group_key is 'Which group of it; empty without any.';
comment on column quotas.holds.window_start is 'First local day of the window in force at the decision.';
comment on column quotas.holds.unit is 'Of the budget and of the amounts.';
comment on column quotas.holds.currency is 'Of the budget, where the unit is money.';
comment on column quotas.holds.reserved is 'What was promised.';
comment on column quotas.holds.stated is 'What stays after the call, where its end stated less.';
comment on column quotas.holds.posted_under is 'What entries that name the reservation have posted in the budget.';
comment on column quotas.holds.held is 'What is still held: the sum over a window is its held.';
comment on column quotas.holds.decided_at is 'By the database''s clock.';

create or replace view quotas.overshoots
with (security_invoker = true)
as
select h.tenant_id, h.reservation_id, h.state, h.budget_id, h.unit, h.currency, h.reserved, h.posted_under, h.decided_at
from quotas.holds as h
where h.posted_under > h.reserved;

comment on view quotas.overshoots is 'Reservations whose usage was more than was held, by budget: those of the basis expected, or with a wrong cap.';
comment on column quotas.overshoots.tenant_id is 'As the ask names it.';
comment on column quotas.overshoots.reservation_id is 'The caller''s idempotency key.';
comment on column quotas.overshoots.state is 'Of the reservation.';
comment on column quotas.overshoots.budget_id is 'In which budget.';
comment on column quotas.overshoots.unit is 'Of the amounts.';
comment on column quotas.overshoots.currency is 'Of the budget, where the unit is money.';
comment on column quotas.overshoots.reserved is 'What was promised.';
comment on column quotas.overshoots.posted_under is 'What was used.';
comment on column quotas.overshoots.decided_at is 'By the database''s clock.';

create or replace view quotas.awaiting_entries
with (security_invoker = true)
as
select r.tenant_id, r.reservation_id, r.operation_id, r.route, r.ended_at, clock_timestamp() - r.ended_at as waits_since
from quotas.reservations as r
where r.state = 'awaiting_entry';

comment on view quotas.awaiting_entries is 'Calls that ended and whose usage has not come: what waits for more than a day is lost usage, or a caller that names another reservation.';
comment on column quotas.awaiting_entries.tenant_id is 'As the ask names it.';
comment on column quotas.awaiting_entries.reservation_id is 'The caller''s idempotency key.';
comment on column quotas.awaiting_entries.operation_id is 'The logical request.';
comment on column quotas.awaiting_entries.route is 'Where the call went.';
comment on column quotas.awaiting_entries.ended_at is 'When the caller said that the call had ended.';
comment on column quotas.awaiting_entries.waits_since is 'For how long.';

create or replace view quotas.tokens_in_flight
with (security_invoker = true)
as
select
    r.tenant_id,
    r.route,
    count(*) as reservation_count,
    coalesce(sum(r.input_tokens), 0)::bigint as input_tokens,
    coalesce(sum(r.output_tokens), 0)::bigint as output_tokens,
    count(*) filter (where r.input_tokens is null or r.output_tokens is null) as unknown_count
from quotas.reservations as r
where r.state = 'held'
group by r.tenant_id, r.route;

comment on view quotas.tokens_in_flight is 'One row per tenant and route: tokens of calls that were admitted and have not ended.';
comment on column quotas.tokens_in_flight.tenant_id is 'As the ask names it.';
comment on column quotas.tokens_in_flight.route is 'Where the calls go.';
comment on column quotas.tokens_in_flight.reservation_count is 'How many calls.';
comment on column quotas.tokens_in_flight.input_tokens is 'Counted by the callers.';
comment on column quotas.tokens_in_flight.output_tokens is 'At most, or as expected.';
comment on column quotas.tokens_in_flight.unknown_count is 'Calls without one of the two counts: the sums are then too low.';

-- Decides asks in their order, each against every budget in scope, and holds what it admits. One statement, one transaction.
--
-- Scopes (s_...) are the few combinations of what budgets look at; asks (a_...) name theirs by number, from 1. No two asks of
-- a call have the same key. Amounts are those of the estimate; null is unknown.
--
-- Locks: the calendar shared, then the windows of all scopes in the order of their keys, then the new keys. Earlier
-- reservations are read and not locked: one that is being made by somebody else is met as a unique violation, which undoes
-- all of this, and is found when it is run again.
--
-- With is_booking the asks were admitted elsewhere, while nobody could ask here: they are held whatever there is, and what that
-- takes a hard window above its limit is told as `away`.
--
-- Answers in lists. m_...: by budget and scope, with m_scope in order. o_...: by ask. Outcomes: known (decided before),
-- conflict, admitted, degraded, limit, unknown_price, missing_estimate.
--
-- What is in scope is answered in a form that `reserve_known` takes: until `valid_until`, and under these versions, m_... stays as
-- it is. Up to m_room a call is admitted as it was asked, and below the next of m_marks nothing is noted.
do $$
declare
    earlier regprocedure;
begin
    -- An earlier version took one argument less or answered less: the first would stand beside this one, the second cannot be replaced.
    for earlier in
        select p.oid
        from pg_proc as p
        where
            p.pronamespace = 'quotas'::regnamespace
            and p.proname = 'reserve'
            and (p.pronargs <> 28 or cardinality(p.proallargtypes) <> 55)
    loop
        execute format('drop function %s', earlier);
    end loop;
end
$$;

create or replace function quotas.reserve(
    wanted_at timestamptz,
    parties_version bigint,
    prices_version bigint,
    s_tenant text[],
    s_provider_account text[],
    s_feature text[],
    s_model text[],
    s_route text[],
    s_lane text[],
    s_api_key text[],
    s_subject uuid[],
    s_tags jsonb[],
    s_charge_currency text[],
    s_cost_currency text[],
    a_scope integer[],
    a_tenant text[],
    a_id text[],
    a_hash uuid[],
    a_operation text[],
    a_basis text[],
    a_given boolean[],
    a_charge numeric[],
    a_cost numeric[],
    a_input bigint[],
    a_output bigint[],
    a_reads bigint[],
    a_ttl integer[],
    is_booking boolean,
    out decided_at timestamptz,
    out m_scope integer[],
    out m_budget text[],
    out m_group text[],
    out m_start date[],
    out m_unit text[],
    out m_currency text[],
    out m_hardness text[],
    out m_limit text[],
    out m_kind text[],
    out m_days integer[],
    out m_anchor date[],
    out m_zone text[],
    out o_outcome text[],
    out o_scope integer[],
    out o_amounts text[],
    out o_tightest integer[],
    out o_asked text[],
    out o_remaining text[],
    out o_retry text[],
    out o_route text[],
    out o_cap bigint[],
    out m_room text[],
    out m_marks text[],
    out calendar_version bigint,
    out budgets_version bigint,
    out valid_until timestamptz
)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
-- Plans are kept, and tables grow: those of a small table would read all of a large one.
set enable_seqscan = off
as $$
declare
    units constant text[] := '{charge,cost,total_tokens,input_tokens,output_tokens,input_tokens_without_cache_reads,requests}';
    scopes_given constant integer := cardinality(s_tenant);
    asks constant integer := cardinality(a_id);
    versions record;
    known record;
    -- Scopes: those given, then one for each that a step's route makes of them.
    s_first integer[];
    s_last integer[];
    s_has_steps boolean[];
    -- Budgets by scope.
    m_window integer[];
    m_unit_no integer[];
    m_ceiling numeric[];
    m_first numeric[];
    m_last numeric[];
    m_unknown_price text[];
    m_missing text[];
    m_missing_amount numeric[];
    -- Windows, in the order of their keys.
    w_budget text[];
    w_group text[];
    w_start date[];
    w_tenant text[];
    w_currency text[];
    w_all_there boolean;
    w_taken numeric[];
    w_posted numeric[];
    w_held numeric[];
    w_note numeric[];
    reaches_note boolean := false;
    -- What all asks would take together, by budget and scope; and by scope, what is tightest then, and what it has left.
    m_sum numeric[];
    s_tightest integer[];
    s_left numeric[];
    sums record;
    -- Steps on the way down, by scope, in order.
    t_scope integer[];
    t_match integer[];
    t_at numeric[];
    t_until numeric[];
    t_route text[];
    t_cap bigint[];
    t_hold numeric[];
    t_variant integer[];
    -- The ask in hand.
    u numeric[];
    as_asked numeric[];
    held numeric[];
    amount numeric;
    of_scope integer;
    match integer;
    step integer;
    variant integer;
    all_fit boolean;
    fits boolean;
    is_admitted boolean;
    is_degraded boolean;
    refusal text;
    tightest integer;
    tightest_left numeric;
    tightest_amount numeric;
    left_over numeric;
    literal text;
    retry text;
    -- Decisions to be kept.
    d_ask integer[] := '{}';
    d_kind text[] := '{}';
    d_reason text[] := '{}';
    d_match integer[] := '{}';
    d_asked numeric[] := '{}';
    d_taken numeric[] := '{}';
begin
    perform pg_advisory_xact_lock_shared(7411001);
    select v.parties, v.prices, v.calendar, v.budgets, clock_timestamp() as at into strict versions from ledger.versions as v;
    calendar_version := versions.calendar;
    budgets_version := versions.budgets;
    if versions.parties <> parties_version or versions.prices <> prices_version then
        raise exception using
            errcode = 'TS003',
            message = format(
                'the asks were priced with versions %s and %s of parties and prices, now they are %s and %s',
                parties_version, prices_version, versions.parties, versions.prices
            );
    end if;
    decided_at := coalesce(wanted_at, versions.at);

    o_outcome := array_fill(null::text, array[asks]);
    for known in
        select a.n, r.content_hash = a.hash as is_same
        from unnest(a_tenant, a_id, a_hash) with ordinality as a (tenant_id, reservation_id, hash, n)
        -- `offset 0` makes it a look-up by key for each. A plan that was made while the table was small would read all of it.
        cross join lateral (
            select q.content_hash
            from quotas.reservations as q
            where q.tenant_id = a.tenant_id and q.reservation_id = a.reservation_id
            offset 0
        ) as r
    loop
        o_outcome[known.n] := case when known.is_same then 'known' else 'conflict' end;
    end loop;

    -- Which budgets are in scope, in which window. Read again, with one scope more for each route that a step leads to.
    for pass in 1..2 loop
        with scopes as materialized (
            select
                s.*,
                -- As entries have it: days do not go back where a zone changes.
                greatest((decided_at at time zone v.time_zone)::date, v.first_day) as local_date,
                (decided_at at time zone 'UTC')::date as utc_date,
                v.time_zone,
                least(
                    quotas.day_ends(greatest((decided_at at time zone v.time_zone)::date, v.first_day), v.time_zone, decided_at),
                    ((decided_at at time zone 'UTC')::date + 1)::timestamp at time zone 'UTC',
                    (
                        select min(f.effective_at)
                        from ledger.tenant_versions as f
                        where f.tenant_id = s.tenant_id and f.effective_at > decided_at
                    )
                ) as turns_at
            from unnest(
                s_tenant, s_provider_account, s_feature, s_model, s_route, s_lane, s_api_key, s_subject, s_tags,
                s_charge_currency, s_cost_currency
            ) with ordinality as s (
                tenant_id, provider_account, feature, model, route, lane, api_key_id, subject_id, tags, charge_currency,
                cost_currency, n
            )
            cross join lateral (
                select v.time_zone, v.first_day
                from ledger.tenant_versions as v
                where v.tenant_id = s.tenant_id
                order by
                    v.effective_at <= decided_at desc,
                    case when v.effective_at <= decided_at then v.effective_at end desc,
                    v.effective_at
                limit 1
            ) as v
        ),

        -- Two joins rather than one with `or`: the budgets of one tenant are found by index.
        candidates as (
            select c.*, a.budget_id
            from scopes as c
            join quotas.budgets as a on a.tenant_id = c.tenant_id
            where a.ended_at is null
            union all
            select c.*, a.budget_id
            from scopes as c
            join quotas.budgets as a on a.tenant_id is null
            -- Totals limit nothing and never will.
            where a.ended_at is null and a.budget_id !~ '^totals-'
        ),

        matched as (
            select
                c.n,
                c.lane as asked_lane,
                a.*,
                d.is_shared,
                case when d.is_shared then 'UTC' else c.time_zone end as window_zone,
                d.window_start,
                g.group_key,
                case when not d.is_shared then c.tenant_id end as window_tenant,
                case a.unit when 'cost' then c.cost_currency when 'charge' then c.charge_currency end as window_currency
            from candidates as c
            join quotas.budgets as a using (budget_id)
            cross join lateral (
                select
                    z.is_shared,
                    quotas.window_start(
                        a.window_kind, a.window_days, a.anchor, case when z.is_shared then c.utc_date else c.local_date end
                    ) as window_start
                from (select a.tenant_id is null and not 'tenant_id' = any (a.group_by) as is_shared) as z
            ) as d
            cross join lateral (
                select
                    case
                        when a.group_by = '{}' then ''
                        else
                            quotas.group_key(
                                a.group_by, c.tenant_id, c.provider_account, c.feature, c.model, c.route, c.lane,
                                c.api_key_id, c.subject_id,
                                case a.unit when 'cost' then c.cost_currency when 'charge' then c.charge_currency end
                            )
                    end as group_key
            ) as g
            where
                d.window_start >= a.first_window
                and {in scope}
        ),

        limited as (
            select
                m.*,
                l.full_limit,
                case
                    when m.asked_lane = 'batch' then l.full_limit - m.interactive_reserve
                    else l.full_limit
                end as lane_limit,
                (select min((e ->> 'at')::numeric) from jsonb_array_elements(m.steps) as e) as first_at,
                (
                    select min((e ->> 'at')::numeric)
                    from jsonb_array_elements(m.steps) as e
                    where e ->> 'action' = 'refuse'
                ) as refuse_at,
                dense_rank() over (order by m.budget_id, m.group_key, m.window_start)::integer as window_no,
                row_number() over (order by m.n, m.budget_id)::integer as place,
                w.budget_id is not null as is_there,
                quotas.limit_of(m.limit_amount, o.budget_id, o.limit_amount) as noted_limit,
                case
                    when starts_with(m.budget_id, 'prepaid-')
                        then (select min(t.at) from quotas.turns as t where t.budget_id = m.budget_id and t.at > decided_at)
                end as lapses_at
            from matched as m
            left join quotas.group_limits as o on o.budget_id = m.budget_id and o.group_key = m.group_key
            left join quotas.windows as w
                on w.budget_id = m.budget_id and w.group_key = m.group_key and w.window_start = m.window_start
            cross join lateral (
                select
                    quotas.limit_of(m.limit_amount, o.budget_id, o.limit_amount)
                    -- What a grant had left is gone at its end, whoever has looked since. Told apart by name, at no cost to others.
                    - case
                        when starts_with(m.budget_id, 'prepaid-')
                            then
                                (
                                    select coalesce(sum(t.lapses), 0)
                                    from quotas.turns as t
                                    where t.budget_id = m.budget_id and t.at <= decided_at
                                )
                        else 0
                    end as full_limit
            ) as l
        ),

        windows as (
            select distinct on (window_no) window_no, budget_id, group_key, window_start, window_tenant, window_currency
            from limited
            order by window_no
        ),

        stepped as (
            select
                i.n,
                i.place,
                least(e.at * i.full_limit, i.lane_limit) as at,
                least(
                    coalesce(e.next_at, i.refuse_at, 1) * i.full_limit, coalesce(i.refuse_at, 1) * i.full_limit, i.lane_limit
                ) as until,
                e.at as share,
                e.route,
                e.output_tokens_max,
                e.hold
            from limited as i
            cross join lateral (
                select
                    (s.step ->> 'at')::numeric as at,
                    s.step ->> 'action' as action,
                    s.step ->> 'route' as route,
                    (s.step ->> 'output_tokens_max')::bigint as output_tokens_max,
                    (s.step ->> 'hold')::numeric as hold,
                    lead((s.step ->> 'at')::numeric) over (order by (s.step ->> 'at')::numeric, s.place) as next_at
                from jsonb_array_elements(i.steps) with ordinality as s (step, place)
            ) as e
            where i.hardness = 'hard' and i.full_limit is not null and e.action = 'degrade' and i.n <= scopes_given
        ),

        steps as (
            select s.*, row_number() over (order by s.n, s.share, s.place, s.until) as nth from stepped as s
        )

        select
            l.*,
            w.*,
            t.*
        into
            m_scope, m_window, m_budget, m_group, m_start, m_unit, m_unit_no, m_currency, m_hardness, m_limit, m_ceiling,
            m_first, m_last, m_unknown_price, m_missing, m_missing_amount, m_kind, m_days, m_anchor, m_zone, m_room, m_marks,
            w_all_there, valid_until,
            w_budget, w_group, w_start, w_tenant, w_currency,
            t_scope, t_match, t_at, t_until, t_route, t_cap, t_hold
        from (
            select
                array_agg(n::integer order by place),
                array_agg(window_no order by place),
                array_agg(budget_id order by place),
                array_agg(group_key order by place),
                array_agg(window_start order by place),
                array_agg(unit order by place),
                array_agg(array_position(units, unit) order by place),
                array_agg(window_currency order by place),
                array_agg(hardness order by place),
                array_agg(trim_scale(lane_limit)::text order by place),
                array_agg(lane_limit order by place),
                -- Up to where a call goes as asked, and up to where one goes that was degraded; null where nothing refuses.
                array_agg(case when hardness = 'hard' then least(first_at * full_limit, lane_limit) end order by place),
                array_agg(case when hardness = 'hard' then least(refuse_at * full_limit, lane_limit) end order by place),
                array_agg(unknown_price order by place),
                array_agg(missing_estimate order by place),
                array_agg(missing_estimate_amount order by place),
                array_agg(window_kind order by place),
                array_agg(window_days order by place),
                array_agg(anchor order by place),
                array_agg(window_zone order by place),
                array_agg(
                    least(case when hardness = 'hard' then first_at * full_limit end, lane_limit)::text order by place
                ),
                array_agg(
                    array(select t.threshold * noted_limit from unnest(thresholds || 1::numeric) as t (threshold))::text
                    order by place
                ),
                bool_and(is_there),
                least(min(lapses_at), (select min(s.turns_at) from scopes as s))
            from limited
        ) as l
        cross join (
            select
                array_agg(budget_id order by window_no),
                array_agg(group_key order by window_no),
                array_agg(window_start order by window_no),
                array_agg(window_tenant order by window_no),
                array_agg(window_currency order by window_no)
            from windows
        ) as w
        cross join (
            select
                array_agg(n::integer order by nth),
                array_agg(place order by nth),
                array_agg(at order by nth),
                array_agg(until order by nth),
                array_agg(route order by nth),
                array_agg(output_tokens_max order by nth),
                array_agg(hold order by nth)
            from steps
        ) as t;
        exit when t_scope is null;
        if pass = 1 then
            -- A call that goes another way falls under the budgets of that way.
            t_variant := t_scope;
            for step in 1..cardinality(t_scope) loop
                of_scope := t_scope[step];
                if t_route[step] is not null and t_route[step] is distinct from s_route[of_scope] then
                    s_tenant := s_tenant || s_tenant[of_scope];
                    s_provider_account := s_provider_account || s_provider_account[of_scope];
                    s_feature := s_feature || s_feature[of_scope];
                    s_model := s_model || s_model[of_scope];
                    s_route := s_route || t_route[step];
                    s_lane := s_lane || s_lane[of_scope];
                    s_api_key := s_api_key || s_api_key[of_scope];
                    s_subject := s_subject || s_subject[of_scope];
                    s_tags := s_tags || s_tags[of_scope];
                    s_charge_currency := s_charge_currency || s_charge_currency[of_scope];
                    s_cost_currency := s_cost_currency || s_cost_currency[of_scope];
                    t_variant[step] := cardinality(s_tenant);
                end if;
            end loop;
            exit when cardinality(s_tenant) = scopes_given;
        end if;
    end loop;

    s_first := array_fill(1, array[cardinality(s_tenant)]);
    s_last := array_fill(0, array[cardinality(s_tenant)]);
    for match in 1..coalesce(cardinality(m_scope), 0) loop
        of_scope := m_scope[match];
        if s_last[of_scope] = 0 then
            s_first[of_scope] := match;
        end if;
        s_last[of_scope] := match;
    end loop;
    s_has_steps := array_fill(false, array[cardinality(s_tenant)]);
    for step in 1..coalesce(cardinality(t_scope), 0) loop
        s_has_steps[t_scope[step]] := true;
    end loop;

    if w_budget is not null then
        if not w_all_there then
            -- In one statement and in the order of the keys, those that are there too: they are locked and not written.
            insert into quotas.windows as w (budget_id, group_key, window_start, tenant_id, currency)
            select k.budget_id, k.group_key, k.window_start, k.tenant_id, k.currency
            from unnest(w_budget, w_group, w_start, w_tenant, w_currency) with ordinality
                as k (budget_id, group_key, window_start, tenant_id, currency, n)
            order by k.n
            on conflict (budget_id, group_key, window_start) do update set held = w.held where false;
        end if;
        select
            array_agg(k.posted + k.held order by k.n),
            array_agg(k.posted order by k.n),
            array_agg(
                (
                    select min(t.threshold * k.limit_amount)
                    from unnest(k.thresholds || 1::numeric) as t (threshold)
                    where k.posted + k.held < t.threshold * k.limit_amount or k.limit_amount = 0
                )
                order by k.n
            )
        into w_taken, w_posted, w_note
        from (
            select
                u.n,
                w.posted,
                w.held,
                b.thresholds,
                quotas.limit_of(b.limit_amount, o.budget_id, o.limit_amount) as limit_amount
            from unnest(w_budget, w_group, w_start) with ordinality as u (budget_id, group_key, window_start, n)
            join quotas.windows as w using (budget_id, group_key, window_start)
            join quotas.budgets as b using (budget_id)
            left join quotas.group_limits as o on o.budget_id = w.budget_id and o.group_key = w.group_key
            order by u.n
            for no key update of w
        ) as k;
        w_held := array_fill(0::numeric, array[cardinality(w_budget)]);
        -- A correction may have taken something off a limit while this waited for the locks.
        if (select v.budgets from ledger.versions as v) <> budgets_version then
            raise exception using errcode = 'TS003', message = 'budgets have changed while the asks were decided';
        end if;
    end if;

    o_scope := a_scope;
    o_amounts := array_fill(null::text, array[asks]);
    o_tightest := array_fill(null::integer, array[asks]);
    o_asked := o_amounts;
    o_remaining := o_amounts;
    o_retry := o_amounts;
    o_route := o_amounts;
    o_cap := array_fill(null::bigint, array[asks]);

    -- Where all asks fit together each of them fits in its turn, whatever the order, and nobody has to walk. What is noted,
    -- unknown or degraded is left to the walk below.
    all_fit := w_budget is not null and not is_booking;
    if all_fit then
        m_sum := array_fill(null::numeric, array[cardinality(m_scope)]);
        for sums in
            select
                a.scope,
                case when count(a.charge) = count(*) then sum(a.charge) end as charge,
                case when count(a.cost) = count(*) then sum(a.cost) end as cost,
                case when count(a.input) = count(*) then sum(a.input) end as input,
                case when count(a.output) = count(*) then sum(a.output) end as output,
                case when count(a.reads) = count(*) then sum(a.reads) end as reads,
                count(*) as asks
            from unnest(a_scope, a_charge, a_cost, a_input, a_output, a_reads, o_outcome)
                as a (scope, charge, cost, input, output, reads, outcome)
            where a.outcome is null
            group by a.scope
        loop
            u := array[
                sums.charge, sums.cost, sums.input + sums.output, sums.input, sums.output, sums.input - sums.reads, sums.asks
            ];
            for match in s_first[sums.scope]..s_last[sums.scope] loop
                m_sum[match] := u[m_unit_no[match]];
                all_fit := all_fit and m_sum[match] is not null;
                w_held[m_window[match]] := w_held[m_window[match]] + m_sum[match];
            end loop;
        end loop;
        for match in 1..cardinality(m_scope) loop
            left_over := w_taken[m_window[match]] + w_held[m_window[match]];
            if
                m_sum[match] is not null
                and (left_over > least(m_first[match], m_ceiling[match]) or left_over >= w_note[m_window[match]])
            then
                all_fit := false;
            end if;
        end loop;
        if all_fit then
            for each_window in 1..cardinality(w_taken) loop
                w_taken[each_window] := w_taken[each_window] + w_held[each_window];
            end loop;
            s_tightest := array_fill(null::integer, array[cardinality(s_tenant)]);
            s_left := array_fill(null::numeric, array[cardinality(s_tenant)]);
            for match in 1..cardinality(m_scope) loop
                of_scope := m_scope[match];
                left_over := m_ceiling[match] - w_taken[m_window[match]];
                if
                    m_sum[match] is not null
                    and m_hardness[match] <> 'shadow'
                    and left_over is not null
                    and (s_left[of_scope] is null or left_over * m_sum[s_tightest[of_scope]] < s_left[of_scope] * m_sum[match])
                then
                    s_tightest[of_scope] := match;
                    s_left[of_scope] := left_over;
                end if;
            end loop;
            select
                array_agg(coalesce(a.outcome, 'admitted') order by a.n),
                array_agg('{' || coalesce(l.amounts, '') || '}' order by a.n),
                array_agg(t.tightest order by a.n),
                array_agg(l.asked order by a.n),
                array_agg(trim_scale(t.left_over)::text order by a.n)
            into o_outcome, o_amounts, o_tightest, o_asked, o_remaining
            from unnest(a_scope, o_outcome) with ordinality as a (scope, outcome, n)
            join unnest(s_tightest, s_left) with ordinality as t (tightest, left_over, scope) on t.scope = a.scope
            left join (
                select
                    c.n,
                    string_agg(trim_scale(c.amount)::text, ',' order by c.place) as amounts,
                    trim_scale(max(c.amount) filter (where c.place = s_tightest[c.scope]))::text as asked
                from (
                    select
                        b.n,
                        b.scope,
                        m.place,
                        case m.unit_no
                            when 1 then b.charge
                            when 2 then b.cost
                            when 3 then b.input + b.output
                            when 4 then b.input
                            when 5 then b.output
                            when 6 then b.input - b.reads
                            else 1
                        end as amount
                    from unnest(a_scope, a_charge, a_cost, a_input, a_output, a_reads) with ordinality
                        as b (scope, charge, cost, input, output, reads, n)
                    join unnest(m_scope, m_unit_no) with ordinality as m (scope, unit_no, place) on m.scope = b.scope
                ) as c
                group by c.n
            ) as l on l.n = a.n;
        else
            w_held := array_fill(0::numeric, array[cardinality(w_budget)]);
        end if;
    end if;

    for ask in 1..asks loop
        exit when all_fit;
        if o_outcome[ask] is not null then
            continue;
        end if;
        of_scope := a_scope[ask];
        u := array[
            a_charge[ask], a_cost[ask], a_input[ask] + a_output[ask], a_input[ask], a_output[ask],
            a_input[ask] - a_reads[ask], 1
        ];
        refusal := null;
        tightest := null;
        held := array[]::numeric[];
        fits := true;

        -- As asked.
        for match in s_first[of_scope]..s_last[of_scope] loop
            amount := u[m_unit_no[match]];
            if amount is null then
                if a_given[ask] then
                    if m_unknown_price[match] = 'refuse' and m_last[match] is not null then
                        refusal := coalesce(refusal, 'unknown_price');
                        tightest := coalesce(tightest, match);
                    end if;
                    amount := 0;
                elsif m_missing[match] = 'refuse' and m_last[match] is not null then
                    refusal := coalesce(refusal, 'missing_estimate');
                    tightest := coalesce(tightest, match);
                    amount := 0;
                else
                    amount := coalesce(m_missing_amount[match], 0);
                end if;
            end if;
            held := held || amount;
            if w_taken[m_window[match]] + amount > m_first[match] then
                fits := false;
            end if;
        end loop;
        if is_booking then
            fits := true;
            refusal := null;
        end if;
        is_admitted := fits and refusal is null;
        is_degraded := false;
        as_asked := held;
        variant := of_scope;

        -- On a step down, where one of them is in force for what was asked and leaves room.
        if not is_admitted and refusal is null and s_has_steps[of_scope] then
            for step in 1..cardinality(t_scope) loop
                if t_scope[step] <> of_scope then
                    continue;
                end if;
                match := t_match[step];
                if w_taken[m_window[match]] + as_asked[match - s_first[of_scope] + 1] <= t_at[step] then
                    continue;
                end if;
                variant := t_variant[step];
                u := array[
                    a_charge[ask], a_cost[ask],
                    a_input[ask] + least(a_output[ask], t_cap[step]), a_input[ask], least(a_output[ask], t_cap[step]),
                    a_input[ask] - a_reads[ask], 1
                ];
                held := array[]::numeric[];
                is_admitted := true;
                for other in s_first[variant]..s_last[variant] loop
                    if
                        t_hold[step] is not null
                        and m_unit[other] = m_unit[match]
                        and m_currency[other] is not distinct from m_currency[match]
                    then
                        amount := t_hold[step];
                    else
                        amount := u[m_unit_no[other]];
                    end if;
                    if amount is null then
                        if
                            m_last[other] is not null
                            and 'refuse' = (case when a_given[ask] then m_unknown_price[other] else m_missing[other] end)
                        then
                            is_admitted := false;
                        end if;
                        amount := case when a_given[ask] then 0 else coalesce(m_missing_amount[other], 0) end;
                    end if;
                    held := held || amount;
                    if
                        w_taken[m_window[other]] + amount
                        > (case when m_budget[other] = m_budget[match] then t_until[step] else m_last[other] end)
                    then
                        is_admitted := false;
                    end if;
                end loop;
                if is_admitted then
                    is_degraded := true;
                    o_route[ask] := t_route[step];
                    o_cap[ask] := t_cap[step];
                    o_scope[ask] := variant;
                    d_ask := d_ask || ask;
                    d_kind := d_kind || 'degraded'::text;
                    d_reason := d_reason || 'limit'::text;
                    d_match := d_match || match;
                    d_asked := d_asked || as_asked[match - s_first[of_scope] + 1];
                    d_taken := d_taken || w_taken[m_window[match]];
                    exit;
                end if;
            end loop;
        end if;

        if is_admitted then
            o_outcome[ask] := case when is_degraded then 'degraded' else 'admitted' end;
            literal := '';
            tightest_left := null;
            for match in s_first[variant]..s_last[variant] loop
                amount := held[match - s_first[variant] + 1];
                literal := literal || ',' || trim_scale(amount);
                left_over := w_taken[m_window[match]] + amount;
                if m_last[match] is null and left_over > m_ceiling[match] then
                    d_ask := d_ask || ask;
                    d_kind := d_kind || m_hardness[match];
                    d_reason := d_reason || 'limit'::text;
                    d_match := d_match || match;
                    d_asked := d_asked || amount;
                    d_taken := d_taken || w_taken[m_window[match]];
                end if;
                w_taken[m_window[match]] := left_over;
                w_held[m_window[match]] := w_held[m_window[match]] + amount;
                if left_over >= w_note[m_window[match]] then
                    reaches_note := true;
                end if;
                left_over := m_ceiling[match] - left_over;
                if
                    m_hardness[match] <> 'shadow'
                    and left_over is not null
                    and (tightest_left is null or left_over * tightest_amount < tightest_left * amount)
                then
                    tightest := match;
                    tightest_left := left_over;
                    tightest_amount := amount;
                end if;
            end loop;
            o_amounts[ask] := '{' || substr(literal, 2) || '}';
            if tightest_left is not null then
                o_tightest[ask] := tightest;
                o_asked[ask] := trim_scale(tightest_amount);
                o_remaining[ask] := trim_scale(tightest_left);
            end if;
        else
            -- Of what stands in the way, what has the least left for such a call; and what each of them waits for.
            retry := '';
            tightest_left := null;
            u := array[
                a_charge[ask], a_cost[ask], a_input[ask] + a_output[ask], a_input[ask], a_output[ask],
                a_input[ask] - a_reads[ask], 1
            ];
            if refusal is null then
                for match in s_first[of_scope]..s_last[of_scope] loop
                    amount := coalesce(u[m_unit_no[match]], case when a_given[ask] then 0 else m_missing_amount[match] end, 0);
                    if w_taken[m_window[match]] + amount > m_first[match] then
                        retry := retry || ',' || match || case
                            when amount > m_first[match] then 'n'
                            when w_posted[m_window[match]] + amount > m_first[match] then 'p'
                            else 'h'
                        end;
                        left_over := m_first[match] - w_taken[m_window[match]];
                        if tightest_left is null or left_over * tightest_amount < tightest_left * amount then
                            tightest := match;
                            tightest_left := left_over;
                            tightest_amount := amount;
                        end if;
                    end if;
                end loop;
                refusal := 'limit';
                o_retry[ask] := substr(retry, 2);
            else
                tightest_amount := null;
                tightest_left := m_ceiling[tightest] - w_taken[m_window[tightest]];
            end if;
            o_outcome[ask] := refusal;
            o_tightest[ask] := tightest;
            o_asked[ask] := trim_scale(tightest_amount);
            o_remaining[ask] := trim_scale(tightest_left);
            d_ask := d_ask || ask;
            d_kind := d_kind || 'refused'::text;
            d_reason := d_reason || refusal;
            d_match := d_match || tightest;
            d_asked := d_asked || tightest_amount;
            d_taken := d_taken || w_taken[m_window[tightest]];
        end if;
    end loop;

    insert into quotas.reservations (
        tenant_id, reservation_id, content_hash, operation_id, basis, state, provider_account, feature, model, route, lane,
        api_key_id, input_tokens, output_tokens, step, budget_ids, group_keys, window_starts, reserved, posted_under,
        decided_at, expires_at
    )
    select
        a.tenant_id, a.reservation_id, a.hash, a.operation_id, a.basis, 'held', s.provider_account, s.feature, s.model,
        s.route, s.lane, s.api_key_id, a.input_tokens, least(a.output_tokens, a.cap),
        case
            when a.outcome = 'degraded'
                then jsonb_strip_nulls(jsonb_build_object('route', a.step_route, 'output_tokens_max', a.cap))
        end,
        coalesce(m.budget_ids, '{}'), coalesce(m.group_keys, '{}'), coalesce(m.window_starts, '{}'),
        a.amounts::numeric[], coalesce(m.zeros, '{}'),
        decided_at, decided_at + a.ttl * interval '1 second'
    from unnest(
        a_tenant, a_id, a_hash, a_operation, a_basis, a_input, a_output, a_ttl, o_outcome, o_scope, o_amounts, o_route, o_cap
    ) as a (
        tenant_id, reservation_id, hash, operation_id, basis, input_tokens, output_tokens, ttl, outcome, scope, amounts,
        step_route, cap
    )
    join unnest(s_provider_account, s_feature, s_model, s_route, s_lane, s_api_key) with ordinality
        as s (provider_account, feature, model, route, lane, api_key_id, n)
        on s.n = a.scope
    left join (
        select
            b.scope,
            array_agg(b.budget_id order by b.place) as budget_ids,
            array_agg(b.group_key order by b.place) as group_keys,
            array_agg(b.window_start order by b.place) as window_starts,
            array_agg(0::numeric) as zeros
        from unnest(m_scope, m_budget, m_group, m_start) with ordinality as b (scope, budget_id, group_key, window_start, place)
        group by b.scope
    ) as m on m.scope = a.scope
    where a.outcome in ('admitted', 'degraded')
    order by a.tenant_id, a.reservation_id;

    update quotas.windows as w
    set held = w.held + c.held
    from unnest(w_budget, w_group, w_start, w_held) as c (budget_id, group_key, window_start, held)
    where
        w.budget_id = c.budget_id
        and w.group_key = c.group_key
        and w.window_start = c.window_start
        and c.held <> 0;

    if is_booking then
        insert into quotas.excess (budget_id, group_key, window_start, change, cause)
        select e.budget_id, e.group_key, e.window_start, e.change, 'away'
        from (
            select
                c.budget_id,
                c.group_key,
                c.window_start,
                greatest(c.taken - l.limit_amount, 0) - greatest(c.taken - c.held - l.limit_amount, 0) as change
            from unnest(w_budget, w_group, w_start, w_held, w_taken) as c (budget_id, group_key, window_start, held, taken)
            join quotas.budgets as b using (budget_id)
            left join quotas.group_limits as o on o.budget_id = c.budget_id and o.group_key = c.group_key
            cross join lateral (select quotas.limit_of(b.limit_amount, o.budget_id, o.limit_amount) as limit_amount) as l
            where b.hardness = 'hard' and l.limit_amount is not null
        ) as e
        where e.change <> 0;
    end if;

    if reaches_note then
        insert into quotas.threshold_notes (budget_id, group_key, window_start, threshold)
        select c.budget_id, c.group_key, c.window_start, t.threshold
        from unnest(w_budget, w_group, w_start, w_taken) as c (budget_id, group_key, window_start, taken)
        join quotas.budgets as b using (budget_id)
        left join quotas.group_limits as o on o.budget_id = c.budget_id and o.group_key = c.group_key
        cross join lateral (select quotas.limit_of(b.limit_amount, o.budget_id, o.limit_amount) as limit_amount) as l
        cross join unnest(b.thresholds || 1::numeric) as t (threshold)
        where c.taken >= t.threshold * l.limit_amount and (l.limit_amount > 0 or c.taken > 0)
        on conflict do nothing;
    end if;

    if d_ask <> '{}' then
        insert into quotas.decisions (
            at, tenant_id, reservation_id, operation_id, kind, reason, budget_id, group_key, window_start, asked, taken,
            limit_amount, feature, model, route, lane, api_key_id
        )
        select
            decided_at, a_tenant[d.ask], a_id[d.ask], a_operation[d.ask], d.kind, d.reason, m_budget[d.match],
            m_group[d.match], m_start[d.match], d.asked, d.taken, m_ceiling[d.match], s_feature[a_scope[d.ask]],
            s_model[a_scope[d.ask]], s_route[a_scope[d.ask]], s_lane[a_scope[d.ask]], s_api_key[a_scope[d.ask]]
        from unnest(d_ask, d_kind, d_reason, d_match, d_asked, d_taken) as d (ask, kind, reason, match, asked, taken);
    end if;
end
$$;

-- Lets go of holds: the changes of windows, each once and in the order of its key, and what they do to the excess.
create or replace function quotas.change_holds(
    budget_ids text[], group_keys text[], window_starts date[], changes numeric[]
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
begin
    with changed as materialized (
        select c.budget_id, c.group_key, c.window_start, sum(c.change) as change
        from unnest(budget_ids, group_keys, window_starts, changes) as c (budget_id, group_key, window_start, change)
        group by 1, 2, 3
        having sum(c.change) <> 0
    ),

    locked as materialized (
        select w.budget_id, w.group_key, w.window_start
        from changed as c
        join quotas.windows as w using (budget_id, group_key, window_start)
        order by w.budget_id, w.group_key, w.window_start
        for no key update of w
    ),

    written as (
        update quotas.windows as w
        set held = w.held + c.change
        from locked as l
        join changed as c using (budget_id, group_key, window_start)
        where w.budget_id = l.budget_id and w.group_key = l.group_key and w.window_start = l.window_start
        returning w.budget_id, w.group_key, w.window_start, w.posted + w.held as taken, c.change
    ),

    limited as (
        select
            w.budget_id,
            w.group_key,
            w.window_start,
            greatest(w.taken - l.limit_amount, 0) - greatest(w.taken - w.change - l.limit_amount, 0) as change
        from written as w
        join quotas.budgets as b using (budget_id)
        left join quotas.group_limits as g on g.budget_id = w.budget_id and g.group_key = w.group_key
        cross join lateral (select quotas.limit_of(b.limit_amount, g.budget_id, g.limit_amount) as limit_amount) as l
        where b.hardness = 'hard' and l.limit_amount is not null
    )

    insert into quotas.excess (budget_id, group_key, window_start, change, cause)
    select l.budget_id, l.group_key, l.window_start, l.change, 'release'
    from limited as l
    where l.change <> 0;
end
$$;

-- Ends what is held: `settle` says that the call has ended and its usage is to come, `void` that there was none. Only what
-- is held moves; of everything else it is told where it stands. `release` is a person's word for usage that will not come: it
-- ends what awaits an entry too.
create or replace function quotas.end_reservations(
    act text,
    tenants text[],
    ids text[],
    charges numeric[],
    costs numeric[],
    inputs bigint[],
    outputs bigint[],
    wanted_at timestamptz
) returns table (n bigint, state text, is_changed boolean, expires_at timestamptz)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    ended constant text := case act when 'settle' then 'awaiting_entry' when 'void' then 'voided' when 'release' then 'voided' end;
    from_states constant text[] := case act when 'release' then '{held,awaiting_entry}' else '{held}' end;
    now_at timestamptz;
    moved record;
begin
    perform pg_advisory_xact_lock_shared(7411001);
    now_at := coalesce(wanted_at, clock_timestamp());
    perform
    from quotas.reservations as r
    where (r.tenant_id, r.reservation_id) in (select * from unnest(tenants, ids))
    order by r.tenant_id, r.reservation_id
    for no key update of r;

    return query
    select
        a.n,
        case when r.state = any (from_states) then ended else r.state end,
        r.state = any (from_states),
        r.expires_at
    from unnest(tenants, ids) with ordinality as a (tenant_id, reservation_id, n)
    join quotas.reservations as r using (tenant_id, reservation_id);

    -- What becomes of each is found beside its own row: a list of all holds would be read through once for each.
    with said as materialized (
        select distinct on (a.tenant_id, a.reservation_id) a.*
        from unnest(tenants, ids, charges, costs, inputs, outputs)
            as a (tenant_id, reservation_id, charge, cost, input_tokens, output_tokens)
        order by a.tenant_id, a.reservation_id
    ),

    closing as materialized (
        select s.tenant_id, s.reservation_id, r.budget_ids, r.group_keys, r.window_starts, h.stated, h.changes
        from said as s
        -- `offset 0` makes it a look-up by key for each, whatever the planner believes.
        cross join lateral (
            select *
            from quotas.reservations as q
            where q.tenant_id = s.tenant_id and q.reservation_id = s.reservation_id and q.state = any (from_states)
            offset 0
        ) as r
        cross join lateral (
            select
                array_agg(k.stated order by k.place) as stated,
                array_agg(
                    quotas.hold_of(ended, k.reserved, k.stated, k.posted_under)
                    - quotas.hold_of(r.state, k.reserved, k.stated_before, k.posted_under)
                    order by k.place
                ) as changes
            from (
                select
                    u.place,
                    u.reserved,
                    u.stated as stated_before,
                    u.posted_under,
                    least(
                        u.reserved,
                        case
                            when act = 'settle' then
                                case b.unit
                                    when 'charge' then s.charge
                                    when 'cost' then s.cost
                                    when 'input_tokens' then s.input_tokens
                                    when 'output_tokens' then s.output_tokens
                                    when 'total_tokens' then s.input_tokens + s.output_tokens
                                end
                        end
                    ) as stated
                from unnest(r.budget_ids, r.reserved, r.stated, r.posted_under) with ordinality
                    as u (budget_id, reserved, stated, posted_under, place)
                join quotas.budgets as b on b.budget_id = u.budget_id
            ) as k
        ) as h
    ),

    written as (
        update quotas.reservations as r
        set state = ended, ended_at = coalesce(r.ended_at, now_at), stated = case when act = 'settle' then c.stated else r.stated end
        from closing as c
        where r.tenant_id = c.tenant_id and r.reservation_id = c.reservation_id
    )

    select
        array_agg(u.budget_id) as budget_ids,
        array_agg(u.group_key) as group_keys,
        array_agg(u.window_start) as window_starts,
        array_agg(u.change) as changes
    into moved
    from closing as c
    cross join lateral unnest(c.budget_ids, c.group_keys, c.window_starts, c.changes)
        as u (budget_id, group_key, window_start, change);
    if moved.budget_ids is not null then
        perform quotas.change_holds(moved.budget_ids, moved.group_keys, moved.window_starts, moved.changes);
    end if;
end
$$;

-- Gives a call that goes on more time. Never less.
create or replace function quotas.extend_reservations(tenants text[], ids text[], ttls integer[], wanted_at timestamptz)
returns table (n bigint, state text, is_changed boolean, expires_at timestamptz)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    now_at timestamptz := coalesce(wanted_at, clock_timestamp());
begin
    perform
    from quotas.reservations as r
    where (r.tenant_id, r.reservation_id) in (select * from unnest(tenants, ids))
    order by r.tenant_id, r.reservation_id
    for no key update of r;

    return query
    with said as materialized (
        select
            r.tenant_id,
            r.reservation_id,
            r.state,
            r.expires_at,
            max(greatest(r.expires_at, now_at + a.ttl * interval '1 second')) as until
        from unnest(tenants, ids, ttls) as a (tenant_id, reservation_id, ttl)
        join quotas.reservations as r using (tenant_id, reservation_id)
        group by r.tenant_id, r.reservation_id
    ),

    written as (
        update quotas.reservations as r
        set expires_at = s.until
        from said as s
        where
            r.tenant_id = s.tenant_id
            and r.reservation_id = s.reservation_id
            and s.state = 'held'
            and s.until > s.expires_at
    )

    select
        a.n,
        s.state,
        s.state = 'held' and s.until > s.expires_at,
        case when s.state = 'held' then s.until else s.expires_at end
    from unnest(tenants, ids) with ordinality as a (tenant_id, reservation_id, n)
    join said as s using (tenant_id, reservation_id);
end
$$;

-- The append time up to which everything is posted: the least of the Kafka feeds; now, where there are none; null where one
-- has been claimed and has posted nothing yet. A feed whose topic was made anew will never move again: it is left out once
-- one of the same cluster and partition is a day further.
create or replace function quotas.low_watermark(now_at timestamptz) returns timestamptz
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
    select
        case
            when count(*) = 0 then now_at
            when bool_or(f.posted_until is null) then null
            else least(min(f.posted_until), now_at)
        end
    from ledger.feeds as f
    where
        f.kind = 'kafka'
        and not exists (
            select
            from ledger.feeds as n
            where
                n.kind = 'kafka'
                and n.feed_id > f.feed_id
                and split_part(n.name, ':', 2) = split_part(f.name, ':', 2)
                and split_part(n.name, ':', -1) = split_part(f.name, ':', -1)
                and n.posted_until > f.posted_until + interval '1 day'
        )
$$;

-- Lets go of holds that nobody has spoken of in time, as far as everything that could speak of them is posted.
create or replace function quotas.expire_reservations(rows_max integer, wanted_at timestamptz)
returns table (expired_count bigint, watermark timestamptz)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
    now_at timestamptz;
    late record;
    moved record;
begin
    perform pg_advisory_xact_lock_shared(7411001);
    now_at := coalesce(wanted_at, clock_timestamp());
    watermark := quotas.low_watermark(now_at);
    expired_count := 0;
    if watermark is not null then
        -- Whatever somebody else is about to move need not expire now.
        select array_agg(l.tenant_id) as tenants, array_agg(l.reservation_id) as ids
        into late
        from (
            select r.tenant_id, r.reservation_id
            from quotas.reservations as r
            join (
                select c.tenant_id, c.reservation_id
                from quotas.reservations as c
                where c.state in ('held', 'awaiting_entry') and c.state = 'held' and c.expires_at < watermark
                order by c.expires_at
                limit rows_max
            ) as c using (tenant_id, reservation_id)
            where r.state = 'held' and r.expires_at < watermark
            order by r.tenant_id, r.reservation_id
            for no key update of r skip locked
        ) as l;
        if late.ids is not null then
            with gone as (
                update quotas.reservations as r
                set state = 'expired', ended_at = now_at
                from unnest(late.tenants, late.ids) as l (tenant_id, reservation_id)
                where r.tenant_id = l.tenant_id and r.reservation_id = l.reservation_id
                returning r.*
            )

            select
                count(distinct (g.tenant_id, g.reservation_id)) as gone_count,
                array_agg(h.budget_id) as budget_ids,
                array_agg(h.group_key) as group_keys,
                array_agg(h.window_start) as window_starts,
                array_agg(-quotas.hold_of('held', h.reserved, h.stated, h.posted_under)) as changes
            into moved
            from gone as g
            left join lateral unnest(g.budget_ids, g.group_keys, g.window_starts, g.reserved, g.stated, g.posted_under)
                as h (budget_id, group_key, window_start, reserved, stated, posted_under) on true;
            expired_count := moved.gone_count;
            perform quotas.change_holds(moved.budget_ids, moved.group_keys, moved.window_starts, moved.changes);
        end if;
    end if;
    return next;
end
$$;

-- Forgets what is over: decisions and closed reservations from before an instant. Usage that comes later for one of these
-- counts as unreserved, and its id can be asked under anew.
create or replace function quotas.forget_decisions(before timestamptz, rows_max integer) returns bigint
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    forgotten bigint;
    more bigint;
begin
    delete from quotas.decisions
    where decision_id in (
        select d.decision_id from quotas.decisions as d where d.at < before order by d.decision_id limit rows_max
    );
    get diagnostics forgotten = row_count;
    delete from quotas.reservations as r
    using (
        select c.tenant_id, c.reservation_id
        from quotas.reservations as c
        where c.state not in ('held', 'awaiting_entry') and c.decided_at < before and c.ended_at < before
        order by c.tenant_id, c.reservation_id
        limit rows_max
        for update skip locked
    ) as c
    where r.tenant_id = c.tenant_id and r.reservation_id = c.reservation_id;
    get diagnostics more = row_count;
    return forgotten + more;
end
$$;

do $$
declare
    name text;
begin
    foreach name in array array[
        'quotas.reserve', 'quotas.end_reservations', 'quotas.extend_reservations', 'quotas.expire_reservations',
        'quotas.forget_decisions', 'quotas.change_holds'
    ]
    loop
        execute format('revoke all on function %s from public', name);
    end loop;
end
$$;
grant execute on function quotas.reserve, quotas.end_reservations, quotas.extend_reservations to tallystick_writer;
grant execute on function quotas.expire_reservations, quotas.forget_decisions to tallystick_operator;
grant execute on function quotas.end_reservations to tallystick_operator;
grant select on quotas.reservations, quotas.holds, quotas.budgets to tallystick_writer;
grant select on quotas.reservations, quotas.decisions, quotas.holds, quotas.overshoots, quotas.awaiting_entries,
    quotas.tokens_in_flight
    to tallystick_api, tallystick_operator, tallystick_analyst, tallystick_billing, tallystick_rollup;
