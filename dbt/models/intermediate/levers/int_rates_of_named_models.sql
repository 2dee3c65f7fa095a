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
        -- Whose rate a meter takes that the card does not name, the nearest first; two that are as near contain it both, and
        -- neither counts. On any card, or where the card says so of its side: see ledger/meters.py and ledger/price_book.py.
        select
            b.meter,
            b.priced_as
        from (
            select distinct on (f.meter)
                f.meter,
                f.priced_as,
                count(*) over (partition by f.meter, f.step) as as_near_count
            from (
                values
                    ('reasoning_tokens', 1, 'visible_output_tokens', ''),
                    ('rejected_prediction_tokens', 1, 'visible_output_tokens', ''),
                    ('tool_prompt_tokens', 1, 'uncached_input_tokens', ''),
                    ('embedding_input_tokens', 1, 'uncached_input_tokens', ''),
                    ('cache_write_other_tokens', 1, 'cache_write_5m_tokens', ''),
                    ('cache_write_other_tokens', 2, 'uncached_input_tokens', 'input'),
                    ('cache_write_5m_tokens', 1, 'cache_write_other_tokens', 'input'),
                    ('cache_write_5m_tokens', 2, 'uncached_input_tokens', 'input'),
                    ('cache_write_1h_tokens', 1, 'cache_write_other_tokens', 'input'),
                    ('cache_write_1h_tokens', 2, 'cache_write_5m_tokens', 'input'),
                    ('cache_write_1h_tokens', 3, 'uncached_input_tokens', 'input'),
                    ('cache_read_tokens', 1, 'uncached_input_tokens', 'input'),
                    {%- for kind in ["audio", "image", "video", "document"] %}
                    ('uncached_input_{{ kind }}_tokens', 1, 'uncached_input_tokens', 'input'),
                    ('cache_read_{{ kind }}_tokens', 1, 'cache_read_tokens', 'input'),
                    ('cache_read_{{ kind }}_tokens', 1, 'uncached_input_{{ kind }}_tokens', 'input'),
                    ('cache_read_{{ kind }}_tokens', 2, 'uncached_input_tokens', 'input'),
                    {%- endfor %}
                    {%- for kind in ["audio", "image", "video"] %}
                    ('visible_output_{{ kind }}_tokens', 1, 'visible_output_tokens', 'output'),
                    {%- endfor %}
                    ('citation_tokens', 1, 'visible_output_tokens', 'output')
            ) as f (meter, step, priced_as, side)
            where
                not p.body -> 'rates' ? f.meter
                and p.body -> 'rates' ? f.priced_as
                and (
                    f.side = ''
                    or p.body ->> 'missing_component' = 'use_side_rate'
                    or (p.body ->> 'missing_component' = 'use_input_rate' and f.side = 'input')
                )
            order by f.meter, f.step
        ) as b
        where b.as_near_count = 1
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
