-- Movements by window and cause as arrays, to be kept while what comes before the windows is done.
select
    array_agg(k.budget_id) as w_budgets,
    array_agg(k.group_key) as w_groups,
    array_agg(k.window_start) as w_starts,
    array_agg(k.tenant_id) as w_tenants,
    array_agg(k.currency::text) as w_currencies,
    array_agg(k.posted) as w_posted,
    array_agg(k.held) as w_held,
    array_agg(k.unpriced_count) as w_unpriced_counts,
    array_agg(k.unpriced_tokens) as w_unpriced_tokens,
    array_agg(k.batch_id) as w_batches,
    array_agg(k.cause) as w_causes
from caused as k
