-- Months whose rows have left the ledger: what they came to stands in the lines of the seal that counts.
select
    l.tenant_id,
    l.local_date,
    'usage' as kind,
    l.cost_currency,
    l.charge_currency,
    l.cost_amount,
    l.charge_amount,
    l.request_count,
    l.input_tokens,
    l.output_tokens
from ledger.seal_lines as l
join ledger.periods as p
    on p.tenant_id = l.tenant_id and p.posting_period = l.posting_period and p.close_number = l.close_number
where l.posting_period = any({months})
