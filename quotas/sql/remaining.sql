with asked as materialized (
    select
        a.number,
        t.tenant_id,
        coalesce(a.at, statement_timestamp()) as at
    from unnest(%(tenants)s::text[], %(instants)s::timestamptz[]) with ordinality as a (tenant_id, at, number)
    join ledger.tenants as t using (tenant_id)
),

-- The version in force; before a tenant's first one, the first.
tenants as materialized (
    select
        a.number,
        a.tenant_id,
        a.at,
        v.time_zone,
        v.charge_currency,
        -- As entries have it: days do not go back where a zone changes.
        greatest((a.at at time zone v.time_zone)::date, v.first_day) as local_date
    from asked as a
    cross join lateral (
        select
            v.time_zone,
            v.charge_currency,
            v.first_day
        from ledger.tenant_versions as v
        where v.tenant_id = a.tenant_id
        order by
            v.effective_at <= a.at desc,
            case when v.effective_at <= a.at then v.effective_at end desc,
            v.effective_at
        limit 1
    ) as v
),

-- Two joins rather than one with `or`: the budgets of one tenant are found by index. A budget over several tenants is
-- nobody's to see, since what it shows is the others' usage.
scoped as materialized (
    select
        t.number,
        t.tenant_id as asked_tenant_id,
        t.charge_currency,
        t.local_date,
        t.at,
        b.*
    from tenants as t
    join quotas.budgets as b on b.tenant_id = t.tenant_id
    union all
    select
        t.number,
        t.tenant_id as asked_tenant_id,
        t.charge_currency,
        t.local_date,
        t.at,
        b.*
    from tenants as t
    join quotas.budgets as b on b.tenant_id is null and 'tenant_id' = any (b.group_by)
),

-- Most budgets share one of a few kinds of window, and most tenants the day.
turns as materialized (
    select
        k.*,
        quotas.window_start(k.window_kind, k.window_days, k.anchor, k.local_date) as window_start
    from (select distinct window_kind, window_days, anchor, local_date from scoped) as k
),

dated as materialized (
    select
        s.*,
        r.window_start
    from scoped as s
    join turns as r
        on r.window_kind = s.window_kind
        and r.local_date = s.local_date
        and r.window_days is not distinct from s.window_days
        and r.anchor is not distinct from s.anchor
    where r.window_start >= s.first_window and (s.ended_at is null or s.ended_at > s.at)
),

shown as (
    select
        d.*,
        w.group_key,
        w.currency as window_currency,
        coalesce(w.posted, 0) as posted,
        coalesce(w.held, 0) as held,
        coalesce(w.unpriced_count, 0) as unpriced_count,
        coalesce(w.unpriced_tokens, 0) as unpriced_tokens,
        w.last_batch_id,
        quotas.limit_of(d.limit_amount, g.budget_id, g.limit_amount)
        -- As reservations have it: what a prepaid tenant's grant had left is gone at its end, whoever has looked since.
        - case
            when starts_with(d.budget_id, 'prepaid-')
                then
                    (
                        select coalesce(sum(p.lapses), 0)
                        from quotas.turns as p
                        where p.budget_id = d.budget_id and p.at <= d.at
                    )
            else 0
        end as own_limit
    from dated as d
    -- The empty text keeps the planner from the primary key, by which it would read a template's windows of all tenants.
    left join quotas.windows as w
        on w.tenant_id = d.asked_tenant_id
        and w.window_start = d.window_start
        and w.budget_id || '' = d.budget_id
    left join quotas.group_limits as g
        on d.group_by <> '{}'
        and g.budget_id = d.budget_id
        and g.group_key = coalesce(
            w.group_key,
            -- Before the first movement only these two are known.
            quotas.group_key(
                d.group_by, d.asked_tenant_id, null, null, null, null, null, null, null, coalesce(d.currency, d.charge_currency)
            )
        )
    where
        w.budget_id is not null
        -- Without movements only a group that is known beforehand can be shown.
        or (d.group_by <@ '{tenant_id,currency}' and (d.currency is not null or d.unit <> 'cost'))
),

lag as materialized (
    select
        -- The broker's clock may be ahead of ours.
        max(greatest(extract(epoch from statement_timestamp() - posted_until) * 1000, 0)::bigint) filter (where is_in_use)
            as lag_ms,
        count(*) filter (where is_in_use) as in_use_count,
        count(*) filter (where not is_in_use) as silent_count
    from (
        select
            f.posted_until,
            f.posted_until > statement_timestamp() - interval '1 day' as is_in_use
        from ledger.feeds as f
        where f.kind = 'kafka' and f.posted_until is not null
    ) as feeds
)

-- One row even where none of the tenants is there, since the clock and the lag are always told.
select
    t.number,
    t.tenant_id,
    t.time_zone,
    t.at,
    statement_timestamp() as database_time,
    l.lag_ms,
    l.in_use_count,
    l.silent_count,
    max(s.last_batch_id) over (partition by t.number) as last_batch_id,
    s.budget_id,
    s.provider_account,
    s.feature,
    s.model,
    s.route,
    s.lane,
    s.api_key_id,
    s.subject_id::text as subject_id,
    s.tags::text as tags,
    s.group_by,
    s.group_key,
    s.unit,
    coalesce(s.window_currency, s.currency, case when s.unit = 'charge' then s.charge_currency end)::text as currency,
    s.window_kind,
    s.window_days,
    s.anchor,
    s.window_start,
    trim_scale(s.own_limit)::text as limit_amount,
    trim_scale(s.posted)::text as posted,
    trim_scale(s.held)::text as held,
    trim_scale(s.own_limit - s.posted - s.held)::text as remaining,
    s.hardness,
    -- The hard one with the smallest share of its limit left; a limit of zero leaves nothing to share.
    s.own_limit is not null
    and s.hardness = 'hard'
    and row_number() over (
        partition by t.number
        order by
            case
                when s.hardness <> 'hard' or s.own_limit is null then null
                when s.own_limit = 0 then '-Infinity'::numeric
                else (s.own_limit - s.posted - s.held) / s.own_limit
            end,
            s.budget_id,
            s.group_key
    ) = 1 as is_tightest,
    case
        when s.own_limit is not null and s.thresholds <> '{}'
            then
                array(
                    select trim_scale(h.threshold)::text
                    from unnest(s.thresholds) as h (threshold)
                    where s.posted + s.held >= h.threshold * s.own_limit
                    order by h.threshold
                )
        else '{}'
    end as thresholds_reached,
    s.unpriced_count,
    s.unpriced_tokens,
    s.last_batch_id
from lag as l
left join tenants as t on true
left join shown as s using (number)
order by t.number, s.budget_id, s.group_key
