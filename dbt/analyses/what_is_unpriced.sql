-- question: What has no price, and why?
-- asked by: finance, before an invoice
-- one row per: tenant, model as sent and reason, the most requests first
select
    e.tenant_id,
    e.provider,
    coalesce(e.model, e.reported_model, e.requested_model) as model,
    m.reason,
    sum(e.request_count) as requests,
    sum(coalesce(e.input_tokens, 0) + coalesce(e.output_tokens, 0)) as tokens,
    min(e.occurred_at) as since
from ledger.entries as e
cross join lateral unnest(e.unpriced_meters) as m (reason)
where e.unpriced_meters <> '{}' and e.kind <> 'evidence' and ('{{ var("tenant", "") }}' = '' or e.tenant_id = '{{ var("tenant", "") }}')
group by 1, 2, 3, 4
-- A report that a priced one replaced folds to nothing.
having sum(e.request_count) <> 0 or sum(coalesce(e.input_tokens, 0) + coalesce(e.output_tokens, 0)) <> 0
order by requests desc, tokens desc, 1, 2, 3, 4
limit {{ var("rows", "50") }}
