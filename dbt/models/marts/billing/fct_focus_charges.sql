{%- set columns = [
    "tenant_id", "posting_period", "local_date", "charge_class", "feature", "language", "provider", "model", "route", "lane",
    "region", "service_tier", "sku_meter", "rate_set_id", "charge_currency as billing_currency",
] -%}
{{ config(one_row_per(columns)) }}

with unconsumed as (
    {{ unconsumed(ref('stg_ledger__entries')) }}
),

rates as (
    select * from {{ ref('stg_ledger__rates') }}
),

classed as (
    select
        u.*,
        -- A better report of something that is billed in the same month corrects nothing that was invoiced.
        case
            when u.corrects_entry_id is null then ''
            when exists (
                select
                from {{ ref('stg_ledger__entries') }} as o
                where o.posting_period = u.posting_period and o.entry_id = u.corrects_entry_id
            ) then ''
            else 'Correction'
        end as charge_class
    from unconsumed as u
    where u.kind <> 'evidence'
),

metered as (
    select
        c.*,
        m.meter as sku_meter,
        m.quantity as consumed_quantity,
        c.charge_rate_set_id as rate_set_id,
        -- As in ledger.entry_lines: exact, since `per` is a power of ten.
        m.quantity * r.price * case r.per
            when 1 then 1
            when 10 then 0.1
            when 100 then 0.01
            when 1000 then 0.001
            when 10000 then 0.0001
            when 100000 then 0.00001
            when 1000000 then 0.000001
            when 10000000 then 0.0000001
            when 100000000 then 0.00000001
            when 1000000000 then 0.000000001
        end as billed_cost,
        0 as unpriced_count,
        0 as unpriced_tokens
    from classed as c
    cross join lateral (
        values
            ('uncached_input_tokens', c.uncached_input_tokens),
            ('cache_read_tokens', c.cache_read_tokens),
            ('cache_write_5m_tokens', c.cache_write_5m_tokens),
            ('cache_write_1h_tokens', c.cache_write_1h_tokens),
            ('cache_write_other_tokens', c.cache_write_other_tokens),
            ('visible_output_tokens', c.visible_output_tokens),
            ('reasoning_tokens', c.reasoning_tokens)
        union all
        select
            o.key,
            o.value::bigint
        from jsonb_each_text(coalesce(c.other_quantities, '{}')) as o
    ) as m (meter, quantity)
    inner join rates as r on r.rate_set_id = c.charge_rate_set_id and r.meter = m.meter
    where m.quantity <> 0 and c.charge_amount is not null
),

stated as (
    select
        c.*,
        'amount_stated' as sku_meter,
        sign(c.charge_amount) as consumed_quantity,
        0 as rate_set_id,
        c.charge_amount as billed_cost,
        0 as unpriced_count,
        0 as unpriced_tokens
    from classed as c
    where c.usage_flags @> '{amount_stated}' and c.charge_amount <> 0
),

-- What has no price is no charge of zero: it stands as a count, under no meter.
unpriced as (
    select
        c.*,
        '' as sku_meter,
        0 as consumed_quantity,
        0 as rate_set_id,
        0 as billed_cost,
        c.request_count as unpriced_count,
        coalesce(c.input_tokens + c.output_tokens, 0) as unpriced_tokens
    from classed as c
    where c.charge_amount is null
),

charges as (
    select * from metered
    union all
    select * from stated
    union all
    select * from unpriced
),

folded as (
    {{ folded('charges', columns, [
        "consumed_quantity", "billed_cost", "unpriced_count as charge_unpriced_count", "unpriced_tokens as charge_unpriced_tokens",
    ]) }}
)

select * from folded
