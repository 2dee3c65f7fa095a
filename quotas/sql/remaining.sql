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
        (a.at at time zone v.time_zone)::date as local_date
    from asked as a
    cross join lateral (
        select
            v.time_zone,
            v.charge_currency
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
pairs as (
    select
        t.number,
        b.budget_id
    from tenants as t
    join quotas.budgets as b on b.tenant_id = t.tenant_id
    union all
    select
        t.number,
        b.budget_id
    from tenants as t
    join quotas.budgets as b on b.tenant_id is null and 'tenant_id' = any (b.group_by)
),

scoped as materialized (
    select
        t.number,
        t.tenant_id as asked_tenant_id,
        t.charge_currency,
        b.*,
        quotas.window_start(b.window_kind, b.window_days, b.anchor, t.local_date) as window_start,
        -- The one group that is known before anything has moved it.
        case
            when b.group_by = '{}' then ''
            when b.group_by <@ '{tenant_id,currency}' and (b.currency is not null or b.unit <> 'cost') then
                quotas.group_key(
                    b.group_by, t.tenant_id, null, null, null, null, null, null, null,
                    case when b.unit in ('charge', 'cost') then coalesce(b.currency, t.charge_currency) end
                )
        end as known_group
    from pairs as p
    join tenants as t using (number)
    join quotas.budgets as b using (budget_id)
    where b.ended_at is null or b.ended_at > t.at
),

shown as (
    select
        s.number,
        s.budget_id,
        jsonb_strip_nulls(
            jsonb_build_object(
                'tenant_id', s.asked_tenant_id,
                'provider_account', s.provider_account,
                'feature', s.feature,
                'model', s.model,
                'route', s.route,
                'lane', s.lane,
                'api_key_id', s.api_key_id,
                'subject_id', s.subject_id,
                'tags', s.tags
            )
        )::text as scope,
        s.group_by,
        coalesce(w.group_key, s.known_group) as group_key,
        s.unit,
        coalesce(w.currency, s.currency, case when s.unit = 'charge' then s.charge_currency end)::text as currency,
        s.window_kind,
        s.window_days,
        s.anchor,
        s.window_start,
        s.limit_amount,
        coalesce(w.posted, 0) as posted,
        coalesce(w.held, 0) as held,
        s.hardness,
        coalesce(w.unpriced_count, 0) as unpriced_count,
        w.last_batch_id
    from scoped as s
    left join quotas.windows as w
        on w.tenant_id = s.asked_tenant_id
        and w.window_start = s.window_start
        and w.budget_id = s.budget_id
    where s.window_start >= s.first_window and (w.budget_id is not null or s.known_group is not null)
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
    s.scope,
    s.group_by,
    s.group_key,
    s.unit,
    s.currency,
    s.window_kind,
    s.window_days,
    s.anchor,
    s.window_start,
    trim_scale(s.limit_amount)::text as limit_amount,
    trim_scale(s.posted)::text as posted,
    trim_scale(s.held)::text as held,
    trim_scale(s.limit_amount - s.posted - s.held)::text as remaining,
    s.hardness,
    s.unpriced_count,
    s.last_batch_id
from lag as l
left join tenants as t on true
left join shown as s using (number)
order by t.number, s.budget_id, s.group_key
