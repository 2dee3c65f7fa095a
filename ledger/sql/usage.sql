-- What a tenant used and owes, by its local day, model, feature and currency; the statement of ledger/usage.py.
with read as materialized (
    select
        e.local_date,
        coalesce(e.model, '') as model,
        coalesce(e.feature, '') as feature,
        coalesce(e.charge_currency::text, '') as currency,
        e.request_count,
        e.charge_amount,
        e.uncached_input_tokens,
        e.cache_read_tokens,
        e.cache_write_5m_tokens,
        e.cache_write_1h_tokens,
        e.cache_write_other_tokens,
        e.visible_output_tokens,
        e.reasoning_tokens,
        e.other_quantities,
        e.usage_flags
    from ledger.entries as e
    where
        e.tenant_id = %(tenant)s
        -- For the index: a local day begins at most fourteen hours before and ends at most twelve after that of UTC.
        and e.occurred_at >= (%(first)s::date::timestamp - interval '1 day') at time zone 'UTC'
        and e.occurred_at < (%(end)s::date::timestamp + interval '1 day') at time zone 'UTC'
        and e.local_date >= %(first)s
        and e.local_date < %(end)s
        and e.kind <> 'evidence'
        and (e.local_date, coalesce(e.model, ''), coalesce(e.feature, ''), coalesce(e.charge_currency::text, ''))
        > (%(after_date)s::date, %(after_model)s::text, %(after_feature)s::text, %(after_currency)s::text)
),

page as materialized (
    select
        local_date,
        model,
        feature,
        currency,
        sum(request_count)::bigint as request_count,
        coalesce(sum(charge_amount), 0) as charge_amount,
        coalesce(sum(request_count) filter (where charge_amount is null), 0)::bigint as unpriced_count,
        coalesce(sum(request_count) filter (where 'usage_missing' = any (usage_flags)), 0)::bigint as missing_count,
        sum(uncached_input_tokens) as uncached_input_tokens,
        sum(cache_read_tokens) as cache_read_tokens,
        sum(cache_write_5m_tokens) as cache_write_5m_tokens,
        sum(cache_write_1h_tokens) as cache_write_1h_tokens,
        sum(cache_write_other_tokens) as cache_write_other_tokens,
        sum(visible_output_tokens) as visible_output_tokens,
        sum(reasoning_tokens) as reasoning_tokens
    from read
    group by local_date, model, feature, currency
    order by local_date, model, feature, currency
    limit %(limit)s
),

others as materialized (
    select
        r.local_date,
        r.model,
        r.feature,
        r.currency,
        o.key as meter,
        sum(o.value::numeric) as quantity
    from read as r
    cross join lateral jsonb_each_text(r.other_quantities) as o
    where r.other_quantities is not null
    group by r.local_date, r.model, r.feature, r.currency, o.key
)

select
    p.local_date,
    p.model,
    p.feature,
    p.currency,
    p.request_count,
    trim_scale(p.charge_amount)::text as charge_amount,
    p.unpriced_count,
    p.missing_count,
    (
        select json_object_agg(q.meter, q.quantity order by q.meter)
        from (
            values
                ('uncached_input_tokens', p.uncached_input_tokens),
                ('cache_read_tokens', p.cache_read_tokens),
                ('cache_write_5m_tokens', p.cache_write_5m_tokens),
                ('cache_write_1h_tokens', p.cache_write_1h_tokens),
                ('cache_write_other_tokens', p.cache_write_other_tokens),
                ('visible_output_tokens', p.visible_output_tokens),
                ('reasoning_tokens', p.reasoning_tokens)
            union all
            select
                o.meter,
                o.quantity
            from others as o
            where
                o.local_date = p.local_date
                and o.model = p.model
                and o.feature = p.feature
                and o.currency = p.currency
        ) as q (meter, quantity)
        where q.quantity <> 0
    )::text as quantities
from page as p
order by p.local_date, p.model, p.feature, p.currency
