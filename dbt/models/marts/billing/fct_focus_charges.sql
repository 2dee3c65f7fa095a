{%- set columns = [
    "tenant_id", "posting_period", "local_date", "charge_class", "feature", "language", "provider", "model", "route", "lane",
    "region", "service_tier", "sku_meter", "rate_set_id", "charge_currency as billing_currency",
] -%}
{%- set said = [
    "tenant_id", "posting_period", "local_date", "feature", "language", "provider", "model", "route", "lane", "region",
    "service_tier", "charge_currency",
] -%}
{%- set meters = [
    "uncached_input_tokens", "cache_read_tokens", "cache_write_5m_tokens", "cache_write_1h_tokens", "cache_write_other_tokens",
    "visible_output_tokens", "reasoning_tokens",
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
        {%- for column in said + meters %}
        u.{{ column }},
        {%- endfor %}
        u.charge_rate_set_id as rate_set_id,
        u.other_quantities,
        u.charge_amount,
        u.request_count,
        coalesce(u.input_tokens + u.output_tokens, 0) as tokens,
        u.charge_amount is not null as is_priced,
        u.charge_amount <> 0 and u.usage_flags @> '{amount_stated}' as is_stated,
        -- A better report of something that is billed in the same month corrects nothing that was invoiced. By key, since few
        -- rows correct something.
        case
            when u.corrects_entry_id is null then ''
            when (
                select true
                from {{ ref('stg_ledger__entries') }} as o
                where o.posting_period = u.posting_period and o.entry_id = u.corrects_entry_id
            ) then ''
            else 'Correction'
        end as charge_class
    from unconsumed as u
    where u.kind <> 'evidence'
),

-- Summed before there is a row for each meter: what one rate set prices adds up before it is priced as after.
summed as (
    select
        {{ said | join(",\n        ") }},
        charge_class,
        rate_set_id,
        is_priced,
        is_stated,
        other_quantities,
        count(*) as entry_count,
        {%- for meter in meters %}
        sum({{ meter }}) as {{ meter }},
        {%- endfor %}
        sum(charge_amount) as charge_amount,
        sum(sign(charge_amount)) as amount_count,
        sum(request_count) as request_count,
        sum(tokens) as tokens
    from classed
    group by {{ said | join(", ") }}, charge_class, rate_set_id, is_priced, is_stated, other_quantities
),

metered as (
    select
        s.*,
        m.meter as sku_meter,
        m.quantity as consumed_quantity,
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
    from summed as s
    cross join lateral (
        values
            {%- for meter in meters %}
            ('{{ meter }}', s.{{ meter }}){{ "," if not loop.last }}
            {%- endfor %}
        union all
        -- All entries of the row have the same.
        select
            o.key,
            o.value::bigint * s.entry_count
        from jsonb_each_text(coalesce(s.other_quantities, '{}')) as o
    ) as m (meter, quantity)
    inner join rates as r on r.rate_set_id = s.rate_set_id and r.meter = m.meter
    where m.quantity <> 0 and s.is_priced
),

stated as (
    select
        s.*,
        'amount_stated' as sku_meter,
        s.amount_count as consumed_quantity,
        s.charge_amount as billed_cost,
        0 as unpriced_count,
        0 as unpriced_tokens
    from summed as s
    where s.is_stated
),

-- What has no price is no charge of zero: it stands as a count, under no meter.
unpriced as (
    select
        s.*,
        '' as sku_meter,
        0 as consumed_quantity,
        0 as billed_cost,
        s.request_count as unpriced_count,
        s.tokens as unpriced_tokens
    from summed as s
    where not s.is_priced
),

charges as (
    {%- for rows in ["metered", "stated", "unpriced"] %}
    select
        {{ said | join(",\n        ") }},
        charge_class,
        sku_meter,
        {{ "0 as " if rows != "metered" }}rate_set_id,
        consumed_quantity,
        billed_cost,
        unpriced_count,
        unpriced_tokens
    from {{ rows }}
    {{- "\n    union all" if not loop.last }}
    {%- endfor %}
),

folded as (
    {{ folded('charges', columns, [
        "consumed_quantity", "billed_cost", "unpriced_count as charge_unpriced_count", "unpriced_tokens as charge_unpriced_tokens",
    ]) }}
)

select * from folded
