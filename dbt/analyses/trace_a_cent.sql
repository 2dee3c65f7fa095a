-- question: From a day of the marts down to entries, lines, prices and the raw object: what is this amount made of?
-- asked by: auditors
-- one row per: line of an entry of a tenant's local day, the dearest first
select
    e.local_date,
    e.feature,
    e.model,
    e.entry_id,
    e.kind,
    e.request_id,
    l.book,
    l.meter,
    l.quantity,
    l.price,
    l.per,
    l.amount,
    l.currency,
    s.rate_set_id,
    s.card_hash,
    e.batch_id,
    e.raw_digest
from ledger.entries as e
join ledger.entry_lines as l on l.posting_period = e.posting_period and l.entry_id = e.entry_id
    and l.tenant_id = e.tenant_id and l.occurred_at = e.occurred_at
left join ledger.rate_sets as s
    on s.rate_set_id = case when l.book = 'cost' then e.cost_rate_set_id else e.charge_rate_set_id end
where
    -- Said of the lines too, which are a view: so their index is used.
    l.tenant_id = '{{ var("tenant", "") }}'
    and l.occurred_at >= date '{{ var("day", "today") }}' - interval '1 day'
    and l.occurred_at < date '{{ var("day", "today") }}' + interval '3 days'
    and e.tenant_id = '{{ var("tenant", "") }}'
    and e.local_date = date '{{ var("day", "today") }}'
    and e.occurred_at >= date '{{ var("day", "today") }}' - interval '1 day'
    and e.occurred_at < date '{{ var("day", "today") }}' + interval '3 days'
    and ('{{ var("feature", "") }}' = '' or e.feature = '{{ var("feature", "") }}')
order by abs(l.amount) desc nulls last, e.entry_id, l.book, l.meter
limit {{ var("rows", "50") }}
