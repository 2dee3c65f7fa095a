with rate_sets as (
    select * from {{ ref('stg_ledger__rate_sets') }}
),

rates as (
    select * from {{ ref('stg_ledger__rates') }}
),

cards as (
    select * from {{ ref('stg_ledger__cards') }}
),

exchange_rates as (
    select * from {{ ref('stg_ledger__exchange_rates') }}
),

tiered as (
    select
        s.*,
        coalesce(x.rate, 1) as exchange_rate
    from rate_sets as s
    left join exchange_rates as x on x.content_hash = s.exchange_rate_hash
    where s.service_tier <> '' and (s.exchange_rate_hash is null or x.rate is not null)
),

-- The part of the card that prices the same call in the standard tier. Not where a region or an hour has a say, and not where
-- tier and card have other bands: which of them the call would be in nobody can tell from sums.
standard as (
    select
        t.rate_set_id,
        t.content_hash,
        t.exchange_rate,
        case
            when t.band is null or {{ bands_of('c.body') }} = '{}' then c.body -> 'rates'
            else (
                select b -> 'rates'
                from jsonb_array_elements(c.body -> 'bands') as b
                where (b ->> 'operator') || (b ->> 'input_tokens') = t.band
            )
        end as prices
    from tiered as t
    join cards as c on c.content_hash = t.card_hash
    where
        t.markup is null
        and t.region = ''
        and t.hours = ''
        and not exists (
            select
            from jsonb_array_elements(coalesce(c.body -> 'variants', '[]')) as v
            where
                coalesce(v -> 'service_tiers', '[]') = '[]'
                or (
                    array_to_string(array(select jsonb_array_elements_text(v -> 'service_tiers')), '|') = t.service_tier
                    and {{ bands_of('c.body') }} not in ('{}', {{ bands_of('v') }})
                )
        )
),

own as (
    select
        s.rate_set_id,
        s.content_hash,
        r.meter,
        {{ unit_price("(p.price ->> 'price')::numeric", "(p.price ->> 'per')::bigint") }} * s.exchange_rate as unit_price
    from standard as s
    join rates as r on r.rate_set_id = s.rate_set_id
    cross join lateral (select coalesce(s.prices -> r.meter, s.prices -> r.priced_as) as price) as p
    where p.price is not null
),

-- A markup over cost: what the cost would be, times the factor.
over_cost as (
    select
        t.rate_set_id,
        o.meter,
        o.unit_price * t.markup * t.exchange_rate as unit_price
    from tiered as t
    join own as o on o.content_hash = t.cost_hash
    where t.markup is not null
),

all_rates as (
    select
        rate_set_id,
        meter,
        unit_price
    from own
    union all
    select
        rate_set_id,
        meter,
        unit_price
    from over_cost
)

select * from all_rates
