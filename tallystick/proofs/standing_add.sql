-- Add new entries to the totals that the standing proof keeps. Evidence moves nothing.
insert into ledger.proof_totals as t
select
    e.tenant_id,
    date_trunc('month', e.local_date::timestamp)::date as month,
    coalesce(e.cost_currency::text, '') as cost_currency,
    coalesce(e.charge_currency::text, '') as charge_currency,
    coalesce(sum(e.cost_amount), 0),
    coalesce(sum(e.charge_amount), 0),
    coalesce(sum(e.request_count), 0),
    coalesce(sum(e.input_tokens), 0),
    coalesce(sum(e.output_tokens), 0),
    clock_timestamp()
from {rows} as e
where e.kind <> 'evidence'
group by 1, 2, 3, 4
order by 1, 2, 3, 4
on conflict (tenant_id, month, cost_currency, charge_currency) do update set
    cost_amount = t.cost_amount + excluded.cost_amount,
    charge_amount = t.charge_amount + excluded.charge_amount,
    request_count = t.request_count + excluded.request_count,
    input_tokens = t.input_tokens + excluded.input_tokens,
    output_tokens = t.output_tokens + excluded.output_tokens,
    moved_at = excluded.moved_at
