-- One row per entry, book and meter: quantity, unit price and amount. The lines of an entry sum to its amount exactly.
create or replace view ledger.entry_lines
with (security_invoker = true)
as
with meters as (
    select
        e.posting_period,
        e.entry_id,
        e.tenant_id,
        e.occurred_at,
        e.cost_rate_set_id,
        e.charge_rate_set_id,
        m.meter,
        m.quantity
    from ledger.entries as e
    cross join lateral (
        values
            ('uncached_input_tokens', e.uncached_input_tokens),
            ('cache_read_tokens', e.cache_read_tokens),
            ('cache_write_5m_tokens', e.cache_write_5m_tokens),
            ('cache_write_1h_tokens', e.cache_write_1h_tokens),
            ('cache_write_other_tokens', e.cache_write_other_tokens),
            ('visible_output_tokens', e.visible_output_tokens),
            ('reasoning_tokens', e.reasoning_tokens)
        union all
        select o.key, o.value::bigint
        from jsonb_each_text(coalesce(e.other_quantities, '{}')) as o
    ) as m (meter, quantity)
    where m.quantity <> 0
)
select
    m.posting_period,
    m.entry_id,
    m.tenant_id,
    m.occurred_at,
    s.book,
    m.meter,
    m.quantity,
    r.price,
    r.per,
    r.priced_as,
    s.currency,
    -- Exact: `per` is a power of ten, and ten to minus nine is the finest step that a rate is divided into.
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
    end as amount
from meters as m
-- A rate set is of one book, so each meter meets at most one rate of each. As a lateral list of the two sets, each entry
-- read all rates there are once the planner had statistics.
join ledger.rates as r on r.rate_set_id in (m.cost_rate_set_id, m.charge_rate_set_id) and r.meter = m.meter
join ledger.rate_sets as s on s.rate_set_id = r.rate_set_id;

comment on view ledger.entry_lines is 'One row per entry, book and meter; amounts of a priced entry sum to it exactly. Fees, corrections and converted prices have lines like any other; what a billing rule frees has lines of zero.';
comment on column ledger.entry_lines.posting_period is 'The month that the entry is billed in: name it, and one partition is read.';
comment on column ledger.entry_lines.entry_id is 'The entry that the line belongs to.';
comment on column ledger.entry_lines.tenant_id is 'Who pays.';
comment on column ledger.entry_lines.occurred_at is 'When the call ended.';
comment on column ledger.entry_lines.book is 'cost: what we owe the provider; charge: what the tenant owes us.';
comment on column ledger.entry_lines.meter is 'What is counted; `operations` is the unit of a fee.';
comment on column ledger.entry_lines.quantity is 'How much of it, in the meter''s unit; negative where a correction takes back.';
comment on column ledger.entry_lines.price is 'For `per` units, in `currency`, unrounded: as the rate set of the entry says.';
comment on column ledger.entry_lines.per is 'Units that the price is for, a power of ten.';
comment on column ledger.entry_lines.priced_as is 'The meter whose rate was taken, where the card had none for this one.';
comment on column ledger.entry_lines.currency is 'Of price and amount, ISO 4217.';
comment on column ledger.entry_lines.amount is 'quantity x price / per, exactly.';

-- Alembic makes its own table; it should say what it is, like every other.
comment on table ledger.alembic_version is 'One row: the revision that the tables are at.';
comment on column ledger.alembic_version.version_num is 'The revision''s id; migrations/versions has them.';
