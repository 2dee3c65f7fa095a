with active as materialized (
    select
        b.*,
        -- A budget over tenants has no zone of its own: its days are those of UTC.
        b.tenant_id is null and not 'tenant_id' = any (b.group_by) as is_shared
    from quotas.budgets as b
    where b.ended_at is null and {which_budgets}
),

-- Only the dimensions that some budget looks at take part in the grouping, so that few rows are left to match.
uses as materialized (
    select
        coalesce(bool_or(provider_account is not null or 'provider_account' = any (group_by)), false) as provider_account,
        coalesce(bool_or(feature is not null or 'feature' = any (group_by)), false) as feature,
        coalesce(bool_or(model is not null or 'model' = any (group_by)), false) as model,
        coalesce(bool_or(route is not null or 'route' = any (group_by)), false) as route,
        coalesce(bool_or(lane is not null or 'lane' = any (group_by)), false) as lane,
        coalesce(bool_or(api_key_id is not null or 'api_key_id' = any (group_by)), false) as api_key_id,
        coalesce(bool_or(subject_id is not null or 'subject_id' = any (group_by)), false) as subject_id,
        coalesce(bool_or(tags is not null), false) as tags,
        coalesce(bool_or(is_shared), false) as shared_days
    from active
),

scoped as materialized (
    select
        e.tenant_id,
        e.local_date,
        case when u.shared_days then (e.occurred_at at time zone 'UTC')::date end as utc_date,
        e.cost_currency,
        e.charge_currency,
        case when u.provider_account then e.provider_account end as provider_account,
        case when u.feature then e.feature end as feature,
        case when u.model then e.model end as model,
        case when u.route then e.route end as route,
        case when u.lane then e.lane end as lane,
        case when u.api_key_id then e.api_key_id end as api_key_id,
        case when u.subject_id then e.subject_id end as subject_id,
        case when u.tags then e.tags end as tags,
        e.kind in ('adjustment', 'reversal') as is_correction,
        {reservation tenant} as reservation_tenant,
        {reservation id} as reservation_id,
        max(e.batch_id) as batch_id,
        coalesce(sum(e.cost_amount), 0) as cost,
        coalesce(sum(e.charge_amount), 0) as charge,
        coalesce(sum(e.input_tokens), 0) as input_tokens,
        coalesce(sum(e.output_tokens), 0) as output_tokens,
        coalesce(
            sum(
                e.cache_read_tokens
                + case
                    when e.other_quantities is null then 0
                    else
                        coalesce((e.other_quantities ->> 'cache_read_audio_tokens')::bigint, 0)
                        + coalesce((e.other_quantities ->> 'cache_read_image_tokens')::bigint, 0)
                        + coalesce((e.other_quantities ->> 'cache_read_video_tokens')::bigint, 0)
                        + coalesce((e.other_quantities ->> 'cache_read_document_tokens')::bigint, 0)
                end
            ),
            0
        ) as cache_reads,
        sum(e.request_count) as requests,
        coalesce(sum(e.request_count) filter (where e.cost_amount is null), 0) as cost_unpriced,
        coalesce(sum(e.request_count) filter (where e.charge_amount is null), 0) as charge_unpriced,
        coalesce(sum(e.request_count) filter (where e.input_tokens is null), 0) as usage_missing,
        coalesce(sum(e.input_tokens + e.output_tokens) filter (where e.cost_amount is null), 0) as cost_unpriced_tokens,
        coalesce(sum(e.input_tokens + e.output_tokens) filter (where e.charge_amount is null), 0) as charge_unpriced_tokens
    from {source_rows} as e
    cross join uses as u
    where e.kind <> 'evidence'
    group by 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16
),

-- Rows may differ by reservation only. Which budgets a row falls under, and in which windows, is found once for all that
-- are alike in what budgets look at; as text they are told apart, nulls too.
scopes as materialized (
    select distinct
        s.tenant_id,
        s.local_date,
        s.utc_date,
        s.cost_currency,
        s.charge_currency,
        s.provider_account,
        s.feature,
        s.model,
        s.route,
        s.lane,
        s.api_key_id,
        s.subject_id,
        s.tags
    from scoped as s
),

-- Two joins rather than one with `or`: budgets of one tenant are found by hash.
candidates as (
    select s.*, a.budget_id
    from scopes as s
    join active as a on a.tenant_id = s.tenant_id
    union all
    select s.*, a.budget_id
    from scopes as s
    join active as a on a.tenant_id is null
),

placed as materialized (
    select
        {scope text of c} as scope,
        a.budget_id,
        a.unit,
        a.first_window,
        quotas.window_start(
            a.window_kind, a.window_days, a.anchor, case when a.is_shared then c.utc_date else c.local_date end
        ) as window_start,
        case
            when a.group_by = '{}' then ''
            else
                quotas.group_key(
                    a.group_by, c.tenant_id, c.provider_account, c.feature, c.model, c.route, c.lane, c.api_key_id,
                    c.subject_id, case a.unit when 'cost' then c.cost_currency when 'charge' then c.charge_currency end
                )
        end as group_key,
        case when not a.is_shared then c.tenant_id end as tenant_id,
        case a.unit when 'cost' then c.cost_currency when 'charge' then c.charge_currency end as currency
    from candidates as c
    join active as a using (budget_id)
    where
        {in scope}
)

select
    p.budget_id,
    p.group_key,
    p.window_start,
    p.tenant_id,
    p.currency,
    s.is_correction,
    s.reservation_tenant,
    s.reservation_id,
    s.batch_id,
    case p.unit
        when 'charge' then s.charge
        when 'cost' then s.cost
        when 'total_tokens' then s.input_tokens + s.output_tokens
        when 'input_tokens' then s.input_tokens
        when 'output_tokens' then s.output_tokens
        when 'input_tokens_without_cache_reads' then s.input_tokens - s.cache_reads
        when 'requests' then s.requests
    end as posted,
    case p.unit
        when 'charge' then s.charge_unpriced
        when 'cost' then s.cost_unpriced
        when 'requests' then 0
        else s.usage_missing
    end as unpriced_count,
    case p.unit
        when 'charge' then s.charge_unpriced_tokens
        when 'cost' then s.cost_unpriced_tokens
        else 0
    end as unpriced_tokens
from placed as p
join scoped as s on {scope text of s} = p.scope
where p.window_start >= p.first_window
