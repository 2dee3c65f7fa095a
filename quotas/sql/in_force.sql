-- The budgets of tenants in the windows in force at instants, with their terms, and until when that is so. Nothing in it moves: it is
-- the same until one of the versions or the clock says otherwise.
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
        v.next_at,
        -- As entries have it: days do not go back where a zone changes.
        greatest((a.at at time zone v.time_zone)::date, v.first_day) as local_date
    from asked as a
    cross join lateral (
        select
            v.time_zone,
            v.charge_currency,
            v.first_day,
            (
                select min(f.effective_at)
                from ledger.tenant_versions as f
                where f.tenant_id = a.tenant_id and f.effective_at > a.at
            ) as next_at
        from ledger.tenant_versions as v
        where v.tenant_id = a.tenant_id
        order by
            v.effective_at <= a.at desc,
            case when v.effective_at <= a.at then v.effective_at end desc,
            v.effective_at
        limit 1
    ) as v
),

-- When the next day begins.
days as materialized (
    select
        t.number,
        least(t.next_at, quotas.day_ends(t.local_date, t.time_zone, t.at)) as until
    from tenants as t
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
        -- As reservations have it: what a prepaid tenant's grant had left is gone at its end, whoever has looked since.
        case
            when starts_with(d.budget_id, 'prepaid-')
                then
                    (
                        select coalesce(sum(p.lapses), 0)
                        from quotas.turns as p
                        where p.budget_id = d.budget_id and p.at <= d.at
                    )
            else 0
        end as lapsed,
        least(
            d.ended_at,
            case
                when starts_with(d.budget_id, 'prepaid-')
                    then (select min(p.at) from quotas.turns as p where p.budget_id = d.budget_id and p.at > d.at)
            end
        ) as changes_at,
        -- Without movements only a group that is known beforehand can be shown.
        case
            when d.group_by <@ '{tenant_id,currency}' and (d.currency is not null or d.unit <> 'cost')
                then
                    quotas.group_key(
                        d.group_by, d.asked_tenant_id, null, null, null, null, null, null, null,
                        coalesce(d.currency, case when d.unit = 'charge' then d.charge_currency end)
                    )
        end as known_group,
        d.group_by <> '{}' and exists (select from quotas.group_limits as g where g.budget_id = d.budget_id) as has_own_limits
    from dated as d
)

-- One row even where none of the tenants is there, since versions and clock are always told.
select
    v.parties,
    v.calendar,
    v.budgets,
    statement_timestamp() as read_at,
    t.number,
    t.tenant_id,
    t.time_zone,
    t.at,
    least(y.until, min(s.changes_at) over (partition by t.number)) as until,
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
    s.unit,
    coalesce(s.currency, case when s.unit = 'charge' then s.charge_currency end)::text as currency,
    s.window_kind,
    s.window_days,
    s.anchor,
    s.window_start,
    s.limit_amount,
    s.lapsed,
    s.hardness,
    array(select h.threshold from unnest(s.thresholds) as h (threshold) order by h.threshold) as thresholds,
    s.known_group,
    s.has_own_limits,
    g.budget_id is not null as has_own_limit,
    g.limit_amount as own_limit
from ledger.versions as v
left join tenants as t on true
left join days as y using (number)
left join shown as s using (number)
left join quotas.group_limits as g on s.has_own_limits and g.budget_id = s.budget_id and g.group_key = s.known_group
order by t.number, s.budget_id
