with names as (
    select
        *,
        min(provider) over (partition by name) = max(provider) over (partition by name) as is_of_one_provider
    from {{ ref('int_model_names') }}
),

cards as (
    select * from {{ ref('stg_ledger__cards') }}
),

-- Of the cards that stand: one that another restates is not among them.
standing as (
    select
        c.*,
        lead(c.effective_at, 1, 'infinity') over (partition by c.provider, c.model order by c.effective_at) as until,
        bool_or(c.provider_account is not null or c.deployment is not null) over (partition by c.provider, c.model)
        as depends_on_account
    from cards as c
    where
        c.book = 'cost'
        and not exists (select from cards as r where r.replaces = c.content_hash)
),

-- Where length, region, hour or account has a say in the price, sums cannot be priced.
plain as (
    select *
    from standing as s
    where
        not s.depends_on_account
        and not s.is_withdrawal
        and {{ bands_of('s.body') }} = '{}'
        and not exists (
            select
            from jsonb_array_elements(coalesce(s.body -> 'variants', '[]')) as v
            where coalesce(v -> 'service_tiers', '[]') = '[]'
        )
),

metered as (
    select
        p.provider,
        p.model,
        p.currency,
        p.effective_at,
        p.until,
        m.meter,
        p.body -> 'rates' -> m.priced_as as price
    from plain as p
    cross join lateral (
        select
            r.key as meter,
            r.key as priced_as
        from jsonb_object_keys(p.body -> 'rates') as r (key)
        union all
        -- What every card says of these where it does not name them: see ledger/meters.py.
        select
            b.meter,
            b.priced_as
        from (
            values
                ('cache_write_other_tokens', 'cache_write_5m_tokens'),
                ('reasoning_tokens', 'visible_output_tokens'),
                ('tool_prompt_tokens', 'uncached_input_tokens'),
                ('embedding_input_tokens', 'uncached_input_tokens'),
                ('rejected_prediction_tokens', 'visible_output_tokens')
        ) as b (meter, priced_as)
        where not p.body -> 'rates' ? b.meter and p.body -> 'rates' ? b.priced_as
        union all
        -- What a card says to take where it names no price of cached input: see ledger/price_book.py.
        select
            'cache_read_tokens',
            'uncached_input_tokens'
        where
            p.body ->> 'missing_component' in ('use_input_rate', 'use_side_rate')
            and not p.body -> 'rates' ? 'cache_read_tokens'
            and p.body -> 'rates' ? 'uncached_input_tokens'
    ) as m
),

priced as (
    select
        n.provider,
        n.name,
        n.is_of_one_provider,
        m.currency,
        m.effective_at,
        m.until,
        m.meter,
        {{ unit_price("(m.price ->> 'price')::numeric", "(m.price ->> 'per')::bigint") }} as unit_price,
        exists (
            select
            from cards as c
            where c.book = 'charge' and c.provider = m.provider and c.model = m.model
        ) as has_charge_card
    from names as n
    join metered as m on m.provider = n.provider and m.model = n.model
)

select * from priced
