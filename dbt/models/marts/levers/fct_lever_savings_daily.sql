{%- set columns = [
    "tenant_id", "local_date", "feature", "language", "provider", "model", "asked_model", "lever", "cost_currency", "charge_currency",
] -%}
{{ config(materialized="standing_view", incremental_strategy="none", unique_key=columns) }}

-- Not materialized: a condition on tenant and day reaches the table.
with meters as not materialized (
    select * from {{ ref('fct_meters_daily') }}
),

rates as (
    select * from {{ ref('stg_ledger__rates') }}
),

rate_sets as (
    select * from {{ ref('stg_ledger__rate_sets') }}
),

standard_rates as (
    select * from {{ ref('int_rates_of_standard_tier') }}
),

asked_rates as (
    select * from {{ ref('int_rates_of_named_models') }}
),

exchange_rates as (
    select * from {{ ref('stg_ledger__exchange_rates') }}
),

names as (
    select * from {{ ref('int_model_names') }}
),

used as not materialized (
    select * from meters where not is_avoided
),

-- Each lever as quantities, the meter whose rate was paid, and the meter whose rate would have been: of the same rate set.
cached as (
    select
        *,
        case when meter like 'cache\_read\_%' then 'prefix_cache_read' else 'prefix_cache_write' end as lever,
        meter as paid_meter,
        case
            when meter like 'cache\_read\_%' and meter <> 'cache_read_tokens' then 'uncached_input_' || substr(meter, 12)
            else 'uncached_input_tokens'
        end as other_meter
    from used
    where meter like 'cache\_read\_%' or meter like 'cache\_write\_%'
),

answered as (
    select
        *,
        'response_cache' as lever,
        null::text as paid_meter,
        meter as other_meter
    from meters
    where is_avoided
),

within_the_set as (
    select
        l.*,
        case when l.paid_meter is null then 0 else cp.unit_price end as cost_paid_price,
        co.unit_price as cost_other_price,
        case when l.paid_meter is null then 0 else hp.unit_price end as charge_paid_price,
        ho.unit_price as charge_other_price
    from (select * from cached union all select * from answered) as l
    left join rates as cp on cp.rate_set_id = l.cost_rate_set_id and cp.meter = l.paid_meter
    left join rates as co on co.rate_set_id = l.cost_rate_set_id and co.meter = l.other_meter
    left join rates as hp on hp.rate_set_id = l.charge_rate_set_id and hp.meter = l.paid_meter
    left join rates as ho on ho.rate_set_id = l.charge_rate_set_id and ho.meter = l.other_meter
),

-- The same quantities at the rates that the same card has for its standard tier.
tiered as (
    select
        u.*,
        s.service_tier || '_tier' as lever,
        cp.unit_price as cost_paid_price,
        co.unit_price as cost_other_price,
        hp.unit_price as charge_paid_price,
        ho.unit_price as charge_other_price
    from used as u
    join rate_sets as s on s.rate_set_id = u.cost_rate_set_id and s.service_tier <> ''
    left join rates as cp on cp.rate_set_id = u.cost_rate_set_id and cp.meter = u.meter
    left join standard_rates as co on co.rate_set_id = u.cost_rate_set_id and co.meter = u.meter
    left join rates as hp on hp.rate_set_id = u.charge_rate_set_id and hp.meter = u.meter
    left join standard_rates as ho on ho.rate_set_id = u.charge_rate_set_id and ho.meter = u.meter
),

-- The same quantities at the rates of the model that was asked for. Senders do not say of whom it was asked: of who answered, if
-- it has a model of that name; else of the only one that has. Another name of the model that answered is no other model.
changed as (
    select
        u.*,
        'other_model' as lever,
        cp.unit_price as cost_paid_price,
        co.unit_price as cost_other_price,
        hp.unit_price as charge_paid_price,
        -- A markup on everything of the provider would have been on that model too, unless it has a card of its own. That of
        -- another provider nobody knows here.
        case
            when co.provider = u.provider and not co.has_charge_card and (m.exchange_rate_hash is null or x.rate is not null)
                then co.unit_price * m.markup * coalesce(x.rate, 1)
        end as charge_other_price
    from used as u
    left join rate_sets as s on s.rate_set_id = u.cost_rate_set_id
    left join rate_sets as m on m.rate_set_id = u.charge_rate_set_id
    left join exchange_rates as x on x.content_hash = m.exchange_rate_hash
    left join rates as cp on cp.rate_set_id = u.cost_rate_set_id and cp.meter = u.meter
    left join asked_rates as co
        on
            co.name = u.asked_model
            and (co.provider = u.provider or co.is_of_one_provider)
            and co.currency = u.cost_currency
            and co.meter = u.meter
            and s.service_tier = ''
            -- The card was in force all through the day, in whatever zone.
            and (u.local_date - 1)::timestamp at time zone 'UTC' >= co.effective_at
            and (u.local_date + 2)::timestamp at time zone 'UTC' <= co.until
    left join rates as hp on hp.rate_set_id = u.charge_rate_set_id and hp.meter = u.meter
    where
        u.asked_model <> ''
        and s.is_freed is not true
        and not exists (
            select
            from names as n
            where n.provider = u.provider and n.name = u.asked_model and n.model = u.model
        )
),

-- All of an attempt that came after another; of a continuation, what it reads again of the text so far.
again as (
    select
        u.*,
        u.attempt_kind as lever,
        cp.unit_price as cost_paid_price,
        0 as cost_other_price,
        hp.unit_price as charge_paid_price,
        0 as charge_other_price
    from used as u
    left join rates as cp on cp.rate_set_id = u.cost_rate_set_id and cp.meter = u.meter
    left join rates as hp on hp.rate_set_id = u.charge_rate_set_id and hp.meter = u.meter
    where
        u.attempt_kind <> 'first'
        and (
            u.attempt_kind <> 'continuation'
            or u.meter like '%input%'
            or u.meter like 'cache%'
            or u.meter in ('requests', 'tool_prompt_tokens', 'pages', 'characters')
        )
),

compared as (
    {%- for relation in ["within_the_set", "tiered", "changed", "again"] %}
    select
        {{ columns | join(",\n        ") }},
        meter,
        quantity,
        cost_paid_price,
        cost_other_price,
        charge_paid_price,
        charge_other_price
    from {{ relation }}
    {%- if not loop.last %}

    union all
    {% endif %}
    {%- endfor %}
),

folded as (
    select
        {{ columns | join(",\n        ") }},
        coalesce(sum(quantity) filter (where meter = 'requests'), 0)::bigint as request_count,
        coalesce(sum(quantity) filter (where meter like '%tokens'), 0)::bigint as token_count,
        {%- for book in ["cost", "charge"] %}
        coalesce(sum(quantity * {{ book }}_other_price) filter (where {{ book }}_is_compared), 0) as {{ book }}_without_amount,
        coalesce(sum(quantity * {{ book }}_paid_price) filter (where {{ book }}_is_compared), 0) as {{ book }}_paid_amount,
        coalesce(sum(quantity * ({{ book }}_other_price - {{ book }}_paid_price)) filter (where {{ book }}_is_compared), 0)
        as {{ book }}_saved_amount,
        coalesce(sum(quantity) filter (where meter like '%tokens' and not {{ book }}_is_compared), 0)::bigint
        as {{ book }}_uncompared_tokens{{ "," if not loop.last }}
        {%- endfor %}
    from (
        select
            *,
            meter <> 'requests' and cost_paid_price is not null and cost_other_price is not null as cost_is_compared,
            meter <> 'requests' and charge_paid_price is not null and charge_other_price is not null as charge_is_compared
        from compared
    ) as c
    group by {{ columns | join(", ") }}
)

select * from folded
