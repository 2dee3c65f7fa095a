-- What the usage of an invoice (`is_credit_note` false) or of a credit note comes to by meter, day and price, with what the price is.
--
-- The mart holds a tenant's whole month. Entries that a credit note for usage took stand on no invoice, so they are
-- taken off here, and are all that the credit note has.
with credited_entries as (
    select e.*
    from billing.credited_entries as c
    join billing.documents as d on d.document_id = c.document_id
    join ledger.entries as e on e.posting_period = c.posting_period and e.entry_id = c.entry_id
    where
        c.tenant_id = %(tenant_id)s
        and case
            when %(is_credit_note)s then d.document_id = %(document_id)s
            else
                c.posting_period = %(posting_period)s
                and not exists (select from billing.voids as v where v.document_id = d.document_id)
        end
),

credited as (
    select
        e.local_date,
        'Correction' as charge_class,
        coalesce(e.feature, '') as feature,
        e.language,
        coalesce(e.provider, '') as provider,
        coalesce(e.model, '') as model,
        coalesce(e.route, '') as route,
        coalesce(e.lane, '') as lane,
        coalesce(e.region, '') as region,
        coalesce(e.service_tier, '') as service_tier,
        l.meter as sku_meter,
        case l.meter when 'amount_stated' then 0 else e.charge_rate_set_id end as rate_set_id,
        l.currency::text as currency,
        l.quantity as consumed_quantity,
        l.amount as billed_cost
    from credited_entries as e
    join ledger.entry_lines as l on l.posting_period = e.posting_period and l.entry_id = e.entry_id
    where l.book = 'charge' and l.currency = any(%(currencies)s)
),

charged as (
    select
        f.local_date,
        f.charge_class,
        f.feature,
        f.language,
        f.provider,
        f.model,
        f.route,
        f.lane,
        f.region,
        f.service_tier,
        f.sku_meter,
        f.rate_set_id,
        f.billing_currency as currency,
        f.consumed_quantity,
        f.billed_cost
    from marts.fct_focus_charges as f
    where
        not %(is_credit_note)s
        and f.tenant_id = %(tenant_id)s
        and f.posting_period = %(posting_period)s
        and f.billing_currency = any(%(currencies)s)
        and f.sku_meter <> ''

    union all

    select
        local_date,
        charge_class,
        feature,
        language,
        provider,
        model,
        route,
        lane,
        region,
        service_tier,
        sku_meter,
        rate_set_id,
        currency,
        case when %(is_credit_note)s then consumed_quantity else -consumed_quantity end,
        case when %(is_credit_note)s then billed_cost else -billed_cost end
    from credited
),

summed as (
    select
        local_date,
        charge_class,
        feature,
        language,
        provider,
        model,
        route,
        lane,
        region,
        service_tier,
        sku_meter,
        rate_set_id,
        currency,
        sum(consumed_quantity) as quantity,
        sum(billed_cost) as cost
    from charged
    group by 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13
)

select
    s.local_date,
    s.charge_class,
    s.feature,
    s.language,
    s.provider,
    s.model,
    s.route,
    s.lane,
    s.region,
    s.service_tier,
    s.sku_meter,
    s.rate_set_id,
    s.currency,
    s.quantity,
    s.cost,
    r.price,
    r.per,
    t.selectors,
    k.tenant_id is not null as is_own_price
from summed as s
left join ledger.rates as r on r.rate_set_id = s.rate_set_id and r.meter = s.sku_meter
left join ledger.rate_sets as t on t.rate_set_id = s.rate_set_id
left join ledger.cards as k on k.content_hash = t.card_hash
where s.quantity <> 0 or s.cost <> 0
order by 1, 2, 3, 5, 6, 11, 12, 13, 4, 7, 8, 9, 10
