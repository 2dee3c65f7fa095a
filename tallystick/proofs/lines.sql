-- A priced entry is the sum of its lines, quantity times the rate that its rate set names, digit for digit.
--
-- Most entries have the seven common quantities only. Those are multiplied out in place, with the rates of a set side by side;
-- whatever has more, or does not come to its amounts that way, is held against the view of lines.
with flat as materialized (
    select
        s.rate_set_id,
        s.book,
        coalesce(max(r.price) filter (where r.meter = 'uncached_input_tokens'), 0) as uncached_input,
        coalesce(max(r.price) filter (where r.meter = 'cache_read_tokens'), 0) as cache_read,
        coalesce(max(r.price) filter (where r.meter = 'cache_write_5m_tokens'), 0) as cache_write_5m,
        coalesce(max(r.price) filter (where r.meter = 'cache_write_1h_tokens'), 0) as cache_write_1h,
        coalesce(max(r.price) filter (where r.meter = 'cache_write_other_tokens'), 0) as cache_write_other,
        coalesce(max(r.price) filter (where r.meter = 'visible_output_tokens'), 0) as visible_output,
        coalesce(max(r.price) filter (where r.meter = 'reasoning_tokens'), 0) as reasoning
    from ledger.rate_sets as s
    left join (
        select
            rate_set_id,
            meter,
            -- Exact: `per` is a power of ten.
            price * ('1e-' || length(per::text) - 1)::numeric as price
        from ledger.rates
    ) as r on r.rate_set_id = s.rate_set_id
    group by s.rate_set_id, s.book
),

doubtful as materialized (
    select
        e.posting_period,
        e.entry_id,
        e.tenant_id,
        e.cost_amount,
        e.charge_amount
    from {entries} as e
    left join flat as c on c.rate_set_id = e.cost_rate_set_id and c.book = 'cost'
    left join flat as h on h.rate_set_id = e.charge_rate_set_id and h.book = 'charge'
    where
        e.kind <> 'evidence'
        and (
            e.other_quantities is not null
            or e.usage_flags @> '{amount_stated}'
            or e.cost_amount <> coalesce(
                coalesce(e.uncached_input_tokens, 0) * c.uncached_input
                + coalesce(e.cache_read_tokens, 0) * c.cache_read
                + coalesce(e.cache_write_5m_tokens, 0) * c.cache_write_5m
                + coalesce(e.cache_write_1h_tokens, 0) * c.cache_write_1h
                + coalesce(e.cache_write_other_tokens, 0) * c.cache_write_other
                + coalesce(e.visible_output_tokens, 0) * c.visible_output
                + coalesce(e.reasoning_tokens, 0) * c.reasoning,
                0
            )
            or e.charge_amount <> coalesce(
                coalesce(e.uncached_input_tokens, 0) * h.uncached_input
                + coalesce(e.cache_read_tokens, 0) * h.cache_read
                + coalesce(e.cache_write_5m_tokens, 0) * h.cache_write_5m
                + coalesce(e.cache_write_1h_tokens, 0) * h.cache_write_1h
                + coalesce(e.cache_write_other_tokens, 0) * h.cache_write_other
                + coalesce(e.visible_output_tokens, 0) * h.visible_output
                + coalesce(e.reasoning_tokens, 0) * h.reasoning,
                0
            )
        )
),

lines as (
    select
        l.posting_period,
        l.entry_id,
        sum(l.amount) filter (where l.book = 'cost') as cost,
        sum(l.amount) filter (where l.book = 'charge') as charge
    from ledger.entry_lines as l
    where (l.posting_period, l.entry_id) in (select d.posting_period, d.entry_id from doubtful as d)
    group by l.posting_period, l.entry_id
)

select
    format(
        'entry %s of tenant %s: its amounts are cost %s and charge %s, its lines sum to %s and %s', d.entry_id, d.tenant_id,
        trim_scale(d.cost_amount), trim_scale(d.charge_amount), trim_scale(coalesce(l.cost, 0)), trim_scale(coalesce(l.charge, 0))
    ) as failure
from doubtful as d
left join lines as l on l.posting_period = d.posting_period and l.entry_id = d.entry_id
where
    d.cost_amount <> coalesce(l.cost, 0)
    or d.charge_amount <> coalesce(l.charge, 0)
