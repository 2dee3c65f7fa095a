-- Makes the windows of a budget in force (null: of all) what ledger and reservations say, and returns those that were not,
-- with how many reservations held in them had another amount posted under them than their entries say. The
-- caller holds the calendar alone, so no entry comes in between; asks do, and wait at the windows. Reservations are locked
-- before windows, each by key, as everywhere. Months whose rows have left the ledger cannot be folded: their windows stay.
create or replace function quotas.rebuild_windows(wanted text)
returns table (
    budget_id text,
    group_key text,
    window_start date,
    tenant_id text,
    posted_before numeric,
    posted numeric,
    held_before numeric,
    held numeric,
    unpriced_count_before bigint,
    unpriced_count bigint,
    unpriced_tokens_before bigint,
    unpriced_tokens bigint,
    reservation_count bigint
)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    foldable_from constant date := coalesce(
        (select (max(m.posting_period) + interval '1 month')::date from ledger.retired_months as m where not m.is_readable),
        '-infinity'
    );
    in_force constant text[] := array(
        select b.budget_id from quotas.budgets as b where b.ended_at is null and (wanted is null or b.budget_id = wanted)
    );
    wrong_tenants text[];
    wrong_ids text[];
    right_amounts text[];
begin
    with folded as materialized (
        select f.tenant_id, f.reservation_id, f.budget_id, f.posted from quotas.fold_reservations() as f
    ),

    wrong as (
        select distinct h.tenant_id, h.reservation_id
        from quotas.holds as h
        left join folded as f using (tenant_id, reservation_id, budget_id)
        where
            h.budget_id = any (in_force)
            and h.window_start >= foldable_from
            and h.posted_under <> coalesce(f.posted, 0)
    ),

    righted as (
        select
            r.tenant_id,
            r.reservation_id,
            array_agg(
                case
                    when h.budget_id = any (in_force) and h.window_start >= foldable_from then coalesce(f.posted, 0)
                    else h.posted_under
                end
                order by h.place
            )::text as posted_under
        from wrong as w
        join quotas.reservations as r using (tenant_id, reservation_id)
        cross join lateral unnest(r.budget_ids, r.window_starts, r.posted_under) with ordinality
            as h (budget_id, window_start, posted_under, place)
        left join folded as f
            on f.tenant_id = r.tenant_id and f.reservation_id = r.reservation_id and f.budget_id = h.budget_id
        group by r.tenant_id, r.reservation_id
    )

    select
        array_agg(g.tenant_id order by g.tenant_id, g.reservation_id),
        array_agg(g.reservation_id order by g.tenant_id, g.reservation_id),
        array_agg(g.posted_under order by g.tenant_id, g.reservation_id)
    into wrong_tenants, wrong_ids, right_amounts
    from righted as g;

    perform
    from quotas.reservations as r
    join unnest(wrong_tenants, wrong_ids) as g (tenant_id, reservation_id) using (tenant_id, reservation_id)
    order by r.tenant_id, r.reservation_id
    for no key update of r;

    update quotas.reservations as r
    set posted_under = g.posted_under::numeric[]
    from unnest(wrong_tenants, wrong_ids, right_amounts) as g (tenant_id, reservation_id, posted_under)
    where r.tenant_id = g.tenant_id and r.reservation_id = g.reservation_id;

    perform
    from quotas.windows as w
    where w.budget_id = any (in_force)
    order by w.budget_id, w.group_key, w.window_start
    for no key update;

    -- A statement of its own, so that it sees what was committed before the windows were locked.
    return query
    with ledgers as (
        select f.*
        from unnest(case when wanted is null then array[null] else in_force end) as b (budget_id)
        cross join lateral quotas.fold_windows(b.budget_id) as f
    ),

    holds as (
        select h.budget_id, h.group_key, h.window_start, sum(h.held) as held
        from quotas.holds as h
        where h.state in ('held', 'awaiting_entry') and h.budget_id = any (in_force)
        group by h.budget_id, h.group_key, h.window_start
    ),

    -- The windows in which reservations that were wrong are held.
    reservations as (
        select h.budget_id, h.group_key, h.window_start, count(*) as reservation_count
        from quotas.holds as h
        join unnest(wrong_tenants, wrong_ids) as g (tenant_id, reservation_id) using (tenant_id, reservation_id)
        where h.budget_id = any (in_force)
        group by h.budget_id, h.group_key, h.window_start
    ),

    right_now as (
        select
            budget_id,
            group_key,
            window_start,
            coalesce(w.tenant_id, f.tenant_id) as tenant_id,
            coalesce(w.currency, f.currency) as currency,
            w.budget_id is not null as is_there,
            coalesce(w.posted, 0) as posted_before,
            coalesce(f.posted, 0) as posted,
            coalesce(w.held, 0) as held_before,
            coalesce(h.held, 0) as held,
            coalesce(w.unpriced_count, 0) as unpriced_count_before,
            coalesce(f.unpriced_count, 0) as unpriced_count,
            coalesce(w.unpriced_tokens, 0) as unpriced_tokens_before,
            coalesce(f.unpriced_tokens, 0) as unpriced_tokens,
            coalesce(r.reservation_count, 0) as reservation_count,
            f.batch_id
        from (select * from quotas.windows as k where k.budget_id = any (in_force)) as w
        full join ledgers as f using (budget_id, group_key, window_start)
        full join holds as h using (budget_id, group_key, window_start)
        left join reservations as r using (budget_id, group_key, window_start)
        where window_start >= foldable_from
    ),

    differing as materialized (
        select d.*
        from right_now as d
        where
            (d.posted_before, d.held_before, d.unpriced_count_before, d.unpriced_tokens_before)
            is distinct from (d.posted, d.held, d.unpriced_count, d.unpriced_tokens)
            or d.reservation_count > 0
    ),

    updated as (
        update quotas.windows as w
        set
            posted = d.posted,
            held = d.held,
            unpriced_count = d.unpriced_count,
            unpriced_tokens = d.unpriced_tokens,
            last_batch_id = greatest(w.last_batch_id, d.batch_id)
        from differing as d
        where w.budget_id = d.budget_id and w.group_key = d.group_key and w.window_start = d.window_start
    ),

    added as (
        insert into quotas.windows (
            budget_id, group_key, window_start, tenant_id, currency, posted, held, unpriced_count, unpriced_tokens, last_batch_id
        )
        select
            d.budget_id, d.group_key, d.window_start, d.tenant_id, d.currency, d.posted, d.held, d.unpriced_count,
            d.unpriced_tokens, d.batch_id
        from differing as d
        where not d.is_there
    )

    select
        d.budget_id,
        d.group_key,
        d.window_start,
        d.tenant_id,
        d.posted_before,
        d.posted,
        d.held_before,
        d.held,
        d.unpriced_count_before,
        d.unpriced_count,
        d.unpriced_tokens_before,
        d.unpriced_tokens,
        d.reservation_count
    from differing as d
    order by d.budget_id, d.group_key, d.window_start;
end
$$;

revoke all on function quotas.rebuild_windows(text) from public;
grant execute on function quotas.rebuild_windows(text) to tallystick_operator;
