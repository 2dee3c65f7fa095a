-- The usage lines of what counts against the entries that they are made of, to the last digit: of an invoice the rows of its tenant
-- and month without those of credit notes, of a credit note for usage the rows that it names. Sums of counts under one price are
-- priced as their parts are, so the rows are summed first. Documents with rows in months that left are held against seals alone.
with counted as materialized (
    select
        d.document_id,
        d.kind,
        d.number,
        d.tenant_id,
        d.posting_period,
        d.currency
    from billing.documents as d
    where
        d.basis in ('period', 'usage')
        and not exists (select from billing.voids as v where v.document_id = d.document_id)
        and d.posting_period <> all ({gone})
        and not exists (
            select from billing.credited_entries as c where c.document_id = d.document_id and c.posting_period = any ({gone})
        )
),

stated as materialized (
    select
        d.document_id,
        l.line_no,
        l.charged_currency,
        l.service_start as service_month,
        l.feature,
        l.provider,
        l.model,
        l.meter,
        l.quantity,
        l.charged_amount,
        l.exact_amount,
        l.unit_price,
        l.per,
        l.exchange_rate
    from counted as d
    join billing.document_lines as l on l.document_id = d.document_id
    where l.kind = 'usage'
),

-- What an invoice in one currency speaks of: usage that was charged in it, or in what its lines convert.
covered as materialized (
    select
        d.document_id,
        d.tenant_id,
        d.posting_period,
        d.currency as charge_currency
    from counted as d
    where d.kind = 'invoice'

    union

    select
        d.document_id,
        d.tenant_id,
        d.posting_period,
        s.charged_currency
    from counted as d
    join stated as s on s.document_id = d.document_id
    where d.kind = 'invoice'
),

groups as materialized (
    select
        coalesce(n.document_id, c.document_id) as document_id,
        e.charge_currency,
        case
            when e.local_date >= e.posting_period then e.posting_period
            else date_trunc('month', e.local_date::timestamp)::date
        end as service_month,
        e.feature,
        e.provider,
        e.model,
        e.charge_rate_set_id as rate_set_id,
        e.usage_flags @> '{amount_stated}' as is_stated,
        sum(e.charge_amount) as charge,
        {meter_sums}
    from ledger.entries as e
    left join billing.credited_entries as n on n.posting_period = e.posting_period and n.entry_id = e.entry_id
    left join covered as c
        on c.posting_period = e.posting_period and c.tenant_id = e.tenant_id and c.charge_currency = e.charge_currency
    where
        e.posting_period = any ({months})
        and e.kind <> 'evidence'
        and e.charge_amount is not null
        and (n.document_id is not null or c.document_id is not null)
    group by 1, 2, 3, 4, 5, 6, 7, 8
),

rare as (
    select
        coalesce(n.document_id, c.document_id) as document_id,
        e.charge_currency,
        case
            when e.local_date >= e.posting_period then e.posting_period
            else date_trunc('month', e.local_date::timestamp)::date
        end as service_month,
        e.feature,
        e.provider,
        e.model,
        e.charge_rate_set_id as rate_set_id,
        e.usage_flags @> '{amount_stated}' as is_stated,
        o.key as meter,
        sum(o.value::numeric) as quantity
    from ledger.entries as e
    cross join lateral jsonb_each_text(e.other_quantities) as o
    left join billing.credited_entries as n on n.posting_period = e.posting_period and n.entry_id = e.entry_id
    left join covered as c
        on c.posting_period = e.posting_period and c.tenant_id = e.tenant_id and c.charge_currency = e.charge_currency
    where
        e.posting_period = any ({months})
        and e.kind <> 'evidence'
        and e.charge_amount is not null
        and e.other_quantities is not null
        and (n.document_id is not null or c.document_id is not null)
    group by 1, 2, 3, 4, 5, 6, 7, 8, 9
),

metered as (
    select
        g.document_id,
        g.charge_currency,
        g.service_month,
        g.feature,
        g.provider,
        g.model,
        g.rate_set_id,
        g.is_stated,
        m.meter,
        m.quantity
    from groups as g
    cross join lateral (values {meter_values}) as m (meter, quantity)
    where m.quantity <> 0

    union all

    select *
    from rare
    where quantity <> 0
),

priced as materialized (
    select
        m.document_id,
        m.charge_currency,
        m.service_month,
        m.feature,
        m.provider,
        m.model,
        m.is_stated,
        m.meter,
        m.quantity,
        r.price,
        r.per,
        -- Exact: `per` is a power of ten.
        m.quantity * r.price * (1::numeric / r.per) as amount
    from metered as m
    join ledger.rates as r on r.rate_set_id = m.rate_set_id and r.meter = m.meter
),

parts as (
    select
        document_id,
        charge_currency,
        service_month,
        feature,
        provider,
        model,
        meter,
        quantity,
        amount,
        price,
        per
    from priced

    union all

    -- What a person stated in money is what is left of the charge when counts are priced.
    select
        document_id,
        charge_currency,
        service_month,
        feature,
        provider,
        model,
        'amount_stated',
        0,
        charge,
        null,
        null
    from groups
    where is_stated

    union all

    select
        document_id,
        charge_currency,
        service_month,
        feature,
        provider,
        model,
        'amount_stated',
        0,
        -amount,
        null,
        null
    from priced
    where is_stated
),

-- Grouped, not joined, since features, providers and models may be null.
both_sides as (
    select
        document_id,
        charge_currency as currency,
        service_month,
        feature,
        provider,
        model,
        meter,
        quantity,
        amount,
        price,
        per,
        null::integer as line_no,
        null::numeric as unit_price,
        null::bigint as line_per,
        null::numeric as exchange_rate
    from parts

    union all

    select
        document_id,
        charged_currency,
        service_month,
        feature,
        provider,
        model,
        meter,
        quantity,
        charged_amount,
        null,
        null,
        line_no,
        unit_price,
        per,
        exchange_rate
    from stated
),

compared as (
    select
        document_id,
        currency,
        service_month,
        feature,
        provider,
        model,
        meter,
        min(line_no) as line_no,
        count(line_no) as line_count,
        coalesce(sum(quantity) filter (where line_no is null), 0) as entry_quantity,
        coalesce(sum(amount) filter (where line_no is null), 0) as entry_amount,
        coalesce(sum(quantity) filter (where line_no is not null), 0) as line_quantity,
        coalesce(sum(amount) filter (where line_no is not null), 0) as line_amount,
        case when min(price) = max(price) and min(per) = max(per) then min(price) end as price,
        case when min(price) = max(price) and min(per) = max(per) then min(per) end as per,
        min(unit_price) as unit_price,
        min(line_per) as line_per,
        coalesce(min(exchange_rate), 1) as exchange_rate
    from both_sides
    group by document_id, currency, service_month, feature, provider, model, meter
),

signed as (
    select
        c.*,
        d.kind,
        format('%s %s of tenant %s', replace(d.kind, '_', ' '), d.number, d.tenant_id) as document,
        format(
            '%s of %s for %s in %s',
            c.meter, coalesce(c.model, 'no model'), coalesce(c.feature, 'no feature'), to_char(c.service_month, 'YYYY-MM')
        ) as usage,
        case d.kind when 'invoice' then 1 else -1 end as sign
    from compared as c
    join counted as d on d.document_id = c.document_id
)

select format(
    '%s, line %s: %s of %s and %s %s, its entries come to %s and %s',
    document, line_no, trim_scale(line_quantity), usage, trim_scale(line_amount), currency,
    trim_scale(sign * entry_quantity), trim_scale(sign * entry_amount)
) as failure
from signed
where line_count > 0 and (line_quantity, line_amount) <> (sign * entry_quantity, sign * entry_amount)

union all

select format(
    '%s has no line for %s: its entries come to %s and %s %s',
    document, usage, trim_scale(sign * entry_quantity), trim_scale(sign * entry_amount), currency
)
from signed
where line_count = 0 and (entry_quantity <> 0 or entry_amount <> 0)

union all

select format('%s has %s lines for %s', document, line_count, usage)
from signed
where kind = 'invoice' and line_count > 1

union all

select format(
    '%s, line %s: a price of %s for %s, its entries have %s for %s',
    document, line_no, coalesce(trim_scale(unit_price)::text, 'several'), coalesce(line_per::text, 'none'),
    coalesce(trim_scale(price * exchange_rate)::text, 'several'), coalesce(per::text, 'none')
)
from signed
where kind = 'invoice' and line_count = 1 and (unit_price, line_per) is distinct from (price * exchange_rate, per)

union all

select format(
    '%s %s of tenant %s, line %s: exactly %s %s, and %s %s were charged at a rate of %s',
    replace(d.kind, '_', ' '), d.number, d.tenant_id, s.line_no, trim_scale(s.exact_amount), d.currency,
    trim_scale(s.charged_amount), s.charged_currency, trim_scale(coalesce(s.exchange_rate, 1))
)
from stated as s
join counted as d on d.document_id = s.document_id
where
    s.exact_amount is distinct from s.charged_amount * coalesce(s.exchange_rate, 1)
    or (s.exchange_rate is null) <> (s.charged_currency = d.currency)
