-- What a month was charged against what it cost, by {dimensions} and currencies; see tallystick/commands/margin.py.
-- Parameters: month (its first day), tenant or null. By days, usage is of the month of its local day, and a UTC hour of a node of
-- the month of its tenant in which it begins. By billing, usage is of the month whose invoice it is on, late or not; a
-- node's bill is of its hours whenever their usage is billed, so costs are standard prices and nodes are left out.
with usage as (
    {usage}
),

charged as (
    select
        tenant_id,
        feature,
        provider,
        model,
        charge_currency,
        cost_currency,
        sum(charge_amount) as charge_amount,
        sum(cost_amount) as standard_amount,
        sum(request_count) as request_count,
        sum(cost_unpriced_count) as cost_unpriced_count,
        sum(charge_unpriced_count) as charge_unpriced_count,
        sum(usage_missing_count) as usage_missing_count
    from usage
    group by tenant_id, feature, provider, model, charge_currency, cost_currency
),

node_hours as (
    select a.*
    from marts.fct_gpu_allocation_hourly as a
    join ledger.periods as m on m.tenant_id = a.tenant_id and m.posting_period = %(month)s
    where
        a.starts_at >= m.starts_at
        and a.starts_at < m.ends_at
        and (%(tenant)s::text is null or a.tenant_id = %(tenant)s)
        and a.kind in ('request', 'idle')
        and not %(billed)s
),

-- Where usage of one kind was charged in two currencies, nobody can say whose the node was: the larger charge takes it.
charge_currencies as (
    select distinct on (tenant_id, feature, provider, model)
        tenant_id,
        feature,
        provider,
        model,
        charge_currency
    from charged
    order by tenant_id, feature, provider, model, charge_amount desc, charge_currency
),

-- Each part of a cost is a row: the standard price; less that of what a node's bill pays for; and the share of the bill.
parts as (
    select
        tenant_id,
        feature,
        provider,
        model,
        false as is_idle,
        charge_currency,
        cost_currency,
        charge_amount,
        standard_amount as cost_amount,
        standard_amount,
        request_count,
        0 as node_request_count,
        false as is_of_node,
        cost_unpriced_count,
        charge_unpriced_count,
        usage_missing_count,
        0 as unrated_hour_count
    from charged
    union all
    select
        n.tenant_id,
        n.feature,
        n.provider,
        n.model,
        false,
        coalesce(c.charge_currency, ''),
        p.currency,
        0,
        p.amount,
        0,
        0,
        p.request_count,
        p.is_of_node,
        0,
        0,
        0,
        0
    from node_hours as n
    left join charge_currencies as c using (tenant_id, feature, provider, model)
    cross join lateral (
        values (n.standard_currency, -n.standard_amount, 0, false), (n.currency, n.node_amount, n.request_count, true)
    ) as p (currency, amount, request_count, is_of_node)
    where n.kind = 'request' and n.node_amount is not null and (p.is_of_node or p.amount <> 0)
    union all
    select
        tenant_id,
        feature,
        provider,
        model,
        true,
        '',
        currency,
        0,
        coalesce(node_amount, 0),
        0,
        0,
        0,
        true,
        0,
        0,
        0,
        (node_amount is null)::integer
    from node_hours
    where kind = 'idle'
),

folded as (
    select
        {dimensions},
        is_idle,
        charge_currency,
        cost_currency,
        sum(charge_amount) as charge_amount,
        sum(cost_amount) as cost_amount,
        sum(standard_amount) as standard_amount,
        sum(request_count) as request_count,
        sum(node_request_count) as node_request_count,
        bool_or(is_of_node) as is_of_node,
        sum(cost_unpriced_count) as cost_unpriced_count,
        sum(charge_unpriced_count) as charge_unpriced_count,
        sum(usage_missing_count) as usage_missing_count,
        sum(unrated_hour_count) as unrated_hour_count
    from parts
    group by {groups} is_idle, charge_currency, cost_currency
),

-- A charge against costs of two currencies has no margin in either, also where one of them is nothing but the charge's own row.
compared as (
    select
        *,
        count(*) filter (where cost_amount <> 0) over same_charge - (cost_amount <> 0)::integer as other_cost_count,
        sum(request_count) over same_charge as all_request_count,
        sum(node_request_count) over same_charge as all_node_request_count
    from folded
    window same_charge as (partition by {groups} is_idle, charge_currency)
)

select
    {chosen},
    charge_currency,
    trim_scale(charge_amount),
    cost_currency,
    trim_scale(cost_amount),
    case
        when is_idle then 'idle'
        -- A node's bill in another currency takes its standard cost out of this row.
        when not is_of_node and cost_amount = standard_amount then 'standard'
        when all_node_request_count = all_request_count then 'actual'
        else 'part actual'
    end,
    trim_scale(standard_amount),
    case
        when is_idle or (charge_currency = cost_currency and other_cost_count = 0)
            then trim_scale(charge_amount - cost_amount)
    end,
    request_count::bigint,
    cost_unpriced_count::bigint,
    charge_unpriced_count::bigint,
    usage_missing_count::bigint,
    unrated_hour_count::bigint
from compared
order by {groups} is_idle, charge_currency, cost_currency
